/* verdict.h - the agreement that ends a step: norm, overflow, and whether ranks differ */
#pragma once

#include "agree.h"

/* Describes the all-gather of all ranks' verdicts. */
static zp_op zp_verdict_op(zero_ctx *z) {
    zp_op op = zp_ctx_make_op(z, ZP_GRADIENTS, ZP_ALL_GATHER, 0);
    const int other = z->agreeing != z->data;
    op.group = z->agreeing;
    if (other) op.memory = &z->verdict_memory;
    op.unit = -1;
    op.type = ZERO_F32;
    op.shard = (size_t)zp_ctx_verdict_words(z) * sizeof(double) / sizeof(float);
    op.target = other ? 0 : z->verdict_at;
    op.source = op.target + (size_t)z->agreeing->rank * zp_comm_op_shard_bytes(&op);
    return op;
}

/* Enqueues the squares of elements [from, to) of unit u, which are in this rank's reduced shard.
   They are added to its verdict. */
static zero_result zp_verdict_take_squares(zero_ctx *z, int u, size_t from, size_t to) {
    zp_stream *s = &z->stream[ZP_GRADIENTS];
    const zp_array *mean = &z->array[ZP_MEAN];
    const size_t first = zp_ctx_shard_first(z, u);
    const char *g = zp_ctx_unit_mean(z, u) + (from - first) * zp_type_bytes(mean->type);
    const int number = zp_ctx_verdict_unit(z, u);
    const zp_kernel_fold_args squares = {{g, mean->type, to - from, z->partial},
                                         z->verdict,
                                         (double)number,
                                         (double)from,
                                         z->verdict_units ? z->verdict + ZP_VERDICT + number : NULL,
                                         z->fold};
    ZP_SLICE(s, ZERO_EVENT_NORM, u, (to - from) * zp_type_bytes(mean->type),
             zp_kernel_take_squares(s, &squares));
    return ZERO_OK;
}

/* Adds the squares of the elements that this rank counts: its piece of the shard. */
static zero_result zp_verdict_take_norm(zero_ctx *z, int u) {
    const size_t first = zp_ctx_piece_first(z, u);
    return zp_verdict_take_squares(z, u, first, first + zp_ctx_piece(z, u));
}
static int zp_verdict_takes_norm(const zero_ctx *z) { return !z->row_takes_norm; }

/* Enqueues the agreement: the all-gather of the verdicts, and their combination in control. */
static zero_result zp_verdict_agree(zero_ctx *z) {
    zp_stream *s = &z->stream[ZP_GRADIENTS];
    const zp_op verdict = zp_verdict_op(z);
    const zp_kernel_complete_verdict_args complete = {
        z->verdict, z->control, zp_rule_used_hyper(z->rule, z->hyper), z->step_call};
    const zp_kernel_combine_verdicts_args combine = {z->control,          z->verdicts,
                                                     z->agreeing->nranks, z->verdict_units,
                                                     z->verdict_words,    z->verdict_order};
    ZP_DO(z, zp_kernel_complete_verdict(s, &complete, 1));
    ZP_DO(z, zp_comm_issue(s, &verdict, 1));
    ZP_DO(z, zp_kernel_combine_verdicts(s, &combine, 1));
    if (z->sum_squares) ZP_DO(z, z->sum_squares(z));
    ZP_DO(z, zp_device_record_event(s, z->agreed));
    z->agreement_begun = 1;
    return ZERO_OK;
}

/* verdict.h - the agreement that ends a step: norm, overflow, and whether ranks differ */
#pragma once

#include "agree.h"

/* Describes the all-gather of all ranks' verdicts. */
static zp_op zp_verdict_op(zero_ctx *z) {
    zp_op op = zp_ctx_make_op(z, ZP_GRADIENTS, ZP_ALL_GATHER, 0);
    const int apart = z->world != z->data;
    op.group = z->world;
    if (apart) op.memory = &z->world_memory;
    op.unit = -1;
    op.type = ZERO_F32;
    op.shard = (size_t)zp_ctx_verdict_words(z) * sizeof(double) / sizeof(float);
    op.target = apart ? 0 : z->verdict_at;
    op.source = op.target + (size_t)z->world->rank * zp_comm_op_shard_bytes(&op);
    return op;
}

/* Enqueues the squares of elements [from, to) of unit u. They lie in this rank's reduced shard, and
   are added to its verdict. */
static zero_result zp_verdict_take_squares(zero_ctx *z, int u, size_t from, size_t to) {
    zp_stream *s = &z->stream[ZP_GRADIENTS];
    const zp_array *mean = &z->array[ZP_MEAN];
    const size_t first = (size_t)z->data->rank * z->layout.unit[u].shard;
    const char *g = zp_ctx_unit_mean(z, u) + (from - first) * zp_type_bytes(mean->type);
    const int number = zp_ctx_world_unit(z, u);
    const zp_kernel_norm_args norm = {g, mean->type, to - from, z->partial};
    const zp_kernel_fold_args fold = {norm, z->verdict, (double)number, (double)from,
                                      z->world_units ? z->verdict + ZP_VERDICT + number : NULL};
    zp_record *r =
        zp_device_begin_slice(s, ZERO_EVENT_NORM, u, (to - from) * zp_type_bytes(mean->type));
    ZP_TRY(zp_kernel_norm(s, &norm, (to - from + ZP_NORM_BLOCK - 1) / ZP_NORM_BLOCK));
    const zero_result result = zp_kernel_fold(s, &fold, 1);
    zp_device_end_slice(s, r);
    return result;
}

/* Adds the squares of the elements that this rank counts: its shard, or, with replicas, its piece
   of the shard. Tensors that are copies (ZERO_COPY) are left out. */
static zero_result zp_verdict_take_norm(zero_ctx *z, int u) {
    const zp_unit *x = &z->layout.unit[u];
    const size_t first = zp_ctx_piece_first(z, u), end = first + x->piece;
    if (!z->live[u].copies) return zp_verdict_take_squares(z, u, first, end);
    for (int i = 0; i < x->members; i++) {
        const zp_member *m = &x->member[i];
        const size_t next = i + 1 < x->members ? x->member[i + 1].at : x->padded;
        const size_t from = zp_max(first, m->at), to = zp_min(end, next);
        if (!(z->tensors[m->tensor].desc.flags & ZERO_COPY) && from < to)
            ZP_TRY(zp_verdict_take_squares(z, u, from, to));
    }
    return ZERO_OK;
}

/* Enqueues the agreement: the all-gather of the verdicts, and their combination in control. */
static zero_result zp_verdict_agree(zero_ctx *z) {
    zp_stream *s = &z->stream[ZP_GRADIENTS];
    zero_ctx *j = z->joined;
    const zp_op verdict = zp_verdict_op(z);
    const zp_kernel_complete_verdict_args declare = {z->verdict, z->control, z->hyper, z->said};
    const zp_kernel_combine_verdicts_args judge = {z->control, z->verdicts, z->world->nranks,
                                                   z->world_units, z->verdict_order};
    z->agrees_later = z->cfg.joins != NULL;
    if (z->agrees_later) return zp_ctx_check(z, zp_device_record_event(s, z->agreed));
    if (j) {
        const zp_kernel_join_args join = {z->verdict, j->verdict, z->world_units, NULL, NULL};
        ZP_DO(z, zp_device_wait_event(s, j->agreed));
        ZP_DO(z, zp_kernel_join(s, &join, 1));
    }
    ZP_DO(z, zp_kernel_complete_verdict(s, &declare, 1));
    ZP_DO(z, zp_comm_issue(s, &verdict, 1));
    ZP_DO(z, zp_kernel_combine_verdicts(s, &judge, 1));
    ZP_DO(z, zp_device_record_event(s, z->agreed));
    z->judged = 1;
    if (!j) return ZERO_OK;
    const zp_kernel_join_args back = {NULL, NULL, 0, j->control, z->control};
    ZP_DO(z, zp_kernel_join(s, &back, 1));
    ZP_DO(z, zp_device_record_event(s, j->agreed));
    ZP_DO(z, zp_device_wait_event(&j->stream[ZP_GRADIENTS], j->agreed));
    j->judged = 1;
    j->agrees_later = 0;
    return ZERO_OK;
}

/* Checks that zero_reduce of the joining context comes before that of the joined one. */
static zero_result zp_verdict_check_order(zero_ctx *z, int reduces) {
    const zero_ctx *j = z->joined;
    ZP_UNTIMELY(z, reduces && j && !j->agrees_later,
                "zero_reduce of the context that joins this one comes first");
    ZP_UNTIMELY(z, !reduces && z->agrees_later,
                "zero_reduce of the context that this one joins comes first");
    return ZERO_OK;
}

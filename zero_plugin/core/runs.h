/* runs.h - reads and writes elements of tensors by runs, each of which one rank owns

   A rank reads values that it has. Their owner broadcasts others through the staging buffer. */
#pragma once

#include "step.h"

/* A run of a tensor's elements that one rank owns. */
typedef struct zp_run {
    int unit;         /* the segment */
    int owner;        /* rank of z->data, or, by pieces, the piece's number */
    size_t at, numel; /* at: first element, in the segment */
    size_t left;      /* elements of the member from `at` on */
} zp_run;

static zp_run zp_run_cut(const zero_ctx *z, const zp_tensor *t, size_t element, size_t count,
                         int by_pieces) {
    zp_member *const *members = &z->layout.by_tensor[t->first_member]; /* all have one size */
    const size_t inside = element % members[0]->numel;
    const zp_member *m = members[element / members[0]->numel];
    const size_t shard = by_pieces ? zp_ctx_piece(z, m->unit) : zp_ctx_shard(z, m->unit);
    const size_t at = m->at + inside, owner = at / shard, end = (owner + 1) * shard;
    const size_t left = m->numel - inside;
    const zp_run run = {m->unit, (int)owner, at, zp_min(zp_min(count, left), end - at), left};
    return run;
}

static zp_run zp_run_at(const zero_ctx *z, const zp_tensor *t, size_t element, size_t count) {
    return zp_run_cut(z, t, element, count, 0);
}

/* Returns the array that keeps a kind of segment u. Frozen segments have one form of a weight. */
static zp_array *zp_run_array(zero_ctx *z, zero_kind kind, int u) {
    const int masters = z->array[ZP_MASTER].share && u < z->layout.all;
    if (kind == ZERO_GRADIENT) return zp_ctx_update_gradient(z);
    if (kind == ZERO_MASTER && masters) return &z->array[ZP_MASTER];
    if (kind == ZERO_PARAMETER || kind == ZERO_MASTER) return &z->array[ZP_PARAM];
    return &z->array[ZP_STATE + (kind - ZERO_MOMENT_1)];
}

/* Returns the array with the lower halves of a kind's values; NULL: they are not split. */
static zp_array *zp_run_low_array(zero_ctx *z, zero_kind kind, int u) {
    zp_array *a = zp_run_array(z, kind, u);
    return a->type == ZP_LOW ? a : NULL;
}

/* Returns the array that keeps unit u's part of a kind, or its upper halves. If updates overlap,
   there are two weights. */
static zp_array *zp_run_array_of_unit(zero_ctx *z, zero_kind kind, int u) {
    zp_array *a = zp_run_array(z, kind, u);
    if (a != &z->array[ZP_PARAM] && a->type != ZP_LOW) return a;
    return kind == ZERO_MASTER ? zp_ctx_newest(z, u) : zp_ctx_weights(z, u);
}

/* Returns how the ranks share a kind of unit u; of split values, their lower halves. */
static zp_share zp_run_share(zero_ctx *z, zero_kind kind, int u) {
    const zp_array *low = zp_run_low_array(z, kind, u);
    return (low ? low : zp_run_array_of_unit(z, kind, u))->part[u].share;
}

/* Converts n values of unit u of array a, after zp_array_open. */
static zero_result zp_run_convert(zero_ctx *z, const zp_array *a, int u,
                                  const zp_kernel_convert_args *args, size_t n) {
    const zp_tier *t = zp_array_tier(a, u);
    if (args->to_type == ZP_CODES) n = (args->first + n + ZP_CODE_BLOCK - 1) / ZP_CODE_BLOCK;
    if (t->convert) return t->convert(z, args, n);
    const int plain = args->from_type != ZP_CODES && args->to_type != ZP_CODES;
    return (plain ? zp_kernel_convert : z->state_form->convert)(&z->compute, args, n);
}

/* Stores values of any type in this rank's part of an array. control: of gradients, else NULL. */
static zero_result zp_run_store(zero_ctx *z, zp_array *a, const zp_control *control,
                                const zp_run *run, zero_type type, const char *values) {
    const int weights = !control && (a < &z->array[ZP_STATE] || a >= &z->array[ZP_NEXT]);
    const zp_rounding rounding = weights ? z->master.rounding : ZP_NEAREST;
    float *stage = (float *)(void *)z->data->stage.base;
    char *memory;
    const int straight = a->part[run->unit].type == type && !control;
    for (size_t at = 0, n; at < run->numel; at += n) {
        const size_t first = (run->at + at) % ZP_CODE_BLOCK;
        n = straight ? run->numel - at : zp_min(ZP_STAGE_NUMEL - first, run->numel - at);
        ZP_TRY(zp_array_open(a, run->unit, run->at + at, &n, &z->compute, &memory));
        if (straight) {
            ZP_TRY(zp_device_copy(&z->compute, memory, values + at * zp_type_bytes(type),
                                  n * zp_type_bytes(type)));
        } else {
            const zp_kernel_convert_args args = {
                stage, memory, ZERO_F32,  a->part[run->unit].type, control, 0, rounding,
                first, n,      a->squares};
            ZP_TRY(zp_device_sync_stream(&z->compute));
            zp_type_widen(stage, values + at * zp_type_bytes(type), type, n);
            ZP_TRY(zp_run_convert(z, a, run->unit, &args, n));
        }
        ZP_TRY(zp_array_close(a, run->unit, run->at + at, &z->compute, 1));
    }
    zp_extra_wrote(z, a, run->unit);
    return ZERO_OK;
}

/* Writes values of any type from your code to this rank's arrays, if this rank keeps the run. */
static zero_result zp_run_put(zero_ctx *z, zero_kind kind, const zp_run *run, zero_type type,
                              const char *values) {
    zp_array *a = zp_run_array_of_unit(z, kind, run->unit),
             *low = zp_run_low_array(z, kind, run->unit);
    const zp_control *control = kind == ZERO_GRADIENT ? z->control : NULL;
    const zp_share share = zp_run_share(z, kind, run->unit);
    if (!share) return ZERO_OK; /* a moment of a frozen layer is 0 */
    if (share != ZP_WHOLE && run->owner != z->data->rank) return ZERO_OK;
    ZP_TRY(zp_run_store(z, a, control, run, type, values));
    return low ? zp_run_store(z, low, NULL, run, type, values) : ZERO_OK;
}

/* Returns an error on all ranks if they ask for different ranges or values. COLLECTIVE. */
static zero_result zp_run_agree(zero_ctx *z, const zp_tensor *t, zero_kind kind, size_t first,
                                size_t count, const float *values) {
    const uint64_t what[] = {(uint64_t)(t - z->tensors), (uint64_t)kind, first, count,
                             values != NULL};
    uint64_t mine = ZP_HASH_EMPTY;
    for (int i = 0; i < 5; i++) mine = zp_hash(mine, what[i]);
    for (size_t i = 0; i < count && values; i++) mine = zp_hash(mine, zp_type_bits(values[i]));
    ZP_DO(z, zp_comm_exchange(z->all, &mine, sizeof mine));
    const int r = zp_agree_first_difference(z->all, sizeof mine);
    if (!r) return ZERO_OK;
    return zp_ctx_fail(z, ZERO_ERR_MISMATCH,
                       values
                           ? "%s, [%zu, %zu): rank %d gives other values, or another range, than "
                             "rank 0; nothing is written"
                           : "%s, [%zu, %zu): rank %d asks for another tensor, kind or range than "
                             "rank 0",
                       t->desc.name, first, first + count, r);
}

/* Puts f32 values of all ranks into elements [first, first + count) of a tensor; for a weight, into
   its master too. Then no rank uses older values any more. COLLECTIVE, SYNC. */
static zero_result zp_run_put_all(zero_ctx *z, const zp_tensor *t, zero_kind kind, size_t first,
                                  size_t count, const float *values) {
    const int weights = kind == ZERO_PARAMETER || kind == ZERO_MASTER;
    for (size_t done = 0; done < count;) {
        const zp_run run = zp_run_at(z, t, first + done, count - done);
        const char *from = (const char *)(values + done);
        /* a write changes both forms of a trained weight */
        if (weights && z->array[ZP_MASTER].share && run.unit < z->layout.all)
            ZP_DO(z, zp_run_put(z, ZERO_MASTER, &run, ZERO_F32, from));
        ZP_DO(z, zp_run_put(z, weights ? ZERO_PARAMETER : kind, &run, ZERO_F32, from));
        done += run.numel;
    }
    if (weights) zp_gather_forget_all(z);
    ZP_DO(z, zp_device_sync_stream(&z->compute));
    ZP_TRY(zp_observe_parameters_changed(z));
    return zp_ctx_check(z, zp_comm_barrier(z->all));
}

/* runs.h - reads and writes elements of tensors by runs, each of which one rank owns

   A rank reads values that it has itself. Otherwise their owner broadcasts them through the staging
   buffer. */
#pragma once

#include "weights.h"

/* A run of a tensor's elements that one rank owns. */
typedef struct zp_run {
    int unit, owner; /* owner: rank of z->data, or, by pieces, the piece's number */
    size_t at;       /* first element, in the unit */
    size_t numel;
    size_t left; /* elements of the member from `at` on */
} zp_run;

static zp_run zp_run_cut(const zero_ctx *z, const zp_tensor *t, size_t element, size_t count,
                         int by_pieces) {
    zp_member *const *members = &z->layout.by_tensor[t->first_member]; /* all have one size */
    const size_t inside = element % members[0]->numel;
    const zp_member *m = members[element / members[0]->numel];
    const zp_segment *x = zp_layout_trained(&z->layout.unit[m->unit]);
    const size_t shard = by_pieces ? x->piece : x->shard, at = m->at + inside;
    const size_t owner = (at - x->first) / shard, end = x->first + (owner + 1) * shard;
    const size_t left = m->numel - inside;
    const zp_run run = {m->unit, (int)owner, at, zp_min(zp_min(count, left), end - at), left};
    return run;
}

static zp_run zp_run_at(const zero_ctx *z, const zp_tensor *t, size_t element, size_t count) {
    return zp_run_cut(z, t, element, count, 0);
}

/* Returns the array that keeps a kind. */
static zp_array *zp_run_array(zero_ctx *z, zero_kind kind) {
    if (kind == ZERO_GRADIENT) return zp_ctx_update_gradient(z);
    if (kind == ZERO_MASTER && z->array[ZP_MASTER].share) return &z->array[ZP_MASTER];
    if (kind == ZERO_PARAMETER || kind == ZERO_MASTER) return &z->array[ZP_PARAM];
    return &z->array[ZP_STATE + (kind - ZERO_MOMENT_1)];
}

/* Returns the array that keeps unit u's part of a kind: if updates overlap, there are two weights.
 */
static zp_array *zp_run_array_of_unit(zero_ctx *z, zero_kind kind, int u) {
    zp_array *a = zp_run_array(z, kind);
    if (a != &z->array[ZP_PARAM]) return a;
    return kind == ZERO_MASTER ? zp_ctx_newest(z, u) : zp_ctx_weights(z, u);
}

/* Reads a run in pieces through the staging buffer, as unscaled f32. out NULL: for peers alone. */
static zero_result zp_run_read(zero_ctx *z, zero_kind kind, const zp_run *run, float *out) {
    zp_array *a = zp_run_array_of_unit(z, kind, run->unit);
    const zp_control *control = kind == ZERO_GRADIENT ? z->control : NULL;
    const int sent = a->part[run->unit].share == ZP_SHARD; /* else this rank can read it */
    const int here = !sent || run->owner == z->data->rank;
    float *stage = (float *)(void *)z->data->stage.base;
    for (size_t at = 0, n; at < run->numel; at += n) {
        char *from;
        n = zp_min(zp_array_contiguous(a, run->unit, run->at + at),
                   zp_min(ZP_STAGE_NUMEL, run->numel - at));
        if (here) {
            ZP_DO(z, zp_array_open(a, run->unit, run->at + at, &n, &z->compute, &from));
            const zp_kernel_convert_args args = {from, stage, a->type, ZERO_F32, control, 1};
            ZP_DO(z, zp_weights_convert(z, a, run->unit, &args, n));
            ZP_DO(z, zp_array_close(a, run->unit, run->at + at, &z->compute, 0));
        }
        ZP_DO(z, zp_device_sync_stream(&z->compute)); /* the CPU reads the staging buffer */
        if (sent && z->data->nranks > 1)
            ZP_DO(z, zp_comm_broadcast(z->data, here || !out ? stage : out + at, n * sizeof *out,
                                       run->owner));
        if (out && here) memcpy(out + at, stage, n * sizeof *out);
    }
    return ZERO_OK;
}

/* Writes values of any type from your code to this rank's array, if this rank keeps the run. */
static zero_result zp_run_put(zero_ctx *z, zero_kind kind, const zp_run *run, zero_type type,
                              const char *values) {
    zp_array *a = zp_run_array_of_unit(z, kind, run->unit);
    const zp_control *control = kind == ZERO_GRADIENT ? z->control : NULL;
    float *stage = (float *)(void *)z->data->stage.base;
    char *memory;
    if (a->part[run->unit].share != ZP_WHOLE && run->owner != z->data->rank) return ZERO_OK;
    const int straight = a->type == type && !control;
    for (size_t at = 0, n; at < run->numel; at += n) {
        n = straight ? run->numel - at : zp_min(ZP_STAGE_NUMEL, run->numel - at);
        ZP_TRY(zp_array_open(a, run->unit, run->at + at, &n, &z->compute, &memory));
        if (straight) {
            ZP_TRY(zp_device_copy(&z->compute, memory, values + at * zp_type_bytes(type),
                                  n * zp_type_bytes(type)));
        } else {
            const zp_kernel_convert_args args = {stage, memory, ZERO_F32, a->type, control, 0};
            ZP_TRY(zp_device_sync_stream(&z->compute));
            zp_type_widen(stage, values + at * zp_type_bytes(type), type, n);
            ZP_TRY(zp_weights_convert(z, a, run->unit, &args, n));
        }
        ZP_TRY(zp_array_close(a, run->unit, run->at + at, &z->compute, 1));
    }
    zp_extra_wrote(z, a, run->unit);
    return ZERO_OK;
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
        if (weights && z->array[ZP_MASTER].share) /* a write changes both forms of a weight */
            ZP_DO(z, zp_run_put(z, ZERO_MASTER, &run, ZERO_F32, from));
        ZP_DO(z, zp_run_put(z, weights ? ZERO_PARAMETER : kind, &run, ZERO_F32, from));
        done += run.numel;
    }
    if (weights) zp_gather_forget_all(z);
    ZP_DO(z, zp_device_sync_stream(&z->compute));
    ZP_TRY(zp_observe_parameters_changed(z));
    return zp_ctx_check(z, zp_comm_barrier(z->all));
}

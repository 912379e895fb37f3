/* reduce.h - reduces gradients: from the backward that writes one to the reduced shard

   HOOK -> BUCKET -> WALK. zero_backward_begin takes a gradient buffer, or the unit's own memory,
   and clears it on the compute stream. Your code adds its gradient. zero_backward_end records event
   `written` and adds the unit to the bucket. When the bucket is full, or the micro-step ends, the
   stations of zp_reduce_stations (below) run for the bucket's units and enqueue on the gradient
   stream. The last record `reduction`: the buffer's next user and the optimizer wait for it. */
#pragma once

#include "gather.h"
#include "verdict.h"

/* Adds unit u's 16-bit gradient of this micro-step to its f32 accumulator. In the last micro-step
   the rounded sum replaces the gradient. */
static zero_result zp_reduce_collect(zero_ctx *z, int u) {
    const int last = z->bucket_last, first = z->live[u].reduced == 0;
    if (last && first) return ZERO_OK; /* a single micro-step needs no sum */
    zp_array *sums = &z->array[ZP_SUM];
    zp_stream *s = &z->stream[ZP_GRADIENTS];
    const size_t n = z->layout.unit[u].padded;
    const zp_kernel_accumulate_args add = {(float *)(void *)zp_array_at(sums, u, 0),
                                           zp_ctx_unit_memory(z, ZP_GRAD, u),
                                           z->array[ZP_GRAD].type, first, last};
    ZP_SLICE(s, ZERO_EVENT_NORM, u, n * sizeof(float), zp_kernel_accumulate(s, &add, n / ZP_WIDE));
    return ZERO_OK;
}

/* Waits until the backward of unit u has ended on the compute stream. */
static zero_result zp_reduce_wait_written(zero_ctx *z, int u) {
    return zp_device_wait_event(&z->stream[ZP_GRADIENTS], z->live[u].written);
}

/* Describes the reduce-scatter of every unit of the bucket in z->ops. */
static zero_result zp_reduce_describe(zero_ctx *z) {
    const zp_array *sum = &z->array[ZP_SUM];
    char *base = z->memory[ZP_GRAD].base;
    for (int i = 0; i < z->nbucket; i++) {
        const int u = z->bucket[i], adds = sum->part[u].share == ZP_SHARD;
        zp_op *op = &z->ops[i];
        *op = zp_ctx_make_op(z, ZP_GRADIENTS, ZP_REDUCE_SCATTER, u);
        op->source = (size_t)(zp_ctx_unit_memory(z, ZP_GRAD, u) - base);
        op->target = (size_t)(zp_ctx_unit_mean(z, u) - base);
        op->sum = adds ? (float *)(void *)(sum->memory + sum->part[u].at) : NULL;
        op->scale = zp_ctx_sum_scale(z);
        op->accumulate = z->adding == ZP_EACH_REDUCED && z->live[u].reduced > 0;
        op->wire = z->live[u].wire[ZP_GRAD];
    }
    return ZERO_OK;
}
static zero_result zp_reduce_issue(zero_ctx *z) {
    return zp_comm_send(&z->stream[ZP_GRADIENTS], z->ops, z->nbucket);
}

/* Stage 0: gathers the reduced shards, because every rank updates all elements. */
static zero_result zp_reduce_gather_whole(zero_ctx *z) {
    for (int i = 0; i < z->nbucket; i++) {
        const int u = z->bucket[i];
        zp_op *op = &z->ops[i];
        *op = zp_ctx_make_op(z, ZP_GRADIENTS, ZP_ALL_GATHER, u);
        op->source = (size_t)(zp_ctx_unit_mean(z, u) - z->memory[ZP_GRAD].base);
        op->target = zp_ctx_update_gradient(z)->part[u].at;
        op->wire = z->live[u].whole_wire;
    }
    return zp_reduce_issue(z);
}

static zero_result zp_reduce_record(zero_ctx *z, int u) {
    return zp_device_record_event(&z->stream[ZP_GRADIENTS], z->live[u].reduction);
}
static zero_result zp_reduce_end(zero_ctx *z, int u) {
    zp_live *live = &z->live[u];
    live->in_bucket = 0;
    live->reduced++;
    live->buffer[ZP_GRAD] = -1;
    return ZERO_OK;
}

/* Returns 1 if the pass has several micro-steps and each is reduced on its own. */
static int zp_reduce_is_repeated(const zero_ctx *z) {
    return z->pass_micro_steps > 1 && z->adding == ZP_EACH_REDUCED;
}

/* Returns 1 if all of unit u's backwards in this pass have ended. */
static int zp_reduce_unit_is_written(const zero_ctx *z, int u) {
    return z->live[u].writes >= z->layout.unit[u].uses * z->pass_micro_steps;
}

/* Returns 1 if unit u's gradient is now the one of the step's last micro-step. */
static int zp_reduce_unit_is_last(const zero_ctx *z, int u) {
    return zp_reduce_is_repeated(z) ? zp_reduce_unit_is_written(z, u)
                                    : z->micro + 1 == z->micro_steps;
}

/* Returns 1 if the station runs in this micro-step. */
static int zp_reduce_runs(const zero_ctx *z, const zp_station *s) {
    const int reduces = z->bucket_last || z->adding != ZP_COLLECTED;
    return s->when == ZP_EACH_MICRO_STEP
           || (s->when == ZP_EACH_REDUCTION ? reduces : z->bucket_last);
}

/* Enqueues the gradient's walk for the bucket's units. The micro-step is the last one either for
   all of them or for none. */
static zero_result zp_reduce_flush_bucket(zero_ctx *z) {
    const zp_walk *w = &z->walk[ZP_GRADIENT_WALK];
    if (!z->nbucket) return ZERO_OK;
    z->bucket_last = zp_reduce_unit_is_last(z, z->bucket[0]);
    for (int i = 0; i < w->n; i++) {
        const zp_station *s = w->station[i];
        if (!zp_reduce_runs(z, s)) continue;
        if (s->once) ZP_DO(z, s->once(z));
        for (int k = 0; k < z->nbucket && s->unit; k++) ZP_DO(z, s->unit(z, z->bucket[k]));
    }
    z->nbucket = 0;
    z->bucket_filled = 0;
    return ZERO_OK;
}

static zero_result zp_reduce_add_to_bucket(zero_ctx *z, int u) {
    const size_t numel = z->layout.unit[u].padded;
    zp_live *live = &z->live[u];
    const int b = live->buffer[ZP_GRAD];
    if (b >= 0) z->pool[ZP_GRAD].buffer[b].open = 0; /* its next user waits for `reduction` */
    const int full = z->bucket_filled + numel > z->bucket_numel;
    if (z->nbucket
        && (full || zp_reduce_unit_is_last(z, u) != zp_reduce_unit_is_last(z, z->bucket[0])))
        ZP_TRY(zp_reduce_flush_bucket(z));
    ZP_DO(z, zp_device_record_event(&z->compute, live->written));
    live->in_bucket = 1;
    if (zp_reduce_is_repeated(z)) live->touched = 0;
    z->bucket[z->nbucket++] = u;
    z->bucket_filled += numel;
    return z->bucket_filled >= z->bucket_numel ? zp_reduce_flush_bucket(z) : ZERO_OK;
}

/* Takes a buffer for u's gradients: its own, or the shared one whose reduction began first. */
static zero_result zp_reduce_take_buffer(zero_ctx *z, int u) {
    char open[128];
    zp_buffers *pool = &z->pool[ZP_GRAD];
    zp_live *live = &z->live[u];
    if (zp_ctx_unit_is_whole(z, ZP_GRAD, u) || live->buffer[ZP_GRAD] >= 0) return ZERO_OK;
    const int b = live->own[ZP_GRAD] >= 0 ? live->own[ZP_GRAD] : zp_buffer_oldest(pool, NULL, 0);
    ZP_UNTIMELY(
        z, b < 0,
        "unit %d: all gradient buffers belong to units whose backward is not complete (%s); "
        "raise open_units (ZERO_ALL: all of them), or bucket_numel",
        u, zp_buffer_print_open(pool, open, sizeof open));
    const int before = pool->buffer[b].unit;
    if (before >= 0 && z->live[before].in_bucket) ZP_TRY(zp_reduce_flush_bucket(z));
    if (before >= 0) ZP_DO(z, zp_device_wait_event(&z->compute, z->live[before].reduction));
    pool->buffer[b].unit = u;
    pool->buffer[b].open = 1;
    pool->buffer[b].used = ++pool->clock;
    live->buffer[ZP_GRAD] = b;
    return ZERO_OK;
}

static zero_result zp_reduce_clear_gradient(zero_ctx *z, int u, int all) {
    const zp_unit *x = &z->layout.unit[u];
    char *memory = zp_ctx_unit_memory(z, ZP_GRAD, u);
    const size_t of_g = zp_type_bytes(z->array[ZP_GRAD].type);
    size_t from = 0; /* adjacent tensors that need zeros, and padding, are cleared together */
    for (int i = 0; i <= x->members; i++) {
        const zp_member *m = i < x->members ? &x->member[i] : NULL;
        const int keep = m && !all && (z->tensors[m->tensor].desc.flags & ZERO_OVERWRITTEN);
        if (m && !keep) continue;
        const size_t to = m ? m->at : x->padded;
        ZP_TRY(zp_device_clear(&z->compute, memory + from * of_g, (to - from) * of_g));
        if (m) from = m->at + m->numel;
    }
    return ZERO_OK;
}

/* Prepares u's gradients at their first use in a micro-step, or in a step if added locally. */
static zero_result zp_reduce_open_gradient(zero_ctx *z, int u, int clear_all) {
    zp_live *live = &z->live[u];
    if (live->touched || !z->layout.unit[u].numel) return ZERO_OK;
    if (live->in_bucket) ZP_TRY(zp_reduce_flush_bucket(z));
    ZP_TRY(zp_reduce_take_buffer(z, u));
    ZP_DO(z, zp_device_wait_event(&z->compute, live->reduction));
    if (live->reader && !zp_ctx_keeps_next(z)) /* the update may still read them */
        ZP_DO(z, zp_device_wait_event(&z->compute, live->reader));
    live->touched = 1;
    ZP_TRY_IF(z->observer, cleared, z, u);
    const size_t bytes = z->layout.unit[u].padded * zp_type_bytes(z->array[ZP_GRAD].type);
    ZP_SLICE(&z->compute, ZERO_EVENT_CLEAR, u, bytes,
             zp_ctx_check(z, zp_reduce_clear_gradient(z, u, clear_all)));
    return ZERO_OK;
}

static int zp_reduce_is_due(const zero_ctx *z) {
    return z->adding != ZP_IN_PLACE || z->micro + 1 == z->micro_steps;
}

/* Ends a training micro-step: reduces the units that are left, in descending order, KEEP last. */
static zero_result zp_reduce_finish_micro_step(zero_ctx *z) {
    if (!zp_reduce_is_due(z)) return ZERO_OK;
    for (int i = z->layout.all - 1; i >= 0; i--) {
        const int u = zp_layout_nth_unit(&z->layout, i);
        if ((zp_reduce_unit_is_written(z, u) && !z->live[u].reduced_last)
            || !z->layout.unit[u].numel)
            continue;
        ZP_TRY(zp_reduce_open_gradient(z, u, 1));
        z->live[u].writes = z->layout.unit[u].uses * z->pass_micro_steps;
        ZP_TRY(zp_reduce_add_to_bucket(z, u));
    }
    return zp_reduce_flush_bucket(z);
}

/* ---- the walk ---- */

static int zp_reduce_collects(const zero_ctx *z) { return z->array[ZP_SUM].share == ZP_WHOLE; }
static int zp_reduce_is_whole(const zero_ctx *z) { return z->policy.state == ZP_WHOLE; }

/* The core's stations of a gradient. */
static const zp_station zp_reduce_stations[] = {
    {ZP_AT_WRITTEN, ZP_EACH_MICRO_STEP, NULL, zp_reduce_wait_written, NULL},
    {ZP_AT_COLLECT, ZP_EACH_MICRO_STEP, zp_reduce_collects, zp_reduce_collect, NULL},
    {ZP_AT_DESCRIBE, ZP_EACH_REDUCTION, NULL, NULL, zp_reduce_describe},
    {ZP_AT_ISSUE, ZP_EACH_REDUCTION, NULL, NULL, zp_reduce_issue},
    {ZP_AT_NORM, ZP_LAST_MICRO_STEP, zp_verdict_takes_norm, zp_verdict_take_norm, NULL},
    {ZP_AT_WHOLE, ZP_LAST_MICRO_STEP, zp_reduce_is_whole, NULL, zp_reduce_gather_whole},
    {ZP_AT_DONE, ZP_EACH_MICRO_STEP, NULL, zp_reduce_record, NULL},
    {ZP_AT_END, ZP_EACH_MICRO_STEP, NULL, zp_reduce_end, NULL},
    ZP_LAST_STATION};

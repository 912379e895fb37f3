/* access.h - functions of the header: tensors by name, their hash, and the state for checkpoints */
#pragma once

#include "life.h"
#include "../extras/state.h"

zero_result zero_read_tensor(zero_ctx *z, const char *name, zero_kind kind, size_t first,
                             size_t count, float *out) {
    zp_tensor *t;
    ZP_TRY(zp_state_begin_access(z, "zero_read_tensor", 0, name, kind, first, count, &t));
    /* at stage 0 every rank has all values and does not wait */
    if (z->policy.state == ZP_SHARD) ZP_TRY(zp_run_agree(z, t, kind, first, count, NULL));
    for (size_t done = 0; done < count;) {
        const zp_run run = zp_run_at(z, t, first + done, count - done);
        ZP_TRY(zp_state_read_run(z, kind, &run, out ? out + done : NULL));
        done += run.numel;
    }
    z->peers_read |= z->array[ZP_PARAM].share == ZP_SEEN && z->phase == ZP_REDUCED;
    return ZERO_OK;
}

zero_result zero_write_tensor(zero_ctx *z, const char *name, zero_kind kind, size_t first,
                              size_t count, const float *values) {
    zp_tensor *t;
    ZP_TRY(zp_state_begin_access(z, "zero_write_tensor", 1, name, kind, first, count, &t));
    ZP_REFUSE(z, !values && count, "%s: values is NULL", name);
    /* after it no peer reads the old values */
    ZP_TRY(zp_run_agree(z, t, kind, first, count, values));
    for (size_t i = 0; i < count && kind == ZERO_GRADIENT; i++) {
        const zero_type type = z->array[ZP_GRAD].type;
        union { /* values outside the type's range would bypass the agreed norm */
            float f;
            uint16_t bits;
        } stored;
        zp_type_store(&stored, type, 0, values[i] * (float)z->report.stored);
        ZP_REFUSE(
            z, !zp_type_is_finite((double)zp_type_load(&stored, type, 0)),
            "%s: gradient %zu (%g) times the loss scale (%g) overflows its type; use a smaller one",
            name, first + i, (double)values[i], (double)z->report.scale);
    }
    return zp_run_put_all(z, t, kind, first, count, values);
}

/* Mixes a hash as MurmurHash3 does, so that differences of two tensors do not cancel in a sum. */
static uint64_t zp_access_mix(uint64_t x) {
    x = (x ^ x >> 33) * 0xFF51AFD7ED558CCDu;
    x = (x ^ x >> 33) * 0xC4CEB9FE1A85EC53u;
    return x ^ x >> 33;
}

/* Adds the hash of a tensor's name and weights to *all. */
static zero_result zp_access_add_hash(zero_ctx *z, const zp_tensor *t, float *values,
                                      uint64_t *all) {
    const size_t total = t->desc.numel * (size_t)t->desc.layers;
    uint64_t hash = zp_bind_hash_name(t->desc.name);
    for (size_t at = 0; at < total;) {
        const zp_run run = zp_run_at(z, t, at, zp_min(ZP_STAGE_NUMEL, total - at));
        ZP_TRY(zp_state_read_run(z, ZERO_MASTER, &run, values));
        for (size_t i = 0; i < run.numel; i++) hash = zp_hash(hash, zp_type_bits(values[i]));
        at += run.numel;
    }
    *all += zp_access_mix(hash);
    return ZERO_OK;
}

zero_result zero_hash(zero_ctx *z, uint64_t *hash) {
    ZP_ENTER(z, "zero_hash", ZP_IDLE, "weights are hashed after zero_build, between steps");
    ZP_REFUSE(z, !hash, "hash is NULL");
    int failed_rank = -1;
    float *values = (float *)malloc(ZP_STAGE_NUMEL * sizeof *values);
    zero_result r = zp_ctx_check(z, zp_comm_agree(z->all, values != NULL, &failed_rank));
    if (failed_rank >= 0)
        r = zp_ctx_fail(z, ZERO_ERR_MEMORY, "rank %d has no memory for a piece of the weights",
                        failed_rank);
    if (!r) r = zp_run_agree(z, z->tensors, ZERO_MASTER, 0, z->plan.numel, NULL);
    if (!r) r = zp_ctx_check(z, zp_extra_sync(z));
    *hash = 0;
    for (int t = 0; t < z->ntensors && !r; t++)
        r = zp_access_add_hash(z, &z->tensors[t], values, hash);
    free(values);
    return r;
}

#define ZP_NOT_OPEN "the state is not open; call zero_state_begin first"

zero_result zero_state_begin(zero_ctx *z) {
    ZP_ENTER(z, "zero_state_begin", ZP_ANY, "");
    ZP_UNTIMELY(
        z, z->phase != ZP_IDLE,
        z->phase & (ZP_IN_PASS | ZP_BETWEEN | ZP_REDUCED)
            ? "a step is in progress, and sums of micro-steps are no state; call this after "
              "zero_step"
        : z->phase == ZP_NEW ? "the context is not built; call zero_build first"
                             : "the state is open already; call zero_state_end first");
    ZP_DO(z, zp_extra_sync(z)); /* prefetched gathers read memory that a put may write */
    ZP_TRY(zp_step_wait_report(z));
    ZP_DO(z, zp_comm_barrier(z->all)); /* after it no peer reads memory that a put may write */
    ZP_TRY(zp_extra_call(z, ZP_ON_STATE_BEGIN));
    z->parameters_put = 0;
    z->phase = ZP_OPEN;
    return ZERO_OK;
}

int zero_state_ranges(const zero_ctx *z, int whole) { return z ? z->nranges[whole != 0] : 0; }

zero_result zero_state_range(zero_ctx *z, int whole, int i, zero_range *range) {
    ZP_ENTER(z, "zero_state_range", ZP_ANY, "");
    ZP_REFUSE(z, !range, "range is NULL");
    ZP_TRY(zp_ctx_check_index(z, "range", i, z->nranges[whole != 0]));
    *range = z->ranges[whole != 0][i];
    return ZERO_OK;
}

zero_result zero_state_get(zero_ctx *z, const zero_range *range, void *out) {
    ZP_ENTER(z, "zero_state_get", ZP_OPEN, ZP_NOT_OPEN);
    return zp_state_move(z, range, NULL, (char *)out);
}

zero_result zero_state_put(zero_ctx *z, const zero_range *range, const void *values) {
    ZP_ENTER(z, "zero_state_put", ZP_OPEN, ZP_NOT_OPEN);
    return zp_state_move(z, range, (const char *)values, NULL);
}

void zero_state_counters(const zero_ctx *z, zero_counters *c) {
    if (c) memset(c, 0, sizeof *c);
    if (!z || !c) return;
    const zp_control *r = &z->report;
    const zero_counters now = {r->steps,         r->skipped, r->iteration,
                               r->last_overflow, r->scale,   r->hysteresis};
    *c = now;
}

zero_result zero_state_set_counters(zero_ctx *z, const zero_counters *c) {
    ZP_ENTER(z, "zero_state_set_counters", ZP_OPEN, ZP_NOT_OPEN);
    ZP_REFUSE(z,
              !c || c->steps < 0 || c->skipped < 0 || c->iteration < 0 || c->last_overflow < -1
                  || !zp_type_is_finite((double)c->scale) || c->scale <= 0 || c->hysteresis < 0,
              "a counter is below 0, or scale is not above 0; pass those of zero_state_counters");
    const zero_scaler *s = &z->cfg.scaler;
    const int moved = s->fixed == 0 && c->iteration > 0;
    zp_control *r = &z->report;
    r->steps = c->steps;
    r->skipped = c->skipped;
    r->iteration = moved ? c->iteration : 0;
    r->last_overflow = moved ? c->last_overflow : -1;
    r->hysteresis = moved ? c->hysteresis : s->hysteresis;
    zp_kernel_set_scale(r, moved ? c->scale : s->fixed != 0 ? s->fixed : s->initial);
    *z->pinned = *r;
    z->taken = c->steps + c->skipped;
    ZP_DO(z, zp_device_copy(&z->compute, z->control, z->pinned, sizeof *z->pinned));
    return zp_ctx_check(z, zp_device_sync_stream(&z->compute)); /* *z->pinned is readable again */
}

zero_result zero_state_end(zero_ctx *z, int changed) {
    ZP_ENTER(z, "zero_state_end", ZP_OPEN, ZP_NOT_OPEN);
    z->phase = ZP_IDLE;
    if (!changed) return ZERO_OK;
    ZP_TRY(zp_state_compute_weights(z));
    ZP_TRY(zp_extra_call(z, ZP_ON_STATE_END));
    z->stepped = 0; /* the last step of another run is unknown */
    return zp_observe_parameters_changed(z);
}

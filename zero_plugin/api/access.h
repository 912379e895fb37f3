/* access.h - the functions of the header, in its order: tensors, state, numbers, statistics */
#pragma once

#include "life.h"

zero_result zero_read_tensor(zero_ctx *z, const char *name, zero_kind kind, size_t first,
                             size_t count, float *out) {
    zp_tensor *t;
    ZP_TRY(zp_state_begin_access(z, "zero_read_tensor", 0, name, kind, first, count, &t));
    /* at stage 0 every rank has all values and does not wait */
    if (z->policy.state == ZP_SHARD) ZP_TRY(zp_state_agree(z, t, kind, first, count, NULL));
    for (size_t done = 0; done < count;) {
        const zp_run run = zp_state_run_at(z, t, first + done, count - done);
        ZP_TRY(zp_state_read_run(z, kind, &run, out ? out + done : NULL));
        done += run.numel;
    }
    z->looked |= z->array[ZP_PARAM].share == ZP_SEEN && z->phase == ZP_REDUCED;
    return ZERO_OK;
}

static zero_result zp_access_write(zero_ctx *z, const char *call, const char *name, zero_kind kind,
                                   size_t first, size_t count, const float *values) {
    const int weights = kind == ZERO_PARAMETER || kind == ZERO_MASTER;
    zp_tensor *t;
    ZP_TRY(zp_state_begin_access(z, call, 1, name, kind, first, count, &t));
    ZP_REFUSE(z, !values && count, "%s: values is NULL", name);
    /* after it no peer reads the old values */
    ZP_TRY(zp_state_agree(z, t, kind, first, count, values));
    for (size_t i = 0; i < count && kind == ZERO_GRADIENT; i++) {
        const zero_type type = z->array[ZP_GRAD].type;
        union { /* values outside the type's range would bypass the agreed norm */
            float f;
            uint16_t bits;
        } stored;
        zp_type_store(&stored, type, 0, values[i] * (float)z->report.stored);
        ZP_REFUSE(z, !zp_type_is_finite((double)zp_type_load(&stored, type, 0)),
                  "%s: gradient %zu is %g, times the loss scale %g more than its type holds", name,
                  first + i, (double)values[i], (double)z->report.scale);
    }
    for (size_t done = 0; done < count;) {
        const zp_run run = zp_state_run_at(z, t, first + done, count - done);
        const char *from = (const char *)(values + done);
        if (weights && z->array[ZP_MASTER].share) /* a write changes both forms of a weight */
            ZP_DO(z, zp_state_put_values(z, ZERO_MASTER, &run, ZERO_F32, from));
        ZP_DO(z, zp_state_put_values(z, weights ? ZERO_PARAMETER : kind, &run, ZERO_F32, from));
        done += run.numel;
    }
    if (weights) zp_gather_forget_all(z);
    ZP_DO(z, zp_device_sync_stream(&z->compute));
    ZP_TRY(zp_observe_seal(z));
    return zp_ctx_check(z, zp_comm_barrier(z->all));
}
zero_result zero_write_tensor(zero_ctx *z, const char *name, zero_kind kind, size_t first,
                              size_t count, const float *values) {
    return zp_access_write(z, "zero_write_tensor", name, kind, first, count, values);
}

#define ZP_NOT_OPEN "the state is not open: zero_state_begin comes first"

zero_result zero_state_begin(zero_ctx *z) {
    ZP_ENTER(z, "zero_state_begin", ZP_ANY, "");
    ZP_UNTIMELY(z, z->phase != ZP_IDLE,
                z->phase & (ZP_IN_PASS | ZP_BETWEEN | ZP_REDUCED)
                    ? "in the middle of a step: what micro-steps have added up is no state; ask "
                      "after zero_step"
                : z->phase == ZP_NEW ? "zero_build comes first"
                                     : "the state is open already");
    ZP_DO(z, zp_extra_sync(z)); /* prefetched gathers read memory that a put may write */
    ZP_TRY(zp_step_wait_report(z));
    ZP_DO(z, zp_comm_barrier(z->all)); /* after it no peer reads memory that a put may write */
    zp_extra_begin_state(z);
    z->put_seen = 0;
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
              "counters: none may be below 0, and the scale must be above it");
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
    ZP_TRY(zp_step_update_all(z, NULL));
    ZP_TRY(zp_extra_end_state(z));
    z->stepped = 0; /* the last step of another run is unknown */
    return zp_observe_seal(z);
}

void *zero_host_alloc(size_t bytes) { return zp_device_alloc_host(bytes); }
void zero_host_free(void *memory) { zp_device_free_host(memory); }

size_t zero_type_bytes(zero_type type) { return type == ZERO_F64 ? 8 : zp_type_bytes(type); }

/* Converts numbers of any alignment. Not inlined: compilers warn of doubles that do not fit f32. */
__attribute__((noinline)) static void zp_access_convert_f64(char *to, const char *from, int narrows,
                                                            size_t n) {
    for (size_t i = 0; i < n; i++) {
        double wide;
        float narrow;
        if (narrows) {
            memcpy(&wide, from + i * sizeof wide, sizeof wide);
            narrow = (float)wide;
            memcpy(to + i * sizeof narrow, &narrow, sizeof narrow);
        } else {
            memcpy(&narrow, from + i * sizeof narrow, sizeof narrow);
            wide = (double)narrow;
            memcpy(to + i * sizeof wide, &wide, sizeof wide);
        }
    }
}

void zero_convert(void *to, zero_type to_type, const void *from, zero_type from_type, size_t n) {
    if (to_type == from_type) {
        if (n) memmove(to, from, n * zero_type_bytes(to_type));
        return;
    }
    if (to_type == ZERO_F64 || from_type == ZERO_F64) {
        zp_access_convert_f64((char *)to, (const char *)from, from_type == ZERO_F64, n);
        return;
    }
    /* a file's numbers have any alignment: they pass through an aligned buffer */
    const int straight = (uintptr_t)to % zp_type_bytes(to_type) == 0
                         && (uintptr_t)from % zp_type_bytes(from_type) == 0;
    float in[ZP_CONVERT_BLOCK], out[ZP_CONVERT_BLOCK];
    for (size_t at = 0; at < n && !straight; at += ZP_CONVERT_BLOCK) {
        const size_t k = zp_min(ZP_CONVERT_BLOCK, n - at);
        memcpy(in, (const char *)from + at * zp_type_bytes(from_type),
               k * zp_type_bytes(from_type));
        zero_convert(out, to_type, in, from_type, k);
        memcpy((char *)to + at * zp_type_bytes(to_type), out, k * zp_type_bytes(to_type));
    }
    if (!straight) return;
    if (from_type == ZERO_F32)
        zp_type_narrow(to, to_type, (const float *)from, n);
    else
        zp_type_widen((float *)to, from, from_type, n);
}

zero_result zero_all_sum(zero_ctx *z, double *values, int n) {
    ZP_ENTER(z, "zero_all_sum", ZP_ANY, "");
    ZP_REFUSE(z, !values && n > 0, "values is NULL");
    ZP_REFUSE(z, n < 0 || (size_t)n * sizeof *values > ZP_MAIL_BYTES, "n is %d, expected 0..%zu", n,
              ZP_MAIL_BYTES / sizeof *values);
    ZP_DO(z, zp_comm_exchange(z->all, values, (size_t)n * sizeof *values));
    for (int i = 0; i < n; i++) values[i] = 0;
    for (int i = 0; i < n * z->all->nranks; i++) { /* in rank order */
        double value;
        memcpy(&value, z->all->mail + (size_t)i * sizeof value, sizeof value);
        values[i % n] += value;
    }
    return ZERO_OK;
}

zero_result zero_broadcast(zero_ctx *z, void *data, size_t bytes, int root) {
    ZP_ENTER(z, "zero_broadcast", ZP_BUILT, "zero_build comes first");
    ZP_REFUSE(z, !data && bytes, "data is NULL, and %zu bytes are to be sent", bytes);
    ZP_TRY(zp_ctx_check_index(z, "root is", root, z->all->nranks));
    return zp_ctx_check(z, zp_comm_broadcast(z->all, data, bytes, root));
}

zero_result zero_barrier(zero_ctx *z) {
    ZP_ENTER(z, "zero_barrier", ZP_ANY, "");
    return zp_ctx_check(z, zp_comm_barrier(z->all));
}

/* Adds up the counters of all groups of the context; of a world only its agreements. */
static zp_meter zp_access_meters(const zero_ctx *z) {
    zp_meter all = z->all->meter;
    for (const zp_comm *g = &z->group[ZP_DATA]; g < z->group + ZP_GROUPS; g++) {
        const int replicas = g == z->replicas.group;
        all.sent_bytes += g->meter.sent_bytes;
        all.mapped_bytes += g->meter.mapped_bytes;
        all.verdict_bytes += g->meter.verdict_bytes;
        all.control_bytes += g->meter.control_bytes;
        all.reductions += replicas ? 0 : g->meter.reductions;
        all.gathers += replicas ? 0 : g->meter.gathers;
        all.gather_bytes += g->meter.gather_bytes;
        all.allocated_bytes += g->meter.allocated_bytes;
    }
    for (int i = 0; i < 2; i++) all.allocated_bytes += z->packed.hop[i].meter.allocated_bytes;
    if (z->world != z->all) all.verdict_bytes += z->world->meter.verdict_bytes;
    return all;
}

zero_result zero_query_stats(zero_ctx *z, zero_stats *stats) {
    ZP_ENTER(z, "zero_query_stats", ZP_ANY, "");
    ZP_REFUSE(z, !stats, "stats is NULL");
    ZP_UNTIMELY(z, z->phase == ZP_NEW, "zero_build comes first");
    const zero_plan *p = &z->plan;
    const zp_meter m = zp_access_meters(z);
    const double exposed = z->device.exposed_s;
    ZP_DO(z, zp_extra_sync(z));
    zp_events_deliver(z->device.recorder);
    ZP_TRY(zp_step_wait_report(z)); /* up to the last step, or norm */
    z->device.exposed_s = exposed;  /* this wait is not a wait of training */
    const size_t allocated = m.allocated_bytes + z->private_bytes;
    const uint64_t steps = (uint64_t)z->report.steps, skipped = (uint64_t)z->report.skipped;
    const zero_stats now = {p->param_bytes,
                            p->grad_bytes,
                            p->optimizer_bytes,
                            p->buffer_bytes,
                            allocated,
                            m.sent_bytes,
                            m.mapped_bytes,
                            m.reductions,
                            m.gathers,
                            steps,
                            skipped,
                            exposed,
                            z->hooks_s,
                            m.verdict_bytes,
                            m.control_bytes,
                            0, /* the rows add these three, and the last two */
                            0,
                            0,
                            z->group[ZP_NEAR].meter.sent_bytes,
                            z->group[ZP_REPLICAS].meter.sent_bytes,
                            m.gather_bytes,
                            0,
                            0};
    *stats = now;
    zp_extra_stats(z, stats);
    return ZERO_OK;
}

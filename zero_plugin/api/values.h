/* values.h - functions of the header: numbers, small collectives, statistics */
#pragma once

#include "life.h"

void *zero_host_alloc(size_t bytes) { return zp_device_alloc_host(bytes); }
void zero_host_free(void *memory) { zp_device_free_host(memory); }

size_t zero_type_bytes(zero_type type) { return type == ZERO_F64 ? 8 : zp_type_bytes(type); }

/* Converts aligned numbers. Not inlined: compilers warn of doubles that do not fit f32. */
__attribute__((noinline)) static void zp_values_convert(void *to, zero_type to_type,
                                                        const void *from, zero_type from_type,
                                                        size_t n) {
    if (to_type == ZERO_F64)
        for (size_t i = 0; i < n; i++) ((double *)to)[i] = (double)((const float *)from)[i];
    else if (from_type == ZERO_F64)
        for (size_t i = 0; i < n; i++) ((float *)to)[i] = (float)((const double *)from)[i];
    else if (from_type == ZERO_F32)
        zp_type_narrow(to, to_type, (const float *)from, n);
    else
        zp_type_widen((float *)to, from, from_type, n);
}

void zero_convert(void *to, zero_type to_type, const void *from, zero_type from_type, size_t n) {
    const size_t out = zero_type_bytes(to_type), in = zero_type_bytes(from_type);
    double given[ZP_CONVERT_BLOCK], made[ZP_CONVERT_BLOCK];
    if (to_type == from_type) {
        if (n) memmove(to, from, n * out);
    } else if ((uintptr_t)to % out == 0 && (uintptr_t)from % in == 0) {
        zp_values_convert(to, to_type, from, from_type, n);
    } else { /* a file's numbers have any alignment: they pass through aligned buffers */
        for (size_t at = 0, k; at < n; at += k) {
            k = zp_min(ZP_CONVERT_BLOCK, n - at);
            memcpy(given, (const char *)from + at * in, k * in);
            zp_values_convert(made, to_type, given, from_type, k);
            memcpy((char *)to + at * out, made, k * out);
        }
    }
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
    ZP_ENTER(z, "zero_broadcast", ZP_BUILT, "the context is not built; call zero_build first");
    ZP_REFUSE(z, !data && bytes, "data is NULL, but bytes is %zu; pass as many bytes", bytes);
    ZP_TRY(zp_ctx_check_index(z, "root is", root, z->all->nranks));
    return zp_ctx_check(z, zp_comm_broadcast(z->all, data, bytes, root));
}

zero_result zero_barrier(zero_ctx *z) {
    ZP_ENTER(z, "zero_barrier", ZP_ANY, "");
    return zp_ctx_check(z, zp_comm_barrier(z->all));
}

zero_result zero_query_stats(zero_ctx *z, zero_stats *stats) {
    ZP_ENTER(z, "zero_query_stats", ZP_ANY, "");
    ZP_REFUSE(z, !stats, "stats is NULL");
    ZP_UNTIMELY(z, z->phase == ZP_NEW, "the context is not built; call zero_build first");
    const zero_plan *p = &z->plan;
    const zp_meter m = z->all->meter;
    const double exposed = z->device.exposed_s;
    ZP_DO(z, zp_extra_sync(z));
    zp_events_deliver(z->device.recorder);
    ZP_TRY(zp_step_wait_report(z)); /* up to the last step, or norm */
    z->device.exposed_s = exposed;  /* this wait is not a wait of training */
    zero_stats *now = &z->stats;
    memset(now, 0, sizeof *now);
    now->param_bytes = p->param_bytes;
    now->grad_bytes = p->grad_bytes;
    now->optimizer_bytes = p->optimizer_bytes;
    now->buffer_bytes = p->buffer_bytes;
    now->allocated_bytes = m.allocated_bytes + z->private_bytes;
    now->sent_bytes = m.sent_bytes;
    now->mapped_bytes = m.mapped_bytes;
    now->reductions = m.reductions;
    now->gathers = m.gathers;
    now->steps = (uint64_t)z->report.steps;
    now->skipped = (uint64_t)z->report.skipped;
    now->exposed_s = exposed;
    now->hooks_s = z->hooks_s;
    now->verdict_bytes = m.verdict_bytes;
    now->control_bytes = m.control_bytes;
    now->gather_bytes = m.gather_bytes;
    ZP_TRY(zp_extra_call(z, ZP_ON_STATS));
    *stats = *now;
    return ZERO_OK;
}

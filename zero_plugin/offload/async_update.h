/* async_update.h - the update of a unit as a task of the stream `updates`

   A unit of which something is kept elsewhere than on the device, and every unit while updates are
   delayed, is updated by this stream while the next forward runs. The unit's gather waits for that,
   or, if nothing is gathered, its next begin. */
#pragma once

#include "delayed.h"
#include "gpu_update.h"

/* A task of the stream `updates`: one unit, piece by piece, unless there is nothing to update. */
typedef struct zp_async_update_args {
    zero_ctx *z;
    int unit, pass;
    zero_hyper hyper;
    zp_control control; /* the device's may be of the next step already */
} zp_async_update_args;

static void zp_async_update_task(const void *args, size_t numel, int threads) {
    const zp_async_update_args *a = (const zp_async_update_args *)args;
    zero_ctx *z = a->z;
    zp_file_ring *r = &z->ring;
    const size_t first = zp_ctx_own_part(z, a->unit)->first;
    char *at[ZP_UPDATED_ARRAYS];
    const zp_control *control = zp_cpu_update_is_on(z) ? z->host.control : &a->control;
    const zp_rule *rule = z->rule;
    const int first_pass = a->pass == 0, last_pass = a->pass + 1 == rule->passes;
    if (first_pass && zp_ctx_keeps_next(z) && z->live[a->unit].old_next)
        zp_delayed_renew_next(z, a->unit);
    if (control->skip) return;
    r->ready = (r->used / r->stops + 1) * r->stops;
    for (size_t from = 0; from < numel; from += ZP_PIECE_NUMEL) {
        const size_t n = zp_min(ZP_PIECE_NUMEL, numel - from);
        if (zp_file_ring_open(r, a->unit, first + from, n, at)) return; /* the context has failed */
        zp_update update = zp_step_make_update(z, a->unit, &a->hyper, control, from, n, at);
        if (zp_cpu_update_is_on(z)) update.spans = zp_cpu_update_spans(z, a->unit);
        for (int k = zp_rule_first(rule, a->pass); k < zp_rule_last(rule, a->pass); k++)
            rule->loop[k](&update, n / ZP_WIDE, threads);
        zp_file_ring_close(r);
    }
    if (last_pass) z->live[a->unit].rounds ^= 1;
}

/* Station: the ring reads ahead, while the last micro-step is reduced. */
static void zp_async_update_fill_task(const void *ring, size_t n, int threads) {
    zp_file_ring *r;
    memcpy(&r, ring, sizeof r);
    zp_file_ring_fill(r);
}
static zero_result zp_async_update_fill_ring(zero_ctx *z) {
    zp_file_ring *r = &z->ring;
    return zp_ctx_check(
        z, zp_device_push_task(&z->updates, zp_async_update_fill_task, &r, sizeof r, 1));
}

/* Enqueues a pass over a unit whose state goes through the GPU. */
static zero_result zp_async_update_through(zero_ctx *z, int u, int pass, const zero_hyper *h) {
    const zp_rule *rule = z->rule;
    const size_t numel = zp_ctx_own_part(z, u)->numel;
    char *at[ZP_UPDATED_ARRAYS];
    for (size_t from = 0; from < numel; from += ZP_GPU_UPDATE_NUMEL) {
        const size_t n = zp_min(ZP_GPU_UPDATE_NUMEL, numel - from);
        ZP_DO(z, zp_gpu_update_open(z, u, from, n, at));
        const zp_update update = zp_step_make_update(z, u, h, z->control, from, n, at);
        const int last = z->live[u].spans ? zp_rule_last(rule, pass) : 0; /* padding keeps turns */
        for (int k = zp_rule_first(rule, pass); k < last; k++)
            ZP_DO(z, rule->update[k](&z->updates, &update, n / ZP_WIDE));
        ZP_DO(z, zp_gpu_update_close(z, u, from, n));
    }
    return ZERO_OK;
}

/* The updater of units that the CPU updates, or that wait for a file. */
static zero_result zp_async_update_push(zero_ctx *z, int u, int pass, const zero_hyper *h) {
    const zp_async_update_args a = {z, u, pass, *h, *zp_cpu_update_decision(z)};
    zp_stream *s = &z->updates;
    ZP_DO(z,
          zp_device_push_task(s, zp_async_update_task, &a, sizeof a, zp_ctx_own_part(z, u)->numel));
    if (zp_cpu_update_is_on(z)) zp_lane_record(&s->lane, &z->live[u].task);
    const int pending = zp_ctx_is_delayed(z) || pass + 1 < z->rule->passes;
    return pending ? ZERO_OK : zp_ctx_check(z, zp_cpu_update_copy_up(z, u));
}

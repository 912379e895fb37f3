/* async_update.h - the update of a unit as a task of the stream `updates`

   A unit that is partly kept off the device, and every unit while updates are delayed, is updated
   by this stream while the next forward runs. The unit's gather waits for that, or, if nothing is
   gathered, its next begin. */
#pragma once

#include "delayed.h"

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
    zp_offload *o = z->offload;
    zp_file_ring *r = &o->ring;
    const size_t first = zp_ctx_own_part(z, a->unit)->first;
    char *at[ZP_UPDATED_ARRAYS];
    const zp_control *control = o->cpu_updates ? o->control : &a->control;
    const zp_rule *rule = z->rule;
    if (a->pass == 0 && zp_ctx_keeps_next(z) && o->unit[a->unit].old_next)
        zp_delayed_renew_next(z, a->unit);
    if (control->skip) return;
    r->ready = (r->used / r->stops + 1) * r->stops;
    for (size_t from = 0; from < numel; from += ZP_PIECE_NUMEL) {
        const size_t n = zp_min(ZP_PIECE_NUMEL, numel - from);
        if (zp_file_ring_open(r, a->unit, first + from, n, at)) return; /* the context has failed */
        zp_update update = zp_step_make_update(z, a->unit, &a->hyper, control, from, n, at);
        if (o->spans) update.spans = o->spans + (update.spans - z->spans);
        for (int k = zp_rule_first(rule, a->pass); k < zp_rule_last(rule, a->pass); k++)
            rule->loop[k](&update, n / ZP_WIDE, threads);
        zp_file_ring_close(r);
    }
    if (a->pass + 1 == rule->passes) o->unit[a->unit].rounds ^= 1;
}

/* Station: the ring reads ahead, while the last micro-step is reduced. */
static void zp_async_update_fill_task(const void *ring, size_t n, int threads) {
    zp_file_ring_fill(*(zp_file_ring *const *)ring);
}
static zero_result zp_async_update_fill_ring(zero_ctx *z) {
    zp_file_ring *r = &z->offload->ring;
    return zp_ctx_check(
        z, zp_device_push_task(&z->updates, zp_async_update_fill_task, &r, sizeof r, 1));
}

/* The updater of units that the CPU updates, or that wait for a file. */
static zero_result zp_async_update_push(zero_ctx *z, int u, int pass, const zero_hyper *h) {
    const zp_async_update_args a = {z, u, pass, *h,
                                    z->offload->cpu_updates ? z->report : *z->control};
    ZP_DO(z, zp_device_push_task(&z->updates, zp_async_update_task, &a, sizeof a,
                                 zp_ctx_own_part(z, u)->numel));
    zp_lane_record(&z->updates.lane, &z->offload->unit[u].task);
    return ZERO_OK;
}
static const zp_updater zp_async_updater = {zp_async_update_push, NULL, NULL, NULL};

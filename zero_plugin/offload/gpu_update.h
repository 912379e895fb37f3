/* gpu_update.h - updates by the GPU of state in host memory, and sums of gradients there

   The other way to update the tier HOST. MASTER and STATE are in pinned memory. Each piece is
   copied up, updated by the rule's kernel, with the gradient and PARAM on the device, and copied
   down. `zp_offload_plan_estimate` finds the
   cheaper way. The CPU reads and writes all state in its
   memory and sends parameters up. For the GPU, all state crosses the link twice, once in each
   direction, and both directions overlap.

   ONE PIECE, in a place in device memory
     up       waits until the place's last piece was copied down; copies the piece up: event
              `filled`
     updates  waits for that; runs the rule's kernel: event `used`
     down     waits for that; copies the piece down: event `emptied`
   The number of places is ZP_GPU_PLACES, or fewer if there are fewer pieces, so a piece is copied
   up after its last copy down. When a step begins, `up` and `updates` wait for the decision on the
   compute stream. After that, no access by name writes state. A unit's parameters are new after its
   last kernel, even if copies down are still running.

   GRADIENTS of the tier HOST that micro-steps add up: `up` copies the sum so far to the same
   places, and the gradient stream adds it to what it has reduced: event `used`. The place's next
   piece waits for that. The new sum is copied down like every gradient (see cpu_update.h). */
#pragma once

#include "cpu_update.h"

#ifdef __CUDACC__
/* Begins the updates after the decision. */
static zero_result zp_gpu_update_begin(zero_ctx *z) {
    zp_event *decided = &z->offload->gpu->event[ZP_DECIDED];
    ZP_TRY(zp_device_record_event(&z->compute, decided));
    return zp_device_wait_event(&z->updates, decided);
}

/* Returns the place of the next piece, and array k's memory there. */
static size_t zp_gpu_update_place(const zero_ctx *z) {
    return z->offload->gpu->pieces % z->offload->nplaces;
}
static char *zp_gpu_update_memory(const zero_ctx *z, int k) {
    size_t before = 0;
    for (int i = ZP_MASTER; i < k; i++) before += z->array[i].share != ZP_NOTHING;
    const size_t place = before * z->offload->nplaces + zp_gpu_update_place(z);
    return z->offload->places + place * z->offload->place_numel * sizeof(float);
}

/* Copies n elements of unit u's state, from element `from` of its part on, between host memory and
   the next place, up or down. at[k], if not NULL: set to array k's memory in the place. */
static zero_result zp_gpu_update_copy(zero_ctx *z, int u, size_t from, size_t n, int up,
                                      char **at) {
    zp_offload *o = z->offload;
    zp_stream *s = up ? &o->gpu->up : &o->gpu->down;
    const size_t e = zp_ctx_own_part(z, u)->first + from;
    size_t bytes[ZP_NEXT] = {0}, all = 0; /* matrices have one state: its array may end earlier */
    for (int k = ZP_MASTER; k < ZP_NEXT; k++) {
        const size_t kept = z->array[k].part[u].numel;
        bytes[k] = from < kept ? zp_min(n, kept - from) * sizeof(float) : 0;
        all += bytes[k];
    }
    zp_record *r = zp_device_begin_slice(s, ZERO_EVENT_COPY, u, all);
    for (int k = ZP_MASTER; k < ZP_NEXT; k++) {
        char *state = zp_array_at(&z->array[k], u, e);
        char *place = state ? zp_gpu_update_memory(z, k) : NULL;
        if (at) at[ZP_UPDATED_MASTER + k - ZP_MASTER] = place;
        if (state) ZP_TRY(zp_device_copy(s, up ? place : state, up ? state : place, bytes[k]));
    }
    zp_device_end_slice(s, r);
    *(up ? &o->up_bytes : &o->down_bytes) += all;
    return ZERO_OK;
}

/* The updater of units whose state the GPU updates, piece by piece. */
static zero_result zp_gpu_update_unit(zero_ctx *z, int u, int pass, const zero_hyper *h) {
    zp_offload_gpu *g = z->offload->gpu;
    const zp_rule *rule = z->rule;
    const zp_array_part *own = zp_ctx_own_part(z, u);
    char *at[ZP_UPDATED_ARRAYS];
    for (size_t from = 0, n; from < own->numel; from += n, g->pieces++) {
        const size_t place = zp_gpu_update_place(z);
        n = zp_min(ZP_GPU_UPDATE_NUMEL, own->numel - from);
        at[ZP_UPDATED_PARAM] = zp_array_at(&z->array[ZP_PARAM], u, own->first + from);
        at[ZP_UPDATED_MEAN] = zp_array_at(zp_ctx_update_gradient(z), u, own->first + from);
        ZP_DO(z, zp_device_wait_event(&g->up, &g->event[ZP_EMPTIED + place]));
        ZP_DO(z, zp_gpu_update_copy(z, u, from, n, 1, at));
        ZP_DO(z, zp_device_record_event(&g->up, &g->event[ZP_FILLED + place]));
        ZP_DO(z, zp_device_wait_event(&z->updates, &g->event[ZP_FILLED + place]));
        const zp_update update = zp_step_make_update(z, u, h, z->control, from, n, at);
        const int last = z->live[u].spans ? zp_rule_last(rule, pass) : 0; /* padding alone: none */
        for (int k = zp_rule_first(rule, pass); k < last; k++)
            ZP_DO(z, rule->update[k](&z->updates, &update, n / ZP_WIDE));
        ZP_DO(z, zp_device_record_event(&z->updates, &g->event[ZP_USED + place]));
        ZP_DO(z, zp_device_wait_event(&g->down, &g->event[ZP_USED + place]));
        ZP_DO(z, zp_gpu_update_copy(z, u, from, n, 0, NULL));
        ZP_DO(z, zp_device_record_event(&g->down, &g->event[ZP_EMPTIED + place]));
    }
    return ZERO_OK;
}

static const zp_updater zp_gpu_updater = {zp_gpu_update_unit, NULL, NULL, NULL};

/* Adds the sum of earlier micro-steps, in DOWN, to unit u's reduced gradient. */
static zero_result zp_gpu_update_add_mean(zero_ctx *z, int u) {
    const zp_array *mean = &z->array[ZP_MEAN];
    const zp_array_part *own = &mean->part[u];
    const size_t of = zp_type_bytes(mean->type), most = z->offload->place_numel;
    zp_offload_gpu *g = z->offload->gpu;
    zp_stream *s = &z->stream[ZP_GRADIENTS];
    zp_record *r = zp_device_begin_slice(s, ZERO_EVENT_NORM, u, own->numel * of);
    ZP_TRY(zp_device_wait_event(&g->up, z->live[u].reduction)); /* the last one was copied down */
    for (size_t from = 0, n; from < own->numel; from += n, g->pieces++) {
        const size_t place = zp_gpu_update_place(z);
        char *more = zp_gpu_update_memory(z, ZP_MASTER);
        n = zp_min(most, own->numel - from);
        const zp_kernel_accumulate_args add = {
            (float *)(void *)more, zp_ctx_unit_mean(z, u) + from * of, mean->type, 0, 1};
        ZP_TRY(zp_device_wait_event(&g->up, &g->event[ZP_USED + place]));
        zp_record *up = zp_device_begin_slice(&g->up, ZERO_EVENT_COPY, u, n * of);
        ZP_TRY(zp_device_copy(&g->up, more, zp_array_at(mean, u, own->first + from), n * of));
        zp_device_end_slice(&g->up, up);
        ZP_TRY(zp_device_record_event(&g->up, &g->event[ZP_FILLED + place]));
        ZP_TRY(zp_device_wait_event(s, &g->event[ZP_FILLED + place]));
        ZP_TRY(zp_kernel_accumulate(s, &add, n / ZP_WIDE));
        ZP_TRY(zp_device_record_event(s, &g->event[ZP_USED + place]));
        z->offload->up_bytes += n * of;
    }
    zp_device_end_slice(s, r);
    return ZERO_OK;
}
#endif

/* gpu_update.h - updates by the GPU of state in host memory, and sums of gradients there

   The other way to update the tier HOST. MASTER and STATE are in pinned memory. Each piece is
   copied up, updated by the rule's kernel, with the gradient and PARAM on the device, and copied
   down. All state crosses the link twice, once in each direction, and both directions overlap. If
   the CPU updates, it reads and writes all state in its memory and sends parameters up.
   zp_offload_plan_estimate finds the cheaper way.

   ONE PIECE, in a place in device memory
     up       waits until the place's last piece was copied down; copies the piece up: event
              `filled`
     updates  waits for that; runs the rule's kernel: event `used`
     down     waits for that; copies the piece down: event `emptied`
   The number of places is ZP_GPU_PLACES, or fewer if there are fewer pieces, so a piece is copied
   up after its last copy down. When a step begins, `updates` waits for the decision on the compute
   stream. After that, no access by name writes state. A unit's parameters are new after its last
   kernel, even if copies down are still running.

   GRADIENTS of the tier HOST that micro-steps add up: `up` copies the sum so far to the same
   places, and the gradient stream adds it to what it has reduced: event `emptied`. The new sum is
   copied down like every gradient (see cpu_update.h). */
#pragma once

#include "cpu_update.h"

#ifdef __CUDACC__
/* Begins the updates after the decision. */
static zero_result zp_gpu_update_begin(zero_ctx *z) {
    zp_event *decided = &z->offload->gpu->event[ZP_DECIDED];
    ZP_TRY(zp_device_record_event(&z->compute, decided));
    return zp_device_wait_event(&z->updates, decided);
}

/* A piece: n elements of unit u's part of the arrays first..end - 1, from element `from` on. */
typedef struct zp_gpu_piece {
    int unit, first, end;
    size_t from, n;
    size_t place;                /* the place that it has */
    char *at[ZP_UPDATED_ARRAYS]; /* from ZP_UPDATED_MASTER on: the arrays in this place, or NULL */
} zp_gpu_piece;

/* Copies a piece between host memory and its place, up or down. */
static zero_result zp_gpu_update_copy(zero_ctx *z, zp_gpu_piece *x, int up) {
    zp_offload *o = z->offload;
    zp_stream *s = up ? &o->gpu->up : &o->gpu->down;
    char *places = o->places;
    size_t bytes[ZP_ARRAYS] = {0}, all = 0; /* matrices have one state: its array may end earlier */
    for (int k = x->first; k < x->end; k++) {
        const size_t kept = z->array[k].part[x->unit].numel;
        bytes[k] = x->from < kept ? zp_type_array_bytes(z->array[k].part[x->unit].type,
                                                        zp_min(x->n, kept - x->from))
                                  : 0;
        all += bytes[k];
    }
    zero_result result = ZERO_OK;
    zp_record *r = zp_device_begin_slice(s, ZERO_EVENT_COPY, x->unit, all);
    for (int k = x->first; k < x->end && !result; k++) {
        const zp_array_part *part = &z->array[k].part[x->unit];
        const size_t bytes_of_place = zp_offload_place_bytes(z, k);
        char *place = places + x->place * bytes_of_place;
        char *state = zp_array_at(&z->array[k], x->unit, part->first + x->from);
        x->at[ZP_UPDATED_MASTER + k - x->first] = state ? place : NULL;
        if (state) result = zp_device_copy(s, up ? place : state, up ? state : place, bytes[k]);
        if (z->array[k].share) places += o->nplaces * bytes_of_place;
    }
    zp_device_end_slice(s, r);
    *(up ? &o->up_bytes : &o->down_bytes) += all;
    return result;
}
/* Copies a piece up to the next place, after that was emptied. Stream s waits for it. */
static zero_result zp_gpu_update_fill(zero_ctx *z, zp_gpu_piece *x, zp_stream *s) {
    zp_offload_gpu *g = z->offload->gpu;
    x->place = g->pieces++ % z->offload->nplaces;
    ZP_TRY(zp_device_wait_event(&g->up, &g->event[ZP_EMPTIED + x->place]));
    ZP_TRY(zp_gpu_update_copy(z, x, 1));
    ZP_TRY(zp_device_record_event(&g->up, &g->event[ZP_FILLED + x->place]));
    return zp_device_wait_event(s, &g->event[ZP_FILLED + x->place]);
}

/* The updater of units whose state the GPU updates, piece by piece. */
static zero_result zp_gpu_update_unit(zero_ctx *z, int u, int pass, const zero_hyper *h) {
    zp_offload_gpu *g = z->offload->gpu;
    const zp_rule *rule = z->rule;
    const zp_array_part *own = zp_ctx_own_part(z, u);
    zp_gpu_piece x = {u, ZP_MASTER, ZP_NEXT, 0, 0, 0, {NULL}};
    for (; x.from < own->numel; x.from += x.n) {
        x.n = zp_min(z->offload->place_numel, own->numel - x.from);
        ZP_DO(z, zp_gpu_update_fill(z, &x, &z->updates));
        x.at[ZP_UPDATED_PARAM] = zp_array_at(&z->array[ZP_PARAM], u, own->first + x.from);
        x.at[ZP_UPDATED_MEAN] = zp_array_at(zp_ctx_update_gradient(z), u, own->first + x.from);
        const zp_update update = zp_step_make_update(z, u, h, z->control, x.from, x.n, x.at);
        const int last = z->live[u].spans ? zp_rule_last(rule, pass) : 0; /* padding alone: none */
        for (int k = zp_rule_first(rule, pass); k < last; k++)
            ZP_DO(z, rule->update[k](&z->updates, &update, x.n / ZP_WIDE));
        ZP_DO(z, zp_device_record_event(&z->updates, &g->event[ZP_USED + x.place]));
        ZP_DO(z, zp_device_wait_event(&g->down, &g->event[ZP_USED + x.place]));
        ZP_DO(z, zp_gpu_update_copy(z, &x, 0));
        ZP_DO(z, zp_device_record_event(&g->down, &g->event[ZP_EMPTIED + x.place]));
    }
    return ZERO_OK;
}

static const zp_updater zp_gpu_updater = {zp_gpu_update_unit, NULL, NULL, NULL};

/* Adds the sum of earlier micro-steps, in DOWN, to unit u's reduced gradient, piece by piece. */
static zero_result zp_gpu_update_add_pieces(zero_ctx *z, int u) {
    const zp_array *mean = &z->array[ZP_MEAN];
    const size_t numel = mean->part[u].numel, of = zp_type_bytes(mean->type);
    zp_offload_gpu *g = z->offload->gpu;
    zp_stream *s = &z->stream[ZP_GRADIENTS];
    zp_gpu_piece x = {u, ZP_MEAN, ZP_MEAN + 1, 0, 0, 0, {NULL}};
    ZP_TRY(zp_device_wait_event(&g->up, z->live[u].reduction)); /* the last one was copied down */
    for (; x.from < numel; x.from += x.n) {
        x.n = zp_min(z->offload->place_numel, numel - x.from);
        ZP_TRY(zp_gpu_update_fill(z, &x, s));
        const zp_kernel_accumulate_args add = {(float *)(void *)x.at[ZP_UPDATED_MASTER],
                                               zp_ctx_unit_mean(z, u) + x.from * of, mean->type, 0,
                                               1};
        ZP_TRY(zp_kernel_accumulate(s, &add, x.n / ZP_WIDE));
        ZP_TRY(zp_device_record_event(s, &g->event[ZP_EMPTIED + x.place]));
    }
    return ZERO_OK;
}
static zero_result zp_gpu_update_add_mean(zero_ctx *z, int u) {
    ZP_SLICE(&z->stream[ZP_GRADIENTS], ZERO_EVENT_NORM, u,
             zp_array_part_bytes(&z->array[ZP_MEAN], u), zp_gpu_update_add_pieces(z, u));
    return ZERO_OK;
}
#endif

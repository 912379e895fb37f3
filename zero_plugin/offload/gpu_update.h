/* gpu_update.h - updates by the GPU of state in host memory, and sums of gradients there

   The other way to update the tier HOST. MASTER and STATE are in pinned memory. Each piece is
   copied up, updated by the rule's kernel, with the gradient and PARAM on the device, and copied
   down. `zp_gpu_update_estimate` finds the cheaper way. The CPU reads and writes all state in its
   memory and sends parameters up. For the GPU, all state crosses the link twice, once in each
   direction, and both directions overlap.

   ONE PIECE, in a place in device memory
     up       waits until the place's last piece was copied down; copies the piece up: event
              `filled`
     updates  waits for that; runs the rule's kernel: event `used`
     down     waits for that; copies the piece down: event `emptied`
   The number of places is ZP_PASSAGES, or fewer if there are fewer pieces, so a piece is copied up
   after its last copy down. When a step begins, `up` and `updates` wait for the decision on the
   compute stream. After that, no access by name writes state. A unit's parameters are new after its
   last kernel, even if copies down are still running.

   GRADIENTS of the tier HOST that micro-steps add up: `up` copies the sum so far to the same
   places, and the gradient stream adds it to what it has reduced: event `used`. The place's next
   piece waits for that. The new sum is copied down like every gradient (see cpu_update.h). */
#pragma once

#include "cpu_update.h"

#define ZP_GPU_UPDATE_NUMEL (8 * ZP_PIECE_NUMEL)

/* Elements of one place, and the number of places. */
static size_t zp_gpu_update_numel(const zero_ctx *z) {
    size_t most = 0;
    for (int u = 0; u < z->layout.all; u++)
        if (z->live[u].apart) most = zp_max(most, zp_ctx_own_part(z, u)->numel);
    return zp_min(most, ZP_GPU_UPDATE_NUMEL);
}
static size_t zp_gpu_update_places(const zero_ctx *z) {
    size_t pieces = 0;
    for (int u = 0; u < z->layout.all; u++)
        if (z->live[u].apart) pieces += zp_ctx_own_part(z, u)->numel > 0;
    return zp_min(ZP_PASSAGES, pieces);
}
/* Bytes of device memory for all places, of state or of sums of gradients. */
static size_t zp_gpu_update_bytes(const zero_ctx *z) {
    size_t arrays = (size_t)zp_cpu_update_adds_means(z);
    for (int k = ZP_MASTER; k < ZP_NEXT && z->host.through; k++)
        arrays += z->array[k].share != ZP_NOTHING;
    return arrays ? arrays * zp_gpu_update_places(z) * zp_gpu_update_numel(z) * sizeof(float) : 0;
}

/* Estimates the seconds for one element of the state, by the configured rates: by the CPU, which
   then sends parameters up, and by the GPU. */
static void zp_gpu_update_estimate(const zero_ctx *z, double *host, double *device) {
    const zero_config *c = &z->cfg;
    const int masters = z->array[ZP_MASTER].share != ZP_NOTHING;
    const double link = 1e9 * (double)c->link_gbs, memory = 1e9 * (double)c->memory_gbs;
    const double state = 4.0 * (z->rule->states + masters);
    const double p = (double)zp_type_bytes(c->type),
                 g = (double)zp_type_bytes(z->array[ZP_GRAD].type);
    const double passes = z->rule->passes;
    *host = passes * (2 * state + g + (masters ? 1 : 2) * p) / memory + p / link;
    *device = passes * (state / link > 2 * state / memory ? state / link : 2 * state / memory);
}

/* Chooses the way, and reports the estimates of both in the plan. */
static void zp_gpu_update_choose(zero_ctx *z) {
    const zero_config *c = &z->cfg;
    double host, device;
    z->host.through = 0;
    if (c->optimizer_tier != ZERO_HOST || zp_device_is_host()) return;
    zp_gpu_update_estimate(z, &host, &device);
    const int can = !c->delay_from && !c->parameter_tier && c->gradient_tier != ZERO_FILE;
    z->host.through = c->update_on == ZERO_UPDATE_DEVICE
                      || (c->update_on == ZERO_UPDATE_AUTO && can && device < host);
}
static void zp_gpu_update_plan(zero_ctx *z) {
    size_t numel = 0;
    double host = 0, device = 0;
    for (int u = 0; u < z->layout.all; u++)
        numel += zp_ctx_own_part(z, u)->tier == ZERO_HOST ? zp_ctx_own_part(z, u)->numel : 0;
    if (!numel) return;
    zp_gpu_update_estimate(z, &host, &device);
    z->plan.update_on = z->host.through ? ZERO_UPDATE_DEVICE : ZERO_UPDATE_HOST;
    z->plan.update_host_s = host * (double)numel;
    z->plan.update_device_s = device * (double)numel;
}

/* Begins the updates after the decision. */
static zero_result zp_gpu_update_begin(zero_ctx *z) {
    zp_cpu_update *h = &z->host;
    if (!h->through) return ZERO_OK;
    ZP_TRY(zp_device_record_event(&z->compute, &h->decided));
    return zp_device_wait_event(&z->updates, &h->decided);
}

/* Array k's place on the device for the next piece. */
static char *zp_gpu_update_place(const zero_ctx *z, int k) {
    const size_t place = z->host.turn % zp_gpu_update_places(z), each = zp_gpu_update_numel(z);
    size_t before = 0;
    for (int i = ZP_MASTER; i < k; i++) before += z->array[i].share != ZP_NOTHING;
    return z->host.places + (before * zp_gpu_update_places(z) + place) * each * sizeof(float);
}

/* Bytes that array k keeps of n elements of unit u's part from `from` on. Matrices have one
   state. */
static size_t zp_gpu_update_kept(const zero_ctx *z, int k, int u, size_t from, size_t n) {
    const size_t kept = z->array[k].part[u].numel;
    return from < kept ? zp_min(n, kept - from) * sizeof(float) : 0;
}

/* The same, over all arrays that are copied. */
static uint64_t zp_gpu_update_moved(zero_ctx *z, int u, size_t from, size_t n) {
    const size_t e = zp_ctx_own_part(z, u)->first + from;
    uint64_t bytes = 0;
    for (int k = ZP_MASTER; k < ZP_NEXT; k++)
        if (zp_array_at(&z->array[k], u, e)) bytes += zp_gpu_update_kept(z, k, u, from, n);
    return bytes;
}

/* Copies n elements of unit u's part from `from` on up, to at[k]. `updates` waits for them. */
static zero_result zp_gpu_update_open(zero_ctx *z, int u, size_t from, size_t n, char **at) {
    zp_cpu_update *h = &z->host;
    zp_gpu_update_place_events *p = &h->passage[h->turn % zp_gpu_update_places(z)];
    const size_t e = zp_ctx_own_part(z, u)->first + from;
    at[ZP_UPDATED_PARAM] = zp_array_at(&z->array[ZP_PARAM], u, e);
    at[ZP_UPDATED_MEAN] = zp_array_at(zp_ctx_update_gradient(z), u, e);
    ZP_TRY(zp_device_wait_event(&h->up, &p->emptied));
    zp_record *r =
        zp_device_begin_slice(&h->up, ZERO_EVENT_COPY, u, zp_gpu_update_moved(z, u, from, n));
    for (int k = ZP_MASTER; k < ZP_NEXT; k++) {
        const char *state = zp_array_at(&z->array[k], u, e);
        char **to = &at[ZP_UPDATED_MASTER + k - ZP_MASTER];
        *to = state ? zp_gpu_update_place(z, k) : NULL;
        if (state) ZP_TRY(zp_device_copy(&h->up, *to, state, zp_gpu_update_kept(z, k, u, from, n)));
    }
    zp_device_end_slice(&h->up, r);
    h->up_bytes += zp_gpu_update_moved(z, u, from, n);
    ZP_TRY(zp_device_record_event(&h->up, &p->filled));
    return zp_device_wait_event(&z->updates, &p->filled);
}
/* Copies them down after their update. */
static zero_result zp_gpu_update_close(zero_ctx *z, int u, size_t from, size_t n) {
    zp_cpu_update *h = &z->host;
    zp_gpu_update_place_events *p = &h->passage[h->turn % zp_gpu_update_places(z)];
    ZP_TRY(zp_device_record_event(&z->updates, &p->used));
    ZP_TRY(zp_device_wait_event(&h->down, &p->used));
    zp_record *r =
        zp_device_begin_slice(&h->down, ZERO_EVENT_COPY, u, zp_gpu_update_moved(z, u, from, n));
    for (int k = ZP_MASTER; k < ZP_NEXT; k++) {
        char *state = zp_array_at(&z->array[k], u, zp_ctx_own_part(z, u)->first + from);
        const size_t kept = zp_gpu_update_kept(z, k, u, from, n);
        if (state) ZP_TRY(zp_device_copy(&h->down, state, zp_gpu_update_place(z, k), kept));
    }
    zp_device_end_slice(&h->down, r);
    h->down_bytes += zp_gpu_update_moved(z, u, from, n);
    h->turn++;
    return zp_device_record_event(&h->down, &p->emptied);
}

/* Adds the sum of earlier micro-steps, in DOWN, to unit u's reduced gradient. */
static zero_result zp_gpu_update_add_mean(zero_ctx *z, int u) {
    const zp_array *mean = &z->array[ZP_MEAN];
    const zp_array_part *own = &mean->part[u];
    const size_t of = zp_type_bytes(mean->type), most = zp_gpu_update_numel(z);
    zp_cpu_update *h = &z->host;
    zp_stream *s = &z->stream[ZP_GRADIENTS];
    zp_record *r = zp_device_begin_slice(s, ZERO_EVENT_NORM, u, own->numel * of);
    ZP_TRY(zp_device_wait_event(&h->up, z->live[u].reduction)); /* the last one was copied down */
    for (size_t from = 0, n; from < own->numel; from += n, h->turn++) {
        zp_gpu_update_place_events *p = &h->passage[h->turn % zp_gpu_update_places(z)];
        char *place = zp_gpu_update_place(z, ZP_MASTER);
        n = zp_min(most, own->numel - from);
        const zp_kernel_accumulate_args add = {
            (float *)(void *)place, zp_ctx_unit_mean(z, u) + from * of, mean->type, 0, 1};
        ZP_TRY(zp_device_wait_event(&h->up, &p->used));
        zp_record *up = zp_device_begin_slice(&h->up, ZERO_EVENT_COPY, u, n * of);
        ZP_TRY(zp_device_copy(&h->up, place, zp_array_at(mean, u, own->first + from), n * of));
        zp_device_end_slice(&h->up, up);
        ZP_TRY(zp_device_record_event(&h->up, &p->filled));
        ZP_TRY(zp_device_wait_event(s, &p->filled));
        ZP_TRY(zp_kernel_accumulate(s, &add, n / ZP_WIDE));
        ZP_TRY(zp_device_record_event(s, &p->used));
        h->up_bytes += n * of;
    }
    zp_device_end_slice(s, r);
    return ZERO_OK;
}

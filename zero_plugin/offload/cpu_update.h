/* cpu_update.h - updates by the CPU of state in host memory, for a GPU (ZeRO-Offload)

   MASTER and STATE are in host memory. The CPU updates them with the loop form of the rules, which
   has the same bits as the kernel. Each rank copies its part of a unit down as a gradient and up as
   parameters, in their stored types, through two pinned arrays of the same number of bytes:
     DOWN     gradients that the update reads
     UP       the parameters of that part. An update without f32 master weights reads them, and
              they are copied up. UP equals PARAM unless other code than the update wrote PARAM
              (`stale`)
   Gradients of the tier DEVICE also stay on the device: micro-steps add up there, access by name
   finds them there, and a write by name sends them again. Gradients of the tier HOST are in DOWN
   alone. The CPU makes no pass over them: norm and overflow check belong to the device's reduction.

   ONE STEP
     gradient stream  reduces u and sums its squares: event `reduction`
     down             in the last micro-step, waits for that and copies u's gradient to DOWN
     compute          zero_step: waits for `agreed` and decides; waits for the last step's updates,
                      `done`, and copies the decision to `control`: event `decided`
     down             waits for that; copies stale arrays; opens the gate: event `ready`
     updates          waits for `ready`; its lane passes the gate and updates unit by unit. After
                      each: waits for u's last gather; copies UP to PARAM: event `updated`
     parameter stream waits for that; gathers u
     compute          before the next step first writes u's gradient: waits for `updated`, after
                      which nothing reads gradient or DOWN (delayed: waits for `ready`)
   So the next forward waits only for its own unit, and no CPU thread waits for the device.

   ONE GRADIENT of the tier HOST, in each micro-step. It leaves through the shared buffers:
     gradient stream  reduces u inside its buffer. If DOWN has the sum of earlier micro-steps, the
                      device adds it in pieces, because it computes the norm of the sum (see
                      gpu_update.h): event `reduction`
     down             waits for that and for the last reader of DOWN, `updated` (delayed: `spent`);
                      copies the shard to DOWN; records `reduction` again
     compute          before another unit, or u in the next micro-step, writes that buffer: waits
                      for `reduction`, now after the copy. `up` waits for it before it reads DOWN
   16-bit gradients of several micro-steps add up in SUM, f32, on the device, and DOWN gets the
   rounded sum once. If gradients are whole (stages 0 and 1, sums in place) or the GPU updates,
   gradients are of the tier DEVICE.

   A delayed update keeps its results in UP. They are copied up one step later, after the unit's
   next reduction, which does not change DOWN before the update has read it. A rule of two passes
   (see whole_tensor.h) copies sums or directions up on `updates` after the first pass. `down`
   copies ratios or new directions back and opens the gate, and `updates` waits for `returned`.
   Directions have a pinned array of their own, DIRECTIONS, 4 bytes for each element of units with
   matrices. Only CUDA builds have this file. */
#pragma once

#include "../machine/gate.h"
#include "async_update.h"

#ifdef __CUDACC__
/* The way of one side's shards between the file and a GPU; see offload_gpu.h. */
typedef struct zp_staging {
    zp_file *file;  /* NULL: the side has no shards in the file */
    zp_gate given;  /* the lane opens it: a half's transfers were enqueued, or it is free */
    zp_gate copied; /* the stream opens it: a half was copied */
    size_t halves;  /* that the calling thread has enqueued */
    zp_lane_event moved[ZP_RING]; /* by piece: its last transfer has ended */
} zp_staging;

/* Events: see above, and gpu_update.h for those of places. */
enum { ZP_DECIDED, ZP_READY, ZP_DONE, ZP_RETURNED, ZP_GATHERED, ZP_FILLED };
enum { ZP_USED = ZP_FILLED + ZP_GPU_PLACES, ZP_EMPTIED = ZP_USED + ZP_GPU_PLACES };
enum { ZP_GPU_EVENTS = ZP_EMPTIED + ZP_GPU_PLACES };

/* Streams, events and memory of a run on a GPU. */
typedef struct zp_offload_gpu {
    zp_stream down, up; /* copies from, and to, the device */
    zp_gate gate;       /* opened when host memory has all inputs of a step's updates */
    zp_event event[ZP_GPU_EVENTS];
    size_t pieces; /* number of pieces in these places so far */
    zp_staging staging[ZP_SIDES];
    zp_pages memory[2]; /* plain, pinned */
} zp_offload_gpu;

static int zp_cpu_update_has_unit(const zero_ctx *z, int u) {
    return z->offload->cpu_updates && z->live[u].on_updates;
}
/* Returns 1 if DOWN alone keeps unit u's reduced gradient. */
static int zp_cpu_update_takes_mean(const zero_ctx *z, int u) {
    return z->array[ZP_MEAN].part[u].tier == ZERO_HOST && z->array[ZP_MEAN].part[u].numel;
}

/* On stream s, copies this rank's part of unit u between array a, in host memory, and the GPU. */
static zero_result zp_cpu_update_copy(zero_ctx *z, zp_stream *s, int u, const zp_array *a,
                                      void *device, int up) {
    const size_t bytes = zp_array_part_bytes(a, u);
    char *host = zp_array_at(a, u, a->part[u].first);
    if (!bytes) return ZERO_OK;
    ZP_SLICE(s, ZERO_EVENT_COPY, zp_layout_unit_of(&z->layout, u), bytes,
             zp_device_copy(s, up ? device : host, up ? host : device, bytes));
    *(up ? &z->offload->up_bytes : &z->offload->down_bytes) += bytes;
    return ZERO_OK;
}
/* Copies it down to DOWN or UP, from the array on the device. */
static zero_result zp_cpu_update_fetch(zero_ctx *z, int u, int side) {
    const zp_array *from = side == ZP_GRAD ? zp_ctx_update_gradient(z) : &z->array[ZP_PARAM];
    const zp_array *to = &z->offload->twin[side == ZP_GRAD ? ZP_DOWN : ZP_UP];
    if (zp_array_off_device(from, u)) return ZERO_OK;
    return zp_cpu_update_copy(z, &z->offload->gpu->down, u, to,
                              zp_array_at(from, u, to->part[u].first), 0);
}

/* Copies the reduced gradient of unit u to DOWN, in the last micro-step if the device keeps it.
   Nothing reads DOWN any more, and nothing writes the gradient before it is copied: the next step's
   first write waits for `updated`, or the buffer's next user for `reduction`. */
static zero_result zp_cpu_update_send_gradient(zero_ctx *z, int u) {
    zp_live *live = &z->live[u];
    zp_stream *s = &z->offload->gpu->down;
    const int delays = z->updates_overlap, takes = zp_cpu_update_takes_mean(z, u);
    if (!zp_cpu_update_has_unit(z, u)) return ZERO_OK;
    ZP_TRY(zp_device_wait_event(s, live->reduction));
    if (delays || takes)
        ZP_TRY(zp_device_wait_event(s, delays ? &z->offload->unit[u].spent : live->updated));
    if (!takes) return zp_cpu_update_fetch(z, u, ZP_GRAD);
    ZP_TRY(zp_cpu_update_copy(z, s, u, &z->array[ZP_MEAN], zp_ctx_unit_mean(z, u), 0));
    return zp_device_record_event(s, live->reduction);
}

/* Notes that access by name wrote an array; NULL: any. */
static void zp_cpu_update_note_write(zero_ctx *z, const zp_array *a, int u) {
    (void)u;
    if (!a || a == &z->array[ZP_PARAM]) z->offload->stale |= 1 << ZP_PARAM;
    if (a == zp_ctx_update_gradient(z)) z->offload->stale |= 1 << ZP_GRAD;
}

/* The first task of a step, and of a second pass: clears the sums. */
static void zp_cpu_update_begin_task(const void *args, size_t n, int threads) {
    zp_offload *o = *(zp_offload *const *)args;
    if (zp_gate_pass(&o->gpu->gate)) o->control->skip = 1; /* the data may be missing */
    if (o->sums) memset(o->sums, 0, o->sums_bytes);
}
/* Lets later tasks of `updates` wait for the copies that `down` has so far. */
static zero_result zp_cpu_update_release(zero_ctx *z, zp_event *e) {
    zp_offload *o = z->offload;
    ZP_TRY(zp_device_call_from_stream(&o->gpu->down, zp_gate_open, &o->gpu->gate));
    ZP_TRY(zp_device_record_event(&o->gpu->down, e));
    ZP_TRY(zp_device_wait_event(&z->updates, e));
    return zp_device_push_task(&z->updates, zp_cpu_update_begin_task, &o, sizeof(zp_offload *), 0);
}
/* Begins the updates after the decision. The tasks of units are enqueued after this. */
static zero_result zp_cpu_update_begin(zero_ctx *z) {
    zp_offload *o = z->offload;
    zp_offload_gpu *g = o->gpu;
    ZP_TRY(zp_device_record_event(&z->updates, &g->event[ZP_DONE])); /* `control`, UP: not read */
    ZP_TRY(zp_device_wait_event(&z->compute, &g->event[ZP_DONE]));
    ZP_TRY(zp_device_copy(&z->compute, o->control, z->control, sizeof *o->control));
    ZP_TRY(zp_device_record_event(&z->compute, &g->event[ZP_DECIDED]));
    ZP_TRY(zp_device_wait_event(&g->down, &g->event[ZP_DECIDED]));
    if (z->array[ZP_PARAM].tier) { /* gathers have read UP, too */
        ZP_TRY(zp_device_record_event(&z->stream[ZP_PARAMETERS], &g->event[ZP_GATHERED]));
        ZP_TRY(zp_device_wait_event(&g->down, &g->event[ZP_GATHERED]));
    }
    for (int side = 0; side < ZP_SIDES; side++)
        for (int u = 0; u < z->layout.all && (o->stale >> side & 1); u++)
            ZP_TRY(zp_cpu_update_fetch(z, u, side));
    o->stale = 0;
    ZP_TRY(zp_cpu_update_release(z, &g->event[ZP_READY]));
    if (!g->staging[ZP_GRAD].file) return ZERO_OK;
    zp_lane_event sent; /* the file's lanes have the step's gradients */
    zp_lane_record(&z->stream[ZP_GRADIENTS].lane, &sent);
    return zp_device_push_task(&z->updates, zp_lane_wait_event_task, &sent, sizeof sent, 0);
}

/* Copies the new parameters of unit u up, after its task. */
static zero_result zp_cpu_update_copy_up(zero_ctx *z, int u) {
    const zp_array *up = &z->offload->twin[ZP_UP], *param = &z->array[ZP_PARAM];
    if (zp_array_off_device(param, u)) return ZERO_OK;
    return zp_cpu_update_copy(z, &z->updates, u, up, zp_array_at(param, u, up->part[u].first), 1);
}

/* The updater of units that the CPU updates. */
static zero_result zp_cpu_update_unit(zero_ctx *z, int u, int pass, const zero_hyper *h) {
    const int now = !z->updates_overlap && pass + 1 == z->rule->passes;
    ZP_TRY(zp_async_update_push(z, u, pass, h));
    return now ? zp_ctx_check(z, zp_cpu_update_copy_up(z, u)) : ZERO_OK;
}
/* A unit's gradient is written after the last update has read it, or, if that update may still run,
   after its copy is complete. A gradient off the device waits when it leaves instead. */
static void zp_cpu_update_set_readers(zero_ctx *z) {
    for (int u = 0; u < z->layout.all; u++) {
        zp_live *live = &z->live[u];
        if (zp_array_off_device(&z->array[ZP_MEAN], u)) live->reader = NULL;
        if (live->reader && z->updates_overlap) live->reader = &z->offload->gpu->event[ZP_READY];
    }
}

/* ---- rules of two passes ---- */

static void zp_cpu_update_fill_update(const zero_ctx *z, int u, size_t first, zp_update *a) {
    const zp_offload *o = z->offload;
    if (!zp_cpu_update_has_unit(z, u)) return;
    a->sums = o->sums;
    a->trust = o->trust;
    a->direction = (float *)(void *)zp_array_at(&o->twin[ZP_DIRECTIONS], u, first);
}
static zero_result zp_cpu_update_results_up(zero_ctx *z, int u, zp_stream *s, void *to) {
    zp_offload *o = z->offload;
    if (u < 0)
        return z->offload->cpu_updates ? zp_device_copy(s, to, o->sums, o->sums_bytes) : ZERO_OK;
    return zp_cpu_update_copy(z, s, u, &o->twin[ZP_DIRECTIONS], to, 1);
}
static zero_result zp_cpu_update_inputs_down(zero_ctx *z, int u, zp_event *ready, void *from) {
    zp_offload *o = z->offload;
    zp_stream *s = &o->gpu->down;
    const size_t bytes = zp_ctx_normed_layers(z) * sizeof *o->trust;
    if (u < 0 ? !z->offload->cpu_updates : !zp_cpu_update_has_unit(z, u)) return ZERO_OK;
    ZP_TRY(zp_device_wait_event(s, ready));
    ZP_TRY(u < 0 ? zp_device_copy(s, o->trust, from, bytes)
                 : zp_cpu_update_copy(z, s, u, &o->twin[ZP_DIRECTIONS], from, 0));
    return zp_cpu_update_release(z, &o->gpu->event[ZP_RETURNED]);
}
static const zp_updater zp_cpu_updater = {zp_cpu_update_unit, zp_cpu_update_fill_update,
                                          zp_cpu_update_results_up, zp_cpu_update_inputs_down};
#endif

/* cpu_update.h - updates by the CPU of state in host memory, for a GPU (ZeRO-Offload)

   MASTER and STATE are in host memory. The CPU updates them with the loop form of the rules, which
   has the same bits as the kernel. Each rank copies its part of a unit down as a gradient and up as
   parameters, in their stored types, through two pinned arrays of the same number of bytes:
     DOWN     gradients that the update reads
     UP       the parameters of that part. A rule without master weights reads them, and they are
              copied up. UP equals PARAM unless other code than the update wrote PARAM: `stale`
   Gradients of the tier DEVICE also stay on the device: micro-steps add up there, access by name
   finds them there, and a write by name sends them again. Gradients of the tier HOST are in DOWN
   alone. The CPU makes no pass over them: norm and overflow check belong to the device's reduction.

   ONE STEP
     gradient stream  reduces u and sums its squares: event `reduction`
     down             in the last micro-step, waits for that and copies u's gradient to DOWN
     compute          zero_step: waits for `agreed` and decides; waits for the last step's updates,
                      `done`, and copies the decision to `control`: event `decided`
     down             waits for that; copies stale arrays; opens the gate: event `ready`
     updates          waits for `ready`; its lane passes the gate and updates unit by unit
     updates          for each unit: waits for its last gather and for the lane; copies UP to PARAM:
                      event `updated`
     parameter stream waits for that; gathers u
     compute          before the next step first writes u's gradient: waits for `updated`, after
                      which nothing reads gradient or DOWN (delayed: waits for `ready`)
   So the next forward waits only for its own unit, and no CPU thread waits for the device.

   ONE GRADIENT of the tier HOST, in each micro-step. The device has no shard of it, and it leaves
   through the shared gradient buffers:
     gradient stream  reduces u inside its buffer, to the place of this rank's shard. If DOWN has
                      the sum of earlier micro-steps, the device adds it in pieces, because it
                      computes the norm of the sum (see gpu_update.h). In the last micro-step, it
                      also sums squares. Event `reduction`
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
   Directions have a pinned array of their own, DEALT, 4 bytes for each element of units with
   matrices. With other tiers this file opens, enqueues and allocates nothing. */
#pragma once

#include "offload_plan.h"

static int zp_cpu_update_is_on(const zero_ctx *z) { return z->host.on; }
static int zp_cpu_update_keeps_state(const zero_ctx *z) { return z->host.on || z->host.through; }

/* Whether DOWN alone keeps unit u's reduced gradient; and whether micro-steps add up there. */
static int zp_cpu_update_takes_mean(const zero_ctx *z, int u) {
    return z->array[ZP_MEAN].part[u].tier == ZERO_HOST && z->array[ZP_MEAN].part[u].numel;
}
static int zp_cpu_update_adds_means(const zero_ctx *z) {
    return z->array[ZP_MEAN].tier == ZERO_HOST && zp_ctx_adds_means(z);
}

/* Cuts DOWN, UP and DEALT, and marks the units that are updated apart. */
static void zp_cpu_update_plan(zero_ctx *z) {
    const zero_type types[] = {z->array[ZP_GRAD].type, z->array[ZP_PARAM].type, ZERO_F32};
    z->host.on = 0;
    for (int i = 0; i < 3; i++) {
        zp_array *a = &z->array[ZP_DOWN + i];
        a->type = types[i];
        a->part = z->array[0].part + (size_t)(ZP_DOWN + i) * (size_t)z->layout.all;
        a->tier = ZERO_HOST;
        a->host_bytes = 0;
        for (int u = 0; u < z->layout.all; u++) {
            const zp_array_part *own = zp_ctx_own_part(z, u);
            const int here = own->tier == ZERO_DEVICE || zp_device_is_host() || z->host.through;
            const int wanted[] = {!zp_array_in_file(&z->array[ZP_MEAN], u),
                                  !zp_array_in_file(&z->array[ZP_PARAM], u),
                                  z->layout.unit[u].matrices > 0};
            const zp_share share = !here && wanted[i] ? z->policy.state : ZP_NOTHING;
            (void)zp_array_cut(a, u, &z->layout.unit[u], share, ZERO_HOST, z->data->rank, 0,
                               SIZE_MAX);
            z->host.on |= !here && own->numel;
            z->live[u].apart |= own->tier == ZERO_HOST || (!here && own->numel);
        }
    }
}

/* Lets parameters off the device share UP's parts, and gradients DOWN's, in memory and in the
   file. */
static void zp_cpu_update_share_parts(zero_ctx *z) {
    zp_array *param = &z->array[ZP_PARAM], *up = &z->array[ZP_UP];
    zp_array *mean = &z->array[ZP_MEAN], *down = &z->array[ZP_DOWN];
    for (int u = 0; u < z->layout.all && z->host.on; u++) {
        if (zp_array_in_file(mean, u)) down->part[u] = mean->part[u];
        if (mean->part[u].tier == ZERO_HOST) mean->part[u].at = down->part[u].at;
        if (param->part[u].tier == ZERO_HOST) param->part[u].at = up->part[u].at;
        if (param->part[u].tier == ZERO_FILE) up->part[u] = param->part[u];
    }
    param->host_bytes = mean->host_bytes = 0;
}

/* Cuts `bytes` from host memory. Before that memory is open, only measures them. */
static void *zp_cpu_update_cut(const zp_pages *m, size_t *at, size_t bytes) {
    return zp_cut_memory(m->base, at, bytes, 256);
}
static size_t zp_cpu_update_layers(const zero_ctx *z) { /* layers whose norms a rule needs */
    return z->rule->needs & ZP_NORMS_OF_LAYERS ? (size_t)z->layout.layers : 0;
}
static void zp_cpu_update_cut_arrays(zero_ctx *z, size_t *pinned, size_t *plain) {
    zp_cpu_update *h = &z->host;
    const size_t parts = h->on ? zp_cpu_update_layers(z) : 0;
    *pinned = *plain = 0;
    if (!zp_cpu_update_keeps_state(z)) return;
    if (z->disk_bytes)
        z->disk_memory =
            (char *)zp_cpu_update_cut(&h->plain, plain, zp_round_up(z->disk_bytes, 4096));
    for (int side = 0; side < ZP_SIDES; side++)
        if (zp_ctx_side_array(z, side)->tier == ZERO_FILE)
            h->lift[side].memory = (char *)zp_cpu_update_cut(
                &h->pinned, pinned, ZP_RING * ZP_PIECE_NUMEL * zp_type_bytes(z->array[side].type));
    h->control = (zp_control *)zp_cpu_update_cut(&h->pinned, pinned, sizeof *h->control);
    h->spans = (zp_span *)zp_cpu_update_cut(&h->plain, plain,
                                            (size_t)z->layout.nmembers * sizeof *h->spans);
    h->sums_bytes = zp_round_up(parts * 2 * sizeof(zp_exact), 256);
    if (parts) h->sums = (zp_limb *)zp_cpu_update_cut(&h->pinned, pinned, h->sums_bytes);
    if (parts) h->trust = (double *)zp_cpu_update_cut(&h->pinned, pinned, parts * sizeof *h->trust);
    for (int k = ZP_MASTER; k < ZP_ARRAYS_AND_TWINS; k++) {
        zp_array *a = &z->array[k];
        const int copied = k >= ZP_DOWN || h->through;
        a->host = (char *)zp_cpu_update_cut(copied ? &h->pinned : &h->plain,
                                            copied ? pinned : plain, a->host_bytes);
    }
    z->array[ZP_PARAM].host = z->array[ZP_UP].host;
    z->array[ZP_MEAN].host = z->array[ZP_DOWN].host;
}
/* Bytes that this rank keeps in host memory: all, and the pinned part. */
static size_t zp_cpu_update_bytes(zero_ctx *z, size_t *pinned) {
    size_t plain;
    zp_cpu_update_cut_arrays(z, pinned, &plain);
    *pinned = zp_round_up(*pinned, 4096);
    return *pinned + zp_round_up(plain, 4096);
}

/* Opens the memory, streams and events. The stream `updates` gets its lane. */
static zero_result zp_cpu_update_open(zero_ctx *z) {
    zp_cpu_update *h = &z->host;
    const zero_config *c = &z->cfg;
    const int passes = h->through || zp_cpu_update_adds_means(z);
    size_t pinned, plain;
    zp_cpu_update_cut_arrays(z, &pinned, &plain);
    ZP_TRY(zp_device_open_stream(&h->down, &z->device, c->stream, !c->no_overlap, 0, 1));
    ZP_TRY(zp_device_open_stream(&h->up, &z->device, c->stream, !c->no_overlap, 0, 1));
    zp_device_set_track(&h->down, ZERO_TRACK_COPIES);
    zp_device_set_track(&h->up, ZERO_TRACK_COPIES);
    if (h->on) ZP_TRY(zp_device_attach_lane(&z->updates, c->threads));
    for (zp_gpu_update_place_events *p = h->passage; p < h->passage + ZP_PASSAGES && passes; p++) {
        ZP_TRY(zp_device_open_event(&z->device, &p->filled));
        ZP_TRY(zp_device_open_event(&z->device, &p->used));
        ZP_TRY(zp_device_open_event(&z->device, &p->emptied));
    }
    ZP_TRY(zp_device_open_event(&z->device, &h->decided));
    ZP_TRY(zp_device_open_event(&z->device, &h->ready));
    ZP_TRY(zp_device_open_event(&z->device, &h->done));
    ZP_TRY(zp_device_open_event(&z->device, &h->returned));
    ZP_TRY(zp_device_open_event(&z->device, &h->gathered));
    for (int side = 0; side < ZP_SIDES; side++) {
        if (zp_ctx_side_array(z, side)->tier != ZERO_FILE) continue;
        ZP_TRY(zp_lane_open(&h->lift[side].asks, 1));
        h->lift[side].open = 1;
    }
    ZP_TRY(zp_device_open_pages(&h->pinned, pinned, 1));
    ZP_TRY(zp_device_open_pages(&h->plain, plain, 0));
    zp_cpu_update_cut_arrays(z, &pinned, &plain);
    return ZERO_OK; /* UP is zeros, like PARAM */
}

/* Opens the gates for threads that still wait: a lost device does not open them. */
static void zp_cpu_update_abandon(zero_ctx *z) {
    zp_device_close_stream(&z->host.down);
    zp_device_close_stream(&z->host.up);
    zp_lane_abandon_gate(&z->host.gate);
    for (int side = 0; side < ZP_SIDES; side++) {
        zp_transfer_up_state *l = &z->host.lift[side];
        if (l->open) (void)zp_device_sync_stream(&z->stream[side]);
        zp_lane_abandon_gate(&l->copied);
        zp_lane_abandon_gate(&l->given);
    }
}
static void zp_cpu_update_close(zero_ctx *z) {
    zp_cpu_update *h = &z->host;
    zp_device_close_event(&h->decided);
    zp_device_close_event(&h->ready);
    for (zp_gpu_update_place_events *p = h->passage; p < h->passage + ZP_PASSAGES; p++) {
        zp_device_close_event(&p->filled);
        zp_device_close_event(&p->used);
        zp_device_close_event(&p->emptied);
    }
    zp_device_close_event(&h->done);
    zp_device_close_event(&h->returned);
    zp_device_close_event(&h->gathered);
    zp_device_close_pages(&h->pinned);
    zp_device_close_pages(&h->plain);
    zp_lane_close_gate(&h->gate);
    for (int side = 0; side < ZP_SIDES; side++) {
        zp_lane_close_gate(&h->lift[side].given);
        zp_lane_close_gate(&h->lift[side].copied);
    }
}

/* Copies this rank's part of unit u down: its gradient, or its parameters. */
static zero_result zp_cpu_update_copy_down(zero_ctx *z, int u, zp_side side, const char *from) {
    const zp_array *to = &z->array[side == ZP_GRAD ? ZP_DOWN : ZP_UP];
    const zp_array_part *own = &to->part[u];
    const size_t bytes = own->numel * zp_type_bytes(to->type);
    zp_record *r = zp_device_begin_slice(&z->host.down, ZERO_EVENT_COPY, u, bytes);
    ZP_TRY(zp_device_copy(&z->host.down, zp_array_at(to, u, own->first), from, bytes));
    zp_device_end_slice(&z->host.down, r);
    z->host.down_bytes += bytes;
    return ZERO_OK;
}
/* The same, from the array on the device. */
static zero_result zp_cpu_update_fetch(zero_ctx *z, int u, zp_side side) {
    const zp_array *from = side == ZP_GRAD ? zp_ctx_update_gradient(z) : &z->array[ZP_PARAM];
    const zp_array_part *own = &z->array[side == ZP_GRAD ? ZP_DOWN : ZP_UP].part[u];
    if (!own->numel || zp_array_off_device(from, u)) return ZERO_OK;
    return zp_cpu_update_copy_down(z, u, side, zp_array_at(from, u, own->first));
}

/* Copies the reduced gradient of unit u to DOWN, in the last micro-step if the device keeps it.
   Nothing reads DOWN any more, and nothing writes the gradient before it is copied: the next step's
   first write waits for `updated`, or the buffer's next user for `reduction`. */
static zero_result zp_cpu_update_send_gradient(zero_ctx *z, int u) {
    const zp_live *live = &z->live[u];
    zp_stream *s = &z->host.down;
    const int delays = zp_ctx_is_delayed(z), takes = zp_cpu_update_takes_mean(z, u);
    if (!zp_cpu_update_is_on(z) || !live->apart) return ZERO_OK;
    ZP_TRY(zp_device_wait_event(s, live->reduction));
    if (delays || takes) ZP_TRY(zp_device_wait_event(s, delays ? live->spent : live->updated));
    if (!takes) return zp_cpu_update_fetch(z, u, ZP_GRAD);
    ZP_TRY(zp_cpu_update_copy_down(z, u, ZP_GRAD, zp_ctx_unit_mean(z, u)));
    return zp_device_record_event(s, live->reduction);
}
/* Lets stream s wait before it writes unit u's gradient: until the last update has read it, or, if
   that update may still run, until its copy is complete. With a GPU, a gradient off the device
   waits when it leaves instead. */
static zero_result zp_cpu_update_wait_reader(zero_ctx *z, zp_stream *s, int u) {
    const int copied = zp_cpu_update_is_on(z) && zp_ctx_is_delayed(z);
    zp_live *live = &z->live[u];
    if (zp_cpu_update_is_on(z) && zp_array_off_device(&z->array[ZP_MEAN], u)) return ZERO_OK;
    return zp_device_wait_event(s, copied                 ? &z->host.ready
                                   : zp_ctx_is_delayed(z) ? live->spent
                                                          : live->updated);
}

/* Notes that access by name wrote an array. */
static void zp_cpu_update_note_write(zero_ctx *z, const zp_array *a) {
    if (a == &z->array[ZP_PARAM]) z->host.stale |= 1 << ZP_PARAM;
    if (a == zp_ctx_update_gradient(z)) z->host.stale |= 1 << ZP_GRAD;
}

/* The first task of a step, and of a second pass: clears the sums. */
static void zp_cpu_update_begin_task(const void *args, size_t n, int threads) {
    zp_cpu_update *h;
    memcpy(&h, args, sizeof(zp_cpu_update *));
    if (zp_lane_pass_gate(&h->gate)) h->control->skip = 1; /* the data may be missing */
    if (h->sums) memset(h->sums, 0, h->sums_bytes);
}
/* Lets later tasks of `updates` wait for the copies that `down` has so far. */
static zero_result zp_cpu_update_release(zero_ctx *z, zp_event *e) {
    zp_cpu_update *h = &z->host;
    ZP_TRY(zp_device_open_gate_from_stream(&h->down, &h->gate));
    ZP_TRY(zp_device_record_event(&h->down, e));
    ZP_TRY(zp_device_wait_event(&z->updates, e));
    return zp_device_push_task(&z->updates, zp_cpu_update_begin_task, &h, sizeof(zp_cpu_update *),
                               0);
}
/* Begins the updates after the decision. The tasks of units are enqueued after this. */
static zero_result zp_cpu_update_begin(zero_ctx *z) {
    zp_cpu_update *h = &z->host;
    if (!h->on) return ZERO_OK;
    ZP_TRY(zp_device_record_event(&z->updates,
                                  &h->done)); /* nothing reads `control` and UP any more */
    ZP_TRY(zp_device_wait_event(&z->compute, &h->done));
    ZP_TRY(zp_device_copy(&z->compute, h->control, z->control, sizeof *h->control));
    ZP_TRY(zp_device_record_event(&z->compute, &h->decided));
    ZP_TRY(zp_device_wait_event(&h->down, &h->decided));
    if (z->array[ZP_PARAM].tier) { /* gathers have read UP, too */
        ZP_TRY(zp_device_record_event(&z->stream[ZP_PARAMETERS], &h->gathered));
        ZP_TRY(zp_device_wait_event(&h->down, &h->gathered));
    }
    for (int side = 0; side < ZP_SIDES; side++)
        for (int u = 0; u < z->layout.all && (h->stale >> side & 1); u++)
            ZP_TRY(zp_cpu_update_fetch(z, u, (zp_side)side));
    h->stale = 0;
    ZP_TRY(zp_cpu_update_release(z, &h->ready));
    if (!h->lift[ZP_GRAD].open) return ZERO_OK;
    zp_lane_event sent; /* the file's lanes have the step's gradients */
    zp_lane_record(&h->lift[ZP_GRAD].asks, &sent);
    return zp_device_push_task(&z->updates, zp_lane_wait_event_task, &sent, sizeof sent, 0);
}

/* What an update apart reads instead of the device's arrays: the spans, and the decision, which the
   CPU knows here if it is the device. */
static const zp_span *zp_cpu_update_spans(const zero_ctx *z, int u) {
    return z->host.spans + (z->layout.unit[u].member - z->layout.members);
}
static const zp_control *zp_cpu_update_decision(const zero_ctx *z) {
    return zp_cpu_update_is_on(z) ? &z->report : z->control;
}

/* Whether the CPU updates unit u in host memory, for a GPU. */
static int zp_cpu_update_has_unit(const zero_ctx *z, int u) {
    return zp_cpu_update_is_on(z) && z->live[u].apart;
}

/* Copies the new parameters of unit u up, after its task. */
static zero_result zp_cpu_update_copy_up(zero_ctx *z, int u) {
    const zp_array *from = &z->array[ZP_UP];
    const zp_array_part *own = &from->part[u];
    if (!zp_cpu_update_is_on(z) || !own->numel || zp_array_off_device(&z->array[ZP_PARAM], u))
        return ZERO_OK;
    const size_t bytes = own->numel * zp_type_bytes(from->type);
    zp_record *r = zp_device_begin_slice(&z->updates, ZERO_EVENT_COPY, u, bytes);
    ZP_TRY(zp_device_copy(&z->updates, zp_array_at(&z->array[ZP_PARAM], u, own->first),
                          zp_array_at(from, u, own->first), bytes));
    zp_device_end_slice(&z->updates, r);
    z->host.up_bytes += bytes;
    return ZERO_OK;
}

/* Converts values of array `a` to f32 or back, like zp_kernel_convert. If they are in plain host
   memory or in a piece of the file, which no kernel reaches, the CPU converts them. SYNC then. */
static zero_result zp_cpu_update_convert(zero_ctx *z, const zp_array *a, int u,
                                         const zp_kernel_convert_args *args, size_t n) {
    zp_kernel_convert_args here = *args;
    if (a->part[u].tier == ZERO_DEVICE) return zp_kernel_convert(&z->compute, args, n);
    if (args->control && zp_cpu_update_is_on(z)) { /* the CPU cannot read the device's */
        here.control = z->host.control;
        ZP_TRY(zp_device_copy(&z->compute, z->host.control, args->control, sizeof *here.control));
    }
    ZP_TRY(zp_device_sync_stream(&z->compute));
    zp_kernel_convert_loop(&here, n, z->cfg.threads);
    return ZERO_OK;
}

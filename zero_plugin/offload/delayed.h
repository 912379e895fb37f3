/* delayed.h - an optimizer step that overlaps with the next step (ZeRO-Offload's delayed update)

   A PENDING UPDATE (cfg.delay_from). From a delayed zero_step to the next zero_reduce z->pending is
   1, on all ranks alike, and each rank has two copies of the weights that it updates:
     zp_ctx_weights  SEEN: passes gather these and compute with them. Nobody writes them
     zp_ctx_newest   NEWEST: the result of the update, which master weights and state belong to
   In memory SEEN is PARAM and NEWEST is NEXT; in the file each is in one of the two places; beside
   a GPU SEEN is PARAM, on the device, and NEWEST is UP.
   The stream `updates` owns NEWEST, master weights and state, and until event `spent` the reduced
   gradient (MEAN, DOWN). All others wait for that stream (zp_ctx_sync) before they read these.
   The update ends unit by unit: behind the reduction of u in the next step's last micro-step all
   ranks have computed with SEEN. Then `updates` makes NEWEST SEEN (zp_delayed_swap) and records
   `updated`; u's gather, or its next begin, waits for that.
   Between steps everything that looks leaves this as it is. Evaluations compute with SEEN. Reading
   by name and checkpoints read both copies: ZERO_PARAMETER is SEEN, ZERO_MASTER is NEWEST. What
   ends the update early, on all ranks, is zp_delayed_finish. */
#pragma once

#include "../core/step.h"
#include "cpu_update.h"

/* What this rank updates of unit u, from one of PARAM and NEXT to the other, both in memory. */
static void zp_delayed_copy_next(zero_ctx *z, int u, int to, int from) {
    const zp_array_part *own = zp_ctx_own_part(z, u);
    memcpy(zp_array_at(&z->array[to], u, own->first), zp_array_at(&z->array[from], u, own->first),
           own->numel * zp_type_bytes(z->cfg.type));
}

/* A task of `updates`: NEXT, which the last update has written, becomes PARAM. */
typedef struct zp_delayed_swap_args {
    zero_ctx *z;
    int unit;
} zp_delayed_swap_args;

static void zp_delayed_swap_task(const void *args, size_t n, int threads) {
    const zp_delayed_swap_args *a = (const zp_delayed_swap_args *)args;
    zp_live *live = &a->z->live[a->unit];
    if (zp_array_in_file(&a->z->array[ZP_NEXT], a->unit))
        live->turned = live->rounds;
    else
        zp_delayed_copy_next(a->z, a->unit, ZP_PARAM, ZP_NEXT);
}

/* Weights were written by name: an update goes on from them. (In the file it reads them there.) */
static void zp_delayed_renew_next(zero_ctx *z, int u) {
    z->live[u].old_next = 0;
    if (!zp_array_in_file(&z->array[ZP_NEXT], u)) zp_delayed_copy_next(z, u, ZP_NEXT, ZP_PARAM);
}

/* Unit u's new weights come in, once `computed`: all ranks are done with the old ones. Who waits
   for them: u's gather, or, where there is none, its next begin. */
static zero_result zp_delayed_swap(zero_ctx *z, int u, zp_event *computed) {
    const zp_delayed_swap_args a = {z, u};
    zp_stream *s = &z->updates;
    zp_extra_forget(z, u);
    ZP_DO(z, zp_device_wait_event(s, computed));
    ZP_DO(z, zp_device_wait_event(s, z->live[u].gathered)); /* one that nobody has waited for */
    if (zp_cpu_update_is_on(z)) {
        ZP_DO(z, zp_cpu_update_copy_up(z, u));
        return zp_gather_publish_update(z, u, s);
    }
    zp_record *r =
        zp_device_begin_slice(s, ZERO_EVENT_COPY, u, zp_array_part_bytes(&z->array[ZP_PARAM], u));
    ZP_DO(z,
          zp_device_push_task(s, zp_delayed_swap_task, &a, sizeof a, zp_ctx_own_part(z, u)->numel));
    zp_device_end_slice(s, r);
    return zp_gather_publish_update(z, u, s);
}

/* All that is pending comes in, between steps, once no rank evaluates with the old weights. */
static zero_result zp_delayed_finish(zero_ctx *z) {
    if (!z->pending) return ZERO_OK;
    ZP_DO(z, zp_ctx_sync(z));
    ZP_DO(z, zp_comm_barrier(z->all));
    for (int i = 0; i < z->layout.all; i++) {
        const int u = zp_ctx_nth_update(z, i);
        if (z->layout.unit[u].numel) ZP_TRY(zp_delayed_swap(z, u, z->agreed));
    }
    zp_gather_forget_all(z);
    z->pending = 0;
    return zp_observe_seal(z);
}

/* Where updates are delayed, state is put into both copies of the weights: they are made alike
   first. Only this rank's part, so that ranks need not come here together. */
static zero_result zp_delayed_double(zero_ctx *z) {
    if (z->pending || !zp_ctx_is_delayed(z)) return ZERO_OK;
    z->pending = 1;
    for (int u = 0; u < z->layout.all; u++) {
        zp_array *now = zp_ctx_weights(z, u);
        const int filed = zp_array_in_file(&z->array[ZP_NEXT], u);
        z->live[u].turned ^= filed; /* the next update reads where the last one has written */
        z->live[u].old_next = 0;
        ZP_TRY(zp_step_copy_weights(z, u, now, filed ? zp_ctx_weights(z, u) : zp_ctx_newest(z, u)));
    }
    return ZERO_OK;
}

/* The update's way to the weights that passes see: at once, or a step later. */
static zero_result zp_delayed_publish(zero_ctx *z, int u, zp_stream *s, int made) {
    ZP_DO(z, zp_device_record_event(s, z->live[u].spent));
    if (!made) return zp_gather_publish_update(z, u, s);
    const int now = !z->delayed && z->layout.unit[u].numel;
    return now ? zp_delayed_swap(z, u, z->agreed) : ZERO_OK;
}
/* Station: a pending update of the step before comes in, once the unit is reduced. */
static zero_result zp_delayed_swap_reduced(zero_ctx *z, int u) {
    return z->pending ? zp_delayed_swap(z, u, z->live[u].reduction) : ZERO_OK;
}

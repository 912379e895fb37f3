/* delayed.h - an optimizer step that overlaps with the next step (ZeRO-Offload's delayed update)

   A PENDING UPDATE (cfg.delay_from). From a delayed zero_step to the next zero_reduce
   z->update_pending is 1, on all ranks alike, and each rank has two copies of the weights that it
   updates:
     zp_ctx_weights  SEEN: passes gather these and compute with them. Nothing writes them
     zp_ctx_newest   NEWEST: the result of the update, which master weights and state belong to
   In memory SEEN is PARAM and NEWEST is NEXT. In the file each is in one of the two places. Next to
   a GPU, SEEN is PARAM, on the device, and NEWEST is UP.
   The stream `updates` owns NEWEST, master weights and state, and until event `spent` the reduced
   gradient (MEAN, DOWN). All others wait for that stream (zp_extra_sync) before they read these.
   The update ends unit by unit: after the reduction of u in the next step's last micro-step, all
   ranks have computed with SEEN. Then `updates` makes NEWEST SEEN (zp_delayed_swap) and records
   `updated`. u's gather, or its next begin, waits for that.
   Between steps, reading changes none of this. Evaluations compute with SEEN. Reading by name and
   checkpoints read both copies: ZERO_PARAMETER is SEEN, ZERO_MASTER is NEWEST. zp_delayed_finish
   ends the update early, on all ranks. */
#pragma once

#include "../core/step.h"
#include "../core/weights.h"
#include "offload_plan.h"

static int zp_delayed_overlaps(const zero_ctx *z) { return z->updates_overlap; }

/* Returns the array with the weights of u that a pass uses, or with the newest ones. */
static zp_array *zp_delayed_find_weights(zero_ctx *z, int u, int newest) {
    const zp_offload_unit *x = &z->offload->unit[u];
    const int filed = zp_file_has(&z->array[ZP_NEXT], u);
    if (!newest || !z->update_pending)
        return &z->array[x->exchanged ? (int)ZP_NEXT : (int)ZP_PARAM];
    if (z->offload->cpu_updates) return &z->offload->twin[ZP_UP];
    return &z->array[filed && !x->rounds ? (int)ZP_PARAM : (int)ZP_NEXT];
}

/* Copies this rank's part of unit u from one of PARAM and NEXT to the other, both in memory. */
static void zp_delayed_copy_next(zero_ctx *z, int u, int to, int from) {
    const zp_array_part *own = zp_ctx_own_part(z, u);
    memcpy(zp_array_at(&z->array[to], u, own->first), zp_array_at(&z->array[from], u, own->first),
           own->numel * zp_type_bytes(z->cfg.type));
}

/* After weights were written by name, an update continues from them. In the file it reads them
   where they were written. */
static void zp_delayed_renew_next(zero_ctx *z, int u) {
    z->offload->unit[u].old_next = 0;
    if (!zp_file_has(&z->array[ZP_NEXT], u)) zp_delayed_copy_next(z, u, ZP_NEXT, ZP_PARAM);
}

typedef struct zp_delayed_replace_args {
    zero_ctx *z;
    int unit;
} zp_delayed_replace_args;

/* A task of `updates`: NEXT, which the last update has written, becomes PARAM. */
static void zp_delayed_replace_task(const void *args, size_t n, int threads) {
    const zp_delayed_replace_args *a = (const zp_delayed_replace_args *)args;
    zp_offload_unit *x = &a->z->offload->unit[a->unit];
    if (zp_file_has(&a->z->array[ZP_NEXT], a->unit))
        x->exchanged = x->rounds;
    else
        zp_delayed_copy_next(a->z, a->unit, ZP_PARAM, ZP_NEXT);
}
static zero_result zp_delayed_replace(zero_ctx *z, int u) {
    const zp_delayed_replace_args a = {z, u};
    const size_t numel = zp_ctx_own_part(z, u)->numel;
    ZP_SLICE(&z->updates, ZERO_EVENT_COPY, u, zp_array_part_bytes(&z->array[ZP_PARAM], u),
             zp_device_push_task(&z->updates, zp_delayed_replace_task, &a, sizeof a, numel));
    return ZERO_OK;
}

/* Makes unit u's new weights those that passes use, after event `computed`: all ranks have computed
   with the old ones. u's gather waits for the new ones, or, without a gather, its next begin. */
static zero_result zp_delayed_swap(zero_ctx *z, int u, zp_event *computed) {
    zp_stream *s = &z->updates;
    z->live[u].version++;
    ZP_DO(z, zp_device_wait_event(s, computed));
    ZP_DO(z, zp_device_wait_event(s, z->live[u].gathered)); /* nothing else may wait for it */
    ZP_DO(z, z->offload->replace(z, u));
    return zp_gather_publish_update(z, u, s);
}

/* Station: every unit has its new weights. */
static zero_result zp_delayed_complete(zero_ctx *z) {
    if (!z->update_pending) return ZERO_OK;
    z->update_pending = 0;
    ZP_TRY(zp_gather_forget_all(z));
    return zp_observe_parameters_changed(z);
}

/* Ends a pending update of all units between steps, when no rank evaluates with the old weights. */
static zero_result zp_delayed_finish(zero_ctx *z) {
    if (!z->update_pending) return ZERO_OK;
    ZP_DO(z, zp_extra_sync(z));
    ZP_DO(z, zp_comm_barrier(z->all));
    for (int i = 0; i < z->layout.all; i++) {
        const int u = zp_ctx_nth_update(z, i);
        if (z->layout.unit[u].numel) ZP_TRY(zp_delayed_swap(z, u, z->agreed));
    }
    return zp_delayed_complete(z);
}

/* If updates are delayed, state is put into both copies of the weights, so this makes both copies
   equal first. It copies only this rank's part: other ranks need not call it. */
static zero_result zp_delayed_double(zero_ctx *z) {
    if (z->update_pending || !z->updates_overlap) return ZERO_OK;
    z->update_pending = 1;
    for (int u = 0; u < z->layout.all; u++) {
        zp_array *now = zp_ctx_weights(z, u);
        const int filed = zp_file_has(&z->array[ZP_NEXT], u);
        z->offload->unit[u].exchanged ^= filed; /* an update reads what the last one wrote */
        z->offload->unit[u].old_next = 0;
        ZP_TRY(zp_weights_copy(z, u, now, filed ? zp_ctx_weights(z, u) : zp_ctx_newest(z, u)));
    }
    return ZERO_OK;
}

/* Returns 1 if this step's update stays pending. The step was counted. */
static int zp_delayed_stays(const zero_ctx *z) { return z->taken >= z->cfg.delay_from; }
/* Station: makes an update's weights those that passes use, at once or a step later. */
static zero_result zp_delayed_publish(zero_ctx *z, int u) {
    ZP_DO(z, zp_device_record_event(zp_step_stream(z, u), &z->offload->unit[u].spent));
    const int now = !zp_delayed_stays(z) && z->layout.unit[u].numel;
    return now ? zp_delayed_swap(z, u, z->agreed) : ZERO_OK;
}
/* Station: all updates of the step are enqueued. */
static zero_result zp_delayed_end_step(zero_ctx *z) {
    z->update_pending = zp_delayed_stays(z);
    return z->update_pending ? ZERO_OK : zp_gather_forget_all(z);
}
/* Station: once the unit is reduced, its pending update of the last step ends. */
static zero_result zp_delayed_swap_reduced(zero_ctx *z, int u) {
    return z->update_pending ? zp_delayed_swap(z, u, z->live[u].reduction) : ZERO_OK;
}

/* step.h - zero_reduce and zero_step: agree, decide, update, publish

   The two functions run the stations of zp_step_stations (below) from top to bottom. Stations of
   units that follow each other run unit by unit: a unit is updated and published before the next
   one. All stages use the same stations: a range to update, and a gather or none.

   The compute stream updates a unit if all its arrays are on the device. A row may set another
   updater, z->live[u].updater, and `on_updates`: then the stream `updates` updates the unit during
   the next forward. The unit's gather waits for it, or, without a gather, its next begin. */
#pragma once

#include "hooks.h"

/* Returns the address of element 0 of an array of which element `from` is at `at`; NULL of NULL. */
static void *zp_step_origin(char *at, size_t from, zero_type type) {
    return at ? (void *)((uintptr_t)at - zp_type_array_bytes(type, from)) : NULL;
}

/* Returns the update of elements [from, from + n) of this rank's part of unit u. at[ZP_UPDATED_*]:
   the address of element `from` in each array; NULL: the run has no such array. */
static zp_update zp_step_make_update(const zero_ctx *z, int u, const zero_hyper *h,
                                     const zp_control *control, size_t from, size_t n,
                                     char *const *at) {
    zp_update a;
    memset(&a, 0, sizeof a);
    a.p = zp_step_origin(at[ZP_UPDATED_PARAM], from, z->cfg.type);
    a.g = zp_step_origin(at[ZP_UPDATED_MEAN], from, z->array[ZP_MEAN].type);
    const zero_type kept = z->array[ZP_MASTER].type;
    void *master = zp_step_origin(at[ZP_UPDATED_MASTER], from, kept);
    a.master = kept == ZERO_F32 ? (float *)master : NULL;
    a.low = kept == ZP_LOW ? (uint16_t *)master : NULL;
    a.state_type = z->array[ZP_STATE].part[u].type;
    a.form = a.state_type == ZERO_F32 ? NULL : z->state_form;
    for (int i = 0; i < ZP_STATES; i++)
        a.state[i] = zp_step_origin(at[ZP_UPDATED_MASTER + 1 + i], from, a.state_type);
    a.begin = from;
    a.end = from + n;
    a.control = control;
    a.spans = z->spans + (z->layout.unit[u].member - z->layout.members);
    a.nspans = z->live[u].spans;
    a.type = z->cfg.type;
    a.grad_type = z->array[ZP_GRAD].type;
    a.squares = z->array[ZP_STATE + 1].squares;
    a.lr = h->lr;
    a.beta1 = h->beta1;
    a.beta2 = h->beta2;
    a.eps = h->eps;
    a.decay = h->weight_decay;
    a.rounding = z->master.rounding;
    a.round = z->round_weights;
    if (z->rule->passes > 1) {
        const size_t first = zp_ctx_own_part(z, u)->first;
        ZP_EACH_EXTRA(z, x) if (x->fill_update) x->fill_update(z, u, first, &a);
        if (z->live[u].updater->fill) z->live[u].updater->fill(z, u, first, &a);
    }
    a.key[1] =
        zp_optimizer_mix((uint32_t)z->cfg.seed ^ zp_optimizer_mix((uint32_t)(z->cfg.seed >> 32)));
    return a;
}

static zp_stream *zp_step_stream(zero_ctx *z, int u) {
    return z->live[u].on_updates ? &z->updates : &z->compute;
}

/* Updates a unit on the compute stream. All its arrays are on the device. */
static zero_result zp_step_update_in_place(zero_ctx *z, int u, int pass, const zero_hyper *h) {
    const zp_rule *rule = z->rule;
    const zp_array_part *own = zp_ctx_own_part(z, u);
    char *at[ZP_UPDATED_ARRAYS];
    at[ZP_UPDATED_PARAM] = zp_array_at(&z->array[ZP_PARAM], u, own->first);
    at[ZP_UPDATED_MEAN] = zp_array_at(zp_ctx_update_gradient(z), u, own->first);
    for (int k = 0; k <= ZP_STATES; k++)
        at[ZP_UPDATED_MASTER + k] = zp_array_at(&z->array[ZP_MASTER + k], u, own->first);
    const zp_update update = zp_step_make_update(z, u, h, z->control, 0, own->numel, at);
    for (int k = zp_rule_first(rule, pass); k < zp_rule_last(rule, pass) && update.nspans; k++)
        ZP_DO(z, rule->update[k](&z->compute, &update, own->numel / ZP_WIDE));
    return ZERO_OK;
}

static const zp_updater zp_step_in_place = {zp_step_update_in_place, NULL, NULL, NULL};

/* Station: runs the rule's current pass over unit u. */
static zero_result zp_step_update_unit(zero_ctx *z, int u) {
    zp_stream *s = zp_step_stream(z, u);
    if (!zp_ctx_own_part(z, u)->numel) return ZERO_OK;
    /* a gather of an evaluation may still run */
    ZP_DO(z, zp_device_wait_event(s, z->live[u].gathered));
    ZP_SLICE(s, ZERO_EVENT_UPDATE, u, zp_array_part_bytes(&z->array[ZP_PARAM], u),
             z->live[u].updater->update(z, u, z->rule_pass, &z->hyper));
    return ZERO_OK;
}

/* Enqueues the copy of the agreement and the decision from the device to host memory. */
static zero_result zp_step_send_report(zero_ctx *z) {
    ZP_DO(z, zp_device_copy(&z->compute, z->pinned, z->control, sizeof *z->pinned));
    return zp_ctx_check(z, zp_device_record_event(&z->compute, z->reported));
}

/* Reads the last report, which has arrived. After an aborted agreement it returns the error. */
static zero_result zp_step_read_report(zero_ctx *z) {
    z->report = *z->pinned;
    ZP_TRY(zp_ctx_check(z, ZERO_OK));
    return z->report.differs ? zp_ctx_report_difference(z) : ZERO_OK;
}
/* Waits for the last report. SYNC. */
static zero_result zp_step_wait_report(zero_ctx *z) {
    ZP_DO(z, zp_device_sync_event(&z->device, z->reported)); /* also after an abort */
    return zp_step_read_report(z);
}

/* ---- the stations ---- */

static zero_result zp_step_wait_passed(zero_ctx *z) {
    ZP_TRY(zp_device_record_event(&z->compute, z->passed)); /* no more reads of parameters */
    return zp_device_wait_event(&z->stream[ZP_GRADIENTS], z->passed);
}

/* A row may replace zp_verdict_agree, for two contexts that agree together. */
static zero_result zp_step_agree(zero_ctx *z) { return z->agree(z); }

/* Your code may never ask for a step's result. If ranks differ, a later zero_step therefore returns
   the error, as soon as the report has arrived. */
static zero_result zp_step_check_report(zero_ctx *z) {
    const int arrived = z->stepped && zp_device_event_passed(z->reported);
    return arrived ? zp_step_read_report(z) : ZERO_OK;
}

/* An evaluation after zero_reduce reads mapped weights of peers. The update waits for it. Rare. */
static zero_result zp_step_wait_evaluations(zero_ctx *z) {
    if (!z->peers_read) return ZERO_OK;
    z->peers_read = 0;
    ZP_TRY(zp_device_sync_stream(&z->compute));
    return zp_comm_barrier(z->data);
}

/* Decides by the agreement whether to update. The communication does not depend on this, so ranks
   that called different functions still meet at the next verdict. */
static zero_result zp_step_decide(zero_ctx *z) {
    const zp_kernel_decide_args decide = {z->control, z->hyper, z->cfg.scaler,
                                          !z->cfg.no_overflow_check, z->step_call == 2};
    ZP_TRY(zp_device_wait_event(&z->compute, z->agreed));
    return zp_kernel_decide(&z->compute, &decide, 1);
}

static zero_result zp_step_count(zero_ctx *z) {
    z->stepped = 1;
    z->taken++;
    z->phase = ZP_IDLE;
    return ZERO_OK;
}

static int zp_step_is_prompt(const zero_ctx *z) { return !z->updates_overlap; }
static zero_result zp_step_publish_unit(zero_ctx *z, int u) {
    return zp_gather_publish_update(z, u, zp_step_stream(z, u));
}
static zero_result zp_step_deliver_events(zero_ctx *z) {
    zp_events_deliver(z->device.recorder);
    return ZERO_OK;
}

/* The core's stations of zero_reduce, then of zero_step. */
static const zp_station zp_step_stations[] = {
    {ZP_AT_PASSED, ZP_EACH_AGREEMENT, NULL, NULL, zp_step_wait_passed},
    {ZP_AT_AGREE, ZP_EACH_AGREEMENT, NULL, NULL, zp_step_agree},

    {ZP_AT_LAST_REPORT, ZP_EACH_STEP, NULL, NULL, zp_step_check_report},
    {ZP_AT_EVALUATIONS, ZP_EACH_STEP, NULL, NULL, zp_step_wait_evaluations},
    {ZP_AT_DECIDE, ZP_EACH_STEP, NULL, NULL, zp_step_decide},
    {ZP_AT_REPORT, ZP_EACH_STEP, NULL, NULL, zp_step_send_report},
    {ZP_AT_COUNT, ZP_EACH_STEP, NULL, NULL, zp_step_count},
    {ZP_AT_UPDATE, ZP_EACH_STEP, NULL, zp_step_update_unit, NULL},
    {ZP_AT_PUBLISH, ZP_EACH_STEP, zp_step_is_prompt, zp_step_publish_unit, NULL},
    {ZP_AT_FORGET, ZP_EACH_STEP, zp_step_is_prompt, NULL, zp_gather_forget_all},
    {ZP_AT_NOTE_WEIGHTS, ZP_EACH_STEP, NULL, NULL, zp_observe_parameters_changed},
    {ZP_AT_DELIVER, ZP_EACH_STEP, NULL, NULL, zp_step_deliver_events},
    ZP_LAST_STATION};

/* The tables of the core: the way of a gradient, of a parameter, and of a step. */
static const zp_station *const zp_step_walks[] = {zp_reduce_stations, zp_gather_stations,
                                                  zp_step_stations, NULL};

/* Runs n neighbouring stations of units, unit by unit in the order of updates. */
static zero_result zp_step_walk_units(zero_ctx *z, const zp_station *const *station, int n) {
    for (int i = 0; i < z->layout.all; i++)
        for (int k = 0; k < n; k++) ZP_DO(z, station[k]->unit(z, zp_ctx_nth_update(z, i)));
    return ZERO_OK;
}

static zero_result zp_step_walk(zero_ctx *z, zp_walk_kind kind) {
    const zp_walk *w = &z->walk[kind];
    for (int i = 0, n; i < w->n; i += n + !n) {
        for (n = 0; i + n < w->n && w->station[i + n]->unit;) n++;
        ZP_DO(z, n ? zp_step_walk_units(z, &w->station[i], n) : w->station[i]->once(z));
    }
    return ZERO_OK;
}

/* `step_call` 1: a step with h; 2: your code skips the step. */
static zero_result zp_step_run(zero_ctx *z, int step_call, const zero_hyper *h) {
    z->step_call = step_call;
    z->hyper = *h;
    z->rule_pass = 0;
    return zp_step_walk(z, ZP_STEP_WALK);
}

/* step.h - skip, clip, update

   One function for all stages: a range to update, and a gather or none. */
#pragma once

#include "pass.h"

static zero_result zp_update_unit(zero_ctx *z, int u, const zero_hyper *h) {
    enum { STATE = 3, LIST = STATE + ZP_STATES };
    zp_array *list[LIST] = {zp_update_gradient(z), &z->array[ZP_PARAM], &z->array[ZP_MASTER]};
    char *at[LIST];
    zp_stream *s = &z->compute;
    zp_update a;
    for (int i = 0; i < ZP_STATES; i++) list[STATE + i] = &z->array[ZP_STATE + i];
    /* a gather that an evaluation left under way */
    ZP_DO(z, zp_event_wait(s, z->live[u].gathered));
    if (!z->live[u].spans) return ZERO_OK;
    for (int i = 0; i < LIST; i++)
        ZP_DO(z, zp_array_open(list[i], u, zp_own(z, u)->first, s, &at[i]));
    memset(&a, 0, sizeof a);
    a.g = at[0];
    a.p = at[1];
    a.master = (float *)(void *)at[2];
    for (int i = 0; i < ZP_STATES; i++) a.state[i] = (float *)(void *)at[STATE + i];
    a.control = z->control;
    a.spans = z->spans + (z->layout.unit[u].member - z->layout.members);
    a.nspans = z->live[u].spans;
    a.type = z->cfg.type;
    a.grad_type = z->array[ZP_GRAD].type;
    a.lr = h->lr;
    a.beta1 = h->beta1;
    a.beta2 = h->beta2;
    a.eps = h->eps;
    a.decay = h->weight_decay;
    a.stochastic = z->cfg.no_master;
    a.key[1] = zp_mix((uint32_t)z->cfg.seed ^ zp_mix((uint32_t)(z->cfg.seed >> 32)));
    ZP_DO(z, z->rule->update(s, &a, zp_own(z, u)->numel / ZP_WIDE));
    for (int i = 0; i < LIST; i++) ZP_DO(z, zp_array_close(list[i], u, s, i > 0));
    return ZERO_OK;
}

/* Parameters from the weights that were put. */
static zero_result zp_update_from_master(zero_ctx *z, int u) {
    zp_array *master = &z->array[ZP_MASTER], *param = &z->array[ZP_PARAM];
    const zp_kept *own = zp_own(z, u);
    char *from, *to;
    if (!master->share) return ZERO_OK;
    ZP_DO(z, zp_array_open(master, u, own->first, &z->compute, &from));
    ZP_DO(z, zp_array_open(param, u, own->first, &z->compute, &to));
    const zp_fetch_args a = {from, to, ZERO_F32, param->type, NULL, 0};
    ZP_DO(z, zp_fetch(&z->compute, &a, own->numel));
    ZP_DO(z, zp_array_close(master, u, &z->compute, 0));
    return zp_check(z, zp_array_close(param, u, &z->compute, 1));
}

/* By a step, or, hyper NULL, from the weights. A unit that lies whole is gathered at once,
   any other when a pass asks for it. */
static zero_result zp_update_all(zero_ctx *z, const zero_hyper *hyper) {
    for (int i = 0; i < z->layout.all; i++) {
        const int u = zp_unit_nth(&z->layout, i);
        const int gathers = z->policy.state == ZP_SHARD && zp_unit_whole(z, ZP_PARAM, u);
        ZP_TRY(hyper ? zp_update_unit(z, u, hyper) : zp_update_from_master(z, u));
        ZP_DO(z, zp_event_record(&z->compute, z->live[u].updated));
        if (gathers && z->layout.unit[u].numel) ZP_TRY(zp_gather(z, u));
    }
    zp_pool_forget(&z->pool[ZP_PARAM]); /* gathered values are old now */
    return ZERO_OK;
}

/* Enqueues the way of what was agreed, and decided, to the host. */
static zero_result zp_report_send(zero_ctx *z) {
    ZP_DO(z, zp_copy(&z->compute, z->pinned, z->control, sizeof *z->pinned));
    return zp_check(z, zp_event_record(&z->compute, z->reported));
}

/* Waits for the last report. SYNC. */
static zero_result zp_report(zero_ctx *z) {
    ZP_DO(z, zp_event_sync(&z->device, z->reported)); /* an aborted collective ends as well */
    z->report = *z->pinned;
    return z->report.differs ? zp_differs(z) : ZERO_OK;
}

/* Decides by what was agreed, and updates or not. `said` 1: a step with h; 2: it is dropped. What
   is communicated is the same whatever is decided, so that ranks which called different functions
   meet again, at the next verdict. */
static zero_result zp_step_take(zero_ctx *z, int said, const zero_hyper *h) {
    const zp_decide_args decide = {z->control, *h, z->cfg.scaler, !z->cfg.no_overflow_check,
                                   said == 2};
    if (z->looked) { /* rare: the update waits until nobody reads what it changes */
        ZP_DO(z, zp_stream_sync(&z->compute));
        ZP_DO(z, zp_barrier(z->data));
        z->looked = 0;
    }
    ZP_DO(z, zp_event_wait(&z->compute, z->agreed));
    ZP_DO(z, zp_decide(&z->compute, &decide, 1));
    ZP_TRY(zp_report_send(z));
    z->said = said;
    z->hyper = zp_rule_reads(z->rule, *h);
    z->stepped = 1;
    z->phase = ZP_IDLE;
    ZP_TRY(zp_update_all(z, h));
    return zp_checks_seal(z, 0);
}

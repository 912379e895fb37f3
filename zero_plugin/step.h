/* step.h - skip, clip, update

   One function for all stages: a range to update, and a gather or none. */
#pragma once

#include "pass.h"

/* Elements [from, from + n) of what this rank updates of unit u; at: master and state, where they
   lie, from element `from` on. */
static zero_result zp_update_piece(zero_ctx *z, int u, const zero_hyper *h, size_t from, size_t n,
                                   char *const *at) {
    const size_t first = zp_own(z, u)->first, skipped = from * sizeof(float);
    zp_array *gradient = zp_update_gradient(z), *param = &z->array[ZP_PARAM];
    char *g, *p;
    zp_update a;
    size_t all = n;
    ZP_TRY(zp_array_open(gradient, u, first, &all, &z->compute, &g));
    ZP_TRY(zp_array_open(param, u, first, &all, &z->compute, &p));
    memset(&a, 0, sizeof a);
    a.g = g;
    a.p = p;
    if (at[0]) a.master = (float *)(uintptr_t)((uintptr_t)at[0] - skipped);
    for (int i = 0; i < ZP_STATES; i++)
        if (at[1 + i]) a.state[i] = (float *)(uintptr_t)((uintptr_t)at[1 + i] - skipped);
    a.begin = from;
    a.end = from + n;
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
    return z->rule->update(&z->compute, &a, n / ZP_WIDE);
}

/* From a disk: piece by piece, unless there is nothing to update, which the host knows where it
   computes. */
static zero_result zp_update_ringed(zero_ctx *z, int u, const zero_hyper *h) {
    const size_t numel = zp_own(z, u)->numel, piece = ZP_PIECE_BYTES / sizeof(float);
    char *at[ZP_RINGED];
    for (size_t from = 0; from < numel && !z->control->skip; from += piece) {
        ZP_TRY(zp_ring_open(&z->ring, at));
        ZP_TRY(zp_update_piece(z, u, h, from, zp_min(piece, numel - from), at));
        zp_ring_close(&z->ring);
    }
    return ZERO_OK;
}

static zero_result zp_update_unit(zero_ctx *z, int u, const zero_hyper *h) {
    const zp_kept *own = zp_own(z, u);
    zp_array *list = &z->array[ZP_MASTER];
    char *at[ZP_RINGED];
    size_t n = own->numel;
    /* a gather that an evaluation left under way */
    ZP_DO(z, zp_event_wait(&z->compute, z->live[u].gathered));
    if (z->ring.memory) return zp_check(z, zp_update_ringed(z, u, h));
    if (!z->live[u].spans) return ZERO_OK;
    for (int i = 0; i < ZP_RINGED; i++)
        ZP_DO(z, zp_array_open(&list[i], u, own->first, &n, &z->compute, &at[i]));
    ZP_DO(z, zp_update_piece(z, u, h, 0, n, at));
    for (int i = 0; i < ZP_RINGED; i++)
        ZP_DO(z, zp_array_close(&list[i], u, own->first, &z->compute, 1));
    return ZERO_OK;
}

/* Parameters from the weights that were put. */
static zero_result zp_update_from_master(zero_ctx *z, int u) {
    zp_array *master = &z->array[ZP_MASTER], *param = &z->array[ZP_PARAM];
    const zp_kept *own = zp_own(z, u);
    char *from, *to;
    for (size_t e = own->first, n; e < own->first + own->numel && master->share; e += n) {
        n = own->first + own->numel - e;
        ZP_DO(z, zp_array_open(master, u, e, &n, &z->compute, &from));
        ZP_DO(z, zp_array_open(param, u, e, &n, &z->compute, &to));
        const zp_fetch_args a = {from, to, ZERO_F32, param->type, NULL, 0};
        ZP_DO(z, zp_fetch(&z->compute, &a, n));
        ZP_DO(z, zp_array_close(master, u, e, &z->compute, 0));
        ZP_DO(z, zp_array_close(param, u, e, &z->compute, 1));
    }
    return ZERO_OK;
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

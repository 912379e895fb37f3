/* step.h - skip, clip, update

   One function for all stages: a range to update, and a gather or none. A unit of which something
   is kept elsewhere than on the device, and any unit where updates are delayed, is updated APART,
   by a task of the stream `updates`, while the next forward runs: who waits for it is its gather,
   or, where there is none, its next begin. */
#pragma once

#include "hooks.h"

/* Elements [from, from + n) of what this rank updates of unit u. at: in the ring's order, where the
   arrays' elements from `from` on lie; NULL: there is none. */
static zp_update zp_step_make_update(const zero_ctx *z, int u, const zero_hyper *h,
                                     const zp_control *control, size_t from, size_t n,
                                     char *const *at) {
    char *begin[ZP_UPDATED_ARRAYS]; /* of the arrays, which count from the same origin */
    zp_update a;
    for (int k = 0; k < ZP_UPDATED_ARRAYS; k++) {
        const zero_type type = k == ZP_UPDATED_PARAM  ? z->cfg.type
                               : k == ZP_UPDATED_MEAN ? z->array[ZP_MEAN].type
                                                      : ZERO_F32;
        const uintptr_t skipped = from * zp_type_bytes(type);
        begin[k] = at[k] ? (char *)((uintptr_t)at[k] - skipped) : NULL;
    }
    memset(&a, 0, sizeof a);
    a.p = begin[ZP_UPDATED_PARAM];
    a.g = begin[ZP_UPDATED_MEAN];
    a.master = (float *)(void *)begin[ZP_UPDATED_MASTER];
    for (int i = 0; i < ZP_STATES; i++)
        a.state[i] = (float *)(void *)begin[ZP_UPDATED_MASTER + 1 + i];
    a.begin = from;
    a.end = from + n;
    a.control = control;
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
    if (z->rule->passes > 1) zp_extra_fill_update(z, u, zp_ctx_own_part(z, u)->first, &a);
    a.key[1] =
        zp_optimizer_mix((uint32_t)z->cfg.seed ^ zp_optimizer_mix((uint32_t)(z->cfg.seed >> 32)));
    return a;
}

static zp_stream *zp_step_stream(zero_ctx *z, int u) {
    return z->live[u].apart ? &z->updates : &z->compute;
}

/* The updater of units whose arrays all lie on the device. */
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

static zero_result zp_step_update_unit(zero_ctx *z, int u, int pass, const zero_hyper *h) {
    if (!zp_ctx_own_part(z, u)->numel) return ZERO_OK;
    zp_stream *s = zp_step_stream(z, u);
    /* an evaluation may have left a gather under way */
    ZP_DO(z, zp_device_wait_event(s, z->live[u].gathered));
    zp_record *r =
        zp_device_begin_slice(s, ZERO_EVENT_UPDATE, u, zp_array_part_bytes(&z->array[ZP_PARAM], u));
    ZP_TRY(z->live[u].update(z, u, pass, h));
    zp_device_end_slice(s, r);
    return ZERO_OK;
}

/* One pass of the rule over unit u, with what a rule of two does before and behind it. */
static zero_result zp_step_update_pass(zero_ctx *z, int u, int pass, const zero_hyper *h) {
    zp_stream *s = zp_step_stream(z, u);
    const int several = z->rule->passes > 1;
    if (several) ZP_TRY(zp_extra_before_update(z, u, pass, s));
    ZP_TRY(zp_step_update_unit(z, u, pass, h));
    return several ? zp_extra_after_update(z, u, pass, s) : ZERO_OK;
}
/* The first pass of two over all units, and what is made of whole tensors then. */
static zero_result zp_step_update_first(zero_ctx *z, const zero_hyper *h) {
    for (int i = 0; i < z->layout.all; i++)
        ZP_TRY(zp_step_update_pass(z, zp_ctx_nth_update(z, i), 0, h));
    return zp_extra_between_passes(z);
}

/* Copies this rank's part of unit u from one array to another, as the other one's type. */
static zero_result zp_step_copy_weights(zero_ctx *z, int u, zp_array *from, zp_array *to) {
    const zp_array_part *own = zp_ctx_own_part(z, u);
    const int straight = from->type == to->type;
    const int staged = from->part[u].tier && !zp_device_is_host() && !to->part[u].tier && !straight;
    char *source, *target, *stage = z->data->stage.base;
    for (size_t e = own->first, n; e < own->first + own->numel; e += n) {
        n = own->first + own->numel - e;
        if (staged) n = zp_min(n, ZP_STAGE_NUMEL);
        ZP_DO(z, zp_array_open(from, u, e, &n, &z->compute, &source));
        ZP_DO(z, zp_array_open(to, u, e, &n, &z->compute, &target));
        const zp_kernel_convert_args a = {
            source, staged ? stage : target, from->type, to->type, NULL, 0};
        const char *copied = straight ? source : stage;
        if (!straight) ZP_DO(z, z->convert(z, from, u, &a, n));
        if (straight || staged)
            ZP_DO(z, zp_device_copy(&z->compute, target, copied, n * zp_type_bytes(to->type)));
        ZP_DO(z, zp_array_close(from, u, e, &z->compute, 0));
        ZP_DO(z, zp_array_close(to, u, e, &z->compute, 1));
    }
    return ZERO_OK;
}

/* Parameters from the weights that were put. */
static zero_result zp_step_from_master(zero_ctx *z, int u) {
    zp_array *master = &z->array[ZP_MASTER], *newest = zp_ctx_newest(z, u);
    z->live[u].old_next = !z->pending;
    if (master->share) ZP_TRY(zp_step_copy_weights(z, u, master, newest));
    if (!z->pending || z->put_seen) return ZERO_OK;
    return zp_step_copy_weights(z, u, newest, zp_ctx_weights(z, u));
}

static zero_result zp_step_publish(zero_ctx *z, int u, zp_stream *s, int made) {
    (void)made;
    return zp_gather_publish_update(z, u, s);
}
static zero_result zp_step_convert(zero_ctx *z, const zp_array *a, int u,
                                   const zp_kernel_convert_args *args, size_t n) {
    (void)a, (void)u;
    return zp_kernel_convert(&z->compute, args, n);
}

/* By a step, or, hyper NULL, from the weights. */
static zero_result zp_step_update_all(zero_ctx *z, const zero_hyper *hyper) {
    const int delayed = hyper && zp_ctx_is_delayed(z) && z->taken >= z->cfg.delay_from;
    const int last = z->rule->passes - 1;
    if (hyper && last) ZP_TRY(zp_step_update_first(z, hyper));
    z->delayed = delayed;
    if (!hyper) ZP_TRY(zp_extra_before_put(z));
    for (int i = 0; i < z->layout.all; i++) {
        const int u = zp_ctx_nth_update(z, i);
        zp_stream *s = hyper ? zp_step_stream(z, u) : &z->compute;
        ZP_TRY(hyper ? zp_step_update_pass(z, u, last, hyper) : zp_step_from_master(z, u));
        ZP_TRY(z->publish(z, u, s, hyper != NULL));
    }
    if (hyper) z->pending = delayed;
    if (!hyper) zp_extra_wrote(z, NULL);
    if (!delayed) zp_gather_forget_all(z);
    return ZERO_OK;
}

/* Enqueues the way of what was agreed, and decided, to the host. */
static zero_result zp_step_send_report(zero_ctx *z) {
    ZP_DO(z, zp_device_copy(&z->compute, z->pinned, z->control, sizeof *z->pinned));
    return zp_ctx_check(z, zp_device_record_event(&z->compute, z->reported));
}

/* Takes the last report, which has come; that of an aborted agreement is none. */
static zero_result zp_step_take_report(zero_ctx *z) {
    z->report = *z->pinned;
    ZP_TRY(zp_ctx_check(z, ZERO_OK));
    return z->report.differs ? zp_ctx_report_difference(z) : ZERO_OK;
}
/* Waits for the last report. SYNC. */
static zero_result zp_step_wait_report(zero_ctx *z) {
    ZP_DO(z,
          zp_device_sync_event(&z->device, z->reported)); /* an aborted collective ends as well */
    return zp_step_take_report(z);
}

/* Decides by what was agreed, and updates or not. `said` 1: a step with h; 2: it is dropped. What
   is communicated is the same whatever is decided, so that ranks which called different functions
   meet again, at the next verdict. */
static zero_result zp_step_run(zero_ctx *z, int said, const zero_hyper *h) {
    const zp_kernel_decide_args decide = {z->control, *h, z->cfg.scaler, !z->cfg.no_overflow_check,
                                          said == 2};
    /* Nobody may ask what becomes of steps: ranks that differ are told by the first report that has
       come when a step is taken. */
    if (z->stepped && zp_device_event_passed(z->reported)) ZP_TRY(zp_step_take_report(z));
    if (z->looked) { /* rare: the update waits until nobody reads what it changes */
        ZP_DO(z, zp_device_sync_stream(&z->compute));
        ZP_DO(z, zp_comm_barrier(z->data));
        z->looked = 0;
    }
    ZP_DO(z, zp_device_wait_event(&z->compute, z->agreed));
    ZP_DO(z, zp_kernel_decide(&z->compute, &decide, 1));
    ZP_TRY(zp_step_send_report(z));
    ZP_TRY(zp_extra_decided(z));
    z->said = said;
    z->hyper = zp_rule_used_hyper(z->rule, *h);
    z->stepped = 1;
    z->taken++;
    z->phase = ZP_IDLE;
    ZP_TRY(zp_step_update_all(z, h));
    ZP_TRY(zp_observe_seal(z));
    zp_events_deliver(z->device.recorder);
    return ZERO_OK;
}

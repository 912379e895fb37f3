/* step.h - skip, clip, update

   All stages use the same functions: a range to update, and a gather or none. The compute stream
   updates units that have all arrays on the device. A row may set another function in
   z->live[u].update, and `on_updates`. Then the stream `updates` updates the unit while the next
   forward runs, and the unit's gather waits for it, or, without a gather, the unit's next begin. */
#pragma once

#include "hooks.h"

/* Returns the update of elements [from, from + n) of this rank's part of unit u. at[ZP_UPDATED_*]:
   the address of element `from` in each array; NULL: the run has no such array. */
static zp_update zp_step_make_update(const zero_ctx *z, int u, const zero_hyper *h,
                                     const zp_control *control, size_t from, size_t n,
                                     char *const *at) {
    char *begin[ZP_UPDATED_ARRAYS]; /* addresses of the arrays' element 0 */
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
    return z->live[u].on_updates ? &z->updates : &z->compute;
}

/* Updates a unit whose arrays are all on the device, on the compute stream. */
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
    /* a gather of an evaluation may still run */
    ZP_DO(z, zp_device_wait_event(s, z->live[u].gathered));
    zp_record *r =
        zp_device_begin_slice(s, ZERO_EVENT_UPDATE, u, zp_array_part_bytes(&z->array[ZP_PARAM], u));
    ZP_TRY(z->live[u].update(z, u, pass, h));
    zp_device_end_slice(s, r);
    return ZERO_OK;
}

/* Runs one pass of the rule over unit u. With several passes, calls the rows before and after. */
static zero_result zp_step_update_pass(zero_ctx *z, int u, int pass, const zero_hyper *h) {
    zp_stream *s = zp_step_stream(z, u);
    const int several = z->rule->passes > 1;
    if (several) ZP_TRY(zp_extra_before_update(z, u, pass, s));
    ZP_TRY(zp_step_update_unit(z, u, pass, h));
    return several ? zp_extra_after_update(z, u, pass, s) : ZERO_OK;
}
/* Runs the first of two passes over all units, then the rows' work on whole tensors. */
static zero_result zp_step_update_first(zero_ctx *z, const zero_hyper *h) {
    for (int i = 0; i < z->layout.all; i++)
        ZP_TRY(zp_step_update_pass(z, zp_ctx_nth_update(z, i), 0, h));
    return zp_extra_between_passes(z);
}

/* Converts n values of an open range of unit u in array a. */
static zero_result zp_step_convert(zero_ctx *z, const zp_array *a, int u,
                                   const zp_kernel_convert_args *args, size_t n) {
    const zp_tier *t = zp_array_tier(a, u);
    return t->convert ? t->convert(z, args, n) : zp_kernel_convert(&z->compute, args, n);
}

/* Copies this rank's part of unit u from one array to another, and converts it to the target's
 * type. */
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
        if (!straight) ZP_DO(z, zp_step_convert(z, from, u, &a, n));
        if (straight || staged)
            ZP_DO(z, zp_device_copy(&z->compute, target, copied, n * zp_type_bytes(to->type)));
        ZP_DO(z, zp_array_close(from, u, e, &z->compute, 0));
        ZP_DO(z, zp_array_close(to, u, e, &z->compute, 1));
    }
    return ZERO_OK;
}

/* Computes unit u's parameters from the master weights that your code put. */
static zero_result zp_step_from_master(zero_ctx *z, int u) {
    zp_array *master = &z->array[ZP_MASTER], *newest = zp_ctx_newest(z, u);
    if (master->share) ZP_TRY(zp_step_copy_weights(z, u, master, newest));
    if (!z->pending || z->put_seen) return ZERO_OK;
    return zp_step_copy_weights(z, u, newest, zp_ctx_weights(z, u));
}

static zero_result zp_step_publish(zero_ctx *z, int u, zp_stream *s, int made) {
    (void)made;
    return zp_gather_publish_update(z, u, s);
}

/* Updates all units by a step, or, if hyper is NULL, from the master weights. */
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
    if (!hyper) zp_extra_wrote(z, NULL, -1);
    if (!delayed) zp_gather_forget_all(z);
    return ZERO_OK;
}

/* Enqueues the copy of the agreement and the decision from the device to host memory. */
static zero_result zp_step_send_report(zero_ctx *z) {
    ZP_DO(z, zp_device_copy(&z->compute, z->pinned, z->control, sizeof *z->pinned));
    return zp_ctx_check(z, zp_device_record_event(&z->compute, z->reported));
}

/* Reads the last report, which has arrived. After an aborted agreement it returns the error. */
static zero_result zp_step_take_report(zero_ctx *z) {
    z->report = *z->pinned;
    ZP_TRY(zp_ctx_check(z, ZERO_OK));
    return z->report.differs ? zp_ctx_report_difference(z) : ZERO_OK;
}
/* Waits for the last report. SYNC. */
static zero_result zp_step_wait_report(zero_ctx *z) {
    ZP_DO(z, zp_device_sync_event(&z->device, z->reported)); /* also after an abort */
    return zp_step_take_report(z);
}

/* Decides by the agreement whether to update. `said` 1: a step with h; 2: your code skips the step.
   The communication does not depend on this, so ranks that called different functions still meet
   at the next verdict. */
static zero_result zp_step_run(zero_ctx *z, int said, const zero_hyper *h) {
    const zp_kernel_decide_args decide = {z->control, *h, z->cfg.scaler, !z->cfg.no_overflow_check,
                                          said == 2};
    /* Your code may never ask for a step's result. If ranks differ, a later zero_step therefore
       returns the error, as soon as the report has arrived. */
    if (z->stepped && zp_device_event_passed(z->reported)) ZP_TRY(zp_step_take_report(z));
    if (z->looked) { /* rare: the update waits until no rank reads the weights */
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

/* step.h - skip, clip, update

   One function for all stages: a range to update, and a gather or none. A unit of which something
   is kept elsewhere than on the device, and any unit where updates are delayed, is updated APART,
   by a task of the stream `updates`, while the next forward runs: who waits for it is its gather,
   or, where there is none, its next begin. */
#pragma once

#include "hooks.h"
#include "../offload/gpu_update.h"

/* Elements [from, from + n) of what this rank updates of unit u. at: in the ring's order, where the
   arrays' elements from `from` on lie; NULL: there is none. */
static zp_update zp_step_make_update(const zero_ctx *z, int u, const zero_hyper *h,
                                     const zp_control *control, size_t from, size_t n,
                                     char *const *at) {
    char *begin[ZP_RINGED]; /* of the arrays, which count from the same origin */
    zp_update a;
    for (int k = 0; k < ZP_RINGED; k++) {
        const uintptr_t skipped = from * zp_type_bytes(z->ring.turn[k].array->type);
        begin[k] = at[k] ? (char *)((uintptr_t)at[k] - skipped) : NULL;
    }
    memset(&a, 0, sizeof a);
    a.p = begin[ZP_RING_PARAM];
    a.g = begin[ZP_RING_MEAN];
    a.master = (float *)(void *)begin[ZP_RING_MASTER];
    for (int i = 0; i < ZP_STATES; i++) a.state[i] = (float *)(void *)begin[ZP_RING_MASTER + 1 + i];
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

/* A task of the stream `updates`: one unit, piece by piece, unless there is nothing to update. */
typedef struct zp_apart_args {
    zero_ctx *z;
    int unit, pass;
    zero_hyper hyper;
    zp_control control; /* the device's may be of the next step already */
} zp_apart_args;

/* Weights were written by name: an update goes on from them. (In the file it reads them there.) */
static void zp_step_renew_next(zero_ctx *z, int u) {
    z->live[u].old_next = 0;
    if (!zp_array_in_file(&z->array[ZP_NEXT], u)) zp_gather_copy_next(z, u, ZP_NEXT, ZP_PARAM);
}

static void zp_step_update_task(const void *args, size_t numel, int threads) {
    const zp_apart_args *a = (const zp_apart_args *)args;
    zero_ctx *z = a->z;
    zp_file_ring *r = &z->ring;
    const size_t first = zp_ctx_own_part(z, a->unit)->first;
    char *at[ZP_RINGED];
    const zp_control *control = zp_cpu_update_is_on(z) ? z->host.control : &a->control;
    if (control->skip) return;
    const zp_rule *rule = z->rule;
    const int first_pass = a->pass == 0, last_pass = a->pass + 1 == rule->passes;
    if (first_pass && zp_ctx_keeps_next(z) && z->live[a->unit].old_next)
        zp_step_renew_next(z, a->unit);
    r->ready = (r->used / r->stops + 1) * r->stops;
    for (size_t from = 0; from < numel; from += ZP_PIECE_NUMEL) {
        const size_t n = zp_min(ZP_PIECE_NUMEL, numel - from);
        if (zp_file_ring_open(r, a->unit, first + from, n, at)) return; /* the context has failed */
        zp_update update = zp_step_make_update(z, a->unit, &a->hyper, control, from, n, at);
        if (zp_cpu_update_is_on(z)) update.spans = zp_cpu_update_spans(z, a->unit);
        for (int k = zp_rule_first(rule, a->pass); k < zp_rule_last(rule, a->pass); k++)
            rule->loop[k](&update, n / ZP_WIDE, threads);
        zp_file_ring_close(r);
    }
    if (last_pass) z->live[a->unit].rounds ^= 1;
}

/* The ring reads ahead, while the last micro-step is reduced. */
static void zp_step_fill_task(const void *ring, size_t n, int threads) {
    zp_file_ring *r;
    memcpy(&r, ring, sizeof r);
    zp_file_ring_fill(r);
}
static zero_result zp_step_fill_ring(zero_ctx *z) {
    zp_file_ring *r = &z->ring;
    return zp_ctx_check(z, zp_device_push_task(&z->updates, zp_step_fill_task, &r, sizeof r, 1));
}

static zp_stream *zp_step_stream(zero_ctx *z, int u) {
    return z->live[u].apart ? &z->updates : &z->compute;
}

/* Enqueues a pass over a unit whose state goes through the GPU. */
static zero_result zp_step_update_through(zero_ctx *z, int u, int pass, const zero_hyper *h) {
    const zp_rule *rule = z->rule;
    const size_t numel = zp_ctx_own_part(z, u)->numel;
    char *at[ZP_RINGED];
    for (size_t from = 0; from < numel; from += ZP_GPU_UPDATE_NUMEL) {
        const size_t n = zp_min(ZP_GPU_UPDATE_NUMEL, numel - from);
        ZP_DO(z, zp_gpu_update_open(z, u, from, n, at));
        const zp_update update = zp_step_make_update(z, u, h, z->control, from, n, at);
        const int last = z->live[u].spans ? zp_rule_last(rule, pass) : 0; /* padding keeps turns */
        for (int k = zp_rule_first(rule, pass); k < last; k++)
            ZP_DO(z, rule->update[k](&z->updates, &update, n / ZP_WIDE));
        ZP_DO(z, zp_gpu_update_close(z, u, from, n));
    }
    return ZERO_OK;
}

static zero_result zp_step_update_unit(zero_ctx *z, int u, int pass, const zero_hyper *h) {
    const zp_rule *rule = z->rule;
    const zp_array_part *own = zp_ctx_own_part(z, u);
    if (!own->numel) return ZERO_OK;
    zp_stream *s = zp_step_stream(z, u);
    const uint64_t bytes = zp_array_part_bytes(&z->array[ZP_PARAM], u);
    zp_record *r;
    char *at[ZP_RINGED];
    /* a gather that an evaluation left under way */
    ZP_DO(z, zp_device_wait_event(s, z->live[u].gathered));
    if (z->live[u].apart && z->host.through) {
        r = zp_device_begin_slice(s, ZERO_EVENT_UPDATE, u, bytes);
        ZP_TRY(zp_step_update_through(z, u, pass, h));
        zp_device_end_slice(s, r);
        return ZERO_OK;
    }
    if (z->live[u].apart) {
        const zp_apart_args a = {z, u, pass, *h, *zp_cpu_update_decision(z)};
        r = zp_device_begin_slice(s, ZERO_EVENT_UPDATE, u, bytes);
        ZP_DO(z, zp_device_push_task(s, zp_step_update_task, &a, sizeof a, own->numel));
        zp_device_end_slice(s, r);
        if (zp_cpu_update_is_on(z)) zp_lane_record(&s->lane, &z->live[u].task);
        const int pending = zp_ctx_is_delayed(z) || pass + 1 < rule->passes;
        return pending ? ZERO_OK : zp_ctx_check(z, zp_cpu_update_copy_up(z, u));
    }
    if (!z->live[u].spans) return ZERO_OK;
    zp_array *param = &z->array[ZP_PARAM], *gradient = zp_ctx_update_gradient(z);
    for (int k = 0; k < ZP_RINGED; k++)
        at[k] = zp_array_at(k == ZP_RING_PARAM  ? param
                            : k == ZP_RING_MEAN ? gradient
                                                : z->ring.turn[k].array,
                            u, own->first);
    const zp_update update = zp_step_make_update(z, u, h, z->control, 0, own->numel, at);
    r = zp_device_begin_slice(s, ZERO_EVENT_UPDATE, u, bytes);
    for (int k = zp_rule_first(rule, pass); k < zp_rule_last(rule, pass); k++)
        ZP_DO(z, rule->update[k](s, &update, own->numel / ZP_WIDE));
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

/* Parameters from the weights that were put. */
static zero_result zp_step_from_master(zero_ctx *z, int u) {
    zp_array *master = &z->array[ZP_MASTER], *param = zp_ctx_weights(z, u);
    const zp_array_part *own = zp_ctx_own_part(z, u);
    const int staged = master->part[u].tier && !zp_device_is_host() && !param->part[u].tier;
    char *from, *to, *stage = z->data->stage.base;
    z->live[u].old_next = 1;
    for (size_t e = own->first, n; e < own->first + own->numel && master->share; e += n) {
        n = own->first + own->numel - e;
        if (staged) n = zp_min(n, ZP_STAGE_NUMEL);
        ZP_DO(z, zp_array_open(master, u, e, &n, &z->compute, &from));
        ZP_DO(z, zp_array_open(param, u, e, &n, &z->compute, &to));
        const zp_kernel_convert_args a = {from, staged ? stage : to, ZERO_F32, param->type, NULL,
                                          0};
        ZP_DO(z, zp_cpu_update_convert(z, master, u, &a, n));
        if (staged)
            ZP_DO(z, zp_device_copy(&z->compute, to, stage, n * zp_type_bytes(param->type)));
        ZP_DO(z, zp_array_close(master, u, e, &z->compute, 0));
        ZP_DO(z, zp_array_close(param, u, e, &z->compute, 1));
    }
    return ZERO_OK;
}

/* By a step, or, hyper NULL, from the weights. */
static zero_result zp_step_update_all(zero_ctx *z, const zero_hyper *hyper) {
    const int delayed = hyper && zp_ctx_is_delayed(z) && z->taken >= z->cfg.delay_from;
    const int last = z->rule->passes - 1;
    if (hyper && last) ZP_TRY(zp_step_update_first(z, hyper));
    for (int i = 0; i < z->layout.all; i++) {
        const int u = zp_ctx_nth_update(z, i);
        zp_stream *s = hyper ? zp_step_stream(z, u) : &z->compute;
        ZP_TRY(hyper ? zp_step_update_pass(z, u, last, hyper) : zp_step_from_master(z, u));
        if (zp_ctx_is_delayed(z)) ZP_DO(z, zp_device_record_event(s, z->live[u].spent));
        if (!hyper || !zp_ctx_is_delayed(z))
            ZP_TRY(zp_gather_publish_update(z, u, s));
        else if (!delayed && z->layout.unit[u].numel)
            ZP_TRY(zp_gather_swap_in(z, u, z->agreed));
    }
    z->pending = delayed;
    if (!hyper) zp_file_ring_forget(&z->ring);
    if (!hyper) zp_cpu_update_note_write(z, &z->array[ZP_PARAM]);
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
    ZP_DO(z, zp_cpu_update_begin(z));
    ZP_DO(z, zp_gpu_update_begin(z));
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

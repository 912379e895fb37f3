/* life.h - functions of the header: the life of a context, hooks, steps, local ranks */
#pragma once

#include "../core/build.h"
#include "../core/hooks.h"
#include "../core/step.h"
#include "../core/runs.h"
#include "../extras/table.h"

#include "../comm/transport.h"

const char *zero_version(void) { return ZERO_VERSION; }
int zero_abi(void) { return ZERO_ABI; }

const char *zero_result_string(zero_result result) {
#define ZP_RESULT_STRING(name, sentence) sentence,
    static const char *const strings[] = {ZERO_RESULTS(ZP_RESULT_STRING)};
#undef ZP_RESULT_STRING
    return (int)result >= 0 && result < ZERO_RESULT_COUNT ? strings[(int)result] : "no such result";
}

const char *zero_event_name(zero_event_kind kind) {
#define ZP_EVENT_WORD(name, word) word,
    static const char *const words[] = {ZERO_EVENTS(ZP_EVENT_WORD)};
#undef ZP_EVENT_WORD
    return (int)kind >= 0 && kind < ZERO_EVENT_KINDS ? words[(int)kind] : "no such event";
}

zero_result zero_local_create(zero_local **local, int nranks, int shared) {
    if (!local || nranks < 1 || nranks > ZP_LOCAL_MAX) return ZERO_ERR_ARGUMENT;
    *local = NULL;
    void *p = mmap(NULL, sizeof(zero_local), PROT_READ | PROT_WRITE,
                   (shared ? MAP_SHARED : MAP_PRIVATE) | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return ZERO_ERR_MEMORY;
    *local = (zero_local *)p;
    zp_board_make_local(*local, nranks, shared != 0);
    return ZERO_OK;
}

void zero_local_destroy(zero_local *local) {
    if (!local || local->placed) return;
    zp_shared_memory_free_boards(local);
    (void)munmap(local, sizeof *local);
}

void zero_local_abort(zero_local *local, int rank, const char *why) {
    if (local) zp_board_abort(&local->board, rank, ZERO_ERR_PEER, why ? why : "no reason given");
}

/* Joins the ranks, and notifies peers that wait for a rank which cannot join. */
static zero_result zp_life_join(zero_ctx *z, const zp_transport *row, const zero_comm *comm) {
    const char *lacks = zp_transport_explain_missing(comm->kind);
    ZP_REFUSE(z, !row && !lacks, "comm.kind is %d; use a ZERO_COMM_ value", (int)comm->kind);
    if (!row) return zp_ctx_fail(z, ZERO_ERR_UNSUPPORTED, "%s", lacks);
    return zp_extra_open_groups(z, row, comm);
}

/* Resolves the settings and splits the groups. COLLECTIVE if it splits any. */
static zero_result zp_life_resolve(zero_ctx *z) {
    ZP_TRY(zp_extra_resolve_settings(z, zp_table_missing));
    ZP_TRY(zp_plan_check_settings(z));
    ZP_TRY(zp_extra_choose_rule(z));
    ZP_TRY(zp_extra_call(z, ZP_ON_SPLIT));
    ZP_TRY(zp_plan_apply_settings(z));
    return zp_extra_call(z, ZP_ON_CHOSEN);
}

zero_result zero_create(zero_ctx **out, const zero_config *cfg, const zero_comm *comm) {
    if (!out || !cfg || !comm) return ZERO_ERR_ARGUMENT;
    *out = NULL;
    zero_ctx *z = zp_extra_make(zp_table_rows);
    const zp_transport *row = zp_transport_find(comm->kind);
    if (!z && row && row->refuse) row->refuse(comm, "zero_create: no memory for the context");
    if (!z) return ZERO_ERR_MEMORY;
    *out = z;
    z->cfg = *cfg;
    z->maker = getpid();
    z->phase = ZP_NEW;
    z->call = "zero_create";
    z->agreeing = z->data = z->all = &z->group[ZP_ALL];
    z->all->nranks = z->pass_micro_steps = z->ncopies = 1;
    z->open_gradients = zp_build_open_gradients;
    z->agree = zp_verdict_agree;
    zero_result r = zp_extra_call(z, ZP_ON_CREATE);
    if (!r) r = zp_ctx_check(z, zp_device_open(&z->device));
    if (r && row && row->refuse) row->refuse(comm, z->text);
    if (!r) r = zp_life_join(z, row, comm);
    if (!r) r = zp_life_resolve(z); /* on an error, zero_destroy notifies peers */
    z->grads_unstated = !cfg->grads;
    z->accumulation_unstated = !cfg->accumulation;
    if (r) return z->dead = r;
    if (z->all->warning && cfg->log && !z->all->rank)
        cfg->log(cfg->log_user, ZERO_LOG_WARNING, z->all->warning);
    return ZERO_OK;
}

/* Makes the plan of the tensors so far. */
static zero_result zp_life_plan(zero_ctx *z) {
    if (z->phase != ZP_NEW || z->planned) return ZERO_OK;
    ZP_TRY(zp_plan_make(z));
    z->planned = 1;
    return ZERO_OK;
}

zero_result zero_query_plan(zero_ctx *z, zero_plan *plan) {
    ZP_ENTER(z, "zero_query_plan", ZP_ANY, "");
    ZP_REFUSE(z, !plan, "plan is NULL");
    ZP_TRY(zp_life_plan(z));
    *plan = z->plan;
    return ZERO_OK;
}

/* Sets the KEEP unit's memory, which never moves. */
static void zp_life_set_kept_pointers(zero_ctx *z, void *params, void *grads) {
    const int u = z->layout.units;
    zp_pointer_set_unit(z, ZP_PARAM, u, 1, params);
    zp_pointer_set_unit(z, ZP_GRAD, u, 1, grads);
}

static const char *const zp_life_types[ZERO_TYPES] = {"F32", "BF16", "F16"};

zero_result zero_build(zero_ctx *z) {
    ZP_ENTER(z, "zero_build", ZP_NEW, "the context is built already");
    for (int t = 0; t < z->ntensors && !z->pointers_stay; t++)
        ZP_UNTIMELY(z, z->tensors[t].desc.flags & ZERO_INLINE,
                    "tensor %s is INLINE: its array stays yours; call zero_lend instead",
                    z->tensors[t].desc.name);
    ZP_REFUSE(
        z,
        z->grads_unstated && !z->pointers_stay && z->cfg.type != ZERO_F32 && z->cfg.micro_steps > 1,
        "grads is AUTO, but type is %s and micro_steps %d; set it to the type that your backward "
        "writes, F32 or AS_TYPE",
        zp_life_types[z->cfg.type], z->cfg.micro_steps);
    ZP_REFUSE(z, z->row[0], "a row of the table was refused: %s", z->row);
    if (ZERO_CHECK) ZP_TRY(zp_extra_need(z, "check", "ZERO_CHECK is 1"));
    ZP_TRY(zp_agree_compare(z));
    zero_result r = z->ntensors ? ZERO_OK
                                : zp_ctx_fail(z, ZERO_ERR_STATE,
                                              "no tensor was announced; call zero_tensors first");
    if (!r) r = zp_life_plan(z);
    if (!r) r = zp_build_check_units(z);
    if (r) return z->dead = r; /* except MEMORY, all ranks have agreed on the error */
    ZP_TRY(zp_build_allocate(z));
    for (int u = 0; u < z->layout.all; u++) z->live[u].updater = &zp_step_in_place;
    ZP_TRY(zp_extra_call(z, ZP_ON_BUILD));
    ZP_TRY(zp_extra_lay_walks(z, zp_step_walks));
    z->phase = ZP_IDLE;
    zp_life_set_kept_pointers(z, NULL, NULL);
    if (!z->cfg.log || z->all->rank) return ZERO_OK;
    char text[ZP_TEXT_BYTES];
    (void)snprintf(text, sizeof text, "%d tensors of %zu elements, in %d units", z->ntensors,
                   z->plan.numel, z->plan.units);
    z->cfg.log(z->cfg.log_user, ZERO_LOG_INFO, text);
    return ZERO_OK;
}

/* Clears the caller's fields that point to memory that is freed here. */
static void zp_life_end_fields(zero_ctx *z) {
    for (int i = 0; i < 2 * z->ntensors; i++) {
        const zp_tensor *t = &z->tensors[i / 2];
        char *host = (char *)z->adopted[i % 2];
        if (host && !(t->desc.flags & ZERO_BY_SLOT))
            zp_pointer_end_field(host + t->desc.field, t->last_pointer[i % 2]);
    }
}

void zero_destroy(zero_ctx *z) {
    if (!z || z->maker != getpid()) return;
    zp_ctx_set_call(z, "zero_destroy");
    /* if the context failed or is inside a step, peers must not wait for it */
    z->broken =
        z->dead || zp_failure_result(&z->failure)
        || (z->phase == ZP_NEW ? z->text[0] != 0 : !(z->phase & (ZP_IDLE | ZP_REDUCED | ZP_MOVED)));
    /* peers may continue with zero_build: do not delay them for long */
    for (zp_comm *g = z->group; g < z->group + ZP_GROUPS && z->phase == ZP_NEW; g++)
        g->timeout_s = fmin(g->timeout_s, ZP_UNBUILT_S);
    /* first, because this rank's streams wait for it */
    for (zp_comm *g = z->group; g < z->group + ZP_GROUPS && z->broken; g++)
        zp_comm_abort(g, z->text[0] ? z->text : "it gave up its context");
    if (z->broken) zp_extra_call_all(z, ZP_ON_ABORT);
    zp_extra_call_all(z, ZP_ON_ABANDON);
    /* all lanes become idle before one is closed, because they wait for each other's tasks */
    for (int i = 0; i < 2; i++) zp_device_finish_stream(&z->stream[i]);
    zp_device_finish_stream(&z->updates);
    zp_extra_call_all(z, ZP_ON_FINISH);
    zp_life_end_fields(z);
    for (int i = 0; z->live && i < 2 * z->layout.all; i++) /* of a failed step */
        zp_hook_end_slice(z, &z->live[i / 2].slice[i % 2]);
    for (int i = 0; i < 2; i++) zp_device_close_stream(&z->stream[i]);
    zp_device_close_stream(&z->compute);
    zp_device_close_stream(&z->updates);
    for (int i = 0; i < z->nevents; i++) zp_device_close_event(&z->events[i]);
    zp_events_deliver(z->device.recorder); /* the remaining events */
    zp_extra_call_all(z, ZP_ON_DESTROY);
    zp_extra_close_groups(z);
    zp_device_free(z->arena);
    zp_device_free_host(z->pinned);
    zp_plan_close(z);
    for (int t = 0; t < z->ntensors; t++) {
        free((void *)(uintptr_t)z->tensors[t].desc.name);
        free((void *)(uintptr_t)z->tensors[t].desc.frozen);
    }
    void *lists[] = {z->tensors, z->bucket, z->ops, z->events, z->names, z->extents};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) free(lists[i]);
    for (int i = 0; i < 2; i++) {
        free(z->order[i].announced);
        free(z->order[i].unit);
        free(z->ranges[i]);
    }
    zp_device_close(&z->device);
    free(z);
}

const char *zero_last_error(const zero_ctx *z) { return z ? z->text : "no context"; }
void zero_query_config(const zero_ctx *z, zero_config *cfg) {
    if (!cfg) return;
    memset(cfg, 0, sizeof *cfg);
    if (!z) return;
    *cfg = z->cfg;
    cfg->bucket_numel = z->bucket_numel;
}
int zero_rank(const zero_ctx *z) { return z ? z->all->rank : 0; }
int zero_nranks(const zero_ctx *z) { return z ? z->all->nranks : 1; }

zero_result zero_bind(zero_ctx *z, void *params, void *grads) {
    ZP_ENTER(z, "zero_bind", ZP_BUILT, "the context is not built; call zero_build first");
    zp_life_set_kept_pointers(z, params, grads);
    z->structs[ZP_PARAM] = params;
    z->structs[ZP_GRAD] = grads;
    z->bound = 1;
    return ZERO_OK;
}

/* Runs and times a function that your code calls in every pass. */
#define ZP_TIMED(z, call)                                                                          \
    do {                                                                                           \
        const double start = zp_seconds();                                                         \
        const zero_result result = call;                                                           \
        if (z) (z)->hooks_s += zp_seconds() - start;                                               \
        return result;                                                                             \
    } while (0)

zero_result zero_pass_begin(zero_ctx *z, zero_pass kind, int micro, int micro_steps) {
    ZP_TIMED(z, zp_hook_pass_begin(z, kind, micro, micro_steps));
}

zero_result zero_forward_begin(zero_ctx *z, int unit, void *params) {
    ZP_TIMED(z, zp_hook_forward_begin(z, unit, params));
}
zero_result zero_forward_end(zero_ctx *z, int unit) { ZP_TIMED(z, zp_hook_forward_end(z, unit)); }

zero_result zero_backward_begin(zero_ctx *z, int unit, void *params, void *grads) {
    ZP_TIMED(z, zp_hook_backward_begin(z, unit, params, grads));
}
zero_result zero_backward_end(zero_ctx *z, int unit) { ZP_TIMED(z, zp_hook_backward_end(z, unit)); }

zero_result zero_pass_end(zero_ctx *z) { ZP_TIMED(z, zp_hook_pass_end(z)); }

/* Returns the scale. A dynamic one needs the last step's verdict. */
float zero_loss_scale(zero_ctx *z) {
    if (!z) return 1;
    z->scale_asked |= z->phase != ZP_REDUCED; /* in that phase it is still the last step's */
    if (z->cfg.scaler.fixed == 0 && z->stepped && z->phase != ZP_NEW) (void)zp_step_wait_report(z);
    return z->report.scale;
}

zero_result zero_reduce(zero_ctx *z) {
    ZP_ENTER(z, "zero_reduce", ZP_ANY, "");
    ZP_UNTIMELY(z, z->phase != ZP_BETWEEN || z->micro + 1 != z->micro_steps,
                "the %d micro-steps of the step are not complete; run the rest", z->micro_steps);
    ZP_UNTIMELY(
        z, !z->scale_asked && z->cfg.scaler.fixed != 1,
        "zero_loss_scale was not called in this step; multiply the gradient of the loss by it");
    ZP_TRY(zp_extra_call(z, ZP_ON_REDUCE));
    z->scale_asked = 0;
    ZP_TRY(zp_step_walk(z, ZP_AGREEMENT_WALK));
    z->phase = ZP_REDUCED;
    return ZERO_OK;
}

zero_result zero_norm(zero_ctx *z, double *norm) {
    ZP_ENTER(z, "zero_norm", ZP_REDUCED, "no gradient is reduced; call zero_reduce first");
    ZP_REFUSE(z, !norm, "norm is NULL");
    ZP_TRY(zp_extra_call(z, ZP_ON_AGREED));
    ZP_DO(z, zp_device_wait_event(&z->compute, z->agreed));
    ZP_TRY(zp_step_send_report(z));
    ZP_TRY(zp_step_wait_report(z));
    *norm = z->report.norm;
    return ZERO_OK;
}

static zero_result zp_life_check_hyper(zero_ctx *z, const zero_hyper *h) {
    ZP_REFUSE(z, !h, "hyper is NULL");
    ZP_REFUSE(z, !zp_rule_accepts(z->rule, h),
              "lr %g, betas %g and %g, eps %g, weight_decay %g, max_norm %g; use none below "
              "0, and betas below 1",
              (double)h->lr, (double)h->beta1, (double)h->beta2, (double)h->eps,
              (double)h->weight_decay, (double)h->max_norm);
    ZP_REFUSE(z, h->eps == 0 && (z->rule->reads & ZP_EPS_ALONE),
              "eps is 0: a weight with gradient 0 would become 0/0; use 1e-8");
    return ZERO_OK;
}

zero_result zero_step(zero_ctx *z, const zero_hyper *h) {
    ZP_ENTER(z, "zero_step", ZP_REDUCED, "no gradient is reduced; call zero_reduce first");
    ZP_TRY(zp_life_check_hyper(z, h));
    ZP_TRY(zp_extra_call(z, ZP_ON_AGREED));
    return zp_step_run(z, 1, h);
}

zero_result zero_skip_step(zero_ctx *z) {
    const zero_hyper none = {0, 0, 0, 0, 0, 0};
    ZP_ENTER(z, "zero_skip_step", ZP_REDUCED, "no gradient is reduced; call zero_reduce first");
    ZP_TRY(zp_extra_call(z, ZP_ON_AGREED));
    return zp_step_run(z, 2, &none);
}

zero_result zero_apply_pending(zero_ctx *z) {
    ZP_ENTER(z, "zero_apply_pending", ZP_IDLE, "a pending update is applied between steps");
    return zp_extra_call(z, ZP_ON_FINISH_UPDATE);
}

zero_result zero_step_result(zero_ctx *z, zero_step_report *report) {
    ZP_ENTER(z, "zero_step_result", ZP_ANY, "");
    ZP_UNTIMELY(z, !z->stepped, "no step was made yet; call zero_step first");
    ZP_REFUSE(z, !report, "report is NULL");
    ZP_UNTIMELY(z, z->phase == ZP_REDUCED || (z->phase == ZP_IN_PASS && z->resume == ZP_REDUCED),
                "a step is in progress; call this before zero_reduce or after zero_step");
    ZP_TRY(zp_step_wait_report(z));
    zp_events_deliver(z->device.recorder);
    const zp_control *c = &z->report;
    int unit = -1; /* a unit of this rank that is not finite */
    for (int u = 0; u < z->layout.all; u++)
        if (zp_ctx_verdict_unit(z, u) == (int)c->bad_unit) unit = u;
    const size_t at = (size_t)c->bad_offset;
    const zero_step_report now = {
        !c->skip, c->norm, c->used_scale, c->scale, c->steps, c->skipped, NULL, 0, 0};
    *report = now;
    if (c->bad_unit >= 0) report->bad_rank = (int)c->bad_rank;
    if (c->bad_unit >= 0) report->bad_tensor = "one of another rank";
    for (int i = 0; unit >= 0 && i < z->layout.unit[unit].members; i++) {
        const zp_member *m = &z->layout.unit[unit].member[i];
        if (at < m->at || at >= m->at + m->numel) continue;
        report->bad_tensor = z->tensors[m->tensor].desc.name;
        report->bad_index = m->first + at - m->at;
        report->bad_rank = (int)c->bad_rank;
    }
    if (!c->at_floor) return ZERO_OK;
    return zp_ctx_fail(z, ZERO_ERR_SCALE,
                       "tensor %s, element %zu overflows at the smallest loss scale (%g); lower lr",
                       report->bad_tensor, report->bad_index, (double)c->used_scale);
}

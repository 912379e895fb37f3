/* api.h - the functions of the header, in its order */
#ifndef ZP_API_H
#define ZP_API_H

#include "build.h"
#include "pass.h"
#include "step.h"
#include "access.h"

#include "transport.h"

#ifdef __cplusplus
extern "C" {
#endif

const char *zero_version(void) { return ZERO_VERSION; }
int zero_abi(void) { return ZERO_ABI; }

const char *zero_result_string(zero_result result) {
#define ZP_RESULT_STRING(name, sentence) sentence,
    static const char *const strings[] = {ZERO_RESULTS(ZP_RESULT_STRING)};
#undef ZP_RESULT_STRING
    return (int)result >= 0 && result < ZERO_RESULT_COUNT ? strings[(int)result] : "no such result";
}

zero_result zero_local_create(zero_local **local, int nranks, int shared) {
    void *p = NULL;
    if (!local || nranks < 1 || nranks > ZP_LOCAL_MAX) return ZERO_ERR_ARGUMENT;
    *local = NULL;
    if (shared) {
#ifndef __linux__
        return ZERO_ERR_UNSUPPORTED;
#endif
        p = mmap(NULL, sizeof(zero_local), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                 0);
        if (p == MAP_FAILED) return ZERO_ERR_MEMORY;
    } else if (posix_memalign(&p, 64, sizeof(zero_local))) {
        return ZERO_ERR_MEMORY;
    }
    (void)zero_local_place(local, p, nranks);
    (*local)->shared = shared != 0;
    (*local)->placed = 0;
    return ZERO_OK;
}

size_t zero_local_bytes(void) { return sizeof(zero_local); }

zero_result zero_local_place(zero_local **local, void *memory, int nranks) {
    if (!local || !memory || (uintptr_t)memory % 64 || nranks < 1 || nranks > ZP_LOCAL_MAX)
        return ZERO_ERR_ARGUMENT;
    *local = (zero_local *)memory;
    memset(*local, 0, sizeof **local);
    (*local)->nranks = nranks;
    (*local)->shared = (*local)->placed = 1;
    (*local)->maker = getpid();
    return ZERO_OK;
}

void zero_local_destroy(zero_local *local) {
    if (!local || local->placed) return;
    if (local->shared) {
        (void)munmap(local, sizeof *local);
        return;
    }
    for (zp_hold *h = local->boards; h; h = h->next)
        if (h->memory.holder) zp_hold_free(((zp_board *)(void *)h->memory.base)->pieces);
    zp_hold_free(local->boards);
    free(local);
}

void zero_local_abort(zero_local *local, int rank, const char *why) {
    if (local) zp_board_abort(&local->board, rank, why ? why : "no reason given");
}

/* Joins the ranks; peers that wait for one which cannot are told. */
static zero_result zp_create_join(zero_ctx *z, const zero_comm *comm) {
    const zp_transport *row = zp_transport_of(comm->kind);
    if (!row)
        return zp_fail(z, ZERO_ERR_ARGUMENT, "comm.kind is %d, no such kind", (int)comm->kind);
    for (int i = 0; i < ZP_GROUPS; i++) {
        z->group[i].device = &z->device;
        z->group[i].failure = &z->failure;
        z->group[i].timeout_s = zp_timeout(z->cfg.timeout_s);
    }
    ZP_DO(z, zp_group_open(z->data, row, comm));
    return zp_check(z, zp_watch_open(&z->watch, z->group, ZP_GROUPS));
}

/* Warns of what makes other weights than elsewhere. SYNC. */
static zero_result zp_create_look(zero_ctx *z) {
    int flushes = 0;
    ZP_DO(z, zp_flushes(&z->device, z->cfg.stream, &flushes));
    if (flushes)
        z->cfg.log(
            z->cfg.log_user, ZERO_LOG_WARNING,
            "numbers below 1.2e-38 become 0 here: a program linked with -Ofast or -ffast-math "
            "sets its threads so, and nvcc's -use_fast_math or -ftz=true a GPU's code");
    return ZERO_OK;
}

zero_result zero_create(zero_ctx **out, const zero_config *cfg, const zero_comm *comm) {
    if (!out || !cfg || !comm) return ZERO_ERR_ARGUMENT;
    *out = NULL;
    zero_ctx *z = (zero_ctx *)calloc(1, sizeof *z);
    const zp_transport *row = zp_transport_of(comm->kind);
    if (!z && row && row->refuse) row->refuse(comm, "zero_create: no memory for the context");
    if (!z) return ZERO_ERR_MEMORY;
    *out = z;
    z->cfg = *cfg;
    z->phase = ZP_NEW;
    z->call = "zero_create";
    z->data = &z->group[ZP_DATA];
    z->data->nranks = 1;
    char text[ZP_TEXT_BYTES];
    zero_result r = zp_check(z, zp_device_open(&z->device));
    if (r && row && row->refuse) row->refuse(comm, z->text);
    if (!r) r = zp_create_join(z, comm);
    if (!r && zp_config_resolve(&z->cfg, text, sizeof text)) /* peers learn it from zero_destroy */
        r = zp_fail(z, ZERO_ERR_ARGUMENT, "%s", text);
    if (r) return z->dead = r;
    zp_plan_settings(z);
    return cfg->log ? zp_create_look(z) : ZERO_OK;
}

static zero_result zp_tensor_check(zero_ctx *z, const zero_tensor_desc *d) {
    if (!d || !d->name || !d->name[0])
        return zp_fail(z, ZERO_ERR_ARGUMENT, "a tensor needs a name");
    if (zp_tensor_find(z, d->name))
        return zp_fail(z, ZERO_ERR_ARGUMENT, "tensor %s was announced before", d->name);
    if (d->layers < 0 || d->unit < 0 || d->uses < 0 || d->layers > 1 << 20 || d->unit > 1 << 20)
        return zp_fail(z, ZERO_ERR_ARGUMENT,
                       "tensor %s: layers %d, unit %d, uses %d, expected 0 or more", d->name,
                       d->layers, d->unit, d->uses);
    const size_t most = ((size_t)1 << 48) / (size_t)(d->layers ? d->layers : 1);
    if (d->numel < 1 || d->numel > most)
        return zp_fail(z, ZERO_ERR_ARGUMENT, "tensor %s: numel is %zu, expected 1..%zu", d->name,
                       d->numel, most);
    if (d->flags & ~(ZERO_KEEP | ZERO_NO_DECAY | ZERO_OVERWRITTEN | ZERO_ONE_D | ZERO_BY_SLOT))
        return zp_fail(z, ZERO_ERR_ARGUMENT, "tensor %s: flags %d, unknown bits", d->name,
                       d->flags);
    if ((d->flags & ZERO_OVERWRITTEN) && z->cfg.micro_steps > 1
        && z->array[ZP_GRAD].type == ZERO_F32 && z->cfg.accumulation == ZERO_ACCUMULATE_LOCAL)
        return zp_fail(z, ZERO_ERR_ARGUMENT,
                       "tensor %s is OVERWRITTEN, but %d micro-steps accumulate in place "
                       "(accumulation LOCAL)",
                       d->name, z->cfg.micro_steps);
    return ZERO_OK;
}

zero_result zero_tensor(zero_ctx *z, const zero_tensor_desc *desc) {
    ZP_ENTER(z, "zero_tensor", ZP_NEW, "tensors are announced before zero_build");
    ZP_TRY(zp_tensor_check(z, desc));
    zp_tensor *list =
        (zp_tensor *)zp_list_grow(z->tensors, z->ntensors, &z->tensors_cap, sizeof *list);
    if (list) z->tensors = list;
    char *name = list ? strdup(desc->name) : NULL;
    if (!name) return zp_fail(z, ZERO_ERR_MEMORY, "the name of tensor %s", desc->name);
    zp_tensor *t = &z->tensors[z->ntensors++];
    memset(t, 0, sizeof *t);
    t->desc = *desc;
    t->desc.name = name;
    if (!t->desc.layers) t->desc.layers = 1;
    if (!t->desc.uses) t->desc.uses = 1;
    t->lr_factor = t->decay_factor = 1;
    return ZERO_OK;
}

zero_result zero_tensor_group(zero_ctx *z, const char *name, float lr_factor, float decay_factor) {
    ZP_ENTER(z, "zero_tensor_group", ZP_NEW, "groups are made before zero_build");
    zp_tensor *t;
    ZP_TRY(zp_tensor_named(z, name, &t));
    if (!zp_not_below(lr_factor) || !zp_not_below(decay_factor))
        return zp_fail(z, ZERO_ERR_ARGUMENT,
                       "tensor %s: lr_factor %g, decay_factor %g, expected 0 or more", name,
                       (double)lr_factor, (double)decay_factor);
    t->lr_factor = lr_factor;
    t->decay_factor = decay_factor;
    return ZERO_OK;
}

/* The plan of the tensors so far. */
static zero_result zp_plan_now(zero_ctx *z) {
    if (z->phase != ZP_NEW) return ZERO_OK;
    ZP_TRY(zp_plan_make(z));
    return zp_state_plan(z);
}

zero_result zero_query_plan(zero_ctx *z, zero_plan *plan) {
    ZP_ENTER(z, "zero_query_plan", ZP_ANY, "");
    if (!plan) return zp_fail(z, ZERO_ERR_ARGUMENT, "plan is NULL");
    ZP_TRY(zp_plan_now(z));
    *plan = z->plan;
    return ZERO_OK;
}

zero_result zero_query_plan_unit(zero_ctx *z, int unit, zero_plan_unit *plan) {
    ZP_ENTER(z, "zero_query_plan_unit", ZP_ANY, "");
    ZP_TRY(zp_plan_now(z));
    if (!plan || unit < 0 || unit >= z->plan.units)
        return zp_fail(z, ZERO_ERR_ARGUMENT, "unit %d, expected 0..%d", unit, z->plan.units - 1);
    const zp_unit *x = &z->layout.unit[unit];
    plan->numel = x->content;
    plan->padded = x->padded;
    plan->reductions = zp_plan_reductions(z, unit);
    plan->gathers = z->place[unit].gathers;
    plan->resident = zp_unit_whole(z, ZP_PARAM, unit);
    plan->sent_bytes = zp_plan_sent(z, unit);
    return ZERO_OK;
}

zero_result zero_build(zero_ctx *z) {
    ZP_ENTER(z, "zero_build", ZP_NEW, "the context is built already");
    ZP_TRY(zp_build_agree(z));
    zero_result r = z->ntensors ? ZERO_OK : zp_fail(z, ZERO_ERR_STATE, "no tensor was announced");
    if (!r) r = zp_plan_now(z);
    if (!r) r = zp_build_units(z);
    if (r) return z->dead = r; /* but for MEMORY the same on all ranks: they have agreed */
    ZP_TRY(zp_build_allocate(z));
    z->phase = ZP_IDLE;
    return ZERO_OK;
}

void zero_destroy(zero_ctx *z) {
    if (!z) return;
    const int broken =
        z->dead || zp_failure_result(&z->failure) || !(z->phase & (ZP_IDLE | ZP_REDUCED));
    for (int i = 0; i < ZP_GROUPS && broken; i++) /* first: what this rank's own streams wait for */
        if (z->group[i].transport && z->group[i].own)
            z->group[i].transport->abort(&z->group[i],
                                         z->text[0] ? z->text : "it gave up its context");
    for (int i = 0; i < 2; i++) zp_stream_close(&z->stream[i]);
    zp_stream_close(&z->compute);
    zp_watch_close(&z->watch);
    for (int u = 0; u < z->layout.all && z->live; u++) {
        zp_live *live = &z->live[u];
        zp_event_close(&live->written);
        zp_event_close(&live->gathered);
        zp_event_close(&live->reduction);
        zp_event_close(&live->updated);
    }
    for (int b = 0; b < z->pool[ZP_PARAM].n; b++)
        zp_event_close(&z->pool[ZP_PARAM].buffer[b].released);
    zp_event_close(&z->passed);
    zp_event_close(&z->agreed);
    zp_event_close(&z->reported);
    for (int i = 0; i < ZP_GROUPS; i++) zp_group_close(&z->group[i], broken);
    zp_device_free(z->arena);
    zp_host_free(z->pinned);
    zp_checks_close(z);
    zp_plan_close(z);
    for (int t = 0; t < z->ntensors; t++) free((void *)(uintptr_t)z->tensors[t].desc.name);
    free(z->ranges[0]);
    free(z->ranges[1]);
    free(z->tensors);
    free(z->slots);
    free(z->live);
    free(z->bucket);
    free(z->ops);
    zp_device_close(&z->device);
    free(z);
}

const char *zero_last_error(const zero_ctx *z) { return z ? z->text : "no context"; }
void zero_query_config(const zero_ctx *z, zero_config *cfg) {
    *cfg = z->cfg;
    cfg->bucket_numel = z->bucket_numel;
}
int zero_rank(const zero_ctx *z) { return z->data->rank; }
int zero_nranks(const zero_ctx *z) { return z->data->nranks; }

/* ---- pointers ---- */

/* The KEEP unit's memory never moves. */
static void zp_point_kept(zero_ctx *z, void *params, void *grads) {
    const int u = z->layout.units;
    zp_point(z, ZP_PARAM, u, zp_unit_shown(z, u), params);
    zp_point(z, ZP_GRAD, u, zp_unit_memory(z, ZP_GRAD, u), grads);
}

zero_result zero_bind(zero_ctx *z, void *params, void *grads) {
    ZP_ENTER(z, "zero_bind", ZP_BUILT, "pointers are there after zero_build");
    zp_point_kept(z, params, grads);
    z->bound = 1;
    return ZERO_OK;
}

zero_result zero_slot(zero_ctx *z, const char *name, int layer, void **param, void **grad) {
    ZP_ENTER(z, "zero_slot", ZP_BUILT, "pointers are there after zero_build");
    zp_tensor *t;
    ZP_TRY(zp_tensor_named(z, name, &t));
    if (layer < 0 || layer >= t->desc.layers)
        return zp_fail(z, ZERO_ERR_ARGUMENT, "%s: layer %d, expected 0..%d", name, layer,
                       t->desc.layers - 1);
    zp_slot *list = (zp_slot *)zp_list_grow(z->slots, z->nslots, &z->slots_cap, sizeof *list);
    if (!list) return zp_fail(z, ZERO_ERR_MEMORY, "the slot of %s", name);
    z->slots = list;
    zp_slot *s = &z->slots[z->nslots++];
    s->tensor = (int)(t - z->tensors);
    s->layer = layer;
    s->place[ZP_PARAM] = param;
    s->place[ZP_GRAD] = grad;
    if (t->desc.flags & ZERO_KEEP) zp_point_kept(z, NULL, NULL);
    return ZERO_OK;
}

/* ---- a pass ---- */

/* A function that the host calls in every pass: its time is counted. */
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

/* A dynamic scale is known once the last step's verdict is. */
float zero_loss_scale(zero_ctx *z) {
    z->scale_asked |= z->phase != ZP_REDUCED; /* there it is still the last step's */
    if (z->cfg.scaler.fixed == 0 && z->stepped && z->phase != ZP_NEW) (void)zp_report(z);
    return z->report.scale;
}

/* ---- a step ---- */

zero_result zero_reduce(zero_ctx *z) {
    ZP_ENTER(z, "zero_reduce", ZP_ANY, "");
    if (z->phase != ZP_BETWEEN || z->micro + 1 != z->micro_steps)
        return zp_fail(z, ZERO_ERR_STATE, "the %d micro-steps of the step are not complete",
                       z->micro_steps);
    if (!z->scale_asked && z->cfg.scaler.fixed != 1)
        return zp_fail(z, ZERO_ERR_STATE,
                       "the loss scale was not asked for: the loss must be multiplied by "
                       "zero_loss_scale before backward");
    z->scale_asked = 0;
    zp_stream *s = &z->stream[ZP_GRADIENTS];
    const zp_op verdict = zp_verdict_op(z, &z->memory[ZP_GRAD], z->verdict_at);
    const zp_declare_args declare = {z->verdict, z->control, z->hyper, z->said};
    const zp_judge_args judge = {z->control, z->verdicts, z->data->nranks};
    ZP_DO(z, zp_event_record(&z->compute, &z->passed)); /* parameters are read no more */
    ZP_DO(z, zp_event_wait(s, &z->passed));
    ZP_DO(z, zp_declare(s, &declare, 1));
    ZP_DO(z, zp_issue(s, &verdict, 1));
    ZP_DO(z, zp_judge(s, &judge, 1));
    ZP_DO(z, zp_event_record(s, &z->agreed));
    z->judged = 1;
    z->phase = ZP_REDUCED;
    return ZERO_OK;
}

zero_result zero_norm(zero_ctx *z, double *norm) {
    ZP_ENTER(z, "zero_norm", ZP_REDUCED, "the norm is there between zero_reduce and zero_step");
    if (!norm) return zp_fail(z, ZERO_ERR_ARGUMENT, "norm is NULL");
    ZP_DO(z, zp_event_wait(&z->compute, &z->agreed));
    ZP_TRY(zp_report_send(z));
    ZP_TRY(zp_report(z));
    *norm = z->report.norm;
    return ZERO_OK;
}

zero_result zero_step(zero_ctx *z, const zero_hyper *h) {
    ZP_ENTER(z, "zero_step", ZP_REDUCED, "zero_reduce comes first");
    if (!h) return zp_fail(z, ZERO_ERR_ARGUMENT, "hyper is NULL");
    if (!zp_rule_takes(z->rule, h))
        return zp_fail(z, ZERO_ERR_ARGUMENT,
                       "lr %g, betas %g and %g, eps %g, weight_decay %g, max_norm %g: expected "
                       "none below 0, betas below 1",
                       (double)h->lr, (double)h->beta1, (double)h->beta2, (double)h->eps,
                       (double)h->weight_decay, (double)h->max_norm);
    if (h->eps == 0 && (z->rule->reads & ZP_EPS_ALONE))
        return zp_fail(z, ZERO_ERR_ARGUMENT,
                       "eps is 0: a weight whose gradient is zero would become 0/0; 1e-8 is usual");
    if (z->looked) { /* rare: the update waits until nobody reads what it changes */
        ZP_DO(z, zp_stream_sync(&z->compute));
        ZP_DO(z, zp_barrier(z->data));
        z->looked = 0;
    }
    return zp_step_take(z, 1, h);
}

zero_result zero_skip_step(zero_ctx *z) {
    zero_hyper none;
    ZP_ENTER(z, "zero_skip_step", ZP_REDUCED, "zero_reduce comes first");
    memset(&none, 0, sizeof none);
    return zp_step_take(z, 2, &none);
}

zero_result zero_step_result(zero_ctx *z, zero_step_report *report) {
    ZP_ENTER(z, "zero_step_result", ZP_ANY, "");
    if (!z->stepped) return zp_fail(z, ZERO_ERR_STATE, "no step was made yet");
    if (!report) return zp_fail(z, ZERO_ERR_ARGUMENT, "report is NULL");
    if (z->phase == ZP_REDUCED || (z->phase == ZP_IN_PASS && z->resume == ZP_REDUCED))
        return zp_fail(z, ZERO_ERR_STATE, "ask before the next zero_reduce or after zero_step");
    ZP_TRY(zp_report(z));
    const zp_control *c = &z->report;
    memset(report, 0, sizeof *report);
    report->stepped = !c->skip;
    report->norm = c->norm;
    report->loss_scale = c->used_scale;
    report->next_loss_scale = c->scale;
    report->steps = c->steps;
    report->skipped = c->skipped;
    if (c->bad_unit >= 0) zp_report_bad(z, c, report);
    if (!c->at_floor) return ZERO_OK;
    return zp_fail(z, ZERO_ERR_SCALE,
                   "tensor %s, element %zu, overflows at the smallest loss scale, %g",
                   report->bad_tensor, report->bad_index, (double)c->used_scale);
}

/* ---- tensors by name ---- */

zero_result zero_read_tensor(zero_ctx *z, const char *name, zero_kind kind, size_t first,
                             size_t count, float *out) {
    zp_tensor *t;
    ZP_TRY(zp_access_begin(z, "zero_read_tensor", name, kind, first, count, &t));
    for (size_t done = 0; done < count;) {
        const zp_run run = zp_run_at(z, t, first + done, count - done);
        ZP_TRY(zp_read_run(z, kind, &run, out ? out + done : NULL));
        done += run.numel;
    }
    z->looked |= z->array[ZP_PARAM].share == ZP_SEEN && z->phase == ZP_REDUCED;
    return ZERO_OK;
}

zero_result zero_write_tensor(zero_ctx *z, const char *name, zero_kind kind, size_t first,
                              size_t count, const float *values) {
    zp_tensor *t;
    ZP_TRY(zp_access_begin(z, "zero_write_tensor", name, kind, first, count, &t));
    if (!values && count) return zp_fail(z, ZERO_ERR_ARGUMENT, "%s: values is NULL", name);
    /* behind it no peer reads the old values any more */
    ZP_TRY(zp_write_agree(z, t, kind, first, values, count));
    if (kind == ZERO_GRADIENT) ZP_TRY(zp_write_fits(z, name, first, values, count));
    for (size_t done = 0; done < count;) {
        const zp_run run = zp_run_at(z, t, first + done, count - done);
        ZP_TRY(zp_write_run(z, kind, &run, values + done));
        done += run.numel;
    }
    if (kind == ZERO_PARAMETER || kind == ZERO_MASTER) zp_pool_forget(&z->pool[ZP_PARAM]);
    ZP_DO(z, zp_stream_sync(&z->compute));
    ZP_TRY(zp_checks_seal(z, 0));
    return zp_check(z, zp_barrier(z->data));
}

/* ---- state ---- */

#define ZP_NOT_OPEN "the state is not open: zero_state_begin comes first"

zero_result zero_state_begin(zero_ctx *z) {
    ZP_ENTER(z, "zero_state_begin", ZP_ANY, "");
    if (z->phase != ZP_IDLE)
        return zp_fail(z, ZERO_ERR_STATE,
                       z->phase & (ZP_IN_PASS | ZP_BETWEEN | ZP_REDUCED)
                           ? "in the middle of a step: what micro-steps have added up is no state; "
                             "ask after zero_step"
                           : "the context is not built, or its state is open already");
    ZP_DO(z, zp_stream_sync(&z->stream[ZP_PARAMETERS])); /* gathers ahead read what may be put */
    ZP_DO(z, zp_stream_sync(&z->compute));
    ZP_TRY(zp_report(z));
    ZP_DO(z, zp_barrier(z->data)); /* behind it no peer reads what may be put */
    z->phase = ZP_OPEN;
    return ZERO_OK;
}

int zero_state_ranges(const zero_ctx *z, int whole) { return z->nranges[whole != 0]; }

zero_result zero_state_range(zero_ctx *z, int whole, int i, zero_range *range) {
    ZP_ENTER(z, "zero_state_range", ZP_ANY, "");
    if (!range || i < 0 || i >= z->nranges[whole != 0])
        return zp_fail(z, ZERO_ERR_ARGUMENT, "range %d, expected 0..%d", i,
                       z->nranges[whole != 0] - 1);
    *range = z->ranges[whole != 0][i];
    return ZERO_OK;
}

zero_result zero_state_get(zero_ctx *z, const zero_range *range, void *out) {
    ZP_ENTER(z, "zero_state_get", ZP_OPEN, ZP_NOT_OPEN);
    return zp_state_move(z, range, NULL, (char *)out);
}

zero_result zero_state_put(zero_ctx *z, const zero_range *range, const void *values) {
    ZP_ENTER(z, "zero_state_put", ZP_OPEN, ZP_NOT_OPEN);
    return zp_state_move(z, range, (const char *)values, NULL);
}

void zero_state_counters(const zero_ctx *z, zero_counters *c) {
    c->steps = z->report.steps;
    c->skipped = z->report.skipped;
    c->iteration = z->report.iteration;
    c->last_overflow = z->report.last_overflow;
    c->scale = z->report.scale;
    c->hysteresis = z->report.hysteresis;
}

zero_result zero_state_set_counters(zero_ctx *z, const zero_counters *c) {
    ZP_ENTER(z, "zero_state_set_counters", ZP_OPEN, ZP_NOT_OPEN);
    if (!c || c->steps < 0 || c->skipped < 0 || c->iteration < 0 || c->last_overflow < -1
        || !zp_finite((double)c->scale) || c->scale <= 0 || c->hysteresis < 0)
        return zp_fail(z, ZERO_ERR_ARGUMENT,
                       "counters: none may be below 0, and the scale must be above it");
    const zero_scaler *s = &z->cfg.scaler;
    const int moved = s->fixed == 0 && c->iteration > 0;
    zp_control *r = &z->report;
    r->steps = c->steps;
    r->skipped = c->skipped;
    r->iteration = moved ? c->iteration : 0;
    r->last_overflow = moved ? c->last_overflow : -1;
    r->hysteresis = moved ? c->hysteresis : s->hysteresis;
    zp_scale_set(r, moved ? c->scale : s->fixed != 0 ? s->fixed : s->initial);
    *z->pinned = *r;
    ZP_DO(z, zp_copy(&z->compute, z->control, z->pinned, sizeof *z->pinned));
    return zp_check(z, zp_stream_sync(&z->compute)); /* *z->pinned is the host's again */
}

zero_result zero_state_end(zero_ctx *z, int changed) {
    ZP_ENTER(z, "zero_state_end", ZP_OPEN, ZP_NOT_OPEN);
    z->phase = ZP_IDLE;
    if (!changed) return ZERO_OK;
    ZP_TRY(zp_update_all(z, NULL));
    z->stepped = 0; /* of the last step of another run nothing is known */
    ZP_TRY(zp_checks_seal(z, 0));
    return ZERO_OK;
}

void *zero_host_alloc(size_t bytes) { return zp_host_alloc(bytes); }
void zero_host_free(void *memory) { zp_host_free(memory); }

/* ---- numbers ---- */

size_t zero_type_bytes(zero_type type) { return zp_bytes(type); }

void zero_convert(void *to, zero_type to_type, const void *from, zero_type from_type, size_t n) {
    if (to_type == from_type) {
        if (n) memmove(to, from, n * zp_bytes(to_type));
        return;
    }
    /* a file's numbers lie anywhere: they go through memory that suits their type */
    const int straight =
        (uintptr_t)to % zp_bytes(to_type) == 0 && (uintptr_t)from % zp_bytes(from_type) == 0;
    float in[ZP_CONVERT_BLOCK], out[ZP_CONVERT_BLOCK];
    for (size_t at = 0; at < n && !straight; at += ZP_CONVERT_BLOCK) {
        const size_t k = zp_min(ZP_CONVERT_BLOCK, n - at);
        memcpy(in, (const char *)from + at * zp_bytes(from_type), k * zp_bytes(from_type));
        zero_convert(out, to_type, in, from_type, k);
        memcpy((char *)to + at * zp_bytes(to_type), out, k * zp_bytes(to_type));
    }
    if (!straight) return;
    if (from_type == ZERO_F32)
        zp_narrow(to, to_type, (const float *)from, n);
    else
        zp_widen((float *)to, from, from_type, n);
}

/* ---- small collectives ---- */

zero_result zero_all_sum(zero_ctx *z, double *values, int n) {
    ZP_ENTER(z, "zero_all_sum", ZP_ANY, "");
    if (!values || n < 0 || n * sizeof *values > ZP_MAIL_BYTES)
        return zp_fail(z, ZERO_ERR_ARGUMENT, "n is %d, expected 0..%zu", n,
                       ZP_MAIL_BYTES / sizeof *values);
    ZP_DO(z, zp_exchange(z->data, values, (size_t)n * sizeof *values));
    for (int i = 0; i < n; i++) {
        double sum = 0;
        for (int r = 0; r < z->data->nranks; r++) {
            double value;
            memcpy(&value, z->data->mail + ((size_t)r * (size_t)n + (size_t)i) * sizeof value,
                   sizeof value);
            sum += value;
        }
        values[i] = sum;
    }
    return ZERO_OK;
}

zero_result zero_broadcast(zero_ctx *z, void *data, size_t bytes, int root) {
    ZP_ENTER(z, "zero_broadcast", ZP_BUILT, "zero_build comes first");
    if (root < 0 || root >= z->data->nranks || (!data && bytes))
        return zp_fail(z, ZERO_ERR_ARGUMENT, "root is %d, expected 0..%d", root,
                       z->data->nranks - 1);
    return zp_check(z, zp_broadcast(z->data, data, bytes, root));
}

zero_result zero_barrier(zero_ctx *z) {
    ZP_ENTER(z, "zero_barrier", ZP_ANY, "");
    return zp_check(z, zp_barrier(z->data));
}

/* ---- statistics ---- */

zero_result zero_query_stats(zero_ctx *z, zero_stats *stats) {
    ZP_ENTER(z, "zero_query_stats", ZP_ANY, "");
    if (!stats) return zp_fail(z, ZERO_ERR_ARGUMENT, "stats is NULL");
    if (z->phase == ZP_NEW) return zp_fail(z, ZERO_ERR_STATE, "zero_build comes first");
    memset(stats, 0, sizeof *stats);
    const double exposed = z->device.exposed_s;
    for (int s = 0; s < 2; s++) ZP_DO(z, zp_stream_sync(&z->stream[s]));
    ZP_TRY(zp_report(z));          /* as of the last step, or norm */
    z->device.exposed_s = exposed; /* asking is not training */
    stats->param_bytes = z->plan.param_bytes;
    stats->grad_bytes = z->plan.grad_bytes;
    stats->optimizer_bytes = z->plan.optimizer_bytes;
    stats->buffer_bytes = z->plan.buffer_bytes;
    stats->allocated_bytes = z->data->meter.allocated_bytes + z->private_bytes;
    stats->sent_bytes = z->data->meter.sent_bytes;
    stats->mapped_bytes = z->data->meter.mapped_bytes;
    stats->reductions = z->data->meter.reductions;
    stats->gathers = z->data->meter.gathers;
    stats->verdict_bytes = z->data->meter.verdict_bytes;
    stats->control_bytes = z->data->meter.control_bytes;
    stats->steps = (uint64_t)z->report.steps;
    stats->skipped = (uint64_t)z->report.skipped;
    stats->exposed_s = exposed;
    stats->hooks_s = z->hooks_s;
    return ZERO_OK;
}

#ifdef __cplusplus
}
#endif

#endif

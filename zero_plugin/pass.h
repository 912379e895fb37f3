/* pass.h - hooks, gathers, buckets: a unit while a pass runs */
#pragma once

#include "pointers.h"
#include "replicas.h"
#include "hops.h"

/* Enqueues u's all-gather on the parameter stream: behind its update, and behind the last use of
   the buffer that it goes to. */
static zero_result zp_gather(zero_ctx *z, int u) {
    const zp_kept *part = &z->array[ZP_PARAM].part[u];
    zp_live *live = &z->live[u];
    zp_stream *s = &z->stream[ZP_PARAMETERS];
    zp_op op = zp_op_make(z, ZP_PARAMETERS, ZP_ALL_GATHER, u);
    const int away = zp_array_away(&z->array[ZP_PARAM], u);
    op.in_place = part->share == ZP_SEEN;
    op.codec = zp_unit_codec(z, ZP_ALL_GATHER, u);
    op.source = op.target = part->at;
    if (!zp_unit_whole(z, ZP_PARAM, u)) {
        zp_pool *pool = &z->pool[ZP_PARAM];
        const int b = zp_pool_find(pool, u);
        op.target = zp_unit_in_buffer(z, ZP_PARAM, u, b);
        ZP_DO(z, zp_event_wait(s, pool->buffer[b].released));
    }
    if (away || zp_unit_whole(z, ZP_PARAM, u))
        op.source = op.target + (size_t)z->data->rank * zp_op_shard_bytes(&op);
    if (live->second) return zp_check(z, zp_second_gather(z, u, op.target));
    ZP_DO(z, zp_event_wait(s, live->updated));
    if (away) ZP_DO(z, zp_fetch_shard(z, u, op.memory->base + op.source));
    ZP_DO(z, zp_send(z, s, &op, 1));
    ZP_DO(z, zp_event_record(s, live->gathered));
    return zp_check(z, zp_second_keep(z, u, op.target));
}

/* Stream s has written u's weights: a unit that lies whole is gathered at once, any other when a
   pass asks for it; where nothing is gathered (stage 0), who begins it waits for the update. */
static zero_result zp_updated(zero_ctx *z, int u, zp_stream *s) {
    const int whole = zp_unit_whole(z, ZP_PARAM, u) && z->layout.unit[u].numel;
    ZP_DO(z, zp_event_record(s, z->live[u].updated));
    if (whole && z->policy.state == ZP_SHARD) return zp_gather(z, u);
    if (!whole || s == &z->compute) return ZERO_OK;
    return zp_check(z, zp_event_record(s, z->live[u].gathered));
}

/* What this rank updates of unit u, from one of PARAM and NEXT to the other, both in memory. */
static void zp_next_copy(zero_ctx *z, int u, int to, int from) {
    const zp_kept *own = zp_own(z, u);
    memcpy(zp_array_at(&z->array[to], u, own->first), zp_array_at(&z->array[from], u, own->first),
           own->numel * zp_bytes(z->cfg.type));
}

/* A task of `updates`: NEXT, which the last update has written, becomes PARAM. */
typedef struct zp_turn_args {
    zero_ctx *z;
    int unit;
} zp_turn_args;

static void zp_turn_task(const void *args, size_t n, int threads) {
    const zp_turn_args *a = (const zp_turn_args *)args;
    zp_live *live = &a->z->live[a->unit];
    if (zp_array_filed(&a->z->array[ZP_NEXT], a->unit))
        live->turned = live->rounds;
    else if (!live->old_next)
        zp_next_copy(a->z, a->unit, ZP_PARAM, ZP_NEXT);
}

/* Unit u's new weights come in, once `computed`: all ranks are done with the old ones. Who waits
   for them: u's gather, or, where there is none, its next begin. */
static zero_result zp_turn_unit(zero_ctx *z, int u, zp_event *computed) {
    const zp_turn_args a = {z, u};
    zp_stream *s = &z->updates;
    z->live[u].second = 0;
    ZP_DO(z, zp_event_wait(s, computed));
    ZP_DO(z, zp_event_wait(s, z->live[u].gathered)); /* one that nobody has waited for */
    if (zp_host_on(z)) {
        ZP_DO(z, zp_host_return(z, u));
        return zp_updated(z, u, s);
    }
    zp_record *r = zp_slice_begin(s, ZERO_EVENT_COPY, u, zp_kept_bytes(&z->array[ZP_PARAM], u));
    ZP_DO(z, zp_stream_push(s, zp_turn_task, &a, sizeof a, zp_own(z, u)->numel));
    zp_slice_end(s, r);
    return zp_updated(z, u, s);
}

/* All that is pending comes in, between steps. */
static zero_result zp_turn_all(zero_ctx *z) {
    if (!z->pending) return ZERO_OK;
    for (int i = 0; i < z->layout.all; i++) {
        const int u = zp_update_nth(z, i);
        if (z->layout.unit[u].numel) ZP_TRY(zp_turn_unit(z, u, z->agreed));
    }
    zp_gathered_forget(z);
    z->pending = 0;
    return zp_checks_seal(z, ZP_SEAL);
}

/* u's parameters are on their way or there, and stay, and so are the next units'. */
static zero_result zp_parameters_take(zero_ctx *z, int u) {
    int fill[ZERO_PREFETCH_MOST + 2];
    char open[128];
    zp_trace *t = &z->trace[z->pass];
    zp_pool *pool = &z->pool[ZP_PARAM];
    const int wraps = z->pass == ZERO_TRAIN && z->micro + 1 < z->micro_steps;
    zp_trace_visit(t, u);
    const int n = zp_schedule(z, t, u, wraps, fill);
    zp_order_take(t, n >= 0);
    ZP_UNTIMELY(z, n < 0,
                "unit %d: all %d gather buffers belong to units that have begun and not ended "
                "(%s); raise open_units (ZERO_ALL: all of them), or prefetch",
                u, pool->n, zp_pool_open(pool, open, sizeof open));
    for (int i = 0; i < n; i++) ZP_TRY(zp_gather(z, fill[i]));
    zp_pool_hold(pool, u, 1);
    return ZERO_OK;
}

/* The outermost begin that needs them. */
static zero_result zp_parameters_open(zero_ctx *z, int u) {
    zp_live *live = &z->live[u];
    if (!live->parameter_opens) ZP_TRY(zp_parameters_take(z, u));
    if (live->parameter_opens++) return ZERO_OK;
    live->buffer[ZP_PARAM] = zp_pool_find(&z->pool[ZP_PARAM], u);
    ZP_DO(z, zp_event_wait(&z->compute, live->gathered));
    return zp_checks_turn(z, u, ZP_PARAM, 1);
}

static zero_result zp_parameters_close(zero_ctx *z, int u) {
    zp_live *live = &z->live[u];
    zp_pool *pool = &z->pool[ZP_PARAM];
    if (--live->parameter_opens) return ZERO_OK;
    ZP_TRY(zp_checks_turn(z, u, ZP_PARAM, 0));
    if (live->buffer[ZP_PARAM] < 0) return ZERO_OK;
    zp_buffer *b = &pool->buffer[live->buffer[ZP_PARAM]];
    zp_pool_hold(pool, u, -1);
    live->buffer[ZP_PARAM] = -1;
    return zp_check(z, zp_event_record(&z->compute, b->released));
}

/* Adds u's 16-bit gradient of this micro-step to its accumulator; in the last one the sum, rounded,
   becomes the gradient. */
static zero_result zp_collect_unit(zero_ctx *z, int u, int last) {
    const int first = z->live[u].reduced == 0;
    if (last && first) return ZERO_OK; /* one micro-step: nothing to add up */
    zp_array *sums = &z->array[ZP_SUM];
    zp_stream *s = &z->stream[ZP_GRADIENTS];
    const size_t n = z->layout.unit[u].padded;
    const zp_collect_args add = {(float *)(void *)zp_array_at(sums, u, 0),
                                 zp_unit_memory(z, ZP_GRAD, u), z->array[ZP_GRAD].type, first,
                                 last};
    zp_record *r = zp_slice_begin(s, ZERO_EVENT_NORM, u, (uint64_t)n * sizeof(float));
    const zero_result result = zp_collect(s, &add, n / ZP_WIDE);
    zp_slice_end(s, r);
    return result;
}

static zp_op zp_reduce_op(zero_ctx *z, int u) {
    zp_op op = zp_op_make(z, ZP_GRADIENTS, ZP_REDUCE_SCATTER, u);
    op.source = (size_t)(zp_unit_memory(z, ZP_GRAD, u) - z->memory[ZP_GRAD].base);
    op.target = (size_t)(zp_unit_mean(z, u) - z->memory[ZP_GRAD].base);
    op.sum = zp_unit_sums(z, u);
    op.scale = z->replicas.group ? 1 : zp_sum_scale(z);
    op.accumulate = z->adding == ZP_EACH_REDUCED && z->live[u].reduced > 0 && !zp_mean_adds(z, u);
    op.codec = zp_unit_codec(z, ZP_REDUCE_SCATTER, u);
    return op;
}

/* Where gradients are whole on every rank (stage 0), they are gathered. */
static zp_op zp_whole_op(zero_ctx *z, int u) {
    zp_op op = zp_op_make(z, ZP_GRADIENTS, ZP_ALL_GATHER, u);
    op.source = (size_t)(zp_unit_mean(z, u) - z->memory[ZP_GRAD].base);
    op.target = zp_update_gradient(z)->part[u].at;
    return op;
}

/* Issues one collective of every unit of the bucket, together. */
static zero_result zp_bucket_issue(zero_ctx *z, zp_op (*make)(zero_ctx *, int)) {
    for (int i = 0; i < z->nbucket; i++) z->ops[i] = make(z, z->bucket[i]);
    return zp_send(z, &z->stream[ZP_GRADIENTS], z->ops, z->nbucket);
}

/* A pass of several micro-steps, each of which is reduced by itself. */
static int zp_rounds(const zero_ctx *z) { return z->together > 1 && z->adding == ZP_EACH_REDUCED; }

/* All of u's backwards of this pass have ended. */
static int zp_unit_written(const zero_ctx *z, int u) {
    return z->live[u].writes >= z->layout.unit[u].uses * z->together;
}

/* What u has now is of the step's last micro-step. */
static int zp_unit_last(const zero_ctx *z, int u) {
    return zp_rounds(z) ? zp_unit_written(z, u) : z->micro + 1 == z->micro_steps;
}

/* Enqueues what follows the backward of the bucket's units in a micro-step: of all the last one, or
   of none. */
static zero_result zp_bucket_flush(zero_ctx *z) {
    zp_stream *s = &z->stream[ZP_GRADIENTS];
    if (!z->nbucket) return ZERO_OK;
    const int last = zp_unit_last(z, z->bucket[0]), collects = z->adding == ZP_COLLECTED;
    for (int i = 0; i < z->nbucket; i++) {
        ZP_DO(z, zp_event_wait(s, z->live[z->bucket[i]].written));
        if (zp_delays(z)) ZP_DO(z, zp_host_mean_read(z, s, z->bucket[i]));
        if (collects) ZP_DO(z, zp_collect_unit(z, z->bucket[i], last));
        if (z->live[z->bucket[i]].sums && (last || !collects))
            ZP_DO(z, zp_first_sums(z, z->bucket[i]));
    }
    if (last || !collects) ZP_DO(z, zp_bucket_issue(z, zp_reduce_op));
    for (int i = 0; i < z->nbucket; i++)
        if (zp_mean_adds(z, z->bucket[i])) ZP_DO(z, zp_mean_add_up(z, z->bucket[i]));
    if (last) ZP_DO(z, zp_replicas_sum(z));
    for (int i = 0; i < z->nbucket; i++) {
        const int u = z->bucket[i], writes = last || zp_mean_leaves(z, u);
        if (last) ZP_DO(z, zp_gradient_divide(z, u));
        if (last) ZP_DO(z, zp_gradient_norm(z, u));
        if (zp_mean_filed(z, u) && writes) ZP_DO(z, zp_mean_push(z, u, zp_mean_write_task));
    }
    if (last && z->policy.state == ZP_WHOLE) ZP_DO(z, zp_bucket_issue(z, zp_whole_op));
    for (int i = 0; i < z->nbucket; i++) {
        const int u = z->bucket[i];
        zp_live *live = &z->live[u];
        ZP_DO(z, zp_event_record(s, live->reduction));
        if (last || zp_mean_leaves(z, u)) ZP_DO(z, zp_host_send(z, u));
        if (last && z->pending) ZP_TRY(zp_turn_unit(z, u, live->reduction));
        live->pending = 0;
        live->reduced++;
        live->buffer[ZP_GRAD] = -1;
    }
    z->nbucket = 0;
    z->bucket_filled = 0;
    return ZERO_OK;
}

static zero_result zp_bucket_add(zero_ctx *z, int u) {
    const size_t numel = z->layout.unit[u].padded;
    zp_live *live = &z->live[u];
    const int b = live->buffer[ZP_GRAD];
    if (b >= 0) z->pool[ZP_GRAD].buffer[b].open = 0; /* its next user waits for `reduction` */
    const int full = z->bucket_filled + numel > z->bucket_numel;
    if (z->nbucket && (full || zp_unit_last(z, u) != zp_unit_last(z, z->bucket[0])))
        ZP_TRY(zp_bucket_flush(z));
    ZP_DO(z, zp_event_record(&z->compute, live->written));
    live->pending = 1;
    if (zp_rounds(z)) live->touched = 0;
    z->bucket[z->nbucket++] = u;
    z->bucket_filled += numel;
    return z->bucket_filled >= z->bucket_numel ? zp_bucket_flush(z) : ZERO_OK;
}

/* A buffer for u's gradients: its own, or the shared one whose reduction began longest ago. */
static zero_result zp_gradient_buffer(zero_ctx *z, int u) {
    char open[128];
    zp_pool *pool = &z->pool[ZP_GRAD];
    zp_live *live = &z->live[u];
    if (zp_unit_whole(z, ZP_GRAD, u) || live->buffer[ZP_GRAD] >= 0) return ZERO_OK;
    const int b = live->own[ZP_GRAD] >= 0 ? live->own[ZP_GRAD] : zp_pool_oldest(pool, NULL, 0);
    ZP_UNTIMELY(
        z, b < 0,
        "unit %d: all gradient buffers belong to units whose backward is not complete (%s); "
        "raise open_units (ZERO_ALL: all of them), or bucket_numel",
        u, zp_pool_open(pool, open, sizeof open));
    const int before = pool->buffer[b].unit;
    if (before >= 0 && z->live[before].pending) ZP_TRY(zp_bucket_flush(z));
    if (before >= 0) ZP_DO(z, zp_event_wait(&z->compute, z->live[before].reduction));
    pool->buffer[b].unit = u;
    pool->buffer[b].open = 1;
    pool->buffer[b].used = ++pool->clock;
    live->buffer[ZP_GRAD] = b;
    return ZERO_OK;
}

static zero_result zp_gradient_clear(zero_ctx *z, int u, int all) {
    const zp_unit *x = &z->layout.unit[u];
    char *memory = zp_unit_memory(z, ZP_GRAD, u);
    const size_t of_g = zp_bytes(z->array[ZP_GRAD].type);
    zp_record *r = zp_slice_begin(&z->compute, ZERO_EVENT_CLEAR, u, (uint64_t)x->padded * of_g);
    size_t from = 0; /* runs of tensors that want zeros, padding included, are cleared at once */
    for (int i = 0; i <= x->members; i++) {
        const zp_member *m = i < x->members ? &x->member[i] : NULL;
        const int keep = m && !all && (z->tensors[m->tensor].desc.flags & ZERO_OVERWRITTEN);
        if (m && !keep) continue;
        const size_t to = m ? m->at : x->padded;
        ZP_DO(z, zp_clear(&z->compute, memory + from * of_g, (to - from) * of_g));
        if (m) from = m->at + m->numel;
    }
    zp_slice_end(&z->compute, r);
    return ZERO_OK;
}

/* The first touch of u's gradients in a micro-step (in a step, if they accumulate locally). */
static zero_result zp_gradient_touch(zero_ctx *z, int u, int clear_all) {
    zp_live *live = &z->live[u];
    if (live->touched || !z->layout.unit[u].numel) return ZERO_OK;
    if (live->pending) ZP_TRY(zp_bucket_flush(z));
    ZP_TRY(zp_gradient_buffer(z, u));
    ZP_DO(z, zp_event_wait(&z->compute, live->reduction));
    if (live->apart && !zp_doubles(z)) /* it may read them yet */
        ZP_DO(z, zp_host_mean_read(z, &z->compute, u));
    live->touched = 1;
    zp_checks_cleared(z, u);
    return zp_gradient_clear(z, u, clear_all);
}

static int zp_reduces_now(const zero_ctx *z) {
    return z->adding != ZP_IN_PLACE || z->micro + 1 == z->micro_steps;
}

/* Ends a training micro-step: what has not been reduced is, in descending order, then KEEP. */
static zero_result zp_gradients_finish(zero_ctx *z) {
    if (!zp_reduces_now(z)) return ZERO_OK;
    for (int i = z->layout.all - 1; i >= 0; i--) {
        const int u = zp_unit_nth(&z->layout, i);
        if ((zp_unit_written(z, u) && !z->live[u].late) || !z->layout.unit[u].numel) continue;
        ZP_TRY(zp_gradient_touch(z, u, 1));
        z->live[u].writes = z->layout.unit[u].uses * z->together;
        ZP_TRY(zp_bucket_add(z, u));
    }
    return zp_bucket_flush(z);
}

static zero_result zp_pass_begin_train(zero_ctx *z, int micro, int micro_steps) {
    const int expected = z->phase == ZP_BETWEEN ? z->micro + 1 : 0;
    const int together = micro == ZERO_TOGETHER;
    if (together) micro = expected;
    ZP_UNTIMELY(z, together && expected, "the step has begun with %d single micro-steps", expected);
    ZP_REFUSE(z, together && micro_steps > 1 && z->array[ZP_GRAD].type != ZERO_F32,
              "ZERO_TOGETHER adds gradients up in f32, these have 16 bit: grads F32");
    ZP_REFUSE(z, micro_steps < 1 || micro_steps > z->cfg.micro_steps,
              "micro_steps is %d, the configuration allows 1..%d", micro_steps, z->cfg.micro_steps);
    ZP_UNTIMELY(z, z->phase == ZP_REDUCED, "zero_step is due after zero_reduce");
    ZP_UNTIMELY(
        z, micro != expected || (expected && micro_steps != z->micro_steps) || micro >= micro_steps,
        "micro-step %d of %d, expected %d of %d", micro, micro_steps, expected,
        expected ? z->micro_steps : micro_steps);
    z->micro = together ? micro_steps - 1 : micro;
    z->micro_steps = micro_steps;
    z->together = together ? micro_steps : 1;
    zp_recorder_at(z->device.recorder, z->taken, z->micro);
    for (int u = 0; u < z->layout.all; u++) {
        z->live[u].writes = 0;
        if (micro == 0) z->live[u].reduced = 0;
        if (z->adding != ZP_IN_PLACE || micro == 0) z->live[u].touched = 0;
    }
    if (micro == 0) ZP_DO(z, zp_errors_turn(z));
    if (micro == 0) /* peers' too: one that fails to come must not leave the old one */
        ZP_DO(z, zp_clear(&z->stream[ZP_GRADIENTS], z->verdicts,
                          (size_t)z->world->nranks * (size_t)zp_verdict_words(z)
                              * sizeof *z->verdicts));
    return zp_gradient_touch(z, z->layout.units, 1);
}

static zero_result zp_hook_pass_begin(zero_ctx *z, zero_pass kind, int micro, int micro_steps) {
    ZP_ENTER(z, "zero_pass_begin", ZP_ANY, "");
    ZP_UNTIMELY(z, z->phase & (ZP_NEW | ZP_IN_PASS | ZP_OPEN), "%s",
                z->phase == ZP_NEW    ? "zero_build comes first"
                : z->phase == ZP_OPEN ? "the state is open: zero_state_end comes first"
                                      : "the last pass has not ended");
    ZP_UNTIMELY(z, z->lent == ZP_LENT,
                "the arrays are the host's: weights are in them, and zero_lend_train is the step");
    ZP_REFUSE(z, kind != ZERO_TRAIN && kind != ZERO_EVAL, "no such pass: %d", (int)kind);
    ZP_TRY(zp_order_begin(z, kind, micro == ZERO_TOGETHER));
    if (kind == ZERO_EVAL && z->phase == ZP_IDLE) ZP_TRY(zp_turn_all(z));
    ZP_TRY(zp_checks_pass(z));
    if (kind == ZERO_TRAIN) ZP_TRY(zp_pass_begin_train(z, micro, micro_steps));
    ZP_DO(z, zp_event_wait(&z->compute, z->live[z->layout.units].gathered)); /* KEEP */
    z->resume = z->phase;
    z->phase = ZP_IN_PASS;
    z->pass = kind;
    z->trace[kind].at = 0;
    z->hooked = 0;
    return ZERO_OK;
}

/* Every hook: inside a pass, a unit of the host's. */
static zero_result zp_hook(zero_ctx *z, const char *call, int unit) {
    ZP_ENTER(z, call, ZP_ANY, "");
    ZP_UNTIMELY(z, z->phase != ZP_IN_PASS, "unit %d: no pass has begun", unit);
    z->hooked = 1;
    return zp_one_of(z, "unit", unit, z->layout.units);
}

/* No struct of the host's will do only where no tensor of the unit has a field in it. */
static zero_result zp_host_struct(zero_ctx *z, int unit, const void *host, const char *of) {
    const zp_unit *x = &z->layout.unit[unit];
    for (int i = 0; i < x->members && (!host || host == ZERO_WANTED) && !z->lent; i++) {
        const zero_tensor_desc *d = &z->tensors[x->member[i].tensor].desc;
        ZP_REFUSE(z, !(d->flags & ZERO_BY_SLOT),
                  "unit %d: the host's struct of %s is %s, but tensor %s has a field in it", unit,
                  of, host ? "ZERO_WANTED" : "NULL", d->name);
    }
    return ZERO_OK;
}

static zero_result zp_hook_forward_begin(zero_ctx *z, int unit, void *params) {
    ZP_TRY(zp_hook(z, "zero_forward_begin", unit));
    ZP_TRY(zp_host_struct(z, unit, params, "parameters"));
    zp_live *live = &z->live[unit];
    if (!live->parameter_opens) ZP_TRY(zp_order_match(z, ZERO_TURN_FORWARD, unit));
    ZP_TRY(zp_checks_hook(z, ZP_HOOK_FORWARD, unit));
    ZP_TRY(zp_parameters_open(z, unit));
    zp_point(z, ZP_PARAM, unit, zp_unit_shown(z, unit), params);
    if (!live->forward_opens++)
        live->slice[0] = zp_slice_begin(&z->compute, ZERO_EVENT_FORWARD, unit, 0);
    return ZERO_OK;
}

static zero_result zp_hook_forward_end(zero_ctx *z, int unit) {
    ZP_TRY(zp_hook(z, "zero_forward_end", unit));
    ZP_UNTIMELY(z, !z->live[unit].forward_opens, "unit %d: no forward has begun", unit);
    ZP_TRY(zp_checks_hook(z, ZP_HOOK_FORWARD_END, unit));
    if (!--z->live[unit].forward_opens) zp_slice_end(&z->compute, z->live[unit].slice[0]);
    return zp_parameters_close(z, unit);
}

static zero_result zp_hook_backward_begin(zero_ctx *z, int unit, void *params, void *grads) {
    ZP_TRY(zp_hook(z, "zero_backward_begin", unit));
    zp_live *live = &z->live[unit];
    ZP_UNTIMELY(z, z->pass != ZERO_TRAIN, "unit %d: an evaluation has no backward", unit);
    ZP_UNTIMELY(z, zp_unit_written(z, unit),
                "unit %d: its gradient is complete after %d uses, here is one more; see "
                "zero_tensor_desc.uses",
                unit, z->layout.unit[unit].uses * z->together);
    ZP_UNTIMELY(z, live->backward_opens == 64, "unit %d: 64 backwards are nested", unit);
    ZP_TRY(zp_host_struct(z, unit, grads, "gradients"));
    if (params) ZP_TRY(zp_host_struct(z, unit, params, "parameters"));
    if (params && !live->parameter_opens) ZP_TRY(zp_order_match(z, ZERO_TURN_BACKWARD, unit));
    ZP_TRY(zp_checks_hook(z, ZP_HOOK_BACKWARD, unit));
    ZP_TRY(zp_gradient_touch(z, unit, 0));
    if (params) ZP_TRY(zp_parameters_open(z, unit));
    if (!live->backward_opens) ZP_TRY(zp_checks_turn(z, unit, ZP_GRAD, 1));
    live->with_parameters = live->with_parameters << 1 | (params != NULL);
    live->backward_opens++;
    if (params)
        zp_point(z, ZP_PARAM, unit, zp_unit_shown(z, unit), params);
    else if (!live->parameter_opens) /* what was there before is not to be read */
        zp_point(z, ZP_PARAM, unit, NULL, NULL);
    zp_point(z, ZP_GRAD, unit, zp_unit_memory(z, ZP_GRAD, unit), grads);
    if (live->backward_opens == 1)
        live->slice[1] = zp_slice_begin(&z->compute, ZERO_EVENT_BACKWARD, unit, 0);
    return ZERO_OK;
}

static zero_result zp_hook_backward_end(zero_ctx *z, int unit) {
    ZP_TRY(zp_hook(z, "zero_backward_end", unit));
    zp_live *live = &z->live[unit];
    ZP_UNTIMELY(z, !live->backward_opens, "unit %d: no backward has begun", unit);
    ZP_TRY(zp_checks_hook(z, ZP_HOOK_BACKWARD_END, unit));
    if (live->backward_opens == 1) zp_slice_end(&z->compute, live->slice[1]);
    if (live->backward_opens == 1) ZP_TRY(zp_checks_turn(z, unit, ZP_GRAD, 0));
    if (live->with_parameters & 1) ZP_TRY(zp_parameters_close(z, unit));
    live->with_parameters >>= 1;
    const int uses = z->layout.unit[unit].uses * (zp_rounds(z) ? 1 : z->together);
    if (--live->backward_opens || ++live->writes % uses || live->late) return ZERO_OK;
    return zp_reduces_now(z) && z->layout.unit[unit].numel ? zp_bucket_add(z, unit) : ZERO_OK;
}

static zero_result zp_hook_pass_end(zero_ctx *z) {
    ZP_ENTER(z, "zero_pass_end", ZP_IN_PASS, "no pass has begun");
    for (int u = 0; u < z->layout.units; u++) {
        const zp_live *live = &z->live[u];
        ZP_UNTIMELY(z, live->forward_opens || live->backward_opens || live->held,
                    "unit %d: its %s has begun and not ended", u,
                    live->forward_opens    ? "forward"
                    : live->backward_opens ? "backward"
                                           : "zero_gather");
    }
    ZP_TRY(zp_order_end(z));
    ZP_TRY(zp_checks_lock(z));
    ZP_TRY(zp_checks_compare(z));
    ZP_TRY(zp_checks_seal(z, ZP_SEAL_KEEP));
    z->trace[z->pass].n = z->trace[z->pass].at;
    z->phase = z->resume;
    if (z->pass == ZERO_EVAL) {
        z->looked |= z->array[ZP_PARAM].share == ZP_SEEN && z->phase == ZP_REDUCED;
        zp_record_give(z->device.recorder);
        return ZERO_OK;
    }
    z->phase = ZP_BETWEEN;
    ZP_TRY(zp_gradients_finish(z));
    zp_record_give(z->device.recorder);
    return ZERO_OK;
}

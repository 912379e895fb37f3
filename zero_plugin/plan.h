/* plan.h - memory and traffic before anything is allocated

   Memory and traffic from layout and configuration alone. The build allocates exactly this. */
#ifndef ZP_PLAN_H
#define ZP_PLAN_H

#include "context.h"

/* What the settings mean for this context, once they are resolved. */
static void zp_plan_settings(zero_ctx *z) {
    const zero_config *c = &z->cfg;
    const int adds_up = c->micro_steps > 1;
    z->rule = &zp_rules[c->optimizer];
    z->policy = zp_policies[c->stage];
    z->type[ZP_PARAMETERS] = c->type;
    z->type[ZP_GRADIENTS] = c->grads == ZERO_GRAD_F32 ? ZERO_F32 : c->type;
    z->sharded = adds_up ? c->accumulation == ZERO_ACCUMULATE_SHARDED : z->policy.shard_gradients;
    z->collects = adds_up && !z->sharded && z->type[ZP_GRADIENTS] != ZERO_F32;
    z->mapped =
        z->policy.shard_parameters && (z->data->nranks == 1 || (!c->no_mapping && z->data->shares));
    z->report.divisor = (double)z->data->divisor;
    zp_scale_set(&z->report, c->scaler.fixed != 0 ? c->scaler.fixed : c->scaler.initial);
    z->report.used_scale = z->report.scale;
    z->report.hysteresis = c->scaler.hysteresis;
    z->report.last_overflow = -1;
}

static int zp_compare_size(const void *a, const void *b) {
    const size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return (x > y) - (x < y);
}

/* Parameter buffers that units take turns in, at most. */
static size_t zp_plan_gathered(const zero_ctx *z) {
    return z->policy.shard_parameters && !z->mapped ? (size_t)z->cfg.prefetch + 2 : 0;
}

/* Elements of a shared buffer: of all choices the one that needs the least memory. Larger units,
   and those used more often, have a buffer of their own. */
static zero_result zp_plan_shared(zero_ctx *z) {
    const zp_layout *l = &z->layout;
    const size_t gathered = zp_plan_gathered(z);
    const size_t of_p = gathered ? zp_bytes(z->cfg.type) : 0,
                 of_g = zp_bytes(z->type[ZP_GRADIENTS]);
    int n = 0;
    size_t larger = 0, least = SIZE_MAX;
    size_t *sizes = (size_t *)calloc((size_t)l->units + 1, sizeof *sizes);
    if (!sizes) return ZERO_ERR_MEMORY;
    z->shared_numel = 0;
    for (int u = 0; u < l->units; u++)
        if (l->unit[u].uses == 1 && l->unit[u].numel) sizes[n++] = l->unit[u].padded;
    qsort(sizes, (size_t)n, sizeof *sizes, zp_compare_size);
    for (int i = 0; i < n; i++) larger += sizes[i];
    for (int i = 0; i < n; i++) {
        const size_t turns = (size_t)i + 1;
        const size_t buffers = zp_min(turns, gathered) * of_p + zp_min(turns, 3) * of_g;
        larger -= sizes[i]; /* these lie alone, with gradients and with parameters */
        const size_t bytes = (of_p + of_g) * larger + buffers * sizes[i];
        if (bytes > least) continue;
        least = bytes;
        z->shared_numel = sizes[i];
    }
    free(sizes);
    return ZERO_OK;
}

static int zp_unit_stays(const zero_ctx *z, int u) {
    const zp_unit *x = &z->layout.unit[u];
    const int64_t limit = z->cfg.persistence_numel;
    if (!z->policy.shard_parameters || u == z->layout.units || !x->numel) return 1;
    if (limit == 0) return x->only_one_d;
    return limit > 0 && x->largest_tensor <= (uint64_t)limit;
}

/* Elements of unit u that this rank adds up outside its gradient memory. */
static size_t zp_plan_sums(const zero_ctx *z, int u) {
    if (z->type[ZP_GRADIENTS] == ZERO_F32 || z->cfg.micro_steps == 1) return 0;
    return z->collects ? z->layout.unit[u].padded : z->layout.unit[u].shard;
}

static int zp_plan_master(const zero_ctx *z) {
    return z->cfg.type != ZERO_F32 && !z->cfg.no_master;
}

static int zp_pool_add(zp_pool *p, size_t bytes, int own) {
    zp_buffer *b = &p->buffer[p->n];
    b->at = p->bytes;
    b->unit = -1;
    b->own = own;
    p->bytes += bytes;
    return p->n++;
}

/* Places every unit in the two regions. */
static void zp_plan_places(zero_ctx *z) {
    const zp_layout *l = &z->layout;
    zero_plan *plan = &z->plan;
    const int turns = z->sharded || z->collects;
    const int whole_gradients = !turns || !z->policy.shard_gradients;
    /* the reduced shard lies inside the whole gradient, unless the next micro-step writes there */
    const int shards = z->type[ZP_GRADIENTS] == ZERO_F32 ? turns : !whole_gradients;
    const size_t of_p = zp_bytes(z->cfg.type), of_g = zp_bytes(z->type[ZP_GRADIENTS]);
    const size_t all[2] = {l->padded, l->padded / (size_t)z->data->nranks}; /* whole, sharded */
    size_t p = 0, g = 0;
    z->state_numel = z->sums_numel = 0;
    for (int u = 0; u < l->all; u++) {
        const zp_unit *x = &l->unit[u];
        zp_place *at = &z->place[u];
        const int stays = zp_unit_stays(z, u);
        at->whole[ZP_PARAMETERS] = z->mapped || stays;
        at->offset[ZP_PARAMETERS] = p;
        p += (at->whole[ZP_PARAMETERS] ? x->padded : x->shard) * of_p;
        if (z->policy.shard_parameters && stays) plan->kept_bytes += x->padded * of_p;
        at->whole[ZP_GRADIENTS] = whole_gradients;
        at->offset[ZP_GRADIENTS] = g;
        at->shard_at = g + (size_t)z->data->rank * x->shard * of_g;
        if (whole_gradients) g += x->padded * of_g;
        if (shards) {
            at->shard_at = g;
            g += x->shard * of_g;
        }
        at->state_at = z->state_numel;
        z->state_numel += zp_own_numel(z, u);
        at->sum_at = z->sums_numel;
        z->sums_numel += zp_plan_sums(z, u);
    }
    plan->param_bytes = all[z->policy.shard_parameters] * of_p;
    plan->grad_bytes = all[z->policy.shard_gradients] * of_g;
    plan->optimizer_bytes =
        (size_t)(z->rule->states + zp_plan_master(z)) * z->state_numel * sizeof(float);
    plan->accumulator_bytes = g - plan->grad_bytes + z->sums_numel * sizeof(float);
    plan->buffer_bytes = plan->accumulator_bytes + (z->mapped ? 0 : p - plan->param_bytes);
    z->pool[ZP_PARAMETERS].bytes = p;
    z->pool[ZP_GRADIENTS].bytes = g;
}

/* What passes through in pieces: broadcasts, and sums between nodes. */
static size_t zp_plan_staging(const zero_ctx *z) {
    return ZP_STAGE_NUMEL * sizeof(float) + z->data->wire_bytes;
}

/* Gives buffers to units that do not lie anywhere whole. */
static void zp_plan_buffers(zero_ctx *z) {
    const size_t shared = z->shared_numel, bucket_units = shared ? z->bucket_numel / shared : 0;
    const size_t of[2] = {zp_bytes(z->type[0]), zp_bytes(z->type[1])};
    const size_t most[2] = {z->place[0].whole[ZP_GRADIENTS] ? 0 : bucket_units + 2,
                            zp_plan_gathered(z)};
    size_t take_turns = 0, own_bytes = 0, shared_bytes = 0;
    for (int u = 0; u < z->layout.all; u++) {
        const zp_unit *x = &z->layout.unit[u];
        zp_place *at = &z->place[u];
        const int own = u == z->layout.units || x->uses > 1 || x->padded > shared;
        take_turns += x->numel && !own;
        for (int side = 0; side < 2; side++) {
            const int adds = x->numel && own && !at->whole[side];
            at->buffer[side] = adds ? zp_pool_add(&z->pool[side], x->padded * of[side], 1) : -1;
            own_bytes += adds ? x->padded * of[side] : 0;
        }
    }
    for (int side = 0; side < 2; side++)
        for (size_t i = 0; i < zp_min(take_turns, most[side]); i++) {
            (void)zp_pool_add(&z->pool[side], shared * of[side], 0);
            shared_bytes += shared * of[side];
        }
    z->plan.buffer_bytes += own_bytes + shared_bytes + zp_plan_staging(z);
    z->plan.buffer_ceiling_bytes = own_bytes + (z->mapped ? 0 : z->plan.kept_bytes)
                                   + (size_t)(z->cfg.prefetch + 2) * (of[0] + of[1]) * shared
                                   + z->bucket_numel * of[ZP_GRADIENTS] + zp_plan_staging(z);
}

/* The order that a model of layers has: up, the units used again, down, and those again. */
static void zp_trace_natural(const zero_ctx *z, zp_trace *t, int backward) {
    const zp_unit *unit = z->layout.unit;
    const int n = z->layout.units, down = backward ? n : 0;
    t->n = t->at = 0;
    for (int u = 0; u < n; u++) zp_trace_visit(t, u);
    for (int u = 0; u < n; u++)
        if (unit[u].uses > 1) zp_trace_visit(t, u);
    for (int u = down - 1; u >= 0; u--)
        if (unit[u].uses > 1) zp_trace_visit(t, u);
    for (int u = down - 1; u >= 0; u--)
        if (unit[u].uses == 1) zp_trace_visit(t, u);
    t->at = 0;
}

/* Brings `unit` and the next ones into buffers; what must be gathered comes back in `fill`. */
static int zp_schedule(zero_ctx *z, const zp_trace *t, int unit, int wraps, int *fill) {
    zp_pool *pool = &z->pool[ZP_PARAMETERS];
    int soon[ZP_PREFETCH_MAX + 1], n = 0;
    soon[0] = unit; /* whose buffer none of the others takes */
    const int ahead = 1 + zp_trace_ahead(t, wraps, z->cfg.prefetch, soon + 1);
    for (int i = 0; i < ahead; i++) {
        const int own = z->place[soon[i]].buffer[ZP_PARAMETERS];
        if (z->place[soon[i]].whole[ZP_PARAMETERS] || !z->layout.unit[soon[i]].numel) continue;
        int got = zp_pool_take(pool, soon[i], own, soon, ahead);
        if (got < 0 && i == 0) got = zp_pool_take(pool, unit, own, NULL, 0); /* now before soon */
        if (got < 0 && i == 0) return -1;
        if (got > 0) fill[n++] = soon[i];
    }
    return n;
}

/* Gathers of every unit in one step of the natural order. */
static void zp_plan_gathers(zero_ctx *z) {
    int fill[ZP_PREFETCH_MAX + 1];
    zp_trace *t = &z->trace[ZERO_TRAIN];
    for (int u = 0; u < z->layout.all; u++)
        z->place[u].gathers = z->place[u].whole[ZP_PARAMETERS] && z->layout.unit[u].numel ? 1 : 0;
    for (int micro = 0; micro < z->cfg.micro_steps; micro++) {
        zp_trace_natural(z, t, 1);
        while (t->at < t->n) {
            const int unit = t->unit[t->at++];
            const int n = zp_schedule(z, t, unit, micro + 1 < z->cfg.micro_steps, fill);
            for (int i = 0; i < n; i++) z->place[fill[i]].gathers++;
        }
    }
    t->at = 0;
    zp_pool_forget(&z->pool[ZP_PARAMETERS]);
}

static size_t zp_formula_bytes(const zero_ctx *z) {
    const size_t p = z->layout.numel, n = (size_t)z->data->nranks, share = (p + n - 1) / n;
    return (z->policy.shard_parameters ? share : p) * zp_bytes(z->cfg.type)
           + (z->policy.shard_gradients ? share : p) * zp_bytes(z->type[ZP_GRADIENTS])
           + (z->policy.shard_optimizer ? share : p) * sizeof(float)
                 * (size_t)(z->rule->states + zp_plan_master(z));
}

static int zp_plan_reductions(const zero_ctx *z, int u) {
    if (!z->layout.unit[u].numel) return 0;
    return z->sharded ? z->cfg.micro_steps : 1;
}

/* The agreement that ends a step: every rank's verdict to every rank. `at`: of all, in memory. */
static zp_op zp_verdict_op(const zero_ctx *z, zp_memory *memory, size_t at) {
    zp_op op;
    memset(&op, 0, sizeof op);
    op.group = z->data;
    op.memory = memory;
    op.channel = ZP_GRADIENTS;
    op.kind = ZP_ALL_GATHER;
    op.unit = -1;
    op.type = ZERO_F32;
    op.shard = ZP_VERDICT * sizeof(double) / sizeof(float);
    op.target = at;
    op.source = at + (size_t)z->data->rank * zp_op_shard_bytes(&op);
    return op;
}

static size_t zp_plan_cost(const zero_ctx *z, int kind, int u, zero_type type) {
    zp_op op;
    memset(&op, 0, sizeof op);
    op.kind = kind;
    op.shard = z->layout.unit[u].shard;
    op.type = type;
    return z->data->transport->cost(z->data, &op);
}

/* Bytes that this rank sends for unit u in a step: at stage 0 gradients are gathered. */
static size_t zp_plan_sent(const zero_ctx *z, int u) {
    const zero_type gathered = z->policy.shard_optimizer ? z->cfg.type : z->type[ZP_GRADIENTS];
    return (size_t)z->place[u].gathers * zp_plan_cost(z, ZP_ALL_GATHER, u, gathered)
           + (size_t)zp_plan_reductions(z, u)
                 * zp_plan_cost(z, ZP_REDUCE_SCATTER, u, z->type[ZP_GRADIENTS]);
}

static void zp_plan_traffic(zero_ctx *z) {
    double formula = 0;
    for (int u = 0; u < z->layout.all; u++) {
        const zp_unit *x = &z->layout.unit[u];
        const size_t sent = zp_plan_sent(z, u);
        z->plan.sent_bytes += sent;
        if (x->numel) formula += (double)sent * (double)x->content / (double)x->padded;
    }
    z->plan.formula_sent_bytes = (size_t)(formula + 0.5);
    const zp_op verdict = zp_verdict_op(z, NULL, 0);
    z->plan.verdict_bytes = z->data->transport->cost(z->data, &verdict);
}

static void zp_plan_close(zero_ctx *z) {
    free(z->place);
    z->place = NULL;
    for (int i = 0; i < 2; i++) {
        free(z->pool[i].buffer);
        free(z->trace[i].unit);
        memset(&z->pool[i], 0, sizeof z->pool[i]);
        memset(&z->trace[i], 0, sizeof z->trace[i]);
    }
    zp_layout_close(&z->layout);
}

static zero_result zp_plan_memory(zero_ctx *z) {
    const size_t units = (size_t)z->layout.all; /* each with a buffer of its own at most */
    z->place = (zp_place *)calloc(units, sizeof *z->place);
    int made = z->place != NULL;
    for (int i = 0; i < 2; i++) {
        z->pool[i].buffer = (zp_buffer *)calloc(units, sizeof *z->pool[i].buffer);
        z->trace[i].cap = (int)(4 * units + 16);
        z->trace[i].unit = (int *)calloc((size_t)z->trace[i].cap, sizeof *z->trace[i].unit);
        made &= z->pool[i].buffer && z->trace[i].unit;
    }
    return made ? ZERO_OK : ZERO_ERR_MEMORY;
}

static zero_result zp_plan_bucket(zero_ctx *z) {
    z->bucket_numel = z->cfg.bucket_numel ? z->cfg.bucket_numel : z->shared_numel;
    if (z->bucket_numel >= z->shared_numel) return ZERO_OK;
    return zp_fail(z, ZERO_ERR_ARGUMENT,
                   "bucket_numel is %zu, the largest unit that shares a buffer has "
                   "%zu elements: give at least that, or 0",
                   z->cfg.bucket_numel, z->shared_numel);
}

/* Fills z->layout, place, pools, traces, gathers and plan. */
static zero_result zp_plan_make(zero_ctx *z) {
    zp_plan_close(z);
    memset(&z->plan, 0, sizeof z->plan);
    zero_result r = zp_layout_open(&z->layout, z->tensors, z->ntensors, z->data->nranks);
    if (!r) r = zp_plan_memory(z);
    if (!r) r = zp_plan_shared(z);
    if (r) return zp_fail(z, r, "lists of %d tensors", z->ntensors);
    ZP_TRY(zp_plan_bucket(z));
    zp_plan_places(z);
    zp_plan_buffers(z);
    zp_plan_gathers(z);
    zp_plan_traffic(z);
    zp_trace_natural(z, &z->trace[ZERO_EVAL], 0);
    z->plan.numel = z->layout.numel;
    z->plan.padded_numel = z->layout.padded;
    z->plan.formula_bytes = zp_formula_bytes(z);
    z->plan.units = z->layout.units + (z->layout.unit[z->layout.units].members > 0);
    z->plan.nranks = z->data->nranks;
    return ZERO_OK;
}

#endif

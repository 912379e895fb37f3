/* plan.h - computes memory and traffic from layout and settings; the build allocates just that */
#pragma once

#include "bind.h"
#include "verdict.h"
#include "order.h"
#include "extra.h"

/* Replaces each 0 that depends on other settings, and refuses settings that exclude each other. */
static zero_result zp_plan_check_settings(zero_ctx *z) {
    const zero_config *c = &z->cfg;
    zp_config_resolve(&z->cfg, z->all->cpu_ranks);
    ZP_REFUSE(z, c->type != ZERO_BF16 && zp_masters[c->master].bf16_alone, "%s",
              zp_masters[c->master].bf16_alone);
    if (zp_masters[c->master].part)
        ZP_TRY(zp_extra_need(z, zp_masters[c->master].part, "master is NONE"));
    ZP_REFUSE(z, c->scaler.fixed == 0 && c->scaler.initial < c->scaler.minimum,
              "scaler.initial %g is below scaler.minimum %g; lower the minimum",
              (double)c->scaler.initial, (double)c->scaler.minimum);
    ZP_REFUSE(z, c->scaler.fixed == 0 && c->no_overflow_check,
              "no_overflow_check is 1, but a dynamic loss scale needs the check; use 0");
    return zp_extra_call(z, ZP_ON_CHECK);
}

static void zp_plan_set_array(zp_array *a, zero_type type, zp_share share) {
    a->type = type;
    a->share = share;
    a->tier = ZERO_DEVICE;
    a->tiers = zp_array_tiers;
}

/* Sets the types and shares of arrays, which rows may change, and the loss scale. */
static zero_result zp_plan_apply_settings(zero_ctx *z) {
    const zero_config *c = &z->cfg;
    zp_control *report = &z->report;
    const zp_policy stage = zp_policies[c->stage];
    const zero_type type = c->grads == ZERO_GRAD_F32 ? ZERO_F32 : c->type;
    const int several = c->micro_steps > 1, sums = several && type != ZERO_F32;
    const int each =
        several ? c->accumulation == ZERO_ACCUMULATE_SHARDED : stage.gradients == ZP_SHARD;
    const int sees = z->data->nranks == 1 || (!c->no_mapping && z->data->shared_is_fast);
    const int masters = c->type != ZERO_F32 && zp_masters[c->master].keeps;
    zp_share grad = ZP_WHOLE, param = stage.parameters;
    z->policy = stage;
    z->master = zp_masters[c->master];
    z->adding = each ? ZP_EACH_REDUCED : sums ? ZP_COLLECTED : ZP_IN_PLACE;
    if (stage.gradients == ZP_SHARD && z->adding != ZP_IN_PLACE) grad = ZP_NOTHING; /* in buffers */
    zp_plan_set_array(&z->array[ZP_GRAD], type, grad);
    if (param == ZP_SHARD && sees) param = ZP_SEEN;
    zp_plan_set_array(&z->array[ZP_PARAM], c->type, param);
    zp_plan_set_array(&z->array[ZP_NEXT], c->type, ZP_NOTHING);
    zp_plan_set_array(&z->array[ZP_SUM], ZERO_F32, !sums ? ZP_NOTHING : each ? ZP_SHARD : ZP_WHOLE);
    zp_plan_set_array(&z->array[ZP_MASTER], z->master.type, masters ? stage.state : ZP_NOTHING);
    for (int i = 0; i < ZP_STATES; i++)
        zp_plan_set_array(&z->array[ZP_STATE + i], ZERO_F32,
                          i < z->rule->states ? stage.state : ZP_NOTHING);
    z->array[ZP_STATE + 1].squares = (z->rule->reads & ZP_AVERAGES_SQUARES) != 0;
    zp_plan_set_array(&z->array[ZP_MEAN], type, ZP_SHARD);
    report->divisor = (double)z->data->divisor;
    zp_kernel_set_scale(report, c->scaler.fixed != 0 ? c->scaler.fixed : c->scaler.initial);
    report->used_scale = report->scale;
    report->hysteresis = c->scaler.hysteresis;
    report->last_overflow = -1;
    return zp_extra_call(z, ZP_ON_CHOOSE);
}

static int zp_plan_compare_sizes(const void *a, const void *b) {
    const size_t x = ((const size_t *)a)[ZP_PARAM], y = ((const size_t *)b)[ZP_PARAM];
    return (x > y) - (x < y);
}
/* Returns the elements that a side's buffer holds of unit u: only trained ones have gradients. */
static size_t zp_plan_padded(const zero_ctx *z, int side, int u) {
    return side == ZP_GRAD ? z->layout.unit[u].padded : zp_layout_padded(&z->layout, u);
}

/* Returns the number of units that your code may have open at the same time. */
static size_t zp_plan_open_units(const zero_ctx *z) {
    return (size_t)(z->cfg.open_units == ZERO_ALL ? z->layout.units : z->cfg.open_units);
}

/* Returns the maximum number of shared parameter buffers. */
static size_t zp_plan_gather_buffers(const zero_ctx *z) {
    const int gathers = z->array[ZP_PARAM].share == ZP_SHARD;
    return gathers ? zp_max((size_t)z->cfg.prefetch + 2, zp_plan_open_units(z)) : 0;
}

/* Returns the maximum number of shared gradient buffers of `shared` elements: those of a bucket,
   and two that backward writes meanwhile. Where each unit is reduced alone, because the smallest
   two, of `pair` elements, exceed a bucket, one is as fast, unless gathers delay reductions. */
static size_t zp_plan_reduce_buffers(const zero_ctx *z, size_t shared, size_t pair) {
    const size_t bucket = zp_max(z->cfg.bucket_numel, shared), units = shared ? bucket / shared : 0;
    const int alone = units == 1 && pair > bucket && !zp_plan_gather_buffers(z);
    return zp_max(alone ? 2 : units + 2, zp_plan_open_units(z));
}

/* The sizes of gradients among the units with the fewest parameters, which share buffers. */
typedef struct zp_plan_shared {
    size_t smallest[2]; /* elements of the two smallest gradients; SIZE_MAX: there is none */
    size_t largest;     /* of the largest gradient */
} zp_plan_shared;
static void zp_plan_share(zp_plan_shared *x, size_t gradient) {
    x->largest = zp_max(x->largest, gradient);
    if (!gradient || gradient >= x->smallest[1]) return;
    x->smallest[1] = zp_max(gradient, x->smallest[0]);
    x->smallest[0] = zp_min(gradient, x->smallest[0]);
}
static size_t zp_plan_pair(const zp_plan_shared *x) {
    return x->smallest[1] == SIZE_MAX ? SIZE_MAX : x->smallest[0] + x->smallest[1];
}

/* Chooses the elements of the shared buffers, so that the memory is smallest. Units with more
   parameters, and units that are used more often, have a buffer of their own. */
static zero_result zp_plan_choose_buffers(zero_ctx *z) {
    const zp_layout *l = &z->layout;
    const size_t gathered = zp_plan_gather_buffers(z);
    const size_t of_p = gathered ? zp_type_bytes(z->array[ZP_PARAM].type) : 0,
                 of_g = zp_type_bytes(z->array[ZP_GRAD].type);
    int n = 0;
    size_t larger = 0, least = SIZE_MAX;
    zp_plan_shared first = {{SIZE_MAX, SIZE_MAX}, 0}, shared = first;
    size_t(*sizes)[2] = (size_t(*)[2])calloc((size_t)l->units + 1, sizeof *sizes); /* by side */
    if (!sizes) return ZERO_ERR_MEMORY;
    z->shared_numel[ZP_GRAD] = z->shared_numel[ZP_PARAM] = 0;
    for (int u = 0; u < l->units; u++) {
        if (l->unit[u].uses > 1 || !zp_layout_numel(l, u)) continue;
        for (int side = 0; side < 2; side++) sizes[n][side] = zp_plan_padded(z, side, u);
        larger += of_g * sizes[n][ZP_GRAD] + of_p * sizes[n][ZP_PARAM];
        n++;
    }
    qsort(sizes, (size_t)n, sizeof *sizes, zp_plan_compare_sizes);
    for (int i = 0; i < n; i++) {
        const size_t sharing = (size_t)i + 1, p = sizes[i][ZP_PARAM], g = sizes[i][ZP_GRAD];
        zp_plan_share(&first, g);
        larger -= of_g * g + of_p * p; /* these units have their own buffers, on both sides */
        const size_t reduced = zp_plan_reduce_buffers(z, first.largest, zp_plan_pair(&first));
        const size_t bytes = larger + zp_min(sharing, gathered) * of_p * p
                             + zp_min(sharing, reduced) * of_g * first.largest;
        if (bytes > least) continue;
        least = bytes;
        z->shared_numel[ZP_PARAM] = p;
    }
    for (int i = 0; i < n && sizes[i][ZP_PARAM] <= z->shared_numel[ZP_PARAM]; i++)
        zp_plan_share(&shared, sizes[i][ZP_GRAD]);
    z->shared_numel[ZP_GRAD] = shared.largest;
    z->pair_numel = zp_plan_pair(&shared);
    free(sizes);
    return ZERO_OK;
}

/* Returns 1 if every rank keeps unit u whole, in both segments. */
static int zp_plan_unit_stays(const zero_ctx *z, int u) {
    const zp_layout *l = &z->layout;
    const int64_t limit = z->cfg.persistence_numel;
    int only_one_d = 1;
    size_t largest = 0;
    if (z->policy.parameters == ZP_WHOLE || u == l->units || !zp_layout_numel(l, u)) return 1;
    ZP_EACH_SEGMENT(l, u, s) {
        only_one_d &= l->unit[s].only_one_d;
        largest = zp_max(largest, l->unit[s].largest_tensor);
    }
    if (limit == 0) return only_one_d;
    return limit > 0 && largest <= (uint64_t)limit;
}

/* Adds a buffer. If a tier copies its shards, `align` is the tier's. The buffer is then aligned,
   with room to align the shard instead of the unit, and for the rest of the last transfer. */
static int zp_plan_add_buffer(zp_buffers *p, size_t bytes, int own, size_t align) {
    if (align) p->bytes = zp_round_up(p->bytes, align);
    const zp_buffer made = {p->bytes, -1, 0, 0, NULL};
    p->buffer[p->n] = made;
    p->alone += own; /* own buffers come first */
    p->bytes += bytes + 2 * align;
    return p->n++;
}

/* Cuts the parts of all arrays. Of frozen segments only PARAM has parts. MEAN follows GRAD. It is
   inside GRAD if your code overwrites it only after the update: with a reduction in the last
   micro-step alone, or if SUM has the sum. */
static void zp_plan_cut_arrays(zero_ctx *z) {
    const zp_layout *l = &z->layout;
    zp_array *a = z->array;
    const int kept = a[ZP_GRAD].share == ZP_WHOLE
                     && (a[ZP_GRAD].type != ZERO_F32 || z->adding != ZP_EACH_REDUCED);
    const int inside = kept && !zp_ctx_keeps_next(z);
    for (int k = 0; k < ZP_ARRAYS; k++) {
        size_t at = k == ZP_MEAN ? a[ZP_GRAD].bytes : 0;
        a[k].part = a[0].part + (size_t)k * (size_t)l->segments;
        a[k].bytes = 0;
        for (int u = 0; u < l->segments; u++) {
            const int unit = zp_layout_unit_of(l, u), none = k != ZP_PARAM && u >= l->all;
            const int stays =
                k == ZP_PARAM && a[k].share == ZP_SHARD && zp_plan_unit_stays(z, unit);
            const int resident = k == ZP_NEXT && a[ZP_PARAM].part[u].tier == ZERO_DEVICE;
            const int here = stays || resident || none || !z->live[unit].may_leave;
            const int f32 = k >= ZP_STATE && k < ZP_NEXT && l->unit[u].f32_state;
            const zp_share share = none ? ZP_NOTHING : stays ? ZP_WHOLE : a[k].share;
            const zp_array_part x = {
                f32 ? ZERO_F32 : a[k].type, share, here ? ZERO_DEVICE : a[k].tier, 0, 0, 0, 0};
            at = zp_array_cut(&a[k], u, &l->unit[u], x, z->data->rank, at,
                              k == ZP_STATE + 1 ? l->unit[u].plain : SIZE_MAX);
            zp_array_part *part = &a[k].part[u];
            if (k == ZP_MEAN && inside)
                part->at = a[ZP_GRAD].part[u].at + part->first * zp_type_bytes(a[k].type);
        }
    }
    if (inside) a[ZP_MEAN].bytes = 0;
}

/* Returns how many of numel elements a rank keeps. */
static size_t zp_plan_share_numel(const zero_ctx *z, zp_share share, size_t numel) {
    const size_t n = (size_t)z->data->nranks;
    return share == ZP_NOTHING ? 0 : share == ZP_SHARD ? (numel + n - 1) / n : numel;
}

/* Counts the arrays' bytes. */
static void zp_plan_count_bytes(zero_ctx *z) {
    const zp_array *a = z->array;
    const zp_policy *stage = &z->policy;
    zero_plan *plan = &z->plan;
    const size_t of_p = zp_type_bytes(a[ZP_PARAM].type), of_g = zp_type_bytes(a[ZP_GRAD].type);
    for (int u = 0; u < z->layout.all && stage->parameters == ZP_SHARD; u++)
        if (zp_plan_unit_stays(z, u)) plan->kept_bytes += zp_plan_padded(z, ZP_PARAM, u) * of_p;
    plan->param_bytes = zp_plan_share_numel(z, stage->parameters, z->layout.padded) * of_p
                        - zp_array_bytes_off_device(&a[ZP_PARAM], z->layout.segments);
    const size_t trained = z->layout.padded - z->layout.frozen_padded;
    plan->grad_bytes = zp_plan_share_numel(z, stage->gradients, trained) * of_g
                       - zp_array_bytes_off_device(&a[ZP_MEAN], z->layout.all);
    for (int k = ZP_MASTER; k < ZP_NEXT; k++) plan->optimizer_bytes += a[k].bytes;
    z->pool[ZP_PARAM].bytes = a[ZP_PARAM].bytes;
    z->pool[ZP_GRAD].bytes = a[ZP_GRAD].bytes + a[ZP_MEAN].bytes;
    plan->accumulator_bytes = z->pool[ZP_GRAD].bytes - plan->grad_bytes + a[ZP_SUM].bytes;
    plan->buffer_bytes = plan->accumulator_bytes + z->piece_bytes + a[ZP_NEXT].bytes;
    if (a[ZP_PARAM].share != ZP_SEEN) plan->buffer_bytes += a[ZP_PARAM].bytes - plan->param_bytes;
}

/* Adds one side's buffers: own ones, for units that no array keeps whole, then at most `most`
   shared ones. Adds their bytes to *own, with the room to align all of them, and to *shared.
   Returns the number of units that can be open at the same time. */
static int zp_plan_assign_side(zero_ctx *z, zp_side side, size_t most, size_t *own,
                               size_t *shared) {
    const zp_array *a = zp_ctx_side_array(z, side);
    const size_t align = a->tiers[a->tier].align, of = zp_type_bytes(z->array[side].type);
    /* of two segments, each is aligned */
    const size_t room = side == ZP_PARAM && z->layout.segments > z->layout.all ? 3 * align : 0;
    size_t sharing = 0;
    for (int u = 0; u < z->layout.all; u++) {
        const size_t padded = zp_plan_padded(z, side, u);
        zp_live *live = &z->live[u];
        const int waits =
            side == ZP_GRAD && live->reduced_last; /* its gradient waits in its own buffer */
        const int alone = u == z->layout.units || z->layout.unit[u].uses > 1
                          || zp_layout_padded(&z->layout, u) > z->shared_numel[ZP_PARAM] || waits;
        live->buffer[side] = live->own[side] = -1;
        sharing += padded && !alone;
        if (!padded || !alone || zp_ctx_unit_is_whole(z, side, u)) continue;
        live->own[side] = zp_plan_add_buffer(&z->pool[side], padded * of + room, 1, align);
        *own += padded * of + room + 3 * align;
    }
    for (size_t i = 0; i < zp_min(sharing, most); i++) {
        (void)zp_plan_add_buffer(&z->pool[side], z->shared_numel[side] * of + room, 0, align);
        *own += room + 3 * align;
        *shared += z->shared_numel[side] * of;
    }
    return most && most < sharing ? (int)most : z->layout.units;
}

static void zp_plan_assign_buffers(zero_ctx *z) {
    const zp_array *a = z->array;
    const size_t shared_g = z->shared_numel[ZP_GRAD], of_g = zp_type_bytes(a[ZP_GRAD].type);
    const size_t of_unit =
        z->shared_numel[ZP_PARAM] * zp_type_bytes(a[ZP_PARAM].type) + shared_g * of_g;
    const size_t units = zp_plan_open_units(z);
    const int whole = a[ZP_GRAD].share == ZP_WHOLE;
    const size_t reduced = whole ? 0 : zp_plan_reduce_buffers(z, shared_g, z->pair_numel);
    /* for broadcasts; and what transports keep for messages between nodes and for split groups */
    size_t staging = ZP_STAGE_NUMEL * sizeof(float) + z->all->wire_bytes, own = 0, shared = 0;
    for (int i = ZP_DATA; i < ZP_GROUPS; i++) staging += z->group[i].wire_bytes + z->part[i].bytes;
    const int backward = zp_plan_assign_side(z, ZP_GRAD, reduced, &own, &shared),
              forward = zp_plan_assign_side(z, ZP_PARAM, zp_plan_gather_buffers(z), &own, &shared);
    z->plan.open_forward = forward;
    z->plan.open_backward = forward < backward ? forward : backward;
    z->plan.buffer_bytes += own + shared + staging;
    z->plan.buffer_ceiling_bytes = z->piece_bytes + a[ZP_NEXT].bytes + own
                                   + (a[ZP_PARAM].share == ZP_SEEN ? 0 : z->plan.kept_bytes)
                                   + zp_max((size_t)z->cfg.prefetch + 2, units) * of_unit
                                   + z->bucket_numel * of_g + staging;
}

/* Counts the gathers of every segment in one step of the expected order. Those of a unit's segments
   are as many, except that a step does not change frozen segments that are kept whole. */
static void zp_plan_count_gathers(zero_ctx *z) {
    int fill[ZERO_PREFETCH_MOST + 2];
    zp_order *t = &z->order[ZERO_TRAIN];
    zp_buffers *pool = &z->pool[ZP_PARAM];
    const int passes = t->all_micro_steps ? 1 : z->cfg.micro_steps;
    for (int u = 0; u < z->layout.all; u++)
        z->live[u].gathers = zp_ctx_unit_is_whole(z, ZP_PARAM, u) && z->layout.unit[u].numel;
    for (int pass = 0; pass < passes; pass++) {
        zp_order_expect(z, ZERO_TRAIN);
        for (int i = 0; i < t->n; i++) {
            const int unit = t->unit[t->at++];
            const int n = zp_order_schedule(z, t, unit, pass + 1 < passes, fill);
            for (int k = 0; k < n; k++) z->live[fill[k]].gathers++;
            zp_buffer_hold(pool, unit, 1);
            zp_buffer_hold(pool, unit, -1);
        }
    }
    t->at = 0;
    zp_buffer_forget_all(&z->pool[ZP_PARAM]);
    for (int u = z->layout.segments - 1; u >= 0; u--) {
        const int unit = zp_layout_unit_of(&z->layout, u);
        const int here =
            z->layout.unit[u].numel && (u == unit || !zp_ctx_unit_is_whole(z, ZP_PARAM, u));
        z->live[u].gathers = here ? z->live[unit].gathers : 0;
    }
}

/* Return the bytes that this rank sends for segment u in a step: the first for its gathers, which
   at stage 0 gather gradients; the second in total. */
static size_t zp_plan_gathers_sent(zero_ctx *z, int u) {
    const zp_channel gathered = z->policy.state == ZP_WHOLE ? ZP_GRADIENTS : ZP_PARAMETERS;
    zp_op gather = zp_ctx_make_op(z, gathered, ZP_ALL_GATHER, u);
    gather.wire = gathered == ZP_PARAMETERS ? z->live[u].wire[ZP_PARAM] : NULL;
    return (size_t)(z->live[u].gathers - z->live[u].other_gathers) * zp_comm_op_bytes(&gather);
}
static size_t zp_plan_unit_sent(zero_ctx *z, int u) {
    zp_op reduce = zp_ctx_make_op(z, ZP_GRADIENTS, ZP_REDUCE_SCATTER, u);
    reduce.wire = z->live[u].wire[ZP_GRAD];
    return zp_plan_gathers_sent(z, u)
           + (size_t)zp_order_reductions(z, u) * zp_comm_op_bytes(&reduce) + zp_extra_sent(z, u);
}

static void zp_plan_count_traffic(zero_ctx *z) {
    for (int u = 0; u < z->layout.segments; u++) {
        z->plan.sent_bytes += zp_plan_unit_sent(z, u);
        if (z->policy.state == ZP_SHARD) z->plan.gather_bytes += zp_plan_gathers_sent(z, u);
    }
    const zp_op verdict = zp_verdict_op(z);
    z->plan.verdict_bytes = (z->follows ? 0 : zp_comm_op_bytes(&verdict)) + zp_extra_sent(z, -1);
}

static void zp_plan_close(zero_ctx *z) {
    free(z->live);
    free(z->array[0].part);
    z->live = NULL;
    z->array[0].part = NULL;
    for (int i = 0; i < 2; i++) {
        free(z->pool[i].buffer);
        free(z->pool[i].held_by);
        memset(&z->pool[i], 0, sizeof z->pool[i]);
    }
    zp_layout_close(&z->layout);
}

static zero_result zp_plan_alloc_units(zero_ctx *z) {
    const size_t units = (size_t)z->layout.all; /* at most one buffer per unit */
    const size_t segments = (size_t)z->layout.segments;
    z->live = (zp_live *)calloc(segments, sizeof *z->live);
    z->array[0].part = (zp_array_part *)calloc(ZP_ARRAYS * segments, sizeof(zp_array_part));
    int made = z->live && z->array[0].part;
    for (int i = 0; i < 2; i++) {
        const size_t micro_steps = i == ZERO_TRAIN ? (size_t)z->cfg.micro_steps : 1;
        const size_t visits = zp_min(4 * units * micro_steps, 1 << 20); /* most begins of a pass */
        z->pool[i].buffer = (zp_buffer *)calloc(units, sizeof *z->pool[i].buffer);
        z->pool[i].held_by = (int *)calloc(units, sizeof *z->pool[i].held_by);
        made &= z->pool[i].buffer && z->pool[i].held_by
                && zp_order_reserve(&z->order[i], zp_max(4 * units + 16, visits));
    }
    return made ? ZERO_OK : ZERO_ERR_MEMORY;
}

/* Fills z->layout, live, pool and plan. */
static zero_result zp_plan_make(zero_ctx *z) {
    zp_plan_close(z);
    memset(&z->plan, 0, sizeof z->plan);
    z->nranges[0] = z->nranges[1] = 0;
    z->piece_bytes = z->peer_bytes = 0;
    zero_result r =
        zp_layout_open(&z->layout, z->tensors, z->ntensors, z->data->nranks, z->ncopies);
    if (!r) r = zp_plan_alloc_units(z);
    for (int m = 0; m < z->layout.nmembers && !r; m++) {
        const zp_member *x = &z->layout.members[m];
        const zero_tensor_desc *d = &z->tensors[x->tensor].desc;
        const int differs = !(d->flags & ZERO_F32_STATE) && z->layout.unit[x->unit].f32_state;
        ZP_REFUSE(z, differs && x->unit < z->layout.all,
                  "tensor %s is not F32_STATE, but others of its unit are; flag all", d->name);
        z->live[zp_layout_unit_of(&z->layout, x->unit)].reduced_last |= (d->flags & ZERO_LATE) != 0;
    }
    if (!r) r = zp_extra_call(z, ZP_ON_LAYOUT);
    if (r == ZERO_ERR_ARGUMENT) return r;
    if (!r) r = zp_plan_choose_buffers(z);
    if (r) return zp_ctx_fail(z, r, "lists of %d tensors", z->ntensors);
    z->bucket_numel = z->cfg.bucket_numel ? z->cfg.bucket_numel : z->shared_numel[ZP_GRAD];
    ZP_REFUSE(
        z, z->bucket_numel < z->shared_numel[ZP_GRAD],
        "bucket_numel is %zu, but the largest unit that shares a buffer has %zu elements; use at "
        "least that, or 0",
        z->cfg.bucket_numel, z->shared_numel[ZP_GRAD]);
    zp_plan_cut_arrays(z);
    ZP_TRY(zp_extra_call(z, ZP_ON_ARRAYS));
    zp_plan_count_bytes(z);
    zp_plan_assign_buffers(z);
    ZP_TRY_IF(z->announcer, check, z); /* the tensors may have changed after the announcement */
    zp_plan_count_gathers(z);
    z->param_end = z->pool[ZP_PARAM].bytes;
    ZP_TRY(zp_extra_call(z, ZP_ON_PLAN));
    zp_plan_count_traffic(z);
    zp_order_expect(z, ZERO_EVAL);
    z->plan.numel = z->layout.numel;
    z->plan.padded_numel = z->layout.padded;
    z->plan.units = z->layout.units + (zp_layout_numel(&z->layout, z->layout.units) > 0);
    z->plan.nranks = z->all->nranks;
    return zp_extra_call(z, ZP_ON_PLANNED);
}

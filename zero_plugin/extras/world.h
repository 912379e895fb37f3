/* world.h - groups of ranks in addition to those that a context shards over

   THE WORLD decides on a step together. Each rank's verdict has the sum of squares of each of its
   units, at the unit's number in the whole model. All ranks add these unit by unit, in rank order.
   A rank without the unit contributes 0, so the norm has the same bits for every distribution of
   units over pipeline stages. If other ranks also count a tensor, this rank leaves it out.

   FIRST SUMS. A tensor's gradient can be summed over a group of its own, on the gradient stream,
   before the ranks that shard the tensor reduce it.

   A TENSOR'S OWN DIVISOR replaces cfg.divisor: a station rescales the reduced gradient.

   A CONTEXT THAT JOINS another adds its squares to that context's verdict, and takes the decision
   from there. */
#pragma once

#include "../comm/collectives.h"
#include "../core/agree.h"
#include "../core/verdict.h"
#include "../core/extra.h"

/* A group over which gradients are summed first: your code's, and the context's own copy. */
typedef struct zp_first_sum {
    struct zp_first_sum *next;
    zero_group *given, *own;
} zp_first_sum;

typedef struct zp_world_state {
    zp_first_sum *first_sums; /* list of the groups of sum_over */
    zero_group *traced;       /* list of groups that use this context's recorder */
    int agrees_later;         /* cfg.joins: the other context has not called zero_reduce yet */
} zp_world_state;

/* Returns the context that joins this one; NULL: none. */
static zero_ctx *zp_world_joined(const zero_ctx *z) { return z->follows ? NULL : z->partner; }

/* Returns the context's own copy of a group of your code; NULL: no copy. */
static zero_group *zp_world_own_group(const zero_ctx *z, const zero_group *given) {
    const zp_first_sum *f = z->groups->first_sums;
    while (f && f->given != given) f = f->next;
    return f ? f->own : NULL;
}

/* Sums the tensors of unit u that have groups of their own: as a task of the gradient stream, or by
   calls that enqueue on it. */
typedef struct zp_world_first_sums_args {
    zero_ctx *z;
    int unit;
    char *memory; /* the gradient of the unit */
} zp_world_first_sums_args;

static void zp_world_first_sums_task(const void *args, size_t n, int threads) {
    const zp_world_first_sums_args *a = (const zp_world_first_sums_args *)args;
    zero_ctx *z = a->z;
    const zp_unit *x = &z->layout.unit[a->unit];
    const zp_array *grad = &z->array[ZP_GRAD];
    for (int i = 0; i < x->members && !zp_failure_result(&z->failure); i++) {
        const zp_member *m = &x->member[i];
        zero_group *g = zp_world_own_group(z, z->tensors[m->tensor].desc.sum_over);
        if (!g || g->group.nranks == 1) continue;
        char *sum = a->memory + m->at * zp_type_bytes(grad->type);
        const zp_collective c =
            zp_collectives_make_sum(g, sum, sum, m->numel, grad->type, ZERO_SUM);
        const zero_result r = zp_group_end(g, "a gradient's first sum", zp_collectives_run(g, &c));
        if (r) (void)zp_comm_fail(z->data, r, "%s", g->text);
    }
}
/* Fills the record of these sums: the bytes, and the ranks of the last group. */
static void zp_world_record_first_sums(const zero_ctx *z, int u, zp_record *r) {
    const zp_unit *x = &z->layout.unit[u];
    for (int i = 0; r && i < x->members; i++) {
        const zp_member *m = &x->member[i];
        const zero_group *g = zp_world_own_group(z, z->tensors[m->tensor].desc.sum_over);
        if (!g || g->group.nranks == 1) continue;
        r->event.bytes += m->numel * zp_type_bytes(z->array[ZP_GRAD].type);
        r->event.ranks = g->group.nranks;
        r->event.sent +=
            zp_collectives_sum_sent(g, m->numel) * zp_type_bytes(z->array[ZP_GRAD].type);
    }
}
static zero_result zp_world_first_sums(zero_ctx *z, int u) {
    const zp_world_first_sums_args a = {z, u, zp_ctx_unit_memory(z, ZP_GRAD, u)};
    zp_stream *s = &z->stream[ZP_GRADIENTS];
    zero_result result = ZERO_OK;
    zp_record *r = zp_device_begin_slice(s, ZERO_EVENT_ALL_REDUCE, u, 0);
    zp_world_record_first_sums(z, u, r);
    if (zp_device_is_host())
        result = zp_device_push_task(s, zp_world_first_sums_task, &a, sizeof a, 1);
    else
        zp_world_first_sums_task(&a, 1, 1);
    zp_device_end_slice(s, r);
    return result ? result : zp_failure_result(&z->failure);
}

/* ---- a step ---- */

/* Check that zero_reduce of the joining context comes before that of the joined one, and that both
   have come before the agreement is used. */
static zero_result zp_world_check_reduce(zero_ctx *z) {
    const zero_ctx *j = zp_world_joined(z);
    ZP_UNTIMELY(z, j && !j->groups->agrees_later,
                "the context that joins this one was not reduced; call zero_reduce for it first");
    return ZERO_OK;
}
static zero_result zp_world_check_agreed(zero_ctx *z) {
    ZP_UNTIMELY(z, z->groups->agrees_later,
                "the context that this one joins was not reduced; call zero_reduce for it first");
    return ZERO_OK;
}

/* For a context that joins another one: adds its verdict to the other's. With `control` set, it
   copies the agreed values back. One thread. */
typedef struct zp_world_join_verdict_args {
    double *to;         /* [ZP_VERDICT + units] */
    const double *from; /* of the context that joins */
    int units;
    zp_control *control; /* of the context that joins; NULL: add the verdict */
    const zp_control *agreed;
} zp_world_join_verdict_args;

ZP_FN void zp_world_join_verdict_at(const zp_world_join_verdict_args *a, size_t one) {
    if (a->control) {
        memcpy(a->control, a->agreed, offsetof(zp_control, steps));
        return;
    }
    for (int u = 0; u < a->units; u++) a->to[ZP_VERDICT + u] += a->from[ZP_VERDICT + u];
    if (a->from[ZP_BAD_UNIT] == 0
        || (a->to[ZP_BAD_UNIT] > 0 && a->to[ZP_BAD_UNIT] <= a->from[ZP_BAD_UNIT]))
        return;
    a->to[ZP_BAD_UNIT] = a->from[ZP_BAD_UNIT];
    a->to[ZP_BAD_PLACE] = a->from[ZP_BAD_PLACE];
}
ZP_KERNEL(zp_world_join_verdict, zp_world_join_verdict_args, 1)

/* Enqueues the agreement. The joined context adds the verdict of the context that joins it, and
   copies the result back to it. */
static zero_result zp_world_agree(zero_ctx *z) {
    zp_stream *s = &z->stream[ZP_GRADIENTS];
    zero_ctx *j = zp_world_joined(z);
    z->groups->agrees_later = z->follows;
    if (z->follows) return zp_ctx_check(z, zp_device_record_event(s, z->agreed));
    if (!j) return zp_verdict_agree(z);
    const zp_world_join_verdict_args join = {z->verdict, j->verdict, z->verdict_units, NULL, NULL},
                                     back = {NULL, NULL, 0, j->control, z->control};
    ZP_DO(z, zp_device_wait_event(s, j->agreed));
    ZP_DO(z, zp_world_join_verdict(s, &join, 1));
    ZP_TRY(zp_verdict_agree(z));
    ZP_DO(z, zp_world_join_verdict(s, &back, 1));
    ZP_DO(z, zp_device_record_event(s, j->agreed));
    ZP_DO(z, zp_device_wait_event(&j->stream[ZP_GRADIENTS], j->agreed));
    j->agreement_begun = 1;
    j->groups->agrees_later = 0;
    return ZERO_OK;
}

static int zp_world_is_copy(const zero_ctx *z, const zp_member *m) {
    return (z->tensors[m->tensor].desc.flags & ZERO_COPY) != 0;
}
/* Station: adds the squares of the elements that this rank counts. Tensors that are copies are left
   out: other ranks of the world count them. */
static zero_result zp_world_take_norm(zero_ctx *z, int u) {
    const zp_unit *x = &z->layout.unit[u];
    const size_t first = zp_ctx_piece_first(z, u), end = first + zp_ctx_piece(z, u);
    int copies = 0;
    for (int i = 0; i < x->members; i++) copies |= zp_world_is_copy(z, &x->member[i]);
    if (!copies) return zp_verdict_take_norm(z, u);
    for (int i = 0; i < x->members; i++) {
        const zp_member *m = &x->member[i];
        const size_t next = i + 1 < x->members ? x->member[i + 1].at : x->padded;
        const size_t from = zp_max(first, m->at), to = zp_min(end, next);
        if (!zp_world_is_copy(z, m) && from < to) ZP_TRY(zp_verdict_take_squares(z, u, from, to));
    }
    return ZERO_OK;
}

/* Station: sums gradients over the groups that the unit's tensors name. */
static zero_result zp_world_presum(zero_ctx *z, int u) {
    const zp_unit *x = &z->layout.unit[u];
    int sums = 0;
    for (int i = 0; i < x->members; i++)
        sums |= z->tensors[x->member[i].tensor].desc.sum_over != NULL;
    return sums ? zp_world_first_sums(z, u) : ZERO_OK;
}
static int zp_world_has_sums(const zero_ctx *z) {
    int sums = 0;
    for (int t = 0; t < z->ntensors; t++) sums |= z->tensors[t].desc.sum_over != NULL;
    return sums;
}
static int zp_world_has_copies(const zero_ctx *z) {
    int copies = 0;
    for (int t = 0; t < z->ntensors; t++) copies |= z->tensors[t].desc.flags & ZERO_COPY;
    return copies != 0;
}

/* ---- tensors with a divisor of their own ---- */

/* Multiplies gradients by a factor, to change the divisor of their sum. */
typedef struct zp_world_rescale_args {
    void *g;
    zero_type type;
    float factor;
} zp_world_rescale_args;

ZP_FN void zp_world_rescale_at(const zp_world_rescale_args *a, size_t i) {
    zp_type_store(a->g, a->type, i, a->factor * zp_type_load(a->g, a->type, i));
}
ZP_KERNEL(zp_world_rescale, zp_world_rescale_args, 32768)

/* Station: rescales the tensors with their own divisor in this rank's reduced shard of unit u. */
static zero_result zp_world_divide(zero_ctx *z, int u) {
    const zp_unit *x = &z->layout.unit[u];
    const zp_array *mean = &z->array[ZP_MEAN];
    const size_t first = zp_ctx_shard_first(z, u), end = first + zp_ctx_shard(z, u);
    const int usual = z->cfg.divisor ? z->cfg.divisor : z->all->nranks;
    for (int i = 0; i < x->members; i++) {
        const zp_member *m = &x->member[i];
        const int own = z->tensors[m->tensor].desc.divisor;
        const size_t from = zp_max(first, m->at), to = zp_min(end, m->at + m->numel);
        if (!own || own == usual || from >= to) continue;
        const zp_world_rescale_args a = {zp_ctx_unit_mean(z, u)
                                             + (from - first) * zp_type_bytes(mean->type),
                                         mean->type, (float)((double)usual / (double)own)};
        ZP_TRY(zp_world_rescale(&z->stream[ZP_GRADIENTS], &a, to - from));
    }
    return ZERO_OK;
}
static int zp_world_has_divisors(const zero_ctx *z) {
    int own = 0;
    for (int t = 0; t < z->ntensors; t++) own |= z->tensors[t].desc.divisor;
    return own != 0;
}

/* ---- life ---- */

static zero_result zp_world_tensor(zero_ctx *z, zp_tensor *t) {
    ZP_REFUSE(z, t->desc.flags & ZERO_COPY && !z->cfg.world,
              "tensor %s is COPY, but cfg.world is NULL; set it", t->desc.name);
    return ZERO_OK;
}

static void zp_world_describe(const zero_ctx *z, const zp_tensor *t, char *text, size_t bytes) {
    const size_t n = strlen(text);
    if (t->desc.divisor) (void)snprintf(text + n, bytes - n, "divisor %d, ", t->desc.divisor);
}

/* Numbers the units in the whole model, and looks for copies. */
static zero_result zp_world_layout(zero_ctx *z) {
    const zero_config *c = &z->cfg;
    const int units = c->world_units ? c->world_units : z->layout.units;
    z->row_takes_norm = 0;
    for (int t = 0; t < z->ntensors; t++)
        z->row_takes_norm |= (z->tensors[t].desc.flags & ZERO_COPY) != 0;
    if (!c->world && !c->joins) return ZERO_OK;
    free(z->verdict_unit);
    z->verdict_unit = (int *)calloc((size_t)z->layout.all, sizeof *z->verdict_unit);
    if (!z->verdict_unit) return ZERO_ERR_MEMORY;
    z->verdict_units = units + 1;
    for (int u = 0; u < z->layout.units; u++) {
        const int number = z->verdict_unit[u] = c->world_unit ? c->world_unit[u] : u;
        ZP_REFUSE(z, number < 0 || number >= units || (u && number <= z->verdict_unit[u - 1]),
                  "world_unit[%d] is %d, expected one above that of the unit before and below "
                  "world_units, %d",
                  u, number, units);
    }
    z->verdict_unit[z->layout.units] = units;
    return ZERO_OK;
}

/* Opens the group of the world; after zero_build it must still exist, or be another one. COLLECTIVE
   over its ranks. */
static zero_result zp_world_join(zero_ctx *z) {
    zero_group *world = z->cfg.world;
    zero_ctx *joins = z->cfg.joins;
    if (joins && z->phase != ZP_NEW) return ZERO_OK;
    ZP_REFUSE(z,
              joins && (joins->partner || joins->cfg.joins || joins->cfg.world != world || !world),
              "joins: that context is joined already, or of another world; use one of this world");
    ZP_REFUSE(z, joins && z->cfg.world_units != joins->cfg.world_units,
              "world_units is %d, but %d in the context that this one joins; use one number",
              z->cfg.world_units, joins->cfg.world_units);
    if (joins) {
        joins->partner = z;
        z->partner = joins;
        z->follows = 1;
        z->agree = joins->agree = zp_world_agree;
        zp_device_order_with(&z->device, &joins->device);
        return ZERO_OK;
    }
    if (!world) return ZERO_OK;
    const zero_comm comm = world->comm;
    ZP_DO(z, zp_comm_open(&z->group[ZP_AGREEING], zp_transport_find(comm.kind), &comm));
    z->agreeing = &z->group[ZP_AGREEING];
    return ZERO_OK;
}

/* Opens the context's own copy of a group that a tensor names. COLLECTIVE over that group. */
static zero_result zp_world_copy_group(zero_ctx *z, const zp_tensor *t, zero_group *given,
                                       const char *call) {
    if (!given || zp_world_own_group(z, given)) return ZERO_OK;
    zp_first_sum *f = (zp_first_sum *)calloc(1, sizeof *f);
    if (!f) return z->dead = zp_ctx_fail(z, ZERO_ERR_MEMORY, "a group of tensor %s", t->desc.name);
    f->given = given;
    f->next = z->groups->first_sums;
    z->groups->first_sums = f;
    void *stream = zp_device_stream_handle(&z->stream[ZP_GRADIENTS]);
    const zero_result r =
        zp_collectives_split(given, "zero_build", 0, given->group.rank, stream, &f->own);
    if (r)
        return z->dead = zp_ctx_fail(z, r, "tensor %s, %s: %s", t->desc.name, call,
                                     f->own ? f->own->text : given->text);
    zp_device_order_with(&f->own->device, &z->device);
    return ZERO_OK;
}

/* Checks that the world's ranks have models of one size. COLLECTIVE over the world. */
static zero_result zp_world_compare(zero_ctx *z) {
    const int32_t replicas = 1 << 24, units = z->verdict_units | (z->ncopies > 1 ? replicas : 0);
    if (z->agreeing == z->all) return ZERO_OK;
    ZP_DO(z, zp_comm_exchange(z->agreeing, &units, sizeof units));
    const int r = zp_agree_first_difference(z->agreeing, sizeof units);
    int32_t zeroth, other;
    memcpy(&zeroth, z->agreeing->mail, sizeof zeroth);
    memcpy(&other, z->agreeing->mail + (size_t)r * sizeof other, sizeof other);
    if ((zeroth ^ other) & replicas)
        return z->dead = zp_ctx_fail(z, ZERO_ERR_MISMATCH,
                                     "shard_ranks cuts the ranks on rank %d of the world, and not "
                                     "on rank %d",
                                     other & replicas ? r : 0, other & replicas ? 0 : r);
    if (r)
        return z->dead = zp_ctx_fail(
                   z, ZERO_ERR_MISMATCH, "world_units is %d on rank 0 of the world, %d on rank %d",
                   (int)(zeroth & ~replicas) - 1, (int)(other & ~replicas) - 1, r);
    return ZERO_OK;
}

/* Copies the groups of all tensors. COLLECTIVE over each group. */
static zero_result zp_world_open_copies(zero_ctx *z) {
    for (int t = 0; t < z->ntensors; t++) {
        zp_tensor *x = &z->tensors[t];
        ZP_TRY(zp_world_copy_group(z, x, x->desc.sum_over, "sum_over"));
        if (z->rule->needs && x->desc.slice_of && x->desc.slice_of->group.nranks > 1)
            ZP_TRY(zp_world_copy_group(z, x, x->desc.slice_of, "slice_of"));
        x->slice_group = zp_world_own_group(z, x->desc.slice_of);
    }
    return ZERO_OK;
}

/* Sends the reason of the failure to ranks that wait for this context in a tensor's group. */
static zero_result zp_world_abort(zero_ctx *z) {
    for (zp_first_sum *f = z->groups->first_sums; f; f = f->next)
        if (f->own) {
            (void)zp_comm_fail(&f->own->group, ZERO_ERR_PEER, "%s",
                               z->text[0] ? z->text : "it gave up its context");
            (void)zp_group_end(f->own, "zero_destroy", ZERO_OK);
        }
    return ZERO_OK;
}
/* Closes the copies while their stream is open and its lane idle. */
static zero_result zp_world_close_first_sums(zero_ctx *z) {
    while (z->groups->first_sums) {
        zp_first_sum *f = z->groups->first_sums;
        z->groups->first_sums = f->next;
        if (f->own) zp_collectives_leave(f->own);
        free(f);
    }
    return ZERO_OK;
}
static zero_result zp_world_close(zero_ctx *z) {
    if (zp_world_joined(z)) zp_device_order_with(&z->partner->device, NULL);
    if (zp_world_joined(z)) z->partner->follows = 0;
    if (zp_world_joined(z)) z->partner->cfg.joins = NULL;
    if (z->partner) z->partner->partner = NULL;
    while (z->groups->traced) zp_collectives_stop_trace(z->groups->traced);
    free(z->verdict_unit);
    return ZERO_OK;
}

static const zp_station zp_world_stations[] = {
    {ZP_AT_PRESUM, ZP_EACH_REDUCTION, zp_world_has_sums, zp_world_presum, NULL},
    {ZP_AT_SCALE, ZP_LAST_MICRO_STEP, zp_world_has_divisors, zp_world_divide, NULL},
    {ZP_AT_NORM, ZP_LAST_MICRO_STEP, zp_world_has_copies, zp_world_take_norm, NULL},
    ZP_LAST_STATION};
static zero_result zp_world_stats(zero_ctx *z) {
    zero_stats *s = &z->stats;
    s->verdict_bytes += z->group[ZP_AGREEING].meter.verdict_bytes;
    return ZERO_OK;
}
static const zp_setting zp_world_settings[] = {
    {ZP_SETTING(world), ZP_POINTER},
    {ZP_SETTING(world_units), ZP_SIGNED, 0, ZP_UNITS, 0, 0},
    {ZP_SETTING(joins), ZP_POINTER},
    ZP_LAST_SETTING,
};
static const zp_setting zp_world_fields[] = {
    {ZP_FIELD_BIT(ZERO_COPY)},
    {ZP_FIELD(divisor), ZP_SIGNED, 0, ZP_UNLIMITED, 0, 0},
    {ZP_FIELD(slice_of), ZP_POINTER},
    {ZP_FIELD(sum_over), ZP_POINTER},
    ZP_LAST_SETTING,
};
static zp_extra zp_world_row(void) {
    zp_extra x;
    memset(&x, 0, sizeof x);
    x.name = "groups";
    x.state_bytes = sizeof(zp_world_state);
    x.state_at = offsetof(zero_ctx, groups);
    x.settings = zp_world_settings;
    x.fields = zp_world_fields;
    x.call[ZP_ON_JOIN] = zp_world_join;
    x.tensor = zp_world_tensor;
    x.describe = zp_world_describe;
    x.call[ZP_ON_LAYOUT] = zp_world_layout;
    x.call[ZP_ON_REDUCE] = zp_world_check_reduce;
    x.call[ZP_ON_AGREED] = zp_world_check_agreed;
    x.call[ZP_ON_STATS] = zp_world_stats;
    x.call[ZP_ON_MEMORY] = zp_world_compare;
    x.call[ZP_ON_BUILD] = zp_world_open_copies;
    x.call[ZP_ON_ABORT] = zp_world_abort;
    x.call[ZP_ON_FINISH] = zp_world_close_first_sums;
    x.call[ZP_ON_DESTROY] = zp_world_close;
    x.stations = zp_world_stations;
    return x;
}

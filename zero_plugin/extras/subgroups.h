/* subgroups.h - groups inside the ranks of a context: shard groups, replicas, secondary partitions

   N ranks form R = N / S replicas. The S consecutive ranks of a replica (cfg.shard_ranks) shard one
   copy. Each group of cfg.second_ranks consecutive ranks among these S keeps a secondary partition
   of it. If neither is set, `all` is the only group, and this file calls, allocates and sends
   nothing.

     rank      0   1   2   3 | 4   5   6   7     S = 4, R = 2, second_ranks 2
     data      0   1   2   3 | 0   1   2   3     gathers, reductions, matrices, access by name
     replicas  0   0   0   0 | 1   1   1   1     one group for each place: sums of shards
     near      0   1 | 0   1 | 0   1 | 0   1     later gathers, from the secondary partition
     piece     0   2   4   6 | 1   3   5   7     of each unit, of N: counted in the norm, saved

   Groups are cut by the functions that cut nodes. Memory is opened once: the gradients' by `all`,
   the parameters' by `data`. The other groups that work on this memory have a view. */
#pragma once

#include "../core/part.h"
#include "../core/extra.h"
#include "lines.h"
#include "../core/order.h"

/* Its groups, in zero_ctx.group. */
enum { ZP_REPLICAS = ZP_MORE, ZP_NEAR };

typedef struct zp_subgroups_unit {
    size_t second_at; /* byte offset of its second shard in memory[ZP_PARAM]; 0: none */
    uint64_t second;  /* 1 + the version of the weights that its second shard has */
} zp_subgroups_unit;
typedef struct zp_subgroups_state {
    zp_comm *replicas; /* the ranks with the same place in all shard groups; NULL: no replicas */
    zp_memory memory;  /* gradient memory, of all ranks */
    zp_memory view;    /* the replicas' view of the same memory */
    size_t sums_at, sums_bytes; /* in `memory`: f32 shards of a bucket, if gradients have 16 bits */
    zp_comm *near;              /* the ranks of a secondary partition; NULL: none */
    zp_memory near_view;        /* their view of the parameters' memory */
    zp_subgroups_unit *unit;    /* [layout.segments] */
} zp_subgroups_state;

static int zp_subgroups_common_divisor(int a, int b) {
    return (int)zp_layout_common_divisor((size_t)a, (size_t)b);
}

/* Cuts one of the context's own groups from `of`. COLLECTIVE. */
static zero_result zp_subgroups_cut(zero_ctx *z, int which, zp_comm *of, zp_cut cut, int node_size,
                                    const char *label) {
    return zp_part_open(z, &z->part[which], &z->group[which], of, cut, node_size, label);
}

/* Returns the memory of `of` as a subset of its ranks sees it. This rank's own part does not
   move. */
static zp_memory zp_subgroups_view(const zp_comm *of, const zp_memory *m, const zp_comm *part,
                                   int first, int step) {
    zp_memory view = *m;
    view.handle = NULL;
    view.next = NULL;
    const zp_messenger *messenger = zp_message_functions(of->transport);
    if (messenger->view) messenger->view(of, m, part, first, step, &view);
    return view;
}

/* Opens the gradients' and the staging memory: by all ranks, or, if no rank sees a peer's memory,
   by the ranks whose library must register it. COLLECTIVE. */
static zero_result zp_subgroups_open_gradients(zero_ctx *z, size_t bytes) {
    zp_comm *all = z->all, *data = z->data;
    zp_subgroups_state *x = z->subgroups;
    const int size = data->nranks, first = all->rank / size * size;
    x->sums_at = zp_round_up(bytes, 4096);
    zp_memory *m = zp_message_functions(all->transport)->view ? &x->memory : &z->memory[ZP_GRAD];
    ZP_TRY(zp_comm_open_memory(m == &x->memory ? all : data, m, x->sums_at + x->sums_bytes, 0));
    x->view = zp_subgroups_view(all, m, x->replicas, all->rank % size, size);
    if (m == &x->memory) z->memory[ZP_GRAD] = zp_subgroups_view(all, m, data, first, 1);
    data->stage = zp_subgroups_view(all, &all->stage, data, first, 1);
    return ZERO_OK;
}
/* Opens shard groups and their replicas. Reductions sum inside a node first. Replicas sum in rank
   order: each counts as a node, unless all ranks are on one. */
static zero_result zp_subgroups_open_replicas(zero_ctx *z) {
    zp_comm *all = z->all;
    const int n = all->nranks, size = z->cfg.shard_ranks, rank = all->rank;
    const int count = n / size, one = all->node_size == n;
    const int node = all->interleaved ? 1 : zp_subgroups_common_divisor(size, all->node_size);
    const zp_cut data = {count, rank / size, rank % size, size, NULL};
    const zp_cut replicas = {size, rank % size, rank / size, count, NULL};
    ZP_TRY(zp_subgroups_cut(z, ZP_DATA, all, data, node, "shard"));
    ZP_TRY(zp_subgroups_cut(z, ZP_REPLICAS, all, replicas, !one, "replica"));
    z->data = &z->group[ZP_DATA];
    z->data->divisor = all->divisor;
    z->subgroups->replicas = &z->group[ZP_REPLICAS];
    z->ncopies = z->group[ZP_REPLICAS].nranks;
    z->copy = z->group[ZP_REPLICAS].rank;
    z->open_gradients = zp_subgroups_open_gradients;
    return ZERO_OK;
}

/* Opens the groups of the secondary partition, unless no parameters are gathered. COLLECTIVE. */
static zero_result zp_subgroups_open_second(zero_ctx *z) {
    zp_comm *data = z->data;
    const int size = z->cfg.second_ranks, rank = data->rank;
    if (!size || z->array[ZP_PARAM].share != ZP_SHARD) return ZERO_OK;
    const zp_cut near = {data->nranks / size, rank / size, rank % size, size, NULL};
    ZP_TRY(zp_subgroups_cut(z, ZP_NEAR, data, near,
                            zp_subgroups_common_divisor(size, data->node_size), "near"));
    z->subgroups->near = &z->group[ZP_NEAR];
    return ZERO_OK;
}

/* Checks that shard_ranks and second_ranks divide the number of ranks. */
static zero_result zp_subgroups_check_sizes(zero_ctx *z) {
    const int n = z->all->nranks, shard = z->cfg.shard_ranks, second = z->cfg.second_ranks;
    const int share = shard ? shard : n;
    ZP_REFUSE(z, n % share, "shard_ranks is %d, which does not divide the %d ranks; use a divisor",
              shard, n);
    ZP_REFUSE(z, second && share % second,
              "second_ranks is %d, which does not divide the %d ranks of a copy; use a divisor",
              second, share);
    return ZERO_OK;
}

/* zero_create: cuts the groups. All ranks have the same settings. COLLECTIVE. */
static zero_result zp_subgroups_cut_ranks(zero_ctx *z) {
    const int size = z->cfg.shard_ranks;
    if (!size && !z->cfg.second_ranks) return ZERO_OK;
    ZP_TRY(zp_subgroups_check_sizes(z));
    ZP_TRY(zp_lines_compare_settings(z));
    return size && size != z->all->nranks ? zp_subgroups_open_replicas(z) : ZERO_OK;
}
/* Cuts the groups again after zero_build, over other communicators. COLLECTIVE. */
static zero_result zp_subgroups_join(zero_ctx *z) {
    if (z->phase == ZP_NEW) return ZERO_OK;
    if (z->subgroups->replicas) ZP_TRY(zp_subgroups_open_replicas(z));
    return z->subgroups->near ? zp_subgroups_open_second(z) : ZERO_OK;
}
static zero_result zp_subgroups_resolve(zero_ctx *z) {
    if (!z->cfg.shard_ranks && !z->cfg.second_ranks) return ZERO_OK;
    ZP_TRY(zp_subgroups_open_second(z));
    zp_ctx_set_call(z, z->call);
    return ZERO_OK;
}

/* ---- the plan ---- */

/* Plans the f32 memory for a bucket's sums over the replicas. f32 gradients need none. */
static size_t zp_subgroups_plan_replicas(zero_ctx *z) {
    size_t most = z->bucket_numel;
    if (!z->subgroups->replicas || z->array[ZP_GRAD].type == ZERO_F32) return 0;
    for (int u = 0; u < z->layout.all; u++) most = zp_max(most, z->layout.unit[u].padded);
    return most / (size_t)z->data->nranks * sizeof(float);
}

/* Returns the elements of segment u in the secondary partition of a rank. */
static size_t zp_subgroups_second_numel(const zero_ctx *z, int u) {
    return z->layout.unit[u].padded / (size_t)z->subgroups->near->nranks;
}
/* Plans a secondary partition for each segment of a unit in a shared buffer: one part on each near
 * rank. */
static size_t zp_subgroups_plan_second(zero_ctx *z) {
    const size_t at = zp_round_up(z->pool[ZP_PARAM].bytes, 4096);
    size_t bytes = 0;
    for (int u = 0; u < z->layout.segments && z->subgroups->near; u++) {
        zp_live *live = &z->live[u], *of = &z->live[zp_layout_unit_of(&z->layout, u)];
        if (zp_ctx_unit_is_whole(z, ZP_PARAM, u) || of->own[ZP_PARAM] >= 0
            || !z->layout.unit[u].numel)
            continue;
        z->subgroups->unit[u].second_at = at + bytes;
        live->other_gathers =
            live->gathers > 0 ? live->gathers - 1 : 0; /* all gathers except the first of a step */
        bytes += zp_subgroups_second_numel(z, u) * zp_type_bytes(z->array[ZP_PARAM].type);
    }
    if (bytes) z->param_end = at + bytes;
    return bytes;
}

/* Describes a collective on a reduced unit: the replicas sum their pieces in f32, or gather them in
   the gradients' type. */
static zp_op zp_subgroups_replica_op(zero_ctx *z, int u, int kind) {
    zp_op op = zp_ctx_make_op(z, ZP_GRADIENTS, kind, u);
    op.group = z->subgroups->replicas;
    op.memory = &z->subgroups->view;
    op.shard = zp_ctx_piece(z, u);
    if (kind == ZP_REDUCE_SCATTER) op.type = ZERO_F32;
    return op;
}
/* Describes the gather of a unit from the secondary partition. */
static zp_op zp_subgroups_second_op(zero_ctx *z, int u) {
    zp_op op = zp_ctx_make_op(z, ZP_PARAMETERS, ZP_ALL_GATHER, u);
    op.group = z->subgroups->near;
    op.memory = &z->subgroups->near_view;
    op.shard = zp_subgroups_second_numel(z, u);
    op.source = z->subgroups->unit[u].second_at;
    return op;
}

/* Bytes that this rank sends to its replicas, or to its near ranks, in a step for segment u. */
static size_t zp_subgroups_replicas_sent(zero_ctx *z, int u) {
    if (!z->subgroups->replicas || !zp_order_reductions(z, u)) return 0;
    const zp_op sum = zp_subgroups_replica_op(z, u, ZP_REDUCE_SCATTER),
                gather = zp_subgroups_replica_op(z, u, ZP_ALL_GATHER);
    return zp_comm_op_bytes(&sum) + zp_comm_op_bytes(&gather);
}
static size_t zp_subgroups_second_sent(zero_ctx *z, int u) {
    if (!z->live[u].other_gathers) return 0;
    const zp_op gather = zp_subgroups_second_op(z, u);
    return (size_t)z->live[u].other_gathers * zp_comm_op_bytes(&gather);
}
static size_t zp_subgroups_sent(zero_ctx *z, int u) {
    return u < 0 ? 0 : zp_subgroups_replicas_sent(z, u) + zp_subgroups_second_sent(z, u);
}

static zero_result zp_subgroups_layout(zero_ctx *z) {
    zp_subgroups_state *x = z->subgroups;
    free(x->unit);
    x->unit = (zp_subgroups_unit *)calloc((size_t)z->layout.segments, sizeof *x->unit);
    return x->unit ? ZERO_OK : ZERO_ERR_MEMORY;
}
static zero_result zp_subgroups_plan(zero_ctx *z) {
    zero_plan *plan = &z->plan;
    z->subgroups->sums_bytes = zp_subgroups_plan_replicas(z);
    plan->second_bytes = zp_subgroups_plan_second(z);
    plan->buffer_bytes += z->subgroups->sums_bytes + plan->second_bytes;
    plan->buffer_ceiling_bytes += z->subgroups->sums_bytes + plan->second_bytes;
    for (int u = 0; u < z->layout.segments; u++) {
        plan->near_bytes += zp_subgroups_second_sent(z, u);
        plan->replica_bytes += zp_subgroups_replicas_sent(z, u);
    }
    plan->gather_bytes += plan->near_bytes;
    plan->context_bytes += (size_t)z->layout.segments * sizeof *z->subgroups->unit;
    return ZERO_OK;
}
/* Adds what the groups of this file have counted. Those of replicas do not count as gathers and
   reductions of units. */
static zero_result zp_subgroups_stats(zero_ctx *z) {
    zero_stats *s = &z->stats;
    for (int i = ZP_DATA; i <= ZP_NEAR; i++) {
        const zp_meter *m = &z->group[i].meter;
        s->sent_bytes += m->sent_bytes;
        s->mapped_bytes += m->mapped_bytes;
        s->verdict_bytes += m->verdict_bytes;
        s->control_bytes += m->control_bytes;
        s->gather_bytes += m->gather_bytes;
        s->allocated_bytes += m->allocated_bytes;
        s->reductions += i == ZP_REPLICAS ? 0 : m->reductions;
        s->gathers += i == ZP_REPLICAS ? 0 : m->gathers;
    }
    s->near_bytes += z->group[ZP_NEAR].meter.sent_bytes;
    s->replica_bytes += z->group[ZP_REPLICAS].meter.sent_bytes;
    return ZERO_OK;
}
static zero_result zp_subgroups_cut_arena(zero_ctx *z) {
    if (z->subgroups->replicas)
        z->verdict_order = (int *)zp_ctx_cut_arena(z, (size_t)z->agreeing->nranks, sizeof(int));
    return ZERO_OK;
}

/* ---- the build ---- */

/* Finds the order in which the world adds verdicts: by owner of the pieces. Without replicas, rank
   p counts piece p. COLLECTIVE over `all` and the world. */
static zero_result zp_subgroups_find_order(zero_ctx *z, int *order) {
    const int size = z->data->nranks, count = z->ncopies, p = z->all->rank;
    const int owner = p % count * size + p / count;
    const int32_t here = z->agreeing->rank;
    int32_t there;
    ZP_DO(z, zp_comm_exchange(z->all, &here, sizeof here));
    memcpy(&there, z->all->mail + (size_t)owner * sizeof there, sizeof there);
    ZP_DO(z, zp_comm_exchange(z->agreeing, &there, sizeof there));
    memcpy(order, z->agreeing->mail, (size_t)z->agreeing->nranks * sizeof *order);
    return ZERO_OK;
}
static zero_result zp_subgroups_open(zero_ctx *z) {
    zp_subgroups_state *x = z->subgroups;
    if (x->near)
        x->near_view = zp_subgroups_view(z->data, &z->memory[ZP_PARAM], x->near,
                                         z->data->rank - x->near->rank, 1);
    if (!x->replicas) return ZERO_OK;
    const size_t bytes = (size_t)z->agreeing->nranks * sizeof(int);
    int *order = (int *)zp_device_alloc_host(bytes);
    zero_result r =
        order ? zp_subgroups_find_order(z, order)
              : zp_ctx_fail(z, ZERO_ERR_MEMORY, "the order of %d verdicts", z->agreeing->nranks);
    if (!r) r = zp_ctx_check(z, zp_device_copy(&z->compute, z->verdict_order, order, bytes));
    if (!r) r = zp_ctx_check(z, zp_device_sync_stream(&z->compute));
    zp_device_free_host(order);
    return r ? z->dead = r : ZERO_OK;
}

static zero_result zp_subgroups_close(zero_ctx *z) {
    free(z->subgroups->unit);
    return ZERO_OK;
}

/* SECONDARY PARTITION (hpZ). After the first gather of a unit since its weights changed, the
   parameter stream copies this rank's part out of the unit's buffer. No stream waits for this copy.
   Later gathers collect the near ranks' parts on the same stream, so every part is complete before
   a rank reads it. The calling thread compares the version in `second` with that of the
   unit. Both follow from the calls, so they are equal on all ranks. */

/* Station: if the secondary partition has unit u's weights, gathers them from the near ranks. */
static zero_result zp_subgroups_gather_second(zero_ctx *z, int u) {
    const size_t target = z->gather.target;
    if (z->subgroups->unit[u].second != z->live[u].version + 1) return ZERO_OK;
    z->gather = zp_subgroups_second_op(z, u);
    z->gather.target = target;
    return ZERO_OK;
}

/* Station: unit u was gathered from all ranks; this rank keeps its part. */
static zero_result zp_subgroups_keep_second(zero_ctx *z, int u) {
    zp_subgroups_unit *x = &z->subgroups->unit[u];
    if (x->second == z->live[u].version + 1 || !x->second_at) return ZERO_OK;
    const size_t bytes = zp_subgroups_second_numel(z, u) * zp_type_bytes(z->array[ZP_PARAM].type);
    char *base = z->memory[ZP_PARAM].base;
    x->second = z->live[u].version + 1;
    return zp_device_copy(&z->stream[ZP_PARAMETERS], base + x->second_at,
                          base + z->gather.target + (size_t)z->subgroups->near->rank * bytes,
                          bytes);
}

/* REPLICAS. Shards of reduced gradients are summed over the replicas.

   In the last micro-step, a bucket's reductions inside the shard group leave f32 sums that are
   neither divided nor rounded. Then a reduce-scatter over the replicas sums each piece of a shard
   in rank order and divides it. Each replica rounds its piece once, to the gradients' type, and all
   replicas gather the pieces. All of this runs on the gradient stream before the reduction's event.
   f32 gradients are summed in place, others in f32 shards after the gradients, one for each unit of
   a bucket.

     MEAN, or sums of 16 bit   [ piece 0 | piece 1 | ... ] of a rank's shard, one of each replica */

/* Returns the offset in the gradients' memory of the sum of unit u, one of the bucket's units. */
static size_t zp_subgroups_sums_at(const zero_ctx *z, int u) {
    size_t at = z->subgroups->sums_at;
    if (!z->subgroups->sums_bytes)
        return (size_t)(zp_ctx_unit_mean(z, u) - z->memory[ZP_GRAD].base);
    for (int i = 0; i < z->nbucket && z->bucket[i] != u; i++)
        at += zp_ctx_shard(z, z->bucket[i]) * sizeof(float);
    return at;
}

/* Rounds this replica's pieces and gathers the shards of every unit of the bucket. */
static zero_result zp_subgroups_gather_replicas(zero_ctx *z) {
    const zp_subgroups_state *x = z->subgroups;
    const zero_type type = z->array[ZP_GRAD].type;
    zp_stream *s = &z->stream[ZP_GRADIENTS];
    char *base = z->memory[ZP_GRAD].base;
    for (int i = 0; i < z->nbucket; i++) {
        const int u = z->bucket[i];
        zp_op *op = &z->ops[i];
        const size_t before = (size_t)x->replicas->rank * zp_ctx_piece(z, u);
        *op = zp_subgroups_replica_op(z, u, ZP_ALL_GATHER);
        op->target = (size_t)(zp_ctx_unit_mean(z, u) - base);
        op->source = op->target + before * zp_type_bytes(type);
        const zp_kernel_convert_args round = {base + zp_subgroups_sums_at(z, u)
                                                  + before * sizeof(float),
                                              base + op->source,
                                              ZERO_F32,
                                              type,
                                              NULL,
                                              0,
                                              ZP_NEAREST,
                                              0,
                                              op->shard,
                                              0};
        if (x->sums_bytes) ZP_TRY(zp_kernel_convert(s, &round, op->shard));
    }
    return zp_comm_issue(s, z->ops, z->nbucket);
}

/* Enqueues the bucket's sums over the replicas on the gradient stream. */
static zero_result zp_subgroups_sum_replicas(zero_ctx *z) {
    const zp_subgroups_state *x = z->subgroups;
    zp_stream *s = &z->stream[ZP_GRADIENTS];
    for (int i = 0; i < z->nbucket; i++) {
        const int u = z->bucket[i];
        zp_op *op = &z->ops[i];
        *op = zp_subgroups_replica_op(z, u, ZP_REDUCE_SCATTER);
        op->source = zp_subgroups_sums_at(z, u);
        op->target = op->source + (size_t)x->replicas->rank * zp_ctx_piece(z, u) * sizeof(float);
        op->scale = zp_ctx_sum_scale(z);
        const zp_array *sum = &z->array[ZP_SUM];
        char *sums = sum->part[u].share == ZP_SHARD ? sum->memory + sum->part[u].at : NULL,
             *here = z->memory[ZP_GRAD].base + op->source;
        if (sums && sums != here)
            ZP_TRY(zp_device_copy(s, here, sums, zp_ctx_shard(z, u) * sizeof(float)));
    }
    ZP_TRY(zp_comm_issue(s, z->ops, z->nbucket));
    return zp_subgroups_gather_replicas(z);
}

/* Station: the reduction inside the shard group leaves an f32 sum that is not divided yet. */
static zero_result zp_subgroups_change_reduction(zero_ctx *z) {
    for (int i = 0; i < z->nbucket; i++) {
        zp_op *op = &z->ops[i];
        op->scale = 1;
        if (!op->sum && z->subgroups->sums_bytes)
            op->sum =
                (float *)(void *)(z->memory[ZP_GRAD].base + zp_subgroups_sums_at(z, z->bucket[i]));
    }
    return ZERO_OK;
}

static int zp_subgroups_has_replicas(const zero_ctx *z) { return z->subgroups->replicas != NULL; }
static int zp_subgroups_has_second(const zero_ctx *z) { return z->subgroups->near != NULL; }
static const zp_station zp_subgroups_stations[] = {
    {ZP_AT_CHANGE, ZP_EACH_REDUCTION, zp_subgroups_has_replicas, NULL,
     zp_subgroups_change_reduction},
    {ZP_AT_COPIES, ZP_LAST_MICRO_STEP, zp_subgroups_has_replicas, NULL, zp_subgroups_sum_replicas},
    {ZP_AT_CHANGE, ZP_EACH_GATHER, zp_subgroups_has_second, zp_subgroups_gather_second, NULL},
    {ZP_AT_AFTER, ZP_EACH_GATHER, zp_subgroups_has_second, zp_subgroups_keep_second, NULL},
    ZP_LAST_STATION};
/* Checks the settings of this file. */
static zero_result zp_subgroups_check(zero_ctx *z) {
    const zero_config *c = &z->cfg;
    const zp_policy *stage = &zp_policies[c->stage];
    ZP_REFUSE(z, c->shard_ranks && stage->state == ZP_WHOLE,
              "shard_ranks is %d: at stage 0 nothing is sharded; use stage 1, 2 or 3",
              c->shard_ranks);
    ZP_REFUSE(z, c->second_ranks && stage->parameters == ZP_WHOLE,
              "second_ranks is %d: at stage %d parameters are not sharded; use stage 3",
              c->second_ranks, c->stage);
    return ZERO_OK;
}
static const zp_setting zp_subgroups_settings[] = {
    {ZP_SETTING(shard_ranks), ZP_SIGNED, 0, ZP_UNLIMITED, 0, 0},
    {ZP_SETTING(second_ranks), ZP_SIGNED, 0, ZP_UNLIMITED, 0, 0},
    ZP_LAST_SETTING,
};

static zp_extra zp_subgroups_row(void) {
    zp_extra x;
    memset(&x, 0, sizeof x);
    x.name = "subgroups";
    x.state_bytes = sizeof(zp_subgroups_state);
    x.state_at = offsetof(zero_ctx, subgroups);
    x.settings = zp_subgroups_settings;
    x.call[ZP_ON_CHECK] = zp_subgroups_check;
    x.call[ZP_ON_JOIN] = zp_subgroups_join;
    x.call[ZP_ON_SPLIT] = zp_subgroups_cut_ranks;
    x.call[ZP_ON_CHOSEN] = zp_subgroups_resolve;
    x.call[ZP_ON_LAYOUT] = zp_subgroups_layout;
    x.call[ZP_ON_PLAN] = zp_subgroups_plan;
    x.sent = zp_subgroups_sent;
    x.call[ZP_ON_CUT] = zp_subgroups_cut_arena;
    x.call[ZP_ON_MEMORY] = zp_subgroups_open;
    x.call[ZP_ON_DESTROY] = zp_subgroups_close;
    x.call[ZP_ON_STATS] = zp_subgroups_stats;
    x.stations = zp_subgroups_stations;
    return x;
}

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

#include "../core/extra.h"
#include "../core/agree.h"

static int zp_subgroups_common_divisor(int a, int b) {
    return b ? zp_subgroups_common_divisor(b, a % b) : a;
}

/* Cuts one of the context's own groups from `of`. COLLECTIVE. */
static zero_result zp_subgroups_cut(zero_ctx *z, int which, zp_comm *of, zp_cut cut, int node_size,
                                    const char *label) {
    return zp_ctx_open_part(z, &z->part[which], &z->group[which], of, cut, node_size, label);
}

/* Returns the memory of `of` as a subset of its ranks sees it. This rank's own part does not
   move. */
static zp_memory zp_subgroups_view(const zp_comm *of, const zp_memory *m, const zp_comm *part,
                                   int first, int step) {
    zp_memory view = *m;
    view.handle = NULL;
    view.next = NULL;
    if (of->transport->view) of->transport->view(of, m, part, first, step, &view);
    return view;
}

/* Opens the gradients' and the staging memory: by all ranks, or, if no rank sees a peer's memory,
   by the ranks whose library must register it. COLLECTIVE. */
static zero_result zp_subgroups_open_gradients(zero_ctx *z, size_t bytes) {
    zp_comm *all = z->all, *data = z->data;
    zp_replicas *x = &z->replicas;
    const int size = data->nranks, first = all->rank / size * size;
    x->sums_at = zp_round_up(bytes, 4096);
    zp_memory *m = all->transport->view ? &x->memory : &z->memory[ZP_GRAD];
    ZP_TRY(zp_comm_open_memory(m == &x->memory ? all : data, m, x->sums_at + x->sums_bytes, 0));
    x->view = zp_subgroups_view(all, m, x->group, all->rank % size, size);
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
    const int node = all->scattered ? 1 : zp_subgroups_common_divisor(size, all->node_size);
    const zp_cut data = {count, rank / size, rank % size, size, NULL};
    const zp_cut replicas = {size, rank % size, rank / size, count, NULL};
    ZP_TRY(zp_subgroups_cut(z, ZP_DATA, all, data, node, "shard"));
    ZP_TRY(zp_subgroups_cut(z, ZP_REPLICAS, all, replicas, !one, "replica"));
    z->data = &z->group[ZP_DATA];
    z->data->divisor = all->divisor;
    z->replicas.group = &z->group[ZP_REPLICAS];
    z->nreplicas = z->replicas.group->nranks;
    z->replica = z->replicas.group->rank;
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
    z->second.group = &z->group[ZP_NEAR];
    return ZERO_OK;
}

/* Checks that shard_ranks and second_ranks divide the number of ranks. */
static zero_result zp_subgroups_check_sizes(zero_ctx *z) {
    const int n = z->all->nranks, shard = z->cfg.shard_ranks, second = z->cfg.second_ranks;
    const int share = shard ? shard : n;
    ZP_REFUSE(z, n % share, "shard_ranks is %d, which does not divide the %d ranks", shard, n);
    ZP_REFUSE(z, second && share % second,
              "second_ranks is %d, which does not divide the %d ranks that share a copy", second,
              share);
    return ZERO_OK;
}

/* zero_create: cuts the groups. All ranks have the same settings. COLLECTIVE. */
static zero_result zp_subgroups_cut_ranks(zero_ctx *z) {
    const int size = z->cfg.shard_ranks;
    if (!size && !z->cfg.second_ranks) return ZERO_OK;
    ZP_TRY(zp_subgroups_check_sizes(z));
    ZP_TRY(zp_agree_compare_settings(z));
    zp_comm_close_watch(&z->watch);
    return size && size != z->all->nranks ? zp_subgroups_open_replicas(z) : ZERO_OK;
}
static zero_result zp_subgroups_resolve(zero_ctx *z) {
    if (!z->cfg.shard_ranks && !z->cfg.second_ranks) return ZERO_OK;
    ZP_TRY(zp_subgroups_open_second(z));
    zp_ctx_set_call(z, z->call);
    return zp_ctx_check(z, zp_comm_open_watch(&z->watch, z->group, ZP_GROUPS));
}

/* ---- the plan ---- */

/* Plans the f32 memory for a bucket's sums over the replicas. f32 gradients need none. */
static void zp_subgroups_plan_replicas(zero_ctx *z) {
    size_t most = z->bucket_numel;
    z->replicas.sums_bytes = 0;
    if (!z->replicas.group || z->array[ZP_GRAD].type == ZERO_F32) return;
    for (int u = 0; u < z->layout.all; u++) most = zp_max(most, z->layout.unit[u].padded);
    z->replicas.sums_bytes = most / (size_t)z->data->nranks * sizeof(float);
    z->plan.buffer_bytes += z->replicas.sums_bytes;
    z->plan.buffer_ceiling_bytes += z->replicas.sums_bytes;
}

/* Plans a secondary partition for each unit in a shared buffer: one part on each near rank. */
static void zp_subgroups_plan_second(zero_ctx *z) {
    zp_second *s = &z->second;
    s->at = zp_round_up(z->pool[ZP_PARAM].bytes, 4096);
    s->bytes = 0;
    for (int u = 0; u < z->layout.all && s->group; u++) {
        zp_live *live = &z->live[u];
        const zp_unit *x = &z->layout.unit[u];
        if (zp_ctx_unit_is_whole(z, ZP_PARAM, u) || live->own[ZP_PARAM] >= 0 || !x->numel) continue;
        live->second_at = s->at + s->bytes;
        live->near =
            live->gathers > 0 ? live->gathers - 1 : 0; /* all gathers except the first of a step */
        s->bytes += x->padded / (size_t)s->group->nranks * zp_type_bytes(z->array[ZP_PARAM].type);
    }
    if (s->bytes) z->param_end = s->at + s->bytes;
    z->plan.second_bytes = s->bytes;
    z->plan.buffer_bytes += s->bytes;
    z->plan.buffer_ceiling_bytes += s->bytes;
}

/* Describes a collective on a reduced unit: the replicas sum their pieces in f32, or gather them in
   the gradients' type. */
static zp_op zp_subgroups_replica_op(zero_ctx *z, int u, int kind) {
    zp_op op = zp_ctx_make_op(z, ZP_GRADIENTS, kind, u);
    op.group = z->replicas.group;
    op.memory = &z->replicas.view;
    op.shard = zp_ctx_piece(z, u);
    if (kind == ZP_REDUCE_SCATTER) op.type = ZERO_F32;
    return op;
}
/* Describes the gather of a unit from the secondary partition. */
static zp_op zp_subgroups_second_op(zero_ctx *z, int u) {
    zp_op op = zp_ctx_make_op(z, ZP_PARAMETERS, ZP_ALL_GATHER, u);
    op.group = z->second.group;
    op.memory = &z->second.view;
    op.shard = z->layout.unit[u].padded / (size_t)z->second.group->nranks;
    op.source = z->live[u].second_at;
    return op;
}

/* Bytes that this rank sends to its replicas in a step for unit u. */
static size_t zp_subgroups_replicas_sent(zero_ctx *z, int u) {
    if (!z->replicas.group || !z->layout.unit[u].numel) return 0;
    const zp_op sum = zp_subgroups_replica_op(z, u, ZP_REDUCE_SCATTER),
                gather = zp_subgroups_replica_op(z, u, ZP_ALL_GATHER);
    return zp_comm_op_bytes(&sum) + zp_comm_op_bytes(&gather);
}
/* Bytes that this rank sends to its near ranks in a step for unit u. */
static size_t zp_subgroups_second_sent(zero_ctx *z, int u) {
    if (!z->live[u].near) return 0;
    const zp_op gather = zp_subgroups_second_op(z, u);
    return (size_t)z->live[u].near * zp_comm_op_bytes(&gather);
}

static void zp_subgroups_plan(zero_ctx *z) {
    zp_subgroups_plan_replicas(z);
    zp_subgroups_plan_second(z);
    for (int u = 0; u < z->layout.all; u++) {
        z->live[u].near_sent = zp_subgroups_second_sent(z, u);
        z->plan.replica_bytes += zp_subgroups_replicas_sent(z, u);
    }
}
static size_t zp_subgroups_sent(zero_ctx *z, int u) {
    return u < 0 ? 0 : zp_subgroups_replicas_sent(z, u);
}
static void zp_subgroups_cut_arena(zero_ctx *z, size_t *at) {
    if (z->replicas.group)
        z->verdict_order = (int *)zp_ctx_cut_arena(z, at, (size_t)z->world->nranks, sizeof(int));
}

/* ---- the build ---- */

static void zp_subgroups_view_parameters(zero_ctx *z) {
    const zp_comm *near = z->second.group;
    if (!near) return;
    z->second.view = zp_subgroups_view(z->data, &z->memory[ZP_PARAM], near,
                                       z->data->rank / near->nranks * near->nranks, 1);
}

/* Finds the order in which the world adds verdicts: by owner of the pieces. Without replicas, rank
   p counts piece p. COLLECTIVE over `all` and the world. */
static zero_result zp_subgroups_find_order(zero_ctx *z, int *order) {
    const int size = z->data->nranks, count = z->nreplicas, p = z->all->rank;
    const int owner = p % count * size + p / count;
    const int32_t here = z->world->rank;
    int32_t there;
    ZP_DO(z, zp_comm_exchange(z->all, &here, sizeof here));
    memcpy(&there, z->all->mail + (size_t)owner * sizeof there, sizeof there);
    ZP_DO(z, zp_comm_exchange(z->world, &there, sizeof there));
    memcpy(order, z->world->mail, (size_t)z->world->nranks * sizeof *order);
    return ZERO_OK;
}
static zero_result zp_subgroups_open(zero_ctx *z) {
    zp_subgroups_view_parameters(z);
    if (!z->replicas.group) return ZERO_OK;
    const size_t bytes = (size_t)z->world->nranks * sizeof(int);
    int *order = (int *)zp_device_alloc_host(bytes);
    zero_result r =
        order ? zp_subgroups_find_order(z, order)
              : zp_ctx_fail(z, ZERO_ERR_MEMORY, "the order of %d verdicts", z->world->nranks);
    if (!r) r = zp_ctx_check(z, zp_device_copy(&z->compute, z->verdict_order, order, bytes));
    if (!r) r = zp_ctx_check(z, zp_device_sync_stream(&z->compute));
    zp_device_free_host(order);
    return r ? z->dead = r : ZERO_OK;
}

/* SECONDARY PARTITION (hpZ). After the first gather of a unit since its weights changed, the
   parameter stream copies this rank's part out of the unit's buffer. No stream waits for this copy.
   Later gathers collect the near ranks' parts on the same stream, so every part is complete before
   a rank reads it. The calling thread keeps one flag per unit, live->second. It follows from the
   calls, so it is equal on all ranks. */

/* Station: if the secondary partition has unit u's weights, gathers them from the near ranks. */
static zero_result zp_subgroups_gather_second(zero_ctx *z, int u) {
    const size_t target = z->gather.target;
    if (!z->live[u].second) return ZERO_OK;
    z->gather = zp_subgroups_second_op(z, u);
    z->gather.target = target;
    return ZERO_OK;
}

/* Station: unit u was gathered from all ranks; this rank keeps its part. */
static zero_result zp_subgroups_keep_second(zero_ctx *z, int u) {
    const zp_comm *near = z->second.group;
    zp_live *live = &z->live[u];
    const size_t target = z->gather.target;
    if (live->second || !live->second_at) return ZERO_OK;
    const size_t numel = z->layout.unit[u].padded / (size_t)near->nranks;
    const size_t bytes = numel * zp_type_bytes(z->array[ZP_PARAM].type);
    char *base = z->memory[ZP_PARAM].base;
    live->second = 1;
    return zp_device_copy(&z->stream[ZP_PARAMETERS], base + live->second_at,
                          base + target + (size_t)near->rank * bytes, bytes);
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
    size_t at = z->replicas.sums_at;
    if (!z->replicas.sums_bytes) return (size_t)(zp_ctx_unit_mean(z, u) - z->memory[ZP_GRAD].base);
    for (int i = 0; i < z->nbucket && z->bucket[i] != u; i++)
        at += zp_ctx_shard(z, z->bucket[i]) * sizeof(float);
    return at;
}

/* Rounds this replica's pieces and gathers the shards of every unit of the bucket. */
static zero_result zp_subgroups_gather_replicas(zero_ctx *z) {
    const zp_replicas *x = &z->replicas;
    const zero_type type = z->array[ZP_GRAD].type;
    zp_stream *s = &z->stream[ZP_GRADIENTS];
    char *base = z->memory[ZP_GRAD].base;
    for (int i = 0; i < z->nbucket; i++) {
        const int u = z->bucket[i];
        zp_op *op = &z->ops[i];
        const size_t before = (size_t)x->group->rank * zp_ctx_piece(z, u);
        *op = zp_subgroups_replica_op(z, u, ZP_ALL_GATHER);
        op->target = (size_t)(zp_ctx_unit_mean(z, u) - base);
        op->source = op->target + before * zp_type_bytes(type);
        const zp_kernel_convert_args round = {base + zp_subgroups_sums_at(z, u)
                                                  + before * sizeof(float),
                                              base + op->source,
                                              ZERO_F32,
                                              type,
                                              NULL,
                                              0};
        if (x->sums_bytes) ZP_TRY(zp_kernel_convert(s, &round, op->shard));
    }
    return zp_comm_issue(s, z->ops, z->nbucket);
}

/* Enqueues the bucket's sums over the replicas on the gradient stream. */
static zero_result zp_subgroups_sum_replicas(zero_ctx *z) {
    const zp_replicas *x = &z->replicas;
    zp_stream *s = &z->stream[ZP_GRADIENTS];
    for (int i = 0; i < z->nbucket; i++) {
        const int u = z->bucket[i];
        zp_op *op = &z->ops[i];
        *op = zp_subgroups_replica_op(z, u, ZP_REDUCE_SCATTER);
        op->source = zp_subgroups_sums_at(z, u);
        op->target = op->source + (size_t)x->group->rank * zp_ctx_piece(z, u) * sizeof(float);
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
        if (!op->sum && z->replicas.sums_bytes)
            op->sum =
                (float *)(void *)(z->memory[ZP_GRAD].base + zp_subgroups_sums_at(z, z->bucket[i]));
    }
    return ZERO_OK;
}

static int zp_subgroups_has_replicas(const zero_ctx *z) { return z->replicas.group != NULL; }
static int zp_subgroups_has_second(const zero_ctx *z) { return z->second.group != NULL; }
static void zp_subgroups_forget(zero_ctx *z) {
    for (int u = 0; u < z->layout.all && z->second.group; u++) z->live[u].second = 0;
}

static const zp_station zp_subgroups_stations[] = {
    {ZP_AT_CHANGE, ZP_EACH_REDUCTION, zp_subgroups_has_replicas, NULL,
     zp_subgroups_change_reduction},
    {ZP_AT_COPIES, ZP_LAST_MICRO_STEP, zp_subgroups_has_replicas, NULL, zp_subgroups_sum_replicas},
    {ZP_AT_CHANGE, ZP_EACH_GATHER, zp_subgroups_has_second, zp_subgroups_gather_second, NULL},
    {ZP_AT_AFTER, ZP_EACH_GATHER, zp_subgroups_has_second, zp_subgroups_keep_second, NULL},
    ZP_LAST_STATION};
static void zp_subgroups_refuse(const zero_config *c, char *text, size_t bytes) {
    const zp_policy *stage = &zp_policies[c->stage];
    if (c->shard_ranks && stage->state == ZP_WHOLE)
        (void)snprintf(text, bytes,
                       "shard_ranks is %d: at stage 0 nothing is sharded, and every rank is a "
                       "replica; it is for stages 1 to 3",
                       c->shard_ranks);
    else if (c->second_ranks && stage->parameters == ZP_WHOLE)
        (void)snprintf(text, bytes,
                       "second_ranks is %d: at stage %d parameters are whole on every rank; it is "
                       "for stage 3",
                       c->second_ranks, c->stage);
}

static zp_extra zp_subgroups_row(void) {
    zp_extra x;
    memset(&x, 0, sizeof x);
    x.name = "subgroups";
    x.refuse = zp_subgroups_refuse;
    x.check = zp_subgroups_cut_ranks;
    x.resolve = zp_subgroups_resolve;
    x.plan = zp_subgroups_plan;
    x.sent = zp_subgroups_sent;
    x.cut = zp_subgroups_cut_arena;
    x.build = zp_subgroups_open;
    x.forget = zp_subgroups_forget;
    x.stations = zp_subgroups_stations;
    return x;
}

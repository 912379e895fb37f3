/* hierarchy.h - groups inside the ranks that a context was given: shard groups, replicas, near ones

   N ranks, of which S consecutive ones share a copy of what is sharded (cfg.shard_ranks), R = N / S
   copies; and of these S some keep second shards (cfg.second_ranks). Where neither is set there is
   one group, `all`, and nothing here is called, allocated or sent.

     rank      0   1   2   3 | 4   5   6   7        S = 4, R = 2, second_ranks 2
     data      0   1   2   3 | 0   1   2   3        gathers, reductions inside; deal; access by name
     replicas  0   0   0   0 | 1   1   1   1        one group for each place: sums of shards
     near      0   1 | 0   1 | 0   1 | 0   1        later gathers
     piece     0   2   4   6 | 1   3   5   7        of each unit, of N: counted in the norm, saved

   Groups are cut by the functions that cut those of hosts. Memory is opened once: the gradients' by
   `all`, the parameters' by `data`; the other groups that work on it have a view of it. */
#pragma once

#include "deal.h"

/* Compares what every rank has; the first difference is an error of all. */
static zero_result zp_settle_line(zero_ctx *z, const char *mine) {
    const char *all = z->all->mail;
    ZP_DO(z, zp_exchange(z->all, mine, ZP_MAIL_BYTES));
    const int r = zp_mail_differs(z->all, ZP_MAIL_BYTES);
    if (!r) return ZERO_OK;
    return z->dead = zp_fail(z, ZERO_ERR_MISMATCH, "rank 0 has {%.180s}, rank %d has {%.180s}", all,
                             r, all + (size_t)r * ZP_MAIL_BYTES);
}

/* Line i of what all ranks must have alike, zeros behind it; 0: there is none. */
typedef int (*zp_line_fn)(const zero_ctx *z, int i, char *text, size_t bytes);

/* By one exchange of a hash of all lines; one by one only where they differ. */
static zero_result zp_settle_lines(zero_ctx *z, zp_line_fn line) {
    uint64_t words[ZP_MAIL_BYTES / sizeof(uint64_t)], hash = ZP_HASH_EMPTY;
    char *mine = (char *)words;
    for (int i = 0; line(z, i, mine, sizeof words); i++)
        for (size_t w = 0; w < sizeof words / sizeof *words; w++) hash = zp_hash(hash, words[w]);
    ZP_DO(z, zp_exchange(z->all, &hash, sizeof hash));
    const int differ = zp_mail_differs(z->all, sizeof hash);
    for (int i = 0; differ && line(z, i, mine, sizeof words); i++) ZP_TRY(zp_settle_line(z, mine));
    return ZERO_OK;
}

static int zp_setting_line(const zero_ctx *z, int i, char *text, size_t bytes) {
    memset(text, 0, bytes);
    if (i < ZP_SETTINGS && !zp_settings[i].free)
        zp_setting_print(&zp_settings[i], &z->cfg, text, bytes);
    return i < ZP_SETTINGS;
}
/* All settings: once. */
static zero_result zp_settle_settings(zero_ctx *z) {
    if (!z->settled) ZP_TRY(zp_settle_lines(z, zp_setting_line));
    z->settled = 1;
    return ZERO_OK;
}

static int zp_common_divisor(int a, int b) { return b ? zp_common_divisor(b, a % b) : a; }

static size_t zp_part_room(const zp_group *of, const zp_cut *cut, int swaps) {
    return of->transport->room ? of->transport->room(of, cut->parts, cut->nranks, swaps) : 0;
}

/* Cuts `of` into parts, in one of which this rank is, and opens that one. COLLECTIVE over `of`. */
static zero_result zp_part_open(zero_ctx *z, zp_part *part, zp_group *g, zp_group *of, zp_cut cut,
                                int node_size, const char *label) {
    ZP_REFUSE(z, !of->transport->cut, "the %d ranks cannot be cut into groups: %s has no way to",
              of->nranks, of->transport->name);
    cut.memory = &part->meeting;
    part->bytes = zp_part_room(of, &cut, g->swaps);
    ZP_DO(z, of->transport->cut(of, &cut, &part->comm));
    part->of = of->transport;
    part->comm.node_size = node_size;
    (void)snprintf(g->label, sizeof g->label, "%s", label);
    return zp_check(z, zp_group_open(g, zp_transport_of(part->comm.kind), &part->comm));
}

/* The parts go before what they were cut from. */
static void zp_part_close(zp_part *part, zp_group *g, int broken) {
    zp_group_close(g, broken);
    if (part->of && part->of->uncut) part->of->uncut(&part->comm, broken);
    part->of = NULL;
}

/* The same of one of the context's own groups. */
static zero_result zp_part_cut(zero_ctx *z, int which, zp_group *of, zp_cut cut, int node_size,
                               const char *label) {
    return zp_part_open(z, &z->part[which], &z->group[which], of, cut, node_size, label);
}

/* Shard groups, and their replicas. Ranks of a node are summed first, as without; the replicas in
   order, so that each is a node of its own where they are not all on one. */
static zero_result zp_replicas_open(zero_ctx *z) {
    zp_group *all = z->all;
    const int n = all->nranks, size = z->cfg.shard_ranks, rank = all->rank;
    if (!size || size == n) return ZERO_OK;
    const int count = n / size, one = all->node_size == n;
    const int node = all->scattered ? 1 : zp_common_divisor(size, all->node_size);
    const zp_cut data = {count, rank / size, rank % size, size, NULL};
    const zp_cut replicas = {size, rank % size, rank / size, count, NULL};
    ZP_TRY(zp_part_cut(z, ZP_DATA, all, data, node, "shard"));
    ZP_TRY(zp_part_cut(z, ZP_REPLICAS, all, replicas, !one, "replica"));
    z->data = &z->group[ZP_DATA];
    z->data->divisor = all->divisor;
    z->replicas.group = &z->group[ZP_REPLICAS];
    return ZERO_OK;
}

/* Groups that keep second shards, unless nothing is ever gathered. */
static zero_result zp_second_open(zero_ctx *z) {
    zp_group *data = z->data;
    const int size = z->cfg.second_ranks, rank = data->rank;
    if (!size || z->array[ZP_PARAM].share != ZP_SHARD) return ZERO_OK;
    const zp_cut near = {data->nranks / size, rank / size, rank % size, size, NULL};
    ZP_TRY(zp_part_cut(z, ZP_NEAR, data, near, zp_common_divisor(size, data->node_size), "near"));
    z->second.group = &z->group[ZP_NEAR];
    return ZERO_OK;
}

/* What stands in the settings, as far as the number of ranks allows. */
static zero_result zp_hierarchy_check(zero_ctx *z) {
    const int n = z->all->nranks, shard = z->cfg.shard_ranks, second = z->cfg.second_ranks;
    const int share = shard ? shard : n;
    ZP_REFUSE(z, n % share, "shard_ranks is %d, which does not divide the %d ranks", shard, n);
    ZP_REFUSE(z, second && share % second,
              "second_ranks is %d, which does not divide the %d ranks that share a copy", second,
              share);
    return ZERO_OK;
}

/* ---- the plan ---- */

static int zp_replicas_of(const zero_ctx *z) {
    return z->replicas.group ? z->replicas.group->nranks : 1;
}
/* The first element that this rank counts in the norm, and saves, of unit u. */
static size_t zp_piece_first(const zero_ctx *z, int u) {
    const zp_unit *x = &z->layout.unit[u];
    const size_t replica = z->replicas.group ? (size_t)z->replicas.group->rank : 0;
    return (size_t)z->data->rank * x->shard + replica * x->piece;
}

/* What a bucket's reduced shards are summed in over the replicas: f32 gradients where they are. */
static void zp_replicas_plan(zero_ctx *z) {
    size_t most = z->bucket_numel;
    z->replicas.sums_bytes = 0;
    if (!z->replicas.group || z->array[ZP_GRAD].type == ZERO_F32) return;
    for (int u = 0; u < z->layout.all; u++) most = zp_max(most, z->layout.unit[u].padded);
    z->replicas.sums_bytes = most / (size_t)z->data->nranks * sizeof(float);
    z->plan.buffer_bytes += z->replicas.sums_bytes;
    z->plan.buffer_ceiling_bytes += z->replicas.sums_bytes;
}

/* A unit that takes turns in buffers has a second shard: each rank of the group a part. */
static void zp_second_plan(zero_ctx *z) {
    zp_second *s = &z->second;
    s->at = zp_round_up(z->pool[ZP_PARAM].bytes, 4096);
    s->bytes = 0;
    for (int u = 0; u < z->layout.all && s->group; u++) {
        zp_live *live = &z->live[u];
        const zp_unit *x = &z->layout.unit[u];
        if (zp_unit_whole(z, ZP_PARAM, u) || live->own[ZP_PARAM] >= 0 || !x->numel) continue;
        live->second_at = s->at + s->bytes;
        live->near = live->gathers > 0 ? live->gathers - 1 : 0; /* all but the first of a step */
        s->bytes += x->padded / (size_t)s->group->nranks * zp_bytes(z->array[ZP_PARAM].type);
    }
    z->plan.second_bytes = s->bytes;
    z->plan.buffer_bytes += s->bytes;
    z->plan.buffer_ceiling_bytes += s->bytes;
}

/* One replica's part of a reduced unit: summed over the replicas in f32, or gathered from them as
   gradients are stored. */
static zp_op zp_replica_op(zero_ctx *z, int u, int kind) {
    zp_op op = zp_op_make(z, ZP_GRADIENTS, kind, u);
    op.group = z->replicas.group;
    op.memory = &z->replicas.view;
    op.shard = z->layout.unit[u].piece;
    if (kind == ZP_REDUCE_SCATTER) op.type = ZERO_F32;
    return op;
}
/* A unit's gather from the second shards. */
static zp_op zp_second_op(zero_ctx *z, int u) {
    zp_op op = zp_op_make(z, ZP_PARAMETERS, ZP_ALL_GATHER, u);
    op.group = z->second.group;
    op.memory = &z->second.view;
    op.shard = z->layout.unit[u].padded / (size_t)z->second.group->nranks;
    op.source = z->live[u].second_at;
    return op;
}

/* Bytes that this rank sends in a step for unit u: to its replicas, and to those that are near. */
static size_t zp_replicas_sent(zero_ctx *z, int u) {
    if (!z->replicas.group || !z->layout.unit[u].numel) return 0;
    const zp_op sum = zp_replica_op(z, u, ZP_REDUCE_SCATTER),
                gather = zp_replica_op(z, u, ZP_ALL_GATHER);
    return zp_op_cost(&sum) + zp_op_cost(&gather);
}
static size_t zp_near_sent(zero_ctx *z, int u) {
    if (!z->second.group || !z->live[u].near) return 0;
    const zp_op gather = zp_second_op(z, u);
    return (size_t)z->live[u].near * zp_op_cost(&gather);
}

/* Bytes that transports keep for pieces on their way between nodes, and where parts meet. */
static size_t zp_wire_bytes(const zero_ctx *z) {
    size_t bytes = z->all->wire_bytes;
    for (int i = ZP_DATA; i < ZP_GROUPS; i++) bytes += z->group[i].wire_bytes + z->part[i].bytes;
    return bytes;
}

/* ---- the build ---- */

/* Memory of `of` as a part of its ranks sees it: this rank's is where it was. */
static zp_memory zp_view_of(const zp_group *of, const zp_memory *m, const zp_group *part, int first,
                            int step) {
    zp_memory view = *m;
    view.handle = NULL;
    view.next = NULL;
    if (of->transport->view) of->transport->view(of, m, part, first, step, &view);
    return view;
}

/* The gradients' memory and the stage of the hosts are opened by all ranks, or, where nobody sees a
   peer's, by those whose library is to know it. COLLECTIVE. */
static zero_result zp_hierarchy_gradients(zero_ctx *z, size_t bytes) {
    zp_group *all = z->all, *data = z->data;
    zp_replicas *x = &z->replicas;
    if (!x->group) return zp_memory_open(data, &z->memory[ZP_GRAD], bytes, 0);
    const int size = data->nranks, first = all->rank / size * size;
    x->sums_at = zp_round_up(bytes, 4096);
    zp_memory *m = all->transport->view ? &x->memory : &z->memory[ZP_GRAD];
    ZP_TRY(zp_memory_open(m == &x->memory ? all : data, m, x->sums_at + x->sums_bytes, 0));
    x->view = zp_view_of(all, m, x->group, all->rank % size, size);
    if (m == &x->memory) z->memory[ZP_GRAD] = zp_view_of(all, m, data, first, 1);
    data->stage = zp_view_of(all, &all->stage, data, first, 1);
    return ZERO_OK;
}
static void zp_hierarchy_parameters(zero_ctx *z) {
    const zp_group *near = z->second.group;
    if (!near) return;
    z->second.view = zp_view_of(z->data, &z->memory[ZP_PARAM], near,
                                z->data->rank / near->nranks * near->nranks, 1);
}

/* The order in which the world adds verdicts up, from the pieces' owners: of N ranks without
   replicas the p-th counts piece p. COLLECTIVE over `all`, and over the world. */
static zero_result zp_hierarchy_order(zero_ctx *z, int *order) {
    const int size = z->data->nranks, count = zp_replicas_of(z), p = z->all->rank;
    const int owner = p % count * size + p / count;
    const int32_t here = z->world->rank;
    int32_t there;
    ZP_DO(z, zp_exchange(z->all, &here, sizeof here));
    memcpy(&there, z->all->mail + (size_t)owner * sizeof there, sizeof there);
    ZP_DO(z, zp_exchange(z->world, &there, sizeof there));
    memcpy(order, z->world->mail, (size_t)z->world->nranks * sizeof *order);
    return ZERO_OK;
}
static zero_result zp_hierarchy_build(zero_ctx *z) {
    if (!z->replicas.group) return ZERO_OK;
    const size_t bytes = (size_t)z->world->nranks * sizeof(int);
    int *order = (int *)zp_host_alloc(bytes);
    zero_result r = order
                        ? zp_hierarchy_order(z, order)
                        : zp_fail(z, ZERO_ERR_MEMORY, "the order of %d verdicts", z->world->nranks);
    if (!r) r = zp_check(z, zp_copy(&z->compute, z->replicas.order, order, bytes));
    if (!r) r = zp_check(z, zp_stream_sync(&z->compute));
    zp_host_free(order);
    return r ? z->dead = r : ZERO_OK;
}

/* SECOND SHARDS (hpZ). Behind a unit's first gather since its weights have changed, the parameter
   stream copies this rank's part of it, as it was gathered, out of the unit's buffer: nobody waits
   for that. Later gathers are those of the near ranks' parts, by the same stream, so that a part is
   there before any rank of the group asks for it. What the host knows of it is one number of each
   unit, which is the same on all ranks: it follows from their calls. */

/* The weights have changed: neither buffers nor second shards have them. */
static void zp_gathered_forget(zero_ctx *z) {
    zp_pool_forget(&z->pool[ZP_PARAM]);
    for (int u = 0; u < z->layout.all && z->second.group; u++) z->live[u].second = 0;
}

/* Enqueues u's gather from second shards, to `target`. */
static zero_result zp_second_gather(zero_ctx *z, int u, size_t target) {
    zp_op op = zp_second_op(z, u);
    op.target = target;
    ZP_TRY(zp_issue(&z->stream[ZP_PARAMETERS], &op, 1));
    return zp_event_record(&z->stream[ZP_PARAMETERS], z->live[u].gathered);
}

/* Unit u was gathered, to `target`: this rank keeps its part. */
static zero_result zp_second_keep(zero_ctx *z, int u, size_t target) {
    const zp_group *near = z->second.group;
    zp_live *live = &z->live[u];
    if (!near || !live->second_at) return ZERO_OK;
    const size_t numel = z->layout.unit[u].padded / (size_t)near->nranks;
    const size_t bytes = numel * zp_bytes(z->array[ZP_PARAM].type);
    char *base = z->memory[ZP_PARAM].base;
    live->second = 1;
    return zp_copy(&z->stream[ZP_PARAMETERS], base + live->second_at,
                   base + target + (size_t)near->rank * bytes, bytes);
}

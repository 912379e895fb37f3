/* rows_gpu.h - the reductions of rows.h on a GPU, and their row of the table

   The calling thread does the steps of rows.h: it enqueues them on the gradient stream.
   Maps travel through `out` and `in`. They have the sizes of all messages, so the calling thread
   waits for them (`arrived`) before it enqueues the rest. It writes the unit's table, which the
   stream copies to the GPU for the kernels of rows_kernels.h:

     table | this rank's blocks, by owner | blocks of this shard, by place | gathered blocks, by
   owner

   The calling thread writes the table again after it has waited for the unit's next maps. By then
   the stream has copied it. The sum has the order of a dense sum of LOCAL: ranks of a node, then
   nodes. NCCL adds a dense reduction in an order of its own, and rounds 16-bit gradients in
   between. So with NCCL, sums of touched rows have the same bits in every run, but those of the
   dense reduction only up to rounding, unless 2 ranks add f32. */
#pragma once

#include "rows.h"
#include "rows_kernels.h"

/* The parts of a unit's table. */
enum { ZP_ROWS_SENT, ZP_ROWS_ADDED, ZP_ROWS_GATHERED, ZP_ROWS_PARTS };

typedef struct zp_rows_gpu {
    size_t bytes, all_bytes; /* of the largest unit's table; of all tables */
    zp_rows_word *table;     /* [bytes] on the GPU: of the unit that is reduced */
    zp_rows_word *tables;    /* [all_bytes] CPU memory of all units' tables */
    uint64_t *found;         /* a checked build: see zp_rows_kernels_check; CPU memory */
    zp_event arrived;        /* all maps are in CPU memory */
} zp_rows_gpu;

/* Writes the words of a part of the unit's table. `map` has a map for each of the nranks entries.
 */
static void zp_rows_gpu_write_table(zp_rows_word *to, const uint64_t *map, size_t words) {
    uint64_t before = 0;
    for (size_t i = 0; i < words; i++) {
        const zp_rows_word w = {map[i], before};
        to[i] = w;
        before += (uint64_t)__builtin_popcountll(map[i]);
    }
}
/* Returns a part of a table. */
static zp_rows_word *zp_rows_gpu_table_at(const zero_ctx *z, const zp_rows_unit *x,
                                          zp_rows_word *table, int part) {
    return table + (size_t)part * zp_rows_map_words(z, x);
}
/* Copies parts [from, to) of the unit's table to the GPU. */
static zero_result zp_rows_gpu_send_table(zp_stream *s, const zero_ctx *z, const zp_rows_unit *x,
                                          int from, int to) {
    return zp_device_copy(s, zp_rows_gpu_table_at(z, x, z->rows->gpu->table, from),
                          zp_rows_gpu_table_at(z, x, x->table, from),
                          (size_t)(to - from) * zp_rows_map_words(z, x) * sizeof *x->table);
}

/* Sends every rank's map to all others, and waits for theirs. SYNC. */
static zero_result zp_rows_gpu_take_maps(zp_stream *s, zero_ctx *z, const zp_rows_unit *x,
                                         const zp_op *op) {
    zp_rows_state *w = z->rows;
    const int n = op->group->nranks, me = op->group->rank;
    const size_t bytes = zp_rows_map_bytes(z, x);
    const zp_parts in = {w->in, bytes, bytes, SIZE_MAX}, out = {w->out, 0, bytes, SIZE_MAX};
    ZP_TRY(zp_device_copy(s, w->out, zp_rows_map(z, x, me), bytes));
    ZP_TRY(zp_rows_swap(s, w, op, zp_group_list_messages(&w->group, w->list, &out, &in)));
    for (int r = 0; r < n; r++)
        if (r != me)
            ZP_TRY(zp_device_copy(s, zp_rows_map(z, x, r), w->in + (size_t)r * bytes, bytes));
    ZP_TRY(zp_device_record_event(s, &w->gpu->arrived));
    ZP_TRY(zp_device_sync_event(op->group->device, &w->gpu->arrived));
    return zp_failure_result(op->group->failure); /* an aborted exchange also ends */
}

/* Returns the rank of a place in the order of the sum. */
static int zp_rows_gpu_rank_at(const zp_comm *g, int place) {
    const int size = g->node_size;
    return g->order.across[place / size] * size + g->order.inside[place % size];
}

/* Sends the parts of the table for a reduction. */
static zero_result zp_rows_gpu_send_words(zp_stream *s, const zero_ctx *z, const zp_rows_unit *x,
                                          const zp_op *op) {
    const int n = op->group->nranks, me = op->group->rank;
    zp_rows_word *sent = zp_rows_gpu_table_at(z, x, x->table, ZP_ROWS_SENT);
    zp_rows_word *added = zp_rows_gpu_table_at(z, x, x->table, ZP_ROWS_ADDED);
    for (int p = 0; p < n; p++) {
        const uint64_t *theirs = zp_rows_map(z, x, zp_rows_gpu_rank_at(op->group, p));
        const size_t at = (size_t)p * x->words;
        zp_rows_gpu_write_table(sent + at, zp_rows_map(z, x, me) + at, x->words);
        zp_rows_gpu_write_table(added + at, theirs + (size_t)me * x->words, x->words);
    }
    return zp_rows_gpu_send_table(s, z, x, ZP_ROWS_SENT, ZP_ROWS_ADDED + 1);
}

/* Returns the move of `shards` shards' blocks in a round; `part` of the table has their maps. */
static zp_rows_kernels_move_args zp_rows_gpu_make_move(const zero_ctx *z, const zp_rows_unit *x,
                                                       const zp_op *op, const zp_rows_round *round,
                                                       int part, int packs) {
    const zp_rows_kernels_move_args move = {zp_rows_gpu_table_at(z, x, z->rows->gpu->table, part),
                                            x->words,
                                            round->from,
                                            round->to,
                                            x->block,
                                            op->shard,
                                            zp_type_bytes(op->type),
                                            op->memory->base + op->source,
                                            packs ? z->rows->out : z->rows->in,
                                            z->rows->message_bytes,
                                            op->group->rank,
                                            packs};
    return move;
}
/* Returns the threads that a kernel needs for one shard's part of a round. */
static size_t zp_rows_gpu_threads(const zp_rows_unit *x, const zp_rows_round *round) {
    return 64 * x->block * (round->to - round->from) / ZP_WIDE;
}

static zero_result zp_rows_gpu_add_round(zp_stream *s, const zero_ctx *z, const zp_rows_unit *x,
                                         const zp_op *op, const zp_rows_round *round) {
    const zp_comm *g = op->group;
    const zp_rows_state *w = z->rows;
    zp_rows_kernels_add_args add = {zp_local_make_sum(op, g->nranks, g->node_size),
                                    zp_rows_gpu_table_at(z, x, w->gpu->table, ZP_ROWS_ADDED),
                                    x->words,
                                    round->from,
                                    x->block,
                                    op->shard,
                                    0};
    for (int p = 0; p < g->nranks; p++) {
        const int r = zp_rows_gpu_rank_at(g, p);
        if (r == g->rank) add.own = p;
        add.sum.source[p] =
            r == g->rank ? op->memory->base + op->source + (size_t)r * zp_comm_op_shard_bytes(op)
                         : w->in + (size_t)r * w->message_bytes;
    }
    return zp_rows_kernels_add(s, &add, zp_rows_gpu_threads(x, round));
}

static zero_result zp_rows_gpu_reduce_sparsely(zp_stream *s, zero_ctx *z, const zp_rows_unit *x,
                                               const zp_op *op) {
    zp_rows_state *w = z->rows;
    const size_t ranks = (size_t)op->group->nranks;
    zp_rows_round round = {0, 0};
    while (round.to < x->words) {
        zp_rows_next_round(w, x, x->maps, ranks, &round);
        const zp_rows_kernels_move_args pack =
            zp_rows_gpu_make_move(z, x, op, &round, ZP_ROWS_SENT, 1);
        ZP_TRY(zp_rows_kernels_move(s, &pack, ranks * zp_rows_gpu_threads(x, &round)));
        ZP_TRY(zp_rows_exchange_blocks(s, z, x, op, &round));
        ZP_TRY(zp_rows_gpu_add_round(s, z, x, op, &round));
    }
    return ZERO_OK;
}

/* A checked build: the check of zp_rows_check, by a kernel. SYNC. */
static zero_result zp_rows_gpu_check(zp_stream *s, const zero_ctx *z, const zp_rows_unit *x,
                                     const zp_op *op) {
    zp_rows_state *w = z->rows;
    const zp_rows_kernels_check_args check = {
        zp_rows_gpu_table_at(z, x, w->gpu->table, ZP_ROWS_SENT),
        op->memory->base + op->source,
        x->words,
        x->block,
        op->shard,
        zp_type_bytes(op->type),
        w->gpu->found};
    *w->gpu->found = 0;
    ZP_TRY(zp_rows_kernels_check(s, &check, (size_t)op->group->nranks * op->shard));
    ZP_TRY(zp_device_sync_stream(s));
    return *w->gpu->found ? zp_rows_report_forgotten(z, op, *w->gpu->found - 1) : ZERO_OK;
}

static zero_result zp_rows_gpu_reduce(zp_stream *s, const zp_rows_args *a) {
    zero_ctx *z = a->z;
    const zp_op *op = &a->op;
    const zp_rows_unit *x = &z->rows->unit[op->unit];
    ZP_TRY(zp_rows_gpu_take_maps(s, z, x, op));
    const int pays = zp_rows_pays(z, x);
    if (z->policy.state == ZP_WHOLE) zp_rows_note_touched(z, op->unit, a->first, !pays);
    if (pays || ZERO_CHECK) ZP_TRY(zp_rows_gpu_send_words(s, z, x, op));
    if (ZERO_CHECK) ZP_TRY(zp_rows_gpu_check(s, z, x, op));
    return pays ? zp_rows_gpu_reduce_sparsely(s, z, x, op) : zp_rows_run_densely(s, z->rows, op);
}

static zero_result zp_rows_gpu_gather(zp_stream *s, const zp_rows_args *a) {
    zero_ctx *z = a->z;
    zp_rows_state *w = z->rows;
    const zp_op *op = &a->op;
    const zp_rows_unit *x = &w->unit[op->unit];
    const size_t ranks = (size_t)op->group->nranks, me = (size_t)op->group->rank;
    const size_t bytes = zp_comm_op_shard_bytes(op);
    char *own = op->memory->base + op->source, *whole = op->memory->base + op->target;
    zp_rows_word *table = zp_rows_gpu_table_at(z, x, x->table, ZP_ROWS_GATHERED);
    zp_rows_round round = {0, 0};
    if (!zp_rows_gather_pays(op, x)) return zp_rows_run_densely(s, w, op);
    for (size_t r = 0; r < ranks; r++)
        zp_rows_gpu_write_table(table + r * x->words, x->touched + r * x->words, x->words);
    ZP_TRY(zp_rows_gpu_send_table(s, z, x, ZP_ROWS_GATHERED, ZP_ROWS_PARTS));
    if (whole + me * bytes != own) ZP_TRY(zp_device_copy(s, whole + me * bytes, own, bytes));
    while (round.to < x->words) {
        zp_rows_next_round(w, x, x->touched, 1, &round);
        zp_rows_kernels_move_args pack =
            zp_rows_gpu_make_move(z, x, op, &round, ZP_ROWS_GATHERED, 1);
        zp_rows_kernels_move_args unpack =
            zp_rows_gpu_make_move(z, x, op, &round, ZP_ROWS_GATHERED, 0);
        pack.map += me * x->words;
        pack.skipped = -1;
        unpack.shards = whole;
        ZP_TRY(zp_rows_kernels_move(s, &pack, zp_rows_gpu_threads(x, &round)));
        ZP_TRY(zp_rows_exchange_blocks(s, z, x, op, &round));
        ZP_TRY(zp_rows_kernels_move(s, &unpack, ranks * zp_rows_gpu_threads(x, &round)));
    }
    return ZERO_OK;
}

static zero_result zp_rows_gpu_run(zp_stream *s, const zp_rows_args *a) {
    return a->op.kind == ZP_REDUCE_SCATTER ? zp_rows_gpu_reduce(s, a) : zp_rows_gpu_gather(s, a);
}

/* ---- life ---- */

static size_t zp_rows_gpu_table_bytes(const zero_ctx *z, const zp_rows_unit *x) {
    return ZP_ROWS_PARTS * zp_rows_map_words(z, x) * sizeof(zp_rows_word);
}
static zero_result zp_rows_gpu_plan(zero_ctx *z) {
    zp_rows_state *w = z->rows;
    if (zp_device_is_host() || !w->map_bytes) return ZERO_OK;
    if (!w->gpu) w->gpu = (zp_rows_gpu *)calloc(1, sizeof *w->gpu);
    if (!w->gpu) return ZERO_ERR_MEMORY;
    w->run = zp_rows_gpu_run;
    w->gpu->bytes = 0;
    w->gpu->all_bytes = sizeof *w->gpu->found;
    for (int u = 0; u < z->layout.all; u++) {
        const size_t bytes = w->unit[u].block ? zp_rows_gpu_table_bytes(z, &w->unit[u]) : 0;
        w->gpu->bytes = zp_max(w->gpu->bytes, bytes);
        w->gpu->all_bytes += bytes;
    }
    z->plan.buffer_bytes += w->gpu->bytes;
    z->plan.buffer_ceiling_bytes += w->gpu->bytes;
    z->plan.context_bytes += sizeof *w->gpu + w->gpu->all_bytes;
    return ZERO_OK;
}
static zero_result zp_rows_gpu_cut(zero_ctx *z) {
    zp_rows_gpu *g = z->rows->gpu;
    if (g) g->table = (zp_rows_word *)zp_ctx_cut_arena(z, g->bytes, 1);
    return ZERO_OK;
}
static zero_result zp_rows_gpu_allocate(zero_ctx *z) {
    zp_rows_gpu *g = z->rows->gpu;
    if (!g) return ZERO_OK;
    g->tables = (zp_rows_word *)zp_device_alloc_host(g->all_bytes);
    if (!g->tables) return ZERO_ERR_MEMORY;
    zp_rows_word *at = g->tables;
    for (int u = 0; u < z->layout.all; u++) {
        zp_rows_unit *x = &z->rows->unit[u];
        if (!x->block) continue;
        x->table = at;
        at += ZP_ROWS_PARTS * zp_rows_map_words(z, x);
    }
    g->found = (uint64_t *)(void *)at;
    return zp_device_open_event(&z->device, &g->arrived);
}
static zero_result zp_rows_gpu_close(zero_ctx *z) {
    zp_rows_gpu *g = z->rows->gpu;
    if (!g) return ZERO_OK;
    zp_device_close_event(&g->arrived);
    zp_device_free_host(g->tables);
    free(g);
    z->rows->gpu = NULL;
    return ZERO_OK;
}

static zp_extra zp_rows_gpu_row(void) {
    zp_extra x;
    memset(&x, 0, sizeof x);
    x.name = "rows on a GPU";
    x.call[ZP_ON_PLAN] = zp_rows_gpu_plan;
    x.call[ZP_ON_CUT] = zp_rows_gpu_cut;
    x.call[ZP_ON_ALLOCATE] = zp_rows_gpu_allocate;
    x.call[ZP_ON_DESTROY] = zp_rows_gpu_close;
    return x;
}

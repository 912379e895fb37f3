/* rows.h - gradients of which backward touches few rows, such as those of an embedding

   Your code announces the rows that backward touches (zero_touch_rows). All other rows of the
   gradient are zeros. This row of the table then sends the touched rows alone, and the result has
   the bits of the dense reduction. Units with a tensor that has row_numel do this; a tensor of such
   a unit that is not announced in a micro-step counts as touched everywhere.

   BLOCKS AND MAPS. A shard is cut into blocks of `block` elements, the last one is shorter. A map
   has one bit for each block of the unit: backward may have written it. A row touches one block or
   a few. A block is sent whole, so no alignment of rows to shards matters.

     unit    | rank 0's shard: block 0, 1, ... | rank 1's shard: block 0, 1, ... | ...
     map     | words of 64 bits                | words                           | ...

   THE WAY OF A MAP. The calling thread owns `pending`, to which zero_touch_rows adds. When the
   unit's reduction is issued, the calling thread moves it to this rank's map in `maps`. From then
   on the gradient stream owns `maps`. The calling thread writes there again when the unit is
   reduced again, which is after the unit's event `reduction`: zp_reduce_open_gradient waits for it.

   THE WAY OF A BLOCK. One task of the gradient stream does all of a unit's reduction:
     1. every rank sends its map to every other rank. This is the only additional exchange
     2. from the same maps every rank decides the same: if a rank would send over half of what it
        sends densely, the transport reduces the unit densely
     3. in rounds: a rank packs the touched blocks of each peer's shard, in order, in `out`, and
        receives its own in `in`. The maps have the sizes and the addresses. A round ends before a
        message has more than `room` blocks, after the same blocks on all ranks
     4. the owner adds each block with the kernel of the dense sum, in its order. For a rank that
        did not touch the block, the kernel adds zeros, which its gradient has there: so 0 + -0 is
        0, as in the dense sum. A block that no rank touched becomes 0, or, where micro-steps add
        up, gets 0 added, because -0 + 0 is 0
   At stage 0, a second task sends the blocks that a rank touched in this step from each owner to
   all ranks, without maps: all ranks have them. The other blocks are 0.

   WAITING. The task waits for messages of all ranks, as a dense reduction does. Nothing else
   waits. `out` and `in` belong to the gradient stream, so one unit uses them at a time.

   TRAFFIC. zero_plan has the worst case, the dense reduction and the maps. zero_stats and the trace
   have the bytes that were sent. */
#pragma once

#include "../comm/group.h"
#include "../core/part.h"
#include "../core/step.h"

/* A unit that has rows. */
typedef struct zp_rows_unit {
    size_t block, blocks, words; /* elements of a block; of a shard: blocks, words of its map */
    size_t room;                 /* most blocks of a message */
    uint64_t *pending;           /* [nranks * words] of the next reduction */
    uint64_t *maps;              /* [nranks][nranks * words] of this reduction, by rank */
    uint64_t *touched;           /* [nranks * words] by any rank since the step began */
    struct zp_rows_word *table;  /* a GPU's: see rows_gpu.h */
} zp_rows_unit;

/* A collective of a unit. */
typedef struct zp_rows_args {
    zero_ctx *z;
    zp_op op;
    int first;         /* the unit's first reduction in this step */
    zp_record *record; /* receives the bytes that were sent; NULL: events are not recorded */
} zp_rows_args;

typedef struct zp_rows_state {
    zp_wire wire;
    zp_rows_unit *unit;     /* [layout.all]; block 0: the unit is always reduced densely */
    unsigned char *known;   /* [layout.nmembers] 1: its rows of this micro-step were announced */
    size_t message_bytes;   /* most bytes to or from one rank */
    size_t map_bytes;       /* of all maps */
    size_t most_bytes;      /* of the largest block */
    char *out, *in, *zeros; /* [nranks * message_bytes]; [most_bytes] */
    uint64_t *maps;         /* memory of all maps */
    uint32_t *count;        /* [nranks * nranks] blocks of a round, by sender and owner */
    zero_message *list;     /* [2 * nranks] */
    zp_comm group;          /* the sharding ranks, with messages */
    zp_part part;
    uint64_t number; /* exchanges of the group so far */
    uint64_t sent;   /* bytes; the gradient stream adds */
    /* Reduces or gathers; rows_gpu.h replaces it. */
    zero_result (*run)(zp_stream *s, const zp_rows_args *a);
    struct zp_rows_gpu *gpu; /* of a run on a GPU; else NULL */
} zp_rows_state;

static size_t zp_rows_bits(const uint64_t *map, size_t words) {
    size_t n = 0;
    for (size_t i = 0; i < words; i++) n += (size_t)__builtin_popcountll(map[i]);
    return n;
}

/* Returns the number of words of a whole map. */
static size_t zp_rows_map_words(const zero_ctx *z, const zp_rows_unit *x) {
    return (size_t)z->data->nranks * x->words;
}
static uint64_t *zp_rows_map(const zero_ctx *z, const zp_rows_unit *x, int rank) {
    return x->maps + (size_t)rank * zp_rows_map_words(z, x);
}
static size_t zp_rows_map_bytes(const zero_ctx *z, const zp_rows_unit *x) {
    return zp_rows_map_words(z, x) * sizeof(uint64_t);
}

/* Sets the bits of elements [first, first + n) of unit u, n > 0. */
static void zp_rows_mark(const zero_ctx *z, int u, uint64_t *map, size_t first, size_t n) {
    const zp_rows_unit *x = &z->rows->unit[u];
    const size_t shard = zp_ctx_shard(z, u), end = first + n;
    while (first < end) {
        const size_t rank = first / shard, b = first % shard / x->block;
        map[rank * x->words + b / 64] |= (uint64_t)1 << b % 64;
        first = zp_min(rank * shard + (b + 1) * x->block, (rank + 1) * shard);
    }
}

/* Moves what was announced for unit u to this rank's map. Other tensors may be written anywhere. */
static void zp_rows_close_map(zero_ctx *z, int u) {
    const zp_rows_unit *x = &z->rows->unit[u];
    const zp_unit *unit = &z->layout.unit[u];
    const int several = z->pass_micro_steps > 1; /* announcements of several may have mixed */
    uint64_t *map = zp_rows_map(z, x, z->data->rank);
    memcpy(map, x->pending, zp_rows_map_bytes(z, x));
    memset(x->pending, 0, zp_rows_map_bytes(z, x));
    for (const zp_member *m = unit->member; m < unit->member + unit->members; m++) {
        unsigned char *known = &z->rows->known[m - z->layout.members];
        if (!*known || several) zp_rows_mark(z, u, map, m->at, m->numel);
        *known = 0;
    }
}

/* ---- tasks of the gradient stream ---- */

/* A round: words [from, to) of each shard's map. */
typedef struct zp_rows_round {
    size_t from, to;
} zp_rows_round;

/* Returns the elements of block b. */
static size_t zp_rows_block_numel(const zp_rows_unit *x, const zp_op *op, size_t b) {
    return zp_min(x->block, op->shard - b * x->block);
}
/* Returns the bytes of the blocks with bits in words [from, to) of a shard's map. */
static size_t zp_rows_bytes(const zp_rows_unit *x, const zp_op *op, const uint64_t *map,
                            const zp_rows_round *w) {
    const size_t last = x->blocks - 1, of = zp_type_bytes(op->type);
    const int has_last =
        w->to == x->words && w->from < w->to && (map[last / 64] >> last % 64 & 1u) != 0;
    const size_t missing = has_last ? x->block - zp_rows_block_numel(x, op, last) : 0;
    return (zp_rows_bits(map + w->from, w->to - w->from) * x->block - missing) * of;
}

/* Moves blocks between a shard and a message that has them one after the other. Returns the bytes
   of the message. */
static size_t zp_rows_move(const zp_rows_unit *x, const zp_op *op, const uint64_t *map,
                           const zp_rows_round *w, char *shard, char *message, int packs) {
    const size_t of = zp_type_bytes(op->type);
    char *at = message;
    for (size_t i = w->from; i < w->to; i++)
        for (uint64_t bits = map[i]; bits; bits &= bits - 1) {
            const size_t b = 64 * i + (size_t)__builtin_ctzll(bits);
            const size_t bytes = zp_rows_block_numel(x, op, b) * of;
            char *block = shard + b * x->block * of;
            memcpy(packs ? at : block, packs ? block : at, bytes);
            at += bytes;
        }
    return (size_t)(at - message);
}

/* Exchanges the messages of z->rows->list. */
static zero_result zp_rows_swap(zp_stream *s, zp_rows_state *w, const zp_op *op, int n) {
    const zp_swap x = {&w->group, zp_comm_op_call(op), ++w->number, w->list, n};
    for (int i = 0; i < n; i++) w->sent += w->list[i].sends ? w->list[i].bytes : 0;
    ZP_TRY(zp_failure_result(w->group.failure));
    return n ? w->group.transport->messenger->swap(s, &x) : ZERO_OK;
}

/* Ends a round before a message has more than `room` blocks. `maps` has nmaps maps. */
static void zp_rows_next_round(const zp_rows_state *w, const zp_rows_unit *x, const uint64_t *maps,
                               size_t nmaps, zp_rows_round *r) {
    const size_t n = nmaps * (size_t)w->group.nranks;
    int fits = 1;
    r->from = r->to;
    memset(w->count, 0, n * sizeof *w->count);
    while (r->to < x->words && fits) {
        for (size_t i = 0; i < n; i++) {
            w->count[i] += (uint32_t)__builtin_popcountll(maps[i * x->words + r->to]);
            fits &= w->count[i] <= x->room;
        }
        r->to += (size_t)fits;
    }
}

/* Sends every rank's map to all others. */
static zero_result zp_rows_exchange_maps(zp_stream *s, zero_ctx *z, const zp_rows_unit *x,
                                         const zp_op *op) {
    const size_t bytes = zp_rows_map_bytes(z, x);
    const zp_parts in = {x->maps, bytes, bytes, SIZE_MAX},
                   out = {zp_rows_map(z, x, op->group->rank), 0, bytes, SIZE_MAX};
    return zp_rows_swap(s, z->rows, op,
                        zp_group_list_messages(&z->rows->group, z->rows->list, &out, &in));
}

/* Returns 1 if each rank sends at most half of its dense messages. Every rank returns the same. */
static int zp_rows_pays(const zero_ctx *z, const zp_rows_unit *x) {
    const int n = z->data->nranks;
    size_t most = 0;
    for (int r = 0; r < n; r++) {
        const uint64_t *map = zp_rows_map(z, x, r);
        const size_t own = zp_rows_bits(map + (size_t)r * x->words, x->words);
        most = zp_max(most, zp_rows_bits(map, zp_rows_map_words(z, x)) - own);
    }
    return 2 * most <= (size_t)(n - 1) * x->blocks;
}

/* Notes the blocks that any rank has touched in this step. */
static void zp_rows_note_touched(const zero_ctx *z, int u, int first, int all) {
    const zp_rows_unit *x = &z->rows->unit[u];
    const size_t words = zp_rows_map_words(z, x);
    if (first) memset(x->touched, 0, words * sizeof *x->touched);
    for (int r = 0; r < z->data->nranks; r++)
        for (size_t i = 0; i < words; i++) x->touched[i] |= zp_rows_map(z, x, r)[i];
    if (all) zp_rows_mark(z, u, x->touched, 0, z->layout.unit[u].padded);
}

/* Exchanges a round's blocks. In a gather, `out` has this rank's message, the same for all ranks;
   on a GPU, a kernel has packed those of a reduction as well. */
static zero_result zp_rows_exchange_blocks(zp_stream *s, zero_ctx *z, const zp_rows_unit *x,
                                           const zp_op *op, const zp_rows_round *round) {
    zp_rows_state *w = z->rows;
    const int n = op->group->nranks, me = op->group->rank, gathers = op->kind == ZP_ALL_GATHER;
    int k = 0;
    for (int sends = 1; sends >= 0; sends--)
        for (int i = 1; i < n; i++) {
            const int peer = (me + i) % n, from = sends ? me : peer, to = sends ? peer : me;
            const uint64_t *map = gathers ? x->touched + (size_t)from * x->words
                                          : zp_rows_map(z, x, from) + (size_t)to * x->words;
            char *data = sends ? w->out : w->in;
            if (!sends || !gathers) data += (size_t)peer * w->message_bytes;
            char *shard = op->memory->base + op->source + (size_t)to * zp_comm_op_shard_bytes(op);
            const zero_message m = {peer, sends, data,
                                    sends && !gathers && zp_device_is_host()
                                        ? zp_rows_move(x, op, map, round, shard, data, 1)
                                        : zp_rows_bytes(x, op, map, round)};
            w->list[k] = m;
            k += m.bytes > 0;
        }
    return zp_rows_swap(s, w, op, k);
}

/* Adds the blocks of one word of this rank's shard. next[r]: the next block of rank r's message. */
static void zp_rows_add_word(const zero_ctx *z, const zp_rows_unit *x, const zp_op *op, size_t i,
                             const char **next) {
    const zp_sum_order *order = &op->group->order;
    const int n = op->group->nranks, me = op->group->rank, size = op->group->node_size;
    const size_t of = zp_type_bytes(op->type), at_me = (size_t)me * x->words + i;
    const char *own = op->memory->base + op->source + (size_t)me * zp_comm_op_shard_bytes(op);
    for (size_t b = 64 * i; b < zp_min(64 * (i + 1), x->blocks); b++) {
        const size_t numel = zp_rows_block_numel(x, op, b), at = b * x->block;
        int any = 0;
        zp_sum sum = zp_local_make_sum(op, n, size);
        for (int p = 0; p < n; p++) {
            const int r = order->across[p / size] * size + order->inside[p % size];
            const int has = (int)(zp_rows_map(z, x, r)[at_me] >> b % 64 & 1u);
            any |= has;
            sum.source[p] = !has ? z->rows->zeros : r == me ? own + at * of : next[r];
            if (has && r != me) next[r] += numel * of;
        }
        if (!any) sum.n = sum.group = 1; /* the sum of n zeros is 0 */
        sum.out = (char *)sum.out + at * of;
        if (sum.sum) sum.sum += at;
        zp_kernel_sum_slices(&sum, numel, 1);
    }
}

static zero_result zp_rows_reduce_sparsely(zp_stream *s, zero_ctx *z, const zp_rows_unit *x,
                                           const zp_op *op) {
    zp_rows_state *w = z->rows;
    const char *next[ZP_LOCAL_MAX];
    zp_rows_round round = {0, 0};
    while (round.to < x->words) {
        zp_rows_next_round(w, x, x->maps, (size_t)op->group->nranks, &round);
        ZP_TRY(zp_rows_exchange_blocks(s, z, x, op, &round));
        for (int r = 0; r < op->group->nranks; r++) next[r] = w->in + (size_t)r * w->message_bytes;
        for (size_t i = round.from; i < round.to; i++) zp_rows_add_word(z, x, op, i, next);
    }
    return ZERO_OK;
}

/* Runs the collective as the transport does. */
static zero_result zp_rows_run_densely(zp_stream *s, zp_rows_state *w, const zp_op *op) {
    zp_op dense = *op;
    dense.wire = NULL;
    w->sent += op->group->transport->cost(op->group, &dense);
    return op->group->transport->issue(s, &dense, 1);
}

/* Reports that element i of the unit is in a row that was not announced. */
static zero_result zp_rows_report_forgotten(const zero_ctx *z, const zp_op *op, size_t i) {
    const zp_member *m = z->layout.unit[op->unit].member;
    while (i >= m->at + m->numel) m++;
    const zero_tensor_desc *d = &z->tensors[m->tensor].desc;
    return zp_comm_fail(op->group, ZERO_ERR_ARGUMENT,
                        "tensor %s: backward wrote row %zu, which zero_touch_rows did not "
                        "announce; announce each row that it writes",
                        d->name, (m->first + i - m->at) / d->row_numel);
}

/* A checked build: finds an element that is not 0 and was not announced. */
static zero_result zp_rows_check(const zero_ctx *z, const zp_rows_unit *x, const zp_op *op) {
    const zp_unit *unit = &z->layout.unit[op->unit];
    const uint64_t *map = zp_rows_map(z, x, op->group->rank);
    const size_t of = zp_type_bytes(op->type);
    const char *base = op->memory->base + op->source;
    for (const zp_member *m = unit->member; m < unit->member + unit->members; m++)
        for (size_t i = m->at; i < m->at + m->numel; i++) {
            const size_t b = i % op->shard / x->block;
            uint32_t bits = 0;
            memcpy(&bits, base + i * of, of);
            if (!bits || map[i / op->shard * x->words + b / 64] >> b % 64 & 1u) continue;
            return zp_rows_report_forgotten(z, op, i);
        }
    return ZERO_OK;
}

static zero_result zp_rows_run_reduction(zp_stream *s, const zp_rows_args *a) {
    zero_ctx *z = a->z;
    const zp_op *op = &a->op;
    const zp_rows_unit *x = &z->rows->unit[op->unit];
    if (ZERO_CHECK) ZP_TRY(zp_rows_check(z, x, op));
    ZP_TRY(zp_rows_exchange_maps(s, z, x, op));
    const int pays = zp_rows_pays(z, x);
    if (z->policy.state == ZP_WHOLE) zp_rows_note_touched(z, op->unit, a->first, !pays);
    return pays ? zp_rows_reduce_sparsely(s, z, x, op) : zp_rows_run_densely(s, z->rows, op);
}

/* Returns 1 if each rank sends at most half of its shard in the gather of stage 0. */
static int zp_rows_gather_pays(const zp_op *op, const zp_rows_unit *x) {
    size_t most = 0;
    for (int r = 0; r < op->group->nranks; r++)
        most = zp_max(most, zp_rows_bits(x->touched + (size_t)r * x->words, x->words));
    return 2 * most <= x->blocks;
}

/* Stage 0: all ranks receive the touched blocks of each reduced shard. */
static zero_result zp_rows_gather_sparsely(zp_stream *s, zero_ctx *z, const zp_rows_unit *x,
                                           const zp_op *op) {
    zp_rows_state *w = z->rows;
    const int n = op->group->nranks, me = op->group->rank;
    const size_t bytes = zp_comm_op_shard_bytes(op);
    char *own = op->memory->base + op->source, *whole = op->memory->base + op->target;
    zp_rows_round round = {0, 0};
    if (whole + (size_t)me * bytes != own) memcpy(whole + (size_t)me * bytes, own, bytes);
    for (int r = 0; r < n; r++)
        if (r != me) memset(whole + (size_t)r * bytes, 0, bytes);
    while (round.to < x->words) {
        zp_rows_next_round(w, x, x->touched, 1, &round);
        (void)zp_rows_move(x, op, x->touched + (size_t)me * x->words, &round, own, w->out, 1);
        ZP_TRY(zp_rows_exchange_blocks(s, z, x, op, &round));
        for (size_t r = 0; r < (size_t)n; r++)
            if (r != (size_t)me)
                (void)zp_rows_move(x, op, x->touched + r * x->words, &round, whole + r * bytes,
                                   w->in + r * w->message_bytes, 0);
    }
    return ZERO_OK;
}
static zero_result zp_rows_run_gather(zp_stream *s, const zp_rows_args *a) {
    const zp_op *op = &a->op;
    const zp_rows_unit *x = &a->z->rows->unit[op->unit];
    return zp_rows_gather_pays(op, x) ? zp_rows_gather_sparsely(s, a->z, x, op)
                                      : zp_rows_run_densely(s, a->z->rows, op);
}

/* ---- the wire ---- */

/* The bytes that this rank sends at most. */
static size_t zp_rows_sent(const zp_op *op) {
    const zero_ctx *z = op->wire->z;
    const size_t maps = zp_rows_map_bytes(z, &z->rows->unit[op->unit]);
    return op->group->transport->cost(op->group, op)
           + (op->kind == ZP_REDUCE_SCATTER ? (size_t)(op->group->nranks - 1) * maps : 0);
}

static zero_result zp_rows_run_on_host(zp_stream *s, const zp_rows_args *a) {
    return a->op.kind == ZP_REDUCE_SCATTER ? zp_rows_run_reduction(s, a) : zp_rows_run_gather(s, a);
}

/* Does all of a collective: a task, or, on a GPU, the calling thread. */
static zero_result zp_rows_run(zp_stream *s, const zp_rows_args *a) {
    const uint64_t before = a->z->rows->sent;
    ZP_TRY(zp_failure_result(a->op.group->failure));
    const zero_result r = a->z->rows->run(s, a);
    if (a->record) a->record->event.sent = a->z->rows->sent - before;
    return r;
}
static void zp_rows_task(const void *args, size_t n, int threads) {
    const zp_rows_args *a = (const zp_rows_args *)args;
    zp_stream here; /* this thread */
    (void)zp_device_take_stream(&here, a->op.group->device, NULL, threads);
    (void)zp_rows_run(&here, a);
}

static zero_result zp_rows_send(zero_ctx *z, zp_stream *s, const zp_op *op) {
    const int reduces = op->kind == ZP_REDUCE_SCATTER, ranks = op->group->nranks;
    zp_rows_args a = {z, *op, z->live[op->unit].reduced == 0, NULL};
    ZP_TRY(zp_failure_result(op->group->failure));
    if (reduces) zp_rows_close_map(z, op->unit);
    op->group->meter.reductions += (uint64_t)reduces;
    op->group->meter.gathers += (uint64_t)!reduces;
    ZP_SLICE(s, reduces ? ZERO_EVENT_REDUCTION : ZERO_EVENT_GATHER, op->unit,
             (size_t)ranks * zp_comm_op_shard_bytes(op),
             (zp_events_set_traffic(a.record = zp_slice, 1, ranks, zp_rows_sent(op)),
              zp_device_is_host() ? zp_device_push_task(s, zp_rows_task, &a, sizeof a, 1)
                                  : zp_rows_run(s, &a)));
    return ZERO_OK;
}

/* ---- life ---- */

static const zp_setting zp_rows_fields[] = {
    {ZP_FIELD(row_numel), ZP_UNSIGNED, 0, ZP_UNLIMITED, 0, 0},
    ZP_LAST_SETTING,
};

static zero_result zp_rows_tensor(zero_ctx *z, zp_tensor *t) {
    const zero_tensor_desc *d = &t->desc;
    if (!d->row_numel) return ZERO_OK;
    ZP_REFUSE(z, d->numel % d->row_numel,
              "tensor %s: row_numel is %zu, which does not divide numel, %zu; use a divisor",
              d->name, d->row_numel, d->numel);
    ZP_REFUSE(z, d->flags & ZERO_OVERWRITTEN,
              "tensor %s has row_numel and is OVERWRITTEN: rows that backward does not write must "
              "be 0; leave the flag out",
              d->name);
    ZP_REFUSE(z, d->sum_over,
              "tensor %s has row_numel and sum_over: rows that other ranks touch are added first; "
              "use row_numel 0",
              d->name);
    return ZERO_OK;
}
/* Appends what must be the same on all ranks. */
static void zp_rows_describe(const zero_ctx *z, const zp_tensor *t, char *text, size_t bytes) {
    const size_t n = strlen(text);
    if (t->desc.row_numel) (void)snprintf(text + n, bytes - n, ", rows of %zu", t->desc.row_numel);
}

static void zp_rows_free_lists(zp_rows_state *w) {
    free(w->unit);
    free(w->known);
    w->unit = NULL;
    w->known = NULL;
}
static zero_result zp_rows_layout(zero_ctx *z) {
    zp_rows_state *w = z->rows;
    zp_rows_free_lists(w);
    w->unit = (zp_rows_unit *)calloc((size_t)z->layout.all, sizeof *w->unit);
    w->known = (unsigned char *)calloc((size_t)z->layout.nmembers + 1, 1);
    return w->unit && w->known ? ZERO_OK : ZERO_ERR_MEMORY;
}

/* Returns the elements of the shortest row of unit u; 0: none has rows. */
static size_t zp_rows_shortest(const zero_ctx *z, int u) {
    const zp_unit *x = &z->layout.unit[u];
    size_t least = SIZE_MAX;
    for (const zp_member *m = x->member; m < x->member + x->members; m++) {
        const size_t n = z->tensors[m->tensor].desc.row_numel;
        if (n) least = zp_min(least, n);
    }
    return least == SIZE_MAX ? 0 : least;
}
/* Chooses unit u's blocks: at most half as long as a row, so that a row ends in few others. */
static void zp_rows_cut_unit(zero_ctx *z, int u, size_t row) {
    zp_rows_state *w = z->rows;
    zp_rows_unit *x = &w->unit[u];
    const size_t of = zp_type_bytes(z->array[ZP_GRAD].type), shard = zp_ctx_shard(z, u);
    x->block = zp_align;
    while (4 * x->block <= row && 2 * x->block <= ZP_SUM_BLOCK) x->block *= 2;
    x->blocks = (shard + x->block - 1) / x->block;
    x->words = (x->blocks + 63) / 64;
    x->room = zp_min(x->blocks, zp_max(64, (x->blocks + 31) / 32)); /* 64: a word fits a round */
    w->most_bytes = zp_max(w->most_bytes, x->block * of);
    w->message_bytes = zp_max(w->message_bytes, x->room * x->block * of);
    w->message_bytes = zp_max(w->message_bytes, zp_rows_map_bytes(z, x)); /* a GPU's maps */
    w->map_bytes += ((size_t)z->data->nranks + 2) * zp_rows_map_bytes(z, x);
}

/* Returns 1 if the ranks can add blocks in the order of the dense sum. */
static int zp_rows_can_add(const zp_comm *g) {
    return g->nranks > 1 && g->nranks <= ZP_LOCAL_MAX && !g->interleaved;
}
static zp_cut zp_rows_all_ranks(const zp_comm *g) {
    const zp_cut cut = {1, 0, g->rank, g->nranks, NULL};
    return cut;
}
static zero_result zp_rows_plan(zero_ctx *z) {
    zp_rows_state *w = z->rows;
    const size_t ranks = (size_t)z->data->nranks;
    const zp_wire wire = {zp_rows_sent, zp_rows_send, z};
    const zp_cut cut = zp_rows_all_ranks(z->data);
    w->wire = wire;
    w->message_bytes = w->map_bytes = w->most_bytes = 0;
    w->run = zp_rows_run_on_host;
    for (int u = 0; u < z->layout.all; u++) {
        const size_t row = zp_rows_shortest(z, u);
        zp_live *live = &z->live[u];
        if (!row) continue;
        ZP_REFUSE(z, z->cfg.gradient_bits,
                  "gradient_bits is %d, but a tensor of unit %d has row_numel: a unit is quantized "
                  "or sent by rows; use 0 for one of them",
                  z->cfg.gradient_bits, u);
        if (!zp_rows_can_add(z->data)) continue;
        zp_rows_cut_unit(z, u, row);
        live->wire[ZP_GRAD] = &w->wire;
        live->whole_wire = &w->wire;
    }
    if (!w->map_bytes) return ZERO_OK;
    const size_t buffers =
        2 * ranks * w->message_bytes + w->most_bytes + zp_part_bytes(z->data, &cut, 1);
    z->plan.buffer_bytes += buffers;
    z->plan.buffer_ceiling_bytes += buffers;
    z->plan.context_bytes += w->map_bytes + ranks * ranks * sizeof *w->count;
    return ZERO_OK;
}
static zero_result zp_rows_cut(zero_ctx *z) {
    zp_rows_state *w = z->rows;
    const size_t bytes = (size_t)z->data->nranks * w->message_bytes;
    if (!w->map_bytes) return ZERO_OK;
    w->out = (char *)zp_ctx_cut_arena(z, bytes, 1);
    w->in = (char *)zp_ctx_cut_arena(z, bytes, 1);
    w->zeros = (char *)zp_ctx_cut_arena(z, w->most_bytes, 1);
    return ZERO_OK;
}
/* Allocates the maps and the lists. */
static zero_result zp_rows_allocate(zero_ctx *z) {
    zp_rows_state *w = z->rows;
    const size_t n = (size_t)z->data->nranks;
    if (!w->map_bytes) return ZERO_OK;
    w->maps = (uint64_t *)zp_device_alloc_host(w->map_bytes);
    w->count = (uint32_t *)calloc(n * n, sizeof *w->count);
    w->list = (zero_message *)calloc(2 * n, sizeof *w->list);
    if (!w->maps || !w->count || !w->list) return ZERO_ERR_MEMORY;
    uint64_t *at = w->maps;
    for (int u = 0; u < z->layout.all; u++) {
        zp_rows_unit *x = &w->unit[u];
        if (!x->block) continue;
        x->pending = at;
        x->touched = at + zp_rows_map_words(z, x);
        x->maps = x->touched + zp_rows_map_words(z, x);
        at = x->maps + n * zp_rows_map_words(z, x);
    }
    return ZERO_OK;
}
/* Opens the group of messages. COLLECTIVE over the ranks that shard. */
static zero_result zp_rows_open(zero_ctx *z) {
    zp_rows_state *w = z->rows;
    if (!w->map_bytes) return ZERO_OK;
    zp_comm_prepare(&w->group, &z->device, &z->failure, z->data->timeout_s);
    w->group.swaps = 1;
    return zp_part_open(z, &w->part, &w->group, z->data, zp_rows_all_ranks(z->data), 0,
                        z->data->label);
}
static zero_result zp_rows_abort(zero_ctx *z) {
    zp_comm_abort(&z->rows->group, z->text[0] ? z->text : "it gave up its context");
    return ZERO_OK;
}
/* Closes the group before the one that it was split from. */
static zero_result zp_rows_leave(zero_ctx *z) {
    zp_rows_state *w = z->rows;
    zp_ctx_close_part(&w->part, &w->group, z->broken);
    return ZERO_OK;
}
static zero_result zp_rows_close(zero_ctx *z) {
    zp_rows_state *w = z->rows;
    zp_rows_free_lists(w);
    zp_device_free_host(w->maps);
    free(w->count);
    free(w->list);
    return ZERO_OK;
}
static zero_result zp_rows_stats(zero_ctx *z) {
    z->stats.allocated_bytes += z->rows->group.meter.allocated_bytes;
    z->stats.sent_bytes += z->rows->sent;
    return ZERO_OK;
}

static zp_extra zp_rows_row(void) {
    zp_extra x;
    memset(&x, 0, sizeof x);
    x.name = "rows";
    x.state_bytes = sizeof(zp_rows_state);
    x.state_at = offsetof(zero_ctx, rows);
    x.fields = zp_rows_fields;
    x.tensor = zp_rows_tensor;
    x.describe = zp_rows_describe;
    x.call[ZP_ON_LAYOUT] = zp_rows_layout;
    x.call[ZP_ON_PLAN] = zp_rows_plan;
    x.call[ZP_ON_CUT] = zp_rows_cut;
    x.call[ZP_ON_ALLOCATE] = zp_rows_allocate;
    x.call[ZP_ON_MEMORY] = zp_rows_open;
    x.call[ZP_ON_STATS] = zp_rows_stats;
    x.call[ZP_ON_ABORT] = zp_rows_abort;
    x.call[ZP_ON_DESTROY] = zp_rows_close;
    x.call[ZP_ON_LEAVE] = zp_rows_leave;
    return x;
}

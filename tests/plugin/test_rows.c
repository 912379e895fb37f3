/* test_rows.c - zero_touch_rows: rows that backward did not touch are not sent.

     bits      gradients, moments and weights are those of a run without row_numel, bit by bit: at
               stages 0 to 3, 1 to 4 ranks, nodes, types, micro-steps, tiers; with few rows, all,
               none on some ranks, repeated and unsorted rows, gradients of -0
     traffic   zero_stats has the bytes of the formula below, and zero_plan those of a dense run and
               the maps; few rows send less than a fifth of the dense bytes
     errors    rows that do not exist, and calls at a wrong time
     checked   (a checked build) a row that is written and not announced is an error

   With -DROWS_MPI, the ranks are those of mpirun, and argument 1 is comm.node_size. */
#ifdef ROWS_MPI
#include <mpi.h>
#endif
#include "../shared/harness.h"

#include <string.h>

#ifndef TEST_CHECKED
#define TEST_CHECKED 0
#endif

enum { ROWS_TENSORS = 6, ROWS_UNITS = 6 };
enum { ROWS_FEW, ROWS_NONE_SOMEWHERE, ROWS_ALL, ROWS_CHANGING, ROWS_NOT_ANNOUNCED, ROWS_DRAWS };

/* Unit 0 has two tensors with rows; units 3 to 5 are three layers of another; a KEEP tensor. */
static const zero_tensor_desc rows_tensors[ROWS_TENSORS] = {
    {"emb", 500 * 130, .row_numel = 130},
    {"pos", 64 * 24, .row_numel = 24},
    {"mat", 900, .layers = 2, .unit = 1},
    {"tab", 96 * 40, .layers = 3, .unit = 3, .row_numel = 96},
    {"norm", 33, .unit = 1, .flags = ZERO_KEEP},
    {"late", 70 * 64, .unit = 2, .row_numel = 64}};

typedef struct rows_case {
    zero_config cfg;
    int nranks, node_size, micro_steps, steps, draw, announces, forgets;
    uint64_t hash[64]; /* by rank */
    zero_stats stats[64];
    zero_plan plan[64];
    size_t padded[ROWS_UNITS];
    zero_result result[64];
    char text[64][400];
} rows_case;

typedef struct rows_pointers {
    char *field[ROWS_TENSORS];
} rows_pointers;

#ifdef ROWS_MPI
static MPI_Comm rows_world;
#define rows_comm_of(r) ((zero_comm){ZERO_COMM_MPI, (r)->rank, &rows_world, (r)->node_size})
#else
#define rows_comm_of(r) test_comm(r)
#endif

#define ROWS_TRY(r, z, call)                                                                       \
    do {                                                                                           \
        if (call) {                                                                                \
            test_rank_fail(r, "%s: %s", #call, zero_last_error(z));                                \
            return;                                                                                \
        }                                                                                          \
    } while (0)

static size_t rows_layers(int t) {
    return rows_tensors[t].layers ? (size_t)rows_tensors[t].layers : 1;
}
static size_t rows_numel(int t) { return rows_tensors[t].numel * rows_layers(t); }

/* Returns how many rows of tensor t this rank touches in a micro-step, in order of announcement;
   some are repeated. */
static int rows_draw(const rows_case *c, int step, int micro, int rank, int t, int *rows) {
    const size_t all = rows_numel(t) / rows_tensors[t].row_numel;
    const uint64_t seed =
        test_mix((uint64_t)(((step * 8 + micro) * 64 + rank) * ROWS_TENSORS + t) + 77);
    int draw = c->draw, n = 0;
    if (draw == ROWS_CHANGING) draw = (step * c->micro_steps + micro) % 3;
    if (draw == ROWS_NONE_SOMEWHERE && (rank + t) % 2 == 0) return 0;
    if (draw == ROWS_ALL)
        for (size_t i = 0; i < all; i++) rows[n++] = (int)(all - 1 - i);
    else
        for (size_t i = 0; i < all / 12 + 2; i++)
            rows[n++] = (int)(test_mix(seed + i / 2 * (i % 3 != 1)) % all);
    return n;
}

/* Adds to the touched rows; a gradient of -0 is stored where nothing was added before. */
static void rows_write(const rows_case *c, zero_type type, int step, int micro, int rank, int t,
                       size_t first, char *g) {
    static const size_t most = 4096;
    const size_t numel = rows_tensors[t].numel, row = rows_tensors[t].row_numel;
    const size_t of = zero_type_bytes(type);
    int *rows = (int *)malloc(most * sizeof *rows);
    const int n = row ? rows_draw(c, step, micro, rank, t, rows) : 1;
    for (int k = 0; k < n; k++) {
        const size_t at = row ? (size_t)rows[k] * row : 0, width = row ? row : numel;
        if (row && (at < first || at >= first + numel)) continue;
        for (size_t i = 0; i < width; i++) {
            char *to = g + (row ? at - first + i : i) * of;
            const uint64_t h =
                test_mix((uint64_t)(at + i) * 31 + (uint64_t)t * 7919 + (uint64_t)rank * 65537
                         + (uint64_t)step * 104729 + (uint64_t)micro * 1299709);
            float x, was;
            zero_convert(&was, ZERO_F32, to, type, 1);
            x = h % 5 == 0 ? -0.0f : (float)((double)(h >> 40) / (1 << 24) - 0.5);
            if (h % 5 || was != 0) x += was;
            zero_convert(to, type, &x, ZERO_F32, 1);
        }
    }
    free(rows);
}

static int rows_announce(zero_ctx *z, const rows_case *c, int step, int micro, int rank, int t) {
    int rows[4096];
    const int n = rows_draw(c, step, micro, rank, t, rows);
    if (!c->announces || (c->draw == ROWS_NOT_ANNOUNCED && (step + t) % 2)) return 0;
    if (c->forgets && rank == 1 && t == 0) return zero_touch_rows(z, "emb", rows, n - 1) != 0;
    /* in two calls */
    return zero_touch_rows(z, rows_tensors[t].name, rows, n / 2) != 0
           || zero_touch_rows(z, rows_tensors[t].name, rows + n / 2, n - n / 2) != 0;
}

static uint64_t rows_hash(test_rank *r, zero_ctx *z, uint64_t hash, int kind) {
    for (int t = 0; t < ROWS_TENSORS; t++) {
        const size_t n = rows_numel(t);
        float *x = (float *)calloc(n, sizeof *x);
        if (zero_read_tensor(z, rows_tensors[t].name, (zero_kind)kind, 0, n, x))
            test_rank_fail(r, "%s", zero_last_error(z));
        for (size_t i = 0; i < n; i++) {
            uint32_t bits;
            memcpy(&bits, &x[i], sizeof bits);
            hash = test_mix(hash ^ bits);
        }
        free(x);
    }
    return hash;
}

/* One pass. Tensors of unit u: those whose layers include it. */
static int rows_pass(zero_ctx *z, const rows_case *c, zero_type type, int step, int micro, int rank,
                     rows_pointers *p, rows_pointers *g) {
    int bad = 0;
    for (int t = 0; t < ROWS_TENSORS; t++) /* before the pass, or in it */
        if (rows_tensors[t].row_numel && t % 2) bad |= rows_announce(z, c, step, micro, rank, t);
    bad |= zero_pass_begin(z, ZERO_TRAIN, micro, c->micro_steps) != 0;
    for (int u = 0; u < ROWS_UNITS; u++)
        bad |= zero_forward_begin(z, u, p) || zero_forward_end(z, u);
    for (int t = 0; t < ROWS_TENSORS; t++)
        if (rows_tensors[t].row_numel && t % 2 == 0)
            bad |= rows_announce(z, c, step, micro, rank, t);
    for (int u = ROWS_UNITS - 1; u >= 0 && !bad; u--) {
        bad |= zero_backward_begin(z, u, u ? p : NULL, g) != 0;
        for (int t = 0; t < ROWS_TENSORS && !bad; t++) {
            const int layer = u - rows_tensors[t].unit;
            if (layer < 0 || layer >= (int)rows_layers(t)) continue;
            const size_t first = (size_t)layer * rows_tensors[t].numel;
            rows_write(c, type, step, micro, rank, t, first,
                       g->field[t] + first * zero_type_bytes(type));
        }
        bad |= zero_backward_end(z, u) != 0;
    }
    return bad || zero_pass_end(z) != 0;
}

static void rows_train(test_rank *r, rows_case *c, zero_ctx *z, rows_pointers *p,
                       rows_pointers *g) {
    const zero_hyper adamw = {1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f};
    const zero_type type = c->cfg.grads == ZERO_GRAD_F32 ? ZERO_F32 : c->cfg.type;
    uint64_t hash = 0;
    for (int step = 0; step < c->steps; step++) {
        for (int micro = 0; micro < c->micro_steps; micro++)
            ROWS_TRY(r, z, rows_pass(z, c, type, step, micro, r->rank, p, g));
        ROWS_TRY(r, z, zero_reduce(z));
        hash = rows_hash(r, z, hash, ZERO_GRADIENT);
        ROWS_TRY(r, z, zero_step(z, &adamw));
    }
    if (c->cfg.delay_from) ROWS_TRY(r, z, zero_apply_pending(z));
    hash = rows_hash(r, z, hash, ZERO_PARAMETER);
    hash = rows_hash(r, z, hash, ZERO_MOMENT_1);
    c->hash[r->rank] = rows_hash(r, z, hash, ZERO_MOMENT_2);
    ROWS_TRY(r, z, zero_query_stats(z, &c->stats[r->rank]));
}

static void rows_body(test_rank *r) {
    rows_case *c = (rows_case *)r->arg;
    rows_pointers p, g;
    zero_ctx *z = NULL;
    const zero_comm comm = rows_comm_of(r);
    zero_config cfg = c->cfg;
    cfg.micro_steps = c->micro_steps;
    cfg.log = test_quiet;
    if (!zero_create(&z, &cfg, &comm)) {
        int bad = 0;
        for (int t = 0; t < ROWS_TENSORS; t++) {
            zero_tensor_desc d = rows_tensors[t];
            d.field = (size_t)t * sizeof(char *);
            if (!c->announces) d.row_numel = 0;
            bad |= zero_tensor(z, &d) != 0;
        }
        bad = bad || zero_query_plan(z, &c->plan[r->rank]) || zero_build(z) || zero_bind(z, &p, &g);
        for (int u = 0; u < ROWS_UNITS && !bad; u++) {
            zero_plan_unit unit;
            bad |= zero_query_plan_unit(z, u, &unit) != 0;
            if (!r->rank) c->padded[u] = unit.padded;
        }
        if (bad)
            test_rank_fail(r, "%s", zero_last_error(z));
        else
            rows_train(r, c, z, &p, &g);
    } else {
        test_rank_fail(r, "%s", zero_last_error(z));
    }
    snprintf(c->text[r->rank], sizeof c->text[0], "%s", zero_last_error(z));
    zero_destroy(z);
}

#ifdef ROWS_MPI
static int rows_go(rows_case *c) {
    test_rank r;
    memset(&r, 0, sizeof r);
    MPI_Comm_rank(rows_world, &r.rank);
    MPI_Comm_size(rows_world, &r.nranks);
    r.node_size = c->node_size;
    r.arg = c;
    rows_body(&r);
    if (r.failed) snprintf(test_first, sizeof test_first, "rank %d: %.400s", r.rank, r.why);
    c->hash[0] = c->hash[r.rank];
    return !r.failed;
}
#else
static int rows_go(rows_case *c) { return test_ranks(c->nranks, c->node_size, rows_body, c); }
#endif

/* ---- the formula ---- */

static size_t rows_up(size_t n) { return (n + 31) / 32 * 32; }

typedef struct rows_unit {
    size_t block, shard, blocks, words, numel;
    unsigned char *map; /* [nranks][nranks * blocks] 1: the rank touches the block */
} rows_unit;

/* Marks what a rank announces for unit u in a micro-step. */
static void rows_mark(const rows_case *c, rows_unit *x, int step, int micro, int rank, int u) {
    size_t at = 0;
    for (int t = 0; t < ROWS_TENSORS; t++) {
        const zero_tensor_desc *d = &rows_tensors[t];
        const int layer = u - d->unit;
        int rows[4096];
        if (layer < 0 || layer >= (int)rows_layers(t) || d->flags & ZERO_KEEP) continue;
        at = rows_up(at);
        const int known = d->row_numel && !(c->draw == ROWS_NOT_ANNOUNCED && (step + t) % 2);
        const int n = known ? rows_draw(c, step, micro, rank, t, rows) : 1;
        for (int k = 0; k < n; k++) {
            const size_t from = known ? (size_t)rows[k] * d->row_numel : 0;
            const size_t first = (size_t)layer * d->numel;
            if (known && (from < first || from >= first + d->numel)) continue;
            const size_t begin = at + (known ? from - first : 0);
            for (size_t e = begin; e < begin + (known ? d->row_numel : d->numel); e++)
                x->map[(size_t)rank * (size_t)c->nranks * x->blocks + e / x->shard * x->blocks
                       + e % x->shard / x->block] = 1;
        }
        at += d->numel;
    }
}
/* The bytes of the blocks of one shard's part of a map. */
static size_t rows_part(const rows_unit *x, const unsigned char *map, size_t of, size_t *blocks) {
    size_t bytes = 0;
    for (size_t b = 0; b < x->blocks; b++) {
        const size_t numel = b + 1 < x->blocks ? x->block : x->shard - b * x->block;
        bytes += map[b] ? numel * of : 0;
        *blocks += map[b];
    }
    return bytes;
}
/* The bytes that `me` sends less than densely in the reductions of unit u in a step. */
static long long rows_unit_saves(const rows_case *c, int step, int me, int u, size_t of,
                                 size_t shortest) {
    const size_t n = (size_t)c->nranks;
    const int each =
        c->micro_steps > 1 ? c->cfg.accumulation == ZERO_ACCUMULATE_SHARDED : c->cfg.stage >= 2;
    rows_unit x = {32, c->padded[u] / n, 0, 0, 0, NULL};
    long long saved = 0;
    int dense = 0;
    while (4 * x.block <= shortest) x.block *= 2;
    x.blocks = (x.shard + x.block - 1) / x.block;
    x.words = (x.blocks + 63) / 64;
    unsigned char *any = (unsigned char *)calloc(n * x.blocks, 1);
    const long long whole = (long long)((n - 1) * x.shard * of);
    for (int micro = 0; micro < c->micro_steps; micro++) {
        size_t most = 0, mine = 0;
        if (each || !micro) x.map = (unsigned char *)calloc(n * n * x.blocks, 1);
        for (size_t r = 0; r < n; r++) rows_mark(c, &x, step, micro, (int)r, u);
        if (!each && micro + 1 < c->micro_steps) continue;
        for (size_t r = 0; r < n; r++) {
            size_t bytes = 0, blocks = 0;
            for (size_t p = 0; p < n; p++)
                bytes += p == r ? 0 : rows_part(&x, x.map + (r * n + p) * x.blocks, of, &blocks);
            if (blocks > most) most = blocks;
            if ((int)r == me) mine = bytes;
            for (size_t i = 0; i < n * x.blocks; i++) any[i] |= x.map[r * n * x.blocks + i];
        }
        saved -= (long long)((n - 1) * n * x.words * 8);
        if (2 * most <= (n - 1) * x.blocks)
            saved += whole - (long long)mine;
        else
            dense = 1;
        free(x.map);
    }
    if (!c->cfg.stage && !dense) {
        size_t most = 0, mine = 0;
        for (size_t p = 0; p < n; p++) {
            size_t blocks = 0;
            const size_t bytes = rows_part(&x, any + p * x.blocks, of, &blocks);
            if (blocks > most) most = blocks;
            if ((int)p == me) mine = bytes;
        }
        if (2 * most <= x.blocks) saved += whole - (long long)((n - 1) * mine);
    }
    free(any);
    return saved;
}
__attribute__((unused)) static long long rows_saves(const rows_case *c, int me, long long *maps) {
    static const size_t shortest[ROWS_UNITS] = {24, 0, 64, 96, 96, 96};
    const size_t of = c->cfg.grads == ZERO_GRAD_F32 ? 4 : zero_type_bytes(c->cfg.type);
    const size_t n = (size_t)c->nranks;
    const int each = c->micro_steps > 1 && c->cfg.accumulation == ZERO_ACCUMULATE_SHARDED;
    long long saved = 0;
    *maps = 0;
    for (int u = 0; u < ROWS_UNITS && n > 1; u++) {
        size_t block = 32;
        if (!shortest[u]) continue;
        while (4 * block <= shortest[u]) block *= 2;
        const size_t words = ((c->padded[u] / n + block - 1) / block + 63) / 64;
        *maps += (long long)((n - 1) * n * words * 8) * (each ? c->micro_steps : 1);
        for (int step = 0; step < c->steps; step++)
            saved += rows_unit_saves(c, step, me, u, of, shortest[u]);
    }
    return saved;
}

/* Compares a run with rows with one without. */
static void rows_compare(rows_case *c, const char *what) {
    rows_case *dense = (rows_case *)malloc(sizeof *dense);
    c->announces = 0;
    *dense = *c;
    c->announces = 1;
    const int a = rows_go(dense);
    test_check(a, "%s: a dense run: %s", what, test_first);
    const int b = rows_go(c);
    test_check(b, "%s: a run with rows: %s", what, test_first);
    for (int r = 0; r < c->nranks && a && b; r++) {
#ifdef ROWS_MPI
        if (r) break;
#else
        long long maps, saved = rows_saves(c, r, &maps);
        const int whole = c->cfg.shard_ranks == 0;
        test_check(!whole || c->stats[r].sent_bytes + (uint64_t)saved == dense->stats[r].sent_bytes,
                   "%s, stage %d, %d ranks, draw %d: rank %d sends %llu bytes, densely %llu; "
                   "expected %lld less",
                   what, c->cfg.stage, c->nranks, c->draw, r,
                   (unsigned long long)c->stats[r].sent_bytes,
                   (unsigned long long)dense->stats[r].sent_bytes, saved);
        test_check(!whole || c->plan[r].sent_bytes == dense->plan[r].sent_bytes + (size_t)maps,
                   "%s, stage %d: the plan has %zu bytes, densely %zu, maps %lld", what,
                   c->cfg.stage, c->plan[r].sent_bytes, dense->plan[r].sent_bytes, maps);
        test_check(c->draw != ROWS_FEW || c->nranks == 1
                       || c->stats[r].sent_bytes < dense->stats[r].sent_bytes,
                   "%s: few rows send no less", what);
#endif
        test_check(c->hash[r] == dense->hash[r] && c->hash[r],
                   "%s, stage %d, %d ranks in nodes of %d, draw %d, type %d, %d micro-steps, "
                   "accumulation %d: rank %d has other bits",
                   what, c->cfg.stage, c->nranks, c->node_size, c->draw, (int)c->cfg.type,
                   c->micro_steps, (int)c->cfg.accumulation, r);
    }
    free(dense);
}

static void rows_make(rows_case *c, int stage, int nranks, int draw) {
    memset(c, 0, sizeof *c);
    c->cfg.stage = stage;
    c->cfg.threads = 1;
    c->nranks = nranks;
    c->micro_steps = 1;
    c->steps = 2;
    c->draw = draw;
}

/* few: a third of the cases; 2: a sixth. */
static void rows_bits(int nranks, int node_size, int few) {
    rows_case *c = (rows_case *)malloc(sizeof *c);
    for (int stage = 0; stage < 4; stage++)
        for (int draw = 0; draw < ROWS_DRAWS; draw++)
            for (int k = 0; k < 6; k++) { /* types and accumulation */
                const int type = (k + draw) % 3;
                if (few && (k + draw + stage) % (3 * few)) continue;
                rows_make(c, stage, nranks, draw);
                c->node_size = node_size;
                c->cfg.type = type == 0 ? ZERO_F32 : type == 1 ? ZERO_BF16 : ZERO_F16;
                c->cfg.grads = k < 3 && type != 0 ? ZERO_GRAD_AS_TYPE : ZERO_GRAD_F32;
                c->micro_steps = 1 + k % 3;
                c->cfg.accumulation = k % 2 ? ZERO_ACCUMULATE_SHARDED : ZERO_ACCUMULATE_LOCAL;
                if (stage > 1 && k >= 3) c->cfg.accumulation = ZERO_ACCUMULATE_SHARDED;
                c->cfg.no_overlap = (stage + k) % 2;
                c->cfg.scaler.fixed = 1;
                rows_compare(c, "bits");
            }
    free(c);
}

#ifndef ROWS_MPI
/* Other capabilities on the same gradients. */
static void rows_with_others(void) {
    rows_case *c = (rows_case *)malloc(sizeof *c);
    for (int stage = 0; stage < 4; stage++) {
        rows_make(c, stage, 3, ROWS_FEW);
        c->cfg.optimizer_tier = ZERO_HOST;
        rows_compare(c, "state in CPU memory");
        rows_make(c, stage, 2, ROWS_FEW);
        c->cfg.optimizer_tier = ZERO_FILE;
        c->cfg.folder = "/tmp";
        c->cfg.type = ZERO_BF16;
        c->cfg.grads = ZERO_GRAD_AS_TYPE;
        c->micro_steps = 2;
        c->cfg.accumulation = ZERO_ACCUMULATE_SHARDED;
        if (stage > 1) c->cfg.gradient_tier = ZERO_FILE;
        if (stage == 3) c->cfg.parameter_tier = ZERO_FILE;
        rows_compare(c, "tiers in files");
        rows_make(c, stage, 2, ROWS_CHANGING);
        c->steps = 4;
        c->cfg.optimizer_tier = ZERO_HOST;
        c->cfg.delay_from = 2;
        rows_compare(c, "delayed updates");
        rows_make(c, stage, 4, ROWS_CHANGING);
        c->steps = 3;
        if (stage) c->cfg.shard_ranks = 2;
        if (stage == 3) c->cfg.second_ranks = 1;
        rows_compare(c, "replicas");
        rows_make(c, stage, 3, ROWS_FEW);
        c->cfg.optimizer = ZERO_LAMB;
        c->cfg.bucket_numel = 300000;
        rows_compare(c, "LAMB and a large bucket");
    }
    free(c);
}

/* The embedding and positions of a small model of 5,030 tokens: 256 tokens on 2 ranks. */
static void rows_large_body(test_rank *r) {
    uint64_t *sent = (uint64_t *)r->arg;
    enum { V = 5030, C = 96, T = 64, B = 4 };
    const zero_hyper adamw = {1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f};
    for (int announces = 0; announces < 2; announces++) {
        const size_t row = announces ? C : 0;
        const zero_tensor_desc d[] = {
            {"wte", (size_t)V * C, .row_numel = row},
            {"wpe", (size_t)1024 * C, .row_numel = row, .field = sizeof(char *)}};
        const zero_comm comm = test_comm(r);
        const zero_config cfg = {.stage = 2, .threads = 1};
        char *p[2], *g[2];
        int tokens[T * B], places[T];
        zero_stats stats;
        zero_ctx *z = NULL;
        for (int i = 0; i < T * B; i++)
            tokens[i] = (int)(test_mix((uint64_t)(i + 1000 * r->rank)) % V);
        for (int i = 0; i < T; i++) places[i] = i;
        ROWS_TRY(r, z, zero_create(&z, &cfg, &comm));
        ROWS_TRY(r, z, zero_tensor(z, &d[0]) || zero_tensor(z, &d[1]) || zero_build(z));
        ROWS_TRY(r, z, zero_bind(z, p, g) || zero_pass_begin(z, ZERO_TRAIN, 0, 1));
        ROWS_TRY(r, z, zero_forward_begin(z, 0, p) || zero_forward_end(z, 0));
        ROWS_TRY(r, z, announces && zero_touch_rows(z, "wte", tokens, T * B));
        ROWS_TRY(r, z, announces && zero_touch_rows(z, "wpe", places, T));
        ROWS_TRY(r, z, zero_backward_begin(z, 0, NULL, g) || zero_backward_end(z, 0));
        ROWS_TRY(r, z, zero_pass_end(z) || zero_reduce(z) || zero_query_stats(z, &stats));
        if (!r->rank) sent[announces] = stats.sent_bytes;
        ROWS_TRY(r, z, zero_step(z, &adamw));
        zero_destroy(z);
    }
}
static void rows_large(void) {
    uint64_t sent[2] = {0, 0};
    const int ok = test_ranks(2, 0, rows_large_body, sent);
    test_check(ok && sent[1] && sent[1] * 5 < sent[0],
               "256 tokens of 5030 send %llu bytes, densely %llu: %s", (unsigned long long)sent[1],
               (unsigned long long)sent[0], test_first);
}

/* Forked processes have the same bits; their pipes copy. Each has its own results. */
static void rows_process_body(test_rank *r) {
    rows_case *c = (rows_case *)r->arg;
    const uint64_t expected = c->hash[0];
    rows_body(r);
    if (!r->failed && c->hash[r->rank] != expected) test_rank_fail(r, "other bits");
}
static void rows_processes(void) {
    rows_case *c = (rows_case *)malloc(sizeof *c);
    for (int stage = 0; stage < 4; stage++) {
        rows_make(c, stage, 3, ROWS_CHANGING);
        c->steps = 3;
        c->announces = 0;
        int ok = rows_go(c);
        c->announces = 1;
        ok = ok && test_processes(3, 0, rows_process_body, c, 100);
        test_check(ok, "processes, stage %d: %s", stage, test_first);
    }
    free(c);
}

static void rows_expect(zero_ctx *z, zero_result got, zero_result expected, const char *what) {
    test_check(got == expected && strstr(zero_last_error(z), what), "%d expected, \"%s\": %d, %s",
               (int)expected, what, (int)got, zero_last_error(z));
}
static void rows_errors(void) {
    const zero_comm comm = {ZERO_COMM_SELF, 0, NULL, 0};
    const zero_config cfg = {.stage = 1, .threads = 1, .log = test_quiet};
    const int rows[3] = {0, 9, 10}, below[1] = {-1};
    char *p[2], *g[2];
    const zero_hyper adamw = {1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f};
    zero_ctx *z = NULL;
    test_check(!zero_create(&z, &cfg, &comm), "a context");
    const zero_tensor_desc bad = {"t", 70, .row_numel = 8},
                           over = {"t", 70, .flags = ZERO_OVERWRITTEN, .row_numel = 7},
                           good = {"t", 70, .row_numel = 7},
                           plain = {"u", 70, .field = sizeof(char *)};
    rows_expect(z, zero_tensor(z, &bad), ZERO_ERR_ARGUMENT,
                "row_numel is 8, which does not divide");
    rows_expect(z, zero_tensor(z, &over), ZERO_ERR_ARGUMENT, "OVERWRITTEN");
    rows_expect(z, zero_touch_rows(z, "t", rows, 1), ZERO_ERR_STATE, "after zero_build");
    test_check(!zero_tensor(z, &good) && !zero_tensor(z, &plain) && !zero_build(z), "a build");
    test_check(!zero_bind(z, p, g), "%s", zero_last_error(z));
    rows_expect(z, zero_touch_rows(z, "none", rows, 1), ZERO_ERR_ARGUMENT, "none");
    rows_expect(z, zero_touch_rows(z, "u", rows, 1), ZERO_ERR_ARGUMENT, "has no rows");
    rows_expect(z, zero_touch_rows(z, "t", rows, 3), ZERO_ERR_ARGUMENT,
                "rows[2] is 10, expected 0..9");
    rows_expect(z, zero_touch_rows(z, "t", below, 1), ZERO_ERR_ARGUMENT, "rows[0] is -1");
    rows_expect(z, zero_touch_rows(z, "t", NULL, 1), ZERO_ERR_ARGUMENT, "n is 1");
    rows_expect(z, zero_touch_rows(z, "t", rows, -1), ZERO_ERR_ARGUMENT, "n is -1");
    test_check(zero_touch_rows(NULL, "t", rows, 1) == ZERO_ERR_ARGUMENT, "no context");
    test_check(!zero_touch_rows(z, "t", NULL, 0), "no rows: %s", zero_last_error(z));
    test_check(!zero_pass_begin(z, ZERO_TRAIN, 0, 1) && !zero_forward_begin(z, 0, p)
                   && !zero_forward_end(z, 0) && !zero_backward_begin(z, 0, NULL, g),
               "a pass: %s", zero_last_error(z));
    test_check(!zero_touch_rows(z, "t", rows, 2), "in a backward: %s", zero_last_error(z));
    test_check(!zero_backward_end(z, 0), "%s", zero_last_error(z));
    rows_expect(z, zero_touch_rows(z, "t", rows, 2), ZERO_ERR_STATE, "is complete");
    test_check(!zero_pass_end(z) && !zero_reduce(z), "%s", zero_last_error(z));
    rows_expect(z, zero_touch_rows(z, "t", rows, 2), ZERO_ERR_STATE, "not after zero_reduce");
    test_check(!zero_step(z, &adamw), "%s", zero_last_error(z));
    zero_destroy(z);
    z = NULL;
    zero_config quantized = cfg;
    quantized.gradient_bits = 8;
    test_check(!zero_create(&z, &quantized, &comm) && !zero_tensor(z, &good), "a context");
    rows_expect(z, zero_build(z), ZERO_ERR_ARGUMENT, "gradient_bits is 8");
    zero_destroy(z);
}

#if TEST_CHECKED
/* A row that is written and not announced is found. */
static void rows_checked(void) {
    rows_case *c = (rows_case *)malloc(sizeof *c);
    for (int stage = 0; stage < 4; stage++) {
        rows_make(c, stage, 2, ROWS_FEW);
        c->announces = c->forgets = 1;
        const int ok = rows_go(c);
        test_check(!ok && strstr(c->text[1], "tensor emb: backward wrote row")
                       && strstr(c->text[1], "zero_touch_rows"),
                   "stage %d: a row that was not announced: %s", stage, c->text[1]);
    }
    free(c);
}
#endif
#endif

int main(int argc, char **argv) {
    (void)alarm(900);
#ifdef ROWS_MPI
    int ranks, rank, failed[2], all[2], given;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &given);
    MPI_Comm_dup(MPI_COMM_WORLD, &rows_world);
    MPI_Comm_size(rows_world, &ranks);
    MPI_Comm_rank(rows_world, &rank);
    rows_bits(ranks, argc > 1 ? atoi(argv[1]) : 0, 2);
    failed[0] = test_failed, failed[1] = test_passed;
    MPI_Allreduce(failed, all, 2, MPI_INT, MPI_SUM, rows_world);
    if (!rank) printf("%d passed, %d failed\n", all[1], all[0]);
    MPI_Comm_free(&rows_world);
    MPI_Finalize();
    return all[0] != 0;
#else
    rows_errors();
#if TEST_CHECKED
    rows_checked();
#endif
    const int few = TEST_CHECKED || argc < 2 || strcmp(argv[1], "all") != 0;
    for (int nranks = TEST_CHECKED ? 3 : 1; nranks <= 4; nranks++) rows_bits(nranks, 0, few);
    rows_bits(4, 2, few);
    rows_with_others();
    rows_processes();
    rows_large();
    return test_summary();
#endif
}

/* attention_pairs.h - attention of the queries of one piece of a sequence to the keys of another,
   on the CPU (Dao et al. 2022). Only ops_cpu.c includes this file. A sequence of more than
   LONGEST_WHOLE tokens is computed as one piece that attends to itself.

   A thread computes one head of one sequence. It takes KEYS_AT_ONCE keys, and for them the queries
   of the piece, QUERIES at a time, so its scratch memory does not grow with the number of tokens.
   All types are computed in f32.

   Forward keeps for each query the largest score so far, the sum of e^(score - largest), and the
   same sum over the values. A larger score multiplies the earlier sums by e^(before - largest).
   Backward computes the probabilities again, as e^(score - lse), from lse of all keys. */
#ifndef GPT2_ATTENTION_PAIRS_H
#define GPT2_ATTENTION_PAIRS_H

enum {
    KEYS_AT_ONCE = 256 /* a multiple of QUERIES, so that each query of a causal tile sees the first
                          key of its chunk */
};

/* Scratch memory of a thread. H' as in head_work; K' is KEYS_AT_ONCE, Q' is QUERIES. */
typedef struct pair_work {
    float *q, *dout; /* (Q', H'); q times 1 / sqrt(head size) */
    float *k, *v;    /* (K', H') */
    float *kt, *vt;  /* (K' / TILE_N, H', TILE_N): panels */
    float *dk, *dv;  /* (K', H') */
    float *p, *dp;   /* (Q', K' + GAP): scores, then probabilities; their gradients */
    float *tile;     /* (TILE_M, H') */
    float *none;     /* (H') zeros */
} pair_work;

/* Returns the floats of a thread's scratch memory. */
static size_t pair_floats(size_t head_size) {
    const size_t h = round_up(head_size, PAD);
    return (2 * QUERIES + 6 * KEYS_AT_ONCE + TILE_M + 1) * h + 2 * QUERIES * (KEYS_AT_ONCE + GAP);
}

static pair_work cut_pair_work(float *memory, size_t h) {
    pair_work w;
    float *at = memory;
    w.q = take(&at, QUERIES * h);
    w.dout = take(&at, QUERIES * h);
    w.k = take(&at, KEYS_AT_ONCE * h);
    w.v = take(&at, KEYS_AT_ONCE * h);
    w.kt = take(&at, KEYS_AT_ONCE * h);
    w.vt = take(&at, KEYS_AT_ONCE * h);
    w.dk = take(&at, KEYS_AT_ONCE * h);
    w.dv = take(&at, KEYS_AT_ONCE * h);
    w.p = take(&at, QUERIES * (KEYS_AT_ONCE + GAP));
    w.dp = take(&at, QUERIES * (KEYS_AT_ONCE + GAP));
    w.tile = take(&at, TILE_M * h);
    w.none = (float *)memset(take(&at, h), 0, h * sizeof *at);
    return w;
}

/* One head of one sequence. Elements of arrays are counted from the beginning of the array. */
typedef struct pair_head {
    size_t C;            /* channels of all heads */
    size_t tokens;       /* of each piece */
    size_t q, out;       /* the element of the first query in (T, 3C), and in (T, C) */
    size_t kv, kv_row;   /* the element of the first key, and the distance of two keys. A value is C
                            elements after its key */
    size_t sum, sum_row; /* the same of the queries in the sums: ops_partial.out, ops_slopes.dq */
    size_t row;          /* the first query in (B, NH, T) */
    const float *bias;   /* of this head's q; those of k and v are C and 2C further */
    int causal;
} pair_head;

static pair_head pair_head_of(const ops_heads *s, const ops_pair *pair, size_t i,
                              const float *bias) {
    const size_t b = i / s->heads, column = i % s->heads * s->head_size;
    const size_t C = s->heads * s->head_size, query = b * s->seq_len + pair->queries;
    pair_head h;
    h.C = C;
    h.tokens = pair->tokens;
    h.q = query * 3 * C + column;
    h.out = query * C + column;
    h.kv = (b * s->seq_len + pair->keys) * 2 * C + column;
    h.kv_row = 2 * C;
    h.sum = h.out;
    h.sum_row = C;
    h.row = i * s->seq_len + pair->queries;
    h.bias = bias + column;
    h.causal = pair->causal;
    return h;
}

/* Returns the shape of n rows of a head, for pack. */
static head_shape pair_rows(const ops_ctx *o, const ops_heads *s, size_t n) {
    head_shape r;
    memset(&r, 0, sizeof r);
    r.type = o->type;
    r.T = n;
    r.H = s->head_size;
    r.tp = round_up(n, PAD);
    r.hp = round_up(r.H, PAD);
    r.lp = KEYS_AT_ONCE + GAP;
    return r;
}

/* ---- scores -------------------------------------------------------------------------------- */

/* Queries from i0 on, and keys from k0 on, of the two pieces. */
typedef struct pair_tile {
    size_t i0, k0, queries, keys;
    int causal;
} pair_tile;

/* Returns the number of keys of the chunk that query i of the tile sees. */
static size_t pair_seen(const pair_tile *t, size_t i) {
    return t->causal ? least(t->keys, t->i0 + i + 1 - t->k0) : t->keys;
}

/* Returns the columns of scores that TILE_M queries from i on need, in whole tiles. */
static size_t pair_columns(const pair_tile *t, size_t i) {
    return round_up(pair_seen(t, i + TILE_M - 1), TILE_N);
}

/* p (Q', K') = a bt for the columns that are needed, with a (Q', H') and bt in panels. */
static void pair_scores(float *p, const float *a, const float *bt, const pair_tile *t,
                        const head_shape *s) {
    for (size_t i = 0; i < t->queries; i += TILE_M)
        for (size_t j = 0; j < pair_columns(t, i); j += TILE_N)
            tile_product(p + i * s->lp + j, s->lp, a + i * s->hp, s->hp, 1, bt + j * s->hp, TILE_N,
                         s->hp, 0);
}

/* Writes `hidden` to the columns from `seen` on. It writes whole vectors. */
static void pair_hide(float *row, size_t seen, size_t all, float hidden) {
    for (size_t j = seen / LANES * LANES; j < all; j += LANES) {
        OMP(omp simd)
        for (size_t k = 0; k < LANES; k++) row[j + k] = j + k < seen ? row[j + k] : hidden;
    }
}

/* Loads n rows of f32 (H), `stride` apart, to (n, H') with zeros after H, and stores them. */
static void pair_load(float *to, const float *from, size_t stride, size_t n, const head_shape *s) {
    for (size_t r = 0; r < n; r++) {
        memcpy(to + r * s->hp, from + r * stride, s->H * sizeof *to);
        memset(to + r * s->hp + s->H, 0, (s->hp - s->H) * sizeof *to);
    }
}
static void pair_store(float *to, size_t stride, const float *from, size_t n, const head_shape *s) {
    for (size_t r = 0; r < n; r++) memcpy(to + r * stride, from + r * s->hp, s->H * sizeof *to);
}

/* ---- forward ------------------------------------------------------------------------------- */

/* Begins the sums of `rows` queries, `floats` in all of them. */
static void pair_clear(const ops_partial *state, size_t rows, size_t floats) {
    memset(state->out, 0, floats * sizeof *state->out);
    for (size_t r = 0; r < rows; r++) {
        state->most[r] = -INFINITY;
        state->sum[r] = 0.0f;
    }
}

/* Adds the keys of a chunk to the state of TILE_M queries from i on. p: their scores. */
static void pair_add_rows(const pair_work *w, const head_shape *s, const pair_tile *t, size_t i,
                          const ops_partial *state, const pair_head *h) {
    const size_t all = pair_columns(t, i), rows = least(TILE_M, t->queries - i);
    const size_t at = h->row + t->i0 + i;
    float *p = w->p + i * s->lp, *out = state->out + h->sum + (t->i0 + i) * h->sum_row;
    pair_load(w->tile, out, h->sum_row, rows, s);
    memset(w->tile + rows * s->hp, 0, (TILE_M - rows) * s->hp * sizeof *p);
    for (size_t r = 0; r < rows; r++) {
        float *row = p + r * s->lp, *sums = w->tile + r * s->hp;
        pair_hide(row, pair_seen(t, i + r), all, -INFINITY);
        const float before = state->most[at + r], here = row_most(row, (uint32_t)all);
        const float most = order_of(here) > order_of(before) ? here : before;
        const float factor = exp_of(before - most);
        state->most[at + r] = most;
        state->sum[at + r] = FMA(state->sum[at + r], factor, row_exp(row, most, (uint32_t)all));
        OMP(omp simd)
        for (size_t d = 0; d < s->hp; d++) sums[d] *= factor;
    }
    for (size_t d = 0; d < s->hp; d += TILE_N)
        tile_product(w->tile + d, s->hp, p, s->lp, 1, w->v + d, s->hp, all, 1);
    pair_store(out, h->sum_row, w->tile, rows, s);
}

/* Packs the keys and values from k0 on. */
static void pair_pack_keys(const ops_ctx *o, const pair_work *w, const pair_head *h, const void *kv,
                           size_t k0, const head_shape *keys) {
    const size_t at = h->kv + k0 * h->kv_row;
    pack(w->k, element(kv, o->type, at), h->kv_row, h->bias + h->C, 1.0f, keys);
    pack(w->v, element(kv, o->type, at + h->C), h->kv_row, h->bias + 2 * h->C, 1.0f, keys);
    pack_panels(w->kt, w->k, keys);
}

static void pair_forward(const ops_ctx *o, float *memory, const ops_heads *shape,
                         const ops_partial *state, const pair_head *h, const void *qkv,
                         const void *kv) {
    const head_shape any = pair_rows(o, shape, 1);
    const pair_work cut = cut_pair_work(memory, any.hp), *w = &cut;
    const float scale = 1.0f / sqrtf((float)shape->head_size);
    for (size_t k0 = 0; k0 < h->tokens; k0 += KEYS_AT_ONCE) {
        const head_shape keys = pair_rows(o, shape, least(KEYS_AT_ONCE, h->tokens - k0));
        pair_pack_keys(o, w, h, kv, k0, &keys);
        for (size_t i0 = h->causal ? k0 : 0; i0 < h->tokens; i0 += QUERIES) {
            const head_shape rows = pair_rows(o, shape, least(QUERIES, h->tokens - i0));
            const pair_tile t = {i0, k0, rows.T, keys.T, h->causal};
            pack(w->q, element(qkv, o->type, h->q + i0 * 3 * h->C), 3 * h->C, h->bias, scale,
                 &rows);
            pair_scores(w->p, w->q, w->kt, &t, &rows);
            for (size_t i = 0; i < rows.T; i += TILE_M) pair_add_rows(w, &rows, &t, i, state, h);
        }
    }
}

/* ---- backward ------------------------------------------------------------------------------ */

/* For TILE_M queries from i on: replaces p by the probabilities and dp by the gradient of the
   scores, and adds to dq. Rows after the last query have zeros in q and dout, so that they add
   nothing to dk and dv. */
static void pair_row_gradients(const pair_work *w, const head_shape *s, const pair_tile *t,
                               size_t i, const ops_slopes *g, const pair_head *h) {
    const size_t all = pair_columns(t, i), rows = least(TILE_M, t->queries - i);
    const size_t at = h->row + t->i0 + i;
    float *p = w->p + i * s->lp, *dp = w->dp + i * s->lp;
    float *dq = g->dq + h->sum + (t->i0 + i) * h->sum_row;
    for (size_t r = 0; r < TILE_M; r++) {
        float *row = p + r * s->lp, *slope = dp + r * s->lp;
        const float lse = r < rows ? g->lse[at + r] : 0.0f;
        const float delta = r < rows ? g->delta[at + r] : 0.0f;
        OMP(omp simd)
        for (size_t j = 0; j < all; j++) {
            row[j] = exp_of(row[j] - lse);
            slope[j] = row[j] * (slope[j] - delta);
        }
        pair_hide(row, pair_seen(t, i + r), all, 0.0f);
        pair_hide(slope, pair_seen(t, i + r), all, 0.0f);
    }
    pair_load(w->tile, dq, h->sum_row, rows, s);
    memset(w->tile + rows * s->hp, 0, (TILE_M - rows) * s->hp * sizeof *p);
    for (size_t d = 0; d < s->hp; d += TILE_N)
        tile_product(w->tile + d, s->hp, dp, s->lp, 1, w->k + d, s->hp, all, 1);
    pair_store(dq, h->sum_row, w->tile, rows, s);
}

/* Adds the part of a tile's queries to dk and dv of its keys. */
static void pair_key_gradients(const pair_work *w, const head_shape *s, const pair_tile *t) {
    const size_t end = round_up(t->queries, TILE_M);
    for (size_t j = 0; j < t->keys; j += TILE_M) {
        const size_t i = t->causal && t->k0 + j > t->i0 ? t->k0 + j - t->i0 : 0;
        if (i >= end) return;
        for (size_t d = 0; d < s->hp; d += TILE_N) {
            tile_product(w->dv + j * s->hp + d, s->hp, w->p + i * s->lp + j, 1, s->lp,
                         w->dout + i * s->hp + d, s->hp, end - i, 1);
            tile_product(w->dk + j * s->hp + d, s->hp, w->dp + i * s->lp + j, 1, s->lp,
                         w->q + i * s->hp + d, s->hp, end - i, 1);
        }
    }
}

/* Adds n rows (n, H') to rows of f32 (H), `stride` apart. */
static void pair_add(float *to, size_t stride, const float *from, size_t n, const head_shape *s) {
    for (size_t r = 0; r < n; r++) {
        float *row = to + r * stride;
        OMP(omp simd)
        for (size_t d = 0; d < s->H; d++) row[d] += from[r * s->hp + d];
    }
}

/* Computes dk and dv of the keys from k0 on, and adds to the dq of all queries that see them. */
static void pair_chunk_backward(const ops_ctx *o, const pair_work *w, const ops_heads *shape,
                                const ops_slopes *g, const pair_head *h, size_t k0,
                                const head_shape *keys) {
    const float scale = 1.0f / sqrtf((float)shape->head_size);
    pair_pack_keys(o, w, h, g->kv, k0, keys);
    pack_panels(w->vt, w->v, keys);
    memset(w->dk, 0, keys->tp * keys->hp * sizeof *w->dk);
    memset(w->dv, 0, keys->tp * keys->hp * sizeof *w->dv);
    for (size_t i0 = h->causal ? k0 : 0; i0 < h->tokens; i0 += QUERIES) {
        const head_shape rows = pair_rows(o, shape, least(QUERIES, h->tokens - i0));
        const pair_tile t = {i0, k0, rows.T, keys->T, h->causal};
        pack(w->q, element(g->qkv, o->type, h->q + i0 * 3 * h->C), 3 * h->C, h->bias, scale, &rows);
        pack(w->dout, element(g->dout, o->type, h->out + i0 * h->C), h->C, w->none, 1.0f, &rows);
        pair_scores(w->p, w->q, w->kt, &t, &rows);
        pair_scores(w->dp, w->dout, w->vt, &t, &rows);
        for (size_t i = 0; i < rows.T; i += TILE_M) pair_row_gradients(w, &rows, &t, i, g, h);
        pair_key_gradients(w, &rows, &t);
    }
}

static void pair_backward(const ops_ctx *o, float *memory, const ops_heads *shape,
                          const ops_slopes *g, const pair_head *h) {
    const head_shape any = pair_rows(o, shape, 1);
    const pair_work w = cut_pair_work(memory, any.hp);
    for (size_t k0 = 0; k0 < h->tokens; k0 += KEYS_AT_ONCE) {
        const head_shape keys = pair_rows(o, shape, least(KEYS_AT_ONCE, h->tokens - k0));
        const size_t at = h->kv + k0 * h->kv_row;
        pair_chunk_backward(o, &w, shape, g, h, k0, &keys);
        pair_add(g->dkv + at, h->kv_row, w.dk, keys.T, &keys);
        pair_add(g->dkv + at + h->C, h->kv_row, w.dv, keys.T, &keys);
    }
}

/* ---- a long sequence ----------------------------------------------------------------------- */

/* A thread's scratch memory for one head of a whole sequence, after its pair_work. */
typedef struct long_work {
    float *sums;       /* (T, H'): ops_partial.out, or ops_slopes.dq */
    float *most, *sum; /* (T); backward has delta in `most` */
} long_work;

static size_t long_floats(size_t T, size_t head_size) {
    return pair_floats(head_size) + T * (round_up(head_size, PAD) + 2);
}

static long_work cut_long_work(float *memory, size_t T, size_t H) {
    long_work w;
    float *at = memory + pair_floats(H);
    w.sums = take(&at, T * round_up(H, PAD));
    w.most = take(&at, T);
    w.sum = take(&at, T);
    return w;
}

/* A head of a whole sequence: token 0 has its query in qkv[0], and its output in out[0]. */
static pair_head long_head_of(const head_shape *s, const float *bias) {
    pair_head h;
    memset(&h, 0, sizeof h);
    h.C = s->C;
    h.tokens = s->T;
    h.kv = s->C;
    h.kv_row = 3 * s->C;
    h.sum_row = s->hp;
    h.bias = bias;
    h.causal = 1;
    return h;
}

/* As head_forward. */
static void long_forward(const ops_ctx *o, float *memory, const head_shape *s, void *out,
                         float *lse, const void *qkv, const float *bias) {
    const ops_heads shape = {1, s->T, 1, s->H};
    const long_work w = cut_long_work(memory, s->T, s->H);
    const pair_head h = long_head_of(s, bias);
    const ops_partial state = {w.sums, w.most, w.sum};
    pair_clear(&state, s->T, s->T * s->hp);
    pair_forward(o, memory, &shape, &state, &h, qkv, qkv);
    for (size_t t = 0; t < s->T; t++) {
        unpack(out, t * s->C, s->C, w.sums + t * s->hp, 1.0f / w.sum[t], 1, s);
        lse[t] = w.most[t] + logf(w.sum[t]);
    }
}

/* As head_backward. dqkv may be qkv: gradients of keys and values are stored when no query needs
   these any more, and gradients of queries at the end. */
static void long_backward(const ops_ctx *o, float *memory, const head_shape *s, void *dqkv,
                          const void *dout, const void *out, const float *lse, const void *qkv,
                          const float *bias) {
    const ops_heads shape = {1, s->T, 1, s->H};
    const pair_work pair = cut_pair_work(memory, s->hp);
    const long_work w = cut_long_work(memory, s->T, s->H);
    const pair_head h = long_head_of(s, bias);
    const ops_slopes g = {w.sums, w.most, NULL, dout, qkv, qkv, NULL, lse};
    memset(w.sums, 0, s->T * s->hp * sizeof *w.sums);
    for (size_t t = 0; t < s->T; t++)
        w.most[t] = dot_row(load_row(s->type, pair.q, dout, t * s->C, s->H),
                            load_row(s->type, pair.dout, out, t * s->C, s->H), s->H);
    for (size_t k0 = 0; k0 < s->T; k0 += KEYS_AT_ONCE) {
        const head_shape keys = pair_rows(o, &shape, least(KEYS_AT_ONCE, s->T - k0));
        const size_t at = k0 * h.kv_row + h.kv;
        pair_chunk_backward(o, &pair, &shape, &g, &h, k0, &keys);
        unpack(dqkv, at, h.kv_row, pair.dk, 1.0f, keys.T, &keys);
        unpack(dqkv, at + s->C, h.kv_row, pair.dv, 1.0f, keys.T, &keys);
    }
    unpack(dqkv, 0, 3 * s->C, w.sums, 1.0f / sqrtf((float)s->H), s->T, s);
}

/* ---- the operations ------------------------------------------------------------------------ */

static int pairs_fit(ops_ctx *o, const ops_heads *s) {
    if (o->status || !s->batch) return 0;
    if (s->head_size > o->limits.head_size || pair_floats(s->head_size) > o->sums_at)
        fail(o, ZERO_ERR_ARGUMENT, "attention by pieces with heads of %zu exceeds %zu",
             s->head_size, o->limits.head_size);
    return !o->status;
}

void ops_take_keys(ops_ctx *o, void *kv, const void *qkv, const ops_heads *s) {
    const size_t bytes = s->heads * s->head_size * zero_type_bytes(o->type);
    if (o->status) return;
    ROWS(o)
    for (size_t r = 0; r < s->batch * s->seq_len; r++)
        memcpy((char *)kv + r * 2 * bytes, (const char *)qkv + (r * 3 + 1) * bytes, 2 * bytes);
}

void ops_partial_begin(ops_ctx *o, const ops_partial *state, const ops_heads *s) {
    const size_t rows = s->batch * s->seq_len * s->heads;
    if (pairs_fit(o, s)) pair_clear(state, rows, rows * s->head_size);
}

void ops_partial_add(ops_ctx *o, const ops_partial *state, const void *qkv, const void *kv,
                     const void *bias, const ops_pair *pair, const ops_heads *s) {
    if (!pairs_fit(o, s)) return;
    const float *b = load_vector(o, 0, bias, 3 * s->heads * s->head_size);
    ROWS(o)
    for (size_t i = 0; i < s->batch * s->heads; i++) {
        const pair_head h = pair_head_of(s, pair, i, b);
        pair_forward(o, o->scratch + this_thread() * o->thread_floats, s, state, &h, qkv, kv);
    }
}

void ops_partial_end(ops_ctx *o, void *out, float *lse, const ops_partial *state,
                     const ops_heads *s) {
    if (!pairs_fit(o, s)) return;
    ROWS(o)
    for (size_t i = 0; i < s->batch * s->heads * s->seq_len; i++) {
        const size_t t = i % s->seq_len, head = i / s->seq_len % s->heads;
        const size_t b = i / s->seq_len / s->heads;
        const size_t at = ((b * s->seq_len + t) * s->heads + head) * s->head_size;
        const float share = 1.0f / state->sum[i], *in = state->out + at;
        float *row = new_row(o->type, room(o, 0), out, at);
        OMP(omp simd)
        for (size_t d = 0; d < s->head_size; d++) row[d] = in[d] * share;
        close_row(o->type, out, at, row, s->head_size);
        lse[i] = state->most[i] + logf(state->sum[i]);
    }
}

void ops_slopes_begin(ops_ctx *o, const ops_slopes *g, const void *out, const ops_heads *s) {
    const size_t rows = s->batch * s->seq_len * s->heads;
    if (!pairs_fit(o, s)) return;
    memset(g->dq, 0, rows * s->head_size * sizeof *g->dq);
    ROWS(o)
    for (size_t i = 0; i < rows; i++) {
        const size_t t = i % s->seq_len, head = i / s->seq_len % s->heads;
        const size_t b = i / s->seq_len / s->heads;
        const size_t at = ((b * s->seq_len + t) * s->heads + head) * s->head_size;
        const float *d = load_row(o->type, room(o, 0), g->dout, at, s->head_size);
        g->delta[i] =
            dot_row(d, load_row(o->type, room(o, 1), out, at, s->head_size), s->head_size);
    }
}

void ops_slopes_add(ops_ctx *o, const ops_slopes *g, const ops_pair *pair, const ops_heads *s) {
    if (!pairs_fit(o, s)) return;
    const float *b = load_vector(o, 0, g->bias, 3 * s->heads * s->head_size);
    ROWS(o)
    for (size_t i = 0; i < s->batch * s->heads; i++) {
        const pair_head h = pair_head_of(s, pair, i, b);
        pair_backward(o, o->scratch + this_thread() * o->thread_floats, s, g, &h);
    }
}

void ops_slopes_end(ops_ctx *o, void *dqkv, const ops_slopes *g, const ops_heads *s) {
    const size_t C = s->heads * s->head_size;
    const float scale = 1.0f / sqrtf((float)s->head_size);
    if (!pairs_fit(o, s)) return;
    ROWS(o)
    for (size_t r = 0; r < s->batch * s->seq_len; r++) {
        const float *dq = g->dq + r * C, *dkv = g->dkv + r * 2 * C;
        float *row = new_row(o->type, room(o, 0), dqkv, r * 3 * C);
        OMP(omp simd)
        for (size_t i = 0; i < C; i++) row[i] = dq[i] * scale;
        memcpy(row + C, dkv, 2 * C * sizeof *row);
        close_row(o->type, dqkv, r * 3 * C, row, 3 * C);
    }
}

void ops_add_f32(ops_ctx *o, float *to, const float *x, size_t n) {
    if (o->status) return;
    OMP(omp parallel for simd num_threads((int)o->threads) schedule(static))
    for (size_t i = 0; i < n; i++) to[i] += x[i];
}

#endif

/* ring.c - see ring.h. Common subset of C11 and CUDA C++. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include "ring.h"

#include <stdlib.h>
#include <string.h>

#include "../pipeline/pipeline_lane.h"
#include "../system/clock.h"

struct ring_attention {
    zero_group *group;
    pipeline_lane *lane;
    int rank, size;
    double waited_s;
    /* of the current call */
    int backward;
    char *keys[2];     /* (B, T, 2, NH, head_size) of two rounds */
    float *dkv[2];     /* the same shape: this rank's part in two rounds */
    float *arrived;    /* the sum of the parts of earlier ranks */
    float *own;        /* this rank's part of the gradient of its own keys */
    size_t keys_bytes; /* of a buffer */
    size_t kv;         /* its values */
};

ring_attention *ring_open(zero_group *group, void *computes, void *wires) {
    ring_attention *r = (ring_attention *)calloc(1, sizeof *r);
    if (r == NULL) return NULL;
    r->group = group;
    r->rank = zero_group_rank(group);
    r->size = zero_group_size(group);
    r->lane = pipeline_lane_open(group, computes, wires);
    if (r->lane != NULL) return r;
    free(r);
    return NULL;
}

void ring_close(ring_attention *r) {
    if (r == NULL) return;
    pipeline_lane_close(r->lane);
    free(r);
}

double ring_waited_s(const ring_attention *r) { return r ? r->waited_s : 0; }

/* Waits until this many exchanges of the call have ended. */
static zero_result await_exchanges(ring_attention *r, int exchanges) {
    const double begun = clock_seconds(CLOCK_MONOTONIC);
    const zero_result result = pipeline_lane_await(r->lane, exchanges);
    r->waited_s += clock_seconds(CLOCK_MONOTONIC) - begun;
    return result;
}

/* Return the numbers that a rank's keys and values have, and its rows of scores. */
static size_t kv_values(const ops_heads *s) {
    return 2 * s->batch * s->seq_len * s->heads * s->head_size;
}
static size_t score_rows(const ops_heads *s) { return s->batch * s->heads * s->seq_len; }

/* Forward keeps out, most and sum of ops_partial. Backward keeps dq, delta, and four arrays of the
   size of dkv. */
size_t ring_floats(const ops_heads *s) { return 9 * kv_values(s) / 2 + 2 * score_rows(s); }

/* ---- exchanges ------------------------------------------------------------------------------ */

static int after_round(const void *user, int x) {
    (void)user;
    return x; /* exchange r + 1 begins when rounds 0..r are computed */
}

static void add_hop(const ring_attention *r, zero_message list[PIPELINE_MESSAGES], int *n,
                    void *out, void *in, size_t bytes) {
    const zero_message sent = {(r->rank + 1) % r->size, 1, out, bytes};
    const zero_message received = {(r->rank + r->size - 1) % r->size, 0, in, bytes};
    list[(*n)++] = sent;
    list[(*n)++] = received;
}

static int list_exchange(const void *user, int x, zero_message list[PIPELINE_MESSAGES]) {
    const ring_attention *r = (const ring_attention *)user;
    const int keys_for = x + 1, dkv_of = x - 1; /* rounds */
    int n = 0;
    if (keys_for < r->size)
        add_hop(r, list, &n, r->keys[x % 2], r->keys[keys_for % 2], r->keys_bytes);
    if (r->backward && dkv_of > 0)
        add_hop(r, list, &n, r->dkv[dkv_of % 2], r->arrived, r->kv * sizeof(float));
    return n;
}

/* Divides the memory, and begins with the keys for round 1. */
static void begin(ring_attention *r, ops_ctx *o, const ring_call *c, int backward) {
    const pipeline_exchanges all = {backward ? r->size + 1 : r->size - 1, after_round,
                                    list_exchange, r};
    r->backward = backward;
    r->kv = kv_values(&c->shape);
    r->keys_bytes = r->kv * c->bytes;
    r->keys[0] = (char *)c->keys;
    r->keys[1] = r->keys[0] + r->keys_bytes;
    ops_take_keys(o, r->keys[0], c->qkv, &c->shape);
    pipeline_lane_begin(r->lane, &all);
}

/* ---- rounds ---------------------------------------------------------------------------------- */

/* Each rank has two pieces of the sequence, so a round has four pairs of a piece of queries and a
   piece of keys. Lists those that the causal mask leaves, and returns their number: two with the
   keys of another rank `from`, three with the own keys. `part`, for the own keys: 1 lists the first
   half of the work, 2 the second half, 3 both. */
static int list_pairs(const ring_attention *r, int from, int part, const ops_heads *s,
                      ops_pair list[3]) {
    const size_t piece = s->seq_len / 2;
    /* queries of the second piece, keys of the first */
    const ops_pair late_early = {piece, 0, piece, 0};
    const ops_pair early = {0, 0, piece, 0}, late = {piece, piece, piece, 0};
    int n = 0;
    if (from != r->rank || part & 1) list[n++] = late_early;
    if (from < r->rank) list[n++] = early;
    if (from > r->rank) list[n++] = late;
    for (int i = 0; i < 2 && from == r->rank && part & 2; i++) {
        list[n] = i ? late : early;
        list[n++].causal = 1;
    }
    return n;
}

/* Returns the rank that owns the keys of a round. */
static int owner_of(const ring_attention *r, int round) {
    return (r->rank + r->size - round) % r->size;
}

static zero_result attend_all(ring_attention *r, ops_ctx *o, const ring_call *c,
                              const ops_partial *state) {
    ops_pair list[3];
    for (int round = 0; round < r->size; round++) {
        ZERO_TRY(await_exchanges(r, round));
        const int n = list_pairs(r, owner_of(r, round), 3, &c->shape, list);
        for (int i = 0; i < n; i++)
            ops_partial_add(o, state, c->qkv, r->keys[round % 2], c->bias, &list[i], &c->shape);
        ZERO_TRY(pipeline_lane_done(r->lane, round + 1));
    }
    return ZERO_OK;
}

zero_result ring_forward(ring_attention *r, ops_ctx *o, const ring_call *c, void *out, float *lse) {
    ops_partial state;
    state.out = c->floats;
    state.most = state.out + kv_values(&c->shape) / 2;
    state.sum = state.most + score_rows(&c->shape);
    begin(r, o, c, 0);
    ops_partial_begin(o, &state, &c->shape);
    const zero_result result = attend_all(r, o, c, &state);
    const zero_result ended = pipeline_lane_end(r->lane, result != ZERO_OK);
    ops_partial_end(o, out, lse, &state, &c->shape);
    return result != ZERO_OK ? result : ended;
}

/* Adds this rank's part to the gradient of a round's keys. The own keys are those of round 0, and
   again of round `size`. */
static void compute_part(ring_attention *r, ops_ctx *o, const ring_call *c, ops_slopes *g,
                         int round) {
    const int mine = owner_of(r, round) == r->rank;
    ops_pair list[3];
    g->kv = r->keys[round % 2];
    g->dkv = mine ? r->own : r->dkv[round % 2];
    if (round == r->size) { /* the own keys, which have left the buffers */
        ops_take_keys(o, r->keys[round % 2], c->qkv, &c->shape);
    } else {
        ops_clear(o, g->dkv, r->kv * sizeof *g->dkv);
    }
    const int n = list_pairs(r, owner_of(r, round), round ? 2 : 1, &c->shape, list);
    for (int i = 0; i < n; i++) ops_slopes_add(o, g, &list[i], &c->shape);
}

static zero_result slopes_all(ring_attention *r, ops_ctx *o, const ring_call *c, ops_slopes *g) {
    for (int round = 0; round <= r->size; round++) {
        ZERO_TRY(await_exchanges(r, round < r->size ? round : r->size - 1));
        compute_part(r, o, c, g, round);
        if (round > 1) {
            ZERO_TRY(await_exchanges(r, round + 1));
            ops_add_f32(o, g->dkv, r->arrived, r->kv);
        }
        ZERO_TRY(pipeline_lane_done(r->lane, round + 1));
    }
    return ZERO_OK;
}

zero_result ring_backward(ring_attention *r, ops_ctx *o, const ring_call *c, void *dqkv,
                          const void *dout, const void *out, const float *lse) {
    const size_t kv = kv_values(&c->shape);
    ops_slopes g;
    memset(&g, 0, sizeof g);
    r->dkv[0] = c->floats;
    r->dkv[1] = r->dkv[0] + kv;
    r->arrived = r->dkv[1] + kv;
    r->own = r->arrived + kv;
    g.dq = r->own + kv;
    g.delta = g.dq + kv / 2;
    g.dout = dout;
    g.qkv = c->qkv;
    g.bias = c->bias;
    g.lse = lse;
    begin(r, o, c, 1);
    ops_slopes_begin(o, &g, out, &c->shape);
    const zero_result result = slopes_all(r, o, c, &g);
    const zero_result ended = pipeline_lane_end(r->lane, result != ZERO_OK);
    ops_slopes_end(o, dqkv, &g, &c->shape);
    return result != ZERO_OK ? result : ended;
}

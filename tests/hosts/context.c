/* context.c - a host of llm.c's kind whose sequences are divided over context-parallel ranks, of
   which the guide quotes: layers x + attention(qkvw x), with attention of its own between two
   calls, by an exchange of heads (Ulysses) or by a ring.

   ./host_context RANKS CP RING STAGE    rank 0 prints the loss and the norm of each step */
#include "zero_plugin.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { L = 2, NH = 4, HS = 4, C = NH * HS, T = 24, STEPS = 8 };

typedef struct {
    float *qkvw; /* (L, 3C, C) whole on each rank */
} Tensors;

typedef struct {
    int ranks, cps, ring, stage;
} Layout;

static zero_ctx *z;
static zero_group *world, *cp;
static Tensors params, grads;
static int N, n, first, heads; /* ranks of cp, tokens of a rank, the first one, its heads */
static float x[L + 1][T * C], dx[T * C]; /* (n, C) */

/* What a layer keeps: qkv and out of this rank's tokens, or, after an exchange, of its heads. */
static float qkv[L][T * 3 * C], out[L][T * C], most[L][T * NH], sum[L][T * NH];

static void must(zero_result result) {
    if (!result) return;
    fprintf(stderr, "%s; %s %s\n", zero_last_error(z), zero_group_error(world),
            zero_group_error(cp));
    exit(1);
}

static float value(int kind, int row, int col) {
    const unsigned at = (unsigned)((kind * 512 + row) * 64 + col) * 2654435761u;
    return (float)((at >> 8) % 2001) / 1000 - 1;
}

/* ---- the exchange of heads ------------------------------------------------------------------ */

/* Returns the place in (n, parts, NH, HS) of a token's heads of rank r. */
static float *heads_of(float *all, int parts, int token, int part, int r) {
    return all + ((token * parts + part) * NH + r * (NH / N)) * HS;
}

/* (n, parts, NH, HS): a rank's tokens -> (T, parts, NH / N, HS): all tokens, of a rank's heads */
static void to_heads(float *of_heads, float *of_tokens, int parts) {
    static float message[T * 3 * C];
    const int each = NH / N * HS, bytes = n * parts * each * (int)sizeof(float);
    float *at = message;
    for (int r = 0; r < N; r++)
        for (int i = 0; i < n * parts; i++, at += each)
            memcpy(at, heads_of(of_tokens, parts, i / parts, i % parts, r), each * sizeof(float));
    must(zero_group_all_to_all(cp, message, of_heads, (size_t)bytes));
}
/* and back */
static void to_tokens(float *of_tokens, float *of_heads, int parts) {
    static float message[T * 3 * C];
    const int each = NH / N * HS, bytes = n * parts * each * (int)sizeof(float);
    const float *at = message;
    must(zero_group_all_to_all(cp, of_heads, message, (size_t)bytes));
    for (int r = 0; r < N; r++)
        for (int i = 0; i < n * parts; i++, at += each)
            memcpy(heads_of(of_tokens, parts, i / parts, i % parts, r), at, each * sizeof(float));
}

/* ---- attention of some queries to some keys -------------------------------------------------- */

/* Queries of qn tokens from position q0 on, in qkv (qn, 3, heads, HS); keys and values of kn tokens
   from position k0 on, in kv (kn, 2, heads, HS). */
typedef struct {
    const float *qkv, *kv;
    int q0, qn, k0, kn;
} Pair;

static float dot(const float *a, const float *b) {
    float s = 0;
    for (int i = 0; i < HS; i++) s += a[i] * b[i];
    return s;
}
static const float *query(const Pair *p, int i, int h) { return p->qkv + (i * 3 * heads + h) * HS; }
static const float *key(const Pair *p, int j, int h) { return p->kv + (j * 2 * heads + h) * HS; }

/* Adds a pair to a running softmax: out (qn, heads, HS), most and sum (qn, heads). */
static void attend(const Pair *p, float *to, float *high, float *total) {
    for (int i = 0; i < p->qn; i++)
        for (int h = 0; h < heads; h++) {
            const int row = i * heads + h;
            for (int j = 0; j < p->kn && p->k0 + j <= p->q0 + i; j++) {
                const float *v = key(p, j, h) + heads * HS;
                const float score = dot(query(p, i, h), key(p, j, h)) / sqrtf(HS);
                const float top = fmaxf(high[row], score), old = expf(high[row] - top);
                const float weight = expf(score - top);
                for (int c = 0; c < HS; c++)
                    to[row * HS + c] = to[row * HS + c] * old + weight * v[c];
                total[row] = total[row] * old + weight;
                high[row] = top;
            }
        }
}

/* Adds to dqkv (qn, 3, heads, HS) the gradient of the queries, and to dkv that of kv. */
static void attend_back(const Pair *p, const float *dto, int l, float *dqkv, float *dkv) {
    for (int i = 0; i < p->qn; i++)
        for (int h = 0; h < heads; h++) {
            const int row = i * heads + h;
            const float *d = dto + row * HS, mean = dot(d, out[l] + row * HS);
            float *dq = dqkv + (i * 3 * heads + h) * HS;
            for (int j = 0; j < p->kn && p->k0 + j <= p->q0 + i; j++) {
                const float *q = query(p, i, h), *k = key(p, j, h), *v = k + heads * HS;
                float *dk = dkv + (j * 2 * heads + h) * HS, *dv = dk + heads * HS;
                const float weight = expf(dot(q, k) / sqrtf(HS) - most[l][row]) / sum[l][row];
                const float slope = weight * (dot(d, v) - mean) / sqrtf(HS);
                for (int c = 0; c < HS; c++) {
                    dq[c] += slope * k[c];
                    dk[c] += slope * q[c];
                    dv[c] += weight * d[c];
                }
            }
        }
}

/* Copies keys and values out of qkv, or their gradient into it. */
static void take_keys(float *kv, const float *of, int tokens) {
    for (int i = 0; i < tokens; i++)
        memcpy(kv + i * 2 * heads * HS, of + (i * 3 + 1) * heads * HS, 2 * heads * HS * sizeof *kv);
}
static void put_keys(float *of, const float *kv, int tokens) {
    for (int i = 0; i < tokens; i++)
        memcpy(of + (i * 3 + 1) * heads * HS, kv + i * 2 * heads * HS, 2 * heads * HS * sizeof *kv);
}

/* ---- the ring ------------------------------------------------------------------------------- */

/* Sends a rank's `gone` to the next rank, and receives that of the rank before it. */
static void pass_on(float *gone, float *arrives, int floats) {
    const int rank = zero_group_rank(cp);
    const size_t bytes = (size_t)floats * sizeof(float);
    const zero_message both[] = {{(rank + 1) % N, 1, gone, bytes},         // sends to the next rank
                                 {(rank + N - 1) % N, 0, arrives, bytes}}; // receives
    must(zero_group_send_receive(cp, both, 2));
}

/* One pair without a ring. With a ring keys and values make N - 1 hops; a thread that passes them
   on while this one attends would hide the time. */
static void attend_all(int l, int rings) {
    static float kv[2][T * 2 * C];
    const int rank = zero_group_rank(cp), tokens = rings ? n : T, rounds = rings ? N : 1;
    take_keys(kv[0], qkv[l], tokens);
    for (int i = 0; i < tokens * heads; i++) most[l][i] = -1e30f, sum[l][i] = 0;
    memset(out[l], 0, sizeof out[l]);
    for (int r = 0; r < rounds; r++) {
        const int from = rings ? (rank + N - r) % N * n : 0; /* position of the first key */
        const Pair p = {qkv[l], kv[r % 2], rings ? first : 0, tokens, from, tokens};
        attend(&p, out[l], most[l], sum[l]);
        if (r + 1 < rounds) pass_on(kv[r % 2], kv[(r + 1) % 2], n * 2 * C);
    }
    for (int i = 0; i < tokens * heads * HS; i++) out[l][i] /= sum[l][i / HS];
}

/* Keys, values and their gradient travel together, and are home after N hops. */
static void attend_all_back(int l, int rings, float *dqkv, const float *dto) {
    static float kv[2][2 * T * 2 * C]; /* keys and values; after them their gradient */
    const int rank = zero_group_rank(cp), tokens = rings ? n : T, rounds = rings ? N : 1;
    const int gradient = tokens * 2 * heads * HS;
    take_keys(kv[0], qkv[l], tokens);
    memset(kv[0] + gradient, 0, sizeof(float) * (size_t)gradient);
    memset(dqkv, 0, sizeof(float) * T * 3 * C);
    for (int r = 0; r < rounds; r++) {
        const int from = rings ? (rank + N - r) % N * n : 0;
        const Pair p = {qkv[l], kv[r % 2], rings ? first : 0, tokens, from, tokens};
        attend_back(&p, dto, l, dqkv, kv[r % 2] + gradient);
        if (rings) pass_on(kv[r % 2], kv[(r + 1) % 2], 2 * gradient);
    }
    put_keys(dqkv, kv[rounds % 2 * rings] + gradient, tokens);
}

/* ---- a layer --------------------------------------------------------------------------------- */

static void layer_forward(int l, int rings) {
    static float own[T * 3 * C], back[T * C];
    float *made = rings ? qkv[l] : own; /* (n, 3, NH, HS) */
    for (int i = 0; i < n * 3 * C; i++) {
        made[i] = 0;
        for (int c = 0; c < C; c++)
            made[i] += params.qkvw[(l * 3 * C + i % (3 * C)) * C + c] * x[l][i / (3 * C) * C + c];
    }
    if (!rings) to_heads(qkv[l], own, 3);
    attend_all(l, rings); // yours, of all tokens of some heads, or by the ring
    if (!rings) to_tokens(back, out[l], 1);
    for (int i = 0; i < n * C; i++) x[l + 1][i] = x[l][i] + (rings ? out[l] : back)[i];
}

/* dx: of x[l + 1], then of x[l]. */
static void layer_backward(int l, int rings) {
    static float dout[T * C], dqkv[T * 3 * C], back[T * 3 * C];
    if (!rings) to_heads(dout, dx, 1);
    attend_all_back(l, rings, dqkv, rings ? dx : dout);
    if (!rings) to_tokens(back, dqkv, 3);
    const float *d = rings ? dqkv : back;
    for (int i = 0; i < n * 3 * C; i++)
        for (int c = 0; c < C; c++) {
            const int w = (l * 3 * C + i % (3 * C)) * C + c, at = i / (3 * C) * C + c;
            grads.qkvw[w] += d[i] * x[l][at];
            dx[at] += d[i] * params.qkvw[w];
        }
}

/* The ranks of cp have pieces of the same sequence. */
static double step(int number, int sequence, int rings) {
    double loss = 0;
    for (int i = 0; i < n * C; i++)
        x[0][i] = value(2 + number % 2, sequence * T + first + i / C, i % C);
    for (int l = 0; l < L; l++) {
        must(zero_forward_begin(z, l, &params));
        layer_forward(l, rings);
        must(zero_forward_end(z, l));
    }
    for (int i = 0; i < n * C; i++) {
        const float off = x[L][i] - x[0][i / C * C + (i + 1) % C];
        loss += 0.5 * off * off / (n * C);
        dx[i] = off / (n * C); /* of the mean over this rank's tokens */
    }
    for (int l = L - 1; l >= 0; l--) {
        must(zero_backward_begin(z, l, &params, &grads));
        layer_backward(l, rings);
        must(zero_backward_end(z, l));
    }
    return loss;
}

static int run(const zero_comm *given, void *arg) {
    const Layout *how = arg;
    const zero_comm comm = *given;
    const zero_hyper hyper = {1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f};
    const int rank = comm.rank, cps = how->cps;
    zero_config cfg = {.stage = how->stage, .log = zero_log_file};
    must(zero_group_open(&world, &comm, cfg.stream, 0));
    must(zero_group_split(world, rank / cps, rank, &cp)); // ranks with the same sequences
    must(zero_create(&z, &cfg, &comm));                   // shards over all ranks
    N = zero_group_size(cp);
    n = T / N; // tokens of each sequence
    first = zero_group_rank(cp) * n;
    heads = how->ring ? NH : NH / N;
    params.qkvw = malloc(sizeof(float) * L * 3 * C * C);
    for (int i = 0; i < L * 3 * C * C; i++) params.qkvw[i] = value(0, i / C, i % C) / 4;
    const zero_tensor_desc table[] = {ZERO_FIELD(Tensors, qkvw, (size_t)(3 * C * C), .layers = L)};
    must(zero_tensors(z, table, 1));
    must(zero_adopt(z, &params, &grads, ZERO_F32, free));
    for (int i = 0; i < STEPS; i++) {
        zero_step_report report;
        double mean;
        must(zero_train_begin(z));
        must(zero_train_end(z, &hyper, step(i, rank / cps, how->ring), &mean)); // over all tokens
        must(zero_step_result(z, &report));
        if (rank == 0) printf("step %d, loss %.9g, norm %.9g\n", i + 1, mean, report.norm);
    }
    zero_destroy(z);
    zero_group_close(cp);
    zero_group_close(world);
    return 0;
}

int main(int argc, char **argv) {
    Layout how = {argc > 1 ? atoi(argv[1]) : 2, argc > 2 ? atoi(argv[2]) : 2,
                  argc > 3 ? atoi(argv[3]) : 0, argc > 4 ? atoi(argv[4]) : 0};
    if (how.cps < 1 || how.ranks < 1 || how.ranks % how.cps || T % how.cps) return 2;
    if (!how.ring && NH % how.cps) return 2;
    how.ring = how.ring && how.cps > 1; /* one rank has all keys */
    return zero_run_local(how.ranks, run, &how);
}

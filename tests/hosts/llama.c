/* llama.c - a trainer of another foreign kind, as it was before there was a plugin: a Llama
   (RMSNorm, rotary positions, grouped queries, SwiGLU) whose weights are one block of memory,
   arrays by type in it, and whose classifier is the embedding by another name; AdamW over the whole
   block. It learns to go on with sequences that count in steps of their own.
     cc -O2 llama.c -lm; ./a.out [STEPS]
   Between lines with ZERO is the code that changes with the plugin, at first without hooks:
     cc -O2 -DZERO llama.c -xc zero_plugin.cu -lm; ./a.out [STEPS [STAGE [RANKS]]]
   With -DHOOKS as well, every layer has hooks of its own. tests/hosts/test_foreign.sh counts these
   lines. */
#ifdef ZERO
#include "zero_plugin.h"
#endif
#ifdef HOOKS /* a hook is a line of its own, and no line without HOOKS */
#define HOOK(call) ZERO_TRY(call)
#else
#define HOOK(call) (void)0
#endif
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 3, DIM = 24, HEADS = 6, KV_HEADS = 2, HEAD = DIM / HEADS, KV = KV_HEADS * HEAD };
enum { HIDDEN = 40, VOCAB = 19, SEQ = 10, BATCH = 2, ROWS = BATCH * SEQ };
enum { SQUARE = DIM * DIM, KEYS = KV * DIM, FFN = HIDDEN * DIM, EMBED = VOCAB * DIM };
enum { NUMEL = EMBED + LAYERS * (2 * DIM + 2 * SQUARE + 2 * KEYS + 3 * FFN) + DIM };

typedef struct Weights {
    float *token_embedding_table;       /* [VOCAB][DIM] */
    float *rms_att, *wq, *wk, *wv, *wo; /* [LAYERS][...], as the three below */
    float *rms_ffn, *gate, *up, *down, *rms_final;
    float *wcls; /* the embedding */
} Weights;

/* What a layer's backward needs of its forward. */
typedef struct Layer {
    float x[ROWS * DIM], n1[ROWS * DIM], q[ROWS * DIM], k[ROWS * KV], v[ROWS * KV];
    float weight[ROWS * HEADS * SEQ], o[ROWS * DIM], mid[ROWS * DIM], n2[ROWS * DIM];
    float gate[ROWS * HIDDEN], up[ROWS * HIDDEN], act[ROWS * HIDDEN];
} Layer;

typedef struct Run {
    Layer layer[LAYERS];
    float x[ROWS * DIM], n[ROWS * DIM], probs[ROWS * VOCAB], dx[ROWS * DIM];
    int token[ROWS], target[ROWS];
} Run;

static int steps = 60;
#ifdef ZERO /* test */
static int stage = 1, ranks = 2;
#endif
static Run run;

static void map_weights(Weights *w, float *block) {
    w->token_embedding_table = block, block += EMBED;
    w->rms_att = block, block += LAYERS * DIM;
    w->wq = block, block += LAYERS * SQUARE;
    w->wk = block, block += LAYERS * KEYS;
    w->wv = block, block += LAYERS * KEYS;
    w->wo = block, block += LAYERS * SQUARE;
    w->rms_ffn = block, block += LAYERS * DIM;
    w->gate = block, block += LAYERS * FFN;
    w->up = block, block += LAYERS * FFN;
    w->down = block, block += LAYERS * FFN;
    w->rms_final = block;
    w->wcls = w->token_embedding_table;
}

static unsigned draw(unsigned *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 16;
}

static float *initial_weights(Weights *w) {
    float *block = (float *)malloc(NUMEL * sizeof(float));
    unsigned seed = 5;
    for (int i = 0; i < NUMEL; i++) block[i] = ((float)draw(&seed) / 32768.0f - 1.0f) * 0.2f;
    map_weights(w, block);
    for (int i = 0; i < DIM; i++) w->rms_final[i] = 1;
    for (int i = 0; i < LAYERS * DIM; i++) w->rms_att[i] = w->rms_ffn[i] = 1;
    return block;
}

static void load_batch(int number) {
    unsigned seed = 17u + 104729u * (unsigned)number;
    for (int row = 0; row < ROWS; row += SEQ) {
        int at = (int)(draw(&seed) % VOCAB);
        const int by = 1 + (int)(draw(&seed) % 4);
        for (int i = row; i < row + SEQ; i++) {
            run.token[i] = at;
            run.target[i] = at = (at + by) % VOCAB;
        }
    }
}

/* y[rows][out] = x[rows][in] W[out][in]; += in the two gradients. */
static void matmul(float *y, const float *x, const float *w, int out, int in) {
    for (int i = 0; i < ROWS * out; i++) {
        y[i] = 0;
        for (int j = 0; j < in; j++) y[i] += x[i / out * in + j] * w[i % out * in + j];
    }
}
static void matmul_back(float *dx, float *dw, const float *dy, const float *x, const float *w,
                        int out, int in) {
    for (int i = 0; i < ROWS * out; i++)
        for (int j = 0; j < in; j++) {
            dx[i / out * in + j] += dy[i] * w[i % out * in + j];
            dw[i % out * in + j] += dy[i] * x[i / out * in + j];
        }
}

static float rms(const float *x) {
    float sum = 0;
    for (int i = 0; i < DIM; i++) sum += x[i] * x[i];
    return 1 / sqrtf(sum / DIM + 1e-5f);
}
static void rmsnorm(float *y, const float *x, const float *gain) {
    for (int i = 0; i < ROWS * DIM; i++) y[i] = gain[i % DIM] * x[i] * rms(x + i / DIM * DIM);
}
static void rmsnorm_back(float *dx, float *dgain, const float *dy, const float *x,
                         const float *gain) {
    for (int row = 0; row < ROWS * DIM; row += DIM) {
        const float r = rms(x + row);
        float dot = 0;
        for (int i = 0; i < DIM; i++) {
            dgain[i] += dy[row + i] * x[row + i] * r;
            dot += dy[row + i] * gain[i] * x[row + i];
        }
        for (int i = 0; i < DIM; i++)
            dx[row + i] += r * (dy[row + i] * gain[i] - x[row + i] * r * r * dot / DIM);
    }
}

/* Turns pairs of every head by an angle of the row's position; way -1: back. */
static void rotate(float *x, int width, float way) {
    for (int i = 0; i < ROWS * width; i += 2) {
        const int position = i / width % SEQ;
        const float angle = (float)position * powf(1000.0f, -(float)(i % HEAD) / HEAD);
        const float c = cosf(angle), s = way * sinf(angle), a = x[i], b = x[i + 1];
        x[i] = a * c - b * s;
        x[i + 1] = a * s + b * c;
    }
}

static float dot(const float *a, const float *b) {
    float sum = 0;
    for (int i = 0; i < HEAD; i++) sum += a[i] * b[i];
    return sum;
}
/* A row and a head; HEADS / KV_HEADS heads look at the same keys and values. */
static void attend(Layer *a, int row, int head) {
    const int first = row / SEQ * SEQ, at = row * DIM + head * HEAD;
    const int group = head / (HEADS / KV_HEADS) * HEAD;
    float *weight = a->weight + (row * HEADS + head) * SEQ - first, sum = 0;
    for (int s = first; s <= row; s++)
        sum += weight[s] = expf(dot(a->q + at, a->k + s * KV + group) / sqrtf(HEAD));
    for (int i = 0; i < HEAD; i++) a->o[at + i] = 0;
    for (int s = first; s <= row; s++) {
        weight[s] /= sum;
        for (int i = 0; i < HEAD; i++) a->o[at + i] += weight[s] * a->v[s * KV + group + i];
    }
}
static void attend_back(const Layer *a, int row, int head, const float *d, float *dq, float *dk,
                        float *dv) {
    const int first = row / SEQ * SEQ, at = row * DIM + head * HEAD;
    const int group = head / (HEADS / KV_HEADS) * HEAD;
    const float *weight = a->weight + (row * HEADS + head) * SEQ - first;
    const float mean = dot(d + at, a->o + at);
    for (int s = first; s <= row; s++) {
        const int key = s * KV + group;
        const float score = weight[s] * (dot(d + at, a->v + key) - mean) / sqrtf(HEAD);
        for (int i = 0; i < HEAD; i++) {
            dq[at + i] += score * a->k[key + i];
            dk[key + i] += score * a->q[at + i];
            dv[key + i] += weight[s] * d[at + i];
        }
    }
}

static void layer_forward(int l, const Weights *w, float *x) {
    Layer *a = &run.layer[l];
    float y[ROWS * DIM];
    memcpy(a->x, x, sizeof a->x);
    rmsnorm(a->n1, x, w->rms_att + l * DIM);
    matmul(a->q, a->n1, w->wq + l * SQUARE, DIM, DIM);
    matmul(a->k, a->n1, w->wk + l * KEYS, KV, DIM);
    matmul(a->v, a->n1, w->wv + l * KEYS, KV, DIM);
    rotate(a->q, DIM, 1);
    rotate(a->k, KV, 1);
    for (int i = 0; i < ROWS * HEADS; i++) attend(a, i / HEADS, i % HEADS);
    matmul(y, a->o, w->wo + l * SQUARE, DIM, DIM);
    for (int i = 0; i < ROWS * DIM; i++) a->mid[i] = x[i] + y[i];
    rmsnorm(a->n2, a->mid, w->rms_ffn + l * DIM);
    matmul(a->gate, a->n2, w->gate + l * FFN, HIDDEN, DIM);
    matmul(a->up, a->n2, w->up + l * FFN, HIDDEN, DIM);
    for (int i = 0; i < ROWS * HIDDEN; i++)
        a->act[i] = a->gate[i] / (1 + expf(-a->gate[i])) * a->up[i];
    matmul(y, a->act, w->down + l * FFN, DIM, HIDDEN);
    for (int i = 0; i < ROWS * DIM; i++) x[i] = a->mid[i] + y[i];
}

static void layer_backward(int l, const Weights *w, Weights *g, float *dx) {
    const Layer *a = &run.layer[l];
    float dact[ROWS * HIDDEN] = {0}, dgate[ROWS * HIDDEN], dup[ROWS * HIDDEN], dn[ROWS * DIM] = {0};
    float dout[ROWS * DIM] = {0}, dq[ROWS * DIM] = {0}, dk[ROWS * KV] = {0}, dv[ROWS * KV] = {0};
    const int ffn = l * FFN, square = l * SQUARE, keys = l * KEYS;
    matmul_back(dact, g->down + ffn, dx, a->act, w->down + ffn, DIM, HIDDEN);
    for (int i = 0; i < ROWS * HIDDEN; i++) {
        const float s = 1 / (1 + expf(-a->gate[i]));
        dup[i] = dact[i] * a->gate[i] * s;
        dgate[i] = dact[i] * a->up[i] * s * (1 + a->gate[i] * (1 - s));
    }
    matmul_back(dn, g->gate + ffn, dgate, a->n2, w->gate + ffn, HIDDEN, DIM);
    matmul_back(dn, g->up + ffn, dup, a->n2, w->up + ffn, HIDDEN, DIM);
    rmsnorm_back(dx, g->rms_ffn + l * DIM, dn, a->mid, w->rms_ffn + l * DIM);
    matmul_back(dout, g->wo + square, dx, a->o, w->wo + square, DIM, DIM);
    for (int i = 0; i < ROWS * HEADS; i++) attend_back(a, i / HEADS, i % HEADS, dout, dq, dk, dv);
    rotate(dq, DIM, -1);
    rotate(dk, KV, -1);
    memset(dn, 0, sizeof dn);
    matmul_back(dn, g->wq + square, dq, a->n1, w->wq + square, DIM, DIM);
    matmul_back(dn, g->wk + keys, dk, a->n1, w->wk + keys, KV, DIM);
    matmul_back(dn, g->wv + keys, dv, a->n1, w->wv + keys, KV, DIM);
    rmsnorm_back(dx, g->rms_att + l * DIM, dn, a->x, w->rms_att + l * DIM);
}

/* The mean loss; probs become the gradient of the logits. */
static double classify(const Weights *w) {
    double loss = 0;
    rmsnorm(run.n, run.x, w->rms_final);
    matmul(run.probs, run.n, w->wcls, VOCAB, DIM);
    for (int row = 0; row < ROWS; row++) {
        float *p = run.probs + row * VOCAB, sum = 0;
        for (int i = 0; i < VOCAB; i++) sum += p[i] = expf(p[i]);
        loss -= log((double)(p[run.target[row]] / sum)) / ROWS;
        for (int i = 0; i < VOCAB; i++) p[i] = (p[i] / sum - (i == run.target[row])) / ROWS;
    }
    return loss;
}
static void classify_back(const Weights *w, Weights *g) {
    float dn[ROWS * DIM] = {0};
    matmul_back(dn, g->wcls, run.probs, run.n, w->wcls, VOCAB, DIM);
    memset(run.dx, 0, sizeof run.dx);
    rmsnorm_back(run.dx, g->rms_final, dn, run.x, w->rms_final);
}

#ifndef ZERO
static void adamw(float *w, const float *g, float *m, float *v, float lr, int step) {
    const float beta1 = 0.9f, beta2 = 0.95f, decay = 0.1f;
    for (int i = 0; i < NUMEL; i++) {
        m[i] = beta1 * m[i] + (1 - beta1) * g[i];
        v[i] = beta2 * v[i] + (1 - beta2) * g[i] * g[i];
        const float mean = m[i] / (1 - powf(beta1, (float)step + 1));
        const float square = v[i] / (1 - powf(beta2, (float)step + 1));
        w[i] -= lr * (mean / (sqrtf(square) + 1e-8f) + decay * w[i]);
    }
}
#endif

#ifdef ZERO /* table */
#ifdef HOOKS
enum { WHOLE = 0 }; /* layer l is unit 1 + l, the embedding unit 0 */
#else
enum { WHOLE = ZERO_KEEP };
#endif
#define ROW(field, n) ZERO_FIELD(Weights, field, n, .layers = LAYERS, .unit = 1, .flags = WHOLE)
static const zero_tensor_desc table[] = {
    ZERO_FIELD(Weights, token_embedding_table, EMBED, .uses = 2, .flags = WHOLE),
    ROW(rms_att, DIM),
    ROW(wq, SQUARE),
    ROW(wk, KEYS),
    ROW(wv, KEYS),
    ROW(wo, SQUARE),
    ROW(rms_ffn, DIM),
    ROW(gate, FFN),
    ROW(up, FFN),
    ROW(down, FFN),
    ZERO_FIELD(Weights, rms_final, DIM, .flags = ZERO_KEEP),
    ZERO_FIELD(Weights, wcls, EMBED, .same_as = "token_embedding_table")};
#endif

static int train(void) {
    Weights w, g;
#ifdef ZERO
    zero_ctx *z;
    ZERO_START_LOCAL(z, ranks, .stage = stage);
    if (zero_rank(z) && !freopen("/dev/null", "w", stdout)) return 1;
#endif
    float *block = initial_weights(&w);
#ifdef ZERO
    ZERO_TRY(zero_tensors(z, table, sizeof table / sizeof table[0])); /* table */
    ZERO_TRY(zero_adopt(z, &w, &g, ZERO_F32, NULL));
    free(block);
#else
    float *grads = (float *)malloc(NUMEL * sizeof(float));
    float *m = (float *)calloc(NUMEL, sizeof(float)), *v = (float *)calloc(NUMEL, sizeof(float));
    map_weights(&g, grads);
#endif
    for (int step = 0; step < steps; step++) {
        double loss;
#ifdef ZERO
        load_batch(step * zero_nranks(z) + zero_rank(z));
        ZERO_TRY(zero_train_begin(z));
#else
        load_batch(step);
        memset(grads, 0, NUMEL * sizeof(float));
#endif
        HOOK(zero_forward_begin(z, 0, &w));
        for (int i = 0; i < ROWS * DIM; i++)
            run.x[i] = w.token_embedding_table[run.token[i / DIM] * DIM + i % DIM];
        HOOK(zero_forward_end(z, 0));
        for (int l = 0; l < LAYERS; l++) {
            HOOK(zero_forward_begin(z, 1 + l, &w));
            layer_forward(l, &w, run.x);
            HOOK(zero_forward_end(z, 1 + l));
        }
        HOOK(zero_forward_begin(z, 0, &w));
        loss = classify(&w);
        HOOK(zero_forward_end(z, 0));
        HOOK(zero_backward_begin(z, 0, &w, &g));
        classify_back(&w, &g);
        HOOK(zero_backward_end(z, 0));
        for (int l = LAYERS - 1; l >= 0; l--) {
            HOOK(zero_backward_begin(z, 1 + l, &w, &g));
            layer_backward(l, &w, &g, run.dx);
            HOOK(zero_backward_end(z, 1 + l));
        }
        HOOK(zero_backward_begin(z, 0, NULL, &g));
        for (int i = 0; i < ROWS * DIM; i++)
            g.token_embedding_table[run.token[i / DIM] * DIM + i % DIM] += run.dx[i];
        HOOK(zero_backward_end(z, 0));
#ifdef ZERO
        ZERO_TRY(zero_train_end(z, &(zero_hyper){0.01f, 0.9f, 0.95f, 1e-8f, 0.1f, 0}, loss, &loss));
#else
        adamw(block, grads, m, v, 0.01f, step);
#endif
        printf("step %d, loss %.9f\n", step, loss);
    }
#ifdef ZERO /* test */
    uint64_t hash;
    ZERO_TRY(zero_hash(z, &hash));
    printf("weights %016llx\n", (unsigned long long)hash);
#endif
#ifdef ZERO
    zero_destroy(z);
#endif
    return 0;
}

int main(int argc, char **argv) {
    if (argc > 1) steps = atoi(argv[1]);
#ifdef ZERO /* test */
    if (argc > 2) stage = atoi(argv[2]);
    if (argc > 3) ranks = atoi(argv[3]);
#endif
    return train();
}

/* token_gpt.c - a trainer of a foreign kind, as it was before there was a plugin: a GPT (LayerNorm
   with gains, no biases, GELU) that goes token by token, all layers for position 0, then for 1,
   with a cache of keys and values; a malloc for every tensor; a document per step, each of another
   length; Adam. Its documents are words of a made-up language.
     cc -O2 token_gpt.c -lm                                     ./a.out [STEPS]
   Between lines that say ZERO stands what changes with the plugin, at first without hooks:
     cc -O2 -DZERO token_gpt.c -xc zero_plugin.cu -lm           ./a.out [STEPS [STAGE [RANKS]]]
   With -DHOOKS as well, hooks go once around the loop over positions. tests/hosts/test_foreign.sh
   counts these lines. */
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

enum { LAYERS = 3, C = 24, HEADS = 3, HD = C / HEADS, F = 4 * C, VOCAB = 17, LONGEST = 14 };
/* The tensors, in the order in which they are made; a layer has those from LN1 to DOWN. */
enum { WTE, WPE, LN1, WQ, WK, WV, WO, LN2, UP, DOWN, PER_LAYER = DOWN - LN1 + 1 };
enum { LNF = LN1 + LAYERS * PER_LAYER, HEAD, TENSORS };

typedef struct Tensor {
    char name[16];
    size_t n;
    float *data, *grad;
#ifndef ZERO
    float *m, *v; /* Adam's moments */
#endif
} Tensor;

/* What one position leaves behind in one layer; k and v are the cache. */
typedef struct Trace {
    float x[C], n1[C], q[C], k[C], v[C], weight[HEADS][LONGEST], o[C];
    float mid[C], n2[C], up[F], act[F];
    float dk[C], dv[C]; /* from later positions, and from this one last */
} Trace;

static int steps = 60;
#ifdef ZERO /* test */
static int stage = 1, ranks = 2;
#endif
static Tensor tensors[TENSORS];
static Trace trace[LAYERS][LONGEST];
static float last[LONGEST][C], normed[LONGEST][C], probs[LONGEST][VOCAB];

static unsigned draw(unsigned *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 16;
}

static void tensor_new(int i, const char *name, int layer, size_t n, unsigned *seed) {
    Tensor *t = &tensors[i];
    const int gain = name[0] == 'l';
    snprintf(t->name, sizeof t->name, layer < 0 ? "%s" : "%s.%d", name, layer);
    t->n = n;
    t->data = (float *)malloc(n * sizeof(float));
    t->grad = (float *)malloc(n * sizeof(float));
#ifndef ZERO
    t->m = (float *)calloc(n, sizeof(float));
    t->v = (float *)calloc(n, sizeof(float));
#endif
    for (size_t j = 0; j < n; j++)
        t->data[j] = gain ? 1.0f : ((float)draw(seed) / 32768.0f - 1.0f) * 0.15f;
}

static void model_new(void) {
    static const char *const name[PER_LAYER] = {"ln1", "wq", "wk", "wv", "wo", "ln2", "up", "down"};
    static const size_t n[PER_LAYER] = {C, C * C, C * C, C * C, C * C, C, C * F, C * F};
    unsigned seed = 7;
    tensor_new(WTE, "wte", -1, VOCAB * C, &seed);
    tensor_new(WPE, "wpe", -1, LONGEST * C, &seed);
    for (int i = 0; i < LAYERS * PER_LAYER; i++)
        tensor_new(LN1 + i, name[i % PER_LAYER], i / PER_LAYER, n[i % PER_LAYER], &seed);
    tensor_new(LNF, "lnf", -1, C, &seed);
    tensor_new(HEAD, "head", -1, VOCAB * C, &seed);
}

/* A word of 3 to LONGEST - 1 letters between two ends (letter 0): letters follow one another by a
   rule that is broken at times. Returns how many positions have a target. */
static int document(int number, int *token) {
    unsigned seed = 99u + 7919u * (unsigned)number;
    const int length = 3 + (int)(draw(&seed) % (LONGEST - 3));
    token[0] = token[length + 1] = 0;
    for (int i = 1; i <= length; i++)
        token[i] = 1 + (draw(&seed) % 5 ? (3 * token[i - 1] + i % 2) : (int)draw(&seed)) % 16;
    return length + 1;
}

/* y[out] = W[out][in] x; += in the three gradients. */
static void linear(float *y, const Tensor *w, const float *x, int out, int in) {
    for (int o = 0; o < out; o++) {
        y[o] = 0;
        for (int i = 0; i < in; i++) y[o] += w->data[o * in + i] * x[i];
    }
}
static void linear_back(float *dx, Tensor *w, const float *dy, const float *x, int out, int in) {
    for (int o = 0; o < out; o++)
        for (int i = 0; i < in; i++) {
            dx[i] += w->data[o * in + i] * dy[o];
            w->grad[o * in + i] += dy[o] * x[i];
        }
}

/* The mean of a position, and one over its deviation. */
static float moments(const float *x, float *mean) {
    float sum = 0, square = 0;
    for (int i = 0; i < C; i++) sum += x[i];
    *mean = sum / C;
    for (int i = 0; i < C; i++) square += (x[i] - *mean) * (x[i] - *mean);
    return 1 / sqrtf(square / C + 1e-5f);
}
static void norm(float *y, const Tensor *gain, const float *x) {
    float mean;
    const float r = moments(x, &mean);
    for (int i = 0; i < C; i++) y[i] = gain->data[i] * (x[i] - mean) * r;
}
static void norm_back(float *dx, Tensor *gain, const float *dy, const float *x) {
    float mean, sum = 0, dot = 0;
    const float r = moments(x, &mean);
    for (int i = 0; i < C; i++) {
        const float h = (x[i] - mean) * r, d = dy[i] * gain->data[i];
        gain->grad[i] += dy[i] * h;
        sum += d;
        dot += d * h;
    }
    for (int i = 0; i < C; i++)
        dx[i] += r * (dy[i] * gain->data[i] - sum / C - (x[i] - mean) * r * dot / C);
}

static float gelu(float x, float *slope) {
    const float c = 0.7978845608f, t = tanhf(c * (x + 0.044715f * x * x * x));
    *slope = 0.5f * (1 + t) + 0.5f * x * (1 - t * t) * c * (1 + 3 * 0.044715f * x * x);
    return 0.5f * x * (1 + t);
}

/* Position `pos` looks at the cache of all positions up to itself. */
static void attend(Trace *past, int pos) {
    Trace *a = &past[pos];
    for (int h = 0; h < HEADS; h++) {
        float sum = 0;
        for (int s = 0; s <= pos; s++) {
            float score = 0;
            for (int i = h * HD; i < (h + 1) * HD; i++) score += a->q[i] * past[s].k[i];
            sum += a->weight[h][s] = expf(score / sqrtf(HD));
        }
        for (int i = h * HD; i < (h + 1) * HD; i++) a->o[i] = 0;
        for (int s = 0; s <= pos; s++) {
            a->weight[h][s] /= sum;
            for (int i = h * HD; i < (h + 1) * HD; i++) a->o[i] += a->weight[h][s] * past[s].v[i];
        }
    }
}
static void attend_back(Trace *past, int pos, float *dq, const float *d) {
    const Trace *a = &past[pos];
    for (int h = 0; h < HEADS; h++) {
        float mean = 0, dw[LONGEST] = {0};
        for (int s = 0; s <= pos; s++) {
            for (int i = h * HD; i < (h + 1) * HD; i++) dw[s] += d[i] * past[s].v[i];
            mean += a->weight[h][s] * dw[s];
        }
        for (int s = 0; s <= pos; s++) {
            const float score = a->weight[h][s] * (dw[s] - mean) / sqrtf(HD);
            for (int i = h * HD; i < (h + 1) * HD; i++) {
                dq[i] += score * past[s].k[i];
                past[s].dk[i] += score * a->q[i];
                past[s].dv[i] += a->weight[h][s] * d[i];
            }
        }
    }
}

/* One position through all layers. Returns the loss of what it expects next. */
static float forward(int pos, int token, int target) {
    float x[C], y[C], sum = 0, slope;
    for (int i = 0; i < C; i++)
        x[i] = tensors[WTE].data[token * C + i] + tensors[WPE].data[pos * C + i];
    for (int l = 0; l < LAYERS; l++) {
        const Tensor *t = &tensors[l * PER_LAYER]; /* t[WQ]: the layer's */
        Trace *a = &trace[l][pos];
        memcpy(a->x, x, sizeof x);
        memset(a->dk, 0, sizeof a->dk);
        memset(a->dv, 0, sizeof a->dv);
        norm(a->n1, &t[LN1], x);
        linear(a->q, &t[WQ], a->n1, C, C);
        linear(a->k, &t[WK], a->n1, C, C);
        linear(a->v, &t[WV], a->n1, C, C);
        attend(trace[l], pos);
        linear(y, &t[WO], a->o, C, C);
        for (int i = 0; i < C; i++) a->mid[i] = x[i] + y[i];
        norm(a->n2, &t[LN2], a->mid);
        linear(a->up, &t[UP], a->n2, F, C);
        for (int i = 0; i < F; i++) a->act[i] = gelu(a->up[i], &slope);
        linear(y, &t[DOWN], a->act, C, F);
        for (int i = 0; i < C; i++) x[i] = a->mid[i] + y[i];
    }
    memcpy(last[pos], x, sizeof x);
    norm(normed[pos], &tensors[LNF], x);
    linear(probs[pos], &tensors[HEAD], normed[pos], VOCAB, C);
    for (int i = 0; i < VOCAB; i++) sum += probs[pos][i] = expf(probs[pos][i]);
    for (int i = 0; i < VOCAB; i++) probs[pos][i] /= sum;
    return -logf(probs[pos][target]);
}

/* The way back of one position; later positions have gone before. `scale`: one over their number.
 */
static void backward(int pos, int token, int target, float scale) {
    float dx[C] = {0}, dn[C] = {0}, dlogits[VOCAB];
    for (int i = 0; i < VOCAB; i++) dlogits[i] = (probs[pos][i] - (i == target)) * scale;
    linear_back(dn, &tensors[HEAD], dlogits, normed[pos], VOCAB, C);
    norm_back(dx, &tensors[LNF], dn, last[pos]);
    for (int l = LAYERS - 1; l >= 0; l--) {
        Tensor *t = &tensors[l * PER_LAYER];
        Trace *a = &trace[l][pos];
        float dact[F] = {0}, dn2[C] = {0}, dout[C] = {0}, dq[C] = {0}, dn1[C] = {0}, slope;
        linear_back(dact, &t[DOWN], dx, a->act, C, F);
        for (int i = 0; i < F; i++) {
            (void)gelu(a->up[i], &slope);
            dact[i] *= slope;
        }
        linear_back(dn2, &t[UP], dact, a->n2, F, C);
        norm_back(dx, &t[LN2], dn2, a->mid);
        linear_back(dout, &t[WO], dx, a->o, C, C);
        attend_back(trace[l], pos, dq, dout);
        linear_back(dn1, &t[WQ], dq, a->n1, C, C);
        linear_back(dn1, &t[WK], a->dk, a->n1, C, C);
        linear_back(dn1, &t[WV], a->dv, a->n1, C, C);
        norm_back(dx, &t[LN1], dn1, a->x);
    }
    for (int i = 0; i < C; i++) {
        tensors[WTE].grad[token * C + i] += dx[i];
        tensors[WPE].grad[pos * C + i] += dx[i];
    }
}

#ifndef ZERO
static void adam(Tensor *t, float lr, int step) {
    const float beta1 = 0.9f, beta2 = 0.95f;
    for (size_t i = 0; i < t->n; i++) {
        const float g = t->grad[i];
        t->m[i] = beta1 * t->m[i] + (1 - beta1) * g;
        t->v[i] = beta2 * t->v[i] + (1 - beta2) * g * g;
        const float m = t->m[i] / (1 - powf(beta1, (float)step + 1));
        const float v = t->v[i] / (1 - powf(beta2, (float)step + 1));
        t->data[i] -= lr * m / (sqrtf(v) + 1e-8f);
    }
}
#endif

static int train(void) {
#ifdef ZERO
    zero_config cfg = {.stage = stage, .log = zero_log_file};
#ifdef HOOKS
    cfg.open_units = ZERO_ALL; /* the loop over positions uses all of them */
#endif
    zero_ctx *z;
    const int ended = zero_start_local(&z, &cfg, ranks);
    if (ended >= 0) return ended;
    if (zero_rank(z) && !freopen("/dev/null", "w", stdout)) return 1;
#endif
    model_new();
#ifdef ZERO /* table */
    for (int i = 0; i < TENSORS; i++) {
        zero_tensor_desc row = {tensors[i].name, tensors[i].n, .param = &tensors[i].data,
                                .grad = &tensors[i].grad};
#ifdef HOOKS
        row.unit = i < LN1 ? 0 : 1 + (i - LN1) / PER_LAYER; /* lnf and head: the last */
#else
        row.flags |= ZERO_KEEP;
#endif
        ZERO_TRY(zero_tensor(z, &row));
    }
#endif
#ifdef ZERO
    ZERO_TRY(zero_adopt(z, NULL, NULL, ZERO_F32, free));
#endif
    for (int step = 0; step < steps; step++) {
        const float lr = 0.01f * (1 - (float)step / (float)steps);
        double loss = 0;
        int token[LONGEST + 1];
#ifdef ZERO
        const int n = document(step * zero_nranks(z) + zero_rank(z), token);
        ZERO_TRY(zero_train_begin(z));
#else
        const int n = document(step, token);
        for (int i = 0; i < TENSORS; i++) memset(tensors[i].grad, 0, tensors[i].n * sizeof(float));
#endif
        for (int u = 0; u < LAYERS + 2; u++) HOOK(zero_forward_begin(z, u, ZERO_WANTED));
        for (int i = 0; i < n; i++) loss += forward(i, token[i], token[i + 1]) / (float)n;
        for (int u = 0; u < LAYERS + 2; u++) HOOK(zero_forward_end(z, u));
        for (int u = 0; u < LAYERS + 2; u++) HOOK(zero_backward_begin(z, u, ZERO_WANTED, NULL));
        for (int i = n - 1; i >= 0; i--) backward(i, token[i], token[i + 1], 1 / (float)n);
        for (int u = LAYERS + 1; u >= 0; u--) HOOK(zero_backward_end(z, u));
#ifdef ZERO
        ZERO_TRY(zero_train_end(z, &(zero_hyper){lr, 0.9f, 0.95f, 1e-8f, 0, 0}, loss, &loss));
#else
        for (int i = 0; i < TENSORS; i++) adam(&tensors[i], lr, step);
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

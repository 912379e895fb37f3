/* mlp.c - a trainer of a foreign kind, as it was before there was a plugin: a perceptron of two
   layers that tells ten digits apart, in plain C; its weights are one struct of arrays on the
   stack of main, its gradient another in the function that trains; SGD with momentum. Its images
   are noisy copies of ten made-up patterns.
     cc -O2 mlp.c -lm                                     ./a.out [STEPS]
   Between lines that say ZERO stands what changes with the plugin, which leaves the arrays where
   they are:
     cc -O2 -DZERO mlp.c -xc zero_plugin.cu -lm           ./a.out [STEPS [STAGE [RANKS]]]
   tests/hosts/test_foreign.sh counts these lines. */
#ifdef ZERO
#include "zero_plugin.h"
#endif
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIDE = 12, PIXELS = SIDE * SIDE, HIDDEN = 40, CLASSES = 10, BATCH = 20 };

typedef struct Net {
    float w1[HIDDEN][PIXELS], b1[HIDDEN];
    float w2[CLASSES][HIDDEN], b2[CLASSES];
} Net;

static int steps = 60;
#ifdef ZERO /* test */
static int stage = 1, ranks = 2;
#endif
#ifdef ZERO
static zero_ctx *z;
#else
static Net velocity;
#endif

static float noise(unsigned *seed) { /* -1..1 */
    *seed = *seed * 1664525u + 1013904223u;
    return (float)(*seed >> 8) / 8388608.0f - 1;
}

/* The digit of image number `i`, and the image. */
static int image(int i, float *pixel) {
    unsigned seed = 31u + 977u * (unsigned)i;
    const int digit = (int)((noise(&seed) + 1) * 4.999f);
    unsigned pattern = 5000u + 131u * (unsigned)digit;
    for (int p = 0; p < PIXELS; p++)
        pixel[p] = (noise(&pattern) > 0.4f ? 0.5f : 0) + 0.3f * noise(&seed);
    return digit;
}

static void net_init(Net *net) {
    unsigned seed = 11;
    memset(net, 0, sizeof *net);
    for (int h = 0; h < HIDDEN; h++)
        for (int p = 0; p < PIXELS; p++) net->w1[h][p] = noise(&seed) / 12;
    for (int c = 0; c < CLASSES; c++)
        for (int h = 0; h < HIDDEN; h++) net->w2[c][h] = noise(&seed) / 6;
}

/* Fills the hidden layer and the probabilities of the classes. */
static void forward(const Net *net, const float *pixel, float *hidden, float *prob) {
    float sum = 0;
    for (int h = 0; h < HIDDEN; h++) {
        float a = net->b1[h];
        for (int p = 0; p < PIXELS; p++) a += net->w1[h][p] * pixel[p];
        hidden[h] = a > 0 ? a : 0;
    }
    for (int c = 0; c < CLASSES; c++) {
        float a = net->b2[c];
        for (int h = 0; h < HIDDEN; h++) a += net->w2[c][h] * hidden[h];
        sum += prob[c] = expf(a);
    }
    for (int c = 0; c < CLASSES; c++) prob[c] /= sum;
}

/* Adds the gradient of one image of the batch. */
static void backward(const Net *net, Net *grad, const float *pixel, const float *hidden,
                     const float *prob, int digit) {
    float dhidden[HIDDEN] = {0};
    for (int c = 0; c < CLASSES; c++) {
        const float d = (prob[c] - (c == digit)) / BATCH;
        grad->b2[c] += d;
        for (int h = 0; h < HIDDEN; h++) {
            grad->w2[c][h] += d * hidden[h];
            dhidden[h] += d * net->w2[c][h];
        }
    }
    for (int h = 0; h < HIDDEN; h++) {
        if (hidden[h] <= 0) continue;
        grad->b1[h] += dhidden[h];
        for (int p = 0; p < PIXELS; p++) grad->w1[h][p] += dhidden[h] * pixel[p];
    }
}

#ifndef ZERO
static void sgd(Net *net, const Net *grad, float lr) {
    float *w = &net->w1[0][0], *v = &velocity.w1[0][0];
    const float *g = &grad->w1[0][0];
    for (size_t i = 0; i < sizeof *net / sizeof *w; i++) {
        v[i] = 0.9f * v[i] + g[i];
        w[i] -= lr * v[i];
    }
}
#endif

/* Trains on a batch, and returns its loss. */
static double train(Net *net, int batch, float lr) {
    Net grad;
    double loss = 0;
    memset(&grad, 0, sizeof grad);
    for (int i = 0; i < BATCH; i++) {
        float pixel[PIXELS], hidden[HIDDEN], prob[CLASSES];
        const int digit = image(batch * BATCH + i, pixel);
        forward(net, pixel, hidden, prob);
        loss -= log((double)prob[digit]) / BATCH;
        backward(net, &grad, pixel, hidden, prob, digit);
    }
#ifdef ZERO
    if (zero_lend_train(z, net, &grad, &(zero_hyper){lr, .beta1 = 0.9f}, loss, &loss)) exit(1);
#else
    sgd(net, &grad, lr);
#endif
    return loss;
}

/* How many of the first images that nobody trains on are told right. */
static int evaluate(const Net *net) {
    int right = 0;
    for (int i = 0; i < 100; i++) {
        float pixel[PIXELS], hidden[HIDDEN], prob[CLASSES];
        const int digit = image(-1 - i, pixel);
        int best = 0;
        forward(net, pixel, hidden, prob);
        for (int c = 1; c < CLASSES; c++)
            if (prob[c] > prob[best]) best = c;
        right += best == digit;
    }
    return right;
}

#ifdef ZERO /* table */
static const zero_tensor_desc table[] = {
    ZERO_FIELD(Net, w1, HIDDEN *PIXELS, .flags = ZERO_INLINE),
    ZERO_FIELD(Net, b1, HIDDEN, .flags = ZERO_INLINE),
    ZERO_FIELD(Net, w2, CLASSES *HIDDEN, .unit = 1, .flags = ZERO_INLINE),
    ZERO_FIELD(Net, b2, CLASSES, .unit = 1, .flags = ZERO_INLINE)};
#endif

int main(int argc, char **argv) {
    Net net;
    if (argc > 1) steps = atoi(argv[1]);
#ifdef ZERO /* test */
    if (argc > 2) stage = atoi(argv[2]);
    if (argc > 3) ranks = atoi(argv[3]);
#endif
#ifdef ZERO
    ZERO_START_LOCAL(z, ranks, .stage = stage, .optimizer = ZERO_SGD);
    if (zero_rank(z) && !freopen("/dev/null", "w", stdout)) return 1;
#endif
    net_init(&net);
#ifdef ZERO
    ZERO_TRY(zero_tensors(z, table, 4)); /* table */
    ZERO_TRY(zero_lend(z, &net, ZERO_F32));
#endif
    for (int step = 0; step < steps; step++) {
        const float lr = 0.1f * (1 - (float)step / (float)steps);
#ifdef ZERO
        const double loss = train(&net, step * zero_nranks(z) + zero_rank(z), lr);
#else
        const double loss = train(&net, step, lr);
#endif
        printf("step %d, loss %.9f\n", step, loss);
    }
    printf("%d of 100 are told right\n", evaluate(&net));
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

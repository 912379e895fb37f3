/* model.h - what the trainers of this folder share: a network of L layers, its data, and AdamW. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { L = 3, W = 16, ROWS = 8, STEPS = 30 }; /* layers, channels, samples of a batch, steps */

static float x[L + 1][ROWS * W];  /* x[l] is the input of layer l, x[L] the output */
static float dx[L + 1][ROWS * W]; /* gradients of x */
static float target[ROWS * W];

/* Returns a number between -1 and 1. */
static float draw(unsigned *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return (float)(*seed >> 8) / 8388608.0f - 1;
}
/* Fills x[0] and target with batch `number`. */
static void load_batch(int number) {
    unsigned seed = 1000u + (unsigned)number;
    for (int i = 0; i < ROWS * W; i++) x[0][i] = draw(&seed);
    for (int i = 0; i < ROWS * W; i++) target[i] = sinf(x[0][i] + x[0][i ^ 1]);
}
/* x[l + 1] = tanh(x[l] w' + b); w [W, W], b [W]. */
static void layer_forward(int l, const float *w, const float *b) {
    for (int i = 0; i < ROWS * W; i++) {
        float sum = b[i % W];
        for (int k = 0; k < W; k++) sum += w[i % W * W + k] * x[l][i / W * W + k];
        x[l + 1][i] = tanhf(sum);
    }
}
/* Writes dx[l], and adds to dw and db. */
static void layer_backward(int l, const float *w, float *dw, float *db) {
    memset(dx[l], 0, sizeof dx[l]);
    for (int i = 0; i < ROWS * W; i++) {
        const float d = dx[l + 1][i] * (1 - x[l + 1][i] * x[l + 1][i]);
        for (int k = 0; k < W; k++) dw[i % W * W + k] += d * x[l][i / W * W + k];
        for (int k = 0; k < W; k++) dx[l][i / W * W + k] += d * w[i % W * W + k];
        db[i % W] += d;
    }
}
/* Writes dx[L], and returns the mean squared error of the batch. */
static float loss_and_gradient(void) {
    float loss = 0;
    for (int i = 0; i < ROWS * W; i++) {
        const float d = x[L][i] - target[i];
        dx[L][i] = 2 * d / (ROWS * W);
        loss += d * d / (ROWS * W);
    }
    return loss;
}
/* Step t (from 1) of AdamW: betas 0.9 and 0.95, weight decay 0.1. */
static inline void adamw(float *p, const float *g, float *m, float *v, int n, int t, float lr) {
    for (int i = 0; i < n; i++) {
        m[i] = 0.9f * m[i] + 0.1f * g[i];
        v[i] = 0.95f * v[i] + 0.05f * g[i] * g[i];
        const float mean = m[i] / (1 - powf(0.9f, (float)t));
        const float root = sqrtf(v[i] / (1 - powf(0.95f, (float)t)));
        p[i] -= lr * (mean / (root + 1e-8f) + 0.1f * p[i]);
    }
}
/* Returns n random weights of one array. */
static inline float *new_weights(int n, unsigned seed) {
    float *p = malloc((size_t)n * sizeof(float));
    for (int i = 0; i < n; i++) p[i] = draw(&seed) / 3;
    return p;
}
static inline float *new_zeros(int n) { return calloc((size_t)n, sizeof(float)); }

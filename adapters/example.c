/* example.c - a complete trainer: a multi-layer perceptron learns a function of its input on RANKS
   processes; its losses are the same at every stage. `make drop DIR=zp`, ./a.out STAGE RANKS of
   cc -O3 -ffp-contract=off -fopenmp -pthread -Izp adapters/example.c -xc zp/zero_plugin.cu -lm */
#include "zero_plugin.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
enum { LAYERS = 4, WIDTH = 32, SQUARE = WIDTH * WIDTH, CELLS = 16 * WIDTH, STEPS = 60 };
typedef struct tensors {
    float *w, *b; /* w[LAYERS][WIDTH][WIDTH], b[LAYERS][WIDTH] */
} tensors;
static const zero_tensor_desc table[] = {ZERO_FIELD(tensors, w, SQUARE, .layers = LAYERS),
                                         ZERO_FIELD(tensors, b, WIDTH, .layers = LAYERS)};
/* These three know nothing of the plugin. x[l]: what goes into layer l; dx[l]: its gradient. */
static float noise(unsigned *seed) { /* -1..1 */
    *seed = *seed * 1664525u + 1013904223u;
    return (float)(*seed >> 8) / 8388608.0f - 1;
}
static void forward(int l, const tensors *p, float (*x)[CELLS]) {
    for (int i = 0; i < CELLS; i++) {
        const float *w = p->w + l * SQUARE + i % WIDTH * WIDTH;
        float sum = p->b[l * WIDTH + i % WIDTH];
        for (int k = 0; k < WIDTH; k++) sum += w[k] * x[l][i / WIDTH * WIDTH + k];
        x[l + 1][i] = tanhf(sum);
    }
}
static void backward(int l, tensors *p, tensors *g, float (*x)[CELLS], float (*dx)[CELLS]) {
    for (int i = 0; i < CELLS; i++) dx[l][i] = 0;
    for (int i = 0; i < CELLS; i++) {
        const int at = l * SQUARE + i % WIDTH * WIDTH, row = i / WIDTH * WIDTH;
        const float d = dx[l + 1][i] * (1 - x[l + 1][i] * x[l + 1][i]);
        for (int k = 0; k < WIDTH; k++) g->w[at + k] += d * x[l][row + k];
        for (int k = 0; k < WIDTH; k++) dx[l][row + k] += d * p->w[at + k];
        g->b[l * WIDTH + i % WIDTH] += d;
    }
}
int main(int argc, char **argv) {
    static float w[LAYERS * SQUARE], b[LAYERS * WIDTH], x[LAYERS + 1][CELLS], dx[LAYERS + 1][CELLS];
    const zero_hyper hyper = {0.003f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f};
    tensors p = {w, b}, g; /* from zero_adopt on, hooks write them */
    if (argc != 3) return puts("expected STAGE RANKS"), 2;
    zero_ctx *z;
    ZERO_START_LOCAL(z, atoi(argv[2]), .stage = atoi(argv[1]));
    unsigned seed = 1, data = 1000u + (unsigned)zero_rank(z); /* the same weights, other samples */
    for (int i = 0; i < LAYERS * SQUARE; i++) w[i] = noise(&seed) / 3;
    ZERO_TRY(zero_tensors(z, table, 2)); /* layer l of both is unit l */
    ZERO_TRY(zero_adopt(z, &p, &g, ZERO_F32, NULL));
    for (int step = 0; step < STEPS; step++) {
        double loss = 0;
        for (int i = 0; i < CELLS; i++) x[0][i] = noise(&data);
        ZERO_TRY(zero_train_begin(z));
        for (int l = 0; l < LAYERS; l++) {
            ZERO_TRY(zero_forward_begin(z, l, &p));
            forward(l, &p, x);
            ZERO_TRY(zero_forward_end(z, l));
        }
        for (int i = 0; i < CELLS; i++) {
            const float d = x[LAYERS][i] - sinf(x[0][i] + x[0][i ^ 1]);
            dx[LAYERS][i] = 2 * d / CELLS;
            loss += (double)d * (double)d / CELLS;
        }
        for (int l = LAYERS - 1; l >= 0; l--) {
            ZERO_TRY(zero_backward_begin(z, l, &p, &g));
            backward(l, &p, &g, x, dx);
            ZERO_TRY(zero_backward_end(z, l));
        }
        ZERO_TRY(zero_train_end(z, &hyper, loss, &loss));
        if (zero_rank(z) == 0) printf("step %d, loss %.9f\n", step, loss);
    }
    return zero_destroy(z), 0;
}

/* example.c - a complete trainer: a multi-layer perceptron learns a function of its input on RANKS
   processes; its losses are the same at every stage. `make drop DIR=zero`, ./a.out STAGE RANKS of
     cc -O3 -ffp-contract=off -fopenmp -Izero adapters/example.c -xc zero/zero_plugin.cu -lm */
#include "zero_plugin.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
enum { LAYERS = 4, WIDTH = 32, SQUARE = WIDTH * WIDTH, CELLS = 16 * WIDTH, STEPS = 60 };
typedef struct tensors {
    float *w, *b; /* base pointers: w[LAYERS][WIDTH][WIDTH], b[LAYERS][WIDTH] */
} tensors;
#define TRY(call) ((call) ? exit((fprintf(stderr, "%s\n", zero_last_error(z)), 1)) : (void)0)

static float noise(unsigned *seed) { /* -1..1 */
    *seed = *seed * 1664525u + 1013904223u;
    return (float)(*seed >> 8) / 8388608.0f - 1;
}

/* Both know nothing of the plugin. x[l]: what goes into layer l; dx[l]: its gradient. */
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

static void train_step(zero_ctx *z, int step, unsigned *seed) {
    static float x[LAYERS + 1][CELLS], dx[LAYERS + 1][CELLS];
    const zero_hyper hyper = {0.003f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f};
    tensors p, g; /* the hooks write them */
    double loss = 0;
    for (int i = 0; i < CELLS; i++) x[0][i] = noise(seed);
    TRY(zero_pass_begin(z, ZERO_TRAIN, 0, 1));
    for (int l = 0; l < LAYERS; l++) {
        TRY(zero_forward_begin(z, l, &p));
        forward(l, &p, x);
        TRY(zero_forward_end(z, l));
    }
    for (int i = 0; i < CELLS; i++) {
        const float d = x[LAYERS][i] - sinf(x[0][i] + x[0][i ^ 1]);
        dx[LAYERS][i] = 2 * d / CELLS * zero_loss_scale(z);
        loss += (double)d * (double)d / CELLS / zero_nranks(z);
    }
    for (int l = LAYERS - 1; l >= 0; l--) {
        TRY(zero_backward_begin(z, l, &p, &g));
        backward(l, &p, &g, x, dx);
        TRY(zero_backward_end(z, l));
    }
    TRY(zero_pass_end(z));
    TRY(zero_reduce(z));
    TRY(zero_step(z, &hyper));
    TRY(zero_all_sum(z, &loss, 1));
    if (zero_rank(z) == 0) printf("step %d, loss %.9f\n", step, loss);
}

static void train(zero_ctx *z, const zero_config *cfg, const zero_comm *comm) {
    const zero_tensor_desc w = {"w", SQUARE, LAYERS, 0, 0, 0, offsetof(tensors, w)};
    const zero_tensor_desc b = {"b", WIDTH, LAYERS, 0, 0, ZERO_ONE_D, offsetof(tensors, b)};
    static float start[LAYERS * SQUARE];
    unsigned weights = 1, data = 1000u + (unsigned)comm->rank; /* weights alike on all ranks */
    TRY(zero_create(&z, cfg, comm));
    TRY(zero_tensor(z, &w)); /* unit of layer l: 0 + l, for both */
    TRY(zero_tensor(z, &b));
    TRY(zero_build(z)); /* all parameters are zeros now */
    for (int i = 0; i < LAYERS * SQUARE; i++) start[i] = noise(&weights) / 3;
    TRY(zero_write_tensor(z, "w", ZERO_PARAMETER, 0, LAYERS * SQUARE, start));
    for (int i = 0; i < STEPS; i++) train_step(z, i, &data);
    zero_destroy(z);
}

int main(int argc, char **argv) {
    if (argc != 3) return puts("expected STAGE RANKS"), 2;
    const int ranks = atoi(argv[2]);
    zero_config cfg = {0};
    zero_local *group = NULL;
    int status, failed = zero_local_create(&group, ranks, 1) != ZERO_OK; /* before fork */
    zero_comm comm = {ZERO_COMM_LOCAL, 0, group, 0};
    cfg.stage = atoi(argv[1]);
    for (; comm.rank < ranks && !failed; comm.rank++)
        if (!fork()) return train(NULL, &cfg, &comm), 0;
    while (wait(&status) > 0)
        if (status && !failed++) zero_local_abort(group, -1, "a rank ended early");
    zero_local_destroy(group);
    return failed != 0;
}

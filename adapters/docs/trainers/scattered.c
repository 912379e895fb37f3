/* scattered.c - weights belong to modules, biases are a global array, gradients are one block. */
#include "model.h"

typedef struct {
    float w[W * W];
    int gradient_at; /* offset of its gradient in `gradient` */
} Module;
static Module *module[L];
static float bias[L][W];
static float *gradient; /* [L, W * W], then [L, W] */
static float m[L * (W * W + W)], v[L * (W * W + W)];

static void update(int step) {
    for (int l = 0; l < L; l++) {
        const int a = module[l]->gradient_at, b = L * W * W + l * W;
        adamw(module[l]->w, gradient + a, m + a, v + a, W * W, step + 1, 0.01f);
        adamw(bias[l], gradient + b, m + b, v + b, W, step + 1, 0.01f);
    }
    memset(gradient, 0, L * (W * W + W) * sizeof(float));
}

int main(void) {
    gradient = new_zeros(L * (W * W + W));
    for (int l = 0; l < L; l++) {
        unsigned seed = 1u + (unsigned)l;
        module[l] = calloc(1, sizeof(Module));
        module[l]->gradient_at = l * W * W;
        for (int i = 0; i < W * W; i++) module[l]->w[i] = draw(&seed) / 3;
    }
    for (int step = 0; step < STEPS; step++) {
        load_batch(step);
        for (int l = 0; l < L; l++) layer_forward(l, module[l]->w, bias[l]);
        double loss = loss_and_gradient();
        for (int l = L - 1; l >= 0; l--)
            layer_backward(l, module[l]->w, gradient + module[l]->gradient_at,
                           gradient + L * W * W + l * W);
        update(step);
        printf("step %d, loss %.6f\n", step, loss);
    }
    return 0;
}

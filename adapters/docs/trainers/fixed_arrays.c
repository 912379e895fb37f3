/* fixed_arrays.c - weights are arrays in a global struct, and the gradient is a local variable. */
#include "model.h"

typedef struct {
    float w[L * W * W], b[L * W];
} Net;
static Net net, m, v;

static double train(int step) {
    Net grad = {0};
    load_batch(step);
    for (int l = 0; l < L; l++) layer_forward(l, net.w + l * W * W, net.b + l * W);
    double loss = loss_and_gradient();
    for (int l = L - 1; l >= 0; l--)
        layer_backward(l, net.w + l * W * W, grad.w + l * W * W, grad.b + l * W);
    adamw(net.w, grad.w, m.w, v.w, L * W * W, step + 1, 0.01f);
    adamw(net.b, grad.b, m.b, v.b, L * W, step + 1, 0.01f);
    return loss;
}

int main(void) {
    unsigned seed = 1;
    for (int i = 0; i < L * W * W; i++) net.w[i] = draw(&seed) / 3;
    for (int step = 0; step < STEPS; step++) printf("step %d, loss %.6f\n", step, train(step));
    return 0;
}

/* one_block.c - all weights are one allocation, and a layer computes its offset. */
#include "model.h"

enum { LAYER = W * W + W, N = L * LAYER };

int main(void) {
    float *params = new_weights(N, 1), *grads = new_zeros(N);
    float *m = new_zeros(N), *v = new_zeros(N);
    for (int step = 0; step < STEPS; step++) {
        load_batch(step);
        memset(grads, 0, N * sizeof(float));
        for (int l = 0; l < L; l++)
            layer_forward(l, params + l * LAYER, params + l * LAYER + W * W);
        float loss = loss_and_gradient();
        for (int l = L - 1; l >= 0; l--)
            layer_backward(l, params + l * LAYER, grads + l * LAYER, grads + l * LAYER + W * W);
        adamw(params, grads, m, v, N, step + 1, 0.01f);
        printf("step %d, loss %.6f\n", step, loss);
    }
    free(params), free(grads), free(m), free(v);
    return 0;
}

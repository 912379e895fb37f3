/* struct_of_pointers.c - one array per kind of tensor with all layers in it, as llm.c has them. */
#include "model.h"

typedef struct {
    float *w, *b; /* [L, W, W], [L, W] */
} Tensors;

int main(void) {
    Tensors params = {new_weights(L * W * W, 1), new_weights(L * W, 2)};
    Tensors grads = {new_zeros(L * W * W), new_zeros(L * W)};
    Tensors m = {new_zeros(L * W * W), new_zeros(L * W)};
    Tensors v = {new_zeros(L * W * W), new_zeros(L * W)};
    for (int step = 0; step < STEPS; step++) {
        load_batch(step);
        memset(grads.w, 0, L * W * W * sizeof(float));
        memset(grads.b, 0, L * W * sizeof(float));
        for (int l = 0; l < L; l++)
            layer_forward(l, params.w + l * W * W, params.b + l * W);
        float loss = loss_and_gradient();
        for (int l = L - 1; l >= 0; l--)
            layer_backward(l, params.w + l * W * W, grads.w + l * W * W, grads.b + l * W);
        adamw(params.w, grads.w, m.w, v.w, L * W * W, step + 1, 0.01f);
        adamw(params.b, grads.b, m.b, v.b, L * W, step + 1, 0.01f);
        printf("step %d, loss %.6f\n", step, loss);
    }
    return 0;
}

/* struct_per_layer.c - each layer is a struct with pointers to its weights and gradients. */
#include "model.h"

typedef struct {
    float *w, *b, *grad_w, *grad_b, *m_w, *m_b, *v_w, *v_b;
} Layer;
static Layer layer[L];

int main(void) {
    for (int l = 0; l < L; l++)
        layer[l] = (Layer){.w = new_weights(W * W, 1u + (unsigned)l),
                           .b = new_weights(W, 9u + (unsigned)l),
                           .grad_w = new_zeros(W * W),
                           .grad_b = new_zeros(W),
                           .m_w = new_zeros(W * W),
                           .m_b = new_zeros(W),
                           .v_w = new_zeros(W * W),
                           .v_b = new_zeros(W)};
    for (int step = 0; step < STEPS; step++) {
        load_batch(step);
        for (int l = 0; l < L; l++) {
            memset(layer[l].grad_w, 0, W * W * sizeof(float));
            memset(layer[l].grad_b, 0, W * sizeof(float));
        }
        for (int l = 0; l < L; l++) layer_forward(l, layer[l].w, layer[l].b);
        float loss = loss_and_gradient();
        for (int l = L - 1; l >= 0; l--)
            layer_backward(l, layer[l].w, layer[l].grad_w, layer[l].grad_b);
        for (int l = 0; l < L; l++) {
            Layer *q = &layer[l];
            adamw(q->w, q->grad_w, q->m_w, q->v_w, W * W, step + 1, 0.01f);
            adamw(q->b, q->grad_b, q->m_b, q->v_b, W, step + 1, 0.01f);
        }
        printf("step %d, loss %.6f\n", step, loss);
    }
    return 0;
}

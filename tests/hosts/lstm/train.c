/* train.c - the training loop */
#include "lstm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Window number `n` of the text, and the letter behind it. */
static void window(int n, int *letter) {
    unsigned seed = 17u + 101u * (unsigned)n;
    letter[0] = n % LETTERS;
    for (int i = 1; i <= WINDOW; i++) {
        seed = seed * 1664525u + 1013904223u;
        letter[i] = seed >> 29 ? (5 * letter[i - 1] + 3) % LETTERS : (int)(seed >> 8) % LETTERS;
    }
}

int train(Model *m, int steps) {
    Model grad;
    model_new(&grad, 0);
    for (int step = 0; step < steps; step++) {
        int letter[WINDOW + 1];
        const double lr = 0.02 * (1 - 0.5 * step / steps);
        for (int i = 0; i < MATRICES; i++) {
            Matrix *g = &grad.wx + i;
            memset(g->data, 0, (size_t)(g->rows * g->cols) * sizeof(double));
        }
#ifdef ZERO
        window(step * zero_nranks(z) + zero_rank(z), letter);
#else
        window(step, letter);
#endif
        double loss = forward_backward(m, &grad, letter);
#ifdef ZERO
        const zero_hyper hyper = {(float)lr, 0.9f, 0.999f, 1e-8f, 0, 0};
        ZERO_TRY(zero_lend_train(z, m, &grad, &hyper, loss, &loss));
#else
        adam(m, &grad, lr, step);
#endif
        printf("step %d, loss %.9f\n", step, loss);
    }
    model_free(&grad);
    return 0;
}

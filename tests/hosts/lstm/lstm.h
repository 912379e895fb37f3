/* lstm.h - a trainer of a foreign kind, as it was before there was a plugin: an LSTM that reads a
   text letter by letter, in doubles, over several files; matrices are allocations, weights and
   gradients two structs of these; Adam. Its text is made up by a rule.
     cc -O2 lstm.c train.c adam.c main.c -lm                            ./a.out [STEPS]
   Between lines that say ZERO stands what changes with the plugin, which leaves the arrays where
   they are:
     cc -O2 -DZERO lstm.c train.c main.c -xc zero_plugin.cu -lm         ./a.out [STEPS [STAGE
   [RANKS]]] tests/hosts/test_foreign.sh counts these lines. */
#ifndef LSTM_H
#define LSTM_H

#include <stddef.h>
#ifdef ZERO
#include "zero_plugin.h"
extern zero_ctx *z;
#endif

enum { LETTERS = 14, CELLS = 20, GATES = 4 * CELLS, WINDOW = 24 };

typedef struct Matrix {
    int rows, cols;
    double *data;
} Matrix;

typedef struct Model {
    Matrix wx, wh, b; /* [GATES][LETTERS], [GATES][CELLS], [GATES][1]: input, forget, output, new */
    Matrix wy, by;    /* [LETTERS][CELLS], [LETTERS][1] */
} Model;

enum { MATRICES = sizeof(Model) / sizeof(Matrix) };

/* lstm.c */
void model_new(Model *m, unsigned seed); /* seed 0: zeros */
void model_free(Model *m);
double forward_backward(const Model *m, Model *grad, const int *letter); /* the mean loss */

/* adam.c */
void adam(Model *m, const Model *grad, double lr, int step);

/* train.c */
int train(Model *m, int steps);

#endif

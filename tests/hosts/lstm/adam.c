/* adam.c - Adam, with its moments */
#include "lstm.h"

#include <math.h>
#ifndef ZERO
void adam(Model *model, const Model *grad, double lr, int step) {
    static Model m, v;
    const double beta1 = 0.9, beta2 = 0.999;
    Matrix *weights = &model->wx, *first = &m.wx, *second = &v.wx;
    const Matrix *grads = &grad->wx;
    if (step == 0) {
        model_new(&m, 0);
        model_new(&v, 0);
    }
    for (int k = 0; k < MATRICES; k++)
        for (int i = 0; i < weights[k].rows * weights[k].cols; i++) {
            const double g = grads[k].data[i];
            double *a = &first[k].data[i], *b = &second[k].data[i];
            *a = beta1 * *a + (1 - beta1) * g;
            *b = beta2 * *b + (1 - beta2) * g * g;
            const double mean = *a / (1 - pow(beta1, step + 1));
            const double square = *b / (1 - pow(beta2, step + 1));
            weights[k].data[i] -= lr * mean / (sqrt(square) + 1e-8);
        }
}
#endif

/* lstm.c - the model: a layer of LSTM cells, and the probabilities of the next letter */
#include "lstm.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void matrix_new(Matrix *m, int rows, int cols, unsigned *seed) {
    m->rows = rows;
    m->cols = cols;
    m->data = (double *)calloc((size_t)rows * (size_t)cols, sizeof(double));
    for (int i = 0; i < rows * cols && *seed && cols > 1; i++) {
        *seed = *seed * 1664525u + 1013904223u;
        m->data[i] = ((double)(*seed >> 8) / 8388608.0 - 1) * 0.3;
    }
}

void model_new(Model *m, unsigned seed) {
    matrix_new(&m->wx, GATES, LETTERS, &seed);
    matrix_new(&m->wh, GATES, CELLS, &seed);
    matrix_new(&m->b, GATES, 1, &seed);
    matrix_new(&m->wy, LETTERS, CELLS, &seed);
    matrix_new(&m->by, LETTERS, 1, &seed);
}

void model_free(Model *m) {
    Matrix *all = &m->wx;
    for (int i = 0; i < MATRICES; i++) free(all[i].data);
}

typedef struct Trace { /* of one letter */
    double gate[GATES], c[CELLS], h[CELLS], prob[LETTERS];
} Trace;

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

static double step_forward(const Model *m, const Trace *before, Trace *t, int letter, int next) {
    double sum = 0;
    for (int g = 0; g < GATES; g++) {
        double a = m->b.data[g] + m->wx.data[g * LETTERS + letter];
        for (int i = 0; i < CELLS; i++) a += m->wh.data[g * CELLS + i] * before->h[i];
        t->gate[g] = g < 3 * CELLS ? sigmoid(a) : tanh(a);
    }
    for (int i = 0; i < CELLS; i++) {
        t->c[i] = t->gate[CELLS + i] * before->c[i] + t->gate[i] * t->gate[3 * CELLS + i];
        t->h[i] = t->gate[2 * CELLS + i] * tanh(t->c[i]);
    }
    for (int o = 0; o < LETTERS; o++) {
        double a = m->by.data[o];
        for (int i = 0; i < CELLS; i++) a += m->wy.data[o * CELLS + i] * t->h[i];
        sum += t->prob[o] = exp(a);
    }
    for (int o = 0; o < LETTERS; o++) t->prob[o] /= sum;
    return -log(t->prob[next]) / WINDOW;
}

/* dh, dc: what comes from later letters; on return what goes to the one before. */
static void step_backward(const Model *m, Model *grad, const Trace *before, const Trace *t,
                          int letter, int next, double *dh, double *dc) {
    double da[GATES], back[CELLS] = {0};
    for (int o = 0; o < LETTERS; o++) {
        const double d = (t->prob[o] - (o == next)) / WINDOW;
        grad->by.data[o] += d;
        for (int i = 0; i < CELLS; i++) {
            grad->wy.data[o * CELLS + i] += d * t->h[i];
            dh[i] += d * m->wy.data[o * CELLS + i];
        }
    }
    for (int i = 0; i < CELLS; i++) {
        const double in = t->gate[i], keep = t->gate[CELLS + i], out = t->gate[2 * CELLS + i];
        const double fresh = t->gate[3 * CELLS + i], squashed = tanh(t->c[i]);
        const double d = dc[i] + dh[i] * out * (1 - squashed * squashed);
        da[i] = d * fresh * in * (1 - in);
        da[CELLS + i] = d * before->c[i] * keep * (1 - keep);
        da[2 * CELLS + i] = dh[i] * squashed * out * (1 - out);
        da[3 * CELLS + i] = d * in * (1 - fresh * fresh);
        dc[i] = d * keep;
    }
    for (int g = 0; g < GATES; g++) {
        grad->b.data[g] += da[g];
        grad->wx.data[g * LETTERS + letter] += da[g];
        for (int i = 0; i < CELLS; i++) {
            grad->wh.data[g * CELLS + i] += da[g] * before->h[i];
            back[i] += da[g] * m->wh.data[g * CELLS + i];
        }
    }
    memcpy(dh, back, sizeof back);
}

double forward_backward(const Model *m, Model *grad, const int *letter) {
    static Trace trace[WINDOW + 1]; /* the first: before the window, zeros */
    double loss = 0, dh[CELLS] = {0}, dc[CELLS] = {0};
    for (int t = 0; t < WINDOW; t++)
        loss += step_forward(m, &trace[t], &trace[t + 1], letter[t], letter[t + 1]);
    for (int t = WINDOW - 1; t >= 0; t--)
        step_backward(m, grad, &trace[t], &trace[t + 1], letter[t], letter[t + 1], dh, dc);
    return loss;
}

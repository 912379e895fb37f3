/* test_gpt2_reference.h - the operations of GPT-2 in f64, one plain loop each, forward only: what
   the real ones are compared with, and what finite differences are taken of. */
#ifndef TEST_GPT2_REFERENCE_H
#define TEST_GPT2_REFERENCE_H

#include <math.h>
#include <stddef.h>

/* y (R, O) = x (R, I) w^T (O, I) + bias (O, may be NULL) */
__attribute__((unused)) static void ref_linear(double *y, const double *x, const double *w,
                                               const double *bias, size_t R, size_t I, size_t O) {
    for (size_t r = 0; r < R; r++)
        for (size_t o = 0; o < O; o++) {
            double sum = bias ? bias[o] : 0;
            for (size_t i = 0; i < I; i++) sum += x[r * I + i] * w[o * I + i];
            y[r * O + o] = sum;
        }
}

__attribute__((unused)) static void ref_norm(double *y, const double *x, const double *w,
                                             const double *b, size_t R, size_t C) {
    for (size_t r = 0; r < R; r++) {
        double mean = 0, variance = 0;
        for (size_t i = 0; i < C; i++) mean += x[r * C + i] / (double)C;
        for (size_t i = 0; i < C; i++)
            variance += (x[r * C + i] - mean) * (x[r * C + i] - mean) / (double)C;
        for (size_t i = 0; i < C; i++)
            y[r * C + i] = (x[r * C + i] - mean) / sqrt(variance + 1e-5) * w[i] + b[i];
    }
}

__attribute__((unused)) static double ref_gelu(double x) {
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

/* One query of one head: q, k, v (H) with tokens of k and v `stride` apart. */
__attribute__((unused)) static void ref_query(double *out, const double *q, const double *k,
                                              const double *v, size_t seen, size_t stride,
                                              size_t H) {
    double weight[2048], sum = 0;
    for (size_t j = 0; j < seen; j++) {
        double score = 0;
        for (size_t d = 0; d < H; d++) score += q[d] * k[j * stride + d];
        weight[j] = exp(score / sqrt((double)H));
        sum += weight[j];
    }
    for (size_t d = 0; d < H; d++) {
        out[d] = 0;
        for (size_t j = 0; j < seen; j++) out[d] += weight[j] / sum * v[j * stride + d];
    }
}

/* out (B, T, NH H) of qkv (B, T, 3, NH, H), bias included */
__attribute__((unused)) static void ref_attention(double *out, const double *qkv, size_t B,
                                                  size_t T, size_t NH, size_t H) {
    const size_t C = NH * H;
    for (size_t b = 0; b < B; b++)
        for (size_t t = 0; t < T; t++)
            for (size_t h = 0; h < NH; h++) {
                const double *row = qkv + b * T * 3 * C + h * H;
                ref_query(out + (b * T + t) * C + h * H, row + t * 3 * C, row + C, row + 2 * C,
                          t + 1, 3 * C, H);
            }
}

/* -log softmax(logits)[target] over V entries */
__attribute__((unused)) static double ref_cross_entropy(const double *logits, size_t target,
                                                        size_t V) {
    double most = logits[0], sum = 0;
    for (size_t i = 0; i < V; i++) most = logits[i] > most ? logits[i] : most;
    for (size_t i = 0; i < V; i++) sum += exp(logits[i] - most);
    return log(sum) + most - logits[target];
}

#endif

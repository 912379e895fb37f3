/* ops_experts_cpu.c - see ops_experts.h. Rows do not depend on each other, except for their slots,
   which one thread assigns. Sums add rows in order. */
#include "ops_experts.h"

#include <math.h>
#include <string.h>

#ifdef _OPENMP
#define OMP(x) _Pragma(#x)
#else
#define OMP(x)
#endif

enum { PIECE = 256 /* columns that a thread takes at once */ };

/* Convert n numbers from element `at` on to f32, and back. */
static void take(float *to, const void *from, size_t at, size_t n, zero_type type) {
    zero_convert(to, ZERO_F32, (const char *)from + at * zero_type_bytes(type), type, n);
}
static void give(void *to, size_t at, const float *from, size_t n, zero_type type) {
    zero_convert((char *)to + at * zero_type_bytes(type), type, from, ZERO_F32, n);
}
static size_t least(size_t a, size_t b) { return a < b ? a : b; }

/* ---- gates --------------------------------------------------------------------------------- */

static float dot(const void *a, size_t at, const void *b, size_t bt, size_t n, zero_type type) {
    float x[PIECE], y[PIECE], sum = 0;
    for (size_t i = 0; i < n; i += PIECE) {
        const size_t m = least(n - i, PIECE);
        take(x, a, at + i, m, type);
        take(y, b, bt + i, m, type);
        for (size_t j = 0; j < m; j++) sum += x[j] * y[j];
    }
    return sum;
}

static void softmax(float *x, size_t n) {
    float most = x[0], sum = 0;
    for (size_t i = 1; i < n; i++) most = x[i] > most ? x[i] : most;
    for (size_t i = 0; i < n; i++) sum += x[i] = expf(x[i] - most);
    for (size_t i = 0; i < n; i++) x[i] /= sum;
}

void ops_gates(const ops_route *t, const void *x, const void *w, size_t R, size_t C) {
    const size_t E = t->experts;
    OMP(omp parallel for schedule(static))
    for (size_t r = 0; r < R; r++) {
        for (size_t e = 0; e < E; e++) t->gates[r * E + e] = dot(x, r * C, w, e * C, C, t->type);
        softmax(t->gates + r * E, E);
    }
}

/* ---- routes -------------------------------------------------------------------------------- */

/* Returns the expert with the largest gate, except expert `but`. Of equal ones it is the first. */
static int largest(const float *gates, size_t E, int but) {
    int most = -1;
    for (size_t e = 0; e < E; e++)
        if ((int)e != but && (most < 0 || gates[e] > gates[most])) most = (int)e;
    return most;
}

/* Assigns the next slot of its expert, if one is left, to choice j of row r. */
static int take_slot(const ops_route *t, size_t r, size_t j, int *taken) {
    const size_t at = r * t->chosen + j;
    const int e = t->choices[at], place = taken[e]++;
    t->slots[at] = -1;
    if ((size_t)place >= t->capacity) return 0;
    t->slots[at] = e * (int)t->capacity + place;
    t->rows[t->slots[at]] = (int)at;
    return 1;
}

static void weigh(const ops_route *t, size_t r) {
    const size_t k = t->chosen;
    float sum = 0, *w = t->weights + r * k;
    for (size_t j = 0; j < k; j++) {
        const int kept = t->slots[r * k + j] >= 0;
        sum += w[j] = kept ? t->gates[r * t->experts + (size_t)t->choices[r * k + j]] : 0;
    }
    for (size_t j = 0; j < k && k > 1 && sum > 0; j++) w[j] /= sum;
}

/* Returns the auxiliary loss: E times the sum of shares times mean gates. */
static double auxiliary(const ops_route *t, size_t R) {
    const size_t E = t->experts;
    double sum = 0;
    for (size_t e = 0; e < E; e++) {
        double mean = 0;
        for (size_t r = 0; r < R; r++) mean += (double)t->gates[r * E + e];
        sum += (double)t->shares[e] * mean;
    }
    return R ? sum * (double)E / (double)R : 0;
}

void ops_routes(const ops_route *t, double *totals, size_t R) {
    const size_t E = t->experts, k = t->chosen;
    int taken[OPS_MOST_EXPERTS];
    size_t dropped = 0;
    memset(taken, 0, sizeof taken);
    for (size_t s = 0; s < E * t->capacity; s++) t->rows[s] = -1;
    for (size_t r = 0; r < R; r++)
        for (size_t j = 0; j < k; j++)
            t->choices[r * k + j] = largest(t->gates + r * E, E, j ? t->choices[r * k] : -1);
    for (size_t j = 0; j < k; j++) {
        for (size_t r = 0; r < R; r++) dropped += !take_slot(t, r, j, taken);
        for (size_t e = 0; e < E && !j; e++) t->shares[e] = R ? (float)taken[e] / (float)R : 0;
    }
    for (size_t r = 0; r < R; r++) weigh(t, r);
    if (!totals) return;
    totals[0] += auxiliary(t, R);
    totals[1] += (double)dropped;
}

/* ---- rows ---------------------------------------------------------------------------------- */

void ops_dispatch(const ops_route *t, void *out, const void *x, size_t R, size_t C) {
    const size_t bytes = C * zero_type_bytes(t->type), n = t->experts * t->capacity;
    (void)R;
    OMP(omp parallel for schedule(static))
    for (size_t s = 0; s < n; s++) {
        const size_t r = t->rows[s] < 0 ? 0 : (size_t)t->rows[s] / t->chosen;
        if (t->rows[s] < 0)
            memset((char *)out + s * bytes, 0, bytes);
        else
            memcpy((char *)out + s * bytes, (const char *)x + r * bytes, bytes);
    }
}

/* sum [n] += factor times the elements of x from `at` on. */
static void add_row(float *sum, float factor, const void *x, size_t at, size_t n, zero_type type) {
    float row[PIECE];
    take(row, x, at, n, type);
    for (size_t i = 0; i < n; i++) sum[i] += factor * row[i];
}

void ops_combine(const ops_route *t, void *out, const void *x, const void *in, size_t R, size_t C) {
    const size_t k = t->chosen;
    OMP(omp parallel for schedule(static))
    for (size_t r = 0; r < R; r++)
        for (size_t c = 0; c < C; c += PIECE) {
            const size_t n = least(C - c, PIECE);
            float sum[PIECE];
            if (x)
                take(sum, x, r * C + c, n, t->type);
            else
                memset(sum, 0, sizeof sum);
            for (size_t j = r * k; j < (r + 1) * k; j++)
                if (t->slots[j] >= 0)
                    add_row(sum, t->weights[j], in, (size_t)t->slots[j] * C + c, n, t->type);
            give(out, r * C + c, sum, n, t->type);
        }
}

/* ---- backward ------------------------------------------------------------------------------ */

void ops_combine_backward(const ops_route *t, void *din, float *dweights, const void *dout,
                          const void *in, size_t R, size_t C) {
    const size_t k = t->chosen, n = t->experts * t->capacity;
    OMP(omp parallel for schedule(static))
    for (size_t s = 0; s < n; s++)
        for (size_t c = 0; c < C; c += PIECE) {
            const size_t m = least(C - c, PIECE);
            float row[PIECE];
            memset(row, 0, sizeof row);
            if (t->rows[s] >= 0)
                add_row(row, t->weights[t->rows[s]], dout, (size_t)t->rows[s] / k * C + c, m,
                        t->type);
            give(din, s * C + c, row, m, t->type);
        }
    OMP(omp parallel for schedule(static))
    for (size_t j = 0; j < R * k; j++)
        dweights[j] =
            t->slots[j] < 0 ? 0 : dot(dout, j / k * C, in, (size_t)t->slots[j] * C, C, t->type);
}

/* Returns the gradient of the gate of choice j of a row, from those of the weights. */
static float gate_gradient(const ops_route *t, size_t r, size_t j, const float *dweights) {
    const size_t k = t->chosen, at = r * k + j;
    float sum = 0, all = 0;
    if (t->slots[at] < 0) return 0;
    if (k == 1) return dweights[at];
    for (size_t i = r * k; i < (r + 1) * k; i++) {
        sum += t->weights[i] * dweights[i];
        if (t->slots[i] >= 0) all += t->gates[r * t->experts + (size_t)t->choices[i]];
    }
    return all > 0 ? (dweights[at] - sum) / all : 0;
}

void ops_routes_backward(const ops_route *t, float *dlogits, const float *dweights, float aux,
                         size_t R) {
    const size_t E = t->experts, k = t->chosen;
    OMP(omp parallel for schedule(static))
    for (size_t r = 0; r < R; r++) {
        const float *g = t->gates + r * E;
        float *d = dlogits + r * E, sum = 0;
        for (size_t e = 0; e < E; e++) d[e] = aux * (float)E * t->shares[e] / (float)R;
        for (size_t j = 0; j < k; j++) d[t->choices[r * k + j]] += gate_gradient(t, r, j, dweights);
        for (size_t e = 0; e < E; e++) sum += g[e] * d[e];
        for (size_t e = 0; e < E; e++) d[e] = g[e] * (d[e] - sum);
    }
}

void ops_dispatch_backward(const ops_route *t, void *dx, const void *din, const float *dlogits,
                           const void *w, size_t R, size_t C) {
    const size_t k = t->chosen, E = t->experts;
    OMP(omp parallel for schedule(static))
    for (size_t r = 0; r < R; r++)
        for (size_t c = 0; c < C; c += PIECE) {
            const size_t n = least(C - c, PIECE);
            float sum[PIECE];
            memset(sum, 0, sizeof sum);
            for (size_t j = r * k; j < (r + 1) * k; j++)
                if (t->slots[j] >= 0) add_row(sum, 1, din, (size_t)t->slots[j] * C + c, n, t->type);
            for (size_t e = 0; e < E; e++)
                add_row(sum, dlogits[r * E + e], w, e * C + c, n, t->type);
            give(dx, r * C + c, sum, n, t->type);
        }
}

void ops_gates_dw(const ops_route *t, void *dw, const float *dlogits, const void *x, size_t R,
                  size_t C) {
    const size_t E = t->experts, pieces = (C + PIECE - 1) / PIECE;
    OMP(omp parallel for schedule(static))
    for (size_t i = 0; i < E * pieces; i++) {
        const size_t e = i / pieces, c = i % pieces * PIECE, n = least(C - c, PIECE);
        float sum[PIECE], old[PIECE];
        memset(sum, 0, sizeof sum);
        for (size_t r = 0; r < R; r++) add_row(sum, dlogits[r * E + e], x, r * C + c, n, t->type);
        take(old, dw, e * C + c, n, t->grad_type);
        for (size_t j = 0; j < n; j++) old[j] += sum[j];
        give(dw, e * C + c, old, n, t->grad_type);
    }
}

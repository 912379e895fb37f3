/* ops_experts_cuda.cu - see ops_experts.h. Each thread has an element, a row or an expert, and adds
   in order, so equal inputs give equal bits. One thread per expert assigns its slots, in the order
   of rows. */
#include "ops_experts.h"

#include "cuda_bytes.h"
#include "cuda_numbers.h"

#ifdef EMULATED_LAUNCH
#define OPS_LAUNCH EMULATED_LAUNCH
#else
#define OPS_LAUNCH(kernel, grid, block, shared, stream, ...)                                       \
    kernel<<<grid, block, shared, stream>>>(__VA_ARGS__)
#endif

#define EACH(i, n)                                                                                 \
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < (n);                        \
         i += (size_t)gridDim.x * blockDim.x)

enum { THREADS = 256, MOST_BLOCKS = 4096 };

static unsigned blocks_for(size_t n) {
    const size_t blocks = (n + THREADS - 1) / THREADS;
    return (unsigned)(blocks < 1 ? 1 : blocks > MOST_BLOCKS ? (size_t)MOST_BLOCKS : blocks);
}

/* Launches n threads. The next operation of ops_cuda.cu reports a failed launch. */
#define RUN(t, kernel, n, ...)                                                                     \
    OPS_LAUNCH(kernel, blocks_for(n), THREADS, 0, (cudaStream_t)(t)->stream, __VA_ARGS__)
#define FOR_TYPE(t, use)                                                                           \
    do {                                                                                           \
        if ((t)->type == ZERO_F32) use(ops_f32);                                                   \
        if ((t)->type == ZERO_BF16) use(ops_bf16);                                                 \
        if ((t)->type == ZERO_F16) use(ops_f16);                                                   \
    } while (0)

#define IN(NUM, p)  ((const NUM::word *)(p))
#define OUT(NUM, p) ((NUM::word *)(p))

/* ---- gates --------------------------------------------------------------------------------- */

template <class NUM>
OPS_DEVICE float dot(const typename NUM::word *a, const typename NUM::word *b, size_t n) {
    float sum = 0;
    for (size_t i = 0; i < n; i++) sum += ops_load_one(a + i, NUM()) * ops_load_one(b + i, NUM());
    return sum;
}

template <class NUM>
__global__ void logits_kernel(ops_route t, const typename NUM::word *x, const typename NUM::word *w,
                              size_t R, size_t C) {
    EACH(i, R * t.experts) {
        t.gates[i] = dot<NUM>(x + i / t.experts * C, w + i % t.experts * C, C);
    }
}

static __global__ void softmax_kernel(ops_route t, size_t R) {
    EACH(r, R) {
        float *x = t.gates + r * t.experts, most = x[0], sum = 0;
        for (size_t e = 1; e < t.experts; e++) most = x[e] > most ? x[e] : most;
        for (size_t e = 0; e < t.experts; e++) sum += x[e] = expf(x[e] - most);
        for (size_t e = 0; e < t.experts; e++) x[e] /= sum;
    }
}

void ops_gates(const ops_route *t, const void *x, const void *w, size_t R, size_t C) {
    if (!R) return;
#define USE(NUM) RUN(t, logits_kernel<NUM>, R * t->experts, *t, IN(NUM, x), IN(NUM, w), R, C)
    FOR_TYPE(t, USE);
#undef USE
    RUN(t, softmax_kernel, R, *t, R);
}

/* ---- routes -------------------------------------------------------------------------------- */

static __global__ void choices_kernel(ops_route t, size_t R) {
    EACH(r, R) {
        const float *gates = t.gates + r * t.experts;
        int first = -1;
        for (size_t j = 0; j < t.chosen; j++) {
            int most = -1;
            for (size_t e = 0; e < t.experts; e++)
                if ((int)e != first && (most < 0 || gates[e] > gates[most])) most = (int)e;
            t.choices[r * t.chosen + j] = most;
            first = most;
        }
    }
}

/* For each expert e: its slots, its share, and its sums: mean gate times share; dropped choices. */
static __global__ void slots_kernel(ops_route t, size_t R) {
    EACH(e, t.experts) {
        int taken = 0;
        double mean = 0;
        for (size_t s = e * t.capacity; s < (e + 1) * t.capacity; s++) t.rows[s] = -1;
        for (size_t j = 0; j < t.chosen; j++) {
            for (size_t at = j; at < R * t.chosen; at += t.chosen) {
                if (t.choices[at] != (int)e) continue;
                const size_t place = (size_t)taken++, slot = e * t.capacity + place;
                t.slots[at] = place < t.capacity ? (int)slot : -1;
                if (place < t.capacity) t.rows[slot] = (int)at;
            }
            if (j == 0) t.shares[e] = R ? (float)taken / (float)R : 0;
        }
        for (size_t r = 0; r < R; r++) mean += (double)t.gates[r * t.experts + e];
        const double over = (double)taken - (double)t.capacity;
        t.sums[2 * e] = R ? (double)t.shares[e] * mean * (double)t.experts / (double)R : 0;
        t.sums[2 * e + 1] = over > 0 ? over : 0;
    }
}

static __global__ void weights_kernel(ops_route t, size_t R) {
    EACH(r, R) {
        float sum = 0, *w = t.weights + r * t.chosen;
        for (size_t j = 0; j < t.chosen; j++) {
            const size_t at = r * t.chosen + j;
            sum += w[j] = t.slots[at] < 0 ? 0 : t.gates[r * t.experts + (size_t)t.choices[at]];
        }
        for (size_t j = 0; j < t.chosen && t.chosen > 1 && sum > 0; j++) w[j] /= sum;
    }
}

static __global__ void totals_kernel(ops_route t, double *totals) {
    EACH(i, 2) {
        double sum = 0;
        for (size_t e = 0; e < t.experts; e++) sum += t.sums[2 * e + i];
        totals[i] += sum;
    }
}

void ops_routes(const ops_route *t, double *totals, size_t R) {
    RUN(t, choices_kernel, R, *t, R);
    RUN(t, slots_kernel, t->experts, *t, R);
    RUN(t, weights_kernel, R, *t, R);
    if (totals) RUN(t, totals_kernel, 2, *t, totals);
}

/* ---- rows ---------------------------------------------------------------------------------- */

/* out gets the elements of the rows, times their weights if there are any, and zeros for empty
 * slots. */
template <class NUM>
__global__ void dispatch_kernel(ops_route t, typename NUM::word *out, const typename NUM::word *x,
                                int weighs, size_t C) {
    EACH(i, t.experts * t.capacity * C) {
        const int at = t.rows[i / C];
        float value = 0;
        if (at >= 0) value = ops_load_one(x + (size_t)at / t.chosen * C + i % C, NUM());
        if (at >= 0 && weighs) value *= t.weights[at];
        ops_store_one(out + i, value, NUM());
    }
}

void ops_dispatch(const ops_route *t, void *out, const void *x, size_t R, size_t C) {
    (void)R;
#define USE(NUM)                                                                                   \
    RUN(t, dispatch_kernel<NUM>, t->experts * t->capacity * C, *t, OUT(NUM, out), IN(NUM, x), 0, C)
    FOR_TYPE(t, USE);
#undef USE
}

template <class NUM>
__global__ void combine_kernel(ops_route t, typename NUM::word *out, const typename NUM::word *x,
                               const typename NUM::word *in, size_t R, size_t C) {
    EACH(i, R * C) {
        const size_t r = i / C;
        float sum = x ? ops_load_one(x + i, NUM()) : 0.0f;
        for (size_t at = r * t.chosen; at < (r + 1) * t.chosen; at++)
            if (t.slots[at] >= 0)
                sum += t.weights[at] * ops_load_one(in + (size_t)t.slots[at] * C + i % C, NUM());
        ops_store_one(out + i, sum, NUM());
    }
}

void ops_combine(const ops_route *t, void *out, const void *x, const void *in, size_t R, size_t C) {
#define USE(NUM) RUN(t, combine_kernel<NUM>, R *C, *t, OUT(NUM, out), IN(NUM, x), IN(NUM, in), R, C)
    FOR_TYPE(t, USE);
#undef USE
}

/* ---- backward ------------------------------------------------------------------------------ */

template <class NUM>
__global__ void dweights_kernel(ops_route t, float *dweights, const typename NUM::word *dout,
                                const typename NUM::word *in, size_t R, size_t C) {
    EACH(at, R * t.chosen) {
        const size_t slot = t.slots[at] < 0 ? 0 : (size_t)t.slots[at];
        dweights[at] = t.slots[at] < 0 ? 0 : dot<NUM>(dout + at / t.chosen * C, in + slot * C, C);
    }
}

void ops_combine_backward(const ops_route *t, void *din, float *dweights, const void *dout,
                          const void *in, size_t R, size_t C) {
#define USE(NUM)                                                                                   \
    RUN(t, dispatch_kernel<NUM>, t->experts * t->capacity * C, *t, OUT(NUM, din), IN(NUM, dout),   \
        1, C)
    FOR_TYPE(t, USE);
#undef USE
#define USE(NUM)                                                                                   \
    RUN(t, dweights_kernel<NUM>, R * t->chosen, *t, dweights, IN(NUM, dout), IN(NUM, in), R, C)
    FOR_TYPE(t, USE);
#undef USE
}

/* Returns the gradient of the gate of choice `at`, of row r, from those of the weights. */
OPS_DEVICE float gate_gradient(const ops_route &t, size_t r, size_t at, const float *dweights) {
    float sum = 0, all = 0;
    if (t.slots[at] < 0) return 0;
    if (t.chosen == 1) return dweights[at];
    for (size_t i = r * t.chosen; i < (r + 1) * t.chosen; i++) {
        sum += t.weights[i] * dweights[i];
        if (t.slots[i] >= 0) all += t.gates[r * t.experts + (size_t)t.choices[i]];
    }
    return all > 0 ? (dweights[at] - sum) / all : 0;
}

static __global__ void routes_backward_kernel(ops_route t, float *dlogits, const float *dweights,
                                              float aux, size_t R) {
    EACH(r, R) {
        const size_t E = t.experts;
        const float *g = t.gates + r * E;
        float *d = dlogits + r * E, sum = 0;
        for (size_t e = 0; e < E; e++) d[e] = aux * (float)E * t.shares[e] / (float)R;
        for (size_t at = r * t.chosen; at < (r + 1) * t.chosen; at++)
            d[t.choices[at]] += gate_gradient(t, r, at, dweights);
        for (size_t e = 0; e < E; e++) sum += g[e] * d[e];
        for (size_t e = 0; e < E; e++) d[e] = g[e] * (d[e] - sum);
    }
}

void ops_routes_backward(const ops_route *t, float *dlogits, const float *dweights, float aux,
                         size_t R) {
    RUN(t, routes_backward_kernel, R, *t, dlogits, dweights, aux, R);
}

template <class NUM>
__global__ void dispatch_backward_kernel(ops_route t, typename NUM::word *dx,
                                         const typename NUM::word *din, const float *dlogits,
                                         const typename NUM::word *w, size_t R, size_t C) {
    EACH(i, R * C) {
        const size_t r = i / C, c = i % C;
        float sum = 0;
        for (size_t at = r * t.chosen; at < (r + 1) * t.chosen; at++)
            if (t.slots[at] >= 0) sum += ops_load_one(din + (size_t)t.slots[at] * C + c, NUM());
        for (size_t e = 0; e < t.experts; e++)
            sum += dlogits[r * t.experts + e] * ops_load_one(w + e * C + c, NUM());
        ops_store_one(dx + i, sum, NUM());
    }
}

void ops_dispatch_backward(const ops_route *t, void *dx, const void *din, const float *dlogits,
                           const void *w, size_t R, size_t C) {
#define USE(NUM)                                                                                   \
    RUN(t, dispatch_backward_kernel<NUM>, R *C, *t, OUT(NUM, dx), IN(NUM, din), dlogits,           \
        IN(NUM, w), R, C)
    FOR_TYPE(t, USE);
#undef USE
}

template <class NUM>
__global__ void gates_dw_kernel(ops_route t, void *dw, const float *dlogits,
                                const typename NUM::word *x, size_t R, size_t C) {
    EACH(i, t.experts * C) {
        float sum = 0;
        for (size_t r = 0; r < R; r++)
            sum += dlogits[r * t.experts + i / C] * ops_load_one(x + r * C + i % C, NUM());
        ops_grad_add_one(dw, t.grad_type, i, sum);
    }
}

void ops_gates_dw(const ops_route *t, void *dw, const float *dlogits, const void *x, size_t R,
                  size_t C) {
#define USE(NUM) RUN(t, gates_dw_kernel<NUM>, t->experts *C, *t, dw, dlogits, IN(NUM, x), R, C)
    FOR_TYPE(t, USE);
#undef USE
}

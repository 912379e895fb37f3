/* ops_experts.h - the operations of a mixture of experts between its matrix products: gates,
   routes, and rows on their way to experts and back (ops_experts_cpu.c, ops_experts_cuda.cu).

   R rows of C channels, E experts, of which each row asks k (1 or 2). An expert has room for
   `capacity` of a rank's rows, its slots: slot e capacity + i is the i-th row of expert e. All
   first choices come before all second ones, rows in order; what finds no room is dropped: that
   expert adds nothing to the row. Numbers are of `type`, gradients of parameters of `grad_type`;
   gates are computed in f32. CUDA: enqueued on `stream`. Results depend on inputs alone. */
#ifndef GPT2_OPS_EXPERTS_H
#define GPT2_OPS_EXPERTS_H

#include <stddef.h>

#include "../../zero_plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { OPS_MOST_CHOSEN = 2, OPS_MOST_EXPERTS = 1024 };

typedef struct ops_route {
    zero_type type, grad_type;
    void *stream;                     /* CUDA */
    size_t experts, chosen, capacity; /* E, k */
    float *gates;                     /* (R, E) softmax of the logits */
    float *weights;                   /* (R, k) of the chosen experts; dropped: 0 */
    int *slots;                       /* (R, k) slots of a row's choices; -1: dropped */
    int *choices;                     /* (R, k) the experts */
    int *rows;                        /* (E capacity) r k + j of the row in each slot; -1: empty */
    float *shares;                    /* (E) share of the rows that have e as first choice */
    double *sums;                     /* (E, 2) CUDA: of each expert, for the totals */
} ops_route;

/* gates = softmax(x w'): x (R, C), w (E, C). */
void ops_gates(const ops_route *t, const void *x, const void *w, size_t R, size_t C);

/* Choices, slots, weights and shares from gates. One choice: its weight is its gate (Fedus et al.
   2022). Two: their gates over the sum of those that were not dropped (Lepikhin et al. 2021).
   totals (2), device memory, or NULL: [0] += E sum over e of shares[e] times the mean gate of e,
   the auxiliary loss; [1] += choices that were dropped. */
void ops_routes(const ops_route *t, double *totals, size_t R);

/* out (E capacity, C): the row of each slot; zeros for an empty slot. */
void ops_dispatch(const ops_route *t, void *out, const void *x, size_t R, size_t C);
/* out (R, C) = x + the sum over choices of weight times its row of in (E capacity, C). x NULL:
   without. */
void ops_combine(const ops_route *t, void *out, const void *x, const void *in, size_t R, size_t C);

/* Backwards through ops_combine: din (E capacity, C) is stored, dweights (R, k) as well. */
void ops_combine_backward(const ops_route *t, void *din, float *dweights, const void *dout,
                          const void *in, size_t R, size_t C);
/* Through ops_routes and the softmax: dlogits (R, E) is stored. aux: the auxiliary loss's factor.
 */
void ops_routes_backward(const ops_route *t, float *dlogits, const float *dweights, float aux,
                         size_t R);
/* dx (R, C) = the sum over choices of din's rows, (E capacity, C), + dlogits w. */
void ops_dispatch_backward(const ops_route *t, void *dx, const void *din, const float *dlogits,
                           const void *w, size_t R, size_t C);
/* dw (E, C) += dlogits' x. */
void ops_gates_dw(const ops_route *t, void *dw, const float *dlogits, const void *x, size_t R,
                  size_t C);

#ifdef __cplusplus
}
#endif
#endif

/* ops_experts.h - the operations of a mixture of experts except its matrix products: gates, routes,
   and the order of rows for the experts (ops_experts_cpu.c, ops_experts_cuda.cu).

   There are R rows of C channels and E experts, and each row chooses k of them (1 or 2). An expert
   has `capacity` slots for the rows of a rank: slot e capacity + i has the i-th row of expert e.
   Slots are assigned to all first choices, row by row, and then to the second ones. A choice
   without a slot is dropped: its expert adds nothing to the row. Numbers have `type`, and gradients
   of parameters `grad_type`. Gates are computed in f32. In CUDA operations enqueue on `stream`.
   Results depend on the inputs alone. */
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
    float *weights;                   /* (R, k) weights of the chosen experts; dropped: 0 */
    int *slots;                       /* (R, k) slots of the choices; -1: dropped */
    int *choices;                     /* (R, k) the chosen experts */
    int *rows;     /* (E capacity) r k + j: the slot has choice j of row r; -1: empty */
    float *shares; /* (E) share of the rows that choose expert e first */
    double *sums;  /* (E, 2) CUDA: what each expert adds to the totals */
} ops_route;

/* gates = softmax(x w'): x (R, C), w (E, C). */
void ops_gates(const ops_route *t, const void *x, const void *w, size_t R, size_t C);

/* Computes choices, slots, weights and shares from the gates. The weight of a single choice is its
   gate (Fedus et al. 2022). The weights of two choices are their gates over the sum of those that
   were not dropped (Lepikhin et al. 2021). totals (2) is device memory, or NULL. totals[0] += the
   auxiliary loss, E times the sum over e of shares[e] times the mean gate of e. totals[1] += the
   number of dropped choices. */
void ops_routes(const ops_route *t, double *totals, size_t R);

/* out (E capacity, C) gets the row of each slot, and zeros for an empty slot. */
void ops_dispatch(const ops_route *t, void *out, const void *x, size_t R, size_t C);
/* out (R, C) = x + the sum over choices of the weight times the choice's row of in (E capacity, C).
   If x is NULL, out is the sum alone. */
void ops_combine(const ops_route *t, void *out, const void *x, const void *in, size_t R, size_t C);

/* Backward of ops_combine. Stores din (E capacity, C) and dweights (R, k). */
void ops_combine_backward(const ops_route *t, void *din, float *dweights, const void *dout,
                          const void *in, size_t R, size_t C);
/* Backward of ops_routes and of the softmax. Stores dlogits (R, E). aux: factor of the auxiliary
 * loss.
 */
void ops_routes_backward(const ops_route *t, float *dlogits, const float *dweights, float aux,
                         size_t R);
/* dx (R, C) = the sum over choices of their rows of din (E capacity, C), + dlogits w. */
void ops_dispatch_backward(const ops_route *t, void *dx, const void *din, const float *dlogits,
                           const void *w, size_t R, size_t C);
/* dw (E, C) += dlogits' x. */
void ops_gates_dw(const ops_route *t, void *dw, const float *dlogits, const void *x, size_t R,
                  size_t C);

#ifdef __cplusplus
}
#endif
#endif

/* tensor_parallel.h - GPT-2 divided over the ranks of a group: the part of each tensor that a rank
   has, and the communication within a layer (Shoeybi et al. 2019; sequence parallelism: Korthikanti
   et al. 2022).

   SLICES. A rank has the same part of every layer of a tensor: rows first .. first + count of dim
   of its dense form [outer][dim][inner]. The slice keeps the dense order:
     wte, lmheadw       rows of the padded vocabulary
     qkvw, qkvb         heads, of each of q, k and v
     fcw, fcb           rows, which are the hidden channels
     attprojw, fcprojw  columns, which are their inputs
     adapters           B of qkvw and fcw, A of attprojw and fcprojw, as their matrices
   Every rank has all other tensors whole.

   COMMUNICATION. A block has two column-parallel layers with a divided output, each followed by
   a row-parallel one. Its outputs are summed over all ranks. Forward gathers before a pair and
   sums after it; backward sums before and gathers after. Without sequence parallelism activations
   between the pairs are whole, so gathering does nothing and summing is an all-reduce. With it each
   rank has R / size of the R rows: gathering is an all-gather, summing a reduce-scatter with as
   many bytes in total. Buffers have all R rows; a rank's rows keep their position.

   ERRORS are sticky, as in ops.h: after an error nothing is sent, and `result` has it. */
#ifndef GPT2_TENSOR_PARALLEL_H
#define GPT2_TENSOR_PARALLEL_H

#include <stddef.h>
#include <stdint.h>

#include "gpt2.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- communication ------------------------------------------------------------------------- */

typedef struct tensor_parallel {
    zero_group *group; /* borrowed; NULL: one rank */
    size_t rank, size;
    int sequence; /* 1: the ranks divide the rows between layers */
    zero_type type;
    size_t bytes; /* bytes of one activation value */
    zero_result result;
} tensor_parallel;

/* `how` NULL: a single rank. */
void tensor_parallel_open(tensor_parallel *p, const gpt2_parallel *how, zero_type type);

/* Return the number of the R rows that this rank has between layers, and the first of them. */
size_t tensor_parallel_rows(const tensor_parallel *p, size_t R);
size_t tensor_parallel_first(const tensor_parallel *p, size_t R);

/* all (R, C): before the call it has this rank's rows, and after it all rows. */
void tensor_parallel_gather(tensor_parallel *p, void *all, size_t R, size_t C);
/* Sums all (R, C) over the ranks. After the call this rank's rows are the sums. With sequence
   parallelism they are in `mine` (rows, C), which may be their place in `all`. Without it `mine` is
   ignored. */
void tensor_parallel_sum(tensor_parallel *p, void *all, void *mine, size_t R, size_t C);
/* Reduces n floats over all ranks, in place. */
void tensor_parallel_reduce(tensor_parallel *p, float *values, size_t n, zero_reduction how);
/* all [size][n], of the type: before the call it has this rank's part, and after it all parts. */
void tensor_parallel_join(tensor_parallel *p, void *all, size_t n);

/* ---- slices -------------------------------------------------------------------------------- */

typedef struct tensor_slice {
    size_t outer, dim, inner; /* of a layer of the dense tensor */
    size_t first, count;      /* of dim */
} tensor_slice;

/* Returns the slice of tensor number `tensor` of the table for rank `rank` of `size`. */
tensor_slice tensor_slice_of(const gpt2_config *cfg, int tensor, int rank, int size);
int tensor_slice_is_whole(const tensor_slice *s);
/* Returns the number of elements per layer in the slice. */
size_t tensor_slice_numel(const tensor_slice *s);
/* Returns how many of the dense tensor's first i elements, over all layers, are in the slice. */
size_t tensor_slice_before(const tensor_slice *s, size_t i);
/* Moves the slice's elements among dense elements [first, first + n) at `values` to the front.
   Returns how many; *at: index in the slice of the first of them. */
size_t tensor_slice_take(const tensor_slice *s, float *values, size_t first, size_t n, size_t *at);
/* The inverse: `part` has the slice's elements among dense elements [first, first + n). They go to
   their positions at `values`; other values do not change. */
void tensor_slice_put(const tensor_slice *s, float *values, size_t first, size_t n,
                      const float *part);

/* The position in the whole model of an element of this rank's tensor, over its layers. The dense
   tensor has `total` elements in rows of `row`; each of `parts` has an equal slice of a row.
   `first` counts within the part, over all layers. `owner`: this is the first rank that has it. n
   elements are consecutive in both. Returns the number of the tensor, or -1 for an unknown name.
   (Experts of a layer are slices of a row of all experts.) */
typedef struct gpt2_place {
    size_t total, row, first, n;
    int parts, part, owner;
} gpt2_place;
int gpt2_place_of(const gpt2_config *cfg, const gpt2_parallel *how, const char *name, size_t at,
                  gpt2_place *out);

#ifdef __cplusplus
}
#endif
#endif

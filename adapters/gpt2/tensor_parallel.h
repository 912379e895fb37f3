/* tensor_parallel.h - GPT-2 cut over the ranks of a group: which part of each tensor a rank has,
   and where the parts of a layer meet (Shoeybi et al. 2019; sequence parallelism: Korthikanti et
   al. 2022).

   SLICES. A rank has the same part of every layer of a tensor: of its dense form
   [outer][dim][inner] rows first .. first + count of dim. Dense order is the slice's order, so that
   a run of elements of the dense tensor is one run of the slice: wte, lmheadw  rows of the padded
   vocabulary     qkvw, qkvb  heads, of each of q, k and v fcw, fcb      rows, the hidden channels
   attprojw, fcprojw  columns: what they take all else is whole on every rank

   WHERE PARTS MEET. A block is two pairs of layers, each a column-parallel one, whose output is
   cut, and a row-parallel one, whose outputs of all ranks add up: forward backward in front
   tensor_parallel_gather           tensor_parallel_sum behind           tensor_parallel_sum
   tensor_parallel_gather Without sequence parallelism activations between the pairs are whole on
   every rank: gathering is nothing, and summing one all-reduce. With it each rank has R / size of
   the R rows there, in order: gathering is an all-gather, summing a reduce-scatter, together as
   many bytes, and norms and residuals take 1/size of time and memory. Buffers are whole either way;
   a rank's rows lie where they lie among all.

   ERRORS are sticky, as those of ops.h: after one nothing is sent, and `result` has it. */
#ifndef GPT2_TENSOR_PARALLEL_H
#define GPT2_TENSOR_PARALLEL_H

#include <stddef.h>
#include <stdint.h>

#include "gpt2.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- where parts meet ---------------------------------------------------------------------- */

typedef struct tensor_parallel {
    zero_group *group; /* borrowed; NULL: one rank */
    size_t rank, size;
    int sequence; /* rows between layers are cut */
    zero_type type;
    size_t bytes; /* of an activation */
    zero_result result;
} tensor_parallel;

/* `how` NULL: one rank. */
void tensor_parallel_open(tensor_parallel *p, const gpt2_parallel *how, zero_type type);

/* Rows of R that lie on this rank between layers, and the first of them. */
size_t tensor_parallel_rows(const tensor_parallel *p, size_t R);
size_t tensor_parallel_first(const tensor_parallel *p, size_t R);

/* all (R, C): this rank's rows in, all rows out. */
void tensor_parallel_gather(tensor_parallel *p, void *all, size_t R, size_t C);
/* all (R, C): a part of each sum in; out: this rank's rows are the sums over all ranks. With
   sequence parallelism to `mine` (rows, C), which may be where they lie in `all`; without it
   `mine` is not looked at. */
void tensor_parallel_sum(tensor_parallel *p, void *all, void *mine, size_t R, size_t C);
/* n floats in place, over all ranks. */
void tensor_parallel_reduce(tensor_parallel *p, float *values, size_t n, zero_reduction how);
/* all [size][n] numbers of the type: this rank's part in, all out. */
void tensor_parallel_join(tensor_parallel *p, void *all, size_t n);

/* ---- slices -------------------------------------------------------------------------------- */

typedef struct tensor_slice {
    size_t outer, dim, inner; /* of a layer of the dense tensor */
    size_t first, count;      /* of dim */
} tensor_slice;

/* Of tensor number `tensor` of the table, for rank `rank` of `size`. */
tensor_slice tensor_slice_of(const gpt2_config *cfg, int tensor, int rank, int size);
int tensor_slice_is_whole(const tensor_slice *s);
/* Elements of a layer that the slice has. */
size_t tensor_slice_numel(const tensor_slice *s);
/* How many of the dense tensor's first i elements, over all layers, the slice has. */
size_t tensor_slice_before(const tensor_slice *s, size_t i);
/* From dense elements [first, first + n) at `values` those of the slice, moved to the front.
   Returns how many; *at: the first one's place in the slice. */
size_t tensor_slice_take(const tensor_slice *s, float *values, size_t first, size_t n, size_t *at);
/* The way back: `part` has the slice's of dense elements [first, first + n), which go to their
   places at `values`; others are left alone. */
void tensor_slice_put(const tensor_slice *s, float *values, size_t first, size_t n,
                      const float *part);

/* Where an element of this rank's tensor, over its layers, is in the whole model: the dense tensor,
   of `total` elements, is rows of `row`, of which each of `parts` has an equal slice, and `first`
   counts within the part, over all layers. `owner`: of the ranks that have it this one is the
   first. n elements follow one another in both. -> number of the tensor, -1: none has this name.
   (Experts of a layer are slices of a row of them all.) */
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

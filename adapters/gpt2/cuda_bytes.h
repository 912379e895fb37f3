/* cuda_bytes.h - bytes that the CUDA operations take, from shapes alone.

   WHY A ROOM. Plain C, so that a machine without CUDA can plan for one that has it: these are the
   sizes that ops_cuda.cu and attention_cuda.cu allocate, and no others.
*/
#ifndef GPT2_CUDA_BYTES_H
#define GPT2_CUDA_BYTES_H

#include "ops.h"

enum {
    PRODUCT_WORKSPACE = 32 << 20, /* bytes; what cuBLASLt likes to have on sm_90 */
    SEGMENT_ROWS = 64, /* rows of one token that one block adds up. Long lists are cut: else the
                          rows of "the" would keep one block busy when all others are done */
    COLUMN_LANES = 32, /* passes over columns */
    COLUMN_ROWS = 8,
    COLUMN_BLOCKS = 1024,
    NORM_PARTS = 384, /* backward of norms */
    NORM_THREADS = 1024,
    NORM_MOST = 4, /* largest K */
    CUDA_PARTS = 4 /* of the scratch memory: workspace, partial sums, segments, lists */
};

/* All logits of a batch, as long as they are no more than this. */
static inline size_t cuda_logits_budget(void) { return (size_t)2 << 30; }

/* What a segment's list holds at most, for R rows; see sort_tokens of ops_cuda.cu. */
static inline size_t most_slots(size_t R) { return 2 * (R / SEGMENT_ROWS) + 1; }
static inline size_t most_longs(size_t R) { return R / SEGMENT_ROWS + 1; }
/* Integers of a batch's lists: order, start, slot, longs. */
static inline size_t list_ints(size_t R) { return R + (R + 1) + R + 3 * most_longs(R); }

/* Bytes of a block: four sums of columns, and two of norms, which have 2C columns. */
static inline size_t partial_floats(const ops_limits *l) {
    const size_t columns = (size_t)COLUMN_BLOCKS * COLUMN_LANES * 8 + l->width;
    return (size_t)NORM_PARTS * l->width + 4 * columns;
}

/* The parts, each a multiple of 256 bytes; returns their sum. */
static inline size_t cuda_parts(const ops_limits *l, size_t part[CUDA_PARTS]) {
    const size_t bytes[CUDA_PARTS] = {PRODUCT_WORKSPACE, partial_floats(l) * sizeof(float),
                                      most_slots(l->rows) * (l->width / 2 + 1) * sizeof(float),
                                      list_ints(l->rows) * sizeof(int)};
    size_t sum = 0;
    for (int i = 0; i < CUDA_PARTS; i++) sum += part[i] = (bytes[i] + 255) / 256 * 256;
    return sum;
}

/* Of attention's backward: a number per row and head. */
static inline size_t cuda_delta_bytes(size_t batch, size_t heads, size_t seq_len) {
    return batch * heads * seq_len * sizeof(float);
}

/* What ops_scratch_bytes is in CUDA (attention that adds in a fixed order). */
static inline size_t cuda_scratch_bytes(const ops_limits *l) {
    size_t part[CUDA_PARTS];
    return cuda_parts(l, part) + cuda_delta_bytes(l->batch, l->heads, l->seq_len);
}

#endif

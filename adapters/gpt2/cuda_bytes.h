/* cuda_bytes.h - computes the bytes that the CUDA operations allocate, from shapes alone.

   It is plain C, so that a machine without CUDA can plan for one with CUDA. ops_cuda.cu and
   attention_cuda.cu allocate these sizes, and nothing else. */
#ifndef GPT2_CUDA_BYTES_H
#define GPT2_CUDA_BYTES_H

#include "ops.h"

enum {
    PRODUCT_WORKSPACE = 32 << 20, /* bytes; cuBLASLt recommends them for sm_90 */
    SEGMENT_ROWS = 64, /* rows of one token that one block adds up. Longer lists are cut; otherwise
                          a frequent token would keep one block busy after all others have ended */
    COLUMN_LANES = 32, /* threads next to each other in a pass over columns */
    COLUMN_ROWS = 8,
    COLUMN_BLOCKS = 1024,
    NORM_PARTS = 384, /* the most blocks of the backward of a norm */
    NORM_HELD = 1024, /* its threads on a multiprocessor, with 64 registers each */
    NORM_THREADS = 1024,
    NORM_MOST = 4, /* largest K */
    CUDA_PARTS = 4 /* parts of the scratch memory: workspace, partial sums, segments, lists */
};

/* Returns the most bytes of logits at once. */
static inline size_t cuda_logits_budget(void) { return (size_t)2 << 30; }

/* Returns the most slots, for R rows; see sort_tokens of ops_cuda.cu. */
static inline size_t most_slots(size_t R) { return 2 * (R / SEGMENT_ROWS) + 1; }
static inline size_t most_longs(size_t R) { return R / SEGMENT_ROWS + 1; }
/* Returns the integers in the lists of a batch: order, start, slot, longs. */
static inline size_t list_ints(size_t R) { return R + (R + 1) + R + 3 * most_longs(R); }

/* Returns the floats of a block's partial sums: four sums of columns, and two of norms, which have
   2C columns. */
static inline size_t partial_floats(const ops_limits *l) {
    const size_t columns = (size_t)COLUMN_BLOCKS * COLUMN_LANES * 8 + l->width;
    return (size_t)NORM_PARTS * l->width + 4 * columns;
}

/* Computes the bytes of each part, a multiple of 256. Returns their sum. */
static inline size_t cuda_parts(const ops_limits *l, size_t part[CUDA_PARTS]) {
    const size_t bytes[CUDA_PARTS] = {PRODUCT_WORKSPACE, partial_floats(l) * sizeof(float),
                                      most_slots(l->rows) * (l->width / 2 + 1) * sizeof(float),
                                      list_ints(l->rows) * sizeof(int)};
    size_t sum = 0;
    for (int i = 0; i < CUDA_PARTS; i++) sum += part[i] = (bytes[i] + 255) / 256 * 256;
    return sum;
}

/* Returns the bytes of delta in attention's backward: a float for each row and head. */
static inline size_t cuda_delta_bytes(size_t batch, size_t heads, size_t seq_len) {
    return batch * heads * seq_len * sizeof(float);
}

/* CUDNN'S WORKSPACE FOR ATTENTION. Backward in a fixed order keeps the gradients of the scores: for
   each head (T, T) numbers of 16 bits, with T rounded up to tiles. That would be 805 MB for GPT-2
   124M at B 32, T 1024, and 3.4 GB for 1558M at B 4, T 4096. So backward runs in pieces. A piece
   has as many sequences, or heads of one sequence, as fit in ATTENTION_WORKSPACE bytes.

   The trainer's plan asks cuDNN itself: attention_scratch_bytes. These formulas are for machines
   without a GPU, where cuDNN proposes no kernel. They are the sizes that cuDNN 9.19 requests, byte
   for byte (tests/cuda/test_cudnn.c). `major` is the GPU's compute capability: 9 is Hopper. */
enum { ATTENTION_WORKSPACE = 512 << 20, HOPPER = 9, BLACKWELL = 10 };

typedef struct cuda_pieces { /* the number of pieces of a call. Either one of the two is 1, or each
                                sequence is a piece */
    size_t batch, heads;
} cuda_pieces;

static inline size_t cuda_round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }
/* Returns the bytes of other parts of the workspace. */
static inline size_t cuda_other_bytes(int major) { return major == HOPPER ? 256 : 128; }
static inline size_t cuda_head_bytes(size_t seq_len, int major) {
    return cuda_round_up(seq_len, 64) * cuda_round_up(seq_len, major == HOPPER ? 128 : 64) * 2;
}
/* Every GPU cuts as Hopper does, whose heads have the most bytes. */
static inline cuda_pieces cuda_cut(size_t batch, size_t heads, size_t seq_len, size_t most_bytes) {
    const size_t fit = most_bytes / cuda_head_bytes(seq_len, HOPPER), at_once = fit ? fit : 1;
    const size_t sequences = at_once / heads ? at_once / heads : 1;
    const cuda_pieces cut = {(batch + sequences - 1) / sequences,
                             at_once < heads ? (heads + at_once - 1) / at_once : 1};
    return cut;
}
/* Returns the workspace of the largest piece. */
static inline size_t cuda_piece_bytes(size_t batch, size_t heads, size_t seq_len, size_t most_bytes,
                                      int major) {
    const cuda_pieces cut = cuda_cut(batch, heads, seq_len, most_bytes);
    const size_t b = (batch + cut.batch - 1) / cut.batch, h = (heads + cut.heads - 1) / cut.heads;
    return b * h * cuda_head_bytes(seq_len, major) + cuda_other_bytes(major);
}
/* Returns the workspace of backward in any order. Hopper sums dQ in the caller's array, other GPUs
   in the workspace. Blackwell needs none for more than 128 tokens. */
static inline size_t cuda_any_order_bytes(const ops_limits *l, int major) {
    const size_t sum =
        cuda_delta_bytes(l->batch, l->heads, cuda_round_up(l->seq_len, 8)) * l->head_size;
    if (major == BLACKWELL && l->seq_len > 128) return 0;
    return (major == HOPPER ? 0 : sum) + cuda_other_bytes(major);
}

/* Returns whether cuDNN has kernels for both directions: for 16 bits, heads of a multiple of 8
   channels, and 128 channels at most, on Hopper 256; and if pieces begin at multiples of 16 bytes
   in numbers per row. With a ring, which has seq_len 0, the own kernels run. */
static inline int cuda_has_attention(const ops_limits *l, const ops_settings *settings, int major) {
    const size_t most = major == HOPPER ? 256 : 128;
    if (settings->type == ZERO_F32 || !l->heads || !l->seq_len || l->head_size % 8
        || l->head_size > most || major < 8)
        return 0;
    if (settings->any_order || l->seq_len % 4 == 0) return 1;
    const cuda_pieces cut = cuda_cut(l->batch, l->heads, l->seq_len, ATTENTION_WORKSPACE);
    return cut.batch * cut.heads == 1;
}

/* Returns the bytes of cuDNN's attention on a GPU of compute capability `major`: the workspace,
   and, with any_order, the caller's f32 array for sums of dQ. Returns 0 if cuDNN has no kernels. */
static inline size_t cuda_attention_bytes(const ops_limits *l, const ops_settings *settings,
                                          int major) {
    if (!cuda_has_attention(l, settings, major)) return 0;
    if (!settings->any_order)
        return cuda_piece_bytes(l->batch, l->heads, l->seq_len, ATTENTION_WORKSPACE, major);
    return cuda_any_order_bytes(l, major)
           + cuda_delta_bytes(l->batch, l->heads, l->seq_len) * l->head_size;
}

/* Returns ops_scratch_bytes in CUDA with cuDNN, on a GPU of compute capability `major`. */
static inline size_t cuda_scratch_bytes(const ops_limits *l, const ops_settings *settings,
                                        int major) {
    size_t part[CUDA_PARTS];
    return cuda_parts(l, part) + cuda_delta_bytes(l->batch, l->heads, l->seq_len)
           + cuda_attention_bytes(l, settings, major);
}

#endif

/* attention_cuda.h - causal self-attention on CUDA, forward and backward, without a (T, T) matrix
   in memory. It uses cuDNN's flash attention (attention_cudnn.c) if the build has it
   (-DGPT2_WITH_CUDNN) and it supports the case, otherwise the kernels of attention_cuda.cu.

   Shapes: B sequences of T tokens, NH heads of HS channels, C = NH * HS. All arrays are stored by
   rows without gaps, in device memory aligned to 16 bytes. qkv is the output of the linear layer
   WITH its bias. Numbers have the context's type; lse is f32. The kernels compute in f32 (cuDNN
   rounds the operands of tensor cores to the type), and round each stored number once.

   Calls only enqueue on the given stream, and do not read from the device. The first call with a
   shape may allocate; later ones do not. One context belongs to one CPU thread, and to the device
   that was current when it was created. */
#ifndef GPT2_ATTENTION_CUDA_H
#define GPT2_ATTENTION_CUDA_H

#include <stddef.h>

#include "ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct attention attention;

typedef struct attention_shape {
    size_t batch;     /* B; 0: the call does nothing */
    size_t seq_len;   /* T, 1 or more; of `largest` 0: only attention_pair functions are called */
    size_t heads;     /* NH */
    size_t head_size; /* HS, 1..256; 64 and 128 are the fast ones */
} attention_shape;

/* Calls may have a smaller batch and seq_len than `largest`; heads and head_size are those of
   `largest`. stream: a cudaStream_t, NULL for CUDA's default stream; borrowed until
   attention_destroy. deterministic: equal input gives equal bits. The own kernels always do this;
   of cuDNN's kernels the context uses only those that promise it.
   Errors: ARGUMENT (head_size, zeros), MEMORY, DEVICE. After an error attention_error(*a) has the
   sentence, and the caller destroys *a. *a is NULL if there is no memory at all. */
zero_result attention_create(attention **a, const attention_shape *largest, zero_type type,
                             void *stream, int deterministic);
void attention_destroy(attention *a); /* NULL is allowed; waits for the stream */

/* The process keeps cuDNN's plans of destroyed contexts, because later contexts with the same shape
   need them, and cuDNN compiles each for up to a second. This frees them. */
void attention_forget(void);

/* Returns the bytes of device memory that attention_create will allocate on the current device. It
   asks cuDNN, which takes up to seconds for the first question about a shape; attention_create then
   takes less. Of these bytes attention_create does without attention_spare_bytes, if the device has
   no more: backward then runs in more and smaller pieces, with the same bits. attention_bytes
   returns the bytes that a context has allocated. */
size_t attention_scratch_bytes(const attention_shape *largest, zero_type type, int deterministic);
size_t attention_spare_bytes(const attention_shape *largest, zero_type type, int deterministic);
size_t attention_bytes(const attention *a);

/* Returns which kernels run for `largest`, and why, for example "cuDNN 9.19 flash attention" or
   "own kernel (f32 tiles): head size 20 is no multiple of 8"; and into how many pieces backward is
   cut. The text is owned by a. */
const char *attention_path(const attention *a);

/* From now on the own kernels run for every shape, so that a test can compare them with cuDNN. */
void attention_use_own(attention *a);

/* Returns the sentence of the first error, or "". It is owned by a. a may be NULL: no memory. */
const char *attention_error(const attention *a);

/* out = softmax(mask(q k^T / sqrt(HS))) v, per head (Vaswani et al. 2017, equation 1). Token t sees
   tokens 0..t. Errors: ARGUMENT (larger than `largest`), MEMORY (workspace of a new shape), DEVICE.
 */
zero_result attention_forward(attention *a, void *out, /* (B, T, NH, HS) */
                              float *lse, /* (B, NH, T): natural log of the sum of exponentials */
                              const void *qkv, /* (B, T, 3, NH, HS) */
                              const attention_shape *shape);

/* Stores dqkv (B, T, 3, NH, HS), the gradient of qkv, from dout, the gradient of out (Dao et al.
   2022, appendix B.2). out and lse are the results of attention_forward. */
zero_result attention_backward(attention *a, void *dqkv, const void *dout, const void *out,
                               const float *lse, const void *qkv, const attention_shape *shape);

/* ATTENTION PIECE BY PIECE, as ops.h describes it: adds the keys of a pair to the sums of its
   queries; computes delta; adds the part of a pair to dq and dkv. The own kernels run, in f32 sums,
   because cuDNN stores each pair's output rounded to the type. A seq_len of any length is allowed,
   without memory of the context. Errors: ARGUMENT, DEVICE. */
zero_result attention_pair(attention *a, const ops_partial *state, const void *qkv, const void *kv,
                           const ops_pair *pair, const attention_shape *shape);
zero_result attention_delta(attention *a, const ops_slopes *slopes, const void *out,
                            const attention_shape *shape);
zero_result attention_pair_backward(attention *a, const ops_slopes *slopes, const ops_pair *pair,
                                    const attention_shape *shape);

#ifdef __cplusplus
}
#endif
#endif

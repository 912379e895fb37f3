/* attention_cuda.h - causal self-attention on CUDA, forward and backward, without a (T, T) matrix
   in memory: cuDNN's flash attention where it was compiled in (-DGPT2_WITH_CUDNN,
   attention_cudnn.c) and takes the case, else the kernels of attention_cuda.cu.

   Shapes: B sequences of T tokens, NH heads of HS channels, C = NH * HS; all row by row without
   gaps, in device memory aligned to 16 bytes. qkv is the output of the linear layer WITH its bias.
   Numbers are of the context's type; lse is f32. All is computed in f32 (cuDNN rounds what it
   multiplies on tensor cores to the type), and stored numbers are rounded once.

   Calls only enqueue on the stream that was given, allocate nothing once a shape has been met, and
   do not read from the device. One context belongs to one host thread and to the device that was
   current when it was made. */
#ifndef GPT2_ATTENTION_CUDA_H
#define GPT2_ATTENTION_CUDA_H

#include <stddef.h>

#include "../../zero_plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct attention attention;

typedef struct attention_shape {
    size_t batch;     /* B; 0: nothing is done */
    size_t seq_len;   /* T, 1 or more */
    size_t heads;     /* NH */
    size_t head_size; /* HS, 1..256; 64 and 128 are the fast ones */
} attention_shape;

/* Calls may have a smaller batch and seq_len than `largest`; heads and head_size are those of
   `largest`. stream: a cudaStream_t, NULL for CUDA's default stream; borrowed until
   attention_destroy. deterministic: the same bits each time from the same input (the own kernels
   always give that; of cuDNN's only those that promise it are taken).
   Errors: ARGUMENT (head_size, zeros), MEMORY, DEVICE. After an error *a is to be asked for its
   sentence and destroyed; it is NULL if there is no memory at all. */
zero_result attention_create(attention **a, const attention_shape *largest, zero_type type,
                             void *stream, int deterministic);
void attention_destroy(attention *a); /* NULL is allowed; waits for the stream */

/* The process keeps cuDNN's plans of destroyed contexts, because later contexts with the same shape
   need them, and cuDNN compiles each for up to a second. This frees them. */
void attention_forget(void);

/* Bytes of device memory that attention_create will take on the current device. Only another
   release of cuDNN, or a device that has too little memory for a workspace, changes that.
   attention_bytes returns the bytes afterwards. */
size_t attention_scratch_bytes(const attention_shape *largest, zero_type type, int deterministic);
size_t attention_bytes(const attention *a);

/* What runs for `largest`, and why, as "cuDNN 9.19 flash attention" or "own kernel (f32 tiles):
   head size 20 is no multiple of 8"; owned by a. */
const char *attention_path(const attention *a);

/* From now on the own kernels run whatever the shape: to compare with cuDNN. */
void attention_use_own(attention *a);

/* The first error, or "". Owned by a; NULL is allowed (no memory). */
const char *attention_error(const attention *a);

/* out = softmax(mask(q k^T / sqrt(HS))) v, per head (Vaswani et al. 2017, equation 1); token t sees
   tokens 0..t. Errors: ARGUMENT (larger than `largest`), MEMORY (a new shape's workspace), DEVICE.
 */
zero_result attention_forward(attention *a, void *out, /* (B, T, NH, HS) */
                              float *lse, /* (B, NH, T): natural log of the sum of exponentials */
                              const void *qkv, /* (B, T, 3, NH, HS) */
                              const attention_shape *shape);

/* dqkv (B, T, 3, NH, HS) is stored: the gradient of qkv from that of out (Dao et al. 2022,
   appendix B.2). out and lse are those of attention_forward. */
zero_result attention_backward(attention *a, void *dqkv, const void *dout, const void *out,
                               const float *lse, const void *qkv, const attention_shape *shape);

#ifdef __cplusplus
}
#endif
#endif

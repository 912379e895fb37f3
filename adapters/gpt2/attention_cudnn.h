/* attention_cudnn.h - what attention_cuda.cu asks of cuDNN: causal self-attention on packed q, k, v
   in 16 bit, as operation graphs of cuDNN's backend API (9.0 or later). Allocates no device memory.

   Shapes as in attention_cuda.h. Plans are made for one shape and direction each, which may take
   seconds (cuDNN compiles kernels), and run on the stream of the context. The process keeps
   contexts that were destroyed, with their plans: the next context of the same GPU, type and
   determinism takes them over. Contexts may be created and destroyed by several threads at once. */
#ifndef GPT2_ATTENTION_CUDNN_H
#define GPT2_ATTENTION_CUDNN_H

#include "attention_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct attention_cudnn attention_cudnn;
typedef struct attention_plan attention_plan;

/* Device memory of a call; forward uses the first three and workspace. */
typedef struct attention_tensors {
    void *qkv;      /* (B, T, 3, NH, HS) */
    void *out;      /* (B, T, NH, HS) */
    float *lse;     /* (B, NH, T) */
    void *dout;     /* as out */
    void *dqkv;     /* as qkv */
    float *row_sum; /* (B, NH, T): written, of no use to the caller */
    float *dq_sum;  /* (B, NH, T, HS): the same; zeros on entry for cuDNN before 9.6 */
    void *workspace;
} attention_tensors;

/* gpu: the number of the current device; type: BF16 or F16. Errors: MEMORY (*c may be NULL), DEVICE
   (*c has the sentence). */
zero_result attention_cudnn_create(attention_cudnn **c, int gpu, zero_type type, void *stream,
                                   int deterministic);
void attention_cudnn_destroy(attention_cudnn *c);            /* its work is over; NULL is allowed */
void attention_cudnn_forget(void);                           /* frees what the process keeps */
const char *attention_cudnn_error(const attention_cudnn *c); /* the last one; NULL is allowed */
size_t attention_cudnn_version(void);                        /* 91900 for 9.19.0 */

/* The plan for a direction and a shape, which belongs to the context. shape->heads may be some of
   the row_heads heads that a sequence has: a call's pointers are then those of the first of them.
   The second call for a shape costs nothing. Errors: UNSUPPORTED (cuDNN has no plan for this shape
   on this device), MEMORY, DEVICE; *p is NULL then. */
zero_result attention_cudnn_plan(attention_cudnn *c, const attention_shape *shape, size_t row_heads,
                                 int backward, attention_plan **p);
size_t attention_cudnn_workspace_bytes(const attention_plan *p);

/* Enqueues. Errors: DEVICE. */
zero_result attention_cudnn_run(attention_cudnn *c, attention_plan *p, const attention_tensors *t);

#ifdef __cplusplus
}
#endif
#endif

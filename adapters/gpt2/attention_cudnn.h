/* attention_cudnn.h - attention by cuDNN, for attention_cuda.cu: causal self-attention on packed q,
   k and v in 16 bits, as operation graphs of cuDNN's backend API (9.0 or later). It allocates no
   device memory.

   Shapes are those of attention_cuda.h. A plan is for one shape and one direction. Making a plan
   may take seconds, because cuDNN compiles kernels. Plans run on the stream of the context. The
   process keeps destroyed contexts with their plans, and the next context of the same GPU, type and
   determinism uses them again. Several threads may create and destroy contexts at the same time. */
#ifndef GPT2_ATTENTION_CUDNN_H
#define GPT2_ATTENTION_CUDNN_H

#include "attention_cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct attention_cudnn attention_cudnn;
typedef struct attention_plan attention_plan;

/* The device memory of a call. Forward uses the first three arrays and the workspace. */
typedef struct attention_tensors {
    void *qkv;      /* (B, T, 3, NH, HS) */
    void *out;      /* (B, T, NH, HS) */
    float *lse;     /* (B, NH, T) */
    void *dout;     /* as out */
    void *dqkv;     /* as qkv */
    float *row_sum; /* (B, NH, T): temporary; its contents are of no use to the caller */
    float *dq_sum;  /* (B, NH, T, HS): the same; for cuDNN before 9.6 the caller clears it first */
    void *workspace;
} attention_tensors;

/* gpu: the number of the current device; type: BF16 or F16. Errors: MEMORY (*c may be NULL), DEVICE
   (*c has the sentence). */
zero_result attention_cudnn_create(attention_cudnn **c, int gpu, zero_type type, void *stream,
                                   int deterministic);
void attention_cudnn_destroy(attention_cudnn *c); /* after its work has ended; NULL is allowed */
void attention_cudnn_forget(void);                /* frees what the process keeps */
const char *attention_cudnn_error(
    const attention_cudnn *c);        /* of the last error; NULL is allowed */
size_t attention_cudnn_version(void); /* 91900 for 9.19.0 */

/* Finds or makes the plan for a direction and a shape. The context owns it. shape->heads may be
   fewer than the row_heads heads of a sequence; the pointers of a call are then those of the first
   of these heads. The second call for a shape costs nothing. Errors: UNSUPPORTED (cuDNN has no plan
   for this shape on this device), MEMORY, DEVICE. After an error *p is NULL. */
zero_result attention_cudnn_plan(attention_cudnn *c, const attention_shape *shape, size_t row_heads,
                                 int backward, attention_plan **p);
size_t attention_cudnn_workspace_bytes(const attention_plan *p);

/* Enqueues the plan on the context's stream. Errors: DEVICE. */
zero_result attention_cudnn_run(attention_cudnn *c, attention_plan *p, const attention_tensors *t);

#ifdef __cplusplus
}
#endif
#endif

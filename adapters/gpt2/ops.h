/* ops.h - the operations of gpt2.c, forward and backward, on one device (ops_cpu.c: oneDNN,
   OpenMP).

   Shapes: R rows (= B * T tokens), C channels, I inputs and O outputs of a linear layer, all row
   by row without gaps. Memory comes from ops_alloc, or is the plugin's: 64-byte aligned. Names that
   start with d are gradients. Gradients of parameters are ADDED to, all else is stored, unless said
   otherwise. R may be 0 everywhere.

   Types. `const void *` and `void *` are numbers of the context's type, gradients of parameters
   (dw, db, dbias, dwte, dwpe) of its grad_type; `float *` is f32 whatever the type. All is computed
   in f32, and what is stored is rounded once: a gradient is read, added to in f32, and rounded once
   a call. In bf16 products multiply bf16 and add in f32.

   Biases: a linear layer leaves its bias to the pass that reads its output, which touches every
   element anyway. So `qkv` and `fch` are kept without theirs.

   Errors are sticky: after one, operations do nothing, and ops_status tells it. One ops_ctx belongs
   to one host thread. At a fixed number of threads results do not depend on anything but inputs. */
#ifndef GPT2_OPS_H
#define GPT2_OPS_H

#include <stddef.h>
#include <stdint.h>

#include "../../zero_plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ops_ctx ops_ctx;

/* The largest shapes that operations will be called with: bounds of their scratch memory. */
typedef struct ops_limits {
    size_t seq_len;   /* T of ops_attention */
    size_t head_size; /* channels per head of ops_attention */
    size_t width;     /* C of all that goes row by row; twice that of a norm */
    size_t vocab;     /* tokens, and columns of logits */
    size_t rows;      /* R of ops_embed_backward */
} ops_limits;

/* grad_type: ZERO_F32, or the same as type. Errors: MEMORY. On error *o is NULL. */
zero_result ops_create(ops_ctx **o, const ops_limits *limits, zero_type type, zero_type grad_type);
void ops_destroy(ops_ctx *o); /* NULL is allowed */

/* Bytes of scratch memory that ops_create allocates. What oneDNN needs for a product is known when
   the product is first made; in the rare case that it is more than was set aside, it is allocated
   then. */
size_t ops_scratch_bytes(const ops_limits *limits, zero_type type);

/* The way that products take; see gpt2_product_path. */
const char *ops_product_path(const ops_ctx *o);

/* What happened so far; waits for it. *sentence (may be NULL) is owned by o. */
zero_result ops_status(const ops_ctx *o, const char **sentence);

/* Device memory, aligned to 64 bytes, contents undefined. NULL: there is none. */
void *ops_alloc(size_t bytes);
void ops_free(void *memory);

/* Bytes from host to device; n numbers of the type back, as f32. download waits. */
void ops_upload(ops_ctx *o, void *device, const void *host, size_t bytes);
void ops_download(ops_ctx *o, float *host, const void *device, size_t n);

/* Sum of n floats in f64, on the host; waits. */
double ops_sum(ops_ctx *o, const float *x, size_t n);

/* Floating-point operations per second of a large matrix product; see gpt2_matmul_rate. */
double ops_matmul_rate(zero_type type, int threads);

/* ---- embeddings: out = wte[token] + wpe[row % T] -------------------------------------------- */

void ops_embed(ops_ctx *o, void *out, /* (R, C) */
               const int *tokens,     /* (R) */
               const void *wte, const void *wpe, size_t R, size_t T, size_t C);
void ops_embed_backward(ops_ctx *o, void *dwte, void *dwpe, const void *dout, const int *tokens,
                        size_t R, size_t T, size_t C);

/* ---- linear layers: y = x w^T ---------------------------------------------------------------- */

void ops_linear(ops_ctx *o, void *y, /* (R, O) */
                const void *x,       /* (R, I) */
                const void *w,       /* (O, I) */
                size_t R, size_t I, size_t O);
void ops_linear_dx(ops_ctx *o, void *dx, const void *dy, const void *w, size_t R, size_t I,
                   size_t O);
void ops_linear_dw(ops_ctx *o, void *dw, const void *dy, const void *x, size_t R, size_t I,
                   size_t O);

/* out = x + (y + bias); out may be x or y. All (R, C), bias (C). */
void ops_add_bias(ops_ctx *o, void *out, const void *x, const void *y, const void *bias, size_t R,
                  size_t C);
/* dbias (C) += the sum of the rows of dy (R, C). */
void ops_bias_backward(ops_ctx *o, void *dbias, const void *dy, size_t R, size_t C);

/* ---- layer norm (Ba, Kiros, Hinton 2016, equation 4), epsilon 1e-5 --------------------------- */

/* out = (x - mean) * rstd * w + b, with mean and rstd per row kept for backward. out may be x. */
void ops_norm(ops_ctx *o, void *out,    /* (R, C) */
              float *mean, float *rstd, /* (R) */
              const void *x,            /* (R, C) */
              const void *w, const void *b, size_t R, size_t C);
/* Computes `out` again from what was kept; the same bits. */
void ops_norm_again(ops_ctx *o, void *out, const float *mean, const float *rstd, const void *x,
                    const void *w, const void *b, size_t R, size_t C);
/* ADDS to dx (R, C), which carries the gradient of the residual stream past the norm; with `store`
   it is stored. */
void ops_norm_backward(ops_ctx *o, void *dx, void *dw, void *db, const void *dout, const void *x,
                       const float *mean, const float *rstd, const void *w, int store, size_t R,
                       size_t C);

/* ---- GELU (Hendrycks, Gimpel 2016, tanh form), of x + bias ----------------------------------- */

void ops_gelu(ops_ctx *o, void *out, const void *x, const void *bias, size_t R, size_t C);
/* d (R, C): on entry the gradient of the output, on return that of x. dbias (C) is added to. out
   (R, C) receives the output of ops_gelu again; the same bits, at no cost. */
void ops_gelu_backward(ops_ctx *o, void *d, void *dbias, void *out, const void *x, const void *bias,
                       size_t R, size_t C);

/* ---- causal attention (Vaswani et al. 2017, equation 1) -------------------------------------- */

typedef struct ops_heads {
    size_t batch;     /* B sequences */
    size_t seq_len;   /* T */
    size_t heads;     /* NH */
    size_t head_size; /* C / NH */
} ops_heads;

void ops_attention(ops_ctx *o, void *out, /* (B, T, C) */
                   float *lse,            /* (B, NH, T): log of each softmax's denominator */
                   const void *qkv,       /* (B, T, 3, NH, head_size), without bias */
                   const void *bias,      /* (3C) */
                   const ops_heads *shape);
/* dqkv (B, T, 3C) is stored; it is also the gradient of the bias, row by row. */
void ops_attention_backward(ops_ctx *o, void *dqkv, const void *dout, const void *out,
                            const float *lse, const void *qkv, const void *bias,
                            const ops_heads *shape);

/* ---- cross entropy of a softmax -------------------------------------------------------------- */

/* losses (R): -log softmax(logits)[target], over the first V of the Vp columns. With `train` the
   logits (R, Vp) are replaced by the gradient of scale * sum(losses), zeros in padded columns;
   without they are left alone. */
void ops_cross_entropy(ops_ctx *o, float *losses, void *logits, const int *targets, int train,
                       float scale, size_t R, size_t V, size_t Vp);

#ifdef __cplusplus
}
#endif
#endif

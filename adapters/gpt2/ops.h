/* ops.h - the operations of gpt2.c, forward and backward, on one device (ops_cpu.c: oneDNN, OpenMP;
   ops_cuda.cu: cuBLASLt, own kernels, attention_cuda.h).

   Shapes: R rows (= B * T tokens), C channels, I inputs and O outputs of a linear layer, all row
   by row without gaps. Memory comes from ops_alloc, or is the plugin's: 64-byte aligned. Names that
   start with d are gradients. Gradients of parameters are ADDED to, all else is stored, unless said
   otherwise. R may be 0 everywhere.

   Types. `const void *` and `void *` are numbers of the context's type, gradients of parameters
   (dw, db, dbias, dwte, dwpe) of its grad_type; `float *` is f32 whatever the type. All is computed
   in f32, and what is stored is rounded once: a gradient is read, added to in f32, and rounded once
   a call. In bf16 products multiply bf16 and add in f32.

   Biases. A linear layer's bias is added by the product, or by the pass that reads its output and
   touches every element anyway: which of the two is the device's business, so both are given it.
   The CPU leaves it to the reader, so that its `qkv` and `fch` are kept without theirs; in CUDA the
   product adds it.

   Errors are sticky: after one, operations do nothing, and ops_status tells it. One ops_ctx belongs
   to one host thread. At a fixed number of threads, or on one kind of GPU, results do not depend on
   anything but inputs.

   Waiting. On the CPU every operation is done when it returns. In CUDA all of them only enqueue on
   the context's stream, except those that say that they wait. */
#ifndef GPT2_OPS_H
#define GPT2_OPS_H

#include <stddef.h>
#include <stdint.h>

#include "../../zero_plugin.h"
#include "products.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ops_ctx ops_ctx;

/* The largest shapes that operations will be called with: bounds of their scratch memory. */
typedef struct ops_limits {
    size_t batch;     /* B, and */
    size_t heads;     /* NH of ops_attention; CUDA: 0: it will not be called */
    size_t seq_len;   /* T of ops_attention */
    size_t head_size; /* channels per head of ops_attention */
    size_t width;     /* C of all that goes row by row; twice that of a norm */
    size_t vocab;     /* tokens, and columns of logits */
    size_t rows;      /* R of ops_take_batch and ops_embed_backward */
} ops_limits;

typedef struct ops_settings {
    zero_type type;
    zero_type grad_type; /* ZERO_F32, or the same as type */
    void *stream;        /* CUDA: a cudaStream_t, of the device that is current; borrowed */
    int tf32;            /* CUDA, f32: products may round what they multiply to TF32 */
    int any_order;       /* cuDNN: gradients of attention may add up in any order */
} ops_settings;

enum { OPS_SENTENCE = 256 };

/* Errors: MEMORY, DEVICE, UNSUPPORTED. On error *o is NULL, and `why` (OPS_SENTENCE bytes) says
   what is the matter. */
zero_result ops_create(ops_ctx **o, const ops_limits *limits, const ops_settings *settings,
                       char *why);
void ops_destroy(ops_ctx *o); /* NULL is allowed; waits */

/* Bytes of scratch memory that ops_create allocates. What oneDNN needs for a product is known when
   the product is first made; in the rare case that it is more than was set aside, it is allocated
   then. So it is with cuDNN's attention. */
size_t ops_scratch_bytes(const ops_limits *limits, zero_type type);

/* Bytes that a chunk of logits may take; more rows at once are not worth their memory. */
size_t ops_logits_budget(void);

/* The way that products take, and attention; see gpt2_product_path and gpt2_attention_path. */
const char *ops_product_path(const ops_ctx *o);
const char *ops_attention_path(const ops_ctx *o);

/* A layer's three products, of so many rows. */
typedef struct ops_layer {
    size_t rows, in, out;
} ops_layer;

/* CPU, f32: which way products take; see products_open, whose lines are those of the layers. CUDA:
   cuBLASLt chooses by itself; a path is UNSUPPORTED. Errors: ARGUMENT, with a sentence in `why`
   (OPS_SENTENCE bytes). */
zero_result ops_choose_products(products_choice *c, const char *path, const ops_layer *layers,
                                int n, int threads, char *why);
/* From now on; borrowed until o is destroyed. */
void ops_take_products(ops_ctx *o, const products_choice *c);

/* What went wrong so far, as far as it is known without waiting. *sentence (may be NULL) is owned
   by o. */
zero_result ops_status(const ops_ctx *o, const char **sentence);

/* Device memory, aligned to 64 bytes, contents undefined. NULL: there is none. */
void *ops_alloc(size_t bytes);
void ops_free(void *memory);

/* Bytes from host to device; n numbers of a type back, as f32. Both wait. */
void ops_upload(ops_ctx *o, void *device, const void *host, size_t bytes);
void ops_download(ops_ctx *o, float *host, const void *device, zero_type type, size_t n);

/* A batch: R tokens, and as many targets (or NULL), from the host to the device, where ops_embed
   and ops_embed_backward read them. What the host hands in is copied before this returns, and the
   copies of two batches may be under way. */
void ops_take_batch(ops_ctx *o, int *tokens, int *targets, const int *host_tokens,
                    const int *host_targets, size_t R);

/* *total (device memory, 8 bytes) += the sum of n floats, in f64; in a fixed order. */
void ops_sum(ops_ctx *o, double *total, const float *x, size_t n);
/* Its value, and 0 in its place; waits. */
double ops_take_sum(ops_ctx *o, double *total);
void ops_clear(ops_ctx *o, void *device, size_t bytes);
void ops_copy(ops_ctx *o, void *to, const void *from, size_t bytes); /* on the device */

/* Floating-point operations per second of a large matrix product; see gpt2_matmul_rate. And what
   the device's maker says; see gpt2_peak_rate. */
double ops_matmul_rate(zero_type type, int tf32, int threads);
double ops_peak_rate(zero_type type, int tf32);

/* Between these two, gradients of biases and norms are added at the latest by ops_sums_end, and
   must not be read before: a GPU adds all of a block at once. Without them all is added in the
   operation that makes it. */
void ops_sums_begin(ops_ctx *o);
void ops_sums_end(ops_ctx *o);

/* ---- embeddings: out = wte[token] + wpe[row % T] -------------------------------------------- */

void ops_embed(ops_ctx *o, void *out, /* (R, C) */
               const int *tokens,     /* (R) */
               const void *wte, const void *wpe, size_t R, size_t T, size_t C);
/* tokens: those of the last ops_take_batch. */
void ops_embed_backward(ops_ctx *o, void *dwte, void *dwpe, const void *dout, const int *tokens,
                        size_t R, size_t T, size_t C);

/* ---- linear layers: y = x w^T + bias --------------------------------------------------------- */

/* The bias (O, or NULL) is added here or by what reads y: see above. */
void ops_linear(ops_ctx *o, void *y, /* (R, O) */
                const void *x,       /* (R, I) */
                const void *w,       /* (O, I) */
                const void *bias, size_t R, size_t I, size_t O);
void ops_linear_dx(ops_ctx *o, void *dx, const void *dy, const void *w, size_t R, size_t I,
                   size_t O);
/* dbias (O) may be NULL. */
void ops_linear_dw(ops_ctx *o, void *dw, void *dbias, const void *dy, const void *x, size_t R,
                   size_t I, size_t O);

/* fch = x w^T, bias as above, and gelu = GELU(fch + bias); both (R, O). With `again` it is fch that
   is wanted, the same bits as before, and gelu may be left as it is. */
void ops_linear_gelu(ops_ctx *o, void *fch, void *gelu, int again, const void *x, const void *w,
                     const void *bias, size_t R, size_t I, size_t O);
/* Backwards through GELU and the linear layer that follows it, y = GELU(fch + bias) w^T with w (O,
   I): from dy (R, O) to dfch (R, I); dbias (I) is added to. gelu (R, I): with `kept` it is there
   and is left alone, or written again where that costs nothing; without it is computed again. */
void ops_linear_dx_gelu(ops_ctx *o, void *dfch, void *dbias, void *gelu, int kept, const void *dy,
                        const void *w, const void *fch, const void *bias, size_t R, size_t I,
                        size_t O);

/* out (R, O) = x + in w^T + bias, x (R, O), in (R, I). out is neither x nor in. */
void ops_linear_residual(ops_ctx *o, void *out, const void *x, const void *in, const void *w,
                         const void *bias, size_t R, size_t I, size_t O);

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

/* What devices make fused operations of, or fall back to. CUDA: bias may be NULL. */
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
                   const void *qkv,       /* (B, T, 3, NH, head_size) */
                   const void *bias,      /* (3C), of ops_linear */
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

/* ---- a vocabulary in tiles --------------------------------------------------------------------
 */

/* Rows [first, first + rows) of wte, of which the first `valid` are entries of the vocabulary. A
   pass over the tiles begins with that of first 0, which has at least one. */
typedef struct ops_tile {
    size_t first, rows, valid;
} ops_tile;

/* out[r] = w[token - first] for rows whose token is in the tile; other rows are left alone. */
void ops_tile_rows(ops_ctx *o, void *out, /* (R, C) */
                   const int *tokens,     /* (R) */
                   const void *w,         /* (rows, C) */
                   const ops_tile *t, size_t R, size_t C);
/* out (R, C) += wpe[row % T] */
void ops_add_places(ops_ctx *o, void *out, const void *wpe, size_t R, size_t T, size_t C);
/* Both halves of ops_embed_backward; dw (rows, C). tokens: those of the last ops_take_batch. */
void ops_tile_rows_backward(ops_ctx *o, void *dw, const void *dout, const int *tokens,
                            const ops_tile *t, size_t R, size_t C);
void ops_places_backward(ops_ctx *o, void *dwpe, const void *dout, size_t R, size_t T, size_t C);

/* What is known of R softmaxes when some of their tiles were seen (Milakov, Gimelshein 2018,
   algorithm 3). All (R), device memory; contents before the first tile do not matter. */
typedef struct ops_softmax {
    float *most;   /* the largest logit */
    float *sum;    /* of e^(logit - most) */
    float *factor; /* e^(most before this tile - most): what sums up to then are multiplied by */
    float *losses; /* the target's logit; from ops_softmax_end on the loss */
} ops_softmax;

/* Takes note of a tile's logits (R, rows). With `train` they become e^(logit - most), zeros in
   columns beyond `valid`; without they are left alone. */
void ops_softmax_tile(ops_ctx *o, const ops_softmax *s, void *logits, const int *targets,
                      const ops_tile *t, int train, size_t R);
/* mean (R, C), f32 = mean * factor + x; behind the first tile = x. */
void ops_softmax_add(ops_ctx *o, float *mean, const ops_softmax *s, const void *x,
                     const ops_tile *t, size_t R, size_t C);
/* A VOCABULARY IN PARTS: ranks see different tiles, of which any may begin, and have no entry of
   the vocabulary. Each begins like this, which makes tiles of any `first` go on from nothing; the
   mean row starts as zeros. */
void ops_softmax_begin(ops_ctx *o, const ops_softmax *s, size_t R);
/* Where ranks meet: most (R) is the largest of theirs. The sums become those of e^(logit - most),
   ready to be added up over ranks, as `losses` are, the target's logit on one and 0 on the others;
   factor = e^(s.most - most); s.most = most. */
void ops_softmax_meet(ops_ctx *o, const ops_softmax *s, const float *most, size_t R);
/* factor = sum / factor: what ops_softmax_dx needs for its sum, where `mean` is by the largest
   logit that this rank has seen. Infinite where that is nothing beside the others'. */
void ops_softmax_share(ops_ctx *o, const ops_softmax *s, size_t R);

/* After all tiles. */
void ops_softmax_end(ops_ctx *o, const ops_softmax *s, size_t R);
/* dx (R, C), which holds the targets' rows of wte, becomes scale * (mean / sum - dx): the gradient
   of scale * sum(losses), where x of ops_softmax_add was each tile's logits times its rows. */
void ops_softmax_dx(ops_ctx *o, void *dx, const float *mean, const ops_softmax *s, float scale,
                    size_t R, size_t C);
/* Logits of a tile, computed again, become the gradient of scale * sum(losses). */
void ops_softmax_backward(ops_ctx *o, void *logits, const ops_softmax *s, const int *targets,
                          const ops_tile *t, float scale, size_t R);

#ifdef __cplusplus
}
#endif
#endif

/* ops.h - the operations of gpt2.c, forward and backward, on one device (ops_cpu.c: oneDNN, OpenMP;
   ops_cuda.cu: cuBLASLt, own kernels, attention_cuda.h).

   Shapes: R rows (= B * T tokens), C channels, I inputs and O outputs of a linear layer, all stored
   by rows without gaps. Memory comes from ops_alloc or the plugin and is 64-byte aligned. Names
   that start with d are gradients. Operations ADD to gradients of parameters and store all other
   results, unless stated otherwise. R may be 0 everywhere.

   Types. `const void *` and `void *` are numbers of the context's type. Gradients of parameters
   (dw, db, dbias, dwte, dwpe) have its grad_type. `float *` is always f32. Operations compute in
   f32 and round each stored value once. They read a gradient, add to it in f32, and round it once a
   call. In bf16, products multiply bf16 and add in f32.

   Biases. Either the product adds a linear layer's bias, or the operation that reads its output.
   The device decides, so both receive the bias. The CPU adds it in the reader, so its `qkv` and
   `fch` do not contain it. In CUDA the product adds it.

   Errors are sticky: after an error operations do nothing, and ops_status returns it. One CPU
   thread owns an ops_ctx. At a fixed number of threads, or on one kind of GPU, results depend on
   the inputs alone.

   Waiting. On the CPU every operation is done when it returns. In CUDA operations only enqueue on
   the context's stream, except those with the comment that they wait. */
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

/* The largest shapes of any call: they limit the scratch memory. */
typedef struct ops_limits {
    size_t batch;     /* B, and */
    size_t heads;     /* NH of ops_attention; CUDA: 0: it is never called */
    size_t seq_len;   /* T of ops_attention; 0: it is never called, only ops_partial_add */
    size_t head_size; /* channels per head of ops_attention */
    size_t width;     /* largest C of row operations; twice that of a norm */
    size_t vocab;     /* tokens, and columns of logits */
    size_t rows;      /* R of ops_take_batch and ops_embed_backward */
} ops_limits;

typedef struct ops_settings {
    zero_type type;
    zero_type grad_type; /* ZERO_F32, or the same as type */
    void *stream;        /* CUDA: a cudaStream_t, of the device that is current; borrowed */
    int tf32;            /* CUDA, f32: products may round their operands to TF32 */
    int any_order;       /* cuDNN: gradients of attention may add up in any order */
} ops_settings;

enum { OPS_SENTENCE = 256 };

/* Errors: MEMORY, DEVICE, UNSUPPORTED. On error *o is NULL, and `why` (OPS_SENTENCE bytes) contains
   the reason. */
zero_result ops_create(ops_ctx **o, const ops_limits *limits, const ops_settings *settings,
                       char *why);
void ops_destroy(ops_ctx *o); /* o may be NULL; waits */

/* Returns the bytes of scratch memory that ops_create allocates. oneDNN reports a product's need
   when the product is first created. If it exceeds the reserve, which is rare, it is allocated
   then. Of the settings it reads type and any_order. */
size_t ops_scratch_bytes(const ops_limits *limits, const ops_settings *settings);
/* Returns how many of these bytes ops_create does without, if the device has no more. */
size_t ops_spare_bytes(const ops_limits *limits, const ops_settings *settings);

/* Bytes that a chunk of logits may take; more rows at once are not worth their memory. */
size_t ops_logits_budget(void);

/* Describes how products and attention run; see gpt2_product_path and gpt2_attention_path. */
const char *ops_product_path(const ops_ctx *o);
const char *ops_attention_path(const ops_ctx *o);

/* A layer's three products, of so many rows. */
typedef struct ops_layer {
    size_t rows, in, out;
} ops_layer;

/* CPU, f32: chooses how products run; see products_open. Its lines are the layers. CUDA:
   cuBLASLt chooses, and a path is UNSUPPORTED. Errors: ARGUMENT, with a sentence in `why`
   (OPS_SENTENCE bytes). */
zero_result ops_choose_products(products_choice *c, const char *path, const ops_layer *layers,
                                int n, int threads, char *why);
/* Uses this choice from now on. It is borrowed until o is destroyed. */
void ops_take_products(ops_ctx *o, const products_choice *c);

/* CUDA GRAPHS. One launch replays operations that were recorded before. After ops_graphs, `places`
   graphs can be recorded; a place's key is `bytes` long, and names everything on which the launches
   depend: addresses, sizes, choices. ops_graph_begin returns 1 if it has launched the graph that
   was recorded with an equal key. Otherwise it returns 0: enqueue the operations, then call
   ops_graph_end. They are recorded if one of the place's last two keys is equal, so that the first
   use of a library is not recorded. Operations that wait must not be recorded. On the CPU nothing
   is recorded. Errors: MEMORY. */
zero_result ops_graphs(ops_ctx *o, size_t places, size_t bytes);
int ops_graph_begin(ops_ctx *o, size_t place, const void *key);
void ops_graph_end(ops_ctx *o);
/* Returns the number of graphs that were launched. */
size_t ops_graph_launches(const ops_ctx *o);

/* Returns the first error that is known without waiting. o owns *sentence, which may be NULL. */
zero_result ops_status(const ops_ctx *o, const char **sentence);

/* Allocates device memory, aligned to 64 bytes, with undefined contents. NULL: no memory. */
void *ops_alloc(size_t bytes);
void ops_free(void *memory);

/* Copies bytes from host to device; copies n numbers of a type back, as f32. Both wait. */
void ops_upload(ops_ctx *o, void *device, const void *host, size_t bytes);
void ops_download(ops_ctx *o, float *host, const void *device, zero_type type, size_t n);

/* Copies a batch to the device: R tokens, and as many targets (or NULL), where ops_embed and
   ops_embed_backward read them. It copies the host's arrays before it returns. The copies of two
   batches may be in progress. */
void ops_take_batch(ops_ctx *o, int *tokens, int *targets, const int *host_tokens,
                    const int *host_targets, size_t R);

/* *total (device memory, 8 bytes) += the sum of n floats, in f64 and in a fixed order. */
void ops_sum(ops_ctx *o, double *total, const float *x, size_t n);
/* Returns the value of *total and clears it; waits. */
double ops_take_sum(ops_ctx *o, double *total);
void ops_clear(ops_ctx *o, void *device, size_t bytes);
void ops_copy(ops_ctx *o, void *to, const void *from, size_t bytes); /* on the device */
/* *sum (device memory, 8 bytes) += the hash of x by hash_words.h; `bytes` is even. */
void ops_hash(ops_ctx *o, uint64_t *sum, const void *x, size_t bytes, uint64_t seed);
/* to [columns][rows][bytes] = from [rows][columns][bytes], on the device; they do not overlap. */
void ops_transpose(ops_ctx *o, void *to, const void *from, size_t rows, size_t columns,
                   size_t bytes);

/* Floating-point operations per second of a large matrix product; see gpt2_matmul_rate. Then the
   manufacturer's figure; see gpt2_peak_rate. */
double ops_matmul_rate(zero_type type, int tf32, int threads);
double ops_peak_rate(zero_type type, int tf32);

/* Between these two calls operations may delay adding to gradients of biases and norms until
   ops_sums_end, because a GPU adds all of a block together. Do not read them earlier. Without these
   calls each operation adds at once. */
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

/* Either this call or the reader of y adds the bias (O, or NULL): see above. */
void ops_linear(ops_ctx *o, void *y, /* (R, O) */
                const void *x,       /* (R, I) */
                const void *w,       /* (O, I) */
                const void *bias, size_t R, size_t I, size_t O);
void ops_linear_dx(ops_ctx *o, void *dx, const void *dy, const void *w, size_t R, size_t I,
                   size_t O);
/* The same products without a bias, added to y and dx. */
void ops_linear_add(ops_ctx *o, void *y, const void *x, const void *w, size_t R, size_t I,
                    size_t O);
void ops_linear_dx_add(ops_ctx *o, void *dx, const void *dy, const void *w, size_t R, size_t I,
                       size_t O);
/* Returns 1 if ops_linear adds the bias: then pass no bias to ops_gelu after it. */
int ops_adds_bias(void);
/* x (R, C) *= factor */
void ops_scale(ops_ctx *o, void *x, float factor, size_t R, size_t C);
/* dbias (O) may be NULL. */
void ops_linear_dw(ops_ctx *o, void *dw, void *dbias, const void *dy, const void *x, size_t R,
                   size_t I, size_t O);

/* fch = x w^T, bias as above, and gelu = GELU(fch + bias); both (R, O). With `again` the caller
   needs only fch, with the same bits as before, and gelu may stay unchanged. */
void ops_linear_gelu(ops_ctx *o, void *fch, void *gelu, int again, const void *x, const void *w,
                     const void *bias, size_t R, size_t I, size_t O);
/* Backward through GELU and the next linear layer, y = GELU(fch + bias) w^T with w (O, I): computes
   dfch (R, I) from dy (R, O) and adds to dbias (I). gelu (R, I): with `kept` it holds GELU's
   output, which stays or is rewritten at no cost; without `kept` it is computed again. */
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
/* Computes `out` again from the kept values, with the same bits. */
void ops_norm_again(ops_ctx *o, void *out, const float *mean, const float *rstd, const void *x,
                    const void *w, const void *b, size_t R, size_t C);
/* ADDS to dx (R, C), which carries the gradient of the residual stream past the norm; with `store`
   it is stored. */
void ops_norm_backward(ops_ctx *o, void *dx, void *dw, void *db, const void *dout, const void *x,
                       const float *mean, const float *rstd, const void *w, int store, size_t R,
                       size_t C);

/* ---- GELU (Hendrycks, Gimpel 2016, tanh form), of x + bias ----------------------------------- */

/* Devices build fused operations from these or fall back to them. CUDA: bias may be NULL, and is if
   ops_linear has added it. */
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

/* ---- attention piece by piece ---------------------------------------------------------------- */

/* For keys and values that arrive piece by piece. In a shape T is the number of this rank's tokens
   of a sequence. kv has the keys and values of as many tokens, this rank's or another's. */

/* The queries of one piece, and the keys of another. */
typedef struct ops_pair {
    size_t queries, keys; /* the first token of the piece, 0..T-1 */
    size_t tokens;        /* of each piece */
    int causal;           /* 1: query i of its piece sees keys 0..i of theirs; 0: all */
} ops_pair;

/* kv (B, T, 2, NH, head_size) = the keys and values of qkv. */
void ops_take_keys(ops_ctx *o, void *kv, const void *qkv, const ops_heads *shape);

/* State of attention after some pairs. */
typedef struct ops_partial {
    float *out;  /* (B, T, C): the sum of e^(score - most) times the value */
    float *most; /* (B, NH, T): the largest score */
    float *sum;  /* (B, NH, T): the sum of e^(score - most) */
} ops_partial;

void ops_partial_begin(ops_ctx *o, const ops_partial *state, const ops_heads *shape);
void ops_partial_add(ops_ctx *o, const ops_partial *state,
                     const void *qkv,  /* (B, T, 3, NH, head_size): its queries */
                     const void *kv,   /* (B, T, 2, NH, head_size) */
                     const void *bias, /* (3C), as ops_attention's */
                     const ops_pair *pair, const ops_heads *shape);
/* Computes out (B, T, C) and lse (B, NH, T) of ops_attention, after all pairs. */
void ops_partial_end(ops_ctx *o, void *out, float *lse, const ops_partial *state,
                     const ops_heads *shape);

/* Gradients after some pairs, and what they are computed from. */
typedef struct ops_slopes {
    float *dq;    /* (B, T, C), before the factor 1 / sqrt(head_size) */
    float *delta; /* (B, NH, T): the sum of dout out */
    float *dkv;   /* (B, T, 2, NH, head_size): of kv; added to */
    const void *dout, *qkv, *kv, *bias;
    const float *lse;
} ops_slopes;

/* Clears dq and computes delta. out: of ops_partial_end. */
void ops_slopes_begin(ops_ctx *o, const ops_slopes *g, const void *out, const ops_heads *shape);
void ops_slopes_add(ops_ctx *o, const ops_slopes *g, const ops_pair *pair, const ops_heads *shape);
/* dqkv (B, T, 3C), which may be qkv, from dq and dkv. */
void ops_slopes_end(ops_ctx *o, void *dqkv, const ops_slopes *g, const ops_heads *shape);
/* to (n) += x */
void ops_add_f32(ops_ctx *o, float *to, const float *x, size_t n);

/* ---- cross entropy of a softmax -------------------------------------------------------------- */

/* losses (R): -log softmax(logits)[target], over the first V of the Vp columns. With `train` the
   gradient of scale * sum(losses) replaces the logits (R, Vp), with zeros in padded columns;
   without `train` they do not change. */
void ops_cross_entropy(ops_ctx *o, float *losses, void *logits, const int *targets, int train,
                       float scale, size_t R, size_t V, size_t Vp);

/* ---- a vocabulary in tiles --------------------------------------------------------------------
 */

/* Rows [first, first + rows) of wte, of which the first `valid` are entries of the vocabulary. A
   pass over the tiles begins with that of first 0, which has at least one. */
typedef struct ops_tile {
    size_t first, rows, valid;
} ops_tile;

/* out[r] = w[token - first] for rows whose token is in the tile; other rows do not change. */
void ops_tile_rows(ops_ctx *o, void *out, /* (R, C) */
                   const int *tokens,     /* (R) */
                   const void *w,         /* (rows, C) */
                   const ops_tile *t, size_t R, size_t C);
/* out (R, C) += wpe[row % T] */
void ops_add_places(ops_ctx *o, void *out, const void *wpe, size_t R, size_t T, size_t C);
/* The two parts of ops_embed_backward; dw (rows, C). tokens: those of the last ops_take_batch. */
void ops_tile_rows_backward(ops_ctx *o, void *dw, const void *dout, const int *tokens,
                            const ops_tile *t, size_t R, size_t C);
void ops_places_backward(ops_ctx *o, void *dwpe, const void *dout, size_t R, size_t T, size_t C);

/* State of R softmaxes after some of their tiles (Milakov, Gimelshein 2018, algorithm 3). All
   arrays (R), device memory; their contents before the first tile do not matter. */
typedef struct ops_softmax {
    float *most;   /* the largest logit */
    float *sum;    /* of e^(logit - most) */
    float *factor; /* e^(most before this tile - most): multiplies the earlier sums */
    float *losses; /* the target's logit; from ops_softmax_end on the loss */
} ops_softmax;

/* Adds a tile's logits (R, rows) to the state. With `train` they become e^(logit - most), with
   zeros in columns beyond `valid`; without `train` they do not change. */
void ops_softmax_tile(ops_ctx *o, const ops_softmax *s, void *logits, const int *targets,
                      const ops_tile *t, int train, size_t R);
/* mean (R, C), f32 = mean * factor + x; after the first tile = x. */
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
   logit that this rank has seen. It is infinite if this rank's logits are
   negligible. */
void ops_softmax_share(ops_ctx *o, const ops_softmax *s, size_t R);

/* Call after all tiles. */
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

/* lora.h - low-rank adapters of GPT-2's matrices (LoRA; Hu et al. 2021, section 4.1).

   A matrix W (O, I) of a block, with bias b, is frozen. Two small matrices next to it are trained,
   A (R, I) and B (O, R), where R is the rank:

       y = W x + b + (alpha / R) B (A x)

   A is drawn as peft draws it: uniform within 1 / sqrt(I), the result of kaiming_uniform_ with
   a = sqrt(5). B begins as zeros, so the model begins as the model without adapters. Dropout is
   none.

   TENSORS. A and B are tensors of the block, in its unit: A of W is named W.lora_a, and B W.lora_b,
   such as qkvw.lora_a. They have the type of the run, gradients, and the optimizer's state. All
   other tensors are frozen, except those that --train names. gpt2_table lists the adapters after
   the tensors of the base.

   FORWARD of R rows: the product d = x A^T is multiplied by alpha / R and rounded, then d B^T is
   added to the stored y. BACKWARD computes d again from x, which costs little and keeps nothing:

       dB += dy^T d        e = (dy B) alpha / R        dA += e^T x        dx += e A

   TENSOR PARALLELISM. qkvw and fcw are cut by rows: each rank has those rows of B, and all of A.
   attprojw and fcprojw are cut by columns: each rank has those columns of A, and all of B. The
   ranks' outputs (or their dx) are parts of sums that the layer forms anyway, so adapters send no
   activations. Of the matrix that each rank has whole, a rank computes a part of the gradient, and
   the group sums the parts (sum_over). */
#ifndef GPT2_LORA_H
#define GPT2_LORA_H

#include "gpt2.h"
#include "ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The matrices that can have adapters, as bits of gpt2_lora.on. */
enum { LORA_QKV, LORA_PROJ, LORA_FC, LORA_FCPROJ, LORA_MATRICES };

/* Parses "qkv,proj,fc,fcproj" (any of these words) to the bits of gpt2_lora.on. Returns 0, or 1 for
   another word or none. */
int gpt2_lora_parse(const char *words, unsigned *on);
/* Writes the words. */
void gpt2_lora_print(unsigned on, char words[32]);

/* Checks the rank and alpha for a model. Errors: ARGUMENT, with a sentence. */
zero_result gpt2_lora_check(const gpt2_config *cfg, const gpt2_lora *lora, gpt2_error *err);

/* Returns the model's adapters, or NULL. */
const gpt2_lora *gpt2_lora_of(const gpt2_config *cfg);

/* lora_tensor returns the number of a matrix's A, or with `b` of its B. lora_matrix returns the
   matrix that a tensor adapts, or -1 for a tensor of the base. */
int lora_tensor(int matrix, int b);
int lora_matrix(int tensor);
int lora_is_b(int tensor);

/* Sides of a tensor of the whole model: A (R, I), B (O, R). */
void lora_sides(const gpt2_config *cfg, int tensor, size_t *rows, size_t *columns);

/* Appends the whole model's adapters to a table of n rows. Returns the new number of rows. */
int lora_describe(const gpt2_config *cfg, zero_tensor_desc *table, int n);

/* Draws A of all adapters, from stream 64 + tensor of gpt2_draw, and clears B. They are the same
   for any division of the model. After zero_build, on every rank. COLLECTIVE, SYNC. Errors: MEMORY
   and those of zero_write_tensor. */
zero_result gpt2_lora_init(zero_ctx *z, const gpt2_config *cfg, const gpt2_parallel *how,
                           uint64_t seed, gpt2_error *err);

/* An adapter of this rank in a block: part of a rank's matrix if the model is divided. */
typedef struct lora_layer {
    const void *a, *b; /* (rank, in), (out, rank); NULL: the matrix has no adapter */
    void *da, *db;     /* NULL: frozen, or forward */
    size_t rank, in, out;
    float scale;
    void *down, *back; /* (R, rank) scratch memory */
} lora_layer;

/* y (R, out) += the adapter's output for x (R, in). Does nothing without an adapter. */
void lora_forward(ops_ctx *o, const lora_layer *l, void *y, const void *x, size_t R);
/* Computes e, and dx (R, in) += e A. Does nothing without an adapter. */
void lora_dx(ops_ctx *o, const lora_layer *l, void *dx, const void *dy, size_t R);
/* Adds to the gradients of A and B. Call it after lora_dx with the same dy. */
void lora_gradients(ops_ctx *o, const lora_layer *l, const void *dy, const void *x, size_t R);

#ifdef __cplusplus
}
#endif
#endif

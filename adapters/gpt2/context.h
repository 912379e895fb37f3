/* context.h - context parallelism: N ranks of a group share the sequences of a micro-batch
   (DeepSpeed's Ulysses: Jacobs et al. 2023).

   TOKENS. Rank c of N has tokens c T/N .. (c + 1) T/N - 1 of each of the B sequences, a piece. All
   N ranks pass whole sequences to the model, the same ones, and the model reads its piece. Its
   position rows begin at c T/N. Everything but attention is local to a token, so all activations
   have B T/N rows.

   ATTENTION needs all tokens of a sequence, but its heads are independent. With h = NH / N:
       qkv of a piece (B, T/N, 3, NH, hs)  --all-to-all-->  of heads (B, T, 3, h, hs)
       attention over whole sequences, of h heads: (B, T, h, hs)
       (B, T, h, hs)  --all-to-all-->  the output of a piece (B, T/N, NH, hs)
   Backward sends the output's gradient from pieces to heads, and that of qkv from heads to pieces.
   So a rank keeps qkv of its heads only, and the output both of its heads (which attention's
   backward reads) and of its piece (which the projection's gradient reads): B T/N C numbers more
   than without context parallelism.

   BYTES that a rank sends, of a block in a micro-step: forward 4 B T C / N x (N - 1) / N numbers,
   backward as many, and where backward computes blocks again forward's once more.

   DIVISORS. Each rank has the same number of tokens, B T/N. A rank computes the gradient of the
   mean loss of its tokens, and the context's mean over all data-parallel and context ranks is the
   gradient of the mean loss over all tokens: context ranks count as data-parallel for gradients and
   states. For the batch, N ranks count once, because they have the same sequences. A weight's
   gradient is a sum over pieces, so its bits depend on N, and on nothing else.

   ERRORS are sticky, as in ops.h: after an error nothing is sent, and `result` has it. */
#ifndef GPT2_CONTEXT_H
#define GPT2_CONTEXT_H

#include <stddef.h>
#include <stdint.h>

#include "gpt2.h"
#include "ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct context_parallel {
    zero_group *group; /* borrowed; NULL: one rank */
    size_t rank, size;
    size_t bytes; /* bytes of one activation value */
    zero_result result;
} context_parallel;

/* Returns ARGUMENT, with the reason and the nearest number of ranks or tokens, if `ranks` ranks
   cannot divide sequences of seq_len tokens. */
zero_result context_check(const gpt2_config *cfg, int seq_len, int ranks, gpt2_error *err);

/* `how` NULL: a single rank. */
void context_open(context_parallel *p, const gpt2_parallel *how, zero_type type);

/* Returns this rank's first token of sequences of which each rank has `piece` tokens. */
size_t context_first(const context_parallel *p, size_t piece);

/* Copies this rank's pieces of B whole sequences [B][N piece] to `to` [B][piece]. */
void context_take(const context_parallel *p, int *to, const int *from, size_t B, size_t piece);

/* Returns the shape of attention over whole sequences: `piece` has this rank's tokens and all
   heads. */
ops_heads context_heads(const context_parallel *p, const ops_heads *piece);

/* Copies the bias of q, k and v (3, NH, head_size) of this rank's heads to `out`. */
void context_bias(const context_parallel *p, ops_ctx *o, void *out, const void *bias,
                  const ops_heads *piece);

/* The two exchanges, of `parts` arrays at once: 3 of qkv, 1 of the output. `spare` has as many
   bytes as `in` and can be `in`, which is then overwritten; `out` overlaps neither. COLLECTIVE over
   the group.
   to_heads: in (B, T/N, parts, NH, head_size), out (B, T, parts, NH/N, head_size)
   to_pieces: the other way. */
void context_to_heads(context_parallel *p, ops_ctx *o, void *out, const void *in, void *spare,
                      size_t parts, const ops_heads *piece);
void context_to_pieces(context_parallel *p, ops_ctx *o, void *out, const void *in, void *spare,
                       size_t parts, const ops_heads *piece);

/* Collects the losses (B, T/N) of all pieces: all (B, T). spare: as many floats as `all`. */
void context_losses(context_parallel *p, ops_ctx *o, float *all, const float *losses, float *spare,
                    size_t B, size_t piece);
/* Copies the bytes at `data` of the rank that has token t of a sequence to all ranks. */
void context_share(context_parallel *p, void *data, size_t bytes, size_t t, size_t piece);

/* Returns the bytes that this rank sends in a micro-step of training. */
uint64_t context_sent(const gpt2_config *cfg, const gpt2_run *run);

#ifdef __cplusplus
}
#endif
#endif

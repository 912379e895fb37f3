/* context.h - context parallelism: N ranks of a group share the sequences of a micro-batch, by
   exchanging heads (DeepSpeed's Ulysses: Jacobs et al. 2023), by a ring (ring.h), or both.

   TOKENS. Each rank has T/N tokens of each of the B sequences, a piece. All N ranks pass whole
   sequences to the model, the same ones, and the model reads its piece. Everything but attention
   is local to a token, so all activations have B T/N rows. Position rows, targets and losses are
   those of the tokens.

   TWO WAYS. N = u r: rank c has number c % u of u neighbours, which exchange heads, and number
   c / u of r ranks, which are a ring. Ulysses is r = 1, the ring is u = 1.
     Ulysses   rank c has tokens c T/N .. (c + 1) T/N - 1.
     ring      rank c has two shorter pieces, number c and 2N-1-c of 2N.
     both      the u neighbours together have pieces i and 2r-1-i of 2r, one after the other, and
               each of them has a u-th part of these tokens.
   So a rank's tokens are one or two spans of consecutive tokens.

   ATTENTION needs all tokens of a sequence, but its heads are independent. With h = NH / u, and
   with the T/r tokens of the u neighbours:
       qkv of a piece (B, T/N, 3, NH, hs)  --all-to-all-->  of heads (B, T/r, 3, h, hs)
       attention of these tokens to all T, of h heads, by the ring: (B, T/r, h, hs)
       (B, T/r, h, hs)  --all-to-all-->  the output of a piece (B, T/N, NH, hs)
   Backward sends the output's gradient from pieces to heads, and that of qkv from heads to pieces.
   With u > 1 a rank keeps qkv of its heads only, and the output both of its heads (which
   attention's backward reads) and of its piece (which the projection's gradient reads): B T/N C
   numbers more than without context parallelism.

   BYTES that a rank sends, of a block in a micro-step:
       exchanges of heads  forward 4 B T C / N x (u - 1) / u numbers, backward as many
       ring                forward 2 B T C / N x (r - 1) numbers, backward as many, and as many f32
   and where backward computes blocks again forward's once more.

   DIVISORS. Each rank has the same number of tokens, B T/N. A rank computes the gradient of the
   mean loss of its tokens, and the context's mean over all data-parallel and context ranks is the
   gradient of the mean loss over all tokens: context ranks count as data-parallel for gradients and
   states. For the batch, N ranks count once, because they have the same sequences. A weight's
   gradient is a sum over pieces, so its bits depend on N, and on nothing else.

   ERRORS are sticky, as in ops.h: after an error nothing is sent, and `result` has it.

   OWNERS. A context_parallel belongs to a model. The groups are borrowed. The ring's thread runs
   from context_start to context_close, and only attention uses it. Its buffers are the model's. */
#ifndef GPT2_CONTEXT_H
#define GPT2_CONTEXT_H

#include <stddef.h>
#include <stdint.h>

#include "gpt2.h"
#include "ops.h"
#include "ring.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct context_parallel {
    zero_group *group; /* borrowed; NULL: one rank */
    size_t rank, size;
    zero_group *heads_group; /* u ranks that exchange heads; NULL: u is 1 */
    size_t heads;            /* u */
    zero_group *ring_group;  /* r ranks; NULL: r is 1 */
    void *ring_stream;       /* CUDA: its stream */
    size_t ring_size;        /* r */
    ring_attention *turns;   /* owned; NULL before context_start, or without a ring_attention */
    size_t bytes;            /* bytes of one activation value */
    size_t multiple;         /* sequences have a multiple of this number of tokens */
    zero_result result;
    const zero_group *failed; /* the group with the sentence of `result` */
} context_parallel;

/* How ranks divide attention. AUTO: ULYSSES if the number of ranks divides the heads; otherwise
   BOTH if they have a common divisor, and RING if not. */
typedef enum context_way { CONTEXT_AUTO, CONTEXT_ULYSSES, CONTEXT_RING, CONTEXT_BOTH } context_way;

typedef struct context_shape {
    const gpt2_config *cfg;
    int tp;             /* tensor-parallel ranks, which divide the heads before */
    int sequence;       /* 1: they also divide the rows of a piece (sequence parallelism) */
    int seq_len, ranks; /* T, N */
} context_shape;

/* Sets *ring_ranks, r, which divides the ranks: BOTH exchanges heads among as many ranks as
   possible (the largest u below N that divides N and the heads). Errors: ARGUMENT, and those of
   context_check. */
zero_result context_choose(const context_shape *s, context_way way, int *ring_ranks,
                           gpt2_error *err);

/* Returns ARGUMENT, with the reason and the nearest number of ranks or tokens, if the ranks, of
   which ring_ranks are a ring, cannot divide sequences. */
zero_result context_check(const context_shape *s, int ring_ranks, gpt2_error *err);

/* Returns a word for the way: "Ulysses", "ring" or "2 Ulysses x 2 ring" (CONTEXT_NAME bytes). */
enum { CONTEXT_NAME = 48 };
const char *context_name(int ranks, int ring_ranks, char name[CONTEXT_NAME]);

/* `how` NULL: a single rank. */
void context_open(context_parallel *p, const gpt2_parallel *how, zero_type type);
/* Starts the ring's thread, if there is a ring. `stream`, CUDA: that of the operations; CPU: NULL.
   Errors: MEMORY. */
zero_result context_start(context_parallel *p, void *stream);
void context_close(context_parallel *p);
/* Returns the sentence of `result`. */
const char *context_error(const context_parallel *p);

/* Consecutive tokens of a rank: n tokens from position `first` of a sequence on are its rows from
   `at` on, of each sequence. */
typedef struct context_span {
    size_t at, first, n;
} context_span;

/* Lists the spans of `rank` in sequences of which each rank has `piece` tokens, in the order of its
   rows. Returns their number, 1 or 2. */
size_t context_spans(const context_parallel *p, size_t rank, size_t piece, context_span list[2]);
/* Returns the rank that has token t of a sequence, and its row. */
size_t context_find(const context_parallel *p, size_t t, size_t piece, size_t *row);
/* Returns the number of which sequences must be a multiple, also those of a whole model with
   sequence parallelism. */
size_t context_multiple(const context_parallel *p);

/* Copies this rank's pieces of B whole sequences [B][N piece] to `to` [B][piece]. */
void context_take(const context_parallel *p, int *to, const int *from, size_t B, size_t piece);

/* Returns the shape of attention after an exchange: `piece` has this rank's tokens and all heads.
 */
ops_heads context_heads(const context_parallel *p, const ops_heads *piece);

/* Copies the bias of q, k and v (3, NH, head_size) of this rank's heads to `out`. */
void context_bias(const context_parallel *p, ops_ctx *o, void *out, const void *bias,
                  const ops_heads *piece);

/* The two exchanges, of `parts` arrays at once: 3 of qkv, 1 of the output. `spare` has as many
   bytes as `in` and can be `in`, which is then overwritten; `out` overlaps neither. COLLECTIVE over
   the group.
   to_heads: in (B, T/N, parts, NH, head_size), out (B, T/r, parts, NH/u, head_size)
   to_pieces: the other way. */
void context_to_heads(context_parallel *p, ops_ctx *o, void *out, const void *in, void *spare,
                      size_t parts, const ops_heads *piece);
void context_to_pieces(context_parallel *p, ops_ctx *o, void *out, const void *in, void *spare,
                       size_t parts, const ops_heads *piece);

/* Compute ops_attention and ops_attention_backward of the heads and tokens that this rank has after
   the exchange, by the ring if there is one. `memory`: of the call; bytes and shape are set here.
   dqkv may be qkv with a ring. COLLECTIVE. */
void context_attend(context_parallel *p, ops_ctx *o, const ring_call *memory, void *out, float *lse,
                    const ops_heads *shape);
void context_attend_backward(context_parallel *p, ops_ctx *o, const ring_call *memory, void *dqkv,
                             const void *dout, const void *out, const float *lse,
                             const ops_heads *shape);

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

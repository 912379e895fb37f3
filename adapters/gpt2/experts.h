/* experts.h - a mixture of experts (MoE): every second block of GPT-2 (1, 3, ...) has E experts
   instead of an MLP, and the router sends each token to its top k of them (Shazeer et al. 2017;
   GShard, Lepikhin et al. 2021; Switch, Fedus et al. 2022).

   TENSORS of a context of their own, which joins that of all else (zero_config.joins), since
   experts shard over other ranks. Lm layers of experts; N ranks share a layer's experts, El = E / N
   on each; n tensor-parallel ranks share an expert's hidden channels, H = 4C / n on each:
       gatew   (Lm, E, C)     on every rank, units 0 .. Lm - 1
       xfcw    (Lm El, H, C)
       xfcb    (Lm El, H)     an expert is a unit of its own, Lm + i El + e, so that any N gives the
       xprojw  (Lm El, C, H)  same units of the model
       xprojb  (Lm El, C)     on every tensor-parallel rank
   The ranks of an expert group are neighbours among the data-parallel ones; those that have the
   same experts, one of each group, shard them. Gradients of experts are sums over these, of gates
   over all, and both are divided by the number of data-parallel ranks: each token's loss is in the
   mean once, wherever its expert is. The stage of a pipeline has the layers of its blocks, which
   are cut by twos (stages.h).

   A LAYER. gates = softmax(x gatew'), in f32; each row's k largest, first choices before second
   ones, take the slots of their experts, row by row: capacity = max(4, ceil(R / E * factor * k)) of
   this rank's R rows, at most R; what finds none is dropped (its residual goes on alone). With k 2
   an expert's result is weighted by its gate over the sum of the gates that were not dropped, as in
   GShard: if one of the two is dropped, the other has the weight 1. Slots travel to their experts,
   and results back: two all-to-alls forward, two backward, of [E][capacity][C] numbers each. They
   are kept rather than sent again where blocks are recomputed. The auxiliary loss is E sum over e
   of (share of first choices of e) (mean gate of e), times moe.aux, of each rank's rows by
   themselves. No token is chosen at random: what DeepSpeed draws (use_rts, the second expert's
   noise) is first come, first served, here.

   TENSOR PARALLELISM. Every rank of a group has all rows, chooses the same slots, and computes its
   columns of each expert: what it gives is a part of a sum, which the model adds up, R rows forward
   and R rows backward, as after a dense MLP. Gradients of the weights of choices, which are
   products with whole results, are added up here: an all-reduce of R k floats, backward.

   ERRORS are sticky; the result is that of the first. */
#ifndef GPT2_EXPERTS_H
#define GPT2_EXPERTS_H

#include "gpt2.h"
#include "ops.h"
#include "tensor_parallel.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { EXPERTS_TENSORS = 5, EXPERTS_ARRAYS = EXPERTS_TENSORS };
enum { EXPERTS_GATEW, EXPERTS_XFCW, EXPERTS_XFCB, EXPERTS_XPROJW, EXPERTS_XPROJB };

/* ---- before anything is built ---------------------------------------------------------------- */

/* Layers of experts; 0 without. */
int experts_layers(const gpt2_config *cfg);
int experts_is_layer(const gpt2_config *cfg, int block);
/* Elements of gates and experts of the whole model. */
size_t experts_numel(const gpt2_config *cfg);

/* Checks a mixture of experts over this number of ranks. The sentence has the nearest possible
   number. Errors: ARGUMENT. */
zero_result experts_check(const gpt2_config *cfg, int ranks, gpt2_error *err);

/* What a rank has of them. */
typedef struct experts_part {
    int rank, ranks;                /* of those that share a layer's experts */
    int tp_rank, tp;                /* of those that share an expert's hidden channels */
    const struct gpt2_stage *stage; /* of a pipeline, borrowed; NULL: all layers */
} experts_part;
experts_part experts_part_of(const gpt2_parallel *how); /* NULL: all */

/* This rank's tensors. */
void experts_table(const gpt2_config *cfg, const experts_part *part,
                   zero_tensor_desc out[EXPERTS_TENSORS]);
/* Announces them in z, which is how->experts; those of how->ep sum the gates' gradients. */
zero_result experts_announce(zero_ctx *z, const gpt2_config *cfg, const gpt2_parallel *how);

/* Units of the context, and the number of each among all: those of the rest come first, `dense` of
   them. out [experts_units]. */
int experts_units(const gpt2_config *cfg, const experts_part *part);
int experts_world_units(const gpt2_config *cfg);
void experts_world(const gpt2_config *cfg, const experts_part *part, int dense, int *out);

/* The plan of both contexts together: figures of bytes and numbers of elements are sums. */
void experts_add_plan(zero_plan *plan, const zero_plan *experts);

/* Weights as a training starts with them: gpt2_init's, streams 17 (gatew), 18 (xfcw) and 19
   (xprojw), elements counted over all experts of all layers. COLLECTIVE over the ranks of z. */
zero_result experts_init(zero_ctx *z, const gpt2_config *cfg, const gpt2_parallel *how,
                         uint64_t seed);

/* A hash of what the whole model's experts are: XOR over (layer, expert), the same however they are
   shared. COLLECTIVE over all ranks. Errors: MEMORY, those of zero_read_tensor and of groups. */
zero_result experts_hash(zero_ctx *z, const gpt2_config *cfg, const gpt2_parallel *how,
                         uint64_t *hash);

/* zero_read_tensor for one layer, or expert, of this rank: elements [first, first + n) of the dense
   tensor. `out` may be NULL. COLLECTIVE over the ranks that have the same experts,
   or parts of them. */
zero_result experts_read(zero_ctx *z, const gpt2_config *cfg, const gpt2_parallel *how, int tensor,
                         zero_kind kind, int layer, size_t first, size_t n, float *out);
/* The number of this rank's layer, or expert, among those of the whole model. */
int experts_number(const gpt2_config *cfg, const experts_part *part, int tensor, int layer);
/* gpt2_place_of of one of these tensors. An expert is a row; which ones a rank has is in `first`.
 */
int experts_place_of(const gpt2_config *cfg, const gpt2_parallel *how, const char *name, size_t at,
                     gpt2_place *out);

/* Slots of an expert for R rows of a rank. */
size_t experts_capacity(const gpt2_config *cfg, size_t R);
/* Returns the bytes of memory of the experts in a run, in addition to those of gpt2.h. */
size_t experts_bytes(const gpt2_config *cfg, const gpt2_run *run);
/* Bytes that a rank sends in a micro-step of training, as zero_group_stats counts them: 4
   all-to-alls a layer of E capacity C numbers, of which (N-1)/N go to other ranks; of n
   tensor-parallel ranks also 2 (n-1)/n of R k floats. Sums of rows are gpt2_parallel_bytes'. */
uint64_t experts_sent(const gpt2_config *cfg, const gpt2_run *run);
/* The two where so many ranks share a layer's experts, whatever run->parallel says. */
size_t experts_bytes_of(const gpt2_config *cfg, const gpt2_run *run, int ranks);
uint64_t experts_sent_of(const gpt2_config *cfg, const gpt2_run *run, int ranks);

/* ---- of a model ------------------------------------------------------------------------------ */

typedef struct experts experts;

/* run->parallel has group and context. Borrows ops. On an error *x is NULL. Errors: MEMORY. */
zero_result experts_create(experts **x, const gpt2_config *cfg, const gpt2_run *run, ops_ctx *ops,
                           gpt2_error *err);
void experts_destroy(experts *x); /* NULL is allowed */
const char *experts_error(const experts *x);

zero_result experts_pass_begin(experts *x, zero_pass kind, int micro, int micro_steps);
zero_result experts_pass_end(experts *x);

/* The values of layers `first` .. that the next calls leave, or need: of a micro-batch of a
   pipeline in its slot. Without one: slot 0, from layer 0 on. */
void experts_choose(experts *x, int slot, int first);

/* C zeros of the run's type, for a sum that is whole already. */
const void *experts_no_bias(const experts *x);

/* Layer i, of this rank's: out (R, C) = residual + the mixture of in. residual NULL: without; of a
   part of each expert it is, and out is a part of a sum. `counts`: a training's, for experts_take.
 */
zero_result experts_forward(experts *x, int i, void *out, const void *residual, const void *in,
                            size_t R, int counts);
/* din (R, C) is stored, from dout and in, all rows; of a part of each expert it is a part of a sum.
   aux: what the auxiliary loss is multiplied by, its factor included. */
zero_result experts_backward(experts *x, int i, void *din, const void *in, const void *dout,
                             size_t R, float aux);

/* Sums since they were last taken: of the auxiliary losses of layers, and choices dropped. SYNC. */
void experts_take(experts *x, double *aux, double *dropped);

#ifdef __cplusplus
}
#endif
#endif

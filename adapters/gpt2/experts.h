/* experts.h - a mixture of experts (MoE): every second block of GPT-2 (1, 3, ...) has E experts
   instead of an MLP, and the router sends each token to its top k of them (Shazeer et al. 2017;
   GShard, Lepikhin et al. 2021; Switch, Fedus et al. 2022).

   TENSORS. Experts have a context of their own, because they shard over other ranks than the other
   tensors. It joins the other context (zero_config.joins). The model has Lm layers of experts. N
   ranks share the experts of a layer, so each has El = E / N. n tensor-parallel ranks share the
   hidden channels of an expert, so each has H = 4C / n:
       gatew   (Lm, E, C)     on every rank, units 0 .. Lm - 1
       xfcw    (Lm El, H, C)
       xfcb    (Lm El, H)     an expert is a unit of its own, Lm + i El + e, so that the model has
       xprojw  (Lm El, C, H)  the same units for each N
       xprojb  (Lm El, C)     on every tensor-parallel rank
   The ranks of an expert group are neighbours among the data-parallel ranks, where those of context
   parallelism count as data-parallel. Ranks that have the same experts, one of each group, shard
   these experts, and sum their gradients. Gradients of gates are sums over all ranks. Both are
   divided by the number of data-parallel ranks, so the mean contains each token's loss once. A
   pipeline stage has the layers of its own blocks; blocks stay in pairs (stages.h).

   A LAYER. gates = softmax(x gatew'), in f32. The k largest gates of each row are its choices. They
   take slots of their experts row by row, all first choices before the second ones. An expert has
   capacity = max(4, ceil(R / E * factor * k)) slots for this rank's R rows, at most R. A choice
   that finds no slot is dropped; then only the residual of its row remains. With k = 2 the result
   of an expert is weighted by its gate over the sum of the gates that were not dropped, as in
   GShard; if one of the two is dropped, the other has the weight 1. Rows in slots are sent to their
   experts, and results are sent back: two all-to-alls forward and two backward, of
   [E][capacity][C] numbers each. If blocks are recomputed, these rows are kept, and not sent again.
   The auxiliary loss is E sum over e of (share of first choices of e) (mean gate of e), times
   moe.aux, for the rows of each rank separately, which with context parallelism are pieces of
   sequences. Nothing is random. Where DeepSpeed draws (use_rts,
   the noise of the second expert), the earlier row has priority here.

   TENSOR PARALLELISM. Every rank of a group has all rows, makes the same choices, and computes its
   columns of each expert. The result is its part of a sum, which the model adds up as after a dense
   MLP: R rows forward and R rows backward. Gradients of the weights of choices are products with
   whole results, so experts.c adds them up: an all-reduce of R k floats in backward.

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

/* Returns the number of layers with experts. 0: the model has none. */
int experts_layers(const gpt2_config *cfg);
int experts_is_layer(const gpt2_config *cfg, int block);
/* Returns the number of elements in the gates and experts of the whole model. */
size_t experts_numel(const gpt2_config *cfg);

/* Checks a mixture of experts over this number of ranks. The sentence has the nearest possible
   number. Errors: ARGUMENT. */
zero_result experts_check(const gpt2_config *cfg, int ranks, gpt2_error *err);

/* The part of the experts that a rank has. */
typedef struct experts_part {
    int rank, ranks; /* among the ranks that share the experts of a layer */
    int tp_rank, tp; /* among the ranks that share the hidden channels of an expert */
    const struct gpt2_stage *stage; /* borrowed: the stage of a pipeline; NULL: all layers */
} experts_part;
experts_part experts_part_of(const gpt2_parallel *how); /* how NULL: this rank has all experts. */

/* Describes this rank's tensors. */
void experts_table(const gpt2_config *cfg, const experts_part *part,
                   zero_tensor_desc out[EXPERTS_TENSORS]);
/* Announces the tensors in z, which is how->experts. The ranks of how->ep sum the gradients of the
 * gates. */
zero_result experts_announce(zero_ctx *z, const gpt2_config *cfg, const gpt2_parallel *how);

/* experts_units returns the number of units in the context. experts_world writes the number of each
 * one among all units of the model, where the `dense` units without experts come first. out
 * [experts_units]. */
int experts_units(const gpt2_config *cfg, const experts_part *part);
int experts_world_units(const gpt2_config *cfg);
void experts_world(const gpt2_config *cfg, const experts_part *part, int dense, int *out);

/* Adds the plan of the experts' context to that of the other one. Bytes and numbers of elements are
 * sums. */
void experts_add_plan(zero_plan *plan, const zero_plan *experts);

/* Writes the first weights. They are drawn as in gpt2_init, from streams 17 (gatew), 18 (xfcw) and
 * 19 (xprojw); elements are counted over all experts of all layers. COLLECTIVE over the ranks of z.
 */
zero_result experts_init(zero_ctx *z, const gpt2_config *cfg, const gpt2_parallel *how,
                         uint64_t seed);

/* Computes a hash of all experts of the model: the XOR over (layer, expert). It does not depend on
 * how ranks share the experts. COLLECTIVE over all ranks. Errors: MEMORY, those of zero_read_tensor
 * and of groups. */
zero_result experts_hash(zero_ctx *z, const gpt2_config *cfg, const gpt2_parallel *how,
                         uint64_t *hash);

/* Reads elements [first, first + n) of one layer, or expert, of this rank, as zero_read_tensor
 * does; elements are numbered as in the tensor of the whole model. `out` may be NULL. COLLECTIVE
 * over the ranks that have the same experts, or parts of them. */
zero_result experts_read(zero_ctx *z, const gpt2_config *cfg, const gpt2_parallel *how, int tensor,
                         zero_kind kind, int layer, size_t first, size_t n, float *out);
/* Returns the number in the whole model of a layer, or expert, of this rank. */
int experts_number(const gpt2_config *cfg, const experts_part *part, int tensor, int layer);
/* Does for one of these tensors what gpt2_place_of does. An expert is a row; `first` is the first
 * one that the rank has. */
int experts_place_of(const gpt2_config *cfg, const gpt2_parallel *how, const char *name, size_t at,
                     gpt2_place *out);

/* Returns the number of slots of an expert for R rows of a rank. */
size_t experts_capacity(const gpt2_config *cfg, size_t R);
/* Returns the bytes of memory of the experts in a run, in addition to those of gpt2.h. */
size_t experts_bytes(const gpt2_config *cfg, const gpt2_run *run);
/* Returns the bytes that a rank sends in a micro-step of training, as zero_group_stats counts them.
 * Each layer has 4 all-to-alls of E capacity C numbers, of which (N-1)/N go to other ranks. With n
 * tensor-parallel ranks, each layer also has 2 (n-1)/n of R k floats. gpt2_parallel_bytes counts
 * the sums of rows. */
uint64_t experts_sent(const gpt2_config *cfg, const gpt2_run *run);
/* The same two numbers if `ranks` ranks share the experts of a layer, instead of the number in
 * run->parallel. */
size_t experts_bytes_of(const gpt2_config *cfg, const gpt2_run *run, int ranks);
uint64_t experts_sent_of(const gpt2_config *cfg, const gpt2_run *run, int ranks);

/* ---- of a model ------------------------------------------------------------------------------ */

typedef struct experts experts;

/* The units of a layer on a rank, which gpt2_train_layers opens together (cfg.open_units), and the
   order in which it opens them (zero_pass_order, after experts_announce). Errors: MEMORY, those of
   zero_pass_order. */
int experts_open_units(const gpt2_config *cfg, const experts_part *part);
zero_result experts_order(zero_ctx *z, const gpt2_config *cfg, const experts_part *part);

/* Creates the experts of a model. run->parallel has the group and the context. Borrows ops. On an
 * error *x is NULL. Errors: MEMORY. */
zero_result experts_create(experts **x, const gpt2_config *cfg, const gpt2_run *run, ops_ctx *ops,
                           gpt2_error *err);
void experts_destroy(experts *x); /* NULL is allowed */
const char *experts_error(const experts *x);

zero_result experts_pass_begin(experts *x, zero_pass kind, int micro, int micro_steps);
zero_result experts_pass_end(experts *x);

/* Selects where the next calls store, or find, the values of layers `first` and later: the slot of
 * a pipeline's micro-batch. Without a pipeline use slot 0 and layer 0. */
void experts_choose(experts *x, int slot, int first);

/* Opens all units of this rank's layer i, or closes them, while several micro-batches pass it
   (gpt2_train_layers). The hooks of the calls below nest inside. The context's settings must allow
   experts_open_units, and experts_order must be announced. */
zero_result experts_hold(experts *x, int i, int backward);
zero_result experts_release(experts *x, int i, int backward);

/* Returns C zeros of the run's type: the bias of a sum that contains its bias already. */
const void *experts_no_bias(const experts *x);

/* Forward of this rank's layer i: out (R, C) = residual + the mixture of in. residual NULL: only
 * the mixture. With tensor parallelism residual is NULL, and out is this rank's part of a sum.
 * counts 1: a training pass, which experts_take counts. */
zero_result experts_forward(experts *x, int i, void *out, const void *residual, const void *in,
                            size_t R, int counts);
/* Backward of this rank's layer i: stores din (R, C), all rows, from dout and in. With tensor
 * parallelism din is this rank's part of a sum. aux: the factor of the auxiliary loss, including
 * its weight. */
zero_result experts_backward(experts *x, int i, void *din, const void *in, const void *dout,
                             size_t R, float aux);

/* Returns two sums since the last call: the auxiliary losses of the layers, and the number of
 * dropped choices. SYNC. */
void experts_take(experts *x, double *aux, double *dropped);

#ifdef __cplusplus
}
#endif
#endif

/* layout.h - how the ranks of a run are divided: pipeline stages of data-parallel ranks of
   tensor-parallel ranks, those that talk most next to each other:
       rank = (pp_rank * dp + dp_rank) * tp + tp_rank,  ranks = pp * dp * tp

   The stages of a pipeline (one dp_rank and tp_rank) have blocks of the model one after the other.
   Tensor-parallel ranks (one dp_rank) have the same data and parts of one model; a context shards
   each part over the data-parallel ranks (one tp_rank) that have it. Norm, overflow and skip are
   agreed over all (zero_config.world). Where all ranks are data-parallel there are no groups, and
   the context has the launcher's communicator.

   EXPERTS have a context of their own (../gpt2/experts.h) beside the one that is given here: so
   these functions stand in the place of zero_build and what follows it.

   Functions that can fail return 0, or 1 and a sentence, or a zero_result. */
#ifndef PARALLEL_LAYOUT_H
#define PARALLEL_LAYOUT_H

#include <stddef.h>

#include "../../zero_plugin.h"
#include "../checkpoint/checkpoint.h"
#include "../gpt2/gpt2.h"
#include "../gpt2/pipelined.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { LAYOUT_MOST = 8, LAYOUT_NAME = 48 }; /* of a list; bytes of a name */

typedef struct layout_sizes {
    int pp, tp; /* the rest is data-parallel */
    int ep;     /* data-parallel ranks that share a layer's experts */
    int apart;  /* 1: those that have the same experts are neighbours, not those that share them */
} layout_sizes;

typedef struct layout {
    int pp, dp, tp;  /* ranks of each kind */
    int ranks, rank; /* of all; this one, and what that is */
    int pp_rank, dp_rank, tp_rank;
    int ep, ep_rank;          /* of the data-parallel ranks, those that share experts */
    int ep_group;             /* which of these groups */
    int apart;                /* ranks that have the same ones are neighbours */
    int mixed;                /* the model has some */
    int tile_rows;            /* wte is in tiles of so many rows at most; 0: whole */
    zero_group *same;         /* the ranks that have the same ones */
    zero_ctx *experts;        /* what has them; NULL: there are none */
    zero_group *world, *data; /* NULL: data parallelism alone */
    gpt2_parallel part;       /* what a model is told; its group NULL: the model is whole */
    double *sums;             /* memory that groups reach */
    gpt2_stage stage;         /* of a pipeline: this rank's */
    int *world_unit;          /* of the context's units, where there is a pipeline */
    int *expert_unit;         /* of the experts' context's */
    const gpt2_config *model; /* borrowed, from layout_settings on */
} layout;

/* What the ranks are, and this one: no rank is asked. Sizes: 1 or more. */
int layout_divide(layout *l, int ranks, int rank, layout_sizes sizes, char *sentence, size_t bytes);

/* The stages of a pipeline, of so many chunks, and micro-steps: behind layout_divide. */
int layout_stages(layout *l, const gpt2_config *model, int chunks, int micro_steps, int seq_len,
                  char *sentence, size_t bytes);

/* Of so many data-parallel ranks that follow one another, those that have the same experts: what
   -zs, -zh and -ns are for the experts' context; 0: not as many everywhere. Whether these two can
   be: 0, or 1 and a sentence. */
int layout_same(const layout *l, int ranks);
int layout_near(const layout *l, int shard_ranks, int second_ranks, char *sentence, size_t bytes);

/* "dp4", "tp2dp2", "pp2tp2": each kind once, in any order; ranks of kinds that are not named: 1.
   The words of a list are separated by blanks or commas. Returns 0 and word number i, -1 behind the
   last word, or 1. */
int layout_word(const char *list, int i, int ranks, layout_sizes *sizes, char *sentence,
                size_t bytes);

/* Words of a list. The most data-parallel ranks that one of them has; words are right. */
int layout_words(const char *list);
int layout_most_data(const char *list, int ranks);

/* Of the kinds that have more than one rank: "tp2dp2"; "dp1" for one rank alone. */
void layout_name(const layout *l, char name[LAYOUT_NAME]);

/* Makes the groups, of `comm`, which is borrowed until layout_close; on an error, too, that is to
   be called. `stream` as in zero_group_open. COLLECTIVE. */
zero_result layout_open(layout *l, const zero_comm *comm, void *stream, double timeout_s);
const char *layout_error(const layout *l);
void layout_close(layout *l); /* after contexts and models */

/* What the settings of a context take of it; borrowed until layout_close. Errors: MEMORY. */
zero_result layout_settings(layout *l, const gpt2_config *model, zero_config *c);
/* What a context is made with. */
zero_comm layout_comm(const layout *l, const zero_comm *comm);

/* Makes the experts' context, whose settings are those that `z` was made with, but for what its
   trace_user is, with shard_ranks, second_ranks and node_size (of layout_comm, or 0) counted among
   the ranks that have the same experts, and announces its tensors; then the plan of both together:
   figures of bytes are sums. Errors: those of zero_create, zero_tensor and zero_query_plan.
   COLLECTIVE. */
zero_result layout_experts(layout *l, zero_ctx *z, const gpt2_config *model, const zero_config *c,
                           int node_size, void *trace_user);
zero_result layout_plan(const layout *l, zero_ctx *z, zero_plan *plan);

/* Before the plan: of a stage of a pipeline that gathers weights, the order that it does in. */
zero_result layout_order(const layout *l, zero_ctx *z, const gpt2_config *model,
                         const zero_config *c);

/* zero_build, zero_reduce, zero_step (hyper NULL: zero_skip_step), zero_apply_pending and
   zero_destroy of both. The plan is told once more, for what it knows from the build on. */
zero_result layout_build(const layout *l, zero_ctx *z, zero_plan *plan);
zero_result layout_reduce(const layout *l, zero_ctx *z);
zero_result layout_step(const layout *l, zero_ctx *z, const zero_hyper *hyper);
zero_result layout_apply_pending(const layout *l, zero_ctx *z);
void layout_destroy(layout *l, zero_ctx *z);
/* The experts' weights into a hash of the others. COLLECTIVE, SYNC. */
zero_result layout_hash(const layout *l, const gpt2_config *model, uint64_t *hash);

/* Of what is beside the context: the experts' zero_query_stats, to which the groups' bytes sent and
   seconds waited are added. SYNC. Errors: those of zero_query_stats. */
zero_result layout_stats(const layout *l, zero_stats *stats);

/* How a checkpoint, of experts or of the rest, knows what this rank has; borrows the layout. Behind
   layout_settings. */
checkpoint_parts layout_parts(const layout *l, int of_experts);

/* Sums over all ranks of the run, of at most 8 values (none: a barrier): zero_all_sum, where
   all are of the context.
   COLLECTIVE, SYNC. */
zero_result layout_sum(layout *l, zero_ctx *z, double *values, int n);
/* The same of values that one rank of each model has, the others of its ranks the same or, in a
   pipeline before the last stage, zeros. */
zero_result layout_sum_data(layout *l, zero_ctx *z, double *values, int n);

#ifdef __cplusplus
}
#endif
#endif

/* layout.h - divides the ranks of a run into pipeline stages of data-parallel ranks of
   context-parallel ranks of tensor-parallel ranks. Ranks that communicate most are neighbours:
       rank = ((pp_rank * dp + dp_rank) * cp + cp_rank) * tp + tp_rank,  ranks = pp * dp * cp * tp

   The stages of a pipeline (one dp_rank, cp_rank and tp_rank) have consecutive blocks of the model.
   Tensor-parallel ranks (one dp_rank) have the same data and parts of one model. A context shards
   each part over the data-parallel ranks (one tp_rank) that have it. All ranks agree on norm,
   overflow and skipped steps (zero_config.world). If all ranks are data-parallel, the layout makes
   no groups and the context uses the launcher's communicator.

   Context-parallel ranks (one pp_rank, dp_rank and tp_rank) have pieces of the same sequences
   (../gpt2/context.h):
   `ring` neighbours of cp / ring neighbours that exchange heads, cp_rank = ring's number times
   (cp / ring) + number among them. A context shards over all ranks with the same part of the model,
   so for gradients and states they count as data-parallel, and also for experts (layout_shards).
   `dp` and dp_rank, which divide the data, count them once.

   EXPERTS have a second context (../gpt2/experts.h). The functions below replace zero_build,
   zero_reduce, zero_step and zero_destroy, because they act on both contexts.

   Functions that can fail return a zero_result, or 0 or 1 and a sentence. */
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

struct device; /* ../gpt2/device.h */

enum { LAYOUT_MOST = 8, LAYOUT_NAME = 48 }; /* values in a list; bytes of a name */

typedef struct layout_sizes {
    int pp, tp; /* remaining ranks are data-parallel */
    int ep;     /* data-parallel and context-parallel ranks that share a layer's experts */
    int apart;  /* 1: ranks with the same experts are neighbours, not those that share them */
    int cp;     /* ranks that share the sequences of a data-parallel rank */
} layout_sizes;

typedef struct layout {
    int pp, dp, tp;  /* ranks of each kind */
    int ranks, rank; /* all ranks; this rank and its number in each kind */
    int pp_rank, dp_rank, tp_rank;
    int cp, cp_rank;          /* ranks that share the sequences of a data-parallel rank */
    int ring;                 /* of these, those that are a ring; 0: 1. Set it before layout_open */
    int ep, ep_rank;          /* among the ranks that shard, those that share experts */
    int ep_group;             /* number of this rank's such group */
    int apart;                /* 1: ranks with the same experts are neighbours */
    int mixed;                /* 1: the model has experts */
    int tile_rows;            /* most rows of a wte tile; 0: wte is whole */
    int together;             /* micro-batches that pass each layer together; 0: 1 */
    zero_group *same;         /* the ranks with the same experts */
    zero_group *pieces;       /* the ranks with the same pieces of sequences */
    zero_group *circle;       /* CUDA: the ranks of part.ring, which has a stream of its own */
    zero_ctx *experts;        /* context of the experts; NULL: none */
    zero_group *world, *data; /* NULL: data parallelism alone */
    gpt2_parallel part;       /* for the model; its group is NULL if the model is whole */
    double *sums;             /* memory that groups can use */
    gpt2_stage stage;         /* this rank's pipeline stage */
    int *world_unit;          /* of the context's units, with a pipeline */
    int *expert_unit;         /* of the units of the experts' context */
    const gpt2_config *model; /* borrowed from layout_settings on */
    int leaves_frozen;        /* 1: checkpoints have no tensors in which all layers are frozen */
} layout;

/* Computes all numbers of this rank without communication. Sizes are 1 or more. */
int layout_divide(layout *l, int ranks, int rank, layout_sizes sizes, char *sentence, size_t bytes);

/* Sets the pipeline's stages, chunks and micro-steps. Call it after layout_divide. */
int layout_stages(layout *l, const gpt2_config *model, int chunks, int micro_steps, int seq_len,
                  char *sentence, size_t bytes);

/* Returns the ranks over which a context shards: with the same part of the model. */
int layout_shards(const layout *l);

/* layout_same returns how many of `ranks` consecutive such ranks have the same experts:
   -zs, -zh and -ns for the experts' context. 0: not the same number everywhere. layout_near returns
   0, or 1 and a sentence if the combination is not possible. */
int layout_same(const layout *l, int ranks);
int layout_near(const layout *l, int shard_ranks, int second_ranks, char *sentence, size_t bytes);

/* Parses "dp4", "tp2dp2", "cp2dp2" or "pp2tp2": each kind at most once, in any order; kinds that
   are not named have 1 rank. Blanks or commas separate words. Returns 0 and word i, -1 after the
   last word, or 1 on an error. */
int layout_word(const char *list, int i, int ranks, layout_sizes *sizes, char *sentence,
                size_t bytes);

/* The number of words, and the most data-parallel ranks of any word (which divide the data). The
 * list must be valid. */
int layout_words(const char *list);
int layout_most_data(const char *list, int ranks);

/* Writes the kinds that have more than one rank, as "tp2dp2"; "dp1" for a single rank. */
void layout_name(const layout *l, char name[LAYOUT_NAME]);

/* Opens the groups on `comm`, which is borrowed until layout_close. Call layout_close after an
   error, too. d: the streams of the groups, or NULL on the CPU. COLLECTIVE. */
zero_result layout_open(layout *l, const zero_comm *comm, const struct device *d, double timeout_s);
const char *layout_error(const layout *l);
void layout_close(layout *l); /* after contexts and models */

/* Fills the context's settings from the layout, borrowed until layout_close. Errors: MEMORY. */
zero_result layout_settings(layout *l, const gpt2_config *model, zero_config *c);
/* Returns the communicator for zero_create. */
zero_comm layout_comm(const layout *l, const zero_comm *comm);

/* Creates the experts' context and announces its tensors. Its settings are those of `z`, except
   trace_user. shard_ranks, second_ranks and node_size (of layout_comm, or 0) count ranks that have
   the same experts. Then it reports the plan of both contexts, whose byte figures are sums. Errors:
   those of zero_create, zero_tensor and zero_query_plan. COLLECTIVE. */
zero_result layout_experts(layout *l, zero_ctx *z, const gpt2_config *model, const zero_config *c,
                           int node_size, void *trace_user);
zero_result layout_plan(const layout *l, zero_ctx *z, zero_plan *plan);

/* Call before the plan. Sets the order in which a pipeline stage gathers weights. */
zero_result layout_order(const layout *l, zero_ctx *z, const gpt2_config *model,
                         const zero_config *c);

/* zero_build, zero_reduce, zero_step (hyper NULL: zero_skip_step), zero_apply_pending and
   zero_destroy of both contexts. layout_build reports the plan again, with the bytes of the build.
 */
zero_result layout_build(const layout *l, zero_ctx *z, zero_plan *plan);
zero_result layout_reduce(const layout *l, zero_ctx *z);
zero_result layout_step(const layout *l, zero_ctx *z, const zero_hyper *hyper);
zero_result layout_apply_pending(const layout *l, zero_ctx *z);
void layout_destroy(layout *l, zero_ctx *z);
/* Combines the experts' weights with a hash of the others. COLLECTIVE, SYNC. */
zero_result layout_hash(const layout *l, const gpt2_config *model, uint64_t *hash);

/* Adds the zero_query_stats of the experts' context, and the bytes sent and seconds waited of the
   groups, without the time of a ring's messages, which are overlapped (gpt2_waited_s). SYNC.
   Errors: those of zero_query_stats. */
zero_result layout_stats(const layout *l, zero_stats *stats);

/* Describes to a checkpoint which parts this rank has, of experts or of the rest. It borrows the
   layout. Call it after layout_settings. */
checkpoint_parts layout_parts(const layout *l, int of_experts);

/* Sums up to 8 values over all ranks of the run (0 values: a barrier). If one context has all
   ranks, it calls zero_all_sum. COLLECTIVE, SYNC. */
zero_result layout_sum(layout *l, zero_ctx *z, double *values, int n);
/* The same for values that one rank of each model has. The other ranks have the same values, or in
   a pipeline before the last stage zeros. Context-parallel ranks have a part of the sum each. */
zero_result layout_sum_data(layout *l, zero_ctx *z, double *values, int n);

#ifdef __cplusplus
}
#endif
#endif

/* flops_table.h - what a layer of GPT-2 computes, and how fast.

   Floating-point operations of forward, a multiplication and an addition being two: a product of a
   token with a matrix of r x c has 2 r c, attention over a window of T tokens 4 C T (scores and
   values; the causal half that is masked counts, as in PaLM's appendix B). Backward has twice as
   many. What is computed again (-r) does not count, as it does not in MFU. Lookups, norms, GELU
   and the experts' router are not counted; of experts those that a token asks are. Times are those
   of the units' slices of one step: on the compute track, without what is waited for before.

   WHY A ROOM. It is arithmetic on a model and on events, and tested as that.
*/
#ifndef FLOPS_TABLE_H
#define FLOPS_TABLE_H

#include <stdint.h>

#include "../../zero_plugin.h"
#include "../gpt2/gpt2.h"
#include "report.h"

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, word) */
#define FLOPS_KINDS(X)                                                                             \
    X(FLOPS_QKV, "queries, keys, values")                                                          \
    X(FLOPS_ATTENTION, "attention")                                                                \
    X(FLOPS_ATTENTION_OUT, "attention's projection")                                               \
    X(FLOPS_FC, "fully connected, C to 4C")                                                        \
    X(FLOPS_FC_OUT, "fully connected, 4C to C")                                                    \
    X(FLOPS_CLASSIFIER, "classifier")

#define FLOPS_ENUM(name, word) name,
typedef enum flops_kind { FLOPS_KINDS(FLOPS_ENUM) FLOPS_KIND_COUNT } flops_kind;
#undef FLOPS_ENUM

/* Operations of forward per token, of one layer without experts; of the classifier of the model. */
double flops_of(const gpt2_config *model, flops_kind kind, int seq_len);
/* Of forward per token, all layers and the classifier. */
double flops_forward(const gpt2_config *model, int seq_len);

typedef struct flops_table {
    gpt2_config model;
    int seq_len;
    int64_t rank_tokens; /* of a step of one rank, all micro-steps */
    int ranks;
    int tiles;    /* units of the embeddings before the blocks; 0: one unit */
    double share; /* of what processors or GPUs can do, over the whole step, and of what: "MFU",
                     "of matmul" (borrowed); set with `wall` */
    const char *of;
    int64_t step;       /* as of zero_event: that is measured */
    int passed;         /* 1: events of a later step were seen */
    double *seconds[2]; /* [units] forward and backward */
    double wall;        /* seconds of the step; 0: not known */
} flops_table;

/* Returns 1 without memory. `seconds` are the table's, from here to flops_close. */
int flops_open(flops_table *t);
void flops_close(flops_table *t);
void flops_events(flops_table *t, const zero_event *events, int n);
void flops_print(const flops_table *t, report *out);

#ifdef __cplusplus
}
#endif
#endif

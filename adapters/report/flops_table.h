/* flops_table.h - the floating-point operations of each GPT-2 layer, and its speed.

   A multiplication and an addition are two operations. In forward, a product of a token with a
   matrix of r x c has 2 r c. Attention over a sequence of T tokens has 4 C T, for scores and
   values; the masked causal half counts, as in PaLM's appendix B. Backward has twice as many.
   Recomputation (-r) does not count, as in MFU. Lookups, norms, GELU and the experts' router do not
   count. Only the experts that a token chose count. Times are those of the units' slices of one
   step on the compute track, without the waits before them.

   WHY A FILE. This is arithmetic on a model and on events, and tests give it both.
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

/* Returns the operations of forward per token, for one layer without experts or the classifier. */
double flops_of(const gpt2_config *model, flops_kind kind, int seq_len);
/* Returns the operations of forward per token, for all layers and the classifier. */
double flops_forward(const gpt2_config *model, int seq_len);

typedef struct flops_table {
    gpt2_config model;
    int seq_len;
    int64_t rank_tokens; /* tokens of one rank in all micro-steps of a step */
    int ranks;
    int tiles;    /* units of the embeddings before the blocks; 0: one unit */
    double share; /* of the peak rate, over the whole step; set with `wall`. `of` names the peak,
                     "MFU" or "of matmul" (borrowed) */
    const char *of;
    int64_t step;       /* the measured step, as zero_event counts */
    int passed;         /* 1: events of a later step have arrived */
    double *seconds[2]; /* [units] forward and backward */
    double wall;        /* seconds of the step; 0: not known */
} flops_table;

/* Allocates `seconds`, which flops_close frees. Returns 1 if memory is short. */
int flops_open(flops_table *t);
void flops_close(flops_table *t);
void flops_events(flops_table *t, const zero_event *events, int n);
void flops_print(const flops_table *t, report *out);

#ifdef __cplusplus
}
#endif
#endif

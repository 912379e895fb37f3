/* plan_print.h - plans in words: the table of stages and tiers, the largest models, advice.

   WHY A ROOM. What is planned for one case (plan.h) becomes a choice between cases here: a stage
   and tier is a row of a table, what it costs is said in a sentence.
*/
#ifndef PLAN_PRINT_H
#define PLAN_PRINT_H

#include "../options/train_resolve.h"
#include "machine.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct plan_request {
    train_options options; /* the trainer's, as typed */
    ds_config file;        /* of -ds; all 0 without */
    plan_model model;
    plan_limits most; /* of a rank */
    int ranks;        /* at least 1 */
    int on_gpus;
    const machine *machine; /* NULL: no times */
} plan_request;

/* The case of a stage with what was typed: tiers, batch, types. Returns 0, or 1 and a sentence. */
int plan_case_of(const plan_request *r, int stage, plan_case *c, char *sentence, size_t bytes);

/* To stdout. Returns 0, or 1 and a sentence. */
int plan_print(const plan_request *r, char *sentence, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif

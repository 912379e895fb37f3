/* plan_print.h - prints plans: the table of stages and tiers, the largest models, advice.

   WHY A FILE. plan.h plans one case, and this file compares cases. Each row of the table is a stage
   and a tier. A sentence reports its cost.
*/
#ifndef PLAN_PRINT_H
#define PLAN_PRINT_H

#include "../options/train_resolve.h"
#include "machine.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct plan_request {
    train_options options; /* the trainer's options, as typed */
    ds_config file;        /* the file of -ds; zeros without it */
    plan_model model;
    plan_limits most; /* limits of a rank */
    int ranks;        /* at least 1 */
    int on_gpus;
    const machine *machine; /* NULL: no times */
} plan_request;

/* Makes the case of a stage with the typed tiers, batch and types. Returns 0, or 1 and a sentence.
 */
int plan_case_of(const plan_request *r, int stage, plan_case *c, char *sentence, size_t bytes);

/* Prints all plans to stdout. Returns 0, or 1 and a sentence. */
int plan_print(const plan_request *r, char *sentence, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif

/* plan_request.h - turns the trainer's flags into cases of plan.h.

   WHY A FILE. zero_plan prints plans, and the trainer chooses one (-z auto). Both begin with the
   same flags.
*/
#ifndef PLAN_REQUEST_H
#define PLAN_REQUEST_H

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

/* Return 1 if a flag gives the batch, and if flags give tiers. */
int plan_batch_typed(const plan_request *r);
int plan_tiers_typed(const train_options *o);

#ifdef __cplusplus
}
#endif
#endif

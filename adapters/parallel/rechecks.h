/* rechecks.h - the trainer's --check-products: groups for the checks of ../gpt2/recheck.h, the
   steps that check, and what follows from a difference.

   The groups are opened on a communicator of their own, so the layout's groups and the contexts are
   those of a run without checks. */
#ifndef RECHECKS_H
#define RECHECKS_H

#include "../launch/launch.h"
#include "../options/train_options.h"
#include "../report/observe.h"
#include "../report/report.h"
#include "layout.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rechecks {
    zero_group *all, *peers; /* all ranks; those with the same part of the model. NULL: no checks */
} rechecks;

/* Opens the groups and the model's check, if -ck asks for checks, and reports their memory and
   traffic. With -pe and a single data-parallel rank, reports that nothing is checked. `run` has the
   layout's groups. Ends the job on errors. COLLECTIVE. */
void rechecks_open(rechecks *c, launch *l, const train_options *o, const gpt2_config *cfg,
                   const gpt2_run *run, gpt2_model *model, void *stream, report *out);
/* Shows the messages of checks in the timeline, after layout_build. */
zero_result rechecks_observe(const rechecks *c, observer *see, zero_ctx *z);
/* Closes the groups. Destroy the model before. */
void rechecks_close(rechecks *c);

/* Call it before the micro-steps of step number `step` (from 1 on): a check is due in every N-th.
 */
void rechecks_begin_step(const rechecks *c, const train_options *o, gpt2_model *model, int step);

/* Returns the memory of checks; 0 without checks. */
size_t rechecks_bytes(const train_options *o, const layout *ranks, const gpt2_config *cfg,
                      const gpt2_run *run);

/* Ends the job after an error of the model. With -pe, if checks have found a rank that computes
   wrongly, that rank alone ends, and the launcher restarts the others. Does not return. */
void rechecks_fail(launch *l, const train_options *o, const gpt2_model *model,
                   zero_result result) LAUNCH_NORETURN;

#ifdef __cplusplus
}
#endif
#endif

/* observe.h - what a run shows of itself while it runs: a timeline, where time goes, how long
   collectives take, what layers compute, figures for TensorBoard and CSV.

   A trainer opens an observer, which is NULL where nothing of that is asked for, and tells it what
   it does: observe_begin and _end around its own work, observe_step behind each step. The plugin
   tells the rest, through zero_config.trace. With NULL each of these is one test of a pointer.

   WHY A ROOM. What there is to see, and how it is written, is not a training loop's business.
*/
#ifndef OBSERVE_H
#define OBSERVE_H

#include <stddef.h>
#include <stdint.h>

#include "../../zero_plugin.h"
#include "../gpt2/gpt2.h"
#include "../launch/launch.h"
#include "../options/train_options.h"
#include "breakdown.h"
#include "report.h"
#include "step_line.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct observer observer;

/* By -tr, -tb, -tc, -tk, -tbd and -tcd, or the file's keys. step_tokens: of all ranks. `computes`:
   the device is the host itself. NULL: nothing is asked for, or, with a sentence, it cannot be had.
   Everything but the model is borrowed. COLLECTIVE. */
observer *observe_open(const train_options *o, const ds_config *file, launch *l, report *out,
                       const gpt2_config *model, int64_t step_tokens, int computes, char *sentence,
                       size_t bytes);

/* Sets zero_config.trace, where events are asked for; what the context of experts, if there is one,
   has for trace_user. */
void observe_set_trace(observer *s, zero_config *c);
void *observe_experts_user(observer *s);

/* A group of the host's, on lane 0..7, with a context that was built and given the hook: its
   events, and its table. `beside`: it communicates beside what is computed (see breakdown.h). It is
   borrowed until observe_print_tables. NULL, or one rank: nothing. */
zero_result observe_group(observer *s, zero_ctx *z, zero_group *g, int lane, int beside,
                          const char *name);

/* The host's own work, nested: its name (borrowed) and kind. */
void observe_begin(observer *s, const char *name, breakdown_kind kind);
void observe_end(observer *s);

/* Behind a step, which began at `began` (seconds of CLOCK_MONOTONIC). samples: sequences so far, of
   all ranks. Returns 1 and a sentence where something could not be written, once for each. */
int observe_step(observer *s, const step_line *v, double began, int64_t samples, double mib,
                 char *sentence, size_t bytes);

/* Behind the last step: tables of the run. `experts`: their context; NULL: there are none.
   COLLECTIVE, SYNC. */
zero_result observe_print_tables(observer *s, zero_ctx *z, zero_ctx *experts);

/* After zero_destroy, which tells the last events. Returns as observe_step does. COLLECTIVE. */
int observe_close(observer *s, char *sentence, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif

/* observe.h - measures a run while it trains: a timeline, the breakdown of each step's time, times
   of collectives, operations of layers, and values for TensorBoard and CSV.

   The trainer opens an observer, which is NULL if no option asks for one. It calls observe_begin
   and _end around its own work, and observe_step after each step. The plugin reports its events
   through zero_config.trace. With NULL, each of these functions only tests the pointer.

   WHY A FILE. The training loop does not depend on measurements or file formats.
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

/* Reads -tr, -tb, -tc, -tk, -tbd and -tcd, or the file's keys. step_tokens counts all ranks.
   `computes`: 1 if the device is the CPU. Returns NULL if no option asks for an observer, or, with
   a sentence, on failure. Borrows everything but the model until observe_close. COLLECTIVE. */
observer *observe_open(const train_options *o, const ds_config *file, launch *l, report *out,
                       const gpt2_config *model, int64_t step_tokens, int computes, char *sentence,
                       size_t bytes);

/* Sets zero_config.trace if an option needs events. observe_experts_user returns the trace_user of
   the experts' context. */
/* With -pnf and -pa, -tr alone. observe_join is observe_open on a rank that joins, before
   launch_join, and NULL on others; it ends the rank after an error. observe_change follows the end
   of the old context on a rank that stays; observe_leave is observe_close on a rank that
   leaves. */
observer *observe_join(const train_options *o, launch *l, report *out);
void observe_change(observer *s);
void observe_leave(observer *s);

void observe_set_trace(observer *s, zero_config *c);
void *observe_experts_user(observer *s);

/* Observes a group of the trainer on lane 0..7, of a built context whose trace was set. `beside`: 1
   if the group is overlapped (see breakdown.h). Borrows g until observe_print_tables. Does nothing
   if s or g is NULL or g has one rank. */
zero_result observe_group(observer *s, zero_ctx *z, zero_group *g, int lane, int beside,
                          const char *name);

/* Begins a slice of the trainer's own work, which may be nested. The name is borrowed. */
void observe_begin(observer *s, const char *name, breakdown_kind kind);
void observe_end(observer *s);

/* Call it after a step that began at `began` (seconds of CLOCK_MONOTONIC). samples: sequences so
   far, of all ranks. If a file cannot be written, returns 1 and a sentence, once for each file. */
int observe_step(observer *s, const step_line *v, double began, int64_t samples, double mib,
                 char *sentence, size_t bytes);

/* Call it after the last step: prints the tables of the run. `experts`: the experts' context, or
   NULL. COLLECTIVE, SYNC. */
zero_result observe_print_tables(observer *s, zero_ctx *z, zero_ctx *experts);

/* Call it after zero_destroy, which reports the last events. Returns as observe_step. COLLECTIVE.
 */
int observe_close(observer *s, char *sentence, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif

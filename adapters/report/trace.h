/* trace.h - a timeline of a run, in a file that ui.perfetto.dev and chrome://tracing open.

   THE FILE is a JSON array in Trace Event Format, one object a line. The array's end may be
   missing, so the file of a killed run opens as well. A process (pid) is a rank, a thread (tid) is
   a track of zero_event. The kinds of objects are:

       X     a slice: `forward 3` is that of unit 3; args: the fields of zero_event
       s, f  an arrow from a slice to the wait that ends with it; ids are unique over all ranks
       C     a counter: loss, norm, loss scale, memory
       M     names of ranks and tracks; for a rank also its start on its own clock (origin_ns), and
             the error of that against rank 0's clock (within_ns)
       i     `lost`: events that found no room

   `ts` and `dur` are microseconds since the start of the run. All ranks with rank 0's clock append
   whole lines to one file. A rank of another machine writes FILE.rRANK, which opens by itself. This
   command joins the files:

       { head -n -2 FILE; tail -q -n +2 FILE.r*; } >ALL

   EXPERTS have a context of their own, whose units and tracks begin at 0 again. Its slices are on
   separate tracks, such as `experts: compute`.

   RANKS THAT CHANGE. Events are of the rank that the process is at that time. A slice `new ranks`
   is the change.

   GROUPS of the trainer (zero_group_trace) have a track each, such as `group tp`.

   WHY A FILE. Neither the plugin nor the trainer depends on the format.
*/
#ifndef TRACE_H
#define TRACE_H

#include <stddef.h>
#include <stdint.h>

#include "../../zero_plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct trace trace;

/* A rank's clock against rank 0's. */
typedef struct trace_clock {
    double origin; /* this rank's CLOCK_MONOTONIC, in seconds, when rank 0 began the run */
    int apart;     /* 1: this rank is on another machine, with another clock than rank 0 */
    double within; /* greatest error of `origin`, in seconds; 0: the ranks share one clock */
} trace_clock;

/* Rank 0 begins the file, and must have returned before other ranks call this. On failure returns
   NULL and writes a sentence. */
trace *trace_open(const char *path, int rank, const trace_clock *clock, char *sentence,
                  size_t bytes);

/* Opens the file of a running job for a process that joins it on the same machine. */
trace *trace_join(const char *path, int rank, int changes, char *sentence, size_t bytes);
/* From here on the process has another rank and other contexts. Their numbers begin at 0 again.
   changes: of the ranks so far, with this one. */
void trace_change(trace *t, int rank, int changes);

/* Adds events. `experts`: 1 if they are of the experts' context. */
void trace_events(trace *t, int experts, const zero_event *events, int n);
/* Names track ZERO_TRACK_GROUP + lane. Call it before the track's first event. */
void trace_group(trace *t, int lane, const char *name);
/* Adds a slice of the trainer's own work, inside the slice before it or after it. `step` counts as
   in zero_event; times are seconds of CLOCK_MONOTONIC. */
void trace_slice(trace *t, const char *name, int64_t step, double begin, double end);
void trace_counter(trace *t, const char *name, double time, double value);

/* Writes all that was added. On the first failure returns 1 and writes a sentence, and the file
   gets nothing more. */
int trace_flush(trace *t, char *sentence, size_t bytes);

/* Flushes and closes. `ends`: 1 on the rank that ends a file's array after all other ranks wrote:
   rank 0, or a rank with its own file. t may be NULL. Returns as trace_flush does. */
int trace_close(trace *t, int ends, char *sentence, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif

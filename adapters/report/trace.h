/* trace.h - a timeline of a run, in a file that ui.perfetto.dev and chrome://tracing open.

   THE FILE is Trace Event Format's array of JSON objects, one a line, which may lack its end: what
   a run that was killed has written opens as well. A process (pid) is a rank, a thread (tid) a
   track of zero_event. In it:

       X     a slice: `forward 3` is unit 3's; args: those of zero_event
       s, f  an arrow from a slice to the wait that ends with it; ids differ over all ranks
       C     a counter: loss, norm, loss scale, memory
       M     names of ranks and tracks; of a rank also when it began, on its own clock, and how far
             that may be off rank 0's: origin_ns, within_ns
       i     events that there was no room for: `lost`

   `ts` and `dur` are microseconds, from the run's start on. All ranks with one clock append to one
   file, by single writes of whole lines; those of another machine to FILE.rRANK, which opens by
   itself. All in one, which needs no end:

       { head -n -2 FILE; tail -q -n +2 FILE.r*; } >ALL

   EXPERTS have a context of their own, whose units and tracks begin at 0 again:
   its slices are on tracks of their own, `experts: compute`, beside those of the rest.

   GROUPS of the host's (zero_group_trace) have a track each, `group tp`.

   WHY A ROOM. The format is not the plugin's business, and nobody else's either.
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

/* Where a rank's clock stands. */
typedef struct trace_clock {
    double origin; /* seconds of CLOCK_MONOTONIC: of this rank, when the run began on rank 0 */
    int apart;     /* 1: another clock than rank 0's, that of another machine */
    double within; /* seconds that `origin` is off at most; 0: ranks have one clock */
} trace_clock;

/* Rank 0 begins the file, and must have returned before other ranks call this. NULL: it cannot be
   written, and a sentence. */
trace *trace_open(const char *path, int rank, const trace_clock *clock, char *sentence,
                  size_t bytes);

/* `experts`: 1: of the experts' context; 0: of the other one. */
void trace_events(trace *t, int experts, const zero_event *events, int n);
/* What track ZERO_TRACK_GROUP + lane is called, before its first event; short. */
void trace_group(trace *t, int lane, const char *name);
/* A slice of the host's, on its own track, within the one before or behind it. `step`: as of
   zero_event; seconds of CLOCK_MONOTONIC. */
void trace_slice(trace *t, const char *name, int64_t step, double begin, double end);
void trace_counter(trace *t, const char *name, double time, double value);

/* Writes what there is. Returns 1 and a sentence where that failed, once; nothing more is written
   then. */
int trace_flush(trace *t, char *sentence, size_t bytes);

/* `ends`: no rank writes any more, and this one ends the array: rank 0, and ranks apart. NULL is
   allowed. Returns as trace_flush does. */
int trace_close(trace *t, int ends, char *sentence, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif

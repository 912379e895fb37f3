/* breakdown.h - where the time of a step goes.

   Every moment of a step has one kind. It is the kind of the innermost slice of the compute track
   (see zero_event). If no such slice runs, it is the kind of the trainer's own innermost slice. If
   that is missing too, the moment is idle. So the kinds of a step add up to the step. Only exposed
   communication counts: the compute track waits for it, or runs it itself.

   GROUPS of the trainer run within the compute track: a forward's wait for tensor-parallel peers
   counts as the groups' time, not as the forward's. A group that breakdown_set_overlapped names has
   a thread or stream of its own, such as a pipeline's messages. It counts only while the compute
   track is empty and no data is read.

   Events arrive late. A step is complete when a slice that begins after it has arrived.
   breakdown_take returns complete steps in order.

   WHY A FILE. This is arithmetic on events, and tests give it any events.
*/
#ifndef BREAKDOWN_H
#define BREAKDOWN_H

#include <stdint.h>

#include "../../zero_plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, word) */
#define BREAKDOWNS(X)                                                                              \
    X(BREAKDOWN_FORWARD, "forward")                                                                \
    X(BREAKDOWN_BACKWARD, "backward")                                                              \
    X(BREAKDOWN_REDUCTION, "reduction exposed")                                                    \
    X(BREAKDOWN_GATHER, "gather exposed")                                                          \
    X(BREAKDOWN_GROUPS, "groups exposed")                                                          \
    X(BREAKDOWN_UPDATE, "update")                                                                  \
    X(BREAKDOWN_DATA, "data")                                                                      \
    X(BREAKDOWN_FILE, "file")                                                                      \
    X(BREAKDOWN_HOST, "host") /* losses, norms, lines */                                           \
    X(BREAKDOWN_IDLE, "idle")

#define BREAKDOWN_ENUM(name, word) name,
typedef enum breakdown_kind { BREAKDOWNS(BREAKDOWN_ENUM) BREAKDOWN_KINDS } breakdown_kind;
#undef BREAKDOWN_ENUM

/* Slices of an earlier layer hide those of a later layer. */
enum breakdown_layer {
    BREAKDOWN_ON_TRACK, /* compute, and groups within it */
    BREAKDOWN_ON_DATA,
    BREAKDOWN_ON_OVERLAPPED, /* groups with a thread or stream of their own */
    BREAKDOWN_ON_TRAINER,
    BREAKDOWN_LAYERS
};
enum { BREAKDOWN_SLICES = 1 << 14, BREAKDOWN_STEPS = 64 };

typedef struct breakdown_slice {
    double begin, end; /* seconds */
    breakdown_kind kind;
} breakdown_slice;

typedef struct breakdown_step {
    int64_t step;
    double begin, end; /* seconds */
    double seconds[BREAKDOWN_KINDS];
} breakdown_step;

/* All zeros: empty. Private. */
typedef struct breakdown {
    breakdown_slice slice[BREAKDOWN_LAYERS][BREAKDOWN_SLICES];
    int n[BREAKDOWN_LAYERS];
    unsigned beside; /* 1 << lane of each overlapped group */
    breakdown_step step[BREAKDOWN_STEPS];
    int steps;
    double seen; /* the latest begin on the compute track, in seconds */
} breakdown;

/* "forward" */
const char *breakdown_name(breakdown_kind kind);

/* Marks the group on that lane as overlapped: it runs next to the compute track. */
void breakdown_set_overlapped(breakdown *b, int lane);
void breakdown_events(breakdown *b, const zero_event *events, int n);
/* Adds a slice of the trainer's own work. */
void breakdown_trainer(breakdown *b, breakdown_kind kind, double begin, double end);
/* Adds a step that ran from begin to end. */
void breakdown_mark(breakdown *b, int64_t step, double begin, double end);

/* Removes the oldest complete step and writes it to *out. If `all` is 1, an incomplete step is
   taken too. Returns 0 if no such step is left. */
int breakdown_take(breakdown *b, int all, breakdown_step *out);

#ifdef __cplusplus
}
#endif
#endif

/* overlap.h - simulates what of a step's communication is hidden: units, streams, one link

   A rank's compute stream goes through VISITS, forwards and backwards of units, and behind the last
   one waits for all reductions, for the ranks' agreement, and updates. The parameter stream gathers
   units in the order in which the plugin would (stage 3: ahead of their visits, into all
   of prefetch + 2 buffers; stages 1 and 2: each behind its update); the gradient stream reduces
   them in the order of their last backwards, from three buffers at stages 2 and 3. A collective
   takes, in this order, `latency` for each other node that it talks to, what packing takes, and
   then, side by side, its bytes inside the node and those to other nodes; the two streams share the
   link to other nodes evenly while both send. Ranks are alike, and so are a link's directions.

   Not simulated: the time that processors spend on a network, switches that several nodes share,
   ranks that are late.

   WHY A ROOM. Rates are measured in parts, on one machine; what they come to over a thousand ranks
   is how they overlap, which no formula of sums tells.
*/
#ifndef PLAN_OVERLAP_H
#define PLAN_OVERLAP_H

#include "../../zero_plugin.h"
#include "wire.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { OVERLAP_UNITS = 512, OVERLAP_VISITS = 2 * OVERLAP_UNITS + 4 };

typedef struct overlap_visit {
    int unit, backward;
    int reduces; /* the unit's last backward */
    double seconds;
} overlap_visit;

typedef struct overlap_case {
    int stage, units;
    int own; /* a unit that is used more often than others (embeddings), and has a buffer of its
                own; -1: none */
    const wire_unit *wire; /* [units] */
    const overlap_visit *visit;
    int visits;
    int prefetch;     /* units gathered ahead, as in zero_config */
    int host_ahead;   /* GPU: the host enqueues a visit while the device is at the one before */
    double near, far; /* bytes a second of a rank inside its node, and to other nodes */
    double latency;   /* seconds of a message to another node */
    double coding;    /* bytes a second that packing reads and writes; 0: it takes no time */
    double update;    /* seconds of all units' updates */
} overlap_case;

typedef struct overlap_step {
    double step, compute;         /* seconds; compute: visits and update */
    double far_bytes, near_bytes; /* that a rank sends in a step */
    int gathers;                  /* of units */
} overlap_step;

/* A step of many alike. Returns 0, or 1: more units, visits or prefetch than there is room for, or
   a rate that is missing. */
int overlap_simulate(const overlap_case *c, overlap_step *step);

/* The visits of units 0 .. units - 1 one after the other, and back. own >= 0: that unit is visited
   first, last, and twice at the turn, as tied embeddings are: lookup, classifier, its backward, the
   lookup's. forward[u], backward[u]: seconds; of `own` those at the turn, else it takes none.
   Returns how many: at most OVERLAP_VISITS. */
int overlap_chain(int units, int own, const double *forward, const double *backward,
                  overlap_visit *visit);

#ifdef __cplusplus
}
#endif
#endif

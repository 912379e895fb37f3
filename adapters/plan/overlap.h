/* overlap.h - simulates how a step's communication overlaps with its compute.

   A rank's compute stream runs VISITS: forwards and backwards of units. After the last visit it
   waits for all reductions and the ranks' agreement, and then updates. The parameter stream gathers
   units in the plugin's order. At stage 3 it gathers before their visits, into prefetch + 2
   buffers; at stages 1 and 2 after each unit's update. The gradient stream reduces units in the
   order of their last backwards, from two buffers at stage 2 and three at stage 3. A collective
   first takes `latency` for each other node, then the time of packing. Then it sends inside the
   node and to other nodes at the same time. The two streams share the link to other nodes evenly.
   All ranks are equal, and both directions of a link.

   Not simulated: CPU time for the network, switches shared by several nodes, late ranks.

   WHY A FILE. Rates are measured separately, on one machine. A sum of times ignores their overlap,
   so the step of a thousand ranks has to be simulated.
*/
#ifndef PLAN_OVERLAP_H
#define PLAN_OVERLAP_H

#include "../../zero_plugin.h"
#include "wire.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { OVERLAP_UNITS = 512, OVERLAP_VISITS = 2 * OVERLAP_UNITS + 4 };

enum { OVERLAP_LAST = 1, OVERLAP_EARLIER = 2 };
typedef struct overlap_visit {
    int unit, backward;
    int reduces; /* OVERLAP_LAST: this is the unit's last backward, and a reduction follows;
                    OVERLAP_EARLIER: the same in an earlier micro-step, where no reduction over
                    replicas follows; 0: no reduction follows */
    double seconds;
} overlap_visit;

typedef struct overlap_case {
    int stage, units;
    int own; /* a unit that is used more often than others (embeddings), with a buffer of its
                own; -1: none */
    const wire_unit *wire; /* [units] */
    const overlap_visit *visit;
    int visits;
    int prefetch;     /* units gathered ahead, as in zero_config */
    int host_ahead;   /* GPU: the CPU enqueues a visit while the device runs the one before */
    double near, far; /* bytes a second of a rank inside its node, and to other nodes */
    double latency;   /* seconds of a message to another node */
    double coding;    /* bytes a second that packing reads and writes; 0: it takes no time */
    double update;    /* seconds of all units' updates */
} overlap_case;

typedef struct overlap_step {
    double step, compute;         /* seconds; compute: visits and update */
    double far_bytes, near_bytes; /* bytes that a rank sends in a step */
    int gathers;                  /* of units */
} overlap_step;

/* Simulates one of many equal steps. Returns 1 if a rate is missing, or if units, visits or
   prefetch exceed their limits; otherwise 0. */
int overlap_simulate(const overlap_case *c, overlap_step *step);

/* Lists the visits of a model: the forwards of units 0 .. units - 1, then their backwards in
   reverse. own >= 0: this unit is the tied embeddings. It is visited first (lookup), twice in the
   middle (classifier and its backward), and last (the lookup's backward). forward[u], backward[u]:
   seconds; for `own` those of the classifier, because a lookup takes no time. Returns the number of
   visits, at most OVERLAP_VISITS. */
int overlap_chain(int units, int own, const double *forward, const double *backward,
                  overlap_visit *visit);

#ifdef __cplusplus
}
#endif
#endif

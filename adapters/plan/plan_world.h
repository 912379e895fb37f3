/* plan_world.h - the ranks that a plan is for, and on what they compute. */
#ifndef PLAN_WORLD_H
#define PLAN_WORLD_H

#include "../../zero_plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct plan_world {
    int nranks;
    int shares; /* ranks see each other's memory in place: one machine, CPU */
} plan_world;

/* What contexts are for from now on: 1: GPUs, beside whose memory the host's is; 0: CPUs. Of this
   process; contexts of one kind are destroyed before the other is chosen. */
void plan_for_gpus(int yes);
int plan_is_for_gpus(void);

/* A group of these ranks, borrowed: for contexts that are planned, and for who asks for its rank
   and size. NULL: no memory. */
zero_group *plan_group(plan_world *world, int rank);
void plan_group_free(zero_group *g); /* NULL is allowed */

#ifdef __cplusplus
}
#endif
#endif

/* plan_world.h - the ranks of a plan, and their kind of device. */
#ifndef PLAN_WORLD_H
#define PLAN_WORLD_H

#include "../../zero_plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct plan_world {
    int nranks;
    int shares; /* 1: the ranks are on one machine's CPUs and map each other's memory */
} plan_world;

/* Chooses the device of later contexts of this process. 1: GPUs, with host memory as a tier of its
   own; 0: CPUs. Destroy all contexts of one kind before you choose the other. */
void plan_for_gpus(int yes);
int plan_is_for_gpus(void);
/* Returns the major number of the compute capability of this machine's first GPU; 0: it has none.
   Attention's memory depends on it; without a GPU, plans are for Hopper, 9. */
int plan_gpu_major(void);

/* Returns a group of these ranks, for contexts that are planned and never built. Its rank and size
   can be queried. Borrows `world` until plan_group_free. Returns NULL if memory is short. */
zero_group *plan_group(plan_world *world, int rank);
void plan_group_free(zero_group *g); /* NULL is allowed */

#ifdef __cplusplus
}
#endif
#endif

/* plan_plugin.c - the plugin for plans: the same source, with a transport that needs no other
   ranks. The program chooses whether ranks compute on CPUs or GPUs.

   WHY A FILE. The plugin computes the whole plan, and nothing is computed a second time here.
   A GPU's plan differs in two facts: whether the host computes, and how tensors are aligned. Both
   are variables of the plugin. plan_for_gpus sets them, so that a machine without a GPU can plan
   for one. Contexts for CPUs can be built and run as usual.
*/
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "plan_world.h"

#define ZERO_OWN_TRANSPORTS "adapters/plan/planned.h"
#include "../../zero_plugin.cu"

#ifdef __CUDACC__
/* A program for GPUs plans for its own device. */
void plan_for_gpus(int yes) { (void)yes; }
int plan_is_for_gpus(void) { return 1; }
#else
void plan_for_gpus(int yes) {
    zp_on_host = !yes;
    zp_align = yes ? ZP_ALIGN_GPU : ZP_ALIGN;
}
int plan_is_for_gpus(void) { return !zp_on_host; }
#endif

zero_group *plan_group(plan_world *world, int rank) {
    zero_group *g = (zero_group *)calloc(1, sizeof *g);
    if (!g) return NULL;
    const zero_comm comm = {ZERO_COMM_OWN, rank, world, 0};
    g->group.rank = rank;
    g->group.nranks = world->nranks;
    g->comm = comm;
    return g;
}
void plan_group_free(zero_group *g) { free(g); }

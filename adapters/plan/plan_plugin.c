/* plan_plugin.c - the plugin as plans see it: the same rooms, with a transport whose ranks are not
   there, and with the choice of what they compute on left to the program.

   WHY. A plan is arithmetic, and all of it is the plugin's: nothing is computed a second time here.
   But what a GPU's plugin plans is decided when it is compiled, in two places: whether the host
   computes, and on which line a tensor begins. Here both ask plan_is_for_gpus, so that a machine
   without a GPU can plan for one. Contexts of CPUs can be built and run as ever.
*/
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "plan_world.h"

static int plan_gpus;
void plan_for_gpus(int yes) { plan_gpus = yes; }
int plan_is_for_gpus(void) { return plan_gpus; }

#include "../../zero_plugin/machine/device.h"
enum { PLAN_LINE = ZP_ALIGN, PLAN_GPU_LINE = 64 /* as in base.h */ };
#undef ZP_ALIGN
#define ZP_ALIGN            ((size_t)(plan_gpus ? PLAN_GPU_LINE : PLAN_LINE))
#define zp_device_is_host() (!plan_gpus && (zp_device_is_host)())
#define ZERO_OWN_TRANSPORTS "../adapters/plan/planned.h"
#include "../../zero_plugin.cu"

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

/* plan_world.h - the ranks that a plan is for, and on what they compute. */
#ifndef PLAN_WORLD_H
#define PLAN_WORLD_H

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

#ifdef __cplusplus
}
#endif
#endif

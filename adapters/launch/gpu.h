/* gpu.h - the GPU of a rank, and NCCL's communicators. Of builds with -DLAUNCH_WITH_NCCL alone;
   in others there are no GPUs, and nothing here does anything. */
#ifndef LAUNCH_GPU_H
#define LAUNCH_GPU_H

#include "launch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* GPUs that this process sees, asked in a child that ends at once: a process that has touched CUDA
   must not fork. -1: they cannot be asked, and the sentence tells why. */
int gpu_count(char *sentence, size_t bytes);

/* Whether NCCL takes several ranks on one GPU: from 2.30 on, with NCCL_MULTI_RANK_GPU_ENABLE=1. */
int gpu_may_be_shared(void);

/* Chooses this rank's GPU, l->device, and makes it the calling thread's. Returns 0, or 1 with a
   sentence. */
int gpu_choose(launch *l, char *sentence, size_t bytes);

/* Makes l->comm[..], over all ranks; ends them where that fails. limit_s: longest wait. COLLECTIVE.
 */
void gpu_join(launch *l, double limit_s);
void gpu_leave(launch *l);

#ifdef __cplusplus
}
#endif
#endif

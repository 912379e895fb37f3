/* gpu.h - the GPU of a rank, and NCCL's communicators. Of builds with -DLAUNCH_WITH_NCCL alone;
   in others there are no GPUs, and nothing here does anything. */
#ifndef LAUNCH_GPU_H
#define LAUNCH_GPU_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { GPU_ID_BYTES = 128 }; /* of a communicator that is yet to be made: NCCL's ncclUniqueId */

/* GPUs that this process sees, asked in a child that ends at once: a process that has touched CUDA
   must not fork. -1: they cannot be asked, and the sentence tells why. */
int gpu_count(char *sentence, size_t bytes);

/* Whether NCCL takes several ranks on one GPU: from 2.30 on, with NCCL_MULTI_RANK_GPU_ENABLE=1. */
int gpu_may_be_shared(void);

/* Chooses the GPU of rank `rank`, number local_rank of its machine, and makes it the calling
   thread's. as_threads: the machine's ranks are threads, which share GPUs. Returns 0, or 1 with a
   sentence. */
int gpu_choose(int rank, int local_rank, int as_threads, int *device, char *sentence, size_t bytes);

/* A new id, on rank 0 alone: the others get a copy. Returns 0, or 1 with a sentence. */
int gpu_make_id(char id[GPU_ID_BYTES], char *sentence, size_t bytes);

typedef struct gpu_call {
    int rank, nranks, device;
    int groups;     /* communicators */
    const char *id; /* [groups][GPU_ID_BYTES] */
    double limit_s; /* longest wait for the other ranks */
    /* When that is over: called by another thread, with a sentence; not to return. */
    void (*late)(void *user, const char *sentence);
    void *user;
} gpu_call;

typedef struct gpu_ranks gpu_ranks;

/* Makes the communicators over all ranks. NULL: the sentence tells why. COLLECTIVE. */
gpu_ranks *gpu_join(const gpu_call *call, char *sentence, size_t bytes);
/* What zero_comm.handle takes: ncclComm_t *. */
void *gpu_comm(gpu_ranks *ranks, int group);
/* NULL: there is none. Returns 0, or 1 with a sentence. */
int gpu_leave(gpu_ranks *ranks, char *sentence, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif

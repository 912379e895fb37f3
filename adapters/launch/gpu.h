/* gpu.h - the GPU of a rank, and NCCL's communicators. Only builds with
   -DLAUNCH_WITH_NCCL use GPUs; in other builds these functions do nothing. */
#ifndef LAUNCH_GPU_H
#define LAUNCH_GPU_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { GPU_ID_BYTES = 128 }; /* NCCL's ncclUniqueId, from which a communicator is created */

/* Returns the number of GPUs that this process can use. A child process calls CUDA for this,
   because a process that has called CUDA must not fork. After an error, returns -1 and writes a
   sentence. */
int gpu_count(char *sentence, size_t bytes);

/* Returns whether NCCL supports several ranks on one GPU: from version 2.30 on, with
   NCCL_MULTI_RANK_GPU_ENABLE=1. */
int gpu_may_be_shared(void);

/* Chooses the GPU of rank `rank`, number local_rank of its machine, and makes it the calling
   thread's. as_threads: the machine's ranks are threads, which share GPUs. Returns 0, or 1 with a
   sentence. */
int gpu_choose(int rank, int local_rank, int as_threads, int *device, char *sentence, size_t bytes);

/* Creates an id. Only rank 0 calls it; the others get a copy. Returns 0, or 1 and a sentence. */
int gpu_make_id(char id[GPU_ID_BYTES], char *sentence, size_t bytes);

typedef struct gpu_call {
    int rank, nranks, device;
    int groups;     /* communicators */
    const char *id; /* [groups][GPU_ID_BYTES] */
    double limit_s; /* longest wait for the other ranks */
    /* Another thread calls this after limit_s, with a sentence. It must not return. */
    void (*late)(void *user, const char *sentence);
    void *user;
} gpu_call;

typedef struct gpu_ranks gpu_ranks;

/* Creates the communicators over all ranks. After an error, returns NULL and writes a sentence.
   COLLECTIVE. */
gpu_ranks *gpu_join(const gpu_call *call, char *sentence, size_t bytes);
/* Returns the value for zero_comm.handle, an ncclComm_t *. */
void *gpu_comm(gpu_ranks *ranks, int group);
/* NULL is allowed. Returns 0, or 1 and a sentence. */
int gpu_leave(gpu_ranks *ranks, char *sentence, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif

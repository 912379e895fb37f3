/* gpu.c - see gpu.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "gpu.h"

#include <stdio.h>

#ifdef LAUNCH_WITH_NCCL

#include <assert.h>
#include <cuda_runtime.h>
#include <errno.h>
#include <nccl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { GPU_SHARED_FROM = 23000 /* NCCL's code of version 2.30.0 */ };

static_assert(sizeof(ncclUniqueId) == GPU_ID_BYTES, "an id is a ncclUniqueId");

struct gpu_ranks {
    int rank, device, made;
    ncclComm_t comm[]; /* [groups] */
};

int gpu_count(char *sentence, size_t bytes) {
    int ends[2], answer[2] = {0, -1}; /* the number of GPUs, and the result of CUDA */
    if (pipe(ends) != 0) {
        snprintf(sentence, bytes, "the GPUs cannot be counted: %s", strerror(errno));
        return -1;
    }
    pid_t child = fork();
    if (child == 0) {
        answer[1] = (int)cudaGetDeviceCount(&answer[0]);
        ssize_t written = write(ends[1], answer, sizeof answer);
        _exit(written != (ssize_t)sizeof answer);
    }
    close(ends[1]);
    ssize_t got = child > 0 ? read(ends[0], answer, sizeof answer) : -1;
    close(ends[0]);
    if (child > 0) (void)waitpid(child, NULL, 0);
    if (got == (ssize_t)sizeof answer && answer[1] == (int)cudaSuccess) return answer[0];
    snprintf(sentence, bytes, "no GPU can be used: %s",
             got == (ssize_t)sizeof answer ? cudaGetErrorString((cudaError_t)answer[1])
                                           : "CUDA does not answer");
    return -1;
}

int gpu_may_be_shared(void) {
    const char *enabled = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
    int version = 0;
    return enabled != NULL && strcmp(enabled, "1") == 0 && ncclGetVersion(&version) == ncclSuccess
           && version >= GPU_SHARED_FROM;
}

int gpu_choose(int rank, int local_rank, int as_threads, int *device, char *sentence,
               size_t bytes) {
    int gpus = 0;
    cudaError_t error = cudaGetDeviceCount(&gpus);
    if (error != cudaSuccess || gpus < 1) {
        snprintf(sentence, bytes, "rank %d: no GPU can be used: %s", rank,
                 error != cudaSuccess ? cudaGetErrorString(error) : "there is none");
        return 1;
    }
    /* One GPU in sight, several ranks: Slurm may have given each a GPU of its own. If not, NCCL
       finds the same one twice. */
    int may_repeat = gpus == 1 || as_threads || gpu_may_be_shared();
    if (local_rank >= gpus && !may_repeat) {
        snprintf(sentence, bytes,
                 "rank %d is number %d of this machine, which has %d GPUs: start at most %d ranks "
                 "here; or all with -pn, as threads; or with NCCL 2.30 or newer set "
                 "NCCL_MULTI_RANK_GPU_ENABLE=1",
                 rank, local_rank, gpus, gpus);
        return 1;
    }
    *device = local_rank % gpus;
    error = cudaSetDevice(*device);
    if (error == cudaSuccess) return 0;
    snprintf(sentence, bytes, "rank %d: GPU %d cannot be used: %s", rank, *device,
             cudaGetErrorString(error));
    return 1;
}

/* ---- a call that may hang ------------------------------------------------------------------ */

/* NCCL waits without a limit if ranks cannot reach each other, so a second thread watches the time.
 */
typedef struct gpu_guard {
    const gpu_call *call;
    int done;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
} gpu_guard;

static void *gpu_guard_main(void *arg) {
    gpu_guard *g = (gpu_guard *)arg;
    const gpu_call *call = g->call;
    struct timespec until;
    char sentence[256];
    int late = 0;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)call->limit_s + 1;
    pthread_mutex_lock(&g->lock);
    while (!g->done && !late)
        late = pthread_cond_timedwait(&g->changed, &g->lock, &until) == ETIMEDOUT;
    int done = g->done;
    pthread_mutex_unlock(&g->lock);
    if (done) return NULL;
    snprintf(
        sentence, sizeof sentence,
        "rank %d: NCCL did not join the %d ranks within %g s; set NCCL_DEBUG=INFO to see what it "
        "waits for, and NCCL_SOCKET_IFNAME to choose the network",
        call->rank, call->nranks, call->limit_s);
    call->late(call->user, sentence);
    return NULL;
}

static int gpu_guard_start(gpu_guard *g, const gpu_call *call) {
    memset(g, 0, sizeof *g);
    g->call = call;
    (void)pthread_mutex_init(&g->lock, NULL);
    (void)pthread_cond_init(&g->changed, NULL);
    return pthread_create(&g->thread, NULL, gpu_guard_main, g) == 0;
}

static void gpu_guard_end(gpu_guard *g) {
    pthread_mutex_lock(&g->lock);
    g->done = 1;
    pthread_cond_signal(&g->changed);
    pthread_mutex_unlock(&g->lock);
    pthread_join(g->thread, NULL);
    pthread_cond_destroy(&g->changed);
    pthread_mutex_destroy(&g->lock);
}

/* ---- communicators ------------------------------------------------------------------------- */

/* Returns 0, or 1 and a sentence. */
static int gpu_failed(const gpu_ranks *ranks, ncclResult_t result, const char *call,
                      ncclComm_t comm, char *sentence, size_t bytes) {
    if (result == ncclSuccess) return 0;
    const char *more = ncclGetLastError(comm);
    snprintf(sentence, bytes, "rank %d, GPU %d: %s: %s%s%.400s", ranks->rank, ranks->device, call,
             ncclGetErrorString(result), more != NULL && more[0] ? ": " : "",
             more != NULL ? more : "");
    return 1;
}

int gpu_make_id(char id[GPU_ID_BYTES], char *sentence, size_t bytes) {
    ncclUniqueId made;
    memset(&made, 0, sizeof made);
    const ncclResult_t result = ncclGetUniqueId(&made);
    memcpy(id, &made, GPU_ID_BYTES);
    if (result == ncclSuccess) return 0;
    snprintf(sentence, bytes, "rank 0: ncclGetUniqueId: %s", ncclGetErrorString(result));
    return 1;
}

/* Creates one communicator per group. Returns 0, or 1 and a sentence. */
static int gpu_make(gpu_ranks *ranks, const gpu_call *call, char *sentence, size_t bytes) {
    for (int i = 0; i < call->groups; i++) {
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        ncclUniqueId id;
        memcpy(&id, call->id + (size_t)i * GPU_ID_BYTES, sizeof id);
        config.blocking = 1;
        const ncclResult_t result =
            ncclCommInitRankConfig(&ranks->comm[i], call->nranks, id, call->rank, &config);
        if (gpu_failed(ranks, result, "ncclCommInitRankConfig", NULL, sentence, bytes)) return 1;
        ranks->made++;
    }
    return 0;
}

gpu_ranks *gpu_join(const gpu_call *call, char *sentence, size_t bytes) {
    gpu_guard guard;
    /* collectives of several communicators start in the order of their calls */
    (void)setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
    gpu_ranks *ranks =
        (gpu_ranks *)calloc(1, sizeof *ranks + (size_t)call->groups * sizeof ranks->comm[0]);
    if (ranks == NULL || !gpu_guard_start(&guard, call)) {
        snprintf(sentence, bytes, "rank %d: out of memory or threads", call->rank);
        free(ranks);
        return NULL;
    }
    ranks->rank = call->rank;
    ranks->device = call->device;
    const int failed = gpu_make(ranks, call, sentence, bytes);
    gpu_guard_end(&guard);
    if (!failed) return ranks;
    free(ranks); /* does not destroy communicators, which could wait for other ranks */
    return NULL;
}

void *gpu_comm(gpu_ranks *ranks, int group) { return &ranks->comm[group]; }

int gpu_leave(gpu_ranks *ranks, char *sentence, size_t bytes) {
    int failed = 0;
    if (ranks == NULL) return 0;
    for (int i = 0; i < ranks->made && !failed; i++)
        failed = gpu_failed(ranks, ncclCommDestroy(ranks->comm[i]), "ncclCommDestroy",
                            ranks->comm[i], sentence, bytes);
    free(ranks);
    return failed;
}

#else

int gpu_count(char *sentence, size_t bytes) {
    if (bytes > 0) sentence[0] = 0;
    return 0;
}
int gpu_may_be_shared(void) { return 0; }
int gpu_choose(int rank, int local_rank, int as_threads, int *device, char *sentence,
               size_t bytes) {
    (void)rank, (void)local_rank, (void)as_threads;
    if (bytes > 0) sentence[0] = 0;
    *device = -1;
    return 0;
}
int gpu_make_id(char id[GPU_ID_BYTES], char *sentence, size_t bytes) {
    (void)id, (void)sentence, (void)bytes;
    return 0;
}
gpu_ranks *gpu_join(const gpu_call *call, char *sentence, size_t bytes) {
    (void)call;
    if (bytes > 0) snprintf(sentence, bytes, "this build has no NCCL");
    return NULL;
}
void *gpu_comm(gpu_ranks *ranks, int group) {
    (void)ranks, (void)group;
    return NULL;
}
int gpu_leave(gpu_ranks *ranks, char *sentence, size_t bytes) {
    (void)ranks, (void)sentence, (void)bytes;
    return 0;
}

#endif

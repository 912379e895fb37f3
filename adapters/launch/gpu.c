/* gpu.c - see gpu.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "gpu.h"

#ifdef LAUNCH_WITH_NCCL

#include <assert.h>
#include <cuda_runtime.h>
#include <errno.h>
#include <nccl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { GPU_SHARED_FROM = 23000 /* NCCL's code of version 2.30.0 */ };

static_assert(sizeof(ncclUniqueId) * LAUNCH_MAX_GROUPS <= LAUNCH_BROADCAST, "ids in one message");

typedef struct gpu_ranks {
    ncclComm_t comm[LAUNCH_MAX_GROUPS];
    int made;
} gpu_ranks;

int gpu_count(char *sentence, size_t bytes) {
    int ends[2], answer[2] = {0, -1}; /* GPUs, and what CUDA said */
    if (pipe(ends) != 0) {
        snprintf(sentence, bytes, "GPUs cannot be asked for: %s", strerror(errno));
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

int gpu_choose(launch *l, char *sentence, size_t bytes) {
    int gpus = 0;
    cudaError_t error = cudaGetDeviceCount(&gpus);
    if (error != cudaSuccess || gpus < 1) {
        snprintf(sentence, bytes, "rank %d: no GPU can be used: %s", l->rank,
                 error != cudaSuccess ? cudaGetErrorString(error) : "there is none");
        return 1;
    }
    /* One GPU in sight, several ranks: Slurm may have given each a GPU of its own. If not, NCCL
       finds the same one twice. */
    int may_repeat = gpus == 1 || l->kind == LAUNCH_THREADS || gpu_may_be_shared();
    if (l->local_rank >= gpus && !may_repeat) {
        snprintf(sentence, bytes,
                 "rank %d is number %d of this machine, which has %d GPUs: start at most %d ranks "
                 "here; or all with -pn, as threads; or with NCCL 2.30 or newer set "
                 "NCCL_MULTI_RANK_GPU_ENABLE=1",
                 l->rank, l->local_rank, gpus, gpus);
        return 1;
    }
    l->device = l->local_rank % gpus;
    error = cudaSetDevice(l->device);
    if (error == cudaSuccess) return 0;
    snprintf(sentence, bytes, "rank %d: GPU %d cannot be used: %s", l->rank, l->device,
             cudaGetErrorString(error));
    return 1;
}

/* ---- a call that may hang ------------------------------------------------------------------ */

/* NCCL has no limit of its own for the first meeting of ranks that cannot reach each other. */
typedef struct gpu_guard {
    launch *l;
    double limit_s;
    int done;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
} gpu_guard;

static void *gpu_guard_main(void *arg) {
    gpu_guard *g = (gpu_guard *)arg;
    struct timespec until;
    int late = 0;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)g->limit_s + 1;
    pthread_mutex_lock(&g->lock);
    while (!g->done && !late)
        late = pthread_cond_timedwait(&g->changed, &g->lock, &until) == ETIMEDOUT;
    int done = g->done;
    pthread_mutex_unlock(&g->lock);
    if (!done)
        launch_fail(g->l,
                    "rank %d: NCCL did not join the %d ranks within %g s; NCCL_DEBUG=INFO tells "
                    "what it waits for, NCCL_SOCKET_IFNAME which network to use",
                    g->l->rank, g->l->nranks, g->limit_s);
    return NULL;
}

static int gpu_guard_start(gpu_guard *g, launch *l, double limit_s) {
    memset(g, 0, sizeof *g);
    g->l = l;
    g->limit_s = limit_s;
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

static void gpu_check(launch *l, ncclResult_t result, const char *call, ncclComm_t comm) {
    if (result == ncclSuccess) return;
    const char *more = ncclGetLastError(comm);
    launch_fail(l, "rank %d, GPU %d: %s: %s%s%.400s", l->rank, l->device, call,
                ncclGetErrorString(result), more != NULL && more[0] ? ": " : "",
                more != NULL ? more : "");
}

void gpu_join(launch *l, double limit_s) {
    ncclUniqueId ids[LAUNCH_MAX_GROUPS];
    gpu_guard guard;
    char sentence[LAUNCH_SENTENCE] = "";
    /* collectives of several communicators in flight start in the order of their calls */
    (void)setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
    gpu_ranks *ranks = (gpu_ranks *)calloc(1, sizeof *ranks);
    memset(ids, 0, sizeof ids);
    for (int i = 0; i < l->groups && l->rank == 0; i++)
        gpu_check(l, ncclGetUniqueId(&ids[i]), "ncclGetUniqueId", NULL);
    launch_broadcast(l, ids, (size_t)l->groups * sizeof ids[0]);
    int ok = ranks != NULL && gpu_guard_start(&guard, l, limit_s);
    snprintf(sentence, sizeof sentence, "rank %d: out of memory or threads", l->rank);
    launch_agree(l, ok, sentence);
    for (int i = 0; i < l->groups; i++) {
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = 1;
        gpu_check(l, ncclCommInitRankConfig(&ranks->comm[i], l->nranks, ids[i], l->rank, &config),
                  "ncclCommInitRankConfig", NULL);
        l->comm[i].kind = ZERO_COMM_NCCL;
        l->comm[i].handle = &ranks->comm[i];
        ranks->made++;
    }
    gpu_guard_end(&guard);
    l->gpu = ranks;
}

void gpu_leave(launch *l) {
    gpu_ranks *ranks = (gpu_ranks *)l->gpu;
    if (ranks == NULL) return;
    for (int i = 0; i < ranks->made; i++)
        gpu_check(l, ncclCommDestroy(ranks->comm[i]), "ncclCommDestroy", ranks->comm[i]);
    l->gpu = NULL;
    free(ranks);
}

#else

int gpu_count(char *sentence, size_t bytes) {
    if (bytes > 0) sentence[0] = 0;
    return 0;
}
int gpu_may_be_shared(void) { return 0; }
int gpu_choose(launch *l, char *sentence, size_t bytes) {
    if (bytes > 0) sentence[0] = 0;
    l->device = -1;
    return 0;
}
void gpu_join(launch *l, double limit_s) {
    (void)l;
    (void)limit_s;
}
void gpu_leave(launch *l) { (void)l; }

#endif

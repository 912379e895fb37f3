/* test_emulation.cu - the emulation of tests/emulation by itself: kernels, the semantics of streams
   and events, NCCL, and that it finds what it is there to find. Built as $E/test_emulation in
   adapters/cuda.mk. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../shared/harness.h"

#include "../emulation/emulation.h"

#include <nccl.h>

/* ---- kernels ------------------------------------------------------------------------------- */

__global__ void block_sums(float *out, const float *in, size_t n) {
    __shared__ float part[32];
    const size_t stride = (size_t)gridDim.x * blockDim.x;
    float x = 0;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) x += in[i];
    for (int k = 16; k; k /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, k);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = x;
    __syncthreads();
    if (threadIdx.x) return;
    x = 0;
    for (unsigned w = 0; w < (blockDim.x + 31) / 32; w++) x += part[w];
    out[blockIdx.x] = x;
}

/* Some threads return before the others meet; lanes give and vote. */
__global__ void primitives(int *out) {
    EMULATED_DYNAMIC_SHARED(int, s);
    const int t = (int)threadIdx.x;
    if (t >= 48) return;
    s[t] = t;
    __syncthreads();
    const int mirrored = s[47 - t];
    __syncthreads();
    s[t] = mirrored;
    const unsigned lanes = t < 32 ? 0xFFFFFFFFu : 0xFFFFu; /* those that have not returned */
    const int down = __shfl_down_sync(lanes, t, 3u, 8);
    const int one = __shfl_sync(lanes, t, 5);
    const unsigned odd = __ballot_sync(lanes, t % 2);
    __syncthreads();
    out[t] = s[t] + 100 * down + 10000 * one + (odd == (t < 32 ? 0xAAAAAAAAu : 0xAAAAu) ? 0 : -1);
}

/* Without the barrier that belongs here the result depends on the order of the threads. */
__global__ void no_barrier(int *out) {
    EMULATED_DYNAMIC_SHARED(int, s);
    s[threadIdx.x] = (int)threadIdx.x;
    out[threadIdx.x] = s[(threadIdx.x + 1) % blockDim.x];
}

static void test_kernels(uint64_t order) {
    float *in = NULL, *sums = NULL;
    int *out = NULL, wrong = 0;
    const size_t n = 10000;
    emulation_reset();
    emulation_thread_order(order);
    (void)cudaMallocManaged(&in, n * sizeof *in);
    (void)cudaMallocManaged(&sums, 7 * sizeof *sums);
    (void)cudaMallocManaged(&out, 64 * sizeof *out);
    for (size_t i = 0; i < n; i++) in[i] = 1;
    EMULATED_LAUNCH(block_sums, 7, 160, 0, NULL, sums, in, n);
    float total = 0;
    for (int i = 0; i < 7; i++) total += sums[i];
    (void)test_check(total == (float)n, "order %d: sums of blocks add up to %g", (int)order,
                     (double)total);
    EMULATED_LAUNCH(primitives, 1, 64, 64 * sizeof(int), NULL, out);
    for (int t = 0; t < 48; t++) {
        const int down = t % 8 + 3 < 8 ? t + 3 : t, one = t / 32 * 32 + 5;
        wrong += out[t] != 47 - t + 100 * down + 10000 * one;
    }
    (void)test_check(!wrong, "order %d: %d of 48 threads shuffle wrong", (int)order, wrong);
    (void)test_check(cudaGetLastError() == cudaSuccess, "launches");
    EMULATED_LAUNCH(primitives, 1, 2048, 0, NULL, out);
    (void)test_check(cudaGetLastError() == cudaErrorInvalidConfiguration, "2048 threads");
    EMULATED_LAUNCH(primitives, 1, 64, 100000, NULL, out);
    (void)test_check(cudaGetLastError() == cudaErrorInvalidValue, "100000 bytes of shared memory");
    (void)cudaFuncSetAttribute(primitives, cudaFuncAttributeMaxDynamicSharedMemorySize, 100000);
    EMULATED_LAUNCH(primitives, 1, 64, 100000, NULL, out);
    (void)test_check(cudaGetLastError() == cudaSuccess, "100000 bytes that were asked for");
    emulation_thread_order(0);
}

static void test_missing_barrier(void) {
    int *out = NULL, shows = 0;
    (void)cudaMallocManaged(&out, 64 * sizeof *out);
    for (uint64_t order = 1; order < 10; order++) {
        emulation_thread_order(order);
        EMULATED_LAUNCH(no_barrier, 1, 64, 64 * sizeof(int), NULL, out);
        for (int t = 0; t < 64; t++) shows += out[t] != (t + 1) % 64;
    }
    emulation_thread_order(0);
    (void)test_check(shows > 0, "a barrier that is missing shows");
}

/* ---- graphs -------------------------------------------------------------------------------- */

__global__ void add_one(int *x) { *x += 1; }

/* A stream that is recorded runs nothing; each launch runs all that was recorded. What may not be
   recorded breaks the graph. */
static void test_graphs(uint64_t seed) {
    int *x = NULL, *y = NULL;
    cudaStream_t s;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t made = NULL;
    emulation_reset();
    emulation_seed(seed);
    const size_t live = emulation_live();
    (void)cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
    (void)cudaMallocManaged(&x, sizeof *x);
    (void)cudaMallocManaged(&y, sizeof *y);
    *x = 0, *y = -1;
    (void)test_check(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal) == cudaSuccess,
                     "recording begins");
    (void)cudaMemsetAsync(x, 0, sizeof *x, s);
    for (int i = 0; i < 3; i++) EMULATED_LAUNCH(add_one, 1, 1, 0, s, x);
    (void)cudaMemcpyAsync(y, x, sizeof *y, cudaMemcpyDeviceToDevice, s);
    EMULATED_LAUNCH(add_one, 1, 1, 0, s, y);
    (void)test_check(cudaStreamEndCapture(s, &graph) == cudaSuccess && graph
                         && cudaGraphInstantiate(&made, graph, 0) == cudaSuccess,
                     "a graph");
    (void)cudaGraphDestroy(graph);
    (void)cudaStreamSynchronize(s);
    (void)test_check(*x == 0 && *y == -1, "recording runs nothing: %d, %d", *x, *y);
    for (int i = 0; i < 2; i++) {
        *x = 50, *y = 0;
        (void)cudaGraphLaunch(made, s);
        EMULATED_LAUNCH(add_one, 1, 1, 0, s, y);
        (void)cudaStreamSynchronize(s);
        (void)test_check(*x == 3 && *y == 5, "launch %d: %d, %d", i, *x, *y);
    }
    (void)cudaGraphExecDestroy(made);
    (void)cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal);
    (void)test_check(cudaStreamSynchronize(s) == cudaErrorStreamCaptureUnsupported
                         && cudaStreamEndCapture(s, &graph) == cudaErrorStreamCaptureInvalidated
                         && !graph,
                     "a wait breaks the graph");
    (void)test_check(cudaStreamBeginCapture(NULL, cudaStreamCaptureModeThreadLocal) != cudaSuccess,
                     "the default stream cannot be recorded");
    (void)cudaGetLastError();
    (void)cudaStreamDestroy(s);
    (void)cudaFree(x);
    (void)cudaFree(y);
    (void)test_check(emulation_live() == live && !emulation_found(), "left behind: %s",
                     emulation_found() ? emulation_found() : "graphs");
    emulation_seed(0);
}

/* ---- streams and events -------------------------------------------------------------------- */

typedef struct two_streams {
    cudaStream_t a, b;
    cudaEvent_t e;
    int *x, *y; /* a writes x, b reads it into y */
} two_streams;

static void open_two(two_streams *t, uint64_t seed, unsigned flags) {
    emulation_reset();
    emulation_seed(seed);
    (void)cudaStreamCreateWithFlags(&t->a, flags);
    (void)cudaStreamCreateWithFlags(&t->b, flags);
    (void)cudaEventCreateWithFlags(&t->e, cudaEventDisableTiming);
    (void)cudaMallocManaged(&t->x, sizeof(int));
    (void)cudaMallocManaged(&t->y, sizeof(int));
}

typedef enum two_way {
    TWO_RIGHT = 0,
    TWO_NO_WAIT,
    TWO_EARLY_WAIT,  /* before the record */
    TWO_EARLY_REUSE, /* a writes again while b may still read */
    TWO_DEFAULT,     /* through the default stream, which blocking streams wait for */
    TWO_WAYS
} two_way;

/* 1: b read what a wrote first. */
static int run_two(two_way way, uint64_t seed, unsigned flags) {
    two_streams t;
    open_two(&t, seed, flags);
    if (way == TWO_EARLY_WAIT) (void)cudaStreamWaitEvent(t.b, t.e, 0);
    (void)cudaMemsetAsync(t.x, 1, sizeof(int), way == TWO_DEFAULT ? NULL : t.a);
    (void)cudaEventRecord(t.e, t.a);
    if (way == TWO_RIGHT || way == TWO_EARLY_REUSE) (void)cudaStreamWaitEvent(t.b, t.e, 0);
    (void)cudaMemcpyAsync(t.y, t.x, sizeof(int), cudaMemcpyDefault, t.b);
    if (way == TWO_EARLY_REUSE) (void)cudaMemsetAsync(t.x, 2, sizeof(int), t.a);
    (void)cudaStreamSynchronize(t.b);
    (void)cudaStreamSynchronize(t.a);
    return *t.y == 0x01010101;
}

static int right_of(two_way way, unsigned flags, int n) {
    int right = 0;
    for (int seed = 1; seed <= n; seed++) right += run_two(way, (uint64_t)seed, flags);
    return right;
}

static void test_events(void) {
    static const char *const names[TWO_WAYS] = {"the right order", "no wait",
                                                "a wait before its record", "a buffer reused early",
                                                "the default stream"};
    const int n = 100;
    for (int way = 0; way < TWO_WAYS; way++) {
        const int right = right_of((two_way)way, cudaStreamNonBlocking, n);
        const int at_once = run_two((two_way)way, 0, cudaStreamNonBlocking);
        (void)test_check(at_once, "%s: right where all runs at once", names[way]);
        (void)test_check(way == TWO_RIGHT ? right == n : right > 0 && right < n,
                         "%s: right for %d of %d seeds", names[way], right, n);
    }
    (void)test_check(right_of(TWO_DEFAULT, 0, n) == n,
                     "blocking streams are ordered by the default stream");
    (void)test_check(right_of(TWO_NO_WAIT, 0, n) < n, "but not by one another");
}

/* A wait binds to the last record before it; what is recorded later is not waited for. */
static void test_binding(void) {
    int behind = 0;
    for (uint64_t seed = 1; seed < 60; seed++) {
        two_streams t;
        open_two(&t, seed, cudaStreamNonBlocking);
        (void)cudaMemsetAsync(t.x, 1, sizeof(int), t.a);
        (void)cudaEventRecord(t.e, t.a);
        (void)cudaStreamWaitEvent(t.b, t.e, 0);
        (void)cudaMemsetAsync(t.x, 2, sizeof(int), t.a);
        (void)cudaEventRecord(t.e, t.a);
        (void)cudaMemcpyAsync(t.y, t.x, sizeof(int), cudaMemcpyDefault, t.b);
        (void)cudaEventSynchronize(t.e);
        (void)cudaStreamSynchronize(t.b);
        behind += *t.y == 0x02020202;
        (void)test_check(*t.y == 0x01010101 || *t.y == 0x02020202, "seed %d: %x", (int)seed, *t.y);
    }
    (void)test_check(behind > 0 && behind < 59, "the second record: seen by %d of 59", behind);
}

/* What is wrong whatever the result is. */
static void nothing(void *user) { (void)user; }
static void calls_cuda(void *stream) { (void)cudaStreamSynchronize((cudaStream_t)stream); }
static void test_findings(void) {
    two_streams t;
    open_two(&t, 1, cudaStreamNonBlocking);
    (void)cudaLaunchHostFunc(t.a, nothing, NULL);
    (void)cudaStreamSynchronize(t.a);
    (void)test_check(!emulation_found(), "nothing is wrong");
    (void)cudaLaunchHostFunc(t.a, calls_cuda, t.b);
    (void)cudaStreamSynchronize(t.a);
    (void)test_check(emulation_found() != NULL, "a host function that calls CUDA");
    open_two(&t, 1, cudaStreamNonBlocking);
    (void)cudaFree(t.x);
    (void)cudaMemsetAsync(t.x, 0, sizeof(int), t.a);
    (void)cudaStreamSynchronize(t.a);
    (void)test_check(emulation_found() != NULL, "memory that was freed");
    open_two(&t, 1, cudaStreamNonBlocking);
    (void)cudaMemsetAsync(t.x, 0, sizeof(int) + 1, t.a);
    (void)cudaStreamSynchronize(t.a);
    (void)test_check(emulation_found() != NULL, "past the end of memory");
    open_two(&t, 1, cudaStreamNonBlocking);
    (void)test_check(emulation_live() == 5, "%zu objects are there", emulation_live());
    (void)test_check(cudaEventQuery(t.e) == cudaSuccess, "an event that was never recorded");
    (void)cudaMemsetAsync(t.x, 0, sizeof(int), t.a);
    (void)cudaEventRecord(t.e, t.a);
    const cudaError_t e = cudaEventQuery(t.e);
    (void)test_check(e == cudaErrorNotReady && cudaGetLastError() == e, "an event under way");
    emulation_fail(EMULATION_ALLOCATION, 2);
    int *p = NULL, *q = NULL;
    (void)test_check(cudaMalloc(&p, 4) == cudaSuccess && cudaMalloc(&q, 4) != cudaSuccess,
                     "the second allocation fails");
    emulation_reset();
}

/* Memory that is pinned where it lies: counted, and left to its owner. */
static void test_pinning(void) {
    static int memory[2048], plain[4];
    two_streams t;
    open_two(&t, 1, cudaStreamNonBlocking);
    const size_t before = emulation_live();
    (void)test_check(cudaHostRegister(memory, 4096, cudaHostRegisterPortable) == cudaSuccess
                         && cudaHostRegister(memory + 1000, 400, 0)
                                == cudaErrorHostMemoryAlreadyRegistered
                         && emulation_live() == before + 1,
                     "memory is pinned, once");
    (void)cudaGetLastError();
    (void)cudaMemcpyAsync(memory, t.x, sizeof(int), cudaMemcpyDefault, t.a);
    (void)test_check(emulation_pageable() == 0, "a copy to pinned memory");
    (void)cudaMemcpyAsync(plain, t.x, sizeof(int), cudaMemcpyDefault, t.a);
    (void)test_check(emulation_pageable() == 1, "a copy to memory that is not");
    (void)cudaStreamSynchronize(t.a);
    (void)test_check(cudaHostUnregister(memory) == cudaSuccess && emulation_live() == before
                         && !emulation_found() && memory[0] == -1,
                     "it is the owner's again");
    (void)test_check(cudaHostUnregister(memory) != cudaSuccess && emulation_found() != NULL,
                     "unpinned twice");
    open_two(&t, 1, cudaStreamNonBlocking);
    (void)cudaHostRegister(memory, 4096, 0);
    (void)cudaMemcpyAsync(memory, t.x, sizeof(int), cudaMemcpyDefault, t.a);
    (void)cudaHostUnregister(memory);
    (void)test_check(emulation_found() != NULL, "unpinned while a copy is under way");
    open_two(&t, 1, cudaStreamNonBlocking);
    emulation_fail(EMULATION_ALLOCATION, 1);
    (void)test_check(cudaHostRegister(memory, 4096, 0) == cudaErrorMemoryAllocation,
                     "pinning fails as an allocation does");
    emulation_reset();
}

/* A function that waits for another thread, which is there; and for one on another stream, behind
   it on a thread of the driver's that both have. */
typedef struct two_gates {
    pthread_mutex_t lock;
    pthread_cond_t turned;
    int opens;
} two_gates;

static void gate_opens(void *gate) {
    two_gates *g = (two_gates *)gate;
    (void)pthread_mutex_lock(&g->lock);
    g->opens = 1;
    (void)pthread_cond_broadcast(&g->turned);
    (void)pthread_mutex_unlock(&g->lock);
}
static void gate_passes(void *gate) {
    two_gates *g = (two_gates *)gate;
    (void)pthread_mutex_lock(&g->lock);
    while (!g->opens) (void)emulated_cond_wait(&g->turned, &g->lock);
    (void)pthread_mutex_unlock(&g->lock);
}
static void *gate_thread(void *gate) {
    struct timespec t = {0, 20000000};
    (void)nanosleep(&t, NULL);
    gate_opens(gate);
    return NULL;
}

static void test_functions_wait(void) {
    two_gates g = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};
    pthread_t thread;
    two_streams t;
    emulation_patience(0.1);
    open_two(&t, 2, cudaStreamNonBlocking);
    (void)cudaLaunchHostFunc(t.a, gate_passes, &g);
    if (pthread_create(&thread, NULL, gate_thread, &g)) abort();
    (void)cudaStreamSynchronize(t.a);
    (void)pthread_join(thread, NULL);
    (void)test_check(!emulation_found(), "a function waits for a thread");
    int found = 0;
    emulation_patience(0.01);
    for (uint64_t seed = 1; seed <= 20; seed++) {
        open_two(&t, seed, cudaStreamNonBlocking);
        g.opens = 0;
        (void)cudaLaunchHostFunc(t.a, gate_passes, &g);
        (void)cudaLaunchHostFunc(t.b, gate_opens, &g);
        (void)cudaStreamSynchronize(t.a);
        (void)cudaStreamSynchronize(t.b);
        found += emulation_found() != NULL;
    }
    (void)test_check(found > 0 && found < 20, "a function waits for another one: found by %d of 20",
                     found);
    emulation_patience(20);
    emulation_reset();
}

/* ---- NCCL ---------------------------------------------------------------------------------- */

enum { NCCL_N = 5 };

typedef enum nccl_fault {
    NCCL_RIGHT = 0,
    NCCL_INPUT_CHANGES, /* while it is read */
    NCCL_OUTPUT_EARLY,  /* is read before it is there */
    NCCL_CROSSED,       /* two communicators, unordered */
    NCCL_OTHER_COUNT,   /* ranks do not agree */
    NCCL_IN_PROGRESS,   /* goes on before the group is on its way */
    NCCL_FAULTS
} nccl_fault;

typedef struct nccl_run {
    nccl_fault fault;
    ncclUniqueId id;
    int wrong;
} nccl_run;

/* Reduce-scatter and all-gather in place, on one stream; each faulty in its own way. */
static void nccl_work(nccl_run *run, ncclComm_t comm, ncclComm_t other, int rank, int n) {
    cudaStream_t s, s2;
    cudaEvent_t e;
    float *x = NULL, *y = NULL, seen[3 * NCCL_N];
    const size_t count = run->fault == NCCL_OTHER_COUNT && rank ? NCCL_N - 1 : NCCL_N;
    const size_t bytes = (size_t)n * NCCL_N * sizeof *x;
    (void)cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
    (void)cudaStreamCreateWithFlags(&s2, cudaStreamNonBlocking);
    (void)cudaEventCreateWithFlags(&e, cudaEventDisableTiming);
    (void)cudaMallocManaged(&x, bytes);
    (void)cudaMallocManaged(&y, bytes);
    for (int i = 0; i < n * NCCL_N; i++) x[i] = (float)(i + rank), y[i] = (float)rank;
    float *mine = x + rank * NCCL_N;
    ncclResult_t r = ncclReduceScatter(x, mine, count, ncclFloat32, ncclSum, comm, s);
    while (run->fault != NCCL_IN_PROGRESS && r == ncclInProgress)
        if (ncclCommGetAsyncError(comm, &r) != ncclSuccess) break;
    if (run->fault == NCCL_INPUT_CHANGES) (void)cudaMemsetAsync(x, 0, bytes, s2);
    if (run->fault == NCCL_CROSSED)
        (void)ncclAllReduce(y, y, NCCL_N, ncclFloat32, ncclSum, other, s2);
    r = ncclAllGather(mine, x, count, ncclFloat32, comm, s);
    while (run->fault != NCCL_IN_PROGRESS && r == ncclInProgress)
        if (ncclCommGetAsyncError(comm, &r) != ncclSuccess) break;
    (void)cudaEventRecord(e, s);
    if (run->fault != NCCL_OUTPUT_EARLY) (void)cudaStreamWaitEvent(s2, e, 0);
    (void)cudaMemcpyAsync(seen, x, bytes, cudaMemcpyDefault, s2);
    (void)cudaStreamSynchronize(s2);
    (void)cudaStreamSynchronize(s);
    for (int i = 0; i < n * NCCL_N; i++)
        run->wrong += !(seen[i] == (float)(n * i + n * (n - 1) / 2));
}

static void nccl_body(test_rank *rank) {
    nccl_run *run = (nccl_run *)rank->arg;
    ncclComm_t comm = NULL, other = NULL, child = NULL;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    emulation_enter(rank->rank, rank->nranks);
    (void)cudaSetDevice(rank->rank);
    (void)ncclCommInitRank(&comm, rank->nranks, run->id, rank->rank);
    (void)ncclCommSplit(comm, 0, rank->rank, &other, NULL);
    config.blocking = 0;
    (void)ncclCommSplit(comm, 0, rank->rank, &child, &config);
    nccl_work(run, child, other, rank->rank, rank->nranks);
    emulation_leave();
}

static int run_nccl(nccl_fault fault, uint64_t seed) {
    static nccl_run run;
    memset(&run, 0, sizeof run);
    run.fault = fault;
    emulation_reset();
    emulation_devices(3, 1);
    emulation_seed(seed);
    (void)ncclGetUniqueId(&run.id);
    (void)test_ranks(3, 0, nccl_body, &run);
    return !run.wrong && !emulation_found();
}

static void test_nccl(void) {
    static const char *const names[NCCL_FAULTS] = {
        "the right order",          "an input that changes", "an output that is read early",
        "communicators that cross", "counts that differ",    "a group not yet on its way"};
    emulation_patience(0.05);
    for (int fault = 0; fault < NCCL_FAULTS; fault++) {
        const int n = fault == NCCL_CROSSED ? 20 : 60;
        int right = 0;
        for (int seed = 1; seed <= n; seed++) right += run_nccl((nccl_fault)fault, (uint64_t)seed);
        (void)test_check(fault == NCCL_RIGHT ? right == n : right < n,
                         "NCCL, %s: right for %d of %d seeds", names[fault], right, n);
    }
    (void)test_check(run_nccl(NCCL_RIGHT, 0), "NCCL, all at once");
    emulation_patience(20);
    emulation_reset();
}

/* One seed, one run: the same order of everything. */
static void test_repeatable(void) {
    uint64_t calls[2];
    for (int i = 0; i < 2; i++) {
        (void)run_nccl(NCCL_RIGHT, 7);
        calls[i] = emulation_calls(EMULATION_ANY) * 1000 + emulation_calls(EMULATION_NCCL);
    }
    (void)test_check(calls[0] == calls[1], "a seed gives one run");
}

/* ---- errors that end the program ---- */

__global__ void wrong_mask(int *out) {
    out[threadIdx.x] = __shfl_sync(0xFFFFu, (int)threadIdx.x, 0); /* 32 lanes take part */
}
__global__ void past_dynamic(int *out) {
    EMULATED_DYNAMIC_SHARED(int, s);
    s[threadIdx.x] = 1;
    out[threadIdx.x] = s[threadIdx.x];
}
__global__ void unset_static(float *out) {
    __shared__ float x[2];
    if (threadIdx.x == 1) x[1] = 1;
    __syncthreads();
    out[threadIdx.x] = x[threadIdx.x];
}
static int *device_ints(void) {
    int *p = NULL;
    emulation_reset();
    emulation_hide(1);
    if (cudaMalloc(&p, 64 * sizeof *p) || cudaMemset(p, 0, 64 * sizeof *p)) _exit(1);
    return p;
}
static void host_reads(void) { _exit(*(volatile int *)device_ints()); }
static void host_function_writes(void) {
    (void)cudaLaunchHostFunc(
        NULL, [](void *p) { *(volatile int *)p = 1; }, device_ints());
}
static void lanes_differ(void) { EMULATED_LAUNCH(wrong_mask, 1, 32, 0, NULL, device_ints()); }
static void shared_is_short(void) {
    EMULATED_LAUNCH(past_dynamic, 1, 64, 60 * sizeof(int), NULL, device_ints());
}
static void shared_is_enough(void) {
    EMULATED_LAUNCH(past_dynamic, 1, 64, 64 * sizeof(int), NULL, device_ints());
}

/* Runs it in a process of its own; returns the signal that ended it, or 0. */
static int ended_by(void (*run)(void)) {
    int status = 0;
    (void)fflush(NULL);
    const pid_t child = fork();
    if (!child) {
        (void)!freopen("/dev/null", "w", stderr);
        run();
        _exit(0);
    }
    (void)waitpid(child, &status, 0);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void test_fatal(void) {
    (void)test_check(ended_by(host_reads) == SIGSEGV, "the host reads device memory");
    (void)test_check(ended_by(host_function_writes) == SIGSEGV, "a host function writes to it");
    (void)test_check(ended_by(lanes_differ) == SIGABRT, "a mask that names other lanes");
    (void)test_check(ended_by(shared_is_short) == SIGSEGV, "dynamic shared memory is too small");
    (void)test_check(!ended_by(shared_is_enough), "dynamic shared memory is enough");
    float *out = NULL;
    emulation_reset();
    (void)cudaMallocManaged(&out, 2 * sizeof *out);
    EMULATED_LAUNCH(unset_static, 1, 2, 0, NULL, out);
    (void)cudaDeviceSynchronize();
    (void)test_check(out[0] != out[0] && out[1] == 1, "static shared memory begins as NaN");
    (void)cudaFree(out);
}

int main(void) {
    test_fatal();
    for (uint64_t order = 0; order < 5; order++) test_kernels(order);
    test_missing_barrier();
    for (uint64_t seed = 0; seed < 5; seed++) test_graphs(seed);
    test_events();
    test_binding();
    test_findings();
    test_pinning();
    test_functions_wait();
    test_nccl();
    test_repeatable();
    return test_summary();
}

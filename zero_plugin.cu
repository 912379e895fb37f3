/* zero_plugin.cu - the plugin's one translation unit; zero_plugin.h is its manual.

   One source for two compilers: nvcc makes the CUDA version of it, a C compiler (cc -x c) the CPU
   version. Each element-wise kernel has one body; a macro makes the grid-stride kernel or the host
   loop of it.

   CONTENTS
     [SECTION] limits          sizes that everything below agrees on
     [SECTION] device          streams, events, tasks, copies
     [SECTION] numbers         16-bit storage of f32 values
     [SECTION] kernels         the element-wise bodies
     [SECTION] optimizers      the update rules, and how to add one
     [SECTION] errors          a communicator's first failure
     [SECTION] board           how ranks of one machine meet
     [SECTION] regions         memory that other ranks can read
     [SECTION] communicators   joining, exchanging, reduce-scatter, all-gather
     [SECTION] partition       where a tensor, a unit and a shard begin
     [SECTION] policies        the stages as data
     [SECTION] schedule        which unit sits in which buffer, and what is gathered next
     [SECTION] context         everything one rank owns
     [SECTION] plan            memory and traffic before anything is allocated
     [SECTION] checks          misuse, in builds that ask for it
     [SECTION] build           agreement and allocation
     [SECTION] parameters      gathers and pointers of a unit
     [SECTION] gradients       buckets, reductions, the norm
     [SECTION] step            skip, clip, update
     [SECTION] access          tensors by name
     [SECTION] state           ranges, for checkpoints
     [SECTION] interface       the functions of the header

   THE WALK OF ONE GRADIENT (unit u, stage 2 or 3, last micro-step)
     compute stream   zero_backward_begin: takes a gradient buffer, waits for its last reduction,
                      clears it; the host adds into it; zero_backward_end: event `written`
     gradient stream  waits for `written`, then reduce-scatter: every rank sums its own slice of u
                      from all ranks, in rank order, into its gradient shard; squares of the shard
                      by blocks; event `reduction`; after the last unit one exchange of three
                      doubles makes norm and skip the same everywhere: event `agreed`
     compute stream   zero_step waits for `agreed` and for u's last gather, updates the shard:
                      event `updated`
     parameter stream waits for `updated`, all-gathers u (stages 1 and 2, resident units) or leaves
                      it to the next pass (stage 3): event `gathered`
     compute stream   the next zero_forward_begin(u) waits for `gathered`
   When a reduction has ended on any rank, all ranks have computed with that unit's old parameters;
   when a gather has ended here, no rank reads from here any more: so the owner may update them. */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "zero_plugin.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#endif
#ifdef _OPENMP
#include <omp.h>
#endif
#if defined(__SSE2__) && !defined(__CUDACC__)
#include <immintrin.h>
#endif
#ifdef __CUDACC__
#undef ZERO_WITH_MPI
#define ZP_NO_MPI "MPI is for the CPU build: between GPUs it is NCCL"
#else
#undef ZERO_WITH_NCCL
#define ZP_NO_MPI "built without MPI: compile with mpicc and -DZERO_WITH_MPI"
#endif
#ifdef ZERO_WITH_MPI
#include <mpi.h>
#endif
#ifdef ZERO_WITH_NCCL
#include <dlfcn.h>
#include <nccl.h>
#endif

/* =============================================================================================
   [SECTION] limits
   Alignment is part of the layout: a tensor and a shard begin on a cache line of the CPU or on a
   128-byte line of the GPU, so an element's neighbours never depend on the number of ranks.
   ============================================================================================= */

#ifndef ZP_ALIGN /* elements of any type; 32 or a multiple of it */
#ifdef __CUDACC__
#define ZP_ALIGN ((size_t)64)
#else
#define ZP_ALIGN ((size_t)32)
#endif
#endif
#define ZP_LOCAL_MAX     64              /* ranks that share memory */
#define ZP_MAIL_BYTES    512             /* of one rank in an exchange */
#define ZP_TEXT_BYTES    384             /* of an error sentence */
#define ZP_STAGE_NUMEL   ((size_t)65536) /* elements that are staged at once */
#define ZP_NORM_BLOCK    ((size_t)1024)  /* elements summed into one f64 before blocks are added */
#define ZP_CONVERT_BLOCK ((size_t)512)   /* elements that are converted by way of other memory */
#define ZP_SUM_BLOCK     ((size_t)2048)  /* elements summed over ranks while they stay in cache */
#define ZP_TIMEOUT_S     600.0
#define ZP_CROSS_NUMEL   ((size_t)15360) /* f32 elements of a piece that goes between nodes */
#define ZP_CROSSINGS     ((size_t)32)    /* pieces on their way at once */
#define ZP_TASK_BYTES    160
#define ZP_QUEUE_TASKS   256
#define ZP_VERDICT       3 /* doubles a rank gives to the agreement: squares, bad unit + 1, place */

typedef enum zp_channel { ZP_GRADIENTS = 0, ZP_PARAMETERS, ZP_CONTROL, ZP_CHANNELS } zp_channel;

static_assert(ZP_VERDICT * sizeof(double) <= ZP_MAIL_BYTES, "the agreement fits one exchange");
static_assert(ZP_STAGE_NUMEL % ZP_ALIGN == 0, "staged pieces stay aligned");
static_assert(ZP_CROSS_NUMEL % ZP_ALIGN == 0, "pieces between nodes stay aligned");

static size_t zp_round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }
static size_t zp_min(size_t a, size_t b) { return a < b ? a : b; }
static size_t zp_max(size_t a, size_t b) { return a > b ? a : b; }

#define ZP_TRY(call)                                                                               \
    do {                                                                                           \
        const zero_result zp_r = (call);                                                           \
        if (zp_r) return zp_r;                                                                     \
    } while (0)

/* FNV-1a, by words. */
#define ZP_HASH_EMPTY ((uint64_t)14695981039346656037u)
static uint64_t zp_hash(uint64_t hash, uint64_t word) { return (hash ^ word) * 1099511628211u; }

static double zp_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* =============================================================================================
   [SECTION] device
   All device work goes through streams, events, tasks and copies. On the GPU these are CUDA's. On
   the CPU the compute stream runs a task at once in the caller; a communication stream is a thread
   with a queue. Events follow CUDA: a wait binds to the last record before the call, and a wait on
   an event never recorded is no wait.
   ============================================================================================= */

#ifdef __CUDACC__

/* Tests run the kernels on the CPU, and arenas in memory that the host may look into. */
#ifdef EMULATED_LAUNCH
#define ZP_LAUNCH EMULATED_LAUNCH
#else
#define ZP_LAUNCH(kernel, grid, block, shared, stream, ...)                                        \
    kernel<<<grid, block, shared, stream>>>(__VA_ARGS__)
#endif
#ifndef ZP_CUDA_MALLOC
#define ZP_CUDA_MALLOC cudaMalloc
#endif

typedef struct zp_device {
    double exposed_s;         /* not measured: waits are the streams' */
    int number;               /* CUDA's */
    cudaStream_t own;         /* for what happens outside steps */
    char text[ZP_TEXT_BYTES]; /* of the first error */
} zp_device;
typedef struct zp_stream {
    cudaStream_t cuda;
    zp_device *device; /* NULL: not open */
    int made;          /* by the plugin */
} zp_stream;
typedef struct zp_event {
    cudaEvent_t cuda; /* NULL: not open */
} zp_event;

static zero_result zp_cuda(zp_device *d, cudaError_t e, const char *call) {
    if (e == cudaSuccess) return ZERO_OK;
    if (!d->text[0]) (void)snprintf(d->text, sizeof d->text, "%s: %s", call, cudaGetErrorString(e));
    return e == cudaErrorMemoryAllocation ? ZERO_ERR_MEMORY : ZERO_ERR_DEVICE;
}
#define ZP_CUDA(d, call) ZP_TRY(zp_cuda(d, call, #call))

static zero_result zp_device_open(zp_device *d) {
    memset(d, 0, sizeof *d);
    ZP_CUDA(d, cudaGetDevice(&d->number));
    ZP_CUDA(d, cudaStreamCreateWithFlags(&d->own, cudaStreamNonBlocking));
    return ZERO_OK;
}
static void zp_device_close(zp_device *d) {
    if (d->own) (void)cudaStreamDestroy(d->own);
    d->own = NULL;
}
/* The host may have turned to another device. */
static zero_result zp_device_check(zp_device *d) {
    int now = d->number;
    ZP_CUDA(d, cudaGetDevice(&now));
    if (now == d->number) return ZERO_OK;
    (void)snprintf(d->text, sizeof d->text,
                   "device %d is current, but the context was made on device %d", now, d->number);
    return ZERO_ERR_STATE;
}

/* The stream that the host computes on. */
static zero_result zp_stream_take(zp_stream *s, zp_device *d, void *host, int threads) {
    (void)threads;
    s->cuda = (cudaStream_t)host;
    s->device = d;
    s->made = 0;
    return ZERO_OK;
}
/* A stream for communication, the more urgent the higher `rank`; or the host's own. */
static zero_result zp_stream_open(zp_stream *s, zp_device *d, void *host, int queued, int rank,
                                  int threads) {
    int least = 0, greatest = 0;
    (void)zp_stream_take(s, d, host, threads);
    if (!queued) return ZERO_OK;
    ZP_CUDA(d, cudaDeviceGetStreamPriorityRange(&least, &greatest));
    const int priority = greatest + 1 - rank < least ? greatest + 1 - rank : least;
    ZP_CUDA(d, cudaStreamCreateWithPriority(&s->cuda, cudaStreamNonBlocking, priority));
    s->made = 1;
    return ZERO_OK;
}
static void zp_stream_close(zp_stream *s) {
    if (s->device) (void)cudaStreamSynchronize(s->cuda);
    if (s->made) (void)cudaStreamDestroy(s->cuda);
    memset(s, 0, sizeof *s);
}
static zero_result zp_stream_sync(zp_stream *s) {
    ZP_CUDA(s->device, cudaStreamSynchronize(s->cuda));
    return ZERO_OK;
}
static zero_result zp_event_open(zp_device *d, zp_event *e) {
    ZP_CUDA(d, cudaEventCreateWithFlags(&e->cuda, cudaEventDisableTiming));
    return ZERO_OK;
}
static zero_result zp_event_record(zp_stream *s, zp_event *e) {
    ZP_CUDA(s->device, cudaEventRecord(e->cuda, s->cuda));
    return ZERO_OK;
}
static zero_result zp_event_wait(zp_stream *s, zp_event *e) {
    ZP_CUDA(s->device, cudaStreamWaitEvent(s->cuda, e->cuda, 0));
    return ZERO_OK;
}
/* The host waits. */
static zero_result zp_event_sync(zp_device *d, zp_event *e) {
    ZP_CUDA(d, cudaEventSynchronize(e->cuda));
    return ZERO_OK;
}
static void zp_event_close(zp_event *e) {
    if (e->cuda) (void)cudaEventDestroy(e->cuda);
    e->cuda = NULL;
}
static zero_result zp_copy(zp_stream *s, void *to, const void *from, size_t bytes) {
    if (bytes) ZP_CUDA(s->device, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, s->cuda));
    return ZERO_OK;
}
static zero_result zp_copy_away(zp_stream *s, void *to, const void *from, size_t bytes) {
    return zp_copy(s, to, from, bytes);
}
static zero_result zp_clear(zp_stream *s, void *p, size_t bytes) {
    if (bytes) ZP_CUDA(s->device, cudaMemsetAsync(p, 0, bytes, s->cuda));
    return ZERO_OK;
}
/* Zeros. NULL: there is no memory, which is no error of the device's. */
static void *zp_device_clear(zp_device *d, void *p, size_t bytes) {
    const cudaError_t e = cudaMemsetAsync(p, 0, bytes, d->own);
    return e == cudaSuccess && cudaStreamSynchronize(d->own) == cudaSuccess ? p : NULL;
}
static void *zp_device_alloc(zp_device *d, size_t bytes) {
    void *p = NULL;
    if (ZP_CUDA_MALLOC(&p, bytes) != cudaSuccess) {
        (void)cudaGetLastError(); /* the next launch is not to find it */
        return NULL;
    }
    if (zp_device_clear(d, p, bytes)) return p;
    (void)cudaGetLastError();
    (void)cudaFree(p);
    return NULL;
}
static void zp_device_free(void *p) {
    if (p) (void)cudaFree(p);
}
/* Memory of the host that devices reach as well, at the same address. */
static void *zp_host_alloc(size_t bytes) {
    void *p = NULL;
    if (cudaHostAlloc(&p, bytes, cudaHostAllocPortable | cudaHostAllocMapped) != cudaSuccess) {
        (void)cudaGetLastError();
        return NULL;
    }
    memset(p, 0, bytes);
    return p;
}
static void zp_host_free(void *p) {
    if (p) (void)cudaFreeHost(p);
}

#define ZP_FN      static __host__ __device__ __forceinline__ __attribute__((unused))
#define ZP_THREADS 256
static unsigned zp_grid(size_t threads, size_t most) {
    return (unsigned)zp_min((threads + ZP_THREADS - 1) / ZP_THREADS, most);
}
/* F_at(args, i) is the body. GRAIN: on the CPU, more elements are worth more threads than one. */
#define ZP_KERNEL(F, A, GRAIN)                                                                     \
    __global__ void __launch_bounds__(ZP_THREADS) F##_kernel(A a, size_t n) {                      \
        const size_t stride = (size_t)gridDim.x * blockDim.x;                                      \
        for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride)         \
            F##_at(&a, i);                                                                         \
    }                                                                                              \
    ZP_KERNEL_CALL(F, F##_kernel, A, zp_grid(n, 8192))
/* The host's side of a kernel: arguments by value, n from 1 on. */
#define ZP_KERNEL_CALL(F, KERNEL, A, GRID)                                                         \
    static zero_result F(zp_stream *s, const A *a, size_t n) {                                     \
        if (!n) return ZERO_OK;                                                                    \
        ZP_LAUNCH(KERNEL, GRID, ZP_THREADS, 0, s->cuda, *a, n);                                    \
        return zp_cuda(s->device, cudaGetLastError(), #KERNEL);                                    \
    }

#else /* CPU */

#ifdef _OPENMP
#define ZP_PRAGMA(text) _Pragma(#text)
#define ZP_SIMD         ZP_PRAGMA(omp simd)
#define ZP_OMP_FOR(WORTH) ZP_PRAGMA(omp parallel for num_threads(threads) if(WORTH))
#else
#define ZP_SIMD
#define ZP_OMP_FOR(WORTH)
#endif

typedef void (*zp_task_fn)(const void *args, size_t n, int threads);

typedef struct zp_task {
    zp_task_fn fn; /* NULL: the last task */
    size_t n;
    union {
        unsigned char bytes[ZP_TASK_BYTES];
        double align;
        void *pointer;
    } args;
} zp_task;

typedef struct zp_device { /* of one rank; its lock guards all its events */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    double exposed_s; /* the caller waited, or communicated itself */
    char text[1];     /* "": nothing fails here */
} zp_device;

typedef struct zp_stream {
    zp_device *device;
    int queued;  /* runs on a thread of its own */
    int threads; /* OpenMP threads of a task */
    int made, communicates;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t more, less;
    size_t head, tail; /* tasks taken, tasks given */
    zp_task *ring;     /* [ZP_QUEUE_TASKS] */
} zp_stream;

typedef struct zp_event {
    size_t recorded; /* by the host */
    size_t complete; /* by the stream, under the device's lock */
    zp_device *device;
} zp_event;

static zero_result zp_device_open(zp_device *d) {
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->changed, NULL);
    d->exposed_s = 0;
    d->text[0] = 0;
    return ZERO_OK;
}
static void zp_device_close(zp_device *d) {
    pthread_cond_destroy(&d->changed);
    pthread_mutex_destroy(&d->lock);
}
static zero_result zp_device_check(zp_device *d) {
    (void)d;
    return ZERO_OK;
}

static void *zp_stream_work(void *stream) {
    zp_stream *s = (zp_stream *)stream;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (s->head == s->tail) pthread_cond_wait(&s->more, &s->lock);
        zp_task task = s->ring[s->head % ZP_QUEUE_TASKS];
        pthread_mutex_unlock(&s->lock);
        if (!task.fn) return NULL;
        task.fn(&task.args, task.n, s->threads);
        pthread_mutex_lock(&s->lock);
        s->head++;
        pthread_cond_broadcast(&s->less);
    }
}

/* The host's stream is the host itself. */
static zero_result zp_stream_take(zp_stream *s, zp_device *d, void *host, int threads) {
    (void)host;
    memset(s, 0, sizeof *s);
    s->device = d;
    s->threads = threads;
    return ZERO_OK;
}

static zero_result zp_stream_open(zp_stream *s, zp_device *d, void *host, int queued, int rank,
                                  int threads) {
    (void)rank;
    (void)zp_stream_take(s, d, host, queued ? 1 : threads);
    s->communicates = 1;
    if (!queued) return ZERO_OK;
    s->ring = (zp_task *)calloc(ZP_QUEUE_TASKS, sizeof *s->ring);
    if (!s->ring) return ZERO_ERR_MEMORY;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->more, NULL);
    pthread_cond_init(&s->less, NULL);
    s->queued = 1;
    s->made = pthread_create(&s->thread, NULL, zp_stream_work, s) == 0;
    return s->made ? ZERO_OK : ZERO_ERR_MEMORY;
}

static zero_result zp_stream_push(zp_stream *s, zp_task_fn fn, const void *args, size_t bytes,
                                  size_t n) {
    if (!s->queued) {
        const double start = s->communicates ? zp_seconds() : 0;
        fn(args, n, s->threads);
        if (s->communicates) s->device->exposed_s += zp_seconds() - start;
        return ZERO_OK;
    }
    pthread_mutex_lock(&s->lock);
    while (s->tail - s->head == ZP_QUEUE_TASKS) pthread_cond_wait(&s->less, &s->lock);
    zp_task *task = &s->ring[s->tail % ZP_QUEUE_TASKS];
    task->fn = fn;
    task->n = n;
    memcpy(&task->args, args, bytes);
    s->tail++;
    pthread_cond_signal(&s->more);
    pthread_mutex_unlock(&s->lock);
    return ZERO_OK;
}

/* The queue is worked off first. */
static void zp_stream_close(zp_stream *s) {
    if (!s->queued) return;
    if (s->made) {
        (void)zp_stream_push(s, NULL, s, 0, 0);
        pthread_join(s->thread, NULL);
    }
    pthread_cond_destroy(&s->more);
    pthread_cond_destroy(&s->less);
    pthread_mutex_destroy(&s->lock);
    free(s->ring);
    memset(s, 0, sizeof *s);
}

static zero_result zp_stream_sync(zp_stream *s) {
    if (!s->queued) return ZERO_OK;
    const double start = zp_seconds();
    pthread_mutex_lock(&s->lock);
    while (s->head != s->tail) pthread_cond_wait(&s->less, &s->lock);
    pthread_mutex_unlock(&s->lock);
    s->device->exposed_s += zp_seconds() - start;
    return ZERO_OK;
}

/* Tasks of events: n is the number of a record. */
static void zp_event_complete_task(const void *event, size_t n, int threads) {
    zp_event *e;
    memcpy(&e, event, sizeof(zp_event *));
    (void)threads;
    pthread_mutex_lock(&e->device->lock);
    e->complete = n;
    pthread_cond_broadcast(&e->device->changed);
    pthread_mutex_unlock(&e->device->lock);
}

static void zp_event_await_task(const void *event, size_t n, int threads) {
    zp_event *e;
    memcpy(&e, event, sizeof(zp_event *));
    (void)threads;
    pthread_mutex_lock(&e->device->lock);
    while (e->complete < n) pthread_cond_wait(&e->device->changed, &e->device->lock);
    pthread_mutex_unlock(&e->device->lock);
}

static zero_result zp_event_open(zp_device *d, zp_event *e) {
    memset(e, 0, sizeof *e);
    e->device = d;
    return ZERO_OK;
}
static zero_result zp_event_record(zp_stream *s, zp_event *e) {
    e->recorded++;
    if (s->queued)
        return zp_stream_push(s, zp_event_complete_task, &e, sizeof(zp_event *), e->recorded);
    zp_event_complete_task(&e, e->recorded, 1); /* which counts as no communication */
    return ZERO_OK;
}
static zero_result zp_event_sync(zp_device *d, zp_event *e) {
    const double start = zp_seconds();
    if (!e->recorded) return ZERO_OK;
    zp_event_await_task(&e, e->recorded, 1);
    d->exposed_s += zp_seconds() - start;
    return ZERO_OK;
}
static zero_result zp_event_wait(zp_stream *s, zp_event *e) {
    if (!s->queued) return zp_event_sync(s->device, e);
    if (!e->recorded) return ZERO_OK;
    return zp_stream_push(s, zp_event_await_task, &e, sizeof(zp_event *), e->recorded);
}
static void zp_event_close(zp_event *e) { (void)e; }

typedef struct zp_copy_args {
    void *to;
    const void *from; /* NULL: zeros */
} zp_copy_args;

static void zp_copy_task(const void *args, size_t bytes, int threads) {
    zp_copy_args a;
    memcpy(&a, args, sizeof a);
    (void)threads;
    if (a.from)
        memcpy(a.to, a.from, bytes);
    else
        memset(a.to, 0, bytes);
}
static zero_result zp_copy(zp_stream *s, void *to, const void *from, size_t bytes) {
    const zp_copy_args a = {to, from};
    return bytes ? zp_stream_push(s, zp_copy_task, &a, sizeof a, bytes) : ZERO_OK;
}
static zero_result zp_clear(zp_stream *s, void *p, size_t bytes) {
    return zp_copy(s, p, NULL, bytes);
}

enum { ZP_AWAY_BYTES = 1 << 20 }; /* that one thread copies at once */
/* Past the caches, which would read each line before it is written. */
static void zp_away_bytes(char *to, const char *from, size_t bytes) {
    size_t at = 0;
#ifdef __SSE2__
    at = zp_min((16 - ((uintptr_t)to & 15)) & 15, bytes);
    memcpy(to, from, at);
    for (; at + 16 <= bytes; at += 16)
        _mm_stream_si128((__m128i *)(void *)(to + at),
                         _mm_loadu_si128((const __m128i *)(const void *)(from + at)));
    _mm_sfence();
#endif
    memcpy(to + at, from + at, bytes - at);
}
static void zp_away_task(const void *args, size_t bytes, int threads) {
    zp_copy_args a;
    memcpy(&a, args, sizeof a);
    if (threads < 2 || bytes <= ZP_AWAY_BYTES) {
        zp_away_bytes((char *)a.to, (const char *)a.from, bytes);
        return; /* a parallel region, even of one thread, may want memory */
    }
    ZP_OMP_FOR(1)
    for (size_t at = 0; at < bytes; at += ZP_AWAY_BYTES)
        zp_away_bytes((char *)a.to + at, (const char *)a.from + at,
                      zp_min(ZP_AWAY_BYTES, bytes - at));
}
/* To memory that is not read soon. */
static zero_result zp_copy_away(zp_stream *s, void *to, const void *from, size_t bytes) {
    const zp_copy_args a = {to, from};
    return bytes ? zp_stream_push(s, zp_away_task, &a, sizeof a, bytes) : ZERO_OK;
}

/* Large pages where the system has them: an update walks four arrays at once. */
static void *zp_device_alloc(zp_device *d, size_t bytes) {
    void *p = NULL;
    (void)d;
    if (posix_memalign(&p, bytes >= (1u << 22) ? (size_t)1 << 21 : 4096, bytes)) return NULL;
#ifdef MADV_HUGEPAGE
    if (bytes >= (1u << 22)) (void)madvise(p, bytes, MADV_HUGEPAGE);
#endif
    memset(p, 0, bytes);
    return p;
}
static void zp_device_free(void *p) { free(p); }
static void *zp_host_alloc(size_t bytes) { return zp_device_alloc(NULL, bytes); }
static void zp_host_free(void *p) { free(p); }

#define ZP_FN static inline __attribute__((unused))
#define ZP_KERNEL(F, A, GRAIN)                                                                     \
    static void F##_loop(const void *args, size_t n, int threads) {                                \
        A a;                                                                                       \
        memcpy(&a, args, sizeof a);                                                                \
        (void)threads;                                                                             \
        ZP_OMP_FOR(n > GRAIN)                                                                      \
        for (size_t i = 0; i < n; i++) F##_at(&a, i);                                              \
    }                                                                                              \
    ZP_KERNEL_CALL(F, F##_loop, A)
#define ZP_KERNEL_CALL(F, LOOP, A)                                                                 \
    static_assert(sizeof(A) <= ZP_TASK_BYTES, "a task carries its arguments");                     \
    static zero_result F(zp_stream *s, const A *a, size_t n) {                                     \
        return n ? zp_stream_push(s, LOOP, a, sizeof *a, n) : ZERO_OK;                             \
    }

#endif

/* =============================================================================================
   [SECTION] numbers
   Bodies work on f32 values; loads and stores convert, several at a time. The plain functions
   say what a conversion is; where the processor has an instruction for it, that gives the same
   bits (a test compares all of them).
   ============================================================================================= */

ZP_FN uint32_t zp_bits(float x) {
    uint32_t b;
    memcpy(&b, &x, sizeof b);
    return b;
}
ZP_FN float zp_float(uint32_t b) {
    float x;
    memcpy(&x, &b, sizeof x);
    return x;
}
ZP_FN float zp_from_bf16(uint16_t h) { return zp_float((uint32_t)h << 16); }
ZP_FN uint16_t zp_to_bf16(float x) {
    const uint32_t b = zp_bits(x);
    const int nan = (b & 0x7FFFFFFFu) > 0x7F800000u;
    return (uint16_t)(nan ? (b >> 16 | 0x40u) : (b + 0x7FFFu + (b >> 16 & 1u)) >> 16);
}
ZP_FN float zp_from_f16(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = h & 0x7FFFu;
    if (rest > 0x7C00u) return zp_float(sign | 0x7FC00000u | (rest & 0x3FFu) << 13); /* quiet NaN */
    if (rest == 0x7C00u) return zp_float(sign | 0x7F800000u);
    if (rest < 0x400u) return zp_float(sign | zp_bits((float)rest * 0x1p-24f));
    return zp_float(sign | ((rest << 13) + 0x38000000u));
}
ZP_FN uint16_t zp_to_f16(float x) {
    const uint32_t all = zp_bits(x), b = all & 0x7FFFFFFFu;
    const uint16_t sign = (uint16_t)(all >> 16 & 0x8000u);
    if (b > 0x7F800000u) return (uint16_t)(sign | 0x7E00u | (b >> 13 & 0x3FFu));
    if (b >= 0x477FF000u) return (uint16_t)(sign | 0x7C00u); /* 65520 and more round to infinity */
    if (b < 0x38800000u) /* below 2^-14: a sum with 0.5 rounds to multiples of 2^-24 */
        return (uint16_t)(sign | (zp_bits(zp_float(b) + 0.5f) - 0x3F000000u));
    return (uint16_t)(sign | (b - 0x38000000u + 0xFFFu + (b >> 13 & 1u)) >> 13);
}

ZP_FN size_t zp_bytes(zero_type type) { return type == ZERO_F32 ? 4 : 2; }
ZP_FN float zp_load(const void *from, zero_type type, size_t i) {
    if (type == ZERO_F32) return ((const float *)from)[i];
    const uint16_t h = ((const uint16_t *)from)[i];
    return type == ZERO_BF16 ? zp_from_bf16(h) : zp_from_f16(h);
}
ZP_FN void zp_store(void *to, zero_type type, size_t i, float x) {
    if (type == ZERO_F32)
        ((float *)to)[i] = x;
    else
        ((uint16_t *)to)[i] = type == ZERO_BF16 ? zp_to_bf16(x) : zp_to_f16(x);
}

/* Elements that are loaded and stored at once, from a multiple of them on: 16 on the CPU; on the
   GPU as many as keep neighbouring threads in one line. */
#ifdef __CUDACC__
#define ZP_WIDE ((size_t)4)
#else
#define ZP_WIDE ((size_t)16)
#endif
#ifdef __CUDACC__
/* In two steps, so that all that a thread reads is on its way before it waits for any of it. */
ZP_FN uint4 zp_load_words(const void *from, zero_type type, size_t i) {
    if (type == ZERO_F32) return *(const uint4 *)(const void *)((const float *)from + i);
    const uint2 h = *(const uint2 *)(const void *)((const uint16_t *)from + i);
    return make_uint4(h.x & 0xFFFFu, h.x >> 16, h.y & 0xFFFFu, h.y >> 16);
}
ZP_FN void zp_open_words(float *x, uint4 words, zero_type type) {
    const uint32_t all[4] = {words.x, words.y, words.z, words.w};
    if (type == ZERO_F16)
        for (size_t j = 0; j < 4; j++) x[j] = zp_from_f16((uint16_t)all[j]);
    else
        for (size_t j = 0; j < 4; j++) x[j] = zp_float(type == ZERO_F32 ? all[j] : all[j] << 16);
}
#endif
ZP_FN void zp_load_wide(float *x, const void *from, zero_type type, size_t i) {
#if defined(__CUDA_ARCH__)
    zp_open_words(x, zp_load_words(from, type, i), type);
#elif defined(__AVX512F__) && !defined(__CUDACC__)
    const __m256i h =
        _mm256_loadu_si256((const __m256i *)(const void *)((const char *)from + 2 * i));
    if (type == ZERO_BF16)
        _mm512_storeu_si512(x, _mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
    else if (type == ZERO_F16)
        _mm512_storeu_ps(x, _mm512_cvtph_ps(h));
    else
        _mm512_storeu_ps(x, _mm512_loadu_ps((const float *)from + i));
#else
    for (size_t j = 0; j < ZP_WIDE; j++) x[j] = zp_load(from, type, i + j);
#endif
}
ZP_FN void zp_store_wide(void *to, zero_type type, size_t i, const float *x) {
#if defined(__CUDA_ARCH__)
    if (type == ZERO_F32) {
        *(float4 *)((float *)to + i) = make_float4(x[0], x[1], x[2], x[3]);
        return;
    }
    uint16_t h[4];
    if (type == ZERO_BF16)
        for (size_t j = 0; j < 4; j++) h[j] = zp_to_bf16(x[j]);
    else
        for (size_t j = 0; j < 4; j++) h[j] = zp_to_f16(x[j]);
    *(ushort4 *)((uint16_t *)to + i) = make_ushort4(h[0], h[1], h[2], h[3]);
#else
#if defined(__AVX512F__) && !defined(__CUDACC__)
    if (type == ZERO_F16) {
        _mm256_storeu_si256((__m256i *)(void *)((uint16_t *)to + i),
                            _mm512_cvtps_ph(_mm512_loadu_ps(x), _MM_FROUND_TO_NEAREST_INT));
        return;
    }
#if defined(__AVX512BF16__) && defined(__AVX512DQ__)
    /* the instruction takes denormal numbers for zeros; 0x20 finds them */
    const __m512 v = _mm512_loadu_ps(x);
    if (type == ZERO_BF16 && !_mm512_fpclass_ps_mask(v, 0x20)) {
        _mm256_storeu_si256((__m256i *)(void *)((uint16_t *)to + i),
                            (__m256i)_mm512_cvtneps_pbh(v));
        return;
    }
#endif
#endif
    for (size_t j = 0; j < ZP_WIDE; j++) zp_store(to, type, i + j, x[j]);
#endif
}

ZP_FN void zp_widen(float *to, const void *from, zero_type type, size_t n) {
    const size_t whole = n / ZP_WIDE * ZP_WIDE;
    for (size_t i = 0; i < whole; i += ZP_WIDE) zp_load_wide(to + i, from, type, i);
    for (size_t i = whole; i < n; i++) to[i] = zp_load(from, type, i);
}
ZP_FN void zp_narrow(void *to, zero_type type, const float *from, size_t n) {
    const size_t whole = n / ZP_WIDE * ZP_WIDE;
    for (size_t i = 0; i < whole; i += ZP_WIDE) zp_store_wide(to, type, i, from + i);
    for (size_t i = whole; i < n; i++) zp_store(to, type, i, from[i]);
}
/* n values from element `at` on, in f32: where they lie, or a copy. */
ZP_FN const float *zp_view(const void *from, zero_type type, size_t at, size_t n, float *copy) {
    if (type == ZERO_F32) return (const float *)from + at;
    zp_widen(copy, (const uint16_t *)from + at, type, n);
    return copy;
}

/* =============================================================================================
   [SECTION] kernels
   Bodies work on f32 values. What a step needs to know and only the device does (skip, clip
   factor, step count) is in zp_control, which they read once before their loop.
   ============================================================================================= */

typedef struct zp_control { /* device memory; written by the agreement and by the step */
    double sumsq;           /* of the mean gradient, scaled, all ranks */
    double bad_unit, bad_offset, bad_rank; /* first element that is not finite; bad_unit -1: none */
    int64_t steps, skipped;
    int skip, at_floor;      /* of this step; at_floor: it overflowed at the smallest scale */
    double factor;           /* gradient times this: unscaling and clipping */
    float scale, used_scale; /* of the next backward; of the one that was reduced last */
    float divisor;  /* what is reduced is so many times the mean: the ranks, if NCCL summed */
    int hysteresis; /* left of it */
    int64_t iteration, last_overflow;
    double bias_ratio;      /* sqrt(1 - beta2^t) / (1 - beta1^t) */
    double root_correction; /* sqrt(1 - beta2^t), for eps */
} zp_control;

/* Lanes of a sum in f64 are added up by halves: the same bits on a warp, a block and a CPU. */
ZP_FN double zp_halve(double *lane, size_t n) {
    for (size_t w = n / 2; w; w /= 2)
        for (size_t j = 0; j < w; j++) lane[j] += lane[j + w];
    return lane[0];
}

/* Squares of one block of a gradient shard, in f64, in 32 lanes: the same bits wherever the block
   is computed. */
typedef struct zp_norm_args {
    const void *g;
    zero_type type;
    size_t numel;
    double *partial;
} zp_norm_args;

#define ZP_LANES ((size_t)32)
ZP_FN void zp_norm_at(const zp_norm_args *a, size_t block) {
    const size_t first = block * ZP_NORM_BLOCK, left = a->numel - first;
    const size_t n = left < ZP_NORM_BLOCK ? left : ZP_NORM_BLOCK;
    float copy[ZP_NORM_BLOCK];
    const float *g = zp_view(a->g, a->type, first, n, copy);
    double lane[ZP_LANES];
    for (size_t j = 0; j < ZP_LANES; j++) lane[j] = 0;
    for (size_t i = 0; i < n; i += ZP_LANES) /* shards are whole multiples of ZP_ALIGN */
        for (size_t j = 0; j < ZP_LANES; j++) lane[j] += (double)g[i + j] * (double)g[i + j];
    a->partial[block] = zp_halve(lane, ZP_LANES);
}
#ifdef __CUDACC__
/* Eight threads take a block, each of them ZP_WIDE neighbouring lanes. A square of an f32 is exact
   in f64, so that fma rounds as the sum does. */
#define ZP_NORM_TEAM  (ZP_LANES / ZP_WIDE)
#define ZP_NORM_BATCH ((size_t)4) /* loads of a thread that are under way at once */
__global__ void __launch_bounds__(ZP_THREADS) zp_norm_teams(zp_norm_args a, size_t blocks) {
    const size_t me = threadIdx.x % ZP_NORM_TEAM, teams = ZP_THREADS / ZP_NORM_TEAM;
    for (size_t at = blockIdx.x * teams; at < blocks; at += gridDim.x * teams) {
        const size_t block = at + threadIdx.x / ZP_NORM_TEAM, first = block * ZP_NORM_BLOCK;
        const size_t left = block < blocks ? a.numel - first : 0;
        const size_t n = left < ZP_NORM_BLOCK ? left : ZP_NORM_BLOCK;
        double lane[ZP_WIDE] = {0};
        for (size_t i = me * ZP_WIDE; i < n; i += ZP_LANES * ZP_NORM_BATCH) {
            uint4 words[ZP_NORM_BATCH];
            for (size_t k = 0; k < ZP_NORM_BATCH; k++)
                words[k] = i + k * ZP_LANES < n
                               ? zp_load_words(a.g, a.type, first + i + k * ZP_LANES)
                               : make_uint4(0, 0, 0, 0);
            for (size_t k = 0; k < ZP_NORM_BATCH; k++) {
                float g[ZP_WIDE];
                zp_open_words(g, words[k], a.type);
                for (size_t j = 0; j < ZP_WIDE; j++)
                    lane[j] = fma((double)g[j], (double)g[j], lane[j]);
            }
        }
        for (int w = (int)ZP_NORM_TEAM / 2; w; w /= 2)
            for (size_t j = 0; j < ZP_WIDE; j++)
                lane[j] += __shfl_xor_sync(0xFFFFFFFFu, lane[j], w);
        if (me == 0 && n) a.partial[block] = zp_halve(lane, ZP_WIDE);
    }
}
ZP_KERNEL_CALL(zp_norm, zp_norm_teams, zp_norm_args, zp_grid(ZP_NORM_TEAM *n, 4096))
#else
ZP_KERNEL(zp_norm, zp_norm_args, 64)
#endif

ZP_FN int zp_finite(double x) { return x - x == 0; }

/* Adds one unit's blocks to this rank's verdict, in 256 lanes; the first block of the lowest unit
   that is not finite is searched for its first bad element. */
typedef struct zp_fold_args {
    zp_norm_args norm;
    double *verdict;       /* [ZP_VERDICT], zeros to begin with */
    double unit, shard_at; /* the shard's first element within the unit */
} zp_fold_args;

#define ZP_FOLD_LANES ((size_t)256)
#define ZP_FOLD_BATCH ((size_t)16) /* loads of a lane that are under way at once */
/* One lane's blocks; *bad: the first that is not finite, if it is before what is there. */
ZP_FN double zp_fold_lane(const zp_fold_args *a, size_t lane, size_t *bad) {
    const size_t blocks = (a->norm.numel + ZP_NORM_BLOCK - 1) / ZP_NORM_BLOCK;
    double sum = 0, partial[ZP_FOLD_BATCH];
    for (size_t b = lane; b < blocks; b += ZP_FOLD_LANES * ZP_FOLD_BATCH) {
        for (size_t k = 0; k < ZP_FOLD_BATCH; k++)
            partial[k] =
                b + k * ZP_FOLD_LANES < blocks ? a->norm.partial[b + k * ZP_FOLD_LANES] : 0;
        for (size_t k = 0; k < ZP_FOLD_BATCH; k++) {
            sum += partial[k];
            if (!zp_finite(partial[k]) && b + k * ZP_FOLD_LANES < *bad)
                *bad = b + k * ZP_FOLD_LANES;
        }
    }
    return sum;
}
ZP_FN void zp_fold_close(const zp_fold_args *a, double sum, size_t bad) {
    a->verdict[0] += sum;
    if (bad == (size_t)-1 || (a->verdict[1] > 0 && a->verdict[1] <= a->unit + 1)) return;
    size_t i = bad * ZP_NORM_BLOCK;
    while (i < a->norm.numel && zp_finite(zp_load(a->norm.g, a->norm.type, i))) i++;
    a->verdict[1] = a->unit + 1;
    a->verdict[2] = a->shard_at + (double)i;
}
ZP_FN void zp_fold_at(const zp_fold_args *a, size_t one) {
    double lane[ZP_FOLD_LANES];
    size_t bad = (size_t)-1;
    (void)one;
    for (size_t j = 0; j < ZP_FOLD_LANES; j++) lane[j] = zp_fold_lane(a, j, &bad);
    zp_fold_close(a, zp_halve(lane, ZP_FOLD_LANES), bad);
}
#ifdef __CUDACC__
/* One block, each of its threads a lane. */
__global__ void __launch_bounds__(ZP_THREADS) zp_fold_block(zp_fold_args a, size_t one) {
    __shared__ double lane[ZP_FOLD_LANES];
    __shared__ size_t bad[ZP_FOLD_LANES];
    const size_t me = threadIdx.x;
    (void)one;
    bad[me] = (size_t)-1;
    lane[me] = zp_fold_lane(&a, me, &bad[me]);
    for (size_t w = ZP_FOLD_LANES / 2; w; w /= 2) {
        __syncthreads();
        if (me >= w) continue;
        lane[me] += lane[me + w];
        if (bad[me + w] < bad[me]) bad[me] = bad[me + w];
    }
    if (me == 0) zp_fold_close(&a, lane[0], bad[0]);
}
static_assert(ZP_THREADS == ZP_FOLD_LANES, "a thread takes a lane");
ZP_KERNEL_CALL(zp_fold, zp_fold_block, zp_fold_args, 1)
#else
ZP_KERNEL(zp_fold, zp_fold_args, 1)
#endif

/* All ranks' verdicts, in rank order, become one. One thread. */
typedef struct zp_judge_args {
    zp_control *control;
    const double *verdicts;
    int nranks;
} zp_judge_args;

ZP_FN void zp_judge_at(const zp_judge_args *a, size_t one) {
    zp_control *c = a->control;
    (void)one;
    c->sumsq = 0;
    c->bad_unit = -1;
    for (int r = 0; r < a->nranks; r++) {
        const double *v = a->verdicts + ZP_VERDICT * r;
        c->sumsq += v[0];
        if (v[1] == 0 || (c->bad_unit >= 0 && c->bad_unit <= v[1] - 1)) continue;
        c->bad_unit = v[1] - 1;
        c->bad_offset = v[2];
        c->bad_rank = r;
    }
}
ZP_KERNEL(zp_judge, zp_judge_args, 1)

/* The loss scale after a step, by DeepSpeed's rules (zero_scaler in the header). */
ZP_FN void zp_scale_next(zp_control *c, const zero_scaler *s, int overflow) {
    if (overflow) {
        if (c->hysteresis == 1) {
            c->at_floor = c->scale <= s->minimum;
            c->scale = c->scale / 2 > s->minimum ? c->scale / 2 : s->minimum;
        } else {
            c->hysteresis--;
        }
        c->last_overflow = c->iteration;
    } else {
        const int64_t stable = c->iteration - c->last_overflow - 1;
        const int grows = stable > 0 && stable % s->window == 0;
        if (grows) c->scale *= 2;
        if (grows || s->consecutive_hysteresis) c->hysteresis = s->hysteresis;
    }
    c->iteration++;
}

/* The 2-norm of the mean gradient, from that of what was reduced at a scale. */
ZP_FN double zp_mean_norm(const zp_control *c, float scale) {
    return sqrt(c->sumsq) / ((double)scale * (double)c->divisor);
}

/* Decides what the update does: skip, unscale, clip, bias corrections. One thread. */
typedef struct zp_decide_args {
    zp_control *control;
    zero_hyper hyper;
    zero_scaler scaler;
    int check;
    int drop; /* the host wants no update */
} zp_decide_args;

ZP_FN void zp_decide_at(const zp_decide_args *a, size_t one) {
    zp_control *c = a->control;
    const double scale = (double)c->scale * (double)c->divisor, norm = zp_mean_norm(c, c->scale);
    const double most = (double)a->hyper.max_norm;
    (void)one;
    /* a norm that is not finite cannot clip, so clipping implies the check */
    c->skip = a->drop || (!zp_finite(norm) && (a->check || most > 0));
    c->used_scale = c->scale;
    c->at_floor = 0;
    if (a->scaler.fixed == 0) zp_scale_next(c, &a->scaler, !zp_finite(norm));
    if (c->skip) {
        c->skipped++;
        return;
    }
    const double clip = most > 0 && norm + 1e-6 > most ? most / (norm + 1e-6) : 1;
    c->factor = clip / scale;
    c->steps++;
    const double root = sqrt(1.0 - pow((double)a->hyper.beta2, (double)c->steps));
    c->bias_ratio = root / (1.0 - pow((double)a->hyper.beta1, (double)c->steps));
    c->root_correction = root;
}
ZP_KERNEL(zp_decide, zp_decide_args, 1)

/* Adds a micro-step's 16-bit gradient to the f32 accumulator; `last` rounds the sum back into the
   gradient, where it is reduced from. ZP_WIDE elements at a time. */
typedef struct zp_collect_args {
    float *sum;
    void *g;
    zero_type type;
    int first, last;
} zp_collect_args;

ZP_FN void zp_collect_at(const zp_collect_args *a, size_t at) {
    float g[ZP_WIDE], sum[ZP_WIDE];
    zp_load_wide(g, a->g, a->type, ZP_WIDE * at);
    if (!a->first) zp_load_wide(sum, a->sum, ZERO_F32, ZP_WIDE * at);
    for (size_t j = 0; j < ZP_WIDE; j++) sum[j] = a->first ? g[j] : sum[j] + g[j];
    zp_store_wide(a->sum, ZERO_F32, ZP_WIDE * at, sum);
    if (a->last) zp_store_wide(a->g, a->type, ZP_WIDE * at, sum);
}
ZP_KERNEL(zp_collect, zp_collect_args, 2048)

/* Sums over the ranks: the slices that a sum reads, by place; nodes are cut every `group` places.
   The sum times scale is stored in `sum`, or added to it, and from there rounded to `out`; where
   out is f32 it is the sum's own place. ZP_WIDE elements at a time; the CPU's own way of it, which
   keeps a piece in cache, is with its collectives. */
typedef struct zp_sum {
    const void *source[ZP_LOCAL_MAX];
    zero_type type, out_type;
    int n, group;
    void *out;
    float *sum; /* NULL: none */
    float scale;
    int accumulate;
} zp_sum;

ZP_FN void zp_sum_ranks_at(const zp_sum *s, size_t at) {
    float total[ZP_WIDE] = {0}, node[ZP_WIDE] = {0}, x[ZP_WIDE];
    const size_t i = at * ZP_WIDE;
    float *sum = s->sum || s->out_type != ZERO_F32 ? s->sum : (float *)s->out;
    for (int p = 0; p < s->n; p++) {
        float *to = p < s->group ? total : node;
        zp_load_wide(x, s->source[p], s->type, i);
        for (size_t j = 0; j < ZP_WIDE; j++) to[j] = p % s->group == 0 ? x[j] : to[j] + x[j];
        if (p >= s->group && (p + 1) % s->group == 0)
            for (size_t j = 0; j < ZP_WIDE; j++) total[j] += node[j];
    }
    if (s->accumulate) zp_load_wide(x, sum, ZERO_F32, i);
    for (size_t j = 0; j < ZP_WIDE; j++)
        total[j] = s->accumulate ? x[j] + s->scale * total[j] : s->scale * total[j];
    if (sum) zp_store_wide(sum, ZERO_F32, i, total);
    if (s->out_type != ZERO_F32) zp_store_wide(s->out, s->out_type, i, total);
}
#ifdef __CUDACC__
ZP_KERNEL(zp_sum_ranks, zp_sum, 2048)
#endif

/* Brings stored values to f32, and back, for access by name; gradients unscaled. */
typedef struct zp_fetch_args {
    const void *from;
    void *to;
    zero_type from_type, to_type;
    const zp_control *control; /* gradients: their scale; NULL otherwise */
    int reads;
} zp_fetch_args;

ZP_FN void zp_fetch_at(const zp_fetch_args *a, size_t i) {
    const float scale = a->control ? a->control->scale * a->control->divisor : 1;
    const float factor = a->reads ? 1.0f / scale : scale;
    zp_store(a->to, a->to_type, i, factor * zp_load(a->from, a->from_type, i));
}
ZP_KERNEL(zp_fetch, zp_fetch_args, 32768)

/* =============================================================================================
   [SECTION] optimizers
   An update rule is a body on one element and a line in the table. Everything around it is here
   once: unscaling and clipping, master weights or none, 16-bit rounding, stochastic or to nearest.

   ADDING AN OPTIMIZER. In a file of your own that -DZERO_OWN_OPTIMIZERS='"own.h"' names:
       ZP_FN void own_at(const zp_update *u, float *p, float g, float *s1, float *s2) {
           ... g: the mean gradient, unscaled and clipped; p: the weight; s1, s2: its state;
               u->lr, u->decay: times the tensor's factors ...
       }
       #define ZERO_OWN(X) X(own, 1, own_at) // name, state arrays (1 or 2), body

   More lines may follow. The first is cfg.optimizer ZERO_OPTIMIZER_OWN, the next one more.
   ============================================================================================= */

#define ZP_STATES       2
#define ZP_UPDATE_BLOCK ((size_t)512) /* elements whose 16-bit values are held in f32 */

/* A tensor's part of what is updated at once: elements from the arrays' begin on. */
typedef struct zp_span {
    size_t begin, end;
    uint64_t element; /* number i of the arrays is element `element + i` of the tensor, over all
                         layers, modulo 2^64 */
    float lr_factor, decay_factor;
    uint32_t key; /* of stochastic rounding: the tensor */
} zp_span;

typedef struct zp_update { /* a unit, or a rank's shard of it */
    void *p;               /* parameters */
    float *master;         /* NULL: none */
    const void *g;
    float *state[ZP_STATES];
    const zp_control *control;
    const zp_span *spans; /* ascending; between them is padding */
    int nspans;
    zero_type type, grad_type;
    float lr, beta1, beta2, eps, decay; /* times the span's factors, once there is one */
    double factor, bias_ratio, step_size, corrected_eps; /* the last three: Adam's corrections */
    int first;                                           /* the first step that is taken */
    int stochastic;
    uint32_t key[2]; /* of stochastic rounding: tensor, then seed and step */
    uint64_t element;
} zp_update;

/* One rounding where the processor has the instruction. */
#if defined(__FMA__) || defined(__CUDA_ARCH__)
#define ZP_FMA(a, b, c) fmaf(a, b, c)
#else
#define ZP_FMA(a, b, c) ((a) * (b) + (c))
#endif

ZP_FN uint32_t zp_mix(uint32_t x) { /* a permutation of 32 bits, after MurmurHash3's finaliser */
    x = (x ^ x >> 16) * 0x85EBCA6Bu;
    x = (x ^ x >> 13) * 0xC2B2AE35u;
    return x ^ x >> 16;
}
/* bf16 next below or above, with the probability of its nearness; 16 random bits. Values that are
   not finite, and those that would become so, round to nearest. */
ZP_FN uint16_t zp_to_bf16_randomly(float x, uint32_t random) {
    const uint32_t b = zp_bits(x), up = (b + (random & 0xFFFFu)) >> 16;
    const int nearest = (b & 0x7F800000u) == 0x7F800000u || (up & 0x7F80u) == 0x7F80u;
    return nearest ? zp_to_bf16(x) : (uint16_t)up;
}
/* A random number of an element (lower and upper half of its index), by two keys. */
ZP_FN uint32_t zp_draw(uint32_t low, uint32_t high, const uint32_t *key) {
    uint32_t x = (low ^ key[0]) * 0x9E3779B1u;
    x = (x ^ x >> 16) * 0x85EBCA6Bu + (high ^ key[1]);
    x = (x ^ x >> 13) * 0xC2B2AE35u;
    return x ^ x >> 16;
}
ZP_FN uint32_t zp_random(const zp_update *u, size_t i) {
    const uint64_t e = u->element + i;
    return zp_draw((uint32_t)e, (uint32_t)(e >> 32), u->key);
}

ZP_FN int zp_update_begin(zp_update *u) {
    const zp_control *c = u->control;
    u->factor = c->factor;
    u->bias_ratio = c->bias_ratio;
    u->corrected_eps = (double)u->eps * c->root_correction;
    u->first = c->steps == 1;
    u->key[1] = zp_mix((uint32_t)c->steps ^ zp_mix((uint32_t)(c->steps >> 32) ^ u->key[1]));
    return !c->skip;
}
/* u becomes that of one span. */
ZP_FN void zp_update_turn(zp_update *u, const zp_update *all, const zp_span *s) {
    u->lr = all->lr * s->lr_factor;
    u->decay = all->decay * s->decay_factor;
    u->step_size = (double)u->lr * all->bias_ratio;
    u->key[0] = s->key;
    u->element = s->element;
}

/* Adam's step, with m / (sqrt(v / c) + eps) written as sqrt(c) m / (sqrt(v) + eps sqrt(c)). In f64,
   since the loop waits for memory all the same, but for the root, which would take too long: v is
   rounded before it and the root after, and nothing else until the three results are stored. */
ZP_FN double zp_adam_step(const zp_update *u, double g, float *m, float *v) {
    const double b1 = (double)u->beta1, b2 = (double)u->beta2;
    const double m1 = b1 * (double)*m + (1 - b1) * g, v1 = b2 * (double)*v + (1 - b2) * (g * g);
    *m = (float)m1;
    *v = (float)v1;
    return u->step_size * (m1 / ((double)sqrtf(*v) + u->corrected_eps));
}
ZP_FN void zp_adamw_at(const zp_update *u, float *p, float g, float *m, float *v) {
    const double was = (double)*p, decay = (double)u->lr * (double)u->decay;
    *p = (float)(was - (decay * was + zp_adam_step(u, (double)g, m, v)));
}
ZP_FN void zp_adam_at(const zp_update *u, float *p, float g, float *m, float *v) {
    const double was = (double)*p;
    *p = (float)(was - zp_adam_step(u, (double)u->decay * was + (double)g, m, v));
}
/* g with the decay added, which is remembered in m. */
ZP_FN float zp_momentum(const zp_update *u, float p, float g, float *m) {
    const float d = ZP_FMA(u->decay, p, g);
    *m = u->first ? d : ZP_FMA(u->beta1, *m, d);
    return d;
}
ZP_FN void zp_sgd_at(const zp_update *u, float *p, float g, float *m, float *unused) {
    (void)unused;
    (void)zp_momentum(u, *p, g, m);
    *p -= u->lr * *m;
}
ZP_FN void zp_nesterov_at(const zp_update *u, float *p, float g, float *m, float *unused) {
    const float d = zp_momentum(u, *p, g, m);
    (void)unused;
    *p -= u->lr * ZP_FMA(u->beta1, *m, d);
}
ZP_FN void zp_lion_at(const zp_update *u, float *p, float g, float *m, float *unused) {
    const float c = ZP_FMA(u->beta1, *m, (1.0f - u->beta1) * g);
    const float sign = (float)((c > 0) - (c < 0));
    (void)unused;
    *m = ZP_FMA(u->beta2, *m, (1.0f - u->beta2) * g);
    *p -= u->lr * ZP_FMA(u->decay, *p, sign);
}

#ifdef ZERO_OWN_OPTIMIZERS
#include ZERO_OWN_OPTIMIZERS
#else
#define ZERO_OWN(X)
#endif
/* X(name, state arrays, body), in the order of zero_optimizer */
#define ZP_OPTIMIZERS(X)                                                                           \
    X(adamw, 2, zp_adamw_at)                                                                       \
    X(adam, 2, zp_adam_at)                                                                         \
    X(sgd, 1, zp_sgd_at)                                                                           \
    X(nesterov, 1, zp_nesterov_at)                                                                 \
    X(lion, 1, zp_lion_at)                                                                         \
    ZERO_OWN(X)

#ifdef __CUDACC__
/* The last span that begins at i or before; padding goes with the span before it. */
ZP_FN int zp_span_at(const zp_update *u, size_t i) {
    int low = 0, high = u->nspans;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (u->spans[middle].begin <= i)
            low = middle;
        else
            high = middle;
    }
    return low;
}
ZP_FN void zp_update_store(const zp_update *u, size_t i, const float *p) {
    if (u->master) zp_store_wide(u->master, ZERO_F32, i, p);
    if (!u->stochastic) {
        zp_store_wide(u->p, u->type, i, p);
        return;
    }
    uint16_t h[ZP_WIDE];
    for (size_t j = 0; j < ZP_WIDE; j++) h[j] = zp_to_bf16_randomly(p[j], zp_random(u, i + j));
    *(ushort4 *)(void *)((uint16_t *)u->p + i) = make_ushort4(h[0], h[1], h[2], h[3]);
}
/* Spans begin at multiples of ZP_WIDE, and padding stays zeros: a gradient of zeros keeps them. */
#define ZP_OPTIMIZER_KERNEL(name, states, body)                                                    \
    __global__ void __launch_bounds__(ZP_THREADS)                                                  \
        zp_update_##name##_kernel(zp_update all, size_t n) {                                       \
        const size_t stride = (size_t)gridDim.x * blockDim.x;                                      \
        if (!zp_update_begin(&all)) return;                                                        \
        zp_update u = all;                                                                         \
        for (size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x; at < n; at += stride) {    \
            const size_t i = at * ZP_WIDE;                                                         \
            float p[ZP_WIDE], g[ZP_WIDE], s1[ZP_WIDE], s2[ZP_WIDE];                                \
            const zero_type type = u.master ? ZERO_F32 : u.type;                                   \
            const uint4 p0 = zp_load_words(u.master ? u.master : u.p, type, i);                    \
            const uint4 g0 = zp_load_words(u.g, u.grad_type, i);                                   \
            zp_load_wide(s1, u.state[0], ZERO_F32, i);                                             \
            if (states > 1) zp_load_wide(s2, u.state[1], ZERO_F32, i);                             \
            zp_update_turn(&u, &all, &all.spans[zp_span_at(&all, i)]);                             \
            zp_open_words(p, p0, type);                                                            \
            zp_open_words(g, g0, u.grad_type);                                                     \
            for (size_t j = 0; j < ZP_WIDE; j++)                                                   \
                body(&u, &p[j], (float)((double)g[j] * u.factor), &s1[j], &s2[j]);                 \
            zp_update_store(&u, i, p);                                                             \
            zp_store_wide(u.state[0], ZERO_F32, i, s1);                                            \
            if (states > 1) zp_store_wide(u.state[1], ZERO_F32, i, s2);                            \
        }                                                                                          \
    }                                                                                              \
    ZP_KERNEL_CALL(zp_update_##name, zp_update_##name##_kernel, zp_update, zp_grid(n, 8192))
#else
static void zp_narrow_randomly(const zp_update *u, uint16_t *to, size_t at, uint32_t n,
                               const float *p) {
    const uint64_t first = u->element + at;
    const uint32_t key[2] = {u->key[0], u->key[1]}, low = (uint32_t)first,
                   high = (uint32_t)(first >> 32);
    if (low + n < low) /* the index passes a multiple of 2^32 */
        for (uint32_t i = 0; i < n; i++) to[i] = zp_to_bf16_randomly(p[i], zp_random(u, at + i));
    else
        for (uint32_t i = 0; i < n; i++)
            to[i] = zp_to_bf16_randomly(p[i], zp_draw(low + i, high, key));
}
static void zp_update_close(const zp_update *u, size_t at, size_t n, const float *p) {
    uint16_t *to = (uint16_t *)u->p + at;
    if (u->type == ZERO_F32) return;
    if (u->stochastic)
        zp_narrow_randomly(u, to, at, (uint32_t)n, p);
    else
        zp_narrow(to, u->type, p, n);
}
#define ZP_OPTIMIZER_KERNEL(name, states, body)                                                    \
    static void zp_update_##name##_block(const zp_update *all, size_t at, size_t n) {              \
        float weights[ZP_UPDATE_BLOCK], gradients[ZP_UPDATE_BLOCK];                                \
        const zp_update u = *all; /* a copy that no store can change */                            \
        const float *g = zp_view(u.g, u.grad_type, at, n, gradients);                              \
        float *p =                                                                                 \
            u.master ? u.master + at : (float *)(uintptr_t)zp_view(u.p, u.type, at, n, weights);   \
        float *s1 = u.state[0] + at, *s2 = u.state[(states) > 1] + at;                             \
        ZP_SIMD                                                                                    \
        for (size_t i = 0; i < n; i++)                                                             \
            body(&u, &p[i], (float)((double)g[i] * u.factor), &s1[i], &s2[i]);                     \
        zp_update_close(all, at, n, p);                                                            \
    }                                                                                              \
    static void zp_update_##name##_loop(const void *args, size_t n, int threads) {                 \
        zp_update all, u;                                                                          \
        memcpy(&all, args, sizeof all);                                                            \
        (void)n;                                                                                   \
        (void)threads;                                                                             \
        if (!zp_update_begin(&all)) return;                                                        \
        u = all;                                                                                   \
        for (const zp_span *s = all.spans; s < all.spans + all.nspans; s++) {                      \
            zp_update_turn(&u, &all, s);                                                           \
            ZP_OMP_FOR(s->end - s->begin > 32768)                                                  \
            for (size_t at = s->begin; at < s->end; at += ZP_UPDATE_BLOCK)                         \
                zp_update_##name##_block(&u, at, zp_min(ZP_UPDATE_BLOCK, s->end - at));            \
        }                                                                                          \
    }                                                                                              \
    ZP_KERNEL_CALL(zp_update_##name, zp_update_##name##_loop, zp_update)
#endif
ZP_OPTIMIZERS(ZP_OPTIMIZER_KERNEL)

typedef struct zp_rule {
    const char *name;
    int states;
    /* of n times ZP_WIDE elements */
    zero_result (*update)(zp_stream *s, const zp_update *u, size_t n);
} zp_rule;
#define ZP_RULE(name, states, body) {#name, states, zp_update_##name},
static const zp_rule zp_rules[] = {ZP_OPTIMIZERS(ZP_RULE)};
enum { ZP_RULES = sizeof zp_rules / sizeof *zp_rules };
#define ZP_RULE_CHECK(name, states, body)                                                          \
    static_assert((states) >= 1 && (states) <= ZP_STATES, #name ": 1 or 2 state arrays");
ZP_OPTIMIZERS(ZP_RULE_CHECK)

/* =============================================================================================
   [SECTION] errors
   A collective fails on a communication thread; the calling thread finds out at its next call. The
   first failure of a communicator is kept, and later collectives of it do nothing.
   ============================================================================================= */

typedef struct zp_failure {
    int result; /* zero_result; written once, after text */
    int claimed;
    char text[ZP_TEXT_BYTES];
} zp_failure;

static zero_result zp_failure_result(const zp_failure *f) {
    return (zero_result)__atomic_load_n(&f->result, __ATOMIC_ACQUIRE);
}

__attribute__((format(printf, 3, 4))) static zero_result zp_failure_set(zp_failure *f,
                                                                        zero_result result,
                                                                        const char *format, ...) {
    if (!__atomic_exchange_n(&f->claimed, 1, __ATOMIC_ACQ_REL)) {
        va_list list;
        va_start(list, format);
        (void)vsnprintf(f->text, sizeof f->text, format, list);
        va_end(list);
        __atomic_store_n(&f->result, (int)result, __ATOMIC_RELEASE);
    }
    return result;
}

/* =============================================================================================
   [SECTION] board
   Ranks of one machine meet on a board in memory that all of them see: one line per rank and
   channel. A collective is: write your line, raise `ready`, wait until all are ready, work, raise
   `done`, wait until all are done. Nobody is a step ahead by more than one, so one line suffices.

     channel GRADIENTS   | rank 0: ready done kind unit shard source target | rank 1: ... |
     channel PARAMETERS  | ...
     channel CONTROL     | ...                        mail: 512 bytes per rank and channel
   ============================================================================================= */

typedef enum zp_op_kind { ZP_EXCHANGE = 1, ZP_REDUCE_SCATTER, ZP_ALL_GATHER, ZP_STAGED } zp_op_kind;
static const char *const zp_op_names[] = {"nothing", "an exchange", "the reduce-scatter",
                                          "the all-gather", "a broadcast"};

typedef struct zp_call { /* what a rank is at */
    int32_t kind, unit;
    uint64_t shard;          /* elements of the unit's shard, or bytes of an exchange */
    uint64_t source, target; /* bytes from the rank's region: what it gives, where it gathers */
} zp_call;

typedef struct zp_line {
    uint32_t ready, done; /* collectives that this rank has come to, and ended */
    zp_call call;
    unsigned char pad[24];
} zp_line;
static_assert(sizeof(zp_line) == 64, "a line of the board is a cache line");

/* Memory of threads belongs to the board that its ranks share, and a board to its group: a rank
   that failed must not pull memory from under a peer that still reads, and who failed within an
   exchange cannot tell which peers it has reached. */
typedef struct zp_hold {
    struct zp_hold *next;
    void *memory;
    int on_host;
} zp_hold;

typedef struct zp_board {
    zp_line lines[ZP_CHANNELS][ZP_LOCAL_MAX]; /* first: a board begins on a cache line */
    uint32_t aborted;
    int32_t abort_claimed, abort_rank;
    uint32_t left[ZP_LOCAL_MAX]; /* by place: this rank has destroyed its context */
    uint32_t users; /* threads: ranks that have not closed the board; the last one frees it */
    zp_hold *self, *pieces; /* threads: the board's own memory, and that of its regions */
    char abort_text[ZP_TEXT_BYTES];
    unsigned char mail[ZP_CHANNELS][ZP_LOCAL_MAX][ZP_MAIL_BYTES];
#ifdef __CUDACC__
    /* by place: its stream has come to the collective, and is done with it */
    zp_event arrived[ZP_CONTROL][ZP_LOCAL_MAX], departed[ZP_CONTROL][ZP_LOCAL_MAX];
#endif
} zp_board;

struct zero_local {
    int nranks, shared;
    int placed; /* in memory that is the caller's */
    pid_t maker;
    zp_board board;  /* where contexts are made; each then has a board of its own */
    zp_hold *boards; /* threads: those boards; what a failed join left behind goes with the group */
    uint32_t seq[ZP_LOCAL_MAX]; /* collectives on `board` so far; each rank touches its own */
};

static void zp_board_abort(zp_board *b, int rank, const char *why) {
    if (__atomic_exchange_n(&b->abort_claimed, 1, __ATOMIC_ACQ_REL)) return;
    b->abort_rank = rank;
    size_t n = 0; /* no library call: this may run in a signal handler */
    while (why[n] && n + 1 < sizeof b->abort_text) {
        b->abort_text[n] = why[n];
        n++;
    }
    b->abort_text[n] = 0;
    __atomic_store_n(&b->aborted, 1, __ATOMIC_RELEASE);
}

__attribute__((unused)) static void zp_nap(void) {
    const struct timespec t = {0, 50000};
    nanosleep(&t, NULL);
}

/* Sleeps until *word may have changed, at most 20 ms: aborts and time-outs are looked for then. */
static void zp_sleep_on(uint32_t *word, uint32_t seen) {
#ifdef __linux__
    const struct timespec t = {0, 20000000};
    (void)syscall(SYS_futex, word, FUTEX_WAIT, seen, &t, NULL, 0);
#else
    (void)word;
    (void)seen;
    zp_nap();
#endif
}

static void zp_raise(uint32_t *word, uint32_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
#ifdef __linux__
    (void)syscall(SYS_futex, word, FUTEX_WAKE, 0x7fffffff, NULL, NULL, 0);
#endif
}

/* =============================================================================================
   [SECTION] regions
   Memory of one rank that the ranks of its machine can read: of threads it is ordinary memory, of
   processes a memory file that the peers map through /proc, else an MPI shared window. A region may
   also be one piece that all ranks see in place (`single`), each owning parts of it.
   ============================================================================================= */

/* Own memory; a hold's, shared by threads; memory files; an MPI window; NCCL's. */
typedef enum zp_kind { ZP_NONE = 0, ZP_OWN, ZP_HELD, ZP_FILES, ZP_WINDOW, ZP_NCCL } zp_kind;

typedef struct zp_region {
    size_t bytes;             /* of one rank's piece */
    int single;               /* one piece for all, made by place 0 */
    char *base[ZP_LOCAL_MAX]; /* by place; all equal if single */
#ifdef ZERO_WITH_MPI
    MPI_Win window;
#endif
#ifdef ZERO_WITH_NCCL
    void *handle; /* of its registration */
    int window;   /* it is that of a window */
    int channel;  /* whose communicator knows of it */
#endif
    int on_host; /* CUDA: memory of the host, which devices reach */
    zp_kind kind;
} zp_region;

static void *zp_region_alloc(zp_device *d, size_t bytes, int on_host) {
    return on_host ? zp_host_alloc(bytes) : zp_device_alloc(d, bytes);
}
static void zp_region_free(void *p, int on_host) {
    if (on_host)
        zp_host_free(p);
    else
        zp_device_free(p);
}

/* Memory on a list that all ranks of it may add to. */
static zp_hold *zp_hold_make(zp_hold **list, zp_device *d, size_t bytes, int on_host) {
    zp_hold *h = (zp_hold *)malloc(sizeof *h);
    void *memory = h ? zp_region_alloc(d, bytes, on_host) : NULL;
    if (!memory) {
        free(h);
        return NULL;
    }
    h->memory = memory;
    h->on_host = on_host;
    h->next = __atomic_load_n(list, __ATOMIC_ACQUIRE);
    while (!__atomic_compare_exchange_n(list, &h->next, h, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    }
    return h;
}

static void zp_hold_free(zp_hold *h) {
    while (h) {
        zp_hold *next = h->next;
        zp_region_free(h->memory, h->on_host);
        free(h);
        h = next;
    }
}

/* A rank is done with a board of threads. The last one frees all memory of its ranks. */
static void zp_board_close(zp_board *b) {
    if (__atomic_sub_fetch(&b->users, 1, __ATOMIC_ACQ_REL)) return;
    zp_hold *self = b->self; /* stays in the group's list, empty */
#ifdef __CUDACC__
    for (int i = 0; i < ZP_CONTROL * ZP_LOCAL_MAX; i++) {
        zp_event_close(&b->arrived[0][0] + i);
        zp_event_close(&b->departed[0][0] + i);
    }
#endif
    zp_hold_free(b->pieces);
    zp_host_free(b);
    self->memory = NULL;
}

#ifdef __linux__
/* What a place tells the others about its piece. */
typedef struct zp_piece {
    int64_t pid, fd, inode;
} zp_piece;

static char *zp_map_file(int fd, size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) return NULL;
#ifdef MADV_HUGEPAGE
    (void)madvise(p, bytes, MADV_HUGEPAGE);
#endif
    return (char *)p;
}

static int zp_file_make(size_t bytes) {
    const int fd = (int)syscall(SYS_memfd_create, "zero", 1u /* close on exec */);
    if (fd >= 0 && ftruncate(fd, (off_t)bytes)) {
        (void)close(fd);
        return -1;
    }
    return fd;
}

static int64_t zp_file_inode(int fd) {
    struct stat s;
    return fd >= 0 && !fstat(fd, &s) ? (int64_t)s.st_ino : -1;
}

/* NULL where the peer cannot be seen: its number may mean another process here (containers). */
static char *zp_map_peer(const zp_piece *piece, size_t bytes) {
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)piece->pid,
                   (long long)piece->fd);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    char *p = fd >= 0 && zp_file_inode(fd) == piece->inode ? zp_map_file(fd, bytes) : NULL;
    if (fd >= 0) (void)close(fd);
    return p;
}
#endif

/* =============================================================================================
   [SECTION] communicators
   One contract for all kinds. Collectives of a channel are issued by one stream, in the same order
   on all ranks. When one has ended here, its output is there and its input may be written again.
     reduce-scatter  out[i] (+)= scale * sum over ranks of source[rank * shard + i], in f32, inside
                     a node in rank order, then over nodes in node order
     all-gather      target[r * shard + i] = rank r's source[i], for all other ranks r; a rank's own
                     part is in place already
     exchange        up to 512 bytes of every rank to every rank
     broadcast, barrier
   LOCAL reads straight from the peers' memory. MPI does the same inside a node; between nodes each
   rank talks to the rank of the same place, so a link carries what a ring would.
   ============================================================================================= */

#ifdef ZERO_WITH_NCCL
/* A group of collectives that was issued, and is watched until its stream has passed it. */
typedef struct zp_watched {
    zp_event ended;
    int kind, unit; /* of its first */
    double since;
} zp_watched;

#define ZP_WATCHED ((size_t)256) /* on their way at once; the host waits for the oldest then */

/* NCCL: two communicators split off the caller's, and a thread that looks after them, since who
   waits for a stream cannot. It aborts both when one reports an error or a rank stays away; then
   their kernels end, and every later call reports the failure. The lock is held during NCCL's
   calls; one that does not come back is ended by the abort as well. */
typedef struct zp_nccl {
    ncclComm_t comm[ZP_CONTROL]; /* of gradients, of parameters and all else */
    int version, ordered;        /* ordered: NCCL launches in the host's order by itself */
    int made, watching, stop, aborted;
    ncclResult_t status; /* of the group that is open */
    pthread_mutex_t lock;
    pthread_t thread;
    zp_watched ring[ZP_CONTROL][ZP_WATCHED];
    size_t head[ZP_CONTROL], tail[ZP_CONTROL]; /* groups ended, groups issued */
    cudaStream_t last[ZP_CONTROL];             /* of the newest group */
    double moved[ZP_CONTROL];                  /* when a group ended last */
    char *scratch, *pinned; /* of exchanges and broadcasts, on the device and the host */
} zp_nccl;
#endif

typedef struct zp_comm {
    zero_comm_kind kind;
    int rank, nranks;
    int n, me;                 /* ranks that share memory with this one, and this one's place */
    int rank_of[ZP_LOCAL_MAX]; /* places -> ranks */
    int node_size;             /* ranks whose gradients are summed first */
    int shares;                /* the ranks of a node can see one another's memory */
    zp_device *device;
    float divisor; /* what a sum over the ranks is still to be divided by: NCCL's is a sum */
    zero_local *group;
    zp_board *board;
    zp_region board_region, stage; /* stage: [ZP_STAGE_NUMEL] f32 to stream through */
    uint32_t seq[ZP_CHANNELS];
    zp_failure failure;
    double timeout_s;
    char *mail;             /* [nranks * ZP_MAIL_BYTES] control channel's received exchange */
    size_t allocated_bytes; /* of regions; of a single one, this rank's share */
    uint64_t sent_bytes, mapped_bytes, reductions, gathers; /* counted where issued */
#ifdef ZERO_WITH_MPI
    MPI_Comm mpi[ZP_CHANNELS], mpi_node;
    int mpi_made;
    int nnodes, node;
    int *node_rank; /* [nnodes * node_size] ranks by node and place in it */
    float *wire;    /* between nodes: [crossings][nnodes - 1][2][ZP_CROSS_NUMEL] */
    char *landing;  /* [ZP_CHANNELS][1 + nranks][ZP_LANDING]: given and got in an exchange */
    MPI_Request *abort_sent; /* [nranks] */
    int told;                /* the other nodes know that this rank failed */
    int abandoned; /* a request was given up, or a peer: what MPI may touch is never freed */
#endif
#ifdef ZERO_WITH_NCCL
    zp_nccl nccl;
#endif
} zp_comm;

/* Before a context has a board of its own, its ranks meet on their group's. */
static zp_board *zp_comm_board(const zp_comm *c) { return c->board ? c->board : &c->group->board; }

/* Another rank has failed, or the group's launcher said so. */
static zero_result zp_comm_aborted(zp_comm *c) {
    const zp_board *boards[2] = {c->board, c->group ? &c->group->board : NULL};
    for (int i = 0; i < 2; i++)
        if (boards[i] && __atomic_load_n(&boards[i]->aborted, __ATOMIC_ACQUIRE))
            return boards[i]->abort_rank < 0
                       ? zp_failure_set(&c->failure, ZERO_ERR_PEER, "%s", boards[i]->abort_text)
                       : zp_failure_set(&c->failure, ZERO_ERR_PEER, "rank %d failed: %s",
                                        (int)boards[i]->abort_rank, boards[i]->abort_text);
    return ZERO_OK;
}

static zero_result zp_await(zp_comm *c, uint32_t *word, uint32_t value, int peer,
                            const char *what) {
    double deadline = 0;
    for (int spin = 0;; spin++) {
        const uint32_t seen = __atomic_load_n(word, __ATOMIC_ACQUIRE);
        if ((int32_t)(seen - value) >= 0) return ZERO_OK;
        if (spin < 64) continue;
        ZP_TRY(zp_comm_aborted(c));
        if (__atomic_load_n(&zp_comm_board(c)->left[peer], __ATOMIC_ACQUIRE)) {
            if ((int32_t)(__atomic_load_n(word, __ATOMIC_ACQUIRE) - value) >= 0) return ZERO_OK;
            return zp_failure_set(&c->failure, ZERO_ERR_PEER,
                                  "rank %d destroyed its context before %s", c->rank_of[peer],
                                  what);
        }
        const double now = zp_seconds();
        if (deadline == 0) deadline = now + c->timeout_s;
        if (now > deadline) {
            char text[ZP_TEXT_BYTES];
            (void)snprintf(text, sizeof text, "rank %d did not come to %s within %g s",
                           c->rank_of[peer], what, c->timeout_s);
            zp_board_abort(zp_comm_board(c), c->rank, text);
            return zp_failure_set(&c->failure, ZERO_ERR_TIMEOUT, "%s", text);
        }
        zp_sleep_on(word, seen);
    }
}

/* Comes to the channel's next collective and waits for the others; they must have come to the same
   one. */
static zero_result zp_meet(zp_comm *c, zp_channel channel, const zp_call *mine) {
    zp_line *lines = zp_comm_board(c)->lines[channel];
    const uint32_t seq = ++c->seq[channel];
    lines[c->me].call = *mine;
    zp_raise(&lines[c->me].ready, seq);
    for (int p = 0; p < c->n; p++) {
        if (p == c->me) continue;
        ZP_TRY(zp_await(c, &lines[p].ready, seq, p, zp_op_names[mine->kind]));
        const zp_call *his = &lines[p].call;
        if (his->kind == mine->kind && his->unit == mine->unit && his->shard == mine->shard)
            continue;
        return zp_failure_set(
            &c->failure, ZERO_ERR_MISMATCH,
            "rank %d is at %s of unit %d (%llu), rank %d at %s of unit %d (%llu): "
            "all ranks must call the same hooks in the same order",
            c->rank_of[p], zp_op_names[his->kind], (int)his->unit, (unsigned long long)his->shard,
            c->rank, zp_op_names[mine->kind], (int)mine->unit, (unsigned long long)mine->shard);
    }
    return ZERO_OK;
}

/* Ends it, and waits until all have. */
static zero_result zp_part(zp_comm *c, zp_channel channel) {
    zp_line *lines = zp_comm_board(c)->lines[channel];
    const uint32_t seq = c->seq[channel];
    zp_raise(&lines[c->me].done, seq);
    for (int p = 0; p < c->n; p++)
        if (p != c->me)
            ZP_TRY(zp_await(c, &lines[p].done, seq, p, zp_op_names[lines[c->me].call.kind]));
    return ZERO_OK;
}

/* Every rank's `bytes` (<= ZP_MAIL_BYTES) become all[0..n), in order of places. */
static zero_result zp_board_exchange(zp_comm *c, zp_channel channel, const void *mine, size_t bytes,
                                     void *all) {
    const zp_call call = {ZP_EXCHANGE, 0, bytes, 0, 0};
    unsigned char(*mail)[ZP_MAIL_BYTES] = zp_comm_board(c)->mail[channel];
    memcpy(mail[c->me], mine, bytes);
    ZP_TRY(zp_meet(c, channel, &call));
    for (int p = 0; p < c->n; p++) memcpy((char *)all + (size_t)p * bytes, mail[p], bytes);
    return zp_part(c, channel);
}

#ifdef ZERO_WITH_MPI
static zero_result zp_mpi(zp_comm *c, int code, const char *call) {
    char text[MPI_MAX_ERROR_STRING];
    int n = 0;
    if (code == MPI_SUCCESS) return ZERO_OK;
    if (MPI_Error_string(code, text, &n) != MPI_SUCCESS) n = 0;
    text[n] = 0;
    return zp_failure_set(&c->failure, ZERO_ERR_COMM, "%s: %s", call, text);
}
#define ZP_MPI(c, call) ZP_TRY(zp_mpi(c, call, #call))

/* A rank's part of an exchange, behind a zp_head. */
#define ZP_LANDING   ((size_t)ZP_MAIL_BYTES + 16)
#define ZP_ABORT_TAG 1 /* on the control channel, where there are no other messages */

/* Another rank has failed: on this node, or on another that sent word of it. */
static zero_result zp_mpi_aborted(zp_comm *c) {
    char text[ZP_TEXT_BYTES];
    MPI_Message message;
    MPI_Status status;
    int found = 0;
    if (!c->board) return ZERO_OK; /* in zero_create: a rank that sends word has been through it */
    ZP_TRY(zp_comm_aborted(c));
    ZP_MPI(c, MPI_Improbe(MPI_ANY_SOURCE, ZP_ABORT_TAG, c->mpi[ZP_CONTROL], &found, &message,
                          &status));
    if (!found) return ZERO_OK;
    ZP_MPI(c, MPI_Mrecv(text, (int)sizeof text, MPI_BYTE, &message, &status));
    text[sizeof text - 1] = 0;
    zp_board_abort(c->board, status.MPI_SOURCE, text);
    return zp_failure_set(&c->failure, ZERO_ERR_PEER, "rank %d failed: %s", status.MPI_SOURCE,
                          text);
}

/* Tells the ranks of the other nodes, if it was this rank that failed first on its node. Gives up
   after a second: who cannot be reached runs into its time limit. */
static void zp_mpi_tell(zp_comm *c) {
    char *text = c->landing + (size_t)ZP_PARAMETERS * (size_t)(1 + c->nranks) * ZP_LANDING;
    const double deadline = zp_seconds() + 1;
    int n = 0, done = 0;
    static_assert(ZP_TEXT_BYTES <= ZP_LANDING,
                  "that channel has no exchange, its place serves here");
    if (c->n == c->nranks || c->board->abort_rank != c->rank) return;
    if (__atomic_exchange_n(&c->told, 1, __ATOMIC_ACQ_REL)) return;
    memcpy(text, c->board->abort_text, ZP_TEXT_BYTES);
    for (int r = 0; r < c->nranks; r++) {
        int here = 0;
        for (int p = 0; p < c->n; p++) here |= c->rank_of[p] == r;
        if (here) continue;
        if (MPI_Isend(text, ZP_TEXT_BYTES, MPI_BYTE, r, ZP_ABORT_TAG, c->mpi[ZP_CONTROL],
                      &c->abort_sent[n]))
            break;
        n++;
    }
    while (!done && zp_seconds() < deadline) {
        done = 1;
        for (int i = 0, one = 0; i < n; i++, one = 0)
            done &= MPI_Test(&c->abort_sent[i], &one, MPI_STATUS_IGNORE) == MPI_SUCCESS && one;
        if (!done) zp_nap();
    }
    if (!done) c->abandoned = 1;
}

/* What a message between nodes is for, in its tag: a peer that is elsewhere is found. */
#define ZP_TAGS 16384 /* units that tags tell apart; MPI promises tags up to 32767 */
static int zp_mpi_tag(int kind, int unit) { return 2 * (unit % ZP_TAGS) + (kind == ZP_ALL_GATHER); }
static const char *zp_mpi_tag_name(int tag) {
    return zp_op_names[tag & 1 ? ZP_ALL_GATHER : ZP_REDUCE_SCATTER];
}

/* The rank of this rank's place on another node. */
static int zp_comm_counterpart(const zp_comm *c, int node) {
    return c->node_rank[node * c->node_size + c->me];
}

/* What went wrong with requests, in words. tag: pairs of requests, the first of each receives. */
static zero_result zp_mpi_wrong(zp_comm *c, int code, const MPI_Status *statuses, int n, int tag) {
    for (int i = 0; i < n && tag >= 0; i += 2) {
        const int other = statuses[i].MPI_TAG;
        if (other == tag || (code == MPI_ERR_IN_STATUS && statuses[i].MPI_ERROR == MPI_ERR_PENDING))
            continue;
        return zp_failure_set(
            &c->failure, ZERO_ERR_MISMATCH,
            "rank %d is at %s of unit %d, rank %d at %s of unit %d: all ranks must call the same "
            "hooks in the same order",
            statuses[i].MPI_SOURCE, zp_mpi_tag_name(other), other / 2, c->rank,
            zp_mpi_tag_name(tag), tag / 2);
    }
    for (int i = 0; i < n && code == MPI_ERR_IN_STATUS; i++)
        if (statuses[i].MPI_ERROR != MPI_SUCCESS && statuses[i].MPI_ERROR != MPI_ERR_PENDING)
            return zp_mpi(c, statuses[i].MPI_ERROR, "MPI_Testall");
    return zp_mpi(c, code, "MPI_Testall");
}

static zero_result zp_mpi_late(zp_comm *c, MPI_Request *requests, int n, int tag,
                               const char *what) {
    int arrived = 1, i = 0;
    for (; i < n && tag >= 0; i += 2) {
        if (MPI_Request_get_status(requests[i], &arrived, MPI_STATUS_IGNORE) || !arrived) break;
    }
    const int node = i / 2 < c->node ? i / 2 : i / 2 + 1;
    if (arrived)
        (void)zp_failure_set(&c->failure, ZERO_ERR_TIMEOUT, "not all ranks came to %s within %g s",
                             what, c->timeout_s);
    else
        (void)zp_failure_set(&c->failure, ZERO_ERR_TIMEOUT,
                             "rank %d did not come to %s within %g s", zp_comm_counterpart(c, node),
                             what, c->timeout_s);
    if (c->board) zp_board_abort(c->board, c->rank, c->failure.text);
    return ZERO_ERR_TIMEOUT;
}

/* Waits for requests as zp_await does for a peer: aborts and the time limit end it. What is given
   up stays with MPI, so its memory is never freed. */
static zero_result zp_mpi_wait(zp_comm *c, MPI_Request *requests, MPI_Status *statuses, int n,
                               int tag, const char *what) {
    double deadline = 0;
    for (int spin = 0;; spin++) {
        int done = 0;
        const int code = MPI_Testall(n, requests, &done, statuses);
        zero_result r = done || code ? zp_mpi_wrong(c, code, statuses, n, tag) : ZERO_OK;
        if (!r && done) return ZERO_OK;
        if (!r && spin < 64) continue; /* no yield: it would hand the core over for milliseconds */
        if (!r) r = zp_mpi_aborted(c);
        const double now = zp_seconds();
        if (deadline == 0) deadline = now + c->timeout_s;
        if (!r && now > deadline) r = zp_mpi_late(c, requests, n, tag, what);
        if (r) {
            c->abandoned = 1;
            return r;
        }
        zp_nap();
    }
}

/* What a rank is at, in front of what it gives: ranks that called different functions are found. */
typedef struct zp_head {
    int32_t kind, unit;
    uint64_t bytes;
} zp_head;
static_assert(sizeof(zp_head) + ZP_MAIL_BYTES == ZP_LANDING, "a rank's part of an exchange");

/* Every rank's `bytes` to every rank. All exchanges of a channel have one size in MPI's eyes, so
   that ranks that do not agree meet, and are told. */
static zero_result zp_mpi_exchange(zp_comm *c, zp_channel channel, const zp_head *head,
                                   const void *mine, size_t bytes, void *all) {
    char *give = c->landing + (size_t)channel * (size_t)(1 + c->nranks) * ZP_LANDING,
         *got = give + ZP_LANDING;
    const size_t part = channel == ZP_CONTROL ? ZP_LANDING : sizeof *head + bytes;
    MPI_Request request;
    MPI_Status status;
    memcpy(give, head, sizeof *head);
    if (bytes) memcpy(give + sizeof *head, mine, bytes);
    ZP_MPI(c, MPI_Iallgather(give, (int)part, MPI_BYTE, got, (int)part, MPI_BYTE, c->mpi[channel],
                             &request));
    ZP_TRY(zp_mpi_wait(c, &request, &status, 1, -1, zp_op_names[head->kind]));
    for (int r = 0; r < c->nranks; r++) {
        zp_head other;
        memcpy(&other, got + (size_t)r * part, sizeof other);
        if (memcmp(&other, head, sizeof other))
            return zp_failure_set(
                &c->failure, ZERO_ERR_MISMATCH,
                "rank %d is at %s of unit %d (%llu), rank %d at %s of unit %d (%llu): all ranks "
                "must call the same functions in the same order",
                r, zp_op_names[other.kind], (int)other.unit, (unsigned long long)other.bytes,
                c->rank, zp_op_names[head->kind], (int)head->unit, (unsigned long long)head->bytes);
        if (bytes)
            memcpy((char *)all + (size_t)r * bytes, got + (size_t)r * part + sizeof other, bytes);
    }
    return ZERO_OK;
}
#endif

#ifdef ZERO_WITH_NCCL
static zero_result zp_nccl_fail(zp_comm *c, ncclComm_t comm, ncclResult_t r, const char *call) {
    const char *more = comm ? ncclGetLastError(comm) : NULL;
    return zp_failure_set(&c->failure, ZERO_ERR_COMM, "%s: %s%s%s", call, ncclGetErrorString(r),
                          more && *more ? ": " : "", more ? more : "");
}

/* Passes over the groups that have ended. The lock is held. */
static cudaError_t zp_nccl_advance(zp_nccl *n, int ch) {
    while (n->head[ch] < n->tail[ch]) {
        const cudaError_t e = cudaEventQuery(n->ring[ch][n->head[ch] % ZP_WATCHED].ended.cuda);
        if (e != cudaSuccess) {
            (void)cudaGetLastError(); /* not ready is no error */
            return e == cudaErrorNotReady ? cudaSuccess : e;
        }
        n->head[ch]++;
        n->moved[ch] = zp_seconds();
    }
    return cudaSuccess;
}

/* Is one channel well? The lock is held. */
static zero_result zp_nccl_look(zp_comm *c, int ch) {
    zp_nccl *n = &c->nccl;
    ncclResult_t state = ncclSuccess;
    const cudaError_t device = zp_nccl_advance(n, ch);
    const ncclResult_t r = ncclCommGetAsyncError(n->comm[ch], &state);
    const zp_watched *w = &n->ring[ch][n->head[ch] % ZP_WATCHED];
    const int waits = n->head[ch] < n->tail[ch];
    const char *name = waits ? zp_op_names[w->kind] : "nothing";
    if (device != cudaSuccess)
        return zp_failure_set(&c->failure, ZERO_ERR_DEVICE, "at %s of unit %d: %s", name,
                              waits ? w->unit : -1, cudaGetErrorString(device));
    if (r != ncclSuccess || (state != ncclSuccess && state != ncclInProgress))
        return zp_failure_set(&c->failure, ZERO_ERR_COMM, "NCCL, at %s of unit %d: %s (%s)", name,
                              waits ? w->unit : -1, ncclGetErrorString(r ? r : state),
                              ncclGetLastError(n->comm[ch]));
    const double since = waits && w->since > n->moved[ch] ? w->since : n->moved[ch];
    if (waits && zp_seconds() - since > c->timeout_s)
        return zp_failure_set(&c->failure, ZERO_ERR_TIMEOUT,
                              "%s of unit %d was not over within %g s: another rank did not come "
                              "to it, or hangs",
                              name, w->unit, c->timeout_s);
    return ZERO_OK;
}

/* Ends both communicators, and the kernels that wait in them. */
static void zp_nccl_abort(zp_comm *c, int locks) {
    zp_nccl *n = &c->nccl;
    if (locks) pthread_mutex_lock(&n->lock);
    n->aborted = 1;
    for (int ch = 0; ch < ZP_CONTROL; ch++) {
        if (n->comm[ch]) (void)ncclCommAbort(n->comm[ch]);
        n->comm[ch] = NULL;
    }
    if (locks) pthread_mutex_unlock(&n->lock);
}

static void *zp_nccl_watch(void *comm) {
    zp_comm *c = (zp_comm *)comm;
    zp_nccl *n = &c->nccl;
    double held = 0; /* since when the host is inside NCCL */
    (void)cudaSetDevice(c->device->number);
    while (!__atomic_load_n(&n->stop, __ATOMIC_ACQUIRE) && !zp_failure_result(&c->failure)) {
        for (int i = 0; i < 100; i++) zp_nap();
        if (pthread_mutex_trylock(&n->lock)) {
            if (held == 0) held = zp_seconds();
            if (zp_seconds() - held > c->timeout_s)
                (void)zp_failure_set(&c->failure, ZERO_ERR_TIMEOUT,
                                     "a call of NCCL did not return within %g s", c->timeout_s);
            continue;
        }
        held = 0;
        if (!zp_nccl_look(c, ZP_GRADIENTS)) (void)zp_nccl_look(c, ZP_PARAMETERS);
        pthread_mutex_unlock(&n->lock);
    }
    if (zp_failure_result(&c->failure))
        zp_nccl_abort(c, held == 0 || zp_seconds() - held <= c->timeout_s);
    return NULL;
}

/* Waits until a call that was begun has ended on the host. */
static zero_result zp_nccl_settle(zp_comm *c, ncclComm_t comm, ncclResult_t r, const char *call) {
    zp_nccl *n = &c->nccl;
    const double deadline = zp_seconds() + c->timeout_s;
    while (r == ncclInProgress) {
        zp_nap();
        ZP_TRY(zp_failure_result(&c->failure));
        if (zp_seconds() > deadline)
            return zp_failure_set(&c->failure, ZERO_ERR_TIMEOUT,
                                  "%s was not over within %g s: another rank did not come to it",
                                  call, c->timeout_s);
        pthread_mutex_lock(&n->lock);
        const ncclResult_t asked = n->aborted ? ncclSystemError : ncclCommGetAsyncError(comm, &r);
        if (asked != ncclSuccess) r = asked;
        pthread_mutex_unlock(&n->lock);
    }
    ZP_TRY(zp_failure_result(&c->failure));
    return r == ncclSuccess ? ZERO_OK : zp_nccl_fail(c, n->aborted ? NULL : comm, r, call);
}

/* Opens a group of collectives. Those of both communicators run in the order of the host, which is
   the same on all ranks: kernels that wait for one another in two orders would wait for ever. */
static zero_result zp_nccl_begin(zp_comm *c, zp_stream *s, int ch) {
    zp_nccl *n = &c->nccl;
    ZP_TRY(zp_failure_result(&c->failure));
    for (int other = 0; other < ZP_CONTROL; other++) {
        const size_t tail = n->tail[other];
        if (!tail || n->last[other] == s->cuda || (other != ch && n->ordered)) continue;
        ZP_TRY(zp_event_wait(s, &n->ring[other][(tail - 1) % ZP_WATCHED].ended));
    }
    pthread_mutex_lock(&n->lock);
    n->status = n->aborted ? ncclSystemError : ncclGroupStart();
    return ZERO_OK;
}
static void zp_nccl_note(zp_nccl *n, ncclResult_t r) {
    if (n->status == ncclSuccess && r != ncclInProgress) n->status = r;
}
static zero_result zp_nccl_end(zp_comm *c, zp_stream *s, int ch, int kind, int unit) {
    zp_nccl *n = &c->nccl;
    const ncclResult_t ended = n->aborted ? ncclSystemError : ncclGroupEnd();
    const ncclResult_t r = n->status != ncclSuccess ? n->status : ended;
    char text[64];
    pthread_mutex_unlock(&n->lock);
    (void)snprintf(text, sizeof text, "%s of unit %d", zp_op_names[kind], unit);
    ZP_TRY(zp_nccl_settle(c, n->comm[ch], r, text));
    zp_watched *w = &n->ring[ch][n->tail[ch] % ZP_WATCHED];
    ZP_TRY(zp_event_sync(c->device, &w->ended)); /* of a group long ago */
    pthread_mutex_lock(&n->lock);
    const cudaError_t e = zp_nccl_advance(n, ch);
    pthread_mutex_unlock(&n->lock);
    ZP_TRY(zp_cuda(c->device, e, "cudaEventQuery"));
    ZP_TRY(zp_event_record(s, &w->ended));
    pthread_mutex_lock(&n->lock);
    w->kind = kind;
    w->unit = unit;
    w->since = zp_seconds();
    n->tail[ch]++;
    n->last[ch] = s->cuda;
    pthread_mutex_unlock(&n->lock);
    return ZERO_OK;
}

/* A collective of the hosts, by way of the device and the parameters' communicator: every rank's
   `bytes` to every rank (root -1), or the root's. */
static zero_result zp_nccl_exchange(zp_comm *c, const void *mine, size_t bytes, int root,
                                    void *all) {
    zp_nccl *n = &c->nccl;
    char *got = n->scratch + (root < 0 ? ZP_MAIL_BYTES : 0);
    const size_t got_bytes = root < 0 ? (size_t)c->nranks * bytes : bytes;
    zp_stream s;
    (void)zp_stream_take(&s, c->device, c->device->own, 1);
    if (root < 0 || root == c->rank) {
        memcpy(n->pinned, mine, bytes);
        ZP_TRY(zp_copy(&s, n->scratch, n->pinned, bytes));
    }
    ZP_TRY(zp_nccl_begin(c, &s, ZP_PARAMETERS));
    const ncclComm_t comm = n->comm[ZP_PARAMETERS];
    zp_nccl_note(n, root < 0 ? ncclAllGather(n->scratch, got, bytes, ncclChar, comm, s.cuda)
                             : ncclBroadcast(n->scratch, got, bytes, ncclChar, root, comm, s.cuda));
    ZP_TRY(zp_nccl_end(c, &s, ZP_PARAMETERS, root < 0 ? ZP_EXCHANGE : ZP_STAGED, root));
    ZP_TRY(zp_copy(&s, n->pinned, got, got_bytes));
    ZP_TRY(zp_stream_sync(&s));
    ZP_TRY(zp_failure_result(&c->failure)); /* an aborted collective ends, too */
    if (root != c->rank) memcpy(all, n->pinned, got_bytes);
    return ZERO_OK;
}
#endif

/* Tells the peers that this rank is gone. */
static void zp_comm_abort(zp_comm *c, const char *why) {
#ifdef ZERO_WITH_NCCL /* the watching thread ends the communicators; peers find them ended */
    if (c->kind == ZERO_COMM_NCCL) (void)zp_failure_set(&c->failure, ZERO_ERR_PEER, "%s", why);
#endif
    if (!c->board) return;
    zp_board_abort(c->board, c->rank, why);
#ifdef ZERO_WITH_MPI
    if (c->kind == ZERO_COMM_MPI) zp_mpi_tell(c);
#endif
}

/* Every rank's `bytes` become all[0..nranks), in rank order. */
static zero_result zp_comm_exchange(zp_comm *c, zp_channel channel, const void *mine, size_t bytes,
                                    void *all) {
    if (c->nranks == 1) {
        memcpy(all, mine, bytes);
        return ZERO_OK;
    }
#ifdef ZERO_WITH_MPI
    if (c->kind == ZERO_COMM_MPI) {
        const zp_head head = {ZP_EXCHANGE, 0, bytes};
        return zp_mpi_exchange(c, channel, &head, mine, bytes, all);
    }
#endif
#ifdef ZERO_WITH_NCCL
    if (c->kind == ZERO_COMM_NCCL) return zp_nccl_exchange(c, mine, bytes, -1, all);
#endif
    return zp_board_exchange(c, channel, mine, bytes, all);
}

static zero_result zp_comm_barrier(zp_comm *c) {
    int32_t one = 1;
    return zp_comm_exchange(c, ZP_CONTROL, &one, sizeof one, c->mail);
}

/* Any rank's no becomes everybody's; `who` is the lowest rank that said it. */
static zero_result zp_comm_agree(zp_comm *c, int ok, int *who) {
    int32_t mine = ok;
    ZP_TRY(zp_comm_exchange(c, ZP_CONTROL, &mine, sizeof mine, c->mail));
    *who = -1;
    for (int r = c->nranks - 1; r >= 0; r--) {
        int32_t theirs;
        memcpy(&theirs, c->mail + (size_t)r * sizeof theirs, sizeof theirs);
        if (!theirs) *who = r;
    }
    return ZERO_OK;
}

#ifdef ZERO_WITH_NCCL
/* Functions of NCCL 2.27, to which windows are pointers; 0: the one that is loaded is older. */
typedef ncclResult_t (*zp_window_register)(ncclComm_t, void *, size_t, void **, int);
typedef ncclResult_t (*zp_window_deregister)(ncclComm_t, void *);
static int zp_nccl_find(const char *name, void *call, size_t bytes) {
    void *symbol = dlsym(RTLD_DEFAULT, name);
    memcpy(call, &symbol, bytes);
    return symbol != NULL;
}

/* Tells NCCL of a region: as a symmetric window, which is the fastest way and the only one by which
   copy engines gather, or as a buffer. No handle: this NCCL, or these devices, have no windows. */
static zero_result zp_nccl_register(zp_comm *c, zp_region *r, int window) {
    zp_nccl *n = &c->nccl;
    const char *name = window ? "ncclCommWindowRegister" : "ncclCommRegister";
    zp_window_register call;
    if (window && !zp_nccl_find(name, &call, sizeof call)) return ZERO_OK;
    r->window = window;
    pthread_mutex_lock(&n->lock);
    const ncclComm_t comm = n->comm[r->channel];
    const ncclResult_t result =
        n->aborted ? ncclSystemError
        : window   ? call(comm, r->base[0], r->bytes, &r->handle, 1 /* NCCL_WIN_COLL_SYMMETRIC */)
                   : ncclCommRegister(comm, r->base[0], r->bytes, &r->handle);
    pthread_mutex_unlock(&n->lock);
    return zp_nccl_settle(c, comm, result, name);
}

static void zp_region_leave(zp_comm *c, zp_region *r) {
    zp_nccl *n = &c->nccl;
    zp_window_deregister call;
    pthread_mutex_lock(&n->lock);
    const ncclComm_t comm = n->comm[r->channel];
    if (r->handle && !n->aborted && !r->window)
        (void)ncclCommDeregister(comm, r->handle);
    else if (r->handle && !n->aborted
             && zp_nccl_find("ncclCommWindowDeregister", &call, sizeof call))
        (void)call(comm, r->handle);
    pthread_mutex_unlock(&n->lock);
    if (r->base[0]) (void)ncclMemFree(r->base[0]);
}
#endif

static void zp_region_close(zp_comm *c, zp_region *r) {
    if (r->kind == ZP_OWN) zp_region_free(r->base[c->me], r->on_host);
#ifdef __linux__
    for (int p = 0; p < c->n && r->kind == ZP_FILES; p++)
        if (r->base[p] && (!r->single || p == 0)) (void)munmap(r->base[p], r->bytes);
#endif
#ifdef ZERO_WITH_MPI
    if (r->kind == ZP_WINDOW) (void)MPI_Win_free(&r->window);
#endif
#ifdef ZERO_WITH_NCCL
    if (r->kind == ZP_NCCL) zp_region_leave(c, r);
#endif
    memset(r, 0, sizeof *r);
}

/* Pieces of threads: ordinary memory, exchanged by address. */
static zero_result zp_region_threads(zp_comm *c, zp_region *r) {
    char *mine = NULL, **all = (char **)(void *)c->mail;
    if (!r->single || c->me == 0) {
        zp_hold *hold = zp_hold_make(c->board ? &c->board->pieces : &c->group->boards, c->device,
                                     r->bytes, r->on_host);
        if (hold) mine = (char *)hold->memory;
        if (hold && !c->board) { /* it is the board that is being made */
            zp_board *board = (zp_board *)hold->memory;
            board->self = hold;
            board->users = (uint32_t)c->n;
        }
    }
    ZP_TRY(zp_comm_exchange(c, ZP_CONTROL, &mine, sizeof mine, all));
    for (int p = 0; p < c->n; p++) {
        r->base[p] = all[r->single ? 0 : p];
        if (!r->base[p]) return ZERO_ERR_MEMORY; /* on all ranks alike */
    }
    r->kind = ZP_HELD;
    return ZERO_OK;
}

/* Pieces of processes: memory files, opened by the peers while their makers wait. */
static zero_result zp_region_files(zp_comm *c, zp_region *r) {
#ifdef __linux__
    const zp_piece *all = (const zp_piece *)(const void *)c->mail;
    zp_piece mine;
    int fd = -1, who = -1, ok = 1;
    if (!r->single || c->me == 0) fd = zp_file_make(r->bytes);
    if (fd >= 0) r->base[c->me] = zp_map_file(fd, r->bytes);
    mine.pid = (int64_t)getpid();
    mine.fd = fd;
    mine.inode = zp_file_inode(fd);
    r->kind = ZP_FILES;
    zero_result result = zp_comm_exchange(c, ZP_CONTROL, &mine, sizeof mine, c->mail);
    for (int p = 0; p < c->n && !result; p++) {
        const int from = r->single ? 0 : p;
        if (p == from && p != c->me) r->base[p] = zp_map_peer(&all[c->rank_of[p]], r->bytes);
        r->base[p] = r->base[from];
        ok &= r->base[p] != NULL;
    }
    if (!result) result = zp_comm_agree(c, ok, &who);
    if (fd >= 0) (void)close(fd);
    if (!result && who >= 0) result = ZERO_ERR_MEMORY;
    if (result) zp_region_close(c, r);
    return result;
#else
    (void)c;
    (void)r;
    return ZERO_ERR_UNSUPPORTED;
#endif
}

#ifdef ZERO_WITH_MPI
static char *zp_align_page(void *p) { return (char *)(((uintptr_t)p + 4095) & ~(uintptr_t)4095); }

/* Touches every page. 0: the system has no room for them (a small /dev/shm), which would otherwise
   end the process at the first write. */
static int zp_populate(char *p, size_t bytes) {
#ifdef __linux__
    if (madvise(p, bytes, 23 /* MADV_POPULATE_WRITE, Linux 5.14 */) && errno != EINVAL) return 0;
#endif
    memset(p, 0, bytes);
    return 1;
}

static zero_result zp_region_window(zp_comm *c, zp_region *r) {
    void *base = NULL;
    int who = -1;
    const size_t asked = r->bytes;
    MPI_Info info;
    const MPI_Aint bytes = !r->single || c->me == 0 ? (MPI_Aint)(r->bytes + 4096) : 0;
    ZP_MPI(c, MPI_Info_create(&info));
    ZP_MPI(c, MPI_Info_set(info, "alloc_shared_noncontig", "true"));
    const int code = MPI_Win_allocate_shared(bytes, 1, info, c->mpi_node, &base, &r->window);
    (void)MPI_Info_free(&info);
    if (code == MPI_SUCCESS) {
        r->kind = ZP_WINDOW;
        ZP_MPI(c, MPI_Win_set_errhandler(r->window, MPI_ERRORS_RETURN));
    }
    for (int p = 0; p < c->n && r->kind; p++) {
        MPI_Aint size;
        int unit;
        ZP_MPI(c, MPI_Win_shared_query(r->window, r->single ? 0 : p, &size, &unit, &base));
        r->base[p] = zp_align_page(base);
    }
    ZP_TRY(zp_comm_agree(c, r->kind != 0, &who)); /* over all nodes */
    if (who < 0) {
        const int cleared = !bytes || zp_populate(r->base[c->me], r->bytes);
        ZP_TRY(zp_comm_agree(c, cleared, &who)); /* and nobody reads before all are cleared */
        if (who < 0) return ZERO_OK;
        zp_region_close(c, r);
    }
    return zp_failure_set(&c->failure, ZERO_ERR_MEMORY,
                          "rank %d could not allocate %zu bytes in an MPI shared "
                          "window: has its host's /dev/shm room for them?",
                          who, asked);
}
#endif

#ifdef ZERO_WITH_NCCL
/* Memory that NCCL may hand to other devices and to network cards. */
static zero_result zp_region_nccl(zp_comm *c, zp_region *r) {
    void *p = NULL;
    int who = -1;
    const int ok = ncclMemAlloc(&p, r->bytes) == ncclSuccess
                   && zp_device_clear(c->device, p, r->bytes) != NULL;
    (void)cudaGetLastError();
    r->kind = ZP_NCCL;
    r->base[0] = (char *)p;
    ZP_TRY(zp_comm_agree(c, ok, &who));
    if (who < 0) return ZERO_OK;
    zp_region_close(c, r);
    return ZERO_ERR_MEMORY;
}
#endif

/* Tells NCCL of an arena that one channel uses. COLLECTIVE. `how` is for a log. */
static zero_result zp_region_register(zp_comm *c, zp_region *r, zp_channel channel,
                                      const char **how) {
    *how = "not registered";
#ifdef ZERO_WITH_NCCL
    if (c->kind != ZERO_COMM_NCCL || c->nranks == 1) return ZERO_OK;
    r->channel = channel;
    *how = "registered as a symmetric window";
    ZP_TRY(zp_nccl_register(c, r, 1));
    if (r->handle) return ZERO_OK;
    *how = "registered as a buffer";
    return zp_nccl_register(c, r, 0);
#else
    (void)c;
    (void)r;
    (void)channel;
    return ZERO_OK;
#endif
}

static zero_result zp_region_make(zp_comm *c, zp_region *r, size_t bytes, int single, int on_host) {
    const size_t pages = zp_round_up(zp_max(bytes, 1), 4096);
    memset(r, 0, sizeof *r);
    r->bytes = pages;
    r->single = single;
    r->on_host = on_host;
#ifdef ZERO_WITH_NCCL
    if (c->kind == ZERO_COMM_NCCL && !on_host) return zp_region_nccl(c, r);
#endif
    if (c->nranks == 1 || c->kind == ZERO_COMM_NCCL) {
        r->kind = ZP_OWN;
        r->base[0] = (char *)zp_region_alloc(c->device, r->bytes, on_host);
        return r->base[0] ? ZERO_OK : ZERO_ERR_MEMORY;
    }
#ifdef ZERO_WITH_MPI
    if (c->kind == ZERO_COMM_MPI) {
        /* files need no room in /dev/shm, and no peer to be freed; but peers in containers of their
           own see each other only through MPI */
        const zero_result made = zp_region_files(c, r);
        if (made != ZERO_ERR_MEMORY && made != ZERO_ERR_UNSUPPORTED) return made;
        r->bytes = pages;
        r->single = single;
        return zp_region_window(c, r);
    }
#endif
    return c->group->shared ? zp_region_files(c, r) : zp_region_threads(c, r);
}

/* COLLECTIVE. All ranks get the region or none does. `bytes` is the same everywhere. */
static zero_result zp_region_open(zp_comm *c, zp_region *r, size_t bytes, int single, int on_host) {
    ZP_TRY(zp_region_make(c, r, bytes, single, on_host));
    c->allocated_bytes += single ? r->bytes / (size_t)c->n : r->bytes;
    return ZERO_OK;
}

/* One collective on its way: what a task of a communication stream carries. Offsets are bytes in
   this rank's region. */
typedef struct zp_op {
    zp_comm *comm;
    zp_region *region;
    size_t shard;          /* elements */
    size_t source, target; /* reduce-scatter: unit, shard; all-gather: shard, unit */
    float *sum;            /* reduce-scatter of 16 bit: the shard's f32 accumulator; NULL: none */
    zero_type type;        /* of the elements */
    int kind, unit;
    float scale;
    int accumulate, in_place; /* in_place: an all-gather that only waits */
    zp_channel channel;
} zp_op;

static size_t zp_op_shard_bytes(const zp_op *op) { return op->shard * zp_bytes(op->type); }

/* Pieces of a collective that are on their way between nodes at a time; fewer where there are more
   nodes to trade with at once. */
static size_t zp_crossings(int nnodes) {
    return zp_max(2, ZP_CROSSINGS / zp_max(1, (size_t)(nnodes - 1)));
}
static size_t zp_wire_numel(int nnodes) {
    return zp_crossings(nnodes) * 2 * (size_t)(nnodes - 1) * ZP_CROSS_NUMEL;
}

static zp_call zp_op_call(const zp_op *op) {
    const zp_call call = {op->kind, op->unit, op->shard, op->source, op->target};
    return call;
}

/* Where a peer's unit (or shard) lies, from element `at` on. */
static const char *zp_op_peer(const zp_op *op, int place, int of_target, size_t at) {
    const zp_call *his = &op->comm->board->lines[op->channel][place].call;
    return op->region->base[place] + (of_target ? his->target : his->source)
           + at * zp_bytes(op->type);
}

/* This rank's slice of its own unit. */
static char *zp_op_slice(const zp_op *op) {
    return op->region->base[op->comm->me] + op->source
           + (size_t)op->comm->rank * zp_op_shard_bytes(op);
}

/* The sum of a reduce-scatter, over the ranks that this one sees. */
static void zp_op_sum(const zp_op *op, zp_sum *s) {
    const zp_comm *c = op->comm;
    memset(s, 0, sizeof *s);
    for (int p = 0; p < c->n; p++)
        s->source[p] =
            p == c->me ? zp_op_slice(op) : zp_op_peer(op, p, 0, (size_t)c->rank * op->shard);
    s->type = s->out_type = op->type;
    s->n = c->n;
    s->group = c->node_size;
    s->out = op->region->base[c->me] + op->target;
    s->sum = op->sum;
    s->scale = op->scale;
    s->accumulate = op->accumulate;
}

#ifndef __CUDACC__

/* sum = x or sum += x, n values of `type` from element `at` on. */
static void zp_sum_add(float *sum, const void *x, zero_type type, size_t at, size_t n, int first) {
    float wide[ZP_SUM_BLOCK];
    if (first) {
        zp_widen(sum, (const char *)x + at * zp_bytes(type), type, n);
        return;
    }
    const float *add = zp_view(x, type, at, n, wide);
    for (size_t i = 0; i < n; i++) sum[i] += add[i];
}

static void zp_sum_piece(const zp_sum *s, size_t at, size_t n) {
    float total[ZP_SUM_BLOCK], node[ZP_SUM_BLOCK]; /* stored before they are added to */
    for (int p = 0; p < s->n; p++) {
        zp_sum_add(p < s->group ? total : node, s->source[p], s->type, at, n, p % s->group == 0);
        if (p >= s->group && (p + 1) % s->group == 0)
            for (size_t i = 0; i < n; i++) total[i] += node[i];
    }
    float *sum = s->sum ? s->sum + at : s->out_type == ZERO_F32 ? (float *)s->out + at : total;
    if (s->accumulate)
        for (size_t i = 0; i < n; i++) sum[i] += s->scale * total[i];
    else
        for (size_t i = 0; i < n; i++) sum[i] = s->scale * total[i];
    if (s->out_type != ZERO_F32) zp_narrow((uint16_t *)s->out + at, s->out_type, sum, n);
}

static void zp_sum_slices(const zp_sum *s, size_t numel, int threads) {
    (void)threads;
    ZP_OMP_FOR(numel > 32768)
    for (size_t at = 0; at < numel; at += ZP_SUM_BLOCK)
        zp_sum_piece(s, at, zp_min(ZP_SUM_BLOCK, numel - at));
}

#ifdef ZERO_WITH_MPI
static zero_result zp_mpi_trade(const zp_op *op, int peer, void *in, const void *out, size_t bytes,
                                MPI_Request *requests) {
    zp_comm *c = op->comm;
    ZP_MPI(c, MPI_Irecv(in, (int)bytes, MPI_BYTE, peer, MPI_ANY_TAG, c->mpi[op->channel],
                        &requests[0]));
    ZP_MPI(c, MPI_Isend(out, (int)bytes, MPI_BYTE, peer, zp_mpi_tag(op->kind, op->unit),
                        c->mpi[op->channel], &requests[1]));
    return ZERO_OK;
}

static zero_result zp_mpi_traded(const zp_op *op, MPI_Request *requests, int n) {
    MPI_Status statuses[2 * ZP_LOCAL_MAX];
    return zp_mpi_wait(op->comm, requests, statuses, n, zp_mpi_tag(op->kind, op->unit),
                       zp_op_names[op->kind]);
}

/* A piece of a shard on its way between nodes, and in a reduction what it needs there: for every
   other node the sum that goes there, and the one that comes. */
typedef struct zp_crossing {
    size_t at, n;
    float *wire; /* [nnodes - 1][2][ZP_CROSS_NUMEL] */
    int requests;
    MPI_Request request[2 * ZP_LOCAL_MAX];
} zp_crossing;

/* Sums inside this node elements [at, at + n) of a rank's shard, in f32. */
static void zp_sum_node(const zp_op *op, int rank, size_t at, size_t n, float *out) {
    const zp_comm *c = op->comm;
    zp_sum s;
    memset(&s, 0, sizeof s);
    for (int p = 0; p < c->n; p++)
        s.source[p] = zp_op_peer(op, p, 0, (size_t)rank * op->shard + at);
    s.type = op->type;
    s.n = c->n;
    s.group = c->node_size;
    s.out = out;
    s.scale = 1;
    zp_sum_slices(&s, n, 1);
}

/* A reduction trades the sums of every counterpart's slice for those of this rank's; an all-gather
   slices, straight into the target, where the node's other ranks find them. */
static zero_result zp_cross_begin(const zp_op *op, zp_crossing *x) {
    const zp_comm *c = op->comm;
    const int reduces = op->kind == ZP_REDUCE_SCATTER;
    const size_t element = zp_bytes(op->type);
    char *base = op->region->base[c->me] + x->at * element;
    float *sum = x->wire;
    x->requests = 0;
    for (int k = 0; k < c->nnodes; k++) {
        if (k == c->node) continue;
        const int peer = zp_comm_counterpart(c, k);
        char *theirs = base + op->target + (size_t)peer * zp_op_shard_bytes(op);
        if (reduces) zp_sum_node(op, peer, x->at, x->n, sum);
        ZP_TRY(zp_mpi_trade(op, peer, reduces ? (char *)(sum + ZP_CROSS_NUMEL) : theirs,
                            reduces ? (char *)sum : base + op->source,
                            x->n * (reduces ? sizeof *sum : element), x->request + x->requests));
        x->requests += 2;
        sum += 2 * ZP_CROSS_NUMEL;
    }
    return ZERO_OK;
}

/* Adds over the nodes in node order; this node's own sum takes the place of one that was sent. */
static void zp_cross_add(const zp_op *op, const zp_crossing *x) {
    const zp_comm *c = op->comm;
    const float *received = x->wire + ZP_CROSS_NUMEL;
    zp_sum nodes;
    zp_op_sum(op, &nodes);
    zp_sum_node(op, c->rank, x->at, x->n, x->wire);
    nodes.type = ZERO_F32;
    nodes.n = nodes.group = c->nnodes;
    nodes.out = (char *)nodes.out + x->at * zp_bytes(op->type);
    if (nodes.sum) nodes.sum += x->at;
    for (int k = 0; k < c->nnodes; k++) {
        nodes.source[k] = k == c->node ? x->wire : received;
        if (k != c->node) received += 2 * ZP_CROSS_NUMEL;
    }
    zp_sum_slices(&nodes, x->n, 1);
}

/* Piece by piece, many on their way at a time, each so small that MPI sends it unasked (Open MPI:
   up to 64 KiB). Asked first, the answers queue behind what a peer is sending, and the directions
   of a link take turns. */
static zero_result zp_cross(const zp_op *op) {
    zp_crossing x[ZP_CROSSINGS];
    const zp_comm *c = op->comm;
    const size_t pieces = (op->shard + ZP_CROSS_NUMEL - 1) / ZP_CROSS_NUMEL;
    const size_t depth = zp_crossings(c->nnodes), wire = 2 * (size_t)(c->nnodes - 1);
    for (size_t i = 0; i < pieces + depth; i++) {
        zp_crossing *now = &x[i % depth];
        if (i >= depth && i - depth < pieces) {
            ZP_TRY(zp_mpi_traded(op, now->request, now->requests));
            if (op->kind == ZP_REDUCE_SCATTER) zp_cross_add(op, now);
        }
        if (i >= pieces) continue;
        now->at = i * ZP_CROSS_NUMEL;
        now->n = zp_min(ZP_CROSS_NUMEL, op->shard - now->at);
        now->wire = c->wire + i % depth * wire * ZP_CROSS_NUMEL;
        ZP_TRY(zp_cross_begin(op, now));
    }
    return ZERO_OK;
}
#endif

static zero_result zp_sum_ranks(zp_stream *s, const zp_sum *sum, size_t n) {
    zp_sum_slices(sum, n * ZP_WIDE, s->threads);
    return ZERO_OK;
}

static zero_result zp_op_begin(zp_comm *c, zp_stream *s, zp_channel channel, const zp_call *call) {
    (void)s;
    ZP_TRY(zp_failure_result(&c->failure));
    return zp_meet(c, channel, call);
}
static zero_result zp_op_end(zp_comm *c, zp_stream *s, zp_channel channel) {
    (void)s;
    return zp_part(c, channel);
}

#else

/* Ranks are threads of one process. Their hosts meet, and each makes its stream wait for the
   others'. An event is recorded again only after all have made their streams wait for its last
   record: that is what zp_part tells. */
static zero_result zp_op_begin(zp_comm *c, zp_stream *s, zp_channel channel, const zp_call *call) {
    zp_event *arrived = c->board->arrived[channel];
    ZP_TRY(zp_failure_result(&c->failure));
    ZP_TRY(zp_event_record(s, &arrived[c->me]));
    ZP_TRY(zp_meet(c, channel, call));
    for (int p = 0; p < c->n; p++)
        if (p != c->me) ZP_TRY(zp_event_wait(s, &arrived[p]));
    return ZERO_OK;
}
static zero_result zp_op_end(zp_comm *c, zp_stream *s, zp_channel channel) {
    zp_event *departed = c->board->departed[channel];
    ZP_TRY(zp_event_record(s, &departed[c->me]));
    ZP_TRY(zp_part(c, channel));
    for (int p = 0; p < c->n; p++)
        if (p != c->me) ZP_TRY(zp_event_wait(s, &departed[p]));
    return ZERO_OK;
}

#endif

static zero_result zp_op_gather(zp_stream *s, const zp_op *op) {
    zp_comm *c = op->comm;
    char *target = op->region->base[c->me] + op->target;
    const size_t bytes = zp_op_shard_bytes(op);
    const char *own = op->region->base[c->me] + op->source;
    if (target + (size_t)c->rank * bytes != own)
        ZP_TRY(zp_copy(s, target + (size_t)c->rank * bytes, own, bytes));
#ifdef ZERO_WITH_MPI
    if (c->n < c->nranks) {
        const zp_call call = zp_op_call(op);
        ZP_TRY(zp_cross(op));
        ZP_TRY(zp_part(c, op->channel));
        ZP_TRY(zp_meet(c, op->channel, &call));
    }
#endif
    for (int p = 0; p < c->n; p++) {
        if (p == c->me) continue;
        ZP_TRY(zp_copy(s, target + (size_t)c->rank_of[p] * bytes, zp_op_peer(op, p, 0, 0), bytes));
#ifdef ZERO_WITH_MPI
        for (int k = 0; k < c->nnodes && c->n < c->nranks; k++) {
            const int rank = c->node_rank[k * c->node_size + p];
            if (k != c->node)
                memcpy(target + (size_t)rank * bytes,
                       zp_op_peer(op, p, 1, (size_t)rank * op->shard), bytes);
        }
#endif
    }
    return ZERO_OK;
}

/* What this rank does once all have come. */
static zero_result zp_op_work(zp_stream *s, const zp_op *op) {
    zp_sum sum;
    if (op->in_place) return ZERO_OK;
    if (op->kind == ZP_ALL_GATHER) return zp_op_gather(s, op);
#ifdef ZERO_WITH_MPI
    if (op->comm->n < op->comm->nranks) return zp_cross(op);
#endif
    zp_op_sum(op, &sum);
    return zp_sum_ranks(s, &sum, op->shard / ZP_WIDE);
}

/* A collective, but for NCCL's. */
static zero_result zp_op_run(zp_stream *s, const zp_op *op) {
    const zp_call call = zp_op_call(op);
    if (op->comm->nranks == 1) { /* nobody to meet */
        const int there = op->kind == ZP_REDUCE_SCATTER && op->source == op->target && !op->sum;
        return there ? ZERO_OK : zp_op_work(s, op);
    }
    ZP_TRY(zp_op_begin(op->comm, s, op->channel, &call));
    ZP_TRY(zp_op_work(s, op));
    return zp_op_end(op->comm, s, op->channel);
}

#ifndef __CUDACC__

/* On a stream's thread: the stream of the work is this thread itself. */
static void zp_op_task(const void *args, size_t n, int threads) {
    zp_op op;
    zp_stream s;
    memcpy(&op, args, sizeof op);
    (void)n;
    (void)zp_stream_take(&s, op.comm->device, NULL, threads);
    (void)zp_op_run(&s, &op);
}

typedef struct zp_verdicts_args {
    zp_comm *comm;
    const double *mine;
    double *all;
} zp_verdicts_args;

static void zp_verdicts_task(const void *args, size_t n, int threads) {
    zp_verdicts_args a;
    memcpy(&a, args, sizeof a);
    (void)n;
    (void)threads;
    if (zp_failure_result(&a.comm->failure)) return;
    (void)zp_comm_exchange(a.comm, ZP_GRADIENTS, a.mine, ZP_VERDICT * sizeof(double), a.all);
}

#else

static zero_result zp_local_verdicts(zp_comm *c, zp_stream *s, const zp_region *r, size_t at,
                                     double *all) {
    const size_t bytes = ZP_VERDICT * sizeof *all;
    const zp_call call = {ZP_EXCHANGE, 0, bytes, 0, 0};
    ZP_TRY(zp_op_begin(c, s, ZP_GRADIENTS, &call));
    for (int p = 0; p < c->n; p++) ZP_TRY(zp_copy(s, all + ZP_VERDICT * p, r->base[p] + at, bytes));
    return zp_op_end(c, s, ZP_GRADIENTS);
}

#ifdef ZERO_WITH_NCCL
static ncclDataType_t zp_nccl_type(zero_type type) {
    return type == ZERO_F32 ? ncclFloat32 : type == ZERO_BF16 ? ncclBfloat16 : ncclFloat16;
}
/* The sum is what is wanted, where it is wanted: nothing is to be added to it, or rounded. */
static int zp_nccl_direct(const zp_op *op) { return !op->sum && !op->accumulate; }

/* Inside a group: nothing of it has happened before the group is closed. */
static void zp_nccl_issue(zp_stream *s, const zp_op *op) {
    zp_nccl *n = &op->comm->nccl;
    char *source = op->region->base[0] + op->source, *target = op->region->base[0] + op->target;
    const ncclDataType_t type = zp_nccl_type(op->type);
    if (op->in_place || n->status != ncclSuccess) return;
    if (op->kind == ZP_ALL_GATHER)
        zp_nccl_note(n,
                     ncclAllGather(source, target, op->shard, type, n->comm[op->channel], s->cuda));
    else
        zp_nccl_note(n, ncclReduceScatter(source, zp_nccl_direct(op) ? target : zp_op_slice(op),
                                          op->shard, type, ncclSum, n->comm[op->channel], s->cuda));
}
#endif
#endif

/* A group of collectives of one channel: NCCL starts them together. What they give is there after
   zp_comm_finish of each, which follows the group. Whoever begins a group ends it, whatever has
   failed elsewhere meanwhile (ZP_TRY, not ZP_DO): NCCL's lock is held between. */
static zero_result zp_comm_begin(zp_comm *c, zp_stream *s, zp_channel channel) {
#ifdef ZERO_WITH_NCCL
    if (c->kind == ZERO_COMM_NCCL) return zp_nccl_begin(c, s, channel);
#endif
    (void)c;
    (void)s;
    (void)channel;
    return ZERO_OK;
}
static zero_result zp_comm_end(zp_comm *c, zp_stream *s, const zp_op *first) {
#ifdef ZERO_WITH_NCCL
    if (c->kind == ZERO_COMM_NCCL)
        return zp_nccl_end(c, s, first->channel, first->kind, first->unit);
#endif
    (void)c;
    (void)s;
    (void)first;
    return ZERO_OK;
}
static zero_result zp_comm_finish(zp_stream *s, const zp_op *op) {
#ifdef ZERO_WITH_NCCL
    if (op->comm->kind == ZERO_COMM_NCCL && op->kind == ZP_REDUCE_SCATTER && !zp_nccl_direct(op))
        return zp_op_work(s, op); /* NCCL's sum lies in this rank's slice */
#endif
    (void)s;
    (void)op;
    return ZERO_OK;
}

/* Bytes that a rank sends in a reduce-scatter of one shard per rank: inside nodes in the gradients'
   type, between nodes the nodes' sums in f32. */
static size_t zp_reduce_bytes(const zp_comm *c, size_t shard, zero_type type) {
    const size_t inside = (size_t)(c->n - 1) * (size_t)(c->nranks / c->n);
    if (c->kind == ZERO_COMM_NCCL) return (size_t)(c->nranks - 1) * shard * zp_bytes(type);
    return shard * (inside * zp_bytes(type) + (size_t)(c->nranks / c->n - 1) * sizeof(float));
}
static size_t zp_gather_bytes(const zp_comm *c, size_t shard, zero_type type) {
    return (size_t)(c->nranks - 1) * shard * zp_bytes(type);
}

/* The communicator's only way to a stream: everything it sends is counted here. */
static zero_result zp_comm_issue(zp_stream *s, const zp_op *op) {
    zp_comm *c = op->comm;
    const int gathers = op->kind == ZP_ALL_GATHER;
    const size_t bytes =
        gathers ? zp_gather_bytes(c, op->shard, op->type) : zp_reduce_bytes(c, op->shard, op->type);
    c->sent_bytes += bytes;
    if (op->in_place) c->mapped_bytes += bytes;
    c->reductions += !gathers;
    c->gathers += gathers;
#ifdef ZERO_WITH_NCCL
    if (c->kind == ZERO_COMM_NCCL) {
        zp_nccl_issue(s, op);
        return ZERO_OK;
    }
#endif
#ifdef __CUDACC__
    return zp_op_run(s, op);
#else
    static_assert(sizeof(zp_op) <= ZP_TASK_BYTES, "a task carries a collective");
    return zp_stream_push(s, zp_op_task, op, sizeof *op, 0);
#endif
}

/* A group of one. */
static zero_result zp_comm_issue_alone(zp_stream *s, const zp_op *op) {
    ZP_TRY(zp_comm_begin(op->comm, s, op->channel));
    ZP_TRY(zp_comm_issue(s, op)); /* NCCL's cannot fail before the group ends */
    return zp_comm_end(op->comm, s, op);
}

/* The one small collective of a step: every rank's verdict to every rank. It lies in a region, at
   the same place on all of them. */
static zero_result zp_comm_verdicts(zp_comm *c, zp_stream *s, const zp_region *r, size_t at,
                                    double *all) {
    const double *mine = (const double *)(const void *)(r->base[c->me] + at);
#ifdef ZERO_WITH_NCCL
    if (c->kind == ZERO_COMM_NCCL) {
        ZP_TRY(zp_nccl_begin(c, s, ZP_GRADIENTS));
        zp_nccl_note(&c->nccl, ncclAllGather(mine, all, ZP_VERDICT, ncclFloat64,
                                             c->nccl.comm[ZP_GRADIENTS], s->cuda));
        return zp_nccl_end(c, s, ZP_GRADIENTS, ZP_EXCHANGE, -1);
    }
#endif
#ifdef __CUDACC__
    return c->nranks > 1 ? zp_local_verdicts(c, s, r, at, all)
                         : zp_copy(s, all, mine, ZP_VERDICT * sizeof *mine);
#else
    zp_verdicts_args a = {c, mine, all};
    return zp_stream_push(s, zp_verdicts_task, &a, sizeof a, 0);
#endif
}

/* Up to ZP_STAGE_NUMEL * 4 bytes from one rank's memory to all; SYNC. */
static zero_result zp_comm_broadcast_piece(zp_comm *c, void *data, size_t bytes, int root) {
#ifdef ZERO_WITH_MPI
    if (c->kind == ZERO_COMM_MPI) {
        char *landing = c->stage.base[c->me];
        const zp_head head = {ZP_STAGED, root, bytes};
        MPI_Request request;
        MPI_Status status;
        ZP_TRY(zp_mpi_exchange(c, ZP_CONTROL, &head, NULL, 0, NULL));
        if (c->rank == root && data != landing) memcpy(landing, data, bytes);
        ZP_MPI(c, MPI_Ibcast(landing, (int)bytes, MPI_BYTE, root, c->mpi[ZP_CONTROL], &request));
        ZP_TRY(zp_mpi_wait(c, &request, &status, 1, -1, zp_op_names[ZP_STAGED]));
        if (c->rank != root && data != landing) memcpy(data, landing, bytes);
        return ZERO_OK;
    }
#endif
#ifdef ZERO_WITH_NCCL
    if (c->kind == ZERO_COMM_NCCL) return zp_nccl_exchange(c, data, bytes, root, data);
#endif
    const zp_call call = {ZP_STAGED, root, bytes, 0, 0};
    char *stage = c->stage.base[c->me];
    if (c->rank == root && data != stage) memcpy(stage, data, bytes);
    ZP_TRY(zp_meet(c, ZP_CONTROL, &call));
    if (c->rank != root && data != stage)
        memcpy(data, c->stage.base[root], bytes); /* LOCAL: places are ranks */
    return zp_part(c, ZP_CONTROL);
}

static zero_result zp_comm_broadcast(zp_comm *c, void *data, size_t bytes, int root) {
    const size_t piece = ZP_STAGE_NUMEL * sizeof(float);
    for (size_t at = 0; at < bytes && c->nranks > 1; at += piece)
        ZP_TRY(zp_comm_broadcast_piece(c, (char *)data + at, zp_min(piece, bytes - at), root));
    return ZERO_OK;
}

static zero_result zp_comm_fail(zp_comm *c, zero_result r, const char *text) {
    return zp_failure_set(&c->failure, r, "%s", text);
}

#ifdef ZERO_WITH_NCCL
static zero_result zp_nccl_split(zp_comm *c, ncclComm_t parent, int ch) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
#if NCCL_VERSION_CODE >= 22700
    config.commName = ch == ZP_PARAMETERS ? "zero parameters" : "zero gradients";
#endif
#ifdef NCCL_CTA_POLICY_ZERO /* gathers by copy engines, reductions with few multiprocessors */
    config.CTAPolicy = ch == ZP_PARAMETERS ? NCCL_CTA_POLICY_ZERO : NCCL_CTA_POLICY_EFFICIENCY;
#endif
    const ncclResult_t r = ncclCommSplit(parent, 0, c->rank, &c->nccl.comm[ch], &config);
    return zp_nccl_settle(c, parent, r, "ncclCommSplit"); /* it is the parent that is busy */
}

/* The memory of exchanges, and the events that are watched. */
static zero_result zp_nccl_prepare(zp_comm *c) {
    zp_nccl *n = &c->nccl;
    const size_t bytes = zp_max((size_t)(1 + c->nranks) * ZP_MAIL_BYTES, ZP_STAGE_NUMEL * 4);
    const char *order = getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    n->ordered = n->version >= 22600 && order && strcmp(order, "0") != 0;
    n->scratch = (char *)zp_device_alloc(c->device, bytes);
    n->pinned = (char *)zp_host_alloc(bytes);
    c->mail = (char *)malloc((size_t)c->nranks * ZP_MAIL_BYTES);
    if (!n->scratch || !n->pinned || !c->mail)
        return zp_comm_fail(c, ZERO_ERR_MEMORY, "the exchange buffers");
    for (int ch = 0; ch < ZP_CONTROL; ch++)
        for (size_t i = 0; i < ZP_WATCHED; i++)
            ZP_TRY(zp_event_open(c->device, &n->ring[ch][i].ended));
    return ZERO_OK;
}

static zero_result zp_comm_open_nccl(zp_comm *c, const zero_comm *given) {
    zp_nccl *n = &c->nccl;
    int device = -1;
    ncclComm_t parent = given->handle ? *(ncclComm_t *)given->handle : NULL;
    if (!parent)
        return zp_comm_fail(c, ZERO_ERR_ARGUMENT, "comm.handle: an ncclComm_t * is needed");
    if (given->node_size)
        return zp_failure_set(&c->failure, ZERO_ERR_ARGUMENT,
                              "comm.node_size is %d: NCCL sums in an order of its own",
                              given->node_size);
    ncclResult_t r = ncclGetVersion(&n->version);
    if (r == ncclSuccess && n->version < 21900)
        return zp_failure_set(&c->failure, ZERO_ERR_UNSUPPORTED,
                              "NCCL %d.%d.%d is loaded: 2.19 or newer is needed",
                              n->version / 10000, n->version / 100 % 100, n->version % 100);
    if (r == ncclSuccess) r = ncclCommUserRank(parent, &c->rank);
    if (r == ncclSuccess) r = ncclCommCount(parent, &c->nranks);
    if (r == ncclSuccess) r = ncclCommCuDevice(parent, &device);
    if (r != ncclSuccess) return zp_nccl_fail(c, parent, r, "comm.handle");
    if (device != c->device->number)
        return zp_failure_set(&c->failure, ZERO_ERR_ARGUMENT,
                              "the communicator belongs to device %d, but device %d is current",
                              device, c->device->number);
    c->rank_of[0] = c->rank;
    c->divisor = (float)c->nranks;
    /* first: peers wait in it on the caller's communicator, which nobody here may end */
    pthread_mutex_init(&n->lock, NULL);
    n->made = 1;
    for (int ch = 0; ch < ZP_CONTROL; ch++) ZP_TRY(zp_nccl_split(c, parent, ch));
    n->moved[0] = n->moved[1] = zp_seconds();
    n->watching = pthread_create(&n->thread, NULL, zp_nccl_watch, c) == 0;
    if (!n->watching) return zp_comm_fail(c, ZERO_ERR_MEMORY, "a thread for NCCL");
    return zp_nccl_prepare(c);
}

/* Destroys a communicator together with the others, or alone if that fails. */
static void zp_nccl_leave(zp_comm *c, int ch, int broken) {
    ncclComm_t comm = c->nccl.comm[ch];
    if (!comm) return;
    if (!broken && !zp_nccl_settle(c, comm, ncclCommFinalize(comm), "ncclCommFinalize"))
        (void)ncclCommDestroy(comm);
    else
        (void)ncclCommAbort(comm);
    c->nccl.comm[ch] = NULL;
}

static void zp_nccl_close(zp_comm *c, int broken) {
    zp_nccl *n = &c->nccl;
    if (!n->made) return;
    __atomic_store_n(&n->stop, 1, __ATOMIC_RELEASE);
    if (n->watching) (void)pthread_join(n->thread, NULL);
    for (int ch = 0; ch < ZP_CONTROL; ch++) {
        zp_nccl_leave(c, ch, broken || !n->watching || zp_failure_result(&c->failure) != ZERO_OK);
        for (size_t i = 0; i < ZP_WATCHED; i++) zp_event_close(&n->ring[ch][i].ended);
    }
    zp_device_free(n->scratch);
    zp_host_free(n->pinned);
    pthread_mutex_destroy(&n->lock);
}
#endif

/* Each rank reaches the memory of every other rank's device. */
static zero_result zp_local_devices(zp_comm *c) {
    c->shares = 1;
#ifdef __CUDACC__
    zp_device *d = c->device;
    int32_t mine = d->number, his;
    ZP_TRY(zp_comm_exchange(c, ZP_CONTROL, &mine, sizeof mine, c->mail));
    for (int r = 0; r < c->nranks; r++) {
        int can = 0;
        memcpy(&his, c->mail + (size_t)r * sizeof his, sizeof his);
        if (his == mine) continue;
        c->shares = 0; /* parameters read in place would come over the bus at every use */
        ZP_CUDA(d, cudaDeviceCanAccessPeer(&can, mine, his));
        if (!can)
            return zp_failure_set(&c->failure, ZERO_ERR_ARGUMENT,
                                  "device %d of rank %d cannot reach the memory of device %d of "
                                  "rank %d: use NCCL",
                                  (int)mine, c->rank, (int)his, r);
        const cudaError_t e = cudaDeviceEnablePeerAccess(his, 0);
        if (e == cudaErrorPeerAccessAlreadyEnabled)
            (void)cudaGetLastError();
        else
            ZP_TRY(zp_cuda(d, e, "cudaDeviceEnablePeerAccess"));
    }
    for (int ch = 0; ch < ZP_CONTROL; ch++) {
        ZP_TRY(zp_event_open(d, &c->board->arrived[ch][c->me]));
        ZP_TRY(zp_event_open(d, &c->board->departed[ch][c->me]));
    }
#endif
    return ZERO_OK;
}

/* A group's board serves to make this context's own: two contexts of one group never meet. */
static zero_result zp_comm_open_local(zp_comm *c, const zero_comm *given) {
    zero_local *group = (zero_local *)given->handle;
    if (!group)
        return zp_comm_fail(c, ZERO_ERR_ARGUMENT, "comm.handle is NULL: a zero_local is needed");
    if (!group->shared && group->maker != getpid())
        return zp_failure_set(&c->failure, ZERO_ERR_ARGUMENT,
                              "the zero_local was made with shared 0 in process %d and is used in "
                              "process %d: ranks that are forked need shared 1",
                              (int)group->maker, (int)getpid());
#ifdef __CUDACC__
    if (group->shared)
        return zp_comm_fail(c, ZERO_ERR_ARGUMENT,
                            "ranks that share a zero_local are threads of one process in the CUDA "
                            "build (shared 0); processes need NCCL");
#endif
    if (given->rank < 0 || given->rank >= group->nranks)
        return zp_failure_set(&c->failure, ZERO_ERR_ARGUMENT,
                              "comm.rank is %d, the group has ranks 0..%d", given->rank,
                              group->nranks - 1);
    c->group = group;
    c->rank = c->me = given->rank;
    c->nranks = c->n = group->nranks;
    for (int p = 0; p < c->n; p++) c->rank_of[p] = p;
    c->mail = (char *)malloc((size_t)c->nranks * ZP_MAIL_BYTES);
    if (!c->mail) return zp_comm_fail(c, ZERO_ERR_MEMORY, "the exchange buffer");
    c->seq[ZP_CONTROL] = group->seq[c->rank];
    zero_result r = zp_region_open(c, &c->board_region, sizeof(zp_board), 1, 1);
    group->seq[c->rank] = c->seq[ZP_CONTROL];
    if (r) return zp_comm_fail(c, r, "memory that all ranks of the machine share");
    c->board = (zp_board *)c->board_region.base[0];
    c->seq[ZP_CONTROL] = 0;
    c->node_size = given->node_size ? given->node_size : c->nranks;
    if (c->node_size < 1 || c->nranks % c->node_size)
        return zp_failure_set(&c->failure, ZERO_ERR_ARGUMENT,
                              "comm.node_size %d does not divide %d ranks", c->node_size,
                              c->nranks);
    return zp_local_devices(c);
}

#ifdef ZERO_WITH_MPI
/* Node membership, from MPI or cut by node_size; every node must have as many ranks. */
static zero_result zp_mpi_nodes(zp_comm *c, int node_size) {
    enum { SIZE = 0, FIRST, PLACE, ASKED, FIELDS };
    int n = 0, first = 0;
    if (node_size && (node_size < 1 || c->nranks % node_size))
        return zp_failure_set(&c->failure, ZERO_ERR_ARGUMENT,
                              "comm.node_size %d does not divide %d ranks", node_size, c->nranks);
    MPI_Comm host;
    ZP_MPI(c, MPI_Comm_split_type(c->mpi[ZP_CONTROL], MPI_COMM_TYPE_SHARED, c->rank, MPI_INFO_NULL,
                                  &host));
    if (node_size) {
        ZP_MPI(c, MPI_Comm_split(host, c->rank / node_size, c->rank, &c->mpi_node));
        ZP_MPI(c, MPI_Comm_free(&host));
    } else {
        c->mpi_node = host;
    }
    ZP_MPI(c, MPI_Comm_set_errhandler(c->mpi_node, MPI_ERRORS_RETURN));
    ZP_MPI(c, MPI_Comm_size(c->mpi_node, &n));
    ZP_MPI(c, MPI_Comm_rank(c->mpi_node, &c->me));
    c->n = n;
    first = c->rank;
    ZP_MPI(c,
           MPI_Bcast(&first, 1, MPI_INT, 0, c->mpi_node)); /* a node is named by its lowest rank */
    int mine[FIELDS] = {n, first, c->me, node_size};
    int *all = (int *)malloc((size_t)c->nranks * sizeof mine);
    if (!all) return zp_comm_fail(c, ZERO_ERR_MEMORY, "the list of nodes");
    const int code = MPI_Allgather(mine, FIELDS, MPI_INT, all, FIELDS, MPI_INT, c->mpi[ZP_CONTROL]);
    zero_result r = zp_mpi(c, code, "MPI_Allgather");
    for (int i = 0; i < c->nranks && !r; i++)
        if (all[FIELDS * i + ASKED] != all[ASKED])
            r = zp_failure_set(&c->failure, ZERO_ERR_MISMATCH,
                               "comm.node_size is %d on rank 0, %d on rank %d", all[ASKED],
                               all[FIELDS * i + ASKED], i);
    for (int i = 0; i < c->nranks && !r; i++) {
        const int *his = all + FIELDS * i;
        if (his[SIZE] != all[SIZE] || n > ZP_LOCAL_MAX)
            r = zp_failure_set(
                &c->failure, ZERO_ERR_ARGUMENT,
                "nodes of %d ranks (rank 0) and of %d (rank %d): every node needs the same number, "
                "at most %d; start as many ranks on every host, or set comm.node_size",
                all[SIZE], his[SIZE], i, ZP_LOCAL_MAX);
        else if (node_size && his[SIZE] != node_size)
            r = zp_failure_set(&c->failure, ZERO_ERR_ARGUMENT,
                               "comm.node_size is %d, but rank %d shares memory with "
                               "only %d of those ranks: a node lies on one host",
                               node_size, i, his[SIZE]);
    }
    c->node_size = n;
    c->nnodes = c->nranks / n;
    c->node_rank = (int *)malloc((size_t)c->nranks * sizeof *c->node_rank);
    if (!r && !c->node_rank) r = zp_comm_fail(c, ZERO_ERR_MEMORY, "the list of nodes");
    if (!r && c->nnodes > ZP_LOCAL_MAX)
        r = zp_failure_set(&c->failure, ZERO_ERR_UNSUPPORTED, "%d nodes, at most %d", c->nnodes,
                           ZP_LOCAL_MAX);
    for (int i = 0, node = -1; i < c->nranks && !r; i++) { /* nodes in order of their lowest rank */
        const int *his = all + FIELDS * i;
        if (his[PLACE] != 0) continue;
        node++;
        if (his[FIRST] == first) c->node = node;
        for (int q = 0; q < c->nranks; q++) {
            const int *other = all + FIELDS * q;
            if (other[FIRST] == his[FIRST]) c->node_rank[node * n + other[PLACE]] = q;
        }
    }
    free(all);
    return r;
}

static zero_result zp_comm_open_mpi(zp_comm *c, const zero_comm *given) {
    int level = 0, started = 0, ended = 0;
    c->mpi_node = MPI_COMM_NULL;
    if (!given->handle)
        return zp_comm_fail(c, ZERO_ERR_ARGUMENT, "comm.handle is NULL: an MPI_Comm * is needed");
    if (MPI_Initialized(&started) || MPI_Finalized(&ended) || !started || ended)
        return zp_comm_fail(
            c, ZERO_ERR_COMM,
            "MPI is not running: call MPI_Init_thread with MPI_THREAD_MULTIPLE first");
    ZP_MPI(c, MPI_Query_thread(&level));
    if (level < MPI_THREAD_MULTIPLE)
        return zp_failure_set(&c->failure, ZERO_ERR_COMM,
                              "MPI was started with thread level %d: call MPI_Init_thread with "
                              "MPI_THREAD_MULTIPLE (%d)",
                              level, MPI_THREAD_MULTIPLE);
    for (int i = 0; i < ZP_CHANNELS; i++) {
        ZP_MPI(c, MPI_Comm_dup(*(MPI_Comm *)given->handle, &c->mpi[i]));
        c->mpi_made++;
        ZP_MPI(c, MPI_Comm_set_errhandler(c->mpi[i], MPI_ERRORS_RETURN));
    }
    ZP_MPI(c, MPI_Comm_rank(c->mpi[0], &c->rank));
    ZP_MPI(c, MPI_Comm_size(c->mpi[0], &c->nranks));
    ZP_TRY(zp_mpi_nodes(c, given->node_size));
    for (int p = 0; p < c->n; p++) c->rank_of[p] = c->node_rank[c->node * c->node_size + p];
    c->shares = 1;
    c->mail = (char *)malloc((size_t)c->nranks * ZP_MAIL_BYTES);
    c->landing = (char *)calloc(ZP_CHANNELS * (size_t)(1 + c->nranks), ZP_LANDING);
    c->abort_sent = (MPI_Request *)malloc((size_t)c->nranks * sizeof *c->abort_sent);
    if (c->nnodes > 1) c->wire = (float *)malloc(zp_wire_numel(c->nnodes) * sizeof *c->wire);
    if (!c->mail || !c->landing || !c->abort_sent || (c->nnodes > 1 && !c->wire))
        return zp_comm_fail(c, ZERO_ERR_MEMORY, "the buffers between nodes");
    zero_result r = zp_region_open(c, &c->board_region, sizeof(zp_board), 1, 1);
    if (r) return zp_comm_fail(c, r, "memory that the ranks of this host share");
    c->board = (zp_board *)c->board_region.base[0];
    return ZERO_OK;
}
#endif

static zero_result zp_comm_open(zp_comm *c, zp_device *device, const zero_comm *given,
                                double timeout_s) {
    c->kind = given->kind;
    c->device = device;
    c->divisor = 1;
    c->nranks = c->n = c->node_size = 1;
    c->timeout_s = timeout_s;
    if (given->kind == ZERO_COMM_SELF) {
        c->mail = (char *)malloc(ZP_MAIL_BYTES);
        return c->mail ? ZERO_OK : zp_comm_fail(c, ZERO_ERR_MEMORY, "the exchange buffer");
    }
    if (given->kind == ZERO_COMM_LOCAL) return zp_comm_open_local(c, given);
#ifdef ZERO_WITH_MPI
    if (given->kind == ZERO_COMM_MPI) return zp_comm_open_mpi(c, given);
#endif
#ifdef ZERO_WITH_NCCL
    if (given->kind == ZERO_COMM_NCCL) return zp_comm_open_nccl(c, given);
#endif
    if (given->kind == ZERO_COMM_MPI) return zp_comm_fail(c, ZERO_ERR_UNSUPPORTED, ZP_NO_MPI);
    if (given->kind == ZERO_COMM_NCCL)
        return zp_comm_fail(c, ZERO_ERR_UNSUPPORTED,
                            "built without NCCL: compile with nvcc and -DZERO_WITH_NCCL");
    return zp_failure_set(&c->failure, ZERO_ERR_ARGUMENT, "comm.kind is %d, no such kind",
                          (int)given->kind);
}

/* Windows and communicators are freed by all ranks or by none. A context that failed, or whose
   peers did, leaves them and all that MPI may still touch to the end of the process; another waits
   here for all ranks, or for the failure of one. 1: nothing may be freed. */
static int zp_comm_abandons(zp_comm *c, int broken) {
#ifdef ZERO_WITH_MPI
    MPI_Request request;
    int ended = 0, done = 0;
    const double deadline = zp_seconds() + c->timeout_s;
    if (c->kind != ZERO_COMM_MPI || !c->mpi_made || c->abandoned) return c->abandoned;
    c->abandoned = MPI_Finalized(&ended) || ended || (broken && c->board);
    if (c->abandoned || !c->board) return c->abandoned;
    /* on the channel that has no other collectives: it ends only if nobody is broken */
    c->abandoned = MPI_Ibarrier(c->mpi[ZP_PARAMETERS], &request) != MPI_SUCCESS;
    while (!c->abandoned && !done) {
        c->abandoned = MPI_Test(&request, &done, MPI_STATUS_IGNORE)
                       || (!done && (zp_mpi_aborted(c) || zp_seconds() > deadline));
        if (!done) zp_nap();
    }
    return c->abandoned;
#else
    (void)c;
    (void)broken;
    return 0;
#endif
}

static void zp_comm_close(zp_comm *c, int broken) {
    (void)broken;
#ifdef ZERO_WITH_MPI
    if (c->abandoned) return;
#endif
#ifdef ZERO_WITH_NCCL
    zp_nccl_close(c, broken);
#endif
    zp_region_close(c, &c->stage);
    if (c->board_region.kind == ZP_HELD) zp_board_close(c->board);
    zp_region_close(c, &c->board_region);
#ifdef ZERO_WITH_MPI
    free(c->node_rank);
    free(c->wire);
    free(c->landing);
    free(c->abort_sent);
    for (int i = 0; i < c->mpi_made; i++) (void)MPI_Comm_free(&c->mpi[i]);
    if (c->mpi_made == ZP_CHANNELS && c->mpi_node != MPI_COMM_NULL)
        (void)MPI_Comm_free(&c->mpi_node);
#endif
    free(c->mail);
}

/* =============================================================================================
   [SECTION] partition
   Where things lie, from the list of tensors and the number of ranks alone: no setting moves an
   element to another shard or another block of the norm. Pure; used by the plan and by the build.

     unit u:   [ tensor a | tensor b | ... | pad ]     tensors begin on lines
     shards:   |  rank 0  |  rank 1  |  ...  |         equal, whole lines
     KEEP:     one more unit, type-major: [ a: layer 0, 1, ... | b: layer 0, 1, ... | pad ]
   ============================================================================================= */

typedef struct zp_member { /* a tensor's part in a unit */
    int tensor, layer;     /* layer -1: all layers (KEEP) */
    size_t at, numel;      /* within the unit, elements */
} zp_member;

typedef struct zp_tensor {
    zero_tensor_desc desc; /* name owned */
    int first_member;      /* in zp_layout.by_tensor: one per layer, or one if KEEP */
    float lr_factor, decay_factor;
} zp_tensor;

typedef struct zp_unit {
    zp_member *member; /* [members], of zp_layout.members */
    int members;
    int uses;                    /* backward writes per pass */
    size_t numel, padded, shard; /* elements: with alignment; shard * nranks; of one rank */
    size_t content;              /* elements without alignment */
    size_t largest_tensor;
    int only_one_d;
} zp_unit;

typedef struct zp_layout {
    int units; /* of the host */
    int all;   /* with the KEEP unit, which is number `units` and may be empty */
    zp_unit *unit;
    zp_member *members; /* [nmembers] by unit, in order of announcement */
    int nmembers;
    zp_member **by_tensor; /* [nmembers]: tensor's first_member + layer */
    size_t numel, padded;
} zp_layout;

static int zp_tensor_parts(const zp_tensor *t) {
    return t->desc.flags & ZERO_KEEP ? 1 : t->desc.layers;
}

static void zp_layout_close(zp_layout *l) {
    free(l->unit);
    free(l->members);
    free(l->by_tensor);
    memset(l, 0, sizeof *l);
}

static int zp_tensor_unit(const zp_layout *l, const zp_tensor *t, int layer) {
    return t->desc.flags & ZERO_KEEP ? l->units : t->desc.unit + layer;
}

/* The order of updates, and backwards of reductions: KEEP, which a host reads before anything else,
   then as in a forward. */
static int zp_unit_nth(const zp_layout *l, int i) { return i ? i - 1 : l->units; }

static void zp_unit_add(zp_unit *u, zp_member *m, const zp_tensor *t, int tensor, int layer) {
    const zero_tensor_desc *d = &t->desc;
    m->tensor = tensor;
    m->layer = d->flags & ZERO_KEEP ? -1 : layer;
    m->numel = d->flags & ZERO_KEEP ? d->numel * (size_t)d->layers : d->numel;
    m->at = zp_round_up(u->numel, ZP_ALIGN);
    u->numel = m->at + m->numel;
    u->content += m->numel;
    u->largest_tensor = zp_max(u->largest_tensor, d->numel);
    u->only_one_d &= (d->flags & ZERO_ONE_D) != 0;
    if (!(d->flags & ZERO_KEEP) && d->uses > u->uses) u->uses = d->uses;
}

static void zp_unit_cut(zp_unit *u, int nranks) {
    u->shard = zp_round_up((u->numel + (size_t)nranks - 1) / (size_t)nranks, ZP_ALIGN);
    u->padded = u->shard * (size_t)nranks;
}

/* Counts, then fills: members of a unit lie together. */
static zero_result zp_layout_open(zp_layout *l, zp_tensor *tensors, int n, int nranks) {
    memset(l, 0, sizeof *l);
    for (int t = 0; t < n; t++) {
        const zero_tensor_desc *d = &tensors[t].desc;
        if (d->unit + d->layers > l->units) l->units = d->unit + d->layers;
        tensors[t].first_member = l->nmembers;
        l->nmembers += zp_tensor_parts(&tensors[t]);
    }
    l->all = l->units + 1;
    l->unit = (zp_unit *)calloc((size_t)l->all, sizeof *l->unit);
    l->members = (zp_member *)calloc((size_t)l->nmembers + 1, sizeof *l->members);
    l->by_tensor = (zp_member **)calloc((size_t)l->nmembers + 1, sizeof(zp_member *));
    if (!l->unit || !l->members || !l->by_tensor) {
        zp_layout_close(l);
        return ZERO_ERR_MEMORY;
    }
    for (int t = 0; t < n; t++)
        for (int i = 0; i < zp_tensor_parts(&tensors[t]); i++)
            l->unit[zp_tensor_unit(l, &tensors[t], i)].members++;
    for (int u = 0, at = 0; u < l->all; at += l->unit[u++].members) {
        l->unit[u].member = l->members + at;
        l->unit[u].only_one_d = l->unit[u].uses = 1;
    }
    for (int u = 0; u < l->all; u++) l->unit[u].members = 0; /* counted again while filling */
    for (int t = 0; t < n; t++)
        for (int i = 0; i < zp_tensor_parts(&tensors[t]); i++) {
            zp_unit *u = &l->unit[zp_tensor_unit(l, &tensors[t], i)];
            zp_member *m = &u->member[u->members++];
            zp_unit_add(u, m, &tensors[t], t, i);
            l->by_tensor[tensors[t].first_member + i] = m;
        }
    for (int u = 0; u < l->all; u++) {
        zp_unit_cut(&l->unit[u], nranks);
        l->numel += l->unit[u].content;
        l->padded += l->unit[u].padded;
    }
    return ZERO_OK;
}

/* =============================================================================================
   [SECTION] policies
   A stage is data: what is sharded. Everything below asks these fields, never the stage.
   ============================================================================================= */

typedef struct zp_policy {
    int shard_optimizer, shard_gradients, shard_parameters;
    zero_accumulation accumulation; /* its default */
} zp_policy;

static const zp_policy zp_policies[4] = {
    {0, 0, 0, ZERO_ACCUMULATE_LOCAL},
    {1, 0, 0, ZERO_ACCUMULATE_LOCAL},
    {1, 1, 0, ZERO_ACCUMULATE_SHARDED},
    {1, 1, 1, ZERO_ACCUMULATE_SHARDED},
};

/* What the stage and the settings mean for one unit. What there is of gradients and of parameters
   is an array of two, here and below, by the channel that carries them. */
typedef struct zp_place {
    int whole[2];          /* memory for the unit alone, for as long as the context lives */
    int buffer[2];         /* else its own buffer, or -1: takes turns in the shared ones */
    size_t offset[2];      /* bytes in the region: unit if whole, else shard of the parameters */
    size_t shard_at;       /* bytes in the gradient region: reduced shard */
    size_t state_at;       /* elements in every state array, and in master */
    size_t sum_at;         /* elements in sums */
    int first_span, spans; /* in the list of what this rank updates */
    int gathers;           /* planned per step */
} zp_place;

/* =============================================================================================
   [SECTION] schedule
   Units that are not resident take turns in buffers. A unit of a pass is used once per direction;
   one that is used more often (tied embeddings), or is much larger than the others, has a buffer
   of its own and keeps its value until parameters change. The order of begin hooks in the last
   pass says what is gathered next. Pure: the plan runs the same functions to count gathers.
   ============================================================================================= */

typedef struct zp_buffer {
    size_t at;         /* bytes in its region */
    int unit;          /* whose values it holds, or -1 */
    int own;           /* belongs to one unit */
    int open;          /* begun and not ended */
    uint64_t used;     /* clock of the last begin, end or gather */
    zp_event released; /* parameters: the last unit that had it has been computed with */
} zp_buffer;

typedef struct zp_pool {
    zp_buffer *buffer;
    int n;
    uint64_t clock;
    size_t bytes; /* of its region: what lies alone, then the buffers */
} zp_pool;

typedef struct zp_trace { /* units in order of their outermost begin with parameters */
    int *unit;
    int n, at, cap;
} zp_trace;

static int zp_pool_find(const zp_pool *p, int unit) {
    for (int b = 0; b < p->n; b++)
        if (p->buffer[b].unit == unit) return b;
    return -1;
}

/* The shared buffer that was used longest ago, among those that are not open and whose unit is not
   wanted soon; -1: there is none. */
static int zp_pool_oldest(const zp_pool *p, const int *soon, int nsoon) {
    int best = -1;
    for (int b = 0; b < p->n; b++) {
        const zp_buffer *x = &p->buffer[b];
        int wanted = 0;
        if (x->own || x->open) continue;
        for (int i = 0; i < nsoon; i++) wanted |= x->unit >= 0 && soon[i] == x->unit;
        if (!wanted && (best < 0 || x->used < p->buffer[best].used)) best = b;
    }
    return best;
}

static void zp_pool_forget(zp_pool *p) {
    for (int b = 0; b < p->n; b++) p->buffer[b].unit = -1;
}

/* Gives `unit` a buffer. 1: the buffer must be filled; 0: it holds the unit; -1: none is free. */
static int zp_pool_take(zp_pool *p, int unit, int own, const int *soon, int nsoon) {
    int b = zp_pool_find(p, unit);
    const int held = b >= 0;
    if (!held) b = own >= 0 ? own : zp_pool_oldest(p, soon, nsoon);
    if (b < 0) return -1;
    p->buffer[b].unit = unit;
    p->buffer[b].used = ++p->clock;
    return !held;
}

/* Notes that `unit` comes now. A host in another order than before edits what was expected. */
static void zp_trace_visit(zp_trace *t, int unit) {
    int next = t->at;
    while (next < t->n && t->unit[next] != unit) next++;
    if (next == t->n) { /* not expected: put it in */
        if (t->n == t->cap) return;
        memmove(t->unit + t->at + 1, t->unit + t->at, (size_t)(t->n - t->at) * sizeof *t->unit);
        t->unit[t->at] = unit;
        t->n++;
    } else { /* expected now or later: take out what it skipped */
        memmove(t->unit + t->at, t->unit + next, (size_t)(t->n - next) * sizeof *t->unit);
        t->n -= next - t->at;
    }
    t->at++;
}

/* The next distinct units, at most max; past the end of the pass only if `wraps`. */
static int zp_trace_ahead(const zp_trace *t, int wraps, int max, int *soon) {
    int found = 0;
    for (int i = t->at; i < (wraps ? t->at + t->n : t->n) && found < max; i++) {
        const int unit = t->unit[i % t->n];
        int known = 0;
        for (int k = 0; k < found; k++) known |= soon[k] == unit;
        if (!known) soon[found++] = unit;
    }
    return found;
}

/* =============================================================================================
   [SECTION] context
   Everything that one rank owns.
   ============================================================================================= */

#define ZP_PREFETCH_MAX 64

typedef enum zp_phase {
    ZP_NEW = 1,
    ZP_IDLE = 2,
    ZP_IN_PASS = 4,
    ZP_BETWEEN = 8,
    ZP_REDUCED = 16,
    ZP_OPEN = 32,
    ZP_BUILT = ZP_IDLE | ZP_IN_PASS | ZP_BETWEEN | ZP_REDUCED | ZP_OPEN,
    ZP_ANY = ZP_NEW | ZP_BUILT
} zp_phase;
/* NEW -build-> IDLE -pass_begin-> IN_PASS -pass_end-> BETWEEN (more micro-steps, or reduce due)
   -reduce-> REDUCED -step-> IDLE. Evaluation: IDLE, BETWEEN or REDUCED -> IN_PASS -> back.
   Checkpoints: IDLE -state_begin-> OPEN -state_end-> IDLE. */

typedef struct zp_live { /* a unit while training */
    int parameter_opens, forward_opens, backward_opens;
    uint64_t with_parameters; /* nested backwards, one bit each, the innermost lowest */
    int buffer[2];            /* -1: none now */
    int writes;               /* outermost backwards that ended in this micro-step */
    int touched; /* its gradient memory is cleared and belongs to this micro-step (step: LOCAL) */
    int pending; /* in the bucket that is not yet issued */
    zp_event written, gathered, reduction, updated;
} zp_live;

typedef struct zp_slot {
    int tensor, layer;
    void **place[2];
} zp_slot;

#if ZERO_CHECK
/* A tensor's copy for the host. The space around it is as large as all its layers. */
typedef struct zp_shadow {
    char *map, *data;
    size_t mapped, guard, body, bytes;
} zp_shadow;

typedef struct zp_checks {
    zp_shadow *shadow[2]; /* by member */
    uint64_t *seal;       /* by member */
    int sealed;
    int *forwards;  /* by unit: of this pass, before its first backward */
    int backwards;  /* of this pass, so far */
    uint32_t *hook; /* of this pass: which one, and its unit */
    int nhooks, hooks_cap;
} zp_checks;
#endif

struct zero_ctx {
    zero_config cfg; /* resolved */
    zp_policy policy;
    zp_comm comm;
    zp_device device;
    zp_stream compute, stream[2]; /* stream[ZP_GRADIENTS], stream[ZP_PARAMETERS] */

    zp_tensor *tensors;
    int ntensors, tensors_cap;
    zp_layout layout;
    zp_place *place; /* [layout.all] */
    zp_live *live;   /* [layout.all] */
    zp_slot *slots;
    int nslots, slots_cap;

    zero_type type[2]; /* of the elements */
    zp_region region[2];
    zp_pool pool[2];                   /* buffers in the regions */
    size_t shared_numel, bucket_numel; /* of a buffer that units take turns in; resolved */
    zp_trace trace[2];                 /* ZERO_TRAIN, ZERO_EVAL */
    int *bucket;                       /* units written and not yet issued */
    int nbucket;
    size_t bucket_filled;

    const zp_rule *rule;
    size_t state_numel, sums_numel, nspans;
    char *arena; /* [private_bytes] device memory that no peer sees: what follows */
    size_t private_bytes;
    float *state[ZP_STATES], *master; /* master: NULL where parameters are their own */
    float *sums;                /* 16-bit gradients of several micro-steps: their f32 accumulator */
    double *partial;            /* [largest shard / ZP_NORM_BLOCK] */
    double *verdict, *verdicts; /* [ZP_VERDICT], [nranks * ZP_VERDICT] */
    size_t verdict_at;          /* of the verdict, in the gradient region */
    zp_control *control;
    zp_span *spans;        /* [nspans] what this rank updates, by unit */
    zero_range *ranges[2]; /* [nranges] of the state: to save, to go on from */
    int nranges[2], ranges_cap[2];
    zp_control *pinned; /* where the device writes its control to, for the host */
    zp_control report;  /* the host's copy */
    zp_event agreed, reported;
    zero_plan plan;

    zp_phase phase, resume; /* resume: phase to return to after an evaluation */
    zero_pass pass;
    int micro, micro_steps;
    int sharded;     /* micro-steps accumulate SHARDED: each is reduced */
    int collects;    /* they accumulate LOCAL, from 16 bit: each is added to `sums` */
    int scale_asked; /* zero_loss_scale was called for the coming step */
    int stepped;     /* a step was made: a report exists */
#if ZERO_CHECK
    zp_checks checks;
#endif
    int mapped; /* parameters lie whole in every rank's view: each one's shards, side by side */
    int looked; /* peers may still be reading mapped parameters, after the last reduction */
    int bound;  /* zero_bind was called */
    double hooks_s;
    zero_result dead;
    const char *call; /* the public function that runs */
    char text[ZP_TEXT_BYTES + 128];
};

/* An error of this call: `call, rank r of n: sentence`. */
__attribute__((format(printf, 3, 4))) static zero_result zp_fail(zero_ctx *z, zero_result result,
                                                                 const char *format, ...) {
    va_list list;
    const int n = snprintf(z->text, sizeof z->text, "%s, rank %d of %d: ", z->call, z->comm.rank,
                           z->comm.nranks);
    va_start(list, format);
    (void)vsnprintf(z->text + n, sizeof z->text - (size_t)n, format, list);
    va_end(list);
    if (z->cfg.log) z->cfg.log(z->cfg.log_user, ZERO_LOG_ERROR, z->text);
    return result;
}

/* A collective that failed makes the context dead. */
static zero_result zp_check(zero_ctx *z, zero_result result) {
    const zero_result failed = zp_failure_result(&z->comm.failure);
    if (z->dead || (!failed && !result)) return result ? result : z->dead;
    z->dead = failed ? failed : result;
    return zp_fail(z, z->dead, "%s",
                   failed              ? z->comm.failure.text
                   : z->device.text[0] ? z->device.text
                                       : zero_result_string(result));
}

#define ZP_DO(z, call)                                                                             \
    do {                                                                                           \
        const zero_result zp_r = zp_check(z, call);                                                \
        if (zp_r) return zp_r;                                                                     \
    } while (0)

/* Every public function begins here: its name, the phases that it may be called in, and what is
   said in others. */
static zero_result zp_enter(zero_ctx *z, const char *call, int phases, const char *otherwise) {
    if (!z) return ZERO_ERR_ARGUMENT;
    z->call = call;
    ZP_TRY(zp_check(z, ZERO_OK));
    if (zp_device_check(&z->device)) {
        (void)zp_fail(z, ZERO_ERR_STATE, "%s", z->device.text);
        z->device.text[0] = 0; /* nothing is lost: the host may turn back */
        return ZERO_ERR_STATE;
    }
    return z->phase & phases ? ZERO_OK : zp_fail(z, ZERO_ERR_STATE, "%s", otherwise);
}
#define ZP_ENTER(z, call, phases, otherwise) ZP_TRY(zp_enter(z, call, phases, otherwise))

/* A list with room for one more element; NULL: there is no memory, and the list is as it was. */
static void *zp_list_grow(void *list, int n, int *cap, size_t bytes) {
    if (n < *cap) return list;
    const int more = *cap ? 2 * *cap : 16;
    list = realloc(list, (size_t)more * bytes);
    if (list) *cap = more;
    return list;
}

/* NULL: there is none. */
static zp_tensor *zp_tensor_find(const zero_ctx *z, const char *name) {
    for (int t = 0; t < z->ntensors && name; t++)
        if (!strcmp(z->tensors[t].desc.name, name)) return &z->tensors[t];
    return NULL;
}
static zero_result zp_tensor_named(zero_ctx *z, const char *name, zp_tensor **t) {
    *t = zp_tensor_find(z, name);
    if (*t) return ZERO_OK;
    return zp_fail(z, ZERO_ERR_ARGUMENT, "no tensor is named %s", name ? name : "NULL");
}

static char *zp_memory(const zero_ctx *z, zp_channel side, size_t offset) {
    return z->region[side].base[z->comm.me] + offset;
}

/* Where all of unit u's parameters or gradients lie; NULL: nowhere now. */
static char *zp_unit_memory(const zero_ctx *z, zp_channel side, int u) {
    const zp_place *p = &z->place[u];
    const int b = p->buffer[side] >= 0 ? p->buffer[side] : z->live[u].buffer[side];
    if (p->whole[side]) return zp_memory(z, side, p->offset[side]);
    return b < 0 ? NULL : zp_memory(z, side, z->pool[side].buffer[b].at);
}

/* The part of unit u that this rank updates: where it begins, and its elements. */
static size_t zp_own_first(const zero_ctx *z, int u) {
    return z->policy.shard_optimizer ? (size_t)z->comm.rank * z->layout.unit[u].shard : 0;
}
static size_t zp_own_numel(const zero_ctx *z, int u) {
    return z->policy.shard_optimizer ? z->layout.unit[u].shard : z->layout.unit[u].padded;
}

/* Where element e of unit u lies in this rank's memory; e must be its own unless whole. */
static char *zp_parameter(const zero_ctx *z, int u, size_t e) {
    const zp_place *p = &z->place[u];
    const size_t first =
        p->whole[ZP_PARAMETERS] ? 0 : (size_t)z->comm.rank * z->layout.unit[u].shard;
    return zp_memory(z, ZP_PARAMETERS,
                     p->offset[ZP_PARAMETERS] + (e - first) * zp_bytes(z->cfg.type));
}
/* The reduced gradient from element e of unit u on; e as above, whole only at stage 0. */
static char *zp_gradient(const zero_ctx *z, int u, size_t e) {
    const zp_place *p = &z->place[u];
    return zp_memory(z, ZP_GRADIENTS,
                     (z->policy.shard_optimizer ? p->shard_at : p->offset[ZP_GRADIENTS])
                         + (e - zp_own_first(z, u)) * zp_bytes(z->type[ZP_GRADIENTS]));
}

/* =============================================================================================
   [SECTION] plan
   Memory and traffic from layout and configuration alone. The build allocates exactly this.
   ============================================================================================= */

static int zp_compare_size(const void *a, const void *b) {
    const size_t x = *(const size_t *)a, y = *(const size_t *)b;
    return (x > y) - (x < y);
}

/* Parameter buffers that units take turns in, at most. */
static size_t zp_plan_gathered(const zero_ctx *z) {
    return z->policy.shard_parameters && !z->mapped ? (size_t)z->cfg.prefetch + 2 : 0;
}

/* Elements of a shared buffer: of all choices the one that needs the least memory. Larger units,
   and those used more often, have a buffer of their own. */
static zero_result zp_plan_shared(zero_ctx *z) {
    const zp_layout *l = &z->layout;
    const size_t gathered = zp_plan_gathered(z);
    const size_t of_p = gathered ? zp_bytes(z->cfg.type) : 0,
                 of_g = zp_bytes(z->type[ZP_GRADIENTS]);
    int n = 0;
    size_t larger = 0, least = SIZE_MAX;
    size_t *sizes = (size_t *)calloc((size_t)l->units + 1, sizeof *sizes);
    if (!sizes) return ZERO_ERR_MEMORY;
    z->shared_numel = 0;
    for (int u = 0; u < l->units; u++)
        if (l->unit[u].uses == 1 && l->unit[u].numel) sizes[n++] = l->unit[u].padded;
    qsort(sizes, (size_t)n, sizeof *sizes, zp_compare_size);
    for (int i = 0; i < n; i++) larger += sizes[i];
    for (int i = 0; i < n; i++) {
        const size_t turns = (size_t)i + 1;
        const size_t buffers = zp_min(turns, gathered) * of_p + zp_min(turns, 3) * of_g;
        larger -= sizes[i]; /* these lie alone, with gradients and with parameters */
        const size_t bytes = (of_p + of_g) * larger + buffers * sizes[i];
        if (bytes > least) continue;
        least = bytes;
        z->shared_numel = sizes[i];
    }
    free(sizes);
    return ZERO_OK;
}

static int zp_unit_stays(const zero_ctx *z, int u) {
    const zp_unit *x = &z->layout.unit[u];
    const int64_t limit = z->cfg.persistence_numel;
    if (!z->policy.shard_parameters || u == z->layout.units || !x->numel) return 1;
    if (limit == 0) return x->only_one_d;
    return limit > 0 && x->largest_tensor <= (uint64_t)limit;
}

/* Elements of unit u that this rank adds up outside its gradient memory. */
static size_t zp_plan_sums(const zero_ctx *z, int u) {
    if (z->type[ZP_GRADIENTS] == ZERO_F32 || z->cfg.micro_steps == 1) return 0;
    return z->collects ? z->layout.unit[u].padded : z->layout.unit[u].shard;
}

static int zp_plan_master(const zero_ctx *z) {
    return z->cfg.type != ZERO_F32 && !z->cfg.no_master;
}

static int zp_pool_add(zp_pool *p, size_t bytes, int own) {
    zp_buffer *b = &p->buffer[p->n];
    b->at = p->bytes;
    b->unit = -1;
    b->own = own;
    p->bytes += bytes;
    return p->n++;
}

/* Places every unit in the two regions. */
static void zp_plan_places(zero_ctx *z) {
    const zp_layout *l = &z->layout;
    zero_plan *plan = &z->plan;
    const int turns = z->sharded || z->collects;
    const int whole_gradients = !turns || !z->policy.shard_gradients;
    /* the reduced shard lies inside the whole gradient, unless the next micro-step writes there */
    const int shards = z->type[ZP_GRADIENTS] == ZERO_F32 ? turns : !whole_gradients;
    const size_t of_p = zp_bytes(z->cfg.type), of_g = zp_bytes(z->type[ZP_GRADIENTS]);
    const size_t all[2] = {l->padded, l->padded / (size_t)z->comm.nranks}; /* whole, sharded */
    size_t p = 0, g = 0;
    z->state_numel = z->sums_numel = 0;
    for (int u = 0; u < l->all; u++) {
        const zp_unit *x = &l->unit[u];
        zp_place *at = &z->place[u];
        const int stays = zp_unit_stays(z, u);
        at->whole[ZP_PARAMETERS] = z->mapped || stays;
        at->offset[ZP_PARAMETERS] = p;
        p += (at->whole[ZP_PARAMETERS] ? x->padded : x->shard) * of_p;
        if (z->policy.shard_parameters && stays) plan->kept_bytes += x->padded * of_p;
        at->whole[ZP_GRADIENTS] = whole_gradients;
        at->offset[ZP_GRADIENTS] = g;
        at->shard_at = g + (size_t)z->comm.rank * x->shard * of_g;
        if (whole_gradients) g += x->padded * of_g;
        if (shards) {
            at->shard_at = g;
            g += x->shard * of_g;
        }
        at->state_at = z->state_numel;
        z->state_numel += zp_own_numel(z, u);
        at->sum_at = z->sums_numel;
        z->sums_numel += zp_plan_sums(z, u);
    }
    plan->param_bytes = all[z->policy.shard_parameters] * of_p;
    plan->grad_bytes = all[z->policy.shard_gradients] * of_g;
    plan->optimizer_bytes =
        (size_t)(z->rule->states + zp_plan_master(z)) * z->state_numel * sizeof(float);
    plan->accumulator_bytes = g - plan->grad_bytes + z->sums_numel * sizeof(float);
    plan->buffer_bytes = plan->accumulator_bytes + (z->mapped ? 0 : p - plan->param_bytes);
    z->pool[ZP_PARAMETERS].bytes = p;
    z->pool[ZP_GRADIENTS].bytes = g;
}

/* What passes through in pieces: broadcasts, and sums between nodes. */
static size_t zp_plan_staging(const zero_ctx *z) {
    const size_t wire =
        z->comm.kind == ZERO_COMM_MPI ? zp_wire_numel(z->comm.nranks / z->comm.n) : 0;
    return (ZP_STAGE_NUMEL + wire) * sizeof(float);
}

/* Gives buffers to units that do not lie anywhere whole. */
static void zp_plan_buffers(zero_ctx *z) {
    const size_t shared = z->shared_numel, bucket_units = shared ? z->bucket_numel / shared : 0;
    const size_t of[2] = {zp_bytes(z->type[0]), zp_bytes(z->type[1])};
    const size_t most[2] = {z->place[0].whole[ZP_GRADIENTS] ? 0 : bucket_units + 2,
                            zp_plan_gathered(z)};
    size_t take_turns = 0, own_bytes = 0, shared_bytes = 0;
    for (int u = 0; u < z->layout.all; u++) {
        const zp_unit *x = &z->layout.unit[u];
        zp_place *at = &z->place[u];
        const int own = u == z->layout.units || x->uses > 1 || x->padded > shared;
        take_turns += x->numel && !own;
        for (int side = 0; side < 2; side++) {
            const int adds = x->numel && own && !at->whole[side];
            at->buffer[side] = adds ? zp_pool_add(&z->pool[side], x->padded * of[side], 1) : -1;
            own_bytes += adds ? x->padded * of[side] : 0;
        }
    }
    for (int side = 0; side < 2; side++)
        for (size_t i = 0; i < zp_min(take_turns, most[side]); i++) {
            (void)zp_pool_add(&z->pool[side], shared * of[side], 0);
            shared_bytes += shared * of[side];
        }
    z->plan.buffer_bytes += own_bytes + shared_bytes + zp_plan_staging(z);
    z->plan.buffer_ceiling_bytes = own_bytes + (z->mapped ? 0 : z->plan.kept_bytes)
                                   + (size_t)(z->cfg.prefetch + 2) * (of[0] + of[1]) * shared
                                   + z->bucket_numel * of[ZP_GRADIENTS] + zp_plan_staging(z);
}

/* The order that a model of layers has: up, the units used again, down, and those again. */
static void zp_trace_natural(const zero_ctx *z, zp_trace *t, int backward) {
    const zp_unit *unit = z->layout.unit;
    const int n = z->layout.units, down = backward ? n : 0;
    t->n = t->at = 0;
    for (int u = 0; u < n; u++) zp_trace_visit(t, u);
    for (int u = 0; u < n; u++)
        if (unit[u].uses > 1) zp_trace_visit(t, u);
    for (int u = down - 1; u >= 0; u--)
        if (unit[u].uses > 1) zp_trace_visit(t, u);
    for (int u = down - 1; u >= 0; u--)
        if (unit[u].uses == 1) zp_trace_visit(t, u);
    t->at = 0;
}

/* Brings `unit` and the next ones into buffers; what must be gathered comes back in `fill`. */
static int zp_schedule(zero_ctx *z, const zp_trace *t, int unit, int wraps, int *fill) {
    zp_pool *pool = &z->pool[ZP_PARAMETERS];
    int soon[ZP_PREFETCH_MAX + 1], n = 0;
    soon[0] = unit; /* whose buffer none of the others takes */
    const int ahead = 1 + zp_trace_ahead(t, wraps, z->cfg.prefetch, soon + 1);
    for (int i = 0; i < ahead; i++) {
        const int own = z->place[soon[i]].buffer[ZP_PARAMETERS];
        if (z->place[soon[i]].whole[ZP_PARAMETERS] || !z->layout.unit[soon[i]].numel) continue;
        int got = zp_pool_take(pool, soon[i], own, soon, ahead);
        if (got < 0 && i == 0) got = zp_pool_take(pool, unit, own, NULL, 0); /* now before soon */
        if (got < 0 && i == 0) return -1;
        if (got > 0) fill[n++] = soon[i];
    }
    return n;
}

/* Gathers of every unit in one step of the natural order. */
static void zp_plan_gathers(zero_ctx *z) {
    int fill[ZP_PREFETCH_MAX + 1];
    zp_trace *t = &z->trace[ZERO_TRAIN];
    for (int u = 0; u < z->layout.all; u++)
        z->place[u].gathers = z->place[u].whole[ZP_PARAMETERS] && z->layout.unit[u].numel ? 1 : 0;
    for (int micro = 0; micro < z->cfg.micro_steps; micro++) {
        zp_trace_natural(z, t, 1);
        while (t->at < t->n) {
            const int unit = t->unit[t->at++];
            const int n = zp_schedule(z, t, unit, micro + 1 < z->cfg.micro_steps, fill);
            for (int i = 0; i < n; i++) z->place[fill[i]].gathers++;
        }
    }
    t->at = 0;
    zp_pool_forget(&z->pool[ZP_PARAMETERS]);
}

static size_t zp_formula_bytes(const zero_ctx *z) {
    const size_t p = z->layout.numel, n = (size_t)z->comm.nranks, share = (p + n - 1) / n;
    return (z->policy.shard_parameters ? share : p) * zp_bytes(z->cfg.type)
           + (z->policy.shard_gradients ? share : p) * zp_bytes(z->type[ZP_GRADIENTS])
           + (z->policy.shard_optimizer ? share : p) * sizeof(float)
                 * (size_t)(z->rule->states + zp_plan_master(z));
}

static int zp_plan_reductions(const zero_ctx *z, int u) {
    if (!z->layout.unit[u].numel) return 0;
    return z->sharded ? z->cfg.micro_steps : 1;
}

/* Bytes that this rank sends for unit u in a step: at stage 0 gradients are gathered. */
static size_t zp_plan_sent(const zero_ctx *z, int u) {
    const size_t shard = z->layout.unit[u].shard;
    const zero_type gathered = z->policy.shard_optimizer ? z->cfg.type : z->type[ZP_GRADIENTS];
    return (size_t)z->place[u].gathers * zp_gather_bytes(&z->comm, shard, gathered)
           + (size_t)zp_plan_reductions(z, u)
                 * zp_reduce_bytes(&z->comm, shard, z->type[ZP_GRADIENTS]);
}

static void zp_plan_traffic(zero_ctx *z) {
    double formula = 0;
    for (int u = 0; u < z->layout.all; u++) {
        const zp_unit *x = &z->layout.unit[u];
        const size_t sent = zp_plan_sent(z, u);
        z->plan.sent_bytes += sent;
        if (x->numel) formula += (double)sent * (double)x->content / (double)x->padded;
    }
    z->plan.formula_sent_bytes = (size_t)(formula + 0.5);
}

static void zp_plan_close(zero_ctx *z) {
    free(z->place);
    z->place = NULL;
    for (int i = 0; i < 2; i++) {
        free(z->pool[i].buffer);
        free(z->trace[i].unit);
        memset(&z->pool[i], 0, sizeof z->pool[i]);
        memset(&z->trace[i], 0, sizeof z->trace[i]);
    }
    zp_layout_close(&z->layout);
}

static zero_result zp_plan_memory(zero_ctx *z) {
    const size_t units = (size_t)z->layout.all; /* each with a buffer of its own at most */
    z->place = (zp_place *)calloc(units, sizeof *z->place);
    int made = z->place != NULL;
    for (int i = 0; i < 2; i++) {
        z->pool[i].buffer = (zp_buffer *)calloc(units, sizeof *z->pool[i].buffer);
        z->trace[i].cap = (int)(4 * units + 16);
        z->trace[i].unit = (int *)calloc((size_t)z->trace[i].cap, sizeof *z->trace[i].unit);
        made &= z->pool[i].buffer && z->trace[i].unit;
    }
    return made ? ZERO_OK : ZERO_ERR_MEMORY;
}

static zero_result zp_plan_bucket(zero_ctx *z) {
    z->bucket_numel = z->cfg.bucket_numel ? z->cfg.bucket_numel : z->shared_numel;
    if (z->bucket_numel >= z->shared_numel) return ZERO_OK;
    return zp_fail(z, ZERO_ERR_ARGUMENT,
                   "bucket_numel is %zu, the largest unit that shares a buffer has "
                   "%zu elements: give at least that, or 0",
                   z->cfg.bucket_numel, z->shared_numel);
}

/* Fills z->layout, place, pools, traces, gathers and plan. */
static zero_result zp_plan_make(zero_ctx *z) {
    zp_plan_close(z);
    memset(&z->plan, 0, sizeof z->plan);
    zero_result r = zp_layout_open(&z->layout, z->tensors, z->ntensors, z->comm.nranks);
    if (!r) r = zp_plan_memory(z);
    if (!r) r = zp_plan_shared(z);
    if (r) return zp_fail(z, r, "lists of %d tensors", z->ntensors);
    ZP_TRY(zp_plan_bucket(z));
    zp_plan_places(z);
    zp_plan_buffers(z);
    zp_plan_gathers(z);
    zp_plan_traffic(z);
    zp_trace_natural(z, &z->trace[ZERO_EVAL], 0);
    z->plan.numel = z->layout.numel;
    z->plan.padded_numel = z->layout.padded;
    z->plan.formula_bytes = zp_formula_bytes(z);
    z->plan.units = z->layout.units + (z->layout.unit[z->layout.units].members > 0);
    z->plan.nranks = z->comm.nranks;
    return ZERO_OK;
}

/* =============================================================================================
   [SECTION] checks
   A build with -DZERO_CHECK=1 tells misuse at the call, or faults at the place, and costs what it
   costs. In others these functions do nothing.
     shadows   What a begin hook hands out are copies of the unit's tensors, each between pages that
               nobody may touch, and out of reach itself from the end hook on: a pointer that was
               kept, and a tensor of another layer that is not KEEP, fault where they are used.
               Parameters can be read only. On the GPU both are NaN instead.
     seals     Parameters are hashed where the plugin has written them last, and again when a pass
               begins.
     hooks     The ranks compare the hooks that they have called, at the end of a pass.
   ============================================================================================= */

#if ZERO_CHECK

enum { ZP_HOOK_FORWARD = 0, ZP_HOOK_FORWARD_END, ZP_HOOK_BACKWARD, ZP_HOOK_BACKWARD_END };
static const char *const zp_hook_names[] = {"forward_begin", "forward_end", "backward_begin",
                                            "backward_end"};

#ifdef __CUDACC__
static zero_result zp_shadow_make(zp_device *d, zp_shadow *s) {
    s->map = (char *)zp_device_alloc(d, s->mapped);
    s->data = s->map + s->guard;
    return s->map ? ZERO_OK : ZERO_ERR_MEMORY;
}
static void zp_shadow_free(zp_shadow *s) { zp_device_free(s->map); }
static zero_result zp_shadow_lock(zp_stream *s, zp_shadow *x) {
    ZP_CUDA(s->device, cudaMemsetAsync(x->map, 0xFF, x->mapped, s->cuda)); /* NaN in every type */
    return ZERO_OK;
}
static zero_result zp_shadow_unlock(zp_shadow *x, int writes) {
    (void)x;
    (void)writes;
    return ZERO_OK;
}
#else
static zero_result zp_shadow_make(zp_device *d, zp_shadow *s) {
    (void)d;
    void *p = mmap(NULL, s->mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return ZERO_ERR_MEMORY;
    s->map = (char *)p;
    s->data = s->map + s->guard + s->body - zp_round_up(s->bytes, 64); /* its end at the guard */
    return ZERO_OK;
}
static void zp_shadow_free(zp_shadow *s) {
    if (s->map) (void)munmap(s->map, s->mapped);
}
static zero_result zp_shadow_lock(zp_stream *s, zp_shadow *x) {
    (void)s;
    (void)madvise(x->map + x->guard, x->body, MADV_DONTNEED);
    return mprotect(x->map + x->guard, x->body, PROT_NONE) ? ZERO_ERR_MEMORY : ZERO_OK;
}
static zero_result zp_shadow_unlock(zp_shadow *x, int writes) {
    const int how = writes ? PROT_READ | PROT_WRITE : PROT_READ;
    if (mprotect(x->map + x->guard, x->body, how)) return ZERO_ERR_MEMORY;
    if (writes) memset(x->data + x->bytes, 0xFF, zp_round_up(x->bytes, 64) - x->bytes); /* NaN */
    return ZERO_OK;
}
#endif

static zero_result zp_checks_shadow(zero_ctx *z, int m) {
    const zp_member *x = &z->layout.members[m];
    const size_t layers = (size_t)z->tensors[x->tensor].desc.layers;
    for (int side = 0; side < 2 && x->layer >= 0; side++) {
        zp_shadow *s = &z->checks.shadow[side][m];
        s->bytes = x->numel * zp_bytes(z->type[side]);
        s->body = zp_round_up(s->bytes, 4096);
        s->guard = zp_round_up(layers * s->bytes, 4096);
        s->mapped = 2 * s->guard + s->body;
        ZP_TRY(zp_shadow_make(&z->device, s));
        ZP_TRY(zp_shadow_lock(&z->compute, s));
    }
    return ZERO_OK;
}

static zero_result zp_checks_open(zero_ctx *z) {
    zp_checks *c = &z->checks;
    const size_t n = (size_t)z->layout.nmembers;
    c->shadow[0] = (zp_shadow *)calloc(n, sizeof(zp_shadow));
    c->shadow[1] = (zp_shadow *)calloc(n, sizeof(zp_shadow));
    c->seal = (uint64_t *)calloc(n, sizeof *c->seal);
    c->forwards = (int *)calloc((size_t)z->layout.all, sizeof *c->forwards);
    if (!c->shadow[0] || !c->shadow[1] || !c->seal || !c->forwards) return ZERO_ERR_MEMORY;
    for (size_t m = 0; m < n; m++) ZP_TRY(zp_checks_shadow(z, (int)m));
    return ZERO_OK;
}

static void zp_checks_close(zero_ctx *z) {
    zp_checks *c = &z->checks;
    for (int side = 0; side < 2; side++) {
        for (int m = 0; c->shadow[side] && m < z->layout.nmembers; m++)
            zp_shadow_free(&c->shadow[side][m]);
        free(c->shadow[side]);
    }
    free(c->seal);
    free(c->forwards);
    free(c->hook);
}

/* Copies a unit to its shadows, or gradients back from there. */
static zero_result zp_checks_turn(zero_ctx *z, int u, zp_channel side, int opens) {
    char *memory = zp_unit_memory(z, side, u);
    const zp_unit *x = &z->layout.unit[u];
    for (int i = 0; i < x->members; i++) {
        const zp_member *m = &x->member[i];
        zp_shadow *s = &z->checks.shadow[side][m - z->layout.members];
        char *at = memory + m->at * zp_bytes(z->type[side]);
        if (opens) {
            ZP_DO(z, zp_shadow_unlock(s, 1));
            ZP_DO(z, zp_copy(&z->compute, s->data, at, s->bytes));
            if (side == ZP_PARAMETERS) ZP_DO(z, zp_shadow_unlock(s, 0));
        } else {
            if (side == ZP_GRADIENTS) ZP_DO(z, zp_copy(&z->compute, at, s->data, s->bytes));
            ZP_DO(z, zp_shadow_lock(&z->compute, s));
        }
    }
    return ZERO_OK;
}

static uint64_t zp_checks_fold(uint64_t hash, const char *bytes, size_t n) {
    for (size_t i = 0; i < n; i += 2) {
        uint16_t two;
        memcpy(&two, bytes + i, sizeof two);
        hash = zp_hash(hash, two);
    }
    return hash;
}

/* The part of a member that this rank keeps, hashed. */
static zero_result zp_checks_hash(zero_ctx *z, int u, const zp_member *m, uint64_t *hash) {
    const zp_unit *x = &z->layout.unit[u];
    const int whole = z->place[u].whole[ZP_PARAMETERS] && !z->mapped;
    const size_t first = whole ? 0 : (size_t)z->comm.rank * x->shard;
    const size_t begin = zp_max(first, m->at);
    const size_t end = zp_min(whole ? x->padded : first + x->shard, m->at + m->numel);
    char *stage = z->comm.stage.base[z->comm.me];
    *hash = ZP_HASH_EMPTY;
    for (size_t at = begin; at < end; at += ZP_STAGE_NUMEL) {
        const size_t bytes = zp_min(ZP_STAGE_NUMEL, end - at) * zp_bytes(z->cfg.type);
        ZP_TRY(zp_copy(&z->compute, stage, zp_parameter(z, u, at), bytes));
        ZP_TRY(zp_stream_sync(&z->compute));
        *hash = zp_checks_fold(*hash, stage, bytes);
    }
    return ZERO_OK;
}

/* Notes what parameters are now, or with `compares` finds one that is not what it was. */
static zero_result zp_checks_seal(zero_ctx *z, int compares) {
    if (compares && !z->checks.sealed) return ZERO_OK;
    for (int s = 0; s < 2; s++) ZP_DO(z, zp_stream_sync(&z->stream[s]));
    ZP_DO(z, zp_stream_sync(&z->compute));
    for (int m = 0; m < z->layout.nmembers; m++) {
        const zp_member *x = &z->layout.members[m];
        const zp_tensor *t = &z->tensors[x->tensor];
        uint64_t hash;
        ZP_DO(z, zp_checks_hash(z, zp_tensor_unit(&z->layout, t, x->layer), x, &hash));
        if (compares && hash != z->checks.seal[m])
            return zp_fail(z, ZERO_ERR_STATE,
                           "tensor %s, layer %d, was written since the plugin wrote it last: "
                           "use zero_write_tensor",
                           t->desc.name, x->layer < 0 ? 0 : x->layer);
        z->checks.seal[m] = hash;
    }
    z->checks.sealed = 1;
    return ZERO_OK;
}

/* Every tensor's pointer goes somewhere. */
static zero_result zp_checks_bound(zero_ctx *z) {
    for (int t = 0; t < z->ntensors; t++) {
        const zero_tensor_desc *d = &z->tensors[t].desc;
        if ((d->flags & ZERO_KEEP) && !(d->flags & ZERO_BY_SLOT) && !z->bound)
            return zp_fail(z, ZERO_ERR_STATE,
                           "tensor %s is KEEP, and has no pointer: zero_bind comes first", d->name);
        for (int l = 0; l < d->layers && (d->flags & ZERO_BY_SLOT); l++) {
            int known = 0;
            for (int i = 0; i < z->nslots; i++)
                known |= z->slots[i].tensor == t && z->slots[i].layer == l;
            if (!known)
                return zp_fail(z, ZERO_ERR_STATE, "tensor %s, layer %d, has no slot: see zero_slot",
                               d->name, l);
        }
    }
    return ZERO_OK;
}

static zero_result zp_checks_pass(zero_ctx *z) {
    ZP_TRY(zp_checks_bound(z));
    memset(z->checks.forwards, 0, (size_t)z->layout.all * sizeof *z->checks.forwards);
    z->checks.nhooks = z->checks.backwards = 0;
    return zp_checks_seal(z, 1);
}

/* Every hook, once it is known to be allowed. */
static zero_result zp_checks_hook(zero_ctx *z, uint32_t which, int unit) {
    zp_checks *c = &z->checks;
    const zp_live *live = &z->live[unit];
    const int outermost = !live->forward_opens && !live->backward_opens;
    const int uses = z->layout.unit[unit].uses;
    c->forwards[unit] += which == ZP_HOOK_FORWARD && outermost && !c->backwards; /* no recompute */
    if (which == ZP_HOOK_FORWARD && z->pass == ZERO_TRAIN && c->forwards[unit] > uses)
        return zp_fail(z, ZERO_ERR_STATE,
                       "unit %d: forward number %d of this pass, but its tensors announce %d uses",
                       unit, c->forwards[unit], uses);
    if (which == ZP_HOOK_BACKWARD && !c->forwards[unit])
        return zp_fail(z, ZERO_ERR_STATE, "unit %d: backward before forward", unit);
    c->backwards += which == ZP_HOOK_BACKWARD;
    uint32_t *list = (uint32_t *)zp_list_grow(c->hook, c->nhooks, &c->hooks_cap, sizeof *list);
    if (!list) return zp_fail(z, ZERO_ERR_MEMORY, "the list of hooks");
    c->hook = list;
    c->hook[c->nhooks++] = which << 24 | (uint32_t)unit;
    return ZERO_OK;
}

static const char *zp_checks_hook_name(uint32_t hook, char *text, size_t bytes) {
    if (hook == UINT32_MAX)
        (void)snprintf(text, bytes, "ended the pass");
    else
        (void)snprintf(text, bytes, "called %s of unit %u", zp_hook_names[hook >> 24],
                       hook & 0xFFFFFFu);
    return text;
}

/* All ranks have called the same hooks, or every rank names the first that differs. */
static zero_result zp_checks_compare(zero_ctx *z) {
    enum { PIECE = ZP_MAIL_BYTES / sizeof(uint32_t) };
    uint32_t mine[PIECE], his[PIECE], zeroth[PIECE];
    char a[64], b[64];
    int ends = 0;
    for (int at = 0; !ends; at += PIECE) {
        for (int i = 0; i < PIECE; i++)
            mine[i] = at + i < z->checks.nhooks ? z->checks.hook[at + i] : UINT32_MAX;
        ZP_DO(z, zp_comm_exchange(&z->comm, ZP_CONTROL, mine, sizeof mine, z->comm.mail));
        memcpy(zeroth, z->comm.mail, sizeof zeroth);
        for (int r = 1; r < z->comm.nranks; r++) {
            memcpy(his, z->comm.mail + (size_t)r * sizeof his, sizeof his);
            for (int i = 0; i < PIECE; i++) {
                if (his[i] == zeroth[i]) continue;
                return z->dead = zp_fail(
                           z, ZERO_ERR_MISMATCH,
                           "hook %d of the pass: rank 0 %s, rank %d %s: all ranks must call "
                           "the same hooks in the same order",
                           at + i, zp_checks_hook_name(zeroth[i], a, sizeof a), r,
                           zp_checks_hook_name(his[i], b, sizeof b));
            }
        }
        ends = zeroth[PIECE - 1] == UINT32_MAX;
    }
    return ZERO_OK;
}

#define ZP_CHECK(call) ZP_TRY(call)
#else
#define ZP_CHECK(call)                                                                             \
    do {                                                                                           \
    } while (0)
#endif

/* =============================================================================================
   [SECTION] build
   All ranks compare what they were told, then allocate what the plan says.
   ============================================================================================= */

/* Of zero_config, what must be the same on all ranks; its seed is compared by halves. */
#define ZP_SETTINGS(X)                                                                             \
    X(stage), X(micro_steps), X(accumulation), X(type), X(grads), X(no_master), X(optimizer),      \
        X(scaler.fixed), X(scaler.initial), X(scaler.minimum), X(scaler.window),                   \
        X(scaler.hysteresis), X(scaler.consecutive_hysteresis), X(prefetch), X(bucket_numel),      \
        X(persistence_numel), X(no_overlap), X(no_overflow_check), X(no_mapping), X(threads),      \
        X(timeout_s)

/* One line per setting and per tensor, as text: the first that differs is reported as it is. */
static int zp_agree_line(const zero_ctx *z, int i, char *text, size_t bytes) {
    const zero_config *c = &z->cfg;
#define ZP_SETTING(x)                                                                              \
    { #x, (double)c->x }
    const struct {
        const char *name;
        double value;
    } settings[] = {ZP_SETTINGS(ZP_SETTING),
                    {"seed, upper half", (double)(c->seed >> 32)},
                    {"seed, lower half", (double)(c->seed & 0xFFFFFFFFu)},
                    {"node_size", (double)z->comm.node_size},
                    {"tensors", (double)z->ntensors}};
#undef ZP_SETTING
    const int n = sizeof settings / sizeof *settings;
    memset(text, 0, bytes);
    if (i < n) {
        (void)snprintf(text, bytes, "%s %.15g", settings[i].name, settings[i].value);
    } else if (i < n + z->ntensors) {
        const zp_tensor *t = &z->tensors[i - n];
        const zero_tensor_desc *d = &t->desc;
        (void)snprintf(text, bytes,
                       "tensor %d: numel %zu, layers %d, unit %d, uses %d, flags %d, lr_factor "
                       "%.9g, decay_factor %.9g, name %s",
                       i - n, d->numel, d->layers, d->unit, d->uses, d->flags, (double)t->lr_factor,
                       (double)t->decay_factor, d->name);
    }
    return i < n + z->ntensors;
}

static zero_result zp_build_agree(zero_ctx *z) {
    char mine[ZP_MAIL_BYTES];
    char *all = z->comm.mail;
    for (int i = 0; zp_agree_line(z, i, mine, sizeof mine); i++) {
        ZP_DO(z, zp_comm_exchange(&z->comm, ZP_CONTROL, mine, sizeof mine, all));
        for (int r = 1; r < z->comm.nranks; r++)
            if (memcmp(all, all + (size_t)r * sizeof mine, sizeof mine)) {
                return z->dead = zp_fail(z, ZERO_ERR_MISMATCH,
                                         "rank 0 has {%.180s}, rank %d has {%.180s}", all, r,
                                         all + (size_t)r * sizeof mine);
            }
    }
    return ZERO_OK;
}

/* The tensors in a rank's part of unit u; `spans` NULL: only counted. */
static int zp_update_spans(const zero_ctx *z, int u, zp_span *spans) {
    const zp_unit *x = &z->layout.unit[u];
    const size_t begin = zp_own_first(z, u), end = begin + zp_own_numel(z, u);
    int n = 0;
    for (int i = 0; i < x->members; i++) {
        const zp_member *m = &x->member[i];
        const zp_tensor *t = &z->tensors[m->tensor];
        const size_t from = zp_max(begin, m->at), to = zp_min(end, m->at + m->numel);
        if (from >= to) continue;
        if (spans) {
            zp_span *s = &spans[n];
            s->begin = from - begin;
            s->end = to - begin;
            s->lr_factor = t->lr_factor;
            s->decay_factor = t->desc.flags & ZERO_NO_DECAY ? 0 : t->decay_factor;
            s->key = zp_mix((uint32_t)m->tensor);
            s->element =
                (uint64_t)begin - m->at + (m->layer > 0 ? (uint64_t)m->layer * m->numel : 0);
        }
        n++;
    }
    return n;
}

static zero_result zp_build_live(zero_ctx *z) {
    const size_t all = (size_t)z->layout.all + 1;
    zp_device *d = &z->device;
    z->live = (zp_live *)calloc(all, sizeof *z->live);
    z->bucket = (int *)calloc(all, sizeof *z->bucket);
    if (!z->live || !z->bucket) return ZERO_ERR_MEMORY;
    for (int u = 0; u < z->layout.all; u++) {
        zp_live *live = &z->live[u];
        live->buffer[0] = live->buffer[1] = -1;
        ZP_TRY(zp_event_open(d, &live->written));
        ZP_TRY(zp_event_open(d, &live->gathered));
        ZP_TRY(zp_event_open(d, &live->reduction));
        ZP_TRY(zp_event_open(d, &live->updated));
    }
    zp_pool *pool = &z->pool[ZP_PARAMETERS];
    for (int b = 0; b < pool->n; b++) ZP_TRY(zp_event_open(d, &pool->buffer[b].released));
    ZP_TRY(zp_event_open(d, &z->agreed));
    return zp_event_open(d, &z->reported);
}

/* Cuts the private arena: without memory it is only measured. */
static void *zp_build_cut(zero_ctx *z, size_t *at, size_t numel, size_t bytes) {
    const size_t from = *at;
    *at += zp_round_up(zp_max(numel, 1) * bytes, bytes * numel >= 65536 ? 4096 : 256);
    return z->arena ? z->arena + from : NULL;
}

static size_t zp_build_arrays(zero_ctx *z) {
    size_t at = 0, largest = 0, spans = 0;
    for (int u = 0; u < z->layout.all; u++) {
        largest = zp_max(largest, z->layout.unit[u].shard);
        z->place[u].first_span = (int)spans;
        spans += (size_t)(z->place[u].spans = zp_update_spans(z, u, NULL));
    }
    const size_t blocks = (largest + ZP_NORM_BLOCK - 1) / ZP_NORM_BLOCK + 1;
    for (int i = 0; i < z->rule->states; i++)
        z->state[i] = (float *)zp_build_cut(z, &at, z->state_numel, sizeof(float));
    if (zp_plan_master(z)) z->master = (float *)zp_build_cut(z, &at, z->state_numel, sizeof(float));
    if (z->sums_numel) z->sums = (float *)zp_build_cut(z, &at, z->sums_numel, sizeof(float));
    z->partial = (double *)zp_build_cut(z, &at, blocks, sizeof(double));
    z->verdicts =
        (double *)zp_build_cut(z, &at, (size_t)z->comm.nranks * ZP_VERDICT, sizeof(double));
    z->control = (zp_control *)zp_build_cut(z, &at, 1, sizeof(zp_control));
    z->spans = (zp_span *)zp_build_cut(z, &at, spans, sizeof(zp_span));
    z->nspans = spans;
    return at;
}

static zero_result zp_build_private(zero_ctx *z) {
    z->private_bytes = zp_build_arrays(z);
    z->arena = (char *)zp_device_alloc(&z->device, z->private_bytes);
    z->pinned = (zp_control *)zp_host_alloc(sizeof *z->pinned);
    if (!z->arena || !z->pinned) return ZERO_ERR_MEMORY;
    (void)zp_build_arrays(z);
    *z->pinned = z->report;
    return ZERO_OK;
}

/* What the device reads before the first step. */
static zero_result zp_build_tables(zero_ctx *z) {
    zp_span *spans = (zp_span *)calloc(z->nspans + 1, sizeof *spans);
    if (!spans) return ZERO_ERR_MEMORY;
    for (int u = 0; u < z->layout.all; u++)
        (void)zp_update_spans(z, u, spans + z->place[u].first_span);
    zero_result r = zp_copy(&z->compute, z->spans, spans, z->nspans * sizeof *spans);
    if (!r) r = zp_copy(&z->compute, z->control, z->pinned, sizeof *z->pinned);
    if (!r) r = zp_stream_sync(&z->compute);
    free(spans);
    return r;
}

static zero_result zp_build_streams(zero_ctx *z) {
    const int threads = z->cfg.threads;
    ZP_TRY(zp_stream_take(&z->compute, &z->device, z->cfg.stream, threads));
    for (int i = 0; i < 2; i++)
        ZP_TRY(zp_stream_open(&z->stream[i], &z->device, z->cfg.stream, !z->cfg.no_overlap, i,
                              threads));
    return ZERO_OK;
}

/* Everybody learns who could not allocate; then all return the same error. */
static zero_result zp_build_together(zero_ctx *z, zero_result mine, const char *what,
                                     size_t bytes) {
    int who = -1;
    ZP_DO(z, zp_comm_agree(&z->comm, mine == ZERO_OK, &who));
    if (who < 0) return ZERO_OK;
    return z->dead = zp_fail(z, ZERO_ERR_MEMORY, "rank %d could not allocate %s (%zu bytes)", who,
                             what, bytes);
}

static zero_result zp_build_register(zero_ctx *z) {
    const char *how[2] = {"", ""};
    for (int i = 0; i < 2; i++)
        ZP_DO(z, zp_region_register(&z->comm, &z->region[i], (zp_channel)i, &how[i]));
#ifdef ZERO_WITH_NCCL
    const int version = z->comm.nccl.version;
    char text[ZP_TEXT_BYTES];
    (void)snprintf(text, sizeof text,
                   "NCCL %d.%d.%d: gradients %s, parameters %s, launches ordered by %s",
                   version / 10000, version / 100 % 100, version % 100, how[ZP_GRADIENTS],
                   how[ZP_PARAMETERS], z->comm.nccl.ordered ? "NCCL" : "events");
    if (z->comm.kind == ZERO_COMM_NCCL && z->cfg.log)
        z->cfg.log(z->cfg.log_user, ZERO_LOG_INFO, text);
#endif
    return ZERO_OK;
}

static zero_result zp_build_allocate(zero_ctx *z) {
    zero_result r = zp_build_live(z);
    if (!r) r = zp_build_private(z);
    if (!r) r = zp_build_streams(z);
    if (!r) r = zp_build_tables(z);
#if ZERO_CHECK
    if (!r) r = zp_checks_open(z);
#endif
    ZP_TRY(zp_build_together(z, r, "optimizer state", z->plan.optimizer_bytes));
    zp_comm *c = &z->comm;
    r = zp_region_open(c, &c->stage, ZP_STAGE_NUMEL * sizeof(float), 0, 1);
    if (!r)
        r = zp_region_open(c, &z->region[ZP_PARAMETERS], z->pool[ZP_PARAMETERS].bytes, z->mapped,
                           0);
    /* peers read the verdict: it lies behind the gradients, whose memory outlives the context */
    z->verdict_at = zp_round_up(z->pool[ZP_GRADIENTS].bytes, 64);
    if (!r)
        r = zp_region_open(c, &z->region[ZP_GRADIENTS], z->verdict_at + ZP_VERDICT * sizeof(double),
                           0, 0);
    if (!r) z->verdict = (double *)(void *)(z->region[ZP_GRADIENTS].base[c->me] + z->verdict_at);
    if (!r) return zp_build_register(z);
    ZP_DO(z, ZERO_OK);
    return z->dead =
               zp_fail(z, r, "could not allocate parameters (%zu bytes) and gradients (%zu bytes)",
                       z->pool[ZP_PARAMETERS].bytes, z->pool[ZP_GRADIENTS].bytes);
}

/* =============================================================================================
   [SECTION] parameters
   Gathers, and the pointers of a unit.
   ============================================================================================= */

/* A collective of unit u: where from and where to is the caller's. */
static zp_op zp_op_make(zero_ctx *z, zp_channel channel, int kind, int u) {
    zp_op op;
    memset(&op, 0, sizeof op);
    op.comm = &z->comm;
    op.region = &z->region[channel];
    op.channel = channel;
    op.kind = kind;
    op.unit = u;
    op.shard = z->layout.unit[u].shard;
    op.type = z->type[channel];
    return op;
}

/* Enqueues u's all-gather on the parameter stream: behind its update, and behind the last use of
   the buffer that it goes to. */
static zero_result zp_gather(zero_ctx *z, int u) {
    const zp_place *at = &z->place[u];
    zp_live *live = &z->live[u];
    zp_stream *s = &z->stream[ZP_PARAMETERS];
    zp_op op = zp_op_make(z, ZP_PARAMETERS, ZP_ALL_GATHER, u);
    op.in_place = z->mapped;
    op.source = op.target = at->offset[ZP_PARAMETERS];
    if (at->whole[ZP_PARAMETERS]) {
        op.source += (size_t)z->comm.rank * zp_op_shard_bytes(&op);
    } else {
        zp_pool *pool = &z->pool[ZP_PARAMETERS];
        zp_buffer *b = &pool->buffer[zp_pool_find(pool, u)];
        op.target = b->at;
        ZP_DO(z, zp_event_wait(s, &b->released));
    }
    ZP_DO(z, zp_event_wait(s, &live->updated));
    ZP_DO(z, zp_comm_issue_alone(s, &op));
    ZP_DO(z, zp_event_record(s, &live->gathered));
    return ZERO_OK;
}

/* The outermost begin that needs u's parameters: they are on their way or there, and so are the
   next units'. */
static zero_result zp_parameters_open(zero_ctx *z, int u) {
    int fill[ZP_PREFETCH_MAX + 1];
    zp_live *live = &z->live[u];
    zp_trace *t = &z->trace[z->pass];
    zp_pool *pool = &z->pool[ZP_PARAMETERS];
    const int wraps = z->pass == ZERO_TRAIN && z->micro + 1 < z->micro_steps;
    if (live->parameter_opens++) return ZERO_OK;
    zp_trace_visit(t, u);
    const int n = zp_schedule(z, t, u, wraps, fill);
    if (n < 0) {
        live->parameter_opens--;
        return zp_fail(z, ZERO_ERR_STATE,
                       "unit %d: all %d gather buffers belong to units that have begun "
                       "and not ended; raise prefetch",
                       u, pool->n);
    }
    for (int i = 0; i < n; i++) ZP_TRY(zp_gather(z, fill[i]));
    const int b = live->buffer[ZP_PARAMETERS] = zp_pool_find(pool, u);
    if (b >= 0) pool->buffer[b].open++;
    ZP_DO(z, zp_event_wait(&z->compute, &live->gathered));
    ZP_CHECK(zp_checks_turn(z, u, ZP_PARAMETERS, 1));
    return ZERO_OK;
}

static zero_result zp_parameters_close(zero_ctx *z, int u) {
    zp_live *live = &z->live[u];
    zp_pool *pool = &z->pool[ZP_PARAMETERS];
    if (--live->parameter_opens) return ZERO_OK;
    ZP_CHECK(zp_checks_turn(z, u, ZP_PARAMETERS, 0));
    if (live->buffer[ZP_PARAMETERS] < 0) return ZERO_OK;
    zp_buffer *b = &pool->buffer[live->buffer[ZP_PARAMETERS]];
    b->open--;
    b->used = ++pool->clock;
    live->buffer[ZP_PARAMETERS] = -1;
    return zp_check(z, zp_event_record(&z->compute, &b->released));
}

/* Where the host finds a member whose unit lies in `memory`. */
static char *zp_member_memory(const zero_ctx *z, zp_channel side, const zp_member *m,
                              char *memory) {
#if ZERO_CHECK
    if (m->layer >= 0) return z->checks.shadow[side][m - z->layout.members].data;
#endif
    return memory + m->at * zp_bytes(z->type[side]);
}

/* Writes the pointers of one unit's tensors: fields of the host's struct, if there is one, then
   slots. Memory NULL: what has no slot stays as it is, and slots become NULL. */
static void zp_point(zero_ctx *z, zp_channel side, int u, char *memory, void *host) {
    const zp_unit *x = &z->layout.unit[u];
    const size_t of = zp_bytes(z->type[side]);
    for (int i = 0; i < x->members && memory && host; i++) {
        const zp_member *m = &x->member[i];
        const zero_tensor_desc *d = &z->tensors[m->tensor].desc;
        const uintptr_t back = m->layer > 0 ? (uintptr_t)m->layer * d->numel * of : 0;
        const uintptr_t to = (uintptr_t)zp_member_memory(z, side, m, memory) - back;
        if (!(d->flags & ZERO_BY_SLOT)) memcpy((char *)host + d->field, &to, sizeof to);
    }
    for (int i = 0; i < z->nslots; i++) {
        const zp_slot *s = &z->slots[i];
        const zp_tensor *t = &z->tensors[s->tensor];
        if (!s->place[side] || zp_tensor_unit(&z->layout, t, s->layer) != u) continue;
        const int kept = t->desc.flags & ZERO_KEEP;
        const zp_member *m = z->layout.by_tensor[t->first_member + (kept ? 0 : s->layer)];
        char *to = memory ? zp_member_memory(z, side, m, memory) : NULL;
        if (to && kept) to += (size_t)s->layer * t->desc.numel * of;
        memcpy(s->place[side], &to, sizeof to); /* as bytes: it may be any pointer to data */
    }
}

/* =============================================================================================
   [SECTION] gradients
   Buckets, reductions, the norm.
   ============================================================================================= */

/* Enqueues the squares of u's reduced shard into this rank's verdict. */
static zero_result zp_gradient_norm(zero_ctx *z, int u) {
    const zp_unit *x = &z->layout.unit[u];
    zp_stream *s = &z->stream[ZP_GRADIENTS];
    const char *shard = zp_memory(z, ZP_GRADIENTS, z->place[u].shard_at);
    const zp_norm_args norm = {shard, z->type[ZP_GRADIENTS], x->shard, z->partial};
    const zp_fold_args fold = {norm, z->verdict, (double)u,
                               (double)((size_t)z->comm.rank * x->shard)};
    ZP_TRY(zp_norm(s, &norm, (x->shard + ZP_NORM_BLOCK - 1) / ZP_NORM_BLOCK));
    return zp_fold(s, &fold, 1);
}

/* Adds u's 16-bit gradient of this micro-step to its accumulator; in the last one the sum, rounded,
   becomes the gradient. */
static zero_result zp_collect_unit(zero_ctx *z, int u, int last) {
    if (last && z->micro == 0) return ZERO_OK; /* one micro-step: nothing to add up */
    const zp_collect_args add = {z->sums + z->place[u].sum_at, zp_unit_memory(z, ZP_GRADIENTS, u),
                                 z->type[ZP_GRADIENTS], z->micro == 0, last};
    return zp_collect(&z->stream[ZP_GRADIENTS], &add, z->layout.unit[u].padded / ZP_WIDE);
}

static zp_op zp_reduce_op(zero_ctx *z, int u) {
    const zp_place *at = &z->place[u];
    zp_op op = zp_op_make(z, ZP_GRADIENTS, ZP_REDUCE_SCATTER, u);
    op.source = (size_t)(zp_unit_memory(z, ZP_GRADIENTS, u) - zp_memory(z, ZP_GRADIENTS, 0));
    op.target = at->shard_at;
    op.sum = z->sums && z->sharded ? z->sums + at->sum_at : NULL;
    op.scale = z->comm.divisor / (float)z->comm.nranks;
    op.accumulate = z->sharded && z->micro > 0;
    return op;
}

/* Where gradients are whole on every rank (stage 0), they are gathered. */
static zp_op zp_whole_op(zero_ctx *z, int u) {
    zp_op op = zp_op_make(z, ZP_GRADIENTS, ZP_ALL_GATHER, u);
    op.source = z->place[u].shard_at;
    op.target = z->place[u].offset[ZP_GRADIENTS];
    return op;
}

/* Issues one collective of every unit of the bucket, together. */
static zero_result zp_bucket_issue(zero_ctx *z, zp_op (*make)(zero_ctx *, int)) {
    zp_stream *s = &z->stream[ZP_GRADIENTS];
    zp_op first = make(z, z->bucket[0]);
    ZP_TRY(zp_comm_begin(&z->comm, s, ZP_GRADIENTS));
    for (int i = 0; i < z->nbucket; i++) {
        const zp_op op = make(z, z->bucket[i]);
        ZP_TRY(zp_comm_issue(s, &op));
    }
    ZP_TRY(zp_comm_end(&z->comm, s, &first));
    for (int i = 0; i < z->nbucket; i++) {
        const zp_op op = make(z, z->bucket[i]);
        ZP_TRY(zp_comm_finish(s, &op));
    }
    return ZERO_OK;
}

/* Enqueues what follows the backward of the bucket's units in this micro-step. */
static zero_result zp_bucket_flush(zero_ctx *z) {
    zp_stream *s = &z->stream[ZP_GRADIENTS];
    const int last = z->micro + 1 == z->micro_steps;
    if (!z->nbucket) return ZERO_OK;
    for (int i = 0; i < z->nbucket; i++) {
        zp_live *live = &z->live[z->bucket[i]];
        ZP_DO(z, zp_event_wait(s, &live->written));
        if (z->collects) ZP_DO(z, zp_collect_unit(z, z->bucket[i], last));
    }
    if (last || !z->collects) ZP_DO(z, zp_bucket_issue(z, zp_reduce_op));
    for (int i = 0; i < z->nbucket && last; i++) ZP_DO(z, zp_gradient_norm(z, z->bucket[i]));
    if (last && !z->policy.shard_optimizer) ZP_DO(z, zp_bucket_issue(z, zp_whole_op));
    for (int i = 0; i < z->nbucket; i++) {
        zp_live *live = &z->live[z->bucket[i]];
        ZP_DO(z, zp_event_record(s, &live->reduction));
        live->pending = 0;
        live->buffer[ZP_GRADIENTS] = -1;
    }
    z->nbucket = 0;
    z->bucket_filled = 0;
    return ZERO_OK;
}

static zero_result zp_bucket_add(zero_ctx *z, int u) {
    const size_t numel = z->layout.unit[u].padded;
    zp_live *live = &z->live[u];
    const int b = live->buffer[ZP_GRADIENTS];
    if (b >= 0) z->pool[ZP_GRADIENTS].buffer[b].open = 0; /* its next user waits for `reduction` */
    if (z->bucket_filled && z->bucket_filled + numel > z->bucket_numel) ZP_TRY(zp_bucket_flush(z));
    ZP_DO(z, zp_event_record(&z->compute, &live->written));
    live->pending = 1;
    z->bucket[z->nbucket++] = u;
    z->bucket_filled += numel;
    return z->bucket_filled >= z->bucket_numel ? zp_bucket_flush(z) : ZERO_OK;
}

/* A buffer for u's gradients: its own, or the shared one whose reduction began longest ago. */
static zero_result zp_gradient_buffer(zero_ctx *z, int u) {
    zp_pool *pool = &z->pool[ZP_GRADIENTS];
    int b = z->place[u].buffer[ZP_GRADIENTS];
    if (z->place[u].whole[ZP_GRADIENTS] || z->live[u].buffer[ZP_GRADIENTS] >= 0) return ZERO_OK;
    if (b < 0) b = zp_pool_oldest(pool, NULL, 0);
    if (b < 0)
        return zp_fail(z, ZERO_ERR_STATE,
                       "unit %d: all %d gradient buffers belong to units whose backward "
                       "is not complete; raise bucket_numel",
                       u, pool->n);
    const int before = pool->buffer[b].unit;
    if (before >= 0 && z->live[before].pending) ZP_TRY(zp_bucket_flush(z));
    if (before >= 0) ZP_DO(z, zp_event_wait(&z->compute, &z->live[before].reduction));
    pool->buffer[b].unit = u;
    pool->buffer[b].open = 1;
    pool->buffer[b].used = ++pool->clock;
    z->live[u].buffer[ZP_GRADIENTS] = b;
    return ZERO_OK;
}

static zero_result zp_gradient_clear(zero_ctx *z, int u, int all) {
    const zp_unit *x = &z->layout.unit[u];
    char *memory = zp_unit_memory(z, ZP_GRADIENTS, u);
    const size_t of_g = zp_bytes(z->type[ZP_GRADIENTS]);
    size_t from = 0; /* runs of tensors that want zeros, padding included, are cleared at once */
    for (int i = 0; i <= x->members; i++) {
        const zp_member *m = i < x->members ? &x->member[i] : NULL;
        const int keep = m && !all && (z->tensors[m->tensor].desc.flags & ZERO_OVERWRITTEN);
        if (m && !keep) continue;
        const size_t to = m ? m->at : x->padded;
        ZP_DO(z, zp_clear(&z->compute, memory + from * of_g, (to - from) * of_g));
        if (m) from = m->at + m->numel;
    }
    return ZERO_OK;
}

/* The first touch of u's gradients in a micro-step (in a step, if they accumulate locally). */
static zero_result zp_gradient_touch(zero_ctx *z, int u, int clear_all) {
    zp_live *live = &z->live[u];
    if (live->touched || !z->layout.unit[u].numel) return ZERO_OK;
    ZP_TRY(zp_gradient_buffer(z, u));
    ZP_DO(z, zp_event_wait(&z->compute, &live->reduction));
    live->touched = 1;
    return zp_gradient_clear(z, u, clear_all);
}

static int zp_reduces_now(const zero_ctx *z) {
    return z->sharded || z->collects || z->micro + 1 == z->micro_steps;
}

/* u's gradient of this micro-step is complete, and reduced where it is now. */
static int zp_unit_written(const zero_ctx *z, int u) {
    return z->live[u].writes >= z->layout.unit[u].uses;
}

/* Ends a training micro-step: what has not been reduced is, in descending order, then KEEP. */
static zero_result zp_gradients_finish(zero_ctx *z) {
    if (!zp_reduces_now(z)) return ZERO_OK;
    for (int i = z->layout.all - 1; i >= 0; i--) {
        const int u = zp_unit_nth(&z->layout, i);
        if (zp_unit_written(z, u) || !z->layout.unit[u].numel) continue;
        ZP_TRY(zp_gradient_touch(z, u, 1));
        ZP_TRY(zp_bucket_add(z, u));
    }
    return zp_bucket_flush(z);
}

static void zp_micro_begin(zero_ctx *z) {
    for (int u = 0; u < z->layout.all; u++) {
        zp_live *live = &z->live[u];
        live->writes = 0;
        if (z->sharded || z->collects || z->micro == 0) live->touched = 0;
    }
}

/* =============================================================================================
   [SECTION] step
   Skip, clip, update. One function for all stages: a range to update, and a gather or none.
   ============================================================================================= */

static zero_result zp_update_unit(zero_ctx *z, int u, const zero_hyper *h) {
    const zp_place *at = &z->place[u];
    zp_update a;
    memset(&a, 0, sizeof a);
    a.p = zp_parameter(z, u, zp_own_first(z, u));
    a.g = zp_gradient(z, u, zp_own_first(z, u));
    a.master = z->master ? z->master + at->state_at : NULL;
    for (int i = 0; i < ZP_STATES; i++)
        a.state[i] = z->state[i] ? z->state[i] + at->state_at : NULL;
    a.control = z->control;
    a.spans = z->spans + at->first_span;
    a.nspans = at->spans;
    a.type = z->cfg.type;
    a.grad_type = z->type[ZP_GRADIENTS];
    a.lr = h->lr;
    a.beta1 = h->beta1;
    a.beta2 = h->beta2;
    a.eps = h->eps;
    a.decay = h->weight_decay;
    a.stochastic = z->cfg.no_master;
    a.key[1] = zp_mix((uint32_t)z->cfg.seed ^ zp_mix((uint32_t)(z->cfg.seed >> 32)));
    /* an evaluation may have gathered what it left */
    ZP_DO(z, zp_event_wait(&z->compute, &z->live[u].gathered));
    if (a.nspans) ZP_DO(z, z->rule->update(&z->compute, &a, zp_own_numel(z, u) / ZP_WIDE));
    return ZERO_OK;
}

/* Parameters from the weights that were put. */
static zero_result zp_update_from_master(zero_ctx *z, int u) {
    const float *from = z->master ? z->master + z->place[u].state_at : NULL;
    char *to = zp_parameter(z, u, zp_own_first(z, u));
    const zp_fetch_args a = {from, to, ZERO_F32, z->cfg.type, NULL, 0};
    return from ? zp_check(z, zp_fetch(&z->compute, &a, zp_own_numel(z, u))) : ZERO_OK;
}

/* By a step, or, hyper NULL, from the weights. What this rank keeps of a unit's parameters is new
   then: the others get it now, or when they ask. */
static zero_result zp_update_all(zero_ctx *z, const zero_hyper *hyper) {
    for (int i = 0; i < z->layout.all; i++) {
        const int u = zp_unit_nth(&z->layout, i);
        const int gathers = z->policy.shard_optimizer && z->place[u].whole[ZP_PARAMETERS];
        ZP_TRY(hyper ? zp_update_unit(z, u, hyper) : zp_update_from_master(z, u));
        ZP_DO(z, zp_event_record(&z->compute, &z->live[u].updated));
        if (gathers && z->layout.unit[u].numel) ZP_TRY(zp_gather(z, u));
    }
    zp_pool_forget(&z->pool[ZP_PARAMETERS]); /* gathered values are old now */
    return ZERO_OK;
}

/* Enqueues the way of what was agreed, and decided, to the host. */
static zero_result zp_report_send(zero_ctx *z) {
    ZP_DO(z, zp_copy(&z->compute, z->pinned, z->control, sizeof *z->pinned));
    return zp_check(z, zp_event_record(&z->compute, &z->reported));
}

/* Waits for it. SYNC. */
static zero_result zp_report(zero_ctx *z) {
    ZP_DO(z, zp_event_sync(&z->device, &z->reported)); /* an aborted collective ends as well */
    z->report = *z->pinned;
    return ZERO_OK;
}

/* =============================================================================================
   [SECTION] access
   Tensors by name, range by range: what is whole here is read here, the rest is broadcast by its
   owner through the staging buffer.
   ============================================================================================= */

/* A run of a tensor's elements that one rank owns. */
typedef struct zp_run {
    int unit, owner;
    size_t at; /* in the unit */
    size_t numel;
} zp_run;

static zp_run zp_run_at(const zero_ctx *z, const zp_tensor *t, size_t element, size_t count) {
    const int kept = t->desc.flags & ZERO_KEEP;
    const size_t part = kept ? 0 : element / t->desc.numel;
    const zp_member *m = z->layout.by_tensor[t->first_member + (int)part];
    const size_t inside = kept ? element : element % t->desc.numel;
    zp_run run;
    run.unit = zp_tensor_unit(&z->layout, t, (int)part);
    run.at = m->at + inside;
    const size_t shard = z->layout.unit[run.unit].shard;
    run.owner = (int)(run.at / shard);
    run.numel = zp_min(zp_min(count, m->numel - inside), (size_t)(run.owner + 1) * shard - run.at);
    return run;
}

/* A kind of a tensor in memory: where it lies, how it is stored, and whether every rank has its own
   copy, or sees one. */
typedef struct zp_stored {
    char *memory; /* of the run's first element; NULL: not on this rank */
    zero_type type;
    int whole;
} zp_stored;

static zp_stored zp_kind_stored(const zero_ctx *z, zero_kind kind, const zp_run *run) {
    const size_t state = z->place[run->unit].state_at + (run->at - zp_own_first(z, run->unit));
    const int parameter = kind == ZERO_PARAMETER || (kind == ZERO_MASTER && !z->master);
    zp_stored s = {NULL, ZERO_F32, !z->policy.shard_optimizer};
    if (parameter) s.whole = z->place[run->unit].whole[ZP_PARAMETERS];
    if (parameter) s.type = z->cfg.type;
    if (kind == ZERO_GRADIENT) s.type = z->type[ZP_GRADIENTS];
    if (!s.whole && run->owner != z->comm.rank) return s;
    if (parameter)
        s.memory = zp_parameter(z, run->unit, run->at);
    else if (kind == ZERO_GRADIENT)
        s.memory = zp_gradient(z, run->unit, run->at);
    else
        s.memory =
            (char *)((kind == ZERO_MASTER ? z->master : z->state[kind - ZERO_MOMENT_1]) + state);
    return s;
}

/* Checks a range and waits until nothing moves any more. */
static zero_result zp_access_begin(zero_ctx *z, const char *call, const char *name, zero_kind kind,
                                   size_t first, size_t count, zp_tensor **t) {
    ZP_ENTER(z, call, ZP_IDLE | ZP_REDUCED,
             "tensors are read and written after zero_build, outside a step's passes");
    ZP_TRY(zp_tensor_named(z, name, t));
    if ((int)kind < 0 || kind >= ZERO_KIND_COUNT)
        return zp_fail(z, ZERO_ERR_ARGUMENT, "%s: kind %d, no such kind", name, (int)kind);
    if (kind == ZERO_MOMENT_2 && z->rule->states < 2)
        return zp_fail(z, ZERO_ERR_ARGUMENT, "%s: %s has one state array", name, z->rule->name);
    if (kind == ZERO_GRADIENT && z->phase != ZP_REDUCED)
        return zp_fail(z, ZERO_ERR_STATE,
                       "%s: gradients are there between zero_reduce and zero_step", name);
    const size_t total = (*t)->desc.numel * (size_t)(*t)->desc.layers;
    if (first > total || count > total - first)
        return zp_fail(z, ZERO_ERR_ARGUMENT, "%s has %zu elements, asked for [%zu, %zu)", name,
                       total, first, first + count);
    for (int s = 0; s < 2; s++) ZP_DO(z, zp_stream_sync(&z->stream[s]));
    return zp_check(z, zp_stream_sync(&z->compute));
}

static float *zp_stage(const zero_ctx *z) {
    return (float *)(void *)z->comm.stage.base[z->comm.me];
}

/* Piece by piece through the staging buffer, where values are f32 and unscaled. */
static zero_result zp_read_run(zero_ctx *z, zero_kind kind, const zp_run *run, float *out) {
    const zp_stored s = zp_kind_stored(z, kind, run);
    const zp_control *control = kind == ZERO_GRADIENT ? z->control : NULL;
    float *stage = zp_stage(z);
    for (size_t at = 0; at < run->numel; at += ZP_STAGE_NUMEL) {
        const size_t n = zp_min(ZP_STAGE_NUMEL, run->numel - at);
        const char *from = s.memory ? s.memory + at * zp_bytes(s.type) : NULL;
        const zp_fetch_args a = {from, stage, s.type, ZERO_F32, control, 1};
        if (from) ZP_DO(z, zp_fetch(&z->compute, &a, n));
        ZP_DO(z, zp_stream_sync(&z->compute)); /* the staging buffer is the host's as well */
        if (!s.whole && z->comm.nranks > 1)
            ZP_DO(z, zp_comm_broadcast_piece(&z->comm, from || !out ? stage : out + at,
                                             n * sizeof *out, run->owner));
        if (out && from) memcpy(out + at, stage, n * sizeof *out);
    }
    return ZERO_OK;
}

/* Values of the host's, of any type, to where a kind of them is stored. */
static zero_result zp_put(zero_ctx *z, zero_kind kind, const zp_stored *s, zero_type type,
                          const char *values, size_t numel) {
    const zp_control *control = kind == ZERO_GRADIENT ? z->control : NULL;
    float *stage = zp_stage(z);
    if (s->type == type && !control)
        return zp_copy(&z->compute, s->memory, values, numel * zp_bytes(type));
    for (size_t at = 0; at < numel; at += ZP_STAGE_NUMEL) {
        const size_t n = zp_min(ZP_STAGE_NUMEL, numel - at);
        char *to = s->memory + at * zp_bytes(s->type);
        const zp_fetch_args a = {stage, to, ZERO_F32, s->type, control, 0};
        ZP_TRY(zp_stream_sync(&z->compute));
        zp_widen(stage, values + at * zp_bytes(type), type, n);
        ZP_TRY(zp_fetch(&z->compute, &a, n));
    }
    return ZERO_OK;
}

/* Stores values where this rank keeps this kind of them. */
static zero_result zp_write_kind(zero_ctx *z, zero_kind kind, const zp_run *run,
                                 const float *values) {
    const zp_stored s = zp_kind_stored(z, kind, run);
    const int seen = kind == ZERO_PARAMETER && z->mapped && run->owner != z->comm.rank;
    if (!s.memory || seen) return ZERO_OK; /* not here, or here to be seen alone */
    return zp_check(z, zp_put(z, kind, &s, ZERO_F32, (const char *)values, run->numel));
}

/* All ranks write the same, or learn here that they do not. */
static zero_result zp_write_agree(zero_ctx *z, const zp_tensor *t, zero_kind kind, size_t first,
                                  const float *values, size_t count) {
    const uint64_t what[] = {(uint64_t)(t - z->tensors), (uint64_t)kind, first, count};
    const char *all = z->comm.mail;
    uint64_t mine = ZP_HASH_EMPTY;
    for (int i = 0; i < 4; i++) mine = zp_hash(mine, what[i]);
    for (size_t i = 0; i < count; i++) mine = zp_hash(mine, zp_bits(values[i]));
    ZP_DO(z, zp_comm_exchange(&z->comm, ZP_CONTROL, &mine, sizeof mine, z->comm.mail));
    for (int r = 1; r < z->comm.nranks; r++)
        if (memcmp(all, all + (size_t)r * sizeof mine, sizeof mine))
            return zp_fail(
                z, ZERO_ERR_MISMATCH,
                "%s, [%zu, %zu): rank %d gives other values, or another range, than rank "
                "0; nothing is written",
                t->desc.name, first, first + count, r);
    return ZERO_OK;
}

/* A gradient that its type cannot hold would pass the norm that was agreed. */
static zero_result zp_write_fits(zero_ctx *z, const char *name, size_t first, const float *values,
                                 size_t count) {
    for (size_t i = 0; i < count; i++) {
        float stored;
        zp_store(&stored, z->type[ZP_GRADIENTS], 0,
                 values[i] * (z->report.scale * z->report.divisor));
        if (!zp_finite((double)zp_load(&stored, z->type[ZP_GRADIENTS], 0)))
            return zp_fail(
                z, ZERO_ERR_ARGUMENT,
                "%s: gradient %zu is %g, times the loss scale %g more than its type holds", name,
                first + i, (double)values[i], (double)z->report.scale);
    }
    return ZERO_OK;
}

/* Weights are written in both their forms. */
static zero_result zp_write_run(zero_ctx *z, zero_kind kind, const zp_run *run,
                                const float *values) {
    const int weights = kind == ZERO_PARAMETER || kind == ZERO_MASTER;
    if (weights && z->master) ZP_TRY(zp_write_kind(z, ZERO_MASTER, run, values));
    return zp_write_kind(z, weights ? ZERO_PARAMETER : kind, run, values);
}

/* =============================================================================================
   [SECTION] state
   What training goes on from, as ranges of elements: handed out and taken back as it is stored.
   ============================================================================================= */

/* Lists the ranges of one tensor's kind on this rank. */
static zero_result zp_state_list(zero_ctx *z, int whole, const zp_tensor *t, zero_kind kind) {
    const size_t total = t->desc.numel * (size_t)t->desc.layers;
    const int all = whole && !z->policy.shard_optimizer;
    const zero_type type = kind == ZERO_MASTER && !zp_plan_master(z) ? z->cfg.type : ZERO_F32;
    int *n = &z->nranges[whole];
    for (size_t at = 0, count; at < total; at += count) {
        const zp_run run = zp_run_at(z, t, at, total - at);
        count = all ? total : run.numel;
        if (!all && run.owner != z->comm.rank) continue;
        zero_range *list =
            (zero_range *)zp_list_grow(z->ranges[whole], *n, &z->ranges_cap[whole], sizeof *list);
        if (!list) return zp_fail(z, ZERO_ERR_MEMORY, "%d ranges of the state", *n + 1);
        const zero_range range = {t->desc.name, kind, type, at, count};
        list[(*n)++] = range;
        z->ranges[whole] = list;
    }
    return ZERO_OK;
}

/* Fills z->ranges, from the plan. */
static zero_result zp_state_plan(zero_ctx *z) {
    static const zero_kind kinds[] = {ZERO_MASTER, ZERO_MOMENT_1, ZERO_MOMENT_2};
    for (int whole = 0; whole < 2; whole++) {
        z->nranges[whole] = 0;
        for (int t = 0; t < z->ntensors; t++)
            for (int k = 0; k < 1 + z->rule->states; k++)
                ZP_TRY(zp_state_list(z, whole, &z->tensors[t], kinds[k]));
    }
    return ZERO_OK;
}

/* A range of a tensor and kind that there are. */
static zero_result zp_state_check(zero_ctx *z, const zero_range *r, const void *memory,
                                  zp_tensor **t) {
    ZP_TRY(zp_tensor_named(z, r ? r->name : NULL, t));
    const size_t total = (*t)->desc.numel * (size_t)(*t)->desc.layers;
    const int kinds = r->kind == ZERO_MASTER || r->kind == ZERO_MOMENT_1
                      || (r->kind == ZERO_MOMENT_2 && z->rule->states > 1);
    if (!kinds || (int)r->type < 0 || r->type >= ZERO_TYPES)
        return zp_fail(z, ZERO_ERR_ARGUMENT, "%s: kind %d, type %d: no such state", r->name,
                       (int)r->kind, (int)r->type);
    if (r->first > total || r->count > total - r->first || (!memory && r->count))
        return zp_fail(z, ZERO_ERR_ARGUMENT, "%s has %zu elements, here are [%zu, %zu)%s", r->name,
                       total, r->first, r->first + r->count, memory ? "" : " of NULL");
    return ZERO_OK;
}

/* Values in or out; elements that are not this rank's are an error on the way out. */
static zero_result zp_state_move(zero_ctx *z, const zero_range *r, const char *values, char *out) {
    zp_tensor *t;
    ZP_TRY(zp_state_check(z, r, values ? values : out, &t));
    for (size_t done = 0; done < r->count;) {
        const zp_run run = zp_run_at(z, t, r->first + done, r->count - done);
        const zp_stored s = zp_kind_stored(z, r->kind, &run);
        const int mine = !z->policy.shard_optimizer || run.owner == z->comm.rank;
        const size_t at = done * zp_bytes(r->type);
        done += run.numel;
        if (out && (!mine || s.type != r->type))
            return zp_fail(z, ZERO_ERR_ARGUMENT,
                           "%s: element %zu is kept by rank %d, in type %d, asked for in type %d",
                           r->name, r->first + done - run.numel, run.owner, (int)s.type,
                           (int)r->type);
        if (out)
            ZP_DO(z, zp_copy_away(&z->compute, out + at, s.memory, run.numel * zp_bytes(r->type)));
        else if (mine)
            ZP_DO(z, zp_put(z, r->kind, &s, r->type, values + at, run.numel));
    }
    return zp_check(z, zp_stream_sync(&z->compute));
}

/* =============================================================================================
   [SECTION] interface
   The functions of the header, in its order.
   ============================================================================================= */

#ifdef __cplusplus
extern "C" {
#endif

const char *zero_version(void) { return ZERO_VERSION; }
int zero_abi(void) { return ZERO_ABI; }

const char *zero_result_string(zero_result result) {
#define ZP_RESULT_STRING(name, sentence) sentence,
    static const char *const strings[] = {ZERO_RESULTS(ZP_RESULT_STRING)};
#undef ZP_RESULT_STRING
    return (int)result >= 0 && result < ZERO_RESULT_COUNT ? strings[(int)result] : "no such result";
}

zero_result zero_local_create(zero_local **local, int nranks, int shared) {
    void *p = NULL;
    if (!local || nranks < 1 || nranks > ZP_LOCAL_MAX) return ZERO_ERR_ARGUMENT;
    *local = NULL;
    if (shared) {
#ifndef __linux__
        return ZERO_ERR_UNSUPPORTED;
#endif
        p = mmap(NULL, sizeof(zero_local), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
                 0);
        if (p == MAP_FAILED) return ZERO_ERR_MEMORY;
    } else if (posix_memalign(&p, 64, sizeof(zero_local))) {
        return ZERO_ERR_MEMORY;
    }
    (void)zero_local_place(local, p, nranks);
    (*local)->shared = shared != 0;
    (*local)->placed = 0;
    return ZERO_OK;
}

size_t zero_local_bytes(void) { return sizeof(zero_local); }

zero_result zero_local_place(zero_local **local, void *memory, int nranks) {
    if (!local || !memory || (uintptr_t)memory % 64 || nranks < 1 || nranks > ZP_LOCAL_MAX)
        return ZERO_ERR_ARGUMENT;
    *local = (zero_local *)memory;
    memset(*local, 0, sizeof **local);
    (*local)->nranks = nranks;
    (*local)->shared = (*local)->placed = 1;
    (*local)->maker = getpid();
    return ZERO_OK;
}

void zero_local_destroy(zero_local *local) {
    if (!local || local->placed) return;
    if (local->shared) {
        (void)munmap(local, sizeof *local);
        return;
    }
    for (zp_hold *h = local->boards; h; h = h->next)
        if (h->memory) zp_hold_free(((zp_board *)h->memory)->pieces);
    zp_hold_free(local->boards);
    free(local);
}

void zero_local_abort(zero_local *local, int rank, const char *why) {
    if (local) zp_board_abort(&local->board, rank, why ? why : "no reason given");
}

static int zp_threads(int asked) {
#ifdef _OPENMP
    return asked > 0 ? asked : omp_get_max_threads();
#else
    (void)asked;
    return 1;
#endif
}

static zero_result zp_config_types(zero_ctx *z) {
    zero_config *c = &z->cfg;
    if ((int)c->type < 0 || c->type >= ZERO_TYPES)
        return zp_fail(z, ZERO_ERR_ARGUMENT, "type is %d, no such type", (int)c->type);
    if ((int)c->grads < 0 || c->grads > ZERO_GRAD_AS_TYPE)
        return zp_fail(z, ZERO_ERR_ARGUMENT, "grads is %d, no such choice", (int)c->grads);
    if ((int)c->optimizer < 0 || (int)c->optimizer >= ZP_RULES)
        return zp_fail(z, ZERO_ERR_ARGUMENT, "optimizer is %d, expected 0..%d", (int)c->optimizer,
                       ZP_RULES - 1);
    if (c->no_master && c->type != ZERO_BF16)
        return zp_fail(z, ZERO_ERR_ARGUMENT,
                       "no_master is set: weights can do without an f32 copy in BF16 alone");
    z->rule = &zp_rules[c->optimizer];
    return ZERO_OK;
}

static int zp_not_below(float x) { return x >= 0 && zp_finite((double)x); }

static zero_result zp_config_scaler(zero_ctx *z) {
    zero_scaler *s = &z->cfg.scaler;
    if (!zp_not_below(s->fixed) || !zp_not_below(s->initial) || !zp_not_below(s->minimum)
        || s->window < 0 || s->hysteresis < 0)
        return zp_fail(
            z, ZERO_ERR_ARGUMENT,
            "scaler: fixed %g, initial %g, minimum %g, window %d, hysteresis %d: expected "
            "finite numbers, none below 0",
            (double)s->fixed, (double)s->initial, (double)s->minimum, s->window, s->hysteresis);
    if (s->fixed == 0 && z->cfg.type != ZERO_F16) s->fixed = 1;
    if (s->initial == 0) s->initial = 65536;
    if (s->minimum == 0) s->minimum = 1;
    if (s->window == 0) s->window = 1000;
    if (s->hysteresis == 0) s->hysteresis = 2;
    if (s->fixed == 0 && s->initial < s->minimum)
        return zp_fail(z, ZERO_ERR_ARGUMENT, "scaler: initial %g is below minimum %g",
                       (double)s->initial, (double)s->minimum);
    if (s->fixed == 0 && z->cfg.no_overflow_check)
        return zp_fail(z, ZERO_ERR_ARGUMENT,
                       "no_overflow_check is set, but a dynamic loss scale lives on overflows");
    z->report.scale = z->report.used_scale = s->fixed != 0 ? s->fixed : s->initial;
    z->report.divisor = z->comm.divisor;
    z->report.hysteresis = s->hysteresis;
    z->report.last_overflow = -1;
    return ZERO_OK;
}

static zero_result zp_config_check(zero_ctx *z) {
    zero_config *c = &z->cfg;
    if (c->stage < 0 || c->stage > 3)
        return zp_fail(z, ZERO_ERR_ARGUMENT, "stage is %d, expected 0..3", c->stage);
    if (c->micro_steps < 0)
        return zp_fail(z, ZERO_ERR_ARGUMENT, "micro_steps is %d, expected 0 or more",
                       c->micro_steps);
    if ((int)c->accumulation < 0 || c->accumulation > ZERO_ACCUMULATE_SHARDED)
        return zp_fail(z, ZERO_ERR_ARGUMENT, "accumulation is %d, no such choice",
                       (int)c->accumulation);
    if (c->prefetch < ZERO_NONE || c->prefetch > ZP_PREFETCH_MAX)
        return zp_fail(z, ZERO_ERR_ARGUMENT, "prefetch is %d, expected -1..%d", c->prefetch,
                       ZP_PREFETCH_MAX);
    if (c->persistence_numel < ZERO_NONE)
        return zp_fail(z, ZERO_ERR_ARGUMENT, "persistence_numel is %lld, expected -1 or more",
                       (long long)c->persistence_numel);
    if (c->threads < 0)
        return zp_fail(z, ZERO_ERR_ARGUMENT, "threads is %d, expected 0 or more", c->threads);
    if (!(c->timeout_s >= 0))
        return zp_fail(z, ZERO_ERR_ARGUMENT, "timeout_s is %g, expected 0 or more", c->timeout_s);
    ZP_TRY(zp_config_types(z));
    ZP_TRY(zp_config_scaler(z));
    z->policy = zp_policies[c->stage];
    if (!c->micro_steps) c->micro_steps = 1;
    if (c->grads == ZERO_GRAD_AUTO)
        c->grads = c->micro_steps > 1 || c->type == ZERO_F32 ? ZERO_GRAD_F32 : ZERO_GRAD_AS_TYPE;
    z->type[ZP_PARAMETERS] = c->type;
    z->type[ZP_GRADIENTS] = c->grads == ZERO_GRAD_F32 ? ZERO_F32 : c->type;
    if (c->accumulation == ZERO_ACCUMULATE_AUTO) c->accumulation = z->policy.accumulation;
    const int adds_up = c->micro_steps > 1;
    z->sharded = adds_up ? c->accumulation == ZERO_ACCUMULATE_SHARDED : z->policy.shard_gradients;
    z->mapped = z->policy.shard_parameters
                && (z->comm.nranks == 1
                    || (!c->no_mapping && z->comm.shares && z->comm.n == z->comm.nranks));
    z->collects = adds_up && !z->sharded && z->type[ZP_GRADIENTS] != ZERO_F32;
    c->prefetch = c->prefetch == ZERO_NONE ? 0 : c->prefetch ? c->prefetch : 1;
    if (c->timeout_s == 0) c->timeout_s = ZP_TIMEOUT_S;
    c->threads = zp_threads(c->threads);
    return ZERO_OK;
}

/* Who cannot join tells the whole group: there is no board of its own yet to tell it on. */
static void zp_group_abort(const zero_comm *comm, const char *why) {
    zero_local *group = comm->kind == ZERO_COMM_LOCAL ? (zero_local *)comm->handle : NULL;
    zero_local_abort(group, comm->rank, why);
}

zero_result zero_create(zero_ctx **out, const zero_config *cfg, const zero_comm *comm) {
    if (!out || !cfg || !comm) return ZERO_ERR_ARGUMENT;
    *out = NULL;
    zero_ctx *z = (zero_ctx *)calloc(1, sizeof *z);
    if (!z) {
        zp_group_abort(comm, "zero_create: no memory for the context");
        return ZERO_ERR_MEMORY;
    }
    *out = z;
    z->cfg = *cfg;
    z->phase = ZP_NEW;
    z->call = "zero_create";
    z->comm.nranks = 1;
    zero_result r = zp_check(z, zp_device_open(&z->device));
    if (!r)
        r = zp_check(z, zp_comm_open(&z->comm, &z->device, comm,
                                     cfg->timeout_s > 0 ? cfg->timeout_s : ZP_TIMEOUT_S));
    if (!r)
        z->dead = r =
            zp_config_check(z); /* peers see the same values, or learn it from zero_destroy */
    if (r && !z->comm.board) zp_group_abort(comm, z->text);
    return r;
}

static zero_result zp_tensor_check(zero_ctx *z, const zero_tensor_desc *d) {
    if (!d || !d->name || !d->name[0])
        return zp_fail(z, ZERO_ERR_ARGUMENT, "a tensor needs a name");
    if (zp_tensor_find(z, d->name))
        return zp_fail(z, ZERO_ERR_ARGUMENT, "tensor %s was announced before", d->name);
    if (d->layers < 0 || d->unit < 0 || d->uses < 0 || d->layers > 1 << 20 || d->unit > 1 << 20)
        return zp_fail(z, ZERO_ERR_ARGUMENT,
                       "tensor %s: layers %d, unit %d, uses %d, expected 0 or more", d->name,
                       d->layers, d->unit, d->uses);
    const size_t most = ((size_t)1 << 48) / (size_t)(d->layers ? d->layers : 1);
    if (d->numel < 1 || d->numel > most)
        return zp_fail(z, ZERO_ERR_ARGUMENT, "tensor %s: numel is %zu, expected 1..%zu", d->name,
                       d->numel, most);
    if (d->flags & ~(ZERO_KEEP | ZERO_NO_DECAY | ZERO_OVERWRITTEN | ZERO_ONE_D | ZERO_BY_SLOT))
        return zp_fail(z, ZERO_ERR_ARGUMENT, "tensor %s: flags %d, unknown bits", d->name,
                       d->flags);
    if ((d->flags & ZERO_OVERWRITTEN) && z->cfg.micro_steps > 1 && z->type[ZP_GRADIENTS] == ZERO_F32
        && z->cfg.accumulation == ZERO_ACCUMULATE_LOCAL)
        return zp_fail(z, ZERO_ERR_ARGUMENT,
                       "tensor %s is OVERWRITTEN, but %d micro-steps accumulate in place "
                       "(accumulation LOCAL)",
                       d->name, z->cfg.micro_steps);
    return ZERO_OK;
}

zero_result zero_tensor(zero_ctx *z, const zero_tensor_desc *desc) {
    ZP_ENTER(z, "zero_tensor", ZP_NEW, "tensors are announced before zero_build");
    ZP_TRY(zp_tensor_check(z, desc));
    zp_tensor *list =
        (zp_tensor *)zp_list_grow(z->tensors, z->ntensors, &z->tensors_cap, sizeof *list);
    if (list) z->tensors = list;
    char *name = list ? strdup(desc->name) : NULL;
    if (!name) return zp_fail(z, ZERO_ERR_MEMORY, "the name of tensor %s", desc->name);
    zp_tensor *t = &z->tensors[z->ntensors++];
    memset(t, 0, sizeof *t);
    t->desc = *desc;
    t->desc.name = name;
    if (!t->desc.layers) t->desc.layers = 1;
    if (!t->desc.uses) t->desc.uses = 1;
    t->lr_factor = t->decay_factor = 1;
    return ZERO_OK;
}

zero_result zero_tensor_group(zero_ctx *z, const char *name, float lr_factor, float decay_factor) {
    ZP_ENTER(z, "zero_tensor_group", ZP_NEW, "groups are made before zero_build");
    zp_tensor *t;
    ZP_TRY(zp_tensor_named(z, name, &t));
    if (!zp_not_below(lr_factor) || !zp_not_below(decay_factor))
        return zp_fail(z, ZERO_ERR_ARGUMENT,
                       "tensor %s: lr_factor %g, decay_factor %g, expected 0 or more", name,
                       (double)lr_factor, (double)decay_factor);
    t->lr_factor = lr_factor;
    t->decay_factor = decay_factor;
    return ZERO_OK;
}

/* The plan of the tensors so far. */
static zero_result zp_plan_now(zero_ctx *z) {
    if (z->phase != ZP_NEW) return ZERO_OK;
    ZP_TRY(zp_plan_make(z));
    return zp_state_plan(z);
}

zero_result zero_query_plan(zero_ctx *z, zero_plan *plan) {
    ZP_ENTER(z, "zero_query_plan", ZP_ANY, "");
    if (!plan) return zp_fail(z, ZERO_ERR_ARGUMENT, "plan is NULL");
    ZP_TRY(zp_plan_now(z));
    *plan = z->plan;
    return ZERO_OK;
}

zero_result zero_query_plan_unit(zero_ctx *z, int unit, zero_plan_unit *plan) {
    ZP_ENTER(z, "zero_query_plan_unit", ZP_ANY, "");
    ZP_TRY(zp_plan_now(z));
    if (!plan || unit < 0 || unit >= z->plan.units)
        return zp_fail(z, ZERO_ERR_ARGUMENT, "unit %d, expected 0..%d", unit, z->plan.units - 1);
    const zp_unit *x = &z->layout.unit[unit];
    plan->numel = x->content;
    plan->padded = x->padded;
    plan->reductions = zp_plan_reductions(z, unit);
    plan->gathers = z->place[unit].gathers;
    plan->resident = z->place[unit].whole[ZP_PARAMETERS];
    plan->sent_bytes = zp_plan_sent(z, unit);
    return ZERO_OK;
}

/* The pointers of a unit's tensors go to different fields. */
static zero_result zp_build_fields(zero_ctx *z, int u) {
    const zp_unit *x = &z->layout.unit[u];
    for (int i = 0; i < x->members; i++)
        for (int k = 0; k < i; k++) {
            const zero_tensor_desc *a = &z->tensors[x->member[k].tensor].desc,
                                   *b = &z->tensors[x->member[i].tensor].desc;
            if (a == b || a->field != b->field || ((a->flags | b->flags) & ZERO_BY_SLOT)) continue;
            return zp_fail(z, ZERO_ERR_ARGUMENT,
                           "tensors %s and %s of unit %d have the same field (offset %zu)", a->name,
                           b->name, u, a->field);
        }
    return ZERO_OK;
}

/* The units of all tensors are 0..n-1, with no gap. */
static zero_result zp_build_units(zero_ctx *z) {
    for (int u = 0; u < z->layout.units; u++) {
        int known = z->layout.unit[u].members > 0;
        for (int t = 0; t < z->ntensors && !known; t++) { /* KEEP tensors lie elsewhere */
            const zero_tensor_desc *d = &z->tensors[t].desc;
            known = u >= d->unit && u < d->unit + d->layers;
        }
        if (!known)
            return zp_fail(z, ZERO_ERR_ARGUMENT, "unit %d has no tensor, though units go up to %d",
                           u, z->layout.units - 1);
    }
    for (int u = 0; u < z->layout.all; u++) ZP_TRY(zp_build_fields(z, u));
    return ZERO_OK;
}

zero_result zero_build(zero_ctx *z) {
    ZP_ENTER(z, "zero_build", ZP_NEW, "the context is built already");
    ZP_TRY(zp_build_agree(z));
    zero_result r = z->ntensors ? ZERO_OK : zp_fail(z, ZERO_ERR_STATE, "no tensor was announced");
    if (!r) r = zp_plan_now(z);
    if (!r) r = zp_build_units(z);
    if (r) return z->dead = r; /* but for MEMORY the same on all ranks: they have agreed */
    ZP_TRY(zp_build_allocate(z));
    z->phase = ZP_IDLE;
    return ZERO_OK;
}

void zero_destroy(zero_ctx *z) {
    if (!z) return;
    const int broken =
        z->dead || zp_failure_result(&z->comm.failure) || !(z->phase & (ZP_IDLE | ZP_REDUCED));
    if (broken) /* first: this rank's own queue may wait for peers that wait for it */
        zp_comm_abort(&z->comm, z->text[0] ? z->text : "it gave up its context");
    for (int i = 0; i < 2; i++) zp_stream_close(&z->stream[i]);
    zp_stream_close(&z->compute);
    if (z->comm.board) __atomic_store_n(&z->comm.board->left[z->comm.me], 1, __ATOMIC_RELEASE);
    for (int u = 0; u < z->layout.all && z->live; u++) {
        zp_live *live = &z->live[u];
        zp_event_close(&live->written);
        zp_event_close(&live->gathered);
        zp_event_close(&live->reduction);
        zp_event_close(&live->updated);
    }
    for (int b = 0; b < z->pool[ZP_PARAMETERS].n; b++)
        zp_event_close(&z->pool[ZP_PARAMETERS].buffer[b].released);
    zp_event_close(&z->agreed);
    zp_event_close(&z->reported);
    if (!zp_comm_abandons(&z->comm, broken)) {
        zp_region_close(&z->comm, &z->region[ZP_PARAMETERS]);
        zp_region_close(&z->comm, &z->region[ZP_GRADIENTS]);
    }
    zp_device_free(z->arena);
    zp_host_free(z->pinned);
#if ZERO_CHECK
    zp_checks_close(z);
#endif
    zp_comm_close(&z->comm, broken);
    zp_plan_close(z);
    for (int t = 0; t < z->ntensors; t++) free((void *)(uintptr_t)z->tensors[t].desc.name);
    free(z->ranges[0]);
    free(z->ranges[1]);
    free(z->tensors);
    free(z->slots);
    free(z->live);
    free(z->bucket);
    zp_device_close(&z->device);
    free(z);
}

const char *zero_last_error(const zero_ctx *z) { return z ? z->text : "no context"; }
void zero_query_config(const zero_ctx *z, zero_config *cfg) {
    *cfg = z->cfg;
    cfg->bucket_numel = z->bucket_numel;
}
int zero_rank(const zero_ctx *z) { return z->comm.rank; }
int zero_nranks(const zero_ctx *z) { return z->comm.nranks; }

/* ---- pointers ---- */

/* The KEEP unit's memory never moves. */
static void zp_point_kept(zero_ctx *z, void *params, void *grads) {
    const int u = z->layout.units;
    zp_point(z, ZP_PARAMETERS, u, zp_unit_memory(z, ZP_PARAMETERS, u), params);
    zp_point(z, ZP_GRADIENTS, u, zp_unit_memory(z, ZP_GRADIENTS, u), grads);
}

zero_result zero_bind(zero_ctx *z, void *params, void *grads) {
    ZP_ENTER(z, "zero_bind", ZP_BUILT, "pointers are there after zero_build");
    zp_point_kept(z, params, grads);
    z->bound = 1;
    return ZERO_OK;
}

zero_result zero_slot(zero_ctx *z, const char *name, int layer, void **param, void **grad) {
    ZP_ENTER(z, "zero_slot", ZP_BUILT, "pointers are there after zero_build");
    zp_tensor *t;
    ZP_TRY(zp_tensor_named(z, name, &t));
    if (layer < 0 || layer >= t->desc.layers)
        return zp_fail(z, ZERO_ERR_ARGUMENT, "%s: layer %d, expected 0..%d", name, layer,
                       t->desc.layers - 1);
    zp_slot *list = (zp_slot *)zp_list_grow(z->slots, z->nslots, &z->slots_cap, sizeof *list);
    if (!list) return zp_fail(z, ZERO_ERR_MEMORY, "the slot of %s", name);
    z->slots = list;
    zp_slot *s = &z->slots[z->nslots++];
    s->tensor = (int)(t - z->tensors);
    s->layer = layer;
    s->place[ZP_PARAMETERS] = param;
    s->place[ZP_GRADIENTS] = grad;
    if (t->desc.flags & ZERO_KEEP) zp_point_kept(z, NULL, NULL);
    return ZERO_OK;
}

/* ---- a pass ---- */

/* A function that the host calls in every pass: its time is counted. */
#define ZP_TIMED(z, call)                                                                          \
    do {                                                                                           \
        const double start = zp_seconds();                                                         \
        const zero_result result = call;                                                           \
        if (z) (z)->hooks_s += zp_seconds() - start;                                               \
        return result;                                                                             \
    } while (0)

static zero_result zp_pass_begin_train(zero_ctx *z, int micro, int micro_steps) {
    const int expected = z->phase == ZP_BETWEEN ? z->micro + 1 : 0;
    if (micro_steps < 1 || micro_steps > z->cfg.micro_steps)
        return zp_fail(z, ZERO_ERR_ARGUMENT, "micro_steps is %d, the configuration allows 1..%d",
                       micro_steps, z->cfg.micro_steps);
    if (z->phase == ZP_REDUCED)
        return zp_fail(z, ZERO_ERR_STATE, "zero_step is due after zero_reduce");
    if (micro != expected || (expected && micro_steps != z->micro_steps) || micro >= micro_steps)
        return zp_fail(z, ZERO_ERR_STATE, "micro-step %d of %d, expected %d of %d", micro,
                       micro_steps, expected, expected ? z->micro_steps : micro_steps);
    z->micro = micro;
    z->micro_steps = micro_steps;
    zp_micro_begin(z);
    if (micro == 0)
        ZP_DO(z, zp_clear(&z->stream[ZP_GRADIENTS], z->verdict, ZP_VERDICT * sizeof *z->verdict));
    return zp_gradient_touch(z, z->layout.units, 1);
}

static zero_result zp_hook_pass_begin(zero_ctx *z, zero_pass kind, int micro, int micro_steps) {
    ZP_ENTER(z, "zero_pass_begin", ZP_ANY, "");
    if (z->phase & (ZP_NEW | ZP_IN_PASS | ZP_OPEN))
        return zp_fail(z, ZERO_ERR_STATE, "%s",
                       z->phase == ZP_NEW    ? "zero_build comes first"
                       : z->phase == ZP_OPEN ? "the state is open: zero_state_end comes first"
                                             : "the last pass has not ended");
    if (kind != ZERO_TRAIN && kind != ZERO_EVAL)
        return zp_fail(z, ZERO_ERR_ARGUMENT, "no such pass: %d", (int)kind);
    ZP_CHECK(zp_checks_pass(z));
    if (kind == ZERO_TRAIN) ZP_TRY(zp_pass_begin_train(z, micro, micro_steps));
    ZP_DO(z, zp_event_wait(&z->compute, &z->live[z->layout.units].gathered)); /* KEEP */
    z->resume = z->phase;
    z->phase = ZP_IN_PASS;
    z->pass = kind;
    z->trace[kind].at = 0;
    return ZERO_OK;
}
zero_result zero_pass_begin(zero_ctx *z, zero_pass kind, int micro, int micro_steps) {
    ZP_TIMED(z, zp_hook_pass_begin(z, kind, micro, micro_steps));
}

/* Every hook: inside a pass, a unit of the host's. */
static zero_result zp_hook(zero_ctx *z, const char *call, int unit) {
    ZP_ENTER(z, call, ZP_ANY, "");
    if (z->phase != ZP_IN_PASS)
        return zp_fail(z, ZERO_ERR_STATE, "unit %d: no pass has begun", unit);
    if (unit < 0 || unit >= z->layout.units)
        return zp_fail(z, ZERO_ERR_ARGUMENT, "unit %d, expected 0..%d", unit, z->layout.units - 1);
    return ZERO_OK;
}

/* NULL does for a host's struct only where no tensor of the unit has a field in it. */
static zero_result zp_host_struct(zero_ctx *z, int unit, const void *host, const char *of) {
    const zp_unit *x = &z->layout.unit[unit];
    for (int i = 0; i < x->members && !host; i++) {
        const zero_tensor_desc *d = &z->tensors[x->member[i].tensor].desc;
        if (!(d->flags & ZERO_BY_SLOT))
            return zp_fail(z, ZERO_ERR_ARGUMENT,
                           "unit %d: the host's struct of %s is NULL, but tensor %s has a "
                           "field in it",
                           unit, of, d->name);
    }
    return ZERO_OK;
}

static zero_result zp_hook_forward_begin(zero_ctx *z, int unit, void *params) {
    ZP_TRY(zp_hook(z, "zero_forward_begin", unit));
    ZP_TRY(zp_host_struct(z, unit, params, "parameters"));
    ZP_CHECK(zp_checks_hook(z, ZP_HOOK_FORWARD, unit));
    ZP_TRY(zp_parameters_open(z, unit));
    z->live[unit].forward_opens++;
    zp_point(z, ZP_PARAMETERS, unit, zp_unit_memory(z, ZP_PARAMETERS, unit), params);
    return ZERO_OK;
}
zero_result zero_forward_begin(zero_ctx *z, int unit, void *params) {
    ZP_TIMED(z, zp_hook_forward_begin(z, unit, params));
}

static zero_result zp_hook_forward_end(zero_ctx *z, int unit) {
    ZP_TRY(zp_hook(z, "zero_forward_end", unit));
    if (!z->live[unit].forward_opens)
        return zp_fail(z, ZERO_ERR_STATE, "unit %d: no forward has begun", unit);
    ZP_CHECK(zp_checks_hook(z, ZP_HOOK_FORWARD_END, unit));
    z->live[unit].forward_opens--;
    return zp_parameters_close(z, unit);
}
zero_result zero_forward_end(zero_ctx *z, int unit) { ZP_TIMED(z, zp_hook_forward_end(z, unit)); }

static zero_result zp_hook_backward_begin(zero_ctx *z, int unit, void *params, void *grads) {
    ZP_TRY(zp_hook(z, "zero_backward_begin", unit));
    zp_live *live = &z->live[unit];
    if (z->pass != ZERO_TRAIN)
        return zp_fail(z, ZERO_ERR_STATE, "unit %d: an evaluation has no backward", unit);
    if (zp_unit_written(z, unit))
        return zp_fail(z, ZERO_ERR_STATE,
                       "unit %d: its gradient is complete after %d uses, here is one more; see "
                       "zero_tensor_desc.uses",
                       unit, z->layout.unit[unit].uses);
    if (live->backward_opens == 64)
        return zp_fail(z, ZERO_ERR_STATE, "unit %d: 64 backwards are nested", unit);
    ZP_TRY(zp_host_struct(z, unit, grads, "gradients"));
    ZP_CHECK(zp_checks_hook(z, ZP_HOOK_BACKWARD, unit));
    ZP_TRY(zp_gradient_touch(z, unit, 0));
    if (params) ZP_TRY(zp_parameters_open(z, unit));
    if (!live->backward_opens) ZP_CHECK(zp_checks_turn(z, unit, ZP_GRADIENTS, 1));
    live->with_parameters = live->with_parameters << 1 | (params != NULL);
    live->backward_opens++;
    if (params)
        zp_point(z, ZP_PARAMETERS, unit, zp_unit_memory(z, ZP_PARAMETERS, unit), params);
    else if (!live->parameter_opens) /* what was there before is not to be read */
        zp_point(z, ZP_PARAMETERS, unit, NULL, NULL);
    zp_point(z, ZP_GRADIENTS, unit, zp_unit_memory(z, ZP_GRADIENTS, unit), grads);
    return ZERO_OK;
}
zero_result zero_backward_begin(zero_ctx *z, int unit, void *params, void *grads) {
    ZP_TIMED(z, zp_hook_backward_begin(z, unit, params, grads));
}

static zero_result zp_hook_backward_end(zero_ctx *z, int unit) {
    ZP_TRY(zp_hook(z, "zero_backward_end", unit));
    zp_live *live = &z->live[unit];
    if (!live->backward_opens)
        return zp_fail(z, ZERO_ERR_STATE, "unit %d: no backward has begun", unit);
    ZP_CHECK(zp_checks_hook(z, ZP_HOOK_BACKWARD_END, unit));
    if (live->backward_opens == 1) ZP_CHECK(zp_checks_turn(z, unit, ZP_GRADIENTS, 0));
    if (live->with_parameters & 1) ZP_TRY(zp_parameters_close(z, unit));
    live->with_parameters >>= 1;
    if (--live->backward_opens || ++live->writes < z->layout.unit[unit].uses) return ZERO_OK;
    return zp_reduces_now(z) && z->layout.unit[unit].numel ? zp_bucket_add(z, unit) : ZERO_OK;
}
zero_result zero_backward_end(zero_ctx *z, int unit) { ZP_TIMED(z, zp_hook_backward_end(z, unit)); }

static zero_result zp_hook_pass_end(zero_ctx *z) {
    ZP_ENTER(z, "zero_pass_end", ZP_IN_PASS, "no pass has begun");
    for (int u = 0; u < z->layout.units; u++)
        if (z->live[u].forward_opens || z->live[u].backward_opens)
            return zp_fail(z, ZERO_ERR_STATE, "unit %d: its %s has begun and not ended", u,
                           z->live[u].forward_opens ? "forward" : "backward");
    ZP_CHECK(zp_checks_compare(z));
    z->trace[z->pass].n = z->trace[z->pass].at;
    z->phase = z->resume;
    if (z->pass == ZERO_EVAL) {
        z->looked |= z->mapped && (z->phase & (ZP_BETWEEN | ZP_REDUCED));
        return ZERO_OK;
    }
    z->phase = ZP_BETWEEN;
    return zp_gradients_finish(z);
}
zero_result zero_pass_end(zero_ctx *z) { ZP_TIMED(z, zp_hook_pass_end(z)); }

/* A dynamic scale is known once the last step's verdict is. */
float zero_loss_scale(zero_ctx *z) {
    z->scale_asked |= z->phase != ZP_REDUCED; /* there it is still the last step's */
    if (z->cfg.scaler.fixed == 0 && z->stepped && z->phase != ZP_NEW) (void)zp_report(z);
    return z->report.scale;
}

/* ---- a step ---- */

zero_result zero_reduce(zero_ctx *z) {
    ZP_ENTER(z, "zero_reduce", ZP_ANY, "");
    if (z->phase != ZP_BETWEEN || z->micro + 1 != z->micro_steps)
        return zp_fail(z, ZERO_ERR_STATE, "the %d micro-steps of the step are not complete",
                       z->micro_steps);
    if (!z->scale_asked && z->cfg.scaler.fixed != 1)
        return zp_fail(z, ZERO_ERR_STATE,
                       "the loss scale was not asked for: the loss must be multiplied by "
                       "zero_loss_scale before backward");
    z->scale_asked = 0;
    zp_stream *s = &z->stream[ZP_GRADIENTS];
    zp_judge_args judge = {z->control, z->verdicts, z->comm.nranks};
    ZP_DO(z, zp_comm_verdicts(&z->comm, s, &z->region[ZP_GRADIENTS], z->verdict_at, z->verdicts));
    ZP_DO(z, zp_judge(s, &judge, 1));
    ZP_DO(z, zp_event_record(s, &z->agreed));
    z->phase = ZP_REDUCED;
    return ZERO_OK;
}

zero_result zero_norm(zero_ctx *z, double *norm) {
    ZP_ENTER(z, "zero_norm", ZP_REDUCED, "the norm is there between zero_reduce and zero_step");
    if (!norm) return zp_fail(z, ZERO_ERR_ARGUMENT, "norm is NULL");
    ZP_DO(z, zp_event_wait(&z->compute, &z->agreed));
    ZP_TRY(zp_report_send(z));
    ZP_TRY(zp_report(z));
    *norm = zp_mean_norm(&z->report, z->report.scale);
    return ZERO_OK;
}

/* What was agreed is decided, and ends the step. */
static zero_result zp_step_decide(zero_ctx *z, const zp_decide_args *decide) {
    ZP_DO(z, zp_event_wait(&z->compute, &z->agreed));
    ZP_DO(z, zp_decide(&z->compute, decide, 1));
    ZP_TRY(zp_report_send(z));
    z->stepped = 1;
    z->phase = ZP_IDLE;
    return ZERO_OK;
}

zero_result zero_step(zero_ctx *z, const zero_hyper *h) {
    ZP_ENTER(z, "zero_step", ZP_REDUCED, "zero_reduce comes first");
    if (!h) return zp_fail(z, ZERO_ERR_ARGUMENT, "hyper is NULL");
    const int momentum_alone = z->cfg.optimizer == ZERO_SGD || z->cfg.optimizer == ZERO_NESTEROV;
    if (!zp_not_below(h->lr) || !zp_not_below(h->beta1) || h->beta1 >= 1
        || (!momentum_alone && (!zp_not_below(h->beta2) || h->beta2 >= 1 || !zp_not_below(h->eps)))
        || !(h->max_norm >= 0) || !zp_not_below(h->weight_decay))
        return zp_fail(z, ZERO_ERR_ARGUMENT,
                       "lr %g, betas %g and %g, eps %g, weight_decay %g, max_norm %g: expected "
                       "none below 0, betas below 1",
                       (double)h->lr, (double)h->beta1, (double)h->beta2, (double)h->eps,
                       (double)h->weight_decay, (double)h->max_norm);
    if (h->eps == 0 && (z->cfg.optimizer == ZERO_ADAMW || z->cfg.optimizer == ZERO_ADAM))
        return zp_fail(z, ZERO_ERR_ARGUMENT,
                       "eps is 0: a weight whose gradient is zero would become 0/0; 1e-8 is usual");
    zp_decide_args decide = {z->control, *h, z->cfg.scaler, !z->cfg.no_overflow_check, 0};
    if (z->looked) { /* rare: the update waits until nobody reads what it changes */
        ZP_DO(z, zp_stream_sync(&z->compute));
        ZP_DO(z, zp_comm_barrier(&z->comm));
        z->looked = 0;
    }
    ZP_TRY(zp_step_decide(z, &decide));
    ZP_TRY(zp_update_all(z, h));
    ZP_CHECK(zp_checks_seal(z, 0));
    return ZERO_OK;
}

zero_result zero_skip_step(zero_ctx *z) {
    zp_decide_args decide;
    ZP_ENTER(z, "zero_skip_step", ZP_REDUCED, "zero_reduce comes first");
    memset(&decide, 0, sizeof decide);
    decide.control = z->control;
    decide.scaler = z->cfg.scaler;
    decide.drop = 1;
    return zp_step_decide(z, &decide);
}

/* Names the first bad element. */
static void zp_report_bad(const zero_ctx *z, const zp_control *c, zero_step_report *report) {
    const zp_unit *x = &z->layout.unit[(int)c->bad_unit];
    const size_t at = (size_t)c->bad_offset;
    for (int i = 0; i < x->members; i++) {
        const zp_member *m = &x->member[i];
        if (at < m->at || at >= m->at + m->numel) continue;
        report->bad_tensor = z->tensors[m->tensor].desc.name;
        report->bad_index = at - m->at + (m->layer > 0 ? (size_t)m->layer * m->numel : 0);
        report->bad_rank = (int)c->bad_rank;
    }
}

zero_result zero_step_result(zero_ctx *z, zero_step_report *report) {
    ZP_ENTER(z, "zero_step_result", ZP_ANY, "");
    if (!z->stepped) return zp_fail(z, ZERO_ERR_STATE, "no step was made yet");
    if (!report) return zp_fail(z, ZERO_ERR_ARGUMENT, "report is NULL");
    if (z->phase == ZP_REDUCED || (z->phase == ZP_IN_PASS && z->resume == ZP_REDUCED))
        return zp_fail(z, ZERO_ERR_STATE, "ask before the next zero_reduce or after zero_step");
    ZP_TRY(zp_report(z));
    const zp_control *c = &z->report;
    memset(report, 0, sizeof *report);
    report->stepped = !c->skip;
    report->norm = zp_mean_norm(c, c->used_scale);
    report->loss_scale = c->used_scale;
    report->next_loss_scale = c->scale;
    report->steps = c->steps;
    report->skipped = c->skipped;
    if (c->bad_unit >= 0) zp_report_bad(z, c, report);
    if (!c->at_floor) return ZERO_OK;
    return zp_fail(z, ZERO_ERR_SCALE,
                   "tensor %s, element %zu, overflows at the smallest loss scale, %g",
                   report->bad_tensor, report->bad_index, (double)c->used_scale);
}

/* ---- tensors by name ---- */

zero_result zero_read_tensor(zero_ctx *z, const char *name, zero_kind kind, size_t first,
                             size_t count, float *out) {
    zp_tensor *t;
    ZP_TRY(zp_access_begin(z, "zero_read_tensor", name, kind, first, count, &t));
    for (size_t done = 0; done < count;) {
        const zp_run run = zp_run_at(z, t, first + done, count - done);
        ZP_TRY(zp_read_run(z, kind, &run, out ? out + done : NULL));
        done += run.numel;
    }
    z->looked |= z->mapped && z->phase == ZP_REDUCED;
    return ZERO_OK;
}

zero_result zero_write_tensor(zero_ctx *z, const char *name, zero_kind kind, size_t first,
                              size_t count, const float *values) {
    zp_tensor *t;
    ZP_TRY(zp_access_begin(z, "zero_write_tensor", name, kind, first, count, &t));
    if (!values && count) return zp_fail(z, ZERO_ERR_ARGUMENT, "%s: values is NULL", name);
    /* behind it no peer reads the old values any more */
    ZP_TRY(zp_write_agree(z, t, kind, first, values, count));
    if (kind == ZERO_GRADIENT) ZP_TRY(zp_write_fits(z, name, first, values, count));
    for (size_t done = 0; done < count;) {
        const zp_run run = zp_run_at(z, t, first + done, count - done);
        ZP_TRY(zp_write_run(z, kind, &run, values + done));
        done += run.numel;
    }
    if (kind == ZERO_PARAMETER || kind == ZERO_MASTER) zp_pool_forget(&z->pool[ZP_PARAMETERS]);
    ZP_DO(z, zp_stream_sync(&z->compute));
    ZP_CHECK(zp_checks_seal(z, 0));
    return zp_check(z, zp_comm_barrier(&z->comm));
}

/* ---- state ---- */

#define ZP_NOT_OPEN "the state is not open: zero_state_begin comes first"

zero_result zero_state_begin(zero_ctx *z) {
    ZP_ENTER(z, "zero_state_begin", ZP_ANY, "");
    if (z->phase != ZP_IDLE)
        return zp_fail(z, ZERO_ERR_STATE,
                       z->phase & (ZP_IN_PASS | ZP_BETWEEN | ZP_REDUCED)
                           ? "in the middle of a step: what micro-steps have added up is no state; "
                             "ask after zero_step"
                           : "the context is not built, or its state is open already");
    ZP_DO(z, zp_stream_sync(&z->stream[ZP_PARAMETERS])); /* gathers ahead read what may be put */
    ZP_DO(z, zp_stream_sync(&z->compute));
    ZP_TRY(zp_report(z));
    ZP_DO(z, zp_comm_barrier(&z->comm)); /* behind it no peer reads what may be put */
    z->phase = ZP_OPEN;
    return ZERO_OK;
}

int zero_state_ranges(const zero_ctx *z, int whole) { return z->nranges[whole != 0]; }

zero_result zero_state_range(zero_ctx *z, int whole, int i, zero_range *range) {
    ZP_ENTER(z, "zero_state_range", ZP_ANY, "");
    if (!range || i < 0 || i >= z->nranges[whole != 0])
        return zp_fail(z, ZERO_ERR_ARGUMENT, "range %d, expected 0..%d", i,
                       z->nranges[whole != 0] - 1);
    *range = z->ranges[whole != 0][i];
    return ZERO_OK;
}

zero_result zero_state_get(zero_ctx *z, const zero_range *range, void *out) {
    ZP_ENTER(z, "zero_state_get", ZP_OPEN, ZP_NOT_OPEN);
    return zp_state_move(z, range, NULL, (char *)out);
}

zero_result zero_state_put(zero_ctx *z, const zero_range *range, const void *values) {
    ZP_ENTER(z, "zero_state_put", ZP_OPEN, ZP_NOT_OPEN);
    return zp_state_move(z, range, (const char *)values, NULL);
}

void zero_state_counters(const zero_ctx *z, zero_counters *c) {
    c->steps = z->report.steps;
    c->skipped = z->report.skipped;
    c->iteration = z->report.iteration;
    c->last_overflow = z->report.last_overflow;
    c->scale = z->report.scale;
    c->hysteresis = z->report.hysteresis;
}

zero_result zero_state_set_counters(zero_ctx *z, const zero_counters *c) {
    ZP_ENTER(z, "zero_state_set_counters", ZP_OPEN, ZP_NOT_OPEN);
    if (!c || c->steps < 0 || c->skipped < 0 || c->iteration < 0 || c->last_overflow < -1
        || !(c->scale > 0) || !zp_finite((double)c->scale) || c->hysteresis < 0)
        return zp_fail(z, ZERO_ERR_ARGUMENT,
                       "counters: none may be below 0, and the scale must be above it");
    const zero_scaler *s = &z->cfg.scaler;
    const int moved = s->fixed == 0 && c->iteration > 0;
    zp_control *r = &z->report;
    r->steps = c->steps;
    r->skipped = c->skipped;
    r->iteration = moved ? c->iteration : 0;
    r->last_overflow = moved ? c->last_overflow : -1;
    r->hysteresis = moved ? c->hysteresis : s->hysteresis;
    r->scale = moved ? c->scale : s->fixed != 0 ? s->fixed : s->initial;
    *z->pinned = *r;
    ZP_DO(z, zp_copy(&z->compute, z->control, z->pinned, sizeof *z->pinned));
    return zp_check(z, zp_stream_sync(&z->compute)); /* *z->pinned is the host's again */
}

zero_result zero_state_end(zero_ctx *z, int changed) {
    ZP_ENTER(z, "zero_state_end", ZP_OPEN, ZP_NOT_OPEN);
    z->phase = ZP_IDLE;
    if (!changed) return ZERO_OK;
    ZP_TRY(zp_update_all(z, NULL));
    z->stepped = 0; /* of the last step of another run nothing is known */
    ZP_CHECK(zp_checks_seal(z, 0));
    return ZERO_OK;
}

void *zero_host_alloc(size_t bytes) { return zp_host_alloc(bytes); }
void zero_host_free(void *memory) { zp_host_free(memory); }

/* ---- numbers ---- */

size_t zero_type_bytes(zero_type type) { return zp_bytes(type); }

void zero_convert(void *to, zero_type to_type, const void *from, zero_type from_type, size_t n) {
    if (to_type == from_type) {
        if (n) memmove(to, from, n * zp_bytes(to_type));
        return;
    }
    /* a file's numbers lie anywhere: they go through memory that suits their type */
    const int straight =
        (uintptr_t)to % zp_bytes(to_type) == 0 && (uintptr_t)from % zp_bytes(from_type) == 0;
    float in[ZP_CONVERT_BLOCK], out[ZP_CONVERT_BLOCK];
    for (size_t at = 0; at < n && !straight; at += ZP_CONVERT_BLOCK) {
        const size_t k = zp_min(ZP_CONVERT_BLOCK, n - at);
        memcpy(in, (const char *)from + at * zp_bytes(from_type), k * zp_bytes(from_type));
        zero_convert(out, to_type, in, from_type, k);
        memcpy((char *)to + at * zp_bytes(to_type), out, k * zp_bytes(to_type));
    }
    if (!straight) return;
    if (from_type == ZERO_F32)
        zp_narrow(to, to_type, (const float *)from, n);
    else
        zp_widen((float *)to, from, from_type, n);
}

/* ---- small collectives ---- */

zero_result zero_all_sum(zero_ctx *z, double *values, int n) {
    ZP_ENTER(z, "zero_all_sum", ZP_ANY, "");
    if (!values || n < 0 || n * sizeof *values > ZP_MAIL_BYTES)
        return zp_fail(z, ZERO_ERR_ARGUMENT, "n is %d, expected 0..%zu", n,
                       ZP_MAIL_BYTES / sizeof *values);
    ZP_DO(z,
          zp_comm_exchange(&z->comm, ZP_CONTROL, values, (size_t)n * sizeof *values, z->comm.mail));
    for (int i = 0; i < n; i++) {
        double sum = 0;
        for (int r = 0; r < z->comm.nranks; r++) {
            double value;
            memcpy(&value, z->comm.mail + ((size_t)r * (size_t)n + (size_t)i) * sizeof value,
                   sizeof value);
            sum += value;
        }
        values[i] = sum;
    }
    return ZERO_OK;
}

zero_result zero_broadcast(zero_ctx *z, void *data, size_t bytes, int root) {
    ZP_ENTER(z, "zero_broadcast", ZP_BUILT, "zero_build comes first");
    if (root < 0 || root >= z->comm.nranks || (!data && bytes))
        return zp_fail(z, ZERO_ERR_ARGUMENT, "root is %d, expected 0..%d", root,
                       z->comm.nranks - 1);
    return zp_check(z, zp_comm_broadcast(&z->comm, data, bytes, root));
}

zero_result zero_barrier(zero_ctx *z) {
    ZP_ENTER(z, "zero_barrier", ZP_ANY, "");
    return zp_check(z, zp_comm_barrier(&z->comm));
}

/* ---- statistics ---- */

zero_result zero_query_stats(zero_ctx *z, zero_stats *stats) {
    ZP_ENTER(z, "zero_query_stats", ZP_ANY, "");
    if (!stats) return zp_fail(z, ZERO_ERR_ARGUMENT, "stats is NULL");
    if (z->phase == ZP_NEW) return zp_fail(z, ZERO_ERR_STATE, "zero_build comes first");
    memset(stats, 0, sizeof *stats);
    const double exposed = z->device.exposed_s;
    for (int s = 0; s < 2; s++) ZP_DO(z, zp_stream_sync(&z->stream[s]));
    ZP_TRY(zp_report(z));          /* as of the last step, or norm */
    z->device.exposed_s = exposed; /* asking is not training */
    stats->param_bytes = z->plan.param_bytes;
    stats->grad_bytes = z->plan.grad_bytes;
    stats->optimizer_bytes = z->plan.optimizer_bytes;
    stats->buffer_bytes = z->plan.buffer_bytes;
    stats->allocated_bytes = z->comm.allocated_bytes + z->private_bytes;
    stats->sent_bytes = z->comm.sent_bytes;
    stats->mapped_bytes = z->comm.mapped_bytes;
    stats->reductions = z->comm.reductions;
    stats->gathers = z->comm.gathers;
    stats->steps = (uint64_t)z->report.steps;
    stats->skipped = (uint64_t)z->report.skipped;
    stats->exposed_s = exposed;
    stats->hooks_s = z->hooks_s;
    return ZERO_OK;
}

#ifdef __cplusplus
}
#endif

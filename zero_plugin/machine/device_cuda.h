/* device_cuda.h - streams, events, copies and memory of the GPU; macros that make a body a kernel

   Streams, events and copies are those of CUDA. */
#pragma once

#include "lane.h"

/* A test may replace this, to get arenas that the CPU can read. */
#ifndef ZP_CUDA_MALLOC
#define ZP_CUDA_MALLOC cudaMalloc
#endif

typedef struct zp_device {
    double exposed_s;             /* not measured, because streams wait, not the calling thread */
    zp_recorder *recorder;        /* NULL: events are not recorded */
    int number;                   /* of the CUDA device */
    cudaStream_t own;             /* for work outside steps */
    struct zp_device *order;      /* NCCL: the device with which lists are ordered; NULL: none */
    struct zp_nccl_channel *list; /* if `order` is NULL: the channel with the newest list of all
                                     devices that are ordered together */
    char text[ZP_TEXT_BYTES];     /* of the first error */
} zp_device;
typedef struct zp_stream {
    cudaStream_t cuda;
    zp_device *device; /* NULL: not open */
    int made;          /* the plugin created it */
    int has_lane;      /* the stream has a lane: see zp_device_attach_lane */
    zp_lane lane;
    size_t passed;    /* tasks of the lane that the stream has waited for */
    int track;        /* the track of events.h */
    zp_record *slice; /* the open record; NULL: none */
    uint64_t last;    /* number of the last record */
} zp_stream;
typedef struct zp_event {
    cudaEvent_t cuda; /* NULL: not open */
    uint64_t after;   /* number of the last record before it; 0: none */
} zp_event;

typedef struct zp_pages { /* of CPU memory: see zp_device_open_pages */
    char *base;           /* NULL: not open */
    size_t bytes;
    int pinned;
} zp_pages;

/* Clears an error that the plugin reports, so that your cudaGetLastError does not find it. Without
   an error in `e`, an earlier error of your own code stays there. */
static cudaError_t zp_device_clear_error(cudaError_t e) {
    if (e != cudaSuccess) (void)cudaGetLastError();
    return e;
}
static zero_result zp_device_check_cuda(zp_device *d, cudaError_t e, const char *call) {
    if (zp_device_clear_error(e) == cudaSuccess) return ZERO_OK;
    if (!d->text[0]) (void)snprintf(d->text, sizeof d->text, "%s: %s", call, cudaGetErrorString(e));
    return e == cudaErrorMemoryAllocation ? ZERO_ERR_MEMORY : ZERO_ERR_DEVICE;
}
#define ZP_CUDA(d, call) ZP_TRY(zp_device_check_cuda(d, call, #call))

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
/* Returns the device whose `list` is shared by all that are ordered together. */
static zp_device *zp_device_first(zp_device *d) {
    while (d->order) d = d->order;
    return d;
}
/* Orders d's later lists with those of another device of the same thread and GPU. No list may be in
   flight. NULL: d's lists are ordered by themselves, after all earlier ones. */
ZP_UNUSED static void zp_device_order_with(zp_device *d, zp_device *other) {
    d->list = zp_device_first(d)->list;
    d->order = other;
}
/* 0: the GPU does the work of streams. */
static int zp_device_is_host(void) { return 0; }
static int zp_device_number(const zp_device *d) { return d->number; }
/* Makes the device current for a thread of the plugin. */
/* Makes the rank's device current for the calling thread. */
static void zp_device_choose(int rank) {
    int n = 0;
    if (zp_device_clear_error(cudaGetDeviceCount(&n)) == cudaSuccess && n > 0)
        (void)cudaSetDevice(rank % n);
}
/* Lets d read another device's memory. Returns ZERO_ERR_ARGUMENT if it cannot. */
static zero_result zp_device_reach(zp_device *d, int other) {
    int can = 0;
    ZP_CUDA(d, cudaDeviceCanAccessPeer(&can, d->number, other));
    if (!can) return ZERO_ERR_ARGUMENT;
    const cudaError_t e = cudaDeviceEnablePeerAccess(other, 0);
    if (zp_device_clear_error(e) == cudaErrorPeerAccessAlreadyEnabled) return ZERO_OK;
    return zp_device_check_cuda(d, e, "cudaDeviceEnablePeerAccess");
}
/* Checks that the device is current, because your code may have chosen another one. */
static zero_result zp_device_check(zp_device *d) {
    int now = d->number;
    ZP_CUDA(d, cudaGetDevice(&now));
    if (now == d->number) return ZERO_OK;
    (void)snprintf(
        d->text, sizeof d->text,
        "device %d is current, but the context was made on device %d; call cudaSetDevice first",
        now, d->number);
    return ZERO_ERR_STATE;
}

/* Sets s to the stream on which your code computes. */
static zero_result zp_device_take_stream(zp_stream *s, zp_device *d, void *stream, int threads) {
    s->cuda = (cudaStream_t)stream;
    s->device = d;
    s->made = s->has_lane = s->track = 0;
    s->slice = NULL;
    s->last = 0;
    return ZERO_OK;
}
/* Returns the stream in the form in which your code passes it. */
ZP_UNUSED static void *zp_device_stream_handle(const zp_stream *s) { return (void *)s->cuda; }
/* Opens a communication stream with priority `urgency`, or, if not `queued`, takes yours. */
static zero_result zp_device_open_stream(zp_stream *s, zp_device *d, void *stream, int queued,
                                         int urgency, int threads) {
    int least = 0, greatest = 0;
    (void)zp_device_take_stream(s, d, stream, threads);
    if (!queued) return ZERO_OK;
    ZP_CUDA(d, cudaDeviceGetStreamPriorityRange(&least, &greatest));
    const int priority = greatest + 1 - urgency < least ? greatest + 1 - urgency : least;
    ZP_CUDA(d, cudaStreamCreateWithPriority(&s->cuda, cudaStreamNonBlocking, priority));
    s->made = 1;
    return ZERO_OK;
}
static void zp_device_close_stream(zp_stream *s) {
    if (s->device) (void)cudaStreamSynchronize(s->cuda);
    if (s->device && s->has_lane) zp_lane_close(&s->lane);
    if (s->made) (void)cudaStreamDestroy(s->cuda);
    s->cuda = NULL; /* but keeps the lane: records still read its progress */
    s->device = NULL;
    s->made = s->has_lane = 0;
}
/* Waits until the lane has run all tasks, even if the device has failed. */
static void zp_device_finish_stream(zp_stream *s) {
    if (s->has_lane) zp_lane_sync(&s->lane);
}
static zero_result zp_device_sync_stream(zp_stream *s) {
    ZP_CUDA(s->device, cudaStreamSynchronize(s->cuda));
    return ZERO_OK;
}

/* A STREAM WITH A LANE. The lane runs the pushed tasks in order, on the CPU. For each task the
   stream waits before its later work. The enqueuing thread waits only if the lane is ZP_LANE_TASKS
   tasks late: see zp_device_wait_lane_room. The lane makes no CUDA calls.
     The stream waits in a callback, on a thread of the driver. All streams of the process may share
   that thread, including those of other ranks. So when the stream reaches a task, the task's inputs
   must be ready, or must need no further callback. Otherwise two ranks could deadlock: rank A's
   callback waits for A's task, which waits for work after rank B's callback, and the driver cannot
   call B's because A's still runs.
     A lane waits for a stream with a gate, which zp_gate_open opens in a
   callback that does not wait. Before a task that passes a gate is pushed, the stream must be made
   to wait, by an event, for work after the gate's opening. So the gate is open when the stream
   reaches that task, and the lane only computes, for a finite time. A CUDA event cannot replace the
   gate: a calling thread that is a step ahead would record it again, and the lane would wait for
   the later record. */
ZP_UNUSED static zero_result zp_device_attach_lane(zp_stream *s, int threads) {
    s->passed = 0;
    ZP_TRY(zp_lane_open(&s->lane, threads));
    s->has_lane = 1;
    return ZERO_OK;
}
static void zp_device_join_lane(void *stream) {
    zp_stream *s = (zp_stream *)stream;
    const zp_lane_event task = {&s->lane, ++s->passed, 0};
    zp_lane_wait_event(&task);
}
static int zp_device_lane_is_full(const zp_lane *l) {
    return l->tail - __atomic_load_n(&l->head, __ATOMIC_ACQUIRE) == ZP_LANE_TASKS;
}
/* Waits for room in a lane, to which only this thread pushes tasks. Returns the device's error if
   it fails meanwhile. */
static zero_result zp_device_wait_lane_room(zp_stream *s, const zp_lane *l) {
    for (int naps = 1; zp_device_lane_is_full(l); naps++) {
        zp_nap();
        if (naps % 128) continue;
        const cudaError_t e = zp_device_clear_error(cudaStreamQuery(s->cuda));
        if (e != cudaErrorNotReady) ZP_TRY(zp_device_check_cuda(s->device, e, "cudaStreamQuery"));
    }
    return ZERO_OK;
}
static zero_result zp_device_push_task(zp_stream *s, zp_task_fn fn, const void *args, size_t bytes,
                                       size_t n) {
    if (!s->has_lane) return ZERO_ERR_UNSUPPORTED;
    ZP_TRY(zp_device_wait_lane_room(s, &s->lane));
    zp_lane_push(&s->lane, s->slice, fn, args, bytes, n);
    if (s->slice) s->slice->reached = &s->lane.head; /* the lane writes its times */
    ZP_CUDA(s->device, cudaLaunchHostFunc(s->cuda, zp_device_join_lane, s));
    return ZERO_OK;
}
/* Enqueues a call of fn(arg). The function must make no CUDA calls. */
static zero_result zp_device_call_from_stream(zp_stream *s, void (*fn)(void *), void *arg) {
    ZP_CUDA(s->device, cudaLaunchHostFunc(s->cuda, fn, arg));
    return ZERO_OK;
}
static zero_result zp_device_open_event(zp_device *d, zp_event *e) {
    ZP_CUDA(d, cudaEventCreateWithFlags(&e->cuda, cudaEventDisableTiming));
    return ZERO_OK;
}

/* Sets the track of the records that s makes from now on. */
static void zp_device_set_track(zp_stream *s, int track) {
    s->track = s->made ? track : (int)ZERO_TRACK_COMPUTE;
}

static zero_result zp_device_record_event(zp_stream *s, zp_event *e) {
    e->after = s->last;
    ZP_CUDA(s->device, cudaEventRecord(e->cuda, s->cuda));
    return ZERO_OK;
}
static zero_result zp_device_wait_event(zp_stream *s, zp_event *e) {
    zp_recorder *t = s->device->recorder;
    zp_record *r = t ? t->begin(s, ZERO_EVENT_WAIT, -1, 0) : NULL;
    if (r) r->event.flow = e->after;
    const uint64_t last = s->last;
    ZP_CUDA(s->device, cudaStreamWaitEvent(s->cuda, e->cuda, 0));
    if (r) t->end(s, r);
    s->last = last; /* a later wait is not for this wait */
    return ZERO_OK;
}
static int zp_device_event_passed(const zp_event *e) {
    return zp_device_clear_error(cudaEventQuery(e->cuda)) == cudaSuccess;
}
/* The calling thread waits for the event. */
static zero_result zp_device_sync_event(zp_device *d, zp_event *e) {
    zp_record *r = zp_events_record_wait(d->recorder, ZERO_TRACK_HOST, e->after);
    const double start = r ? zp_seconds() : 0;
    const cudaError_t error = cudaEventSynchronize(e->cuda);
    if (r) zp_events_record_run(r, start, zp_seconds());
    ZP_CUDA(d, error);
    return ZERO_OK;
}
static void zp_device_close_event(zp_event *e) {
    if (e->cuda) (void)cudaEventDestroy(e->cuda);
    e->cuda = NULL;
}
static zero_result zp_device_copy(zp_stream *s, void *to, const void *from, size_t bytes) {
    if (bytes) ZP_CUDA(s->device, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, s->cuda));
    return ZERO_OK;
}
static zero_result zp_device_clear(zp_stream *s, void *p, size_t bytes) {
    if (bytes) ZP_CUDA(s->device, cudaMemsetAsync(p, 0, bytes, s->cuda));
    return ZERO_OK;
}
/* Clears p. Returns NULL on failure, which counts as lack of memory, not as a device error. */
static void *zp_device_alloc_cleared(zp_device *d, void *p, size_t bytes) {
    if (zp_device_clear_error(cudaMemsetAsync(p, 0, bytes, d->own)) != cudaSuccess) return NULL;
    return zp_device_clear_error(cudaStreamSynchronize(d->own)) == cudaSuccess ? p : NULL;
}
static void *zp_device_alloc(zp_device *d, size_t bytes) {
    void *p = NULL;
    if (zp_device_clear_error(ZP_CUDA_MALLOC(&p, bytes)) != cudaSuccess) return NULL;
    if (zp_device_alloc_cleared(d, p, bytes)) return p;
    (void)cudaFree(p);
    return NULL;
}
static void zp_device_free(void *p) {
    if (p) (void)cudaFree(p);
}
/* The device's memory has no pages that could be empty: see device_cpu.h. */
ZP_UNUSED static void zp_device_set_sparse(zp_device *d, int sparse) {}
ZP_UNUSED static void zp_device_release_pages(char *p, size_t bytes) {}
/* Returns CPU memory that devices access at the same address. */
static void *zp_device_alloc_host(size_t bytes) {
    void *p = NULL;
    const unsigned how = cudaHostAllocPortable | cudaHostAllocMapped;
    if (zp_device_clear_error(cudaHostAlloc(&p, bytes, how)) != cudaSuccess) return NULL;
    memset(p, 0, bytes);
    return p;
}
static void zp_device_free_host(void *p) {
    if (p) (void)cudaFreeHost(p);
}

/* Opens zeroed CPU memory of `bytes`, rounded up to whole pages. If `pinned`, all devices copy it
   at full speed. It is mapped, then registered, because cudaHostAlloc may take up to twice the
   bytes. Returns ZERO_ERR_MEMORY if it cannot be allocated or pinned. */
ZP_UNUSED static zero_result zp_device_open_pages(zp_pages *m, size_t bytes, int pinned) {
    const unsigned how = cudaHostRegisterPortable | cudaHostRegisterMapped;
    m->bytes = zp_round_up(bytes, 4096);
    if (!bytes) return ZERO_OK;
    void *p = mmap(NULL, m->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return ZERO_ERR_MEMORY;
    (void)madvise(p, m->bytes, MADV_HUGEPAGE);             /* an update walks many arrays at once */
    if (pinned) (void)madvise(p, m->bytes, MADV_DONTFORK); /* a fork would copy the pages */
    if (pinned && zp_device_clear_error(cudaHostRegister(p, m->bytes, how)) != cudaSuccess) {
        (void)munmap(p, m->bytes);
        return ZERO_ERR_MEMORY;
    }
    m->base = (char *)p;
    m->pinned = pinned;
    memset(p, 0, m->bytes); /* a step allocates nothing */
    return ZERO_OK;
}
/* No copy may be in flight. */
ZP_UNUSED static void zp_device_close_pages(zp_pages *m) {
    if (m->base && m->pinned) (void)cudaHostUnregister(m->base);
    if (m->base) (void)munmap(m->base, m->bytes);
    m->base = NULL;
}

#define ZP_FN           static __host__ __device__ __forceinline__ __attribute__((unused))
#define ZP_FMA(a, b, c) fmaf(a, b, c)
#define ZP_THREADS      256
static unsigned zp_device_grid(size_t threads, size_t most) {
    return (unsigned)zp_min((threads + ZP_THREADS - 1) / ZP_THREADS, most);
}
/* F_at(args, i) is the body of a kernel and of a loop on the CPU. */
#define ZP_KERNEL(F, A, GRAIN)                                                                     \
    ZP_LOOP(F, A, GRAIN)                                                                           \
    ZP_GRID(F, A)
#define ZP_GRID(F, A)                                                                              \
    __global__ void __launch_bounds__(ZP_THREADS) F##_kernel(A a, size_t n) {                      \
        const size_t stride = (size_t)gridDim.x * blockDim.x;                                      \
        for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride)         \
            F##_at(&a, i);                                                                         \
    }                                                                                              \
    ZP_KERNEL_CALL(F, F##_kernel, A, zp_device_grid(n, 8192))
/* Launches a kernel, and returns the launch's own error, not an earlier one of your code. */
template <class kernel_fn>
static zero_result zp_device_launch(zp_stream *s, kernel_fn *kernel, const char *name,
                                    unsigned blocks, const void *args, size_t n) {
    void *all[] = {(void *)(uintptr_t)args, &n};
    return zp_device_check_cuda(
        s->device, cudaLaunchKernel(kernel, dim3(blocks), dim3(ZP_THREADS), all, 0, s->cuda), name);
}
/* Defines F, which launches a kernel of (A, size_t n) if n is above 0. */
#define ZP_KERNEL_CALL(F, KERNEL, A, GRID)                                                         \
    static zero_result F(zp_stream *s, const A *a, size_t n) {                                     \
        return n ? zp_device_launch(s, KERNEL, #KERNEL, GRID, a, n) : ZERO_OK;                     \
    }

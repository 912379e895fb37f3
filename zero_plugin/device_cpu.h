/* device_cpu.h - streams, events, copies and memory of the CPU; what makes a loop of a body */
#ifndef ZP_DEVICE_CPU_H
#define ZP_DEVICE_CPU_H

#include "base.h"

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
/* Work of a stream is a thread's of the host, which may wait there. */
static int zp_host_computes(void) { return 1; }
static int zp_device_number(const zp_device *d) {
    (void)d;
    return 0;
}
static void zp_device_adopt(const zp_device *d) { (void)d; }
static zero_result zp_device_reach(zp_device *d, int other) {
    (void)d;
    return other ? ZERO_ERR_ARGUMENT : ZERO_OK;
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

/* lane.h - a host thread that works off tasks in order, and events of the host

   A task is a function and a copy of its arguments. Tasks lie behind each other in a ring of bytes,
   each as long as its arguments, so that to give one allocates nothing:

       | free | task | task | ..... | task | free |
              ^ head: worked off           ^ tail: given           both only grow: bytes, not places

   An event is a lane and its tail when the event was recorded: it is complete once the head is
   there. So, as with CUDA's events, a wait binds to the last record before it, and an event never
   recorded holds nobody; one recorded outside lanes, which names none, is complete. A lane that was
   closed has completed all of its events.

   Lanes exist in every build: the streams of the CPU version are lanes, and beside a GPU they run
   the loop form of a kernel on the host. One thread gives a lane its tasks. */
#pragma once

#include "base.h"

#include <fenv.h>

#ifdef _OPENMP
#include <omp.h>
#define ZP_PRAGMA(text) _Pragma(#text)
#define ZP_SIMD         ZP_PRAGMA(omp simd)
#define ZP_OMP_FOR(WORTH) ZP_PRAGMA(omp parallel for num_threads(threads) if(WORTH))
#else
#define ZP_SIMD
#define ZP_OMP_FOR(WORTH)
#endif

/* threads: how many of OpenMP's a task may use. */
typedef void (*zp_task_fn)(const void *args, size_t n, int threads);

typedef struct zp_task { /* its arguments follow */
    zp_task_fn fn;       /* NULL: only fills the end of the ring */
    size_t n;
    size_t length; /* to the next task: a multiple of this head, which so fits the ring's end */
    size_t unused;
} zp_task;

typedef struct zp_lane {
    int threads;
    int closes;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t more, less;
    size_t head, tail;
    char *ring; /* [ZP_LANE_BYTES] */
} zp_lane;

typedef struct zp_lane_event {
    zp_lane *lane; /* NULL: complete */
    size_t at;
} zp_lane_event;

static_assert(sizeof(zp_task) % 16 == 0, "arguments lie where any type may");
static_assert(ZP_LANE_BYTES % sizeof(zp_task) == 0, "the ring's end is that of a task");
static_assert(ZP_LANE_BYTES >= 4 * (ZP_TASK_BYTES + sizeof(zp_task)), "a lane has several tasks");

static zp_task *zp_lane_task(const zp_lane *l, size_t at) {
    return (zp_task *)(void *)(l->ring + at % ZP_LANE_BYTES);
}

/* The thread. Rounding and small numbers are as IEEE 754 has them, whatever the host has set. */
static void *zp_lane_work(void *lane) {
    zp_lane *l = (zp_lane *)lane;
    (void)fesetenv(FE_DFL_ENV);
    pthread_mutex_lock(&l->lock);
    for (;;) {
        while (l->head == l->tail && !l->closes) pthread_cond_wait(&l->more, &l->lock);
        if (l->head == l->tail) break;
        const zp_task *task = zp_lane_task(l, l->head);
        pthread_mutex_unlock(&l->lock);
        if (task->fn) task->fn(task + 1, task->n, l->threads);
        pthread_mutex_lock(&l->lock);
        __atomic_store_n(&l->head, l->head + task->length, __ATOMIC_RELEASE);
        pthread_cond_broadcast(&l->less);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

ZP_UNUSED static zero_result zp_lane_open(zp_lane *l, int threads) {
    memset(l, 0, sizeof *l);
    l->threads = threads;
    l->ring = (char *)malloc(ZP_LANE_BYTES);
    if (!l->ring) return ZERO_ERR_MEMORY;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->more, NULL);
    pthread_cond_init(&l->less, NULL);
    if (!pthread_create(&l->thread, NULL, zp_lane_work, l)) return ZERO_OK;
    free(l->ring);
    return ZERO_ERR_MEMORY;
}

/* All that was given is worked off first. Head and tail stay, for who waits later. */
ZP_UNUSED static void zp_lane_close(zp_lane *l) {
    pthread_mutex_lock(&l->lock);
    l->closes = 1;
    pthread_cond_signal(&l->more);
    pthread_mutex_unlock(&l->lock);
    pthread_join(l->thread, NULL);
    pthread_cond_destroy(&l->more);
    pthread_cond_destroy(&l->less);
    pthread_mutex_destroy(&l->lock);
    free(l->ring);
    l->ring = NULL;
}

/* Gives a task; waits while the ring is full. */
ZP_UNUSED static void zp_lane_push(zp_lane *l, zp_task_fn fn, const void *args, size_t bytes,
                                   size_t n) {
    const size_t length = zp_round_up(sizeof(zp_task) + bytes, sizeof(zp_task));
    const size_t left = ZP_LANE_BYTES - l->tail % ZP_LANE_BYTES, fill = left < length ? left : 0;
    pthread_mutex_lock(&l->lock);
    while (l->tail + fill + length - l->head > ZP_LANE_BYTES) pthread_cond_wait(&l->less, &l->lock);
    if (fill) *zp_lane_task(l, l->tail) = (zp_task){NULL, 0, fill, 0};
    zp_task *task = zp_lane_task(l, l->tail + fill);
    *task = (zp_task){fn, n, length, 0};
    memcpy(task + 1, args, bytes);
    l->tail += fill + length;
    pthread_cond_signal(&l->more);
    pthread_mutex_unlock(&l->lock);
}

ZP_UNUSED static void zp_lane_record(zp_lane *l, zp_lane_event *e) {
    e->lane = l;
    e->at = l->tail;
}
static int zp_lane_reached(const zp_lane_event *e) {
    return !e->lane || __atomic_load_n(&e->lane->head, __ATOMIC_ACQUIRE) >= e->at;
}
/* This thread waits for the event. */
static void zp_lane_await(const zp_lane_event *e) {
    if (zp_lane_reached(e)) return;
    pthread_mutex_lock(&e->lane->lock);
    while (!zp_lane_reached(e)) pthread_cond_wait(&e->lane->less, &e->lane->lock);
    pthread_mutex_unlock(&e->lane->lock);
}
static void zp_lane_await_task(const void *event, size_t n, int threads) {
    zp_lane_await((const zp_lane_event *)event);
}
/* The lane waits for an event of another one: tasks given later come after it. */
ZP_UNUSED static void zp_lane_wait(zp_lane *l, const zp_lane_event *e) {
    if (e->lane != l && !zp_lane_reached(e)) zp_lane_push(l, zp_lane_await_task, e, sizeof *e, 0);
}
/* This thread waits for all that was given. */
ZP_UNUSED static void zp_lane_sync(zp_lane *l) {
    zp_lane_event end;
    zp_lane_record(l, &end);
    zp_lane_await(&end);
}

/* F_at(args, i) is the body, F_loop a task that runs it over n elements on the host; more than
   GRAIN of them are worth several threads. */
#define ZP_LOOP(F, A, GRAIN)                                                                       \
    ZP_UNUSED static void F##_loop(const void *args, size_t n, int threads) {                      \
        const A a = *(const A *)args; /* a copy that no store can change */                        \
        ZP_OMP_FOR(n > (GRAIN))                                                                    \
        for (size_t i = 0; i < n; i++) F##_at(&a, i);                                              \
    }                                                                                              \
    static_assert(sizeof(A) <= ZP_TASK_BYTES, "a task carries its arguments");

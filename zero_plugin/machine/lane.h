/* lane.h - a CPU thread that runs tasks in order, and events of lanes

   A task is a function and a copy of its arguments, in a ring of fixed size. Pushing a task
   allocates nothing, and waits while the ring is full.

   An event is a lane and the number of its tasks when the event was recorded. It is complete once
   the lane has run so many tasks. As with CUDA's events, a wait is for the last record before it.
   An event that was never recorded, or was recorded outside lanes, is complete. A closed lane has
   completed all its events.

   Every build has lanes. They are the streams of the CPU build. A CUDA build uses them to run the
   loop form of a kernel on the CPU, and opens none by itself. If several threads push tasks to a
   lane, an event covers at least the tasks of the thread that recorded it. */
#pragma once

#include "events.h"

#include <fenv.h>

#ifdef _OPENMP
#include <omp.h>
#define ZP_PRAGMA(text) _Pragma(#text)
/* Returns `asked`. If that is 0: OMP_NUM_THREADS, or, if it is not set, this rank's share. */
ZP_UNUSED static int zp_lane_get_threads(int asked, int cpu_ranks) {
    const int all = omp_get_max_threads(), each = getenv("OMP_NUM_THREADS") ? all : all / cpu_ranks;
    return asked ? asked : each > 1 ? each : 1;
}
ZP_UNUSED static void zp_lane_set_threads(int n) { omp_set_num_threads(n); }
#else
#define ZP_PRAGMA(text)
ZP_UNUSED static int zp_lane_get_threads(int asked, int cpu_ranks) { return 1; }
ZP_UNUSED static void zp_lane_set_threads(int n) {}
#endif
#define ZP_SIMD ZP_PRAGMA(omp simd)
#define ZP_OMP_FOR(WORTH) ZP_PRAGMA(omp parallel for num_threads(threads) if(WORTH))

/* threads: how many OpenMP threads the task may use. */
typedef void (*zp_task_fn)(const void *args, size_t n, int threads);

typedef struct zp_task {
    zp_task_fn fn;
    size_t n;
    zp_record *record; /* that the task is part of; NULL: none */
    size_t fill;       /* aligns the arguments for any type */
    char args[ZP_TASK_BYTES];
} zp_task;
static_assert(sizeof(zp_task) % 16 == 0, "arguments are aligned for any type");

typedef struct zp_lane {
    int threads, closes;
    int track; /* of its records; set before the first task */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t more, less;
    size_t head, tail; /* tasks that were run, and pushed */
    zp_task *task;     /* [ZP_LANE_TASKS] task number i at i % ZP_LANE_TASKS */
} zp_lane;

typedef struct zp_lane_event {
    zp_lane *lane; /* NULL: complete */
    size_t at;
    uint64_t after; /* number of the last record before it; 0: none */
} zp_lane_event;

/* Runs a task, and writes its times to its record, if it has one. */
static void zp_lane_run_task(const zp_task *task, int threads) {
    zp_record *r = task->record;
    if (r && r->event.begin == 0) r->event.begin = zp_seconds();
    task->fn(task->args, task->n, threads);
    if (r) r->event.end = zp_seconds();
}

/* The lane's thread. It resets rounding and denormal modes, which your code may have changed. */
static void *zp_lane_work(void *lane) {
    zp_lane *l = (zp_lane *)lane;
    (void)fesetenv(FE_DFL_ENV);
    pthread_mutex_lock(&l->lock);
    for (;;) {
        while (l->head == l->tail && !l->closes) pthread_cond_wait(&l->more, &l->lock);
        if (l->head == l->tail) break;
        const zp_task *task = &l->task[l->head % ZP_LANE_TASKS];
        pthread_mutex_unlock(&l->lock);
        zp_track_now = l->track;
        zp_lane_run_task(task, l->threads);
        pthread_mutex_lock(&l->lock);
        __atomic_store_n(&l->head, l->head + 1, __ATOMIC_RELEASE);
        pthread_cond_broadcast(&l->less);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

ZP_UNUSED static zero_result zp_lane_open(zp_lane *l, int threads) {
    memset(l, 0, sizeof *l);
    l->threads = threads;
    l->task = (zp_task *)malloc(ZP_LANE_TASKS * sizeof *l->task);
    if (!l->task) return ZERO_ERR_MEMORY;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->more, NULL);
    pthread_cond_init(&l->less, NULL);
    if (!pthread_create(&l->thread, NULL, zp_lane_work, l)) return ZERO_OK;
    free(l->task);
    return ZERO_ERR_MEMORY;
}

/* Runs all tasks, then ends the thread. Head and tail stay valid for later waits. */
ZP_UNUSED static void zp_lane_close(zp_lane *l) {
    pthread_mutex_lock(&l->lock);
    l->closes = 1;
    pthread_cond_signal(&l->more);
    pthread_mutex_unlock(&l->lock);
    pthread_join(l->thread, NULL);
    pthread_cond_destroy(&l->more);
    pthread_cond_destroy(&l->less);
    pthread_mutex_destroy(&l->lock);
    free(l->task);
}

/* record: that the task is part of; NULL: none. */
ZP_UNUSED static void zp_lane_push(zp_lane *l, zp_record *record, zp_task_fn fn, const void *args,
                                   size_t bytes, size_t n) {
    pthread_mutex_lock(&l->lock);
    while (l->tail - l->head == ZP_LANE_TASKS) pthread_cond_wait(&l->less, &l->lock);
    zp_task *task = &l->task[l->tail % ZP_LANE_TASKS];
    task->fn = fn;
    task->n = n;
    task->record = record;
    memcpy(task->args, args, bytes);
    __atomic_store_n(&l->tail, l->tail + 1, __ATOMIC_RELEASE);
    pthread_cond_signal(&l->more);
    pthread_mutex_unlock(&l->lock);
}
/* Ends record r: it is complete when the lane has run all tasks pushed so far. */
ZP_UNUSED static void zp_lane_end_record(const zp_lane *l, zp_record *r) {
    if (!r) return;
    r->reached = &l->head;
    r->wanted = __atomic_load_n(&l->tail, __ATOMIC_ACQUIRE);
    zp_events_mark_filled(r);
}

ZP_UNUSED static void zp_lane_record(zp_lane *l, zp_lane_event *e) {
    e->lane = l;
    e->at = __atomic_load_n(&l->tail, __ATOMIC_ACQUIRE);
}
static int zp_lane_event_passed(const zp_lane_event *e) {
    return !e->lane || __atomic_load_n(&e->lane->head, __ATOMIC_ACQUIRE) >= e->at;
}
/* The calling thread waits for the event. */
static void zp_lane_wait_event(const zp_lane_event *e) {
    if (zp_lane_event_passed(e)) return;
    pthread_mutex_lock(&e->lane->lock);
    while (!zp_lane_event_passed(e)) pthread_cond_wait(&e->lane->less, &e->lane->lock);
    pthread_mutex_unlock(&e->lane->lock);
}
static void zp_lane_wait_event_task(const void *event, size_t n, int threads) {
    zp_lane_wait_event((const zp_lane_event *)event);
}
/* Makes the lane wait for another lane's event before it runs later tasks. */
ZP_UNUSED static void zp_lane_wait(zp_lane *l, const zp_lane_event *e) {
    if (e->lane != l && !zp_lane_event_passed(e))
        zp_lane_push(l, NULL, zp_lane_wait_event_task, e, sizeof *e, 0);
}
/* The calling thread waits for all tasks pushed so far. */
ZP_UNUSED static void zp_lane_sync(zp_lane *l) {
    zp_lane_event end = {NULL, 0, 0};
    zp_lane_record(l, &end);
    zp_lane_wait_event(&end);
}

/* F_at(args, i) is the body. F_loop is a task that runs it over n elements on the CPU, with several
   threads if there are more than GRAIN elements. */
#define ZP_LOOP(F, A, GRAIN)                                                                       \
    ZP_UNUSED static void F##_loop(const void *args, size_t n, int threads) {                      \
        const A a = *(const A *)args; /* a copy that no store can change */                        \
        ZP_OMP_FOR(n > (GRAIN))                                                                    \
        for (size_t i = 0; i < n; i++) F##_at(&a, i);                                              \
    }                                                                                              \
    static_assert(sizeof(A) <= ZP_TASK_BYTES, "a task carries its arguments");

/* lanes.h - lanes as every build has them: test_unit runs this in the CPU version, test_cuda beside
   CUDA. Included behind the plugin. */
#ifndef TEST_LANES_H
#define TEST_LANES_H

#include "harness.h"

/* ---- tasks: one that waits to be let go, one that notes its number ---- */

typedef struct lane_gate {
    int open;
} lane_gate;
typedef struct lane_note {
    int *list, *n, value;
} lane_note;

static void lane_gate_task(const void *args, size_t n, int threads) {
    lane_gate *g;
    (void)n;
    (void)threads;
    memcpy(&g, args, sizeof(lane_gate *));
    while (!__atomic_load_n(&g->open, __ATOMIC_ACQUIRE)) sched_yield();
}
static void lane_note_task(const void *args, size_t n, int threads) {
    const lane_note *a = (const lane_note *)args;
    (void)n;
    (void)threads;
    const int i = __atomic_load_n(a->n, __ATOMIC_RELAXED);
    a->list[i] = a->value;
    __atomic_store_n(a->n, i + 1, __ATOMIC_RELEASE);
}
static void lane_open_gate(lane_gate *g) { __atomic_store_n(&g->open, 1, __ATOMIC_RELEASE); }
static void lane_push_gate(zp_lane *l, lane_gate *g) {
    zp_lane_push(l, NULL, lane_gate_task, &g, sizeof(lane_gate *), 0);
}
static void lane_push_note(zp_lane *l, int *list, int *n, int value) {
    const lane_note a = {list, n, value};
    zp_lane_push(l, NULL, lane_note_task, &a, sizeof a, 0);
}
/* Whether the count arrives within a second; `stays`: whether it is no more for 30 ms. */
static int lane_arrives(int *n, int count) {
    for (const double end = test_now() + 1; test_now() < end; sched_yield())
        if (__atomic_load_n(n, __ATOMIC_ACQUIRE) >= count) return 1;
    return 0;
}
static int lane_stays(int *n, int count) {
    for (const double end = test_now() + 0.03; test_now() < end; sched_yield())
        if (__atomic_load_n(n, __ATOMIC_ACQUIRE) > count) return 0;
    return 1;
}

/* ---- the ring ---- */

/* Arguments of any length come whole, at an address for any type, in the order they were given. */
typedef struct lane_sum {
    uint64_t hash;
    size_t next;
    int crooked;
} lane_sum;
static lane_sum lane_summed;

static void lane_sum_task(const void *args, size_t n, int threads) {
    const size_t bytes = n % (ZP_TASK_BYTES + 1);
    lane_summed.crooked += lane_summed.next++ != n || (uintptr_t)args % 16 != 0 || threads != 3;
    for (size_t i = 0; i < bytes; i++)
        lane_summed.hash = zp_hash(lane_summed.hash, ((const unsigned char *)args)[i]);
}

static void lane_ring(void) {
    enum { N = 20000 };
    unsigned char args[ZP_TASK_BYTES];
    test_random random = {5};
    uint64_t hash = 0;
    zp_lane l;
    memset(&lane_summed, 0, sizeof lane_summed);
    if (!test_check(!zp_lane_open(&l, 3), "a lane")) return;
    for (size_t n = 0; n < N; n++) {
        const size_t bytes = n % (ZP_TASK_BYTES + 1);
        for (size_t i = 0; i < bytes; i++) {
            args[i] = (unsigned char)test_next(&random);
            hash = zp_hash(hash, args[i]);
        }
        zp_lane_push(&l, NULL, lane_sum_task, args, bytes, n);
        if (n % 5000 == 4999) zp_lane_sync(&l);
        if (n % 5000 == 4999) test_check(lane_summed.next == n + 1, "a lane is not empty yet");
    }
    zp_lane_close(&l);
    test_check(lane_summed.next == N && lane_summed.hash == hash && !lane_summed.crooked,
               "%zu of %d tasks, %d of them crooked", lane_summed.next, N, lane_summed.crooked);
}

/* The giver waits while the ring is full, and closing works it off. */
static void lane_full(void) {
    enum { N = 2 * ZP_LANE_TASKS };
    static int list[N];
    int n = 0, ordered = 1;
    lane_gate gate = {0};
    zp_lane l;
    if (!test_check(!zp_lane_open(&l, 1), "a lane")) return;
    lane_push_gate(&l, &gate);
    while (l.tail < ZP_LANE_TASKS) lane_push_note(&l, list, &n, (int)l.tail);
    test_check(lane_stays(&n, 0), "tasks run before the gate is open");
    lane_open_gate(&gate);
    while (l.tail < N) lane_push_note(&l, list, &n, (int)l.tail);
    zp_lane_close(&l);
    for (int i = 0; i < n; i++) ordered &= list[i] == i + 1;
    test_check(n == N - 1 && ordered, "%d tasks of %d, around the ring", n, N - 1);
}

/* ---- events ---- */

static void lane_events(void) {
    zp_lane a, b;
    zp_lane_event e = {NULL, 0, 0}, never = {NULL, 0, 0};
    lane_gate first = {0}, second = {0};
    int list[8], n = 0;
    if (!test_check(!zp_lane_open(&a, 1) && !zp_lane_open(&b, 1), "lanes")) return;
    zp_lane_wait(&b, &never);
    lane_push_note(&b, list, &n, 0);
    test_check(lane_arrives(&n, 1), "a wait on an event never recorded is no wait");
    lane_push_gate(&a, &first);
    zp_lane_wait(&b, &e); /* not recorded yet: no wait, though it will be */
    zp_lane_record(&a, &e);
    lane_push_note(&b, list, &n, 1);
    test_check(lane_arrives(&n, 2), "a record after the call does not bind");
    zp_lane_wait(&b, &e);
    lane_push_note(&b, list, &n, 2);
    lane_push_gate(&a, &second);
    zp_lane_record(&a, &e);
    test_check(lane_stays(&n, 2), "a wait holds the lane");
    lane_open_gate(&first);
    test_check(lane_arrives(&n, 3), "a wait binds to the last record before the call");
    zp_lane_wait(&b, &e);
    lane_push_note(&b, list, &n, 3);
    test_check(lane_stays(&n, 3), "and the next wait to the next record");
    lane_open_gate(&second);
    test_check(lane_arrives(&n, 4), "which completes");
    lane_push_note(&a, list, &n, 4);
    zp_lane_record(&a, &e);
    zp_lane_wait_event(&e);
    test_check(n == 5, "the host waits for what was given before");
    zp_lane_close(&a);
    zp_lane_wait(&b, &e);
    zp_lane_wait_event(&e);
    lane_push_note(&b, list, &n, 5);
    zp_lane_close(&b);
    test_check(n == 6, "events of a closed lane hold nobody");
}

/* A task waits at a gate, as often as it is to be opened, whichever side is ahead. */
static void lane_pass_task(const void *args, size_t n, int threads) {
    zp_gate *g;
    (void)n;
    (void)threads;
    memcpy(&g, args, sizeof(zp_gate *));
    (void)zp_gate_pass(g);
}

static void lane_gates(void) {
    int list[8], n = 0;
    zp_gate gate, *g = &gate;
    zp_lane l;
    if (!test_check(!zp_lane_open(&l, 1), "a lane")) return;
    zp_gate_init(g);
    for (int i = 0; i < 4; i++) {
        zp_lane_push(&l, NULL, lane_pass_task, &g, sizeof(zp_gate *), 0);
        lane_push_note(&l, list, &n, i);
    }
    test_check(lane_stays(&n, 0), "a gate holds the lane");
    zp_gate_open(g);
    test_check(lane_arrives(&n, 1) && lane_stays(&n, 1), "one opening is for one pass");
    for (int i = 0; i < 4; i++) zp_gate_open(g);
    test_check(lane_arrives(&n, 4), "openings are counted");
    zp_lane_push(&l, NULL, lane_pass_task, &g, sizeof(zp_gate *), 0);
    lane_push_note(&l, list, &n, 4);
    test_check(lane_arrives(&n, 5), "one was ahead");
    zp_lane_push(&l, NULL, lane_pass_task, &g, sizeof(zp_gate *), 0);
    zp_lane_push(&l, NULL, lane_pass_task, &g, sizeof(zp_gate *), 0);
    zp_gate_abandon(g);
    zp_lane_close(&l);
    test_check(zp_gate_pass(g), "a gate that was left holds nobody");
    zp_gate_close(g);
}

/* ---- the mode of the processor ---- */

/* As crtfastmath.o does, which gcc links into a program with -Ofast. */
static void lane_flush(int flushes) {
#if defined(__x86_64__)
    unsigned mode;
    __asm__ volatile("stmxcsr %0" : "=m"(mode));
    mode = flushes ? mode | 0x8040u : mode & ~0x8040u;
    __asm__ volatile("ldmxcsr %0" : : "m"(mode));
#elif defined(__aarch64__)
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    mode = flushes ? mode | (uint64_t)1 << 24 : mode & ~((uint64_t)1 << 24);
    __asm__ volatile("msr fpcr, %0" : : "r"(mode));
#else
#error "how does this processor flush small numbers?"
#endif
}

static void lane_mode(void) {
    volatile float x[3] = {FLT_MIN, 0, 0}, y[3] = {FLT_MIN, 0, 0};
    const zp_flush_denormal_args here = {x}, there = {y};
    zp_lane l;
    lane_flush(1);
    zp_flush_denormal_loop(&here, 1, 1);
    const int open = !zp_lane_open(&l, 1);
    if (open) {
        zp_lane_push(&l, NULL, zp_flush_denormal_loop, &there, sizeof there, 1);
        zp_lane_close(&l);
    }
    lane_flush(0);
    test_check(open && x[2] == 0 && y[2] > 0, "a lane flushes as its host does: %g, %g",
               (double)x[2], (double)y[2]);
}

static void lane_all(void) {
    lane_ring();
    lane_full();
    lane_events();
    lane_gates();
    lane_mode();
}

#endif

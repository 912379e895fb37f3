/* test_orders_lane.c - the real lanes, gates and meetings, in every order of their steps

   test_orders replaces lane.h and the meetings of board.h by operations of the scheduler. Here the
   plugin's own files run, with each lock, condition, futex and atomic variable as a step of the
   scheduler. They must do what machine.h and net.c assume:
     a lane runs each task once, in order, after it was pushed; pushing waits while it is full,
     who waits for an event goes on after the event's tasks, and only then,
     closing runs all tasks, and each later wait for the lane's events returns,
     a gate's n-th pass comes after its n-th opening, or after it is abandoned,
     no rank leaves a meeting before all have come to it, and all compare their calls,
     a rank that gives up ends the others' waits.

   Locks and conditions have no time limit. A futex's wait ends when it is woken, or, after 20 ms,
   by itself; here it ends by itself only when no other thread can run. The board looks at its word
   64 times before it sleeps; here it sleeps at once (ORDERS_SPIN). */
#include "scheduler.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int orders_mutex_lock(const void *lock);
int orders_mutex_unlock(const void *lock);
int orders_mutex_destroy(const void *lock);
int orders_cond_wait(const void *condition, const void *lock);
int orders_cond_signal(const void *condition);
int orders_cond_broadcast(const void *condition);
int orders_thread_create(void *thread, void *(*run)(void *), void *arg);
int orders_thread_join(uintptr_t thread);
void orders_futex_wait(const uint32_t *word, uint32_t seen);
void orders_futex_wake(const uint32_t *word);
void orders_thread_forget(void);

#define GONE                       orders_removed(__FILE__, __LINE__)
#define pthread_mutex_init(m, a)   ((void)0)
#define pthread_mutex_destroy(m)   orders_mutex_destroy(m)
#define pthread_cond_init(c, a)    ((void)0)
#define pthread_cond_destroy(c)    ((void)0)
#define pthread_mutex_lock(m)      (GONE ? 0 : orders_mutex_lock(m))
#define pthread_mutex_unlock(m)    (GONE ? 0 : orders_mutex_unlock(m))
#define pthread_cond_wait(c, m)    orders_cond_wait(c, m)
#define pthread_cond_signal(c)     (GONE ? 0 : orders_cond_signal(c))
#define pthread_cond_broadcast(c)  (GONE ? 0 : orders_cond_broadcast(c))
#define pthread_create(t, a, f, x) orders_thread_create(t, f, x)
#define pthread_join(t, r)         (GONE ? 0 : orders_thread_join((uintptr_t)(t)))

#include "../../zero_plugin/machine/base.h"
#undef ZP_LANE_TASKS
#define ZP_LANE_TASKS ((size_t)2)
#include "../../zero_plugin/machine/gate.h"
#define syscall(number, word, how, value, time, ...)                                               \
    ((void)(time), GONE ? 0 : orders_futex(word, how, value))
static long orders_futex(const uint32_t *word, int how, uint32_t value) {
    if (how == FUTEX_WAIT)
        orders_futex_wait(word, value);
    else
        orders_futex_wake(word);
    return 0;
}
#include "../../zero_plugin/comm/board.h"

/* ---- what threads of a case share ---- */

enum { RANKS = 3, LANES = 2 };
typedef struct shared {
    zp_lane lane[LANES];
    zp_gate gate;
    zp_lane_event event[4];
    int ran[8]; /* by task: how often it ran; plain memory, so that a race is found */
    int order[8], n;
    zp_board board;
    int value[RANKS];
} shared;
static shared *x;
static int result[RANKS];

static void expect(int ok, const char *what) {
    if (!ok) orders_fail("%s", what);
}

typedef struct note {
    int number;
} note;
static void note_task(const void *args, size_t n, int threads) {
    const int number = ((const note *)args)->number;
    x->ran[number]++;
    x->order[x->n++] = number;
}
static void push_note(int lane, int number) {
    const note a = {number};
    zp_lane_push(&x->lane[lane], NULL, note_task, &a, sizeof a, 1);
}

/* More tasks than a lane has room for; a wait for the second one; the rest after closing. */
static void run_lane(int rank, void *arg) {
    zp_lane_event e = {NULL, 0, 0};
    expect(!zp_lane_open(&x->lane[0], 1), "a lane opens");
    for (int i = 0; i < 4; i++) {
        push_note(0, i);
        if (i == 1) zp_lane_record(&x->lane[0], &e);
    }
    zp_lane_wait_event(&e);
    expect(x->ran[0] == 1 && x->ran[1] == 1, "the event's tasks have run");
    zp_lane_close(&x->lane[0]);
    for (int i = 0; i < 4; i++) expect(x->order[i] == i, "tasks run once, in order");
    expect(zp_lane_event_passed(&e), "a closed lane has completed its events");
    zp_lane_wait_event(&e);
}

/* The calling thread's own wait orders its reads; another lane waits, too. */
static void run_two_lanes(int rank, void *arg) {
    zp_lane_event first, second;
    for (int i = 0; i < LANES; i++) expect(!zp_lane_open(&x->lane[i], 1), "a lane opens");
    push_note(0, 0);
    zp_lane_record(&x->lane[0], &first);
    zp_lane_wait(&x->lane[1], &first);
    push_note(1, 1);
    zp_lane_record(&x->lane[1], &second);
    zp_lane_wait(&x->lane[0], &second);
    push_note(0, 2);
    zp_lane_sync(&x->lane[0]);
    for (int i = 0; i < 3; i++) expect(x->order[i] == i, "lanes wait for each other's events");
    for (int i = 0; i < LANES; i++) zp_lane_close(&x->lane[i]);
}

/* Another thread pushes to a lane that the first one has opened, and waits for its own task. */
static void *push_more(void *arg) {
    zp_lane_event e;
    push_note(0, 1);
    zp_lane_record(&x->lane[0], &e);
    zp_lane_wait_event(&e);
    expect(x->ran[1] == 1, "the event covers its thread's task");
    return NULL;
}
static void run_pushers(int rank, void *arg) {
    pthread_t other;
    expect(!zp_lane_open(&x->lane[0], 1), "a lane opens");
    (void)pthread_create(&other, NULL, push_more, NULL);
    push_note(0, 0);
    (void)pthread_join(other, NULL);
    zp_lane_close(&x->lane[0]);
    expect(x->ran[0] == 1 && x->ran[1] == 1 && x->n == 2, "tasks run once");
}

static void *open_gate(void *arg) {
    for (int i = 0; i < 2; i++) {
        x->ran[i] = 1;
        zp_gate_open(&x->gate);
    }
    return NULL;
}
static void run_gate(int rank, void *arg) {
    pthread_t other;
    zp_gate_init(&x->gate);
    (void)pthread_create(&other, NULL, open_gate, NULL);
    for (int i = 0; i < 2; i++) {
        expect(!zp_gate_pass(&x->gate), "the gate was opened");
        expect(x->ran[i] == 1, "the n-th pass comes after the n-th opening");
    }
    (void)pthread_join(other, NULL);
    zp_gate_close(&x->gate);
}
static void *abandon_gate(void *arg) {
    zp_gate_abandon(&x->gate);
    return NULL;
}
static void run_abandoned(int rank, void *arg) {
    pthread_t other;
    zp_gate_init(&x->gate);
    (void)pthread_create(&other, NULL, abandon_gate, NULL);
    expect(zp_gate_pass(&x->gate) && zp_gate_pass(&x->gate), "an abandoned gate is open");
    (void)pthread_join(other, NULL);
}

/* ---- meetings ---- */

static int meetings, nranks, gives_up, differs;

static void run_board(int rank, void *arg) {
    zp_failure failure;
    zp_local_ranks ranks;
    zp_comm g;
    memset(&failure, 0, sizeof failure);
    memset(&ranks, 0, sizeof ranks);
    memset(&g, 0, sizeof g);
    g.rank = rank;
    g.nranks = nranks;
    g.failure = &failure;
    g.timeout_s = 600;
    g.own = &ranks;
    ranks.n = nranks;
    ranks.me = rank;
    ranks.board = &x->board;
    for (int p = 0; p < nranks; p++) ranks.rank_of[p] = p;
    zero_result r = ZERO_OK;
    for (int i = 0; i < meetings && !r; i++) {
        const zp_op op =
            zp_comm_host_op(&g, ZP_EXCHANGE, -1, (size_t)(differs && rank == 1 ? 8 : 4));
        if (gives_up && rank == 1) {
            zp_board_abort_local(&g, "it gives up");
            break;
        }
        x->value[rank] = i + 1;
        r = zp_board_meet(&op, 0);
        for (int p = 0; p < nranks && !r; p++)
            expect(x->value[p] == i + 1, "all ranks have come to the meeting");
        if (!r) r = zp_board_meet(&op, 1);
    }
    result[rank] = (int)r;
}

static void begin(void *arg) {
    orders_thread_forget();
    x = (shared *)orders_hold(sizeof *x);
}
static void end_board(void *arg) {
    for (int r = 0; r < nranks; r++) {
        const int wanted = differs              ? (int)ZERO_ERR_MISMATCH
                           : gives_up && r != 1 ? (int)ZERO_ERR_PEER
                                                : (int)ZERO_OK;
        if (result[r] != wanted)
            orders_fail("rank %d has result %d, expected %d", r, result[r], wanted);
    }
}

static int passed, failed;
static void explore(const char *name, int n, void (*run)(int, void *), void (*end)(void *)) {
    const orders_test t = {n, begin, run, end, NULL, 240, 0, 0, 0};
    nranks = n;
    const orders_report r = orders_explore(&t);
    printf("%-28s %s: %ld classes of orders, %ld operations, %.1f s\n", name,
           r.closed ? "closed" : "NOT CLOSED", r.classes, r.steps, r.seconds);
    fflush(stdout);
    passed += r.closed;
    failed += !r.closed;
}

/* remove FILE:LINE: without that call, an error is expected. */
int main(int argc, char **argv) {
    const int removes = argc > 2 && !strcmp(argv[1], "remove"), all = argc > 1 && !removes;
    if (removes) orders_remove(argv[2]);
    orders_spins = 1;
    explore("a lane", 1, run_lane, NULL);
    explore("two lanes", 1, run_two_lanes, NULL);
    explore("two threads push", 1, run_pushers, NULL);
    explore("a gate", 1, run_gate, NULL);
    explore("an abandoned gate", 1, run_abandoned, NULL);
    meetings = 1;
    explore("a meeting of 2", 2, run_board, end_board);
    meetings = 2;
    explore("two meetings of 2", 2, run_board, end_board);
    meetings = 1;
    differs = 1;
    explore("a meeting of 2 that differ", 2, run_board, end_board);
    differs = 0;
    gives_up = 1;
    explore("2, of which 1 gives up", 2, run_board, end_board);
    if (all) {
        explore("3, of which 1 gives up", 3, run_board, end_board);
        gives_up = 0;
        explore("a meeting of 3", 3, run_board, end_board);
    }
    if (removes && !orders_removal_reached()) puts("the call was never reached");
    printf("%d passed, %d failed\n", passed, failed);
    return failed > 0;
}

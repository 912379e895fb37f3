/* orders_lane.c - lanes for machine.h: a queue, its thread, and the moments at which tasks ended.
   Not instrumented. */
#include "scheduler.h"

#include <stdlib.h>
#include <string.h>

enum { ROOM = 128, MOST = 4096, ARGS = 768 }; /* ROOM and ARGS are those of the plugin's lanes */

typedef struct task {
    void (*fn)(const void *, size_t, int);
    size_t n;
    orders_stamp pushed;
    _Alignas(64) char args[ARGS];
} task;

typedef struct orders_lane {
    size_t head, tail;
    int closes, asked, ended;
    task task[ROOM];
    orders_stamp ran[MOST + 1]; /* by number of tasks that have run */
} orders_lane;

/* The memory of closed lanes and of earlier executions would be large, so lanes use it again. */
static orders_lane *pool[ORDERS_THREADS * 4];
static int used;
void orders_lane_forget(void) { used = 0; }

static int has_work(void *lane) {
    const orders_lane *l = lane;
    return l->head < l->tail || l->closes;
}
/* An object is an event of the lane: so many tasks have run. */
static uintptr_t event(const orders_lane *l, size_t at) { return (uintptr_t)&l->ran[at]; }

static void work(void *lane) {
    orders_lane *l = lane;
    for (;;) {
        orders_wait(has_work, l, "a task");
        if (l->head == l->tail) break;
        task *t = &l->task[l->head % ROOM];
        orders_join(&t->pushed);
        t->fn(t->args, t->n, 1);
        if (l->asked) orders_use_object(event(l, l->head + 1), ORDERS_WRITES, "a task's end");
        l->head++;
        if (l->head > MOST) orders_fail("more than %d tasks of a lane", MOST);
        orders_stamp_now(&l->ran[l->head]);
    }
    l->ended = 1;
}

/* asked: a thread may ask whether an event has passed, instead of waiting for it. */
orders_lane *orders_lane_open(int asked) {
    orders_lane **l = &pool[used++];
    if (used > (int)(sizeof pool / sizeof *pool)) orders_fail("too many lanes");
    if (!*l) *l = aligned_alloc(64, (sizeof **l + 63) / 64 * 64);
    (*l)->head = (*l)->tail = 0;
    (*l)->closes = (*l)->ended = 0;
    (*l)->asked = asked;
    memset(&(*l)->ran[0], 0, sizeof(*l)->ran[0]);
    orders_start(work, *l);
    return *l;
}

static int has_room(void *lane) {
    const orders_lane *l = lane;
    return l->tail - l->head < ROOM;
}
void orders_lane_push(orders_lane *l, void (*fn)(const void *, size_t, int), const void *args,
                      size_t bytes, size_t n) {
    orders_wait(has_room, l, "room in a lane");
    if (l->closes) orders_fail("a task is pushed to a closed lane");
    if (l->tail >= ROOM) orders_join(&l->ran[l->tail + 1 - ROOM]);
    task *t = &l->task[l->tail % ROOM];
    t->fn = fn;
    t->n = n;
    orders_access(args, bytes, 0);
    memcpy(t->args, args, bytes);
    orders_stamp_now(&t->pushed);
    l->tail++;
}
size_t orders_lane_tail(const orders_lane *l) { return l->tail; }

struct event {
    orders_lane *lane;
    size_t at;
};
static int has_run(void *e) {
    const struct event *x = e;
    return x->lane->head >= x->at;
}
void orders_lane_wait(orders_lane *l, size_t at) {
    struct event e = {l, at};
    orders_wait(has_run, &e, "an event");
    orders_join(&l->ran[at]);
}
int orders_lane_has_run(orders_lane *l, size_t at) {
    orders_use_object(event(l, at), ORDERS_READS, "the question whether an event has passed");
    if (l->head < at) return 0;
    orders_join(&l->ran[at]);
    return 1;
}

static int has_ended(void *lane) { return ((const orders_lane *)lane)->ended; }
void orders_lane_close(orders_lane *l) {
    l->closes = 1;
    orders_wait(has_ended, l, "the end of a lane");
    orders_join(&l->ran[l->head]);
}

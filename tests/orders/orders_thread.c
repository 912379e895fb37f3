/* orders_thread.c - threads, locks, conditions and futexes for test_orders_lane.c. Not
   instrumented. Unlocking, signalling and waking need no place of their own among the orders where
   the lock that surrounds them already has one. */
#include "scheduler.h"

#include <stdlib.h>
#include <string.h>

enum { MOST = 64 };

/* A lock or a condition, by its address. */
typedef struct thing {
    const void *key;
    int locked;
    unsigned waiting, signalled; /* tickets */
    orders_stamp unlocked;
} thing;
static thing things[MOST];
static int n_things;

typedef struct started {
    void *(*run)(void *);
    void *arg;
    int ended;
    orders_stamp end;
} started;

void orders_thread_forget(void) { n_things = 0; }

static thing *thing_of(const void *key) {
    for (int i = 0; i < n_things; i++)
        if (things[i].key == key) return &things[i];
    if (n_things == MOST) orders_fail("more than %d locks and conditions", MOST);
    thing *t = &things[n_things++];
    memset(t, 0, sizeof *t);
    t->key = key;
    return t;
}

static int is_free(void *lock) { return !((const thing *)lock)->locked; }
int orders_mutex_lock(const void *lock) {
    thing *t = thing_of(lock);
    orders_use_when((uintptr_t)lock, ORDERS_WRITES, is_free, t, "a lock");
    t->locked = 1 + orders_self();
    orders_join(&t->unlocked);
    return 0;
}
int orders_mutex_unlock(const void *lock) {
    thing *t = thing_of(lock);
    if (t->locked != 1 + orders_self())
        orders_fail("a thread releases a lock that it does not hold");
    orders_stamp_now(&t->unlocked);
    t->locked = 0;
    return 0;
}

int orders_mutex_destroy(const void *lock) {
    if (thing_of(lock)->locked) orders_fail("a lock is destroyed that a thread holds");
    return 0;
}

struct ticket {
    thing *of;
    unsigned number;
};
static int is_signalled(void *ticket) {
    const struct ticket *t = ticket;
    return t->of->signalled >= t->number;
}
int orders_cond_wait(const void *condition, const void *lock) {
    thing *t = thing_of(condition);
    struct ticket mine = {t, ++t->waiting};
    (void)orders_mutex_unlock(lock);
    orders_wait(is_signalled, &mine, "a condition");
    return orders_mutex_lock(lock);
}
int orders_cond_signal(const void *condition) {
    thing *t = thing_of(condition);
    if (t->signalled < t->waiting) t->signalled++;
    return 0;
}
int orders_cond_broadcast(const void *condition) {
    thing *t = thing_of(condition);
    t->signalled = t->waiting;
    return 0;
}

static void thread_run(void *arg) {
    started *s = arg;
    (void)s->run(s->arg);
    orders_stamp_now(&s->end);
    s->ended = 1;
}
int orders_thread_create(void *thread, void *(*run)(void *), void *arg) {
    started *s = orders_hold(sizeof *s);
    s->run = run;
    s->arg = arg;
    memcpy(thread, &s, sizeof s);
    orders_start(thread_run, s);
    return 0;
}
static int has_ended(void *thread) { return ((const started *)thread)->ended; }
int orders_thread_join(uintptr_t thread) {
    started *s = (started *)thread;
    orders_wait(has_ended, s, "the end of a thread");
    orders_join(&s->end);
    return 0;
}

/* A condition whose key is the word: its tickets are the sleeping threads. */
void orders_futex_wait(const uint32_t *word, uint32_t seen) {
    orders_use_object((uintptr_t)word, ORDERS_READS, "a futex");
    if (*word != seen) return;
    thing *t = thing_of(word);
    struct ticket mine = {t, ++t->waiting};
    orders_sleep(is_signalled, &mine, "a futex");
}
void orders_futex_wake(const uint32_t *word) {
    orders_use_object((uintptr_t)word, ORDERS_WRITES, "a futex");
    (void)orders_cond_broadcast(word);
}

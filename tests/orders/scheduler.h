/* scheduler.h - runs the threads of a test one at a time, and explores the orders of their steps

   A THREAD is a coroutine. It runs until an operation that depends on other threads, and hands over
   there. An execution is repeated from its beginning with other choices, until every order is
   closed.

   WHICH ORDERS DIFFER. Two operations depend on each other if they use the same object and one of
   them changes it: atomic variables, and the question whether an event has passed. Orders that only
   exchange operations that do not depend on each other end alike, and form a CLASS. The scheduler
   runs one order of each class: dynamic partial-order reduction with source sets and sleep sets
   (Flanagan and Godefroid 2005; Abdulla, Aronis, Jonsson and Sagonas 2014). A wait that only one
   thing can end, and that stays ended, depends on nothing. Relaxed additions to one variable count
   as independent, because no code of the plugin reads what they return.

   RACES. Code compiled with -fsanitize=thread reports each access to memory to this file instead of
   to the sanitizer's library. A vector clock per thread says what happened before what. Two
   accesses to the same bytes, of which one writes, must be ordered by it. This finds an error in
   every order of a class, from the one that is run. Freed memory is never given out again within an
   execution, so each later access to it is found. */
#ifndef ORDERS_SCHEDULER_H
#define ORDERS_SCHEDULER_H

#include <stddef.h>
#include <stdint.h>

enum { ORDERS_RANKS = 4, ORDERS_OF_RANK = 16, ORDERS_THREADS = ORDERS_RANKS * ORDERS_OF_RANK };

/* How an operation uses its object. */
typedef enum orders_use { ORDERS_READS, ORDERS_WRITES, ORDERS_ADDS } orders_use;

/* What happened before a moment: by thread, the number of its last step. */
typedef struct orders_clock {
    uint32_t at[ORDERS_THREADS];
} orders_clock;
typedef struct orders_stamp {
    orders_clock data;  /* by synchronisation alone: which accesses to memory are ordered */
    orders_clock trace; /* and by dependent operations: which orders are of one class */
} orders_stamp;

/* ---- for what replaces the plugin's threads and transports ---- */

/* Starts a thread of the calling thread's rank. */
void orders_start(void (*run)(void *), void *arg);
/* The calling thread waits until `ready` returns 1, which it then does for ever. `what` is for
   messages. */
void orders_wait(int (*ready)(void *), void *arg, const char *what);
/* The calling thread's next step uses the object. Other threads may run first. */
void orders_use_object(uintptr_t object, orders_use use, const char *what);
/* The same, not before `ready` returns 1. */
void orders_use_when(uintptr_t object, orders_use use, int (*ready)(void *), void *arg,
                     const char *what);
/* The calling thread waits until `ready` returns 1, or until no other thread can run: then time
   passes. */
void orders_sleep(int (*ready)(void *), void *arg, const char *what);
/* 1: loads of one variable by one thread, with nothing between them, count as one. That is right if
   the thread only waits for another value. */
extern int orders_spins;
/* Writes the calling thread's moment to *s, or adds it to *s. */
void orders_stamp_now(orders_stamp *s);
void orders_add_now(orders_stamp *s);
/* What the stamp has happened before the calling thread's next step. */
void orders_join(const orders_stamp *s);
/* A place at which a rank may die. */
void orders_point(void);
int orders_self(void);     /* the number of the calling thread */
int orders_rank(void);     /* of the calling thread; -1: none */
int orders_is_first(void); /* the calling thread is the rank's first one */
int orders_died(int rank);
/* The calling thread reads or writes these bytes, which code without instrumentation does. */
void orders_access(const void *at, size_t bytes, int writes);
/* Memory of one execution: filled with zeros, and freed at its end. Unlike orders_malloc, it may be
   used in any thread. */
void *orders_hold(size_t bytes);

/* Reports an error of the plugin, with what the threads do, and ends the program. */
__attribute__((format(printf, 1, 2), noreturn)) void orders_fail(const char *format, ...);

/* ---- for tests ---- */

typedef struct orders_test {
    int nranks;
    void (*begin)(void *arg); /* before each execution */
    void (*run)(int rank, void *arg);
    void (*end)(void *arg); /* after each execution */
    void *arg;
    double budget_s; /* seconds after which the case is not closed */
    int die_rank;    /* this rank dies at its point number die_at; die_at 0: none dies */
    long die_at;
    uint64_t seed; /* of the first order; 0: the lowest thread first */
} orders_test;

typedef struct orders_report {
    long classes;  /* of orders that were run to the end */
    long cut;      /* executions that were ended, because they belong to a class that was run */
    long steps;    /* of the longest execution: operations that the scheduler saw */
    long accesses; /* of the last execution, to memory */
    long points[ORDERS_RANKS]; /* of each rank in the first execution */
    int closed;
    double seconds;
} orders_report;

/* Explores all orders of a test. Returns only if no error was found. */
orders_report orders_explore(const orders_test *t);

/* Removal of one call, by "file:line" of the plugin. Each call that could be removed asks. */
int orders_removed(const char *file, int line);
void orders_remove(const char *place);
int orders_removal_reached(void);
/* 1: lists the calls that ask, from here on; prints those. */
void orders_list_places(int lists);
void orders_print_places(void);

#endif

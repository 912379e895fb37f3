/* harness.h - checks that count, and ranks as threads. Every test program ends with
   `return test_summary();`, which prints the line `N passed, N failed`. */
#ifndef TEST_HARNESS_H
#define TEST_HARNESS_H

#include "../../zero_plugin.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int test_passed, test_failed;
static char test_first[512]; /* the first failure inside a case */

__attribute__((unused)) static double test_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Counts one case. */
__attribute__((format(printf, 2, 3), unused)) static int test_check(int ok, const char *format,
                                                                    ...) {
    if (__atomic_load_n(&ok, __ATOMIC_RELAXED)) {
        __atomic_add_fetch(&test_passed, 1, __ATOMIC_RELAXED);
        return 1;
    }
    va_list list;
    va_start(list, format);
    fprintf(stderr, "FAILED: ");
    vfprintf(stderr, format, list);
    fprintf(stderr, "\n");
    va_end(list);
    __atomic_add_fetch(&test_failed, 1, __ATOMIC_RELAXED);
    return 0;
}

__attribute__((unused)) static int test_summary(void) {
    printf("%d passed, %d failed\n", test_passed, test_failed);
    return test_failed != 0;
}

/* splitmix64: the tests' own random numbers. */
static uint64_t test_mix(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* Whether to run the next of many alternatives: every ofth call, from one that the environment's
   SEED chooses, or each call if SEED is not set. For one thread. run.sh samples by the remainder of
   SEED: a hash of it keeps the two choices apart. */
__attribute__((unused)) static int test_sampled(unsigned of) {
    static unsigned turn;
    const char *seed = getenv("SEED");
    return !seed || (test_mix(strtoull(seed, NULL, 10)) + turn++) % of == 0;
}

typedef struct test_random {
    uint64_t state;
} test_random;
__attribute__((unused)) static uint64_t test_next(test_random *r) { return test_mix(r->state++); }
/* 0..n-1 */
__attribute__((unused)) static int test_below(test_random *r, int n) {
    return (int)(test_next(r) % (uint64_t)n);
}

/* Runs body(rank, arg) on `nranks` threads that meet in one zero_local. */
typedef struct test_rank {
    int rank, nranks;
    zero_local *local;
    int node_size;
    void *arg;
    void (*body)(struct test_rank *);
    pthread_t thread;
    int failed;
    char why[768];
} test_rank;

static void *test_rank_main(void *arg) {
    test_rank *r = (test_rank *)arg;
    r->body(r);
    return NULL;
}

/* Notes the first thing that went wrong on this rank. */
__attribute__((format(printf, 2, 3), unused)) static void test_rank_fail(test_rank *r,
                                                                         const char *format, ...) {
    va_list list;
    if (r->failed) return;
    r->failed = 1;
    va_start(list, format);
    vsnprintf(r->why, sizeof r->why, format, list);
    va_end(list);
}

/* A rank without a meeting place is alone. */
__attribute__((unused)) static zero_comm test_comm(const test_rank *r) {
    const zero_comm_kind kind = r->local ? ZERO_COMM_LOCAL : ZERO_COMM_SELF;
    zero_comm c = {kind, r->rank, r->local, r->node_size};
    return c;
}

/* Memory that forked processes share. */
__attribute__((unused)) static void *test_shared(size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) abort();
    return p;
}

__attribute__((unused)) static void test_rank_set(test_rank *r, int rank, int nranks,
                                                  zero_local *local, int node_size, void *arg) {
    r->rank = rank;
    r->nranks = nranks;
    r->local = local;
    r->node_size = node_size;
    r->arg = arg;
}

/* Runs `seats` threads, of which the zero_local has the first nranks. 1: no rank failed. */
static int test_ranks_of(int seats, int nranks, int node_size, void (*body)(test_rank *),
                         void *arg) {
    static test_rank ranks[64];
    zero_local *local = NULL;
    int ok = 1;
    if (zero_local_create(&local, nranks, 0)) return 0;
    memset(ranks, 0, sizeof ranks);
    test_first[0] = 0;
    for (int i = 0; i < seats; i++) {
        test_rank *r = &ranks[i];
        test_rank_set(r, i, nranks, local, node_size, arg);
        r->body = body;
        if (pthread_create(&r->thread, NULL, test_rank_main, r)) abort();
    }
    for (int i = 0; i < seats; i++) {
        pthread_join(ranks[i].thread, NULL);
        if (ranks[i].failed && ok)
            snprintf(test_first, sizeof test_first, "rank %d: %.480s", i, ranks[i].why);
        ok &= !ranks[i].failed;
    }
    zero_local_destroy(local);
    return ok;
}

__attribute__((unused)) static int test_ranks(int nranks, int node_size, void (*body)(test_rank *),
                                              void *arg) {
    return test_ranks_of(nranks, nranks, node_size, body, arg);
}

/* The same on processes, forked here: what they tell must lie in memory that is shared. A process
   that is not done after `limit` seconds is killed and has failed. */
__attribute__((unused)) static int test_processes(int nranks, int node_size,
                                                  void (*body)(test_rank *), void *arg,
                                                  unsigned limit) {
    const size_t bytes = (size_t)nranks * sizeof(test_rank);
    test_rank *ranks = (test_rank *)test_shared(bytes);
    pid_t pid[64];
    zero_local *local = NULL;
    int ok = 1;
    if (zero_local_create(&local, nranks, 1)) return 0;
    test_first[0] = 0;
    fflush(NULL);
    for (int i = 0; i < nranks; i++) {
        test_rank *r = &ranks[i];
        test_rank_set(r, i, nranks, local, node_size, arg);
        pid[i] = fork();
        if (pid[i] < 0) abort();
        if (pid[i]) continue;
        (void)alarm(limit);
        body(r);
        fflush(NULL);
        _exit(r->failed);
    }
    for (int i = 0; i < nranks; i++) {
        int status = 0;
        (void)waitpid(pid[i], &status, 0);
        if (WIFSIGNALED(status)) test_rank_fail(&ranks[i], "killed by signal %d", WTERMSIG(status));
        if ((status || ranks[i].failed) && ok)
            snprintf(test_first, sizeof test_first, "rank %d: %.480s", i, ranks[i].why);
        ok &= !status && !ranks[i].failed;
    }
    zero_local_destroy(local);
    (void)munmap(ranks, bytes);
    return ok;
}

__attribute__((unused)) static void test_quiet(void *user, zero_log_level level, const char *text) {
    (void)user;
    (void)level;
    (void)text;
}
#endif

/* api_run.h - the ranks of this machine, started and watched

   CPU: a process per rank, forked here, each on processors of its own. The parent takes no part in
   training: it waits for signals and for ranks that end, passes on what was meant for it alone, and
   tells the ranks when one of them has failed. CUDA: a thread per rank, since there the ranks of a
   zero_local share one process. */
#pragma once

#include "api_host.h"

enum { ZP_NOT_STARTED = 126, ZP_BY_SIGNAL = 128 };
#if defined(__linux__) && !defined(__CUDACC__)
#define ZP_FORKS
#endif
#define ZP_GRACE_S 3.0 /* from the failure of a rank to SIGTERM, and from there to SIGKILL */

typedef struct zp_run_rank {
    zero_comm comm;
    zero_rank_fn fn;
    void *arg;
    int *first;    /* what the first rank that failed ended with; 0: none has */
    pid_t process; /* 0: it has ended, or is a thread */
    pthread_t thread;
} zp_run_rank;

/* A rank has ended: if it failed, its peers learn that. */
static void zp_run_ended(const zp_run_rank *r, int code) {
    char text[64];
    int none = 0;
    if (!code) return;
    (void)__atomic_compare_exchange_n(r->first, &none, code, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    if (code > ZP_BY_SIGNAL)
        (void)snprintf(text, sizeof text, "signal %d ended it", code - ZP_BY_SIGNAL);
    else
        (void)snprintf(text, sizeof text, "it returned %d", code);
    zero_local_abort((zero_local *)r->comm.handle, r->comm.rank, text);
}

#ifndef ZP_FORKS
enum { ZP_SHARED = 0 };
static void *zp_run_thread(void *rank) {
    const zp_run_rank *r = (const zp_run_rank *)rank;
    zp_device_spread(r->comm.rank);
    zp_run_ended(r, r->fn(&r->comm, r->arg));
    return NULL;
}
static void zp_run_all(zp_run_rank *r, int n) {
    int made = 0;
    while (made < n && !pthread_create(&r[made].thread, NULL, zp_run_thread, &r[made])) made++;
    if (made < n) zp_run_ended(&r[made], ZP_NOT_STARTED);
    for (int i = 0; i < made; i++) (void)pthread_join(r[i].thread, NULL);
}
#else
enum { ZP_SHARED = 1 };

/* This process keeps the rank's part of the processors; all of them where there are too few. */
static void zp_run_processors(int rank, int nranks) {
    cpu_set_t all, mine;
    int seen = 0;
    CPU_ZERO(&mine);
    if (sched_getaffinity(0, sizeof all, &all)) return;
    const int n = CPU_COUNT(&all), each = n / nranks > 1 ? n / nranks : 1;
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &all) && seen++ / each == rank) CPU_SET(i, &mine);
    if (n >= nranks) (void)sched_setaffinity(0, sizeof mine, &mine);
#ifdef _OPENMP
    if (!getenv("OMP_NUM_THREADS")) omp_set_num_threads(each);
#endif
}

static void zp_run_child(const zp_run_rank *r, int nranks, pid_t parent, const sigset_t *mask) {
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(ZP_NOT_STARTED);
    zp_run_processors(r->comm.rank, nranks);
    (void)sigprocmask(SIG_SETMASK, mask, NULL);
    const int code = r->fn(&r->comm, r->arg);
    (void)fflush(NULL);
    _exit(code);
}

static void zp_run_signal(const zp_run_rank *r, int n, int number) {
    for (int i = 0; i < n; i++)
        if (r[i].process) (void)kill(r[i].process, number);
}

/* Until all ranks have ended. A signal of the terminal has reached them already. */
static void zp_run_watch(zp_run_rank *r, int n, int left, const sigset_t *signals) {
    const struct timespec pause = {0, 100000000};
    double due = 0;
    for (int warned = 0; left > 0;) {
        siginfo_t info;
        const int number = sigtimedwait(signals, &info, &pause);
        if (number > 0 && number != SIGCHLD && info.si_code <= 0) zp_run_signal(r, n, number);
        for (int i = 0; i < n; i++) {
            int status;
            if (!r[i].process || waitpid(r[i].process, &status, WNOHANG) != r[i].process) continue;
            r[i].process = 0;
            left--;
            zp_run_ended(&r[i], WIFSIGNALED(status) ? ZP_BY_SIGNAL + WTERMSIG(status)
                                                    : WEXITSTATUS(status));
        }
        if (*r->first && due == 0) due = zp_seconds() + ZP_GRACE_S;
        if (!*r->first || zp_seconds() < due) continue;
        zp_run_signal(r, n, warned++ ? SIGKILL : SIGTERM);
        due = zp_seconds() + ZP_GRACE_S;
    }
}

static void zp_run_all(zp_run_rank *r, int n) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCHLD};
    const pid_t parent = getpid();
    struct sigaction normal, before;
    sigset_t signals, mask;
    int made = 0;
    memset(&normal, 0,
           sizeof normal); /* a host that ignores SIGCHLD would lose what ranks return */
    normal.sa_handler = SIG_DFL;
    (void)sigemptyset(&signals);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        (void)sigaddset(&signals, numbers[i]);
    (void)sigprocmask(SIG_BLOCK, &signals, &mask);
    (void)sigaction(SIGCHLD, &normal, &before);
    (void)fflush(NULL); /* or every rank would write what the parent has not yet */
    for (; made < n; made++) {
        r[made].process = fork();
        if (r[made].process == 0) zp_run_child(&r[made], n, parent, &mask);
        if (r[made].process < 0) break;
    }
    if (made < n) {
        r[made].process = 0;
        zp_run_ended(&r[made], ZP_NOT_STARTED);
    }
    zp_run_watch(r, n, made, &signals);
    (void)sigaction(SIGCHLD, &before, NULL);
    (void)sigprocmask(SIG_SETMASK, &mask, NULL);
}
#endif

/* Threads of this process: a fork takes only the one that calls it along. */
static int zp_run_threads(void) {
    int n = 0;
#ifdef ZP_FORKS
    DIR *tasks = opendir("/proc/self/task");
    for (const struct dirent *e; tasks && (e = readdir(tasks)) != NULL;) n += e->d_name[0] != '.';
    if (tasks) (void)closedir(tasks);
#endif
    return n;
}

int zero_run_local(int nranks, zero_rank_fn fn, void *arg) {
    zp_run_rank ranks[ZP_LOCAL_MAX];
    zero_local *local;
    int first = 0;
    if (!fn || (nranks > 1 && zp_run_threads() > 1)) return ZP_NOT_STARTED;
    if (zero_local_create(&local, nranks, ZP_SHARED && nranks > 1)) return ZP_NOT_STARTED;
    local->parted = ZP_SHARED;
    memset(ranks, 0, sizeof ranks);
    for (int i = 0; i < nranks; i++) {
        ranks[i].comm.kind = ZERO_COMM_LOCAL;
        ranks[i].comm.rank = i;
        ranks[i].comm.handle = local;
        ranks[i].fn = fn;
        ranks[i].arg = arg;
        ranks[i].first = &first;
    }
    if (nranks == 1)
        first = fn(&ranks->comm, arg);
    else
        zp_run_all(ranks, nranks);
    zero_local_destroy(local);
    return first;
}

/* start_ranks.h - starts and watches the ranks of this machine

   Each rank is a process that is forked here, on processors of its own, and on the GPU of its
   number. The parent does not train. It waits for signals and ended ranks, passes on signals that
   only it received, and reports a failed rank to the others and the log. CUDA: the ranks of
   zero_run_local are threads, because those of a zero_local share one process there. */
#pragma once

#include "life.h"

#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

enum { ZP_A_RANK = -1, ZP_NOT_STARTED = 126, ZP_BY_SIGNAL = 128 };
#define ZP_GRACE_S 3.0 /* seconds from a rank's failure to SIGTERM, and from SIGTERM to SIGKILL */

size_t zero_local_bytes(void) { return sizeof(zero_local); }

zero_result zero_local_place(zero_local **local, void *memory, int nranks) {
    if (!local || !memory || (uintptr_t)memory % 64 || nranks < 1 || nranks > ZP_LOCAL_MAX)
        return ZERO_ERR_ARGUMENT;
    *local = (zero_local *)memory;
    zp_board_make_local(*local, nranks, 1);
    (*local)->placed = 1;
    return ZERO_OK;
}

/* The ranks of one call. */
typedef struct zp_start_ranks {
    zero_local *local;
    int n;
    int first; /* result of the first failed rank; 0: none */
    zero_log_fn log;
    void *log_user;
    pid_t process[ZP_LOCAL_MAX]; /* 0: ended, or a thread */
} zp_start_ranks;

/* Notifies the peers of a failed or missing rank. 1: it is the first. */
static int zp_start_ranks_note_failure(zp_start_ranks *c, int code, const char *text) {
    int none = 0;
    zero_local_abort(c->local, -1, text);
    return __atomic_compare_exchange_n(&c->first, &none, code, 0, __ATOMIC_ACQ_REL,
                                       __ATOMIC_ACQUIRE);
}
static void zp_start_ranks_note_return(zp_start_ranks *c, int rank, int code) {
    char text[64];
    (void)snprintf(text, sizeof text, "rank %d returned %d", rank, code);
    if (code) (void)zp_start_ranks_note_failure(c, code, text);
}
/* Logs an error that no rank's context can report. */
static void zp_start_ranks_log(const zp_start_ranks *c, const char *text) {
    if (c->log) c->log(c->log_user, ZERO_LOG_ERROR, text);
}
static void zp_start_ranks_report_missing(zp_start_ranks *c, int rank, int error) {
    char text[ZP_TEXT_BYTES];
    (void)snprintf(text, sizeof text, "rank %d could not be started: %s", rank, strerror(error));
    if (zp_start_ranks_note_failure(c, ZP_NOT_STARTED, text)) zp_start_ranks_log(c, text);
}

/* Makes the meeting place. Returns 0, after a log, if ranks cannot start. */
static int zp_start_ranks_open(zp_start_ranks *c, int nranks, int shared, zero_log_fn log,
                               void *log_user) {
    char text[ZP_TEXT_BYTES];
    memset(c, 0, sizeof *c);
    c->n = nranks;
    c->log = log;
    c->log_user = log_user;
    const zero_result r = zero_local_create(&c->local, nranks, shared);
    if (!r) c->local->parted = shared;
    (void)snprintf(text, sizeof text, "%d ranks, expected 1..%d: %s", nranks, ZP_LOCAL_MAX,
                   zero_result_string(r));
    if (r) zp_start_ranks_log(c, text);
    return !r;
}

static zero_comm zp_start_ranks_comm(const zp_start_ranks *c, int rank) {
    const zero_comm comm = {ZERO_COMM_LOCAL, rank, c->local, 0};
    return comm;
}

/* Counts the threads of this process: fork copies only the caller. */
static int zp_start_ranks_count_threads(void) {
    int n = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (const struct dirent *e; tasks && (e = readdir(tasks)) != NULL;) n += e->d_name[0] != '.';
    if (tasks) (void)closedir(tasks);
    return n;
}

/* Returns 1 if other threads exist, even after a first fork made libraries (OpenBLAS) end some. */
static int zp_start_ranks_has_threads(void) {
    if (zp_start_ranks_count_threads() < 2) return 0;
    const pid_t child = fork();
    if (!child) _exit(0);
    if (child > 0) (void)waitpid(child, NULL, 0);
    return zp_start_ranks_count_threads() > 1;
}

/* Returns the cause that the last call of a rank ended by a signal suggests. */
static const char *zp_start_ranks_guess_cause(const char *call, int number) {
    static const char *const causes[][2] = {
        {"zero_adopt", ": does `release` get an array that is no allocation of its own?"},
        {"zero_train_begin",
         ": is a tensor not ZERO_KEEP, or a pointer kept from before zero_adopt?"},
        {"zero_destroy", ": weights and gradients were freed with the context"}};
    for (size_t i = 0; i < 3 && (number == SIGSEGV || number == SIGABRT); i++)
        if (call && !strcmp(call, causes[i][0])) return causes[i][1];
    return "";
}

static void zp_start_ranks_report_death(zp_start_ranks *c, int rank, int number) {
    char text[ZP_TEXT_BYTES];
    const char *call = c->local->call[rank];
    const char *coords = c->local->coords[rank].text;
    char unit[32] = "";
    if (call && c->local->unit[rank] >= 0)
        (void)snprintf(unit, sizeof unit, " of unit %d", (int)c->local->unit[rank]);
    (void)snprintf(text, sizeof text,
                   "rank %d%s%s%s was ended by signal %d (%s), its last call was %s%s%s", rank,
                   coords[0] ? " (" : "", coords, coords[0] ? ")" : "", number, strsignal(number),
                   call ? call : "none", unit, zp_start_ranks_guess_cause(call, number));
    if (zp_start_ranks_note_failure(c, ZP_BY_SIGNAL + number, text)) zp_start_ranks_log(c, text);
}

/* Binds this process to the rank's processors, or to all if they are too few. */
static void zp_start_ranks_set_processors(int rank, int nranks) {
    cpu_set_t all, mine;
    int seen = 0;
    CPU_ZERO(&mine);
    if (sched_getaffinity(0, sizeof all, &all)) return;
    const int n = CPU_COUNT(&all), each = n / nranks > 1 ? n / nranks : 1;
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &all) && seen++ / each == rank) CPU_SET(i, &mine);
    if (n >= nranks) (void)sched_setaffinity(0, sizeof mine, &mine);
    if (!getenv("OMP_NUM_THREADS")) zp_lane_set_threads(each);
}

static void zp_start_ranks_signal(const zp_start_ranks *c, int number) {
    for (int i = 0; i < c->n; i++)
        if (c->process[i]) (void)kill(c->process[i], number);
}

/* Waits until all ranks have ended. They got the terminal's signals already. */
static void zp_start_ranks_watch(zp_start_ranks *c, int left, const sigset_t *signals) {
    const struct timespec pause = {0, 100000000};
    double due = 0;
    for (int warned = 0; left > 0;) {
        siginfo_t info;
        const int number = sigtimedwait(signals, &info, &pause);
        if (number > 0 && number != SIGCHLD && info.si_code <= 0) zp_start_ranks_signal(c, number);
        for (int i = 0; i < c->n; i++) {
            int status;
            if (!c->process[i] || waitpid(c->process[i], &status, WNOHANG) != c->process[i])
                continue;
            c->process[i] = 0;
            left--;
            if (WIFSIGNALED(status))
                zp_start_ranks_report_death(c, i, WTERMSIG(status));
            else
                zp_start_ranks_note_return(c, i, WEXITSTATUS(status));
        }
        if (c->first && due == 0) due = zp_seconds() + ZP_GRACE_S;
        if (!c->first || zp_seconds() < due) continue;
        zp_start_ranks_signal(c, warned++ ? SIGKILL : SIGTERM);
        due = zp_seconds() + ZP_GRACE_S;
    }
}

/* Forks the ranks. Returns -1 in each; in the caller, zero_run_local's value after all ended. */
static int zp_start_ranks_fork_all(zp_start_ranks *c, zero_comm *comm) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCHLD};
    const pid_t parent = getpid();
    struct sigaction normal, before;
    sigset_t signals, mask;
    int made = 0;
    memset(&normal, 0, sizeof normal); /* if SIGCHLD is ignored, the ranks' results are lost */
    normal.sa_handler = SIG_DFL;
    (void)sigemptyset(&signals);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        (void)sigaddset(&signals, numbers[i]);
    (void)sigprocmask(SIG_BLOCK, &signals, &mask);
    (void)sigaction(SIGCHLD, &normal, &before);
    (void)fflush(NULL); /* otherwise every rank would write the parent's buffer */
    for (pid_t process = 1; made < c->n && process > 0; made += process > 0) {
        process = fork();
        if (process > 0) c->process[made] = process;
        if (process < 0) zp_start_ranks_report_missing(c, made, errno);
        if (process) continue;
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) (void)raise(SIGKILL);
        zp_start_ranks_set_processors(made, c->n);
        zp_device_choose(made);
        *comm = zp_start_ranks_comm(c, made);
        break;
    }
    if (!comm->handle) zp_start_ranks_watch(c, made, &signals);
    (void)sigaction(SIGCHLD, &before, NULL);
    (void)sigprocmask(SIG_SETMASK, &mask, NULL);
    return comm->handle ? ZP_A_RANK : c->first;
}

/* Returns the transport that connects processes of this machine; NULL: none can. */
static const zp_transport *zp_start_ranks_find_transport(void) {
    for (int i = 0; i < ZP_TRANSPORTS; i++) {
        const zp_transport *t = zp_transport_table[i]->transport;
        if (t && t->connect) return t;
    }
    return zp_device_is_host() ? &zp_local_transport : NULL;
}

static int zp_start_ranks_fork(int nranks, zero_comm *comm, zero_log_fn log, void *log_user) {
    zp_start_ranks started;
    int ended = ZP_NOT_STARTED;
    memset(comm, 0, sizeof *comm);
    if (!zp_start_ranks_open(&started, nranks, 1, log, log_user)) return ended;
    if (!zp_start_ranks_find_transport())
        zp_start_ranks_log(&started, zp_transport_explain_missing(ZERO_COMM_NCCL));
    else if (zp_start_ranks_has_threads())
        zp_start_ranks_log(&started,
                           "this process has other threads already and cannot be forked: start the "
                           "ranks first in main; if a library makes threads when it is loaded, its "
                           "variable in the environment (OMP_NUM_THREADS=1, say) may prevent that");
    else if ((ended = zp_start_ranks_fork_all(&started, comm)) == ZP_A_RANK)
        return ended;
    zero_local_destroy(started.local);
    return ended;
}

#ifdef __CUDACC__
typedef struct zp_run_rank {
    zp_start_ranks *started;
    zero_rank_fn fn;
    void *arg;
    int rank;
    pthread_t thread;
} zp_run_rank;

static void *zp_start_ranks_thread(void *rank) {
    const zp_run_rank *r = (const zp_run_rank *)rank;
    const zero_comm comm = zp_start_ranks_comm(r->started, r->rank);
    zp_device_choose(r->rank);
    zp_start_ranks_note_return(r->started, r->rank, r->fn(&comm, r->arg));
    return NULL;
}
static int zp_start_ranks_run(int n, zero_rank_fn fn, void *arg) {
    zp_run_rank r[ZP_LOCAL_MAX];
    zp_start_ranks started;
    int made = 0, error = 0;
    if (!zp_start_ranks_open(&started, n, 0, NULL, NULL)) return ZP_NOT_STARTED;
    for (; made < n && !error; made += !error) {
        const zp_run_rank one = {&started, fn, arg, made, 0};
        r[made] = one;
        error = pthread_create(&r[made].thread, NULL, zp_start_ranks_thread, &r[made]);
    }
    if (error) zp_start_ranks_report_missing(&started, made, error);
    for (int i = 0; i < made; i++) (void)pthread_join(r[i].thread, NULL);
    zero_local_destroy(started.local);
    return started.first;
}
#else
static int zp_start_ranks_run(int nranks, zero_rank_fn fn, void *arg) {
    zero_comm comm;
    const int ended = zp_start_ranks_fork(nranks, &comm, NULL, NULL);
    if (ended != ZP_A_RANK) return ended;
    const int code = fn(&comm, arg);
    (void)fflush(NULL);
    _exit(code);
}
#endif

int zero_run_local(int nranks, zero_rank_fn fn, void *arg) {
    zp_start_ranks started;
    if (!fn) return ZP_NOT_STARTED;
    if (nranks != 1) return zp_start_ranks_run(nranks, fn, arg);
    if (!zp_start_ranks_open(&started, 1, 0, NULL, NULL)) return ZP_NOT_STARTED;
    const zero_comm comm = zp_start_ranks_comm(&started, 0);
    const int code = fn(&comm, arg);
    zero_local_destroy(started.local);
    return code;
}

/* Connects a forked rank's comm, and creates its context. */
static zero_result zp_start_ranks_create(zero_ctx **z, const zero_config *cfg, zero_comm *comm) {
    const zp_transport *row = zp_start_ranks_find_transport();
    char why[ZP_TEXT_BYTES] = "";
    zero_result r = ZERO_OK;
    if (comm->handle && row->connect) r = row->connect(comm, cfg->timeout_s, why);
    if (r && cfg->log) cfg->log(cfg->log_user, ZERO_LOG_ERROR, why);
    return r ? r : zero_create(z, cfg, comm);
}

int zero_start_local(zero_ctx **z, const zero_config *cfg, int nranks) {
    zero_comm comm = {ZERO_COMM_SELF, 0, NULL, 0};
    if (!z || !cfg) return ZP_NOT_STARTED;
    *z = NULL;
    const int ended =
        nranks == 1 ? ZP_A_RANK : zp_start_ranks_fork(nranks, &comm, cfg->log, cfg->log_user);
    if (ended != ZP_A_RANK) return ended;
    const zero_result r = zp_start_ranks_create(z, cfg, &comm);
    if (!r) return ZP_A_RANK;
    zero_destroy(*z); /* the log has the error, and peers get it now */
    *z = NULL;
    return (int)r;
}

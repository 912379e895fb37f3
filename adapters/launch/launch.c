/* launch.c - see launch.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sched_getaffinity, MAP_ANONYMOUS */
#endif
#include "launch.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/prctl.h>
#endif
#ifdef ZERO_WITH_MPI
#include <mpi.h>
#endif

/* Shared by the ranks of one machine (by fork also with the process that watches them). */
struct launch_board {
    int claimed;      /* somebody has spoken: the job has failed, everybody leaves */
    unsigned arrived; /* ranks that came to a launch_agree, counted over all rounds */
    int failed[2][LAUNCH_MAX_RANKS]; /* by round modulo 2: nobody is two rounds ahead */
};

#ifdef ZERO_WITH_MPI
typedef struct launch_mpi {
    MPI_Comm world;
    MPI_Comm machine; /* the ranks of this machine */
    MPI_Win board;
} launch_mpi;
#endif

enum {
    LAUNCH_GRACE_MS = 3000,   /* for ranks to leave on their own once the job has failed */
    LAUNCH_WITNESS_MS = 2000, /* for the rank that failed first to say its sentence */
    LAUNCH_POLL_MS = 50
};

/* ---- one line ------------------------------------------------------------------------------ */

static int launch_claim(launch_board *board) {
    int expected = 0;
    return __atomic_compare_exchange_n(&board->claimed, &expected, 1, 0, __ATOMIC_ACQ_REL,
                                       __ATOMIC_ACQUIRE);
}

static int launch_is_claimed(launch_board *board) {
    return __atomic_load_n(&board->claimed, __ATOMIC_ACQUIRE);
}

/* One write, so that lines of several processes cannot mix. */
static void launch_print(const char *program, const char *sentence) {
    char line[LAUNCH_SENTENCE + 128];
    const char *clear = isatty(STDERR_FILENO) ? "\033[2K\033[G" : ""; /* of a progress line */
    int length = snprintf(line, sizeof line - 1, "%s%s: %s", clear, program, sentence);
    if (length < 0) return;
    if ((size_t)length > sizeof line - 2) length = (int)sizeof line - 2;
    for (int i = 0; i < length; i++)
        if (line[i] == '\n' || line[i] == '\r') line[i] = ' ';
    line[length] = '\n';
    fflush(stdout);
    if (write(STDERR_FILENO, line, (size_t)length + 1) < 0) return; /* nobody is left to tell */
}

static void launch_nap(int milliseconds) {
    struct timespec pause = {milliseconds / 1000, (milliseconds % 1000) * 1000000L};
    nanosleep(&pause, NULL);
}

/* Waits for somebody else to speak. */
static int launch_await_claim(launch_board *board, int milliseconds) {
    for (int waited = 0; waited < milliseconds; waited += 5) {
        if (launch_is_claimed(board)) return 1;
        launch_nap(5);
    }
    return launch_is_claimed(board);
}

/* ---- ends ---------------------------------------------------------------------------------- */

static void launch_leave(int code) LAUNCH_NORETURN;
static void launch_leave(int code) {
    fflush(stdout);
    _exit(code); /* not exit: threads of the plugin may still run */
}

static void launch_end(launch *l, const char *sentence) LAUNCH_NORETURN;
static void launch_end(launch *l, const char *sentence) {
    if (launch_claim(l->board)) launch_print(l->program, sentence);
    if (l->kind == LAUNCH_FORK)
        for (int i = 0; i < l->groups; i++) zero_local_abort(l->local[i], l->rank, sentence);
#ifdef ZERO_WITH_MPI
    if (l->kind == LAUNCH_MPI) {
        fflush(stdout);
        MPI_Abort(MPI_COMM_WORLD, LAUNCH_EXIT_FAILURE);
    }
#endif
    launch_leave(LAUNCH_EXIT_FAILURE);
}

void launch_fail(launch *l, const char *format, ...) {
    char sentence[LAUNCH_SENTENCE];
    va_list values;
    va_start(values, format);
    vsnprintf(sentence, sizeof sentence, format, values);
    va_end(values);
    launch_end(l, sentence);
}

void launch_fail_result(launch *l, zero_result result, const char *sentence) {
    if (result == ZERO_ERR_PEER) launch_await_claim(l->board, LAUNCH_WITNESS_MS);
    launch_end(l, sentence != NULL && sentence[0] ? sentence : zero_result_string(result));
}

/* ---- agreements ---------------------------------------------------------------------------- */

/* The lowest rank with ok == 0; nranks if there is none. */
static int launch_lowest_failed(launch *l, int ok) {
#ifdef ZERO_WITH_MPI
    if (l->kind == LAUNCH_MPI) {
        int lowest = ok ? l->nranks : l->rank;
        MPI_Allreduce(MPI_IN_PLACE, &lowest, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
        return lowest;
    }
#endif
    if (l->kind == LAUNCH_ALONE) return ok ? 1 : 0;
    int *failed = l->board->failed[l->round & 1];
    failed[l->rank] = !ok;
    l->round++;
    __atomic_fetch_add(&l->board->arrived, 1u, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(&l->board->arrived, __ATOMIC_ACQUIRE) < l->round * (unsigned)l->nranks) {
        if (launch_is_claimed(l->board)) launch_leave(LAUNCH_EXIT_FAILURE);
        launch_nap(1);
    }
    for (int r = 0; r < l->nranks; r++)
        if (failed[r]) return r;
    return l->nranks;
}

static void launch_meet(launch *l, int ok, const char *sentence, int exit_code) {
    int lowest = launch_lowest_failed(l, ok);
    if (lowest == l->nranks) return;
    if (lowest == l->rank && launch_claim(l->board)) launch_print(l->program, sentence);
    /* By fork, the watching process must not see an exit before it sees the claim. */
    if (l->kind == LAUNCH_FORK) launch_await_claim(l->board, LAUNCH_WITNESS_MS);
#ifdef ZERO_WITH_MPI
    if (l->kind == LAUNCH_MPI) MPI_Finalize();
#endif
    launch_leave(exit_code);
}

void launch_agree(launch *l, int ok, const char *sentence) {
    launch_meet(l, ok, sentence, LAUNCH_EXIT_FAILURE);
}

#ifdef ZERO_WITH_MPI
/* The first line in which the texts differ, as a sentence; "" if they are equal. */
static void launch_first_difference(const launch *l, const char *mine, const char *first,
                                    char *sentence, size_t bytes) {
    sentence[0] = 0;
    while (*mine || *first) {
        size_t m = strcspn(mine, "\n"), f = strcspn(first, "\n");
        if (m != f || memcmp(mine, first, m) != 0) {
            snprintf(sentence, bytes, "rank %d was started with %.*s, but rank 0 with %.*s",
                     l->rank, (int)m, mine, (int)f, first);
            return;
        }
        mine += m + (mine[m] == '\n');
        first += f + (first[f] == '\n');
    }
}
#endif

void launch_same(launch *l, const char *text) {
#ifdef ZERO_WITH_MPI
    if (l->kind != LAUNCH_MPI) return;
    char sentence[LAUNCH_SENTENCE];
    int length = (int)strlen(text);
    MPI_Bcast(&length, 1, MPI_INT, 0, MPI_COMM_WORLD);
    char *first = (char *)calloc((size_t)length + 1, 1);
    if (first == NULL) launch_fail(l, "out of memory for %d bytes", length + 1);
    if (l->rank == 0) memcpy(first, text, (size_t)length);
    MPI_Bcast(first, length, MPI_CHAR, 0, MPI_COMM_WORLD);
    launch_first_difference(l, text, first, sentence, sizeof sentence);
    free(first);
    launch_agree(l, sentence[0] == 0, sentence);
#else
    (void)l;
    (void)text; /* children of one process have the settings of one command line */
#endif
}

/* ---- questions ----------------------------------------------------------------------------- */

const char *launch_how(const launch *l) {
    static const char *const words[] = {"alone", "here (fork)", "by mpirun"};
    return words[l->kind];
}

int launch_has_mpi(void) {
#ifdef ZERO_WITH_MPI
    return 1;
#else
    return 0;
#endif
}

int launch_processors(void) {
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
#endif
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}

/* ---- alone --------------------------------------------------------------------------------- */

/* A signal handler has no other way to its words. */
static char launch_last_words[2][160];

static void launch_interrupted(int number) {
    const char *words = launch_last_words[number == SIGTERM];
    if (write(STDERR_FILENO, words, strlen(words)) < 0) _exit(LAUNCH_EXIT_FAILURE);
    _exit(128 + number);
}

static int launch_run_alone(const launch_request *request, launch *l) {
    launch_board board;
    memset(&board, 0, sizeof board);
    l->kind = LAUNCH_ALONE;
    l->nranks = l->local_ranks = 1;
    l->board = &board;
    for (int i = 0; i < l->groups; i++) l->comm[i].kind = ZERO_COMM_SELF;
    snprintf(launch_last_words[0], sizeof launch_last_words[0],
             "%s: interrupted by SIGINT; the only rank has ended\n", l->program);
    snprintf(launch_last_words[1], sizeof launch_last_words[1],
             "%s: ended by SIGTERM; the only rank has ended\n", l->program);
    signal(SIGINT, launch_interrupted);
    signal(SIGTERM, launch_interrupted);
    return request->rank_main(l, request->user);
}

/* ---- fork ---------------------------------------------------------------------------------- */

#ifdef __linux__

typedef struct launch_watch {
    const launch *l;
    pid_t child[LAUNCH_MAX_RANKS]; /* 0: reaped */
    int living;
    int code;       /* exit code of the program so far */
    int ending;     /* the ranks have been told to end */
    int killed;     /* and then killed */
    long ending_ms; /* since when */
} launch_watch;

static long launch_clock_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (long)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void launch_kill_all(launch_watch *w, int number) {
    for (int r = 0; r < w->l->nranks; r++)
        if (w->child[r] > 0) kill(w->child[r], number);
}

/* Says the sentence, unless a rank did, and lets the others' collectives return. */
static void launch_end_all(launch_watch *w, int rank, const char *sentence) {
    if (launch_claim(w->l->board)) launch_print(w->l->program, sentence);
    for (int i = 0; i < w->l->groups; i++) zero_local_abort(w->l->local[i], rank, sentence);
    if (w->ending) return;
    w->ending = 1;
    w->ending_ms = launch_clock_ms();
}

static void launch_on_exit(launch_watch *w, int rank, int status) {
    char sentence[LAUNCH_SENTENCE];
    long pid = (long)w->child[rank];
    w->child[rank] = 0;
    w->living--;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
    if (w->code == 0) w->code = WIFEXITED(status) ? WEXITSTATUS(status) : LAUNCH_EXIT_FAILURE;
    if (WIFSIGNALED(status))
        snprintf(sentence, sizeof sentence,
                 "rank %d (process %ld) was killed by signal %d (%s); all ranks end", rank, pid,
                 WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        snprintf(sentence, sizeof sentence,
                 "rank %d (process %ld) ended with exit code %d; all ranks end", rank, pid,
                 WEXITSTATUS(status));
    launch_end_all(w, rank, sentence);
}

static void launch_on_signal(launch_watch *w, int number) {
    char sentence[LAUNCH_SENTENCE];
    snprintf(sentence, sizeof sentence, "%s; all %d ranks end",
             number == SIGINT ? "interrupted by SIGINT" : "ended by SIGTERM", w->l->nranks);
    w->code = 128 + number;
    launch_end_all(w, 0, sentence);
    launch_kill_all(w, SIGTERM); /* ranks have SIGTERM's default: they end at once */
}

static void launch_reap(launch_watch *w) {
    for (int r = 0; r < w->l->nranks; r++) {
        int status = 0;
        if (w->child[r] > 0 && waitpid(w->child[r], &status, WNOHANG) == w->child[r])
            launch_on_exit(w, r, status);
    }
}

/* `signals` are blocked, so that none is missed between two looks. */
static int launch_supervise(launch_watch *w, const sigset_t *signals) {
    const struct timespec poll = {0, LAUNCH_POLL_MS * 1000000L};
    while (w->living > 0) {
        int number = sigtimedwait(signals, NULL, &poll);
        launch_reap(w);
        if ((number == SIGINT || number == SIGTERM) && w->living > 0) launch_on_signal(w, number);
        if (w->ending && !w->killed && launch_clock_ms() - w->ending_ms > LAUNCH_GRACE_MS) {
            w->killed = 1;
            launch_kill_all(w, SIGKILL);
        }
    }
    return w->code;
}

static void launch_child(const launch_request *request, launch *l, int rank, pid_t parent,
                         const sigset_t *old_mask) LAUNCH_NORETURN;
static void launch_child(const launch_request *request, launch *l, int rank, pid_t parent,
                         const sigset_t *old_mask) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(LAUNCH_EXIT_FAILURE); /* it died before the line above */
    signal(SIGINT, SIG_IGN); /* the terminal sends it to all; the parent acts on it */
    signal(SIGTERM, SIG_DFL);
    sigprocmask(SIG_SETMASK, old_mask, NULL);
    l->rank = l->local_rank = rank;
    for (int i = 0; i < l->groups; i++) l->comm[i].rank = rank;
    int code = request->rank_main(l, request->user);
    fflush(NULL);
    exit(code);
}

static int launch_start(const launch_request *request, launch *l) {
    sigset_t signals, old_mask;
    launch_watch w;
    memset(&w, 0, sizeof w);
    w.l = l;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGCHLD);
    sigprocmask(SIG_BLOCK, &signals, &old_mask);
    pid_t parent = getpid();
    fflush(NULL); /* or the children would print it again */
    for (int r = 0; r < l->nranks; r++) {
        pid_t pid = fork();
        if (pid == 0) launch_child(request, l, r, parent, &old_mask);
        if (pid < 0) {
            char sentence[LAUNCH_SENTENCE];
            snprintf(sentence, sizeof sentence, "rank %d could not be started: %s", r,
                     strerror(errno));
            w.code = LAUNCH_EXIT_FAILURE;
            launch_end_all(&w, r, sentence);
            launch_kill_all(&w, SIGTERM);
            break;
        }
        w.child[r] = pid;
        w.living++;
    }
    return launch_supervise(&w, &signals);
}

static int launch_run_fork(const launch_request *request, launch *l, int ranks) {
    l->kind = LAUNCH_FORK;
    l->nranks = l->local_ranks = ranks;
    void *shared =
        mmap(NULL, sizeof(launch_board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        launch_print(l->program, "no shared memory for the ranks");
        return LAUNCH_EXIT_FAILURE;
    }
    l->board = (launch_board *)shared; /* mmap gives zeros */
    int code = LAUNCH_EXIT_FAILURE, made = 0;
    for (; made < l->groups; made++) {
        zero_result result = zero_local_create(&l->local[made], ranks, 1);
        if (result != ZERO_OK) {
            launch_print(l->program, zero_result_string(result));
            break;
        }
        l->comm[made].kind = ZERO_COMM_LOCAL;
        l->comm[made].handle = l->local[made];
    }
    if (made == l->groups) code = launch_start(request, l);
    while (made-- > 0) zero_local_destroy(l->local[made]);
    munmap(shared, sizeof(launch_board));
    return code;
}

#else

static int launch_run_fork(const launch_request *request, launch *l, int ranks) {
    char sentence[LAUNCH_SENTENCE];
    (void)request;
    snprintf(sentence, sizeof sentence,
             "%d ranks on one machine: by fork only on Linux; use "
             "mpirun",
             ranks);
    launch_print(l->program, sentence);
    return LAUNCH_EXIT_FAILURE;
}

#endif

/* ---- mpirun -------------------------------------------------------------------------------- */

/* Ranks of the mpirun (or srun) that started this process, and which of them it is. 0: none did. */
static int launch_mpi_ranks(int *rank) {
    static const char *const names[][2] = {{"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
                                           {"PMI_SIZE", "PMI_RANK"}};
    *rank = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *size = getenv(names[i][0]), *mine = getenv(names[i][1]);
        if (size == NULL || atoi(size) < 1) continue;
        *rank = mine != NULL ? atoi(mine) : 0;
        return atoi(size);
    }
    return 0;
}

#ifdef ZERO_WITH_MPI

static void launch_mpi_board(launch *l, launch_mpi *mpi) {
    MPI_Aint bytes = 0;
    int unit = 1, root = 0;
    void *board = NULL;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, l->rank, MPI_INFO_NULL,
                        &mpi->machine);
    MPI_Comm_rank(mpi->machine, &l->local_rank);
    MPI_Comm_size(mpi->machine, &l->local_ranks);
    if (l->local_rank == 0) bytes = (MPI_Aint)sizeof(launch_board);
    MPI_Win_allocate_shared(bytes, 1, MPI_INFO_NULL, mpi->machine, &board, &mpi->board);
    MPI_Win_shared_query(mpi->board, root, &bytes, &unit, &board);
    if (l->local_rank == root) memset(board, 0, sizeof(launch_board));
    MPI_Barrier(mpi->machine);
    l->board = (launch_board *)board;
}

static int launch_run_mpi(const launch_request *request, launch *l) {
    launch_mpi mpi;
    char sentence[LAUNCH_SENTENCE];
    int provided = MPI_THREAD_SINGLE;
    l->kind = LAUNCH_MPI;
    l->mpi = &mpi;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS) {
        launch_print(l->program, "MPI_Init_thread failed");
        return LAUNCH_EXIT_FAILURE;
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &l->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &l->nranks);
    mpi.world = MPI_COMM_WORLD;
    launch_mpi_board(l, &mpi);
    for (int i = 0; i < l->groups; i++) {
        l->comm[i].kind = ZERO_COMM_MPI;
        l->comm[i].handle = &mpi.world;
    }
    launch_meet(l, request->usage_error == NULL, request->usage_error, LAUNCH_EXIT_USAGE);
    snprintf(sentence, sizeof sentence,
             "mpirun started %d ranks, but -pn asks for %d: leave -pn out", l->nranks,
             request->ranks);
    launch_meet(l, request->ranks == 0 || request->ranks == l->nranks, sentence, LAUNCH_EXIT_USAGE);
    snprintf(
        sentence, sizeof sentence,
        "MPI gives thread level %d, but MPI_THREAD_MULTIPLE (%d) is needed: use an MPI library "
        "built with it, or start the ranks with -pn",
        provided, MPI_THREAD_MULTIPLE);
    launch_agree(l, provided >= MPI_THREAD_MULTIPLE, sentence);
    int code = request->rank_main(l, request->user);
    fflush(stdout);
    MPI_Win_free(&mpi.board);
    MPI_Comm_free(&mpi.machine);
    MPI_Finalize();
    return code;
}

#else

/* Never N trainers that know nothing of each other. */
static int launch_run_mpi(const launch_request *request, launch *l) {
    char sentence[LAUNCH_SENTENCE];
    int ranks = launch_mpi_ranks(&l->rank);
    (void)request;
    snprintf(sentence, sizeof sentence,
             "mpirun started %d ranks, but this build is without MPI: build where mpicc is found, "
             "or use -pn %d instead of mpirun",
             ranks, ranks);
    if (l->rank == 0) launch_print(l->program, sentence);
    return LAUNCH_EXIT_USAGE;
}

#endif

/* ---- run ----------------------------------------------------------------------------------- */

int launch_run(const launch_request *request) {
    launch l;
    int rank = 0;
    memset(&l, 0, sizeof l);
    l.program = request->program;
    l.groups = request->groups;
    if (launch_mpi_ranks(&rank) > 1) return launch_run_mpi(request, &l);
    if (request->usage_error != NULL) {
        launch_print(l.program, request->usage_error);
        return LAUNCH_EXIT_USAGE;
    }
    int ranks = request->ranks > 0 ? request->ranks : request->default_ranks;
    return ranks > 1 ? launch_run_fork(request, &l, ranks) : launch_run_alone(request, &l);
}

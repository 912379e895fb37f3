/* launch.c - see launch.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sched_getaffinity, MAP_ANONYMOUS */
#endif
#include "launch.h"

#include "environment.h"
#include "gpu.h"
#include "guests.h"
#include "meeting.h"
#include "members.h"
#include "signals.h"
#include "witness.h"
#include "../system/clock.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#ifdef ZERO_WITH_MPI
#include <mpi.h>
#endif

enum {
    LAUNCH_GRACE_MS = 3000,   /* time for ranks to end by themselves after a failure */
    LAUNCH_WITNESS_MS = 2000, /* time for the rank that failed first to print its line */
    LAUNCH_POLL_MS = 50,
    LAUNCH_LINGER_MS = 2000, /* time for a rank that failed before memory was shared */
    LAUNCH_BARREN = 3,       /* consecutive restarts of an elastic job that save nothing */
    LAUNCH_SAME = 8,         /* most calls of launch_same */
    LAUNCH_JOIN_S = 120      /* default time for ranks to start */
};

/* The agreements of the ranks of one list (members.h). */
typedef struct launch_agreements {
    unsigned arrived;                /* calls of launch_agree so far, of all ranks */
    int failed[2][LAUNCH_MAX_RANKS]; /* by round modulo 2: no rank is two rounds ahead */
} launch_agreements;

/* Memory that the ranks of one machine share; with fork, also with the process that watches them.
 */
struct launch_board {
    int claimed;                   /* process that prints the line of a failed job; 0: none */
    int line_printed;              /* that process has printed the line */
    int stop_printed;              /* the line about a request to stop is printed */
    int live;                      /* rank 0 shows a live line on the terminal: see launch_live */
    int64_t saved;                 /* step of launch_saved plus 1; 0: never called */
    int64_t copied;                /* the same for launch_copied */
    int fewer;                     /* ranks of launch_fewer; 0: never called */
    int tp, cp, dp;                /* from launch_layout; 0: never called */
    int process[LAUNCH_MAX_RANKS]; /* mpirun: process of each rank; 0: it ends in order */
    int rank_of[LAUNCH_MAX_RANKS];
    launch_agreements agreed[2]; /* by launch.epoch modulo 2 */
    char copy[LAUNCH_BROADCAST]; /* the bytes of launch_broadcast */
    int changes;                 /* 1: the job has a ranks_file, or an address */
    members members;
    int placed[2];  /* 1: that place of launch_place is in use */
    uint64_t token; /* see guests.h */
    /* the texts of launch_same of rank 0, for ranks of other command lines that join */
    char same[LAUNCH_SAME][LAUNCH_BROADCAST];
};

static_assert((int)MEMBERS_MOST == (int)LAUNCH_MAX_RANKS, "a seat for each rank");
static_assert((int)LAUNCH_BROADCAST <= (int)MEETING_BYTES, "a broadcast is one message");
static_assert((int)GPU_ID_BYTES * (int)LAUNCH_MAX_GROUPS <= (int)LAUNCH_BROADCAST, "ids are one");

#ifdef LAUNCH_WITH_NCCL
enum { LAUNCH_GPUS = 1 };
#else
enum { LAUNCH_GPUS = 0 };
#endif

#ifdef ZERO_WITH_MPI
typedef struct launch_mpi {
    MPI_Comm world;
    MPI_Comm machine; /* the ranks of this machine */
    MPI_Win board;
} launch_mpi;
#endif

/* ---- one line ------------------------------------------------------------------------------ */

static int launch_claim(launch_board *board) {
    int expected = 0;
    return __atomic_compare_exchange_n(&board->claimed, &expected, (int)getpid(), 0,
                                       __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

static int launch_is_claimed(launch_board *board) {
    return __atomic_load_n(&board->claimed, __ATOMIC_ACQUIRE) != 0;
}

/* Writes a line with one call, so that lines of several processes do not mix. If the terminal shows
   a live line, which has the last step, the line comes after it; otherwise it replaces what the
   terminal echoed, for example ^C. */
static void launch_write(const launch *l, const char *sentence) {
    char line[LAUNCH_SENTENCE + 128];
    const int live = l->board != NULL && __atomic_exchange_n(&l->board->live, 0, __ATOMIC_ACQ_REL);
    const char *begin = !isatty(STDERR_FILENO) ? "" : live ? "\r\n" : "\033[2K\033[G";
    int length = snprintf(line, sizeof line - 1, "%s%s: %s", begin, l->program, sentence);
    if (length < 0) return;
    if ((size_t)length > sizeof line - 2) length = (int)sizeof line - 2;
    for (int i = (int)strlen(begin); i < length; i++)
        if (line[i] == '\n' || line[i] == '\r') line[i] = ' ';
    line[length] = '\n';
    if (write(STDERR_FILENO, line, (size_t)length + 1) < 0)
        return; /* the error cannot be reported either */
}

static void launch_print(const launch *l, const char *sentence) {
    fflush(stdout);
    launch_write(l, sentence);
}

/* Prints the line of a failure. Only the process that has claimed the right calls it. flush: write
   the buffer of stdout before, which may wait. */
static void launch_print_claimed(const launch *l, const char *sentence, int flush) {
    if (flush) fflush(stdout);
    launch_write(l, sentence);
    __atomic_store_n(&l->board->line_printed, 1, __ATOMIC_RELEASE);
}

/* Waits until another process has claimed the right to print. */
static int launch_await_claim(launch_board *board, int milliseconds) {
    for (int waited = 0; waited < milliseconds; waited += 5) {
        if (launch_is_claimed(board)) return 1;
        clock_pause(5);
    }
    return launch_is_claimed(board);
}

/* If another thread of this process has the right to print, waits until it has printed its line. */
static void launch_await_line(const launch *l) {
    for (int waited = 0; waited < LAUNCH_WITNESS_MS; waited += 5) {
        if (__atomic_load_n(&l->board->line_printed, __ATOMIC_ACQUIRE)) return;
        if (__atomic_load_n(&l->board->claimed, __ATOMIC_ACQUIRE) != (int)getpid()) return;
        clock_pause(5);
    }
}

/* ---- ending -------------------------------------------------------------------------------- */

static void launch_leave(int code) LAUNCH_NORETURN;
static void launch_leave(int code) {
    fflush(stdout);
    _exit(code); /* not exit: threads of the plugin may still run */
}

/* Claims the right to print, on this machine and, for a join, among all machines. Returns 1 if this
   rank has it. */
static int launch_claim_line(launch *l) {
    if (!launch_claim(l->board)) return 0;
    return l->meeting == NULL || meeting_claim((meeting *)l->meeting);
}

/* Ends this rank without a line, because another rank, or another thread of this one, prints it. If
   ranks are threads, the exit code is that of the rank that prints. */
static void launch_leave_silently(launch *l, int code) LAUNCH_NORETURN;
static void launch_leave_silently(launch *l, int code) {
    if (l->kind == LAUNCH_THREADS) clock_pause(LAUNCH_WITNESS_MS);
    launch_await_line(l);
    launch_leave(code);
}

/* If the ranks of a job change, its meeting places come after the board: one for the current ranks,
   and one for the next. */
static size_t launch_board_bytes(int changes) {
    const size_t board = (sizeof(launch_board) + 63) / 64 * 64;
    return changes ? board + 2 * ((zero_local_bytes() + 63) / 64 * 64) : board;
}
static zero_local *launch_place(const launch *l, int epoch) {
    const size_t board = launch_board_bytes(0), each = (launch_board_bytes(1) - board) / 2;
    return (zero_local *)(void *)((char *)l->board + board + (size_t)(epoch & 1) * each);
}

static void launch_abort_locals(const launch *l, int rank, const char *sentence) {
    for (int i = 0; i < l->groups && !l->board->changes; i++)
        zero_local_abort(l->local[i], rank, sentence);
    for (int i = 0; i < 2; i++)
        if (__atomic_load_n(&l->board->placed[i], __ATOMIC_ACQUIRE))
            zero_local_abort(launch_place(l, i), rank, sentence);
}

/* Ends a process that has not joined yet. The ranks train on. */
static void launch_end_joining(const launch *l, const char *sentence) LAUNCH_NORETURN;
static void launch_end_joining(const launch *l, const char *sentence) {
    char line[LAUNCH_SENTENCE + 64];
    snprintf(line, sizeof line, "a new rank cannot join: %s", sentence);
    launch_print(l, line);
    launch_leave(LAUNCH_EXIT_FAILURE);
}

static void launch_end_with(launch *l, const char *sentence, int code) LAUNCH_NORETURN;
static void launch_end_with(launch *l, const char *sentence, int code) {
    if (l->joins) launch_end_joining(l, sentence);
    int speaks = launch_claim_line(l);
    if (speaks) launch_print_claimed(l, sentence, 1);
    launch_abort_locals(l, l->rank, sentence);
#ifdef ZERO_WITH_MPI
    if (l->kind == LAUNCH_MPI) {
        if (!speaks) launch_await_line(l);
        fflush(stdout);
        MPI_Abort(MPI_COMM_WORLD, code);
    }
#endif
    if (!speaks) launch_leave_silently(l, code);
    if (l->kind == LAUNCH_JOIN)
        clock_pause(LAUNCH_POLL_MS); /* lets the other ranks receive the end */
    launch_leave(code);
}

static void launch_end(launch *l, const char *sentence) LAUNCH_NORETURN;
static void launch_end(launch *l, const char *sentence) {
    launch_end_with(l, sentence, LAUNCH_EXIT_FAILURE);
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

/* Returns the lowest rank with ok == 0, or nranks. ends: all ranks end if there is one. */
static int launch_lowest_failed(launch *l, int ok, int ends) {
#ifdef ZERO_WITH_MPI
    if (l->kind == LAUNCH_MPI) {
        int lowest = ok ? l->nranks : l->rank;
        MPI_Allreduce(MPI_IN_PLACE, &lowest, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
        return lowest;
    }
#endif
    if (l->kind == LAUNCH_ALONE) return ok ? 1 : 0;
    if (l->joins) return ok ? l->nranks : l->rank;
    if (l->kind == LAUNCH_JOIN) {
        int lowest = meeting_agree((meeting *)l->meeting, ok, ends);
        if (lowest >= 0) return lowest;
        launch_await_claim(l->board, LAUNCH_WITNESS_MS);
        launch_leave_silently(l, LAUNCH_EXIT_FAILURE);
    }
    launch_agreements *a = &l->board->agreed[l->epoch & 1];
    int *failed = a->failed[l->round & 1];
    failed[l->rank] = !ok;
    l->round++;
    __atomic_fetch_add(&a->arrived, 1u, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(&a->arrived, __ATOMIC_ACQUIRE) < l->round * (unsigned)l->nranks) {
        if (launch_is_claimed(l->board)) launch_leave_silently(l, LAUNCH_EXIT_FAILURE);
        clock_pause(1);
    }
    for (int r = 0; r < l->nranks; r++)
        if (failed[r]) return r;
    return l->nranks;
}

static void launch_meet(launch *l, int ok, const char *sentence, int exit_code) {
    int lowest = launch_lowest_failed(l, ok, 1);
    if (lowest == l->nranks) return;
    if (l->joins) launch_end_joining(l, sentence);
    int speaks = lowest == l->rank && launch_claim(l->board);
    if (speaks) launch_print_claimed(l, sentence, 1);
    /* With fork, the watching process must see the claim before it sees an exit. */
    if (l->kind == LAUNCH_FORK) launch_await_claim(l->board, LAUNCH_WITNESS_MS);
#ifdef ZERO_WITH_MPI
    if (l->kind == LAUNCH_MPI) {
        signals_unwatch(); /* first, because it uses the witness */
        witness_unwatch();
        MPI_Barrier(MPI_COMM_WORLD); /* so that no rank takes another's end for a failure */
        MPI_Finalize();
    }
#endif
    if (!speaks && l->kind != LAUNCH_MPI) /* with mpirun, shared memory is already freed */
        launch_leave_silently(l, exit_code);
    launch_leave(exit_code);
}

void launch_agree(launch *l, int ok, const char *sentence) {
    launch_meet(l, ok, sentence, LAUNCH_EXIT_FAILURE);
}

void launch_require(launch *l, int ok, const char *format, ...) {
    char sentence[LAUNCH_SENTENCE];
    va_list values;
    va_start(values, format);
    vsnprintf(sentence, sizeof sentence, format, values);
    va_end(values);
    launch_agree(l, ok, sentence);
}

int launch_all(launch *l, int ok) { return launch_lowest_failed(l, ok, 0) == l->nranks; }

static void launch_check_ranks(launch *l, const launch_request *request) {
    char sentence[LAUNCH_SENTENCE];
    snprintf(sentence, sizeof sentence,
             "%d ranks were started %s, but -pn asks for %d: leave -pn out", l->nranks, l->how,
             request->ranks);
    launch_meet(l, request->ranks == 0 || request->ranks == l->nranks, sentence, LAUNCH_EXIT_USAGE);
}

void launch_broadcast(launch *l, void *data, size_t bytes) {
    if (l->kind == LAUNCH_ALONE || l->joins) return;
    if (bytes > LAUNCH_BROADCAST) launch_fail(l, "a broadcast of %zu bytes is too long", bytes);
#ifdef ZERO_WITH_MPI
    if (l->kind == LAUNCH_MPI) {
        MPI_Bcast(data, (int)bytes, MPI_CHAR, 0, MPI_COMM_WORLD);
        return;
    }
#endif
    if (l->kind == LAUNCH_JOIN) {
        if (meeting_broadcast((meeting *)l->meeting, data, bytes)) return;
        launch_await_claim(l->board, LAUNCH_WITNESS_MS);
        launch_leave_silently(l, LAUNCH_EXIT_FAILURE);
    }
    if (l->rank == 0) memcpy(l->board->copy, data, bytes);
    launch_agree(l, 1, "");
    if (l->rank > 0) memcpy(data, l->board->copy, bytes);
    launch_agree(l, 1, ""); /* all ranks have the copy: the next one may be written */
}

/* Writes a sentence with the first line in which the texts differ, or "" if they are equal. */
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

/* Compares the text with rank 0's of the same call, on a rank that joins. */
static void launch_same_as_first(launch *l, const char *text) {
    char sentence[LAUNCH_SENTENCE];
    if (l->compared == LAUNCH_SAME) return;
    char *first = l->board->same[l->compared++];
    if (!l->joins && l->rank == 0) (void)snprintf(first, LAUNCH_BROADCAST, "%s", text);
    if (!l->joins) return;
    launch_first_difference(l, text, first, sentence, sizeof sentence);
    if (sentence[0]) launch_end_joining(l, sentence);
}

void launch_same(launch *l, const char *text) {
    char sentence[LAUNCH_SENTENCE], first[LAUNCH_BROADCAST];
    if (!l->elsewhere) return; /* children of one process have the same settings */
    if (l->kind == LAUNCH_FORK) {
        launch_same_as_first(l, text);
        return;
    }
    memset(first, 0, sizeof first);
    if (l->rank == 0) snprintf(first, sizeof first, "%s", text);
    launch_broadcast(l, first, sizeof first);
    launch_first_difference(l, text, first, sentence, sizeof sentence);
    launch_agree(l, sentence[0] == 0, sentence);
}

/* ---- queries ------------------------------------------------------------------------------- */

const char *launch_how(const launch *l) { return l->how; }

int launch_has_mpi(void) {
#ifdef ZERO_WITH_MPI
    return 1;
#else
    return 0;
#endif
}

int launch_adds_argument(const char *argument) {
    return getenv("LOCAL_RANK") != NULL
           && (strncmp(argument, "--local_rank=", 13) == 0
               || strncmp(argument, "--local-rank=", 13) == 0);
}

int launch_processors(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0) return CPU_COUNT(&set);
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}

int launch_threads(const launch *l) { return l->threads; }

/* Returns the threads of each of the ranks that share the processors of this process. */
static int launch_share(int ranks) {
    int threads = launch_processors() / ranks;
    return threads > 0 ? threads : 1;
}

/* ---- a rank -------------------------------------------------------------------------------- */

static launch *launch_member; /* this rank of a fork, if ranks may change; otherwise NULL */

/* The watching process passes a signal on after it has noted that the job stops. Any other one asks
   this rank alone to leave. */
int launch_asked_to_stop(void) {
    const launch *l = launch_member;
    if (l == NULL || __atomic_load_n(&l->board->stop_printed, __ATOMIC_ACQUIRE))
        return signals_asked();
    if (signals_pending()) members_leave(&l->board->members, l->seat);
    return 0;
}

int *launch_live(const launch *l) { return &l->board->live; }

void launch_saved(launch *l, int64_t step) {
    __atomic_store_n(&l->board->saved, step + 1, __ATOMIC_RELEASE);
}

void launch_copied(launch *l, int64_t step) {
    __atomic_store_n(&l->board->copied, step + 1, __ATOMIC_RELEASE);
}

void launch_fewer(launch *l, int ranks, const char *why) {
    if (l->rank == 0) launch_print(l, why);
    __atomic_store_n(&l->board->fewer, ranks, __ATOMIC_RELEASE);
    launch_leave(0);
}

void launch_layout(launch *l, int tp, int cp, int dp) {
    if (l->joins) return; /* it has no place yet */
    __atomic_store_n(&l->board->dp, dp, __ATOMIC_RELAXED);
    __atomic_store_n(&l->board->cp, cp, __ATOMIC_RELAXED);
    __atomic_store_n(&l->board->tp, tp, __ATOMIC_RELEASE);
}

/* Adds the place of the rank to "rank 3 (process 12) ...": "rank 3 (tp 1, pp 0, dp 1; process 12)
   ...", or "rank 3 (tp 1, cp 1, dp 0, pp 0; process 12) ...". Copies other sentences unchanged. */
static void launch_add_place(const launch *l, const char *sentence, char out[LAUNCH_SENTENCE]) {
    const int tp = __atomic_load_n(&l->board->tp, __ATOMIC_ACQUIRE);
    const int dp = __atomic_load_n(&l->board->dp, __ATOMIC_RELAXED);
    const int cp = __atomic_load_n(&l->board->cp, __ATOMIC_RELAXED);
    int rank = 0, n = 0;
    const int is_rank = sscanf(sentence, "rank %d (process%n", &rank, &n) == 1 && n > 0;
    char of_tp[32] = "", of_pp[32] = "";
    if (tp > 1) snprintf(of_tp, sizeof of_tp, "tp %d, ", rank % tp);
    if (is_rank && cp > 1 && tp * cp * dp < l->nranks)
        snprintf(of_pp, sizeof of_pp, ", pp %d", rank / tp / cp / dp);
    if (is_rank && cp > 1)
        snprintf(out, LAUNCH_SENTENCE, "rank %d (%scp %d, dp %d%s; process%s", rank, of_tp,
                 rank / tp % cp, rank / tp / cp % dp, of_pp, sentence + n);
    else if (is_rank && tp > 0 && dp > 0 && !(tp == 1 && dp == l->nranks))
        snprintf(out, LAUNCH_SENTENCE, "rank %d (tp %d, pp %d, dp %d; process%s", rank, rank % tp,
                 rank / tp / dp, rank / tp % dp, sentence + n);
    else
        snprintf(out, LAUNCH_SENTENCE, "%s", sentence);
}

/* Writes the sentence of a job that a signal ends. */
static void launch_describe_end(const launch *l, int number, char *sentence, size_t bytes) {
    const int64_t saved = __atomic_load_n(&l->board->saved, __ATOMIC_ACQUIRE);
    char who[64] = "the only rank has ended", kept[96] = "";
    if (l->nranks > 1) snprintf(who, sizeof who, "all %d ranks end", l->nranks);
    if (saved == 1) snprintf(kept, sizeof kept, "; nothing was saved");
    if (saved > 1)
        snprintf(kept, sizeof kept, "; saved is step %lld, what came after it is lost",
                 (long long)saved - 1);
    snprintf(sentence, bytes, "%s %s; %s%s", number == SIGINT ? "interrupted by" : "ended by",
             signals_name(number), who, kept);
}

/* Prints the line about a request to stop, once on every machine. */
static void launch_print_stop_request(const launch *l, int number) {
    char sentence[LAUNCH_SENTENCE];
    if (__atomic_exchange_n(&l->board->stop_printed, 1, __ATOMIC_ACQ_REL)) return;
    snprintf(sentence, sizeof sentence,
             "%s: the job saves and stops as soon as it can; another SIGINT or SIGTERM ends it at "
             "once",
             signals_name(number));
    launch_write(l, sentence);
}

/* A thread of signals.h calls this. It does not flush stdout, because the rank may be blocked in a
   write to it. */
static void launch_take_signal(void *user, signals_verdict verdict, int number) {
    const launch *l = (const launch *)user;
    char sentence[LAUNCH_SENTENCE];
    if (verdict == SIGNALS_STOP) launch_print_stop_request(l, number);
    if (verdict != SIGNALS_END) return;
    launch_describe_end(l, number, sentence, sizeof sentence);
    if (launch_claim(l->board)) launch_print_claimed(l, sentence, 0);
    _exit(128 + number);
}

/* Watches signals in a process that has no watching parent here. */
static void launch_watch_signals(launch *l) {
    if (!signals_watch(launch_take_signal, l))
        launch_fail(l, "rank %d: no more threads; raise ulimit -u", l->rank);
}

static double launch_limit(const launch_request *request) {
    return request->limit_s > 0 ? request->limit_s : LAUNCH_JOIN_S;
}

/* A thread of gpu_join calls this. */
static void launch_gpus_late(void *user, const char *sentence) {
    launch_end((launch *)user, sentence);
}

/* Creates NCCL's communicators over all ranks. */
static void launch_join_gpus(launch *l, double limit_s) {
    char sentence[LAUNCH_SENTENCE] = "", id[LAUNCH_MAX_GROUPS][GPU_ID_BYTES];
    memset(id, 0, sizeof id);
    for (int i = 0; i < l->groups && l->rank == 0; i++)
        if (gpu_make_id(id[i], sentence, sizeof sentence)) launch_end(l, sentence);
    launch_broadcast(l, id, (size_t)l->groups * sizeof id[0]);
    const gpu_call call = {l->rank, l->nranks, l->device,        l->groups,
                           id[0],   limit_s,   launch_gpus_late, l};
    gpu_ranks *ranks = gpu_join(&call, sentence, sizeof sentence);
    if (ranks == NULL) launch_end(l, sentence);
    l->gpu = ranks;
    for (int i = 0; i < l->groups; i++) {
        l->comm[i].kind = ZERO_COMM_NCCL;
        l->comm[i].handle = gpu_comm(ranks, i);
    }
}

/* Chooses the GPU and creates communicators, if there are GPUs. Then calls the rank's function. */
static int launch_run_rank(const launch_request *request, launch *l) {
    char sentence[LAUNCH_SENTENCE] = "";
    if (LAUNCH_GPUS) {
        int failed = gpu_choose(l->rank, l->local_rank, l->kind == LAUNCH_THREADS, &l->device,
                                sentence, sizeof sentence);
        launch_agree(l, !failed, sentence);
        /* a single rank that a launcher started uses NCCL as well */
        const int counted = l->kind == LAUNCH_ALONE && getenv("WORLD_SIZE") != NULL;
        if (counted) l->how = "as the only rank, over NCCL";
        if ((l->nranks > 1 && l->kind != LAUNCH_THREADS) || counted)
            launch_join_gpus(l, launch_limit(request));
    }
    int code = request->rank_main(l, request->user);
    if (code == 0 && gpu_leave((gpu_ranks *)l->gpu, sentence, sizeof sentence))
        launch_end(l, sentence);
    return code;
}

/* Ends the job after rank_main has returned a code other than 0, if no process watches this rank.
 */
static void launch_end_by_code(launch *l, int code) LAUNCH_NORETURN;
static void launch_end_by_code(launch *l, int code) {
    char sentence[LAUNCH_SENTENCE];
    snprintf(sentence, sizeof sentence, "rank %d ended with exit code %d; all ranks end", l->rank,
             code);
    launch_end_with(l, sentence, code);
}

/* ---- changes of the ranks ------------------------------------------------------------------ */

int launch_changes(const launch *l) { return l->board->changes; }

int launch_wanted(launch *l) { return l->board->changes ? members_wanted(&l->board->members) : 0; }
void launch_answer(launch *l, int ranks) { members_answer(&l->board->members, ranks); }
int launch_ready(launch *l) { return l->board->changes && members_agree(&l->board->members); }

int launch_move(launch *l) {
    members *m = &l->board->members;
    const members_list *next = &m->list[(l->epoch + 1) & 1];
    const int rank = members_rank(next, l->seat);
    if (l->rank == 0) {
        fflush(stdout); /* another rank may be rank 0, and print */
        members_start_moving(m);
    }
    if (rank < 0) return 0;
    l->epoch++;
    l->round = 0;
    l->rank = l->local_rank = l->comm[0].rank = rank;
    l->nranks = l->local_ranks = next->n;
    l->threads = launch_share(next->n);
    l->local[0] = launch_place(l, l->epoch);
    l->comm[0].handle = l->local[0];
    return 1;
}

int launch_join(launch *l) {
    members *m = &l->board->members;
    int now = 0;
    members_report_ready(m);
    while (!now) {
        now = launch_is_claimed(l->board) ? -1 : members_may_join(m);
        if (!now) clock_pause(1);
    }
    l->joins = 0;
    return now > 0;
}

void launch_moved(launch *l) { members_report_moved(&l->board->members); }

/* ---- alone --------------------------------------------------------------------------------- */

static int launch_run_alone(const launch_request *request, launch *l) {
    static launch_board board;
    l->kind = LAUNCH_ALONE;
    l->how = "alone";
    l->nranks = l->local_ranks = 1;
    l->threads = launch_share(1);
    l->board = &board;
    for (int i = 0; i < l->groups; i++) l->comm[i].kind = ZERO_COMM_SELF;
    launch_watch_signals(l);
    const int code = launch_run_rank(request, l);
    signals_unwatch();
    return code;
}

/* ---- threads ------------------------------------------------------------------------------- */

typedef struct launch_thread {
    launch l;
    const launch_request *request;
    pthread_t thread;
} launch_thread;

static void *launch_thread_main(void *arg) {
    launch_thread *t = (launch_thread *)arg;
    int code = launch_run_rank(t->request, &t->l);
    if (code != 0) launch_end_by_code(&t->l, code);
    return NULL;
}

/* A failure of any rank ends the process, so memory is freed only after success. */
static int launch_run_threads(const launch_request *request, launch *l, int ranks) {
    static launch_board board;
    launch_thread *threads = (launch_thread *)calloc((size_t)ranks, sizeof *threads);
    l->kind = LAUNCH_THREADS;
    l->how = "here (threads)";
    l->nranks = l->local_ranks = ranks;
    l->threads = launch_share(ranks);
    l->board = &board;
    launch_watch_signals(l);
    if (threads == NULL) launch_fail(l, "%d ranks: out of memory; use fewer ranks", ranks);
    for (int i = 0; i < l->groups; i++) {
        zero_result result = zero_local_create(&l->local[i], ranks, 0);
        if (result != ZERO_OK)
            launch_fail(l, "%d ranks as threads: %s", ranks, zero_result_string(result));
        l->comm[i].kind = ZERO_COMM_LOCAL;
        l->comm[i].handle = l->local[i];
    }
    for (int r = 0; r < ranks; r++) {
        threads[r].l = *l;
        threads[r].request = request;
        threads[r].l.rank = threads[r].l.local_rank = r;
        for (int i = 0; i < l->groups; i++) threads[r].l.comm[i].rank = r;
        int error = pthread_create(&threads[r].thread, NULL, launch_thread_main, &threads[r]);
        if (error != 0) launch_fail(l, "rank %d could not be started: %s", r, strerror(error));
    }
    for (int r = 0; r < ranks; r++) pthread_join(threads[r].thread, NULL);
    signals_unwatch();
    for (int i = 0; i < l->groups; i++) zero_local_destroy(l->local[i]);
    free(threads);
    return 0;
}

/* ---- fork ---------------------------------------------------------------------------------- */

/* The launchers that have joined. They stay when an elastic job restarts. */
typedef struct launch_guests {
    guests net;
    int offered[GUESTS_MOST]; /* ranks that can be started */
    int living[GUESTS_MOST];
} launch_guests;

typedef struct launch_watch {
    const launch_request *request;
    launch *l;
    pid_t child[LAUNCH_MAX_RANKS];  /* by seat, which is the first rank; 0: reaped; -1: a guest's */
    int joining[LAUNCH_MAX_RANKS];  /* by seat: 1: it has not joined yet */
    launch_guests *guests;          /* NULL: the job has no address */
    int guest_of[LAUNCH_MAX_RANKS]; /* by seat: 1 + the guest that watches it; 0: this process */
    int survived;                   /* ranks of this process that ended, but did not die */
    members_file file;              /* of the number of ranks */
    int living;
    int code;       /* the exit code so far */
    int died;       /* 1: a rank ended without a message */
    int explained;  /* a rank has printed the reason of the end */
    int signaled;   /* a signal has asked the job to end or to stop */
    int ending;     /* the ranks have been asked to end */
    int killed;     /* the ranks have been killed */
    long ending_ms; /* time at which `ending` was set */
} launch_watch;

/* seat -1: all of them. */
static void launch_kill_guests(const launch_watch *w, int seat, int number) {
    guests_message m = guests_make(GUESTS_KILL);
    m.seat = seat;
    m.value = number;
    if (w->guests != NULL) guests_send(&w->guests->net, seat < 0 ? -1 : w->guest_of[seat] - 1, m);
}

static void launch_kill_all(launch_watch *w, int number) {
    for (int r = 0; r < LAUNCH_MAX_RANKS; r++)
        if (w->child[r] > 0) kill(w->child[r], number);
    launch_kill_guests(w, -1, number);
}

/* Prints the sentence, unless a rank has printed one, and aborts the collectives of the other
 * ranks. */
static void launch_end_all(launch_watch *w, int rank, const char *what) {
    char sentence[LAUNCH_SENTENCE];
    launch_add_place(w->l, what, sentence);
    const int first = launch_claim(w->l->board);
    if (first) launch_print_claimed(w->l, sentence, 1);
    launch_abort_locals(w->l, rank, sentence);
    if (w->ending) return;
    w->explained = !first;
    w->ending = 1;
    w->ending_ms = clock_milliseconds();
}

/* Writes how a process has ended. */
static void launch_name_end(char words[LAUNCH_SENTENCE / 2], int status) {
    if (WIFSIGNALED(status))
        snprintf(words, LAUNCH_SENTENCE / 2, "was killed by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else
        snprintf(words, LAUNCH_SENTENCE / 2, "ended with exit code %d", WEXITSTATUS(status));
}

/* Kills the processes of a change that was cancelled. */
static void launch_kill_joining(const launch_watch *w) {
    for (int i = 0; i < LAUNCH_MAX_RANKS; i++) {
        if (w->joining[i] && w->child[i] > 0) kill(w->child[i], SIGKILL);
        if (w->joining[i] && w->child[i] < 0) launch_kill_guests(w, i, SIGKILL);
    }
}

/* A process that joins has ended. Returns 0 if the ranks depend on it already. */
static int launch_on_joining_exit(launch_watch *w, int seat, int status) {
    members *m = &w->l->board->members;
    const int was = members_get_phase(m) >= MEMBERS_STARTING;
    char sentence[LAUNCH_SENTENCE], end[LAUNCH_SENTENCE / 2];
    if (!w->joining[seat]) return 0;
    w->joining[seat] = 0;
    if (w->ending || __atomic_load_n(&m->over, __ATOMIC_ACQUIRE)) return 1;
    if (!members_cancel(m)) return 0;
    launch_kill_joining(w);
    launch_name_end(end, status);
    snprintf(sentence, sizeof sentence, "a new rank %s before it joined; %d rank%s go on", end,
             w->l->nranks, w->l->nranks > 1 ? "s" : "");
    if (was) launch_print(w->l, sentence);
    return 1;
}

/* Returns the rank of a seat in the current ranks, or of one that joins in the next ones. */
static int launch_rank_of(const launch_watch *w, int seat) {
    const members *m = &w->l->board->members;
    if (!w->l->board->changes) return seat;
    const int rank = members_rank(members_current(m), seat);
    return rank >= 0 ? rank : members_rank(members_next(m), seat);
}

/* A rank has ended with code 0. If it has not left the others, the run is over. */
static void launch_on_success(launch_watch *w, int seat, int guest) {
    members *m = &w->l->board->members;
    const int changes = w->l->board->changes, moving = members_get_phase(m) == MEMBERS_MOVING;
    if (changes && members_rank(members_current(m), seat) < 0) return;
    if (changes && moving && members_rank(members_next(m), seat) < 0) return;
    w->survived += !guest;
    if (changes) members_end(m);
}

/* Called when the process of a seat has ended: its guest forgets it. Returns 1 + the guest, or 0.
 */
static int launch_free_seat(launch_watch *w, int seat) {
    const int guest = w->guest_of[seat];
    w->child[seat] = 0;
    w->living--;
    w->guest_of[seat] = 0;
    if (guest) w->guests->living[guest - 1]--;
    return guest;
}

static void launch_on_exit(launch_watch *w, int seat, int status, long pid) {
    char sentence[LAUNCH_SENTENCE], end[LAUNCH_SENTENCE / 2];
    const int rank = launch_rank_of(w, seat), guest = launch_free_seat(w, seat);
    const int ended = w->ending, joining = w->joining[seat];
    if (launch_on_joining_exit(w, seat, status)) {
        if (guest && ended) w->guests->offered[guest - 1]++; /* for the restart */
        if (guest && !ended && joining) w->guests->offered[guest - 1] = 0;
        return;
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
        launch_on_success(w, seat, guest);
        return;
    }
    if (w->code == 0) w->code = WIFEXITED(status) ? WEXITSTATUS(status) : LAUNCH_EXIT_FAILURE;
    const int dead = WIFSIGNALED(status) ? !w->killed : !launch_is_claimed(w->l->board);
    w->died |= dead;
    w->survived += !dead && !guest;
    if (guest && !dead) w->guests->offered[guest - 1]++;
    launch_name_end(end, status);
    snprintf(sentence, sizeof sentence, "rank %d (process %ld) %s; all ranks end", rank, pid, end);
    launch_end_all(w, rank, sentence);
}

static void launch_on_signal(launch_watch *w, int number) {
    char sentence[LAUNCH_SENTENCE];
    launch_describe_end(w->l, number, sentence, sizeof sentence);
    w->code = 128 + number;
    launch_end_all(w, 0, sentence);
    launch_kill_all(w, SIGKILL);
}

static void launch_reap(launch_watch *w) {
    for (int r = 0; r < LAUNCH_MAX_RANKS; r++) {
        int status = 0;
        const pid_t pid = w->child[r];
        if (pid > 0 && waitpid(pid, &status, WNOHANG) == pid)
            launch_on_exit(w, r, status, (long)pid);
    }
}

static void launch_child(const launch_request *request, launch *l, int seat, int rank,
                         pid_t parent) LAUNCH_NORETURN;
static void launch_child(const launch_request *request, launch *l, int seat, int rank,
                         pid_t parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(LAUNCH_EXIT_FAILURE); /* the parent died before the line above */
    signals_in_rank(l->board->changes);
    l->seat = seat;
    l->rank = l->local_rank = rank;
    for (int i = 0; i < l->groups; i++) l->comm[i].rank = rank;
    if (l->board->changes) launch_member = l;
    int code = launch_run_rank(request, l);
    fflush(NULL);
    exit(code);
}

/* Forks the process of a rank. Returns 0 if it cannot. */
static int launch_fork(launch_watch *w, launch *l, int seat, int rank) {
    const pid_t parent = getpid();
    fflush(NULL); /* otherwise the child would print the buffer again */
    const pid_t pid = fork();
    if (pid == 0) launch_child(w->request, l, seat, rank, parent);
    if (pid < 0) return 0;
    w->child[seat] = pid;
    w->living++;
    return 1;
}

/* Starts the process of a rank that joins: of a guest if one offers it, otherwise of this process.
   Returns 0 if it cannot. */
static int launch_start_joining_rank(launch_watch *w, launch *next, int seat, int rank) {
    guests_message m = guests_make(GUESTS_START);
    m.seat = seat;
    m.rank = rank;
    m.ranks = next->nranks;
    m.epoch = next->epoch;
    m.starts = next->starts;
    for (int g = 0; w->guests != NULL && g < GUESTS_MOST; g++) {
        if (!w->guests->offered[g]) continue;
        w->guests->offered[g]--;
        w->guests->living[g]++;
        w->guest_of[seat] = 1 + g;
        w->child[seat] = -1;
        w->living++;
        guests_send(&w->guests->net, g, m);
        return 1;
    }
    return launch_fork(w, next, seat, rank);
}

/* ---- ranks that change ---- */

/* Creates the next ranks' meeting place. */
static void launch_make_place(launch *l, int epoch, int ranks) {
    (void)zero_local_place(&l->local[0], launch_place(l, epoch), ranks);
    l->comm[0].kind = ZERO_COMM_LOCAL;
    l->comm[0].handle = l->local[0];
    memset(&l->board->agreed[epoch & 1], 0, sizeof l->board->agreed[0]);
    __atomic_store_n(&l->board->placed[epoch & 1], 1, __ATOMIC_RELEASE);
}

/* Rank 0 has answered: forks the processes that join. */
static void launch_start_joining(launch_watch *w) {
    members *m = &w->l->board->members;
    launch next = *w->l;
    int used[LAUNCH_MAX_RANKS];
    for (int i = 0; i < LAUNCH_MAX_RANKS; i++) used[i] = w->child[i] != 0;
    const int first = members_plan(m, used);
    const members_list *list = members_next(m);
    next.epoch = m->epoch + 1;
    next.nranks = next.local_ranks = list->n;
    next.threads = launch_share(list->n);
    next.joins = 1;
    launch_make_place(&next, next.epoch, list->n);
    members_set_starting(m);
    for (int rank = first; rank < list->n; rank++) {
        const int seat = list->seat[rank];
        if (launch_start_joining_rank(w, &next, seat, rank)) {
            w->joining[seat] = 1;
            continue;
        }
        (void)members_cancel(m);
        launch_print(w->l, "a new rank could not be started: no more processes; raise ulimit -u");
        launch_kill_joining(w);
        return;
    }
}

/* All ranks asked to leave: the same as if the job were asked. */
static void launch_stop_all(launch_watch *w) {
    w->signaled = 1;
    if (!signals_stops()) {
        launch_on_signal(w, SIGTERM);
        return;
    }
    launch_print_stop_request(w->l, SIGTERM);
    launch_kill_all(w, SIGTERM);
}

/* The part of the watching process in members.h. */
static void launch_change_ranks(launch_watch *w) {
    launch *l = w->l;
    members *m = &l->board->members;
    char sentence[LAUNCH_SENTENCE];
    if (!l->board->changes || w->ending || w->signaled || w->living == 0) return;
    const int none_stays = members_poll(m, &w->file, sentence, sizeof sentence);
    if (sentence[0]) launch_print(l, sentence);
    if (none_stays) {
        launch_stop_all(w);
        return;
    }
    int joining = 0; /* of a change that was cancelled: they are being killed */
    for (int i = 0; i < LAUNCH_MAX_RANKS; i++) joining |= w->joining[i];
    if (members_get_phase(m) == MEMBERS_ASKED && !joining) launch_start_joining(w);
    if (!members_advance(m)) return;
    __atomic_store_n(&l->board->placed[l->epoch & 1], 0, __ATOMIC_RELEASE);
    l->epoch = m->epoch;
    l->local[0] = launch_place(l, l->epoch);
    l->nranks = l->local_ranks = members_current(m)->n;
    memset(w->joining, 0, sizeof w->joining);
}

/* ---- guests ---- */

/* The guest's spares are gone. */
static void launch_on_withdrawal(launch_watch *w, int guest) {
    if (w->guests->offered[guest]) members_offer(&w->l->board->members, -w->guests->offered[guest]);
    w->guests->offered[guest] = 0;
}

/* The guest's launcher has died, and its ranks with it. */
static void launch_on_lost_guest(launch_watch *w, int guest) {
    launch_on_withdrawal(w, guest);
    for (int seat = 0; seat < LAUNCH_MAX_RANKS; seat++)
        if (w->guest_of[seat] == 1 + guest) launch_on_exit(w, seat, SIGKILL, 0);
    w->guests->offered[guest] = w->guests->living[guest] = 0;
}

static void launch_on_message(launch_watch *w, int guest, const guests_message *m) {
    char sentence[LAUNCH_SENTENCE];
    const int seat = m->seat;
    if (m->kind == GUESTS_TOKEN) {
        snprintf(sentence, sizeof sentence, "%d rank%s of another launcher can join", (int)m->ranks,
                 m->ranks > 1 ? "s" : "");
        launch_print(w->l, sentence);
        w->guests->offered[guest] = m->ranks;
        members_offer(&w->l->board->members, m->ranks);
    }
    if (m->kind == GUESTS_WITHDRAW) launch_on_withdrawal(w, guest);
    if (m->kind == GUESTS_LOST) launch_on_lost_guest(w, guest);
    if (m->kind == GUESTS_ENDED && seat >= 0 && seat < LAUNCH_MAX_RANKS
        && w->guest_of[seat] == 1 + guest)
        launch_on_exit(w, seat, m->value, (long)m->process);
}

/* Reads what guests report, and ends those that have no ranks any more. */
static void launch_hear_guests(launch_watch *w) {
    guests_message m;
    if (w->guests == NULL) return;
    for (int guest; (guest = guests_next(&w->guests->net, &m)) >= 0;)
        launch_on_message(w, guest, &m);
    for (int g = 0; g < GUESTS_MOST && !w->ending; g++)
        if (guests_is_here(&w->guests->net, g) && !w->guests->offered[g] && !w->guests->living[g])
            guests_end(&w->guests->net, g, 0, "");
}

/* Watches the ranks until the last one has ended. Signals are blocked, so none is missed between
   two calls. This process always sends SIGTERM to ask the ranks to stop, because they ignore
   SIGINT. */
static void launch_supervise(launch_watch *w) {
    while (w->living > 0) {
        int number = 0;
        const signals_verdict verdict = signals_wait(LAUNCH_POLL_MS, &number);
        launch_change_ranks(w); /* first, so that a rank that joined and died is one */
        launch_reap(w);
        launch_hear_guests(w);
        w->signaled |= verdict != SIGNALS_NONE;
        if (verdict == SIGNALS_STOP) launch_print_stop_request(w->l, number);
        if (verdict == SIGNALS_STOP || verdict == SIGNALS_AGAIN) launch_kill_all(w, SIGTERM);
        if (verdict == SIGNALS_END && w->living > 0) launch_on_signal(w, number);
        if (w->ending && !w->killed && clock_milliseconds() - w->ending_ms > LAUNCH_GRACE_MS) {
            w->killed = 1;
            launch_kill_all(w, SIGKILL);
        }
    }
}

/* Starts the ranks, and watches them until the last one has ended. */
static void launch_start(const launch_request *request, launch *l, launch_watch *w) {
    launch_guests *const kept = w->guests;
    memset(w, 0, sizeof *w);
    w->guests = kept;
    w->l = l;
    w->request = request;
    w->file.path = request->ranks_file ? request->ranks_file : "";
    signals_expect_children();
    for (int r = 0; r < l->nranks; r++) {
        if (launch_fork(w, l, r, r)) continue;
        char sentence[LAUNCH_SENTENCE];
        snprintf(sentence, sizeof sentence, "rank %d could not be started: %s", r, strerror(errno));
        w->code = LAUNCH_EXIT_FAILURE;
        launch_end_all(w, r, sentence);
        launch_kill_all(w, SIGKILL);
        break;
    }
    launch_supervise(w);
}

static int launch_may_change(const launch_request *request) {
    return !LAUNCH_GPUS && (request->ranks_file != NULL || request->address != NULL);
}

/* Clears the shared memory, creates the communicators, and runs the job once with this number of
   ranks. Returns the exit code. */
static int launch_run_once(const launch_request *request, launch *l, int ranks, launch_watch *w) {
    const int changes = launch_may_change(request);
    const uint64_t token = l->board->token;
    int groups = LAUNCH_GPUS || ranks == 1 || changes ? 0 : l->groups, made = 0;
    memset(l->board, 0, sizeof *l->board);
    l->epoch = 0;
    l->nranks = l->local_ranks = ranks;
    l->threads = launch_share(ranks);
    memset(l->local, 0, sizeof l->local);
    for (int i = 0; i < l->groups; i++) l->comm[i].kind = ZERO_COMM_SELF;
    for (; made < groups; made++) {
        zero_result result = zero_local_create(&l->local[made], ranks, 1);
        if (result != ZERO_OK) {
            launch_print(l, zero_result_string(result));
            break;
        }
        l->comm[made].kind = ZERO_COMM_LOCAL;
        l->comm[made].handle = l->local[made];
    }
    l->board->changes = changes;
    l->board->token = token;
    members_begin(&l->board->members, ranks);
    for (int g = 0; w->guests != NULL && g < GUESTS_MOST; g++)
        if (w->guests->offered[g]) members_offer(&l->board->members, w->guests->offered[g]);
    if (changes) launch_make_place(l, 0, ranks);
    w->code = LAUNCH_EXIT_FAILURE;
    if (made == groups) launch_start(request, l, w);
    while (made-- > 0) zero_local_destroy(l->local[made]);
    return w->code;
}

/* The progress of an elastic job over its restarts. */
typedef struct launch_restarts {
    int64_t reached; /* the newest saved or copied step plus 1 */
    int barren;      /* deaths since that step */
} launch_restarts;

/* Returns the number of ranks with which the job restarts, or 0 if it is over. */
static int launch_choose_next_ranks(const launch_request *request, const launch_watch *w,
                                    launch_restarts *lives) {
    const launch_board *b = w->l->board;
    const int left = w->survived; /* those of guests join again */
    const int64_t reached = b->saved > b->copied ? b->saved : b->copied;
    char sentence[LAUNCH_SENTENCE];
    if (!request->elastic || w->explained || w->signaled) return 0;
    if (!w->died) return w->code == 0 ? b->fewer : 0;
    lives->barren = reached > lives->reached ? 1 : lives->barren + 1;
    if (reached > lives->reached) lives->reached = reached;
    const int over = left == 0 || lives->barren > LAUNCH_BARREN;
    if (left == 0)
        snprintf(sentence, sizeof sentence, "no rank is left to go on");
    else if (over)
        snprintf(sentence, sizeof sentence,
                 "ranks died %d times, and no later step was saved in between: the job ends",
                 lives->barren);
    else
        snprintf(sentence, sizeof sentence, "%d rank%s left: going on", left,
                 left > 1 ? "s are" : " is");
    launch_print(w->l, sentence);
    return over ? 0 : b->fewer > 0 && b->fewer < left ? b->fewer : left;
}

/* Maps the memory that the ranks share, as a file if the job has an address. Returns NULL after an
   error. */
static void *launch_map_shared(const launch_request *request, size_t bytes, int *file) {
    *file = -1;
    if (request->address != NULL) {
        *file = (int)syscall(SYS_memfd_create, "launch", 1u /* close on exec */);
        if (*file < 0 || ftruncate(*file, (off_t)bytes)) return NULL;
    }
    const int flags = MAP_SHARED | (*file < 0 ? MAP_ANONYMOUS : 0);
    void *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, *file, 0);
    return shared == MAP_FAILED ? NULL : shared;
}

/* Lets other launchers join. Returns 0 after an error, which it prints. */
static int launch_open_address(const launch_request *request, launch *l, launch_guests *g, int file,
                               size_t bytes) {
    char sentence[LAUNCH_SENTENCE], line[LAUNCH_SENTENCE];
    uint64_t token = 0;
    if (request->address == NULL) return 1;
    memset(g, 0, sizeof *g);
    const int drawn = syscall(SYS_getrandom, &token, sizeof token, 0) == (long)sizeof token;
    if (!drawn) snprintf(sentence, sizeof sentence, "no random numbers: %s", strerror(errno));
    if (drawn
        && guests_listen(&g->net, request->address, file, bytes, token, sentence,
                         sizeof sentence)) {
        l->board->token = token;
        l->elsewhere = 1; /* guests have command lines of their own */
        snprintf(line, sizeof line, "ranks join this job at %s", g->net.address);
        launch_print(l, line);
        return 1;
    }
    snprintf(line, sizeof line, "-pa: %.900s", sentence);
    launch_print(l, line);
    return 0;
}

static int launch_run_fork(const launch_request *request, launch *l, int ranks) {
    launch_watch w;
    launch_guests joined;
    launch_restarts lives = {0, 0};
    int code = LAUNCH_EXIT_FAILURE, file;
    memset(&w, 0, sizeof w);
    l->kind = LAUNCH_FORK;
    l->how = "here (fork)";
    const size_t bytes = launch_board_bytes(launch_may_change(request));
    void *shared = launch_map_shared(request, bytes, &file);
    if (shared == NULL) {
        launch_print(l, "no shared memory for the ranks");
        return LAUNCH_EXIT_FAILURE;
    }
    l->board = (launch_board *)shared;
    if (!launch_open_address(request, l, &joined, file, bytes)) return LAUNCH_EXIT_FAILURE;
    if (request->address != NULL) w.guests = &joined;
    for (; ranks > 0; l->starts++) {
        code = launch_run_once(request, l, ranks, &w);
        ranks = launch_choose_next_ranks(request, &w, &lives);
    }
    if (w.guests != NULL) guests_close(&joined.net, code ? LAUNCH_EXIT_FAILURE : 0, "");
    munmap(shared, bytes);
    if (file >= 0) close(file);
    return code;
}

/* ---- ranks of another launcher's job ------------------------------------------------------- */

/* The watching process of ranks that join by an address. */
typedef struct launch_guest {
    launch_watch w;   /* its children; the job's launcher does the rest */
    guests_line line; /* to the job's launcher */
    int spares;       /* ranks that have not been started */
    int over;         /* an end came, or the job's launcher is gone */
} launch_guest;

/* Opens the memory of the job, and proves it. Returns 0 and a sentence after an error. */
static int launch_open_job(launch *l, launch_guest *g, const guests_message *welcome,
                           char *sentence, size_t bytes) {
    char path[64];
    const size_t expected = launch_board_bytes(1);
    guests_message m = guests_make(GUESTS_TOKEN);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)welcome->process, (int)welcome->file);
    if (welcome->bytes != (int64_t)expected) {
        snprintf(sentence, bytes, "the job is of another build; start the same program");
        return 0;
    }
    const int file = open(path, O_RDWR | O_CLOEXEC);
    void *memory =
        file < 0 ? MAP_FAILED : mmap(NULL, expected, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    const int number = errno;
    if (file >= 0) close(file);
    if (memory == MAP_FAILED) {
        snprintf(sentence, bytes,
                 "this process cannot share the memory of the job (%s: %s); start both as the same "
                 "user and in the same container",
                 path, strerror(number));
        return 0;
    }
    l->board = (launch_board *)memory;
    m.token = l->board->token;
    guests_tell(&g->line, m);
    return 1;
}

static void launch_start_here(launch_guest *g, const guests_message *m) {
    launch next = *g->w.l;
    guests_message ended = guests_make(GUESTS_ENDED);
    next.epoch = m->epoch;
    next.starts = m->starts;
    next.nranks = next.local_ranks = m->ranks;
    next.threads = launch_share(m->ranks);
    next.joins = 1;
    next.local[0] = launch_place(&next, next.epoch);
    next.comm[0].kind = ZERO_COMM_LOCAL;
    next.comm[0].handle = next.local[0];
    g->spares -= g->spares > 0;
    g->w.code = 0; /* of ranks of an elastic job that failed before */
    if (launch_fork(&g->w, &next, m->seat, m->rank)) return;
    launch_print(g->w.l, "a rank could not be started: no more processes; raise ulimit -u");
    ended.seat = m->seat;
    ended.value = LAUNCH_EXIT_FAILURE << 8; /* as if it had begun */
    guests_tell(&g->line, ended);
}

static void launch_hear_job(launch_guest *g) {
    launch_watch *w = &g->w;
    guests_message m;
    while (!g->over && guests_hear(&g->line, &m)) {
        if (m.kind == GUESTS_START && m.seat >= 0 && m.seat < LAUNCH_MAX_RANKS)
            launch_start_here(g, &m);
        for (int s = 0; m.kind == GUESTS_KILL && s < LAUNCH_MAX_RANKS; s++)
            if ((m.seat < 0 || m.seat == s) && w->child[s] > 0) kill(w->child[s], m.value);
        if (m.kind == GUESTS_END || m.kind == GUESTS_LOST) g->over = 1;
        if (m.kind == GUESTS_END && w->code == 0) w->code = m.value;
        if (m.kind != GUESTS_LOST) continue;
        launch_print(w->l, "the launcher of the job is gone; the ranks that joined end");
        w->code = LAUNCH_EXIT_FAILURE;
        launch_kill_all(w, SIGKILL);
    }
}

static void launch_reap_here(launch_guest *g) {
    launch_watch *w = &g->w;
    for (int s = 0; s < LAUNCH_MAX_RANKS; s++) {
        guests_message m = guests_make(GUESTS_ENDED);
        const pid_t pid = w->child[s];
        if (pid <= 0 || waitpid(pid, &m.value, WNOHANG) != pid) continue;
        w->child[s] = 0;
        w->living--;
        if (w->code == 0 && !(WIFEXITED(m.value) && WEXITSTATUS(m.value) == 0))
            w->code = WIFEXITED(m.value) ? WEXITSTATUS(m.value) : LAUNCH_EXIT_FAILURE;
        m.seat = s;
        m.process = (int32_t)pid;
        guests_tell(&g->line, m);
    }
}

/* The first signal: all ranks of this launcher leave the job. The second one ends them. */
static void launch_leave_job(launch_guest *g, signals_verdict verdict, int number) {
    char sentence[LAUNCH_SENTENCE];
    launch_watch *w = &g->w;
    if (verdict == SIGNALS_NONE) return;
    if (verdict == SIGNALS_END) {
        launch_kill_all(w, SIGKILL);
        w->code = 128 + number;
        return;
    }
    snprintf(sentence, sizeof sentence,
             "%s: the ranks of this launcher leave the job after a step; another SIGINT or SIGTERM "
             "ends them at once",
             signals_name(number));
    if (verdict == SIGNALS_STOP) launch_print(w->l, sentence);
    g->spares = 0;
    guests_tell(&g->line, guests_make(GUESTS_WITHDRAW));
    for (int s = 0; s < LAUNCH_MAX_RANKS; s++)
        if (w->child[s] > 0) members_leave(&w->l->board->members, s);
}

static int launch_run_guest(const launch_request *request, launch *l, int ranks) {
    static launch_board board; /* until the job's is mapped */
    static launch_guest g;
    guests_message welcome;
    char sentence[LAUNCH_SENTENCE], line[LAUNCH_SENTENCE];
    l->kind = LAUNCH_FORK;
    l->how = "by -pj";
    l->elsewhere = 1;
    l->board = &board;
    g.w.l = l;
    g.w.request = request;
    g.spares = ranks;
    if (!guests_join(&g.line, request->join, ranks, &welcome, sentence, sizeof sentence)
        || !launch_open_job(l, &g, &welcome, sentence, sizeof sentence)) {
        snprintf(line, sizeof line, "-pj: %.900s", sentence);
        launch_print(l, line);
        return LAUNCH_EXIT_FAILURE;
    }
    signals_expect_children();
    while (!g.over || g.w.living > 0) {
        int number = 0;
        const signals_verdict verdict = signals_wait(LAUNCH_POLL_MS, &number);
        launch_reap_here(&g);
        launch_hear_job(&g);
        launch_leave_job(&g, verdict, number);
    }
    snprintf(sentence, sizeof sentence, "the job has ended; %d rank%s never joined", g.spares,
             g.spares > 1 ? "s" : "");
    if (g.spares > 0 && g.w.code == 0) launch_print(l, sentence);
    return g.w.code;
}

/* ---- mpirun -------------------------------------------------------------------------------- */

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

/* The process at place i of this machine has died. Prints a line if no rank has, because mpirun
   prints only the number of the process. */
static void launch_mpi_on_death(void *user, int i) {
    const launch *l = (const launch *)user;
    const int process = __atomic_load_n(&l->board->process[i], __ATOMIC_ACQUIRE);
    char what[LAUNCH_SENTENCE], sentence[LAUNCH_SENTENCE];
    if (!process) return;
    snprintf(what, sizeof what, "rank %d (process %d) is gone; all ranks end", l->board->rank_of[i],
             process);
    launch_add_place(l, what, sentence);
    if (launch_claim(l->board)) launch_print_claimed(l, sentence, 0);
}

/* mpirun ends the other ranks by a signal, which may arrive before the witness sees the death. */
static void launch_mpi_signal(void *user, signals_verdict verdict, int number) {
    launch *l = (launch *)user;
    const int who = witness_gone();
    if (who >= 0) launch_mpi_on_death(l, who);
    if (who < 0 && verdict != SIGNALS_END) launch_take_signal(l, verdict, number);
    if (verdict != SIGNALS_END) return;
    if (l->local_rank < LAUNCH_MAX_RANKS)
        __atomic_store_n(&l->board->process[l->local_rank], 0, __ATOMIC_RELEASE);
    if (signals_stops()) launch_take_signal(l, verdict, number);
    signals_release();
    (void)signal(number, SIG_DFL);
    (void)kill(getpid(), number);
    _exit(128 + number);
}

/* Makes the ranks of this machine watch each other. */
static void launch_mpi_watch(launch *l) {
    int others[LAUNCH_MAX_RANKS];
    if (l->local_rank < LAUNCH_MAX_RANKS) {
        l->board->rank_of[l->local_rank] = l->rank;
        l->board->process[l->local_rank] = (int)getpid();
    }
    MPI_Barrier(MPI_COMM_WORLD);
    memcpy(others, l->board->process, sizeof others);
    if (l->local_rank < LAUNCH_MAX_RANKS) others[l->local_rank] = 0;
    const int n = l->local_ranks < LAUNCH_MAX_RANKS ? l->local_ranks : LAUNCH_MAX_RANKS;
    (void)witness_watch(n, others, launch_mpi_on_death, l);
    if (!signals_watch(launch_mpi_signal, l))
        launch_fail(l, "rank %d: no more threads; raise ulimit -u", l->rank);
}

static int launch_run_mpi(const launch_request *request, launch *l, const environment *e) {
    launch_mpi mpi;
    char sentence[LAUNCH_SENTENCE];
    int provided = MPI_THREAD_SINGLE;
    l->kind = LAUNCH_MPI;
    l->mpi = &mpi;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS) {
        launch_print(l, "MPI_Init_thread failed");
        return LAUNCH_EXIT_FAILURE;
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &l->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &l->nranks);
    mpi.world = MPI_COMM_WORLD;
    launch_mpi_board(l, &mpi);
    l->how = e->by;
    l->threads = launch_share(l->local_ranks);
    MPI_Allreduce(MPI_IN_PLACE, &l->threads, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    l->elsewhere = 1;
    launch_mpi_watch(l);
    snprintf(sentence, sizeof sentence,
             "%d ranks were started %s, but MPI knows of %d: this build's MPI library is not that "
             "of the launcher",
             e->nranks, e->by, l->nranks);
    if (l->nranks != e->nranks && e->rank == 0) launch_print(l, sentence);
    if (l->nranks != e->nranks) launch_leave(LAUNCH_EXIT_FAILURE);
    for (int i = 0; i < l->groups; i++) {
        l->comm[i].kind = ZERO_COMM_MPI;
        l->comm[i].handle = &mpi.world;
    }
    launch_meet(l, request->usage_error == NULL, request->usage_error, LAUNCH_EXIT_USAGE);
    launch_check_ranks(l, request);
    snprintf(
        sentence, sizeof sentence,
        "MPI gives thread level %d, but MPI_THREAD_MULTIPLE (%d) is needed: use an MPI library "
        "built with it, or start the ranks with -pn",
        provided, MPI_THREAD_MULTIPLE);
    launch_agree(l, provided >= MPI_THREAD_MULTIPLE, sentence);
    int code = launch_run_rank(request, l);
    signals_unwatch();
    witness_unwatch();
    fflush(stdout);
    MPI_Win_free(&mpi.board);
    MPI_Comm_free(&mpi.machine);
    MPI_Finalize();
    return code;
}

#else

/* Refuses to start, because otherwise N independent trainers would run. */
static int launch_run_mpi(const launch_request *request, launch *l, const environment *e) {
    char sentence[LAUNCH_SENTENCE];
    (void)request;
    snprintf(sentence, sizeof sentence,
             "%d ranks were started %s, but this build is without MPI: build where mpicc is found, "
             "or use -pn %d on one machine",
             e->nranks, e->by, e->nranks);
    if (e->rank == 0) launch_print(l, sentence);
    return LAUNCH_EXIT_USAGE;
}

#endif

/* ---- join ---------------------------------------------------------------------------------- */

/* Returns the size of the memory that the ranks of a machine share: the board, and a communicator
   for each group. */
static size_t launch_file_bytes(int groups) {
    const size_t board = (sizeof(launch_board) + 63) / 64 * 64;
    return board + (size_t)groups * ((zero_local_bytes() + 63) / 64 * 64);
}

static int launch_make_file(const launch *l) {
    int file = (int)syscall(SYS_memfd_create, "launch", 1u /* close on exec */);
    if (file < 0 || ftruncate(file, (off_t)launch_file_bytes(l->groups)) == 0) return file;
    close(file);
    return -1;
}

/* Maps the file of the machine's lowest rank. That rank also creates the communicators. After an
   error, returns 0 and writes a sentence. */
static int launch_map_file(launch *l, const meeting_seat *seat, int own, char *sentence,
                           size_t bytes) {
    char path[64];
    const int leads = seat->leader_rank == l->rank;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)seat->leader_process,
             (int)seat->leader_file);
    int file = leads ? own : open(path, O_RDWR | O_CLOEXEC);
    void *memory = MAP_FAILED;
    if (file >= 0)
        memory =
            mmap(NULL, launch_file_bytes(l->groups), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    int error = errno;
    if (!leads && file >= 0) close(file);
    if (memory == MAP_FAILED) {
        snprintf(sentence, bytes, "rank %d cannot share the memory of rank %d (%s): %s", l->rank,
                 (int)seat->leader_rank, path, strerror(error));
        return 0;
    }
    l->board = (launch_board *)memory; /* a new file is zeros */
    if (LAUNCH_GPUS || seat->hosts > 1) return 1;
    for (int i = 0; i < l->groups; i++) {
        void *place = (char *)memory + launch_file_bytes(i);
        zero_result result = ZERO_OK;
        l->local[i] = (zero_local *)place;
        if (leads) result = zero_local_place(&l->local[i], place, l->nranks);
        if (result != ZERO_OK) {
            l->local[i] = NULL;
            snprintf(sentence, bytes, "%d ranks on one machine: %s (at most %d)", l->nranks,
                     zero_result_string(result), (int)LAUNCH_MAX_RANKS);
            return 0;
        }
        l->comm[i].kind = ZERO_COMM_LOCAL;
        l->comm[i].handle = l->local[i];
        l->comm[i].rank = l->rank;
    }
    return 1;
}

/* A thread of the meeting calls this if another rank has ended the job or has died. */
static void launch_on_end(void *user, const char *what) {
    const launch *l = (const launch *)user;
    char text[LAUNCH_SENTENCE], *sentence = what != NULL ? text : NULL;
    if (what != NULL) launch_add_place(l, what, text);
    int speaks = sentence != NULL && launch_claim(l->board);
    if (speaks) launch_print_claimed(l, sentence, 1);
    launch_abort_locals(l, 0, sentence != NULL ? sentence : "another rank failed");
    clock_pause(speaks ? LAUNCH_POLL_MS
                       : 10 * LAUNCH_POLL_MS); /* another rank of this machine may be printing */
    launch_leave(LAUNCH_EXIT_FAILURE);
}

/* torchrun sets OMP_NUM_THREADS=1 if the user does not set it. */
static void launch_note_threads(launch *l) {
    const char *threads = getenv("OMP_NUM_THREADS");
    if (LAUNCH_GPUS || getenv("TORCHELASTIC_RUN_ID") == NULL || threads == NULL
        || strcmp(threads, "1") != 0)
        return;
    snprintf(l->note, sizeof l->note,
             "OMP_NUM_THREADS=1 was set by torchrun and is ignored: %d thread%s per rank",
             launch_threads(l), launch_threads(l) > 1 ? "s" : "");
}

static void launch_take_seat(launch *l, const environment *e, const meeting_seat *seat) {
    l->rank = e->rank;
    l->nranks = e->nranks;
    l->local_rank = seat->local_rank;
    l->local_ranks = seat->local_ranks;
    l->threads = seat->threads;
    launch_note_threads(l);
}

/* Checks that must pass on all ranks. All ranks are connected, so a failure of one ends all. */
static void launch_check_join(launch *l, const launch_request *request, const meeting_seat *seat,
                              int mapped, const char *why) {
    char sentence[LAUNCH_SENTENCE];
    launch_agree(l, mapped, why);
    launch_meet(l, request->usage_error == NULL, request->usage_error, LAUNCH_EXIT_USAGE);
    launch_check_ranks(l, request);
    snprintf(sentence, sizeof sentence,
             "rank 0 is on host %s, but rank %d on host %s: the CPU version joins hosts only by "
             "MPI: build where mpicc is found, and start with mpirun",
             seat->first_host, (int)seat->foreign_rank, seat->foreign_host);
    launch_agree(l, LAUNCH_GPUS || seat->hosts == 1, sentence);
}

static int launch_run_join(const launch_request *request, launch *l, const environment *e) {
    static launch_board board; /* used until the shared one is mapped, or if that fails */
    char host[MEETING_NAME], sentence[LAUNCH_SENTENCE] = "";
    meeting_seat seat;
    meeting *m = NULL;
    environment_host_name(host, sizeof host);
    l->kind = LAUNCH_JOIN;
    l->how = e->by;
    l->elsewhere = 1;
    l->nranks = e->nranks;
    l->board = &board;
    launch_watch_signals(l); /* a signal can end a rank that waits for the others */
    int file = launch_make_file(l);
    meeting_call call = {e->rank,
                         e->nranks,
                         e->local_rank,
                         e->by,
                         e->host,
                         e->port,
                         e->folder[0] ? e->folder : NULL,
                         e->job,
                         host,
                         file,
                         launch_limit(request)};
    meeting_result result = meeting_join(&m, &call, &seat, sentence, sizeof sentence);
    if (result != MEETING_OK) {
        if (result == MEETING_SAY) {
            launch_print(l, sentence);
            clock_pause(LAUNCH_LINGER_MS); /* lets other ranks see that this one has failed */
        }
        return LAUNCH_EXIT_FAILURE;
    }
    launch_take_seat(l, e, &seat);
    int mapped = launch_map_file(l, &seat, file, sentence, sizeof sentence);
    if (!meeting_watch(m, launch_on_end, l))
        launch_fail(l, "rank %d: no more threads; raise ulimit -u", l->rank);
    l->meeting = m;
    launch_check_join(l, request, &seat, mapped, sentence);
    close(file); /* all ranks have mapped it, or have ended */
    int code = launch_run_rank(request, l);
    if (code != 0) launch_end_by_code(l, code);
    signals_unwatch();
    fflush(stdout);
    meeting_leave(m);
    return 0;
}

/* ---- run ----------------------------------------------------------------------------------- */

/* Starts the ranks here, as processes, or as threads if they share GPUs. */
static int launch_run_here(const launch_request *request, launch *l, int ranks) {
    int threads = request->as_threads;
    if (request->join && !LAUNCH_GPUS) return launch_run_guest(request, l, ranks);
    if (launch_may_change(request)) return launch_run_fork(request, l, ranks);
    if (ranks < 2) return launch_run_alone(request, l);
    if (LAUNCH_GPUS && !threads) {
        char sentence[LAUNCH_SENTENCE] = "";
        int gpus = gpu_count(sentence, sizeof sentence);
        if (gpus < 0) {
            launch_print(l, sentence);
            return LAUNCH_EXIT_FAILURE;
        }
        threads = ranks > gpus && !gpu_may_be_shared();
    }
    return threads ? launch_run_threads(request, l, ranks) : launch_run_fork(request, l, ranks);
}

int launch_run(const launch_request *request) {
    launch l;
    environment e;
    char sentence[LAUNCH_SENTENCE] = "";
    memset(&l, 0, sizeof l);
    l.program = request->program;
    l.groups = request->groups;
    l.device = -1;
    signals_begin(request->stop || request->join != NULL);
    const environment_call call = {request->method,   request->ranks,  request->rank,
                                   request->per_node, request->server, request->folder,
                                   launch_has_mpi()};
    int wrong = environment_read(&call, &e, sentence, sizeof sentence);
    if (wrong && request->usage_error == NULL) {
        if (e.rank == 0) launch_print(&l, sentence);
        return LAUNCH_EXIT_USAGE;
    }
    if (!wrong && e.kind == ENVIRONMENT_MPI) return launch_run_mpi(request, &l, &e);
    if (!wrong && e.kind == ENVIRONMENT_JOIN) return launch_run_join(request, &l, &e);
    if (request->usage_error != NULL) {
        launch_print(&l, request->usage_error);
        return LAUNCH_EXIT_USAGE;
    }
    const int ranks = request->ranks > 0 ? request->ranks : request->default_ranks;
    if (ranks > LAUNCH_MAX_RANKS) {
        snprintf(sentence, sizeof sentence,
                 "%d ranks on this machine, at most %d: on several, start them by mpirun, torchrun "
                 "or srun",
                 ranks, (int)LAUNCH_MAX_RANKS);
        launch_print(&l, sentence);
        return LAUNCH_EXIT_USAGE;
    }
    return launch_run_here(request, &l, ranks);
}

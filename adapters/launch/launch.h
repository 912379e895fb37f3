/* launch.h - ranks for zero_plugin.h: started here, or by mpirun, torchrun or srun, or one alone.

   EXAMPLE
       static int train(launch *l, void *settings)      // runs once on every rank
       {
           zero_ctx *z;
           if (zero_create(&z, &cfg, &l->comm[0]) != ZERO_OK) launch_fail(l, "no context");
           ...
           return 0;
       }
       int main(int argc, char **argv)
       {
           launch_request request;
           memset(&request, 0, sizeof request); // every zero is the default
           request.program = "train";
           request.groups = 1;
           request.rank_main = train;
           request.user = &settings;
           return launch_run(&request);
       }

   HOW RANKS COME ABOUT
     mpirun   its variables are in the environment, and the build has -DZERO_WITH_MPI
     join     torchrun, deepspeed, accelerate, srun or llm.c's -pi tcp and -pi fs started processes,
              which find each other over a socket (environment.h, meeting.h)
     fork     `ranks` is above 1: children of this process, which only watches them
     threads  the same as threads of this process: with CUDA, where ranks share a GPU
     alone    otherwise

   WHAT JOINS THEM. The CPU version: shared memory, so the ranks of a join must be on one machine;
   MPI by mpirun. The CUDA version (-DLAUNCH_WITH_NCCL): NCCL, on any number of machines, a GPU for
   each rank; threads have the local communicator. The GPU is chosen here, before rank_main.

   ONE LINE PER FAILURE. Whatever goes wrong, and on however many ranks: one of them claims the
   right to speak through memory that all ranks of a machine share, and writes one line to stderr.
   All ranks end within seconds. Exit code 1; 2 for a wrong command line; 128 + n after signal n.
   The watching process (join: rank 0, or the others if it is rank 0) adds its line where a rank
   died without a word (a signal, a crash), and on SIGINT or SIGTERM. Children die with it. By
   mpirun the other ranks of its machine say that it is gone (witness.h). On several machines it is
   one line for all as long as rank 0 can be asked, otherwise one for each.

   SIGNALS. SIGINT and SIGTERM end the job, and the line says what is saved (launch_saved). With
   request.stop the first of them, and every SIGUSR1, asks it to stop instead: launch_asked_to_stop
   tells whether one came, the process that watches a fork passes it on, and the ranks, which may
   not all have been reached, agree on it and return. A second SIGINT or SIGTERM ends the job at
   once; signals that were ignored when the program began stay ignored. signals.h has the rules.
   mpirun passes on SIGUSR1 alone, torchrun SIGTERM alone; Slurm sends either to all processes.

   ELASTIC. With request.elastic the watching process of a fork starts the ranks that are left again
   when some have died without a word: killed, or by an exit code that nobody explained. All others
   end first; what they go on from is rank_main's affair, and how many can (launch_fewer). It is
   over when no rank is left, when ranks die more than three times without a later launch_saved or
   launch_copied in between, and when a rank tells why it ends, or a signal asks for it. Ranks that
   others started are theirs to start again: torchrun does, mpirun ends the job.

   THREADS. One host thread per rank calls these functions. With MPI, MPI_THREAD_MULTIPLE is asked
   for, since the plugin communicates on threads of its own.
*/
#ifndef LAUNCH_H
#define LAUNCH_H

#include <stddef.h>
#include <stdint.h>

#include "../../zero_plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define LAUNCH_PRINTF(format_at, values_at) __attribute__((format(printf, format_at, values_at)))
#define LAUNCH_NORETURN                     __attribute__((noreturn))
#else
#define LAUNCH_PRINTF(format_at, values_at)
#define LAUNCH_NORETURN
#endif

enum {
    LAUNCH_MAX_RANKS = 64,   /* of one machine, by fork */
    LAUNCH_MAX_GROUPS = 8,   /* communicators */
    LAUNCH_BROADCAST = 8192, /* bytes, most of a launch_broadcast */
    LAUNCH_SENTENCE = 1024,  /* bytes of a sentence, its end included; longer ones are cut */
    LAUNCH_EXIT_FAILURE = 1,
    LAUNCH_EXIT_USAGE = 2
};

typedef enum launch_kind {
    LAUNCH_ALONE = 0,
    LAUNCH_FORK,
    LAUNCH_MPI,
    LAUNCH_THREADS,
    LAUNCH_JOIN
} launch_kind;

typedef struct launch_board launch_board; /* what ranks of a machine share */

/* This rank, and the others. Read only; valid until the function of the rank returns. */
typedef struct launch {
    const char *program; /* what stands before the colon of every line */
    launch_kind kind;
    const char *how; /* see launch_how */
    int rank, nranks;
    int local_rank, local_ranks; /* the same among the ranks of this machine */
    int threads;                 /* see launch_threads */
    int elsewhere;  /* 1: started by somebody else, so settings and files may differ by rank, and
                       the output is not a terminal of this rank alone */
    int device;     /* CUDA: this rank's GPU, already chosen; -1: CPU */
    char note[160]; /* "", or what the log should tell of how threads were chosen */
    zero_comm comm[LAUNCH_MAX_GROUPS]; /* one for each context; equal ranks, separate meeting
                                          places */
    int groups;
    launch_board *board;
    zero_local *local[LAUNCH_MAX_GROUPS]; /* what comm[i].handle points to, or NULL */
    void *mpi;                            /* LAUNCH_MPI: private */
    void *meeting;                        /* LAUNCH_JOIN: private */
    void *gpu;                            /* CUDA: private */
    unsigned round;                       /* of launch_agree */
    int starts; /* an elastic job: how often ranks have died and were started again */
} launch;

typedef int (*launch_rank_fn)(launch *l, void *user);

typedef struct launch_request {
    const char *program;     /* borrowed */
    int ranks;               /* to start here; 0: as mpirun says, or default_ranks */
    int default_ranks;       /* without mpirun, where ranks is 0; 0: 1 */
    int groups;              /* communicators wanted, 1..LAUNCH_MAX_GROUPS */
    const char *usage_error; /* NULL, or what is wrong with this command line: it is printed once,
                                nothing is started, and the exit code is 2 */
    launch_rank_fn rank_main;
    void *user; /* passed to rank_main */

    /* How ranks that are started one by one find each other (llm.c's -pi): NULL or "mpi": as the
       environment says. "tcp": rank 0 listens at `server`; "fs": rank 0 leaves its address in
       `folder`. With those two, `ranks` is the number of all, and this process is one of them. */
    const char *method;
    int rank;           /* tcp, fs: of this process (-pr) */
    int per_node;       /* tcp, fs: ranks per machine (-pg); 0: as host names tell */
    const char *server; /* tcp: name or address of rank 0's host (-ps) */
    const char *folder; /* fs: that all ranks see (-pf); NULL: /tmp */
    int as_threads;     /* `ranks` as threads of this process. CUDA: also done unasked where there
                           are fewer GPUs */
    double limit_s;     /* longest wait for other ranks to come; 0: 120 */
    int stop;           /* 1: signals ask to stop, see above */
    int elastic;        /* 1: ranks that are left go on, see above */
} launch_request;

/* Starts the ranks, runs rank_main on each, and waits. Returns the exit code of the program: the
   first rank_main's that is not 0, or that of a failure. Call it once, early in main: with fork, no
   thread may have been started yet. */
int launch_run(const launch_request *request);

/* Ends this rank, and with it the job, over an error that only this rank may have found. Prints
   the sentence, unless another rank was first. Does not return. */
void launch_fail(launch *l, const char *format, ...) LAUNCH_PRINTF(2, 3) LAUNCH_NORETURN;

/* The same for a result of the plugin that is not ZERO_OK: one that only tells of another rank's
   failure (ZERO_ERR_PEER) leaves that rank a moment to say its own sentence first. */
void launch_fail_result(launch *l, zero_result result, const char *sentence) LAUNCH_NORETURN;

/* All ranks meet. If `ok` is 0 on any, the lowest of those prints its sentence and all ranks end;
   otherwise returns on all. For what must be checked on every rank before anything is built.
   COLLECTIVE. */
void launch_agree(launch *l, int ok, const char *sentence);
void launch_require(launch *l, int ok, const char *format, ...) LAUNCH_PRINTF(3, 4);
/* Whether `ok` is not 0 on all ranks. COLLECTIVE. */
int launch_all(launch *l, int ok);

/* Ends all ranks if they were started with different settings (under mpirun they can be). text:
   one setting a line, "NAME VALUE", the same names in the same order on all ranks. COLLECTIVE. */
void launch_same(launch *l, const char *text);

/* Copies bytes, at most LAUNCH_BROADCAST, from rank 0 to all. COLLECTIVE. */
void launch_broadcast(launch *l, void *data, size_t bytes);

/* "here (fork)", "here (threads)", "by mpirun", "by torchrun", "by srun", "by -pi tcp", ... or
   "alone"; never NULL. */
const char *launch_how(const launch *l);

/* Whether this process was asked to stop. It stays so. Always 0 without request.stop. */
int launch_asked_to_stop(void);

/* For the line of a job that a signal ends: work is saved up to this step; 0: nothing is. Where
   this is never called the line says nothing of it. */
void launch_saved(launch *l, int64_t step);

/* The same of a copy that outlives ranks, but not the job. */
void launch_copied(launch *l, int64_t step);

/* Elastic, where l->starts is not 0: of these ranks only so many can go on; all say the same, rank
   0 prints why, and they start again with so many. Does not return. */
void launch_fewer(launch *l, int ranks, const char *why) LAUNCH_NORETURN;

/* For lines about a rank that died: rank = (pp * dp + d) * tp + t is `tp t, pp p, dp d`, of so many
   tensor-parallel and data-parallel ranks. All ranks give the same. */
void launch_layout(launch *l, int tp, int dp);

/* Whether this build can be started by mpirun. */
int launch_has_mpi(void);

/* Whether an argument is not the user's but a launcher's: deepspeed adds --local_rank=N. */
int launch_adds_argument(const char *argument);

/* Processors that this process may run on, at least 1. */
int launch_processors(void);

/* Threads of a rank, unless the user says otherwise: its share of them, at least 1; the least share
   of any rank, for all have the same number. */
int launch_threads(const launch *l);

#ifdef __cplusplus
}
#endif
#endif

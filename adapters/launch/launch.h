/* launch.h - starts the ranks for zero_plugin.h here, or joins ranks of mpirun, torchrun or srun.

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

   HOW RANKS START
     mpirun   The environment has the variables of mpirun, and the build has -DZERO_WITH_MPI.
     join     torchrun, deepspeed, accelerate, srun, or -pi tcp and -pi fs of llm.c started the
              processes, which find each other over sockets (environment.h, meeting.h).
     fork     `ranks` is above 1. The ranks are children of this process, which only watches them.
     threads  The same with threads of this process; with CUDA if ranks share a GPU.
     alone    Otherwise.

   COMMUNICATORS. The CPU version uses shared memory, so the ranks of a join must be on one machine;
   with mpirun it uses MPI. The CUDA version (-DLAUNCH_WITH_NCCL) uses NCCL on any number of
   machines, with one GPU per rank; threads use the local communicator. This module chooses the GPU
   before it calls rank_main.

   ONE LINE PER FAILURE. All ranks of a machine share memory, in which a rank that fails claims the
   right to print. It writes one line to stderr, and all ranks end within seconds. The exit code is
   1; it is 2 for a wrong command line, and 128 + n after signal n. If a rank dies without a message
   (by a signal or a crash), the watching process prints the line. In a join, this is rank 0, or
   another rank if rank 0 died. The watching process also prints a line on SIGINT or SIGTERM. If it
   dies, its children die. With mpirun, the other ranks of the machine report the death (witness.h).
   On several machines, all ranks print one line together if rank 0 can be reached; otherwise each
   machine prints one.

   SIGNALS. SIGINT and SIGTERM end the job, and the line says which step is saved (launch_saved).
   With request.stop, the first of them and each SIGUSR1 ask the job to stop instead, and
   launch_asked_to_stop returns 1. The process that watches a fork passes the signal on. Not every
   rank may have received it, so the ranks must agree before they return. A second SIGINT or SIGTERM
   ends the job at once. Signals that were ignored when the program started stay ignored. signals.h
   has the rules. mpirun passes on only SIGUSR1, and torchrun only SIGTERM; Slurm sends each signal
   to all processes.

   ELASTIC. With request.elastic, the watching process of a fork restarts the remaining ranks if
   some have died without a message: by a signal, or by an exit code that no rank explained. The
   other ranks end first. rank_main decides from which state it resumes, and how many ranks can
   (launch_fewer). The job ends if no rank remains, if ranks die more than three times without a
   later launch_saved or launch_copied, if a rank ends with a message, or after a signal. A launcher
   that started the ranks must restart them itself: torchrun does, mpirun ends the job.

   CHANGING RANKS. With request.ranks_file, the number of ranks of a fork changes between two steps,
   if the file has another number, or if one rank gets SIGTERM or SIGUSR1: it then leaves. members.h
   has the protocol. Without GPUs, and with one group. rank_main of a process that joins runs as if
   the process were a rank of a job of the new size, up to launch_join. With request.address, the
   ranks of other launchers (request.join) of the same machine join in the same way (guests.h). They
   leave when their launcher gets SIGINT or SIGTERM. Ranks that the job cannot use wait, and replace
   ranks that leave. If one dies, the job fails as if its own rank had died; with request.elastic
   the others of that launcher join again after the restart.

   THREADS. One host thread per rank calls these functions. With MPI, this module asks for
   MPI_THREAD_MULTIPLE, because the plugin communicates on its own threads.
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
    LAUNCH_MAX_RANKS = 64,   /* most ranks of one machine with fork */
    LAUNCH_MAX_GROUPS = 8,   /* most communicators */
    LAUNCH_BROADCAST = 8192, /* most bytes of a launch_broadcast */
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

typedef struct launch_board launch_board; /* memory that the ranks of a machine share */

/* This rank and the job. Read only; valid until rank_main returns. */
typedef struct launch {
    const char *program; /* the name before the colon of each line */
    launch_kind kind;
    const char *how; /* see launch_how */
    int rank, nranks;
    int local_rank, local_ranks; /* the same among the ranks of this machine */
    int threads;                 /* see launch_threads */
    int elsewhere;  /* 1: a launcher started the ranks, so settings and files may differ between
                       them, and they may share one terminal */
    int device;     /* CUDA: this rank's GPU, already chosen; -1: CPU */
    char note[160]; /* "", or a sentence on the number of threads, for the log */
    zero_comm comm[LAUNCH_MAX_GROUPS]; /* one for each context; equal ranks, separate meeting
                                          places */
    int groups;
    launch_board *board;
    zero_local *local[LAUNCH_MAX_GROUPS]; /* the target of comm[i].handle, or NULL */
    void *mpi;                            /* LAUNCH_MPI: private */
    void *meeting;                        /* LAUNCH_JOIN: private */
    void *gpu;                            /* CUDA: private */
    unsigned round;                       /* number of the last launch_agree */
    int starts;                           /* elastic job: number of restarts so far */
    int seat;                             /* private: see members.h */
    int epoch;                            /* changes of the ranks so far */
    int compared;                         /* private: calls of launch_same */
    int joins; /* 1: this process starts to join ranks that train. Until launch_join it is alone:
                  agreements are its own, and broadcasts leave its bytes */
} launch;

typedef int (*launch_rank_fn)(launch *l, void *user);

typedef struct launch_request {
    const char *program;     /* borrowed */
    int ranks;               /* ranks to start here; 0: as mpirun says, or default_ranks */
    int default_ranks;       /* without mpirun, if ranks is 0; 0 means 1 */
    int groups;              /* number of communicators, 1..LAUNCH_MAX_GROUPS */
    const char *usage_error; /* NULL, or the error of the command line. launch_run prints it once,
                                starts no rank, and returns 2 */
    launch_rank_fn rank_main;
    void *user; /* passed to rank_main */

    /* How ranks that are started one by one find each other (llm.c's -pi). NULL or "mpi": by the
       environment. "tcp": rank 0 listens at `server`; "fs": rank 0 writes its address to
       `folder`. With "tcp" and "fs", `ranks` is the number of all ranks, and this process is one.
     */
    const char *method;
    int rank;           /* tcp, fs: rank of this process (-pr) */
    int per_node;       /* tcp, fs: ranks per machine (-pg); 0: found by host name */
    const char *server; /* tcp: name or address of rank 0's host (-ps) */
    const char *folder; /* fs: folder that all ranks can access (-pf); NULL: /tmp */
    int as_threads;     /* 1: ranks are threads of this process. CUDA: also if there are fewer GPUs
                           than ranks */
    double limit_s;     /* longest wait for the other ranks to start; 0: 120 */
    int stop;           /* 1: signals ask the job to stop, see above */
    int elastic;        /* 1: remaining ranks are restarted, see above */
    const char *ranks_file; /* NULL, or a file with the number of ranks, see CHANGING RANKS */
    const char *address;    /* NULL, or HOST:PORT at which other launchers join this job */
    const char *join;       /* NULL, or the address of a job: `ranks` are ranks for it */
} launch_request;

/* Starts the ranks, runs rank_main on each, and waits. Returns the exit code of the program:
   the first one of a rank_main that is not 0, or that of a failure. Call it once, early in main,
   because with fork the process must not have started a thread. */
int launch_run(const launch_request *request);

/* Ends this rank and the job after an error that perhaps only this rank has found. Prints the
   sentence, unless another rank was first. Does not return. */
void launch_fail(launch *l, const char *format, ...) LAUNCH_PRINTF(2, 3) LAUNCH_NORETURN;

/* The same for a result of the plugin that is not ZERO_OK. If the result only reports the failure
   of another rank (ZERO_ERR_PEER), this waits a moment, so that the other rank can print its
   sentence. */
void launch_fail_result(launch *l, zero_result result, const char *sentence) LAUNCH_NORETURN;

/* A barrier with a check. If `ok` is 0 on any rank, the lowest such rank prints its sentence, and
   all ranks end. Otherwise it returns on all ranks. Use it for checks before the plugin is built.
   COLLECTIVE. */
void launch_agree(launch *l, int ok, const char *sentence);
void launch_require(launch *l, int ok, const char *format, ...) LAUNCH_PRINTF(3, 4);
/* Returns whether `ok` is not 0 on all ranks. COLLECTIVE. */
int launch_all(launch *l, int ok);

/* Ends all ranks if they were started with different settings (possible with mpirun). text: lines
   "NAME VALUE", with the same names in the same order on all ranks. COLLECTIVE. */
void launch_same(launch *l, const char *text);

/* Copies bytes, at most LAUNCH_BROADCAST, from rank 0 to all. COLLECTIVE. */
void launch_broadcast(launch *l, void *data, size_t bytes);

/* "here (fork)", "here (threads)", "by mpirun", "by torchrun", "by srun", "by -pi tcp", ... or
   "alone"; never NULL. */
const char *launch_how(const launch *l);

/* Returns whether a signal has asked this process to stop, at any time before. Always 0 without
   request.stop. */
int launch_asked_to_stop(void);

/* Returns the flag that rank 0 sets while the terminal shows a line that it rewrites. A line of a
   failure or a signal then comes after that line, and does not overwrite it. */
int *launch_live(const launch *l);

/* Sets the last saved step, or 0 if nothing is saved, for the line of a job that a signal ends. If
   you never call it, the line has no step. */
void launch_saved(launch *l, int64_t step);

/* The same for a copy that stays when ranks die, but not when the job ends. */
void launch_copied(launch *l, int64_t step);

/* Elastic jobs, if l->starts is not 0: restarts the job with only `ranks` ranks. All ranks pass the
   same number, and rank 0 prints the reason. Does not return. */
void launch_fewer(launch *l, int ranks, const char *why) LAUNCH_NORETURN;

/* Whether the ranks of this job may change. Without, the other functions return 0. */
int launch_changes(const launch *l);
/* Rank 0, after each step: launch_wanted returns the number of ranks that is newly asked for, or 0;
   your code then calls launch_answer with the largest possible number of ranks. launch_ready
   returns 1 if the ranks are to change after this step. Rank 0 must then pass this on to all ranks,
   which all call launch_move, unless the run ends. */
int launch_wanted(launch *l);
void launch_answer(launch *l, int ranks);
int launch_ready(launch *l);
/* launch_move returns 1, with the new rank, number of ranks and communicator, or 0 if this process
   leaves. A process that joins calls launch_join, which waits. It returns 0 if the run has ended.
   All of them call launch_moved when they have destroyed their old context, if any. A process that
   leaves then returns 0 from rank_main. */
int launch_move(launch *l);
int launch_join(launch *l);
void launch_moved(launch *l);
/* Sets the numbers of tensor-parallel, context-parallel and data-parallel ranks, so that a line
   about a dead rank can name its place: rank = (pp * dp + d) * tp + t is `tp t, pp p, dp d`, and
   rank = ((p * dp + d) * cp + c) * tp + t is `tp t, cp c, dp d, pp p`, without tp and pp if they
   are 1. All ranks pass the same numbers. */
void launch_layout(launch *l, int tp, int cp, int dp);

/* Returns whether mpirun can start this build. */
int launch_has_mpi(void);

/* Returns whether a launcher added this argument. For example, deepspeed adds --local_rank=N. */
int launch_adds_argument(const char *argument);

/* Returns the number of processors that this process may run on, at least 1. */
int launch_processors(void);

/* Returns the default number of threads of a rank: the smallest share of the processors that any
   rank has, at least 1. It is equal on all ranks. */
int launch_threads(const launch *l);

#ifdef __cplusplus
}
#endif
#endif

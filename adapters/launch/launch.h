/* launch.h - ranks for zero_plugin.h: started here by fork, by mpirun, or one alone.

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
           launch_request request = {"train", 2, 0, 1, NULL, train, &settings};
           return launch_run(&request);
       }

   HOW RANKS COME ABOUT
     mpirun  its variables are in the environment, and the build has -DZERO_WITH_MPI
     fork    `ranks` is 1 or more (above 1: children of this process, which only watches them)
     alone   otherwise

   ONE LINE PER FAILURE. Whatever goes wrong, and on however many ranks: one of them claims the
   right to speak through memory that all ranks of a machine share, and writes one line to stderr.
   All ranks end within seconds. Exit code 1; 2 for a wrong command line; 128 + n after signal n.
   The watching process adds its line where a rank died without a word (a signal, a crash), and on
   SIGINT or SIGTERM. Children die with it.

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
    LAUNCH_MAX_RANKS = 64,  /* of one machine, by fork */
    LAUNCH_MAX_GROUPS = 8,  /* communicators */
    LAUNCH_SENTENCE = 1024, /* bytes of a sentence, its end included; longer ones are cut */
    LAUNCH_EXIT_FAILURE = 1,
    LAUNCH_EXIT_USAGE = 2
};

typedef enum launch_kind { LAUNCH_ALONE = 0, LAUNCH_FORK, LAUNCH_MPI } launch_kind;

typedef struct launch_board launch_board; /* what ranks of a machine share */

/* This rank, and the others. Read only; valid until the function of the rank returns. */
typedef struct launch {
    const char *program; /* what stands before the colon of every line */
    launch_kind kind;
    int rank, nranks;
    int local_rank, local_ranks;       /* the same among the ranks of this machine */
    zero_comm comm[LAUNCH_MAX_GROUPS]; /* one for each context; equal ranks, separate meeting
                                          places */
    int groups;
    launch_board *board;
    zero_local *local[LAUNCH_MAX_GROUPS]; /* LAUNCH_FORK: what comm[i].handle points to */
    void *mpi;                            /* LAUNCH_MPI: private */
    unsigned round;                       /* of launch_agree */
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

/* Ends all ranks if they were started with different settings (under mpirun they can be). text:
   one setting a line, "NAME VALUE", the same names in the same order on all ranks. COLLECTIVE. */
void launch_same(launch *l, const char *text);

/* "here (fork)", "by mpirun" or "alone"; never NULL. */
const char *launch_how(const launch *l);

/* Whether this build can be started by mpirun. */
int launch_has_mpi(void);

/* Processors that this process may run on, at least 1. */
int launch_processors(void);

#ifdef __cplusplus
}
#endif
#endif

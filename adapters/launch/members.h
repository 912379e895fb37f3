/* members.h - the processes of a job that changes its number of ranks while it trains.

   A REQUEST for another number of ranks comes between two steps, in one of three ways:
     a file     an operator, or a script of Slurm, writes the number to a file
     a signal   a rank gets SIGTERM or SIGUSR1. It leaves, and the others are one rank less
     an offer   another launcher joins, and offers ranks (guests.h)
   The ranks that stay do not restart, and read nothing that is in their memory.

   PHASES. `members` is in memory that all processes of the job share. One process
   watches the ranks, which are its children. Each phase waits for one party:

     STEADY     The ranks train. The watching process counts requests: `wanted` and `request`.
     ASKED      Rank 0 has answered with `target`, the largest number of ranks that can train. The
                watching process writes the next list, and forks the processes that join.
     STARTING   Each process that joins reads the command line and the data, and reports itself
                ready. The ranks train, so a step never waits for a process that starts.
     READY      All of them wait. Rank 0 sees this at the end of a step.
     AGREED     Rank 0 includes it in the sum of the step's losses. So all ranks learn it after the
                same step, and it costs no message.
     MOVING     The processes of both lists move the state (zero_resize). Each reports itself moved
                when it has destroyed its old context. A rank that leaves then ends.

   Then the watching process makes the next list the current one, and the phase is STEADY. Until
   AGREED, the death of a process that joins only cancels the change. From AGREED on it ends the
   job, as the death of a rank does. A request that comes during a change waits for the next one.

   LISTS. A process has a seat for its life. A list has the seat of each rank: first those that
   stay, in their order, then those that join. So rank 0 never joins. Two lists, two meeting places
   and two counters of agreements alternate, because one change ends before the next begins.

   WHY A FILE. The launcher starts and watches processes. Which of them are ranks, and since when,
   is decided here. */
#ifndef LAUNCH_MEMBERS_H
#define LAUNCH_MEMBERS_H

#include <stddef.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { MEMBERS_MOST = 64, MEMBERS_TEXT = 64, MEMBERS_LEAVE_MS = 200 };

typedef enum members_phase {
    MEMBERS_STEADY = 0,
    MEMBERS_ASKED,
    MEMBERS_STARTING,
    MEMBERS_READY,
    MEMBERS_AGREED,
    MEMBERS_MOVING
} members_phase;

typedef struct members_list {
    int n;
    int seat[MEMBERS_MOST]; /* by rank */
} members_list;

/* In shared memory. All zeros: the number of ranks never changes. */
typedef struct members {
    int phase;
    int epoch;                /* changes so far; list[epoch % 2] is the current list */
    int over;                 /* the run has ended; processes that wait to join end, too */
    int wanted;               /* ranks asked for */
    int request;              /* number of the newest request */
    int answering, answered;  /* the requests that rank 0 reads, and has answered */
    int target;               /* rank 0's answer */
    int leaves[MEMBERS_MOST]; /* by seat: 1 the rank asks to leave, 2 the request is counted */
    int ready, moved;         /* processes that have reported themselves so */
    members_list list[2];
} members;

/* The file, as the watching process last saw it, and since when ranks ask to leave. */
typedef struct members_file {
    const char *path; /* "": no file, only signals */
    char text[MEMBERS_TEXT];
    struct timespec changed;
    long leave_ms[MEMBERS_MOST]; /* by seat */
} members_file;

/* Seats 0 to ranks - 1 are the first ranks. */
void members_begin(members *m, int ranks);
members_phase members_get_phase(const members *m);
const members_list *members_current(const members *m);
const members_list *members_next(const members *m);
/* Returns the rank of a seat, or -1. */
int members_rank(const members_list *list, int seat);

/* ---- the watching process ---- */

/* Reads the file and the ranks' requests to leave. Writes a sentence if something is to be printed,
   otherwise "". Returns 1 if all ranks ask to leave. */
int members_poll(members *m, members_file *f, char *sentence, size_t bytes);

/* ASKED: writes the next list. used: 1 for each seat that has a process. Returns the lowest rank
   that joins; the list's n if none does. */
int members_plan(members *m, const int used[MEMBERS_MOST]);
void members_set_starting(members *m);
/* Goes on to the next phase if all processes have reported themselves. Returns 1 if the next list
   became the current one. */
int members_advance(members *m);
/* A process that joins has died. Returns 1 if the change is cancelled, or was before; 0 if it
   cannot be cancelled any more. */
int members_cancel(members *m);
/* So many ranks more can be had; negative: fewer, of those that have not joined. */
void members_offer(members *m, int ranks);
void members_end(members *m); /* the run is over */

/* ---- a rank ---- */

void members_leave(members *m, int seat); /* SIGTERM came; may be called often */

/* Rank 0: returns the number of ranks that is asked for and not answered, or 0. Then answers it. */
int members_wanted(members *m);
void members_answer(members *m, int ranks);
/* Rank 0: AGREED if READY. Returns 1 if so. */
int members_agree(members *m);
void members_start_moving(members *m); /* rank 0 */
void members_report_moved(members *m);

/* ---- a process that joins ---- */

/* Reports itself ready. members_may_join returns 1 if it is a rank now, 0 if it must wait, -1 if
   the run is over. */
void members_report_ready(members *m);
int members_may_join(const members *m);

#ifdef __cplusplus
}
#endif
#endif

/* signals.h - handles SIGINT, SIGTERM and SIGUSR1, which ask a job to stop in order or end it at
   once.

   NO HANDLERS. A library may compute with its stack pointer inside its heap (oneDNN's f32 products
   do), and the frame of a handler would overwrite memory there. So the process blocks the signals
   before it starts a thread or a child, which inherit this. Then one place waits for signals: the
   process that watches a fork, or a thread that does nothing else. Ranks of a fork leave signals
   pending and poll for them.

   THE SECOND SIGNAL ENDS. If a job can stop, the first SIGINT or SIGTERM, and each SIGUSR1, asks it
   to stop. A later SIGINT or SIGTERM ends the job at once, if it comes SIGNALS_AGAIN_MS or more
   after the first. (`timeout` and some launchers send a signal twice, to the process and to its
   group.) If a job cannot stop, the first signal ends it.

   A signal that was ignored when the program started (nohup, a shell's `&`) stays ignored.
*/
#ifndef LAUNCH_SIGNALS_H
#define LAUNCH_SIGNALS_H

#ifdef __cplusplus
extern "C" {
#endif

enum { SIGNALS_AGAIN_MS = 300 };

typedef enum signals_verdict {
    SIGNALS_NONE = 0, /* no signal */
    SIGNALS_STOP,     /* a signal asked the job to stop */
    SIGNALS_AGAIN,    /* the same again */
    SIGNALS_END       /* the job must end */
} signals_verdict;

/* Blocks the signals. Call it before the process starts a thread. stops: the job can stop in order.
 */
void signals_begin(int stops);

/* Restores the handling of signals from the start of the program. */
void signals_release(void);

/* A rank of a fork calls this. The watching process handles SIGINT, and SIGTERM too unless it asks
   the job to stop. leaves: SIGTERM and SIGUSR1 stay pending, because they ask this rank to leave.
 */
void signals_in_rank(int leaves);

/* The watching process calls this before it forks, so that it does not miss the end of a child. */
void signals_expect_children(void);

/* The watching process of a fork calls this. It waits for a signal, or for the end of a child, but
   not longer than the given time. *number is the signal. */
signals_verdict signals_wait(int milliseconds, int *number);

/* All other processes call this. It starts a thread that waits for signals and calls `take` with
   each verdict except SIGNALS_NONE. `take` must end the process on SIGNALS_END. Returns 0 if it
   cannot. */
int signals_watch(void (*take)(void *user, signals_verdict verdict, int number), void *user);
void signals_unwatch(void);

/* Returns the `stops` of signals_begin. */
int signals_stops(void);

/* Returns whether SIGTERM or SIGUSR1 is pending in a rank of a fork. */
int signals_pending(void);

/* Returns whether a signal has asked this process to stop, at any time before. */
int signals_asked(void);

/* Returns "SIGINT" and so on. */
const char *signals_name(int number);

#ifdef __cplusplus
}
#endif
#endif

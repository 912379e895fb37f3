/* signals.h - what SIGINT, SIGTERM and SIGUSR1 ask of a job: to stop in order, or to end at once.

   NO HANDLERS. A library may compute with its stack pointer inside its heap (oneDNN's f32 products
   do), and a handler's frame would overwrite memory there. So the signals are blocked before there
   is a second thread or process, which inherit that, and one place waits for them: the process that
   watches a fork, or a thread that does nothing else. Ranks of a fork leave theirs pending, and
   look.

   THE SECOND ONE ENDS. Where a job can stop, the first SIGINT or SIGTERM asks for it, and so does
   every SIGUSR1. A later SIGINT or SIGTERM ends the job at once, if it comes SIGNALS_AGAIN_MS or
   more after the first: `timeout` and some launchers send theirs twice, to the process and to its
   group. A job that cannot stop is ended by the first.

   A signal that was ignored when the program began (nohup, a shell's `&`) stays ignored.
*/
#ifndef LAUNCH_SIGNALS_H
#define LAUNCH_SIGNALS_H

#ifdef __cplusplus
extern "C" {
#endif

enum { SIGNALS_AGAIN_MS = 300 };

typedef enum signals_verdict {
    SIGNALS_NONE = 0, /* no signal */
    SIGNALS_STOP,     /* the job was asked to stop */
    SIGNALS_AGAIN,    /* it had been asked already */
    SIGNALS_END       /* it has to end */
} signals_verdict;

/* First, before there is a thread. stops: the job can stop in order. */
void signals_begin(int stops);

/* Signals do again what they did when the program began: for whoever leaves them to others. */
void signals_release(void);

/* In a rank of a fork: SIGINT is the watching process's affair, and SIGTERM too unless it asks to
   stop. */
void signals_in_rank(void);

/* The watching process of a fork, before it: the end of a child is not missed. */
void signals_expect_children(void);

/* The watching process of a fork: waits at most so long for a signal, also for the end of a child.
 *number is the signal. */
signals_verdict signals_wait(int milliseconds, int *number);

/* Everybody else: a thread that waits. It calls `take` with each verdict but SIGNALS_NONE, and that
   must end the process on SIGNALS_END. Returns 0 where there is no thread. */
int signals_watch(void (*take)(void *user, signals_verdict verdict, int number), void *user);
void signals_unwatch(void);

/* The job can stop, as signals_begin was told. */
int signals_stops(void);

/* Whether this process was asked to stop. It stays so. */
int signals_asked(void);

/* "SIGINT", ... */
const char *signals_name(int number);

#ifdef __cplusplus
}
#endif
#endif

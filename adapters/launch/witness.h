/* witness.h - which of this machine's processes, that another one has started, is gone.

   mpirun ends all ranks when one is gone, and says no more of it than its number; the other ranks
   know more. Each has a thread that waits for the ends of their processes (Linux: pidfd; elsewhere,
   and on kernels before 5.3, no end is seen). */
#ifndef LAUNCH_WITNESS_H
#define LAUNCH_WITNESS_H

#ifdef __cplusplus
extern "C" {
#endif

/* Watches processes[n], of which 0 is none: the thread calls `gone` for each that ends. Once for
   the calling process. Returns 0 where there is no way to: then only a sentence is missing. */
int witness_watch(int n, const int *processes, void (*gone)(void *user, int which), void *user);

/* The number of a process that is gone; -1: none. In any thread. */
int witness_gone(void);

void witness_unwatch(void);

#ifdef __cplusplus
}
#endif
#endif

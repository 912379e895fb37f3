/* witness.h - processes of this machine that somebody else has started, and watches: which of them
   is gone.

   mpirun ends all ranks when one is gone, and names its number; what else there is to say of it
   only the others know. A thread waits for the ends of their processes (Linux: pidfd; elsewhere,
   and on kernels before 5.3, nobody is ever seen to go). */
#ifndef LAUNCH_WITNESS_H
#define LAUNCH_WITNESS_H

#ifdef __cplusplus
extern "C" {
#endif

/* Watches n processes, of which those that are 0 are nobody: `gone` is called for each that ends,
   by the thread. Once for a process. Returns 0 where this cannot be; it is no loss but of a
   sentence. */
int witness_watch(int n, const int *processes, void (*gone)(void *user, int which), void *user);

/* One that is gone; -1: none. In any thread. */
int witness_gone(void);

void witness_unwatch(void);

#ifdef __cplusplus
}
#endif
#endif

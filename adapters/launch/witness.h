/* witness.h - detects the death of a process on this machine that another process has started.

   mpirun ends all ranks when one dies, and prints only its number. The other ranks can print more.
   Each has a thread that waits for the ends of their processes. On Linux this uses pidfd; on other
   systems, and before Linux 5.3, no death is detected.
*/
#ifndef LAUNCH_WITNESS_H
#define LAUNCH_WITNESS_H

#ifdef __cplusplus
extern "C" {
#endif

/* Watches processes[n]; 0 is not a process. A thread calls `gone` for each that ends. A process
   calls this once. Returns 0 if the system cannot watch; then only the sentence about the death is
   missing. */
int witness_watch(int n, const int *processes, void (*gone)(void *user, int which), void *user);

/* Returns the number of a process that has ended, or -1. Any thread may call it. */
int witness_gone(void);

void witness_unwatch(void);

#ifdef __cplusplus
}
#endif
#endif

/* emulation.h - what a test sets and asks of the emulated CUDA (cuda_runtime.h) and NCCL. */
#ifndef EMULATION_H
#define EMULATION_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- order --------------------------------------------------------------------------------- */

/* 0, as at the start: whatever can run runs at once, in the order in which it was enqueued.
   Otherwise every launch, copy, host function and part of a collective runs at a moment that the
   seed chooses, in any order that streams and events allow. Between runs only. */
void emulation_seed(uint64_t seed);

/* The order in which the threads of a block start: 0 ascending, else one that the seed chooses;
   what follows a barrier is then in any order too, or with even seeds a warp runs ahead of the
   others. */
void emulation_thread_order(uint64_t seed);

/* Between these two a host thread runs only when it is its turn, and gives the turn away inside
   calls that wait (and, with a seed, inside others too): one seed, one run. `nthreads`: how many
   threads will enter; none goes on before all are there. */
void emulation_enter(int rank, int nthreads);
void emulation_leave(void);

/* For code that waits by itself: compile it with -Dsyscall=emulated_syscall (futex waits give the
   turn away) and -Dnanosleep=emulated_nanosleep (threads without turns sleep for an eighth of it).
 */
long emulated_syscall(long number, ...) __THROW;
int emulated_nanosleep(const struct timespec *wanted, struct timespec *left);
/* The same for waits on a condition: -Dpthread_cond_wait=emulated_cond_wait. A host function that
   waits for what the device has still to do is a finding. */
int emulated_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex);

/* ---- devices ------------------------------------------------------------------------------- */

void emulation_devices(int count, int peer_access); /* default: 1, 1 */

/* All devices together have this many bytes of device memory; 0, the default: as many as the
   environment's EMULATION_MEMORY, or 64 GiB. cudaMalloc fails if less is left. */
void emulation_memory(size_t bytes);

/* Device memory is inaccessible to the host after every `every`-th call of CUDA (0, the default:
   never, because tests read it and hiding it takes time; 1: after all). A host that touches it then
   gets SIGSEGV, and a line says so. The environment's EMULATION_HIDE is `every` of other programs.
 */
void emulation_hide(int every);

/* 0: cudaFree does not wait for the device's work; default 1. */
void emulation_free_waits(int waits);

/* From now on nothing of this cudaStream_t runs, as behind a kernel that does not end. */
void emulation_stall(void *stream);

/* ---- faults -------------------------------------------------------------------------------- */

typedef enum emulation_call {
    EMULATION_ANY = 0,    /* every runtime call that returns an error code */
    EMULATION_ALLOCATION, /* pinning is one */
    EMULATION_NCCL,       /* every NCCL call */
    EMULATION_DEATH       /* as ANY; and so does every later call: the device is lost */
} emulation_call;

/* The k-th call from now on (1: the next) of that sort fails, once. 0: none. */
void emulation_fail(emulation_call sort, uint64_t k);
/* Calls of that sort since emulation_fail or the start. */
uint64_t emulation_calls(emulation_call sort);
/* How often an injected failure happened since the start. */
uint64_t emulation_failures(void);

/* ---- mutations ----------------------------------------------------------------------------- */

typedef enum emulation_site_kind {
    EMULATION_RECORD = 0,
    EMULATION_WAIT,     /* of a stream */
    EMULATION_HOST_WAIT /* of the host, for an event or a stream */
} emulation_site_kind;

/* Takes note of every place that records or waits: of the address that the function which called
   CUDA returns to. The code in question is compiled with -fno-inline -fno-omit-frame-pointer
   -fno-optimize-sibling-calls. Turning it on forgets what was noted. */
void emulation_watch_sites(int on);
int emulation_sites(void **list, emulation_site_kind *kinds, int most);
/* Calls from this place do nothing from now on. NULL: all do. A stream that the host should have
   waited for goes on as late as it can then. */
void emulation_leave_out(void *site);

/* ---- NCCL ---------------------------------------------------------------------------------- */

void emulation_nccl_version(int code);       /* what ncclGetVersion says; default: the header's */
void emulation_nccl_lacks(const char *name); /* a function that emulated_dlsym does not find */
/* compile with -Ddlsym=emulated_dlsym */
void *emulated_dlsym(void *handle, const char *name) __THROW;
void emulation_nccl_windows(int works); /* 0: registering succeeds without a window; default 1 */
/* The k-th collective, or group of messages (1: the next), that this rank begins never ends, and
   ncclCommGetAsyncError of that communicator says `result` from then on. 0: none. Ranks are those
   of the first communicator, whichever part of it is at work. */
void emulation_nccl_break(int rank, uint64_t k, int result);
/* The k-th of them that this rank issues is lost on the way: the rank never comes to it. */
void emulation_nccl_miss(int rank, uint64_t k);
/* The next ncclGroupStart of this thread calls it. */
void emulation_nccl_begun(void (*once)(void));
size_t emulation_nccl_live(void); /* communicators that nobody has destroyed or aborted */

/* ---- NVTX ---------------------------------------------------------------------------------- */

/* Ranges that were begun since emulation_reset. *open: that have not ended; -1: one ended that its
   thread had not begun. */
uint64_t emulation_ranges(int *open);

/* ---- what was found ------------------------------------------------------------------------ */

/* The first thing that is wrong whatever the results are: a copy from freed memory, an input that
   changes under a collective, a deadlock. NULL: nothing. Stays until emulation_reset. */
const char *emulation_found(void);

/* Allocations, streams and events that nobody has freed. */
size_t emulation_live(void);
size_t emulation_live_bytes(void); /* of device memory */
/* Copies with memory of the host that is not pinned: on a GPU the host waits for them. */
uint64_t emulation_pageable(void);

/* Forgets streams, memory and findings of the last run; nothing of it may be used any more. */
void emulation_reset(void);

/* How long all may wait for each other before that is called a deadlock; default 20 s. */
void emulation_patience(double seconds);

#ifdef __cplusplus
}
#endif
#endif

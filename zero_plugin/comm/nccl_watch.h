/* nccl_watch.h - the thread that watches NCCL: time limit, errors, abort of both communicators

   A wait for a stream has no time limit, so each group has a thread that watches its communicators.
   After each list of collectives the stream raises a counter that the CPU can read. A list that
   takes longer than timeout_s, or an error that NCCL reports, is a failure. Then the thread aborts
   both communicators, which ends the kernels that wait in them, and every later call returns the
   failure. A lock is held during NCCL's calls and during an abort. Only if a call has not returned
   within timeout_s does the thread abort without the lock, because nothing else ends that call.

   NCCL does not report why a rank has failed. So the ranks of one machine share a board, on which
   the first failed rank writes its error. The watching threads of the other ranks read it there and
   abort with the same message. Ranks of other machines get a closed connection, or a time-out. */
#pragma once

#include "local.h"

#ifdef ZERO_WITH_NCCL
#include <nccl.h>

#define ZP_SENT ((size_t)256) /* most lists in flight; then the caller waits for the oldest */

typedef struct zp_sent { /* a list that was issued */
    zp_call call;        /* its first collective */
    double since;
} zp_sent;

typedef struct zp_nccl_channel {
    ncclComm_t comm;
    zp_event last;         /* recorded after the newest list */
    cudaStream_t stream;   /* of the newest list */
    uint64_t issued, seen; /* lists issued; lists that the watching thread has seen end */
    double moved;          /* when it last saw a list end, in seconds */
    zp_sent sent[ZP_SENT]; /* list i at i % ZP_SENT */
} zp_nccl_channel;

typedef struct zp_nccl {
    zp_local_ranks ranks; /* first: zp_board_ranks_of. The ranks whose memory this one sees */
    zp_nccl_channel channel[ZP_CONTROL];
    int channels;             /* open ones; a zero_group has one */
    volatile uint64_t *ended; /* [ZP_CONTROL] lists that have ended; their streams raise it */
    int version, ordered;     /* ordered: NCCL itself keeps the order of the calling thread */
    int joins;                /* no thread watches yet: a waiting thread checks the time limit */
    int aborted;              /* both communicators are */
    int splits;  /* 1: a split has not ended, and NCCL may still write channel[].comm */
    double held; /* since when the watching thread has found the lock taken; 0: it is free */
    pthread_mutex_t lock;
    pthread_t thread; /* that watches, if `watched` */
    int watched, ends;
    char *scratch, *pinned; /* buffers of exchanges and broadcasts, on the device and in CPU memory;
                               `ended` follows in the latter */
} zp_nccl;
static zp_nccl *zp_nccl_watch_of(const zp_comm *g) { return (zp_nccl *)g->own; }

typedef struct zp_nccl_watch_tick_args {
    volatile uint64_t *counter;
    uint64_t value;
} zp_nccl_watch_tick_args;
ZP_FN void zp_nccl_watch_tick_at(const zp_nccl_watch_tick_args *a, size_t one) {
    *a->counter = a->value;
}
ZP_KERNEL(zp_nccl_watch_tick, zp_nccl_watch_tick_args, 1)

static zero_result zp_nccl_watch_fail(zp_comm *g, ncclComm_t comm, ncclResult_t r,
                                      const char *call) {
    const char *more = comm ? ncclGetLastError(comm) : NULL;
    return zp_comm_fail(g, ZERO_ERR_COMM, "%s: %s%s%s", call, ncclGetErrorString(r),
                        more && *more ? ": " : "", more ? more : "");
}

static zero_result zp_nccl_watch_report_timeout(zp_comm *g, const char *call) {
    return zp_comm_fail(g, ZERO_ERR_TIMEOUT,
                        "%s was not over within %g s: another rank did not come, or hangs", call,
                        g->timeout_s);
}

/* Checks one channel for errors and late lists. The lock is held. */
static zero_result zp_nccl_watch_check_channel(zp_comm *g, int ch) {
    zp_nccl *n = zp_nccl_watch_of(g);
    zp_nccl_channel *c = &n->channel[ch];
    const uint64_t ended = n->ended[ch];
    const int waits = ended < c->issued;
    const zp_sent none = {{0, -1, 0}, 0}, sent = waits ? c->sent[ended % ZP_SENT] : none;
    char name[96];
    (void)zp_comm_print_call(&sent.call, name, sizeof name);
    ncclResult_t state = ncclSuccess;
    if (ended != c->seen) c->moved = zp_seconds();
    c->seen = ended;
    const cudaError_t e = waits ? cudaEventQuery(c->last.cuda) : cudaSuccess;
    if (e == cudaErrorNotReady) (void)cudaGetLastError(); /* this is no error */
    if (e != cudaSuccess && e != cudaErrorNotReady)
        return zp_comm_fail(g, ZERO_ERR_DEVICE, "at %s: %s", name, cudaGetErrorString(e));
    const ncclResult_t r = ncclCommGetAsyncError(c->comm, &state);
    if (r != ncclSuccess || (state != ncclSuccess && state != ncclInProgress))
        return zp_comm_fail(g, ZERO_ERR_COMM, "NCCL, at %s: %s (%s)", name,
                            ncclGetErrorString(r ? r : state), ncclGetLastError(c->comm));
    const double since = sent.since > c->moved ? sent.since : c->moved;
    return !waits || zp_seconds() - since <= g->timeout_s ? ZERO_OK
                                                          : zp_nccl_watch_report_timeout(g, name);
}

/* Reports the failure on the board and aborts both communicators, which ends their kernels. The
   lock is held, or its holder does not return from NCCL. */
static void zp_nccl_watch_abort_both(zp_comm *g) {
    zp_nccl *n = zp_nccl_watch_of(g);
    zp_board_abort_local(g, g->failure->text);
    n->aborted = 1;
    for (int ch = 0; ch < n->channels; ch++)
        if (n->channel[ch].comm) (void)ncclCommAbort(n->channel[ch].comm);
}

static void zp_nccl_watch_look(zp_comm *g) {
    zp_nccl *n = zp_nccl_watch_of(g);
    if (!n || !n->ended || __atomic_load_n(&n->aborted, __ATOMIC_ACQUIRE)) return;
    if (pthread_mutex_trylock(&n->lock)) {
        if (n->held == 0) n->held = zp_seconds();
        if (zp_seconds() - n->held <= g->timeout_s) return;
        (void)zp_comm_fail(g, ZERO_ERR_TIMEOUT, "a call of NCCL did not return within %g s",
                           g->timeout_s);
        /* otherwise another thread is recording a failure, and the next check aborts */
        if (zp_failure_result(g->failure)) zp_nccl_watch_abort_both(g);
        return;
    }
    n->held = 0;
    (void)zp_board_check_abort(g);
    for (int ch = 0; ch < n->channels && !zp_failure_result(g->failure); ch++)
        (void)zp_nccl_watch_check_channel(g, ch);
    if (zp_failure_result(g->failure)) zp_nccl_watch_abort_both(g);
    pthread_mutex_unlock(&n->lock);
}

static void *zp_nccl_watch_run(void *group) {
    zp_comm *g = (zp_comm *)group;
    zp_nccl *n = zp_nccl_watch_of(g);
    (void)cudaSetDevice(g->device->number);
    while (!__atomic_load_n(&n->ends, __ATOMIC_ACQUIRE)) {
        zp_nap_for(5e-3);
        zp_nccl_watch_look(g);
    }
    return NULL;
}
/* Starts and ends the thread. */
static zero_result zp_nccl_watch_begin(zp_comm *g) {
    zp_nccl *n = zp_nccl_watch_of(g);
    n->watched = !pthread_create(&n->thread, NULL, zp_nccl_watch_run, g);
    return n->watched ? ZERO_OK : zp_comm_fail(g, ZERO_ERR_MEMORY, "the thread that watches NCCL");
}
static void zp_nccl_watch_end(zp_nccl *n) {
    __atomic_store_n(&n->ends, 1, __ATOMIC_RELEASE);
    if (n->watched) (void)pthread_join(n->thread, NULL);
}

/* The watching thread aborts the communicators. During the join there is no such thread, so this
   function aborts: closing other groups waits for the same stream as the unfinished exchange. */
static void zp_nccl_watch_abort(zp_comm *g, const char *why) {
    zp_nccl *n = zp_nccl_watch_of(g);
    zp_board_abort_local(g, why);
    (void)zp_comm_fail(g, ZERO_ERR_PEER, "%s", why);
    if (n->joins && !n->aborted) zp_nccl_watch_abort_both(g);
}

/* Waits until a non-blocking call of NCCL has ended on the CPU. Most calls end at once, so this
   polls without naps at first, then with naps. */
static zero_result zp_nccl_watch_wait_call(zp_comm *g, ncclComm_t comm, ncclResult_t r,
                                           const char *call) {
    zp_nccl *n = zp_nccl_watch_of(g);
    const double begin = zp_seconds();
    while (r == ncclInProgress) {
        const double waited = zp_seconds() - begin;
        if (waited > 1e-4) zp_nap();
        ZP_TRY(zp_failure_result(g->failure));
        ZP_TRY(zp_board_check_abort(g));
        if (waited > g->timeout_s) return zp_nccl_watch_report_timeout(g, call);
        pthread_mutex_lock(&n->lock);
        const ncclResult_t asked = n->aborted ? ncclSystemError : ncclCommGetAsyncError(comm, &r);
        if (asked != ncclSuccess) r = asked;
        pthread_mutex_unlock(&n->lock);
    }
    ZP_TRY(zp_failure_result(g->failure));
    return r == ncclSuccess ? ZERO_OK : zp_nccl_watch_fail(g, n->aborted ? NULL : comm, r, call);
}

#endif

/* test_start_cuda.cu - zero_start_local on GPUs: the ranks are processes, each with the GPU of its
   number, connected by NCCL. The emulation's NCCL does not reach other processes. There, each rank
   writes the id that it was given into shared memory, and then is the only rank of a communicator
   of its own. */
#include <cuda_runtime.h>
#include <nccl.h>
#include <signal.h>
#include <sys/mman.h>

#ifdef EMULATED_LAUNCH
static ncclResult_t start_init(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank,
                               ncclConfig_t *config);
#define ncclCommInitRankConfig start_init
#endif
#include "../shared/harness.h"
#include CUDA_SOURCE
#ifdef EMULATED_LAUNCH
#undef ncclCommInitRankConfig
#include "../emulation/emulation.h"
#else
static void emulation_devices(int count, int peers) { (void)count, (void)peers; }
#endif

typedef enum start_fault { START_WORKS, START_FAILS, START_DIES } start_fault;

enum { START_RANKS = 4 };
typedef struct start_rank {
    int created, rank, nranks, device;
    double sum, seconds;
    ncclUniqueId id;
    char log[512]; /* its last error */
} start_rank;
static struct start_shared {
    start_fault fault; /* of rank 1 */
    start_rank rank[START_RANKS];
    char log[512]; /* last error of the process that waits for the ranks */
} * start_seen;
static int start_me = -1;

static void start_log(void *user, zero_log_level level, const char *text) {
    char *log = start_me < 0 ? start_seen->log : start_seen->rank[start_me].log;
    (void)user;
    if (level == ZERO_LOG_ERROR) (void)snprintf(log, sizeof start_seen->log, "%s", text);
}

#ifdef EMULATED_LAUNCH
static ncclResult_t start_init(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank,
                               ncclConfig_t *config) {
    start_me = rank;
    start_seen->rank[rank].id = id;
    start_seen->rank[rank].nranks = nranks;
    if (rank == 1 && start_seen->fault == START_DIES) (void)raise(SIGKILL);
    if (rank == 1 && start_seen->fault == START_FAILS) return ncclSystemError;
    const int waits = start_seen->fault != START_WORKS; /* for rank 1, which does not come */
    return ncclCommInitRankConfig(comm, waits ? nranks : 1, id, waits ? rank : 0, config);
}
#endif

/* The main of a program: starts ranks, and returns its exit code. */
static int start_main(int nranks) {
    zero_config cfg;
    zero_ctx *z;
    memset(&cfg, 0, sizeof cfg);
    cfg.log = start_log;
    cfg.timeout_s = 60;
    const double begin = zp_seconds();
    const int ended = zero_start_local(&z, &cfg, nranks);
    if (start_me >= 0) start_seen->rank[start_me].seconds = zp_seconds() - begin;
    if (ended >= 0) return ended;
    int device = -1;
    (void)cudaGetDevice(&device);
#ifdef EMULATED_LAUNCH
    const int rank = start_me; /* the context is of one rank */
#else
    const int rank = zero_rank(z);
    start_seen->rank[rank].nranks = zero_nranks(z);
#endif
    start_rank *me = &start_seen->rank[rank];
    me->created = 1;
    me->rank = rank;
    me->device = device;
    me->sum = 1 + rank;
    const zero_result r = zero_all_sum(z, &me->sum, 1);
    zero_destroy(z);
    return (int)r;
}

/* Runs start_main in a process of its own. Returns its exit code. */
static int start_run(int nranks, start_fault fault) {
    memset(start_seen, 0, sizeof *start_seen);
    start_seen->fault = fault;
    int status = -1;
    const pid_t process = fork();
    if (!process) {
        (void)alarm(60);
        emulation_devices(nranks, 0);
        _exit(start_main(nranks));
    }
    (void)waitpid(process, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void start_works(int n) {
    const int code = start_run(n, START_WORKS);
    test_check(code == 0, "%d ranks end with %d: %s %s", n, code, start_seen->log,
               start_seen->rank[0].log);
    for (int r = 0; r < n; r++) {
        const start_rank *x = &start_seen->rank[r];
        test_check(x->created && x->rank == r && x->nranks == n && x->device == r,
                   "rank %d of %d: created %d, number %d of %d, on device %d", r, n, x->created,
                   x->rank, x->nranks, x->device);
#ifdef EMULATED_LAUNCH
        test_check(x->id.internal[0] && !memcmp(&x->id, &start_seen->rank[0].id, sizeof x->id),
                   "rank %d has the id of rank 0", r);
#else
        test_check(x->sum == n * (n + 1) / 2, "rank %d sums all ranks: %g", r, x->sum);
#endif
    }
}

#ifdef EMULATED_LAUNCH
static void start_faults(void) {
    const start_rank *peer = &start_seen->rank[0];
    int code = start_run(2, START_FAILS);
    /* the waiting process may see the end of the peer first */
    test_check((code == ZERO_ERR_COMM || code == ZERO_ERR_PEER)
                   && strstr(start_seen->rank[1].log, "ncclCommInitRankConfig"),
               "rank 1 cannot connect: %d, %s", code, start_seen->rank[1].log);
    test_check(strstr(peer->log, "rank 1 failed: ncclCommInitRankConfig") && peer->seconds < 20,
               "its peer, after %g s: %s", peer->seconds, peer->log);
    code = start_run(2, START_DIES);
    test_check(code == 128 + SIGKILL && strstr(start_seen->log, "rank 1 was ended by signal 9"),
               "rank 1 is killed: %d, %s", code, start_seen->log);
    test_check(strstr(peer->log, "rank 1 was ended by signal 9") && peer->seconds < 20,
               "its peer, after %g s: %s", peer->seconds, peer->log);
}
static int start_devices(void) { return START_RANKS; }
#else
static void start_faults(void) {}
/* Asks in another process, because a process that has used CUDA cannot be forked. */
static int start_devices(void) {
    int status = 0;
    const pid_t process = fork();
    if (!process) {
        int n = 0;
        (void)cudaGetDeviceCount(&n);
        _exit(n < START_RANKS ? n : START_RANKS);
    }
    (void)waitpid(process, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}
#endif

int main(void) {
    start_seen = (struct start_shared *)mmap(NULL, sizeof *start_seen, PROT_READ | PROT_WRITE,
                                             MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const int devices = start_devices();
    for (int n = 2; n <= devices; n++) start_works(n);
    start_faults();
    if (devices < 2) test_check(start_run(1, START_WORKS) == 0, "one rank: %s", start_seen->log);
    return test_summary();
}

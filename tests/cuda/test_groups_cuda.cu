/* test_groups_cuda.cu - groups of ranks on GPUs: ranks are threads, over LOCAL on one GPU or
   several, and over NCCL, one rank on each; every collective against plain loops (groups.h). Sums
   of numbers that are exact in any order, since NCCL has its own. */
#include <cuda_runtime.h>
#include <malloc.h>
#ifdef ZERO_WITH_NCCL
#include <nccl.h>
#endif

static void *cuda_new(size_t bytes);
#define GROUPS_NEW(bytes) cuda_new(bytes)
#define GROUPS_FREE(p)    (void)cudaFree(p)
/* A copy from pageable memory may still run when it returns, and streams do not wait for it. */
#define GROUPS_PUT(to, from, bytes)                                                                \
    (void)(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), cudaDeviceSynchronize())
#define GROUPS_GET(to, from, bytes)                                                                \
    (void)(cudaDeviceSynchronize(), cudaMemcpy(to, from, bytes, cudaMemcpyDefault))
#define GROUPS_EXACT 0
#include "../shared/groups.h"
#include CUDA_SOURCE

#ifdef EMULATED_LAUNCH
#include "../emulation/emulation.h"
#else /* a GPU decides by itself */
static void emulation_enter(int rank, int nthreads) { (void)rank, (void)nthreads; }
static void emulation_leave(void) {}
static void emulation_reset(void) {}
static void emulation_seed(uint64_t seed) { (void)seed; }
static void emulation_devices(int count, int peers) { (void)count, (void)peers; }
static const char *emulation_found(void) { return NULL; }
#endif

static void *cuda_new(size_t bytes) {
    void *p = NULL;
    if (cudaMalloc(&p, bytes)) abort();
    return p;
}

/* What a context tells of groups: on each lane in order, how the group was made first. */
typedef struct cuda_told {
    int n, opened, wrong;
    double last[ZERO_TRACK_GROUPS];
} cuda_told;
static void cuda_tell(void *user, const zero_event *events, int n) {
    cuda_told *t = (cuda_told *)user;
    for (int i = 0; i < n; i++) {
        const zero_event *e = &events[i];
        if (e->kind == ZERO_EVENT_LOST || e->track < ZERO_TRACK_GROUP) {
            t->wrong += e->kind == ZERO_EVENT_LOST;
            continue;
        }
        t->wrong += e->end < e->begin || e->begin < t->last[e->track]
                    || (e->ranks < 1 && e->kind != ZERO_EVENT_WAIT)
                    || (e->kind == ZERO_EVENT_OPEN) != (t->last[e->track] == 0);
        t->last[e->track] = e->begin;
        t->opened += e->kind == ZERO_EVENT_OPEN;
        t->n++;
    }
}
/* A context of this rank alone, that records. */
static zero_result cuda_recorder(zero_ctx **z, cuda_told *told, cudaStream_t stream) {
    zero_tensor_desc one = {};
    one.name = "one";
    one.numel = 100;
    const zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
    zero_config cfg;
    memset(&cfg, 0, sizeof cfg);
    cfg.stream = stream;
    cfg.trace = cuda_tell;
    cfg.trace_user = told;
    ZERO_TRY(zero_create(z, &cfg, &self));
    ZERO_TRY(zero_tensor(*z, &one));
    return zero_build(*z);
}

#ifdef ZERO_WITH_NCCL
typedef ncclUniqueId cuda_nccl_id;
typedef ncclComm_t cuda_nccl;
static cuda_nccl_id cuda_nccl_name(void) {
    cuda_nccl_id id;
    if (ncclGetUniqueId(&id)) abort();
    return id;
}
static int cuda_nccl_join(cuda_nccl *given, const test_rank *r, cuda_nccl_id id) {
    return ncclCommInitRank(given, r->nranks, id, r->rank) == ncclSuccess;
}
static void cuda_nccl_leave(cuda_nccl given) { (void)ncclCommDestroy(given); }
#else /* the test has LOCAL groups alone */
typedef int cuda_nccl_id;
typedef void *cuda_nccl;
static cuda_nccl_id cuda_nccl_name(void) { return 0; }
static int cuda_nccl_join(cuda_nccl *given, const test_rank *r, cuda_nccl_id id) {
    (void)given, (void)r, (void)id;
    return 0;
}
static void cuda_nccl_leave(cuda_nccl given) { (void)given; }
#endif

typedef struct cuda_groups {
    int nccl, sizes, devices;
    int records; /* 1: a context records the events of the groups */
    cuda_nccl_id id;
} cuda_groups;

/* All ranks, two parts, and one of nobody. */
static void cuda_groups_rank(test_rank *r) {
    const cuda_groups *run = (const cuda_groups *)r->arg;
    zero_comm comm = test_comm(r);
    cuda_nccl given = NULL;
    zero_group *all = NULL, *part = NULL, *none = NULL;
    groups_case c;
    cuda_told told;
    zero_ctx *z = NULL;
    zero_stats stats;
    cudaStream_t stream = NULL;
    memset(&told, 0, sizeof told);
    emulation_enter(r->rank, r->nranks);
    (void)cudaSetDevice(r->rank % run->devices);
    (void)cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (run->nccl) {
        if (!cuda_nccl_join(&given, r, run->id)) test_rank_fail(r, "NCCL does not start");
        const zero_comm nccl = {ZERO_COMM_NCCL, 0, &given, 0};
        comm = nccl;
    }
    if (!r->failed && zero_group_open(&all, &comm, stream, 60))
        test_rank_fail(r, "opens: %s", zero_group_error(all));
    if (!r->failed && run->records
        && (cuda_recorder(&z, &told, stream) || zero_group_trace(all, z, 0)))
        test_rank_fail(r, "records: %s %s", zero_last_error(z), zero_group_error(all));
    if (!r->failed && !groups_all(&c, all, run->sizes)) test_rank_fail(r, "%s", c.why);
    if (!r->failed && zero_group_split(all, r->rank % 2, -r->rank, &part))
        test_rank_fail(r, "splits: %s", zero_group_error(all));
    if (!r->failed && z && zero_group_trace(part, z, 7)) test_rank_fail(r, "%s", "records a part");
    if (!r->failed && !groups_all(&c, part, 3)) test_rank_fail(r, "a part: %s", c.why);
    if (!r->failed && (zero_group_split(all, -1, 0, &none) || none))
        test_rank_fail(r, "nobody: %s", zero_group_error(all));
    (void)cudaDeviceSynchronize();
    if (!r->failed && z && zero_query_stats(z, &stats)) test_rank_fail(r, "%s", zero_last_error(z));
    if (!r->failed && z && (told.wrong || told.opened != 2 || told.n < 26))
        test_rank_fail(r, "%d of %d events are wrong, %d groups were opened", told.wrong, told.n,
                       told.opened);
    zero_destroy(z);
    zero_group_close(part);
    zero_group_close(all);
    if (given) cuda_nccl_leave(given);
    (void)cudaStreamDestroy(stream);
    emulation_leave();
}

static void cuda_groups_go(int nccl, int n, int devices, uint64_t seed) {
    cuda_groups run = {nccl, seed ? 3 : 6, devices, (int)(seed & 1), cuda_nccl_id()};
    emulation_reset();
    emulation_devices(devices, 1);
    emulation_seed(seed);
    if (nccl) run.id = cuda_nccl_name();
    const int ok = test_ranks(n, 0, cuda_groups_rank, &run);
    const char *found = emulation_found();
    test_check(ok && !found, "%s, %d ranks on %d devices, seed %d: %s%s", nccl ? "NCCL" : "LOCAL",
               n, devices, (int)seed, test_first, found ? found : "");
}

#ifdef EMULATED_LAUNCH
/* Each rank fails to join two communicators, whose first splits are under way at the same
   time: the ranks begin them in different orders. NCCL writes the result of a split when it ends,
   so each needs memory of its own. */
typedef struct cuda_refusals {
    cuda_nccl_id id[2];
} cuda_refusals;
static int cuda_nccl_ends(ncclComm_t comm) {
    ncclResult_t state = ncclInProgress;
    for (int i = 0; i < 100000 && state == ncclInProgress; i++)
        if (ncclCommGetAsyncError(comm, &state)) return 0;
    return state == ncclSuccess;
}
static void cuda_refusals_rank(test_rank *r) {
    cuda_refusals *run = (cuda_refusals *)r->arg;
    ncclComm_t given[2] = {NULL, NULL};
    emulation_enter(r->rank, r->nranks);
    (void)cudaSetDevice(r->rank);
    for (int i = 0; i < 2 && !r->failed; i++) {
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = 0;
        (void)ncclCommInitRankConfig(&given[i], r->nranks, run->id[i], r->rank, &config);
        if (!cuda_nccl_ends(given[i])) test_rank_fail(r, "%s", "NCCL does not start");
    }
    for (int i = 0; i < 2 && !r->failed; i++) {
        const int at = r->rank ? 1 - i : i;
        const zero_comm comm = {ZERO_COMM_NCCL, 0, &given[at], r->nranks + 1};
        zero_config cfg;
        zero_ctx *z = NULL;
        memset(&cfg, 0, sizeof cfg);
        if (zero_create(&z, &cfg, &comm) != ZERO_ERR_ARGUMENT)
            test_rank_fail(r, "a wrong node_size: %s", zero_last_error(z));
        zero_destroy(z);
    }
    for (int i = 0; i < 2 && !r->failed; i++)
        if (!cuda_nccl_ends(given[i])) test_rank_fail(r, "%s", "a split does not end");
    for (int i = 0; i < 2; i++)
        if (given[i]) cuda_nccl_leave(given[i]);
    emulation_leave();
}
static void cuda_refusals_go(uint64_t seed) {
    cuda_refusals run;
    emulation_reset();
    emulation_devices(2, 1);
    emulation_seed(seed);
    run.id[0] = cuda_nccl_name();
    run.id[1] = cuda_nccl_name();
    const int ok = test_ranks(2, 0, cuda_refusals_rank, &run);
    const char *found = emulation_found();
    test_check(ok && !found, "two contexts of a rank that cannot join, seed %d: %s%s", (int)seed,
               test_first, found ? found : "");
}

/* Rank 1 comes to the split only after rank 0 has waited in vain and destroyed its context. NCCL
   then ends rank 0's split, and writes its result to memory that must still be there. Freed memory
   is filled, so that the emulation finds such a write. */
typedef struct cuda_late {
    cuda_nccl_id id;
    volatile int destroyed;
} cuda_late;
static void cuda_late_wait_alone(test_rank *r, ncclComm_t *given) {
    const zero_comm comm = {ZERO_COMM_NCCL, 0, given, 0};
    zero_config cfg;
    zero_ctx *z = NULL;
    memset(&cfg, 0, sizeof cfg);
    cfg.timeout_s = 0.05;
    if (zero_create(&z, &cfg, &comm) != ZERO_ERR_TIMEOUT)
        test_rank_fail(r, "a rank that waits alone: %s", zero_last_error(z));
    zero_destroy(z);
}
static void cuda_late_rank(test_rank *r) {
    cuda_late *run = (cuda_late *)r->arg;
    ncclComm_t given = NULL, child = NULL;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    emulation_enter(r->rank, r->nranks);
    (void)cudaSetDevice(r->rank);
    config.blocking = 0;
    (void)ncclCommInitRankConfig(&given, r->nranks, run->id, r->rank, &config);
    if (!cuda_nccl_ends(given)) test_rank_fail(r, "%s", "NCCL does not start");
    if (!r->rank) {
        cuda_late_wait_alone(r, &given);
        run->destroyed = 1;
    } else {
        const struct timespec nap = {0, 100000};
        while (!run->destroyed) (void)nanosleep(&nap, NULL);
        (void)ncclCommSplit(given, 0, r->rank, &child, &config);
    }
    if (!cuda_nccl_ends(given)) test_rank_fail(r, "%s", "the split does not end");
    if (child) (void)ncclCommAbort(child);
    cuda_nccl_leave(given);
    emulation_leave();
}
static void cuda_late_go(uint64_t seed) {
    cuda_late run;
    emulation_reset();
    emulation_devices(2, 1);
    emulation_seed(seed);
    run.id = cuda_nccl_name();
    run.destroyed = 0;
    (void)mallopt(M_PERTURB, 0x5A);
    const int ok = test_ranks(2, 0, cuda_late_rank, &run);
    (void)mallopt(M_PERTURB, 0);
    const char *found = emulation_found();
    test_check(ok && !found, "a split that ends after its context, seed %d: %s%s", (int)seed,
               test_first, found ? found : "");
}
#endif

int main(void) {
    int devices = 1, seeds = 0;
#ifdef ZERO_WITH_NCCL
    const int nccl = 1;
#else
    const int nccl = 0;
#endif
    (void)alarm(240);
    (void)cudaGetDeviceCount(&devices);
#ifdef EMULATED_LAUNCH
    devices = 4;
    seeds = 6;
#endif
    for (int seed = 0; seed <= seeds; seed++)
        for (int n = 1; n <= 4; n++) {
            cuda_groups_go(0, n, 1, (uint64_t)seed);
            if (devices >= n) cuda_groups_go(0, n, n, (uint64_t)seed);
            if (nccl && devices >= n) cuda_groups_go(1, n, n, (uint64_t)seed);
        }
#ifdef EMULATED_LAUNCH
    for (int seed = 0; seed <= seeds; seed++) cuda_refusals_go((uint64_t)seed);
    for (int seed = 0; seed <= seeds; seed++) cuda_late_go((uint64_t)seed);
#endif
    return test_summary();
}

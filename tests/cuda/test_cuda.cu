/* test_cuda.cu - the plugin's CUDA version in any order that streams and events allow.

   BUILD, against the emulation (no GPU): see tests/emulation/cuda_runtime.h for FLAGS
     g++ FLAGS -DZERO_WITH_NCCL -Dsyscall=emulated_syscall -Dnanosleep=emulated_nanosleep
         -Ddlsym=emulated_dlsym -fno-inline -fno-omit-frame-pointer -fno-optimize-sibling-calls
         -ffp-contract=off -x c++ -include cuda_runtime.h tests/cuda/test_cuda.cu
         -x none emulation.o emulation_nccl.o -rdynamic
   On a GPU (ranks are threads on the card; seeds and faults are left out):
     nvcc -DZP_CUDA_MALLOC=cudaMallocManaged -std=c++17 -fmad=false tests/cuda/test_cuda.cu
   RUN
     test_cuda [loops | seeds PERCENT FIRST_SEED [EVERY] | drawn CASES FIRST_SEED | recording
               | mutants SEEDS [FUNCTION [CASE]] | faults RUNS | disk RUNS
               | case NAME FIRST_SEED SEEDS]
   EVERY 2 runs every second case; FIRST_SEED chooses which.

   The host of tests/shared/host.h computes in functions on its stream: they look at parameters
   twice, between a unit's begin and end, and add half of a gradient each. A case is run at once,
   where weights, moments and all that was looked at must be the unsharded reference's; then in an
   order that a seed chooses, where all must have the same bits. Cases that save train twice more:
   the state is copied before the last step, put back behind it, and put into a new context. */
#include "../shared/harness.h"

static zero_comm cuda_comm(const test_rank *r);
static void cuda_log(void *user, zero_log_level level, const char *sentence);
static void cuda_cut(zero_tensor_desc *d);
#define test_comm  cuda_comm
#define test_quiet cuda_log
#define host_cut   cuda_cut
#include "../shared/host.h"
#undef test_comm
#undef test_quiet
#undef host_cut

#include <errno.h>
#include <fcntl.h>
/* What the disk does, counted over all ranks: a call fails, or calls are short, interrupted, to be
   made again, and late, now and then. */
enum { CUDA_READ = 0, CUDA_WRITE, CUDA_OPEN, CUDA_ALLOCATE, CUDA_DISK_CALLS };
static struct {
    long calls[CUDA_DISK_CALLS], fail[CUDA_DISK_CALLS]; /* the k-th one fails; 0: none */
    int moody;
} cuda_disk;
static int cuda_slow; /* a read takes milliseconds */

/* 0, or an errno. */
static int cuda_disk_turn(int call, size_t *n) {
    const long k = __atomic_add_fetch(&cuda_disk.calls[call], 1, __ATOMIC_RELAXED);
    if (cuda_slow && call == CUDA_READ) (void)usleep(3000);
    if (k == cuda_disk.fail[call]) return call == CUDA_READ ? EIO : ENOSPC;
    if (!cuda_disk.moody) return 0;
    if (k % 5 == 0) (void)usleep(300);
    if (k % 3 == 0) return k % 2 ? EINTR : EAGAIN;
    if (n && k % 2 && *n > 4096) *n = 4096;
    return 0;
}
static ssize_t cuda_pread(int fd, void *p, size_t n, off_t at) {
    const int error = cuda_disk_turn(CUDA_READ, &n);
    return error ? (errno = error, -1) : pread(fd, p, n, at);
}
static ssize_t cuda_pwrite(int fd, const void *p, size_t n, off_t at) {
    const int error = cuda_disk_turn(CUDA_WRITE, &n);
    return error ? (errno = error, -1) : pwrite(fd, p, n, at);
}
static int cuda_file(const char *path, int flags, int mode, ...) {
    const int error = (flags & O_TMPFILE) == O_TMPFILE ? cuda_disk_turn(CUDA_OPEN, NULL) : 0;
    return error ? (errno = error, -1) : open(path, flags, mode);
}
static int cuda_allocate(int fd, off_t at, off_t n) {
    const int error = cuda_disk_turn(CUDA_ALLOCATE, NULL);
    return error ? error : posix_fallocate(fd, at, n);
}

#define open(path, ...) cuda_file(path, __VA_ARGS__, 0, 0)
#define posix_fallocate cuda_allocate
#define pread           cuda_pread
#define pwrite          cuda_pwrite
#define ZP_PIECE_NUMEL  ((size_t)2048) /* so that units of a test have several */
#include CUDA_SOURCE /* as make drop writes it: one file, so that a place is a line of it */
#undef pread
#undef pwrite
#undef open
#undef posix_fallocate
#include "loops.h"

#ifdef EMULATED_LAUNCH
#include "../emulation/emulation.h"
#include <elf.h>
#define EMULATES 1
#else /* a GPU decides by itself */
#define EMULATES 0
typedef enum emulation_call { EMULATION_ANY = 0 } emulation_call;
static void emulation_enter(int rank, int nthreads) { (void)rank, (void)nthreads; }
static void emulation_leave(void) {}
static void emulation_reset(void) {}
static void emulation_seed(uint64_t seed) { (void)seed; }
static void emulation_thread_order(uint64_t seed) { (void)seed; }
static void emulation_devices(int count, int peers) { (void)count, (void)peers; }
static void emulation_free_waits(int waits) { (void)waits; }
static void emulation_fail(emulation_call sort, uint64_t k) { (void)sort, (void)k; }
static uint64_t emulation_calls(emulation_call sort) { return (uint64_t)sort; }
static const char *emulation_found(void) { return NULL; }
static size_t emulation_live(void) { return 0; }
static uint64_t emulation_pageable(void) { return 0; }
#endif

#define CUDA_STEPS 3
#define CUDA_RANKS 4
#define CUDA_LAST  (CUDA_STEPS - 1)

/* ---- cases --------------------------------------------------------------------------------- */

static const char *cuda_folder = "/tmp"; /* for files */

#include "cuda_cases.h"

enum { CUDA_OLDEST = 21900 }; /* version of NCCL */

/* A call that waits for a collective, which is lost. */
typedef struct cuda_loss {
    const char *name;
    zero_result (*call)(zero_ctx *z);
    int in_step; /* it is the step's agreement that is lost */
} cuda_loss;

/* What one rank saw. */
typedef struct cuda_seen {
    uint64_t weights, looks;
    uint64_t reports[CUDA_STEPS];
} cuda_seen;

/* A call of a pass of all micro-steps. */
typedef struct cuda_turn {
    zero_pass_call turn;
    int micro, wants; /* wants: parameters */
} cuda_turn;

typedef struct cuda_run {
    const cuda_case *k;
    host_spec spec;
    cuda_turn turn[256];
    int turns;
    host_reference references[CUDA_STEPS + 1]; /* before step 0, 1, ... */
    int compares;                              /* with the references */
    int records;                               /* odd seeds record what ran when; 2: and count */
    int faults;          /* this run is to fail: peers wait for a moment only */
    int told;            /* ... but they are told why, long before the time limit */
    int erred;           /* the host has met an error that it has not looked at yet */
    emulation_call sort; /* the k-th call of that sort fails, from rank 0's training on */
    uint64_t fail_at;
    uint64_t miss, break_at; /* rank 1's collective that is lost, or meets an error */
    int joining;             /* ... of those in zero_create */
    const cuda_loss *loss;   /* of rank 1's collective under this call */
    int fails_inside;        /* rank 1 has failed when its first group of collectives begins */
    int absent;              /* a rank that stays away from step 1 on; -1: none */
    int gone;                /* ranks that are done */
    int in_split;            /* runs that left peers in ncclCommSplit */
    uint64_t calls;          /* of that sort in rank 0's training and beside it */
    char why[CUDA_RANKS][768];
#ifdef EMULATED_LAUNCH
    ncclUniqueId id;
#endif
    cuda_seen seen[CUDA_RANKS];
} cuda_run;

/* What a rank has besides host_run. */
typedef struct cuda_rank {
    cuda_run *run;
    host_spec spec; /* with its own stream */
    cudaStream_t stream;
#ifdef EMULATED_LAUNCH
    ncclComm_t comm;
#endif
    /* SLICES, JOINS: all ranks, and those of one slice, or that share a copy of `joined` */
    zero_group *all, *part, *over; /* over: those that have the other slices */
    host_spec second;              /* of the context that joins */
    host_run joined;
    char nccl[256];   /* what the plugin says about NCCL */
    int warned_order; /* that NCCL does not order launches */
    int warned;       /* of denormal numbers, which this device keeps */
    cuda_seen *seen;
    int from; /* the step that the context began with */
} cuda_rank;

static void cuda_tensor(host_spec *s, const char *name, size_t numel, int layers, int unit,
                        int uses, int flags) {
    zero_tensor_desc *d = &s->desc[s->ntensors];
    (void)snprintf(s->name[s->ntensors], HOST_NAME, "%s", name);
    memset(d, 0, sizeof *d);
    d->name = s->name[s->ntensors++];
    d->numel = numel;
    d->layers = layers;
    d->unit = unit;
    d->uses = uses;
    d->flags = flags;
    if (!(flags & ZERO_KEEP) && unit + layers > s->units) s->units = unit + layers;
}

/* A gradient that is not finite, in the second step, on the last rank. */
static void cuda_overflow(host_run *h, int t, size_t first, void *g) {
    if (h->step != 1 || t != 1 || h->rank->rank != h->spec->nranks - 1) return;
    host_put(g, host_grad_type(h->spec), 1, INFINITY);
    (void)first;
}

static int cuda_sharded(const cuda_case *k) {
    return k->accumulation == ZERO_ACCUMULATE_AUTO ? k->stage >= 2
                                                   : k->accumulation == ZERO_ACCUMULATE_SHARDED;
}

static void cuda_spec(host_spec *s, const cuda_case *k) {
    const int in_place = k->micro_steps > 1 && !cuda_sharded(k); /* micro-steps add up there */
    memset(s, 0, sizeof *s);
    s->seed = 77;
    s->nranks = k->nranks;
    s->node_size = k->more & CUDA_NODES ? 2 : 0;
    s->steps = CUDA_STEPS;
    s->micro_steps = k->micro_steps;
    s->silent_unit = k->more & CUDA_SILENT ? 3 : -1;
    s->recompute = k->more & CUDA_RECOMPUTE;
    /* sums are exact: whatever the order and rounding; of a pass of all micro-steps KEEP's differ
     */
    s->integer = k->kind == ZERO_COMM_NCCL || k->more & CUDA_SHARDS
                 || (k->more & CUDA_TURNS && cuda_sharded(k));
    s->poison = k->overflow ? cuda_overflow : NULL;
    const size_t larger = k->more & (CUDA_THROUGH | CUDA_SENDS) ? 36001 : 12001;
    const size_t fc = k->more & CUDA_LARGE ? larger : k->more & CUDA_MANY ? 3 : 131;
    const int layers = k->more & CUDA_MANY ? (int)ZP_LANE_TASKS + 20 : 4;
    const int rows = (k->more & CUDA_ROWS) != 0;
    const size_t wte = rows ? k->more & CUDA_LARGE ? 36000 : 1200 : 150;
    cuda_tensor(s, "wte", wte, 1, 0, 2, 0);
    cuda_tensor(s, "fc", fc, layers, 1, 0, 0);
    if (rows) s->row[0] = 30, s->row[1] = fc;
    cuda_tensor(s, "ln", 5, 4, 1, 0, in_place ? 0 : ZERO_OVERWRITTEN);
    cuda_tensor(s, "lnf", 9, 1, 1 + layers, 0, 0);
    if (!(k->more & CUDA_LOOKS_LATE)) cuda_tensor(s, "keep", 7, 2, 0, 0, ZERO_KEEP);
    for (int t = 0; t < s->ntensors && (k->more & CUDA_PLAIN); t++) s->desc[t].flags = ZERO_KEEP;
    const zero_hyper adamw = {0.01f, 0.9f, 0.99f, 1e-8f, 0.1f, 0.0f};
    s->adamw = adamw;
    if (k->more & CUDA_NORM) s->adamw.max_norm = 0.5f;
    s->cfg.stage = k->stage;
    s->cfg.accumulation = k->accumulation;
    s->cfg.type = k->type;
    s->cfg.prefetch = k->prefetch;
    s->cfg.no_mapping = (k->more & CUDA_NO_MAPPING) != 0;
    if (k->more & CUDA_SHARDS) s->cfg.shard_ranks = k->nranks % 2 ? 1 : 2;
    if (k->more & CUDA_SECOND) s->cfg.second_ranks = k->nranks % 2 ? 1 : 2;
    s->cfg.no_overlap = (k->more & CUDA_NO_OVERLAP) != 0;
    s->cfg.master = k->more & CUDA_NO_MASTER ? ZERO_MASTER_NONE
                    : k->more & CUDA_SPLIT   ? ZERO_MASTER_SPLIT
                                             : ZERO_MASTER_F32;
    if (k->more & CUDA_STATES) s->cfg.state_type = ZERO_STATE_BF16;
    if (k->more & CUDA_CODES) s->cfg.state_type = ZERO_STATE_8BIT;
    if (k->more & CUDA_CODES && k->stage == 3) s->desc[0].flags |= ZERO_F32_STATE;
    s->cfg.persistence_numel = k->more & CUDA_ALL_GATHERED ? ZERO_NONE : 0;
    s->cfg.bucket_numel = (size_t)k->buckets * 600;
    if (k->more & CUDA_TURNS) s->cfg.open_units = 4;
    s->cfg.timeout_s = 20;
    s->cfg.scaler.initial = 1024;
    s->cfg.scaler.hysteresis = 1;
    s->cfg.no_overflow_check = 0;
    s->cfg.folder = cuda_folder;
    if (k->more & (CUDA_HOST | CUDA_THROUGH)) s->cfg.optimizer_tier = ZERO_HOST;
    s->cfg.update_on = k->more & CUDA_THROUGH ? ZERO_UPDATE_DEVICE : ZERO_UPDATE_HOST;
    if (k->more & CUDA_FILE) s->cfg.optimizer_tier = ZERO_FILE;
    if (k->more & CUDA_PARAMS) s->cfg.parameter_tier = s->cfg.optimizer_tier;
    if (k->more & CUDA_SENDS) s->cfg.gradient_tier = ZERO_HOST;
    if (k->more & CUDA_GRADS) s->cfg.gradient_tier = ZERO_FILE;
    if (k->more & CUDA_HALF) s->cfg.offload_share = 0.5f;
    if (k->more & CUDA_DELAYS) s->cfg.delay_from = 1;
    if (k->more & CUDA_LAMB) s->cfg.optimizer = ZERO_LAMB;
    if (k->more & CUDA_MUON) s->cfg.optimizer = ZERO_MUON;
    if (k->more & CUDA_MUON && !(k->more & CUDA_SLICES)) s->cfg.muon.normalize = 0.9f;
    if (k->more & CUDA_ADAGRAD) s->cfg.optimizer = ZERO_ADAGRAD;
    if (k->more & CUDA_PACKED) {
        s->cfg.weight_bits = k->stage == 3 ? 8 : 0;
        s->cfg.gradient_bits = 4;
        s->cfg.feedback = k->prefetch == 2 ? 0 : 0.8f;
        s->cfg.feedback_reset = k->micro_steps == 1 ? 0 : 2;
    }
    s->rows[0] = 10, s->cols[0] = wte / 10;
    s->rows[1] = s->desc[1].numel, s->cols[1] = 1;
    s->rows[2] = 1, s->cols[2] = 5;
}

/* ---- an order of turns --------------------------------------------------------------------- */

static void cuda_turn_add(cuda_run *run, zero_pass_call_kind kind, int unit, int micro, int wants) {
    const cuda_turn t = {{kind, unit}, micro, wants};
    run->turn[run->turns++] = t;
}

/* Each micro-batch's calls are those of cuda_train_pass; forwards go ahead as they like, one
   micro-batch at a time comes down. */
static void cuda_turns_draw(cuda_run *run) {
    const int units = run->spec.units, calls = 2 * units + 2, micro_steps = run->k->micro_steps;
    test_random r = {strlen(run->k->name)};
    int at[4] = {0};
    while (at[micro_steps - 1] < calls) {
        const int m = (int)test_below(&r, micro_steps), i = at[m], down = i > units;
        const int u = down ? (2 * units + 1 - i) % units : i % units, last = i + 1 == calls;
        if (i == calls || (down && m && at[m - 1] < calls)) continue;
        at[m]++;
        if (u == run->spec.silent_unit) continue;
        cuda_turn_add(run, down ? ZERO_CALL_BACKWARD : ZERO_CALL_FORWARD, u, m, !last);
    }
}

/* ---- the host computes on its stream ------------------------------------------------------- */

static __thread cuda_rank *cuda_me;

/* Of the context that is created next. */
static zero_comm cuda_comm(const test_rank *r) {
    const cuda_case *k = cuda_me->run->k;
    if (cuda_me->part) return zero_group_comm(cuda_me->part);
    zero_comm c = {k->kind, r->rank, r->local, k->more & CUDA_NODES ? 2 : 0};
    if (c.kind == ZERO_COMM_SELF) c.handle = NULL;
#ifdef EMULATED_LAUNCH
    if (c.kind == ZERO_COMM_NCCL) c.handle = &cuda_me->comm;
#endif
    return c;
}

/* Where matrices are cut, a rank has half of the rows. */
static void cuda_cut(zero_tensor_desc *d) {
    if (!d->rows || !cuda_me->over) return;
    d->slice_of = cuda_me->over;
    d->rows *= 2;
}

static void cuda_log(void *user, zero_log_level level, const char *sentence) {
    (void)user;
    const int order = level == ZERO_LOG_WARNING && strstr(sentence, "NCCL_LAUNCH_ORDER_IMPLICIT=1");
    cuda_me->warned |= level == ZERO_LOG_WARNING && !order;
    cuda_me->warned_order |= order;
    if (level == ZERO_LOG_INFO && !strncmp(sentence, "NCCL ", 5))
        (void)snprintf(cuda_me->nccl, sizeof cuda_me->nccl, "%s", sentence);
}

/* Where state and master weights are, the plan says. */
static void cuda_planned(test_rank *rank, zero_ctx *z) {
    const zero_config *c = &cuda_me->spec.cfg;
    const int host = c->optimizer_tier != ZERO_DEVICE, all = host && c->offload_share == 0;
    zero_plan p;
    memset(&p, 0, sizeof p);
    if (zero_query_plan(z, &p)) test_rank_fail(rank, "%s", zero_last_error(z));
    const zp_pages *pages = z->offload->gpu->memory; /* plain, pinned */
    const size_t got = host ? pages[0].bytes + pages[1].bytes : 0;
    if ((p.host_bytes > 0) != host || p.host_bytes != got || (p.optimizer_bytes == 0) != all
        || p.pinned_bytes != (host ? pages[1].bytes : 0))
        test_rank_fail(rank, "%zu bytes of state planned, and %zu of the host's, %zu pinned",
                       p.optimizer_bytes, p.host_bytes, p.pinned_bytes);
    const int filed = c->optimizer_tier == ZERO_FILE || c->gradient_tier == ZERO_FILE;
    if ((p.file_bytes > 0) != filed || (p.file_way != NULL) != filed)
        test_rank_fail(rank, "%zu bytes of the file planned", p.file_bytes);
}

/* A step sends down and up what the plan says; what was written by name, the weights first of all,
   goes down once more. And no shard of the gradients is on the device. */
static int cuda_crossed(host_run *h) {
    const cuda_case *k = cuda_me->run->k;
    const int more = (k->more & (CUDA_WRITES | CUDA_REWRITES)) != 0,
              looks = k->more & (CUDA_SILENT | CUDA_SAVES) || k->evaluate,
              counts = !(k->more & CUDA_PARAMS && looks); /* gathers are others than planned */
    zero_ctx *z = h->z;
    zero_stats now;
    zero_plan p;
    HOST_TRY(h, zero_query_stats(z, &now));
    HOST_TRY(h, zero_query_plan(z, &p));
    uint64_t down = (uint64_t)CUDA_STEPS * p.down_bytes, up = (uint64_t)CUDA_STEPS * p.up_bytes;
    for (int u = 0; u < z->layout.all && z->offload->cpu_updates; u++)
        if (!zp_array_off_device(&z->array[ZP_PARAM], u))
            down += zp_array_part_bytes(&z->offload->twin[ZP_UP], u);
    if (k->more & CUDA_DELAYS) up = now.up_bytes; /* the last one is pending */
    if ((p.down_bytes > 0) != (z->cfg.optimizer_tier != ZERO_DEVICE)
        || (!more && now.down_bytes != down) || (!more && counts && now.up_bytes != up))
        test_rank_fail(h->rank, "%llu bytes down and %llu up, expected %llu and %llu",
                       (unsigned long long)now.down_bytes, (unsigned long long)now.up_bytes,
                       (unsigned long long)down, (unsigned long long)up);
    const int leaves = k->more & CUDA_SENDS && z->offload->cpu_updates && k->stage >= 2
                       && !(z->adding == ZP_IN_PLACE) && !(k->more & CUDA_HALF);
    if (leaves && (p.grad_bytes || z->array[ZP_MEAN].bytes))
        test_rank_fail(h->rank, "%zu bytes of gradients are on the device", p.grad_bytes);
    return !h->rank->failed;
}

/* A step writes to the file what the plan says, and reads as much; who looks reads more. */
static int cuda_moved(host_run *h, const zp_file *before) {
    const cuda_case *k = cuda_me->run->k;
    const int access = CUDA_SKIPS | CUDA_WRITES | CUDA_REWRITES | CUDA_SAVES;
    zero_stats now;
    zero_plan p;
    if (!(k->more & (CUDA_FILE | CUDA_GRADS)) || k->overflow || (k->more & access)) return 1;
    if (!h->spec->cfg.optimizer_tier) return 1; /* on the device */
    HOST_TRY(h, zero_query_stats(h->z, &now));
    HOST_TRY(h, zero_query_plan(h->z, &p));
    const uint64_t written = (uint64_t)CUDA_STEPS * p.file_written_bytes,
                   read = (uint64_t)CUDA_STEPS * p.file_read_bytes;
    const uint64_t has_written = now.file_written_bytes - before->written_bytes,
                   has_read = now.file_read_bytes - before->read_bytes;
    const int silent = k->more & CUDA_SILENT && k->more & CUDA_PARAMS; /* gathers one unit less */
    const int looks = silent || k->evaluate || (k->more & CUDA_READS);
    if (has_written != written || !written || (has_read != read && !looks)
        || (has_read < read && !silent))
        test_rank_fail(h->rank, "%llu bytes written, %llu read, planned %llu and %llu",
                       (unsigned long long)has_written, (unsigned long long)has_read,
                       (unsigned long long)written, (unsigned long long)read);
    return !h->rank->failed;
}

/* Arenas are registered in the way that this NCCL offers. */
static int cuda_registered(test_rank *rank) {
    const cuda_case *k = cuda_me->run->k;
    const int windows = !(k->more & (CUDA_OLD_NCCL | CUDA_NO_WINDOWS));
    const char *how = windows ? "a symmetric window" : "a buffer";
    char expected[128];
    if (cuda_me->warned) test_rank_fail(rank, "warned of denormal numbers");
    cuda_me->warned = 0;
    if (k->kind != ZERO_COMM_NCCL || k->nranks == 1) return !rank->failed;
    if (rank->rank == 0 && cuda_me->warned_order != !(k->more & (CUDA_OLD_NCCL | CUDA_ORDERED)))
        test_rank_fail(rank, "warned of NCCL's order: %d", cuda_me->warned_order);
    (void)snprintf(expected, sizeof expected,
                   "gradients registered as %s, parameters registered as %s", how, how);
    if (!strstr(cuda_me->nccl, expected))
        test_rank_fail(rank, "says `%s`, expected `%s`", cuda_me->nccl, expected);
    return !rank->failed;
}

/* Few rows send less than the plan's dense gradients. */
static int cuda_sends_less(host_run *h) {
    const int64_t more = cuda_me->run->k->more;
    const int64_t whole = CUDA_TURNS | CUDA_SAVES;
    zero_stats now;
    zero_plan p;
    if (!h->spec->desc[0].row_numel || (more & whole) || h->spec->cfg.stage == 3) return 1;
    HOST_TRY(h, zero_query_stats(h->z, &now));
    HOST_TRY(h, zero_query_plan(h->z, &p));
    if (now.sent_bytes >= CUDA_STEPS * p.sent_bytes)
        test_rank_fail(h->rank, "%llu bytes sent, planned densely %llu",
                       (unsigned long long)now.sent_bytes,
                       (unsigned long long)(CUDA_STEPS * p.sent_bytes));
    return !h->rank->failed;
}

typedef struct cuda_task {
    host_run h; /* pointers as they were when the task was enqueued */
    cuda_seen *seen;
    int unit, first, part;
} cuda_task;

static void cuda_look_at(cuda_task *t, int i, int layer) {
    const host_spec *s = t->h.spec;
    const size_t bytes = s->desc[i].numel * zero_type_bytes(s->cfg.type);
    const char *p = host_tensor(&t->h, i, layer, 0);
    for (size_t at = 0; at < bytes; at += 2) {
        uint16_t bits;
        memcpy(&bits, p + at, sizeof bits);
        t->seen->looks = test_mix(t->seen->looks ^ bits);
    }
}

static void cuda_look_work(void *task) {
    cuda_task *t = (cuda_task *)task;
    const host_spec *s = t->h.spec;
    (void)host_look(&t->h, t->unit);
    for (int i = 0; i < s->ntensors; i++)
        if (host_in_unit(&s->desc[i], t->unit)) cuda_look_at(t, i, t->unit - s->desc[i].unit);
    free(task);
}

/* KEEP tensors are there from a pass' beginning on. */
static void cuda_keep_work(void *task) {
    cuda_task *t = (cuda_task *)task;
    const host_spec *s = t->h.spec;
    for (int i = 0; i < s->ntensors; i++)
        for (int l = 0; (s->desc[i].flags & ZERO_KEEP) && l < s->desc[i].layers; l++)
            cuda_look_at(t, i, l);
    free(task);
}

/* Every second element of the unit's gradients. */
static void cuda_grad_work(void *task) {
    cuda_task *t = (cuda_task *)task;
    host_run *h = &t->h;
    const host_spec *s = h->spec;
    for (int i = 0; i < s->ntensors; i++) {
        const zero_tensor_desc *d = &s->desc[i];
        if (!host_in_unit(d, t->unit) || ((d->flags & ZERO_KEEP) && !t->first)) continue;
        char *g = host_tensor(h, i, t->unit - d->unit, 1);
        const zero_type type = host_grad_type(s);
        const size_t at = (size_t)(t->unit - d->unit) * d->numel;
        const int store = (d->flags & ZERO_OVERWRITTEN) && t->first;
        for (size_t j = (size_t)t->part; j < d->numel; j += 2) {
            const float x =
                h->scale * host_value(s, 1, h->step, h->micro, h->rank->rank, i, at + j);
            host_put(g, type, j, store ? x : host_get(g, type, j) + x);
        }
        if (s->poison && t->part) s->poison(h, i, at, g);
    }
    free(task);
}

static int cuda_enqueue(host_run *h, cudaHostFn_t work, int unit, int first, int part) {
    cuda_task *t = (cuda_task *)malloc(sizeof *t);
    t->h = *h;
    t->seen = cuda_me->seen;
    t->unit = unit;
    t->first = first;
    t->part = part;
    const cudaError_t e = cudaLaunchHostFunc(cuda_me->stream, work, t);
    if (e == cudaSuccess) return 1;
    test_rank_fail(h->rank, "cudaLaunchHostFunc: %s", cudaGetErrorString(e));
    free(t);
    return 0;
}

static int cuda_forward(host_run *h, int unit) {
    HOST_TRY(h, zero_forward_begin(h->z, unit, &h->params));
    if (!cuda_enqueue(h, cuda_look_work, unit, 0, 0)) return 0;
    if (!cuda_enqueue(h, cuda_look_work, unit, 0, 1)) return 0;
    HOST_TRY(h, zero_forward_end(h->z, unit));
    return 1;
}

static int cuda_backward(host_run *h, int unit, int with_params, int first) {
    HOST_TRY(h, zero_backward_begin(h->z, unit, with_params ? &h->params : NULL, &h->grads));
    if (h->spec->recompute && with_params && !cuda_forward(h, unit)) return 0;
    if (!cuda_enqueue(h, cuda_grad_work, unit, first, 0)) return 0;
    if (with_params && !cuda_enqueue(h, cuda_look_work, unit, 0, 0)) return 0;
    if (!cuda_enqueue(h, cuda_grad_work, unit, first, 1)) return 0;
    HOST_TRY(h, zero_backward_end(h->z, unit));
    return 1;
}

static int cuda_turns_announce(host_run *h) {
    const cuda_run *run = cuda_me->run;
    zero_pass_call turns[sizeof run->turn / sizeof *run->turn];
    int n = 0;
    for (int i = 0; i < run->turns; i++)
        if (run->turn[i].wants) turns[n++] = run->turn[i].turn;
    HOST_TRY(h, zero_pass_order(h->z, ZERO_TRAIN, ZERO_TOGETHER, turns, n));
    return 1;
}

static int cuda_turn_take(host_run *h, const cuda_turn *t) {
    const int u = t->turn.unit;
    h->micro = t->micro;
    if (t->turn.kind == ZERO_CALL_FORWARD) return cuda_forward(h, u);
    return cuda_backward(h, u, t->wants, t->wants);
}

static int cuda_turns_pass(host_run *h) {
    const cuda_run *run = cuda_me->run;
    HOST_TRY(h, zero_pass_begin(h->z, ZERO_TRAIN, ZERO_TOGETHER, h->spec->micro_steps));
    h->scale = zero_loss_scale(h->z);
    if (!cuda_enqueue(h, cuda_keep_work, 0, 0, 0)) return 0;
    for (int i = 0; i < run->turns; i++)
        if (!cuda_turn_take(h, &run->turn[i])) return 0;
    HOST_TRY(h, zero_pass_end(h->z)); /* h->micro is the last one's */
    return 1;
}

/* Announces the rows of tensor t that this micro-step touches, the last ones first. */
static int cuda_announce(host_run *h, int t) {
    const host_spec *s = h->spec;
    int touched[2048], n = 0;
    if (!s->desc[t].row_numel) return 1;
    for (size_t row = host_numel(s, t) / s->row[t]; row-- > 0;)
        if (host_touches(s, h->step, h->micro, h->rank->rank, t, row)) touched[n++] = (int)row;
    HOST_TRY(h, zero_touch_rows(h->z, s->desc[t].name, touched, n));
    return 1;
}

static int cuda_train_pass(host_run *h) {
    const host_spec *s = h->spec;
    if (!cuda_announce(h, 1)) return 0;
    if (cuda_me->run->turns) return cuda_turns_pass(h);
    HOST_TRY(h, zero_pass_begin(h->z, ZERO_TRAIN, h->micro, s->micro_steps));
    if (!cuda_announce(h, 0)) return 0;
    h->scale = zero_loss_scale(h->z);
    if (!cuda_enqueue(h, cuda_keep_work, 0, 0, 0)) return 0;
    for (int u = 0; u < s->units; u++)
        if (u != s->silent_unit && !cuda_forward(h, u)) return 0;
    if (!cuda_forward(h, 0)) return 0; /* the classifier's use of the embeddings */
    if (!cuda_backward(h, 0, 1, 1)) return 0;
    for (int u = s->units - 1; u > 0; u--)
        if (u != s->silent_unit && !cuda_backward(h, u, 1, 1)) return 0;
    if (!cuda_backward(h, 0, 0, 0)) return 0;
    for (int u = 1; u < 4 && (cuda_me->run->k->more & CUDA_LOOKS_LATE); u++)
        if (!cuda_forward(h, u)) return 0;
    HOST_TRY(h, zero_pass_end(h->z));
    return 1;
}

/* Some end early: what was gathered ahead is left. */
static int cuda_evaluate(host_run *h, int units) {
    HOST_TRY(h, zero_pass_begin(h->z, ZERO_EVAL, 0, 1));
    if (!cuda_enqueue(h, cuda_keep_work, 0, 0, 0)) return 0;
    for (int u = 0; u < units; u++)
        if (!cuda_forward(h, u)) return 0;
    HOST_TRY(h, zero_pass_end(h->z));
    return 1;
}

/* What the step before did, asked for when the next one's first pass has begun. */
static int cuda_report(host_run *h, int step) {
    zero_step_report r;
    uint64_t bits[4] = {0, 0, 0, 0};
    if (step < 0) return 1;
    HOST_TRY(h, zero_step_result(h->z, &r));
    bits[0] = (uint64_t)r.stepped;
    memcpy(&bits[1], &r.norm, sizeof r.norm);
    memcpy(&bits[2], &r.next_loss_scale, sizeof r.next_loss_scale);
    bits[3] = (uint64_t)r.steps * 1000 + (uint64_t)r.skipped + (r.bad_tensor ? r.bad_index : 0);
    for (int i = 0; i < 4; i++)
        cuda_me->seen->reports[step] = test_mix(cuda_me->seen->reports[step] ^ bits[i]);
    const int skipped = cuda_me->run->k->overflow && step == 1;
    const int dropped = (cuda_me->run->k->more & CUDA_SKIPS) && step == 1;
    if (r.stepped == (skipped || dropped))
        test_rank_fail(h->rank, "step %d: stepped %d", step, r.stepped);
    return !h->rank->failed;
}

/* Comes back when the others have given up. */
static void cuda_stay_away(cuda_run *run, int nranks) {
    struct timespec t = {0, 1000000};
    while (__atomic_load_n(&run->gone, __ATOMIC_ACQUIRE) + 1 < nranks) (void)nanosleep(&t, NULL);
}

/* Other values, and what was there again: an evaluation under way sees neither, the next pass the
   second. Split weights are read with their lower halves. */
static int cuda_write(host_run *h) {
    const int split = h->spec->cfg.master == ZERO_MASTER_SPLIT;
    const zero_kind kind = split ? ZERO_MASTER : ZERO_PARAMETER;
    float kept[40], other[40];
    HOST_TRY(h, zero_apply_pending(h->z));
    HOST_TRY(h, zero_read_tensor(h->z, "fc", kind, 100, 40, kept));
    for (int i = 0; i < 40; i++) other[i] = kept[i] + 1;
    if (!cuda_evaluate(h, h->spec->units)) return 0;
    HOST_TRY(h, zero_write_tensor(h->z, "fc", ZERO_PARAMETER, 100, 40, other));
    HOST_TRY(h, zero_write_tensor(h->z, "fc", kind, 100, 40, kept));
    return 1;
}

/* zero_destroy finds streams at work: that of reductions, or alone that of gathers, some of which
   nobody waits for; and the host's, there with an update and what it reports. */
static int cuda_leave(host_run *h) {
    const int reduces = h->spec->cfg.stage < 3;
    h->micro = 0;
    if (reduces && !cuda_train_pass(h)) return 0;
    if (reduces) HOST_TRY(h, zero_reduce(h->z));
    if (cuda_me->run->k->more & CUDA_AHEAD) return 1; /* at once */
    for (int i = 0; i < 3; i++)
        if (!cuda_evaluate(h, h->spec->units)) return 0;
    if (!cuda_evaluate(h, 3)) return 0;
    if (cuda_me->run->k->evaluate & CUDA_EVAL_STEPPED)
        HOST_TRY(h, zero_step(h->z, &h->spec->adamw));
    return 1;
}

/* Of a context without hooks, whose weights are read at once. */
static int cuda_plain_step(host_run *h) {
    const host_spec *s = h->spec;
    for (h->micro = 0; h->micro < s->micro_steps; h->micro++) {
        HOST_TRY(h, zero_train_begin(h->z));
        h->scale = zero_loss_scale(h->z);
        if (!cuda_enqueue(h, cuda_keep_work, 0, 0, 0)) return 0;
        for (int u = 0; u < s->units; u++)
            for (int part = 0; part < 2; part++)
                if (!cuda_enqueue(h, cuda_grad_work, u, 1, part)) return 0;
        HOST_TRY(h, zero_train_end(h->z, &s->adamw, 0, NULL));
    }
    if (cuda_me->run->compares) h->reference = &cuda_me->run->references[h->step + 1];
    return cuda_enqueue(h, cuda_keep_work, 0, 0, 0);
}

/* The second context's pass. */
static int cuda_joined_pass(host_run *h) {
    host_run *j = &cuda_me->joined;
    if (!j->z) return 1;
    j->step = h->step;
    j->micro = h->micro;
    HOST_TRY(j, zero_pass_begin(j->z, ZERO_TRAIN, j->micro, j->spec->micro_steps));
    j->scale = zero_loss_scale(j->z);
    if (!cuda_forward(j, 0) || !cuda_backward(j, 0, 1, 1)) return 0;
    HOST_TRY(j, zero_pass_end(j->z));
    return 1;
}

static int cuda_step(host_run *h) {
    const cuda_case *k = cuda_me->run->k;
    host_run *joined = &cuda_me->joined;
    const int all = h->spec->units;
    const int pends = h->spec->cfg.delay_from && !(k->more & CUDA_WRITES);
    /* beside the last update: the weights of before it, unless somebody has written in between */
    if (cuda_me->run->compares && pends && h->step)
        h->reference = &cuda_me->run->references[h->step - 1];
    if (h->step == 1 && h->rank->rank == cuda_me->run->absent) {
        cuda_stay_away(cuda_me->run, h->rank->nranks);
        test_rank_fail(h->rank, "stayed away");
        return 0;
    }
    if (k->more & CUDA_PLAIN) return cuda_plain_step(h);
    for (h->micro = 0; h->micro < h->spec->micro_steps; h->micro++) {
        const int before = h->step == cuda_me->from ? -1 : h->step - 1;
        const int asks = h->micro == 0 && !(k->more & CUDA_AHEAD);
        if (!cuda_joined_pass(h) || !cuda_train_pass(h)) return 0;
        if (asks && !cuda_report(h, before)) return 0;
    }
    if ((k->evaluate & CUDA_EVAL_PASSED) && !cuda_evaluate(h, all)) return 0;
    if (joined->z) HOST_TRY(joined, zero_reduce(joined->z));
    HOST_TRY(h, zero_reduce(h->z));
    if (k->more & CUDA_READS) { /* first what was reduced last */
        static const struct {
            const char *name;
            size_t from, n;
        } reads[] = {{"keep", 0, 7}, {"wte", 0, 40}, {"fc", 100, 40}};
        for (int i = k->more & CUDA_LOOKS_LATE ? 1 : 0; i < 3; i++) {
            float g[40];
            HOST_TRY(h, zero_read_tensor(h->z, reads[i].name, ZERO_GRADIENT, reads[i].from,
                                         reads[i].n, g));
            cuda_me->seen->looks = host_hash_floats(cuda_me->seen->looks, g, reads[i].n);
        }
    }
    if (k->more & CUDA_REWRITES) {
        float g[40];
        HOST_TRY(h, zero_read_tensor(h->z, "fc", ZERO_GRADIENT, 100, 40, g));
        for (int i = 0; i < 40; i++) g[i] *= 0.5f;
        HOST_TRY(h, zero_write_tensor(h->z, "fc", ZERO_GRADIENT, 100, 40, g));
    }
    if (k->more & CUDA_NORM) {
        double norm = 0;
        HOST_TRY(h, zero_norm(h->z, &norm));
        uint64_t bits;
        memcpy(&bits, &norm, sizeof bits);
        cuda_me->seen->looks = test_mix(cuda_me->seen->looks ^ bits);
    }
    if ((k->evaluate & CUDA_EVAL_REDUCED) && !cuda_evaluate(h, h->step ? 3 : all)) return 0;
    if (joined->z) HOST_TRY(joined, zero_step(joined->z, &h->spec->adamw));
    if ((k->more & CUDA_SKIPS) && h->step == 1)
        HOST_TRY(h, zero_skip_step(h->z));
    else
        HOST_TRY(h, zero_step(h->z, &h->spec->adamw));
    if (cuda_me->run->compares) h->reference = &cuda_me->run->references[h->step + !pends];
    if (k->more & CUDA_WRITES) return cuda_write(h);
    if ((k->evaluate & CUDA_EVAL_STEPPED) && !cuda_evaluate(h, all)) return 0;
    return !(k->more & CUDA_SAVES) || cuda_evaluate(h, 3);
}

#ifdef EMULATED_LAUNCH
static __thread zp_comm *cuda_failing;
/* As the thread that looks after NCCL does it. */
static void cuda_fail_inside(void) {
    (void)zp_comm_fail(cuda_failing, ZERO_ERR_COMM, "failed meanwhile");
}
static void cuda_arm(const cuda_run *run, zero_ctx *z) {
    cuda_failing = z ? z->data : NULL;
    if (run->miss) emulation_nccl_miss(1, run->miss);
    if (run->break_at) emulation_nccl_break(1, run->break_at, ncclRemoteError);
    if (run->fails_inside) emulation_nccl_begun(cuda_fail_inside);
}
#else
static void cuda_arm(const cuda_run *run, zero_ctx *z) { (void)run, (void)z; }
#endif

/* It is this call that has the error, on all ranks. */
static int cuda_lose(host_run *h, const cuda_loss *loss) {
    const int loses = h->rank->rank == 1;
    if (!cuda_train_pass(h)) return 0;
    if (loses && loss->in_step) cuda_arm(cuda_me->run, h->z);
    HOST_TRY(h, zero_reduce(h->z));
    HOST_TRY(h, zero_step(h->z, &h->spec->adamw));
    if (loses && !loss->in_step) cuda_arm(cuda_me->run, h->z);
    const zero_result r = loss->call(h->z);
    const char *why = h->z->failure.text; /* who was first told the others */
    if ((r != ZERO_ERR_TIMEOUT && r != ZERO_ERR_PEER) || !strstr(why, "was not over within 1 s"))
        test_rank_fail(h->rank, "%s: %s: %s, expected a time-out", loss->name,
                       zero_result_string(r), why);
    return !h->rank->failed;
}

/* All ranks, and parts of them: rank / 2, and rank % 2. */
static int cuda_groups(test_rank *rank) {
    cuda_rank *me = cuda_me;
    const int64_t more = me->run->k->more;
    const zero_comm comm = cuda_comm(rank);
    zero_result r = ZERO_OK;
    if (!(more & (CUDA_SLICES | CUDA_JOINS))) return 1;
    r = zero_group_open(&me->all, &comm, me->stream, me->spec.cfg.timeout_s);
    if (!r && (more & CUDA_SLICES)) r = zero_group_split(me->all, rank->rank / 2, 0, &me->over);
    if (!r && (more & CUDA_SLICES)) r = zero_group_split(me->all, rank->rank % 2, 0, &me->part);
    if (r) test_rank_fail(rank, "groups: %s", zero_group_error(me->all));
    return !r;
}

/* Two ranks of four share what is in the context that joins. Units 0 to 5 are the first one's. */
static int cuda_join(host_run *h, test_rank *rank) {
    static const int number = 6;
    cuda_rank *me = cuda_me;
    host_spec *s = &me->second;
    if (!(me->run->k->more & CUDA_JOINS)) return 1;
    *s = me->spec;
    s->ntensors = s->units = 0;
    s->rows[0] = s->cols[0] = 0;
    cuda_tensor(s, "expert", 333, 1, 0, 0, 0);
    s->poison = NULL;
    s->cfg.joins = h->z;
    s->cfg.divisor = rank->nranks;
    s->cfg.world_unit = &number;
    if (zero_group_split(me->all, rank->rank % 2, 0, &me->part))
        test_rank_fail(rank, "a part: %s", zero_group_error(me->all));
    return !rank->failed && host_open(&me->joined, s, rank);
}

static int cuda_start(host_run *h, test_rank *rank) {
    static const int numbers[] = {0, 1, 2, 3, 4, 5};
    host_spec *s = &cuda_me->spec;
    cuda_me->from = 0;
    if (!cuda_groups(rank)) return 0;
    if (cuda_me->run->k->more & CUDA_JOINS) {
        s->cfg.world = cuda_me->all;
        s->cfg.world_units = s->units + 1;
        s->cfg.world_unit = numbers;
    }
    if (!host_open(h, s, rank) || !cuda_join(h, rank)) return 0;
    if (cuda_me->run->turns && !cuda_turns_announce(h)) return 0;
    if (cuda_me->run->compares) h->reference = &cuda_me->run->references[0];
    return 1;
}

static void cuda_stop(host_run *h) {
    cuda_rank *me = cuda_me;
    zero_destroy(me->joined.z);
    zero_destroy(h->z);
    zero_group_close(me->over);
    zero_group_close(me->part);
    zero_group_close(me->all);
    me->joined.z = h->z = NULL;
    me->over = me->part = me->all = NULL;
}

static int cuda_steps(host_run *h, int until) {
    while (h->step < until && cuda_step(h)) h->step++;
    return h->step == until;
}

/* All ranks, also those of other contexts. */
static int cuda_meet(host_run *h) {
    if (cuda_me->all && zero_group_barrier(cuda_me->all))
        test_rank_fail(h->rank, "%s", zero_group_error(cuda_me->all));
    if (!cuda_me->all) HOST_TRY(h, zero_barrier(h->z));
    return !h->rank->failed;
}

/* A step copies between device and host from and to pinned memory alone: what is not pinned makes
   the host wait. Where ranks meet without the device. */
static int cuda_pinned_steps(host_run *h) {
    const int counts = EMULATES && cuda_me->run->k->kind == ZERO_COMM_LOCAL
                       && !(cuda_me->run->k->more & (CUDA_WRITES | CUDA_REWRITES));
    if (counts && !cuda_meet(h)) return 0;
    const uint64_t before = emulation_pageable();
    if (!cuda_steps(h, CUDA_STEPS)) return 0;
    const uint64_t copies = emulation_pageable() - before;
    if (counts && !cuda_meet(h)) return 0;
    if (counts && copies)
        test_rank_fail(h->rank, "%d copies with memory that is not pinned", (int)copies);
    return !h->rank->failed;
}

static int cuda_finish(host_run *h) {
    if (!cuda_report(h, CUDA_LAST) || !cuda_sends_less(h)) return 0;
    HOST_TRY(h, zero_apply_pending(h->z));
    if (cuda_me->joined.z) HOST_TRY(&cuda_me->joined, zero_apply_pending(cuda_me->joined.z));
    if (cuda_me->run->compares) h->reference = &cuda_me->run->references[CUDA_STEPS];
    if (h->reference && !host_compare(h, ZERO_MASTER, h->reference->master, "the master weight"))
        return 0;
    if (h->reference && !host_compare(h, ZERO_MOMENT_2, h->reference->v, "v")) return 0;
    cuda_me->seen->weights = host_hash(h);
    if (cuda_me->joined.z) cuda_me->seen->weights ^= test_mix(host_hash(&cuda_me->joined));
    return !h->rank->failed;
}

/* ---- a copy of the state ------------------------------------------------------------------- */

enum { CUDA_STATE = 1 << 15 }; /* bytes, enough for all ranges */

typedef struct cuda_state {
    char copy[CUDA_STATE]; /* range after range */
    char *at_device;       /* what the device copies to and from */
    zero_counters counters;
} cuda_state;

/* As an f32 copy, where the weights are 16 bit: they are rounded to what they were. */
static int cuda_put(host_run *h, cuda_state *m, zero_range *r, const char *values) {
    const int widened = r->type != ZERO_F32;
    if (widened) {
        zero_convert(m->at_device, ZERO_F32, values, r->type, r->count);
        r->type = ZERO_F32;
    } else
        memcpy(m->at_device, values, r->count * sizeof(float));
    HOST_TRY(h, zero_state_put(h->z, r, m->at_device));
    return 1;
}

/* At once, whatever is under way. The device's copies are done when a call returns: what they read
   and wrote is spoilt then. */
static int cuda_state_move(host_run *h, cuda_state *m, int put) {
    zero_range r;
    size_t at = 0;
    HOST_TRY(h, zero_state_begin(h->z));
    for (int i = 0; i < zero_state_ranges(h->z, 1); i++) {
        HOST_TRY(h, zero_state_range(h->z, 1, i, &r));
        const size_t bytes = r.count * zero_type_bytes(r.type);
        if (at + 2 * bytes > CUDA_STATE) abort();
        if (put && !cuda_put(h, m, &r, m->copy + at)) return 0;
        if (!put) HOST_TRY(h, zero_state_get(h->z, &r, m->at_device));
        if (!put) memcpy(m->copy + at, m->at_device, bytes);
        memset(m->at_device, 0xEE, CUDA_STATE);
        at += bytes;
    }
    if (put)
        HOST_TRY(h, zero_state_set_counters(h->z, &m->counters));
    else
        zero_state_counters(h->z, &m->counters);
    HOST_TRY(h, zero_state_end(h->z, put));
    return 1;
}

/* The last step from the state that was put: with the bits of the training without a stop. */
static int cuda_last(host_run *h, const cuda_seen *once, uint64_t looks, const char *what) {
    cuda_seen *seen = cuda_me->seen;
    cuda_me->from = h->step = CUDA_LAST;
    seen->looks = seen->reports[CUDA_LAST] = 0;
    if (cuda_me->run->compares) h->reference = &cuda_me->run->references[CUDA_LAST];
    if (!cuda_steps(h, CUDA_STEPS) || !cuda_finish(h)) return 0;
    if (seen->weights != once->weights || seen->looks != looks
        || seen->reports[CUDA_LAST] != once->reports[CUDA_LAST])
        test_rank_fail(h->rank, "%s: %s", what,
                       seen->weights != once->weights ? "other weights"
                       : seen->looks != looks         ? "other parameters seen"
                                                      : "another report of the last step");
    return !h->rank->failed;
}

static void cuda_train_saved(host_run *h, test_rank *rank, cuda_state *m) {
    const cuda_seen once = *cuda_me->seen;
    uint64_t looks = 0;
    if (cuda_start(h, rank) && cuda_steps(h, CUDA_LAST) && cuda_state_move(h, m, 0)) {
        cuda_me->seen->looks = 0; /* nothing is under way on the host's stream */
        if (cuda_steps(h, CUDA_STEPS) && cuda_state_move(h, m, 1)) {
            looks = cuda_me->seen->looks;
            (void)cuda_last(h, &once, looks, "put back");
        }
    }
    zero_destroy(h->z);
    h->z = NULL;
    if (!cuda_me->spec.cfg.delay_from)
        cuda_me->spec.cfg.optimizer_tier = cuda_me->spec.cfg.parameter_tier =
            cuda_me->spec.cfg.gradient_tier = ZERO_DEVICE; /* state moves between tiers */
    if (!rank->failed && cuda_start(h, rank) && cuda_state_move(h, m, 1))
        (void)cuda_last(h, &once, looks, "put into a new context");
    zero_destroy(h->z);
}

static void cuda_train(test_rank *rank) {
    static __thread host_run h;
    static __thread cuda_state state;
    (void)host_train_pass; /* that of a host without streams */
    cuda_rank *me = cuda_me;
    if (me->run->erred) (void)cudaSetDevice(-1);
    if (rank->rank == 0) emulation_fail(me->run->sort, me->run->fail_at);
    if (rank->rank == 1 && me->run->joining) cuda_arm(me->run, NULL);
    if (cuda_start(&h, rank) && cuda_registered(rank)) {
        cuda_planned(rank, h.z);
        const zp_file begun = h.z->offload->file; /* the initial weights are written */
        if (rank->rank == 1 && !me->run->loss && !me->run->joining) cuda_arm(me->run, h.z);
        if (me->run->loss)
            (void)cuda_lose(&h, me->run->loss);
        else if (cuda_pinned_steps(&h) && cuda_moved(&h, &begun) && cuda_crossed(&h)
                 && cuda_finish(&h) && (me->run->k->more & CUDA_LEAVES))
            (void)cuda_leave(&h);
    }
    (void)__atomic_add_fetch(&me->run->gone, 1, __ATOMIC_ACQ_REL);
    cuda_stop(&h);
    if (me->run->erred && cudaGetLastError() != cudaErrorInvalidDevice)
        test_rank_fail(rank, "the host's own error is gone");
    if (!rank->failed && (me->run->k->more & CUDA_SAVES)) {
        state.at_device = (char *)zero_host_alloc(CUDA_STATE);
        if (!state.at_device) test_rank_fail(rank, "no memory for a state");
        if (state.at_device) cuda_train_saved(&h, rank, &state);
        zero_host_free(state.at_device);
    }
    if (rank->rank == 0) me->run->calls = emulation_calls(me->run->sort);
    if (rank->rank == 0) emulation_fail(me->run->sort, 0);
}

/* ---- a rank ---- */

static void cuda_need(test_rank *rank, int ok, const char *what) {
    if (!ok) test_rank_fail(rank, "%s", what);
}

#ifdef EMULATED_LAUNCH
/* The plugin's failure is not the caller's communicator's. */
static void cuda_caller_lives(test_rank *rank, ncclComm_t comm, cudaStream_t stream) {
    float *sum = NULL, mine = 1;
    if (emulation_found() || cudaMalloc((void **)&sum, 256) != cudaSuccess)
        return; /* the device is lost */
    (void)cudaMemcpyAsync(sum, &mine, sizeof mine, cudaMemcpyDefault, stream);
    ncclResult_t r = ncclAllReduce(sum, sum, 1, ncclFloat32, ncclSum, comm, stream);
    while (r == ncclInProgress && ncclCommGetAsyncError(comm, &r) == ncclSuccess) {}
    (void)cudaMemcpyAsync(&mine, sum, sizeof mine, cudaMemcpyDefault, stream);
    (void)cudaStreamSynchronize(stream);
    char *why = cuda_me->run->why[rank->rank];
    const size_t n = strlen(why);
    if (r != ncclSuccess || mine != (float)rank->nranks)
        (void)snprintf(why + n, sizeof rank->why - n,
                       "; the caller's communicator is broken: %s, %g", ncclGetErrorString(r),
                       (double)mine);
    (void)cudaFree(sum);
}

static void cuda_comm_open(test_rank *rank, cuda_rank *me) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    if (me->run->k->kind != ZERO_COMM_NCCL) return;
    config.blocking = !(me->run->k->more & CUDA_NO_WAIT);
    ncclResult_t r =
        ncclCommInitRankConfig(&me->comm, rank->nranks, me->run->id, rank->rank, &config);
    while (r == ncclInProgress && ncclCommGetAsyncError(me->comm, &r) == ncclSuccess) {}
    cuda_need(rank, r == ncclSuccess, "ncclCommInitRankConfig");
}
static void cuda_comm_close(test_rank *rank, cuda_rank *me) {
    if (!me->comm) return;
    if (me->run->faults) emulation_fail(me->run->sort, 0); /* this rank's training is over */
    if (me->run->faults) cuda_caller_lives(rank, me->comm, me->stream);
    cuda_need(rank, ncclCommDestroy(me->comm) == ncclSuccess, "ncclCommDestroy");
}
/* What is set before the ranks start. */
static void cuda_prepare(cuda_run *run) {
    emulation_nccl_lacks(run->k->more & CUDA_OLD_NCCL ? "ncclCommWindowRegister" : NULL);
    emulation_nccl_version(run->k->more & CUDA_OLD_NCCL ? CUDA_OLDEST : NCCL_VERSION_CODE);
    emulation_nccl_windows(!(run->k->more & CUDA_NO_WINDOWS));
    if (run->k->kind == ZERO_COMM_NCCL) (void)ncclGetUniqueId(&run->id);
    if (run->k->more & CUDA_ORDERED)
        (void)setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 1);
    else
        (void)unsetenv("NCCL_LAUNCH_ORDER_IMPLICIT");
}
#else
static void cuda_comm_open(test_rank *rank, cuda_rank *me) { (void)rank, (void)me; }
static void cuda_comm_close(test_rank *rank, cuda_rank *me) { (void)rank, (void)me; }
static void cuda_prepare(cuda_run *run) { (void)run; }
#endif

static void cuda_body(test_rank *rank) {
    cuda_run *run = (cuda_run *)rank->arg;
    const cuda_case *k = run->k;
    static __thread cuda_rank me;
    memset(&me, 0, sizeof me);
    me.run = run;
    me.spec = run->spec;
    me.seen = &run->seen[rank->rank];
    cuda_me = &me;
    emulation_enter(rank->rank, rank->nranks);
    const int devices = k->kind == ZERO_COMM_NCCL || (k->more & CUDA_DEVICES);
    cuda_need(rank, cudaSetDevice(devices ? rank->rank : 0) == cudaSuccess, "cudaSetDevice");
    const unsigned flags = k->more & CUDA_BLOCKING ? 0 : cudaStreamNonBlocking;
    if (!(k->more & CUDA_DEFAULT))
        cuda_need(rank, cudaStreamCreateWithFlags(&me.stream, flags) == cudaSuccess, "a stream");
    me.spec.cfg.stream = me.stream;
    cuda_comm_open(rank, &me);
    if (!rank->failed) cuda_train(rank);
    memcpy(run->why[rank->rank], rank->why, sizeof rank->why);
    cuda_comm_close(rank, &me);
    (void)cudaDeviceSynchronize(); /* and whatever the plugin has left at work */
    if (me.stream) (void)cudaStreamDestroy(me.stream);
    emulation_leave();
}

/* Memory, streams, events and communicators that nobody has freed. */
static size_t cuda_left(void) {
#ifdef EMULATED_LAUNCH
    return emulation_live() + emulation_nccl_live();
#else
    return emulation_live();
#endif
}

/* What ran when: recorded at every second seed. */
static int cuda_untimely; /* events that end before they begin, or are of no track */
static void cuda_trace(void *user, const zero_event *events, int n) {
    for (int i = 0; i < n; i++)
        if (!(events[i].end >= events[i].begin) || events[i].track >= ZERO_TRACK_FILES)
            __atomic_add_fetch(&cuda_untimely, 1, __ATOMIC_RELAXED);
}

static int cuda_events, cuda_updates; /* told */
static void cuda_count(void *user, const zero_event *events, int n) {
    int updates = 0;
    for (int i = 0; i < n; i++) updates += events[i].kind == ZERO_EVENT_UPDATE;
    cuda_trace(user, events, n);
    __atomic_add_fetch(&cuda_events, n, __ATOMIC_RELAXED);
    __atomic_add_fetch(&cuda_updates, updates, __ATOMIC_RELAXED);
}

/* Everything is right so far: nothing failed, nothing was found, all was freed. */
static int cuda_once(cuda_run *run, uint64_t seed) {
    const cuda_case *k = run->k;
    const int several = k->kind == ZERO_COMM_NCCL || (k->more & CUDA_DEVICES);
    memset(run->seen, 0, sizeof run->seen);
    memset(run->why, 0, sizeof run->why);
    run->gone = 0;
    run->spec.cfg.timeout_s = run->loss ? 1 : run->faults && !run->told ? 0.25 : 20;
    run->spec.cfg.trace =
        run->records && seed & 1 ? run->records > 1 ? cuda_count : cuda_trace : NULL;
    emulation_reset();
    emulation_devices(several ? k->nranks : 1, 1);
    emulation_seed(seed);
    emulation_thread_order(seed);
    cuda_prepare(run);
    cuda_slow = (k->more & CUDA_SLOW) != 0;
    int ok = test_ranks(k->nranks, 0, cuda_body, run);
    const char *found = emulation_found();
    if (found) {
        const size_t n = strlen(test_first);
        (void)snprintf(test_first + n, sizeof test_first - n, "%s%s", n ? "; " : "", found);
        ok = 0;
    }
    if ((ok || run->faults) && !found && cuda_left()) {
        (void)snprintf(test_first, sizeof test_first, "%zu objects or communicators are left",
                       cuda_left());
        ok = 0;
    }
    return ok;
}

static int cuda_open(cuda_run *run, const cuda_case *k) {
    memset(run, 0, sizeof *run);
    run->k = k;
    run->absent = -1;
    cuda_spec(&run->spec, k);
    for (int t = 0; t < 2; t++) run->spec.desc[t].row_numel = run->spec.row[t];
    if (k->more & CUDA_TURNS) cuda_turns_draw(run);
    const int sharded = cuda_sharded(k) && k->micro_steps > 1;
    run->compares = !k->overflow
                    && !(k->more
                         & (CUDA_NORM | CUDA_NO_MASTER | CUDA_STATES | CUDA_CODES | CUDA_SKIPS
                            | CUDA_REWRITES | CUDA_LAMB | CUDA_MUON | CUDA_ADAGRAD | CUDA_PACKED))
                    && (k->kind != ZERO_COMM_NCCL || k->nranks < 3); /* a third is not exact */
    for (int i = 0; i <= CUDA_STEPS && run->compares; i++) {
        host_reference *r = &run->references[i];
        host_reference_open(r, &run->spec);
        for (int step = 0; step < i; step++) host_reference_step(r, &run->spec, sharded, step, 1.0);
    }
    return 1;
}
static void cuda_close(cuda_run *run) {
    for (int i = 0; i <= CUDA_STEPS && run->compares; i++)
        host_reference_close(&run->references[i], &run->spec);
}

/* The case at once, then with n seeds; all must see the same. */
static void cuda_case_seeds(const cuda_case *k, uint64_t first, int n) {
    static cuda_run run;
    cuda_seen expected[CUDA_RANKS];
    int good = 0;
    (void)cuda_open(&run, k);
    run.records = 1;
    if (!test_check(cuda_once(&run, 0), "%s at once: %s", k->name, test_first)) return;
    memcpy(expected, run.seen, sizeof expected);
    if (k->more & CUDA_DENSE) {
        for (int t = 0; t < 2; t++) run.spec.desc[t].row_numel = 0;
        const int ok = cuda_once(&run, 0);
        (void)test_check(ok && !memcmp(expected, run.seen, sizeof expected), "%s, densely: %s",
                         k->name, ok ? "other bits" : test_first);
        for (int t = 0; t < 2; t++) run.spec.desc[t].row_numel = run.spec.row[t];
    }
    if (k->more & CUDA_AWAY) {
        const int delays = run.spec.cfg.delay_from;
        const zero_tier tier = run.spec.cfg.optimizer_tier, params = run.spec.cfg.parameter_tier,
                        grads = run.spec.cfg.gradient_tier;
        run.spec.cfg.optimizer_tier = run.spec.cfg.parameter_tier = run.spec.cfg.gradient_tier =
            ZERO_DEVICE;
        run.spec.cfg.delay_from = 0;
        const int ok = cuda_once(&run, 0);
        for (int r = 0; r < CUDA_RANKS && delays; r++) run.seen[r].looks = expected[r].looks;
        (void)test_check(ok && !memcmp(expected, run.seen, sizeof expected), "%s on the device: %s",
                         k->name, test_first);
        run.spec.cfg.optimizer_tier = tier;
        run.spec.cfg.parameter_tier = params;
        run.spec.cfg.gradient_tier = grads;
        run.spec.cfg.delay_from = delays;
    }
    for (int i = 0; i < n; i++) {
        const uint64_t seed = first + (uint64_t)i;
        const int ok = cuda_once(&run, seed);
        const int same = !memcmp(expected, run.seen, sizeof expected);
        if (ok && same)
            good++;
        else if (good == i)
            fprintf(stderr, "%s, seed %llu: %s\n", k->name, (unsigned long long)seed,
                    ok ? "other bits than at once" : test_first);
    }
    (void)test_check(good == n, "%s: %d of %d seeds give the same as at once", k->name, good, n);
    (void)test_check(!cuda_untimely, "%s: %d events are untimely", k->name, cuda_untimely);
    cuda_close(&run);
}

/* On a GPU ranks are threads on the current device, in memory that the host reaches as well. */
static int cuda_can(const cuda_case *k) {
    return EMULATES || (k->kind != ZERO_COMM_NCCL && !(k->more & CUDA_DEVICES));
}

static int cuda_one_of(test_random *r, int n) { return (int)test_below(r, n); }
static int64_t cuda_flag(test_random *r, int of, int64_t flag) {
    return test_below(r, of) ? 0 : flag;
}

/* A case with tiers, drawn: of what goes together. */
static void cuda_draw(cuda_case *k, char *name, size_t bytes, uint64_t seed) {
    static const int64_t tiers[] = {CUDA_HOST, CUDA_FILE, CUDA_THROUGH};
    static const int64_t rules[] = {0, CUDA_LAMB, CUDA_MUON, CUDA_ADAGRAD};
    test_random r = {seed};
    memset(k, 0, sizeof *k);
    k->kind = test_below(&r, 3) ? ZERO_COMM_LOCAL : ZERO_COMM_NCCL;
    k->nranks = 2 + cuda_one_of(&r, 2);
    k->stage = cuda_one_of(&r, 4);
    k->micro_steps = test_below(&r, 3) ? 1 : 3;
    k->accumulation = test_below(&r, 2) ? ZERO_ACCUMULATE_AUTO : ZERO_ACCUMULATE_SHARDED;
    k->type = (zero_type)cuda_one_of(&r, 3);
    k->prefetch = cuda_one_of(&r, 4) - 1;
    k->buckets = 2 * cuda_one_of(&r, 2);
    k->overflow = k->type == ZERO_F16;
    k->evaluate = test_below(&r, 2) ? cuda_one_of(&r, CUDA_EVAL_ALL + 1) : 0;
    k->more = tiers[cuda_one_of(&r, 3)] | rules[cuda_one_of(&r, 4)] | cuda_flag(&r, 3, CUDA_READS)
              | cuda_flag(&r, 3, CUDA_NORM) | cuda_flag(&r, 3, CUDA_ALL_GATHERED)
              | cuda_flag(&r, 3, CUDA_NO_MAPPING) | cuda_flag(&r, 3, CUDA_AHEAD)
              | cuda_flag(&r, 4, CUDA_SILENT) | cuda_flag(&r, 5, CUDA_NO_OVERLAP)
              | cuda_flag(&r, 6, CUDA_RECOMPUTE) | cuda_flag(&r, 8, CUDA_LARGE);
    k->more |= cuda_flag(&r, 4, CUDA_STATES);
    if (!(k->more & (CUDA_STATES | CUDA_ADAGRAD))) k->more |= cuda_flag(&r, 4, CUDA_CODES);
    if (k->type == ZERO_BF16) k->more |= cuda_flag(&r, 3, CUDA_NO_MASTER);
    if (k->type == ZERO_BF16 && !(k->more & CUDA_NO_MASTER))
        k->more |= cuda_flag(&r, 2, CUDA_SPLIT);
    if (k->more & CUDA_MUON) k->more &= ~(int64_t)CUDA_LARGE; /* a matrix takes a minute here */
    if (k->more & CUDA_LARGE) k->buckets = 0;
    if (!k->overflow) k->more |= cuda_flag(&r, 4, CUDA_SKIPS);
    const int64_t delays = k->more & CUDA_THROUGH ? 0 : cuda_flag(&r, 4, CUDA_DELAYS);
    k->more |= delays ? delays : cuda_flag(&r, 3, CUDA_HALF);
    if (delays) k->evaluate &= CUDA_EVAL_STEPPED; /* others see what has come in so far */
    if (!delays && k->stage == 3 && !(k->more & CUDA_THROUGH))
        k->more |= cuda_flag(&r, 2, CUDA_PARAMS);
    if (k->stage >= 2 && !(k->more & CUDA_THROUGH)) k->more |= cuda_flag(&r, 2, CUDA_GRADS);
    if (!(k->more & CUDA_GRADS)) k->more |= cuda_flag(&r, 2, CUDA_SENDS);
    (void)snprintf(name, bytes,
                   "drawn %llu: kind %d, stage %d, type %d, micro-steps %d, flags %llx",
                   (unsigned long long)seed, (int)k->kind, k->stage, (int)k->type, k->micro_steps,
                   (unsigned long long)k->more);
    k->name = name;
}
static void cuda_all_drawn(int n, uint64_t first) {
    for (int i = 0; i < n; i++) {
        cuda_case k;
        char name[128];
        cuda_draw(&k, name, sizeof name, first + (uint64_t)i);
        cuda_disk.moody = i % 2;
        if (cuda_can(&k)) cuda_case_seeds(&k, first, EMULATES);
        cuda_disk.moody = 0;
    }
}

/* Rules of two passes: the same weights at every stage. */
static void cuda_stages(void) {
    for (int64_t more = CUDA_LAMB; more <= CUDA_MUON; more *= 2) {
        uint64_t first = 0;
        for (int stage = 0; stage < 4; stage++) {
            static cuda_run run;
            cuda_case k;
            (void)cuda_case_read(&k, "stages", "ranks=3 type=bf16");
            k.stage = stage;
            k.more = more;
            (void)cuda_open(&run, &k);
            const int ok = cuda_once(&run, 0);
            if (stage == 0) first = run.seen[0].weights;
            (void)test_check(ok && run.seen[0].weights == first, "%s, stage %d: %s",
                             more == CUDA_LAMB ? "LAMB" : "Muon", stage, test_first);
            cuda_close(&run);
        }
    }
}

/* ---- faults -------------------------------------------------------------------------------- */

#ifdef EMULATED_LAUNCH

static const cuda_case *cuda_named(const char *name) {
    for (int i = 0; i < CUDA_CASES; i++)
        if (!strcmp(cuda_cases[i].name, name)) return &cuda_cases[i];
    abort();
}

/* A rank whose ncclCommSplit fails leaves its peers there: the caller's communicator blocks, and is
   not the plugin's to abort. One that fails before has told them. */
static int cuda_in_split(const cuda_run *run) {
    int n = 0;
    for (int r = 0; r < run->k->nranks; r++) n += strstr(run->why[r], "ncclCommSplit") != NULL;
    return n == run->k->nranks;
}

/* What may not be, whatever has failed: nothing found, nothing left, nobody waits for long, other
   bits only with an error; and a caller's communicator that works. */
static int cuda_clean(cuda_run *run, const cuda_seen *expected, const char **wrong) {
    const double start = test_now();
    /* at once nothing is under way when the device is lost */
    const int ok = cuda_once(run, run->sort == EMULATION_DEATH ? run->fail_at : 0);
    const int same = !memcmp(expected, run->seen, sizeof run->seen);
    int failed = 0;
    *wrong = NULL;
    for (int r = 0; r < run->k->nranks; r++) {
        failed |= run->why[r][0] != 0;
        if (strstr(run->why[r], "caller's communicator is broken")) *wrong = run->why[r];
    }
    if (emulation_found()) *wrong = emulation_found();
    if (emulation_found() && strstr(emulation_found(), "deadlock") && cuda_in_split(run)) {
        *wrong = NULL;
        run->in_split++;
        return failed;
    }
    if (cuda_left()) *wrong = test_first;
    if (test_now() - start > 5) *wrong = "it took more than 5 s";
    if (ok && !same) *wrong = "other bits, and no error";
    return failed;
}

/* The k-th call of one sort fails, for k from 1 on in n runs; with NCCL in 20 more, of the calls
   before and while ranks join. */
static void cuda_fail_each(const char *name, emulation_call sort, const char *what, int n) {
    static cuda_run run;
    cuda_seen expected[CUDA_RANKS];
    const char *wrong = NULL;
    int failed = 0, runs = 0, silent = 0;
    (void)cuda_open(&run, cuda_named(name));
    run.sort = sort;
    (void)test_check(cuda_once(&run, 0), "%s: %s", name, test_first);
    memcpy(expected, run.seen, sizeof expected);
    const uint64_t calls = run.calls, by = calls > (uint64_t)n ? calls / (uint64_t)n : 1;
    const uint64_t joins = strstr(name, "nccl") ? 20 : 0;
    run.faults = 1;
    for (uint64_t k = 1; k <= calls; k += k < joins ? 1 : by, runs++) {
        run.fail_at = k;
        const int error = cuda_clean(&run, expected, &wrong);
        failed += error;
        silent += !error;
        if (wrong)
            (void)test_check(0, "%s, %s %llu of %llu fails: %s; rank 0: %s; rank 1: %s", name, what,
                             (unsigned long long)k, (unsigned long long)calls, wrong, run.why[0],
                             run.why[1]);
    }
    printf("%-14s %-11s %d of %llu made to fail: %d errors, %d without effect", name, what, runs,
           (unsigned long long)calls, failed, silent);
    printf(run.in_split ? ", %d leave peers in ncclCommSplit\n" : "\n", run.in_split);
    if (sort == EMULATION_ALLOCATION)
        (void)test_check(!run.in_split, "%s: %d allocations that fail leave peers in ncclCommSplit",
                         name, run.in_split);
    (void)test_check(failed > 0, "%s: no %s that fails is an error", name, what);
    if (sort == EMULATION_ALLOCATION)
        (void)test_check(silent == 0, "%s: %d allocations that fail are no error", name, silent);
    cuda_close(&run);
}

/* Each rank has an error, and it says all of these. */
static void cuda_told(const cuda_run *run, const char *what, int but, const char *a,
                      const char *b) {
    for (int r = 0; r < run->k->nranks; r++)
        if (r != but)
            (void)test_check(strstr(run->why[r], a) && strstr(run->why[r], b),
                             "%s, %s: rank %d says `%s`, expected %s and %s", run->k->name, what, r,
                             run->why[r], a, b);
}

static void cuda_rank_stays_away(const char *name, const char *sentence) {
    static cuda_run run;
    cuda_seen none[CUDA_RANKS];
    const char *wrong = NULL;
    memset(none, 0, sizeof none);
    (void)cuda_open(&run, cuda_named(name));
    run.faults = 1;
    run.absent = 1;
    (void)test_check(cuda_clean(&run, none, &wrong), "%s: a rank stays away: an error", name);
    (void)test_check(!wrong, "%s: a rank stays away: %s", name, wrong);
    cuda_told(&run, "a rank stays away", 1, "rank", sentence);
    printf("%-14s a rank stays away: %s\n", name, run.why[0]);
    cuda_close(&run);
}

/* Rank 1's k-th collective is lost, or meets an error that NCCL tells of later. */
static void cuda_collective_fails(const char *name, uint64_t k, int lost) {
    static cuda_run run;
    cuda_seen none[CUDA_RANKS];
    const char *wrong = NULL, *what = lost ? "a collective is lost" : "an asynchronous error";
    memset(none, 0, sizeof none);
    (void)cuda_open(&run, cuda_named(name));
    run.faults = 1;
    run.miss = lost ? k : 0;
    run.break_at = lost ? 0 : k;
    (void)test_check(cuda_clean(&run, none, &wrong), "%s: %s %llu: an error", name, what,
                     (unsigned long long)k);
    (void)test_check(!wrong, "%s: %s %llu: %s", name, what, (unsigned long long)k, wrong);
    cuda_told(&run, what, -1, "rank", " of unit ");
    printf("%-14s %s: rank 0: %s\n%-14s rank 1: %s\n", name, what, run.why[0], "", run.why[1]);
    cuda_close(&run);
}

/* Another thread notes a failure between the begin of a group and its end: who holds NCCL's lock
   gives it back all the same, or the communicators are never aborted. */
static void cuda_group_fails(const char *name) {
    static cuda_run run;
    cuda_seen none[CUDA_RANKS];
    const char *wrong = NULL;
    memset(none, 0, sizeof none);
    (void)cuda_open(&run, cuda_named(name));
    run.faults = run.fails_inside = 1;
    (void)test_check(cuda_clean(&run, none, &wrong), "%s: failed in a group: an error", name);
    (void)test_check(!wrong && strstr(run.why[1], "failed meanwhile"),
                     "%s: failed in a group: %s; rank 1: %s", name, wrong ? wrong : "", run.why[1]);
    cuda_close(&run);
}

/* NCCL tells of a peer that is gone while ranks join: they do not wait for the time limit. */
static void cuda_join_breaks(const char *name) {
    static cuda_run run;
    cuda_seen none[CUDA_RANKS];
    const char *wrong = NULL;
    memset(none, 0, sizeof none);
    (void)cuda_open(&run, cuda_named(name));
    run.faults = run.joining = 1;
    for (run.break_at = 1; run.break_at <= 2; run.break_at++) {
        (void)test_check(cuda_clean(&run, none, &wrong), "%s: an error while joining", name);
        (void)test_check(!wrong && strstr(run.why[1], "an exchange: remote process exited"),
                         "%s: an error while joining: %s; rank 1: %s", name, wrong ? wrong : "",
                         run.why[1]);
    }
    cuda_close(&run);
}

static zero_result cuda_call_sum(zero_ctx *z) {
    double x = 1;
    return zero_all_sum(z, &x, 1);
}
static zero_result cuda_call_result(zero_ctx *z) {
    zero_step_report r;
    return zero_step_result(z, &r);
}
/* Inside the plugin, where nobody asks for failures again. */
static zero_result cuda_call_barrier(zero_ctx *z) { return zp_comm_barrier(z->data); }
static zero_result cuda_call_broadcast(zero_ctx *z) {
    float x[4] = {1, 2, 3, 4};
    return zp_comm_broadcast(z->data, x, sizeof x, 0);
}

static void cuda_lost_calls(void) {
    static cuda_run run;
    static const cuda_loss losses[] = {{"zero_all_sum", cuda_call_sum, 0},
                                       {"zero_step_result", cuda_call_result, 1},
                                       {"zp_comm_barrier", cuda_call_barrier, 0},
                                       {"zp_comm_broadcast", cuda_call_broadcast, 0}};
    emulation_patience(5);
    for (size_t i = 0; i < sizeof losses / sizeof *losses; i++) {
        (void)cuda_open(&run, cuda_named("nccl-0"));
        run.faults = 1;
        run.loss = &losses[i];
        run.miss = 1;
        (void)test_check(cuda_once(&run, 0), "a collective is lost: %s", test_first);
        cuda_close(&run);
    }
    emulation_patience(20);
}

/* Rank 0 fills a lane whose tasks wait for the device, and the device is lost: that is an error,
   and rank 0 does not wait for room for ever. */
static void cuda_fill_lane(test_rank *rank) {
    const int beside = *(const int *)rank->arg; /* the lane is a stream's */
    zp_device d;
    zp_stream down, s;
    zp_event opened;
    zp_gate gate, *g = &gate;
    zp_lane asks;
    size_t n = 0;
    emulation_enter(rank->rank, rank->nranks);
    while (rank->rank == 1 && cudaStreamQuery(NULL) == cudaSuccess) zp_nap();
    if (rank->rank == 0) {
        zp_gate_init(g);
        zero_result r = zp_device_open(&d);
        if (!r) r = zp_device_open_stream(&down, &d, NULL, 1, 0, 1);
        if (!r) r = zp_device_open_stream(&s, &d, NULL, 1, 0, 1);
        if (!r) r = zp_device_attach_lane(&s, 1);
        if (!r) r = zp_lane_open(&asks, 1);
        if (!r) r = zp_device_open_event(&d, &opened);
        emulation_stall(down.cuda);
        if (!r) r = zp_device_call_from_stream(&down, zp_gate_open, g);
        if (!r) r = zp_device_record_event(&down, &opened);
        if (!r) r = zp_device_wait_event(&s, &opened);
        for (; !r && n < 2 * ZP_LANE_TASKS; n++) {
            if (beside)
                r = zp_device_push_task(&s, lane_pass_task, &g, sizeof(zp_gate *), 0);
            else if (!(r = zp_device_wait_lane_room(&s, &asks)))
                zp_lane_push(&asks, NULL, lane_pass_task, &g, sizeof(zp_gate *), 0);
        }
        if (r != ZERO_ERR_DEVICE || n <= ZP_LANE_TASKS || !strstr(d.text, "illegal memory access"))
            test_rank_fail(rank, "task %zu: %s: %s", n, zero_result_string(r), d.text);
        zp_gate_abandon(g);
        zp_device_finish_stream(&s);
        zp_lane_close(&asks);
        zp_device_close_stream(&s);
        zp_device_close_stream(&down);
        zp_device_close_event(&opened);
        zp_device_close(&d);
        zp_gate_close(g);
    }
    emulation_leave();
}
static void cuda_full_lanes(void) {
    for (int beside = 0; beside < 2; beside++) {
        emulation_reset();
        emulation_devices(1, 1);
        emulation_seed(0);
        emulation_fail(EMULATION_DEATH, 1000);
        (void)test_check(test_ranks(2, 0, cuda_fill_lane, &beside), "a full lane%s: %s",
                         beside ? " of a stream" : "", test_first);
    }
    emulation_fail(EMULATION_DEATH, 0);
    emulation_reset();
}

/* An NCCL from before ncclCommRegister. */
static void cuda_too_old(test_rank *rank) {
    zero_config cfg;
    zero_ctx *z = NULL;
    ncclComm_t comm = NULL;
    const zero_comm given = {ZERO_COMM_NCCL, 0, &comm, 0};
    memset(&cfg, 0, sizeof cfg);
    cfg.log = test_quiet;
    emulation_enter(rank->rank, rank->nranks);
    const ncclUniqueId *id = (const ncclUniqueId *)rank->arg;
    cuda_need(rank, ncclCommInitRank(&comm, 1, *id, 0) == ncclSuccess, "ncclCommInitRank");
    const zero_result r = zero_create(&z, &cfg, &given);
    if (r != ZERO_ERR_UNSUPPORTED || !strstr(zero_last_error(z), "NCCL 2.18.5 is loaded: 2.19"))
        test_rank_fail(rank, "%s: %s", zero_result_string(r), zero_last_error(z));
    zero_destroy(z);
    cuda_need(rank, ncclCommDestroy(comm) == ncclSuccess, "ncclCommDestroy");
    emulation_leave();
}

static void cuda_old_nccl(void) {
    ncclUniqueId id;
    emulation_reset();
    emulation_devices(1, 1);
    emulation_seed(0);
    emulation_nccl_version(21805);
    (void)ncclGetUniqueId(&id);
    (void)test_check(test_ranks(1, 0, cuda_too_old, &id), "NCCL 2.18.5 is no error: %s",
                     test_first);
    (void)test_check(!cuda_left(), "NCCL 2.18.5: %zu objects or communicators are left",
                     cuda_left());
    emulation_nccl_version(NCCL_VERSION_CODE);
}

/* A rank that cannot pin: all say who, and how many bytes. */
static void cuda_unpinned(void) {
    static cuda_run run;
    cuda_seen none[CUDA_RANKS];
    const char *wrong = NULL;
    int told = 0;
    memset(none, 0, sizeof none);
    (void)cuda_open(&run, cuda_named("host-2"));
    run.faults = 1;
    run.sort = EMULATION_ALLOCATION;
    for (run.fail_at = 1; run.fail_at < 30; run.fail_at++) {
        (void)cuda_clean(&run, none, &wrong);
        if (!strstr(run.why[0], "of the host's memory, of which")) continue;
        told++;
        cuda_told(&run, "a rank cannot pin", -1, " could not get ", " pinned");
    }
    (void)test_check(told == run.k->nranks, "host-2: %d allocations pin memory", told);
    cuda_close(&run);
}

/* A call to the disk that fails, once on some rank: every rank says which, in that one's words. */
static void cuda_disk_fails(const char *name, int n) {
    static const char *const says[] = {"reading byte", "writing byte", "a file in ",
                                       "are free: No"};
    static cuda_run run;
    cuda_seen none[CUDA_RANKS];
    const char *wrong = NULL;
    int runs[CUDA_DISK_CALLS] = {0};
    memset(none, 0, sizeof none);
    memset(&cuda_disk, 0, sizeof cuda_disk);
    (void)cuda_open(&run, cuda_named(name));
    (void)test_check(cuda_once(&run, 0), "%s: %s", name, test_first);
    long all[CUDA_DISK_CALLS];
    memcpy(all, cuda_disk.calls, sizeof all);
    run.faults = run.told = 1;
    for (int call = 0; call < CUDA_DISK_CALLS; call++)
        for (long k = 1; k <= all[call]; k += all[call] / n + 1) {
            memset(&cuda_disk, 0, sizeof cuda_disk);
            cuda_disk.fail[call] = k;
            const int failed = cuda_clean(&run, none, &wrong);
            const int met = cuda_disk.calls[call] >= k;
            (void)test_check(failed == met && !wrong, "%s, %s %ld fails: %s", name, says[call], k,
                             wrong ? wrong : "no error");
            const char *first = NULL;
            for (int r = 0; r < run.k->nranks && !first; r++)
                first = strstr(run.why[r], says[call]);
            for (int r = 0; r < run.k->nranks && met; r++) {
                const char *his = strstr(run.why[r], says[call]);
                /* ranks of another copy of the state meet nobody after their last access */
                const int apart = (run.k->more & CUDA_SHARDS) && !run.why[r][0];
                (void)test_check(apart || (first && his && !strcmp(first, his)),
                                 "%s, %s %ld fails: rank %d says `%s`, others `%s`", name,
                                 says[call], k, r, run.why[r], first ? first : "");
            }
            runs[call] += met;
        }
    printf("%-14s %d reads, %d writes, %d opens, %d allocations of the disk made to fail\n", name,
           runs[CUDA_READ], runs[CUDA_WRITE], runs[CUDA_OPEN], runs[CUDA_ALLOCATE]);
    for (int call = 0; call < CUDA_DISK_CALLS; call++)
        (void)test_check(runs[call] > 0, "%s: no call that is %s has failed", name, says[call]);
    memset(&cuda_disk, 0, sizeof cuda_disk);
    cuda_close(&run);
}

/* State, parameters and gradients on their ways between the file and memory. */
static void cuda_disks_fail(int n) {
    static const char *const cases[] = {"file-3",          "file-2-delays",    "file-3-params",
                                        "file-3-grads",    "file-nccl-3",      "file-nccl-params",
                                        "file-nccl-grads", "muon-file-delays", "shards-file-3"};
    emulation_patience(1.5);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) cuda_disk_fails(cases[i], n);
    emulation_patience(20);
}

/* The calls of one case fail. */
static void cuda_case_faults(const char *name, int n) {
    cuda_fail_each(name, EMULATION_ALLOCATION, "allocation", 1000);
    cuda_fail_each(name, EMULATION_ANY, "call", n);
    cuda_fail_each(name, EMULATION_DEATH, "device", 4 * n); /* each with a seed of its own */
    if (!strncmp(name, "nccl", 4)) cuda_fail_each(name, EMULATION_NCCL, "NCCL call", n);
}

/* `name`: of that case only; NULL: all. */
static void cuda_faults(int n, const char *name) {
    if (!name) cuda_disks_fail(n);
    emulation_patience(1.5);
    if (name) {
        cuda_case_faults(name, n);
        return;
    }
    cuda_unpinned();
    static const char *const cases[] = {
        "local-3",      "local-1",       "local-3-mapped", "nccl-3",          "nccl-0",
        "joins-nccl",   "saved-3",       "host-3",         "host-1",          "host-nccl-3",
        "saved-host-0", "file-3",        "file-1",         "saved-file-2",    "file-3-params",
        "file-3-grads", "host-3-params", "through-3",      "saved-through-2", "sends-2-adds"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) cuda_case_faults(cases[i], n);
    cuda_rank_stays_away("local-3", "did not come to");
    cuda_rank_stays_away("local-2", "did not come to");
    cuda_rank_stays_away("nccl-3", "another rank did not come");
    cuda_rank_stays_away("nccl-0", "another rank did not come");
    cuda_rank_stays_away("packed-nccl-hops", "another rank did not come");
    cuda_rank_stays_away("packed-nccl-shards", "another rank did not come");
    cuda_rank_stays_away("joins-nccl", "another rank did not come");
    for (uint64_t k = 3; k < 50; k += 13)
        for (int lost = 0; lost < 2; lost++) {
            cuda_collective_fails("nccl-3", k, lost);
            cuda_collective_fails("packed-nccl-hops", k, lost);   /* in a hop, or between two */
            cuda_collective_fails("packed-nccl-shards", k, lost); /* among replicas, too */
            cuda_collective_fails("joins-nccl", k, lost);         /* of either context */
        }
    emulation_patience(20);
}

/* ---- mutations ----------------------------------------------------------------------------- */

#define CUDA_SITES 256
#define CUDA_LINES 24576 /* of zero_plugin.cu */

/* Places are found in the compiled file's text; built in its folder. */

/* A place in zero_plugin.cu that records or waits. */
typedef struct cuda_site {
    void *address;
    emulation_site_kind kind;
    int line;
    char in_case[CUDA_CASES]; /* the case comes by here */
    int caught;               /* 1: by a case and seed */
    const char *by, *why;
    uint64_t seed;
} cuda_site;

/* Records and waits that are right although their removal shows nothing, by function and text. */
static const struct {
    const char *function, *text, *reason;
} cuda_redundant[] = {
    {"zp_nccl_alloc_memory", "zp_device_alloc_cleared(",
     "the agreement behind it waits for the same stream; a rank alone has none, "
     "and writes its parameters long before the first gradient"},
    {"zero_state_begin", "zp_device_sync_stream(&z->stream[",
     "what was gathered ahead reads what may be put, and is thrown away behind "
     "zero_state_end: a race without a trace"},
    {"zp_comm_close", "->leave(g, broken)",
     "only an exchange that failed leaves copies behind: see the faults"},
    {"zp_collectives_free", "zp_device_sync_stream(&g->stream)",
     "a sum that is under way adds up from memory that is freed behind it: values that nobody "
     "reads any more"},
    {"zp_build_private", "zp_device_sync_stream(&z->compute)",
     "the spans are freed behind it: a late copy reads what nobody has written "
     "over yet"},
    {"zero_state_set_counters", "zp_device_sync_stream(&z->compute)",
     "the host may write *z->pinned again: a second copy follows the first"},
    {"zp_cpu_update_begin", "ZP_GATHERED])",
     "what an evaluation left under way is thrown away behind the step: a race without a trace"},
    {"zp_offload_gpu_abandon", "zp_device_close_stream(&g->up)",
     "what goes up goes down behind its update, and that was waited for"},
    {"zp_offload_gpu_abandon", "zp_device_sync_stream(&z->stream[side])",
     "without an error only what was gathered ahead is under way, and nobody reads that any more"},
    {"zp_delayed_swap", ".gathered)",
     "what is under way is forgotten behind it and gathered again: a race without a trace"},
    {NULL, NULL, NULL}};

static char cuda_lines[CUDA_LINES][104];
static int cuda_nlines;

/* The text of the file that was compiled: CUDA_SOURCE is its path. */
__asm__(".pushsection .rodata\ncuda_source:\n.incbin \"" CUDA_SOURCE "\"\n.byte 0\n.popsection\n");
extern "C" const char cuda_source[];

static int cuda_read_source(void) {
    const char *at = cuda_source;
    while (*at && cuda_nlines < CUDA_LINES) {
        const size_t n = strcspn(at, "\n"), blanks = strspn(at, " ");
        (void)snprintf(cuda_lines[cuda_nlines++], sizeof cuda_lines[0], "%.*s",
                       (int)(n > blanks ? n - blanks : 0), at + blanks);
        at += n + (at[n] == '\n');
    }
    return !*at;
}

extern "C" const char __executable_start;

/* The line of the source that an address belongs to. */
static int cuda_line_of(void *address) {
    char command[128], answer[512] = "";
    const Elf64_Ehdr *program = (const Elf64_Ehdr *)(const void *)&__executable_start;
    const uintptr_t base = program->e_type == ET_DYN ? (uintptr_t)program : 0;
    (void)snprintf(command, sizeof command, "addr2line -e /proc/%d/exe %#llx", (int)getpid(),
                   (unsigned long long)((uintptr_t)address - base - 1));
    FILE *f = popen(command, "r");
    if (!f) return 0;
    if (!fgets(answer, sizeof answer, f)) answer[0] = 0;
    (void)pclose(f);
    const char *colon = strstr(answer, "zero_plugin.cu:");
    return colon ? atoi(colon + strlen("zero_plugin.cu:")) : 0;
}

/* Adds the places that a case comes by, at once and with a few seeds. */
static int cuda_find_sites(cuda_site *sites, int n, int k) {
    static cuda_run run;
    void *list[CUDA_SITES];
    emulation_site_kind kinds[CUDA_SITES];
    (void)cuda_open(&run, &cuda_cases[k]);
    emulation_watch_sites(1);
    for (uint64_t seed = 0; seed < 3; seed++) (void)cuda_once(&run, seed);
    const int found = emulation_sites(list, kinds, CUDA_SITES);
    for (int i = 0; i < found; i++) {
        int at = 0;
        while (at < n && sites[at].address != list[i]) at++;
        if (at == n && n < CUDA_SITES) {
            memset(&sites[at], 0, sizeof sites[at]);
            sites[at].address = list[i];
            sites[at].kind = kinds[i];
            sites[at].line = cuda_line_of(list[i]);
            n += sites[at].line > 0; /* else it is the test's own */
        }
        if (at < n) sites[at].in_case[k] = 1;
    }
    cuda_close(&run);
    return n;
}

/* Runs a case without the place; 1: that shows. */
static int cuda_shows(cuda_run *run, const cuda_seen *expected, cuda_site *s, uint64_t seed) {
    static char why[160];
    emulation_leave_out(s->address);
    const int ok = cuda_once(run, seed);
    emulation_leave_out(NULL);
    const int same = !memcmp(expected, run->seen, sizeof run->seen);
    if (ok && same) return 0;
    (void)snprintf(why, sizeof why, "%.150s", ok ? "other bits" : test_first);
    s->caught = 1;
    s->by = run->k->name;
    s->why = why;
    s->seed = seed;
    return 1;
}

/* Where a host is steps ahead little else waits: with more seeds. */
static void cuda_catch(cuda_site *s, cuda_run *runs, cuda_seen (*expected)[CUDA_RANKS], int seeds) {
    const int ahead = CUDA_AHEAD | CUDA_DELAYS;
    for (uint64_t seed = 1; seed <= 10 * (uint64_t)seeds; seed++)
        for (int k = 0; k < CUDA_CASES; k++) {
            const int few = seed <= (uint64_t)seeds || (cuda_cases[k].more & ahead);
            if (s->in_case[k] && few && cuda_shows(&runs[k], expected[k], s, seed)) return;
        }
}

/* The head of the function that a line belongs to. */
static const char *cuda_function(int line) {
    const char *text;
    do text = cuda_lines[--line];
    while (line > 0
           && (strstr(text, " = ")
               || (strncmp(text, "static zero_result", 18) && strncmp(text, "static void", 11)
                   && strncmp(text, "zero_result", 11))));
    return text;
}

static void cuda_report_site(const cuda_site *s) {
    static const char *const kinds[] = {"record", "wait", "host's wait"};
    const char *text = cuda_lines[s->line - 1], *function = cuda_function(s->line), *reason = NULL;
    for (int i = 0; cuda_redundant[i].text; i++)
        if (strstr(function, cuda_redundant[i].function) && strstr(text, cuda_redundant[i].text))
            reason = cuda_redundant[i].reason;
    if (s->caught)
        printf("%5d %-11s caught by %s, seed %llu: %s\n", s->line, kinds[s->kind], s->by,
               (unsigned long long)s->seed, s->why);
    else
        printf("%5d %-11s %s\n", s->line, kinds[s->kind], reason ? reason : "FAILED: not caught");
    printf("      %s\n", text);
    (void)test_check(s->caught || reason, "line %d without its %s: nothing shows it: %s", s->line,
                     kinds[s->kind], text);
}

/* Every place is come by. */
static void cuda_all_sites(const cuda_site *sites, int n) {
    for (int line = 1; line <= cuda_nlines; line++) {
        const char *text = cuda_lines[line - 1];
        int seen = 0;
        if (!strstr(text, "zp_device_wait_event(") && !strstr(text, "zp_device_record_event("))
            continue;
        if (!strncmp(text, "static", 6)) continue;
        for (int i = 0; i < n; i++) seen |= sites[i].line == line;
        (void)test_check(seen, "no case comes by line %d: %s", line, text);
    }
}

/* `word`: only of functions that have it in their heads; `name`: only by cases that have it in
   theirs; NULL: of all. */
static void cuda_mutants(int seeds, const char *word, const char *name) {
    static cuda_site sites[CUDA_SITES];
    static cuda_run runs[CUDA_CASES];
    static cuda_seen expected[CUDA_CASES][CUDA_RANKS];
    int n = 0;
    if (!test_check(cuda_read_source(), "zero_plugin.cu has more than %d lines", CUDA_LINES))
        return;
    for (int k = 0; k < CUDA_CASES; k++)
        if (!name || strstr(cuda_cases[k].name, name)) n = cuda_find_sites(sites, n, k);
    cuda_folder =
        access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm"; /* a disk takes longer than that */
    emulation_patience(0.2);
    for (int k = 0; k < CUDA_CASES; k++) {
        if (name && !strstr(cuda_cases[k].name, name)) continue;
        (void)cuda_open(&runs[k], &cuda_cases[k]);
        (void)test_check(cuda_once(&runs[k], 0), "%s: %s", cuda_cases[k].name, test_first);
        memcpy(expected[k], runs[k].seen, sizeof expected[k]);
        runs[k].records = 1; /* nor does recording make a place needless */
    }
    for (int line = 0; line < cuda_nlines; line++)
        for (int i = 0; i < n; i++)
            if (sites[i].line == line && (!word || strstr(cuda_function(line), word))) {
                cuda_catch(&sites[i], runs, expected, seeds);
                cuda_report_site(&sites[i]);
            }
    if (!name) cuda_all_sites(sites, n);
    (void)test_check(name || n >= 40, "only %d places that record or wait are found", n);
    emulation_watch_sites(0);
    emulation_patience(20);
    for (int k = 0; k < CUDA_CASES; k++) cuda_close(&runs[k]);
}

/* What recording sends by itself is waited for by nobody: without any one place of it training is
   the same, and every event is told. */
static void cuda_recording(const char *name) {
    static cuda_run run;
    static cuda_seen expected[CUDA_RANKS];
    void *plain[CUDA_SITES], *all[CUDA_SITES];
    emulation_site_kind kinds[CUDA_SITES];
    int nplain = 0, nall = 0, own = 0, good = 0, open = 0;
    uint64_t ranges[2] = {0, 0};
    (void)cuda_open(&run, cuda_named(name));
    for (run.records = 0; run.records < 2; run.records++) {
        emulation_watch_sites(1);
        (void)test_check(cuda_once(&run, 1), "%s: %s", name, test_first);
        if (run.records)
            nall = emulation_sites(all, kinds, CUDA_SITES);
        else
            nplain = emulation_sites(plain, kinds, CUDA_SITES);
        if (!run.records) memcpy(expected, run.seen, sizeof expected);
        ranges[run.records] = emulation_ranges(&open);
        (void)test_check(open == 0, "%s: %d ranges of NVTX are open", name, open);
    }
    run.records = 2; /* and counts */
    cuda_events = 0;
    (void)cuda_once(&run, 1);
    const int events = cuda_events;
    (void)test_check(ranges[0] == 0 && ranges[1] > 0 && ranges[1] <= (uint64_t)events,
                     "%s: %d ranges of NVTX, of %d events; %d without recording", name,
                     (int)ranges[1], events, (int)ranges[0]);
    for (int i = 0; i < nall; i++) {
        int known = 0;
        for (int k = 0; k < nplain; k++) known |= plain[k] == all[i];
        /* without a wait of the host's the emulation holds the stream up for good: no finding */
        if (known || kinds[i] == EMULATION_HOST_WAIT) continue;
        own++;
        emulation_leave_out(all[i]);
        const int ok = cuda_once(&run, 1) && !memcmp(expected, run.seen, sizeof expected);
        emulation_leave_out(NULL);
        good += ok && !cuda_untimely;
        (void)test_check(ok, "%s without a place of recording: %s", name, test_first);
    }
    emulation_watch_sites(0);
    (void)test_check(own >= 10 && good == own && events > 0,
                     "%s: %d of %d places of recording change nothing; %d events", name, good, own,
                     events);
    cuda_close(&run);
}

/* Every update is told of; those of the last step may be under way until the context is destroyed.
 */
static void cuda_all_told(const char *name) {
    static cuda_run run;
    (void)cuda_open(&run, cuda_named(name));
    const int all = CUDA_STEPS * run.k->nranks * (run.spec.units + 1); /* and KEEP's */
    run.records = 2;
    for (uint64_t seed = 1; seed < 8; seed += 2) {
        cuda_updates = 0;
        (void)test_check(cuda_once(&run, seed), "%s, seed %d: %s", name, (int)seed, test_first);
        (void)test_check(cuda_updates == all, "%s, seed %d: %d of %d updates are told of", name,
                         (int)seed, cuda_updates, all);
    }
    cuda_close(&run);
}

#endif

/* ---- what is run --------------------------------------------------------------------------- */

/* An error that the host has met before, and not looked at, is neither blamed on the plugin nor
 * lost. */
static void cuda_host_erred(void) {
    static const char *const names[] = {"self-3", "local-1", "local-3", "nccl-0", "nccl-3"};
    static cuda_run run;
    static cuda_seen expected[CUDA_RANKS];
    for (int i = 0; i < CUDA_CASES; i++)
        for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
            if (strcmp(names[k], cuda_cases[i].name) != 0 || !cuda_can(&cuda_cases[i])) continue;
            (void)cuda_open(&run, &cuda_cases[i]);
            for (run.erred = 0; run.erred < 2; run.erred++) {
                (void)test_check(cuda_once(&run, 0), "%s, the host erred %d: %s", names[k],
                                 run.erred, test_first);
                if (!run.erred) memcpy(expected, run.seen, sizeof expected);
            }
            (void)test_check(!memcmp(expected, run.seen, sizeof expected), "%s: other bits",
                             names[k]);
            cuda_close(&run);
        }
}

/* What tiers a CUDA build has: of the optimizer first. */
static void cuda_tiers(void) {
    static const struct {
        zero_tier optimizer, gradients, parameters;
        int can;
    } cases[] = {{ZERO_HOST, ZERO_DEVICE, ZERO_DEVICE, 1}, {ZERO_HOST, ZERO_HOST, ZERO_DEVICE, 1},
                 {ZERO_DEVICE, ZERO_HOST, ZERO_DEVICE, 0}, {ZERO_HOST, ZERO_HOST, ZERO_HOST, 1},
                 {ZERO_FILE, ZERO_DEVICE, ZERO_DEVICE, 1}, {ZERO_FILE, ZERO_HOST, ZERO_DEVICE, 1},
                 {ZERO_HOST, ZERO_FILE, ZERO_DEVICE, 1},   {ZERO_HOST, ZERO_HOST, ZERO_FILE, 1},
                 {ZERO_FILE, ZERO_FILE, ZERO_FILE, 1},     {ZERO_DEVICE, ZERO_FILE, ZERO_DEVICE, 0},
                 {ZERO_DEVICE, ZERO_DEVICE, ZERO_FILE, 0}};
    const zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        zero_config cfg;
        zero_ctx *z = NULL;
        memset(&cfg, 0, sizeof cfg);
        cfg.stage = 3;
        cfg.folder = "/tmp";
        cfg.optimizer_tier = cases[i].optimizer;
        cfg.gradient_tier = cases[i].gradients;
        cfg.parameter_tier = cases[i].parameters;
        const zero_result r = zero_create(&z, &cfg, &self);
        (void)test_check(cases[i].can
                             ? r == ZERO_OK
                             : r == ZERO_ERR_ARGUMENT
                                   && strstr(zero_last_error(z),
                                             "CUDA builds offload the optimizer state first"),
                         "tiers, %d: %s", (int)i, zero_last_error(z));
        zero_destroy(z);
    }
}

/* Who updates what the host keeps: by the rates, or as asked for; and what the plan says of it. */
static void cuda_chooses(void) {
    static const struct {
        zero_update_on asked, expected;
        zero_type type;
        float link, memory;
        double host_ns, device_ns; /* an element */
    } cases[] = {
        {ZERO_UPDATE_AUTO, ZERO_UPDATE_DEVICE, ZERO_BF16, 0, 0, 26.0 / 60 + 2.0 / 25, 10.0 / 25},
        {ZERO_UPDATE_AUTO, ZERO_UPDATE_HOST, ZERO_BF16, 12, 100, 26.0 / 100 + 2.0 / 12, 10.0 / 12},
        {ZERO_UPDATE_AUTO, ZERO_UPDATE_HOST, ZERO_F32, 10, 100, 28.0 / 100 + 4.0 / 10, 0.8},
        {ZERO_UPDATE_AUTO, ZERO_UPDATE_DEVICE, ZERO_F32, 400, 200, 28.0 / 200 + 4.0 / 400, 0.08},
        {ZERO_UPDATE_HOST, ZERO_UPDATE_HOST, ZERO_BF16, 0, 0, 26.0 / 60 + 2.0 / 25, 10.0 / 25},
        {ZERO_UPDATE_DEVICE, ZERO_UPDATE_DEVICE, ZERO_BF16, 12, 100, 26.0 / 100 + 2.0 / 12,
         10.0 / 12}};
    const zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        zero_config cfg;
        zero_plan p;
        zero_ctx *z = NULL;
        zero_tensor_desc d;
        memset(&cfg, 0, sizeof cfg);
        memset(&d, 0, sizeof d);
        memset(&p, 0, sizeof p);
        cfg.optimizer_tier = ZERO_HOST;
        cfg.type = cases[i].type;
        cfg.update_on = cases[i].asked;
        cfg.link_gbs = cases[i].link;
        cfg.memory_gbs = cases[i].memory;
        d.name = "w";
        d.numel = 1 << 20;
        const int made =
            !zero_create(&z, &cfg, &self) && !zero_tensor(z, &d) && !zero_query_plan(z, &p);
        const double n = 1e-9 * (1 << 20);
        (void)test_check(made && p.update_on == cases[i].expected
                             && fabs(p.update_host_s / n - cases[i].host_ns) < 1e-6
                             && fabs(p.update_device_s / n - cases[i].device_ns) < 1e-6,
                         "update, %d: %d by %g ns, %g ns: %s", (int)i, (int)p.update_on,
                         p.update_host_s / n, p.update_device_s / n, zero_last_error(z));
        zero_destroy(z);
    }
}

static void cuda_all_seeds(int percent, uint64_t first, uint64_t every) {
    int runs = 0;
    const double start = test_now();
    for (int i = 0; i < CUDA_CASES; i++) {
        const cuda_case *k = &cuda_cases[i];
        const int n = EMULATES ? (k->seeds * percent + 99) / 100 : 0;
        if (!cuda_can(k) || ((uint64_t)i + first) % every) continue;
        cuda_case_seeds(k, first, n);
        runs += n;
    }
    printf("%d seeds in %.0f s\n", runs, test_now() - start);
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "all";
    const int n = argc > 2 ? atoi(argv[2]) : 0, all = !strcmp(what, "all");
    int reaches = 0;
    emulation_free_waits(0); /* CUDA does not promise it */
    (void)cudaDeviceGetAttribute(&reaches, cudaDevAttrConcurrentManagedAccess, 0);
    if (!test_check(reaches, "the CPU reaches managed memory while this GPU works")
        || !cuda_cases_read())
        return test_summary();
    for (int i = 0; i < CUDA_CASES && !strcmp(what, "case"); i++)
        if (argc > 2 && !strcmp(argv[2], cuda_cases[i].name))
            cuda_case_seeds(&cuda_cases[i], argc > 3 ? strtoull(argv[3], NULL, 10) : 1,
                            argc > 4 ? atoi(argv[4]) : 1);
    if (all || !strcmp(what, "seeds") || !strcmp(what, "loops")) lane_all(), loop_all();
    if (all || !strcmp(what, "seeds"))
        cuda_host_erred(), cuda_tiers(), cuda_stages(), cuda_chooses();
    if (all || !strcmp(what, "seeds"))
        cuda_all_seeds(n ? n : 100, argc > 3 ? strtoull(argv[3], NULL, 10) : 1,
                       argc > 4 && atoi(argv[4]) > 0 ? strtoull(argv[4], NULL, 10) : 1);
    if (all || !strcmp(what, "seeds") || !strcmp(what, "drawn"))
        cuda_all_drawn(!strcmp(what, "drawn") ? n : 10 * (n ? n : 100),
                       argc > 3 ? strtoull(argv[3], NULL, 10) : 1);
#ifdef EMULATED_LAUNCH
    if (all || !strcmp(what, "seeds")) cuda_lost_calls(), cuda_full_lanes();
    if (all || !strcmp(what, "seeds") || !strcmp(what, "recording"))
        cuda_recording("local-3"), cuda_recording("nccl-3"), cuda_all_told("host-3"),
            cuda_all_told("file-3-params");
    if (all || !strcmp(what, "seeds")) cuda_old_nccl();
    if (all || !strcmp(what, "seeds")) cuda_group_fails("nccl-3");
    if (all || !strcmp(what, "seeds")) cuda_group_fails("nccl-0"), cuda_join_breaks("nccl-3");
    if (all || !strcmp(what, "mutants"))
        cuda_mutants(n ? n : 4, argc > 3 ? argv[3] : NULL, argc > 4 ? argv[4] : NULL);
    if (!strcmp(what, "disk")) cuda_disks_fail(n ? n : 10);
    if (all || !strcmp(what, "faults")) cuda_faults(n ? n : 10, argc > 3 ? argv[3] : NULL);
#endif
    return test_summary();
}

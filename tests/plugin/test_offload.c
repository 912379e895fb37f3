/* test_offload.c - optimizer state, gradients and parameters on a disk, all of them or a share: the
   same bits as in memory, at every stage, type and rule, with skips, several micro-steps, access by
   name, evaluations, and state that moves between tiers; bytes as planned; and what a disk does:
   short transfers, interruptions, errors, no room, other bytes than were written. The linker leads
   the plugin's calls of files here (--wrap; FILED in the Makefile). */
#include "../shared/host.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef ZERO_WITH_URING
#include "offload_rings.h"
#endif

int __real_open(const char *path, int flags, ...);
int __real_mkostemp(char *path, int flags);
int __real_fcntl(int fd, int what, ...);
int __real_sync_file_range(int fd, off_t at, off_t bytes, unsigned how);
int __real_statx(int fd, const char *path, int flags, unsigned mask, struct statx *s);
ssize_t __real_pread(int fd, void *p, size_t n, off_t at);
ssize_t __real_pwrite(int fd, const void *p, size_t n, off_t at);
int __real_posix_fallocate(int fd, off_t at, off_t n);
int __real_fstatvfs(int fd, struct statvfs *s);

/* What the disk does: counted over all ranks. */
static struct {
    long reads, writes;
    long opens, allocates;
    long fail_read, fail_write, fail_open, fail_allocate; /* the k-th one fails; 0: none */
    size_t failed_at;                                     /* where in the file */
    int shorten, interrupt; /* transfers are cut, or interrupted first, now and then */
    int late;               /* and calls take their time */
    int flip;               /* a bit of this word of what the next read brings is another */
    int full;               /* behind the first sectors */
    int holds;              /* they were still taken when it was asked how many bytes are free */
    int refuse_direct, refuse_unnamed, refuse_named; /* errno of fcntl, open, and mkostemp */
    int refuse_out;   /* errno of sync_file_range; it is interrupted once before */
    int refuse_rings; /* the k-th ring is not made; 0: all are */
    int wants;        /* statx: offsets and memory are multiples of that; -1: it fails */
    int direct;       /* the last file passes the cache by */
    int too_early;    /* and did so before it had its room */
    long outs;        /* pieces that were written out */
    size_t read_at;   /* where in a file the last read began */
} disk_does;

/* Reads from a part of each rank's file wait until they are let go; `late`: that did not happen. */
static struct {
    int on, waiting, let_go, late;
    size_t from, to;
    int together; /* instead, until so many of them wait */
} disk_hold;
static void disk_held(size_t at) {
    if (!disk_hold.on || at < disk_hold.from || at >= disk_hold.to) return;
    const int waiting = __atomic_add_fetch(&disk_hold.waiting, 1, __ATOMIC_ACQ_REL);
    const double start = test_now();
    if (disk_hold.together && waiting >= disk_hold.together)
        __atomic_store_n(&disk_hold.let_go, 1, __ATOMIC_RELEASE);
    while (!__atomic_load_n(&disk_hold.let_go, __ATOMIC_ACQUIRE)) {
        (void)usleep(200);
        if (test_now() - start < 10) continue;
        __atomic_store_n(&disk_hold.late, 1, __ATOMIC_RELEASE);
        __atomic_store_n(&disk_hold.let_go, 1, __ATOMIC_RELEASE);
    }
}

static void disk_late(long k) {
    if (disk_does.late && k % 5 == 0) (void)usleep(500);
}
/* EINTR or EAGAIN, now and then; 0. */
static int disk_again(long k) {
    disk_late(k);
    return disk_does.interrupt && k % 3 ? k % 3 == 1 ? EINTR : EAGAIN : 0;
}
int __wrap_open(const char *path, int flags, ...) {
    va_list list;
    va_start(list, flags);
    const int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, int) : 0;
    va_end(list);
    const int unnamed = (flags & O_TMPFILE) == O_TMPFILE;
    const long k = unnamed ? __atomic_add_fetch(&disk_does.opens, 1, __ATOMIC_RELAXED) : 0;
    const int again = disk_again(k);
    if (unnamed && k == disk_does.fail_open) return errno = EMFILE, -1;
    if (unnamed && again) return errno = again, -1;
    if (unnamed && disk_does.refuse_unnamed) return errno = disk_does.refuse_unnamed, -1;
    if (unnamed) disk_does.direct = 0;
    return __real_open(path, flags, mode);
}
int __wrap_mkostemp(char *path, int flags) {
    if (disk_does.refuse_named) return errno = disk_does.refuse_named, -1;
    disk_does.direct = 0;
    return __real_mkostemp(path, flags);
}
int __wrap_fcntl(int fd, int what, ...) {
    va_list list;
    va_start(list, what);
    const int flags = what == F_SETFL ? va_arg(list, int) : 0;
    va_end(list);
    if (flags & O_DIRECT && disk_does.refuse_direct) return errno = disk_does.refuse_direct, -1;
    const int r = __real_fcntl(fd, what, flags);
    if (flags & O_DIRECT && !r) disk_does.direct = 1;
    return r;
}
int __wrap_sync_file_range(int fd, off_t at, off_t bytes, unsigned how) {
    const long k = __atomic_fetch_add(&disk_does.outs, 1, __ATOMIC_RELAXED);
    if (disk_does.refuse_out) return errno = k ? disk_does.refuse_out : EINTR, -1;
    return __real_sync_file_range(fd, at, bytes, how);
}
#ifdef STATX_DIOALIGN
int __wrap_statx(int fd, const char *path, int flags, unsigned mask, struct statx *s) {
    if (disk_does.wants < 0) return errno = ENOSYS, -1;
    const int r = __real_statx(fd, path, flags, mask, s);
    if (!r && disk_does.wants) s->stx_mask |= STATX_DIOALIGN;
    if (!r && disk_does.wants)
        s->stx_dio_mem_align = s->stx_dio_offset_align = (unsigned)disk_does.wants;
    return r;
}
#endif

static ssize_t disk_cut(size_t *n, long k) {
    if (disk_does.interrupt && k % 3 == 0) {
        errno = k % 2 ? EINTR : EAGAIN;
        return -1;
    }
    if (disk_does.shorten && k % 2 && *n > 8192) *n = 4096 * (1 + (size_t)k % 3);
    return 0;
}
static ssize_t disk_fails(off_t at, int code) {
    disk_does.failed_at = (size_t)at;
    errno = code;
    return -1;
}
ssize_t __wrap_pread(int fd, void *p, size_t n, off_t at) {
    const long k = __atomic_add_fetch(&disk_does.reads, 1, __ATOMIC_RELAXED);
    __atomic_store_n(&disk_does.read_at, (size_t)at, __ATOMIC_RELEASE);
    disk_held((size_t)at);
    disk_late(k);
    if (k == disk_does.fail_read) return disk_fails(at, EIO);
    if (disk_cut(&n, k)) return -1;
    const ssize_t got = __real_pread(fd, p, n, at);
    const int flip = got > 0 ? __atomic_exchange_n(&disk_does.flip, 0, __ATOMIC_RELAXED) : 0;
    if (flip) ((char *)p)[got / 2 + 8 * flip] ^= 4;
    return got;
}
ssize_t __wrap_pwrite(int fd, const void *p, size_t n, off_t at) {
    const long k = __atomic_add_fetch(&disk_does.writes, 1, __ATOMIC_RELAXED);
    disk_late(k);
    if (k == disk_does.fail_write) return disk_fails(at, ENOSPC);
    return disk_cut(&n, k) ? -1 : __real_pwrite(fd, p, n, at);
}
int __wrap_posix_fallocate(int fd, off_t at, off_t n) {
    const long k = __atomic_add_fetch(&disk_does.allocates, 1, __ATOMIC_RELAXED);
    const int again = disk_again(k);
    if (k == disk_does.fail_allocate) return ENOSPC;
    disk_does.too_early |= fcntl(fd, F_GETFL) & O_DIRECT;
    if (disk_does.full) return __real_posix_fallocate(fd, at, 4096) ? EIO : ENOSPC;
    return again ? again : __real_posix_fallocate(fd, at, n);
}
int __wrap_fstatvfs(int fd, struct statvfs *s) {
    struct stat f;
    disk_does.holds = fstat(fd, &f) || f.st_blocks > 0;
    return __real_fstatvfs(fd, s);
}
#ifdef ZERO_WITH_URING
static __thread char *disk_reads_to[64]; /* by request */

/* A request as it is given: it fails, since there is no such file, or asks for less. */
void disk_request(struct io_uring_sqe *q, uint64_t i) {
    const int writes = q->opcode == IORING_OP_WRITE;
    const long k =
        __atomic_add_fetch(writes ? &disk_does.writes : &disk_does.reads, 1, __ATOMIC_RELAXED);
    if (!writes) __atomic_store_n(&disk_does.read_at, (size_t)q->off, __ATOMIC_RELEASE);
    if (!writes) disk_held((size_t)q->off);
    if (k == (writes ? disk_does.fail_write : disk_does.fail_read)) q->fd = -1;
    if (disk_does.shorten && k % 2 && q->len > 8192) q->len = 4096 * (1 + (unsigned)k % 3);
    disk_reads_to[i] = writes ? NULL : (char *)(uintptr_t)q->addr;
    q->user_data = i;
}
int disk_wait(struct io_uring *ring, struct io_uring_cqe **c) {
    static long calls;
    const long k = __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED);
    disk_late(k);
    if (disk_does.interrupt && k % 3 == 0) return k % 2 ? -EINTR : -EAGAIN;
    const int r = io_uring_wait_cqe(ring, c);
    if (disk_does.interrupt && k % 5 == 0 && !r) (*c)->res = k % 2 ? -EINTR : -EAGAIN;
    char *to = r ? NULL : disk_reads_to[(*c)->user_data];
    const int flip =
        to && (*c)->res > 0 ? __atomic_exchange_n(&disk_does.flip, 0, __ATOMIC_RELAXED) : 0;
    if (flip) to[(*c)->res / 2 + 8 * flip] ^= 4;
    return r;
}
/* As containers refuse it; whether the kernel lets this process have one: disk_rings. */
int disk_ring(unsigned n, struct io_uring *ring, unsigned flags) {
    static int made;
    if (!disk_does.refuse_rings) made = 0;
    if (disk_does.refuse_rings && ++made >= disk_does.refuse_rings) return made = 0, -EPERM;
    return io_uring_queue_init(n, ring, flags);
}
static int disk_rings(void) {
    struct io_uring ring;
    const int can = !io_uring_queue_init(4, &ring, 0);
    if (can) io_uring_queue_exit(&ring);
    return can;
}
#else
static int disk_rings(void) { return 0; }
#endif

static const char *offload_folder;

enum { DISK_RINGS = 8 }; /* of each rank */

enum { OFFLOAD_RANKS = 3, OFFLOAD_STEPS = 4, OFFLOAD_TENSORS = 3 };

typedef struct offload_host {
    float *emb, *w, *b;
} offload_host;

/* Several pieces in a shard of one rank and of two, tails that are no whole sectors. */
static const zero_tensor_desc offload_table[OFFLOAD_TENSORS] = {
    ZERO_FIELD(offload_host, emb, 600007),
    ZERO_FIELD(offload_host, w, 30012, .layers = 3, .unit = 1),
    ZERO_FIELD(offload_host, b, 33, .layers = 3, .unit = 1, .flags = ZERO_KEEP)};
static const zero_tensor_desc offload_small[OFFLOAD_TENSORS] = {
    ZERO_FIELD(offload_host, emb, 701), ZERO_FIELD(offload_host, w, 312, .layers = 3, .unit = 1),
    ZERO_FIELD(offload_host, b, 33, .layers = 3, .unit = 1, .flags = ZERO_KEEP)};

typedef struct offload_case {
    zero_config cfg;
    int large, files;
    int skip, bad;     /* step 1 is dropped by the host; step 2 has a gradient that is not finite */
    int reads, writes; /* by name, between steps */
    int looks;         /* evaluations: between steps, and between reduce and step */
    int moves;         /* state goes through a context of the other tier, behind step 1 */
    uint64_t hash[OFFLOAD_RANKS];
    zero_result result[OFFLOAD_RANKS];
    zero_plan plan[OFFLOAD_RANKS];
    zero_stats stats[OFFLOAD_RANKS];
    int unclipped;
    int refers; /* the delayed update's plain reference: updates at once, and computes gradients
                   with the weights that a delayed run would see */
    int shown[OFFLOAD_RANKS];
    float *now[OFFLOAD_RANKS], *before[OFFLOAD_RANKS], *use[OFFLOAD_RANKS]; /* all weights */
    char why[OFFLOAD_RANKS][512];
} offload_case;

static const zero_tensor_desc *offload_tensors(const offload_case *c) {
    return c->large ? offload_table : offload_small;
}

/* `files` 0: all in memory. */
static zero_result offload_open(zero_ctx **z, const zero_comm *comm, const offload_case *c,
                                int files) {
    zero_config cfg = c->cfg;
    if (!files) cfg.optimizer_tier = cfg.gradient_tier = cfg.parameter_tier = ZERO_DEVICE;
    if (c->refers) cfg.delay_from = 0;
    cfg.folder = offload_folder;
    cfg.threads = 1;
    cfg.timeout_s = 30;
    ZERO_TRY(zero_create(z, &cfg, comm));
    zero_tensor_desc table[OFFLOAD_TENSORS];
    memcpy(table, offload_tensors(c), sizeof table);
    if (cfg.optimizer == ZERO_MUON) table[1].rows = 12, table[1].cols = table[1].numel / 12;
    ZERO_TRY(zero_tensors(*z, table, OFFLOAD_TENSORS));
    return zero_build(*z);
}

static uint64_t offload_hash(uint64_t hash, float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return test_mix(hash ^ bits);
}

/* Values by name, over the borders of pieces. `seen`: all parameters, instead of the context's. */
static zero_result offload_kind(zero_ctx *z, const offload_case *c, zero_kind kind,
                                const float *seen, uint64_t *hash) {
    for (int t = 0; t < OFFLOAD_TENSORS; t++) {
        const zero_tensor_desc *d = &offload_tensors(c)[t];
        const size_t n = d->numel * (size_t)(d->layers ? d->layers : 1);
        if (kind == ZERO_MOMENT_2 && c->cfg.optimizer == ZERO_MUON && t == 1)
            continue; /* a matrix */
        float *values = (float *)malloc(n * sizeof *values);
        const zero_result r = zero_read_tensor(z, d->name, kind, 0, n, values);
        const float *from = seen && kind == ZERO_PARAMETER ? seen : values;
        for (size_t i = 0; i < n && !r; i++) *hash = offload_hash(*hash, from[i]);
        if (seen) seen += n;
        free(values);
        ZERO_TRY(r);
    }
    return ZERO_OK;
}
static zero_result offload_look(zero_ctx *z, const offload_case *c, const float *seen,
                                uint64_t *hash) {
    static const zero_kind kinds[] = {ZERO_MASTER, ZERO_MOMENT_1, ZERO_PARAMETER, ZERO_MOMENT_2};
    const int states = c->cfg.optimizer <= ZERO_ADAM || c->cfg.optimizer == ZERO_MUON ? 2 : 1;
    for (int k = 0; k < 2 + states; k++) ZERO_TRY(offload_kind(z, c, kinds[k], seen, hash));
    return ZERO_OK;
}

static size_t offload_numel(const zero_tensor_desc *d) {
    return d->numel * (size_t)(d->layers ? d->layers : 1);
}
/* Element i of tensor t, as the step's passes see it. */
static float offload_weight(const offload_case *c, int rank, int t, size_t i, const void *seen,
                            zero_type type) {
    size_t at = i;
    for (int k = 0; k < t; k++) at += offload_numel(&offload_tensors(c)[k]);
    return c->use[rank] ? c->use[rank][at] : host_get(seen, type, i);
}

static float offload_noise(uint64_t seed, size_t i) {
    return (float)((int)(test_mix(seed + i) >> 40) % 2001 - 1000) / 4096;
}
/* Of unit u's part of a step's gradient, and of the KEEP tensor's. */
static uint64_t offload_seed(int step, int micro, int rank, int u) {
    return (uint64_t)(step * 1000 + micro * 100 + rank * 10 + u) << 24;
}
static uint64_t offload_seed_kept(int step, int rank) { return (uint64_t)(step * 7 + rank) << 30; }

/* Of what zero_query_config returns. */
static zero_type offload_grad_type(const zero_config *cfg) {
    return cfg->grads == ZERO_GRAD_F32 ? ZERO_F32 : cfg->type;
}

/* Adds to the gradient of n elements of tensor t, from `first` on: noise, and the weight. */
static void offload_add(const offload_case *c, int rank, int t, size_t first, size_t n, char *grad,
                        const char *seen, const zero_config *cfg, uint64_t seed, float factor) {
    const zero_type type = offload_grad_type(cfg), type_p = cfg->type;
    for (size_t i = first; i < first + n; i++) {
        const float x = host_get(grad, type, i);
        const float w = offload_weight(c, rank, t, i, seen, type_p);
        host_put(grad, type, i, x + (offload_noise(seed, i - first) + 0.5f * w) * factor);
    }
}

/* A reference takes the weights that step number `step` (from 0) of a delayed run sees: of before
   the last step, if that was delayed and nobody has written since. */
static zero_result offload_refer(zero_ctx *z, offload_case *c, int step, int rank, int wrote) {
    size_t at = 0, all = 0;
    for (int t = 0; t < OFFLOAD_TENSORS; t++) all += offload_numel(&offload_tensors(c)[t]);
    if (!c->now[rank]) c->now[rank] = (float *)calloc(2 * all, sizeof(float));
    if (!c->before[rank]) c->before[rank] = c->now[rank] + all;
    for (int t = 0; t < OFFLOAD_TENSORS; t++) {
        const zero_tensor_desc *d = &offload_tensors(c)[t];
        const size_t n = offload_numel(d);
        ZERO_TRY(zero_read_tensor(z, d->name, ZERO_PARAMETER, 0, n, c->now[rank] + at));
        at += n;
    }
    const int delayed = c->cfg.delay_from && step >= c->cfg.delay_from && !wrote;
    float *now = c->now[rank], *before = c->before[rank];
    c->use[rank] = delayed ? before : now;
    c->now[rank] = before;
    c->before[rank] = now;
    return ZERO_OK;
}

/* What a forward sees, hashed. `seen`: all parameters, instead of the context's. */
static zero_result offload_eval(zero_ctx *z, const offload_case *c, const float *seen,
                                uint64_t *hash) {
    const zero_type type = c->cfg.type;
    const zero_tensor_desc *t = offload_tensors(c);
    offload_host p = {NULL, NULL, NULL};
    ZERO_TRY(zero_bind(z, &p, NULL));
    ZERO_TRY(zero_pass_begin(z, ZERO_EVAL, 0, 1));
    for (int u = 0; u < 4; u++) {
        ZERO_TRY(zero_forward_begin(z, u, &p));
        const size_t n = u ? t[1].numel : t[0].numel;
        const void *at =
            u ? (char *)p.w + (size_t)(u - 1) * n * (type == ZERO_F32 ? 4 : 2) : (char *)p.emb;
        for (size_t i = 0; i < n; i++)
            *hash = offload_hash(*hash, seen ? seen[i] : host_get(at, type, i));
        if (seen) seen += n;
        ZERO_TRY(zero_forward_end(z, u));
    }
    return zero_pass_end(z);
}

static zero_result offload_step(zero_ctx *z, const offload_case *c, int step, int rank,
                                uint64_t *hash) {
    const zero_hyper hyper = {0.01f, 0.9f, 0.95f,
                              1e-8f, 0.1f, step % 2 && !c->unclipped ? 1.0f : 0};
    const zero_tensor_desc *t = offload_tensors(c);
    zero_config cfg;
    offload_host p, g;
    zero_query_config(z, &cfg);
    const zero_type type = offload_grad_type(&cfg), type_p = cfg.type;
    ZERO_TRY(zero_bind(z, &p, &g));
    for (int micro = 0; micro < cfg.micro_steps; micro++) {
        ZERO_TRY(zero_pass_begin(z, ZERO_TRAIN, micro, cfg.micro_steps));
        const float scale = zero_loss_scale(z) / (float)cfg.micro_steps;
        for (int u = 0; u < 4; u++) {
            const size_t first = u ? (size_t)(u - 1) * t[1].numel : 0, n = t[u > 0].numel;
            ZERO_TRY(zero_forward_begin(z, u, &p));
            const char *w = (char *)(u ? p.w : p.emb);
            for (size_t i = first; i < first + n; i += 97)
                *hash = offload_hash(*hash, offload_weight(c, rank, u > 0, i, w, type_p));
            ZERO_TRY(zero_forward_end(z, u));
        }
        for (int u = 3; u >= 0; u--) {
            const uint64_t seed = offload_seed(step, micro, rank, u);
            const size_t first = u ? (size_t)(u - 1) * t[1].numel : 0, n = t[u > 0].numel;
            ZERO_TRY(zero_backward_begin(z, u, &p, &g));
            offload_add(c, rank, u > 0, first, n, (char *)(u ? g.w : g.emb),
                        (char *)(u ? p.w : p.emb), &cfg, seed, scale);
            if (u == 0 && step == 2 && c->bad && rank == 0) host_put(g.emb, type, 5, INFINITY);
            ZERO_TRY(zero_backward_end(z, u));
        }
        offload_add(c, rank, 2, 0, 3 * t[2].numel, (char *)g.b, (char *)p.b, &cfg,
                    offload_seed_kept(step, rank), scale);
        ZERO_TRY(zero_pass_end(z));
    }
    ZERO_TRY(zero_reduce(z));
    if (c->reads) ZERO_TRY(offload_kind(z, c, ZERO_GRADIENT, NULL, hash));
    if (c->looks && step % 2) ZERO_TRY(offload_eval(z, c, NULL, hash));
    if (step == 1 && c->skip) return zero_skip_step(z);
    return zero_step(z, &hyper);
}

/* All of the state goes from one context to another one, of another tier. */
static zero_result offload_move(zero_ctx *from, zero_ctx *to) {
    zero_counters counters;
    ZERO_TRY(zero_state_begin(from));
    ZERO_TRY(zero_state_begin(to));
    for (int i = 0; i < zero_state_ranges(to, 1); i++) {
        zero_range range;
        ZERO_TRY(zero_state_range(to, 1, i, &range));
        char *values = (char *)malloc(range.count * zero_type_bytes(range.type));
        const zero_result r = zero_state_get(from, &range, values);
        if (!r) ZERO_TRY(zero_state_put(to, &range, values));
        free(values);
        ZERO_TRY(r);
    }
    zero_state_counters(from, &counters);
    ZERO_TRY(zero_state_set_counters(to, &counters));
    ZERO_TRY(zero_state_end(from, 0));
    return zero_state_end(to, 1);
}

static zero_result offload_work(zero_ctx **z, const zero_comm *comm, offload_case *c) {
    const int rank = comm->rank;
    uint64_t hash = 0;
    int files = c->files, wrote = 0;
    const float *seen = NULL; /* a reference's, as a delayed run would show them */
    ZERO_TRY(offload_open(z, comm, c, files));
    for (int step = 0; step < OFFLOAD_STEPS; step++) {
        if (c->refers) ZERO_TRY(offload_refer(*z, c, step, rank, wrote));
        ZERO_TRY(offload_step(*z, c, step, rank, &hash));
        wrote = step == 1 && c->writes;
        seen = c->refers && step + 1 >= c->cfg.delay_from ? c->before[rank] : NULL;
        if (c->looks) ZERO_TRY(offload_eval(*z, c, seen, &hash));
        if (c->reads) ZERO_TRY(offload_look(*z, c, seen, &hash));
        if (c->writes && step == 1) {
            const float some[5] = {1, 2, 3, 4, 5};
            ZERO_TRY(zero_write_tensor(*z, "emb", ZERO_MOMENT_1, 300, 5, some));
            ZERO_TRY(zero_write_tensor(*z, "w", ZERO_MASTER, 310, 5, some));
        }
        if (!c->moves || step != 1) continue;
        zero_ctx *other = NULL;
        files = !files;
        zero_result r = offload_open(&other, comm, c, files);
        if (!r) r = offload_move(*z, other);
        zero_destroy(*z);
        *z = other;
        ZERO_TRY(r);
    }
    ZERO_TRY(zero_query_stats(*z, &c->stats[rank]));
    ZERO_TRY(offload_look(*z, c, seen, &hash));
    c->hash[rank] = hash;
    return zero_query_plan(*z, &c->plan[rank]);
}

/* Behind an update that failed nobody is shown weights, half of which may be new. */
static void offload_shut(zero_ctx *z, offload_case *c, int rank) {
    offload_host p = {NULL, NULL, NULL};
    float value;
    c->shown[rank] = !zero_read_tensor(z, "w", ZERO_PARAMETER, 0, 1, &value)
                     || !zero_write_tensor(z, "w", ZERO_PARAMETER, 0, 1, &value)
                     || !zero_pass_begin(z, ZERO_EVAL, 0, 1) || !zero_forward_begin(z, 1, &p)
                     || !zero_state_begin(z) || !zero_bind(z, &p, NULL);
}

static void offload_rank(test_rank *r) {
    offload_case *c = (offload_case *)r->arg;
    const zero_comm comm = test_comm(r);
    zero_ctx *z = NULL;
    c->now[r->rank] = c->before[r->rank] = c->use[r->rank] = NULL;
    c->result[r->rank] = offload_work(&z, &comm, c);
    c->shown[r->rank] = 0;
    if (c->result[r->rank]) offload_shut(z, c, r->rank);
    float *first = c->now[r->rank], *second = c->before[r->rank];
    free(first && second < first ? second : first);
    snprintf(c->why[r->rank], sizeof c->why[0], "%s", c->result[r->rank] ? zero_last_error(z) : "");
    zero_destroy(z);
}

static void offload_run(offload_case *c, int nranks) {
    (void)test_ranks(nranks, 0, offload_rank, c);
}

/* One configuration at both tiers. */
static void offload_same(const offload_case *like, int nranks, const char *what) {
    static offload_case memory, file;
    memory = *like;
    file = *like;
    memory.files = 0;
    memory.refers = like->cfg.delay_from > 0;
    file.files = 1;
    offload_run(&memory, nranks);
    offload_run(&file, nranks);
    for (int r = 0; r < nranks; r++) {
        test_check(!memory.result[r] && !file.result[r] && file.hash[r] == memory.hash[r],
                   "%s, %d ranks, stage %d, type %d, rule %d, tiers %d %d %d of %g, delay %d, %d "
                   "micro-steps, rank %d: "
                   "%016llx, in memory %016llx: %s %s",
                   what, nranks, like->cfg.stage, (int)like->cfg.type, (int)like->cfg.optimizer,
                   (int)like->cfg.optimizer_tier, (int)like->cfg.gradient_tier,
                   (int)like->cfg.parameter_tier, (double)like->cfg.offload_share,
                   like->cfg.delay_from, like->cfg.micro_steps, r, (unsigned long long)file.hash[r],
                   (unsigned long long)memory.hash[r], file.why[r], memory.why[r]);
        if (like->moves) continue;
        if (like->cfg.delay_from) continue;
        const zero_plan *p = &file.plan[r], *m = &memory.plan[r];
        const size_t kept = p->param_bytes + p->grad_bytes + p->optimizer_bytes;
        const size_t all = m->param_bytes + m->grad_bytes + m->optimizer_bytes;
        test_check(kept + p->file_bytes >= all && kept + p->file_bytes <= all + 4096 * 5 * 5,
                   "%s: %zu bytes in the file, %zu in memory, %zu otherwise", what, p->file_bytes,
                   kept, all);
        const double share = (double)p->file_bytes / (double)(all > kept + 1 ? all - kept : 1);
        test_check(share >= 1 || !p->file_bytes, "%s: %g", what, share);
        for (int filed = 0; filed < 2; filed++) {
            const size_t planned = filed ? kept + p->buffer_bytes : all + m->buffer_bytes;
            const size_t allocated = (filed ? &file : &memory)->stats[r].allocated_bytes;
            test_check(allocated <= planned + 65536 + planned / 100 && allocated + 4096 >= planned,
                       "%s: %zu bytes allocated, %zu planned%s", what, allocated, planned,
                       filed ? ", with a file" : "");
        }
        if (like->reads || like->writes || like->looks || like->skip || like->bad) continue;
        test_check(file.stats[r].file_written_bytes == OFFLOAD_STEPS * p->file_written_bytes,
                   "%s: %llu bytes written in %d steps of %zu", what,
                   (unsigned long long)file.stats[r].file_written_bytes, OFFLOAD_STEPS,
                   p->file_written_bytes);
        test_check(file.stats[r].file_read_bytes == OFFLOAD_STEPS * p->file_read_bytes,
                   "%s: %llu bytes read in %d steps of %zu", what,
                   (unsigned long long)file.stats[r].file_read_bytes, OFFLOAD_STEPS,
                   p->file_read_bytes);
    }
}

static void offload_all(int every, uint64_t seed) {
    static offload_case c;
    enum { RULES = ZERO_OPTIMIZER_OWN, STAGES = 4, TYPES = 5 };
    for (int n = 0; n < RULES * STAGES * TYPES * OFFLOAD_RANKS; n++) {
        test_random random = {seed + (uint64_t)n};
        if (test_below(&random, every)) continue;
        memset(&c, 0, sizeof c);
        c.cfg.stage = n % STAGES;
        c.cfg.optimizer = (zero_optimizer)(n / STAGES % RULES);
        const int type = n / (STAGES * RULES) % TYPES, nranks = n / (STAGES * RULES * TYPES) + 1;
        c.cfg.type = (zero_type)(type % 3);
        c.cfg.master = type == 3 ? ZERO_MASTER_NONE : ZERO_MASTER_F32;
        if (type == 4) c.cfg.master = ZERO_MASTER_SPLIT;
        if (type > 2) c.cfg.type = ZERO_BF16;
        c.cfg.state_type = (zero_state_type)(n % ZERO_STATE_TYPES);
        if (c.cfg.optimizer == ZERO_ADAGRAD && c.cfg.state_type) c.cfg.state_type = ZERO_STATE_BF16;
        c.cfg.scaler.initial = 64;
        c.cfg.scaler.hysteresis = 1;
        c.cfg.micro_steps = 1 + (int)test_below(&random, 3);
        c.cfg.no_overlap = test_below(&random, 2);
        c.large = test_below(&random, 4) == 0;
        c.skip = test_below(&random, 3) == 0;
        c.bad = test_below(&random, 3) == 0;
        c.reads = test_below(&random, 2);
        c.writes = test_below(&random, 2);
        c.looks = test_below(&random, 2);
        c.moves = test_below(&random, 3) == 0;
        c.cfg.no_mapping = test_below(&random, 2);
        c.cfg.no_file_check = test_below(&random, 4) == 0;
        c.cfg.prefetch = (int)test_below(&random, 4) - 1;
        if (test_below(&random, 2)) c.cfg.offload_share = (float)test_below(&random, 101) / 100;
        c.cfg.optimizer_tier = test_below(&random, 3) ? ZERO_FILE : ZERO_DEVICE;
        if (c.cfg.stage == 3 && test_below(&random, 3)) c.cfg.parameter_tier = ZERO_FILE;
        if (c.cfg.stage >= 2 && test_below(&random, 3)) c.cfg.gradient_tier = ZERO_FILE;
        if (test_below(&random, 2)) {
            c.cfg.delay_from = 1 + (int)test_below(&random, 4);
            c.looks = c.looks && test_below(&random, 3) == 0;
            c.reads = c.reads && test_below(&random, 3) == 0;
            if (test_below(&random, 3) == 0)
                c.cfg.optimizer_tier = c.cfg.gradient_tier = c.cfg.parameter_tier = ZERO_DEVICE;
        }
        if (type && test_below(&random, 2))
            c.cfg.grads = test_below(&random, 2) ? ZERO_GRAD_F32 : ZERO_GRAD_AS_TYPE;
        if (type && !c.cfg.grads && c.cfg.micro_steps > 1) c.cfg.grads = ZERO_GRAD_F32;
        disk_does.shorten = test_below(&random, 2);
        disk_does.interrupt = test_below(&random, 2);
        disk_does.late = test_below(&random, 3) == 0;
        offload_same(&c, nranks, "drawn");
    }
    disk_does.shorten = disk_does.interrupt = disk_does.late = 0;
}

/* ---- the delayed update, against a plain one ---- */

typedef struct offload_plain { /* of all weights, in f32, as one process would */
    float *now, *before, *m, *v;
    size_t n;
} offload_plain;

/* Element i of all: its tensor, and the seed and number of its noise. */
static float offload_plain_gradient(const offload_case *c, const float *seen, int step, int rank,
                                    size_t i) {
    const zero_tensor_desc *t = offload_tensors(c);
    const size_t emb = t[0].numel, w = t[1].numel, kept = emb + 3 * w;
    const size_t in = i < emb ? i : (i - emb) % w;
    const int u = i < emb ? 0 : 1 + (int)((i - emb) / w);
    const float noise = i < kept ? offload_noise(offload_seed(step, 0, rank, u), in)
                                 : offload_noise(offload_seed_kept(step, rank), i - kept);
    return noise + 0.5f * seen[i];
}

/* W(t+1) = AdamW(W(t), mean over ranks of the gradient at W(t-1)), by the header's formulas. */
static void offload_plain_step(offload_plain *p, const offload_case *c, int step, int nranks) {
    const zero_hyper hyper = {0.01f, 0.9f, 0.95f, 1e-8f, 0.1f, 0};
    const host_adamw adamw = host_adamw_at(&hyper, step + 1);
    const int delayed = c->cfg.delay_from && step >= c->cfg.delay_from;
    for (size_t i = 0; i < p->n; i++) {
        const float *seen = delayed ? p->before : p->now;
        float sum = offload_plain_gradient(c, seen, step, 0, i);
        for (int r = 1; r < nranks; r++) sum += offload_plain_gradient(c, seen, step, r, i);
        p->before[i] = p->now[i];
        host_adamw_step(&adamw, hyper.lr, hyper.weight_decay, 1.0f / (float)nranks * sum,
                        &p->before[i], &p->m[i], &p->v[i]);
    }
    float *next = p->before; /* what is behind `now` is not looked at again */
    p->before = p->now;
    p->now = next;
}

static void offload_plain_rank(test_rank *r) {
    offload_case *c = (offload_case *)r->arg;
    const zero_comm comm = test_comm(r);
    zero_ctx *z = NULL;
    uint64_t hash = 0;
    zero_result result = offload_open(&z, &comm, c, 1);
    for (int step = 0; step < OFFLOAD_STEPS && !result; step++)
        result = offload_step(z, c, step, r->rank, &hash);
    for (int t = 0, at = 0; t < OFFLOAD_TENSORS && !result; t++) {
        const zero_tensor_desc *d = &offload_tensors(c)[t];
        result =
            zero_read_tensor(z, d->name, ZERO_MASTER, 0, offload_numel(d), c->now[r->rank] + at);
        at += (int)offload_numel(d);
    }
    c->result[r->rank] = result;
    snprintf(c->why[r->rank], sizeof c->why[0], "%s", result ? zero_last_error(z) : "");
    zero_destroy(z);
}

/* Every stage, number of ranks, first delayed step and place of what is kept. */
static void offload_plainly(void) {
    static offload_case c;
    float *memory = NULL;
    size_t n = 0;
    for (int t = 0; t < OFFLOAD_TENSORS; t++) n += offload_numel(&offload_small[t]);
    memory = (float *)malloc((OFFLOAD_RANKS + 4) * n * sizeof *memory);
    if (!memory) abort();
    for (int way = 0; way < 4 * OFFLOAD_RANKS * (OFFLOAD_STEPS + 1) * 2; way++) {
        const int nranks = 1 + way / 4 % OFFLOAD_RANKS, filed = way / 4 / OFFLOAD_RANKS % 2;
        float *of = memory + OFFLOAD_RANKS * n;
        offload_plain p = {of, of + n, of + 2 * n, of + 3 * n, n};
        memset(&c, 0, sizeof c);
        memset(of, 0, 4 * n * sizeof *of);
        c.unclipped = 1;
        c.cfg.stage = way % 4;
        c.cfg.delay_from = way / 4 / OFFLOAD_RANKS / 2;
        c.cfg.optimizer_tier = filed ? ZERO_FILE : ZERO_DEVICE;
        if (filed && c.cfg.stage >= 2) c.cfg.gradient_tier = ZERO_FILE;
        if (filed && c.cfg.stage == 3) c.cfg.parameter_tier = ZERO_FILE;
        for (int r = 0; r < nranks; r++) c.now[r] = memory + (size_t)r * n;
        for (int step = 0; step < OFFLOAD_STEPS; step++) offload_plain_step(&p, &c, step, nranks);
        (void)test_ranks(nranks, 0, offload_plain_rank, &c);
        for (int r = 0; r < nranks; r++) {
            size_t same = 0;
            while (same < n && !memcmp(&c.now[r][same], &p.now[same], sizeof(float))) same++;
            test_check(!c.result[r] && same == n,
                       "plain: stage %d, rank %d of %d, delayed from %d, %s: element %zu is %g, "
                       "expected %g: %s",
                       c.cfg.stage, r, nranks, c.cfg.delay_from, filed ? "file" : "memory", same,
                       same < n ? (double)c.now[r][same] : 0, same < n ? (double)p.now[same] : 0,
                       c.why[r]);
        }
    }
    free(memory);
}

/* Every k-th read or write fails, of the rest of a piece too: one sentence, on all ranks, and no
   step is taken from there. */
static void offload_faults(void) {
    static offload_case c;
    for (int writes = 0; writes < 2; writes++)
        for (long k = 1; k < 60; k += 3) {
            memset(&c, 0, sizeof c);
            memset(&disk_does, 0, sizeof disk_does);
            c.cfg.stage = (int)(k % 4);
            c.cfg.optimizer_tier = ZERO_FILE;
            if (k % 4 == 3) c.cfg.parameter_tier = ZERO_FILE;
            if (k % 4 >= 2) c.cfg.gradient_tier = ZERO_FILE;
            c.cfg.type = ZERO_BF16;
            c.large = c.files = 1;
            *(writes ? &disk_does.fail_write : &disk_does.fail_read) = k;
            disk_does.shorten = !disk_rings(); /* rings ask again for all behind a cut request */
            offload_run(&c, 2);
            const int reached = (writes ? disk_does.writes : disk_does.reads) >= k;
            const char *error = strerror(disk_rings() ? EBADF : writes ? ENOSPC : EIO);
            char where[64];
            const int some =
                snprintf(where, sizeof where, "%s byte ", writes ? "writing" : "reading");
            if (!disk_rings()) snprintf(where + some, 40, "%zu of ", disk_does.failed_at);
            for (int r = 0; r < 2; r++)
                test_check((c.result[r] != ZERO_OK) == reached && !c.shown[r]
                               && (!reached
                                   || (strstr(c.why[r], where) && strstr(c.why[r], offload_folder)
                                       && strstr(c.why[r], error))),
                           "%s %ld fails, %s, rank %d: %s", writes ? "write" : "read", k, where, r,
                           c.why[r]);
        }
    memset(&disk_does, 0, sizeof disk_does);
    memset(&c, 0, sizeof c);
    c.cfg.optimizer_tier = ZERO_FILE;
    c.large = c.files = 1;
    c.reads = 1;
    disk_does.flip = 0;
    offload_run(&c, 1);
    test_check(!c.result[0], "no fault: %s", c.why[0]);
}

/* One of several ranks gets no file, or no room in it: one sentence, on all. */
static void offload_one_rank(void) {
    static offload_case c;
    for (int way = 0; way < 4 * OFFLOAD_RANKS; way++) {
        const int room = way % 2, stage = 1 + way / 2 % 2 * 2;
        memset(&c, 0, sizeof c);
        memset(&disk_does, 0, sizeof disk_does);
        c.files = 1;
        c.cfg.stage = stage;
        c.cfg.optimizer_tier = ZERO_FILE;
        if (stage == 3) c.cfg.parameter_tier = c.cfg.gradient_tier = ZERO_FILE;
        *(room ? &disk_does.fail_allocate : &disk_does.fail_open) = 1 + way / 4;
        offload_run(&c, OFFLOAD_RANKS);
        const char *says = room ? "are free: No space" : "a file in ";
        for (int r = 0; r < OFFLOAD_RANKS; r++) {
            const char *first = strstr(c.why[0], says), *his = strstr(c.why[r], says);
            test_check(c.result[r] && !c.shown[r] && first && his && !strcmp(first, his),
                       "stage %d, %s %d fails: rank %d says `%s`, rank 0 `%s`", stage,
                       room ? "room" : "file", 1 + way / 4, r, c.why[r], c.why[0]);
        }
    }
    memset(&disk_does, 0, sizeof disk_does);
}

/* A bit that the disk has turned is found where it is read, in each of the words that are summed
   side by side, and the error says where; without checks nobody looks. */
static void offload_flips(int word, int unchecked) {
    static offload_case c;
    zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
    zero_ctx *z = NULL;
    zero_stats stats;
    c.cfg.stage = 1;
    c.large = 1;
    uint64_t hash = 0;
    size_t from = 0, to = 0;
    c.cfg.optimizer_tier = ZERO_FILE;
    c.cfg.no_file_check = unchecked;
    zero_result r = offload_open(&z, &self, &c, 1);
    if (!r) r = offload_step(z, &c, 0, 0, &hash);
    test_check(!r, "a step: %s", zero_last_error(z));
    (void)zero_query_stats(z, &stats); /* waits for the update */
    disk_does.flip = word;
    r = offload_step(z, &c, 1, 0, &hash);
    (void)zero_query_stats(z, &stats);
    if (!r) r = zero_barrier(z);
    const char *said = zero_last_error(z), *where = strstr(said, "bytes ");
    if (where) (void)sscanf(where, "bytes %zu to %zu of rank 0's file", &from, &to);
    test_check(unchecked ? !r && !disk_does.flip
                         : r == ZERO_ERR_DEVICE && strstr(said, "are not what was written there")
                               && from < to && to - from < (size_t)1 << 30,
               "a bit of word %d is another, unchecked %d: %s", word, unchecked, said);
    zero_destroy(z);
}

/* ---- how the file is opened ---- */

static char disk_said[1024]; /* of the file, for the log */
static void disk_log(void *user, zero_log_level level, const char *sentence) {
    (void)user;
    if (level == ZERO_LOG_INFO && strstr(sentence, "a file of "))
        (void)snprintf(disk_said, sizeof disk_said, "%s", sentence);
}
static int disk_files(void) { /* that are open */
    int n = 0;
    for (int fd = 0; fd < 1024; fd++) n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* What a file system or a kernel may refuse, and what then is done, or said, in log and plan;
   nothing stays open or behind. */
static void offload_opens(void) {
    static const char past[] = "direct (O_DIRECT)", through[] = "through the page cache";
    static const struct {
        const char *what;
        int direct, unnamed, named, wants, out, rings;
        zero_result result;
        const char *says;
    } cases[] = {
        {"nothing", 0, 0, 0, 0, 0, 0, ZERO_OK, "a file of "},
        {"O_DIRECT", EINVAL, 0, 0, 0, 0, 0, ZERO_OK, through},
        {"O_TMPFILE", 0, EOPNOTSUPP, 0, 0, 0, 0, ZERO_OK, past},
        {"O_TMPFILE, an old kernel", 0, EISDIR, 0, 0, 0, 0, ZERO_OK, past},
        {"O_TMPFILE and O_DIRECT", EINVAL, EOPNOTSUPP, 0, 0, 0, 0, ZERO_OK, through},
        {"sectors of 64 KiB", 0, 0, 0, 65536, 0, 0, ZERO_OK, through},
        {"sectors of 512 bytes", 0, 0, 0, 512, 0, 0, ZERO_OK, past},
        {"statx", 0, 0, 0, -1, 0, 0, ZERO_OK, past},
        {"O_DIRECT and sync_file_range", EINVAL, 0, 0, 0, ENOSYS, 0, ZERO_OK, through},
        {"to write out", EINVAL, 0, 0, 0, EIO, 0, ZERO_ERR_DEVICE, "writing byte "},
        {"io_uring", 0, 0, 0, 0, 0, 1, ZERO_OK, "by pread and pwrite"},
        {"the last ring", 0, 0, 0, 0, 0, DISK_RINGS, ZERO_OK, "by pread and pwrite"},
        {"a name", 0, EOPNOTSUPP, EMFILE, 0, 0, 0, ZERO_ERR_DEVICE, "Too many open files"},
        {"any file", 0, EMFILE, 0, 0, 0, 0, ZERO_ERR_DEVICE, "Too many open files"},
        {"to write", 0, EROFS, 0, 0, 0, 0, ZERO_ERR_DEVICE, "Read-only file system"},
        {"a place in memory", 0, ENOMEM, 0, 0, 0, 0, ZERO_ERR_MEMORY, "Cannot allocate memory"}};
    zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
    uint64_t expected = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static offload_case c;
        zero_ctx *z = NULL;
        zero_plan plan;
        uint64_t hash = 0;
        const int before = disk_files();
#ifndef STATX_DIOALIGN
        if (cases[i].wants) continue;
#endif
        memset(&c, 0, sizeof c);
        memset(&plan, 0, sizeof plan);
        memset(&disk_does, 0, sizeof disk_does);
        c.cfg.optimizer_tier = ZERO_FILE;
        c.cfg.log = disk_log;
        disk_said[0] = 0;
        disk_does.refuse_direct = cases[i].direct;
        disk_does.refuse_unnamed = cases[i].unnamed;
        disk_does.refuse_named = cases[i].named;
        disk_does.refuse_out = cases[i].out;
        disk_does.refuse_rings = cases[i].rings;
        disk_does.wants = cases[i].wants;
        zero_result r = offload_open(&z, &self, &c, 1);
        const char *by = disk_rings() && !cases[i].rings ? "by io_uring" : "by pread and pwrite";
        const int built = r == ZERO_OK;
        const int told = built && !zero_query_plan(z, &plan) && plan.file_way
                         && strstr(disk_said, plan.file_way) && strstr(disk_said, by)
                         && strstr(disk_said, disk_does.direct ? past : through);
        test_check(told == built, "refused: %s: %s, expected %s", cases[i].what, disk_said, by);
        test_check(!told || (!plan.down_bytes && !plan.up_bytes),
                   "refused: %s: %zu bytes go down and %zu up a link that no CPU has",
                   cases[i].what, plan.down_bytes, plan.up_bytes);
        if (!r) r = offload_step(z, &c, 0, 0, &hash);
        if (!r) r = offload_look(z, &c, NULL, &hash);
        if (!i) expected = hash;
        const char *said = r ? zero_last_error(z) : disk_said;
        test_check(r == cases[i].result && strstr(said, cases[i].says)
                       && (!r ? hash == expected : strstr(said, offload_folder) != NULL),
                   "refused: %s: %s: %s", cases[i].what, zero_result_string(r), said);
        test_check(!built || (!disk_does.too_early && (disk_does.outs > 0) == !disk_does.direct),
                   "refused: %s: %ld pieces are written out", cases[i].what, disk_does.outs);
        zero_destroy(z);
        test_check(disk_files() == before, "refused: %s: %d files are left open", cases[i].what,
                   disk_files() - before);
    }
    memset(&disk_does, 0, sizeof disk_does);
}

/* An overlay as containers have it, that this process alone sees. "": it may not have one. */
static void offload_overlay(char *over, size_t bytes, const char *below) {
    static const char *const parts[] = {"lower", "upper", "work", "over"};
    char path[300], options[1200];
    if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL)) return;
    for (int i = 0; i < 4; i++) {
        (void)snprintf(path, sizeof path, "%.200s/%s", below, parts[i]);
        if (mkdir(path, 0700)) return;
    }
    (void)snprintf(options, sizeof options,
                   "lowerdir=%.200s/lower,upperdir=%.200s/upper,workdir=%.200s/work", below, below,
                   below);
    if (!mount("none", path, "overlay", 0, options)) (void)snprintf(over, bytes, "%s", path);
}
static void offload_overlay_end(const char *over, const char *below) {
    static const char *const parts[] = {"over", "work/work", "work", "upper", "lower", ""};
    char path[300];
    if (over[0]) (void)umount(over);
    for (int i = 0; i < 6; i++) {
        (void)snprintf(path, sizeof path, "%.200s/%s", below, parts[i]);
        (void)rmdir(path);
    }
}

/* Folders of other file systems: buffered where direct transfers cannot be had, and told. */
static void offload_folders(void) {
    const char *kept = offload_folder;
    char over[300] = "", below[64] = "/tmp/offload-XXXXXX";
    static offload_case c;
    if (mkdtemp(below)) offload_overlay(over, sizeof over, below);
    for (int i = 0; i < 2; i++) {
        struct statfs s;
        offload_folder = i ? over : "/dev/shm";
        if (statfs(offload_folder, &s) || (i == 0 && s.f_type != TMPFS_MAGIC)) {
            printf("skipped: there is no %s here\n", i ? "overlay" : "tmpfs");
            continue;
        }
        memset(&c, 0, sizeof c);
        c.cfg.stage = 3;
        c.cfg.type = ZERO_BF16;
        c.cfg.optimizer_tier = c.cfg.gradient_tier = c.cfg.parameter_tier = ZERO_FILE;
        c.cfg.log = disk_log;
        disk_said[0] = 0;
        offload_same(&c, 2, i ? "an overlay" : "tmpfs");
        const char *told = i == 0             ? "in memory (a tmpfs)"
                           : disk_does.direct ? "direct (O_DIRECT)"
                                              : "through the page cache";
        test_check(strstr(disk_said, told) != NULL, "%s: %s", offload_folder, disk_said);
    }
    offload_overlay_end(over, below);
    offload_folder = kept;
}

/* Names in a folder. */
static int offload_names(const char *folder) {
    DIR *d = opendir(folder);
    int n = 0;
    for (const struct dirent *e; d && (e = readdir(d));) n += e->d_name[0] != '.';
    if (d) (void)closedir(d);
    return n;
}
/* Files of that folder that a process has open. */
static int offload_has_open(pid_t who, const char *folder) {
    char path[64], of[400];
    int n = 0;
    for (int fd = 3; fd < 64; fd++) {
        (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)who, fd);
        const ssize_t bytes = readlink(path, of, sizeof of);
        n += bytes > 0
             && !strncmp(of, folder,
                         (size_t)bytes < strlen(folder) ? (size_t)bytes : strlen(folder));
    }
    return n;
}

/* Ranks that are killed at any moment, from the build to a step's writes, leave nothing behind. */
static void offload_killed(int times, uint64_t seed) {
    static offload_case c;
    const char *kept = offload_folder;
    char folder[300];
    test_random random = {seed};
    int met = 0, left = 0, died = 0;
    (void)snprintf(folder, sizeof folder, "%.200s/killed-XXXXXX", kept);
    if (!mkdtemp(folder)) abort();
    char *real = realpath(folder, NULL);
    offload_folder = folder;
    memset(&c, 0, sizeof c);
    c.cfg.stage = 3;
    c.cfg.optimizer_tier = c.cfg.gradient_tier = c.cfg.parameter_tier = ZERO_FILE;
    c.large = c.files = 1;
    for (int i = 0; i < times; i++) {
        int status = 0;
        (void)fflush(stdout);
        const pid_t child = fork();
        while (child == 0) offload_run(&c, 2);
        (void)usleep((unsigned)test_below(&random, 150000));
        met += offload_has_open(child, real ? real : folder) > 0;
        (void)kill(child, SIGKILL);
        died += waitpid(child, &status, 0) != child || !WIFSIGNALED(status);
        left += offload_names(folder);
    }
    test_check(!left && !died && met > 0,
               "killed %d times, %d with files: %d names are left, %d ended by themselves", times,
               met, left, died);
    free(real);
    test_check(!rmdir(folder), "%s: %s", folder, strerror(errno));
    offload_folder = kept;
}

/* What cannot be: told at the build, before any training. */
static void offload_refused(void) {
    static offload_case c;
    zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
    zero_ctx *z = NULL;
    zero_plan plan;
    const char *kept = offload_folder;
    memset(&c, 0, sizeof c);
    c.cfg.optimizer_tier = ZERO_FILE;
    disk_does.full = 1;
    test_check(offload_open(&z, &self, &c, 1) == ZERO_ERR_MEMORY
                   && strstr(zero_last_error(z), "are free: No space left") && !disk_does.holds,
               "no room: %s%s", zero_last_error(z), disk_does.holds ? ", less what it took" : "");
    zero_destroy(z);
    disk_does.full = 0;
    offload_folder = "/nonexistent/folder";
    test_check(offload_open(&z, &self, &c, 1) == ZERO_ERR_DEVICE
                   && strstr(zero_last_error(z), "/nonexistent/folder: No such file"),
               "no folder: %s", zero_last_error(z));
    zero_destroy(z);
    offload_folder = NULL;
    test_check(offload_open(&z, &self, &c, 1) == ZERO_ERR_ARGUMENT
                   && strstr(zero_last_error(z), "folder is NULL"),
               "folder NULL: %s", zero_last_error(z));
    zero_destroy(z);
    c.cfg.optimizer_tier = ZERO_HOST;
    test_check(offload_open(&z, &self, &c, 1) == ZERO_OK && !zero_query_plan(z, &plan)
                   && !plan.file_bytes,
               "HOST is DEVICE here: %s", zero_last_error(z));
    zero_destroy(z);
    offload_folder = kept;
    c.cfg.optimizer_tier = ZERO_DEVICE;
    c.cfg.gradient_tier = ZERO_FILE;
    test_check(offload_open(&z, &self, &c, 1) == ZERO_ERR_ARGUMENT
                   && strstr(zero_last_error(z), "it needs sharded gradients"),
               "whole gradients: %s", zero_last_error(z));
    zero_destroy(z);
    c.cfg.gradient_tier = ZERO_DEVICE;
    c.cfg.parameter_tier = ZERO_FILE;
    test_check(offload_open(&z, &self, &c, 1) == ZERO_ERR_ARGUMENT
                   && strstr(zero_last_error(z), "use stage 3"),
               "whole parameters: %s", zero_last_error(z));
    zero_destroy(z);
}

/* ---- what waits for what ---- */

/* Begins the next step while an update is held up: who gets through has not waited for that. */
static zero_result offload_ahead_of(zero_ctx *z, offload_case *c, int rank, int nranks) {
    static int through;
    const int delayed = c->cfg.delay_from > 0, last = delayed ? 4 : 3;
    uint64_t hash = 0;
    const zero_tensor_desc *t = &offload_tensors(c)[1];
    offload_host p, g;
    float moment;
    /* Unit 3's state begins where rank 0 reads its first element. */
    ZERO_TRY(zero_read_tensor(z, "w", ZERO_MOMENT_1, 2 * t->numel, 1, &moment));
    ZERO_TRY(zero_barrier(z));
    if (rank == 0) {
        const size_t at = __atomic_load_n(&disk_does.read_at, __ATOMIC_ACQUIRE);
        memset(&disk_hold, 0, sizeof disk_hold);
        disk_hold.from = at;
        disk_hold.to = at + 1;
        disk_hold.on = 1;
        through = 0;
    }
    ZERO_TRY(zero_barrier(z));
    ZERO_TRY(offload_step(z, c, 0, rank, &hash));
    ZERO_TRY(zero_bind(z, &p, &g));
    ZERO_TRY(zero_pass_begin(z, ZERO_TRAIN, 0, 1));
    (void)zero_loss_scale(z);
    for (int u = 0; u < last; u++) {
        ZERO_TRY(zero_forward_begin(z, u, &p));
        ZERO_TRY(zero_forward_end(z, u));
    }
    if (delayed) ZERO_TRY(zero_backward_begin(z, 3, &p, &g));
    const int late = __atomic_load_n(&disk_hold.late, __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(&through, 1, __ATOMIC_ACQ_REL) == nranks)
        __atomic_store_n(&disk_hold.let_go, 1, __ATOMIC_RELEASE);
    if (delayed) ZERO_TRY(zero_backward_end(z, 3));
    ZERO_TRY(zero_forward_begin(z, 3, &p));
    ZERO_TRY(zero_forward_end(z, 3));
    return late ? ZERO_ERR_TIMEOUT : ZERO_OK;
}
static void offload_overlap_rank(test_rank *r) {
    offload_case *c = (offload_case *)r->arg;
    const zero_comm comm = test_comm(r);
    zero_ctx *z = NULL;
    c->result[r->rank] = offload_open(&z, &comm, c, 1);
    if (!c->result[r->rank]) c->result[r->rank] = offload_ahead_of(z, c, r->rank, r->nranks);
    __atomic_store_n(&disk_hold.let_go, 1, __ATOMIC_RELEASE);
    snprintf(c->why[r->rank], sizeof c->why[0], "%s", zero_last_error(z));
    zero_destroy(z);
}

/* A unit whose update is held up by its disk holds up nobody else: neither the next forward of
   other units, nor, delayed, any gather of the next step. By order alone: no times are measured.
   (No piece that is waited for is of the held one's lane.) */
static void offload_overlap(void) {
    static offload_case c;
    for (int stage = 0; stage < 4; stage++)
        for (int how = 0; how < 8; how++) { /* delayed; parameters in the file; 16 bit */
            memset(&c, 0, sizeof c);
            c.cfg.stage = stage;
            c.cfg.persistence_numel = ZERO_NONE;
            c.cfg.optimizer_tier = ZERO_FILE;
            c.cfg.delay_from = how & 1;
            c.cfg.prefetch = how & 2 ? 0 : ZERO_NONE;
            if ((how & 2) && stage == 3) c.cfg.parameter_tier = ZERO_FILE;
            if (how & 4) c.cfg.type = ZERO_BF16;
            if (how == 4 && stage >= 2) c.cfg.gradient_tier = ZERO_FILE;
            const int nranks = 1 + (how + stage) % 2;
            (void)test_ranks(nranks, 0, offload_overlap_rank, &c);
            for (int r = 0; r < nranks; r++)
                test_check(!c.result[r] && disk_hold.waiting,
                           "held up: stage %d, delayed %d, parameters %d, rank %d: %s%s", stage,
                           how & 1, (int)c.cfg.parameter_tier, r,
                           c.result[r] == ZERO_ERR_TIMEOUT ? "waits for another unit's update"
                                                           : c.why[r],
                           disk_hold.waiting ? "" : ": nothing was held");
        }
    disk_hold.on = 0;
}

/* Reads of pieces to come are under way together. */
static void offload_reads_ahead(void) {
    static offload_case c;
    zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
    zero_ctx *z = NULL;
    zero_stats stats;
    uint64_t hash = 0;
    memset(&c, 0, sizeof c);
    c.large = 1;
    c.cfg.optimizer_tier = ZERO_FILE;
    zero_result r = offload_open(&z, &self, &c, 1);
    memset(&disk_hold, 0, sizeof disk_hold);
    disk_hold.to = SIZE_MAX;
    disk_hold.together = 4;
    disk_hold.on = 1;
    if (!r) r = offload_step(z, &c, 0, 0, &hash);
    if (!r) r = zero_query_stats(z, &stats);
    test_check(!r && !disk_hold.late, "pieces are read one after the other: %s",
               zero_last_error(z));
    zero_destroy(z);
    disk_hold.on = 0;
}

int main(int argc, char **argv) {
    const int every = argc > 1 ? atoi(argv[1]) : 1;
    offload_folder = argc > 3 ? argv[3] : "/tmp";
    offload_refused();
    const int input = dup(0);
    (void)close(0); /* the plugin's file gets descriptor 0 */
    offload_opens();
    (void)dup2(input, 0);
    offload_folders();
    offload_overlap();
    offload_reads_ahead();
    for (int word = 1; word <= 4; word++) offload_flips(word, 0);
    offload_flips(1, 1);
    offload_plainly();
    offload_faults();
    offload_one_rank();
    offload_killed(every > 1 ? 20 : 200, argc > 2 ? strtoull(argv[2], NULL, 10) : 1);
    offload_all(every, argc > 2 ? strtoull(argv[2], NULL, 10) : 1);
    return test_summary();
}

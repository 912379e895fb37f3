/* test_offload.c - optimizer state and master weights on a disk: the same bits as in memory, at
   every stage, type and rule, with skips, several micro-steps, access by name, and state that moves
   between tiers; bytes as planned; and what a disk does: short transfers, interruptions, errors,
   no room, other bytes than were written. Includes the plugin. */
#include "harness.h"
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

/* What the disk does: counted over all ranks. */
static struct {
    long reads, writes;
    long fail_read, fail_write; /* the k-th one fails; 0: none */
    int shorten, interrupt;     /* transfers are cut, or interrupted first, now and then */
    int flip;                   /* a bit of what the next read brings is another */
    int full, no_file;
} disk_does;

static ssize_t disk_cut(size_t *n, long k) {
    if (disk_does.interrupt && k % 3 == 0) {
        errno = k % 2 ? EINTR : EAGAIN;
        return -1;
    }
    if (disk_does.shorten && k % 2 && *n > 8192) *n = 4096 * (1 + (size_t)k % 3);
    return 0;
}
static ssize_t disk_pread(int fd, void *p, size_t n, off_t at) {
    const long k = __atomic_add_fetch(&disk_does.reads, 1, __ATOMIC_RELAXED);
    if (k == disk_does.fail_read) return errno = EIO, -1;
    if (disk_cut(&n, k)) return -1;
    const ssize_t got = pread(fd, p, n, at);
    if (got > 0 && __atomic_exchange_n(&disk_does.flip, 0, __ATOMIC_RELAXED))
        ((char *)p)[got / 2] ^= 4;
    return got;
}
static ssize_t disk_pwrite(int fd, const void *p, size_t n, off_t at) {
    const long k = __atomic_add_fetch(&disk_does.writes, 1, __ATOMIC_RELAXED);
    if (k == disk_does.fail_write) return errno = ENOSPC, -1;
    return disk_cut(&n, k) ? -1 : pwrite(fd, p, n, at);
}
static int disk_allocate(int fd, off_t at, off_t n) {
    return disk_does.full ? ENOSPC : posix_fallocate(fd, at, n);
}
#define pread           disk_pread
#define pwrite          disk_pwrite
#define posix_fallocate disk_allocate
#include "../zero_plugin.cu"
#undef pread
#undef pwrite
#undef posix_fallocate

static const char *offload_folder;

enum { OFFLOAD_RANKS = 3, OFFLOAD_STEPS = 4, OFFLOAD_TENSORS = 3 };

typedef struct offload_host {
    float *emb, *w, *b;
} offload_host;

/* Several pieces in a shard of one rank and of two, tails that are no whole sectors. */
static const zero_tensor_desc offload_table[OFFLOAD_TENSORS] = {
    ZERO_FIELD(offload_host, emb, 600007),
    ZERO_FIELD(offload_host, w, 30011, .layers = 3, .unit = 1),
    ZERO_FIELD(offload_host, b, 33, .layers = 3, .unit = 1, .flags = ZERO_KEEP)};
static const zero_tensor_desc offload_small[OFFLOAD_TENSORS] = {
    ZERO_FIELD(offload_host, emb, 701), ZERO_FIELD(offload_host, w, 311, .layers = 3, .unit = 1),
    ZERO_FIELD(offload_host, b, 33, .layers = 3, .unit = 1, .flags = ZERO_KEEP)};

typedef struct offload_case {
    zero_config cfg;
    int large;
    int skip, bad;     /* step 1 is dropped by the host; step 2 has a gradient that is not finite */
    int reads, writes; /* by name, between steps */
    int moves;         /* state goes through a context of the other tier, behind step 1 */
    uint64_t hash[OFFLOAD_RANKS];
    zero_result result[OFFLOAD_RANKS];
    zero_plan plan[OFFLOAD_RANKS];
    zero_stats stats[OFFLOAD_RANKS];
    size_t arena[OFFLOAD_RANKS];
    char why[OFFLOAD_RANKS][512];
} offload_case;

static const zero_tensor_desc *offload_tensors(const offload_case *c) {
    return c->large ? offload_table : offload_small;
}

static zero_result offload_open(zero_ctx **z, const zero_comm *comm, const offload_case *c,
                                zero_tier tier) {
    zero_config cfg = c->cfg;
    cfg.optimizer_tier = tier;
    cfg.folder = offload_folder;
    cfg.threads = 1;
    cfg.timeout_s = 30;
    ZERO_TRY(zero_create(z, &cfg, comm));
    ZERO_TRY(zero_tensors(*z, offload_tensors(c), OFFLOAD_TENSORS));
    return zero_build(*z);
}

static void offload_add(void *grad, zero_type type, size_t n, uint64_t seed, float factor) {
    for (size_t i = 0; i < n; i++) {
        const float x = zp_load(grad, type, i);
        const float more = (float)((int)(test_mix(seed + i) >> 40) % 2001 - 1000) / 4096 * factor;
        zp_store(grad, type, i, x + more);
    }
}

static zero_result offload_step(zero_ctx *z, const offload_case *c, int step, int rank) {
    const zero_hyper hyper = {0.01f, 0.9f, 0.95f, 1e-8f, 0.1f, step % 2 ? 1.0f : 0};
    const zero_type type = z->array[ZP_GRAD].type;
    const zero_tensor_desc *t = offload_tensors(c);
    offload_host p, g;
    ZERO_TRY(zero_bind(z, &p, &g));
    for (int micro = 0; micro < z->cfg.micro_steps; micro++) {
        ZERO_TRY(zero_pass_begin(z, ZERO_TRAIN, micro, z->cfg.micro_steps));
        const float scale = zero_loss_scale(z) / (float)z->cfg.micro_steps;
        for (int u = 0; u < 4; u++) {
            const uint64_t seed = (uint64_t)(step * 1000 + micro * 100 + rank * 10 + u) << 24;
            ZERO_TRY(zero_forward_begin(z, u, &p));
            ZERO_TRY(zero_forward_end(z, u));
            ZERO_TRY(zero_backward_begin(z, u, &p, &g));
            if (u == 0)
                offload_add(g.emb, type, t[0].numel, seed, scale);
            else
                offload_add((char *)g.w + (size_t)(u - 1) * t[1].numel * zp_bytes(type), type,
                            t[1].numel, seed, scale);
            if (u == 0 && step == 2 && c->bad && rank == 0) zp_store(g.emb, type, 5, INFINITY);
            ZERO_TRY(zero_backward_end(z, u));
        }
        offload_add(g.b, type, 3 * t[2].numel, (uint64_t)(step * 7 + rank) << 30, scale);
        ZERO_TRY(zero_pass_end(z));
    }
    ZERO_TRY(zero_reduce(z));
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

/* Values by name, over the borders of pieces. */
static zero_result offload_look(zero_ctx *z, const offload_case *c, uint64_t *hash) {
    static const zero_kind kinds[] = {ZERO_MASTER, ZERO_MOMENT_1, ZERO_MOMENT_2, ZERO_PARAMETER};
    for (int t = 0; t < OFFLOAD_TENSORS; t++)
        for (int k = 0; k < 4; k++) {
            const zero_tensor_desc *d = &offload_tensors(c)[t];
            const size_t n = d->numel * (size_t)(d->layers ? d->layers : 1);
            if (kinds[k] == ZERO_MOMENT_2 && z->rule->states < 2) continue;
            float *values = (float *)malloc(n * sizeof *values);
            const zero_result r = zero_read_tensor(z, d->name, kinds[k], 0, n, values);
            for (size_t i = 0; i < n && !r; i++) *hash = zp_hash(*hash, zp_bits(values[i]));
            free(values);
            ZERO_TRY(r);
        }
    return ZERO_OK;
}

static zero_result offload_work(zero_ctx **z, const zero_comm *comm, offload_case *c) {
    const int rank = comm->rank;
    uint64_t hash = ZP_HASH_EMPTY;
    ZERO_TRY(offload_open(z, comm, c, c->cfg.optimizer_tier));
    for (int step = 0; step < OFFLOAD_STEPS; step++) {
        ZERO_TRY(offload_step(*z, c, step, rank));
        if (c->reads) ZERO_TRY(offload_look(*z, c, &hash));
        if (c->writes && step == 1) {
            const float some[5] = {1, 2, 3, 4, 5};
            ZERO_TRY(zero_write_tensor(*z, "emb", ZERO_MOMENT_1, 300, 5, some));
            ZERO_TRY(zero_write_tensor(*z, "w", ZERO_MASTER, 310, 5, some));
        }
        if (!c->moves || step != 1) continue;
        zero_ctx *other = NULL;
        const zero_tier tier = c->cfg.optimizer_tier == ZERO_FILE ? ZERO_DEVICE : ZERO_FILE;
        zero_result r = offload_open(&other, comm, c, tier);
        if (!r) r = offload_move(*z, other);
        zero_destroy(*z);
        *z = other;
        ZERO_TRY(r);
    }
    ZERO_TRY(offload_look(*z, c, &hash));
    c->hash[rank] = hash;
    ZERO_TRY(zero_query_plan(*z, &c->plan[rank]));
    c->arena[rank] = (*z)->private_bytes;
    return zero_query_stats(*z, &c->stats[rank]);
}

static void offload_rank(test_rank *r) {
    offload_case *c = (offload_case *)r->arg;
    const zero_comm comm = test_comm(r);
    zero_ctx *z = NULL;
    c->result[r->rank] = offload_work(&z, &comm, c);
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
    memory.cfg.optimizer_tier = ZERO_DEVICE;
    file.cfg.optimizer_tier = ZERO_FILE;
    offload_run(&memory, nranks);
    offload_run(&file, nranks);
    for (int r = 0; r < nranks; r++) {
        test_check(
            !memory.result[r] && !file.result[r] && file.hash[r] == memory.hash[r],
            "%s, %d ranks, stage %d, type %d, rule %d, rank %d: %016llx, in memory %016llx: %s %s",
            what, nranks, like->cfg.stage, (int)like->cfg.type, (int)like->cfg.optimizer, r,
            (unsigned long long)file.hash[r], (unsigned long long)memory.hash[r], file.why[r],
            memory.why[r]);
        if (like->moves) continue;
        const zero_plan *p = &file.plan[r];
        const size_t states = memory.plan[r].optimizer_bytes;
        test_check(p->optimizer_bytes == 0 && p->file_bytes >= states
                       && p->file_bytes <= states + 4096 * 3 * 5
                       && memory.arena[r] - file.arena[r] + 4096 * 3 >= states,
                   "%s: %zu bytes in the file, %zu in memory otherwise", what, p->file_bytes,
                   states);
        if (like->reads || like->writes || like->skip || like->bad) continue;
        test_check(file.stats[r].file_written_bytes == OFFLOAD_STEPS * p->file_moved_bytes,
                   "%s: %llu bytes written in %d steps of %zu", what,
                   (unsigned long long)file.stats[r].file_written_bytes, OFFLOAD_STEPS,
                   p->file_moved_bytes);
    }
}

static void offload_all(int every, uint64_t seed) {
    static offload_case c;
    for (int n = 0; n < 5 * 4 * 4 * OFFLOAD_RANKS; n++) {
        test_random random = {seed + (uint64_t)n};
        if (test_below(&random, every)) continue;
        memset(&c, 0, sizeof c);
        c.cfg.stage = n % 4;
        c.cfg.optimizer = (zero_optimizer)(n / 4 % 5);
        const int type = n / 20 % 4, nranks = n / 80 % OFFLOAD_RANKS + 1;
        c.cfg.type = (zero_type)(type % 3);
        c.cfg.no_master = type == 3;
        if (type == 3) c.cfg.type = ZERO_BF16;
        c.cfg.scaler.initial = 64;
        c.cfg.scaler.hysteresis = 1;
        c.cfg.micro_steps = 1 + test_below(&random, 2);
        c.cfg.no_overlap = test_below(&random, 2);
        c.large = test_below(&random, 4) == 0;
        c.skip = test_below(&random, 3) == 0;
        c.bad = test_below(&random, 3) == 0;
        c.reads = test_below(&random, 2);
        c.writes = test_below(&random, 2);
        c.moves = test_below(&random, 3) == 0;
        disk_does.shorten = test_below(&random, 2);
        disk_does.interrupt = test_below(&random, 2);
        offload_same(&c, nranks, "drawn");
    }
    disk_does.shorten = disk_does.interrupt = 0;
}

/* Every k-th read or write fails: one sentence, on all ranks, and no step is taken from there. */
static void offload_faults(void) {
    static offload_case c;
    for (int writes = 0; writes < 2; writes++)
        for (long k = 1; k < 60; k += 3) {
            memset(&c, 0, sizeof c);
            memset(&disk_does, 0, sizeof disk_does);
            c.cfg.stage = (int)(k % 4);
            c.cfg.optimizer_tier = ZERO_FILE;
            c.cfg.type = ZERO_BF16;
            c.large = 1;
            *(writes ? &disk_does.fail_write : &disk_does.fail_read) = k;
            offload_run(&c, 2);
            const int reached = (writes ? disk_does.writes : disk_does.reads) >= k;
            for (int r = 0; r < 2; r++)
                test_check(
                    (c.result[r] != ZERO_OK) == reached
                        && (!reached || strstr(c.why[r], writes ? "writing byte" : "reading byte")),
                    "%s %ld fails, rank %d: %s", writes ? "write" : "read", k, r, c.why[r]);
        }
    memset(&disk_does, 0, sizeof disk_does);
    memset(&c, 0, sizeof c);
    c.cfg.optimizer_tier = ZERO_FILE;
    c.large = 1;
    c.reads = 1;
    disk_does.flip = 0;
    offload_run(&c, 1);
    test_check(!c.result[0], "no fault: %s", c.why[0]);
}

/* A bit that the disk has turned is found where it is read. */
static void offload_flips(void) {
    static offload_case c;
    zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
    zero_ctx *z = NULL;
    c.cfg.stage = 1;
    c.large = 1;
    zero_result r = offload_open(&z, &self, &c, ZERO_FILE);
    if (!r) r = offload_step(z, &c, 0, 0);
    test_check(!r, "a step: %s", zero_last_error(z));
    zp_ring_forget(&z->ring);
    disk_does.flip = 1;
    r = offload_step(z, &c, 1, 0);
    test_check(r == ZERO_ERR_DEVICE && strstr(zero_last_error(z), "are not what was written there"),
               "a bit is another: %s", zero_last_error(z));
    zero_destroy(z);
}

/* What cannot be: told at the build, before any training. */
static void offload_refused(void) {
    static offload_case c;
    zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
    zero_ctx *z = NULL;
    const char *kept = offload_folder;
    memset(&c, 0, sizeof c);
    disk_does.full = 1;
    test_check(offload_open(&z, &self, &c, ZERO_FILE) == ZERO_ERR_MEMORY
                   && strstr(zero_last_error(z), "are free: No space left"),
               "no room: %s", zero_last_error(z));
    zero_destroy(z);
    disk_does.full = 0;
    offload_folder = "/nonexistent/folder";
    test_check(offload_open(&z, &self, &c, ZERO_FILE) == ZERO_ERR_DEVICE
                   && strstr(zero_last_error(z), "/nonexistent/folder: No such file"),
               "no folder: %s", zero_last_error(z));
    zero_destroy(z);
    offload_folder = NULL;
    test_check(offload_open(&z, &self, &c, ZERO_FILE) == ZERO_ERR_ARGUMENT
                   && strstr(zero_last_error(z), "folder is NULL"),
               "folder NULL: %s", zero_last_error(z));
    zero_destroy(z);
    offload_folder = kept;
    test_check(offload_open(&z, &self, &c, ZERO_HOST) == ZERO_OK, "HOST is DEVICE here: %s",
               zero_last_error(z));
    zero_destroy(z);
    /* one rank of two */
    disk_does.full = 0;
}

int main(int argc, char **argv) {
    const int every = argc > 1 ? atoi(argv[1]) : 1;
    offload_folder = argc > 3 ? argv[3] : "/tmp";
    offload_refused();
    offload_flips();
    offload_faults();
    offload_all(every, argc > 2 ? strtoull(argv[2], NULL, 10) : 1);
    return test_summary();
}

/* test_mpi.c MODE [NODE_SIZE...] - the MPI communicator, started by mpirun (see test_mpi.sh).
     same N..     trains at every stage with comm.node_size N (0: as MPI reports); compares weights
                  with those of the local communicator, and bytes with the plan
     few N..      the same with fewer settings
     windows N..  the same where ranks see no peer's files, and share MPI windows instead
     hash N       on real hosts of N ranks: compares, and prints the hash
     errors       what must be refused, and ranks that go, stall or disagree
     hierarchy N..  shard groups, replicas, second shards and numbers that travel packed, with nodes
                  of N: LOCAL's weights, and the bytes of the formulas between nodes
     groups       groups of ranks: collectives with LOCAL's bits, parts, contexts of parts, faults
     thread       MPI started below MPI_THREAD_MULTIPLE
     small        with little room in /dev/shm: no difference
     none         the same where windows need it: an error
     die          rank 1 kills itself: MPI must end the others
   Every MPI call of the plugin goes through the functions below that count: the test itself calls
   PMPI. Rank 0 prints `N passed, N failed` for all ranks. */
#include "../shared/harness.h"

#include <errno.h>
#include <mpi.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

static MPI_Comm mpi_given; /* what the plugin is given and must not use */
static int mpi_rank, mpi_ranks;
static int mpi_few;   /* one setting per stage */
static int mpi_hosts; /* ranks per pretended host; -1: the last rank alone; -2: in turns */
static uint64_t mpi_sent, mpi_sends; /* by point-to-point messages */
static uint64_t mpi_other;           /* bytes of one rank in the largest collective */
static int mpi_windows;              /* made */
static int mpi_misuse;               /* calls on the given communicator or the world */
static int mpi_handled;              /* calls of the given communicator's error handler */

static zero_comm mpi_comm_of(const test_rank *r) {
    zero_comm c = {ZERO_COMM_LOCAL, r->rank, r->local, r->node_size};
    if (r->local) return c;
    c.kind = ZERO_COMM_MPI;
    c.handle = &mpi_given;
    return c;
}
#define test_comm mpi_comm_of
#pragma GCC diagnostic ignored "-Wunused-function"
#include "../shared/host.h"
#include "../shared/groups.h"

/* ---- what the plugin calls ---- */

static void mpi_note(MPI_Comm comm) {
    if (comm == mpi_given || comm == MPI_COMM_WORLD)
        __atomic_add_fetch(&mpi_misuse, 1, __ATOMIC_RELAXED);
}
static void mpi_note_sent(MPI_Comm comm, int count, MPI_Datatype type) {
    int size;
    mpi_note(comm);
    PMPI_Type_size(type, &size);
    __atomic_add_fetch(&mpi_sent, (uint64_t)size * (uint64_t)count, __ATOMIC_RELAXED);
    __atomic_add_fetch(&mpi_sends, 1, __ATOMIC_RELAXED);
}
static void mpi_note_other(MPI_Comm comm, int count, MPI_Datatype type) {
    int size;
    mpi_note(comm);
    PMPI_Type_size(type, &size);
    const uint64_t bytes = (uint64_t)size * (uint64_t)count;
    if (bytes > __atomic_load_n(&mpi_other, __ATOMIC_RELAXED))
        __atomic_store_n(&mpi_other, bytes, __ATOMIC_RELAXED);
}

static int mpi_words; /* of a failure of MPI, sent to other nodes */
int MPI_Isend(const void *p, int n, MPI_Datatype t, int to, int tag, MPI_Comm c, MPI_Request *r) {
    mpi_words += t == MPI_BYTE && memmem(p, (size_t)n, "MPI_Testall: ", 13);
    mpi_note_sent(c, n, t);
    return PMPI_Isend(p, n, t, to, tag, c, r);
}
int MPI_Send(const void *p, int n, MPI_Datatype t, int to, int tag, MPI_Comm c) {
    mpi_note_sent(c, n, t);
    return PMPI_Send(p, n, t, to, tag, c);
}
int MPI_Irecv(void *p, int n, MPI_Datatype t, int from, int tag, MPI_Comm c, MPI_Request *r) {
    mpi_note(c);
    return PMPI_Irecv(p, n, t, from, tag, c, r);
}
int MPI_Improbe(int from, int tag, MPI_Comm c, int *flag, MPI_Message *m, MPI_Status *s) {
    mpi_note(c);
    return PMPI_Improbe(from, tag, c, flag, m, s);
}
int MPI_Iallgather(const void *p, int n, MPI_Datatype t, void *q, int m, MPI_Datatype u, MPI_Comm c,
                   MPI_Request *r) {
    mpi_note_other(c, n, t);
    return PMPI_Iallgather(p, n, t, q, m, u, c, r);
}
int MPI_Allgather(const void *p, int n, MPI_Datatype t, void *q, int m, MPI_Datatype u,
                  MPI_Comm c) {
    mpi_note_other(c, n, t);
    return PMPI_Allgather(p, n, t, q, m, u, c);
}
int MPI_Ibcast(void *p, int n, MPI_Datatype t, int root, MPI_Comm c, MPI_Request *r) {
    mpi_note_other(c, n, t);
    return PMPI_Ibcast(p, n, t, root, c, r);
}
int MPI_Bcast(void *p, int n, MPI_Datatype t, int root, MPI_Comm c) {
    mpi_note_other(c, n, t);
    return PMPI_Bcast(p, n, t, root, c);
}
int MPI_Ibarrier(MPI_Comm c, MPI_Request *r) {
    mpi_note(c);
    return PMPI_Ibarrier(c, r);
}
int MPI_Barrier(MPI_Comm c) {
    mpi_note(c);
    return PMPI_Barrier(c);
}
static int mpi_comms; /* made by the plugin and not freed */
int MPI_Comm_split(MPI_Comm c, int color, int key, MPI_Comm *out) {
    mpi_note(c);
    mpi_comms++;
    return PMPI_Comm_split(c, color, key, out);
}
int MPI_Comm_dup(MPI_Comm c, MPI_Comm *out) {
    mpi_comms++;
    return PMPI_Comm_dup(c, out);
}
int MPI_Comm_free(MPI_Comm *c) {
    mpi_comms--;
    return PMPI_Comm_free(c);
}
int MPI_Comm_set_errhandler(MPI_Comm c, MPI_Errhandler h) {
    mpi_note(c);
    return PMPI_Comm_set_errhandler(c, h);
}
static int mpi_windowless; /* there are none to be had */
int MPI_Win_allocate_shared(MPI_Aint n, int unit, MPI_Info i, MPI_Comm c, void *base, MPI_Win *w) {
    mpi_note(c);
    mpi_windows++;
    if (mpi_windowless) return MPI_ERR_NO_MEM;
    return PMPI_Win_allocate_shared(n, unit, i, c, base, w);
}
int MPI_Comm_split_type(MPI_Comm c, int type, int key, MPI_Info info, MPI_Comm *out) {
    int color = mpi_hosts == -2 ? mpi_rank % 2 : mpi_rank == mpi_ranks - 1;
    mpi_note(c);
    mpi_comms++;
    if (!mpi_hosts) return PMPI_Comm_split_type(c, type, key, info, out);
    if (mpi_hosts > 0) color = mpi_rank / mpi_hosts;
    return PMPI_Comm_split(c, color, key, out);
}

static int mpi_broken; /* pairs of requests fail, and nothing is said of the single ones */
int MPI_Testall(int n, MPI_Request *r, int *done, MPI_Status *s) {
    if (!mpi_broken || n == 1) return PMPI_Testall(n, r, done, s);
    memset(s, 85, (size_t)n * sizeof *s);
    return MPI_ERR_OTHER;
}

static int mpi_slow; /* so many times a request is not done */
int MPI_Test(MPI_Request *r, int *done, MPI_Status *s) {
    if (!mpi_slow) return PMPI_Test(r, done, s);
    mpi_slow--;
    *done = 0;
    return MPI_SUCCESS;
}

static void mpi_handler(MPI_Comm *c, int *code, ...) {
    (void)c;
    (void)code;
    mpi_handled++;
}

static void mpi_nap(void) { usleep(200); }

/* Waits for all ranks without taking their cores. */
static void mpi_meet(void) {
    MPI_Request request;
    int done = 0;
    PMPI_Ibarrier(MPI_COMM_WORLD, &request);
    while (PMPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done) mpi_nap();
}

/* ---- the same bits, the planned bytes ---- */

static void mpi_tensor(host_spec *s, const char *name, size_t numel, int layers, int unit, int uses,
                       int flags) {
    zero_tensor_desc *d = &s->desc[s->ntensors];
    snprintf(s->name[s->ntensors++], HOST_NAME, "%s", name);
    d->name = name;
    d->numel = numel;
    d->layers = layers;
    d->unit = unit;
    d->uses = uses;
    d->flags = flags;
}

/* A tied embedding, three blocks, kept norms; `large`: shards longer than one message. */
static void mpi_spec(host_spec *s, int node_size, int large, zero_accumulation accumulation) {
    const zero_hyper adamw = {0.01f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f};
    memset(s, 0, sizeof *s);
    s->seed = 77;
    s->nranks = mpi_ranks;
    s->node_size = node_size;
    s->steps = 2;
    s->micro_steps = 2;
    s->units = 5;
    s->silent_unit = -1;
    s->adamw = adamw;
    s->cfg.accumulation = accumulation;
    s->cfg.threads = 1 + large; /* sums between nodes are by both */
    s->cfg.timeout_s = 60;
    mpi_tensor(s, "wte", large ? (size_t)mpi_ranks * 66000 + 5 : 2003, 1, 0, 2, 0);
    mpi_tensor(s, "w", 1501, 3, 1, 1, 0);
    mpi_tensor(s, "b", 37, 3, 1, 1, ZERO_NO_DECAY | ZERO_ONE_D);
    mpi_tensor(s, "ln", 41, 3, 1, 1, ZERO_KEEP | ZERO_ONE_D);
    mpi_tensor(s, "lnf", 43, 1, 4, 1, ZERO_ONE_D);
}

typedef struct mpi_result {
    uint64_t hash, sent, other;
    uint64_t far;     /* bytes between nodes that the formulas say: mpi_far */
    uint64_t reduced; /* elements of this rank's shards, each as often as it is reduced in a step */
    uint64_t envelopes; /* bytes of a step: of nodes of one rank */
    zero_stats stats;
    zero_plan plan;
} mpi_result;

/* Everything that the stage shards is in files. */
static void mpi_filed(host_spec *s) {
    s->cfg.folder = "/tmp";
    s->cfg.optimizer_tier = ZERO_FILE;
    if (s->cfg.stage == 3) s->cfg.parameter_tier = ZERO_FILE;
    if (s->cfg.stage > 1 && s->cfg.accumulation == ZERO_ACCUMULATE_SHARDED)
        s->cfg.gradient_tier = ZERO_FILE;
}

static int mpi_common(int a, int b) { return b ? mpi_common(b, a % b) : a; }

/* Of n numbers in codes of so many bits, with a scale for each 128 of them. */
static uint64_t mpi_packed_bytes(int bits, uint64_t n) {
    return ((n + 127) / 128 * 4 + 63) / 64 * 64 + (n * (uint64_t)bits / 8 + 63) / 64 * 64;
}
/* A unit of vectors alone, whose gradient never travels packed. */
static int mpi_vectors(const host_spec *s, int u) {
    int all = 1;
    for (int t = 0; t < s->ntensors; t++) {
        const int kept = s->desc[t].flags & ZERO_KEEP;
        if (u == s->units ? kept : !kept && host_in_unit(&s->desc[t], u))
            all &= (s->desc[t].flags & ZERO_ONE_D) != 0;
    }
    return all;
}

enum { MPI_ENVELOPE = 32 }; /* bytes before each message of a hop */

/* Bytes of a step that a packed reduction of a unit gives MPI: in hops, inside nodes, too. */
static uint64_t mpi_hops(const host_spec *s, uint64_t part, int shard, int inside) {
    const int local = inside > 1 ? inside : shard, nodes = shard / local;
    const uint64_t messages = (uint64_t)(local - 1 + nodes - 1);
    return (uint64_t)((local - 1) * nodes + nodes - 1)
               * mpi_packed_bytes(s->cfg.gradient_bits, part)
           + messages * MPI_ENVELOPE;
}

/* Bytes of a step that go between nodes of `node` ranks for a unit, where ranks have groups or
   numbers travel packed. */
static uint64_t mpi_far(const host_spec *s, const zero_plan_unit *x, int u, int node) {
    const int shard = s->cfg.shard_ranks ? s->cfg.shard_ranks : mpi_ranks;
    const int inside = mpi_common(shard, node), near = s->cfg.second_ranks;
    const uint64_t far = (uint64_t)(shard / inside - 1), of = zero_type_bytes(s->cfg.type);
    const uint64_t part = x->padded / (size_t)shard, piece = x->padded / (size_t)mpi_ranks;
    const uint64_t replicas = node == mpi_ranks ? 0 : (uint64_t)(mpi_ranks / shard - 1);
    const int seen =
        shard == inside && !s->cfg.no_mapping && !s->cfg.weight_bits && !s->cfg.parameter_tier;
    const uint64_t whole = s->cfg.weight_bits && !x->unsharded && s->cfg.stage == 3
                               ? mpi_packed_bytes(s->cfg.weight_bits, part)
                               : part * of;
    const int turns =
        near && s->cfg.stage == 3 && !seen && !x->unsharded && u < s->units && host_uses(s, u) == 1;
    const uint64_t later = turns ? (uint64_t)x->gathers - 1 : 0;
    uint64_t bytes = far * whole * ((uint64_t)x->gathers - later);
    bytes += (uint64_t)x->reductions
             * (s->cfg.gradient_bits && !mpi_vectors(s, u) ? mpi_hops(s, part, shard, inside)
                                                           : far * part * sizeof(float));
    if (x->reductions)
        bytes += replicas * piece * (sizeof(float) + zero_type_bytes(host_grad_type(s)));
    if (later)
        bytes += later * (uint64_t)(near / mpi_common(near, inside) - 1)
                 * (x->padded / (size_t)near) * of;
    return bytes;
}

static void mpi_train(test_rank *rank, const host_spec *s, mpi_result *out) {
    host_run h;
    int ok = host_open(&h, s, rank);
    memset(out, 0, sizeof *out);
    const uint64_t sent = mpi_sent;
    mpi_other = 0;
    for (h.step = 0; h.step < s->steps && ok; h.step++) {
        for (h.micro = 0; h.micro < s->micro_steps && ok; h.micro++) ok = host_train_pass(&h);
        ok = ok && !zero_reduce(h.z) && !zero_step(h.z, &s->adamw);
        if (ok && s->evaluate) ok = host_evaluate(&h);
    }
    ok = ok && !zero_query_stats(h.z, &out->stats) && !zero_query_plan(h.z, &out->plan);
    for (int u = 0; u < out->plan.units && ok; u++) {
        zero_plan_unit unit;
        ok = !zero_query_plan_unit(h.z, u, &unit);
        out->far += mpi_far(s, &unit, u, s->node_size ? s->node_size : mpi_ranks);
        out->reduced += (uint64_t)unit.reductions * (unit.padded / (size_t)mpi_ranks);
        if (s->cfg.gradient_bits && !mpi_vectors(s, u))
            out->envelopes += (uint64_t)unit.reductions * (uint64_t)(mpi_ranks - 1) * MPI_ENVELOPE;
    }
    out->sent = mpi_sent - sent;
    out->other = mpi_other;
    if (ok)
        out->hash = host_hash(&h);
    else
        test_rank_fail(rank, "%s", zero_last_error(h.z));
    zero_destroy(h.z);
}

typedef struct mpi_local {
    const host_spec *spec;
    uint64_t hash[64];
} mpi_local;

static void mpi_local_rank(test_rank *rank) {
    mpi_local *l = (mpi_local *)rank->arg;
    mpi_result result;
    mpi_train(rank, l->spec, &result);
    l->hash[rank->rank] = result.hash;
}

/* The hash of the local communicator's weights, on every rank; rank 0 trains. */
static uint64_t mpi_local_hash(const host_spec *s) {
    mpi_local l = {s, {0}};
    if (mpi_rank == 0)
        test_check(test_ranks(mpi_ranks, s->node_size, mpi_local_rank, &l), "local: %s",
                   test_first);
    mpi_meet();
    PMPI_Bcast(&l.hash[0], 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
    return l.hash[0];
}

/* Bytes in messages between `nodes` nodes, of one rank: the nodes' sums are f32 whatever the type,
   and what is gathered goes to every other rank. */
static uint64_t mpi_between(const host_spec *s, const mpi_result *r, int nodes) {
    const uint64_t others = (uint64_t)(mpi_ranks - 1), far = (uint64_t)(nodes - 1);
    const uint64_t inside = (uint64_t)(mpi_ranks / nodes - 1) * (uint64_t)nodes;
    const uint64_t elements = r->reduced * (uint64_t)s->steps;
    const uint64_t reduced =
        elements * (inside * zero_type_bytes(host_grad_type(s)) + far * sizeof(float));
    if (!others) return 0;
    const uint64_t gathered = r->stats.sent_bytes - reduced + r->stats.verdict_bytes;
    return elements * far * sizeof(float) + gathered / others * far;
}

/* This process, in nodes of so many ranks; 0: as the hosts have them. */
static test_rank mpi_placed(int node_size) {
    const test_rank rank = {.rank = mpi_rank, .nranks = mpi_ranks, .node_size = node_size};
    return rank;
}

/* One training under MPI. `nodes`: how many the ranks lie on. */
static void mpi_case(const host_spec *s, uint64_t expected, int nodes, const char *what) {
    static test_rank rank;
    mpi_result r;
    rank = mpi_placed(s->node_size);
    mpi_train(&rank, s, &r);
    test_check(
        !rank.failed && r.hash == expected && r.hash,
        "%s, stage %d, rule %d, type %d, accumulation %d, overlap %d, mapping %d: weights differ "
        "from the local communicator's %s",
        what, s->cfg.stage, (int)s->cfg.optimizer, (int)s->cfg.type, (int)s->cfg.accumulation,
        !s->cfg.no_overlap, !s->cfg.no_mapping, rank.why);
    if (rank.failed) return;
    uint64_t between = mpi_between(s, &r, nodes);
    if (s->cfg.shard_ranks || s->cfg.second_ranks || s->cfg.weight_bits || s->cfg.gradient_bits)
        between = r.far * (uint64_t)s->steps
                  + r.stats.verdict_bytes / (uint64_t)(mpi_ranks - 1) * (uint64_t)(nodes - 1);
    test_check(s->evaluate || r.stats.sent_bytes == r.plan.sent_bytes * (uint64_t)s->steps,
               "%s, stage %d: sent %llu, planned %llu", what, s->cfg.stage,
               (unsigned long long)r.stats.sent_bytes,
               (unsigned long long)(r.plan.sent_bytes * (uint64_t)s->steps));
    if (nodes == mpi_ranks && s->cfg.gradient_bits && !s->cfg.shard_ranks)
        test_check(
            r.sent == r.stats.sent_bytes + r.stats.verdict_bytes + r.envelopes * (uint64_t)s->steps,
            "%s: %llu bytes in messages, %llu counted", what, (unsigned long long)r.sent,
            (unsigned long long)r.stats.sent_bytes);
    test_check(r.sent == between, "%s, stage %d: %llu bytes in messages, expected %llu", what,
               s->cfg.stage, (unsigned long long)r.sent, (unsigned long long)between);
    test_check(r.other <= 528, "%s, stage %d: a collective of %llu bytes while training", what,
               s->cfg.stage, (unsigned long long)r.other);
}

/* 16-bit types: two micro-steps that accumulate here or there. */
static void mpi_types(int node_size, int size, const char *what) {
    for (int k = 0; k < 4; k++) {
        host_spec s;
        mpi_spec(&s, size, 0, k & 1 ? ZERO_ACCUMULATE_SHARDED : ZERO_ACCUMULATE_LOCAL);
        s.cfg.type = k < 2 ? ZERO_BF16 : ZERO_F16;
        s.cfg.grads = k ? ZERO_GRAD_AS_TYPE : ZERO_GRAD_AUTO;
        s.cfg.scaler.initial = 64;
        s.groups = k & 1;
        if (mpi_few && k % 3 != 1) continue;
        const uint64_t expected = mpi_local_hash(&s);
        s.node_size = node_size;
        for (s.cfg.stage = k & 1; s.cfg.stage <= 3; s.cfg.stage += 2) {
            s.cfg.no_mapping = k & 1;
            mpi_case(&s, expected, mpi_ranks / size, what);
        }
    }
}

/* Rules of two passes: LAMB's sums of squares, and Muon's matrices, dealt and returned. */
static void mpi_rules(int node_size, int size, const char *what) {
    for (int k = 0; k < 4; k++) {
        host_spec s;
        mpi_spec(&s, size, 0, ZERO_ACCUMULATE_SHARDED);
        s.cfg.optimizer = k & 1 ? ZERO_MUON : ZERO_LAMB;
        s.cfg.type = k < 2 ? ZERO_F32 : ZERO_BF16;
        s.rows[1] = 19; /* of `w` */
        s.cols[1] = 79;
        if (mpi_few && k % 3) continue;
        const uint64_t expected = mpi_local_hash(&s);
        s.node_size = node_size;
        for (s.cfg.stage = 0; s.cfg.stage <= 3; s.cfg.stage++) {
            s.cfg.no_overlap = (k / 2 + s.cfg.stage) % 2;
            s.cfg.no_mapping = s.cfg.stage % 2;
            mpi_case(&s, expected, mpi_ranks / size, what);
        }
    }
}

/* All stages and settings; `size`: ranks per node, as it comes out. */
static void mpi_cases(int node_size, int size, const char *what) {
    for (int a = mpi_few ? 2 : 1; a <= 2; a++) {
        host_spec s;
        mpi_spec(&s, size, 0, (zero_accumulation)a);
        const uint64_t expected = mpi_local_hash(&s);
        s.node_size = node_size;
        for (int i = 0; i < 20; i++) {
            s.cfg.stage = i / 5;
            if (((a == ZERO_ACCUMULATE_LOCAL || mpi_few) && i % 5)
                || (s.cfg.stage < 3 && i % 5 > 1))
                continue;
            s.cfg.no_overlap = i % 5 % 2;
            s.cfg.no_mapping = i % 5 / 2 == 1;
            s.evaluate = s.recompute = i % 5 == 4;
            s.cfg.prefetch = i % 5 == 4 ? ZERO_NONE : 0;
            mpi_case(&s, expected, mpi_ranks / size, what);
        }
    }
    mpi_types(node_size, size, what);
    mpi_rules(node_size, size, what);
    if (mpi_ranks > 4) return;
    host_spec s;
    mpi_spec(&s, size, 1, ZERO_ACCUMULATE_SHARDED);
    s.steps = 1;
    const uint64_t expected = mpi_local_hash(&s);
    s.node_size = node_size;
    for (s.cfg.stage = 1; s.cfg.stage <= 3; s.cfg.stage += 2)
        mpi_case(&s, expected, mpi_ranks / size, what);
}

/* Hosts whose ranks do not follow each other: only sums that are exact in any order compare. */
static void mpi_in_turns(void) {
    host_spec s;
    mpi_spec(&s, 0, 0, ZERO_ACCUMULATE_SHARDED);
    s.integer = 1;
    const uint64_t expected = mpi_local_hash(&s);
    mpi_hosts = -2;
    for (s.cfg.stage = 0; s.cfg.stage <= 3; s.cfg.stage++)
        mpi_case(&s, expected, 2, "hosts in turns");
    mpi_hosts = 0;
}

/* Weights and gradients in fewer bits, together with second shards, and with shard groups. Where
   every rank is a node of its own all that is planned and counted goes through MPI: its bytes are
   those, and the envelopes of messages. */
static void mpi_packed(int given, int size) {
    host_spec s;
    for (int k = 0; k < 4; k++) {
        const int near = size > 1 && size < mpi_ranks ? size : mpi_ranks % 2 ? mpi_ranks : 2;
        char what[100];
        mpi_spec(&s, size, k == 3 && mpi_ranks <= 4,
                 k & 1 ? ZERO_ACCUMULATE_SHARDED : ZERO_ACCUMULATE_LOCAL);
        s.cfg.stage = 3;
        s.cfg.type = k & 2 ? ZERO_F32 : ZERO_BF16;
        s.cfg.grads = k & 1 ? ZERO_GRAD_AS_TYPE : ZERO_GRAD_AUTO;
        s.cfg.no_overlap = k == 2;
        s.cfg.no_mapping = k & 1;
        s.cfg.weight_bits = k & 1 ? 8 : 4;
        s.cfg.gradient_bits = k & 1 ? 4 : 8;
        s.cfg.feedback = k < 2 ? 0.8f : 0;
        s.cfg.second_ranks = near;
        if (k == 2 && mpi_ranks % 2 == 0) s.cfg.shard_ranks = s.cfg.second_ranks = mpi_ranks / 2;
        snprintf(what, sizeof what, "packed, %d ranks, node_size %d, shard_ranks %d, second %d",
                 mpi_ranks, given, s.cfg.shard_ranks, s.cfg.second_ranks);
        const uint64_t expected = mpi_local_hash(&s);
        s.node_size = given;
        mpi_case(&s, expected, mpi_ranks / size, what);
    }
}

/* Every shard group and second shard that the ranks allow, in memory or in files, packed numbers,
   and ranks that do not follow each other. */
static void mpi_hierarchy(int argc, char **argv) {
    host_spec s;
    int k = 0;
    for (int i = 2; i < argc; i++)
        mpi_packed(atoi(argv[i]), atoi(argv[i]) ? atoi(argv[i]) : mpi_ranks);
    for (int i = 2; i < argc; i++)
        for (int shard = 1; shard <= mpi_ranks; shard++)
            for (int near = 0; near <= shard && mpi_ranks % shard == 0; near++) {
                const int given = atoi(argv[i]), size = given ? given : mpi_ranks;
                char what[80];
                if (near && shard % near) continue;
                mpi_spec(&s, size, 0, ++k & 1 ? ZERO_ACCUMULATE_SHARDED : ZERO_ACCUMULATE_LOCAL);
                s.cfg.stage = near ? 3 : 1 + k % 3;
                s.cfg.type = k % 3 == 1 ? ZERO_BF16 : ZERO_F32;
                s.cfg.grads = k & 2 ? ZERO_GRAD_AS_TYPE : ZERO_GRAD_AUTO;
                s.cfg.no_overlap = k % 4 == 3;
                s.cfg.no_mapping = k % 5 > 0;
                s.cfg.shard_ranks = shard;
                s.cfg.second_ranks = near;
                snprintf(what, sizeof what, "%d ranks, node_size %d, shard_ranks %d, second %d%s",
                         mpi_ranks, given, shard, near, k % 4 == 1 ? ", in files" : "");
                const uint64_t expected = mpi_local_hash(&s);
                s.node_size = given;
                if (k % 4 == 1) mpi_filed(&s);
                mpi_case(&s, expected, mpi_ranks / size, what);
            }
    if (mpi_ranks != 4) return;
    mpi_spec(&s, 0, 0, ZERO_ACCUMULATE_SHARDED);
    s.integer = s.cfg.stage = s.evaluate = 1;
    const uint64_t expected = mpi_local_hash(&s);
    mpi_hosts = -2;
    for (s.cfg.stage = 1; s.cfg.stage <= 3; s.cfg.stage++) {
        static test_rank rank;
        mpi_result r;
        s.cfg.shard_ranks = 2;
        s.cfg.second_ranks = s.cfg.stage == 3 ? 2 : 0;
        rank = mpi_placed(0);
        mpi_train(&rank, &s, &r);
        test_check(!rank.failed && r.hash == expected, "hosts in turns, stage %d: %s", s.cfg.stage,
                   rank.why);
    }
    mpi_hosts = 0;
}

static void mpi_same(int argc, char **argv) {
    char what[64];
    for (int i = 2; i < argc; i++) {
        const int given = atoi(argv[i]), size = given ? given : mpi_ranks;
        snprintf(what, sizeof what, "%d ranks, node_size %d", mpi_ranks, given);
        mpi_cases(given, size, what);
    }
    if (mpi_ranks != 4) return;
    mpi_hosts = 2;
    mpi_cases(0, 2, "4 ranks, 2 pretended hosts");
    mpi_hosts = 0;
    mpi_in_turns();
}

/* For test_hosts.sh: node_size as MPI finds it must be the given one. */
static void mpi_hash(int size) {
    host_spec s;
    char host[64] = "";
    mpi_spec(&s, size, 0, ZERO_ACCUMULATE_SHARDED);
    const uint64_t expected = mpi_local_hash(&s);
    gethostname(host, sizeof host - 1);
    s.node_size = 0;
    for (s.cfg.stage = 0; s.cfg.stage <= 3; s.cfg.stage++)
        mpi_case(&s, expected, mpi_ranks / size, "hosts");
    mpi_types(0, size, "hosts");
    mpi_rules(0, size, "hosts");
    mpi_spec(&s, size, 1, ZERO_ACCUMULATE_LOCAL);
    const uint64_t large = mpi_local_hash(&s);
    s.node_size = 0;
    s.cfg.stage = 3;
    mpi_case(&s, large, mpi_ranks / size, "hosts, large");
    if (mpi_rank == 0) /* of one host of `size` ranks; ranks send alike */
        printf("bytes between nodes: %llu\n",
               (unsigned long long)mpi_sent * (unsigned long long)size);
    printf("rank %d on %s: hash %016llx\n", mpi_rank, host, (unsigned long long)expected);
}

/* ---- errors ---- */

static int mpi_shards; /* shard_ranks of what is refused */
/* zero_create with this node_size gives `result` on this rank, and a sentence with `word`. */
static void mpi_refuses(const char *what, MPI_Comm *handle, int node_size, zero_result result,
                        const char *word) {
    zero_config cfg = {0};
    zero_comm comm = {ZERO_COMM_MPI, 0, NULL, 0};
    zero_ctx *z;
    comm.handle = handle;
    comm.node_size = node_size;
    cfg.log = test_quiet;
    cfg.stage = cfg.shard_ranks = mpi_shards;
    const zero_result got = zero_create(&z, &cfg, &comm);
    test_check(got == result && (!word || strstr(zero_last_error(z), word)), "%s, rank %d: %s: %s",
               what, mpi_rank, zero_result_string(got), zero_last_error(z));
    zero_destroy(z);
}

/* More copies than may be nodes, of fewer nodes. */
static void mpi_many(void) {
    char word[80];
    (void)snprintf(word, sizeof word, "%d replicas in nodes of 1 are %d nodes, at most 64",
                   mpi_ranks, mpi_ranks);
    mpi_shards = 1;
    mpi_refuses("a copy each", &mpi_given, 2, ZERO_ERR_UNSUPPORTED, word);
}

/* One of the plugin's own allocations on this rank, counted down from this, is refused; 0: none. */
static int mpi_refused;
static int mpi_refuse(const void *caller) {
    extern char __executable_start, etext;
    const char *at = (const char *)caller;
    return mpi_refused && at >= &__executable_start && at < &etext && !--mpi_refused;
}
void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *malloc(size_t n) { return mpi_refuse(__builtin_return_address(0)) ? NULL : __libc_malloc(n); }
void *calloc(size_t n, size_t of) {
    return mpi_refuse(__builtin_return_address(0)) ? NULL : __libc_calloc(n, of);
}

/* Rank 1's k-th allocation in zero_create is refused: every rank learns it, and none waits. The
   first is the context's own, before which there is nobody to ask. */
static void mpi_no_memory(int node_size) {
    int k = 2, left = 0;
    for (; !left && k < 30; k++) {
        zero_config cfg = {0};
        const zero_comm comm = {ZERO_COMM_MPI, 0, &mpi_given, node_size};
        zero_ctx *z;
        mpi_meet();
        const double start = test_now();
        mpi_refused = mpi_rank == 1 ? k : 0;
        const zero_result got = zero_create(&z, &cfg, &comm);
        left = mpi_refused;
        mpi_refused = 0;
        PMPI_Bcast(&left, 1, MPI_INT, 1, MPI_COMM_WORLD);
        test_check((got == ZERO_OK) == (left > 0) && test_now() - start < 20,
                   "allocation %d of rank 1 is refused, rank %d: %s after %.1f s: %s", k, mpi_rank,
                   zero_result_string(got), test_now() - start, zero_last_error(z));
        zero_destroy(z);
    }
    test_check(k > 6, "rank %d: only %d allocations", mpi_rank, k);
}

typedef enum mpi_trouble {
    MPI_WELL,
    MPI_GOES,
    MPI_LEAVES,
    MPI_STALLS,
    MPI_OTHER_STAGE,
    MPI_OTHER_ORDER,
    MPI_OTHER_CALL,
    MPI_BREAKS,
    MPI_DIES
} mpi_trouble;

static int mpi_order(host_run *h, int swap) {
    HOST_TRY(h, zero_pass_begin(h->z, ZERO_TRAIN, 0, 2));
    for (int i = 0; i < 2; i++)
        if (!host_forward(h, 1 + (i ^ swap))) return 0;
    return 1;
}

static int mpi_work(host_run *h, const host_spec *s, mpi_trouble trouble) {
    const int odd = mpi_rank == 1;
    double values[2] = {1, 1};
    for (h->step = 0; h->step < s->steps; h->step++) {
        if (h->step == 1 && odd && (trouble == MPI_GOES || trouble == MPI_LEAVES)) {
            if (trouble == MPI_GOES) (void)zero_pass_begin(h->z, ZERO_TRAIN, 0, 2);
            return 1;
        }
        if (h->step == 1 && odd && trouble == MPI_STALLS) usleep(2500000);
        mpi_broken = h->step == 1 && odd && trouble == MPI_BREAKS;
        if (h->step == 1 && odd && trouble == MPI_DIES) (void)kill(getpid(), SIGKILL);
        if (h->step == 1 && trouble == MPI_OTHER_ORDER) {
            if (!mpi_order(h, odd)) return 0;
            continue;
        }
        if (h->step == 1 && trouble == MPI_OTHER_CALL && odd)
            HOST_TRY(h, zero_all_sum(h->z, values, 2));
        if (h->step == 1 && trouble == MPI_OTHER_CALL && !odd) HOST_TRY(h, zero_barrier(h->z));
        for (h->micro = 0; h->micro < s->micro_steps; h->micro++)
            if (!host_train_pass(h)) return 0;
        HOST_TRY(h, zero_reduce(h->z));
        HOST_TRY(h, zero_step(h->z, &s->adamw));
    }
    HOST_TRY(h, zero_barrier(h->z));
    return 1;
}

/* Rank 1 is in trouble; every other rank must have an error within 10 s, and end. */
static void mpi_troubled(const char *what, int node_size, mpi_trouble trouble, double timeout_s,
                         const char *word) {
    static test_rank rank;
    host_spec s;
    host_run h;
    mpi_meet();
    const double start = test_now();
    rank = mpi_placed(node_size);
    mpi_spec(&s, node_size, 0, ZERO_ACCUMULATE_SHARDED);
    s.steps = 3;
    s.cfg.stage = 3;
    s.cfg.prefetch = ZERO_NONE;
    s.cfg.timeout_s = timeout_s;
    s.cfg.no_overlap = trouble == MPI_OTHER_ORDER;
    if (trouble == MPI_OTHER_STAGE && mpi_rank == 1) s.cfg.stage = 2;
    const int ok = host_open(&h, &s, &rank) && mpi_work(&h, &s, trouble);
    const int gone = mpi_rank == 1 && (trouble == MPI_GOES || trouble == MPI_LEAVES);
    const double failed = test_now();
    zero_destroy(h.z);
    const double end = test_now();
    test_check((ok == (gone || trouble == MPI_WELL)) && failed - start < 10 && end - start < 12,
               "%s, node_size %d, rank %d: %s after %.1f s, destroyed after %.1f s: %s", what,
               node_size, mpi_rank, ok ? "no error" : "error", failed - start, end - start,
               rank.why);
    test_check(ok || !word || strstr(rank.why, word), "%s, node_size %d, rank %d: %s", what,
               node_size, mpi_rank, rank.why);
    if (getenv("TEST_VERBOSE"))
        printf("%s, node_size %d, rank %d, %.2f s: %s\n", what, node_size, mpi_rank, end - start,
               rank.why);
    mpi_meet();
}

/* A context that is planned and never built is destroyed; `leaves`: by rank 1 alone, without an
   error, while the others build: they learn of it soon. */
static void mpi_planned(int node_size, int leaves) {
    const zero_tensor_desc d = {"w", 1000, .layers = 1};
    const zero_comm comm = {ZERO_COMM_MPI, 0, &mpi_given, node_size};
    const zero_config cfg = {.log = test_quiet};
    const int comms = mpi_comms, builds = leaves && mpi_rank != 1;
    zero_ctx *z;
    zero_plan plan;
    mpi_meet();
    const double start = test_now();
    zero_result e = zero_create(&z, &cfg, &comm);
    if (!e) e = zero_tensor(z, &d);
    if (!e) e = zero_query_plan(z, &plan);
    if (!e && builds) e = zero_build(z);
    test_check(e == (builds ? ZERO_ERR_PEER : ZERO_OK), "a plan, node_size %d, rank %d: %s",
               node_size, mpi_rank, zero_last_error(z));
    zero_destroy(z);
    test_check(test_now() - start < 10 && (leaves || mpi_comms == comms),
               "a plan, node_size %d, rank %d: destroyed after %.1f s, %d communicators are left",
               node_size, mpi_rank, test_now() - start, mpi_comms - comms);
}

/* The k-th read or write of this rank's files from here on fails; 0: none. */
static long mpi_fail_read, mpi_fail_write;
static int mpi_fails(long *k) {
    const int fails = *k && !__atomic_sub_fetch(k, 1, __ATOMIC_RELAXED);
    if (fails) errno = EIO;
    return fails;
}
ssize_t pread(int fd, void *p, size_t n, off_t at) {
    return mpi_fails(&mpi_fail_read) ? -1 : (ssize_t)syscall(SYS_pread64, fd, p, n, at);
}
ssize_t pwrite(int fd, const void *p, size_t n, off_t at) {
    return mpi_fails(&mpi_fail_write) ? -1 : (ssize_t)syscall(SYS_pwrite64, fd, p, n, at);
}

/* The k-th transfer of rank 1 fails: every rank says which, in its words, and shows no weight, some
   of which may be new and others old. */
static void mpi_disk_fails(int node_size, int writes, long k) {
    static test_rank rank;
    host_spec s;
    host_run h;
    float value = 0;
    char said[200] = "", rank_0[200];
    mpi_meet();
    const double start = test_now();
    rank = mpi_placed(node_size);
    mpi_spec(&s, node_size, 0, ZERO_ACCUMULATE_SHARDED);
    s.steps = 3;
    s.cfg.stage = 3;
    mpi_filed(&s);
    int ok = host_open(&h, &s, &rank);
    if (mpi_rank == 1) *(writes ? &mpi_fail_write : &mpi_fail_read) = k;
    ok = ok && mpi_work(&h, &s, MPI_WELL);
    mpi_fail_read = mpi_fail_write = 0;
    const int shown = !zero_read_tensor(h.z, "w", ZERO_PARAMETER, 0, 1, &value)
                      || !zero_pass_begin(h.z, ZERO_EVAL, 0, 1) || !zero_state_begin(h.z);
    zero_destroy(h.z);
    const char *word = strstr(rank.why, writes ? "writing byte " : "reading byte ");
    (void)snprintf(said, sizeof said, "%s", word ? word : "");
    memcpy(rank_0, said, sizeof said);
    PMPI_Bcast(rank_0, sizeof rank_0, MPI_CHAR, 0, MPI_COMM_WORLD);
    test_check(!ok && !shown && !strcmp(said, rank_0)
                   && strstr(said, " of rank 1's file in /tmp: Input/output error")
                   && test_now() - start < 10,
               "%s %ld of rank 1 fails, node_size %d, rank %d: after %.1f s, %s: %s",
               writes ? "write" : "read", k, node_size, mpi_rank, test_now() - start,
               shown ? "weights are shown" : "no weights", ok ? "no error" : rank.why);
    mpi_meet();
}

static void mpi_errors(void) {
    mpi_refuses("no communicator", NULL, 0, ZERO_ERR_ARGUMENT, "MPI_Comm");
    mpi_refuses("5 of 4", &mpi_given, 5, ZERO_ERR_ARGUMENT, "does not divide");
    mpi_refuses("-1", &mpi_given, -1, ZERO_ERR_ARGUMENT, "does not divide");
    mpi_refuses("different node_size", &mpi_given, mpi_rank < 2 ? 2 : 1, ZERO_ERR_MISMATCH,
                "node_size");
    mpi_hosts = -1;
    mpi_refuses("uneven hosts", &mpi_given, 0, ZERO_ERR_ARGUMENT, "as many ranks on every machine");
    mpi_refuses("uneven hosts, node_size 1", &mpi_given, 1, ZERO_OK, NULL);
    mpi_hosts = 2;
    mpi_refuses("a node over two hosts", &mpi_given, 4, ZERO_ERR_ARGUMENT, "one machine");
    mpi_hosts = 0;
    mpi_no_memory(4);
    mpi_no_memory(2);
    for (int size = 1; size <= 4; size *= 2)
        for (int leaves = 0; leaves < 2; leaves++) mpi_planned(size, leaves);
    for (int size = 1; size <= 4; size *= 2) {
        mpi_troubled("all is well", size, MPI_WELL, 60, NULL);
        mpi_troubled("rank 1 goes in a pass", size, MPI_GOES, 600, "rank 1");
        mpi_troubled("rank 1 has another stage", size, MPI_OTHER_STAGE, 600, "rank 1 has");
        mpi_troubled("rank 1 calls another function", size, MPI_OTHER_CALL, 600, NULL);
    }
    for (int i = 0; i < 6; i++) mpi_disk_fails(1 << i / 2, i % 2, 1 + 9 * i);
    mpi_troubled("rank 1 has another order", 1, MPI_OTHER_ORDER, 600,
                 "is at the all-gather of unit ");
    mpi_slow = mpi_rank == 1 ? 5 : 0; /* its word of failure to 3 nodes is slow, and waited for */
    mpi_troubled("rank 1's MPI fails", 1, MPI_BREAKS, 600, "MPI_Testall: ");
    test_check(!mpi_slow && mpi_words == (mpi_rank == 1 ? 3 : 0),
               "rank %d: %d words of failure, %d tests of them are missing", mpi_rank, mpi_words,
               mpi_slow);
    mpi_troubled("rank 1 destroys early", 1, MPI_LEAVES, 1, NULL);
    mpi_troubled("rank 1 destroys early", 4, MPI_LEAVES, 600, "rank 1");
    mpi_troubled("rank 1 stalls", 1, MPI_STALLS, 1, NULL);
    mpi_troubled("rank 1 stalls", 4, MPI_STALLS, 1, NULL);
    mpi_troubled("all is well again", 2, MPI_WELL, 60, NULL);
}

/* As in containers, a rank's process number means another process to its peers: with two ranks, the
   peer itself. Then no rank sees the other's memory file. */
static pid_t mpi_pid;
pid_t getpid(void) { return mpi_pid ? mpi_pid : (pid_t)syscall(SYS_getpid); }
static void mpi_hide(void) {
    const int mine = (int)getpid();
    int all[64];
    PMPI_Allgather(&mine, 1, MPI_INT, all, 1, MPI_INT, MPI_COMM_WORLD);
    mpi_pid = (pid_t)all[(mpi_rank + 1) % mpi_ranks];
}

/* ---- groups of ranks ---- */

/* A context over a part of the ranks has the bits of as many ranks of LOCAL. */
static uint64_t mpi_part_hash(test_rank *r) {
    host_spec s;
    host_run h;
    mpi_spec(&s, 0, 0, ZERO_ACCUMULATE_SHARDED);
    s.nranks = r->nranks;
    s.cfg.stage = 3;
    int ok = host_open(&h, &s, r);
    for (int step = 0; step < s.steps && ok; step++) ok = host_train_step(&h);
    const uint64_t hash = ok ? host_hash(&h) : 0;
    zero_destroy(h.z);
    return hash;
}
static void mpi_part_rank(test_rank *r) {
    const uint64_t hash = mpi_part_hash(r);
    if (r->rank == 0) *(uint64_t *)r->arg = hash;
}

static void mpi_groups_go(zero_group *all) {
    zero_group *part = NULL, *none = all;
    groups_case c;
    uint64_t local = 0, hash = 0;
    test_rank r;
    const MPI_Comm given = mpi_given;
    const int colour = mpi_ranks > 2 && mpi_rank == mpi_ranks - 1 ? -1 : mpi_rank % 2;
    test_check(groups_all(&c, all, GROUPS_SIZES), "groups, rank %d: %s", mpi_rank, c.why);
    test_check(!zero_group_split(all, colour, -mpi_rank, &part) && (part != NULL) == (colour >= 0),
               "a split, rank %d: %s", mpi_rank, zero_group_error(all));
    test_check(!zero_group_split(all, -1, 0, &none) && !none, "a group of nobody");
    zero_group_name(part, "dp");
    if (part) {
        const int size = zero_group_size(part);
        zero_comm comm = zero_group_comm(part);
        test_check(groups_all(&c, part, 5), "a part, rank %d: %s", mpi_rank, c.why);
        memset(&r, 0, sizeof r);
        r.rank = zero_group_rank(part);
        r.nranks = size;
        mpi_given = *(MPI_Comm *)comm.handle;
        hash = mpi_part_hash(&r);
        mpi_given = given;
        test_check(test_ranks(size, 0, mpi_part_rank, &local) && hash == local && hash,
                   "a context of a part, rank %d: %s%s", mpi_rank, r.why, test_first);
    }
    test_check(groups_all(&c, all, 3), "all ranks after, rank %d: %s", mpi_rank, c.why);
    zero_group_close(part);
}

/* The last rank makes another call, comes late, or leaves; all the others learn of it. */
static void mpi_groups_fail(int what) {
    static const char *const says[] = {"all_gather of 64 bytes", "did not come", "failed"};
    const zero_comm comm = {ZERO_COMM_MPI, 0, &mpi_given, 0};
    zero_group *g = NULL;
    static float x[4000];
    const int odd = mpi_rank == mpi_ranks - 1;
    zero_result e = zero_group_open(&g, &comm, NULL, 2);
    zero_group_name(g, "tp");
    mpi_meet();
    const double start = test_now();
    if (odd && what == 1) usleep(3000000);
    if (!e && odd && what == 2) e = ZERO_ERR_STATE; /* gives up: another group has failed */
    if (!e && odd && what == 0) e = zero_group_all_gather(g, x, x + 16, 64);
    for (int i = 0; i < 2 && !e; i++) e = zero_group_all_reduce(g, x, 2000, ZERO_F32, ZERO_SUM);
    const double took = test_now() - start;
    if (what == 2 && odd) {
        zero_group_close(g); /* in good order, and waits: peers run into their time limit */
    } else {
        test_check(e && took < 6 && (what || strstr(zero_group_error(g), says[0]))
                       && (what || e == ZERO_ERR_MISMATCH) && strstr(zero_group_error(g), "tp"),
                   "fault %d, rank %d: %d after %.1f s: %s", what, mpi_rank, (int)e, took,
                   zero_group_error(g));
        zero_group_close(g);
    }
    mpi_meet();
}

/* Messages of many more pieces than are on their way at once, both ways round, odd ranks late;
   `odd` 1: the last rank expects a byte less. */
static zero_result mpi_groups_long(zero_group *g, int odd) {
    enum { LONG = 5000003 };
    const int next = (mpi_rank + 1) % mpi_ranks, before = (mpi_rank + mpi_ranks - 1) % mpi_ranks;
    unsigned char *out = (unsigned char *)malloc(2 * LONG);
    unsigned char *in = (unsigned char *)malloc(2 * LONG);
    const size_t less = odd && mpi_rank == mpi_ranks - 1;
    const zero_message list[] = {{next, 1, out, LONG},
                                 {before, 0, in, LONG - less},
                                 {before, 1, out + LONG, LONG},
                                 {next, 0, in + LONG, LONG}};
    size_t wrong = 0;
    for (size_t i = 0; i < 2 * LONG; i++) {
        out[i] = groups_byte(mpi_rank, i < LONG ? next : before, i % LONG);
        in[i] = 0;
    }
    if (mpi_rank % 2) usleep(200000);
    const zero_result e = zero_group_send_receive(g, list, 4);
    for (size_t i = 0; i < 2 * LONG && !e; i++)
        wrong += in[i] != groups_byte(i < LONG ? before : next, mpi_rank, i % LONG);
    test_check(odd || (!e && !wrong), "long messages, rank %d: %zu bytes differ: %s", mpi_rank,
               wrong, zero_group_error(g));
    if (e) return e; /* MPI may still read and write both */
    free(out);
    free(in);
    return e;
}

static void mpi_groups(void) {
    const zero_comm comm = {ZERO_COMM_MPI, 0, &mpi_given, 0};
    zero_group *all = NULL;
    test_check(!zero_group_open(&all, &comm, NULL, 30), "opens: %s", zero_group_error(all));
    if (!zero_group_barrier(all)) mpi_groups_go(all);
    if (mpi_ranks > 1) (void)mpi_groups_long(all, 0);
    mpi_meet(); /* the error that follows must not reach a rank that is still in this call */
    if (mpi_ranks > 1) {
        const double start = test_now();
        const zero_result e = mpi_groups_long(all, 1);
        const int concerned = mpi_rank >= mpi_ranks - 2; /* others may have what is theirs */
        test_check((e || !concerned) && test_now() - start < 10,
                   "a long message of another size, rank %d: %d: %s", mpi_rank, (int)e,
                   zero_group_error(all));
    }
    zero_group_close(all);
    for (int what = 0; what < 3 && mpi_ranks > 1; what++) mpi_groups_fail(what);
}

static void mpi_small(int room) {
    static test_rank rank;
    host_spec s;
    host_run h;
    rank = mpi_placed(0);
    mpi_spec(&s, 0, 0, ZERO_ACCUMULATE_SHARDED);
    s.desc[0].numel = (size_t)16 << 20;
    const int ok = host_open(&h, &s, &rank);
    test_check(room ? ok : !ok && strstr(rank.why, "/dev/shm"), "rank %d: %s", mpi_rank, rank.why);
    zero_destroy(h.z);
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "errors";
    const int needed = strcmp(mode, "thread") ? MPI_THREAD_MULTIPLE : MPI_THREAD_SERIALIZED;
    int level, counts[2], sums[2] = {0, 0};
    MPI_Errhandler handler, now;
    mpi_given = MPI_COMM_NULL;
    if (!strcmp(mode, "errors"))
        mpi_refuses("MPI not started", &mpi_given, 0, ZERO_ERR_COMM, "MPI_Init_thread");
    PMPI_Init_thread(&argc, &argv, needed, &level);
    PMPI_Comm_rank(MPI_COMM_WORLD, &mpi_rank);
    PMPI_Comm_size(MPI_COMM_WORLD, &mpi_ranks);
    PMPI_Comm_dup(MPI_COMM_WORLD, &mpi_given);
    PMPI_Comm_create_errhandler(mpi_handler, &handler);
    PMPI_Comm_set_errhandler(mpi_given, handler);
    if (!strcmp(mode, "windows") || !strcmp(mode, "none")) mpi_hide();
    mpi_few = !strcmp(mode, "few");
    if (!strcmp(mode, "none"))
        mpi_small(0);
    else if (mpi_few || !strcmp(mode, "same") || !strcmp(mode, "windows"))
        mpi_same(argc, argv);
    else if (!strcmp(mode, "hierarchy"))
        mpi_hierarchy(argc, argv);
    else if (!strcmp(mode, "hash"))
        mpi_hash(argc > 2 ? atoi(argv[2]) : 1);
    else if (!strcmp(mode, "small"))
        mpi_small(1);
    else if (!strcmp(mode, "die"))
        mpi_troubled("rank 1 dies", 1, MPI_DIES, 600, NULL);
    else if (!strcmp(mode, "many"))
        mpi_many();
    else if (!strcmp(mode, "groups"))
        mpi_groups();
    else if (!strcmp(mode, "errors"))
        mpi_errors();
    else if (level < MPI_THREAD_MULTIPLE)
        mpi_refuses("a low thread level", &mpi_given, 0, ZERO_ERR_COMM, "MPI_THREAD_MULTIPLE");
    mpi_windowless = !strcmp(mode, "windows") && mpi_ranks > 1;
    if (mpi_windowless) mpi_small(0);
    const int windows = (!strcmp(mode, "windows") || !strcmp(mode, "none")) && mpi_ranks > 1;
    test_check(windows == (mpi_windows > 0), "rank %d: %d windows", mpi_rank, mpi_windows);
    test_check(mpi_misuse == 0, "rank %d: %d calls on the caller's communicator", mpi_rank,
               mpi_misuse);
    PMPI_Comm_get_errhandler(mpi_given, &now);
    test_check(now == handler && !mpi_handled,
               "rank %d: the caller's error handler was called %d times or is gone", mpi_rank,
               mpi_handled);
    mpi_pid = 0;
    counts[0] = test_passed;
    counts[1] = test_failed;
    mpi_meet();
    PMPI_Reduce(counts, sums, 2, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
    if (mpi_rank == 0) printf("%d passed, %d failed\n", sums[0], sums[1]);
    fflush(stdout);
    PMPI_Finalize();
    return counts[1] != 0;
}

/* test_hierarchy.c [RUNS [SEED [FOLDER]]] - second shards of the parameters change no bit; shard
   groups of a node's ranks give the bits of the flat run with such nodes, where there is one
   micro-step, otherwise those of a plain reference of their order; the norm has the same bits
   whatever the groups; bytes are those of plan and formula; state that was saved with some groups
   goes on with others; what cannot be is refused; and a rank that goes, or is killed, ends all.
   RUNS (24) cases of each kind are drawn by SEED; files are made in FOLDER (.). */
#include "../shared/harness.h"

#include <signal.h>

static int hier_in_worlds; /* ranks are two data groups of one world */
static zero_comm hier_comm(const test_rank *r);
#define test_comm hier_comm
#include "../shared/host.h"
#undef test_comm

enum { HIER_STEPS = 4, HIER_RANKS = 8 };

static const char *hier_folder = ".";
static __thread zero_group *hier_all, *hier_dp; /* of this rank, in worlds */

static zero_comm hier_comm(const test_rank *r) {
    return hier_in_worlds ? zero_group_comm(hier_dp) : test_comm(r);
}

/* An embedding that is used twice, blocks with matrices, kept norms, small vectors. */
static const zero_tensor_desc hier_table[] = {
    {"emb", 701, 1, .uses = 2},
    {"mat", 24 * 31, 4, .unit = 1},
    {"vec", 17, 4, .unit = 1, .flags = ZERO_NO_DECAY | ZERO_ONE_D},
    {"norm", 9, 4, .unit = 1, .flags = ZERO_KEEP | ZERO_NO_DECAY},
    {"out", 35, 1, .unit = 5}};
enum { HIER_TENSORS = sizeof hier_table / sizeof *hier_table };

typedef struct hier_run { /* in shared memory; spec first, as poison finds it */
    host_spec spec;
    int bad;                    /* step 1 overflows on the last rank */
    int eval_in_step;           /* an evaluation between two micro-steps, and before zero_step */
    int writes;                 /* weights are written by name behind step 1 */
    const host_reference *look; /* what hooks must hand out; NULL: not looked at */
    uint64_t hash[HIER_RANKS];
    double norm[HIER_RANKS][HIER_STEPS];
    zero_plan plan[HIER_RANKS];
    zero_stats stats[HIER_RANKS];
    uint64_t gathered[HIER_RANKS], near[HIER_RANKS], reduced[HIER_RANKS], replicas[HIER_RANKS];
} hier_run;

static void hier_poison(host_run *h, int t, size_t first, void *g) {
    const host_spec *s = h->spec;
    const hier_run *run = (const hier_run *)(const void *)s;
    if (run->bad && h->step == 1 && h->rank->rank == s->nranks - 1 && t == 1 && first == 0)
        host_put(g, host_grad_type(s), 5, INFINITY);
}

static void hier_spec(host_spec *s, int nranks, int stage) {
    host_small(s, 31, nranks, stage, hier_table, HIER_TENSORS);
    s->steps = HIER_STEPS;
    s->units = 6;
    s->adamw.max_norm = 0;
    s->rows[1] = 24;
    s->cols[1] = 31;
    s->cfg.timeout_s = 60;
    s->cfg.folder = hier_folder;
    s->cfg.scaler.hysteresis = 1;
    s->cfg.no_mapping = 1;
}

/* ---- one rank ---- */

/* What the formulas say of a step, from units alone: bytes of elements that are padded. */
static void hier_formula(host_run *h, hier_run *run) {
    const host_spec *s = &run->spec;
    const int r = h->rank->rank, shard = s->cfg.shard_ranks ? s->cfg.shard_ranks : s->nranks;
    const int near = s->cfg.second_ranks;
    const size_t of = zero_type_bytes(s->cfg.type), of_g = zero_type_bytes(host_grad_type(s));
    for (int u = 0; u < run->plan[r].units; u++) {
        zero_plan_unit x;
        if (zero_query_plan_unit(h->z, u, &x)) test_rank_fail(h->rank, "no plan of unit %d", u);
        const size_t part = x.padded / (size_t)shard, piece = x.padded / (size_t)s->nranks;
        const int turns = near && (s->cfg.no_mapping || s->cfg.parameter_tier) && s->cfg.stage == 3
                          && !x.unsharded && u < s->units && host_uses(s, u) == 1;
        const int close = turns ? x.gathers - 1 : 0;
        run->gathered[r] += (uint64_t)(x.gathers - close) * (size_t)(shard - 1) * part * of;
        if (close)
            run->near[r] += (uint64_t)close * (size_t)(near - 1) * (x.padded / (size_t)near) * of;
        run->reduced[r] += (uint64_t)x.reductions * (size_t)(shard - 1) * part * of_g;
        run->replicas[r] +=
            (uint64_t)(s->nranks / shard - 1) * piece * (sizeof(float) + of_g) * (x.reductions > 0);
    }
}

static int hier_step(host_run *h, hier_run *run) {
    const host_spec *s = h->spec;
    for (h->micro = 0; h->micro < s->micro_steps; h->micro++) {
        if (!host_train_pass(h)) return 0;
        if (run->eval_in_step && !host_evaluate(h)) return 0;
    }
    HOST_TRY(h, zero_reduce(h->z));
    HOST_TRY(h, zero_norm(h->z, &run->norm[h->rank->rank][h->step]));
    if (run->eval_in_step && h->step % 2 && !host_evaluate(h)) return 0;
    HOST_TRY(h, zero_step(h->z, &s->adamw));
    h->step++;
    if (run->writes && h->step == 2) {
        float values[100];
        for (int i = 0; i < 100; i++) values[i] = 0.01f * (float)i;
        HOST_TRY(h, zero_write_tensor(h->z, "mat", ZERO_PARAMETER, 700, 100, values));
    }
    return !s->evaluate || host_evaluate(h);
}

static int hier_begin(host_run *h, const host_spec *s, test_rank *rank, host_spec *own) {
    *own = *s;
    if (hier_in_worlds) { /* even ranks, odd ranks */
        const zero_comm comm = {ZERO_COMM_LOCAL, rank->rank, rank->local, 0};
        if (zero_group_open(&hier_all, &comm, NULL, 60)
            || zero_group_split(hier_all, rank->rank % 2, 0, &hier_dp)) {
            test_rank_fail(rank, "groups: %s", zero_group_error(hier_all));
            return 0;
        }
        own->cfg.world = hier_all;
    }
    const int ok = host_open(h, own, rank);
    h->spec = s;
    return ok;
}
static void hier_end(host_run *h) {
    zero_destroy(h->z);
    if (!hier_in_worlds) return;
    zero_group_close(hier_dp);
    zero_group_close(hier_all);
}

static void hier_rank(test_rank *rank) {
    hier_run *run = (hier_run *)rank->arg;
    host_run h;
    host_spec own;
    int ok = hier_begin(&h, &run->spec, rank, &own);
    if (ok && zero_query_plan(h.z, &run->plan[rank->rank]))
        test_rank_fail(rank, "%s", zero_last_error(h.z));
    for (int step = 0; step < run->spec.steps && ok; step++) {
        h.reference = run->look ? run->look + step : NULL;
        ok = hier_step(&h, run);
    }
    if (ok && zero_query_stats(h.z, &run->stats[rank->rank])) ok = 0;
    if (ok && !hier_in_worlds) hier_formula(&h, run);
    if (ok) run->hash[rank->rank] = host_hash(&h);
    if (!ok) test_rank_fail(rank, "%s", zero_last_error(h.z));
    hier_end(&h);
}

/* Trains; 1: no rank failed, all have the same bits. */
static int hier_train(hier_run *run, int processes) {
    const int n = run->spec.nranks;
    run->spec.poison = run->bad ? hier_poison : NULL;
    memset(run->hash, 0, sizeof run->hash);
    memset(run->gathered, 0, sizeof run->gathered * 4);
    (void)alarm(120);
    int ok = processes ? test_processes(n, run->spec.node_size, hier_rank, run, 100)
                       : test_ranks(n, run->spec.node_size, hier_rank, run);
    for (int r = 0; r < n; r++) {
        ok &= run->hash[r] == run->hash[0] || hier_in_worlds;
        ok &= !memcmp(run->norm[r], run->norm[0], sizeof run->norm[0]);
    }
    return ok;
}

/* ---- cases ---- */

typedef struct hier_kind {
    const char *name;
    zero_type type;
    zero_grad_type grads;
    zero_optimizer optimizer;
    float initial;
} hier_kind;
static const hier_kind hier_kinds[] = {
    {.name = "f32"},
    {.name = "bf16", .type = ZERO_BF16},
    {.name = "bf16, bf16 gradients", .type = ZERO_BF16, .grads = ZERO_GRAD_AS_TYPE},
    {.name = "f16, f16 gradients", .type = ZERO_F16, .grads = ZERO_GRAD_AS_TYPE, .initial = 16},
    {.name = "f16, f32 gradients", .type = ZERO_F16, .grads = ZERO_GRAD_F32, .initial = 16},
    {.name = "LAMB", .optimizer = ZERO_LAMB},
    {.name = "Muon, bf16", .type = ZERO_BF16, .optimizer = ZERO_MUON},
    {.name = "Lion", .optimizer = ZERO_LION}};
enum { HIER_KINDS = sizeof hier_kinds / sizeof *hier_kinds };

static void hier_kind_of(host_spec *s, int kind) {
    s->cfg.type = hier_kinds[kind].type;
    s->cfg.grads = hier_kinds[kind].grads;
    s->cfg.optimizer = hier_kinds[kind].optimizer;
    s->cfg.scaler.initial = hier_kinds[kind].initial;
    s->groups = kind & 1;
}

/* A number that divides n. */
static int hier_divisor(test_random *r, int n) {
    int d = 0;
    while (!d || n % d) d = 1 + test_below(r, n);
    return d;
}

/* Settings of which no bit depends on groups: tiers, delay, order of communication. */
static void hier_draw(hier_run *run, test_random *r, int kind) {
    static const int prefetch[] = {0, ZERO_NONE, 2, 5};
    host_spec *s = &run->spec;
    zero_config *c = &s->cfg;
    hier_kind_of(s, kind);
    c->no_overlap = test_below(r, 4) == 0;
    c->prefetch = prefetch[test_below(r, 4)];
    c->persistence_numel = test_below(r, 3) == 0 ? ZERO_NONE : 0;
    c->bucket_numel = test_below(r, 3) == 0 ? 3000 : 0;
    c->accumulation = (zero_accumulation)test_below(r, 3);
    if (test_below(r, 3) == 0) c->optimizer_tier = ZERO_FILE;
    if (test_below(r, 3) == 0 && c->stage == 3) c->parameter_tier = ZERO_FILE;
    const int local = c->accumulation == ZERO_ACCUMULATE_LOCAL && s->micro_steps > 1;
    if (test_below(r, 3) == 0 && c->stage >= 2 && !local) c->gradient_tier = ZERO_FILE;
    if (test_below(r, 3) == 0) c->offload_share = 0.5f;
    if (test_below(r, 4) == 0) c->delay_from = 1 + test_below(r, 2);
    s->adamw.max_norm = test_below(r, 2) ? 0.5f : 0;
    s->evaluate = test_below(r, 3) == 0;
    s->recompute = test_below(r, 3) == 0;
    s->slots = test_below(r, 2);
    run->eval_in_step = test_below(r, 4) == 0;
    run->bad = test_below(r, 4) == 0;
    run->writes = test_below(r, 4) == 0;
}

static const char *hier_name(const hier_run *run, int kind) {
    static char text[400];
    const host_spec *s = &run->spec;
    const zero_config *c = &s->cfg;
    snprintf(text, sizeof text,
             "%s: %d ranks, nodes %d, shard %d, second %d, stage %d, micro %d, accumulation %d, "
             "overlap %d, prefetch %d, persistence %d, bucket %zu, tiers %d %d %d of %g, delay %d, "
             "clip %g, evaluate %d %d, recompute %d, bad %d, writes %d, mapping %d",
             hier_kinds[kind].name, s->nranks, s->node_size, c->shard_ranks, c->second_ranks,
             c->stage, s->micro_steps, (int)c->accumulation, !c->no_overlap, c->prefetch,
             (int)c->persistence_numel, c->bucket_numel, (int)c->optimizer_tier,
             (int)c->gradient_tier, (int)c->parameter_tier, (double)c->offload_share, c->delay_from,
             (double)s->adamw.max_norm, s->evaluate, run->eval_in_step, s->recompute, run->bad,
             run->writes, !c->no_mapping);
    return text;
}

/* Plan, counter and formula, of every rank. */
static void hier_bytes(const hier_run *run, int kind) {
    const host_spec *s = &run->spec;
    const uint64_t steps = (uint64_t)s->steps;
    if (s->evaluate || s->recompute || run->eval_in_step || run->writes || s->cfg.delay_from)
        return;
    if (s->cfg.optimizer == ZERO_MUON) return; /* its matrices travel, too: see test_optimizers */
    for (int r = 0; r < s->nranks; r++) {
        const zero_plan *p = &run->plan[r];
        const zero_stats *x = &run->stats[r];
        test_check(x->sent_bytes == steps * p->sent_bytes && x->near_bytes == steps * p->near_bytes
                       && x->replica_bytes == steps * p->replica_bytes
                       && x->verdict_bytes == steps * p->verdict_bytes,
                   "%s: rank %d has sent %llu, of them near %llu, replicas %llu, verdicts %llu; "
                   "planned %llu, %llu, %llu, %llu a step",
                   hier_name(run, kind), r, (unsigned long long)x->sent_bytes,
                   (unsigned long long)x->near_bytes, (unsigned long long)x->replica_bytes,
                   (unsigned long long)x->verdict_bytes, (unsigned long long)p->sent_bytes,
                   (unsigned long long)p->near_bytes, (unsigned long long)p->replica_bytes,
                   (unsigned long long)p->verdict_bytes);
        test_check(p->near_bytes == run->near[r] && p->replica_bytes == run->replicas[r]
                       && p->sent_bytes
                              == run->gathered[r] + run->near[r] + run->reduced[r]
                                     + run->replicas[r],
                   "%s: rank %d plans %llu, near %llu, replicas %llu; the formulas say %llu, %llu, "
                   "%llu",
                   hier_name(run, kind), r, (unsigned long long)p->sent_bytes,
                   (unsigned long long)p->near_bytes, (unsigned long long)p->replica_bytes,
                   (unsigned long long)(run->gathered[r] + run->near[r] + run->reduced[r]
                                        + run->replicas[r]),
                   (unsigned long long)run->near[r], (unsigned long long)run->replicas[r]);
        test_check(p->param_bytes + p->grad_bytes + p->optimizer_bytes + p->buffer_bytes
                       <= x->allocated_bytes + 65536,
                   "%s: rank %d planned more than it has", hier_name(run, kind), r);
    }
}

/* Trains as `run` says, and compares with what `expected` came to. */
static void hier_same(hier_run *run, const hier_run *expected, int kind, int processes,
                      const char *what) {
    const int ok = hier_train(run, processes);
    int norms = 1;
    for (int i = 0; i < run->spec.steps; i++) {
        const double a = run->norm[0][i], b = expected->norm[0][i];
        norms &= memcmp(&a, &b, sizeof a) == 0 || (a != a && b != b);
    }
    test_check(ok && run->hash[0] == expected->hash[0] && norms,
               "%s: %s: %016llx, expected %016llx, norms %s: %s", what, hier_name(run, kind),
               (unsigned long long)run->hash[0], (unsigned long long)expected->hash[0],
               norms ? "equal" : "differ", test_first);
    if (ok && !hier_in_worlds) hier_bytes(run, kind);
}

static const int hier_ranks[] = {2, 3, 4, 6, 8};
static hier_run *hier_a, *hier_b;

/* (1) Second shards, of as many ranks as there may be. */
static void hier_second(int runs, test_random *r) {
    for (int i = 0; i < runs; i++) {
        const int kind = test_below(r, HIER_KINDS), n = hier_ranks[test_below(r, 5)];
        memset(hier_a, 0, sizeof *hier_a);
        hier_spec(&hier_a->spec, n, 3);
        hier_a->spec.micro_steps = 1 + test_below(r, 3);
        hier_draw(hier_a, r, kind);
        *hier_b = *hier_a;
        test_check(hier_train(hier_a, 0), "without: %s: %s", hier_name(hier_a, kind), test_first);
        hier_b->spec.cfg.second_ranks = hier_divisor(r, n);
        hier_same(hier_b, hier_a, kind, i % 6 == 5, "second shards");
        const int kept = hier_b->plan[0].second_bytes > 0;
        test_check(kept, "%s: no second shard", hier_name(hier_b, kind));
    }
}

/* (2) Nodes as shard groups, one micro-step: the flat run's bits. */
static void hier_nodes(int runs, test_random *r) {
    for (int i = 0; i < runs; i++) {
        const int kind = test_below(r, HIER_KINDS), n = hier_ranks[test_below(r, 5)];
        const int size = hier_divisor(r, n);
        memset(hier_a, 0, sizeof *hier_a);
        hier_spec(&hier_a->spec, n, 1 + test_below(r, 3));
        hier_draw(hier_a, r, kind);
        hier_a->spec.node_size = size;
        *hier_b = *hier_a;
        test_check(hier_train(hier_a, 0), "flat: %s: %s", hier_name(hier_a, kind), test_first);
        hier_b->spec.cfg.shard_ranks = size;
        hier_b->spec.cfg.no_mapping = test_below(r, 3) > 0;
        if (hier_b->spec.cfg.stage == 3 && test_below(r, 2))
            hier_b->spec.cfg.second_ranks = hier_divisor(r, size);
        hier_same(hier_b, hier_a, kind, i % 6 == 5, "nodes");
    }
}

/* Several micro-steps: the plain reference, in its order of sums. */
static void hier_order(int runs, test_random *r) {
    for (int i = 0; i < runs; i++) {
        const int kind = test_below(r, 5), n = hier_ranks[test_below(r, 5)];
        host_reference ref;
        memset(hier_a, 0, sizeof *hier_a);
        host_spec *s = &hier_a->spec;
        hier_spec(s, n, 1 + test_below(r, 3));
        s->micro_steps = 1 + test_below(r, 3);
        hier_draw(hier_a, r, kind);
        s->shard_ranks = s->cfg.shard_ranks = hier_divisor(r, n);
        s->node_size = s->shard_ranks;
        s->adamw.max_norm = 0;
        s->cfg.delay_from = hier_a->bad = hier_a->writes = 0;
        const int sharded = s->cfg.accumulation ? s->cfg.accumulation == ZERO_ACCUMULATE_SHARDED
                                                : s->cfg.stage >= 2;
        host_reference_open(&ref, s);
        for (int step = 0; step < s->steps; step++)
            host_reference_step(&ref, s, sharded && s->micro_steps > 1, step, 1);
        const uint64_t hash = host_hash_reference(0, &ref, s);
        host_reference_close(&ref, s);
        const int ok = hier_train(hier_a, i % 6 == 5);
        test_check(ok && hier_a->hash[0] == hash, "reference: %s: %016llx, expected %016llx: %s",
                   hier_name(hier_a, kind), (unsigned long long)hier_a->hash[0],
                   (unsigned long long)hash, test_first);
        if (ok) hier_bytes(hier_a, kind);
    }
}

/* (3) Gradients whose sums are exact: weights and norms have the same bits whatever the groups; in
   a world of two data groups, too. */
static void hier_norms(int runs, test_random *r) {
    for (int i = 0; i < runs; i++) {
        const int kind = test_below(r, HIER_KINDS), n = hier_ranks[test_below(r, 5)];
        memset(hier_a, 0, sizeof *hier_a);
        hier_in_worlds = n % 2 == 0 && n > 2 && i % 3 == 0;
        const int dp = hier_in_worlds ? n / 2 : n;
        hier_spec(&hier_a->spec, n, 1 + test_below(r, 3));
        hier_a->spec.integer = 1;
        hier_a->spec.cfg.divisor = 8; /* and so are products with it */
        hier_a->spec.micro_steps = 1 + test_below(r, 3);
        hier_draw(hier_a, r, kind);
        hier_a->spec.adamw.max_norm = 0.5f;
        *hier_b = *hier_a;
        test_check(hier_train(hier_a, 0), "flat: %s: %s", hier_name(hier_a, kind), test_first);
        for (int size = 1; size <= dp; size++) {
            if (dp % size) continue;
            hier_b->spec.cfg.shard_ranks = size;
            hier_b->spec.cfg.second_ranks = hier_b->spec.cfg.stage == 3 ? hier_divisor(r, size) : 0;
            hier_same(hier_b, hier_a, kind, 0, hier_in_worlds ? "worlds" : "norms");
        }
        hier_in_worlds = 0;
    }
}

/* ---- (5) state ---- */

enum { HIER_NUMEL = 24 * 31 * 4 };
typedef struct hier_state { /* of all ranks */
    float value[3][HIER_TENSORS][HIER_NUMEL];
    unsigned char times[3][HIER_TENSORS][HIER_NUMEL];
    zero_counters counters;
} hier_state;
typedef struct hier_moves {
    hier_run run; /* first */
    hier_state *state;
    int sizes[3]; /* shard_ranks of two steps each */
    uint64_t hash[HIER_RANKS];
} hier_moves;

static int hier_tensor(const char *name) {
    for (int t = 0; t < HIER_TENSORS; t++)
        if (!strcmp(hier_table[t].name, name)) return t;
    return 0;
}
/* Copies between the state of all ranks and this rank's ranges. */
static int hier_ranges(host_run *h, hier_state *s, int loads) {
    for (int i = 0; i < zero_state_ranges(h->z, loads); i++) {
        zero_range range;
        HOST_TRY(h, zero_state_range(h->z, loads, i, &range));
        const int k = range.kind == ZERO_MASTER ? 0 : range.kind == ZERO_MOMENT_1 ? 1 : 2;
        const int t = hier_tensor(range.name);
        char *raw = (char *)malloc(range.count * 4);
        if (loads) {
            zero_convert(raw, range.type, &s->value[k][t][range.first], ZERO_F32, range.count);
            HOST_TRY(h, zero_state_put(h->z, &range, raw));
        } else {
            HOST_TRY(h, zero_state_get(h->z, &range, raw));
            zero_convert(&s->value[k][t][range.first], ZERO_F32, raw, range.type, range.count);
            for (size_t e = 0; e < range.count; e++) s->times[k][t][range.first + e]++;
        }
        free(raw);
    }
    if (loads) HOST_TRY(h, zero_state_set_counters(h->z, &s->counters));
    if (!loads && h->rank->rank == 0) zero_state_counters(h->z, &s->counters);
    return 1;
}

static void hier_moves_rank(test_rank *rank) {
    hier_moves *m = (hier_moves *)rank->arg;
    host_run h;
    host_spec own = m->run.spec;
    int ok = 1;
    for (int part = 0; part < 3 && ok; part++) {
        own.cfg.shard_ranks = m->sizes[part];
        ok = host_open(&h, &own, rank);
        h.step = 2 * part;
        if (ok && part) {
            ok = !zero_state_begin(h.z) && hier_ranges(&h, m->state, 1) && !zero_state_end(h.z, 1);
            ok = ok && !zero_barrier(h.z);
            if (ok && rank->rank == 0) memset(m->state->times, 0, sizeof m->state->times);
        }
        for (int step = 0; step < 2 && ok; step++) ok = host_train_step(&h);
        if (ok)
            ok = !zero_state_begin(h.z) && hier_ranges(&h, m->state, 0) && !zero_state_end(h.z, 0);
        if (ok && part == 2) m->hash[rank->rank] = host_hash(&h);
        if (ok) ok = !zero_barrier(h.z);
        for (int t = 0; t < HIER_TENSORS && ok && rank->rank == 0; t++)
            for (size_t e = 0; e < host_numel(&own, t); e++)
                if (m->state->times[0][t][e] != 1 || m->state->times[1][t][e] != 1)
                    test_rank_fail(rank, "part %d: element %zu of %s is saved %d times", part, e,
                                   hier_table[t].name, m->state->times[0][t][e]);
        if (!ok) test_rank_fail(rank, "part %d: %s", part, zero_last_error(h.z));
        zero_destroy(h.z);
    }
}

static void hier_saved(int runs, test_random *r) {
    hier_moves *m = (hier_moves *)test_shared(sizeof *m);
    m->state = (hier_state *)test_shared(sizeof *m->state);
    for (int i = 0; i < runs; i++) {
        const int kind = test_below(r, HIER_KINDS), n = hier_ranks[test_below(r, 5)];
        hier_spec(&m->run.spec, n, 1 + test_below(r, 3));
        m->run.spec.integer = 1;
        hier_kind_of(&m->run.spec, kind);
        if (test_below(r, 2)) m->run.spec.cfg.optimizer_tier = ZERO_FILE;
        memset(m->sizes, 0, sizeof m->sizes);
        memset(m->state->times, 0, sizeof m->state->times);
        const int plain = test_ranks(n, 0, hier_moves_rank, m);
        const uint64_t flat = m->hash[0];
        test_check(plain, "state without groups: %s", test_first);
        const int way = test_below(r, 3);
        memset(m->state->times, 0, sizeof m->state->times);
        for (int part = 0; part < 3; part++) m->sizes[part] = part == way ? 0 : hier_divisor(r, n);
        const int ok = test_ranks(n, 0, hier_moves_rank, m);
        test_check(ok && m->hash[0] == flat,
                   "state: %s, %d ranks, shard_ranks %d, %d, %d: %016llx, expected %016llx: %s",
                   hier_name(&m->run, kind), n, m->sizes[0], m->sizes[1], m->sizes[2],
                   (unsigned long long)m->hash[0], (unsigned long long)flat, test_first);
    }
}

/* ---- (6) what is refused ---- */

typedef struct hier_refusal {
    zero_config cfg;
    int differs; /* ranks give other values */
    zero_result result[4];
    char why[4][600];
} hier_refusal;

static void hier_refusal_rank(test_rank *rank) {
    hier_refusal *x = (hier_refusal *)rank->arg;
    const zero_comm comm = test_comm(rank);
    const zero_tensor_desc desc = {.name = "w", .numel = 100, .flags = ZERO_BY_SLOT};
    zero_config cfg = x->cfg;
    zero_ctx *z = NULL;
    cfg.timeout_s = 10;
    if (x->differs && rank->rank == 1) cfg.shard_ranks = 0;
    zero_result r = zero_create(&z, &cfg, &comm);
    if (!r) r = zero_tensor(z, &desc);
    if (!r) r = zero_build(z);
    x->result[rank->rank] = r;
    snprintf(x->why[rank->rank], sizeof x->why[0], "%s", zero_last_error(z));
    zero_destroy(z);
}
static void hier_refused(zero_config cfg, int differs, zero_result expected, const char *words) {
    hier_refusal x;
    memset(&x, 0, sizeof x);
    x.cfg = cfg;
    x.differs = differs;
    (void)test_ranks(4, 0, hier_refusal_rank, &x);
    for (int r = 0; r < 4; r++) {
        const int peer = x.result[r] == ZERO_ERR_PEER && strstr(x.why[r], "failed");
        test_check((x.result[r] == expected && strstr(x.why[r], words)) || (expected && peer),
                   "rank %d got %s (%s), expected %s with '%s'", r, zero_result_string(x.result[r]),
                   x.why[r], zero_result_string(expected), words);
    }
}
static void hier_errors(void) {
    hier_refused((zero_config){.stage = 2, .shard_ranks = 3}, 0, ZERO_ERR_ARGUMENT,
                 "shard_ranks is 3, which does not divide the 4 ranks");
    hier_refused((zero_config){.stage = 2, .shard_ranks = 8}, 0, ZERO_ERR_ARGUMENT,
                 "shard_ranks is 8, which does not divide the 4 ranks");
    hier_refused((zero_config){.stage = 2, .shard_ranks = -2}, 0, ZERO_ERR_ARGUMENT,
                 "shard_ranks is -2, expected 0 or more");
    hier_refused((zero_config){.shard_ranks = 2}, 0, ZERO_ERR_ARGUMENT,
                 "at stage 0 nothing is sharded");
    hier_refused((zero_config){.stage = 2, .second_ranks = 2}, 0, ZERO_ERR_ARGUMENT,
                 "second_ranks is 2: at stage 2 parameters are not sharded");
    hier_refused((zero_config){.stage = 3, .second_ranks = 3}, 0, ZERO_ERR_ARGUMENT,
                 "second_ranks is 3, which does not divide the 4 ranks of a copy");
    hier_refused((zero_config){.stage = 3, .shard_ranks = 2, .second_ranks = 4}, 0,
                 ZERO_ERR_ARGUMENT, "second_ranks is 4, which does not divide the 2 ranks");
    hier_refused((zero_config){.stage = 2, .shard_ranks = 2}, 1, ZERO_ERR_MISMATCH, "shard_ranks");
    hier_refused((zero_config){.stage = 2, .shard_ranks = 4}, 0, ZERO_OK, "");
    hier_refused((zero_config){.stage = 3, .shard_ranks = 1, .second_ranks = 1}, 0, ZERO_OK, "");
}

/* ---- (7) a rank goes ---- */

typedef struct hier_end_of {
    host_spec spec;
    int where; /* the last rank goes before a pass, or before zero_reduce, zero_step */
    zero_result result[HIER_RANKS];
    double took[HIER_RANKS];
} hier_end_of;

static zero_result hier_until(host_run *h, int where, int goes) {
    for (h->step = 0; h->step < 3; h->step++) {
        const int here = goes && h->step == 1;
        if (here && where == 0) return ZERO_OK;
        h->micro = 0;
        ZERO_TRY(zero_pass_begin(h->z, ZERO_TRAIN, 0, 1));
        for (int u = 0; u < h->spec->units; u++) {
            ZERO_TRY(zero_forward_begin(h->z, u, &h->params));
            ZERO_TRY(zero_forward_end(h->z, u));
        }
        for (int u = h->spec->units - 1; u >= 0; u--) {
            if (here && where == 1 && u == 2) return ZERO_OK;
            ZERO_TRY(zero_backward_begin(h->z, u, &h->params, &h->grads));
            ZERO_TRY(zero_backward_end(h->z, u));
        }
        ZERO_TRY(zero_pass_end(h->z));
        if (here && where == 2) return ZERO_OK;
        ZERO_TRY(zero_reduce(h->z));
        ZERO_TRY(zero_step(h->z, &h->spec->adamw));
        zero_step_report report;
        ZERO_TRY(zero_step_result(h->z, &report));
    }
    return ZERO_OK;
}
static void hier_ends_rank(test_rank *rank) {
    hier_end_of *e = (hier_end_of *)rank->arg;
    const int goes = rank->rank == rank->nranks - 1;
    host_run h;
    if (host_open(&h, &e->spec, rank)) e->result[rank->rank] = hier_until(&h, e->where, goes);
    const double begin = test_now();
    zero_destroy(h.z);
    e->took[rank->rank] = test_now() - begin;
}
static void hier_goes(void) {
    for (int where = 0; where < 3; where++)
        for (int stage = 1; stage <= 3; stage++) {
            hier_end_of e;
            memset(&e, 0, sizeof e);
            hier_spec(&e.spec, 4, stage);
            e.spec.cfg.shard_ranks = 2;
            e.spec.cfg.second_ranks = stage == 3 ? 2 : 0;
            e.spec.cfg.timeout_s = 20;
            e.where = where;
            const double begin = test_now();
            (void)test_ranks(4, 0, hier_ends_rank, &e);
            for (int r = 0; r < 3; r++)
                test_check(e.result[r] == ZERO_ERR_PEER && test_now() - begin < 15,
                           "rank 3 goes at %d, stage %d: rank %d got %s", where, stage, r,
                           zero_result_string(e.result[r]));
        }
}

/* A launcher's ranks, of which one is killed. */
typedef struct hier_killed {
    int stage;
    zero_result result[4];
    char why[4][600];
} hier_killed;
static int hier_killed_rank(const zero_comm *comm, void *arg) {
    hier_killed *k = (hier_killed *)arg;
    test_rank rank;
    host_spec spec;
    host_run h;
    memset(&rank, 0, sizeof rank);
    test_rank_set(&rank, comm->rank, 4, (zero_local *)comm->handle, 0, NULL);
    hier_spec(&spec, 4, k->stage);
    spec.cfg.shard_ranks = 2;
    spec.cfg.timeout_s = 30;
    if (!host_open(&h, &spec, &rank)) return 5;
    if (comm->rank == 3) {
        (void)hier_until(&h, 1, 1);
        (void)raise(SIGKILL);
    }
    const zero_result r = hier_until(&h, 1, 0);
    k->result[comm->rank] = r;
    snprintf(k->why[comm->rank], sizeof k->why[0], "%s", zero_last_error(h.z));
    zero_destroy(h.z);
    return (int)r;
}
static void hier_kills(void) {
    hier_killed *k = (hier_killed *)test_shared(sizeof *k);
    for (k->stage = 1; k->stage <= 3; k->stage++) {
        const double begin = test_now();
        const int code = zero_run_local(4, hier_killed_rank, k);
        test_check(code == 128 + SIGKILL && test_now() - begin < 15,
                   "stage %d: a killed rank gives %d", k->stage, code);
        for (int r = 0; r < 3; r++)
            test_check(k->result[r] == ZERO_ERR_PEER && strstr(k->why[r], "signal 9"),
                       "stage %d: rank %d got %s: %s", k->stage, r,
                       zero_result_string(k->result[r]), k->why[r]);
    }
}

int main(int argc, char **argv) {
    const int runs = argc > 1 && atoi(argv[1]) > 0 ? atoi(argv[1]) : 24;
    test_random r = {test_mix(argc > 2 ? (uint64_t)atoll(argv[2]) : 1)};
    if (argc > 3) hier_folder = argv[3];
    hier_a = (hier_run *)test_shared(sizeof *hier_a);
    hier_b = (hier_run *)test_shared(sizeof *hier_b);
    hier_kills(); /* first: who has threads cannot be forked */
    hier_second(runs, &r);
    hier_nodes(runs, &r);
    hier_order(runs, &r);
    hier_norms((runs + 1) / 2, &r);
    hier_saved((runs + 1) / 2, &r);
    hier_errors();
    hier_goes();
    return test_summary();
}

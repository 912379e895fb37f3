/* test_bits.c [all | RUNS [SEED]] - invariant 1 with gradients that are not whole, so that every
   other order of a sum shows. A group is what the bits may depend on: ranks, nodes, micro-steps,
   where they accumulate, the model, types, the optimizer, a step that overflows. Within a group all
   runs, whatever their settings, must end with the same weights and state; with AdamW, master
   weights and no clipping also with those of plain AdamW on whole tensors. RUNS settings are drawn
   per group (24 by default, fewer where there are many groups); `all` runs each one, in hours. */
#include "../shared/host.h"

enum { BITS_MODELS = 3, BITS_STEPS = 3 };

/* Settings that must not change a bit, counted through like the digits of a number. */
typedef struct bits_setting {
    int stage, no_overlap, bucket, prefetch, persistence, no_mapping, threads, host;
} bits_setting;
static const int bits_digits[] = {4, 2, 3, 4, 3, 2, 2, 16};

static int bits_settings(void) {
    int n = 1;
    for (int i = 0; i < 8; i++) n *= bits_digits[i];
    return n;
}

static bits_setting bits_setting_at(int index) {
    int digit[8];
    for (int i = 0; i < 8; i++) {
        digit[i] = index % bits_digits[i];
        index /= bits_digits[i];
    }
    bits_setting s = {digit[0], digit[1], digit[2], digit[3],
                      digit[4], digit[5], digit[6], digit[7]};
    return s;
}

/* What is stored how, and updated by what. */
typedef struct bits_kind {
    const char *name;
    zero_type type;
    zero_grad_type grads;
    zero_optimizer optimizer;
    zero_master master;
    zero_state_type state;
    float fixed, initial; /* loss scales; small enough for f16 */
} bits_kind;

static const bits_kind bits_kinds[] = {
    {.name = "f32"},
    {.name = "bf16", .type = ZERO_BF16},
    {.name = "bf16, f32 masters and gradients",
     .type = ZERO_BF16,
     .grads = ZERO_GRAD_F32,
     .master = ZERO_MASTER_F32},
    {.name = "bf16, f32 masters, bf16 gradients",
     .type = ZERO_BF16,
     .grads = ZERO_GRAD_AS_TYPE,
     .master = ZERO_MASTER_F32},
    {.name = "bf16, no master",
     .type = ZERO_BF16,
     .grads = ZERO_GRAD_AS_TYPE,
     .optimizer = ZERO_ADAMW,
     .master = ZERO_MASTER_NONE},
    {.name = "f16, fixed scale", .type = ZERO_F16, .fixed = 8},
    {.name = "f16, f16 gradients", .type = ZERO_F16, .grads = ZERO_GRAD_AS_TYPE, .initial = 16},
    {.name = "f16, f32 gradients", .type = ZERO_F16, .grads = ZERO_GRAD_F32, .initial = 16},
    {.name = "f32, Adam", .optimizer = ZERO_ADAM},
    {.name = "f32, Lion", .optimizer = ZERO_LION},
    {.name = "bf16, SGD",
     .type = ZERO_BF16,
     .grads = ZERO_GRAD_AS_TYPE,
     .optimizer = ZERO_SGD,
     .master = ZERO_MASTER_NONE},
    {.name = "f16, Nesterov",
     .type = ZERO_F16,
     .grads = ZERO_GRAD_AS_TYPE,
     .optimizer = ZERO_NESTEROV,
     .initial = 16},
    {.name = "bf16, split", .type = ZERO_BF16, .master = ZERO_MASTER_SPLIT},
    {.name = "bf16, split, Lion",
     .type = ZERO_BF16,
     .grads = ZERO_GRAD_AS_TYPE,
     .optimizer = ZERO_LION,
     .master = ZERO_MASTER_SPLIT},
    {.name = "bf16, split, f32 gradients",
     .type = ZERO_BF16,
     .grads = ZERO_GRAD_F32,
     .master = ZERO_MASTER_SPLIT},
    {.name = "f32, bf16 state", .state = ZERO_STATE_BF16},
    {.name = "bf16, bf16 state",
     .type = ZERO_BF16,
     .master = ZERO_MASTER_F32,
     .state = ZERO_STATE_BF16},
    {.name = "bf16, split, bf16 state",
     .type = ZERO_BF16,
     .grads = ZERO_GRAD_AS_TYPE,
     .master = ZERO_MASTER_SPLIT,
     .state = ZERO_STATE_BF16},
    {.name = "f16, Lion, bf16 state",
     .type = ZERO_F16,
     .optimizer = ZERO_LION,
     .initial = 16,
     .state = ZERO_STATE_BF16},
    {.name = "f32, 8-bit state", .state = ZERO_STATE_8BIT},
    {.name = "bf16, split, Adam, 8-bit state",
     .type = ZERO_BF16,
     .grads = ZERO_GRAD_AS_TYPE,
     .optimizer = ZERO_ADAM,
     .master = ZERO_MASTER_SPLIT,
     .state = ZERO_STATE_8BIT},
    {.name = "bf16, no master, SGD, 8-bit state",
     .type = ZERO_BF16,
     .grads = ZERO_GRAD_AS_TYPE,
     .optimizer = ZERO_SGD,
     .master = ZERO_MASTER_NONE,
     .state = ZERO_STATE_8BIT}};
enum { BITS_KINDS = sizeof bits_kinds / sizeof *bits_kinds };

/* Elements of model 0 that overflow in step 1: the first and the last of the embedding, the last of
   a block, one of a unit whose shards are almost all padding, a kept one, a vector's. */
static const struct {
    int tensor;
    size_t element;
} bits_bad[] = {{0, 0}, {0, 699}, {1, 992}, {4, 4}, {3, 13}, {2, 50}};
enum { BITS_BAD = sizeof bits_bad / sizeof *bits_bad };

typedef struct bits_group {
    int nranks, node_size, micro_steps, sharded, model, clip;
    int kind; /* of bits_kinds */
    int bad;  /* 0: no step overflows, otherwise 1 + number in bits_bad + BITS_BAD * value */
} bits_group;

typedef struct bits_run {  /* in shared memory */
    host_spec spec, other; /* other: trains at the same time, if it has steps */
    int bad;               /* as in bits_group */
    int looks;             /* hooks must hand out the weights of bits_after */
    uint64_t hash[64], hash_of_other[64];
} bits_run;

static host_reference bits_after[BITS_STEPS + 1]; /* plain AdamW's weights after each step */

static const zero_tensor_desc bits_tied[] = {
    {"emb", 700, 1, .uses = 2},
    {"mat", 331, 3, .unit = 1},
    {"vec", 17, 3, .unit = 1, .flags = ZERO_NO_DECAY | ZERO_ONE_D},
    {"norm", 9, 3, .unit = 1, .flags = ZERO_KEEP | ZERO_NO_DECAY},
    {"out", 5, 1, .unit = 4, .flags = ZERO_ONE_D}};
static const zero_tensor_desc bits_plain[] = {
    {"emb", 5003, .layers = 1},
    {"w", 1009, 6, .unit = 1},
    {"b", 33, 6, .unit = 1, .flags = ZERO_ONE_D | ZERO_NO_DECAY}};
static const zero_tensor_desc bits_large[] =
    {/* so large that OpenMP and the norm take blocks apart */
     {"emb", 70001, .layers = 1},
     {"w", 90017, 2, .unit = 1},
     {"k", 513, 2, .unit = 1, .flags = ZERO_KEEP}};

static void bits_model(host_spec *s, int model) {
    const zero_tensor_desc *desc = model == 0 ? bits_tied : model == 1 ? bits_plain : bits_large;
    s->ntensors = model == 0 ? 5 : 3;
    s->units = model == 0 ? 5 : model == 1 ? 7 : 3;
    memcpy(s->desc, desc, (size_t)s->ntensors * sizeof *desc);
}

/* One rank spoils one element, in the first micro-step or in the last one. */
static void bits_poison(host_run *h, int t, size_t first, void *g) {
    static const float values[] = {NAN, INFINITY, -INFINITY};
    const host_spec *s = h->spec;
    const int bad = ((const bits_run *)(const void *)s)->bad - 1; /* spec is its first member */
    const int micro = bad & 1 ? 0 : s->micro_steps - 1;
    const size_t at = bits_bad[bad % BITS_BAD].element;
    if (h->step != 1 || h->micro != micro || h->rank->rank != bad % s->nranks) return;
    if (bits_bad[bad % BITS_BAD].tensor == t && at >= first && at - first < s->desc[t].numel)
        host_put(g, host_grad_type(s), at - first, values[bad / BITS_BAD]);
}

static void bits_kind_of(host_spec *s, const bits_group *g) {
    const bits_kind *kind = &bits_kinds[g->kind];
    s->cfg.type = kind->type;
    s->cfg.grads = kind->grads;
    s->cfg.optimizer = kind->optimizer;
    s->cfg.master = kind->master;
    s->cfg.state_type = kind->state;
    s->cfg.seed = 5;
    s->cfg.scaler.fixed = kind->fixed;
    s->cfg.scaler.initial = kind->initial;
    s->cfg.scaler.hysteresis = 1;
    s->poison = g->bad ? bits_poison : NULL;
    s->groups = g->kind % 2;
}

/* What ran when is recorded: no bit depends on it. */
static void bits_trace(void *user, const zero_event *events, int n) {
    (void)user, (void)events, (void)n;
}

static void bits_spec(host_spec *s, const bits_group *g, const bits_setting *how) {
    static const int prefetch[] = {0, ZERO_NONE, 2, 5};
    static const int64_t persistence[] = {0, ZERO_NONE, 100000};
    static const size_t bucket[BITS_MODELS][3] = {
        {0, 3000, 100000}, {0, 2500, 20000}, {0, 100000, 200000}};
    memset(s, 0, sizeof *s);
    bits_model(s, g->model);
    s->seed = 11;
    s->nranks = g->nranks;
    s->node_size = g->node_size;
    s->steps = BITS_STEPS;
    s->micro_steps = g->micro_steps;
    s->silent_unit = -1;
    s->adamw = (zero_hyper){0.01f, 0.9f, 0.95f, 1e-8f, 0.1f, g->clip ? 1.0f : 0.0f};
    s->cfg.stage = how->stage;
    s->cfg.accumulation = g->sharded ? ZERO_ACCUMULATE_SHARDED : ZERO_ACCUMULATE_LOCAL;
    s->cfg.no_overlap = how->no_overlap;
    s->cfg.bucket_numel = bucket[g->model][how->bucket];
    s->cfg.prefetch = prefetch[how->prefetch];
    s->cfg.persistence_numel = persistence[how->persistence];
    s->cfg.no_mapping = how->no_mapping;
    s->cfg.threads = 1 + how->threads;
    s->cfg.timeout_s = 100;
    bits_kind_of(s, g);
    s->recompute = how->host & 1;
    s->cfg.trace = how->host & 8 ? bits_trace : NULL;
    s->slots = how->host >> 1 & 1;
    s->evaluate = how->host >> 2;
    const int overwrites = s->slots && (g->sharded || g->micro_steps == 1);
    for (int t = 0; t < s->ntensors && overwrites; t++)
        if (!(s->desc[t].flags & ZERO_KEEP)) s->desc[t].flags |= ZERO_OVERWRITTEN;
}

/* ---- training ---- */

static int bits_step(host_run *h) {
    const host_spec *s = h->spec;
    for (h->micro = 0; h->micro < s->micro_steps; h->micro++)
        if (!host_train_pass(h)) return 0;
    HOST_TRY(h, zero_reduce(h->z));
    HOST_TRY(h, zero_step(h->z, &s->adamw));
    h->step++;
    if (h->reference) h->reference++;
    return !s->evaluate || host_evaluate(h);
}

static void bits_rank(test_rank *rank) {
    bits_run *run = (bits_run *)rank->arg;
    host_run h, other;
    int ok = host_open(&h, &run->spec, rank);
    memset(&other, 0, sizeof other);
    if (run->other.steps) ok = ok && host_open(&other, &run->other, rank);
    if (run->looks) h.reference = bits_after;
    for (int step = 0; step < BITS_STEPS && ok; step++) {
        ok = bits_step(&h);
        ok = ok && (!run->other.steps || bits_step(&other));
    }
    if (ok) {
        zero_step_report report;
        run->hash[rank->rank] = host_hash(&h);
        if (zero_step_result(h.z, &report) || report.skipped != (run->bad != 0))
            test_rank_fail(rank, "%d steps were skipped", (int)report.skipped);
    }
    if (ok && other.z) run->hash_of_other[rank->rank] = host_hash(&other);
    zero_destroy(other.z);
    zero_destroy(h.z);
}

/* Not for clipping, whose norm is the plugin's to define. */
static int bits_has_reference(const bits_group *g) {
    const bits_kind *kind = &bits_kinds[g->kind];
    const int exact = kind->master != ZERO_MASTER_NONE && !kind->state;
    return kind->optimizer == ZERO_ADAMW && exact && !g->clip;
}

/* The same training without any plugin, into bits_after; its hash at the end. */
static uint64_t bits_reference(const bits_group *g) {
    host_spec s;
    host_reference r;
    const bits_setting any = {0, 0, 0, 0, 0, 0, 0, 0};
    uint64_t hash = 0;
    bits_spec(&s, g, &any);
    host_reference_open(&r, &s);
    for (int step = 0; step <= BITS_STEPS; step++) {
        for (int t = 0; t < HOST_TENSORS; t++) {
            free(bits_after[step].p[t]);
            bits_after[step].p[t] = NULL;
            if (t >= s.ntensors) continue;
            bits_after[step].p[t] = (float *)malloc(host_numel(&s, t) * sizeof(float));
            memcpy(bits_after[step].p[t], r.p[t], host_numel(&s, t) * sizeof(float));
        }
        if (step == 1 && g->bad)
            s.cfg.scaler.initial /= 2; /* skipped; a scale that is dynamic is halved */
        else if (step < BITS_STEPS)
            host_reference_step(&r, &s, g->sharded && g->micro_steps > 1, step, 1);
    }
    hash = host_hash_reference(hash, &r, &s);
    host_reference_close(&r, &s);
    return hash;
}

/* ---- groups ---- */

static bits_run *bits_shared; /* one at a time */
static uint64_t bits_seed = 1;

static const char *bits_name(const bits_group *g) {
    static char text[160];
    snprintf(text, sizeof text,
             "%s: %d ranks, nodes of %d, %d micro-steps, %s, model %d, %s, bad %d",
             bits_kinds[g->kind].name, g->nranks, g->node_size ? g->node_size : g->nranks,
             g->micro_steps, g->sharded ? "SHARDED" : "LOCAL", g->model,
             g->clip ? "clipped" : "unclipped", g->bad);
    return text;
}

/* One training, checked against `expected` (0: nothing to check yet); the hash comes back. */
static uint64_t bits_train(const bits_group *g, int index, int processes, uint64_t expected) {
    const bits_setting how = bits_setting_at(index);
    bits_run *run = bits_shared;
    memset(run->hash, 0, sizeof run->hash);
    memset(&run->other, 0, sizeof run->other);
    bits_spec(&run->spec, g, &how);
    run->bad = g->bad;
    run->looks = bits_has_reference(g);
    (void)alarm(60); /* a wait for ever is a failure */
    int ok = processes ? test_processes(g->nranks, g->node_size, bits_rank, run, 100)
                       : test_ranks(g->nranks, g->node_size, bits_rank, run);
    for (int r = 0; r < g->nranks; r++) ok &= run->hash[r] == (expected ? expected : run->hash[0]);
    test_check(ok,
               "%s: setting %d (stage %d, overlap %d, bucket %zu, prefetch %d, persistence %d, "
               "mapping %d, threads "
               "%d, host %d, processes %d) gives %016llx, expected %016llx: %s",
               bits_name(g), index, how.stage, !how.no_overlap, run->spec.cfg.bucket_numel,
               run->spec.cfg.prefetch, (int)run->spec.cfg.persistence_numel, !how.no_mapping,
               1 + how.threads, how.host, processes, (unsigned long long)run->hash[0],
               (unsigned long long)expected, test_first);
    return run->hash[0];
}

/* Runs `runs` settings, or all; each stage takes its turn. */
static uint64_t bits_run_group(const bits_group *g, int runs, int processes, uint64_t expected) {
    const int n = bits_settings();
    const double start = test_now();
    test_random r = {test_mix(bits_seed
                              ^ (uint64_t)(g->nranks * 64 + g->node_size * 8 + g->micro_steps * 4
                                           + g->sharded * 2))
                     + (uint64_t)(g->model + 4 * g->kind + 64 * g->bad)};
    if (!expected)
        expected = bits_has_reference(g) ? bits_reference(g) : bits_train(g, 0, processes, 0);
    for (int i = 0; i < (runs ? runs : n); i++) {
        const int index = runs ? test_below(&r, n / 4) * 4 + i % 4 : i;
        (void)bits_train(g, index, processes, expected);
    }
    printf("%s: %d %s, bits %016llx, %.1f s\n", bits_name(g), runs ? runs : n,
           processes ? "as processes" : "runs", (unsigned long long)expected, test_now() - start);
    return expected;
}

static const int bits_ranks[] = {1, 2, 3, 4, 7, 8};

static void bits_all_ranks(int runs) {
    for (int i = 0; i < 6; i++)
        for (int k = 0; k < 6; k++) {
            bits_group g = {.nranks = bits_ranks[i],
                            .micro_steps = k < 2 ? 1 : 3,
                            .sharded = k & 1,
                            .model = (i + k / 2) & 1,
                            .clip = (k / 2 + i) % 3 == 0};
            uint64_t bits = bits_run_group(&g, runs, 0, 0);
            if (g.micro_steps == 1 || g.nranks < 2) continue;
            g.sharded = !g.sharded; /* the test is sharp enough to see another order of sums */
            if (!g.clip)
                test_check(bits_reference(&g) != bits, "%s: LOCAL and SHARDED cannot be told apart",
                           bits_name(&g));
        }
}

/* Every other type, gradient type and optimizer, at every number of ranks. */
static void bits_all_kinds(int runs) {
    for (int i = 0; i < 6; i++)
        for (int kind = 1; kind < BITS_KINDS; kind++)
            for (int micro_steps = 1; micro_steps <= 3; micro_steps += 2) {
                const bits_group g = {.nranks = bits_ranks[i],
                                      .micro_steps = micro_steps,
                                      .sharded = (i + kind) & 1,
                                      .model = (i + kind / 2) & 1,
                                      .clip = (kind + i + micro_steps) % 5 == 0,
                                      .kind = kind};
                (void)bits_run_group(&g, runs ? (runs + 3) / 4 : 0, 0, 0);
            }
}

/* Whatever overflows, wherever: the step is skipped alike, and the next one is taken alike. */
static void bits_overflows(int runs) {
    static const int kinds[] = {0, 1, 4, 5, 6, 7, 11, 12};
    enum { KINDS = sizeof kinds / sizeof *kinds };
    for (int i = 0; i < 6; i++)
        for (int k = 0; k < KINDS; k++)
            for (int n = 0; n < 3; n++) {
                const bits_group g = {.nranks = bits_ranks[i],
                                      .micro_steps = 1 + (i + k + n) % 2 * 2,
                                      .sharded = (i + n) & 1,
                                      .clip = (i + k) % 4 == 0,
                                      .kind = kinds[k],
                                      .bad = 1 + (i + 2 * k + 5 * n) % BITS_BAD + BITS_BAD * n};
                (void)bits_run_group(&g, runs ? (runs + 7) / 8 : 0, 0, 0);
            }
}

/* Whole threads' worth of elements, and what one more thread makes of them. */
static void bits_threads(int runs) {
    for (int nranks = 1; nranks <= 3; nranks++)
        for (int kind = 0; kind < 7; kind += 2) {
            const bits_group g = {.nranks = nranks,
                                  .micro_steps = 1 + nranks % 2,
                                  .sharded = nranks & 1,
                                  .model = 2,
                                  .clip = nranks > 1,
                                  .kind = kind};
            (void)bits_run_group(&g, runs ? (runs + 5) / (kind ? 6 : 2) : 0, 0, 0);
        }
}

/* Nodes have bits of their own. */
static void bits_nodes(int runs) {
    static const int size[][2] = {{4, 2}, {6, 2}, {6, 3}, {8, 2}, {8, 4}};
    for (int i = 0; i < 5; i++)
        for (int kind = 0; kind < 7; kind += i & 1 ? 3 : 2) {
            bits_group g = {.nranks = size[i][0],
                            .node_size = size[i][1],
                            .micro_steps = 1 + i % 3,
                            .sharded = i & 1,
                            .model = i & 1,
                            .kind = kind};
            const uint64_t bits = bits_run_group(&g, kind && runs ? (runs + 3) / 4 : runs, 0, 0);
            g.node_size = 0;
            if (!kind)
                test_check(bits_reference(&g) != bits, "%s: nodes make no difference",
                           bits_name(&g));
        }
}

/* Against the same reference that threads are held to. */
static void bits_processes(int runs) {
    for (int nranks = 2; nranks <= 4; nranks++)
        for (int kind = 0; kind < 7; kind += 3) {
            const bits_group g = {.nranks = nranks,
                                  .node_size = nranks == 4 ? 2 : 0,
                                  .micro_steps = nranks,
                                  .sharded = nranks & 1,
                                  .model = 1 - (nranks & 1),
                                  .kind = kind};
            (void)bits_run_group(&g, kind ? (runs + 1) / 2 : runs, 1, 0);
        }
}

/* Two contexts of one group of ranks, step by step in turns. */
static void bits_two(int runs) {
    const bits_group a = {.nranks = 3, .micro_steps = 2, .kind = 1},
                     b = {.nranks = 3, .micro_steps = 1, .sharded = 1, .model = 1};
    const uint64_t of_a = bits_reference(&a), of_b = bits_reference(&b);
    test_random r = {bits_seed};
    for (int i = 0; i < runs; i++) {
        const bits_setting x = bits_setting_at(test_below(&r, bits_settings()));
        const bits_setting y = bits_setting_at(test_below(&r, bits_settings()));
        bits_run *run = bits_shared;
        bits_spec(&run->spec, &a, &x);
        bits_spec(&run->other, &b, &y);
        run->looks = run->bad = 0;
        int ok = test_ranks(3, 0, bits_rank, run);
        for (int k = 0; k < 3; k++) ok &= run->hash[k] == of_a && run->hash_of_other[k] == of_b;
        test_check(ok, "two contexts at once, stages %d and %d: %s", x.stage, y.stage, test_first);
    }
    printf("two contexts at once: %d runs\n", runs);
}

/* An evaluation between a reduction and its step: what is still in buffers is not gathered again,
   and a rank that takes its time sees the old weights, which the others' update waits for. */
static void bits_late_rank(test_rank *rank) {
    static const zero_tensor_desc desc[] = {{"w", 3000, 3, .uses = 1}, {"b", 7, 3, .uses = 1}};
    const int mapped = *(const int *)rank->arg;
    host_spec s;
    host_run h;
    zero_stats before, after;
    float was[3000];
    host_small(&s, 11, 2, 3, desc, 2);
    s.cfg.no_mapping = !mapped;
    s.cfg.persistence_numel = ZERO_NONE;
    int ok = host_open(&h, &s, rank) && host_train_pass(&h) && !zero_reduce(h.z)
             && !zero_query_stats(h.z, &before) && !zero_pass_begin(h.z, ZERO_EVAL, 0, 1);
    for (int u = 0; u < s.units && ok; u++) {
        ok = !zero_forward_begin(h.z, u, &h.params);
        const char *w = ok ? host_tensor(&h, 0, u, 0) : NULL;
        if (ok) memcpy(was, w, sizeof was);
        if (rank->rank == 0) (void)usleep(30000);
        if (ok && memcmp(was, w, sizeof was))
            test_rank_fail(rank, "unit %d changes while it is read", u);
        ok = ok && !zero_forward_end(h.z, u);
    }
    ok = ok && !zero_pass_end(h.z) && !zero_query_stats(h.z, &after) && !zero_step(h.z, &s.adamw)
         && !zero_barrier(h.z);
    if (!ok) test_rank_fail(rank, "%s", zero_last_error(h.z));
    if (ok && after.sent_bytes != before.sent_bytes)
        test_rank_fail(rank, "%llu bytes are gathered again",
                       (unsigned long long)(after.sent_bytes - before.sent_bytes));
    zero_destroy(h.z);
}

int main(int argc, char **argv) {
    const int all = argc > 1 && !strcmp(argv[1], "all");
    const int runs = all ? 0 : argc > 1 && atoi(argv[1]) > 0 ? atoi(argv[1]) : 24;
    bits_seed = argc > 2 ? (uint64_t)atoll(argv[2]) : 1;
    bits_shared = (bits_run *)test_shared(sizeof *bits_shared);
    bits_processes(all ? 64 : runs); /* first: OpenMP's threads do not survive a fork */
    bits_all_ranks(all ? 0 : (runs + 1) / 2);
    bits_all_kinds(runs);
    bits_overflows(runs);
    bits_threads(all ? 64 : runs);
    bits_nodes(all ? 64 : runs);
    bits_two(all ? 64 : runs);
    for (int mapped = 0; mapped < 2; mapped++)
        test_check(test_ranks(2, 0, bits_late_rank, &mapped), "a late evaluation, mapped %d: %s",
                   mapped, test_first);
    return test_summary();
}

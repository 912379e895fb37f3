/* test_bits.c [all | RUNS [SEED]] - invariant 1 with gradients that are not whole, so that every
   other order of a sum shows. A group is what the bits may depend on: ranks, nodes, micro-steps,
   where they accumulate, the model. Within a group all runs, whatever their settings, must end with
   the same weights, m and v; without clipping also with those of plain AdamW on whole tensors.
   RUNS settings are drawn per group (24 by default); `all` runs each one, in an hour. */
#include "host.h"

enum { BITS_MODELS = 3, BITS_STEPS = 3 };

/* Settings that must not change a bit, counted through like the digits of a number. */
typedef struct bits_setting {
    int stage, no_overlap, bucket, prefetch, persistence, no_mapping, threads, host;
} bits_setting;
static const int bits_digits[] = {4, 2, 3, 4, 3, 2, 2, 8};

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

typedef struct bits_group {
    int nranks, node_size, micro_steps, sharded, model, clip;
} bits_group;

typedef struct bits_run {  /* in shared memory */
    host_spec spec, other; /* other: trains at the same time, if it has steps */
    int looks;             /* hooks must hand out the weights of bits_after */
    uint64_t hash[64], hash_of_other[64];
} bits_run;

static host_reference bits_after[BITS_STEPS + 1]; /* plain AdamW's weights after each step */

static const zero_tensor_desc bits_tied[] = {{"emb", 700, 1, 0, 2, 0, 0},
                                             {"mat", 331, 3, 1, 0, 0, 0},
                                             {"vec", 17, 3, 1, 0, ZERO_NO_DECAY | ZERO_ONE_D, 0},
                                             {"norm", 9, 3, 1, 0, ZERO_KEEP | ZERO_NO_DECAY, 0},
                                             {"out", 5, 1, 4, 0, ZERO_ONE_D, 0}};
static const zero_tensor_desc bits_plain[] = {{"emb", 5003, 1, 0, 0, 0, 0},
                                              {"w", 1009, 6, 1, 0, 0, 0},
                                              {"b", 33, 6, 1, 0, ZERO_ONE_D | ZERO_NO_DECAY, 0}};
static const zero_tensor_desc bits_large[] =
    {/* so large that OpenMP and the norm take blocks apart */
     {"emb", 70001, 1, 0, 0, 0, 0},
     {"w", 90017, 2, 1, 0, 0, 0},
     {"k", 513, 2, 1, 0, ZERO_KEEP, 0}};

static void bits_model(host_spec *s, int model) {
    const zero_tensor_desc *desc = model == 0 ? bits_tied : model == 1 ? bits_plain : bits_large;
    s->ntensors = model == 0 ? 5 : 3;
    s->units = model == 0 ? 5 : model == 1 ? 7 : 3;
    memcpy(s->desc, desc, (size_t)s->ntensors * sizeof *desc);
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
    s->adamw = (zero_adamw){0.01f, 0.9f, 0.95f, 1e-8f, 0.1f, g->clip ? 1.0f : 0.0f};
    s->cfg.stage = how->stage;
    s->cfg.accumulation = g->sharded ? ZERO_ACCUMULATE_SHARDED : ZERO_ACCUMULATE_LOCAL;
    s->cfg.no_overlap = how->no_overlap;
    s->cfg.bucket_numel = bucket[g->model][how->bucket];
    s->cfg.prefetch = prefetch[how->prefetch];
    s->cfg.persistence_numel = persistence[how->persistence];
    s->cfg.no_mapping = how->no_mapping;
    s->cfg.threads = 1 + how->threads;
    s->cfg.timeout_s = 100;
    s->recompute = how->host & 1;
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
    if (ok) run->hash[rank->rank] = host_hash(&h);
    if (ok && other.z) run->hash_of_other[rank->rank] = host_hash(&other);
    zero_destroy(other.z);
    zero_destroy(h.z);
}

/* The same training without any plugin, into bits_after; its hash at the end. Not for clipping,
   whose norm is the plugin's to define. */
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
        if (step < BITS_STEPS)
            host_reference_step(&r, &s, g->sharded && g->micro_steps > 1, step, 1.0f);
    }
    for (int t = 0; t < s.ntensors; t++) {
        float *const kinds[] = {r.p[t], r.m[t], r.v[t]};
        for (int k = 0; k < 3; k++) hash = host_hash_floats(hash, kinds[k], host_numel(&s, t));
    }
    host_reference_close(&r, &s);
    return hash;
}

/* ---- groups ---- */

static bits_run *bits_shared; /* one at a time */
static uint64_t bits_seed = 1;

static const char *bits_name(const bits_group *g) {
    static char text[128];
    snprintf(text, sizeof text, "%d ranks, nodes of %d, %d micro-steps, %s, model %d, %s",
             g->nranks, g->node_size ? g->node_size : g->nranks, g->micro_steps,
             g->sharded ? "SHARDED" : "LOCAL", g->model, g->clip ? "clipped" : "unclipped");
    return text;
}

/* One training, checked against `expected` (0: nothing to check yet); the hash comes back. */
static uint64_t bits_train(const bits_group *g, int index, int processes, uint64_t expected) {
    const bits_setting how = bits_setting_at(index);
    bits_run *run = bits_shared;
    memset(run->hash, 0, sizeof run->hash);
    memset(&run->other, 0, sizeof run->other);
    bits_spec(&run->spec, g, &how);
    run->looks = !g->clip;
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
                     + (uint64_t)g->model};
    if (!expected) expected = g->clip ? bits_train(g, 0, processes, 0) : bits_reference(g);
    for (int i = 0; i < (runs ? runs : n); i++) {
        const int index = runs ? test_below(&r, n / 4) * 4 + i % 4 : i;
        (void)bits_train(g, index, processes, expected);
    }
    printf("%s: %d %s, bits %016llx, %.1f s\n", bits_name(g), runs ? runs : n,
           processes ? "as processes" : "runs", (unsigned long long)expected, test_now() - start);
    return expected;
}

static void bits_all_ranks(int runs) {
    static const int ranks[] = {1, 2, 3, 4, 7, 8};
    for (int i = 0; i < 6; i++)
        for (int k = 0; k < 6; k++) {
            bits_group g = {
                ranks[i], 0, k < 2 ? 1 : 3, k & 1, (i + k / 2) & 1, (k / 2 + i) % 3 == 0};
            uint64_t bits = bits_run_group(&g, runs, 0, 0);
            if (g.micro_steps == 1 || ranks[i] < 2) continue;
            g.sharded = !g.sharded; /* the test is sharp enough to see another order of sums */
            if (!g.clip)
                test_check(bits_reference(&g) != bits, "%s: LOCAL and SHARDED cannot be told apart",
                           bits_name(&g));
        }
}

/* Whole threads' worth of elements, and what one more thread makes of them. */
static void bits_threads(int runs) {
    for (int nranks = 1; nranks <= 3; nranks++) {
        const bits_group g = {nranks, 0, 1 + nranks % 2, nranks & 1, 2, nranks > 1};
        (void)bits_run_group(&g, runs ? (runs + 1) / 2 : 0, 0, 0);
    }
}

/* Nodes have bits of their own. */
static void bits_nodes(int runs) {
    static const int size[][2] = {{4, 2}, {6, 2}, {6, 3}, {8, 2}, {8, 4}};
    for (int i = 0; i < 5; i++) {
        bits_group g = {size[i][0], size[i][1], 1 + i % 3, i & 1, i & 1, 0};
        const uint64_t bits = bits_run_group(&g, runs, 0, 0);
        g.node_size = 0;
        test_check(bits_reference(&g) != bits, "%s: nodes make no difference", bits_name(&g));
    }
}

static void bits_processes(int runs) {
    for (int nranks = 2; nranks <= 4; nranks++) {
        const bits_group g = {nranks, nranks == 4 ? 2 : 0, nranks, nranks & 1, 1 - (nranks & 1), 0};
        (void)bits_run_group(&g, runs, 1,
                             0); /* against the same reference that threads are held to */
    }
}

/* Two contexts of one group of ranks, step by step in turns. */
static void bits_two(int runs) {
    const bits_group a = {3, 0, 2, 0, 0, 0}, b = {3, 0, 1, 1, 1, 0};
    const uint64_t of_a = bits_reference(&a), of_b = bits_reference(&b);
    test_random r = {bits_seed};
    for (int i = 0; i < runs; i++) {
        const bits_setting x = bits_setting_at(test_below(&r, bits_settings()));
        const bits_setting y = bits_setting_at(test_below(&r, bits_settings()));
        bits_run *run = bits_shared;
        bits_spec(&run->spec, &a, &x);
        bits_spec(&run->other, &b, &y);
        run->looks = 0;
        int ok = test_ranks(3, 0, bits_rank, run);
        for (int k = 0; k < 3; k++) ok &= run->hash[k] == of_a && run->hash_of_other[k] == of_b;
        test_check(ok, "two contexts at once, stages %d and %d: %s", x.stage, y.stage, test_first);
    }
    printf("two contexts at once: %d runs\n", runs);
}

int main(int argc, char **argv) {
    const int all = argc > 1 && !strcmp(argv[1], "all");
    const int runs = all ? 0 : argc > 1 && atoi(argv[1]) > 0 ? atoi(argv[1]) : 24;
    bits_seed = argc > 2 ? (uint64_t)atoll(argv[2]) : 1;
    bits_shared = (bits_run *)test_shared(sizeof *bits_shared);
    bits_processes(all ? 64 : runs); /* first: OpenMP's threads do not survive a fork */
    bits_all_ranks(runs);
    bits_threads(all ? 64 : runs);
    bits_nodes(all ? 64 : runs);
    bits_two(all ? 64 : runs);
    return test_summary();
}

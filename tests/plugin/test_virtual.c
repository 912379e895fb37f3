/* test_virtual.c - with cfg.virtual_ranks, bits do not depend on the number of ranks.

     hashes    for V = 8 on 1, 2, 4 and 8 ranks, and for V = 12 on 1, 3, 6 and 12: one hash of
               weights and moments, losses, norms and loss scales after some steps, over types,
               masters, state types and update rules, each with a sample of stages, overlap,
               buckets, mapping and tiers. In threads and in processes. Without virtual_ranks hashes
               differ, so that the comparison can fail
     tree      the reduced gradient is the tree's sum, computed here by recursion
     plan      messages and partial sums are those of the plan
     refusals  numbers of ranks, micro-steps and settings that do not fit */
#include "../shared/host.h"
#include "small.h"
#include "virtual_host.h"

typedef struct virtual_run {
    host_spec spec;
    int leaves;    /* V */
    uint64_t hash; /* of rank 0, or the same on all */
    int skipped;
} virtual_run;

static int virtual_train(host_run *h, virtual_run *run) {
    uint64_t hash = 0;
    for (h->step = 0; h->step < h->spec->steps; h->step++) {
        zero_step_report done;
        double mean = 0;
        for (h->micro = 0; h->micro < h->spec->micro_steps; h->micro++)
            if (!virtual_pass(h, &mean)) return 0;
        HOST_TRY(h, zero_step_result(h->z, &done));
        hash = virtual_mix(hash, mean);
        if (done.stepped) hash = virtual_mix(hash, done.norm);
        hash = virtual_mix(hash, (double)zero_loss_scale(h->z));
        hash = virtual_mix(hash, (double)done.skipped);
        if (!h->rank->rank) run->skipped = (int)done.skipped;
    }
    hash = test_mix(hash ^ host_hash(h));
    if (!h->rank->rank) run->hash = hash;
    return 1;
}

/* What a run sends, and keeps for its partial sums, is in the plan. */
static int virtual_check_plan(host_run *h) {
    const host_spec *s = h->spec;
    zero_plan plan;
    zero_stats stats;
    HOST_TRY(h, zero_query_plan(h->z, &plan));
    HOST_TRY(h, zero_query_stats(h->z, &stats));
    const size_t steps = (size_t)s->steps;
    if (!s->cfg.delay_from && stats.sent_bytes != steps * plan.sent_bytes)
        test_rank_fail(h->rank, "%d ranks, stage %d: %llu bytes were sent in %d steps, planned %zu",
                       s->nranks, s->cfg.stage, (unsigned long long)stats.sent_bytes, s->steps,
                       steps * plan.sent_bytes);
    if (stats.verdict_bytes != steps * plan.verdict_bytes)
        test_rank_fail(h->rank, "%d ranks: %llu bytes of verdicts in %d steps, planned %zu",
                       s->nranks, (unsigned long long)stats.verdict_bytes, s->steps,
                       steps * plan.verdict_bytes);
    return !h->rank->failed;
}

static void virtual_body(test_rank *r) {
    virtual_run *run = (virtual_run *)r->arg;
    host_run h;
    if (host_open(&h, &run->spec, r) && (!virtual_train(&h, run) || !virtual_check_plan(&h))
        && !r->failed)
        test_rank_fail(r, "%s", zero_last_error(h.z));
    zero_destroy(h.z);
}

static int virtual_go(virtual_run *run, int processes) {
    run->hash = 0;
    return processes ? test_processes(run->spec.nranks, 0, virtual_body, run, 120)
                     : test_ranks(run->spec.nranks, 0, virtual_body, run);
}

/* ---- hashes ---- */

/* One hash for all numbers of ranks, which step over stages and layouts. */
static void virtual_hashes(const virtual_case *c, int number) {
    for (int v = 0; v < 2; v++) {
        uint64_t first = 0;
        for (int i = 0; i < 8; i++) {
            const int leaves = virtual_ranks_of[v][0], n = virtual_ranks_of[v][1 + i % 4];
            const int stage = (i + i / 4 + number + v) % 4, how = i * 5 + number;
            virtual_run *run = (virtual_run *)test_shared(sizeof *run);
            virtual_spec(&run->spec, leaves, n, stage);
            virtual_set_case(&run->spec, c);
            virtual_set_layout(&run->spec, how);
            const int processes = (i + number) % 5 == 4 && n > 1;
            const int ok = virtual_go(run, processes);
            if (!i) first = run->hash;
            test_check(ok && run->hash == first,
                       "%s, V %d, %d ranks, stage %d, layout %d: hash %016llx, on 1 rank %016llx: "
                       "%s",
                       c->name, leaves, n, stage, how & 31, (unsigned long long)run->hash,
                       (unsigned long long)first, ok ? "" : test_first);
            test_check(!ok || run->skipped == (c->type == ZERO_F16), "%s: %d steps are skipped",
                       c->name, run->skipped);
            munmap(run, sizeof *run);
        }
    }
}

/* What the comparison would find: without virtual_ranks, and with another number, hashes differ. */
static void virtual_differs(void) {
    virtual_run run[3];
    uint64_t hash[4];
    for (int i = 0; i < 4; i++) {
        virtual_spec(&run[0].spec, i == 3 ? 12 : 8, i == 3 ? 1 : 1 << i, 0);
        if (i < 3) run[0].spec.cfg.virtual_ranks = 0;
        if (i < 3) run[0].spec.adamw.max_norm = 1;
        test_check(virtual_go(&run[0], 0), "a run: %s", test_first);
        hash[i] = run[0].hash;
    }
    test_check(hash[0] != hash[1] && hash[1] != hash[2] && hash[0] != hash[3],
               "hashes are equal without virtual_ranks");
}

/* ---- tree ---- */

/* The sum of leaves first .. first + n - 1 of element i, as the header describes it. */
static float virtual_sum(const host_spec *s, int t, size_t i, int first, int n) {
    int radix = n;
    if (n == 1) return host_gradient(s, 0, 0, first, 0, t, i);
    for (int p = 2; p * p <= radix; p++)
        while (radix % p == 0 && radix > p) radix /= p; /* the largest prime factor */
    volatile float sum = virtual_sum(s, t, i, first, n / radix);
    for (int child = 1; child < radix; child++)
        sum = sum + virtual_sum(s, t, i, first + child * (n / radix), n / radix);
    return sum;
}

static void virtual_tree_body(test_rank *r) {
    const host_spec *s = &((virtual_run *)r->arg)->spec;
    const int leaves = ((virtual_run *)r->arg)->leaves;
    host_run h;
    float seen[1000];
    int ok = host_open(&h, s, r);
    for (h.micro = 0; h.micro < s->micro_steps && ok; h.micro++) ok = host_train_pass(&h);
    if (ok && zero_reduce(h.z)) test_rank_fail(r, "%s", zero_last_error(h.z));
    for (int t = 0; t < s->ntensors && ok && !r->failed; t++) {
        const size_t n = host_numel(s, t);
        if (host_all_frozen(s, t)) continue;
        if (zero_read_tensor(h.z, s->desc[t].name, ZERO_GRADIENT, 0, n, seen))
            test_rank_fail(r, "%s", zero_last_error(h.z));
        for (size_t i = 0; i < n && !r->failed; i++) {
            const float scaled = 1.0f / (float)leaves * virtual_sum(s, t, i, 0, leaves);
            const float expected = host_round(host_grad_type(s), scaled) * (1.0f / host_scale(s));
            if (memcmp(&seen[i], &expected, sizeof expected))
                test_rank_fail(r, "%s[%zu] is %.9g, expected %.9g", s->desc[t].name, i,
                               (double)seen[i], (double)expected);
        }
    }
    zero_destroy(h.z);
}

static void virtual_tree(int leaves, int nranks, int stage, const virtual_case *c) {
    virtual_run run;
    virtual_spec(&run.spec, leaves, nranks, stage);
    virtual_set_case(&run.spec, c);
    run.spec.poison = NULL;
    run.leaves = leaves;
    if (c->type == ZERO_F16) run.spec.cfg.scaler.fixed = 64;
    test_check(test_ranks(nranks, 0, virtual_tree_body, &run), "V %d, %d ranks, stage %d, %s: %s",
               leaves, nranks, stage, c->name, test_first);
}

/* ---- plan ---- */

/* Levels that a rank adds itself take 4 bytes per element of all units each. */
static void virtual_plan(int nranks, int levels) {
    virtual_run run;
    zero_ctx *z = NULL;
    zero_plan plan[2];
    for (int i = 0; i < 2; i++) {
        virtual_spec(&run.spec, 8, nranks, 1);
        run.spec.ntensors = 4; /* without the frozen one */
        zero_config cfg = run.spec.cfg;
        zero_comm comm = {ZERO_COMM_SELF, 0, NULL, 0};
        cfg.virtual_ranks = i ? 8 / nranks : 0;
        cfg.micro_steps = 8 / nranks;
        cfg.log = test_quiet;
        test_check(!zero_create(&z, &cfg, &comm), "a context");
        for (int t = 0; t < run.spec.ntensors; t++)
            (void)host_announce(z, &run.spec, t, &run.spec.desc[t]);
        test_check(!zero_query_plan(z, &plan[i]), "a plan: %s", zero_last_error(z));
        zero_destroy(z);
    }
    test_check(plan[1].accumulator_bytes - plan[0].accumulator_bytes
                       == (size_t)levels * plan[0].padded_numel * sizeof(float)
                   && plan[1].buffer_bytes - plan[0].buffer_bytes
                          == plan[1].accumulator_bytes - plan[0].accumulator_bytes,
               "%d levels take %zu bytes of buffers and %zu of accumulators", levels,
               plan[1].buffer_bytes - plan[0].buffer_bytes,
               plan[1].accumulator_bytes - plan[0].accumulator_bytes);
}

/* ---- refusals ---- */

static void virtual_refuse(const zero_config *given, const char *what) {
    zero_ctx *z = NULL;
    zero_config cfg = *given;
    const zero_comm comm = {ZERO_COMM_SELF, 0, NULL, 0};
    cfg.log = test_quiet;
    const zero_result r = zero_create(&z, &cfg, &comm);
    small_expect_error(z, r, ZERO_ERR_ARGUMENT, "zero_create", what);
    zero_destroy(z);
}

static void virtual_refuse_ranks_body(test_rank *r) {
    zero_ctx *z = NULL;
    const zero_config cfg = {.virtual_ranks = 12, .log = test_quiet, .timeout_s = 20};
    const zero_comm comm = test_comm(r);
    const zero_result result = zero_create(&z, &cfg, &comm);
    if (result != ZERO_ERR_ARGUMENT
        || !strstr(zero_last_error(z), "virtual_ranks is 12, a tree of 3, 2, 2, which 4 ranks "
                                       "cannot divide among them; use 1, 3, 6 or 12 ranks"))
        test_rank_fail(r, "%d: %s", (int)result, zero_last_error(z));
    zero_destroy(z);
}

static void virtual_refusals(void) {
    zero_group *group = NULL;
    const zero_config cases[] = {{.virtual_ranks = 8, .micro_steps = 4},
                                 {.virtual_ranks = 8, .accumulation = ZERO_ACCUMULATE_SHARDED},
                                 {.virtual_ranks = 8, .stage = 2, .gradient_bits = 8},
                                 {.virtual_ranks = 8, .stage = 3, .weight_bits = 8},
                                 {.virtual_ranks = 8, .stage = 3, .second_ranks = 1},
                                 {.virtual_ranks = 1, .type = ZERO_BF16},
                                 {.virtual_ranks = 8,
                                  .stage = 2,
                                  .optimizer_tier = ZERO_FILE,
                                  .gradient_tier = ZERO_FILE,
                                  .folder = "/tmp"},
                                 {.virtual_ranks = -1}};
    static const char *const what[] = {
        "virtual_ranks is 8, so each of 1 ranks has 8 micro-steps per step (found 4)",
        "use LOCAL",
        "gradient_bits",
        "weight_bits",
        "second_ranks",
        "grads is AUTO",
        "gradient_tier",
        "virtual_ranks is -1, expected 0..1048576"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) virtual_refuse(&cases[i], what[i]);
    test_check(test_ranks(4, 0, virtual_refuse_ranks_body, NULL), "4 ranks: %s", test_first);

    zero_config cfg = {.virtual_ranks = 4, .grads = ZERO_GRAD_F32};
    zero_ctx *z = small_create(&cfg);
    const zero_tensor_desc rows = {"rows", 64, .row_numel = 8}, sums = {"s", 8, .divisor = 3};
    small_expect_error(z, zero_tensor(z, &rows), ZERO_ERR_ARGUMENT, "zero_tensor", "row_numel");
    small_expect_error(z, zero_tensor(z, &sums), ZERO_ERR_ARGUMENT, "zero_tensor", "divisor");
    zero_config resolved;
    zero_query_config(z, &resolved);
    test_check(resolved.micro_steps == 4 && resolved.divisor == 4
                   && resolved.accumulation == ZERO_ACCUMULATE_LOCAL,
               "4 virtual ranks on 1 rank: %d micro-steps, divisor %d", resolved.micro_steps,
               resolved.divisor);
    zero_destroy(z);
    z = small_build(&cfg);
    small_expect_error(z, zero_pass_begin(z, ZERO_TRAIN, 0, 2), ZERO_ERR_ARGUMENT,
                       "zero_pass_begin", "micro_steps is 2, but each of the 1 ranks has 4");
    small_expect_error(z, zero_pass_begin(z, ZERO_TRAIN, ZERO_TOGETHER, 4), ZERO_ERR_ARGUMENT,
                       "zero_pass_begin", "begin a pass for each");
    zero_destroy(z);
    (void)group;
}

int main(void) {
    enum { CASES = sizeof virtual_cases / sizeof *virtual_cases };
    (void)alarm(600);
    virtual_refusals();
    for (int nranks = 1, levels = 3; nranks <= 8; nranks *= 2, levels--)
        virtual_plan(nranks, levels);
    for (int stage = 0; stage < 4; stage++)
        for (int i = 0; i < 4; i++) {
            const virtual_case *c = &virtual_cases[(stage * 4 + i) % 9];
            virtual_tree(8, virtual_ranks_of[0][1 + i], stage, c);
            virtual_tree(12, virtual_ranks_of[1][1 + i], stage, c);
        }
    virtual_differs();
    for (int i = 0; i < CASES; i++) virtual_hashes(&virtual_cases[i], i);
    return test_summary();
}

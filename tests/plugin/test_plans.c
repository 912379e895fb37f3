/* test_plans.c - what zero_query_plan returns before a build is what the build allocates, at every
   stage and number of ranks, and it follows the header's table of stages. The plan of units that a
   setting concerns: used again, small enough to stay whole, with second shards. */
#include "small.h"

/* Units that forward uses once more than backward are gathered a third time; 0 uses are one. */
static void plans_again(void) {
    zero_config cfg = {
        .stage = 3, .prefetch = ZERO_NONE, .parameter_tier = ZERO_FILE, .folder = "/tmp"};
    const zero_tensor_desc tiles = {"tiles", 100, 8, .uses = 1, .flags = ZERO_AGAIN};
    const zero_tensor_desc blocks = {"blocks", 100, 8, .unit = 8, .uses = 1};
    const zero_tensor_desc unsaid = {"unsaid", 100, 8, .unit = 16, .flags = ZERO_AGAIN};
    zero_ctx *z = small_create(&cfg);
    zero_plan_unit tile = {0}, block = {0}, other = {0};
    test_check(!zero_tensor(z, &tiles) && !zero_tensor(z, &blocks) && !zero_tensor(z, &unsaid)
                   && !zero_query_plan_unit(z, 3, &tile) && !zero_query_plan_unit(z, 11, &block)
                   && !zero_query_plan_unit(z, 19, &other) && tile.gathers == 3
                   && block.gathers == 2 && other.gathers == 3,
               "gathers of a unit that is used again: %d, of others %d, without uses %d",
               tile.gathers, block.gathers, other.gathers);
    zero_destroy(z);
}

/* A unit stays whole where the largest of its tensors is small enough. */
static void plans_persistence_rank(test_rank *r) {
    const zero_tensor_desc two[] = {{"wide", 100, 2, .uses = 1}, {"slim", 40, 2, .uses = 1}};
    const zero_comm comm = test_comm(r);
    for (int limit = 99; limit <= 100; limit++) {
        zero_config cfg = {
            .stage = 3, .persistence_numel = limit, .no_mapping = 1, .log = test_quiet};
        zero_ctx *z = NULL;
        zero_plan_unit unit = {0};
        if (zero_create(&z, &cfg, &comm) || zero_tensors(z, two, 2)
            || zero_query_plan_unit(z, 1, &unit) || unit.unsharded != (limit == 100))
            test_rank_fail(r, "persistence_numel %d: unsharded %d %s", limit, unit.unsharded,
                           zero_last_error(z));
        zero_destroy(z);
    }
}

/* Blocks take turns in buffers, and have second shards; the embedding has a buffer of its own. */
static void plans_second_rank(test_rank *r) {
    zero_config cfg = {.stage = 3, .second_ranks = 2, .no_mapping = 1, .log = test_quiet};
    const zero_tensor_desc embedding = {"embedding", 1 << 20, 1, .uses = 1},
                           blocks = {"blocks", 1 << 10, 8, .unit = 1, .uses = 1};
    const zero_comm comm = test_comm(r);
    zero_ctx *z = NULL;
    zero_plan plan = {0};
    if (zero_create(&z, &cfg, &comm) || zero_tensor(z, &embedding) || zero_tensor(z, &blocks)
        || zero_query_plan(z, &plan) || plan.second_bytes != 8 * (1 << 10) / 2 * sizeof(float))
        test_rank_fail(r, "%zu bytes of second shards: %s", plan.second_bytes, zero_last_error(z));
    zero_destroy(z);
}

/* Shared buffers: two for gradients where units are reduced alone, one more where a bucket holds
   several or gathers share the link, and three for parameters that are gathered. */
static void plans_buffers_rank(test_rank *r) {
    enum { BLOCK = 1 << 10 };
    static const struct {
        int stage, copied, small, bucket, buffers;
    } all[] = {{1, 0, 0, 0, 0},         {2, 0, 0, 0, 2}, {2, 0, BLOCK / 4, 0, 3},
               {2, 0, 0, 2 * BLOCK, 4}, {3, 0, 0, 0, 2}, {3, 1, 0, 0, 6}};
    const zero_tensor_desc blocks = {"blocks", BLOCK, 8, .uses = 1};
    const zero_comm comm = test_comm(r);
    size_t none = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const zero_tensor_desc small = {"small", (size_t)all[i].small, 2, .unit = 8, .uses = 1};
        zero_config cfg = {.stage = all[i].stage,
                           .no_mapping = all[i].copied,
                           .bucket_numel = (size_t)all[i].bucket,
                           .log = test_quiet};
        zero_ctx *z = NULL;
        zero_plan plan = {0};
        if (zero_create(&z, &cfg, &comm) || zero_tensor(z, &blocks)
            || (all[i].small && zero_tensor(z, &small)) || zero_query_plan(z, &plan))
            test_rank_fail(r, "buffers %zu: %s", i, zero_last_error(z));
        if (i == 0) none = plan.buffer_bytes;
        if (plan.buffer_bytes - none != (size_t)all[i].buffers * BLOCK * sizeof(float))
            test_rank_fail(r, "case %zu: %zu bytes of buffers, expected %d of a block", i,
                           plan.buffer_bytes - none, all[i].buffers);
        zero_destroy(z);
    }
}

static int plans_same_plan(const zero_plan *a, const zero_plan *b) {
    return !memcmp(a, b, sizeof *a);
}

static size_t plans_share(size_t p, int n) { return (p + (size_t)n - 1) / (size_t)n; }

/* The stage table of the header. */
static size_t plans_formula(int stage, size_t numel, int n) {
    const size_t p = 4 * numel, share = 4 * plans_share(numel, n);
    if (stage == 0) return 4 * p;
    if (stage == 1) return 2 * p + 2 * share;
    if (stage == 2) return p + 3 * share;
    return 4 * share;
}

static void plans_rank(test_rank *r) {
    const zero_config *cfg = (const zero_config *)r->arg;
    zero_ctx *z = NULL;
    zero_plan before, after;
    zero_plan_unit unit, first; /* cleared: their padding is compared too */
    zero_stats stats;
    zero_comm comm = test_comm(r);
    size_t numel = 0, padded = 0, sent = 0;
    memset(&unit, 0, sizeof unit);
    memset(&first, 0, sizeof first);
    if (zero_create(&z, cfg, &comm))
        test_rank_fail(r, "%s", zero_last_error(z));
    else {
        small_announce(z);
        if (zero_query_plan(z, &before) || zero_query_plan_unit(z, 1, &first) || zero_build(z)
            || zero_query_plan(z, &after) || zero_query_stats(z, &stats))
            test_rank_fail(r, "%s", zero_last_error(z));
    }
    for (int u = 0; u < 4 && !r->failed; u++) {
        if (zero_query_plan_unit(z, u, &unit)) test_rank_fail(r, "%s", zero_last_error(z));
        if (u == 1 && memcmp(&unit, &first, sizeof unit))
            test_rank_fail(r, "unit 1 is planned otherwise after build");
        numel += unit.numel;
        padded += unit.padded;
        sent += unit.sent_bytes;
    }
    if (!r->failed
        && (!plans_same_plan(&before, &after) || numel != before.numel
            || padded != before.padded_numel || sent != before.sent_bytes || numel != 250
            || before.units != 4))
        test_rank_fail(r, "the plan before build is not the one after");
    if (!r->failed
        && (stats.param_bytes != before.param_bytes || stats.grad_bytes != before.grad_bytes
            || stats.optimizer_bytes != before.optimizer_bytes
            || stats.buffer_bytes != before.buffer_bytes))
        test_rank_fail(r, "what was allocated is not what was planned");
    if (!r->failed && before.formula_bytes != plans_formula(cfg->stage, 250, r->nranks))
        test_rank_fail(r, "formula of stage %d: %zu", cfg->stage, before.formula_bytes);
    zero_destroy(z);
}

static void plans_of_stages(void) {
    for (int stage = 0; stage < 4; stage++)
        for (int nranks = 1; nranks <= 5; nranks++)
            for (int k = 0; k < 6; k++) {
                zero_config cfg = {.stage = stage,
                                   .micro_steps = 1 + k % 3,
                                   .no_mapping = k & 1,
                                   .log = test_quiet};
                cfg.accumulation = (zero_accumulation)(k % 3);
                cfg.persistence_numel = k == 5 ? ZERO_NONE : 0;
                test_check(test_ranks(nranks, 0, plans_rank, &cfg),
                           "plan of stage %d, %d ranks, %d: %s", stage, nranks, k, test_first);
            }
}

/* Norms as units of their own, between the blocks, do not make every block lie alone. */
static void plans_alternating(void) {
    for (int stage = 2; stage < 4; stage++)
        for (int prefetch = 1; prefetch < 40; prefetch += 19) {
            zero_config cfg = {.stage = stage, .prefetch = prefetch};
            zero_plan plan;
            memset(&plan, 0, sizeof plan);
            zero_ctx *z = small_create(&cfg);
            for (int u = 0; u < 25; u++) {
                char name[16];
                const zero_tensor_desc d = {name, u % 2 ? 1000000 : 1000, 1, .unit = u, .uses = 1};
                snprintf(name, sizeof name, "t%d", u);
                test_check(zero_tensor(z, &d) == ZERO_OK, "a tensor");
            }
            test_check(zero_query_plan(z, &plan) == ZERO_OK && plan.buffer_bytes < 4 * 3300000,
                       "buffers of %zu bytes for blocks of 4 MB, stage %d, prefetch %d",
                       plan.buffer_bytes, stage, prefetch);
            zero_destroy(z);
        }
}

int main(void) {
    (void)alarm(300); /* a rank that never returns is a failure */
    plans_again();
    test_check(test_ranks(2, 0, plans_persistence_rank, NULL), "a tensor of 100: %s", test_first);
    test_check(test_ranks(4, 0, plans_second_rank, NULL), "second shards: %s", test_first);
    test_check(test_ranks(2, 0, plans_buffers_rank, NULL), "buffers: %s", test_first);
    plans_of_stages();
    plans_alternating();
    return test_summary();
}

/* test_suggest.c - zero_suggest chooses what an exhaustive list, written here, finds the fastest:
   for tables of tensors, rates, and limits of memory from plenty to barely. The choice is built,
   and has the memory that was promised. A larger limit never makes a step slower. All ranks choose
   alike, also with different limits. What does not fit is refused, with the least limit that would.
 */
#include "small.h"

#include <math.h>

enum { SUGGEST_MOST = 256, SUGGEST_NONE = -1 };

typedef struct suggest_table {
    const char *name;
    int n;
    zero_tensor_desc row[4];
    zero_config cfg;
    double moved; /* bytes of an element that an update moves: 2 state + gradient + 2 parameter */
} suggest_table;

static const suggest_table suggest_tables[] = {
    {"tied",
     3,
     {{"wte", 3000, 1, .uses = 2},
      {"w", 700, 6, .unit = 1, .field = 8},
      {"b", 40, 6, .unit = 1, .flags = ZERO_ONE_D, .field = 16}},
     {0},
     28},
    {"blocks", 1, {{"w", 5000, 12, .unit = 0}}, {.no_mapping = 1}, 28},
    {"uneven, several micro-steps",
     2,
     {{"w", 300, 9, .unit = 0}, {"wide", 20000, 2, .unit = 9, .field = 8}},
     {.micro_steps = 3, .no_mapping = 1, .grads = ZERO_GRAD_F32},
     28},
    {"kept and bf16",
     2,
     {{"w", 4000, 5, .unit = 0}, {"keep", 900, 1, .flags = ZERO_KEEP, .field = 8}},
     {.type = ZERO_BF16, .no_mapping = 1, .optimizer = ZERO_SGD},
     2 * (4 + 2) + 2 + 4},
    {"overwritten, not for local accumulation",
     1,
     {{"w", 2500, 8, .flags = ZERO_OVERWRITTEN}},
     {.micro_steps = 2, .no_overlap = 1, .no_mapping = 1},
     28},
};

/* Rates: nothing is known; all hidden; fast files; slow files and links. */
static const zero_limits suggest_rates[] = {
    {0},
    {.compute_s = 1},
    {.compute_s = 1e-4, .send_gbs = 0.5, .file_gbs = 50, .update_gbs = 2},
    {.compute_s = 1e-4, .send_gbs = 0.1, .file_gbs = 0.2},
};

typedef struct suggest_way {
    zero_config cfg;
    double needed, seconds;
} suggest_way;

typedef struct suggest_case {
    const suggest_table *table;
    zero_limits rates;
    const char *folder;
} suggest_case;

static size_t suggest_bytes(const zero_plan *p) {
    return p->param_bytes + p->grad_bytes + p->optimizer_bytes + p->buffer_bytes + p->context_bytes;
}

static double suggest_or(double a, double b) { return 1e9 * (a > 0 ? a : b); }

/* The time of a step, as the header's comment has it. */
static double suggest_seconds(const zero_plan *p, const zero_config *c, const zero_limits *m,
                              double moved) {
    const double share = (double)p->padded_numel / (c->stage ? p->nranks : 1);
    const double send = suggest_or(m->send_gbs, 1), hides = c->no_overlap ? 0 : m->compute_s;
    const double reduced = (double)(p->sent_bytes - p->gather_bytes) / send,
                 gathered = (double)p->gather_bytes / send;
    double seconds = fmax(reduced - hides * 2 / 3, 0);
    if (c->stage == 3 && c->prefetch == ZERO_NONE)
        seconds += gathered;
    else if (reduced + gathered - hides > seconds)
        seconds = reduced + gathered - hides;
    const double update = share * moved / suggest_or(m->update_gbs, 10),
                 file = (double)(p->file_read_bytes + p->file_written_bytes)
                        / suggest_or(m->file_gbs, 1);
    return m->compute_s + seconds + fmax(update, file - hides / 3);
}

static zero_ctx *suggest_create(test_rank *r, const suggest_case *c, const zero_config *cfg) {
    const zero_comm comm = test_comm(r);
    zero_ctx *z = NULL;
    if (zero_create(&z, cfg, &comm)) {
        zero_destroy(z);
        return NULL;
    }
    if (zero_tensors(z, c->table->row, c->table->n)) {
        zero_destroy(z);
        return NULL;
    }
    return z;
}

/* Lists all combinations that a context takes, each in a context of its own. */
static int suggest_list(test_rank *r, const suggest_case *c, suggest_way way[SUGGEST_MOST]) {
    static const int ahead[] = {1, 2, 4, ZERO_NONE};
    int n = 0;
    for (int i = 0; i < 4 * 2 * 2 * 2 * 4; i++) {
        suggest_way *w = &way[n];
        zero_plan p;
        w->cfg = c->table->cfg;
        w->cfg.folder = c->folder;
        w->cfg.stage = i / 32;
        w->cfg.optimizer_tier = i & 16 ? ZERO_FILE : ZERO_DEVICE;
        w->cfg.gradient_tier = i & 8 ? ZERO_FILE : ZERO_DEVICE;
        w->cfg.parameter_tier = i & 4 ? ZERO_FILE : ZERO_DEVICE;
        w->cfg.prefetch = ahead[i & 3];
        if (w->cfg.stage < 3 && (i & 3)) continue;
        zero_ctx *z = suggest_create(r, c, &w->cfg);
        if (!z) continue;
        if (zero_query_plan(z, &p) == ZERO_OK) {
            w->needed = (double)suggest_bytes(&p);
            w->seconds = suggest_seconds(&p, &w->cfg, &c->rates, c->table->moved);
            n++;
        }
        zero_destroy(z);
    }
    return n;
}

static int suggest_fastest(const suggest_way *way, int n, double limit) {
    int best = SUGGEST_NONE;
    for (int i = 0; i < n; i++)
        if ((limit <= 0 || way[i].needed <= limit)
            && (best == SUGGEST_NONE || way[i].seconds < way[best].seconds))
            best = i;
    return best;
}

static int suggest_same(const zero_config *a, const zero_config *b) {
    return a->stage == b->stage && a->optimizer_tier == b->optimizer_tier
           && a->gradient_tier == b->gradient_tier && a->parameter_tier == b->parameter_tier
           && (a->stage < 3 || a->prefetch == b->prefetch);
}

/* Builds the choice in the context, and in another one, and compares memory with the limit. */
static void suggest_build(test_rank *r, const suggest_case *c, zero_ctx *z, const zero_config *cfg,
                          double limit) {
    zero_plan one, other;
    zero_stats stats;
    zero_ctx *again = suggest_create(r, c, cfg);
    if (!again || zero_query_plan(again, &other) || zero_query_plan(z, &one)
        || memcmp(&one, &other, sizeof one))
        test_rank_fail(r, "%s: a context with the suggested settings has another plan",
                       c->table->name);
    zero_destroy(again);
    if (zero_build(z) || zero_query_stats(z, &stats))
        test_rank_fail(r, "%s: %s", c->table->name, zero_last_error(z));
    else if (limit > 0 && (double)stats.allocated_bytes > limit)
        test_rank_fail(r, "%s: %zu bytes are allocated, the limit is %.0f", c->table->name,
                       stats.allocated_bytes, limit);
}

/* Asks with a limit. Returns the choice's place in the list, or SUGGEST_NONE. */
static int suggest_ask(test_rank *r, const suggest_case *c, const suggest_way *way, int n,
                       size_t limit, double least) {
    zero_config given = c->table->cfg, got;
    zero_limits most = c->rates;
    char text[64];
    const int best = suggest_fastest(way, n, (double)limit);
    given.folder = c->folder;
    given.prefetch = 3; /* has no effect */
    most.device_bytes = limit;
    zero_ctx *z = suggest_create(r, c, &given);
    if (!z && given.micro_steps > 1) { /* a table that stage 0 does not take */
        given.stage = 2;
        z = suggest_create(r, c, &given);
    }
    if (!z) return SUGGEST_NONE;
    const zero_result result = zero_suggest(z, &most, &got);
    (void)snprintf(text, sizeof text, "the least that fits is %.0f, at stage ", least);
    if (best == SUGGEST_NONE && (result != ZERO_ERR_MEMORY || !strstr(zero_last_error(z), text)))
        test_rank_fail(r, "%s, %zu bytes: must be refused with \"%s\": %d, %s", c->table->name,
                       limit, text, (int)result, zero_last_error(z));
    if (best != SUGGEST_NONE && (result || !suggest_same(&got, &way[best].cfg)))
        test_rank_fail(r,
                       "%s, %zu bytes: result %d %s, stage %d, tiers %d %d %d, prefetch %d; "
                       "expected stage %d, tiers %d %d %d, prefetch %d",
                       c->table->name, limit, (int)result, zero_last_error(z), got.stage,
                       (int)got.optimizer_tier, (int)got.gradient_tier, (int)got.parameter_tier,
                       got.prefetch, way[best].cfg.stage, (int)way[best].cfg.optimizer_tier,
                       (int)way[best].cfg.gradient_tier, (int)way[best].cfg.parameter_tier,
                       way[best].cfg.prefetch);
    if (!r->failed && best != SUGGEST_NONE) suggest_build(r, c, z, &got, (double)limit);
    if (!r->failed && best == SUGGEST_NONE) { /* the context has its own settings still */
        zero_query_config(z, &got);
        if (got.stage != given.stage || got.prefetch != 3 || zero_build(z))
            test_rank_fail(r, "%s: a refusal changed the context: %s", c->table->name,
                           zero_last_error(z));
    }
    zero_destroy(z);
    return best;
}

static void suggest_rank(test_rank *r) {
    const suggest_case *c = (const suggest_case *)r->arg;
    suggest_way *way = (suggest_way *)malloc(SUGGEST_MOST * sizeof *way);
    const int n = suggest_list(r, c, way);
    double least = HUGE_VAL, before = HUGE_VAL, most = 0;
    for (int i = 0; i < n; i++) {
        least = fmin(least, way[i].needed);
        most = fmax(most, way[i].needed);
    }
    if (n < 4 - 2 * (c->table->row[0].flags & ZERO_OVERWRITTEN ? 1 : 0))
        test_rank_fail(r, "%s: only %d combinations", c->table->name, n);
    if (!r->failed) (void)suggest_ask(r, c, way, n, (size_t)least - 1, least);
    for (int k = 0; k <= 6 && !r->failed; k++) {
        const size_t limit = (size_t)(least + k * (most - least) / 6);
        const int best = suggest_ask(r, c, way, n, limit, least);
        if (r->failed) break;
        if (best == SUGGEST_NONE || way[best].seconds > before)
            test_rank_fail(r, "%s: with %zu bytes a step is slower", c->table->name, limit);
        else
            before = way[best].seconds;
    }
    if (!r->failed) (void)suggest_ask(r, c, way, n, 0, least);
    free(way);
}

/* The ranks have different limits: the least one counts, on all. */
static void suggest_uneven_rank(test_rank *r) {
    const suggest_case *c = (const suggest_case *)r->arg;
    zero_config given = c->table->cfg, got;
    zero_plan plan;
    zero_limits most = {.device_bytes = r->rank == 1 ? 0 : (size_t)1 << 30};
    given.log = test_quiet;
    zero_ctx *z = suggest_create(r, c, &given);
    if (zero_suggest(z, &most, &got) || got.stage != 1 || zero_query_plan(z, &plan))
        test_rank_fail(r, "plenty: stage %d, %s", got.stage, zero_last_error(z));
    zero_destroy(z);
    z = suggest_create(r, c, &given);
    if (r->rank == 1) most.device_bytes = suggest_bytes(&plan) - 1;
    if (zero_suggest(z, &most, NULL) || zero_build(z)) test_rank_fail(r, "%s", zero_last_error(z));
    zero_query_config(z, &got);
    if (got.stage < 2) test_rank_fail(r, "stage %d does not fit rank 1", got.stage);
    zero_destroy(z);
    z = suggest_create(r, c, &given);
    if (r->rank == 1) most.device_bytes = 1;
    if (zero_suggest(z, &most, NULL) != ZERO_ERR_MEMORY
        || (r->rank != 1 && !strstr(zero_last_error(z), "on another rank less"))
        || !strstr(zero_last_error(z), "or set folder"))
        test_rank_fail(r, "rank 1 has 1 byte: %s", zero_last_error(z));
    zero_destroy(z);
}

static int suggest_logged;
static void suggest_count(void *user, zero_log_level level, const char *sentence) {
    (void)user;
    (void)sentence;
    suggest_logged += level == ZERO_LOG_ERROR;
}

/* A suggestion logs no error, unless it is one. */
static void suggest_logs(void) {
    zero_config cfg = {.log = suggest_count};
    const zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
    zero_limits most = {0};
    zero_ctx *z = NULL;
    test_check(zero_create(&z, &cfg, &self) == ZERO_OK, "a context");
    small_announce(z);
    test_check(zero_suggest(z, &most, NULL) == ZERO_OK && suggest_logged == 0
                   && !zero_last_error(z)[0],
               "%d errors were logged by a choice: %s", suggest_logged, zero_last_error(z));
    most.device_bytes = 1;
    test_check(zero_suggest(z, &most, NULL) == ZERO_ERR_MEMORY && suggest_logged == 1,
               "%d errors were logged by a refusal", suggest_logged);
    zero_destroy(z);
}

static void suggest_refusals(void) {
    const char *call = "zero_suggest";
    zero_limits most = {0};
    zero_ctx *z = small_create(NULL);
    test_check(zero_suggest(NULL, &most, NULL) == ZERO_ERR_ARGUMENT, "without a context");
    small_expect_error(z, zero_suggest(z, &most, NULL), ZERO_ERR_STATE, call,
                       "no tensor was announced");
    small_announce(z);
    small_expect_error(z, zero_suggest(z, NULL, NULL), ZERO_ERR_ARGUMENT, call, "limits is NULL");
    most.send_gbs = -1;
    small_expect_error(z, zero_suggest(z, &most, NULL), ZERO_ERR_ARGUMENT, call, "send_gbs is -1");
    most.send_gbs = 0;
    most.compute_s = NAN;
    small_expect_error(z, zero_suggest(z, &most, NULL), ZERO_ERR_ARGUMENT, call, "compute_s is");
    most.compute_s = 0;
    test_check(zero_build(z) == ZERO_OK, "a context is built after refusals");
    small_expect_error(z, zero_suggest(z, &most, NULL), ZERO_ERR_STATE, call, "before zero_build");
    zero_destroy(z);
    const zero_config groups = {.stage = 1, .shard_ranks = 1}, small = {.bucket_numel = 1};
    z = small_create(&groups);
    small_announce(z);
    small_expect_error(z, zero_suggest(z, &most, NULL), ZERO_ERR_ARGUMENT, call, "shard_ranks");
    zero_destroy(z);
    z = small_create(&small);
    small_announce(z);
    small_expect_error(z, zero_suggest(z, &most, NULL), ZERO_ERR_ARGUMENT, call,
                       "allow no plan: zero_suggest, rank 0 of 1: bucket_numel is 1");
    zero_destroy(z);
}

int main(void) {
    suggest_logs();
    suggest_refusals();
    suggest_case c = {&suggest_tables[1], {0}, NULL};
    test_check(test_ranks(3, 0, suggest_uneven_rank, &c), "different limits: %s", test_first);
    for (size_t t = 0; t < sizeof suggest_tables / sizeof *suggest_tables; t++)
        for (size_t m = 0; m < sizeof suggest_rates / sizeof *suggest_rates; m++)
            for (int files = 0; files < 2; files++)
                for (int nranks = 1; nranks <= 4; nranks++) {
                    c.table = &suggest_tables[t];
                    c.rates = suggest_rates[m];
                    c.folder = files ? "/tmp" : NULL;
                    test_check(test_ranks(nranks, 0, suggest_rank, &c), "rates %zu, %d ranks: %s",
                               m, nranks, test_first);
                }
    return test_summary();
}

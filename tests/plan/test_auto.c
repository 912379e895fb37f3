/* test_auto.c - the choice of -z auto: it never exceeds the limits, and no other legal plan is
   predicted to be faster; its flags give the planned bytes; typed flags stay; the search is quick.
   Last line: N passed, N failed. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "tests/shared/harness.h"

#include <float.h>
#include <math.h>
#include <time.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "adapters/plan/auto.h"
#include "adapters/plan/plan_world.h"

enum { CASES = 40, WORDS = 40, LINE = 1024 };

static plan_request *request;
static machine rates;
static auto_result *found;

/* Parses a command line into the request. Ranks are those of -pn. */
static int parse(const char *line, double memory, const machine *m, int on_gpus) {
    static char text[LINE];
    static char *word[WORDS];
    char why[PLAN_SENTENCE] = "", *rest = NULL;
    int n = 1;
    snprintf(text, sizeof text, "%s", line);
    word[0] = text;
    for (char *at = strtok_r(text, " ", &rest); at != NULL && n < WORDS;
         at = strtok_r(NULL, " ", &rest))
        word[n++] = at;
    plan_request *r = request;
    memset(r, 0, sizeof *r);
    train_options_parse(&r->options, n, word);
    if (!test_check(!r->options.error[0], "%s: %s", line, r->options.error)) return 1;
    if (!test_check(
            !plan_model_read(r->options.model, r->options.seq_len, &r->model, why, sizeof why),
            "%s: %s", line, why))
        return 1;
    r->ranks = r->options.ranks > 0 ? r->options.ranks : 1;
    r->on_gpus = on_gpus;
    r->machine = m;
    r->most.device = memory;
    return 0;
}

/* Returns rates of no machine, all different, so that no two plans are equal by chance. */
static machine draw_rates(test_random *r) {
    machine m;
    memset(&m, 0, sizeof m);
    for (int t = 0; t < ZERO_TYPES; t++) {
        m.type[t].flops = 1e9 * (1 + test_below(r, 400));
        m.type[t].attention = m.type[t].flops * 0.01 * (10 + test_below(r, 90));
        m.type[t].vocabulary = m.type[t].flops * 0.01 * (10 + test_below(r, 90));
    }
    m.update = 1e8 * (1 + test_below(r, 300));
    m.link = 1e7 * (1 + test_below(r, 1000));
    m.far = m.link / (1 + test_below(r, 20));
    m.overlap = 0.25 * test_below(r, 5);
    m.host_link = 1e9 * (1 + test_below(r, 50));
    m.host_update = 1e8 * (1 + test_below(r, 300));
    m.disk = 1e7 * (1 + test_below(r, 300));
    m.coding = 1e9 * (1 + test_below(r, 50));
    m.pass = test_below(r, 2) ? 1e9 * (1 + test_below(r, 50)) : 0;
    m.recompute[0] = test_below(r, 2) ? 0.9 + 0.01 * test_below(r, 10) : 0;
    m.recompute[2] = test_below(r, 2) ? 1 + 0.01 * test_below(r, 10) : 0;
    m.recompute[3] = test_below(r, 2) ? 1.1 + 0.01 * test_below(r, 40) : 0;
    return m;
}

/* ---- brute force --------------------------------------------------------------------------- */

typedef struct brute {
    double seconds, least; /* of the fastest plan that fits; the fewest bytes of any plan */
    long plans, fit;
} brute;

static const int all_prefetches[] = {1, 0, 2, 4};

/* Asks for one plan by the planner alone, without the search's tables and short cuts. */
static void brute_one(brute *b, int rows, int batch, const train_options *o) {
    plan_request *r = request;
    const train_options before = r->options;
    char why[PLAN_SENTENCE];
    plan_case c;
    plan_answer a;
    machine_step step;
    const int data = r->ranks;
    r->options = *o;
    r->options.batch = batch;
    r->options.step_tokens = (int64_t)rows * data * o->seq_len;
    const int failed = plan_case_of(r, o->stage.at[0], &c, why, sizeof why)
                       || plan_ask(&c, &a, why, sizeof why)
                       || auto_predict(r->machine, &c, &a, &step, NULL, why, sizeof why);
    r->options = before;
    if (failed) return;
    b->plans++;
    if ((double)a.device_bytes < b->least) b->least = (double)a.device_bytes;
    if (!plan_fits(&a, &r->most)) return;
    b->fit++;
    if (step.all < b->seconds) b->seconds = step.all;
    test_check(auto_least_seconds(r->machine, &c, &a) <= step.all * (1 + 1e-12),
               "a lower bound %.17g above the step %.17g", auto_least_seconds(r->machine, &c, &a),
               step.all);
}

/* Visits the runs of a context: each divisor of the windows, each -r, both -mo, each -mog. */
static void brute_runs(brute *b, int rows, const train_options *o) {
    const int orders = o->stage.at[0] >= 2 ? 2 : 1;
    for (int batch = 1; batch <= rows; batch++)
        for (int i = 0; i < 5 * orders && rows % batch == 0; i++) {
            train_options run = *o;
            run.recompute = i % 5;
            run.layer_order = i / 5;
            if (run.layer_order && batch == rows) continue;
            brute_one(b, rows, batch, &run);
            run.layer_group = request->model.gpt2.layers; /* at most 4 */
            if (run.layer_order && run.recompute >= 3) brute_one(b, rows, batch, &run);
        }
}

/* Visits groups and prefetch of a stage with tiers. */
static void brute_groups(brute *b, int rows, train_options o, int node, int prefetches) {
    const int stage = o.stage.at[0];
    for (int zs = 0; zs < 1 + (node && stage >= 1); zs++)
        for (int zh = 0; zh < 1 + (node && stage == 3 && !zs); zh++)
            for (int p = 0; p < (stage == 3 ? prefetches : 1); p++) {
                o.shard_ranks = zs * node;
                o.second_ranks = zh * node;
                if (stage == 3) o.prefetch = all_prefetches[p];
                brute_runs(b, rows, &o);
            }
}

static int brute_allows(const train_options *o, int stage, int local, int on_gpus) {
    const int s = o->optimizer_tier, g = o->gradient_tier, p = o->parameter_tier;
    if (!on_gpus && (s == ZERO_HOST || g == ZERO_HOST || p == ZERO_HOST)) return 0;
    if (s == ZERO_DEVICE) return g == ZERO_DEVICE && p == ZERO_DEVICE;
    if (g != ZERO_DEVICE && (stage < 2 || local)) return 0;
    if (g == ZERO_FILE && s != ZERO_FILE) return 0;
    return p == ZERO_DEVICE || (stage == 3 && p == s);
}

static brute brute_all(int rows, int node, int prefetches) {
    brute b = {DBL_MAX, DBL_MAX, 0, 0};
    train_options o = request->options;
    o.stage.n = 1;
    for (int i = 0; i < 4 * 2 * 27; i++) {
        const int stage = i % 4, local = i / 4 % 2, tiers = i / 8;
        o.stage.at[0] = stage;
        o.accumulation = local ? ZERO_ACCUMULATE_LOCAL : ZERO_ACCUMULATE_AUTO;
        o.optimizer_tier = tiers % 3;
        o.gradient_tier = tiers / 3 % 3;
        o.parameter_tier = tiers / 9;
        if ((local && (stage < 2 || rows == 1))
            || !brute_allows(&o, stage, local, request->on_gpus))
            continue;
        brute_groups(&b, rows, o, node, prefetches);
    }
    return b;
}

/* ---- the choice ---------------------------------------------------------------------------- */

static const struct {
    const char *line;
    int on_gpus, node, rows, prefetches;
} lines[] = {{"-z auto -e char:2x64x2 -pn 2 -d 1024", 0, 0, 8, 2},
             {"-z auto -e char:2x64x2 -pn 1 -d 768", 0, 0, 12, 2},
             {"-z auto -e char:3x64x2 -pn 4 -pg 2 -ns 2 -d 1536", 0, 2, 6, 4},
             {"-z auto -e char:3x64x2 -pn 4 -ns 2 -d 512", 0, 2, 2, 2},
             {"-z auto -e char:2x64x2 -pn 4 -ns 2 -d 1024 -dt bf16", 1, 2, 4, 4},
             {"-z auto -e char:2x64x2 -pn 1 -d 256 -dt bf16", 1, 0, 4, 4}};
enum { LINES = sizeof lines / sizeof *lines };

/* The flags of a choice, as arguments, give the bytes and the time that the search found. */
static void check_flags(const char *line, const auto_plan *best) {
    char flags[AUTO_FLAGS], repeat[LINE], why[PLAN_SENTENCE] = "", *at;
    plan_case c;
    plan_answer a;
    machine_step step;
    const double memory = request->most.device;
    const int on_gpus = request->on_gpus;
    auto_flags(request, &best->choice, flags);
    snprintf(repeat, sizeof repeat, "%s", line);
    at = strstr(repeat, "-z auto");
    memset(at, ' ', strlen("-z auto"));
    snprintf(repeat + strlen(repeat), sizeof repeat - strlen(repeat), " %s", flags);
    if (parse(repeat, memory, &rates, on_gpus)) return;
    int failed = plan_case_of(request, request->options.stage.at[0], &c, why, sizeof why)
                 || plan_ask(&c, &a, why, sizeof why)
                 || auto_predict(&rates, &c, &a, &step, NULL, why, sizeof why);
    if (!test_check(!failed, "%s: %s", repeat, why)) return;
    test_check(a.device_bytes == best->device_bytes && a.host_bytes == best->host_bytes
                   && a.file_bytes == best->file_bytes,
               "%s: bytes %llu, the search has %llu", repeat, (unsigned long long)a.device_bytes,
               (unsigned long long)best->device_bytes);
    test_check(a.zero.sent_bytes + a.among == best->sent_bytes
                   && a.zero.file_read_bytes + a.zero.file_written_bytes == best->moved_bytes,
               "%s: traffic", repeat);
    test_check(step.all == best->step.all, "%s: %.17g s, the search has %.17g", repeat, step.all,
               best->step.all);
}

/* Compares with brute force at a limit between too little and plenty. */
static void check_case(int i, test_random *random) {
    char why[PLAN_SENTENCE] = "";
    const int k = i % LINES;
    rates = draw_rates(random);
    rates.on_gpus = lines[k].on_gpus;
    if (lines[k].prefetches == 4 && !lines[k].on_gpus && rates.overlap <= 0) rates.overlap = 0.5;
    if (parse(lines[k].line, 0, &rates, lines[k].on_gpus)) return;
    const brute open = brute_all(lines[k].rows, lines[k].node, lines[k].prefetches);
    request->most.device = open.least * (0.95 + 0.05 * test_below(random, 30));
    const brute b = brute_all(lines[k].rows, lines[k].node, lines[k].prefetches);
    const int failed = auto_search(request, found, why, sizeof why);
    if (!test_check(!failed, "%s: %s", lines[k].line, why)) return;
    test_check((found->fitting > 0) == (b.fit > 0), "%s: %d families fit, and %ld plans",
               lines[k].line, found->fitting, b.fit);
    if (found->fitting == 0 || b.fit == 0) return;
    const auto_plan *best = &found->family[0].best;
    test_check((double)best->device_bytes <= request->most.device, "%s: %llu bytes of %.0f",
               lines[k].line, (unsigned long long)best->device_bytes, request->most.device);
    test_check(best->step.all == b.seconds,
               "case %d: %s: the choice takes %.17g s, the fastest of %ld plans %.17g", i,
               lines[k].line, best->step.all, b.fit, b.seconds);
    for (int f = 1; f < found->families; f++)
        test_check(found->family[f].fits <= found->family[f - 1].fits
                       && (!found->family[f].fits
                           || found->family[f].best.step.all >= found->family[f - 1].best.step.all),
                   "families in order");
    check_flags(lines[k].line, best);
}

/* More memory is never slower, and a limit of nothing has no choice but a reason. */
static void check_limits(void) {
    char why[PLAN_SENTENCE] = "", text[AUTO_TABLE];
    double before = DBL_MAX;
    test_random random = {7};
    rates = draw_rates(&random);
    if (parse("-z auto -e d12 -t 64 -pn 2 -d 1024", 1, &rates, 0)) return;
    test_check(!auto_search(request, found, why, sizeof why) && found->fitting == 0, "1 byte");
    auto_print_table(request, found, "./t", "", text, sizeof text);
    test_check(strstr(text, "does not fit: at least") && strstr(text, "no plan can be chosen"),
               "the table of nothing: %s", text);
    for (double memory = 256e6; memory < 4e9; memory *= 1.4) {
        request->most.device = memory;
        test_check(!auto_search(request, found, why, sizeof why), "%s", why);
        if (found->fitting == 0) continue;
        const auto_plan *best = &found->family[0].best;
        test_check((double)best->device_bytes <= memory, "above memory");
        test_check(best->step.all <= before, "more memory: %g s after %g", best->step.all, before);
        before = best->step.all;
    }
    test_check(before < DBL_MAX, "4 GB are enough");
    auto_print_table(request, found, "./t", "-e d12", text, sizeof text);
    test_check(strstr(text, "\nchoice ") && strstr(text, "\nrunner-up ")
                   && strstr(text, "\nrepeat: ./t -e d12 -z "),
               "the table: %s", text);
}

/* A typed flag, or one of a DeepSpeed file, stays as it is. */
static void check_typed(void) {
    char why[PLAN_SENTENCE] = "", flags[AUTO_FLAGS];
    test_random random = {8};
    rates = draw_rates(&random);
    if (parse("-z auto -e char:2x64x2 -pn 2 -b 2 -r 3 -zos file -za sharded -d 1024", 0, &rates, 0))
        return;
    if (!test_check(!auto_search(request, found, why, sizeof why), "%s", why)) return;
    for (int f = 0; f < found->families; f++) {
        const auto_choice *c = &found->family[f].best.choice;
        test_check(c->batch == 2 && c->recompute == 3 && c->optimizer == ZERO_FILE
                       && c->accumulation == ZERO_ACCUMULATE_SHARDED && c->micro_steps == 4
                       && !found->family[f].lossy && c->state_type == ZERO_STATE_F32,
                   "typed flags");
    }
    auto_flags(request, &found->family[0].best.choice, flags);
    test_check(strncmp(flags, "-z ", 3) == 0 && !strstr(flags, "-b ") && !strstr(flags, "-r ")
                   && !strstr(flags, "-zos") && !strstr(flags, "-d "),
               "flags: %s", flags);
    train_options o = request->options;
    test_check(!auto_set_flags(&o, flags, why, sizeof why) && o.stage.n == 1, "%s", why);
    o = request->options;
    test_check(auto_set_flags(&o, "-z 1 -b 4", why, sizeof why) && strstr(why, "-b 2")
                   && strstr(why, "-b 4"),
               "another typed value: %s", why);
    o = request->options;
    test_check(auto_set_flags(&o, "-z 1 -nonsense 4", why, sizeof why) && strstr(why, "damaged"),
               "a damaged choice: %s", why);
    request->machine = NULL;
    test_check(auto_search(request, found, why, sizeof why) && strstr(why, "--machine"),
               "no rates: %s", why);
}

static int test_lossy[2]; /* choices without loss, and with it */

/* --allow-lossy chooses only what pays, and nothing without it. */
static void check_lossy(void) {
    char why[PLAN_SENTENCE] = "";
    double exact[2] = {0, 0};
    test_random random = {9};
    rates = draw_rates(&random);
    rates.coding = 1e12;
    for (int slow = 0; slow < 2; slow++)
        for (int lossy = 0; lossy < 2; lossy++) {
            char line[LINE];
            rates.link = 1e11;
            rates.far = slow ? 1e7 : 1e13;
            rates.overlap = 1;
            snprintf(line, sizeof line,
                     "-z auto -e d12 -t 64 -pn 8 -pg 4 -ns 4 -d 8192 -dt bf16 -al %d", lossy);
            if (parse(line, 0, &rates, 1)) return;
            if (!test_check(!auto_search(request, found, why, sizeof why), "%s", why)) return;
            const auto_family *best = &found->family[0];
            if (!lossy) exact[slow] = best->best.step.all;
            test_check(!best->lossy || lossy, "lossy without --allow-lossy");
            test_check(!slow || !lossy || (best->lossy && best->best.choice.gradient_bits),
                       "slow links: quantized messages pay");
            test_check(!best->lossy || best->best.step.all <= AUTO_LOSSY * exact[slow],
                       "a lossy plan saves %g of %g s", best->best.step.all, exact[slow]);
        }
}

/* The rule for --allow-lossy, by brute force: each combination, simple ones first, replaces the
   choice before it if it takes at most AUTO_LOSSY of that time. The search leaves out most of these
   plans.
 */
static void check_lossy_case(int pays) {
    test_random random = {7};
    enum { K = 4 };
    static const int states[] = {ZERO_STATE_F32, ZERO_STATE_BF16, ZERO_STATE_8BIT};
    static const int bits[][2] = {{0, 0}, {0, 4}, {8, 0}, {8, 4}};
    char why[PLAN_SENTENCE] = "", line[LINE];
    rates = draw_rates(&random);
    rates.on_gpus = 1;
    rates.coding = 1e12;
    if (!pays) rates.link = rates.far = rates.update = 1e13;
    snprintf(line, sizeof line, "%s -al 1", lines[K].line);
    if (parse(line, 0, &rates, 1)) return;
    request->most.device = pays ? 405e5 : 1e9;
    double best = DBL_MAX;
    int chosen = 0;
    for (int i = 0; i < 12; i++) {
        train_options *o = &request->options;
        const train_options before = *o;
        o->state_type = states[i % 3];
        o->weight_bits = bits[i / 3][0];
        o->gradient_bits = bits[i / 3][1];
        const brute b = brute_all(lines[K].rows, lines[K].node, lines[K].prefetches);
        *o = before;
        if (b.fit == 0 || (best < DBL_MAX && i > 0 && b.seconds > AUTO_LOSSY * best)) continue;
        best = b.seconds;
        chosen = i;
    }
    if (!test_check(!auto_search(request, found, why, sizeof why), "%s: %s", line, why)) return;
    if (!test_check((found->fitting > 0) == (best < DBL_MAX), "%s: %d families fit", line,
                    found->fitting)
        || found->fitting == 0)
        return;
    const auto_plan *got = &found->family[0].best;
    test_check(got->step.all == best, "%s: the choice takes %.17g s, the rule's %.17g", line,
               got->step.all, best);
    test_check(got->choice.state_type == states[chosen % 3]
                   && got->choice.weight_bits == bits[chosen / 3][0]
                   && got->choice.gradient_bits == bits[chosen / 3][1],
               "%s: combination %d of --allow-lossy", line, chosen);
    test_lossy[chosen > 0]++;
}

/* A large case: 48 blocks on 64 ranks. The clock is the processor's, since others may be busy. */
static void check_time(int lossy) {
    char why[PLAN_SENTENCE] = "";
    machine m;
    struct timespec a, b;
    if (!test_check(!machine_read("adapters/plan/card.txt", &m, why, sizeof why), "%s", why))
        return;
    m.far = 3e9;
    m.host_link = 5e10;
    m.host_update = 1e11;
    m.disk = 4e9;
    m.coding = 1e12;
    if (parse(lossy ? "-z auto -e gpt2:d48 -pn 64 -pg 8 -ns 8 -dt bf16 -d 2097152 -al 1"
                    : "-z auto -e gpt2:d48 -pn 64 -pg 8 -ns 8 -dt bf16 -d 2097152",
              16e9, &m, 1))
        return;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &a);
    test_check(!auto_search(request, found, why, sizeof why), "%s", why);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &b);
    const double took = (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
    test_check(found->fitting > 0 && found->legal > 5000, "%lld plans", (long long)found->legal);
    test_check(took < 1 + 2 * lossy, "d48 on 64 ranks, lossy %d: searched in %.2f s", lossy, took);
    test_check(found->contexts < 1100 + 2600 * lossy, "d48 on 64 ranks, lossy %d: %lld contexts",
               lossy, (long long)found->contexts);
    printf("d48 on 64 ranks, lossy %d: %lld plans, %lld contexts, %lld simulated, %.2f s\n", lossy,
           (long long)found->legal, (long long)found->contexts, (long long)found->simulations,
           took);
}

/* ---- flags --------------------------------------------------------------------------------- */

static void check_options(void) {
    static const struct {
        const char *text;
        double bytes;
    } sizes[] = {{"80G", 80.0 * (1 << 30)},
                 {"640M", 640.0 * (1 << 20)},
                 {"80GB", 80e9},
                 {"1.5GiB", 1.5 * (1 << 30)},
                 {"4096", 4096},
                 {"", -1},
                 {"G", -1},
                 {"-1G", -1},
                 {"0", -1},
                 {"4X", -1},
                 {"0x10G", -1},
                 {"nan", -1},
                 {"4Gx", -1}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        double got = 0;
        const int failed = options_size(sizes[i].text, &got);
        test_check(failed == (sizes[i].bytes < 0) && (failed || got == sizes[i].bytes),
                   "size '%s': %g", sizes[i].text, got);
    }
    static const char *const wrong[] = {"-z auto,1", "-z 1,auto", "-z autos", "-z auto,auto"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        char text[32], *word[] = {text, text, strchr(strcpy(text, wrong[i]), ' ') + 1};
        text[2] = 0;
        train_options o;
        train_options_parse(&o, 3, word);
        test_check(o.error[0] != 0, "%s is refused", wrong[i]);
    }
}

int main(void) {
    request = (plan_request *)calloc(1, sizeof *request);
    found = (auto_result *)calloc(1, sizeof *found);
    if (request == NULL || found == NULL) return 1;
#ifdef _OPENMP
    omp_set_num_threads(1); /* scratch memory is by threads */
#endif
    for (int i = 0; i < CASES; i++) {
        test_random random = {(uint64_t)i * 1000 + 1};
        if (test_sampled(5)) check_case(i, &random);
    }
    check_limits();
    check_typed();
    check_lossy();
    check_lossy_case(0);
    check_lossy_case(1);
    test_check(test_lossy[0] && test_lossy[1], "choices without and with loss: %d, %d",
               test_lossy[0], test_lossy[1]);
    check_time(0);
    check_time(1);
    check_options();
    free(found);
    free(request);
    return test_summary();
}

/* test_group.c - ranks find at the next verdict that their steps differ, and no rank can write
   another rank's only copy of its parameters. A rank that may open no more files reports the
   system's error, and so do its peers. */
#include "../shared/harness.h"

#include <math.h>

#include <signal.h>
#include <sys/resource.h>

enum { LAYERS = 3, WIDTH = 96, RANKS = 3 };

typedef struct group_host {
    float *w;
} group_host;

static int group_open_rule(test_rank *r, zero_ctx **z, int stage, zero_optimizer rule) {
    const zero_tensor_desc d = {"w", WIDTH, .layers = LAYERS};
    const zero_comm comm = test_comm(r);
    zero_config cfg = {0};
    cfg.stage = stage;
    cfg.threads = 1;
    cfg.optimizer = rule;
    cfg.timeout_s = 20;
    return !zero_create(z, &cfg, &comm) && !zero_tensor(*z, &d) && !zero_build(*z);
}

static int group_open(test_rank *r, zero_ctx **z, int stage) {
    return group_open_rule(r, z, stage, ZERO_ADAMW);
}

/* A pass and its reduction; the gradients are ones. */
static zero_result group_reduce(zero_ctx *z) {
    group_host p = {NULL}, g = {NULL};
    ZERO_TRY(zero_pass_begin(z, ZERO_TRAIN, 0, 1));
    for (int u = 0; u < LAYERS; u++) {
        ZERO_TRY(zero_forward_begin(z, u, &p));
        ZERO_TRY(zero_forward_end(z, u));
    }
    for (int u = LAYERS - 1; u >= 0; u--) {
        ZERO_TRY(zero_backward_begin(z, u, &p, &g));
        for (int i = 0; i < WIDTH; i++) g.w[u * WIDTH + i] += 1;
        ZERO_TRY(zero_backward_end(z, u));
    }
    ZERO_TRY(zero_pass_end(z));
    return zero_reduce(z);
}

/* ---- steps that differ ---- */

typedef struct group_difference {
    int stage;
    const char *what, *values;                          /* that the sentence must have */
    float own[6];                                       /* the last rank's, where it is not 0 */
    int skips;                                          /* the last rank drops the step */
    int64_t steps;                                      /* the last rank's counter, if not 0 */
    enum { ASKS_RESULT, ASKS_NORM, ASKS_NOTHING } asks; /* of the steps that follow, all alike */
} group_difference;

static zero_result group_step(zero_ctx *z, const group_difference *d, int odd) {
    float h[6] = {0.5f, 0.25f, 0.125f, 1e-8f, 0.0625f, 8};
    zero_step_report report;
    ZERO_TRY(group_reduce(z));
    for (int i = 0; i < 6 && odd; i++) h[i] = d->own[i] != 0 ? d->own[i] : h[i];
    const zero_hyper hyper = {h[0], h[1], h[2], h[3], h[4], h[5]};
    ZERO_TRY(odd && d->skips ? zero_skip_step(z) : zero_step(z, &hyper));
    return zero_step_result(z, &report);
}

static void group_differs_rank(test_rank *r) {
    group_difference *d = (group_difference *)r->arg;
    const int odd = r->rank == RANKS - 1;
    zero_ctx *z = NULL;
    zero_counters counters;
    zero_step_report report;
    const zero_hyper same = {0.5f, 0.25f, 0.125f, 1e-8f, 0.0625f, 8};
    double norm;
    if (!group_open(r, &z, d->stage)) test_rank_fail(r, "opens: %s", zero_last_error(z));
    zero_result e = r->failed ? ZERO_OK : zero_state_begin(z);
    zero_state_counters(z, &counters);
    if (odd) counters.steps += d->steps;
    if (!e) e = zero_state_set_counters(z, &counters);
    if (!e) e = zero_state_end(z, 1);
    if (!e && !d->steps) e = group_step(z, d, odd);
    if (e) test_rank_fail(r, "the step that differs: %s", zero_last_error(z));
    if (!e) e = group_reduce(z);
    if (!e) e = zero_step(z, &same);
    if (!e && d->asks == ASKS_RESULT) e = zero_step_result(z, &report);
    if (!e) e = group_reduce(z);
    if (!e) e = d->asks == ASKS_NORM ? zero_norm(z, &norm) : zero_step(z, &same);
    if (!r->failed
        && (e != ZERO_ERR_MISMATCH || !strstr(zero_last_error(z), d->what)
            || !strstr(zero_last_error(z), d->values)))
        test_rank_fail(r, "result %d: %s", (int)e, zero_last_error(z));
    if (!r->failed && zero_pass_begin(z, ZERO_EVAL, 0, 1) != ZERO_ERR_MISMATCH)
        test_rank_fail(r, "the context goes on");
    zero_destroy(z);
}

static void group_differences(void) {
    static const group_difference cases[] = {
        {.what = "lr", .values = "0.5 on rank 0, 0.75 on rank 2", .own = {0.75f}},
        {.what = "beta1", .values = "0.25 on rank 0, 0.5 on rank 2", .own = {0, 0.5f}},
        {.what = "beta2", .values = "0.125 on rank 0, 0.5 on rank 2", .own = {0, 0, 0.5f}},
        {.what = "eps", .values = "on rank 0, 0.5 on rank 2", .own = {0, 0, 0, 0.5f}},
        {.what = "weight_decay", .values = "0.0625 on rank 0, 1 on", .own = {0, 0, 0, 0, 1}},
        {.what = "max_norm", .values = "8 on rank 0, 4 on rank 2", .own = {0, 0, 0, 0, 0, 4}},
        {.what = "zero_step", .values = "rank 2 zero_skip_step", .skips = 1},
        {.what = "steps", .values = "0 on rank 0, 7 on rank 2", .steps = 7}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int k = 0; k < 12; k++) {
            group_difference d = cases[i];
            const double start = test_now();
            const int stage = d.stage = k / 3;
            d.asks = k % 3;
            test_check(test_ranks(RANKS, 0, group_differs_rank, &d), "stage %d, %s, asks %d: %s",
                       stage, d.what, (int)d.asks, test_first);
            test_check(test_now() - start < 10, "stage %d, %s: takes %g s", stage, d.what,
                       test_now() - start);
        }
}

/* ---- settings that differ ---- */

/* The texts of both settings differ in the highest bytes of 64-bit words, for all of 81 pairs. */
static void group_settings_rank(test_rank *r) {
    const zero_tensor_desc d = {"w", WIDTH, .layers = LAYERS};
    const zero_comm comm = test_comm(r);
    zero_ctx *z = NULL;
    zero_config cfg = {0};
    const int i = *(const int *)r->arg;
    cfg.seed = r->rank ? (uint64_t)(121 + i % 9) : 120;
    cfg.bucket_numel = r->rank ? (size_t)(1000000 + 10000 * (i / 9)) : 1090000;
    cfg.timeout_s = 20;
    if (zero_create(&z, &cfg, &comm) || zero_tensor(z, &d) || zero_build(z) != ZERO_ERR_MISMATCH
        || !strstr(zero_last_error(z), "seed 120"))
        test_rank_fail(r, "pair %d: \"%s\"", i, zero_last_error(z));
    zero_destroy(z);
}
static void group_settings(void) {
    for (int i = 0; i < 81; i++)
        test_check(test_ranks(2, 0, group_settings_rank, &i), "settings: %s", test_first);
}

/* ---- one copy of all ranks ---- */

/* Rank 0 writes to what a hook hands out: it faults, or at stages where the copy is its own, not.
 */
static void group_writes_rank(test_rank *r) {
    group_host p = {NULL};
    zero_ctx *z = NULL;
    if (!group_open(r, &z, *(const int *)r->arg) || zero_pass_begin(z, ZERO_EVAL, 0, 1)
        || zero_forward_begin(z, 1, &p)) {
        test_rank_fail(r, "%s", zero_last_error(z));
        return;
    }
    if (r->rank == 0) ((volatile float *)p.w)[WIDTH + 1] += 1;
    (void)zero_forward_end(z, 1);
    (void)zero_pass_end(z);
    zero_destroy(z);
}

static void group_writes(void) {
    for (int stage = 2; stage < 4; stage++)
        for (int threads = 0; threads < 2; threads++) {
            int status = 0;
            fflush(NULL);
            const pid_t child = fork();
            if (child == 0) {
                if (threads)
                    (void)test_ranks(2, 0, group_writes_rank, &stage);
                else
                    _exit(test_processes(2, 0, group_writes_rank, &stage, 20) ? 0 : 77);
                _exit(0);
            }
            (void)waitpid(child, &status, 0);
            const int faults = threads ? WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV
                                       : WIFEXITED(status) && WEXITSTATUS(status) == 77;
            test_check(stage < 3 ? WIFEXITED(status) && !WEXITSTATUS(status) : faults,
                       "stage %d, ranks are %s: status %x", stage,
                       threads ? "threads" : "processes", (unsigned)status);
        }
}

/* ---- files and ranges ---- */

/* Rank 1 may open no more files: both ranks report the system's error. */
static void group_no_files_rank(test_rank *r) {
    const int next = dup(0);
    struct rlimit limit;
    zero_ctx *z = NULL;
    const zero_comm comm = test_comm(r);
    const zero_config cfg = {.timeout_s = 20};
    (void)close(next);
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    const struct rlimit few = {(rlim_t)next, limit.rlim_max};
    if (r->rank == 1) (void)setrlimit(RLIMIT_NOFILE, &few);
    const zero_result e = zero_create(&z, &cfg, &comm);
    (void)setrlimit(RLIMIT_NOFILE, &limit);
    if (e != ZERO_ERR_DEVICE || !strstr(zero_last_error(z), "rank 1 could not open a memory file")
        || !strstr(zero_last_error(z), "Too many open files"))
        test_rank_fail(r, "no more files: %d: %s", (int)e, zero_last_error(z));
    zero_destroy(z);
}

/* Before there is a plan, a range that does not exist is not one of 0..-1. */
static void group_none(void) {
    const zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
    const zero_config cfg = {0};
    zero_ctx *z = NULL;
    zero_range range;
    test_check(!zero_create(&z, &cfg, &self) && zero_state_range(z, 0, 0, &range)
                   && strstr(zero_last_error(z), "range 0: none exists; call"),
               "no range: %s", zero_last_error(z));
    zero_destroy(z);
}

/* What the rule does not read may be anything, on any rank. */
static void group_unread_rank(test_rank *r) {
    const zero_hyper h = {0.5f, 0.25f, r->rank ? (float)r->rank : NAN, NAN, 0, 0};
    zero_step_report report;
    zero_ctx *z = NULL;
    if (!group_open_rule(r, &z, *(int *)r->arg, ZERO_SGD))
        test_rank_fail(r, "opens: %s", zero_last_error(z));
    for (int step = 0; step < 3 && !r->failed; step++)
        if (group_reduce(z) || zero_step(z, &h) || zero_step_result(z, &report) || !report.stepped)
            test_rank_fail(r, "step %d: %s", step, zero_last_error(z));
    zero_destroy(z);
}
static void group_unread(void) {
    for (int stage = 0; stage < 4; stage++)
        test_check(test_ranks(RANKS, 0, group_unread_rank, &stage), "stage %d, unread: %s", stage,
                   test_first);
}

int main(void) {
    (void)alarm(240);
    group_differences();
    group_unread();
    group_settings();
    group_none();
    test_check(test_processes(2, 0, group_no_files_rank, NULL, 30), "files: %s", test_first);
    group_writes();
    return test_summary();
}

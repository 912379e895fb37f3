/* test_fast_math.c - linked with a plugin that was compiled with -Ofast -DZERO_FAST_MATH=1, and as
   a program of -Ofast: gradients that are no numbers skip the step, settings that are none are
   refused, and the flushed denormal numbers of such a program are told. The weights' bits are not
   promised. */
#include "../shared/host.h"

static const zero_tensor_desc fast_desc[2] = {{"emb", 149, .layers = 1}, {"mat", 37, 3, .unit = 1}};

/* ---- gradients ---- */

typedef struct fast_case {
    host_spec spec; /* first: fast_poison finds the case by it */
    float bad;
    int check; /* 0: no overflow check, but clipping, which needs one */
} fast_case;

/* The second step's gradient, the last rank's, element 5 of `mat`, layer 1. */
static void fast_poison(host_run *h, int t, size_t first, void *g) {
    const fast_case *c = (const fast_case *)(const void *)h->spec;
    if (h->step == 1 && h->rank->rank == c->spec.nranks - 1 && t == 1 && first == 37)
        host_put(g, host_grad_type(&c->spec), 5, c->bad);
}

static void fast_rank(test_rank *rank) {
    const fast_case *c = (const fast_case *)rank->arg;
    const host_spec *s = &c->spec;
    zero_step_report report;
    uint64_t before = 0;
    host_run h;
    int ok = host_open(&h, s, rank);
    for (h.step = 0; h.step < 3 && ok; h.step++) {
        before = host_hash(&h);
        ok = host_train_pass(&h) && !zero_reduce(h.z) && !zero_step(h.z, &s->adamw)
             && !zero_step_result(h.z, &report);
        const int same = host_hash(&h) == before, skips = h.step == 1;
        if (!ok || skips != same || report.stepped == skips || isfinite(report.norm) == skips)
            test_rank_fail(rank, "step %d: stepped %d, norm %g, weights %d: %s", h.step,
                           report.stepped, report.norm, same, zero_last_error(h.z));
        if (skips
            && (!report.bad_tensor || strcmp(report.bad_tensor, "mat") != 0
                || report.bad_index != 42 || report.bad_rank < 0))
            test_rank_fail(rank, "the bad element is %s[%zu]",
                           report.bad_tensor ? report.bad_tensor : "none", report.bad_index);
        const float next = s->cfg.type == ZERO_F16 && h.step ? 32 : report.loss_scale;
        if (h.step < 2 && report.next_loss_scale != next)
            test_rank_fail(rank, "step %d: scale %g, then %g", h.step, (double)report.loss_scale,
                           (double)report.next_loss_scale);
    }
    zero_destroy(h.z);
}

static void fast_gradients(void) {
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    static fast_case c;
    for (int i = 0; i < 72; i++) {
        host_small(&c.spec, 3, 1 + i % 2, i / 2 % 2 * 3, fast_desc, 2);
        c.spec.units = 4;
        c.spec.cfg.type = (zero_type)(i / 4 % 3);
        c.spec.cfg.no_overflow_check = i / 36 && c.spec.cfg.type != ZERO_F16;
        c.spec.cfg.scaler.initial = 64;
        c.spec.cfg.scaler.hysteresis = 1;
        c.spec.poison = fast_poison;
        c.bad = bad[i / 12 % 3];
        test_check(test_ranks(c.spec.nranks, 0, fast_rank, &c), "%g, case %d: %s", (double)c.bad, i,
                   test_first);
    }
}

/* ---- settings ---- */

static void fast_refused(const zero_config *cfg, const char *what) {
    const zero_comm comm = {ZERO_COMM_SELF, 0, NULL, 0};
    zero_ctx *z = NULL;
    const zero_result r = zero_create(&z, cfg, &comm);
    test_check(r == ZERO_ERR_ARGUMENT && strstr(zero_last_error(z), what), "%s: %s", what,
               zero_last_error(z));
    zero_destroy(z);
}

static void fast_settings(void) {
    zero_config cfg = {0};
    for (int i = 0; i < 3; i++) {
        float *of[] = {&cfg.scaler.fixed, &cfg.scaler.initial, &cfg.scaler.minimum};
        *of[i] = i == 1 ? INFINITY : NAN;
        fast_refused(&cfg, "scaler.");
        *of[i] = 0;
    }
    cfg.timeout_s = NAN;
    fast_refused(&cfg, "timeout_s");
}

static void fast_context_rank(test_rank *rank) {
    zero_hyper h;
    host_run run;
    zero_counters counters;
    const host_spec *s = (const host_spec *)rank->arg;
    int ok = host_open(&run, s, rank) && !zero_state_begin(run.z), refused = 0;
    zero_state_counters(run.z, &counters);
    counters.scale = NAN;
    refused += zero_state_set_counters(run.z, &counters) == ZERO_ERR_ARGUMENT;
    ok = ok && !zero_state_end(run.z, 0) && host_train_pass(&run) && !zero_reduce(run.z);
    float *of[] = {&h.lr, &h.beta1, &h.beta2, &h.eps, &h.weight_decay, &h.max_norm};
    for (int i = 0; i < 6 && ok; i++) {
        h = s->adamw;
        *of[i] = i % 2 || i == 0 ? NAN : INFINITY;
        refused += zero_step(run.z, &h) == ZERO_ERR_ARGUMENT;
    }
    if (!ok || refused != 7 || zero_step(run.z, &s->adamw))
        test_rank_fail(rank, "%d of 7 were refused: %s", refused, zero_last_error(run.z));
    zero_destroy(run.z);
}

/* ---- the program ---- */

static void fast_hear(void *user, zero_log_level level, const char *sentence) {
    *(int *)user += level == ZERO_LOG_WARNING && strstr(sentence, "-Ofast") != NULL;
}
static void fast_flushes(void) {
    const zero_comm comm = {ZERO_COMM_SELF, 0, NULL, 0};
    int heard = 0;
    const zero_config cfg = {.log = fast_hear, .log_user = &heard};
    zero_ctx *z = NULL;
    test_check(!zero_create(&z, &cfg, &comm) && heard == 1,
               "flushed denormal numbers: told %d times", heard);
    zero_destroy(z);
}

int main(void) {
    host_spec s;
    (void)alarm(120);
    fast_gradients();
    fast_settings();
    host_small(&s, 3, 1, 2, fast_desc, 2);
    s.units = 4;
    test_check(test_ranks(1, 0, fast_context_rank, &s), "a context: %s", test_first);
    fast_flushes();
    return test_summary();
}

/* test_scale.c [PATTERNS [SEED]] - loss scaling through the public functions alone. Scales follow a
   model of DeepSpeed's rules over patterns of overflows and settings (1000 by default); steps that
   are skipped leave everything as it was; the gradient is divided by the scale that the loss was
   multiplied by, also in the step that makes the scale grow. One tensor of 40 elements. */
#include "../shared/harness.h"
#include <math.h>

enum { SCALE_N = 40, SCALE_STEPS = 40 };

/* ---- the rules, in words of their own ---- */

typedef struct scale_model {
    zero_scaler set; /* with defaults filled in */
    double scale;
    int left;              /* overflows until the scale is halved, that one included */
    long step, good_since; /* good_since: the step after the last overflow */
} scale_model;

static scale_model scale_model_open(const zero_scaler *given) {
    scale_model m = {*given, 0, 0, 0, 0};
    if (m.set.initial == 0) m.set.initial = 65536;
    if (m.set.minimum == 0) m.set.minimum = 1;
    if (m.set.window == 0) m.set.window = 1000;
    if (m.set.hysteresis == 0) m.set.hysteresis = 2;
    m.scale = (double)(m.set.fixed != 0 ? m.set.fixed : m.set.initial);
    m.left = m.set.hysteresis;
    return m;
}

/* 1: an overflow that cannot be answered by a smaller scale. */
static int scale_model_step(scale_model *m, int overflow) {
    const double least = (double)m->set.minimum;
    const long before = m->step++ - m->good_since; /* good steps before this one */
    int lost = 0;
    if (m->set.fixed != 0) return 0;
    if (overflow) {
        lost = m->left == 1 && m->scale <= least;
        if (m->left == 1)
            m->scale = fmax(m->scale / 2, least);
        else
            m->left--;
        m->good_since = m->step;
        return lost;
    }
    if (m->set.consecutive_hysteresis) m->left = m->set.hysteresis;
    if (before > 0 && before % m->set.window == 0) {
        m->scale *= 2;
        m->left = m->set.hysteresis;
    }
    return 0;
}

/* ---- one rank ---- */

typedef struct scale_case {
    zero_config cfg;
    uint64_t pattern; /* bit: this step overflows */
    uint64_t seed;
    int steps;
    float unit;                              /* gradients are small whole numbers times this */
    float state[2][SCALE_STEPS][4][SCALE_N]; /* after every step, by rank: what was read */
    double norm[2][SCALE_STEPS];             /* by rank */
} scale_case;

typedef struct scale_host {
    void *x;
} scale_host;

static const zero_hyper scale_hyper = {0.01f, 0.9f, 0.95f, 1e-8f, 0.1f, 0};

#define SCALE_TRY(call)                                                                            \
    do {                                                                                           \
        if (call) {                                                                                \
            test_rank_fail(r, "%s: %s", #call, zero_last_error(z));                                \
            return 0;                                                                              \
        }                                                                                          \
    } while (0)

static int scale_open(test_rank *r, const zero_config *given, zero_ctx **out) {
    const zero_tensor_desc desc = {"x", SCALE_N, 1, .uses = 1};
    const zero_comm comm = test_comm(r);
    float x[SCALE_N];
    zero_config cfg = *given;
    cfg.log = test_quiet;
    cfg.threads = 1;
    cfg.timeout_s = 30;
    const zero_result created = zero_create(out, &cfg, &comm);
    zero_ctx *z = *out;
    SCALE_TRY(created);
    SCALE_TRY(zero_tensor(z, &desc));
    SCALE_TRY(zero_build(z));
    for (int i = 0; i < SCALE_N; i++) x[i] = 0.01f * (float)(i - 20);
    SCALE_TRY(zero_write_tensor(z, "x", ZERO_PARAMETER, 0, SCALE_N, x));
    return 1;
}

static zero_type scale_grad_type(const zero_config *c) {
    return c->grads == ZERO_GRAD_F32 ? ZERO_F32 : c->type;
}

/* One pass; `asks`: the loss is multiplied as it must be. An overflow is one rank's. */
static int scale_pass(test_rank *r, zero_ctx *z, const scale_case *c, int step, int asks) {
    const zero_type type = scale_grad_type(&c->cfg);
    scale_host p, g;
    SCALE_TRY(zero_pass_begin(z, ZERO_TRAIN, 0, 1));
    SCALE_TRY(zero_forward_begin(z, 0, &p));
    SCALE_TRY(zero_forward_end(z, 0));
    const float scale = asks ? zero_loss_scale(z) : 1.0f;
    SCALE_TRY(zero_backward_begin(z, 0, &p, &g));
    for (int i = 0; i < SCALE_N; i++) {
        const uint64_t h = test_mix(c->seed + (uint64_t)(step * 64 + i));
        float x = scale * c->unit * (float)((int)(h % 31) - 15); /* the same on every rank */
        if ((c->pattern >> step & 1) && r->rank == step % r->nranks && i == step * 7 % SCALE_N)
            x = step % 2 ? INFINITY : -INFINITY;
        zero_convert((char *)g.x + (size_t)i * zero_type_bytes(type), type, &x, ZERO_F32, 1);
    }
    SCALE_TRY(zero_backward_end(z, 0));
    SCALE_TRY(zero_pass_end(z));
    return 1;
}

static int scale_read(test_rank *r, zero_ctx *z, float (*state)[SCALE_N]) {
    static const zero_kind kinds[] = {ZERO_PARAMETER, ZERO_MASTER, ZERO_MOMENT_1, ZERO_MOMENT_2};
    for (int k = 0; k < 4; k++) SCALE_TRY(zero_read_tensor(z, "x", kinds[k], 0, SCALE_N, state[k]));
    return 1;
}

/* A step, and whether its report is what the model says. */
static int scale_step(test_rank *r, zero_ctx *z, scale_case *c, scale_model *m, int step) {
    zero_step_report report;
    const zero_type type = scale_grad_type(&c->cfg);
    const double used = m->scale;
    const float asked = zero_loss_scale(z);
    if (!scale_pass(r, z, c, step, 1)) return 0;
    SCALE_TRY(zero_reduce(z));
    SCALE_TRY(zero_norm(z, &c->norm[r->rank][step]));
    SCALE_TRY(zero_step(z, &scale_hyper));
    const int overflow =
        (c->pattern >> step & 1) || (type == ZERO_F16 && used * (double)c->unit * 15 > 65504);
    const int lost = scale_model_step(m, overflow);
    const zero_result result = zero_step_result(z, &report);
    if (result != (lost ? ZERO_ERR_SCALE : ZERO_OK))
        test_rank_fail(r, "step %d: result %d, expected lost %d: %s", step, (int)result, lost,
                       zero_last_error(z));
    else if (lost && !strstr(zero_last_error(z), "tensor x, element "))
        test_rank_fail(r, "step %d: %s", step, zero_last_error(z));
    else if (report.stepped == overflow || (double)asked != used
             || (double)report.loss_scale != used || (double)report.next_loss_scale != m->scale
             || report.steps + report.skipped != step + 1)
        test_rank_fail(r, "step %d: overflow %d, stepped %d, scale %g then %g, expected %g then %g",
                       step, overflow, report.stepped, (double)report.loss_scale,
                       (double)report.next_loss_scale, used, m->scale);
    else if (!overflow && report.norm != c->norm[r->rank][step])
        test_rank_fail(r, "step %d: norm %.17g, then %.17g", step, c->norm[r->rank][step],
                       report.norm);
    else if (overflow != (report.bad_tensor != NULL) || overflow == (isfinite(report.norm) != 0))
        test_rank_fail(r, "step %d: overflow %d, norm %g", step, overflow, report.norm);
    return !r->failed && scale_read(r, z, c->state[r->rank][step]);
}

static void scale_rank(test_rank *r) {
    scale_case *c = (scale_case *)r->arg;
    scale_model m = scale_model_open(&c->cfg.scaler);
    zero_ctx *z = NULL;
    if (c->cfg.type != ZERO_F16 && m.set.fixed == 0) m.scale = m.set.fixed = 1;
    int ok = scale_open(r, &c->cfg, &z);
    for (int step = 0; step < c->steps && ok; step++) {
        ok = scale_step(r, z, c, &m, step);
        float(*now)[SCALE_N] = c->state[r->rank][step];
        if (ok && step && (c->pattern >> step & 1)
            && memcmp(now, c->state[r->rank][step - 1], sizeof c->state[0][0]))
            test_rank_fail(r, "step %d is skipped, and moves", step);
        ok &= !r->failed;
    }
    zero_destroy(z);
}

static scale_case scale_one, scale_two;

/* ---- traces ---- */

static void scale_patterns(int patterns, uint64_t seed) {
    static const float initial[] = {0, 1, 2, 16, 1024}, minimum[] = {0, 1, 4, 0.25f};
    static const int window[] = {1, 2, 3, 5, 10, 0}, hysteresis[] = {0, 1, 2, 3, 5};
    for (int i = 0; i < patterns; i++) {
        test_random random = {seed * 7919 + (uint64_t)i};
        scale_case *c = &scale_one;
        zero_scaler *s = &c->cfg.scaler;
        memset(c, 0, sizeof *c);
        c->cfg.type = ZERO_F16;
        c->cfg.stage = i % 4;
        c->cfg.no_overlap = i / 4 % 2;
        c->seed = seed + (uint64_t)i;
        c->steps = 2 + test_below(&random, SCALE_STEPS - 1);
        c->unit = 0x1p-18f;
        for (int step = 0; step < c->steps; step++) /* from rare to frequent */
            c->pattern |= (uint64_t)(test_below(&random, 12) < i % 11) << step;
        s->initial = initial[test_below(&random, 5)];
        s->minimum = minimum[test_below(&random, s->initial == 0 || s->initial >= 16 ? 4 : 2)];
        s->window = window[test_below(&random, 6)];
        s->hysteresis = hysteresis[test_below(&random, 5)];
        s->consecutive_hysteresis = test_below(&random, 2);
        if (test_below(&random, 12) == 0) s->fixed = 512;
        test_check(test_ranks(1 + i % 2, 0, scale_rank, c),
                   "pattern %d (%llx, initial %g, minimum %g, window %d, hysteresis %d, "
                   "consecutive %d, fixed %g): %s",
                   i, (unsigned long long)c->pattern, (double)s->initial, (double)s->minimum,
                   s->window, s->hysteresis, s->consecutive_hysteresis, (double)s->fixed,
                   test_first);
    }
}

/* ---- the step that makes the scale grow ---- */

static int scale_train(scale_case *c, zero_type type, int nranks, zero_scaler scaler) {
    memset(c, 0, sizeof *c);
    c->cfg.type = type;
    c->cfg.stage = nranks > 1 ? 3 : 0;
    c->cfg.scaler = scaler;
    c->seed = 5;
    c->steps = 12;
    c->unit = 0x1p-12f;
    return test_ranks(nranks, 0, scale_rank, c);
}

/* Powers of two change no bit of a gradient, so every scale gives the same weights. */
static void scale_growth(void) {
    for (int nranks = 1; nranks <= 2; nranks++) {
        const int a =
            scale_train(&scale_one, ZERO_F16, nranks, (zero_scaler){.initial = 16, .window = 1});
        test_check(a, "a scale that grows in every step: %s", test_first);
        const int b = scale_train(&scale_two, ZERO_F16, nranks, (zero_scaler){.fixed = 16});
        test_check(b, "a fixed scale: %s", test_first);
        test_check(!memcmp(scale_one.state, scale_two.state, sizeof scale_one.state),
                   "%d ranks: a scale that grows changes weights or moments", nranks);
        test_check(!memcmp(scale_one.norm, scale_two.norm, sizeof scale_one.norm),
                   "%d ranks: the norm is not unscaled by the scale of its step", nranks);
    }
}

static void scale_fixed(void) {
    static const char *const names[] = {"f32", "bf16", "f16"};
    for (zero_type type = ZERO_F32; type <= ZERO_F16; type++)
        for (int nranks = 1; nranks <= 2; nranks++) {
            int ok = scale_train(&scale_one, type, nranks, (zero_scaler){.fixed = 1});
            ok = ok && scale_train(&scale_two, type, nranks, (zero_scaler){.fixed = 1024});
            test_check(ok, "%s, fixed scale: %s", names[type], test_first);
            test_check(!memcmp(scale_one.state, scale_two.state, sizeof scale_one.state)
                           && !memcmp(scale_one.norm, scale_two.norm, sizeof scale_one.norm),
                       "%s: scales 1 and 1024 differ", names[type]);
        }
}

/* ---- the floor ---- */

/* Overflows at the smallest scale are errors that lose nothing; then training goes on. */
static void scale_floor(void) {
    for (int nranks = 1; nranks <= 2; nranks++) {
        scale_case *c = &scale_one;
        memset(c, 0, sizeof *c);
        c->cfg.type = ZERO_F16;
        c->cfg.stage = 2;
        c->cfg.scaler = (zero_scaler){.initial = 4, .minimum = 2, .hysteresis = 1, .window = 2};
        c->pattern = 0x1E; /* steps 1..4: 4 to 2, then three at the floor */
        c->steps = 12;
        c->unit = 0x1p-12f;
        int ok = test_ranks(nranks, 0, scale_rank, c);
        for (int step = 1; step < c->steps; step++)
            ok &= !memcmp(c->state[0][step], c->state[0][step - 1], sizeof c->state[0][0])
                  == (step < 5);
        test_check(ok, "%d ranks at the floor: %s", nranks, test_first);
    }
}

/* ---- forgotten, and skipped by the host ---- */

static void scale_forgotten(test_rank *r) {
    scale_case *c = (scale_case *)r->arg;
    zero_ctx *z = NULL;
    const int needed = c->cfg.type == ZERO_F16 || c->cfg.scaler.fixed > 1;
    int ok = scale_open(r, &c->cfg, &z);
    for (int step = 0; step < 3 && ok; step++) {
        ok = scale_pass(r, z, c, step, step == 0); /* asked for in the first step alone */
        const zero_result got = ok ? zero_reduce(z) : ZERO_OK;
        if (got != (needed && step ? ZERO_ERR_STATE : ZERO_OK)
            || (got && !strstr(zero_last_error(z), "zero_loss_scale was not called")))
            test_rank_fail(r, "step %d: %d, %s", step, (int)got, zero_last_error(z));
        if (got) (void)zero_loss_scale(z); /* too late for the gradients, but it goes on */
        ok = ok && (!got || !zero_reduce(z)) && !zero_step(z, &scale_hyper);
    }
    if (!ok) test_rank_fail(r, "%s", zero_last_error(z));
    zero_destroy(z);
}

static void scale_skipper(test_rank *r) {
    scale_case *c = (scale_case *)r->arg;
    zero_ctx *z = NULL;
    zero_step_report report;
    memset(&report, 0, sizeof report);
    int ok = scale_open(r, &c->cfg, &z);
    for (int step = 0; step < 4 && ok; step++) {
        ok = scale_pass(r, z, c, step, 1) && !zero_reduce(z)
             && !(step % 2 ? zero_skip_step(z) : zero_step(z, &scale_hyper))
             && !zero_step_result(z, &report) && scale_read(r, z, c->state[r->rank][step]);
        if (ok
            && (report.stepped == step % 2 || report.steps != step / 2 + 1
                || report.skipped != (step + 1) / 2 || !isfinite(report.norm)))
            test_rank_fail(r, "step %d: stepped %d, steps %d, skipped %d", step, report.stepped,
                           (int)report.steps, (int)report.skipped);
        if (step % 2
            && memcmp(c->state[r->rank][step], c->state[r->rank][step - 1], sizeof c->state[0][0]))
            test_rank_fail(r, "a step that the host skips moves");
    }
    if (!ok) test_rank_fail(r, "%s", zero_last_error(z));
    zero_destroy(z);
}

/* A gradient that is written must fit its type, scaled as it is stored. */
static void scale_writer(test_rank *r) {
    scale_case *c = (scale_case *)r->arg;
    zero_ctx *z = NULL;
    const float large = 2, small = 0x1p-10f;
    const int overflows = c->cfg.type == ZERO_F16 && c->cfg.scaler.fixed == 0; /* 2 * 65536 */
    float seen = 0;
    int ok = scale_open(r, &c->cfg, &z) && scale_pass(r, z, c, 0, 1) && !zero_reduce(z);
    const zero_result got = ok ? zero_write_tensor(z, "x", ZERO_GRADIENT, 3, 1, &large) : ZERO_OK;
    if (got != (overflows ? ZERO_ERR_ARGUMENT : ZERO_OK)
        || (got && !strstr(zero_last_error(z), "x: gradient 3 (2) times the loss scale (65536)")))
        test_rank_fail(r, "%d, %s", (int)got, zero_last_error(z));
    ok = ok && !zero_write_tensor(z, "x", ZERO_GRADIENT, 3, 1, &small)
         && !zero_read_tensor(z, "x", ZERO_GRADIENT, 3, 1, &seen) && !zero_step(z, &scale_hyper);
    if (!ok || seen != small) test_rank_fail(r, "%g, %s", (double)seen, zero_last_error(z));
    zero_destroy(z);
}

static void scale_hosts(void) {
    static const zero_config configs[] = {{.type = ZERO_F16},
                                          {.type = ZERO_F16, .scaler = {.fixed = 8}},
                                          {.type = ZERO_BF16, .scaler = {.fixed = 8}},
                                          {.type = ZERO_F32, .scaler = {.fixed = 8}},
                                          {.type = ZERO_BF16},
                                          {.type = ZERO_F32}};
    for (int i = 0; i < 6; i++)
        for (int nranks = 1; nranks <= 2; nranks++) {
            memset(&scale_one, 0, sizeof scale_one);
            scale_one.cfg = configs[i];
            scale_one.cfg.stage = i % 4;
            scale_one.unit = 0x1p-12f;
            test_check(test_ranks(nranks, 0, scale_forgotten, &scale_one),
                       "the scale was not asked for, configuration %d: %s", i, test_first);
            test_check(test_ranks(nranks, 0, scale_writer, &scale_one),
                       "a gradient is written, configuration %d: %s", i, test_first);
            test_check(test_ranks(nranks, 0, scale_skipper, &scale_one),
                       "zero_skip_step, configuration %d: %s", i, test_first);
        }
}

int main(int argc, char **argv) {
    const int patterns = argc > 1 ? atoi(argv[1]) : 1000;
    (void)alarm(300); /* a wait for ever is a failure */
    scale_growth();
    scale_fixed();
    scale_floor();
    scale_hosts();
    scale_patterns(patterns, argc > 2 ? (uint64_t)atoll(argv[2]) : 1);
    return test_summary();
}

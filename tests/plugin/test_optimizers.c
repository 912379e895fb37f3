/* test_optimizers.c - every update rule against its formula in the header, in f64, element by
   element and step by step: types, groups, clipping, ranks, stages. RMSprop as an optimizer of
   one's own (rmsprop.h, in $B/own.o). (LAMB and Muon: test_tensors.) And rounding to bf16 by
   chance, where there are no master weights. */
#include "../shared/host.h"
#include <float.h>

enum { OPT_STEPS = 20, OPT_TENSORS = 4, OPT_N = 150, OPT_RULES = 7 };

static const char *const opt_names[] = {"AdamW", "Adam",    "SGD",    "Nesterov",
                                        "Lion",  "Adagrad", "RMSprop"};
static const int opt_rules[] = {ZERO_ADAMW, ZERO_ADAM,    ZERO_SGD,          ZERO_NESTEROV,
                                ZERO_LION,  ZERO_ADAGRAD, ZERO_OPTIMIZER_OWN};
static const char *const opt_types[] = {"f32", "bf16", "f16"};

/* ---- the formulas ---- */

typedef struct opt_state {
    double p, m, v;
} opt_state;

/* One element's new state, and in `size` the largest number that was added up on the way to each:
   a sum whose terms cancel is as exact as its terms are. `sign`: of Lion's c, which decides more
   than its rounding should. */
static opt_state opt_rule(int rule, opt_state was, double g, double lr, double decay,
                          const zero_hyper *h, int64_t t, opt_state *size, double *sign) {
    const double b1 = (double)h->beta1, b2 = (double)h->beta2, eps = (double)h->eps, p = was.p;
    opt_state is = was;
    double d = g, move = 0, kept = rule == ZERO_ADAMW || rule == ZERO_LION ? lr * decay * p : 0;
    *sign = 1;
    if (rule != ZERO_ADAMW && rule != ZERO_LION) d = g + decay * p;
    const double grain = fmax(fabs(g), fabs(d - g)); /* what d was added up from */
    if (rule == ZERO_ADAMW || rule == ZERO_ADAM) {
        is.m = b1 * was.m + (1 - b1) * d;
        is.v = b2 * was.v + (1 - b2) * d * d;
        const double below = sqrt(is.v / (1 - pow(b2, (double)t))) + eps;
        const double scale = lr / (1 - pow(b1, (double)t)) / below;
        move = scale * is.m;
        size->m = fmax(fabs(b1 * was.m), (1 - b1) * grain);
        size->v = fmax(is.v, (1 - b2) * grain * grain);
        size->p = scale * size->m;
    } else if (rule == ZERO_SGD || rule == ZERO_NESTEROV) {
        is.m = t == 1 ? d : b1 * was.m + d;
        move = lr * (rule == ZERO_SGD ? is.m : d + b1 * is.m);
        size->m = fmax(grain, t == 1 ? 0 : fabs(b1 * was.m));
        size->p = lr * fmax(size->m, grain);
    } else if (rule == ZERO_LION) {
        const double c = b1 * was.m + (1 - b1) * g;
        const double unsure = 0x1p-21 * fmax(fabs(b1 * was.m), fabs((1 - b1) * g));
        *sign = fabs(c) > unsure ? 1 : 0;
        move = lr * ((c > 0) - (c < 0));
        is.m = b2 * was.m + (1 - b2) * g;
        size->m = fmax(fabs(b2 * was.m), fabs((1 - b2) * g));
        size->p = lr;
    } else {
        const int sums = rule == ZERO_ADAGRAD;
        is.m = (sums ? 1 : b2) * was.m + (sums ? 1 : 1 - b2) * d * d;
        move = lr * d / (sqrt(is.m) + eps);
        size->m = fmax(is.m, grain * grain);
        size->p = lr * grain / (sqrt(is.m) + eps);
    }
    is.p = p - (move + kept);
    size->p = fmax(fmax(fabs(p), fabs(is.p)), size->p);
    size->m = fmax(size->m, fabs(is.m));
    return is;
}

static double opt_ulp(double at) {
    int e;
    if (at < 0x1p-126) return 0x1p-149;
    (void)frexp(at, &e);
    return ldexp(1.0, e - 24);
}

/* ---- training ---- */

typedef struct opt_values {
    float p[OPT_TENSORS][OPT_N], master[OPT_TENSORS][OPT_N], m[OPT_TENSORS][OPT_N],
        v[OPT_TENSORS][OPT_N], g[OPT_TENSORS][OPT_N];
} opt_values;

typedef struct opt_case {
    host_spec spec;
    double worst[3]; /* ULP: p, m, v */
    double wander;   /* from the same training in f64, in ULP a step */
    pthread_mutex_t lock;
} opt_case;

static const zero_tensor_desc opt_desc[OPT_TENSORS] = {
    {"emb", 149, .layers = 1},
    {"mat", 37, 3, .unit = 1},
    {"vec", 17, 3, .unit = 1, .flags = ZERO_ONE_D},
    {"norm", 9, 3, .unit = 1, .flags = ZERO_KEEP | ZERO_NO_DECAY}};

static void opt_spec(host_spec *s, int nranks, int stage, int rule, zero_type type) {
    host_small(s, 21, nranks, stage, opt_desc, OPT_TENSORS);
    s->steps = OPT_STEPS;
    s->units = 4;
    s->adamw = (zero_hyper){0.01f, 0.9f, 0.95f, 1e-3f, 0.1f, 0};
    s->cfg.type = type;
    s->cfg.optimizer = (zero_optimizer)rule;
    s->cfg.scaler.fixed = type == ZERO_F16 ? 64.0f : 1.0f;
}

static int opt_read(host_run *h, opt_values *x, int gradients) {
    for (int t = 0; t < OPT_TENSORS; t++) {
        const char *name = h->spec->desc[t].name;
        const size_t n = host_numel(h->spec, t);
        const int two = h->spec->cfg.optimizer <= ZERO_ADAM;
        HOST_TRY(h, zero_read_tensor(h->z, name, ZERO_PARAMETER, 0, n, x->p[t]));
        HOST_TRY(h, zero_read_tensor(h->z, name, ZERO_MASTER, 0, n, x->master[t]));
        HOST_TRY(h, zero_read_tensor(h->z, name, ZERO_MOMENT_1, 0, n, x->m[t]));
        if (two) HOST_TRY(h, zero_read_tensor(h->z, name, ZERO_MOMENT_2, 0, n, x->v[t]));
        if (gradients) HOST_TRY(h, zero_read_tensor(h->z, name, ZERO_GRADIENT, 0, n, x->g[t]));
    }
    return 1;
}

static void opt_note(double *worst, double error) {
    if (error > *worst || isnan(error)) *worst = error;
}

/* Every element's step from the state that it had. */
static void opt_check(host_run *h, opt_case *c, const opt_values *was, const opt_values *is,
                      double clip, opt_state (*f64)[OPT_N]) {
    const host_spec *s = h->spec;
    const zero_hyper *a = &s->adamw;
    const int rule = (int)s->cfg.optimizer;
    for (int t = 0; t < OPT_TENSORS; t++) {
        const double lr = (double)a->lr * (double)host_factor(s, t, 0);
        const double decay = s->desc[t].flags & ZERO_NO_DECAY
                                 ? 0
                                 : (double)a->weight_decay * (double)host_factor(s, t, 1);
        for (size_t i = 0; i < host_numel(s, t); i++) {
            const opt_state from = {(double)was->master[t][i], (double)was->m[t][i],
                                    (double)was->v[t][i]};
            const double g = clip * (double)was->g[t][i];
            opt_state size = {0, 0, 0}, any = {0, 0, 0};
            double sure, sure_too;
            const opt_state to = opt_rule(rule, from, g, lr, decay, a, h->step + 1, &size, &sure);
            f64[t][i] = opt_rule(rule, f64[t][i], g, lr, decay, a, h->step + 1, &any, &sure_too);
            const double off = fabs((double)is->master[t][i] - to.p);
            if (sure != 0) opt_note(&c->worst[0], off / opt_ulp(size.p));
            opt_note(&c->worst[1], fabs((double)is->m[t][i] - to.m) / opt_ulp(size.m));
            if (rule <= ZERO_ADAM)
                opt_note(&c->worst[2], fabs((double)is->v[t][i] - to.v) / opt_ulp(size.v));
            if (rule != ZERO_LION) /* whose signs go their own way */
                opt_note(&c->wander, fabs((double)is->master[t][i] - f64[t][i].p)
                                         / opt_ulp(fmax(any.p, lr)) / (h->step + 1));
            if (is->p[t][i] != host_round(s->cfg.type, is->master[t][i]))
                test_rank_fail(h->rank, "%s[%zu] is not its rounded master", s->desc[t].name, i);
        }
    }
}

static void opt_rank(test_rank *rank) {
    opt_case *c = (opt_case *)rank->arg;
    const host_spec *s = &c->spec;
    /* gcc 12 stores 16 bytes at a time, and aligns by 8 what it was not asked to align */
    static _Thread_local _Alignas(64) opt_values was, is;
    static _Thread_local _Alignas(64) opt_state f64[OPT_TENSORS][OPT_N];
    host_run h;
    int ok = host_open(&h, s, rank) && opt_read(&h, &is, 0);
    for (int t = 0; t < OPT_TENSORS; t++)
        for (int i = 0; i < OPT_N; i++) f64[t][i] = (opt_state){(double)is.master[t][i], 0, 0};
    for (h.step = 0; h.step < s->steps && ok; h.step++) {
        double norm = 0;
        ok = host_train_pass(&h) && !zero_reduce(h.z) && !zero_norm(h.z, &norm)
             && opt_read(&h, &was, 1) && !zero_step(h.z, &s->adamw) && opt_read(&h, &is, 0);
        const double most = (double)s->adamw.max_norm;
        pthread_mutex_lock(&c->lock);
        if (ok) opt_check(&h, c, &was, &is, most > 0 ? fmin(1, most / (norm + 1e-6)) : 1, f64);
        pthread_mutex_unlock(&c->lock);
    }
    if (!ok) test_rank_fail(rank, "%s", zero_last_error(h.z));
    zero_destroy(h.z);
}

/* ULP of any element in any step. Adam rounds more than ten times. Lion's c has no limit: only its
   sign counts. */
static const double opt_limit = 6;

static void opt_formulas(void) {
    static const char *const what[] = {"weights", "first state", "second state"};
    static opt_case c;
    pthread_mutex_init(&c.lock, NULL);
    for (int rule = 0; rule < OPT_RULES; rule++)
        for (int type = 0; type < 3; type++) {
            double all[4] = {0, 0, 0, 0};
            for (int nranks = 1; nranks <= 3; nranks++)
                for (int k = 0; k < 8; k++) { /* stages 0 and 3, groups, clipping */
                    if (!test_sampled(5)) continue;
                    memset(c.worst, 0, sizeof c.worst);
                    c.wander = 0;
                    opt_spec(&c.spec, nranks, k & 1 ? 3 : 0, opt_rules[rule], (zero_type)type);
                    c.spec.groups = k >> 1 & 1;
                    c.spec.adamw.max_norm = k >> 2 ? 0.7f : 0;
                    const int ok = test_ranks(nranks, 0, opt_rank, &c);
                    test_check(ok, "%s, %s, %d ranks, %d: %s", opt_names[rule], opt_types[type],
                               nranks, k, test_first);
                    for (int i = 0; i < 3; i++) {
                        test_check(c.worst[i] <= opt_limit, "%s, %s, %d ranks, %d: %s: %.2f ULP",
                                   opt_names[rule], opt_types[type], nranks, k, what[i],
                                   c.worst[i]);
                        opt_note(&all[i], c.worst[i]);
                    }
                    test_check(c.wander <= 4, "%s, %s, %d ranks, %d: %.2f ULP a step from f64",
                               opt_names[rule], opt_types[type], nranks, k, c.wander);
                    opt_note(&all[3], c.wander);
                }
            printf("%s, %s: at most %.2f, %.2f, %.2f ULP; %.2f a step over %d steps\n",
                   opt_names[rule], opt_types[type], all[0], all[1], all[2], all[3], OPT_STEPS);
        }
}

/* ---- stochastic rounding ---- */

/* Two tensors alike; gradients that depend on step and element alone, given in the last micro-step.
 */
static float opt_given(int step, size_t i) {
    return (float)((double)(test_mix((uint64_t)step * 977 + i) >> 40) * 0x1p-24 - 0.5);
}
static void opt_give(host_run *h, int t, size_t first, void *g) {
    const host_spec *s = h->spec;
    for (size_t i = 0; i < s->desc[t].numel; i++) {
        const float x = h->micro + 1 < s->micro_steps ? 0 : opt_given(h->step, first + i);
        host_put(g, host_grad_type(s), i, x);
    }
}

typedef struct opt_chances {
    host_spec spec;
    int again; /* the second step starts from where the first one did */
    uint64_t hash[8];
    float a[2][3000], b[3000]; /* the first tensor after steps 1 and 2, the second after step 1 */
} opt_chances;

static int opt_fill(host_run *h) {
    static _Thread_local float x[3000];
    for (int i = 0; i < 3000; i++) x[i] = host_round(ZERO_BF16, 0.5f + 0.0001f * (float)i);
    HOST_TRY(h, zero_write_tensor(h->z, "a", ZERO_PARAMETER, 0, 3000, x));
    HOST_TRY(h, zero_write_tensor(h->z, "b", ZERO_PARAMETER, 0, 3000, x));
    return 1;
}

static void opt_chance_rank(test_rank *rank) {
    opt_chances *c = (opt_chances *)rank->arg;
    const host_spec *s = &c->spec;
    static _Thread_local float a[3000], b[3000];
    host_run h;
    int ok = host_open(&h, s, rank) && opt_fill(&h);
    for (h.step = 0; h.step < s->steps && ok; h.step++) {
        const int real = h.step;
        if (c->again) ok = opt_fill(&h);
        if (c->again) h.step = 0; /* the same gradients */
        for (h.micro = 0; h.micro < s->micro_steps && ok; h.micro++) ok = host_train_pass(&h);
        h.step = real;
        ok = ok && !zero_reduce(h.z) && !zero_step(h.z, &s->adamw)
             && !zero_read_tensor(h.z, "a", ZERO_PARAMETER, 0, 3000, a)
             && !zero_read_tensor(h.z, "b", ZERO_PARAMETER, 0, 3000, b);
        if (ok && rank->rank == 0 && h.step < 2) memcpy(c->a[h.step], a, sizeof a);
        if (ok && rank->rank == 0 && h.step == 0) memcpy(c->b, b, sizeof b);
    }
    if (!ok) test_rank_fail(rank, "%s", zero_last_error(h.z));
    if (ok) c->hash[rank->rank] = host_hash(&h);
    zero_destroy(h.z);
}

static void opt_chance_spec(host_spec *s, int nranks) {
    static const zero_tensor_desc desc[] = {{"a", 1000, .layers = 3}, {"b", 3000, 1, .unit = 3}};
    memset(s, 0, sizeof *s);
    s->nranks = nranks;
    s->steps = 3;
    s->micro_steps = 1;
    s->ntensors = 2;
    s->units = 4;
    s->silent_unit = -1;
    memcpy(s->desc, desc, sizeof desc);
    s->adamw = (zero_hyper){0.003f, 0.9f, 0.95f, 1e-8f, 0.1f, 0};
    s->cfg.type = ZERO_BF16;
    s->cfg.grads = ZERO_GRAD_AS_TYPE;
    s->cfg.master = ZERO_MASTER_NONE;
    s->cfg.threads = 1;
    s->cfg.optimizer = ZERO_SGD;
    s->cfg.seed = 99;
    s->poison = opt_give;
}

static int opt_differ(const float *x, const float *y) {
    int n = 0;
    for (int i = 0; i < 3000; i++) n += x[i] != y[i];
    return n;
}

static void opt_chance_same(void) {
    static opt_chances c;
    uint64_t first = 0;
    for (int nranks = 1; nranks <= 4; nranks += nranks) /* means of equal gradients are exact */
        for (int stage = 0; stage < 4; stage++)
            for (int k = 0; k < 6; k++) {
                if (!test_sampled(5)) continue;
                opt_chance_spec(&c.spec, nranks);
                c.spec.cfg.stage = stage;
                c.spec.micro_steps = 1 + k % 3;
                c.spec.cfg.accumulation = k < 3 ? ZERO_ACCUMULATE_LOCAL : ZERO_ACCUMULATE_SHARDED;
                c.spec.cfg.no_mapping = k & 1;
                c.spec.cfg.threads = 1 + k / 3;
                int ok = test_ranks(nranks, 0, opt_chance_rank, &c);
                if (!first) first = c.hash[0];
                for (int r = 0; r < nranks; r++) ok &= c.hash[r] == first;
                test_check(ok, "rounding by chance, %d ranks, stage %d, %d: other bits: %s", nranks,
                           stage, k, test_first);
            }
    opt_chance_spec(&c.spec, 1);
    for (uint64_t seed = 100; seed < 102; seed++) {
        c.spec.cfg.seed = seed == 101 ? 99 + ((uint64_t)1 << 32) : seed;
        const int ok = test_ranks(1, 0, opt_chance_rank, &c);
        test_check(ok && c.hash[0] != first, "another seed rounds alike");
    }
    opt_chance_spec(&c.spec, 1);
    c.again = 1;
    c.spec.adamw.beta1 = 0; /* no memory of the first step */
    test_check(test_ranks(1, 0, opt_chance_rank, &c), "again: %s", test_first);
    test_check(opt_differ(c.a[0], c.a[1]) > 300, "another step rounds alike: %d differ",
               opt_differ(c.a[0], c.a[1]));
    test_check(opt_differ(c.a[0], c.b) > 300, "another tensor rounds alike: %d differ",
               opt_differ(c.a[0], c.b));
}

/* Updates far below half a unit of bf16, which rounding to nearest would lose, add up on average.
   The seed is fixed, so this passes always or never; the limit is 5 standard deviations. */
static void opt_chance_constant(host_run *h, int t, size_t first, void *g) {
    (void)first;
    for (size_t i = 0; i < h->spec->desc[t].numel; i++) host_put(g, ZERO_BF16, i, 1);
}
static void opt_chance_mean_rank(test_rank *rank) {
    enum { N = 65536 };
    static float x[N];
    const host_spec *s = (const host_spec *)rank->arg;
    double mean = 0;
    host_run h;
    for (int i = 0; i < N; i++) x[i] = 1;
    int ok = host_open(&h, s, rank) && !zero_write_tensor(h.z, "a", ZERO_PARAMETER, 0, N, x);
    for (h.step = 0; h.step < s->steps && ok; h.step++)
        ok = host_train_pass(&h) && !zero_reduce(h.z) && !zero_step(h.z, &s->adamw);
    ok = ok && !zero_read_tensor(h.z, "a", ZERO_PARAMETER, 0, N, x);
    for (int i = 0; i < N; i++) mean += (double)x[i] / N;
    const double expected = 1 - s->steps * 0x1p-12, deviation = 0x1p-8 * sqrt(s->steps / 16.0 / N);
    if (!ok || fabs(mean - expected) > 5 * deviation)
        test_rank_fail(rank, "mean %.9g, expected %.9g: %s", mean, expected, zero_last_error(h.z));
    zero_destroy(h.z);
}
static void opt_chance_mean(void) {
    host_spec s;
    opt_chance_spec(&s, 1);
    s.ntensors = s.units = 1;
    s.desc[0] = (zero_tensor_desc){"a", 65536, .layers = 1};
    s.steps = 64;
    s.poison = opt_chance_constant;
    s.adamw = (zero_hyper){0x1p-12f, 0, 0, 0, 0, 0};
    test_check(test_ranks(1, 0, opt_chance_mean_rank, &s), "the mean: %s", test_first);
}

int main(void) {
    (void)alarm(300); /* a wait for ever is a failure */
    opt_formulas();
    opt_chance_same();
    opt_chance_mean();
    return test_summary();
}

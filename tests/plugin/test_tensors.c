/* test_tensors.c - update rules that need whole tensors, LAMB and Muon: every step against its
   formula in the header, in f64 and without any sharding; the same bits at every stage, number of
   ranks, type, bucket, tier and order of communication, with skips, delays and state that moves;
   what is sent and kept is what the plan says. Exact sums and products of matrices are in
   unit_tensors.h. */
#include "../shared/host.h"

static const char *const ten_rules[] = {"adamw",   "adam", "sgd",  "nesterov", "lion",
                                        "adagrad", "lamb", "muon", "normuon"};

/* Muon with cfg.muon.normalize, in lists of rules. */
enum { TEN_NORMUON = ZERO_MUON + 1 };

enum { TEN_TENSORS = 7, TEN_N = 1300, TEN_STEPS = 4 };

static const char *ten_folder = "/tmp";

/* ---- the formulas, in f64 ---- */

static const zero_tensor_desc ten_desc[TEN_TENSORS] = {
    {"emb", 149, .layers = 1},
    {"wide", 24 * 18, 3, .unit = 1},
    {"vec", 17, 3, .unit = 1},
    {"tall", 37 * 5, 3, .unit = 1},
    {"qkv", 3 * 81, 3, .unit = 1},
    {"norm", 9, 3, .unit = 1, .flags = ZERO_KEEP | ZERO_NO_DECAY},
    {"kept", 5 * 8, 3, .unit = 1, .flags = ZERO_KEEP}};
static const size_t ten_sides[TEN_TENSORS][2] = {{0, 0}, {24, 18}, {0, 0}, {37, 5},
                                                 {9, 9}, {0, 0},   {5, 8}};

typedef struct ten_values {
    float p[TEN_TENSORS][TEN_N], m[TEN_TENSORS][TEN_N], v[TEN_TENSORS][TEN_N],
        g[TEN_TENSORS][TEN_N];
} ten_values;

typedef struct ten_case {
    host_spec spec;
    double worst[3]; /* of the largest weight's or state's change, and of v */
    int skip;        /* this step is dropped by the host; 0: none */
    int swap;        /* the state goes through memory to another context, of that stage + 1 */
    int swap_ranks;
    uint64_t hash[8];
    uint64_t sent[8], planned[8], verdict[8], verdict_planned[8];
    size_t kept[8], kept_planned[8];
    pthread_mutex_t lock;
} ten_case;

static void ten_spec(host_spec *s, int nranks, int stage, int rule, zero_type type) {
    host_small(s, 3, nranks, stage, ten_desc, TEN_TENSORS);
    s->steps = TEN_STEPS;
    s->units = 4;
    for (int t = 0; t < TEN_TENSORS; t++) {
        s->rows[t] = ten_sides[t][0];
        s->cols[t] = ten_sides[t][1];
    }
    s->adamw = (zero_hyper){0.02f, 0.9f, 0.95f, 1e-6f, 0.1f, 0};
    s->cfg.type = type;
    s->cfg.optimizer = (zero_optimizer)(rule > ZERO_MUON ? ZERO_MUON : rule);
    s->cfg.muon.normalize = rule > ZERO_MUON ? 0.9f : 0;
    s->cfg.scaler.fixed = type == ZERO_F16 ? 64.0f : 1.0f;
}

static int ten_read(host_run *h, ten_values *x, int gradients) {
    for (int t = 0; t < TEN_TENSORS; t++) {
        const char *name = h->spec->desc[t].name;
        const size_t n = host_numel(h->spec, t);
        HOST_TRY(h, zero_read_tensor(h->z, name, ZERO_MASTER, 0, n, x->p[t]));
        HOST_TRY(h, zero_read_tensor(h->z, name, ZERO_MOMENT_1, 0, n, x->m[t]));
        if (host_two(h->spec, t))
            HOST_TRY(h, zero_read_tensor(h->z, name, ZERO_MOMENT_2, 0, n, x->v[t]));
        if (gradients) HOST_TRY(h, zero_read_tensor(h->z, name, ZERO_GRADIENT, 0, n, x->g[t]));
    }
    return 1;
}

static void ten_note(double *worst, double error) {
    if (error > *worst || isnan(error)) *worst = error;
}

static double ten_norm(const double *x, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += x[i] * x[i];
    return sqrt(sum);
}

/* Solves four linear equations, each with its right side in column 4. */
static void ten_solve(double m[4][5]) {
    for (int i = 0; i < 4; i++) {
        int best = i;
        for (int k = i; k < 4; k++)
            if (fabs(m[k][i]) > fabs(m[best][i])) best = k;
        for (int j = 0; j < 5; j++) {
            const double was = m[i][j];
            m[i][j] = m[best][j], m[best][j] = was;
        }
        for (int k = 0; k < 4; k++) {
            const double f = m[k][i] / m[i][i];
            for (int j = 0; j < 5 && k != i; j++) m[k][j] -= f * m[i][j];
        }
    }
    for (int i = 0; i < 4; i++) m[i][4] /= m[i][i];
}
static double ten_polynomial(const double p[3], double x) {
    return x * (p[0] + x * x * (p[1] + x * x * p[2]));
}
/* The odd polynomial of degree 5 that is nearest to 1 on [l, u], by Remez' exchange. */
static void ten_nearest_polynomial(double l, double u, double p[3]) {
    double q = (3 * l + u) / 4, r = (l + 3 * u) / 4, error = 0, before = 1;
    for (int turn = 0; turn < 99 && fabs(error - before) > 1e-15; turn++) {
        const double at[4] = {l, q, r, u};
        double m[4][5];
        for (int i = 0; i < 4; i++) {
            for (int k = 0; k < 3; k++) m[i][k] = pow(at[i], 2 * k + 1);
            m[i][3] = i % 2 ? -1 : 1;
            m[i][4] = 1;
        }
        ten_solve(m);
        for (int k = 0; k < 3; k++) p[k] = m[k][4];
        before = error, error = m[3][4];
        const double root = sqrt(9 * p[1] * p[1] - 20 * p[0] * p[2]);
        q = sqrt((-3 * p[1] - root) / (10 * p[2]));
        r = sqrt((-3 * p[1] + root) / (10 * p[2]));
    }
}
/* The coefficients of Polar Express for iteration `turn`, derived as the paper does: each
   polynomial is the nearest one for the singular values that the earlier ones leave, from 0.001 up,
   but none is made for a ratio below its cushion. All but those of the limit are lowered by 1.01.
 */
static void ten_polar_express(int turn, double p[3]) {
    const double cushion = 0.02407327424182761;
    double l = 1e-3, u = 1;
    for (int i = 0; i <= turn && i < 7; i++) {
        ten_nearest_polynomial(fmax(l, cushion * u), u, p);
        const double middle = (ten_polynomial(p, l) + ten_polynomial(p, u)) / 2;
        for (int k = 0; k < 3 && cushion * u > l; k++) p[k] /= middle;
        l = ten_polynomial(p, l), u = 2 - l;
    }
    for (int k = 0; k < 3; k++) {
        if (turn < 7)
            p[k] /= pow(1.01, 2 * k + 1);
        else
            p[k] = (const double[]){1.875, -1.25, 0.375}[k];
    }
}

/* d [rows, cols] becomes orthogonal as the header says, by the shorter side. */
static void ten_orthogonal(double *d, size_t rows, size_t cols, const zero_muon *how) {
    static double x[TEN_N], a[TEN_N], b[TEN_N], y[TEN_N];
    const size_t low = rows < cols ? rows : cols, high = rows < cols ? cols : rows;
    const double norm = fmax((how->polar_express ? 1.01 : 1) * ten_norm(d, rows * cols), 1e-7);
    for (size_t i = 0; i < rows * cols; i++)
        x[rows > cols ? i % cols * rows + i / cols : i] = d[i] / norm;
    for (int turn = 0; turn < (how->iterations ? how->iterations : 5); turn++) {
        double c[3] = {3.4445, -4.775, 2.0315};
        if (how->polar_express) ten_polar_express(turn, c);
        for (size_t i = 0; i < low * low; i++) {
            a[i] = 0;
            for (size_t k = 0; k < high; k++) a[i] += x[i / low * high + k] * x[i % low * high + k];
        }
        for (size_t i = 0; i < low * low; i++) {
            double square = 0;
            for (size_t k = 0; k < low; k++) square += a[i / low * low + k] * a[k * low + i % low];
            b[i] = c[1] * a[i] + c[2] * square;
        }
        for (size_t i = 0; i < low * high; i++) {
            y[i] = c[0] * x[i];
            for (size_t k = 0; k < low; k++) y[i] += b[i / high * low + k] * x[k * high + i % high];
        }
        memcpy(x, y, low * high * sizeof *x);
    }
    for (size_t i = 0; i < rows * cols; i++) d[i] = x[rows > cols ? i % cols * rows + i / cols : i];
}

/* NorMuon's rows of x [rows, cols], after Li et al. 2025, algorithm 1. */
static void ten_normalize(double *x, size_t rows, size_t cols, double beta, double *moments) {
    const double before = ten_norm(x, rows * cols);
    for (size_t r = 0; r < rows; r++) {
        const double norm = ten_norm(x + r * cols, cols);
        moments[r] = beta * moments[r] + (1 - beta) * norm * norm / (double)cols;
        for (size_t i = r * cols; i < (r + 1) * cols; i++) x[i] /= sqrt(moments[r]) + 1e-10;
    }
    const double after = ten_norm(x, rows * cols);
    for (size_t i = 0; i < rows * cols && after > 0; i++) x[i] *= before / after;
}

/* One layer's step: from the state that it had to p, m, v. For a matrix with cfg.muon.normalize,
   v has the moments of rows. */
static void ten_layer(const ten_case *c, int tensor, int64_t t, size_t n, double *p, double *m,
                      double *v, const double *g, double lr, double decay) {
    static double u[TEN_N];
    const host_spec *s = &c->spec;
    const zero_config *cfg = &s->cfg;
    const double b1 = (double)s->adamw.beta1, b2 = (double)s->adamw.beta2;
    const double mu = cfg->muon.momentum != 0 ? (double)cfg->muon.momentum : (double)0.95f;
    const size_t rows = s->rows[tensor], cols = s->cols[tensor];
    const int matrix = cfg->optimizer == ZERO_MUON && rows;
    if (cfg->optimizer == ZERO_MUON && !matrix && cfg->muon.plain_lr > 0)
        lr *= (double)cfg->muon.plain_lr;
    for (size_t i = 0; i < n; i++) {
        m[i] = matrix ? mu * m[i] + (1 - mu) * g[i] : b1 * m[i] + (1 - b1) * g[i];
        if (!matrix) v[i] = b2 * v[i] + (1 - b2) * g[i] * g[i];
        u[i] = matrix && cfg->muon.no_nesterov ? m[i]
               : matrix                        ? mu * m[i] + (1 - mu) * g[i]
                                               : m[i] / (1 - pow(b1, (double)t))
                              / (sqrt(v[i] / (1 - pow(b2, (double)t))) + (double)s->adamw.eps);
        if (!matrix) u[i] += decay * p[i];
    }
    for (size_t at = 0; matrix && at < n; at += rows * cols) {
        const double r = (double)rows, k = (double)cols;
        const double shape = cfg->muon.match_rms ? 0.2 * sqrt(fmax(r, k)) : sqrt(fmax(1, r / k));
        ten_orthogonal(u + at, rows, cols, &cfg->muon);
        if (cfg->muon.normalize > 0)
            ten_normalize(u + at, rows, cols, (double)cfg->muon.normalize, v + at / cols);
        for (size_t i = at; i < at + rows * cols; i++) u[i] = shape * u[i] + decay * p[i];
    }
    double ratio = 1;
    if (cfg->optimizer == ZERO_LAMB && ten_norm(p, n) > 0 && ten_norm(u, n) > 0) {
        ratio = ten_norm(p, n) / ten_norm(u, n);
        if (cfg->trust_least > 0) ratio = fmax(ratio, (double)cfg->trust_least);
        if (cfg->trust_most > 0) ratio = fmin(ratio, (double)cfg->trust_most);
    }
    for (size_t i = 0; i < n; i++) p[i] -= lr * ratio * u[i];
}

static void ten_check(host_run *h, ten_case *c, const ten_values *was, const ten_values *is,
                      double (*rows)[TEN_N], double clip) {
    const host_spec *s = &c->spec;
    static double p[TEN_N], m[TEN_N], v[TEN_N], g[TEN_N];
    for (int t = 0; t < TEN_TENSORS; t++) {
        const size_t n = s->desc[t].numel;
        const double lr = (double)s->adamw.lr * (double)host_factor(s, t, 0);
        const double decay = s->desc[t].flags & ZERO_NO_DECAY
                                 ? 0
                                 : (double)s->adamw.weight_decay * (double)host_factor(s, t, 1);
        for (size_t at = 0; at < host_numel(s, t); at += n) {
            double moved = 0, most = 0;
            for (size_t i = 0; i < n; i++) {
                p[i] = (double)was->p[t][at + i];
                m[i] = (double)was->m[t][at + i];
                v[i] = host_two(s, t) ? (double)was->v[t][at + i] : rows[t][at + i];
                g[i] = clip * (double)was->g[t][at + i];
            }
            ten_layer(c, t, h->step + 1, n, p, m, v, g, lr, decay);
            if (!host_two(s, t)) memcpy(rows[t] + at, v, n * sizeof *v);
            for (size_t i = 0; i < n; i++) {
                moved = fmax(moved, fabs(p[i] - (double)was->p[t][at + i]));
                most = fmax(most, fabs(p[i]));
            }
            for (size_t i = 0; i < n; i++) { /* of what the layer moves by, and of its rounding */
                const double off = fabs((double)is->p[t][at + i] - p[i]) - 0x1p-23 * most;
                ten_note(&c->worst[0], fmax(off, 0) / fmax(moved, 1e-30));
                ten_note(&c->worst[1],
                         fabs((double)is->m[t][at + i] - m[i]) / fmax(fabs(m[i]), 1e-2));
                if (host_two(s, t))
                    ten_note(&c->worst[2],
                             fabs((double)is->v[t][at + i] - v[i]) / fmax(fabs(v[i]), 1e-9));
            }
        }
    }
}

static void ten_formula_rank(test_rank *rank) {
    ten_case *c = (ten_case *)rank->arg;
    const host_spec *s = &c->spec;
    static _Thread_local ten_values was, is;
    static _Thread_local double rows[TEN_TENSORS][TEN_N]; /* moments, as the formula has them */
    host_run h;
    int ok = host_open(&h, s, rank);
    memset(rows, 0, sizeof rows);
    for (h.step = 0; h.step < s->steps && ok; h.step++) {
        double norm = 0;
        ok = host_train_pass(&h) && !zero_reduce(h.z) && !zero_norm(h.z, &norm)
             && ten_read(&h, &was, 1) && !zero_step(h.z, &s->adamw) && ten_read(&h, &is, 0);
        const double most = (double)s->adamw.max_norm;
        pthread_mutex_lock(&c->lock);
        if (ok) ten_check(&h, c, &was, &is, rows, most > 0 ? fmin(1, most / (norm + 1e-6)) : 1);
        pthread_mutex_unlock(&c->lock);
    }
    if (!ok) test_rank_fail(rank, "%s", zero_last_error(h.z));
    zero_destroy(h.z);
}

static void ten_formulas(void) {
    static ten_case c;
    pthread_mutex_init(&c.lock, NULL);
    for (int rule = ZERO_LAMB; rule <= TEN_NORMUON; rule++)
        for (int type = 0; type < 3; type++) {
            double all[3] = {0, 0, 0};
            for (int k = 0; k < 24; k++) {
                const int nranks = 1 + k % 4;
                if (!test_sampled(5)) continue;
                memset(c.worst, 0, sizeof c.worst);
                ten_spec(&c.spec, nranks, k / 4 % 4, rule, (zero_type)type);
                c.spec.groups = k & 1;
                c.spec.adamw.max_norm = k & 2 ? 0.7f : 0;
                c.spec.cfg.trust_most = k & 4 ? 3.0f : 0;
                c.spec.cfg.trust_least = k & 8 ? 0.8f : 0;
                c.spec.cfg.muon = (zero_muon){k & 4 ? 0.8f : 0,
                                              k & 8 ? 0.3f : 0,
                                              k & 1 ? 3 : 0,
                                              k >> 1 & 1,
                                              k >> 2 & 1,
                                              k % 3 == 0,
                                              c.spec.cfg.muon.normalize};
                const int ok = test_ranks(nranks, 0, ten_formula_rank, &c);
                test_check(ok, "%s, type %d, %d: %s", ten_rules[rule], type, k, test_first);
                for (int i = 0; i < 3; i++) {
                    /* Polar Express multiplies the smallest singular values by up to 1,000. */
                    const int polar = i == 0 && rule >= ZERO_MUON && k % 3 == 0;
                    test_check(c.worst[i] <= (polar ? 2e-5 : 1e-6),
                               "%s, type %d, %d: %s is off by %.2g", ten_rules[rule], type, k,
                               i ? i > 1 ? "v" : "m" : "a weight", c.worst[i]);
                    ten_note(&all[i], c.worst[i]);
                }
            }
            printf("%s, type %d: steps off by at most %.2g, states by %.2g, %.2g\n",
                   ten_rules[rule], type, all[0], all[1], all[2]);
        }
}

/* ---- the same bits ---- */

/* Gradients that all ranks have alike, in the last micro-step: their mean over 2^k ranks is exact.
 */
static void ten_give(host_run *h, int t, size_t first, void *g) {
    const host_spec *s = h->spec;
    for (size_t i = 0; i < s->desc[t].numel; i++) {
        const uint64_t bits = test_mix((uint64_t)(h->step * 31 + t) * 977 + first + i);
        const float x = (float)((double)(bits >> 52) * 0x1p-12 - 0.5);
        host_put(g, host_grad_type(s), i, h->micro + 1 < s->micro_steps ? 0 : h->scale * x);
    }
    if (h->step == 2 && t == 1 && s->seed == 9) host_put(g, host_grad_type(s), 5, INFINITY);
}

/* All that is saved, by name; to memory that the next context reads. */
static float ten_saved[4][TEN_TENSORS][TEN_N];
static zero_counters ten_counters;
static int ten_move(host_run *h, int back) {
    static const zero_kind kinds[] = {ZERO_MASTER, ZERO_MOMENT_1, ZERO_MOMENT_2};
    for (int t = 0; t < TEN_TENSORS; t++)
        for (int k = 0; k < 3; k++) {
            const size_t n = host_numel(h->spec, t);
            static _Thread_local float here[TEN_N];
            float *all = ten_saved[k][t], *mine = h->rank->rank ? here : all;
            const char *name = h->spec->desc[t].name;
            if (k == 2 && !host_two(h->spec, t)) continue;
            if (back)
                HOST_TRY(h, zero_write_tensor(h->z, name, kinds[k], 0, n, all));
            else
                HOST_TRY(h, zero_read_tensor(h->z, name, kinds[k], 0, n, mine));
        }
    HOST_TRY(h, zero_state_begin(h->z));
    for (int i = 0; i < zero_state_ranges(h->z, back); i++) { /* moments of rows have no name */
        zero_range r;
        HOST_TRY(h, zero_state_range(h->z, back, i, &r));
        for (int t = 0; t < TEN_TENSORS; t++) {
            float *at = ten_saved[2][t] + r.first;
            if (r.kind != ZERO_MOMENT_2 || strcmp(r.name, h->spec->desc[t].name)) continue;
            if (host_two(h->spec, t)) continue;
            HOST_TRY(h, back ? zero_state_put(h->z, &r, at) : zero_state_get(h->z, &r, at));
        }
    }
    zero_counters counters;
    zero_state_counters(h->z, &counters);
    if (back)
        HOST_TRY(h, zero_state_set_counters(h->z, &ten_counters));
    else if (h->rank->rank == 0)
        ten_counters = counters;
    HOST_TRY(h, zero_state_end(h->z, 0));
    return 1;
}

static int ten_train(host_run *h, const ten_case *c, int until) {
    const host_spec *s = h->spec;
    for (; h->step < until; h->step++) {
        for (h->micro = 0; h->micro < s->micro_steps; h->micro++)
            if (!host_train_pass(h)) return 0;
        HOST_TRY(h, zero_reduce(h->z));
        if (c->skip && h->step == c->skip)
            HOST_TRY(h, zero_skip_step(h->z));
        else
            HOST_TRY(h, zero_step(h->z, &s->adamw));
        if (s->evaluate && !host_evaluate(h)) return 0;
    }
    return 1;
}

static void ten_rank(test_rank *rank) {
    ten_case *c = (ten_case *)rank->arg;
    const host_spec *s = &c->spec;
    zero_stats stats;
    zero_plan plan;
    host_run h;
    int ok = host_open(&h, s, rank);
    if (c->swap < 0) ok = ok && ten_move(&h, 1);
    if (c->swap < 0) h.step = 2;
    ok = ok && ten_train(&h, c, c->swap > 0 ? 2 : s->steps);
    if (c->swap > 0) ok = ok && ten_move(&h, 0);
    if (ok) c->hash[rank->rank] = host_hash(&h);
    ok = ok && !zero_query_plan(h.z, &plan) && !zero_query_stats(h.z, &stats);
    if (ok) {
        const uint64_t steps = (uint64_t)s->steps;
        c->sent[rank->rank] = stats.sent_bytes;
        c->planned[rank->rank] = plan.sent_bytes * steps;
        c->verdict[rank->rank] = stats.verdict_bytes;
        c->verdict_planned[rank->rank] = plan.verdict_bytes * steps;
        c->kept[rank->rank] = stats.allocated_bytes;
        c->kept_planned[rank->rank] =
            plan.param_bytes + plan.grad_bytes + plan.optimizer_bytes + plan.buffer_bytes;
        if (plan.buffer_bytes - plan.accumulator_bytes > plan.buffer_ceiling_bytes)
            test_rank_fail(rank, "buffers pass their ceiling");
        if (s->cfg.optimizer_tier == ZERO_FILE
            && (stats.file_read_bytes < plan.file_read_bytes * (steps - 1)
                || stats.file_written_bytes < plan.file_written_bytes * (steps - 1)))
            test_rank_fail(rank, "less came from the file, or went there, than was planned");
    }
    if (!ok) test_rank_fail(rank, "%s", zero_last_error(h.z));
    zero_destroy(h.z);
}

static int ten_run(ten_case *c, uint64_t *first, const char *what) {
    const int nranks = c->spec.nranks;
    int same = test_ranks(nranks, 0, ten_rank, c);
    if (!*first) *first = c->hash[0];
    for (int r = 0; r < nranks && same; r++) {
        same &= c->hash[r] == *first;
        if (c->spec.evaluate || c->swap || c->spec.cfg.delay_from) continue;
        test_check(c->sent[r] == c->planned[r] && c->verdict[r] == c->verdict_planned[r],
                   "%s: rank %d sent %llu of %llu bytes, %llu of %llu", what, r,
                   (unsigned long long)c->sent[r], (unsigned long long)c->planned[r],
                   (unsigned long long)c->verdict[r], (unsigned long long)c->verdict_planned[r]);
    }
    return test_check(same, "%s: other bits: %s", what, test_first);
}

/* What no bit depends on, drawn by number. */
static void ten_vary(host_spec *s, int n) {
    static const size_t buckets[] = {0, 4000, 100000};
    s->cfg.stage = n % 4;
    s->micro_steps = 1 + n / 4 % 2;
    s->cfg.accumulation = n / 8 % 2 ? ZERO_ACCUMULATE_LOCAL : ZERO_ACCUMULATE_SHARDED;
    s->cfg.no_overlap = n % 3 == 1;
    s->cfg.no_mapping = n % 5 == 1;
    s->cfg.bucket_numel = buckets[n % 3];
    s->cfg.threads = 1 + n % 2;
    s->cfg.prefetch = n % 7 ? 0 : ZERO_NONE;
    s->evaluate = n % 6 == 2;
    s->slots = n % 5 == 3;
    s->cfg.grads = ZERO_GRAD_AS_TYPE;
}

static void ten_bits(void) {
    static ten_case c;
    char what[128];
    for (int rule = ZERO_LAMB; rule <= TEN_NORMUON; rule++)
        for (int type = 0; type < 5; type++)
            for (int bad = 0; bad < 3; bad++) {
                uint64_t first = 0;
                for (int n = 0; n < 36; n++) {
                    const int nranks = 1 << n % 3;
                    if (!test_sampled(5)) continue;
                    ten_spec(&c.spec, nranks, 0, rule, (zero_type)(type % 3));
                    c.spec.cfg.master = type == 3 ? ZERO_MASTER_NONE : ZERO_MASTER_F32;
                    if (type == 4) c.spec.cfg.master = ZERO_MASTER_SPLIT;
                    if (type > 2) c.spec.cfg.type = ZERO_BF16;
                    c.spec.cfg.state_type = (zero_state_type)((type + bad) % ZERO_STATE_TYPES);
                    c.spec.poison = ten_give;
                    c.spec.seed = bad == 1 ? 9 : 3;
                    c.skip = bad == 2 ? 1 : 0;
                    ten_vary(&c.spec, n);
                    snprintf(what, sizeof what, "%s, type %d, bad %d, %d ranks, number %d",
                             ten_rules[rule], type, bad, nranks, n);
                    if (!ten_run(&c, &first, what)) return;
                }
            }
}

/* Other ranks' gradients are others: at each number of ranks, all stages. */
static void ten_stages(void) {
    static ten_case c;
    char what[128];
    for (int rule = ZERO_LAMB; rule <= TEN_NORMUON; rule++)
        for (int nranks = 2; nranks <= 5; nranks++)
            for (int local = 0; local < 2; local++) {
                uint64_t first = 0;
                for (int n = 0; n < 12; n++) {
                    if (!test_sampled(5)) continue;
                    ten_spec(&c.spec, nranks, 0, rule, ZERO_F32);
                    ten_vary(&c.spec, n);
                    c.spec.micro_steps = 2;
                    c.spec.cfg.accumulation =
                        local ? ZERO_ACCUMULATE_LOCAL : ZERO_ACCUMULATE_SHARDED;
                    snprintf(what, sizeof what, "%s, %d ranks, local %d, number %d",
                             ten_rules[rule], nranks, local, n);
                    if (!ten_run(&c, &first, what)) break;
                }
            }
}

/* Tiers, and updates that are delayed: those alike among themselves. */
static void ten_tiers(void) {
    static ten_case c;
    char what[128];
    for (int rule = ZERO_LAMB; rule <= TEN_NORMUON; rule++)
        for (int delay = 0; delay < 2; delay++) {
            uint64_t first = 0;
            for (int n = 0; n < 40; n++) {
                const int nranks = 1 << n % 3, tier = n / 4 % 4;
                if (!test_sampled(5)) continue;
                ten_spec(&c.spec, nranks, 0, rule, n & 1 ? ZERO_BF16 : ZERO_BF16);
                c.spec.poison = ten_give;
                ten_vary(&c.spec, n);
                c.spec.micro_steps = 1;
                c.spec.evaluate = 0;
                c.spec.cfg.stage = n % 4;
                c.spec.cfg.folder = ten_folder;
                c.spec.cfg.delay_from = delay ? 2 : 0;
                if (tier) c.spec.cfg.optimizer_tier = tier == 3 ? ZERO_HOST : ZERO_FILE;
                if (tier == 2 && c.spec.cfg.stage >= 2) c.spec.cfg.gradient_tier = ZERO_FILE;
                if (tier == 2 && c.spec.cfg.stage == 3) c.spec.cfg.parameter_tier = ZERO_FILE;
                if (tier && n & 1) c.spec.cfg.offload_share = 0.5f;
                snprintf(what, sizeof what, "%s, delay %d, tier %d, stage %d, %d ranks, number %d",
                         ten_rules[rule], delay, tier, c.spec.cfg.stage, nranks, n);
                if (!ten_run(&c, &first, what)) break;
            }
        }
}

/* Units of several pieces of a file, which matrices and what is none share. */
static void ten_pieces(void) {
    static const zero_tensor_desc desc[] = {
        {"plain", 300000, .layers = 1}, {"mat", 8 * 50000, .layers = 1}, {"b", 33, 1, .unit = 1}};
    static ten_case c;
    char what[128];
    for (int rule = ZERO_LAMB; rule <= TEN_NORMUON; rule++)
        for (int delay = 0; delay < 2; delay++) {
            uint64_t first = 0;
            for (int n = 0; n < 8; n++) {
                if (!test_sampled(3)) continue;
                ten_spec(&c.spec, 1 + n % 2, 0, rule, ZERO_BF16);
                c.spec.ntensors = 3;
                c.spec.units = 2;
                memcpy(c.spec.desc, desc, sizeof desc);
                memset(c.spec.rows, 0, sizeof c.spec.rows);
                c.spec.rows[1] = 8;
                c.spec.cols[1] = 50000;
                c.spec.poison = ten_give;
                c.spec.cfg.stage = n / 2;
                c.spec.cfg.folder = ten_folder;
                c.spec.cfg.delay_from = delay ? 2 : 0;
                c.spec.cfg.optimizer_tier = n ? ZERO_FILE : ZERO_DEVICE;
                if (n == 7) c.spec.cfg.parameter_tier = c.spec.cfg.gradient_tier = ZERO_FILE;
                snprintf(what, sizeof what, "pieces: %s, delay %d, number %d", ten_rules[rule],
                         delay, n);
                if (!ten_run(&c, &first, what)) break;
            }
        }
}

/* State that goes to another stage and number of ranks. */
static void ten_moves(void) {
    static ten_case c;
    char what[128];
    for (int rule = ZERO_LAMB; rule <= TEN_NORMUON; rule++)
        for (int from = 0; from < 4; from++)
            for (int to = 0; to < 4; to++) {
                uint64_t whole = 0, half = 0;
                if (!test_sampled(3)) continue;
                snprintf(what, sizeof what, "%s, from stage %d to %d", ten_rules[rule], from, to);
                ten_spec(&c.spec, 2, from, rule, ZERO_BF16);
                c.spec.poison = ten_give;
                c.swap = 0;
                ten_run(&c, &whole, what);
                c.swap = 1;
                ten_run(&c, &half, what);
                c.swap = -1;
                ten_spec(&c.spec, 4 - to % 2 * 3, to, rule, ZERO_BF16);
                c.spec.poison = ten_give;
                ten_run(&c, &whole, what);
                test_check(half != whole, "%s: two steps are not four", what);
            }
}

/* ---- the libraries' figures ---- */

typedef struct ten_host {
    float *wide, *tall, *vector;
} ten_host;
enum { TEN_FIGURES = 3, TEN_FIGURE_STEPS = 3 };
static const size_t ten_shape[TEN_FIGURES][2] = {{6, 10}, {11, 5}, {7, 0}};
static const char *const ten_name[TEN_FIGURES] = {"wide", "tall", "vector"};

typedef struct ten_figures {
    zero_config cfg;
    float lr;
    float found[TEN_FIGURES][64];
} ten_figures;

/* As tests/reference/optimizers.py has them. */
static float ten_figure(size_t what, size_t i) {
    const uint32_t bits = (uint32_t)((uint64_t)(1000 * what + i) * 2654435761u);
    return (float)((double)(bits >> 8) * 0x1p-24 - 0.5);
}
static size_t ten_figure_numel(int t) {
    return ten_shape[t][0] * (ten_shape[t][1] ? ten_shape[t][1] : 1);
}

static zero_result ten_figure_train(test_rank *rank, zero_ctx **z, ten_figures *f) {
    const zero_hyper hyper = {f->lr, 0.9f, 0.95f, f->cfg.optimizer == ZERO_ADAGRAD ? 1e-10f : 1e-8f,
                              0.1f,  0};
    const zero_comm comm = test_comm(rank);
    ten_host p = {0}, g = {0};
    float *const *grads[] = {&g.wide, &g.tall, &g.vector};
    ZERO_TRY(zero_create(z, &f->cfg, &comm));
    for (int t = 0; t < TEN_FIGURES; t++) {
        zero_tensor_desc d = {ten_name[t], ten_figure_numel(t), 1, .flags = ZERO_KEEP,
                              .field = (size_t)t * sizeof(float *)};
        if (ten_shape[t][1]) d.rows = ten_shape[t][0], d.cols = ten_shape[t][1];
        ZERO_TRY(zero_tensor(*z, &d));
    }
    ZERO_TRY(zero_build(*z));
    ZERO_TRY(zero_bind(*z, &p, &g));
    for (int t = 0; t < TEN_FIGURES; t++) {
        float x[64];
        for (size_t i = 0; i < ten_figure_numel(t); i++) x[i] = ten_figure(1 + (size_t)t, i);
        ZERO_TRY(zero_write_tensor(*z, ten_name[t], ZERO_PARAMETER, 0, ten_figure_numel(t), x));
    }
    for (size_t step = 0; step < TEN_FIGURE_STEPS; step++) {
        ZERO_TRY(zero_train_begin(*z));
        for (size_t t = 0; t < TEN_FIGURES; t++)
            for (size_t i = 0; i < ten_figure_numel((int)t); i++)
                (*grads[t])[i] = ten_figure(10 + 3 * step + t, i);
        ZERO_TRY(zero_train_end(*z, &hyper, 0, NULL));
    }
    for (int t = 0; t < TEN_FIGURES; t++)
        ZERO_TRY(zero_read_tensor(*z, ten_name[t], ZERO_PARAMETER, 0, ten_figure_numel(t),
                                  rank->rank ? NULL : f->found[t]));
    return ZERO_OK;
}
static void ten_figure_rank(test_rank *rank) {
    zero_ctx *z = NULL;
    if (ten_figure_train(rank, &z, (ten_figures *)rank->arg))
        test_rank_fail(rank, "%s", zero_last_error(z));
    zero_destroy(z);
}

/* One line of figures: at every stage, by one rank and by two. */
static void ten_line(char *line) {
    static const struct {
        const char *name;
        zero_optimizer rule;
        zero_muon muon;
        double near; /* torch's bfloat16 has 8 bits */
    } rows[] = {
        {"adagrad", ZERO_ADAGRAD, {.momentum = 0}, 1e-6},
        {"lamb", ZERO_LAMB, {.momentum = 0}, 1e-6},
        {"muon", ZERO_MUON, {.plain_lr = 0.5f}, 3e-3},
        {"muon32", ZERO_MUON, {.plain_lr = 0.5f}, 2e-6},
        {"normuon32", ZERO_MUON, {.plain_lr = 0.5f, .normalize = 0.95f}, 2e-6},
        {"muon_rms32", ZERO_MUON, {.momentum = 0.8f, .match_rms = 1, .no_nesterov = 1}, 2e-6}};
    char *rest = NULL, *rule = strtok_r(line, " \n", &rest), *name = strtok_r(NULL, " \n", &rest);
    int row = 0, t = 0;
    while (row < 5 && strcmp(rows[row].name, rule) != 0) row++;
    while (t < TEN_FIGURES - 1 && strcmp(ten_name[t], name) != 0) t++;
    double expected[64];
    size_t n = 0;
    for (char *x; n < 64 && (x = strtok_r(NULL, " \n", &rest)) != NULL; n++)
        expected[n] = strtod(x, NULL);
    test_check(n == ten_figure_numel(t), "%s of %s has %zu figures", name, rule, n);
    for (int k = 0; k < 8; k++) {
        ten_figures f = {.cfg = {.stage = k / 2,
                                 .optimizer = rows[row].rule,
                                 .muon = rows[row].muon,
                                 .threads = 1},
                         .lr = 0.02f};
        double worst = 0;
        const int ok = test_ranks(1 + k % 2, 0, ten_figure_rank, &f);
        for (size_t i = 0; i < n; i++)
            worst = fmax(worst, fabs((double)f.found[t][i] - expected[i]));
        test_check(ok && worst <= rows[row].near
                       && (strcmp(rule, "muon") || t == 2 || worst > 1e-5),
                   "%s, %s, stage %d, %d ranks: off by %.2g: %s", rule, name, k / 2, 1 + k % 2,
                   worst, test_first);
    }
}
static void ten_libraries(const char *path) {
    static char line[4096];
    FILE *file = fopen(path, "r");
    int lines = 0;
    while (file && fgets(line, sizeof line, file))
        if (line[0] != '#') ten_line(line), lines++;
    test_check(lines == 16, "%s has %d lines of figures", path, lines);
    if (file) (void)fclose(file);
}

/* ---- slices ---- */

/* Two matrices, cut over two ranks by rows and by columns, and a vector that is whole: the same
   bits as without slices, on two data-parallel ranks each. */
enum { TEN_CUT = 3, TEN_CUT_NUMEL = 96 };
static const size_t ten_cut_shape[TEN_CUT][2] = {{8, 12}, {12, 8}, {1, 7}};
typedef struct ten_slices_run {
    zero_config cfg;
    int cut;
    float found[TEN_CUT][TEN_CUT_NUMEL]; /* dense */
} ten_slices_run;

/* Where a rank has dense element i of tensor t; -1: it has not. */
static long ten_cut_place(int t, int cut, int slice, size_t i) {
    const size_t cols = ten_cut_shape[t][1], row = i / cols, col = i % cols, half = cols / 2;
    if (!cut || t == 2) return (long)i;
    if (t == 0) return (int)(row / 4) == slice ? (long)(row % 4 * cols + col) : -1;
    return (int)(col / half) == slice ? (long)(row * half + col % half) : -1;
}
static size_t ten_cut_numel(int t) { return ten_cut_shape[t][0] * ten_cut_shape[t][1]; }
static void ten_cut_fill(const ten_slices_run *f, int t, int slice, size_t what, float times,
                         float *out) {
    for (size_t i = 0; i < ten_cut_numel(t); i++) {
        const long at = ten_cut_place(t, f->cut, slice, i);
        if (at >= 0) out[at] = times * ten_figure(what, i);
    }
}

static zero_result ten_cut_train(test_rank *rank, zero_ctx **z, zero_group **g) {
    static const char *const name[TEN_CUT] = {"rows", "cols", "vector"};
    static const size_t outer[] = {1, 12};
    ten_slices_run *f = (ten_slices_run *)rank->arg;
    const zero_hyper hyper = {0.02f, 0.9f, 0.95f, 1e-8f, 0.1f, 0};
    const zero_comm comm = test_comm(rank);
    const int slice = f->cut ? rank->rank % 2 : 0, data = f->cut ? rank->rank / 2 : rank->rank;
    ten_host p = {0}, d = {0};
    float *const *grads[] = {&d.wide, &d.tall, &d.vector}, x[TEN_CUT_NUMEL];
    ZERO_TRY(zero_group_open(&g[0], &comm, NULL, 30));
    ZERO_TRY(zero_group_split(g[0], slice, data, &g[1]));
    ZERO_TRY(zero_group_split(g[0], data, slice, &g[2]));
    const zero_comm own = zero_group_comm(g[1]);
    ZERO_TRY(zero_create(z, &f->cfg, &own));
    for (int t = 0; t < TEN_CUT; t++) {
        const size_t numel = ten_cut_numel(t) / (f->cut && t < 2 ? 2 : 1);
        zero_tensor_desc desc = {name[t], numel, .flags = ZERO_KEEP,
                                 .field = (size_t)t * sizeof(float *)};
        if (t < 2 && f->cut) desc.slice_of = g[2], desc.outer = outer[t];
        if (t < 2) desc.rows = ten_cut_shape[t][0], desc.cols = ten_cut_shape[t][1];
        ZERO_TRY(zero_tensor(*z, &desc));
    }
    ZERO_TRY(zero_build(*z));
    ZERO_TRY(zero_bind(*z, &p, &d));
    for (int t = 0; t < TEN_CUT; t++) {
        ten_cut_fill(f, t, slice, 1 + (size_t)t, 1, x);
        const size_t numel = ten_cut_numel(t) / (f->cut && t < 2 ? 2 : 1);
        ZERO_TRY(zero_write_tensor(*z, name[t], ZERO_PARAMETER, 0, numel, x));
    }
    for (size_t step = 0; step < 3; step++) {
        ZERO_TRY(zero_train_begin(*z));
        for (int t = 0; t < TEN_CUT; t++)
            ten_cut_fill(f, t, slice, 10 + 3 * step + (size_t)t, (float)(1 + data), *grads[t]);
        ZERO_TRY(zero_train_end(*z, &hyper, 0, NULL));
    }
    for (int t = 0; t < TEN_CUT; t++) {
        const size_t numel = ten_cut_numel(t) / (f->cut && t < 2 ? 2 : 1);
        ZERO_TRY(zero_read_tensor(*z, name[t], ZERO_PARAMETER, 0, numel, x));
        for (size_t i = 0; i < ten_cut_numel(t) && data == 0; i++) {
            const long at = ten_cut_place(t, f->cut, slice, i);
            if (at >= 0 && (t < 2 || slice == 0)) f->found[t][i] = x[at];
        }
    }
    zero_plan plan;
    zero_stats stats;
    ZERO_TRY(zero_query_plan(*z, &plan));
    ZERO_TRY(zero_query_stats(*z, &stats));
    if (stats.verdict_bytes != 3 * plan.verdict_bytes)
        test_rank_fail(rank, "three verdicts sent %llu bytes, each was planned %zu",
                       (unsigned long long)stats.verdict_bytes, plan.verdict_bytes);
    return ZERO_OK;
}
static void ten_cut_rank(test_rank *rank) {
    zero_ctx *z = NULL;
    zero_group *g[3] = {NULL, NULL, NULL};
    if (ten_cut_train(rank, &z, g))
        test_rank_fail(rank, "%s; %s", zero_last_error(z), zero_group_error(g[0]));
    zero_destroy(z);
    for (int i = 2; i >= 0; i--) zero_group_close(g[i]);
}
static void ten_sliced(void) {
    static const zero_optimizer rules[] = {ZERO_LAMB, ZERO_MUON, ZERO_ADAMW};
    for (int k = 0; k < 12; k++) {
        ten_slices_run whole = {.cfg = {.stage = k % 4, .optimizer = rules[k / 4], .threads = 1}};
        ten_slices_run cut = whole;
        cut.cut = 1;
        const int ok =
            test_ranks(2, 0, ten_cut_rank, &whole) && test_ranks(4, 0, ten_cut_rank, &cut);
        test_check(
            ok && whole.found[0][0] != 0 && !memcmp(whole.found, cut.found, sizeof whole.found),
            "rule %d, stage %d: slices have other bits: %s", (int)rules[k / 4], k % 4, test_first);
    }
    ten_slices_run rows = {.cfg = {.optimizer = ZERO_MUON, .muon = {.normalize = 0.5f}}, .cut = 1};
    test_check(!test_ranks(4, 0, ten_cut_rank, &rows)
                   && strstr(test_first, "muon.normalize is 0.5, but tensor"),
               "rows of slices: %s", test_first);
}

/* ---- memory, and errors ---- */

static zero_ctx *ten_alone(zero_optimizer rule, int matrices) {
    static const zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
    const zero_config cfg = {.stage = 2, .optimizer = rule};
    zero_ctx *z = NULL;
    if (zero_create(&z, &cfg, &self)) return z;
    zero_tensor_desc desc[] = {{"emb", 4096, .layers = 1}, {"w", 64 * 64, 4, .unit = 1}};
    if (matrices) desc[1].rows = desc[1].cols = 64;
    if (zero_tensors(z, desc, 2)) test_check(0, "%s", zero_last_error(z));
    return z;
}

static void ten_memory(void) {
    static const size_t of[] = {8, 4}; /* bytes of state, of an element */
    for (int matrices = 0; matrices < 2; matrices++) {
        zero_plan plan = {0};
        zero_ctx *z = ten_alone(ZERO_MUON, matrices);
        test_check(!zero_query_plan(z, &plan)
                       && plan.optimizer_bytes == 8 * 4096 + of[matrices] * 4 * 64 * 64
                       && plan.formula_bytes == 8 * plan.numel + plan.optimizer_bytes,
                   "Muon's state takes %zu bytes", plan.optimizer_bytes);
        zero_stats stats = {0};
        const size_t planned =
            plan.param_bytes + plan.grad_bytes + plan.optimizer_bytes + plan.buffer_bytes;
        test_check(!zero_build(z) && !zero_query_stats(z, &stats)
                       && stats.allocated_bytes >= planned
                       && stats.allocated_bytes <= planned + 32768,
                   "Muon has got %zu bytes, planned are %zu", stats.allocated_bytes, planned);
        zero_destroy(z);
    }
    for (int rule = ZERO_ADAMW; rule <= ZERO_LAMB; rule++) { /* who needs none knows of none */
        zero_plan plan, with;
        zero_ctx *z = ten_alone(rule, 0), *y = ten_alone(rule, 1);
        test_check(!zero_query_plan(z, &plan) && !zero_query_plan(y, &with)
                       && !memcmp(&plan, &with, sizeof plan),
                   "matrices change the plan of rule %d", rule);
        zero_destroy(z);
        zero_destroy(y);
    }
}

static void ten_refused(zero_ctx *z, zero_result r, zero_result expected, const char *words) {
    test_check(r == expected && strstr(zero_last_error(z), words), "%d, not \"%s\": %s", (int)r,
               words, zero_last_error(z));
}
/* Moments of rows as state: every element of a row has the value of the row's first one. */
static void ten_row_state(void) {
    static float values[4 * 4096];
    static const zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
    zero_config cfg = {.optimizer = ZERO_MUON, .muon = {.normalize = 0.5f}};
    zero_tensor_desc w = {"w", 64 * 64, 4, .rows = 64, .cols = 64, .frozen = "\0\0\0\1"};
    zero_ctx *z = NULL;
    test_check(!zero_create(&z, &cfg, &self) && !zero_tensors(z, &w, 1) && !zero_build(z)
                   && !zero_state_begin(z),
               "%s", zero_last_error(z));
    for (size_t i = 0; i < 4 * 4096; i++) values[i] = (float)i;
    const zero_range all = {"w", ZERO_MOMENT_2, ZERO_F32, 0, 4 * 4096},
                     part = {"w", ZERO_MOMENT_2, ZERO_F32, 4096 + 63, 66},
                     half = {"w", ZERO_MOMENT_2, ZERO_BF16, 0, 1},
                     far = {"w", ZERO_MOMENT_2, ZERO_F32, 4 * 4096, 1};
    test_check(!zero_state_put(z, &all, values), "%s", zero_last_error(z));
    test_check(!zero_state_get(z, &part, values + 8192), "%s", zero_last_error(z));
    for (size_t i = 0; i < 66; i++)
        test_check(values[8192 + i] == (float)((4096 + 63 + i) / 64 * 64), "element %zu is %g", i,
                   (double)values[8192 + i]);
    values[0] = -1, values[1] = -2; /* the second one begins a row, as the 66th does */
    test_check(!zero_state_put(z, &part, values) && !zero_state_get(z, &all, values)
                   && values[4096 + 0] == 4096 && values[4096 + 64] == -2
                   && values[4096 + 127] == -2 && values[4096 + 128] == 65,
               "a part of a row was put: %g, %g, %g", (double)values[4096 + 0],
               (double)values[4096 + 64], (double)values[4096 + 128]);
    ten_refused(z, zero_state_get(z, &half, values), ZERO_ERR_ARGUMENT, "expected values of [0");
    ten_refused(z, zero_state_put(z, &far, values), ZERO_ERR_ARGUMENT, "expected values of [0");
    size_t saved = 0, loaded = 0; /* a frozen layer is saved, as zeros */
    for (int whole = 0; whole < 2; whole++)
        for (int i = 0; i < zero_state_ranges(z, whole); i++) {
            zero_range r;
            test_check(!zero_state_range(z, whole, i, &r), "%s", zero_last_error(z));
            *(whole ? &loaded : &saved) += r.kind == ZERO_MOMENT_2 ? r.count : 0;
        }
    test_check(saved == 4 * 4096 && loaded == 3 * 4096 && values[3 * 4096 + 64] == 0
                   && values[3 * 4096 - 1] == 3 * 4096 - 64,
               "%zu are saved, %zu loaded, %g, %g", saved, loaded, (double)values[3 * 4096 + 64],
               (double)values[3 * 4096 - 1]);
    test_check(!zero_state_end(z, 0), "%s", zero_last_error(z));
    zero_destroy(z);
}
/* Of slices over one rank all is whole. */
static void ten_slices(void) {
    static const zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
    zero_group *g = NULL;
    zero_ctx *z = ten_alone(ZERO_MUON, 0);
    test_check(!zero_group_open(&g, &self, NULL, 0), "%s", zero_group_error(g));
    zero_tensor_desc v = {.name = "v", .numel = 64 * 64, .unit = 5, .outer = 64};
    ten_refused(z, zero_tensor(z, &v), ZERO_ERR_ARGUMENT, "slice_of is NULL");
    v.slice_of = g;
    v.outer = 63;
    ten_refused(z, zero_tensor(z, &v), ZERO_ERR_ARGUMENT, "does not divide its 4096");
    v.rows = v.cols = v.outer = 64;
    test_check(!zero_tensor(z, &v) && !zero_build(z), "%s", zero_last_error(z));
    zero_destroy(z);
    zero_group_close(g);
}
static void ten_errors(void) {
    static const size_t sides[][2] = {{64, 0}, {0, 64}, {65, 64}, {4096, 2}, {(size_t)-1, 2}};
    static const zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
    zero_config cfg = {.optimizer = ZERO_LAMB, .trust_least = 2, .trust_most = 1};
    zero_ctx *z = ten_alone(ZERO_MUON, 1);
    for (int i = 0; i < 5; i++) {
        const zero_tensor_desc v = {
            .name = "v", .numel = 64 * 64, .rows = sides[i][0], .cols = sides[i][1]};
        ten_refused(z, zero_tensor(z, &v), ZERO_ERR_ARGUMENT,
                    "whose product divides its 4096 elements");
    }
    float x[4];
    test_check(!zero_build(z), "%s", zero_last_error(z));
    ten_refused(z, zero_read_tensor(z, "w", ZERO_MOMENT_2, 0, 4, x), ZERO_ERR_ARGUMENT,
                "muon has no such state array for matrices");
    test_check(!zero_read_tensor(z, "emb", ZERO_MOMENT_2, 0, 4, x), "%s", zero_last_error(z));
    zero_destroy(z);
    ten_slices();
    ten_row_state();
    test_check(zero_create(&z, &cfg, &self) == ZERO_ERR_ARGUMENT
                   && strstr(zero_last_error(z), "trust_least 2 is above trust_most 1"),
               "%s", zero_last_error(z));
    zero_destroy(z);
    cfg = (zero_config){.optimizer = ZERO_LAMB, .trust_least = 0.5f, .trust_most = 0.25f};
    test_check(zero_create(&z, &cfg, &self) == ZERO_ERR_ARGUMENT
                   && strstr(zero_last_error(z), "trust_least 0.5 is above trust_most 0.25"),
               "%s", zero_last_error(z));
    zero_destroy(z);
    cfg = (zero_config){.optimizer = ZERO_MUON, .muon = {.momentum = 1}};
    test_check(zero_create(&z, &cfg, &self) == ZERO_ERR_ARGUMENT
                   && strstr(zero_last_error(z), "muon.momentum is 1, expected a finite number"),
               "%s", zero_last_error(z));
    zero_destroy(z);
}

int main(int argc, char **argv) {
    (void)alarm(600); /* a wait for ever is a failure */
    if (argc > 1) ten_folder = argv[1];
    ten_formulas();
    ten_bits();
    ten_stages();
    ten_tiers();
    ten_pieces();
    ten_moves();
    ten_libraries("tests/reference/optimizers.txt");
    ten_memory();
    ten_sliced();
    ten_errors();
    return test_summary();
}

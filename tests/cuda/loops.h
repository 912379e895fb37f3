/* loops.h - every kernel of a CUDA build against its loop form, which runs on a lane of the host:
   the same bytes in memory, padding included. Included behind the plugin by test_cuda. */
#ifndef TEST_LOOPS_H
#define TEST_LOOPS_H

#include "../shared/lanes.h"

/* NaN has other bits on a GPU than on the CPU, and an operation of the CPU makes a negative one. So
   memories may have different NaNs where a test has some on purpose, and none elsewhere. */
enum { LOOP_N = 5 * 1024 + 256, LOOP_BLOCKS = 6, LOOP_RANKS = 4, LOOP_PARTS = 41 };

typedef struct loop_memory {
    float p[LOOP_N], master[LOOP_N], s1[LOOP_N], s2[LOOP_N], sum[LOOP_N], dealt[LOOP_N];
    uint16_t low[LOOP_N];
    zp_codes c1[LOOP_N / ZP_CODE_BLOCK], c2[LOOP_N / ZP_CODE_BLOCK]; /* s1 and s2 in 8 bits */
    float g[LOOP_RANKS][LOOP_N];
    double partial[LOOP_BLOCKS], verdict[ZP_VERDICT], verdicts[LOOP_RANKS][ZP_VERDICT];
    zp_control control;
    zp_span spans[3];
    zp_limb sums[LOOP_PARTS][2][ZP_LIMBS];
    double trust[LOOP_PARTS];
} loop_memory;

typedef struct loop_test {
    zp_device device;
    zp_stream stream;
    zp_lane lane;
    loop_memory *kernel, *loop; /* what each works on */
    test_random random;
    zero_type type; /* of p and g */
    int nans;       /* 1: in g[1] and sum */
} loop_test;

static int loop_is_nan(const void *x, zero_type type, size_t i) {
    return zp_type_is_nan((double)zp_type_load(x, type, i));
}
static size_t loop_count_nans(const void *x, zero_type type, size_t n) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += (size_t)loop_is_nan(x, type, i);
    return count;
}
/* Replaces each NaN by that of a GPU's operations. */
static void loop_set_nans(void *x, zero_type type, size_t n) {
    const float nan = zp_type_bits_to_float(0x7FFFFFFFu);
    for (size_t i = 0; i < n; i++)
        if (loop_is_nan(x, type, i)) zp_type_store(x, type, i, nan);
}

static float loop_float(loop_test *t, int low, int high) {
    const uint64_t x = test_next(&t->random);
    const double f =
        ldexp(1.0 + (double)(x >> 12) * 0x1p-52, low + (int)(x % (uint64_t)(high - low)));
    return (float)(x >> 5 & 1 ? f : -f);
}

/* n numbers of that type. */
static void loop_numbers(loop_test *t, void *to, zero_type type, size_t n) {
    for (size_t i = 0; i < n; i++) zp_type_store(to, type, i, loop_float(t, -12, 3));
}

/* Both memories hold the same: gradients, weights and state of `type`; spans with padding between.
 */
static void loop_fill(loop_test *t, zero_type type) {
    loop_memory *m = t->kernel;
    memset(m, 0, sizeof *m);
    t->type = type;
    t->nans = 0;
    for (int r = 0; r < LOOP_RANKS; r++) loop_numbers(t, m->g[r], type, LOOP_N);
    loop_numbers(t, m->p, type, LOOP_N);
    loop_numbers(t, m->sum, ZERO_F32, LOOP_N);
    loop_numbers(t, m->master, ZERO_F32, LOOP_N);
    for (int i = 0; i < LOOP_N; i++) m->low[i] = zp_type_lower(m->master[i]);
    for (int i = 0; i < LOOP_N; i++) m->s2[i] = fabsf(m->s1[i] = loop_float(t, -20, -10));
    const zp_span spans[3] = {
        {0, 1000, 7, 1, 1, 3, 300, 0, 4, 0},
        {1024, 4100, ((uint64_t)1 << 32) - 99, 0.5f, 2, 4, 1ul << 30, 4, 5, 0},
        {4224, LOOP_N - 32, (uint64_t)-4224, 1, 0, 5, 37, 9, 32, 0.7f}};
    memcpy(m->spans, spans, sizeof spans);
    for (int i = 0; i < LOOP_PARTS; i++) m->trust[i] = fabs((double)loop_float(t, -3, 3));
    for (int i = 0; i < LOOP_N; i++) m->dealt[i] = loop_float(t, -6, 0);
    const size_t gaps[3][2] = {{1000, 1024}, {4100, 4224}, {LOOP_N - 32, LOOP_N}};
    for (int k = 0; k < 3; k++)
        for (size_t i = gaps[k][0]; i < gaps[k][1]; i++) {
            zp_type_store(m->p, type, i, 0);
            zp_type_store(m->g[0], type, i, 0);
            m->master[i] = m->s1[i] = m->s2[i] = m->dealt[i] = 0;
            m->low[i] = 0;
        }
    for (size_t i = 0; i < LOOP_N / ZP_CODE_BLOCK; i++) {
        zp_codes_replace(m->c1, i, m->s1, 0, LOOP_N, 0);
        zp_codes_replace(m->c2, i, m->s2, 0, LOOP_N, 1);
    }
    for (int r = 0; r < LOOP_RANKS; r++) m->verdicts[r][0] = fabs((double)loop_float(t, -4, 4));
    m->control.scale = 64;
    m->control.divisor = 2;
    m->control.stored = 128;
    m->control.steps = 4;
    m->control.hysteresis = 1;
    m->control.factor = 0.37;
    m->control.bias_ratio = 1.3;
    m->control.root_correction = 0.4;
    memcpy(t->loop, t->kernel, sizeof *m);
}

/* Makes the first array of state sums of squares. */
static void loop_make_squares(loop_test *t) {
    loop_memory *m = t->kernel;
    for (size_t i = 0; i < LOOP_N; i++) m->s1[i] = fabsf(m->s1[i]);
    for (size_t i = 0; i < LOOP_N / ZP_CODE_BLOCK; i++)
        zp_codes_replace(m->c1, i, m->s1, 0, LOOP_N, 0);
    memcpy(t->loop, m, sizeof *m);
}

/* Runs the loop behind the kernel, which was launched, and compares. */
static void loop_check(loop_test *t, zp_task_fn loop, const void *args, size_t bytes, size_t n,
                       const char *name, int how) {
    zp_lane_event end = {NULL, 0, 0};
    const zero_result r = zp_device_sync_stream(&t->stream);
    zp_lane_push(&t->lane, NULL, loop, args, bytes, n);
    zp_lane_record(&t->lane, &end);
    zp_lane_wait_event(&end);
    for (int k = 0; k < 2 && t->nans; k++) {
        loop_memory *m = k ? t->loop : t->kernel;
        loop_set_nans(m->g[1], t->type, LOOP_N);
        loop_set_nans(m->sum, ZERO_F32, LOOP_N);
    }
    const char *a = (const char *)t->kernel, *b = (const char *)t->loop;
    size_t at = 0;
    while (at < sizeof *t->kernel && a[at] == b[at]) at++;
    test_check(!r && at == sizeof *t->kernel, "%s, %d: loop and kernel differ at byte %zu", name,
               how, at);
}
/* F with the arguments that `make` says for a memory. */
#define LOOP_RUN(t, F, make, n, how)                                                               \
    do {                                                                                           \
        auto a = make((t)->kernel), b = make((t)->loop);                                           \
        test_check(!F(&(t)->stream, &a, n), "%s is launched", #F);                                 \
        loop_check(t, F##_loop, &b, sizeof b, n, #F, how);                                         \
    } while (0)

/* The same bits, or NaN in both. */
static int loop_equal(const double *a, const double *b, size_t n) {
    size_t i = 0;
    while (i < n
           && (!memcmp(a + i, b + i, sizeof *a) || (zp_type_is_nan(a[i]) && zp_type_is_nan(b[i]))))
        i++;
    return i == n;
}
/* The squares of a unit, by one launch and by two loops: the same sums of blocks, the same verdict,
   where all is well and where elements are not finite. A large unit has several thread blocks for
   each group of lanes, and more blocks in a lane than are loaded at once. */
static void loop_squares(loop_test *t) {
    static const size_t sizes[] = {1, 6, 33, 700, 67 * ZP_FOLD_LANES - 5};
    zp_fold *fold = (zp_fold *)zp_device_alloc(&t->device, sizeof *fold);
    for (int how = 0; how < 15; how++) {
        const zero_type type = (zero_type)(how % 3);
        const size_t blocks = sizes[how / 3], n = blocks * ZP_NORM_BLOCK - 32 * 27;
        const size_t width = zp_type_bytes(type), some = n < 4000 ? n : 4000;
        char *g = (char *)zp_device_alloc(&t->device, n * width);
        double *partial[2], *verdict[2];
        for (int k = 0; k < 2; k++) {
            partial[k] = (double *)zp_device_alloc(&t->device, blocks * sizeof(double));
            verdict[k] = (double *)zp_device_alloc(&t->device, (ZP_VERDICT + 1) * sizeof(double));
        }
        if (!test_check(fold && g && partial[1] && verdict[1], "memory")) return;
        loop_numbers(t, g, type, some);
        for (size_t at = 0; at < some; at++) { /* in a row: zeros, or squares beyond f32 */
            const size_t row = at / 32 % 7, block = at / ZP_NORM_BLOCK;
            if (row == 1 || block == 1) zp_type_store(g, type, at, at % 3 ? 0.0f : -0.0f);
            if (row == 2 && block != 1) zp_type_store(g, type, at, 1e-30f * (float)at);
            if (row == 3 && block < 3 && type != ZERO_F16)
                zp_type_store(g, type, at, 1e30f * (float)at);
        }
        for (size_t at = some; at < n; at++)
            memcpy(g + at * width, g + (at * 7 % some) * width, width);
        for (int bad = 0; bad < 3; bad++) { /* none, the last element, an earlier one */
            const size_t at = bad == 1 ? n - 1 : n / 3;
            if (bad) zp_type_store(g, type, at, bad == 1 ? INFINITY : NAN);
            for (int k = 0; k < 2; k++) {
                memset(verdict[k], 0, (ZP_VERDICT + 1) * sizeof(double));
                const zp_kernel_fold_args a = {{g, type, n, partial[k]},
                                               verdict[k],
                                               5,
                                               640,
                                               how % 2 ? verdict[k] + ZP_VERDICT : NULL,
                                               k ? NULL : fold};
                if (k) zp_kernel_norm_loop(&a.norm, blocks, 2);
                if (k) zp_kernel_fold_loop(&a, 1, 1);
                if (!k)
                    test_check(!zp_kernel_take_squares(&t->stream, &a)
                                   && !zp_device_sync_stream(&t->stream),
                               "squares are taken");
            }
            const double *v = verdict[0];
            test_check(loop_equal(partial[0], partial[1], blocks)
                           && loop_equal(v, verdict[1], ZP_VERDICT + 1),
                       "squares of %zu blocks, %d, %d bad: %g instead of %g", blocks, how, bad,
                       v[how % 2 ? ZP_VERDICT : 0], verdict[1][how % 2 ? ZP_VERDICT : 0]);
            test_check(bad ? v[1] == 6 && v[2] == 640.0 + (double)at
                           : v[how % 2 ? ZP_VERDICT : 0] > 0 && v[1] == 0,
                       "squares of %zu blocks, %d: unit %g, element %g", blocks, bad, v[1], v[2]);
        }
        for (int k = 0; k < 2; k++) {
            zp_device_free(partial[k]);
            zp_device_free(verdict[k]);
        }
        zp_device_free(g);
    }
    zp_device_free(fold);
}

/* The verdicts of n ranks, with the squares of `units` units each: some ranks differ, some have a
   bad unit, one did not arrive. */
static void loop_make_verdicts(loop_test *t, double *verdicts, int *order, int n, int units,
                               int how) {
    const int words = ZP_VERDICT + units;
    for (int r = 0; r < n; r++) {
        double *v = verdicts + words * r;
        for (int i = 0; i < words; i++)
            v[i] = i < ZP_CALL ? 0 : i < ZP_VERDICT ? 1.5 * i : fabs((double)loop_float(t, -9, 9));
        v[ZP_SQUARES] = fabs((double)loop_float(t, -9, 9));
        if (how & 1 && r % 97 == 41) v[ZP_CALL + r % (ZP_VERDICT - ZP_CALL)] = -r;
        if (how & 2 && r % 61 == 17) v[ZP_BAD_UNIT] = 3 + r % 3, v[ZP_BAD_PLACE] = r;
        if (how & 3 && r == 41) v[ZP_SCALE] = 0;
        order[r] = (r * 13 + 5) % n; /* n is no multiple of 13 */
    }
}
/* Verdicts of few ranks and of many, in rank order and in another. */
static void loop_many_verdicts(loop_test *t) {
    static const int sizes[][2] = {{1, 0}, {2, 3}, {255, 0}, {256, 300}, {700, 5}};
    for (int how = 0; how < 40; how++) {
        const int n = sizes[how / 8][0], units = sizes[how / 8][1];
        const size_t bytes = (size_t)n * (size_t)(ZP_VERDICT + units) * sizeof(double);
        double *verdicts = (double *)zp_device_alloc(&t->device, bytes);
        int *order = (int *)zp_device_alloc(&t->device, (size_t)n * sizeof *order);
        if (!test_check(verdicts && order, "memory")) return;
        loop_make_verdicts(t, verdicts, order, n, units, how);
        loop_fill(t, ZERO_F32);
        auto combine = [&](loop_memory *m) {
            return zp_kernel_combine_verdicts_args{&m->control, verdicts, n,
                                                   units,       0,        how & 4 ? order : NULL};
        };
        LOOP_RUN(t, zp_kernel_combine_verdicts, combine, 1, how);
        const zp_control *c = &t->kernel->control;
        test_check(
            n < 100
                || (!(how & 1) == !c->differs && (how & 2 ? c->bad_unit == 2 : c->bad_unit < 0)),
            "%d verdicts, %d: word %d differs, unit %g is bad", n, how, c->differs, c->bad_unit);
        zp_device_free(verdicts);
        zp_device_free(order);
    }
}

/* A verdict is completed, the verdicts are judged; then the step is decided: good, clipped,
   overflowing, dropped, other than a peer's. */
static void loop_verdicts(loop_test *t) {
    const zero_hyper hyper = {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.5f};
    for (int how = 0; how < 16; how++) {
        zero_scaler scaler;
        memset(&scaler, 0, sizeof scaler);
        scaler.fixed = how & 1 ? 0.0f : 64.0f;
        scaler.minimum = 1;
        scaler.window = scaler.hysteresis = 1 + how % 3;
        loop_fill(t, ZERO_F32);
        for (loop_memory *m = t->kernel; m; m = m == t->kernel ? t->loop : NULL) {
            if (how & 2) m->verdicts[2][0] = (double)INFINITY, m->verdicts[2][1] = 4;
            if (how == 5) m->verdicts[3][ZP_HYPER] = 1;
            m->control.iteration = how;
        }
        auto declare = [&](loop_memory *m) {
            return zp_kernel_complete_verdict_args{m->verdict, &m->control, hyper, how % 3};
        };
        LOOP_RUN(t, zp_kernel_complete_verdict, declare, 1, how);
        auto judge = [&](loop_memory *m) {
            return zp_kernel_combine_verdicts_args{
                &m->control, &m->verdicts[0][0], LOOP_RANKS, 0, 0, NULL};
        };
        auto decide = [&](loop_memory *m) {
            return zp_kernel_decide_args{&m->control, hyper, scaler, how & 4, how >> 3};
        };
        LOOP_RUN(t, zp_kernel_combine_verdicts, judge, 1, how);
        auto a = decide(t->kernel), b = decide(t->loop);
        test_check(!zp_kernel_decide(&t->stream, &a, 1) && !zp_device_sync_stream(&t->stream),
                   "decided");
        zp_kernel_decide_loop(&b, 1, 1);
        zp_control *x = &t->kernel->control, *y = &t->loop->control;
        test_check(fabsf(x->bias_ratio / y->bias_ratio - 1) < 2e-7f
                       && fabsf(x->root_correction / y->root_correction - 1) < 2e-7f,
                   "powers of beta, %d", how); /* the GPU's pow is its own */
        memcpy(&x->bias_ratio, &y->bias_ratio, 2 * sizeof(float));
        LOOP_RUN(t, zp_kernel_combine_verdicts, judge, 1, how); /* compares what was decided, too */
    }
}

static void loop_elements(loop_test *t) {
    for (int how = 0; how < 48; how++) {
        const zero_type type = (zero_type)(how % 3), other = (zero_type)(how / 3 % 3);
        const int first = how >> 2 & 1, last = how >> 3 & 1;
        const size_t wide = LOOP_N / ZP_WIDE;
        auto collect = [&](loop_memory *m) {
            return zp_kernel_accumulate_args{m->sum, m->g[0], type, first, last};
        };
        auto fetch = [&](loop_memory *m) {
            return zp_kernel_convert_args{m->g[0],
                                          m->p,
                                          type,
                                          other,
                                          first ? &m->control : NULL,
                                          last,
                                          how >= 24 ? ZP_HALF_UP : ZP_NEAREST};
        };
        auto add = [&](loop_memory *m) {
            zp_sum s;
            memset(&s, 0, sizeof s);
            for (int r = 0; r < LOOP_RANKS; r++) s.source[r] = m->g[r];
            s.type = type;
            s.out_type = other;
            s.n = LOOP_RANKS;
            s.group = 1 << how % 3;
            s.out = m->p;
            s.sum = first && other != ZERO_F32 ? m->sum : NULL;
            s.scale = 0.3f;
            s.accumulate = last && (s.sum || other == ZERO_F32);
            return s;
        };
        loop_fill(t, type);
        LOOP_RUN(t, zp_kernel_sum_ranks, add, wide, how);
        LOOP_RUN(t, zp_kernel_convert, fetch, (size_t)LOOP_N, how);
        LOOP_RUN(t, zp_kernel_accumulate, collect, wide, how);
    }
}

/* Stores both memories' state arrays in `type`. */
static void loop_store_state(loop_test *t, zero_type type) {
    static float s1[LOOP_N], s2[LOOP_N];
    memcpy(s1, t->kernel->s1, sizeof s1);
    memcpy(s2, t->kernel->s2, sizeof s2);
    for (size_t i = 0; i < LOOP_N; i++) {
        zp_type_store(t->kernel->s1, type, i, s1[i]);
        zp_type_store(t->kernel->s2, type, i, s2[i]);
    }
    memcpy(t->loop, t->kernel, sizeof *t->loop);
}

/* A rule of the table, or of the part of the plugin that has its functions. */
static const zp_rule *loop_rule(int rule) {
    const zp_rule *of = zp_whole_rules;
    while (of->name && strcmp(of->name, zp_rules[rule].name)) of++;
    return of->name ? of : &zp_rules[rule];
}

static const zero_type loop_state_types[] = {ZERO_F32, ZERO_BF16, ZP_CODES};

/* Every rule in every type, with master weights and without, to nearest and by chance; skipped. */
static void loop_rules(loop_test *t) {
    for (int rule = 0; rule < ZP_RULES; rule++)
        for (int n = 0; n < 60; n++) { /* how: from 16 on, weights are split; state in 3 types */
            const int how = n / 3, split = how >= 16, stochastic = (how & 3) == 3 && !split;
            const zero_type type = (zero_type)(split || stochastic ? 1 : how & 3);
            const zp_rule *r = loop_rule(rule);
            auto make = [&](loop_memory *m) {
                zp_update u;
                memset(&u, 0, sizeof u);
                u.p = m->p;
                u.master = type == ZERO_F32 || stochastic || split ? NULL : m->master;
                u.low = split ? m->low : NULL;
                u.g = m->g[0];
                u.state_type = loop_state_types[n % 3];
                u.form = n % 3 ? &zp_compact_form : NULL;
                u.round = stochastic ? zp_compact_round : NULL;
                u.squares = r->reads & ZP_AVERAGES_SQUARES ? 1 : 0;
                const int codes = u.state_type == ZP_CODES;
                u.state[0] = codes ? (void *)m->c1 : m->s1;
                if (r->states > 1) u.state[1] = codes ? (void *)m->c2 : m->s2;
                u.control = &m->control;
                u.spans = m->spans;
                u.nspans = 3;
                u.end = LOOP_N;
                u.type = u.grad_type = type;
                u.lr = 1e-2f, u.beta1 = 0.9f, u.beta2 = 0.95f, u.eps = 1e-8f, u.decay = 0.1f;
                u.rounding = split ? ZP_HALF_UP : stochastic ? ZP_STOCHASTIC : ZP_NEAREST;
                u.key[1] = 77;
                u.sums = m->sums[0][0];
                u.trust = m->trust;
                u.direction = m->dealt;
                u.momentum = 0.9f;
                u.nesterov = how >> 2 & 1;
                return u;
            };
            loop_fill(t, type);
            if (r->reads & ZP_GROWS) loop_make_squares(t);
            if (loop_state_types[n % 3] == ZERO_BF16) loop_store_state(t, ZERO_BF16);
            t->kernel->control.skip = t->loop->control.skip = how >> 3 & 1;
            t->kernel->control.steps = t->loop->control.steps = how & 4 ? 1 : 9;
            const auto a = make(t->kernel), b = make(t->loop);
            const size_t wide = LOOP_N / ZP_WIDE;
            test_check(r->update[0] != NULL, "%s has kernels", r->name);
            for (int k = 0; k < ZP_STEPS && r->update[k]; k++) {
                test_check(!r->update[k](&t->stream, &a, wide), "%s", r->name);
                loop_check(t, r->loop[k], &b, sizeof b, wide, r->name, n);
            }
            test_check(!loop_count_nans(t->kernel->p, type, LOOP_N)
                           && !loop_count_nans(t->kernel->master, ZERO_F32, LOOP_N)
                           && (loop_state_types[n % 3] != ZERO_F32
                               || !(loop_count_nans(t->kernel->s1, ZERO_F32, LOOP_N)
                                    + loop_count_nans(t->kernel->s2, ZERO_F32, LOOP_N))),
                       "%s, %d: a weight or its state is NaN", r->name, n);
        }
}

/* A matrix that is made orthogonal: kernels on the device, loops on a lane. */
static void loop_matrices(loop_test *t) {
    static const size_t sides[][2] = {{1, 1}, {5, 90}, {70, 66}, {37, 12}};
    for (int how = 0; how < 4; how++) {
        const size_t m = sides[how][0], n = sides[how][1], k = how == 2 ? 18 : sides[how][1];
        auto product = [&](loop_memory *x) {
            const zp_muon_product p = {
                x->g[0], x->g[1], x->p, x->sum, m, n, k, how & 1 ? 0.5f : 0.0f, 0.7f, &x->control};
            return p;
        };
        auto turned = [&](loop_memory *x) {
            const zp_muon_transpose_args p = {
                x->g[0], x->sum, m, n, how & 1, how & 2 ? x->partial : NULL, 1, NULL};
            return p;
        };
        auto squares = [&](loop_memory *x) {
            const zp_muon_squares_args p = {x->g[0], m * n, x->partial, NULL};
            return p;
        };
        loop_fill(t, ZERO_F32);
        LOOP_RUN(t, zp_muon_squares, squares, (size_t)1, how);
        LOOP_RUN(t, zp_muon_transpose_run, turned, m * n, how);
        const auto a = product(t->kernel), b = product(t->loop);
        test_check(!zp_muon_multiply(&t->stream, &a), "a product");
        loop_check(t, zp_muon_multiply_loop, &b, sizeof b, 1, "zp_muon_product", how);
    }
}

/* Numbers are packed, packed ones added up, and packed again, with what was lost or without. */
static void loop_packs(loop_test *t) {
    for (int how = 0; how < 24; how++) {
        const zero_type type = (zero_type)(how % 3);
        const zp_codec codec = zp_codecs[how / 3 % 2];
        const int parts = how & 1 ? 4 : 1, fed = how / 6 % 2, bad = how / 12;
        const size_t numel = how & 1 ? 1312 : 5248 + 64, blocks = zp_codec_blocks(numel);
        const size_t packed = zp_codec_quantized_bytes(&codec, numel);
        const float beta = 0.8f;
        auto plain = [&](loop_memory *m) {
            return zp_codec_kernels_encode_args{{NULL, 0, numel, codec, 0, parts},
                                                m->g[0],
                                                (char *)m->p,
                                                type,
                                                parts == 4 ? 2 : 1,
                                                fed ? (uint16_t *)(void *)m->s1 : NULL,
                                                &m->control,
                                                beta,
                                                how / 3 % 2,
                                                bad ? (size_t)LOOP_N : 0};
        };
        auto sums = [&](loop_memory *m) { /* of 4 senders' part, or of one's */
                                          return zp_quantized{
                                              (const char *)m->p, packed, numel, codec, parts, 1};
        };
        auto again = [&](loop_memory *m) {
            return zp_codec_kernels_encode_args{sums(m),
                                                NULL,
                                                (char *)m->dealt,
                                                ZERO_F32,
                                                1,
                                                fed ? (uint16_t *)(void *)m->s2 : NULL,
                                                &m->control,
                                                beta,
                                                how / 3 % 2,
                                                0};
        };
        auto open = [&](loop_memory *m) {
            return zp_codec_kernels_decode_args{sums(m), m->g[1], fed ? m->sum : NULL,
                                                type,    0.25f,   fed || (type == ZERO_F32 && bad)};
        };
        loop_fill(t, type);
        loop_numbers(t, t->kernel->s1, ZERO_BF16, 2 * LOOP_N);
        loop_numbers(t, t->kernel->s2, ZERO_BF16, LOOP_N);
        for (size_t i = 256; i < 600; i++) zp_type_store(t->kernel->g[0], type, i, 0);
        if (bad) zp_type_store(t->kernel->g[0], type, 700, how & 1 ? NAN : -INFINITY);
        t->nans = bad;
        memcpy(t->loop, t->kernel, sizeof *t->loop);
        LOOP_RUN(t, zp_codec_kernels_encode, plain, (size_t)parts * blocks, how);
        LOOP_RUN(t, zp_codec_kernels_encode, again, blocks, how);
        LOOP_RUN(t, zp_codec_kernels_decode, open, blocks, how);
    }
}

static void loop_all(void) {
    static loop_test t;
    if (!test_check(!zp_device_open(&t.device) && !zp_lane_open(&t.lane, 2)
                        && !zp_device_open_stream(&t.stream, &t.device, NULL, 1, 0, 1),
                    "a stream and a lane"))
        return;
    t.kernel = (loop_memory *)zp_device_alloc(&t.device, sizeof *t.kernel);
    t.loop = (loop_memory *)zp_device_alloc(&t.device, sizeof *t.loop);
    if (test_check(t.kernel && t.loop, "memory")) {
        loop_squares(&t);
        loop_verdicts(&t);
        loop_many_verdicts(&t);
        loop_elements(&t);
        loop_rules(&t);
        loop_matrices(&t);
        loop_packs(&t);
    }
    zp_lane_close(&t.lane);
    zp_device_close_stream(&t.stream);
    zp_device_free(t.kernel);
    zp_device_free(t.loop);
    zp_device_close(&t.device);
}

#endif

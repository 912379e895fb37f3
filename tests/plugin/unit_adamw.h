/* unit_adamw.h - one update of AdamW against f64; clipping, and the corrections of its moments.
   A part of test_unit.c, which includes the plugin. */
#ifndef TEST_UNIT_ADAMW_H
#define TEST_UNIT_ADAMW_H

static double unit_ulp(double at) { /* of f32, at this magnitude */
    int e;
    if (at < 1.1754943508222875e-38) return 1.401298464324817e-45;
    (void)frexp(at, &e);
    return ldexp(1.0, e - 24);
}

typedef struct unit_state {
    float p, m, v, g;
} unit_state;

/* The element's error in ULP, measured where the sums are: an addition whose operands cancel is as
   exact as its operands are. */
static double unit_adamw_error(const unit_state *was, const unit_state *is, const zero_hyper *a,
                               double factor, int64_t t) {
    const double g = (double)was->g * factor, b1 = (double)a->beta1, b2 = (double)a->beta2;
    const double m1 = b1 * (double)was->m, m2 = (1 - b1) * g, m = m1 + m2;
    const double v = b2 * (double)was->v + (1 - b2) * g * g;
    const double size = (double)a->lr / (1 - pow(b1, (double)t));
    const double below = sqrt(v / (1 - pow(b2, (double)t))) + (double)a->eps;
    const double p =
        (double)was->p
        - (size * (m / below) + (double)a->lr * (double)a->weight_decay * (double)was->p);
    const double m_scale = fmax(fmax(fabs(m1), fabs(m2)), fabs(m));
    const double em = fabs((double)is->m - m) / unit_ulp(m_scale);
    const double ev = fabs((double)is->v - v) / unit_ulp(v);
    const double ep = fabs((double)is->p - p)
                      / unit_ulp(fmax(fmax(fabs((double)was->p), fabs(p)),
                                      size * fmax(m_scale, 0x1p-126) / below));
    return fmax(em, fmax(ev, ep));
}

/* States as training makes them, and extreme ones. Kind 0: m and v have seen the same gradients, at
   most `steps` of them. */
static unit_state unit_random_state(test_random *r, int kind, int64_t steps) {
    unit_state s = {0, 0, 0, 0};
    if (kind == 0) {
        const int low = -test_below(r, 40), seen = test_below(r, 12);
        for (int k = 0; k <= seen; k++) {
            s.g = unit_float(r, low, low + 4);
            if (k == seen || k >= steps) break;
            s.m = 0.9f * s.m + 0.1f * s.g;
            s.v = 0.95f * s.v + 0.05f * (s.g * s.g);
        }
        s.p = unit_float(r, -20, 2);
    } else if (kind == 1) { /* f32's whole range; squares of gradients must be finite */
        s.p = unit_float(r, -149, 100);
        s.g = unit_float(r, -149, 60);
        s.m = unit_float(r, -149, 60);
        s.v = fabsf(unit_float(r, -149, 120));
    } else { /* nothing but the update: fresh weights and moments */
        s.g = unit_float(r, -30, 20);
    }
    return s;
}

/* ULP: a step rounds more than ten times, but hardly ever in one direction. */
static const double unit_adamw_limit = 5;

static void unit_adamw_call(zp_stream *s, unit_state *x, size_t n, zp_control *c,
                            const zero_hyper *a) {
    float *f = (float *)malloc(4 * n * sizeof *f);
    const zp_span span = {0, n, 0, 1, 1, 0, n, 0, 1, 0};
    zp_update u = {.p = f,
                   .g = f + 3 * n,
                   .state = {f + n, f + 2 * n},
                   .control = c,
                   .spans = &span,
                   .nspans = 1,
                   .end = n,
                   .lr = a->lr,
                   .beta1 = a->beta1,
                   .beta2 = a->beta2,
                   .eps = a->eps,
                   .decay = a->weight_decay};
    for (size_t i = 0; i < n; i++) {
        f[i] = x[i].p;
        f[n + i] = x[i].m;
        f[2 * n + i] = x[i].v;
        f[3 * n + i] = x[i].g;
    }
    (void)zp_rule_update_adamw(s, &u, n);
    for (size_t i = 0; i < n; i++) {
        x[i].p = f[i];
        x[i].m = f[n + i];
        x[i].v = f[2 * n + i];
    }
    free(f);
}

static void unit_adamw_ulp(void) {
    static const int64_t step[] = {1, 2, 3, 10, 100, 1000, 100000};
    enum { N = 40009 };
    zp_device d;
    test_random r = {77};
    unit_state *was = (unit_state *)malloc(N * sizeof *was),
               *is = (unit_state *)malloc(N * sizeof *is);
    (void)zp_device_open(&d);
    zp_stream s = unit_stream(&d, 1);
    for (int kind = 0; kind < 3; kind++)
        for (int k = 0; k < 7; k++) {
            double worst = 0;
            zp_control c = {.norm = kind == 1 ? 2 : 0.5,
                            .steps = step[k] - 1,
                            .scale = 1,
                            .stored = 1,
                            .divisor = 1};
            zero_hyper a = {kind == 1 ? 1.0f : 6e-4f, 0.9f, k % 2 ? 0.999f : 0.95f, 1e-8f, 0.1f,
                            kind == 1 ? 1.0f : 0.0f};
            zp_kernel_decide_args decide = {
                .control = &c, .hyper = a, .scaler = {.fixed = 1}, .check = 1};
            (void)zp_kernel_decide(&s, &decide, 1);
            for (int i = 0; i < N; i++) is[i] = was[i] = unit_random_state(&r, kind, c.steps - 1);
            unit_adamw_call(&s, is, N, &c, &a);
            for (int i = 0; i < N; i++) {
                const double e = unit_adamw_error(&was[i], &is[i], &a, c.factor, c.steps);
                if (e > worst || e - e != 0) worst = e;
            }
            test_check(worst <= unit_adamw_limit, "AdamW, kind %d, step %d: %.2f ULP", kind,
                       (int)step[k], worst);
            if (getenv("TEST_VERBOSE"))
                printf("AdamW kind %d step %d: %.2f ULP\n", kind, (int)step[k], worst);
        }
    zp_device_close(&d);
    free(was);
    free(is);
}

/* An element's result is the same alone, anywhere in a vector, in a tail, in any thread's part. */
static void unit_adamw_places(void) {
    enum { N = 70001 };
    zp_device d;
    test_random r = {78};
    unit_state *was = (unit_state *)malloc(N * sizeof *was),
               *is = (unit_state *)malloc(N * sizeof *is);
    unit_state *one = (unit_state *)malloc(N * sizeof *one);
    zp_control c = {.factor = 0.37, .bias_ratio = 1, .root_correction = 1.7};
    const zero_hyper a = {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 0};
    (void)zp_device_open(&d);
    zp_stream s = unit_stream(&d, 1);
    for (int i = 0; i < N; i++) one[i] = was[i] = unit_random_state(&r, i % 3, 9);
    for (int i = 0; i < N; i++) unit_adamw_call(&s, &one[i], 1, &c, &a);
    for (size_t from = 0; from < 17; from++) {
        int same = 1;
        for (size_t n = 1; n < 68; n++) {
            memcpy(is, was + from, n * sizeof *is);
            unit_adamw_call(&s, is, n, &c, &a);
            same &= !memcmp(is, one + from, n * sizeof *is);
        }
        test_check(same, "AdamW from element %zu", from);
    }
    for (int threads = 1; threads <= 3; threads++) {
        s.threads = threads;
        memcpy(is, was, N * sizeof *is);
        unit_adamw_call(&s, is, N, &c, &a);
        test_check(!memcmp(is, one, N * sizeof *is), "AdamW on %d threads", threads);
    }
    c.skip = 1;
    memcpy(is, was, N * sizeof *is);
    unit_adamw_call(&s, is, N, &c, &a);
    test_check(!memcmp(is, was, N * sizeof *is), "AdamW when skipped");
    zp_device_close(&d);
    free(was);
    free(is);
    free(one);
}

static zp_control unit_decide(double sumsq, float max_norm, int check, int64_t steps) {
    zp_device d;
    zp_control c;
    (void)zp_device_open(&d);
    zp_stream s = unit_stream(&d, 1);
    memset(&c, 0, sizeof c);
    c.norm = sqrt(sumsq);
    c.steps = steps;
    c.factor = -1;
    const zero_hyper a = {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, max_norm};
    c.scale = 1;
    c.stored = c.divisor = 1;
    zp_kernel_decide_args args = {
        .control = &c, .hyper = a, .scaler = {.fixed = 1}, .check = check};
    (void)zp_kernel_decide(&s, &args, 1);
    zp_device_close(&d);
    return c;
}

static void unit_clip(void) {
    static const double norms[] = {0,         1e-30, 1e-6,     0.5, 0.999998, 0.999999,
                                   0.9999991, 1,     1.000001, 2,   1e3,      1e18};
    for (int i = 0; i < 12; i++)
        for (int k = 0; k < 3; k++) {
            const float max_norm = k == 0 ? 0 : k == 1 ? 1.0f : 0.3f;
            const zp_control c = unit_decide(norms[i] * norms[i], max_norm, 1, 4);
            const double norm = sqrt(norms[i] * norms[i]);
            double expected = 1;
            if (max_norm > 0) expected = fmin(1, (double)max_norm / (norm + 1e-6));
            test_check(c.factor == expected && !c.skip && c.steps == 5 && c.skipped == 0,
                       "norm %g clipped to %g: factor %.9g", norm, (double)max_norm, c.factor);
        }
    for (int bad = 0; bad < 2; bad++) {
        const double sumsq = bad ? (double)NAN : (double)INFINITY;
        const zp_control checked = unit_decide(sumsq, 0, 1, 4),
                         unchecked = unit_decide(sumsq, 0, 0, 4);
        const zp_control clipped = unit_decide(sumsq, 1, 0, 4);
        test_check(checked.skip && checked.steps == 4 && checked.skipped == 1, "%g is skipped",
                   sumsq);
        test_check(!unchecked.skip && unchecked.steps == 5 && unchecked.factor == 1.0,
                   "%g is not checked", sumsq);
        test_check(clipped.skip && clipped.steps == 4, "%g cannot clip", sumsq);
    }
}

static void unit_corrections(void) {
    for (int64_t t = 1; t < 200000; t = t * 3 / 2 + 1) {
        const zp_control c = unit_decide(1, 0, 1, t - 1);
        const double root = sqrt(1 - pow((double)0.95f, (double)t));
        const double ratio = root / (1 - pow((double)0.9f, (double)t));
        test_check(c.steps == t && c.bias_ratio == (float)ratio && c.root_correction == (float)root,
                   "bias corrections of step %lld", (long long)t);
    }
}

static void unit_adamw_all(void) {
    unit_adamw_ulp();
    unit_adamw_places();
    unit_clip();
    unit_corrections();
}

#endif

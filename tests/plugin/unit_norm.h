/* unit_norm.h - sums of squares that do not depend on their order, and what a step makes of them.
   A part of test_unit.c, which includes the plugin. */
#ifndef TEST_UNIT_NORM_H
#define TEST_UNIT_NORM_H

/* A square is rounded, and then five sums of its row, in f32. */
#define UNIT_NORM_ERROR (6 * 0x1p-24)

static void unit_norm(void) {
    enum { N = 5 * 1024 + 64 };
    zp_device d;
    test_random r = {79};
    (void)zp_device_open(&d);
    zp_stream s = unit_stream(&d, 1);
    float *g = (float *)malloc((N + 64) * sizeof *g),
          *moved = (float *)malloc((N + 64) * sizeof *g);
    for (int i = 0; i < N; i++) g[i] = unit_float(&r, -40, 40);
    for (size_t n = 32; n <= N; n += n < 3000 ? 32 : 544) {
        double partial[8], again[8], plain = 0, sum = 0;
        int same = 1;
        const size_t blocks = (n + 1023) / 1024;
        zp_kernel_norm_args a = {g, ZERO_F32, n, partial};
        (void)zp_kernel_norm(&s, &a, blocks);
        for (size_t i = 0; i < n; i++) plain += (double)g[i] * (double)g[i];
        for (size_t b = 0; b < blocks; b++) sum += partial[b];
        for (size_t shift = 1; shift < 64; shift += 21) {
            zp_kernel_norm_args b = {moved + shift, ZERO_F32, n, again};
            memcpy(moved + shift, g, n * sizeof *g);
            (void)zp_kernel_norm(&s, &b, blocks);
            same &= !memcmp(partial, again, blocks * sizeof *again);
        }
        test_check(fabs(sum - plain) <= UNIT_NORM_ERROR * plain && same, "norm of %zu elements", n);
    }
    zp_device_close(&d);
    free(g);
    free(moved);
}

static double unit_norm_block(zp_stream *s, const void *g, zero_type type, size_t n) {
    double partial = 0;
    const zp_kernel_norm_args a = {g, type, n, &partial};
    (void)zp_kernel_norm(s, &a, 1);
    return partial;
}

/* Numbers of every size and type, so that squares in f32 overflow, vanish, or do both in rows next
   to each other. Where all of them do, the sum has the precision of f64. */
static void unit_norm_sizes(void) {
    static const struct {
        int low, high; /* exponents */
        double error;
    } kinds[] = {{-149, -130, 1e-14},          {-130, -60, 1e-14},
                 {-56, -46, UNIT_NORM_ERROR},  {66, 127, 1e-14},
                 {40, 70, UNIT_NORM_ERROR},    {-149, 127, UNIT_NORM_ERROR},
                 {-149, -40, UNIT_NORM_ERROR}, {-24, 15, UNIT_NORM_ERROR}};
    static const size_t sizes[] = {32, 64, 96, 224, 256, 288, 512, 992, 1024};
    zp_device d;
    test_random r = {81};
    float g[1024];
    uint16_t narrow[1024];
    (void)zp_device_open(&d);
    zp_stream s = unit_stream(&d, 1);
    for (int how = 0; how < 3 * 8 * 9; how++) {
        const zero_type type = (zero_type)(how % 3);
        const int kind = type == ZERO_F16 ? 7 : how / 3 % 8;
        const size_t n = sizes[how / 24];
        const void *all = type == ZERO_F32 ? (const void *)g : narrow;
        long double plain = 0;
        for (size_t i = 0; i < n; i++) g[i] = unit_float(&r, kinds[kind].low, kinds[kind].high);
        for (size_t i = 0; i < n && kind == 5; i++) /* rows of either end */
            g[i] *= i / 32 % 3 == 0 ? 0x1p60f : i / 32 % 3 == 1 ? 0x1p-60f : 0;
        zp_type_narrow(narrow, type == ZERO_F32 ? ZERO_BF16 : type, g, n);
        for (size_t i = 0; i < n; i++) {
            if (!zp_type_is_finite((double)zp_type_load(all, type, i))) /* it was rounded up */
                zp_type_store(g, ZERO_F32, i, 1), zp_type_store(narrow, ZERO_BF16, i, 1);
            const long double x = (long double)zp_type_load(all, type, i);
            plain += x * x;
        }
        const double sum = unit_norm_block(&s, all, type, n);
        test_check(fabsl((long double)sum - plain) <= (long double)kinds[kind].error * plain,
                   "type %d, kind %d, %zu elements: %g instead of %Lg", (int)type, kind, n, sum,
                   plain);
    }
    zp_device_close(&d);
}

/* Where a shard ends changes no row: sums of two parts are that of all, up to rounding in f64. */
static void unit_norm_parts(void) {
    zp_device d;
    test_random r = {82};
    float g[1024];
    (void)zp_device_open(&d);
    zp_stream s = unit_stream(&d, 1);
    for (int i = 0; i < 1024; i++) g[i] = unit_float(&r, -4, 4);
    const double all = unit_norm_block(&s, g, ZERO_F32, 1024);
    for (size_t n = 32; n < 1024; n += 32) {
        const double sum =
            unit_norm_block(&s, g, ZERO_F32, n) + unit_norm_block(&s, g + n, ZERO_F32, 1024 - n);
        test_check(fabs(sum - all) <= 1e-14 * all, "a shard ends at %zu: %.17g instead of %.17g", n,
                   sum, all);
    }
    zp_device_close(&d);
}

/* Zeros of both signs, one number among them, and one that is not finite, at every place. */
static void unit_norm_places(void) {
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    zp_device d;
    float g[1024], one[] = {3, 1e-30f, -1e30f, 0x1p-149f};
    (void)zp_device_open(&d);
    zp_stream s = unit_stream(&d, 1);
    for (int filled = 0; filled < 2; filled++)
        for (size_t n = 1024, at = 0; at < n; at++) {
            for (size_t i = 0; i < n; i++) g[i] = filled ? 0.5f : i % 2 ? -0.0f : 0;
            if (at >= 544) n = 1024 - 32 * (at % 15);
            const double none = filled ? 0.25 * (double)n : 0;
            int right = zp_type_magnitude(unit_norm_block(&s, g, ZERO_F32, n) - none) == 0;
            for (int k = 0; k < 4 && at < n; k++) {
                const double x = (double)(g[at] = one[k]);
                const double sum = (filled ? none - 0.25 : 0) + x * x;
                right &= fabs(unit_norm_block(&s, g, ZERO_F32, n) - sum) <= 1e-14 * sum;
            }
            for (int k = 0; k < 3 && at < n; k++) {
                g[at] = bad[k];
                right &= !zp_type_is_finite(unit_norm_block(&s, g, ZERO_F32, n));
            }
            test_check(right, "%zu elements, one of them at %zu", n, at);
            n = 1024;
        }
    const float smallest = 0x1p-100f, below = nextafterf(smallest, 0);
    test_check(zp_kernel_norm_is_held(smallest) && zp_kernel_norm_is_held(FLT_MAX)
                   && !zp_kernel_norm_is_held(below) && !zp_kernel_norm_is_held(INFINITY)
                   && !zp_kernel_norm_is_held(0) && !zp_kernel_norm_is_held(NAN)
                   && !zp_kernel_norm_is_held(-NAN),
               "the bounds of what f32 holds");
    zp_device_close(&d);
}

/* Blocks that several threads compute have the bits that one thread gives them. */
static void unit_norm_threads(void) {
    enum { N = 200 * 1024 };
    static double one[200], two[200];
    zp_device d;
    test_random r = {80};
    (void)zp_device_open(&d);
    zp_stream s = unit_stream(&d, 1);
    float *g = (float *)malloc(N * sizeof *g);
    for (int i = 0; i < N; i++) g[i] = unit_float(&r, -20, 20);
    zp_kernel_norm_args a = {g, ZERO_F32, N, one}, b = {g, ZERO_F32, N, two};
    (void)zp_kernel_norm(&s, &a, 200);
    s.threads = 2;
    (void)zp_kernel_norm(&s, &b, 200);
    test_check(!memcmp(one, two, sizeof one), "norm on two threads");
    zp_device_close(&d);
    free(g);
}

static void unit_fold(zp_stream *s, float *g, size_t n, double unit, double shard_at,
                      double *verdict) {
    double partial[4];
    zp_kernel_norm_args a = {g, ZERO_F32, n, partial};
    zp_kernel_fold_args f = {a, verdict, unit, shard_at, NULL, NULL};
    (void)zp_kernel_take_squares(s, &f);
}

/* A number as limbs is itself, less what is below 2^-ZP_EXACT_POINT. */
static void unit_exact(void) {
    for (int e = -1100; e <= 250; e++)
        for (int k = 0; k < 3; k++) {
            const double x = ldexp(k == 0 ? 1.0 : k == 1 ? 1.0 + 0x1p-52 : 2.0 - 0x1p-52, e);
            const double kept = ldexp(floor(ldexp(x, ZP_EXACT_POINT)), -ZP_EXACT_POINT);
            zp_limb limb[ZP_LIMBS] = {0}, piece[3];
            const int first = zp_exact_split(x, piece);
            for (int i = 0; i < 3; i++)
                if (piece[i]) limb[first + i] = piece[i];
            const double got = zp_exact_total(limb, ZP_LIMBS, 1);
            test_check(got == kept, "%a is %a, expected %a", x, got, kept);
        }
}

/* The verdict names the lowest unit's first bad element, in whatever order units are folded. */
static void unit_verdicts(void) {
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    zp_device d;
    float g[3000] = {0};
    double v[ZP_VERDICT];
    (void)zp_device_open(&d);
    zp_stream s = unit_stream(&d, 1);
    for (int k = 0; k < 3; k++)
        for (size_t at = 0; at < 2976; at += at < 40 ? 1 : 211) {
            memset(v, 0, sizeof v);
            unit_fold(&s, g, 2976, 9, 0, v);
            test_check(v[0] == 0 && v[1] == 0, "zeros are not bad");
            g[at] = bad[k];
            g[2975] = NAN;
            unit_fold(&s, g, 2976, 7, 100, v);
            unit_fold(&s, g, 2976, 8, 50, v);
            test_check(v[1] == 8 && v[2] == 100 + (double)at && !(v[0] - v[0] == 0),
                       "bad element %zu", at);
            unit_fold(&s, g, 2976, 2, 200, v);
            unit_fold(&s, g, 2976, 2, 5000, v); /* its next run */
            test_check(v[1] == 3 && v[2] == 200 + (double)at, "bad element %zu of a lower unit",
                       at);
            g[at] = g[2975] = 0;
        }
    zp_device_close(&d);
}

/* More blocks than there are lanes, and than a lane adds at once: all count, the first bad one is
 * named. */
static void unit_fold_long(void) {
    enum { BLOCKS = 4500 };
    static const size_t bad[] = {0, 255, 256, 4095, 4096, BLOCKS - 1};
    static double partial[BLOCKS];
    float *g = (float *)calloc(BLOCKS * ZP_NORM_BLOCK, sizeof *g);
    double v[ZP_VERDICT] = {0};
    zp_device d;
    (void)zp_device_open(&d);
    zp_stream s = unit_stream(&d, 1);
    const zp_kernel_norm_args a = {g, ZERO_F32, BLOCKS * ZP_NORM_BLOCK, partial};
    const zp_kernel_fold_args f = {a, v, 0, 0, NULL, NULL};
    for (int i = 0; i < BLOCKS; i++) partial[i] = i;
    (void)zp_kernel_fold(&s, &f, 1);
    test_check(v[0] == BLOCKS * (BLOCKS - 1) / 2 && v[1] == 0, "sum of %d blocks is %.0f", BLOCKS,
               v[0]);
    for (int k = 5; k >= 0; k--) {
        partial[bad[k]] = g[bad[k] * ZP_NORM_BLOCK + 7] = NAN;
        memset(v, 0, sizeof v);
        (void)zp_kernel_fold(&s, &f, 1);
        test_check(v[1] == 1 && v[2] == (double)(bad[k] * ZP_NORM_BLOCK + 7),
                   "bad block %zu: element %.0f", bad[k], v[2]);
    }
    zp_device_close(&d);
    free(g);
}

static void unit_judge(void) {
    static const double first[4][3] = {{1, 0, 0}, {2, 6, 70}, {4, 4, 80}, {8, 4, 90}};
    double verdicts[4 * ZP_VERDICT];
    zp_device d;
    zp_control c;
    (void)zp_device_open(&d);
    zp_stream s = unit_stream(&d, 1);
    memset(&c, 0, sizeof c);
    c.stored = 2;
    for (int r = 0; r < 4; r++)
        for (int i = 0; i < ZP_VERDICT; i++)
            verdicts[r * ZP_VERDICT + i] = i < ZP_CALL ? first[r][i] : 0.5 * i;
    zp_kernel_combine_verdicts_args a = {&c, verdicts, 4, 0, 0, NULL};
    (void)zp_kernel_combine_verdicts(&s, &a, 1);
    test_check(c.sumsq == 15 && c.bad_unit == 3 && c.bad_offset == 80 && c.bad_rank == 2
                   && c.norm == sqrt(15.0) / 2 && !c.differs,
               "four verdicts");
    for (int i = ZP_CALL; i < ZP_VERDICT;
         i++) { /* the first word that is not rank 0's, and whose */
        verdicts[2 * ZP_VERDICT + i] = -3;
        verdicts[3 * ZP_VERDICT + ZP_VERDICT - 1] = -4;
        (void)zp_kernel_combine_verdicts(&s, &a, 1);
        test_check(c.differs == i && c.differs_rank == 2 && c.differing[0] == 0.5 * i
                       && c.differing[1] == -3,
                   "word %d differs", i);
        verdicts[2 * ZP_VERDICT + i] = 0.5 * i;
        verdicts[3 * ZP_VERDICT + ZP_VERDICT - 1] = 0.5 * (ZP_VERDICT - 1);
        (void)zp_kernel_combine_verdicts(&s, &a, 1);
        test_check(c.differs == i, "word %d stays", i);
        c.differs = 0;
    }
    a.nranks = 1;
    (void)zp_kernel_combine_verdicts(&s, &a, 1);
    test_check(c.sumsq == 1 && c.bad_unit == -1 && !c.differs, "one verdict");
    zp_device_close(&d);
}

static void unit_norm_all(void) {
    unit_norm();
    unit_norm_sizes();
    unit_norm_parts();
    unit_norm_places();
    unit_norm_threads();
    unit_exact();
    unit_verdicts();
    unit_fold_long();
    unit_judge();
}

#endif

/* unit_tensors.h - what LAMB and Muon need: exact sums of squares, trust ratios, products of
   matrices. A part of test_unit.c, which includes the plugin. */
#ifndef TEST_UNIT_TENSORS_H
#define TEST_UNIT_TENSORS_H

static double unit_ten_total(const float *x, const size_t *order, size_t blocks, int ranks) {
    static zp_exact sums[4];
    memset(sums, 0, sizeof sums);
    for (size_t b = 0; b < blocks; b++) {
        zp_limb piece[3], *to = sums[b % (size_t)ranks].limb;
        const int first = zp_exact_split(zp_exact_squares(x + 32 * order[b], 32), piece);
        for (int k = 0; k < 3; k++) to[first + (piece[k] ? k : 0)] += piece[k];
    }
    return zp_exact_total(sums[0].limb, ZP_LIMBS, ranks);
}

static void unit_ten_exact(void) {
    enum { BLOCKS = 200 };
    static float x[32 * BLOCKS];
    test_random random = {5};
    for (int kind = 0; kind < 5; kind++) {
        size_t order[BLOCKS];
        long double sum = 0;
        for (size_t i = 0; i < 32 * BLOCKS; i++) {
            const uint64_t bits = test_next(&random);
            const int low = kind == 0 ? -149 : kind == 1 ? -10 : kind == 2 ? -126 : 100;
            const int high = kind == 0 ? 128 : kind == 1 ? 10 : kind == 2 ? -100 : 128;
            x[i] = kind == 4 ? 0
                             : ldexpf(1.0f + (float)(bits >> 41) * 0x1p-23f,
                                      low + (int)(bits % (uint64_t)(high - low)));
        }
        for (size_t b = 0; b < BLOCKS; b++) {
            order[b] = b;
            sum += (long double)zp_exact_squares(x + 32 * b, 32);
        }
        const double first = unit_ten_total(x, order, BLOCKS, 1);
        test_check(fabs(first - (double)sum) <= 0x1p-48 * (double)sum, "kind %d: %a, expected %a",
                   kind, first, (double)sum);
        for (int again = 0; again < 20; again++) {
            for (size_t b = BLOCKS - 1; b > 0; b--) {
                const size_t k = (size_t)test_below(&random, (int)b + 1), was = order[b];
                order[b] = order[k];
                order[k] = was;
            }
            const double now = unit_ten_total(x, order, BLOCKS, 1 + again % 4);
            test_check(now == first, "kind %d, order %d: %a, not %a", kind, again, now, first);
        }
    }
    x[77] = INFINITY;
    size_t order[BLOCKS];
    for (size_t b = 0; b < BLOCKS; b++) order[b] = b;
    test_check(isinf(unit_ten_total(x, order, BLOCKS, 2)), "an infinite weight");
}

/* A ratio is bounded; where either norm is zero it is 1, whatever the bounds. */
static void unit_ten_ratios(void) {
    static const struct {
        float weight, move, least, most, ratio;
    } cases[] = {{6, 2, 0, 0, 3}, {6, 2, 4, 0, 4},    {6, 2, 0, 2, 2},
                 {6, 2, 2, 4, 3}, {0, 2, 2, 0, 1},    {0, 2, 0, 0.5f, 1},
                 {6, 0, 2, 0, 1}, {6, 0, 0, 0.5f, 1}, {0, 0, 2, 0, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        zp_exact sums[2] = {{{0}}};
        double ratio = 0;
        for (int k = 0; k < 2; k++) {
            const float x[32] = {k ? cases[i].move : cases[i].weight};
            zp_limb piece[3];
            const int first = zp_exact_split(zp_exact_squares(x, 32), piece);
            for (int l = 0; l < 3; l++) sums[k].limb[first + (piece[l] ? l : 0)] += piece[l];
        }
        const zp_exact_trust_args a = {sums[0].limb,   &ratio,       2 * ZP_LIMBS, 1,
                                       cases[i].least, cases[i].most};
        zp_exact_trust_at(&a, 0);
        test_check(ratio == (double)cases[i].ratio, "weights of %g, moves of %g, in %g to %g: %g",
                   (double)cases[i].weight, (double)cases[i].move, (double)cases[i].least,
                   (double)cases[i].most, ratio);
    }
}

/* The definition: one sum per element, over k from 0 up. */
static void unit_ten_product(const zp_muon_product *x, float *out) {
    for (size_t i = 0; i < x->m; i++)
        for (size_t j = 0; j < x->n; j++) {
            float sum = 0;
            for (size_t k = 0; k < x->k; k++)
                sum = ZP_FMA(x->a[i * x->k + k], x->b[k * x->n + j], sum);
            out[i * x->n + j] =
                x->keep != 0 ? x->keep * x->add[i * x->n + j] + x->scale * sum : x->scale * sum;
        }
}

static void unit_ten_products(void) {
    static const size_t sides[][3] = {{1, 1, 1},    {4, 16, 256}, {5, 17, 257},   {64, 64, 64},
                                      {65, 15, 3},  {3, 130, 31}, {130, 33, 600}, {129, 1, 9},
                                      {1, 70, 513}, {66, 48, 511}};
    test_random random = {11};
    for (int i = 0; i < 10; i++)
        for (int how = 0; how < 4; how++) {
            const size_t m = sides[i][0], n = sides[i][1], k = sides[i][2];
            float *a = (float *)malloc((m * k + k * n + 3 * m * n) * sizeof *a), *b = a + m * k,
                  *add = b + k * n, *out = add + m * n, *expected = out + m * n;
            for (size_t e = 0; e < m * k + k * n + 3 * m * n; e++)
                a[e] = (float)((double)(test_next(&random) >> 40) * 0x1p-24 - 0.5);
            const zp_muon_product x = {a, b, add, out, m, n, k, how & 1 ? 0.3f : 0, 1.7f, NULL};
            unit_ten_product(&x, expected);
            zp_muon_multiply_loop(&x, 1, how & 2 ? 3 : 1);
            test_check(!memcmp(out, expected, m * n * sizeof *out), "%zu x %zu x %zu, %d", m, n, k,
                       how);
            free(a);
        }
}

static void unit_tensors_all(void) {
    unit_ten_exact();
    unit_ten_ratios();
    unit_ten_products();
}

#endif

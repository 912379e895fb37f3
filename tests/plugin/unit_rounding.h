/* unit_rounding.h - stochastic rounding to bf16: its two neighbours, its mean, and its random bits.
   A part of test_unit.c, which includes the plugin. */
#ifndef TEST_UNIT_ROUNDING_H
#define TEST_UNIT_ROUNDING_H

/* Over all 65,536 random numbers: the two neighbours alone, and exactly x on average. */
static void unit_chance_one(float x) {
    const uint16_t low = (uint16_t)(zp_type_bits(x) >> 16);
    double sum = 0;
    int others = 0;
    const int exact = (zp_type_bits(x) & 0xFFFFu) == 0;
    const uint16_t high = (uint16_t)(low + 1);
    const int edge = (high & 0x7F80u) == 0x7F80u; /* next to infinity */
    for (uint32_t r = 0; r < 65536; r++) {
        const uint16_t h = zp_random_to_bf16(x, r << 16 ^ r);
        others += h != low && (exact || h != high);
        sum += (double)zp_type_from_bf16(h) / 65536;
    }
    test_check(!others && (edge || sum == (double)x), "%.9g becomes %.17g on average, %d strangers",
               (double)x, sum, others);
}

static void unit_chance(void) {
    static const float special[] = {
        0,       -0.0f,     1,         -1,          0x1.FEp127f,  -0x1.FEp127f,   1e-40f,
        -1e-44f, 0x1.FFp0f, 0x1p-126f, 3.14159274f, -2.71828175f, 0x1.FDFFFEp127f};
    test_random random = {31};
    for (int i = 0; i < 13; i++) unit_chance_one(special[i]);
    for (int i = 0; i < 300; i++) {
        const float x = zp_type_bits_to_float((uint32_t)test_next(&random));
        if (isfinite(x) && fabsf(x) < 0x1p127f) unit_chance_one(x);
    }
    for (uint32_t r = 0; r < 65536; r += 255) {
        const int infinite =
            zp_random_to_bf16(INFINITY, r) == 0x7F80 && zp_random_to_bf16(-INFINITY, r) == 0xFF80;
        const float nan =
            zp_type_from_bf16(zp_random_to_bf16(zp_type_bits_to_float(0x7F800001u), r));
        test_check(infinite && isnan(nan) && isnan(zp_type_from_bf16(zp_random_to_bf16(NAN, r)))
                       && zp_random_to_bf16(0x1.FEp127f, r) == 0x7F7F
                       && zp_random_to_bf16(FLT_MAX, r) == 0x7F80,
                   "ends of the range, random number %u", (unsigned)r);
    }
}

/* The 16 bits that decide are spread evenly: over elements, from one to the next, and from a state
   array to the other. */
static void unit_chance_bits(void) {
    enum { N = 1 << 20 };
    static int count[2][256];
    double chi[2] = {0, 0}, product[3] = {0, 0, 0}, last[2] = {0, 0};
    zp_update u = {.key = {zp_optimizer_mix(3), 12345}};
    for (size_t i = 0; i < N; i++) {
        const uint32_t random = zp_random_of_element(u.element + i, u.key);
        double x[2];
        for (int array = 0; array < 2; array++) {
            const uint32_t half = zp_random_half(random, array);
            x[array] = ((double)half + 0.5) / 65536 - 0.5;
            count[array][half >> 8]++;
            product[array] += x[array] * last[array];
            last[array] = x[array];
        }
        product[2] += x[0] * x[1];
    }
    for (int k = 0; k < 512; k++)
        chi[k / 256] += pow(count[k / 256][k % 256] - N / 256.0, 2) / (N / 256.0);
    for (int array = 0; array < 2; array++)
        test_check(fabs(chi[array] - 255) < 5 * sqrt(510), "chi squared is %.1f", chi[array]);
    for (int k = 0; k < 3; k++)
        test_check(fabs(product[k] / N * 12) < 5 / sqrt(N), "%s correlate: %g",
                   k < 2 ? "neighbours" : "the arrays", product[k] / N * 12);
}

static void unit_rounding_all(void) {
    unit_chance();
    unit_chance_bits();
}

#endif

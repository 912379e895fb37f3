/* unit_numbers.h - numbers of 16 bits, NaN and infinity: conversions against a search of all
   values. A part of test_unit.c, which includes the plugin. */
#ifndef TEST_UNIT_NUMBERS_H
#define TEST_UNIT_NUMBERS_H

/* Numbers and NaNs, told apart by their bits. */
static void unit_not_finite(void) {
    const double none[] = {
        INFINITY, -INFINITY, NAN, -NAN, zp_type_from_bf16(0x7F81), zp_type_from_f16(0x7C01)};
    const double some[] = {0, -0.0, DBL_MAX, -DBL_MAX, DBL_MIN / 2, FLT_MAX, 1};
    for (int i = 0; i < 6; i++)
        test_check(!zp_type_is_finite(none[i]) && zp_type_is_nan(none[i]) == (i > 1)
                       && !zp_type_not_below((float)none[i]),
                   "%g, number %d", none[i], i);
    for (int i = 0; i < 7; i++)
        test_check(zp_type_is_finite(some[i]) && !zp_type_is_nan(some[i]), "%g, number %d", some[i],
                   i);
}

static const char *const unit_type_names[] = {"f32", "bf16", "f16"};

/* A 16-bit number's value, from its fields: sign, exponent, fraction of `bits` bits. */
static double unit_value(zero_type type, unsigned h) {
    const int bits = type == ZERO_BF16 ? 7 : 10, bias = type == ZERO_BF16 ? 127 : 15;
    const int exponent = (int)(h & 0x7FFFu) >> bits, fraction = (int)(h & ((1u << bits) - 1u));
    const double sign = h & 0x8000u ? -1 : 1;
    if (exponent == 2 * bias + 1) return fraction ? (double)NAN : sign * (double)INFINITY;
    if (!exponent) return sign * ldexp(fraction, 1 - bias - bits);
    return sign * ldexp(fraction + (1 << bits), exponent - bias - bits);
}

static void unit_widen(void) {
    static uint16_t all[65536];
    static float wide[65536];
    for (unsigned h = 0; h < 65536; h++) all[h] = (uint16_t)h;
    for (zero_type type = ZERO_BF16; type <= ZERO_F16; type++) {
        int wrong = 0;
        zero_convert(wide, ZERO_F32, all, type, 65536);
        for (unsigned h = 0; h < 65536; h++) {
            const double expected = unit_value(type, h);
            const float plain = zp_type_load(all, type, h);
            const int same = isnan(expected) ? isnan(wide[h]) : (double)wide[h] == expected;
            wrong += !same || zp_type_bits(plain) != zp_type_bits(wide[h]);
            wrong += (zp_type_bits(wide[h]) >> 31) != h >> 15;
        }
        test_check(!wrong, "%d of 65536 %s are widened wrongly", wrong, unit_type_names[type]);
    }
}

/* To the nearest number of the type, ties to the even one, by scaling it to a whole number. */
static double unit_nearest(zero_type type, float x) {
    const int bits = type == ZERO_BF16 ? 7 : 10, least = type == ZERO_BF16 ? -126 : -14;
    const double largest = type == ZERO_BF16 ? 0x1.FEp127 : 65504;
    int exponent;
    if (x == 0 || isinf(x)) return (double)x;
    (void)frexp((double)x, &exponent);
    const double quantum = ldexp(1, (exponent - 1 > least ? exponent - 1 : least) - bits);
    const double rounded = nearbyint((double)x / quantum) * quantum;
    return fabs(rounded) > largest ? copysign((double)INFINITY, rounded) : rounded;
}

enum { UNIT_BATCH = 4096 };

typedef struct unit_batch { /* f32 that wait to be narrowed */
    float x[UNIT_BATCH];
    int n;
    int wrong;
    size_t seen;
    float first; /* that was wrong */
} unit_batch;

static void unit_batch_flush(unit_batch *b, zero_type type) {
    uint16_t vector[UNIT_BATCH];
    zero_convert(vector, type, b->x, ZERO_F32, (size_t)b->n);
    for (int i = 0; i < b->n; i++) {
        uint16_t plain;
        const float x = b->x[i];
        zp_type_store(&plain, type, 0, x);
        const double got = unit_value(type, plain), expected = unit_nearest(type, x);
        const int ok = isnan(x) ? isnan(got) : got == expected;
        if (ok && plain == vector[i] && (plain >> 15) == (zp_type_bits(x) >> 31)) continue;
        if (!b->wrong++) b->first = x;
    }
    b->seen += (size_t)b->n;
    b->n = 0;
}

static void unit_batch_add(unit_batch *b, zero_type type, uint32_t bits) {
    b->x[b->n++] = zp_type_bits_to_float(bits);
    if (b->n == UNIT_BATCH) unit_batch_flush(b, type);
}

/* Numbers spread over all f32, and those around every 16-bit number and between two of them. */
static void unit_narrow(void) {
    static unit_batch b;
    for (zero_type type = ZERO_BF16; type <= ZERO_F16; type++) {
        memset(&b, 0, sizeof b);
        for (uint32_t i = 0; i < 1u << 24; i++) unit_batch_add(&b, type, i * 2654435761u);
        for (unsigned h = 0; h < 65536; h++) {
            const float here = zp_type_bits_to_float(zp_type_bits((float)unit_value(type, h)));
            const float next = (float)unit_value(type, (h + 1) & 0xFFFFu);
            for (uint32_t k = 0; k < 7; k++) {
                unit_batch_add(&b, type, zp_type_bits(here) + k - 3);
                unit_batch_add(&b, type, zp_type_bits(here / 2 + next / 2) + k - 3);
            }
        }
        for (uint32_t k = 0; k < 2000; k++) { /* where rounding reaches infinity */
            unit_batch_add(&b, type, 0x477FF000u + k - 1000);
            unit_batch_add(&b, type, 0xC77FF000u + k - 1000);
            unit_batch_add(&b, type, 0x7F7F8000u + k - 1000);
            unit_batch_add(&b, type, 0xFF7F8000u + k - 1000);
        }
        unit_batch_flush(&b, type);
        test_check(!b.wrong, "%d of %zu numbers are narrowed to %s wrongly, the first is %.9g",
                   b.wrong, b.seen, unit_type_names[type], (double)b.first);
    }
    test_check(isinf(zp_type_from_f16(zp_type_to_f16(65520.0f)))
                   && zp_type_to_f16(65519.996f) == 0x7BFF && zp_type_to_f16(0x1p-25f) == 0
                   && zp_type_to_f16(0x1.000002p-25f) == 1,
               "f16 at its ends");
}

/* Numbers at odd addresses, as in a file that was read. */
/* Whole vectors and tails give what one element alone gives, and nothing else is touched. */
static void unit_convert_odd(void) {
    enum { N = 1300 };
    static float wide[N], back[N];
    static unsigned char memory[4 * N + 8], narrow[2 * N + 8];
    static uint16_t straight[2 * N]; /* compilers that take the type for F32 see room */
    test_random r = {83};
    for (int i = 0; i < N; i++) wide[i] = unit_float(&r, -20, 20);
    for (int type = ZERO_BF16; type <= ZERO_F16; type++)
        for (size_t odd = 1; odd < 4; odd++) {
            zero_convert(straight, (zero_type)type, wide, ZERO_F32, N);
            memcpy(memory + odd, wide, sizeof wide);
            zero_convert(narrow + odd, (zero_type)type, memory + odd, ZERO_F32, N);
            test_check(!memcmp(narrow + odd, straight, 2 * N), "%s, %zu bytes off",
                       unit_type_names[type], odd);
            zero_convert(back, ZERO_F32, straight, (zero_type)type, N);
            zero_convert(memory + odd, ZERO_F32, narrow + odd, (zero_type)type, N);
            test_check(!memcmp(memory + odd, back, sizeof back), "%s back, %zu bytes off",
                       unit_type_names[type], odd);
        }
}

/* Doubles, of any alignment: those that are too large become infinities. */
static void unit_convert_f64(void) {
    static const double wide[] = {1.5, -0.0, 1e300, -2.25, 1 + 1e-12, 0x1p-149};
    static const float expected[] = {1.5f, -0.0f, INFINITY, -2.25f, 1, 0x1p-149f};
    unsigned char from[sizeof wide + 1], to[sizeof expected + 3];
    memcpy(from + 1, wide, sizeof wide);
    zero_convert(to + 3, ZERO_F32, from + 1, ZERO_F64, 6);
    test_check(!memcmp(to + 3, expected, sizeof expected), "six doubles as f32");
    zero_convert(from + 1, ZERO_F64, to + 3, ZERO_F32, 6);
    for (size_t i = 0; i < 6; i++) {
        double back;
        memcpy(&back, from + 1 + i * sizeof back, sizeof back);
        test_check(back == (double)expected[i], "%g as f32 and back: %g", wide[i], back);
    }
}

static void unit_convert_places(void) {
    enum { N = 128 };
    test_random r = {82};
    float x[N];
    uint16_t h[N];
    for (int i = 0; i < N; i++) x[i] = zp_type_bits_to_float((uint32_t)test_next(&r));
    x[70] = 1e-41f; /* a denormal number takes another way */
    for (zero_type type = ZERO_BF16; type <= ZERO_F16; type++) {
        int wrong = 0;
        for (size_t from = 0; from <= 40; from++)
            for (size_t n = 0; n <= 70; n++) {
                uint16_t to[N];
                float back[N];
                for (size_t i = 0; i < N; i++) zp_type_store(h, type, i, x[i]);
                memset(to, 0x55, sizeof to);
                memset(back, 0x55, sizeof back);
                zero_convert(to + from, type, x + 40 - from, ZERO_F32, n);
                zero_convert(back + from, ZERO_F32, h + 40 - from, type, n);
                for (size_t i = 0; i < N; i++) {
                    const int in = i >= from && i < from + n;
                    const size_t of = i - from + 40 - from;
                    const float wide =
                        in ? zp_type_load(h, type, of) : zp_type_bits_to_float(0x55555555u);
                    wrong += to[i] != (in ? h[of] : 0x5555)
                             || zp_type_bits(back[i]) != zp_type_bits(wide);
                }
            }
        test_check(!wrong, "%s: %d elements depend on their place", unit_type_names[type], wrong);
    }
    for (zero_type type = ZERO_F32; type <= ZERO_F16; type++) {
        float to[N];
        memset(to, 0, sizeof to);
        zero_convert(to, type, x, type, N);
        test_check(!memcmp(to, x, N * zero_type_bytes(type))
                       && zero_type_bytes(type) == (type ? 2u : 4u),
                   "%s to itself", unit_type_names[type]);
    }
}

static void unit_numbers(void) {
    unit_not_finite();
    unit_widen();
    unit_narrow();
    unit_convert_places();
    unit_convert_f64();
    unit_convert_odd();
}

#endif

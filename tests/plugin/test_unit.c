/* test_unit.c - the plugin's private functions one by one, then every error of the public ones.
   Includes the translation unit itself, so that zp_ functions can be called. */
#include "../../zero_plugin.cu"
#include "../shared/host.h"
#include "../shared/lanes.h"

/* ---- results ---- */

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

static void unit_results(void) {
    static const char *const sentences[] = {"success",
                                            "an argument is out of range",
                                            "the call does not fit the order of calls",
                                            "memory could not be allocated",
                                            "the ranks do not agree",
                                            "another rank failed or is gone",
                                            "another rank did not arrive in time",
                                            "the communication library reported an error",
                                            "the device reported an error",
                                            "gradients overflow at the smallest loss scale",
                                            "not supported by this build"};
    for (int r = 0; r < ZERO_RESULT_COUNT; r++)
        test_check(!strcmp(zero_result_string((zero_result)r), sentences[r]), "result %d", r);
    test_check(!strcmp(zero_result_string((zero_result)-1), "no such result"), "result -1");
    test_check(!strcmp(zero_result_string(ZERO_RESULT_COUNT), "no such result"), "result COUNT");
}

/* ---- partition ---- */

typedef struct unit_list {
    zp_tensor tensor[4];
    int n;
} unit_list;

static void unit_announce(unit_list *l, size_t numel, int layers, int unit, int flags) {
    zp_tensor *t = &l->tensor[l->n++];
    memset(t, 0, sizeof *t);
    t->desc.together = t->desc.every = 1;
    t->desc.numel = numel;
    t->desc.layers = layers;
    t->desc.unit = unit;
    t->desc.uses = 1;
    t->desc.flags = flags;
}

/* Walks one tensor by zp_state_run_at and marks what it sees; 0: a run is wrong. */
static int unit_walk(const zero_ctx *z, const zp_tensor *t, unsigned char **mark) {
    const size_t total = t->desc.numel * (size_t)t->desc.layers;
    for (size_t at = 0; at < total;) {
        const zp_run run = zp_state_run_at(z, t, at, total - at);
        const zp_unit *u = &z->layout.unit[run.unit];
        if (!run.numel || run.numel > total - at) return 0;
        if (run.owner < 0 || (size_t)run.owner * u->shard > run.at) return 0;
        if (run.at + run.numel > (size_t)(run.owner + 1) * u->shard) return 0;
        for (size_t i = 0; i < run.numel; i++) {
            const zp_run one = zp_state_run_at(z, t, at + i, 1);
            if (one.unit != run.unit || one.owner != run.owner || one.at != run.at + i) return 0;
            if (one.numel != 1 || mark[run.unit][run.at + i]++) return 0;
        }
        at += run.numel;
    }
    return 1;
}

/* Members of a unit lie on lines, one after the other, within the unit. */
static int unit_members(const zp_unit *u) {
    size_t end = 0, content = 0;
    for (int i = 0; i < u->members; i++) {
        const zp_member *m = &u->member[i];
        if (m->at % ZP_ALIGN || m->at < end || m->at >= end + ZP_ALIGN) return 0;
        end = m->at + m->numel;
        content += m->numel;
    }
    return end == u->numel && content == u->content;
}

static int unit_partition(unit_list *list, int nranks) {
    zero_ctx *z = (zero_ctx *)calloc(1, sizeof *z);
    unsigned char *mark[8] = {0};
    size_t total = 0, content = 0, padded = 0, marked = 0;
    int ok = z && zp_layout_open(&z->layout, list->tensor, list->n, nranks, 1) == ZERO_OK;
    for (int u = 0; ok && u < z->layout.all; u++) {
        const zp_unit *x = &z->layout.unit[u];
        mark[u] = (unsigned char *)calloc(x->padded + 1, 1);
        ok = x->shard % ZP_ALIGN == 0 && x->padded == x->shard * (size_t)nranks && unit_members(x)
             && x->padded >= x->numel && x->padded < x->numel + (size_t)nranks * ZP_ALIGN;
        content += x->content;
        padded += x->padded;
    }
    for (int t = 0; ok && t < list->n; t++) {
        ok = unit_walk(z, &list->tensor[t], mark);
        total += list->tensor[t].desc.numel * (size_t)list->tensor[t].desc.layers;
    }
    for (int u = 0; ok && u < z->layout.all; u++)
        for (size_t i = 0; i < z->layout.unit[u].padded; i++) marked += mark[u][i];
    ok = ok && content == total && marked == total && z->layout.numel == total
         && z->layout.padded == padded;
    for (int u = 0; u < 8; u++) free(mark[u]);
    if (z) zp_layout_close(&z->layout);
    free(z);
    return ok;
}

static void unit_partitions(void) {
    static const size_t odd[] = {1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 1023, 1025};
    int bad = 0;
    for (int nranks = 1; nranks <= 64; nranks++) {
        for (size_t n = 1; n <= 140 && !bad; n++) {
            unit_list l = {.n = 0};
            unit_announce(&l, n, 1, 0, 0);
            if (!unit_partition(&l, nranks)) bad = (int)n;
        }
        for (int a = 0; a < 12 && !bad; a++)
            for (int b = 0; b < 12 && !bad; b++) {
                unit_list l = {.n = 0};
                unit_announce(&l, odd[a], 1, 0, 0);
                unit_announce(&l, odd[b], 2, 1, b % 2 ? ZERO_KEEP : 0);
                unit_announce(&l, odd[(a + b) % 12], 3, 0, a % 3 ? 0 : ZERO_KEEP);
                if (!unit_partition(&l, nranks)) bad = 1000 * a + b;
            }
        test_check(!bad, "partition over %d ranks, case %d", nranks, bad);
    }
}

/* Where a tensor lies in its unit has nothing to do with the number of ranks. */
static void unit_same_places(void) {
    zp_layout one, many;
    unit_list l = {.n = 0};
    unit_announce(&l, 37, 3, 0, 0);
    unit_announce(&l, 5, 3, 0, ZERO_KEEP);
    unit_announce(&l, 100, 2, 1, 0);
    if (!test_check(!zp_layout_open(&one, l.tensor, l.n, 1, 1), "layout")) return;
    for (int nranks = 2; nranks <= 64; nranks++) {
        int same = !zp_layout_open(&many, l.tensor, l.n, nranks, 1) && many.all == one.all;
        for (int u = 0; same && u < one.all; u++)
            for (int i = 0; i < one.unit[u].members; i++)
                same &= !memcmp(&one.unit[u].member[i], &many.unit[u].member[i], sizeof(zp_member));
        test_check(same, "places at %d ranks", nranks);
        zp_layout_close(&many);
    }
    zp_layout_close(&one);
}

/* The costliest matrix first, of 46, 50 and 48 by its sides, each to who has least so far. */
static void unit_dealt(void) {
    static const size_t rows[] = {1, 1, 2}, cols[] = {11, 12, 2};
    static const int owner[] = {1, 0, 1};
    zp_matrix m[3];
    memset(m, 0, sizeof m);
    for (int i = 0; i < 3; i++) {
        m[i].rows = rows[i];
        m[i].cols = cols[i];
        m[i].numel = rows[i] * cols[i];
        m[i].slices = 1;
    }
    zp_layout l = {.matrices = m, .nmatrices = 3, .sharers = 1};
    if (!test_check(!zp_muon_assign_matrices(&l, 2), "matrices are dealt")) return;
    for (int i = 0; i < 3; i++)
        test_check(m[i].owner == owner[i] && m[i].kept == (i == 0 ? zp_round_up(4, ZP_ALIGN) : 0),
                   "matrix of %zu x %zu: rank %d, at %zu", rows[i], cols[i], m[i].owner, m[i].kept);
}

/* What peers read of sums and matrices takes no byte where there are none; of slices a rank keeps
   those that it owns, in the order of those who make them whole. */
static void unit_deal_room(void) {
    static zero_ctx z;
    static zp_comm one;
    zp_matrix m[] = {{.owner = 0, .sharer = 1, .numel = 70, .slices = 2},
                     {.owner = 1, .sharer = 0, .numel = 900, .slices = 2},
                     {.owner = 0, .sharer = 0, .numel = 30, .slices = 2},
                     {.owner = 0, .sharer = 2, .numel = 500, .slices = 1}};
    size_t at = 0;
    one.nranks = 2;
    z.data = &one;
    test_check(zp_whole_tensor_cut_gradients(&z, 100) == 100, "the end is at %zu",
               zp_whole_tensor_cut_gradients(&z, 100));
    z.layout.matrices = m;
    z.layout.nmatrices = 4;
    for (int s = 0; s < 2; s++) {
        const size_t numel = zp_whole_slices_of(&z, s, &at), of[] = {30, 70};
        test_check(numel == zp_round_up(of[s], ZP_ALIGN)
                       && at == (s ? zp_round_up(of[0], ZP_ALIGN) : 0),
                   "slices of sharer %d: %zu elements at %zu", s, numel, at);
    }
}

/* Three ranks' pieces become one, of two whole blocks and a part of one: a step past a block's
   memory is seen by a sanitizer. */
static void unit_merge(void) {
    enum { N = 515 };
    static double wide[3][N], merged[N];
    static float x[3][N], out[N];
    for (int r = 0; r < 3; r++)
        for (int i = 0; i < N; i++) wide[r][i] = x[r][i] = (float)((i + 5 * r) % 11 - 3 * r);
    for (int k = 0; k < 4; k++) {
        const int doubles = k / 2, most = k % 2;
        const zp_collectives_merge_args a = {doubles ? (const char *)wide : (const char *)x,
                                             doubles ? (void *)merged : (void *)out,
                                             doubles ? sizeof wide[0] : sizeof x[0],
                                             N,
                                             3,
                                             doubles ? ZERO_F64 : ZERO_F32,
                                             most ? ZERO_MAX : ZERO_SUM};
        int wrong = 0;
        for (size_t block = 0; block * ZP_MERGED < N; block++) zp_collectives_merge_at(&a, block);
        for (int i = 0; i < N; i++) {
            const float expected =
                most ? fmaxf(fmaxf(x[0][i], x[1][i]), x[2][i]) : x[0][i] + x[1][i] + x[2][i];
            wrong += (doubles ? merged[i] : (double)out[i]) != (double)expected;
        }
        test_check(!wrong, "doubles %d, largest %d: %d of %d are wrong", doubles, most, wrong, N);
    }
}

/* ---- numbers ---- */

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

/* Whole vectors and tails give what one element alone gives, and nothing else is touched. */
static float unit_float(test_random *r, int low, int high);

/* Numbers at odd addresses, as in a file that was read. */
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

/* ---- AdamW ---- */

static zp_stream unit_stream(zp_device *d, int threads) {
    zp_stream s;
    (void)zp_device_take_stream(&s, d, NULL, threads);
    return s;
}

static double unit_ulp(double at) { /* of f32, at this magnitude */
    int e;
    if (at < 1.1754943508222875e-38) return 1.401298464324817e-45;
    (void)frexp(at, &e);
    return ldexp(1.0, e - 24);
}

/* Random sign and magnitude: 2^low .. 2^high, zeros now and then. */
static float unit_float(test_random *r, int low, int high) {
    const double x =
        ldexp(1.0 + (double)(test_next(r) >> 12) * 0x1p-52, low + test_below(r, high - low));
    if (test_below(r, 40) == 0) return 0;
    return (float)(test_below(r, 2) ? x : -x);
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

/* ULP: the limit that holds for every state, extreme ones (kind 1) and those that training makes.
 */
static double unit_adamw_limit(int kind) { return kind == 1 ? 4 : 2.5; }

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
            test_check(worst <= unit_adamw_limit(kind), "AdamW, kind %d, step %d: %.2f ULP", kind,
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

/* ---- skip and clip ---- */

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
        test_check(c.steps == t && c.bias_ratio == ratio && c.root_correction == root,
                   "bias corrections of step %lld", (long long)t);
    }
}

/* ---- norm ---- */

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
        test_check(fabs(sum - plain) <= 1e-13 * plain && same, "norm of %zu elements", n);
    }
    zp_device_close(&d);
    free(g);
    free(moved);
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
    zp_kernel_fold_args f = {a, verdict, unit, shard_at, NULL};
    (void)zp_kernel_norm(s, &a, (n + ZP_NORM_BLOCK - 1) / ZP_NORM_BLOCK);
    (void)zp_kernel_fold(s, &f, 1);
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
    const zp_kernel_fold_args f = {a, v, 0, 0, NULL};
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
    zp_kernel_combine_verdicts_args a = {&c, verdicts, 4, 0, NULL};
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

/* ---- sums over ranks ---- */

static float unit_sum_one(const zp_sum *s, size_t i, float before) {
    volatile float total = 0; /* every sum is rounded */
    for (int node = 0; node < s->n / s->group; node++) {
        volatile float sum = zp_type_load(s->source[node * s->group], s->type, i);
        for (int p = 1; p < s->group; p++)
            sum = sum + zp_type_load(s->source[node * s->group + p], s->type, i);
        total = node ? total + sum : sum;
    }
    volatile float scaled = s->scale * total;
    return s->accumulate ? before + scaled : scaled;
}

enum { UNIT_SUM = 5000 };
typedef struct unit_summed {
    float x[8 * UNIT_SUM], before[UNIT_SUM], sum[UNIT_SUM], out[UNIT_SUM];
    uint16_t half[8 * UNIT_SUM]; /* x in 16 bit */
} unit_summed;

/* The simple body gives the same bits as the way through the cache. */
static int unit_sum_elements(const unit_summed *u, const zp_sum *s, size_t k) {
    float sum[UNIT_SUM], out[UNIT_SUM];
    zp_sum simple = *s;
    const size_t whole = k / ZP_WIDE * ZP_WIDE;
    memcpy(sum, u->before, sizeof sum);
    memcpy(out, u->before, sizeof out);
    simple.out = out;
    if (s->sum) simple.sum = sum;
    for (size_t at = 0; at < k / ZP_WIDE; at++) zp_kernel_sum_ranks_at(&simple, at);
    return !memcmp(out, u->out, whole * zp_type_bytes(s->out_type))
           && (!s->sum || !memcmp(sum, u->sum, whole * sizeof *sum));
}

/* The first k elements are what they must be, the others are not touched. */
static int unit_sum_case(unit_summed *u, zp_sum *s, size_t k) {
    memcpy(u->sum, u->before, sizeof u->sum);
    memcpy(u->out, u->before, sizeof u->out);
    zp_kernel_sum_slices(s, k, 2);
    for (size_t i = 0; i < UNIT_SUM; i++) {
        const float e = i < k ? unit_sum_one(s, i, u->before[i]) : u->before[i];
        float stored = 0;
        if (s->sum && memcmp(&u->sum[i], &e, sizeof e)) return 0;
        zp_type_store(&stored, s->out_type, 0, e);
        if (i >= k && s->out_type != ZERO_F32)
            memcpy(&stored, (char *)u->before + 2 * i, 2); /* what was there */
        const size_t bytes = zp_type_bytes(s->out_type);
        if (memcmp((char *)u->out + bytes * i, &stored, bytes)) return 0;
    }
    return unit_sum_elements(u, s, k);
}

/* f32 and 16 bit, into each other, with an accumulator and without. */
static void unit_sum_types(unit_summed *u, int n, int group) {
    static const zero_type types[][2] = {
        {ZERO_F32, ZERO_F32}, {ZERO_BF16, ZERO_BF16}, {ZERO_F16, ZERO_F16}, {ZERO_BF16, ZERO_F32},
        {ZERO_F16, ZERO_F32}, {ZERO_F32, ZERO_BF16},  {ZERO_F32, ZERO_F16}};
    for (int t = 0; t < 7; t++)
        for (int how = 0; how < 3; how++) { /* store, store with a sum, accumulate */
            const zero_type in = types[t][0], out = types[t][1];
            zp_sum s = {.type = in,
                        .out_type = out,
                        .n = n,
                        .group = group,
                        .out = u->out,
                        .sum = how && out != ZERO_F32 ? u->sum : NULL,
                        .scale = 1.0f / (float)n,
                        .accumulate = how == 2};
            if (in != ZERO_F32) zero_convert(u->half, in, u->x, ZERO_F32, 8 * UNIT_SUM);
            for (int p = 0; p < n; p++)
                s.source[p] = in == ZERO_F32 ? (void *)(u->x + p * UNIT_SUM)
                                             : (void *)(u->half + p * UNIT_SUM);
            size_t k = 1;
            while (k <= UNIT_SUM && unit_sum_case(u, &s, k)) k += k < 70 ? 1 : 821;
            test_check(k > UNIT_SUM, "sum of %d in groups of %d, %s to %s, %d, %zu elements", n,
                       group, unit_type_names[in], unit_type_names[out], how, k);
        }
}

static void unit_sums(void) {
    static unit_summed u;
    test_random r = {81};
    for (int i = 0; i < 8 * UNIT_SUM; i++) u.x[i] = unit_float(&r, -20, 15);
    for (int i = 0; i < UNIT_SUM; i++) u.before[i] = unit_float(&r, -20, 15);
    for (int n = 1; n <= 8; n++)
        for (int group = 1; group <= n; group++)
            if (n % group == 0) unit_sum_types(&u, n, group);
}

/* A micro-step's gradient is added in f32; the last sum is rounded into the gradient. */
static void unit_collect(void) {
    enum { N = 4096 };
    static float sum[N], expected[N];
    static uint16_t g[N], was[N];
    zp_device d;
    test_random r = {83};
    (void)zp_device_open(&d);
    zp_stream s = unit_stream(&d, 2);
    for (zero_type type = ZERO_BF16; type <= ZERO_F16; type++)
        for (int micro = 0; micro < 4; micro++) {
            int wrong = 0;
            const zp_kernel_accumulate_args a = {sum, g, type, micro == 0, micro == 3};
            for (size_t i = 0; i < N; i++) {
                zp_type_store(g, type, i, unit_float(&r, -12, 8));
                was[i] = g[i];
                expected[i] =
                    micro ? expected[i] + zp_type_load(g, type, i) : zp_type_load(g, type, i);
            }
            (void)zp_kernel_accumulate(&s, &a, N / ZP_WIDE);
            for (size_t i = 0; i < N; i++) {
                uint16_t e = was[i];
                if (micro == 3) zp_type_store(&e, type, 0, expected[i]);
                wrong += zp_type_bits(sum[i]) != zp_type_bits(expected[i]) || g[i] != e;
            }
            test_check(!wrong, "%s, micro-step %d: %d gradients are collected wrongly",
                       unit_type_names[type], micro, wrong);
        }
    zp_device_close(&d);
}

/* ---- schedule ---- */

static int unit_trace_is(const zp_order *t, int at, const char *units) {
    const int n = (int)strlen(units);
    if (t->n != n || t->at != at) return 0;
    for (int i = 0; i < n; i++)
        if (t->unit[i] != units[i] - '0') return 0;
    return 1;
}

static void unit_trace(void) {
    int list[8], soon[8];
    zp_order t = {list, 0, 0, 8, NULL, 0, 0, 0};
    for (int u = 0; u < 4; u++) zp_order_visit(&t, u);
    zp_order_visit(&t, 3);
    zp_order_visit(&t, 0);
    test_check(unit_trace_is(&t, 6, "012330"), "a first pass is written down");
    test_check(zp_order_ahead(&t, 0, 3, soon) == 0, "nothing after the end");
    test_check(zp_order_ahead(&t, 1, 3, soon) == 3 && soon[0] == 0 && soon[2] == 2,
               "around the end");
    t.at = 0;
    zp_order_visit(&t, 0);
    test_check(unit_trace_is(&t, 1, "012330"), "as expected");
    test_check(zp_order_ahead(&t, 0, 5, soon) == 4 && soon[0] == 1 && soon[3] == 0,
               "distinct units ahead");
    test_check(zp_order_ahead(&t, 0, 0, soon) == 0 && zp_order_ahead(&t, 0, 2, soon) == 2,
               "at most max");
    zp_order_visit(&t, 3);
    test_check(unit_trace_is(&t, 2, "0330"), "units that are skipped are taken out");
    zp_order_visit(&t, 7);
    test_check(unit_trace_is(&t, 3, "03730"), "an unexpected unit is put in");
    for (int i = 0; i < 9; i++) zp_order_visit(&t, 9 - i);
    test_check(t.n <= t.cap && t.at <= t.n, "a full trace stays within its memory");
    t.n = t.at = 0;
    test_check(zp_order_ahead(&t, 1, 4, soon) == 0, "an empty trace has nothing ahead");
}

static void unit_pool(void) {
    zp_buffer buffer[4];
    int held_by[10] = {0};
    zp_buffers p = {buffer, 0, 0, held_by, 0, 0};
    const int soon[] = {4, 1};
    test_check(zp_plan_add_buffer(&p, 100, 1, 0) == 0 && zp_plan_add_buffer(&p, 10, 0, 0) == 1
                   && zp_plan_add_buffer(&p, 10, 0, 0) == 2 && p.bytes == 120
                   && buffer[2].at == 110,
               "buffers");
    memset(&buffer[3], 0, sizeof buffer[3]);
    for (int i = 0; i < 3; i++) buffer[i].open = 0, buffer[i].used = 0;
    test_check(zp_buffer_take(&p, 9, 0, NULL, 0) == 1 && zp_buffer_find(&p, 9) == 0,
               "a buffer of its own");
    test_check(zp_buffer_take(&p, 9, 0, NULL, 0) == 0 && zp_buffer_find(&p, 9) == 0,
               "holds its unit");
    test_check(zp_buffer_take(&p, 1, -1, NULL, 0) == 1 && zp_buffer_find(&p, 1) == 1,
               "a shared buffer");
    test_check(zp_buffer_take(&p, 2, -1, NULL, 0) == 1 && zp_buffer_find(&p, 2) == 2,
               "the other one");
    test_check(zp_buffer_take(&p, 1, -1, NULL, 0) == 0 && zp_buffer_find(&p, 1) == 1,
               "holds unit 1");
    test_check(zp_buffer_take(&p, 3, -1, NULL, 0) == 1 && zp_buffer_find(&p, 3) == 2,
               "the one used longest ago goes");
    test_check(zp_buffer_take(&p, 4, -1, soon, 2) == 1 && zp_buffer_find(&p, 4) == 2,
               "a unit that is wanted soon stays");
    buffer[2].open = buffer[1].open = 1;
    test_check(zp_buffer_take(&p, 5, -1, NULL, 0) == -1, "open buffers stay");
    test_check(zp_buffer_find(&p, 4) == 2 && zp_buffer_find(&p, 5) == -1, "who is where");
    zp_buffer_forget_all(&p);
    test_check(zp_buffer_find(&p, 4) == -1 && zp_buffer_find(&p, 9) == -1, "forgotten");
    buffer[1].open = buffer[2].open = 0;
    for (int u = 1; u <= 2; u++) {
        (void)zp_buffer_take(&p, u, -1, NULL, 0);
        zp_buffer_hold(&p, u, 1);
    }
    const int first = zp_buffer_find(&p, 2);
    for (int u = 2; u >= 1; u--) zp_buffer_hold(&p, u, -1);
    test_check(zp_buffer_take(&p, 3, -1, NULL, 0) == 1 && zp_buffer_find(&p, 3) == first,
               "the one let go longest ago goes");
}

/* ---- streams and events ---- */

static void unit_push_gate(zp_stream *s, lane_gate *g) {
    (void)zp_device_push_task(s, lane_gate_task, &g, sizeof g, 0);
}
static void unit_push_note(zp_stream *s, int *list, int *n, int value) {
    const lane_note a = {list, n, value};
    (void)zp_device_push_task(s, lane_note_task, &a, sizeof a, 0);
}

static void unit_events(void) {
    zp_device d;
    zp_stream a, b;
    zp_event e, never;
    lane_gate first = {0}, second = {0};
    int list[8], n = 0;
    (void)zp_device_open(&d);
    (void)zp_device_open_event(&d, &e);
    (void)zp_device_open_event(&d, &never);
    if (!test_check(!zp_device_open_stream(&a, &d, NULL, 1, 0, 1)
                        && !zp_device_open_stream(&b, &d, NULL, 1, 0, 1),
                    "streams"))
        return;
    (void)zp_device_wait_event(&b, &never);
    unit_push_note(&b, list, &n, 0);
    test_check(lane_arrives(&n, 1), "a wait on an event never recorded is no wait");
    unit_push_gate(&a, &first);
    (void)zp_device_wait_event(&b, &e); /* not recorded yet: no wait, though it will be */
    (void)zp_device_record_event(&a, &e);
    unit_push_note(&b, list, &n, 1);
    test_check(lane_arrives(&n, 2), "a record after the call does not bind");
    (void)zp_device_wait_event(&b, &e);
    unit_push_note(&b, list, &n, 2);
    unit_push_gate(&a, &second);
    (void)zp_device_record_event(&a, &e);
    test_check(lane_stays(&n, 2), "a wait holds the stream");
    lane_open_gate(&first);
    test_check(lane_arrives(&n, 3), "a wait binds to the last record before the call");
    (void)zp_device_wait_event(&b, &e);
    unit_push_note(&b, list, &n, 3);
    test_check(lane_stays(&n, 3), "and the next wait to the next record");
    lane_open_gate(&second);
    test_check(lane_arrives(&n, 4), "which completes");
    (void)zp_device_wait_event(&b, &e);
    unit_push_note(&b, list, &n, 4);
    test_check(lane_arrives(&n, 5), "a completed event holds nobody");
    (void)zp_device_sync_stream(&a);
    (void)zp_device_sync_stream(&b);
    zp_device_close_stream(&a);
    zp_device_close_stream(&b);
    zp_device_close_event(&e);
    zp_device_close(&d);
}

/* The compute stream is the caller: a wait of it blocks, and what it records is complete. */
static void unit_event_of_caller(void) {
    zp_device d;
    zp_stream s, a;
    zp_event mine, theirs;
    lane_gate gate = {0};
    int list[4], n = 0;
    (void)zp_device_open(&d);
    (void)zp_device_open_event(&d, &mine);
    (void)zp_device_open_event(&d, &theirs);
    s = unit_stream(&d, 1);
    if (!test_check(!zp_device_open_stream(&a, &d, NULL, 1, 0, 1), "a stream")) return;
    (void)zp_device_record_event(&s, &mine);
    (void)zp_device_wait_event(&a, &mine);
    unit_push_note(&a, list, &n, 0);
    test_check(lane_arrives(&n, 1), "an event of the caller is complete at once");
    unit_push_gate(&a, &gate);
    unit_push_note(&a, list, &n, 1);
    (void)zp_device_record_event(&a, &theirs);
    lane_open_gate(&gate);
    (void)zp_device_wait_event(&s, &theirs);
    test_check(__atomic_load_n(&n, __ATOMIC_ACQUIRE) == 2,
               "the caller waits for what was queued before");
    zp_device_close_stream(&a);
    zp_device_close(&d);
}

/* ---- errors ---- */

/* The result, and a sentence that names the call, the rank and what was wrong. */
static void unit_error(zero_ctx *z, zero_result got, zero_result expected, const char *call,
                       const char *what) {
    char rank[64];
    const char *text = zero_last_error(z);
    snprintf(rank, sizeof rank, "%s, rank %d of %d: ", call, zero_rank(z), zero_nranks(z));
    test_check(got == expected && !strncmp(text, rank, strlen(rank))
                   && strstr(text + strlen(rank), what),
               "%s must fail with %d and name \"%s\": %d, \"%s\"", call, (int)expected, what,
               (int)got, text);
}

static zero_ctx *unit_create(const zero_config *given) {
    zero_ctx *z = NULL;
    zero_config cfg = {0};
    const zero_comm comm = {ZERO_COMM_SELF, 0, NULL, 0};
    if (given) cfg = *given;
    cfg.log = test_quiet;
    test_check(zero_create(&z, &cfg, &comm) == ZERO_OK && !zero_last_error(z)[0], "a context");
    return z;
}

static void unit_bad_config(zero_config cfg, const char *what) {
    zero_ctx *z = NULL;
    const zero_comm comm = {ZERO_COMM_SELF, 0, NULL, 0};
    const zero_tensor_desc d = {"a", 1, .layers = 1};
    cfg.log = test_quiet;
    const zero_result r = zero_create(&z, &cfg, &comm);
    unit_error(z, r, ZERO_ERR_ARGUMENT, "zero_create", what);
    test_check(zero_tensor(z, &d) == ZERO_ERR_ARGUMENT && zero_build(z) == ZERO_ERR_ARGUMENT,
               "%s: sticky", what);
    zero_destroy(z);
}

static void unit_config_errors(void) {
    unit_bad_config((zero_config){.stage = 4}, "stage is 4, expected 0..3");
    unit_bad_config((zero_config){.stage = -1}, "stage is -1");
    unit_bad_config((zero_config){.micro_steps = -2}, "micro_steps is -2");
    unit_bad_config((zero_config){.accumulation = (zero_accumulation)3}, "accumulation is 3");
    unit_bad_config((zero_config){.accumulation = (zero_accumulation)-1}, "accumulation is -1");
    unit_bad_config((zero_config){.prefetch = -2}, "prefetch is -2");
    unit_bad_config((zero_config){.prefetch = 65}, "prefetch is 65");
    unit_bad_config((zero_config){.persistence_numel = -2}, "persistence_numel is -2");
    unit_bad_config((zero_config){.timeout_s = -1}, "timeout_s is -1");
    unit_bad_config((zero_config){.timeout_s = NAN}, "timeout_s is nan");
    unit_bad_config((zero_config){.timeout_s = INFINITY}, "timeout_s is inf");
    unit_bad_config((zero_config){.threads = -1}, "threads is -1, expected 0 or more");
    unit_bad_config((zero_config){.type = (zero_type)3}, "type is 3");
    unit_bad_config((zero_config){.type = (zero_type)-1}, "type is -1");
    unit_bad_config((zero_config){.grads = (zero_grad_type)3}, "grads is 3");
    unit_bad_config((zero_config){.grads = (zero_grad_type)-1}, "grads is -1");
    unit_bad_config((zero_config){.optimizer = ZERO_OPTIMIZER_OWN},
                    "optimizer is 8, expected 0..7");
    unit_bad_config((zero_config){.optimizer = (zero_optimizer)-1}, "optimizer is -1");
    unit_bad_config((zero_config){.no_master = 1}, "no_master is set");
    unit_bad_config((zero_config){.no_master = 1, .type = ZERO_F16}, "no_master is set");
}

/* What zero_config may hold: of every setting its bounds, what 0 means, whether ranks may differ.
 */
static const struct unit_setting {
    const char *name;
    size_t at;
    char form; /* int, long: int64_t, unsigned: size_t, float, double */
    double least, most, zero;
    int differs;
} unit_setting[] = {
#define SET(field, ...)                                                                            \
    { #field, offsetof(zero_config, field), __VA_ARGS__ }
#define ANY -INFINITY, INFINITY, 0, 0
    SET(stage, 'i', 0, 3, 0, 0),
    SET(micro_steps, 'i', 0, INFINITY, 1, 0),
    SET(accumulation, 'i', 0, 2, ZERO_ACCUMULATE_LOCAL, 0),
    SET(type, 'i', 0, 2, 0, 0),
    SET(grads, 'i', 0, 2, ZERO_GRAD_F32, 0),
    SET(no_master, 'i', ANY),
    SET(seed, 'u', 0, INFINITY, 0, 0),
    SET(optimizer, 'i', 0, 7, 0, 0),
    SET(scaler.fixed, 'f', 0, INFINITY, 1, 0),
    SET(scaler.initial, 'f', 0, INFINITY, 65536, 0),
    SET(scaler.minimum, 'f', 0, INFINITY, 1, 0),
    SET(scaler.window, 'i', 0, INFINITY, 1000, 0),
    SET(scaler.hysteresis, 'i', 0, INFINITY, 2, 0),
    SET(scaler.consecutive_hysteresis, 'i', ANY),
    SET(prefetch, 'i', ZERO_NONE, 64, 1, 0),
    SET(bucket_numel, 'u', 0, INFINITY, 0, 0),
    SET(persistence_numel, 'l', ZERO_NONE, INFINITY, 0, 0),
    SET(open_units, 'i', ZERO_ALL, 1 << 20, 0, 0),
    SET(optimizer_tier, 'i', 0, 2, 0, 0),
    SET(gradient_tier, 'i', 0, 2, 0, 0),
    SET(parameter_tier, 'i', 0, 2, 0, 0),
    SET(offload_share, 'f', 0, 1, 1, 0),
    SET(no_file_check, 'i', ANY),
    SET(delay_from, 'i', 0, INFINITY, 0, 0),
    SET(update_on, 'i', 0, 2, 0, 1),
    SET(link_gbs, 'f', 0, 1e6, 25, 1),
    SET(memory_gbs, 'f', 0, 1e6, 60, 1),
    SET(no_overlap, 'i', ANY),
    SET(no_overflow_check, 'i', ANY),
    SET(no_mapping, 'i', ANY),
    SET(threads, 'i', 0, INFINITY, -1, 1), /* -1: the processors' */
    SET(trust_least, 'f', 0, INFINITY, 0, 0),
    SET(trust_most, 'f', 0, INFINITY, 0, 0),
    SET(muon.momentum, 'f', 0, 0.99999994, 0.95f, 0),
    SET(muon.plain_lr, 'f', 0, INFINITY, 1, 0),
    SET(muon.turns, 'i', 0, 99, 5, 0),
    SET(muon.match_rms, 'i', ANY),
    SET(muon.no_nesterov, 'i', ANY),
    SET(world_units, 'i', 0, 1 << 20, 0, 0),
    SET(divisor, 'i', 0, INFINITY, 0, 0),
    SET(shard_ranks, 'i', 0, INFINITY, 0, 0),
    SET(second_ranks, 'i', 0, INFINITY, 0, 0),
    SET(weight_bits, 'i', 0, INFINITY, 0, 0),
    SET(gradient_bits, 'i', 0, INFINITY, 0, 0),
    SET(feedback, 'f', 0, 0.99999994, 0, 0),
    SET(feedback_reset, 'i', 0, INFINITY, 0, 0),
    SET(timeout_s, 'd', 0, INFINITY, 600, 0)};

static void unit_set(zero_config *cfg, const struct unit_setting *s, double value) {
    void *at = (char *)cfg + s->at;
    if (s->form == 'i') *(int *)at = (int)value;
    if (s->form == 'l') *(int64_t *)at = (int64_t)value;
    if (s->form == 'f') *(float *)at = (float)value;
    if (s->form == 'd') *(double *)at = value;
}

static void unit_settings(void) {
    enum { SETTINGS = sizeof unit_setting / sizeof *unit_setting };
    const zero_comm comm = {ZERO_COMM_SELF, 0, NULL, 0};
    zero_ctx *plain = unit_create(NULL);
    char line[ZP_MAIL_BYTES], what[160], high[32];
    test_check((int)ZP_SETTINGS == (int)SETTINGS, "%d settings", (int)ZP_SETTINGS);
    for (int i = 0; i < SETTINGS; i++) {
        const struct unit_setting *s = &unit_setting[i];
        const int real = s->form == 'f' || s->form == 'd';
        const double zero = zp_config_get_setting(&zp_settings[i], &plain->cfg);
        const double value[] = {s->least - 1, s->least, s->most,
                                real ? 1.5 * s->most : s->most + 1};
        test_check(zp_agree_setting_line(plain, i, line, sizeof line)
                       && (line[0] == 0) == s->differs
                       && (s->zero < 0 ? zero > 0 : zero == s->zero),
                   "%s: 0 is %g, ranks are told \"%s\"", s->name, zero, line);
        for (int k = 0; k < 4; k++) {
            if (isinf(value[k]) || s->form == 'u') continue;
            zero_config cfg = {.log = test_quiet};
            zero_ctx *z = NULL;
            unit_set(&cfg, s, value[k]);
            const int refused = zero_create(&z, &cfg, &comm) != ZERO_OK;
            snprintf(high, sizeof high, isinf(s->most) ? " or more" : "..%.9g", s->most);
            snprintf(what, sizeof what, "rank 0 of 1: %s is %.15g, expected %s%g%s", s->name,
                     real ? (double)(float)value[k] : value[k], real ? "a finite number, " : "",
                     s->least, high);
            const int said = strstr(zero_last_error(z), what) != NULL;
            test_check(k % 3 ? !said : refused && said, "%s, not \"%s\"", what, zero_last_error(z));
            zero_destroy(z);
        }
    }
    zero_destroy(plain);
}

static void unit_bad_scaler(zero_scaler scaler, const char *what) {
    unit_bad_config((zero_config){.type = ZERO_F16, .scaler = scaler}, what);
}

static void unit_scaler_errors(void) {
    unit_bad_scaler((zero_scaler){.fixed = -1}, "scaler.fixed is -1");
    unit_bad_scaler((zero_scaler){.fixed = NAN}, "scaler.fixed is nan");
    unit_bad_scaler((zero_scaler){.fixed = INFINITY}, "scaler.fixed is inf");
    unit_bad_scaler((zero_scaler){.initial = -2}, "scaler.initial is -2");
    unit_bad_scaler((zero_scaler){.initial = INFINITY}, "scaler.initial is inf");
    unit_bad_scaler((zero_scaler){.minimum = -3}, "scaler.minimum is -3");
    unit_bad_scaler((zero_scaler){.minimum = NAN}, "scaler.minimum is nan");
    unit_bad_scaler((zero_scaler){.window = -4}, "scaler.window is -4");
    unit_bad_scaler((zero_scaler){.hysteresis = -5}, "scaler.hysteresis is -5");
    unit_bad_scaler((zero_scaler){.initial = 2, .minimum = 4}, "initial 2 is below minimum 4");
    unit_bad_config((zero_config){.type = ZERO_F16, .no_overflow_check = 1}, "no_overflow_check");
}

/* A host whose thread flushes denormal numbers is told, once; others hear nothing. */
static void unit_hear(void *user, zero_log_level level, const char *sentence) {
    *(int *)user += level == ZERO_LOG_WARNING && strstr(sentence, "-Ofast") ? 1 : 100;
}
static void unit_flushes(void) {
    const zero_comm comm = {ZERO_COMM_SELF, 0, NULL, 0};
    for (int flushes = 0; flushes < 2; flushes++) {
        int heard = 0;
        zero_ctx *z = NULL;
        zero_config cfg = {.log = unit_hear, .log_user = &heard};
        lane_flush(flushes);
        const zero_result r = zero_create(&z, &cfg, &comm);
        lane_flush(0);
        test_check(!r && heard == flushes, "flushes %d: heard %d", flushes, heard);
        zero_destroy(z);
    }
}

static void unit_bad_comm(zero_comm comm, zero_result expected, const char *what) {
    zero_ctx *z = NULL;
    zero_config cfg = {.log = test_quiet};
    const zero_result r = zero_create(&z, &cfg, &comm);
    unit_error(z, r, expected, "zero_create", what);
    test_check(zero_nranks(z) == 1, "%s: %d ranks before there is a group", what, zero_nranks(z));
    zero_destroy(z);
}

static void unit_comm_errors(void) {
    zero_local *local = NULL;
    zero_ctx *z = NULL;
    zero_config cfg = {0};
    zero_comm comm = {ZERO_COMM_SELF, 0, NULL, 0};
    test_check(zero_local_create(&local, 0, 0) == ZERO_ERR_ARGUMENT, "no ranks");
    test_check(zero_local_create(&local, 65, 0) == ZERO_ERR_ARGUMENT, "65 ranks");
    test_check(zero_local_create(NULL, 2, 0) == ZERO_ERR_ARGUMENT, "nowhere to put it");
    test_check(zero_create(NULL, &cfg, &comm) == ZERO_ERR_ARGUMENT, "zero_create(NULL)");
    test_check(zero_create(&z, NULL, &comm) == ZERO_ERR_ARGUMENT, "no configuration");
    test_check(zero_create(&z, &cfg, NULL) == ZERO_ERR_ARGUMENT, "no communicator");
    unit_bad_comm((zero_comm){ZERO_COMM_LOCAL, 0, NULL, 0}, ZERO_ERR_ARGUMENT, "handle is NULL");
    unit_bad_comm((zero_comm){(zero_comm_kind)9, 0, NULL, 0}, ZERO_ERR_ARGUMENT, "kind is 9");
    unit_bad_comm((zero_comm){(zero_comm_kind)-99999, 0, NULL, 0}, ZERO_ERR_ARGUMENT,
                  "kind is -99999");
    unit_bad_comm((zero_comm){(zero_comm_kind)4, 0, NULL, 0}, ZERO_ERR_ARGUMENT, "kind is 4");
    for (int i = 0; i < 3; i++) { /* a group of its own each: who cannot join ends it for all */
        static const zero_comm bad[] = {{ZERO_COMM_LOCAL, 1, NULL, 0},
                                        {ZERO_COMM_LOCAL, -1, NULL, 0},
                                        {ZERO_COMM_LOCAL, 0, NULL, 2}};
        static const char *const what[] = {"rank is 1", "rank is -1", "node_size 2"};
        if (!test_check(!zero_local_create(&local, 1, 0), "a group")) return;
        comm = bad[i];
        comm.handle = local;
        unit_bad_comm(comm, ZERO_ERR_ARGUMENT, what[i]);
        zero_local_destroy(local);
    }
#ifndef ZERO_WITH_MPI
    unit_bad_comm((zero_comm){ZERO_COMM_MPI, 0, NULL, 0}, ZERO_ERR_UNSUPPORTED, "MPI");
#endif
    zero_local_destroy(NULL);
    zero_destroy(NULL);
    test_check(zero_barrier(NULL) == ZERO_ERR_ARGUMENT && zero_last_error(NULL)[0], "no context");
}

static void unit_resolved_config(void) {
    zero_config seen;
    zero_config given = {.stage = 2};
    zero_ctx *z = unit_create(&given);
    zero_query_config(z, &seen);
    test_check(seen.stage == 2 && seen.micro_steps == 1
                   && seen.accumulation == ZERO_ACCUMULATE_SHARDED && seen.prefetch == 1
                   && seen.timeout_s == 600 && seen.threads >= 1,
               "defaults at stage 2");
    test_check(zero_rank(z) == 0 && zero_nranks(z) == 1 && zero_loss_scale(z) == 1.0f,
               "rank 0 of 1");
    zero_destroy(z);
    given.stage = 1;
    given.prefetch = ZERO_NONE;
    z = unit_create(&given);
    zero_query_config(z, &seen);
    test_check(seen.accumulation == ZERO_ACCUMULATE_LOCAL && seen.prefetch == 0,
               "defaults at stage 1");
    test_check(seen.grads == ZERO_GRAD_F32 && seen.scaler.fixed == 1, "defaults of F32");
    zero_destroy(z);
    given = (zero_config){.type = ZERO_F16};
    z = unit_create(&given);
    zero_query_config(z, &seen);
    test_check(seen.grads == ZERO_GRAD_AS_TYPE && seen.scaler.fixed == 0
                   && seen.scaler.initial == 65536 && seen.scaler.minimum == 1
                   && seen.scaler.window == 1000 && seen.scaler.hysteresis == 2,
               "defaults of F16");
    zero_destroy(z);
    given = (zero_config){.type = ZERO_BF16, .micro_steps = 2};
    z = unit_create(&given);
    zero_query_config(z, &seen);
    test_check(seen.grads == ZERO_GRAD_F32 && seen.scaler.fixed == 1, "defaults of BF16");
    zero_destroy(z);
}

static void unit_bad_tensor(zero_ctx *z, zero_tensor_desc d, const char *what) {
    unit_error(z, zero_tensor(z, &d), ZERO_ERR_ARGUMENT, "zero_tensor", what);
}

static void unit_bad_factors(zero_ctx *z, float lr, float decay, const char *what) {
    unit_bad_tensor(
        z, (zero_tensor_desc){.name = "b", .numel = 1, .lr_factor = lr, .decay_factor = decay},
        what);
}

/* Units that forward uses once more than backward are gathered a third time; 0 uses are one. */
static void unit_again(void) {
    zero_config cfg = {
        .stage = 3, .prefetch = ZERO_NONE, .parameter_tier = ZERO_FILE, .folder = "/tmp"};
    const zero_tensor_desc tiles = {"tiles", 100, 8, .uses = 1, .flags = ZERO_AGAIN};
    const zero_tensor_desc blocks = {"blocks", 100, 8, .unit = 8, .uses = 1};
    const zero_tensor_desc unsaid = {"unsaid", 100, 8, .unit = 16, .flags = ZERO_AGAIN};
    zero_ctx *z = unit_create(&cfg);
    zero_plan_unit tile = {0}, block = {0}, other = {0};
    test_check(!zero_tensor(z, &tiles) && !zero_tensor(z, &blocks) && !zero_tensor(z, &unsaid)
                   && !zero_query_plan_unit(z, 3, &tile) && !zero_query_plan_unit(z, 11, &block)
                   && !zero_query_plan_unit(z, 19, &other) && tile.gathers == 3
                   && block.gathers == 2 && other.gathers == 3,
               "gathers of a unit that is used again: %d, of others %d, without uses %d",
               tile.gathers, block.gathers, other.gathers);
    zero_destroy(z);
}

/* A unit stays whole where the largest of its tensors is small enough. */
static void unit_persistence_rank(test_rank *r) {
    const zero_tensor_desc two[] = {{"wide", 100, 2, .uses = 1}, {"slim", 40, 2, .uses = 1}};
    const zero_comm comm = test_comm(r);
    for (int limit = 99; limit <= 100; limit++) {
        zero_config cfg = {
            .stage = 3, .persistence_numel = limit, .no_mapping = 1, .log = test_quiet};
        zero_ctx *z = NULL;
        zero_plan_unit unit = {0};
        if (zero_create(&z, &cfg, &comm) || zero_tensors(z, two, 2)
            || zero_query_plan_unit(z, 1, &unit) || unit.resident != (limit == 100))
            test_rank_fail(r, "persistence_numel %d: resident %d %s", limit, unit.resident,
                           zero_last_error(z));
        zero_destroy(z);
    }
}

/* Blocks take turns in buffers, and have second shards; the embedding has a buffer of its own. */
static void unit_second_rank(test_rank *r) {
    zero_config cfg = {.stage = 3, .second_ranks = 2, .no_mapping = 1, .log = test_quiet};
    const zero_tensor_desc embedding = {"embedding", 1 << 20, 1, .uses = 1},
                           blocks = {"blocks", 1 << 10, 8, .unit = 1, .uses = 1};
    const zero_comm comm = test_comm(r);
    zero_ctx *z = NULL;
    zero_plan plan = {0};
    if (zero_create(&z, &cfg, &comm) || zero_tensor(z, &embedding) || zero_tensor(z, &blocks)
        || zero_query_plan(z, &plan) || plan.second_bytes != 8 * (1 << 10) / 2 * sizeof(float))
        test_rank_fail(r, "%zu bytes of second shards: %s", plan.second_bytes, zero_last_error(z));
    zero_destroy(z);
}

static void unit_tensor_errors(void) {
    zero_config cfg = {.micro_steps = 3, .accumulation = ZERO_ACCUMULATE_LOCAL};
    const zero_tensor_desc good = {"good", 5, .layers = 0}, gap = {"gap", 5, 1, .unit = 2};
    zero_ctx *z = unit_create(&cfg);
    test_check(zero_tensor(z, &good) == ZERO_OK, "a tensor");
    unit_error(z, zero_tensor(z, NULL), ZERO_ERR_ARGUMENT, "zero_tensor", "desc is NULL");
    unit_bad_tensor(z, (zero_tensor_desc){"", 1, .layers = 1}, "name");
    unit_bad_tensor(z, good, "tensor good was announced before");
    unit_bad_tensor(z, (zero_tensor_desc){"b", 0, .layers = 1}, "tensor b: numel is 0");
    unit_bad_tensor(z, (zero_tensor_desc){"b", (size_t)-1, .layers = 1},
                    "tensor b: numel is 18446744073709551615");
    unit_bad_tensor(z, (zero_tensor_desc){"b", ((size_t)1 << 28) + 1, .layers = 1 << 20},
                    "tensor b: numel is 268435457, expected 1..268435456");
    unit_bad_tensor(z, (zero_tensor_desc){"b", ((size_t)1 << 48) + 1, .layers = 0},
                    "tensor b: numel is 281474976710657, expected 1..281474976710656");
    unit_bad_tensor(z, (zero_tensor_desc){"b", 1, .layers = -1}, "tensor b: layers -1");
    unit_bad_tensor(z, (zero_tensor_desc){"b", 1, 1, .unit = -3}, "unit -3");
    unit_bad_tensor(z, (zero_tensor_desc){"b", 1, 1, .unit = 1000000000},
                    "tensor b: unit 1000000000, expected 0..1048576");
    unit_bad_tensor(z, (zero_tensor_desc){"b", 1, .layers = 1 << 30},
                    "tensor b: layers 1073741824, expected 0..1048576");
    unit_bad_tensor(z, (zero_tensor_desc){"b", 1, 1, .uses = -4}, "uses -4");
    unit_bad_tensor(z, (zero_tensor_desc){"b", 1, 1, .flags = 512}, "flags 512");
    unit_bad_tensor(z, (zero_tensor_desc){"b", 1, 1, .flags = ZERO_OVERWRITTEN}, "3 micro-steps");
    unit_bad_factors(z, -0.5f, 1, "b: lr_factor -0.5");
    unit_bad_factors(z, 1, -2, "decay_factor -2");
    unit_bad_factors(z, NAN, 1, "lr_factor nan");
    unit_bad_factors(z, 1, INFINITY, "decay_factor inf");
    test_check(zero_tensor(z, &gap) == ZERO_OK, "a tensor of unit 2");
    unit_error(z, zero_build(z), ZERO_ERR_ARGUMENT, "zero_build",
               "unit 1 has no tensor, though units go up to 2");
    zero_destroy(z);
    z = unit_create(NULL);
    unit_error(z, zero_build(z), ZERO_ERR_STATE, "zero_build", "no tensor");
    zero_destroy(z);
}

/* Without a context, what has no result answers as one rank that trains nothing. */
static void unit_no_context(void) {
    zero_config cfg;
    zero_counters counters;
    memset(&cfg, 1, sizeof cfg);
    memset(&counters, 1, sizeof counters);
    zero_query_config(NULL, &cfg);
    zero_query_config(NULL, NULL);
    zero_state_counters(NULL, &counters);
    zero_state_counters(NULL, NULL);
    test_check(zero_rank(NULL) == 0 && zero_nranks(NULL) == 1 && zero_loss_scale(NULL) == 1
                   && zero_state_ranges(NULL, 0) == 0 && zero_state_ranges(NULL, 1) == 0,
               "no context: one rank");
    test_check(cfg.stage == 0 && cfg.timeout_s == 0 && cfg.log == NULL && counters.steps == 0
                   && counters.hysteresis == 0,
               "no context: zeros");
}

/* Three units; "top" is used twice, "bias" is KEEP. */
static void unit_announce_all(zero_ctx *z) {
    const zero_tensor_desc top = {"top", 40, 1, .uses = 2},
                           body = {"body", 100, 2, .unit = 1, .field = sizeof(float *)};
    const zero_tensor_desc bias = {
        "bias", 5, 2, .unit = 1, .flags = ZERO_KEEP, .field = 2 * sizeof(float *)};
    test_check(!zero_tensor(z, &top) && !zero_tensor(z, &body) && !zero_tensor(z, &bias),
               "tensors");
}

static zero_ctx *unit_built(const zero_config *cfg) {
    zero_ctx *z = unit_create(cfg);
    unit_announce_all(z);
    test_check(zero_build(z) == ZERO_OK, "a context is built: %s", zero_last_error(z));
    return z;
}

static int unit_micro(zero_ctx *z, int micro, int micro_steps) {
    host_pointers p, g;
    int bad = zero_bind(z, &p, &g) || zero_pass_begin(z, ZERO_TRAIN, micro, micro_steps);
    for (int u = 0; u < 3; u++) bad |= zero_forward_begin(z, u, &p) || zero_forward_end(z, u);
    bad |= zero_backward_begin(z, 0, &p, &g) || zero_backward_end(z, 0);
    for (int u = 2; u >= 0; u--)
        bad |= zero_backward_begin(z, u, &p, &g) || zero_backward_end(z, u);
    return !bad && !zero_pass_end(z);
}

/* What is expected before a pass was seen: up, unit 0 once more, then unit 0 and down. */
static void unit_expected(void) {
    static const int order[] = {0, 1, 2, 0, 0, 2, 1};
    const zero_config cfg = {.stage = 3};
    zero_ctx *z = unit_built(&cfg);
    const zp_order *t = &z->trace[ZERO_TRAIN];
    test_check(t->n == 7 && !memcmp(t->unit, order, sizeof order), "%d gathers are expected", t->n);
    zero_destroy(z);
}

static const zero_hyper unit_adamw = {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 0};

static void unit_errors_before_build(void) {
    zero_ctx *z = unit_create(NULL);
    zero_stats stats;
    zero_step_report report;
    float x = 0;
    double norm;
    const zero_result S = ZERO_ERR_STATE;
    unit_error(z, zero_slot(z, NULL, 0, NULL, NULL), S, "zero_slot", "zero_tensor comes first");
    unit_announce_all(z);
    unit_error(z, zero_bind(z, NULL, NULL), S, "zero_bind", "zero_build");
    unit_error(z, zero_pass_begin(z, ZERO_TRAIN, 0, 1), S, "zero_pass_begin", "zero_build");
    unit_error(z, zero_forward_begin(z, 1, NULL), S, "zero_forward_begin", "unit 1");
    unit_error(z, zero_forward_end(z, 1), S, "zero_forward_end", "unit 1");
    unit_error(z, zero_backward_begin(z, 2, NULL, NULL), S, "zero_backward_begin", "unit 2");
    unit_error(z, zero_backward_end(z, 2), S, "zero_backward_end", "unit 2");
    unit_error(z, zero_pass_end(z), S, "zero_pass_end", "no pass");
    unit_error(z, zero_reduce(z), S, "zero_reduce", "micro-steps");
    unit_error(z, zero_norm(z, &norm), S, "zero_norm", "zero_reduce");
    unit_error(z, zero_step(z, &unit_adamw), S, "zero_step", "zero_reduce");
    unit_error(z, zero_step_result(z, &report), S, "zero_step_result", "no step");
    unit_error(z, zero_read_tensor(z, "top", ZERO_PARAMETER, 0, 1, &x), S, "zero_read_tensor",
               "zero_build");
    unit_error(z, zero_write_tensor(z, "top", ZERO_PARAMETER, 0, 1, &x), S, "zero_write_tensor",
               "zero_build");
    unit_error(z, zero_broadcast(z, &x, 4, 0), S, "zero_broadcast", "zero_build");
    unit_error(z, zero_query_stats(z, &stats), S, "zero_query_stats", "zero_build");
    unit_error(z, zero_state_begin(z), S, "zero_state_begin", "zero_build comes first");
    test_check(zero_build(z) == ZERO_OK, "errors of order harm nothing");
    unit_error(z, zero_build(z), S, "zero_build", "built already");
    const zero_tensor_desc late = {"late", 1, .layers = 1};
    unit_error(z, zero_tensor(z, &late), S, "zero_tensor", "before zero_build");
    unit_error(z, zero_skip_step(z), S, "zero_skip_step", "zero_reduce comes first");
    zero_destroy(z);
}

static void unit_errors_of_hooks(void) {
    zero_config cfg = {.stage = 3, .micro_steps = 2};
    zero_ctx *z = unit_built(&cfg);
    host_pointers p, g;
    const zero_result S = ZERO_ERR_STATE, A = ZERO_ERR_ARGUMENT;
    test_check(!zero_bind(z, &p, &g), "bind");
    unit_error(z, zero_pass_begin(z, (zero_pass)2, 0, 1), A, "zero_pass_begin", "2");
    unit_error(z, zero_pass_begin(z, ZERO_TRAIN, 0, 3), A, "zero_pass_begin", "micro_steps is 3");
    unit_error(z, zero_pass_begin(z, ZERO_TRAIN, 0, 0), A, "zero_pass_begin", "micro_steps is 0");
    unit_error(z, zero_pass_begin(z, ZERO_TRAIN, 1, 2), S, "zero_pass_begin",
               "micro-step 1 of 2, expected 0");
    unit_error(z, zero_pass_begin(z, ZERO_TRAIN, -1, 2), S, "zero_pass_begin",
               "micro-step -1 of 2");
    test_check(!zero_pass_begin(z, ZERO_TRAIN, 0, 2), "pass");
    unit_error(z, zero_pass_begin(z, ZERO_TRAIN, 0, 2), S, "zero_pass_begin", "has not ended");
    unit_error(z, zero_forward_begin(z, 3, &p), A, "zero_forward_begin", "unit 3, expected 0..2");
    unit_error(z, zero_forward_begin(z, -1, &p), A, "zero_forward_begin", "unit -1");
    unit_error(z, zero_forward_begin(z, 1, NULL), A, "zero_forward_begin", "tensor body");
    unit_error(z, zero_forward_end(z, 1), S, "zero_forward_end", "unit 1");
    unit_error(z, zero_backward_begin(z, 1, &p, NULL), A, "zero_backward_begin", "tensor body");
    unit_error(z, zero_backward_end(z, 1), S, "zero_backward_end", "unit 1");
    test_check(!zero_forward_begin(z, 1, &p), "forward");
    unit_error(z, zero_pass_end(z), S, "zero_pass_end", "unit 1: its forward");
    test_check(!zero_forward_end(z, 1) && !zero_backward_begin(z, 2, &p, &g), "backward");
    unit_error(z, zero_pass_end(z), S, "zero_pass_end", "unit 2: its backward");
    test_check(!zero_backward_end(z, 2), "backward");
    unit_error(z, zero_backward_begin(z, 2, &p, &g), S, "zero_backward_begin",
               "unit 2: its gradient is complete after 1");
    const int *opens = &z->live[0].parameter_opens;
    test_check(!zero_backward_begin(z, 0, &p, &g) && !zero_backward_begin(z, 0, NULL, &g)
                   && !zero_backward_begin(z, 0, &p, &g) && *opens == 2 && !zero_backward_end(z, 0)
                   && *opens == 1 && !zero_backward_end(z, 0) && *opens == 1
                   && !zero_backward_end(z, 0) && *opens == 0,
               "first use: of three nested backwards two have parameters, which %d keep", *opens);
    test_check(!zero_backward_begin(z, 0, NULL, &g), "second use");
    test_check(!zero_backward_begin(z, 0, &p, &g) && p.field[0] != NULL && !zero_backward_end(z, 0),
               "a nested backward that wants parameters gets them");
    test_check(!zero_backward_end(z, 0), "second use");
    unit_error(z, zero_backward_begin(z, 0, &p, &g), S, "zero_backward_begin",
               "complete after 2 uses");
    unit_error(z, zero_reduce(z), S, "zero_reduce", "2 micro-steps");
    test_check(!zero_pass_end(z), "pass");
    unit_error(z, zero_pass_begin(z, ZERO_TRAIN, 0, 2), S, "zero_pass_begin",
               "micro-step 0 of 2, expected 1 of 2");
    unit_error(z, zero_pass_begin(z, ZERO_TRAIN, 1, 1), S, "zero_pass_begin", "micro-step 1 of 1");
    unit_error(z, zero_reduce(z), S, "zero_reduce", "2 micro-steps");
    test_check(unit_micro(z, 1, 2) && !zero_reduce(z) && !zero_step(z, &unit_adamw),
               "errors of order harm nothing");
    zero_destroy(z);
}

static void unit_errors_of_evaluation(void) {
    zero_ctx *z = unit_built(NULL);
    host_pointers p, g;
    const zero_result S = ZERO_ERR_STATE;
    float x = 0;
    test_check(!zero_pass_begin(z, ZERO_EVAL, 0, 1) && !zero_forward_begin(z, 1, &p), "evaluation");
    unit_error(z, zero_backward_begin(z, 1, &p, &g), S, "zero_backward_begin",
               "unit 1: an evaluation");
    unit_error(z, zero_reduce(z), S, "zero_reduce", "micro-steps");
    unit_error(z, zero_step(z, &unit_adamw), S, "zero_step", "zero_reduce");
    unit_error(z, zero_read_tensor(z, "body", ZERO_PARAMETER, 0, 1, &x), S, "zero_read_tensor",
               "passes");
    unit_error(z, zero_pass_end(z), S, "zero_pass_end", "unit 1");
    test_check(!zero_forward_end(z, 1) && !zero_pass_end(z), "evaluation");
    unit_error(z, zero_forward_begin(z, 1, &p), S, "zero_forward_begin", "unit 1: no pass");
    zero_destroy(z);
}

static void unit_errors_of_steps(void) {
    zero_ctx *z = unit_built(NULL);
    zero_step_report report;
    double norm;
    const zero_result S = ZERO_ERR_STATE, A = ZERO_ERR_ARGUMENT;
    static const zero_hyper bad[] = {{-1, 0.9f, 0.9f, 0, 0, 0},  {1, 1.0f, 0.9f, 0, 0, 0},
                                     {1, -0.1f, 0.9f, 0, 0, 0},  {1, 0.9f, 1.5f, 0, 0, 0},
                                     {1, 0.9f, NAN, 0, 0, 0},    {1, 0.9f, 0.9f, -1, 0, 0},
                                     {1, 0.9f, 0.9f, 0, -2, 0},  {1, 0.9f, 0.9f, 0, 0, -3},
                                     {1, 0.9f, 0.9f, 0, 0, NAN}, {1, 0.9f, 0.9f, 0, 0, 0}};
    static const char *const what[] = {"lr -1",        "betas 1 ", "betas -0.1",      "and 1.5",
                                       "and nan",      "eps -1",   "weight_decay -2", "max_norm -3",
                                       "max_norm nan", "eps is 0"};
    test_check(unit_micro(z, 0, 1), "a pass");
    unit_error(z, zero_step(z, &unit_adamw), S, "zero_step", "zero_reduce comes first");
    unit_error(z, zero_norm(z, &norm), S, "zero_norm", "zero_reduce");
    test_check(!zero_reduce(z), "reduce");
    unit_error(z, zero_reduce(z), S, "zero_reduce", "micro-steps");
    unit_error(z, zero_pass_begin(z, ZERO_TRAIN, 0, 1), S, "zero_pass_begin", "zero_step is due");
    unit_error(z, zero_norm(z, NULL), A, "zero_norm", "NULL");
    unit_error(z, zero_step(z, NULL), A, "zero_step", "hyper is NULL");
    for (int i = 0; i < 10; i++) unit_error(z, zero_step(z, &bad[i]), A, "zero_step", what[i]);
    unit_error(z, zero_step_result(z, &report), S, "zero_step_result", "no step");
    test_check(!zero_step(z, &unit_adamw), "step");
    unit_error(z, zero_step(z, &unit_adamw), S, "zero_step", "zero_reduce comes first");
    unit_error(z, zero_step_result(z, NULL), A, "zero_step_result", "NULL");
    test_check(!zero_step_result(z, &report) && report.stepped && report.steps == 1, "report");
    test_check(unit_micro(z, 0, 1) && !zero_reduce(z), "a second step");
    unit_error(z, zero_step_result(z, &report), S, "zero_step_result", "zero_reduce");
    zero_destroy(z);
}

/* A rule's row says what it reads; the rest of zero_hyper may be anything. */
static void unit_rules_read(void) {
    static const char *const names[] = {"adamw", "adam",    "sgd",  "nesterov",
                                        "lion",  "adagrad", "lamb", "muon"};
    static const int reads[] = {7, 7, 1, 1, 3, 4, 7, 7}; /* beta1, beta2, eps */
    static const float bad[] = {-1, NAN, INFINITY};
    for (int i = 0; i < 8; i++) {
        const zp_rule *rule = &zp_rules[i];
        test_check(!strcmp(rule->name, names[i]), "rule %d is %s", i, rule->name);
        for (int k = 0; k < 9; k++) {
            zero_hyper h = {1, 0.9f, 0.9f, 1e-8f, 0.1f, 1};
            *(k / 3 == 0 ? &h.beta1 : k / 3 == 1 ? &h.beta2 : &h.eps) = bad[k % 3];
            test_check(zp_rule_accepts(rule, &h) == !(reads[i] >> k / 3 & 1), "%s takes %g as %d",
                       names[i], (double)bad[k % 3], k / 3);
        }
        for (int k = 0; k < 9; k++) { /* all read these; any max_norm from 0 on is one */
            zero_hyper h = {1, 0.9f, 0.9f, 1e-8f, 0.1f, 1};
            *(k / 3 == 0 ? &h.lr : k / 3 == 1 ? &h.weight_decay : &h.max_norm) = bad[k % 3];
            test_check(zp_rule_accepts(rule, &h) == (k == 8), "%s takes %g as %d", names[i],
                       (double)bad[k % 3], 3 + k / 3);
        }
    }
}

static void unit_errors_of_access(void) {
    zero_ctx *z = unit_built(NULL);
    float x[256] = {0};
    double sums[65] = {0};
    zero_plan_unit unit;
    const zero_result S = ZERO_ERR_STATE, A = ZERO_ERR_ARGUMENT;
    unit_error(z, zero_read_tensor(z, "nobody", ZERO_PARAMETER, 0, 1, x), A, "zero_read_tensor",
               "nobody");
    unit_error(z, zero_read_tensor(z, NULL, ZERO_PARAMETER, 0, 1, x), A, "zero_read_tensor",
               "NULL");
    unit_error(z, zero_read_tensor(z, "body", (zero_kind)5, 0, 1, x), A, "zero_read_tensor",
               "body: kind 5");
    unit_error(z, zero_read_tensor(z, "body", ZERO_PARAMETER, 0, 201, x), A, "zero_read_tensor",
               "body has 200 elements");
    unit_error(z, zero_read_tensor(z, "body", ZERO_PARAMETER, 201, 0, x), A, "zero_read_tensor",
               "[201, 201)");
    unit_error(z, zero_read_tensor(z, "body", ZERO_PARAMETER, (size_t)-1, 2, x), A,
               "zero_read_tensor", "200");
    unit_error(z, zero_read_tensor(z, "body", ZERO_GRADIENT, 0, 1, x), S, "zero_read_tensor",
               "body: gradients");
    unit_error(z, zero_write_tensor(z, "body", ZERO_GRADIENT, 0, 1, x), S, "zero_write_tensor",
               "body: gradients");
    unit_error(z, zero_write_tensor(z, "body", ZERO_PARAMETER, 0, 1, NULL), A, "zero_write_tensor",
               "body: values");
    test_check(!zero_read_tensor(z, "body", ZERO_PARAMETER, 200, 0, NULL),
               "nothing read at the end");
    unit_error(z, zero_slot(z, "nobody", 0, NULL, NULL), A, "zero_slot", "nobody");
    unit_error(z, zero_slot(z, "body", 2, NULL, NULL), A, "zero_slot",
               "body: layer 2, expected 0..1");
    unit_error(z, zero_slot(z, "body", -1, NULL, NULL), A, "zero_slot", "layer -1");
    unit_error(z, zero_all_sum(z, sums, 65), A, "zero_all_sum", "n is 65");
    unit_error(z, zero_all_sum(z, sums, -1), A, "zero_all_sum", "n is -1");
    unit_error(z, zero_all_sum(z, NULL, 2), A, "zero_all_sum", "values is NULL");
    unit_error(z, zero_broadcast(z, NULL, 4, 0), A, "zero_broadcast", "data is NULL");
    unit_error(z, zero_broadcast(z, x, 4, 1), A, "zero_broadcast", "root is 1");
    unit_error(z, zero_broadcast(z, x, 4, -1), A, "zero_broadcast", "root is -1");
    unit_error(z, zero_query_stats(z, NULL), A, "zero_query_stats", "NULL");
    unit_error(z, zero_query_plan(z, NULL), A, "zero_query_plan", "NULL");
    unit_error(z, zero_query_plan_unit(z, 4, &unit), A, "zero_query_plan_unit",
               "unit 4, expected 0..3");
    unit_error(z, zero_query_plan_unit(z, 0, NULL), A, "zero_query_plan_unit", "plan is NULL");
    unit_error(z, zero_state_range(z, 0, 0, NULL), A, "zero_state_range", "range is NULL");
    test_check(!zero_state_begin(z), "the state opens");
    unit_error(z, zero_state_begin(z), S, "zero_state_begin", "the state is open already");
    test_check(!zero_state_end(z, 0), "the state closes");
    test_check(unit_micro(z, 0, 1), "a pass");
    unit_error(z, zero_read_tensor(z, "body", ZERO_PARAMETER, 0, 1, x), S, "zero_read_tensor",
               "passes");
    zero_destroy(z);
}

/* More units open than there are buffers is an error that says what to raise. */
static void unit_too_many_open(test_rank *r) {
    zero_ctx *z = NULL;
    host_pointers p;
    zero_config cfg = {.stage = 3, .no_mapping = 1, .prefetch = 1, .log = test_quiet};
    zero_comm comm = test_comm(r);
    const zero_tensor_desc d = {"w", 50, .layers = 8};
    if (zero_create(&z, &cfg, &comm) || zero_tensor(z, &d) || zero_build(z)
        || zero_pass_begin(z, ZERO_EVAL, 0, 1))
        test_rank_fail(r, "%s", zero_last_error(z));
    for (int u = 0; u < 3 && !r->failed; u++)
        if (zero_forward_begin(z, u, &p)) test_rank_fail(r, "unit %d: %s", u, zero_last_error(z));
    if (!r->failed
        && (zero_forward_begin(z, 5, &p) != ZERO_ERR_STATE
            || !strstr(zero_last_error(z), "unit 5: all 3")))
        test_rank_fail(r, "a fourth unit: %s", zero_last_error(z));
    for (int u = 0; u < 3 && !r->failed; u++)
        if (zero_forward_end(z, u)) test_rank_fail(r, "%s", zero_last_error(z));
    if (!r->failed && (zero_forward_begin(z, 5, &p) || zero_forward_end(z, 5) || zero_pass_end(z)))
        test_rank_fail(r, "%s", zero_last_error(z));
    zero_destroy(z);
}

/* ---- the plan ---- */

static int unit_same_plan(const zero_plan *a, const zero_plan *b) {
    return !memcmp(a, b, sizeof *a);
}

static size_t unit_share(size_t p, int n) { return (p + (size_t)n - 1) / (size_t)n; }

/* What a run goes on from; a loss scale that has not begun begins. */
static void unit_counters(void) {
    const zero_config cfg = {.type = ZERO_F16, .scaler.initial = 4096};
    const zero_counters good = {7, 3, 5, 2, 128, 1};
    const zero_counters bad[] = {
        {-1, 3, 5, 2, 128, 1}, {7, -1, 5, 2, 128, 1}, {7, 3, -1, 2, 128, 1}, {7, 3, 5, -2, 128, 1},
        {7, 3, 5, 2, NAN, 1},  {7, 3, 5, 2, 0, 1},    {7, 3, 5, 2, 128, -1}};
    zero_ctx *z = unit_built(&cfg);
    zero_counters now, fresh = good;
    fresh.iteration = 0;
    zero_state_counters(z, &now);
    test_check(now.steps == 0 && now.skipped == 0 && now.iteration == 0 && now.last_overflow == -1
                   && now.scale == 4096 && now.hysteresis == 2,
               "counters of a new context: %d", (int)now.last_overflow);
    test_check(!zero_state_begin(z), "%s", zero_last_error(z));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        unit_error(z, zero_state_set_counters(z, &bad[i]), ZERO_ERR_ARGUMENT,
                   "zero_state_set_counters", "none may be below 0");
    unit_error(z, zero_state_set_counters(z, NULL), ZERO_ERR_ARGUMENT, "zero_state_set_counters",
               "none may be below 0");
    test_check(!zero_state_set_counters(z, &good), "%s", zero_last_error(z));
    zero_state_counters(z, &now);
    test_check(!memcmp(&now, &good, sizeof now) && z->taken == 10, "counters, %d taken",
               (int)z->taken);
    test_check(!zero_state_set_counters(z, &fresh), "%s", zero_last_error(z));
    zero_state_counters(z, &now);
    test_check(now.steps == 7 && now.skipped == 3 && now.iteration == 0 && now.last_overflow == -1
                   && now.scale == 4096 && now.hysteresis == 2,
               "a scale that begins: %g, %d left", (double)now.scale, now.hysteresis);
    test_check(!zero_state_end(z, 1), "%s", zero_last_error(z));
    zero_destroy(z);
}

/* The stage table of the header. */
static size_t unit_formula(int stage, size_t numel, int n) {
    const size_t p = 4 * numel, share = 4 * unit_share(numel, n);
    if (stage == 0) return 4 * p;
    if (stage == 1) return 2 * p + 2 * share;
    if (stage == 2) return p + 3 * share;
    return 4 * share;
}

static void unit_plan_rank(test_rank *r) {
    const zero_config *cfg = (const zero_config *)r->arg;
    zero_ctx *z = NULL;
    zero_plan before, after;
    zero_plan_unit unit, first; /* cleared: their padding is compared too */
    zero_stats stats;
    zero_comm comm = test_comm(r);
    size_t numel = 0, padded = 0, sent = 0;
    memset(&unit, 0, sizeof unit);
    memset(&first, 0, sizeof first);
    if (zero_create(&z, cfg, &comm))
        test_rank_fail(r, "%s", zero_last_error(z));
    else {
        unit_announce_all(z);
        if (zero_query_plan(z, &before) || zero_query_plan_unit(z, 1, &first) || zero_build(z)
            || zero_query_plan(z, &after) || zero_query_stats(z, &stats))
            test_rank_fail(r, "%s", zero_last_error(z));
    }
    for (int u = 0; u < 4 && !r->failed; u++) {
        if (zero_query_plan_unit(z, u, &unit)) test_rank_fail(r, "%s", zero_last_error(z));
        if (u == 1 && memcmp(&unit, &first, sizeof unit))
            test_rank_fail(r, "unit 1 is planned otherwise after build");
        numel += unit.numel;
        padded += unit.padded;
        sent += unit.sent_bytes;
    }
    if (!r->failed
        && (!unit_same_plan(&before, &after) || numel != before.numel
            || padded != before.padded_numel || sent != before.sent_bytes || numel != 250
            || before.units != 4))
        test_rank_fail(r, "the plan before build is not the one after");
    if (!r->failed
        && (stats.param_bytes != before.param_bytes || stats.grad_bytes != before.grad_bytes
            || stats.optimizer_bytes != before.optimizer_bytes
            || stats.buffer_bytes != before.buffer_bytes))
        test_rank_fail(r, "what was allocated is not what was planned");
    if (!r->failed && before.formula_bytes != unit_formula(cfg->stage, 250, r->nranks))
        test_rank_fail(r, "formula of stage %d: %zu", cfg->stage, before.formula_bytes);
    zero_destroy(z);
}

static void unit_plans(void) {
    for (int stage = 0; stage < 4; stage++)
        for (int nranks = 1; nranks <= 5; nranks++)
            for (int k = 0; k < 6; k++) {
                zero_config cfg = {.stage = stage,
                                   .micro_steps = 1 + k % 3,
                                   .no_mapping = k & 1,
                                   .log = test_quiet};
                cfg.accumulation = (zero_accumulation)(k % 3);
                cfg.persistence_numel = k == 5 ? ZERO_NONE : 0;
                test_check(test_ranks(nranks, 0, unit_plan_rank, &cfg),
                           "plan of stage %d, %d ranks, %d: %s", stage, nranks, k, test_first);
            }
}

/* A setting too small is an error that says the number. */
static void unit_bucket_error(void) {
    zero_config cfg = {.stage = 2, .bucket_numel = 100};
    zero_plan plan;
    zero_ctx *z = unit_create(&cfg);
    unit_announce_all(z);
    unit_error(z, zero_query_plan(z, &plan), ZERO_ERR_ARGUMENT, "zero_query_plan",
               "bucket_numel is 100");
    test_check(strstr(zero_last_error(z), "has 128 elements") != NULL, "the least bucket: %s",
               zero_last_error(z));
    unit_error(z, zero_build(z), ZERO_ERR_ARGUMENT, "zero_build", "bucket_numel is 100");
    zero_destroy(z);
}

/* Norms as units of their own, between the blocks, do not make every block lie alone. */
static void unit_alternating(void) {
    for (int stage = 2; stage < 4; stage++)
        for (int prefetch = 1; prefetch < 40; prefetch += 19) {
            zero_config cfg = {.stage = stage, .prefetch = prefetch};
            zero_plan plan;
            memset(&plan, 0, sizeof plan);
            zero_ctx *z = unit_create(&cfg);
            for (int u = 0; u < 25; u++) {
                char name[16];
                const zero_tensor_desc d = {name, u % 2 ? 1000000 : 1000, 1, .unit = u, .uses = 1};
                snprintf(name, sizeof name, "t%d", u);
                test_check(zero_tensor(z, &d) == ZERO_OK, "a tensor");
            }
            test_check(zero_query_plan(z, &plan) == ZERO_OK && plan.buffer_bytes < 4 * 3300000,
                       "buffers of %zu bytes for blocks of 4 MB, stage %d, prefetch %d",
                       plan.buffer_bytes, stage, prefetch);
            zero_destroy(z);
        }
}

/* ---- one rank ---- */

static void unit_base_spec(host_spec *s, int nranks, int stage) {
    static const zero_tensor_desc desc[] = {
        {"emb", 700, 1, .uses = 2},
        {"mat", 331, 3, .unit = 1},
        {"vec", 17, 3, .unit = 1, .flags = ZERO_NO_DECAY | ZERO_ONE_D},
        {"norm", 9, 3, .unit = 1, .flags = ZERO_KEEP | ZERO_NO_DECAY},
        {"out", 5, 1, .unit = 4, .flags = ZERO_ONE_D}};
    memset(s, 0, sizeof *s);
    s->seed = 5;
    s->nranks = nranks;
    s->steps = 3;
    s->micro_steps = 1;
    s->ntensors = 5;
    s->units = 5;
    s->silent_unit = -1;
    memcpy(s->desc, desc, sizeof desc);
    s->cfg.stage = stage;
    s->cfg.threads = 1;
    s->adamw = (zero_hyper){0.01f, 0.9f, 0.95f, 1e-8f, 0.1f, 0};
}

static int unit_step(host_run *h) {
    for (h->micro = 0; h->micro < h->spec->micro_steps; h->micro++)
        if (!host_train_pass(h)) return 0;
    HOST_TRY(h, zero_reduce(h->z));
    HOST_TRY(h, zero_step(h->z, &h->spec->adamw));
    return 1;
}

/* Invariant 9, and at any number of ranks: the weights are those of plain AdamW on the mean. */
static void unit_plain_rank(test_rank *rank) {
    const host_spec *s = (const host_spec *)rank->arg;
    host_run h;
    host_reference reference;
    host_reference_open(&reference, s);
    int ok = host_open(&h, s, rank);
    h.reference = &reference;
    for (h.step = 0; h.step < s->steps && ok; h.step++) {
        ok = unit_step(&h);
        host_reference_step(&reference, s, 0, h.step, 1.0f);
    }
    ok = ok && host_compare(&h, ZERO_PARAMETER, reference.p, "parameter")
         && host_compare(&h, ZERO_MASTER, reference.master, "master")
         && host_compare(&h, ZERO_MOMENT_1, reference.m, "m")
         && host_compare(&h, ZERO_MOMENT_2, reference.v, "v");
    zero_destroy(h.z);
    host_reference_close(&reference, s);
}

static void unit_plain(void) {
    for (int stage = 0; stage < 4; stage++)
        for (int nranks = 1; nranks <= 3; nranks++)
            for (int k = 0; k < 6; k++) {
                host_spec s;
                unit_base_spec(&s, nranks, stage);
                s.cfg.type = (zero_type)(k % 3);
                s.groups = k / 3;
                s.cfg.scaler.fixed = k % 3 == ZERO_F16 ? 64.0f : 0.0f;
                test_check(test_ranks(nranks, 0, unit_plain_rank, &s),
                           "plain AdamW, %s, stage %d, %d ranks: %s", unit_type_names[s.cfg.type],
                           stage, nranks, test_first);
            }
}

/* Ranks with different numbers of threads, as on machines of different size, train alike. */
static void unit_threads_rank(test_rank *rank) {
    host_spec s = *(const host_spec *)rank->arg;
    s.cfg.threads = 1 + rank->rank;
    rank->arg = &s;
    unit_plain_rank(rank);
}

static void unit_threads(void) {
    for (int stage = 0; stage < 4; stage++) {
        host_spec s;
        unit_base_spec(&s, 3, stage);
        s.steps = 2;
        s.desc[1].numel = 40000; /* OpenMP divides arrays above 32768 elements */
        test_check(test_ranks(3, 0, unit_threads_rank, &s), "threads differ, stage %d: %s", stage,
                   test_first);
    }
}

/* Names that differ where no error's sentence reaches. */
static void unit_long_name_rank(test_rank *rank) {
    char name[1001];
    const zero_tensor_desc d = {name, 5, .layers = 1};
    const zero_config cfg = {.log = test_quiet};
    const zero_comm comm = test_comm(rank);
    zero_ctx *z = NULL;
    memset(name, 'n', sizeof name);
    name[999] = (char)('a' + rank->rank);
    name[1000] = 0;
    if (zero_create(&z, &cfg, &comm) || zero_tensor(z, &d) || zero_build(z) != ZERO_ERR_MISMATCH
        || !strstr(zero_last_error(z), "hash"))
        test_rank_fail(rank, "\"%s\"", zero_last_error(z));
    zero_destroy(z);
}

/* ---- skipped steps (invariant 5) ---- */

typedef struct unit_bad { /* what goes wrong in step 1: elements, each on one rank */
    host_spec spec;       /* first: host.h finds its way back by this address */
    int n, tensor[2], rank[2], micro;
    size_t element[2];
    float value;
    int expect; /* which of them is named */
    int owner;  /* rank that owns it */
} unit_bad;

static void unit_poison(host_run *h, int t, size_t first, void *g) {
    const unit_bad *b = (const unit_bad *)(const void *)h->spec;
    for (int i = 0; i < b->n; i++)
        if (h->step == 1 && h->micro == b->micro && h->rank->rank == b->rank[i] && b->tensor[i] == t
            && b->element[i] >= first && b->element[i] < first + h->spec->desc[t].numel)
            host_put(g, host_grad_type(h->spec), b->element[i] - first, b->value);
}

/* Where an element lies, from the header's words alone: tensors of a unit on lines, equal shards.
 */
static int unit_owner(zero_ctx *z, const host_spec *s, int tensor, size_t element) {
    const zero_tensor_desc *d = &s->desc[tensor];
    const int kept = d->flags & ZERO_KEEP,
              unit = kept ? s->units : d->unit + (int)(element / d->numel);
    size_t at = 0;
    zero_plan_unit plan;
    for (int t = 0; t < tensor; t++) {
        const zero_tensor_desc *o = &s->desc[t];
        const size_t layers = o->layers ? (size_t)o->layers : 1;
        if (kept ? !(o->flags & ZERO_KEEP) : (o->flags & ZERO_KEEP) || !host_in_unit(o, unit))
            continue;
        at += (o->numel * (kept ? layers : 1) + 31) / 32 * 32;
    }
    if (zero_query_plan_unit(z, unit, &plan)) return -1;
    return (int)((at + (kept ? element : element % d->numel)) / (plan.padded / (size_t)s->nranks));
}

static int unit_check_report(host_run *h, const unit_bad *b) {
    zero_step_report r;
    const host_spec *s = h->spec;
    HOST_TRY(h, zero_step_result(h->z, &r));
    const int bad = h->step == 1, t = b->tensor[b->expect];
    const float scale = s->cfg.type == ZERO_F16 ? 16.0f : 1.0f;
    if (r.loss_scale != scale || r.next_loss_scale != scale) /* one overflow is hysteresis */
        test_rank_fail(h->rank, "step %d: scale %g, next %g", h->step, (double)r.loss_scale,
                       (double)r.next_loss_scale);
    if (r.stepped != !bad || r.skipped != (h->step >= 1) || r.steps != (h->step < 1 ? 1 : h->step))
        test_rank_fail(h->rank, "step %d: stepped %d, steps %lld, skipped %lld", h->step, r.stepped,
                       (long long)r.steps, (long long)r.skipped);
    else if (!bad && (r.bad_tensor || !isfinite(r.norm)))
        test_rank_fail(h->rank, "step %d: %s is bad in a good step", h->step, r.bad_tensor);
    else if (bad
             && (isfinite(r.norm) || !r.bad_tensor || strcmp(r.bad_tensor, s->desc[t].name)
                 || r.bad_index != b->element[b->expect]
                 || r.bad_rank != unit_owner(h->z, s, t, b->element[b->expect])))
        test_rank_fail(h->rank, "%s[%zu] of rank %d is bad, reported %s[%zu] of rank %d",
                       s->desc[t].name, b->element[b->expect],
                       unit_owner(h->z, s, t, b->element[b->expect]),
                       r.bad_tensor ? r.bad_tensor : "nothing", r.bad_index, r.bad_rank);
    return !h->rank->failed;
}

static void unit_bad_rank(test_rank *rank) {
    const unit_bad *b = (const unit_bad *)rank->arg;
    const host_spec *s = &b->spec;
    host_run h;
    int ok = host_open(&h, s, rank);
    uint64_t before = 0;
    for (h.step = 0; h.step < s->steps && ok; h.step++) {
        ok = unit_step(&h) && unit_check_report(&h, b);
        const uint64_t hash = ok ? host_hash(&h) : 0;
        if (ok && h.step >= 1 && (hash == before) != (h.step == 1))
            test_rank_fail(rank, "step %d: weights, m and v %s", h.step,
                           h.step == 1 ? "moved" : "did not move");
        before = hash;
        ok &= !rank->failed;
    }
    zero_destroy(h.z);
}

/* `type` 3: bf16 without master weights. */
static void unit_bad_case(int nranks, int stage, int k, int type, const unit_bad *what) {
    static const float values[] = {NAN, INFINITY, -INFINITY};
    unit_bad b = *what;
    unit_base_spec(&b.spec, nranks, stage);
    b.spec.poison = unit_poison;
    b.spec.micro_steps = 1 + k % 2;
    b.micro = k / 2 % 2 ? 0 : b.spec.micro_steps - 1;
    b.spec.cfg.type = type == 3 ? ZERO_BF16 : (zero_type)type;
    b.spec.cfg.no_master = type == 3;
    b.spec.cfg.grads = (zero_grad_type)(k / 3 % 3);
    b.spec.cfg.scaler.initial = 16;
    b.spec.cfg.accumulation = (zero_accumulation)(k % 3);
    b.spec.cfg.no_mapping = k % 2;
    b.spec.cfg.no_overlap = k % 3 == 1;
    b.value = values[k % 3];
    for (int i = 0; i < b.n; i++) b.rank[i] %= nranks;
    test_check(test_ranks(nranks, 0, unit_bad_rank, &b),
               "%s[%zu] is %g, stage %d, %d ranks, type %d, %d: %s", b.spec.desc[b.tensor[0]].name,
               b.element[0], (double)b.value, stage, nranks, type, k, test_first);
}

static void unit_skips(void) {
    static const unit_bad cases[] = {
        /* n, tensors, ranks, micro, elements, value, the one named */
        {.n = 1, .tensor = {0, 0}, .rank = {0, 0}, .element = {0, 0}}, /* the very first */
        {.n = 1,
         .tensor = {0, 0},
         .rank = {1, 0},
         .element = {699, 0}}, /* of a tied tensor, last shard */
        {.n = 1, .tensor = {1, 0}, .rank = {2, 0}, .element = {330, 0}}, /* layer 0's last */
        {.n = 1, .tensor = {1, 0}, .rank = {3, 0}, .element = {331, 0}}, /* layer 1's first */
        {.n = 1,
         .tensor = {2, 0},
         .rank = {1, 0},
         .element = {50, 0}}, /* last shard, which is padded */
        {.n = 1, .tensor = {3, 0}, .rank = {0, 0}, .element = {13, 0}}, /* KEEP */
        {.n = 1, .tensor = {4, 0}, .rank = {1, 0}, .element = {4, 0}},  /* most shards are empty */
        {.n = 2,
         .tensor = {1, 1},
         .rank = {0, 1},
         .element = {5, 700},
         .expect = 0}, /* two units, one shard */
        {.n = 2, .tensor = {1, 0}, .rank = {0, 2}, .element = {900, 2}, .expect = 1},
        {.n = 2,
         .tensor = {3, 1},
         .rank = {2, 2},
         .element = {0, 993 - 1},
         .expect = 1}, /* KEEP is the last unit */
        {.n = 2,
         .tensor = {0, 0},
         .rank = {3, 0},
         .element = {650, 20},
         .expect = 1}}; /* one unit, two shards */
    for (int i = 0; i < 11; i++)
        for (int stage = 0; stage < 4; stage++)
            for (int nranks = 1; nranks <= 4; nranks += nranks == 1 ? 2 : 1)
                for (int type = 0; type < 4; type++)
                    unit_bad_case(nranks, stage, i + stage + nranks + type, type, &cases[i]);
}

/* no_overflow_check steps all the same; max_norm needs a norm, so that it implies the check. */
static void unit_unchecked_rank(test_rank *rank) {
    const unit_bad *b = (const unit_bad *)rank->arg;
    host_run h;
    zero_step_report r = {0};
    float seen[2] = {0, 0};
    int ok = host_open(&h, &b->spec, rank);
    for (h.step = 0; h.step < 2 && ok; h.step++) ok = unit_step(&h);
    if (ok
        && (zero_step_result(h.z, &r) || zero_read_tensor(h.z, "mat", ZERO_PARAMETER, 4, 2, seen)))
        test_rank_fail(rank, "%s", zero_last_error(h.z));
    const int steps = b->spec.adamw.max_norm > 0 ? 1 : 2;
    if (ok
        && (r.stepped != (steps == 2) || r.steps != steps || isfinite(r.norm)
            || isfinite(seen[0]) == (steps == 2) || !isfinite(seen[1])))
        test_rank_fail(rank, "stepped %d, mat[4] %g, mat[5] %g", r.stepped, (double)seen[0],
                       (double)seen[1]);
    zero_destroy(h.z);
}

static void unit_unchecked(void) {
    for (int stage = 0; stage < 4; stage++)
        for (int clip = 0; clip < 2; clip++) {
            unit_bad b = {
                .n = 1, .tensor = {1, 0}, .rank = {1, 0}, .element = {4, 0}, .value = NAN};
            unit_base_spec(&b.spec, 2, stage);
            b.spec.poison = unit_poison;
            b.spec.cfg.no_overflow_check = 1;
            b.spec.adamw.max_norm = clip ? 1.0f : 0.0f;
            test_check(test_ranks(2, 0, unit_unchecked_rank, &b),
                       "not checked, stage %d, clip %d: %s", stage, clip, test_first);
        }
}

/* ---- small collectives ---- */

static void unit_collectives_rank(test_rank *r) {
    zero_ctx *z = NULL;
    zero_config cfg = {.log = test_quiet};
    zero_comm comm = test_comm(r);
    double v[65], few[3] = {r->rank + 1, 2, -7}; /* the last of each is not in the sum */
    enum { N = 700001 };
    unsigned char *data = (unsigned char *)malloc(N);
    int ok = !zero_create(&z, &cfg, &comm);
    for (int i = 0; i < 65; i++) v[i] = (double)(i + 1) * 0.1 * (r->rank + 1);
    const double beyond = v[64];
    ok = ok && !zero_all_sum(z, v, 64); /* before build, too */
    ok = ok && !zero_all_sum(z, few, 2);
    if (v[64] != beyond || few[0] != r->nranks * (r->nranks + 1) / 2 || few[1] != 2 * r->nranks
        || few[2] != -7)
        test_rank_fail(r, "sums of two: %g and %g, beyond them %g and %g", few[0], few[1], few[2],
                       v[64]);
    for (int i = 0; i < 64 && ok; i++) {
        double sum = 0;
        for (int p = 0; p < r->nranks; p++) sum += (double)(i + 1) * 0.1 * (p + 1);
        if (v[i] != sum) test_rank_fail(r, "sum %d is %.17g, expected %.17g", i, v[i], sum);
    }
    if (ok) unit_announce_all(z);
    ok = ok && !zero_build(z) && !zero_barrier(z) && !zero_all_sum(z, v, 0)
         && !zero_broadcast(z, NULL, 0, 0);
    for (int root = 0; root < r->nranks && ok; root++) {
        for (int i = 0; i < N; i++) data[i] = (unsigned char)(r->rank == root ? i * 7 + root : 255);
        ok = !zero_broadcast(z, data, N, root);
        for (int i = 0; i < N && ok; i++)
            if (data[i] != (unsigned char)(i * 7 + root)) {
                test_rank_fail(r, "byte %d from %d", i, root);
                break;
            }
    }
    if (!ok) test_rank_fail(r, "%s", zero_last_error(z));
    zero_destroy(z);
    free(data);
}

/* ---- regressions ---- */

/* Units of a deep nest leave few buffers: what is gathered ahead must not take the place of what
   was gathered a moment before. */
static void unit_deep_nest(test_rank *r) {
    static const int order[] = {0, 1, 5};
    zero_ctx *z = NULL;
    host_pointers p;
    zero_config cfg = {
        .stage = 3, .no_mapping = 1, .prefetch = 2, .log = test_quiet, .timeout_s = 5};
    zero_comm comm = test_comm(r);
    const zero_tensor_desc d = {"w", 64, .layers = 9};
    float values[64];
    int ok = !zero_create(&z, &cfg, &comm) && !zero_tensor(z, &d) && !zero_build(z);
    for (int l = 0; l < 9 && ok; l++) {
        for (int i = 0; i < 64; i++) values[i] = (float)(100 * l + i);
        ok = !zero_write_tensor(z, "w", ZERO_PARAMETER, (size_t)l * 64, 64, values);
    }
    ok = ok && !zero_pass_begin(z, ZERO_EVAL, 0, 1);
    for (int i = 0; i < 3 && ok; i++) {
        ok = !zero_forward_begin(z, order[i], &p);
        for (int k = 0; k < 64 && ok; k++)
            if (((float *)(void *)p.field[0])[64 * order[i] + k] != (float)(100 * order[i] + k))
                test_rank_fail(r, "unit %d", order[i]);
    }
    for (int i = 2; i >= 0 && ok; i--) ok = !zero_forward_end(z, order[i]);
    for (int u = 6; u < 9 && ok; u++) {
        ok = !zero_forward_begin(z, u, &p);
        if (ok && ((float *)(void *)p.field[0])[64 * u + 63] != (float)(100 * u + 63))
            test_rank_fail(r, "unit %d", u);
        ok = ok && !zero_forward_end(z, u);
    }
    ok = ok && !zero_pass_end(z);
    for (int l = 0; l < 9 && ok; l++) { /* and nothing was gathered over another unit */
        ok = !zero_read_tensor(z, "w", ZERO_PARAMETER, (size_t)l * 64, 64, values);
        for (int i = 0; i < 64 && ok; i++)
            if (values[i] != (float)(100 * l + i)) test_rank_fail(r, "unit %d was written over", l);
    }
    if (!ok) test_rank_fail(r, "%s", zero_last_error(z));
    zero_destroy(z);
}

/* Small units fill no bucket: unit 0's buffer is taken while its reduction is pending. */
static void unit_small_first(test_rank *r) {
    enum { SMALL = 8, LARGE = 4000 };
    const zero_tensor_desc small = {"small", 64, .layers = SMALL},
                           large = {"large", LARGE, 3, .unit = SMALL, .field = sizeof(float *)};
    const zero_config cfg = {.stage = 2, .bucket_numel = LARGE + 100, .timeout_s = 5};
    const zero_comm comm = test_comm(r);
    zero_ctx *z = NULL;
    host_pointers p, g;
    float seen[64 * SMALL];
    int ok = !zero_create(&z, &cfg, &comm) && !zero_tensor(z, &small) && !zero_tensor(z, &large);
    ok = ok && !zero_build(z) && !zero_bind(z, &p, &g) && !zero_pass_begin(z, ZERO_TRAIN, 0, 1);
    for (int u = 0; u < SMALL + 3 && ok; u++)
        ok = !zero_forward_begin(z, u, &p) && !zero_forward_end(z, u);
    for (int u = 0; u < SMALL + 3 && ok; u++) {
        ok = !zero_backward_begin(z, u, &p, &g);
        float *to = u < SMALL ? (float *)(void *)g.field[0] + 64 * u
                              : (float *)(void *)g.field[1] + LARGE * (u - SMALL);
        for (int i = 0; i < (u < SMALL ? 64 : LARGE) && ok; i++) to[i] += (float)(u + 1);
        ok = ok && !zero_backward_end(z, u);
    }
    if (ok && z->pool[ZP_GRAD].n > SMALL) test_rank_fail(r, "%d buffers", z->pool[ZP_GRAD].n);
    ok = ok && !zero_pass_end(z) && !zero_reduce(z)
         && !zero_read_tensor(z, "small", ZERO_GRADIENT, 0, 64 * SMALL, seen);
    for (int i = 0; i < 64 * SMALL && ok; i++)
        if (seen[i] != (float)(i / 64 + 1))
            test_rank_fail(r, "unit %d: %g", i / 64, (double)seen[i]);
    if (!ok) test_rank_fail(r, "%s", zero_last_error(z));
    zero_destroy(z);
}

/* A peer that is still looking at the parameters, after zero_reduce, sees the old ones: mapped
   shards are updated in place. */
static void unit_look_before_step(test_rank *rank) {
    const host_spec *s = (const host_spec *)rank->arg;
    const struct timespec wait = {0, 20000000};
    host_run h;
    int ok = host_open(&h, s, rank) && host_train_pass(&h);
    ok = ok && !zero_reduce(h.z) && !zero_pass_begin(h.z, ZERO_EVAL, 0, 1)
         && !zero_forward_begin(h.z, 1, &h.params);
    if (ok) {
        if (rank->rank == 0) nanosleep(&wait, NULL);
        for (size_t i = 0; i < s->desc[1].numel; i++)
            if (host_get(host_tensor(&h, 1, 0, 0), s->cfg.type, i)
                != host_value(s, 0, 0, 0, 0, 1, i))
                test_rank_fail(rank, "mat[%zu] has moved", i);
    }
    ok = ok && !zero_forward_end(h.z, 1) && !zero_pass_end(h.z) && !zero_step(h.z, &s->adamw);
    if (!ok) test_rank_fail(rank, "%s", zero_last_error(h.z));
    zero_destroy(h.z);
}

static void unit_regressions(void) {
    for (int stage = 0; stage < 4; stage++) {
        host_spec s;
        unit_base_spec(&s, 3, stage);
        test_check(test_ranks(3, 0, unit_look_before_step, &s),
                   "evaluation between reduce and step, stage %d: %s", stage, test_first);
    }
    test_check(test_ranks(2, 0, unit_small_first, NULL), "small units first: %s", test_first);
    test_check(test_ranks(2, 0, unit_deep_nest, NULL), "gathers ahead in a deep nest: %s",
               test_first);
}

/* Who waits follows what waits take: it spins while they are short, naps for as long while they are
   not, and once again spins; one that is long alone changes little. */
static void unit_pace(void) {
    static const double waits[] = {20e-6, 400e-6, 60, 20e-6};
    static const double paces[] = {20e-6, 400e-6, 1e-3, 20e-6}; /* a nap takes 1 ms at most */
    static const double naps[] = {50e-6, 400e-6, 1e-3, 50e-6};
    double pace = 0;
    for (int i = 0; i < 4; i++) {
        for (int n = 0; n < 40; n++) pace = zp_mpi_nodes_next_pace(pace, waits[i]);
        test_check(fabs(pace / paces[i] - 1) < 1e-3
                       && zp_mpi_nodes_spins(pace) == (paces[i] < 50e-6),
                   "waits of %g s: pace %g, spins %d", waits[i], pace, zp_mpi_nodes_spins(pace));
        const double nap = zp_mpi_nodes_nap_seconds(pace, 0);
        test_check(fabs(nap / naps[i] - 1) < 1e-3, "pace %g: naps of %g s", pace, nap);
    }
    test_check(zp_mpi_nodes_next_pace(0, 60) <= 250e-6, "a late peer alone: pace %g",
               zp_mpi_nodes_next_pace(0, 60));
    test_check(zp_mpi_nodes_nap_seconds(20e-6, 8e-3) == 500e-6
                   && zp_mpi_nodes_nap_seconds(20e-6, 60) == 1e-3,
               "a peer that is late is looked for less and less often");
}

int main(void) {
    (void)alarm(300); /* a wait for ever is a failure */
    unit_results();
    unit_not_finite();
    unit_partitions();
    unit_same_places();
    unit_dealt();
    unit_deal_room();
    unit_merge();
    unit_widen();
    unit_narrow();
    unit_convert_places();
    unit_convert_f64();
    unit_convert_odd();
    unit_adamw_ulp();
    unit_adamw_places();
    unit_clip();
    unit_corrections();
    unit_norm();
    unit_norm_threads();
    unit_exact();
    unit_verdicts();
    unit_fold_long();
    unit_judge();
    unit_sums();
    unit_collect();
    unit_trace();
    unit_pool();
    unit_events();
    unit_event_of_caller();
    lane_all();
    unit_pace();
    unit_config_errors();
    unit_settings();
    unit_scaler_errors();
    unit_comm_errors();
    unit_resolved_config();
    unit_again();
    test_check(test_ranks(2, 0, unit_persistence_rank, NULL), "a tensor of 100: %s", test_first);
    test_check(test_ranks(4, 0, unit_second_rank, NULL), "second shards: %s", test_first);
    unit_tensor_errors();
    unit_no_context();
    unit_errors_before_build();
    unit_expected();
    unit_errors_of_hooks();
    unit_errors_of_evaluation();
    unit_errors_of_steps();
    unit_rules_read();
    unit_flushes();
    unit_errors_of_access();
    test_check(test_ranks(2, 0, unit_too_many_open, NULL), "units open: %s", test_first);
    unit_counters();
    unit_plans();
    unit_bucket_error();
    unit_alternating();
    unit_plain();
    unit_threads();
    test_check(test_ranks(2, 0, unit_long_name_rank, NULL), "long names: %s", test_first);
    unit_skips();
    unit_unchecked();
    for (int n = 1; n <= 4; n++)
        test_check(test_ranks(n, 0, unit_collectives_rank, NULL), "small collectives: %s",
                   test_first);
    unit_regressions();
    return test_summary();
}

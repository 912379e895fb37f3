/* unit_codec.h - the codec of packed numbers against plain_codec.h, in each type and length.
   A part of test_unit.c, which includes the plugin. */
#ifndef TEST_UNIT_CODEC_H
#define TEST_UNIT_CODEC_H

#include "plain_codec.h"

enum { CODEC_MOST = 4 * 2080 };

static const char *const codec_data[] = {"ordinary",           "zeros", "signs",    "denormal",
                                         "at the least scale", "large", "few",      "an outlier",
                                         "an infinity",        "a NaN", "all kinds"};
enum { CODEC_DATA = sizeof codec_data / sizeof *codec_data };

static float codec_number(int kind, uint64_t h, size_t i) {
    static const float odd[] = {0,       -0.0f,    0x1p-149f, -0x1p-127f, 0x1p-126f,
                                FLT_MAX, -FLT_MAX, 1,         0.5f,       -0.5f};
    const float x = (float)((double)(h >> 40) / (double)(1 << 24) - 0.5);
    switch (kind) {
    case 0: return x * 3;
    case 1: return h & 1 ? 0 : -0.0f;
    case 2: return (h & 1 ? 1.0f : -1.0f) * (i % 300 < 150 ? 1 : 0.3f);
    case 3: return x * 0x1p-130f;
    case 4: return x * 0x1p-122f;
    case 5: return x * 1.9f * FLT_MAX;
    case 6: return h % 97 ? 0 : x;
    case 7: return i % 301 == 7 ? 1e6f * x : x * 1e-3f;
    case 8: return i == 100 ? (h & 1 ? INFINITY : -INFINITY) : x;
    case 9: return i % 700 == 30 ? NAN : x;
    default: return odd[h % (sizeof odd / sizeof *odd)];
    }
}

/* Numbers of `type` and what they are in f32. */
static void codec_fill(int kind, uint64_t seed, zero_type type, size_t n, void *stored, float *x) {
    for (size_t i = 0; i < n; i++) {
        host_put(stored, type, i, codec_number(kind, test_mix(seed * 1000003u + i), i));
        x[i] = host_get(stored, type, i);
    }
}
/* A NaN is any of them. */
static int codec_same(const float *a, const float *b, size_t n, size_t *at) {
    for (size_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) && !(isnan(a[i]) && isnan(b[i]))) {
            *at = i;
            return 0;
        }
    return 1;
}

static const size_t codec_lengths[] = {32, 96, 128, 160, 224, 256, 288, 480, 512, 544, 1056, 2080};
enum { CODEC_LENGTHS = sizeof codec_lengths / sizeof *codec_lengths };

/* Parts of n numbers are packed as the plain codec packs each, at their places; and unpacked. */
static void codec_packs(int bits, zero_type type, int data, size_t n, int parts, int locals) {
    static unsigned char packed[2 * 4 * 4096], expected[2 * 4096];
    static float x[CODEC_MOST], out[CODEC_MOST], seen[CODEC_MOST], stored[CODEC_MOST];
    const zp_codec *codec = zp_codec_find(bits);
    const size_t all = n * (size_t)parts, each = plain_bytes(bits, n), blocks = zp_codec_blocks(n);
    size_t at = 0;
    int same = each == zp_codec_quantized_bytes(codec, n);
    codec_fill(data, n + (size_t)bits, type, all, stored, x);
    memset(packed, 0, sizeof packed);
    const zp_quantized plain = {NULL, 0, n, *codec, 0, parts};
    const zp_codec_kernels_encode_args a = {
        plain, stored, (char *)packed, type, locals, NULL, NULL, 0, 0, 0};
    zp_codec_kernels_encode_loop(&a, (size_t)parts * blocks, 1);
    for (int r = 0; r < parts; r++) {
        const int place = r % locals * (parts / locals) + r / locals;
        plain_through(bits, x + (size_t)r * n, n, out + (size_t)r * n, expected);
        unsigned char *mine = packed + (size_t)place * each;
        for (size_t b = 0; b < blocks; b++) { /* any NaN will do */
            float scale;
            memcpy(&scale, mine + 4 * b, sizeof scale);
            if (isnan(scale)) memcpy(mine + 4 * b, expected + 4 * b, 4);
            float other;
            memcpy(&other, expected + 4 * b, sizeof other);
            same &= isnan(scale) == isnan(other);
        }
        same &= !memcmp(mine, expected, each);
        if (locals > 1) memcpy(seen + (size_t)r * n, out + (size_t)r * n, n * sizeof *out);
    }
    test_check(same, "%d bits, type %d, %s, %d parts of %zu, %d locals: other bytes", bits,
               (int)type, codec_data[data], parts, n, locals);
    if (locals > 1) return;
    const zp_quantized from = {(char *)packed, 0, n, *codec, 1, parts};
    const zp_codec_kernels_decode_args b = {from, stored, NULL, type, 1, 0};
    zp_codec_kernels_decode_loop(&b, (size_t)parts * blocks, 1);
    for (size_t i = 0; i < all; i++) {
        seen[i] = host_get(stored, type, i);
        out[i] = host_round(type, out[i]);
    }
    same = codec_same(seen, out, all, &at);
    test_check(same, "%d bits, type %d, %s, %d parts of %zu: number %zu comes out as %g, not %g",
               bits, (int)type, codec_data[data], parts, n, at, (double)seen[at], (double)out[at]);
    for (size_t i = 0; i < all && data != 8 && data != 9 && type == ZERO_F32; i++) {
        /* half a scale is lost at most, and a number of a block of nothing is nothing */
        float largest = 0;
        const size_t first = i / n * n + i % n / PLAIN_BLOCK * PLAIN_BLOCK;
        for (size_t j = first; j < first + PLAIN_BLOCK && j < i / n * n + n; j++)
            largest = fabsf(x[j]) > largest ? fabsf(x[j]) : largest;
        const double most = codec->most, lost = fabs((double)seen[i] - (double)x[i]);
        if (lost <= 0.5001 * (double)largest / most || lost < most * 0x1p-126) continue;
        test_check(0, "%d bits, %s: %g becomes %g in a block up to %g", bits, codec_data[data],
                   (double)x[i], (double)seen[i], (double)largest);
        break;
    }
}

/* Sums of n senders' parts, as numbers and packed again; how & 4: with two copies of the errors. */
static void codec_sums(int bits, zero_type type, int data, size_t n, int senders, int parts,
                       int how) {
    static unsigned char packed[5 * 2 * 4096], again[2 * 4096], expected[2 * 4096];
    static float x[CODEC_MOST], one[CODEC_MOST], sum[CODEC_MOST], total[CODEC_MOST],
        before[CODEC_MOST], out[CODEC_MOST], error[CODEC_MOST];
    static uint16_t kept[2][CODEC_MOST], was[CODEC_MOST];
    const zp_codec *codec = zp_codec_find(bits);
    const size_t all = n * (size_t)parts, each = plain_bytes(bits, n), blocks = zp_codec_blocks(n);
    const float scale = how & 1 ? 0.25f : 1.0f / 3;
    const int accumulates = how & 2 ? 1 : 0;
    size_t at = 0;
    for (int p = 0; p < senders; p++) {
        codec_fill(p ? 0 : data, (uint64_t)(100 * p + bits), ZERO_F32, all, x, x);
        for (int r = 0; r < parts; r++)
            plain_through(bits, x + (size_t)r * n, n, one + (size_t)r * n,
                          packed + ((size_t)p * (size_t)parts + (size_t)r) * each);
        for (size_t i = 0; i < all; i++) sum[i] = p ? sum[i] + one[i] : one[i];
    }
    const zp_quantized from = {(char *)packed, (size_t)parts * each, n, *codec, senders, parts};
    for (size_t i = 0; i < all; i++) total[i] = before[i] = (float)(i % 7);
    const zp_codec_kernels_decode_args a = {
        from, out, type == ZERO_F32 && !(how & 4) ? NULL : total, type, scale, accumulates};
    if (!a.total) memcpy(out, before, all * sizeof *out);
    zp_codec_kernels_decode_loop(&a, (size_t)parts * blocks, 1);
    for (size_t i = 0; i < all; i++) {
        const float more = scale * sum[i], now = accumulates ? before[i] + more : more;
        one[i] = host_round(type, now);
        before[i] = now;
        x[i] = a.total && type == ZERO_F32 ? one[i] : host_get(out, type, i);
    }
    const int same =
        codec_same(x, one, all, &at) && (!a.total || codec_same(total, before, all, &at));
    test_check(same, "sum of %d, %d bits, type %d, %s, %d parts of %zu, how %d: number %zu is %g",
               senders, bits, (int)type, codec_data[data], parts, n, how, at, (double)x[at]);
    /* packed again, with feedback or without */
    zp_control control;
    memset(&control, 0, sizeof control);
    control.scale = how & 1 ? 1024.0f : 1.0f;
    control.fed = how & 4 ? n / 32 % 2 : 0;
    const int read = control.fed, feeds = (how & 2) != 0, later = n % 3 == 0;
    const int from_copy = how & 4 ? read ^ later : 0, to_copy = how & 4 ? !read : 0;
    for (size_t i = 0; i < all; i++) {
        error[i] = plain_bf16(codec_number(0, test_mix(i), i) * (how & 1 ? 1e-3f : 1.0f));
        host_put(kept[from_copy], ZERO_BF16, i, error[i]);
    }
    memcpy(was, kept[from_copy], sizeof was);
    const zp_codec_kernels_encode_args b = {
        from, NULL,  (char *)again,           ZERO_F32, 1, feeds ? kept[0] : NULL, &control,
        0.8f, later, how & 4 ? CODEC_MOST : 0};
    memset(again, 0, sizeof again);
    zp_codec_kernels_encode_loop(&b, (size_t)parts * blocks, 1);
    int right = 1;
    for (int r = 0; r < parts; r++) {
        float *mine = sum + (size_t)r * n, fed[CODEC_MOST];
        memcpy(fed, mine, n * sizeof *fed);
        for (size_t i = 0; i < n && feeds; i++) {
            const float more = control.scale * error[(size_t)r * n + i];
            fed[i] += more;
        }
        plain_through(bits, fed, n, one, expected);
        if (feeds) plain_feed(bits, mine, n, error + (size_t)r * n, 0.8f, control.scale, one);
        for (size_t i = 0; i < 4 * blocks; i += 4) {
            float s;
            memcpy(&s, expected + i, 4);
            if (isnan(s)) memcpy(expected + i, again + (size_t)r * each + i, 4);
        }
        right &= !memcmp(again + (size_t)r * each, expected, each);
    }
    right &= from_copy == to_copy || !memcmp(was, kept[from_copy], sizeof was);
    for (size_t i = 0; i < all && feeds; i++) {
        const float now = host_get(kept[to_copy], ZERO_BF16, i);
        right &= !memcmp(&now, &error[i], sizeof now);
    }
    test_check(right, "sum of %d packed again, %d bits, %s, %d parts of %zu, how %d", senders, bits,
               codec_data[data], parts, n, how);
}

/* Where the processor has instructions of its own: the plain bodies' bits. */
static void codec_bodies(void) {
    static float x[PLAIN_BLOCK], wide[PLAIN_BLOCK], plain[PLAIN_BLOCK];
    uint8_t codes[PLAIN_BLOCK], other[PLAIN_BLOCK];
    for (uint64_t i = 0; i < 4 * CODEC_DATA; i++) {
        const zp_codec *c = &zp_codecs[i % 2];
        const size_t n = i % 3 ? PLAIN_BLOCK : 32 * (1 + i / 3 % (PLAIN_BLOCK / 32 - 1));
        codec_fill((int)(i % CODEC_DATA), i, ZERO_F32, n, x, x);
        const uint32_t largest = zp_codec_blocks_plain_largest(n, x);
        const zp_block_scale m = zp_codec_scale_block(largest, c->most);
        int same = ZP_BODY(n, largest, x) == largest;
        memset(codes, 0, sizeof codes);
        memset(other, 0, sizeof other);
        if (m.inverse != 0) zp_codec_blocks_plain_encode(n, c, x, m.inverse, codes, 0);
        if (m.inverse != 0) ZP_BODY(n, encode, c, x, m.inverse, other, 0);
        same &= !memcmp(codes, other, sizeof codes);
        for (int adds = 0; adds < 2; adds++) {
            zp_codec_blocks_plain_decode(n, c, codes, m.scale, plain, adds);
            ZP_BODY(n, decode, c, codes, m.scale, wide, adds);
            size_t at;
            same &= codec_same(plain, wide, n, &at);
        }
        test_check(same, "%d bits, %s, %zu: the processor's own instructions", c->bits,
                   codec_data[i % CODEC_DATA], n);
    }
}

/* What is more than caches keep, and goes past them, has the same bits. */
static void codec_large(int bits, zero_type type) {
    enum { LARGE = (2 << 20) + 96 };
    const zp_codec *codec = zp_codec_find(bits);
    const size_t each = plain_bytes(bits, LARGE), blocks = zp_codec_blocks(LARGE);
    float *x = (float *)calloc(LARGE, sizeof *x), *out = (float *)calloc(LARGE, sizeof *out);
    unsigned char *expected = (unsigned char *)calloc(each, 1);
    char *stored = (char *)zp_device_alloc(NULL, 4 * LARGE);
    char *packed = (char *)zp_device_alloc(NULL, each);
    float *total = (float *)zp_device_alloc(NULL, sizeof *total * LARGE);
    size_t at = 0;
    codec_fill(0, (uint64_t)bits, type, LARGE, stored, x);
    plain_through(bits, x, LARGE, out, expected);
    const zp_quantized plain = {NULL, 0, LARGE, *codec, 0, 1},
                       from = {packed, 0, LARGE, *codec, 2, 1};
    const zp_codec_kernels_encode_args a = {plain, stored, packed, type, 1, NULL, NULL, 0, 0, 0};
    zp_codec_kernels_encode_loop(&a, blocks, 1);
    test_check(!memcmp(packed, expected, each), "%d bits, type %d, %d numbers: other bytes", bits,
               (int)type, (int)LARGE);
    const zp_codec_kernels_decode_args b = {from, stored, total,
                                            type, 0.25f,  0}; /* of one sender twice */
    zp_codec_kernels_decode_loop(&b, blocks, 1);
    for (size_t i = 0; i < LARGE; i++) {
        const float sum = out[i] + out[i];
        out[i] = 0.25f * sum;
    }
    int same = codec_same(total, out, LARGE, &at);
    for (at = same ? 0 : at; at < LARGE && same && type != ZERO_F32; at++)
        same = host_get(stored, type, at) == host_round(type, out[at]);
    at %= LARGE;
    test_check(same, "%d bits, type %d, %d numbers: by number %zu, %g, not %g", bits, (int)type,
               (int)LARGE, at, (double)total[at], (double)out[at]);
    zp_device_free(total);
    zp_device_free(packed);
    zp_device_free(stored);
    free(expected);
    free(out);
    free(x);
}

static void codec_kernels(void) {
    for (int bits = 8; bits >= 4; bits -= 4)
        for (int type = 0; type < ZERO_TYPES; type++)
            for (int data = 0; data < CODEC_DATA; data++)
                for (int i = 0; i < CODEC_LENGTHS; i++) {
                    const size_t n = codec_lengths[i];
                    codec_packs(bits, (zero_type)type, data, n, 1 + i % 3, 1);
                    if (data == 0) codec_packs(bits, (zero_type)type, data, n, 4, 2);
                    codec_sums(bits, (zero_type)type, data, n, 1 + (i + data) % 5, 1 + i % 2,
                               (i + data) % 8);
                }
    for (int i = 0; i < 2 * ZERO_TYPES; i++) codec_large(i % 2 ? 4 : 8, (zero_type)(i / 2));
    test_check(!zp_codec_find(0) && !zp_codec_find(5) && zp_codec_find(4)->most == 7, "codecs");
}

static void unit_codec_all(void) {
    test_check((int)PLAIN_BLOCK == (int)ZP_QUANT_BLOCK, "a block has %d numbers",
               (int)ZP_QUANT_BLOCK);
    codec_bodies();
    codec_kernels();
}

#endif

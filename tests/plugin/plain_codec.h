/* plain_codec.h - how numbers travel packed, as codec.h describes it, byte by byte and without its
   code. unit_codec.h compares the codec with it, and test_codec.c whole trainings. */
#ifndef TEST_PLAIN_CODEC_H
#define TEST_PLAIN_CODEC_H

#include "../shared/host.h"

enum { PLAIN_BLOCK = 128 }; /* numbers with one scale */

static size_t plain_bytes(int bits, size_t n) {
    const size_t scales = (n + PLAIN_BLOCK - 1) / PLAIN_BLOCK * 4, codes = n * (size_t)bits / 8;
    return (scales + 63) / 64 * 64 + (codes + 63) / 64 * 64;
}

/* What n numbers become on their way; in `packed` the bytes that travel, if it is not NULL. */
static void plain_through(int bits, const float *x, size_t n, float *out, unsigned char *packed) {
    const float most = bits == 8 ? 127 : 7;
    const size_t codes_at = ((n + PLAIN_BLOCK - 1) / PLAIN_BLOCK * 4 + 63) / 64 * 64;
    if (packed) memset(packed, 0, plain_bytes(bits, n));
    for (size_t from = 0; from < n; from += PLAIN_BLOCK) {
        const size_t end = from + PLAIN_BLOCK < n ? from + PLAIN_BLOCK : n;
        float largest = 0;
        int finite = 1;
        for (size_t i = from; i < end; i++) {
            finite &= isfinite(x[i]) != 0;
            if (fabsf(x[i]) > largest) largest = fabsf(x[i]);
        }
        const int coded = finite && (double)largest >= (double)most * 0x1p-126;
        float scale = !finite ? NAN : coded ? largest / most : 0;
        if (coded && isinf(most * scale)) scale = nextafterf(scale, 0);
        const float inverse = coded ? most / largest : 0;
        if (packed) memcpy(packed + from / PLAIN_BLOCK * 4, &scale, 4);
        for (size_t i = from; i < end; i++) {
            const float turned = x[i] * inverse;
            const int code = coded ? (int)nearbyint((double)turned) : 0;
            const size_t j = i % 32, byte = i / 32 * 16 + j % 16;
            out[i] = (float)code * scale;
            if (packed && bits == 8)
                packed[codes_at + i] = (unsigned char)code;
            else if (packed)
                packed[codes_at + byte] |= (unsigned char)((code & 15) << (j < 16 ? 0 : 4));
        }
    }
}

static float plain_bf16(float x) { return host_round(ZERO_BF16, x); }

/* The same with what earlier codes lost; error is changed. */
static void plain_feed(int bits, const float *x, size_t n, float *error, float beta, float scale,
                       float *out) {
    float *y = (float *)calloc(n, sizeof *y);
    for (size_t i = 0; i < n; i++) {
        const float more = scale * error[i];
        y[i] = x[i] + more;
    }
    plain_through(bits, y, n, out, NULL);
    for (size_t i = 0; i < n; i++) {
        const float unscale = 1.0f / scale, kept = beta * error[i];
        const float lost = (1.0f - beta) * ((y[i] - out[i]) * unscale);
        int finite = 1;
        const size_t from = i / PLAIN_BLOCK * PLAIN_BLOCK;
        for (size_t j = from; j < n && j < from + PLAIN_BLOCK; j++) finite &= isfinite(y[j]) != 0;
        if (finite) error[i] = plain_bf16(kept + lost);
    }
    free(y);
}

#endif

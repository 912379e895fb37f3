/* codec_blocks.h - operations on the numbers of one block, in plain C and in AVX-512

   zp_codec_blocks_plain_F(n, ...) defines the result. zp_codec_blocks_whole_F(...) has the same
   bits for a whole block. A part's last block may be shorter, so it always uses the plain
   functions. Callers use ZP_BODY(n, F, ...). */
#pragma once

#include "codec.h"

/* ---- plain C ---- Each loop works on words of one size, and n is a constant except for a part's
   last block. So the compiler uses the widest vectors. */

/* Stores the numbers of a quantized block in x, or adds them to x. */
ZP_FN void zp_codec_blocks_plain_decode(size_t n, const zp_codec *c, const uint8_t *codes,
                                        float scale, float *x, int adds) {
    const size_t half = ZP_QUANT_GROUP / 2;
    uint32_t pair[ZP_QUANT_BLOCK / 2];
    if (c->bits == 8) {
        for (size_t j = 0; j < n; j++) {
            const float v = zp_codec_decode_value(((const int8_t *)codes)[j], scale);
            x[j] = adds ? x[j] + v : v;
        }
        return;
    }
    for (size_t j = 0; j < n / 2; j++) pair[j] = codes[j];
    for (size_t g = 0; g < n; g += ZP_QUANT_GROUP)
        for (size_t j = 0; j < half; j++) {
            const uint32_t both = pair[g / 2 + j];
            const float low = zp_codec_decode_value(zp_codec_sign_extend(both), scale),
                        high = zp_codec_decode_value(zp_codec_sign_extend(both >> 4), scale);
            x[g + j] = adds ? x[g + j] + low : low;
            x[g + j + half] = adds ? x[g + j + half] + high : high;
        }
}
ZP_FN uint32_t zp_codec_blocks_plain_largest(size_t n, const float *x) {
    uint32_t largest = 0;
    for (size_t j = 0; j < n; j++) largest = zp_codec_largest(largest, x[j]);
    return largest;
}
/* Quantizes a block that is finite and has a scale. */
ZP_FN void zp_codec_blocks_plain_encode(size_t n, const zp_codec *c, const float *x, float inverse,
                                        uint8_t *to, int streams) {
    uint32_t code[ZP_QUANT_BLOCK], pair[ZP_QUANT_BLOCK / 2];
    const size_t half = ZP_QUANT_GROUP / 2;
    for (size_t j = 0; j < n; j++) code[j] = (uint32_t)zp_codec_encode_value(x[j], inverse);
    if (c->bits == 8) {
        for (size_t j = 0; j < n; j++) to[j] = (uint8_t)code[j];
        return;
    }
    for (size_t g = 0; g < n; g += ZP_QUANT_GROUP)
        for (size_t j = 0; j < half; j++)
            pair[g / 2 + j] = (code[g + j] & 15u) | code[g + j + half] << 4;
    for (size_t j = 0; j < n / 2; j++) to[j] = (uint8_t)pair[j];
}

/* Error feedback: adds the errors to the values to send; then computes the next errors. */
ZP_FN void zp_codec_blocks_plain_add_error(size_t n, const uint16_t *error, float scale, float *x) {
    float wide[ZP_QUANT_BLOCK];
    zp_type_widen(wide, error, ZERO_BF16, n);
    for (size_t j = 0; j < n; j++) {
        const float more = scale * wide[j];
        x[j] += more;
    }
}
ZP_FN void zp_codec_blocks_plain_next_error(size_t n, const zp_codec_kernels_encode_args *a,
                                            const float *x, zp_block_scale m, const uint16_t *error,
                                            uint16_t *next) {
    const float unscale = 1.0f / a->control->scale, beta = a->beta;
    float wide[ZP_QUANT_BLOCK];
    zp_type_widen(wide, error, ZERO_BF16, n);
    for (size_t j = 0; j < n; j++) {
        const float out = zp_codec_decode_value(zp_codec_encode_value(x[j], m.inverse), m.scale);
        wide[j] = zp_codec_next_error(x[j], out, wide[j], beta, unscale);
    }
    zp_type_narrow(next, ZERO_BF16, wide, n);
}
/* Multiplies x by the scale, and adds it to `before` if that is not NULL. */
ZP_FN void zp_codec_blocks_plain_scale(size_t n, float *x, float scale, const float *before) {
    if (before)
        for (size_t j = 0; j < n; j++) x[j] = before[j] + scale * x[j];
    else
        for (size_t j = 0; j < n; j++) x[j] *= scale;
}
ZP_FN void zp_codec_blocks_plain_load(size_t n, float *x, const void *from, zero_type type) {
    zp_type_widen(x, from, type, n);
}
ZP_FN void zp_codec_blocks_plain_store(size_t n, void *to, zero_type type, const float *x,
                                       int streams) {
    zp_type_narrow(to, type, x, n);
}

/* ---- AVX-512, with the same bits ---- A row is 16 numbers in one register. A whole block has a
   constant length and stays in registers. */
#if defined(__AVX512BW__) && !defined(__CUDACC__)
#define ZP_ROWS _Pragma("GCC unroll 16") /* clang unrolls such loops by itself */
ZP_FN __m512 zp_codec_blocks_row_of(const float *x) { return _mm512_loadu_ps(x); }
ZP_FN void zp_codec_blocks_put_row(float *x, __m512 v, int adds) {
    _mm512_storeu_ps(x, adds ? _mm512_add_ps(zp_codec_blocks_row_of(x), v) : v);
}
ZP_FN __m128i zp_codec_blocks_row_bytes(const uint8_t *p) {
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}
/* A 4-bit code has 16 values: a permutation looks them up. */
ZP_FN void zp_codec_blocks_whole_decode(const zp_codec *c, const uint8_t *codes, float scale,
                                        float *x, int adds) {
    const __m512 by = _mm512_set1_ps(scale);
    const __m512 value =
        _mm512_mul_ps(_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1), by);
    if (c->bits == 8) {
        ZP_ROWS
        for (size_t j = 0; j < ZP_QUANT_BLOCK; j += 16) {
            const __m512i code = _mm512_cvtepi8_epi32(zp_codec_blocks_row_bytes(codes + j));
            zp_codec_blocks_put_row(x + j, _mm512_mul_ps(_mm512_cvtepi32_ps(code), by), adds);
        }
        return;
    }
    ZP_ROWS
    for (size_t j = 0; j < ZP_QUANT_BLOCK; j += 32) {
        const __m512i both = _mm512_cvtepu8_epi32(zp_codec_blocks_row_bytes(codes + j / 2));
        zp_codec_blocks_put_row(x + j, _mm512_permutexvar_ps(both, value), adds);
        zp_codec_blocks_put_row(x + j + 16,
                                _mm512_permutexvar_ps(_mm512_srli_epi32(both, 4), value), adds);
    }
}
ZP_FN uint32_t zp_codec_blocks_whole_largest(const float *x) {
    const __m512i sign = _mm512_set1_epi32(0x7FFFFFFF);
    __m512i largest = _mm512_setzero_si512(), other = largest;
    ZP_ROWS
    for (size_t j = 0; j < ZP_QUANT_BLOCK; j += 32) {
        largest = _mm512_max_epu32(largest, _mm512_and_si512(_mm512_loadu_si512(x + j), sign));
        other = _mm512_max_epu32(other, _mm512_and_si512(_mm512_loadu_si512(x + j + 16), sign));
    }
    return _mm512_reduce_max_epu32(_mm512_max_epu32(largest, other));
}
ZP_FN __m512i zp_codec_blocks_row_codes(const float *x, __m512 inverse) {
    return _mm512_cvt_roundps_epi32(_mm512_mul_ps(zp_codec_blocks_row_of(x), inverse),
                                    _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* Writes a line of 64 bytes: through the caches, or with a streaming store. */
ZP_FN void zp_codec_blocks_put_line(void *to, __m512i v, int streams) {
    if (streams)
        _mm512_stream_si512((__m512i *)to, v);
    else
        _mm512_storeu_si512(to, v);
}
/* Narrows the words of four rows to a line of bytes. */
ZP_FN __m512i zp_codec_blocks_rows_bytes(const __m512i *row) {
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm512_permutexvar_epi32(order, _mm512_packs_epi16(_mm512_packs_epi32(row[0], row[1]),
                                                              _mm512_packs_epi32(row[2], row[3])));
}
/* Quantizes to 4-bit codes. */
ZP_FN void zp_codec_blocks_whole_half_codes(const float *x, __m512 by, uint8_t *to, int streams) {
    const __m512i low = _mm512_set1_epi32(15);
    __m512i row[4];
    ZP_ROWS
    for (size_t j = 0; j < ZP_QUANT_BLOCK; j += 128) {
        ZP_ROWS
        for (size_t r = 0; r < 4; r++) {
            const __m512i first = zp_codec_blocks_row_codes(x + j + 32 * r, by);
            const __m512i high =
                _mm512_slli_epi32(zp_codec_blocks_row_codes(x + j + 32 * r + 16, by), 4);
            row[r] = _mm512_ternarylogic_epi32(low, first, high, 0xCA); /* low ? first : high */
        }
        zp_codec_blocks_put_line(to + j / 2, zp_codec_blocks_rows_bytes(row), streams);
    }
}
ZP_FN void zp_codec_blocks_whole_encode(const zp_codec *c, const float *x, float inverse,
                                        uint8_t *to, int streams) {
    const __m512 by = _mm512_set1_ps(inverse);
    __m512i row[4];
    if (c->bits == 4) {
        zp_codec_blocks_whole_half_codes(x, by, to, streams);
        return;
    }
    ZP_ROWS
    for (size_t j = 0; j < ZP_QUANT_BLOCK; j += 64) {
        ZP_ROWS
        for (size_t r = 0; r < 4; r++) row[r] = zp_codec_blocks_row_codes(x + j + 16 * r, by);
        zp_codec_blocks_put_line(to + j, zp_codec_blocks_rows_bytes(row), streams);
    }
}
/* Loads two rows. A bf16 line becomes the upper halves of the words. */
ZP_FN void zp_codec_blocks_load_rows(float *x, const void *from, zero_type type, size_t j) {
    if (type != ZERO_BF16) {
        zp_type_load_wide(x, from, type, j);
        zp_type_load_wide(x + 16, from, type, j + 16);
        return;
    }
    const __m512i line = _mm512_loadu_si512((const uint16_t *)from + j);
    const __m512i word = _mm512_slli_epi32(
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), 16);
    const __m512i next = _mm512_add_epi32(word, _mm512_set1_epi32(16 << 16));
    _mm512_storeu_si512(x, _mm512_maskz_permutexvar_epi16(0xAAAAAAAAu, word, line));
    _mm512_storeu_si512(x + 16, _mm512_maskz_permutexvar_epi16(0xAAAAAAAAu, next, line));
}
ZP_FN void zp_codec_blocks_whole_load(float *x, const void *from, zero_type type) {
    ZP_ROWS
    for (size_t j = 0; j < ZP_QUANT_BLOCK; j += 32) zp_codec_blocks_load_rows(x + j, from, type, j);
}
ZP_FN void zp_codec_blocks_whole_add_error(const uint16_t *error, float scale, float *x) {
    const __m512 by = _mm512_set1_ps(scale);
    ZP_ROWS
    for (size_t j = 0; j < ZP_QUANT_BLOCK; j += 32) {
        float e[32];
        zp_codec_blocks_load_rows(e, error, ZERO_BF16, j);
        zp_codec_blocks_put_row(x + j, _mm512_mul_ps(by, zp_codec_blocks_row_of(e)), 1);
        zp_codec_blocks_put_row(x + j + 16, _mm512_mul_ps(by, zp_codec_blocks_row_of(e + 16)), 1);
    }
}
/* Rounds two rows to a line of 16-bit numbers. */
ZP_FN __m512i zp_codec_blocks_halves(const float *x, zero_type type) {
    const __m512 a = zp_codec_blocks_row_of(x), b = zp_codec_blocks_row_of(x + 16);
    return _mm512_inserti64x4(_mm512_castsi256_si512(zp_type_row_to_half(a, type)),
                              zp_type_row_to_half(b, type), 1);
}
ZP_FN void zp_codec_blocks_whole_next_error(const zp_codec_kernels_encode_args *a, const float *x,
                                            zp_block_scale m, const uint16_t *error,
                                            uint16_t *next) {
    const __m512 unscale = _mm512_set1_ps(1.0f / a->control->scale);
    const __m512 beta = _mm512_set1_ps(a->beta), rest = _mm512_set1_ps(1.0f - a->beta);
    const __m512 scale = _mm512_set1_ps(m.scale), inverse = _mm512_set1_ps(m.inverse);
    ZP_ROWS
    for (size_t j = 0; j < ZP_QUANT_BLOCK; j += 32) {
        float e[32];
        zp_codec_blocks_load_rows(e, error, ZERO_BF16, j);
        ZP_ROWS
        for (size_t r = 0; r < 32; r += 16) {
            const __m512 y = zp_codec_blocks_row_of(x + j + r),
                         kept = _mm512_mul_ps(beta, zp_codec_blocks_row_of(e + r));
            const __m512i code = zp_codec_blocks_row_codes(x + j + r, inverse);
            const __m512 out = _mm512_mul_ps(_mm512_cvtepi32_ps(code), scale);
            const __m512 lost = _mm512_mul_ps(_mm512_sub_ps(y, out), unscale);
            _mm512_storeu_ps(e + r, _mm512_add_ps(kept, _mm512_mul_ps(rest, lost)));
        }
        zp_codec_blocks_put_line(next + j, zp_codec_blocks_halves(e, ZERO_BF16), 0);
    }
}
ZP_FN void zp_codec_blocks_whole_scale(float *x, float scale, const float *before) {
    const __m512 by = _mm512_set1_ps(scale);
    ZP_ROWS
    for (size_t j = 0; j < ZP_QUANT_BLOCK; j += 16) {
        const __m512 more = _mm512_mul_ps(by, zp_codec_blocks_row_of(x + j));
        _mm512_storeu_ps(x + j,
                         before ? _mm512_add_ps(zp_codec_blocks_row_of(before + j), more) : more);
    }
}
ZP_FN void zp_codec_blocks_whole_store(void *to, zero_type type, const float *x, int streams) {
    if (type == ZERO_F32) {
        ZP_ROWS
        for (size_t j = 0; j < ZP_QUANT_BLOCK; j += 16)
            zp_codec_blocks_put_line((float *)to + j, _mm512_loadu_si512(x + j), streams);
    } else if (type == ZERO_BF16) {
        ZP_ROWS
        for (size_t j = 0; j < ZP_QUANT_BLOCK; j += 32)
            zp_codec_blocks_put_line((uint16_t *)to + j, zp_codec_blocks_halves(x + j, ZERO_BF16),
                                     streams);
    } else {
        ZP_ROWS
        for (size_t j = 0; j < ZP_QUANT_BLOCK; j += 32)
            zp_codec_blocks_put_line((uint16_t *)to + j, zp_codec_blocks_halves(x + j, ZERO_F16),
                                     streams);
    }
}
#define ZP_BODY(n, F, ...)                                                                         \
    ((n) < ZP_QUANT_BLOCK ? zp_codec_blocks_plain_##F(n, __VA_ARGS__)                              \
                          : zp_codec_blocks_whole_##F(__VA_ARGS__))
#define ZP_PAST_CACHES 1
ZP_FN void zp_codec_blocks_stream_end(void) { _mm_sfence(); }
#else
#define ZP_BODY(n, F, ...) zp_codec_blocks_plain_##F(n, __VA_ARGS__)
#define ZP_PAST_CACHES     0
ZP_FN void zp_codec_blocks_stream_end(void) {}
#endif

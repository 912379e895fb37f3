/* blocks.h - operations on blocks of random numbers and of codes, in plain C and in AVX2

   zp_blocks_plain_F(n, ...) defines the result for a block's first n elements.
   zp_blocks_whole_F(...) has the same bits for a whole block. Callers use ZP_BLOCK(n, F, ...). */
#pragma once

#include "codes.h"
#include "random.h"

/* The state arrays of one block. The first array's values are signed. The random numbers have one
   half for each array. */
typedef struct zp_blocks_state {
    zp_codes *to[2];
    const float *from[2];
    int arrays, squares; /* squares: the second array has squares */
    const uint32_t *random;
} zp_blocks_state;

/* ---- plain C ---- */

/* Sets the random numbers of n elements from element `first` on. */
ZP_FN void zp_blocks_plain_draw(size_t n, uint32_t *random, uint64_t first, const uint32_t *keys) {
    const uint32_t key[2] = {keys[0], keys[1]}, low = (uint32_t)first,
                   high = (uint32_t)(first >> 32), all = (uint32_t)n;
    if (low + all < low) /* the index crosses a multiple of 2^32 */
        for (uint32_t i = 0; i < all; i++) random[i] = zp_random_of_element(first + i, key);
    else
        for (uint32_t i = 0; i < all; i++) random[i] = zp_random_draw(low + i, high, key);
}
/* Rounds to bf16 stochastically. */
ZP_FN void zp_blocks_plain_narrow(size_t n, uint16_t *to, const float *x, const uint32_t *random,
                                  int array) {
    ZP_SIMD
    for (size_t i = 0; i < n; i++)
        to[i] = zp_random_to_bf16(x[i], zp_random_half(random[i], array));
}
ZP_FN void zp_blocks_plain_decode(size_t n, float *to, const zp_codes *from, int squares) {
    zp_codes_read(to, from, squares, 0, n);
}
ZP_FN void zp_blocks_plain_scale(size_t n, zp_codes *to, const float *x) {
    zp_codes_set_scale(to, x, n);
}
/* Encodes values with the scales that the blocks have. */
ZP_FN void zp_blocks_plain_encode(size_t n, const zp_blocks_state *s) {
    for (int i = 0; i < s->arrays; i++)
        zp_codes_encode_all(s->to[i], s->from[i], n, i && s->squares, s->random, 16 * i);
}

/* ---- AVX2, with the same bits ---- A row is 8 numbers in one register. */
#if defined(__AVX2__) && defined(__FMA__) && !defined(__CUDACC__)
#include <immintrin.h>

ZP_FN __m256i zp_blocks_words(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }
ZP_FN void zp_blocks_put_words(void *p, __m256i x) { _mm256_storeu_si256((__m256i *)p, x); }
ZP_FN __m256i zp_blocks_all(uint32_t x) { return _mm256_set1_epi32((int)x); }

ZP_FN void zp_blocks_whole_draw(uint32_t *random, uint64_t first, const uint32_t *key) {
    const uint32_t low = (uint32_t)first;
    const __m256i by[3] = {zp_blocks_all(0x9E3779B1u), zp_blocks_all(0x85EBCA6Bu),
                           zp_blocks_all(0xC2B2AE35u)},
                  key0 = zp_blocks_all(key[0]),
                  high = zp_blocks_all((uint32_t)(first >> 32) ^ key[1]);
    __m256i at = _mm256_add_epi32(zp_blocks_all(low), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    if (low > UINT32_MAX - ZP_CODE_BLOCK) {
        zp_blocks_plain_draw(ZP_CODE_BLOCK, random, first, key);
        return;
    }
    for (size_t i = 0; i < ZP_CODE_BLOCK; i += 8) {
        __m256i x = _mm256_mullo_epi32(_mm256_xor_si256(at, key0), by[0]);
        x = _mm256_xor_si256(x, _mm256_srli_epi32(x, 16));
        x = _mm256_add_epi32(_mm256_mullo_epi32(x, by[1]), high);
        x = _mm256_mullo_epi32(_mm256_xor_si256(x, _mm256_srli_epi32(x, 13)), by[2]);
        zp_blocks_put_words(random + i, _mm256_xor_si256(x, _mm256_srli_epi32(x, 16)));
        at = _mm256_add_epi32(at, zp_blocks_all(8));
    }
}
/* Returns 8 values of bf16, each in 32 bits. `random` has 16 bits for each. */
ZP_FN __m256i zp_blocks_to_bf16(__m256i b, __m256i random) {
    const __m256i size = _mm256_and_si256(b, zp_blocks_all(0x7FFFFFFFu)),
                  nan = _mm256_cmpgt_epi32(size, zp_blocks_all(0x7F800000u)),
                  large = _mm256_cmpgt_epi32(size, zp_blocks_all(0x7F7F0000u)),
                  odd = _mm256_and_si256(_mm256_srli_epi32(b, 16), zp_blocks_all(1)),
                  nearest = _mm256_add_epi32(odd, zp_blocks_all(0x7FFFu)),
                  add = _mm256_andnot_si256(nan, _mm256_blendv_epi8(random, nearest, large));
    return _mm256_or_si256(_mm256_srli_epi32(_mm256_add_epi32(b, add), 16),
                           _mm256_and_si256(nan, zp_blocks_all(0x40)));
}
ZP_FN void zp_blocks_whole_narrow(uint16_t *to, const float *x, const uint32_t *random, int array) {
    for (size_t i = 0; i < ZP_CODE_BLOCK; i += 16) {
        __m256i h[2];
        for (size_t j = 0; j < 2; j++) {
            const __m256i r = zp_blocks_words(random + i + 8 * j),
                          half = array ? _mm256_srli_epi32(r, 16)
                                       : _mm256_and_si256(r, zp_blocks_all(0xFFFFu));
            h[j] = zp_blocks_to_bf16(zp_blocks_words(x + i + 8 * j), half);
        }
        zp_blocks_put_words(to + i,
                            _mm256_permute4x64_epi64(_mm256_packus_epi32(h[0], h[1]), 0xD8));
    }
}
ZP_FN __m256 zp_blocks_size(__m256 x) {
    return _mm256_and_ps(x, _mm256_castsi256_ps(zp_blocks_all(0x7FFFFFFFu)));
}
/* For every code, the fused multiply-add rounds to the sum of zp_codes_decode. */
ZP_FN void zp_blocks_whole_decode(float *to, const zp_codes *from, int squares) {
    const __m256 scale = _mm256_set1_ps(from->scale), low = _mm256_set1_ps(0x1.018204p-23f),
                 high = _mm256_set1_ps(0x1p-16f), most = _mm256_set1_ps(254.0f);
    for (size_t i = 0; i < ZP_CODE_BLOCK; i += 8) {
        const __m128i code = _mm_loadl_epi64((const __m128i *)(const void *)(from->code + i));
        const __m256 x = _mm256_cvtepi32_ps(squares ? _mm256_cvtepu8_epi32(code)
                                                    : _mm256_cvtepi8_epi32(code)),
                     square = _mm256_mul_ps(x, x);
        const __m256 part = squares ? _mm256_fmadd_ps(square, low, _mm256_mul_ps(square, high))
                                    : _mm256_div_ps(x, _mm256_sub_ps(most, zp_blocks_size(x)));
        _mm256_storeu_ps(to + i, _mm256_mul_ps(part, scale));
    }
}
ZP_FN void zp_blocks_whole_scale(zp_codes *to, const float *x) {
    const __m256i size = zp_blocks_all(0x7FFFFFFFu);
    __m256i most = _mm256_setzero_si256(), other = most;
    for (size_t i = 0; i < ZP_CODE_BLOCK; i += 16) {
        most = _mm256_max_epu32(most, _mm256_and_si256(zp_blocks_words(x + i), size));
        other = _mm256_max_epu32(other, _mm256_and_si256(zp_blocks_words(x + i + 8), size));
    }
    most = _mm256_max_epu32(most, other);
    __m128i m = _mm_max_epu32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4E));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xB1));
    to->scale = zp_type_bits_to_float((uint32_t)_mm_cvtsi128_si32(m));
}
/* Returns 8 codes, each in 32 bits. The sums of `shift` are exact. */
ZP_FN __m256i zp_blocks_encode_row(__m256 x, __m256 by, int squares, __m256i random) {
    const __m256 bits = _mm256_cvtepi32_ps(_mm256_and_si256(random, zp_blocks_all(0x7FFFu))),
                 shift = _mm256_fmadd_ps(bits, _mm256_set1_ps(0x1p-15f),
                                         _mm256_set1_ps(0x1p-16f - 0.5f));
    const __m256 at = squares
                          ? _mm256_mul_ps(_mm256_sqrt_ps(x), by)
                          : _mm256_mul_ps(_mm256_set1_ps(254.0f),
                                          _mm256_div_ps(x, _mm256_add_ps(by, zp_blocks_size(x))));
    const __m256i word = _mm256_castps_si256(
                      _mm256_add_ps(_mm256_add_ps(at, shift), _mm256_set1_ps(12582912.0f))),
                  zero = zp_blocks_all(0x4B400000u), most = zp_blocks_all(0x4B400000u + 255),
                  some = _mm256_castps_si256(_mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_GT_OQ)),
                  held = _mm256_max_epu32(word, _mm256_sub_epi32(zero, some));
    return _mm256_and_si256(squares ? _mm256_min_epu32(held, most) : word, zp_blocks_all(0xFFu));
}
/* Packs 32 codes. */
ZP_FN void zp_blocks_pack(uint8_t *to, const __m256i *row) {
    const __m256i low = _mm256_packus_epi32(row[0], row[1]),
                  high = _mm256_packus_epi32(row[2], row[3]),
                  order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    zp_blocks_put_words(to, _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), order));
}
/* Both arrays are encoded in one loop: a root and a division take long, and overlap here. */
ZP_FN void zp_blocks_encode_arrays(const zp_blocks_state *s, int arrays, int squares) {
    const zp_blocks_state a = *s; /* a copy that no store can change */
    const __m256 by = _mm256_set1_ps(zp_codes_by(a.to[0]->scale, 0)),
                 by2 = arrays > 1 ? _mm256_set1_ps(zp_codes_by(a.to[1]->scale, squares)) : by;
    for (size_t i = 0; i < ZP_CODE_BLOCK; i += 32) {
        __m256i row[2][4];
        for (size_t j = 0; j < 4; j++) {
            const size_t k = i + 8 * j;
            const __m256i r = zp_blocks_words(a.random + k);
            row[0][j] = zp_blocks_encode_row(_mm256_loadu_ps(a.from[0] + k), by, 0, r);
            if (arrays > 1)
                row[1][j] = zp_blocks_encode_row(_mm256_loadu_ps(a.from[1] + k), by2, squares,
                                                 _mm256_srli_epi32(r, 16));
        }
        for (int array = 0; array < arrays; array++)
            zp_blocks_pack(a.to[array]->code + i, row[array]);
    }
}
ZP_FN void zp_blocks_whole_encode(const zp_blocks_state *s) {
    if (s->arrays < 2)
        zp_blocks_encode_arrays(s, 1, 0);
    else if (s->squares)
        zp_blocks_encode_arrays(s, 2, 1);
    else
        zp_blocks_encode_arrays(s, 2, 0);
}
#define ZP_BLOCK(n, F, ...)                                                                        \
    do {                                                                                           \
        if ((n) == ZP_CODE_BLOCK)                                                                  \
            zp_blocks_whole_##F(__VA_ARGS__);                                                      \
        else                                                                                       \
            zp_blocks_plain_##F(n, __VA_ARGS__);                                                   \
    } while (0)
#else
#define ZP_BLOCK(n, F, ...) zp_blocks_plain_##F(n, __VA_ARGS__)
#endif

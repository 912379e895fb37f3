/* type_avx.h - loads, stores and rows of values with AVX-512 or AVX2; a part of type.h */
#pragma once

#if defined(__AVX512F__) && !defined(__CUDACC__)
#include <immintrin.h>
#define ZP_WIDE ((size_t)16)
ZP_FN __m256i zp_type_row_to_bf16(__m512 x) {
#if defined(__AVX512BF16__) && defined(__AVX512DQ__)
    /* The instruction treats denormal numbers as zeros; the mask 0x20 finds them. */
    if (!_mm512_fpclass_ps_mask(x, 0x20)) return (__m256i)_mm512_cvtneps_pbh(x);
#endif
    const __m512i b = _mm512_castps_si512(x), one = _mm512_set1_epi32(1);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(b, 16), one);
    const __m512i even = _mm512_add_epi32(b, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    const __mmask16 nan =
        _mm512_cmpgt_epu32_mask(_mm512_slli_epi32(b, 1), _mm512_set1_epi32((int)0xFF000000u));
    const __m512i h = _mm512_mask_or_epi32(even, nan, b, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(h, 16));
}
ZP_FN void zp_type_load_wide(float *x, const void *from, zero_type type, size_t i) {
    const __m256i h =
        _mm256_loadu_si256((const __m256i *)(const void *)((const char *)from + 2 * i));
    if (type == ZERO_BF16)
        _mm512_storeu_si512(x, _mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
    else if (type == ZERO_F16)
        _mm512_storeu_ps(x, _mm512_cvtph_ps(h));
    else
        _mm512_storeu_ps(x, _mm512_loadu_ps((const float *)from + i));
}
ZP_FN __m256i zp_type_row_to_half(__m512 x, zero_type type) {
    return type == ZERO_BF16 ? zp_type_row_to_bf16(x)
                             : _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT);
}
ZP_FN void zp_type_store_wide(void *to, zero_type type, size_t i, const float *x) {
    const __m512 v = _mm512_loadu_ps(x);
    if (type == ZERO_F32)
        _mm512_storeu_ps((float *)to + i, v);
    else
        _mm256_storeu_si256((__m256i *)(void *)((uint16_t *)to + i), zp_type_row_to_half(v, type));
}
#define ZP_ROW_SIZE ((size_t)16)
typedef __m512 zp_row;
ZP_FN zp_row zp_type_load_row(const float *x) { return _mm512_loadu_ps(x); }
ZP_FN void zp_type_store_row(float *x, zp_row v) { _mm512_storeu_ps(x, v); }
ZP_FN zp_row zp_type_sqrt_row(zp_row x) { return _mm512_sqrt_ps(x); }
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__) && !defined(__CUDACC__)
#include <immintrin.h>
#define ZP_WIDE     ((size_t)16)
ZP_FN __m256i zp_type_bits_to_bf16(__m256i b) { /* each result is in 32 bits */
    const __m256i one = _mm256_set1_epi32(1), half = _mm256_set1_epi32(0x7FFF);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(b, 16), one);
    const __m256i even = _mm256_add_epi32(b, _mm256_add_epi32(odd, half));
    const __m256i size = _mm256_and_si256(b, _mm256_set1_epi32(0x7FFFFFFF));
    const __m256i nan = _mm256_cmpgt_epi32(size, _mm256_set1_epi32(0x7F800000));
    const __m256i quiet = _mm256_or_si256(b, _mm256_set1_epi32(0x400000));
    return _mm256_srli_epi32(_mm256_blendv_epi8(even, quiet, nan), 16);
}
ZP_FN void zp_type_load_wide(float *x, const void *from, zero_type type, size_t i) {
    for (size_t j = i; j < i + ZP_WIDE; j += 8, x += 8) {
        const __m128i *h = (const __m128i *)(const void *)((const char *)from + 2 * j);
        if (type == ZERO_BF16)
            _mm256_storeu_si256((__m256i *)(void *)x,
                                _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(h)), 16));
        else if (type == ZERO_F16)
            _mm256_storeu_ps(x, _mm256_cvtph_ps(_mm_loadu_si128(h)));
        else
            _mm256_storeu_ps(x, _mm256_loadu_ps((const float *)from + j));
    }
}
ZP_FN __m256i zp_type_row_to_half(__m256 a, __m256 b, zero_type type) {
    if (type == ZERO_BF16) {
        const __m256i low = zp_type_bits_to_bf16(_mm256_castps_si256(a)),
                      high = zp_type_bits_to_bf16(_mm256_castps_si256(b));
        return _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xD8);
    }
    return _mm256_set_m128i(_mm256_cvtps_ph(b, _MM_FROUND_TO_NEAREST_INT),
                            _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
ZP_FN void zp_type_store_wide(void *to, zero_type type, size_t i, const float *x) {
    const __m256 a = _mm256_loadu_ps(x), b = _mm256_loadu_ps(x + 8);
    if (type == ZERO_F32) {
        _mm256_storeu_ps((float *)to + i, a);
        _mm256_storeu_ps((float *)to + i + 8, b);
    } else {
        _mm256_storeu_si256((__m256i *)(void *)((uint16_t *)to + i),
                            zp_type_row_to_half(a, b, type));
    }
}
#define ZP_ROW_SIZE ((size_t)8)
typedef __m256 zp_row;
ZP_FN zp_row zp_type_load_row(const float *x) { return _mm256_loadu_ps(x); }
ZP_FN void zp_type_store_row(float *x, zp_row v) { _mm256_storeu_ps(x, v); }
ZP_FN zp_row zp_type_sqrt_row(zp_row x) { return _mm256_sqrt_ps(x); }
#endif

/* vectors.h - vectors of floats, as wide as what the compiler compiles for has them: AVX-512, AVX2,
   or four floats in plain C. For products.c and attention in ops_cpu.c; C alone.

   Addresses need no alignment, though lines of 64 bytes that are aligned move faster. vec_zip_low
   and _high interleave the lower and the upper halves of two vectors. */
#ifndef GPT2_VECTORS_H
#define GPT2_VECTORS_H

#ifdef __FMA__
#define FMA(a, b, c) __builtin_fmaf(a, b, c)
#else
#define FMA(a, b, c) ((a) * (b) + (c))
#endif

#if defined(__AVX512F__)
#include <immintrin.h>
enum { LANES = 16 };
typedef __m512 vec;
static inline vec vec_set(float x) { return _mm512_set1_ps(x); }
static inline vec vec_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void vec_store(float *p, vec x) { _mm512_storeu_ps(p, x); }
static inline vec vec_fma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
static inline vec vec_zip_low(vec a, vec b) {
    const __m512i from = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    return _mm512_permutex2var_ps(a, from, b);
}
static inline vec vec_zip_high(vec a, vec b) {
    const __m512i from =
        _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    return _mm512_permutex2var_ps(a, from, b);
}
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
enum { LANES = 8 };
typedef __m256 vec;
static inline vec vec_set(float x) { return _mm256_set1_ps(x); }
static inline vec vec_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void vec_store(float *p, vec x) { _mm256_storeu_ps(p, x); }
static inline vec vec_fma(vec a, vec b, vec c) { return _mm256_fmadd_ps(a, b, c); }
static inline vec vec_zip_low(vec a, vec b) {
    return _mm256_permute2f128_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b), 0x20);
}
static inline vec vec_zip_high(vec a, vec b) {
    return _mm256_permute2f128_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b), 0x31);
}
#else
enum { LANES = 4 };
typedef struct vec {
    float f[LANES];
} vec;
static inline vec vec_set(float x) {
    vec v;
    for (int i = 0; i < LANES; i++) v.f[i] = x;
    return v;
}
static inline vec vec_load(const float *p) {
    vec v;
    for (int i = 0; i < LANES; i++) v.f[i] = p[i];
    return v;
}
static inline void vec_store(float *p, vec x) {
    for (int i = 0; i < LANES; i++) p[i] = x.f[i];
}
static inline vec vec_fma(vec a, vec b, vec c) {
    for (int i = 0; i < LANES; i++) c.f[i] = FMA(a.f[i], b.f[i], c.f[i]);
    return c;
}
static inline vec vec_zip_low(vec a, vec b) {
    vec v;
    for (int i = 0; i < LANES; i++) v.f[i] = (i % 2 ? b : a).f[i / 2];
    return v;
}
static inline vec vec_zip_high(vec a, vec b) {
    vec v;
    for (int i = 0; i < LANES; i++) v.f[i] = (i % 2 ? b : a).f[(LANES + i) / 2];
    return v;
}
#endif
/* Row i of r becomes column i: as often as LANES can be halved, the first half of the rows is
   interleaved with the second. */
static inline void transpose(vec r[LANES]) {
    for (int stage = LANES; stage > 1; stage /= 2) {
        vec t[LANES];
        for (int i = 0; i < LANES / 2; i++) {
            t[2 * i] = vec_zip_low(r[i], r[i + LANES / 2]);
            t[2 * i + 1] = vec_zip_high(r[i], r[i + LANES / 2]);
        }
        for (int i = 0; i < LANES; i++) r[i] = t[i];
    }
}

#endif

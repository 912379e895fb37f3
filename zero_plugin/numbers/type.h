/* type.h - how an f32 is stored in 16 bits

   Bodies work on f32 values; loads and stores convert several elements at a time. The scalar
   functions define a conversion. The vector versions of type_avx.h and type_cuda.h give the same
   bits (a test compares them). */
#pragma once

#include "../machine/device.h"

ZP_FN uint32_t zp_type_bits(float x) {
    uint32_t b;
    memcpy(&b, &x, sizeof b);
    return b;
}
ZP_FN float zp_type_bits_to_float(uint32_t b) {
    float x;
    memcpy(&x, &b, sizeof x);
    return x;
}
/* The tests use the bits, because compiler flags may assume that no number is infinite or NaN. */
ZP_FN uint64_t zp_type_magnitude(double x) {
    uint64_t b;
    memcpy(&b, &x, sizeof b);
    ZP_UNKNOWN const uint64_t seen = b;
    return seen & 0x7FFFFFFFFFFFFFFFu;
}
ZP_FN int zp_type_is_finite(double x) { return zp_type_magnitude(x) < (uint64_t)0x7FF << 52; }
ZP_FN int zp_type_is_nan(double x) { return zp_type_magnitude(x) > (uint64_t)0x7FF << 52; }
ZP_FN int zp_type_not_below(float x) { return zp_type_is_finite((double)x) && x >= 0; } /* 0 */
ZP_FN float zp_type_from_bf16(uint16_t h) { return zp_type_bits_to_float((uint32_t)h << 16); }
ZP_FN uint16_t zp_type_to_bf16(float x) {
    const uint32_t b = zp_type_bits(x);
    const int nan = (b & 0x7FFFFFFFu) > 0x7F800000u;
    return (uint16_t)(nan ? (b >> 16 | 0x40u) : (b + 0x7FFFu + (b >> 16 & 1u)) >> 16);
}
ZP_FN float zp_type_from_f16(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = h & 0x7FFFu;
    if (rest > 0x7C00u)
        return zp_type_bits_to_float(sign | 0x7FC00000u | (rest & 0x3FFu) << 13); /* quiet NaN */
    if (rest == 0x7C00u) return zp_type_bits_to_float(sign | 0x7F800000u);
    if (rest < 0x400u) return zp_type_bits_to_float(sign | zp_type_bits((float)rest * 0x1p-24f));
    return zp_type_bits_to_float(sign | ((rest << 13) + 0x38000000u));
}
ZP_FN uint16_t zp_type_to_f16(float x) {
    const uint32_t all = zp_type_bits(x), b = all & 0x7FFFFFFFu;
    const uint16_t sign = (uint16_t)(all >> 16 & 0x8000u);
    if (b > 0x7F800000u) return (uint16_t)(sign | 0x7E00u | (b >> 13 & 0x3FFu));
    if (b >= 0x477FF000u) return (uint16_t)(sign | 0x7C00u); /* 65520 and more round to infinity */
    if (b < 0x38800000u) /* below 2^-14: a sum with 0.5 rounds to multiples of 2^-24 */
        return (uint16_t)(sign | (zp_type_bits(zp_type_bits_to_float(b) + 0.5f) - 0x3F000000u));
    return (uint16_t)(sign | (b - 0x38000000u + 0xFFFu + (b >> 13 & 1u)) >> 13);
}

/* SPLIT WEIGHTS. An f32 is a bf16, its upper half, rounded half up, and its 16 lower bits. Both are
   the same f32 again, except that every NaN becomes the quiet one of its sign. A lower half from
   0x8000 on has rounded the upper half up by 1: the sum takes that back. */
#define ZP_LOW ((zero_type)ZERO_TYPES) /* the type of an array of lower halves; none is F64 */
typedef enum zp_rounding { ZP_NEAREST = 0, ZP_HALF_UP, ZP_STOCHASTIC } zp_rounding;
ZP_FN uint32_t zp_type_split_bits(float x) {
    const uint32_t b = zp_type_bits(x);
    return (int32_t)(b & 0x7FFFFFFFu) > 0x7F800000 ? (b & 0x80000000u) | 0x7FC00000u : b;
}
ZP_FN uint16_t zp_type_upper(float x) { /* the sum has 32 bits */
    return (uint16_t)((zp_type_split_bits(x) + 0x8000u) >> 16);
}
ZP_FN uint16_t zp_type_lower(float x) { return (uint16_t)(zp_type_split_bits(x) & 0xFFFFu); }
ZP_FN float zp_type_join(uint16_t upper, uint16_t lower) {
    return zp_type_bits_to_float(((uint32_t)upper << 16) + (uint32_t)(int32_t)(int16_t)lower);
}
/* Adds the lower half to an f32 that has the upper one. */
ZP_FN float zp_type_add_low(float upper, uint16_t lower) {
    return zp_type_join((uint16_t)(zp_type_bits(upper) >> 16), lower);
}
ZP_FN void zp_type_join_all(float *to, const uint16_t *upper, const uint16_t *lower, size_t n) {
    ZP_SIMD
    for (size_t i = 0; i < n; i++) to[i] = zp_type_join(upper[i], lower[i]);
}
/* lower NULL: only the upper halves. */
ZP_FN void zp_type_split_all(uint16_t *upper, uint16_t *lower, const float *from, size_t n) {
    if (!lower) {
        ZP_SIMD
        for (size_t i = 0; i < n; i++) upper[i] = zp_type_upper(from[i]);
        return;
    }
    ZP_SIMD
    for (size_t i = 0; i < n; i++) {
        upper[i] = zp_type_upper(from[i]);
        lower[i] = zp_type_lower(from[i]);
    }
}

ZP_FN size_t zp_type_bytes(zero_type type) { return type == ZERO_F32 ? 4 : 2; }
/* The type of an array of blocks of codes: see codes.h. */
#define ZP_CODES      ((zero_type)(ZERO_TYPES + 1))
#define ZP_CODE_BLOCK ((size_t)128)
typedef struct zp_codes {
    float scale;
    uint8_t code[ZP_CODE_BLOCK];
} zp_codes;
/* Returns the bytes of n adjacent elements; of codes, those of whole blocks. */
ZP_FN size_t zp_type_array_bytes(zero_type type, size_t n) {
    return type == ZP_CODES ? n / ZP_CODE_BLOCK * sizeof(zp_codes) : n * zp_type_bytes(type);
}
ZP_FN float zp_type_load(const void *from, zero_type type, size_t i) {
    if (type == ZERO_F32) return ((const float *)from)[i];
    const uint16_t h = ((const uint16_t *)from)[i];
    return type == ZERO_BF16 ? zp_type_from_bf16(h) : zp_type_from_f16(h);
}
ZP_FN void zp_type_store(void *to, zero_type type, size_t i, float x) {
    if (type == ZERO_F32)
        ((float *)to)[i] = x;
    else
        ((uint16_t *)to)[i] = type == ZERO_BF16 ? zp_type_to_bf16(x) : zp_type_to_f16(x);
}

/* load_wide and store_wide take ZP_WIDE elements, from a multiple of ZP_WIDE; on the GPU neighbour
   threads then share a line. widen and narrow take arrays of any alignment. A zp_row holds
   ZP_ROW_SIZE f32 values; C's operators apply to it. */
#include "type_avx.h"
#ifndef ZP_ROW_SIZE /* no vectors */
#define ZP_ROW_SIZE ((size_t)1)
typedef float zp_row;
ZP_FN zp_row zp_type_load_row(const float *x) { return *x; }
ZP_FN void zp_type_store_row(float *x, zp_row v) { *x = v; }
ZP_FN zp_row zp_type_sqrt_row(zp_row x) { return sqrtf(x); }
#ifdef __CUDACC__
#include "type_cuda.h"
#else
#define ZP_WIDE ((size_t)16)
ZP_FN void zp_type_load_wide(float *x, const void *from, zero_type type, size_t i) {
    for (size_t j = 0; j < ZP_WIDE; j++) x[j] = zp_type_load(from, type, i + j);
}
ZP_FN void zp_type_store_wide(void *to, zero_type type, size_t i, const float *x) {
    for (size_t j = 0; j < ZP_WIDE; j++) zp_type_store(to, type, i + j, x[j]);
}
#endif
#endif
/* Returns how many of n elements are converted ZP_WIDE at a time: 0 on the GPU (alignment). */
ZP_FN size_t zp_type_wide_part(size_t n) { return ZP_WIDE == 16 ? n / ZP_WIDE * ZP_WIDE : 0; }
ZP_FN void zp_type_widen(float *to, const void *from, zero_type type, size_t n) {
    const size_t whole = zp_type_wide_part(n);
    for (size_t i = 0; i < whole; i += ZP_WIDE) zp_type_load_wide(to + i, from, type, i);
    for (size_t i = whole; i < n; i++) to[i] = zp_type_load(from, type, i);
}
ZP_FN void zp_type_narrow(void *to, zero_type type, const float *from, size_t n) {
    const size_t whole = zp_type_wide_part(n);
    for (size_t i = 0; i < whole; i += ZP_WIDE) zp_type_store_wide(to, type, i, from + i);
    for (size_t i = whole; i < n; i++) zp_type_store(to, type, i, from[i]);
}
/* Returns n values from element `at` on, in f32: the array itself if it is f32, else `copy`. */
ZP_FN const float *zp_type_view(const void *from, zero_type type, size_t at, size_t n,
                                float *copy) {
    if (type == ZERO_F32) return (const float *)from + at;
    zp_type_widen(copy, (const uint16_t *)from + at, type, n);
    return copy;
}

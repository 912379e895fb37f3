/* exact.h - sums of squares over shards that no order of adding changes

   A rule that needs the norm of a tensor sums squares where the elements are: on several ranks, in
   pieces, on threads. In f64 the result would depend on where a shard ends. So the squares of 32
   neighbours, between which no shard ends, are added in f64, in lanes; and such numbers are added
   up as whole numbers of ZP_LIMBS times 32 bits, where nothing is rounded: any order, and any
   number of ranks, gives the same bits. Squares of f32 are multiples of 2^-298, and below 2^256. */
#pragma once

#include "kernels.h"

#define ZP_LIMBS       20 /* limb k counts 2^(32 k - POINT); the last: what is not finite */
#define ZP_EXACT_POINT 300
#define ZP_EXACT_BLOCK ((size_t)32)

typedef unsigned long long zp_limb; /* CUDA's atomics take no other of 64 bits */
typedef struct zp_exact {           /* 2^31 numbers may be added */
    zp_limb limb[ZP_LIMBS];
} zp_exact;

/* A number of 0 or more as three limbs; the first of them. */
ZP_FN int zp_exact_cut(double x, zp_limb *piece) {
    const uint64_t bits = zp_type_magnitude(x), fraction = bits & (((uint64_t)1 << 52) - 1);
    const int exponent = (int)(bits >> 52), at = (exponent ? exponent : 1) - 1075 + ZP_EXACT_POINT;
    uint64_t whole = exponent ? fraction | (uint64_t)1 << 52 : fraction;
    piece[0] = piece[1] = piece[2] = 0;
    if (exponent == 0x7FF) {
        piece[0] = 1;
        return ZP_LIMBS - 1;
    }
    if (at < 0) whole = at > -64 ? whole >> -at : 0; /* the bits below are zeros */
    const int shift = at > 0 ? at % 32 : 0;
    const uint64_t low = whole << shift;
    piece[0] = low & 0xFFFFFFFFu;
    piece[1] = low >> 32;
    piece[2] = shift ? whole >> (64 - shift) : 0;
    return at > 0 ? at / 32 : 0;
}
/* Of several ranks' sums, `stride` limbs apart; infinite if a number was not finite. */
ZP_FN double zp_exact_total(const zp_limb *limb, size_t stride, int ranks) {
    zp_limb carry = 0, digit[ZP_LIMBS];
    int top = 2;
    for (int k = 0; k < ZP_LIMBS; k++) {
        for (int r = 0; r < ranks; r++) carry += limb[(size_t)r * stride + (size_t)k];
        digit[k] = k == ZP_LIMBS - 1 ? carry : carry & 0xFFFFFFFFu;
        if (digit[k] && k < ZP_LIMBS - 1 && k > top) top = k;
        carry = k >= ZP_LIMBS - 2 ? 0 : carry >> 32;
    }
    if (digit[ZP_LIMBS - 1]) return (double)INFINITY;
    double sum = 0;
    for (int k = top; k > top - 3; k--) sum = sum * 4294967296.0 + (double)digit[k];
    return ldexp(sum, 32 * (top - 2) - ZP_EXACT_POINT);
}

/* Squares of n elements of a block, in lanes. */
#define ZP_EXACT_LANES 8
ZP_FN double zp_exact_squares(const float *x, size_t n) {
    double lane[ZP_EXACT_LANES] = {0};
    for (size_t i = 0; i < n; i++)
        lane[i % ZP_EXACT_LANES] += (double)x[i] * (double)x[i]; /* the product is exact */
    return zp_kernel_halve(lane, ZP_EXACT_LANES);
}

/* LAMB's trust ratio of every layer of every tensor, from all ranks' sums of squares: of weights,
   and of what they are moved by. */
typedef struct zp_exact_trust_args {
    const zp_limb *sums; /* [ranks] of [parts][2][ZP_LIMBS] */
    double *trust;       /* [parts] */
    size_t stride;       /* limbs of a rank */
    int ranks;
    float least, most; /* 0: no bound */
} zp_exact_trust_args;

ZP_FN void zp_exact_trust_at(const zp_exact_trust_args *a, size_t part) {
    const zp_limb *of = a->sums + part * 2 * ZP_LIMBS;
    const double weights = sqrt(zp_exact_total(of, a->stride, a->ranks)),
                 moves = sqrt(zp_exact_total(of + ZP_LIMBS, a->stride, a->ranks));
    double ratio = weights > 0 && moves > 0 ? weights / moves : 1;
    if (weights > 0 && moves > 0) {
        if (a->least > 0 && ratio < (double)a->least) ratio = (double)a->least;
        if (a->most > 0 && ratio > (double)a->most) ratio = (double)a->most;
    }
    a->trust[part] = ratio;
}
ZP_KERNEL(zp_exact_trust, zp_exact_trust_args, 64)

/* exact.h - sums of squares over shards that do not depend on the order of addition

   A rule that needs the norm of a tensor sums squares on several ranks, in pieces, on threads. In
   f64 the result would depend on where a shard ends. So the plugin adds the squares of 32
   neighbours in f64, in lanes; no shard ends between them. It adds these sums as integers of
   ZP_LIMBS times 32 bits, without rounding. Any order and any number of ranks give the same bits.
   Squares of f32 are multiples of 2^-298, and below 2^256. */
#pragma once

#include "../numbers/optimizer.h"

#define ZP_EXACT_POINT 300 /* limb k counts 2^(32 k - POINT); the last: numbers not finite */
#define ZP_EXACT_BLOCK ((size_t)32)

typedef struct zp_exact { /* sums up to 2^31 numbers */
    zp_limb limb[ZP_LIMBS];
} zp_exact;

/* Splits x >= 0 into three limbs, and returns the index of the first. */
ZP_FN int zp_exact_split(double x, zp_limb *piece) {
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
/* Returns the total of the ranks' sums, `stride` limbs apart, or infinity if one is not finite. */
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

/* Sums the squares of n elements of a block, in lanes. */
#define ZP_EXACT_LANES 8
ZP_FN double zp_exact_squares(const float *x, size_t n) {
    double lane[ZP_EXACT_LANES] = {0};
    for (size_t i = 0; i < n; i++)
        lane[i % ZP_EXACT_LANES] += (double)x[i] * (double)x[i]; /* the product is exact */
    return zp_kernel_add_by_halves(lane, ZP_EXACT_LANES);
}

/* Computes LAMB's trust ratio of each layer of each tensor, from all ranks' sums of squares of the
   weights and of their updates. */
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

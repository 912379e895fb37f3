/* codes.h - f32 values in 8 bits: blocks of codes with a scale each

   A block has the largest magnitude of its values as its scale. Codes are finer for small values:
     signed    127 * 2x / (1 + |x|) of x = value / scale
     squares   255 * sqrt(x). A value above 0 has at least code 1: with a root of 0, eps alone would
               divide a momentum that is not 0
   Encoding decoded values to nearest gives the same block. FlashOptim (2026) has these codes. */
#pragma once

#include "type.h"
ZP_FN float zp_codes_decode(uint8_t code, float scale, int squares) {
    const float all = (float)code, half = (float)(int8_t)code, square = all * all;
    /* The sum is square / 65025, rounded once, for every code. A division takes longer. */
    return squares ? (square * 0x1p-16f + square * 0x1.018204p-23f) * scale
                   : half / (254.0f - fabsf(half)) * scale;
}
/* Returns the bits of |x|. The largest bits in a block are those of its scale; NaN has the largest.
 */
ZP_FN uint32_t zp_codes_magnitude(float x) { return zp_type_bits(x) & 0x7FFFFFFFu; }
/* Makes a number from -0.5 to 0.5 of 15 random bits, which is added to a code before rounding. Its
   sum with 255 is exact. */
ZP_FN float zp_codes_shift(uint32_t random) {
    return (float)(int32_t)(random & 0x7FFFu) * 0x1p-15f + (0x1p-16f - 0.5f);
}
/* Returns the factor or divisor `by` of zp_codes_encode for a block's scale. It uses a little more
   than 255, so that rounding does not bring the largest square below 255. */
ZP_FN float zp_codes_by(float scale, int squares) {
    const float by = scale > 0 ? scale : 1.0f;
    return squares ? 255.00006f / sqrtf(by) : by;
}
/* Encodes a value: with shift 0 to nearest, with one of zp_codes_shift stochastically. The sum with
   12582912, which is 1.5 * 2^23, rounds to a whole number and has it in its lowest bits. */
ZP_FN uint8_t zp_codes_encode(float x, float by, int squares, float shift) {
    const float at = squares ? sqrtf(x) * by : 254.0f * (x / (by + fabsf(x)));
    const uint32_t word = zp_type_bits(at + shift + 12582912.0f), zero = 0x4B400000u;
    const uint32_t least = zero + (x > 0 ? 1u : 0u), most = zero + 255;
    const uint32_t held = word < least ? least : word;
    return (uint8_t)((!squares ? word : held > most ? most : held) & 0xFFu);
}
/* Decodes elements [at, at + n) of blocks. Here and in zp_codes_encode_all, each form has a loop of
   its own, in which `squares` is a constant: compilers use vector instructions then. */
ZP_FN void zp_codes_read(float *to, const zp_codes *from, int squares, size_t at, size_t n) {
    for (size_t i = 0, k; i < n; i += k) {
        const zp_codes *b = &from[(at + i) / ZP_CODE_BLOCK];
        const size_t first = (at + i) % ZP_CODE_BLOCK, rest = ZP_CODE_BLOCK - first;
        const uint8_t *code = b->code + first;
        const float scale = b->scale;
        k = n - i < rest ? n - i : rest;
        if (squares)
            for (size_t j = 0; j < k; j++) to[i + j] = zp_codes_decode(code[j], scale, 1);
        else
            for (size_t j = 0; j < k; j++) to[i + j] = zp_codes_decode(code[j], scale, 0);
    }
}
ZP_FN void zp_codes_set_scale(zp_codes *to, const float *x, size_t n) {
    uint32_t largest = 0;
    for (size_t j = 0; j < n; j++) {
        const uint32_t size = zp_codes_magnitude(x[j]);
        largest = size > largest ? size : largest;
    }
    to->scale = zp_type_bits_to_float(largest);
}
/* Encodes the first n elements of a block that has its scale; the others become 0. Bits of
   `random`, from bit `bit` on, round them; NULL: to nearest. */
ZP_FN void zp_codes_encode_all(zp_codes *to, const float *x, size_t n, int squares,
                               const uint32_t *random, int bit) {
    const float by = zp_codes_by(to->scale, squares);
    memset(to->code, 0, sizeof to->code);
    if (squares) {
        ZP_SIMD
        for (size_t j = 0; j < n; j++)
            to->code[j] =
                zp_codes_encode(x[j], by, 1, random ? zp_codes_shift(random[j] >> bit) : 0);
    } else {
        ZP_SIMD
        for (size_t j = 0; j < n; j++)
            to->code[j] =
                zp_codes_encode(x[j], by, 0, random ? zp_codes_shift(random[j] >> bit) : 0);
    }
}
ZP_FN void zp_codes_write(zp_codes *to, const float *x, size_t n, int squares,
                          const uint32_t *random, int bit) {
    zp_codes_set_scale(to, x, n);
    zp_codes_encode_all(to, x, n, squares, random, bit);
}
/* Replaces those of elements [first, end) that are in this block, and encodes the block again. */
ZP_FN void zp_codes_replace(zp_codes *blocks, size_t block, const float *x, size_t first,
                            size_t end, int squares) {
    float all[ZP_CODE_BLOCK];
    zp_codes_read(all, &blocks[block], squares, 0, ZP_CODE_BLOCK);
    for (size_t j = 0, i = block * ZP_CODE_BLOCK; j < ZP_CODE_BLOCK; j++, i++)
        if (i >= first && i < end) all[j] = x[i - first];
    zp_codes_write(&blocks[block], all, ZP_CODE_BLOCK, squares, NULL, 0);
}

/* random.h - random numbers of elements, and stochastic rounding */
#pragma once

#include "type.h"

/* Rounds to the next bf16 below or above; the nearer is the more probable. It uses 16 random bits.
   Values beyond the largest finite bf16 round to nearest. */
ZP_FN uint16_t zp_random_to_bf16(float x, uint32_t random) {
    const uint32_t b = zp_type_bits(x);
    const int32_t size = (int32_t)(b & 0x7FFFFFFFu);
    const uint32_t quiet = size > 0x7F800000 ? 0x40u : 0;
    const uint32_t add = size > 0x7F7F0000 ? 0x7FFFu + (b >> 16 & 1u) : random & 0xFFFFu;
    return (uint16_t)((b + (quiet ? 0 : add)) >> 16 | quiet);
}
/* Returns an element's random number, from the halves of its index and two keys. */
ZP_FN uint32_t zp_random_draw(uint32_t low, uint32_t high, const uint32_t *key) {
    uint32_t x = (low ^ key[0]) * 0x9E3779B1u;
    x = (x ^ x >> 16) * 0x85EBCA6Bu + (high ^ key[1]);
    x = (x ^ x >> 13) * 0xC2B2AE35u;
    return x ^ x >> 16;
}
ZP_FN uint32_t zp_random_of_element(uint64_t e, const uint32_t *key) {
    return zp_random_draw((uint32_t)e, (uint32_t)(e >> 32), key);
}
/* Returns the 16 bits of an element's random number that round its value in a state array. */
ZP_FN uint32_t zp_random_half(uint32_t random, int array) {
    return array ? random >> 16 : random & 0xFFFFu;
}

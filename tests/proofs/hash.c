/* hash.c - proofs: cfg.integrity's hash finds every change inside one word */
#include "../../zero_plugin/extras/integrity.h"
#include "proof.h"

/* The parts of zp_integrity_mix, each of which can be undone. The factors are odd, and the product
   with an odd factor can be undone, because its inverse modulo 2^64 is an odd factor, too. */
void mix_shifts(void) {
    const uint64_t x = any(0, UINT64_MAX), a = x ^ x >> 32, b = x ^ x >> 29;
    PROVE((a ^ a >> 32) == x, "32 bits can be undone");
    PROVE((b ^ b >> 29 ^ b >> 58) == x, "29 bits can be undone");
}
/* Two sums of words that differ in one word: their difference is that of the words times an odd
 * factor, and not 0. */
void one_word(void) {
    const uint64_t more = any(1, UINT32_MAX), factor = ANY_U32() | 1, change = more * factor;
    PROVE(change != 0, "a changed word changes the sum of its block");
}

/* proof.h - what the proofs of this folder are written with

   A proof is a function. It takes numbers within bounds that it states, calls private functions of
   the plugin, and checks what must be true. CBMC proves it for all numbers. test_proofs.c compiles
   the same functions and tries some numbers, so that a proof that cannot be compiled, or is false
   for common numbers, fails without CBMC. */
#pragma once

#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __CPROVER          /* prove.sh defines it for the preprocessor */
uint64_t proof_any(void); /* has no body: CBMC takes each value */
#define ASSUME(x)       __CPROVER_assume(x)
#define PROVE(x, words) __CPROVER_assert(x, words)
static uint64_t any(uint64_t least, uint64_t most) {
    uint64_t bits =
        most; /* those that a number up to `most` may have: CBMC then leaves the others out */
    bits |= bits >> 1, bits |= bits >> 2, bits |= bits >> 4;
    bits |= bits >> 8, bits |= bits >> 16, bits |= bits >> 32;
    const uint64_t x = proof_any() & bits;
    ASSUME(x >= least && x <= most);
    return x;
}
#else
extern jmp_buf proof_next; /* the sample does not meet an assumption */
uint64_t any(uint64_t least, uint64_t most);
void proof_fail(const char *words, const char *file, int line);
#define ASSUME(x)                                                                                  \
    do {                                                                                           \
        if (!(x)) longjmp(proof_next, 1);                                                          \
    } while (0)
#define PROVE(x, words)                                                                            \
    do {                                                                                           \
        if (!(x)) proof_fail(words, __FILE__, __LINE__);                                           \
    } while (0)
#endif
#define ANY_U32()            ((uint32_t)any(0, UINT32_MAX))
#define ANY_INT(least, most) ((int)any(0, (uint64_t)((most) - (least))) + (least))

/* cublaslt_emulation.h - what a test sets and asks of the emulated cuBLASLt (cublaslt.cc). */
#ifndef CUBLASLT_EMULATION_H
#define CUBLASLT_EMULATION_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    EMULATED_REFUSE_BIAS = 1,
    EMULATED_REFUSE_GELU = 2,
    EMULATED_REFUSE_DGELU = 4,
    EMULATED_REFUSE_PLAIN = 16,
    EMULATED_REFUSE_LATE = 8 /* the algorithm is found, and the product itself is refused */
};
/* Heuristics find no algorithm for these epilogues, as on cards that do not have them. 0: all. */
void emulated_cublaslt_refuse(unsigned which);

/* Products that have run, and those with an epilogue of the refusable kinds, since the start. */
uint64_t emulated_cublaslt_products(void);
uint64_t emulated_cublaslt_fused(void);
/* Descriptors, layouts, preferences and handles that nobody has destroyed. */
int emulated_cublaslt_live(void);

#ifdef __cplusplus
}
#endif
#endif

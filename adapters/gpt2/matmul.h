/* matmul.h - oneDNN's matmul primitive (2.6 or 3.x): made once for each product and kept. Each
   ops_ctx has its own: not for two threads at a time.

   Bits are those of a product, of oneDNN, of the processor and of the number of OpenMP's threads,
   by which oneDNN may cut sums too. */
#ifndef GPT2_MATMUL_H
#define GPT2_MATMUL_H

#include <stddef.h>

#include "../../zero_plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

/* c (m, n) = a (m, k) b (k, n), or += with `add`. 'T': the operand lies transposed. gap_a, gap_b,
   gap_c: from row to row as they lie. */
typedef struct matmul {
    char ta, tb;
    size_t m, n, k, gap_a, gap_b, gap_c;
    zero_type type, to; /* of a and b; of c */
    int add;
    int packed; /* each call first reorders b to what suits the primitive */
} matmul;

typedef struct matmuls matmuls;

/* NULL: no memory. */
matmuls *matmul_open(void);
/* So much scratch memory from now on, which grows at the first call of a product that needs more.
   Returns 0, or dnnl_out_of_memory. */
int matmul_reserve(matmuls *s, size_t bytes);
/* Of that memory so much, which the next product may write to. NULL: no memory. */
void *matmul_scratch(matmuls *s, size_t bytes);
void matmul_close(matmuls *s); /* NULL is allowed */

/* Returns 0 or oneDNN's dnnl_status_t, as the others do; matmul_sentence: what that says. */
int matmul_run(matmuls *s, const matmul *p, const void *a, const void *b, void *c);
const char *matmul_sentence(int status);

/* Whether oneDNN has such a product for this processor, and not one that is slower than conversion
   to f32; name receives the implementation's. */
int matmul_try(matmuls *s, const matmul *p, char *name, size_t bytes);
#ifdef __cplusplus
}
#endif
#endif

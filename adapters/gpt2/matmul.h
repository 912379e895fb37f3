/* matmul.h - oneDNN's matmul primitive (2.6 or 3.x), created once for each product and kept. Each
   ops_ctx has its own set, which only one thread at a time may use.

   The result's bits depend on the product, oneDNN, the processor and the number of OpenMP threads,
   because oneDNN may split sums by threads. */
#ifndef GPT2_MATMUL_H
#define GPT2_MATMUL_H

#include <stddef.h>

#include "../../zero_plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

/* c (m, n) = a (m, k) b (k, n), or += with `add`. ta, tb 'T': the operand is stored transposed.
   gap_a, gap_b, gap_c: the distance of stored rows, in elements. */
typedef struct matmul {
    char ta, tb;
    size_t m, n, k, gap_a, gap_b, gap_c;
    zero_type type, to; /* the type of a and b; the type of c */
    int add;
    int packed; /* each call first copies b to the layout that the primitive prefers */
} matmul;

typedef struct matmuls matmuls;

/* Returns NULL if there is no memory. */
matmuls *matmul_open(void);
/* Provides at least `bytes` of scratch memory. It grows at the first call of a product that needs
   more. Returns 0, or dnnl_out_of_memory. */
int matmul_reserve(matmuls *s, size_t bytes);
/* Returns `bytes` of the scratch memory, which the next product may overwrite. NULL: no memory. */
void *matmul_scratch(matmuls *s, size_t bytes);
void matmul_close(matmuls *s); /* s may be NULL */

/* Returns 0 or oneDNN's dnnl_status_t, as the others do. matmul_sentence describes the status. */
int matmul_run(matmuls *s, const matmul *p, const void *a, const void *b, void *c);
const char *matmul_sentence(int status);

/* Checks that oneDNN has this product for this processor, and that it is not slower than conversion
   to f32. name receives the name of the implementation. */
int matmul_try(matmuls *s, const matmul *p, char *name, size_t bytes);
#ifdef __cplusplus
}
#endif
#endif

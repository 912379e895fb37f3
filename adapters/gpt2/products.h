/* products.h - products of f32 matrices on the CPU: the available ways, and which one a shape
   takes.

   WHY. No library is the fastest at all shapes on all processors, and a product's bits depend on
   the way that computes it. So processor and shape determine the way, from a table in products.c:
   equal commands give equal bits. products_measure makes a new choice. A file can store it, and
   then it is fixed as well.

   A choice as text has one line for each shape, and comments:
       # 1 thread, Intel, AMX; GFLOP/s of sgemm matmul packed apart
       NT 768 128 512 packed # 172.4 187.5 191.2 170.3
   NT: transposition of a and of b, as stored; then m, n, k. A product without a line takes the way
   of the table. */
#ifndef GPT2_PRODUCTS_H
#define GPT2_PRODUCTS_H

#include <stddef.h>
#include <stdint.h>

#include "matmul.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum product_way {
    PRODUCT_SGEMM = 0, /* oneDNN's dnnl_sgemm */
    PRODUCT_MATMUL,    /* oneDNN's matmul, with the operands in place */
    PRODUCT_PACKED,    /* the same, with b packed before */
    PRODUCT_APART,     /* sgemm of blocks that are copied to rows with a larger stride */
    PRODUCT_WAYS
} product_way;

enum { PRODUCTS_MOST = 64, PRODUCTS_SENTENCE = 256, PRODUCTS_TEXT = 8192 };

typedef struct products_line {
    char ta, tb;
    size_t m, n, k;
    product_way way;
    double rates[PRODUCT_WAYS]; /* measured operations per second; not part of the choice */
} products_line;

/* All 0: only the table. */
typedef struct products_choice {
    int lines;
    products_line line[PRODUCTS_MOST];
    uint64_t hash; /* of the lines without rates, in their order; 0: no lines */
    char name[64]; /* for logs: "table for Intel, AMX", "choice of hash ..." */
} products_choice;

/* Multiplies f32 operands; the way replaces p->packed. Bits: see matmul.h. chosen may be NULL.
   Returns 0, or oneDNN's dnnl_status_t. */
int products_multiply(const products_choice *chosen, matmuls *kept, const matmul *p, const float *a,
                      const float *b, float *c);
int products_multiply_by(product_way way, matmuls *kept, const matmul *p, const float *a,
                         const float *b, float *c);

product_way products_way(const products_choice *chosen, char ta, char tb, size_t m, size_t n,
                         size_t k);
const char *products_name(product_way way);
const char *products_processor(void); /* the table's key */
/* Bytes of scratch memory that the table's ways take on this processor, for matmul_reserve; ways
   that a file chooses may take more. */
size_t products_scratch_bytes(void);
/* Returns the table's way for a processor of this name. */
product_way products_table(const char *processor, char ta, char tb, size_t m, size_t n, size_t k);
/* Adds a line with the table's way if the product has none, up to PRODUCTS_MOST lines. */
void products_add(products_choice *c, char ta, char tb, size_t m, size_t n, size_t k);
/* Returns NULL if no line has this product. */
const products_line *products_find(const products_choice *c, char ta, char tb, size_t m, size_t n,
                                   size_t k);

/* Reads the choice from the file. If the file does not exist, it measures the lines of c and writes
   the file, completely or not at all. path "": the table. Sets the name. Returns 0, or 1 and a
   sentence that begins with the path. */
int products_open(products_choice *c, const char *path, size_t threads, char *sentence,
                  size_t bytes);

/* Sets the way and the rates of every line to the best of several products each, measured in
   rotation so that other load affects all ways equally. Another way must be 5 % faster than the
   table's. Returns 0, or 1 if there is no memory. */
int products_measure(products_choice *c);

/* Returns 1 and a sentence, "LINE: REASON", if the text is not a valid choice. */
int products_parse(products_choice *c, const char *text, char *sentence, size_t bytes);
/* Writes at most PRODUCTS_TEXT bytes. Returns the length of the text. */
size_t products_print(const products_choice *c, size_t threads, char *text, size_t bytes);
#ifdef __cplusplus
}
#endif
#endif

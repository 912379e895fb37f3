/* products.h - products of f32 matrices on the CPU: the ways there are, and which one a shape
   takes.

   WHY. No library is the fastest at all shapes on all processors, and a product's bits are those of
   the way it takes. So the way is a fixed choice by processor and shape, from a table in
   products.c: equal commands make equal bits. products_measure makes a choice of its own, which
   can be kept in a file, and then is as fixed.

   A choice as text is a line for each shape, and comments:
       # 1 thread, Intel, AMX; GFLOP/s of sgemm matmul packed apart
       NT 768 128 512 packed # 172.4 187.5 191.2 170.3
   NT: transposition of a and of b, as they lie; then m, n, k. What no line says takes the way of
   the table. */
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
    PRODUCT_MATMUL,    /* oneDNN's matmul, of operands as they lie */
    PRODUCT_PACKED,    /* the same, b packed before */
    PRODUCT_APART,     /* sgemm, of blocks copied to rows that lie further apart */
    PRODUCT_WAYS
} product_way;

enum { PRODUCTS_MOST = 64, PRODUCTS_SENTENCE = 256, PRODUCTS_TEXT = 8192 };

typedef struct products_line {
    char ta, tb;
    size_t m, n, k;
    product_way way;
    double rates[PRODUCT_WAYS]; /* operations per second where measured; not part of the choice */
} products_line;

/* All 0: nothing but the table. */
typedef struct products_choice {
    int lines;
    products_line line[PRODUCTS_MOST];
    uint64_t hash; /* of the lines but their rates, in their order; 0: there is none */
    char name[64]; /* for logs: "table for Intel, AMX", "choice of hash ..." */
} products_choice;

/* Of f32 operands; p->packed is the way's. Bits: see matmul.h. chosen may be NULL. Returns 0, or
   oneDNN's dnnl_status_t. */
int products_multiply(const products_choice *chosen, matmuls *kept, const matmul *p, const float *a,
                      const float *b, float *c);
int products_multiply_by(product_way way, matmuls *kept, const matmul *p, const float *a,
                         const float *b, float *c);

product_way products_way(const products_choice *chosen, char ta, char tb, size_t m, size_t n,
                         size_t k);
const char *products_name(product_way way);
const char *products_processor(void); /* what the table goes by */
/* Bytes of scratch memory that the table's ways take on this processor, for matmul_reserve; ways
   that a file chooses may take more. */
size_t products_scratch_bytes(void);
/* The table's way on such a processor, by name. */
product_way products_table(const char *processor, char ta, char tb, size_t m, size_t n, size_t k);
/* A line for a product that has none yet; the table's way. More than PRODUCTS_MOST are left out. */
void products_add(products_choice *c, char ta, char tb, size_t m, size_t n, size_t k);
/* NULL: it has none. */
const products_line *products_find(const products_choice *c, char ta, char tb, size_t m, size_t n,
                                   size_t k);

/* The choice that a file has; without the file what is measured for the lines that c comes with,
   and the file is written, whole or not at all. path "": the table. Sets the name. Returns 0; 1 and
   a sentence, which begins with the path. */
int products_open(products_choice *c, const char *path, size_t threads, char *sentence,
                  size_t bytes);

/* Sets way and rates of every line by the best of several products each; in turns, so that what
   else runs meets all alike. A way is taken for the table's if it is 5 % faster. Returns 0, or 1:
   no memory. */
int products_measure(products_choice *c);

/* Returns 1 and a sentence, "LINE: REASON", if the text is no choice. */
int products_parse(products_choice *c, const char *text, char *sentence, size_t bytes);
/* At most PRODUCTS_TEXT bytes; returns the text's length. */
size_t products_print(const products_choice *c, size_t threads, char *text, size_t bytes);
#ifdef __cplusplus
}
#endif
#endif

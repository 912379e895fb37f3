/* train_products.h - chooses the method of each matrix product, from -pc. */
#ifndef TRAIN_PRODUCTS_H
#define TRAIN_PRODUCTS_H

#include "../gpt2/gpt2.h"
#include "../gpt2/products.h"
#include "../launch/launch.h"
#include "train_options.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rank 0 reads or measures the methods, for all ranks. rows: of an activation on this rank. tp: the
   tensor-parallel ranks. Errors end the job with one line. COLLECTIVE. */
void train_products(const train_options *o, launch *l, const gpt2_config *model, int tp,
                    size_t rows, int threads, products_choice *out);

#ifdef __cplusplus
}
#endif
#endif

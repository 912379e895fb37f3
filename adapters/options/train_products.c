/* train_products.c - see train_products.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "train_products.h"

void train_products(const train_options *o, launch *l, const gpt2_config *model, int tp,
                    size_t rows, int threads, products_choice *out) {
    gpt2_error error = {""};
    zero_result result = ZERO_OK;
    launch_require(l, !o->products_path[0] || o->type == ZERO_F32,
                   "-pc: GEMM algorithms are chosen for f32 only; use -dt f32, or leave out -pc");
    if (l->rank == 0 || l->joins)
        result = gpt2_choose_products(out, model, rows, tp, o->tile_rows, o->products_path, threads,
                                      &error);
    launch_require(l, result == ZERO_OK, "-pc: %s", error.sentence);
    launch_broadcast(l, out, sizeof *out);
}

/* main.c - arguments, the model and its training */
#include "lstm.h"

#include <stdio.h>
#include <stdlib.h>

#ifdef ZERO
zero_ctx *z;
#endif
#ifdef ZERO /* table */
#define ROW(matrix, n) ZERO_FIELD(Model, matrix.data, n)
static const zero_tensor_desc table[] = {ROW(wx, (size_t)GATES *LETTERS),
                                         ROW(wh, (size_t)GATES *CELLS), ROW(b, GATES),
                                         ROW(wy, (size_t)LETTERS *CELLS), ROW(by, LETTERS)};
#endif

int main(int argc, char **argv) {
    Model model;
    const int steps = argc > 1 ? atoi(argv[1]) : 60;
#ifdef ZERO /* test */
    const int stage = argc > 2 ? atoi(argv[2]) : 1, ranks = argc > 3 ? atoi(argv[3]) : 2;
#endif
#ifdef ZERO
    ZERO_START_LOCAL(z, ranks, .stage = stage);
    if (zero_rank(z) && !freopen("/dev/null", "w", stdout)) return 1;
#endif
    model_new(&model, 3);
#ifdef ZERO
    ZERO_TRY(zero_tensors(z, table, MATRICES)); /* table */
    ZERO_TRY(zero_lend(z, &model, ZERO_F64));
#endif
    if (train(&model, steps)) return 1;
#ifdef ZERO /* test */
    uint64_t hash;
    ZERO_TRY(zero_hash(z, &hash));
    printf("weights %016llx\n", (unsigned long long)hash);
#endif
    model_free(&model);
#ifdef ZERO
    zero_destroy(z);
#endif
    return 0;
}

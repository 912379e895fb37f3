/* lora_tensors.c - the adapters' tensors of a model: the rows of its table, and their first values;
   see lora.h. Common subset of C11 and CUDA C++. */
#include "lora.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK ((size_t)1 << 18) /* elements drawn at once */
enum { STREAM = 64 };

int lora_describe(const gpt2_config *cfg, zero_tensor_desc *table, int n) {
    for (int tensor; (tensor = gpt2_tensor_at(cfg, n)) >= 0; n++) {
        zero_tensor_desc *d = &table[n];
        size_t rows, columns;
        lora_sides(cfg, tensor, &rows, &columns);
        *d = table[GPT2_QKVW];
        d->name = gpt2_tensor_name(tensor);
        d->numel = rows * columns;
        d->field = offsetof(gpt2_tensors, lora) + (size_t)(tensor - GPT2_LORA) * sizeof(void *);
    }
    return n;
}

/* Draws numbers between -bound and bound, from uniforms ((r >> 11) + 1/2) / 2^53 as gpt2_normals.
 */
static void draw(float *out, uint64_t seed, int tensor, size_t first, size_t n, double bound) {
    for (size_t i = 0; i < n; i++) {
        const uint64_t r = gpt2_draw(seed, STREAM + (uint64_t)tensor, first + i);
        out[i] = (float)((((double)(r >> 11) + 0.5) / 9007199254740992.0 * 2 - 1) * bound);
    }
}

static zero_result init_tensor(zero_ctx *z, const gpt2_config *cfg, const gpt2_parallel *how,
                               uint64_t seed, int tensor, float *chunk) {
    size_t rows, columns;
    lora_sides(cfg, tensor, &rows, &columns);
    const size_t numel = rows * columns * (size_t)cfg->layers;
    for (size_t first = 0; first < numel; first += CHUNK) {
        const size_t n = numel - first < CHUNK ? numel - first : CHUNK;
        if (lora_is_b(tensor))
            memset(chunk, 0, n * sizeof *chunk);
        else
            draw(chunk, seed, tensor, first, n, 1 / sqrt((double)columns));
        ZERO_TRY(gpt2_write(z, cfg, how, tensor, ZERO_PARAMETER, first, n, chunk));
    }
    return ZERO_OK;
}

zero_result gpt2_lora_init(zero_ctx *z, const gpt2_config *cfg, const gpt2_parallel *how,
                           uint64_t seed, gpt2_error *err) {
    zero_result result = ZERO_OK;
    if (!gpt2_lora_of(cfg)) return ZERO_OK;
    float *chunk = (float *)malloc(CHUNK * sizeof *chunk);
    if (!chunk) result = ZERO_ERR_MEMORY;
    for (int i = GPT2_TENSORS + (cfg->untied != 0); !result && gpt2_tensor_at(cfg, i) >= 0; i++)
        result = init_tensor(z, cfg, how, seed, gpt2_tensor_at(cfg, i), chunk);
    if (result && err)
        (void)snprintf(err->sentence, sizeof err->sentence, "%s",
                       chunk ? gpt2_parallel_error(z, how) : "no memory for the first adapters");
    free(chunk);
    return result;
}

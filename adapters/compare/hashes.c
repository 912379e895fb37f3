/* hashes.c - see hashes.h. */
#include "hashes.h"
#include "../system/regular_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>

enum { PIECE = 1 << 18 /* elements or bytes read at once */ };

static zero_result hash_tensor(hash_read read, void *user, const zero_tensor_desc *d, int tensor,
                               float *piece, XXH64_state_t *state) {
    const size_t total = d->numel * (size_t)(d->layers > 0 ? d->layers : 1);
    zero_result result = ZERO_OK;
    for (size_t first = 0; first < total && result == ZERO_OK; first += PIECE) {
        const size_t left = total - first, count = left < PIECE ? left : (size_t)PIECE;
        result = read(user, tensor, first, count, piece);
        if (result == ZERO_OK) XXH64_update(state, piece, count * sizeof *piece);
    }
    return result;
}

zero_result hash_weights(hash_read read, void *user, const zero_tensor_desc *table, int tensors,
                         uint64_t *hash) {
    XXH64_state_t *state = XXH64_createState();
    float *piece = (float *)malloc(PIECE * sizeof *piece);
    zero_result result = state != NULL && piece != NULL ? ZERO_OK : ZERO_ERR_MEMORY;
    if (result == ZERO_OK) XXH64_reset(state, 0);
    for (int i = 0; i < tensors && result == ZERO_OK; i++)
        result = hash_tensor(read, user, &table[i], i, piece, state);
    if (result == ZERO_OK) *hash = XXH64_digest(state);
    XXH64_freeState(state);
    free(piece);
    return result;
}

int hash_file(const char *path, uint64_t *hash) {
    XXH64_state_t *state = XXH64_createState();
    void *piece = malloc(PIECE);
    FILE *file = regular_file_stream(path, "r");
    int ok = file != NULL && state != NULL && piece != NULL && XXH64_reset(state, 0) == XXH_OK;
    size_t got = 0;
    while (ok && (got = fread(piece, 1, PIECE, file)) > 0) XXH64_update(state, piece, got);
    ok = ok && !ferror(file);
    if (ok) *hash = XXH64_digest(state);
    if (file != NULL) fclose(file);
    XXH64_freeState(state);
    free(piece);
    return ok;
}

data_result hash_tokens(const token_file *file, uint64_t *hash, char *error, size_t error_bytes) {
    XXH64_state_t *state = XXH64_createState();
    uint16_t *piece = (uint16_t *)malloc(PIECE * sizeof *piece);
    data_result result = DATA_OK;
    if (state == NULL || piece == NULL || XXH64_reset(state, 0) != XXH_OK)
        result = data_fail(DATA_SYSTEM, error, error_bytes, "no memory to hash a file's tokens");
    for (size_t first = 0; first < file->count && result == DATA_OK; first += PIECE) {
        const size_t left = file->count - first, count = left < PIECE ? left : (size_t)PIECE;
        result = token_file_read(file, first, count, piece, error, error_bytes);
        if (result == DATA_OK) XXH64_update(state, piece, count * sizeof *piece);
    }
    if (result == DATA_OK) *hash = XXH64_digest(state);
    XXH64_freeState(state);
    free(piece);
    return result;
}

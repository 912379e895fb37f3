/* windows.c: see windows.h. C11 and C++17. */
#include "windows.h"

#include <stdlib.h>
#include <xxhash.h>

int windows_open(windows *w) {
    w->count = (int64_t)((w->file->count - 1) / (size_t)w->seq_len);
    w->epoch_steps = w->count / w->step_windows;
    w->epoch = -1;
    w->shuffled = NULL;
    w->tokens = (uint16_t *)malloc(((size_t)w->seq_len + 1) * sizeof *w->tokens);
    if (w->order != WINDOWS_SHUFFLED) return w->tokens != NULL;
    if (w->count > (int64_t)UINT32_MAX) return 0;
    w->shuffled = (uint32_t *)calloc(w->count > 0 ? (size_t)w->count : 1, sizeof *w->shuffled);
    return w->tokens != NULL && w->shuffled != NULL;
}

void windows_close(windows *w) {
    free(w->shuffled);
    free(w->tokens);
    w->shuffled = NULL;
    w->tokens = NULL;
}

/* Fisher and Yates's shuffle, from the seed and the number of the epoch alone. */
static void windows_shuffle(windows *w, int64_t epoch) {
    const uint64_t base = (uint64_t)epoch * (uint64_t)w->count;
    for (int64_t i = 0; i < w->count; i++) w->shuffled[i] = (uint32_t)i;
    for (int64_t i = w->count - 1; i > 0; i--) {
        const uint64_t draw = w->draw(w->seed, WINDOWS_STREAM_SHUFFLE, base + (uint64_t)i);
        const int64_t k = (int64_t)(draw % (uint64_t)(i + 1));
        const uint32_t kept = w->shuffled[i];
        w->shuffled[i] = w->shuffled[k];
        w->shuffled[k] = kept;
    }
    w->epoch = epoch;
}

/* Returns the index of a window's first token. */
static size_t windows_start(windows *w, int64_t step, int64_t row) {
    if (w->order == WINDOWS_RANDOM) {
        const uint64_t number = (uint64_t)step * (uint64_t)w->step_windows + (uint64_t)row;
        return (size_t)(w->draw(w->seed, WINDOWS_STREAM_OFFSETS, number)
                        % (w->file->count - (size_t)w->seq_len));
    }
    const int64_t epoch = step / w->epoch_steps;
    int64_t window = step % w->epoch_steps * w->step_windows + row;
    if (w->order == WINDOWS_SHUFFLED) {
        if (epoch != w->epoch) windows_shuffle(w, epoch);
        window = (int64_t)w->shuffled[window];
    }
    return (size_t)window * (size_t)w->seq_len;
}

/* Reads the window of a row and the token after it to w->tokens. */
static data_result windows_read(windows *w, int64_t step, int64_t row, char *error,
                                size_t error_bytes) {
    return token_file_read(w->file, windows_start(w, step, row), (size_t)w->seq_len + 1, w->tokens,
                           error, error_bytes);
}

data_result windows_load(windows *w, int64_t step, int64_t first, int rows, int *inputs,
                         int *targets, char *error, size_t error_bytes) {
    const size_t T = (size_t)w->seq_len;
    for (size_t b = 0; b < (size_t)rows && (inputs != NULL || targets != NULL); b++) {
        const data_result result = windows_read(w, step, first + (int64_t)b, error, error_bytes);
        if (result != DATA_OK) return result;
        for (size_t t = 0; t < T && inputs != NULL; t++) inputs[b * T + t] = (int)w->tokens[t];
        for (size_t t = 0; t < T && targets != NULL; t++)
            targets[b * T + t] = (int)w->tokens[t + 1];
    }
    return DATA_OK;
}

data_result windows_hash(windows *w, int64_t step, uint64_t *hash, char *error,
                         size_t error_bytes) {
    *hash = 0;
    for (int64_t row = 0; row < w->step_windows; row++) {
        const data_result result = windows_read(w, step, row, error, error_bytes);
        if (result != DATA_OK) return result;
        *hash = XXH64(w->tokens, ((size_t)w->seq_len + 1) * sizeof *w->tokens, *hash);
    }
    return DATA_OK;
}

/* token_file.c: see token_file.h. C11 and C++17. */
#include "token_file.h"

#include <string.h>

enum { PIECE = 16384 }; /* tokens that are checked together */

static data_result check_header(const data_file *file, const char *path, char *error,
                                size_t error_bytes) {
    uint32_t version = data_file_header(file, 1);
    if (version != TOKEN_FILE_VERSION) {
        return data_fail(DATA_FORMAT, error, error_bytes, "%s: expected version %d, found %lu",
                         path, (int)TOKEN_FILE_VERSION, (unsigned long)version);
    }
    uint32_t count = data_file_header(file, 2);
    if (count < 1 || count > INT32_MAX) {
        return data_fail(DATA_FORMAT, error, error_bytes,
                         "%s: expected a number of tokens from 1 to %ld, found %ld", path,
                         (long)INT32_MAX, (long)(int32_t)count);
    }
    uint64_t length = DATA_HEADER_BYTES + (uint64_t)count * sizeof(uint16_t);
    if (file->length != length) {
        return data_fail(DATA_FORMAT, error, error_bytes,
                         "%s: expected %llu bytes for %lu tokens, found %llu", path,
                         (unsigned long long)length, (unsigned long)count,
                         (unsigned long long)file->length);
    }
    return DATA_OK;
}

data_result token_file_read(const token_file *file, size_t first, size_t count, uint16_t *tokens,
                            char *error, size_t error_bytes) {
    const data_result result =
        data_file_read(&file->file, DATA_HEADER_BYTES + first * sizeof *tokens, tokens,
                       count * sizeof *tokens, error, error_bytes);
    if (result != DATA_OK) { return result; }
    for (size_t i = 0; i < count; i++) {
        if (tokens[i] >= file->vocabulary) {
            return data_fail(DATA_FORMAT, error, error_bytes,
                             "%s: expected tokens below %lu, found %u at index %llu",
                             file->file.path, (unsigned long)file->vocabulary, (unsigned)tokens[i],
                             (unsigned long long)(first + i));
        }
    }
    return DATA_OK;
}

static data_result check_tokens(const token_file *file, char *error, size_t error_bytes) {
    uint16_t piece[PIECE];
    data_result result = DATA_OK;
    for (size_t first = 0; first < file->count && result == DATA_OK; first += PIECE) {
        const size_t left = file->count - first;
        result = token_file_read(file, first, left < PIECE ? left : (size_t)PIECE, piece, error,
                                 error_bytes);
    }
    return result;
}

data_result token_file_open(token_file *file, const char *path, uint32_t vocabulary, char *error,
                            size_t error_bytes) {
    memset(file, 0, sizeof *file);
    data_result result = data_file_open(&file->file, path, TOKEN_FILE_MAGIC, error, error_bytes);
    if (result == DATA_OK) { result = check_header(&file->file, path, error, error_bytes); }
    if (result == DATA_OK) {
        file->count = data_file_header(&file->file, 2);
        file->vocabulary = vocabulary;
        result = check_tokens(file, error, error_bytes);
    }
    if (result != DATA_OK) { token_file_close(file); }
    return result;
}

void token_file_close(token_file *file) {
    data_file_close(&file->file);
    memset(file, 0, sizeof *file);
}

/* token_file.c: see token_file.h. C11 and C++17. */
#include "token_file.h"

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

static data_result check_tokens(const token_file *file, const char *path, uint32_t vocabulary,
                                char *error, size_t error_bytes) {
    for (size_t i = 0; i < file->count; i++) {
        if (file->tokens[i] >= vocabulary) {
            return data_fail(DATA_FORMAT, error, error_bytes,
                             "%s: expected tokens below %lu, found %u at index %llu", path,
                             (unsigned long)vocabulary, (unsigned)file->tokens[i],
                             (unsigned long long)i);
        }
    }
    return DATA_OK;
}

data_result token_file_open(token_file *file, const char *path, uint32_t vocabulary, char *error,
                            size_t error_bytes) {
    file->tokens = NULL;
    file->count = 0;
    data_result result = data_file_open(&file->file, path, TOKEN_FILE_MAGIC, error, error_bytes);
    if (result == DATA_OK) { result = check_header(&file->file, path, error, error_bytes); }
    if (result == DATA_OK) {
        /* A mapping starts on a page, so the tokens behind the header are aligned. */
        const void *tokens = file->file.bytes + DATA_HEADER_BYTES;
        file->tokens = (const uint16_t *)tokens;
        file->count = data_file_header(&file->file, 2);
        result = check_tokens(file, path, vocabulary, error, error_bytes);
    }
    if (result != DATA_OK) { token_file_close(file); }
    return result;
}

void token_file_close(token_file *file) {
    data_file_close(&file->file);
    file->tokens = NULL;
    file->count = 0;
}

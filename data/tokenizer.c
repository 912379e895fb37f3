/* tokenizer.c: see tokenizer.h. C11 and C++17. */
#include "tokenizer.h"

#include <stdlib.h>
#include <string.h>

/* Version 1 has no field for the end-of-text token because it was made for GPT-2 alone. */
enum { GPT2_COUNT = 50257, GPT2_END_OF_TEXT = 50256 };

static data_result read_header(tokenizer *words, const data_file *file, char *error,
                               size_t error_bytes) {
    const char *path = file->path;
    uint32_t version = data_file_header(file, 1);
    if (version != 1 && version != 2) {
        return data_fail(DATA_FORMAT, error, error_bytes, "%s: expected version 1 or 2, found %lu",
                         path, (unsigned long)version);
    }
    words->count = data_file_header(file, 2);
    words->end_of_text = version == 1 ? (uint32_t)GPT2_END_OF_TEXT : data_file_header(file, 3);
    if (version == 1 && words->count != GPT2_COUNT) {
        return data_fail(DATA_FORMAT, error, error_bytes,
                         "%s: expected %d tokens in version 1, found %lu", path, (int)GPT2_COUNT,
                         (unsigned long)words->count);
    }
    /* A token has two bytes or more. This limits the memory that a damaged count can request. */
    size_t most = (file->length - DATA_HEADER_BYTES) / 2;
    if (words->count < 1 || words->count > most || file->length > UINT32_MAX) {
        return data_fail(DATA_FORMAT, error, error_bytes,
                         "%s: expected 1 to %llu tokens in %llu bytes, found %lu", path,
                         (unsigned long long)most, (unsigned long long)file->length,
                         (unsigned long)words->count);
    }
    if (words->end_of_text >= words->count) {
        return data_fail(DATA_FORMAT, error, error_bytes,
                         "%s: expected an end-of-text token below %lu, found %lu", path,
                         (unsigned long)words->count, (unsigned long)words->end_of_text);
    }
    return DATA_OK;
}

static data_result read_tokens(tokenizer *words, const data_file *file, char *error,
                               size_t error_bytes) {
    const char *path = file->path;
    size_t position = DATA_HEADER_BYTES;
    words->offsets = (uint32_t *)malloc(words->count * sizeof *words->offsets);
    words->bytes = (unsigned char *)malloc(file->length);
    if (words->offsets == NULL || words->bytes == NULL) {
        return data_fail(DATA_SYSTEM, error, error_bytes,
                         "%s: expected memory for %lu tokens, found none", path,
                         (unsigned long)words->count);
    }
    const data_result result =
        data_file_read(file, 0, words->bytes, file->length, error, error_bytes);
    if (result != DATA_OK) { return result; }
    for (uint32_t i = 0; i < words->count; i++) {
        size_t left = file->length - position;
        if (left < 1 || words->bytes[position] < 1 || words->bytes[position] >= left) {
            return data_fail(
                DATA_FORMAT, error, error_bytes,
                "%s: expected token %lu of %lu at byte %llu, found %s", path, (unsigned long)i,
                (unsigned long)words->count, (unsigned long long)position,
                left >= 1 && words->bytes[position] < 1 ? "length 0" : "the end of the file");
        }
        words->offsets[i] = (uint32_t)position;
        position += 1 + (size_t)words->bytes[position];
    }
    if (position != file->length) {
        return data_fail(DATA_FORMAT, error, error_bytes,
                         "%s: expected the file to end at byte %llu, found %llu bytes", path,
                         (unsigned long long)position, (unsigned long long)file->length);
    }
    return DATA_OK;
}

data_result tokenizer_open(tokenizer *words, const char *path, char *error, size_t error_bytes) {
    data_file file;
    memset(words, 0, sizeof *words);
    data_result result = data_file_open(&file, path, TOKENIZER_MAGIC, error, error_bytes);
    if (result == DATA_OK) { result = read_header(words, &file, error, error_bytes); }
    if (result == DATA_OK) { result = read_tokens(words, &file, error, error_bytes); }
    data_file_close(&file);
    if (result != DATA_OK) { tokenizer_close(words); }
    return result;
}

const unsigned char *tokenizer_bytes(const tokenizer *words, uint32_t token, size_t *length) {
    *length = 0;
    if (token >= words->count) { return NULL; }
    const unsigned char *entry = words->bytes + words->offsets[token];
    *length = entry[0];
    return entry + 1;
}

void tokenizer_close(tokenizer *words) {
    free(words->offsets);
    free(words->bytes);
    memset(words, 0, sizeof *words);
}

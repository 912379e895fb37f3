/* eval_file.c: see eval_file.h. C11 and C++17. */
#include "eval_file.h"

#include <stdlib.h>
#include <string.h>

enum {
    START = 65535,      /* first number of each example */
    LEAD = 3,           /* numbers before the label: start, bytes, index */
    NUMBERS = 65535 / 2 /* in the longest possible example */
};

/* The example that is being read: numbers[next] is the next number. */
typedef struct eval_cursor {
    const eval_file *file;
    uint32_t index;
    size_t next, count;
    char *error;
    size_t error_bytes;
} eval_cursor;

/* Returns the file offset of a number of the example, in bytes. */
static unsigned long long byte_of(const eval_cursor *c, size_t number) {
    return (unsigned long long)(c->file->at[c->index] + number * sizeof(uint16_t));
}

static data_result wrong(const eval_cursor *c, size_t number, const char *expected) {
    return data_fail(DATA_FORMAT, c->error, c->error_bytes,
                     "%s: byte %llu: expected %s in example %lu, found %u", c->file->file.path,
                     byte_of(c, number), expected, (unsigned long)c->index,
                     (unsigned)c->file->numbers[number]);
}

static data_result ended(const eval_cursor *c) {
    return data_fail(DATA_FORMAT, c->error, c->error_bytes,
                     "%s: byte %llu: example %lu ends within its tokens", c->file->file.path,
                     byte_of(c, c->count), (unsigned long)c->index);
}

/* Reads a length and that many tokens. */
static data_result take_tokens(eval_cursor *c, int *count, const uint16_t **tokens) {
    if (c->next >= c->count) { return ended(c); }
    const size_t length = c->file->numbers[c->next];
    if (length == 0) { return wrong(c, c->next, "at least one token"); }
    c->next++;
    if (length > c->count - c->next) { return ended(c); }
    for (size_t i = 0; i < length; i++) {
        if (c->file->numbers[c->next + i] < c->file->vocabulary) { continue; }
        return data_fail(DATA_FORMAT, c->error, c->error_bytes,
                         "%s: byte %llu: expected tokens below %lu in example %lu, found %u",
                         c->file->file.path, byte_of(c, c->next + i),
                         (unsigned long)c->file->vocabulary, (unsigned long)c->index,
                         (unsigned)c->file->numbers[c->next + i]);
    }
    *count = (int)length;
    *tokens = c->file->numbers + c->next;
    c->next += length;
    return DATA_OK;
}

/* Reads the label and the rest of an example. */
static data_result take_example(eval_cursor *c, eval_example *out) {
    const uint16_t *numbers = c->file->numbers;
    if (c->count < LEAD + 2) { return ended(c); }
    if (numbers[LEAD] >= EVAL_COMPLETIONS) { return wrong(c, LEAD, "a label of 0 to 3"); }
    if (numbers[LEAD + 1] != EVAL_COMPLETIONS) { return wrong(c, LEAD + 1, "4 completions"); }
    c->next = LEAD + 2;
    out->label = numbers[LEAD];
    data_result result = take_tokens(c, &out->context, &out->tokens);
    for (int i = 0; i < EVAL_COMPLETIONS && result == DATA_OK; i++) {
        result = take_tokens(c, &out->completion[i].count, &out->completion[i].tokens);
    }
    if (result == DATA_OK && c->next != c->count) {
        return wrong(c, c->next, "the end of its last completion");
    }
    return result;
}

/* Reads the first three numbers of the example at at[index], and computes at[index + 1]. */
static data_result read_lead(eval_cursor *c) {
    eval_file *file = (eval_file *)(uintptr_t)c->file;
    const uint64_t at = file->at[c->index];
    if (file->file.length - at < LEAD * sizeof(uint16_t)) {
        return data_fail(DATA_FORMAT, c->error, c->error_bytes,
                         "%s: byte %llu: expected example %lu of %lu, found the end of the file",
                         file->file.path, (unsigned long long)at, (unsigned long)c->index,
                         (unsigned long)file->count);
    }
    const data_result result = data_file_read(&file->file, at, file->numbers,
                                              LEAD * sizeof(uint16_t), c->error, c->error_bytes);
    if (result != DATA_OK) { return result; }
    const uint16_t bytes = file->numbers[1];
    if (file->numbers[0] != START) { return wrong(c, 0, "65535, an example's start,"); }
    if (bytes % 2 != 0 || bytes <= LEAD * sizeof(uint16_t) || bytes > file->file.length - at) {
        return wrong(c, 1, "an even number of bytes that the file has");
    }
    if (file->numbers[2] != c->index) { return wrong(c, 2, "its own index"); }
    file->at[c->index + 1] = at + bytes;
    c->count = bytes / sizeof(uint16_t);
    return DATA_OK;
}

data_result eval_file_read(eval_file *file, uint32_t index, eval_example *out, char *error,
                           size_t error_bytes) {
    eval_cursor c = {file, index, 0, 0, error, error_bytes};
    data_result result = read_lead(&c);
    if (result != DATA_OK) { return result; }
    result = data_file_read(&file->file, file->at[index], file->numbers, c.count * sizeof(uint16_t),
                            error, error_bytes);
    if (result != DATA_OK) { return result; }
    return take_example(&c, out);
}

static data_result check_header(eval_file *file, char *error, size_t error_bytes) {
    const uint32_t version = data_file_header(&file->file, 1);
    file->count = data_file_header(&file->file, 2);
    if (version != EVAL_FILE_VERSION) {
        return data_fail(DATA_FORMAT, error, error_bytes,
                         "%s: byte 4: expected version %d, found %lu", file->file.path,
                         (int)EVAL_FILE_VERSION, (unsigned long)version);
    }
    if (file->count < 1 || file->count > START) {
        return data_fail(DATA_FORMAT, error, error_bytes,
                         "%s: byte 8: expected 1 to %d examples, found %ld", file->file.path,
                         (int)START, (long)(int32_t)file->count);
    }
    file->at = (uint64_t *)calloc((size_t)file->count + 1, sizeof *file->at);
    file->numbers = (uint16_t *)calloc(NUMBERS, sizeof *file->numbers);
    if (file->at != NULL && file->numbers != NULL) { return DATA_OK; }
    return data_fail(DATA_SYSTEM, error, error_bytes, "%s: no memory for %lu examples",
                     file->file.path, (unsigned long)file->count);
}

static data_result check_examples(eval_file *file, char *error, size_t error_bytes) {
    file->at[0] = DATA_HEADER_BYTES;
    for (uint32_t i = 0; i < file->count; i++) {
        eval_example one;
        const data_result result = eval_file_read(file, i, &one, error, error_bytes);
        if (result != DATA_OK) { return result; }
        for (int k = 0; k < EVAL_COMPLETIONS; k++) {
            const int tokens = one.context + one.completion[k].count;
            if (tokens > file->longest) { file->longest = tokens; }
        }
    }
    if (file->at[file->count] == file->file.length) { return DATA_OK; }
    return data_fail(DATA_FORMAT, error, error_bytes,
                     "%s: byte %llu: expected the end of the file after %lu examples, found more",
                     file->file.path, (unsigned long long)file->at[file->count],
                     (unsigned long)file->count);
}

data_result eval_file_open(eval_file *file, const char *path, uint32_t vocabulary, char *error,
                           size_t error_bytes) {
    memset(file, 0, sizeof *file);
    data_result result = data_file_open(&file->file, path, EVAL_FILE_MAGIC, error, error_bytes);
    file->vocabulary = vocabulary;
    if (result == DATA_OK) { result = check_header(file, error, error_bytes); }
    if (result == DATA_OK) { result = check_examples(file, error, error_bytes); }
    if (result != DATA_OK) { eval_file_close(file); }
    return result;
}

void eval_file_close(eval_file *file) {
    data_file_close(&file->file);
    free(file->at);
    free(file->numbers);
    memset(file, 0, sizeof *file);
}

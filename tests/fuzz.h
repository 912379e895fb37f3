/* fuzz.h - what fuzz targets share where they are built without libFuzzer (FUZZ_MAIN): a seeded
   random number, a change of a text, and rounds of changed inputs. */
#ifndef TEST_FUZZ_H
#define TEST_FUZZ_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { FUZZ_INPUT = 1 << 16 }; /* bytes of the largest input */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t fuzz_state;
/* splitmix64; 0..n-1 */
static size_t fuzz_below(size_t n) {
    uint64_t x = fuzz_state += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return (size_t)((x ^ (x >> 31)) % n);
}

/* Replaces up to 8 bytes somewhere by a word, a byte or nothing. Returns the new length. */
__attribute__((unused)) static size_t fuzz_change_text(char *text, size_t length,
                                                       const char *(*word)(void)) {
    char byte[2] = {(char)fuzz_below(256), 0};
    const size_t at = fuzz_below(length + 1);
    const size_t left = length - at, most = left < 8 ? left : 8, gone = fuzz_below(most + 1);
    const char *in = fuzz_below(3) ? word() : byte;
    const size_t n = fuzz_below(6) ? strlen(in) : 0;
    if (length + n >= FUZZ_INPUT) return length;
    memmove(text + at + n, text + at + gone, left - gone);
    memcpy(text + at, in, n);
    return length - gone + n;
}

/* A file into FUZZ_INPUT bytes; its length, 0 without one. */
__attribute__((unused)) static size_t fuzz_file(const char *path, void *data) {
    FILE *file = fopen(path, "rb");
    const size_t length = file == NULL ? 0 : fread(data, 1, FUZZ_INPUT, file);
    if (file != NULL) (void)fclose(file);
    return length;
}

/* Bytes of exactly this length on the heap, so that a sanitizer sees the first one beyond. */
static void fuzz_try(const void *data, size_t length) {
    uint8_t *copy = (uint8_t *)malloc(length + !length);
    if (copy == NULL) return;
    memcpy(copy, data, length);
    (void)LLVMFuzzerTestOneInput(copy, length);
    free(copy);
}

/* `times` inputs, each with 1 to `most` changes. */
static void fuzz_round(const void *data, size_t length, int times, size_t most,
                       size_t (*change)(void *data, size_t length)) {
    static uint8_t changed[FUZZ_INPUT + 16];
    for (int i = 0; i < times; i++) {
        size_t n = length;
        memcpy(changed, data, length);
        for (size_t k = 1 + fuzz_below(most); k > 0; k--) n = change(changed, n);
        fuzz_try(changed, n);
    }
}

#endif

/* fuzz.h - what fuzz targets share: a demand that ends them, a seeded random number, a change of a
   text, and their two ways to run: rounds of changed inputs (FUZZ_MAIN), or libFuzzer with the same
   seeds and changes, so that it does not begin before the first byte that means something.
 */
#ifndef TEST_FUZZ_H
#define TEST_FUZZ_H

#include <errno.h> /* program_invocation_short_name */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { FUZZ_INPUT = 1 << 16 }; /* bytes of the largest input */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Of each target, both in FUZZ_INPUT bytes: a whole input, 0 where there is none, and one change of
   an input. They return its length. With FUZZ_TEXT the change is that of a text, by a word. */
static size_t fuzz_seed(void *data);
static size_t fuzz_change(void *data, size_t length);
#ifdef FUZZ_TEXT
static const char *fuzz_word(void);
#endif

/* AddressSanitizer's: freed memory is held back for as long as some inputs take, in a megabyte that
   a cache holds instead of 256, and two callers of an allocation are noted. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) {
    return "quarantine_size_mb=1:thread_local_quarantine_size_kb=64:malloc_context_size=2";
}

/* What went wrong is left in a core or a sanitizer's report. */
static void fuzz_demand(int ok, const char *what) {
    if (ok) return;
    fprintf(stderr, "%s: %s\n", program_invocation_short_name, what);
    abort();
}

/* A file into `most` bytes; its length, 0 without one. */
__attribute__((unused)) static size_t fuzz_file(const char *path, void *data, size_t most) {
    FILE *file = fopen(path, "rb");
    const size_t length = file == NULL ? 0 : fread(data, 1, most, file);
    if (file != NULL) (void)fclose(file);
    return length;
}

static uint64_t fuzz_state;
/* splitmix64; 0..n-1 */
__attribute__((unused)) static size_t fuzz_below(size_t n) {
    uint64_t x = fuzz_state += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return (size_t)((x ^ (x >> 31)) % n);
}

/* What means something in most texts, or one of the target's own words. */
__attribute__((unused)) static const char *fuzz_one_of(const char *const *own, size_t n) {
    static const char *const common[] = {"{",
                                         "}",
                                         "[",
                                         "]",
                                         ":",
                                         ",",
                                         "\"",
                                         "null",
                                         "true",
                                         "false",
                                         "0",
                                         "1",
                                         "-1",
                                         "0.5",
                                         "1e99",
                                         "-1e300",
                                         "1e-320",
                                         "inf",
                                         "nan",
                                         "0x10",
                                         "9007199254740993",
                                         "18446744073709551616",
                                         "\\u0000",
                                         " ",
                                         "\n",
                                         "#"};
    return fuzz_below(2) ? own[fuzz_below(n)] : common[fuzz_below(sizeof common / sizeof *common)];
}
#define FUZZ_ONE_OF(own) fuzz_one_of(own, sizeof own / sizeof *own)

#ifdef FUZZ_TEXT
/* Replaces up to 8 bytes somewhere by a word, a byte or nothing. */
static size_t fuzz_change(void *data, size_t length) {
    char *text = (char *)data, byte[2] = {(char)fuzz_below(256), 0};
    const size_t at = fuzz_below(length + 1);
    const size_t left = length - at, most = left < 8 ? left : 8, gone = fuzz_below(most + 1);
    const char *in = fuzz_below(3) ? fuzz_word() : byte;
    const size_t n = fuzz_below(6) ? strlen(in) : 0;
    if (length + n >= FUZZ_INPUT) return length;
    memmove(text + at + n, text + at + gone, left - gone);
    memcpy(text + at, in, n);
    return length - gone + n;
}
#endif

static char **fuzz_given; /* files of the command line */
static size_t fuzz_ngiven;
/* One of them, of FUZZ_INPUT bytes at most; an empty one without. */
__attribute__((unused)) static size_t fuzz_any_given(void *data) {
    return fuzz_ngiven ? fuzz_file(fuzz_given[fuzz_below(fuzz_ngiven)], data, FUZZ_INPUT) : 0;
}

#ifdef FUZZ_MAIN
/* Bytes of exactly this length on the heap, so that a sanitizer sees the first one beyond. */
static void fuzz_try(const void *data, size_t length) {
    uint8_t *copy = (uint8_t *)malloc(length + !length);
    if (copy == NULL) return;
    memcpy(copy, data, length);
    (void)LLVMFuzzerTestOneInput(copy, length);
    free(copy);
}

/* `times` inputs, each with 1 to `most` changes. */
static void fuzz_round(const void *data, size_t length, int times, size_t most) {
    static uint8_t changed[FUZZ_INPUT + 16];
    for (int i = 0; i < times; i++) {
        size_t n = length;
        memcpy(changed, data, length);
        for (size_t k = 1 + fuzz_below(most); k > 0; k--) n = fuzz_change(changed, n);
        fuzz_try(changed, n);
    }
}

/* PROGRAM SECONDS SEED [FILE...]: the files as they are, then seeds and `times` changed ones of
   each. What main returns. */
static int fuzz_main(int argc, char **argv, int times, size_t most) {
    static uint8_t data[FUZZ_INPUT];
    const time_t end = time(NULL) + (argc > 1 ? atol(argv[1]) : 1);
    long runs = 0;
    fuzz_state = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    if (argc > 3) {
        fuzz_given = argv + 3;
        fuzz_ngiven = (size_t)argc - 3;
    }
    for (size_t i = 0; i < fuzz_ngiven; i++, runs++)
        fuzz_try(data, fuzz_file(fuzz_given[i], data, sizeof data));
    for (; time(NULL) < end; runs += 1 + times) {
        const size_t length = fuzz_seed(data);
        fuzz_try(data, length);
        fuzz_round(data, length, times, most);
    }
    printf("%ld passed, 0 failed\n", runs);
    return 0;
}
#else
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t room);

/* libFuzzer's hook: a seed instead of nothing (its own first inputs are empty and one byte), else
   the target's change or one of libFuzzer's. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t room, unsigned int seed);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t room, unsigned int seed) {
    static uint8_t changed[FUZZ_INPUT + 16];
    size_t n = 0;
    fuzz_state = seed;
    if (size < 2 || fuzz_below(200) == 0) n = fuzz_seed(changed);
    if (n == 0 && size > 1 && size <= FUZZ_INPUT && fuzz_below(2)) {
        memcpy(changed, data, size);
        n = fuzz_change(changed, size);
    }
    if (n == 0 || n > room) return LLVMFuzzerMutate(data, size, room);
    memcpy(data, changed, n);
    return n;
}
#endif

#endif

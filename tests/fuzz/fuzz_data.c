/* fuzz_data - any bytes as a token file, a file of examples and a tokenizer; what is accepted holds
   what its header says, every token below the vocabulary. Two ways to build it:
     clang -fsanitize=fuzzer,address,undefined: a libFuzzer target
     cc -DFUZZ_MAIN: fuzz_data SECONDS SEED [FILE...] changes files of its own at random, and prints
       `N passed, N failed` */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "../../data/eval_file.h"
#include "../../data/token_file.h"
#include "../../data/tokenizer.h"

#include <sys/mman.h>
#include <unistd.h>

#include "fuzz.h"

enum { FUZZ_VOCABULARY = 300 };

static char fuzz_path[64]; /* of the input, in memory */
static char fuzz_error[200];

static void fuzz_put(const uint8_t *data, size_t size) {
    static int in = -1;
    static size_t before;
    if (in < 0) {
        in = memfd_create("fuzz", MFD_CLOEXEC);
        (void)snprintf(fuzz_path, sizeof fuzz_path, "/proc/self/fd/%d", in);
    }
    fuzz_demand(pwrite(in, data, size, 0) == (ssize_t)size
                    && (size >= before || ftruncate(in, (off_t)size) == 0),
                "no memory");
    before = size;
}

static int fuzz_opened(data_result r) {
    fuzz_demand(r == DATA_OK || strlen(fuzz_error) > 10, "an error without a sentence");
    return r == DATA_OK;
}

static void fuzz_below_vocabulary(const uint16_t *tokens, size_t count) {
    for (size_t i = 0; i < count; i++)
        fuzz_demand(tokens[i] < FUZZ_VOCABULARY, "a token that is none");
}

static void fuzz_tokens(size_t size) {
    static uint16_t tokens[FUZZ_INPUT];
    token_file f;
    if (!fuzz_opened(
            token_file_open(&f, fuzz_path, FUZZ_VOCABULARY, fuzz_error, sizeof fuzz_error)))
        return;
    fuzz_demand(f.count > 0 && DATA_HEADER_BYTES + 2 * f.count == size, "another length");
    fuzz_demand(token_file_read(&f, 0, f.count, tokens, fuzz_error, sizeof fuzz_error) == DATA_OK,
                "what was opened cannot be read");
    fuzz_below_vocabulary(tokens, f.count);
    token_file_close(&f);
}

static void fuzz_examples(void) {
    eval_file f;
    eval_example one;
    if (!fuzz_opened(eval_file_open(&f, fuzz_path, FUZZ_VOCABULARY, fuzz_error, sizeof fuzz_error)))
        return;
    for (uint32_t i = 0; i < f.count; i++) {
        fuzz_demand(eval_file_read(&f, i, &one, fuzz_error, sizeof fuzz_error) == DATA_OK,
                    "what was opened cannot be read");
        fuzz_demand(one.label >= 0 && one.label < EVAL_COMPLETIONS && one.context > 0, "a label");
        fuzz_below_vocabulary(one.tokens, (size_t)one.context);
        for (int k = 0; k < EVAL_COMPLETIONS; k++) {
            fuzz_demand(one.completion[k].count > 0
                            && one.context + one.completion[k].count <= f.longest,
                        "a length");
            fuzz_below_vocabulary(one.completion[k].tokens, (size_t)one.completion[k].count);
        }
    }
    eval_file_close(&f);
}

static void fuzz_words(size_t size) {
    tokenizer words;
    size_t length, sum = DATA_HEADER_BYTES, all = 0;
    if (!fuzz_opened(tokenizer_open(&words, fuzz_path, fuzz_error, sizeof fuzz_error))) return;
    for (uint32_t i = 0; i < words.count; i++) {
        const unsigned char *bytes = tokenizer_bytes(&words, i, &length);
        fuzz_demand(bytes != NULL && length > 0, "a token without bytes");
        for (size_t k = 0; k < length; k++) all += bytes[k];
        sum += 1 + length;
    }
    fuzz_demand(sum == size && all <= 255 * size && words.end_of_text < words.count,
                "another length");
    fuzz_demand(tokenizer_bytes(&words, words.count, &length) == NULL && length == 0,
                "a token too many");
    tokenizer_close(&words);
}

/* A file that has one reader's magic number goes to that reader alone. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint32_t magic = 0;
    memcpy(&magic, data, size < sizeof magic ? 0 : sizeof magic);
    const int tokens = magic == TOKEN_FILE_MAGIC, examples = magic == EVAL_FILE_MAGIC,
              words = magic == TOKENIZER_MAGIC;
    fuzz_put(data, size);
    if (!examples && !words) fuzz_tokens(size);
    if (!tokens && !words) fuzz_examples();
    if (!tokens && !examples) fuzz_words(size);
    return 0;
}

/* An example of `numbers`, at `to`: returns how many numbers it has. */
static size_t fuzz_example(uint16_t *to, uint16_t index) {
    size_t n = 5;
    for (int part = 0; part <= EVAL_COMPLETIONS; part++) {
        const size_t tokens = 1 + fuzz_below(6);
        to[n++] = (uint16_t)tokens;
        for (size_t i = 0; i < tokens; i++) to[n++] = (uint16_t)fuzz_below(FUZZ_VOCABULARY);
    }
    to[0] = 65535;
    to[1] = (uint16_t)(2 * n);
    to[2] = index;
    to[3] = (uint16_t)fuzz_below(EVAL_COMPLETIONS);
    to[4] = EVAL_COMPLETIONS;
    return n;
}

/* A whole file of one of the three kinds; its length. */
static size_t fuzz_seed(void *data) {
    static const uint32_t magic[3] = {TOKEN_FILE_MAGIC, EVAL_FILE_MAGIC, TOKENIZER_MAGIC};
    const size_t kind = fuzz_below(3), count = 1 + fuzz_below(kind == 1 ? 4 : 40);
    uint32_t *header = (uint32_t *)data;
    uint8_t *bytes = (uint8_t *)data + DATA_HEADER_BYTES, *at = bytes;
    if (fuzz_ngiven && fuzz_below(4) == 0) return fuzz_any_given(data);
    memset(data, 0, DATA_HEADER_BYTES);
    header[0] = magic[kind];
    header[1] = kind == 2 ? TOKENIZER_VERSION : 1;
    header[2] = (uint32_t)count;
    header[3] = (uint32_t)fuzz_below(count);
    for (size_t i = 0; i < count; i++) {
        if (kind == 0) ((uint16_t *)(void *)bytes)[i] = (uint16_t)fuzz_below(FUZZ_VOCABULARY);
        if (kind == 0) at += 2;
        if (kind == 1) at += 2 * fuzz_example((uint16_t *)(void *)at, (uint16_t)i);
        if (kind != 2) continue;
        *at = (uint8_t)(1 + fuzz_below(7));
        memset(at + 1, 'a' + (int)(i % 26), *at);
        at += 1 + *at;
    }
    return (size_t)(at - (uint8_t *)data);
}

/* A number of the header or behind it, some bytes, or the length. Returns the new length. */
static size_t fuzz_change(void *bytes, size_t length) {
    uint8_t *data = (uint8_t *)bytes;
    const uint32_t number = fuzz_below(3) ? (uint32_t)fuzz_below(80) - 8 : 65535;
    const size_t how = fuzz_below(8);
    if (how == 0) return fuzz_below(length + 1);
    if (how == 1 && length + 8 < FUZZ_INPUT) {
        memset(data + length, (int)fuzz_below(256), 8);
        return length + 1 + fuzz_below(8);
    }
    if (length < 20) return length;
    const size_t at = how < 4 || length < DATA_HEADER_BYTES + 8
                          ? 4 * fuzz_below(5)
                          : DATA_HEADER_BYTES + fuzz_below(length - DATA_HEADER_BYTES - 4) / 2 * 2;
    memcpy(data + at, &number, how < 6 ? 4 : 1 + fuzz_below(2));
    return length;
}

#ifdef FUZZ_MAIN
int main(int argc, char **argv) { return fuzz_main(argc, argv, 200, 3); }
#endif

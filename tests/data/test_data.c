/* test_data.c: the readers of data/ against good files and against every kind of bad one.
 *
 *     test_data TEXT CHAR_PREFIX GPT2_PREFIX SCRATCH_FOLDER
 *
 * The prefixes name what `tokens` wrote from TEXT. A line per check, "ok" or "FAIL" first.
 */
#include "../../data/eval_file.h"
#include "../../data/token_file.h"
#include "../../data/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures;
static char scratch[512]; /* the path of the file that a bad case is written to */

static void check(int passed, const char *name, const char *detail) {
    printf("%s %s%s%s\n", passed ? "ok  " : "FAIL", name, passed ? "" : ": ", passed ? "" : detail);
    failures += !passed;
}

static void broken(const char *what) {
    printf("FAIL the test itself: %s\n", what);
    exit(1);
}

static void write_file(const unsigned char *bytes, size_t length) {
    FILE *stream = fopen(scratch, "wb");
    if (stream == NULL || fwrite(bytes, 1, length, stream) != length || fclose(stream) != 0) {
        broken(scratch);
    }
}

static unsigned char *read_file(const char *path, size_t *length) {
    FILE *stream = fopen(path, "rb");
    if (stream == NULL || fseek(stream, 0, SEEK_END) != 0) { broken(path); }
    *length = (size_t)ftell(stream);
    unsigned char *bytes = malloc(*length + 1);
    rewind(stream);
    if (bytes == NULL || fread(bytes, 1, *length, stream) != *length) { broken(path); }
    fclose(stream);
    return bytes;
}

/* ---- what `tokens` wrote decodes to the text ---- */

static const char *joined(const char *prefix, const char *suffix) {
    static char path[1024];
    snprintf(path, sizeof path, "%s%s", prefix, suffix);
    return path;
}

/* Appends the bytes of one token file, without the tokens that are `skip`. */
static size_t decode(const char *path, const tokenizer *words, uint32_t skip, unsigned char *out,
                     size_t room) {
    token_file file;
    char error[256];
    size_t used = 0;
    if (token_file_open(&file, path, words->count, error, sizeof error) != DATA_OK) {
        broken(error);
    }
    for (size_t i = 0; i < file.count; i++) {
        size_t length;
        uint16_t token;
        if (token_file_read(&file, i, 1, &token, error, sizeof error) != DATA_OK) { broken(error); }
        const unsigned char *bytes = tokenizer_bytes(words, token, &length);
        if (bytes == NULL || used + length > room) {
            broken("more bytes decoded than the text has");
        }
        if (token != skip) {
            memcpy(out + used, bytes, length);
            used += length;
        }
    }
    token_file_close(&file);
    return used;
}

/* first and second: the parts in the order of the text. Validation comes first in a GPT-2 set. */
static void round_trip(const char *name, const char *text_path, const char *prefix,
                       const char *first, const char *second, int markers) {
    size_t length, used;
    char error[256] = "the decoded text differs";
    unsigned char *text = read_file(text_path, &length);
    unsigned char *decoded = malloc(length + 1024);
    tokenizer words;
    if (decoded == NULL
        || tokenizer_open(&words, joined(prefix, "_tokenizer.bin"), error, sizeof error)
               != DATA_OK) {
        broken(error);
    }
    uint32_t skip = markers ? words.end_of_text : words.count;
    used = decode(joined(prefix, first), &words, skip, decoded, length + 1024);
    used += decode(joined(prefix, second), &words, skip, decoded + used, length + 1024 - used);
    check(used == length && memcmp(decoded, text, length) == 0, name, error);
    tokenizer_close(&words);
    free(decoded);
    free(text);
}

static void test_tokenizers(const char *char_prefix, const char *gpt2_prefix) {
    tokenizer words;
    char error[256] = "";
    size_t length;
    tokenizer_open(&words, joined(gpt2_prefix, "_tokenizer.bin"), error, sizeof error);
    check(words.count == 50257 && words.end_of_text == 50256, "GPT-2 has 50257 tokens", error);
    const unsigned char *bytes = tokenizer_bytes(&words, 50256, &length);
    check(length == 13 && memcmp(bytes, "<|endoftext|>", 13) == 0, "its last ends a text", error);
    bytes = tokenizer_bytes(&words, 50257, &length);
    check(bytes == NULL && length == 0, "no bytes for a token that does not exist", "found some");
    tokenizer_close(&words);
    tokenizer_close(&words);
    check(words.count == 0 && tokenizer_bytes(&words, 0, &length) == NULL, "closed twice, empty",
          "still has tokens");
    tokenizer_open(&words, joined(char_prefix, "_tokenizer.bin"), error, sizeof error);
    bytes = tokenizer_bytes(&words, words.end_of_text, &length);
    check(length == 1 && bytes[0] == '\n', "characters start a sample with a newline", error);
    tokenizer_close(&words);
}

/* ---- bad files: a good one with one int32 replaced, or cut or grown to another length ---- */

typedef struct {
    const char *name;
    size_t at;      /* byte offset of the int32 that is replaced */
    uint32_t value; /* what by */
    size_t length;  /* of the file, in bytes */
    const char *sentence;
} bad_case;

enum { TOKENS_LENGTH = 1024 + 5 * 2, WORDS_LENGTH = 1024 + 2 + 3 + 4, VOCABULARY = 10 };

static void put(unsigned char *bytes, size_t at, uint32_t value) {
    memcpy(bytes + at, &value, sizeof value);
}

/* Tokens 0 1 2 3 9, and zeros behind them for the cases that grow. */
static void good_tokens(unsigned char bytes[2048]) {
    static const uint16_t tokens[5] = {0, 1, 2, 3, VOCABULARY - 1};
    memset(bytes, 0, 2048);
    put(bytes, 0, 20240520);
    put(bytes, 4, 1);
    put(bytes, 8, 5);
    memcpy(bytes + 1024, tokens, sizeof tokens);
}

/* Tokens "a", "bc", "def", the last one for the end of text. */
static void good_words(unsigned char bytes[2048]) {
    memset(bytes, 0, 2048);
    put(bytes, 0, 20240328);
    put(bytes, 4, 2);
    put(bytes, 8, 3);
    put(bytes, 12, 2);
    memcpy(bytes + 1024, "\1a\2bc\3def", 9);
}

static const bad_case bad_tokens[] = {
    {"tokens: empty file", 0, 20240520, 0, "expected a header of 1024 bytes, found a file of 0"},
    {"tokens: header cut", 0, 20240520, 1023, "expected a header of 1024 bytes, found a file of 1"},
    {"tokens: magic", 0, 20240328, TOKENS_LENGTH, "expected magic number 20240520, found 20240328"},
    {"tokens: version", 4, 2, TOKENS_LENGTH, "expected version 1, found 2"},
    {"tokens: none", 8, 0, 1024, "expected a number of tokens from 1 to 2147483647, found 0"},
    {"tokens: negative", 8, 0xffffffff, TOKENS_LENGTH, "from 1 to 2147483647, found -1"},
    {"tokens: count too small", 8, 4, TOKENS_LENGTH,
     "expected 1032 bytes for 4 tokens, found 1034"},
    {"tokens: count too large", 8, 6, TOKENS_LENGTH,
     "expected 1036 bytes for 6 tokens, found 1034"},
    {"tokens: cut in a token", 4, 1, TOKENS_LENGTH - 1,
     "expected 1034 bytes for 5 tokens, found 1033"},
    {"tokens: more than said", 4, 1, TOKENS_LENGTH + 2,
     "expected 1034 bytes for 5 tokens, found 1036"},
    {"tokens: not below V", 1028, 2 | VOCABULARY << 16, TOKENS_LENGTH,
     "expected tokens below 10, found 10 at index 3"},
    {"tokens: last not below V", 1030, 3 | 65535u << 16, TOKENS_LENGTH,
     "expected tokens below 10, found 65535 at index 4"},
};

static const bad_case bad_words[] = {
    {"tokenizer: empty file", 4, 2, 0, "expected a header of 1024 bytes, found a file of 0"},
    {"tokenizer: magic", 0, 20240520, WORDS_LENGTH, "magic number 20240328, found 20240520"},
    {"tokenizer: version", 4, 3, WORDS_LENGTH, "expected version 1 or 2, found 3"},
    {"tokenizer: version 1, not GPT-2", 4, 1, WORDS_LENGTH, "50257 tokens in version 1, found 3"},
    {"tokenizer: no tokens", 8, 0, WORDS_LENGTH, "expected 1 to 4 tokens in 1033 bytes, found 0"},
    {"tokenizer: huge count", 8, 0xffffffff, WORDS_LENGTH, "in 1033 bytes, found 4294967295"},
    {"tokenizer: end of text", 12, 3, WORDS_LENGTH, "end-of-text token below 3, found 3"},
    {"tokenizer: length 0", 1024, 'a' << 8, WORDS_LENGTH,
     "expected token 0 of 3 at byte 1024, found length 0"},
    {"tokenizer: cut before a token", 4, 2, WORDS_LENGTH - 4,
     "expected 1 to 2 tokens in 1029 bytes, found 3"},
    {"tokenizer: ends early", 1024, 0x62026104, WORDS_LENGTH, /* length 4 instead of 1 */
     "expected token 2 of 3 at byte 1033, found the end of the file"},
    {"tokenizer: cut in a token", 4, 2, WORDS_LENGTH - 1,
     "expected token 2 of 3 at byte 1029, found the end of the file"},
    {"tokenizer: more than said", 4, 2, WORDS_LENGTH + 1,
     "expected the file to end at byte 1033, found 1034 bytes"},
};

/* Opens the scratch file with either reader; on success closes it again. */
static data_result try_open(int words, char *error, size_t error_bytes, int *cleared) {
    token_file tokens;
    tokenizer names;
    data_result result;
    if (words) {
        result = tokenizer_open(&names, scratch, error, error_bytes);
        *cleared = names.count == 0 && names.offsets == NULL && names.bytes == NULL;
        tokenizer_close(&names);
    } else {
        result = token_file_open(&tokens, scratch, VOCABULARY, error, error_bytes);
        *cleared = tokens.count == 0 && tokens.file.path == NULL;
        token_file_close(&tokens);
    }
    return result;
}

static void test_bad(const bad_case *cases, size_t count, int words) {
    for (size_t i = 0; i < count; i++) {
        unsigned char bytes[2048];
        char error[1024] = "no error";
        int cleared;
        (words ? good_words : good_tokens)(bytes);
        put(bytes, cases[i].at, cases[i].value);
        write_file(bytes, cases[i].length);
        data_result result = try_open(words, error, sizeof error, &cleared);
        check(result == DATA_FORMAT && cleared && strstr(error, cases[i].sentence) != NULL
                  && strncmp(error, scratch, strlen(scratch)) == 0 && strchr(error, '\n') == NULL,
              cases[i].name, error);
    }
}

/* A file cut anywhere is an error; the whole one is not. */
static void test_every_length(int words, size_t length, const char *name) {
    unsigned char bytes[2048];
    char error[1024], detail[64] = "";
    int cleared, wrong = 0;
    (words ? good_words : good_tokens)(bytes);
    for (size_t cut = 0; cut <= length; cut++) {
        write_file(bytes, cut);
        data_result wanted = cut == length ? DATA_OK : DATA_FORMAT;
        if (try_open(words, error, sizeof error, &cleared) != wanted) {
            wrong++;
            snprintf(detail, sizeof detail, "wrong result at length %u", (unsigned)cut);
        }
    }
    check(wrong == 0, name, detail);
}

static void test_version_1(void) {
    size_t length = 1024 + 2 * 50257;
    unsigned char *bytes = calloc(length, 1);
    tokenizer words;
    char error[1024] = "";
    if (bytes == NULL) { broken("no memory"); }
    put(bytes, 0, 20240328);
    put(bytes, 4, 1);
    put(bytes, 8, 50257);
    for (size_t i = 1024; i < length; i += 2) { bytes[i] = 1; }
    write_file(bytes, length);
    data_result result = tokenizer_open(&words, scratch, error, sizeof error);
    check(result == DATA_OK && words.end_of_text == 50256, "tokenizer: version 1", error);
    tokenizer_close(&words);
    free(bytes);
}

static void test_system_errors(const char *folder) {
    token_file tokens;
    tokenizer words;
    char error[1024] = "", small[8] = "1234567";
    remove(scratch);
    data_result result = token_file_open(&tokens, scratch, VOCABULARY, error, sizeof error);
    check(result == DATA_SYSTEM && strstr(error, "expected a readable file, found: ") != NULL,
          "tokens: no such file", error);
    result = tokenizer_open(&words, scratch, error, sizeof error);
    check(result == DATA_SYSTEM && strstr(error, "expected a readable file, found: ") != NULL,
          "tokenizer: no such file", error);
    result = token_file_open(&tokens, folder, VOCABULARY, error, sizeof error);
    check(result == DATA_FORMAT && strstr(error, "expected a regular file") != NULL,
          "tokens: a folder", error);
    result = tokenizer_open(&words, folder, small, sizeof small);
    check(result == DATA_FORMAT && strncmp(small, folder, 7) == 0 && small[7] == '\0',
          "a sentence is cut to the buffer", small);
    check(tokenizer_open(&words, folder, NULL, 0) == DATA_FORMAT, "no buffer, still a code", "");
}

/* A file that changes while it is open: an error that names it, where a mapping would be a fault.
 */
static void test_changing_file(void) {
    unsigned char bytes[2048];
    uint16_t tokens[5];
    token_file file;
    char error[256] = "";
    good_tokens(bytes);
    write_file(bytes, TOKENS_LENGTH);
    if (token_file_open(&file, scratch, VOCABULARY, error, sizeof error) != DATA_OK) {
        broken(error);
    }
    check(token_file_read(&file, 3, 2, tokens, error, sizeof error) == DATA_OK && tokens[0] == 3
              && tokens[1] == VOCABULARY - 1,
          "tokens are read where they are", error);
    put(bytes, 1024, VOCABULARY);
    write_file(bytes, TOKENS_LENGTH);
    check(token_file_read(&file, 0, 5, tokens, error, sizeof error) == DATA_FORMAT
              && strstr(error, "expected tokens below 10, found 10 at index 0") != NULL
              && strstr(error, scratch) == error,
          "a token that was changed", error);
    write_file(bytes, TOKENS_LENGTH - 2);
    check(token_file_read(&file, 1, 4, tokens, error, sizeof error) == DATA_FORMAT
              && strstr(error, "it had 1034 bytes when it was opened, and has 1032 now") != NULL
              && strstr(error, scratch) == error,
          "a file that was cut", error);
    token_file_close(&file);
    token_file_close(&file);
}

/* ---- multiple-choice examples ---- */

/* Two examples: 65535, bytes, index, label, completions; context; completions. Each number is at
 * byte 1024 + 2 * its index here. */
static const uint16_t good_examples[] = {
    65535, 38, 0, 2, 4, 3, 1, 2, 3, 1, 4, 2, 5, 6, 1, 7, 2, 8, 9, /* 19 numbers */
    65535, 30, 1, 0, 4, 1, 9, 1, 1, 1, 2, 1, 3, 1, 4,             /* 15 */
};
enum { EXAMPLE_NUMBERS = sizeof good_examples / sizeof *good_examples };

static size_t make_examples(unsigned char *bytes, size_t number, uint16_t value) {
    memset(bytes, 0, 2048);
    put(bytes, 0, EVAL_FILE_MAGIC);
    put(bytes, 4, EVAL_FILE_VERSION);
    put(bytes, 8, 2);
    for (size_t i = 0; i < EXAMPLE_NUMBERS; i++) {
        const uint16_t n = i == number ? value : good_examples[i];
        bytes[1024 + 2 * i] = (unsigned char)(n & 255);
        bytes[1024 + 2 * i + 1] = (unsigned char)(n >> 8);
    }
    return 1024 + 2 * EXAMPLE_NUMBERS;
}

static void test_examples(void) {
    unsigned char bytes[2048];
    char error[1024] = "";
    eval_file file;
    eval_example one;
    write_file(bytes, make_examples(bytes, EXAMPLE_NUMBERS, 0));
    int ok = eval_file_open(&file, scratch, VOCABULARY, error, sizeof error) == DATA_OK;
    check(ok && file.count == 2 && file.longest == 5, "examples: a good file", error);
    if (!ok) { return; }
    ok = eval_file_read(&file, 1, &one, error, sizeof error) == DATA_OK && one.label == 0
         && one.context == 1 && one.tokens[0] == 9 && one.completion[3].tokens[0] == 4;
    check(ok, "examples: the second one first", error);
    ok = eval_file_read(&file, 0, &one, error, sizeof error) == DATA_OK && one.label == 2
         && one.context == 3 && one.tokens[2] == 3 && one.completion[1].count == 2
         && one.completion[1].tokens[1] == 6 && one.completion[2].tokens[0] == 7;
    check(ok, "examples: then the first", error);
    bytes[1024 + 2 * 7] = VOCABULARY;
    write_file(bytes, 1024 + 2 * EXAMPLE_NUMBERS);
    ok = eval_file_read(&file, 0, &one, error, sizeof error) == DATA_FORMAT
         && strstr(error, "byte 1038: expected tokens below 10 in example 0, found 10") != NULL;
    check(ok, "examples: a token that was changed", error);
    eval_file_close(&file);
    eval_file_close(&file);
}

/* Every number that can be wrong: the sentence has the file and the byte. */
static void test_bad_examples(void) {
    static const struct {
        size_t number;
        uint16_t value;
        const char *sentence;
    } cases[] = {
        {0, 1, "byte 1024: expected 65535"},
        {1, 37, "byte 1026: expected an even number of bytes"},
        {1, 4, "byte 1026: expected an even number of bytes"},
        {1, 2000, "byte 1026: expected an even number of bytes"},
        {1, 36, "byte 1060: example 0 ends within its tokens"},
        {1, 40, "byte 1062: expected the end of its last completion"},
        {2, 7, "byte 1028: expected its own index in example 0, found 7"},
        {3, 4, "byte 1030: expected a label of 0 to 3 in example 0, found 4"},
        {4, 3, "byte 1032: expected 4 completions in example 0, found 3"},
        {5, 0, "byte 1034: expected at least one token"},
        {5, 60000, "byte 1062: example 0 ends within its tokens"},
        {9, 0, "byte 1042: expected at least one token"},
        {13, 10, "byte 1050: expected tokens below 10 in example 0, found 10"},
        {19, 65534, "byte 1062: expected 65535"},
        {21, 0, "byte 1066: expected its own index in example 1, found 0"},
    };
    unsigned char bytes[2048];
    char error[1024], name[64];
    eval_file file;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_file(bytes, make_examples(bytes, cases[i].number, cases[i].value));
        error[0] = '\0';
        const data_result result = eval_file_open(&file, scratch, VOCABULARY, error, sizeof error);
        snprintf(name, sizeof name, "examples: number %u is %u", (unsigned)cases[i].number,
                 cases[i].value);
        check(result == DATA_FORMAT && strncmp(error, scratch, strlen(scratch)) == 0
                  && strstr(error, cases[i].sentence) != NULL,
              name, error);
        eval_file_close(&file);
    }
    int wrong = 0;
    const size_t length = make_examples(bytes, EXAMPLE_NUMBERS, 0);
    for (size_t cut = 0; cut < length; cut++) {
        write_file(bytes, cut);
        wrong += eval_file_open(&file, scratch, VOCABULARY, error, sizeof error) != DATA_FORMAT;
    }
    check(wrong == 0, "examples: cut at every byte", "wrong result");
    write_file(bytes, length + 2);
    check(eval_file_open(&file, scratch, VOCABULARY, error, sizeof error) == DATA_FORMAT
              && strstr(error, "byte 1092: expected the end of the file") != NULL,
          "examples: more than it says", error);
    put(bytes, 8, 0);
    write_file(bytes, length);
    check(eval_file_open(&file, scratch, VOCABULARY, error, sizeof error) == DATA_FORMAT
              && strstr(error, "byte 8: expected 1 to 65535 examples, found 0") != NULL,
          "examples: none", error);
}

int main(int argc, char **argv) {
    if (argc != 5) {
        fputs("usage: test_data TEXT CHAR_PREFIX GPT2_PREFIX SCRATCH_FOLDER\n", stderr);
        return 2;
    }
    snprintf(scratch, sizeof scratch, "%s/scratch.bin", argv[4]);
    round_trip("characters decode to the text", argv[1], argv[2], "_train.bin", "_val.bin", 0);
    round_trip("GPT-2 tokens decode to the text", argv[1], argv[3], "_val.bin", "_train.bin", 1);
    test_tokenizers(argv[2], argv[3]);
    test_bad(bad_tokens, sizeof bad_tokens / sizeof *bad_tokens, 0);
    test_bad(bad_words, sizeof bad_words / sizeof *bad_words, 1);
    test_every_length(0, TOKENS_LENGTH, "tokens: cut at every byte");
    test_every_length(1, WORDS_LENGTH, "tokenizer: cut at every byte");
    test_version_1();
    test_changing_file();
    test_examples();
    test_bad_examples();
    test_system_errors(argv[4]);
    return failures != 0;
}

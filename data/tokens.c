/* tokens.c: convert a text to the token files that llm.c-style trainers read.
 *
 *     tokens char TEXT OUT_PREFIX [VAL_SHARE]
 *     tokens gpt2 TEXT OUT_PREFIX VOCABULARY.tiktoken
 *
 * Both write OUT_PREFIX_train.bin, OUT_PREFIX_val.bin (format: token_file.h) and
 * OUT_PREFIX_tokenizer.bin (format: tokenizer.h). Each file has a temporary name until it is
 * complete.
 *
 *     cc -std=c11 -O2 tokens.c -lpcre2-8 -o tokens
 *
 * Every error ends the program with one line on stderr and status 1, or 2 for a wrong command
 * line. */
#define _POSIX_C_SOURCE       200809L
#define PCRE2_CODE_UNIT_WIDTH 8

#include "token_file.h"
#include "tokenizer.h"

#include <errno.h>
#include <pcre2.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the files are little-endian");

enum {
    MAX_KINDS = 65535,        /* number of different tokens: ids are uint16 */
    MAX_TOKEN_BYTES = 255,    /* a tokenizer file has one byte for the length */
    SLOTS = 1 << 17,          /* of the hash table: a power of two, at least twice MAX_KINDS */
    VALIDATION_TOKENS = 32768 /* as llm.c takes from the beginning of tiny Shakespeare */
};

#define NO_TOKEN UINT32_MAX

/* ---- errors and memory ---- */

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
_Noreturn static void
fail(const char *file, const char *format, ...) {
    va_list arguments;
    fprintf(stderr, "tokens: %s: ", file);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

static void *allocate(const char *file, size_t bytes) {
    void *memory = calloc(bytes, 1);
    if (memory == NULL) { fail(file, "expected %zu bytes of memory, found none", bytes); }
    return memory;
}

/* ---- reading and writing files ---- */

typedef struct {
    const char *file; /* its name, for messages; borrowed */
    unsigned char *bytes;
    size_t length;
} text;

/* Reads until the end instead of asking for the size, so that a pipe works, too. */
static text text_read(const char *file) {
    FILE *stream = fopen(file, "rb");
    if (stream == NULL) { fail(file, "expected a readable file, found: %s", strerror(errno)); }
    size_t capacity = 1 << 20;
    text result = {file, allocate(file, capacity), 0};
    size_t got;
    while ((got = fread(result.bytes + result.length, 1, capacity - result.length, stream)) > 0) {
        result.length += got;
        if (result.length == capacity) {
            capacity *= 2;
            unsigned char *larger = realloc(result.bytes, capacity);
            if (larger == NULL) {
                fail(file, "expected %zu bytes of memory, found none", capacity);
            }
            result.bytes = larger;
        }
    }
    if (ferror(stream)) {
        fail(file, "expected to read it to the end, found: %s", strerror(errno));
    }
    fclose(stream);
    if (result.length == 0) { fail(file, "expected at least 1 byte, found an empty file"); }
    return result;
}

typedef struct {
    char *path;
    char *temporary;
    FILE *stream;
} output;

_Noreturn static void output_fail(output *out) {
    int reason = errno;
    unlink(out->temporary);
    fail(out->path, "expected to write it, found: %s", strerror(reason));
}

static output output_open(const char *prefix, const char *suffix) {
    output out;
    size_t bytes = strlen(prefix) + strlen(suffix) + 32;
    out.path = allocate(prefix, bytes);
    out.temporary = allocate(prefix, bytes);
    snprintf(out.path, bytes, "%s%s", prefix, suffix);
    /* With the process id, so that two simultaneous runs never write to one file. */
    snprintf(out.temporary, bytes, "%s.%ld.tmp", out.path, (long)getpid());
    out.stream = fopen(out.temporary, "wb");
    if (out.stream == NULL) { output_fail(&out); }
    return out;
}

static void output_write(output *out, const void *data, size_t bytes) {
    if (fwrite(data, 1, bytes, out->stream) != bytes) { output_fail(out); }
}

static void output_header(output *out, uint32_t magic, uint32_t version, size_t count,
                          size_t end_of_text) {
    uint32_t header[DATA_HEADER_INTS] = {magic, version, (uint32_t)count, (uint32_t)end_of_text};
    output_write(out, header, sizeof header);
}

/* The rename comes after the data has reached the disk: a crash leaves the old file or the new. */
static void output_close(output *out) {
    if (fflush(out->stream) != 0 || fsync(fileno(out->stream)) != 0) { output_fail(out); }
    if (fclose(out->stream) != 0 || rename(out->temporary, out->path) != 0) { output_fail(out); }
    free(out->path);
    free(out->temporary);
}

static void write_tokens(const char *prefix, const char *suffix, const uint16_t *tokens,
                         size_t count) {
    output out = output_open(prefix, suffix);
    output_header(&out, TOKEN_FILE_MAGIC, TOKEN_FILE_VERSION, count, 0);
    output_write(&out, tokens, count * sizeof *tokens);
    output_close(&out);
}

/* ---- vocabulary ---- */

/* Token i is bytes[offsets[i]] up to bytes[offsets[i + 1]]. */
typedef struct {
    uint32_t count;
    uint32_t offsets[MAX_KINDS + 1];
    uint32_t slots[SLOTS]; /* open addressing: token + 1, or 0 for a free slot */
    unsigned char bytes[(size_t)MAX_KINDS * MAX_TOKEN_BYTES];
} vocabulary;

static size_t vocabulary_length(const vocabulary *words, uint32_t token) {
    return words->offsets[token + 1] - words->offsets[token];
}

static uint32_t vocabulary_add(vocabulary *words, const char *file, const void *bytes,
                               size_t length) {
    if (words->count == MAX_KINDS) {
        fail(file, "expected at most %d token kinds, found more", (int)MAX_KINDS);
    }
    uint32_t token = words->count++;
    memcpy(words->bytes + words->offsets[token], bytes, length);
    words->offsets[token + 1] = words->offsets[token] + (uint32_t)length;
    return token;
}

/* Returns the slot of the token with these bytes, or the free slot for it. FNV-1a hash. */
static uint32_t vocabulary_slot(const vocabulary *words, const unsigned char *bytes,
                                size_t length) {
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < length; i++) { hash = (hash ^ bytes[i]) * 16777619u; }
    for (uint32_t slot = hash % SLOTS;; slot = (slot + 1) % SLOTS) {
        if (words->slots[slot] == 0) { return slot; }
        uint32_t token = words->slots[slot] - 1;
        if (vocabulary_length(words, token) == length
            && memcmp(words->bytes + words->offsets[token], bytes, length) == 0) {
            return slot;
        }
    }
}

static uint32_t vocabulary_find(const vocabulary *words, const unsigned char *bytes,
                                size_t length) {
    if (length > MAX_TOKEN_BYTES) { return NO_TOKEN; }
    uint32_t entry = words->slots[vocabulary_slot(words, bytes, length)];
    return entry == 0 ? NO_TOKEN : entry - 1;
}

static void write_tokenizer(const char *prefix, const vocabulary *words, uint32_t end_of_text) {
    output out = output_open(prefix, "_tokenizer.bin");
    output_header(&out, TOKENIZER_MAGIC, TOKENIZER_VERSION, words->count, end_of_text);
    for (uint32_t i = 0; i < words->count; i++) {
        unsigned char length = (unsigned char)vocabulary_length(words, i);
        output_write(&out, &length, 1);
        output_write(&out, words->bytes + words->offsets[i], length);
    }
    output_close(&out);
}

/* ---- reading a .tiktoken file: a line per token, base64 of its bytes, a space, its rank ---- */

static int base64_digit(char c) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *found = c == '\0' ? NULL : strchr(digits, c);
    return found == NULL ? -1 : (int)(found - digits);
}

/* Returns the number of bytes, or 0 if this is not base64 of 1 to MAX_TOKEN_BYTES bytes. */
static size_t base64_decode(const char *code, size_t length, unsigned char *bytes) {
    size_t count = 0, padding = 0;
    while (padding < 2 && padding < length && code[length - 1 - padding] == '=') { padding++; }
    if (length % 4 != 0 || length / 4 * 3 - padding > MAX_TOKEN_BYTES) { return 0; }
    uint32_t bits = 0;
    for (size_t i = 0; i < length - padding; i++) {
        int digit = base64_digit(code[i]);
        if (digit < 0) { return 0; }
        bits = bits << 6 | (uint32_t)digit;
        if (i % 4 != 0) { /* in each four digits, all but the first complete a byte */
            bytes[count++] = (unsigned char)(bits >> (6 - i % 4 * 2));
        }
    }
    return count;
}

static void vocabulary_line(vocabulary *words, const char *file, const char *line, size_t length) {
    unsigned char bytes[MAX_TOKEN_BYTES];
    char rank[16];
    uint32_t number = words->count + 1;
    const char *space = memchr(line, ' ', length);
    size_t code_length = space == NULL ? length : (size_t)(space - line);
    size_t count = base64_decode(line, code_length, bytes);
    if (count == 0) {
        fail(file, "expected base64 of 1 to %d bytes on line %u, found '%.*s'",
             (int)MAX_TOKEN_BYTES, number, (int)(code_length < 40 ? code_length : 40), line);
    }
    const char *found = space == NULL ? line + length : space + 1;
    size_t found_length = (size_t)(line + length - found);
    /* Line n has rank n - 1 as text, so gaps, duplicates, signs and trailing blanks are errors. */
    size_t rank_length = (size_t)snprintf(rank, sizeof rank, "%u", words->count);
    if (found_length != rank_length || memcmp(found, rank, rank_length) != 0) {
        fail(file, "expected rank %s on line %u, found '%.*s'", rank, number,
             (int)(found_length < 40 ? found_length : 40), found);
    }
    uint32_t slot = vocabulary_slot(words, bytes, count);
    if (words->slots[slot] != 0) {
        fail(file, "expected a new token on line %u, found that of line %u", number,
             words->slots[slot]);
    }
    words->slots[slot] = vocabulary_add(words, file, bytes, count) + 1;
}

static vocabulary *vocabulary_read(const char *file) {
    text source = text_read(file);
    vocabulary *words = allocate(file, sizeof *words);
    const char *line = (const char *)source.bytes, *end = line + source.length;
    while (line < end) {
        const char *newline = memchr(line, '\n', (size_t)(end - line));
        const char *line_end = newline == NULL ? end : newline;
        vocabulary_line(words, file, line, (size_t)(line_end - line));
        line = newline == NULL ? end : newline + 1;
    }
    free(source.bytes);
    for (unsigned i = 0; i < 256; i++) {
        unsigned char byte = (unsigned char)i;
        if (vocabulary_find(words, &byte, 1) == NO_TOKEN) {
            fail(file, "expected a token for each of the 256 bytes, found none for 0x%02x", i);
        }
    }
    return words;
}

/* ---- GPT-2's byte pair encoding ---- */

/* While a piece is joined together, part i is its bytes from parts[i].start to
 * parts[i + 1].start, and parts[i].rank is that of parts i and i + 1 joined:
 *
 *     | l | o | w | er |        start 0 1 2 3 5 (a last entry marks the end)
 *       lo  ow  wer  -          rank  of the pair that begins here, NO_TOKEN for none
 */
typedef struct {
    size_t start;
    uint32_t rank;
} part;

typedef struct {
    const vocabulary *words;
    pcre2_code *pattern;
    pcre2_match_data *match;
    part *parts; /* work space, grown to the longest piece */
    size_t capacity;
    uint16_t *tokens; /* output */
    size_t count;
    uint16_t end_of_text;
} encoder;

static void encoder_emit(encoder *e, uint32_t token) { e->tokens[e->count++] = (uint16_t)token; }

static uint32_t pair_rank(const encoder *e, const unsigned char *piece, size_t i, size_t count) {
    if (i + 2 > count) { return NO_TOKEN; }
    size_t start = e->parts[i].start;
    return vocabulary_find(e->words, piece + start, e->parts[i + 2].start - start);
}

static void split_into_bytes(encoder *e, const char *file, const unsigned char *piece,
                             size_t length) {
    if (length + 1 > e->capacity) {
        free(e->parts);
        e->capacity = 2 * (length + 1);
        e->parts = allocate(file, e->capacity * sizeof *e->parts);
    }
    for (size_t i = 0; i <= length; i++) { e->parts[i].start = i; }
    for (size_t i = 0; i < length; i++) { e->parts[i].rank = pair_rank(e, piece, i, length); }
}

/* Joins the adjacent pair with the lowest rank (the leftmost one of equal ranks) until no pair is a
 * token. The time is quadratic in the length of the piece, which is about one word. */
static void encode_piece(encoder *e, const char *file, const unsigned char *piece, size_t length) {
    uint32_t whole = vocabulary_find(e->words, piece, length);
    if (whole != NO_TOKEN) {
        encoder_emit(e, whole);
        return;
    }
    split_into_bytes(e, file, piece, length);
    part *parts = e->parts;
    for (size_t count = length;; count--) {
        size_t best = 0;
        for (size_t i = 1; i < count; i++) { best = parts[i].rank < parts[best].rank ? i : best; }
        if (parts[best].rank == NO_TOKEN) {
            for (size_t i = 0; i < count; i++) {
                encoder_emit(e, vocabulary_find(e->words, piece + parts[i].start,
                                                parts[i + 1].start - parts[i].start));
            }
            return;
        }
        memmove(parts + best + 1, parts + best + 2, (count - best - 1) * sizeof *parts);
        parts[best].rank = pair_rank(e, piece, best, count - 1);
        if (best > 0) { parts[best - 1].rank = pair_rank(e, piece, best - 1, count - 1); }
    }
}

/* GPT-2's rule for cutting a text into pieces: contractions, then words, numbers and punctuation
 * with one blank before them, then the remaining white space. Letters, numbers and white space are
 * Unicode's (PCRE2 also counts the format character U+180E as white space). */
static void compile_pattern(encoder *e, const char *file) {
    static const char pattern[] = "'(?:[smtd]|re|ve|ll)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+"
                                  "|\\s+(?!\\S)|\\s+";
    int code;
    PCRE2_SIZE offset;
    e->pattern = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                               PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &code, &offset, NULL);
    if (e->pattern == NULL) {
        fail(file, "expected PCRE2 with Unicode support, found its error %d", code);
    }
    pcre2_jit_compile(e->pattern, PCRE2_JIT_COMPLETE); /* failure only makes it slower */
    e->match = pcre2_match_data_create_from_pattern(e->pattern, NULL);
    if (e->match == NULL) { fail(file, "expected memory for a pattern match, found none"); }
}

/* PCRE2 checks the whole subject before it matches. This checks the text once, so that the matches
 * after it need no check. */
static void check_utf8(encoder *e, const text *source) {
    int found = pcre2_match(e->pattern, source->bytes, source->length, 0, 0, e->match, NULL);
    if (found <= PCRE2_ERROR_UTF8_ERR1 && found >= PCRE2_ERROR_UTF8_ERR21) {
        fail(source->file, "expected UTF-8, found an invalid sequence at byte offset %zu",
             pcre2_get_startchar(e->match));
    }
}

static void encode_section(encoder *e, const char *file, const unsigned char *section,
                           size_t length) {
    const PCRE2_SIZE *bounds = pcre2_get_ovector_pointer(e->match);
    encoder_emit(e, e->end_of_text);
    for (size_t at = 0; at < length; at = bounds[1]) {
        int found =
            pcre2_match(e->pattern, section, length, at, PCRE2_NO_UTF_CHECK, e->match, NULL);
        if (found < 1) {
            fail(file, "expected the pattern to match everywhere, found PCRE2's error %d", found);
        }
        encode_piece(e, file, section + at, bounds[1] - at);
    }
}

/* Returns the end of the section that begins at start: after the next blank line, or 0 for none. */
static size_t section_end(const text *source, size_t start) {
    for (size_t i = start; i + 1 < source->length; i++) {
        if (source->bytes[i] == '\n' && source->bytes[i + 1] == '\n') { return i + 2; }
    }
    return 0;
}

/* Cuts sections as llm.c does: a text that ends with a blank line has an empty last section. */
static void encode_text(encoder *e, const text *source) {
    size_t start = 0, end;
    while ((end = section_end(source, start)) != 0) {
        encode_section(e, source->file, source->bytes + start, end - start);
        start = end;
    }
    encode_section(e, source->file, source->bytes + start, source->length - start);
}

/* ---- the two commands ---- */

/* The header's count of tokens is an int32. */
static void check_count(const char *file, size_t count) {
    if (count > INT32_MAX) {
        fail(file, "expected at most %ld tokens, found %zu", (long)INT32_MAX, count);
    }
}

static void command_gpt2(const char *file, const char *prefix, const char *vocabulary_file) {
    static const char end_of_text[] = "<|endoftext|>";
    vocabulary *words = vocabulary_read(vocabulary_file);
    text source = text_read(file);
    encoder e = {0};
    e.words = words;
    /* Not in the hash table: a text that contains these letters encodes them as usual. */
    e.end_of_text =
        (uint16_t)vocabulary_add(words, vocabulary_file, end_of_text, sizeof end_of_text - 1);
    /* At most one token per byte and one per section; a section (but the last) has 2 bytes. */
    e.tokens = allocate(file, (source.length + source.length / 2 + 1) * sizeof *e.tokens);
    compile_pattern(&e, file);
    check_utf8(&e, &source);
    encode_text(&e, &source);
    check_count(file, e.count);
    if (e.count <= VALIDATION_TOKENS) {
        fail(file, "expected more than %d tokens, found %zu", (int)VALIDATION_TOKENS, e.count);
    }
    write_tokens(prefix, "_train.bin", e.tokens + VALIDATION_TOKENS, e.count - VALIDATION_TOKENS);
    write_tokens(prefix, "_val.bin", e.tokens, VALIDATION_TOKENS);
    write_tokenizer(prefix, words, e.end_of_text);
    pcre2_match_data_free(e.match);
    pcre2_code_free(e.pattern);
    free(e.parts);
    free(e.tokens);
    free(source.bytes);
    free(words);
}

/* Numbers the bytes that occur in the text, in ascending order; index[byte] is the token. */
static vocabulary *character_vocabulary(const text *source, uint16_t index[256]) {
    vocabulary *words = allocate(source->file, sizeof *words);
    int used[256] = {0};
    for (size_t i = 0; i < source->length; i++) { used[source->bytes[i]] = 1; }
    for (unsigned i = 0; i < 256; i++) {
        unsigned char byte = (unsigned char)i;
        if (used[i]) { index[i] = (uint16_t)vocabulary_add(words, source->file, &byte, 1); }
    }
    return words;
}

static void command_char(const char *file, const char *prefix, double validation_share) {
    uint16_t index[256] = {0};
    text source = text_read(file);
    vocabulary *words = character_vocabulary(&source, index);
    check_count(file, source.length);
    uint16_t *tokens = allocate(file, source.length * sizeof *tokens);
    for (size_t i = 0; i < source.length; i++) { tokens[i] = index[source.bytes[i]]; }
    size_t train = (size_t)((double)source.length * (1.0 - validation_share));
    if (train < 1 || train >= source.length) {
        fail(file, "expected at least 1 token in each part, found %zu for training of %zu", train,
             source.length);
    }
    write_tokens(prefix, "_train.bin", tokens, train);
    write_tokens(prefix, "_val.bin", tokens + train, source.length - train);
    /* No character ends a text. A sample starts with the end-of-text token, so the file names the
     * newline, or token 0 if the text has none. Either can index the embedding. */
    write_tokenizer(prefix, words, index['\n']);
    free(tokens);
    free(source.bytes);
    free(words);
}

_Noreturn static void usage(void) {
    fputs("usage: tokens char TEXT OUT_PREFIX [VAL_SHARE]\n"
          "       tokens gpt2 TEXT OUT_PREFIX VOCABULARY.tiktoken\n"
          "writes OUT_PREFIX_train.bin, OUT_PREFIX_val.bin and OUT_PREFIX_tokenizer.bin\n"
          "VAL_SHARE: the part of the text for validation, above 0, below 1, default 0.1\n",
          stderr);
    exit(2);
}

static double parse_share(const char *argument) {
    char *end;
    double share = strtod(argument, &end);
    if (end == argument || *end != '\0' || !(share > 0.0 && share < 1.0)) { usage(); }
    return share;
}

int main(int argc, char **argv) {
    if (argc == 4 && strcmp(argv[1], "char") == 0) {
        command_char(argv[2], argv[3], 0.1);
    } else if (argc == 5 && strcmp(argv[1], "char") == 0) {
        command_char(argv[2], argv[3], parse_share(argv[4]));
    } else if (argc == 5 && strcmp(argv[1], "gpt2") == 0) {
        command_gpt2(argv[2], argv[3], argv[4]);
    } else {
        usage();
    }
    return 0;
}

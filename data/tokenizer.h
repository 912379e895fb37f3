/* tokenizer.h: read a tokenizer file in llm.c's format, to convert tokens to text.
 *
 *     int32 header[256]   magic 20240328, version 1 or 2, number of tokens, end-of-text token
 *                         (version 2; version 1 is GPT-2's and means 50256), zeros
 *     per token           one byte with its length, 1 to 255, then its bytes
 *
 *     tokenizer words;
 *     char error[256];
 *     if (tokenizer_open(&words, path, error, sizeof error) != DATA_OK) { ... }
 *     size_t length;
 *     const unsigned char *bytes = tokenizer_bytes(&words, token, &length);
 *     if (bytes != NULL) fwrite(bytes, 1, length, stdout);
 *     tokenizer_close(&words);
 *
 * Link data_file.c and tokenizer.c. Errors and threads: see data_file.h. */
#ifndef ZERO_TOKENIZER_H
#define ZERO_TOKENIZER_H

#include "data_file.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { TOKENIZER_MAGIC = 20240328, TOKENIZER_VERSION = 2 };

typedef struct tokenizer {
    uint32_t count;       /* number of tokens: valid ids are 0 to count - 1 */
    uint32_t end_of_text; /* below count: the token that begins a text, so a sample starts with
                             it. Character files have no such token and name the newline, or
                             token 0 where the text has no newline. */
    uint32_t *offsets;    /* private: [count], offset of each token's length byte */
    unsigned char *bytes; /* private: the whole file */
} tokenizer;

/* Reads the file at path and checks all of it: the magic number, the version, and that the tokens
 * end where the file ends. On failure *words is cleared and owns nothing. Errors: DATA_SYSTEM (also
 * when there is no memory for the offsets), DATA_FORMAT. */
data_result tokenizer_open(tokenizer *words, const char *path, char *error, size_t error_bytes);

/* Returns the bytes of one token, and their number in *length. They are borrowed until
 * tokenizer_close. They have no final 0, and may be part of a UTF-8 sequence or a control
 * character. Returns NULL, and *length 0, if token is not below words->count. */
const unsigned char *tokenizer_bytes(const tokenizer *words, uint32_t token, size_t *length);

/* Frees the memory of tokenizer_open and clears *words. A cleared tokenizer is allowed. */
void tokenizer_close(tokenizer *words);

#ifdef __cplusplus
}
#endif

#endif

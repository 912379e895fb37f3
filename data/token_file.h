/* token_file.h: read a token file in llm.c's format.
 *
 *     int32 header[256]   magic 20240520, version 1, number of tokens, zeros
 *     uint16 tokens[]     as many as the header states, up to the end of the file
 *
 *     token_file file;
 *     char error[256];
 *     if (token_file_open(&file, path, 50257, error, sizeof error) != DATA_OK) {
 *         fprintf(stderr, "%s\n", error);
 *         return 1;
 *     }
 *     uint16_t tokens[64];
 *     if (token_file_read(&file, 0, 64, tokens, error, sizeof error) != DATA_OK) ...
 *     token_file_close(&file);
 *
 * Link data_file.c and token_file.c. Errors and threads: see data_file.h. */
#ifndef ZERO_TOKEN_FILE_H
#define ZERO_TOKEN_FILE_H

#include "data_file.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { TOKEN_FILE_MAGIC = 20240520, TOKEN_FILE_VERSION = 1 };

typedef struct token_file {
    size_t count;        /* tokens, at least 1 */
    uint32_t vocabulary; /* every token that is read is below it */
    data_file file;      /* private */
} token_file;

/* Opens the file at path and checks the magic number, the version and the number of tokens against
 * the file's length. It reads the whole file once to check that every token is below vocabulary
 * (the number of different tokens).
 * On failure *file is cleared and owns nothing.
 * Errors: DATA_SYSTEM, DATA_FORMAT. */
data_result token_file_open(token_file *file, const char *path, uint32_t vocabulary, char *error,
                            size_t error_bytes);

/* Copies count tokens from index first on; first + count is at most file->count. It checks them
 * again because the file may have changed: a returned token can safely index an embedding of
 * vocabulary rows. Errors: DATA_SYSTEM, DATA_FORMAT. */
data_result token_file_read(const token_file *file, size_t first, size_t count, uint16_t *tokens,
                            char *error, size_t error_bytes);

/* Closes the file and clears *file. A cleared file is allowed. */
void token_file_close(token_file *file);

#ifdef __cplusplus
}
#endif

#endif

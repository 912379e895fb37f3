/* token_file.h: read a token file in llm.c's format.
 *
 *     int32 header[256]   magic 20240520, version 1, number of tokens, zeros
 *     uint16 tokens[]     as many as the header says, up to the end of the file
 *
 *     token_file file;
 *     char error[256];
 *     if (token_file_open(&file, path, 50257, error, sizeof error) != DATA_OK) {
 *         fprintf(stderr, "%s\n", error);
 *         return 1;
 *     }
 *     ... file.tokens[0] to file.tokens[file.count - 1] ...
 *     token_file_close(&file);
 *
 * Link data_file.c and token_file.c. Errors and threads: see data_file.h.
 */
#ifndef ZERO_TOKEN_FILE_H
#define ZERO_TOKEN_FILE_H

#include "data_file.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { TOKEN_FILE_MAGIC = 20240520, TOKEN_FILE_VERSION = 1 };

typedef struct token_file {
    const uint16_t *tokens; /* read only, borrowed until token_file_close */
    size_t count;           /* tokens, at least 1 */
    data_file file;         /* private: the mapping that tokens points into */
} token_file;

/* Maps the file at path and checks the magic number, the version, that the number of tokens is
 * what the file's length holds, and, by reading all of it once, that every token is below
 * vocabulary (the number of token kinds). A token that passes can
 * index an embedding of vocabulary rows without a check.
 * On failure *file is cleared and nothing is held.
 * Errors: DATA_SYSTEM, DATA_FORMAT. */
data_result token_file_open(token_file *file, const char *path, uint32_t vocabulary, char *error,
                            size_t error_bytes);

/* Unmaps the tokens and clears *file; harmless on a cleared one. */
void token_file_close(token_file *file);

#ifdef __cplusplus
}
#endif

#endif

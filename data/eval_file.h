/* eval_file.h: read a file of multiple-choice examples in llm.c's format (HellaSwag's).
 *
 *     int32 header[256]   magic 20240522, version 1, number of examples, bytes of the longest,
 * zeros examples[]          as many as the header states, up to the end of the file, as uint16:
 *         65535, bytes of this example (these numbers included), index of this example,
 *         label: the right completion, 0 to 3, number of completions, always 4,
 *         number of context tokens, the tokens,
 *         then for each completion its number of tokens, and the tokens
 *
 *     eval_file file;
 *     eval_example one;
 *     char error[256];
 *     if (eval_file_open(&file, path, 50257, error, sizeof error) != DATA_OK) ...
 *     for (uint32_t i = 0; i < file.count; i++)
 *         if (eval_file_read(&file, i, &one, error, sizeof error) != DATA_OK) ...
 *     eval_file_close(&file);
 *
 * Link data_file.c and eval_file.c. Errors and threads: see data_file.h. Reading uses memory of the
 * object, so only one thread at a time may read. Error sentences name the offset of the wrong
 * byte. */
#ifndef ZERO_EVAL_FILE_H
#define ZERO_EVAL_FILE_H

#include "data_file.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { EVAL_FILE_MAGIC = 20240522, EVAL_FILE_VERSION = 1, EVAL_COMPLETIONS = 4 };

typedef struct eval_example {
    int label;              /* the right completion */
    int context;            /* tokens before all completions, at least 1 */
    const uint16_t *tokens; /* [context]; borrowed until the next read */
    struct {
        int count;              /* at least 1 */
        const uint16_t *tokens; /* [count]; borrowed as well */
    } completion[EVAL_COMPLETIONS];
} eval_example;

typedef struct eval_file {
    uint32_t count;      /* examples, at least 1 */
    int longest;         /* tokens of the longest context with a completion */
    uint32_t vocabulary; /* every token is below it */
    uint64_t *at;        /* private: [count + 1], bytes where examples begin */
    uint16_t *numbers;   /* private: of the example that was read last */
    data_file file;      /* private */
} eval_file;

/* Opens the file at path and checks all of it. On failure *file is cleared and owns nothing.
 * Errors: DATA_SYSTEM (also when there is no memory), DATA_FORMAT. */
data_result eval_file_open(eval_file *file, const char *path, uint32_t vocabulary, char *error,
                           size_t error_bytes);

/* Reads example `index`, below file->count. It checks it again because the file may have changed.
 * Errors: DATA_SYSTEM, DATA_FORMAT. */
data_result eval_file_read(eval_file *file, uint32_t index, eval_example *out, char *error,
                           size_t error_bytes);

/* Frees the memory of eval_file_open and clears *file. A cleared file is allowed. */
void eval_file_close(eval_file *file);

#ifdef __cplusplus
}
#endif

#endif

/* data_file.h: what the readers in this folder share: result codes, the file header, reading.
 *
 * Every file follows llm.c: a header of 256 little-endian int32, whose first two are a magic number
 * and a version, then the payload. On a big-endian machine the magic number does not match, and
 * opening fails.
 *
 * Errors: a function that can fail returns a data_result. If that is not DATA_OK, it writes one
 * sentence without a newline ("FILE: expected X, found Y") to the caller's buffer, cut to its size.
 * error may be NULL when error_bytes is 0. These functions never print or exit.
 *
 * Threads: no global state. Many threads may read one open object. */
#ifndef ZERO_DATA_FILE_H
#define ZERO_DATA_FILE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { DATA_HEADER_INTS = 256, DATA_HEADER_BYTES = 1024 };

typedef enum data_result {
    DATA_OK = 0,
    DATA_SYSTEM = 1, /* the system failed: no such file, no permission, no memory */
    DATA_FORMAT = 2  /* the file is readable, but its content is invalid */
} data_result;

/* Not mapped: if a file becomes shorter while it is read, an error names it, without a SIGBUS. */
typedef struct data_file {
    size_t length;                           /* bytes, when it was opened */
    unsigned char header[DATA_HEADER_BYTES]; /* private, as are the next */
    char *path;                              /* owned; NULL: closed */
    int descriptor;
} data_file;

/* Writes to path the only file that a shell pattern matches, or the pattern if it matches none.
 * Returns the number of matches, at least 1. Above 1, path is the pattern. */
int data_file_find(const char *pattern, char *path, size_t bytes);

/* Opens the file at path and checks that it is a regular file that holds at least a header, and
 * that the header starts with magic. On failure *file is cleared and nothing is held. */
data_result data_file_open(data_file *file, const char *path, uint32_t magic, char *error,
                           size_t error_bytes);

/* Copies bytes from offset on. Errors: DATA_SYSTEM; DATA_FORMAT: the file has become shorter. */
data_result data_file_read(const data_file *file, size_t offset, void *out, size_t bytes,
                           char *error, size_t error_bytes);

/* Closes the file and clears *file. A cleared file is allowed. */
void data_file_close(data_file *file);

/* Returns the header's int32 at index, 0 to 255, as an unsigned number: a negative one is huge. */
uint32_t data_file_header(const data_file *file, size_t index);

/* Writes the sentence to error, if error_bytes is not 0, and returns code. */
data_result data_fail(data_result code, char *error, size_t error_bytes, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 4, 5)))
#endif
    ;

#ifdef __cplusplus
}
#endif

#endif

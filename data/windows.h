/* windows.h - which pieces of a token file a training step sees, the same for any number of ranks.

     window       seq_len tokens, and the same shifted by one as targets
     step         step_windows windows; row r of step s is the same window whoever trains on it
     epoch        every window of the file once, in order or shuffled; what does not fill a step at
   its end is left out

   WHY A ROOM. Checkpoints go on at any number of ranks because a window follows from (seed, step,
   row) alone. That is arithmetic over a file, and knows of no rank, model or device.

   Link token_file.c, data_file.c and windows.c. Errors and threads: see data_file.h; a `windows` is
   used by one thread.
*/
#ifndef ZERO_WINDOWS_H
#define ZERO_WINDOWS_H

#include "token_file.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { WINDOWS_IN_ORDER = 0, WINDOWS_SHUFFLED, WINDOWS_RANDOM };

/* Streams of random numbers that are drawn from here. */
enum { WINDOWS_STREAM_OFFSETS = 1000, WINDOWS_STREAM_SHUFFLE = 1001 };

/* A random number that depends on its arguments alone. */
typedef uint64_t (*windows_draw)(uint64_t seed, uint64_t stream, uint64_t number);

typedef struct windows {
    const token_file *file; /* borrowed */
    int order;              /* WINDOWS_... */
    int seq_len;
    int64_t step_windows;
    uint64_t seed;
    windows_draw draw;
    int64_t count, epoch_steps; /* windows of the file, steps of an epoch */
    uint32_t *shuffled;         /* private: [count], in the order of `epoch` */
    uint16_t *tokens;           /* private: [seq_len + 1], of one window */
    int64_t epoch;              /* private; -1: none yet */
} windows;

/* Fills count and epoch_steps, and gets memory; the fields above them are the caller's. Returns 0
   where there is no memory, or there are more windows than can be shuffled. */
int windows_open(windows *w);
void windows_close(windows *w);

/* Rows first to first + rows - 1 of a step: inputs and targets [rows][seq_len], NULL: not
   wanted. Errors: those of token_file_read. */
data_result windows_load(windows *w, int64_t step, int64_t first, int rows, int *inputs,
                         int *targets, char *error, size_t error_bytes);

/* XXH64 over all windows of a step. Errors: those of token_file_read. */
data_result windows_hash(windows *w, int64_t step, uint64_t *hash, char *error, size_t error_bytes);

#ifdef __cplusplus
}
#endif
#endif

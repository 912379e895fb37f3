/* windows.h - selects the token-file windows of a training step, the same for any number of ranks.

     window       seq_len tokens, and the same shifted by one as targets
     step         step_windows windows; row r of step s is the same window on any rank
     epoch        every window of the file once, in order or shuffled; the windows at its end that
                  do not fill a step are left out

   PURPOSE. A window depends on (seed, step, row) alone, so a checkpoint can continue at any number
   of ranks. The functions need no rank, model or device.

   Link token_file.c, data_file.c and windows.c. Errors and threads: see data_file.h. Only one
   thread may use a `windows`.
*/
#ifndef ZERO_WINDOWS_H
#define ZERO_WINDOWS_H

#include "token_file.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { WINDOWS_IN_ORDER = 0, WINDOWS_SHUFFLED, WINDOWS_RANDOM };

/* Random-number streams that the windows use. */
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

/* Fills count and epoch_steps and allocates memory. The caller sets the fields above them. Returns
   0 if there is no memory, or if the file has more windows than can be shuffled. */
int windows_open(windows *w);
void windows_close(windows *w);

/* Loads rows first to first + rows - 1 of a step to inputs and targets [rows][seq_len]; either may
   be NULL. Errors: those of token_file_read. */
data_result windows_load(windows *w, int64_t step, int64_t first, int rows, int *inputs,
                         int *targets, char *error, size_t error_bytes);

/* Computes XXH64 over all windows of a step. Errors: those of token_file_read. */
data_result windows_hash(windows *w, int64_t step, uint64_t *hash, char *error, size_t error_bytes);

#ifdef __cplusplus
}
#endif
#endif

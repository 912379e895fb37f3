/* scalars.h - figures of a run for programs that plot: TensorBoard's event files, and CSV.

   EVENT FILES are TFRecords: the length, its masked CRC-32C, the bytes, their masked CRC-32C. The
   bytes are the protocol buffers Event { double wall_time = 1; int64 step = 2; string file_version
   = 3; Summary summary = 5; }, Summary { Value value = 1; }, Value { string tag = 1; float
   simple_value = 2; }. Debian has no C library that writes them. The file is
   FOLDER/events.out.tfevents.TIME.HOST.PID.0, a new one for each run, as TensorBoard wants it.

   CSV is DeepSpeed's csv_monitor: FOLDER/Train_Samples_train_loss.csv for Train/Samples/train_loss,
   a first line `step,train_loss`, then a line per value. A resumed run appends.

   WHY A FILE. Other programs define these formats, and tests read the files back.
*/
#ifndef SCALARS_H
#define SCALARS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct scalars scalars;

typedef struct scalar {
    const char *tag; /* "Train/Samples/train_loss" */
    double value;
} scalar;

/* Makes the folders and opens the files. `tensorboard`, `csv`: "" for none. On failure returns NULL
   and writes a sentence. */
scalars *scalars_open(const char *tensorboard, const char *csv, char *sentence, size_t bytes);

/* Writes n values at x on the axis (samples so far, as in DeepSpeed). On the first failure returns
   1 and writes a sentence. s may be NULL. */
int scalars_put(scalars *s, int64_t x, const scalar *values, int n, char *sentence, size_t bytes);

void scalars_close(scalars *s);

/* Returns the CRC-32C (Castagnoli) of n bytes. */
uint32_t scalars_crc(const void *bytes, size_t n);

#ifdef __cplusplus
}
#endif
#endif

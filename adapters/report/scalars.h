/* scalars.h - figures of a run for programs that plot: TensorBoard's event files, and CSV.

   EVENT FILES are TFRecords (length, masked CRC-32C of it, bytes, masked CRC-32C of them) of the
   protocol buffers Event { double wall_time = 1; int64 step = 2; string file_version = 3; Summary
   summary = 5; }, Summary { Value value = 1; }, Value { string tag = 1; float simple_value = 2; }.
   No C library of Debian's writes them, and it takes few lines. The file is
   FOLDER/events.out.tfevents.TIME.HOST.PID.0, a new one for each run, as TensorBoard wants it.

   CSV is DeepSpeed's csv_monitor: FOLDER/Train_Samples_train_loss.csv for Train/Samples/train_loss,
   a first line `step,train_loss`, then a line per value; a run that goes on appends.

   WHY A ROOM. Formats of others, written by few bytes, tested by reading.
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

/* Folders are made. `tensorboard`, `csv`: "" for none. NULL: one cannot be written, and a sentence.
 */
scalars *scalars_open(const char *tensorboard, const char *csv, char *sentence, size_t bytes);

/* n values at the place x of the axis (DeepSpeed's: samples so far), written at once. Returns 1 and
   a sentence where they could not be, once. s may be NULL. */
int scalars_put(scalars *s, int64_t x, const scalar *values, int n, char *sentence, size_t bytes);

void scalars_close(scalars *s);

/* CRC-32C (Castagnoli) of n bytes. */
uint32_t scalars_crc(const void *bytes, size_t n);

#ifdef __cplusplus
}
#endif
#endif

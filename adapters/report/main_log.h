/* main_log.h - llm.c's main.log: a line for each step and each validation, for tools that plot.

       s:STEP trl:LOSS lr:RATE norm:NORM        a step; the first is 0, as llm.c counts
       s:STEP tel:LOSS                          a validation, after so many steps

   WHY A ROOM. A run that goes on continues its log as if it had never stopped, so there is more to
   it than printing: finding the line to go on from, and cutting what was written after the
   checkpoint.
*/
#ifndef MAIN_LOG_H
#define MAIN_LOG_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct main_log main_log;

/* FOLDER/main.log, and the folder if need be: a new log; or, of one that is there, the lines of the
   steps before `step`, which others follow. Returns NULL and a sentence on failure. */
main_log *main_log_open(const char *folder, int64_t step, char *sentence, size_t bytes);

/* Writes a line, and does not wait for the disk. log may be NULL: nothing is kept. */
void main_log_step(main_log *log, int64_t step, double loss, double lr, double norm);
void main_log_validation(main_log *log, int64_t step, double loss);

/* Waits for the disk: a power cut leaves no gap before a checkpoint. log may be NULL. */
void main_log_sync(main_log *log);

void main_log_close(main_log *log);

#ifdef __cplusplus
}
#endif
#endif

/* main_log.h - llm.c's main.log: a line for each step and each validation, for tools that plot.

       s:STEP trl:LOSS lr:RATE norm:NORM t:TIME ms:STEP_TIME tps:TOKENS_PER_S mib:MEMORY[ skipped:N]
       s:STEP tel:LOSS t:TIME
       s:STEP eval:SHARE t:TIME
       s:STEP products:HASH t:TIME

   trl is the loss of a step; the first step is 0, as llm.c counts, while stdout counts from 1. A
   step that was skipped ends with skipped: it is the run's N-th; stdout names the tensor that was
   not finite. tel is a validation's, after so many steps, eval the share of
   HellaSwag's examples that is right. products is told with -pc when a run starts, or goes on with
   another: the choice of ways that products take. t is seconds since 1970, mib what rank 0 had at
   most: of a GPU what all ranks on it took, else resident memory.

   WHY A ROOM. A run that goes on continues its log as if it had never stopped, and a log is of use
   if it has every line: so there is more to it than printing. What was written after the checkpoint
   is cut; lines that are missing before it are told; a line that cannot be written is an error, and
   leaves no half of it; a log that was removed is made again, with all its lines.
*/
#ifndef MAIN_LOG_H
#define MAIN_LOG_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct main_log main_log;

typedef struct main_log_values {
    int64_t step;
    double loss, lr, norm;
    double seconds;      /* that the step took */
    double tokens_per_s; /* of this step */
    double mib;
    int64_t skipped; /* 0: the step was made; otherwise so many were not, with this one */
} main_log_values;

/* FOLDER/main.log, and the folder if need be: a new log; or, of one that is there, the lines of the
   steps before `step`, which others follow. It has to be a regular file. Returns NULL and a
   sentence on failure. */
main_log *main_log_open(const char *folder, int64_t step, char *sentence, size_t bytes);

/* Writes a line, and does not wait for the disk. Returns 1 where it could not be written, and the
   one before could: main_log_error has a sentence. log may be NULL: nothing is kept. */
int main_log_step(main_log *log, const main_log_values *v);
int main_log_validation(main_log *log, int64_t step, double loss);
int main_log_evaluation(main_log *log, int64_t step, double share);
int main_log_products(main_log *log, int64_t step, uint64_t hash);
const char *main_log_error(const main_log *log);

/* What the user should know, once: lines that are missing, a log that was made again. NULL:
 * nothing. */
const char *main_log_note(main_log *log);

/* Waits for the disk: a power cut leaves no gap before a checkpoint. Returns as a line does. */
int main_log_sync(main_log *log);

/* Returns how many lines are lost. log may be NULL. */
int64_t main_log_close(main_log *log);

#ifdef __cplusplus
}
#endif
#endif

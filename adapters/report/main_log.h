/* main_log.h - llm.c's main.log: a line for each step and each validation, for tools that plot.

       s:STEP trl:LOSS lr:RATE norm:NORM t:TIME ms:STEP_TIME tps:TOKENS_PER_S mib:MEMORY[ skipped:N]
       s:STEP tel:LOSS t:TIME
       s:STEP eval:SHARE t:TIME
       s:STEP products:HASH t:TIME
       s:STEP auto:FLAGS t:TIME
       s:STEP ranks:NUMBER ms:CHANGE_TIME t:TIME

   trl is the loss of a step. The first step is 0, as llm.c counts, while stdout counts from 1. The
   line of a skipped step ends with the number N of steps skipped so far; stdout names the tensor
   that was not finite. tel is the loss of a validation after STEP steps. eval is the share of
   HellaSwag's examples with the right answer. products is a hash of the chosen matrix products; -pc
   logs it when a run starts, or resumes with another choice. auto has the flags that -z auto has
   chosen, with commas between: auto:-z,2,-b,4. ranks is the number of ranks from that step on, if
   it has changed (-pnf, -pa), and ms how long the change took. t is seconds since 1970. mib is rank
   0's peak: the memory of its GPU that all ranks took, or its resident memory.

   WHY A FILE. A resumed run continues its log as if it had never stopped, and the log keeps every
   line. main_log_open cuts the lines after the checkpoint and notes missing lines before it. A line
   is written whole or not at all. A removed log is made again with all its lines.
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
    double seconds;      /* duration of the step */
    double tokens_per_s; /* of this step */
    double mib;
    int64_t skipped; /* 0: the step was made; else skipped steps so far, this one included */
} main_log_values;

/* Opens FOLDER/main.log, and makes it and the folder if they do not exist. Of an existing log it
   keeps the lines of the steps before `step`. The log must be a regular file. On failure returns
   NULL and writes a sentence. */
main_log *main_log_open(const char *folder, int64_t step, char *sentence, size_t bytes);

/* Writes a line, and does not wait for the disk. Returns 1 if this line failed and the line before
   did not; main_log_error then returns a sentence. If log is NULL, does nothing. */
int main_log_step(main_log *log, const main_log_values *v);
int main_log_validation(main_log *log, int64_t step, double loss);
int main_log_evaluation(main_log *log, int64_t step, double share);
int main_log_products(main_log *log, int64_t step, uint64_t hash);
int main_log_auto(main_log *log, int64_t step, const char *flags);
int main_log_ranks(main_log *log, int64_t step, int ranks, double seconds);
const char *main_log_error(const main_log *log);

/* Returns a new note for the user, once: missing lines, or a log that was made again. Or NULL. */
const char *main_log_note(main_log *log);

/* Waits for the disk, so that a power cut leaves no gap before a checkpoint. Returns 1 on failure.
 */
int main_log_sync(main_log *log);

/* Closes and frees the log. Returns the number of lost lines. log may be NULL. */
int64_t main_log_close(main_log *log);

#ifdef __cplusplus
}
#endif
#endif

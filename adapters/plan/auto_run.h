/* auto_run.h - the trainer's -z auto: finds the stored choice of a run that resumes, or measures,
   searches, and sets the chosen flags.

   ORDER
       auto_run_memory      before the ranks are forked
       auto_run_choose      on every rank, before the batch and the layout are computed
       auto_run_memory_free after the ranks have ended

   THE STORED CHOICE is the flags of auto_flags. It is kept in three places, and a later start of
   the same run uses it unchanged: memory that outlives ranks (-pe), each checkpoint's settings (the
   line "auto FLAGS"), and main.log, for readers. If a run resumes (-y) from a checkpoint that has
   no such line, the program chooses again.

   LIMITS. A rank's memory is the smaller of --memory, minus what the process takes already, and its
   share of the free memory of the machine and its cgroup. Its space in files is its share of the
   free space in the folder of -zfd. Rank 0 reads both on its machine.

   RATES come from the file of --machine. If that does not exist, the ranks measure (at most about
   10 seconds), and rank 0 writes it. On GPUs the file is required.
*/
#ifndef PLAN_AUTO_RUN_H
#define PLAN_AUTO_RUN_H

#include "../launch/launch.h"
#include "../report/report.h"
#include "auto.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct auto_run_input {
    launch *l;
    report *out;
    const gpt2_config *model;
    const ds_config *file; /* of -ds, or zeros */
    const char *program;   /* for the command line that repeats the choice */
    const char *typed;     /* the command line, as run_note_flags joins it */
    char *kept;            /* from auto_run_memory, or NULL */
    int threads;           /* of a rank */
    int on_gpus;
    uint64_t free_bytes; /* GPUs: free memory of a rank's device */
} auto_run_input;

/* Returns memory for a choice that outlives ranks, or NULL if the run needs none or memory is
   short. */
char *auto_run_memory(const train_options *o);
void auto_run_memory_free(char *kept);

/* If -z is auto, chooses, prints the choice, and sets its flags in *o. `flags` receives them, or ""
   if -z is not auto. *is_new is 1 if this start has chosen. Ends the job after an error.
   COLLECTIVE. */
void auto_run_choose(const auto_run_input *in, train_options *o, char flags[AUTO_FLAGS],
                     int *is_new);

#ifdef __cplusplus
}
#endif
#endif

/* saves.h - saves the state of a run and resumes from it. A run has up to two places for its state:
   checkpoints in a folder (-o, -n, -y), and copies in memory that stay when ranks die (-pm). Each
   place holds the experts of the model too. ../checkpoint has the formats of files and memory.

   ORDER
       saves_memory    before the ranks are forked
       saves_plan      before anything is built; computes the bytes that the places will take
       saves_open      after zero_build; then saves_load, which loads if -y is given
       saves_copies, saves_copy, saves_due, saves_save    after each step
       saves_close     before zero_destroy

   ERRORS end the job with one line. With -nf 1 a checkpoint that fails is only a warning, except
   the last one of a run. All functions are COLLECTIVE, except saves_memory, saves_plan and
   saves_from_copy. */
#ifndef SAVES_H
#define SAVES_H

#include "../launch/launch.h"
#include "../options/train_resolve.h"
#include "../report/report.h"
#include "../schedule/outliers.h"
#include "expert_saves.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The run whose state is saved. All pointers are borrowed until saves_close. */
typedef struct saves_run {
    const train_options *opt;
    launch *l;
    report *out;
    zero_ctx *z;
    const layout *groups;
    const gpt2_config *model;
    const zero_tensor_desc *table; /* of the whole model */
    int tensors;
    const char *settings;             /* lines "NAME VALUE", which each checkpoint contains */
    checkpoint_memory *const *memory; /* from saves_memory */
    size_t numel;                     /* of the whole model */
    int steps;                        /* of the run */
    int64_t step_tokens;
} saves_run;

/* The state of the trainer, which the plugin does not have. */
typedef struct saves_state {
    int step;
    int64_t data_step; /* step whose data comes next; differs from `step` after resuming with other
                          batches */
    int64_t updates;   /* updates that the optimizer has made */
    outliers *losses, *norms; /* borrowed */
} saves_state;

typedef struct saves_place {
    checkpoint *rest; /* all but the experts; NULL: the run does not use this place */
    expert_saves experts;
} saves_place;

enum { SAVES_ON_DISK = 0, SAVES_IN_MEMORY, SAVES_PLACES };

/* All zeros: the run saves nothing. */
typedef struct saves {
    saves_run run;
    size_t bytes;  /* host memory of this rank for all places */
    size_t copies; /* the part of `bytes` for copies in memory */
    size_t taken;  /* the part of `copies` that ranks which have died allocated before */
    saves_place place[SAVES_PLACES];
    int places;        /* number of places that the run uses, from the first one */
    saves_place *from; /* the place that was loaded; NULL: none */
    char base[128];    /* -nz 0: the frozen weights, which checkpoints lack */
    int same_products; /* the loaded run computed its products with the same methods */
    int64_t saved;     /* step of the last checkpoint that was saved or loaded; -1: none */
    int64_t durable;   /* step of the last one that is known to be on the disk; -1: none */
} saves;

/* -pm: allocates memory for the copies of o->ranks ranks, of a model and of its experts. After an
   error it writes a sentence to o->error. The same process frees it after the ranks have ended. */
void saves_memory(train_options *o, checkpoint_memory *memory[2]);
void saves_memory_free(checkpoint_memory *memory[2]);

/* Call it after zero_query_plan. */
void saves_plan(saves *s, const saves_run *run);

/* Opens the places. Without -y, a folder that has checkpoints already is an error. */
void saves_open(saves *s);

/* -y: loads the newest state into the context and *at, and prints the settings that differ from the
   loaded run. Returns 0 if there is no state, or if -y is not given. */
int saves_load(saves *s, saves_state *at);

/* Returns whether the run was resumed from a copy in memory, which is not in the folder yet. */
int saves_from_copy(const saves *s);

/* -pm: saves_copies returns whether a copy is due after this step. saves_copy makes it, before a
   checkpoint of the same step. */
int saves_copies(const saves *s, int step);
void saves_copy(saves *s, const saves_state *at);

/* Returns whether a checkpoint is due: every -n steps, and after the last step. After the last step
   it first waits for a checkpoint that is being written in the background. If that one failed, the
   state is due again. */
int saves_due(saves *s, int step, int last);

/* Saves a checkpoint. step_s: mean seconds of a step so far, or 0 if it is not known. */
void saves_save(saves *s, const saves_state *at, double step_s, int last);

/* When the ranks of a run change (-pnf). saves_finish waits for a checkpoint in the background, on
   the ranks before. saves_move takes the place of saves_plan and saves_open, on the ranks after,
   with the values `saved` and `durable` of the ranks before. */
void saves_finish(saves *s);
void saves_move(saves *s, const saves_run *run, int64_t saved, int64_t durable);

void saves_close(saves *s);

#ifdef __cplusplus
}
#endif
#endif

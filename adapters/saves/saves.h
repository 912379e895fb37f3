/* saves.h - what a run keeps of its state and goes on from, in two places: checkpoints in a folder
   (-o, -n, -y), and copies in memory that outlives ranks (-pm). In each its experts are beside it.

   WHY A ROOM. A loop asks when a save is due and no more. Which place is newer, what runs that go
   on do otherwise than before, what a failed save means and what is said of all that is here; how
   files and memory hold a state is ../checkpoint's.

   ORDER
       saves_memory    before the ranks are forked
       saves_plan      what the places will take, before anything is built
       saves_open      behind zero_build; then saves_load, with -y
       saves_copies, saves_copy, saves_due, saves_save    after each step
       saves_close     before zero_destroy

   ERRORS end the job with a line; but where -nf 1 wants so, a save that fails is a warning, unless
   no other will make good for it. COLLECTIVE, all but saves_memory, saves_plan and
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

/* The run that is saved: all of it borrowed until saves_close. */
typedef struct saves_run {
    const train_options *opt;
    launch *l;
    report *out;
    zero_ctx *z;
    const layout *groups;
    const gpt2_config *model;
    const zero_tensor_desc *table; /* of the whole model */
    int tensors;
    const char *settings;             /* "NAME VALUE" a line, saved along */
    checkpoint_memory *const *memory; /* of saves_memory */
    size_t numel;                     /* of the whole model */
    int steps;                        /* of the run */
    int64_t step_tokens;
} saves_run;

/* What a run counts by itself. */
typedef struct saves_state {
    int step;
    int64_t data_step;        /* the next step's data: with other batches than before not `step` */
    int64_t updates;          /* that the optimizer made */
    outliers *losses, *norms; /* borrowed */
} saves_state;

typedef struct saves_place {
    checkpoint *rest; /* NULL: the run does not use this place */
    expert_saves experts;
} saves_place;

enum { SAVES_ON_DISK = 0, SAVES_IN_MEMORY, SAVES_PLACES };

/* All zeros: nothing is saved. */
typedef struct saves {
    saves_run run;
    size_t bytes;  /* of the host's memory, for all places of this rank */
    size_t copies; /* of them, of copies in memory */
    size_t taken;  /* and of these, by ranks that have died: their copies are there */
    saves_place place[SAVES_PLACES];
    int places;        /* that the run uses, from the first on */
    saves_place *from; /* what was loaded; NULL: nothing */
    int same_products; /* what was loaded went by the same products */
    int64_t saved;     /* step of the last checkpoint that was made or loaded; -1: none */
    int64_t durable;   /* of the last that was said to be on the disk, or loaded; -1: none */
} saves;

/* -pm: memory for o->ranks ranks, of a model and of its experts; on an error o->error says why.
   Given back by the same process, when they have ended. */
void saves_memory(train_options *o, checkpoint_memory *memory[2]);
void saves_memory_free(checkpoint_memory *memory[2]);

/* Behind zero_query_plan. */
void saves_plan(saves *s, const saves_run *run);

/* Refuses a folder with another run's checkpoints. */
void saves_open(saves *s);

/* -y: the newest state into context and *at, and in words what this run does otherwise than the one
   that it goes on from. 0: there is none, or -y is not asked for. */
int saves_load(saves *s, saves_state *at);

/* What goes on from a copy has yet to be saved. */
int saves_from_copy(const saves *s);

/* -pm: whether a copy is due; and the copy, before a checkpoint of the same step. */
int saves_copies(const saves *s, int step);
void saves_copy(saves *s, const saves_state *at);

/* Whether a checkpoint is due: every so many steps, and at the last, which waits for what is being
   written aside, and is saved again if that fails. */
int saves_due(saves *s, int step, int last);

/* step_s: mean seconds of a step so far; 0: not known. */
void saves_save(saves *s, const saves_state *at, double step_s, int last);

void saves_close(saves *s);

#ifdef __cplusplus
}
#endif
#endif

/* train_resolve.h - settings of the trainer that follow from several flags, from flags and a
   DeepSpeed file, or from flags and the number of ranks.

   WHY A ROOM. A row of the table says what a flag is by itself; what flags mean together is
   arithmetic that needs neither ranks nor files to be tested. Functions that can fail return 0, or
   1 and a sentence that names the flags.
*/
#ifndef TRAIN_RESOLVE_H
#define TRAIN_RESOLVE_H

#include "../checkpoint/checkpoint.h"
#include "../gpt2/gpt2.h"
#include "../launch/launch.h"
#include "../parallel/layout.h"
#include "train_options.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { TRAIN_WINDOWS = 12 }; /* of a step, without -b and -d */

/* How a step's windows are dealt: row (micro * ranks + rank) * rows + b of windows.h is this
 * rank's. */
typedef struct batch_shape {
    int rows;    /* B: windows of a rank and micro-step */
    int seq_len; /* T: tokens of a window */
    int micro_steps;
    int64_t windows; /* of a step, over ranks and micro-steps */
    int64_t tokens;  /* of a step: windows * T */
} batch_shape;

/* Flags that do not go together. */
int train_check(const train_options *o, char *sentence, size_t bytes);

/* -en, -ek, -ec, -ea: what they make of a model; NULL: of one that is no GPT-2. */
int train_mixture(const train_options *o, gpt2_config *model, char *sentence, size_t bytes);
/* The model that -e names, or whose file it is. */
int train_model(const train_options *o, gpt2_config *model, char *sentence, size_t bytes);

/* What a file says, into the flags, and what of that is the model's. */
void train_take(train_options *o, const ds_config *file, gpt2_config *model);

/* Writes a text to a file, if there is a path. 0: it cannot be written; errno says why. */
int train_write(const char *path, const char *text);

/* 1: a comparison, of stages or of layouts. */
int train_compares(const train_options *o);

/* -b, -d and -t, with the number of data-parallel ranks: any two of rows, micro-steps and windows
 * give the third. With -pe -b is the most: the next fewer rows that divide a rank's windows.
 */
int train_batch(const train_options *o, int ranks, batch_shape *batch, char *sentence,
                size_t bytes);

/* The ranks, -tp of them on a model, and what each takes of a step. `ranks` has been divided,
   somehow: how many there are, and which is this one. _as: by word number i of -layouts. Otherwise
   of layouts that which gives a rank most windows, after -d is made the same for all of them. */
int train_divide(train_options *o, const gpt2_config *model, layout *ranks, batch_shape *batch,
                 char *sentence, size_t bytes);
int train_divide_as(const train_options *o, int i, const gpt2_config *model, layout *ranks,
                    batch_shape *batch, char *sentence, size_t bytes);

/* -pe: the most ranks, up to `ranks`, that train_divide takes; 0: none. Where not all are: why. */
int train_fit(const train_options *o, const gpt2_config *model, int ranks, char *sentence,
              size_t bytes);

/* What "auto" in a file stands for, with so many ranks of all kinds. `said` is filled with what the
 * flags say, and borrowed. */
ds_auto train_autos(const train_options *o, int ranks, int channels, ds_config *said);

/* The plugin's settings: the file's (zeros without one), and the flags'. Their folder is borrowed
   from either. */
ds_config train_settings(const train_options *o, const ds_config *file, int channels);
/* That folder, where this rank's files are made. */
const char *train_folder(const train_options *o, const ds_config *file);

/* What the launcher is asked for; main sets rank_main and user. method: -pi's word, for as long as
   the request. */
launch_request train_request(const train_options *o, const char *program,
                             char method[OPTION_WORD_BYTES]);

/* What -za, -zg and -zog auto and -zor 0 mean, at the stage, micro-steps and accumulation that
   stand in c. A pipeline's (pp: its stages) micro-steps add up locally, or in shards where
   gradients are kept in a file, and in f32. In a comparison a stage that cannot have a tier (its
   gradients or parameters are whole) has DEVICE instead; the plugin refuses it in a run of that
   stage alone. */
void train_tiers(const train_options *o, int pp, zero_config *c);

/* -zog auto where memory does not suffice: whether gradients can go to the file instead, with the
   same bits. c: as resolved by train_tiers. Memory is known once there is a plan. */
int train_may_file(const train_options *o, const zero_config *c);

/* What a comparison, which prints no plan, has to say of tiers: the stages that have DEVICE instead
   of what was typed, and that HOST is DEVICE in the CPU version (host_is_device). 1 and a sentence;
   0: nothing. */
int train_tiers_note(const train_options *o, int micro_steps, int host_is_device, char *sentence,
                     size_t bytes);

/* The next of the typed flags, from *row on, that are for tiers that the run has not: 1 and a
   sentence; 0: no more. */
int train_tiers_idle(const train_options *o, int host_is_device, int *row, char *sentence,
                     size_t bytes);

/* -n, -y, -na, -pm: in how many places a run saves, and how: on the disk, then in memory. */
int train_saves(const train_options *o, checkpoint_way way[2]);

/* What -k, -l, -u and -q say, or the file; for so many steps. */
int train_schedule(const train_options *o, const ds_config *file, int steps, schedule *out,
                   char *sentence, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif

/* train_resolve.h - computes the settings of the trainer that depend on several flags, on a
   DeepSpeed file, or on the number of ranks. Functions that can fail return 0, or 1 and a sentence
   that names the flags.
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

enum { TRAIN_WINDOWS = 12 }; /* windows of a step, without -b and -d */

/* The shape of a step. Row b of a rank in micro-step m is row (m * ranks + rank) * rows + b of
   windows.h. */
typedef struct batch_shape {
    int rows;    /* B: windows of a rank and micro-step */
    int seq_len; /* T: tokens of a window */
    int micro_steps;
    int together;    /* micro-batches that pass each layer together: 1, or with -mo layers all */
    int group;       /* layers that they pass one after the other: -mog, or 1 if `together` is 1 */
    int64_t windows; /* of a step, over ranks and micro-steps */
    int64_t tokens;  /* of a step: windows * T */
} batch_shape;

/* Checks for flags that cannot be combined. */
int train_check(const train_options *o, char *sentence, size_t bytes);

/* Checks -mo and -mog for a model, and for the number of pipeline stages. model NULL: it is only a
   number of parameters. */
int train_check_order(const train_options *o, const gpt2_config *model, int pp, char *sentence,
                      size_t bytes);

/* Sets the experts of a model from -en, -ek, -ec and -ea. If model is NULL, only checks the flags.
 */
int train_mixture(const train_options *o, gpt2_config *model, char *sentence, size_t bytes);
/* Sets the frozen tensors and adapters of a model from --train, --freeze and --lora, which
   gpt2_frozen_free frees, and the type of its embeddings' state from -oe. */
int train_frozen(const train_options *o, gpt2_config *model, char *sentence, size_t bytes);
/* Sets the model from the name or file of -e, and its frozen tensors. */
int train_model(const train_options *o, gpt2_config *model, char *sentence, size_t bytes);

/* Sets the model's sparse_rows from -sr, after train_take. on_gpus: the plugin is the CUDA build.
 */
int train_sparse_rows(const train_options *o, int on_gpus, gpt2_config *model, char *sentence,
                      size_t bytes);

/* Copies the values of a DeepSpeed file to the flags and the model. */
void train_take(train_options *o, const ds_config *file, gpt2_config *model);

/* Writes a text to a file, if the path is not empty. After an error, returns 0 and sets errno. */
int train_write(const char *path, const char *text);

/* Returns 1 if the flags ask for a comparison of stages or layouts. */
int train_compares(const train_options *o);

/* Returns 1 if -z auto asks the program to choose, and it has not chosen yet. */
int train_chooses(const train_options *o);

/* Returns the bytes of --memory, or 0 if it is not given. train_check has checked its text. */
double train_memory(const train_options *o);

/* Computes the batch from -b, -d, -t and the number of data-parallel ranks. With -pe or -pnf, -b is
   the most rows: the batch has the next smaller number that divides the windows of a rank. */
int train_batch(const train_options *o, int ranks, batch_shape *batch, char *sentence,
                size_t bytes);

/* Computes the layout of the ranks, and the batch. Your code sets the number of ranks and this rank
   in `ranks` before. train_divide_as uses word number i of -layouts. With -layouts, train_divide
   sets -d so that all layouts have the same step, and uses the layout that gives a rank the most
   windows. */
int train_divide(train_options *o, const gpt2_config *model, layout *ranks, batch_shape *batch,
                 char *sentence, size_t bytes);
int train_divide_as(const train_options *o, int i, const gpt2_config *model, layout *ranks,
                    batch_shape *batch, char *sentence, size_t bytes);

/* -pe, -pnf: returns the largest number of ranks, up to `ranks`, that train_divide accepts, or 0.
   If this is less than `ranks`, the sentence says why. */
int train_fit(const train_options *o, const gpt2_config *model, int ranks, char *sentence,
              size_t bytes);

/* Returns the values of "auto" in a file. ranks: the number of all ranks. *said receives the
   settings of the flags, and the result borrows it. */
ds_auto train_autos(const train_options *o, int ranks, int channels, ds_config *said);

/* Returns the plugin's settings, from the file (zeros without one) and the flags. The result
   borrows the name of the folder from one of them. */
ds_config train_settings(const train_options *o, const ds_config *file, int channels);
/* Returns the name of that folder, in which this rank creates its files. */
const char *train_folder(const train_options *o, const ds_config *file);

/* Returns the request to the launcher. main sets rank_main and user. method receives the word of
   -pi, and must stay as long as the request. */
launch_request train_request(const train_options *o, const char *program,
                             char method[OPTION_WORD_BYTES]);

/* Sets the micro-steps that the plugin sees. It sees one if the micro-batches pass each layer
   together, and then their gradients add up in f32. */
void train_micro_steps(const batch_shape *batch, zero_config *c);

/* Resolves auto of -za, -zg and -zog, and -zor 0, for the stage, micro-steps and accumulation in
   *c. A pipeline of pp stages accumulates its micro-steps locally, or in shards if gradients are
   stored in a file, and in f32. In a comparison, a stage whose gradients or parameters are whole
   has DEVICE instead of its tier. In a run of that stage alone, the plugin refuses the tier. */
void train_tiers(const train_options *o, int pp, zero_config *c);

/* -zog auto: returns whether gradients can be stored in a file, with the same bits, if memory is
   too small. c: resolved by train_tiers. */
int train_may_file(const train_options *o, const zero_config *c);

/* For a comparison, which prints no plan: returns 1 and a sentence with the stages that have DEVICE
   instead of the typed tier, and that HOST is DEVICE in the CPU version (host_is_device). Returns 0
   if neither is the case. */
int train_tiers_note(const train_options *o, int micro_steps, int host_is_device, char *sentence,
                     size_t bytes);

/* Finds the next typed flag, from *row on, for a tier that the run does not use. Returns 1 and a
   sentence, or 0 after the last one. */
int train_tiers_idle(const train_options *o, int host_is_device, int *row, char *sentence,
                     size_t bytes);

/* Returns the number of places to which a run saves, from -n, -y, -na and -pm. way: on the disk,
   then in memory. */
int train_saves(const train_options *o, checkpoint_way way[2]);

/* Sets the schedule from -k, -l, -u and -q, or from the file. */
int train_schedule(const train_options *o, const ds_config *file, int steps, schedule *out,
                   char *sentence, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif

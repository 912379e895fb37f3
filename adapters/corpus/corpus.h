/* corpus.h - the data of a run: token files, the windows of a training step and of a validation, a
   tokenizer, and the examples of -h. It chooses default files, checks that all ranks read the same
   files, and refuses files that are too short. ../../data has the formats of the files.

   ERRORS end the job with one line, also in the middle of a run, for example if a file was
   truncated while the run reads it. */
#ifndef CORPUS_H
#define CORPUS_H

#include "../../data/tokenizer.h"
#include "../../data/windows.h"
#include "../eval/hellaswag.h"
#include "../options/train_resolve.h"
#include "../report/report.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct corpus {
    launch *l; /* borrowed, as are the next two */
    report *out;
    const train_options *opt;
    token_file train, val;
    windows train_windows, val_windows; /* of each file; a step of the second has one window */
    tokenizer words;
    int has_words;      /* the tokenizer fits the model */
    hellaswag examples; /* -h */
    char hashes[256];   /* lines "NAME VALUE" with the number and hash of the tokens of each file */
} corpus;

/* Opens the files that the flags name, or those of `make data`. `ranks` decides which rank answers
   which example. COLLECTIVE. */
void corpus_open(corpus *c, launch *l, report *out, const train_options *o,
                 const gpt2_config *model, const batch_shape *batch, const layout *ranks);
void corpus_close(corpus *c);

/* Ends the job if the file of a flag differs between ranks. Ranks on other machines read their own
   copy. COLLECTIVE. */
void corpus_require_same(launch *l, const char *flag, const char *path);

int corpus_steps(const corpus *c);         /* the steps of -x, or of one epoch */
const char *corpus_order(const corpus *c); /* the order of the windows, in words */

/* These load rows: first to first + rows - 1 of a training step, the same of the validation file,
   and the next pass of -h, whose number of rows the last one returns. [rows][seq_len] */
void corpus_load_step(corpus *c, int64_t step, int64_t first, int rows, int *inputs, int *targets);
void corpus_load_validation(corpus *c, int64_t first, int rows, int *inputs, int *targets);
int corpus_load_examples(corpus *c, int *inputs, int *targets);

/* Returns XXH64 over all windows of a training step. */
uint64_t corpus_hash_step(corpus *c, int64_t step);

#ifdef __cplusplus
}
#endif
#endif

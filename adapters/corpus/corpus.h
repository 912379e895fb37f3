/* corpus.h - what a run reads: token files, the windows of a step and of a validation, a tokenizer,
   the examples of -h.

   WHY A ROOM. A loop asks for rows. Which files they are of where no flag says so, that all ranks
   read the same ones, and what a file that is too short means is here; how a file holds them is
   ../../data's.

   ERRORS end the job with a line, in the middle of a run too: a file that was cut, or is on a disk
   that fails, of which another rank may have read its part. */
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
    windows deal, look; /* of the training file; of the other, one a step */
    tokenizer words;
    int has_words;  /* the tokenizer fits the model */
    hellaswag exam; /* -h */
    char said[256]; /* the files' tokens and hashes, "NAME VALUE" a line */
} corpus;

/* The files that the flags name, or those of `make data`; which example is whose, `ranks` says.
   COLLECTIVE. */
void corpus_open(corpus *c, launch *l, report *out, const train_options *o,
                 const gpt2_config *model, const batch_shape *batch, const layout *ranks);
void corpus_close(corpus *c);

/* A flag's file is the same on every rank: by mpirun, those on other machines read their own.
   COLLECTIVE. */
void corpus_same(launch *l, const char *flag, const char *path);

int corpus_steps(const corpus *c);         /* -x, or an epoch's */
const char *corpus_order(const corpus *c); /* of the windows, in words */

/* Rows first to first + rows - 1 of a training step; of the validation file; the next pass of -h,
   whose rows are returned. [rows][seq_len] */
void corpus_train(corpus *c, int64_t step, int64_t first, int rows, int *inputs, int *targets);
void corpus_look(corpus *c, int64_t first, int rows, int *inputs, int *targets);
int corpus_exam(corpus *c, int *inputs, int *targets);

/* XXH64 over all windows of a training step. */
uint64_t corpus_hash(corpus *c, int64_t step);

#ifdef __cplusplus
}
#endif
#endif

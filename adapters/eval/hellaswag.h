/* hellaswag.h - counts a model's correct answers to multiple-choice examples, as llm.c does. An
   example has a context and four completions. The model's answer is the completion whose tokens
   have the smallest mean loss.

       row        a context and one of its completions, shifted by one token as in training:
                      inputs    c0 c1 c2 e0 e1 0 ...
                      targets   c1 c2 e0 e1  0 0 ...
                      counted          ^  ^            only the losses of the completion
       pass       the rows that a model takes at once

       while (hellaswag_fill(&h, inputs, targets, &rows, ...) == DATA_OK && more passes)
           the model's losses of all rows -> hellaswag_count(&h, losses)

   RANKS. Rank e % nranks answers example e. All ranks make the same number of passes, because a
   pass of a sharded model needs all ranks; some passes have fewer rows or none. The counts of all
   ranks add up to those of a run with one rank.
*/
#ifndef HELLASWAG_H
#define HELLASWAG_H

#include <stdint.h>

#include "../../data/eval_file.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hellaswag {
    eval_file file;
    int rank, nranks;     /* your code sets these, and the next two */
    int rows;             /* the most of a pass */
    int seq_len;          /* T, the tokens of a row */
    int64_t asked, right; /* results: the examples of this rank, and its correct answers */
    /* Private: the next row, and the rows of the current pass. */
    int64_t next; /* index among this rank's rows, four per example */
    int filled;
    int best;
    double least;
    struct hellaswag_row {
        int first, count, label; /* the losses that count; the correct answer */
    } * row;                     /* [rows] */
} hellaswag;

/* Opens the file. Your code sets the fields rank to seq_len before. An example of more than
   seq_len + 1 tokens is an error. Errors: those of eval_file_open. */
data_result hellaswag_open(hellaswag *h, const char *path, uint32_t vocabulary, char *error,
                           size_t error_bytes);
void hellaswag_close(hellaswag *h);

/* Returns the number of passes that every rank makes, at least 1. */
int64_t hellaswag_passes(const hellaswag *h);

/* Clears the counts. Call it before the first pass. */
void hellaswag_begin(hellaswag *h);

/* Fills the first *filled rows of the next pass. inputs and targets: [rows][seq_len].
   Errors: those of eval_file_read. */
data_result hellaswag_fill(hellaswag *h, int *inputs, int *targets, int *filled, char *error,
                           size_t error_bytes);

/* Counts the answers of this pass, from the loss of each token. losses: [filled][seq_len]. */
void hellaswag_count(hellaswag *h, const float *losses);

#ifdef __cplusplus
}
#endif
#endif

/* hellaswag.h - a model's answers to multiple-choice examples, as llm.c counts them: of four
   completions of a context, the one whose tokens have the least mean loss is the model's answer.

       row        a context and one of its completions, shifted by one as windows are:
                      inputs    c0 c1 c2 e0 e1 0 ...
                      targets   c1 c2 e0 e1  0 0 ...
                      counted          ^  ^            the losses of the completion alone
       pass       as many rows as a model takes at once

       while (hellaswag_fill(&h, inputs, targets, &rows, ...) == DATA_OK && more passes)
           the model's losses of all rows -> hellaswag_count(&h, losses)

   SHARING. Example e is rank e % nranks' to answer; all ranks make equally many passes, some with
   fewer rows or none, since a pass of a sharded model needs all of them. Counts of all ranks add
   up to those of one.

   WHY A ROOM. Which tokens count, and who is right, is arithmetic over a file and an array of
   losses: it needs no model, rank or device to be tested.
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
    int rank, nranks; /* the caller's, as are the next two */
    int rows;         /* of a pass, at most */
    int seq_len;      /* T: tokens of a row */
    /* What is found out. */
    int64_t asked, right; /* examples of this rank */
    /* Private: of the row that comes next, and of those of the current pass. */
    int64_t next; /* this rank's rows, four an example */
    int filled;
    int best;
    double least;
    struct hellaswag_row {
        int first, count, label; /* the counted losses; the example's answer */
    } * row;                     /* [rows] */
} hellaswag;

/* Opens the file; the fields rank to seq_len are set. An example that has more than seq_len + 1
   tokens is an error. Errors: those of eval_file_open. */
data_result hellaswag_open(hellaswag *h, const char *path, uint32_t vocabulary, char *error,
                           size_t error_bytes);
void hellaswag_close(hellaswag *h);

/* Passes that every rank makes, at least 1. */
int64_t hellaswag_passes(const hellaswag *h);

/* Before the first pass. */
void hellaswag_begin(hellaswag *h);

/* The next pass: inputs and targets [rows][seq_len], of which the first *filled rows are used.
   Errors: those of eval_file_read. */
data_result hellaswag_fill(hellaswag *h, int *inputs, int *targets, int *filled, char *error,
                           size_t error_bytes);

/* After it: losses [filled][seq_len], of each token. */
void hellaswag_count(hellaswag *h, const float *losses);

#ifdef __cplusplus
}
#endif
#endif

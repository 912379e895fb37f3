/* step_line.h - the line of a step, in llm.c's form.

       step 240/2000 | loss 2.123456 (+0.31z)| norm 1.8056 (-0.20z)| lr 9.99e-04 | 8.75 ms |
       43.1% of matmul | 87771 tok/s | scale 65536 | skipped 1

   all on one line. The loss is in the same columns as in llm.c. A z-score needs 128 steps, and is
   printed after them. The scale is printed if losses are scaled, and skipped if steps were skipped.

   WHY A FILE. Other programs read this line, so its form has a test of its own.
*/
#ifndef STEP_LINE_H
#define STEP_LINE_H

#include <stddef.h>
#include <stdint.h>

#include "../../zero_plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { STEP_LINE_BYTES = 512 };

typedef struct step_line {
    int step, steps;
    double loss, loss_z; /* loss_z: not finite if it is not known yet */
    double norm_z;       /* z-score of done->norm */
    double lr, seconds;
    double share;         /* see step_line_share; above 1 if a step is faster than the peak */
    const char *share_of; /* the words after the share; borrowed */
    double tokens_per_s;  /* the average */
    const zero_step_report *done;
    int mixed;           /* 1: the model has experts */
    double aux, dropped; /* auxiliary loss of their layers; dropped choices of tokens */
} step_line;

/* Sets share and share_of: the floating-point operations per second of the step as a share of
   `stated`, the peak that the GPU's maker states, or of `measured`, that of the fastest matrix
   product, where stated is 0. If both are 0, the share is 0. A share above 1 is not cut: the words
   after it say that it is above the peak. */
void step_line_share(step_line *line, double flops, double measured, double stated);

/* step_line_print writes the line and its newline; step_line_brief writes a short live line. */
void step_line_print(const step_line *v, char text[STEP_LINE_BYTES]);
void step_line_brief(const step_line *v, char text[STEP_LINE_BYTES]);

#ifdef __cplusplus
}
#endif
#endif

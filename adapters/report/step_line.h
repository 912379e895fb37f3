/* step_line.h - the line of a step, as llm.c's users and tools know it.

       step 240/2000 | loss 2.123456 (+0.31z)| norm 1.8056 (-0.20z)| lr 9.99e-04 | 8.75 ms |
       43.1% of matmul | 87771 tok/s | scale 65536 | skipped 1

   all on one line; the loss stands in the columns where llm.c has it. A z is shown when there is
   one: it takes 128 steps to know what is usual. Scale and skips are shown where they matter.

   WHY A ROOM. It is the one line that other programs read, so its form is tested by itself.
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
    double loss, loss_z; /* z: not finite where there is none */
    double norm_z;       /* of done->norm */
    double lr, seconds;
    double share;         /* see step_line_share; above 1 if a step is faster than the peak */
    const char *share_of; /* the words after the share; not owned */
    double tokens_per_s;  /* averaged */
    const zero_step_report *done;
    int mixed;           /* there are experts: */
    double aux, dropped; /* auxiliary loss of their layers; choices of tokens dropped */
} step_line;

/* Sets share and share_of: the floating-point operations per second of the step as a share of
   `stated`, the peak that the GPU's maker states, or of `measured`, that of the fastest matrix
   product, where stated is 0. If both are 0, the share is 0. A share above 1 is not cut: the words
   after it say that it is above the peak. */
void step_line_share(step_line *line, double flops, double measured, double stated);

/* The whole line, its end included; and a short one, for a live line. */
void step_line_print(const step_line *v, char text[STEP_LINE_BYTES]);
void step_line_brief(const step_line *v, char text[STEP_LINE_BYTES]);

#ifdef __cplusplus
}
#endif
#endif

/* outliers.h - how unusual a step's loss or gradient norm is among the last 128, as llm.c's -sl and
   -sg judge it.

   WHY A ROOM. The numbers that a step is judged by are state of a training: a run that goes on from
   a checkpoint judges as one that was never stopped, so they are printed and parsed exactly.
   Nothing here knows where they come from.
*/
#ifndef OUTLIERS_H
#define OUTLIERS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    OUTLIERS_WINDOW = 128,
    OUTLIERS_TEXT = 26 * (OUTLIERS_WINDOW + 1) /* bytes; a value: " -0x1.fffffffffffffp-1022" */
};

/* All zeros: none were seen. */
typedef struct outliers {
    double values[OUTLIERS_WINDOW]; /* a ring: value i is at i % OUTLIERS_WINDOW */
    int64_t seen;
} outliers;

/* Adds a value; how many standard deviations it lies above the mean of the last 128, itself
   included. NaN: there are too few, or it is not finite (then it is not added). */
double outliers_score(outliers *o, double value);

/* "SEEN VALUE VALUE ...", exact; and back. A text that is none gives an empty window. */
void outliers_print(const outliers *o, char text[OUTLIERS_TEXT]);
void outliers_parse(outliers *o, const char *text);

#ifdef __cplusplus
}
#endif
#endif

/* outliers.h - computes how far a step's loss or gradient norm lies from the last 128, as llm.c
   does for -sl and -sg.

   The last values are part of the state of a run, and checkpoints contain them. They are printed
   and parsed exactly, so that a resumed run skips the same steps as a run that never stopped.
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

/* Clear it before the first value. */
typedef struct outliers {
    double values[OUTLIERS_WINDOW]; /* a ring: value i is at i % OUTLIERS_WINDOW */
    int64_t seen;
} outliers;

/* Adds a value, and returns how many standard deviations it lies above the mean of the last 128
   values, including itself. Returns NaN while there are fewer values. A value that is not finite is
   not added, and gives NaN. */
double outliers_score(outliers *o, double value);

/* Prints all values exactly, as "SEEN VALUE VALUE ...", and parses such a text. A malformed text
   gives an empty window. */
void outliers_print(const outliers *o, char text[OUTLIERS_TEXT]);
void outliers_parse(outliers *o, const char *text);

#ifdef __cplusplus
}
#endif
#endif

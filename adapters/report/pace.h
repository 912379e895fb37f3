/* pace.h - how fast steps are: seconds of each, tokens per second averaged, the mean of a run.

   The average weighs a step 0.95 times as much as the one after it, corrected for its start as
   AdamW corrects its moments. The first step of a run, which warms up, counts in neither.
*/
#ifndef PACE_H
#define PACE_H

#ifdef __cplusplus
extern "C" {
#endif

/* All zeros: no step was made. */
typedef struct pace {
    double began;   /* private: clock */
    int steps;      /* made, the first one too */
    double total_s; /* private: of all but the first */
    double average; /* private */
    double seconds; /* of the last step */
    double rate;    /* its tokens per second */
    double smooth;  /* the same, averaged */
} pace;

/* Seconds, of a clock that goes forward alone. */
double pace_clock(void);

void pace_begin(pace *p);
void pace_end(pace *p, double tokens);

/* Seconds of a step; 0: there are too few. */
double pace_mean(const pace *p);

#ifdef __cplusplus
}
#endif
#endif

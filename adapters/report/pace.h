/* pace.h - the speed of steps: the seconds of each, average tokens per second, the run's mean.

   The average weighs a step 0.95 times as much as the next step, with AdamW's correction for the
   first steps. The first step of a run warms up, and counts neither in the average nor in the mean.
*/
#ifndef PACE_H
#define PACE_H

#ifdef __cplusplus
extern "C" {
#endif

/* All zeros: no step was made. */
typedef struct pace {
    double began;   /* private: clock */
    int steps;      /* steps made, including the first */
    double total_s; /* private: seconds of all steps but the first */
    double average; /* private: the average before its correction */
    double seconds; /* duration of the last step */
    double rate;    /* tokens per second of the last step */
    double smooth;  /* average tokens per second */
} pace;

/* Returns the seconds of a clock that never goes back. */
double pace_clock(void);

void pace_begin(pace *p);
void pace_end(pace *p, double tokens);

/* Returns the mean seconds of a step, or 0 if fewer than two steps were made. */
double pace_mean(const pace *p);

#ifdef __cplusplus
}
#endif
#endif

/* pace.c - see pace.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "pace.h"
#include "../system/clock.h"

#include <math.h>

double pace_clock(void) { return clock_seconds(CLOCK_MONOTONIC); }

void pace_begin(pace *p) { p->began = pace_clock(); }

void pace_end(pace *p, double tokens) {
    p->seconds = pace_clock() - p->began;
    p->rate = tokens / p->seconds;
    p->smooth = p->rate;
    if (p->steps++ == 0) return;
    p->total_s += p->seconds;
    p->average = 0.95 * p->average + 0.05 * p->rate;
    p->smooth = p->average / (1 - pow(0.95, p->steps - 1));
}

double pace_mean(const pace *p) { return p->steps > 1 ? p->total_s / (p->steps - 1) : 0; }

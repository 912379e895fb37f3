/* save_line.h - the line of a checkpoint: what a save took, and what of a step that is. */
#ifndef SAVE_LINE_H
#define SAVE_LINE_H

#include "../checkpoint/checkpoint.h"
#include "report.h"

#ifdef __cplusplus
extern "C" {
#endif

/* aside: it is still being written. step_s: mean seconds of a step so far; 0: not known. */
void save_line(report *out, int step, const checkpoint_report *r, int aside, double step_s);

#ifdef __cplusplus
}
#endif
#endif

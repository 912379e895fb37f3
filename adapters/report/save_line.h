/* save_line.h - the line of a checkpoint: the time of a save, also as a share of a step */
#ifndef SAVE_LINE_H
#define SAVE_LINE_H

#include "../checkpoint/checkpoint.h"
#include "report.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Prints the line. aside: 1 while a thread writes the checkpoint. step_s: mean seconds of a step so
   far, or 0 if it is not known. */
void save_line(report *out, int step, const checkpoint_report *r, int aside, double step_s);

#ifdef __cplusplus
}
#endif
#endif

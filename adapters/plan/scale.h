/* scale.h - weak scaling, simulated from a machine's measured parts: stage 3 with and without every
   method of wire.h, 8 ranks a node, 8 to 1,024 ranks, links of 100 and 400 Gbit/s a node.

   WHY A FILE. zero_plan plans one case. This file simulates steps (overlap.h) for all ranks, links
   and methods.
*/
#ifndef PLAN_SCALE_H
#define PLAN_SCALE_H

#include "overlap.h"
#include "plan_print.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SCALE_NODE = 8, SCALE_LEAST = 8, SCALE_MOST = 1024 };

/* Simulates a step of `ranks` ranks, with links of `gbits` Gbit/s for each node, at the rates of
   r->machine. Returns 0, or 1 and a sentence. */
int scale_step(const plan_request *r, const wire_method *method, int ranks, double gbits,
               overlap_step *step, char *sentence, size_t bytes);

/* Prints tables to stdout and writes the file `csv`. If `folder` is not "", also draws
   folder/scale_100.svg and scale_400.svg. Returns 0, or 1 and a sentence. */
int scale_print_note(const plan_request *r, const char *csv, const char *folder, char *sentence,
                     size_t bytes);

#ifdef __cplusplus
}
#endif
#endif

/* plan_print.h - prints plans: the table of stages and tiers, the largest models, advice.

   WHY A FILE. plan.h plans one case, and this file compares cases. Each row of the table is a stage
   and a tier. A sentence reports its cost.
*/
#ifndef PLAN_PRINT_H
#define PLAN_PRINT_H

#include "plan_request.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Prints all plans to stdout. Returns 0, or 1 and a sentence. */
int plan_print(const plan_request *r, char *sentence, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif

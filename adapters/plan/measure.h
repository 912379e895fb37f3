/* measure.h - this machine's rates, for machine.h: a few seconds of GPT-2's own passes and of the
   plugin's own steps, on as many ranks at once as will train.

   WHY A ROOM. A rate that was measured alone is not the one that a rank has beside others: so the
   ranks are started as a trainer's are, and wait for each other before each measurement. What two
   sizes differ by is measured, so that what every size costs is in no rate.
*/
#ifndef PLAN_MEASURE_H
#define PLAN_MEASURE_H

#include "machine.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct measure_wish {
    int ranks, threads; /* threads of each; 0: the processors divided by the ranks */
    unsigned types;     /* bit t: zero_type t */
    const char *folder; /* where a file is written; NULL: the disk is not measured */
} measure_wish;

/* Call it first in a process: ranks are forked. Returns 0, or 1 and a sentence. CPU. */
int measure_machine(const measure_wish *wish, machine *m, char *sentence, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif

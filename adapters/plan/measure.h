/* measure.h - measures this machine's rates for machine.h, with a few seconds of GPT-2's forwards
   and backwards and of the plugin's steps, on as many ranks at once as will train.

   WHY A FILE. A rank alone is faster than a rank next to others. So the ranks start as a trainer's
   ranks do, and wait for each other before each measurement. A rate is the difference of two sizes
   divided by the difference of their times, so fixed costs cancel.
*/
#ifndef PLAN_MEASURE_H
#define PLAN_MEASURE_H

#include "machine.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct measure_wish {
    int ranks, threads; /* threads of each rank; 0: the processors divided by the ranks */
    unsigned types;     /* bit t: measure zero_type t */
    const char *folder; /* folder for a file; NULL: the disk is not measured */
} measure_wish;

/* Measures the rates for one model, by ranks that exist already, in about `seconds`. A round of
   each measurement is made in any case, so a slow disk takes longer. type: that of the parameters.
   It leaves out overlap, coding and latency. CPU only. COLLECTIVE, on a communicator without
   another call in progress. All ranks get the same rates. */
int measure_ranks(const zero_comm *comm, const gpt2_config *model, int seq_len, zero_type type,
                  const measure_wish *wish, double seconds, machine *m, char *sentence,
                  size_t bytes);

/* Returns 1 if compute hides communication: a processor is free for it. */
int measure_overlap(int ranks, int threads);

/* Call it first in a process, because it forks ranks. CPU only. Returns 0, or 1 and a sentence. */
int measure_machine(const measure_wish *wish, machine *m, char *sentence, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif

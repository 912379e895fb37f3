/* new_ranks.h - the trainer's part of a change of its ranks between two steps (-pnf).

   The way of a change: launch/members.h starts and ends processes, zero_resize moves the state of
   the plugin in memory, and the trainer's own values go from rank 0, which never joins, to all
   ranks. A rank that joins has read the command line and the data by itself.

       new_ranks_ready    rank 0, at the end of a step: answers a request; 1: the ranks change now
       launch_move        all ranks, if rank 0 passed the 1 on
       new_ranks_take     the ranks of the new number: their place, and the batch
       zero_resize        the state
       zero_broadcast     new_ranks_state */
#ifndef NEW_RANKS_H
#define NEW_RANKS_H

#include "../launch/launch.h"
#include "../options/train_resolve.h"
#include "../report/pace.h"
#include "../report/report.h"
#include "../schedule/outliers.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The values of a trainer that are equal on all ranks, and those that only rank 0 uses. */
typedef struct new_ranks_state {
    int step, first;
    int64_t data_step, updates, saved, durable;
    outliers losses, norms;
    pace speed;
    double matmul_rate, peak_rate; /* of all ranks together */
} new_ranks_state;

/* -pe: after ranks have died, reduces the job to the largest number of ranks that can continue. */
void new_ranks_reduce(launch *l, const train_options *o, const gpt2_config *model);

/* Ends the job if -pm or -pnf is given and ranks that were started in this way cannot have it.
   COLLECTIVE. */
void new_ranks_check(launch *l, const train_options *o);

/* Answers a request with the largest number of ranks that -d, -b and -vr allow. Returns 1 if the
   ranks that join are ready. Only rank 0 calls it, and not after the last step. */
int new_ranks_ready(launch *l, const train_options *o, const gpt2_config *model, report *out);

/* Computes the layout and the batch of the new ranks, and lets the new rank 0 print. COLLECTIVE
   over the new ranks. */
void new_ranks_take(launch *l, const train_options *o, const gpt2_config *model, layout *ranks,
                    batch_shape *batch, report *out);

#ifdef __cplusplus
}
#endif
#endif

/* comms_table.h - how long collectives take, by operation and size.

   A row is an operation, of zero_event's kinds that communicate, a size, and the ranks n that it is
   among. algbw and busbw are as nccl-tests define them: of an all-gather, a reduce-scatter and an
   all-to-all, whose size is that of all ranks' parts together,
       algbw = size / time,     busbw = algbw * (n - 1) / n
   of a sum on all ranks twice that busbw, of a broadcast and of messages busbw = algbw. time is the
   mean over all; p50 and p99 are those of the newest COMMS_NEWEST. It begins when the stream comes
   to the operation, so it holds the wait for ranks that come later: a rank whose time is far below
   that of the others is the one that they wait for. Its `straggler` time, as DeepSpeed's, is what
   lies above the least of all ranks.

   WHY A ROOM. It is arithmetic on events, and tested as that.
*/
#ifndef COMMS_TABLE_H
#define COMMS_TABLE_H

#include <stdint.h>

#include "../../zero_plugin.h"
#include "report.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { COMMS_ROWS = 32, COMMS_NEWEST = 1024 };

typedef struct comms_row {
    zero_event_kind kind;
    int ranks;
    uint64_t bytes;
    uint64_t count;
    double total; /* seconds */
    double newest[COMMS_NEWEST];
} comms_row;

/* All zeros: empty. */
typedef struct comms_table {
    comms_row row[COMMS_ROWS]; /* by kind, size and ranks */
    int n;
    uint64_t others; /* events of sizes that there was no row for */
} comms_table;

void comms_events(comms_table *t, const zero_event *events, int n);

/* Milliseconds, and GB/s (1e9). */
typedef struct comms_figures {
    double mean_ms, p50_ms, p99_ms, algbw, busbw;
} comms_figures;
comms_figures comms_compute_figures(const comms_row *row);

/* The ranks of a table: those that a context shards over, or a group's. */
typedef struct comms_ranks {
    int rank, n;
    zero_result (*sum)(void *of, double *values, int n); /* in place, over them: n values at most */
    void *of;
} comms_ranks;
comms_ranks comms_ranks_of(zero_ctx *z);
comms_ranks comms_ranks_of_group(zero_group *g);

/* Prints rank 0's table, then the mean of each rank and its straggler time, where all have the same
   operations and are 64 at most. `what`: "collectives". COLLECTIVE, SYNC. */
zero_result comms_print(comms_table *t, const comms_ranks *ranks, const char *what, report *out);

#ifdef __cplusplus
}
#endif
#endif

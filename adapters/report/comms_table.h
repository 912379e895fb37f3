/* comms_table.h - how long collectives take, by operation and size.

   A row is one operation (a kind of zero_event that communicates), one size, and the number n of
   its ranks. algbw and busbw are those of nccl-tests. For an all-gather, a reduce-scatter and an
   all-to-all the size is that of all ranks' parts together, and
       algbw = size / time,     busbw = algbw * (n - 1) / n
   An all-reduce has twice that busbw. For a broadcast and for messages busbw = algbw. The time is
   the mean of all; p50 and p99 are those of the newest COMMS_NEWEST. It begins when the stream
   reaches the operation, so it includes the wait for later ranks: a rank whose time is far below
   the others' is the one they wait for. The `straggler` time is the time above the least of all
   ranks, as in DeepSpeed.

   WHY A FILE. This is arithmetic on events, and tests give it any events.
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
    uint64_t others; /* events that found no free row */
} comms_table;

void comms_events(comms_table *t, const zero_event *events, int n);

/* Times are milliseconds; bandwidths are GB/s (1e9). */
typedef struct comms_figures {
    double mean_ms, p50_ms, p99_ms, algbw, busbw;
} comms_figures;
comms_figures comms_compute_figures(const comms_row *row);

/* The ranks of a table: those of a context, or those of a group. */
typedef struct comms_ranks {
    int rank, n;
    zero_result (*sum)(void *of, double *values, int n); /* in place, over the ranks; at most n */
    void *of;
} comms_ranks;
comms_ranks comms_ranks_of(zero_ctx *z);
comms_ranks comms_ranks_of_group(zero_group *g);

/* Prints rank 0's table. If at most 64 ranks all have the same operations, prints each rank's mean
   and straggler time too. `what`: "collectives". COLLECTIVE, SYNC. */
zero_result comms_print(comms_table *t, const comms_ranks *ranks, const char *what, report *out);

#ifdef __cplusplus
}
#endif
#endif

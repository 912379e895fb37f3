/* clocks.h - how far a rank's clock is ahead of rank 0's, and the error of that figure.

   In a MEETING all ranks pass a barrier. Then rank 0 reads its clock and broadcasts the time:

       this rank   before  ---- barrier ----                ---- broadcast ----  after
       rank 0                                 rank 0's clock

   Rank 0 reads its clock after this rank reached the barrier, and before this rank receives the
   time. So this rank is ahead by at least before - rank 0's and at most after - rank 0's, whatever
   the delay of messages. Several meetings narrow the interval. Its middle is wrong by at most half
   its width. This holds for the moment: clocks of machines drift by some microseconds a second.

   WHY A FILE. This is arithmetic, and a test gives it any clocks and delays.
*/
#ifndef CLOCKS_H
#define CLOCKS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct clocks {
    double least, most; /* bounds on the seconds by which this rank's clock is ahead */
} clocks;

/* Sets infinite bounds. */
void clocks_open(clocks *c);
/* Adds one meeting: two times of this rank's clock and one of rank 0's, in seconds. */
void clocks_meet(clocks *c, double before, double zero, double after);
double clocks_ahead(const clocks *c);
/* Returns the greatest error of clocks_ahead, in seconds. */
double clocks_within(const clocks *c);

/* Returns a hash of the machine's boot and of the container's time namespace. Ranks with the same
   hash share one CLOCK_MONOTONIC. Returns 0 if it is not known. */
uint64_t clocks_identity(void);

#ifdef __cplusplus
}
#endif
#endif

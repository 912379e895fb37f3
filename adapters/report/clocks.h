/* clocks.h - how far a rank's clock is ahead of rank 0's, and how far off that may be.

   A MEETING of all ranks, over which rank 0 then hands round what its clock shows:

       this rank   before  ---- all meet ----                ---- told ----  behind
       rank 0                                 rank 0's clock

   Rank 0 looks at its clock when this rank has come, and before this rank is told. So what this
   rank is ahead lies between before - rank 0's and behind - rank 0's, however long messages take
   either way. Several meetings leave what lies between all of these; its middle is at most half of
   that off. That holds for the moment: clocks of machines drift, some microseconds a second.

   WHY A ROOM. Arithmetic that a test can give any clocks and delays.
*/
#ifndef CLOCKS_H
#define CLOCKS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct clocks {
    double least, most; /* seconds that this rank's is ahead */
} clocks;

/* Nothing is known. */
void clocks_open(clocks *c);
/* One meeting; seconds: two times of this rank's clock, one of rank 0's. */
void clocks_meet(clocks *c, double before, double zero, double behind);
double clocks_ahead(const clocks *c);
/* What that is off at most. */
double clocks_within(const clocks *c);

/* Ranks of which this is the same have one CLOCK_MONOTONIC: the machine's boot, and the time
   namespace of a container. 0: cannot be told. */
uint64_t clocks_identity(void);

#ifdef __cplusplus
}
#endif
#endif

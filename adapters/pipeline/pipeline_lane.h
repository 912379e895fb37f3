/* pipeline_lane.h - sends a rank's messages while the rank computes, for a pipeline's stages and
   for the ring of ../gpt2/ring.h (pipeline_lane.c: a thread; pipeline_lane_cuda.cu: a stream).

   PURPOSE. A group's exchange can be a rendezvous, in which the sender waits for the receiver. In
   an interleaved schedule a stage would wait for neighbours while it has work to do. The lane runs
   the exchanges in their order, each as soon as the works of its `after` are done. A work waits
   only for the exchanges that it needs.

   One CPU thread owns a lane. Only the lane uses its group between begin and end. Errors are
   sticky: after an error the lane sends no message. */
#ifndef PIPELINE_LANE_H
#define PIPELINE_LANE_H

#include <stddef.h>

#include "../../zero_plugin.h"
#ifdef __cplusplus
extern "C" {
#endif

typedef struct pipeline_lane pipeline_lane;

/* Most messages of one exchange. A stage sends one, and receives one from each neighbour. */
enum { PIPELINE_MESSAGES = 4 };

/* The exchanges, in order. The functions read `user`, which is borrowed until pipeline_lane_end. */
typedef struct pipeline_exchanges {
    int count;
    /* Returns the number of works that must be done before exchange x. It never decreases. */
    int (*after)(const void *user, int x);
    /* Lists the messages of exchange x, and returns their number, which may be 0. */
    int (*list)(const void *user, int x, zero_message list[PIPELINE_MESSAGES]);
    const void *user;
} pipeline_exchanges;

/* group: the ranks that the messages name. CUDA: the lane sends on the stream `wires`; works are
   enqueued on `computes` (cudaStream_t; they may be equal). CPU: both NULL. Returns NULL if memory
   or the thread is not available. */
pipeline_lane *pipeline_lane_open(zero_group *group, void *computes, void *wires);
/* lane may be NULL. Waits for a running exchange. */
void pipeline_lane_close(pipeline_lane *lane);

/* Begins with the first exchange. *plan is copied. */
void pipeline_lane_begin(pipeline_lane *lane, const pipeline_exchanges *plan);
/* Reports that the first `works` works are done; in CUDA, that they are enqueued. */
zero_result pipeline_lane_done(pipeline_lane *lane, int works);
/* Waits for the first `exchanges` exchanges; in CUDA the computing stream waits. */
zero_result pipeline_lane_await(pipeline_lane *lane, int exchanges);
/* Waits for all exchanges. If `broken` is 1, no further exchange begins. */
zero_result pipeline_lane_end(pipeline_lane *lane, int broken);

#ifdef __cplusplus
}
#endif
#endif

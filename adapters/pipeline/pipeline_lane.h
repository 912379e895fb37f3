/* pipeline_lane.h - sends a pipeline stage's messages while the stage computes (pipeline_lane.c: a
   thread; pipeline_lane_cuda.cu: a stream).

   PURPOSE. A group's exchange can be a rendezvous, in which the sender waits for the receiver. In
   an interleaved schedule a stage would wait for neighbours while it has work to do. The lane runs
   the exchanges in their order, each as soon as the works of its `after` are done. A work waits
   only for the exchanges that it needs.

   One CPU thread owns a lane. Only the lane uses its group while a plan runs. Errors are sticky:
   after an error the lane sends no message. */
#ifndef PIPELINE_LANE_H
#define PIPELINE_LANE_H

#include <stddef.h>

#include "../../zero_plugin.h"
#include "pipeline.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pipeline_lane pipeline_lane;

/* Most messages of one exchange: one sent, and one received from each neighbour. */
enum { PIPELINE_MESSAGES = 3 };

/* group: rank s is stage s. CUDA: the lane sends on the stream `wires`; works are enqueued on
   `computes` (cudaStream_t; they may be equal). CPU: both NULL. Returns NULL if memory or the
   thread is not available. */
pipeline_lane *pipeline_lane_open(zero_group *group, void *computes, void *wires);
/* lane may be NULL. Waits for a running exchange. */
void pipeline_lane_close(pipeline_lane *lane);

/* Begins a plan. memory [plan->buffers][bytes]; both are borrowed until pipeline_lane_end. */
void pipeline_lane_begin(pipeline_lane *lane, const pipeline_plan *plan, char *memory,
                         size_t bytes);
/* Reports that the first `works` works are done; in CUDA, that they are enqueued. */
zero_result pipeline_lane_done(pipeline_lane *lane, int works);
/* Waits for the first `exchanges` exchanges; in CUDA the computing stream waits. */
zero_result pipeline_lane_await(pipeline_lane *lane, int exchanges);
/* Ends the plan. If `broken` is 1, no further exchange begins. */
zero_result pipeline_lane_end(pipeline_lane *lane, int broken);

/* For the implementations: lists the messages of exchange x for the group. */
static inline int pipeline_lane_list(const pipeline_plan *plan, int x, char *memory, size_t bytes,
                                     zero_message list[PIPELINE_MESSAGES]) {
    const pipeline_exchange *e = &plan->exchange[x];
    for (int i = 0; i < e->count; i++) {
        const pipeline_message *m = &plan->message[e->first + i];
        list[i].peer = m->peer;
        list[i].sends = m->sends;
        list[i].data = memory + (size_t)m->buffer * bytes;
        list[i].bytes = bytes;
    }
    return e->count;
}

#ifdef __cplusplus
}
#endif
#endif

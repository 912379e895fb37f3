/* pipeline_lane.h - the messages of a pipeline's stage, beside what it computes (pipeline_lane.c: a
   thread; pipeline_lane_cuda.cu: a stream).

   WHY A LANE. Exchanges are rendezvous where the group's are: who sends waits for the receiver. In
   an interleaved schedule a stage would wait for neighbours at ticks at which it has work to do. A
   lane takes the exchanges in their order, each as soon as the works that it is `after` are done,
   and a work waits for what it needs alone.

   A lane belongs to one host thread; its group is used by nobody else while a plan runs. Errors are
   sticky: after one no message goes any more. */
#ifndef PIPELINE_LANE_H
#define PIPELINE_LANE_H

#include <stddef.h>

#include "../../zero_plugin.h"
#include "pipeline.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pipeline_lane pipeline_lane;

/* Messages of an exchange: one sent, one received from either neighbour. */
enum { PIPELINE_TOGETHER = 3 };

/* group: rank s is stage s. CUDA: it sends on the stream `wires`, and works are enqueued on
   `computes` (cudaStream_t; the two may be the same); CPU: both NULL. NULL: no memory, or no
   thread.
 */
pipeline_lane *pipeline_lane_open(zero_group *group, void *computes, void *wires);
/* NULL is allowed. Waits for an exchange that is under way. */
void pipeline_lane_close(pipeline_lane *lane);

/* A plan begins. memory [plan->buffers][bytes]; both borrowed until pipeline_lane_end. */
void pipeline_lane_begin(pipeline_lane *lane, const pipeline_plan *plan, char *memory,
                         size_t bytes);
/* The first so many works are done; in CUDA they are enqueued. */
zero_result pipeline_lane_done(pipeline_lane *lane, int works);
/* Waits for the first so many exchanges; in CUDA the computing stream does. */
zero_result pipeline_lane_await(pipeline_lane *lane, int exchanges);
/* The plan ends: with `broken` no further exchange begins. */
zero_result pipeline_lane_end(pipeline_lane *lane, int broken);

/* For the implementations: exchange x as the group takes it. */
static inline int pipeline_lane_list(const pipeline_plan *plan, int x, char *memory, size_t bytes,
                                     zero_message list[PIPELINE_TOGETHER]) {
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

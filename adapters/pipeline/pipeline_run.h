/* pipeline_run.h - runs a plan of pipeline.h: the host's forwards and backwards in its order, and
   messages to the neighbouring stages beside them.

   EXAMPLE
       pipeline_host host = {forward, backward, &model};
       pipeline_run *run;
       pipeline_open(&run, stages, NULL, NULL, why);
       for (...) pipeline_step(run, &plan, &host, memory, bytes);
       pipeline_close(run);

   One run belongs to one host thread. CPU: a step is done when pipeline_step returns. CUDA: it is
   enqueued; the host's functions enqueue on the computing stream. */
#ifndef PIPELINE_RUN_H
#define PIPELINE_RUN_H

#include <stddef.h>

#include "../../zero_plugin.h"
#include "pipeline.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a stage computes. Pointers are to messages; NULL at the ends of the model. A result that is
   not ZERO_OK ends the step, and pipeline_step returns it. */
typedef struct pipeline_host {
    /* in: the activation that comes in, which stays until the backward of w's chunk and micro-batch
       is over; out: where the one that goes on is put. */
    zero_result (*forward)(void *user, const pipeline_work *w, void *in, void *out);
    /* gradient: that of the output, in the last chunk nothing; in its place that of the input. */
    zero_result (*backward)(void *user, const pipeline_work *w, void *in, void *gradient);
    void *user;
} pipeline_host;

typedef struct pipeline_run pipeline_run;

enum { PIPELINE_SENTENCE = 256 };

/* stages: rank s of the group is stage s; borrowed until pipeline_close, and used by nobody else
   within a step. Streams as in pipeline_lane.h. Errors: MEMORY, with a sentence in `why`
   (PIPELINE_SENTENCE bytes); *run is NULL then. */
zero_result pipeline_open(pipeline_run **run, zero_group *stages, void *computes, void *wires,
                          char *why);
void pipeline_close(pipeline_run *run); /* NULL is allowed */

/* memory [plan->buffers][bytes], of the device. COLLECTIVE over the stages, which give plans of one
   shape and the same bytes. Errors: those of the host's functions, and of zero_group_send_receive,
   whose sentence the group has; after one the run is dead. */
zero_result pipeline_step(pipeline_run *run, const pipeline_plan *plan, const pipeline_host *host,
                          void *memory, size_t bytes);

/* Seconds since it was opened, CPU: in the host's functions, and waiting for messages. */
typedef struct pipeline_times {
    double busy_s, waited_s;
} pipeline_times;
void pipeline_query_times(const pipeline_run *run, pipeline_times *times);

#ifdef __cplusplus
}
#endif
#endif

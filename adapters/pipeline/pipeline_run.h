/* pipeline_run.h - runs a plan of pipeline.h: calls your forward and backward functions in its
   order and exchanges messages with the neighbouring stages meanwhile.

   EXAMPLE
       pipeline_functions stage = {forward, backward, &model};
       pipeline_run *run;
       pipeline_open(&run, stages, NULL, NULL, why);
       for (...) pipeline_step(run, &plan, &stage, memory, bytes);
       pipeline_close(run);

   One CPU thread owns a run. CPU: pipeline_step returns when the step is done. CUDA: it returns
   when the step is enqueued; your functions enqueue on the computing stream. */
#ifndef PIPELINE_RUN_H
#define PIPELINE_RUN_H

#include <stddef.h>

#include "../../zero_plugin.h"
#include "pipeline.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What a stage computes. Pointers are to messages; NULL at the ends of the model. A result other
   than ZERO_OK ends the step, and pipeline_step returns it. */
typedef struct pipeline_functions {
    /* in: the input activation, unchanged until the backward of w's chunk and micro-batch ends.
       out: receives the output activation. */
    zero_result (*forward)(void *user, const pipeline_work *w, void *in, void *out);
    /* gradient: the output's gradient, replaced by the input's. Empty on entry in the last
       chunk. */
    zero_result (*backward)(void *user, const pipeline_work *w, void *in, void *gradient);
    void *user;
} pipeline_functions;

typedef struct pipeline_run pipeline_run;

enum { PIPELINE_SENTENCE = 256 };

/* stages: rank s of the group is stage s. It is borrowed until pipeline_close, and your code must
   not use it during a step. Streams as in pipeline_lane.h. Errors: MEMORY, with a sentence in `why`
   (PIPELINE_SENTENCE bytes); *run is NULL then. */
zero_result pipeline_open(pipeline_run **run, zero_group *stages, void *computes, void *wires,
                          char *why);
void pipeline_close(pipeline_run *run); /* run may be NULL */

/* memory [plan->buffers][bytes], of the device. COLLECTIVE over the stages; all pass plans of one
   shape and the same bytes. Errors: those of your functions and of zero_group_send_receive (the
   group has the sentence). After an error the run cannot be used again. */
zero_result pipeline_step(pipeline_run *run, const pipeline_plan *plan,
                          const pipeline_functions *stage, void *memory, size_t bytes);

/* CPU: seconds since pipeline_open, in your functions and waiting for messages. */
typedef struct pipeline_times {
    double busy_s, waited_s;
} pipeline_times;
void pipeline_query_times(const pipeline_run *run, pipeline_times *times);

#ifdef __cplusplus
}
#endif
#endif

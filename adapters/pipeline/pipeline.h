/* pipeline.h - a pipeline's schedule as data: what each stage computes, in which order, and which
   messages the stages exchange meanwhile. It only computes the plan and communicates nothing.

   EXAMPLE
       pipeline_shape shape = {4, 16, 2, 0}; // stages, micro-batches, chunks of a stage
       pipeline_plan plan;
       if (pipeline_check(&shape, layers, why, sizeof why)) ...;
       if (pipeline_make(&plan, &shape, rank)) ...; // no memory
       ... pipeline_run.h runs it ...
       pipeline_free(&plan);

   WORDS
     p, m, v     stages, micro-batches of a step, chunks of a stage
     chunk       consecutive blocks. The model is cut into p v chunks; chunk c of stage s is
                 number c p + s of the model, so a micro-batch passes every stage v times
     work        forward or backward of one chunk and one micro-batch
     exchange    messages that a stage sends and receives together; `at` is the same number on
                 both sides of each message
     slot        memory for the activations that a chunk's forward keeps for its backward
     buffer      memory for one message: an activation or its gradient, both (rows, channels)

   ORDER. v = 1 is the 1F1B schedule (Narayanan et al. 2019): a stage runs p - 1 - s forwards, then
   alternates forward and backward, then runs the remaining backwards. v > 1 is the interleaved
   schedule (Narayanan et al. 2021, 2.2): 2 (p - 1 - s) + (v - 1) p forwards come first, in groups
   of p micro-batches per chunk. The idle time is (p - 1) / m or (p - 1) / (v m) of the ideal time.

   NO DEADLOCK. The plan comes from a simulation of all stages: a forward takes one tick, a backward
   two, a message none. A message belongs to the tick at which its content is ready, and the
   messages of one stage and tick form an exchange. Every stage runs its exchanges in the order of
   their ticks. A work waits only for exchanges of its tick or earlier. An exchange waits only for
   works that have ended by its tick. The simulated order satisfies all these conditions, so no real
   timing can deadlock. An exchange may wait for both sides, as a rendezvous does, while the stage
   computes.
*/
#ifndef PIPELINE_H
#define PIPELINE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pipeline_shape {
    int stages;       /* p, 1 or more */
    int micro;        /* m, 1 or more */
    int chunks;       /* v, 1 or more */
    int forward_only; /* 1: evaluation; m may have any value */
} pipeline_shape;

/* Buffer numbers; -1 means none, which occurs at the ends of the model. */
typedef struct pipeline_work {
    int backward; /* 0: forward */
    int chunk;    /* of this stage, 0..v-1 */
    int micro;    /* 0..m-1 */
    int slot;
    int input;    /* buffer of the input activation, for forward and for its backward */
    int output;   /* forward: buffer of the output activation */
    int gradient; /* backward: buffer of the output's gradient, overwritten with the input's; the
                     last chunk receives none, the first sends none */
    int needs;    /* number of this stage's exchanges that must be done before */
} pipeline_work;

typedef struct pipeline_message {
    int peer;  /* stage number */
    int sends; /* 1: sent to peer; 0: received from it */
    int buffer;
    int work; /* this stage's work that produces or uses the message */
} pipeline_message;

typedef struct pipeline_exchange {
    int first, count; /* range of messages */
    int after;        /* number of this stage's works that must be done before */
    int at;           /* tick */
} pipeline_exchange;

/* The plan of one stage. */
typedef struct pipeline_plan {
    pipeline_shape shape;
    int stage;
    int works, messages, exchanges, slots, buffers; /* counts */
    pipeline_work *work;
    pipeline_message *message;
    pipeline_exchange *exchange;
} pipeline_plan;

/* Returns 0 if a model of `layers` blocks can be cut like this. Otherwise it returns 1 and writes
   the reason and the nearest possible value to `why`. */
int pipeline_check(const pipeline_shape *shape, int layers, char *why, size_t bytes);

/* Returns 0, or 1 if there is no memory. */
int pipeline_make(pipeline_plan *plan, const pipeline_shape *shape, int stage);
void pipeline_free(pipeline_plan *plan);

/* Returns the most (micro-batch, chunk) pairs between forward and backward on a stage: min(m, p -
   stage), or interleaved min(v m, 2 (p - 1 - stage) + (v - 1) p + 1). It equals the plan's `slots`.
 */
int pipeline_in_flight(const pipeline_shape *shape, int stage);

/* Returns the number of messages that a stage sends in a step. */
int pipeline_sends(const pipeline_shape *shape, int stage);

/* Returns the share of the p stages' time that is idle. A chunk takes `forward` and `backward`,
   messages take no time. Below 0: no memory. The optimum is (p - 1) / (v m + p - 1). */
double pipeline_idle(const pipeline_shape *shape, double forward, double backward);

/* Divides the blocks among n chunks, at least one each, so that the most expensive chunk costs the
   least. A block costs 1; the first and the last chunk cost `first` and `last` more. Requires
   layers >= n. */
void pipeline_partition(int layers, int n, double first, double last, int *blocks);

#ifdef __cplusplus
}
#endif
#endif

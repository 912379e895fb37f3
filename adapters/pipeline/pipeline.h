/* pipeline.h - a pipeline's schedule as data: what each stage computes, in which order, and which
   messages go between stages beside it. Arithmetic alone: no ranks, no memory but the plan's own.

   EXAMPLE
       pipeline_shape shape = {4, 16, 2, 0}; // stages, micro-batches, chunks of a stage
       pipeline_plan plan;
       if (pipeline_check(&shape, layers, why, sizeof why)) ...;
       if (pipeline_make(&plan, &shape, rank)) ...; // no memory
       ... pipeline_run.h runs it ...
       pipeline_free(&plan);

   WORDS
     p, m, v     stages, micro-batches of a step, chunks of a stage
     chunk       blocks that follow each other. The model is cut into p v chunks; chunk c of stage s
                 is number c p + s of the model, so that a micro-batch goes v times around
     work        forward or backward of one chunk and one micro-batch
     exchange    messages that a stage sends and receives at once; the same number `at` on both
                 sides of each message
     slot        room for what a chunk's forward leaves for its backward
     buffer      room for one message: an activation or its gradient, both (rows, channels)

   ORDER. v = 1: one forward, one backward (Narayanan et al. 2019): p - 1 - s forwards, then forward
   and backward in turn, then what backwards are left. v > 1: interleaved (Narayanan et al. 2021,
   2.2): 2 (p - 1 - s) + (v - 1) p forwards first, in groups of p micro-batches that go through one
   chunk after the other. Idle share of the ideal time: (p - 1) / m, and (p - 1) / (v m).

   WHY NOTHING WAITS IN A CIRCLE. The whole schedule is played once, on paper, with a forward of one
   tick, a backward of two and messages that take none. A message belongs to the tick at which what
   it carries is done; messages of a stage and tick are an exchange. Exchanges take place in the
   order of their ticks on every stage, a work waits for exchanges of its tick or earlier, and an
   exchange for works that have ended by its tick: whatever the real times are, the paper's order
   satisfies all of it. Exchanges may wait for both sides, as a rendezvous does, and computing goes
   on beside them.
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
    int forward_only; /* an evaluation; any m then */
} pipeline_shape;

/* Numbers of buffers are -1 where there is none: at the ends of the model. */
typedef struct pipeline_work {
    int backward; /* 0: forward */
    int chunk;    /* of this stage, 0..v-1 */
    int micro;    /* 0..m-1 */
    int slot;
    int input;    /* buffer with the activation that comes in: forward, and backward again */
    int output;   /* forward: buffer for the one that goes on */
    int gradient; /* backward: buffer with that of the output, in whose place that of the input is
                     put; the last chunk's is empty before, the first's goes nowhere */
    int needs;    /* the first so many exchanges of this stage are done before */
} pipeline_work;

typedef struct pipeline_message {
    int peer;  /* a stage */
    int sends; /* 1: to it; 0: from it */
    int buffer;
    int work; /* of this stage, which makes or takes it */
} pipeline_message;

typedef struct pipeline_exchange {
    int first, count; /* of the messages */
    int after;        /* the first so many works of this stage are done before */
    int at;           /* tick */
} pipeline_exchange;

/* What one stage does. */
typedef struct pipeline_plan {
    pipeline_shape shape;
    int stage;
    int works, messages, exchanges, slots, buffers; /* how many */
    pipeline_work *work;
    pipeline_message *message;
    pipeline_exchange *exchange;
} pipeline_plan;

/* Whether a model of so many blocks can be cut like this: 0, or 1 and a sentence that says why not,
   and what is nearest. */
int pipeline_check(const pipeline_shape *shape, int layers, char *why, size_t bytes);

/* Returns 0, or 1 where there is no memory. */
int pipeline_make(pipeline_plan *plan, const pipeline_shape *shape, int stage);
void pipeline_free(pipeline_plan *plan);

/* The most micro-batches, times chunks, between forward and backward on a stage: min(m, p - stage);
   interleaved min(v m, 2 (p - 1 - stage) + (v - 1) p + 1). `slots` of its plan. */
int pipeline_in_flight(const pipeline_shape *shape, int stage);

/* Messages that a stage sends in a step. */
int pipeline_sends(const pipeline_shape *shape, int stage);

/* The share of p stages' time in which they wait, where a chunk's forward takes `forward` and its
   backward `backward`, and messages no time; below 0: no memory. (p - 1) / (v m + p - 1) at best.
 */
double pipeline_idle(const pipeline_shape *shape, double forward, double backward);

/* Blocks of each of n chunks of the model, in order, at least one each, so that the costliest chunk
   costs the least. A block costs 1, what the first chunk and the last have besides `first` and
   `last`. layers >= n. */
void pipeline_partition(int layers, int n, double first, double last, int *blocks);

#ifdef __cplusplus
}
#endif
#endif

/* pipelined.h - GPT-2 over the stages of a pipeline: the functions that replace gpt2_train_step,
   gpt2_loss and gpt2_logits if the model is one stage of several.

   EXAMPLE
       gpt2_stage_make(&stage, &cfg, p, v, zero_group_rank(pp), T, &err);      // stages.h
       stage.pp = pp, stage.ends = ends;
       gpt2_pipeline_slots(&stage, m);
       parallel.stage = &stage;                                  // of gpt2_table, gpt2_run, ...
       gpt2_pipeline_order(z, &cfg, &stage, tiles, m);           // before zero_build
       gpt2_pipeline_open(&line, model, &cfg, &stage, m, wires, &err);
       for (int step = 0; step < steps; step++) {
           zero_pass_begin(z, ZERO_TRAIN, ZERO_TOGETHER, m);
           gpt2_pipeline_train(line, &feed, zero_loss_scale(z) / m);
           zero_pass_end(z);
           zero_reduce(z);
           zero_step(z, &hyper);
           gpt2_take_losses(model, &loss);                       // the last stage's; others': 0
       }

   The context must add gradients in place: accumulation LOCAL, gradients in f32. Weights have the
   same bits as after the same micro-steps without a pipeline, with one exception. If embeddings are
   tied, the gradients of lookup and classifier are summed separately, and then added, which rounds
   once more.

   TRAFFIC. In a step, a stage sends b T C numbers for each boundary of its chunks, each direction
   and each micro-batch (pipeline_sends). The first and the last stage also sum the gradient of a
   tied wte once. */
#ifndef GPT2_PIPELINED_H
#define GPT2_PIPELINED_H

#include "gpt2.h"
#include "stages.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gpt2_pipeline gpt2_pipeline;

/* Sets the number of activations that a stage keeps, for m micro-batches. Call it before
   gpt2_create and gpt2_activation_bytes. */
void gpt2_pipeline_slots(gpt2_stage *stage, int micro_steps);

/* gpt2_pipeline_bytes returns the bytes of the buffers for the messages of a training step.
   gpt2_pipeline_sent returns the bytes that the stage of run->parallel sends to its neighbours in a
   step. Without a stage both return 0. They can be called before anything is built. */
size_t gpt2_pipeline_bytes(const gpt2_config *cfg, const gpt2_run *run, int micro_steps);
uint64_t gpt2_pipeline_sent(const gpt2_config *cfg, const gpt2_run *run, int micro_steps);

/* Announces the order of a step (zero_pass_order). So even the first step prefetches, and the plan
   counts the gathers. Call it after gpt2_announce, if the stage has neighbours. tiles: from
   gpt2_tiles. Errors: those of zero_pass_order. */
zero_result gpt2_pipeline_order(zero_ctx *z, const gpt2_config *cfg, const gpt2_stage *stage,
                                int tiles, int micro_steps);

/* Opens a pipeline for a model that was made with this stage, and m micro-batches per step. stage
   NULL, or whole: there is no pipeline, and evaluation runs batch by batch. wires: in CUDA the
   stream of stage->pp, which has no other work; on the CPU NULL. All are borrowed. On error *p is
   NULL. Errors: ARGUMENT (a number of micro-steps that the schedule cannot use; the sentence
   has the nearest), MEMORY. */
zero_result gpt2_pipeline_open(gpt2_pipeline **p, zero_ctx *z, gpt2_model *model,
                               const gpt2_stage *stage, int micro_steps, void *wires,
                               gpt2_error *err);
void gpt2_pipeline_close(gpt2_pipeline *p); /* p may be NULL */

/* Callbacks that load the batches. */
typedef struct gpt2_feed {
    /* Loads batch i: inputs and targets (B T). The first stage needs the inputs, the last one the
       targets, both more than once; NULL: not needed. Returns the number of sequences, the same on
       all stages, 0..B; B in training. */
    int (*load)(void *user, int i, int *inputs, int *targets);
    /* Called by gpt2_pipeline_loss on the last stage with the losses of its tokens. May be NULL. */
    void (*take)(void *user, int i, const float *losses);
    void *user;
} gpt2_feed;

/* Forward and backward of the m micro-batches of a step, inside a ZERO_TOGETHER pass. loss_factor:
   as gpt2_train_step's. COLLECTIVE over the stages, and through its hooks. Errors: those of
   gpt2_train_step, and of the group. */
zero_result gpt2_pipeline_train(gpt2_pipeline *p, const gpt2_feed *feed, float loss_factor);

/* Runs forward for batches first .. first + n - 1, outside of any pass. *sum receives the sum of
   their losses on the last stage, 0 on other stages. SYNC. */
zero_result gpt2_pipeline_loss(gpt2_pipeline *p, const gpt2_feed *feed, int first, int n,
                               double *sum);

/* The same for one batch in memory. On the last stage *losses are the losses of its tokens, valid
   until the next call; else NULL. */
zero_result gpt2_pipeline_batch(gpt2_pipeline *p, const int *inputs, const int *targets, int rows,
                                const float **losses);

/* gpt2_logits and gpt2_next_logits, outside of any pass; on every stage. A pipeline computes all
   tokens again in both. */
zero_result gpt2_pipeline_logits(gpt2_pipeline *p, const int *inputs, int t, float *logits);
zero_result gpt2_pipeline_next_logits(gpt2_pipeline *p, const int *inputs, int t, float *logits);

/* Returns the sentence for the last error. */
const char *gpt2_pipeline_error(const gpt2_pipeline *p);

#ifdef __cplusplus
}
#endif
#endif

/* stages.h - GPT-2 cut over the stages of a pipeline: the tensors and layers of a stage, and the
   number in the whole model of each of its units. This file only computes; it has no state.

   CHUNKS. The model is cut into p v chunks of consecutive blocks. Stage s has chunks s, p + s, 2 p
   + s ... (see ../pipeline/pipeline.h). The first chunk also has the embeddings, and the last chunk
   the final norm and the classifier. On a stage, a tensor has as many layers as the stage has
   blocks, in the order of the model.

       L = 8, p = 2, v = 2    stage 0: wte wpe | blocks 0 1 | 4 5
                              stage 1:           blocks 2 3 | 6 7 | final norm | classifier

   EXPERTS are in every second block of the model (experts.h). Then each chunk has an even number of
   blocks, except the last one of a model with an odd number. So every second block of a stage has
   experts.

   TIED EMBEDDINGS. The last stage also has wte, in a unit of its own, or in a unit for each tile.
   Its gradient there is that of the classifier, and on the first stage that of the lookup. sum_over
   adds the two once per step (ZERO_LATE). The norm counts the sum on the first stage only
   (ZERO_COPY on the last). */
#ifndef GPT2_STAGES_H
#define GPT2_STAGES_H

#include "gpt2.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Cuts the model into `stages` stages of `chunks` chunks; this one is stage `rank`. seq_len weighs
   attention and the classifier against the rest. Errors: ARGUMENT (fewer blocks than chunks, with
   the nearest possible number). */
zero_result gpt2_stage_make(gpt2_stage *stage, const gpt2_config *cfg, int stages, int chunks,
                            int rank, int seq_len, gpt2_error *err);

/* Returns 1 if the stage has the whole model: it is NULL, or the only stage. */
int gpt2_stage_is_whole(const gpt2_stage *s);
int gpt2_stage_is_first(const gpt2_stage *s);
int gpt2_stage_is_last(const gpt2_stage *s);

/* Return the number of blocks of the stage, of its largest chunk, and of its chunk c. The last one
   returns the index in the stage of the first block of chunk c. */
int gpt2_stage_layers(const gpt2_stage *s);
int gpt2_stage_most(const gpt2_stage *s);
int gpt2_stage_blocks(const gpt2_stage *s, int c);
int gpt2_stage_first(const gpt2_stage *s, int c);
/* Returns the index in the model of block i of the stage. */
int gpt2_stage_block(const gpt2_stage *s, int i);

/* Returns 1 for a tensor of the blocks, adapters included. */
int gpt2_is_of_blocks(int tensor);

/* Returns the layers of a tensor in the whole model. If experts replace some MLPs, the tensors of
   MLPs have fewer layers than the model has blocks. */
int gpt2_tensor_layers(const gpt2_config *cfg, int tensor);

/* Reduces a whole table of n tensors to the stage's rows, in place, with new unit numbers. Returns
   how many rows remain. wte keeps its tiles (gpt2_describe_tiled). */
int gpt2_stage_table(const gpt2_config *cfg, const gpt2_stage *s, zero_tensor_desc *table, int n);

/* gpt2_world_units returns the number of units of the whole model, for zero_config.world_units. The
   next function writes the number in the whole model of each unit of the stage, in ascending order,
   for zero_config.world_unit. tiles: gpt2_tiles of wte. out [gpt2_stage_units]. */
int gpt2_world_units(const gpt2_config *cfg, int tiles);
int gpt2_stage_units(const gpt2_config *cfg, const gpt2_stage *s, int tiles);
void gpt2_stage_world(const gpt2_config *cfg, const gpt2_stage *s, int tiles, int *out);
/* Returns the unit of the stage's first block. */
int gpt2_stage_first_block(const gpt2_config *cfg, const gpt2_stage *s, int tiles);

/* A run of a tensor's elements, over all layers, that one stage has. */
typedef struct gpt2_run_of {
    size_t n;
    int owner;    /* the stage; for a tied wte the first */
    int here;     /* 1: this stage has them */
    size_t first; /* if `here`: their offset among the stage's elements of the tensor */
} gpt2_run_of;

/* Returns the run, at most n, that begins at dense element `first` of a tensor with `numel` per
 * layer. */
gpt2_run_of gpt2_stage_run(const gpt2_config *cfg, const gpt2_stage *s, int tensor, size_t numel,
                           size_t first, size_t n);

/* The inverse: finds element `at` of the stage's elements in the whole model, and how many elements
   follow it in both. `owner` as above. */
gpt2_run_of gpt2_stage_place(const gpt2_config *cfg, const gpt2_stage *s, int tensor, size_t numel,
                             size_t at);

#ifdef __cplusplus
}
#endif
#endif

/* stages.h - GPT-2 cut over the stages of a pipeline: which tensors and which of their layers a
   stage has, and which unit of the whole model each of its units is. Arithmetic alone.

   CHUNKS. The model is cut into p v chunks of blocks that follow each other; stage s has chunks s,
   p + s, 2 p + s ... (see ../pipeline/pipeline.h). The first chunk has the embeddings, too, the
   last the final norm and the classifier. On its stage a tensor has as many layers as the stage has
   blocks, in the model's order.

       L = 8, p = 2, v = 2    stage 0: wte wpe | blocks 0 1 | 4 5
                              stage 1:           blocks 2 3 | 6 7 | final norm | classifier

   EXPERTS are in every second block of the model (experts.h), and chunks have even numbers of
   blocks then, but for the last one of an odd model: so they are in every second block of a stage,
   too.

   TIED EMBEDDINGS. The last stage has wte as well, in a unit of its own, or its tiles in theirs.
   Its gradient there is the classifier's, on the first stage that of the lookup; sum_over
   adds them up, once a step (ZERO_LATE), and the norm counts it on the first stage (ZERO_COPY on
   the last). */
#ifndef GPT2_STAGES_H
#define GPT2_STAGES_H

#include "gpt2.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Cuts the model: p stages of v chunks, this one stage s. seq_len, for what attention and
   classifier cost beside the rest. Errors: ARGUMENT (fewer blocks than chunks, with the nearest
   that can). */
zero_result gpt2_stage_make(gpt2_stage *stage, const gpt2_config *cfg, int stages, int chunks,
                            int rank, int seq_len, gpt2_error *err);

/* NULL, or one stage: the whole model. */
int gpt2_stage_is_whole(const gpt2_stage *s);
int gpt2_stage_is_first(const gpt2_stage *s);
int gpt2_stage_is_last(const gpt2_stage *s);

/* Blocks of the stage; of its largest chunk; of its chunk c, and the first of these on the stage.
 */
int gpt2_stage_layers(const gpt2_stage *s);
int gpt2_stage_most(const gpt2_stage *s);
int gpt2_stage_blocks(const gpt2_stage *s, int c);
int gpt2_stage_first(const gpt2_stage *s, int c);
/* Block i of the stage, among those of the model. */
int gpt2_stage_block(const gpt2_stage *s, int i);

/* Layers of a tensor of the whole model: of an MLP's where experts stand in place of some, fewer
   than it has blocks. */
int gpt2_tensor_layers(const gpt2_config *cfg, int tensor);

/* The stage's rows of a whole table of n tensors, in place: units are numbered anew. Returns how
   many. A table with wte in tiles (gpt2_describe_tiled) stays one. */
int gpt2_stage_table(const gpt2_config *cfg, const gpt2_stage *s, zero_tensor_desc *table, int n);

/* Units of the whole model, and the number there of each of the stage's, ascending, for
   zero_config.world_units and world_unit. tiles: of wte, gpt2_tiles. out [gpt2_stage_units]. */
int gpt2_world_units(const gpt2_config *cfg, int tiles);
int gpt2_stage_units(const gpt2_config *cfg, const gpt2_stage *s, int tiles);
void gpt2_stage_world(const gpt2_config *cfg, const gpt2_stage *s, int tiles, int *out);
/* The unit of the stage's first block. */
int gpt2_stage_first_block(const gpt2_config *cfg, const gpt2_stage *s, int tiles);

/* A run of a tensor's elements, over all layers, that one stage has. */
typedef struct gpt2_run_of {
    size_t n;
    int owner;    /* the stage; of a tied wte the first */
    int here;     /* this stage has them, too, or alone */
    size_t first; /* here: where they are among what the stage has */
} gpt2_run_of;

/* The run that begins at dense element `first` of a tensor with `numel` elements a layer, at most
 * n.
 */
gpt2_run_of gpt2_stage_run(const gpt2_config *cfg, const gpt2_stage *s, int tensor, size_t numel,
                           size_t first, size_t n);

/* The way back: element `at` of what the stage has, where it is in the whole model, and how many
   follow it in both; `owner` as above. */
gpt2_run_of gpt2_stage_place(const gpt2_config *cfg, const gpt2_stage *s, int tensor, size_t numel,
                             size_t at);

#ifdef __cplusplus
}
#endif
#endif

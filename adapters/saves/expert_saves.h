/* expert_saves.h - checkpoints of experts, beside those of the rest of a model.

   They are a checkpoint of their context, in FOLDER/experts: saved before the rest of the step's,
   so that this has its experts wherever it is there itself, and never aside, as the rest's may be;
   one generation more is kept for the same reason, or two then. Its tensors are those of the whole
   model, experts of a layer one after the other: any layout goes on from it.

   Without experts (a layout that is not mixed) these functions do nothing. COLLECTIVE over all
   ranks; a result is this rank's. */
#ifndef EXPERT_SAVES_H
#define EXPERT_SAVES_H

#include "../checkpoint/checkpoint.h"
#include "../parallel/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* All zeros before. */
typedef struct expert_saves {
    checkpoint *saves;
    zero_tensor_desc table[8];
    char folder[1100];
} expert_saves;

/* Way, options: those of the rest. z: the context of experts, or NULL: none. */
size_t expert_saves_bytes(const zero_ctx *z, const checkpoint_parts *parts, checkpoint_way way);
checkpoint_result expert_saves_open(expert_saves *x, const layout *l, const gpt2_config *model,
                                    const checkpoint_options *o);
checkpoint_result expert_saves_save(expert_saves *x, int64_t step);
checkpoint_result expert_saves_load(expert_saves *x, int64_t step);
const char *expert_saves_error(const expert_saves *x); /* "" without one */
void expert_saves_close(expert_saves *x);

#ifdef __cplusplus
}
#endif
#endif

/* expert_saves.h - saves the experts of a model in checkpoints of their own, in FOLDER/experts.

   The experts are saved before the rest of the model, and always synchronously. So each checkpoint
   of the rest has its experts. For the same reason the folder keeps one generation more than that
   of the rest, or two more if the rest is saved in the background. A checkpoint has the tensors of
   the whole model, with the experts of a layer in order. So a run with any layout can resume from
   it.

   Without experts these functions do nothing. COLLECTIVE over all ranks. Each rank returns its own
   result. */
#ifndef EXPERT_SAVES_H
#define EXPERT_SAVES_H

#include "../checkpoint/checkpoint.h"
#include "../parallel/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Clear it before expert_saves_open. */
typedef struct expert_saves {
    checkpoint *saves;
    zero_tensor_desc table[8];
    char folder[1100];
} expert_saves;

/* The options and the way are those of the rest of the model. z is the context of the experts, or
   NULL if there are none. */
size_t expert_saves_bytes(const zero_ctx *z, const checkpoint_parts *parts, checkpoint_way way);
checkpoint_result expert_saves_open(expert_saves *x, const layout *l, const gpt2_config *model,
                                    const checkpoint_options *o);
checkpoint_result expert_saves_save(expert_saves *x, int64_t step);
checkpoint_result expert_saves_load(expert_saves *x, int64_t step);
const char *expert_saves_error(const expert_saves *x); /* "" if there is no error */
void expert_saves_close(expert_saves *x);

#ifdef __cplusplus
}
#endif
#endif

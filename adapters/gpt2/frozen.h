/* frozen.h - tensors of GPT-2 that are not trained, chosen by patterns on their names, and adapters
   that are trained in their place.

   NAMES are those of the table, such as `wte` and `qkvw`, as zero_ckpt show prints them. A tensor
   of the blocks also has a name for each layer: `h.3.qkvw`. A pattern is one of the shell (*, ?,
   [...]); commas separate patterns. A name without a layer selects all layers. */
#ifndef FROZEN_H
#define FROZEN_H

#include "gpt2.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A gpt2_config borrows it. */
struct gpt2_frozen {
    char *layer[GPT2_MOST_TENSORS]; /* [layers of the whole model] 1: this layer is frozen */
    int lowest; /* the first block that backward reaches; -1: it reaches the embeddings; L: none */
    int any;    /* 1: a tensor or a layer is frozen */
    gpt2_lora lora; /* adapters; rank 0: none */
};

/* Selects the trained tensors: those that match `train` ("": all), except those that match `freeze`
   ("": none). The caller passes *frozen to gpt2_frozen_free; it is NULL if nothing is frozen.
   Errors: MEMORY; ARGUMENT for a pattern that matches nothing (its sentence lists the names), for
   a model without trained tensors, and for one with experts. */
zero_result gpt2_freeze(const gpt2_config *cfg, const char *train, const char *freeze,
                        gpt2_frozen **frozen, gpt2_error *err);
/* The same for a model with adapters. Their tensors are trained, and of the others those that match
   `train` ("": none). `freeze` applies to all. lora NULL: gpt2_freeze. Errors: also those of
   gpt2_lora_check. */
zero_result gpt2_adapt(const gpt2_config *cfg, const gpt2_lora *lora, const char *train,
                       const char *freeze, gpt2_frozen **frozen, gpt2_error *err);
void gpt2_frozen_free(const gpt2_frozen *frozen);

/* Returns 1 if the layer of the whole model is frozen; and if all layers of the tensor with this
   name are. */
int gpt2_is_frozen(const gpt2_config *cfg, int tensor, int layer);
int gpt2_is_all_frozen(const gpt2_config *cfg, const char *name);

/* Sets the frozen layers of this rank's row of a tensor. `layers` has room for d->layers. */
void gpt2_frozen_describe(const gpt2_config *cfg, const gpt2_stage *stage, int tensor,
                          zero_tensor_desc *d, char *layers);

/* Announces the order of training passes if backward ends above the first block, so that the
   plan counts their gathers. Other passes are learned. Call it before zero_build; not for a
   pipeline: its order is announced already. COLLECTIVE. */
zero_result gpt2_frozen_order(zero_ctx *z, const gpt2_config *cfg, int tiles);
/* The same for gpt2_train_layers with all tensors trained or some, so that the plan counts its
   gathers, and the first step prefetches what it needs. */
zero_result gpt2_layers_order(zero_ctx *z, const gpt2_config *cfg, int tiles);

#ifdef __cplusplus
}
#endif
#endif

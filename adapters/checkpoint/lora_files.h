/* lora_files.h - adapters of GPT-2 (../gpt2/lora.h) in the files of Hugging Face's peft:
   adapter_model.safetensors, and adapter_config.json next to it.

   NAMES are base_model.model.transformer.h.N.MODULE.lora_A.weight with shape (R, I) and
   lora_B.weight with shape (O, R), where MODULE is attn.c_attn (qkvw), attn.c_proj (attprojw),
   mlp.c_fc (fcw) or mlp.c_proj (fcprojw). A and B lie as in the context, although the weights of
   GPT-2's modules in transformers are transposed (fan_in_fan_out). Reading accepts names without
   `transformer.`, and without `base_model.model.`, too.

   READING refuses settings of peft that change the result: another type than LORA, use_dora,
   use_rslora, rank_pattern, alpha_pattern, modules_to_save, trained biases, and adapters that are
   not in every layer.

   Nothing here is collective. Errors are those of model_files.h. */
#ifndef LORA_FILES_H
#define LORA_FILES_H

#include "checkpoint.h"
#include "model_files.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Writes the values of a checkpoint that its tensors do not show: lora.rank and lora.alpha. Returns
   their number, 0 for a model without adapters. lora_values_read returns the rank, or 0. */
enum { LORA_VALUES = 2 };
int lora_values(const gpt2_config *cfg, checkpoint_value values[LORA_VALUES]);
int lora_values_read(const checkpoint_reader *r, float *alpha);

/* Saves the adapters that cfg->frozen describes, and their config next to the file. `read` gets
   rows of gpt2_table instead of tensors. base: name of the base model in the config, or NULL. */
zero_result lora_save_from(model_read read, void *user, const gpt2_config *cfg, const char *path,
                           zero_type type, const char *base, gpt2_error *err);

typedef struct lora_reader lora_reader;

/* Opens the two files, with all checks. On error *r is NULL. Errors: ARGUMENT, MEMORY. */
zero_result lora_reader_open(lora_reader **r, const char *path, gpt2_error *err);
void lora_reader_close(lora_reader *r); /* NULL is allowed */
/* Returns rank, alpha and matrices; and the model's layers and channels. */
gpt2_lora lora_reader_info(const lora_reader *r, int *layers, int *channels);
/* Reads elements of a tensor number (GPT2_LORA + ...), over all layers, as f32. */
zero_result lora_reader_get(lora_reader *r, int tensor, size_t first, size_t count, float *out,
                            gpt2_error *e);

#ifdef __cplusplus
}
#endif
#endif

/* gpt2_values.h - GPT-2's shape among the values of a checkpoint, so that a tool that has nothing
   but the files knows the model: gpt2.max_seq_len, gpt2.vocab_size, gpt2.padded_vocab_size,
   gpt2.layers, gpt2.heads, gpt2.channels, all CHECKPOINT_INT.

   EXAMPLE
       checkpoint_value v[GPT2_VALUES + 1];
       gpt2_values(&cfg, v);
       v[GPT2_VALUES] = (checkpoint_value){"data.position", CHECKPOINT_INT, position, 0, NULL};
       checkpoint_save(c, step, v, GPT2_VALUES + 1);

   BUILD
     cc -I. -c adapters/checkpoint/gpt2_values.c; link with checkpoint_reader.o. */
#ifndef GPT2_VALUES_H
#define GPT2_VALUES_H

#include "../gpt2/gpt2.h"
#include "checkpoint.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { GPT2_VALUES = 7 };

/* Fills in the values for checkpoint_save. The names are string constants. */
void gpt2_values(const gpt2_config *cfg, checkpoint_value values[GPT2_VALUES]);

/* Returns 1; or 0 and a sentence in `why` (CHECKPOINT_SENTENCE bytes) about a value that is
   missing, not whole, or out of range. *cfg does not change then. */
int gpt2_values_read(const checkpoint_reader *r, gpt2_config *cfg, char *why);
/* Returns whether the model has experts, which gpt2_values_read refuses. */
int gpt2_values_mixed(const checkpoint_reader *r);

#ifdef __cplusplus
}
#endif
#endif

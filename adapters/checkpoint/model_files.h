/* model_files.h - reads and writes GPT-2's weights in files of other programs: llm.c's model and
   state files, and safetensors with the names and shapes of Hugging Face's transformers.

   EXAMPLE: continue a training of llm.c, and save the result for transformers; on every rank
       model_info info;
       gpt2_error err;
       if (model_info_read("model_00000400.bin", &info, &err)) give_up(err.sentence);
       gpt2_describe(&info.cfg, table); ... zero_tensor ... zero_build(z);
       if (model_load(z, &info.cfg, "model_00000400.bin", &err)) give_up(err.sentence);
       llmc_state state;
       if (llmc_state_load(z, &info.cfg, "state_00000400_00000.bin", &state, &err)) give_up(...);
       for (int64_t step = state.step; step < steps; step++) ... train ...
       model_save(z, &info.cfg, "out/model.safetensors", MODEL_SAFETENSORS, ZERO_F32, &err);
       model_save_hf_config(&info.cfg, "out/config.json", &err); // rank 0 alone

   BUILD
     cc -I. -c adapters/checkpoint/{model_files,model_io,llmc_bin,safetensors}.c; link with gpt2.o,
     -lcjson. The CPU must be little-endian, as the files are.

   FORMATS
   MODEL_LLMC: 256 int32 (magic 20240326; version 3: f32, 5: bf16; maxT, V, L, NH, C, Vp), then the
   16 tensors of gpt2.h in their order, with padded vocabulary rows. llm.c writes the same bytes.

   MODEL_SAFETENSORS: 8 bytes with the length of a JSON header, the header (name, dtype, shape and
   place of each tensor), the tensors without gaps; F32, BF16 or F16. Saving uses GPT2LMHeadModel's
   names, `transformer.h.0.attn.c_attn.weight`. Reading accepts them without `transformer.` too. The
   file has the weights of c_attn, c_proj and c_fc transposed (in, out). wte has V rows in the file;
   padded rows are read as zeros. A tied lm_head.weight is not saved, and a file that has it must
   have it equal to wte. An untied one is saved and read; without it the classifier begins as wte.
   llm.c's format has no untied models, so saving one is an error. The buffers h.N.attn.bias and
   h.N.attn.masked_bias are skipped. Any other name is an error. No shape contains the number of
   heads: it is saved as `n_head` in __metadata__. Without that, it is read from the config.json in
   the same folder.

   A model in several safetensors files (model-00001-of-00002.safetensors) is read by the path of
   its index, a name that ends in `.json`: {"metadata": {...}, "weight_map": {tensor: file}}. The
   files are in the same folder, 512 at most. Each tensor must be in the file that the map names,
   and in no other. Saving writes one file.

   VALUES. A file of the context's type has the same bits as the parameters. A file of another type
   is rounded to nearest from the f32 master weights. A finite number that overflows in the file's
   type is an error. Reading sets masters and parameters, but not moments and counters.

   MEMORY. 6 MiB per rank (a reader with a state: 12) and headers of at most 1 MiB in all (96 layers
   have 0.2 MiB). No rank ever has the whole model in memory.

   COLLECTIVE. All ranks call a function with this mark in the same order, between steps, at any
   stage. All must see the same files, and all get the same result and sentence. Only rank 0 writes.

   ERRORS. Functions return a zero_result, and a sentence in `err` (may be NULL): ARGUMENT for any
   error of a file, MEMORY, or the plugin's error. All checks of a file come before the first write
   to the context. If reading fails later, the weights are a mixture. A file is saved under a
   temporary name, fsynced and renamed, so a failed save does not change an older file.
*/
#ifndef MODEL_FILES_H
#define MODEL_FILES_H

#include "../gpt2/gpt2.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum model_format { MODEL_LLMC = 0, MODEL_SAFETENSORS, MODEL_FORMATS } model_format;

typedef struct model_info {
    model_format format;
    zero_type type;  /* of wte; tensors of a safetensors file may differ */
    gpt2_config cfg; /* safetensors: Vp is V rounded up to a multiple of 128; heads 0 if neither
                        the file nor a config.json has them */
} model_info;

/* Reads a file's header in either format, and makes all checks that need no context. Not
   collective. Errors: ARGUMENT, MEMORY; *info is unchanged then. */
zero_result model_info_read(const char *path, model_info *info, gpt2_error *err);

/* Reads the weights of a file of either format into a context built with gpt2_describe(cfg). A file
   of another model is refused with the first tensor that differs. COLLECTIVE, SYNC. */
zero_result model_load(zero_ctx *z, const gpt2_config *cfg, const char *path, gpt2_error *err);
/* The same for this rank's part of a model, into a context built with gpt2_table. */
zero_result model_load_part(zero_ctx *z, const gpt2_config *cfg, const gpt2_parallel *how,
                            const char *path, gpt2_error *err);

/* Saves the weights. llm.c has F32 and BF16 only. COLLECTIVE, SYNC. */
zero_result model_save(zero_ctx *z, const gpt2_config *cfg, const char *path, model_format format,
                       zero_type type, gpt2_error *err);

/* Writes the config.json that transformers needs next to model.safetensors. Not collective. */
zero_result model_save_hf_config(const gpt2_config *cfg, const char *path, gpt2_error *err);

/* Writes the path of `name` in the folder of the file `path` to `out`. Returns 0 if it is too long.
 */
int model_path_next_to(char *out, size_t bytes, const char *path, const char *name);

/* Returns 1 if path ends in `tail` and is longer. */
int model_ends(const char *path, const char *tail);

/* Returns 1 for the name of such a file or of its config.json. */
int model_is_file(const char *path);

/* The contents of llm.c's state files in addition to moments and master weights. */
typedef struct llmc_state {
    int64_t step; /* updates made: the next step's number, counted from 0 */
    int ranks;    /* number of ranks that wrote a file each */
    int sharded;  /* 1: llm.c's ZeRO-1; 0: each file has all, and only the first is read */
    int masters;  /* 1: the files have f32 master weights */
    int shuffled; /* 1: the data was permuted */
    uint64_t rng, rng_last_update;    /* state of its stochastic rounding */
    uint64_t data_shard, data_sample; /* position of its data loader */
} llmc_state;

/* Reads llm.c's optimizer state (magic 20240527): both moments, the count of steps, and the master
   weights, if the files have them; otherwise the weights are model_load's. `path` is rank 0's file,
   ..._00000.bin; the other ranks' files are in the same folder. The context's optimizer must be
   ADAMW or ADAM. `state` may be NULL. COLLECTIVE, SYNC. */
zero_result llmc_state_load(zero_ctx *z, const gpt2_config *cfg, const char *path,
                            llmc_state *state, gpt2_error *err);

/* ---- without a context: converters; nothing here is collective ----------------------------- */

/* Writes elements [first, first + count) of tensor `tensor` of gpt2_describe, over all layers, to
   out as f32. `kind`: ZERO_MASTER, ZERO_MOMENT_1, ZERO_MOMENT_2. A result other than OK, with a
   sentence in *e, ends the caller's work. */
typedef zero_result (*model_read)(void *user, int tensor, zero_kind kind, size_t first,
                                  size_t count, float *out, gpt2_error *e);

/* Saves weights that `read` returns; otherwise like model_save. */
zero_result model_save_from(model_read read, void *user, const gpt2_config *cfg, const char *path,
                            model_format format, zero_type type, gpt2_error *err);

/* Reads a model file and, if `state` is not NULL, llm.c's optimizer state. If the state has
   masters, the weights come from them. */
typedef struct model_reader model_reader;

/* Opens the files, with all checks of model_load and llmc_state_load. On error *r is NULL. Errors:
 * ARGUMENT, MEMORY. */
zero_result model_reader_open(model_reader **r, const char *model, const char *state,
                              gpt2_error *err);
void model_reader_close(model_reader *r); /* NULL is allowed */
const model_info *model_reader_info(const model_reader *r);
const llmc_state *model_reader_state(const model_reader *r); /* NULL: no state */

/* A model_read; `reader` is a model_reader. Moments without a state are zeros. */
zero_result model_reader_get(void *reader, int tensor, zero_kind kind, size_t first, size_t count,
                             float *out, gpt2_error *e);

#ifdef __cplusplus
}
#endif
#endif

/* model_files.h - GPT-2's weights from and to the files of other programs: llm.c's model and state
   files, and safetensors as Hugging Face's transformers names and shapes them.

   EXAMPLE: continue what llm.c has trained, hand the result to transformers; on every rank
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
     -lcjson. For hosts of little-endian bytes, as the files are.

   FORMATS
   MODEL_LLMC: 256 int32 (magic 20240326; version 3: f32, 5: bf16; maxT, V, L, NH, C, Vp), then the
   16 tensors of gpt2.h in their order, padded vocabulary rows too: the bytes that llm.c itself
   writes.

   MODEL_SAFETENSORS: 8 bytes with the length of a JSON header, the header (name, dtype, shape and
   place of each tensor), the tensors without gaps; F32, BF16 or F16. Saved are GPT2LMHeadModel's
   names, `transformer.h.0.attn.c_attn.weight`; read are the same without `transformer.` as well.
   Weights of c_attn, c_proj and c_fc are stored the other way round there (in, out), and turned on
   the way. wte has V rows: padded ones are left out, and read as zeros. lm_head.weight is tied to
   wte: not saved, and on reading either absent or equal; of an untied model it is saved and read,
   and where it is absent the classifier begins as wte. llm.c's files have no place for it: an
   untied model is refused. The buffers h.N.attn.bias and
   h.N.attn.masked_bias are skipped; any other name is an error. The number of heads is in no shape:
   saved as `n_head` in __metadata__; where that is absent, looked up in config.json beside the
   file.

   A model in several safetensors files (model-00001-of-00002.safetensors) is read by the path of
   its index, a name that ends in `.json`: {"metadata": {...}, "weight_map": {tensor: file}}. The
   files lie beside it, 512 at most; every tensor must be in the file that the map says, and in no
   other. Saved is always one file.

   VALUES. A file of the context's own type holds the parameters bit by bit; one of another type is
   made from the f32 master weights, rounded to nearest. A finite number that the file's type cannot
   hold is an error. Reading sets masters and parameters; moments and counters stay as they are.

   MEMORY. 6 MiB per rank (a reader with a state: 12) and headers of at most 1 MiB in all (96 layers
   have 0.2 MiB): a model is never whole anywhere.

   COLLECTIVE. Functions with this mark are called by all ranks in the same order, between steps, at
   any stage; all see the same files, and all return the same result with the same sentence. Rank 0
   alone writes.

   ERRORS. Functions return a zero_result, and a sentence in `err` (may be NULL): ARGUMENT for
   whatever is wrong with a file, MEMORY, or the plugin's. A file that does not fit is refused
   before anything is written to the context; where reading fails in the middle the weights are a
   mixture. A file is saved under a temporary name, fsynced and renamed: one that was there stays as
   it is if saving fails.
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
                        the file nor a config.json tells */
} model_info;

/* What the file says, with every check that needs no context: either format, told apart by the
   first bytes. Not collective. Errors: ARGUMENT, MEMORY (*info untouched). */
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

/* Writes the config.json that transformers wants beside model.safetensors. Not collective. */
zero_result model_save_hf_config(const gpt2_config *cfg, const char *path, gpt2_error *err);

/* The path of `name` in the folder of the file `path`, to `bytes` of `out`. 0: it is too long. */
int model_path_next_to(char *out, size_t bytes, const char *path, const char *name);

/* 1: there is something before the path's end, `tail`. */
int model_ends(const char *path, const char *tail);

/* 1: a name of such a file, or of its config.json. */
int model_is_file(const char *path);

/* What llm.c's state files say beyond moments and master weights. */
typedef struct llmc_state {
    int64_t step; /* updates made: the next step's number, counted from 0 */
    int ranks;    /* that wrote the files, one each */
    int sharded;  /* 1: llm.c's ZeRO-1; 0: every file holds all, and the first alone is read */
    int masters;  /* f32 master weights are there */
    int shuffled; /* the data was permuted */
    uint64_t rng, rng_last_update;    /* of its stochastic rounding */
    uint64_t data_shard, data_sample; /* where its data loader stood */
} llmc_state;

/* Reads llm.c's optimizer state (magic 20240527): both moments, the count of steps, and the master
   weights where there are some (without, the weights are model_load's). `path` is rank 0's file,
   ..._00000.bin; those of the other ranks that wrote, however many, lie beside it. The context's
   optimizer is ADAMW or ADAM. `state` may be NULL. COLLECTIVE, SYNC. */
zero_result llmc_state_load(zero_ctx *z, const gpt2_config *cfg, const char *path,
                            llmc_state *state, gpt2_error *err);

/* ---- without a context: converters; nothing here is collective ----------------------------- */

/* Gives elements [first, first + count) of tensor number `tensor` of gpt2_describe, over all
   layers, as f32. `kind`: ZERO_MASTER, ZERO_MOMENT_1, ZERO_MOMENT_2. What it returns other than OK
   ends the caller's work, with the sentence that it left in *e. */
typedef zero_result (*model_read)(void *user, int tensor, zero_kind kind, size_t first,
                                  size_t count, float *out, gpt2_error *e);

/* Saves the weights that `read` gives; otherwise as model_save. */
zero_result model_save_from(model_read read, void *user, const gpt2_config *cfg, const char *path,
                            model_format format, zero_type type, gpt2_error *err);

/* A model file as something to read from, and beside it, if `state` is not NULL, llm.c's optimizer
   state: then weights come from its masters, if it has some. */
typedef struct model_reader model_reader;

/* Every check of model_load and llmc_state_load. On error *r is NULL. Errors: ARGUMENT, MEMORY. */
zero_result model_reader_open(model_reader **r, const char *model, const char *state,
                              gpt2_error *err);
void model_reader_close(model_reader *r); /* NULL is allowed */
const model_info *model_reader_info(const model_reader *r);
const llmc_state *model_reader_state(const model_reader *r); /* NULL: there is none */

/* A model_read; `reader` is a model_reader. Moments without a state are zeros. */
zero_result model_reader_get(void *reader, int tensor, zero_kind kind, size_t first, size_t count,
                             float *out, gpt2_error *e);

#ifdef __cplusplus
}
#endif
#endif

/* gpt2.h - GPT-2 trained through zero_plugin.h: tensor table, initialisation, forward, backward.

   EXAMPLE of a trainer
       gpt2_config cfg;
       gpt2_run run = {4, 64, 1, ZERO_BF16, 0, 0, 0, NULL, NULL, 0, 0, 0}; // B, T, recompute, ...
       gpt2_error err;
       zero_tensor_desc table[GPT2_TENSORS];
       gpt2_model *m;
       gpt2_config_parse("d12", 0, 0, &cfg, &err);
       gpt2_describe(&cfg, table);
       for (int i = 0; i < GPT2_TENSORS; i++) zero_tensor(z, &table[i]);
       zero_build(z);
       gpt2_init(z, &cfg, 1337, &err); // or model_load of ../checkpoint/model_files.h
       gpt2_create(&m, z, &cfg, &run, &err);
       for (int step = 0; step < steps; step++) {
           for (int micro = 0; micro < n; micro++) {
               zero_pass_begin(z, ZERO_TRAIN, micro, n);
               gpt2_train_step(m, inputs, targets, zero_loss_scale(z) / n, NULL);
               zero_pass_end(z);
           }
           zero_reduce(z);
           zero_step(z, &hyper);
           gpt2_take_losses(m, &loss);
       }
       gpt2_destroy(m);

   WORDS
     V, Vp    vocabulary entries, and the same padded up to a multiple of 128
     L, NH    transformer blocks, attention heads per block
     C        channels, NH * head size
     maxT, T  longest sequence that the model has positions for; the one it is run with
     B        sequences per micro-step on this rank
     unit     see zero_plugin.h: 0 the embeddings, 1..L the blocks, L+1 the final norm
     tile     rows of wte that are a unit of their own, see gpt2_describe_tiled
     part     what a rank of a tensor-parallel group has of a tensor, see gpt2_parallel

   TYPES. Parameters and activations are stored in the type of the context; gradients of parameters
   in the type of cfg.grads that zero_query_config returns. Operations compute in f32 and round each
   stored number; in bf16 and f16, matrix products multiply rounded numbers and add in f32. Losses,
   and what norms and softmaxes keep of a row, are f32. F16 needs the loss scale that the example
   passes on.

   THREADS. A model belongs to one host thread, the one of its zero_ctx; inside, OpenMP uses as many
   threads as omp_get_max_threads() returned in gpt2_create. At a fixed number of threads the same
   inputs give the same bits, wherever memory lies and whatever `recompute` is.

   CUDA. Everything runs on zero_config.stream, and only what says SYNC waits for it. Token indices
   are copied before a call returns. Errors that a GPU reports late come with the next call.

   ERRORS. Every function that can fail returns a zero_result, and a sentence: in `err` (may be
   NULL), or through gpt2_last_error once there is a model. Errors of the plugin are passed on, with
   its sentence. Nothing here prints or exits.
*/
#ifndef GPT2_H
#define GPT2_H

#include <stddef.h>
#include <stdint.h>

#include "../../zero_plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gpt2_error {
    char sentence[512]; /* "" after success */
} gpt2_error;

/* ---- configuration ------------------------------------------------------------------------- */

/* A mixture of experts in place of the MLP of every second block, from the second on; see
   experts.h. */
typedef struct gpt2_moe {
    int experts;    /* E of a layer; 0: no experts, and all fields are 0 */
    int chosen;     /* experts per token, 1 or 2 */
    float capacity; /* slots of an expert, over the mean number of choices */
    float aux;      /* factor of the auxiliary loss */
} gpt2_moe;
#define GPT2_NO_EXPERTS                                                                            \
    { 0, 0, 0, 0 }

typedef struct gpt2_config {
    int max_seq_len;       /* maxT */
    int vocab_size;        /* V */
    int padded_vocab_size; /* Vp: V rounded up to a multiple of 128; the entries between take no
                              part in the softmax, and start as zeros */
    int layers;            /* L */
    int heads;             /* NH, divides C */
    int channels;          /* C */
    int untied;            /* 1: the classifier is a separate tensor, lmheadw */
    gpt2_moe moe;
    const struct gpt2_frozen *frozen; /* borrowed: tensors that are not trained, and adapters that
                                         are, see frozen.h; NULL: all are trained */
    int f32_embedding_state;          /* 1: the optimizer's state of wte, wpe and lmheadw is f32 */
    int muon_heads;  /* 1: MUON takes the queries, keys and values of each head as matrices */
    int sparse_rows; /* 1, untied: gpt2_train_step announces the rows of wte and wpe that a
                        batch touches; without effect under tensor and pipeline parallelism */
} gpt2_config;
typedef struct gpt2_frozen gpt2_frozen;

/* Low-rank adapters, see lora.h. */
typedef struct gpt2_lora {
    int rank;    /* 0: none */
    float alpha; /* the adapters' output is multiplied by alpha / rank */
    unsigned on; /* the matrices that have adapters: bits by LORA_... */
} gpt2_lora;

/* Parses a model's short name.
     dN, gpt2:dN  GPT-2 with N layers: 6 12 24 36 48 60 72 84; maxT 1024, V 50257
     gpt3:cN      GPT-3 with N channels: 384 768 1024 1536 2048 2560 4096 12288; maxT 2048, V 50257
     char:LxCxH   L layers, C channels, H heads; maxT `max_seq_len`, V 65
   vocab_size: V, or 0 for the V of the name. max_seq_len: maxT of `char:`, 0 means 64; other names
   have that many positions if it is more than theirs. Errors: ARGUMENT (*cfg unchanged). */
zero_result gpt2_config_parse(const char *descriptor, int vocab_size, int max_seq_len,
                              gpt2_config *cfg, gpt2_error *err);

/* ---- tensors ------------------------------------------------------------------------------- */

enum {
    GPT2_TENSORS = 16,
    GPT2_LORA = 17, /* number of the first tensor of adapters; 16 is an untied model's lmheadw */
    GPT2_LORA_TENSORS = 8,
    GPT2_MOST_TENSORS = GPT2_LORA + GPT2_LORA_TENSORS
};

/* Tensor numbers, in the order of the table. */
enum {
    GPT2_WTE,
    GPT2_WPE,
    GPT2_LN1W,
    GPT2_LN1B,
    GPT2_QKVW,
    GPT2_QKVB,
    GPT2_ATTPROJW,
    GPT2_ATTPROJB,
    GPT2_LN2W,
    GPT2_LN2B,
    GPT2_FCW,
    GPT2_FCB,
    GPT2_FCPROJW,
    GPT2_FCPROJB,
    GPT2_LNFW,
    GPT2_LNFB,
    GPT2_LMHEADW
};

/* Base pointers, as zero_plugin.h rebases them: inside its unit's begin and end, layer l of a
   tensor begins at element l * numel. One struct holds parameters, of zero_config.type, another
   gradients: floats, or of that type with ZERO_GRAD_AS_TYPE. */
typedef struct gpt2_tensors {
    void *wte;                     /* (Vp, C) token embeddings, and the classifier */
    void *wpe;                     /* (maxT, C) position embeddings */
    void *ln1w;                    /* (L, C) */
    void *ln1b;                    /* (L, C) */
    void *qkvw;                    /* (L, 3C, C) */
    void *qkvb;                    /* (L, 3C) */
    void *attprojw;                /* (L, C, C) */
    void *attprojb;                /* (L, C) */
    void *ln2w;                    /* (L, C) */
    void *ln2b;                    /* (L, C) */
    void *fcw;                     /* (L, 4C, C) */
    void *fcb;                     /* (L, 4C) */
    void *fcprojw;                 /* (L, C, 4C) */
    void *fcprojb;                 /* (L, C) */
    void *lnfw;                    /* (C) */
    void *lnfb;                    /* (C) */
    void *lmheadw;                 /* (Vp, C) of an untied model alone: the classifier */
    void *lora[GPT2_LORA_TENSORS]; /* (L, rank, I) and (L, O, rank) by turns: see lora.h */
} gpt2_tensors;

/* The 16 tensors for zero_tensor, in the order of the struct (which is that of model files). Names
   are those of the fields; they are string constants. wte has two uses: the classifier, then the
   lookup. Biases and norms are ZERO_NO_DECAY | ZERO_ONE_D. */
void gpt2_describe(const gpt2_config *cfg, zero_tensor_desc out[GPT2_TENSORS]);

/* Returns the rows of a tile of wte: the largest multiple of 32 up to `rows` that divides Vp, at
   least 32. Returns 0 for 0, which means that wte is whole. */
int gpt2_tile_rows(const gpt2_config *cfg, int rows);
/* Tiles of the part of wte that one of `parts` tensor-parallel ranks has; 0: wte is whole. */
int gpt2_tiles(const gpt2_config *cfg, int parts, int tile_rows);

/* The same 16 tensors with wte in n tiles of gpt2_tile_rows(cfg, rows) rows, so that no rank needs
   the whole wte or its whole gradient. wte has n layers in units 0..n-1, wpe is unit n, then the
   blocks follow. wte has the same elements over all layers as without tiles, so states, model files
   and hashes fit both. The classifier and the lookup together write each tile's gradient once per
   pass, at the end of backward. `rows` 0: gpt2_describe. */
void gpt2_describe_tiled(const gpt2_config *cfg, int rows, zero_tensor_desc out[GPT2_TENSORS]);

/* MODEL PARALLELISM: the ranks of groups divide one model, and each has a part of its tensors.
   tensor_parallel.h lists the tensors that stay whole. NULL, or a group of one rank: the model is
   whole. CONTEXT PARALLELISM divides the tokens of each sequence, and the model stays whole. */
typedef struct gpt2_parallel {
    zero_group *tp; /* borrowed: heads, hidden channels and vocabulary are divided by its ranks */
    int sequence;   /* 1: sequence parallelism: it also divides the rows between layers */
    const struct gpt2_stage *stage; /* of a pipeline: blocks are divided by its stages; NULL: the
                                       model is in one piece */
    zero_group *ep;    /* borrowed: each layer's experts are divided by its ranks; NULL: one rank */
    zero_ctx *experts; /* borrowed: context of the experts, see experts.h; NULL: no experts */
    zero_group *cp; /* borrowed: its ranks have pieces of each sequence, see context.h; NULL: one */
    zero_group *ring;  /* borrowed: ranks of cp that are a ring, a part or all; NULL: none */
    zero_group *heads; /* borrowed: ranks of cp that exchange heads, if `ring` is a part of cp */
    void *ring_stream; /* CUDA: the cudaStream_t of `ring`, the model's or, for messages next to
                          attention, another one; CPU: NULL */
} gpt2_parallel;

/* A stage of a pipeline, made by gpt2_stage_make of stages.h. */
enum { GPT2_MOST_CHUNKS = 512 };
typedef struct gpt2_stage {
    int stages, chunks; /* p, v */
    int stage;          /* number of this stage, 0..p-1 */
    int slots;          /* (micro-batch, chunk) pairs that are kept for backward */
    int first[GPT2_MOST_CHUNKS
              + 1];   /* chunk k of the model has blocks first[k] .. first[k+1] - 1 */
    zero_group *pp;   /* borrowed: the stages, in order */
    zero_group *ends; /* borrowed: the first and the last stage; on others NULL */
} gpt2_stage;

/* Returns ARGUMENT, with the reason and the nearest possible number, if `ranks` ranks cannot divide
   the model. seq_len is T; wte has tiles of `tile_rows` (0: whole). */
zero_result gpt2_parallel_check(const gpt2_config *cfg, int seq_len, int tile_rows, int ranks,
                                int sequence, gpt2_error *err);

/* Returns the number of this rank's tensors, tied or not, and describes them as gpt2_describe_tiled
   does. lmheadw is number 16, in a unit after the final norm's or in as many tiles as wte. Adapters
   follow. If all ranks of a group have a tensor whole, ranks but the first set ZERO_COPY. A stage
   has the tensors of its blocks and of its ends. */
int gpt2_table(const gpt2_config *cfg, const gpt2_parallel *how, int tile_rows,
               zero_tensor_desc out[GPT2_MOST_TENSORS]);
/* Announces the tensors, and the groups that sum their gradients (sum_over): for whole tensors with
   sequence parallelism, because each rank sees only its rows, and for a pipeline's tied wte. It
   also announces slices for LAMB's norms (slice_of), and the four kinds of matrices of a block that
   MUON makes orthogonal. Errors: those of zero_tensor. */
zero_result gpt2_announce(zero_ctx *z, const gpt2_config *cfg, const gpt2_parallel *how,
                          int tile_rows);
const char *gpt2_tensor_name(int tensor);
/* Returns the number of the tensor in a row of the whole model's table; -1: there is no such row.
 */
int gpt2_tensor_at(const gpt2_config *cfg, int row);
/* Runs the next statement for each row of that table: `t` is the number of its tensor. */
#define GPT2_EACH_TENSOR(cfg, row, t)                                                              \
    for (int row = 0, t = 0; (t = gpt2_tensor_at(cfg, row)) >= 0; row++)

/* zero_write_tensor and zero_read_tensor for elements [first, first + n) of the dense tensor, over
   all layers. write: every rank passes the same values and keeps its part; `values` is overwritten.
   read: every rank receives all; `out` may be NULL. COLLECTIVE over all ranks. Errors: MEMORY,
   those of the two functions and of the group. */
zero_result gpt2_write(zero_ctx *z, const gpt2_config *cfg, const gpt2_parallel *how, int tensor,
                       zero_kind kind, size_t first, size_t n, float *values);
zero_result gpt2_read(zero_ctx *z, const gpt2_config *cfg, const gpt2_parallel *how, int tensor,
                      zero_kind kind, size_t first, size_t n, float *out);
/* Returns the sentence for the error of the two functions above. */
const char *gpt2_parallel_error(const zero_ctx *z, const gpt2_parallel *how);

/* Number of elements in the whole model with its adapters, except experts and their gates
   (experts_numel). Padded vocabulary entries count. */
size_t gpt2_numel(const gpt2_config *cfg);
/* The same, of trained tensors and layers alone. */
size_t gpt2_trained_numel(const gpt2_config *cfg);

/* Random number i of a stream, from its index alone: mix is the finaliser of SplitMix64 (Steele,
   Lea, Flood 2014), G = 0x9E3779B97F4A7C15:
       mix(mix(seed + G (stream + 1)) + G (i + 1))
   Streams 0..16 are taken by gpt2_init, 17..19 by experts_init, 64..88 by gpt2_lora_init. */
#define GPT2_GOLDEN ((uint64_t)0x9E3779B97F4A7C15u)
static inline uint64_t gpt2_mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}
static inline uint64_t gpt2_draw(uint64_t seed, uint64_t stream, uint64_t i) {
    return gpt2_mix(gpt2_mix(seed + GPT2_GOLDEN * (stream + 1)) + GPT2_GOLDEN * (i + 1));
}

/* GPT-2's initialisation (Radford et al. 2019, section 2.3): normal with standard deviation 0.02,
   0.02 / sqrt(2L) for attprojw and fcprojw, zero biases, unit norm weights. Element i of a tensor
   (over all layers) is drawn from stream = tensor index, draws 2i and 2i + 1, by Box and Muller
   (1958), with uniforms ((r >> 11) + 1/2) / 2^53, in f64: the same for any stage and number of
   ranks. After zero_build, on every rank. COLLECTIVE, SYNC. Holds one chunk of 1 MiB.
   Errors: MEMORY and those of zero_write_tensor. */
zero_result gpt2_init(zero_ctx *z, const gpt2_config *cfg, uint64_t seed, gpt2_error *err);
/* Initialises this rank's part. All parts together equal the model of gpt2_init. */
zero_result gpt2_init_part(zero_ctx *z, const gpt2_config *cfg, const gpt2_parallel *how,
                           uint64_t seed, gpt2_error *err);

/* ---- a model ------------------------------------------------------------------------------- */

/* Activations that backward computes again instead of keeping them. The bits are always the same,
   with one exception. Where cuBLASLt computes GELU in CUDA, GELU and NORM differ from NONE and
   BLOCK by a rounding, because the own kernel computes it again. */
enum {
    GPT2_RECOMPUTE_NONE = 0,
    GPT2_RECOMPUTE_GELU = 1,  /* the trainer's default: almost no extra time */
    GPT2_RECOMPUTE_NORM = 2,  /* also the outputs of layer norms */
    GPT2_RECOMPUTE_BLOCK = 3, /* whole blocks, from their input: a third more time */
    GPT2_RECOMPUTE_AWAY = 4   /* the same, and their inputs are kept elsewhere, but for three (of a
                                 pipeline: but for messages, and three): in a file of
                                 gpt2_run.folder; in CUDA in the host's memory */
};

typedef struct gpt2_run {
    int batch;      /* B */
    int seq_len;    /* T, at most maxT; whole sequences also with context parallelism */
    int recompute;  /* GPT2_RECOMPUTE_... */
    zero_type type; /* of activations; zero_config.type */
    int tf32;       /* CUDA, f32: products round their operands to TF32: faster, 11 bits */
    int any_order;  /* CUDA with cuDNN: gradients of attention add up in any order: faster, without
                       a matrix of T x T in memory, and not the same bits each time */
    int tile_rows;  /* rows of a tile, as in gpt2_describe_tiled; 0: wte is whole. The classifier
                       sees the logits of one tile at a time: losses and gradients are those without
                       tiles up to rounding, and it needs 4 products instead of 3 */
    const char *folder; /* AWAY on the CPU: folder of the file; only gpt2_create reads it */
    const gpt2_parallel *parallel; /* NULL: the model is whole. Copied */
    int together; /* micro-batches that pass each layer together, in gpt2_train_layers; 0: 1. Not in
                     a pipeline */
    int mlp_rows; /* with recompute 3 or 4: MLPs in tiles of at most this number of tokens, so that
                     its arrays do not have 4C numbers for each token; results are equal up to
                     rounding. 0: all at once */
    int group;    /* with `together`: layers that a micro-batch passes before the next one does; 0:
                     1. Only the input of the first one is kept, so BLOCK or AWAY is required. The
                     plugin needs gpt2_open_units. Not with experts, or frozen layers below trained
                     ones */
} gpt2_run;

/* Returns zero_config.open_units for groups of layers: their units, and two that are gathered. */
int gpt2_open_units(int group);

typedef struct gpt2_model gpt2_model;

/* Allocates activations and scratch memory; nothing of size is allocated later, except what oneDNN
   packs f32 matrices into and frees again inside a product. In 16 bits oneDNN's products are made
   when their shape is first met, and kept. z is borrowed until gpt2_destroy, and must be built with
   gpt2_describe's tensors (run->tile_rows: gpt2_describe_tiled's) and run->type; destroy the model
   first. Not collective. On error *m is NULL. Errors: ARGUMENT, MEMORY; CUDA: UNSUPPORTED (channels
   or a head size that no kernel takes), DEVICE. */
zero_result gpt2_create(gpt2_model **m, zero_ctx *z, const gpt2_config *cfg, const gpt2_run *run,
                        gpt2_error *err);

/* NULL is allowed. */
void gpt2_destroy(gpt2_model *m);

/* Which way f32 products take on the CPU, by products.h: the choice in a file, which is measured
   and written if it is not there; path "": the table's. `rows` = B T, `tp` tensor-parallel ranks.
   Errors: ARGUMENT; CUDA, with a path: UNSUPPORTED. */
struct products_choice;
zero_result gpt2_choose_products(struct products_choice *choice, const gpt2_config *cfg,
                                 size_t rows, int tp, int tile_rows, const char *path, int threads,
                                 gpt2_error *err);
/* Before the first pass; borrowed until m is destroyed. Without it the table counts. */
void gpt2_take_products(gpt2_model *m, const struct products_choice *choice);

/* CUDA: after a few passes, forward and backward of each block are graphs, which one launch replays
   as long as parameters and gradients are at one of the last two pairs of addresses. Results are
   the same bits. Call it once, before the first pass. Errors: MEMORY; UNSUPPORTED with tensor,
   context or expert parallelism or a pipeline, because their blocks communicate.
   gpt2_graph_launches returns the number of graphs launched so far. */
zero_result gpt2_record_graphs(gpt2_model *m, gpt2_error *err);
size_t gpt2_graph_launches(const gpt2_model *m);

/* What multiplies matrices, for a log: "f32 by the table for Intel, 16 lanes", "oneDNN bf16
   (IMPLEMENTATION)", or, where oneDNN has no product of the type for this processor (f16 on most),
   "f32 by the table ... after conversion from f16", which is slower than f32. In CUDA "cuBLASLt
   bf16", and what it fuses of what was asked for so far: ask after a step. Owned by the model. And
   what attends. */
const char *gpt2_product_path(const gpt2_model *m);
const char *gpt2_attention_path(const gpt2_model *m);

/* Returns the sentence for the last error of a call with this model, or "". The model owns it. */
const char *gpt2_last_error(const gpt2_model *m);

/* Calls zero_pass_begin and zero_pass_end of the model's context and of its experts' context. */
zero_result gpt2_pass_begin(gpt2_model *m, zero_pass kind, int micro, int micro_steps);
zero_result gpt2_pass_end(gpt2_model *m);

/* Forward and backward of one micro-step, inside a ZERO_TRAIN pass. inputs, targets: B x T token
   indices 0..V-1 (whole sequences also with context parallelism, of which the model reads its
   piece). Adds to the gradients that of (mean loss over this rank's tokens) * loss_factor, which is
   zero_loss_scale(z) / micro_steps. *loss: the mean cross entropy in nats, before the factor; of
   this rank alone; SYNC. NULL: not now, see gpt2_take_losses. COLLECTIVE through its hooks. Errors:
   ARGUMENT (a token out of range, found before any hook runs) and those of the hooks. */
zero_result gpt2_train_step(gpt2_model *m, const int *inputs, const int *targets, float loss_factor,
                            double *loss);

/* Forward and backward of run.together micro-batches, layer by layer: all of them pass a layer
   before the next one. inputs, targets: (together, B, T). loss_factor: as above, with the
   micro-batches as micro_steps. To the plugin this is ONE micro-step (cfg.micro_steps 1, cfg.grads
   F32), in which each unit is open while all micro-batches use it. So stage 3 gathers each unit
   twice, its gradient is reduced once, and exists only while its backward runs. The model keeps the
   blocks' values of all micro-batches, and their residual stream.

   Gradients have the bits of the same micro-steps one after the other with accumulation LOCAL. The
   exception is a tied wte without tiles: it adds the classifier's gradients of all micro-batches
   before those of the lookup, and is equal up to rounding. */
zero_result gpt2_train_layers(gpt2_model *m, const int *inputs, const int *targets,
                              float loss_factor);

/* Returns the mean loss of all gpt2_train_step and gpt2_train_layers since the previous call, of
   this rank alone; 0 without one. SYNC. Call it once per step, after zero_step, where it is cheap.
   Errors: DEVICE. */
zero_result gpt2_take_losses(gpt2_model *m, double *mean);

/* Of a mixture of experts, the same: the sum over its layers of the auxiliary loss, before its
   factor and not in the loss above, as a mean of those training steps; and choices of tokens that
   were dropped, all together. */
zero_result gpt2_take_experts(gpt2_model *m, double *aux, double *dropped);

/* Forward only, inside a ZERO_EVAL pass. inputs, targets: rows x T, rows 0..B; with 0 rows, on a
   rank without data, the hooks still run. *loss: the SUM of the cross entropies of the rows * T
   tokens, in nats (context parallelism: of this rank's tokens among them); divide the sum over
   calls and ranks by the number of tokens. COLLECTIVE through its hooks, SYNC. Errors: as
   gpt2_train_step. */
zero_result gpt2_loss(gpt2_model *m, const int *inputs, const int *targets, int rows, double *loss);

/* Copies the first n of the rows * T cross entropies of the last gpt2_loss, token by token, of this
   rank alone; with context parallelism of all its ranks, which pass the same n, a multiple of T.
   Call it before the next pass. SYNC. Errors: DEVICE. COLLECTIVE over context-parallel ranks. */
zero_result gpt2_token_losses(gpt2_model *m, float *losses, size_t n);

/* For sampling, inside a ZERO_EVAL pass: logits (V floats, caller's) of the token that follows
   `inputs`, one sequence of t tokens, 1..T. COLLECTIVE through its hooks: all ranks call it, and
   get the same. SYNC. Errors: as gpt2_train_step. */
zero_result gpt2_logits(gpt2_model *m, const int *inputs, int t, float *logits);

/* The same for the next token of a sampled text: computes only token t - 1, if the model kept the
   keys and values of the t - 1 tokens before it. It keeps them from one call of these two to the
   next, if no other pass comes in between, with recompute below 3 and without experts, sequence
   or context parallelism and pipeline; otherwise it computes all tokens again. inputs must begin
   with the t - 1 tokens of the call before. Logits are those of gpt2_logits up to rounding. */
zero_result gpt2_next_logits(gpt2_model *m, const int *inputs, int t, float *logits);

/* ---- chunks of a pipeline's stage ------------------------------------------------------------ */

/* Describes one chunk for a model that is a pipeline stage. Activations between chunks are (rows of
   this rank, C), of the run's type, on the device. */
typedef struct gpt2_chunk {
    int chunk; /* of the stage */
    int slot;  /* 0..slots-1: where forward leaves what backward needs */
    int rows;  /* sequences, 0..B */
    const int *inputs,
        *targets;   /* (rows T): first chunk, last chunk; read at forward and backward */
    void *in;       /* input activation; first chunk: NULL */
    void *out;      /* output activation; last chunk: NULL */
    void *gradient; /* backward: in, that of out (last chunk: nothing); out, that of in */
    int train;      /* forward: a backward follows */
} gpt2_chunk;

/* The blocks of a chunk, with the lookup before the first one's; final norm and classifier are
   backward's, which follows a last chunk's forward at once. Hooks, COLLECTIVE, errors: as
   gpt2_train_step, which makes both calls if there is one stage. */
zero_result gpt2_chunk_forward(gpt2_model *m, const gpt2_chunk *c);
zero_result gpt2_chunk_backward(gpt2_model *m, const gpt2_chunk *c, float loss_factor);
/* After a last chunk's forward, in a ZERO_EVAL pass: the sum of its losses, as gpt2_loss. */
zero_result gpt2_chunk_loss(gpt2_model *m, const gpt2_chunk *c, double *sum);
/* And the logits (V) of what follows the first t tokens of its one sequence. */
zero_result gpt2_chunk_logits(gpt2_model *m, const gpt2_chunk *c, int t, float *logits);
/* Bytes of an activation between chunks, for a whole micro-batch. */
size_t gpt2_chunk_bytes(const gpt2_model *m);
/* B, B T and V of the run. */
int gpt2_batch(const gpt2_model *m);
size_t gpt2_batch_tokens(const gpt2_model *m);
size_t gpt2_vocabulary(const gpt2_model *m);
/* Allocates memory of the model's device. */
void *gpt2_memory(size_t bytes);
void gpt2_free(void *memory);

/* Returns the seconds since gpt2_create that this rank has waited for messages of ring attention,
   which are otherwise overlapped. */
double gpt2_waited_s(const gpt2_model *m);

/* ---- checked products ------------------------------------------------------------------------ */

/* Another rank computes a block again, and the results are compared bit for bit: see recheck.h.
   gpt2_check_open allocates memory for it. `all` has the W ranks of the run, `peers` the N ranks
   with this rank's part of the model and of the sequences; rank d W/N + k of `all` is rank d of
   `peers`. Both are borrowed until gpt2_destroy. Call it once, before the first pass. Errors:
   ARGUMENT if `peers` has one rank; UNSUPPORTED with experts, in a pipeline, with any_order, and if
   no block has a backward; MEMORY. */
zero_result gpt2_check_open(gpt2_model *m, zero_group *peers, zero_group *all, gpt2_error *err);
/* The next gpt2_train_step or gpt2_train_layers checks block number `turn` modulo those that have a
   backward, in the first micro-batch. It belongs to the pass of micro-step 0, in which gradients
   begin at zero. `step` is the number for messages. The call returns MISMATCH if ranks have
   computed different bits. */
void gpt2_check_next(gpt2_model *m, int64_t step, int64_t turn);
/* After MISMATCH: returns the rank of `all` that has computed wrongly, or -1 if that is not known.
 */
int gpt2_wrong_rank(const gpt2_model *m);
/* Returns the bytes that gpt2_check_open allocates for `ranks` ranks, and those that a rank sends
   in a check; 0 if gpt2_create would reject the run. */
size_t gpt2_check_bytes(const gpt2_config *cfg, const gpt2_run *run, int ranks);
size_t gpt2_check_sent(const gpt2_config *cfg, const gpt2_run *run, int ranks);

/* ---- figures ------------------------------------------------------------------------------- */

/* Returns the bytes that gpt2_create allocates for activations and scratch memory; 0 if gpt2_create
   would reject the run. */
size_t gpt2_activation_bytes(const gpt2_config *cfg, const gpt2_run *run);
/* Returns how many of these bytes gpt2_create does without, if it makes the last allocation on the
   device and no more memory is left: attention's backward then runs in smaller pieces, with the
   same bits. gpt2_attention_path reports them. */
size_t gpt2_spare_bytes(const gpt2_config *cfg, const gpt2_run *run);

/* Returns the bytes that GPT2_RECOMPUTE_AWAY keeps in the file, or in CUDA in host memory. They are
   not part of the bytes above. 0 without AWAY, and for a run that gpt2_create would reject. */
size_t gpt2_away_bytes(const gpt2_config *cfg, const gpt2_run *run);

/* Bytes that a rank of run->parallel's group sends in a micro-step of training, as zero_group_stats
   counts them, of N ranks; U = (N-1)/N of the bytes of B T rows of C activations:
       a block       8 U: four all-reduces; or as many all-gathers and reduce-scatters in all
         recomputed  2 U more (BLOCK, AWAY: the last sum of a block is not needed again); with
                     sequence parallelism 2 U (NORM) or 3 U (BLOCK, AWAY)
       embedding, classifier  2 U each
       loss          three all-reduces of B T f32
    In a pipeline, the bytes of its stage. experts_sent has those of experts, and context_sent those
    of context parallelism, which are part of the result. */
uint64_t gpt2_parallel_bytes(const gpt2_config *cfg, const gpt2_run *run);

/* Floating-point operations per token of a training step, forward and backward: 6 per parameter
   (without wpe) and 12 L C T for attention (Chowdhery et al. 2022, appendix B). Without the
   gradients of frozen tensors, 2 each, and without the backward of blocks below the first trained
   one. */
double gpt2_flops_per_token(const gpt2_config *cfg, int seq_len);

/* Returns the floating-point operations per second of the fastest matrix product of this type. The
   model computes its products in the same way, conversions included. On a CPU it measures a layer's
   three products at several shapes for about 0.2 s (threads 0: OpenMP's number). Returns 0 if it
   cannot measure. Utilisation is a share of this rate where gpt2_peak_rate is 0.
*/
double gpt2_matmul_rate(zero_type type, int threads);

/* Returns the rate that the GPU's manufacturer states for dense products that add in f32. 0: a CPU,
   or a GPU that the table does not contain. */
double gpt2_peak_rate(zero_type type, int tf32);

#ifdef __cplusplus
}
#endif
#endif

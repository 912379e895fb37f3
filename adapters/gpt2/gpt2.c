/* gpt2.c - implements gpt2.h on any device, with ops.h and zero_plugin.h. Common subset of C11 and
   CUDA C++.

   Shapes in comments: R = B T rows, C channels, Vp padded vocabulary. Memory of one micro-step:

       kept     | x ln1 qkv atty res2 ln2 fch (gelu) of block 0 | of block 1 | ... | final norm |
       shared   | logits of a chunk of rows                                             |
                | 4C gradients | recomputed values of the current block       |

      The classifier never runs while a block runs, so its logits and the temporary values of blocks
   share memory. `recompute` moves values from kept to shared. No other code depends on it, except
   for the line that recomputes them.

      CONTEXT. With context parallelism T is this rank's number of tokens of a sequence, a piece, so
   R counts its rows. context.h describes the exchange of qkv and of attention's output.

      MLP TILES. With mlp_rows an MLP runs tile by tile: in forward from rows of ln2 to the rows of
   the output, and in backward through both, with fch computed again. So the MLP has no array with
   4C numbers for each token. Gradients of its weights add up tile by tile, which rounds once more
   for each tile.

      PARTS. Cp, NHp and Vr are this rank's numbers of channels, heads and vocabulary rows, and Rp
   its number of rows between layers. Without tensor parallelism they are C, NH, Vp and R.
   tensor_parallel.h describes the communication. In an array (R, C), this rank's Rp rows keep their
   position (own).

      AWAY. With GPT2_RECOMPUTE_AWAY the inputs of blocks are offloaded, and WINDOW buffers hold the
   current ones; block i of a chunk uses buffer i % WINDOW. Forward offloads each input as soon as
   it is computed, and waits for the copy before it writes the buffer again. Backward fetches the
   last WINDOW inputs, then one more each time that a block has read its buffer. In a model that is
   one stage, the inputs of the last WINDOW blocks stay in their buffers, because backward follows
   at once. In a pipeline other chunks run between forward and backward, so all inputs are
   offloaded, except those that are messages of another stage.

      TOGETHER. In gpt2_train_layers each micro-batch has a set of blocks and its micro_values. A
   layer's unit is open while all micro-batches pass it; the hooks that they call nest inside. The
   classifier reads the final norm's output of all micro-batches, tile by tile. As blocks do not run
   at that time, this output and its gradient share their memory.

      TILES. With wte in tiles the classifier reads all tiles twice. After the final norm it
   computes, tile by tile, the logits, the running softmax, and the mean row of wte under the
   softmax. This mean row and the target's row give the loss and the gradient of the final norm's
   output. At the end of backward it computes, tile by tile, the same logits, their gradient, and
   the gradient of the tile, to which the lookup adds its part. So each tile's gradient is used
   once, and tiles and blocks share the memory of gradients. (A whole wte is used twice, so its
   gradient stays until the pass ends.) If lookup and classifier have separate tensors (an untied
   model, a pipeline), each computes its own gradient; the classifier does so after its first round.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include "gpt2.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "context.h"
#include "experts.h"
#include "frozen.h"
#include "lora.h"
#include "normals.h"
#include "ops.h"
#include "recheck.h"
#include "spill.h"
#include "stages.h"
#include "tensor_parallel.h"

#define TRY(call)                                                                                  \
    do {                                                                                           \
        const zero_result try_result = (call);                                                     \
        if (try_result != ZERO_OK) return try_result;                                              \
    } while (0)

/* ---- errors -------------------------------------------------------------------------------- */

static zero_result refuse(gpt2_error *err, zero_result result, const char *format, ...) {
    va_list list;
    if (!err) return result;
    va_start(list, format);
    (void)vsnprintf(err->sentence, sizeof err->sentence, format, list);
    va_end(list);
    return result;
}

/* Returns a result of the plugin, and copies its sentence. */
static zero_result plugin(gpt2_error *err, const zero_ctx *z, zero_result result) {
    if (result == ZERO_OK) return ZERO_OK;
    return refuse(err, result, "%s", zero_last_error(z));
}

static void no_error(gpt2_error *err) {
    if (err) err->sentence[0] = '\0';
}

/* ---- configuration ------------------------------------------------------------------------- */

/* Names of fixed sizes. Channels and heads of GPT-2 by layers, layers and heads of GPT-3 by
   channels (Brown et al. 2020, table 2.1). */
typedef struct named_size {
    int layers, channels, heads;
} named_size;

static const named_size gpt2_sizes[] = {{6, 384, 6},    {12, 768, 12},  {24, 1024, 16},
                                        {36, 1280, 20}, {48, 1600, 25}, {60, 1920, 30},
                                        {72, 2880, 30}, {84, 3456, 36}};
static const named_size gpt3_sizes[] = {{6, 384, 6},    {12, 768, 12},  {24, 1024, 16},
                                        {24, 1536, 16}, {24, 2048, 16}, {32, 2560, 32},
                                        {32, 4096, 32}, {96, 12288, 96}};

enum { SIZES = 8, MAX_LAYERS = 4096, MAX_CHANNELS = 1 << 16, MAX_TOKENS = 1 << 20 };

/* Checks a configuration. Sizes are bounded, so that their products fit into size_t. */
static zero_result check_config(const gpt2_config *c, const char *what, gpt2_error *err) {
    if (c->layers < 1 || c->layers > MAX_LAYERS || c->channels < 1 || c->channels > MAX_CHANNELS
        || c->heads < 1 || c->max_seq_len < 1 || c->max_seq_len > MAX_TOKENS || c->vocab_size < 1
        || c->vocab_size > MAX_TOKENS)
        return refuse(
            err, ZERO_ERR_ARGUMENT,
            "%s: %d layers, %d channels, %d heads, %d positions and %d vocabulary entries "
            "are out of range",
            what, c->layers, c->channels, c->heads, c->max_seq_len, c->vocab_size);
    if (c->channels % c->heads)
        return refuse(err, ZERO_ERR_ARGUMENT,
                      "%s: %d heads do not divide %d channels; use a divisor", what, c->heads,
                      c->channels);
    if (c->padded_vocab_size < c->vocab_size || c->padded_vocab_size % 128
        || c->padded_vocab_size > MAX_TOKENS + 128)
        return refuse(err, ZERO_ERR_ARGUMENT,
                      "%s: the padded vocabulary (%d) is not a multiple of 128, or has less than "
                      "the %d entries",
                      what, c->padded_vocab_size, c->vocab_size);
    return ZERO_OK;
}

/* Finds the fixed sizes of a name, by layers or by channels. Returns 0 if there are none. */
static int find_size(const named_size *sizes, int layers, int channels, gpt2_config *cfg) {
    for (int i = 0; i < SIZES; i++) {
        if (sizes[i].layers != layers && sizes[i].channels != channels) continue;
        cfg->layers = sizes[i].layers;
        cfg->channels = sizes[i].channels;
        cfg->heads = sizes[i].heads;
        return 1;
    }
    return 0;
}

/* Parses a descriptor. Returns 0 if it is not one. */
static int read_descriptor(const char *text, int max_seq_len, gpt2_config *cfg) {
    int n = 0, end = 0;
    if (sscanf(text, "char:%dx%dx%d%n", &cfg->layers, &cfg->channels, &cfg->heads, &end) == 3
        && !text[end]) {
        cfg->max_seq_len = max_seq_len ? max_seq_len : 64;
        cfg->vocab_size = 65;
        return 1;
    }
    cfg->vocab_size = 50257;
    cfg->max_seq_len = max_seq_len > 1024 ? max_seq_len : 1024;
    if (sscanf(text, "d%d%n", &n, &end) == 1 && !text[end]) return find_size(gpt2_sizes, n, 0, cfg);
    if (sscanf(text, "gpt2:d%d%n", &n, &end) == 1 && !text[end])
        return find_size(gpt2_sizes, n, 0, cfg);
    cfg->max_seq_len = max_seq_len > 2048 ? max_seq_len : 2048;
    if (sscanf(text, "gpt3:c%d%n", &n, &end) == 1 && !text[end])
        return find_size(gpt3_sizes, 0, n, cfg);
    return 0;
}

zero_result gpt2_config_parse(const char *descriptor, int vocab_size, int max_seq_len,
                              gpt2_config *cfg, gpt2_error *err) {
    gpt2_config made;
    memset(&made, 0, sizeof made);
    no_error(err);
    if (!read_descriptor(descriptor, max_seq_len, &made))
        return refuse(err, ZERO_ERR_ARGUMENT,
                      "'%s' is not a model; expected dN or gpt2:dN with N = 6 12 24 36 48 60 72 "
                      "84, gpt3:cN with N = 384 768 1024 1536 2048 2560 4096 12288, or char:LxCxH "
                      "(layers, channels, heads)",
                      descriptor);
    if (vocab_size) made.vocab_size = vocab_size;
    if (made.vocab_size <= MAX_TOKENS) made.padded_vocab_size = (made.vocab_size + 127) / 128 * 128;
    TRY(check_config(&made, descriptor, err));
    *cfg = made;
    return ZERO_OK;
}

/* ---- tensors ------------------------------------------------------------------------------- */

static zero_tensor_desc describe(const char *name, size_t numel, size_t field, int layers, int unit,
                                 int flags) {
    zero_tensor_desc d;
    memset(&d, 0, sizeof d);
    d.name = name;
    d.numel = numel;
    d.layers = layers;
    d.unit = unit;
    d.uses = 1;
    d.flags = flags;
    d.field = field;
    return d;
}

#define MATRIX(name, numel, layers, unit)                                                          \
    describe(#name, numel, offsetof(gpt2_tensors, name), layers, unit, 0)
#define VECTOR(name, numel, layers, unit)                                                          \
    describe(#name, numel, offsetof(gpt2_tensors, name), layers, unit, ZERO_NO_DECAY | ZERO_ONE_D)

void gpt2_describe(const gpt2_config *cfg, zero_tensor_desc out[GPT2_TENSORS]) {
    const size_t C = (size_t)cfg->channels;
    const int L = cfg->layers;
    out[GPT2_WTE] = MATRIX(wte, (size_t)cfg->padded_vocab_size * C, 1, 0);
    out[GPT2_WTE].uses = 2;
    out[GPT2_WPE] = MATRIX(wpe, (size_t)cfg->max_seq_len * C, 1, 0);
    out[GPT2_LN1W] = VECTOR(ln1w, C, L, 1);
    out[GPT2_LN1B] = VECTOR(ln1b, C, L, 1);
    out[GPT2_QKVW] = MATRIX(qkvw, 3 * C * C, L, 1);
    out[GPT2_QKVB] = VECTOR(qkvb, 3 * C, L, 1);
    out[GPT2_ATTPROJW] = MATRIX(attprojw, C * C, L, 1);
    out[GPT2_ATTPROJB] = VECTOR(attprojb, C, L, 1);
    out[GPT2_LN2W] = VECTOR(ln2w, C, L, 1);
    out[GPT2_LN2B] = VECTOR(ln2b, C, L, 1);
    out[GPT2_FCW] = MATRIX(fcw, 4 * C * C, L, 1);
    out[GPT2_FCB] = VECTOR(fcb, 4 * C, L, 1);
    out[GPT2_FCPROJW] = MATRIX(fcprojw, 4 * C * C, L, 1);
    out[GPT2_FCPROJB] = VECTOR(fcprojb, C, L, 1);
    out[GPT2_LNFW] = VECTOR(lnfw, C, 1, L + 1);
    out[GPT2_LNFB] = VECTOR(lnfb, C, 1, L + 1);
    for (int i = GPT2_FCW; i <= GPT2_FCPROJB; i++) out[i].layers = gpt2_tensor_layers(cfg, i);
}

int gpt2_tile_rows(const gpt2_config *cfg, int rows) {
    const int all = cfg->padded_vocab_size;
    int most = rows < all ? rows / 32 * 32 : all;
    if (rows <= 0) return 0;
    while (most > 32 && all % most) most -= 32;
    return most > 32 ? most : 32;
}

void gpt2_describe_tiled(const gpt2_config *cfg, int rows, zero_tensor_desc out[GPT2_TENSORS]) {
    const int each = gpt2_tile_rows(cfg, rows);
    gpt2_describe(cfg, out);
    if (!each) return;
    out[GPT2_WTE].numel = (size_t)each * (size_t)cfg->channels;
    out[GPT2_WTE].layers = cfg->padded_vocab_size / each;
    out[GPT2_WTE].uses = 1;
    out[GPT2_WTE].flags |= ZERO_AGAIN; /* used by the lookup and by the classifier */
    for (int i = GPT2_WPE; i < GPT2_TENSORS; i++) out[i].unit += out[GPT2_WTE].layers;
}

static size_t tensor_numel(const zero_tensor_desc *d) { return d->numel * (size_t)d->layers; }

/* Describes the classifier of an untied model. It is divided like wte, and its units come last. */
static void describe_classifier(zero_tensor_desc out[GPT2_MOST_TENSORS]) {
    const zero_tensor_desc *wte = &out[GPT2_WTE];
    out[GPT2_LMHEADW] = MATRIX(lmheadw, wte->numel, wte->layers, out[GPT2_LNFB].unit + 1);
    out[GPT2_WTE].uses = 1;
    out[GPT2_WTE].flags &= ~ZERO_AGAIN;
}

/* Changes the table of the whole model to this rank's parts. Tensors with rows of the vocabulary
 * are parts already. */
static void describe_part(const gpt2_config *cfg, const gpt2_parallel *how, zero_tensor_desc *table,
                          int n) {
    const int rank = zero_group_rank(how->tp), size = zero_group_size(how->tp);
    for (int row = 0; row < n; row++) {
        const int i = gpt2_tensor_at(cfg, row);
        const tensor_slice s = tensor_slice_of(cfg, i, rank, size);
        const int is_whole = tensor_slice_is_whole(&s);
        if (is_whole && rank > 0) table[row].flags |= ZERO_COPY;
        if (!is_whole && i != GPT2_WTE && i != GPT2_LMHEADW) table[row].numel /= (size_t)size;
    }
}

int gpt2_table(const gpt2_config *cfg, const gpt2_parallel *how, int tile_rows,
               zero_tensor_desc out[GPT2_MOST_TENSORS]) {
    const int size = how ? zero_group_size(how->tp) : 1;
    gpt2_config part = *cfg;
    part.padded_vocab_size /= size; /* a rank's part of the vocabulary is divided into tiles */
    gpt2_describe_tiled(&part, tile_rows, out);
    if (cfg->untied) describe_classifier(out);
    const int n = lora_describe(cfg, out, GPT2_TENSORS + (cfg->untied != 0));
    if (size > 1) describe_part(cfg, how, out, n);
    return gpt2_stage_table(cfg, how ? how->stage : NULL, out, n);
}

int gpt2_open_units(int group) { return group > 1 ? group + 2 : 0; }

int gpt2_tiles(const gpt2_config *cfg, int parts, int tile_rows) {
    gpt2_config part = *cfg;
    part.padded_vocab_size /= parts;
    const int rows = gpt2_tile_rows(&part, tile_rows);
    return rows ? part.padded_vocab_size / rows : 0;
}

/* Returns the ranks over which a tensor's gradient is summed first, or NULL. */
static zero_group *sum_group_of(const gpt2_config *cfg, const gpt2_parallel *how, int tensor) {
    const tensor_slice s =
        tensor_slice_of(cfg, tensor, zero_group_rank(how->tp), zero_group_size(how->tp));
    if (tensor == GPT2_WTE && !cfg->untied && !gpt2_stage_is_whole(how->stage))
        return how->stage->ends;
    const int parts = how->sequence || lora_matrix(tensor) >= 0; /* each rank has a part of a sum */
    return parts && zero_group_size(how->tp) > 1 && tensor_slice_is_whole(&s) ? how->tp : NULL;
}

/* Returns the ranks over which a tensor is divided, and the rows of a part; NULL: this rank has
 * whole layers. Tiles count as layers. */
static zero_group *slice_group_of(const gpt2_config *cfg, const gpt2_parallel *how, int tile_rows,
                                  int tensor, size_t *rows) {
    const tensor_slice s =
        tensor_slice_of(cfg, tensor, zero_group_rank(how->tp), zero_group_size(how->tp));
    const int tiles = tile_rows > 0 && (tensor == GPT2_WTE || tensor == GPT2_LMHEADW);
    const int cut = !tensor_slice_is_whole(&s) && !tiles;
    *rows = cut ? s.outer : 0;
    return cut ? how->tp : NULL;
}

/* Sets the sides of a block's matrices, with qkvw as one matrix, or as 3 NH. Other tensors get
   none. */
static void matrix_sides(const gpt2_config *cfg, int tensor, size_t *rows, size_t *cols) {
    const size_t C = (size_t)cfg->channels;
    const size_t of_qkv = cfg->muon_heads ? C / (size_t)cfg->heads : 3 * C;
    const size_t high = tensor == GPT2_QKVW ? of_qkv : tensor == GPT2_FCW ? 4 * C : C;
    const int is = tensor == GPT2_QKVW || tensor == GPT2_ATTPROJW || tensor == GPT2_FCW
                   || tensor == GPT2_FCPROJW;
    *rows = is ? high : 0;
    *cols = is ? (tensor == GPT2_FCPROJW ? 4 * C : C) : 0;
}

/* Returns 1 if the rows of tensor i are announced. */
static int has_rows(const gpt2_config *cfg, const gpt2_parallel *how, int i) {
    const int parts = how && (zero_group_size(how->tp) > 1 || !gpt2_stage_is_whole(how->stage));
    return cfg->sparse_rows && cfg->untied && !parts && (i == GPT2_WTE || i == GPT2_WPE);
}

zero_result gpt2_announce(zero_ctx *z, const gpt2_config *cfg, const gpt2_parallel *how,
                          int tile_rows) {
    zero_tensor_desc table[GPT2_MOST_TENSORS];
    const int n = gpt2_table(cfg, how, tile_rows, table);
    size_t most = 1;
    for (int i = 0; i < n; i++)
        if ((size_t)table[i].layers > most) most = (size_t)table[i].layers;
    char *frozen = (char *)calloc(GPT2_MOST_TENSORS, most); /* the plugin copies it */
    if (!frozen) return ZERO_ERR_MEMORY;
    for (int i = 0, k = 0; i < GPT2_MOST_TENSORS && k < n; i++) {
        zero_tensor_desc *d = &table[k];
        if (strcmp(gpt2_tensor_name(i), d->name) != 0) continue;
        k++;
        if (cfg->moe.experts && i >= GPT2_FCW && i <= GPT2_FCPROJB)
            d->every = 2; /* the other blocks have experts */
        matrix_sides(cfg, i, &d->rows, &d->cols);
        if (cfg->f32_embedding_state && (i == GPT2_WTE || i == GPT2_WPE || i == GPT2_LMHEADW))
            d->flags |= ZERO_F32_STATE;
        const int heads_are_whole = cfg->muon_heads && i == GPT2_QKVW;
        if (how && !heads_are_whole)
            d->slice_of = slice_group_of(cfg, how, tile_rows, i, &d->outer);
        if (how) d->sum_over = sum_group_of(cfg, how, i);
        if (has_rows(cfg, how, i)) d->row_numel = (size_t)cfg->channels;
        gpt2_frozen_describe(cfg, how ? how->stage : NULL, i, d, frozen + (size_t)i * most);
    }
    const zero_result result = zero_tensors(z, table, n);
    free(frozen);
    return result;
}

size_t gpt2_numel(const gpt2_config *cfg) {
    zero_tensor_desc table[GPT2_MOST_TENSORS];
    size_t sum = 0;
    const int n = gpt2_table(cfg, NULL, 0, table);
    for (int i = 0; i < n; i++) sum += tensor_numel(&table[i]);
    return sum;
}

size_t gpt2_trained_numel(const gpt2_config *cfg) {
    zero_tensor_desc table[GPT2_MOST_TENSORS];
    size_t sum = 0;
    (void)gpt2_table(cfg, NULL, 0, table);
    GPT2_EACH_TENSOR(cfg, row, t)
    for (int l = 0; l < gpt2_tensor_layers(cfg, t); l++)
        sum += gpt2_is_frozen(cfg, t, l) ? 0 : table[row].numel;
    return sum;
}

/* Writes why the model cannot be divided among this number of ranks, or "". */
static void cut_reason(const gpt2_config *cfg, int seq_len, int tile_rows, int ranks, int sequence,
                       char *why, size_t bytes) {
    const int rows = cfg->padded_vocab_size;
    why[0] = 0;
    if (ranks < 1 || cfg->heads % ranks)
        (void)snprintf(why, bytes, "the number does not divide the %d heads", cfg->heads);
    else if (rows % ranks)
        (void)snprintf(why, bytes,
                       "the number does not divide the %d rows of the padded vocabulary", rows);
    else if (tile_rows > 0 && ranks > 1 && rows / ranks % 32)
        (void)snprintf(why, bytes, "%d rows of the vocabulary per rank are not a multiple of 32",
                       rows / ranks);
    else if (sequence && seq_len % ranks)
        (void)snprintf(
            why, bytes,
            "with sequence parallelism the number must divide the %d tokens of a sequence",
            seq_len);
}

zero_result gpt2_parallel_check(const gpt2_config *cfg, int seq_len, int tile_rows, int ranks,
                                int sequence, gpt2_error *err) {
    char why[128], other[128];
    no_error(err);
    cut_reason(cfg, seq_len, tile_rows, ranks, sequence, why, sizeof why);
    for (int off = 1; why[0] && off < ranks + cfg->heads; off++)
        for (int sign = -1; sign < 2; sign += 2) {
            const int near = ranks + sign * off;
            cut_reason(cfg, seq_len, tile_rows, near, sequence, other, sizeof other);
            if (!other[0])
                return refuse(err, ZERO_ERR_ARGUMENT,
                              "the model cannot be divided among %d tensor-parallel ranks: %s; the "
                              "nearest number that does is %d",
                              ranks, why, near);
        }
    return ZERO_OK;
}

/* ---- initialisation ------------------------------------------------------------------------ */

#define CHUNK ((size_t)1 << 18) /* floats of a tensor in memory at once */

/* Returns the standard deviation of a tensor's elements. 0: they are constant. */
static double tensor_deviation(int tensor, int layers) {
    switch (tensor) {
    case GPT2_WTE:
    case GPT2_LMHEADW:
    case GPT2_WPE:
    case GPT2_QKVW:
    case GPT2_FCW: return 0.02;
    case GPT2_ATTPROJW:
    case GPT2_FCPROJW: return 0.02 / sqrt(2.0 * layers);
    default: return 0.0;
    }
}

static int is_norm_weight(int tensor) {
    return tensor == GPT2_LN1W || tensor == GPT2_LN2W || tensor == GPT2_LNFW;
}

static zero_result init_tensor(zero_ctx *z, const gpt2_config *cfg, const gpt2_parallel *how,
                               uint64_t seed, int tensor, size_t numel, float *chunk) {
    const int has_rows = tensor == GPT2_WTE || tensor == GPT2_LMHEADW;
    const size_t drawn = has_rows ? (size_t)cfg->vocab_size * (size_t)cfg->channels : numel;
    const double deviation = tensor_deviation(tensor, cfg->layers);
    for (size_t first = 0; first < numel; first += CHUNK) {
        const size_t n = numel - first < CHUNK ? numel - first : CHUNK;
        for (size_t j = 0; j < n; j++) chunk[j] = is_norm_weight(tensor) ? 1.0f : 0.0f;
        if (deviation > 0 && first < drawn)
            gpt2_normals(chunk, seed, (uint64_t)tensor, first,
                         drawn - first < n ? drawn - first : n, deviation);
        TRY(gpt2_write(z, cfg, how, tensor, ZERO_PARAMETER, first, n, chunk));
    }
    return ZERO_OK;
}

zero_result gpt2_init_part(zero_ctx *z, const gpt2_config *cfg, const gpt2_parallel *how,
                           uint64_t seed, gpt2_error *err) {
    zero_tensor_desc table[GPT2_MOST_TENSORS];
    zero_result result = ZERO_OK;
    float *chunk = (float *)malloc(CHUNK * sizeof(float));
    no_error(err);
    if (!chunk) return refuse(err, ZERO_ERR_MEMORY, "out of memory for the first weights");
    gpt2_config base = *cfg; /* without adapters */
    base.frozen = NULL;
    const int n = gpt2_table(&base, NULL, 0, table);
    for (int i = 0; i < n && result == ZERO_OK; i++)
        result = init_tensor(z, cfg, how, seed, i, tensor_numel(&table[i]), chunk);
    free(chunk);
    if (result == ZERO_OK && how && how->experts)
        result = experts_init(how->experts, cfg, how, seed);
    if (result == ZERO_OK) return ZERO_OK;
    return refuse(err, result, "%s", gpt2_parallel_error(z, how));
}

zero_result gpt2_init(zero_ctx *z, const gpt2_config *cfg, uint64_t seed, gpt2_error *err) {
    return gpt2_init_part(z, cfg, NULL, seed, err);
}

/* ---- memory of a model --------------------------------------------------------------------- */

/* The values that a block's forward stores for its backward. */
typedef struct block_values {
    void *x;      /* (Rp, C) input */
    void *own;    /* its own memory; NULL if the input can come from another stage only */
    void *ln1;    /* (R, C) */
    float *mean1; /* (Rp) */
    float *rstd1; /* (Rp) */
    void *qkv;    /* (R, 3Cp); ops.h says whether the bias is in it */
    float *lse;   /* (B, NHp, T) */
    void *atty;   /* (R, Cp) attention before its projection */
    void *heads;  /* (R, Cp): if ranks exchange heads, atty of this rank's heads, as qkv and lse */
    void *res2;   /* (Rp, C) x + projected attention */
    void *ln2;    /* (R, C) */
    float *mean2; /* (Rp) */
    float *rstd2; /* (Rp) */
    void *fch;    /* (R, 4Cp) before GELU; the same */
    void *gelu;   /* (R, 4Cp) */
} block_values;

/* Number of inputs of blocks in memory at once, if inputs are offloaded: one that is read, one that
 * is written, and one that is transferred. */
enum { WINDOW = 3 };

/* The values of one micro-batch between its layers. `shared` memory has those that blocks do not
   need. */
typedef struct micro_values {
    void *norm_x;          /* (Rp, C) input of the final norm */
    void *lnf;             /* (R, C), shared if nothing reads it after the classifier */
    float *meanf, *rstdf;  /* (R) */
    float *losses;         /* (R) */
    int *tokens, *targets; /* (R) */
    void *dres;            /* (R, C) gradient of the residual stream */
    void *ends;  /* (R, C) shared: the model's `dc` in embedding, final norm and classifier */
    float *mean; /* (R, C) shared: with tiles, the mean row of wte under the softmax */
    ops_softmax softmax;  /* (R): with tiles or tensor parallelism */
    void *window[WINDOW]; /* (Rp, C) buffers of the current inputs */
    int leaving[WINDOW];  /* the record that is being offloaded; -1: none */
} micro_values;

struct gpt2_model {
    gpt2_config cfg;
    gpt2_run run;
    zero_ctx *z; /* borrowed */
    ops_ctx *ops;
    gpt2_tensors params, grads; /* base pointers, rebased by the hooks */
    tensor_parallel tp;         /* one rank: no tensor is divided */
    context_parallel cp;        /* one rank: sequences are whole */
    int *piece;                 /* (2, R) context parallelism: this rank's tokens and targets */
    void *bias;                 /* (3, Cp/u) if ranks exchange heads: bias of qkv of this rank's */
    float *turns;               /* with ring attention: floats of its calls */
    experts *moe;               /* NULL: the model has none */
    size_t trained;             /* training steps since the last experts_take */
    int counts;                 /* this pass is a training pass */
    size_t kept;     /* number of tokens that have keys and values in qkv, for gpt2_next_logits */
    size_t position; /* position of the first token of this pass; 0 except in gpt2_next_logits */
    float aux;       /* factor of the auxiliary loss in this pass */
    size_t C, V, Vp, T;
    size_t Cp, heads, Vr;    /* this rank's numbers of channels, heads and rows of the vocabulary */
    size_t row;              /* the first of these rows */
    size_t mlp_rows;         /* rows of a tile of an MLP; 0: it has no tiles */
    size_t tile_rows, tiles; /* tiles of wte; 0: wte is whole, and in one unit with wpe */
    int first_block;         /* unit of wpe */
    size_t bytes,
        grad_bytes;   /* bytes of a parameter or activation, and of a parameter's gradient */
    void *memory;     /* all arrays below except those of blocks */
    gpt2_stage stage; /* the pipeline stage; a model without a pipeline is one chunk */
    int apart;        /* the gradient of wte here is that of the lookup or of the classifier only */
    int layers;       /* blocks of this rank: L, or those of its stage */
    int longest, slots; /* most blocks of a chunk; number of sets of values */
    block_values *sets; /* [slots][longest + 1] */
    int first,
        count; /* the current chunk: its first block on this rank, and its number of blocks */
    block_values *blocks; /* its set: `count` blocks, and one more. The x of the last one is the
                             output of the chunk or the input of the final norm */
    int together;         /* micro-batches that pass each layer together */
    int group;            /* blocks that a micro-batch passes before the next one does; 1 if not
                             TOGETHER */
    micro_values *micros; /* [together] */
    micro_values *now;    /* those of the current micro-batch, of which the model has copies */
    void *norm_x;         /* (Rp, C) input of the final norm */
    void *sum_x;          /* (R, C) dres, if it is not a message of another stage */
    void *lnf;            /* (R, C) */
    void *spare;          /* (4Cp) gradients of frozen biases and norms, which nothing reads */
    float *meanf;         /* (R) */
    float *rstdf;         /* (R) */
    float *losses;        /* (R) */
    double *totals;       /* (2): sum of all losses since gpt2_take_losses; sum of one call */
    size_t summed;        /* number of losses in the first sum */
    int *tokens;          /* (R) */
    int *targets;         /* (R) */
    void *dres;           /* (R, C) gradient of the residual stream */
    void *dc;             /* (R, C) gradient of the output of a norm, or of attention */
    void *blocks_dc;      /* (R, C) dc of blocks */
    void *d4c;            /* (R, 4C) gradient of fch, or (mlp_rows, 4C); (R, 3C) of qkv */
    void *down, *back;    /* (R, rank) what adapters compute on their way: see lora.h */
    void *logits;         /* (chunk, Vp), overlaps d4c and the recomputed values of blocks */
    size_t chunk;         /* rows of logits at once */
    spill *away; /* offloaded inputs of blocks, a record each; NULL: inputs stay in memory */
    int slot;    /* set of the current chunk, which selects its records */
    ops_softmax softmax; /* (R): with tiles; its losses are `losses` */
    float *mean;         /* (R, C) the mean row of wte under the softmax */
    float *most;         /* (R) with tensor parallelism: the largest logits of all ranks */
    const int *inputs, *all_targets; /* (together, R) of the current gpt2_train_layers */
    void *line;                      /* (Vp) with tensor parallelism: logits of one token */
    float scale;                     /* factor of the losses' gradient in this pass */
    recheck *check;                  /* NULL: no products are checked */
    gpt2_error error;
};

/* A region of memory. With base NULL it is only measured. */
typedef struct region {
    char *base;
    size_t at, most; /* bytes in use; their maximum */
} region;

static void *cut(region *r, size_t n, size_t bytes_each) {
    char *p = r->base ? r->base + r->at : NULL;
    r->at += (n * bytes_each + 127) / 128 * 128; /* alignment: a line of a GPU's memory */
    if (r->at > r->most) r->most = r->at;
    return p;
}

static float *cut_floats(region *r, size_t n) { return (float *)cut(r, n, sizeof(float)); }

/* Returns the rows of logits at once: as many as the device's budget holds, in chunks of equal
 * size. */
static size_t chunk_rows(size_t R, size_t row_bytes) {
    const size_t budget = ops_logits_budget() / row_bytes, most = budget ? budget : 1;
    const size_t chunks = (R + most - 1) / most;
    return (R + chunks - 1) / chunks;
}

/* Returns the rows of an activation between layers. */
static size_t rows_between(const gpt2_model *m) {
    return tensor_parallel_rows(&m->tp, (size_t)m->run.batch * m->T);
}

/* Returns 1 if dres has memory of its own: without a pipeline, or with sequence parallelism.
 * Otherwise gradients between stages are computed in the messages. */
static int has_own_dres(const gpt2_model *m) {
    return gpt2_stage_is_whole(&m->stage) || m->tp.sequence;
}

/* Returns the number of groups of n blocks. */
static int groups_of(const gpt2_model *m, int n) { return (n + m->group - 1) / m->group; }

/* Returns the memory of the input of group g. Number groups_of(all blocks) is the input of the
   final norm. */
static void *place_input(const gpt2_model *m, const micro_values *v, int g, region *kept) {
    if (m->run.recompute == GPT2_RECOMPUTE_AWAY) return v->window[g % WINDOW];
    return cut(kept, rows_between(m) * m->C, m->bytes);
}

/* Returns 1 if backward reaches block l of the whole model, or, for -1, the embeddings: these, or
   those below, have trained tensors. */
static int reaches(const gpt2_model *m, int l) {
    return !m->cfg.frozen || l >= m->cfg.frozen->lowest;
}

static void place_block(block_values *b, region *kept, region *shared, const gpt2_model *m, int moe,
                        int again) {
    const size_t R = (size_t)m->run.batch * m->T, Rp = rows_between(m), C = m->C, Cp = m->Cp;
    region *inner = again >= GPT2_RECOMPUTE_BLOCK ? shared : kept;
    region *norms = again >= GPT2_RECOMPUTE_NORM ? shared : kept;
    b->ln1 = cut(norms, R * C, m->bytes);
    b->mean1 = cut_floats(inner, Rp);
    b->rstd1 = cut_floats(inner, Rp);
    b->qkv = cut(inner, R * 3 * Cp, m->bytes);
    b->lse = cut_floats(inner, R * m->heads);
    b->atty = cut(inner, R * Cp, m->bytes);
    b->heads = m->cp.heads > 1 ? cut(inner, R * Cp, m->bytes) : NULL;
    b->res2 = cut(inner, Rp * C, m->bytes);
    b->ln2 = cut(norms, R * C, m->bytes);
    b->mean2 = cut_floats(inner, Rp);
    b->rstd2 = cut_floats(inner, Rp);
    if (moe) return;
    const size_t rows = m->mlp_rows > 0 ? m->mlp_rows : R;
    b->fch = cut(inner, rows * 4 * Cp, m->bytes);
    b->gelu = cut(again >= GPT2_RECOMPUTE_GELU ? shared : kept, rows * 4 * Cp, m->bytes);
}

/* Places what the classifier needs for each micro-batch. */
static void place_softmax(const gpt2_model *m, micro_values *v, region *kept, region *shared) {
    const size_t R = (size_t)m->run.batch * m->T;
    v->softmax.losses = v->losses;
    if (m->tiles || m->tp.group) {
        v->softmax.most = cut_floats(kept, R);
        v->softmax.sum = cut_floats(kept, R);
        v->softmax.factor = cut_floats(shared, R);
    }
    if (m->tiles) v->mean = cut_floats(shared, R * m->C);
}

/* Places the values of a micro-batch. Without others, all of them are kept: a micro-batch uses the
   memory of its layers one after the other. */
static void place_micro(gpt2_model *m, micro_values *v, region *kept, region *shared) {
    const size_t R = (size_t)m->run.batch * m->T, Rp = rows_between(m), C = m->C;
    const int several = m->together > 1, whole = gpt2_stage_is_whole(&m->stage);
    const int again = m->tiles && !m->apart; /* the end of backward reads lnf */
    v->lnf = cut(several && !again ? shared : kept, R * C, m->bytes);
    v->meanf = cut_floats(kept, Rp);
    v->rstdf = cut_floats(kept, Rp);
    v->losses = cut_floats(kept, R);
    v->tokens = (int *)cut(kept, R, sizeof(int));
    v->targets = (int *)cut(kept, R, sizeof(int));
    v->dres = has_own_dres(m) ? cut(kept, R * C, m->bytes) : NULL;
    v->ends = several ? cut(shared, R * C, m->bytes) : m->blocks_dc;
    if (gpt2_stage_is_last(&m->stage)) place_softmax(m, v, kept, shared);
    for (int i = 0; i < WINDOW && m->run.recompute == GPT2_RECOMPUTE_AWAY; i++)
        v->window[i] = i < groups_of(m, m->longest) + whole ? cut(kept, Rp * C, m->bytes) : NULL;
    v->norm_x = whole                           ? place_input(m, v, groups_of(m, m->layers), kept)
                : gpt2_stage_is_last(&m->stage) ? cut(kept, Rp * C, m->bytes)
                                                : NULL;
}

/* Places the logits, which all micro-batches share. */
static void place_logits(gpt2_model *m, region *shared) {
    const size_t R = (size_t)m->run.batch * m->T, columns = m->tiles ? m->tile_rows : m->Vr;
    m->chunk = chunk_rows(R, columns * m->bytes);
    m->logits = cut(shared, m->chunk * columns, m->bytes);
    if (m->tp.group || m->cp.size > 1) m->line = cut(shared, m->Vp, m->bytes);
    if (m->tp.group) m->most = cut_floats(shared, R);
}

/* Places the blocks of a set. To measure, m->sets is NULL. Blocks of a group share memory with
   those of other groups: only the input of the first one is kept. */
static void place_set(gpt2_model *m, int slot, const micro_values *v, region *kept,
                      region *shared) {
    const size_t passing = shared->at;
    const int whole = gpt2_stage_is_whole(&m->stage);
    block_values spare;
    for (int l = 0; l < m->longest; l++) {
        block_values *b = m->sets ? &m->sets[slot * (m->longest + 1) + l] : &spare;
        if (l % m->group == 0) shared->at = passing;
        b->own = l % m->group ? cut(shared, rows_between(m) * m->C, m->bytes)
                 : l > 0 || gpt2_stage_is_first(&m->stage) ? place_input(m, v, l / m->group, kept)
                                                           : NULL;
        /* a block without backward keeps nothing but its input */
        const int again = whole && !reaches(m, l) ? GPT2_RECOMPUTE_BLOCK : m->run.recompute;
        place_block(b, kept, shared, m, experts_is_layer(&m->cfg, l), again);
    }
    shared->at = passing;
}

/* Returns how many numbers d4c has: gradients of fch, of qkv, or a ring's keys and values of two
   rounds. */
static size_t wide_numel(const gpt2_model *m) {
    const size_t R = (size_t)m->run.batch * m->T, Cp = m->Cp;
    const size_t tile = 4 * Cp * m->mlp_rows, all = (m->cp.ring_size > 1 ? 4 : 3) * Cp * R;
    return m->mlp_rows == 0 ? 4 * Cp * R : tile > all ? tile : all;
}

/* Enlarges d4c, if necessary, for the losses of all pieces, twice: see gpt2_token_losses. */
static void place_losses(const gpt2_model *m, region *shared) {
    const size_t losses = 2 * (size_t)m->run.batch * m->T * m->cp.size * sizeof(float);
    if (shared->at < losses) (void)cut(shared, losses - shared->at, 1);
}

/* Places the floats of ring attention; d4c has the keys and values of other ranks. */
static float *place_turns(const gpt2_model *m, region *shared) {
    if (m->cp.ring_size == 1) return NULL;
    const ops_heads piece = {(size_t)m->run.batch, m->T, m->heads, m->Cp / m->heads};
    const ops_heads s = context_heads(&m->cp, &piece);
    return cut_floats(shared, ring_floats(&s));
}

/* Sets every pointer. To measure, m->micros is NULL, and one micro-batch counts for all. */
static void place(gpt2_model *m, region *kept, region *shared) {
    const size_t R = (size_t)m->run.batch * m->T, C = m->C;
    micro_values spare;
    memset(&spare, 0, sizeof spare);
    m->spare = m->cfg.frozen ? cut(kept, 4 * C, m->grad_bytes) : NULL;
    m->totals = (double *)cut(kept, 2, sizeof(double));
    m->blocks_dc = cut(kept, R * C, m->bytes);
    m->bias = m->cp.heads > 1 ? cut(kept, 3 * m->Cp / m->cp.heads, m->bytes) : NULL;
    if (gpt2_stage_is_last(&m->stage)) place_logits(m, shared);
    for (int k = 0; k < m->together; k++)
        place_micro(m, m->micros ? &m->micros[k] : &spare, kept, shared);
    shared->at = 0;
    m->d4c = cut(shared, wide_numel(m), m->bytes);
    if (m->cp.size > 1) place_losses(m, shared);
    m->turns = place_turns(m, shared);
    const gpt2_lora *lora = gpt2_lora_of(&m->cfg);
    m->down = lora ? cut(shared, R * (size_t)lora->rank, m->bytes) : NULL;
    m->back = lora ? cut(shared, R * (size_t)lora->rank, m->bytes) : NULL;
    for (int slot = 0; slot < m->slots; slot++) {
        const int micro = m->together > 1 ? slot : 0;
        place_set(m, slot, m->micros ? &m->micros[micro] : &spare, kept, shared);
    }
}

static ops_limits limits_of(const gpt2_model *m) {
    ops_limits limits;
    limits.batch = (size_t)m->run.batch;
    limits.heads = m->heads / m->cp.heads;
    limits.seq_len = m->cp.ring_size > 1 ? 0 : m->T * m->cp.size;
    limits.head_size = m->Cp / m->heads;
    limits.width = 4 * m->C;
    limits.vocab = m->Vp;
    limits.rows = (size_t)m->run.batch * m->T;
    return limits;
}

/* Returns the bytes of m->memory. m->cfg and m->run must be set. */
static size_t measure(gpt2_model *m, region *kept, region *shared) {
    memset(kept, 0, sizeof *kept);
    memset(shared, 0, sizeof *shared);
    place(m, kept, shared);
    return kept->most + shared->most;
}

/* Returns the number of blocks of this rank. */
static void set_stage(gpt2_model *m, const gpt2_stage *stage) {
    m->layers = m->longest = m->cfg.layers;
    m->slots = m->together = m->run.together > 1 ? m->run.together : 1;
    m->group = m->together > 1 && m->run.group > 1 ? m->run.group : 1;
    m->apart = m->cfg.untied;
    if (gpt2_stage_is_whole(stage)) return;
    m->apart = 1;
    m->stage = *stage;
    m->together = m->group = 1;
    m->layers = gpt2_stage_layers(stage);
    m->longest = gpt2_stage_most(stage);
    m->slots = stage->slots;
    m->first_block = gpt2_stage_first_block(&m->cfg, stage, (int)m->tiles);
}

static zero_result check_group(const gpt2_config *cfg, const gpt2_run *run, gpt2_error *err) {
    const int frozen = cfg->frozen && cfg->frozen->lowest > 0;
    if (run->group >= 0 && run->group < 2) return ZERO_OK;
    if (run->group < 0 || run->group > cfg->layers)
        return refuse(err, ZERO_ERR_ARGUMENT, "groups of %d layers, expected 0 to %d", run->group,
                      cfg->layers);
    if (run->recompute < GPT2_RECOMPUTE_BLOCK)
        return refuse(err, ZERO_ERR_ARGUMENT,
                      "groups of %d layers keep only the input of the first one; recompute is %d, "
                      "expected 3 or 4",
                      run->group, run->recompute);
    if (!cfg->moe.experts && !frozen) return ZERO_OK;
    return refuse(err, ZERO_ERR_UNSUPPORTED, "groups of %d layers do not work with %s", run->group,
                  frozen ? "frozen layers below trained ones" : "experts");
}

static zero_result set_shape(gpt2_model *m, const gpt2_config *cfg, const gpt2_run *run,
                             gpt2_error *err) {
    memset(m, 0, sizeof *m);
    TRY(check_config(cfg, "model", err));
    if (run->batch < 1 || run->seq_len < 1 || run->batch > MAX_TOKENS / run->seq_len)
        return refuse(err, ZERO_ERR_ARGUMENT,
                      "a batch of %d sequences of %d tokens is out of range", run->batch,
                      run->seq_len);
    if (run->seq_len > cfg->max_seq_len)
        return refuse(err, ZERO_ERR_ARGUMENT,
                      "sequences of %d tokens, but the model has %d positions", run->seq_len,
                      cfg->max_seq_len);
    if (run->recompute < GPT2_RECOMPUTE_NONE || run->recompute > GPT2_RECOMPUTE_AWAY)
        return refuse(err, ZERO_ERR_ARGUMENT,
                      "recompute is %d, expected 0 (nothing), 1 (GELU), 2 (also layer norms), 3 "
                      "(blocks) or 4 (blocks, with their inputs in a file)",
                      run->recompute);
    if (run->type != ZERO_F32 && run->type != ZERO_BF16 && run->type != ZERO_F16)
        return refuse(err, ZERO_ERR_ARGUMENT, "type is %d, expected 0 (f32), 1 (bf16) or 2 (fp16)",
                      (int)run->type);
    if (run->tile_rows < 0)
        return refuse(err, ZERO_ERR_ARGUMENT, "tiles of %d rows", run->tile_rows);
    if (run->mlp_rows < 0 || (run->mlp_rows > 0 && run->recompute < GPT2_RECOMPUTE_BLOCK))
        return refuse(err, ZERO_ERR_ARGUMENT,
                      "MLPs in tiles of %d rows with recompute %d; tiles keep no values for "
                      "backward, so use recompute 3 or 4 with 1 or more rows",
                      run->mlp_rows, run->recompute);
    tensor_parallel_open(&m->tp, run->parallel, run->type);
    context_open(&m->cp, run->parallel, run->type);
    TRY(check_group(cfg, run, err));
    const int ranks = (int)m->tp.size;
    TRY(gpt2_parallel_check(cfg, run->seq_len, run->tile_rows, ranks, m->tp.sequence, err));
    const context_shape shape = {cfg, ranks, m->tp.sequence, run->seq_len, (int)m->cp.size};
    TRY(context_check(&shape, (int)m->cp.ring_size, err));
    TRY(experts_check(cfg, zero_group_size(run->parallel ? run->parallel->ep : NULL), err));
    m->cfg = *cfg;
    m->run = *run;
    m->run.parallel = NULL;
    m->C = (size_t)cfg->channels;
    m->V = (size_t)cfg->vocab_size;
    m->Vp = (size_t)cfg->padded_vocab_size;
    m->T = (size_t)run->seq_len / m->cp.size;
    m->Cp = m->C / m->tp.size;
    m->heads = (size_t)cfg->heads / m->tp.size;
    m->Vr = m->Vp / m->tp.size;
    m->row = m->Vr * m->tp.rank;
    m->tiles = (size_t)gpt2_tiles(cfg, ranks, run->tile_rows);
    m->tile_rows = m->tiles ? m->Vr / m->tiles : 0;
    m->first_block = (int)m->tiles + 1;
    m->bytes = zero_type_bytes(run->type);
    set_stage(m, run->parallel ? run->parallel->stage : NULL);
    if (run->mlp_rows > 0) {
        const size_t R = (size_t)run->batch * m->T, most = (size_t)run->mlp_rows;
        const size_t tiles = (R + most - 1) / most;
        m->mlp_rows = (R + tiles - 1) / tiles;
    }
    if (run->together >= 0 && (run->together < 2 || gpt2_stage_is_whole(&m->stage))) return ZERO_OK;
    return refuse(err, ZERO_ERR_ARGUMENT,
                  "%d micro-batches together, expected 0 or more, and in a pipeline at most 1",
                  run->together);
}

static int unit_of_block(const gpt2_model *m, size_t l) { return m->first_block + (int)l; }
static int unit_of_norm(const gpt2_model *m) { return m->first_block + m->layers; }
/* Returns the unit of the classifier, or of its tile i. */
static int unit_of_classifier(const gpt2_model *m, size_t i) {
    return (int)i + (m->cfg.untied ? unit_of_norm(m) + 1 : 0);
}
/* Returns the number of units. */
static int units_of(const gpt2_model *m) {
    const int own = m->tiles ? (int)m->tiles : 1;
    if (!gpt2_stage_is_last(&m->stage)) return unit_of_norm(m);
    return unit_of_norm(m) + 1 + (m->cfg.untied ? own : 0);
}

/* Checks that the context has the type of the run, and copies the type of gradients and the stream.
 */
static zero_result take_settings(gpt2_model *m, zero_ctx *z, ops_settings *settings,
                                 gpt2_error *err) {
    static const char *const names[ZERO_TYPES] = {"f32", "bf16", "f16"};
    zero_config zc;
    zero_query_config(z, &zc);
    if (zc.type != m->run.type)
        return refuse(err, ZERO_ERR_ARGUMENT,
                      "the run is in %s, but the context has parameters in %s", names[m->run.type],
                      names[zc.type]);
    settings->type = zc.type;
    settings->grad_type = zc.grads == ZERO_GRAD_F32 ? ZERO_F32 : zc.type;
    settings->stream = zc.stream;
    settings->tf32 = m->run.tf32;
    settings->any_order = m->run.any_order;
    m->grad_bytes = zero_type_bytes(settings->grad_type);
    m->z = z;
    return ZERO_OK;
}

size_t gpt2_activation_bytes(const gpt2_config *cfg, const gpt2_run *run) {
    gpt2_model shape;
    region kept, shared;
    if (set_shape(&shape, cfg, run, NULL) != ZERO_OK) return 0;
    const ops_limits limits = limits_of(&shape);
    const ops_settings settings = {run->type, run->type, NULL, run->tf32, run->any_order};
    const size_t piece = shape.cp.size > 1 ? limits.rows * 2 * sizeof *shape.piece : 0;
    return measure(&shape, &kept, &shared) + ops_scratch_bytes(&limits, &settings)
           + experts_bytes(cfg, run) + piece;
}

size_t gpt2_spare_bytes(const gpt2_config *cfg, const gpt2_run *run) {
    gpt2_model shape;
    if (cfg->moe.experts || set_shape(&shape, cfg, run, NULL) != ZERO_OK) return 0;
    const ops_limits limits = limits_of(&shape);
    const ops_settings settings = {run->type, run->type, NULL, run->tf32, run->any_order};
    return ops_spare_bytes(&limits, &settings);
}

/* away_inputs returns the number of inputs of a chunk that are offloaded, a record each: the inputs
   of groups. The first input of a chunk is not offloaded if it is a message of another stage:
   always if away_first returns 1; on the first stage in all chunks but the first. */
static int away_first(const gpt2_model *m) { return !gpt2_stage_is_first(&m->stage); }
static int away_inputs(const gpt2_model *m) {
    const int whole = gpt2_stage_is_whole(&m->stage);
    const int inputs = whole ? groups_of(m, m->layers) + 1 - WINDOW : m->longest - away_first(m);
    return m->run.recompute == GPT2_RECOMPUTE_AWAY && inputs > 0 ? inputs : 0;
}
static int away_records(const gpt2_model *m) { return m->slots * away_inputs(m); }
static size_t away_record_bytes(const gpt2_model *m) { return rows_between(m) * m->C * m->bytes; }

size_t gpt2_away_bytes(const gpt2_config *cfg, const gpt2_run *run) {
    gpt2_model shape;
    if (set_shape(&shape, cfg, run, NULL) != ZERO_OK) return 0;
    return (size_t)away_records(&shape) * away_record_bytes(&shape);
}

static zero_result open_away(gpt2_model *m, void *stream, gpt2_error *err) {
    const spill_shape shape = {away_records(m), away_record_bytes(m), m->run.folder, stream};
    char why[SPILL_SENTENCE];
    for (int k = 0; k < m->together; k++)
        for (int i = 0; i < WINDOW; i++) m->micros[k].leaving[i] = -1;
    if (!shape.records) return ZERO_OK;
    const zero_result result = spill_create(&m->away, &shape, why);
    m->run.folder = NULL;
    return result == ZERO_OK ? ZERO_OK : refuse(err, result, "%s", why);
}

/* Selects micro-batch k of those that pass the layers together. */
static void choose_micro(gpt2_model *m, int k) {
    micro_values *v = m->now = &m->micros[k];
    m->norm_x = v->norm_x;
    m->lnf = v->lnf;
    m->meanf = v->meanf;
    m->rstdf = v->rstdf;
    m->losses = v->losses;
    m->tokens = v->tokens;
    m->targets = v->targets;
    m->sum_x = m->dres = v->dres;
    m->dc = m->blocks_dc;
    m->mean = v->mean;
    m->softmax = v->softmax;
}

/* Selects chunk c in a slot: its blocks, and the memory of their inputs. */
static void choose(gpt2_model *m, int c, int slot) {
    const int whole = gpt2_stage_is_whole(&m->stage);
    m->first = whole ? 0 : gpt2_stage_first(&m->stage, c);
    m->count = whole ? m->layers : gpt2_stage_blocks(&m->stage, c);
    m->slot = slot;
    m->blocks = m->sets + (size_t)slot * ((size_t)m->longest + 1);
    for (int i = 0; i < m->count; i++) m->blocks[i].x = m->blocks[i].own;
    m->blocks[m->count].x = m->norm_x;
    if (m->moe) experts_choose(m->moe, slot, m->first / 2);
}

static zero_result allocate(gpt2_model *m, const ops_settings *settings, gpt2_error *err) {
    region kept, shared;
    char why[OPS_SENTENCE];
    const size_t bytes = measure(m, &kept, &shared), shared_at = kept.most;
    const ops_limits limits = limits_of(m);
    m->sets = (block_values *)calloc((size_t)m->slots * ((size_t)m->longest + 1), sizeof *m->sets);
    m->micros = (micro_values *)calloc((size_t)m->together, sizeof *m->micros);
    m->memory = ops_alloc(bytes);
    const size_t pieces = m->cp.size > 1 ? limits.rows : 1;
    m->piece = (int *)malloc(2 * pieces * sizeof *m->piece);
    if (!m->sets || !m->micros || !m->memory || !m->piece)
        return refuse(err, ZERO_ERR_MEMORY, "out of memory for %.1f MiB of activations",
                      (double)bytes / (1024 * 1024));
    /* last, because attention takes less memory if no more is left */
    const zero_result result = ops_create(&m->ops, &limits, settings, why);
    if (result != ZERO_OK) return refuse(err, result, "%s", why);
    memset(&kept, 0, sizeof kept);
    memset(&shared, 0, sizeof shared);
    kept.base = (char *)m->memory;
    shared.base = kept.base + shared_at;
    place(m, &kept, &shared);
    choose_micro(m, 0);
    choose(m, 0, 0);
    ops_clear(m->ops, m->totals, 2 * sizeof(double));
    return ZERO_OK;
}

/* Checks that run and context have the same tiles. */
static zero_result check_units(const gpt2_model *m, gpt2_error *err) {
    const int needed = units_of(m);
    zero_plan plan;
    TRY(plugin(err, m->z, zero_query_plan(m->z, &plan)));
    if (plan.units == needed) return ZERO_OK;
    return refuse(err, ZERO_ERR_ARGUMENT,
                  "the context has %d units, but a run with wte in %zu tiles needs %d", plan.units,
                  m->tiles, needed);
}

zero_result gpt2_create(gpt2_model **m, zero_ctx *z, const gpt2_config *cfg, const gpt2_run *run,
                        gpt2_error *err) {
    gpt2_model *made = (gpt2_model *)malloc(sizeof *made);
    ops_settings settings;
    *m = NULL;
    no_error(err);
    if (!made) return refuse(err, ZERO_ERR_MEMORY, "no memory for a model");
    zero_result result = set_shape(made, cfg, run, err);
    if (result == ZERO_OK) result = take_settings(made, z, &settings, err);
    if (result == ZERO_OK) result = allocate(made, &settings, err);
    if (result == ZERO_OK) result = check_units(made, err);
    if (result == ZERO_OK) result = open_away(made, settings.stream, err);
    if (result == ZERO_OK && context_start(&made->cp, settings.stream) != ZERO_OK)
        result = refuse(err, ZERO_ERR_MEMORY, "no memory, or no thread, for ring attention");
    if (result == ZERO_OK && cfg->moe.experts)
        result = experts_create(&made->moe, cfg, run, made->ops, err);
    if (result != ZERO_OK) {
        gpt2_destroy(made);
        return result;
    }
    *m = made;
    return ZERO_OK;
}

void gpt2_destroy(gpt2_model *m) {
    if (!m) return;
    context_close(&m->cp);
    experts_destroy(m->moe);
    recheck_close(m->check);
    spill_destroy(m->away);
    ops_destroy(m->ops);
    ops_free(m->memory);
    free(m->piece);
    free(m->sets);
    free(m->micros);
    free(m);
}

zero_result gpt2_choose_products(struct products_choice *choice, const gpt2_config *cfg,
                                 size_t rows, int tp, int tile_rows, const char *path, int threads,
                                 gpt2_error *err) {
    gpt2_config part = *cfg;
    part.padded_vocab_size /= tp;
    const size_t C = (size_t)cfg->channels, Cp = C / (size_t)tp;
    const size_t tile = (size_t)gpt2_tile_rows(&part, tile_rows);
    const size_t columns = tile ? tile : (size_t)part.padded_vocab_size;
    const size_t chunk = chunk_rows(rows, columns * sizeof(float));
    const ops_layer layers[] = {{rows, C, 3 * Cp},
                                {rows, Cp, C},
                                {rows, C, 4 * Cp},
                                {rows, 4 * Cp, C},
                                {chunk, C, columns}};
    char why[OPS_SENTENCE];
    no_error(err);
    const zero_result result = ops_choose_products(choice, path, layers, 5, threads, why);
    return result == ZERO_OK ? ZERO_OK : refuse(err, result, "%s", why);
}

void gpt2_take_products(gpt2_model *m, const struct products_choice *choice) {
    ops_take_products(m->ops, choice);
}

/* Everything on which a block's launches depend. Padding is cleared. */
typedef struct graph_key {
    gpt2_tensors params, grads;
    block_values values;
    void *next; /* the next block's input */
    ops_heads shape;
    size_t position;
} graph_key;
enum { GRAPH_FORWARD, GRAPH_AGAIN, GRAPH_BACKWARD, GRAPHS };

zero_result gpt2_record_graphs(gpt2_model *m, gpt2_error *err) {
    no_error(err);
    if (m->tp.size > 1 || m->cp.size > 1 || m->moe || !gpt2_stage_is_whole(&m->stage))
        return refuse(err, ZERO_ERR_UNSUPPORTED,
                      "graphs of blocks: not with tensor, context or expert parallelism or a "
                      "pipeline, because their blocks communicate");
    const zero_result result =
        ops_graphs(m->ops, GRAPHS * (size_t)(m->slots * m->layers), sizeof(graph_key));
    return result == ZERO_OK ? ZERO_OK : refuse(err, result, "out of memory for graphs");
}
size_t gpt2_graph_launches(const gpt2_model *m) { return ops_graph_launches(m->ops); }

const char *gpt2_product_path(const gpt2_model *m) { return ops_product_path(m->ops); }

const char *gpt2_attention_path(const gpt2_model *m) { return ops_attention_path(m->ops); }

const char *gpt2_last_error(const gpt2_model *m) { return m->error.sentence; }

/* ---- a block ------------------------------------------------------------------------------- */

/* Returns the shape of a call: B sequences of T tokens, NHp heads. */
static ops_heads shape_of(const gpt2_model *m, size_t B, size_t T) {
    ops_heads s;
    s.batch = B;
    s.seq_len = T;
    s.heads = m->heads;
    s.head_size = m->Cp / m->heads;
    return s;
}

/* Returns the address of element i of x. An element has `bytes` bytes. */
static void *element(void *x, size_t i, size_t bytes) { return (char *)x + i * bytes; }

/* Returns the address of a tensor's base pointer: fields are in the order of the tensors' numbers.
 */
static void **gradient_field(gpt2_tensors *grads, int tensor) {
    return (void **)(void *)((char *)grads + (size_t)tensor * sizeof(void *));
}

/* Returns the values of block l of this rank, which is in the current chunk. */
static const block_values *block_at(const gpt2_model *m, size_t l) {
    return &m->blocks[l - (size_t)m->first];
}

/* Returns element i of a gradient. A frozen tensor has none. */
static void *gradient(const gpt2_model *m, void *base, size_t i) {
    return base ? element(base, i, m->grad_bytes) : NULL;
}
/* Operations always add to gradients of biases and norms. Those of frozen ones go to `spare`. */
static void *or_spare(const gpt2_model *m, void *gradient) {
    return gradient ? gradient : m->spare;
}

/* A tensor of numel elements and its gradient, of model m and layer l. */
#define PARAM(name, numel) element(m->params.name, l *(numel), m->bytes)
#define GRAD(name, numel)  gradient(m, m->grads.name, l *(numel))
/* The same for tensors of the MLPs. They have a layer for each block with a dense MLP. */
static size_t mlp_of(const gpt2_model *m, size_t l) { return m->moe ? l / 2 : l; }
#define MLP_PARAM(name, numel) element(m->params.name, mlp_of(m, l) * (numel), m->bytes)
#define MLP_GRAD(name, numel)  gradient(m, m->grads.name, mlp_of(m, l) * (numel))

/* Returns the adapter of a matrix of block l, LORA_..., or one without pointers. */
static lora_layer adapter(const gpt2_model *m, size_t l, int matrix) {
    const gpt2_lora *lora = gpt2_lora_of(&m->cfg);
    const int ta = lora_tensor(matrix, 0), tb = lora_tensor(matrix, 1), a = ta - GPT2_LORA;
    lora_layer x;
    memset(&x, 0, sizeof x);
    if (!lora || !(lora->on >> matrix & 1u)) return x;
    const tensor_slice sa = tensor_slice_of(&m->cfg, ta, 0, (int)m->tp.size);
    const tensor_slice sb = tensor_slice_of(&m->cfg, tb, 0, (int)m->tp.size);
    const size_t na = tensor_slice_numel(&sa), nb = tensor_slice_numel(&sb);
    x.a = element(m->params.lora[a], l * na, m->bytes);
    x.b = element(m->params.lora[a + 1], l * nb, m->bytes);
    x.da = gradient(m, m->grads.lora[a], l * na);
    x.db = gradient(m, m->grads.lora[a + 1], l * nb);
    x.rank = (size_t)lora->rank;
    x.in = na / x.rank;
    x.out = nb / x.rank;
    x.scale = lora->alpha / (float)lora->rank;
    x.down = m->down;
    x.back = m->back;
    return x;
}

/* Returns this rank's rows of x (R, C). */
static void *own(const gpt2_model *m, void *x, size_t R) {
    return element(x, tensor_parallel_first(&m->tp, R) * m->C, m->bytes);
}
static size_t own_rows(const gpt2_model *m, size_t R) { return tensor_parallel_rows(&m->tp, R); }

/* Gathers all rows of x (R, C). Each rank has its own rows before. */
static void gather(gpt2_model *m, void *x, size_t R) { tensor_parallel_gather(&m->tp, x, R, m->C); }
/* Sums x (R, C) over all ranks; each rank receives its own rows. */
static void sum_up(gpt2_model *m, void *x, size_t R) {
    tensor_parallel_sum(&m->tp, x, own(m, x, R), R, m->C);
}

/* Computes the layer that ends half a block: out (Rp, C) = x + in w^T + bias, with in (R, I) and w
 * (C, I). The products are summed over all ranks; dc holds this rank's product. */
typedef struct join_layer {
    void *out;
    const void *x, *w, *bias;
    const lora_layer *adapter;
    size_t I;
} join_layer;

/* Computes n rows from row `first` on, of which `in` has the inputs. join_end follows the last. */
static void join_rows(gpt2_model *m, const join_layer *j, const void *in, size_t first, size_t n) {
    const size_t at = first * m->C;
    void *rows = element(m->tp.group ? m->dc : j->out, at, m->bytes);
    if (m->tp.group)
        ops_linear(m->ops, rows, in, j->w, NULL, n, j->I, m->C);
    else
        ops_linear_residual(m->ops, rows, element((void *)(uintptr_t)j->x, at, m->bytes), in, j->w,
                            j->bias, n, j->I, m->C);
    lora_forward(m->ops, j->adapter, rows, in, n);
}
static void join_end(gpt2_model *m, const join_layer *j, size_t R) {
    if (!m->tp.group) return;
    sum_up(m, m->dc, R);
    ops_add_bias(m->ops, j->out, j->x, own(m, m->dc, R), j->bias, own_rows(m, R), m->C);
}
/* Computes the gradients of w (O, I) and bias from dy (R, O) and x (R, I), unless they are frozen.
 */
static void linear_dw(gpt2_model *m, void *dw, void *dbias, const void *dy, const void *x, size_t R,
                      size_t I, size_t O) {
    if (dw)
        ops_linear_dw(m->ops, dw, dbias, dy, x, R, I, O);
    else if (dbias)
        ops_bias_backward(m->ops, dbias, dy, R, O);
}
/* Adds to the gradients of w and bias of that layer, from n rows of dres and their inputs. With
   sequence parallelism join_bias_backward adds to the bias, from this rank's rows. */
static void join_backward(gpt2_model *m, void *dw, void *dbias, const void *in, size_t first,
                          size_t n, size_t I) {
    linear_dw(m, dw, m->tp.sequence ? NULL : dbias, element(m->dres, first * m->C, m->bytes), in, n,
              I, m->C);
}
static void join_bias_backward(gpt2_model *m, void *dbias, size_t R) {
    if (m->tp.sequence && dbias)
        ops_bias_backward(m->ops, dbias, own(m, m->dres, R), own_rows(m, R), m->C);
}

static int is_mixture(const gpt2_model *m, size_t l) { return experts_is_layer(&m->cfg, (int)l); }

/* Returns row `position` of a pass over one token, which sees the kept rows before it; otherwise
   row 0. */
static void *row_at(const gpt2_model *m, void *x, size_t columns) {
    return element(x, m->position * columns, m->bytes);
}

/* Computes fch (n, 4Cp) and its GELU, from n rows of ln2. `again` as ops_linear_gelu's. */
static void hidden_forward(gpt2_model *m, size_t l, size_t first, size_t n, int again) {
    const block_values *b = block_at(m, l);
    const size_t C = m->C, Cp = m->Cp;
    const void *in = element(b->ln2, first * C, m->bytes);
    const void *w = MLP_PARAM(fcw, 4 * Cp * C), *bias = MLP_PARAM(fcb, 4 * Cp);
    const lora_layer fc = adapter(m, l, LORA_FC);
    if (!fc.a) {
        ops_linear_gelu(m->ops, b->fch, b->gelu, again, in, w, bias, n, C, 4 * Cp);
        return;
    }
    ops_linear(m->ops, b->fch, in, w, bias, n, C, 4 * Cp);
    lora_forward(m->ops, &fc, b->fch, in, n);
    ops_gelu(m->ops, b->gelu, b->fch, ops_adds_bias() ? NULL : bias, n, 4 * Cp);
}

/* Returns the number of rows of an MLP that are computed together: all R, or a tile. */
static size_t mlp_rows(const gpt2_model *m, size_t R) {
    return m->mlp_rows > 0 && m->mlp_rows < R ? m->mlp_rows : R;
}

/* Computes the second half of a block from ln2. With tiles backward computes fch of each tile
   again, so `again` computes nothing. */
static void mlp_forward(gpt2_model *m, size_t l, size_t R, int again) {
    const block_values *b = block_at(m, l);
    const size_t C = m->C, Cp = m->Cp, each = mlp_rows(m, R);
    const lora_layer fcproj = adapter(m, l, LORA_FCPROJ);
    const join_layer join = {block_at(m, l + 1)->x, b->res2, MLP_PARAM(fcprojw, 4 * Cp * C),
                             MLP_PARAM(fcprojb, C), &fcproj, 4 * Cp};
    if (again && m->mlp_rows > 0) return;
    for (size_t first = 0; first < R; first += each) {
        const size_t n = R - first < each ? R - first : each;
        hidden_forward(m, l, first, n, again);
        if (!again) join_rows(m, &join, b->gelu, first, n);
    }
    if (!again) join_end(m, &join, R);
}

/* Returns the inputs and the memory of attention among context-parallel ranks, for block l. */
static ring_call context_call(const gpt2_model *m, size_t l) {
    ring_call c;
    memset(&c, 0, sizeof c);
    c.keys = m->d4c;
    c.floats = m->turns;
    c.qkv = block_at(m, l)->qkv;
    c.bias = m->cp.heads > 1 ? m->bias : PARAM(qkvb, 3 * m->Cp);
    return c;
}

/* Computes qkv and attention from ln1. If ranks exchange heads, the product's output, of this
   rank's tokens and all heads, goes to d4c. */
static void attention_forward(gpt2_model *m, size_t l, const ops_heads *s) {
    const block_values *b = block_at(m, l);
    const size_t R = s->batch * s->seq_len, C = m->C, Cp = m->Cp;
    const int exchanges = m->cp.heads > 1;
    const lora_layer adapts = adapter(m, l, LORA_QKV);
    const void *bias = PARAM(qkvb, 3 * Cp);
    void *qkv = exchanges ? m->d4c : row_at(m, b->qkv, 3 * Cp); /* (R, 3Cp) */
    ops_linear(m->ops, qkv, b->ln1, PARAM(qkvw, 3 * Cp * C), bias, R, C, 3 * Cp);
    lora_forward(m->ops, &adapts, qkv, b->ln1, R);
    if (m->cp.size == 1) {
        const ops_heads seen = shape_of(m, s->batch, m->position + s->seq_len);
        ops_attention(m->ops, b->atty, b->lse, b->qkv, bias, &seen);
        return;
    }
    const ops_heads here = context_heads(&m->cp, s);
    const ring_call c = context_call(m, l);
    if (!exchanges) {
        context_attend(&m->cp, m->ops, &c, b->atty, b->lse, &here);
        return;
    }
    context_to_heads(&m->cp, m->ops, b->qkv, qkv, qkv, 3, s);
    context_bias(&m->cp, m->ops, m->bias, bias, s);
    context_attend(&m->cp, m->ops, &c, b->heads, b->lse, &here);
    context_to_pieces(&m->cp, m->ops, b->atty, b->heads, m->d4c, 1, s);
}
/* Returns the gradient of qkv (R, 3Cp), from that of atty in dc. With context parallelism it
   overwrites qkv, and if ranks exchange heads also atty, which nothing reads again. With a ring d4c
   has keys of other ranks, so the gradient of qkv is stored there after attention alone. */
static void *attention_backward(gpt2_model *m, size_t l, const ops_heads *s) {
    const block_values *b = block_at(m, l);
    if (m->cp.size == 1) {
        ops_attention_backward(m->ops, m->d4c, m->dc, b->atty, b->lse, b->qkv,
                               PARAM(qkvb, 3 * m->Cp), s);
        return m->d4c;
    }
    const ops_heads here = context_heads(&m->cp, s);
    const ring_call c = context_call(m, l);
    if (m->cp.heads == 1) {
        context_attend_backward(&m->cp, m->ops, &c, b->qkv, m->dc, b->atty, b->lse, &here);
        return b->qkv;
    }
    const int circles = m->cp.ring_size > 1;
    void *of_heads = circles ? b->qkv : m->d4c, *of_piece = circles ? m->d4c : b->qkv;
    context_to_heads(&m->cp, m->ops, b->atty, m->dc, m->dc, 1, s);
    context_bias(&m->cp, m->ops, m->bias, PARAM(qkvb, 3 * m->Cp), s);
    context_attend_backward(&m->cp, m->ops, &c, of_heads, b->atty, b->heads, b->lse, &here);
    context_to_pieces(&m->cp, m->ops, of_piece, of_heads, of_heads, 3, s);
    return of_piece;
}

/* Computes a block, from b->x to the input of the next block, or with experts to the input of the
 * mixture. `again` 1: computes only the values that backward needs. */
static void block_forward(gpt2_model *m, size_t l, const ops_heads *s, int again) {
    const block_values *b = block_at(m, l);
    const size_t R = s->batch * s->seq_len, Rp = own_rows(m, R), C = m->C, Cp = m->Cp;
    ops_ctx *o = m->ops;
    ops_norm(o, own(m, b->ln1, R), b->mean1, b->rstd1, b->x, PARAM(ln1w, C), PARAM(ln1b, C), Rp, C);
    gather(m, b->ln1, R);
    attention_forward(m, l, s);
    const lora_layer proj = adapter(m, l, LORA_PROJ);
    const join_layer join = {b->res2, b->x, PARAM(attprojw, C * Cp), PARAM(attprojb, C), &proj, Cp};
    join_rows(m, &join, row_at(m, b->atty, Cp), 0, R);
    join_end(m, &join, R);
    ops_norm(o, own(m, b->ln2, R), b->mean2, b->rstd2, b->res2, PARAM(ln2w, C), PARAM(ln2b, C), Rp,
             C);
    gather(m, b->ln2, R);
    if (!is_mixture(m, l)) mlp_forward(m, l, R, again);
}

/* Backward of the second layer norm: from dln2, in dc, to res2. */
static void block_backward_norm(gpt2_model *m, size_t l, size_t R) {
    const block_values *b = block_at(m, l);
    const size_t C = m->C;
    ops_norm_backward(m->ops, own(m, m->dres, R), or_spare(m, GRAD(ln2w, C)),
                      or_spare(m, GRAD(ln2b, C)), own(m, m->dc, R), b->res2, b->mean2, b->rstd2,
                      PARAM(ln2w, C), 0, own_rows(m, R), C);
}
/* Computes ln2 again if it was not kept. */
static void block_norm_again(gpt2_model *m, size_t l, size_t R) {
    const block_values *b = block_at(m, l);
    const size_t C = m->C;
    if (m->run.recompute != GPT2_RECOMPUTE_NORM) return;
    ops_norm_again(m->ops, own(m, b->ln2, R), b->mean2, b->rstd2, b->res2, PARAM(ln2w, C),
                   PARAM(ln2b, C), own_rows(m, R), C);
    gather(m, b->ln2, R);
}

/* Backward from n rows of dres, the gradient of the output, to dfch (n, 4Cp). */
static void hidden_backward(gpt2_model *m, size_t l, void *dfch, size_t first, size_t n) {
    const block_values *b = block_at(m, l);
    const size_t C = m->C, Cp = m->Cp;
    const void *w = MLP_PARAM(fcprojw, 4 * Cp * C), *bias = MLP_PARAM(fcb, 4 * Cp);
    void *dbias = or_spare(m, MLP_GRAD(fcb, 4 * Cp));
    const void *dy = element(m->dres, first * C, m->bytes);
    const lora_layer fcproj = adapter(m, l, LORA_FCPROJ);
    const int kept =
        m->run.recompute == GPT2_RECOMPUTE_NONE || m->run.recompute >= GPT2_RECOMPUTE_BLOCK;
    if (!fcproj.a) {
        ops_linear_dx_gelu(m->ops, dfch, dbias, b->gelu, kept, dy, w, b->fch, bias, n, 4 * Cp, C);
        return;
    }
    ops_linear_dx(m->ops, dfch, dy, w, n, 4 * Cp, C);
    lora_dx(m->ops, &fcproj, dfch, dy, n);
    ops_gelu_backward(m->ops, dfch, dbias, b->gelu, b->fch, ops_adds_bias() ? NULL : bias, n,
                      4 * Cp);
    lora_gradients(m->ops, &fcproj, dy, b->gelu, n);
}

/* Backward of n rows of an MLP, from dres to dln2, which is in dc. */
static void mlp_backward_rows(gpt2_model *m, size_t l, size_t first, size_t n) {
    const block_values *b = block_at(m, l);
    const size_t C = m->C, Cp = m->Cp;
    void *dfch = m->d4c;                              /* (n, 4Cp) */
    void *dln2 = element(m->dc, first * C, m->bytes); /* (n, C) */
    const void *in = element(b->ln2, first * C, m->bytes);
    const lora_layer fc = adapter(m, l, LORA_FC);
    ops_ctx *o = m->ops;
    if (m->mlp_rows > 0) hidden_forward(m, l, first, n, 1);
    hidden_backward(m, l, dfch, first, n);
    join_backward(m, MLP_GRAD(fcprojw, 4 * Cp * C), MLP_GRAD(fcprojb, C), b->gelu, first, n,
                  4 * Cp);
    linear_dw(m, MLP_GRAD(fcw, 4 * Cp * C), NULL, dfch, in, n, C, 4 * Cp);
    ops_linear_dx(o, dln2, dfch, MLP_PARAM(fcw, 4 * Cp * C), n, C, 4 * Cp);
    lora_dx(o, &fc, dln2, dfch, n);
    lora_gradients(o, &fc, dfch, in, n);
}

/* Backward of the second half of a block. dres (R, C) is the gradient of the output before the
 * call, and of res2 after it. */
static void block_backward_mlp(gpt2_model *m, size_t l, size_t R) {
    const size_t each = mlp_rows(m, R);
    gather(m, m->dres, R);
    block_norm_again(m, l, R);
    for (size_t first = 0; first < R; first += each)
        mlp_backward_rows(m, l, first, R - first < each ? R - first : each);
    join_bias_backward(m, MLP_GRAD(fcprojb, m->C), R);
    sum_up(m, m->dc, R);
    block_backward_norm(m, l, R);
}

/* Backward of the first half of a block. dres (R, C) is the gradient of res2 before the call, and
 * of x after it. */
static void block_backward_attention(gpt2_model *m, size_t l, const ops_heads *s) {
    const block_values *b = block_at(m, l);
    const size_t R = s->batch * s->seq_len, Rp = own_rows(m, R), C = m->C, Cp = m->Cp;
    void *datty = m->dc; /* (R, Cp) */
    void *dln1 = m->dc;  /* (R, C) */
    ops_ctx *o = m->ops;
    gather(m, m->dres, R);
    join_backward(m, GRAD(attprojw, C * Cp), GRAD(attprojb, C), b->atty, 0, R, Cp);
    join_bias_backward(m, GRAD(attprojb, C), R);
    ops_linear_dx(o, datty, m->dres, PARAM(attprojw, C * Cp), R, Cp, C);
    const lora_layer proj = adapter(m, l, LORA_PROJ), qkv = adapter(m, l, LORA_QKV);
    lora_dx(o, &proj, datty, m->dres, R);
    lora_gradients(o, &proj, m->dres, b->atty, R);
    void *dqkv = attention_backward(m, l, s); /* (R, 3Cp) */
    if (m->run.recompute == GPT2_RECOMPUTE_NORM) {
        ops_norm_again(o, own(m, b->ln1, R), b->mean1, b->rstd1, b->x, PARAM(ln1w, C),
                       PARAM(ln1b, C), Rp, C);
        gather(m, b->ln1, R);
    }
    linear_dw(m, GRAD(qkvw, 3 * Cp * C), GRAD(qkvb, 3 * Cp), dqkv, b->ln1, R, C, 3 * Cp);
    ops_linear_dx(o, dln1, dqkv, PARAM(qkvw, 3 * Cp * C), R, C, 3 * Cp);
    lora_dx(o, &qkv, dln1, dqkv, R);
    lora_gradients(o, &qkv, dqkv, b->ln1, R);
    sum_up(m, dln1, R);
    ops_norm_backward(o, own(m, m->dres, R), or_spare(m, GRAD(ln1w, C)), or_spare(m, GRAD(ln1b, C)),
                      own(m, dln1, R), b->x, b->mean1, b->rstd1, PARAM(ln1w, C), 0, Rp, C);
}

/* ---- units --------------------------------------------------------------------------------- */

/* Returns the result of a hook, with the plugin's sentence, or an earlier error of the group. */
static zero_result hook(gpt2_model *m, zero_result result) {
    if (result == ZERO_OK && m->tp.result != ZERO_OK)
        return refuse(&m->error, m->tp.result, "%s", zero_group_error(m->tp.group));
    if (result == ZERO_OK && m->cp.result != ZERO_OK)
        return refuse(&m->error, m->cp.result, "%s", context_error(&m->cp));
    return plugin(&m->error, m->z, result);
}

/* tile_at returns tile i of wte, or this rank's part. The next two return its addresses in
 * parameters and gradients while its unit is open. */
static ops_tile tile_at(const gpt2_model *m, size_t i) {
    ops_tile t;
    t.first = m->row + i * m->tile_rows;
    t.rows = m->tiles ? m->tile_rows : m->Vr;
    t.valid = m->V <= t.first ? 0 : m->V - t.first < t.rows ? m->V - t.first : t.rows;
    return t;
}
static void *tile_param(const gpt2_model *m, const ops_tile *t) {
    return element(m->params.wte, (t->first - m->row) * m->C, m->bytes);
}
static void *tile_grad(const gpt2_model *m, const ops_tile *t) {
    return gradient(m, m->grads.wte, (t->first - m->row) * m->C);
}
/* The same for the classifier. */
static void *class_param(const gpt2_model *m, const ops_tile *t) {
    void *w = m->cfg.untied ? m->params.lmheadw : m->params.wte;
    return element(w, (t->first - m->row) * m->C, m->bytes);
}
static void *class_grad(const gpt2_model *m, const ops_tile *t) {
    void *dw = m->cfg.untied ? m->grads.lmheadw : m->grads.wte;
    return gradient(m, dw, (t->first - m->row) * m->C);
}

/* ---- embeddings ---------------------------------------------------------------------------- */

/* Returns the memory in which rows of wte are collected. With tensor parallelism these are parts of
 * a sum. */
static void *embedded(const gpt2_model *m) { return m->tp.sequence ? m->dc : m->blocks[0].x; }

/* Clears the rows, because another rank may have the token of a row. */
static void embed_begin(gpt2_model *m, size_t R) {
    if (m->tp.group) ops_clear(m->ops, embedded(m), R * m->C * m->bytes);
}

/* Returns the number of this rank's first rows that end a sequence of an earlier rank. 0: this
 * rank's first row begins a sequence. */
static size_t rows_of_begun(const gpt2_model *m, size_t R, size_t T) {
    const size_t at = tensor_parallel_first(&m->tp, R) % T, n = own_rows(m, R);
    return at == 0 ? 0 : T - at < n ? T - at : n;
}

/* Returns the rows of wpe from the position of this pass on. */
static const void *places(const gpt2_model *m, size_t first) {
    return element(m->params.wpe, (m->position + first) * m->C, m->bytes);
}

/* R rows with consecutive positions, which repeat after T rows: all rows of this rank if its
   tokens of a sequence are consecutive (or if it has whole sequences), otherwise those of one span
   of one sequence. With sequence parallelism, only rows that this rank has between layers, and
   counted from the first of them. */
typedef struct row_run {
    size_t at, R, T, first; /* first row, rows, period, and position of the first row */
} row_run;

/* Returns how many runs this rank's rows have. */
static size_t runs_of(const gpt2_model *m, const ops_heads *s) {
    context_span list[2];
    const size_t n = context_spans(&m->cp, m->cp.rank, s->seq_len, list);
    return n == 1 && !m->tp.sequence ? 1 : n * s->batch;
}
static row_run run_at(const gpt2_model *m, const ops_heads *s, size_t i) {
    context_span list[2];
    const size_t n = context_spans(&m->cp, m->cp.rank, s->seq_len, list), R = s->batch * s->seq_len;
    const size_t begin = tensor_parallel_first(&m->tp, R), end = begin + own_rows(m, R);
    const context_span *span = &list[i % n];
    row_run r = {i / n * s->seq_len + span->at, span->n, span->n, span->first};
    if (!m->tp.sequence) {
        if (n == 1) r.R = R;
        return r;
    }
    const size_t before = r.at < begin ? begin - r.at : 0,
                 last = r.at + r.R < end ? r.at + r.R : end;
    r.at += before;
    r.first += before;
    r.R = last > r.at ? last - r.at : 0;
    r.at -= r.R > 0 ? begin : 0;
    return r;
}

/* Computes the input of the first block, from all ranks' rows of wte and wpe. */
static void embed_end(gpt2_model *m, const ops_heads *s) {
    const size_t R = s->batch * s->seq_len, T = s->seq_len, C = m->C, Rp = own_rows(m, R);
    const size_t begun = rows_of_begun(m, R, T), at = tensor_parallel_first(&m->tp, R) % T;
    void *x = m->blocks[0].x; /* (Rp, C) */
    tensor_parallel_sum(&m->tp, embedded(m), x, R, C);
    for (size_t i = 0; m->cp.size > 1 && i < runs_of(m, s); i++) {
        const row_run r = run_at(m, s, i);
        if (r.R > 0)
            ops_add_places(m->ops, element(x, r.at * C, m->bytes), places(m, r.first), r.R, r.T, C);
    }
    if (m->cp.size > 1) return;
    ops_add_places(m->ops, x, element(m->params.wpe, at * C, m->bytes), begun, T, C);
    ops_add_places(m->ops, element(x, begun * C, m->bytes), places(m, 0), Rp - begun, T, C);
}

/* Adds to the gradient of wpe, from this rank's rows of dres. */
static void places_backward(gpt2_model *m, const ops_heads *s) {
    const size_t R = s->batch * s->seq_len, T = s->seq_len, C = m->C, Rp = own_rows(m, R);
    const size_t begun = rows_of_begun(m, R, T), at = tensor_parallel_first(&m->tp, R) % T;
    void *dres = own(m, m->dres, R);
    if (!m->grads.wpe) return;
    for (size_t i = 0; m->cp.size > 1 && i < runs_of(m, s); i++) {
        const row_run r = run_at(m, s, i);
        if (r.R > 0)
            ops_places_backward(m->ops, gradient(m, m->grads.wpe, r.first * C),
                                element(dres, r.at * C, m->bytes), r.R, r.T, C);
    }
    if (m->cp.size > 1) return;
    ops_places_backward(m->ops, element(m->grads.wpe, at * C, m->grad_bytes), dres, begun, T, C);
    ops_places_backward(m->ops, m->grads.wpe, element(dres, begun * C, m->bytes), Rp - begun, T, C);
}

/* Every tile is opened, even if no token needs it, because all ranks must call the same hooks. */
static zero_result embed_tile(gpt2_model *m, const ops_heads *s, size_t i) {
    const ops_tile t = tile_at(m, i);
    TRY(hook(m, zero_forward_begin(m->z, (int)i, &m->params)));
    ops_tile_rows(m->ops, embedded(m), m->tokens, tile_param(m, &t), &t, s->batch * s->seq_len,
                  m->C);
    return hook(m, zero_forward_end(m->z, (int)i));
}
static zero_result embed_places(gpt2_model *m, const ops_heads *s) {
    TRY(hook(m, zero_forward_begin(m->z, (int)m->tiles, &m->params)));
    embed_end(m, s);
    return hook(m, zero_forward_end(m->z, (int)m->tiles));
}
static zero_result embed_tiles(gpt2_model *m, const ops_heads *s) {
    embed_begin(m, s->batch * s->seq_len);
    for (size_t i = 0; i < m->tiles; i++) TRY(embed_tile(m, s, i));
    return embed_places(m, s);
}

/* Looks up this rank's rows of wte. */
static void embed_part(gpt2_model *m, const ops_heads *s) {
    const ops_tile t = tile_at(m, 0);
    const size_t R = s->batch * s->seq_len;
    embed_begin(m, R);
    ops_tile_rows(m->ops, embedded(m), m->tokens, m->params.wte, &t, R, m->C);
    embed_end(m, s);
}

/* Looks up wte and wpe, both whole. */
static void embed_rows(gpt2_model *m, const ops_heads *s) {
    for (size_t i = 0; i < runs_of(m, s); i++) {
        const row_run r = run_at(m, s, i);
        if (r.R > 0)
            ops_embed(m->ops, element(m->blocks[0].x, r.at * m->C, m->bytes), m->tokens + r.at,
                      m->params.wte, places(m, r.first), r.R, r.T, m->C);
    }
}

static zero_result embed(gpt2_model *m, const ops_heads *s) {
    if (m->tiles) return embed_tiles(m, s);
    TRY(hook(m, zero_forward_begin(m->z, 0, &m->params)));
    if (m->tp.group)
        embed_part(m, s);
    else
        embed_rows(m, s);
    return hook(m, zero_forward_end(m->z, 0));
}

/* Returns a result of the mixture, and copies its sentence. */
static zero_result mixed(gpt2_model *m, zero_result result) {
    return result == ZERO_OK ? ZERO_OK : refuse(&m->error, result, "%s", experts_error(m->moe));
}

/* Computes the input of the next block from ln2: res2 + the mixture, summed over the parts of all
 * ranks. */
static zero_result block_mixture(gpt2_model *m, size_t l, size_t R) {
    const block_values *b = block_at(m, l);
    void *out = block_at(m, l + 1)->x;
    if (!m->tp.group)
        return mixed(m, experts_forward(m->moe, (int)l / 2, out, b->res2, b->ln2, R, m->counts));
    TRY(mixed(m, experts_forward(m->moe, (int)l / 2, m->dc, NULL, b->ln2, R, m->counts)));
    sum_up(m, m->dc, R);
    ops_add_bias(m->ops, out, b->res2, own(m, m->dc, R), experts_no_bias(m->moe), own_rows(m, R),
                 m->C);
    return ZERO_OK;
}

/* Returns 1 if the launches of a block were replayed. Otherwise they follow, and ops_graph_end. */
static int is_replayed(gpt2_model *m, size_t l, int way, const ops_heads *s) {
    graph_key key;
    memset(&key, 0, sizeof key);
    memcpy(&key.params, &m->params, sizeof key.params);
    if (way == GRAPH_BACKWARD) memcpy(&key.grads, &m->grads, sizeof key.grads);
    memcpy(&key.values, block_at(m, l), sizeof key.values);
    key.next = block_at(m, l + 1)->x;
    memcpy(&key.shape, s, sizeof key.shape);
    key.position = m->position;
    const size_t at = (size_t)(m->slot * m->layers) + l;
    return ops_graph_begin(m->ops, GRAPHS * at + (size_t)way, &key);
}
/* ends 0: without the input of the next block. */
static void replay_forward(gpt2_model *m, size_t l, const ops_heads *s, int way, int ends) {
    if (is_replayed(m, l, way, s)) return;
    block_forward(m, l, s, !ends);
    ops_graph_end(m->ops);
}

/* ---- checked products: see recheck.h ------------------------------------------------------- */

static zero_result outcome(gpt2_model *m);

static size_t row_bytes(const gpt2_model *m, const ops_heads *s) {
    return own_rows(m, s->batch * s->seq_len) * m->C * m->bytes;
}

static void check_output(gpt2_model *m, size_t l, const ops_heads *s, recheck_of of) {
    recheck_hash(m->check, m->ops, of, RECHECK_OUTPUT, block_at(m, l + 1)->x, row_bytes(m, s), 0);
}

/* Returns the number of elements that this rank has of a block's tensor. Returns 0 for a tensor
   outside the blocks, and for one that is frozen in all layers. */
static size_t checked_numel(const gpt2_model *m, int tensor) {
    int trained = 0;
    if (!gpt2_is_of_blocks(tensor)) return 0;
    for (int l = 0; l < m->cfg.layers; l++) trained |= !gpt2_is_frozen(&m->cfg, tensor, l);
    const tensor_slice slice = tensor_slice_of(&m->cfg, tensor, (int)m->tp.rank, (int)m->tp.size);
    return trained ? tensor_slice_numel(&slice) : 0;
}

/* Hashes the gradients of block l: that of its input, and those of its weights. */
static void check_gradients(gpt2_model *m, size_t l, const ops_heads *s, recheck_of of) {
    recheck_hash(m->check, m->ops, of, RECHECK_GRADIENT, own(m, m->dres, s->batch * s->seq_len),
                 row_bytes(m, s), 0);
    GPT2_EACH_TENSOR(&m->cfg, row, t) {
        void *base = *gradient_field(&m->grads, t);
        const size_t n = base ? checked_numel(m, t) : 0;
        if (n)
            recheck_hash(m->check, m->ops, of, RECHECK_WEIGHTS, element(base, l * n, m->grad_bytes),
                         n * m->grad_bytes, (uint64_t)t << 48);
    }
}

/* Leads the gradients of block l to memory of the check, and clears it. */
static void divert_gradients(gpt2_model *m, size_t l) {
    size_t at = 0;
    GPT2_EACH_TENSOR(&m->cfg, row, t) {
        const size_t n = *gradient_field(&m->grads, t) ? checked_numel(m, t) : 0;
        if (!n) continue;
        *gradient_field(&m->grads, t) =
            (char *)m->check->grads + at - l * n * m->grad_bytes; /* layer l begins at `at` */
        at += (n * m->grad_bytes + 127) / 128 * 128;
    }
    ops_clear(m->ops, m->check->grads, at);
}

/* Computes block l from another rank's input and gradient. The block's own values are dead. */
static void compute_for_check(gpt2_model *m, size_t l, const ops_heads *s, recheck_of of) {
    block_values *b = &m->blocks[l - (size_t)m->first];
    void *const x = b[0].x, *const out = b[1].x, *const dres = m->dres;
    const gpt2_tensors grads = m->grads;
    b[0].x = m->check->x;
    b[1].x = m->check->out;
    m->dres = m->check->dres;
    divert_gradients(m, l);
    block_forward(m, l, s, 0);
    check_output(m, l, s, of);
    ops_sums_begin(m->ops);
    block_backward_mlp(m, l, s->batch * s->seq_len);
    block_backward_attention(m, l, s);
    ops_sums_end(m->ops);
    check_gradients(m, l, s, of);
    b[0].x = x;
    b[1].x = out;
    m->dres = dres;
    m->grads = grads;
}

static zero_result checked(gpt2_model *m, zero_result result) {
    if (result == ZERO_OK) return hook(m, ZERO_OK);
    return refuse(&m->error, result, "%s", m->check->sentence);
}

/* After the backward of block l, while its unit is open. COLLECTIVE, SYNC. */
static zero_result check_block(gpt2_model *m, size_t l, const ops_heads *s) {
    const void *x = block_at(m, l)->x;
    int differs = 0;
    check_gradients(m, l, s, RECHECK_OWN);
    for (int hop = 1; hop <= 2 && hop < m->check->ranks; hop++) {
        TRY(checked(m, recheck_exchange(m->check, x, hop)));
        compute_for_check(m, l, s, hop == 1 ? RECHECK_AGAIN : RECHECK_THIRD);
        TRY(outcome(m));
        TRY(checked(m, recheck_compare(m->check, m->ops, &differs)));
        if (!differs) break;
    }
    return checked(m, recheck_end(m->check, differs));
}

/* ---- forward and backward of blocks -------------------------------------------------------- */

static zero_result block(gpt2_model *m, size_t l, const ops_heads *s) {
    TRY(hook(m, zero_forward_begin(m->z, unit_of_block(m, l), &m->params)));
    replay_forward(m, l, s, GRAPH_FORWARD, 1);
    if (m->counts && recheck_is_due(m->check, l) && !m->check->has_output)
        check_output(m, l, s, RECHECK_OWN);
    if (is_mixture(m, l)) TRY(block_mixture(m, l, s->batch * s->seq_len));
    return hook(m, zero_forward_end(m->z, unit_of_block(m, l)));
}

/* A pipeline has announced the order of hooks. */
static zero_result skip_backward(gpt2_model *m, int unit) {
    TRY(hook(m, zero_backward_begin(m->z, unit, &m->params, &m->grads)));
    return hook(m, zero_backward_end(m->z, unit));
}
/* Computes the values of a block again. */
static zero_result block_again(gpt2_model *m, size_t l, const ops_heads *s, int ends) {
    const int unit = unit_of_block(m, l);
    TRY(hook(m, zero_forward_begin(m->z, unit, &m->params)));
    replay_forward(m, l, s, GRAPH_AGAIN, ends);
    return hook(m, zero_forward_end(m->z, unit));
}
static zero_result block_backward(gpt2_model *m, size_t l, const ops_heads *s) {
    const int unit = unit_of_block(m, l);
    const int whole = gpt2_stage_is_whole(&m->stage);
    if (!reaches(m, whole ? (int)l : gpt2_stage_block(&m->stage, (int)l)))
        return whole ? ZERO_OK : skip_backward(m, unit);
    const size_t R = s->batch * s->seq_len;
    TRY(hook(m, zero_backward_begin(m->z, unit, &m->params, &m->grads)));
    if (m->run.recompute >= GPT2_RECOMPUTE_BLOCK && m->group == 1) TRY(block_again(m, l, s, 0));
    if (is_mixture(m, l)) { /* the units of the experts end before the block's unit */
        block_norm_again(m, l, R);
        gather(m, m->dres, R);
        TRY(mixed(m, experts_backward(m->moe, (int)l / 2, m->dc, block_at(m, l)->ln2, m->dres, R,
                                      m->aux)));
        sum_up(m, m->dc, R);
    }
    const int due = recheck_is_due(m->check, l);
    if (due) recheck_keep(m->check, m->ops, own(m, m->dres, R));
    if (!is_replayed(m, l, GRAPH_BACKWARD, s)) {
        ops_sums_begin(m->ops);
        if (is_mixture(m, l))
            block_backward_norm(m, l, R);
        else
            block_backward_mlp(m, l, R);
        block_backward_attention(m, l, s);
        ops_sums_end(m->ops);
        ops_graph_end(m->ops);
    }
    if (due) TRY(check_block(m, l, s));
    return hook(m, zero_backward_end(m->z, unit));
}

/* Computes lnf, all rows. */
static zero_result final_norm(gpt2_model *m, const ops_heads *s) {
    const void *x = m->blocks[m->count].x; /* (Rp, C) */
    const size_t R = s->batch * s->seq_len;
    TRY(hook(m, zero_forward_begin(m->z, unit_of_norm(m), &m->params)));
    ops_norm(m->ops, own(m, m->lnf, R), m->meanf, m->rstdf, x, m->params.lnfw, m->params.lnfb,
             own_rows(m, R), m->C);
    gather(m, m->lnf, R);
    return hook(m, zero_forward_end(m->z, unit_of_norm(m)));
}

/* Backward of the final norm: from dc, the gradient of its output, to dres. */
static zero_result final_norm_backward(gpt2_model *m, const ops_heads *s) {
    const void *x = m->blocks[m->count].x; /* (Rp, C) */
    const size_t R = s->batch * s->seq_len;
    TRY(hook(m, zero_backward_begin(m->z, unit_of_norm(m), &m->params, &m->grads)));
    ops_norm_backward(m->ops, own(m, m->dres, R), or_spare(m, m->grads.lnfw),
                      or_spare(m, m->grads.lnfb), own(m, m->dc, R), x, m->meanf, m->rstdf,
                      m->params.lnfw, 1, own_rows(m, R), m->C);
    return hook(m, zero_backward_end(m->z, unit_of_norm(m)));
}

/* ---- the classifier ------------------------------------------------------------------------ */

/* Returns the softmax from row `first` on. */
static ops_softmax softmax_at(const gpt2_model *m, size_t first) {
    ops_softmax s = m->softmax;
    s.most += first;
    s.sum += first;
    s.factor += first;
    s.losses += first;
    return s;
}

/* Combines n softmaxes over all ranks. Each rank has seen its part of the vocabulary. */
static void meet_softmax(gpt2_model *m, const ops_softmax *s, size_t n) {
    ops_copy(m->ops, m->most, s->most, n * sizeof *m->most);
    tensor_parallel_reduce(&m->tp, m->most, n, ZERO_MAX);
    ops_softmax_meet(m->ops, s, m->most, n);
    tensor_parallel_reduce(&m->tp, s->sum, n, ZERO_SUM);
    tensor_parallel_reduce(&m->tp, s->losses, n, ZERO_SUM);
}

/* Computes the losses of n rows from row `first` on, from logits (n, Vr) of this rank's part of the
 * vocabulary, and with `train` their gradient. */
static void part_cross_entropy(gpt2_model *m, const ops_tile *t, size_t first, size_t n, int train,
                               float scale) {
    const ops_softmax s = softmax_at(m, first);
    const int *targets = m->targets + first;
    ops_softmax_begin(m->ops, &s, n);
    ops_softmax_tile(m->ops, &s, m->logits, targets, t, 0, n);
    meet_softmax(m, &s, n);
    if (train) ops_softmax_backward(m->ops, m->logits, &s, targets, t, scale, n);
    ops_softmax_end(m->ops, &s, n);
}

/* Computes logits and losses of rows [first, first + n). With `train` it also computes the
 * gradients of scale * losses: that of the classifier's weight, and that of lnf in dc. */
static void classify_rows(gpt2_model *m, size_t first, size_t n, int train, float scale) {
    const void *lnf = element(m->lnf, first * m->C, m->bytes); /* (n, C) */
    const ops_tile t = tile_at(m, 0);
    const void *w = class_param(m, &t); /* (Vr, C) */
    ops_ctx *o = m->ops;
    ops_linear(o, m->logits, lnf, w, NULL, n, m->C, m->Vr);
    if (m->tp.group)
        part_cross_entropy(m, &t, first, n, train, scale);
    else
        ops_cross_entropy(o, m->losses + first, m->logits, m->targets + first, train, scale, n,
                          m->V, m->Vp);
    if (!train) return;
    ops_linear_dx(o, element(m->dc, first * m->C, m->bytes), m->logits, w, n, m->C, m->Vr);
    linear_dw(m, class_grad(m, &t), NULL, m->logits, lnf, n, m->C, m->Vr);
}

static void classify(gpt2_model *m, const ops_heads *s, int train, float scale) {
    const size_t R = s->batch * s->seq_len;
    for (size_t first = 0; first < R; first += m->chunk)
        classify_rows(m, first, R - first < m->chunk ? R - first : m->chunk, train, scale);
    if (train) sum_up(m, m->dc, R);
}

/* ---- the classifier, tile by tile ----------------------------------------------------------- */

/* Computes the logits of rows [first, first + n) in a tile. */
static void tile_logits(gpt2_model *m, const ops_tile *t, size_t first, size_t n) {
    const void *lnf = element(m->lnf, first * m->C, m->bytes); /* (n, C) */
    ops_linear(m->ops, m->logits, lnf, class_param(m, t), NULL, n, m->C, t->rows);
}

/* Adds a tile to the softmax of rows [first, first + n). With `train` it also adds to the mean row
 * of wte, using dres, and copies the rows of the targets to dc. */
static void see_tile_rows(gpt2_model *m, const ops_tile *t, size_t first, size_t n, int train) {
    const ops_softmax s = softmax_at(m, first);
    const int *targets = m->targets + first;
    const size_t C = m->C;
    tile_logits(m, t, first, n);
    ops_softmax_tile(m->ops, &s, m->logits, targets, t, train, n);
    if (!train) return;
    ops_linear_dx(m->ops, m->dres, m->logits, class_param(m, t), n, C, t->rows);
    ops_softmax_add(m->ops, m->mean + first * C, &s, m->dres, t, n, C);
    ops_tile_rows(m->ops, element(m->dc, first * C, m->bytes), targets, class_param(m, t), t, n, C);
}

/* With tensor parallelism targets, or whole tiles, can be on other ranks only. */
static void begin_part(gpt2_model *m, size_t R) {
    ops_softmax_begin(m->ops, &m->softmax, R);
    ops_clear(m->ops, m->mean, R * m->C * sizeof *m->mean);
    ops_clear(m->ops, m->dc, R * m->C * m->bytes);
}

/* After all tiles: writes the losses, and to dc the gradient of lnf. With tensor parallelism dc is
   a part of a sum; its mean rows are relative to this rank's largest logit, and `factor` corrects
   it.
 */
static void end_tiles(gpt2_model *m, size_t R, int train, float scale) {
    ops_softmax s = m->softmax;
    if (m->tp.group) {
        meet_softmax(m, &s, R);
        ops_softmax_share(m->ops, &s, R);
    }
    ops_softmax_end(m->ops, &s, R);
    if (m->tp.group) s.sum = s.factor;
    if (!train) return;
    ops_softmax_dx(m->ops, m->dc, m->mean, &s, scale, R, m->C);
    sum_up(m, m->dc, R);
}

static zero_result see_tile(gpt2_model *m, const ops_heads *s, size_t i, int train) {
    const size_t R = s->batch * s->seq_len;
    const ops_tile t = tile_at(m, i);
    const int unit = unit_of_classifier(m, i);
    TRY(hook(m, zero_forward_begin(m->z, unit, &m->params)));
    for (size_t first = 0; first < R; first += m->chunk)
        see_tile_rows(m, &t, first, R - first < m->chunk ? R - first : m->chunk, train);
    return hook(m, zero_forward_end(m->z, unit));
}
static zero_result classify_tiles(gpt2_model *m, const ops_heads *s, int train, float scale) {
    const size_t R = s->batch * s->seq_len;
    if (m->tp.group) begin_part(m, R);
    for (size_t i = 0; i < m->tiles; i++) TRY(see_tile(m, s, i, train));
    end_tiles(m, R, train, scale);
    m->scale = scale;
    return ZERO_OK;
}

/* Adds the gradient of a tile from rows [first, first + n) of the classifier. */
static void tile_rows_backward(gpt2_model *m, const ops_tile *t, size_t first, size_t n) {
    const ops_softmax s = softmax_at(m, first);
    const void *lnf = element(m->lnf, first * m->C, m->bytes); /* (n, C) */
    tile_logits(m, t, first, n);
    ops_softmax_backward(m->ops, m->logits, &s, m->targets + first, t, m->scale, n);
    linear_dw(m, class_grad(m, t), NULL, m->logits, lnf, n, m->C, t->rows);
}
static void class_tile_backward(gpt2_model *m, const ops_tile *t, size_t R) {
    for (size_t first = 0; first < R && class_grad(m, t); first += m->chunk)
        tile_rows_backward(m, t, first, R - first < m->chunk ? R - first : m->chunk);
}

/* Computes the gradient of a tile of a classifier with tensors of its own. */
static zero_result own_class_tile_backward(gpt2_model *m, const ops_heads *s, size_t i) {
    const ops_tile t = tile_at(m, i);
    const int unit = unit_of_classifier(m, i);
    TRY(hook(m, zero_backward_begin(m->z, unit, &m->params, &m->grads)));
    class_tile_backward(m, &t, s->batch * s->seq_len);
    return hook(m, zero_backward_end(m->z, unit));
}
static zero_result class_tiles_backward(gpt2_model *m, const ops_heads *s) {
    for (size_t i = m->tiles; i-- > 0;) TRY(own_class_tile_backward(m, s, i));
    return ZERO_OK;
}

/* Computes the gradient of a tile of wte. A tile of the lookup alone reads no parameters. */
static void *params_of_tile(gpt2_model *m) { return m->apart ? NULL : &m->params; }
static zero_result tile_backward(gpt2_model *m, const ops_heads *s, size_t i) {
    const size_t R = s->batch * s->seq_len;
    const ops_tile t = tile_at(m, i);
    TRY(hook(m, zero_backward_begin(m->z, (int)i, params_of_tile(m), &m->grads)));
    if (!m->apart) class_tile_backward(m, &t, R);
    if (tile_grad(m, &t))
        ops_tile_rows_backward(m->ops, tile_grad(m, &t), m->dres, m->tokens, &t, R, m->C);
    return hook(m, zero_backward_end(m->z, (int)i));
}
/* Computes the gradient of wpe, and gathers dres for the tiles. */
static zero_result tiles_places_backward(gpt2_model *m, const ops_heads *s) {
    TRY(hook(m, zero_backward_begin(m->z, (int)m->tiles, NULL, &m->grads)));
    places_backward(m, s);
    TRY(hook(m, zero_backward_end(m->z, (int)m->tiles)));
    gather(m, m->dres, s->batch * s->seq_len);
    return ZERO_OK;
}

/* Ends backward: computes the gradients of the tiles of wte and of wpe. */
static zero_result tiles_backward(gpt2_model *m, const ops_heads *s) {
    TRY(tiles_places_backward(m, s));
    for (size_t i = m->tiles; i-- > 0;) TRY(tile_backward(m, s, i));
    return ZERO_OK;
}

/* Computes forward and backward of the classifier together, while its unit is open. */
static zero_result classify_and_back(gpt2_model *m, const ops_heads *s, float scale) {
    const int unit = unit_of_classifier(m, 0);
    if (m->tiles) {
        TRY(classify_tiles(m, s, 1, scale));
        return m->apart ? class_tiles_backward(m, s) : ZERO_OK;
    }
    TRY(hook(m, zero_forward_begin(m->z, unit, &m->params)));
    TRY(hook(m, zero_backward_begin(m->z, unit, &m->params, &m->grads)));
    classify(m, s, 1, scale);
    TRY(hook(m, zero_backward_end(m->z, unit)));
    return hook(m, zero_forward_end(m->z, unit));
}

/* Computes the losses only. */
static zero_result classify_only(gpt2_model *m, const ops_heads *s) {
    const int unit = unit_of_classifier(m, 0);
    if (m->tiles) return classify_tiles(m, s, 0, 0.0f);
    TRY(hook(m, zero_forward_begin(m->z, unit, &m->params)));
    classify(m, s, 0, 0.0f);
    return hook(m, zero_forward_end(m->z, unit));
}

/* The lookup reads no weights. */
static zero_result embed_backward(gpt2_model *m, const ops_heads *s) {
    const size_t R = s->batch * s->seq_len;
    if (!reaches(m, -1)) return ZERO_OK;
    if (m->tiles) return tiles_backward(m, s);
    TRY(hook(m, zero_backward_begin(m->z, 0, NULL, &m->grads)));
    const row_run all = run_at(m, s, 0);
    if (m->tp.group || all.R < R || !m->grads.wte || !m->grads.wpe) {
        const ops_tile t = tile_at(m, 0);
        places_backward(m, s);
        gather(m, m->dres, R);
        if (m->grads.wte)
            ops_tile_rows_backward(m->ops, m->grads.wte, m->dres, m->tokens, &t, R, m->C);
    } else {
        ops_embed_backward(m->ops, m->grads.wte, gradient(m, m->grads.wpe, all.first * m->C),
                           m->dres, m->tokens, R, s->seq_len, m->C);
    }
    return hook(m, zero_backward_end(m->z, 0));
}

/* ---- passes -------------------------------------------------------------------------------- */

zero_result gpt2_pass_begin(gpt2_model *m, zero_pass kind, int micro, int micro_steps) {
    TRY(hook(m, zero_pass_begin(m->z, kind, micro, micro_steps)));
    return m->moe ? mixed(m, experts_pass_begin(m->moe, kind, micro, micro_steps)) : ZERO_OK;
}
zero_result gpt2_pass_end(gpt2_model *m) {
    if (m->moe) TRY(mixed(m, experts_pass_end(m->moe)));
    return hook(m, zero_pass_end(m->z));
}

/* Returns this rank's pieces of whole sequences, of inputs or of targets (which may be NULL). */
static const int *piece_of(gpt2_model *m, const int *whole, int of_targets, const ops_heads *s) {
    const size_t R = s->batch * s->seq_len;
    if (m->cp.size == 1 || !whole) return whole;
    int *piece = m->piece + (of_targets ? R : 0);
    context_take(&m->cp, piece, whole, s->batch, s->seq_len);
    return piece;
}
/* Copies this rank's tokens of whole sequences to the device. */
static void copy_tokens(gpt2_model *m, const int *inputs, const int *targets, const ops_heads *s) {
    ops_take_batch(m->ops, m->tokens, targets ? m->targets : NULL, piece_of(m, inputs, 0, s),
                   piece_of(m, targets, 1, s), s->batch * s->seq_len);
}

/* Checks each token of whole sequences, and copies this rank's. targets may be NULL. */
static zero_result take_tokens(gpt2_model *m, const int *inputs, const int *targets,
                               const ops_heads *s) {
    const size_t n = s->batch * s->seq_len * m->cp.size;
    m->error.sentence[0] = '\0';
    for (size_t i = 0; i < n; i++) {
        const int *bad = inputs[i] < 0 || inputs[i] >= m->cfg.vocab_size ? inputs : NULL;
        if (!bad && targets && (targets[i] < 0 || targets[i] >= m->cfg.vocab_size)) bad = targets;
        if (bad)
            return refuse(&m->error, ZERO_ERR_ARGUMENT,
                          "%s token %zu is %d, but the vocabulary has %d entries",
                          bad == inputs ? "input" : "target", i, bad[i], m->cfg.vocab_size);
    }
    copy_tokens(m, inputs, targets, s);
    return ZERO_OK;
}

/* Returns the input of group g of the current chunk. */
static void *input_of(const gpt2_model *m, int g) { return m->blocks[g * m->group].x; }

/* Returns the record of the input of group g. -1: it is not offloaded. */
static int away_record(const gpt2_model *m, int g) {
    const int at = g - away_first(m);
    if (g < 0 || g >= groups_of(m, m->count) || input_of(m, g) != m->blocks[g * m->group].own)
        return -1;
    return at >= 0 && at < away_inputs(m) ? m->slot * away_inputs(m) + at : -1;
}

/* Waits until the previous contents of the buffer of group g's input are offloaded. */
static void free_window(gpt2_model *m, int g) {
    int *leaving = &m->now->leaving[g % WINDOW];
    if (m->away && *leaving >= 0) spill_await(m->away, *leaving);
    *leaving = -1;
}

/* Starts to offload the input of group g, and frees the buffer of the next input. */
static void send_input(gpt2_model *m, int g) {
    const int record = away_record(m, g);
    if (record >= 0) spill_put(m->away, record, input_of(m, g));
    if (record >= 0) m->now->leaving[g % WINDOW] = record;
    free_window(m, g + 1);
}

/* Starts to fetch the input of group g into its buffer, which is free. */
static void fetch_input(gpt2_model *m, int g) {
    const int record = m->away ? away_record(m, g) : -1;
    if (record >= 0) spill_get(m->away, record, input_of(m, g));
}

/* Returns the first block after group g. */
static int end_of(const gpt2_model *m, int g) {
    const int end = (g + 1) * m->group;
    return end < m->count ? end : m->count;
}

/* Forward of all blocks of the current chunk. If m->counts is set, a backward follows. */
static zero_result next_group(gpt2_model *m, const ops_heads *s, size_t g) {
    m->kept = 0; /* qkv is overwritten */
    if (m->counts && m->away) send_input(m, (int)g);
    for (int i = (int)g * m->group; i < end_of(m, (int)g); i++)
        TRY(block(m, (size_t)(m->first + i), s));
    return ZERO_OK;
}
static zero_result blocks_forward(gpt2_model *m, const ops_heads *s) {
    for (int g = 0; g < groups_of(m, m->count); g++) TRY(next_group(m, s, (size_t)g));
    return ZERO_OK;
}
/* Backward of all blocks of the current chunk. */
static void fetch_last_inputs(gpt2_model *m) {
    const int groups = groups_of(m, m->count);
    for (int g = groups; g > groups - WINDOW; g--) fetch_input(m, g - 1);
}
static zero_result next_group_backward(gpt2_model *m, const ops_heads *s, size_t g) {
    const int record = m->away ? away_record(m, (int)g) : -1;
    const int begin = (int)g * m->group, end = end_of(m, (int)g);
    if (record >= 0) spill_await(m->away, record);
    for (int i = begin; i < end && m->group > 1; i++)
        TRY(block_again(m, (size_t)(m->first + i), s, i + 1 < end));
    for (int i = end; i-- > begin;) TRY(block_backward(m, (size_t)(m->first + i), s));
    fetch_input(m, (int)g - WINDOW);
    return ZERO_OK;
}
static zero_result blocks_backward(gpt2_model *m, const ops_heads *s) {
    fetch_last_inputs(m);
    for (int g = groups_of(m, m->count); g-- > 0;) TRY(next_group_backward(m, s, (size_t)g));
    return ZERO_OK;
}

/* Forward from tokens to lnf. `back` 1: a backward follows. */
static zero_result forward(gpt2_model *m, const ops_heads *s, int back) {
    m->counts = back;
    TRY(embed(m, s));
    TRY(blocks_forward(m, s));
    return final_norm(m, s);
}

static zero_result backward(gpt2_model *m, const ops_heads *s) {
    TRY(final_norm_backward(m, s));
    TRY(blocks_backward(m, s));
    return embed_backward(m, s);
}

/* Returns the first error of operations since the model was created, if one is known. */
static zero_result outcome(gpt2_model *m) {
    const char *sentence;
    zero_result result = ops_status(m->ops, &sentence);
    if (result == ZERO_OK && m->away) result = spill_status(m->away, &sentence);
    if (result == ZERO_OK && m->tp.result != ZERO_OK) {
        result = m->tp.result;
        sentence = zero_group_error(m->tp.group);
    }
    if (result == ZERO_OK && m->cp.result != ZERO_OK) {
        result = m->cp.result;
        sentence = context_error(&m->cp);
    }
    if (result == ZERO_OK) return ZERO_OK;
    return refuse(&m->error, result, "%s", sentence);
}

/* Returns the sum of n losses. It waits for the device. */
static zero_result sum_now(gpt2_model *m, size_t n, double *sum) {
    ops_sum(m->ops, m->totals + 1, m->losses, n);
    *sum = ops_take_sum(m->ops, m->totals + 1);
    return outcome(m);
}

/* Announces the rows of wte and wpe that this batch touches. */
static zero_result announce_rows(gpt2_model *m, const int *inputs, const ops_heads *s) {
    enum { PART = 256 };
    int rows[PART];
    const size_t R = s->batch * s->seq_len;
    context_span list[2];
    const size_t spans = context_spans(&m->cp, m->cp.rank, m->T, list);
    const int parts = m->tp.size > 1 || !gpt2_stage_is_whole(&m->stage);
    if (parts || !has_rows(&m->cfg, NULL, GPT2_WTE)) return ZERO_OK;
    TRY(hook(m, zero_touch_rows(m->z, "wte", piece_of(m, inputs, 0, s), (int)R)));
    for (size_t i = 0; i < spans; i++)
        for (size_t t = 0, n; t < list[i].n; t += n) {
            for (n = 0; n < PART && t + n < list[i].n; n++) rows[n] = (int)(list[i].first + t + n);
            TRY(hook(m, zero_touch_rows(m->z, "wpe", rows, (int)n)));
        }
    return ZERO_OK;
}

zero_result gpt2_train_step(gpt2_model *m, const int *inputs, const int *targets, float loss_factor,
                            double *loss) {
    const ops_heads s = shape_of(m, (size_t)m->run.batch, m->T);
    const size_t R = s.batch * s.seq_len;
    TRY(take_tokens(m, inputs, targets, &s));
    TRY(announce_rows(m, inputs, &s));
    m->aux = loss_factor * m->cfg.moe.aux;
    m->trained++;
    TRY(forward(m, &s, 1));
    TRY(classify_and_back(m, &s, loss_factor / (float)R));
    TRY(backward(m, &s));
    ops_sum(m->ops, m->totals, m->losses, R);
    m->summed += R;
    TRY(outcome(m));
    if (!loss) return ZERO_OK;
    TRY(sum_now(m, R, loss));
    *loss /= (double)R;
    return ZERO_OK;
}

/* ---- micro-batches that pass each layer together --------------------------------------------- */

/* The part of a layer's work, or of tile i's, for the current micro-batch. */
typedef zero_result (*micro_work)(gpt2_model *m, const ops_heads *s, size_t i);

/* Runs a work for each micro-batch, in order. `ends`: it is of the embeddings, the final norm or
   the classifier. */
static zero_result each_micro(gpt2_model *m, const ops_heads *s, int ends, size_t i,
                              micro_work work) {
    for (int k = 0; k < m->together; k++) {
        choose_micro(m, k);
        choose(m, 0, k);
        if (ends) m->dc = m->now->ends;
        TRY(work(m, s, i));
    }
    return ZERO_OK;
}
/* The same while the unit is open: its hooks nest, so the plugin gathers its parameters once. For
   backward it also reduces its gradient once, after the last micro-batch. */
static zero_result each_forward(gpt2_model *m, const ops_heads *s, int ends, int unit, size_t i,
                                micro_work work) {
    TRY(hook(m, zero_forward_begin(m->z, unit, &m->params)));
    TRY(each_micro(m, s, ends, i, work));
    return hook(m, zero_forward_end(m->z, unit));
}
static zero_result each_backward(gpt2_model *m, const ops_heads *s, int ends, int unit,
                                 void *params, size_t i, micro_work work) {
    TRY(hook(m, zero_backward_begin(m->z, unit, params, &m->grads)));
    TRY(each_micro(m, s, ends, i, work));
    return hook(m, zero_backward_end(m->z, unit));
}

/* CUDA's gradient of the lookup sorts the tokens of the last batch, so the batch is copied again.
 */
static void take_inputs_again(gpt2_model *m, const ops_heads *s) {
    const size_t n = s->batch * s->seq_len * m->cp.size;
    copy_tokens(m, m->inputs + (size_t)(m->now - m->micros) * n, NULL, s);
}

static zero_result micro_take(gpt2_model *m, const ops_heads *s, size_t i) {
    const size_t n = s->batch * s->seq_len * m->cp.size, at = (size_t)(m->now - m->micros) * n;
    (void)i;
    free_window(m, 0);
    return take_tokens(m, m->inputs + at, m->all_targets + at, s);
}
static zero_result micro_embed(gpt2_model *m, const ops_heads *s, size_t i) {
    (void)i;
    return embed(m, s);
}
static zero_result micro_embed_begin(gpt2_model *m, const ops_heads *s, size_t i) {
    (void)i;
    embed_begin(m, s->batch * s->seq_len);
    return ZERO_OK;
}
static zero_result micro_embed_places(gpt2_model *m, const ops_heads *s, size_t i) {
    (void)i;
    return embed_places(m, s);
}
static zero_result embed_together(gpt2_model *m, const ops_heads *s) {
    if (!m->tiles) return each_forward(m, s, 1, 0, 0, micro_embed);
    TRY(each_micro(m, s, 1, 0, micro_embed_begin));
    for (size_t i = 0; i < m->tiles; i++) TRY(each_forward(m, s, 1, (int)i, i, embed_tile));
    return each_forward(m, s, 1, (int)m->tiles, 0, micro_embed_places);
}

static zero_result micro_norm(gpt2_model *m, const ops_heads *s, size_t i) {
    (void)i;
    return final_norm(m, s);
}
static zero_result micro_norm_backward(gpt2_model *m, const ops_heads *s, size_t i) {
    (void)i;
    return final_norm_backward(m, s);
}

static zero_result micro_classify(gpt2_model *m, const ops_heads *s, size_t i) {
    (void)i;
    return classify_and_back(m, s, m->scale);
}
static zero_result micro_tiles_begin(gpt2_model *m, const ops_heads *s, size_t i) {
    (void)i;
    if (m->tp.group) begin_part(m, s->batch * s->seq_len);
    return ZERO_OK;
}
static zero_result micro_see_tile(gpt2_model *m, const ops_heads *s, size_t i) {
    return see_tile(m, s, i, 1);
}
static zero_result micro_tiles_end(gpt2_model *m, const ops_heads *s, size_t i) {
    (void)i;
    end_tiles(m, s->batch * s->seq_len, 1, m->scale);
    return ZERO_OK;
}
static zero_result classify_tiles_together(gpt2_model *m, const ops_heads *s) {
    TRY(each_micro(m, s, 1, 0, micro_tiles_begin));
    for (size_t i = 0; i < m->tiles; i++)
        TRY(each_forward(m, s, 1, unit_of_classifier(m, i), i, micro_see_tile));
    TRY(each_micro(m, s, 1, 0, micro_tiles_end));
    for (size_t i = m->tiles; i-- > 0 && m->apart;)
        TRY(each_backward(m, s, 1, unit_of_classifier(m, i), &m->params, i,
                          own_class_tile_backward));
    return ZERO_OK;
}
static zero_result classify_together(gpt2_model *m, const ops_heads *s) {
    const int unit = unit_of_classifier(m, 0);
    if (m->tiles) return classify_tiles_together(m, s);
    TRY(hook(m, zero_forward_begin(m->z, unit, &m->params)));
    TRY(each_backward(m, s, 1, unit, &m->params, 0, micro_classify));
    return hook(m, zero_forward_end(m->z, unit));
}
static zero_result micro_losses(gpt2_model *m, const ops_heads *s, size_t i) {
    (void)i;
    ops_sum(m->ops, m->totals, m->losses, s->batch * s->seq_len);
    m->summed += s->batch * s->seq_len;
    return ZERO_OK;
}

/* Opens the units of group g for all micro-batches, with those of its experts, which are in no
   group with other blocks. */
static zero_result open_group(gpt2_model *m, int g) {
    const int begin = g * m->group;
    if (is_mixture(m, (size_t)begin)) TRY(mixed(m, experts_hold(m->moe, begin / 2, 0)));
    for (int i = begin; i < end_of(m, g); i++)
        TRY(hook(m, zero_forward_begin(m->z, unit_of_block(m, (size_t)i), &m->params)));
    return ZERO_OK;
}
static zero_result close_group(gpt2_model *m, int g) {
    const int begin = g * m->group;
    for (int i = begin; i < end_of(m, g); i++)
        TRY(hook(m, zero_forward_end(m->z, unit_of_block(m, (size_t)i))));
    return is_mixture(m, (size_t)begin) ? mixed(m, experts_release(m->moe, begin / 2, 0)) : ZERO_OK;
}
static zero_result blocks_together(gpt2_model *m, const ops_heads *s) {
    for (int g = 0; g < groups_of(m, m->count); g++) {
        TRY(open_group(m, g));
        TRY(each_micro(m, s, 0, (size_t)g, next_group));
        TRY(close_group(m, g));
    }
    return ZERO_OK;
}
static zero_result micro_fetch(gpt2_model *m, const ops_heads *s, size_t i) {
    (void)s;
    (void)i;
    fetch_last_inputs(m);
    return ZERO_OK;
}
/* Backward of a group of several blocks reaches all of them. */
static zero_result open_group_backward(gpt2_model *m, int g) {
    const int begin = g * m->group;
    if (is_mixture(m, (size_t)begin)) TRY(mixed(m, experts_hold(m->moe, begin / 2, 1)));
    for (int i = end_of(m, g); i-- > begin;)
        TRY(hook(m, zero_backward_begin(m->z, unit_of_block(m, (size_t)i), &m->params, &m->grads)));
    return ZERO_OK;
}
static zero_result close_group_backward(gpt2_model *m, int g) {
    const int begin = g * m->group;
    for (int i = end_of(m, g); i-- > begin;)
        TRY(hook(m, zero_backward_end(m->z, unit_of_block(m, (size_t)i))));
    return is_mixture(m, (size_t)begin) ? mixed(m, experts_release(m->moe, begin / 2, 1)) : ZERO_OK;
}
static zero_result blocks_backward_together(gpt2_model *m, const ops_heads *s) {
    TRY(each_micro(m, s, 0, 0, micro_fetch));
    for (int g = groups_of(m, m->count); g-- > 0;) {
        const int reached = reaches(m, g * m->group);
        if (reached) TRY(open_group_backward(m, g));
        TRY(each_micro(m, s, 0, (size_t)g, next_group_backward));
        if (reached) TRY(close_group_backward(m, g));
    }
    return ZERO_OK;
}

static zero_result micro_embed_backward(gpt2_model *m, const ops_heads *s, size_t i) {
    (void)i;
    take_inputs_again(m, s);
    return embed_backward(m, s);
}
static zero_result micro_tiles_places(gpt2_model *m, const ops_heads *s, size_t i) {
    (void)i;
    return tiles_places_backward(m, s);
}
static zero_result micro_tile_backward(gpt2_model *m, const ops_heads *s, size_t i) {
    take_inputs_again(m, s);
    return tile_backward(m, s, i);
}
static zero_result embed_backward_together(gpt2_model *m, const ops_heads *s) {
    if (!reaches(m, -1)) return ZERO_OK;
    if (!m->tiles) return each_backward(m, s, 1, 0, NULL, 0, micro_embed_backward);
    TRY(each_backward(m, s, 1, (int)m->tiles, NULL, 0, micro_tiles_places));
    for (size_t i = m->tiles; i-- > 0;)
        TRY(each_backward(m, s, 1, (int)i, params_of_tile(m), i, micro_tile_backward));
    return ZERO_OK;
}

static zero_result step_together(gpt2_model *m, const ops_heads *s) {
    TRY(each_micro(m, s, 1, 0, micro_take));
    TRY(embed_together(m, s));
    TRY(blocks_together(m, s));
    TRY(each_forward(m, s, 1, unit_of_norm(m), 0, micro_norm));
    TRY(classify_together(m, s));
    TRY(each_backward(m, s, 1, unit_of_norm(m), &m->params, 0, micro_norm_backward));
    TRY(blocks_backward_together(m, s));
    TRY(embed_backward_together(m, s));
    return each_micro(m, s, 1, 0, micro_losses);
}

zero_result gpt2_train_layers(gpt2_model *m, const int *inputs, const int *targets,
                              float loss_factor) {
    const ops_heads s = shape_of(m, (size_t)m->run.batch, m->T);
    m->inputs = inputs;
    m->all_targets = targets;
    m->aux = loss_factor * m->cfg.moe.aux;
    m->trained += (size_t)m->together;
    m->counts = 1;
    m->scale = loss_factor / (float)(s.batch * s.seq_len);
    const zero_result result = step_together(m, &s);
    m->inputs = m->all_targets = NULL;
    choose_micro(m, 0);
    choose(m, 0, 0);
    TRY(result);
    return outcome(m);
}

zero_result gpt2_take_losses(gpt2_model *m, double *mean) {
    const double sum = ops_take_sum(m->ops, m->totals);
    *mean = m->summed ? sum / (double)m->summed : 0;
    m->summed = 0;
    return outcome(m);
}

zero_result gpt2_take_experts(gpt2_model *m, double *aux, double *dropped) {
    *aux = *dropped = 0;
    if (m->moe) experts_take(m->moe, aux, dropped);
    *aux /= m->trained ? (double)m->trained : 1;
    m->trained = 0;
    return outcome(m);
}

zero_result gpt2_loss(gpt2_model *m, const int *inputs, const int *targets, int rows,
                      double *loss) {
    const ops_heads s = shape_of(m, rows < 0 ? 0 : (size_t)rows, m->T);
    if (rows < 0 || rows > m->run.batch)
        return refuse(&m->error, ZERO_ERR_ARGUMENT, "%d rows, but the model was made for %d", rows,
                      m->run.batch);
    TRY(take_tokens(m, inputs, targets, &s));
    TRY(forward(m, &s, 0));
    TRY(classify_only(m, &s));
    TRY(outcome(m));
    return sum_now(m, s.batch * s.seq_len, loss);
}

/* With context parallelism d4c has room for the losses of all pieces, twice: 2 R N floats. */
zero_result gpt2_token_losses(gpt2_model *m, float *losses, size_t n) {
    const float *here = m->losses;
    if (m->cp.size > 1) {
        float *all = (float *)m->d4c;
        context_losses(&m->cp, m->ops, all, m->losses, all + n, n / (m->T * m->cp.size), m->T);
        here = all;
    }
    if (n > 0) ops_download(m->ops, losses, here, ZERO_F32, n);
    return outcome(m);
}

/* Computes the logits of token `row` of lnf in a tile. With tensor or context parallelism they stay
 * on the device. */
static zero_result read_logits(gpt2_model *m, float *logits, size_t row, const ops_tile *t) {
    const void *lnf = element(m->lnf, row * m->C, m->bytes); /* (C) */
    void *out = m->line ? element(m->line, t->first, m->bytes) : m->logits;
    ops_linear(m->ops, out, lnf, class_param(m, t), NULL, 1, m->C, t->rows);
    TRY(outcome(m));
    if (m->line) return ZERO_OK;
    ops_download(m->ops, logits + t->first, m->logits, m->run.type, t->valid);
    return outcome(m);
}

/* Copies the tokens of a sequence, and pads them to a number that the ranks can divide. No token
   attends to a later one. */
static zero_result take_sequence(gpt2_model *m, const int *inputs, size_t t, size_t padded) {
    int *all = (int *)calloc(padded, sizeof *all);
    if (!all) return refuse(&m->error, ZERO_ERR_MEMORY, "no memory for %zu tokens", padded);
    memcpy(all, inputs, t * sizeof *all);
    const ops_heads s = shape_of(m, 1, padded / m->cp.size);
    const zero_result result = take_tokens(m, all, NULL, &s);
    free(all);
    return result;
}

/* Computes the logits (V) of token t of the sequence of T tokens per rank. With context parallelism
   one rank has it, and all others compute one of theirs, because the hooks are collective. */
static zero_result logits_of(gpt2_model *m, size_t t, size_t T, float *logits) {
    size_t row;
    (void)context_find(&m->cp, t, T, &row);
    for (size_t i = 0; i < (m->tiles ? m->tiles : 1); i++) {
        const ops_tile tile = tile_at(m, i);
        const int unit = unit_of_classifier(m, i);
        TRY(hook(m, zero_forward_begin(m->z, unit, &m->params)));
        TRY(read_logits(m, logits, row, &tile));
        TRY(hook(m, zero_forward_end(m->z, unit)));
    }
    if (!m->line) return ZERO_OK;
    tensor_parallel_join(&m->tp, m->line, m->Vr);
    context_share(&m->cp, m->line, m->V * m->bytes, t, T);
    TRY(outcome(m));
    ops_download(m->ops, logits, m->line, m->run.type, m->V);
    return outcome(m);
}

/* Returns whether the blocks keep their keys and values after a pass over one sequence. A mixture
   of experts has none, because its capacity depends on the number of tokens. Rows of qkv begin at
   16 bytes, as a GPU's matrix product wants. */
static int keeps_keys(const gpt2_model *m) {
    return gpt2_stage_is_whole(&m->stage) && !m->moe && !m->tp.sequence && m->cp.size == 1
           && reaches(m, 0) && m->run.recompute < GPT2_RECOMPUTE_BLOCK
           && 3 * m->Cp * m->bytes % 16 == 0;
}

/* Runs forward for tokens `position` .. t - 1 of a sequence, padded to a number that the ranks can
   divide. The keys and values of earlier tokens are kept. */
static zero_result sequence_logits(gpt2_model *m, const int *inputs, size_t t, size_t padded,
                                   float *logits) {
    const size_t first = m->position;
    const ops_heads s = shape_of(m, 1, (padded - first) / m->cp.size);
    TRY(take_sequence(m, inputs + first, t - first, padded - first));
    TRY(forward(m, &s, 0));
    TRY(logits_of(m, t - 1 - first, s.seq_len, logits));
    m->kept = keeps_keys(m) ? t : 0;
    return ZERO_OK;
}

static zero_result check_length(gpt2_model *m, int t) {
    if (t >= 1 && t <= m->run.seq_len) return ZERO_OK;
    return refuse(&m->error, ZERO_ERR_ARGUMENT, "%d tokens, but the model was made for 1 to %d", t,
                  m->run.seq_len);
}

zero_result gpt2_logits(gpt2_model *m, const int *inputs, int t, float *logits) {
    const size_t known = (size_t)t, each = context_multiple(&m->cp);
    TRY(check_length(m, t));
    return sequence_logits(m, inputs, known, (known + each - 1) / each * each, logits);
}

zero_result gpt2_next_logits(gpt2_model *m, const int *inputs, int t, float *logits) {
    TRY(check_length(m, t));
    if (t < 2 || m->kept != (size_t)t - 1) return gpt2_logits(m, inputs, t, logits);
    m->position = m->kept;
    const zero_result result = sequence_logits(m, inputs, (size_t)t, (size_t)t, logits);
    m->position = 0;
    return result;
}

/* ---- chunks of a pipeline's stage ------------------------------------------------------------ */

/* Selects chunk c, its messages, and the memory of its gradients. */
static ops_heads enter_chunk(gpt2_model *m, const gpt2_chunk *c) {
    choose(m, c->chunk, c->slot);
    if (c->in) m->blocks[0].x = c->in;
    if (c->out) m->blocks[m->count].x = c->out;
    m->dres = has_own_dres(m) ? m->sum_x : c->gradient;
    return shape_of(m, (size_t)c->rows, m->T);
}

zero_result gpt2_chunk_forward(gpt2_model *m, const gpt2_chunk *c) {
    const ops_heads s = enter_chunk(m, c);
    m->counts = c->train;
    m->trained += c->train && c->chunk == 0;
    if (!c->in) {
        TRY(take_tokens(m, c->inputs, NULL, &s));
        free_window(m, 0);
        TRY(embed(m, &s));
    }
    TRY(blocks_forward(m, &s));
    return outcome(m);
}

/* Computes the gradient of the last block's output. */
static zero_result chunk_end(gpt2_model *m, const gpt2_chunk *c, const ops_heads *s, float factor) {
    const size_t R = s->batch * s->seq_len;
    TRY(take_tokens(m, c->targets, c->targets, s));
    TRY(final_norm(m, s));
    TRY(classify_and_back(m, s, factor / (float)R));
    TRY(final_norm_backward(m, s));
    ops_sum(m->ops, m->totals, m->losses, R);
    m->summed += R;
    return ZERO_OK;
}

/* Copies this rank's rows between dres and a message. */
static void carry_gradient(gpt2_model *m, const gpt2_chunk *c, const ops_heads *s, int comes) {
    const size_t R = s->batch * s->seq_len, bytes = own_rows(m, R) * m->C * m->bytes;
    void *here = own(m, m->dres, R);
    if (here != c->gradient)
        ops_copy(m->ops, comes ? here : c->gradient, comes ? c->gradient : here, bytes);
}

/* Returns 1 if this is the last chunk of the model. */
static int is_last_chunk(const gpt2_model *m, const gpt2_chunk *c) {
    return gpt2_stage_is_last(&m->stage) && c->chunk >= m->stage.chunks - 1;
}

zero_result gpt2_chunk_backward(gpt2_model *m, const gpt2_chunk *c, float loss_factor) {
    const ops_heads s = enter_chunk(m, c);
    m->aux = loss_factor * m->cfg.moe.aux;
    if (is_last_chunk(m, c))
        TRY(chunk_end(m, c, &s, loss_factor));
    else
        carry_gradient(m, c, &s, 1);
    TRY(blocks_backward(m, &s));
    if (c->in) {
        carry_gradient(m, c, &s, 0);
        return outcome(m);
    }
    TRY(take_tokens(m, c->inputs, NULL, &s));
    TRY(embed_backward(m, &s));
    return outcome(m);
}

zero_result gpt2_chunk_loss(gpt2_model *m, const gpt2_chunk *c, double *sum) {
    const ops_heads s = enter_chunk(m, c);
    TRY(take_tokens(m, c->targets, c->targets, &s));
    TRY(final_norm(m, &s));
    TRY(classify_only(m, &s));
    TRY(outcome(m));
    return sum_now(m, s.batch * s.seq_len, sum);
}

zero_result gpt2_chunk_logits(gpt2_model *m, const gpt2_chunk *c, int t, float *logits) {
    const ops_heads s = enter_chunk(m, c);
    TRY(final_norm(m, &s));
    return logits_of(m, (size_t)t - 1, s.seq_len, logits);
}

size_t gpt2_chunk_bytes(const gpt2_model *m) { return rows_between(m) * m->C * m->bytes; }

int gpt2_batch(const gpt2_model *m) { return m->run.batch; }
size_t gpt2_batch_tokens(const gpt2_model *m) {
    return (size_t)m->run.batch * (size_t)m->run.seq_len;
}
size_t gpt2_vocabulary(const gpt2_model *m) { return m->V; }

double gpt2_waited_s(const gpt2_model *m) { return ring_waited_s(m->cp.turns); }

void *gpt2_memory(size_t bytes) { return ops_alloc(bytes); }
void gpt2_free(void *memory) { ops_free(memory); }

/* ---- checked products ------------------------------------------------------------------------ */

static recheck_shape check_shape(const gpt2_model *m, int ranks) {
    const size_t R = (size_t)m->run.batch * m->T, row = m->C * m->bytes;
    recheck_shape s = {own_rows(m, R) * row, R * row, tensor_parallel_first(&m->tp, R) * row, 0,
                       ranks};
    GPT2_EACH_TENSOR(&m->cfg, at, t)
    s.grad_bytes += (checked_numel(m, t) * sizeof(float) + 127) / 128 * 128;
    return s;
}

size_t gpt2_check_bytes(const gpt2_config *cfg, const gpt2_run *run, int ranks) {
    gpt2_model m;
    if (set_shape(&m, cfg, run, NULL) != ZERO_OK) return 0;
    const recheck_shape s = check_shape(&m, ranks);
    return recheck_bytes(&s);
}
size_t gpt2_check_sent(const gpt2_config *cfg, const gpt2_run *run, int ranks) {
    gpt2_model m;
    if (set_shape(&m, cfg, run, NULL) != ZERO_OK) return 0;
    const recheck_shape s = check_shape(&m, ranks);
    return recheck_sent(&s);
}

/* Returns the first block with a backward. */
static int first_checked(const gpt2_model *m) {
    return m->cfg.frozen && m->cfg.frozen->lowest > 0 ? m->cfg.frozen->lowest : 0;
}

zero_result gpt2_check_open(gpt2_model *m, zero_group *peers, zero_group *all, gpt2_error *err) {
    const char *why = m->moe                            ? "the MLP of a block with experts is on "
                                                          "several ranks"
                      : !gpt2_stage_is_whole(&m->stage) ? "in a pipeline the inputs of blocks are "
                                                          "messages"
                      : m->run.any_order
                          ? "attention that adds in any order has other bits each time"
                      : first_checked(m) >= m->layers ? "no block has a backward"
                                                      : NULL;
    no_error(err);
    if (why) return refuse(err, ZERO_ERR_UNSUPPORTED, "products cannot be checked: %s", why);
    const recheck_shape s = check_shape(m, zero_group_size(all));
    return recheck_open(&m->check, &s, peers, all, err);
}

void gpt2_check_next(gpt2_model *m, int64_t step, int64_t turn) {
    char setting[2 * OPS_SENTENCE];
    const int first = first_checked(m);
    if (!m->check) return;
    (void)snprintf(setting, sizeof setting, "%s; %s", ops_product_path(m->ops),
                   ops_attention_path(m->ops));
    recheck_begin(m->check, m->ops, step, first + (int)(turn % (m->layers - first)), setting);
}

int gpt2_wrong_rank(const gpt2_model *m) { return m->check ? m->check->wrong : -1; }

/* ---- figures ------------------------------------------------------------------------------- */

uint64_t gpt2_parallel_bytes(const gpt2_config *cfg, const gpt2_run *run) {
    gpt2_model shape;
    if (set_shape(&shape, cfg, run, NULL) != ZERO_OK) return 0;
    const uint64_t mixture = experts_sent(cfg, run) + context_sent(cfg, run);
    if (!shape.tp.group) return mixture;
    const uint64_t others = shape.tp.size - 1, size = shape.tp.size;
    const uint64_t R = (uint64_t)run->batch * shape.T, again = (uint64_t)run->recompute;
    const uint64_t half = R * shape.C * shape.bytes / size * others; /* bytes of an all-reduce */
    uint64_t halves = 8;                                             /* bytes of a block */
    if (again >= GPT2_RECOMPUTE_BLOCK) halves += shape.tp.sequence ? 3 : 2;
    const uint64_t inner = (uint64_t)(shape.layers - groups_of(&shape, shape.layers));
    if (again == GPT2_RECOMPUTE_NORM && shape.tp.sequence) halves += 2;
    const uint64_t first = (uint64_t)gpt2_stage_is_first(&shape.stage);
    const uint64_t last = (uint64_t)gpt2_stage_is_last(&shape.stage);
    const uint64_t ends = inner * (shape.tp.sequence ? 1 : 2); /* outputs that are computed again */
    return mixture + half * (halves * (uint64_t)shape.layers + ends + 2 * first + 2 * last)
           + last * 3 * (2 * R * sizeof(float) * others / size);
}

/* Returns the operations per token that frozen tensors save. */
static double flops_saved(const gpt2_config *cfg, int seq_len) {
    zero_tensor_desc table[GPT2_MOST_TENSORS];
    const int n = cfg->frozen ? gpt2_table(cfg, NULL, 0, table) : 0;
    double saved = 0;
    for (int t = 0; t < n; t++)
        for (int l = 0; l < table[t].layers && t != GPT2_WPE; l++) {
            const int tensor = gpt2_tensor_at(cfg, t);
            const int below = gpt2_is_of_blocks(tensor) && l < cfg->frozen->lowest;
            saved += 2.0 * (double)table[t].numel * (cfg->frozen->layer[tensor][l] + below);
        }
    const int without = n && cfg->frozen->lowest > 0 ? cfg->frozen->lowest : 0; /* blocks */
    return saved + 8.0 * without * cfg->channels * seq_len;
}

double gpt2_flops_per_token(const gpt2_config *cfg, int seq_len) {
    const double L = cfg->layers, C = cfg->channels;
    const double places = (double)cfg->max_seq_len * C;
    const double asked = experts_layers(cfg) * 8 * C * C * cfg->moe.chosen; /* bytes of experts */
    return 6.0 * ((double)gpt2_numel(cfg) - places + asked) + 12.0 * L * C * seq_len
           - flops_saved(cfg, seq_len);
}

double gpt2_matmul_rate(zero_type type, int threads) { return ops_matmul_rate(type, 0, threads); }

double gpt2_peak_rate(zero_type type, int tf32) { return ops_peak_rate(type, tf32); }

/* stages.c - see stages.h. Common subset of C11 and CUDA C++. */
#include "stages.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "../pipeline/pipeline.h"

/* ---- how the model is cut ------------------------------------------------------------------ */

/* Returns the operations of the classifier for a token, divided by those of a block. */
static double classifier_cost(const gpt2_config *cfg, int seq_len) {
    const double C = cfg->channels;
    return (double)cfg->padded_vocab_size * C / (12 * C * C + C * seq_len);
}

/* Returns the number of blocks that must stay together. */
static int blocks_of_piece(const gpt2_config *cfg) { return cfg->moe.experts ? 2 : 1; }

static void cut_reason(const gpt2_config *cfg, const pipeline_shape *shape, char *why,
                       size_t bytes) {
    const int each = blocks_of_piece(cfg), chunks = shape->stages * shape->chunks;
    why[0] = 0;
    if (each == 1 && pipeline_check(shape, cfg->layers, why, bytes)) return;
    if (chunks > GPT2_MOST_CHUNKS)
        (void)snprintf(why, bytes, "%d stages of %d chunks: at most %d chunks in all",
                       shape->stages, shape->chunks, GPT2_MOST_CHUNKS);
    else if (chunks > cfg->layers / each && shape->stages > cfg->layers / each)
        (void)snprintf(why, bytes,
                       "with experts each of the %d stages needs two blocks, and the model has %d "
                       "blocks; use at most %d stage%s",
                       shape->stages, cfg->layers, cfg->layers / each,
                       cfg->layers / each > 1 ? "s" : "");
    else if (chunks > cfg->layers / each)
        (void)snprintf(why, bytes,
                       "with experts %d stages of %d chunks need two blocks per chunk, and the "
                       "model has %d blocks; use at most %d chunk%s",
                       shape->stages, shape->chunks, cfg->layers,
                       cfg->layers / each / shape->stages,
                       cfg->layers / each / shape->stages > 1 ? "s" : "");
    else
        (void)pipeline_check(shape, cfg->layers, why, bytes);
}

zero_result gpt2_stage_make(gpt2_stage *s, const gpt2_config *cfg, int stages, int chunks, int rank,
                            int seq_len, gpt2_error *err) {
    const pipeline_shape shape = {stages, stages, chunks, 0};
    const int each = blocks_of_piece(cfg);
    int pieces[GPT2_MOST_CHUNKS];
    char why[256];
    memset(s, 0, sizeof *s);
    cut_reason(cfg, &shape, why, sizeof why);
    if (why[0] && err) (void)snprintf(err->sentence, sizeof err->sentence, "%s", why);
    if (why[0]) return ZERO_ERR_ARGUMENT;
    s->stages = stages;
    s->chunks = chunks;
    s->stage = rank;
    s->slots = 1;
    pipeline_partition(cfg->layers / each, stages * chunks, 0,
                       classifier_cost(cfg, seq_len) / each + cfg->layers % each * 0.5, pieces);
    for (int k = 0; k < stages * chunks; k++) s->first[k + 1] = s->first[k] + each * pieces[k];
    s->first[stages * chunks] = cfg->layers; /* including a last block without experts */
    return ZERO_OK;
}

int gpt2_stage_is_whole(const gpt2_stage *s) { return s == NULL || s->stages < 2; }
int gpt2_stage_is_first(const gpt2_stage *s) { return gpt2_stage_is_whole(s) || s->stage == 0; }
int gpt2_stage_is_last(const gpt2_stage *s) {
    return gpt2_stage_is_whole(s) || s->stage == s->stages - 1;
}

/* Returns the number in the model of chunk c of the stage. */
static int chunk_of(const gpt2_stage *s, int c) { return c * s->stages + s->stage; }

int gpt2_stage_blocks(const gpt2_stage *s, int c) {
    return s->first[chunk_of(s, c) + 1] - s->first[chunk_of(s, c)];
}

int gpt2_stage_first(const gpt2_stage *s, int c) {
    int first = 0;
    for (int i = 0; i < c; i++) first += gpt2_stage_blocks(s, i);
    return first;
}

int gpt2_stage_block(const gpt2_stage *s, int i) {
    int c = 0;
    while (gpt2_stage_first(s, c + 1) <= i) c++;
    return s->first[chunk_of(s, c)] + i - gpt2_stage_first(s, c);
}

int gpt2_stage_layers(const gpt2_stage *s) { return gpt2_stage_first(s, s->chunks); }

int gpt2_stage_most(const gpt2_stage *s) {
    int most = 0;
    for (int c = 0; c < s->chunks; c++)
        if (gpt2_stage_blocks(s, c) > most) most = gpt2_stage_blocks(s, c);
    return most;
}

/* ---- tensors and units --------------------------------------------------------------------- */

int gpt2_is_of_blocks(int tensor) {
    return (tensor >= GPT2_LN1W && tensor <= GPT2_FCPROJB) || tensor >= GPT2_LORA;
}

/* Returns how many of the first n blocks have this tensor. */
static int having(const gpt2_config *cfg, int tensor, int n) {
    return cfg->moe.experts && tensor >= GPT2_FCW ? (n + 1) / 2 : n;
}

int gpt2_tensor_layers(const gpt2_config *cfg, int tensor) {
    return gpt2_is_of_blocks(tensor) ? having(cfg, tensor, cfg->layers) : 1;
}

/* Returns 1 if the stage has this tensor, which does not belong to blocks. */
static int is_here(const gpt2_config *cfg, const gpt2_stage *s, int tensor) {
    if (tensor == GPT2_WPE) return gpt2_stage_is_first(s);
    if (tensor == GPT2_WTE)
        return gpt2_stage_is_first(s) || (!cfg->untied && gpt2_stage_is_last(s));
    return gpt2_stage_is_last(s);
}

/* Returns the number of units of wte, or of an untied classifier. */
static int units_of_rows(int tiles) { return tiles ? tiles : 1; }

/* Returns the unit of the stage's first block. The units of the embeddings, or of a tied
   classifier, come before it. If wte has several tiles, wpe is a unit of its own after them. */
int gpt2_stage_first_block(const gpt2_config *cfg, const gpt2_stage *s, int tiles) {
    if (!is_here(cfg, s, GPT2_WTE)) return 0;
    return units_of_rows(tiles) + (tiles && gpt2_stage_is_first(s));
}

static int unit_here(const gpt2_config *cfg, const gpt2_stage *s, int tiles, int tensor) {
    const int first = gpt2_stage_first_block(cfg, s, tiles);
    if (tensor == GPT2_WTE) return 0;
    if (tensor == GPT2_WPE) return tiles;
    if (gpt2_is_of_blocks(tensor)) return first;
    return first + gpt2_stage_layers(s) + (tensor == GPT2_LMHEADW);
}

int gpt2_stage_table(const gpt2_config *cfg, const gpt2_stage *s, zero_tensor_desc *table, int n) {
    const int tiles = table[GPT2_WPE].unit; /* units of wte in a whole model */
    int kept = 0;
    if (gpt2_stage_is_whole(s)) return n;
    for (int row = 0; row < n; row++) {
        const int i = gpt2_tensor_at(cfg, row);
        zero_tensor_desc d = table[row];
        if (!gpt2_is_of_blocks(i) && !is_here(cfg, s, i)) continue;
        d.unit = unit_here(cfg, s, tiles, i);
        if (gpt2_is_of_blocks(i)) d.layers = having(cfg, i, gpt2_stage_layers(s));
        if (i == GPT2_WTE) d.uses = 1;
        if (i == GPT2_WTE) d.flags &= ~ZERO_AGAIN;
        if (i == GPT2_WTE && !cfg->untied)
            d.flags |= ZERO_LATE | (gpt2_stage_is_first(s) ? 0 : ZERO_COPY);
        table[kept++] = d;
    }
    return kept;
}

int gpt2_world_units(const gpt2_config *cfg, int tiles) {
    const int rows = units_of_rows(tiles);
    return rows + (tiles > 0) + cfg->layers + 1 + (cfg->untied ? rows : 0);
}

int gpt2_stage_units(const gpt2_config *cfg, const gpt2_stage *s, int tiles) {
    return gpt2_stage_first_block(cfg, s, tiles)
           + (gpt2_stage_is_whole(s) ? cfg->layers : gpt2_stage_layers(s))
           + (gpt2_stage_is_last(s) ? 1 + (cfg->untied ? units_of_rows(tiles) : 0) : 0);
}

void gpt2_stage_world(const gpt2_config *cfg, const gpt2_stage *s, int tiles, int *out) {
    const int units = gpt2_stage_units(cfg, s, tiles), whole = gpt2_stage_is_whole(s);
    const int before = gpt2_stage_first_block(cfg, NULL, tiles); /* units before the blocks */
    int n = 0;
    while (n < (whole ? units : gpt2_stage_first_block(cfg, s, tiles))) out[n] = n, n++;
    for (int c = 0; c < (whole ? 0 : s->chunks); c++)
        for (int l = s->first[chunk_of(s, c)]; l < s->first[chunk_of(s, c) + 1]; l++)
            out[n++] = before + l;
    for (int i = 0; n < units; i++) out[n++] = before + cfg->layers + i;
}

/* ---- elements ------------------------------------------------------------------------------ */

/* Returns the chunk of the model that has this layer of a tensor of blocks. */
static int chunk_with(const gpt2_config *cfg, const gpt2_stage *s, int tensor, int layer) {
    int k = 0;
    while (having(cfg, tensor, s->first[k + 1]) <= layer) k++;
    return k;
}

gpt2_run_of gpt2_stage_run(const gpt2_config *cfg, const gpt2_stage *s, int tensor, size_t numel,
                           size_t first, size_t n) {
    gpt2_run_of r = {n, 0, 1, first};
    if (gpt2_stage_is_whole(s)) return r;
    if (!gpt2_is_of_blocks(tensor)) {
        r.here = is_here(cfg, s, tensor);
        r.owner = tensor == GPT2_WTE || tensor == GPT2_WPE ? 0 : s->stages - 1;
        return r;
    }
    const int k = chunk_with(cfg, s, tensor, (int)(first / numel)), c = k / s->stages;
    const size_t begin = (size_t)having(cfg, tensor, s->first[k]) * numel;
    const size_t end = (size_t)having(cfg, tensor, s->first[k + 1]) * numel;
    r.n = end - first < n ? end - first : n;
    r.owner = k % s->stages;
    r.here = r.owner == s->stage;
    if (!r.here) r.first = 0;
    if (r.here)
        r.first = (size_t)having(cfg, tensor, gpt2_stage_first(s, c)) * numel + first - begin;
    return r;
}

gpt2_run_of gpt2_stage_place(const gpt2_config *cfg, const gpt2_stage *s, int tensor, size_t numel,
                             size_t at) {
    gpt2_run_of r = {SIZE_MAX - at, 0, 1, at};
    int c = 0;
    if (gpt2_stage_is_whole(s)) return r;
    r.owner =
        gpt2_is_of_blocks(tensor) ? s->stage : gpt2_stage_run(cfg, s, tensor, numel, 0, 1).owner;
    if (!gpt2_is_of_blocks(tensor)) return r;
    const int layer = (int)(at / numel);
    while (having(cfg, tensor, gpt2_stage_first(s, c + 1)) <= layer) c++;
    const int end = having(cfg, tensor, gpt2_stage_first(s, c + 1));
    const int first = having(cfg, tensor, s->first[chunk_of(s, c)]) + layer
                      - having(cfg, tensor, gpt2_stage_first(s, c));
    r.n = (size_t)end * numel - at;
    r.first = (size_t)first * numel + at % numel;
    return r;
}

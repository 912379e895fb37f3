/* frozen.c - see frozen.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "frozen.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lora.h"
#include "stages.h"

enum { NAME = 64, PATTERN = 256 };

static zero_result refuse(gpt2_error *err, const char *flag, const char *pattern, const char *why) {
    if (err)
        (void)snprintf(err->sentence, sizeof err->sentence, "%s %.60s: %.400s", flag, pattern, why);
    return ZERO_ERR_ARGUMENT;
}

/* A pattern that matches nothing. */
static zero_result refuse_pattern(const gpt2_config *cfg, gpt2_error *err, const char *flag,
                                  const char *pattern) {
    char names[384];
    size_t n = 0;
    GPT2_EACH_TENSOR(cfg, row, t)
    if (n < sizeof names)
        n += (size_t)snprintf(names + n, sizeof names - n, "%s ", gpt2_tensor_name(t));
    if (n < sizeof names)
        (void)snprintf(names + n, sizeof names - n, "and h.0.%s to h.%d.%s",
                       gpt2_tensor_name(GPT2_LN1W), cfg->layers - 1,
                       gpt2_tensor_name(GPT2_FCPROJB));
    char why[448];
    (void)snprintf(why, sizeof why, "no tensor has such a name; the names are %s", names);
    return refuse(err, flag, pattern, why);
}

/* Marks the layers that a pattern matches. Returns their number. */
static int mark(const gpt2_config *cfg, const char *pattern, char *const *layer) {
    int n = 0;
    GPT2_EACH_TENSOR(cfg, row, t)
    for (int l = 0; l < gpt2_tensor_layers(cfg, t); l++) {
        char name[NAME];
        (void)snprintf(name, sizeof name, "h.%d.%s", l, gpt2_tensor_name(t));
        const int matches = fnmatch(pattern, gpt2_tensor_name(t), 0) == 0
                            || (gpt2_is_of_blocks(t) && fnmatch(pattern, name, 0) == 0);
        if (matches) layer[t][l] = 1;
        n += matches;
    }
    return n;
}

/* Marks what a list of patterns matches. */
static zero_result mark_all(const gpt2_config *cfg, const char *flag, const char *patterns,
                            char *const *layer, gpt2_error *err) {
    for (const char *at = patterns; *at;) {
        char pattern[PATTERN];
        const size_t n = strcspn(at, ",");
        if (n >= sizeof pattern)
            return refuse(err, flag, at, "a pattern has at most 255 letters; use * in it");
        if (n == 0) return refuse(err, flag, patterns, "a pattern is empty; leave a comma out");
        memcpy(pattern, at, n);
        pattern[n] = 0;
        if (!mark(cfg, pattern, layer)) return refuse_pattern(cfg, err, flag, pattern);
        at += n + (at[n] == ',');
    }
    return ZERO_OK;
}

static gpt2_frozen *make(const gpt2_config *cfg, const gpt2_lora *lora) {
    const size_t layers = (size_t)cfg->layers;
    gpt2_frozen *f = (gpt2_frozen *)calloc(1, sizeof *f + GPT2_MOST_TENSORS * layers);
    for (int t = 0; t < GPT2_MOST_TENSORS && f; t++)
        f->layer[t] = (char *)(f + 1) + (size_t)t * layers;
    if (f && lora) f->lora = *lora;
    return f;
}

/* Finds the lowest block with a trained tensor. Returns the number of trained layers. */
static int find_lowest(const gpt2_config *cfg, gpt2_frozen *f) {
    int trained = 0;
    f->lowest = cfg->layers;
    GPT2_EACH_TENSOR(cfg, row, t)
    for (int l = 0; l < gpt2_tensor_layers(cfg, t); l++) {
        const int low = t == GPT2_WTE || t == GPT2_WPE ? -1
                        : gpt2_is_of_blocks(t)         ? l
                                                       : cfg->layers;
        trained += !f->layer[t][l];
        f->any |= f->layer[t][l];
        if (!f->layer[t][l] && low < f->lowest) f->lowest = low;
    }
    return trained;
}

/* Marks the frozen layers: those that do not match `train`, and those that match `freeze`. */
static zero_result select_frozen(const gpt2_config *cfg, const char *train, const char *freeze,
                                 gpt2_frozen *f, gpt2_error *err) {
    const int adapts = f->lora.rank > 0;
    if (train[0]) ZERO_TRY(mark_all(cfg, "--train", train, f->layer, err));
    GPT2_EACH_TENSOR(cfg, row, t)
    for (int l = 0; l < gpt2_tensor_layers(cfg, t) && (train[0] || adapts); l++)
        f->layer[t][l] = !f->layer[t][l] && t < GPT2_LORA;
    ZERO_TRY(mark_all(cfg, "--freeze", freeze, f->layer, err));
    return find_lowest(cfg, f) ? ZERO_OK
                               : refuse(err, "--freeze", freeze,
                                        "no tensor is left to train; freeze fewer tensors");
}

zero_result gpt2_adapt(const gpt2_config *cfg, const gpt2_lora *lora, const char *train,
                       const char *freeze, gpt2_frozen **frozen, gpt2_error *err) {
    *frozen = NULL;
    if (!lora && !train[0] && !freeze[0]) return ZERO_OK;
    if (lora) ZERO_TRY(gpt2_lora_check(cfg, lora, err));
    char rank[12];
    (void)snprintf(rank, sizeof rank, "%d", lora ? lora->rank : 0);
    if (cfg->moe.experts)
        return refuse(err,
                      lora       ? "--lora"
                      : train[0] ? "--train"
                                 : "--freeze",
                      lora       ? rank
                      : train[0] ? train
                                 : freeze,
                      "a model with experts (-en) trains all tensors; leave the flag out");
    gpt2_frozen *f = make(cfg, lora);
    if (!f && err)
        (void)snprintf(err->sentence, sizeof err->sentence,
                       "--train, --freeze: no memory for patterns");
    if (!f) return ZERO_ERR_MEMORY;
    gpt2_config with = *cfg; /* adapters have names, too */
    with.frozen = f;
    const zero_result r = select_frozen(&with, train, freeze, f, err);
    if (r || (!f->any && !lora))
        gpt2_frozen_free(f);
    else
        *frozen = f;
    return r;
}

zero_result gpt2_freeze(const gpt2_config *cfg, const char *train, const char *freeze,
                        gpt2_frozen **frozen, gpt2_error *err) {
    return gpt2_adapt(cfg, NULL, train, freeze, frozen, err);
}

int gpt2_is_frozen(const gpt2_config *cfg, int tensor, int layer) {
    return cfg->frozen && cfg->frozen->layer[tensor][layer];
}

int gpt2_is_all_frozen(const gpt2_config *cfg, const char *name) {
    GPT2_EACH_TENSOR(cfg, row, t) {
        int l = 0;
        if (strcmp(gpt2_tensor_name(t), name) != 0) continue;
        while (l < gpt2_tensor_layers(cfg, t) && gpt2_is_frozen(cfg, t, l)) l++;
        return l == gpt2_tensor_layers(cfg, t);
    }
    return 0;
}

void gpt2_frozen_free(const gpt2_frozen *frozen) { free((void *)(uintptr_t)frozen); }

void gpt2_frozen_describe(const gpt2_config *cfg, const gpt2_stage *stage, int tensor,
                          zero_tensor_desc *d, char *layers) {
    const char *whole = cfg->frozen ? cfg->frozen->layer[tensor] : NULL;
    int n = 0;
    for (int l = 0; l < d->layers && whole; l++) {
        const int block = gpt2_stage_is_whole(stage) ? l : gpt2_stage_block(stage, l);
        layers[l] =
            whole[gpt2_is_of_blocks(tensor) ? block : 0]; /* a tile is not a layer of the model */
        n += layers[l];
    }
    /* A list keeps the kinds of state that the tensor has on the stages that train some layers. */
    const int all = whole && gpt2_is_all_frozen(cfg, gpt2_tensor_name(tensor));
    if (all) d->flags |= ZERO_FROZEN;
    if (n && !all) d->frozen = layers;
}

/* Appends the calls of units first, first + step, ... to the order. */
static int append(zero_pass_call *calls, int n, zero_pass_call_kind kind, int first, int count,
                  int step) {
    for (int i = 0; i < count; i++) {
        const zero_pass_call call = {kind, first + i * step};
        calls[n++] = call;
    }
    return n;
}

/* Announces the order of a pass. Its backward ends at block `lowest`, or, for -1, at the
   embeddings. A lookup's backward reads no parameters; tied tiles are the classifier's, too. */
static zero_result announce(zero_ctx *z, const gpt2_config *cfg, int tiles, int lowest) {
    const int L = cfg->layers, block = gpt2_stage_first_block(cfg, NULL, tiles), norm = block + L;
    const int rows = tiles ? tiles : 1, class_unit = cfg->untied ? norm + 1 : 0;
    const int reached = lowest < 0 ? 0 : lowest;
    const size_t most = 2 * (size_t)(norm + 1) + 4 * (size_t)rows;
    zero_pass_call *calls = (zero_pass_call *)calloc(most, sizeof *calls);
    if (!calls) return ZERO_ERR_MEMORY;
    int n = append(calls, 0, ZERO_CALL_FORWARD, 0, norm + 1, 1);
    n = append(calls, n, ZERO_CALL_FORWARD, class_unit, rows, 1);
    if (tiles && cfg->untied)
        n = append(calls, n, ZERO_CALL_BACKWARD, class_unit + rows - 1, rows, -1);
    n = append(calls, n, ZERO_CALL_BACKWARD, norm, 1 + L - reached, -1);
    if (tiles && !cfg->untied && lowest < 0)
        n = append(calls, n, ZERO_CALL_BACKWARD, rows - 1, rows, -1);
    const zero_result result = zero_pass_order(z, ZERO_TRAIN, 0, calls, n);
    free(calls);
    return result;
}

zero_result gpt2_frozen_order(zero_ctx *z, const gpt2_config *cfg, int tiles) {
    if (!cfg->frozen || cfg->frozen->lowest < 0) return ZERO_OK;
    return announce(z, cfg, tiles, cfg->frozen->lowest);
}

zero_result gpt2_layers_order(zero_ctx *z, const gpt2_config *cfg, int tiles) {
    return announce(z, cfg, tiles, cfg->frozen ? cfg->frozen->lowest : -1);
}

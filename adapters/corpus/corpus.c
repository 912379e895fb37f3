/* corpus.c - see corpus.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "corpus.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "../compare/hashes.h"
#include "../report/progress.h"
#include "../system/regular_file.h"

#define require(c, ...) launch_require((c)->l, __VA_ARGS__)

static void end_job_if_failed(const corpus *c, data_result result, const char *error) {
    if (result != DATA_OK) launch_fail(c->l, "%s", error);
}

/* ---- files --------------------------------------------------------------------------------- */

static int is_character_model(const train_options *o) { return strncmp(o->model, "char:", 5) == 0; }

/* Opens a token file on every rank. Without a path it opens the one of tiny Shakespeare. */
static void open_tokens(const corpus *c, const char *flag, const char *pattern, const char *split,
                        const gpt2_config *model, int seq_len, token_file *file) {
    char path[1024], error[512];
    int given = pattern[0] != 0;
    const int count = given ? data_file_find(pattern, path, sizeof path) : 1;
    require(c, count == 1, "%s %s: expected one file, found %d; give one", flag, pattern, count);
    if (!given)
        snprintf(path, sizeof path, "build/data/tiny_%s_%s.bin",
                 is_character_model(c->opt) ? "char" : "gpt2", split);
    progress_file(c->out, "reading", path);
    data_result result =
        token_file_open(file, path, (uint32_t)model->vocab_size, error, sizeof error);
    require(c, result == DATA_OK, "%s%s", error,
            result == DATA_SYSTEM && !given
                ? "; start in the repository's folder, after `make data`, or give -i and -j"
                : "");
    require(c, file->count > (size_t)seq_len,
            "%s: a sequence of -t %d tokens needs %d tokens, but the file has %zu; lower -t", path,
            seq_len, seq_len + 1, file->count);
}

/* Opens the tokenizer that a flag names, or the one of the default data. If a flag names other
   data, the default tokenizer may be missing. Then samples are printed as numbers, as in llm.c. */
static void open_tokenizer(corpus *c, const gpt2_config *model) {
    char path[1024], error[512];
    const train_options *o = c->opt;
    int given = o->tokenizer_path[0] != 0;
    if ((o->sample_tokens == 0 && !given) || train_compares(o)) return;
    if (given)
        snprintf(path, sizeof path, "%s", o->tokenizer_path);
    else
        snprintf(path, sizeof path, "build/data/tiny_%s_tokenizer.bin",
                 is_character_model(o) ? "char" : "gpt2");
    data_result result = tokenizer_open(&c->words, path, error, sizeof error);
    require(c, result == DATA_OK || (!given && o->train_path[0]), "%s%s", error,
            given ? "" : "; run make data");
    if (result != DATA_OK) return;
    c->has_words = c->words.count <= (uint32_t)model->vocab_size;
    require(c, c->has_words || !given,
            "-tf: %s has %u tokens, but the model %d; give the tokenizer of the data", path,
            (unsigned)c->words.count, model->vocab_size);
}

static void open_examples(corpus *c, const gpt2_config *model, const batch_shape *batch,
                          const layout *ranks) {
    char error[512];
    hellaswag *h = &c->examples;
    h->rank = ranks->dp_rank;
    h->nranks = ranks->dp;
    h->rows = batch->rows;
    h->seq_len = batch->seq_len;
    if (!c->opt->evaluate) return;
    const data_result result =
        hellaswag_open(h, c->opt->eval_path, (uint32_t)model->vocab_size, error, sizeof error);
    require(c, result == DATA_OK, "-hf: %s", error);
    corpus_require_same(c->l, "-hf", c->opt->eval_path);
}

static void open_windows(corpus *c, const batch_shape *batch) {
    const train_options *o = c->opt;
    windows *w = &c->train_windows;
    w->file = &c->train;
    w->order = o->order >= 0 ? o->order : o->train_path[0] ? WINDOWS_SHUFFLED : WINDOWS_RANDOM;
    w->seq_len = batch->seq_len;
    w->step_windows = batch->windows;
    w->seed = (uint64_t)o->seed;
    w->draw = gpt2_draw;
    const int ok = windows_open(w);
    require(c, w->epoch_steps > 0 || (w->order == WINDOWS_RANDOM && o->steps >= 0),
            "-i: a step needs %lld sequences of -t %d tokens, but the training data has %lld; "
            "lower -d, -b or -t",
            (long long)w->step_windows, w->seq_len, (long long)w->count);
    require(c, ok, "-sh: rank %d cannot shuffle %lld sequences of the training data; use -sh 0",
            c->l->rank, (long long)w->count);
    c->val_windows.file = &c->val;
    c->val_windows.seq_len = w->seq_len;
    c->val_windows.step_windows = 1;
    require(c, windows_open(&c->val_windows), "rank %d: out of memory for a sequence", c->l->rank);
}

/* ---- the same on all ranks ----------------------------------------------------------------- */

void corpus_require_same(launch *l, const char *flag, const char *path) {
    char text[LAUNCH_SENTENCE / 2];
    uint64_t hash = 0;
    if (!l->elsewhere) return;
    const int ok = hash_file(path, &hash);
    launch_require(l, ok, "%s: %s: rank %d cannot read it: %s", flag, path, l->rank,
                   regular_file_error(errno));
    snprintf(text, sizeof text, "%s %.400s of hash %016llx\n", flag, path,
             (unsigned long long)hash);
    launch_same(l, text);
}

static void compare_tokens(corpus *c) {
    char error[LAUNCH_SENTENCE];
    uint64_t train = 0, val = 0;
    progress_phase(c->out, "hashing the tokens", 2 * (uint64_t)(c->train.count + c->val.count));
    end_job_if_failed(c, hash_tokens(&c->train, &train, error, sizeof error), error);
    end_job_if_failed(c, hash_tokens(&c->val, &val, error, sizeof error), error);
    snprintf(c->hashes, sizeof c->hashes,
             "training-data %zu tokens of hash %016llx\n"
             "validation-data %zu tokens of hash %016llx\n",
             c->train.count, (unsigned long long)train, c->val.count, (unsigned long long)val);
    launch_same(c->l, c->hashes);
}

/* ---- life ---------------------------------------------------------------------------------- */

void corpus_open(corpus *c, launch *l, report *out, const train_options *o,
                 const gpt2_config *model, const batch_shape *batch, const layout *ranks) {
    memset(c, 0, sizeof *c);
    c->l = l;
    c->out = out;
    c->opt = o;
    if (o->overfit)
        open_tokens(c, "-j", o->val_path, "val", model, batch->seq_len, &c->train);
    else
        open_tokens(c, "-i", o->train_path, "train", model, batch->seq_len, &c->train);
    open_tokens(c, "-j", o->val_path, "val", model, batch->seq_len, &c->val);
    open_tokenizer(c, model);
    open_examples(c, model, batch, ranks);
    open_windows(c, batch);
    compare_tokens(c);
}

void corpus_close(corpus *c) {
    windows_close(&c->train_windows);
    windows_close(&c->val_windows);
    token_file_close(&c->train);
    token_file_close(&c->val);
    tokenizer_close(&c->words);
    hellaswag_close(&c->examples);
}

int corpus_steps(const corpus *c) {
    const int64_t epoch = c->train_windows.epoch_steps;
    return c->opt->steps >= 0 ? c->opt->steps : (int)(epoch < INT32_MAX ? epoch : 0);
}

const char *corpus_order(const corpus *c) {
    static const char *const words[] = {"in order", "shuffled every epoch", "at random offsets"};
    return words[c->train_windows.order];
}

/* ---- rows ---------------------------------------------------------------------------------- */

void corpus_load_step(corpus *c, int64_t step, int64_t first, int rows, int *inputs, int *targets) {
    char error[LAUNCH_SENTENCE];
    end_job_if_failed(
        c, windows_load(&c->train_windows, step, first, rows, inputs, targets, error, sizeof error),
        error);
}

void corpus_load_validation(corpus *c, int64_t first, int rows, int *inputs, int *targets) {
    char error[LAUNCH_SENTENCE];
    end_job_if_failed(
        c, windows_load(&c->val_windows, 0, first, rows, inputs, targets, error, sizeof error),
        error);
}

int corpus_load_examples(corpus *c, int *inputs, int *targets) {
    char error[LAUNCH_SENTENCE];
    int rows = 0;
    end_job_if_failed(c, hellaswag_fill(&c->examples, inputs, targets, &rows, error, sizeof error),
                      error);
    return rows;
}

uint64_t corpus_hash_step(corpus *c, int64_t step) {
    char error[LAUNCH_SENTENCE];
    uint64_t hash = 0;
    end_job_if_failed(c, windows_hash(&c->train_windows, step, &hash, error, sizeof error), error);
    return hash;
}

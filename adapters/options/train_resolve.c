/* train_resolve.c - see train_resolve.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "train_resolve.h"

#include "../checkpoint/model_files.h"
#include "../gpt2/context.h"
#include "../gpt2/experts.h"
#include "../gpt2/frozen.h"
#include "../gpt2/lora.h"
#include "../report/sentence.h"
#include "../system/regular_file.h"

#include <stdio.h>
#include <string.h>

static int train_check_elastic(const train_options *o, char *sentence, size_t bytes) {
    if (o->copies && !o->elastic)
        return sentence_fail(sentence, bytes,
                             "-pm %d: copies in memory are for elastic runs; add -pe 1", o->copies);
    if (!o->elastic) return 0;
    if (o->as_threads)
        return sentence_fail(
            sentence, bytes,
            "-pe 1: ranks that are threads (-pt 1) all end together; leave out -pt 1");
    if (o->save_every <= 0 || !o->log_dir[0])
        return sentence_fail(
            sentence, bytes,
            "-pe 1: ranks resume from checkpoints, but none are saved; add -o FOLDER -n STEPS");
    if (o->batch == 0 || o->step_tokens > 0 || o->virtual_ranks) return 0;
    return sentence_fail(sentence, bytes,
                         "-pe 1: with -b %d alone, a step on fewer ranks has fewer tokens; set the "
                         "tokens per step with -d",
                         o->batch);
}

/* Returns the first given flag of a measurement that is shown, or NULL. */
static const char *train_shows(const train_options *o, size_t first) {
    static const char *const shown[] = {"-tr", "-tb", "-tc", "-tk", "-tbd", "-tcd"};
    for (size_t i = first; i < sizeof shown / sizeof *shown; i++)
        if (train_options_given(o, shown[i])) return shown[i];
    return NULL;
}

/* A flag that another one does not support, with the reason. */
typedef struct train_refusal {
    int given;
    const char *flag, *why;
} train_refusal;

/* Writes an error if one of n flags that `flag` does not support is given; returns 1 if so. */
static int train_refuse(const train_refusal *rows, size_t n, const char *flag, char *sentence,
                        size_t bytes) {
    for (size_t i = 0; i < n; i++)
        if (rows[i].given)
            return sentence_fail(sentence, bytes,
                                 "%s: %s is not supported, because %s; leave one of them out", flag,
                                 rows[i].flag, rows[i].why);
    return 0;
}

/* Checks the flags that ranks that join and leave, by the flag `by`, do not support. */
static int train_check_fixed_ranks(const train_options *o, const char *by, char *sentence,
                                   size_t bytes) {
    const char *shown = train_shows(o, 1); /* the timeline follows a change */
    const train_refusal rows[] = {
        {train_compares(o), "a comparison", "its stages are compared on the same ranks"},
        {o->as_threads, "-pt 1", "ranks that join and leave are processes"},
        {o->tensor_parallel > 1, "-tp", "only data-parallel ranks can change"},
        {o->pipeline > 1, "-pp", "only data-parallel ranks can change"},
        {o->context_parallel > 1, "-cp", "only data-parallel ranks can change"},
        {o->experts > 0, "-en", "only data-parallel ranks can change"},
        {o->shard_ranks > 0, "-zs", "copies of shards do not move yet"},
        {o->second_ranks > 0, "-zh", "copies of shards do not move yet"},
        {o->node_size > 0, "-ns", "it divides one number of ranks"},
        {o->feedback > 0, "-qf", "the errors of feedback belong to one number of ranks"},
        {o->normuon > 0, "-mn", "its state of rows does not move yet"},
        {o->copies > 0, "-pm", "copies in memory are for one number of ranks"},
        {o->check_products > 0, "-ck", "the ranks that compute blocks again are a fixed group"},
        {o->products_path[0] != 0, "-pc", "a rank that joins does not have the measured products"},
        {train_chooses(o), "-z auto", "it chooses for one number of ranks"},
        {o->memory[0] != 0, "--memory", "fewer ranks need more memory each"},
        {o->ds_path[0] != 0, "-ds", "its values can depend on the number of ranks"},
        {o->evaluate, "-h 1", "its examples are divided among one number of ranks"},
        {o->layer_order, "-mo layers", "its buffers are for one number of micro-batches"},
        {shown != NULL, shown, "measurements are of one number of ranks"}};
    return train_refuse(rows, sizeof rows / sizeof *rows, by, sentence, bytes);
}

static int train_check_ranks_file(const train_options *o, char *sentence, size_t bytes) {
    if (!o->ranks_file[0]) return 0;
    const int file = regular_file_open(o->ranks_file, O_RDONLY);
    const int number = errno; /* the file need not exist */
    if (file >= 0) (void)close(file);
    return file < 0 && number != ENOENT
           && sentence_fail(sentence, bytes, "-pnf: %.300s: %s; name a file", o->ranks_file,
                            regular_file_error(number));
}

/* Checks the flags that ranks that join and leave do not support. */
static int train_check_changes(const train_options *o, char *sentence, size_t bytes) {
    const char *by = o->ranks_file[0] ? "-pnf" : o->address[0] ? "-pa" : "-pj";
    if (!train_changes_ranks(o)) return 0;
    if (o->join[0] && (o->ranks_file[0] || o->address[0]))
        return sentence_fail(sentence, bytes,
                             "-pj: the job that this launcher joins has -pnf and -pa; leave %s out",
                             by);
    if (train_check_fixed_ranks(o, by, sentence, bytes)) return 1;
    if (train_check_ranks_file(o, sentence, bytes)) return 1;
    if (o->batch == 0 || o->step_tokens > 0 || o->virtual_ranks) return 0;
    return sentence_fail(sentence, bytes,
                         "%s: with -b %d alone, a step on fewer ranks has fewer tokens; set the "
                         "tokens per step with -d",
                         by, o->batch);
}

static int train_check_saves(const train_options *o, char *sentence, size_t bytes) {
    if (o->save_every <= 0 && !o->resume) return 0;
    if (!o->log_dir[0])
        return sentence_fail(sentence, bytes, "%s: checkpoints need a folder; add -o FOLDER",
                             o->resume ? "-y" : "-n");
    if (!train_compares(o)) return 0;
    return sentence_fail(sentence, bytes,
                         "-n and -y: a comparison saves no checkpoints; leave them out");
}

static int train_check_auto(const train_options *o, char *sentence, size_t bytes) {
    double size;
    if (o->memory[0] && options_size(o->memory, &size))
        return sentence_fail(sentence, bytes,
                             "--memory: expected a size, for example 80G or 640M, found '%.60s'",
                             o->memory);
    if (!train_chooses(o) || !o->layouts[0]) return 0;
    return sentence_fail(sentence, bytes,
                         "-z auto: -layouts compares layouts at one stage; give the stage with -z");
}

static int train_check_experts(const train_options *o, char *sentence, size_t bytes) {
    if (o->experts || o->expert_group < 2 || o->layouts[0]) return 0;
    return sentence_fail(
        sentence, bytes,
        "-eg %d: the model has no experts to share; add -en, the number of experts per layer",
        o->expert_group);
}

/* Checks for flags that a pipeline does not support. */
static int train_check_pipeline(const train_options *o, char *sentence, size_t bytes) {
    if (o->pipeline < 2) return 0;
    if (o->grads == ZERO_GRAD_AS_TYPE && o->type != ZERO_F32)
        return sentence_fail(sentence, bytes,
                             "-zg type: a pipeline (-pp %d) accumulates gradients in f32, because "
                             "several micro-steps are in progress at once; use -zg f32",
                             o->pipeline);
    if (o->profile_step > 0)
        return sentence_fail(sentence, bytes,
                             "-tk %d: in a pipeline (-pp %d) the layers are on several ranks; use "
                             "-tr, a timeline of all ranks",
                             o->profile_step, o->pipeline);
    return 0;
}

/* Checks -mog. */
static int train_check_group(const train_options *o, const gpt2_config *model, char *sentence,
                             size_t bytes) {
    const int layers = model ? model->layers : o->layer_group;
    if (o->layer_group < 2) return 0;
    if (!o->layer_order)
        return sentence_fail(sentence, bytes,
                             "-mog %d: micro-steps pass groups of layers only with -mo "
                             "layers; add it, or leave out -mog",
                             o->layer_group);
    if (o->recompute < GPT2_RECOMPUTE_BLOCK)
        return sentence_fail(sentence, bytes,
                             "-mog %d: only the input of the first of %d layers is kept, so the "
                             "others are computed again (found -r %d); use -r 3 or -r 4",
                             o->layer_group, o->layer_group, o->recompute);
    if (o->layer_group > layers)
        return sentence_fail(sentence, bytes, "-mog %d: the model has %d layers; use at most %d",
                             o->layer_group, layers, layers);
    if (o->experts || (model && model->moe.experts))
        return sentence_fail(sentence, bytes,
                             "-mog %d: the experts of a layer (-en) are in memory together, those "
                             "of several layers are not supported; leave out -mog",
                             o->layer_group);
    if (!model || !model->frozen || model->frozen->lowest <= 0) return 0;
    return sentence_fail(sentence, bytes,
                         "-mog %d: the lowest %d layers are frozen, and backward does not reach "
                         "them; leave out -mog",
                         o->layer_group, model->frozen->lowest);
}

int train_check_order(const train_options *o, const gpt2_config *model, int pp, char *sentence,
                      size_t bytes) {
    if (train_check_group(o, model, sentence, bytes)) return 1;
    if (!o->layer_order) return 0;
    if (pp > 1)
        return sentence_fail(sentence, bytes,
                             "-mo layers: the schedule of a pipeline (-pp %d) orders the "
                             "micro-batches; use -mo passes, or -pp 1",
                             pp);
    if (o->accumulation == ZERO_ACCUMULATE_SHARDED)
        return sentence_fail(
            sentence, bytes,
            "-mo layers: the gradients of all micro-batches add up before the only reduction, so "
            "shards cannot accumulate them (found -za sharded); use -za auto, or -mo passes");
    if (o->grads != ZERO_GRAD_AS_TYPE || o->type == ZERO_F32) return 0;
    return sentence_fail(sentence, bytes,
                         "-mo layers: the gradients of all micro-batches add up in f32 (found -zg "
                         "type); use -zg f32, or -mo passes");
}

/* Checks for flags that -vr does not support. */
static int train_check_virtual(const train_options *o, char *sentence, size_t bytes) {
    const char *flag = o->tensor_parallel > 1    ? "-tp"
                       : o->context_parallel > 1 ? "-cp"
                       : o->pipeline > 1         ? "-pp"
                       : o->experts              ? "-en"
                       : o->layouts[0]           ? "-layouts"
                       : o->layer_order          ? "-mo layers"
                       : train_chooses(o)        ? "-z auto"
                                                 : NULL;
    if (o->virtual_ranks && o->threads == 0)
        return sentence_fail(
            sentence, bytes,
            "-vr %d: the bits of a product can depend on the number of threads, "
            "which by default depends on the ranks; give -nt, the threads per rank",
            o->virtual_ranks);
    if (!o->virtual_ranks || !flag) return 0;
    return sentence_fail(sentence, bytes,
                         "-vr %d: %s is not supported, because only the sum over data-parallel "
                         "ranks has a fixed order; leave one of them out",
                         o->virtual_ranks, flag);
}

/* Checks for flags that -ck does not support. */
static int train_check_products(const train_options *o, char *sentence, size_t bytes) {
    char flag[32];
    const train_refusal rows[] = {
        {o->pipeline > 1, "-pp", "in a pipeline the inputs of blocks are messages between stages"},
        {o->experts > 0, "-en", "the MLP of a block with experts is on several ranks"},
        {o->any_order, "-ao 1", "sums in any order have other bits each time"},
        {train_compares(o), "a comparison", "it measures the time of a step without checks"}};
    if (!o->check_products) return 0;
    (void)snprintf(flag, sizeof flag, "-ck %d", o->check_products);
    return train_refuse(rows, sizeof rows / sizeof *rows, flag, sentence, bytes);
}

/* Checks for flags that -zi does not support. */
static int train_check_integrity(const train_options *o, char *sentence, size_t bytes) {
    const char *why = o->tensor_parallel > 1 || o->pipeline > 1 || o->experts
                          ? "-tp, -pp and -en have other weights on other ranks"
                      : o->weight_bits || o->frozen_weight_bits
                          ? "-qw and -qwf send other weights than their owners keep"
                      : o->delay_from ? "-zod keeps two versions of the weights"
                                      : NULL;
    if (!o->integrity || !why) return 0;
    return sentence_fail(sentence, bytes,
                         "-zi 1: %s, which it cannot compare; leave one of them out", why);
}

/* Checks masters and state, which are kept for each weight. */
static int train_check_kept(const train_options *o, char *sentence, size_t bytes) {
    char type[OPTION_WORD_BYTES];
    train_options_word(o, "-dt", type);
    if (o->master == ZERO_MASTER_SPLIT && o->type != ZERO_BF16)
        return sentence_fail(
            sentence, bytes,
            "-w split: only a bf16 weight is the upper half of an f32 (found -dt %s); "
            "use -dt bf16, or -w 1",
            type);
    if (o->master == ZERO_MASTER_NONE && o->type != ZERO_BF16)
        return sentence_fail(sentence, bytes,
                             "-w 0: only bf16 weights can be without master weights (found -dt "
                             "%s); use -dt bf16 or -w 1",
                             type);
    if (o->state_type == ZERO_STATE_8BIT && o->optimizer == ZERO_ADAGRAD)
        return sentence_fail(
            sentence, bytes,
            "-os 8bit: the state of -op adagrad only grows, and small additions to it would be "
            "lost; use -os bf16");
    if (o->embedding_state && o->state_type == ZERO_STATE_F32)
        return sentence_fail(sentence, bytes,
                             "-oe f32: all state is f32 (found -os f32); give -os bf16 or -os "
                             "8bit, or leave out -oe");
    return 0;
}

int train_check(const train_options *o, char *sentence, size_t bytes) {
    if (train_check_kept(o, sentence, bytes)) return 1;
    if (o->type == ZERO_F16 && o->scale <= 0 && o->first_scale < o->least_scale)
        return sentence_fail(sentence, bytes,
                             "-li %g: the first loss scale is below the smallest one (-lm %g); "
                             "raise -li or lower -lm",
                             o->first_scale, o->least_scale);
    if (o->eps <= 0 && (o->optimizer <= ZERO_ADAM || o->optimizer >= ZERO_ADAGRAD))
        return sentence_fail(sentence, bytes,
                             "-ep 0: for a gradient of zero the update would be 0/0; use 1e-8");
    if (o->trust_least > 0 && o->trust_most > 0 && o->trust_least > o->trust_most)
        return sentence_fail(sentence, bytes,
                             "-tl %g: the smallest trust ratio is above the largest one (-tm %g); "
                             "lower -tl or raise -tm",
                             o->trust_least, o->trust_most);
    if (o->tile_rows > 0 && o->tile_rows < 32)
        return sentence_fail(
            sentence, bytes,
            "-zl %d: a tile has at least 32 rows; use 32 or more, or 0 for no tiles", o->tile_rows);
    if (o->mlp_rows > 0 && o->recompute < GPT2_RECOMPUTE_BLOCK)
        return sentence_fail(sentence, bytes,
                             "-mt %d: an MLP in tiles keeps no values for backward, and computes "
                             "them again; use -r 3 or -r 4 (found -r %d)",
                             o->mlp_rows, o->recompute);
    if (o->sequence_parallel && o->tensor_parallel < 2 && !o->layouts[0])
        return sentence_fail(
            sentence, bytes,
            "-sp 1: sequence parallelism needs tensor parallelism (found -tp 1); add -tp N");
    if (train_options_given(o, "-ca") && o->context_parallel < 2 && !o->layouts[0])
        return sentence_fail(sentence, bytes,
                             "-ca: context-parallel ranks divide attention (found -cp 1); add -cp "
                             "N, or leave out -ca");
    if (o->layouts[0]
        && (o->stage.n > 1 || o->tensor_parallel > 1 || o->pipeline > 1 || o->expert_group > 1
            || o->context_parallel > 1 || o->ds_path[0]))
        return sentence_fail(sentence, bytes,
                             "-layouts: layouts are compared at one stage; give one stage with -z, "
                             "and leave out -tp, -pp, -cp, -eg and -ds");
    if (layout_words(o->layouts) > LAYOUT_MOST)
        return sentence_fail(sentence, bytes,
                             "-layouts: too many layouts (%d, at most %d); leave some out",
                             layout_words(o->layouts), LAYOUT_MOST);
    if (train_compares(o) && (o->skip_loss != 0 || o->skip_norm != 0))
        return sentence_fail(sentence, bytes,
                             "-sl and -sg: a comparison skips no steps; leave them out");
    if (train_compares(o) && train_shows(o, 0))
        return sentence_fail(sentence, bytes,
                             "-tr, -tb, -tc, -tk, -tbd and -tcd: a comparison prints its own table "
                             "only; leave them out");
    if (train_compares(o) && o->evaluate)
        return sentence_fail(sentence, bytes, "-h 1: a comparison does not evaluate; leave it out");
    return train_check_order(o, NULL, o->pipeline, sentence, bytes)
           || train_check_virtual(o, sentence, bytes) || train_check_integrity(o, sentence, bytes)
           || train_check_products(o, sentence, bytes) || train_check_pipeline(o, sentence, bytes)
           || train_check_experts(o, sentence, bytes) || train_check_elastic(o, sentence, bytes)
           || train_check_changes(o, sentence, bytes) || train_check_saves(o, sentence, bytes)
           || train_check_auto(o, sentence, bytes);
}

int train_mixture(const train_options *o, gpt2_config *model, char *sentence, size_t bytes) {
    if (!o->experts) return 0;
    if (model == NULL || model_is_file(o->model))
        return sentence_fail(sentence, bytes,
                             "-en %d: %s has the weights of a model without experts; start a new "
                             "model, for example with -e d12",
                             o->experts, o->model);
    model->moe.experts = o->experts;
    model->moe.chosen = o->chosen;
    model->moe.capacity = (float)o->capacity;
    model->moe.aux = (float)o->aux;
    return 0;
}

/* Returns why the rows that a batch touches cannot be sent alone; NULL: they can. */
static const char *train_sparse_rows_conflict(const train_options *o) {
    return !o->untied         ? "the tied classifier writes every row of wte; add -ut 1"
           : o->gradient_bits ? "a gradient is quantized (-qg) or sent by rows"
           : o->layer_order   ? "-mo layers reduces the embeddings once for all micro-batches"
           : o->virtual_ranks ? "-vr adds whole gradients in a fixed order"
           : train_chooses(o) ? "-z auto chooses among settings that exclude it; give a stage"
           : o->tensor_parallel > 1 || o->pipeline > 1 || o->layouts[0]
               ? "the embeddings are divided by -tp, -pp or -layouts"
               : NULL;
}

int train_sparse_rows(const train_options *o, int on_gpus, gpt2_config *model, char *sentence,
                      size_t bytes) {
    const char *why = train_sparse_rows_conflict(o);
    const int changes_bits = on_gpus; /* NCCL adds in another order; auto changes no bits */
    model->sparse_rows = (o->sparse_rows == 1 || (o->sparse_rows && !changes_bits)) && !why;
    if (o->sparse_rows != 1 || !why) return 0;
    return sentence_fail(sentence, bytes, "-sr 1: %s; otherwise use -sr 0", why);
}

void train_take(train_options *o, const ds_config *file, gpt2_config *model) {
    train_options_take(o, file);
    if (model->moe.experts) model->moe.chosen = o->chosen;
}

int train_frozen(const train_options *o, gpt2_config *model, char *sentence, size_t bytes) {
    gpt2_error error;
    gpt2_frozen *frozen;
    const char *alone = o->lora                          ? NULL
                        : o->lora_alpha > 0              ? "--lora-alpha"
                        : strcmp(o->lora_on, "qkv") != 0 ? "--lora-on"
                                                         : NULL;
    if (alone)
        return sentence_fail(sentence, bytes, "%s: there are no adapters; give --lora RANK", alone);
    gpt2_lora lora = {o->lora, (float)(o->lora_alpha > 0 ? o->lora_alpha : o->lora), 0};
    if (o->lora && gpt2_lora_parse(o->lora_on, &lora.on))
        return sentence_fail(sentence, bytes,
                             "--lora-on %s: expected one or several of qkv, proj, fc and fcproj, "
                             "with commas between them",
                             o->lora_on);
    if (gpt2_adapt(model, o->lora ? &lora : NULL, o->train, o->freeze, &frozen, &error))
        return sentence_fail(sentence, bytes, "%s", error.sentence);
    if (!o->save_frozen && (frozen == NULL || !frozen->any)) {
        gpt2_frozen_free(frozen);
        return sentence_fail(sentence, bytes,
                             "-nz 0: no tensor is frozen; give --lora, --train or --freeze, or "
                             "leave out -nz");
    }
    model->frozen = frozen;
    model->f32_embedding_state = o->embedding_state;
    model->muon_heads = o->muon_heads && o->optimizer == ZERO_MUON;
    return 0;
}

int train_model(const train_options *o, gpt2_config *model, char *sentence, size_t bytes) {
    gpt2_error error;
    model_info info;
    memset(&info, 0, sizeof info);
    const zero_result result = model_is_file(o->model)
                                   ? model_info_read(o->model, &info, &error)
                                   : gpt2_config_parse(o->model, 0, o->seq_len, &info.cfg, &error);
    if (result) return sentence_fail(sentence, bytes, "-e: %s", error.sentence);
    if (info.cfg.heads <= 0)
        return sentence_fail(
            sentence, bytes,
            "-e: %s does not contain its number of heads; put its config.json next to it",
            o->model);
    if (o->seq_len > info.cfg.max_seq_len)
        return sentence_fail(sentence, bytes,
                             "-t %d: %s has positions for %d tokens; use at most that", o->seq_len,
                             o->model, info.cfg.max_seq_len);
    *model = info.cfg;
    model->untied = o->untied;
    return train_mixture(o, model, sentence, bytes) || train_frozen(o, model, sentence, bytes);
}

int train_write(const char *path, const char *text) {
    if (!path[0]) return 1;
    FILE *file = regular_file_stream(path, "w");
    const int ok = file != NULL && fprintf(file, "%s\n", text) > 0;
    return file != NULL && fclose(file) == 0 && ok;
}

int train_compares(const train_options *o) { return o->stage.n > 1 || o->layouts[0]; }

int train_chooses(const train_options *o) { return o->stage.n == 0; }

double train_memory(const train_options *o) {
    double size = 0;
    return o->memory[0] && !options_size(o->memory, &size) ? size : 0;
}

/* Returns the largest number, up to `rows`, that divides the windows of a rank. */
static int64_t train_rows(int64_t windows, int64_t rows) {
    if (rows > windows) rows = windows;
    while (rows > 1 && windows % rows) rows--;
    return rows;
}

/* Returns the largest prime factor of v. */
static int train_largest_factor(int v) {
    for (int q = 2; q * q <= v; q++)
        while (v % q == 0 && v > q) v /= q;
    return v;
}

/* Returns 1 if `ranks` is a product of the first prime factors of v, the largest first: each rank
   then adds a subtree of the sum over v virtual ranks. `list` becomes these products. */
static int train_cuts_tree(int v, int ranks, char *list, size_t bytes) {
    int product = 1, found = ranks == 1;
    size_t n = (size_t)snprintf(list, bytes, "1");
    while (v > 1 && n + 16 < bytes) {
        const int p = train_largest_factor(v);
        v /= p;
        product *= p;
        found |= product == ranks;
        n += (size_t)snprintf(list + n, bytes - n, "%s%d", v > 1 ? ", " : " or ", product);
    }
    return found;
}

/* The batch of -vr: each virtual rank has one micro-step. */
static int train_virtual_batch(const train_options *o, int ranks, batch_shape *batch,
                               char *sentence, size_t bytes) {
    const int v = o->virtual_ranks;
    const int64_t given = o->step_tokens / o->seq_len;
    const int64_t windows = given > 0      ? given
                            : o->batch > 0 ? (int64_t)o->batch * v
                                           : (int64_t)TRAIN_WINDOWS;
    const int64_t rows = windows / v;
    char list[160], rows_text[64] = "";
    if (!train_cuts_tree(v, ranks, list, sizeof list))
        return sentence_fail(
            sentence, bytes,
            "-vr %d: %d data-parallel ranks cannot divide its sums among them; use "
            "%s ranks",
            v, ranks, list);
    if (o->batch > 0) (void)snprintf(rows_text, sizeof rows_text, " of -b %d each", o->batch);
    if (rows < 1 || rows > INT32_MAX / o->seq_len || rows * v != windows
        || (o->batch > 0 && rows != o->batch))
        return sentence_fail(sentence, bytes,
                             "-vr %d: a step of %lld sequences does not divide into %d micro-steps"
                             "%s; choose -b, or -d (tokens per step), so that -d is -vr times -b "
                             "times -t",
                             v, (long long)windows, v, rows_text);
    batch->rows = (int)rows;
    batch->micro_steps = v / ranks;
    batch->windows = windows;
    return 0;
}

int train_batch(const train_options *o, int ranks, batch_shape *batch, char *sentence,
                size_t bytes) {
    const int64_t T = o->seq_len;
    char rows_text[64] = "";
    if (o->batch > 0) (void)snprintf(rows_text, sizeof rows_text, " with -b %d", o->batch);
    if (o->step_tokens % T != 0)
        return sentence_fail(sentence, bytes,
                             "-d %lld: the tokens per step are not a multiple of the sequence "
                             "length (-t %lld); change one of them",
                             (long long)o->step_tokens, (long long)T);
    if (o->virtual_ranks) {
        if (train_virtual_batch(o, ranks, batch, sentence, bytes)) return 1;
        batch->seq_len = o->seq_len;
        batch->together = batch->group = 1;
        batch->tokens = batch->windows * T;
        return 0;
    }
    const int64_t windows = o->step_tokens > 0 ? o->step_tokens / T
                            : o->batch > 0     ? (int64_t)o->batch * ranks
                                               : (int64_t)TRAIN_WINDOWS;
    const int64_t most = o->batch > 0 ? o->batch : windows / ranks;
    const int64_t rows =
        o->elastic || train_changes_ranks(o) ? train_rows(windows / ranks, most) : most;
    const int64_t micro = rows > 0 ? windows / (rows * ranks) : 0;
    if (micro * rows * ranks != windows || micro <= 0 || micro > INT32_MAX)
        return sentence_fail(sentence, bytes,
                             "-b: the batch does not divide (a step of %lld sequences, -t %lld "
                             "tokens each, over %d data-parallel rank%s%s); choose -b (sequences "
                             "per rank and micro-step) or -d (tokens per step) so that it does",
                             (long long)windows, (long long)T, ranks, ranks > 1 ? "s" : "",
                             rows_text);
    if (rows > INT32_MAX / T)
        return sentence_fail(sentence, bytes,
                             "-b %lld with -t %lld: more tokens than a rank can count; use a "
                             "smaller -b",
                             (long long)rows, (long long)T);
    batch->rows = (int)rows;
    batch->seq_len = o->seq_len;
    batch->micro_steps = (int)micro;
    batch->together = o->layer_order ? (int)micro : 1;
    batch->group = batch->together > 1 ? o->layer_group : 1;
    batch->windows = windows;
    batch->tokens = windows * T;
    return 0;
}

/* Divides the ranks into pipeline stages and tensor-parallel groups. */
static int train_divide_by(const train_options *o, layout_sizes sizes, const gpt2_config *model,
                           layout *ranks, batch_shape *batch, char *sentence, size_t bytes) {
    const int cut = sizes.tp > 1 && o->sequence_parallel;
    gpt2_error error;
    if (layout_divide(ranks, ranks->ranks, ranks->rank, sizes, sentence, bytes)) return 1;
    if (o->node_size > 0 && ranks->ranks % o->node_size)
        return sentence_fail(
            sentence, bytes,
            "-ns %d: the ranks per node do not divide the %d rank%s; use a divisor", o->node_size,
            ranks->ranks, ranks->ranks > 1 ? "s" : "");
    if (o->check_products && ranks->dp == 1 && !o->elastic)
        return sentence_fail(sentence, bytes,
                             "-ck %d: no rank can compute blocks again, because there is one "
                             "data-parallel rank (%d rank%s); use two or more, or leave out -ck",
                             o->check_products, ranks->ranks, ranks->ranks > 1 ? "s" : "");
    ranks->part.sequence = cut;
    ranks->mixed = model->moe.experts > 0;
    ranks->tile_rows = o->tile_rows;
    if (experts_check(model, sizes.ep, &error))
        return sentence_fail(sentence, bytes, "-en %d -eg %d: %s", model->moe.experts, sizes.ep,
                             error.sentence);
    if (ranks->mixed && layout_near(ranks, o->shard_ranks, o->second_ranks, sentence, bytes))
        return 1;
    if (gpt2_parallel_check(model, o->seq_len, o->tile_rows, sizes.tp, cut, &error))
        return sentence_fail(sentence, bytes, "-tp %d: %s", sizes.tp, error.sentence);
    const context_shape context = {model, sizes.tp, cut, o->seq_len, sizes.cp};
    if (context_choose(&context, (context_way)o->context_way, &ranks->ring, &error))
        return sentence_fail(sentence, bytes, "-cp %d: %s", sizes.cp, error.sentence);
    if (train_check_order(o, model, sizes.pp, sentence, bytes)
        || train_batch(o, ranks->dp, batch, sentence, bytes))
        return 1;
    ranks->together = batch->together;
    return layout_stages(ranks, model, o->pipeline_chunks, batch->micro_steps, o->seq_len, sentence,
                         bytes);
}

int train_divide_as(const train_options *o, int i, const gpt2_config *model, layout *ranks,
                    batch_shape *batch, char *sentence, size_t bytes) {
    layout_sizes sizes = {1, 1, 1, o->experts_apart, 1};
    return layout_word(o->layouts, i, ranks->ranks, &sizes, sentence, bytes)
           || train_divide_by(o, sizes, model, ranks, batch, sentence, bytes);
}

int train_divide(train_options *o, const gpt2_config *model, layout *ranks, batch_shape *batch,
                 char *sentence, size_t bytes) {
    const int n = layout_words(o->layouts);
    const layout_sizes sizes = {o->pipeline, o->tensor_parallel, o->expert_group, o->experts_apart,
                                o->context_parallel};
    if (n == 0) return train_divide_by(o, sizes, model, ranks, batch, sentence, bytes);
    if (o->step_tokens == 0)
        o->step_tokens =
            (int64_t)o->batch * layout_most_data(o->layouts, ranks->ranks) * o->seq_len;
    o->batch = 0;
    memset(batch, 0, sizeof *batch);
    for (int i = 0; i < n; i++) {
        layout other = *ranks;
        batch_shape its;
        if (train_divide_as(o, i, model, &other, &its, sentence, bytes)) return 1;
        if (its.rows < batch->rows) continue;
        *ranks = other;
        *batch = its;
    }
    return 0;
}

/* Checks -zs and -zh here, because the plugin's error would not name the flags. */
static int train_check_groups(const train_options *o, int dp, char *sentence, size_t bytes) {
    const int sizes[] = {o->shard_ranks, o->second_ranks};
    for (int i = 0; i < 2; i++)
        if (sizes[i] > 0 && dp % sizes[i])
            return sentence_fail(
                sentence, bytes,
                "%s %d: it does not divide the %d data-parallel rank%s; use a divisor",
                i ? "-zh" : "-zs", sizes[i], dp, dp > 1 ? "s" : "");
    return 0;
}

int train_fit(const train_options *o, const gpt2_config *model, int ranks, char *sentence,
              size_t bytes) {
    char of_fewer[512];
    for (int n = ranks; n > 0; n--) {
        train_options its = *o;
        layout l;
        batch_shape batch;
        char *why = n == ranks ? sentence : of_fewer;
        const size_t room = n == ranks ? bytes : sizeof of_fewer;
        memset(&l, 0, sizeof l);
        l.ranks = n;
        if (!train_divide(&its, model, &l, &batch, why, room)
            && !train_check_groups(o, layout_shards(&l), why, room))
            return n;
    }
    return 0;
}

ds_auto train_autos(const train_options *o, int ranks, int channels, ds_config *said) {
    ds_auto a;
    memset(&a, 0, sizeof a);
    memset(said, 0, sizeof *said);
    train_options_store(o, said);
    a.ranks = ranks;
    a.tensor_parallel = o->tensor_parallel;
    a.pipeline = o->pipeline;
    a.context_parallel = o->context_parallel;
    const int data = ranks / (o->tensor_parallel * o->pipeline * o->context_parallel);
    a.micro_batch = said->micro_batch;
    a.train_batch = said->train_batch;
    if (a.train_batch == 0 && a.micro_batch == 0) a.train_batch = TRAIN_WINDOWS;
    if (o->step_tokens > 0 && o->batch > 0 && data > 0)
        a.accumulation = (int)(a.train_batch / a.micro_batch / data);
    a.type = said->zero.type;
    a.hyper = &said->hyper;
    a.optimizer = said->zero.optimizer;
    a.warmup_steps = o->warmup;
    a.total_steps = o->steps > 0 ? o->steps : 0;
    a.hidden = channels;
    a.none_frozen = !o->train[0] && !o->freeze[0] && !o->lora;
    a.folder = train_options_given(o, "-zfd") ? o->offload_folder : NULL;
    return a;
}

const char *train_folder(const train_options *o, const ds_config *file) {
    return file->folder[0] ? file->folder : o->offload_folder;
}

ds_config train_settings(const train_options *o, const ds_config *file, int channels) {
    ds_config all = *file;
    train_options_store(o, &all);
    all.zero.folder = train_folder(o, file);
    if (!(file->given & DS_GIVEN_PREFETCH) || train_options_given(o, "-zp")) return all;
    const int64_t units = file->prefetch_numel / (12 * (int64_t)channels * channels); /* blocks */
    all.zero.prefetch = units > ZERO_PREFETCH_MOST ? ZERO_PREFETCH_MOST
                        : units > 0                ? (int)units
                        : file->prefetch_numel > 0 ? 1 /* DeepSpeed gathers one tensor ahead, too */
                                                   : ZERO_NONE;
    return all;
}

launch_request train_request(const train_options *o, const char *program,
                             char method[OPTION_WORD_BYTES]) {
    launch_request r;
    memset(&r, 0, sizeof r);
    r.program = program;
    r.ranks = o->ranks;
    r.default_ranks = train_compares(o) ? 2 : 1;
    r.groups = o->layouts[0] ? layout_words(o->layouts) : o->stage.n > 0 ? o->stage.n : 1;
    r.groups += o->check_products > 0 && !train_compares(o); /* rechecks.h */
    r.usage_error = o->error[0] ? o->error : NULL;
    if (o->method >= 0) train_options_word(o, "-pi", method);
    r.method = o->method >= 0 ? method : NULL;
    r.rank = o->rank;
    r.per_node = o->per_node;
    r.server = o->server[0] ? o->server : NULL;
    r.folder = o->folder;
    r.as_threads = o->as_threads;
    r.stop = o->save_every > 0;
    r.elastic = o->elastic;
    r.ranks_file = o->ranks_file[0] && !o->help ? o->ranks_file : NULL;
    r.address = o->address[0] && !o->help ? o->address : NULL;
    r.join = o->join[0] && !o->help ? o->join : NULL;
    if (!o->help) return r;
    r.ranks = 0; /* or as many as mpirun started: rank 0 prints */
    r.default_ranks = 1;
    r.usage_error = NULL;
    return r;
}

/* ---- offload ------------------------------------------------------------------------------- */

/* Returns whether a rank stores its reduced gradients as a shard. Otherwise they are whole, in
 * memory. */
static int train_shards_grads(const zero_config *c) {
    return c->stage >= 2 && !(c->micro_steps > 1 && c->accumulation == ZERO_ACCUMULATE_LOCAL);
}

void train_micro_steps(const batch_shape *batch, zero_config *c) {
    c->micro_steps = batch->micro_steps / batch->together;
    if (batch->together > 1 && c->grads == ZERO_GRAD_AUTO) c->grads = ZERO_GRAD_F32;
    if (batch->group > 1) c->open_units = gpt2_open_units(batch->group);
}

void train_tiers(const train_options *o, int pp, zero_config *c) {
    if (pp > 1 && c->accumulation == ZERO_ACCUMULATE_AUTO)
        c->accumulation =
            o->gradient_tier == ZERO_FILE ? ZERO_ACCUMULATE_SHARDED : ZERO_ACCUMULATE_LOCAL;
    const int adds_up = pp > 1 || ((c->micro_steps > 1 || c->virtual_ranks) && c->type != ZERO_F32);
    if (adds_up && c->grads == ZERO_GRAD_AUTO) c->grads = ZERO_GRAD_F32;
    const int compares = o->stage.n > 1, sharded = train_shards_grads(c);
    c->gradient_tier = (zero_tier)o->gradient_tier;
    if (o->gradient_tier == TRAIN_TIER_AUTO)
        c->gradient_tier = sharded && c->optimizer_tier ? ZERO_HOST : ZERO_DEVICE;
    if (compares && !sharded) c->gradient_tier = ZERO_DEVICE;
    if (compares && c->stage < 3) c->parameter_tier = ZERO_DEVICE;
    if (c->offload_share == 0)
        c->optimizer_tier = c->gradient_tier = c->parameter_tier = ZERO_DEVICE;
}

int train_may_file(const train_options *o, const zero_config *c) {
    return o->gradient_tier == TRAIN_TIER_AUTO && c->optimizer_tier == ZERO_FILE
           && c->gradient_tier != ZERO_FILE && train_shards_grads(c);
}

/* Lists the stages of a comparison whose gradients, or parameters, have no shard: "0, 1". */
static void train_whole_at(const train_options *o, int micro_steps, int of_parameters,
                           char text[32]) {
    text[0] = 0;
    for (int i = 0; i < o->stage.n; i++) {
        zero_config c;
        const size_t used = strlen(text);
        memset(&c, 0, sizeof c);
        c.stage = o->stage.at[i];
        c.micro_steps = micro_steps;
        c.accumulation = (zero_accumulation)o->accumulation;
        if (of_parameters ? c.stage < 3 : !train_shards_grads(&c))
            (void)snprintf(text + used, 32 - used, "%s%d", used ? ", " : "", c.stage);
    }
}

int train_tiers_note(const train_options *o, int micro_steps, int host_is_device, char *sentence,
                     size_t bytes) {
    char params[32] = "", grads[32] = "";
    const char *host = "";
    if (o->stage.n < 2 || o->offload_share == 0) return 0;
    if (o->parameter_tier != ZERO_DEVICE) train_whole_at(o, micro_steps, 1, params);
    if (o->gradient_tier != ZERO_DEVICE && o->gradient_tier != TRAIN_TIER_AUTO)
        train_whole_at(o, micro_steps, 0, grads);
    if (host_is_device
        && (o->optimizer_tier == ZERO_HOST || o->gradient_tier == ZERO_HOST
            || o->parameter_tier == ZERO_HOST))
        host = "host is device: the CPU version has one memory";
    const char *whole =
        params[0] || grads[0] ? "kept on the device, because they are not sharded:" : "";
    if (!whole[0] && !host[0]) return 0;
    (void)snprintf(sentence, bytes, "offload  %s%s%s%s%s%s%s%s", whole,
                   params[0] ? " parameters at stage " : "", params,
                   params[0] && grads[0] ? " and" : "", grads[0] ? " gradients at stage " : "",
                   grads, whole[0] && host[0] ? "; " : "", host);
    return 1;
}

int train_tiers_idle(const train_options *o, int host_is_device, int *row, char *sentence,
                     size_t bytes) {
    const int grads = o->gradient_tier == TRAIN_TIER_AUTO ? ZERO_DEVICE : o->gradient_tier;
    const int file =
        o->optimizer_tier == ZERO_FILE || o->parameter_tier == ZERO_FILE || grads == ZERO_FILE;
    const int none = !o->optimizer_tier && !o->parameter_tier && !grads;
    const int updates = !host_is_device && o->optimizer_tier == ZERO_HOST;
    const struct {
        const char *flag, *why;
        int idle;
    } flags[] = {{"-zor", "-zos, -zog and -zop are device", none},
                 {"-zfd", "nothing is in a file", !file && o->recompute != GPT2_RECOMPUTE_AWAY},
                 {"-zfc", "nothing is in a file", !file},
                 {"-zou", "it is for -zos host in CUDA builds", !updates},
                 {"-zol", "it is for -zos host in CUDA builds", !updates},
                 {"-zom", "it is for -zos host in CUDA builds", !updates}};
    for (const int rows = (int)(sizeof flags / sizeof *flags); *row < rows;) {
        const int i = (*row)++;
        if (!flags[i].idle || !train_options_given(o, flags[i].flag)) continue;
        (void)snprintf(sentence, bytes, "%s changes nothing here: %s", flags[i].flag, flags[i].why);
        return 1;
    }
    return 0;
}

/* ---- schedule ------------------------------------------------------------------------------ */

/* Checks all steps of a schedule from a file, whose betas may leave their range. */
static int train_check_betas(const train_options *o, const schedule *s, int steps, char *sentence,
                             size_t bytes) {
    for (int step = 0; step < steps; step++) {
        schedule_value v;
        schedule_at(s, step, &v);
        if (!(v.beta1 >= 0 && v.beta1 < 1))
            return sentence_fail(
                sentence, bytes,
                "%s: %s gives beta1 %g in step %d; keep cycle_min_mom and cycle_max_mom in 0 to 1",
                o->ds_path, schedule_name(s->kind), v.beta1, step + 1);
    }
    return 0;
}

int train_saves(const train_options *o, checkpoint_way way[2]) {
    way[0] = o->save_aside ? CHECKPOINT_ASYNCHRONOUS : CHECKPOINT_WRITTEN;
    way[1] = CHECKPOINT_COPIED;
    return o->save_every == 0 && !o->resume ? 0 : o->copies ? 2 : 1;
}

int train_schedule(const train_options *o, const ds_config *file, int steps, schedule *out,
                   char *sentence, size_t bytes) {
    char why[256];
    if (file->has_schedule) {
        *out = file->lr_schedule;
        return train_check_betas(o, out, steps, sentence, bytes);
    }
    schedule_defaults(out, (schedule_kind)o->schedule);
    out->lr = o->lr;
    out->beta1 = o->beta1;
    out->beta2 = o->beta2;
    out->warmup_steps = o->warmup;
    out->total_steps = steps > 0 ? steps : 1;
    out->final_fraction = o->final_fraction;
    if (schedule_check(out, why, sizeof why) == 0) return 0;
    return sentence_fail(sentence, bytes, "-k %s: %s", schedule_name(out->kind), why);
}

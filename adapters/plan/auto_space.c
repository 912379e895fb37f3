/* auto_space.c - see auto_space.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "auto_space.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../gpt2/frozen.h"
#include "../report/sentence.h"
#include "auto_time.h"

enum { AUTO_PREFETCHES = 4 };

/* ---- values -------------------------------------------------------------------------------- */

static int auto_one(int *value, int only) {
    value[0] = only;
    return 1;
}

static int auto_stages(const auto_space *s, const auto_choice *c, int *value) {
    (void)s;
    (void)c;
    for (int i = 0; i < 4; i++) value[i] = i;
    return 4;
}

/* With one micro-step, both kinds of accumulation are the same. */
static int auto_accumulations(const auto_space *s, const auto_choice *c, int *value) {
    value[0] = s->r->options.accumulation;
    value[1] = ZERO_ACCUMULATE_LOCAL;
    return c->stage >= 2 && s->rows > 1 && s->r->options.pipeline < 2 ? 2 : 1;
}

/* All micro-batches pass a layer together where that moves less: in stages that shard gradients. */
static int auto_orders(const auto_space *s, const auto_choice *c, int *value) {
    const train_options *o = &s->r->options;
    const int sums = o->type == ZERO_F32 || o->grads != ZERO_GRAD_AS_TYPE;
    value[0] = 0;
    value[1] = 1;
    return s->r->model.is_gpt2 && c->stage >= 2 && s->rows > 1 && o->pipeline < 2 && sums
                   && c->accumulation != ZERO_ACCUMULATE_SHARDED
               ? 2
               : 1;
}

/* The first of several layers keeps its input, and the others are computed again. Of four layers
   this saves most of what any number can. */
static int auto_layers(const auto_space *s, const auto_choice *c, int *value) {
    const gpt2_config *model = &s->r->model.gpt2;
    if (!c->layer_order || model->moe.experts || (model->frozen && model->frozen->lowest > 0))
        return auto_one(value, s->r->options.layer_group);
    value[0] = 1;
    value[1] = model->layers < 4 ? model->layers : 4;
    return value[1] > 1 ? 2 : 1;
}

static int auto_optimizers(const auto_space *s, const auto_choice *c, int *value) {
    int n = 0;
    (void)c;
    value[n++] = ZERO_DEVICE;
    if (s->r->on_gpus) value[n++] = ZERO_HOST;
    value[n++] = ZERO_FILE;
    return n;
}

/* Gradients that are whole stay on the device, which is what -zog auto means. */
static int auto_gradients(const auto_space *s, const auto_choice *c, int *value) {
    int n = 0;
    if (c->optimizer == ZERO_DEVICE || c->stage < 2 || c->accumulation == ZERO_ACCUMULATE_LOCAL)
        return auto_one(value, s->r->options.gradient_tier);
    value[n++] = ZERO_DEVICE;
    if (s->r->on_gpus) value[n++] = ZERO_HOST;
    if (c->optimizer == ZERO_FILE) value[n++] = ZERO_FILE;
    return n;
}

static int auto_parameters(const auto_space *s, const auto_choice *c, int *value) {
    (void)s;
    value[0] = ZERO_DEVICE;
    value[1] = c->optimizer;
    return c->stage == 3 && c->optimizer != ZERO_DEVICE ? 2 : 1;
}

static int auto_shard_groups(const auto_space *s, const auto_choice *c, int *value) {
    value[0] = 0;
    value[1] = s->node;
    return c->stage >= 1 && s->node ? 2 : 1;
}

static int auto_seconds(const auto_space *s, const auto_choice *c, int *value) {
    value[0] = 0;
    value[1] = s->node;
    return c->stage == 3 && s->node && !c->shard_ranks ? 2 : 1;
}

static int auto_prefetches(const auto_space *s, const auto_choice *c, int *value) {
    static const int all[AUTO_PREFETCHES] = {1, 0, 2, 4};
    if (c->stage < 3) return auto_one(value, s->r->options.prefetch);
    memcpy(value, all, sizeof all);
    return s->overlaps ? AUTO_PREFETCHES : 2;
}

static int auto_states(const auto_space *s, const auto_choice *c, int *value) {
    const train_options *o = &s->r->options;
    (void)c;
    if (!s->lossy || s->state == ZERO_STATE_F32) return auto_one(value, o->state_type);
    if (o->state_type != ZERO_STATE_F32) return 0; /* a file of -ds has another type */
    return o->optimizer == ZERO_ADAGRAD && s->state == ZERO_STATE_8BIT ? 0
                                                                       : auto_one(value, s->state);
}

/* Without the rate of packing, and without the simulator, quantized messages would seem free. */
static int auto_quantizes(const auto_space *s, int stage) {
    return stage && s->overlaps && s->r->ranks > 1 && s->r->machine->coding > 0;
}

static int auto_weights(const auto_space *s, const auto_choice *c, int *value) {
    value[0] = s->lossy ? s->weights : s->r->options.weight_bits;
    return !s->lossy || !s->weights || auto_quantizes(s, c->stage == 3);
}

static int auto_messages(const auto_space *s, const auto_choice *c, int *value) {
    value[0] = s->lossy ? s->messages : s->r->options.gradient_bits;
    return !s->lossy || !s->messages || auto_quantizes(s, c->stage >= 1);
}

/* Lists the divisors of a rank's windows, the largest first. They are the same for all contexts. */
static int auto_batches(const auto_space *s, const auto_choice *c, int *value) {
    int n = 0;
    (void)c;
    for (int i = 1; i <= s->rows && n < AUTO_VALUES; i++)
        if (s->rows % i == 0 && s->rows / i <= INT32_MAX / s->r->options.seq_len)
            value[n++] = s->rows / i;
    return n;
}

static int auto_recomputes(const auto_space *s, const auto_choice *c, int *value) {
    static const int all[] = {GPT2_RECOMPUTE_GELU, GPT2_RECOMPUTE_NONE, GPT2_RECOMPUTE_NORM,
                              GPT2_RECOMPUTE_BLOCK, GPT2_RECOMPUTE_AWAY};
    if (!s->r->model.is_gpt2) return auto_one(value, s->r->options.recompute);
    if (s->r->options.mlp_rows > 0 || c->layer_group > 1) { /* they need one of these two */
        value[0] = GPT2_RECOMPUTE_BLOCK;
        value[1] = GPT2_RECOMPUTE_AWAY;
        return 2;
    }
    memcpy(value, all, sizeof all);
    return sizeof all / sizeof *all;
}

/* ---- rows ---------------------------------------------------------------------------------- */

#define AUTO_ROW(flag, member, setting, words, list)                                               \
    { flag, offsetof(auto_choice, member), offsetof(train_options, setting), words, list }
#define AUTO_TIERS "device host file auto"
const auto_row auto_rows[] = {
    AUTO_ROW("-z", stage, stage.at, NULL, auto_stages),
    AUTO_ROW("-za", accumulation, accumulation, "auto local sharded", auto_accumulations),
    AUTO_ROW("-mo", layer_order, layer_order, "passes layers", auto_orders),
    AUTO_ROW("-mog", layer_group, layer_group, NULL, auto_layers),
    AUTO_ROW("-zos", optimizer, optimizer_tier, AUTO_TIERS, auto_optimizers),
    AUTO_ROW("-zog", gradient, gradient_tier, AUTO_TIERS, auto_gradients),
    AUTO_ROW("-zop", parameter, parameter_tier, AUTO_TIERS, auto_parameters),
    AUTO_ROW("-zs", shard_ranks, shard_ranks, NULL, auto_shard_groups),
    AUTO_ROW("-zh", second_ranks, second_ranks, NULL, auto_seconds),
    AUTO_ROW("-zp", prefetch, prefetch, NULL, auto_prefetches),
    AUTO_ROW("-os", state_type, state_type, "f32 bf16 8bit", auto_states),
    AUTO_ROW("-qw", weight_bits, weight_bits, NULL, auto_weights),
    AUTO_ROW("-qg", gradient_bits, gradient_bits, NULL, auto_messages),
    AUTO_ROW("-b", batch, batch, NULL, auto_batches),
    AUTO_ROW("-r", recompute, recompute, NULL, auto_recomputes)};
const int auto_row_count = sizeof auto_rows / sizeof *auto_rows;

int *auto_value(auto_choice *c, const auto_row *row) {
    return (int *)(void *)((char *)c + row->at);
}
static int *auto_option(train_options *o, const auto_row *row) {
    return (int *)(void *)((char *)o + row->option);
}

/* Returns whether the user or the DeepSpeed file has decided a row. Its -zp has no key. */
static int auto_fixed(const plan_request *r, const auto_row *row) {
    const int from_file = strcmp(row->flag, "-zp") == 0 && r->file.given & DS_GIVEN_PREFETCH;
    if (strcmp(row->flag, "-z") == 0) return (r->file.given & DS_GIVEN_STAGE) != 0;
    return from_file || train_options_fixed(&r->options, row->flag, &r->file);
}

int auto_list(const auto_space *s, const auto_row *row, const auto_choice *c, int *value) {
    train_options *o = (train_options *)(uintptr_t)&s->r->options;
    return auto_fixed(s->r, row) ? auto_one(value, *auto_option(o, row)) : row->values(s, c, value);
}

int auto_set_lossy(auto_space *s, int i) {
    static const int states[] = {ZERO_STATE_F32, ZERO_STATE_BF16, ZERO_STATE_8BIT};
    static const int bits[][2] = {{0, 0}, {0, 4}, {8, 0}, {8, 4}};
    enum { STATES = sizeof states / sizeof *states, BITS = sizeof bits / sizeof *bits };
    if (i >= STATES * BITS) return 0;
    s->lossy = i;
    s->state = states[i % STATES];
    s->weights = bits[i / STATES][0];
    s->messages = bits[i / STATES][1];
    return 1;
}

/* ---- requests and cases -------------------------------------------------------------------- */

static int auto_parts(const train_options *o) {
    return o->tensor_parallel * o->pipeline * o->context_parallel;
}

int auto_space_open(auto_space *s, const plan_request *r, char *sentence, size_t bytes) {
    train_options o = r->options;
    batch_shape shape;
    const int data = r->ranks / auto_parts(&o), node = o.node_size;
    memset(s, 0, sizeof *s);
    s->r = r;
    if (r->machine == NULL)
        return sentence_fail(sentence, bytes,
                             "-z auto: the rates of the machine are missing; add --machine FILE");
    if (data < 1 || r->ranks % auto_parts(&o))
        return sentence_fail(
            sentence, bytes,
            "-tp %d, -pp %d, -cp %d: they do not divide the %d ranks; use divisors",
            o.tensor_parallel, o.pipeline, o.context_parallel, r->ranks);
    if (o.step_tokens > 0 && !train_options_fixed(&o, "-b", &r->file)) o.batch = 0;
    if (train_batch(&o, data, &shape, sentence, bytes)) return 1;
    if ((int64_t)shape.rows * shape.micro_steps > INT32_MAX)
        return sentence_fail(sentence, bytes, "-d %lld: too many tokens for a rank; use fewer",
                             (long long)shape.tokens);
    s->rows = shape.rows * shape.micro_steps;
    s->step_tokens = shape.tokens;
    s->overlaps =
        r->on_gpus || (o.per_node > 0 && o.per_node < r->ranks && r->machine->overlap > 0);
    if (auto_parts(&o) == 1 && o.expert_group < 2 && node > 0 && node < r->ranks
        && r->ranks % node == 0)
        s->node = node;
    return 0;
}

int auto_case(const auto_space *s, const auto_choice *c, plan_case *made, char *sentence,
              size_t bytes) {
    plan_request *r = (plan_request *)malloc(sizeof *r);
    auto_choice choice = *c;
    if (r == NULL) return sentence_fail(sentence, bytes, "-z auto: out of memory");
    *r = *s->r;
    train_options *o = &r->options;
    for (int i = 0; i < auto_row_count; i++)
        *auto_option(o, &auto_rows[i]) = *auto_value(&choice, &auto_rows[i]);
    o->stage.n = 1;
    o->step_tokens = (int64_t)c->batch * c->micro_steps * (r->ranks / auto_parts(o)) * o->seq_len;
    const int failed = plan_case_of(r, c->stage, made, sentence, bytes);
    made->model = &s->r->model;
    free(r);
    return failed;
}

/* ---- flags --------------------------------------------------------------------------------- */

void auto_flags(const plan_request *r, const auto_choice *c, char flags[AUTO_FLAGS]) {
    static const char *const always[] = {"-z", "-b", "-r"};
    train_options *o = (train_options *)(uintptr_t)&r->options;
    auto_choice choice = *c;
    size_t used = 0;
    flags[0] = 0;
    for (int i = 0; i < auto_row_count; i++) {
        const auto_row *row = &auto_rows[i];
        const int value = *auto_value(&choice, row);
        char word[OPTION_WORD_BYTES];
        int shown = value != *auto_option(o, row);
        for (size_t k = 0; k < sizeof always / sizeof *always; k++)
            shown |= strcmp(row->flag, always[k]) == 0;
        if (!shown || auto_fixed(r, row)) continue;
        (void)snprintf(word, sizeof word, "%d", value);
        if (row->word != NULL) option_word(row->word, value, word);
        used += (size_t)snprintf(flags + used, AUTO_FLAGS - used, "%s%s %s", used ? " " : "",
                                 row->flag, word);
    }
    if (train_options_fixed(o, "-d", &r->file)) return;
    const int64_t tokens =
        (int64_t)c->batch * c->micro_steps * (r->ranks / auto_parts(o)) * o->seq_len;
    (void)snprintf(flags + used, AUTO_FLAGS - used, " -d %lld", (long long)tokens);
}

int auto_set_flags(train_options *o, const char *flags, char *sentence, size_t bytes) {
    char text[AUTO_FLAGS], *rest = NULL, *settings = (char *)malloc(8192);
    int failed = 0;
    (void)snprintf(text, sizeof text, "%s", flags);
    if (settings == NULL) return sentence_fail(sentence, bytes, "-z auto: out of memory");
    (void)train_options_render(o, settings, 8192);
    for (char *flag = strtok_r(text, " ", &rest); flag != NULL && !failed;
         flag = strtok_r(NULL, " ", &rest)) {
        const char *value = strtok_r(NULL, " ", &rest);
        int length = 0;
        const char *typed = options_line(settings, flag, &length);
        if (value == NULL || typed == NULL)
            failed = sentence_fail(
                sentence, bytes,
                "-z auto: its stored choice is damaged (%.200s); use -z 0 to -z 3 instead", flags);
        else if (strcmp(flag, "-z") != 0 && train_options_given(o, flag)
                 && (strlen(value) != (size_t)length || strncmp(typed, value, (size_t)length) != 0))
            failed =
                sentence_fail(sentence, bytes,
                              "%s %.*s: the choice of -z auto has %s %s; leave out %s, or give "
                              "the stage with -z instead of auto",
                              flag, length, typed, flag, value, flag);
        else if (train_options_set(o, flag, value))
            failed = sentence_fail(
                sentence, bytes,
                "-z auto: its stored choice is damaged (%.300s); use -z 0 to -z 3 instead",
                o->error);
    }
    free(settings);
    return failed;
}

/* saves.c - see saves.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "saves.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../checkpoint/gpt2_values.h"
#include "../checkpoint/lora_files.h"
#include "../checkpoint/model_files.h"
#include "../compare/hashes.h"
#include "../gpt2/lora.h"
#include "../report/progress.h"
#include "../report/save_line.h"

/* ---- places -------------------------------------------------------------------------------- */

void saves_memory(train_options *o, checkpoint_memory *memory[2]) {
    if (!o->copies || o->ranks < 2 || o->ranks > LAUNCH_MAX_RANKS || o->error[0]) return;
    for (int i = 0; i < (o->experts > 0) + 1; i++) {
        memory[i] = checkpoint_memory_create(o->ranks);
        if (memory[i] == NULL)
            (void)snprintf(o->error, sizeof o->error,
                           "-pm %d: no memory for the copies of %d ranks: %s", o->copies, o->ranks,
                           strerror(errno));
    }
}
void saves_memory_free(checkpoint_memory *memory[2]) {
    for (int i = 0; i < 2; i++) checkpoint_memory_destroy(memory[i]);
}

static void print_note(void *out, const char *sentence) {
    report_print((report *)out, "%s\n", sentence);
}

static checkpoint_options make_options(const saves *s, int place, int of_experts) {
    const saves_run *run = &s->run;
    const train_options *o = run->opt;
    checkpoint_options c;
    memset(&c, 0, sizeof c);
    c.folder = o->log_dir;
    c.keep_last = o->keep_last;
    c.keep_every = o->keep_every;
    c.asynchronous = o->save_aside;
    c.refuse_damaged = o->resume == 2;
    c.config = run->settings;
    c.tensors = run->table;
    c.ntensors = run->tensors;
    c.parts = layout_parts(run->groups, 0);
    c.log = print_note;
    c.log_user = run->out;
    if (place == SAVES_IN_MEMORY) c.memory = run->memory[of_experts];
    return c;
}

void saves_plan(saves *s, const saves_run *run) {
    const checkpoint_parts parts = layout_parts(run->groups, 0);
    const checkpoint_parts of_experts = layout_parts(run->groups, 1);
    checkpoint_way way[SAVES_PLACES];
    memset(s, 0, sizeof *s);
    s->run = *run;
    s->saved = s->durable = -1;
    s->places = train_saves(run->opt, way);
    for (int i = 0; i < s->places; i++) {
        const size_t bytes = checkpoint_bytes(run->z, &parts, way[i])
                             + expert_saves_bytes(run->groups->experts, &of_experts, way[i]);
        s->bytes += bytes;
        if (i == SAVES_IN_MEMORY) s->copies = bytes;
    }
    for (int i = 0; i < 2; i++)
        if (run->memory[i])
            s->taken += (size_t)checkpoint_memory_taken(run->memory[i]) / (size_t)run->l->nranks;
    if (s->taken > s->copies)
        s->taken = s->copies; /* `taken` is a mean, and pipeline stages differ */
}

/* Ends the job after an error, or warns. last: no later save replaces this one. */
static void end_or_warn_if_failed(saves *s, saves_place *p, checkpoint_result result, int last) {
    const int disk = p == &s->place[SAVES_ON_DISK];
    char why[CHECKPOINT_SENTENCE];
    if (result == CHECKPOINT_OK) return;
    (void)snprintf(why, sizeof why, "%s", checkpoint_error(p->rest));
    if (result == CHECKPOINT_PLUGIN)
        launch_fail_result(s->run.l, checkpoint_plugin_result(p->rest), why);
    if (!disk || last || !s->run.opt->save_or_go_on) {
        (void)checkpoint_wait(p->rest); /* lets a checkpoint in the background finish */
        launch_require(s->run.l, 0, "%s: %s", disk ? "checkpoint" : "-pm", why);
    }
    report_warn(s->run.out, "checkpoint: %s", why);
}

/* Ends the job after an error, because the rest of the model would be of another step. */
static void require_experts(saves *s, const saves_place *p, checkpoint_result result) {
    launch_require(s->run.l, result == CHECKPOINT_OK, "checkpoint of experts: %s",
                   expert_saves_error(&p->experts));
}

/* Refuses a folder that has checkpoints. Otherwise, if this run died before its first checkpoint,
   it would resume from those of another run. */
static void require_no_checkpoints(const saves *s) {
    const char *folder = s->run.opt->log_dir;
    char why[CHECKPOINT_SENTENCE];
    checkpoint_generation *list = NULL;
    int n = 0;
    if (checkpoint_list(folder, &list, &n, why) != CHECKPOINT_OK)
        n = 0; /* the folder does not exist yet */
    launch_require(s->run.l, n == 0,
                   "-o: %s has checkpoints already, the newest %s; add -y 1 to resume from it",
                   folder, n > 0 ? list[0].name : "");
    free(list);
}

/* -nz 0: describes the frozen weights, which checkpoints lack. Rank 0 reads the file of -e. */
static void describe_base(saves *s) {
    const train_options *o = s->run.opt;
    uint64_t hash = 0;
    int ok = 1;
    if (o->save_frozen) return;
    (void)snprintf(s->base, sizeof s->base, "%.80s, seed %lld", o->model, (long long)o->seed);
    if (!model_is_file(o->model)) return;
    if (s->run.l->rank == 0) ok = hash_file(o->model, &hash);
    launch_broadcast(s->run.l, &ok, sizeof ok);
    launch_broadcast(s->run.l, &hash, sizeof hash);
    launch_require(s->run.l, ok, "-e: %s cannot be read; give the file of the base", o->model);
    (void)snprintf(s->base, sizeof s->base, "a file of hash %016llx", (unsigned long long)hash);
}

static void open_places(saves *s) {
    const saves_run *run = &s->run;
    if (s->places) describe_base(s);
    for (int i = 0; i < s->places; i++) {
        saves_place *p = &s->place[i];
        const checkpoint_options rest = make_options(s, i, 0), experts = make_options(s, i, 1);
        const checkpoint_result result = checkpoint_create(&p->rest, run->z, &rest);
        launch_require(run->l, p->rest != NULL, "rank %d: out of memory for checkpoints",
                       run->l->rank);
        end_or_warn_if_failed(s, p, result, 1);
        require_experts(s, p, expert_saves_open(&p->experts, run->groups, run->model, &experts));
    }
}

void saves_open(saves *s) {
    if (s->run.opt->log_dir[0] && !s->run.opt->resume) require_no_checkpoints(s);
    open_places(s);
}

void saves_move(saves *s, const saves_run *run, int64_t saved, int64_t durable) {
    saves_plan(s, run);
    s->saved = saved;
    s->durable = durable;
    open_places(s);
}

void saves_close(saves *s) {
    for (int i = 0; i < SAVES_PLACES; i++) {
        checkpoint_destroy(s->place[i].rest);
        expert_saves_close(&s->place[i].experts);
    }
}

/* ---- resuming ------------------------------------------------------------------------------ */

/* `shown`: the name of the setting in messages. */
static int print_difference(const saves *s, const char *name, const char *shown) {
    int a = 0, b = 0;
    const char *was = options_line(checkpoint_config(s->from->rest), name, &a);
    const char *is = options_line(s->run.settings, name, &b);
    const int differs = was != NULL && is != NULL && (a != b || memcmp(was, is, (size_t)a) != 0);
    if (differs)
        report_print(s->run.out, "it was saved with %s %.*s; now it is %.*s\n", shown, a, was, b,
                     is);
    return differs;
}

/* Prints the flags and other settings in which this run differs from the loaded one. */
static void print_differences(saves *s) {
    static const char *const lines[][2] = {{"tokens-per-step", "tokens per step"},
                                           {"windows", "sequences"},
                                           {"ds-config", "-ds"},
                                           {"training-data", "training data"},
                                           {"validation-data", "validation data"}};
    int row = 0;
    for (const char *flag; (flag = train_options_course(&row)) != NULL;)
        print_difference(s, flag, flag);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        print_difference(s, lines[i][0], lines[i][1]);
    s->same_products = !print_difference(s, "products", "GEMM algorithms:");
}

/* Compares the model with that of the checkpoint. The number of heads does not change the shape of
   any tensor, so tensors that fit are not enough. */
static void require_same_model(const saves *s) {
    checkpoint_value v[GPT2_VALUES];
    int64_t number;
    gpt2_values(s->run.model, v);
    for (int i = 0; i < GPT2_VALUES; i++)
        launch_require(
            s->run.l,
            !checkpoint_get_int(s->from->rest, v[i].name, &number) || number == v[i].number,
            "-e: the checkpoint has another model (%s is %lld there and %lld here); use its -e",
            v[i].name, (long long)number, (long long)v[i].number);
}

/* A checkpoint without frozen tensors continues only with the same ones. */
static void require_same_base(const saves *s) {
    const char *was;
    if (!s->base[0] || !checkpoint_get_text(s->from->rest, "base", &was)) return;
    launch_require(
        s->run.l, strcmp(was, s->base) == 0,
        "-e: the checkpoint was saved without the frozen weights of %s, and these are of "
        "%s; use the same -e",
        was, s->base);
}

/* The factor of the adapters' output is no tensor. */
static void require_same_alpha(const saves *s) {
    const gpt2_lora *lora = gpt2_lora_of(s->run.model);
    double was;
    if (!lora || !checkpoint_get_real(s->from->rest, "lora.alpha", &was)) return;
    launch_require(s->run.l, (float)was == lora->alpha,
                   "--lora-alpha: the adapters of the checkpoint have alpha %g, and it is %g here; "
                   "use --lora-alpha %g",
                   was, (double)lora->alpha, was);
}

/* -pe: after ranks have died, a -ds file without train_batch_size would make the step smaller. */
static void require_same_batch(const saves *s) {
    int bytes = 0;
    const char *was = options_line(checkpoint_config(s->from->rest), "tokens-per-step", &bytes);
    launch_require(s->run.l,
                   s->run.l->starts == 0 || was == NULL || atoll(was) == s->run.step_tokens,
                   "-pe 1: a step had %.*s tokens, and on the remaining ranks it has %lld; set -d, "
                   "or train_batch_size in the file",
                   bytes, was ? was : "", (long long)s->run.step_tokens);
}

/* Reads the trainer's own values, which checkpoints of other programs lack. If the batch size has
   changed, the data continues at the same place, rounded up to a whole step. Windows that the end
   of an epoch left out are not counted. */
static void read_values(const saves *s, saves_state *at) {
    const checkpoint *c = s->from->rest;
    const int64_t step_tokens = s->run.step_tokens;
    zero_counters counters;
    int64_t tokens;
    const char *text;
    at->step = (int)checkpoint_step(c);
    if (checkpoint_get_counters(c, &counters)) at->updates = counters.steps;
    at->data_step = at->step;
    if (checkpoint_get_int(c, "data.tokens", &tokens) && tokens >= 0 && tokens <= INT64_C(1) << 53)
        at->data_step = tokens / step_tokens + (tokens % step_tokens != 0);
    if (checkpoint_get_text(c, "losses", &text)) outliers_parse(at->losses, text);
    if (checkpoint_get_text(c, "norms", &text)) outliers_parse(at->norms, text);
}

/* Loads a copy in memory, which is newer than any checkpoint, or else the newest checkpoint.
   Returns 0 if there is neither. */
static int load_newest(saves *s) {
    for (int i = s->places - 1; i >= 0; i--) {
        saves_place *p = &s->place[i];
        const checkpoint_result result = checkpoint_load(p->rest, CHECKPOINT_NEWEST);
        if (result == CHECKPOINT_NONE) continue;
        end_or_warn_if_failed(s, p, result, 1);
        s->from = p;
        return 1;
    }
    return 0;
}

int saves_from_copy(const saves *s) { return s->from == &s->place[SAVES_IN_MEMORY]; }

int saves_load(saves *s, saves_state *at) {
    const saves_run *run = &s->run;
    const char *folder = run->opt->log_dir;
    char with[48] = "";
    if (!run->opt->resume) return 0;
    if (run->l->starts)
        (void)snprintf(with, sizeof with, ", with %d rank%s", run->l->nranks,
                       run->l->nranks > 1 ? "s" : "");
    progress_phase(run->out, "loading the newest checkpoint", run->numel * 3 * sizeof(float));
    if (!load_newest(s)) {
        report_print(run->out, "no checkpoint in %s: the training starts%s\n", folder, with);
        return 0;
    }
    require_same_model(s);
    require_same_base(s);
    require_same_alpha(s);
    const int64_t step = checkpoint_step(s->from->rest);
    require_experts(s, s->from, expert_saves_load(&s->from->experts, step));
    launch_require(run->l, step <= run->steps,
                   "-x %d: the checkpoint in %s is of step %lld; raise -x", run->steps, folder,
                   (long long)step);
    s->saved = s->durable = saves_from_copy(s) ? -1 : step;
    require_same_batch(s);
    read_values(s, at);
    report_print(run->out, "resuming from step %d in %s%s\n", at->step,
                 saves_from_copy(s) ? "memory" : folder, with);
    print_differences(s);
    return 1;
}

/* ---- saving -------------------------------------------------------------------------------- */

/* Saves the experts, then the rest with the trainer's own values, to one place. */
static checkpoint_result save_into(saves *s, saves_place *p, const saves_state *at) {
    char losses[OUTLIERS_TEXT], norms[OUTLIERS_TEXT];
    checkpoint_value v[GPT2_VALUES + 4 + LORA_VALUES];
    int n = GPT2_VALUES + 3;
    memset(v, 0, sizeof v);
    outliers_print(at->losses, losses);
    outliers_print(at->norms, norms);
    gpt2_values(s->run.model, v);
    v[GPT2_VALUES].name = "data.tokens";
    v[GPT2_VALUES].number = at->data_step * s->run.step_tokens;
    v[GPT2_VALUES + 1].name = "losses";
    v[GPT2_VALUES + 1].text = losses;
    v[GPT2_VALUES + 2].name = "norms";
    v[GPT2_VALUES + 2].text = norms;
    v[GPT2_VALUES + 1].kind = v[GPT2_VALUES + 2].kind = CHECKPOINT_TEXT;
    n += lora_values(s->run.model, v + n);
    v[n].name = "base";
    v[n].kind = CHECKPOINT_TEXT;
    v[n].text = s->base;
    n += s->base[0] != 0;
    require_experts(s, p, expert_saves_save(&p->experts, at->step));
    return checkpoint_save(p->rest, at->step, v, n);
}

int saves_copies(const saves *s, int step) {
    const train_options *o = s->run.opt;
    if (s->place[SAVES_IN_MEMORY].rest == NULL) return 0;
    return step % o->copies == 0 || step % o->save_every == 0 || step == s->run.steps;
}

void saves_copy(saves *s, const saves_state *at) {
    saves_place *p = &s->place[SAVES_IN_MEMORY];
    end_or_warn_if_failed(s, p, save_into(s, p, at), 1);
    launch_copied(s->run.l, at->step);
}

/* -na 1: prints a line when a checkpoint in the background has reached the disk. */
static void print_if_on_disk(saves *s) {
    const saves_place *p = &s->place[SAVES_ON_DISK];
    checkpoint_report r;
    if (!s->run.opt->save_aside || p->rest == NULL) return;
    checkpoint_query(p->rest, &r);
    if (r.saved_step <= s->durable) return;
    s->durable = r.saved_step;
    launch_saved(s->run.l, s->durable);
    report_print(s->run.out, "on the disk: the checkpoint of step %lld, written in %.1f ms\n",
                 (long long)r.saved_step, 1e3 * r.write_s);
}

/* Waits for a checkpoint in the background. If it failed, its state is due again. */
static void wait_for_save(saves *s) {
    saves_place *p = &s->place[SAVES_ON_DISK];
    const checkpoint_result aside = checkpoint_wait(p->rest);
    if (aside == CHECKPOINT_PLUGIN) end_or_warn_if_failed(s, p, aside, 1);
    if (aside == CHECKPOINT_OK) return;
    report_warn(s->run.out, "checkpoint: %s", checkpoint_error(p->rest));
    s->saved = -1;
}

void saves_finish(saves *s) {
    if (s->places) wait_for_save(s);
    print_if_on_disk(s);
}

int saves_due(saves *s, int step, int last) {
    const int every = s->run.opt->save_every;
    print_if_on_disk(s);
    if (every == 0) return 0;
    if (last) wait_for_save(s);
    return s->saved != step && (last || step % every == 0);
}

void saves_save(saves *s, const saves_state *at, double step_s, int last) {
    const int aside = s->run.opt->save_aside;
    saves_place *p = &s->place[SAVES_ON_DISK];
    progress_phase(s->run.out, "saving", 0);
    const checkpoint_result result = save_into(s, p, at);
    end_or_warn_if_failed(s, p, result, last);
    if (result == CHECKPOINT_OK) {
        s->saved = at->step;
        if (!aside) launch_saved(s->run.l, s->saved);
        checkpoint_report r;
        print_if_on_disk(s);
        checkpoint_query(p->rest, &r);
        save_line(s->run.out, at->step, &r, aside, step_s);
    }
    if (last) end_or_warn_if_failed(s, p, checkpoint_wait(p->rest), 1);
}

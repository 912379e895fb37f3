/* train_gpt2_zero.cu - trains GPT-2 with zero_plugin.h, on llm.c's command line.

     ./train_gpt2_zero                    nanoGPT's character run on tiny Shakespeare, one rank
     ./train_gpt2_zero -pn 2 -z 3         the same on two ranks, everything sharded
     ./train_gpt2_zero -z 0,1,2,3         compares the stages: speed, memory, traffic, weights
     ./train_gpt2_zero --help             every flag, with its default

   One source, two compilers: C11 (cc -x c) and CUDA C++ (nvcc).

     1 a run        what a rank knows of it
     2 the loop     micro-steps, step, training: plain llm.c, and the zero_ calls
     3 words        one error line per job, whoever finds it; what rank 0 says
     4 settings     DeepSpeed's JSON in place of flags; the plugin's settings
     5 trainer      one stage: context, model, weights, what a step asks and tells
     6 looking      validation, sample, hash of the weights
     7 saves        what is saved beside the plugin's state; going on from it
     8 lines        settings, plan, steps
     9 runs         a training; a comparison of several stages
    10 main
*/
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* M_PI, glob, clock_gettime under -std=c11 */
#endif
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif
#include <xxhash.h>

#include "adapters/checkpoint/model_files.h"
#include "adapters/compare/compare.h"
#include "adapters/compare/hashes.h"
#include "adapters/corpus/corpus.h"
#include "adapters/eval/sample.h"
#include "adapters/gpt2/device.h"
#include "adapters/gpt2/gpt2.h"
#include "adapters/gpt2/products.h"
#include "adapters/gpt2/pipelined.h"
#include "adapters/launch/launch.h"
#include "adapters/launch/memory.h"
#include "adapters/options/train_resolve.h"
#include "adapters/report/main_log.h"
#include "adapters/report/observe.h"
#include "adapters/report/pace.h"
#include "adapters/report/plan_rows.h"
#include "adapters/report/progress.h"
#include "adapters/report/report.h"
#include "adapters/report/settings_rows.h"
#include "adapters/report/step_line.h"
#include "adapters/saves/saves.h"
#include "adapters/schedule/outliers.h"

#define PROGRAM "train_gpt2_zero"

/* ---- 1 a run ------------------------------------------------------------------------------- */

/* What all stages of a run share. */
typedef struct job {
    const train_options *opt;
    launch *l;
    report *out;
    main_log *log;   /* rank 0, with -o */
    observer *see;   /* NULL: nothing of -tr, -tb ... is asked for */
    int steps;       /* of the run; in a comparison, of each stage */
    int threads;     /* of this rank */
    int files_grads; /* -zog auto: in memory there is no room for them */
    layout ranks;    /* what they are; without groups */
    gpt2_config model;
    batch_shape batch;
    corpus *data;                     /* files, and what a step takes of them */
    ds_config ds;                     /* of -ds; all 0 without */
    uint64_t ds_hash;                 /* of what it was resolved to */
    int *inputs, *targets;            /* [rows * T] */
    int *sample;                      /* [1 + sample_tokens] */
    float *logits;                    /* [V] */
    products_choice products;         /* which way f32 products take */
    char settings[6144];              /* the same, with all flags: saved along in checkpoints */
    checkpoint_memory *const *memory; /* -pm: of the model's copies, and of its experts' */
    double matmul_rate;               /* operations per second of all ranks together, measured */
    double peak_rate;                 /* the same as the GPUs' maker states it; 0: not known */
    device computes;                  /* what this rank computes on */
    uint64_t process;                 /* bytes of a rank before its context is built */
} job;

/* One stage of it. */
typedef struct trainer {
    job *j;
    int stage;
    zero_ctx *z;
    gpt2_model *model;
    gpt2_pipeline *line; /* what runs it where it is a stage, and looks at it */
    layout groups;
    zero_tensor_desc table[GPT2_MOST_TENSORS]; /* of the whole model */
    int tensors;
    zero_plan plan;
    zero_hyper hyper; /* but for lr and betas: lr's schedule has them */
    schedule lr;
    outliers losses, norms;
    int step;          /* steps made, skipped ones too */
    int64_t data_step; /* the next one's data; of a run that goes on with other batches not step */
    int64_t updates;   /* that the optimizer made: the schedule's clock */
    int unsettled;     /* the last step's report was not asked for yet */
    saves keep;
    uint64_t seen[2], moved[2]; /* bytes read from the file and written: so far; of them by steps */
    int stop;                   /* a signal has asked for it, on any rank */
    int first;                  /* steps that were made before this run */
    int64_t look;               /* windows of a validation */
    pace speed;
    progress watch;    /* of the whole run */
    double device_mib; /* CUDA: taken after the first step */
} trainer;

/* What a step told. */
typedef struct step_values {
    double loss, aux, dropped; /* means over ranks; of experts: auxiliary loss, choices dropped */
    double loss_z, norm_z;
    double lr;
    zero_step_report done;
} step_values;

/* ---- 2 the loop ---------------------------------------------------------------------------- */

static void check(const trainer *t, zero_result result); /* ends the job, and tells why */
static void check_groups(const trainer *t, zero_result result);
static void check_model(const trainer *t, zero_result result);
static void check_line(const trainer *t, zero_result result);
static int load_batch(void *trainer_, int micro, int *inputs, int *targets); /* this rank's rows */
static void settle(trainer *t, zero_step_report *done);
static int is_unusual(trainer *t, step_values *v);
static void take_loss(trainer *t, step_values *v);
static void look_at_model(trainer *t); /* validation and sample, when they are due */
static void train_step(trainer *t);
static void copy_if_due(trainer *t);
static void save_if_due(trainer *t);
static void say_mean_step(const trainer *t);
static void count_file(trainer *t, int by_steps);
static void say_file(const trainer *t);
static void say_memory(const trainer *t);

/* Tokens in, gradients out: all micro-steps of a step. On a GPU they are only enqueued. */
static void run_micro_steps(trainer *t) {
    job *j = t->j;
    const int micro_steps = j->batch.micro_steps;
    const float factor = zero_loss_scale(t->z) / (float)micro_steps;
    const gpt2_feed feed = {load_batch, NULL, t};
    for (int micro = 0; micro < micro_steps && t->groups.pp == 1; micro++) {
        observe_begin(j->see, "data", BREAKDOWN_DATA);
        (void)load_batch(t, micro, j->inputs, j->targets);
        observe_end(j->see);
        check_model(t, gpt2_pass_begin(t->model, ZERO_TRAIN, micro, micro_steps));
        check_model(t, gpt2_train_step(t->model, j->inputs, j->targets, factor, NULL));
        check_model(t, gpt2_pass_end(t->model));
    }
    if (t->groups.pp == 1) return;
    check_model(t, gpt2_pass_begin(t->model, ZERO_TRAIN, ZERO_TOGETHER, micro_steps));
    check_line(t, gpt2_pipeline_train(t->line, &feed, factor));
    check_model(t, gpt2_pass_end(t->model));
}

/* One step. v NULL: its values are not wanted; then the host waits for a GPU only to know whether
   the step before was skipped, and this one's work is enqueued by then. Otherwise it waits once,
   when all of the step is enqueued; or before the update, for -sl and -sg. */
static void take_step(trainer *t, step_values *v) {
    const train_options *o = t->j->opt;
    const int judged = v != NULL && (o->skip_loss > 0 || o->skip_norm > 0);
    zero_step_report done;
    schedule_value now;
    run_micro_steps(t);
    settle(t, &done);
    schedule_at(&t->lr, t->updates, &now);
    zero_hyper hyper = t->hyper;
    hyper.lr = (float)now.lr;
    hyper.beta1 = (float)now.beta1;
    hyper.beta2 = (float)now.beta2;
    check_groups(t, layout_reduce(&t->groups, t->z));
    check_groups(t, layout_step(&t->groups, t->z, judged && v && is_unusual(t, v) ? NULL : &hyper));
    t->step++;
    t->data_step++;
    t->unsettled = 1;
    if (v == NULL) return;
    v->lr = now.lr;
    if (!judged) take_loss(t, v);
    settle(t, &v->done);
    if (judged) return;
    v->loss_z = outliers_score(&t->losses, v->loss);
    v->norm_z = outliers_score(&t->norms, v->done.norm);
}

/* Until the last step, or until a signal asks to stop. */
static void train_all(trainer *t) {
    progress_begin(&t->watch, t->j->out, "training");
    t->first = t->step;
    count_file(t, 0);
    if (saves_from_copy(&t->keep)) save_if_due(t); /* what died with its step's checkpoint */
    for (;;) {
        /* The last step is saved with its delayed update pending, for a run that goes on; what is
           looked at now is the result. */
        if (t->step == t->j->steps) check_groups(t, layout_apply_pending(&t->groups, t->z));
        look_at_model(t);
        if (t->step == t->j->steps || t->stop) break;
        train_step(t);
        copy_if_due(t);
        save_if_due(t);
    }
    count_file(t, 1);
    save_if_due(t); /* a signal came while the model was looked at */
    say_mean_step(t);
    say_file(t);
    say_memory(t);
}

/* ---- 3 words ------------------------------------------------------------------------------- */

/* For what every rank sees alike, or checks on its own before anything is built. COLLECTIVE. */
#define require(j, ...) launch_require((j)->l, __VA_ARGS__)
/* Rank 0's output. */
#define say(j, ...)  report_say((j)->out, __VA_ARGS__)
#define warn(j, ...) report_warn((j)->out, __VA_ARGS__)

/* Errors come back as results, and are printed once; warnings are the rank's own; what the plugin
   chose by itself, rank 0 tells. */
static void on_log(void *user, zero_log_level level, const char *sentence) {
    const job *j = (const job *)user;
    report_clear(j->out);
    if (level == ZERO_LOG_INFO) say(j, "%s\n", sentence);
    if (level == ZERO_LOG_WARNING)
        fprintf(stderr, PROGRAM ": warning of rank %d: %s\n", j->l->rank, sentence);
}

static void check(const trainer *t, zero_result result) {
    if (result == ZERO_OK) return;
    launch_fail_result(t->j->l, result, t->z != NULL ? zero_last_error(t->z) : "");
}

/* Of groups, or of groups and the context. */
static void check_groups(const trainer *t, zero_result result) {
    const char *why = t->z != NULL ? zero_last_error(t->z) : "";
    if (result != ZERO_OK)
        launch_fail_result(t->j->l, result, why[0] ? why : layout_error(&t->groups));
}

static void check_model(const trainer *t, zero_result result) {
    if (result != ZERO_OK) launch_fail_result(t->j->l, result, gpt2_last_error(t->model));
}
static void check_line(const trainer *t, zero_result result) {
    if (result != ZERO_OK) launch_fail_result(t->j->l, result, gpt2_pipeline_error(t->line));
}

/* A line that cannot be written, of stdout or main.log: -nf decides, as over a save. */
static void lose(void *user, const char *sentence) {
    const job *j = (const job *)user;
    if (!j->opt->save_or_go_on) launch_fail(j->l, "%s", sentence);
    warn(j, "%s", sentence);
}

/* After a line of main.log. */
static void check_log(job *j, int failed) {
    const char *note = main_log_note(j->log);
    if (note != NULL) warn(j, "%s", note);
    if (failed) lose(j, main_log_error(j->log));
}

static void *get_memory(job *j, size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size);
    require(j, memory != NULL, "rank %d: out of memory for %zu elements of %zu bytes", j->l->rank,
            count, size);
    return memory;
}

/* ---- 4 settings ---------------------------------------------------------------------------- */

static void note(void *user, const char *sentence) { say((const job *)user, "%s\n", sentence); }

/* -ds. What no flag has stays in j->ds: the schedule, if there is one, among it. */
static void read_file(job *j, train_options *o) {
    char sentence[512], *text;
    ds_config said;
    const ds_notes notes = {note, j};
    require(j, o->ds_path[0] || !o->ds_out[0], "-dso %s: there is no -ds to resolve", o->ds_out);
    if (!o->ds_path[0]) return;
    const ds_auto autos = train_autos(o, j->l->nranks, j->model.channels, &said);
    const int failed =
        ds_config_load(o->ds_path, &autos, &j->ds, &notes, sentence, sizeof sentence);
    require(j, !failed, "-ds: %s", sentence);
    text = ds_config_print(&j->ds);
    require(j, text != NULL, "rank %d: out of memory for %s", j->l->rank, o->ds_path);
    launch_same(j->l, text);
    j->ds_hash = XXH64(text, strlen(text), 0);
    const int differs = train_options_conflict(o, &j->ds, sentence, sizeof sentence);
    require(j, !differs, "%s", sentence);
    if (o->stage.n > 1 && j->ds.given & DS_GIVEN_STAGE)
        say(j, "%s: zero_optimization.stage has no effect: -z compares stages\n", o->ds_path);
    train_take(o, &j->ds, &j->model);
    const int lost = j->l->rank == 0 && !train_write(o->ds_out, text);
    require(j, !lost, "-dso: %s cannot be written: %s", o->ds_out, strerror(errno));
    free(text);
}

/* The plugin's settings: the file's, the flags', and those of this rank. */
static ds_config make_settings(const job *j, int stage) {
    ds_config all = train_settings(j->opt, &j->ds, j->model.channels);
    zero_config *c = &all.zero;
    c->stage = stage;
    c->micro_steps = j->batch.micro_steps;
    /* The two ways to accumulate round differently: stages can be compared at one of them. */
    if (j->opt->stage.n > 1 && c->micro_steps > 1 && j->ranks.pp == 1
        && c->accumulation == ZERO_ACCUMULATE_AUTO)
        c->accumulation = ZERO_ACCUMULATE_SHARDED;
    train_tiers(j->opt, j->ranks.pp, c);
    if (j->files_grads) c->gradient_tier = ZERO_FILE;
    c->threads = j->threads;
    c->stream = j->computes.stream;
    observe_hook(j->see, c);
    c->log = on_log;
    c->log_user = (void *)(uintptr_t)j;
    return all;
}

/* ---- 5 trainer ----------------------------------------------------------------------------- */

/* -a: always step 0. */
static int64_t step_of_data(const trainer *t) { return t->j->opt->overfit ? 0 : t->data_step; }

static int load_batch(void *trainer_, int micro, int *inputs, int *targets) {
    const trainer *t = (const trainer *)trainer_;
    const job *j = t->j;
    const int rows = j->batch.rows;
    const int64_t first = ((int64_t)micro * j->ranks.dp + j->ranks.dp_rank) * rows;
    corpus_train(j->data, step_of_data(t), first, rows, inputs, targets);
    return rows;
}

/* Context and plan; nothing large is allocated yet. */
static void open_trainer(trainer *t, job *j, int stage, zero_comm *comm) {
    ds_config config = make_settings(j, stage);
    char sentence[LAUNCH_SENTENCE];
    memset(t, 0, sizeof *t);
    t->j = j;
    t->stage = stage;
    t->hyper = config.hyper;
    comm->node_size = j->opt->node_size;
    const int wrong = train_schedule(j->opt, &j->ds, j->steps, &t->lr, sentence, sizeof sentence);
    require(j, !wrong, "%s", sentence);
    t->groups = j->ranks;
    check_groups(t, layout_open(&t->groups, comm, config.zero.stream, config.zero.timeout_s));
    const zero_comm shards = layout_comm(&t->groups, comm);
    require(j, layout_settings(&t->groups, &j->model, &config.zero) == ZERO_OK, "no memory");
    check(t, zero_create(&t->z, &config.zero, &shards));
    check(t, gpt2_announce(t->z, &j->model, &t->groups.part, j->opt->tile_rows));
    t->tensors = gpt2_table(&j->model, NULL, 0, t->table); /* as checkpoints and hashes have them */
    check_groups(t, layout_experts(&t->groups, t->z, &j->model, &config.zero, shards.node_size,
                                   observe_too(j->see)));
    check_groups(t, layout_order(&t->groups, t->z, &j->model, &config.zero));
    zero_result planned = layout_plan(&t->groups, t->z, &t->plan);
    const char *zb = j->opt->bucket > 0 ? "-zb: " : "", *why = zero_last_error(t->z);
    require(j, planned == ZERO_OK, "%s%s", zb, why[0] ? why : layout_error(&t->groups));
}

static gpt2_run make_run(const trainer *t) {
    const job *j = t->j;
    const train_options *o = j->opt;
    gpt2_run run = {j->batch.rows,  j->batch.seq_len, o->recompute, (zero_type)o->type,
                    o->tf32,        o->any_order,     o->tile_rows, train_folder(o, &j->ds),
                    &t->groups.part};
    return run;
}

static void say_idle_flags(const job *j) {
    char sentence[512];
    int row = 0, flag = 0;
    while (train_options_idle(j->opt, &row, sentence, sizeof sentence)) say(j, "%s\n", sentence);
    while (train_tiers_idle(j->opt, DEVICE_IS_HOST, &flag, sentence, sizeof sentence))
        say(j, "%s\n", sentence);
    if (train_tiers_note(j->opt, j->batch.micro_steps, DEVICE_IS_HOST, sentence, sizeof sentence))
        say(j, "%s\n", sentence);
}

/* Weights, as a training starts with them. */
static void start_weights(trainer *t) {
    const job *j = t->j;
    gpt2_error error;
    zero_result result;
    const int in_file = model_is_file(j->opt->model);
    progress_phase(j->out, in_file ? "reading the weights" : "drawing the first weights",
                   t->plan.numel * sizeof(float));
    if (in_file)
        result = model_load_part(t->z, &j->model, &t->groups.part, j->opt->model, &error);
    else
        result = gpt2_init_part(t->z, &j->model, &t->groups.part, (uint64_t)j->opt->seed, &error);
    if (result != ZERO_OK) launch_fail_result(j->l, result, error.sentence);
}

static void create_model(trainer *t) {
    job *j = t->j;
    gpt2_run run = make_run(t);
    gpt2_error error;
    zero_result result = gpt2_create(&t->model, t->z, &j->model, &run, &error);
    require(j, result == ZERO_OK, "%s", error.sentence);
    gpt2_take_products(t->model, &j->products);
    result = gpt2_pipeline_open(&t->line, t->z, t->model, &t->groups.stage, j->batch.micro_steps,
                                j->computes.stream, &error);
    require(j, result == ZERO_OK, "%s", error.sentence);
}

static void close_trainer(trainer *t) {
    saves_close(&t->keep);
    gpt2_pipeline_close(t->line);
    gpt2_destroy(t->model);
    layout_destroy(&t->groups, t->z);
    layout_close(&t->groups);
}

/* Bytes of a rank: what the model will allocate, with its batch. */
static uint64_t model_bytes(const trainer *t) {
    const job *j = t->j;
    const gpt2_run run = make_run(t);
    return gpt2_activation_bytes(&j->model, &run)
           + gpt2_pipeline_bytes(&j->model, &run, j->batch.micro_steps)
           + (uint64_t)run.batch * (uint64_t)run.seq_len * 2 * sizeof(int);
}

/* What some trainers of a rank will take: bytes of what it computes on, those of the host, and the
   part of these that ranks may share. */
typedef struct need_bytes {
    uint64_t device, host, shared;
} need_bytes;

static need_bytes needs_of(const trainer *t, int count) {
    const job *j = t->j;
    need_bytes all = {0, 0, 0};
    for (int i = 0; i < count; i++) {
        const zero_plan *p = &t[i].plan;
        const gpt2_run run = make_run(&t[i]);
        require(j, gpt2_activation_bytes(&j->model, &run) > 0,
                "-b %d: too many windows of -t %d tokens for the model's activations", run.batch,
                run.seq_len);
        const uint64_t bytes = plan_bytes(p, DEVICE_IS_HOST) + model_bytes(&t[i]);
        all.device += bytes;
        all.host += t[i].keep.bytes - t[i].keep.taken;
        all.host += DEVICE_IS_HOST ? bytes : p->host_bytes + p->context_bytes;
        if (DEVICE_IS_HOST) all.shared += plan_bytes(p, 1) - p->optimizer_bytes;
    }
    return all;
}

/* Before anything is built: do all ranks of this machine, or of a GPU, fit into its memory? */
static void check_memory(const trainer *t, int count) {
    char sentence[LAUNCH_SENTENCE];
    job *j = t->j;
    const need_bytes need = needs_of(t, count);
    const int full = device_fits(&j->computes, need.device, sentence, sizeof sentence);
    require(j, !full, "rank %d: %s", j->l->rank, sentence);
    launch_check_memory(j->l, need.host, need.shared);
}

/* Before anything is built, and behind the first products, for which the library compiles code:
   what the program and its libraries take. Ranks can be threads of one process. */
static void look_at_process(job *j) {
    if (!DEVICE_IS_HOST) return;
    j->process = launch_memory_held() / (uint64_t)(j->l->kind == LAUNCH_THREADS ? j->l->nranks : 1);
}

/* The mean losses over the ranks, of the steps since they were last asked for. Ranks that a signal
   has reached tell the others by the way. */
static void take_loss(trainer *t, step_values *v) {
    double sums[4] = {0, launch_asked_to_stop() ? 1.0 : 0.0};
    observe_begin(t->j->see, "loss", BREAKDOWN_HOST);
    check_model(t, gpt2_take_losses(t->model, &sums[0]));
    if (t->groups.mixed) check_model(t, gpt2_take_experts(t->model, &sums[2], &sums[3]));
    check_groups(t, layout_sum(&t->groups, t->z, sums, t->groups.mixed ? 4 : 2));
    observe_end(t->j->see);
    t->stop = t->stop || sums[1] > 0;
    v->loss = sums[0] * t->groups.pp / t->j->l->nranks; /* a pipeline's last stage has it */
    v->aux = sums[2] * t->groups.pp / t->j->l->nranks;
    v->dropped = sums[3] / t->groups.tp;
}

/* Between steps: has a signal asked any rank to stop? */
static int must_stop(trainer *t) {
    double asked = launch_asked_to_stop() ? 1 : 0;
    if (t->j->opt->save_every > 0) check_groups(t, layout_sum(&t->groups, t->z, &asked, 1));
    t->stop = t->stop || asked > 0;
    return t->stop;
}

/* -sl and -sg, as llm.c does it, between reduction and step: is it so far from the usual that it is
   left out? */
static int is_unusual(trainer *t, step_values *v) {
    const train_options *o = t->j->opt;
    double norm = 0;
    take_loss(t, v);
    check(t, zero_norm(t->z, &norm));
    v->loss_z = outliers_score(&t->losses, v->loss);
    v->norm_z = outliers_score(&t->norms, norm);
    return (o->skip_loss > 0 && v->loss_z > o->skip_loss)
           || (o->skip_norm > 0 && v->norm_z > o->skip_norm);
}

/* Asks what the last step did, unless it is known. A skipped step does not move the schedule. */
static void settle(trainer *t, zero_step_report *done) {
    if (!t->unsettled) return;
    check(t, zero_step_result(t->z, done));
    t->updates = done->steps;
    t->unsettled = 0;
}

/* ---- 6 looking ----------------------------------------------------------------------------- */

enum { STREAM_SAMPLE = 1002 }; /* of gpt2_draw, after the model's and those of windows.h */

/* Batch i of the validation file: windows are dealt to the data-parallel ranks in turn; one whose
   share is used up takes part with none. */
static int load_validation(void *trainer_, int i, int *inputs, int *targets) {
    const trainer *t = (const trainer *)trainer_;
    const job *j = t->j;
    const int rows = j->batch.rows;
    const int64_t mine = ((int64_t)i * j->ranks.dp + j->ranks.dp_rank) * rows;
    const int64_t left = t->look - mine;
    const int count = left <= 0 ? 0 : left < rows ? (int)left : rows;
    corpus_look(j->data, mine, count, inputs, targets);
    return count;
}

/* Mean loss over the validation file; NaN if it had to stop. A pipeline takes several batches at
   once, for its stages to have work. */
static double validate(trainer *t) {
    job *j = t->j;
    const int64_t each = (int64_t)j->batch.rows * j->ranks.dp;
    const int at_once = t->groups.pp > 1 ? 4 * t->groups.pp : 1;
    const gpt2_feed feed = {load_validation, NULL, t};
    double total = 0;
    progress watch;
    t->look = j->data->look.count;
    if (j->opt->val_batches > 0 && t->look > j->opt->val_batches * each)
        t->look = j->opt->val_batches * each;
    const int batches = (int)((t->look + each - 1) / each);
    progress_begin(&watch, j->out, "validation");
    for (int first = 0; first < batches; first += at_once) {
        double sum = 0;
        if (must_stop(t)) return NAN;
        progress_at(&watch, (double)first / batches, NULL);
        const int n = batches - first < at_once ? batches - first : at_once;
        check_line(t, gpt2_pipeline_loss(t->line, &feed, first, n, &sum));
        total += sum;
    }
    check_groups(t, layout_sum_data(&t->groups, t->z, &total, 1));
    return total / ((double)t->look * j->batch.seq_len);
}

static void print_token(const job *j, int token) {
    char text[SAMPLE_TEXT];
    size_t length = 0;
    const unsigned char *bytes = NULL;
    if (j->data->has_words) bytes = tokenizer_bytes(&j->data->words, (uint32_t)token, &length);
    sample_print(token, bytes, length, text);
    say(j, "%s", text);
}

/* Text that goes on from the end-of-text token, each token seeing the last T. All ranks take part,
   since at stage 3 none has the weights. */
static void print_sample(trainer *t) {
    job *j = t->j;
    const int T = j->batch.seq_len, V = j->model.vocab_size;
    const tokenizer *words = j->data->has_words ? &j->data->words : NULL;
    const int known = words ? (int)words->count : V;
    j->sample[0] = words ? (int)words->end_of_text : V - 1;
    say(j, "generating:\n---\n");
    for (int n = 1; n <= j->opt->sample_tokens && !must_stop(t); n++) {
        int seen = n < T ? n : T;
        uint64_t draw = gpt2_draw((uint64_t)j->opt->seed, STREAM_SAMPLE, (uint64_t)n);
        check_line(t, gpt2_pipeline_logits(t->line, j->sample + n - seen, seen, j->logits));
        j->sample[n] = sample_pick(j->logits, known, (double)(draw >> 11) / 9007199254740992.0);
        print_token(j, j->sample[n]);
    }
    say(j, "\n---\n");
}

static zero_result read_weights(void *user, int tensor, size_t first, size_t count, float *out) {
    const trainer *t = (const trainer *)user;
    return gpt2_read(t->z, &t->j->model, &t->groups.part, tensor, ZERO_MASTER, first, count, out);
}

static uint64_t weights_of(const trainer *t) {
    uint64_t hash = 0;
    check_groups(t, hash_weights(read_weights, (void *)(uintptr_t)t, t->table, t->tensors, &hash));
    check_groups(t, layout_hash(&t->groups, &t->j->model, &hash));
    return hash;
}

/* Every so many steps, and at the end; `every` 0: at the end alone, below 0: never. */
static int is_due(const trainer *t, int every) {
    if (t->step == t->j->steps) return every >= 0;
    return every > 0 && t->step % every == 0;
}

static void print_validation(trainer *t) {
    double loss = validate(t);
    if (t->stop) return;
    say(t->j, "val loss %.4f\n", loss);
    check_log(t->j, main_log_validation(t->j->log, t->step, loss));
}

/* -h: the share of its examples that the model answers right. */
static void print_evaluation(trainer *t) {
    job *j = t->j;
    hellaswag *h = &j->data->exam;
    const int64_t passes = hellaswag_passes(h);
    progress watch;
    progress_begin(&watch, j->out, "HellaSwag");
    hellaswag_begin(h);
    for (int64_t pass = 0; pass < passes; pass++) {
        const float *losses;
        if (must_stop(t)) return;
        progress_at(&watch, (double)pass / (double)passes, NULL);
        const int rows = corpus_exam(j->data, j->inputs, j->targets);
        check_line(t, gpt2_pipeline_batch(t->line, j->inputs, j->targets, rows, &losses));
        if (losses != NULL) hellaswag_count(h, losses);
    }
    double sums[2] = {(double)h->right, (double)h->asked};
    check_groups(t, layout_sum_data(&t->groups, t->z, sums, 2));
    say(j, "HellaSwag: %.0f/%.0f = %f\n", sums[0], sums[1], sums[0] / sums[1]);
    check_log(j, main_log_evaluation(j->log, t->step, sums[0] / sums[1]));
}

/* Validation, evaluation and sample, before the step that is due. */
static void look_at_model(trainer *t) {
    const train_options *o = t->j->opt;
    const int last = t->step == t->j->steps, validates = is_due(t, o->val_every);
    const int evaluates = o->evaluate && (last || (t->step > 0 && validates));
    const int samples =
        o->sample_tokens > 0 && (t->step > 0 || t->j->steps == 0) && is_due(t, o->sample_every);
    if (!validates && !evaluates && !samples) return;
    count_file(t, 1);
    if (!t->stop && validates) print_validation(t);
    if (!t->stop && evaluates) print_evaluation(t);
    if (!t->stop && samples) print_sample(t);
    count_file(t, 0);
}

/* ---- 7 saves ------------------------------------------------------------------------------- */

/* Behind open_trainer. */
static void plan_saves(trainer *t) {
    const job *j = t->j;
    const saves_run run = {j->opt,        j->l,     j->out,         t->z,        &t->groups,
                           &j->model,     t->table, t->tensors,     j->settings, j->memory,
                           t->plan.numel, j->steps, j->batch.tokens};
    saves_plan(&t->keep, &run);
}

static saves_state state_of(trainer *t) {
    const saves_state at = {t->step, t->data_step, t->updates, &t->losses, &t->norms};
    return at;
}

/* A trainer and its saves, planned. -zog auto: where that does not fit into memory, once more with
   gradients in the file. */
static void open_fitting(trainer *t, job *j) {
    for (j->files_grads = 0;; j->files_grads = 1) {
        zero_config c;
        open_trainer(t, j, j->opt->stage.at[0], &j->l->comm[0]);
        plan_saves(t);
        zero_query_config(t->z, &c);
        const need_bytes need = needs_of(t, 1);
        if (!train_may_file(j->opt, &c) || launch_memory_fits(j->l, need.host, need.shared)) return;
        say(j,
            "gradients go to the file: with them in memory %d rank%s of %.1f MiB each do not fit\n",
            j->l->local_ranks, j->l->local_ranks > 1 ? "s" : "",
            (double)need.host / (1024.0 * 1024));
        close_trainer(t);
    }
}

/* After the context is built. Returns whether the weights are there. */
static int open_saves(trainer *t) {
    saves_state at = state_of(t);
    saves_open(&t->keep);
    if (!saves_load(&t->keep, &at)) return 0;
    t->step = at.step;
    t->data_step = at.data_step;
    t->updates = at.updates;
    return 1;
}

/* Into memory, then into the folder, with what main.log says of its steps. */
static void copy_if_due(trainer *t) {
    const saves_state at = state_of(t);
    if (!saves_copies(&t->keep, t->step)) return;
    count_file(t, 1);
    saves_copy(&t->keep, &at);
    count_file(t, 0);
}
static void save_if_due(trainer *t) {
    const saves_state at = state_of(t);
    const int last = t->stop || t->step == t->j->steps;
    if (!saves_due(&t->keep, t->step, last)) return;
    check_log(t->j, main_log_sync(t->j->log));
    count_file(t, 1);
    saves_save(&t->keep, &at, pace_mean(&t->speed), last);
    count_file(t, 0);
}

/* ---- 8 lines ------------------------------------------------------------------------------- */

#ifndef MATMUL_ROUNDS
#define MATMUL_ROUNDS 3 /* of which the best counts: other programs may run as well. 0: a test */
#endif

static void measure_matmul(trainer *t) {
    double best = 0;
    check_groups(t, layout_sum(&t->groups, t->z, NULL, 0));
    for (int i = 0; i < MATMUL_ROUNDS; i++) {
        double rate = gpt2_matmul_rate((zero_type)t->j->opt->type, t->j->threads);
        if (rate > best) best = rate;
    }
    double rates[2] = {best, gpt2_peak_rate((zero_type)t->j->opt->type, t->j->opt->tf32)};
    rates[1] /= t->j->computes.sharers;
    check_groups(t, layout_sum(&t->groups, t->z, rates, 2));
    t->j->matmul_rate = rates[0];
    t->j->peak_rate = rates[1];
}

static void print_settings(const trainer *t) {
    const job *j = t->j;
    const settings all = {j->opt,
                          &j->model,
                          &j->batch,
                          &j->ds,
                          j->l,
                          &j->ranks,
                          t->lr.kind,
                          j->data->train.count,
                          j->data->val.count,
                          corpus_order(j->data),
                          j->computes.name,
                          j->steps,
                          j->threads,
                          j->matmul_rate,
                          j->peak_rate,
                          gpt2_product_path(t->model),
                          gpt2_attention_path(t->model)};
    settings_rows(j->out, &all);
}

/* What a rank sends in a step beside its context: parts of layers, and between stages. */
static size_t parts_bytes(const trainer *t) {
    const gpt2_run run = make_run(t);
    const int micro_steps = t->j->batch.micro_steps;
    return gpt2_parallel_bytes(&t->j->model, &run) * (size_t)micro_steps
           + gpt2_pipeline_sent(&t->j->model, &run, micro_steps);
}

/* All of a rank, of the process that it is. */
static uint64_t planned_bytes(const trainer *t) {
    return plan_bytes(&t->plan, DEVICE_IS_HOST) + model_bytes(t) + t->keep.bytes + t->j->process;
}

static void print_plan(const trainer *t) {
    const job *j = t->j;
    const gpt2_run run = make_run(t);
    zero_config c;
    zero_query_config(t->z, &c);
    const plan_view all = {t->stage,
                           &t->plan,
                           &c,
                           run.recompute == GPT2_RECOMPUTE_AWAY,
                           gpt2_activation_bytes(&j->model, &run)
                               + gpt2_pipeline_bytes(&j->model, &run, j->batch.micro_steps),
                           gpt2_away_bytes(&j->model, &run),
                           t->keep.bytes,
                           t->keep.copies,
                           j->process,
                           planned_bytes(t),
                           parts_bytes(t),
                           DEVICE_AWAY,
                           DEVICE_IS_HOST};
    plan_table(j->out, &all);
}

/* A share is one at most: a step may do better than the product that was measured. */
static step_line make_line(const trainer *t, const step_values *v) {
    const job *j = t->j;
    const pace *p = &t->speed;
    const double peak = j->peak_rate > 0 ? j->peak_rate : j->matmul_rate;
    const double flops = p->rate * gpt2_flops_per_token(&j->model, j->batch.seq_len);
    const double share = peak <= 0 ? 0 : flops < peak ? flops / peak : 1;
    const char *of = j->peak_rate > 0 ? "MFU" : "of matmul";
    const step_line line = {t->step,  j->steps,        v->loss, v->loss_z, v->norm_z,
                            v->lr,    p->seconds,      share,   of,        p->smooth,
                            &v->done, t->groups.mixed, v->aux,  v->dropped};
    return line;
}

/* Which lines stay: -lp's; without it all, on a terminal those that something else follows. */
static int is_kept(const trainer *t, const step_values *v) {
    const job *j = t->j;
    const int every = j->opt->print_every > 0 ? j->opt->print_every : !j->out->terminal;
    if (!v->done.stepped || v->done.next_loss_scale != v->done.loss_scale) return 1;
    if (t->step == j->steps || t->stop || (every > 0 && t->step % every == 0)) return 1;
    return every == 0 && (t->step == t->first + 1 || is_due(t, j->opt->val_every));
}

/* What products fuse is found out when their shapes are first met, and so is what they need. */
static void print_first_step(const trainer *t, const char *before) {
    const job *j = t->j;
    const char *now = gpt2_product_path(t->model);
    if (strcmp(before, now) != 0) say(j, "matrix products: %s\n", now);
    if (DEVICE_IS_HOST) return;
    const gpt2_run run = make_run(t);
    const size_t planned =
        plan_bytes(&t->plan, DEVICE_IS_HOST) + gpt2_activation_bytes(&j->model, &run);
    const double mib = 1024.0 * 1024;
    say(j, "device memory: %.1f MiB taken, %.1f MiB planned\n",
        (double)device_taken(&j->computes) / mib, (double)planned * j->computes.sharers / mib);
}

/* That rank 0 had at most. */
static double memory_mib(trainer *t) {
    struct rusage used;
    if (!DEVICE_IS_HOST && t->step == t->first + 1)
        t->device_mib = (double)device_taken(&t->j->computes) / (1024.0 * 1024);
    if (!DEVICE_IS_HOST) return t->device_mib;
    return getrusage(RUSAGE_SELF, &used) == 0 ? (double)used.ru_maxrss / 1024.0 : 0;
}

static void train_step(trainer *t) {
    job *j = t->j;
    step_values v;
    char products[256], text[STEP_LINE_BYTES];
    snprintf(products, sizeof products, "%s", gpt2_product_path(t->model));
    memset(&v, 0, sizeof v);
    if (j->opt->print_batches) /* -db: all windows of the step, whoever trains on them */
        say(j, "batch %d %016llx\n", t->step,
            (unsigned long long)corpus_hash(j->data, step_of_data(t)));
    pace_begin(&t->speed);
    observe_begin(j->see, "step", BREAKDOWN_HOST);
    take_step(t, &v);
    observe_end(j->see);
    pace_end(&t->speed, (double)j->batch.tokens);
    const step_line line = make_line(t, &v);
    const main_log_values logged = {
        t->step - 1,  v.loss,        v.lr,          v.done.norm,
        line.seconds, t->speed.rate, memory_mib(t), v.done.stepped ? 0 : v.done.skipped};
    step_line_print(&line, text);
    if (is_kept(t, &v)) say(j, "%s", text);
    step_line_brief(&line, text);
    check_log(j, main_log_step(j->log, &logged));
    progress_at(&t->watch, (double)(t->step - t->first) / (j->steps - t->first), text);
    if (observe_step(j->see, &line, t->speed.began, t->step * j->batch.windows, logged.mib, text,
                     sizeof text))
        lose(j, text);
    if (t->step == t->first + 1) print_first_step(t, products);
}

static void say_mean_step(const trainer *t) {
    const double mean = pace_mean(&t->speed);
    if (mean > 0) say(t->j, "total average iteration time: %f ms\n", 1e3 * mean);
}

/* What this rank's contexts have moved since the last call: by steps, or by what is between them.
 */
static void count_file(trainer *t, int by_steps) {
    zero_ctx *const all[2] = {t->z, t->groups.experts};
    uint64_t now[2] = {0, 0};
    if (!t->plan.file_bytes) return;
    for (int i = 0; i < 2; i++) {
        zero_stats s;
        if (all[i] == NULL) continue;
        check_groups(t, zero_query_stats(all[i], &s));
        now[0] += s.file_read_bytes;
        now[1] += s.file_written_bytes;
    }
    for (int i = 0; i < 2; i++) {
        if (by_steps) t->moved[i] += now[i] - t->seen[i];
        t->seen[i] = now[i];
    }
}

static void say_file(const trainer *t) {
    const double mib = 1024.0 * 1024, steps = t->step - t->first;
    if (!t->plan.file_bytes || steps < 1) return;
    say(t->j,
        "moved by the file in a step, MiB of a rank: read %.1f, planned %.1f; written %.1f, "
        "planned %.1f\n",
        (double)t->moved[0] / mib / steps, (double)t->plan.file_read_bytes / mib,
        (double)t->moved[1] / mib / steps, (double)t->plan.file_written_bytes / mib);
}

/* Of this process, as it is now, beside what was planned. */
static void say_memory(const trainer *t) {
    const uint64_t held = launch_memory_held();
    const double mib = 1024.0 * 1024;
    if (!t->j->process || !held || t->j->l->kind == LAUNCH_THREADS) return;
    say(t->j, "memory of the process, what ranks share counted once: %.1f MiB, planned %.1f\n",
        (double)held / mib, (double)planned_bytes(t) / mib);
}

/* ---- 9 runs -------------------------------------------------------------------------------- */

static void open_log(trainer *t) {
    job *j = t->j;
    char sentence[LAUNCH_SENTENCE] = "";
    if (j->opt->log_dir[0] && j->l->rank == 0)
        j->log = main_log_open(j->opt->log_dir, t->step, sentence, sizeof sentence);
    require(j, !sentence[0], "%s", sentence);
    check_log(j, 0);
    if (j->products.hash && !t->keep.same_products)
        check_log(j, main_log_products(j->log, t->step, j->products.hash));
}

/* Of -nf 1: what was told on the way is an error in the end. */
static void close_log(job *j) {
    const int64_t lost = main_log_close(j->log);
    if (lost > 0)
        launch_fail(j->l, "-o: %s/main.log lacks %lld lines that could not be written",
                    j->opt->log_dir, (long long)lost);
    if (j->out->lost) launch_fail(j->l, "some of the output could not be written");
}

/* The hash of the weights is the last line. */
static void say_end(const trainer *t) {
    const train_options *o = t->j->opt;
    const uint64_t weights = weights_of(t);
    if (t->step > t->first && o->save_every == 0)
        say(t->j,
            "%s was saved: -o FOLDER -n STEPS keeps checkpoints, and -y 1 goes on from them\n",
            o->log_dir[0] ? "nothing but main.log" : "nothing");
    say(t->j, "weights %016llx\n", (unsigned long long)weights);
}

/* Their tracks in a timeline. */
static void see_groups(const trainer *t) {
    static const char *const names[] = {"tp", "pp", "ep", "world"};
    const layout *l = &t->groups; /* a pipeline's messages have a lane of their own */
    zero_group *const all[] = {l->part.tp, l->stage.pp, l->part.ep, l->world};
    for (int i = 0; i < 4; i++)
        check_groups(t, observe_group(t->j->see, t->z, all[i], i, all[i] == l->stage.pp, names[i]));
}

static int run_training(job *j) {
    trainer t;
    char text[LAUNCH_SENTENCE] = "";
    j->see = observe_open(j->opt, &j->ds, j->l, j->out, &j->model, j->batch.tokens, DEVICE_IS_HOST,
                          text, sizeof text);
    require(j, !text[0], "%s", text);
    open_fitting(&t, j);
    if (t.plan.file_bytes) launch_memory_tight();
    check_memory(&t, 1);
    progress_phase(j->out, "measuring a matrix product", 0);
    measure_matmul(&t);
    look_at_process(j);
    progress_phase(j->out, "building", plan_bytes(&t.plan, DEVICE_IS_HOST));
    check_groups(&t, layout_build(&t.groups, t.z, &t.plan));
    see_groups(&t);
    if (!open_saves(&t)) start_weights(&t);
    create_model(&t);
    open_log(&t);
    if (saves_from_copy(&t.keep))
        launch_copied(j->l, t.step);
    else
        launch_saved(j->l, t.step); /* what was loaded, or nothing */
    print_settings(&t);
    print_plan(&t);
    say_idle_flags(j);
    train_all(&t);
    check_groups(&t, observe_sum(j->see, t.z, t.groups.experts));
    if (t.stop)
        say(j, "stopped by a signal after step %d: -y 1 goes on\n", t.step);
    else
        say_end(&t);
    close_trainer(&t);
    if (observe_close(j->see, text, sizeof text)) lose(j, text);
    close_log(j);
    return 0;
}

/* What a comparison asks of its trainers. */
static void compare_step(void *trainer_, double *loss) {
    trainer *t = (trainer *)trainer_;
    step_values v;
    memset(&v, 0, sizeof v);
    if (loss != NULL) take_loss(t, &v); /* of the steps before */
    take_step(t, loss != NULL ? &v : NULL);
    if (loss != NULL) *loss = v.loss;
}
static void compare_wait(void *t) {
    char sentence[LAUNCH_SENTENCE];
    job *j = ((trainer *)t)->j;
    if (device_wait(&j->computes, sentence, sizeof sentence))
        launch_fail(j->l, "rank %d: %s", j->l->rank, sentence);
}
static void compare_check_result(void *t, zero_result result) { check((trainer *)t, result); }
static uint64_t compare_hash(void *t) { return weights_of((const trainer *)t); }
static void compare_sum(void *of, double *values, int n) {
    trainer *t = (trainer *)of;
    check_groups(t, layout_sum(&t->groups, t->z, values, n));
}
static void compare_beside(void *t, zero_stats *stats) {
    check_groups((trainer *)t, layout_stats(&((const trainer *)t)->groups, stats));
}

static void open_entries(job *jobs, compare *c, trainer *t) {
    const train_options *o = jobs->opt;
    char why[LAUNCH_SENTENCE] = "";
    for (int i = 0; i < c->n; i++) {
        compare_entry *e = &c->entry[i];
        job *j = &jobs[i];
        const int wrong =
            o->layouts[0]
            && train_divide_as(o, i, &j->model, &j->ranks, &j->batch, why, sizeof why);
        require(j, !wrong, "%s", why);
        open_trainer(&t[i], j, o->stage.at[o->layouts[0] ? 0 : i], &j->l->comm[i]);
        const gpt2_run run = make_run(&t[i]);
        e->trainer = &t[i];
        e->z = t[i].z;
        e->plan = &t[i].plan;
        e->stage = t[i].stage;
        e->beside_bytes = parts_bytes(&t[i]);
        e->activation_bytes = gpt2_activation_bytes(&j->model, &run);
        layout_name(&t[i].groups, e->layout);
        snprintf(e->name, sizeof e->name, "%d", e->stage);
        if (o->layouts[0]) snprintf(e->name, sizeof e->name, "%s", e->layout);
    }
    check_memory(t, c->n);
    for (int i = 0; i < c->n; i++) {
        check_groups(&t[i], layout_build(&t[i].groups, t[i].z, &t[i].plan));
        start_weights(&t[i]);
        create_model(&t[i]);
    }
}

static int run_comparison(job *j) {
    static const compare_host host = {compare_step, compare_wait, compare_check_result,
                                      compare_hash, compare_sum,  compare_beside};
    const train_options *o = j->opt;
    compare *c = (compare *)get_memory(j, 1, sizeof *c);
    trainer *t = (trainer *)get_memory(j, COMPARE_MOST, sizeof *t);
    job *jobs = (job *)get_memory(j, COMPARE_MOST, sizeof *jobs);
    FILE *csv = j->l->rank == 0 ? compare_open_csv(o->csv_path) : NULL;
    require(j, j->l->rank != 0 || csv != NULL, "-csv: %s cannot be written: %s", o->csv_path,
            strerror(errno));
    require(j, j->steps > 0 && j->steps % o->rounds == 0,
            "-x %d: the steps of a stage do not divide into -rd %d rounds", j->steps, o->rounds);
    c->host = &host;
    c->report = j->out;
    c->ranks = j->l->nranks;
    c->rounds = o->rounds;
    c->steps = j->steps;
    c->step_tokens = j->batch.tokens;
    c->n = o->layouts[0] ? layout_words(o->layouts) : o->stage.n;
    c->what = o->layouts[0] ? "layout" : "stage";
    for (int i = 0; i < c->n; i++) jobs[i] = *j;
    open_entries(jobs, c, t);
    measure_matmul(&t[0]);
    print_settings(&t[0]);
    say_idle_flags(j);
    compare_run(c);
    compare_print(c, csv);
    if (csv != NULL) fclose(csv);
    char unequal[LAUNCH_SENTENCE];
    const int differ = !o->layouts[0] && compare_unequal(c, unequal, sizeof unequal);
    require(j, !differ, "%s", unequal);
    for (int i = 0; i < c->n; i++) close_trainer(&t[i]);
    free(jobs);
    free(t);
    free(c);
    return 0;
}

/* ---- 10 main ------------------------------------------------------------------------------- */

static void resolve_model(job *j) {
    char why[LAUNCH_SENTENCE];
    require(j, !train_model(j->opt, &j->model, why, sizeof why), "%s", why);
}

static void resolve_ranks(job *j) {
    j->ranks.ranks = j->l->nranks; /* train_divide does the rest */
    j->ranks.rank = j->l->rank;
    j->threads = j->opt->threads > 0 ? j->opt->threads : launch_threads(j->l);
#ifdef _OPENMP
    omp_set_num_threads(j->threads);
#endif
}

/* Rank 0 reads or measures which way products take, for all. */
static void choose_products(job *j) {
    const train_options *o = j->opt;
    const size_t rows = (size_t)j->batch.rows * (size_t)j->batch.seq_len;
    gpt2_error error = {""};
    zero_result result = ZERO_OK;
    require(j, !o->products_path[0] || o->type == ZERO_F32,
            "-pc: it chooses among ways of f32 products; those of other types have one");
    if (j->l->rank == 0)
        result = gpt2_choose_products(&j->products, &j->model, rows, j->ranks.tp, o->tile_rows,
                                      o->products_path, j->threads, &error);
    require(j, result == ZERO_OK, "-pc: %s", error.sentence);
    launch_broadcast(j->l, &j->products, sizeof j->products);
}

static void get_buffers(job *j) {
    size_t tokens = (size_t)j->batch.rows * (size_t)j->batch.seq_len;
    j->inputs = (int *)get_memory(j, tokens, sizeof *j->inputs);
    j->targets = (int *)get_memory(j, tokens, sizeof *j->targets);
    j->sample = (int *)get_memory(j, (size_t)j->opt->sample_tokens + 1, sizeof *j->sample);
    j->logits = (float *)get_memory(j, (size_t)j->model.vocab_size, sizeof *j->logits);
}

static void free_buffers(job *j) {
    free(j->inputs);
    free(j->targets);
    free(j->sample);
    free(j->logits);
}

/* What a checkpoint's run can be told by: flags, with a file's values in their place. */
static void render_settings(job *j) {
    train_options_render(j->opt, j->settings, sizeof j->settings);
    const size_t used = strlen(j->settings);
    snprintf(j->settings + used, sizeof j->settings - used,
             "tokens-per-step %lld\nwindows %s\nds-config of hash %016llx\nproducts %s\n"
             "ranks %d\n%s",
             (long long)j->batch.tokens, corpus_order(j->data), (unsigned long long)j->ds_hash,
             j->products.name, j->l->nranks, j->data->said);
}

/* -pe, where ranks have died: how many of those that are left can go on? */
static void fit_ranks(job *j) {
    char why[LAUNCH_SENTENCE / 2] = "", sentence[LAUNCH_SENTENCE];
    const int here = j->l->nranks;
    if (j->l->starts == 0) return;
    const int n = train_fit(j->opt, &j->model, here, why, sizeof why);
    if (n == here) return;
    snprintf(sentence, sizeof sentence, "%d of %d ranks can go on: %s", n, here, why);
    require(j, n > 0, "%s", sentence);
    launch_fewer(j->l, n, sentence);
}

static int say_help(launch *l) {
    char sentence[LAUNCH_SENTENCE];
    train_options_help(PROGRAM);
    if (report_end(sentence, sizeof sentence)) launch_fail(l, "%s", sentence);
    return 0;
}

/* What main hands to the ranks. */
typedef struct start {
    train_options options;
    checkpoint_memory *memory[2]; /* -pm: of the model, and of its experts */
} start;

static int run_rank(launch *l, void *user) {
    job j; /* nothing is static: ranks can be threads of one process */
    const start *s = (const start *)user;
    train_options options = s->options, *o = &options; /* a file may change them */
    report out;
    corpus data;
    char sentence[LAUNCH_SENTENCE];
    if (o->help) return l->rank == 0 ? say_help(l) : 0;
    if (o->elastic && !o->resume) o->resume = 1;
    memset(&j, 0, sizeof j);
    memset(&out, 0, sizeof out);
    out.program = PROGRAM;
    out.speaks = l->rank == 0;
    out.terminal = l->rank == 0 && !l->elsewhere && report_is_terminal();
    j.opt = o;
    j.l = l;
    j.memory = s->memory;
    j.out = &out;
    out.on_loss = lose;
    out.user = &j;
    train_options_render(o, j.settings, sizeof j.settings);
    launch_same(l, j.settings);
    resolve_ranks(&j);
    const int none = device_open(&j.computes, l->local_ranks, sentence, sizeof sentence);
    require(&j, !none, "rank %d: %s", l->rank, sentence);
    resolve_model(&j);
    read_file(&j, o);
    const int clash = train_check(o, sentence, sizeof sentence);
    require(&j, !clash, "%s", sentence);
    require(&j, !o->copies || l->kind == LAUNCH_FORK,
            "-pm %d: copies are kept by what starts the ranks of -pn, found %d rank%s %s",
            o->copies, l->nranks, l->nranks > 1 ? "s" : "", launch_how(l));
    fit_ranks(&j);
    const int uneven = train_divide(o, &j.model, &j.ranks, &j.batch, sentence, sizeof sentence);
    require(&j, !uneven, "%s", sentence);
    if (!o->layouts[0]) launch_layout(l, j.ranks.tp, j.ranks.dp);
    if (model_is_file(o->model)) corpus_same(l, "-e", o->model);
    corpus_open(&data, l, &out, o, &j.model, &j.batch, &j.ranks);
    j.data = &data;
    j.steps = corpus_steps(&data);
    choose_products(&j);
    get_buffers(&j);
    render_settings(&j);
    int code = train_compares(o) ? run_comparison(&j) : run_training(&j);
    device_close(&j.computes);
    corpus_close(&data);
    free_buffers(&j);
    return code;
}

int main(int argc, char **argv) {
    start s;
    char method[OPTION_WORD_BYTES];
    if (!report_begin()) return LAUNCH_EXIT_FAILURE; /* and nowhere to say it */
    memset(&s, 0, sizeof s);
    train_options_parse(&s.options, argc, argv);
    saves_memory(&s.options, s.memory);
    launch_request request = train_request(&s.options, PROGRAM, method);
    request.rank_main = run_rank;
    request.user = &s;
    const int code = launch_run(&request);
    saves_memory_free(s.memory);
    return code;
}

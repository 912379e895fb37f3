/* train_gpt2_zero.cu - trains GPT-2 with zero_plugin.h, on llm.c's command line.

     ./train_gpt2_zero                    nanoGPT's character run on tiny Shakespeare, one rank
     ./train_gpt2_zero -pn 2 -z 3         the same on two ranks, everything sharded
     ./train_gpt2_zero -z 0,1,2,3         compares the stages: speed, memory, traffic, weights
     ./train_gpt2_zero --help             every flag, with its default

   One source, two compilers: C11 (cc -x c) and CUDA C++ (nvcc).

     1 a run        the state of a run and of one stage
     2 the loop     micro-steps, step, training: plain llm.c, and the zero_ calls
     3 output       one error line per job, from whichever rank fails; rank 0 prints the rest
     4 settings     DeepSpeed's JSON instead of flags; the plugin's settings
     5 trainer      one stage: context, model, weights, memory, losses and reports of steps
     6 evaluation   validation, sample, hash of the weights
     7 saves        the trainer's own state next to the plugin's; resuming from both
     8 lines        settings, plan, steps
     9 runs         a training run; a comparison of several stages
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

#include "adapters/checkpoint/model_files.h"
#include "adapters/compare/compare.h"
#include "adapters/compare/hashes.h"
#include "adapters/corpus/corpus.h"
#include "adapters/eval/sample.h"
#include "adapters/gpt2/device.h"
#include "adapters/gpt2/frozen.h"
#include "adapters/gpt2/gpt2.h"
#include "adapters/gpt2/lora.h"
#include "adapters/gpt2/products.h"
#include "adapters/gpt2/pipelined.h"
#include "adapters/launch/launch.h"
#include "adapters/launch/memory.h"
#include "adapters/options/train_ds.h"
#include "adapters/options/train_products.h"
#include "adapters/options/train_resolve.h"
#include "adapters/parallel/new_ranks.h"
#include "adapters/parallel/rechecks.h"
#include "adapters/plan/auto_run.h"
#include "adapters/report/file_bytes.h"
#include "adapters/report/idle.h"
#include "adapters/report/main_log.h"
#include "adapters/report/observe.h"
#include "adapters/report/observe_layout.h"
#include "adapters/report/pace.h"
#include "adapters/report/plan_rows.h"
#include "adapters/report/progress.h"
#include "adapters/report/report.h"
#include "adapters/report/run_note.h"
#include "adapters/report/settings_rows.h"
#include "adapters/report/step_line.h"
#include "adapters/saves/saves.h"
#include "adapters/schedule/outliers.h"
#include "adapters/system/regular_file.h"

#define PROGRAM "train_gpt2_zero"

/* ---- 1 a run ------------------------------------------------------------------------------- */

/* The state that all stages of a run share. */
typedef struct job {
    const train_options *opt;
    const char *flags; /* the command line */
    launch *l;
    report *out;
    main_log *log;   /* rank 0, with -o */
    observer *see;   /* NULL: no option such as -tr or -tb is set */
    int steps;       /* of the run; in a comparison, of each stage */
    int threads;     /* of this rank */
    int files_grads; /* -zog auto: the gradients do not fit into memory, and go to the file */
    layout ranks;    /* the role of each rank; without groups */
    gpt2_config model;
    batch_shape batch;
    corpus *data;                     /* the data files, and the windows of each step */
    ds_config ds;                     /* of -ds; all 0 without */
    uint64_t ds_hash;                 /* hash of the resolved settings */
    int *inputs, *targets;            /* [together * rows * T] */
    int *sample;                      /* [1 + sample_tokens] */
    float *logits;                    /* [V] */
    products_choice products;         /* the method of each f32 product */
    char settings[6144];              /* all flags and values, which each checkpoint contains */
    checkpoint_memory *const *memory; /* -pm: copies of the model and of its experts */
    double matmul_rate;               /* operations per second of all ranks together, measured */
    double peak_rate;                 /* the peak that the GPUs' maker states; 0: not known */
    device computes;                  /* the device of this rank */
    uint64_t process;                 /* bytes of a rank before it builds its context */
    char chosen[AUTO_FLAGS];          /* the flags that -z auto has chosen; "": it was not given */
    int chosen_now;                   /* 1: this start has chosen them */
} job;

/* One stage of a run. */
typedef struct trainer {
    job *j;
    zero_ctx *z;
    gpt2_model *model;
    gpt2_pipeline *line; /* runs the model if it is a pipeline stage, and evaluates it */
    rechecks checks;     /* -ck */
    layout groups;
    zero_tensor_desc table[GPT2_MOST_TENSORS]; /* of the whole model */
    int tensors;
    int stage;
    zero_plan plan;
    zero_hyper hyper; /* without lr and betas, which the schedule computes */
    schedule lr;
    outliers losses, norms;
    int step;          /* steps made, including skipped ones */
    int first;         /* those before this run */
    int64_t data_step; /* step whose data comes next; differs from `step` after resuming with other
                          batches */
    int64_t updates;   /* updates that the optimizer made; the schedule counts these */
    double *leaf_losses; /* -vr: [micro_steps] since the last sum_losses; and steps since then */
    int leaf_steps;
    int report_pending; /* the trainer has not yet read the report of the last step */
    saves keep;
    file_bytes file;
    int stop;             /* a signal has asked any rank to stop */
    int moves;            /* -pnf: the ranks change after this step */
    int64_t eval_windows; /* windows of one validation */
    pace speed;
    progress watch;    /* of the whole run */
    double device_mib; /* CUDA: MiB in use after the first step */
} trainer;

/* The values that a step reports. */
typedef struct step_values {
    double loss, aux, dropped; /* means over ranks; experts: auxiliary loss, dropped choices */
    double loss_z, norm_z;
    double lr;
    zero_step_report done;
} step_values;

/* ---- 2 the loop ---------------------------------------------------------------------------- */

static void check(const trainer *t, zero_result result); /* ends the job with an error line */
static void check_model(const trainer *t, zero_result result);
static void check_pipeline(const trainer *t, zero_result result);
static int load_batch(void *trainer_, int micro, int *inputs, int *targets); /* this rank's rows */
static void read_step_report(trainer *t, zero_step_report *done);
static int skip_step_if_outlier(trainer *t, step_values *v);
static void sum_losses(trainer *t, step_values *v);
static void evaluate_if_due(trainer *t); /* validation and sample, when they are due */
static void train_step(trainer *t);
static void copy_to_memory_if_due(trainer *t);
static void save_checkpoint_if_due(trainer *t);
static void report_mean_step_time(const trainer *t);
static void count_file_bytes(trainer *t, int by_steps);
static void report_process_memory(const trainer *t);
static uint64_t planned_bytes(const trainer *t);
static trainer *move_to_new_ranks(trainer *t, trainer *next, job *j);
static void take_new_ranks(job *j);

/* -mo layers: runs forward and backward of all micro-steps, layer by layer, as one micro-step of
   the plugin. */
static void run_layers(trainer *t, float factor) {
    job *j = t->j;
    const size_t tokens = (size_t)j->batch.rows * (size_t)j->batch.seq_len;
    observe_begin(j->see, "data", BREAKDOWN_DATA);
    for (int micro = 0; micro < j->batch.together; micro++)
        (void)load_batch(t, micro, j->inputs + (size_t)micro * tokens,
                         j->targets + (size_t)micro * tokens);
    observe_end(j->see);
    check_model(t, gpt2_pass_begin(t->model, ZERO_TRAIN, 0, 1));
    check_model(t, gpt2_train_layers(t->model, j->inputs, j->targets, factor));
    check_model(t, gpt2_pass_end(t->model));
}

/* -vr: adds the loss of a micro-step to those of the same micro-step of earlier steps. */
static void add_leaf_loss(trainer *t, int micro) {
    double loss = 0;
    check_model(t, gpt2_take_losses(t->model, &loss));
    t->leaf_losses[micro] += loss;
}

/* -vr: returns the sum over all ranks of the losses of all micro-steps, in an order that does not
   depend on the number of ranks: each sum of one micro-step adds zeros only. */
static double sum_leaf_losses(trainer *t) {
    enum { MOST = 32 };
    double values[MOST], sum = 0;
    const int each = t->j->batch.micro_steps, mine = t->j->ranks.dp_rank * each;
    for (int first = 0; first < t->j->opt->virtual_ranks; first += MOST) {
        const int left = t->j->opt->virtual_ranks - first, n = left < MOST ? left : MOST;
        for (int i = 0; i < n; i++) {
            const int micro = first + i - mine;
            values[i] = micro >= 0 && micro < each ? t->leaf_losses[micro] : 0;
        }
        check(t, layout_sum(&t->groups, t->z, values, n));
        for (int i = 0; i < n; i++) sum += values[i];
    }
    memset(t->leaf_losses, 0, (size_t)each * sizeof *t->leaf_losses);
    if (t->leaf_steps) sum /= t->leaf_steps;
    t->leaf_steps = 0;
    return sum;
}

/* Runs forward and backward of all micro-steps of a step. On a GPU this only enqueues the work. */
static void run_micro_steps(trainer *t) {
    job *j = t->j;
    const int micro_steps = j->batch.micro_steps;
    /* With -vr the plugin divides by all micro-steps of all ranks. */
    const float factor = zero_loss_scale(t->z) / (float)(j->opt->virtual_ranks ? 1 : micro_steps);
    const gpt2_feed feed = {load_batch, NULL, t};
    rechecks_begin_step(&t->checks, j->opt, t->model, t->step + 1);
    if (j->batch.together > 1) {
        run_layers(t, factor);
        return;
    }
    for (int micro = 0; micro < micro_steps && t->groups.pp == 1; micro++) {
        observe_begin(j->see, "data", BREAKDOWN_DATA);
        (void)load_batch(t, micro, j->inputs, j->targets);
        observe_end(j->see);
        check_model(t, gpt2_pass_begin(t->model, ZERO_TRAIN, micro, micro_steps));
        check_model(t, gpt2_train_step(t->model, j->inputs, j->targets, factor, NULL));
        check_model(t, gpt2_pass_end(t->model));
        if (j->opt->virtual_ranks) add_leaf_loss(t, micro);
    }
    t->leaf_steps++;
    if (t->groups.pp == 1) return;
    check_model(t, gpt2_pass_begin(t->model, ZERO_TRAIN, ZERO_TOGETHER, micro_steps));
    check_pipeline(t, gpt2_pipeline_train(t->line, &feed, factor));
    check_model(t, gpt2_pass_end(t->model));
}

/* Makes one step. If v is NULL, the CPU waits for the GPU only to read whether the previous step
   was skipped, after it has enqueued the micro-steps of this one. Otherwise the CPU fills *v and
   waits once: after it has enqueued the whole step or, with -sl or -sg, before the update. */
static void make_step(trainer *t, step_values *v) {
    const train_options *o = t->j->opt;
    const int judged = v != NULL && (o->skip_loss > 0 || o->skip_norm > 0);
    zero_step_report done;
    schedule_value now;
    run_micro_steps(t);
    read_step_report(t, &done);
    schedule_at(&t->lr, t->updates, &now);
    zero_hyper hyper = t->hyper;
    hyper.lr = (float)now.lr;
    hyper.beta1 = (float)now.beta1;
    hyper.beta2 = (float)now.beta2;
    check(t, layout_reduce(&t->groups, t->z));
    check(t,
          layout_step(&t->groups, t->z, judged && v && skip_step_if_outlier(t, v) ? NULL : &hyper));
    t->step++;
    t->data_step++;
    t->report_pending = 1;
    if (v == NULL) return;
    v->lr = now.lr;
    if (!judged) sum_losses(t, v);
    read_step_report(t, &v->done);
    if (judged) return;
    v->loss_z = outliers_score(&t->losses, v->loss);
    v->norm_z = outliers_score(&t->norms, v->done.norm);
}

/* Makes steps until the last one, or until a signal asks the run to stop. With -pnf, goes on with
   `spare` if the ranks change. Returns the last trainer, or NULL if this rank has left. */
static trainer *train_all(trainer *t, trainer *spare) {
    progress_begin(&t->watch, t->j->out, "training");
    count_file_bytes(t, 0);
    if (saves_from_copy(&t->keep))
        save_checkpoint_if_due(t); /* the run before this one died before it saved this step */
    for (;;) {
        /* The last step is saved with its delayed update pending, for a run that resumes from it.
           The evaluation after it sees the result. */
        if (t->step == t->j->steps) check(t, layout_apply_pending(&t->groups, t->z));
        evaluate_if_due(t);
        if (t->step == t->j->steps || t->stop) break;
        train_step(t);
        copy_to_memory_if_due(t);
        save_checkpoint_if_due(t);
        if (!t->moves || t->stop || t->step == t->j->steps) continue;
        trainer *before = t;
        if ((t = move_to_new_ranks(before, spare, t->j)) == NULL) return NULL;
        spare = before;
    }
    count_file_bytes(t, 1);
    save_checkpoint_if_due(t); /* a signal came during an evaluation */
    report_mean_step_time(t);
    file_bytes_report(&t->file, t->j->out, &t->plan, t->step);
    report_process_memory(t);
    return t;
}

/* ---- 3 output ------------------------------------------------------------------------------ */

/* Ends the job if the condition is false. For conditions that are equal on all ranks, and for
   checks that each rank makes before it builds its context. COLLECTIVE. */
#define require(j, ...) launch_require((j)->l, __VA_ARGS__)
/* Rank 0 prints these; the other ranks print nothing. */
#define print_rank0(j, ...) report_print((j)->out, __VA_ARGS__)
#define warn_rank0(j, ...)  report_warn((j)->out, __VA_ARGS__)

/* Receives the plugin's log: rank 0 prints information, and each rank prints its own warnings. The
   plugin returns errors as results, which the functions below print once. */
static void on_log(void *user, zero_log_level level, const char *sentence) {
    const job *j = (const job *)user;
    report_clear(j->out);
    if (level == ZERO_LOG_INFO) print_rank0(j, "%s\n", sentence);
    if (level == ZERO_LOG_WARNING)
        fprintf(stderr, PROGRAM ": warning of rank %d: %s\n", j->l->rank, sentence);
}

/* Returns the last error of the plugin or of the groups, with flags instead of the plugin's names.
 */
static const char *get_error(const trainer *t, char sentence[LAUNCH_SENTENCE]) {
    const char *why = t->z != NULL ? zero_last_error(t->z) : "";
    train_options_translate(t->j->opt, why[0] ? why : layout_error(&t->groups), sentence,
                            LAUNCH_SENTENCE);
    return sentence;
}

static void check(const trainer *t, zero_result result) {
    char sentence[LAUNCH_SENTENCE];
    if (result != ZERO_OK) launch_fail_result(t->j->l, result, get_error(t, sentence));
}

static void check_model(const trainer *t, zero_result result) {
    if (result != ZERO_OK) rechecks_fail(t->j->l, t->j->opt, t->model, result);
}
static void check_pipeline(const trainer *t, zero_result result) {
    if (result != ZERO_OK) launch_fail_result(t->j->l, result, gpt2_pipeline_error(t->line));
}

/* Called when a line of stdout or main.log could not be written. Ends the job, or warns if -nf 1 is
   given, as for a checkpoint that cannot be written. */
static void on_lost_line(void *user, const char *sentence) {
    const job *j = (const job *)user;
    if (!j->opt->save_or_go_on) launch_fail(j->l, "%s", sentence);
    warn_rank0(j, "%s", sentence);
}

/* Checks main.log after each line. */
static void check_log(job *j, int failed) {
    const char *note = main_log_note(j->log);
    if (note != NULL) warn_rank0(j, "%s", note);
    if (failed) on_lost_line(j, main_log_error(j->log));
}

static void *allocate_memory(job *j, size_t count, size_t size) {
    void *memory = calloc(count ? count : 1, size);
    require(j, memory != NULL, "rank %d: out of memory for %zu elements of %zu bytes", j->l->rank,
            count, size);
    return memory;
}

/* ---- 4 settings ---------------------------------------------------------------------------- */

/* Returns the plugin's settings: from the file, from the flags, and those of this rank. */
static ds_config make_settings(const job *j, int stage) {
    ds_config all = train_settings(j->opt, &j->ds, j->model.channels);
    zero_config *c = &all.zero;
    c->stage = stage;
    train_micro_steps(&j->batch, c);
    /* The two methods to accumulate round differently. A comparison needs the same one. */
    if (j->opt->stage.n > 1 && c->micro_steps > 1 && j->ranks.pp == 1
        && c->accumulation == ZERO_ACCUMULATE_AUTO && !c->virtual_ranks)
        c->accumulation = ZERO_ACCUMULATE_SHARDED;
    train_tiers(j->opt, j->ranks.pp, c);
    if (j->files_grads) c->gradient_tier = ZERO_FILE;
    c->threads = j->threads;
    c->stream = j->computes.stream;
    observe_set_trace(j->see, c);
    c->log = on_log;
    c->log_user = (void *)(uintptr_t)j;
    return all;
}

/* ---- 5 trainer ----------------------------------------------------------------------------- */

/* Returns the step whose data comes next. With -a this is always step 0. */
static int64_t get_data_step(const trainer *t) { return t->j->opt->overfit ? 0 : t->data_step; }

static int load_batch(void *trainer_, int micro, int *inputs, int *targets) {
    const trainer *t = (const trainer *)trainer_;
    const job *j = t->j;
    const int rows = j->batch.rows;
    const int64_t place = j->opt->virtual_ranks
                              ? (int64_t)j->ranks.dp_rank * j->batch.micro_steps + micro
                              : (int64_t)micro * j->ranks.dp + j->ranks.dp_rank;
    const int64_t first = place * rows;
    corpus_load_step(j->data, get_data_step(t), first, rows, inputs, targets);
    return rows;
}

/* Opens the context and plans it. This allocates nothing large. */
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
    t->groups.leaves_frozen = !j->opt->save_frozen;
    check(t, layout_open(&t->groups, comm, &j->computes, config.zero.timeout_s));
    const zero_comm shards = layout_comm(&t->groups, comm);
    require(j, layout_settings(&t->groups, &j->model, &config.zero) == ZERO_OK, "no memory");
    check(t, zero_create(&t->z, &config.zero, &shards));
    check(t, gpt2_announce(t->z, &j->model, &t->groups.part, j->opt->tile_rows));
    t->tensors =
        gpt2_table(&j->model, NULL, 0, t->table); /* the tensors of checkpoints and hashes */
    check(t, layout_experts(&t->groups, t->z, &j->model, &config.zero, shards.node_size,
                            observe_experts_user(j->see)));
    check(t, layout_order(&t->groups, t->z, &j->model, &config.zero));
    zero_result planned = layout_plan(&t->groups, t->z, &t->plan);
    require(j, planned == ZERO_OK, "%s", get_error(t, sentence));
}

static gpt2_run make_run(const trainer *t) {
    const job *j = t->j;
    const train_options *o = j->opt;
    gpt2_run run = {j->batch.rows,   j->batch.seq_len,  o->recompute, (zero_type)o->type,
                    o->tf32,         o->any_order,      o->tile_rows, train_folder(o, &j->ds),
                    &t->groups.part, j->batch.together, o->mlp_rows,  j->batch.group};
    return run;
}

static void report_idle(const trainer *t) {
    const job *j = t->j;
    idle_flags(j->out, j->opt, j->see != NULL, j->chosen[0] != 0, t->step, j->steps,
               j->batch.micro_steps / j->batch.together, DEVICE_IS_HOST);
}

/* Reads the weights that a new run starts with from a file, or draws them at random. */
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
    if (result == ZERO_OK)
        result = gpt2_lora_init(t->z, &j->model, &t->groups.part, (uint64_t)j->opt->seed, &error);
    if (result != ZERO_OK) launch_fail_result(j->l, result, error.sentence);
}

static void create_model(trainer *t) {
    job *j = t->j;
    gpt2_run run = make_run(t);
    gpt2_error error;
    zero_result result = gpt2_create(&t->model, t->z, &j->model, &run, &error);
    require(j, result == ZERO_OK, "%s", error.sentence);
    gpt2_take_products(t->model, &j->products);
    t->leaf_losses =
        (double *)allocate_memory(j, (size_t)j->batch.micro_steps, sizeof *t->leaf_losses);
    if (j->opt->graphs) result = gpt2_record_graphs(t->model, &error);
    require(j, result == ZERO_OK, "-cg 1: %s", error.sentence);
    result = gpt2_pipeline_open(&t->line, t->z, t->model, &t->groups.stage, j->batch.micro_steps,
                                j->computes.stream, &error);
    require(j, result == ZERO_OK, "%s", error.sentence);
    rechecks_open(&t->checks, j->l, j->opt, &j->model, &run, t->model, j->computes.stream, j->out);
}

static void close_model(trainer *t) {
    saves_close(&t->keep);
    free(t->leaf_losses);
    gpt2_pipeline_close(t->line);
    gpt2_destroy(t->model);
    rechecks_close(&t->checks);
}
static void close_context(trainer *t) {
    layout_destroy(&t->groups, t->z);
    layout_close(&t->groups);
}
static void close_trainer(trainer *t) {
    close_model(t);
    close_context(t);
}

/* Returns the bytes of a rank's activations, messages of a pipeline, and checks of -ck. */
static size_t activation_bytes(const trainer *t) {
    const job *j = t->j;
    const gpt2_run run = make_run(t);
    return gpt2_activation_bytes(&j->model, &run)
           + gpt2_pipeline_bytes(&j->model, &run, j->batch.micro_steps)
           + rechecks_bytes(j->opt, &j->ranks, &j->model, &run);
}

/* Returns the bytes that the model and its batch will take on a rank. */
static uint64_t model_bytes(const trainer *t) {
    const batch_shape *b = &t->j->batch;
    return activation_bytes(t) + (uint64_t)b->rows * b->seq_len * b->together * 2 * sizeof(int);
}

/* The bytes that the trainers of a rank will take: on its device, on the host, and the part of the
   host's bytes that ranks may share. */
typedef struct need_bytes {
    uint64_t device, host, shared;
} need_bytes;

static need_bytes compute_needed_bytes(const trainer *t, int count) {
    const job *j = t->j;
    need_bytes all = {0, 0, 0};
    for (int i = 0; i < count; i++) {
        const zero_plan *p = &t[i].plan;
        const gpt2_run run = make_run(&t[i]);
        require(j, gpt2_activation_bytes(&j->model, &run) > 0,
                "-b %d: too many sequences of -t %d tokens for the model's activations; use fewer",
                run.batch, run.seq_len);
        const uint64_t bytes = plan_bytes(p, DEVICE_IS_HOST) + model_bytes(&t[i]);
        all.device += bytes;
        all.host += t[i].keep.bytes - t[i].keep.taken;
        all.host += DEVICE_IS_HOST ? bytes : p->host_bytes + p->context_bytes;
        if (DEVICE_IS_HOST) all.shared += plan_bytes(p, 1) - p->optimizer_bytes;
    }
    return all;
}

/* Returns how many of the needed bytes of a device can be lacking. The model makes the last
   allocation, unless other ranks share the device, or a pipeline follows. */
static uint64_t compute_spare_bytes(const trainer *t, int count) {
    const job *j = t->j;
    const gpt2_run run = make_run(t);
    if (count > 1 || j->computes.sharers > 1
        || gpt2_pipeline_bytes(&j->model, &run, j->batch.micro_steps) > 0)
        return 0;
    return gpt2_spare_bytes(&j->model, &run);
}

/* Ends the job if the ranks of this machine, or of a GPU, do not fit into its memory. Called before
   anything is built. */
static void check_memory(const trainer *t, int count) {
    char sentence[LAUNCH_SENTENCE];
    job *j = t->j;
    const need_bytes need = compute_needed_bytes(t, count);
    const uint64_t least = need.device - compute_spare_bytes(t, count);
    const int full = device_fits(&j->computes, least, sentence, sizeof sentence);
    require(j, !full, "rank %d: %s", j->l->rank, sentence);
    launch_check_memory(j->l, need.host, need.shared);
}

/* Measures the memory of the program and its libraries. Called before anything is built, and after
   the first matrix products, for which the library compiles code. Ranks can be threads of one
   process. */
static void measure_process_bytes(job *j) {
    if (!DEVICE_IS_HOST) return;
    j->process = launch_memory_held() / (uint64_t)(j->l->kind == LAUNCH_THREADS ? j->l->nranks : 1);
}

/* --memory: ends the job if the plan of a rank needs more. Called after measure_process_bytes. */
static void check_memory_flag(const trainer *t) {
    const job *j = t->j;
    const double mib = 1024.0 * 1024, most = train_memory(j->opt);
    const uint64_t need =
        DEVICE_IS_HOST ? planned_bytes(t) : plan_bytes(&t->plan, DEVICE_IS_HOST) + model_bytes(t);
    require(j, most <= 0 || (double)need <= most,
            "--memory %s: the plan needs %.1f MiB of each rank; choose a higher -z, a smaller -b, "
            "-r 3 or more memory, or let -z auto choose",
            j->opt->memory, (double)need / mib);
}

/* Computes the mean losses over the ranks, of all steps since the last call. The same sum reports
   to all ranks whether a signal has asked one of them to stop, and with -pnf whether the ranks
   change. */
static void sum_losses(trainer *t, step_values *v) {
    job *j = t->j;
    const int changes = launch_changes(j->l);
    double sums[4] = {0, launch_asked_to_stop() ? 1.0 : 0.0};
    if (changes && j->l->rank == 0) sums[2] = new_ranks_ready(j->l, j->opt, &j->model, j->out);
    observe_begin(t->j->see, "loss", BREAKDOWN_HOST);
    if (!t->j->opt->virtual_ranks) check_model(t, gpt2_take_losses(t->model, &sums[0]));
    if (t->groups.mixed) check_model(t, gpt2_take_experts(t->model, &sums[2], &sums[3]));
    check(t, layout_sum(&t->groups, t->z, sums, t->groups.mixed ? 4 : 2 + changes));
    observe_end(t->j->see);
    t->stop = t->stop || sums[1] > 0;
    t->moves = changes && sums[2] > 0;
    v->loss =
        sums[0] * t->groups.pp / t->j->l->nranks; /* only the last stage of a pipeline has a loss */
    if (t->j->opt->virtual_ranks) v->loss = sum_leaf_losses(t) / t->j->opt->virtual_ranks;
    v->aux = sums[2] * t->groups.pp / t->j->l->nranks;
    v->dropped = sums[3] / t->groups.tp;
}

/* Returns whether a signal has asked any rank to stop. Called between steps. COLLECTIVE with -n. */
static int check_stop_request(trainer *t) {
    double asked = launch_asked_to_stop() ? 1 : 0;
    if (t->j->opt->save_every > 0) check(t, layout_sum(&t->groups, t->z, &asked, 1));
    t->stop = t->stop || asked > 0;
    return t->stop;
}

/* -sl and -sg: returns 1 if the loss or the norm of this step is an outlier, and the step must be
   skipped. As in llm.c, this comes between the reduction and the update. */
static int skip_step_if_outlier(trainer *t, step_values *v) {
    const train_options *o = t->j->opt;
    double norm = 0;
    sum_losses(t, v);
    check(t, zero_norm(t->z, &norm));
    v->loss_z = outliers_score(&t->losses, v->loss);
    v->norm_z = outliers_score(&t->norms, norm);
    return (o->skip_loss > 0 && v->loss_z > o->skip_loss)
           || (o->skip_norm > 0 && v->norm_z > o->skip_norm);
}

/* Reads the report of the last step, once. A skipped step does not advance the schedule. */
static void read_step_report(trainer *t, zero_step_report *done) {
    if (!t->report_pending) return;
    check(t, zero_step_result(t->z, done));
    t->updates = done->steps;
    t->report_pending = 0;
}

/* ---- 6 evaluation -------------------------------------------------------------------------- */

/* The number of a random stream of gpt2_draw. The model and windows.h use smaller numbers. */
enum { STREAM_SAMPLE = 1002 };

/* Loads batch i of the validation file. The data-parallel ranks take the windows in rank order;
   context-parallel ranks take the same ones. A rank without windows left has an empty batch. */
static int load_validation(void *trainer_, int i, int *inputs, int *targets) {
    const trainer *t = (const trainer *)trainer_;
    const job *j = t->j;
    const int rows = j->batch.rows;
    const int64_t mine = ((int64_t)i * j->ranks.dp + j->ranks.dp_rank) * rows;
    const int64_t left = t->eval_windows - mine;
    const int count = left <= 0 ? 0 : left < rows ? (int)left : rows;
    corpus_load_validation(j->data, mine, count, inputs, targets);
    return count;
}

/* Returns the mean loss over the validation file, or NaN if a signal stopped it. A pipeline takes
   several batches at once, so that all of its stages have work. */
static double validate(trainer *t) {
    job *j = t->j;
    const int64_t each = (int64_t)j->batch.rows * j->ranks.dp;
    const int64_t most =
        j->opt->virtual_ranks ? (int64_t)j->batch.rows * j->opt->virtual_ranks : each;
    const int at_once = t->groups.pp > 1 ? 4 * t->groups.pp : 1;
    const gpt2_feed feed = {load_validation, NULL, t};
    double total = 0;
    progress watch;
    t->eval_windows = j->data->val_windows.count;
    if (j->opt->val_batches > 0 && t->eval_windows > j->opt->val_batches * most)
        t->eval_windows = j->opt->val_batches * most;
    const int batches = (int)((t->eval_windows + each - 1) / each);
    progress_begin(&watch, j->out, "validation");
    for (int first = 0; first < batches; first += at_once) {
        double sum = 0;
        if (check_stop_request(t)) return NAN;
        progress_at(&watch, (double)first / batches, NULL);
        const int n = batches - first < at_once ? batches - first : at_once;
        check_pipeline(t, gpt2_pipeline_loss(t->line, &feed, first, n, &sum));
        total += sum;
    }
    check(t, layout_sum_data(&t->groups, t->z, &total, 1));
    return total / ((double)t->eval_windows * j->batch.seq_len);
}

static void print_token(const job *j, int token) {
    char text[SAMPLE_TEXT];
    size_t length = 0;
    const unsigned char *bytes = NULL;
    if (j->data->has_words) bytes = tokenizer_bytes(&j->data->words, (uint32_t)token, &length);
    sample_print(token, bytes, length, text);
    print_rank0(j, "%s", text);
}

/* Prints a text that continues the end-of-text token, token by token. Each token sees the last T
   tokens. The model keeps the keys and values of the first T; after them it computes all T tokens
   again, because their positions change. All ranks take part, because at stage 3 no rank has all
   weights. A signal ends the text. */
static void print_sample(trainer *t) {
    job *j = t->j;
    const int T = j->batch.seq_len, V = j->model.vocab_size;
    const tokenizer *words = j->data->has_words ? &j->data->words : NULL;
    const int known = words ? (int)words->count : V;
    j->sample[0] = words ? (int)words->end_of_text : V - 1;
    print_rank0(j, "generating:\n---\n");
    for (int n = 1; n <= j->opt->sample_tokens && !check_stop_request(t); n++) {
        int seen = n < T ? n : T;
        uint64_t draw = gpt2_draw((uint64_t)j->opt->seed, STREAM_SAMPLE, (uint64_t)n);
        check_pipeline(t,
                       gpt2_pipeline_next_logits(t->line, j->sample + n - seen, seen, j->logits));
        j->sample[n] = sample_pick(j->logits, known, (double)(draw >> 11) / 9007199254740992.0);
        print_token(j, j->sample[n]);
    }
    print_rank0(j, "\n---\n");
}

static zero_result read_weights(void *user, int tensor, size_t first, size_t count, float *out) {
    const trainer *t = (const trainer *)user;
    return gpt2_read(t->z, &t->j->model, &t->groups.part, gpt2_tensor_at(&t->j->model, tensor),
                     ZERO_MASTER, first, count, out);
}

static uint64_t hash_weights_of(const trainer *t) {
    uint64_t hash = 0;
    check(t, hash_weights(read_weights, (void *)(uintptr_t)t, t->table, t->tensors, &hash));
    check(t, layout_hash(&t->groups, &t->j->model, &hash));
    return hash;
}

/* Returns whether this step is a multiple of `every`, or the last one. 0 means only the last one,
   and below 0 means never. */
static int is_due(const trainer *t, int every) {
    if (t->step == t->j->steps) return every >= 0;
    return every > 0 && t->step % every == 0;
}

static void print_validation(trainer *t) {
    double loss = validate(t);
    if (t->stop) return;
    print_rank0(t->j, "val loss %.4f\n", loss);
    check_log(t->j, main_log_validation(t->j->log, t->step, loss));
}

/* -h: prints the share of HellaSwag's examples that the model answers correctly. */
static void print_evaluation(trainer *t) {
    job *j = t->j;
    hellaswag *h = &j->data->examples;
    const int64_t passes = hellaswag_passes(h);
    progress watch;
    progress_begin(&watch, j->out, "HellaSwag");
    hellaswag_begin(h);
    for (int64_t pass = 0; pass < passes; pass++) {
        const float *losses;
        if (check_stop_request(t)) return;
        progress_at(&watch, (double)pass / (double)passes, NULL);
        const int rows = corpus_load_examples(j->data, j->inputs, j->targets);
        check_pipeline(t, gpt2_pipeline_batch(t->line, j->inputs, j->targets, rows, &losses));
        if (losses != NULL) hellaswag_count(h, losses);
    }
    double sums[2] = {(double)h->right, (double)h->asked};
    check(t, layout_sum_data(&t->groups, t->z, sums, 2));
    for (int i = 0; i < 2; i++) sums[i] /= t->groups.cp; /* which all count the same examples */
    print_rank0(j, "HellaSwag: %.0f/%.0f = %f\n", sums[0], sums[1], sums[0] / sums[1]);
    check_log(j, main_log_evaluation(j->log, t->step, sums[0] / sums[1]));
}

/* Validates, evaluates and samples before the next step, each if it is due. */
static void evaluate_if_due(trainer *t) {
    const train_options *o = t->j->opt;
    const int last = t->step == t->j->steps, validates = is_due(t, o->val_every);
    const int evaluates = o->evaluate && (last || (t->step > 0 && validates));
    const int samples =
        o->sample_tokens > 0 && (t->step > 0 || t->j->steps == 0) && is_due(t, o->sample_every);
    if (!validates && !evaluates && !samples) return;
    count_file_bytes(t, 1);
    if (!t->stop && validates) print_validation(t);
    if (!t->stop && evaluates) print_evaluation(t);
    if (!t->stop && samples) print_sample(t);
    count_file_bytes(t, 0);
}

/* ---- 7 saves ------------------------------------------------------------------------------- */

static saves_run get_saves_run(const trainer *t) {
    const job *j = t->j;
    const saves_run run = {j->opt,        j->l,     j->out,         t->z,        &t->groups,
                           &j->model,     t->table, t->tensors,     j->settings, j->memory,
                           t->plan.numel, j->steps, j->batch.tokens};
    return run;
}

static saves_state get_saves_state(trainer *t) {
    const saves_state at = {t->step, t->data_step, t->updates, &t->losses, &t->norms};
    return at;
}

/* Opens a trainer and plans its checkpoints. With -zog auto, if this does not fit into memory,
   opens the trainer again with its gradients in the file. */
static void open_trainer_that_fits(trainer *t, job *j) {
    for (j->files_grads = 0;; j->files_grads = 1) {
        zero_config c;
        open_trainer(t, j, j->opt->stage.at[0], &j->l->comm[0]);
        const saves_run run = get_saves_run(t);
        saves_plan(&t->keep, &run);
        zero_query_config(t->z, &c);
        const need_bytes need = compute_needed_bytes(t, 1);
        if (!train_may_file(j->opt, &c) || launch_memory_fits(j->l, need.host, need.shared)) return;
        print_rank0(
            j,
            "gradients go to the file: with them in memory %d rank%s of %.1f MiB each do not fit\n",
            j->l->local_ranks, j->l->local_ranks > 1 ? "s" : "",
            (double)need.host / (1024.0 * 1024));
        close_trainer(t);
    }
}

/* Called after the context is built. Returns whether a checkpoint or a copy was loaded. */
static int open_saves(trainer *t) {
    saves_state at = get_saves_state(t);
    saves_open(&t->keep);
    if (!saves_load(&t->keep, &at)) return 0;
    t->step = at.step;
    t->data_step = at.data_step;
    t->updates = at.updates;
    return 1;
}

/* The next two save the state: into memory, and into the folder of -o. The folder's main.log is
   written to disk first, so that it has the lines of all saved steps. */
static void copy_to_memory_if_due(trainer *t) {
    const saves_state at = get_saves_state(t);
    if (!saves_copies(&t->keep, t->step)) return;
    count_file_bytes(t, 1);
    saves_copy(&t->keep, &at);
    count_file_bytes(t, 0);
}
static void save_checkpoint_if_due(trainer *t) {
    const saves_state at = get_saves_state(t);
    const int last = t->stop || t->step == t->j->steps;
    if (!saves_due(&t->keep, t->step, last)) return;
    check_log(t->j, main_log_sync(t->j->log));
    count_file_bytes(t, 1);
    saves_save(&t->keep, &at, pace_mean(&t->speed), last);
    count_file_bytes(t, 0);
}

/* ---- 8 lines ------------------------------------------------------------------------------- */

#ifndef MATMUL_ROUNDS
/* The fastest round counts, because other programs may be running. A test build has 0 rounds. */
#define MATMUL_ROUNDS 3
#endif

static void measure_matmul(trainer *t) {
    double best = 0;
    check(t, layout_sum(&t->groups, t->z, NULL, 0));
    for (int i = 0; i < MATMUL_ROUNDS; i++) {
        double rate = gpt2_matmul_rate((zero_type)t->j->opt->type, t->j->threads);
        if (rate > best) best = rate;
    }
    double rates[2] = {best, gpt2_peak_rate((zero_type)t->j->opt->type, t->j->opt->tf32)};
    rates[1] /= t->j->computes.sharers;
    check(t, layout_sum(&t->groups, t->z, rates, 2));
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

/* Returns the bytes that a rank sends in a step in addition to its context: for tensor or context
   parallelism, and between pipeline stages. */
static size_t parts_bytes(const trainer *t) {
    const gpt2_run run = make_run(t);
    const int micro_steps = t->j->batch.micro_steps;
    return gpt2_parallel_bytes(&t->j->model, &run) * (size_t)micro_steps
           + gpt2_pipeline_sent(&t->j->model, &run, micro_steps);
}

/* Returns all bytes of the process of a rank. */
static uint64_t planned_bytes(const trainer *t) {
    return plan_bytes(&t->plan, DEVICE_IS_HOST) + model_bytes(t) + t->keep.bytes + t->j->process;
}

static void print_plan(const trainer *t) {
    const job *j = t->j;
    const gpt2_run run = make_run(t);
    zero_config c;
    zero_query_config(t->z, &c);
    const plan_view all = {j->opt->settings,
                           t->stage,
                           &t->plan,
                           &c,
                           run.recompute == GPT2_RECOMPUTE_AWAY,
                           activation_bytes(t),
                           gpt2_away_bytes(&j->model, &run),
                           t->keep.bytes,
                           t->keep.copies,
                           j->process,
                           planned_bytes(t),
                           parts_bytes(t),
                           DEVICE_AWAY,
                           DEVICE_IS_HOST,
                           j->batch.together};
    plan_table(j->out, &all);
}

static step_line make_line(const trainer *t, const step_values *v) {
    const job *j = t->j;
    const pace *p = &t->speed;
    step_line line = {t->step, j->steps, v->loss,   v->loss_z, v->norm_z,       v->lr,  p->seconds,
                      0,       "",       p->smooth, &v->done,  t->groups.mixed, v->aux, v->dropped};
    step_line_share(&line, p->rate * gpt2_flops_per_token(&j->model, j->batch.seq_len),
                    j->matmul_rate, j->peak_rate);
    return line;
}

/* Returns whether the line of a step is printed for good. -lp says how often. Without -lp, all
   lines are, but on a terminal only those before other output. */
static int is_line_kept(const trainer *t, const step_values *v) {
    const job *j = t->j;
    const int every = j->opt->print_every > 0 ? j->opt->print_every : !j->out->terminal;
    if (!v->done.stepped || v->done.next_loss_scale != v->done.loss_scale) return 1;
    if (t->step == j->steps || t->stop || (every > 0 && t->step % every == 0)) return 1;
    return every == 0 && (t->step == t->first + 1 || is_due(t, j->opt->val_every));
}

/* The library chooses which operations it fuses with a product, and the memory for that, at the
   first product of each shape. Prints both after the first step. */
static void print_first_step(const trainer *t, const char *before) {
    const job *j = t->j;
    const char *now = gpt2_product_path(t->model);
    if (strcmp(before, now) != 0) print_rank0(j, "matrix products: %s\n", now);
    if (DEVICE_IS_HOST) return;
    const gpt2_run run = make_run(t);
    const size_t planned =
        plan_bytes(&t->plan, DEVICE_IS_HOST) + gpt2_activation_bytes(&j->model, &run);
    const double mib = 1024.0 * 1024;
    print_rank0(j, "device memory: %.1f MiB taken, %.1f MiB planned\n",
                (double)device_taken(&j->computes) / mib,
                (double)planned * j->computes.sharers / mib);
}

/* Returns the most memory that rank 0 has used. */
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
    if (j->opt->print_batches) /* -db: all windows of the step, of all ranks */
        print_rank0(j, "batch %d %016llx\n", t->step,
                    (unsigned long long)corpus_hash_step(j->data, get_data_step(t)));
    pace_begin(&t->speed);
    observe_begin(j->see, "step", BREAKDOWN_HOST);
    make_step(t, &v);
    observe_end(j->see);
    pace_end(&t->speed, (double)j->batch.tokens);
    const step_line line = make_line(t, &v);
    const main_log_values logged = {
        t->step - 1,  v.loss,        v.lr,          v.done.norm,
        line.seconds, t->speed.rate, memory_mib(t), v.done.stepped ? 0 : v.done.skipped};
    step_line_print(&line, text);
    if (is_line_kept(t, &v)) print_rank0(j, "%s", text);
    step_line_brief(&line, text);
    check_log(j, main_log_step(j->log, &logged));
    progress_at(&t->watch, (double)(t->step - t->first) / (j->steps - t->first), text);
    if (observe_step(j->see, &line, t->speed.began, t->step * j->batch.windows, logged.mib, text,
                     sizeof text))
        on_lost_line(j, text);
    if (t->step == t->first + 1) print_first_step(t, products);
}

static void report_mean_step_time(const trainer *t) {
    const double mean = pace_mean(&t->speed);
    if (mean > 0) print_rank0(t->j, "total average iteration time: %f ms\n", 1e3 * mean);
}

/* by_steps: training steps moved the bytes since the last call, and not evaluations or saves. */
static void count_file_bytes(trainer *t, int by_steps) {
    zero_ctx *const all[2] = {t->z, t->groups.experts};
    check(t, file_bytes_count(&t->file, &t->plan, all, by_steps));
}

/* Prints the memory that this process uses now, and the planned memory. */
static void report_process_memory(const trainer *t) {
    const uint64_t held = launch_memory_held();
    const double mib = 1024.0 * 1024;
    if (!t->j->process || !held || t->j->l->kind == LAUNCH_THREADS) return;
    print_rank0(t->j,
                "memory of the process, what ranks share counted once: %.1f MiB, planned %.1f\n",
                (double)held / mib, (double)planned_bytes(t) / mib);
}

/* ---- 9 runs -------------------------------------------------------------------------------- */

static void open_log(trainer *t) {
    job *j = t->j;
    char sentence[LAUNCH_SENTENCE] = "";
    if (j->opt->log_dir[0] && j->l->rank == 0 && j->log == NULL)
        j->log = main_log_open(j->opt->log_dir, t->step, sentence, sizeof sentence);
    require(j, !sentence[0], "%s", sentence);
    check_log(j, 0);
    if (j->products.hash && !t->keep.same_products)
        check_log(j, main_log_products(j->log, t->step, j->products.hash));
    if (j->chosen_now) check_log(j, main_log_auto(j->log, t->step, j->chosen));
}

/* With -nf 1, lines that could not be written were warnings, and make the run fail at its end. */
static void close_log(job *j) {
    const int64_t lost = main_log_close(j->log);
    if (lost > 0)
        launch_fail(j->l, "-o: %s/main.log lacks %lld lines that could not be written",
                    j->opt->log_dir, (long long)lost);
    if (j->out->lost) launch_fail(j->l, "some of the output could not be written");
}

/* Rank 0 describes this run next to a file that it writes, for the report page. */
static void note_run(const job *j, const char *path) {
    const run_note note = {PROGRAM, j->opt->model, j->flags, j->l->nranks};
    const int error = j->l->rank == 0 ? run_note_write(path, &note) : 0;
    if (error) warn_rank0(j, "%s.note cannot be written: %s", path, regular_file_error(error));
}

/* Prints the hash of the weights as the last line. */
static void print_weights_hash(const trainer *t) {
    const train_options *o = t->j->opt;
    const uint64_t weights = hash_weights_of(t);
    if (t->step > t->first && o->save_every == 0)
        print_rank0(
            t->j,
            "%s was saved: -o FOLDER -n STEPS saves checkpoints, and -y 1 resumes from them\n",
            o->log_dir[0] ? "nothing but main.log" : "nothing");
    print_rank0(t->j, "weights %016llx\n", (unsigned long long)weights);
}

/* Copies what rank 0 passes on between a trainer and a new_ranks_state. */
#define PASS_ON(to, from)                                                                          \
    ((to)->step = (from)->step, (to)->first = (from)->first, (to)->data_step = (from)->data_step,  \
     (to)->updates = (from)->updates, (to)->losses = (from)->losses, (to)->norms = (from)->norms,  \
     (to)->speed = (from)->speed)

/* -pnf, -pa: moves the run to the ranks that the launcher has chosen. t: NULL if this rank joins.
   Returns the trainer of the new ranks, or NULL if this rank leaves. COLLECTIVE over the ranks
   before and after. */
static trainer *move_to_new_ranks(trainer *t, trainer *next, job *j) {
    const double before = j->l->nranks, began = pace_clock();
    new_ranks_state at;
    memset(&at, 0, sizeof at);
    observe_begin(j->see, "new ranks", BREAKDOWN_HOST);
    if (t != NULL) {
        saves_finish(&t->keep);
        close_model(t);
    }
    const int stays = t == NULL || launch_move(j->l);
    if (stays) {
        take_new_ranks(j);
        open_trainer(next, j, j->opt->stage.at[0], &j->l->comm[0]);
    } else
        close_log(j); /* the new rank 0 opens it */
    check(t ? t : next, zero_resize(t ? t->z : NULL, stays ? next->z : NULL));
    if (t != NULL) {
        PASS_ON(&at, t);
        at.saved = t->keep.saved;
        at.durable = t->keep.durable;
        at.matmul_rate = j->matmul_rate / before * j->l->nranks;
        at.peak_rate = j->peak_rate / before * j->l->nranks;
        next->watch = t->watch;
        close_context(t);
        if (stays) observe_change(j->see);
    }
    launch_moved(j->l);
    if (!stays) {
        observe_leave(j->see);
        return NULL;
    }
    check(next, zero_broadcast(next->z, &at, sizeof at, 0));
    PASS_ON(next, &at);
    next->file.first = at.step;
    j->matmul_rate = at.matmul_rate;
    j->peak_rate = at.peak_rate;
    create_model(next);
    const saves_run run = get_saves_run(next);
    saves_move(&next->keep, &run, at.saved, at.durable);
    open_log(next);
    observe_end(j->see);
    check_log(j, main_log_ranks(j->log, next->step, j->l->nranks, pace_clock() - began));
    print_rank0(j, "ranks: %d from step %d on, %.1f MiB planned for each\n", j->l->nranks,
                next->step + 1, (double)planned_bytes(next) / (1024.0 * 1024));
    return next;
}

static void start_training(trainer *t, job *j) {
    char text[LAUNCH_SENTENCE] = "", log[LAUNCH_SENTENCE];
    j->see = observe_open(j->opt, &j->ds, j->l, j->out, &j->model, j->batch.tokens, DEVICE_IS_HOST,
                          text, sizeof text);
    require(j, !text[0], "%s", text);
    open_trainer_that_fits(t, j);
    if (t->plan.file_bytes) launch_memory_tight();
    check_memory(t, 1);
    progress_phase(j->out, "measuring a matrix product", 0);
    measure_matmul(t);
    measure_process_bytes(j);
    check_memory_flag(t);
    progress_phase(j->out, "building", plan_bytes(&t->plan, DEVICE_IS_HOST));
    check(t, layout_build(&t->groups, t->z, &t->plan));
    check(t, observe_layout(j->see, t->z, &t->groups));
    const int base_first = j->opt->resume && !j->opt->save_frozen; /* checkpoints lack the base */
    if (base_first) start_weights(t);
    if (!open_saves(t) && !base_first) start_weights(t);
    t->first = t->step;
    t->file.first = t->step;
    create_model(t);
    check(t, rechecks_observe(&t->checks, j->see, t->z));
    open_log(t);
    snprintf(log, sizeof log, "%s/main.log", j->opt->log_dir);
    note_run(j, j->opt->log_dir[0] ? log : "");
    note_run(j, j->opt->trace_path);
    if (saves_from_copy(&t->keep))
        launch_copied(j->l, t->step);
    else
        launch_saved(j->l, t->step); /* the step that was loaded, or 0 */
    print_settings(t);
    print_plan(t);
    report_idle(t);
}

static int run_training(job *j) {
    trainer both[2], *t = &both[0]; /* with -pnf, the ranks before and after a change */
    char text[LAUNCH_SENTENCE];
    j->see = observe_join(j->opt, j->l, j->out);
    if (!j->l->joins)
        start_training(t, j);
    else if (!launch_join(j->l) || !(t = move_to_new_ranks(NULL, t, j)))
        return 0; /* the run has ended before */
    if ((t = train_all(t, &both[1])) == NULL) return 0;
    check(t, observe_print_tables(j->see, t->z, t->groups.experts));
    if (t->stop)
        print_rank0(j, "stopped by a signal after step %d: -y 1 resumes\n", t->step);
    else
        print_weights_hash(t);
    close_trainer(t);
    if (observe_close(j->see, text, sizeof text)) on_lost_line(j, text);
    close_log(j);
    return 0;
}

/* The functions that a comparison calls for its trainers. */
static void compare_step(void *trainer_, double *loss) {
    trainer *t = (trainer *)trainer_;
    step_values v;
    memset(&v, 0, sizeof v);
    if (loss != NULL) sum_losses(t, &v); /* drops the losses of earlier steps */
    make_step(t, loss != NULL ? &v : NULL);
    if (loss != NULL) *loss = v.loss;
}
static void compare_wait(void *t) {
    char sentence[LAUNCH_SENTENCE];
    job *j = ((trainer *)t)->j;
    if (device_wait(&j->computes, sentence, sizeof sentence))
        launch_fail(j->l, "rank %d: %s", j->l->rank, sentence);
}
static void compare_check_result(void *t, zero_result result) { check((trainer *)t, result); }
static uint64_t compare_hash(void *t) { return hash_weights_of((const trainer *)t); }
static void compare_sum(void *of, double *values, int n) {
    trainer *t = (trainer *)of;
    check(t, layout_sum(&t->groups, t->z, values, n));
}
static void compare_group_stats(void *t, zero_stats *stats) {
    check((trainer *)t, layout_stats(&((const trainer *)t)->groups, stats));
    stats->exposed_s += gpt2_waited_s(((const trainer *)t)->model);
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
        e->others_bytes = parts_bytes(&t[i]);
        e->activation_bytes = gpt2_activation_bytes(&j->model, &run);
        layout_name(&t[i].groups, e->layout);
        snprintf(e->name, sizeof e->name, "%d", e->stage);
        if (o->layouts[0]) snprintf(e->name, sizeof e->name, "%s", e->layout);
    }
    check_memory(t, c->n);
    for (int i = 0; i < c->n; i++) {
        check(&t[i], layout_build(&t[i].groups, t[i].z, &t[i].plan));
        start_weights(&t[i]);
        create_model(&t[i]);
    }
}

static int run_comparison(job *j) {
    static const compare_host host = {compare_step, compare_wait, compare_check_result,
                                      compare_hash, compare_sum,  compare_group_stats};
    const train_options *o = j->opt;
    compare *c = (compare *)allocate_memory(j, 1, sizeof *c);
    trainer *t = (trainer *)allocate_memory(j, COMPARE_MOST, sizeof *t);
    job *jobs = (job *)allocate_memory(j, COMPARE_MOST, sizeof *jobs);
    FILE *csv = j->l->rank == 0 ? compare_open_csv(o->csv_path) : NULL;
    require(j, j->l->rank != 0 || csv != NULL, "-csv: %s cannot be written: %s", o->csv_path,
            regular_file_error(errno));
    require(
        j, j->steps > 0 && j->steps % o->rounds == 0,
        "-x %d: the steps of a stage are not a multiple of the rounds (-rd %d); change one of them",
        j->steps, o->rounds);
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
    report_idle(&t[0]);
    compare_run(c);
    compare_print(c, csv);
    if (csv != NULL) fclose(csv);
    note_run(j, o->csv_path);
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

static void set_ranks_and_threads(job *j) {
    j->ranks.ranks = j->l->nranks; /* train_divide sets the other fields */
    j->ranks.rank = j->l->rank;
    j->threads = j->opt->threads > 0 ? j->opt->threads : launch_threads(j->l);
#ifdef _OPENMP
    omp_set_num_threads(j->threads);
#endif
}

static void allocate_batch(job *j) {
    size_t tokens = (size_t)j->batch.rows * (size_t)j->batch.seq_len * (size_t)j->batch.together;
    free(j->inputs);
    free(j->targets);
    j->inputs = (int *)allocate_memory(j, tokens, sizeof *j->inputs);
    j->targets = (int *)allocate_memory(j, tokens, sizeof *j->targets);
}

static void allocate_buffers(job *j) {
    allocate_batch(j);
    j->sample = (int *)allocate_memory(j, (size_t)j->opt->sample_tokens + 1, sizeof *j->sample);
    j->logits = (float *)allocate_memory(j, (size_t)j->model.vocab_size, sizeof *j->logits);
}

static void free_buffers(job *j) {
    free(j->inputs);
    free(j->targets);
    free(j->sample);
    free(j->logits);
    gpt2_frozen_free(j->model.frozen);
}

/* Writes the settings that identify the run of a checkpoint: the flags, after the values of -ds
   have replaced them. */
static void render_settings(job *j) {
    train_options_render(j->opt, j->settings, sizeof j->settings);
    const size_t used = strlen(j->settings);
    snprintf(j->settings + used, sizeof j->settings - used,
             "tokens-per-step %lld\nwindows %s\nds-config of hash %016llx\nproducts %s\n"
             "ranks %d\n%s",
             (long long)j->batch.tokens, corpus_order(j->data), (unsigned long long)j->ds_hash,
             j->products.name, j->l->nranks, j->data->hashes);
    const size_t all = strlen(j->settings);
    if (j->chosen[0]) snprintf(j->settings + all, sizeof j->settings - all, "auto %s\n", j->chosen);
}

/* -pnf: sets what depends on the number of ranks. */
static void take_new_ranks(job *j) {
    set_ranks_and_threads(j);
    new_ranks_take(j->l, j->opt, &j->model, &j->ranks, &j->batch, j->out);
    allocate_batch(j);
    render_settings(j);
}

/* -z auto: sets the flags that this run has chosen before, or chooses them. */
static void choose_settings(job *j, train_options *o, char *kept) {
    const auto_run_input in = {j->l,
                               j->out,
                               &j->model,
                               &j->ds,
                               "./" PROGRAM,
                               j->flags,
                               kept,
                               j->threads,
                               !DEVICE_IS_HOST,
                               j->computes.free_bytes / (uint64_t)j->computes.sharers};
    auto_run_choose(&in, o, j->chosen, &j->chosen_now);
}

static int print_help(launch *l, const train_options *o) {
    char sentence[LAUNCH_SENTENCE];
    if (train_options_help(o, PROGRAM, sentence, sizeof sentence)
        || report_end(sentence, sizeof sentence))
        launch_fail(l, "%s", sentence);
    return 0;
}

/* The data that main hands to the ranks. */
typedef struct start {
    train_options options;
    char flags[RUN_NOTE_FLAGS];   /* the command line */
    checkpoint_memory *memory[2]; /* -pm: copies of the model and of its experts */
    char *chosen;                 /* -pe with -z auto: the choice; otherwise NULL */
} start;

static int run_rank(launch *l, void *user) {
    job j; /* not static, because ranks can be threads of one process */
    const start *s = (const start *)user;
    train_options options = s->options, *o = &options; /* -ds may change them */
    report out;
    corpus data;
    char sentence[LAUNCH_SENTENCE], paths[512];
    if (o->help) return l->rank == 0 ? print_help(l, o) : 0;
    if (o->elastic && !o->resume) o->resume = 1;
    memset(&j, 0, sizeof j);
    memset(&out, 0, sizeof out);
    out.program = PROGRAM;
    out.speaks = l->rank == 0;
    out.terminal = l->rank == 0 && !l->elsewhere && report_is_terminal();
    j.opt = o;
    j.flags = s->flags;
    j.l = l;
    j.memory = s->memory;
    j.out = &out;
    if (out.terminal) out.shared_live = launch_live(l);
    out.on_loss = on_lost_line;
    out.user = &j;
    train_options_render(o, j.settings, sizeof j.settings);
    launch_same(l, j.settings);
    train_options_paths(o, paths, sizeof paths);
    launch_same(l, paths);
    set_ranks_and_threads(&j);
    const int none = device_open(&j.computes, l->local_ranks, sentence, sizeof sentence);
    require(&j, !none, "rank %d: %s", l->rank, sentence);
    resolve_model(&j);
    train_read_ds(o, l, &out, &j.model, &j.ds, &j.ds_hash);
    const int clash = train_check(o, sentence, sizeof sentence)
                      || train_sparse_rows(o, !DEVICE_IS_HOST, &j.model, sentence, sizeof sentence);
    require(&j, !clash, "%s", sentence);
    new_ranks_check(l, o);
    choose_settings(&j, o, s->chosen);
    new_ranks_reduce(l, o, &j.model);
    const int uneven = train_divide(o, &j.model, &j.ranks, &j.batch, sentence, sizeof sentence);
    require(&j, !uneven, "%s", sentence);
    if (!o->layouts[0]) launch_layout(l, j.ranks.tp, j.ranks.cp, j.ranks.dp);
    if (model_is_file(o->model)) corpus_require_same(l, "-e", o->model);
    corpus_open(&data, l, &out, o, &j.model, &j.batch, &j.ranks);
    j.data = &data;
    j.steps = corpus_steps(&data);
    train_products(o, l, &j.model, j.ranks.tp,
                   (size_t)j.batch.rows * (size_t)(j.batch.seq_len / j.ranks.cp), j.threads,
                   &j.products);
    allocate_buffers(&j);
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
    if (!report_begin()) return LAUNCH_EXIT_FAILURE; /* no descriptor to print an error to */
    memset(&s, 0, sizeof s);
    train_options_parse(&s.options, argc, argv);
    run_note_flags(argc, argv, s.flags);
    saves_memory(&s.options, s.memory);
    s.chosen = auto_run_memory(&s.options);
    launch_request request = train_request(&s.options, PROGRAM, method);
    request.rank_main = run_rank;
    request.user = &s;
    const int code = launch_run(&request);
    saves_memory_free(s.memory);
    auto_run_memory_free(s.chosen);
    return code;
}

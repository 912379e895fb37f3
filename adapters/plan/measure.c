/* measure.c - see measure.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "../report/pace.h"
#include "plan_world.h"

#define MEASURE_LEAST 0.05 /* share of a step that a difference of times has to have */
enum {
    MEASURE_ROUNDS = 15,   /* runs of each measurement; the median counts */
    MEASURE_ROWS = 512,    /* tokens of a forward or backward */
    MEASURE_UNITS = 16,    /* units of the steps without a model */
    MEASURE_UNIT = 1 << 20 /* elements of each such unit */
};

/* Memory that all ranks share; rank 0 writes it. */
typedef struct measure_job {
    measure_wish wish;
    machine found;
    int failed;
    char sentence[PLAN_SENTENCE];
} measure_job;

/* What one rank needs to measure. */
typedef struct measure_rank {
    measure_job *job;
    const zero_comm *comm;
    zero_ctx *meet; /* the context in which ranks wait for each other */
    int failed;
    double budget;   /* seconds of the next measurement; 0: MEASURE_ROUNDS runs */
    double deadline; /* of all measurements, by pace_clock; 0: none */
    int left;        /* measurements until then */
} measure_rank;

static int measure_fail(measure_rank *r, const char *what, const char *why) {
    if (!r->failed && r->comm->rank == 0)
        (void)snprintf(r->job->sentence, sizeof r->job->sentence, "measuring %s: %s", what, why);
    r->failed = r->job->failed = 1;
    return 1;
}

static int measure_rising(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Returns the mean of `value` over all ranks. COLLECTIVE. */
static double measure_mean(measure_rank *r, double value) {
    if (zero_all_sum(r->meet, &value, 1)) (void)measure_fail(r, "", zero_last_error(r->meet));
    return value / zero_nranks(r->meet);
}

/* Returns whether to run once more. Run number i is a warm-up if it is below 0. COLLECTIVE if there
   is a budget. */
static int measure_again(measure_rank *r, int i, double began) {
    if (r->failed || i >= MEASURE_ROUNDS) return 0;
    if (r->budget <= 0) return 1;
    const double took = measure_mean(r, pace_clock() - began);
    return i < 1 || took < r->budget;
}
/* Divides the time until the deadline evenly. COLLECTIVE if there is a deadline. */
static void measure_next(measure_rank *r) {
    if (r->deadline <= 0) return;
    const double each = measure_mean(r, (r->deadline - pace_clock()) / (r->left > 1 ? r->left : 1));
    r->budget = each > 1e-3 ? each : 1e-3;
    r->left--;
}
static int measure_first(const measure_rank *r) { return r->budget > 0 ? -1 : -2; }

/* ---- passes -------------------------------------------------------------------------------- */

typedef struct measure_shape {
    int layers, channels, vocabulary, batch, seq_len;
    zero_type type;
    int heads, recompute;
} measure_shape;

/* Returns the usual number of heads of a width. */
static int measure_heads(int channels) { return channels / (channels >= 256 ? 64 : 32); }

static double measure_one_pass(measure_rank *r, zero_ctx *z, gpt2_model *m, const int *tokens) {
    const zero_hyper hyper = {0, 0.9f, 0.95f, 1e-8f, 0, 0};
    const double began = pace_clock();
    zero_result e = zero_pass_begin(z, ZERO_TRAIN, 0, 1);
    if (!e) e = gpt2_train_step(m, tokens, tokens, zero_loss_scale(z), NULL);
    if (!e) e = zero_pass_end(z);
    const double took = pace_clock() - began;
    if (!e) e = zero_reduce(z);
    if (!e) e = zero_step(z, &hyper);
    zero_step_report done;
    if (!e) e = zero_step_result(z, &done);
    if (e) (void)measure_fail(r, "a pass", zero_last_error(z));
    return took;
}

/* Returns the median seconds of a forward and backward of this shape, while all ranks run one. */
static double measure_pass(measure_rank *r, const measure_shape *s) {
    const zero_comm alone = {ZERO_COMM_SELF, 0, NULL, 0};
    const gpt2_config cfg = {s->seq_len,
                             s->vocabulary,
                             (s->vocabulary + 127) / 128 * 128,
                             s->layers,
                             s->heads > 0 ? s->heads : measure_heads(s->channels),
                             s->channels,
                             0,
                             GPT2_NO_EXPERTS,
                             NULL,
                             0,
                             0,
                             0};
    const gpt2_run run = {s->batch, s->seq_len, s->recompute, s->type, 0, 0,
                          0,        NULL,       NULL,         0,       0, 0};
    double times[MEASURE_ROUNDS] = {0};
    int tokens[MEASURE_ROWS];
    zero_tensor_desc table[GPT2_TENSORS];
    zero_config c;
    zero_ctx *z = NULL;
    gpt2_model *m = NULL;
    gpt2_error error = {""};
    memset(&c, 0, sizeof c);
    c.type = s->type;
    c.threads = r->job->wish.threads;
    for (int i = 0; i < MEASURE_ROWS; i++) tokens[i] = (int)((unsigned)i * 7919u % 61u);
    measure_next(r);
    gpt2_describe(&cfg, table);
    zero_result e = zero_create(&z, &c, &alone);
    if (!e) e = zero_tensors(z, table, GPT2_TENSORS);
    if (!e) e = zero_build(z);
    if (!e) e = gpt2_init(z, &cfg, 1, &error);
    if (!e) e = gpt2_create(&m, z, &cfg, &run, &error);
    if (e) (void)measure_fail(r, "a pass", error.sentence[0] ? error.sentence : zero_last_error(z));
    (void)measure_mean(r, 0);
    const double began = pace_clock();
    int rounds = 0;
    for (int i = measure_first(r); measure_again(r, i, began); i++) {
        const double took = measure_one_pass(r, z, m, tokens);
        if (i >= 0) times[rounds++] = took;
    }
    (void)measure_mean(r, 0);
    gpt2_destroy(m);
    zero_destroy(z);
    qsort(times, (size_t)rounds, sizeof *times, measure_rising);
    return measure_mean(r, times[rounds / 2]);
}

/* Returns the operations divided by the additional time, or 0 if the difference is too small. */
static double measure_rate(double operations, double longer, double shorter) {
    return longer > shorter ? operations / (longer - shorter) : 0;
}

static void measure_model(measure_rank *r, zero_type type, machine_rates *rates) {
    static const int widths[] = {128, 384, 768};
    const double R = MEASURE_ROWS;
    double small = 0;
    rates->flops = measure_mean(r, gpt2_matmul_rate(type, r->job->wish.threads));
    measure_shape s = {1, 384, 65, MEASURE_ROWS / 64, 64, type, 0, GPT2_RECOMPUTE_GELU};
    s.layers = 3;
    const double near = measure_pass(r, &s);
    s.seq_len = 256;
    s.batch = MEASURE_ROWS / 256;
    const double far = measure_pass(r, &s);
    rates->attention = measure_rate(12.0 * 3 * 384 * (256 - 64) * R, far, near);
    s.seq_len = 64;
    s.batch = MEASURE_ROWS / 64;
    for (int i = 0; i < (int)(sizeof widths / sizeof *widths) && !r->failed; i++) {
        const double C = widths[i];
        double attention = 0;
        s.channels = widths[i];
        s.layers = 1;
        small = measure_pass(r, &s);
        s.layers = 3;
        const double large = measure_pass(r, &s);
        if (rates->attention > 0) attention = 12.0 * 2 * C * 64 * R / rates->attention;
        rates->width[rates->widths] = C;
        rates->block[rates->widths] = measure_rate(72 * 2 * C * C * R, large - attention, small);
        rates->widths += rates->block[rates->widths] > 0;
    }
    s.layers = 1; /* the widest model again, with and without a vocabulary */
    s.vocabulary = 50257;
    rates->vocabulary =
        measure_rate(6.0 * (50304 - 128) * s.channels * R, measure_pass(r, &s), small);
}

/* ---- steps --------------------------------------------------------------------------------- */

static int measure_units(const measure_rank *r) {
    return r->budget > 0 ? MEASURE_UNITS / 4 : MEASURE_UNITS;
}

/* Returns the seconds of a step without a model, which only reduces gradients and updates. The
   values of the gradients do not matter, so no code writes them. */
static double measure_step(measure_rank *r, const zero_comm *comm, const zero_config *c,
                           zero_plan *plan) {
    const zero_hyper hyper = {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 1};
    const zero_tensor_desc table = {"units", MEASURE_UNIT, measure_units(r), .flags = ZERO_BY_SLOT};
    double times[MEASURE_ROUNDS] = {0};
    zero_step_report done;
    zero_ctx *z = NULL;
    measure_next(r);
    zero_result e = zero_create(&z, c, comm);
    if (!e) e = zero_tensors(z, &table, 1);
    if (!e) e = zero_build(z);
    if (!e) e = zero_query_plan(z, plan);
    (void)measure_mean(r, 0);
    const double first = pace_clock();
    int rounds = 0;
    for (int i = measure_first(r); measure_again(r, i, first) && !e; i++) {
        const double began = pace_clock();
        e = zero_pass_begin(z, ZERO_TRAIN, 0, 1);
        if (!e) e = zero_pass_end(z);
        if (!e) e = zero_reduce(z);
        if (!e) e = zero_step(z, &hyper);
        if (!e) e = zero_step_result(z, &done);
        if (!e) e = zero_barrier(z);
        if (i >= 0) times[rounds++] = pace_clock() - began;
    }
    if (e) (void)measure_fail(r, "a step", zero_last_error(z));
    (void)measure_mean(r, 0);
    zero_destroy(z);
    qsort(times, (size_t)rounds, sizeof *times, measure_rising);
    return measure_mean(r, times[rounds / 2]);
}

static void measure_steps(measure_rank *r, machine *m) {
    const zero_comm alone = {ZERO_COMM_SELF, 0, NULL, 0};
    const double numel = (double)MEASURE_UNIT * measure_units(r);
    const double bytes = 28 * numel; /* AdamW, f32 */
    zero_plan plan;
    zero_config c;
    memset(&c, 0, sizeof c);
    c.threads = r->job->wish.threads;
    const int n = zero_nranks(r->meet);
    const double update = measure_step(r, &alone, &c, &plan);
    m->update = measure_rate(bytes, update, 0);
    c.stage = 1;
    if (n > 1) {
        const double all = measure_step(r, r->comm, &c, &plan);
        m->link = measure_rate((double)plan.sent_bytes, all, update / n);
        /* A step that hardly takes longer with messages gives only a lower bound of the rate. */
        if (r->budget > 0 && !(all - update / n > MEASURE_LEAST * all))
            m->link = (double)plan.sent_bytes / (MEASURE_LEAST * all);
    }
    c.stage = 0;
    c.optimizer_tier = ZERO_FILE;
    c.folder = r->job->wish.folder;
    if (c.folder == NULL || r->failed) return;
    const double filed = measure_step(r, &alone, &c, &plan);
    m->disk =
        measure_rate((double)plan.file_read_bytes + (double)plan.file_written_bytes, filed, 0);
}

/* ---- one model, quickly --------------------------------------------------------------------- */

/* Returns the seconds of a pass, in which a field of the shape has another value. */
static double measure_with(measure_rank *r, measure_shape s, int layers, int recompute) {
    s.layers = layers;
    s.recompute = recompute;
    return measure_pass(r, &s);
}

/* Chooses the rows of a pass, so that three layers take a quarter of a second. */
static int measure_rows(double flops, int channels, int seq_len) {
    const double most = 0.25 * flops / (72.0 * 3 * channels * channels);
    int rows = most > MEASURE_ROWS ? MEASURE_ROWS : most < 64 ? 64 : (int)most;
    rows -= rows % seq_len;
    return rows > 0 ? rows : seq_len;
}

/* A pass of R rows takes a + b R. From two sizes, a is the time that a micro-step takes for its
   parameters. */
static double measure_fixed(double rows, double longer, double fewer, double shorter) {
    const double fixed = (rows * shorter - fewer * longer) / (rows - fewer);
    return fixed > 0 ? fixed : 0;
}

static void measure_one_model(measure_rank *r, const gpt2_config *model, int seq_len,
                              zero_type type, machine *m) {
    enum { WINDOW = 256, CLASSES = 8192, FEW = 65, MANY = 1000 };
    machine_rates *rates = &m->type[type];
    const double C = model->channels;
    const int T = seq_len < WINDOW ? seq_len : WINDOW, near_T = T % 4 == 0   ? T / 4
                                                                : T % 2 == 0 ? T / 2
                                                                             : T;
    rates->flops = measure_mean(r, gpt2_matmul_rate(type, r->job->wish.threads));
    const int R = measure_rows(rates->flops, model->channels, T);
    measure_shape s = {3, model->channels, FEW, R / T, T, type, model->heads, GPT2_RECOMPUTE_GELU};
    const double three = measure_with(r, s, 3, GPT2_RECOMPUTE_GELU);
    const double one = measure_with(r, s, 1, GPT2_RECOMPUTE_GELU);
    measure_shape near = s, less = s, more = s;
    near.seq_len = near_T;
    near.batch = R / near_T;
    if (near_T < T)
        rates->attention = measure_rate(12.0 * 3 * C * (T - near_T) * R, three,
                                        measure_with(r, near, 3, GPT2_RECOMPUTE_GELU));
    const double attention = rates->attention > 0 ? 12.0 * 2 * C * T * R / rates->attention : 0;
    rates->width[0] = C;
    rates->block[0] = measure_rate(72 * 2 * C * C * R, three - attention, one);
    rates->widths = rates->block[0] > 0;
    const double blocks = 1.5 * (three - one);
    for (int again = 0; again < MACHINE_RECOMPUTES && blocks > 0; again++) {
        if (again == GPT2_RECOMPUTE_GELU) continue;
        const double factor = 1 + (measure_with(r, s, 3, again) - three) / blocks;
        if (factor > 0 && (again == GPT2_RECOMPUTE_NONE ? factor <= 1 : factor >= 1))
            m->recompute[again] = factor; /* another one is noise */
    }
    less.batch = R / T >= 4 ? R / T / 4 : 1;
    less.seq_len = R / T >= 4 ? T : near_T;
    const double fewer = less.batch * less.seq_len;
    const double fixed =
        measure_fixed(R, three, fewer, measure_with(r, less, 3, GPT2_RECOMPUTE_GELU));
    if (fixed > 0) m->pass = 36.0 * C * C * (double)zero_type_bytes(type) / fixed;
    if (model->padded_vocab_size < MANY) return;
    more.vocabulary = model->vocab_size < CLASSES ? model->vocab_size : CLASSES;
    const int padded = (more.vocabulary + 127) / 128 * 128;
    rates->vocabulary = measure_rate(6.0 * (padded - 128) * C * R,
                                     measure_with(r, more, 1, GPT2_RECOMPUTE_GELU), one);
}

/* Opens the context in which the ranks wait for each other. */
static void measure_open(measure_rank *r, const zero_config *c) {
    const zero_tensor_desc one = {"one", 1, 1, .flags = ZERO_BY_SLOT | ZERO_KEEP};
    zero_result e = zero_create(&r->meet, c, r->comm);
    if (!e) e = zero_tensor(r->meet, &one);
    if (!e) e = zero_build(r->meet);
    if (e) (void)measure_fail(r, "with ranks", zero_last_error(r->meet));
}

int measure_ranks(const zero_comm *comm, const gpt2_config *model, int seq_len, zero_type type,
                  const measure_wish *wish, double seconds, machine *m, char *sentence,
                  size_t bytes) {
    enum { MEASUREMENTS = 11 };
    measure_job job;
    zero_config c;
    memset(&job, 0, sizeof job);
    memset(&c, 0, sizeof c);
    memset(m, 0, sizeof *m);
    job.wish = *wish;
    measure_rank r = {&job, comm, NULL, 0, seconds, pace_clock() + seconds, MEASUREMENTS};
    measure_open(&r, &c);
    if (!r.failed) measure_one_model(&r, model, seq_len, type, m);
    if (!r.failed) measure_steps(&r, m);
    zero_destroy(r.meet);
    if (!r.failed) return 0;
    (void)snprintf(sentence, bytes, "%s",
                   job.sentence[0] ? job.sentence : "another rank could not measure");
    return 1;
}

int measure_overlap(int ranks, int threads) {
    return (long)ranks * threads < sysconf(_SC_NPROCESSORS_ONLN);
}

/* ---- the ranks ----------------------------------------------------------------------------- */

static int measure_main(const zero_comm *comm, void *arg) {
    measure_job *job = (measure_job *)arg;
    measure_rank r = {job, comm, NULL, 0, 0, 0, 0};
    zero_config c;
    machine m;
    memset(&c, 0, sizeof c);
    memset(&m, 0, sizeof m);
#ifdef _OPENMP
    omp_set_num_threads(job->wish.threads);
#endif
    measure_open(&r, &c);
    for (int t = 0; t < ZERO_TYPES && !r.failed; t++)
        if (job->wish.types & 1u << t) measure_model(&r, (zero_type)t, &m.type[t]);
    if (!r.failed) measure_steps(&r, &m);
    if (comm->rank == 0) job->found = m;
    zero_destroy(r.meet);
    return r.failed;
}

int measure_machine(const measure_wish *wish, machine *m, char *sentence, size_t bytes) {
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);
    measure_job *job = (measure_job *)mmap(NULL, sizeof *job, PROT_READ | PROT_WRITE,
                                           MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (job == MAP_FAILED) {
        (void)snprintf(sentence, bytes, "no memory to measure in");
        return 1;
    }
    job->wish = *wish;
    if (job->wish.threads < 1) job->wish.threads = (int)(processors / wish->ranks);
    if (job->wish.threads < 1) job->wish.threads = 1;
    plan_for_gpus(0);
    const int code = zero_run_local(wish->ranks, measure_main, job);
    *m = job->found;
    /* Compute hides communication only if a processor is free for it. */
    m->overlap = measure_overlap(wish->ranks, job->wish.threads);
    if (code && job->sentence[0])
        (void)snprintf(sentence, bytes, "%s", job->sentence);
    else if (code > 128)
        (void)snprintf(sentence, bytes, "a rank that measured was ended by signal %d", code - 128);
    else if (code)
        (void)snprintf(sentence, bytes, "a rank that measured returned %d", code);
    (void)munmap(job, sizeof *job);
    return code != 0;
}

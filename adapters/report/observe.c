/* observe.c - see observe.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "observe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clocks.h"
#include "comms_table.h"
#include "flops_table.h"
#include "pace.h"
#include "scalars.h"
#include "trace.h"

enum { NESTED = 8, CLOCK_ROUNDS = 16, CONTEXTS = 2, GROUPS = 8 };

/* The trace_user of a context. */
typedef struct observed {
    observer *by;
    int experts; /* 1: the context of the experts */
} observed;

struct observer {
    observed of[CONTEXTS];
    launch *l;
    report *out;
    int computes;
    trace *timeline;
    breakdown *times;
    comms_table *comms; /* [CONTEXTS + GROUPS] */
    zero_group *group[GROUPS];
    char named[GROUPS][8];
    flops_table *flops;
    scalars *figures;
    int every;        /* -tb */
    int profile_step; /* -tk: from 1 on; 0: none, or already printed */
    int64_t step;     /* the step to which the trainer's slices belong */
    int depth;
    struct {
        const char *name;
        breakdown_kind kind;
        double begin;
    } open[NESTED];
    breakdown_step sum, all; /* times since the last line, and of the run without its first step,
                                which warms up. `step` of each is the number of steps */
    int warm;                /* 1: the first step is over */
    int64_t first;           /* of `sum` */
    int64_t samples_of;      /* samples of one step */
};

/* ---- clocks -------------------------------------------------------------------------------- */

/* Measures this rank's clock against rank 0's. began: the time of rank 0's clock at which it made
   the file. COLLECTIVE. */
static trace_clock clock_agree(launch *l, double began) {
    struct {
        uint64_t identity;
        double began;
    } his = {clocks_identity(), began};
    const uint64_t identity = his.identity;
    clocks c;
    launch_broadcast(l, &his, sizeof his);
    trace_clock clock = {his.began, l->rank != 0 && (!identity || identity != his.identity), 0};
    clocks_open(&c);
    for (int i = 0; i < CLOCK_ROUNDS; i++) {
        const double before = pace_clock();
        launch_agree(l, 1, "");
        double zero = pace_clock();
        launch_broadcast(l, &zero, sizeof zero);
        clocks_meet(&c, before, zero, pace_clock());
    }
    if (!clock.apart) return clock;
    clock.origin += clocks_ahead(&c);
    clock.within = clocks_within(&c);
    return clock;
}

/* ---- opening ------------------------------------------------------------------------------- */

static int observe_open_trace(observer *s, const char *path, char *sentence, size_t bytes) {
    const trace_clock zero = {pace_clock(), 0, 0};
    if (s->l->rank == 0) s->timeline = trace_open(path, 0, &zero, sentence, bytes);
    const trace_clock clock = clock_agree(s->l, zero.origin);
    if (s->l->rank != 0) s->timeline = trace_open(path, s->l->rank, &clock, sentence, bytes);
    return s->timeline == NULL;
}

static int observe_open_flops(observer *s, const train_options *o, const gpt2_config *model,
                              int64_t step_tokens) {
    const int rows = gpt2_tile_rows(model, o->tile_rows);
    flops_table *f = s->flops = (flops_table *)calloc(1, sizeof *s->flops);
    if (f == NULL) return 1;
    f->model = *model;
    f->seq_len = o->seq_len;
    f->ranks = s->l->nranks;
    f->rank_tokens = step_tokens / f->ranks;
    f->tiles = rows > 0 ? model->padded_vocab_size / rows : 0;
    f->step = s->profile_step - 1;
    return flops_open(f);
}

static int observe_open_parts(observer *s, const train_options *o, const ds_config *file,
                              const gpt2_config *model, int64_t step_tokens, char *sentence,
                              size_t bytes) {
    const char *board = o->tensorboard_dir[0] ? o->tensorboard_dir : file->tensorboard;
    const char *csv = o->csv_monitor_dir[0] ? o->csv_monitor_dir : file->csv_monitor;
    s->every = o->breakdown_every;
    s->profile_step = o->profile_step;
    if (o->trace_path[0] && observe_open_trace(s, o->trace_path, sentence, bytes)) return 1;
    if (s->every) s->times = (breakdown *)calloc(1, sizeof *s->times);
    if (o->comms_log) s->comms = (comms_table *)calloc(CONTEXTS + GROUPS, sizeof *s->comms);
    if ((s->every && s->times == NULL) || (o->comms_log && s->comms == NULL)
        || (s->profile_step && observe_open_flops(s, o, model, step_tokens))) {
        (void)snprintf(sentence, bytes, "no memory to observe the run with");
        return 1;
    }
    if (s->l->rank != 0 || !(board[0] || csv[0])) return 0;
    s->figures = scalars_open(board, csv, sentence, bytes);
    return s->figures == NULL;
}

static void observe_free(observer *s) {
    if (s->flops != NULL) flops_close(s->flops);
    free(s->times);
    free(s->comms);
    free(s->flops);
    scalars_close(s->figures);
    free(s);
}

static observer *observe_make(launch *l, report *out, char *sentence, size_t bytes) {
    observer *s = (observer *)calloc(1, sizeof *s);
    if (s == NULL) {
        (void)snprintf(sentence, bytes, "no memory to observe the run with");
        return NULL;
    }
    s->l = l;
    s->out = out;
    for (int i = 0; i < CONTEXTS; i++) {
        s->of[i].by = s;
        s->of[i].experts = i;
    }
    return s;
}

observer *observe_open(const train_options *o, const ds_config *file, launch *l, report *out,
                       const gpt2_config *model, int64_t step_tokens, int computes, char *sentence,
                       size_t bytes) {
    const int events = o->trace_path[0] || o->breakdown_every || o->comms_log || o->profile_step;
    const int figures = o->tensorboard_dir[0] || o->csv_monitor_dir[0] || file->tensorboard[0]
                        || file->csv_monitor[0];
    if (!events && !figures) return NULL;
    observer *s = observe_make(l, out, sentence, bytes);
    if (s == NULL) return NULL;
    s->computes = computes;
    if (!observe_open_parts(s, o, file, model, step_tokens, sentence, bytes)) return s;
    observe_free(s);
    return NULL;
}

/* ---- ranks that change --------------------------------------------------------------------- */

observer *observe_join(const train_options *o, launch *l, report *out) {
    char sentence[LAUNCH_SENTENCE] = "";
    if (!l->joins || !o->trace_path[0]) return NULL;
    observer *s = observe_make(l, out, sentence, sizeof sentence);
    if (s != NULL)
        s->timeline = trace_join(o->trace_path, l->rank, l->epoch, sentence, sizeof sentence);
    if (sentence[0]) launch_fail(l, "%s", sentence);
    return s;
}

void observe_change(observer *s) {
    if (s != NULL && s->timeline != NULL) trace_change(s->timeline, s->l->rank, s->l->epoch);
}

void observe_leave(observer *s) {
    char sentence[LAUNCH_SENTENCE] = "";
    if (s == NULL) return;
    if (trace_close(s->timeline, 0, sentence, sizeof sentence))
        report_warn(s->out, "%s\n", sentence);
    observe_free(s);
}

/* ---- events -------------------------------------------------------------------------------- */

static void observe_events(void *user, const zero_event *events, int n) {
    const observed *of = (const observed *)user;
    observer *s = of->by;
    if (s->timeline != NULL) trace_events(s->timeline, of->experts, events, n);
    if (s->times != NULL) breakdown_events(s->times, events, n);
    for (int i = 0; i < n && s->comms != NULL; i++) {
        const int lane = events[i].track - ZERO_TRACK_GROUP;
        comms_events(&s->comms[lane < 0 ? of->experts : CONTEXTS + lane], &events[i], 1);
    }
    if (s->flops != NULL && !of->experts) /* the time of a block includes its experts */
        flops_events(s->flops, events, n);
}

void observe_set_trace(observer *s, zero_config *c) {
    if (s == NULL || !(s->timeline || s->times || s->comms || s->flops)) return;
    c->trace = observe_events;
    c->trace_user = &s->of[0];
}
void *observe_experts_user(observer *s) { return s != NULL ? &s->of[1] : NULL; }

zero_result observe_group(observer *s, zero_ctx *z, zero_group *g, int lane, int beside,
                          const char *name) {
    if (s == NULL || zero_group_size(g) < 2) return ZERO_OK;
    if (s->times != NULL && beside) breakdown_set_overlapped(s->times, lane);
    if (s->timeline != NULL) trace_group(s->timeline, lane, name);
    (void)snprintf(s->named[lane], sizeof s->named[lane], "%s", name);
    s->group[lane] = g;
    return zero_group_trace(g, z, lane);
}

void observe_begin(observer *s, const char *name, breakdown_kind kind) {
    if (s == NULL || s->depth == NESTED) return;
    s->open[s->depth].name = name;
    s->open[s->depth].kind = kind;
    s->open[s->depth++].begin = pace_clock();
}

/* On a GPU the trainer only enqueues, so only its reads of data count. */
void observe_end(observer *s) {
    if (s == NULL || s->depth == 0) return;
    s->depth--;
    const double begin = s->open[s->depth].begin, end = pace_clock();
    const breakdown_kind kind = s->open[s->depth].kind;
    if (s->timeline != NULL) trace_slice(s->timeline, s->open[s->depth].name, s->step, begin, end);
    if (s->times != NULL && (s->computes || kind == BREAKDOWN_DATA))
        breakdown_trainer(s->times, kind, begin, end);
}

/* ---- steps --------------------------------------------------------------------------------- */

/* Prints mean milliseconds and shares of `steps` steps, in two columns. */
static void observe_print_times(const observer *s, const char *what, const double *seconds,
                                double total, double steps) {
    enum { ROWS = (BREAKDOWN_KINDS + 1) / 2 };
    const int digits = total / steps < 0.1 ? 3 : 1;
    report_print(s->out, "breakdown of %s, %.*f ms a step:\n", what, digits, 1e3 * total / steps);
    for (int row = 0; row < ROWS; row++) {
        for (int k = row; k < BREAKDOWN_KINDS; k += ROWS)
            report_print(s->out, "  %-17s %9.*f ms %5.1f %%", breakdown_name((breakdown_kind)k),
                         digits, 1e3 * seconds[k] / steps,
                         total > 0 ? 100 * seconds[k] / total : 0);
        report_print(s->out, "\n");
    }
}

static void observe_add(breakdown_step *sum, const breakdown_step *one) {
    sum->step++;
    sum->end += one->end - one->begin;
    for (int k = 0; k < BREAKDOWN_KINDS; k++) sum->seconds[k] += one->seconds[k];
}

static int observe_put_times(observer *s, const breakdown_step *one, char *sentence, size_t bytes) {
    const scalar values[] = {
        {"Train/Samples/elapsed_time_ms_forward", 1e3 * one->seconds[BREAKDOWN_FORWARD]},
        {"Train/Samples/elapsed_time_ms_backward", 1e3 * one->seconds[BREAKDOWN_BACKWARD]},
        {"Train/Samples/elapsed_time_ms_backward_allreduce",
         1e3 * one->seconds[BREAKDOWN_REDUCTION]},
        {"Train/Samples/elapsed_time_ms_gather", 1e3 * one->seconds[BREAKDOWN_GATHER]},
        {"Train/Samples/elapsed_time_ms_groups", 1e3 * one->seconds[BREAKDOWN_GROUPS]},
        {"Train/Samples/elapsed_time_ms_step", 1e3 * one->seconds[BREAKDOWN_UPDATE]}};
    return scalars_put(s->figures, (one->step + 1) * s->samples_of, values,
                       (int)(sizeof values / sizeof *values), sentence, bytes);
}

/* Takes all complete steps, and if `all` is 1 also the incomplete ones. */
static int observe_take_times(observer *s, int all, char *sentence, size_t bytes) {
    breakdown_step one;
    char what[64];
    int failed = 0;
    while (s->times != NULL && breakdown_take(s->times, all, &one)) {
        failed |= observe_put_times(s, &one, sentence, bytes);
        if (s->sum.step == 0) s->first = one.step;
        observe_add(&s->sum, &one);
        if (s->warm) observe_add(&s->all, &one);
        s->warm = 1;
        if ((one.step + 1) % s->every != 0) continue;
        if (one.step == s->first)
            (void)snprintf(what, sizeof what, "step %lld", (long long)one.step + 1);
        else
            (void)snprintf(what, sizeof what, "steps %lld to %lld", (long long)s->first + 1,
                           (long long)one.step + 1);
        observe_print_times(s, what, s->sum.seconds, s->sum.end, (double)s->sum.step);
        memset(&s->sum, 0, sizeof s->sum);
    }
    return failed;
}

static void observe_counters(const observer *s, const step_line *v, double now, double mib) {
    if (s->timeline == NULL) return;
    trace_counter(s->timeline, "memory MiB", now, mib);
    if (s->l->rank != 0) return; /* this condition is equal on all ranks */
    trace_counter(s->timeline, "loss", now, v->loss);
    trace_counter(s->timeline, "norm", now, v->done->norm);
    trace_counter(s->timeline, "loss scale", now, (double)v->done->loss_scale);
}

static void observe_profile(observer *s, int all) {
    flops_table *f = s->flops;
    if (f == NULL || s->profile_step == 0 || !(f->passed || (all && f->wall > 0))) return;
    flops_print(f, s->out);
    s->profile_step = 0;
}

int observe_step(observer *s, const step_line *v, double began, int64_t samples, double mib,
                 char *sentence, size_t bytes) {
    if (s == NULL) return 0;
    const double end = began + v->seconds;
    const scalar values[] = {{"Train/Samples/train_loss", v->loss},
                             {"Train/Samples/lr", v->lr},
                             {"Train/Samples/loss_scale", (double)v->done->loss_scale},
                             {"Train/Samples/grad_norm", v->done->norm},
                             {"Train/Samples/skipped_steps", (double)v->done->skipped}};
    s->samples_of = samples / v->step;
    s->step = v->step;
    if (s->times != NULL) breakdown_mark(s->times, v->step - 1, began, end);
    if (s->flops != NULL && s->step == s->profile_step) {
        s->flops->share = v->share;
        s->flops->of = v->share_of;
        s->flops->wall = v->seconds;
    }
    observe_counters(s, v, end, mib);
    observe_profile(s, 0);
    int failed = scalars_put(s->figures, samples, values, (int)(sizeof values / sizeof *values),
                             sentence, bytes);
    failed |= observe_take_times(s, 0, sentence, bytes);
    if (s->timeline != NULL) failed |= trace_flush(s->timeline, sentence, bytes);
    return failed;
}

/* ---- the end ------------------------------------------------------------------------------- */

static zero_result observe_sum_times(observer *s, zero_ctx *z) {
    double sums[BREAKDOWN_KINDS + 2];
    char what[64] = "the run, mean of all ranks";
    if (s->times == NULL) return ZERO_OK;
    memcpy(sums, s->all.seconds, sizeof s->all.seconds);
    sums[BREAKDOWN_KINDS] = s->all.end;
    sums[BREAKDOWN_KINDS + 1] = (double)s->all.step;
    ZERO_TRY(zero_all_sum(z, sums, BREAKDOWN_KINDS + 2));
    if (zero_nranks(z) < s->l->nranks) /* -tp, -pp */
        (void)snprintf(what, sizeof what, "the run, mean of %d rank%s with rank 0's part",
                       zero_nranks(z), zero_nranks(z) > 1 ? "s" : "");
    if (sums[BREAKDOWN_KINDS + 1] > 0)
        observe_print_times(s, what, sums, sums[BREAKDOWN_KINDS], sums[BREAKDOWN_KINDS + 1]);
    return ZERO_OK;
}

/* Prints the groups' tables after the run, so that their own sums do not count. */
static zero_result observe_print_groups(observer *s) {
    char what[32];
    for (int i = 0; i < GROUPS; i++)
        if (s->group[i] != NULL) ZERO_TRY(zero_group_trace(s->group[i], NULL, 0));
    for (int i = 0; i < GROUPS && s->comms != NULL; i++) {
        if (s->group[i] == NULL) continue;
        const comms_ranks ranks = comms_ranks_of_group(s->group[i]);
        (void)snprintf(what, sizeof what, "group %s's collectives", s->named[i]);
        ZERO_TRY(comms_print(&s->comms[CONTEXTS + i], &ranks, what, s->out));
    }
    return ZERO_OK;
}

static zero_result observe_print_comms(observer *s, zero_ctx *z, const char *what, int experts) {
    const comms_ranks ranks = comms_ranks_of(z);
    return s->comms != NULL ? comms_print(&s->comms[experts], &ranks, what, s->out) : ZERO_OK;
}

zero_result observe_print_tables(observer *s, zero_ctx *z, zero_ctx *experts) {
    char sentence[LAUNCH_SENTENCE] = "";
    zero_stats stats;
    if (s == NULL) return ZERO_OK;
    ZERO_TRY(zero_query_stats(z, &stats)); /* reports the finished events, which are all */
    if (experts != NULL) ZERO_TRY(zero_query_stats(experts, &stats));
    if (observe_take_times(s, 1, sentence, sizeof sentence)) report_print(s->out, "%s\n", sentence);
    observe_profile(s, 1);
    ZERO_TRY(observe_sum_times(s, z));
    ZERO_TRY(observe_print_comms(s, z, "collectives", 0));
    if (experts != NULL) ZERO_TRY(observe_print_comms(s, experts, "experts' collectives", 1));
    return observe_print_groups(s);
}

int observe_close(observer *s, char *sentence, size_t bytes) {
    int failed = 0;
    if (s == NULL) return 0;
    if (s->timeline != NULL) {
        failed = trace_flush(s->timeline, sentence, bytes);
        launch_agree(s->l, 1, ""); /* all ranks have written */
        failed |= trace_close(s->timeline, s->l->rank == 0, sentence, bytes);
    }
    observe_free(s);
    return failed;
}

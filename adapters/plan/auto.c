/* auto.c - see auto.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "auto.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../report/sentence.h"
#include "../system/clock.h"
#include "auto_space.h"
#include "auto_time.h"

enum { AUTO_PROBES = 3, AUTO_RECOMPUTES = 8, AUTO_STATES = 64, AUTO_ORDERS = 3 };
enum { AUTO_UNASKED = 0, AUTO_LEGAL, AUTO_REFUSED };

/* The activations of a batch size and -r, which are equal for all contexts. */
typedef struct auto_run {
    int state;
    size_t activations, away;
    uint64_t among;
} auto_run;

/* The answers of one context without activations, for 1, 2 and 3 micro-steps. */
typedef struct auto_context {
    int made[AUTO_PROBES], state[AUTO_PROBES]; /* of the case; of its answer */
    plan_case c[AUTO_PROBES];
    plan_answer a[AUTO_PROBES];
} auto_context;

typedef struct auto_search_run {
    auto_space space;
    auto_result *found;
    auto_context context;
    auto_run run[AUTO_ORDERS][AUTO_VALUES][AUTO_RECOMPUTES];
    auto_choice stated[AUTO_STATES]; /* contexts with known bytes of state */
    size_t state_bytes[AUTO_STATES];
    int states;
    double limit; /* most seconds of a lossy plan; that of the best one of its combination so far */
    int rows;     /* rows of a context: all but -b and -r */
} auto_search_run;

static void auto_refuse(auto_search_run *x, const char *why) {
    if (!x->found->refused[0])
        (void)snprintf(x->found->refused, sizeof x->found->refused, "%s", why);
}

/* ---- contexts ------------------------------------------------------------------------------ */

/* Finds the state's bytes, which depend on only three settings, among the contexts before. */
static size_t *auto_state_bytes(auto_search_run *x, const auto_choice *c) {
    int i = 0;
    for (; i < x->states; i++)
        if (x->stated[i].stage == c->stage && x->stated[i].shard_ranks == c->shard_ranks
            && x->stated[i].state_type == c->state_type)
            return &x->state_bytes[i];
    if (i == AUTO_STATES) return NULL;
    x->stated[i] = *c;
    x->state_bytes[i] = 0;
    x->states++;
    return &x->state_bytes[i];
}

/* Makes the case of a context with a number of micro-steps, once. */
static int auto_make(auto_search_run *x, const auto_choice *c, int micro_steps) {
    auto_context *at = &x->context;
    const int i = micro_steps - 1;
    char why[PLAN_SENTENCE] = "";
    if (at->made[i] != AUTO_UNASKED) return at->made[i];
    auto_choice choice = *c;
    choice.batch = 1;
    choice.micro_steps = micro_steps;
    if (c->layer_group > 1) choice.recompute = GPT2_RECOMPUTE_BLOCK; /* as auto_recomputes */
    const int failed = auto_case(&x->space, &choice, &at->c[i], why, sizeof why);
    if (failed) auto_refuse(x, why);
    at->c[i].run.batch = 0;
    at->made[i] = failed ? AUTO_REFUSED : AUTO_LEGAL;
    return at->made[i];
}

/* Asks for a context with a number of micro-steps, once. */
static int auto_probe(auto_search_run *x, const auto_choice *c, int micro_steps) {
    auto_context *at = &x->context;
    const int i = micro_steps - 1;
    char why[PLAN_SENTENCE] = "";
    if (at->state[i] != AUTO_UNASKED) return at->state[i];
    int failed = auto_make(x, c, micro_steps) == AUTO_REFUSED;
    size_t *state = auto_state_bytes(x, c);
    if (!failed && state != NULL) at->c[i].state_bytes = *state;
    if (!failed && plan_ask(&at->c[i], &at->a[i], why, sizeof why)) {
        failed = 1;
        auto_refuse(x, why);
    }
    if (!failed && state != NULL) *state = at->a[i].state_bytes;
    x->found->contexts++;
    at->state[i] = failed ? AUTO_REFUSED : AUTO_LEGAL;
    return at->state[i];
}

/* Returns the micro-steps of the probe that stands for a choice. */
static int auto_probe_of(const auto_choice *c) {
    const int most = c->layer_order ? 2 : AUTO_PROBES;
    return c->micro_steps < most ? c->micro_steps : most;
}

static void auto_extend(size_t *to, size_t more, size_t before, size_t by) {
    *to = more + by * (more - before);
}

/* Writes case and answer for any number of micro-steps: from the third on, each adds as much. If
   they pass the layers together, the context has one micro-step, of any number of micro-batches. */
static int auto_ask(auto_search_run *x, const auto_choice *c, plan_case *made, plan_answer *a) {
    const int micro = c->micro_steps, probe = auto_probe_of(c);
    if (auto_probe(x, c, probe) == AUTO_REFUSED) return 1;
    *made = x->context.c[probe - 1];
    *a = x->context.a[probe - 1];
    if (c->layer_order) {
        made->run.together = micro;
        return 0;
    }
    made->zero.micro_steps = a->resolved.micro_steps = micro;
    if (micro <= AUTO_PROBES) return 0;
    if (auto_probe(x, c, probe - 1) == AUTO_REFUSED) return 1;
    const zero_plan *more = &x->context.a[probe - 1].zero, *before = &x->context.a[probe - 2].zero;
    const size_t by = (size_t)(micro - AUTO_PROBES);
    zero_plan *p = &a->zero;
    auto_extend(&p->sent_bytes, more->sent_bytes, before->sent_bytes, by);
    auto_extend(&p->near_bytes, more->near_bytes, before->near_bytes, by);
    auto_extend(&p->gather_bytes, more->gather_bytes, before->gather_bytes, by);
    auto_extend(&p->file_read_bytes, more->file_read_bytes, before->file_read_bytes, by);
    auto_extend(&p->file_written_bytes, more->file_written_bytes, before->file_written_bytes, by);
    auto_extend(&p->down_bytes, more->down_bytes, before->down_bytes, by);
    auto_extend(&p->up_bytes, more->up_bytes, before->up_bytes, by);
    auto_extend(&p->context_bytes, more->context_bytes, before->context_bytes, by);
    if (!made->on_gpus) a->device_bytes += p->context_bytes - more->context_bytes;
    return 0;
}

static uint64_t auto_micro_batches(const plan_case *c) {
    const int steps = c->zero.micro_steps, together = c->run.together;
    return (uint64_t)(steps > 0 ? steps : 1) * (uint64_t)(together > 0 ? together : 1);
}

/* Adds the activations of a run to an answer, from the table of runs. */
static int auto_add_run(auto_search_run *x, auto_run *run, const plan_case *c, plan_answer *a) {
    char why[PLAN_SENTENCE] = "";
    plan_answer whole = *a;
    if (run->state == AUTO_UNASKED) {
        const int failed = plan_add_run(c, &whole, why, sizeof why);
        if (failed) auto_refuse(x, why);
        run->state = failed ? AUTO_REFUSED : AUTO_LEGAL;
        run->activations = whole.activations;
        run->away = whole.away;
        run->among = whole.among / auto_micro_batches(c);
    }
    if (run->state == AUTO_REFUSED) return 1;
    a->activations = run->activations;
    a->away = run->away;
    a->among = run->among * auto_micro_batches(c);
    a->device_bytes += run->activations;
    *(c->on_gpus ? &a->host_bytes : &a->file_bytes) += run->away;
    return 0;
}

/* Asks for a plan. A pipeline has its own memory for each number of micro-steps. */
static int auto_plan_of(auto_search_run *x, const auto_choice *c, auto_run *run, plan_case *made,
                        plan_answer *a) {
    char why[PLAN_SENTENCE] = "";
    if (x->space.r->options.pipeline < 2) {
        if (auto_ask(x, c, made, a)) return 1;
        made->run.batch = x->space.r->model.is_gpt2 ? c->batch : 0;
        made->run.recompute = c->recompute;
        if (!x->space.r->model.is_gpt2) made->run.batch = c->batch;
        return auto_add_run(x, run, made, a);
    }
    x->found->contexts++;
    if (!auto_case(&x->space, c, made, why, sizeof why) && !plan_ask(made, a, why, sizeof why))
        return 0;
    auto_refuse(x, why);
    return 1;
}

/* ---- families ------------------------------------------------------------------------------ */

static const char *auto_tier(const plan_case *c, zero_tier tier) {
    return tier == ZERO_FILE ? "file" : tier == ZERO_HOST && c->on_gpus ? "host" : "device";
}

/* Names the tiers of a case: "device", "state file", "state and gradients file", ... */
static void auto_name(const plan_case *c, char name[AUTO_NAME]) {
    static const char *const what[] = {"state", "gradients", "parameters"};
    const char *tier[] = {auto_tier(c, c->zero.optimizer_tier), auto_tier(c, c->zero.gradient_tier),
                          auto_tier(c, c->zero.parameter_tier)};
    size_t used = 0;
    (void)snprintf(name, AUTO_NAME, "device");
    for (int i = 0; i < 3; i++) {
        if (strcmp(tier[i], "device") == 0) continue;
        const int again = i < 2 && strcmp(tier[i], tier[i + 1]) == 0; /* the tier comes later */
        used += (size_t)snprintf(name + used, AUTO_NAME - used, "%s%s%s%s", used ? " " : "",
                                 what[i], again ? "," : " ", again ? "" : tier[i]);
    }
}

/* Finds or adds the family of a case. A lossy combination is one family, so there are few. */
static auto_family *auto_family_of(auto_result *found, const plan_case *c, int lossy) {
    char name[AUTO_NAME];
    auto_name(c, name);
    for (int i = 0; i < found->families; i++) {
        auto_family *f = &found->family[i];
        if (f->lossy == lossy
            && (lossy || (f->best.choice.stage == c->zero.stage && strcmp(f->tiers, name) == 0)))
            return f;
    }
    if (found->families == AUTO_FAMILIES) return NULL;
    auto_family *f = &found->family[found->families++];
    memset(f, 0, sizeof *f);
    memcpy(f->tiers, name, sizeof name);
    f->lossy = lossy;
    f->best.choice.stage = c->zero.stage;
    f->best.step.all = DBL_MAX;
    f->excess = DBL_MAX;
    return f;
}

static double auto_over(uint64_t bytes, double most) { return most > 0 ? (double)bytes / most : 0; }
static double auto_excess(const plan_answer *a, const plan_limits *most) {
    const double device = auto_over(a->device_bytes, most->device);
    return fmax(device,
                fmax(auto_over(a->host_bytes, most->host), auto_over(a->file_bytes, most->file)));
}

static void auto_keep(auto_family *f, const auto_choice *c, const plan_answer *a,
                      const machine_step *step) {
    f->best.choice = *c;
    f->best.step = *step;
    f->best.device_bytes = a->device_bytes;
    f->best.host_bytes = a->host_bytes;
    f->best.file_bytes = a->file_bytes;
    f->best.sent_bytes = a->zero.sent_bytes + a->among;
    f->best.moved_bytes = (uint64_t)a->zero.file_read_bytes + a->zero.file_written_bytes;
}

/* Compares a plan with the best one of its family. */
static void auto_consider(auto_search_run *x, const auto_choice *c, const plan_case *made,
                          const plan_answer *a) {
    const plan_request *r = x->space.r;
    char why[PLAN_SENTENCE] = "";
    int simulated = 0;
    machine_step step;
    memset(&step, 0, sizeof step);
    const int lossy = x->space.lossy, fits = plan_fits(a, &r->most);
    if (lossy && (!fits || auto_least_seconds(r->machine, made, a) > x->limit)) return;
    auto_family *f = auto_family_of(x->found, made, lossy);
    if (f == NULL) return;
    x->found->legal += !lossy;
    const double excess = auto_excess(a, &r->most);
    if (!fits) {
        if (f->fits || f->unknown[0] || excess >= f->excess) return;
        f->excess = excess;
        auto_keep(f, c, a, &step);
        return;
    }
    x->found->fit += !lossy;
    if (f->fits && auto_least_seconds(r->machine, made, a) >= f->best.step.all) return;
    if (auto_predict(r->machine, made, a, &step, &simulated, why, sizeof why)) {
        (void)snprintf(f->unknown, sizeof f->unknown, "%s", why);
        return;
    }
    x->found->simulations += simulated;
    if ((f->fits && step.all >= f->best.step.all) || (lossy && step.all > x->limit)) return;
    if (lossy) x->limit = step.all;
    auto_name(made, f->tiers);
    f->fits = 1;
    f->excess = excess;
    auto_keep(f, c, a, &step);
}

/* ---- the search ---------------------------------------------------------------------------- */

/* Makes the case of a choice, without its memory and traffic. */
static int auto_case_of(auto_search_run *x, const auto_choice *c, plan_case *made) {
    char why[PLAN_SENTENCE];
    if (x->space.r->options.pipeline > 1) return auto_case(&x->space, c, made, why, sizeof why);
    const int probe = auto_probe_of(c);
    if (auto_make(x, c, probe) == AUTO_REFUSED) return 1;
    *made = x->context.c[probe - 1];
    *(c->layer_order ? &made->run.together : &made->zero.micro_steps) = c->micro_steps;
    made->run.batch = c->batch;
    made->run.recompute = c->recompute;
    return 0;
}

/* Returns 1 if a lossy plan cannot win, without planning its context: its activations and state do
   not fit, or it takes longer than the limit. */
static int auto_cannot_win(auto_search_run *x, const auto_choice *c, const auto_run *run) {
    const plan_request *r = x->space.r;
    const size_t *state = auto_state_bytes(x, c);
    const size_t here = state != NULL && c->optimizer == ZERO_DEVICE ? *state : 0;
    plan_case made;
    plan_answer none;
    if (r->options.pipeline > 1) return 0;
    if (run->state == AUTO_LEGAL && r->most.device > 0
        && (double)run->activations + (double)here > r->most.device)
        return 1;
    if (x->limit >= DBL_MAX || auto_case_of(x, c, &made)) return 0;
    memset(&none, 0, sizeof none);
    none.resolved = made.zero;
    none.zero.nranks = 1;
    return auto_least_seconds(r->machine, &made, &none) > x->limit;
}

/* Returns the table of runs of an order: passes, single layers, groups of one size. */
static int auto_order(const auto_choice *c) { return c->layer_order + (c->layer_group > 1); }

/* Visits all batch sizes and recomputations of a context. */
static void auto_visit_runs(auto_search_run *x, auto_choice *c) {
    const auto_row *batch = &auto_rows[x->rows], *again = &auto_rows[x->rows + 1];
    int batches[AUTO_VALUES], agains[AUTO_VALUES];
    const int n = auto_list(&x->space, batch, c, batches);
    memset(x->context.made, 0, sizeof x->context.made);
    memset(x->context.state, 0, sizeof x->context.state);
    for (int i = 0; i < n; i++) {
        if (batches[i] < 1 || x->space.rows % batches[i]) continue;
        c->batch = batches[i];
        c->micro_steps = x->space.rows / batches[i];
        const train_options *o = &x->space.r->options;
        if (c->micro_steps == 1
            && (c->accumulation != o->accumulation || c->layer_order != o->layer_order))
            continue; /* one micro-step accumulates nothing */
        const int m = auto_list(&x->space, again, c, agains);
        for (int k = 0; k < m; k++) {
            plan_case made;
            plan_answer a;
            auto_run *run = &x->run[auto_order(c)][i][k];
            c->recompute = agains[k];
            if (x->space.lossy && auto_cannot_win(x, c, run)) continue;
            if (!auto_plan_of(x, c, run, &made, &a)) auto_consider(x, c, &made, &a);
        }
    }
}

static void auto_visit(auto_search_run *x, int row, auto_choice *c) {
    int value[AUTO_VALUES];
    if (row == x->rows) {
        auto_visit_runs(x, c);
        return;
    }
    const int n = auto_list(&x->space, &auto_rows[row], c, value);
    for (int i = 0; i < n; i++) {
        *auto_value(c, &auto_rows[row]) = value[i];
        auto_visit(x, row + 1, c);
    }
}

/* Sorts families that fit before the others. */
static int auto_rising(const void *a, const void *b) {
    const auto_family *f = (const auto_family *)a, *g = (const auto_family *)b;
    if (f->fits != g->fits) return g->fits - f->fits;
    const double x = f->fits ? f->best.step.all : f->excess;
    const double y = g->fits ? g->best.step.all : g->excess;
    if (x != y) return x < y ? -1 : 1;
    if (f->best.choice.stage != g->best.choice.stage)
        return f->best.choice.stage - g->best.choice.stage;
    return strcmp(f->tiers, g->tiers);
}

/* Returns the seconds of the fastest plan that fits, or DBL_MAX. */
static double auto_fastest(const auto_result *found) {
    double best = DBL_MAX;
    for (int i = 0; i < found->families; i++)
        if (found->family[i].fits) best = fmin(best, found->family[i].best.step.all);
    return best;
}

int auto_search(const plan_request *r, auto_result *found, char *sentence, size_t bytes) {
    auto_search_run *x = (auto_search_run *)calloc(1, sizeof *x);
    auto_choice c;
    const double began = clock_seconds(CLOCK_MONOTONIC);
    memset(found, 0, sizeof *found);
    memset(&c, 0, sizeof c);
    if (x == NULL) return sentence_fail(sentence, bytes, "-z auto: out of memory");
    x->found = found;
    x->rows = auto_row_count - 2;
    int failed = auto_space_open(&x->space, r, sentence, bytes);
    if (!failed) auto_visit(x, 0, &c);
    if (!failed && r->options.lossy) {
        for (int i = 1; auto_set_lossy(&x->space, i); i++) {
            const double best = auto_fastest(found);
            x->limit = best < DBL_MAX ? AUTO_LOSSY * best : DBL_MAX;
            auto_visit(x, 0, &c);
        }
    }
    found->step_tokens = x->space.step_tokens;
    free(x);
    if (failed) return 1;
    int kept = 0;
    for (int i = 0; i < found->families; i++) { /* drops families without a legal plan */
        const auto_family *f = &found->family[i];
        if (!f->fits && ((!f->unknown[0] && f->excess == DBL_MAX) || f->lossy)) continue;
        found->fitting += found->family[i].fits;
        found->family[kept++] = found->family[i];
    }
    found->families = kept;
    qsort(found->family, (size_t)kept, sizeof *found->family, auto_rising);
    found->seconds = clock_seconds(CLOCK_MONOTONIC) - began;
    if (kept > 0) return 0;
    return sentence_fail(sentence, bytes, "-z auto: no plan is legal: %s", found->refused);
}

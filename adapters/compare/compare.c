/* compare.c - see compare.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "compare.h"

#include "../report/pace.h"
#include "../report/progress.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int compare_doubles(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The value below which a share of them lies, between the two that are nearest to it. */
static double compare_quantile(const double *values, int count, double share) {
    double sorted[COMPARE_ROUNDS];
    memcpy(sorted, values, (size_t)count * sizeof *values);
    qsort(sorted, (size_t)count, sizeof *sorted, compare_doubles);
    const double at = share * (count - 1);
    const int below = (int)at, above = below + (below + 1 < count);
    return sorted[below] + (at - below) * (sorted[above] - sorted[below]);
}

static void compare_check(const compare *c, const compare_entry *e, zero_result result) {
    c->host->check(e->trainer, result);
}

/* ---- rounds -------------------------------------------------------------------------------- */

/* One step that is not timed: caches fill, pages are touched. */
static void compare_warm_up(compare *c) {
    for (int i = 0; i < c->n; i++) {
        char what[32];
        (void)snprintf(what, sizeof what, "warming up stage %d", c->entry[i].stage);
        progress_phase(c->report, what, 0);
        c->host->step(c->entry[i].trainer, NULL);
        compare_check(c, &c->entry[i], zero_barrier(c->entry[i].z));
    }
}

/* All ranks start together; the clock stops when the last communication has ended. */
static void compare_turn(compare *c, compare_entry *e, int round, int steps) {
    zero_stats before, after;
    compare_check(c, e, zero_query_stats(e->z, &before));
    compare_check(c, e, zero_barrier(e->z));
    const double started = pace_clock();
    for (int i = 0; i < steps; i++) c->host->step(e->trainer, NULL);
    compare_check(c, e, zero_query_stats(e->z, &after));
    c->host->wait(e->trainer);
    compare_check(c, e, zero_barrier(e->z));
    e->rates[round] = (double)c->step_tokens * steps / (pace_clock() - started);
    e->sent_bytes = (after.sent_bytes - before.sent_bytes) / (uint64_t)steps;
    e->exposed_s += after.exposed_s - before.exposed_s;
}

/* Every round begins with another stage, so that none always follows the same one. */
static void compare_rounds(compare *c) {
    progress watch;
    progress_begin(&watch, c->report, "comparing");
    for (int round = 0; round < c->rounds; round++) {
        for (int i = 0; i < c->n; i++) {
            progress_at(&watch, (double)(round * c->n + i) / (c->rounds * c->n), NULL);
            compare_turn(c, &c->entry[(round + i) % c->n], round, c->steps / c->rounds);
        }
        report_say(c->report, "round %d/%d | tok/s at stage", round + 1, c->rounds);
        for (int i = 0; i < c->n; i++)
            report_say(c->report, "%s%d: %.0f", i ? " | " : " ", c->entry[i].stage,
                       c->entry[i].rates[round]);
        report_say(c->report, "\n");
    }
}

/* The loss of a last step, which is not timed either; then memory, exposed time, weights. */
static void compare_finish(compare *c, compare_entry *e) {
    c->host->step(e->trainer, &e->loss);
    compare_check(c, e, zero_query_stats(e->z, &e->stats));
    compare_check(c, e, zero_all_sum(e->z, &e->exposed_s, 1));
    e->exposed_s /= c->ranks;
    e->weights = c->host->hash(e->trainer);
}

/* Stage 0, or the first. */
static int compare_reference(const compare *c) {
    for (int i = 0; i < c->n; i++)
        if (c->entry[i].stage == 0) return i;
    return 0;
}

/* Stages that ran in the same round had the same neighbours on the machine: ratios are taken round
   by round. */
static void compare_rates(compare *c) {
    double ratios[COMPARE_ROUNDS];
    const compare_entry *reference = &c->entry[compare_reference(c)];
    for (int i = 0; i < c->n; i++) {
        compare_entry *e = &c->entry[i];
        for (int r = 0; r < c->rounds; r++) ratios[r] = e->rates[r] / reference->rates[r];
        e->median = compare_quantile(e->rates, c->rounds, 0.5);
        e->ratio = compare_quantile(ratios, c->rounds, 0.5);
        e->low = compare_quantile(ratios, c->rounds, 0.25);
        e->high = compare_quantile(ratios, c->rounds, 0.75);
    }
}

void compare_run(compare *c) {
    compare_warm_up(c);
    compare_rounds(c);
    for (int i = 0; i < c->n; i++) compare_finish(c, &c->entry[i]);
    compare_rates(c);
}

/* ---- results ------------------------------------------------------------------------------- */

static void compare_write(const compare *c, FILE *csv, const compare_entry *e) {
    fprintf(csv, "%d,%d,%.1f,%.4f,%zu,%zu,%zu,%zu,%zu,%llu,%zu,%.3f,%.6f,%016llx,%.4f,%.4f\n",
            e->stage, c->ranks, e->median, e->ratio, e->stats.param_bytes, e->stats.grad_bytes,
            e->stats.optimizer_bytes, e->stats.buffer_bytes, e->plan->formula_bytes,
            (unsigned long long)e->sent_bytes, e->plan->formula_sent_bytes,
            1e3 * e->exposed_s / c->steps, e->loss, (unsigned long long)e->weights, e->low,
            e->high);
}

static void compare_say(compare *c, const compare_entry *e) {
    const double mib = 1024 * 1024;
    report_say(c->report,
               "| %5d | %8.0f | %5.3f  %5.3f-%5.3f | %7.1f %7.1f %7.1f %7.1f | %7.1f | %6.1f %6.1f "
               "| %7.2f | %8.6f | "
               "%016llx |\n",
               e->stage, e->median, e->ratio, e->low, e->high, (double)e->stats.param_bytes / mib,
               (double)e->stats.grad_bytes / mib, (double)e->stats.optimizer_bytes / mib,
               (double)e->stats.buffer_bytes / mib, (double)e->plan->formula_bytes / mib,
               (double)e->sent_bytes / mib, (double)e->plan->formula_sent_bytes / mib,
               1e3 * e->exposed_s / c->steps, e->loss, (unsigned long long)e->weights);
}

int compare_unequal(const compare *c) {
    for (int i = 1; i < c->n; i++)
        if (c->entry[i].weights != c->entry[0].weights) return i;
    return -1;
}

/* A rank's file, which is no part of its memory. */
static void compare_explain_file(compare *c, const compare_entry *e) {
    const double mib = 1024 * 1024;
    const zero_plan *p = e->plan;
    if (!p->file_bytes) return;
    report_say(c->report,
               "file     stage %d: %.1f MiB of a rank, %.1f read and %.1f written a step\n",
               e->stage, (double)p->file_bytes / mib, (double)p->file_read_bytes / mib,
               (double)p->file_written_bytes / mib);
}

/* What the table cannot say by itself. */
static void compare_explain(compare *c) {
    const int steps = c->steps + 2; /* the first and the last are not timed */
    report_say(
        c->report,
        "ratio    tokens/s to those of stage %d, the median over %d rounds in which the "
        "stages took turns;\n"
        "         beside it the quartiles: half of the rounds lie between the two\n"
        "exposed  time of a step in which a rank waits for communication that computing does "
        "not hide\n",
        c->entry[compare_reference(c)].stage, c->rounds);
    for (int i = 0; i < c->n; i++) compare_explain_file(c, &c->entry[i]);
    if (compare_unequal(c) < 0)
        report_say(c->report,
                   "weights  identical, bit for bit, at the %d stages after the same %d steps\n",
                   c->n, steps);
}

void compare_print(compare *c, FILE *csv) {
    report_say(c->report,
               "|       |          |                    |  MiB of a rank: param, grad, optim, "
               "buffer | formula |  MiB sent, by  | exposed |          |                  |\n"
               "| stage |    tok/s | ratio    quartiles |  params   grads   optim buffers | "
               "no buf. |  step  formula | ms/step |     loss |          weights |\n");
    for (int i = 0; i < c->n; i++) {
        compare_say(c, &c->entry[i]);
        if (csv != NULL) compare_write(c, csv, &c->entry[i]);
    }
    compare_explain(c);
}

FILE *compare_open_csv(const char *path) {
    char folder[1024];
    const char *slash = strrchr(path, '/');
    (void)snprintf(folder, sizeof folder, "%.*s", slash != NULL ? (int)(slash - path) : 0, path);
    if (slash != NULL) (void)mkdir(folder, 0777); /* fopen tells if it is not there */
    FILE *csv = fopen(path, "w");
    if (csv != NULL)
        fprintf(csv, "stage,ranks,tokens_per_s,ratio,param_bytes,grad_bytes,optimizer_bytes,"
                     "buffer_bytes,formula_bytes,sent_bytes,formula_sent_bytes,exposed_ms,loss,"
                     "weights,ratio_low,ratio_high\n");
    return csv;
}

/* compare.c - see compare.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "compare.h"

#include "../report/pace.h"
#include "../report/progress.h"
#include "../system/regular_file.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int compare_doubles(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Returns a quantile, interpolated between the two nearest values. */
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

/* Makes one step that is not timed, which fills caches and touches pages. */
static void compare_warm_up(compare *c) {
    for (int i = 0; i < c->n; i++) {
        char what[64];
        (void)snprintf(what, sizeof what, "warming up %s %s", c->what, c->entry[i].name);
        progress_phase(c->report, what, 0);
        c->host->step(c->entry[i].trainer, NULL);
        c->host->sum(c->entry[i].trainer, NULL, 0);
    }
}

/* Measures some steps of one entry. All ranks start together, and the time ends with the last
   communication. */
static void compare_measure_steps(compare *c, compare_entry *e, int round, int steps) {
    zero_stats before, after, others[2];
    compare_check(c, e, zero_query_stats(e->z, &before));
    c->host->others(e->trainer, &others[0]);
    c->host->sum(e->trainer, NULL, 0);
    const double started = pace_clock();
    for (int i = 0; i < steps; i++) c->host->step(e->trainer, NULL);
    compare_check(c, e, zero_query_stats(e->z, &after));
    c->host->others(e->trainer, &others[1]);
    c->host->wait(e->trainer);
    c->host->sum(e->trainer, NULL, 0);
    e->rates[round] = (double)c->step_tokens * steps / (pace_clock() - started);
    e->sent_bytes = (after.sent_bytes - before.sent_bytes) / (uint64_t)steps;
    e->exposed_s += after.exposed_s - before.exposed_s;
    e->sent_bytes += (others[1].sent_bytes - others[0].sent_bytes) / (uint64_t)steps;
    e->exposed_s += others[1].exposed_s - others[0].exposed_s;
}

/* Each round begins with another stage, so that the order of the stages changes. */
static void compare_rounds(compare *c) {
    progress watch;
    progress_begin(&watch, c->report, "comparing");
    for (int round = 0; round < c->rounds; round++) {
        for (int i = 0; i < c->n; i++) {
            progress_at(&watch, (double)(round * c->n + i) / (c->rounds * c->n), NULL);
            compare_measure_steps(c, &c->entry[(round + i) % c->n], round, c->steps / c->rounds);
        }
        report_print(c->report, "round %d/%d | tok/s at %s", round + 1, c->rounds, c->what);
        for (int i = 0; i < c->n; i++)
            report_print(c->report, "%s%s: %.0f", i ? " | " : " ", c->entry[i].name,
                         c->entry[i].rates[round]);
        report_print(c->report, "\n");
    }
}

/* Makes a last step, which is not timed, for the loss. Then reads memory, exposed time and weights.
 */
static void compare_finish(compare *c, compare_entry *e) {
    zero_stats others;
    c->host->step(e->trainer, &e->loss);
    compare_check(c, e, zero_query_stats(e->z, &e->stats));
    c->host->others(e->trainer, &others);
    e->stats.param_bytes += others.param_bytes;
    e->stats.grad_bytes += others.grad_bytes;
    e->stats.optimizer_bytes += others.optimizer_bytes;
    e->stats.buffer_bytes += others.buffer_bytes;
    c->host->sum(e->trainer, &e->exposed_s, 1);
    e->exposed_s /= c->ranks;
    e->weights = c->host->hash(e->trainer);
}

/* Returns the entry that ratios refer to: stage 0, or the first one. */
static int compare_find_reference(const compare *c) {
    for (int i = 0; i < c->n; i++)
        if (c->entry[i].stage == 0) return i;
    return 0;
}

/* Computes medians, and ratios for each round, because the load of the machine is most alike within
   a round. */
static void compare_rates(compare *c) {
    double ratios[COMPARE_ROUNDS];
    const compare_entry *reference = &c->entry[compare_find_reference(c)];
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

/* Returns the bytes that a rank sends in a step, by formula. */
static size_t compare_sent_by_formula(const compare_entry *e) {
    return e->plan->formula_sent_bytes + e->others_bytes;
}

static void compare_write_header(FILE *csv) {
    (void)!ftruncate(fileno(csv), 0); /* fails for a device, such as /dev/null */
    fprintf(csv, "stage,ranks,tokens_per_s,ratio,param_bytes,grad_bytes,optimizer_bytes,"
                 "buffer_bytes,formula_bytes,sent_bytes,formula_sent_bytes,exposed_ms,loss,"
                 "weights,ratio_low,ratio_high,layout,activation_bytes\n");
}

static void compare_write(const compare *c, FILE *csv, const compare_entry *e) {
    fprintf(csv,
            "%d,%d,%.1f,%.4f,%zu,%zu,%zu,%zu,%zu,%llu,%zu,%.3f,%.6f,%016llx,%.4f,%.4f,%s,%zu\n",
            e->stage, c->ranks, e->median, e->ratio, e->stats.param_bytes, e->stats.grad_bytes,
            e->stats.optimizer_bytes, e->stats.buffer_bytes, e->plan->formula_bytes,
            (unsigned long long)e->sent_bytes, compare_sent_by_formula(e),
            1e3 * e->exposed_s / c->steps, e->loss, (unsigned long long)e->weights, e->low, e->high,
            e->layout, e->activation_bytes);
}

/* Returns the width of the first column. */
static int compare_width(const compare *c) {
    size_t width = strlen(c->what);
    for (int i = 0; i < c->n; i++)
        if (strlen(c->entry[i].name) > width) width = strlen(c->entry[i].name);
    return (int)width;
}

static void compare_print_row(compare *c, const compare_entry *e) {
    const double mib = 1024 * 1024;
    report_print(
        c->report,
        "| %*s | %8.0f | %5.3f  %5.3f-%5.3f | %7.1f %7.1f %7.1f %7.1f | %7.1f | %6.1f %6.1f "
        "| %7.2f | %8.6f | "
        "%016llx |\n",
        compare_width(c), e->name, e->median, e->ratio, e->low, e->high,
        (double)e->stats.param_bytes / mib, (double)e->stats.grad_bytes / mib,
        (double)e->stats.optimizer_bytes / mib, (double)e->stats.buffer_bytes / mib,
        (double)e->plan->formula_bytes / mib, (double)e->sent_bytes / mib,
        (double)compare_sent_by_formula(e) / mib, 1e3 * e->exposed_s / c->steps, e->loss,
        (unsigned long long)e->weights);
}

int compare_unequal(const compare *c, char *sentence, size_t bytes) {
    const compare_entry *a = &c->entry[0];
    for (const compare_entry *b = a + 1; b < a + c->n; b++) {
        if (b->weights == a->weights) continue;
        (void)snprintf(sentence, bytes,
                       "after the same %d steps, %s %s has weights %016llx, but %s %s has %016llx",
                       c->steps + 2, c->what, b->name, (unsigned long long)b->weights, c->what,
                       a->name, (unsigned long long)a->weights);
        return 1;
    }
    return 0;
}

/* Prints the size and traffic of a rank's file, which is not part of its memory. */
static void compare_print_file(compare *c, const compare_entry *e) {
    const double mib = 1024 * 1024;
    const zero_plan *p = e->plan;
    if (!p->file_bytes) return;
    report_print(c->report,
                 "file     %s %s: %.1f MiB of a rank, %.1f read and %.1f written a step\n", c->what,
                 e->name, (double)p->file_bytes / mib, (double)p->file_read_bytes / mib,
                 (double)p->file_written_bytes / mib);
}

/* Prints the meaning of the columns, and the results that have no column. */
static void compare_print_notes(compare *c) {
    const int steps = c->steps + 2; /* the first and the last are not timed */
    report_print(
        c->report,
        "ratio    tokens/s to those of %s %s, the median over %d rounds in which the "
        "%ss alternated;\n"
        "         next to it the quartiles: half of the rounds lie between the two\n"
        "exposed  time of a step in which a rank waits for communication that does not overlap "
        "with computing\n",
        c->what, c->entry[compare_find_reference(c)].name, c->rounds, c->what);
    for (int i = 0; i < c->n; i++) compare_print_file(c, &c->entry[i]);
    for (int i = 0; i < c->n && strcmp(c->what, "layout") == 0; i++)
        report_print(
            c->report, "%s%s: %.1f MiB%s", i ? ", " : "activations  of a rank: ", c->entry[i].name,
            (double)c->entry[i].activation_bytes / (1024 * 1024), i + 1 < c->n ? "" : "\n");
    char sentence[256];
    if (!compare_unequal(c, sentence, sizeof sentence))
        report_print(c->report,
                     "weights  identical, bit for bit, at the %d %ss after the same %d steps\n",
                     c->n, c->what, steps);
}

void compare_print(compare *c, FILE *csv) {
    report_print(c->report,
                 "| %*s |          |                    |  MiB of a rank: param, grad, optim, "
                 "buffer | formula |  MiB sent, by  | exposed |          |                  |\n"
                 "| %*s |    tok/s | ratio    quartiles |  params   grads   optim buffers | "
                 "no buf. |  step  formula | ms/step |     loss |          weights |\n",
                 compare_width(c), "", compare_width(c), c->what);
    if (csv != NULL) compare_write_header(csv);
    for (int i = 0; i < c->n; i++) {
        compare_print_row(c, &c->entry[i]);
        if (csv != NULL) compare_write(c, csv, &c->entry[i]);
    }
    compare_print_notes(c);
}

FILE *compare_open_csv(const char *path) {
    char folder[1024];
    const char *slash = strrchr(path, '/');
    (void)snprintf(folder, sizeof folder, "%.*s", slash != NULL ? (int)(slash - path) : 0, path);
    if (slash != NULL) (void)mkdir(folder, 0777); /* opening the file reports a missing folder */
    /* The rows of the last comparison stay until this one has rows. */
    return regular_file_stream(path, "a");
}

/* comms_table.c - see comms_table.h. */
#include "comms_table.h"

#include <stdlib.h>
#include <string.h>

/* The row of an operation and size, made if there is none. Rows stay in order, since ranks meet
   them in other orders. */
static comms_row *comms_find(comms_table *t, zero_event_kind kind, uint64_t bytes) {
    int i = 0;
    while (i < t->n
           && (t->row[i].kind < kind || (t->row[i].kind == kind && t->row[i].bytes < bytes)))
        i++;
    if (i < t->n && t->row[i].kind == kind && t->row[i].bytes == bytes) return &t->row[i];
    if (t->n == COMMS_ROWS) return NULL;
    memmove(&t->row[i + 1], &t->row[i], (size_t)(t->n++ - i) * sizeof *t->row);
    memset(&t->row[i], 0, sizeof *t->row);
    t->row[i].kind = kind;
    t->row[i].bytes = bytes;
    return &t->row[i];
}

void comms_events(comms_table *t, const zero_event *events, int n) {
    for (int i = 0; i < n; i++) {
        const zero_event *e = &events[i];
        if (e->kind != ZERO_EVENT_GATHER && e->kind != ZERO_EVENT_REDUCTION
            && e->kind != ZERO_EVENT_AGREE)
            continue;
        comms_row *row = comms_find(t, e->kind, e->bytes);
        if (row == NULL) {
            t->others++;
            continue;
        }
        row->newest[row->count++ % COMMS_NEWEST] = e->end - e->begin;
        row->total += e->end - e->begin;
    }
}

static int comms_order(const void *a_, const void *b_) {
    const double a = *(const double *)a_, b = *(const double *)b_;
    return a < b ? -1 : a > b;
}

comms_figures comms_of(const comms_row *row, int nranks) {
    static const comms_figures none = {0, 0, 0, 0, 0};
    double sorted[COMMS_NEWEST];
    const size_t n = row->count < COMMS_NEWEST ? (size_t)row->count : COMMS_NEWEST;
    comms_figures f = none;
    if (n == 0) return f;
    memcpy(sorted, row->newest, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, comms_order);
    const double mean = row->total / (double)row->count;
    f.mean_ms = 1e3 * mean;
    f.p50_ms = 1e3 * sorted[(n - 1) / 2];
    f.p99_ms = 1e3 * sorted[(99 * n + 99) / 100 - 1]; /* the least that 99% do not exceed */
    f.algbw = mean > 0 ? (double)row->bytes / mean * 1e-9 : 0;
    f.busbw = f.algbw * (nranks - 1) / nranks;
    return f;
}

/* Mean milliseconds of a row by rank. */
static zero_result comms_ranks(const comms_row *row, zero_ctx *z, double ms[64]) {
    memset(ms, 0, 64 * sizeof *ms);
    ms[zero_rank(z)] = comms_of(row, zero_nranks(z)).mean_ms;
    return zero_all_sum(z, ms, zero_nranks(z));
}

static zero_result comms_stragglers(comms_table *t, zero_ctx *z, report *out) {
    const int n = zero_nranks(z);
    double ms[64], rows = t->n, least;
    if (n == 1 || n > 64) return ZERO_OK;
    ZERO_TRY(zero_all_sum(z, &rows, 1));
    if ((int)rows != t->n * n) { /* sizes that one rank lost */
        report_say(out, "stragglers: the ranks have other operations\n");
        return ZERO_OK;
    }
    report_say(out, "mean ms by rank, and what lies above the least (straggler)\n");
    for (int i = 0; i < t->n; i++) {
        ZERO_TRY(comms_ranks(&t->row[i], z, ms));
        least = ms[0];
        for (int r = 1; r < n; r++) least = ms[r] < least ? ms[r] : least;
        report_say(out, "%-10s %12llu", zero_event_name(t->row[i].kind),
                   (unsigned long long)t->row[i].bytes);
        for (int r = 0; r < n; r++) report_say(out, "  %d: %.3f (+%.3f)", r, ms[r], ms[r] - least);
        report_say(out, "\n");
    }
    return ZERO_OK;
}

zero_result comms_print(comms_table *t, zero_ctx *z, const char *what, report *out) {
    const int n = zero_nranks(z);
    report_rule(out);
    report_say(out,
               "%s of rank 0 among %d rank%s; algbw and busbw in GB/s as nccl-tests define them\n",
               what, n, n > 1 ? "s" : "");
    report_say(out, "%-10s %12s %8s %10s %10s %10s %8s %8s\n", "operation", "bytes", "count",
               "mean ms", "p50 ms", "p99 ms", "algbw", "busbw");
    for (int i = 0; i < t->n; i++) {
        const comms_figures f = comms_of(&t->row[i], n);
        report_say(out, "%-10s %12llu %8llu %10.3f %10.3f %10.3f %8.2f %8.2f\n",
                   zero_event_name(t->row[i].kind), (unsigned long long)t->row[i].bytes,
                   (unsigned long long)t->row[i].count, f.mean_ms, f.p50_ms, f.p99_ms, f.algbw,
                   f.busbw);
    }
    if (t->others) report_say(out, "and %llu of other sizes\n", (unsigned long long)t->others);
    ZERO_TRY(comms_stragglers(t, z, out));
    report_rule(out);
    return ZERO_OK;
}

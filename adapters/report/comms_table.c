/* comms_table.c - see comms_table.h. */
#include "comms_table.h"

#include <stdlib.h>
#include <string.h>

/* Returns a negative number if the row comes before the event's row, and 0 if it is that row. */
static int comms_compare_row(const comms_row *row, const zero_event *e) {
    if (row->kind != e->kind) return row->kind < e->kind ? -1 : 1;
    if (row->bytes != e->bytes) return row->bytes < e->bytes ? -1 : 1;
    return row->ranks - e->ranks;
}

/* Returns the event's row, and adds it if it is new. Returns NULL if the table is full. Rows stay
   sorted, because ranks see operations in different orders. */
static comms_row *comms_find(comms_table *t, const zero_event *e) {
    int i = 0;
    while (i < t->n && comms_compare_row(&t->row[i], e) < 0) i++;
    if (i < t->n && comms_compare_row(&t->row[i], e) == 0) return &t->row[i];
    if (t->n == COMMS_ROWS) return NULL;
    memmove(&t->row[i + 1], &t->row[i], (size_t)(t->n++ - i) * sizeof *t->row);
    memset(&t->row[i], 0, sizeof *t->row);
    t->row[i].kind = e->kind;
    t->row[i].bytes = e->bytes;
    t->row[i].ranks = e->ranks;
    return &t->row[i];
}

void comms_events(comms_table *t, const zero_event *events, int n) {
    for (int i = 0; i < n; i++) {
        const zero_event *e = &events[i];
        if (e->ranks == 0) continue;
        comms_row *row = comms_find(t, e);
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

/* Returns busbw / algbw. */
static double comms_factor(const comms_row *row) {
    const double share = (double)(row->ranks - 1) / row->ranks;
    if (row->kind == ZERO_EVENT_BROADCAST || row->kind == ZERO_EVENT_MESSAGES) return 1;
    return row->kind == ZERO_EVENT_ALL_REDUCE ? 2 * share : share;
}

comms_figures comms_compute_figures(const comms_row *row) {
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
    f.busbw = f.algbw * comms_factor(row);
    return f;
}

static zero_result comms_sum(void *z, double *values, int n) {
    return zero_all_sum((zero_ctx *)z, values, n);
}
comms_ranks comms_ranks_of(zero_ctx *z) {
    const comms_ranks ranks = {zero_rank(z), zero_nranks(z), comms_sum, z};
    return ranks;
}

/* Copies the values to memory of the device, because its group accepts no other. */
static zero_result comms_sum_of_group(void *g, double *values, int n) {
    const size_t bytes = (size_t)n * sizeof *values;
    double *own = (double *)zero_host_alloc(bytes);
    if (own == NULL) return ZERO_ERR_MEMORY;
    memcpy(own, values, bytes);
    zero_result r = zero_group_all_reduce((zero_group *)g, own, (size_t)n, ZERO_F64, ZERO_SUM);
    if (r == ZERO_OK) r = zero_group_barrier((zero_group *)g);
    memcpy(values, own, bytes);
    zero_host_free(own);
    return r;
}
comms_ranks comms_ranks_of_group(zero_group *g) {
    const comms_ranks ranks = {zero_group_rank(g), zero_group_size(g), comms_sum_of_group, g};
    return ranks;
}

/* Sets *same to 1 if all ranks have the same rows. Otherwise some rank's hash is not the mean. */
static zero_result comms_same(const comms_table *t, const comms_ranks *all, int *same) {
    uint32_t hash = 2166136261u;
    for (int i = 0; i < t->n; i++)
        hash = (((hash ^ t->row[i].kind) * 16777619u ^ (uint32_t)t->row[i].bytes) * 16777619u
                ^ (uint32_t)t->row[i].ranks)
               * 16777619u;
    double sum = hash, differs;
    ZERO_TRY(all->sum(all->of, &sum, 1));
    differs = sum != (double)hash * all->n;
    ZERO_TRY(all->sum(all->of, &differs, 1));
    *same = differs == 0;
    return ZERO_OK;
}

/* Writes each rank's mean milliseconds of a row to ms[rank]. */
static zero_result comms_by_rank(const comms_row *row, const comms_ranks *all, double ms[64]) {
    memset(ms, 0, 64 * sizeof *ms);
    ms[all->rank] = comms_compute_figures(row).mean_ms;
    return all->sum(all->of, ms, all->n);
}

static zero_result comms_stragglers(comms_table *t, const comms_ranks *all, report *out) {
    const int n = all->n;
    double ms[64], least;
    int same = 0;
    if (n == 1 || n > 64) return ZERO_OK;
    ZERO_TRY(comms_same(t, all, &same));
    if (!same) { /* one rank's table was full, or the ranks are stages of a pipeline */
        report_print(out, "stragglers: the ranks have other operations\n");
        return ZERO_OK;
    }
    report_print(out, "mean ms by rank, and what lies above the least (straggler)\n");
    for (int i = 0; i < t->n; i++) {
        ZERO_TRY(comms_by_rank(&t->row[i], all, ms));
        least = ms[0];
        for (int r = 1; r < n; r++) least = ms[r] < least ? ms[r] : least;
        report_print(out, "%-14s %12llu", zero_event_name(t->row[i].kind),
                     (unsigned long long)t->row[i].bytes);
        for (int r = 0; r < n; r++)
            report_print(out, "  %d: %.3f (+%.3f)", r, ms[r], ms[r] - least);
        report_print(out, "\n");
    }
    return ZERO_OK;
}

zero_result comms_print(comms_table *t, const comms_ranks *ranks, const char *what, report *out) {
    const int n = ranks->n;
    report_rule(out);
    report_print(
        out, "%s of rank 0 among %d rank%s; algbw and busbw in GB/s as nccl-tests define them\n",
        what, n, n > 1 ? "s" : "");
    report_print(out, "%-14s %12s %8s %10s %10s %10s %8s %8s %6s\n", "operation", "bytes", "count",
                 "mean ms", "p50 ms", "p99 ms", "algbw", "busbw", "ranks");
    for (int i = 0; i < t->n; i++) {
        const comms_figures f = comms_compute_figures(&t->row[i]);
        report_print(out, "%-14s %12llu %8llu %10.3f %10.3f %10.3f %8.2f %8.2f %6d\n",
                     zero_event_name(t->row[i].kind), (unsigned long long)t->row[i].bytes,
                     (unsigned long long)t->row[i].count, f.mean_ms, f.p50_ms, f.p99_ms, f.algbw,
                     f.busbw, t->row[i].ranks);
    }
    if (t->others) report_print(out, "and %llu of other sizes\n", (unsigned long long)t->others);
    ZERO_TRY(comms_stragglers(t, ranks, out));
    report_rule(out);
    return ZERO_OK;
}

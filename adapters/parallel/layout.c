/* layout.c - see layout.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "layout.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYOUT_SUMS = 8 };

__attribute__((format(printf, 3, 4))) static int layout_fail(char *sentence, size_t bytes,
                                                             const char *format, ...) {
    va_list values;
    va_start(values, format);
    (void)vsnprintf(sentence, bytes, format, values);
    va_end(values);
    return 1;
}

/* The divisor of n that is nearest to k; of two the lower one. */
static int layout_nearest(int n, int k) {
    for (int off = 0; off < k; off++) {
        if (n % (k - off) == 0) return k - off;
        if (k + off <= n && n % (k + off) == 0) return k + off;
    }
    return 1;
}

int layout_divide(layout *l, int ranks, int rank, int tp, char *sentence, size_t bytes) {
    memset(l, 0, sizeof *l);
    if (ranks % tp)
        return layout_fail(sentence, bytes,
                           "-tp %d: %d rank%s cannot be divided into groups of so many; the "
                           "nearest that can is -tp %d",
                           tp, ranks, ranks > 1 ? "s" : "", layout_nearest(ranks, tp));
    l->ranks = ranks;
    l->rank = rank;
    l->pp = 1;
    l->tp = tp;
    l->dp = ranks / tp;
    l->tp_rank = rank % tp;
    l->dp_rank = rank / tp % l->dp;
    l->pp_rank = rank / tp / l->dp;
    return 0;
}

/* Reads one word of `length` characters. */
static int layout_read(const char *word, int length, int ranks, int *tp, char *sentence,
                       size_t bytes) {
    int sizes[2] = {0, 0}, at = 0; /* tp, dp */
    while (at < length) {
        int n = 0, end = 0;
        const int kind = strncmp(word + at, "tp", 2) == 0   ? 0
                         : strncmp(word + at, "dp", 2) == 0 ? 1
                                                            : -1;
        if (kind < 0 || sizes[kind] || sscanf(word + at + 2, "%5d%n", &n, &end) != 1 || n < 1)
            return layout_fail(sentence, bytes,
                               "-layouts: '%.*s' is no layout: expected words like dp4 or tp2dp2",
                               length, word);
        sizes[kind] = n;
        at += 2 + end;
    }
    for (int k = 0; k < 2; k++) sizes[k] += !sizes[k];
    if (sizes[0] * sizes[1] != ranks)
        return layout_fail(sentence, bytes,
                           "-layouts: %.*s is a layout of %d ranks, and there are %d", length, word,
                           sizes[0] * sizes[1], ranks);
    *tp = sizes[0];
    return 0;
}

int layout_word(const char *list, int i, int ranks, int *tp, char *sentence, size_t bytes) {
    static const char *const blanks = " ,";
    list += strspn(list, blanks);
    for (; *list && i > 0; i--) {
        list += strcspn(list, blanks);
        list += strspn(list, blanks);
    }
    if (!*list) return -1;
    return layout_read(list, (int)strcspn(list, blanks), ranks, tp, sentence, bytes);
}

int layout_words(const char *list) {
    int n = 0;
    for (list += strspn(list, " ,"); *list; n++) {
        list += strcspn(list, " ,");
        list += strspn(list, " ,");
    }
    return n;
}

int layout_most_data(const char *list, int ranks) {
    int most = 1, tp;
    char sentence[8];
    for (int i = 0; layout_word(list, i, ranks, &tp, sentence, sizeof sentence) == 0; i++)
        if (ranks / tp > most) most = ranks / tp;
    return most;
}

void layout_name(const layout *l, char name[LAYOUT_NAME]) {
    int used = 0;
    name[0] = 0;
    if (l->tp > 1) used = snprintf(name, LAYOUT_NAME, "tp%d", l->tp);
    if (l->dp > 1 || l->tp == 1)
        (void)snprintf(name + used, LAYOUT_NAME - (size_t)used, "dp%d", l->dp);
}

zero_result layout_open(layout *l, const zero_comm *comm, void *stream, double timeout_s) {
    if (l->tp == 1) return ZERO_OK;
    const int of_data = l->pp_rank * l->tp + l->tp_rank, of_parts = l->pp_rank * l->dp + l->dp_rank;
    l->sums = (double *)zero_host_alloc(LAYOUT_SUMS * sizeof *l->sums);
    ZERO_TRY(zero_group_open(&l->world, comm, stream, timeout_s));
    ZERO_TRY(zero_group_split(l->world, of_data, l->dp_rank, &l->data));
    ZERO_TRY(zero_group_split(l->world, of_parts, l->tp_rank, &l->part.tp));
    zero_group_name(l->data, "dp");
    zero_group_name(l->part.tp, "tp");
    return l->sums ? ZERO_OK : ZERO_ERR_MEMORY;
}

const char *layout_error(const layout *l) {
    const zero_group *const all[3] = {l->part.tp, l->data, l->world};
    for (int i = 0; i < 3; i++)
        if (all[i] && zero_group_error(all[i])[0]) return zero_group_error(all[i]);
    return "";
}

void layout_close(layout *l) {
    zero_group_close(l->part.tp);
    zero_group_close(l->data);
    zero_group_close(l->world);
    zero_host_free(l->sums);
    l->world = l->data = l->part.tp = NULL;
    l->sums = NULL;
}

zero_comm layout_comm(const layout *l, const zero_comm *comm) {
    if (!l->world) return *comm;
    zero_comm own = zero_group_comm(l->data);
    if (comm->node_size % l->tp == 0) own.node_size = comm->node_size / l->tp;
    return own;
}

zero_result layout_sum(layout *l, zero_ctx *z, double *values, int n) {
    if (!n) return l->world ? zero_group_barrier(l->world) : zero_barrier(z);
    if (!l->world) return zero_all_sum(z, values, n);
    memcpy(l->sums, values, (size_t)n * sizeof *values);
    ZERO_TRY(zero_group_all_reduce(l->world, l->sums, (size_t)n, ZERO_F64, ZERO_SUM));
    ZERO_TRY(zero_group_barrier(l->world)); /* a device is done, too */
    memcpy(values, l->sums, (size_t)n * sizeof *values);
    return ZERO_OK;
}

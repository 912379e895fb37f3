/* groups.h - what a zero_group must do, against plain loops: every collective x type x odd sizes,
   of ranks that are threads, processes, MPI's or on a GPU. Sums are added in rank order in f32
   (f64), and rounded once. A difference is a sentence.

   GROUPS_EXACT 0: sums of a library of its own order, of numbers that are exact in any. The memory
   that collectives work on is had by GROUPS_NEW, written by GROUPS_PUT and read by GROUPS_GET. */
#ifndef TEST_GROUPS_H
#define TEST_GROUPS_H

#include "harness.h"

#ifndef GROUPS_NEW
#define GROUPS_NEW(bytes)           malloc(bytes)
#define GROUPS_FREE(p)              free(p)
#define GROUPS_PUT(to, from, bytes) memcpy(to, from, bytes)
#define GROUPS_GET(to, from, bytes) memcpy(to, from, bytes)
#define GROUPS_EXACT                1
#endif

static const size_t groups_sizes[] = {1, 3, 31, 257, 1000, 1025, 33333, 140001};
enum { GROUPS_SIZES = sizeof groups_sizes / sizeof *groups_sizes, GROUPS_TEXT = 400 };

typedef struct groups_case {
    zero_group *g;
    int rank, size;
    uint64_t hash; /* of all that was received */
    char why[GROUPS_TEXT];
} groups_case;

__attribute__((format(printf, 2, 3))) static int groups_fail(groups_case *c, const char *format,
                                                             ...) {
    va_list list;
    if (c->why[0]) return 0;
    va_start(list, format);
    vsnprintf(c->why, sizeof c->why, format, list);
    va_end(list);
    return 0;
}
#define GROUPS_TRY(c, call)                                                                        \
    do {                                                                                           \
        if (call) return groups_fail(c, "%s: %s", #call, zero_group_error((c)->g));                \
    } while (0)

static size_t groups_bytes(zero_type type) { return type == ZERO_F64 ? 8 : zero_type_bytes(type); }

/* What rank r gives as element i. */
static double groups_value(int r, size_t i, size_t salt) {
    const uint64_t h = test_mix(test_mix((uint64_t)i * 64 + (uint64_t)r) + salt);
    return GROUPS_EXACT ? (double)(h >> 40) / (double)(1 << 24) - 0.5 : (double)((int)(h % 17) - 8);
}
static void groups_store(void *to, zero_type type, size_t i, double x) {
    const float f = (float)x;
    if (type == ZERO_F64)
        ((double *)to)[i] = x;
    else
        zero_convert((char *)to + i * zero_type_bytes(type), type, &f, ZERO_F32, 1);
}
static double groups_load(const void *from, zero_type type, size_t i) {
    float f;
    if (type == ZERO_F64) return ((const double *)from)[i];
    zero_convert(&f, ZERO_F32, (const char *)from + i * zero_type_bytes(type), type, 1);
    return (double)f;
}

/* Element i of the sum or the largest, as it is to be stored. */
static void groups_expect(void *to, size_t at, zero_type type, zero_reduction how, int ranks,
                          size_t i, size_t salt) {
    char stored[8];
    double wide = 0;
    float narrow = 0;
    for (int r = 0; r < ranks; r++) {
        groups_store(stored, type, 0, groups_value(r, i, salt));
        const double x = groups_load(stored, type, 0);
        if (r == 0 || (how == ZERO_MAX && x > wide))
            wide = x, narrow = (float)x;
        else if (how == ZERO_SUM)
            wide += x, narrow += (float)x;
    }
    groups_store(to, type, at, type == ZERO_F64 ? wide : (double)narrow);
}

/* What lies at `seen` is what was expected, and goes to the hash. */
static int groups_compare(groups_case *c, const void *device, const void *expected, size_t bytes,
                          const char *what, size_t n, int type) {
    unsigned char *seen = (unsigned char *)malloc(bytes + 1);
    const unsigned char *right = (const unsigned char *)expected;
    size_t i = 0;
    GROUPS_GET(seen, device, bytes);
    while (i < bytes && seen[i] == right[i]) i++;
    for (size_t k = 0; k < bytes; k += 4) {
        uint32_t word = 0;
        memcpy(&word, seen + k, bytes - k < 4 ? bytes - k : 4);
        c->hash = test_mix(c->hash ^ word);
    }
    free(seen);
    return i == bytes
           || groups_fail(c, "%s of %zu (type %d), %d ranks: byte %zu of %zu differs", what, n,
                          type, c->size, i, bytes);
}

static int groups_reduce(groups_case *c, size_t n, zero_type type, zero_reduction how) {
    const size_t element = groups_bytes(type), ranks = (size_t)c->size, me = (size_t)c->rank;
    const size_t all = ranks * n, salt = n * 8 + (size_t)type;
    char *host = (char *)malloc(all * element), *right = (char *)malloc(all * element);
    char *data = (char *)GROUPS_NEW(all * element), *out = (char *)GROUPS_NEW(n * element);
    int ok = 1;
    for (size_t i = 0; i < all; i++) {
        groups_store(host, type, i, groups_value(c->rank, i, salt));
        groups_expect(right, i, type, how, c->size, i, salt);
    }
    GROUPS_PUT(data, host, all * element);
    GROUPS_TRY(c, zero_group_reduce_scatter(c->g, data, out, n, type, how));
    ok = ok
         && groups_compare(c, out, right + me * n * element, n * element, "reduce_scatter", n,
                           (int)type);
    char *slice = data + me * n * element; /* in place */
    GROUPS_TRY(c, zero_group_reduce_scatter(c->g, data, slice, n, type, how));
    ok = ok
         && groups_compare(c, slice, right + me * n * element, n * element,
                           "reduce_scatter in place", n, (int)type);
    GROUPS_PUT(data, host, all * element);
    GROUPS_TRY(c, zero_group_all_reduce(c->g, data, n, type, how));
    ok = ok && groups_compare(c, data, right, n * element, "all_reduce", n, (int)type);
    free(host);
    free(right);
    GROUPS_FREE(data);
    GROUPS_FREE(out);
    return ok;
}

static unsigned char groups_byte(int from, int to, size_t i) {
    return (unsigned char)test_mix(((uint64_t)from * 64 + (uint64_t)to) * 1000003u + i);
}

/* all_gather, all_to_all, broadcast. */
static int groups_move(groups_case *c, size_t n) {
    const size_t ranks = (size_t)c->size;
    char *host = (char *)malloc(2 * ranks * n + 64), *right = (char *)malloc(2 * ranks * n + 64);
    char *out = (char *)GROUPS_NEW(2 * ranks * n + 64),
         *in = (char *)GROUPS_NEW(2 * ranks * n + 64);
    int ok = 1;
    for (size_t i = 0; i < n; i++) host[i] = (char)groups_byte(c->rank, 0, i);
    for (size_t i = 0; i < ranks * n; i++) right[i] = (char)groups_byte((int)(i / n), 0, i % n);
    GROUPS_PUT(out, host, n);
    GROUPS_TRY(c, zero_group_all_gather(c->g, out, in, n));
    ok = ok && groups_compare(c, in, right, ranks * n, "all_gather", n, -1);
    GROUPS_PUT(in + (size_t)c->rank * n, host, n); /* in place */
    GROUPS_TRY(c, zero_group_all_gather(c->g, in + (size_t)c->rank * n, in, n));
    ok = ok && groups_compare(c, in, right, ranks * n, "all_gather in place", n, -1);
    for (size_t i = 0; i < ranks * n; i++) {
        host[i] = (char)groups_byte(c->rank, (int)(i / n), i % n);
        right[i] = (char)groups_byte((int)(i / n), c->rank, i % n);
    }
    GROUPS_PUT(out, host, ranks * n);
    GROUPS_TRY(c, zero_group_all_to_all(c->g, out, in, n));
    ok = ok && groups_compare(c, in, right, ranks * n, "all_to_all", n, -1);
    for (int root = 0; root < c->size; root++) {
        for (size_t i = 0; i < n; i++) {
            right[i] = (char)groups_byte(root, root, i);
            host[i] = c->rank == root ? right[i] : 0;
        }
        GROUPS_PUT(in, host, n);
        GROUPS_TRY(c, zero_group_broadcast(c->g, in, n, root));
        ok = ok && groups_compare(c, in, right, n, "broadcast", n, -1);
    }
    free(host);
    free(right);
    GROUPS_FREE(out);
    GROUPS_FREE(in);
    return ok;
}

/* Each rank sends twice to both neighbours and receives as often, at once; then one way round. */
static int groups_messages(groups_case *c, size_t n) {
    const int next = (c->rank + 1) % c->size, before = (c->rank + c->size - 1) % c->size;
    char *host = (char *)malloc(8 * n), *right = (char *)malloc(8 * n);
    char *data = (char *)GROUPS_NEW(8 * n);
    zero_message list[9];
    int ok = 1;
    if (c->size == 1) {
        zero_message none = {0, 1, NULL, 0};
        ok = zero_group_send_receive(c->g, &none, 0) == ZERO_OK;
        free(host);
        free(right);
        GROUPS_FREE(data);
        return ok || groups_fail(c, "no message fails");
    }
    for (int k = 0; k < 4; k++) { /* 0, 1: to and from next; 2, 3: before. Two ranks: four of one */
        const int peer = k < 2 ? next : before, twin = c->size == 2 ? k : k ^ 2;
        for (size_t i = 0; i < n; i++) {
            host[(size_t)k * n + i] = (char)groups_byte(c->rank, peer + 8 * k, i);
            right[(size_t)(4 + k) * n + i] = (char)groups_byte(peer, c->rank + 8 * twin, i);
        }
        const zero_message sends = {peer, 1, data + (size_t)k * n, n};
        const zero_message gets = {peer, 0, data + (size_t)(4 + k) * n, n};
        list[2 * k] = c->rank % 2 ? gets : sends;
        list[2 * k + 1] = c->rank % 2 ? sends : gets;
    }
    const zero_message empty = {next, 1, NULL, 0};
    list[8] = empty;
    GROUPS_PUT(data, host, 4 * n);
    GROUPS_TRY(c, zero_group_send_receive(c->g, list, 9));
    ok = ok && groups_compare(c, data + 4 * n, right + 4 * n, 4 * n, "messages", n, -1);
    if (c->rank == 0) { /* a chain */
        GROUPS_TRY(c, zero_group_send(c->g, data, n, next));
        GROUPS_TRY(c, zero_group_receive(c->g, data + n, n, before));
    } else {
        GROUPS_TRY(c, zero_group_receive(c->g, data + n, n, before));
        GROUPS_TRY(c, zero_group_send(c->g, data + n, n, next));
    }
    for (size_t i = 0; i < n; i++) right[i] = (char)groups_byte(0, 1, i);
    ok = ok && groups_compare(c, data + n, right, n, "a chain", n, -1);
    free(host);
    free(right);
    GROUPS_FREE(data);
    return ok;
}

/* All of it; `sizes`: how many of them, from the smallest. */
__attribute__((unused)) static int groups_all(groups_case *c, zero_group *g, int sizes) {
    zero_group_stats before, after;
    memset(c, 0, sizeof *c);
    c->g = g;
    c->rank = zero_group_rank(g);
    c->size = zero_group_size(g);
    for (int s = 0; s < sizes; s++) {
        const size_t n = groups_sizes[s];
        for (int type = 0; type <= (int)ZERO_F64; type++)
            for (int how = 0; how < 2; how++)
                if (!groups_reduce(c, n, (zero_type)type, (zero_reduction)how)) return 0;
        if (!groups_move(c, n) || !groups_messages(c, n)) return 0;
    }
    GROUPS_TRY(c, zero_group_barrier(g));
    /* what is counted is the formula */
    const size_t b = 60 * 4 * (size_t)c->size, ranks = (size_t)c->size;
    void *data = GROUPS_NEW(2 * b * ranks);
    char *host = (char *)calloc(1, 2 * b * ranks);
    GROUPS_PUT(data, host, 2 * b * ranks);
    zero_group_query_stats(g, &before);
    GROUPS_TRY(c, zero_group_all_reduce(g, data, b / 4, ZERO_F32, ZERO_SUM));
    char *mine = (char *)data + (size_t)c->rank * b;
    GROUPS_TRY(c, zero_group_reduce_scatter(g, data, mine, b / 4, ZERO_F32, ZERO_SUM));
    GROUPS_TRY(c, zero_group_all_gather(g, data, (char *)data + b * ranks, b));
    zero_group_query_stats(g, &after);
    free(host);
    GROUPS_FREE(data);
    if (after.sent_bytes - before.sent_bytes != 2 * b * (ranks - 1) / ranks + 2 * (ranks - 1) * b)
        return groups_fail(c, "%d ranks sent %llu bytes", c->size,
                           (unsigned long long)(after.sent_bytes - before.sent_bytes));
    return 1;
}
#endif

/* collectives.h - collectives of a zero_group, on your own buffers

   All collectives are made of one function of the transport, messages that progress together
   (swap), so all transports give the same bits. If the transport has its own collectives (whole),
   they are used instead.

   A SUM is an all-to-all of slices, which each rank adds in rank order. all_reduce then gathers the
   slices. Slices arrive in pieces in `scratch`, next to this rank's own piece. A small sum sends
   all elements to all ranks at once, and all ranks add them in rank order.
     scratch   [ rank 0's piece | rank 1's | ... ]    each of g->piece bytes */
#pragma once

#include "group.h"

#define ZP_GROUP_SMALL ((size_t)4096) /* bytes of a sum that all ranks add */

/* Reduces the ranks' pieces in rank order, in f32 (f64 for f64), ZP_MERGED elements at a time. */
typedef struct zp_collectives_merge_args {
    const char *pieces; /* of the ranks, `stride` bytes apart */
    void *out;
    size_t stride, n;
    int nranks;
    zero_type type;
    zero_reduction how;
} zp_collectives_merge_args;
#define ZP_MERGED (ZP_WIDE == 16 ? (size_t)256 : (size_t)1)

ZP_FN void zp_collectives_merge_wide(const zp_collectives_merge_args *a, size_t at, size_t n) {
    double sum[ZP_MERGED];
    for (int r = 0; r < a->nranks; r++) {
        const double *x = (const double *)(const void *)(a->pieces + (size_t)r * a->stride) + at;
        for (size_t i = 0; i < n; i++)
            if (r == 0 || (a->how == ZERO_MAX && x[i] > sum[i]))
                sum[i] = x[i];
            else if (a->how == ZERO_SUM)
                sum[i] += x[i];
    }
    for (size_t i = 0; i < n; i++) ((double *)a->out)[at + i] = sum[i];
}

ZP_FN void zp_collectives_merge_at(const zp_collectives_merge_args *a, size_t block) {
    const size_t at = block * ZP_MERGED, left = a->n - at, n = left < ZP_MERGED ? left : ZP_MERGED;
    float sum[ZP_MERGED], copy[ZP_MERGED];
    if (a->type == ZERO_F64) {
        zp_collectives_merge_wide(a, at, n);
        return;
    }
    zp_type_widen(sum, a->pieces + at * zp_type_bytes(a->type), a->type, n);
    for (int r = 1; r < a->nranks; r++) {
        const float *x = zp_type_view(a->pieces + (size_t)r * a->stride, a->type, at, n, copy);
        if (a->how == ZERO_SUM)
            for (size_t i = 0; i < n; i++) sum[i] += x[i];
        else
            for (size_t i = 0; i < n; i++) sum[i] = x[i] > sum[i] ? x[i] : sum[i];
    }
    zp_type_narrow((char *)a->out + at * zp_type_bytes(a->type), a->type, sum, n);
}
ZP_KERNEL(zp_collectives_merge, zp_collectives_merge_args, 256)

/* ---- sums ---- */

/* Returns the begin of rank r's slice of n elements; for r = nranks the end, n. */
static size_t zp_collectives_slice_at(const zero_group *g, size_t n, int r) {
    const size_t ranks = (size_t)g->group.nranks, each = (n + ranks - 1) / ranks;
    return zp_min(n, each * (size_t)r);
}

/* Returns the elements that this rank sends for a sum: others' slices, then its own to each. */
static size_t zp_collectives_sum_sent(const zero_group *g, size_t n) {
    const int me = g->group.rank;
    const size_t mine = zp_collectives_slice_at(g, n, me + 1) - zp_collectives_slice_at(g, n, me);
    return n - mine + (size_t)(g->group.nranks - 1) * mine;
}

/* Returns an all-reduce of n elements. The ranks compare its call, whose `unit` numbers the type
   and the reduction. */
static zp_collective zp_collectives_make_sum(zero_group *g, const void *from, void *to, size_t n,
                                             zero_type type, zero_reduction how) {
    const zp_call call = {ZP_GROUP_ALL_REDUCE, 2 * (int)type + (int)how, n};
    const zp_collective c = {&g->group, call, from, to, n, type, how};
    return c;
}

/* Sends every rank its part of `out`, collects those for this rank, whose own is `own`, and reduces
   them to `to`. */
static zero_result zp_collectives_reduce_parts(zero_group *g, const zp_collective *c,
                                               const zp_parts *out, const zero_message *own,
                                               char *to) {
    const size_t n = own->bytes / zero_type_bytes(c->type);
    const zp_parts in = {g->scratch, g->piece, own->bytes, SIZE_MAX};
    const zp_collectives_merge_args merge = {g->scratch,      to,      g->piece, n,
                                             g->group.nranks, c->type, c->how};
    ZP_TRY(zp_device_copy(&g->stream, g->scratch + (size_t)g->group.rank * g->piece, own->data,
                          own->bytes));
    ZP_TRY(zp_group_exchange_parts(g, &c->call, out, &in));
    return zp_collectives_merge(&g->stream, &merge, (n + ZP_MERGED - 1) / ZP_MERGED);
}

/* Reduces this rank's slice to `to`, piece by piece. Rank r's slice of c->from is elements
   [r * each, (r + 1) * each), at most n. */
static zero_result zp_collectives_reduce_slice(zero_group *g, const zp_collective *c, size_t each,
                                               size_t n, char *to) {
    const size_t element = zero_type_bytes(c->type), most = g->piece / element;
    for (size_t from = 0; from < zp_min(each, n); from += most) {
        const zp_parts out = {(const char *)c->from + from * element, each * element,
                              zp_min(most, each - from) * element, (n - from) * element};
        const zero_message own = zp_group_part_message(&out, g->group.rank, 0);
        ZP_TRY(zp_collectives_reduce_parts(g, c, &out, &own, to + from * element));
    }
    return ZERO_OK;
}

static zero_result zp_collectives_all_reduce(zero_group *g, const zp_collective *c) {
    const size_t element = zero_type_bytes(c->type), bytes = c->n * element;
    const size_t each = zp_collectives_slice_at(g, c->n, 1);
    const zp_parts slices = {c->to, each * element, each * element, bytes},
                   all = {c->to, 0, bytes, bytes};
    const zero_message own = {g->group.rank, 0, c->to, bytes};
    char *to = (char *)c->to;
    if (bytes <= ZP_GROUP_SMALL) return zp_collectives_reduce_parts(g, c, &all, &own, to);
    to += (size_t)g->group.rank * each * element;
    ZP_TRY(zp_collectives_reduce_slice(g, c, each, c->n, to));
    return zp_group_gather_parts(g, &c->call, &slices);
}

/* ---- other collectives ---- */

static zero_result zp_collectives_broadcast(zero_group *g, const zp_collective *c) {
    const int root = c->call.unit, sends = g->group.rank == root;
    int n = 0;
    for (int r = 0; r < g->group.nranks && c->n; r++) {
        const zero_message m = {r, sends, c->to, c->n};
        if (sends ? r != root : r == root) g->list[n++] = m;
    }
    return zp_group_exchange_messages(g, &c->call, g->list, n);
}

/* Waits until all ranks are in this call. Each rank sends a byte to the others, so ranks in another
   collective get an error, as they do in every collective. */
static zero_result zp_collectives_barrier(zero_group *g, int kind) {
    const zp_call call = {kind, -1, 0};
    const zp_parts bytes = {g->scratch, g->piece, 1, SIZE_MAX};
    if (g->group.nranks == 1 || zp_message_functions(g->group.transport)->whole) return ZERO_OK;
    g->number++;
    return zp_group_gather_parts(g, &call, &bytes);
}

/* Runs a collective: with the library's function, if the transport has one, or with messages. */
static zero_result zp_collectives_run(zero_group *g, const zp_collective *c) {
    const zp_messenger *messenger = zp_message_functions(g->group.transport);
    const zp_parts from = {c->from, c->n, c->n, SIZE_MAX}, to = {c->to, c->n, c->n, SIZE_MAX};
    const size_t own = (size_t)g->group.rank * c->n; /* of a gather or an all-to-all: bytes */
    const int kind = c->call.kind;
    g->number++; /* all ranks count a collective; only two ranks count a message */
    if (kind == ZP_GROUP_ALL_GATHER && (char *)c->to + own != c->from)
        ZP_TRY(zp_device_copy(&g->stream, (char *)c->to + own, c->from, c->n));
    if (messenger->whole && kind != ZP_GROUP_ALL_TO_ALL) return messenger->whole(&g->stream, c);
    switch (kind) {
    case ZP_GROUP_ALL_REDUCE: return zp_collectives_all_reduce(g, c);
    case ZP_GROUP_REDUCE_SCATTER:
        return zp_collectives_reduce_slice(g, c, c->n, c->n * (size_t)g->group.nranks,
                                           (char *)c->to);
    case ZP_GROUP_ALL_GATHER: return zp_group_gather_parts(g, &c->call, &to);
    case ZP_GROUP_BROADCAST: return zp_collectives_broadcast(g, c);
    default: /* an all-to-all: part r of `from` goes to rank r */
        ZP_TRY(zp_device_copy(&g->stream, (char *)c->to + own, (const char *)c->from + own, c->n));
        return zp_group_exchange_parts(g, &c->call, &from, &to);
    }
}

/* ---- opening, splitting and closing ---- */

/* Joins the ranks of `comm`. COLLECTIVE. */
static zero_result zp_collectives_join(zero_group *g, const zp_transport *row,
                                       const zero_comm *comm, double timeout_s) {
    zp_comm *p = &g->group;
    ZP_TRY(zp_comm_open(p, row, comm));
    ZP_TRY(zp_device_take_stream(&g->stream, &g->device, g->host_stream, 1));
    const size_t ranks = (size_t)p->nranks;
    g->piece = zp_max(32768, zp_min(262144, ((size_t)1 << 20) / ranks / 4096 * 4096));
    g->scratch = (char *)zp_device_alloc(&g->device, ranks > 1 ? ranks * g->piece : 64);
    g->list = (zero_message *)malloc(2 * ranks * sizeof *g->list);
    if (!g->scratch || !g->list)
        return zp_comm_fail(p, ZERO_ERR_MEMORY, "%zu bytes of buffers for sums", ranks * g->piece);
    if (!zp_type_is_finite(timeout_s) || timeout_s < 0) /* checked late, so that peers get it */
        return zp_comm_fail(p, ZERO_ERR_ARGUMENT,
                            "timeout_s is %g, expected a finite number above 0, or 0 for %g",
                            timeout_s, ZP_TIMEOUT_S);
    return zp_comm_barrier(p); /* a failed rank reports here: later waits may have no time limit */
}

static zero_result zp_collectives_make(zero_group **out, const char *call, const zero_comm *comm,
                                       void *stream, double timeout_s, zero_group *of) {
    const zp_transport *row = zp_transport_find(comm->kind);
    const char *why = zp_transport_explain_missing(comm->kind);
    zero_group *g = (zero_group *)calloc(1, sizeof *g);
    *out = g;
    if (!g && row && row->refuse) row->refuse(comm, "no memory for a group");
    if (!g) return ZERO_ERR_MEMORY;
    zp_comm *p = &g->group;
    p->nranks = 1;
    zp_comm_prepare(p, &g->device, &g->failure, timeout_s);
    p->swaps = 1;
    g->comm = *comm;
    g->of = of;
    g->maker = getpid();
    g->users = 1;
    if (of) (void)__atomic_add_fetch(&of->users, 1, __ATOMIC_ACQ_REL);
    g->host_stream = stream;
    if (!row || !zp_message_functions(row)->make_part)
        return zp_group_fail(g, ZERO_ERR_UNSUPPORTED, call, why ? why : "no such kind");
    zero_result r = zp_device_open(&g->device);
    if (r && row->refuse) row->refuse(comm, g->device.text);
    if (!r) r = zp_collectives_join(g, row, comm, timeout_s);
    return zp_group_end(g, call, r);
}

static int zp_collectives_compare_colours(const void *a, const void *b) {
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}
/* Returns this rank's place in the parts that the colours make. `mail` has every rank's colour and
   key. The colours are sorted in the memory of the message list. */
static zp_cut zp_collectives_find_part(const zero_group *of, int colour) {
    const int32_t *pairs = (const int32_t *)(const void *)of->group.mail;
    const int me = of->group.rank, n = of->group.nranks;
    int32_t *colours = (int32_t *)(void *)of->list;
    zp_cut cut = {0, -1, 0, 0, NULL};
    for (int r = 0; r < n; r++) {
        colours[r] = pairs[2 * r];
        if (pairs[2 * r] != colour || colour < 0) continue;
        cut.nranks++;
        cut.rank += pairs[2 * r + 1] < pairs[2 * me + 1]
                    || (pairs[2 * r + 1] == pairs[2 * me + 1] && r < me);
    }
    qsort(colours, (size_t)n, sizeof *colours, zp_collectives_compare_colours);
    for (int r = 0; r < n; r++) {
        if (colours[r] < 0 || (r && colours[r] == colours[r - 1])) continue;
        cut.parts++;
        cut.part += colour >= 0 && colours[r] <= colour;
    }
    return cut;
}

/* zero_group_split; `call` is for error messages. */
static zero_result zp_collectives_split(zero_group *of, const char *call, int colour, int key,
                                        void *stream, zero_group **out) {
    const int32_t mine[2] = {colour, key};
    zp_split *split = (zp_split *)calloc(1, sizeof *split);
    if (!split) (void)zp_comm_fail(&of->group, ZERO_ERR_MEMORY, "no memory for a group");
    if (!split) return zp_group_end(of, call, ZERO_ERR_MEMORY);
    split->next = of->splits;
    of->splits = split;
    ZP_TRY(zp_group_end(of, call, zp_collectives_barrier(of, ZP_GROUP_SPLIT)));
    ZP_TRY(zp_group_end(of, call, zp_comm_exchange(&of->group, mine, sizeof mine)));
    zp_cut cut = zp_collectives_find_part(of, colour);
    cut.memory = &split->memory;
    if (!cut.parts) return ZERO_OK;
    zero_comm part;
    const zp_messenger *messenger = zp_message_functions(of->group.transport);
    ZP_TRY(zp_group_end(of, call, messenger->make_part(&of->group, &cut, &part)));
    if (cut.part < 0) return ZERO_OK;
    const zero_result r = zp_collectives_make(out, call, &part, stream, of->group.timeout_s, of);
    if (!*out && messenger->free_part)
        messenger->free_part(&part, 1); /* no zero_group_close will */
    return r;
}

/* Stops recording the group's calls. */
static void zp_collectives_stop_trace(zero_group *g) {
    if (!g->traced) return;
    *g->traced = g->next_traced;
    if (g->next_traced) g->next_traced->traced = g->traced;
    g->traced = NULL;
    g->next_traced = NULL;
    g->device.recorder = NULL;
}

static void zp_collectives_free(zero_group *g) {
    zp_comm *p = &g->group;
    zp_collectives_stop_trace(g);
    const zp_messenger *messenger = zp_message_functions(p->transport);
    const int broken = g->dead || zp_failure_result(&g->failure);
    if (broken) zp_comm_abort(p, g->text[0] ? g->text : "it gave up its group");
    if (g->stream.device) (void)zp_device_sync_stream(&g->stream);
    zp_comm_close(p, broken);
    if (g->of && messenger->free_part) messenger->free_part(&g->comm, broken);
    while (g->splits) {
        zp_split *next = g->splits->next;
        free(g->splits);
        g->splits = next;
    }
    zp_device_free(g->scratch);
    free(g->list);
    zp_device_close(&g->device);
    free(g);
}

/* Frees a group after its last user has left. Its parts use its memory, so they are users, too. */
static void zp_collectives_leave(zero_group *g) {
    while (g && __atomic_sub_fetch(&g->users, 1, __ATOMIC_ACQ_REL) == 0) {
        zero_group *of = g->of;
        zp_collectives_free(g);
        g = of;
    }
}

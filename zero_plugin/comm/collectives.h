/* collectives.h - collectives of a zero_group, on your own buffers

   A zero_group has its own board, communicator, failure and stream. All its collectives are made of
   one function of the transport, messages that progress together (swap), so all transports give the
   same bits. If the transport has its own collectives (whole), they are used instead.

   A SUM is an all-to-all of slices, which each rank adds in rank order. all_reduce then gathers the
   slices. Slices arrive in pieces in `scratch`, next to this rank's own piece. A small sum sends
   all elements to all ranks at once, and all ranks add them in rank order.
     scratch   [ rank 0's piece | rank 1's | ... ]    each of g->piece bytes */
#pragma once

#include "transport.h"

#define ZP_GROUP_SMALL ((size_t)4096) /* bytes of a sum that all ranks add */

/* Memory in which the parts of a split meet; a group has one for each split. */
typedef struct zp_split {
    struct zp_split *next;
    zp_memory memory;
} zp_split;

struct zero_group {
    zp_comm group;
    zp_device device;
    zp_failure failure;
    zp_watch watch;
    zp_stream stream;
    void *host_stream; /* argument of zero_group_open */
    zero_comm comm;    /* for contexts of this group */
    zero_group *of;    /* the group that was split; NULL: comm is the caller's */
    pid_t maker;       /* process that opened the group */
    int users;         /* 1 until zero_group_close, plus the open parts split off */
    zp_split *splits;
    char *scratch;
    size_t piece;
    zero_message *list; /* [2 * nranks] */
    zero_group_stats stats;
    zero_group **traced; /* the pointer to this group in its context's list; NULL: not traced */
    zero_group *next_traced;
    uint64_t number;  /* of collectives so far */
    double opened[2]; /* seconds: begin and end of opening; [1] is 0 once they are recorded */
    zero_result dead;
    const char *call;
    char text[ZP_TEXT_BYTES + 128];
};

static size_t zp_collectives_element_bytes(zero_type type) {
    return type == ZERO_F64 ? 8 : zp_type_bytes(type);
}

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

/* ---- messages of a collective ---- */

/* Adds a message to the group's list, which has *n messages; none if `bytes` is 0. */
static void zp_collectives_add_message(zero_group *g, int *n, int peer, int sends, const void *data,
                                       size_t bytes) {
    const zero_message m = {peer, sends, (void *)(uintptr_t)data, bytes};
    if (bytes) g->list[(*n)++] = m;
}
static zero_result zp_collectives_exchange_messages(zero_group *g, const zp_call *call,
                                                    const zero_message *list, int n) {
    const zp_swap x = {&g->group, *call, g->number, list, n};
    return n ? g->group.transport->swap(&g->stream, &x) : ZERO_OK;
}

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

/* Sends every rank's slice of `all` (n elements, slices as above) to all other ranks. */
static zero_result zp_collectives_gather_slices(zero_group *g, const zp_call *call, char *all,
                                                size_t n, size_t element) {
    const int me = g->group.rank, ranks = g->group.nranks;
    int messages = 0;
    for (int sends = 1; sends >= 0; sends--)
        for (int i = 1; i < ranks; i++) {
            const int peer = (me + i) % ranks, whose = sends ? me : peer;
            const size_t at = zp_collectives_slice_at(g, n, whose),
                         end = zp_collectives_slice_at(g, n, whose + 1);
            zp_collectives_add_message(g, &messages, peer, sends, all + at * element,
                                       (end - at) * element);
        }
    return zp_collectives_exchange_messages(g, call, g->list, messages);
}

/* The input of a sum: rank r's slice is elements [r * each, (r + 1) * each) of `all`, at most n. */
typedef struct zp_slice_sum {
    const char *all;
    char *out; /* where this rank's slice goes */
    size_t each, n;
    zero_type type;
    zero_reduction how;
} zp_slice_sum;

/* Returns the number of elements of rank r's slice from `from` on, at most `most`. */
static size_t zp_collectives_slice_numel(const zp_slice_sum *a, int r, size_t from, size_t most) {
    const size_t begin = (size_t)r * a->each, end = zp_min(a->n, begin + a->each);
    return begin + from < end ? zp_min(most, end - begin - from) : 0;
}

/* Adds this rank's slice, piece by piece. */
static zero_result zp_collectives_add_slice(zero_group *g, const zp_call *call,
                                            const zp_slice_sum *a) {
    const int me = g->group.rank, ranks = g->group.nranks;
    const size_t element = zp_collectives_element_bytes(a->type), most = g->piece / element;
    for (size_t from = 0; from < zp_min(a->each, a->n); from += most) {
        const size_t mine = zp_collectives_slice_numel(a, me, from, most);
        int messages = 0;
        for (int i = 1; i < ranks; i++) {
            const int peer = (me + i) % ranks;
            const char *his = a->all + ((size_t)peer * a->each + from) * element;
            zp_collectives_add_message(g, &messages, peer, 1, his,
                                       zp_collectives_slice_numel(a, peer, from, most) * element);
        }
        for (int i = 1; i < ranks; i++) {
            const int peer = (me + i) % ranks;
            zp_collectives_add_message(g, &messages, peer, 0, g->scratch + (size_t)peer * g->piece,
                                       mine * element);
        }
        ZP_TRY(zp_device_copy(&g->stream, g->scratch + (size_t)me * g->piece,
                              a->all + ((size_t)me * a->each + from) * element, mine * element));
        ZP_TRY(zp_collectives_exchange_messages(g, call, g->list, messages));
        const zp_collectives_merge_args merge = {
            g->scratch, a->out + from * element, g->piece, mine, ranks, a->type, a->how};
        ZP_TRY(zp_collectives_merge(&g->stream, &merge, (mine + ZP_MERGED - 1) / ZP_MERGED));
    }
    return ZERO_OK;
}

/* Sends all elements to all ranks, and adds those of all ranks. */
static zero_result zp_collectives_add_small(zero_group *g, const zp_call *call, void *data,
                                            size_t n, zero_type type, zero_reduction how) {
    const int me = g->group.rank, ranks = g->group.nranks;
    const size_t bytes = n * zp_collectives_element_bytes(type);
    const zp_collectives_merge_args merge = {g->scratch, data, g->piece, n, ranks, type, how};
    int messages = 0;
    for (int i = 1; i < ranks; i++)
        zp_collectives_add_message(g, &messages, (me + i) % ranks, 1, data, bytes);
    for (int i = 1; i < ranks; i++) {
        const int peer = (me + i) % ranks;
        zp_collectives_add_message(g, &messages, peer, 0, g->scratch + (size_t)peer * g->piece,
                                   bytes);
    }
    ZP_TRY(zp_device_copy(&g->stream, g->scratch + (size_t)me * g->piece, data, bytes));
    ZP_TRY(zp_collectives_exchange_messages(g, call, g->list, messages));
    return zp_collectives_merge(&g->stream, &merge, (n + ZP_MERGED - 1) / ZP_MERGED);
}

static zero_result zp_collectives_all_reduce(zero_group *g, void *data, size_t n, zero_type type,
                                             zero_reduction how) {
    const zp_call call = {ZP_GROUP_ALL_REDUCE, 2 * (int)type + (int)how, n};
    const zp_whole whole = {&g->group, call, data, data, n, type, how};
    const size_t element = zp_collectives_element_bytes(type), me = (size_t)g->group.rank;
    if (g->group.transport->whole) return g->group.transport->whole(&g->stream, &whole);
    if (n * element <= ZP_GROUP_SMALL)
        return zp_collectives_add_small(g, &call, data, n, type, how);
    const size_t each = zp_collectives_slice_at(g, n, 1);
    char *all = (char *)data, *mine = all + me * each * element;
    const zp_slice_sum a = {all, mine, each, n, type, how};
    ZP_TRY(zp_collectives_add_slice(g, &call, &a));
    return zp_collectives_gather_slices(g, &call, all, n, element);
}

static zero_result zp_collectives_reduce_scatter(zero_group *g, const void *all, void *mine,
                                                 size_t n, zero_type type, zero_reduction how) {
    const zp_call call = {ZP_GROUP_REDUCE_SCATTER, 2 * (int)type + (int)how, n};
    const zp_whole whole = {&g->group, call, all, mine, n, type, how};
    const zp_slice_sum a = {(const char *)all,           (char *)mine, n,
                            n * (size_t)g->group.nranks, type,         how};
    if (g->group.transport->whole) return g->group.transport->whole(&g->stream, &whole);
    return zp_collectives_add_slice(g, &call, &a);
}

static zero_result zp_collectives_all_gather(zero_group *g, const void *mine, void *all,
                                             size_t bytes) {
    const zp_call call = {ZP_GROUP_ALL_GATHER, -1, bytes};
    const zp_whole whole = {&g->group, call, mine, all, bytes, ZERO_F32, ZERO_SUM};
    char *own = (char *)all + (size_t)g->group.rank * bytes;
    if (own != mine) ZP_TRY(zp_device_copy(&g->stream, own, mine, bytes));
    if (g->group.transport->whole) return g->group.transport->whole(&g->stream, &whole);
    return zp_collectives_gather_slices(g, &call, (char *)all, bytes * (size_t)g->group.nranks, 1);
}

static zero_result zp_collectives_broadcast(zero_group *g, void *data, size_t bytes, int root) {
    const zp_call call = {ZP_GROUP_BROADCAST, root, bytes};
    const zp_whole whole = {&g->group, call, data, data, bytes, ZERO_F32, ZERO_SUM};
    int messages = 0;
    if (g->group.transport->whole) return g->group.transport->whole(&g->stream, &whole);
    if (g->group.rank != root) zp_collectives_add_message(g, &messages, root, 0, data, bytes);
    for (int r = 0; r < g->group.nranks && g->group.rank == root; r++)
        if (r != root) zp_collectives_add_message(g, &messages, r, 1, data, bytes);
    return zp_collectives_exchange_messages(g, &call, g->list, messages);
}

/* Waits until all ranks are in this call. Each rank sends a byte to the others, so ranks in another
   collective get an error, as they do in every collective. */
static zero_result zp_collectives_barrier(zero_group *g, int kind) {
    const zp_call call = {kind, -1, 0};
    const int me = g->group.rank, ranks = g->group.nranks;
    int messages = 0;
    if (ranks == 1 || g->group.transport->whole) return ZERO_OK;
    g->number++;
    for (int i = 1; i < ranks; i++)
        zp_collectives_add_message(g, &messages, (me + i) % ranks, 1,
                                   g->scratch + (size_t)me * g->piece, 1);
    for (int i = 1; i < ranks; i++) {
        const int peer = (me + i) % ranks;
        zp_collectives_add_message(g, &messages, peer, 0, g->scratch + (size_t)peer * g->piece, 1);
    }
    return zp_collectives_exchange_messages(g, &call, g->list, messages);
}

/* Part r of `out` goes to rank r. Parts are contiguous, with the given byte counts; NULL: `bytes`.
 */
static zero_result zp_collectives_all_to_all(zero_group *g, const char *out,
                                             const size_t *out_bytes, char *in,
                                             const size_t *in_bytes, size_t bytes) {
    const zp_call call = {ZP_GROUP_ALL_TO_ALL, -1, bytes};
    const int me = g->group.rank, ranks = g->group.nranks;
    size_t gone = 0, come = 0, own = 0;
    int messages = 0;
    for (int r = 0; r < ranks; r++) { /* sends, then receives; the own part is copied */
        const size_t n = out_bytes ? out_bytes[r] : bytes;
        if (r != me) zp_collectives_add_message(g, &messages, r, 1, out + gone, n);
        if (r == me) own = gone;
        gone += n;
    }
    for (int r = 0; r < ranks; r++) {
        const size_t n = in_bytes ? in_bytes[r] : bytes;
        if (r != me) zp_collectives_add_message(g, &messages, r, 0, in + come, n);
        if (r == me) ZP_TRY(zp_device_copy(&g->stream, in + come, out + own, n));
        come += n;
    }
    return zp_collectives_exchange_messages(g, &call, g->list, messages);
}

/* ---- opening, splitting and closing ---- */

static zero_result zp_collectives_fail(zero_group *g, zero_result r, const char *call,
                                       const char *why) {
    g->dead = r;
    (void)snprintf(g->text, sizeof g->text, "%s, %s %d of %d: %s", call,
                   zp_comm_rank_word(&g->group), g->group.rank, g->group.nranks, why);
    return r;
}

/* Returns the result of a call. The group keeps a failure and reports it to its peers. */
static zero_result zp_collectives_end(zero_group *g, const char *call, zero_result r) {
    const zero_result failed = zp_failure_result(&g->failure);
    if (!r && !failed) return ZERO_OK;
    const char *why = failed              ? g->failure.text
                      : g->device.text[0] ? g->device.text
                                          : zero_result_string(r);
    (void)zp_collectives_fail(g, failed ? failed : r, call, why);
    if (g->group.transport && g->group.own) g->group.transport->abort(&g->group, why);
    return g->dead;
}

/* Joins the ranks of `comm`. COLLECTIVE. */
static zero_result zp_collectives_join(zero_group *g, const zp_transport *row,
                                       const zero_comm *comm, double timeout_s) {
    zp_comm *p = &g->group;
    ZP_TRY(zp_comm_open(p, row, comm));
    ZP_TRY(zp_comm_open_watch(&g->watch, p, 1));
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
    zero_group *g = (zero_group *)calloc(1, sizeof *g);
    *out = g;
    if (!g && row && row->refuse) row->refuse(comm, "no memory for a group");
    if (!g) return ZERO_ERR_MEMORY;
    zp_comm *p = &g->group;
    p->nranks = 1;
    p->device = &g->device;
    p->failure = &g->failure;
    p->timeout_s = zp_type_is_finite(timeout_s) && timeout_s > 0 ? timeout_s : ZP_TIMEOUT_S;
    p->swaps = 1;
    g->comm = *comm;
    g->of = of;
    g->maker = getpid();
    g->users = 1;
    if (of) (void)__atomic_add_fetch(&of->users, 1, __ATOMIC_ACQ_REL);
    g->host_stream = stream;
    if (!row || !row->cut)
        return zp_collectives_fail(g, ZERO_ERR_UNSUPPORTED, call,
                                   zp_transport_explain_missing(comm->kind));
    zero_result r = zp_device_open(&g->device);
    if (r && row->refuse) row->refuse(comm, g->device.text);
    if (!r) r = zp_collectives_join(g, row, comm, timeout_s);
    return zp_collectives_end(g, call, r);
}

static int zp_collectives_compare_colours(const void *a, const void *b) {
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}
/* Returns this rank's place in the parts that the colours make. `mail` has every rank's colour and
   key. The colours are sorted in the memory of the message list. */
static zp_cut zp_collectives_find_part(const zero_group *of, int colour) {
    const int32_t *said = (const int32_t *)(const void *)of->group.mail;
    const int me = of->group.rank, n = of->group.nranks;
    int32_t *colours = (int32_t *)(void *)of->list;
    zp_cut cut = {0, -1, 0, 0, NULL};
    for (int r = 0; r < n; r++) {
        colours[r] = said[2 * r];
        if (said[2 * r] != colour || colour < 0) continue;
        cut.nranks++;
        cut.rank +=
            said[2 * r + 1] < said[2 * me + 1] || (said[2 * r + 1] == said[2 * me + 1] && r < me);
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
    if (!split) return zp_collectives_end(of, call, ZERO_ERR_MEMORY);
    split->next = of->splits;
    of->splits = split;
    ZP_TRY(zp_collectives_end(of, call, zp_collectives_barrier(of, ZP_GROUP_SPLIT)));
    ZP_TRY(zp_collectives_end(of, call, zp_comm_exchange(&of->group, mine, sizeof mine)));
    zp_cut cut = zp_collectives_find_part(of, colour);
    cut.memory = &split->memory;
    if (!cut.parts) return ZERO_OK;
    zero_comm part;
    const zp_transport *row = of->group.transport;
    ZP_TRY(zp_collectives_end(of, call, row->cut(&of->group, &cut, &part)));
    if (cut.part < 0) return ZERO_OK;
    const zero_result r = zp_collectives_make(out, call, &part, stream, of->group.timeout_s, of);
    if (!*out && row->uncut) row->uncut(&part, 1); /* no zero_group_close will */
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
    const zp_transport *row = p->transport;
    const int broken = g->dead || zp_failure_result(&g->failure);
    if (broken && row && p->own) row->abort(p, g->text[0] ? g->text : "it gave up its group");
    if (g->stream.device) (void)zp_device_sync_stream(&g->stream);
    zp_comm_close_watch(&g->watch);
    zp_comm_close(p, broken);
    if (g->of && row && row->uncut) row->uncut(&g->comm, broken);
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

/* group.h - a zero_group: a communicator that sends messages, with a stream and a failure of its
   own

   A zero_group has its own board, communicator, failure and stream. collectives.h makes and uses
   groups; a context that only borrows one needs this file alone. */
#pragma once

#include "transport.h"

/* Memory in which the parts of a split meet; a group has one for each split. */
typedef struct zp_split {
    struct zp_split *next;
    zp_memory memory;
} zp_split;

struct zero_group {
    zp_comm group;
    zp_device device;
    zp_failure failure;
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

/* Memory with a part for each rank: rank r's begins r * stride bytes after `at`. It has `each`
   bytes, or fewer at the end of all `bytes`. */
typedef struct zp_parts {
    const void *at;
    size_t stride, each, bytes;
} zp_parts;

/* Returns the message of a rank's part. */
static zero_message zp_group_part_message(const zp_parts *p, int peer, int sends) {
    const size_t at = zp_min(p->bytes, (size_t)peer * p->stride);
    const zero_message m = {peer, sends, (char *)(uintptr_t)p->at + at,
                            zp_min(p->each, p->bytes - at)};
    return m;
}
/* Lists a message to each other rank with its part of `out`, then one from each for its part of
   `in`. Returns their number, without empty ones. */
static int zp_group_list_messages(const zp_comm *g, zero_message *list, const zp_parts *out,
                                  const zp_parts *in) {
    int n = 0;
    for (int sends = 1; sends >= 0; sends--)
        for (int i = 1; i < g->nranks; i++) {
            const int peer = (g->rank + i) % g->nranks;
            list[n] = zp_group_part_message(sends ? out : in, peer, sends);
            n += list[n].bytes > 0;
        }
    return n;
}

static zero_result zp_group_exchange_messages(zero_group *g, const zp_call *call,
                                              const zero_message *list, int n) {
    const zp_swap x = {&g->group, *call, g->number, list, n};
    return n ? g->group.transport->messenger->swap(&g->stream, &x) : ZERO_OK;
}

/* Sends each other rank its part of `out`, and receives this rank's from it in its part of `in`. */
static zero_result zp_group_exchange_parts(zero_group *g, const zp_call *call, const zp_parts *out,
                                           const zp_parts *in) {
    return zp_group_exchange_messages(g, call, g->list,
                                      zp_group_list_messages(&g->group, g->list, out, in));
}

/* Sends every rank's part of `all` to all other ranks. */
static zero_result zp_group_gather_parts(zero_group *g, const zp_call *call, const zp_parts *all) {
    const zero_message own = zp_group_part_message(all, g->group.rank, 1);
    const zp_parts out = {own.data, 0, own.bytes, SIZE_MAX};
    return zp_group_exchange_parts(g, call, &out, all);
}

static zero_result zp_group_fail(zero_group *g, zero_result r, const char *call, const char *why) {
    g->dead = r;
    (void)snprintf(g->text, sizeof g->text, "%s, %s %d of %d: %s", call,
                   zp_comm_rank_word(&g->group), g->group.rank, g->group.nranks, why);
    return r;
}

/* Returns the result of a call. The group keeps a failure and reports it to its peers. */
static zero_result zp_group_end(zero_group *g, const char *call, zero_result r) {
    const zero_result failed = zp_failure_result(&g->failure);
    if (!r && !failed) return ZERO_OK;
    const char *why = failed              ? g->failure.text
                      : g->device.text[0] ? g->device.text
                                          : zero_result_string(r);
    (void)zp_group_fail(g, failed ? failed : r, call, why);
    zp_comm_abort(&g->group, why);
    return g->dead;
}

/* groups.h - the functions of the header: groups of ranks */
#pragma once

#include "life.h"
#include "../comm/collectives.h"

/* Begins every call of a group. */
static zero_result zp_groups_enter(zero_group *g, const char *call) {
    if (!g) return ZERO_ERR_ARGUMENT;
    g->call = call;
    if (g->group.call) *g->group.call = call;
    if (g->dead) return g->dead;
    if (zp_failure_result(&g->failure)) return zp_group_end(g, call, ZERO_OK);
    if (!zp_device_check(&g->device)) return ZERO_OK;
    (void)zp_group_fail(g, ZERO_ERR_STATE, call, g->device.text);
    g->device.text[0] = 0; /* nothing has changed: your code may continue */
    g->dead = ZERO_OK;
    return ZERO_ERR_STATE;
}

/* Refuses a call. Nothing has changed, and the group stays usable. */
__attribute__((format(printf, 2, 3))) static zero_result zp_groups_refuse(zero_group *g,
                                                                          const char *format, ...) {
    char why[ZP_TEXT_BYTES];
    va_list list;
    va_start(list, format);
    (void)vsnprintf(why, sizeof why, format, list);
    va_end(list);
    (void)zp_group_fail(g, ZERO_ERR_ARGUMENT, g->call, why);
    g->dead = ZERO_OK;
    return ZERO_ERR_ARGUMENT;
}
#define ZP_GROUP_REFUSE(g, when, ...) ZP_TRY((when) ? zp_groups_refuse(g, __VA_ARGS__) : ZERO_OK)

/* Returns the result of a call and ends slice r. */
static zero_result zp_groups_end_slice(zero_group *g, zp_record *r, size_t sent, zero_result done) {
    zp_events_set_traffic(r, 1, g->group.nranks, sent);
    zp_device_end_slice(&g->stream, r);
    return zp_group_end(g, g->call, done);
}

/* Records, times and counts a call that communicates: a collective, or n messages. */
static zero_result zp_groups_run(zero_group *g, zero_event_kind event, size_t size, size_t sent,
                                 uint64_t *counter, const zp_collective *c) {
    const int messages = c->call.kind == ZP_GROUP_MESSAGES;
    zp_record *slice = zp_device_begin_slice(&g->stream, event, -1, size);
    const double start = zp_seconds();
    const zero_result r = zp_groups_end_slice(
        g, slice, sent,
        messages ? zp_group_exchange_messages(g, &c->call, (const zero_message *)c->from, (int)c->n)
                 : zp_collectives_run(g, c));
    if (zp_device_is_host()) g->stats.waited_s += zp_seconds() - start;
    if (r) return r;
    *counter += messages ? c->n : 1;
    g->stats.sent_bytes += sent;
    return ZERO_OK;
}

/* Keeps the time of opening until a trace records it. */
static zero_result zp_groups_note_opening(zero_group *g, double began, zero_result r) {
    if (g) g->opened[0] = began;
    if (g) g->opened[1] = zp_seconds();
    return r;
}

zero_result zero_group_open(zero_group **g, const zero_comm *comm, void *stream, double timeout_s) {
    if (!g || !comm) return ZERO_ERR_ARGUMENT;
    const double began = zp_seconds();
    zero_comm given = *comm;
    given.node_size = 0;
    const zero_result r =
        zp_collectives_make(g, "zero_group_open", &given, stream, timeout_s, NULL);
    return zp_groups_note_opening(*g, began, r);
}

zero_result zero_group_split(zero_group *of, int colour, int key, zero_group **g) {
    if (!g) return ZERO_ERR_ARGUMENT;
    *g = NULL;
    ZP_TRY(zp_groups_enter(of, "zero_group_split"));
    const double began = zp_seconds();
    zp_record *slice = zp_device_begin_slice(&of->stream, ZERO_EVENT_SPLIT, -1, 0);
    const zero_result r = zp_collectives_split(of, of->call, colour, key, of->host_stream, g);
    (void)zp_groups_end_slice(of, slice, 0, ZERO_OK);
    return zp_groups_note_opening(*g, began, r);
}

/* Returns the entry after the one at `at`; *n: bytes of that one. */
static const char *zp_groups_next_coords(const char *at, size_t *n) {
    *n = strcspn(at, ",");
    return at + *n + strspn(at + *n, ", ");
}

/* The group's entry stays readable until another group of this rank is named. Peers that wait for
   this rank in a second group still report all its coordinates while it closes them in sequence. */
static void zp_groups_close_coords(const zp_comm *p) {
    char mine[32];
    size_t n, bytes = (size_t)snprintf(mine, sizeof mine, "%s %d", p->label, p->rank);
    uint32_t bit = 1;
    if (!p->coords || !p->label[0]) return;
    for (const char *at = p->coords->text, *next; *at; at = next, bit <<= 1) {
        next = zp_groups_next_coords(at, &n);
        if (p->coords->closed & bit || n != bytes || memcmp(at, mine, n)) continue;
        p->coords->closed |= bit;
        return;
    }
}

/* Removes the entries of closed groups and adds the group's. */
static void zp_groups_add_coords(const zp_comm *p) {
    char text[ZP_COORDS_BYTES] = "";
    size_t n, used = 0;
    uint32_t closed = p->coords->closed;
    for (const char *at = p->coords->text, *next; *at; at = next, closed >>= 1) {
        next = zp_groups_next_coords(at, &n);
        if (closed & 1) continue;
        (void)snprintf(text + used, sizeof text - used, "%s%.*s", used ? ", " : "", (int)n, at);
        used = strlen(text);
    }
    (void)snprintf(text + used, sizeof text - used, "%s%s %d", used ? ", " : "", p->label, p->rank);
    memcpy(p->coords->text, text, sizeof text);
    p->coords->closed = 0;
}

void zero_group_close(zero_group *g) {
    if (!g || g->maker != getpid()) return;
    if (g->group.call) *g->group.call = "zero_group_close";
    zp_groups_close_coords(&g->group);
    zp_collectives_leave(g);
}

void zero_group_name(zero_group *g, const char *name) {
    if (!g || !name) return;
    zp_comm *p = &g->group;
    zp_groups_close_coords(p);
    (void)snprintf(p->label, sizeof p->label, "%s", name);
    if (p->coords && !g->dead) zp_groups_add_coords(p);
}

int zero_group_rank(const zero_group *g) { return g ? g->group.rank : 0; }
int zero_group_size(const zero_group *g) { return g ? g->group.nranks : 1; }
const char *zero_group_error(const zero_group *g) { return g ? g->text : "no group"; }
zero_comm zero_group_comm(zero_group *g) {
    const zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
    return g ? g->comm : self;
}

/* Checks that memory can have `times` * n elements of so many bytes. */
static zero_result zp_group_fits(zero_group *g, size_t n, size_t element, int times) {
    ZP_GROUP_REFUSE(g, n > (size_t)PTRDIFF_MAX / element / (size_t)times,
                    "n is %zu: so many elements of %zu bytes for %d ranks exceed memory; use fewer",
                    n, element, times);
    return ZERO_OK;
}

/* Checks the type and the reduction. */
static zero_result zp_groups_check_sum(zero_group *g, const void *from, const void *to, size_t n,
                                       zero_type type, zero_reduction how) {
    ZP_GROUP_REFUSE(g, n && (!from || !to), "memory is NULL, but n is %zu; pass an array", n);
    ZP_GROUP_REFUSE(g, (int)type < 0 || (int)type > (int)ZERO_F64, "type is %d; use a ZERO_ type",
                    (int)type);
    ZP_GROUP_REFUSE(g, how != ZERO_SUM && how != ZERO_MAX,
                    "reduction is %d, expected ZERO_SUM or ZERO_MAX", (int)how);
    return zp_group_fits(g, n, zero_type_bytes(type), g->group.nranks);
}

zero_result zero_group_all_reduce(zero_group *g, void *data, size_t n, zero_type type,
                                  zero_reduction how) {
    ZP_TRY(zp_groups_enter(g, "zero_group_all_reduce"));
    ZP_TRY(zp_groups_check_sum(g, data, data, n, type, how));
    const zp_collective c = zp_collectives_make_sum(g, data, data, n, type, how);
    const size_t element = zero_type_bytes(type), sent = zp_collectives_sum_sent(g, n) * element;
    if (g->group.nranks == 1 || !n) return ZERO_OK;
    return zp_groups_run(g, ZERO_EVENT_ALL_REDUCE, n * element, sent, &g->stats.all_reduces, &c);
}

zero_result zero_group_reduce_scatter(zero_group *g, const void *all, void *mine, size_t n,
                                      zero_type type, zero_reduction how) {
    ZP_TRY(zp_groups_enter(g, "zero_group_reduce_scatter"));
    ZP_TRY(zp_groups_check_sum(g, all, mine, n, type, how));
    zp_collective c = zp_collectives_make_sum(g, all, mine, n, type, how);
    c.call.kind = ZP_GROUP_REDUCE_SCATTER;
    const size_t bytes = n * zero_type_bytes(type), ranks = (size_t)g->group.nranks;
    if (!n) return ZERO_OK;
    if (ranks == 1 && all == mine) return ZERO_OK;
    if (ranks == 1) return zp_group_end(g, g->call, zp_device_copy(&g->stream, mine, all, bytes));
    return zp_groups_run(g, ZERO_EVENT_REDUCE_SCATTER, ranks * bytes, (ranks - 1) * bytes,
                         &g->stats.reduce_scatters, &c);
}

/* Runs an all-gather or an all-to-all of `bytes` bytes for each rank. */
static zero_result zp_groups_exchange(zero_group *g, int kind, const void *from, void *to,
                                      size_t bytes) {
    const zp_call call = {kind, -1, bytes};
    const zp_collective c = {&g->group, call, from, to, bytes, ZERO_F32, ZERO_SUM};
    const size_t ranks = (size_t)g->group.nranks;
    const int gathers = kind == ZP_GROUP_ALL_GATHER;
    ZP_GROUP_REFUSE(g, bytes && (!from || !to), "memory is NULL, but bytes is %zu; pass an array",
                    bytes);
    ZP_TRY(zp_group_fits(g, bytes, 1, g->group.nranks));
    if (!bytes) return ZERO_OK;
    return zp_groups_run(g, gathers ? ZERO_EVENT_ALL_GATHER : ZERO_EVENT_ALL_TO_ALL, ranks * bytes,
                         (ranks - 1) * bytes,
                         gathers ? &g->stats.all_gathers : &g->stats.all_to_alls, &c);
}
zero_result zero_group_all_gather(zero_group *g, const void *mine, void *all, size_t bytes) {
    ZP_TRY(zp_groups_enter(g, "zero_group_all_gather"));
    return zp_groups_exchange(g, ZP_GROUP_ALL_GATHER, mine, all, bytes);
}
zero_result zero_group_all_to_all(zero_group *g, const void *out, void *in, size_t bytes) {
    ZP_TRY(zp_groups_enter(g, "zero_group_all_to_all"));
    return zp_groups_exchange(g, ZP_GROUP_ALL_TO_ALL, out, in, bytes);
}

zero_result zero_group_broadcast(zero_group *g, void *data, size_t bytes, int root) {
    ZP_TRY(zp_groups_enter(g, "zero_group_broadcast"));
    ZP_GROUP_REFUSE(g, bytes && !data, "memory is NULL, but bytes is %zu; pass an array", bytes);
    ZP_TRY(zp_group_fits(g, bytes, 1, 1));
    ZP_GROUP_REFUSE(g, root < 0 || root >= g->group.nranks, "root is %d, expected 0..%d", root,
                    g->group.nranks - 1);
    const zp_call call = {ZP_GROUP_BROADCAST, root, bytes};
    const zp_collective c = {&g->group, call, data, data, bytes, ZERO_F32, ZERO_SUM};
    const size_t peers = g->group.rank == root ? (size_t)(g->group.nranks - 1) : 0;
    if (g->group.nranks == 1 || !bytes) return ZERO_OK;
    return zp_groups_run(g, ZERO_EVENT_BROADCAST, bytes, peers * bytes, &g->stats.broadcasts, &c);
}

zero_result zero_group_barrier(zero_group *g) {
    ZP_TRY(zp_groups_enter(g, "zero_group_barrier"));
    zp_record *slice = zp_device_begin_slice(&g->stream, ZERO_EVENT_BARRIER, -1, 0);
    const zero_result met = zp_collectives_barrier(g, ZP_GROUP_BARRIER);
    return zp_groups_end_slice(g, slice, 0, met ? met : zp_comm_barrier(&g->group));
}

zero_result zero_group_send_receive(zero_group *g, const zero_message *list, int n) {
    ZP_TRY(zp_groups_enter(g, "zero_group_send_receive"));
    const zp_call call = {ZP_GROUP_MESSAGES, -1, 0};
    zero_message some[ZP_MESSAGES];
    size_t sent = 0, received = 0;
    int messages = 0;
    ZP_GROUP_REFUSE(g, n < 0 || n > ZP_MESSAGES || (n && !list),
                    "n is %d, expected 0..%d, and list an array", n, ZP_MESSAGES);
    for (int i = 0; i < n; i++) {
        const zero_message *m = &list[i];
        ZP_GROUP_REFUSE(g, m->peer < 0 || m->peer >= g->group.nranks || m->peer == g->group.rank,
                        "message %d: peer is %d, expected another rank of 0..%d", i, m->peer,
                        g->group.nranks - 1);
        ZP_GROUP_REFUSE(g, m->bytes && !m->data,
                        "message %d: data is NULL, but bytes is %zu; pass memory", i, m->bytes);
        ZP_TRY(zp_group_fits(g, m->bytes, 1, 1));
        some[messages] = *m;
        some[messages].sends = m->sends != 0;
        messages += m->bytes > 0;
        sent += m->sends ? m->bytes : 0;
        received += m->sends ? 0 : m->bytes;
    }
    const zp_collective c = {&g->group, call, some, NULL, (size_t)messages, ZERO_F32, ZERO_SUM};
    if (!messages) return ZERO_OK;
    return zp_groups_run(g, ZERO_EVENT_MESSAGES, zp_max(sent, received), sent, &g->stats.messages,
                         &c);
}

zero_result zero_group_send(zero_group *g, const void *data, size_t bytes, int peer) {
    const zero_message m = {peer, 1, (void *)(uintptr_t)data, bytes};
    return zero_group_send_receive(g, &m, 1);
}
zero_result zero_group_receive(zero_group *g, void *data, size_t bytes, int peer) {
    const zero_message m = {peer, 0, data, bytes};
    return zero_group_send_receive(g, &m, 1);
}

zero_result zero_group_trace(zero_group *g, zero_ctx *z, int lane) {
    ZP_TRY(zp_groups_enter(g, "zero_group_trace"));
    ZP_GROUP_REFUSE(g, lane < 0 || lane >= ZERO_TRACK_GROUPS - ZERO_TRACK_GROUP,
                    "lane is %d, expected 0..%d", lane, ZERO_TRACK_GROUPS - ZERO_TRACK_GROUP - 1);
    ZP_GROUP_REFUSE(g, z && z->phase == ZP_NEW, "the context is not built; call zero_build first");
    zp_collectives_stop_trace(g);
    if (!z || !z->device.recorder) return ZERO_OK;
    g->device.recorder = z->device.recorder;
    g->stream.track = ZERO_TRACK_GROUP + lane;
    zero_group **traced = &z->groups->traced;
    g->traced = traced;
    g->next_traced = *traced;
    if (*traced) (*traced)->traced = &g->next_traced;
    *traced = g;
    if (!g->opened[1]) return ZERO_OK;
    zp_record *r =
        zp_events_take_record(g->device.recorder, ZERO_EVENT_OPEN, g->stream.track, -1, 0);
    if (r) r->event.ranks = g->group.nranks;
    zp_events_record_run(r, g->opened[0], g->opened[1]);
    g->opened[1] = 0;
    return ZERO_OK;
}

void zero_group_query_stats(const zero_group *g, zero_group_stats *stats) {
    if (!stats) return;
    memset(stats, 0, sizeof *stats);
    if (g) *stats = g->stats;
}

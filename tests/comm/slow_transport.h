/* slow_transport.h - a transport for tests: LOCAL over a network that is slow, out of step, and
   fails on request

   Compiled into the plugin as ZERO_OWN_TRANSPORTS; comm.handle is a slow_way into a slow_net
   (slow_net.h), which all ranks see. Parts of the ranks meet over the same network.
     slow         every collective, and every list of messages, begins late, by a time that seed,
                  rank and channel choose, so ranks come to it in any order
     out of step  some collectives wait until their rank has begun one of the other channel, or for
                  a while: here gradients overtake parameters, there parameters gradients
     failing      one call of a rank is refused (an error, nothing is sent), breaks (issue: an error
                  in the stream), is lost (time-outs find out), or that rank's process dies in it */
#pragma once

#include "slow_net.h"

typedef struct slow_own {
    zp_local_ranks ranks; /* first: LOCAL's functions find their own by it */
    const slow_way *way;
    uint32_t begun[ZP_CHANNELS]; /* collectives; each is written by its channel's stream alone */
} slow_own;
static slow_own *slow_of(const zp_comm *g) { return (slow_own *)g->own; }
static slow_net *slow_net_of(const zp_comm *g) { return slow_of(g)->way->net; }

/* Counts a call, and says what becomes of it. */
static slow_fault slow_next(zp_comm *g, slow_call call) {
    slow_net *net = slow_net_of(g);
    const int rank = slow_of(g)->way->rank;
    const long number = __atomic_add_fetch(&net->calls[rank][call], 1, __ATOMIC_RELAXED);
    if (net->fault == SLOW_WORKS || net->rank != rank || net->call != call || net->number != number)
        return SLOW_WORKS;
    __atomic_store_n(&net->happened, 1, __ATOMIC_RELAXED);
    if (net->fault == SLOW_DIES) _exit(0);
    return net->fault;
}

static zero_result slow_refuse(zp_comm *g, slow_call call) {
    return zp_comm_fail(g, ZERO_ERR_COMM, "the network refused %s %ld", slow_names[call],
                        slow_net_of(g)->number);
}

/* A call that nobody answers: ends with the peers' time-out or this rank's own. */
static zero_result slow_lose(zp_comm *g, slow_call call) {
    char text[ZP_TEXT_BYTES];
    for (const double end = zp_seconds() + g->timeout_s; zp_seconds() < end; zp_nap()) {
        ZP_TRY(zp_failure_result(g->failure));
        ZP_TRY(zp_board_check_abort(g));
    }
    (void)snprintf(text, sizeof text, "%s %ld was not answered within %g s", slow_names[call],
                   slow_net_of(g)->number, g->timeout_s);
    zp_board_abort_local(g, text);
    return zp_comm_fail(g, ZERO_ERR_TIMEOUT, "%s", text);
}

/* ---- collectives of streams ---- */

/* Until the other channel has begun one more, or for so long. */
static void slow_hold(zp_comm *g, zp_channel channel, double most_s) {
    slow_net *net = slow_net_of(g);
    const uint32_t *other =
        &slow_of(g)->begun[channel == ZP_GRADIENTS ? ZP_PARAMETERS : ZP_GRADIENTS];
    const uint32_t seen = __atomic_load_n(other, __ATOMIC_ACQUIRE);
    const double end = zp_seconds() + most_s;
    int passed = 0;
    __atomic_add_fetch(&net->held, 1, __ATOMIC_RELAXED);
    while (zp_seconds() < end && !passed && !zp_failure_result(g->failure)) {
        zp_nap();
        passed = __atomic_load_n(other, __ATOMIC_ACQUIRE) != seen;
    }
    __atomic_add_fetch(&net->overtaken, passed, __ATOMIC_RELAXED);
}

/* The next of this channel is late; what was drawn for it. */
static uint32_t slow_delay(zp_comm *g, zp_channel channel) {
    const slow_net *net = slow_net_of(g);
    const uint32_t number = __atomic_add_fetch(&slow_of(g)->begun[channel], 1, __ATOMIC_RELEASE);
    const uint32_t place = (uint32_t)(slow_of(g)->way->rank * ZP_CHANNELS + (int)channel);
    const uint32_t drawn =
        zp_optimizer_mix(zp_optimizer_mix((uint32_t)net->seed * 64 + place) + number);
    const double end = zp_seconds() + net->most_s * (double)(drawn % 1024) / 1024;
    while (zp_seconds() < end) zp_nap();
    return drawn;
}

static zero_result slow_run(zp_stream *s, const zp_op *op) {
    const double most_s = slow_net_of(op->group)->most_s;
    const uint32_t drawn = slow_delay(op->group, op->channel);
    if (most_s > 0 && (drawn >> 10) % 3 == 0) slow_hold(op->group, op->channel, 2 * most_s);
    return zp_local_run(s, op);
}
static zero_result slow_run_broken(zp_stream *s, const zp_op *op) {
    return slow_refuse(op->group, SLOW_ISSUE);
}
static zero_result slow_run_lost(zp_stream *s, const zp_op *op) {
    return slow_lose(op->group, SLOW_ISSUE);
}

static zero_result slow_issue(zp_stream *s, const zp_op *op, int n) {
    const slow_fault fault = slow_next(op->group, SLOW_ISSUE);
    if (fault == SLOW_REFUSED) return slow_refuse(op->group, SLOW_ISSUE);
    return zp_local_send(s, op, n,
                         fault == SLOW_BREAKS ? slow_run_broken
                         : fault == SLOW_LOST ? slow_run_lost
                                              : slow_run);
}

/* ---- the host's calls ---- */

static zero_result slow_try(zp_comm *g, slow_call call) {
    const slow_fault fault = slow_next(g, call);
    if (fault == SLOW_WORKS) return ZERO_OK;
    return fault == SLOW_LOST ? slow_lose(g, call) : slow_refuse(g, call);
}
static zero_result slow_exchange(const zp_op *op, const void *mine) {
    ZP_TRY(slow_try(op->group, SLOW_EXCHANGE));
    return zp_board_exchange(op, mine);
}
static zero_result slow_broadcast(const zp_op *op, void *data) {
    ZP_TRY(slow_try(op->group, SLOW_BROADCAST));
    return zp_board_broadcast(op, data);
}
static zero_result slow_memory(zp_comm *g, zp_memory *m) {
    ZP_TRY(slow_try(g, SLOW_MEMORY));
    return zp_process_open_memory(g, m);
}
static zero_result slow_swap(zp_stream *s, const zp_swap *x) {
    ZP_TRY(slow_try(x->group, SLOW_SWAP));
    (void)slow_delay(x->group, ZP_GRADIENTS);
    return zp_pipe_exchange_messages(s, x);
}

static zero_comm slow_inner(const zero_comm *given) {
    const slow_way *way = (const slow_way *)given->handle;
    const zero_comm inner = {ZERO_COMM_LOCAL, given->rank, way->local, given->node_size};
    return inner;
}
static zero_result slow_join(zp_comm *g, const zero_comm *given) {
    const zero_comm inner = slow_inner(given);
    slow_own *own = (slow_own *)calloc(1, sizeof *own);
    if (!own) {
        zp_local_refuse(&inner, "the slow network's memory");
        return zp_comm_fail(g, ZERO_ERR_MEMORY, "the slow network's memory");
    }
    own->way = (const slow_way *)given->handle;
    g->own = own;
    return zp_local_group_join(g, &inner);
}
static void slow_refuse_join(const zero_comm *given, const char *why) {
    const zero_comm inner = slow_inner(given);
    zp_local_refuse(&inner, why);
}

/* The part's ranks have a way of their own. */
static zero_result slow_make_part(zp_comm *of, const zp_cut *cut, zero_comm *part) {
    slow_way *way = (slow_way *)malloc(sizeof *way);
    if (!way) return zp_comm_fail(of, ZERO_ERR_MEMORY, "the slow network's memory");
    *way = *slow_of(of)->way;
    const zero_result r = zp_local_group_make_part(of, cut, part);
    way->local = (zero_local *)part->handle;
    if (r || part->kind != ZERO_COMM_LOCAL) {
        free(way);
        return r;
    }
    part->kind = ZERO_COMM_OWN;
    part->handle = way;
    return ZERO_OK;
}
static void slow_free_part(zero_comm *part, int broken) {
    if (part->kind != ZERO_COMM_OWN) return;
    zero_comm inner = slow_inner(part);
    zp_local_group_free_part(&inner, broken);
    free(part->handle);
}

ZP_MESSENGER(slow_messenger, slow_swap, slow_make_part, slow_free_part, NULL, zp_message_view_part);
ZP_TRANSPORT(slow_row, "SLOW", slow_join, slow_refuse_join, slow_memory, NULL, slow_issue,
             slow_exchange, slow_broadcast, zp_local_bytes, 0, zp_board_abort_local, zp_local_leave,
             zp_local_group_bytes, NULL, &slow_messenger);
#define ZERO_OWN_ROWS , &slow_row

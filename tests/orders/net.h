/* net.h - the test transport: ranks of one process that meet through scheduler.h

   It does what LOCAL does, with LOCAL's own code for the sums and copies (zp_local_compute), but
   its ranks meet in one operation of the scheduler. test_orders_lane.c shows that the real board
   keeps the contract of this meeting: no rank returns before all have come.

   At a meeting's begin no rank waits for more than the others' arrival; at its end the ranks meet
   again, so a rank's memory may be changed only after all have read it. */
#ifndef ORDERS_NET_H
#define ORDERS_NET_H

#include "scheduler.h"

#define ZERO_OWN_ROWS , &orders_net_row

enum { ORDERS_UNITS = 8, ORDERS_NETS = 16 };

/* Ranks that communicate. */
typedef struct orders_net orders_net;
extern int orders_net_faulty;            /* 1: ranks may give up; see net.c */
orders_net *orders_net_open(int nranks); /* the first one, of all ranks */
void orders_net_forget(void);            /* before each execution */
int orders_net_size(const orders_net *n);
orders_net *orders_net_part(orders_net *of, int split, int part, int nranks);
/* Returns 0, or -1 if a rank has died or given up and the meeting cannot take place. */
int orders_net_meet(orders_net *n, int rank, int channel, int end);
void orders_net_abort(orders_net *n);
void *orders_net_shared(orders_net *n, int place, size_t bytes); /* place: number of the memory */
/* One message, from rank to rank. The receiver copies it; the sender waits for that. */
void orders_net_send(orders_net *n, int from, int to, const void *data, size_t bytes);
int orders_net_receive(orders_net *n, int from, int to, void *data, size_t bytes);
int orders_net_sent(orders_net *n, int from, int to); /* waits until all messages are received */

/* By unit: the reduce-scatters that a rank has issued in this step. */
static int orders_reductions[ORDERS_RANKS][ORDERS_UNITS];
static int orders_gathers[ORDERS_RANKS][ORDERS_UNITS]; /* and the all-gathers of parameters */
static int orders_shared_is_fast;                      /* 1: peers' parameters are read in place */

typedef struct orders_own {
    zp_local_ranks ranks; /* first: LOCAL's functions find their own by it */
    orders_net *net;
    int pieces, splits; /* memories and parts so far */
} orders_own;
static orders_own *orders_own_of(const zp_comm *g) { return (orders_own *)g->own; }

static zero_result orders_net_lost(zp_comm *g) {
    return zp_comm_fail(g, ZERO_ERR_PEER, "a peer is gone");
}

/* What zp_board_meet does. */
static zero_result orders_meet(const zp_op *op, int end) {
    zp_comm *g = op->group;
    zp_local_ranks *s = zp_board_ranks_of(g);
    zp_line *mine = &s->board->lines[op->channel][s->me];
    if (!end) {
        mine->call = zp_comm_op_call(op);
        mine->source = op->source;
        mine->target = op->target;
    }
    if (orders_net_meet(orders_own_of(g)->net, s->me, op->channel, end)) return orders_net_lost(g);
    for (int p = 0; p < s->n && !end; p++)
        ZP_TRY(zp_board_compare_calls(g, p, &s->board->lines[op->channel][p].call, &mine->call));
    return ZERO_OK;
}

static zero_result orders_run(zp_stream *s, const zp_op *op) {
    ZP_TRY(zp_failure_result(op->group->failure));
    ZP_TRY(orders_meet(op, 0));
    ZP_TRY(zp_local_compute(s, op));
    return orders_meet(op, 1);
}
static zero_result orders_issue(zp_stream *s, const zp_op *op, int n) {
    for (int i = 0; i < n; i++)
        if (op[i].kind == ZP_REDUCE_SCATTER && op[i].unit >= 0)
            orders_reductions[orders_rank()][op[i].unit]++;
    for (int i = 0; i < n; i++)
        if (op[i].kind == ZP_ALL_GATHER && op[i].channel == ZP_PARAMETERS && op[i].unit >= 0)
            orders_gathers[orders_rank()][op[i].unit]++;
    return zp_local_send(s, op, n, orders_run);
}

static zero_result orders_exchange(const zp_op *op, const void *mine) {
    const zp_local_ranks *s = zp_board_ranks_of(op->group);
    unsigned char(*mail)[ZP_MAIL_BYTES] = s->board->mail;
    memcpy(mail[s->me], mine, op->shard);
    ZP_TRY(orders_meet(op, 0));
    for (int p = 0; p < s->n; p++)
        memcpy(op->group->mail + (size_t)p * op->shard, mail[p], op->shard);
    return orders_meet(op, 1);
}
static zero_result orders_broadcast(const zp_op *op, void *data) {
    const zp_memory *stage = &op->group->stage;
    const int root = op->unit, copies = data != stage->base;
    if (op->group->rank == root && copies) memcpy(stage->base, data, op->shard);
    ZP_TRY(orders_meet(op, 0));
    if (op->group->rank != root && copies) memcpy(data, stage->peer[root], op->shard);
    return orders_meet(op, 1);
}

/* The pieces of all ranks are in one allocation. */
static zero_result orders_memory(zp_comm *g, zp_memory *m) {
    orders_own *own = orders_own_of(g);
    const int one = m->how & ZP_ONE;
    char *all = (char *)orders_net_shared(own->net, own->pieces++,
                                          m->bytes * (one ? 1 : (size_t)g->nranks));
    for (int r = 0; r < g->nranks; r++) m->peer[r] = all + (one ? 0 : (size_t)r * m->bytes);
    m->base = m->view = m->peer[g->rank];
    return ZERO_OK;
}

static zero_result orders_join_net(zp_comm *g, const zero_comm *given) {
    orders_net *net = (orders_net *)given->handle;
    g->rank = given->rank;
    g->nranks = orders_net_size(net);
    g->node_size = given->node_size ? given->node_size : g->nranks;
    g->shared_is_fast = orders_shared_is_fast;
    ZP_TRY(zp_local_make_ranks(g, sizeof(orders_own)));
    orders_own *own = orders_own_of(g);
    own->net = net;
    own->ranks.n = g->nranks;
    own->ranks.me = g->rank;
    for (int p = 0; p < g->nranks; p++) own->ranks.rank_of[p] = p;
    own->ranks.board = (zp_board *)orders_net_shared(net, own->pieces++, sizeof(zp_board));
    return ZERO_OK;
}
static void orders_abort(zp_comm *g, const char *why) { orders_net_abort(orders_own_of(g)->net); }
static void orders_leave(zp_comm *g, int broken) { free(g->own); }

static zero_result orders_swap(zp_stream *s, const zp_swap *x) {
    orders_net *n = orders_own_of(x->group)->net;
    const int me = x->group->rank;
    for (int i = 0; i < x->n; i++)
        if (x->list[i].sends)
            orders_net_send(n, me, x->list[i].peer, x->list[i].data, x->list[i].bytes);
    for (int i = 0; i < x->n; i++)
        if (!x->list[i].sends
            && orders_net_receive(n, x->list[i].peer, me, x->list[i].data, x->list[i].bytes))
            return orders_net_lost(x->group);
    for (int i = 0; i < x->n; i++)
        if (x->list[i].sends && orders_net_sent(n, me, x->list[i].peer))
            return orders_net_lost(x->group);
    return ZERO_OK;
}

static zero_result orders_make_part(zp_comm *of, const zp_cut *cut, zero_comm *part) {
    orders_own *own = orders_own_of(of);
    const int split = own->splits++;
    const zero_comm none = {ZERO_COMM_SELF, 0, NULL, 0};
    *part = none;
    if (cut->part < 0) return ZERO_OK;
    part->kind = ZERO_COMM_OWN;
    part->rank = cut->rank;
    part->handle = orders_net_part(own->net, split, cut->part, cut->nranks);
    return ZERO_OK;
}
static void orders_free_part(zero_comm *part, int broken) {}
static size_t orders_room(const zp_comm *of, int parts, int n, int swaps) { return 0; }

ZP_MESSENGER(orders_messenger, orders_swap, orders_make_part, orders_free_part, NULL,
             zp_message_view_part);
ZP_TRANSPORT(orders_net_row, "ORDERS", orders_join_net, NULL, orders_memory, NULL, orders_issue,
             orders_exchange, orders_broadcast, zp_local_bytes, 0, orders_abort, orders_leave,
             orders_room, NULL, &orders_messenger);
#endif

/* local.h - SELF and LOCAL: one rank, and the ranks of one machine

   A collective of one machine needs no staging copies. Each rank sums its slice directly from the
   peers' memory, in rank order, or copies their shards from there. On the CPU, a task of the
   communication stream waits for the peers and does the work. On GPUs the ranks are threads of one
   process: the calling threads wait for each other, then make their streams wait for each other's.
   MPI uses the CPU form inside a node. */
#pragma once

#include "shared_memory.h"

/* Returns this rank's address of element `at` of a peer's unit (or shard). */
static const char *zp_local_peer_memory(const zp_op *op, int place, size_t at) {
    const zp_local_ranks *s = zp_board_ranks_of(op->group);
    const size_t source = place == s->me ? op->source : s->board->lines[op->channel][place].source;
    return op->memory->peer[place] + source + at * zp_type_bytes(op->type);
}

/* Returns a reduce-scatter's sum of n slices, in nodes of `group`, without its sources. */
static zp_sum zp_local_make_sum(const zp_op *op, int n, int group) {
    const zp_sum sum = {
        {NULL},  op->type,  op->type,       n,  group, op->memory->base + op->target,
        op->sum, op->scale, op->accumulate, {0}};
    return sum;
}

/* Waits until the streams of all ranks have reached the collective, or, if `end`, have done it. On
   GPUs an event per rank does this; the end makes sure that all streams wait for its last record
   before it is recorded again. On the CPU the stream's own thread calls this. */
static zero_result zp_local_meet(zp_stream *s, const zp_op *op, int end) {
    const zp_local_ranks *ranks = zp_board_ranks_of(op->group);
    const int events = !zp_device_is_host() && ranks->n > 1;
    zp_event *event = events ? ranks->board->streams[end][op->channel] : NULL;
    if (!end) ZP_TRY(zp_failure_result(op->group->failure));
    if (event) ZP_TRY(zp_device_record_event(s, &event[ranks->me]));
    ZP_TRY(zp_board_meet(op, end));
    for (int p = 0; p < ranks->n && event; p++)
        if (p != ranks->me) ZP_TRY(zp_device_wait_event(s, &event[p]));
    return ZERO_OK;
}

/* Does this rank's part once all ranks have reached the collective. */
static zero_result zp_local_compute(zp_stream *s, const zp_op *op) {
    const zp_local_ranks *ranks = zp_board_ranks_of(op->group);
    const size_t bytes = zp_comm_op_shard_bytes(op);
    if (op->in_place) return ZERO_OK;
    if (op->kind == ZP_REDUCE_SCATTER) {
        const zp_sum_order *order = &op->group->order;
        const int size = op->group->node_size;
        zp_sum sum = zp_local_make_sum(op, ranks->n, order->radix[0] ? order->radix[0] : size);
        memcpy(sum.radix, order->radix + 1, sizeof sum.radix);
        for (int i = 0; i < ranks->n; i++)
            sum.source[i] =
                zp_local_peer_memory(op, order->across[i / size] * size + order->inside[i % size],
                                     (size_t)op->group->rank * op->shard);
        const int there = ranks->n == 1 && op->source == op->target && !op->sum && op->scale == 1;
        return there ? ZERO_OK : zp_kernel_sum_ranks(s, &sum, op->shard / ZP_WIDE);
    }
    for (int p = 0; p < ranks->n; p++) {
        char *to = op->memory->base + op->target + (size_t)ranks->rank_of[p] * bytes;
        const char *from = zp_local_peer_memory(op, p, 0);
        if (to != from) ZP_TRY(zp_device_copy(s, to, from, bytes));
    }
    return ZERO_OK;
}

static zero_result zp_local_run(zp_stream *s, const zp_op *op) {
    ZP_TRY(zp_local_meet(s, op, 0));
    ZP_TRY(zp_local_compute(s, op));
    return zp_local_meet(s, op, 1);
}

typedef zero_result (*zp_op_fn)(zp_stream *s, const zp_op *op);
typedef struct zp_op_args {
    zp_op op;
    zp_op_fn run;
} zp_op_args;
static_assert(sizeof(zp_op_args) <= ZP_TASK_BYTES, "a task carries a collective");

static void zp_local_task(const void *args, size_t n, int threads) {
    const zp_op_args *a = (const zp_op_args *)args;
    zp_stream here; /* this thread */
    (void)zp_device_take_stream(&here, a->op.group->device, NULL, threads);
    (void)a->run(&here, &a->op);
}
/* Runs n collectives on a stream: on the CPU as tasks, which hold copies of the ops. */
static zero_result zp_local_send(zp_stream *s, const zp_op *op, int n, zp_op_fn run) {
    for (int i = 0; i < n; i++) {
        const zp_op_args a = {op[i], run};
        ZP_TRY(zp_device_is_host() ? zp_device_push_task(s, zp_local_task, &a, sizeof a, 0)
                                   : run(s, &op[i]));
    }
    return ZERO_OK;
}

static zero_result zp_local_issue(zp_stream *s, const zp_op *op, int n) {
    return zp_local_send(s, op, n, zp_local_run);
}

/* Returns the bytes that a rank sends: a shard to each peer, as in a ring. */
static size_t zp_local_bytes(const zp_comm *g, const zp_op *op) {
    return (size_t)(g->nranks - 1) * zp_comm_op_shard_bytes(op);
}

static void zp_local_refuse(const zero_comm *given, const char *why) {
    zero_local *local = given->kind == ZERO_COMM_SELF ? NULL : (zero_local *)given->handle;
    if (local) zp_board_abort(&local->board, given->rank, ZERO_ERR_PEER, why);
}

static void zp_local_leave(zp_comm *g, int broken) {
    if (g->own) zp_shared_memory_close(g);
    free(g->own);
}

/* Allocates this rank's state of the group, and the mail. */
static zero_result zp_local_make_ranks(zp_comm *g, size_t own_bytes) {
    if (!g->own) g->own = calloc(1, own_bytes);
    if (!g->mail) g->mail = (char *)malloc((size_t)g->nranks * ZP_MAIL_BYTES);
    return g->own && g->mail ? ZERO_OK : zp_comm_fail(g, ZERO_ERR_MEMORY, "the exchange buffer");
}

static zero_result zp_local_join_self(zp_comm *g) {
    ZP_TRY(zp_local_make_ranks(g, sizeof(zp_local_ranks)));
    zp_board_ranks_of(g)->n = g->shared_is_fast = 1;
    return ZERO_OK;
}

/* Lets each rank access the memory of every other rank's device. */
static zero_result zp_local_reach_devices(zp_comm *g) {
    const zp_local_ranks *s = zp_board_ranks_of(g);
    const int32_t mine = zp_device_number(g->device), *theirs = (int32_t *)(void *)g->mail;
    g->shared_is_fast = 1;
    ZP_TRY(zp_comm_exchange(g, &mine, sizeof mine));
    for (int r = 0; r < g->nranks; r++) {
        if (theirs[r] == mine) continue;
        g->shared_is_fast = 0; /* reading parameters in place would use the bus each time */
        const zero_result reached = zp_device_reach(g->device, theirs[r]);
        if (reached == ZERO_ERR_ARGUMENT)
            return zp_comm_fail(
                g, reached,
                "device %d of rank %d cannot reach the memory of device %d of rank %d: "
                "use NCCL",
                (int)mine, g->rank, (int)theirs[r], r);
        ZP_TRY(reached);
    }
    for (int i = 0; i < 2 * ZP_CONTROL && g->nranks > 1 && !zp_device_is_host(); i++)
        ZP_TRY(zp_device_open_event(g->device,
                                    &s->board->streams[i / ZP_CONTROL][i % ZP_CONTROL][s->me]));
    return ZERO_OK;
}

/* Lets the parent of forked ranks, and peers, see what the rank does. */
static void zp_local_show_calls(zp_comm *g, zero_local *first, int rank) {
    g->call = &first->call[rank];
    g->unit = &first->unit[rank];
    g->coords = &first->coords[rank];
}

/* All ranks of the group are on this machine. */
static void zp_local_place_ranks(zp_comm *g, zero_local *local) {
    zp_local_ranks *s = zp_board_ranks_of(g);
    s->local = local;
    s->n = g->nranks;
    s->me = g->rank;
    for (int p = 0; p < s->n; p++) s->rank_of[p] = p;
}

static zero_result zp_local_join_ranks(zp_comm *g, const zero_comm *given) {
    zero_local *local = (zero_local *)given->handle;
    if (!local)
        return zp_comm_fail(g, ZERO_ERR_ARGUMENT, "comm.handle is NULL: a zero_local is needed");
    if (!local->shared && local->maker != getpid())
        return zp_comm_fail(g, ZERO_ERR_ARGUMENT,
                            "the zero_local was made with shared 0 in process %d and is used in "
                            "process %d: ranks that are forked need shared 1",
                            (int)local->maker, (int)getpid());
    if (local->shared && !zp_device_is_host())
        return zp_comm_fail(g, ZERO_ERR_ARGUMENT,
                            "ranks that share a zero_local are threads of one process in the CUDA "
                            "build (shared 0); processes need NCCL");
    if (local->shared && g->transport->memory == zp_shared_memory_open)
        return zp_comm_fail(g, ZERO_ERR_UNSUPPORTED, "ranks that are processes: %s",
                            ZP_LEFT_OUT("start"));
    if (given->rank < 0 || given->rank >= local->nranks)
        return zp_comm_fail(g, ZERO_ERR_ARGUMENT, "comm.rank is %d, the group has ranks 0..%d",
                            given->rank, local->nranks - 1);
    g->nranks = local->nranks;
    g->rank = given->rank;
    int there = g->rank;
    zero_local *first = zp_board_first_local(local, &there);
    g->cpu_ranks = first->parted ? 1 : first->nranks;
    zp_local_show_calls(g, first, there);
    ZP_TRY(zp_local_make_ranks(g, sizeof(zp_local_ranks)));
    zp_local_ranks *s = zp_board_ranks_of(g);
    zp_local_place_ranks(g, local);
    /* the zero_local's board opens this context's own board, so contexts never mix */
    s->seq[ZP_CONTROL] = local->seq[g->rank];
    const zero_result r = zp_shared_memory_open_board(g);
    local->seq[g->rank] = s->seq[ZP_CONTROL];
    s->seq[ZP_CONTROL] = 0;
    ZP_TRY(r);
    ZP_TRY(zp_comm_check_node_size(g, given->node_size));
    g->node_size = given->node_size ? given->node_size : g->nranks;
    return zp_local_reach_devices(g);
}
static zero_result zp_local_join(zp_comm *g, const zero_comm *given) {
    if (given->kind == ZERO_COMM_SELF) return zp_local_join_self(g);
    const zero_result r = zp_local_join_ranks(g, given);
    const int joined =
        g->own && zp_board_ranks_of(g)->board; /* then zero_destroy reports to peers */
    if (r && !joined) zp_local_refuse(given, g->failure->text);
    return r;
}

/* Returns this rank's share of the board of n ranks, in bytes. */
static size_t zp_local_board_bytes(const zp_comm *of, int parts, int n, int swaps) {
    return zp_round_up(sizeof(zp_board), 4096) / (size_t)n;
}

/* local_groups.h has the functions that a zero_group needs. */
ZP_TRANSPORT(zp_local_transport, "LOCAL", zp_local_join, zp_local_refuse, zp_shared_memory_open,
             NULL, zp_local_issue, zp_board_exchange, zp_board_broadcast, zp_local_bytes, 0,
             zp_board_abort_local, zp_local_leave, zp_local_board_bytes, NULL, NULL);
static const zp_transport_row zp_local_row = {ZERO_COMM_LOCAL, &zp_local_transport, ""};

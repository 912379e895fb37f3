/* mpi_nodes.h - waits for MPI, and collectives between nodes

   As on a board, an abort or the time limit ends every wait. Memory that MPI may still access then
   is never freed.

   Each rank exchanges data with the ranks of the same place on the other nodes: a reduction sends
   the nodes' sums in f32, an all-gather sends shards. A link carries as many bytes as in a ring.
   The stream's thread calls MPI until the requests are done, because MPI may not progress alone. */
#pragma once

#include "local.h"

#ifdef __CUDACC__
#define ZP_NO_MPI "MPI is for the CPU build: between GPUs it is NCCL"
#else
#define ZP_NO_MPI "built without MPI: compile with mpicc and -DZERO_WITH_MPI"
#endif
#ifdef ZERO_WITH_MPI
#include <mpi.h>
#endif

#define ZP_CROSS_NUMEL ((size_t)15360) /* f32 elements of a piece that goes between nodes */
#define ZP_CROSSINGS   ((size_t)6)     /* pieces in flight at once; see zp_mpi_nodes_exchange */
#define ZP_NAP_MOST_S  1e-3
static_assert(ZP_CROSS_NUMEL % ZP_ALIGN == 0, "pieces between nodes stay aligned");

/* `pace` is the recent average time of a wait for one of many pieces, in seconds. If it is long,
   the waiting thread naps for that time, because spinning would take a core from computing threads.
   The later pieces keep the link busy meanwhile. The longer a wait, the longer its naps. */
ZP_UNUSED static double zp_mpi_nodes_next_pace(double pace, double waited) {
    return pace + (fmin(waited, ZP_NAP_MOST_S) - pace) / 4;
}
ZP_UNUSED static int zp_mpi_nodes_spins(double pace) { return pace < ZP_NAP_S; }
/* Returns the seconds of the next nap. */
ZP_UNUSED static double zp_mpi_nodes_nap_seconds(double pace, double waited) {
    return fmin(fmax(fmax(pace, waited / 16), ZP_NAP_S), ZP_NAP_MOST_S);
}

#ifdef ZERO_WITH_MPI

/* The control channel's only messages are failure reports: the tag is a zero_result. */
#define ZP_TAGS 16384 /* units that tags tell apart; MPI promises tags up to 32767 */

/* A rank's part of an exchange: its call, then its data. All exchanges have the same size for MPI,
   so ranks in different calls still meet, and both get the error. */
typedef struct zp_received {
    zp_call call;
    unsigned char mail[ZP_MAIL_BYTES];
} zp_received;

typedef struct zp_mpi {
    zp_local_ranks ranks; /* first: zp_board_ranks_of */
    MPI_Comm comm[ZP_CHANNELS], on_node;
    int joined; /* the communicators exist */
    int nnodes, node;
    int *node_rank;        /* [nnodes * node_size] ranks by node and place */
    float *wire;           /* between nodes: [crossings][nnodes - 1][2][ZP_CROSS_NUMEL] */
    char *lists;           /* the memory of the lists, except `wire` */
    zp_received *received; /* [1 + nranks] an exchange's own part, then all ranks' parts */
    char failure_text[ZP_TEXT_BYTES];
    struct zp_mpi_moving *moving; /* of a zero_group: one for each message of a list; or NULL */
    int *last; /* [2 * nranks] 1 + the last message to a rank, from it; node numbers at the join */
    MPI_Request *failure_sends; /* [nranks] sends of this rank's failure report */
    int failure_is_sent;
    int abandoned; /* a request or a peer was abandoned: memory that MPI may access is not freed */
} zp_mpi;
static zp_mpi *zp_mpi_nodes_of(const zp_comm *g) { return (zp_mpi *)g->own; }

static zero_result zp_mpi_nodes_check(zp_comm *g, int code, const char *call) {
    char text[MPI_MAX_ERROR_STRING];
    int n = 0;
    if (code == MPI_SUCCESS) return ZERO_OK;
    if (MPI_Error_string(code, text, &n) != MPI_SUCCESS) n = 0;
    text[n] = 0;
    return zp_comm_fail(g, ZERO_ERR_COMM, "%s: %s", call, text);
}
#define ZP_MPI(g, call) ZP_TRY(zp_mpi_nodes_check(g, call, #call))

/* Returns the failure of another rank: one of this node, or one that has sent a report. */
static zero_result zp_mpi_nodes_check_abort(zp_comm *g) {
    zp_mpi *m = zp_mpi_nodes_of(g);
    char text[ZP_TEXT_BYTES];
    MPI_Message message;
    MPI_Status status;
    int found = 0;
    if (!m->ranks.board) return ZERO_OK; /* joining: only ranks that have joined send reports */
    ZP_TRY(zp_board_check_abort(g));
    ZP_MPI(g, MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, m->comm[ZP_CONTROL], &found, &message,
                          &status));
    if (!found) return ZERO_OK;
    ZP_MPI(g, MPI_Mrecv(text, (int)sizeof text, MPI_BYTE, &message, &status));
    text[sizeof text - 1] = 0;
    const int source = status.MPI_SOURCE, result = status.MPI_TAG;
    zp_board_abort(m->ranks.board, source, (zero_result)result, text);
    return zp_board_report_peer(g, source, result, text);
}

/* Reports a failure to this node's ranks. The node's first failed rank also reports to the other
   nodes. Gives up after a second; ranks that it cannot reach run into their time limit. */
static void zp_mpi_nodes_abort(zp_comm *g, const char *why) {
    zp_mpi *m = zp_mpi_nodes_of(g);
    const double deadline = zp_seconds() + 1;
    int n = 0, done = 0;
    if (!m || !m->ranks.board) return;
    zp_board_abort(m->ranks.board, g->rank, zp_board_abort_result(g), why);
    if (m->ranks.n == g->nranks || m->ranks.board->abort_rank != g->rank) return;
    if (__atomic_exchange_n(&m->failure_is_sent, 1, __ATOMIC_ACQ_REL)) return;
    memcpy(m->failure_text, m->ranks.board->abort_text, sizeof m->failure_text);
    for (int i = 0; i < g->nranks; i++) {
        if (i / m->ranks.n == m->node) continue;
        if (MPI_Isend(m->failure_text, ZP_TEXT_BYTES, MPI_BYTE, m->node_rank[i],
                      m->ranks.board->abort_result, m->comm[ZP_CONTROL], &m->failure_sends[n]))
            break;
        n++;
    }
    while (!done && zp_seconds() < deadline) {
        done = 1;
        for (int i = 0, one = 0; i < n; i++, one = 0)
            done &= MPI_Test(&m->failure_sends[i], &one, MPI_STATUS_IGNORE) == MPI_SUCCESS && one;
        if (!done) zp_nap();
    }
    if (!done) m->abandoned = 1;
}

/* Returns a message's tag, which identifies the call: a peer in another call is detected. */
static int zp_mpi_nodes_tag(const zp_op *op) {
    return 2 * ((op->unit + ZP_TAGS) % ZP_TAGS) + (op->kind == ZP_ALL_GATHER);
}
/* Returns the rank of the same place on another node. */
static int zp_mpi_nodes_counterpart(const zp_comm *g, int node) {
    const zp_mpi *m = zp_mpi_nodes_of(g);
    return m->node_rank[node * g->node_size + m->ranks.me];
}

/* Checks ended requests: a single one of an exchange, or pairs of a receive and a send. The
   statuses are valid if `code` is MPI_SUCCESS or MPI_ERR_IN_STATUS. */
static zero_result zp_mpi_nodes_report(const zp_op *op, int code, const MPI_Status *statuses,
                                       int n) {
    zp_comm *g = op->group;
    const int failed = code == MPI_ERR_IN_STATUS;
    for (int i = 0; i + 1 < n && (failed || code == MPI_SUCCESS); i += 2) {
        const int tag = statuses[i].MPI_TAG, unit = tag / 2 < ZP_TAGS - 1 ? tag / 2 : -1;
        const zp_call theirs = {tag & 1 ? ZP_ALL_GATHER : ZP_REDUCE_SCATTER, unit, op->shard};
        const zp_call mine = zp_comm_op_call(op);
        if (failed && statuses[i].MPI_ERROR == MPI_ERR_PENDING) continue;
        if (tag != zp_mpi_nodes_tag(op))
            return zp_board_compare_calls(g, statuses[i].MPI_SOURCE, &theirs, &mine);
    }
    for (int i = 0; i < n && failed; i++)
        if (statuses[i].MPI_ERROR != MPI_SUCCESS && statuses[i].MPI_ERROR != MPI_ERR_PENDING)
            return zp_mpi_nodes_check(g, statuses[i].MPI_ERROR, "MPI_Testall");
    return zp_mpi_nodes_check(g, code, "MPI_Testall");
}

static zero_result zp_mpi_nodes_report_timeout(const zp_op *op, MPI_Request *requests, int n) {
    int arrived = 1, i = 0;
    for (; i + 1 < n; i += 2)
        if (MPI_Request_get_status(requests[i], &arrived, MPI_STATUS_IGNORE) || !arrived) break;
    const int node = i / 2 < zp_mpi_nodes_of(op->group)->node ? i / 2 : i / 2 + 1;
    return zp_board_report_timeout(op->group, op->kind,
                                   arrived ? -1 : zp_mpi_nodes_counterpart(op->group, node));
}

/* Waits for requests. Like zp_board_wait_for_all it ends with an abort or the time limit. */
static zero_result zp_mpi_nodes_wait(const zp_op *op, MPI_Request *requests, int n, double *pace) {
    zp_comm *g = op->group;
    MPI_Status statuses[2 * ZP_LOCAL_MAX];
    const double start = zp_seconds();
    for (int spin = 0;; spin++) {
        int done = 0;
        const int code = MPI_Testall(n, requests, &done, statuses);
        zero_result r = done || code ? zp_mpi_nodes_report(op, code, statuses, n) : ZERO_OK;
        /* no yield: the core would be gone for milliseconds */
        if (!r && !done && spin < 64 && zp_mpi_nodes_spins(*pace)) continue;
        const double waited = zp_seconds() - start;
        if (!r && done) {
            *pace = zp_mpi_nodes_next_pace(*pace, waited);
            return ZERO_OK;
        }
        if (!r) r = zp_mpi_nodes_check_abort(g);
        if (!r && waited > g->timeout_s) r = zp_mpi_nodes_report_timeout(op, requests, n);
        if (r) {
            zp_mpi_nodes_of(g)->abandoned = 1;
            return r;
        }
        zp_nap_for(zp_mpi_nodes_nap_seconds(*pace, waited));
    }
}
/* Waits for a single request. */
static zero_result zp_mpi_nodes_wait_one(const zp_op *op, MPI_Request *request) {
    double pace = 0;
    return zp_mpi_nodes_wait(op, request, 1, &pace);
}

/* Returns the number of a collective's pieces in flight at a time. It is smaller for more nodes. */
static size_t zp_mpi_nodes_in_flight(int nnodes) {
    return zp_max(2, ZP_CROSSINGS / zp_max(1, (size_t)(nnodes - 1)));
}

/* A piece of a shard in flight. For a reduction `wire` has two sums for every other node: the one
   that is sent, and the one that is received. */
typedef struct zp_mpi_nodes_piece {
    size_t at, n;
    int threads; /* that sum it */
    float *wire; /* [nnodes - 1][2][ZP_CROSS_NUMEL] */
    MPI_Request request[2 * ZP_LOCAL_MAX];
} zp_mpi_nodes_piece;

/* Sums a piece of a rank's shard over this node's ranks, in f32. */
static void zp_mpi_nodes_sum_inside(const zp_op *op, int rank, const zp_mpi_nodes_piece *x,
                                    float *out) {
    const int n = zp_board_ranks_of(op->group)->n;
    zp_sum s = {{NULL}, op->type, ZERO_F32, n, n, out, NULL, 1, 0, {0}};
    for (int i = 0; i < n; i++)
        s.source[i] =
            zp_local_peer_memory(op, op->group->order.inside[i], (size_t)rank * op->shard + x->at);
    zp_kernel_sum_slices(&s, x->n, x->threads);
}

/* Starts a piece's messages. A reduction sends each counterpart the sum of its slice, and receives
   sums of this rank's slice. An all-gather receives slices directly in the target, from which the
   node's other ranks copy them. */
static zero_result zp_mpi_nodes_begin_piece(const zp_op *op, zp_mpi_nodes_piece *x) {
    zp_comm *g = op->group;
    const zp_mpi *m = zp_mpi_nodes_of(g);
    const MPI_Comm comm = m->comm[op->channel];
    const int reduces = op->kind == ZP_REDUCE_SCATTER;
    const size_t element = zp_type_bytes(op->type);
    const int bytes = (int)(x->n * (reduces ? sizeof(float) : element));
    char *base = op->memory->base + x->at * element;
    float *sum = x->wire;
    MPI_Request *request = x->request;
    for (int k = 0; k < m->nnodes; k++) {
        if (k == m->node) continue;
        const int peer = zp_mpi_nodes_counterpart(g, k);
        void *in = base + op->target + (size_t)peer * zp_comm_op_shard_bytes(op);
        const void *out = base + op->source;
        if (reduces) {
            zp_mpi_nodes_sum_inside(op, peer, x, sum);
            in = sum + ZP_CROSS_NUMEL;
            out = sum;
        }
        ZP_MPI(g, MPI_Irecv(in, bytes, MPI_BYTE, peer, MPI_ANY_TAG, comm, request++));
        ZP_MPI(g, MPI_Isend(out, bytes, MPI_BYTE, peer, zp_mpi_nodes_tag(op), comm, request++));
        sum += 2 * ZP_CROSS_NUMEL;
    }
    return ZERO_OK;
}

/* Adds the nodes' sums. This node's sum overwrites one that was sent. */
static void zp_mpi_nodes_add_piece(const zp_op *op, const zp_mpi_nodes_piece *x) {
    const zp_mpi *m = zp_mpi_nodes_of(op->group);
    zp_sum nodes = zp_local_make_sum(op, m->nnodes, m->nnodes);
    zp_mpi_nodes_sum_inside(op, op->group->rank, x, x->wire);
    nodes.type = ZERO_F32;
    nodes.out = (char *)nodes.out + x->at * zp_type_bytes(op->type);
    if (nodes.sum) nodes.sum += x->at;
    for (int i = 0; i < m->nnodes; i++) {
        const int k = op->group->order.across[i], before = k - (k > m->node);
        nodes.source[i] = x->wire + (k == m->node ? 0 : (size_t)(1 + 2 * before) * ZP_CROSS_NUMEL);
    }
    zp_kernel_sum_slices(&nodes, x->n, x->threads);
}

/* Exchanges a shard in pieces, several in flight. A piece is so small that MPI sends it without a
   handshake (Open MPI: up to 64 KiB). With handshakes, the replies would queue after a peer's data,
   and only one direction of a link would be busy. Only few pieces are in flight, because a
   collective waits for its slowest peer, and queued pieces of one peer delay those of others. */
static zero_result zp_mpi_nodes_exchange(const zp_op *op, int threads) {
    zp_mpi_nodes_piece x[ZP_CROSSINGS];
    const zp_mpi *m = zp_mpi_nodes_of(op->group);
    const size_t pieces = (op->shard + ZP_CROSS_NUMEL - 1) / ZP_CROSS_NUMEL;
    const size_t depth = zp_mpi_nodes_in_flight(m->nnodes), requests = 2 * (size_t)(m->nnodes - 1);
    double pace = 0;
    for (size_t i = 0; i < pieces + depth; i++) {
        zp_mpi_nodes_piece *now = &x[i % depth];
        if (i >= depth) {
            ZP_TRY(zp_mpi_nodes_wait(op, now->request, (int)requests, &pace));
            if (op->kind == ZP_REDUCE_SCATTER) zp_mpi_nodes_add_piece(op, now);
        }
        if (i >= pieces) continue;
        now->at = i * ZP_CROSS_NUMEL;
        now->n = zp_min(ZP_CROSS_NUMEL, op->shard - now->at);
        now->threads = threads;
        now->wire = m->wire + i % depth * requests * ZP_CROSS_NUMEL;
        ZP_TRY(zp_mpi_nodes_begin_piece(op, now));
    }
    return ZERO_OK;
}

/* Copies the shards that this node's other ranks have received from their counterparts. */
static void zp_mpi_nodes_copy_gathered(const zp_op *op) {
    const zp_mpi *m = zp_mpi_nodes_of(op->group);
    const zp_local_ranks *s = &m->ranks;
    const size_t bytes = zp_comm_op_shard_bytes(op);
    for (int p = 0; p < s->n; p++)
        for (int k = 0; k < m->nnodes && p != s->me; k++) {
            const size_t rank = (size_t)m->node_rank[k * op->group->node_size + p];
            const size_t there = s->board->lines[op->channel][p].target + rank * bytes;
            if (k != m->node)
                memcpy(op->memory->base + op->target + rank * bytes, op->memory->peer[p] + there,
                       bytes);
        }
}

static zero_result zp_mpi_nodes_run(zp_stream *s, const zp_op *op) {
    const zp_mpi *m = zp_mpi_nodes_of(op->group);
    if (m->nnodes == 1 || op->in_place) return zp_local_run(s, op);
    ZP_TRY(zp_local_meet(s, op, 0));
    ZP_TRY(zp_mpi_nodes_exchange(op, s->threads));
    if (op->kind == ZP_ALL_GATHER) {
        ZP_TRY(zp_local_meet(s, op, 1));
        ZP_TRY(zp_local_meet(s, op, 0));
        ZP_TRY(zp_local_compute(s, op));
        zp_mpi_nodes_copy_gathered(op);
    }
    return zp_local_meet(s, op, 1);
}

static zero_result zp_mpi_nodes_issue(zp_stream *s, const zp_op *op, int n) {
    return zp_local_send(s, op, n, zp_mpi_nodes_run);
}

/* Returns the bytes that a rank sends: elements of their type inside a node, f32 between nodes. */
static size_t zp_mpi_nodes_bytes(const zp_comm *g, const zp_op *op) {
    const size_t n = (size_t)zp_board_ranks_of(g)->n, nodes = (size_t)g->nranks / n;
    if (op->kind != ZP_REDUCE_SCATTER) return zp_local_bytes(g, op);
    return op->shard * ((n - 1) * nodes * zp_type_bytes(op->type) + (nodes - 1) * sizeof(float));
}

#endif

/* mpi_nodes.h - how MPI is waited for, and collectives between nodes

   Whatever is waited for ends with an abort or the time limit, as on a board; what MPI may still
   touch then is never freed.

   Each rank talks to the rank of the same place on the other nodes: a reduction trades the nodes'
   sums, in f32, an all-gather shards, so a link carries what a ring would. The stream's thread
   makes the progress that MPI does not make on its own. */
#pragma once

#include "local.h"

/* PACE is what waits for one of many pieces have taken lately, in seconds. Where that is long, who
   waits does not spin, which would take the processor from who computes there, and naps for as
   long: the pieces behind keep the link busy. A peer that is late is looked for less and less
   often. */
ZP_UNUSED static double zp_mpi_nodes_next_pause(double pace, double waited) {
    return pace + (fmin(waited, ZP_NAP_MOST_S) - pace) / 4;
}
ZP_UNUSED static int zp_mpi_nodes_spins(double pace) { return pace < ZP_NAP_S; }
/* Seconds. */
ZP_UNUSED static double zp_mpi_nodes_pause(double pace, double waited) {
    return fmin(fmax(fmax(pace, waited / 16), ZP_NAP_S), ZP_NAP_MOST_S);
}

#ifdef ZERO_WITH_MPI

/* On the control channel there are no messages but word of failures: the tag is a zero_result. */
#define ZP_TAGS 16384 /* units that tags tell apart; MPI promises tags up to 32767 */

/* A rank's part of an exchange: what it is at, then what it gives. All exchanges have one size in
   MPI's eyes, so that ranks that do not agree meet, and are told. */
typedef struct zp_landing {
    zp_call call;
    unsigned char mail[ZP_MAIL_BYTES];
} zp_landing;

typedef struct zp_mpi {
    zp_local_ranks local_ranks; /* first: zp_board_ranks_of */
    MPI_Comm comm[ZP_CHANNELS], on_node;
    int joined; /* the communicators are made */
    int nnodes, node;
    int *node_rank;      /* [nnodes * node_size] ranks by node and place */
    float *wire;         /* between nodes: [crossings][nnodes - 1][2][ZP_CROSS_NUMEL] */
    zp_landing *landing; /* [1 + nranks] given and got in an exchange */
    char told_text[ZP_TEXT_BYTES];
    struct zp_mpi_moving *moving; /* of a host's group, as many as a list has; otherwise NULL */
    int *last; /* [2 * nranks] 1 + the last message to a rank, from it; joining, nodes' numbers */
    MPI_Request *told; /* [nranks] word of this rank's failure */
    int is_told;
    int abandoned; /* a request was given up, or a peer: what MPI may touch is never freed */
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

/* Another rank has failed: on this node, or on another that sent word of it. */
static zero_result zp_mpi_nodes_check_abort(zp_comm *g) {
    zp_mpi *m = zp_mpi_nodes_of(g);
    char text[ZP_TEXT_BYTES];
    MPI_Message message;
    MPI_Status status;
    int found = 0;
    if (!m->local_ranks.board)
        return ZERO_OK; /* joining: a rank that sends word has been through it */
    ZP_TRY(zp_board_check_abort(g));
    ZP_MPI(g, MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, m->comm[ZP_CONTROL], &found, &message,
                          &status));
    if (!found) return ZERO_OK;
    ZP_MPI(g, MPI_Mrecv(text, (int)sizeof text, MPI_BYTE, &message, &status));
    text[sizeof text - 1] = 0;
    const int source = status.MPI_SOURCE, told = status.MPI_TAG;
    zp_board_abort_as(m->local_ranks.board, source, (zero_result)told, text);
    return zp_board_report_peer(g, source, told, text);
}

/* Tells this node's ranks, and those of other nodes if it was this rank that failed first here.
   Gives up after a second: who cannot be reached runs into its time limit. */
static void zp_mpi_nodes_abort(zp_comm *g, const char *why) {
    zp_mpi *m = zp_mpi_nodes_of(g);
    const double deadline = zp_seconds() + 1;
    int n = 0, done = 0;
    if (!m || !m->local_ranks.board) return;
    zp_board_abort_as(m->local_ranks.board, g->rank, zp_board_abort_result(g), why);
    if (m->local_ranks.n == g->nranks || m->local_ranks.board->abort_rank != g->rank) return;
    if (__atomic_exchange_n(&m->is_told, 1, __ATOMIC_ACQ_REL)) return;
    memcpy(m->told_text, m->local_ranks.board->abort_text, sizeof m->told_text);
    for (int i = 0; i < g->nranks; i++) {
        if (i / m->local_ranks.n == m->node) continue;
        if (MPI_Isend(m->told_text, ZP_TEXT_BYTES, MPI_BYTE, m->node_rank[i],
                      m->local_ranks.board->abort_result, m->comm[ZP_CONTROL], &m->told[n]))
            break;
        n++;
    }
    while (!done && zp_seconds() < deadline) {
        done = 1;
        for (int i = 0, one = 0; i < n; i++, one = 0)
            done &= MPI_Test(&m->told[i], &one, MPI_STATUS_IGNORE) == MPI_SUCCESS && one;
        if (!done) zp_nap();
    }
    if (!done) m->abandoned = 1;
}

/* What a message between nodes is for, in its tag: a peer in another call is found. */
static int zp_mpi_nodes_tag(const zp_op *op) {
    return 2 * ((op->unit + ZP_TAGS) % ZP_TAGS) + (op->kind == ZP_ALL_GATHER);
}
/* The rank of this rank's place on another node. */
static int zp_mpi_nodes_counterpart(const zp_comm *g, int node) {
    const zp_mpi *m = zp_mpi_nodes_of(g);
    return m->node_rank[node * g->node_size + m->local_ranks.me];
}

/* What went wrong with requests, in words: one of the hosts', or pairs that receive and send. Their
   statuses are there if nothing did, or if the code says so. */
static zero_result zp_mpi_nodes_report(const zp_op *op, int code, const MPI_Status *statuses,
                                       int n) {
    zp_comm *g = op->group;
    const int failed = code == MPI_ERR_IN_STATUS;
    for (int i = 0; i + 1 < n && (failed || code == MPI_SUCCESS); i += 2) {
        const int tag = statuses[i].MPI_TAG, unit = tag / 2 < ZP_TAGS - 1 ? tag / 2 : -1;
        const zp_call his = {tag & 1 ? ZP_ALL_GATHER : ZP_REDUCE_SCATTER, unit, op->shard};
        const zp_call mine = zp_comm_op_call(op);
        if (failed && statuses[i].MPI_ERROR == MPI_ERR_PENDING) continue;
        if (tag != zp_mpi_nodes_tag(op))
            return zp_board_compare_calls(g, statuses[i].MPI_SOURCE, &his, &mine);
    }
    for (int i = 0; i < n && failed; i++)
        if (statuses[i].MPI_ERROR != MPI_SUCCESS && statuses[i].MPI_ERROR != MPI_ERR_PENDING)
            return zp_mpi_nodes_check(g, statuses[i].MPI_ERROR, "MPI_Testall");
    return zp_mpi_nodes_check(g, code, "MPI_Testall");
}

static zero_result zp_mpi_nodes_report_late(const zp_op *op, MPI_Request *requests, int n) {
    int arrived = 1, i = 0;
    for (; i + 1 < n; i += 2)
        if (MPI_Request_get_status(requests[i], &arrived, MPI_STATUS_IGNORE) || !arrived) break;
    const int node = i / 2 < zp_mpi_nodes_of(op->group)->node ? i / 2 : i / 2 + 1;
    return zp_board_report_late(op->group, op->kind,
                                arrived ? -1 : zp_mpi_nodes_counterpart(op->group, node));
}

/* Waits for requests as zp_board_wait_for_all does for a peer: aborts and the time limit end it. */
static zero_result zp_mpi_nodes_wait(const zp_op *op, MPI_Request *requests, int n, double *pace) {
    zp_comm *g = op->group;
    MPI_Status statuses[2 * ZP_LOCAL_MAX];
    const double start = zp_seconds();
    for (int spin = 0;; spin++) {
        int done = 0;
        const int code = MPI_Testall(n, requests, &done, statuses);
        zero_result r = done || code ? zp_mpi_nodes_report(op, code, statuses, n) : ZERO_OK;
        /* no yield: it would hand the core over for milliseconds */
        if (!r && !done && spin < 64 && zp_mpi_nodes_spins(*pace)) continue;
        const double waited = zp_seconds() - start;
        if (!r && done) {
            *pace = zp_mpi_nodes_next_pause(*pace, waited);
            return ZERO_OK;
        }
        if (!r) r = zp_mpi_nodes_check_abort(g);
        if (!r && waited > g->timeout_s) r = zp_mpi_nodes_report_late(op, requests, n);
        if (r) {
            zp_mpi_nodes_of(g)->abandoned = 1;
            return r;
        }
        zp_nap_for(zp_mpi_nodes_pause(*pace, waited));
    }
}
/* For what comes alone. */
static zero_result zp_mpi_nodes_wait_one(const zp_op *op, MPI_Request *request) {
    double pace = 0;
    return zp_mpi_nodes_wait(op, request, 1, &pace);
}

/* Pieces of a collective that are on their way at a time; fewer where there are more nodes to trade
   with at once. */
static size_t zp_mpi_nodes_in_flight(int nnodes) {
    return zp_max(2, ZP_CROSSINGS / zp_max(1, (size_t)(nnodes - 1)));
}

/* A piece of a shard on its way, and in a reduction for every other node, in `wire`, the sum that
   is sent and the one received. */
typedef struct zp_mpi_nodes_piece {
    size_t at, n;
    int threads; /* that sum it */
    float *wire; /* [nnodes - 1][2][ZP_CROSS_NUMEL] */
    MPI_Request request[2 * ZP_LOCAL_MAX];
} zp_mpi_nodes_piece;

/* Sums inside this node a piece of a rank's shard, in f32. */
static void zp_mpi_nodes_sum_inside(const zp_op *op, int rank, const zp_mpi_nodes_piece *x,
                                    float *out) {
    const int n = zp_board_ranks_of(op->group)->n;
    zp_sum s = {{NULL}, op->type, ZERO_F32, n, n, out, NULL, 1, 0};
    for (int p = 0; p < n; p++)
        s.source[p] = zp_local_peer_memory(op, p, (size_t)rank * op->shard + x->at);
    zp_kernel_sum_slices(&s, x->n, x->threads);
}

/* A reduction trades the sums of every counterpart's slice for those of this rank's; an all-gather
   slices, straight into the target, where the node's other ranks find them. */
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

/* Adds over the nodes in node order; this node's own sum takes the place of one that was sent. */
static void zp_mpi_nodes_add_piece(const zp_op *op, const zp_mpi_nodes_piece *x) {
    const zp_mpi *m = zp_mpi_nodes_of(op->group);
    const float *received = x->wire + ZP_CROSS_NUMEL;
    zp_sum nodes = zp_local_make_sum(op, m->nnodes, m->nnodes);
    zp_mpi_nodes_sum_inside(op, op->group->rank, x, x->wire);
    nodes.type = ZERO_F32;
    nodes.out = (char *)nodes.out + x->at * zp_type_bytes(op->type);
    if (nodes.sum) nodes.sum += x->at;
    for (int k = 0; k < m->nnodes; k++) {
        nodes.source[k] = k == m->node ? x->wire : received;
        if (k != m->node) received += 2 * ZP_CROSS_NUMEL;
    }
    zp_kernel_sum_slices(&nodes, x->n, x->threads);
}

/* Piece by piece, many on their way at a time, each so small that MPI sends it unasked (Open MPI:
   up to 64 KiB). Asked first, the answers queue behind what a peer is sending, and the directions
   of a link take turns. Few are on their way: a collective waits for its slowest peer, and what the
   network's queues hold of one peer's pieces is in the way of the others' (4 hosts, 200 Mbit/s: 32
   took 1.41 of the least possible, 6 take 1.03; of 2 hosts 6 take no more than 32). */
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

/* What the counterparts of this node's other ranks gave, from where those ranks have got it. */
static void zp_mpi_nodes_copy_gathered(const zp_op *op) {
    const zp_mpi *m = zp_mpi_nodes_of(op->group);
    const zp_local_ranks *s = &m->local_ranks;
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

/* Inside nodes in the elements' type, between nodes the nodes' sums in f32. */
static size_t zp_mpi_nodes_bytes(const zp_comm *g, const zp_op *op) {
    const size_t n = (size_t)zp_board_ranks_of(g)->n, nodes = (size_t)g->nranks / n;
    if (op->kind != ZP_REDUCE_SCATTER) return zp_local_bytes(g, op);
    return op->shard * ((n - 1) * nodes * zp_type_bytes(op->type) + (nodes - 1) * sizeof(float));
}

#endif

/* mpi_calls.h - MPI's calls, and how they are waited for

   Whatever is waited for ends with an abort or the time limit, as on a board; what MPI may still
   touch then is never freed. */
#pragma once

#include "local.h"

#ifdef ZERO_WITH_MPI

#define ZP_ABORT_TAG 1     /* on the control channel, where there are no other messages */
#define ZP_TAGS      16384 /* units that tags tell apart; MPI promises tags up to 32767 */

/* A rank's part of an exchange: what it is at, then what it gives. All exchanges have one size in
   MPI's eyes, so that ranks that do not agree meet, and are told. */
typedef struct zp_landing {
    zp_call call;
    unsigned char mail[ZP_MAIL_BYTES];
} zp_landing;

typedef struct zp_mpi {
    zp_seats seats; /* first: zp_seats_of */
    MPI_Comm comm[ZP_CHANNELS], on_node;
    int joined; /* the communicators are made */
    int nnodes, node;
    int *node_rank;      /* [nnodes * node_size] ranks by node and place */
    float *wire;         /* between nodes: [crossings][nnodes - 1][2][ZP_CROSS_NUMEL] */
    zp_landing *landing; /* [1 + nranks] given and got in an exchange */
    char told_text[ZP_TEXT_BYTES];
    MPI_Request *told; /* [nranks] word of this rank's failure */
    int is_told;
    int abandoned; /* a request was given up, or a peer: what MPI may touch is never freed */
} zp_mpi;
static zp_mpi *zp_mpi_of(const zp_group *g) { return (zp_mpi *)g->own; }

static zero_result zp_mpi_code(zp_group *g, int code, const char *call) {
    char text[MPI_MAX_ERROR_STRING];
    int n = 0;
    if (code == MPI_SUCCESS) return ZERO_OK;
    if (MPI_Error_string(code, text, &n) != MPI_SUCCESS) n = 0;
    text[n] = 0;
    return zp_error(g, ZERO_ERR_COMM, "%s: %s", call, text);
}
#define ZP_MPI(g, call) ZP_TRY(zp_mpi_code(g, call, #call))

/* Another rank has failed: on this node, or on another that sent word of it. */
static zero_result zp_mpi_aborted(zp_group *g) {
    zp_mpi *m = zp_mpi_of(g);
    char text[ZP_TEXT_BYTES];
    MPI_Message message;
    MPI_Status status;
    int found = 0;
    if (!m->seats.board) return ZERO_OK; /* joining: a rank that sends word has been through it */
    ZP_TRY(zp_seats_aborted(g));
    ZP_MPI(g, MPI_Improbe(MPI_ANY_SOURCE, ZP_ABORT_TAG, m->comm[ZP_CONTROL], &found, &message,
                          &status));
    if (!found) return ZERO_OK;
    ZP_MPI(g, MPI_Mrecv(text, (int)sizeof text, MPI_BYTE, &message, &status));
    text[sizeof text - 1] = 0;
    zp_board_abort(m->seats.board, status.MPI_SOURCE, text);
    return zp_peer_failed(g, status.MPI_SOURCE, text);
}

/* Tells this node's ranks, and those of other nodes if it was this rank that failed first here.
   Gives up after a second: who cannot be reached runs into its time limit. */
static void zp_mpi_abort(zp_group *g, const char *why) {
    zp_mpi *m = zp_mpi_of(g);
    const double deadline = zp_seconds() + 1;
    int n = 0, done = 0, all = 0;
    if (!m || !m->seats.board) return;
    zp_board_abort(m->seats.board, g->rank, why);
    if (m->seats.n == g->nranks || m->seats.board->abort_rank != g->rank) return;
    if (__atomic_exchange_n(&m->is_told, 1, __ATOMIC_ACQ_REL)) return;
    memcpy(m->told_text, m->seats.board->abort_text, sizeof m->told_text);
    for (int i = 0; i < g->nranks; i++) {
        if (i / m->seats.n == m->node) continue;
        if (MPI_Isend(m->told_text, ZP_TEXT_BYTES, MPI_BYTE, m->node_rank[i], ZP_ABORT_TAG,
                      m->comm[ZP_CONTROL], &m->told[n]))
            break;
        n++;
    }
    while (!done && zp_seconds() < deadline) {
        done = MPI_Testall(n, m->told, &all, MPI_STATUSES_IGNORE) == MPI_SUCCESS && all;
        if (!done) zp_nap();
    }
    if (!done) m->abandoned = 1;
}

/* What a message between nodes is for, in its tag: a peer that is elsewhere is found. */
static int zp_mpi_tag(const zp_op *op) {
    const int unit = op->unit < 0 ? ZP_TAGS - 1 : op->unit % (ZP_TAGS - 1);
    return 2 * unit + (op->kind == ZP_ALL_GATHER);
}
/* The rank of this rank's place on another node. */
static int zp_mpi_counterpart(const zp_group *g, int node) {
    const zp_mpi *m = zp_mpi_of(g);
    return m->node_rank[node * g->node_size + m->seats.me];
}

/* What went wrong with requests, in words: one of the hosts', or pairs that receive and send. */
static zero_result zp_mpi_wrong(const zp_op *op, int code, const MPI_Status *statuses, int n) {
    zp_group *g = op->group;
    for (int i = 0; i + 1 < n; i += 2) {
        const int tag = statuses[i].MPI_TAG, unit = tag / 2 < ZP_TAGS - 1 ? tag / 2 : -1;
        const zp_call his = {tag & 1 ? ZP_ALL_GATHER : ZP_REDUCE_SCATTER, unit, op->shard};
        const zp_call mine = zp_op_call(op);
        if (code == MPI_ERR_IN_STATUS && statuses[i].MPI_ERROR == MPI_ERR_PENDING) continue;
        if (tag != zp_mpi_tag(op)) return zp_call_same(g, statuses[i].MPI_SOURCE, &his, &mine);
    }
    for (int i = 0; i < n && code == MPI_ERR_IN_STATUS; i++)
        if (statuses[i].MPI_ERROR != MPI_SUCCESS && statuses[i].MPI_ERROR != MPI_ERR_PENDING)
            return zp_mpi_code(g, statuses[i].MPI_ERROR, "MPI_Testall");
    return zp_mpi_code(g, code, "MPI_Testall");
}

static zero_result zp_mpi_late(const zp_op *op, MPI_Request *requests, int n) {
    int arrived = 1, i = 0;
    for (; i + 1 < n; i += 2)
        if (MPI_Request_get_status(requests[i], &arrived, MPI_STATUS_IGNORE) || !arrived) break;
    const int node = i / 2 < zp_mpi_of(op->group)->node ? i / 2 : i / 2 + 1;
    return zp_late(op, arrived ? -1 : zp_mpi_counterpart(op->group, node));
}

/* Waits for requests as zp_await does for a peer: aborts and the time limit end it. */
static zero_result zp_mpi_wait(const zp_op *op, MPI_Request *requests, int n) {
    zp_group *g = op->group;
    MPI_Status statuses[2 * ZP_LOCAL_MAX];
    double deadline = 0;
    for (int spin = 0;; spin++) {
        int done = 0;
        const int code = MPI_Testall(n, requests, &done, statuses);
        zero_result r = done || code ? zp_mpi_wrong(op, code, statuses, n) : ZERO_OK;
        if (!r && done) return ZERO_OK;
        if (!r && spin < 64) continue; /* no yield: it would hand the core over for milliseconds */
        if (!r) r = zp_mpi_aborted(g);
        const double now = zp_seconds();
        if (deadline == 0) deadline = now + g->timeout_s;
        if (!r && now > deadline) r = zp_mpi_late(op, requests, n);
        if (r) {
            zp_mpi_of(g)->abandoned = 1;
            return r;
        }
        zp_nap();
    }
}

#endif

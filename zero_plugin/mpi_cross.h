/* mpi_cross.h - collectives between nodes

   Each rank talks to the rank of the same place on the other nodes: a reduction trades the nodes'
   sums, in f32, an all-gather shards, so a link carries what a ring would. The stream's thread
   makes the progress that MPI does not make on its own. */
#pragma once

#include "mpi_calls.h"

#ifdef ZERO_WITH_MPI

/* Pieces of a collective that are on their way at a time; fewer where there are more nodes to trade
   with at once. */
static size_t zp_crossings(int nnodes) {
    return zp_max(2, ZP_CROSSINGS / zp_max(1, (size_t)(nnodes - 1)));
}

/* A piece of a shard on its way, and in a reduction what it needs there: for every other node the
   sum that goes there, and the one that comes. */
typedef struct zp_crossing {
    size_t at, n;
    float *wire; /* [nnodes - 1][2][ZP_CROSS_NUMEL] */
    MPI_Request request[2 * ZP_LOCAL_MAX];
} zp_crossing;

/* Sums inside this node a piece of a rank's shard, in f32. */
static void zp_sum_node(const zp_op *op, int rank, const zp_crossing *x, float *out) {
    const int n = zp_seats_of(op->group)->n;
    zp_sum s = {{NULL}, op->type, ZERO_F32, n, n, out, NULL, 1, 0};
    for (int p = 0; p < n; p++) s.source[p] = zp_op_peer(op, p, (size_t)rank * op->shard + x->at);
    zp_sum_slices(&s, x->n, 1);
}

/* A reduction trades the sums of every counterpart's slice for those of this rank's; an all-gather
   slices, straight into the target, where the node's other ranks find them. */
static zero_result zp_cross_begin(const zp_op *op, zp_crossing *x) {
    zp_group *g = op->group;
    const zp_mpi *m = zp_mpi_of(g);
    const MPI_Comm comm = m->comm[op->channel];
    const int reduces = op->kind == ZP_REDUCE_SCATTER;
    const size_t element = zp_bytes(op->type);
    const int bytes = (int)(x->n * (reduces ? sizeof(float) : element));
    char *base = op->memory->base + x->at * element;
    float *sum = x->wire;
    MPI_Request *request = x->request;
    for (int k = 0; k < m->nnodes; k++) {
        if (k == m->node) continue;
        const int peer = zp_mpi_counterpart(g, k);
        void *in = base + op->target + (size_t)peer * zp_op_shard_bytes(op);
        const void *out = base + op->source;
        if (reduces) {
            zp_sum_node(op, peer, x, sum);
            in = sum + ZP_CROSS_NUMEL;
            out = sum;
        }
        ZP_MPI(g, MPI_Irecv(in, bytes, MPI_BYTE, peer, MPI_ANY_TAG, comm, request++));
        ZP_MPI(g, MPI_Isend(out, bytes, MPI_BYTE, peer, zp_mpi_tag(op), comm, request++));
        sum += 2 * ZP_CROSS_NUMEL;
    }
    return ZERO_OK;
}

/* Adds over the nodes in node order; this node's own sum takes the place of one that was sent. */
static void zp_cross_add(const zp_op *op, const zp_crossing *x) {
    const zp_mpi *m = zp_mpi_of(op->group);
    const float *received = x->wire + ZP_CROSS_NUMEL;
    zp_sum nodes = zp_op_sum(op, m->nnodes, m->nnodes);
    zp_sum_node(op, op->group->rank, x, x->wire);
    nodes.type = ZERO_F32;
    nodes.out = (char *)nodes.out + x->at * zp_bytes(op->type);
    if (nodes.sum) nodes.sum += x->at;
    for (int k = 0; k < m->nnodes; k++) {
        nodes.source[k] = k == m->node ? x->wire : received;
        if (k != m->node) received += 2 * ZP_CROSS_NUMEL;
    }
    zp_sum_slices(&nodes, x->n, 1);
}

/* Piece by piece, many on their way at a time, each so small that MPI sends it unasked (Open MPI:
   up to 64 KiB). Asked first, the answers queue behind what a peer is sending, and the directions
   of a link take turns. */
static zero_result zp_cross(const zp_op *op) {
    zp_crossing x[ZP_CROSSINGS];
    const zp_mpi *m = zp_mpi_of(op->group);
    const size_t pieces = (op->shard + ZP_CROSS_NUMEL - 1) / ZP_CROSS_NUMEL;
    const size_t depth = zp_crossings(m->nnodes), requests = 2 * (size_t)(m->nnodes - 1);
    for (size_t i = 0; i < pieces + depth; i++) {
        zp_crossing *now = &x[i % depth];
        if (i >= depth && i - depth < pieces) {
            ZP_TRY(zp_mpi_wait(op, now->request, (int)requests));
            if (op->kind == ZP_REDUCE_SCATTER) zp_cross_add(op, now);
        }
        if (i >= pieces) continue;
        now->at = i * ZP_CROSS_NUMEL;
        now->n = zp_min(ZP_CROSS_NUMEL, op->shard - now->at);
        now->wire = m->wire + i % depth * requests * ZP_CROSS_NUMEL;
        ZP_TRY(zp_cross_begin(op, now));
    }
    return ZERO_OK;
}

/* What the counterparts of this node's other ranks gave, from where those ranks have got it. */
static void zp_cross_copy(const zp_op *op) {
    const zp_mpi *m = zp_mpi_of(op->group);
    const zp_seats *s = &m->seats;
    const size_t bytes = zp_op_shard_bytes(op);
    for (int p = 0; p < s->n; p++)
        for (int k = 0; k < m->nnodes && p != s->me; k++) {
            const size_t rank = (size_t)m->node_rank[k * op->group->node_size + p];
            const size_t there = s->board->lines[op->channel][p].target + rank * bytes;
            if (k != m->node)
                memcpy(op->memory->base + op->target + rank * bytes, op->memory->peer[p] + there,
                       bytes);
        }
}

static zero_result zp_mpi_run(zp_stream *s, const zp_op *op) {
    const zp_mpi *m = zp_mpi_of(op->group);
    if (m->nnodes == 1 || op->in_place) return zp_local_run(s, op);
    ZP_TRY(zp_op_meet(s, op, 0));
    ZP_TRY(zp_cross(op));
    if (op->kind == ZP_ALL_GATHER) {
        ZP_TRY(zp_op_meet(s, op, 1));
        ZP_TRY(zp_op_meet(s, op, 0));
        ZP_TRY(zp_local_work(s, op));
        zp_cross_copy(op);
    }
    return zp_op_meet(s, op, 1);
}

static zero_result zp_mpi_issue(zp_stream *s, const zp_op *op, int n) {
    return zp_op_send(s, op, n, zp_mpi_run);
}

/* Inside nodes in the elements' type, between nodes the nodes' sums in f32. */
static size_t zp_mpi_cost(const zp_group *g, const zp_op *op) {
    const size_t n = (size_t)zp_seats_of(g)->n, nodes = (size_t)g->nranks / n;
    if (op->kind != ZP_REDUCE_SCATTER) return zp_local_cost(g, op);
    return op->shard * ((n - 1) * nodes * zp_bytes(op->type) + (nodes - 1) * sizeof(float));
}

#endif

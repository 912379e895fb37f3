/* mpi.h - MPI: ranks of one machine as in local.h, between machines by messages

   Inside a node ranks meet on a board and read each other's memory. Between nodes each rank talks
   to the rank of the same place: a reduction trades the nodes' sums, in f32, an all-gather shards,
   so a link carries what a ring would. The stream's thread makes the progress that MPI does not
   make on its own. Whatever is waited for ends with an abort or the time limit; what MPI may still
   touch then is never freed. */
#ifndef ZP_MPI_H
#define ZP_MPI_H

#include "local.h"

#ifndef ZERO_WITH_MPI

static zero_result zp_mpi_open(zp_group *g, const zero_comm *given) {
    (void)given;
    return zp_group_fail(g, ZERO_ERR_UNSUPPORTED, ZP_NO_MPI);
}
static const zp_transport zp_mpi_row = {"MPI", zp_mpi_open, NULL,           NULL,
                                        NULL,  NULL,        NULL,           NULL,
                                        NULL,  NULL,        zp_local_abort, zp_local_close};

#else

#define ZP_ABORT_TAG    1     /* on the control channel, where there are no other messages */
#define ZP_TAGS         16384 /* units that tags tell apart; MPI promises tags up to 32767 */

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
    int *asked;          /* [nranks * ZP_NODE_FIELDS] what every rank says of its node */
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
    return zp_failure_set(g->failure, ZERO_ERR_COMM, "%s: %s", call, text);
}
#define ZP_MPI(g, call) ZP_TRY(zp_mpi_code(g, call, #call))

/* ---- who failed ---- */

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
    return zp_failure_set(g->failure, ZERO_ERR_PEER, "rank %d failed: %s", status.MPI_SOURCE, text);
}

static int zp_mpi_here(const zp_mpi *m, int rank) {
    int here = 0;
    for (int p = 0; p < m->seats.n; p++) here |= m->seats.rank_of[p] == rank;
    return here;
}

/* Tells this node's ranks, and those of other nodes if it was this rank that failed first here.
   Gives up after a second: who cannot be reached runs into its time limit. */
static void zp_mpi_abort(zp_group *g, const char *why) {
    zp_mpi *m = zp_mpi_of(g);
    const double deadline = zp_seconds() + 1;
    int n = 0, done = 0;
    if (!m || !m->seats.board) return;
    zp_board_abort(m->seats.board, g->rank, why);
    if (m->seats.n == g->nranks || m->seats.board->abort_rank != g->rank) return;
    if (__atomic_exchange_n(&m->is_told, 1, __ATOMIC_ACQ_REL)) return;
    memcpy(m->told_text, m->seats.board->abort_text, sizeof m->told_text);
    for (int r = 0; r < g->nranks; r++) {
        if (zp_mpi_here(m, r)) continue;
        if (MPI_Isend(m->told_text, ZP_TEXT_BYTES, MPI_BYTE, r, ZP_ABORT_TAG, m->comm[ZP_CONTROL],
                      &m->told[n]))
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

/* ---- waiting ---- */

/* What a message between nodes is for, in its tag: a peer that is elsewhere is found. */
static int zp_mpi_tag(const zp_op *op) {
    const int unit = op->unit < 0 ? ZP_TAGS - 1 : op->unit % (ZP_TAGS - 1);
    return 2 * unit + (op->kind == ZP_ALL_GATHER);
}
static zp_call zp_mpi_tagged(int tag, uint64_t shard) {
    const int kind = tag & 1 ? ZP_ALL_GATHER : ZP_REDUCE_SCATTER;
    const zp_call call = {kind, tag / 2 == ZP_TAGS - 1 ? -1 : tag / 2, shard};
    return call;
}

/* The rank of this rank's place on another node. */
static int zp_mpi_counterpart(const zp_group *g, int node) {
    const zp_mpi *m = zp_mpi_of(g);
    return m->node_rank[node * g->node_size + m->seats.me];
}

/* What went wrong with requests, in words. op: pairs of requests, the first of each receives. */
static zero_result zp_mpi_wrong(zp_group *g, int code, const MPI_Status *statuses, int n,
                                const zp_op *op) {
    for (int i = 0; i < n && op; i += 2) {
        const int other = statuses[i].MPI_TAG, tag = zp_mpi_tag(op);
        if (other == tag || (code == MPI_ERR_IN_STATUS && statuses[i].MPI_ERROR == MPI_ERR_PENDING))
            continue;
        const zp_call his = zp_mpi_tagged(other, op->shard), mine = zp_mpi_tagged(tag, op->shard);
        return zp_call_same(g, statuses[i].MPI_SOURCE, &his, &mine);
    }
    for (int i = 0; i < n && code == MPI_ERR_IN_STATUS; i++)
        if (statuses[i].MPI_ERROR != MPI_SUCCESS && statuses[i].MPI_ERROR != MPI_ERR_PENDING)
            return zp_mpi_code(g, statuses[i].MPI_ERROR, "MPI_Testall");
    return zp_mpi_code(g, code, "MPI_Testall");
}

static zero_result zp_mpi_late(zp_group *g, MPI_Request *requests, int n, const zp_op *op,
                               const char *what) {
    zp_mpi *m = zp_mpi_of(g);
    int arrived = 1, i = 0;
    for (; i < n && op; i += 2)
        if (MPI_Request_get_status(requests[i], &arrived, MPI_STATUS_IGNORE) || !arrived) break;
    const int node = i / 2 < m->node ? i / 2 : i / 2 + 1;
    if (arrived)
        (void)zp_failure_set(g->failure, ZERO_ERR_TIMEOUT, "not all ranks came to %s within %g s",
                             what, g->timeout_s);
    else
        (void)zp_failure_set(g->failure, ZERO_ERR_TIMEOUT, "rank %d did not come to %s within %g s",
                             zp_mpi_counterpart(g, node), what, g->timeout_s);
    if (m->seats.board) zp_board_abort(m->seats.board, g->rank, g->failure->text);
    return ZERO_ERR_TIMEOUT;
}

/* Waits for requests as zp_await does for a peer: aborts and the time limit end it. */
static zero_result zp_mpi_wait(zp_group *g, MPI_Request *requests, int n, const zp_op *op,
                               const char *what) {
    MPI_Status statuses[2 * ZP_LOCAL_MAX];
    double deadline = 0;
    for (int spin = 0;; spin++) {
        int done = 0;
        const int code = MPI_Testall(n, requests, &done, statuses);
        zero_result r = done || code ? zp_mpi_wrong(g, code, statuses, n, op) : ZERO_OK;
        if (!r && done) return ZERO_OK;
        if (!r && spin < 64) continue; /* no yield: it would hand the core over for milliseconds */
        if (!r) r = zp_mpi_aborted(g);
        const double now = zp_seconds();
        if (deadline == 0) deadline = now + g->timeout_s;
        if (!r && now > deadline) r = zp_mpi_late(g, requests, n, op, what);
        if (r) {
            zp_mpi_of(g)->abandoned = 1;
            return r;
        }
        zp_nap();
    }
}

/* ---- the host's collectives ---- */

/* Every rank's `bytes` to every rank, each behind the call that it is at. */
static zero_result zp_mpi_trade_mail(zp_group *g, const zp_call *call, const void *mine,
                                     size_t bytes, void *all) {
    zp_mpi *m = zp_mpi_of(g);
    zp_landing *got = m->landing + 1;
    MPI_Request request;
    m->landing->call = *call;
    if (bytes) memcpy(m->landing->mail, mine, bytes);
    ZP_MPI(g, MPI_Iallgather(m->landing, (int)sizeof *got, MPI_BYTE, got, (int)sizeof *got,
                             MPI_BYTE, m->comm[ZP_CONTROL], &request));
    ZP_TRY(zp_mpi_wait(g, &request, 1, NULL, zp_call_name(call->kind)));
    for (int r = 0; r < g->nranks; r++) {
        ZP_TRY(zp_call_same(g, r, &got[r].call, call));
        if (bytes) memcpy((char *)all + (size_t)r * bytes, got[r].mail, bytes);
    }
    return ZERO_OK;
}

static zero_result zp_mpi_exchange(zp_group *g, const void *mine, size_t bytes, void *all) {
    const zp_call call = {ZP_EXCHANGE, -1, bytes};
    return zp_mpi_trade_mail(g, &call, mine, bytes, all);
}

static zero_result zp_mpi_broadcast(zp_group *g, void *data, size_t bytes, int root) {
    const zp_call call = {ZP_BROADCAST, root, bytes};
    char *landing = g->stage.base; /* outlives a request that was given up */
    MPI_Request request;
    ZP_TRY(zp_mpi_trade_mail(g, &call, NULL, 0, NULL));
    if (g->rank == root && data != landing) memcpy(landing, data, bytes);
    ZP_MPI(g, MPI_Ibcast(landing, (int)bytes, MPI_BYTE, root, zp_mpi_of(g)->comm[ZP_CONTROL],
                         &request));
    ZP_TRY(zp_mpi_wait(g, &request, 1, NULL, zp_call_name(ZP_BROADCAST)));
    if (g->rank != root && data != landing) memcpy(data, landing, bytes);
    return ZERO_OK;
}

/* ---- between nodes ---- */

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
    int requests;
    MPI_Request request[2 * ZP_LOCAL_MAX];
} zp_crossing;

static zero_result zp_cross_trade(const zp_op *op, int peer, void *in, const void *out,
                                  size_t bytes, MPI_Request *requests) {
    zp_group *g = op->group;
    const MPI_Comm comm = zp_mpi_of(g)->comm[op->channel];
    ZP_MPI(g, MPI_Irecv(in, (int)bytes, MPI_BYTE, peer, MPI_ANY_TAG, comm, &requests[0]));
    ZP_MPI(g, MPI_Isend(out, (int)bytes, MPI_BYTE, peer, zp_mpi_tag(op), comm, &requests[1]));
    return ZERO_OK;
}

/* Sums inside this node elements [at, at + n) of a rank's shard, in f32. */
static void zp_sum_node(const zp_op *op, int rank, size_t at, size_t n, float *out) {
    zp_sum s = zp_op_sum(op);
    for (int p = 0; p < s.n; p++) s.source[p] = zp_op_peer(op, p, (size_t)rank * op->shard + at);
    s.out = out;
    s.out_type = ZERO_F32;
    s.sum = NULL;
    s.scale = 1;
    s.accumulate = 0;
    zp_sum_slices(&s, n, 1);
}

/* A reduction trades the sums of every counterpart's slice for those of this rank's; an all-gather
   slices, straight into the target, where the node's other ranks find them. */
static zero_result zp_cross_begin(const zp_op *op, zp_crossing *x) {
    const zp_mpi *m = zp_mpi_of(op->group);
    const int reduces = op->kind == ZP_REDUCE_SCATTER;
    const size_t element = zp_bytes(op->type);
    char *base = op->memory->base + x->at * element;
    float *sum = x->wire;
    x->requests = 0;
    for (int k = 0; k < m->nnodes; k++) {
        if (k == m->node) continue;
        const int peer = zp_mpi_counterpart(op->group, k);
        char *theirs = base + op->target + (size_t)peer * zp_op_shard_bytes(op);
        if (reduces) zp_sum_node(op, peer, x->at, x->n, sum);
        ZP_TRY(zp_cross_trade(op, peer, reduces ? (char *)(sum + ZP_CROSS_NUMEL) : theirs,
                              reduces ? (char *)sum : base + op->source,
                              x->n * (reduces ? sizeof *sum : element), x->request + x->requests));
        x->requests += 2;
        sum += 2 * ZP_CROSS_NUMEL;
    }
    return ZERO_OK;
}

/* Adds over the nodes in node order; this node's own sum takes the place of one that was sent. */
static void zp_cross_add(const zp_op *op, const zp_crossing *x) {
    const zp_mpi *m = zp_mpi_of(op->group);
    const float *received = x->wire + ZP_CROSS_NUMEL;
    zp_sum nodes = zp_op_sum(op);
    zp_sum_node(op, op->group->rank, x->at, x->n, x->wire);
    nodes.type = ZERO_F32;
    nodes.n = nodes.group = m->nnodes;
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
    const size_t depth = zp_crossings(m->nnodes), wire = 2 * (size_t)(m->nnodes - 1);
    for (size_t i = 0; i < pieces + depth; i++) {
        zp_crossing *now = &x[i % depth];
        if (i >= depth && i - depth < pieces) {
            ZP_TRY(zp_mpi_wait(op->group, now->request, now->requests, op, zp_call_name(op->kind)));
            if (op->kind == ZP_REDUCE_SCATTER) zp_cross_add(op, now);
        }
        if (i >= pieces) continue;
        now->at = i * ZP_CROSS_NUMEL;
        now->n = zp_min(ZP_CROSS_NUMEL, op->shard - now->at);
        now->wire = m->wire + i % depth * wire * ZP_CROSS_NUMEL;
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
    const zp_call call = zp_op_call(op);
    if (m->nnodes == 1 || op->in_place) return zp_local_run(s, op);
    ZP_TRY(zp_op_begin(s, op));
    if (op->kind == ZP_REDUCE_SCATTER) {
        ZP_TRY(zp_cross(op));
    } else {
        ZP_TRY(zp_op_gather_own(s, op));
        ZP_TRY(zp_cross(op));
        ZP_TRY(zp_part(op->group, op->channel));
        ZP_TRY(zp_meet(op->group, op->channel, &call, op->source, op->target));
        ZP_TRY(zp_local_work(s, op));
        zp_cross_copy(op);
    }
    return zp_op_end(s, op);
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

/* ---- memory ---- */

static char *zp_align_page(void *p) { return (char *)(((uintptr_t)p + 4095) & ~(uintptr_t)4095); }

/* Touches every page. 0: the system has no room for them (a small /dev/shm), which would otherwise
   end the process at the first write. */
static int zp_populate(char *p, size_t bytes) {
#ifdef __linux__
    if (madvise(p, bytes, 23 /* MADV_POPULATE_WRITE, Linux 5.14 */) && errno != EINVAL) return 0;
#endif
    memset(p, 0, bytes);
    return 1;
}

/* What an MPI shared window keeps. */
typedef struct zp_window {
    MPI_Win window;
} zp_window;

static void zp_window_free(zp_memory *m) {
    zp_window *w = (zp_window *)m->handle;
    if (m->holder == ZP_WINDOW) (void)MPI_Win_free(&w->window);
    free(w);
    m->handle = NULL;
    m->holder = ZP_NOT_HELD;
}

static zero_result zp_window_open(zp_group *g, zp_memory *m, zp_window *w) {
    zp_mpi *mpi = zp_mpi_of(g);
    const zp_seats *s = &mpi->seats;
    const int one = (m->how & ZP_ONE) != 0, makes = !one || s->me == 0;
    void *base = NULL;
    MPI_Info info;
    ZP_MPI(g, MPI_Info_create(&info));
    ZP_MPI(g, MPI_Info_set(info, "alloc_shared_noncontig", "true"));
    const MPI_Aint bytes = makes ? (MPI_Aint)(m->bytes + 4096) : 0;
    const int code = MPI_Win_allocate_shared(bytes, 1, info, mpi->on_node, &base, &w->window);
    (void)MPI_Info_free(&info);
    if (code != MPI_SUCCESS) return ZERO_ERR_MEMORY;
    m->holder = ZP_WINDOW;
    ZP_MPI(g, MPI_Win_set_errhandler(w->window, MPI_ERRORS_RETURN));
    for (int p = 0; p < s->n; p++) {
        MPI_Aint size;
        int unit;
        ZP_MPI(g, MPI_Win_shared_query(w->window, one ? 0 : p, &size, &unit, &base));
        m->peer[p] = zp_align_page(base);
    }
    m->base = m->peer[s->me];
    return ZERO_OK;
}

/* Peers in containers of their own see each other's memory only through MPI. Hosts are shown what
   they could write: a window has no second mapping. */
static zero_result zp_memory_window(zp_group *g, zp_memory *m) {
    zp_window *w = (zp_window *)malloc(sizeof *w);
    const zp_seats *s = zp_seats_of(g);
    int who = -1;
    m->handle = w;
    ZP_TRY(zp_agree(g, w != NULL, &who));
    if (who < 0) {
        const zero_result r = zp_window_open(g, m, w);
        if (r && r != ZERO_ERR_MEMORY) return r;
        ZP_TRY(zp_agree(g, r == ZERO_OK, &who)); /* over all nodes */
    }
    if (who < 0) {
        const int makes = !(m->how & ZP_ONE) || s->me == 0;
        const int cleared = !makes || zp_populate(m->base, m->bytes);
        ZP_TRY(zp_agree(g, cleared, &who)); /* and nobody reads before all are cleared */
    }
    if (who < 0) return ZERO_OK;
    zp_window_free(m);
    return zp_failure_set(g->failure, ZERO_ERR_MEMORY,
                          "rank %d could not allocate %zu bytes in an MPI shared window: has its "
                          "host's /dev/shm room for them?",
                          who, m->bytes);
}

/* Files first: they need no room in /dev/shm, and no peer to be freed. */
static zero_result zp_mpi_memory(zp_group *g, zp_memory *m) {
    const zp_seats *s = zp_seats_of(g);
    zero_result r = zp_memory_shared(g, m);
    if (g->nranks == 1 || (r != ZERO_ERR_MEMORY && r != ZERO_ERR_UNSUPPORTED)) return r;
    r = zp_memory_window(g, m);
    if (!r) g->meter.allocated_bytes += m->how & ZP_ONE ? m->bytes / (size_t)s->n : m->bytes;
    return r;
}

/* ---- joining and leaving ---- */

enum { ZP_NODE_RANKS = 0, ZP_NODE_FIRST, ZP_NODE_PLACE, ZP_NODE_ASKED, ZP_NODE_FIELDS };

/* Every rank has got its memory, or all give up: who returned alone would leave its peers waiting.
 */
static zero_result zp_mpi_all_have(zp_group *g, MPI_Comm comm, int mine, const char *what) {
    int all = 0;
    ZP_MPI(g, MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, comm));
    if (all) return ZERO_OK;
    return zp_failure_set(g->failure, ZERO_ERR_MEMORY, "%s%s", what,
                          mine ? " of another rank" : "");
}

/* This rank's node: the ranks of its host, or the part of them that node_size cuts. */
static zero_result zp_mpi_node(zp_group *g, int node_size, int *first) {
    zp_mpi *m = zp_mpi_of(g);
    MPI_Comm host;
    ZP_MPI(g, MPI_Comm_split_type(m->comm[ZP_CONTROL], MPI_COMM_TYPE_SHARED, g->rank, MPI_INFO_NULL,
                                  &host));
    m->on_node = host;
    if (node_size) {
        const int code = MPI_Comm_split(host, g->rank / node_size, g->rank, &m->on_node);
        (void)MPI_Comm_free(&host);
        ZP_MPI(g, code);
    }
    ZP_MPI(g, MPI_Comm_set_errhandler(m->on_node, MPI_ERRORS_RETURN));
    ZP_MPI(g, MPI_Comm_size(m->on_node, &m->seats.n));
    ZP_MPI(g, MPI_Comm_rank(m->on_node, &m->seats.me));
    *first = g->rank; /* a node is named by its lowest rank */
    ZP_MPI(g, MPI_Bcast(first, 1, MPI_INT, 0, m->on_node));
    return ZERO_OK;
}

/* Every node must have as many ranks, and what was asked for must be so. */
static zero_result zp_mpi_even(zp_group *g, int node_size) {
    const zp_mpi *m = zp_mpi_of(g);
    const int *zeroth = m->asked;
    for (int i = 0; i < g->nranks; i++) {
        const int *his = m->asked + ZP_NODE_FIELDS * i;
        if (his[ZP_NODE_ASKED] != zeroth[ZP_NODE_ASKED])
            return zp_failure_set(g->failure, ZERO_ERR_MISMATCH,
                                  "comm.node_size is %d on rank 0, %d on rank %d",
                                  zeroth[ZP_NODE_ASKED], his[ZP_NODE_ASKED], i);
    }
    for (int i = 0; i < g->nranks; i++) {
        const int n = m->asked[ZP_NODE_FIELDS * i + ZP_NODE_RANKS];
        if (n != zeroth[ZP_NODE_RANKS] || n > ZP_LOCAL_MAX)
            return zp_failure_set(
                g->failure, ZERO_ERR_ARGUMENT,
                "nodes of %d ranks (rank 0) and of %d (rank %d): every node needs the same number, "
                "at most %d; start as many ranks on every host, or set comm.node_size",
                zeroth[ZP_NODE_RANKS], n, i, ZP_LOCAL_MAX);
        if (node_size && n != node_size)
            return zp_failure_set(g->failure, ZERO_ERR_ARGUMENT,
                                  "comm.node_size is %d, but rank %d shares memory with only %d of "
                                  "those ranks: a node lies on one host",
                                  node_size, i, n);
    }
    return g->nranks / zeroth[ZP_NODE_RANKS] <= ZP_LOCAL_MAX
               ? ZERO_OK
               : zp_failure_set(g->failure, ZERO_ERR_UNSUPPORTED, "%d nodes, at most %d",
                                g->nranks / zeroth[ZP_NODE_RANKS], ZP_LOCAL_MAX);
}

/* Nodes in order of their lowest rank. */
static zero_result zp_mpi_nodes(zp_group *g, int node_size) {
    zp_mpi *m = zp_mpi_of(g);
    int first = 0, node = -1;
    if (node_size && (node_size < 1 || g->nranks % node_size))
        return zp_failure_set(g->failure, ZERO_ERR_ARGUMENT,
                              "comm.node_size %d does not divide %d ranks", node_size, g->nranks);
    ZP_TRY(zp_mpi_node(g, node_size, &first));
    const int mine[ZP_NODE_FIELDS] = {m->seats.n, first, m->seats.me, node_size};
    ZP_MPI(g, MPI_Allgather(mine, ZP_NODE_FIELDS, MPI_INT, m->asked, ZP_NODE_FIELDS, MPI_INT,
                            m->comm[ZP_CONTROL]));
    ZP_TRY(zp_mpi_even(g, node_size));
    g->node_size = m->seats.n;
    m->nnodes = g->nranks / m->seats.n;
    for (int i = 0; i < g->nranks; i++) {
        const int *his = m->asked + ZP_NODE_FIELDS * i;
        if (his[ZP_NODE_PLACE] != 0) continue;
        node++;
        if (his[ZP_NODE_FIRST] == first) m->node = node;
        for (int q = 0; q < g->nranks; q++) {
            const int *other = m->asked + ZP_NODE_FIELDS * q;
            if (other[ZP_NODE_FIRST] == his[ZP_NODE_FIRST])
                m->node_rank[node * g->node_size + other[ZP_NODE_PLACE]] = q;
        }
    }
    for (int p = 0; p < m->seats.n; p++)
        m->seats.rank_of[p] = m->node_rank[m->node * g->node_size + p];
    return ZERO_OK;
}

static zero_result zp_mpi_running(zp_group *g, const zero_comm *given) {
    int level = 0, started = 0, ended = 0;
    if (!given->handle)
        return zp_group_fail(g, ZERO_ERR_ARGUMENT, "comm.handle is NULL: an MPI_Comm * is needed");
    if (MPI_Initialized(&started) || MPI_Finalized(&ended) || !started || ended)
        return zp_group_fail(
            g, ZERO_ERR_COMM,
            "MPI is not running: call MPI_Init_thread with MPI_THREAD_MULTIPLE first");
    ZP_MPI(g, MPI_Query_thread(&level));
    if (level >= MPI_THREAD_MULTIPLE) return ZERO_OK;
    return zp_failure_set(g->failure, ZERO_ERR_COMM,
                          "MPI was started with thread level %d: call MPI_Init_thread with "
                          "MPI_THREAD_MULTIPLE (%d)",
                          level, MPI_THREAD_MULTIPLE);
}

/* Memory for g->nranks ranks; 0: there is none. */
static int zp_mpi_make(zp_group *g) {
    const size_t n = (size_t)g->nranks;
    if (zp_seats_make(g, sizeof(zp_mpi), g->nranks)) return 0;
    zp_mpi *m = zp_mpi_of(g);
    m->on_node = MPI_COMM_NULL;
    m->landing = (zp_landing *)calloc(1 + n, sizeof *m->landing);
    m->told = (MPI_Request *)malloc(n * sizeof *m->told);
    m->node_rank = (int *)malloc(n * sizeof *m->node_rank);
    m->asked = (int *)malloc(n * ZP_NODE_FIELDS * sizeof *m->asked);
    return m->landing && m->told && m->node_rank && m->asked;
}

static zero_result zp_mpi_join(zp_group *g, const zero_comm *given) {
    MPI_Comm comm[ZP_CHANNELS];
    ZP_MPI(g, MPI_Comm_rank(*(MPI_Comm *)given->handle, &g->rank));
    ZP_MPI(g, MPI_Comm_size(*(MPI_Comm *)given->handle, &g->nranks));
    const int made = zp_mpi_make(g);
    for (int i = 0; i < ZP_CHANNELS; i++) { /* by every rank, with memory or without */
        ZP_MPI(g, MPI_Comm_dup(*(MPI_Comm *)given->handle, &comm[i]));
        ZP_MPI(g, MPI_Comm_set_errhandler(comm[i], MPI_ERRORS_RETURN));
    }
    const zero_result r = zp_mpi_all_have(g, comm[ZP_CONTROL], made, "the exchange buffers");
    for (int i = 0; i < ZP_CHANNELS && r; i++) (void)MPI_Comm_free(&comm[i]);
    if (r) return r;
    memcpy(zp_mpi_of(g)->comm, comm, sizeof comm);
    zp_mpi_of(g)->joined = 1;
    return ZERO_OK;
}

static zero_result zp_mpi_open(zp_group *g, const zero_comm *given) {
    ZP_TRY(zp_mpi_running(g, given));
    ZP_TRY(zp_mpi_join(g, given));
    ZP_TRY(zp_mpi_nodes(g, given->node_size));
    zp_mpi *m = zp_mpi_of(g);
    const size_t wires = 2 * (size_t)(m->nnodes - 1) * zp_crossings(m->nnodes);
    g->shares = m->nnodes == 1;
    g->wire_bytes = wires * ZP_CROSS_NUMEL * sizeof *m->wire;
    m->wire = (float *)malloc(zp_max(g->wire_bytes, 1));
    ZP_TRY(zp_mpi_all_have(g, m->comm[ZP_CONTROL], m->wire != NULL, "the buffers between nodes"));
    zp_memory *board = &m->seats.board_memory;
    const zero_result r = zp_memory_open(g, board, sizeof(zp_board), ZP_ONE | ZP_ON_HOST);
    if (r) return zp_group_fail(g, r, "memory that the ranks of this host share");
    m->seats.board = (zp_board *)(void *)board->base;
    return ZERO_OK;
}

/* Windows and communicators are freed by all ranks or by none. A context that failed, or whose
   peers did, leaves them and all that MPI may still touch to the end of the process; another waits
   here for all ranks, or for the failure of one. 1: nothing may be freed. */
static int zp_mpi_abandons(zp_group *g, int broken) {
    zp_mpi *m = zp_mpi_of(g);
    MPI_Request request;
    int ended = 0, done = 0;
    const double deadline = zp_seconds() + g->timeout_s;
    if (!m->joined || m->abandoned) return m->abandoned;
    m->abandoned = MPI_Finalized(&ended) || ended || (broken && m->seats.board);
    if (m->abandoned || !m->seats.board) return m->abandoned;
    /* on a channel whose stream is closed: it ends only if nobody is broken */
    m->abandoned = MPI_Ibarrier(m->comm[ZP_PARAMETERS], &request) != MPI_SUCCESS;
    while (!m->abandoned && !done) {
        m->abandoned = MPI_Test(&request, &done, MPI_STATUS_IGNORE)
                       || (!done && (zp_mpi_aborted(g) || zp_seconds() > deadline));
        if (!done) zp_nap();
    }
    return m->abandoned;
}

static void zp_mpi_close(zp_group *g, int broken) {
    zp_mpi *m = zp_mpi_of(g);
    if (!m) return;
    if (m->seats.board) __atomic_store_n(&m->seats.board->left[m->seats.me], 1, __ATOMIC_RELEASE);
    if (zp_mpi_abandons(g, broken)) return;
    m->seats.board = NULL; /* it may lie in a window */
    for (zp_memory *p = g->first; p; p = p->next)
        if (p->holder == ZP_WINDOW) zp_window_free(p);
    zp_seats_close(g);
    for (int i = 0; i < ZP_CHANNELS && m->joined; i++) (void)MPI_Comm_free(&m->comm[i]);
    if (m->joined && m->on_node != MPI_COMM_NULL) (void)MPI_Comm_free(&m->on_node);
    free(m->landing);
    free(m->told);
    free(m->node_rank);
    free(m->asked);
    free(m->wire);
    free(m);
}

static const zp_transport zp_mpi_row = {
    "MPI",           zp_mpi_open,      NULL,        zp_mpi_memory, NULL,         zp_mpi_issue,
    zp_mpi_exchange, zp_mpi_broadcast, zp_mpi_cost, NULL,          zp_mpi_abort, zp_mpi_close};

#endif
#endif

/* mpi.h - MPI: shared memory on one machine as in local.h, and messages between machines */
#pragma once

#include "messages.h"
#include "mpi_nodes.h"
#include "process.h"

#ifdef ZERO_WITH_MPI

/* The transport's exchange: checks that all ranks are in the same call. A broadcast begins with it,
   and sends nothing in it. */
static zero_result zp_mpi_exchange(const zp_op *op, const void *mine) {
    const size_t bytes = op->kind == ZP_EXCHANGE ? op->shard : 0;
    zp_comm *g = op->group;
    zp_mpi *m = zp_mpi_nodes_of(g);
    const zp_call call = zp_comm_op_call(op);
    zp_received *got = m->received + 1;
    MPI_Request request;
    m->received->call = call;
    memcpy(m->received->mail, mine, bytes);
    ZP_MPI(g, MPI_Iallgather(m->received, (int)sizeof *got, MPI_BYTE, got, (int)sizeof *got,
                             MPI_BYTE, m->comm[ZP_CONTROL], &request));
    ZP_TRY(zp_mpi_nodes_wait_one(op, &request));
    for (int r = 0; r < g->nranks; r++) {
        ZP_TRY(zp_board_compare_calls(g, r, &got[r].call, &call));
        memcpy(g->mail + (size_t)r * bytes, got[r].mail, bytes);
    }
    return ZERO_OK;
}

static zero_result zp_mpi_broadcast(const zp_op *op, void *data) {
    zp_comm *g = op->group;
    char *received = g->stage.base; /* lives longer than an abandoned request */
    const MPI_Comm comm = zp_mpi_nodes_of(g)->comm[ZP_CONTROL];
    const int root = op->unit, copies = data != received;
    MPI_Request request;
    ZP_TRY(zp_mpi_exchange(op, received));
    if (g->rank == root && copies) memcpy(received, data, op->shard);
    ZP_MPI(g, MPI_Ibcast(received, (int)op->shard, MPI_BYTE, root, comm, &request));
    ZP_TRY(zp_mpi_nodes_wait_one(op, &request));
    if (g->rank != root && copies) memcpy(data, received, op->shard);
    return ZERO_OK;
}

/* Touches every page. Returns 0 if the system has no room (a small /dev/shm); otherwise the first
   write would end the process. */
static int zp_mpi_touch_pages(char *p, size_t bytes) {
    const int populate = 23; /* MADV_POPULATE_WRITE, Linux 5.14 */
    if (madvise(p, bytes, populate) && errno != EINVAL) return 0;
    memset(p, 0, bytes);
    return 1;
}

/* zp_memory.handle holds the MPI_Win itself. */
static_assert(sizeof(MPI_Win) <= sizeof(void *), "a handle holds a window");

static void zp_mpi_free_window(zp_memory *m) {
    MPI_Win window;
    memcpy(&window, &m->handle, sizeof window);
    if (m->holder == ZP_WINDOW) (void)MPI_Win_free(&window);
    m->holder = ZP_NO_OWNER;
}

static zero_result zp_mpi_open_window(zp_comm *g, zp_memory *m) {
    const zp_local_ranks *s = zp_board_ranks_of(g);
    const int one = m->how & ZP_ONE, makes = !one || s->me == 0;
    const MPI_Aint bytes = makes ? (MPI_Aint)(m->bytes + 4096) : 0;
    void *base = NULL;
    MPI_Info info;
    MPI_Win window;
    ZP_MPI(g, MPI_Info_create(&info));
    ZP_MPI(g, MPI_Info_set(info, "alloc_shared_noncontig", "true"));
    const int code =
        MPI_Win_allocate_shared(bytes, 1, info, zp_mpi_nodes_of(g)->on_node, &base, &window);
    (void)MPI_Info_free(&info);
    if (code != MPI_SUCCESS) return ZERO_ERR_MEMORY;
    memcpy(&m->handle, &window, sizeof window);
    m->holder = ZP_WINDOW;
    ZP_MPI(g, MPI_Win_set_errhandler(window, MPI_ERRORS_RETURN));
    for (int p = 0; p < s->n; p++) {
        MPI_Aint size;
        int unit;
        ZP_MPI(g, MPI_Win_shared_query(window, one ? 0 : p, &size, &unit, &base));
        m->peer[p] = (char *)zp_round_up((uintptr_t)base, 4096);
    }
    m->base = m->peer[s->me];
    return makes && !zp_mpi_touch_pages(m->base, m->bytes) ? ZERO_ERR_MEMORY : ZERO_OK;
}

/* Ranks in separate containers share memory only through MPI. Your code gets a writable view,
   because a window has no second mapping. */
static zero_result zp_mpi_open_window_memory(zp_comm *g, zp_memory *m) {
    int failed = -1;
    const zero_result r = zp_mpi_open_window(g, m);
    if (r && r != ZERO_ERR_MEMORY) return r;
    ZP_TRY(zp_comm_agree(g, !r, &failed)); /* all nodes; no rank reads before all is cleared */
    if (failed < 0) return ZERO_OK;
    zp_mpi_free_window(m);
    char text[ZP_RANK_TEXT];
    return zp_comm_fail(g, ZERO_ERR_MEMORY,
                        "%s could not allocate %zu bytes in an MPI shared window: is its machine's "
                        "/dev/shm too small?",
                        zp_board_print_rank(g, failed, text), m->bytes);
}

/* Tries memory files first: they need no room in /dev/shm, and each rank frees them alone. */
static zero_result zp_mpi_open_memory(zp_comm *g, zp_memory *m) {
    const zero_result r = zp_process_open_memory(g, m);
    const int other = g->nranks > 1 && (r == ZERO_ERR_MEMORY || r == ZERO_ERR_UNSUPPORTED);
    return other ? zp_mpi_open_window_memory(g, m) : r;
}

/* A message in flight. Its envelope is sent first, so that a peer that expects another message gets
   an error. The data follows in small pieces, as in zp_mpi_nodes_exchange. The sender sends `most`
   pieces at once; for more it waits for one word, with which the receiver reports that it is ready.
   So pieces do not fill the memory of a peer that is late.

       sender     envelope, piece 0 .. most - 1 |          piece most, most + 1 ..
       receiver                        envelope | word     each after an earlier one has arrived */
enum { ZP_ENVELOPE_TAG = 1, ZP_MESSAGE_TAG, ZP_WORD_TAG };
#define ZP_MESSAGE_PIECE (ZP_CROSS_NUMEL * sizeof(float))
typedef struct zp_mpi_moving {
    zp_envelope envelope; /* that is sent, or has arrived */
    MPI_Request head, word, piece[ZP_CROSSINGS];
    size_t pieces, begun, ended; /* all pieces; those given to MPI; those that have moved */
    int headed, acked, done;     /* the envelope, the word, the whole message has moved */
    int before; /* 1 + the previous message between the same ranks in this direction */
} zp_mpi_moving;

/* Returns the most messages of a zero_group: those of a list, or two for each of its n ranks. */
static size_t zp_mpi_most_messages(size_t n) { return zp_max(ZP_MESSAGES, 2 * n); }
static size_t zp_mpi_most_pieces(const zp_swap *x) {
    return zp_mpi_nodes_in_flight(x->group->nranks);
}

/* Begins to send to the message's peer, or to receive from it. */
static zero_result zp_mpi_begin(const zp_swap *x, int peer, int sends, int tag, void *data,
                                size_t bytes, MPI_Request *request) {
    const MPI_Comm comm = zp_mpi_nodes_of(x->group)->comm[ZP_GRADIENTS];
    const int n = (int)bytes;
    return zp_mpi_nodes_check(x->group,
                              sends ? MPI_Isend(data, n, MPI_BYTE, peer, tag, comm, request)
                                    : MPI_Irecv(data, n, MPI_BYTE, peer, tag, comm, request),
                              sends ? "MPI_Isend" : "MPI_Irecv");
}

static zero_result zp_mpi_begin_message(const zp_swap *x, int i) {
    const zero_message *m = &x->list[i];
    zp_mpi_moving *w = &zp_mpi_nodes_of(x->group)->moving[i];
    const zp_envelope mine = {x->call, x->number, m->bytes};
    int *last = &zp_mpi_nodes_of(x->group)->last[2 * m->peer + !m->sends];
    memset(w, 0, sizeof *w);
    w->before = *last;
    *last = i + 1;
    w->envelope = mine;
    w->pieces = (m->bytes + ZP_MESSAGE_PIECE - 1) / ZP_MESSAGE_PIECE;
    w->acked = w->pieces <= zp_mpi_most_pieces(x);
    ZP_TRY(
        zp_mpi_begin(x, m->peer, m->sends, ZP_ENVELOPE_TAG, &w->envelope, sizeof mine, &w->head));
    if (!m->sends || w->acked) return ZERO_OK;
    return zp_mpi_begin(x, m->peer, 0, ZP_WORD_TAG, NULL, 0, &w->word);
}

/* Moves a message's envelope and word. *moved becomes 1 if one of them has moved. */
static zero_result zp_mpi_match_message(const zp_swap *x, const zero_message *m, zp_mpi_moving *w,
                                        int *moved) {
    zp_comm *g = x->group;
    const zp_envelope mine = {x->call, x->number, m->bytes};
    const int headed = w->headed, acked = w->acked;
    if (!headed) ZP_MPI(g, MPI_Test(&w->head, &w->headed, MPI_STATUS_IGNORE));
    if (!headed && w->headed && !m->sends) {
        ZP_TRY(zp_message_compare(g, m->peer, &w->envelope, &mine));
        if (!acked) ZP_TRY(zp_mpi_begin(x, m->peer, 1, ZP_WORD_TAG, NULL, 0, &w->word));
    }
    if (!acked && (m->sends || w->headed))
        ZP_MPI(g, MPI_Test(&w->word, &w->acked, MPI_STATUS_IGNORE));
    *moved |= headed != w->headed || acked != w->acked;
    return ZERO_OK;
}

/* Advances a message as far as possible. */
static zero_result zp_mpi_advance_message(const zp_swap *x, const zero_message *m, zp_mpi_moving *w,
                                          int *moved) {
    const size_t most = zp_mpi_most_pieces(x);
    int over = 1;
    ZP_TRY(zp_mpi_match_message(x, m, w, moved));
    if (!w->headed && !m->sends) return ZERO_OK;
    while (w->ended < w->begun && over) {
        ZP_MPI(x->group, MPI_Test(&w->piece[w->ended % most], &over, MPI_STATUS_IGNORE));
        w->ended += over != 0;
        *moved |= over;
    }
    const size_t ahead = m->sends && !w->acked ? most : w->ended + most;
    for (; w->begun < zp_min(w->pieces, ahead); w->begun++, *moved = 1) {
        const size_t at = w->begun * ZP_MESSAGE_PIECE;
        ZP_TRY(zp_mpi_begin(x, m->peer, m->sends, ZP_MESSAGE_TAG, (char *)m->data + at,
                            zp_min(ZP_MESSAGE_PIECE, m->bytes - at), &w->piece[w->begun % most]));
    }
    w->done = w->headed && w->acked && w->ended == w->pieces;
    return ZERO_OK;
}

/* Advances all messages, one at a time between two ranks in one direction. *left becomes a message
   that is not done, or -1. */
static zero_result zp_mpi_advance_messages(const zp_swap *x, int *left, int *moved) {
    zp_mpi_moving *w = zp_mpi_nodes_of(x->group)->moving;
    zero_result r = ZERO_OK;
    *left = -1;
    for (int i = 0; i < x->n; i++) {
        const int first = !w[i].done && (!w[i].before || w[w[i].before - 1].done);
        const zero_result one =
            first ? zp_mpi_advance_message(x, &x->list[i], &w[i], moved) : ZERO_OK;
        if (one && !r) r = one;
        if (!w[i].done) *left = i;
    }
    return r;
}

static zero_result zp_mpi_exchange_messages(zp_stream *s, const zp_swap *x) {
    zp_comm *g = x->group;
    zp_mpi_moving *w = zp_mpi_nodes_of(g)->moving;
    double since = zp_seconds(), pace = 0; /* since: when a message last moved */
    int left = 0;
    zero_result r = ZERO_OK;
    memset(zp_mpi_nodes_of(g)->last, 0, 2 * (size_t)g->nranks * sizeof(int));
    for (int i = 0; i < x->n && !r; i++) r = zp_mpi_begin_message(x, i);
    for (int spin = 0; left >= 0 && !r; spin++) {
        int moved = 0;
        r = zp_mpi_advance_messages(x, &left, &moved);
        if (r || left < 0 || (spin < 64 && !moved && zp_mpi_nodes_spins(pace))) continue;
        const double now = zp_seconds();
        if (moved) {
            pace = zp_mpi_nodes_next_pace(pace, now - since);
            since = now;
            spin = 0;
            continue;
        }
        r = zp_mpi_nodes_check_abort(g);
        if (!r && now - since > g->timeout_s)
            r = zp_board_report_timeout(g, x->call.kind, x->list[left].peer);
        if (spin > 256 || !zp_mpi_nodes_spins(pace)) /* spin first: a layer may be short */
            zp_nap_for(zp_mpi_nodes_nap_seconds(pace, 0));
    }
    for (int i = 0; i < x->n && r; i++) /* MPI must no longer write to your buffers */
        for (; !x->list[i].sends && w[i].ended < w[i].begun; w[i].ended++)
            (void)MPI_Cancel(&w[i].piece[w[i].ended % zp_mpi_most_pieces(x)]);
    if (r) zp_mpi_nodes_of(g)->abandoned = 1;
    return r;
}

/* Splits the communicator. The part owns the new one until its last group or context is closed. */
static zero_result zp_mpi_make_part(zp_comm *of, const zp_cut *cut, zero_comm *part) {
    const zero_comm none = {ZERO_COMM_MPI, 0, NULL, 0};
    const int colour = cut->part < 0 ? MPI_UNDEFINED : cut->part;
    MPI_Comm *comm = (MPI_Comm *)malloc(sizeof *comm);
    int failed = -1;
    *part = none;
    ZP_TRY(zp_comm_agree(of, comm != NULL, &failed));
    if (!comm || failed >= 0) {
        free(comm);
        return zp_comm_fail(of, ZERO_ERR_MEMORY, "rank %d has no memory for a group", failed);
    }
    const int code = MPI_Comm_split(zp_mpi_nodes_of(of)->comm[ZP_CONTROL], colour, cut->rank, comm);
    if (code == MPI_SUCCESS && colour != MPI_UNDEFINED)
        part->handle = comm;
    else
        free(comm);
    return zp_mpi_nodes_check(of, code, "MPI_Comm_split");
}
static size_t zp_mpi_bytes_of_parts(const zp_comm *of, int parts, int n, int swaps) {
    const size_t board = zp_round_up(sizeof(zp_board), 4096);
    return (size_t)(1 + n) * sizeof(zp_received)
           + (swaps ? board + zp_mpi_most_messages((size_t)n) * sizeof(zp_mpi_moving)
                    : board / zp_board_ranks_of(of)->n);
}
static void zp_mpi_free_part(zero_comm *part, int broken) {
    int ended = 0;
    if (!part->handle || MPI_Finalized(&ended) || ended || broken)
        return; /* the process keeps it */
    (void)MPI_Comm_free((MPI_Comm *)part->handle);
    free(part->handle);
}

/* A rank's description of its node, which is identified by its lowest rank, `first`. */
typedef struct zp_node {
    int ranks, first, place, asked;
} zp_node;

/* Fails on all ranks if one rank lacks memory; if it failed alone, its peers would wait. */
static zero_result zp_mpi_check_all(zp_comm *g, MPI_Comm comm, int mine, const char *what) {
    int all = 0;
    ZP_MPI(g, MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, comm));
    if (all) return ZERO_OK;
    return zp_comm_fail(g, ZERO_ERR_MEMORY, "%s%s", what, mine ? " of another rank" : "");
}

/* Finds this rank's node: the ranks of its machine, or a group of node_size of them. */
static zero_result zp_mpi_find_node(zp_comm *g, zp_node *mine) {
    zp_mpi *m = zp_mpi_nodes_of(g);
    MPI_Comm machine;
    ZP_MPI(g, MPI_Comm_split_type(m->comm[ZP_CONTROL], MPI_COMM_TYPE_SHARED, g->rank, MPI_INFO_NULL,
                                  &machine));
    const int colour = mine->asked ? g->rank / mine->asked : 0;
    const int code = MPI_Comm_split(machine, colour, g->rank, &m->on_node);
    (void)MPI_Comm_free(&machine);
    ZP_MPI(g, code);
    ZP_MPI(g, MPI_Comm_set_errhandler(m->on_node, MPI_ERRORS_RETURN));
    ZP_MPI(g, MPI_Comm_size(m->on_node, &mine->ranks));
    ZP_MPI(g, MPI_Comm_rank(m->on_node, &mine->place));
    ZP_MPI(g, MPI_Bcast(&mine->first, 1, MPI_INT, 0, m->on_node));
    return ZERO_OK;
}

/* Checks that all nodes have the same number of ranks: node_size, if that is set. */
static zero_result zp_mpi_check_even_nodes(zp_comm *g, const zp_node *all, int node_size) {
    const int n = all->ranks, nodes = g->nranks / n;
    for (int r = 0; r < g->nranks; r++)
        if (all[r].asked != all->asked)
            return zp_comm_fail(g, ZERO_ERR_MISMATCH,
                                "comm.node_size is %d on rank 0, %d on rank %d", all->asked,
                                all[r].asked, r);
    for (int r = 0; r < g->nranks; r++) {
        if (all[r].ranks != n || n > ZP_LOCAL_MAX)
            return zp_comm_fail(
                g, ZERO_ERR_ARGUMENT,
                "nodes of %d ranks (rank 0) and of %d (rank %d): every node needs the same number, "
                "at most %d; launch as many ranks on every machine, or set comm.node_size",
                n, all[r].ranks, r, ZP_LOCAL_MAX);
        if (node_size && n != node_size)
            return zp_comm_fail(
                g, ZERO_ERR_ARGUMENT,
                "comm.node_size is %d, but rank %d shares memory with only %d of those "
                "ranks: a node must be on one machine",
                node_size, r, n);
    }
    if (nodes <= ZP_LOCAL_MAX || g->swaps) return ZERO_OK;
    return zp_comm_fail(g, ZERO_ERR_UNSUPPORTED, "%d %ss in nodes of %d are %d nodes, at most %d",
                        g->nranks, zp_comm_rank_word(g), n, nodes, ZP_LOCAL_MAX);
}

/* Numbers the nodes in the order of their lowest ranks, and finds this rank's place. */
static zero_result zp_mpi_find_nodes(zp_comm *g, int node_size) {
    zp_mpi *m = zp_mpi_nodes_of(g);
    zp_node mine = {0, g->rank, 0, node_size};
    const zp_node *all = (const zp_node *)(const void *)g->mail;
    const zp_op op = zp_comm_host_op(g, ZP_EXCHANGE, -1, sizeof mine);
    ZP_TRY(zp_comm_check_node_size(g, node_size));
    ZP_TRY(zp_mpi_find_node(g, &mine));
    ZP_TRY(zp_mpi_exchange(&op, &mine));
    ZP_TRY(zp_mpi_check_even_nodes(g, all, node_size));
    g->node_size = m->ranks.n = mine.ranks;
    m->ranks.me = mine.place;
    int *number = m->last; /* indexed by a node's lowest rank, which comes first */
    for (int r = 0; r < g->nranks; r++) {
        if (all[r].first == r) number[r] = m->nnodes++;
        const int at = number[all[r].first] * mine.ranks + all[r].place;
        m->node_rank[at] = r;
        g->interleaved |= r != at;
    }
    m->node = number[mine.first];
    for (int p = 0; p < m->ranks.n; p++)
        m->ranks.rank_of[p] = m->node_rank[m->node * mine.ranks + p];
    return ZERO_OK;
}

static zero_result zp_mpi_check_running(zp_comm *g, const zero_comm *given) {
    int level = 0, started = 0, ended = 0;
    if (!given->handle)
        return zp_comm_fail(g, ZERO_ERR_ARGUMENT, "comm.handle is NULL: an MPI_Comm * is needed");
    if (MPI_Initialized(&started) || MPI_Finalized(&ended) || !started || ended)
        return zp_comm_fail(
            g, ZERO_ERR_COMM,
            "MPI is not running: call MPI_Init_thread with MPI_THREAD_MULTIPLE first");
    ZP_MPI(g, MPI_Query_thread(&level));
    if (level >= MPI_THREAD_MULTIPLE) return ZERO_OK;
    return zp_comm_fail(g, ZERO_ERR_COMM,
                        "MPI was started with thread level %d: call MPI_Init_thread with "
                        "MPI_THREAD_MULTIPLE (%d)",
                        level, MPI_THREAD_MULTIPLE);
}

/* Allocates memory for g->nranks ranks. Returns 0 without memory. */
static int zp_mpi_alloc(zp_comm *g) {
    const size_t n = (size_t)g->nranks, messages = g->swaps ? zp_mpi_most_messages(n) : 0;
    if (zp_local_make_ranks(g, sizeof(zp_mpi))) return 0;
    zp_mpi *m = zp_mpi_nodes_of(g);
    m->on_node = MPI_COMM_NULL;
    for (int pass = 0; pass < 2; pass++) { /* measures, then cuts */
        size_t at = 0;
        char *all = m->lists;
        m->received = (zp_received *)zp_cut_memory(all, &at, (1 + n) * sizeof *m->received, 64);
        m->moving = (zp_mpi_moving *)zp_cut_memory(all, &at, messages * sizeof *m->moving, 64);
        m->failure_sends = (MPI_Request *)zp_cut_memory(all, &at, n * sizeof(MPI_Request), 64);
        m->node_rank = (int *)zp_cut_memory(all, &at, n * sizeof(int), 64);
        m->last = (int *)zp_cut_memory(all, &at, 2 * n * sizeof(int), 64);
        if (!pass) m->lists = (char *)calloc(1, at);
        if (!m->lists) return 0;
    }
    return 1;
}

static zero_result zp_mpi_join(zp_comm *g, const zero_comm *given) {
    ZP_TRY(zp_mpi_check_running(g, given));
    const MPI_Comm all = *(MPI_Comm *)given->handle;
    ZP_MPI(g, MPI_Comm_rank(all, &g->rank));
    ZP_MPI(g, MPI_Comm_size(all, &g->nranks));
    ZP_TRY(zp_mpi_check_all(g, all, zp_mpi_alloc(g), "the exchange buffers"));
    zp_mpi *m = zp_mpi_nodes_of(g);
    for (int i = 0; i < ZP_CHANNELS; i++) {
        ZP_MPI(g, MPI_Comm_dup(all, &m->comm[i]));
        ZP_MPI(g, MPI_Comm_set_errhandler(m->comm[i], MPI_ERRORS_RETURN));
    }
    m->joined = 1;
    /* a zero_group only sends messages: each rank is a node of its own */
    ZP_TRY(zp_mpi_find_nodes(g, g->swaps ? 1 : given->node_size));
    const size_t crossings = g->swaps ? 0 : zp_mpi_nodes_in_flight(m->nnodes);
    const size_t wires = 2 * (size_t)(m->nnodes - 1) * crossings;
    g->shared_is_fast = m->nnodes == 1;
    g->wire_bytes = wires * ZP_CROSS_NUMEL * sizeof *m->wire;
    m->wire = (float *)malloc(zp_max(g->wire_bytes, 1));
    ZP_TRY(zp_mpi_check_all(g, m->comm[ZP_CONTROL], m->wire != NULL, "the buffers between nodes"));
    return zp_shared_memory_open_board(g);
}

/* All ranks free windows and communicators, or no rank does. If this rank or a peer has failed, the
   process keeps them and all memory that MPI may still access. Otherwise this waits for all ranks,
   or for the failure of one. Returns 1 if nothing may be freed. */
static int zp_mpi_leaks(zp_comm *g, int broken) {
    zp_mpi *m = zp_mpi_nodes_of(g);
    MPI_Request request;
    int ended = 0, done = 0;
    const double deadline = zp_seconds() + g->timeout_s;
    if (!m->joined) return 0;
    m->abandoned |= MPI_Finalized(&ended) || ended || (broken && m->ranks.board);
    if (m->abandoned || !m->ranks.board) return m->abandoned;
    /* on a channel whose stream is closed: it ends only if no rank has failed */
    m->abandoned = MPI_Ibarrier(m->comm[ZP_PARAMETERS], &request) != MPI_SUCCESS;
    while (!m->abandoned && !done) {
        const int timed_out = zp_seconds() > deadline;
        m->abandoned = MPI_Test(&request, &done, MPI_STATUS_IGNORE)
                       || (!done && (timed_out || zp_mpi_nodes_check_abort(g)));
        if (!done && timed_out) zp_mpi_nodes_abort(g, "it destroyed its context");
        if (!done) zp_nap();
    }
    return m->abandoned;
}

static void zp_mpi_leave(zp_comm *g, int broken) {
    zp_mpi *m = zp_mpi_nodes_of(g);
    if (!m) return;
    if (m->ranks.board) __atomic_store_n(&m->ranks.board->left[m->ranks.me], 1, __ATOMIC_RELEASE);
    if (zp_mpi_leaks(g, broken)) return;
    m->ranks.board = NULL; /* it may be in a window */
    for (zp_memory *p = g->first; p; p = p->next) zp_mpi_free_window(p);
    zp_shared_memory_close(g);
    for (int i = 0; i < ZP_CHANNELS && m->joined; i++) (void)MPI_Comm_free(&m->comm[i]);
    if (m->joined && m->on_node != MPI_COMM_NULL) (void)MPI_Comm_free(&m->on_node);
    free(m->wire);
    free(m->lists);
    free(m);
}

ZP_MESSENGER(zp_mpi_messenger, zp_mpi_exchange_messages, zp_mpi_make_part, zp_mpi_free_part, NULL,
             zp_message_view_part);
ZP_TRANSPORT(zp_mpi_transport, "MPI", zp_mpi_join, NULL, zp_mpi_open_memory, NULL,
             zp_mpi_nodes_issue, zp_mpi_exchange, zp_mpi_broadcast, zp_mpi_nodes_bytes, 0,
             zp_mpi_nodes_abort, zp_mpi_leave, zp_mpi_bytes_of_parts, NULL, &zp_mpi_messenger);
static const zp_transport_row zp_mpi_row = {ZERO_COMM_MPI, &zp_mpi_transport, ""};
#else
static const zp_transport_row zp_mpi_row = {ZERO_COMM_MPI, NULL, ZP_NO_MPI};
#endif

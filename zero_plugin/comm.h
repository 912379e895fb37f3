/* comm.h - how ranks meet, share memory, and communicate

   Ranks of one machine meet on a board in memory that all of them see: one line per rank and
   channel. A collective is: write your line, raise `ready`, wait until all are ready, work, raise
   `done`, wait until all are done. Nobody is a step ahead by more than one, so one line suffices.

     channel GRADIENTS   | rank 0: ready done kind unit shard source target | rank 1: ... |
     channel PARAMETERS  | ...
     channel CONTROL     | ...                        mail: 512 bytes per rank and channel */
#ifndef ZP_COMM_H
#define ZP_COMM_H

#include "kernels.h"

typedef enum zp_op_kind { ZP_EXCHANGE = 1, ZP_REDUCE_SCATTER, ZP_ALL_GATHER, ZP_STAGED } zp_op_kind;
static const char *const zp_op_names[] = {"nothing", "an exchange", "the reduce-scatter",
                                          "the all-gather", "a broadcast"};

typedef struct zp_call { /* what a rank is at */
    int32_t kind, unit;
    uint64_t shard;          /* elements of the unit's shard, or bytes of an exchange */
    uint64_t source, target; /* bytes from the rank's region: what it gives, where it gathers */
} zp_call;

typedef struct zp_line {
    uint32_t ready, done; /* collectives that this rank has come to, and ended */
    zp_call call;
    unsigned char pad[24];
} zp_line;
static_assert(sizeof(zp_line) == 64, "a line of the board is a cache line");

/* Memory of threads belongs to the board that its ranks share, and a board to its group: a rank
   that failed must not pull memory from under a peer that still reads, and who failed within an
   exchange cannot tell which peers it has reached. */
typedef struct zp_hold {
    struct zp_hold *next;
    void *memory;
    int on_host;
} zp_hold;

typedef struct zp_board {
    zp_line lines[ZP_CHANNELS][ZP_LOCAL_MAX]; /* first: a board begins on a cache line */
    uint32_t aborted;
    int32_t abort_claimed, abort_rank;
    uint32_t left[ZP_LOCAL_MAX]; /* by place: this rank has destroyed its context */
    uint32_t users; /* threads: ranks that have not closed the board; the last one frees it */
    zp_hold *self, *pieces; /* threads: the board's own memory, and that of its regions */
    char abort_text[ZP_TEXT_BYTES];
    unsigned char mail[ZP_CHANNELS][ZP_LOCAL_MAX][ZP_MAIL_BYTES];
#ifdef __CUDACC__
    /* by place: its stream has come to the collective, and is done with it */
    zp_event arrived[ZP_CONTROL][ZP_LOCAL_MAX], departed[ZP_CONTROL][ZP_LOCAL_MAX];
#endif
} zp_board;

struct zero_local {
    int nranks, shared;
    int placed; /* in memory that is the caller's */
    pid_t maker;
    zp_board board;  /* where contexts are made; each then has a board of its own */
    zp_hold *boards; /* threads: those boards; what a failed join left behind goes with the group */
    uint32_t seq[ZP_LOCAL_MAX]; /* collectives on `board` so far; each rank touches its own */
};

static void zp_board_abort(zp_board *b, int rank, const char *why) {
    if (__atomic_exchange_n(&b->abort_claimed, 1, __ATOMIC_ACQ_REL)) return;
    b->abort_rank = rank;
    size_t n = 0; /* no library call: this may run in a signal handler */
    while (why[n] && n + 1 < sizeof b->abort_text) {
        b->abort_text[n] = why[n];
        n++;
    }
    b->abort_text[n] = 0;
    __atomic_store_n(&b->aborted, 1, __ATOMIC_RELEASE);
}

__attribute__((unused)) static void zp_nap(void) {
    const struct timespec t = {0, 50000};
    nanosleep(&t, NULL);
}

/* Sleeps until *word may have changed, at most 20 ms: aborts and time-outs are looked for then. */
static void zp_sleep_on(uint32_t *word, uint32_t seen) {
#ifdef __linux__
    const struct timespec t = {0, 20000000};
    (void)syscall(SYS_futex, word, FUTEX_WAIT, seen, &t, NULL, 0);
#else
    (void)word;
    (void)seen;
    zp_nap();
#endif
}

static void zp_raise(uint32_t *word, uint32_t value) {
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
#ifdef __linux__
    (void)syscall(SYS_futex, word, FUTEX_WAKE, 0x7fffffff, NULL, NULL, 0);
#endif
}

/* =============================================================================================
   [SECTION] regions
   Memory of one rank that the ranks of its machine can read: of threads it is ordinary memory, of
   processes a memory file that the peers map through /proc, else an MPI shared window. A region may
   also be one piece that all ranks see in place (`single`), each owning parts of it.
   ============================================================================================= */

/* Own memory; a hold's, shared by threads; memory files; an MPI window; NCCL's. */
typedef enum zp_kind { ZP_NONE = 0, ZP_OWN, ZP_HELD, ZP_FILES, ZP_WINDOW, ZP_NCCL } zp_kind;

typedef struct zp_region {
    size_t bytes;             /* of one rank's piece */
    int single;               /* one piece for all, made by place 0 */
    char *base[ZP_LOCAL_MAX]; /* by place; all equal if single */
#ifdef ZERO_WITH_MPI
    MPI_Win window;
#endif
#ifdef ZERO_WITH_NCCL
    void *handle; /* of its registration */
    int window;   /* it is that of a window */
    int channel;  /* whose communicator knows of it */
#endif
    int on_host; /* CUDA: memory of the host, which devices reach */
    zp_kind kind;
} zp_region;

static void *zp_region_alloc(zp_device *d, size_t bytes, int on_host) {
    return on_host ? zp_host_alloc(bytes) : zp_device_alloc(d, bytes);
}
static void zp_region_free(void *p, int on_host) {
    if (on_host)
        zp_host_free(p);
    else
        zp_device_free(p);
}

/* Memory on a list that all ranks of it may add to. */
static zp_hold *zp_hold_make(zp_hold **list, zp_device *d, size_t bytes, int on_host) {
    zp_hold *h = (zp_hold *)malloc(sizeof *h);
    void *memory = h ? zp_region_alloc(d, bytes, on_host) : NULL;
    if (!memory) {
        free(h);
        return NULL;
    }
    h->memory = memory;
    h->on_host = on_host;
    h->next = __atomic_load_n(list, __ATOMIC_ACQUIRE);
    while (!__atomic_compare_exchange_n(list, &h->next, h, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    }
    return h;
}

static void zp_hold_free(zp_hold *h) {
    while (h) {
        zp_hold *next = h->next;
        zp_region_free(h->memory, h->on_host);
        free(h);
        h = next;
    }
}

/* A rank is done with a board of threads. The last one frees all memory of its ranks. */
static void zp_board_close(zp_board *b) {
    if (__atomic_sub_fetch(&b->users, 1, __ATOMIC_ACQ_REL)) return;
    zp_hold *self = b->self; /* stays in the group's list, empty */
#ifdef __CUDACC__
    for (int i = 0; i < ZP_CONTROL * ZP_LOCAL_MAX; i++) {
        zp_event_close(&b->arrived[0][0] + i);
        zp_event_close(&b->departed[0][0] + i);
    }
#endif
    zp_hold_free(b->pieces);
    zp_host_free(b);
    self->memory = NULL;
}

#ifdef __linux__
/* What a place tells the others about its piece. */
typedef struct zp_piece {
    int64_t pid, fd, inode;
} zp_piece;

static char *zp_map_file(int fd, size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) return NULL;
#ifdef MADV_HUGEPAGE
    (void)madvise(p, bytes, MADV_HUGEPAGE);
#endif
    return (char *)p;
}

static int zp_file_make(size_t bytes) {
    const int fd = (int)syscall(SYS_memfd_create, "zero", 1u /* close on exec */);
    if (fd >= 0 && ftruncate(fd, (off_t)bytes)) {
        (void)close(fd);
        return -1;
    }
    return fd;
}

static int64_t zp_file_inode(int fd) {
    struct stat s;
    return fd >= 0 && !fstat(fd, &s) ? (int64_t)s.st_ino : -1;
}

/* NULL where the peer cannot be seen: its number may mean another process here (containers). */
static char *zp_map_peer(const zp_piece *piece, size_t bytes) {
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)piece->pid,
                   (long long)piece->fd);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    char *p = fd >= 0 && zp_file_inode(fd) == piece->inode ? zp_map_file(fd, bytes) : NULL;
    if (fd >= 0) (void)close(fd);
    return p;
}
#endif

/* =============================================================================================
   [SECTION] communicators
   One contract for all kinds. Collectives of a channel are issued by one stream, in the same order
   on all ranks. When one has ended here, its output is there and its input may be written again.
     reduce-scatter  out[i] (+)= scale * sum over ranks of source[rank * shard + i], in f32, inside
                     a node in rank order, then over nodes in node order
     all-gather      target[r * shard + i] = rank r's source[i], for all other ranks r; a rank's own
                     part is in place already
     exchange        up to 512 bytes of every rank to every rank
     broadcast, barrier
   LOCAL reads straight from the peers' memory. MPI does the same inside a node; between nodes each
   rank talks to the rank of the same place, so a link carries what a ring would.
   ============================================================================================= */

#ifdef ZERO_WITH_NCCL
/* A group of collectives that was issued, and is watched until its stream has passed it. */
typedef struct zp_watched {
    zp_event ended;
    int kind, unit; /* of its first */
    double since;
} zp_watched;

#define ZP_WATCHED ((size_t)256) /* on their way at once; the host waits for the oldest then */

/* NCCL: two communicators split off the caller's, and a thread that looks after them, since who
   waits for a stream cannot. It aborts both when one reports an error or a rank stays away; then
   their kernels end, and every later call reports the failure. The lock is held during NCCL's
   calls; one that does not come back is ended by the abort as well. */
typedef struct zp_nccl {
    ncclComm_t comm[ZP_CONTROL]; /* of gradients, of parameters and all else */
    int version, ordered;        /* ordered: NCCL launches in the host's order by itself */
    int made, watching, stop, aborted;
    ncclResult_t status; /* of the group that is open */
    pthread_mutex_t lock;
    pthread_t thread;
    zp_watched ring[ZP_CONTROL][ZP_WATCHED];
    size_t head[ZP_CONTROL], tail[ZP_CONTROL]; /* groups ended, groups issued */
    cudaStream_t last[ZP_CONTROL];             /* of the newest group */
    double moved[ZP_CONTROL];                  /* when a group ended last */
    char *scratch, *pinned; /* of exchanges and broadcasts, on the device and the host */
} zp_nccl;
#endif

typedef struct zp_comm {
    zero_comm_kind kind;
    int rank, nranks;
    int n, me;                 /* ranks that share memory with this one, and this one's place */
    int rank_of[ZP_LOCAL_MAX]; /* places -> ranks */
    int node_size;             /* ranks whose gradients are summed first */
    int shares;                /* the ranks of a node can see one another's memory */
    zp_device *device;
    float divisor; /* what a sum over the ranks is still to be divided by: NCCL's is a sum */
    zero_local *group;
    zp_board *board;
    zp_region board_region, stage; /* stage: [ZP_STAGE_NUMEL] f32 to stream through */
    uint32_t seq[ZP_CHANNELS];
    zp_failure failure;
    double timeout_s;
    char *mail;             /* [nranks * ZP_MAIL_BYTES] control channel's received exchange */
    size_t allocated_bytes; /* of regions; of a single one, this rank's share */
    uint64_t sent_bytes, mapped_bytes, reductions, gathers; /* counted where issued */
#ifdef ZERO_WITH_MPI
    MPI_Comm mpi[ZP_CHANNELS], mpi_node;
    int mpi_made;
    int nnodes, node;
    int *node_rank; /* [nnodes * node_size] ranks by node and place in it */
    float *wire;    /* between nodes: [crossings][nnodes - 1][2][ZP_CROSS_NUMEL] */
    char *landing;  /* [ZP_CHANNELS][1 + nranks][ZP_LANDING]: given and got in an exchange */
    MPI_Request *abort_sent; /* [nranks] */
    int told;                /* the other nodes know that this rank failed */
    int abandoned; /* a request was given up, or a peer: what MPI may touch is never freed */
#endif
#ifdef ZERO_WITH_NCCL
    zp_nccl nccl;
#endif
} zp_comm;

/* Before a context has a board of its own, its ranks meet on their group's. */
static zp_board *zp_comm_board(const zp_comm *c) { return c->board ? c->board : &c->group->board; }

/* Another rank has failed, or the group's launcher said so. */
static zero_result zp_comm_aborted(zp_comm *c) {
    const zp_board *boards[2] = {c->board, c->group ? &c->group->board : NULL};
    for (int i = 0; i < 2; i++)
        if (boards[i] && __atomic_load_n(&boards[i]->aborted, __ATOMIC_ACQUIRE))
            return boards[i]->abort_rank < 0
                       ? zp_failure_set(&c->failure, ZERO_ERR_PEER, "%s", boards[i]->abort_text)
                       : zp_failure_set(&c->failure, ZERO_ERR_PEER, "rank %d failed: %s",
                                        (int)boards[i]->abort_rank, boards[i]->abort_text);
    return ZERO_OK;
}

static zero_result zp_await(zp_comm *c, uint32_t *word, uint32_t value, int peer,
                            const char *what) {
    double deadline = 0;
    for (int spin = 0;; spin++) {
        const uint32_t seen = __atomic_load_n(word, __ATOMIC_ACQUIRE);
        if ((int32_t)(seen - value) >= 0) return ZERO_OK;
        if (spin < 64) continue;
        ZP_TRY(zp_comm_aborted(c));
        if (__atomic_load_n(&zp_comm_board(c)->left[peer], __ATOMIC_ACQUIRE)) {
            if ((int32_t)(__atomic_load_n(word, __ATOMIC_ACQUIRE) - value) >= 0) return ZERO_OK;
            return zp_failure_set(&c->failure, ZERO_ERR_PEER,
                                  "rank %d destroyed its context before %s", c->rank_of[peer],
                                  what);
        }
        const double now = zp_seconds();
        if (deadline == 0) deadline = now + c->timeout_s;
        if (now > deadline) {
            char text[ZP_TEXT_BYTES];
            (void)snprintf(text, sizeof text, "rank %d did not come to %s within %g s",
                           c->rank_of[peer], what, c->timeout_s);
            zp_board_abort(zp_comm_board(c), c->rank, text);
            return zp_failure_set(&c->failure, ZERO_ERR_TIMEOUT, "%s", text);
        }
        zp_sleep_on(word, seen);
    }
}

/* Comes to the channel's next collective and waits for the others; they must have come to the same
   one. */
static zero_result zp_meet(zp_comm *c, zp_channel channel, const zp_call *mine) {
    zp_line *lines = zp_comm_board(c)->lines[channel];
    const uint32_t seq = ++c->seq[channel];
    lines[c->me].call = *mine;
    zp_raise(&lines[c->me].ready, seq);
    for (int p = 0; p < c->n; p++) {
        if (p == c->me) continue;
        ZP_TRY(zp_await(c, &lines[p].ready, seq, p, zp_op_names[mine->kind]));
        const zp_call *his = &lines[p].call;
        if (his->kind == mine->kind && his->unit == mine->unit && his->shard == mine->shard)
            continue;
        return zp_failure_set(
            &c->failure, ZERO_ERR_MISMATCH,
            "rank %d is at %s of unit %d (%llu), rank %d at %s of unit %d (%llu): "
            "all ranks must call the same hooks in the same order",
            c->rank_of[p], zp_op_names[his->kind], (int)his->unit, (unsigned long long)his->shard,
            c->rank, zp_op_names[mine->kind], (int)mine->unit, (unsigned long long)mine->shard);
    }
    return ZERO_OK;
}

/* Ends it, and waits until all have. */
static zero_result zp_part(zp_comm *c, zp_channel channel) {
    zp_line *lines = zp_comm_board(c)->lines[channel];
    const uint32_t seq = c->seq[channel];
    zp_raise(&lines[c->me].done, seq);
    for (int p = 0; p < c->n; p++)
        if (p != c->me)
            ZP_TRY(zp_await(c, &lines[p].done, seq, p, zp_op_names[lines[c->me].call.kind]));
    return ZERO_OK;
}

/* Every rank's `bytes` (<= ZP_MAIL_BYTES) become all[0..n), in order of places. */
static zero_result zp_board_exchange(zp_comm *c, zp_channel channel, const void *mine, size_t bytes,
                                     void *all) {
    const zp_call call = {ZP_EXCHANGE, 0, bytes, 0, 0};
    unsigned char(*mail)[ZP_MAIL_BYTES] = zp_comm_board(c)->mail[channel];
    memcpy(mail[c->me], mine, bytes);
    ZP_TRY(zp_meet(c, channel, &call));
    for (int p = 0; p < c->n; p++) memcpy((char *)all + (size_t)p * bytes, mail[p], bytes);
    return zp_part(c, channel);
}

#ifdef ZERO_WITH_MPI
static zero_result zp_mpi(zp_comm *c, int code, const char *call) {
    char text[MPI_MAX_ERROR_STRING];
    int n = 0;
    if (code == MPI_SUCCESS) return ZERO_OK;
    if (MPI_Error_string(code, text, &n) != MPI_SUCCESS) n = 0;
    text[n] = 0;
    return zp_failure_set(&c->failure, ZERO_ERR_COMM, "%s: %s", call, text);
}
#define ZP_MPI(c, call) ZP_TRY(zp_mpi(c, call, #call))

/* A rank's part of an exchange, behind a zp_head. */
#define ZP_LANDING   ((size_t)ZP_MAIL_BYTES + 16)
#define ZP_ABORT_TAG 1 /* on the control channel, where there are no other messages */

/* Another rank has failed: on this node, or on another that sent word of it. */
static zero_result zp_mpi_aborted(zp_comm *c) {
    char text[ZP_TEXT_BYTES];
    MPI_Message message;
    MPI_Status status;
    int found = 0;
    if (!c->board) return ZERO_OK; /* in zero_create: a rank that sends word has been through it */
    ZP_TRY(zp_comm_aborted(c));
    ZP_MPI(c, MPI_Improbe(MPI_ANY_SOURCE, ZP_ABORT_TAG, c->mpi[ZP_CONTROL], &found, &message,
                          &status));
    if (!found) return ZERO_OK;
    ZP_MPI(c, MPI_Mrecv(text, (int)sizeof text, MPI_BYTE, &message, &status));
    text[sizeof text - 1] = 0;
    zp_board_abort(c->board, status.MPI_SOURCE, text);
    return zp_failure_set(&c->failure, ZERO_ERR_PEER, "rank %d failed: %s", status.MPI_SOURCE,
                          text);
}

/* Tells the ranks of the other nodes, if it was this rank that failed first on its node. Gives up
   after a second: who cannot be reached runs into its time limit. */
static void zp_mpi_tell(zp_comm *c) {
    char *text = c->landing + (size_t)ZP_PARAMETERS * (size_t)(1 + c->nranks) * ZP_LANDING;
    const double deadline = zp_seconds() + 1;
    int n = 0, done = 0;
    static_assert(ZP_TEXT_BYTES <= ZP_LANDING,
                  "that channel has no exchange, its place serves here");
    if (c->n == c->nranks || c->board->abort_rank != c->rank) return;
    if (__atomic_exchange_n(&c->told, 1, __ATOMIC_ACQ_REL)) return;
    memcpy(text, c->board->abort_text, ZP_TEXT_BYTES);
    for (int r = 0; r < c->nranks; r++) {
        int here = 0;
        for (int p = 0; p < c->n; p++) here |= c->rank_of[p] == r;
        if (here) continue;
        if (MPI_Isend(text, ZP_TEXT_BYTES, MPI_BYTE, r, ZP_ABORT_TAG, c->mpi[ZP_CONTROL],
                      &c->abort_sent[n]))
            break;
        n++;
    }
    while (!done && zp_seconds() < deadline) {
        done = 1;
        for (int i = 0, one = 0; i < n; i++, one = 0)
            done &= MPI_Test(&c->abort_sent[i], &one, MPI_STATUS_IGNORE) == MPI_SUCCESS && one;
        if (!done) zp_nap();
    }
    if (!done) c->abandoned = 1;
}

/* What a message between nodes is for, in its tag: a peer that is elsewhere is found. */
#define ZP_TAGS 16384 /* units that tags tell apart; MPI promises tags up to 32767 */
static int zp_mpi_tag(int kind, int unit) { return 2 * (unit % ZP_TAGS) + (kind == ZP_ALL_GATHER); }
static const char *zp_mpi_tag_name(int tag) {
    return zp_op_names[tag & 1 ? ZP_ALL_GATHER : ZP_REDUCE_SCATTER];
}

/* The rank of this rank's place on another node. */
static int zp_comm_counterpart(const zp_comm *c, int node) {
    return c->node_rank[node * c->node_size + c->me];
}

/* What went wrong with requests, in words. tag: pairs of requests, the first of each receives. */
static zero_result zp_mpi_wrong(zp_comm *c, int code, const MPI_Status *statuses, int n, int tag) {
    for (int i = 0; i < n && tag >= 0; i += 2) {
        const int other = statuses[i].MPI_TAG;
        if (other == tag || (code == MPI_ERR_IN_STATUS && statuses[i].MPI_ERROR == MPI_ERR_PENDING))
            continue;
        return zp_failure_set(
            &c->failure, ZERO_ERR_MISMATCH,
            "rank %d is at %s of unit %d, rank %d at %s of unit %d: all ranks must call the same "
            "hooks in the same order",
            statuses[i].MPI_SOURCE, zp_mpi_tag_name(other), other / 2, c->rank,
            zp_mpi_tag_name(tag), tag / 2);
    }
    for (int i = 0; i < n && code == MPI_ERR_IN_STATUS; i++)
        if (statuses[i].MPI_ERROR != MPI_SUCCESS && statuses[i].MPI_ERROR != MPI_ERR_PENDING)
            return zp_mpi(c, statuses[i].MPI_ERROR, "MPI_Testall");
    return zp_mpi(c, code, "MPI_Testall");
}

static zero_result zp_mpi_late(zp_comm *c, MPI_Request *requests, int n, int tag,
                               const char *what) {
    int arrived = 1, i = 0;
    for (; i < n && tag >= 0; i += 2) {
        if (MPI_Request_get_status(requests[i], &arrived, MPI_STATUS_IGNORE) || !arrived) break;
    }
    const int node = i / 2 < c->node ? i / 2 : i / 2 + 1;
    if (arrived)
        (void)zp_failure_set(&c->failure, ZERO_ERR_TIMEOUT, "not all ranks came to %s within %g s",
                             what, c->timeout_s);
    else
        (void)zp_failure_set(&c->failure, ZERO_ERR_TIMEOUT,
                             "rank %d did not come to %s within %g s", zp_comm_counterpart(c, node),
                             what, c->timeout_s);
    if (c->board) zp_board_abort(c->board, c->rank, c->failure.text);
    return ZERO_ERR_TIMEOUT;
}

/* Waits for requests as zp_await does for a peer: aborts and the time limit end it. What is given
   up stays with MPI, so its memory is never freed. */
static zero_result zp_mpi_wait(zp_comm *c, MPI_Request *requests, MPI_Status *statuses, int n,
                               int tag, const char *what) {
    double deadline = 0;
    for (int spin = 0;; spin++) {
        int done = 0;
        const int code = MPI_Testall(n, requests, &done, statuses);
        zero_result r = done || code ? zp_mpi_wrong(c, code, statuses, n, tag) : ZERO_OK;
        if (!r && done) return ZERO_OK;
        if (!r && spin < 64) continue; /* no yield: it would hand the core over for milliseconds */
        if (!r) r = zp_mpi_aborted(c);
        const double now = zp_seconds();
        if (deadline == 0) deadline = now + c->timeout_s;
        if (!r && now > deadline) r = zp_mpi_late(c, requests, n, tag, what);
        if (r) {
            c->abandoned = 1;
            return r;
        }
        zp_nap();
    }
}

/* What a rank is at, in front of what it gives: ranks that called different functions are found. */
typedef struct zp_head {
    int32_t kind, unit;
    uint64_t bytes;
} zp_head;
static_assert(sizeof(zp_head) + ZP_MAIL_BYTES == ZP_LANDING, "a rank's part of an exchange");

/* Every rank's `bytes` to every rank. All exchanges of a channel have one size in MPI's eyes, so
   that ranks that do not agree meet, and are told. */
static zero_result zp_mpi_exchange(zp_comm *c, zp_channel channel, const zp_head *head,
                                   const void *mine, size_t bytes, void *all) {
    char *give = c->landing + (size_t)channel * (size_t)(1 + c->nranks) * ZP_LANDING,
         *got = give + ZP_LANDING;
    const size_t part = channel == ZP_CONTROL ? ZP_LANDING : sizeof *head + bytes;
    MPI_Request request;
    MPI_Status status;
    memcpy(give, head, sizeof *head);
    if (bytes) memcpy(give + sizeof *head, mine, bytes);
    ZP_MPI(c, MPI_Iallgather(give, (int)part, MPI_BYTE, got, (int)part, MPI_BYTE, c->mpi[channel],
                             &request));
    ZP_TRY(zp_mpi_wait(c, &request, &status, 1, -1, zp_op_names[head->kind]));
    for (int r = 0; r < c->nranks; r++) {
        zp_head other;
        memcpy(&other, got + (size_t)r * part, sizeof other);
        if (memcmp(&other, head, sizeof other))
            return zp_failure_set(
                &c->failure, ZERO_ERR_MISMATCH,
                "rank %d is at %s of unit %d (%llu), rank %d at %s of unit %d (%llu): all ranks "
                "must call the same functions in the same order",
                r, zp_op_names[other.kind], (int)other.unit, (unsigned long long)other.bytes,
                c->rank, zp_op_names[head->kind], (int)head->unit, (unsigned long long)head->bytes);
        if (bytes)
            memcpy((char *)all + (size_t)r * bytes, got + (size_t)r * part + sizeof other, bytes);
    }
    return ZERO_OK;
}
#endif

#ifdef ZERO_WITH_NCCL
static zero_result zp_nccl_fail(zp_comm *c, ncclComm_t comm, ncclResult_t r, const char *call) {
    const char *more = comm ? ncclGetLastError(comm) : NULL;
    return zp_failure_set(&c->failure, ZERO_ERR_COMM, "%s: %s%s%s", call, ncclGetErrorString(r),
                          more && *more ? ": " : "", more ? more : "");
}

/* Passes over the groups that have ended. The lock is held. */
static cudaError_t zp_nccl_advance(zp_nccl *n, int ch) {
    while (n->head[ch] < n->tail[ch]) {
        const cudaError_t e = cudaEventQuery(n->ring[ch][n->head[ch] % ZP_WATCHED].ended.cuda);
        if (e != cudaSuccess) {
            (void)cudaGetLastError(); /* not ready is no error */
            return e == cudaErrorNotReady ? cudaSuccess : e;
        }
        n->head[ch]++;
        n->moved[ch] = zp_seconds();
    }
    return cudaSuccess;
}

/* Is one channel well? The lock is held. */
static zero_result zp_nccl_look(zp_comm *c, int ch) {
    zp_nccl *n = &c->nccl;
    ncclResult_t state = ncclSuccess;
    const cudaError_t device = zp_nccl_advance(n, ch);
    const ncclResult_t r = ncclCommGetAsyncError(n->comm[ch], &state);
    const zp_watched *w = &n->ring[ch][n->head[ch] % ZP_WATCHED];
    const int waits = n->head[ch] < n->tail[ch];
    const char *name = waits ? zp_op_names[w->kind] : "nothing";
    if (device != cudaSuccess)
        return zp_failure_set(&c->failure, ZERO_ERR_DEVICE, "at %s of unit %d: %s", name,
                              waits ? w->unit : -1, cudaGetErrorString(device));
    if (r != ncclSuccess || (state != ncclSuccess && state != ncclInProgress))
        return zp_failure_set(&c->failure, ZERO_ERR_COMM, "NCCL, at %s of unit %d: %s (%s)", name,
                              waits ? w->unit : -1, ncclGetErrorString(r ? r : state),
                              ncclGetLastError(n->comm[ch]));
    const double since = waits && w->since > n->moved[ch] ? w->since : n->moved[ch];
    if (waits && zp_seconds() - since > c->timeout_s)
        return zp_failure_set(&c->failure, ZERO_ERR_TIMEOUT,
                              "%s of unit %d was not over within %g s: another rank did not come "
                              "to it, or hangs",
                              name, w->unit, c->timeout_s);
    return ZERO_OK;
}

/* Ends both communicators, and the kernels that wait in them. */
static void zp_nccl_abort(zp_comm *c, int locks) {
    zp_nccl *n = &c->nccl;
    if (locks) pthread_mutex_lock(&n->lock);
    n->aborted = 1;
    for (int ch = 0; ch < ZP_CONTROL; ch++) {
        if (n->comm[ch]) (void)ncclCommAbort(n->comm[ch]);
        n->comm[ch] = NULL;
    }
    if (locks) pthread_mutex_unlock(&n->lock);
}

static void *zp_nccl_watch(void *comm) {
    zp_comm *c = (zp_comm *)comm;
    zp_nccl *n = &c->nccl;
    double held = 0; /* since when the host is inside NCCL */
    (void)cudaSetDevice(c->device->number);
    while (!__atomic_load_n(&n->stop, __ATOMIC_ACQUIRE) && !zp_failure_result(&c->failure)) {
        for (int i = 0; i < 100; i++) zp_nap();
        if (pthread_mutex_trylock(&n->lock)) {
            if (held == 0) held = zp_seconds();
            if (zp_seconds() - held > c->timeout_s)
                (void)zp_failure_set(&c->failure, ZERO_ERR_TIMEOUT,
                                     "a call of NCCL did not return within %g s", c->timeout_s);
            continue;
        }
        held = 0;
        if (!zp_nccl_look(c, ZP_GRADIENTS)) (void)zp_nccl_look(c, ZP_PARAMETERS);
        pthread_mutex_unlock(&n->lock);
    }
    if (zp_failure_result(&c->failure))
        zp_nccl_abort(c, held == 0 || zp_seconds() - held <= c->timeout_s);
    return NULL;
}

/* Waits until a call that was begun has ended on the host. */
static zero_result zp_nccl_settle(zp_comm *c, ncclComm_t comm, ncclResult_t r, const char *call) {
    zp_nccl *n = &c->nccl;
    const double deadline = zp_seconds() + c->timeout_s;
    while (r == ncclInProgress) {
        zp_nap();
        ZP_TRY(zp_failure_result(&c->failure));
        if (zp_seconds() > deadline)
            return zp_failure_set(&c->failure, ZERO_ERR_TIMEOUT,
                                  "%s was not over within %g s: another rank did not come to it",
                                  call, c->timeout_s);
        pthread_mutex_lock(&n->lock);
        const ncclResult_t asked = n->aborted ? ncclSystemError : ncclCommGetAsyncError(comm, &r);
        if (asked != ncclSuccess) r = asked;
        pthread_mutex_unlock(&n->lock);
    }
    ZP_TRY(zp_failure_result(&c->failure));
    return r == ncclSuccess ? ZERO_OK : zp_nccl_fail(c, n->aborted ? NULL : comm, r, call);
}

/* Opens a group of collectives. Those of both communicators run in the order of the host, which is
   the same on all ranks: kernels that wait for one another in two orders would wait for ever. */
static zero_result zp_nccl_begin(zp_comm *c, zp_stream *s, int ch) {
    zp_nccl *n = &c->nccl;
    ZP_TRY(zp_failure_result(&c->failure));
    for (int other = 0; other < ZP_CONTROL; other++) {
        const size_t tail = n->tail[other];
        if (!tail || n->last[other] == s->cuda || (other != ch && n->ordered)) continue;
        ZP_TRY(zp_event_wait(s, &n->ring[other][(tail - 1) % ZP_WATCHED].ended));
    }
    pthread_mutex_lock(&n->lock);
    n->status = n->aborted ? ncclSystemError : ncclGroupStart();
    return ZERO_OK;
}
static void zp_nccl_note(zp_nccl *n, ncclResult_t r) {
    if (n->status == ncclSuccess && r != ncclInProgress) n->status = r;
}
static zero_result zp_nccl_end(zp_comm *c, zp_stream *s, int ch, int kind, int unit) {
    zp_nccl *n = &c->nccl;
    const ncclResult_t ended = n->aborted ? ncclSystemError : ncclGroupEnd();
    const ncclResult_t r = n->status != ncclSuccess ? n->status : ended;
    char text[64];
    pthread_mutex_unlock(&n->lock);
    (void)snprintf(text, sizeof text, "%s of unit %d", zp_op_names[kind], unit);
    ZP_TRY(zp_nccl_settle(c, n->comm[ch], r, text));
    zp_watched *w = &n->ring[ch][n->tail[ch] % ZP_WATCHED];
    ZP_TRY(zp_event_sync(c->device, &w->ended)); /* of a group long ago */
    pthread_mutex_lock(&n->lock);
    const cudaError_t e = zp_nccl_advance(n, ch);
    pthread_mutex_unlock(&n->lock);
    ZP_TRY(zp_cuda(c->device, e, "cudaEventQuery"));
    ZP_TRY(zp_event_record(s, &w->ended));
    pthread_mutex_lock(&n->lock);
    w->kind = kind;
    w->unit = unit;
    w->since = zp_seconds();
    n->tail[ch]++;
    n->last[ch] = s->cuda;
    pthread_mutex_unlock(&n->lock);
    return ZERO_OK;
}

/* A collective of the hosts, by way of the device and the parameters' communicator: every rank's
   `bytes` to every rank (root -1), or the root's. */
static zero_result zp_nccl_exchange(zp_comm *c, const void *mine, size_t bytes, int root,
                                    void *all) {
    zp_nccl *n = &c->nccl;
    char *got = n->scratch + (root < 0 ? ZP_MAIL_BYTES : 0);
    const size_t got_bytes = root < 0 ? (size_t)c->nranks * bytes : bytes;
    zp_stream s;
    (void)zp_stream_take(&s, c->device, c->device->own, 1);
    if (root < 0 || root == c->rank) {
        memcpy(n->pinned, mine, bytes);
        ZP_TRY(zp_copy(&s, n->scratch, n->pinned, bytes));
    }
    ZP_TRY(zp_nccl_begin(c, &s, ZP_PARAMETERS));
    const ncclComm_t comm = n->comm[ZP_PARAMETERS];
    zp_nccl_note(n, root < 0 ? ncclAllGather(n->scratch, got, bytes, ncclChar, comm, s.cuda)
                             : ncclBroadcast(n->scratch, got, bytes, ncclChar, root, comm, s.cuda));
    ZP_TRY(zp_nccl_end(c, &s, ZP_PARAMETERS, root < 0 ? ZP_EXCHANGE : ZP_STAGED, root));
    ZP_TRY(zp_copy(&s, n->pinned, got, got_bytes));
    ZP_TRY(zp_stream_sync(&s));
    ZP_TRY(zp_failure_result(&c->failure)); /* an aborted collective ends, too */
    if (root != c->rank) memcpy(all, n->pinned, got_bytes);
    return ZERO_OK;
}
#endif

/* Tells the peers that this rank is gone. */
static void zp_comm_abort(zp_comm *c, const char *why) {
#ifdef ZERO_WITH_NCCL /* the watching thread ends the communicators; peers find them ended */
    if (c->kind == ZERO_COMM_NCCL) (void)zp_failure_set(&c->failure, ZERO_ERR_PEER, "%s", why);
#endif
    if (!c->board) return;
    zp_board_abort(c->board, c->rank, why);
#ifdef ZERO_WITH_MPI
    if (c->kind == ZERO_COMM_MPI) zp_mpi_tell(c);
#endif
}

/* Every rank's `bytes` become all[0..nranks), in rank order. */
static zero_result zp_comm_exchange(zp_comm *c, zp_channel channel, const void *mine, size_t bytes,
                                    void *all) {
    if (c->nranks == 1) {
        memcpy(all, mine, bytes);
        return ZERO_OK;
    }
#ifdef ZERO_WITH_MPI
    if (c->kind == ZERO_COMM_MPI) {
        const zp_head head = {ZP_EXCHANGE, 0, bytes};
        return zp_mpi_exchange(c, channel, &head, mine, bytes, all);
    }
#endif
#ifdef ZERO_WITH_NCCL
    if (c->kind == ZERO_COMM_NCCL) return zp_nccl_exchange(c, mine, bytes, -1, all);
#endif
    return zp_board_exchange(c, channel, mine, bytes, all);
}

static zero_result zp_comm_barrier(zp_comm *c) {
    int32_t one = 1;
    return zp_comm_exchange(c, ZP_CONTROL, &one, sizeof one, c->mail);
}

/* Any rank's no becomes everybody's; `who` is the lowest rank that said it. */
static zero_result zp_comm_agree(zp_comm *c, int ok, int *who) {
    int32_t mine = ok;
    ZP_TRY(zp_comm_exchange(c, ZP_CONTROL, &mine, sizeof mine, c->mail));
    *who = -1;
    for (int r = c->nranks - 1; r >= 0; r--) {
        int32_t theirs;
        memcpy(&theirs, c->mail + (size_t)r * sizeof theirs, sizeof theirs);
        if (!theirs) *who = r;
    }
    return ZERO_OK;
}

#ifdef ZERO_WITH_NCCL
/* Functions of NCCL 2.27, to which windows are pointers; 0: the one that is loaded is older. */
typedef ncclResult_t (*zp_window_register)(ncclComm_t, void *, size_t, void **, int);
typedef ncclResult_t (*zp_window_deregister)(ncclComm_t, void *);
static int zp_nccl_find(const char *name, void *call, size_t bytes) {
    void *symbol = dlsym(RTLD_DEFAULT, name);
    memcpy(call, &symbol, bytes);
    return symbol != NULL;
}

/* Tells NCCL of a region: as a symmetric window, which is the fastest way and the only one by which
   copy engines gather, or as a buffer. No handle: this NCCL, or these devices, have no windows. */
static zero_result zp_nccl_register(zp_comm *c, zp_region *r, int window) {
    zp_nccl *n = &c->nccl;
    const char *name = window ? "ncclCommWindowRegister" : "ncclCommRegister";
    zp_window_register call;
    if (window && !zp_nccl_find(name, &call, sizeof call)) return ZERO_OK;
    r->window = window;
    pthread_mutex_lock(&n->lock);
    const ncclComm_t comm = n->comm[r->channel];
    const ncclResult_t result =
        n->aborted ? ncclSystemError
        : window   ? call(comm, r->base[0], r->bytes, &r->handle, 1 /* NCCL_WIN_COLL_SYMMETRIC */)
                   : ncclCommRegister(comm, r->base[0], r->bytes, &r->handle);
    pthread_mutex_unlock(&n->lock);
    return zp_nccl_settle(c, comm, result, name);
}

static void zp_region_leave(zp_comm *c, zp_region *r) {
    zp_nccl *n = &c->nccl;
    zp_window_deregister call;
    pthread_mutex_lock(&n->lock);
    const ncclComm_t comm = n->comm[r->channel];
    if (r->handle && !n->aborted && !r->window)
        (void)ncclCommDeregister(comm, r->handle);
    else if (r->handle && !n->aborted
             && zp_nccl_find("ncclCommWindowDeregister", &call, sizeof call))
        (void)call(comm, r->handle);
    pthread_mutex_unlock(&n->lock);
    if (r->base[0]) (void)ncclMemFree(r->base[0]);
}
#endif

static void zp_region_close(zp_comm *c, zp_region *r) {
    if (r->kind == ZP_OWN) zp_region_free(r->base[c->me], r->on_host);
#ifdef __linux__
    for (int p = 0; p < c->n && r->kind == ZP_FILES; p++)
        if (r->base[p] && (!r->single || p == 0)) (void)munmap(r->base[p], r->bytes);
#endif
#ifdef ZERO_WITH_MPI
    if (r->kind == ZP_WINDOW) (void)MPI_Win_free(&r->window);
#endif
#ifdef ZERO_WITH_NCCL
    if (r->kind == ZP_NCCL) zp_region_leave(c, r);
#endif
    memset(r, 0, sizeof *r);
}

/* Pieces of threads: ordinary memory, exchanged by address. */
static zero_result zp_region_threads(zp_comm *c, zp_region *r) {
    char *mine = NULL, **all = (char **)(void *)c->mail;
    if (!r->single || c->me == 0) {
        zp_hold *hold = zp_hold_make(c->board ? &c->board->pieces : &c->group->boards, c->device,
                                     r->bytes, r->on_host);
        if (hold) mine = (char *)hold->memory;
        if (hold && !c->board) { /* it is the board that is being made */
            zp_board *board = (zp_board *)hold->memory;
            board->self = hold;
            board->users = (uint32_t)c->n;
        }
    }
    ZP_TRY(zp_comm_exchange(c, ZP_CONTROL, &mine, sizeof mine, all));
    for (int p = 0; p < c->n; p++) {
        r->base[p] = all[r->single ? 0 : p];
        if (!r->base[p]) return ZERO_ERR_MEMORY; /* on all ranks alike */
    }
    r->kind = ZP_HELD;
    return ZERO_OK;
}

/* Pieces of processes: memory files, opened by the peers while their makers wait. */
static zero_result zp_region_files(zp_comm *c, zp_region *r) {
#ifdef __linux__
    const zp_piece *all = (const zp_piece *)(const void *)c->mail;
    zp_piece mine;
    int fd = -1, who = -1, ok = 1;
    if (!r->single || c->me == 0) fd = zp_file_make(r->bytes);
    if (fd >= 0) r->base[c->me] = zp_map_file(fd, r->bytes);
    mine.pid = (int64_t)getpid();
    mine.fd = fd;
    mine.inode = zp_file_inode(fd);
    r->kind = ZP_FILES;
    zero_result result = zp_comm_exchange(c, ZP_CONTROL, &mine, sizeof mine, c->mail);
    for (int p = 0; p < c->n && !result; p++) {
        const int from = r->single ? 0 : p;
        if (p == from && p != c->me) r->base[p] = zp_map_peer(&all[c->rank_of[p]], r->bytes);
        r->base[p] = r->base[from];
        ok &= r->base[p] != NULL;
    }
    if (!result) result = zp_comm_agree(c, ok, &who);
    if (fd >= 0) (void)close(fd);
    if (!result && who >= 0) result = ZERO_ERR_MEMORY;
    if (result) zp_region_close(c, r);
    return result;
#else
    (void)c;
    (void)r;
    return ZERO_ERR_UNSUPPORTED;
#endif
}

#ifdef ZERO_WITH_MPI
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

static zero_result zp_region_window(zp_comm *c, zp_region *r) {
    void *base = NULL;
    int who = -1;
    const size_t asked = r->bytes;
    MPI_Info info;
    const MPI_Aint bytes = !r->single || c->me == 0 ? (MPI_Aint)(r->bytes + 4096) : 0;
    ZP_MPI(c, MPI_Info_create(&info));
    ZP_MPI(c, MPI_Info_set(info, "alloc_shared_noncontig", "true"));
    const int code = MPI_Win_allocate_shared(bytes, 1, info, c->mpi_node, &base, &r->window);
    (void)MPI_Info_free(&info);
    if (code == MPI_SUCCESS) {
        r->kind = ZP_WINDOW;
        ZP_MPI(c, MPI_Win_set_errhandler(r->window, MPI_ERRORS_RETURN));
    }
    for (int p = 0; p < c->n && r->kind; p++) {
        MPI_Aint size;
        int unit;
        ZP_MPI(c, MPI_Win_shared_query(r->window, r->single ? 0 : p, &size, &unit, &base));
        r->base[p] = zp_align_page(base);
    }
    ZP_TRY(zp_comm_agree(c, r->kind != 0, &who)); /* over all nodes */
    if (who < 0) {
        const int cleared = !bytes || zp_populate(r->base[c->me], r->bytes);
        ZP_TRY(zp_comm_agree(c, cleared, &who)); /* and nobody reads before all are cleared */
        if (who < 0) return ZERO_OK;
        zp_region_close(c, r);
    }
    return zp_failure_set(&c->failure, ZERO_ERR_MEMORY,
                          "rank %d could not allocate %zu bytes in an MPI shared "
                          "window: has its host's /dev/shm room for them?",
                          who, asked);
}
#endif

#ifdef ZERO_WITH_NCCL
/* Memory that NCCL may hand to other devices and to network cards. */
static zero_result zp_region_nccl(zp_comm *c, zp_region *r) {
    void *p = NULL;
    int who = -1;
    const int ok = ncclMemAlloc(&p, r->bytes) == ncclSuccess
                   && zp_device_clear(c->device, p, r->bytes) != NULL;
    (void)cudaGetLastError();
    r->kind = ZP_NCCL;
    r->base[0] = (char *)p;
    ZP_TRY(zp_comm_agree(c, ok, &who));
    if (who < 0) return ZERO_OK;
    zp_region_close(c, r);
    return ZERO_ERR_MEMORY;
}
#endif

/* Tells NCCL of an arena that one channel uses. COLLECTIVE. `how` is for a log. */
static zero_result zp_region_register(zp_comm *c, zp_region *r, zp_channel channel,
                                      const char **how) {
    *how = "not registered";
#ifdef ZERO_WITH_NCCL
    if (c->kind != ZERO_COMM_NCCL || c->nranks == 1) return ZERO_OK;
    r->channel = channel;
    *how = "registered as a symmetric window";
    ZP_TRY(zp_nccl_register(c, r, 1));
    if (r->handle) return ZERO_OK;
    *how = "registered as a buffer";
    return zp_nccl_register(c, r, 0);
#else
    (void)c;
    (void)r;
    (void)channel;
    return ZERO_OK;
#endif
}

static zero_result zp_region_make(zp_comm *c, zp_region *r, size_t bytes, int single, int on_host) {
    const size_t pages = zp_round_up(zp_max(bytes, 1), 4096);
    memset(r, 0, sizeof *r);
    r->bytes = pages;
    r->single = single;
    r->on_host = on_host;
#ifdef ZERO_WITH_NCCL
    if (c->kind == ZERO_COMM_NCCL && !on_host) return zp_region_nccl(c, r);
#endif
    if (c->nranks == 1 || c->kind == ZERO_COMM_NCCL) {
        r->kind = ZP_OWN;
        r->base[0] = (char *)zp_region_alloc(c->device, r->bytes, on_host);
        return r->base[0] ? ZERO_OK : ZERO_ERR_MEMORY;
    }
#ifdef ZERO_WITH_MPI
    if (c->kind == ZERO_COMM_MPI) {
        /* files need no room in /dev/shm, and no peer to be freed; but peers in containers of their
           own see each other only through MPI */
        const zero_result made = zp_region_files(c, r);
        if (made != ZERO_ERR_MEMORY && made != ZERO_ERR_UNSUPPORTED) return made;
        r->bytes = pages;
        r->single = single;
        return zp_region_window(c, r);
    }
#endif
    return c->group->shared ? zp_region_files(c, r) : zp_region_threads(c, r);
}

/* COLLECTIVE. All ranks get the region or none does. `bytes` is the same everywhere. */
static zero_result zp_region_open(zp_comm *c, zp_region *r, size_t bytes, int single, int on_host) {
    ZP_TRY(zp_region_make(c, r, bytes, single, on_host));
    c->allocated_bytes += single ? r->bytes / (size_t)c->n : r->bytes;
    return ZERO_OK;
}

/* One collective on its way: what a task of a communication stream carries. Offsets are bytes in
   this rank's region. */
typedef struct zp_op {
    zp_comm *comm;
    zp_region *region;
    size_t shard;          /* elements */
    size_t source, target; /* reduce-scatter: unit, shard; all-gather: shard, unit */
    float *sum;            /* reduce-scatter of 16 bit: the shard's f32 accumulator; NULL: none */
    zero_type type;        /* of the elements */
    int kind, unit;
    float scale;
    int accumulate, in_place; /* in_place: an all-gather that only waits */
    zp_channel channel;
} zp_op;

static size_t zp_op_shard_bytes(const zp_op *op) { return op->shard * zp_bytes(op->type); }

/* Pieces of a collective that are on their way between nodes at a time; fewer where there are more
   nodes to trade with at once. */
static size_t zp_crossings(int nnodes) {
    return zp_max(2, ZP_CROSSINGS / zp_max(1, (size_t)(nnodes - 1)));
}
static size_t zp_wire_numel(int nnodes) {
    return zp_crossings(nnodes) * 2 * (size_t)(nnodes - 1) * ZP_CROSS_NUMEL;
}

static zp_call zp_op_call(const zp_op *op) {
    const zp_call call = {op->kind, op->unit, op->shard, op->source, op->target};
    return call;
}

/* Where a peer's unit (or shard) lies, from element `at` on. */
static const char *zp_op_peer(const zp_op *op, int place, int of_target, size_t at) {
    const zp_call *his = &op->comm->board->lines[op->channel][place].call;
    return op->region->base[place] + (of_target ? his->target : his->source)
           + at * zp_bytes(op->type);
}

/* This rank's slice of its own unit. */
static char *zp_op_slice(const zp_op *op) {
    return op->region->base[op->comm->me] + op->source
           + (size_t)op->comm->rank * zp_op_shard_bytes(op);
}

/* The sum of a reduce-scatter, over the ranks that this one sees. */
static void zp_op_sum(const zp_op *op, zp_sum *s) {
    const zp_comm *c = op->comm;
    memset(s, 0, sizeof *s);
    for (int p = 0; p < c->n; p++)
        s->source[p] =
            p == c->me ? zp_op_slice(op) : zp_op_peer(op, p, 0, (size_t)c->rank * op->shard);
    s->type = s->out_type = op->type;
    s->n = c->n;
    s->group = c->node_size;
    s->out = op->region->base[c->me] + op->target;
    s->sum = op->sum;
    s->scale = op->scale;
    s->accumulate = op->accumulate;
}

#ifndef __CUDACC__

/* sum = x or sum += x, n values of `type` from element `at` on. */
static void zp_sum_add(float *sum, const void *x, zero_type type, size_t at, size_t n, int first) {
    float wide[ZP_SUM_BLOCK];
    if (first) {
        zp_widen(sum, (const char *)x + at * zp_bytes(type), type, n);
        return;
    }
    const float *add = zp_view(x, type, at, n, wide);
    for (size_t i = 0; i < n; i++) sum[i] += add[i];
}

static void zp_sum_piece(const zp_sum *s, size_t at, size_t n) {
    float total[ZP_SUM_BLOCK], node[ZP_SUM_BLOCK]; /* stored before they are added to */
    for (int p = 0; p < s->n; p++) {
        zp_sum_add(p < s->group ? total : node, s->source[p], s->type, at, n, p % s->group == 0);
        if (p >= s->group && (p + 1) % s->group == 0)
            for (size_t i = 0; i < n; i++) total[i] += node[i];
    }
    float *sum = s->sum ? s->sum + at : s->out_type == ZERO_F32 ? (float *)s->out + at : total;
    if (s->accumulate)
        for (size_t i = 0; i < n; i++) sum[i] += s->scale * total[i];
    else
        for (size_t i = 0; i < n; i++) sum[i] = s->scale * total[i];
    if (s->out_type != ZERO_F32) zp_narrow((uint16_t *)s->out + at, s->out_type, sum, n);
}

static void zp_sum_slices(const zp_sum *s, size_t numel, int threads) {
    (void)threads;
    ZP_OMP_FOR(numel > 32768)
    for (size_t at = 0; at < numel; at += ZP_SUM_BLOCK)
        zp_sum_piece(s, at, zp_min(ZP_SUM_BLOCK, numel - at));
}

#ifdef ZERO_WITH_MPI
static zero_result zp_mpi_trade(const zp_op *op, int peer, void *in, const void *out, size_t bytes,
                                MPI_Request *requests) {
    zp_comm *c = op->comm;
    ZP_MPI(c, MPI_Irecv(in, (int)bytes, MPI_BYTE, peer, MPI_ANY_TAG, c->mpi[op->channel],
                        &requests[0]));
    ZP_MPI(c, MPI_Isend(out, (int)bytes, MPI_BYTE, peer, zp_mpi_tag(op->kind, op->unit),
                        c->mpi[op->channel], &requests[1]));
    return ZERO_OK;
}

static zero_result zp_mpi_traded(const zp_op *op, MPI_Request *requests, int n) {
    MPI_Status statuses[2 * ZP_LOCAL_MAX];
    return zp_mpi_wait(op->comm, requests, statuses, n, zp_mpi_tag(op->kind, op->unit),
                       zp_op_names[op->kind]);
}

/* A piece of a shard on its way between nodes, and in a reduction what it needs there: for every
   other node the sum that goes there, and the one that comes. */
typedef struct zp_crossing {
    size_t at, n;
    float *wire; /* [nnodes - 1][2][ZP_CROSS_NUMEL] */
    int requests;
    MPI_Request request[2 * ZP_LOCAL_MAX];
} zp_crossing;

/* Sums inside this node elements [at, at + n) of a rank's shard, in f32. */
static void zp_sum_node(const zp_op *op, int rank, size_t at, size_t n, float *out) {
    const zp_comm *c = op->comm;
    zp_sum s;
    memset(&s, 0, sizeof s);
    for (int p = 0; p < c->n; p++)
        s.source[p] = zp_op_peer(op, p, 0, (size_t)rank * op->shard + at);
    s.type = op->type;
    s.n = c->n;
    s.group = c->node_size;
    s.out = out;
    s.scale = 1;
    zp_sum_slices(&s, n, 1);
}

/* A reduction trades the sums of every counterpart's slice for those of this rank's; an all-gather
   slices, straight into the target, where the node's other ranks find them. */
static zero_result zp_cross_begin(const zp_op *op, zp_crossing *x) {
    const zp_comm *c = op->comm;
    const int reduces = op->kind == ZP_REDUCE_SCATTER;
    const size_t element = zp_bytes(op->type);
    char *base = op->region->base[c->me] + x->at * element;
    float *sum = x->wire;
    x->requests = 0;
    for (int k = 0; k < c->nnodes; k++) {
        if (k == c->node) continue;
        const int peer = zp_comm_counterpart(c, k);
        char *theirs = base + op->target + (size_t)peer * zp_op_shard_bytes(op);
        if (reduces) zp_sum_node(op, peer, x->at, x->n, sum);
        ZP_TRY(zp_mpi_trade(op, peer, reduces ? (char *)(sum + ZP_CROSS_NUMEL) : theirs,
                            reduces ? (char *)sum : base + op->source,
                            x->n * (reduces ? sizeof *sum : element), x->request + x->requests));
        x->requests += 2;
        sum += 2 * ZP_CROSS_NUMEL;
    }
    return ZERO_OK;
}

/* Adds over the nodes in node order; this node's own sum takes the place of one that was sent. */
static void zp_cross_add(const zp_op *op, const zp_crossing *x) {
    const zp_comm *c = op->comm;
    const float *received = x->wire + ZP_CROSS_NUMEL;
    zp_sum nodes;
    zp_op_sum(op, &nodes);
    zp_sum_node(op, c->rank, x->at, x->n, x->wire);
    nodes.type = ZERO_F32;
    nodes.n = nodes.group = c->nnodes;
    nodes.out = (char *)nodes.out + x->at * zp_bytes(op->type);
    if (nodes.sum) nodes.sum += x->at;
    for (int k = 0; k < c->nnodes; k++) {
        nodes.source[k] = k == c->node ? x->wire : received;
        if (k != c->node) received += 2 * ZP_CROSS_NUMEL;
    }
    zp_sum_slices(&nodes, x->n, 1);
}

/* Piece by piece, many on their way at a time, each so small that MPI sends it unasked (Open MPI:
   up to 64 KiB). Asked first, the answers queue behind what a peer is sending, and the directions
   of a link take turns. */
static zero_result zp_cross(const zp_op *op) {
    zp_crossing x[ZP_CROSSINGS];
    const zp_comm *c = op->comm;
    const size_t pieces = (op->shard + ZP_CROSS_NUMEL - 1) / ZP_CROSS_NUMEL;
    const size_t depth = zp_crossings(c->nnodes), wire = 2 * (size_t)(c->nnodes - 1);
    for (size_t i = 0; i < pieces + depth; i++) {
        zp_crossing *now = &x[i % depth];
        if (i >= depth && i - depth < pieces) {
            ZP_TRY(zp_mpi_traded(op, now->request, now->requests));
            if (op->kind == ZP_REDUCE_SCATTER) zp_cross_add(op, now);
        }
        if (i >= pieces) continue;
        now->at = i * ZP_CROSS_NUMEL;
        now->n = zp_min(ZP_CROSS_NUMEL, op->shard - now->at);
        now->wire = c->wire + i % depth * wire * ZP_CROSS_NUMEL;
        ZP_TRY(zp_cross_begin(op, now));
    }
    return ZERO_OK;
}
#endif

static zero_result zp_sum_ranks(zp_stream *s, const zp_sum *sum, size_t n) {
    zp_sum_slices(sum, n * ZP_WIDE, s->threads);
    return ZERO_OK;
}

static zero_result zp_op_begin(zp_comm *c, zp_stream *s, zp_channel channel, const zp_call *call) {
    (void)s;
    ZP_TRY(zp_failure_result(&c->failure));
    return zp_meet(c, channel, call);
}
static zero_result zp_op_end(zp_comm *c, zp_stream *s, zp_channel channel) {
    (void)s;
    return zp_part(c, channel);
}

#else

/* Ranks are threads of one process. Their hosts meet, and each makes its stream wait for the
   others'. An event is recorded again only after all have made their streams wait for its last
   record: that is what zp_part tells. */
static zero_result zp_op_begin(zp_comm *c, zp_stream *s, zp_channel channel, const zp_call *call) {
    zp_event *arrived = c->board->arrived[channel];
    ZP_TRY(zp_failure_result(&c->failure));
    ZP_TRY(zp_event_record(s, &arrived[c->me]));
    ZP_TRY(zp_meet(c, channel, call));
    for (int p = 0; p < c->n; p++)
        if (p != c->me) ZP_TRY(zp_event_wait(s, &arrived[p]));
    return ZERO_OK;
}
static zero_result zp_op_end(zp_comm *c, zp_stream *s, zp_channel channel) {
    zp_event *departed = c->board->departed[channel];
    ZP_TRY(zp_event_record(s, &departed[c->me]));
    ZP_TRY(zp_part(c, channel));
    for (int p = 0; p < c->n; p++)
        if (p != c->me) ZP_TRY(zp_event_wait(s, &departed[p]));
    return ZERO_OK;
}

#endif

static zero_result zp_op_gather(zp_stream *s, const zp_op *op) {
    zp_comm *c = op->comm;
    char *target = op->region->base[c->me] + op->target;
    const size_t bytes = zp_op_shard_bytes(op);
    const char *own = op->region->base[c->me] + op->source;
    if (target + (size_t)c->rank * bytes != own)
        ZP_TRY(zp_copy(s, target + (size_t)c->rank * bytes, own, bytes));
#ifdef ZERO_WITH_MPI
    if (c->n < c->nranks) {
        const zp_call call = zp_op_call(op);
        ZP_TRY(zp_cross(op));
        ZP_TRY(zp_part(c, op->channel));
        ZP_TRY(zp_meet(c, op->channel, &call));
    }
#endif
    for (int p = 0; p < c->n; p++) {
        if (p == c->me) continue;
        ZP_TRY(zp_copy(s, target + (size_t)c->rank_of[p] * bytes, zp_op_peer(op, p, 0, 0), bytes));
#ifdef ZERO_WITH_MPI
        for (int k = 0; k < c->nnodes && c->n < c->nranks; k++) {
            const int rank = c->node_rank[k * c->node_size + p];
            if (k != c->node)
                memcpy(target + (size_t)rank * bytes,
                       zp_op_peer(op, p, 1, (size_t)rank * op->shard), bytes);
        }
#endif
    }
    return ZERO_OK;
}

/* What this rank does once all have come. */
static zero_result zp_op_work(zp_stream *s, const zp_op *op) {
    zp_sum sum;
    if (op->in_place) return ZERO_OK;
    if (op->kind == ZP_ALL_GATHER) return zp_op_gather(s, op);
#ifdef ZERO_WITH_MPI
    if (op->comm->n < op->comm->nranks) return zp_cross(op);
#endif
    zp_op_sum(op, &sum);
    return zp_sum_ranks(s, &sum, op->shard / ZP_WIDE);
}

/* A collective, but for NCCL's. */
static zero_result zp_op_run(zp_stream *s, const zp_op *op) {
    const zp_call call = zp_op_call(op);
    if (op->comm->nranks == 1) { /* nobody to meet */
        const int there = op->kind == ZP_REDUCE_SCATTER && op->source == op->target && !op->sum;
        return there ? ZERO_OK : zp_op_work(s, op);
    }
    ZP_TRY(zp_op_begin(op->comm, s, op->channel, &call));
    ZP_TRY(zp_op_work(s, op));
    return zp_op_end(op->comm, s, op->channel);
}

#ifndef __CUDACC__

/* On a stream's thread: the stream of the work is this thread itself. */
static void zp_op_task(const void *args, size_t n, int threads) {
    zp_op op;
    zp_stream s;
    memcpy(&op, args, sizeof op);
    (void)n;
    (void)zp_stream_take(&s, op.comm->device, NULL, threads);
    (void)zp_op_run(&s, &op);
}

typedef struct zp_verdicts_args {
    zp_comm *comm;
    const double *mine;
    double *all;
} zp_verdicts_args;

static void zp_verdicts_task(const void *args, size_t n, int threads) {
    zp_verdicts_args a;
    memcpy(&a, args, sizeof a);
    (void)n;
    (void)threads;
    if (zp_failure_result(&a.comm->failure)) return;
    (void)zp_comm_exchange(a.comm, ZP_GRADIENTS, a.mine, ZP_VERDICT * sizeof(double), a.all);
}

#else

static zero_result zp_local_verdicts(zp_comm *c, zp_stream *s, const zp_region *r, size_t at,
                                     double *all) {
    const size_t bytes = ZP_VERDICT * sizeof *all;
    const zp_call call = {ZP_EXCHANGE, 0, bytes, 0, 0};
    ZP_TRY(zp_op_begin(c, s, ZP_GRADIENTS, &call));
    for (int p = 0; p < c->n; p++) ZP_TRY(zp_copy(s, all + ZP_VERDICT * p, r->base[p] + at, bytes));
    return zp_op_end(c, s, ZP_GRADIENTS);
}

#ifdef ZERO_WITH_NCCL
static ncclDataType_t zp_nccl_type(zero_type type) {
    return type == ZERO_F32 ? ncclFloat32 : type == ZERO_BF16 ? ncclBfloat16 : ncclFloat16;
}
/* The sum is what is wanted, where it is wanted: nothing is to be added to it, or rounded. */
static int zp_nccl_direct(const zp_op *op) { return !op->sum && !op->accumulate; }

/* Inside a group: nothing of it has happened before the group is closed. */
static void zp_nccl_issue(zp_stream *s, const zp_op *op) {
    zp_nccl *n = &op->comm->nccl;
    char *source = op->region->base[0] + op->source, *target = op->region->base[0] + op->target;
    const ncclDataType_t type = zp_nccl_type(op->type);
    if (op->in_place || n->status != ncclSuccess) return;
    if (op->kind == ZP_ALL_GATHER)
        zp_nccl_note(n,
                     ncclAllGather(source, target, op->shard, type, n->comm[op->channel], s->cuda));
    else
        zp_nccl_note(n, ncclReduceScatter(source, zp_nccl_direct(op) ? target : zp_op_slice(op),
                                          op->shard, type, ncclSum, n->comm[op->channel], s->cuda));
}
#endif
#endif

/* A group of collectives of one channel: NCCL starts them together. What they give is there after
   zp_comm_finish of each, which follows the group. Whoever begins a group ends it, whatever has
   failed elsewhere meanwhile (ZP_TRY, not ZP_DO): NCCL's lock is held between. */
static zero_result zp_comm_begin(zp_comm *c, zp_stream *s, zp_channel channel) {
#ifdef ZERO_WITH_NCCL
    if (c->kind == ZERO_COMM_NCCL) return zp_nccl_begin(c, s, channel);
#endif
    (void)c;
    (void)s;
    (void)channel;
    return ZERO_OK;
}
static zero_result zp_comm_end(zp_comm *c, zp_stream *s, const zp_op *first) {
#ifdef ZERO_WITH_NCCL
    if (c->kind == ZERO_COMM_NCCL)
        return zp_nccl_end(c, s, first->channel, first->kind, first->unit);
#endif
    (void)c;
    (void)s;
    (void)first;
    return ZERO_OK;
}
static zero_result zp_comm_finish(zp_stream *s, const zp_op *op) {
#ifdef ZERO_WITH_NCCL
    if (op->comm->kind == ZERO_COMM_NCCL && op->kind == ZP_REDUCE_SCATTER && !zp_nccl_direct(op))
        return zp_op_work(s, op); /* NCCL's sum lies in this rank's slice */
#endif
    (void)s;
    (void)op;
    return ZERO_OK;
}

/* Bytes that a rank sends in a reduce-scatter of one shard per rank: inside nodes in the gradients'
   type, between nodes the nodes' sums in f32. */
static size_t zp_reduce_bytes(const zp_comm *c, size_t shard, zero_type type) {
    const size_t inside = (size_t)(c->n - 1) * (size_t)(c->nranks / c->n);
    if (c->kind == ZERO_COMM_NCCL) return (size_t)(c->nranks - 1) * shard * zp_bytes(type);
    return shard * (inside * zp_bytes(type) + (size_t)(c->nranks / c->n - 1) * sizeof(float));
}
static size_t zp_gather_bytes(const zp_comm *c, size_t shard, zero_type type) {
    return (size_t)(c->nranks - 1) * shard * zp_bytes(type);
}

/* The communicator's only way to a stream: everything it sends is counted here. */
static zero_result zp_comm_issue(zp_stream *s, const zp_op *op) {
    zp_comm *c = op->comm;
    const int gathers = op->kind == ZP_ALL_GATHER;
    const size_t bytes =
        gathers ? zp_gather_bytes(c, op->shard, op->type) : zp_reduce_bytes(c, op->shard, op->type);
    c->sent_bytes += bytes;
    if (op->in_place) c->mapped_bytes += bytes;
    c->reductions += !gathers;
    c->gathers += gathers;
#ifdef ZERO_WITH_NCCL
    if (c->kind == ZERO_COMM_NCCL) {
        zp_nccl_issue(s, op);
        return ZERO_OK;
    }
#endif
#ifdef __CUDACC__
    return zp_op_run(s, op);
#else
    static_assert(sizeof(zp_op) <= ZP_TASK_BYTES, "a task carries a collective");
    return zp_stream_push(s, zp_op_task, op, sizeof *op, 0);
#endif
}

/* A group of one. */
static zero_result zp_comm_issue_alone(zp_stream *s, const zp_op *op) {
    ZP_TRY(zp_comm_begin(op->comm, s, op->channel));
    ZP_TRY(zp_comm_issue(s, op)); /* NCCL's cannot fail before the group ends */
    return zp_comm_end(op->comm, s, op);
}

/* The one small collective of a step: every rank's verdict to every rank. It lies in a region, at
   the same place on all of them. */
static zero_result zp_comm_verdicts(zp_comm *c, zp_stream *s, const zp_region *r, size_t at,
                                    double *all) {
    const double *mine = (const double *)(const void *)(r->base[c->me] + at);
#ifdef ZERO_WITH_NCCL
    if (c->kind == ZERO_COMM_NCCL) {
        ZP_TRY(zp_nccl_begin(c, s, ZP_GRADIENTS));
        zp_nccl_note(&c->nccl, ncclAllGather(mine, all, ZP_VERDICT, ncclFloat64,
                                             c->nccl.comm[ZP_GRADIENTS], s->cuda));
        return zp_nccl_end(c, s, ZP_GRADIENTS, ZP_EXCHANGE, -1);
    }
#endif
#ifdef __CUDACC__
    return c->nranks > 1 ? zp_local_verdicts(c, s, r, at, all)
                         : zp_copy(s, all, mine, ZP_VERDICT * sizeof *mine);
#else
    zp_verdicts_args a = {c, mine, all};
    return zp_stream_push(s, zp_verdicts_task, &a, sizeof a, 0);
#endif
}

/* Up to ZP_STAGE_NUMEL * 4 bytes from one rank's memory to all; SYNC. */
static zero_result zp_comm_broadcast_piece(zp_comm *c, void *data, size_t bytes, int root) {
#ifdef ZERO_WITH_MPI
    if (c->kind == ZERO_COMM_MPI) {
        char *landing = c->stage.base[c->me];
        const zp_head head = {ZP_STAGED, root, bytes};
        MPI_Request request;
        MPI_Status status;
        ZP_TRY(zp_mpi_exchange(c, ZP_CONTROL, &head, NULL, 0, NULL));
        if (c->rank == root && data != landing) memcpy(landing, data, bytes);
        ZP_MPI(c, MPI_Ibcast(landing, (int)bytes, MPI_BYTE, root, c->mpi[ZP_CONTROL], &request));
        ZP_TRY(zp_mpi_wait(c, &request, &status, 1, -1, zp_op_names[ZP_STAGED]));
        if (c->rank != root && data != landing) memcpy(data, landing, bytes);
        return ZERO_OK;
    }
#endif
#ifdef ZERO_WITH_NCCL
    if (c->kind == ZERO_COMM_NCCL) return zp_nccl_exchange(c, data, bytes, root, data);
#endif
    const zp_call call = {ZP_STAGED, root, bytes, 0, 0};
    char *stage = c->stage.base[c->me];
    if (c->rank == root && data != stage) memcpy(stage, data, bytes);
    ZP_TRY(zp_meet(c, ZP_CONTROL, &call));
    if (c->rank != root && data != stage)
        memcpy(data, c->stage.base[root], bytes); /* LOCAL: places are ranks */
    return zp_part(c, ZP_CONTROL);
}

static zero_result zp_comm_broadcast(zp_comm *c, void *data, size_t bytes, int root) {
    const size_t piece = ZP_STAGE_NUMEL * sizeof(float);
    for (size_t at = 0; at < bytes && c->nranks > 1; at += piece)
        ZP_TRY(zp_comm_broadcast_piece(c, (char *)data + at, zp_min(piece, bytes - at), root));
    return ZERO_OK;
}

static zero_result zp_comm_fail(zp_comm *c, zero_result r, const char *text) {
    return zp_failure_set(&c->failure, r, "%s", text);
}

#ifdef ZERO_WITH_NCCL
static zero_result zp_nccl_split(zp_comm *c, ncclComm_t parent, int ch) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
#if NCCL_VERSION_CODE >= 22700
    config.commName = ch == ZP_PARAMETERS ? "zero parameters" : "zero gradients";
#endif
#ifdef NCCL_CTA_POLICY_ZERO /* gathers by copy engines, reductions with few multiprocessors */
    config.CTAPolicy = ch == ZP_PARAMETERS ? NCCL_CTA_POLICY_ZERO : NCCL_CTA_POLICY_EFFICIENCY;
#endif
    const ncclResult_t r = ncclCommSplit(parent, 0, c->rank, &c->nccl.comm[ch], &config);
    return zp_nccl_settle(c, parent, r, "ncclCommSplit"); /* it is the parent that is busy */
}

/* The memory of exchanges, and the events that are watched. */
static zero_result zp_nccl_prepare(zp_comm *c) {
    zp_nccl *n = &c->nccl;
    const size_t bytes = zp_max((size_t)(1 + c->nranks) * ZP_MAIL_BYTES, ZP_STAGE_NUMEL * 4);
    const char *order = getenv("NCCL_LAUNCH_ORDER_IMPLICIT");
    n->ordered = n->version >= 22600 && order && strcmp(order, "0") != 0;
    n->scratch = (char *)zp_device_alloc(c->device, bytes);
    n->pinned = (char *)zp_host_alloc(bytes);
    c->mail = (char *)malloc((size_t)c->nranks * ZP_MAIL_BYTES);
    if (!n->scratch || !n->pinned || !c->mail)
        return zp_comm_fail(c, ZERO_ERR_MEMORY, "the exchange buffers");
    for (int ch = 0; ch < ZP_CONTROL; ch++)
        for (size_t i = 0; i < ZP_WATCHED; i++)
            ZP_TRY(zp_event_open(c->device, &n->ring[ch][i].ended));
    return ZERO_OK;
}

static zero_result zp_comm_open_nccl(zp_comm *c, const zero_comm *given) {
    zp_nccl *n = &c->nccl;
    int device = -1;
    ncclComm_t parent = given->handle ? *(ncclComm_t *)given->handle : NULL;
    if (!parent)
        return zp_comm_fail(c, ZERO_ERR_ARGUMENT, "comm.handle: an ncclComm_t * is needed");
    if (given->node_size)
        return zp_failure_set(&c->failure, ZERO_ERR_ARGUMENT,
                              "comm.node_size is %d: NCCL sums in an order of its own",
                              given->node_size);
    ncclResult_t r = ncclGetVersion(&n->version);
    if (r == ncclSuccess && n->version < 21900)
        return zp_failure_set(&c->failure, ZERO_ERR_UNSUPPORTED,
                              "NCCL %d.%d.%d is loaded: 2.19 or newer is needed",
                              n->version / 10000, n->version / 100 % 100, n->version % 100);
    if (r == ncclSuccess) r = ncclCommUserRank(parent, &c->rank);
    if (r == ncclSuccess) r = ncclCommCount(parent, &c->nranks);
    if (r == ncclSuccess) r = ncclCommCuDevice(parent, &device);
    if (r != ncclSuccess) return zp_nccl_fail(c, parent, r, "comm.handle");
    if (device != c->device->number)
        return zp_failure_set(&c->failure, ZERO_ERR_ARGUMENT,
                              "the communicator belongs to device %d, but device %d is current",
                              device, c->device->number);
    c->rank_of[0] = c->rank;
    c->divisor = (float)c->nranks;
    /* first: peers wait in it on the caller's communicator, which nobody here may end */
    pthread_mutex_init(&n->lock, NULL);
    n->made = 1;
    for (int ch = 0; ch < ZP_CONTROL; ch++) ZP_TRY(zp_nccl_split(c, parent, ch));
    n->moved[0] = n->moved[1] = zp_seconds();
    n->watching = pthread_create(&n->thread, NULL, zp_nccl_watch, c) == 0;
    if (!n->watching) return zp_comm_fail(c, ZERO_ERR_MEMORY, "a thread for NCCL");
    return zp_nccl_prepare(c);
}

/* Destroys a communicator together with the others, or alone if that fails. */
static void zp_nccl_leave(zp_comm *c, int ch, int broken) {
    ncclComm_t comm = c->nccl.comm[ch];
    if (!comm) return;
    if (!broken && !zp_nccl_settle(c, comm, ncclCommFinalize(comm), "ncclCommFinalize"))
        (void)ncclCommDestroy(comm);
    else
        (void)ncclCommAbort(comm);
    c->nccl.comm[ch] = NULL;
}

static void zp_nccl_close(zp_comm *c, int broken) {
    zp_nccl *n = &c->nccl;
    if (!n->made) return;
    __atomic_store_n(&n->stop, 1, __ATOMIC_RELEASE);
    if (n->watching) (void)pthread_join(n->thread, NULL);
    for (int ch = 0; ch < ZP_CONTROL; ch++) {
        zp_nccl_leave(c, ch, broken || !n->watching || zp_failure_result(&c->failure) != ZERO_OK);
        for (size_t i = 0; i < ZP_WATCHED; i++) zp_event_close(&n->ring[ch][i].ended);
    }
    zp_device_free(n->scratch);
    zp_host_free(n->pinned);
    pthread_mutex_destroy(&n->lock);
}
#endif

/* Each rank reaches the memory of every other rank's device. */
static zero_result zp_local_devices(zp_comm *c) {
    c->shares = 1;
#ifdef __CUDACC__
    zp_device *d = c->device;
    int32_t mine = d->number, his;
    ZP_TRY(zp_comm_exchange(c, ZP_CONTROL, &mine, sizeof mine, c->mail));
    for (int r = 0; r < c->nranks; r++) {
        int can = 0;
        memcpy(&his, c->mail + (size_t)r * sizeof his, sizeof his);
        if (his == mine) continue;
        c->shares = 0; /* parameters read in place would come over the bus at every use */
        ZP_CUDA(d, cudaDeviceCanAccessPeer(&can, mine, his));
        if (!can)
            return zp_failure_set(&c->failure, ZERO_ERR_ARGUMENT,
                                  "device %d of rank %d cannot reach the memory of device %d of "
                                  "rank %d: use NCCL",
                                  (int)mine, c->rank, (int)his, r);
        const cudaError_t e = cudaDeviceEnablePeerAccess(his, 0);
        if (e == cudaErrorPeerAccessAlreadyEnabled)
            (void)cudaGetLastError();
        else
            ZP_TRY(zp_cuda(d, e, "cudaDeviceEnablePeerAccess"));
    }
    for (int ch = 0; ch < ZP_CONTROL; ch++) {
        ZP_TRY(zp_event_open(d, &c->board->arrived[ch][c->me]));
        ZP_TRY(zp_event_open(d, &c->board->departed[ch][c->me]));
    }
#endif
    return ZERO_OK;
}

/* A group's board serves to make this context's own: two contexts of one group never meet. */
static zero_result zp_comm_open_local(zp_comm *c, const zero_comm *given) {
    zero_local *group = (zero_local *)given->handle;
    if (!group)
        return zp_comm_fail(c, ZERO_ERR_ARGUMENT, "comm.handle is NULL: a zero_local is needed");
    if (!group->shared && group->maker != getpid())
        return zp_failure_set(&c->failure, ZERO_ERR_ARGUMENT,
                              "the zero_local was made with shared 0 in process %d and is used in "
                              "process %d: ranks that are forked need shared 1",
                              (int)group->maker, (int)getpid());
#ifdef __CUDACC__
    if (group->shared)
        return zp_comm_fail(c, ZERO_ERR_ARGUMENT,
                            "ranks that share a zero_local are threads of one process in the CUDA "
                            "build (shared 0); processes need NCCL");
#endif
    if (given->rank < 0 || given->rank >= group->nranks)
        return zp_failure_set(&c->failure, ZERO_ERR_ARGUMENT,
                              "comm.rank is %d, the group has ranks 0..%d", given->rank,
                              group->nranks - 1);
    c->group = group;
    c->rank = c->me = given->rank;
    c->nranks = c->n = group->nranks;
    for (int p = 0; p < c->n; p++) c->rank_of[p] = p;
    c->mail = (char *)malloc((size_t)c->nranks * ZP_MAIL_BYTES);
    if (!c->mail) return zp_comm_fail(c, ZERO_ERR_MEMORY, "the exchange buffer");
    c->seq[ZP_CONTROL] = group->seq[c->rank];
    zero_result r = zp_region_open(c, &c->board_region, sizeof(zp_board), 1, 1);
    group->seq[c->rank] = c->seq[ZP_CONTROL];
    if (r) return zp_comm_fail(c, r, "memory that all ranks of the machine share");
    c->board = (zp_board *)c->board_region.base[0];
    c->seq[ZP_CONTROL] = 0;
    c->node_size = given->node_size ? given->node_size : c->nranks;
    if (c->node_size < 1 || c->nranks % c->node_size)
        return zp_failure_set(&c->failure, ZERO_ERR_ARGUMENT,
                              "comm.node_size %d does not divide %d ranks", c->node_size,
                              c->nranks);
    return zp_local_devices(c);
}

#ifdef ZERO_WITH_MPI
/* Node membership, from MPI or cut by node_size; every node must have as many ranks. */
static zero_result zp_mpi_nodes(zp_comm *c, int node_size) {
    enum { SIZE = 0, FIRST, PLACE, ASKED, FIELDS };
    int n = 0, first = 0;
    if (node_size && (node_size < 1 || c->nranks % node_size))
        return zp_failure_set(&c->failure, ZERO_ERR_ARGUMENT,
                              "comm.node_size %d does not divide %d ranks", node_size, c->nranks);
    MPI_Comm host;
    ZP_MPI(c, MPI_Comm_split_type(c->mpi[ZP_CONTROL], MPI_COMM_TYPE_SHARED, c->rank, MPI_INFO_NULL,
                                  &host));
    if (node_size) {
        ZP_MPI(c, MPI_Comm_split(host, c->rank / node_size, c->rank, &c->mpi_node));
        ZP_MPI(c, MPI_Comm_free(&host));
    } else {
        c->mpi_node = host;
    }
    ZP_MPI(c, MPI_Comm_set_errhandler(c->mpi_node, MPI_ERRORS_RETURN));
    ZP_MPI(c, MPI_Comm_size(c->mpi_node, &n));
    ZP_MPI(c, MPI_Comm_rank(c->mpi_node, &c->me));
    c->n = n;
    first = c->rank;
    ZP_MPI(c,
           MPI_Bcast(&first, 1, MPI_INT, 0, c->mpi_node)); /* a node is named by its lowest rank */
    int mine[FIELDS] = {n, first, c->me, node_size};
    int *all = (int *)malloc((size_t)c->nranks * sizeof mine);
    if (!all) return zp_comm_fail(c, ZERO_ERR_MEMORY, "the list of nodes");
    const int code = MPI_Allgather(mine, FIELDS, MPI_INT, all, FIELDS, MPI_INT, c->mpi[ZP_CONTROL]);
    zero_result r = zp_mpi(c, code, "MPI_Allgather");
    for (int i = 0; i < c->nranks && !r; i++)
        if (all[FIELDS * i + ASKED] != all[ASKED])
            r = zp_failure_set(&c->failure, ZERO_ERR_MISMATCH,
                               "comm.node_size is %d on rank 0, %d on rank %d", all[ASKED],
                               all[FIELDS * i + ASKED], i);
    for (int i = 0; i < c->nranks && !r; i++) {
        const int *his = all + FIELDS * i;
        if (his[SIZE] != all[SIZE] || n > ZP_LOCAL_MAX)
            r = zp_failure_set(
                &c->failure, ZERO_ERR_ARGUMENT,
                "nodes of %d ranks (rank 0) and of %d (rank %d): every node needs the same number, "
                "at most %d; start as many ranks on every host, or set comm.node_size",
                all[SIZE], his[SIZE], i, ZP_LOCAL_MAX);
        else if (node_size && his[SIZE] != node_size)
            r = zp_failure_set(&c->failure, ZERO_ERR_ARGUMENT,
                               "comm.node_size is %d, but rank %d shares memory with "
                               "only %d of those ranks: a node lies on one host",
                               node_size, i, his[SIZE]);
    }
    c->node_size = n;
    c->nnodes = c->nranks / n;
    c->node_rank = (int *)malloc((size_t)c->nranks * sizeof *c->node_rank);
    if (!r && !c->node_rank) r = zp_comm_fail(c, ZERO_ERR_MEMORY, "the list of nodes");
    if (!r && c->nnodes > ZP_LOCAL_MAX)
        r = zp_failure_set(&c->failure, ZERO_ERR_UNSUPPORTED, "%d nodes, at most %d", c->nnodes,
                           ZP_LOCAL_MAX);
    for (int i = 0, node = -1; i < c->nranks && !r; i++) { /* nodes in order of their lowest rank */
        const int *his = all + FIELDS * i;
        if (his[PLACE] != 0) continue;
        node++;
        if (his[FIRST] == first) c->node = node;
        for (int q = 0; q < c->nranks; q++) {
            const int *other = all + FIELDS * q;
            if (other[FIRST] == his[FIRST]) c->node_rank[node * n + other[PLACE]] = q;
        }
    }
    free(all);
    return r;
}

static zero_result zp_comm_open_mpi(zp_comm *c, const zero_comm *given) {
    int level = 0, started = 0, ended = 0;
    c->mpi_node = MPI_COMM_NULL;
    if (!given->handle)
        return zp_comm_fail(c, ZERO_ERR_ARGUMENT, "comm.handle is NULL: an MPI_Comm * is needed");
    if (MPI_Initialized(&started) || MPI_Finalized(&ended) || !started || ended)
        return zp_comm_fail(
            c, ZERO_ERR_COMM,
            "MPI is not running: call MPI_Init_thread with MPI_THREAD_MULTIPLE first");
    ZP_MPI(c, MPI_Query_thread(&level));
    if (level < MPI_THREAD_MULTIPLE)
        return zp_failure_set(&c->failure, ZERO_ERR_COMM,
                              "MPI was started with thread level %d: call MPI_Init_thread with "
                              "MPI_THREAD_MULTIPLE (%d)",
                              level, MPI_THREAD_MULTIPLE);
    for (int i = 0; i < ZP_CHANNELS; i++) {
        ZP_MPI(c, MPI_Comm_dup(*(MPI_Comm *)given->handle, &c->mpi[i]));
        c->mpi_made++;
        ZP_MPI(c, MPI_Comm_set_errhandler(c->mpi[i], MPI_ERRORS_RETURN));
    }
    ZP_MPI(c, MPI_Comm_rank(c->mpi[0], &c->rank));
    ZP_MPI(c, MPI_Comm_size(c->mpi[0], &c->nranks));
    ZP_TRY(zp_mpi_nodes(c, given->node_size));
    for (int p = 0; p < c->n; p++) c->rank_of[p] = c->node_rank[c->node * c->node_size + p];
    c->shares = 1;
    c->mail = (char *)malloc((size_t)c->nranks * ZP_MAIL_BYTES);
    c->landing = (char *)calloc(ZP_CHANNELS * (size_t)(1 + c->nranks), ZP_LANDING);
    c->abort_sent = (MPI_Request *)malloc((size_t)c->nranks * sizeof *c->abort_sent);
    if (c->nnodes > 1) c->wire = (float *)malloc(zp_wire_numel(c->nnodes) * sizeof *c->wire);
    if (!c->mail || !c->landing || !c->abort_sent || (c->nnodes > 1 && !c->wire))
        return zp_comm_fail(c, ZERO_ERR_MEMORY, "the buffers between nodes");
    zero_result r = zp_region_open(c, &c->board_region, sizeof(zp_board), 1, 1);
    if (r) return zp_comm_fail(c, r, "memory that the ranks of this host share");
    c->board = (zp_board *)c->board_region.base[0];
    return ZERO_OK;
}
#endif

static zero_result zp_comm_open(zp_comm *c, zp_device *device, const zero_comm *given,
                                double timeout_s) {
    c->kind = given->kind;
    c->device = device;
    c->divisor = 1;
    c->nranks = c->n = c->node_size = 1;
    c->timeout_s = timeout_s;
    if (given->kind == ZERO_COMM_SELF) {
        c->mail = (char *)malloc(ZP_MAIL_BYTES);
        return c->mail ? ZERO_OK : zp_comm_fail(c, ZERO_ERR_MEMORY, "the exchange buffer");
    }
    if (given->kind == ZERO_COMM_LOCAL) return zp_comm_open_local(c, given);
#ifdef ZERO_WITH_MPI
    if (given->kind == ZERO_COMM_MPI) return zp_comm_open_mpi(c, given);
#endif
#ifdef ZERO_WITH_NCCL
    if (given->kind == ZERO_COMM_NCCL) return zp_comm_open_nccl(c, given);
#endif
    if (given->kind == ZERO_COMM_MPI) return zp_comm_fail(c, ZERO_ERR_UNSUPPORTED, ZP_NO_MPI);
    if (given->kind == ZERO_COMM_NCCL)
        return zp_comm_fail(c, ZERO_ERR_UNSUPPORTED,
                            "built without NCCL: compile with nvcc and -DZERO_WITH_NCCL");
    return zp_failure_set(&c->failure, ZERO_ERR_ARGUMENT, "comm.kind is %d, no such kind",
                          (int)given->kind);
}

/* Windows and communicators are freed by all ranks or by none. A context that failed, or whose
   peers did, leaves them and all that MPI may still touch to the end of the process; another waits
   here for all ranks, or for the failure of one. 1: nothing may be freed. */
static int zp_comm_abandons(zp_comm *c, int broken) {
#ifdef ZERO_WITH_MPI
    MPI_Request request;
    int ended = 0, done = 0;
    const double deadline = zp_seconds() + c->timeout_s;
    if (c->kind != ZERO_COMM_MPI || !c->mpi_made || c->abandoned) return c->abandoned;
    c->abandoned = MPI_Finalized(&ended) || ended || (broken && c->board);
    if (c->abandoned || !c->board) return c->abandoned;
    /* on the channel that has no other collectives: it ends only if nobody is broken */
    c->abandoned = MPI_Ibarrier(c->mpi[ZP_PARAMETERS], &request) != MPI_SUCCESS;
    while (!c->abandoned && !done) {
        c->abandoned = MPI_Test(&request, &done, MPI_STATUS_IGNORE)
                       || (!done && (zp_mpi_aborted(c) || zp_seconds() > deadline));
        if (!done) zp_nap();
    }
    return c->abandoned;
#else
    (void)c;
    (void)broken;
    return 0;
#endif
}

static void zp_comm_close(zp_comm *c, int broken) {
    (void)broken;
#ifdef ZERO_WITH_MPI
    if (c->abandoned) return;
#endif
#ifdef ZERO_WITH_NCCL
    zp_nccl_close(c, broken);
#endif
    zp_region_close(c, &c->stage);
    if (c->board_region.kind == ZP_HELD) zp_board_close(c->board);
    zp_region_close(c, &c->board_region);
#ifdef ZERO_WITH_MPI
    free(c->node_rank);
    free(c->wire);
    free(c->landing);
    free(c->abort_sent);
    for (int i = 0; i < c->mpi_made; i++) (void)MPI_Comm_free(&c->mpi[i]);
    if (c->mpi_made == ZP_CHANNELS && c->mpi_node != MPI_COMM_NULL)
        (void)MPI_Comm_free(&c->mpi_node);
#endif
    free(c->mail);
}

#endif

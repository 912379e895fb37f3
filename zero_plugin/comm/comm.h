/* comm.h - groups of ranks that do collectives together, and the contract of a transport

   A group is a rank, a number of ranks, and a table of functions (zp_transport), one row for each
   transport. Code outside a transport never asks which transport a group has.

   CHANNELS. One stream issues all collectives of a channel, in the same order on all ranks.
   Channels do not wait for each other. The calling thread uses CONTROL: exchange, broadcast,
   memory.

   ISSUE. When the stream's next work begins, outputs are complete and inputs may be overwritten.
     reduce-scatter  out[i] (+)= scale * sum over ranks of source[rank * shard + i], in f32, inside
                     a node in rank order, then over nodes in node order; NCCL: in its own order
     all-gather      target[r * shard + i] = rank r's source[i], for all other ranks r; a rank's own
                     part is already in place, or the transport copies it
   A list is issued as a whole, or the context has failed. The calling thread may wait for peers
   while it issues (LOCAL on GPUs), but never longer than timeout_s. The context records its first
   failure; after that, every call of every group does nothing and returns this failure.

   MEMORY for collectives belongs to the group. All ranks open it together, and it lives until all
   ranks have left the group, so a failed rank never frees memory that a peer still reads. */
#pragma once

#include "../numbers/kernels.h"

/* Kinds of collective: first those of contexts; from GROUP_MESSAGES on those of a zero_group. */
enum {
    ZP_EXCHANGE = 1,
    ZP_REDUCE_SCATTER,
    ZP_ALL_GATHER,
    ZP_BROADCAST,
    ZP_GROUP_MESSAGES,
    ZP_GROUP_ALL_REDUCE,
    ZP_GROUP_REDUCE_SCATTER,
    ZP_GROUP_ALL_GATHER,
    ZP_GROUP_ALL_TO_ALL,
    ZP_GROUP_BROADCAST,
    ZP_GROUP_BARRIER,
    ZP_GROUP_SPLIT,
    ZP_KINDS
};

/* The call that a rank has made; transports compare it with the calls of its peers. unit: the root
   of a broadcast; 2 * type + how for a sum of a zero_group; -1 if the call has no unit. */
typedef struct zp_call {
    int32_t kind, unit;
    uint64_t shard; /* elements of one rank's part, or bytes */
} zp_call;

enum { ZP_ONE = 1, ZP_ON_HOST = 2 }; /* kinds of memory */

typedef struct zp_memory {
    size_t bytes; /* of one rank's piece, the same on all ranks */
    int how;      /* ONE: all ranks see a single piece in place, and each rank owns parts of it.
                     ON_HOST: CPU memory that devices can access */
    char *base;   /* this rank's piece, or the single piece */
    char *view;   /* the same bytes as your code may see them: read-only if all ranks share a
                     single copy */
    char *peer[ZP_LOCAL_MAX]; /* by place on this machine: this rank's address of that piece */
    int holder;               /* zp_holder: how the memory was allocated */
    void *handle;             /* owned by the transport */
    int channel, registered;  /* owned by the transport: its only channel; how it is registered */
    struct zp_memory *next;   /* in its group: the memory that was opened before */
} zp_memory;

typedef struct zp_comm zp_comm;
typedef struct zp_wire zp_wire;

/* One collective of a context. Offsets are bytes in this rank's piece of the memory. */
typedef struct zp_op {
    zp_comm *group;
    zp_memory *memory;
    int kind, unit;        /* unit -1: the step's agreement */
    size_t shard;          /* elements */
    size_t source, target; /* reduce-scatter: unit, shard; all-gather: shard, unit */
    zero_type type;        /* of the elements */
    zp_channel channel;
    float *sum; /* [shard] f32 accumulator of a 16-bit reduce-scatter; NULL: none */
    float scale;
    int accumulate, in_place; /* in_place: an all-gather that only waits */
    const zp_wire *wire;      /* the encoding for sending; NULL: as stored. Transports receive
                                 only ops with NULL */
} zp_op;

/* Another encoding in which a collective sends its numbers, for example in fewer bits. */
struct zp_wire {
    size_t (*sent)(const zp_op *op); /* bytes that this rank sends */
    zero_result (*send)(zero_ctx *z, zp_stream *s, const zp_op *op);
    zero_ctx *z;
};

/* THE ORDER OF A SUM. A reduction first adds the slices of a node's ranks, those of the places
   inside[0], inside[1], ... Then it adds the sums of the nodes across[0], across[1], ... All ranks
   have the same order. NCCL has its own. With radices, LOCAL adds a tree from the inside out:
   each radix[0] ranks, then each radix[1] of these sums, and so on; their product is nranks. */
typedef struct zp_sum_order {
    unsigned char inside[ZP_LOCAL_MAX], across[ZP_LOCAL_MAX], radix[ZP_SUM_LEVELS + 1];
} zp_sum_order;

typedef struct zp_transport {
    const char *name;
    /* Joins the group. Sets rank, nranks, own, mail (malloc) and cpu_ranks .. note. COLLECTIVE. */
    zero_result (*join)(zp_comm *g, const zero_comm *given);
    /* Reports to waiting peers that this rank cannot begin to join. NCCL cannot pass on the reason.
       NULL: the transport cannot reach the peers. */
    void (*refuse)(const zero_comm *given, const char *why);
    /* Gives each rank m->bytes zeroed bytes at m->base (LOCAL: also peer[]) and counts them in
       meter.allocated_bytes. If one rank fails, all fail (ZERO_ERR_MEMORY). COLLECTIVE. */
    zero_result (*memory)(zp_comm *g, zp_memory *m);
    /* Registers memory with the library; only `channel` uses it. COLLECTIVE. NULL: not needed.
     *how becomes a few words for the log. */
    zero_result (*announce)(zp_comm *g, zp_memory *m, zp_channel channel, const char **how);
    /* Issues n ops of one group and channel, in this order. */
    zero_result (*issue)(zp_stream *s, const zp_op *op, int n);
    /* The op comes from zp_comm_host_op. An exchange copies up to ZP_MAIL_BYTES of each rank to
       g->mail of all ranks. A broadcast sends at most ZP_STAGE_NUMEL * 4 bytes. SYNC. */
    zero_result (*exchange)(const zp_op *op, const void *mine);
    zero_result (*broadcast)(const zp_op *op, void *data);
    /* Returns the bytes that a rank sends for an op, for the plan and the meter. */
    size_t (*cost)(const zp_comm *g, const zp_op *op);
    /* 1: waits have no time limit here. A thread of the transport, from `join` to `leave`, looks
       for errors and late collectives of the group, and records a failure that it finds. */
    int watches;
    /* Reports to the peers that this rank has failed. It is not called while own is NULL. */
    void (*abort)(zp_comm *g, const char *why);
    /* Leaves the group and frees all memory. If not `broken`: COLLECTIVE, at most timeout_s. */
    void (*leave)(zp_comm *g, int broken);
    /* Returns the bytes that each of n ranks allocates when they become one of `parts` parts of
       `of`: memory to meet in, and message buffers if `swaps`. The plan calls it before splits. */
    size_t (*room)(const zp_comm *of, int parts, int n, int swaps);
    /* Ranks that were just forked meet in LOCAL's *comm. Changes it to a communicator of this
       transport, which the process keeps, or writes the reason to `text`. COLLECTIVE. NULL: forked
       ranks do not need this transport. */
    zero_result (*connect)(zero_comm *comm, double timeout_s, char text[ZP_TEXT_BYTES]);
    const struct zp_messenger *messenger; /* see messages.h. NULL: ranks send no messages */
} zp_transport;

/* Defines a transport: its name, then the functions in the order above. */
#define ZP_TRANSPORT(transport, ...) static const zp_transport transport = {__VA_ARGS__}

/* The row of a kind in the table of transport.h. */
typedef struct zp_transport_row {
    zero_comm_kind kind;
    const zp_transport *transport; /* NULL: this build lacks it */
    const char *lacks;             /* then: how to build it */
} zp_transport_row;

typedef struct zp_meter {              /* counted when an op is issued */
    uint64_t sent_bytes, mapped_bytes; /* of units; the part of them that was read in place */
    uint64_t verdict_bytes;            /* of the agreement at the end of each step */
    uint64_t control_bytes;            /* of exchanges and broadcasts by the calling thread */
    uint64_t reductions, gathers;
    uint64_t gather_bytes;  /* the part of sent_bytes that is gathers of parameters */
    size_t allocated_bytes; /* of memory; for a single piece, this rank's share */
} zp_meter;

/* The names of a rank's groups, with its rank in each, for example "tp 1, pp 0". */
typedef struct zp_coords {
    char text[ZP_COORDS_BYTES];
    uint32_t closed; /* bit i: the group of entry i is closed; adding a name removes the entry */
} zp_coords;

struct zp_comm {
    int rank, nranks;
    const zp_transport *transport; /* NULL: not open */
    zp_device *device;
    zp_failure *failure; /* the context's */
    double timeout_s;

    int swaps;           /* a zero_group: it has messages and exchanges, but no op of zp_op */
    char label[8];       /* of a zero_group: the word for its ranks in messages; "": rank */
    void *own;           /* the transport's state; zp_local_ranks comes first if it calls board.h */
    int cpu_ranks;       /* ranks that share the processors of this rank */
    int shared_is_fast;  /* memory of kind ONE is as fast to read as this rank's own */
    int node_size;       /* ranks of a node, whose gradients are summed first */
    int interleaved;     /* the ranks of a node are not consecutive */
    zp_sum_order order;  /* of reductions: by rank */
    int sums;            /* the library cannot scale: a reduce-scatter's result is the sum */
    float divisor;       /* a reduce-scatter's result is the mean times this: 1, or, if `sums`,
                            nranks or cfg.divisor */
    size_t wire_bytes;   /* of the transport's buffers between nodes */
    const char *warning; /* for the log; NULL: none */
    char note[128];      /* about the library, for the log; "": nothing */
    const char **call;   /* receives the name of the function that your code called last, for the
                            process that watches this rank; NULL: none watches */
    int32_t *unit;       /* receives the unit of that call if it is a hook, otherwise -1 */
    zp_coords *coords;   /* this rank's, for peers that report it; NULL: peers cannot read them */

    char *mail;       /* [nranks * ZP_MAIL_BYTES] results of the last exchange */
    zp_memory stage;  /* [ZP_STAGE_NUMEL] f32 in CPU memory, through which data is streamed */
    zp_memory *first; /* all memory of the group */
    zp_meter meter;
};

/* Returns the word for the group's ranks in messages. */
static const char *zp_comm_rank_word(const zp_comm *g) { return g->label[0] ? g->label : "rank"; }

static const char *zp_comm_kind_name(int kind) {
    static const char *const names[ZP_KINDS] = {
        "nothing",     "an exchange", "the reduce-scatter", "the all-gather",
        "a broadcast", "messages",    "all_reduce",         "reduce_scatter",
        "all_gather",  "all_to_all",  "a broadcast",        "a barrier",
        "a split"};
    return names[kind > 0 && kind < ZP_KINDS ? kind : 0];
}
static zp_call zp_comm_op_call(const zp_op *op) {
    const zp_call call = {op->kind, op->unit, op->shard};
    return call;
}
/* Returns the op of an exchange or a broadcast. unit: the root of a broadcast, or -1. */
static zp_op zp_comm_host_op(zp_comm *g, int kind, int unit, size_t bytes) {
    const zp_op op = {g, NULL, kind, unit, bytes, 0, 0, ZERO_F32, ZP_CONTROL, NULL, 1, 0, 0, NULL};
    return op;
}
static size_t zp_comm_op_shard_bytes(const zp_op *op) {
    return op->shard * zp_type_bytes(op->type);
}

/* Returns the bytes that a rank sends for an op. */
static size_t zp_comm_op_bytes(const zp_op *op) {
    const zp_comm *g = op->group;
    return op->wire ? op->wire->sent(op) : g->transport->cost(g, op);
}

/* Records the failure, unless the context already has one. Any thread may call it. */
__attribute__((format(printf, 3, 4))) static zero_result zp_comm_fail(zp_comm *g,
                                                                      zero_result result,
                                                                      const char *format, ...) {
    zp_failure *f = g->failure;
    if (__atomic_exchange_n(&f->claimed, 1, __ATOMIC_ACQ_REL)) return result;
    va_list list;
    va_start(list, format);
    (void)vsnprintf(f->text, sizeof f->text, format, list);
    va_end(list);
    __atomic_store_n(&f->result, (int)result, __ATOMIC_RELEASE);
    return result;
}

/* Describes a call, for example "the all-gather of unit 3 (512)" or "all_reduce of 512 f32". */
static const char *zp_comm_print_call(const zp_call *c, char *text, size_t bytes) {
    static const char *const sums[] = {"f32", "f32, MAX", "bf16", "bf16, MAX",
                                       "f16", "f16, MAX", "f64",  "f64, MAX"};
    const char *name = zp_comm_kind_name(c->kind);
    const unsigned long long n = (unsigned long long)c->shard;
    if (c->kind < ZP_GROUP_MESSAGES)
        (void)snprintf(text, bytes, "%s of unit %d (%llu)", name, (int)c->unit, n);
    else if (c->kind == ZP_GROUP_ALL_REDUCE || c->kind == ZP_GROUP_REDUCE_SCATTER)
        (void)snprintf(text, bytes, "%s of %llu %s", name, n, sums[(unsigned)c->unit % 8]);
    else if (c->kind == ZP_GROUP_BROADCAST)
        (void)snprintf(text, bytes, "%s of %llu bytes from rank %d", name, n, (int)c->unit);
    else if (c->kind == ZP_GROUP_ALL_GATHER)
        (void)snprintf(text, bytes, "%s of %llu bytes", name, n);
    else
        (void)snprintf(text, bytes, "%s", name);
    return text;
}

/* Issues n ops to a stream. All ops of contexts pass here, so it counts and records them. */
static zero_result zp_comm_issue(zp_stream *s, const zp_op *op, int n) {
    zp_comm *g = op->group;
    uint64_t whole = 0, sent = 0;
    ZP_TRY(zp_failure_result(g->failure));
    for (int i = 0; i < n; i++) {
        const uint64_t bytes = g->transport->cost(g, &op[i]);
        sent += bytes;
        whole += (uint64_t)g->nranks * zp_comm_op_shard_bytes(&op[i]);
        if (op[i].unit < 0) {
            g->meter.verdict_bytes += bytes;
            continue;
        }
        g->meter.sent_bytes += bytes;
        g->meter.mapped_bytes += op[i].in_place ? bytes : 0;
        g->meter.reductions += op[i].kind == ZP_REDUCE_SCATTER;
        g->meter.gathers += op[i].kind == ZP_ALL_GATHER;
        g->meter.gather_bytes += op[i].channel == ZP_PARAMETERS ? bytes : 0;
    }
    const zero_event_kind kind = op->unit < 0                    ? ZERO_EVENT_AGREE
                                 : op->kind == ZP_REDUCE_SCATTER ? ZERO_EVENT_REDUCTION
                                                                 : ZERO_EVENT_GATHER;
    ZP_SLICE(s, kind, op->unit, whole,
             (zp_events_set_traffic(zp_slice, n, g->nranks, sent), g->transport->issue(s, op, n)));
    return ZERO_OK;
}

/* Issues collectives of units. Consecutive ops without an encoding are issued together. */
static zero_result zp_comm_send(zp_stream *s, const zp_op *op, int n) {
    for (int i = 0, next; i < n; i = next) {
        for (next = i; next < n && !op[next].wire;) next++;
        if (next > i) ZP_TRY(zp_comm_issue(s, &op[i], next - i));
        if (next == n) break;
        const zp_wire *w = op[next].wire;
        ZP_TRY(w->send(w->z, s, &op[next++]));
    }
    return ZERO_OK;
}

/* Copies `bytes` of every rank to g->mail, in rank order. SYNC. COLLECTIVE. */
static zero_result zp_comm_exchange(zp_comm *g, const void *mine, size_t bytes) {
    const zp_op op = zp_comm_host_op(g, ZP_EXCHANGE, -1, bytes);
    ZP_TRY(zp_failure_result(g->failure));
    g->meter.control_bytes += (uint64_t)(g->nranks - 1) * bytes;
    if (g->nranks > 1) return g->transport->exchange(&op, mine);
    memcpy(g->mail, mine, bytes);
    return ZERO_OK;
}

static zero_result zp_comm_barrier(zp_comm *g) {
    const int32_t one = 1;
    return zp_comm_exchange(g, &one, sizeof one);
}

/* Sets *failed to the lowest rank that passes ok = 0, or to -1 if all pass 1. COLLECTIVE. */
static zero_result zp_comm_agree(zp_comm *g, int ok, int *failed) {
    const int32_t mine = ok;
    ZP_TRY(zp_comm_exchange(g, &mine, sizeof mine));
    const int32_t *theirs = (const int32_t *)(const void *)g->mail;
    *failed = -1;
    for (int r = g->nranks - 1; r >= 0; r--)
        if (!theirs[r]) *failed = r;
    return ZERO_OK;
}

/* Sends any number of bytes from rank `root` to all ranks, in pieces of the stage's size. SYNC. */
static zero_result zp_comm_broadcast(zp_comm *g, void *data, size_t bytes, int root) {
    const size_t piece = ZP_STAGE_NUMEL * sizeof(float);
    for (size_t at = 0; at < bytes && g->nranks > 1; at += piece) {
        const zp_op op = zp_comm_host_op(g, ZP_BROADCAST, root, zp_min(piece, bytes - at));
        ZP_TRY(zp_failure_result(g->failure));
        if (g->rank == root) g->meter.control_bytes += (uint64_t)(g->nranks - 1) * op.shard;
        ZP_TRY(g->transport->broadcast(&op, (char *)data + at));
    }
    return ZERO_OK;
}

/* Opens whole pages of memory. `m` joins the group's list, even if this fails. COLLECTIVE. */
static zero_result zp_comm_open_memory(zp_comm *g, zp_memory *m, size_t bytes, int how) {
    memset(m, 0, sizeof *m);
    m->bytes = zp_round_up(zp_max(bytes, 1), 4096);
    m->how = how;
    m->next = g->first;
    g->first = m;
    ZP_TRY(g->transport->memory(g, m));
    if (!m->view) m->view = m->base;
    size_t owners = 1;
    while (m->how & ZP_ONE && owners < ZP_LOCAL_MAX && m->peer[owners]) owners++;
    g->meter.allocated_bytes += m->bytes / owners;
    return ZERO_OK;
}

/* Sets what a group belongs to, before it is opened. A wrong time limit is reported only later, so
   that peers get that error. */
static void zp_comm_prepare(zp_comm *g, zp_device *device, zp_failure *failure, double asked_s) {
    g->device = device;
    g->failure = failure;
    g->timeout_s = zp_type_is_finite(asked_s) && asked_s > 0 ? asked_s : ZP_TIMEOUT_S;
}

/* Joins the group that `given` describes, with the transport `row`. COLLECTIVE. */
static zero_result zp_comm_open(zp_comm *g, const zp_transport *row, const zero_comm *given) {
    g->transport = row;
    g->rank = 0;
    g->nranks = g->node_size = g->cpu_ranks = 1;
    g->divisor = 1;
    for (int i = 0; i < ZP_LOCAL_MAX; i++)
        g->order.inside[i] = g->order.across[i] = (unsigned char)i;
    return row->join(g, given);
}

/* Reports to the peers of an open group that this rank has failed. */
static void zp_comm_abort(zp_comm *g, const char *why) {
    if (g->transport && g->transport->abort && g->own) g->transport->abort(g, why);
}

static zero_result zp_comm_check_node_size(zp_comm *g, int size) {
    if (size == 0 || (size > 0 && g->nranks % size == 0)) return ZERO_OK;
    return zp_comm_fail(g, ZERO_ERR_ARGUMENT,
                        "comm.node_size %d does not divide %d ranks; use a divisor, or 0", size,
                        g->nranks);
}

static void zp_comm_close(zp_comm *g, int broken) {
    if (g->transport) g->transport->leave(g, broken);
    free(g->mail);
    memset(g, 0, sizeof *g);
}

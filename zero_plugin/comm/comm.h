/* comm.h - ranks that do collectives together

   A group is what the rest of the plugin knows of communication: a rank, a number of ranks, and a
   table of functions, one row per transport. Nobody outside a transport asks which one it is.

   CHANNELS. Collectives of one channel are issued by one stream, in the same order on all ranks;
   channels do not wait for each other. CONTROL is the host's own: exchange, broadcast, memory.

   ISSUE. When what the stream runs next begins, outputs are there and inputs may be written again.
     reduce-scatter  out[i] (+)= scale * sum over ranks of source[rank * shard + i], in f32, inside
                     a node in rank order, then over nodes in node order; NCCL: in its own order
     all-gather      target[r * shard + i] = rank r's source[i], for all other ranks r; a rank's own
                     part is in place already, or copied
   A list is issued whole, or the context has failed. Issuing may make the host wait for peers
   (LOCAL on GPUs), never longer than timeout_s. A failure is recorded once, in the context; after
   it every call of every group does nothing and returns it.

   MEMORY that collectives work on is opened in the group, by all ranks together, and lives until
   all have left it: a rank that failed never pulls memory from under a peer that still reads. */
#pragma once

#include "../numbers/exact.h"

/* Kinds of collective: of contexts, and from SOME_MESSAGES on of the groups that hosts have. */
enum {
    ZP_EXCHANGE = 1,
    ZP_REDUCE_SCATTER,
    ZP_ALL_GATHER,
    ZP_BROADCAST,
    ZP_SOME_MESSAGES,
    ZP_SOME_ALL_REDUCE,
    ZP_SOME_REDUCE_SCATTER,
    ZP_SOME_ALL_GATHER,
    ZP_SOME_ALL_TO_ALL,
    ZP_SOME_BROADCAST,
    ZP_SOME_BARRIER,
    ZP_SOME_SPLIT,
    ZP_KINDS
};

/* The call that a rank is in, compared with its peers'. unit: of a broadcast its root; of a host's
   sum 2 * type + how; -1: none. */
typedef struct zp_call {
    int32_t kind, unit;
    uint64_t shard; /* elements of one rank's part, or bytes */
} zp_call;

/* What stands before a message: the call that it belongs to, how many collectives its sender has
   begun, and its own bytes. */
typedef struct zp_envelope {
    zp_call call;
    uint64_t number, bytes;
} zp_envelope;

enum { ZP_ONE = 1, ZP_ON_HOST = 2 }; /* how memory is wanted */

typedef struct zp_memory {
    size_t bytes; /* of one rank's piece, the same on all ranks */
    int how;      /* ONE: a single piece that all ranks see in place, each owning parts of it.
                     ON_HOST: memory of the host, which devices reach */
    char *base;   /* this rank's piece, or the one */
    char *view;   /* the same bytes as the host may see them: where all ranks have one copy, they
                     can be read only */
    char *peer[ZP_LOCAL_MAX]; /* by place on this machine: where this rank sees that rank's piece */
    int holder;               /* zp_holder: in which way it was got */
    void *handle;             /* the transport's */
    int channel, registered;  /* the transport's: who uses it alone, and how that is known */
    struct zp_memory *next;   /* in its group: what was opened before */
} zp_memory;

typedef struct zp_comm zp_comm;
typedef struct zp_wire zp_wire;

/* One collective. Offsets are bytes in this rank's piece of the memory. */
typedef struct zp_op {
    zp_comm *group;
    zp_memory *memory;
    int kind, unit;        /* unit -1: of the step */
    size_t shard;          /* elements */
    size_t source, target; /* reduce-scatter: unit, shard; all-gather: shard, unit */
    zero_type type;        /* of the elements */
    zp_channel channel;
    float *sum; /* reduce-scatter of 16 bit: the shard's f32 accumulator; NULL: none */
    float scale;
    int accumulate, in_place; /* in_place: an all-gather that only waits */
    const zp_wire *wire;      /* how its numbers travel; NULL: as they are stored, which is all
                                 that transports know */
} zp_op;

/* Another way for the numbers of a collective to travel, for example quantized. */
struct zp_wire {
    const struct zp_codec *codec;
    size_t (*sent)(const zp_op *op); /* bytes that this rank sends */
    zero_result (*send)(zero_ctx *z, zp_stream *s, const zp_op *op);
    zero_ctx *z;
};

/* Messages that progress together, of a host's group: all are of one call. */
typedef struct zp_swap {
    zp_comm *group;
    zp_call call;
    uint64_t number; /* of the group's collectives so far, this one included */
    const zero_message *list;
    int n;
} zp_swap;

/* A collective that a library does by itself. */
typedef struct zp_whole {
    zp_comm *group;
    zp_call call;
    const void *from;
    void *to;
    size_t n; /* elements, or bytes where nothing is summed */
    zero_type type;
    zero_reduction how;
} zp_whole;

/* Where a rank comes to be when a group is cut: rank of nranks in part `part` of `parts`; -1: none.
   `memory`: the transport may use it, for as long as the group that is cut lives. */
typedef struct zp_cut {
    int parts, part, rank, nranks;
    zp_memory *memory;
} zp_cut;

typedef struct zp_transport {
    const char *name;
    /* Joins. Sets rank, nranks, own, mail (malloc) and crowd .. note. COLLECTIVE. */
    zero_result (*join)(zp_comm *g, const zero_comm *given);
    /* A rank that cannot even begin to join tells those who wait (NCCL: that, and not why). NULL:
       nobody can be told. */
    void (*refuse)(const zero_comm *given, const char *why);
    /* All ranks get memory of m->bytes, zeros, at m->base (LOCAL: peer[] too), counted in
       meter.allocated_bytes; or none does (MEMORY). COLLECTIVE. */
    zero_result (*memory)(zp_comm *g, zp_memory *m);
    /* Memory that one channel uses alone is made known to the library. COLLECTIVE. NULL: no need.
       `how`: a few words for the log. */
    zero_result (*announce)(zp_comm *g, zp_memory *m, zp_channel channel, const char **how);
    /* n ops of one group and channel, in this order. */
    zero_result (*issue)(zp_stream *s, const zp_op *op, int n);
    /* op: of zp_comm_host_op. Up to ZP_MAIL_BYTES of every rank become g->mail[0..nranks)
       everywhere; at most ZP_STAGE_NUMEL * 4 bytes go from one rank to all. SYNC. */
    zero_result (*exchange)(const zp_op *op, const void *mine);
    zero_result (*broadcast)(const zp_op *op, void *data);
    /* Bytes that a rank sends for an op: for the plan, and for the meter. */
    size_t (*cost)(const zp_comm *g, const zp_op *op);
    /* Called now and then by a thread of the context, for transports whose collectives nobody can
       wait for with a time limit; a failure that it finds is recorded. NULL: no need. */
    void (*look)(zp_comm *g);
    /* Tells the peers that this rank is gone; not called while own is NULL. */
    void (*abort)(zp_comm *g, const char *why);
    /* Leaves and frees all memory. COLLECTIVE if not `broken`, for at most timeout_s. */
    void (*leave)(zp_comm *g, int broken);
    /* The three that groups of hosts need. Messages, in the order of the list between two ranks:
       when what the stream runs next begins, they are received, and sent ones may be written. */
    zero_result (*swap)(zp_stream *s, const zp_swap *x);
    /* A communicator of part of the ranks, for further groups and contexts, and its end. COLLECTIVE
       over the group that is cut, and over the part. */
    zero_result (*cut)(zp_comm *of, const zp_cut *cut, zero_comm *part);
    void (*uncut)(zero_comm *part, int broken);
    /* A collective in the library's own way. NULL: it is made of messages. */
    zero_result (*whole)(zp_stream *s, const zp_whole *w);
    /* Where this rank sees the pieces of `m`, which is memory of `of`, by the places of `part`,
       whose rank i is rank first + i * step of `of`: to view->peer. NULL: peers' memory is not
       seen. */
    void (*view)(const zp_comm *of, const zp_memory *m, const zp_comm *part, int first, int step,
                 zp_memory *view);
    /* Bytes that each of n ranks of `of` has got once they were cut from it, into one of so many
       parts: to meet in, and of a group of messages (`swaps`) what these go through. For the plan,
       and maybe before anything is cut. */
    size_t (*room)(const zp_comm *of, int parts, int n, int swaps);
} zp_transport;

typedef struct zp_meter {              /* counted where it is issued */
    uint64_t sent_bytes, mapped_bytes; /* of units; the part of them that was seen in place */
    uint64_t verdict_bytes;            /* of the agreement that ends each step */
    uint64_t control_bytes;            /* of the host's exchanges and broadcasts */
    uint64_t reductions, gathers;
    uint64_t gather_bytes;  /* the part of sent_bytes that is gathers of parameters */
    size_t allocated_bytes; /* of memory; of a single piece, this rank's share */
} zp_meter;

/* The names of a rank's groups, with its rank in each: tp 1, pp 0. */
typedef struct zp_coords {
    char text[ZP_COORDS_BYTES];
    uint32_t closed; /* bit i: entry i is of a closed group; the next name removes it */
} zp_coords;

struct zp_comm {
    int rank, nranks;
    const zp_transport *transport; /* NULL: not open */
    zp_device *device;
    zp_failure *failure; /* the context's */
    double timeout_s;

    int swaps;         /* a host's group: of messages and exchanges, with no other collective */
    char label[8];     /* of a host's group: what its ranks are called; "": rank */
    void *own;         /* the transport's; first in it zp_seats, where it calls board.h */
    int crowd;         /* ranks that the processors which this rank sees are for */
    int shares;        /* memory that is ONE costs no more to read than one's own */
    int node_size;     /* ranks whose gradients are summed first */
    int scattered;     /* the ranks of a node do not follow one another */
    int sums;          /* the library cannot scale: a reduce-scatter's result is the sum */
    float divisor;     /* a reduce-scatter's result is the mean times this: 1; where it is the sum,
                          nranks or cfg.divisor */
    size_t wire_bytes; /* that the transport keeps for pieces on their way between nodes */
    const char *warning; /* for the log; NULL: none */
    char note[128];      /* about the library, for the log; "": nothing */
    const char **call;   /* where the name of the function that was called last is left for whoever
                            watches this rank; NULL: nobody does */
    int32_t *unit;       /* the same for the unit of a hook; -1: the function has none */
    zp_coords *coords;   /* this rank's, for peers that report it; NULL: peers cannot read them */

    char *mail;       /* [nranks * ZP_MAIL_BYTES] what the last exchange brought */
    zp_memory stage;  /* [ZP_STAGE_NUMEL] f32 of the host's, to stream through */
    zp_memory *first; /* all memory of the group */
    zp_meter meter;
};

/* What its ranks are called. */
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
/* What the hosts do together. unit: the root of a broadcast, or -1. */
static zp_op zp_comm_host_op(zp_comm *g, int kind, int unit, size_t bytes) {
    const zp_op op = {g, NULL, kind, unit, bytes, 0, 0, ZERO_F32, ZP_CONTROL, NULL, 1, 0, 0, NULL};
    return op;
}
static size_t zp_comm_op_shard_bytes(const zp_op *op) {
    return op->shard * zp_type_bytes(op->type);
}

/* Bytes that a rank sends for an op. */
static size_t zp_comm_op_bytes(const zp_op *op) {
    const zp_comm *g = op->group;
    return op->wire ? op->wire->sent(op) : g->transport->cost(g, op);
}

/* The first failure of a context is kept, whichever thread meets it. */
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

/* A call in words, as of unit 3 (512) or of 512 f32. */
static const char *zp_comm_print_call(const zp_call *c, char *text, size_t bytes) {
    static const char *const sums[] = {"f32", "f32, MAX", "bf16", "bf16, MAX",
                                       "f16", "f16, MAX", "f64",  "f64, MAX"};
    const char *name = zp_comm_kind_name(c->kind);
    const unsigned long long n = (unsigned long long)c->shard;
    const int sum = c->kind == ZP_SOME_ALL_REDUCE || c->kind == ZP_SOME_REDUCE_SCATTER;
    if (sum)
        (void)snprintf(text, bytes, "%s of %llu %s", name, n, sums[(unsigned)c->unit % 8]);
    else if (c->kind == ZP_SOME_MESSAGES || c->kind == ZP_SOME_ALL_TO_ALL
             || c->kind >= ZP_SOME_BARRIER)
        (void)snprintf(text, bytes, "%s", name);
    else if (c->kind == ZP_SOME_BROADCAST)
        (void)snprintf(text, bytes, "%s of %llu bytes from rank %d", name, n, (int)c->unit);
    else if (c->kind == ZP_SOME_ALL_GATHER)
        (void)snprintf(text, bytes, "%s of %llu bytes", name, n);
    else
        (void)snprintf(text, bytes, "%s of unit %d (%llu)", name, (int)c->unit, n);
    return text;
}

/* The only way to a stream: everything sent is counted here, and recorded. */
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
    zp_record *r = zp_device_begin_slice(s, kind, op->unit, whole);
    if (r) r->event.units = n;
    if (r) r->event.sent = sent;
    if (r) r->event.ranks = g->nranks;
    const zero_result result = g->transport->issue(s, op, n);
    zp_device_end_slice(s, r);
    return result;
}

/* Collectives of units to a stream. Neighbours that travel as they are stored are issued together.
 */
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

/* Every rank's `bytes` become g->mail[0..nranks), in rank order. SYNC. */
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

/* Any rank's no becomes everybody's; `who` is the lowest rank that said it, or -1. */
static zero_result zp_comm_agree(zp_comm *g, int ok, int *who) {
    const int32_t mine = ok;
    ZP_TRY(zp_comm_exchange(g, &mine, sizeof mine));
    const int32_t *theirs = (const int32_t *)(const void *)g->mail;
    *who = -1;
    for (int r = g->nranks - 1; r >= 0; r--)
        if (!theirs[r]) *who = r;
    return ZERO_OK;
}

/* Any number of bytes from rank root to all, by pieces of the stage. SYNC. */
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

/* Whole pages, on the group's list from here on, whatever comes of it. COLLECTIVE. */
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

/* Joins the ranks of `given`; `row` is its transport. COLLECTIVE. */
static zero_result zp_comm_open(zp_comm *g, const zp_transport *row, const zero_comm *given) {
    g->transport = row;
    g->rank = 0;
    g->nranks = g->node_size = g->crowd = 1;
    g->divisor = 1;
    return row->join(g, given);
}

static zero_result zp_comm_check_node_size(zp_comm *g, int size) {
    if (size == 0 || (size > 0 && g->nranks % size == 0)) return ZERO_OK;
    return zp_comm_fail(g, ZERO_ERR_ARGUMENT, "comm.node_size %d does not divide %d ranks", size,
                        g->nranks);
}

static void zp_comm_close(zp_comm *g, int broken) {
    if (g->transport) g->transport->leave(g, broken);
    free(g->mail);
    memset(g, 0, sizeof *g);
}

/* A thread that looks after groups while nobody else can. */
typedef struct zp_watch {
    zp_comm *group; /* [n] */
    int n, stop, runs;
    pthread_t thread;
} zp_watch;

static void *zp_comm_watch_thread(void *watch) {
    zp_watch *w = (zp_watch *)watch;
    zp_device_set_current(w->group->device);
    while (!__atomic_load_n(&w->stop, __ATOMIC_ACQUIRE)) {
        for (int i = 0; i < 100; i++) zp_nap();
        for (int i = 0; i < w->n; i++)
            if (w->group[i].transport && w->group[i].transport->look)
                w->group[i].transport->look(&w->group[i]);
    }
    return NULL;
}

static zero_result zp_comm_open_watch(zp_watch *w, zp_comm *groups, int n) {
    int wanted = 0;
    for (int i = 0; i < n; i++) wanted |= groups[i].transport && groups[i].transport->look;
    w->group = groups;
    w->n = n;
    w->stop = 0; /* it may have been closed */
    w->runs = wanted && pthread_create(&w->thread, NULL, zp_comm_watch_thread, w) == 0;
    if (!wanted || w->runs) return ZERO_OK;
    return zp_comm_fail(groups, ZERO_ERR_MEMORY, "a thread that looks after the groups");
}

static void zp_comm_close_watch(zp_watch *w) {
    __atomic_store_n(&w->stop, 1, __ATOMIC_RELEASE);
    if (w->runs) (void)pthread_join(w->thread, NULL);
    w->runs = 0;
}

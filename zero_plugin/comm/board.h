/* board.h - how ranks of one machine wait for each other

   The board is shared memory with one line per rank and channel. In a collective each rank writes
   its line, raises `ready`, waits until all ranks are ready, works, raises `done`, and waits until
   all ranks are done. No rank is ahead by more than one collective, so one line is enough. All
   ranks sleep on one word, and the last one wakes them: N ranks need at most N sleeps.

     channel GRADIENTS   | rank 0: ready done call source target | rank 1: ... | ranks, complete |
     channel PARAMETERS  | ...
     channel CONTROL     | ...                       mail: 512 bytes per rank */
#pragma once

#include "comm.h"

typedef struct zp_line {
    uint32_t reached[2]; /* ready, done: collectives that this rank has begun, and ended */
    zp_call call;
    uint64_t source, target; /* byte offsets in the rank's memory: its input, its gathered unit */
    unsigned char pad[24];
} zp_line;
static_assert(sizeof(zp_line) == 64, "a line of the board is a cache line");

typedef struct zp_arrivals { /* counts a channel's ready ranks, or its done ranks */
    uint32_t ranks;          /* ranks so far, over all collectives */
    uint32_t complete;       /* number of the last collective that all ranks have reached */
    unsigned char pad[56];
} zp_arrivals;

/* If ranks are threads, their board owns their memory, and their group owns the board. So a failed
   rank cannot free memory that a peer still reads. A rank that fails in an exchange does not know
   which peers it has reached. */
typedef struct zp_shared_memory_owner {
    struct zp_shared_memory_owner *next;
    zp_memory memory;
} zp_shared_memory_owner;

typedef struct zp_board {
    zp_line lines[ZP_CHANNELS][ZP_LOCAL_MAX]; /* first: a board begins on a cache line */
    zp_arrivals arrivals[ZP_CHANNELS][2];
    uint32_t aborted;
    int32_t abort_claimed, abort_rank, abort_result;
    uint32_t left[ZP_LOCAL_MAX]; /* by place: 1 if the rank has destroyed its context */
    uint32_t users; /* threads: ranks that have not closed the board; the last one frees it */
    zp_shared_memory_owner *self;   /* threads: of the board's own memory */
    zp_shared_memory_owner *pieces; /* threads: of the ranks' memory */
    char abort_text[ZP_TEXT_BYTES];
    unsigned char mail[ZP_LOCAL_MAX][ZP_MAIL_BYTES];
    /* CUDA, by place: the rank's stream has reached the collective; it is done with it */
    zp_event streams[2][ZP_CONTROL][ZP_LOCAL_MAX];
} zp_board;

struct zero_local {
    int nranks, shared;
    int placed; /* in the caller's memory */
    int parted; /* each rank sees only its own processors */
    pid_t maker;
    zp_board board; /* for opening contexts; each context then has a board of its own */
    /* Threads: those boards, and memory of failed joins; freed with the group. */
    zp_shared_memory_owner *boards;
    uint32_t seq[ZP_LOCAL_MAX];     /* collectives on `board` so far; a rank uses only its own */
    const char *call[ZP_LOCAL_MAX]; /* the plugin's function that the rank called last, for the
                                       parent of forked ranks, which has the same literals */
    int32_t unit[ZP_LOCAL_MAX];     /* of that call if it is a hook, otherwise -1 */
    /* For a part of a split, by rank: the zero_local that was split, at this rank's address, and
       the rank there. The first zero_local has NULL, and alone has coordinates ("tp 1, pp 0"). */
    zero_local *of[ZP_LOCAL_MAX];
    int32_t of_rank[ZP_LOCAL_MAX], first_rank[ZP_LOCAL_MAX];
    zp_coords coords[ZP_LOCAL_MAX];
    uint32_t ranks_left; /* threads: ranks that have left the part */
};

/* Sets up the place where local ranks meet, in memory that they share. */
static void zp_board_make_local(zero_local *l, int nranks, int shared) {
    memset(l, 0, sizeof *l);
    l->nranks = nranks;
    l->shared = shared;
    l->maker = getpid();
}

/* Returns the first zero_local, from which l was split; *rank becomes the rank there. */
static zero_local *zp_board_first_local(zero_local *l, int *rank) {
    while (l && l->of[*rank]) {
        zero_local *of = l->of[*rank];
        *rank = l->of_rank[*rank];
        l = of;
    }
    return l;
}

/* The group's ranks on this machine. A rank's place is its index among them. */
typedef struct zp_local_ranks {
    int n, me;
    int rank_of[ZP_LOCAL_MAX]; /* rank of each place */
    zp_board *board;           /* of this context; NULL: not open yet */
    zero_local *local;         /* whose board opens it; NULL: the transport exchanges by itself */
    uint32_t seq[ZP_CHANNELS]; /* collectives so far */
    zp_memory board_memory;
    zp_memory pipes; /* of a zero_group: see pipe.h */
} zp_local_ranks;
static zp_local_ranks *zp_board_ranks_of(const zp_comm *g) { return (zp_local_ranks *)g->own; }
static zp_board *zp_board_of(const zp_local_ranks *s) {
    return s->board ? s->board : &s->local->board;
}

static void zp_board_abort(zp_board *b, int rank, zero_result result, const char *why) {
    if (__atomic_exchange_n(&b->abort_claimed, 1, __ATOMIC_ACQ_REL)) return;
    b->abort_rank = rank;
    b->abort_result = result;
    size_t n = 0; /* no library call: this may run in a signal handler */
    for (; why[n] && n + 1 < sizeof b->abort_text; n++) b->abort_text[n] = why[n];
    b->abort_text[n] = 0;
    __atomic_store_n(&b->aborted, 1, __ATOMIC_RELEASE);
}

#define ZP_RANK_TEXT (ZP_COORDS_BYTES + 48)
/* Describes a rank of the group, for example "rank 3" or "tp 1 (rank 3: tp 1, pp 0)". Your code may
   pass an invalid rank (zero_local_abort); it is described by its number. */
static const char *zp_board_print_rank(const zp_comm *g, int rank, char text[ZP_RANK_TEXT]) {
    const zp_local_ranks *s = zp_board_ranks_of(g);
    zero_local *local = s && rank >= 0 && rank < ZP_LOCAL_MAX ? s->local : NULL;
    const int cut = local && local->of[g->rank];
    int me = g->rank;
    const zero_local *first = zp_board_first_local(local, &me);
    const int there = cut ? local->first_rank[rank] : rank;
    const char *coords = first ? first->coords[there].text : "";
    int n = snprintf(text, ZP_RANK_TEXT, "%s %d", zp_comm_rank_word(g), rank);
    if (cut || (coords[0] && g->label[0]))
        (void)snprintf(text + n, ZP_RANK_TEXT - (size_t)n, " (rank %d%s%s)", there,
                       coords[0] ? ": " : "", coords);
    else if (coords[0])
        (void)snprintf(text + n, ZP_RANK_TEXT - (size_t)n, " (%s)", coords);
    return text;
}

/* Compares the calls of two ranks. A difference is an error of both. */
static zero_result zp_board_compare_calls(zp_comm *g, int rank, const zp_call *theirs,
                                          const zp_call *mine) {
    char a[96], b[96], name[2][ZP_RANK_TEXT];
    if (theirs->kind == mine->kind && theirs->unit == mine->unit && theirs->shard == mine->shard)
        return ZERO_OK;
    return zp_comm_fail(
        g, ZERO_ERR_MISMATCH,
        "%s is at %s, %s at %s: all ranks must call the same %s in the same order",
        zp_board_print_rank(g, rank, name[0]), zp_comm_print_call(theirs, a, sizeof a),
        zp_board_print_rank(g, g->rank, name[1]), zp_comm_print_call(mine, b, sizeof b),
        g->swaps && mine->kind != ZP_REDUCE_SCATTER ? "functions with the same sizes"
                                                    : "hooks and functions");
}

static zero_result zp_board_report_peer(zp_comm *g, int rank, int result, const char *why) {
    char name[ZP_RANK_TEXT];
    if (result == ZERO_ERR_MISMATCH) return zp_comm_fail(g, ZERO_ERR_MISMATCH, "%s", why);
    if (rank < 0) return zp_comm_fail(g, ZERO_ERR_PEER, "%s", why);
    return zp_comm_fail(g, ZERO_ERR_PEER, "%s failed: %s", zp_board_print_rank(g, rank, name), why);
}

/* Returns the board on which a rank or the launcher has reported a failure: that of the group, or
   of a group from which it was split. NULL: no failure. */
static const zp_board *zp_board_with_failure(const zp_comm *g) {
    const zp_local_ranks *s = zp_board_ranks_of(g);
    int rank = g->rank;
    if (s->board && __atomic_load_n(&s->board->aborted, __ATOMIC_ACQUIRE)) return s->board;
    for (const zero_local *l = s->local; l;) {
        if (__atomic_load_n(&l->board.aborted, __ATOMIC_ACQUIRE)) return &l->board;
        const zero_local *of = l->of[rank];
        rank = l->of_rank[rank];
        l = of;
    }
    return NULL;
}

static zero_result zp_board_check_abort(zp_comm *g) {
    const zp_local_ranks *s = zp_board_ranks_of(g);
    const zp_board *b = zp_board_with_failure(g);
    if (!b) return ZERO_OK;
    if (b == s->board || b == &s->local->board || b->abort_rank < 0)
        return zp_board_report_peer(g, (int)b->abort_rank, b->abort_result, b->abort_text);
    return zp_comm_fail(g, ZERO_ERR_PEER, "rank %d of the group that was split: %s",
                        (int)b->abort_rank, b->abort_text);
}

/* Returns the error that peers get: PEER, or MISMATCH if calls differ in a zero_group. */
static zero_result zp_board_abort_result(const zp_comm *g) {
    const int differs = g->swaps && zp_failure_result(g->failure) == ZERO_ERR_MISMATCH;
    return differs ? ZERO_ERR_MISMATCH : ZERO_ERR_PEER;
}

static void zp_board_abort_local(zp_comm *g, const char *why) {
    const zp_local_ranks *s = zp_board_ranks_of(g);
    if (s->board || s->local)
        zp_board_abort(zp_board_of(s), g->rank, zp_board_abort_result(g), why);
}

/* Reports that `rank` did not come within the time limit; -1: an unknown rank. */
static zero_result zp_board_report_timeout(zp_comm *g, int kind, int rank) {
    char name[ZP_RANK_TEXT] = "not all ranks", text[ZP_TEXT_BYTES];
    if (rank >= 0) (void)zp_board_print_rank(g, rank, name);
    (void)snprintf(text, sizeof text, "%s %s to %s within %g s", name,
                   rank >= 0 ? "did not come" : "came", zp_comm_kind_name(kind), g->timeout_s);
    zp_board_abort_local(g, text);
    return zp_comm_fail(g, ZERO_ERR_TIMEOUT, "%s", text);
}

/* Sleeps until *word may have changed, at most 20 ms, after which the caller looks for aborts and
   the time limit. zp_board_wake wakes all that sleep on *word. */
static void zp_board_sleep_on(uint32_t *word, uint32_t seen) {
    const struct timespec t = {0, 20000000};
    (void)syscall(SYS_futex, word, FUTEX_WAIT, seen, &t, NULL, 0);
}
static void zp_board_wake(uint32_t *word) {
    (void)syscall(SYS_futex, word, FUTEX_WAKE, 0x7fffffff, NULL, NULL, 0);
}

/* Sets *missing to the lowest place that has not reached this rank's collective (ready, or done if
   `end`), or to -1. Ranks that have reached it must be in the same call. Aborts are read before the
   lines, because a rank may reach the collective and then fail. */
static zero_result zp_board_find_missing(const zp_op *op, int end, int *missing) {
    zp_comm *g = op->group;
    const zp_local_ranks *s = zp_board_ranks_of(g);
    zp_board *b = zp_board_of(s);
    zp_line *lines = b->lines[op->channel];
    const int failed = zp_board_with_failure(g) != NULL;
    char name[ZP_RANK_TEXT];
    int gone = -1;
    *missing = -1;
    for (int p = s->n - 1; p >= 0; p--) {
        const uint32_t left = __atomic_load_n(&b->left[p], __ATOMIC_ACQUIRE);
        const uint32_t at = __atomic_load_n(&lines[p].reached[end], __ATOMIC_ACQUIRE);
        if ((int32_t)(at - s->seq[op->channel]) < 0) {
            *missing = p;
            if (left) gone = p;
        } else if (!end)
            ZP_TRY(zp_board_compare_calls(g, s->rank_of[p], &lines[p].call, &lines[s->me].call));
    }
    if (failed && *missing >= 0) return zp_board_check_abort(g);
    if (gone < 0) return ZERO_OK;
    return zp_comm_fail(g, ZERO_ERR_PEER, "%s destroyed its context before %s",
                        zp_board_print_rank(g, s->rank_of[gone], name),
                        zp_comm_kind_name(op->kind));
}

/* Waits until all ranks have reached this rank's collective. */
static zero_result zp_board_wait_for_all(const zp_op *op, int end, uint32_t *complete) {
    zp_comm *g = op->group;
    const zp_local_ranks *s = zp_board_ranks_of(g);
    double deadline = 0;
    for (int spin = 0;; spin++) {
        const uint32_t seen = __atomic_load_n(complete, __ATOMIC_ACQUIRE);
        int missing = -1;
        if ((int32_t)(seen - s->seq[op->channel]) >= 0) return ZERO_OK;
        if (spin < 64) continue;
        if (!zp_board_with_failure(g))
            zp_board_sleep_on(complete, seen); /* after an abort, do not sleep */
        ZP_TRY(zp_board_find_missing(op, end, &missing));
        if (missing < 0) return ZERO_OK;
        const double now = zp_seconds();
        if (deadline == 0) deadline = now + g->timeout_s;
        if (now > deadline) return zp_board_report_timeout(g, op->kind, s->rank_of[missing]);
    }
}

/* Begins the channel's next collective, waits for all ranks, and checks that they are in the same
   call. With `end`, it ends the collective and waits until all ranks have ended it. */
static zero_result zp_board_meet(const zp_op *op, int end) {
    zp_local_ranks *s = zp_board_ranks_of(op->group);
    if (s->n == 1) return ZERO_OK;
    zp_board *b = zp_board_of(s);
    zp_line *lines = b->lines[op->channel], *mine = &lines[s->me];
    zp_arrivals *arrivals = &b->arrivals[op->channel][end];
    if (!end) {
        s->seq[op->channel]++;
        mine->call = zp_comm_op_call(op);
        mine->source = op->source;
        mine->target = op->target;
    }
    const uint32_t seq = s->seq[op->channel];
    __atomic_store_n(&mine->reached[end], seq, __ATOMIC_RELEASE);
    const uint32_t came = __atomic_add_fetch(&arrivals->ranks, 1, __ATOMIC_ACQ_REL);
    if (came == seq * (uint32_t)s->n) {
        __atomic_store_n(&arrivals->complete, seq, __ATOMIC_RELEASE);
        zp_board_wake(&arrivals->complete);
    } else {
        ZP_TRY(zp_board_wait_for_all(op, end, &arrivals->complete));
    }
    for (int p = 0; p < s->n && !end; p++)
        ZP_TRY(zp_board_compare_calls(op->group, s->rank_of[p], &lines[p].call, &mine->call));
    return ZERO_OK;
}

/* The transport's exchange, if all ranks are on this machine. */
static zero_result zp_board_exchange(const zp_op *op, const void *mine) {
    const zp_local_ranks *s = zp_board_ranks_of(op->group);
    unsigned char(*mail)[ZP_MAIL_BYTES] = zp_board_of(s)->mail;
    memcpy(mail[s->me], mine, op->shard);
    ZP_TRY(zp_board_meet(op, 0));
    for (int p = 0; p < s->n; p++)
        memcpy(op->group->mail + (size_t)p * op->shard, mail[p], op->shard);
    return zp_board_meet(op, 1);
}

static zero_result zp_board_broadcast(const zp_op *op, void *data) {
    const zp_memory *stage = &op->group->stage;
    const int root = op->unit, copies = data != stage->base;
    if (op->group->rank == root && copies) memcpy(stage->base, data, op->shard);
    ZP_TRY(zp_board_meet(op, 0));
    if (op->group->rank != root && copies) memcpy(data, stage->peer[root], op->shard);
    return zp_board_meet(op, 1);
}

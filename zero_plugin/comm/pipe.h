/* pipe.h - messages between ranks of one machine

   Each rank has a pipe to each other rank, in its own memory, which the receiver sees. A pipe has
   ZP_PIPE_SLOTS slots. Processes split a message into pieces; the sender copies them into the
   slots, and the receiver copies them out. If the ranks are threads, a slot holds the message's
   address, and the receiver copies it once. On GPUs the receiver's stream waits for the sender's
   stream, then copies, and the sender's stream waits for the copy.

     sender's memory  waker | to place 0: written read [ envelope piece ] x slots | to place 1: ...

   `written` and `read` count pieces. A rank that raises one of them wakes the other rank,
   the only word on which that rank sleeps. All messages of a list progress together. */
#pragma once

#include "messages.h"
#include "shared_memory.h"

#define ZP_PIPE_SLOTS ((size_t)4)

typedef struct zp_pipe_slot {
    zp_envelope envelope;
    const char *data; /* threads: address of the message */
    unsigned char pad[64 - sizeof(zp_envelope) - sizeof(char *)];
} zp_pipe_slot; /* its piece follows */
static_assert(sizeof(zp_pipe_slot) == 64, "a piece begins on a line");

enum { ZP_PIPE_EMPTY = 0, ZP_PIPE_FULL, ZP_PIPE_TAKEN };
typedef struct zp_pipe {
    uint32_t written;
    unsigned char pad[60];
    uint32_t read;
    uint32_t state; /* threads: of the address in the slot. A sender that fails empties it, but
                       waits while the receiver copies (TAKEN) */
    unsigned char rest[56];
} zp_pipe; /* its slots follow */

typedef struct zp_waker {
    uint32_t wakes, sleeps;
    unsigned char pad[56];
} zp_waker;

/* Returns 1 if the ranks are threads of one process. */
static int zp_pipe_is_direct(const zp_local_ranks *s) { return !s->local->shared; }

/* Returns the bytes of a piece, which is smaller for more ranks; 0 for threads. */
static size_t zp_pipe_piece_bytes(int direct, size_t ranks) {
    if (direct) return 0;
    return zp_max(4096, zp_min(65536, ((size_t)1 << 18) / ranks / 4096 * 4096));
}
static size_t zp_pipe_piece(const zp_local_ranks *s) {
    return zp_pipe_piece_bytes(zp_pipe_is_direct(s), (size_t)s->n);
}
static size_t zp_pipe_slot_bytes(size_t piece) {
    return sizeof(zp_pipe) + ZP_PIPE_SLOTS * (sizeof(zp_pipe_slot) + piece);
}
static size_t zp_pipe_bytes(const zp_local_ranks *s) {
    return zp_pipe_slot_bytes(zp_pipe_piece(s));
}
/* Returns the bytes of a rank's waker and all its pipes. */
static size_t zp_pipe_all_bytes(int direct, size_t ranks) {
    return sizeof(zp_waker) + ranks * zp_pipe_slot_bytes(zp_pipe_piece_bytes(direct, ranks));
}
static zp_waker *zp_pipe_waker_of(const zp_local_ranks *s, int place) {
    return (zp_waker *)(void *)s->pipes.peer[place];
}
static zp_pipe *zp_pipe_between(const zp_local_ranks *s, int from, int to) {
    char *piece = s->pipes.peer[from] + sizeof(zp_waker);
    return (zp_pipe *)(void *)(piece + (size_t)to * zp_pipe_bytes(s));
}
static zp_pipe_slot *zp_pipe_slot_at(const zp_local_ranks *s, zp_pipe *p, uint32_t number) {
    char *slots = (char *)(p + 1);
    const size_t i = zp_pipe_is_direct(s) ? 0 : number % ZP_PIPE_SLOTS;
    return (zp_pipe_slot *)(void *)(slots + i * (sizeof(zp_pipe_slot) + zp_pipe_piece(s)));
}

/* COLLECTIVE. */
static zero_result zp_pipe_open(zp_comm *g) {
    zp_local_ranks *s = zp_board_ranks_of(g);
    const size_t bytes = zp_pipe_all_bytes(zp_pipe_is_direct(s), (size_t)s->n);
    const zero_result r = zp_comm_open_memory(g, &s->pipes, bytes, ZP_ON_HOST);
    return r ? zp_comm_fail(g, r, "%zu bytes that peers see", bytes) : ZERO_OK;
}

/* Wakes the rank at `place`, even if it is about to sleep. */
static void zp_pipe_wake(const zp_local_ranks *s, int place) {
    zp_waker *b = zp_pipe_waker_of(s, place);
    (void)__atomic_add_fetch(&b->wakes, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&b->sleeps, __ATOMIC_SEQ_CST)) zp_board_wake(&b->wakes);
}
static void zp_pipe_sleep(const zp_local_ranks *s, uint32_t seen) {
    zp_waker *b = zp_pipe_waker_of(s, s->me);
    __atomic_store_n(&b->sleeps, 1, __ATOMIC_SEQ_CST);
    if (__atomic_load_n(&b->wakes, __ATOMIC_SEQ_CST) == seen) zp_board_sleep_on(&b->wakes, seen);
    __atomic_store_n(&b->sleeps, 0, __ATOMIC_SEQ_CST);
}

/* The progress of a message. */
typedef struct zp_moving {
    size_t bytes; /* that are copied, or whose address is in the slot */
    int begun, done;
} zp_moving;

/* Sends as much as the pipe has room for. Returns 1 if something moved. */
static int zp_pipe_send(zp_stream *str, const zp_swap *x, const zero_message *m, zp_moving *at,
                        zero_result *r) {
    const zp_local_ranks *s = zp_board_ranks_of(x->group);
    zp_pipe *p = zp_pipe_between(s, s->me, m->peer);
    const zp_envelope mine = {x->call, x->number, m->bytes};
    const int direct = zp_pipe_is_direct(s);
    const size_t room = direct ? 1 : ZP_PIPE_SLOTS;
    int moved = 0;
    for (;;) {
        const uint32_t written = p->written, read = __atomic_load_n(&p->read, __ATOMIC_ACQUIRE);
        if (at->bytes == m->bytes && (!direct || (at->begun && read == written))) {
            at->done = 1;
            if (direct && !zp_device_is_host())
                *r = zp_device_wait_event(str, &s->board->streams[1][0][m->peer]);
            return 1;
        }
        if (at->bytes == m->bytes || written - read >= room) return moved;
        zp_pipe_slot *slot = zp_pipe_slot_at(s, p, written);
        const size_t n = direct ? m->bytes : zp_min(zp_pipe_piece(s), m->bytes - at->bytes);
        slot->envelope = mine;
        slot->data = (const char *)m->data;
        if (!direct) memcpy(slot + 1, (const char *)m->data + at->bytes, n);
        __atomic_store_n(&p->state, ZP_PIPE_FULL, __ATOMIC_RELEASE);
        at->bytes += n;
        moved = at->begun = 1;
        __atomic_store_n(&p->written, written + 1, __ATOMIC_RELEASE);
        zp_pipe_wake(s, m->peer);
    }
}

/* Receives the pieces that have arrived. Returns 1 if something moved. */
static int zp_pipe_receive(zp_stream *str, const zp_swap *x, const zero_message *m, zp_moving *at,
                           zero_result *r) {
    zp_comm *g = x->group;
    const zp_local_ranks *s = zp_board_ranks_of(g);
    zp_pipe *p = zp_pipe_between(s, m->peer, s->me);
    const zp_envelope mine = {x->call, x->number, m->bytes};
    const int direct = zp_pipe_is_direct(s);
    int moved = 0;
    while (!at->done) {
        const uint32_t read = p->read, written = __atomic_load_n(&p->written, __ATOMIC_ACQUIRE);
        uint32_t full = ZP_PIPE_FULL;
        if (read == written) return moved;
        if (direct
            && !__atomic_compare_exchange_n(&p->state, &full, ZP_PIPE_TAKEN, 0, __ATOMIC_ACQ_REL,
                                            __ATOMIC_ACQUIRE))
            return moved;
        const zp_pipe_slot *slot = zp_pipe_slot_at(s, p, read);
        const size_t n = direct ? m->bytes : zp_min(zp_pipe_piece(s), m->bytes - at->bytes);
        *r = zp_message_compare(g, m->peer, &slot->envelope, &mine);
        if (!*r && direct && !zp_device_is_host())
            *r = zp_device_wait_event(str, &s->board->streams[0][0][m->peer]);
        const char *from = direct ? slot->data : (const char *)(slot + 1);
        if (!*r) *r = zp_device_copy(str, (char *)m->data + at->bytes, from, n);
        if (!*r && direct && !zp_device_is_host())
            *r = zp_device_record_event(str, &s->board->streams[1][0][s->me]);
        if (direct) __atomic_store_n(&p->state, ZP_PIPE_EMPTY, __ATOMIC_RELEASE);
        if (*r) return 1;
        at->bytes += n;
        at->done = at->bytes == m->bytes;
        moved = 1;
        __atomic_store_n(&p->read, read + 1, __ATOMIC_RELEASE);
        zp_pipe_wake(s, m->peer);
    }
    return moved;
}

/* Advances all messages, one at a time between two ranks in one direction. It tries all before it
   returns an error, so that a peer in another call gets the error, too. */
static int zp_pipe_advance_messages(zp_stream *str, const zp_swap *x, zp_moving *at, int *left,
                                    zero_result *r) {
    unsigned char stopped[2][ZP_LOCAL_MAX] = {{0}, {0}};
    int moved = 0;
    *left = 0;
    for (int i = 0; i < x->n; i++) {
        const zero_message *m = &x->list[i];
        zero_result one = ZERO_OK;
        if (at[i].done || stopped[m->sends][m->peer]) continue;
        moved |= m->sends ? zp_pipe_send(str, x, m, &at[i], &one)
                          : zp_pipe_receive(str, x, m, &at[i], &one);
        if (one && !*r) *r = one;
        if (at[i].done) continue;
        stopped[m->sends][m->peer] = 1;
        *left = 1;
    }
    return moved;
}

/* Empties this rank's slots after a failure, so that no peer reads its buffers any more. */
static void zp_pipe_empty_slots(const zp_swap *x, const zp_moving *at) {
    const zp_local_ranks *s = zp_board_ranks_of(x->group);
    for (int i = 0; i < x->n && zp_pipe_is_direct(s); i++) {
        uint32_t *state = &zp_pipe_between(s, s->me, x->list[i].peer)->state, full = ZP_PIPE_FULL;
        if (!x->list[i].sends || at[i].done || !at[i].begun) continue;
        while (!__atomic_compare_exchange_n(state, &full, ZP_PIPE_EMPTY, 0, __ATOMIC_ACQ_REL,
                                            __ATOMIC_ACQUIRE)) {
            if (full == ZP_PIPE_EMPTY) break;
            full = ZP_PIPE_FULL;
            zp_nap();
        }
    }
}

/* Checks a message that has arrived but that this rank does not receive: if it has the same
   collective's number, it must belong to the same call. */
static zero_result zp_pipe_check_front(const zp_swap *x, int from) {
    const zp_local_ranks *s = zp_board_ranks_of(x->group);
    zp_pipe *p = zp_pipe_between(s, from, s->me);
    if (from == s->me || __atomic_load_n(&p->written, __ATOMIC_ACQUIRE) == p->read) return ZERO_OK;
    const zp_envelope *theirs = &zp_pipe_slot_at(s, p, p->read)->envelope;
    const int sums = theirs->call.kind != ZP_GROUP_MESSAGES && x->call.kind != ZP_GROUP_MESSAGES;
    if (!sums || theirs->number != x->number) return ZERO_OK;
    return zp_board_compare_calls(x->group, from, &theirs->call, &x->call);
}

/* Checks for peers that are gone, failures and the time limit, then sleeps. */
static zero_result zp_pipe_wait(const zp_swap *x, const zp_moving *at, const uint32_t *gone,
                                uint32_t seen, double *deadline) {
    zp_comm *g = x->group;
    const zp_local_ranks *s = zp_board_ranks_of(g);
    char name[ZP_RANK_TEXT];
    const double now = zp_seconds();
    int missing = -1;
    ZP_TRY(zp_board_check_abort(g));
    for (int p = 0; p < s->n; p++) ZP_TRY(zp_pipe_check_front(x, p));
    for (int i = 0; i < x->n; i++) {
        const int peer = x->list[i].peer;
        if (at[i].done) continue;
        missing = peer;
        if (gone[peer])
            return zp_comm_fail(g, ZERO_ERR_PEER, "%s closed its group before %s",
                                zp_board_print_rank(g, peer, name),
                                zp_comm_kind_name(x->call.kind));
    }
    if (*deadline == 0) *deadline = now + g->timeout_s;
    if (now > *deadline) return zp_board_report_timeout(g, x->call.kind, missing);
    zp_pipe_sleep(s, seen);
    return ZERO_OK;
}

static zero_result zp_pipe_exchange_messages(zp_stream *str, const zp_swap *x) {
    const zp_local_ranks *s = zp_board_ranks_of(x->group);
    zp_moving at[ZP_MESSAGES];
    uint32_t gone[ZP_LOCAL_MAX];
    zero_result r = ZERO_OK;
    double deadline = 0;
    memset(at, 0, (size_t)x->n * sizeof *at);
    if (!zp_device_is_host()) ZP_TRY(zp_device_record_event(str, &s->board->streams[0][0][s->me]));
    for (int spin = 0, left = 1; left && !r; spin++) {
        const uint32_t seen = __atomic_load_n(&zp_pipe_waker_of(s, s->me)->wakes, __ATOMIC_SEQ_CST);
        for (int p = 0; p < s->n; p++)
            gone[p] = __atomic_load_n(&s->board->left[p], __ATOMIC_ACQUIRE);
        if (zp_pipe_advance_messages(str, x, at, &left, &r)) spin = 0, deadline = 0;
        if (left && !r && spin >= 64) r = zp_pipe_wait(x, at, gone, seen, &deadline);
    }
    if (r) zp_pipe_empty_slots(x, at);
    return r;
}

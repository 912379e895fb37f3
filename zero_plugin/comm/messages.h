/* messages.h - messages between ranks; collectives of a zero_group; parts of a split group */
#pragma once

#include "board.h"

enum { ZP_MESSAGES = 256 }; /* most messages of one list */

/* Messages that progress together; all belong to one call. */
typedef struct zp_swap {
    zp_comm *group;
    zp_call call;
    uint64_t number; /* the group's collectives so far, including this one */
    const zero_message *list;
    int n;
} zp_swap;

/* A collective of a zero_group, which the transport's library may run as one operation; `from` may
   also be a list of n messages. */
typedef struct zp_collective {
    zp_comm *group;
    zp_call call;
    const void *from;
    void *to;
    size_t n; /* elements; bytes if nothing is summed */
    zero_type type;
    zero_reduction how;
} zp_collective;

/* A rank's place after a group is split: `rank` of `nranks` in part `part` of `parts`; part -1:
   this rank is in no part. The transport may use `memory` while the group that is split lives. */
typedef struct zp_cut {
    int parts, part, rank, nranks;
    zp_memory *memory;
} zp_cut;

/* The functions of a transport for messages and groups. Each may be NULL. */
typedef struct zp_messenger {
    /* Exchanges messages; between two ranks they keep the list's order. Then the stream's next work
       may read received and overwrite sent buffers. */
    zero_result (*swap)(zp_stream *s, const zp_swap *x);
    /* make_part makes a communicator for some of the ranks, for further groups and contexts. It is
       COLLECTIVE over the group that is split. free_part frees it, COLLECTIVE over the part. */
    zero_result (*make_part)(zp_comm *of, const zp_cut *cut, zero_comm *part);
    void (*free_part)(zero_comm *part, int broken);
    /* Runs a collective with the library's own function. NULL: the plugin makes it of messages. */
    zero_result (*whole)(zp_stream *s, const zp_collective *w);
    /* Sets view->peer, by the places of `part`, to this rank's addresses of the pieces of `m`. `m`
       is memory of `of`; rank i of `part` is rank first + i * step of `of`. NULL: this transport
       does not see the memory of peers. */
    void (*view)(const zp_comm *of, const zp_memory *m, const zp_comm *part, int first, int step,
                 zp_memory *view);
} zp_messenger;
static const zp_messenger zp_message_none = {NULL, NULL, NULL, NULL, NULL};
/* Defines a messenger: its name, then the functions in the order above. */
#define ZP_MESSENGER(messenger, ...) static const zp_messenger messenger = {__VA_ARGS__}

/* Returns the transport's functions for messages; all are NULL if it has none. */
static const zp_messenger *zp_message_functions(const zp_transport *t) {
    return t && t->messenger ? t->messenger : &zp_message_none;
}

/* The header of a message: the call that it belongs to, the number of collectives that its sender
   has begun, and the message's size in bytes. */
typedef struct zp_envelope {
    zp_call call;
    uint64_t number, bytes;
} zp_envelope;

/* Compares the envelope of a message from that rank with the expected one. */
static zero_result zp_message_compare(zp_comm *g, int rank, const zp_envelope *theirs,
                                      const zp_envelope *mine) {
    char name[2][ZP_RANK_TEXT];
    ZP_TRY(zp_board_compare_calls(g, rank, &theirs->call, &mine->call));
    if (theirs->bytes == mine->bytes) return ZERO_OK;
    return zp_comm_fail(g, ZERO_ERR_MISMATCH, "%s: %s sends %llu bytes, %s expects %llu",
                        zp_comm_kind_name(mine->call.kind), zp_board_print_rank(g, rank, name[0]),
                        (unsigned long long)theirs->bytes, zp_board_print_rank(g, g->rank, name[1]),
                        (unsigned long long)mine->bytes);
}

/* Fills a part's view of memory that ranks share. The part's ranks on this machine are ranks of
   `of`, too. */
static void zp_message_view_part(const zp_comm *of, const zp_memory *m, const zp_comm *part,
                                 int first, int step, zp_memory *view) {
    const zp_local_ranks *all = zp_board_ranks_of(of), *some = zp_board_ranks_of(part);
    memset(view->peer, 0, sizeof view->peer);
    for (int p = 0; p < some->n; p++)
        for (int q = 0; q < all->n; q++)
            if (all->rank_of[q] == first + some->rank_of[p] * step) view->peer[p] = m->peer[q];
}

/* envelope.h - the header of a message between ranks */
#pragma once

#include "board.h"

/* The call that the message belongs to, the number of collectives that its sender has begun, and
   the message's size in bytes. */
typedef struct zp_envelope {
    zp_call call;
    uint64_t number, bytes;
} zp_envelope;

/* Compares the envelope of a message from that rank with the expected one. */
static zero_result zp_envelope_compare(zp_comm *g, int rank, const zp_envelope *theirs,
                                       const zp_envelope *mine) {
    char name[2][ZP_RANK_TEXT];
    ZP_TRY(zp_board_compare_calls(g, rank, &theirs->call, &mine->call));
    if (theirs->bytes == mine->bytes) return ZERO_OK;
    return zp_comm_fail(g, ZERO_ERR_MISMATCH, "%s: %s sends %llu bytes, %s expects %llu",
                        zp_comm_kind_name(mine->call.kind), zp_board_print_rank(g, rank, name[0]),
                        (unsigned long long)theirs->bytes, zp_board_print_rank(g, g->rank, name[1]),
                        (unsigned long long)mine->bytes);
}

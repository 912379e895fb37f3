/* local_groups.h - LOCAL of processes, and with groups: its ranks split, and exchange messages */
#pragma once

#include "local.h"
#include "pipe.h"
#include "process.h"

static zero_result zp_local_group_join(zp_comm *g, const zero_comm *given) {
    ZP_TRY(zp_local_join(g, given));
    return g->swaps && g->nranks > 1 ? zp_pipe_open(g) : ZERO_OK;
}

/* Makes a zero_local for each part, in memory that all ranks see. */
static zero_result zp_local_group_make_part(zp_comm *of, const zp_cut *cut, zero_comm *part) {
    const zp_local_ranks *s = zp_board_ranks_of(of);
    const size_t each = zp_round_up(sizeof(zero_local), 4096);
    const zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
    *part = self;
    if (!s->local) return ZERO_OK;
    const zero_result r =
        zp_comm_open_memory(of, cut->memory, (size_t)cut->parts * each, ZP_ONE | ZP_ON_HOST);
    if (r) return zp_comm_fail(of, r, "the memory in which parts of the group meet");
    char *at = cut->memory->base + (size_t)zp_max(0, (size_t)cut->part) * each;
    zero_local *l = (zero_local *)(void *)at;
    if (cut->part >= 0 && cut->rank == 0) {
        zp_board_make_local(l, cut->nranks, s->local->shared);
        l->placed = 1;
    }
    ZP_TRY(zp_comm_barrier(of));
    if (cut->part < 0) return zp_comm_barrier(of);
    int there = of->rank;
    (void)zp_board_first_local(s->local, &there);
    l->of[cut->rank] = s->local;
    l->of_rank[cut->rank] = of->rank;
    l->first_rank[cut->rank] = there;
    part->kind = ZERO_COMM_LOCAL;
    part->rank = cut->rank;
    part->handle = l;
    return zp_comm_barrier(of); /* all ranks of the part are in it */
}

/* A group's ranks share a board, and all parts share memory. direct: the ranks are threads. */
static size_t zp_local_group_parts_bytes(const zp_comm *of, int parts, int n, int swaps,
                                         int direct) {
    const size_t meeting = (size_t)parts * zp_round_up(sizeof(zero_local), 4096);
    const size_t pipes = swaps && n > 1 ? zp_pipe_all_bytes(direct, (size_t)n) : 0;
    return meeting / (size_t)of->nranks + zp_local_board_bytes(of, parts, n, swaps)
           + zp_round_up(pipes, 4096);
}
static size_t zp_local_group_bytes(const zp_comm *of, int parts, int n, int swaps) {
    const zp_local_ranks *s = zp_board_ranks_of(of);
    return zp_local_group_parts_bytes(of, parts, n, swaps, !s->local || !s->local->shared);
}

/* Threads: the last rank frees the boards of the part's contexts and groups. */
static void zp_local_group_free_part(zero_comm *part, int broken) {
    zero_local *l = (zero_local *)part->handle;
    if (part->kind != ZERO_COMM_LOCAL || !l || l->shared) return;
    if (__atomic_add_fetch(&l->ranks_left, 1, __ATOMIC_ACQ_REL) < (uint32_t)l->nranks) return;
    zp_shared_memory_free_boards(l);
}

ZP_MESSENGER(zp_local_group_messenger, zp_pipe_exchange_messages, zp_local_group_make_part,
             zp_local_group_free_part, NULL, zp_message_view_part);
ZP_TRANSPORT(zp_local_group_transport, "LOCAL", zp_local_group_join, zp_local_refuse,
             zp_process_open_memory, NULL, zp_local_issue, zp_board_exchange, zp_board_broadcast,
             zp_local_bytes, 0, zp_board_abort_local, zp_local_leave, zp_local_group_bytes, NULL,
             &zp_local_group_messenger);
static const zp_transport_row zp_local_groups_row = {ZERO_COMM_LOCAL, &zp_local_group_transport,
                                                     ""};

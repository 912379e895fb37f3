/* part.h - splits a group of the context; zp_ctx_close_part closes a part */
#pragma once

#include "../comm/messages.h"
#include "ctx.h"

/* Returns the bytes that this rank needs for a part. */
static size_t zp_part_bytes(const zp_comm *of, const zp_cut *cut, int swaps) {
    return of->transport->room ? of->transport->room(of, cut->parts, cut->nranks, swaps) : 0;
}

/* Splits `of` into parts and opens the part that has this rank. COLLECTIVE over `of`. */
static zero_result zp_part_open(zero_ctx *z, zp_part *part, zp_comm *g, zp_comm *of, zp_cut cut,
                                int node_size, const char *label) {
    const zp_messenger *messenger = zp_message_functions(of->transport);
    ZP_REFUSE(z, !messenger->make_part,
              "%d ranks cannot be cut into groups, because %s does not support it; use none",
              of->nranks, of->transport->name);
    cut.memory = &part->meeting;
    part->bytes = zp_part_bytes(of, &cut, g->swaps);
    ZP_DO(z, messenger->make_part(of, &cut, &part->comm));
    part->free = messenger->free_part;
    part->comm.node_size = node_size;
    (void)snprintf(g->label, sizeof g->label, "%s", label);
    return zp_ctx_check(z, zp_comm_open(g, zp_transport_find(part->comm.kind), &part->comm));
}

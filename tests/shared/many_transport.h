/* many_transport.h - a transport for tests: one rank of many, of which the others are not there

   Compiled into the plugin by own_transports.h; comm.handle is a many_world. Peers say and give
   what this rank does: an exchange and an all-gather repeat its own part, a reduction leaves its
   own gradient. So the plugin's work for any number of ranks can be counted and timed on one. */
#pragma once

#include "many_world.h"

static zero_result many_join(zp_comm *g, const zero_comm *given) {
    g->own = given->handle;
    g->rank = given->rank;
    g->nranks = g->node_size = ((many_world *)given->handle)->nranks;
    g->mail = (char *)malloc((size_t)g->nranks * ZP_MAIL_BYTES);
    return g->mail ? ZERO_OK : zp_comm_fail(g, ZERO_ERR_MEMORY, "the exchange buffer");
}
static zero_result many_memory(zp_comm *g, zp_memory *m) {
    return zp_shared_memory_alloc(g, m) ? ZERO_OK : ZERO_ERR_MEMORY;
}
static zero_result many_run(zp_stream *s, const zp_op *op) {
    const size_t bytes = zp_comm_op_shard_bytes(op);
    const char *mine = op->memory->base + op->source;
    for (int r = 0; r < op->group->nranks && op->kind == ZP_ALL_GATHER; r++)
        memmove(op->memory->base + op->target + (size_t)r * bytes, mine, bytes);
    return s ? ZERO_OK : ZERO_ERR_COMM;
}
static zero_result many_issue(zp_stream *s, const zp_op *op, int n) {
    ((many_world *)op->group->own)->collectives += n;
    return zp_local_send(s, op, n, many_run);
}
static zero_result many_exchange(const zp_op *op, const void *mine) {
    zp_comm *g = op->group;
    ((many_world *)g->own)->exchanges++;
    for (int r = 0; r < g->nranks; r++) memcpy(g->mail + (size_t)r * op->shard, mine, op->shard);
    return ZERO_OK;
}
static zero_result many_broadcast(const zp_op *op, void *data) {
    return op && data ? ZERO_OK : ZERO_ERR_COMM; /* all have the root's */
}
static void many_abort(zp_comm *g, const char *why) {}
static void many_leave(zp_comm *g, int broken) {
    for (zp_memory *m = g->first; m && !broken; m = m->next) zp_shared_memory_free(m);
    g->own = NULL;
}

ZP_TRANSPORT(many_row, "MANY", many_join, NULL, many_memory, NULL, many_issue, many_exchange,
             many_broadcast, zp_local_bytes, 0, many_abort, many_leave, NULL, NULL, NULL);

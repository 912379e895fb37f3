/* planned.h - a transport that needs no other ranks, for contexts that are planned and never built

   The plugin includes this file (ZERO_OWN_TRANSPORTS in plan_plugin.c). comm.handle is a
   plan_world. A rank's memory and traffic follow from the number of ranks, so no other rank has to
   exist. */
#pragma once

#include "plan_world.h"

static zero_result plan_join(zp_comm *g, const zero_comm *given) {
    const plan_world *world = (const plan_world *)given->handle;
    g->rank = given->rank;
    g->nranks = g->cpu_ranks = world->nranks;
    g->shared_is_fast = world->shares;
    ZP_TRY(zp_comm_check_node_size(g, given->node_size));
    g->node_size = given->node_size ? given->node_size : g->nranks;
    return ZERO_OK;
}

static zero_result plan_refuse(zp_comm *g) {
    return zp_comm_fail(g, ZERO_ERR_UNSUPPORTED, "a plan's ranks are not there");
}
static zero_result plan_memory(zp_comm *g, zp_memory *m) {
    (void)m;
    return plan_refuse(g);
}
static zero_result plan_issue(zp_stream *s, const zp_op *op, int n) {
    (void)s;
    (void)n;
    return plan_refuse(op->group);
}
/* Acts as if all ranks had sent what this rank sends. */
static zero_result plan_exchange(const zp_op *op, const void *mine) {
    zp_comm *g = op->group;
    if (!g->mail) g->mail = (char *)malloc((size_t)g->nranks * ZP_MAIL_BYTES);
    if (!g->mail) return zp_comm_fail(g, ZERO_ERR_MEMORY, "the exchange buffer");
    for (int r = 0; r < g->nranks; r++) memcpy(g->mail + (size_t)r * op->shard, mine, op->shard);
    return ZERO_OK;
}
static zero_result plan_broadcast(const zp_op *op, void *data) {
    (void)data;
    return plan_refuse(op->group);
}
/* Makes a part with the number of ranks that the cut has. They do not exist either. */
static zero_result plan_cut(zp_comm *of, const zp_cut *cut, zero_comm *part) {
    plan_world *world = (plan_world *)calloc(1, sizeof *world);
    const zero_comm made = {ZERO_COMM_OWN, cut->rank, world, 0};
    *part = made;
    if (!world) return zp_comm_fail(of, ZERO_ERR_MEMORY, "a part of the planned ranks");
    world->nranks = cut->nranks;
    world->shares = of->shared_is_fast;
    return ZERO_OK;
}
static void plan_uncut(zero_comm *part, int broken) {
    (void)broken;
    free(part->handle);
}
/* Returns the bytes of the parts of a group: as processes of one machine, or as ranks with NCCL. */
static size_t plan_room(const zp_comm *of, int parts, int n, int swaps) {
    const size_t exchanges =
        zp_max((size_t)(1 + n) * ZP_MAIL_BYTES, ZP_STAGE_NUMEL * sizeof(float));
    return of->shared_is_fast ? zp_local_group_parts_bytes(of, parts, n, swaps, 0) : exchanges;
}
static void plan_leave(zp_comm *g, int broken) {
    (void)g;
    (void)broken;
}

/* The bytes that a rank sends are LOCAL's. NCCL sends as many, and so does MPI within one node. */
ZP_MESSENGER(plan_messenger, NULL, plan_cut, plan_uncut, NULL, NULL);
ZP_TRANSPORT(plan_row, "PLANNED", plan_join, NULL, plan_memory, NULL, plan_issue, plan_exchange,
             plan_broadcast, zp_local_bytes, 0, NULL, plan_leave, plan_room, NULL, &plan_messenger);
#define ZERO_OWN_ROWS , &plan_row

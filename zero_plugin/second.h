/* second.h - a second shard of the parameters, among ranks that are near each other (hpZ)

   Behind a unit's first gather since its weights have changed, the parameter stream copies this
   rank's part of it, as it was gathered, out of the unit's buffer: nobody waits for that. Later
   gathers are those of the near ranks' parts, by the same stream, so that a part is there before
   any rank of the group asks for it. What the host knows of it is one number of each unit, which is
   the same on all ranks: it follows from their calls. */
#pragma once

#include "world.h"

/* The weights have changed: neither buffers nor second shards have them. */
static void zp_gathered_forget(zero_ctx *z) {
    zp_pool_forget(&z->pool[ZP_PARAM]);
    for (int u = 0; u < z->layout.all && z->second.group; u++) z->live[u].second = 0;
}

/* Enqueues u's gather from second shards, to `target`. */
static zero_result zp_second_gather(zero_ctx *z, int u, size_t target) {
    zp_op op = zp_second_op(z, u);
    op.target = target;
    ZP_TRY(zp_issue(&z->stream[ZP_PARAMETERS], &op, 1));
    return zp_event_record(&z->stream[ZP_PARAMETERS], z->live[u].gathered);
}

/* Unit u was gathered, to `target`: this rank keeps its part. */
static zero_result zp_second_keep(zero_ctx *z, int u, size_t target) {
    const zp_group *near = z->second.group;
    zp_live *live = &z->live[u];
    if (!near || !live->second_at) return ZERO_OK;
    const size_t numel = z->layout.unit[u].padded / (size_t)near->nranks;
    const size_t bytes = numel * zp_bytes(z->array[ZP_PARAM].type);
    char *base = z->memory[ZP_PARAM].base;
    live->second = 1;
    return zp_copy(&z->stream[ZP_PARAMETERS], base + live->second_at,
                   base + target + (size_t)near->rank * bytes, bytes);
}

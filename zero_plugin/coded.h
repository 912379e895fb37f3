/* coded.h - which units travel packed, and what that takes

   Weights of units that lie in shards; gradients of all units but those of vectors alone, which are
   few numbers and matter much. Where there is one rank nothing travels.

   MEMORY of a rank, for the unit that needs most: N packed shards where gathers land; of reductions
   twice as much, to send from and to receive in. With feedback, of every unit that is packed, an
   error for each element (what this rank's codes lost in the first hop), and for the shards that it
   packs again for the second; in fp16, where steps are skipped as a matter of course, twice. */
#pragma once

#include "hierarchy.h"

/* NULL: as it is stored. kind: ALL_GATHER of weights, REDUCE_SCATTER of gradients. */
static const zp_codec *zp_unit_codec(const zero_ctx *z, int kind, int u) {
    const zp_unit *x = &z->layout.unit[u];
    const int sharded = z->array[ZP_PARAM].part[u].share == ZP_SHARD;
    if (!x->numel) return NULL;
    if (kind == ZP_ALL_GATHER) return sharded ? z->wire.weights : NULL;
    return x->only_one_d ? NULL : z->wire.gradients;
}

/* Errors of unit u: one for each number that this rank packs. */
static size_t zp_unit_errors(const zero_ctx *z, int u) {
    const size_t ranks = (size_t)z->data->nranks, nodes = ranks / (size_t)zp_hop_ranks(z->data);
    const size_t again = nodes > 1 ? nodes : 0;
    const int feeds = z->cfg.feedback > 0 && zp_unit_codec(z, ZP_REDUCE_SCATTER, u);
    return feeds ? (ranks + again) * z->layout.unit[u].shard : 0;
}

/* The ranks of a hop: 0, inside nodes, or all of them; 1, between nodes. */
static zp_cut zp_hop_cut(const zp_group *data, int hop) {
    const int local = zp_hop_ranks(data), nodes = data->nranks / local;
    const int node = data->rank / local, place = data->rank % local;
    const zp_cut cut[2] = {{nodes, node, place, local, NULL}, {local, place, node, nodes, NULL}};
    return cut[hop];
}
/* What the transport keeps for them. */
static size_t zp_hops_room(const zp_group *data) {
    const zp_cut inside = zp_hop_cut(data, 0), between = zp_hop_cut(data, 1);
    return zp_part_room(data, &inside, 1)
           + (inside.parts > 1 ? zp_part_room(data, &between, 1) : 0);
}

static size_t zp_errors_bytes(const zp_wire *w) {
    return (w->errors + w->apart) * sizeof *w->error;
}

static void zp_coded_plan(zero_ctx *z) {
    zp_wire *w = &z->wire;
    size_t gathered = 0, packed = 0;
    w->errors = 0;
    for (int u = 0; u < z->layout.all; u++) {
        const size_t shard = z->layout.unit[u].shard;
        const zp_codec *weights = zp_unit_codec(z, ZP_ALL_GATHER, u);
        const zp_codec *gradients = zp_unit_codec(z, ZP_REDUCE_SCATTER, u);
        if (weights) gathered = zp_max(gathered, zp_packed_bytes(weights, shard));
        if (gradients) packed = zp_max(packed, zp_packed_bytes(gradients, shard));
        z->live[u].errors = w->errors;
        w->errors += zp_unit_errors(z, u);
    }
    w->gathered_bytes = gathered * (size_t)z->data->nranks;
    w->packed_bytes = packed * (size_t)z->data->nranks;
    w->apart = z->cfg.type == ZERO_F16 && !z->cfg.no_overflow_check ? w->errors : 0;
    const size_t hops = w->packed_bytes ? zp_hops_room(z->data) : 0;
    z->plan.packed_bytes = w->gathered_bytes + 2 * w->packed_bytes + zp_errors_bytes(w);
    z->plan.buffer_bytes += z->plan.packed_bytes + hops;
    z->plan.buffer_ceiling_bytes += z->plan.packed_bytes + hops;
}

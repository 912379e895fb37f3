/* replicas.h - shards of reduced gradients are summed over the copies of what is sharded

   In the last micro-step, behind a bucket's reductions inside the shard group, whose sums are f32
   and neither divided nor rounded: a reduce-scatter over the replicas, in which each sums its piece
   of each shard, in order, and divides it; the piece is rounded once, to the gradients' type, and
   gathered from all replicas. All on the gradient stream: what waits for a reduction waits for
   that. f32 gradients are summed where they lie; others in f32 shards behind the gradients, a place
   for each unit of a bucket.

     MEAN, or sums of 16 bit   [ piece 0 | piece 1 | ... ] of a rank's shard, one of each replica */
#pragma once

#include "world.h"

/* What the sum over all ranks is multiplied by. */
static float zp_sum_scale(const zero_ctx *z) {
    return z->data->divisor / (float)(z->cfg.divisor ? z->cfg.divisor : z->all->nranks);
}

/* Where unit u's shard, one of the bucket's, is summed, from the gradients' memory on. */
static size_t zp_replicas_at(const zero_ctx *z, int u) {
    size_t at = z->replicas.sums_at;
    if (!z->replicas.sums_bytes) return (size_t)(zp_unit_mean(z, u) - z->memory[ZP_GRAD].base);
    for (int i = 0; i < z->nbucket && z->bucket[i] != u; i++)
        at += z->layout.unit[z->bucket[i]].shard * sizeof(float);
    return at;
}

/* The f32 sums that unit u's reduction leaves beside MEAN: where micro-steps add up, or, with
   replicas, of 16 bit; NULL: none. */
static float *zp_unit_sums(const zero_ctx *z, int u) {
    const zp_array *sum = &z->array[ZP_SUM];
    char *shared = z->memory[ZP_GRAD].base;
    if (sum->part[u].share == ZP_SHARD) return (float *)(void *)(sum->memory + sum->part[u].at);
    if (!z->replicas.sums_bytes) return NULL;
    return (float *)(void *)(shared + zp_replicas_at(z, u));
}

/* This replica's piece, and from it the whole shard, of every unit of the bucket. */
static zero_result zp_replicas_gather(zero_ctx *z) {
    const zp_replicas *x = &z->replicas;
    const zero_type type = z->array[ZP_GRAD].type;
    zp_stream *s = &z->stream[ZP_GRADIENTS];
    char *base = z->memory[ZP_GRAD].base;
    for (int i = 0; i < z->nbucket; i++) {
        const int u = z->bucket[i];
        zp_op *op = &z->ops[i];
        const size_t before = (size_t)x->group->rank * z->layout.unit[u].piece;
        *op = zp_replica_op(z, u, ZP_ALL_GATHER);
        op->target = (size_t)(zp_unit_mean(z, u) - base);
        op->source = op->target + before * zp_bytes(type);
        const zp_fetch_args round = {base + zp_replicas_at(z, u) + before * sizeof(float),
                                     base + op->source,
                                     ZERO_F32,
                                     type,
                                     NULL,
                                     0};
        if (x->sums_bytes) ZP_TRY(zp_fetch(s, &round, op->shard));
    }
    return zp_issue(s, z->ops, z->nbucket);
}

/* Enqueues the bucket's sums over the replicas. */
static zero_result zp_replicas_sum(zero_ctx *z) {
    const zp_replicas *x = &z->replicas;
    zp_stream *s = &z->stream[ZP_GRADIENTS];
    if (!x->group) return ZERO_OK;
    for (int i = 0; i < z->nbucket; i++) {
        const int u = z->bucket[i];
        const zp_unit *unit = &z->layout.unit[u];
        zp_op *op = &z->ops[i];
        *op = zp_replica_op(z, u, ZP_REDUCE_SCATTER);
        op->source = zp_replicas_at(z, u);
        op->target = op->source + (size_t)x->group->rank * unit->piece * sizeof(float);
        op->scale = zp_sum_scale(z);
        char *sums = (char *)zp_unit_sums(z, u), *here = z->memory[ZP_GRAD].base + op->source;
        if (sums && sums != here) ZP_TRY(zp_copy(s, here, sums, unit->shard * sizeof(float)));
    }
    ZP_TRY(zp_issue(s, z->ops, z->nbucket));
    return zp_replicas_gather(z);
}

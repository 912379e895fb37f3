/* shards.h - a unit's shard between the rank's file and the buffer that it is reduced or gathered
   in

   Tasks of the streams that communicate, which wait in them for the file's lanes: a parameter shard
   is read behind its last update, into its place in the gather buffer; a gradient shard is written
   from its place in the gradient buffer, before that has its next user.

   Beside a GPU parameters alone go that way: from the host's memory by a copy, from the file piece
   by piece through a ring of pinned places. asks    a lane: waits until the piece's place is free,
   and the last update is done with it, and gives the read to the file's lane beside  the parameter
   stream's lane waits for the read; the stream for that, copies the piece up, and opens the gate
   that the next piece of this place waits at When the stream comes to a piece, its read waits for
   nothing but the disk: see device_cuda. */
#pragma once

#include "check.h"

/* A shard on its way between the file and a unit's buffer. */
typedef struct zp_shard_args {
    zero_ctx *z;
    int unit;
    char *memory;
} zp_shard_args;

static void zp_fetch_shard_task(const void *args, size_t n, int threads) {
    const zp_shard_args *a = (const zp_shard_args *)args;
    (void)zp_array_move(zp_weights(a->z, a->unit), a->unit, a->memory, 0);
}

/* A piece on its way up. */
typedef struct zp_lift_args {
    zero_ctx *z;
    int unit;
    size_t piece, turn;
    zp_lane_event after; /* the unit's update, or that the read is asked for */
} zp_lift_args;

static char *zp_lift_place(const zero_ctx *z, size_t turn) {
    return z->host.lift.memory + turn % ZP_RING * ZP_PIECE_NUMEL * zp_bytes(z->cfg.type);
}
static void zp_lift_ask_task(const void *args, size_t n, int threads) {
    const zp_lift_args *a = (const zp_lift_args *)args;
    zp_lift *l = &a->z->host.lift;
    const zp_transfer t =
        zp_array_piece(&a->z->array[ZP_PARAM], a->unit, a->piece, zp_lift_place(a->z, a->turn), 0);
    zp_lane_await(&a->after);
    if (a->turn >= ZP_RING) (void)zp_gate_pass(&l->gate);
    zp_disk_give(&t, &l->read[a->turn % ZP_RING]);
}
static void zp_lift_read_task(const void *args, size_t n, int threads) {
    const zp_lift_args *a = (const zp_lift_args *)args;
    zp_lane_await(&a->after);
    zp_disk_await(&a->z->disk, &a->z->host.lift.read[a->turn % ZP_RING]);
}
static zero_result zp_lift_shard(zero_ctx *z, int u, char *to) {
    zp_lift *l = &z->host.lift;
    zp_stream *s = &z->stream[ZP_PARAMETERS];
    const size_t of = zp_bytes(z->cfg.type), first = l->turns;
    const zp_kept *part = &z->array[ZP_PARAM].part[u];
    const size_t pieces = zp_array_pieces(&z->array[ZP_PARAM], u);
    for (size_t i = 0; i < pieces + ZP_RING; i++) {
        zp_lift_args read = {z, u, i - ZP_RING, first + i - ZP_RING, {NULL, 0}};
        const zp_lift_args ask = {z, u, i, first + i, z->live[u].task};
        if (i >= ZP_RING && read.piece < pieces) {
            const size_t at = read.piece * ZP_PIECE_NUMEL;
            zp_lane_record(&l->asks, &read.after);
            ZP_TRY(zp_stream_push(s, zp_lift_read_task, &read, sizeof read, 1));
            ZP_TRY(zp_copy(s, to + at * of, zp_lift_place(z, read.turn),
                           zp_min(ZP_PIECE_NUMEL, part->numel - at) * of));
            ZP_TRY(zp_stream_opens(s, &l->gate));
        }
        if (i < pieces) zp_lane_push(&l->asks, zp_lift_ask_task, &ask, sizeof ask, 1);
    }
    l->turns += pieces;
    return ZERO_OK;
}

static zero_result zp_fetch_shard(zero_ctx *z, int u, char *to) {
    const zp_shard_args a = {z, u, to};
    const zp_array *param = &z->array[ZP_PARAM];
    zp_stream *s = &z->stream[ZP_PARAMETERS];
    if (zp_host_computes()) return zp_stream_push(s, zp_fetch_shard_task, &a, sizeof a, 1);
    if (zp_array_filed(param, u)) return zp_lift_shard(z, u, to);
    return zp_copy(s, to, zp_array_at(param, u, param->part[u].first),
                   param->part[u].numel * zp_bytes(param->type));
}

/* Adds what the file has of the step's earlier micro-steps, piece by piece, read ahead. */
static zero_result zp_mean_add(zero_ctx *z, int u, float *to) {
    const zp_array *a = &z->array[ZP_MEAN];
    const size_t pieces = zp_array_pieces(a, u), numel = a->part[u].numel;
    zp_lane_event read[ZP_DISK_LANES];
    for (size_t i = 0; i < pieces + ZP_DISK_LANES; i++) {
        const size_t place = i % ZP_DISK_LANES, done = i - ZP_DISK_LANES;
        float *more = (float *)(void *)z->addends + place * ZP_PIECE_NUMEL;
        if (i >= ZP_DISK_LANES) {
            const size_t from = done * ZP_PIECE_NUMEL, n = zp_min(numel - from, ZP_PIECE_NUMEL);
            zp_disk_await(a->disk, &read[place]);
            ZP_TRY(zp_failure_result(&z->failure));
            for (size_t k = 0; k < n; k++) to[from + k] = more[k] + to[from + k];
        }
        if (i >= pieces) continue;
        const zp_transfer t = zp_array_piece(a, u, i, (char *)more, 0);
        zp_disk_give(&t, &read[place]);
    }
    return ZERO_OK;
}
static void zp_mean_add_task(const void *args, size_t n, int threads) {
    const zp_shard_args *a = (const zp_shard_args *)args;
    (void)zp_mean_add(a->z, a->unit, (float *)(void *)a->memory);
}
static void zp_mean_write_task(const void *args, size_t n, int threads) {
    const zp_shard_args *a = (const zp_shard_args *)args;
    (void)zp_array_move(&a->z->array[ZP_MEAN], a->unit, a->memory, 1);
}

/* Enqueues what a reduced gradient's way to the file begins or ends with. */
static zero_result zp_mean_push(zero_ctx *z, int u, zp_task_fn task) {
    const zp_shard_args a = {z, u, zp_unit_mean(z, u)};
    return zp_stream_push(&z->stream[ZP_GRADIENTS], task, &a, sizeof a, 1);
}
static int zp_mean_filed(const zero_ctx *z, int u) { return zp_array_filed(&z->array[ZP_MEAN], u); }
static int zp_mean_adds(const zero_ctx *z, int u) {
    return zp_mean_filed(z, u) && !z->array[ZP_SUM].share && z->micro > 0;
}

/* shards.h - a unit's shard between the rank's file and the buffer that it is reduced or gathered
   in

   Tasks of the streams that communicate, which wait in them for the file's lanes: a parameter shard
   is read behind its last update, into its place in the gather buffer; a gradient shard is written
   from its place in the gradient buffer, before that has its next user. */
#pragma once

#include "check.h"

/* Bytes of an array that this rank keeps of unit u. */
static uint64_t zp_kept_bytes(const zp_array *a, int u) {
    return (uint64_t)a->part[u].numel * zp_bytes(a->type);
}

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
static zero_result zp_fetch_shard(zero_ctx *z, int u, char *to) {
    const zp_shard_args a = {z, u, to};
    zp_stream *s = &z->stream[ZP_PARAMETERS];
    zp_record *r = zp_slice_begin(s, ZERO_EVENT_READ, u, zp_kept_bytes(&z->array[ZP_PARAM], u));
    const zero_result result = zp_stream_push(s, zp_fetch_shard_task, &a, sizeof a, 1);
    zp_slice_end(s, r);
    return result;
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
    zp_stream *s = &z->stream[ZP_GRADIENTS];
    const zero_event_kind kind = task == zp_mean_write_task ? ZERO_EVENT_WRITE : ZERO_EVENT_READ;
    zp_record *r = zp_slice_begin(s, kind, u, zp_kept_bytes(&z->array[ZP_MEAN], u));
    const zero_result result = zp_stream_push(s, task, &a, sizeof a, 1);
    zp_slice_end(s, r);
    return result;
}
static int zp_mean_filed(const zero_ctx *z, int u) { return zp_array_filed(&z->array[ZP_MEAN], u); }
static int zp_mean_adds(const zero_ctx *z, int u) {
    return zp_mean_filed(z, u) && !z->array[ZP_SUM].share && z->micro > 0;
}

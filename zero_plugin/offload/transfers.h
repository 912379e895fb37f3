/* transfers.h - transfers between a shard's file and the buffer in which a unit is reduced or
   gathered, and the stations of offload

   On the CPU they are tasks of the communication streams, which wait in them for the file's lanes.
   A parameter shard is read into its place in the gather buffer, after its last update. A gradient
   shard is written from its place in the gradient buffer, before that buffer has its next user.
   With a GPU, offload_gpu.h replaces these tasks. */
#pragma once

#include "../core/extra.h"
#include "async_update.h"

/* Reads or writes all of unit u's part, in whole sectors, and waits until that has ended. `memory`
   is aligned to a sector. SYNC. */
static zero_result zp_transfer_move_part(const zp_array *a, int u, char *memory, int writes) {
    zp_lane_event end[ZP_DISK_LANES] = {{NULL, 0, 0}};
    for (size_t i = 0; i < zp_file_pieces(a, u); i++) {
        const size_t at = i * ZP_PIECE_NUMEL * zp_type_bytes(a->type);
        const zp_transfer t = zp_file_piece(a, u, i, memory + at, writes);
        zp_file_give(&t, &end[t.piece % ZP_DISK_LANES]);
    }
    for (int i = 0; i < ZP_DISK_LANES; i++) zp_file_wait(a->filed->file, &end[i]);
    return zp_failure_result(a->filed->file->group->failure);
}

/* Adds the sum of earlier micro-steps in the file, piece by piece, read ahead. */
static void zp_transfer_add_mean(zero_ctx *z, int u, float *to) {
    const zp_array *a = &z->array[ZP_MEAN];
    const size_t pieces = zp_file_pieces(a, u), numel = a->part[u].numel;
    zp_lane_event moved[ZP_DISK_LANES];
    for (size_t i = 0; i < pieces + ZP_DISK_LANES; i++) {
        const size_t place = i % ZP_DISK_LANES, done = i - ZP_DISK_LANES;
        float *more = (float *)(void *)(z->offload->addends + place * a->filed->piece_bytes);
        if (i >= ZP_DISK_LANES) {
            const size_t from = done * ZP_PIECE_NUMEL, n = zp_min(numel - from, ZP_PIECE_NUMEL);
            zp_file_wait(&z->offload->file, &moved[place]);
            if (zp_failure_result(&z->failure)) return;
            for (size_t k = 0; k < n; k++) to[from + k] = more[k] + to[from + k];
        }
        if (i >= pieces) continue;
        const zp_transfer t = zp_file_piece(a, u, i, (char *)more, 0);
        zp_file_give(&t, &moved[place]);
    }
}

typedef struct zp_transfer_args {
    zero_ctx *z;
    int unit;
    zp_transfer_kind kind;
    char *memory;
} zp_transfer_args;

static void zp_transfer_task(const void *args, size_t n, int threads) {
    const zp_transfer_args *a = (const zp_transfer_args *)args;
    if (a->kind == ZP_ADD_MEAN)
        zp_transfer_add_mean(a->z, a->unit, (float *)(void *)a->memory);
    else if (a->kind == ZP_WRITE_MEAN)
        (void)zp_transfer_move_part(&a->z->array[ZP_MEAN], a->unit, a->memory, 1);
    else
        (void)zp_transfer_move_part(zp_ctx_weights(a->z, a->unit), a->unit, a->memory, 0);
}
static zero_result zp_transfer_push(zero_ctx *z, int u, zp_transfer_kind kind, char *memory) {
    const zp_transfer_args a = {z, u, kind, memory};
    zp_stream *s = &z->stream[kind == ZP_FETCH_PARAM ? ZP_PARAMETERS : ZP_GRADIENTS];
    return zp_device_push_task(s, zp_transfer_task, &a, sizeof a, 1);
}

/* Enqueues the transfer of unit u's shard between the file and `memory`, in a buffer. */
static zero_result zp_transfer_enqueue(zero_ctx *z, int u, zp_transfer_kind kind, char *memory) {
    const int side = kind == ZP_FETCH_PARAM ? ZP_PARAM : ZP_GRAD;
    zp_stream *s = &z->stream[side];
    zp_record *r =
        zp_device_begin_slice(s, kind == ZP_WRITE_MEAN ? ZERO_EVENT_WRITE : ZERO_EVENT_READ, u,
                              zp_array_part_bytes(zp_ctx_side_array(z, side), u));
    ZP_TRY(z->offload->move(z, u, kind, memory));
    zp_device_end_slice(s, r);
    return ZERO_OK;
}

/* ---- the stations ---- */

/* The last step's update may still read what a reduction will write. */
static zero_result zp_transfer_before_reduction(zero_ctx *z, int u) {
    zp_event *reader = z->live[u].reader;
    return reader ? zp_device_wait_event(&z->stream[ZP_GRADIENTS], reader) : ZERO_OK;
}

/* Returns 1 if unit u's gradient is added to the sum of earlier micro-steps in its tier. */
static int zp_transfer_mean_adds(const zero_ctx *z, int u) {
    return zp_offload_mean_leaves(z, u) && z->live[u].reduced > 0;
}
/* Returns 1 if unit u's reduced gradient moves to its tier in this micro-step. */
static int zp_transfer_mean_is_due(const zero_ctx *z, int u) {
    return z->bucket_last || zp_offload_mean_leaves(z, u);
}
static zero_result zp_transfer_change_reduction(zero_ctx *z) {
    for (int i = 0; i < z->nbucket; i++)
        z->ops[i].accumulate &= !zp_transfer_mean_adds(z, z->bucket[i]);
    return ZERO_OK;
}
static zero_result zp_transfer_add(zero_ctx *z, int u) {
    if (!zp_file_has(&z->array[ZP_MEAN], u) || !zp_transfer_mean_adds(z, u)) return ZERO_OK;
    return zp_transfer_enqueue(z, u, ZP_ADD_MEAN, zp_ctx_unit_mean(z, u));
}
static zero_result zp_transfer_store(zero_ctx *z, int u) {
    if (!zp_file_has(&z->array[ZP_MEAN], u) || !zp_transfer_mean_is_due(z, u)) return ZERO_OK;
    return zp_transfer_enqueue(z, u, ZP_WRITE_MEAN, zp_ctx_unit_mean(z, u));
}
/* Reads the shard of a unit whose parameters are in the file to where its gather reads it. */
static zero_result zp_transfer_fetch(zero_ctx *z, int u) {
    const zp_op *op = &z->gather;
    if (op->group != z->data || !zp_file_has(&z->array[ZP_PARAM], u)) return ZERO_OK;
    return zp_transfer_enqueue(z, u, ZP_FETCH_PARAM, op->memory->base + op->source);
}

static int zp_transfer_leaves(const zero_ctx *z) { return z->array[ZP_MEAN].tier != ZERO_DEVICE; }
static int zp_transfer_uses_file(const zero_ctx *z) { return z->plan.file_bytes > 0; }
static const zp_station zp_transfer_stations[] = {
    {ZP_AT_WRITTEN, ZP_EACH_MICRO_STEP, zp_ctx_updates_overlap, zp_transfer_before_reduction, NULL},
    {ZP_AT_CHANGE, ZP_EACH_REDUCTION, zp_transfer_leaves, NULL, zp_transfer_change_reduction},
    {ZP_AT_ADD, ZP_EACH_MICRO_STEP, zp_transfer_uses_file, zp_transfer_add, NULL},
    {ZP_AT_STORE, ZP_EACH_MICRO_STEP, zp_transfer_uses_file, zp_transfer_store, NULL},
    {ZP_AT_FETCH, ZP_EACH_GATHER, zp_transfer_uses_file, zp_transfer_fetch, NULL},
    {ZP_AT_AFTER, ZP_LAST_MICRO_STEP, zp_ctx_updates_overlap, zp_delayed_swap_reduced, NULL},
    {ZP_AT_READ_AHEAD, ZP_EACH_AGREEMENT, zp_transfer_uses_file, NULL, zp_async_update_fill_ring},
    {ZP_AT_AGREE, ZP_EACH_AGREEMENT, zp_ctx_updates_overlap, NULL, zp_delayed_complete},
    {ZP_AT_COUNT, ZP_EACH_STEP, zp_ctx_updates_overlap, NULL, zp_delayed_choose},
    {ZP_AT_PUBLISH, ZP_EACH_STEP, zp_ctx_updates_overlap, zp_delayed_publish, NULL},
    {ZP_AT_FORGET, ZP_EACH_STEP, zp_ctx_updates_overlap, NULL, zp_delayed_end_step},
    ZP_LAST_STATION};

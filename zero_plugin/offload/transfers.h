/* transfers.h - transfers between a shard's file and the buffer in which a unit is reduced or
   gathered, and the stations of offload

   On the CPU they are tasks of the communication streams, which wait in them for the file's lanes.
   A parameter shard is read into its place in the gather buffer, after its last update. A gradient
   shard is written from its place in the gradient buffer, before that buffer has its next user.
   With a GPU, offload_gpu.h replaces these tasks. */
#pragma once

#include "../core/extra.h"
#include "async_update.h"

typedef struct zp_transfer_args {
    zero_ctx *z;
    int unit;
    zp_transfer_kind kind;
    char *memory; /* of the shard, in a buffer; aligned to a sector */
} zp_transfer_args;

static int zp_transfer_side(zp_transfer_kind kind) {
    return kind == ZP_FETCH_PARAM ? ZP_PARAM : ZP_GRAD;
}

/* Adds piece i of the sum of earlier micro-steps to the shard. */
static void zp_transfer_add_piece(const zp_transfer_args *m, const char *sum, size_t i) {
    const size_t from = i * ZP_PIECE_NUMEL, numel = m->z->array[ZP_MEAN].part[m->unit].numel,
                 n = zp_min(numel - from, ZP_PIECE_NUMEL);
    float *to = (float *)(void *)m->memory + from;
    const float *more = (const float *)(const void *)sum;
    for (size_t k = 0; k < n; k++) to[k] = more[k] + to[k];
}

/* A task: moves the shard, and waits until that has ended. Reads and writes of all pieces are
   enqueued at once. Sums to add pass through ZP_DISK_LANES places, read ahead. */
static void zp_transfer_task(const void *args, size_t pieces, int threads) {
    const zp_transfer_args *m = (const zp_transfer_args *)args;
    zero_ctx *z = m->z;
    const zp_array *a = m->kind == ZP_FETCH_PARAM ? zp_ctx_weights(z, m->unit) : &z->array[ZP_MEAN];
    const int adds = m->kind == ZP_ADD_MEAN;
    const size_t ahead = adds ? ZP_DISK_LANES : pieces,
                 bytes = ZP_PIECE_NUMEL * zp_type_bytes(a->type);
    zp_lane_event moved[ZP_DISK_LANES]; /* the last transfer of a lane */
    for (size_t i = 0; i < pieces + ahead; i++) {
        const size_t lane = i % ZP_DISK_LANES, place = (1 + ZP_RING + lane) * a->filed->piece_bytes;
        char *here = adds ? a->filed->places + place : m->memory + i * bytes;
        if (i >= ahead) zp_file_wait(a->filed->file, &moved[(i - ahead) % ZP_DISK_LANES]);
        if (adds && zp_failure_result(&z->failure)) return;
        if (i >= ahead && adds) zp_transfer_add_piece(m, here, i - ahead);
        if (i >= pieces) continue;
        const zp_transfer t = zp_file_piece(a, m->unit, i, here, m->kind == ZP_WRITE_MEAN);
        zp_file_give(&t, &moved[lane]);
    }
}
static zero_result zp_transfer_push(zero_ctx *z, int u, zp_transfer_kind kind, char *memory) {
    const zp_transfer_args a = {z, u, kind, memory};
    const int side = zp_transfer_side(kind);
    return zp_device_push_task(&z->stream[side], zp_transfer_task, &a, sizeof a,
                               zp_file_pieces(zp_ctx_side_array(z, side), u));
}

/* Enqueues the move of unit u's shard between its tier and `memory`, in a buffer. */
static zero_result zp_transfer_enqueue(zero_ctx *z, int u, zp_transfer_kind kind, char *memory) {
    const int side = zp_transfer_side(kind);
    const zp_array *a = zp_ctx_side_array(z, side);
    const zero_event_kind event = kind == ZP_WRITE_MEAN ? ZERO_EVENT_WRITE : ZERO_EVENT_READ;
    if (!zp_file_has(a, u)) return z->offload->move(z, u, kind, memory);
    ZP_SLICE(&z->stream[side], event, zp_layout_unit_of(&z->layout, u), zp_array_part_bytes(a, u),
             z->offload->move(z, u, kind, memory));
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
    if (!zp_transfer_mean_adds(z, u)) return ZERO_OK;
    return zp_transfer_enqueue(z, u, ZP_ADD_MEAN, zp_ctx_unit_mean(z, u));
}
/* Writes the gradient to the file. A copy to host memory follows its reduction: offload_gpu.h. */
static zero_result zp_transfer_store(zero_ctx *z, int u) {
    if (!zp_file_has(&z->array[ZP_MEAN], u) || !zp_transfer_mean_is_due(z, u)) return ZERO_OK;
    return zp_transfer_enqueue(z, u, ZP_WRITE_MEAN, zp_ctx_unit_mean(z, u));
}
/* Moves the shard of a unit whose parameters are in another tier to where its gather reads it. */
static zero_result zp_transfer_fetch(zero_ctx *z, int u) {
    const zp_op *op = &z->gather;
    if (op->group != z->data || !zp_array_off_device(&z->array[ZP_PARAM], u)) return ZERO_OK;
    return zp_transfer_enqueue(z, u, ZP_FETCH_PARAM, op->memory->base + op->source);
}

static int zp_transfer_leaves(const zero_ctx *z) { return z->array[ZP_MEAN].tier != ZERO_DEVICE; }
static int zp_transfer_fetches(const zero_ctx *z) { return z->array[ZP_PARAM].tier != ZERO_DEVICE; }
static int zp_transfer_uses_file(const zero_ctx *z) { return z->plan.file_bytes > 0; }
static const zp_station zp_transfer_stations[] = {
    {ZP_AT_WRITTEN, ZP_EACH_MICRO_STEP, zp_delayed_overlaps, zp_transfer_before_reduction, NULL},
    {ZP_AT_CHANGE, ZP_EACH_REDUCTION, zp_transfer_leaves, NULL, zp_transfer_change_reduction},
    {ZP_AT_ADD, ZP_EACH_MICRO_STEP, zp_transfer_leaves, zp_transfer_add, NULL},
    {ZP_AT_STORE, ZP_EACH_MICRO_STEP, zp_transfer_leaves, zp_transfer_store, NULL},
    {ZP_AT_FETCH, ZP_EACH_GATHER, zp_transfer_fetches, zp_transfer_fetch, NULL},
    {ZP_AT_AFTER, ZP_LAST_MICRO_STEP, zp_delayed_overlaps, zp_delayed_swap_reduced, NULL},
    {ZP_AT_READ_AHEAD, ZP_EACH_AGREEMENT, zp_transfer_uses_file, NULL, zp_async_update_fill_ring},
    {ZP_AT_AGREE, ZP_EACH_AGREEMENT, zp_delayed_overlaps, NULL, zp_delayed_complete},
    {ZP_AT_PUBLISH, ZP_EACH_STEP, zp_delayed_overlaps, zp_delayed_publish, NULL},
    {ZP_AT_FORGET, ZP_EACH_STEP, zp_delayed_overlaps, NULL, zp_delayed_end_step},
    ZP_LAST_STATION};

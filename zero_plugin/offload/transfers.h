/* transfers.h - transfers between a rank's file and the buffer in which a unit is reduced or
   gathered

   On the CPU they are tasks of the communication streams, which wait in them for the file's lanes.
   A parameter shard is read into its place in the gather buffer, after its last update. A gradient
   shard is written from its place in the gradient buffer, before that buffer has its next user.

   With a GPU, the parameter stream copies parameters from host memory. Parameters of the file pass
   through a ring of pinned pieces in two halves, which alternate. A unit takes a few large copies.
   The lane `asks` has one task for each unit:

     lane `asks`                                  parameter stream
     waits until the unit's last update is over
     for each half:                               for each half, in a callback:
       passes gate `copied` (the half before
         last was copied up)
       enqueues the half's reads on the file's
         lanes; opens gate `given`                  passes `given`; waits for the reads
                                                    copies the half up; opens `copied`

   Reduced gradients are copied down through two halves with a lane of their own:

     gradient stream                              lane `asks`
     waits until the last update has read the
       file's gradients
     for each half, in a callback:                for each half:
                                                    waits until the half's last writes are over
                                                    opens `given`
       passes `given`; copies the half down
       opens `copied`                               passes `copied`; enqueues the half's writes on
                                                      the file's lanes

   If micro-steps add up, the half is first read and copied up: `given` then opens after the reads,
   and a kernel adds. The stream `updates` waits until the lane has enqueued all transfers of a
   step. A stream that reaches a half waits for the file alone: see device_cuda.h. */
#pragma once

#include "../core/extra.h"
#include "async_update.h"

/* A shard to transfer between the file and a buffer of a unit. */
typedef struct zp_transfer_shard_args {
    zero_ctx *z;
    int unit;
    char *memory;
} zp_transfer_shard_args;

static void zp_transfer_fetch_task(const void *args, size_t n, int threads) {
    const zp_transfer_shard_args *a = (const zp_transfer_shard_args *)args;
    (void)zp_array_move(zp_ctx_weights(a->z, a->unit), a->unit, a->memory, 0);
}

/* A unit to read from the file for a GPU. */
typedef struct zp_transfer_up_args {
    zero_ctx *z;
    int unit;
    zp_lane_event updated;
} zp_transfer_up_args;

static char *zp_transfer_up_place(const zero_ctx *z, zp_side side, size_t turn, size_t i) {
    const size_t place = turn % 2 * ZP_LIFTED + i;
    return z->host.lift[side].memory + place * ZP_PIECE_NUMEL * zp_type_bytes(z->array[side].type);
}
static void zp_transfer_up_read_task(const void *args, size_t pieces, int threads) {
    const zp_transfer_up_args *a = (const zp_transfer_up_args *)args;
    zp_transfer_up_state *l = &a->z->host.lift[ZP_PARAM];
    zp_lane_wait_event(&a->updated);
    for (size_t from = 0; from < pieces; from += ZP_LIFTED, l->asked++) {
        if (l->asked >= 2) (void)zp_lane_pass_gate(&l->copied);
        for (size_t i = 0; i < zp_min(ZP_LIFTED, pieces - from); i++) {
            const zp_transfer t =
                zp_array_piece(&a->z->array[ZP_PARAM], a->unit, from + i,
                               zp_transfer_up_place(a->z, ZP_PARAM, l->asked, i), 0);
            zp_file_give(&t, &l->read[l->asked % 2 * ZP_LIFTED + i]);
        }
        zp_lane_open_gate(&l->given);
    }
}
static void zp_transfer_up_wait(void *context) {
    zero_ctx *z = (zero_ctx *)context;
    zp_transfer_up_state *l = &z->host.lift[ZP_PARAM];
    (void)zp_lane_pass_gate(&l->given);
    for (size_t i = 0; i < ZP_LIFTED; i++)
        zp_file_wait(&z->disk, &l->read[l->awaited % 2 * ZP_LIFTED + i]);
    l->awaited++;
}
static zero_result zp_transfer_up_shard(zero_ctx *z, int u, char *to) {
    const size_t of = zp_type_bytes(z->cfg.type), most = ZP_LIFTED * ZP_PIECE_NUMEL;
    const zp_transfer_up_args ask = {z, u, z->live[u].task};
    zp_array *param = &z->array[ZP_PARAM];
    zp_transfer_up_state *l = &z->host.lift[ZP_PARAM];
    zp_stream *s = &z->stream[ZP_PARAMETERS];
    ZP_TRY(zp_device_wait_lane_room(s, &l->asks));
    zp_lane_push(&l->asks, zp_transfer_up_read_task, &ask, sizeof ask, zp_array_pieces(param, u));
    for (size_t at = 0; at < param->part[u].numel; at += most, l->turns++) {
        const size_t n = zp_min(most, param->part[u].numel - at);
        ZP_TRY(zp_device_call_from_stream(s, zp_transfer_up_wait, z));
        ZP_TRY(zp_device_copy(s, to + at * of, zp_transfer_up_place(z, ZP_PARAM, l->turns, 0),
                              n * of));
        ZP_TRY(zp_device_open_gate_from_stream(s, &l->copied));
    }
    return ZERO_OK;
}

static zero_result zp_transfer_fetch_shard(zero_ctx *z, int u, char *to) {
    const zp_transfer_shard_args a = {z, u, to};
    const zp_array *param = &z->array[ZP_PARAM];
    zp_stream *s = &z->stream[ZP_PARAMETERS];
    const size_t bytes = zp_array_part_bytes(param, u);
    zp_record *r = zp_device_begin_slice(
        s, param->tier == ZERO_FILE ? ZERO_EVENT_READ : ZERO_EVENT_COPY, u, bytes);
    if (zp_device_is_host())
        ZP_TRY(zp_device_push_task(s, zp_transfer_fetch_task, &a, sizeof a, 1));
    else if (zp_array_in_file(param, u))
        ZP_TRY(zp_transfer_up_shard(z, u, to));
    else
        ZP_TRY(zp_device_copy(s, to, zp_array_at(param, u, param->part[u].first), bytes));
    zp_device_end_slice(s, r);
    if (!zp_device_is_host()) z->host.up_bytes += bytes;
    return ZERO_OK;
}

/* A unit's reduced gradient to transfer between a GPU and the file. */
typedef struct zp_transfer_down_args {
    zero_ctx *z;
    int unit, writes;
} zp_transfer_down_args;

/* Waits for the transfers of a half of the pinned pieces. */
static void zp_transfer_down_wait(const zp_lane_event *half) {
    for (int i = 0; i < (int)ZP_LIFTED; i++) zp_lane_wait_event(&half[i]);
}
static void zp_transfer_down_enqueue(const zp_transfer_down_args *a, size_t from, size_t n,
                                     zp_lane_event *half) {
    const zp_transfer_up_state *l = &a->z->host.lift[ZP_GRAD];
    for (size_t i = 0; i < n; i++) {
        const zp_transfer t =
            zp_array_piece(&a->z->array[ZP_MEAN], a->unit, from + i,
                           zp_transfer_up_place(a->z, ZP_GRAD, l->asked, i), a->writes);
        zp_file_give(&t, &half[i]);
    }
}
static void zp_transfer_down_task(const void *args, size_t pieces, int threads) {
    const zp_transfer_down_args *a = (const zp_transfer_down_args *)args;
    zp_transfer_up_state *l = &a->z->host.lift[ZP_GRAD];
    for (size_t from = 0; from < pieces; from += ZP_LIFTED, l->asked++) {
        zp_lane_event *half = &l->read[l->asked % 2 * ZP_LIFTED];
        const size_t n = zp_min(ZP_LIFTED, pieces - from);
        zp_transfer_down_wait(half);
        if (!a->writes) {
            zp_transfer_down_enqueue(a, from, n, half);
            zp_transfer_down_wait(half);
        }
        zp_lane_open_gate(&l->given);
        (void)zp_lane_pass_gate(&l->copied);
        if (a->writes) zp_transfer_down_enqueue(a, from, n, half);
    }
}
static void zp_transfer_down_pass_gate(void *gate) { (void)zp_lane_pass_gate((zp_gate *)gate); }
/* Writes the reduced gradient, or adds the sum of earlier micro-steps in the file to it. */
static zero_result zp_transfer_down_shard(zero_ctx *z, int u, char *memory, int writes) {
    const zp_array *mean = &z->array[ZP_MEAN];
    const size_t of = zp_type_bytes(mean->type), most = ZP_LIFTED * ZP_PIECE_NUMEL;
    const zp_transfer_down_args ask = {z, u, writes};
    zp_transfer_up_state *l = &z->host.lift[ZP_GRAD];
    zp_stream *s = &z->stream[ZP_GRADIENTS];
    if (writes)
        ZP_TRY(
            zp_device_wait_event(s, zp_ctx_is_delayed(z) ? z->live[u].spent : z->live[u].updated));
    *(writes ? &z->host.down_bytes : &z->host.up_bytes) += zp_array_part_bytes(mean, u);
    ZP_TRY(zp_device_wait_lane_room(s, &l->asks));
    zp_lane_push(&l->asks, zp_transfer_down_task, &ask, sizeof ask, zp_array_pieces(mean, u));
    for (size_t at = 0; at < mean->part[u].numel; at += most, l->turns++) {
        const size_t n = zp_min(most, mean->part[u].numel - at);
        char *half = zp_transfer_up_place(z, ZP_GRAD, l->turns, 0), *here = memory + at * of;
        const zp_kernel_accumulate_args add = {l->sums, here, mean->type, 0, 1};
        ZP_TRY(zp_device_call_from_stream(s, zp_transfer_down_pass_gate, &l->given));
        ZP_TRY(zp_device_copy(s, writes ? half : (char *)l->sums, writes ? here : half, n * of));
        ZP_TRY(zp_device_open_gate_from_stream(s, &l->copied));
        if (!writes) ZP_TRY(zp_kernel_accumulate(s, &add, n / ZP_WIDE));
    }
    return ZERO_OK;
}

/* Adds the sum of earlier micro-steps in the file, piece by piece, read ahead. */
static zero_result zp_transfer_add_mean(zero_ctx *z, int u, float *to) {
    const zp_array *a = &z->array[ZP_MEAN];
    const size_t pieces = zp_array_pieces(a, u), numel = a->part[u].numel;
    zp_lane_event read[ZP_DISK_LANES];
    for (size_t i = 0; i < pieces + ZP_DISK_LANES; i++) {
        const size_t place = i % ZP_DISK_LANES, done = i - ZP_DISK_LANES;
        float *more = (float *)(void *)(z->addends + place * a->piece_bytes);
        if (i >= ZP_DISK_LANES) {
            const size_t from = done * ZP_PIECE_NUMEL, n = zp_min(numel - from, ZP_PIECE_NUMEL);
            zp_file_wait(a->disk, &read[place]);
            ZP_TRY(zp_failure_result(&z->failure));
            for (size_t k = 0; k < n; k++) to[from + k] = more[k] + to[from + k];
        }
        if (i >= pieces) continue;
        const zp_transfer t = zp_array_piece(a, u, i, (char *)more, 0);
        zp_file_give(&t, &read[place]);
    }
    return ZERO_OK;
}
static void zp_transfer_add_mean_task(const void *args, size_t n, int threads) {
    const zp_transfer_shard_args *a = (const zp_transfer_shard_args *)args;
    (void)zp_transfer_add_mean(a->z, a->unit, (float *)(void *)a->memory);
}
static void zp_transfer_write_mean_task(const void *args, size_t n, int threads) {
    const zp_transfer_shard_args *a = (const zp_transfer_shard_args *)args;
    (void)zp_array_move(&a->z->array[ZP_MEAN], a->unit, a->memory, 1);
}

/* Enqueues the write of a reduced gradient to the file, or the sum with the file. */
static zero_result zp_transfer_push_mean(zero_ctx *z, int u, zp_task_fn task) {
    const zp_transfer_shard_args a = {z, u, zp_ctx_unit_mean(z, u)};
    zp_stream *s = &z->stream[ZP_GRADIENTS];
    const zero_event_kind kind =
        task == zp_transfer_write_mean_task ? ZERO_EVENT_WRITE : ZERO_EVENT_READ;
    zp_record *r = zp_device_begin_slice(s, kind, u, zp_array_part_bytes(&z->array[ZP_MEAN], u));
    const zero_result result =
        zp_device_is_host() ? zp_device_push_task(s, task, &a, sizeof a, 1)
                            : zp_transfer_down_shard(z, u, a.memory, kind == ZERO_EVENT_WRITE);
    zp_device_end_slice(s, r);
    return result;
}
static int zp_transfer_mean_in_file(const zero_ctx *z, int u) {
    return zp_array_in_file(&z->array[ZP_MEAN], u);
}
/* Whether it is added to the sum of earlier micro-steps in its tier. */
static int zp_transfer_mean_adds(const zero_ctx *z, int u) {
    return zp_offload_plan_mean_leaves(z, u) && z->live[u].reduced > 0;
}
static zero_result zp_transfer_sum_mean(zero_ctx *z, int u) {
    return zp_transfer_mean_in_file(z, u) ? zp_transfer_push_mean(z, u, zp_transfer_add_mean_task)
                                          : zp_gpu_update_add_mean(z, u);
}

/* ---- the stations ---- */

/* The update of the step before may still read what a reduction will write. */
static zero_result zp_transfer_wait_reader(zero_ctx *z, int u) {
    return zp_cpu_update_wait_reader(z, &z->stream[ZP_GRADIENTS], u);
}
/* What earlier micro-steps have sent away is added there, not here. */
static zero_result zp_transfer_change_reduction(zero_ctx *z) {
    for (int i = 0; i < z->nbucket; i++)
        z->ops[i].accumulate &= !zp_transfer_mean_adds(z, z->bucket[i]);
    return ZERO_OK;
}
static zero_result zp_transfer_add(zero_ctx *z, int u) {
    return zp_transfer_mean_adds(z, u) ? zp_transfer_sum_mean(z, u) : ZERO_OK;
}
static zero_result zp_transfer_store(zero_ctx *z, int u) {
    if (!zp_transfer_mean_in_file(z, u)) return ZERO_OK;
    if (!z->bucket_last && !zp_offload_plan_mean_leaves(z, u)) return ZERO_OK;
    return zp_transfer_push_mean(z, u, zp_transfer_write_mean_task);
}
static zero_result zp_transfer_send(zero_ctx *z, int u) {
    if (!z->bucket_last && !zp_offload_plan_mean_leaves(z, u)) return ZERO_OK;
    return zp_cpu_update_send_gradient(z, u);
}
/* The shard of a unit whose parameters are not on the device comes to where its gather reads it. */
static zero_result zp_transfer_fetch(zero_ctx *z, int u) {
    const zp_op *op = &z->gather;
    if (op->group != z->data || !zp_array_off_device(&z->array[ZP_PARAM], u)) return ZERO_OK;
    return zp_transfer_fetch_shard(z, u, op->memory->base + op->source);
}

static zero_result zp_transfer_decided(zero_ctx *z) {
    ZP_TRY(zp_cpu_update_begin(z));
    return zp_gpu_update_begin(z);
}
static int zp_transfer_has_file(const zero_ctx *z) { return z->plan.file_bytes > 0; }
static int zp_transfer_is_offloaded(const zero_ctx *z) {
    int apart = 0;
    for (int u = 0; u < z->layout.all; u++) apart |= z->live[u].apart;
    return apart;
}
static const zp_station zp_offload_stations[] = {
    {ZP_AT_WRITTEN, ZP_EACH_MICRO_STEP, zp_ctx_is_delayed, zp_transfer_wait_reader, NULL},
    {ZP_AT_CHANGE, ZP_EACH_REDUCTION, zp_transfer_is_offloaded, NULL, zp_transfer_change_reduction},
    {ZP_AT_ADD, ZP_EACH_MICRO_STEP, zp_transfer_is_offloaded, zp_transfer_add, NULL},
    {ZP_AT_STORE, ZP_EACH_MICRO_STEP, zp_transfer_is_offloaded, zp_transfer_store, NULL},
    {ZP_AT_AFTER, ZP_EACH_MICRO_STEP, zp_transfer_is_offloaded, zp_transfer_send, NULL},
    {ZP_AT_FETCH, ZP_EACH_GATHER, zp_transfer_is_offloaded, zp_transfer_fetch, NULL},
    {ZP_AT_AFTER, ZP_LAST_MICRO_STEP, zp_ctx_is_delayed, zp_delayed_swap_reduced, NULL},
    {ZP_AT_READ_AHEAD, ZP_EACH_AGREEMENT, zp_transfer_has_file, NULL, zp_async_update_fill_ring},
    {ZP_AT_AGREE, ZP_EACH_AGREEMENT, zp_ctx_is_delayed, NULL, zp_delayed_complete},
    {ZP_AT_REPORT, ZP_EACH_STEP, NULL, NULL, zp_transfer_decided},
    {ZP_AT_COUNT, ZP_EACH_STEP, zp_ctx_is_delayed, NULL, zp_delayed_choose},
    {ZP_AT_PUBLISH, ZP_EACH_STEP, zp_ctx_is_delayed, zp_delayed_publish, NULL},
    {ZP_AT_FORGET, ZP_EACH_STEP, zp_ctx_is_delayed, NULL, zp_delayed_end_step},
    ZP_LAST_STATION};
/* zero_build: who updates each unit, and what that replaces in the core. */
static zero_result zp_transfer_build(zero_ctx *z) {
    for (int u = 0; u < z->layout.all; u++)
        if (z->live[u].apart)
            z->live[u].update = z->host.through ? zp_async_update_through : zp_async_update_push;
    z->convert = zp_cpu_update_convert;
    return ZERO_OK;
}
static zero_result zp_transfer_before_write(zero_ctx *z, int u) {
    return zp_cpu_update_wait_reader(z, &z->compute, u);
}
static void zp_transfer_wrote(zero_ctx *z, const zp_array *a) {
    if (!a || a->disk) zp_file_ring_forget(&z->ring);
    zp_cpu_update_note_write(z, a ? a : &z->array[ZP_PARAM]);
}

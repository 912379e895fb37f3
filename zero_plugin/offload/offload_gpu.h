/* offload_gpu.h - offload next to a GPU: shards between the file and the GPU, stations, its row

   STAGING. Shards of the file pass through pinned pieces in two halves, which alternate, so that a
   unit takes a few large copies. Parameters are read for a gather. Reduced gradients are written,
   or, if micro-steps add up, read first and added. Each side has its own halves, and its stream has
   a lane, with one task for each unit:

     the stream's lane                            the stream
     parameters: waits until the unit's last      gradients to write: waits until the last update
       update has ended                             has read the file's
     for each half:                               for each half:
       waits until the stream has copied the        in a callback: passes `given`, and waits for the
         half before last, and until the half's       half's reads
         last writes have ended                     copies the half up or down; a kernel adds
       to read: enqueues the half's reads on the    opens `copied`
         file's lanes; opens gate `given`
       to write: opens `given`; passes `copied`;
         enqueues the half's writes

   The stream `updates` waits until the lane has enqueued all gradients of a step. A stream that
   reaches a half waits for the file alone: see device_cuda.h. The row of a CPU build is empty. */
#pragma once

#include "../core/build.h"
#include "gpu_update.h"
#include "transfers.h"

#ifdef __CUDACC__
/* ---- staging ---- */

typedef struct zp_staging_args {
    zero_ctx *z;
    int side, unit, writes;
    zp_lane_event updated; /* what the lane waits for first */
} zp_staging_args;

static char *zp_offload_gpu_half(const zero_ctx *z, int side, size_t half, size_t i) {
    const size_t place = half % 2 * ZP_STAGED + i, of = zp_type_bytes(z->array[side].type);
    return z->offload->staging[side] + place * ZP_PIECE_NUMEL * of;
}

/* The lane waits until the stream has copied `halves` halves. */
static void zp_offload_gpu_wait_copied(zp_staging *s, size_t halves) {
    while (s->copied.passed < halves) (void)zp_gate_pass(&s->copied);
}
static void zp_offload_gpu_ask_task(const void *args, size_t pieces, int threads) {
    const zp_staging_args *a = (const zp_staging_args *)args;
    zp_staging *s = &a->z->offload->gpu->staging[a->side];
    const zp_array *array = zp_ctx_side_array(a->z, a->side);
    zp_lane_wait_event(&a->updated);
    for (size_t from = 0; from < pieces; from += ZP_STAGED) {
        const size_t half = s->given.opened;
        zp_lane_event *moved = &s->moved[half % 2 * ZP_STAGED];
        zp_offload_gpu_wait_copied(s, zp_max(half, 1) - 1);
        for (int i = 0; i < (int)ZP_STAGED; i++) zp_lane_wait_event(&moved[i]);
        if (a->writes) {
            zp_gate_open(&s->given);
            zp_offload_gpu_wait_copied(s, half + 1);
        }
        for (size_t i = 0; i < zp_min(ZP_STAGED, pieces - from); i++) {
            char *place = zp_offload_gpu_half(a->z, a->side, half, i);
            const zp_transfer t = zp_file_piece(array, a->unit, from + i, place, a->writes);
            zp_file_give(&t, &moved[i]);
        }
        if (!a->writes) zp_gate_open(&s->given);
    }
}

/* The stream's callback: the next half was read, or may be written. */
static void zp_offload_gpu_wait_half(void *staging) {
    zp_staging *s = (zp_staging *)staging;
    (void)zp_gate_pass(&s->given);
    const zp_lane_event *moved = &s->moved[(s->given.passed - 1) % 2 * ZP_STAGED];
    for (size_t i = 0; i < ZP_STAGED; i++) zp_file_wait(s->file, &moved[i]);
}

static zero_result zp_offload_gpu_stage(zero_ctx *z, int u, zp_transfer_kind kind, char *memory) {
    zp_offload *o = z->offload;
    const int side = zp_transfer_side(kind), writes = kind == ZP_WRITE_MEAN;
    zp_staging *g = &o->gpu->staging[side];
    zp_stream *s = &z->stream[side];
    const zp_array *a = zp_ctx_side_array(z, side);
    const size_t of = zp_type_bytes(a->type), most = ZP_STAGED * ZP_PIECE_NUMEL;
    zp_staging_args ask = {z, side, u, writes, {NULL, 0, 0}};
    if (side == ZP_PARAM) ask.updated = o->unit[u].task;
    if (writes)
        ZP_TRY(
            zp_device_wait_event(s, z->updates_overlap ? &o->unit[u].spent : z->live[u].updated));
    *(writes ? &o->down_bytes : &o->up_bytes) += zp_array_part_bytes(a, u);
    ZP_TRY(zp_device_wait_lane_room(s, &s->lane));
    zp_lane_push(&s->lane, NULL, zp_offload_gpu_ask_task, &ask, sizeof ask, zp_file_pieces(a, u));
    for (size_t at = 0; at < a->part[u].numel; at += most, g->halves++) {
        const size_t n = zp_min(most, a->part[u].numel - at);
        char *half = zp_offload_gpu_half(z, side, g->halves, 0), *here = memory + at * of;
        const zp_kernel_accumulate_args add = {(float *)(void *)o->places, here, a->type, 0, 1};
        char *to = writes ? half : kind == ZP_ADD_MEAN ? o->places : here;
        ZP_TRY(zp_device_call_from_stream(s, zp_offload_gpu_wait_half, g));
        ZP_TRY(zp_device_copy(s, to, writes ? here : half, n * of));
        ZP_TRY(zp_device_call_from_stream(s, zp_gate_open, &g->copied));
        if (kind == ZP_ADD_MEAN) ZP_TRY(zp_kernel_accumulate(s, &add, n / ZP_WIDE));
    }
    return ZERO_OK;
}

/* Moves unit u's shard between its tier and `memory`, on the device. */
static zero_result zp_offload_gpu_move(zero_ctx *z, int u, zp_transfer_kind kind, char *memory) {
    const int side = zp_transfer_side(kind);
    const zp_array *a = zp_ctx_side_array(z, side);
    if (zp_file_has(a, u)) return zp_offload_gpu_stage(z, u, kind, memory);
    return kind == ZP_ADD_MEAN ? zp_gpu_update_add_mean(z, u)
                               : zp_cpu_update_copy(z, &z->stream[side], u, a, memory, 1);
}

/* ---- the stations ---- */

/* After the reduction: copies the gradient to host memory. */
static zero_result zp_offload_gpu_send(zero_ctx *z, int u) {
    return zp_transfer_mean_is_due(z, u) ? zp_cpu_update_send_gradient(z, u) : ZERO_OK;
}
/* zero_step has decided. */
static zero_result zp_offload_gpu_decided(zero_ctx *z) {
    if (z->offload->cpu_updates) ZP_TRY(zp_cpu_update_begin(z));
    return z->offload->gpu_updates ? zp_gpu_update_begin(z) : ZERO_OK;
}
static int zp_offload_gpu_cpu_updates(const zero_ctx *z) { return z->offload->cpu_updates; }
static const zp_station zp_offload_gpu_stations[] = {
    {ZP_AT_AFTER, ZP_EACH_MICRO_STEP, zp_offload_gpu_cpu_updates, zp_offload_gpu_send, NULL},
    {ZP_AT_REPORT, ZP_EACH_STEP, NULL, NULL, zp_offload_gpu_decided},
    ZP_LAST_STATION};

/* ---- life ---- */

/* Calls `act` with every gate. */
static void zp_offload_gpu_each_gate(zp_offload_gpu *g, void (*act)(zp_gate *)) {
    act(&g->gate);
    for (int side = 0; side < ZP_SIDES; side++) {
        act(&g->staging[side].copied);
        act(&g->staging[side].given);
    }
}

/* Opens the memory, streams, lanes and events. The stream `updates` gets its lane. */
static zero_result zp_offload_gpu_open(zero_ctx *z) {
    zp_offload *o = z->offload;
    zp_offload_gpu *g = o->gpu;
    zp_stream *copies[] = {&g->down, &g->up};
    for (int i = 0; i < 2; i++) {
        ZP_TRY(
            zp_device_open_stream(copies[i], &z->device, z->cfg.stream, !z->cfg.no_overlap, 0, 1));
        zp_device_set_track(copies[i], ZERO_TRACK_COPIES);
    }
    if (o->cpu_updates) ZP_TRY(zp_device_attach_lane(&z->updates, z->cfg.threads));
    for (int i = 0; i < ZP_GPU_EVENTS; i++) ZP_TRY(zp_device_open_event(&z->device, &g->event[i]));
    for (int side = 0; side < ZP_SIDES; side++) {
        if (zp_ctx_side_array(z, side)->tier != ZERO_FILE) continue;
        ZP_TRY(zp_device_attach_lane(&z->stream[side], 1));
        g->staging[side].file = &o->file;
    }
    for (int i = 1; i >= 0; i--) {
        ZP_TRY(zp_device_open_pages(&g->memory[i], o->bytes[i], i));
        o->memory[i] = g->memory[i].base;
    }
    zp_offload_plan_cut(z);
    if (o->cpu_updates) z->decision = o->control;
    for (int u = 0; u < z->layout.all; u++)
        (void)zp_build_make_spans(z, u, o->spans + (z->layout.unit[u].member - z->layout.members));
    return ZERO_OK; /* UP is zeros, like PARAM */
}
/* All ranks learn which rank has no room in host memory. */
static zero_result zp_offload_gpu_share(zero_ctx *z) {
    zp_offload *o = z->offload;
    if (!o->cpu_updates && !o->gpu_updates) return ZERO_OK;
    const zero_result r = zp_offload_gpu_open(z);
    int failed_rank = -1;
    o->move = zp_offload_gpu_move;
    o->updater = o->cpu_updates ? &zp_cpu_updater : &zp_gpu_updater;
    if (o->cpu_updates) {
        o->replace = zp_cpu_update_copy_up;
        zp_cpu_update_set_readers(z);
    }
    ZP_DO(z, zp_comm_agree(z->all, r == ZERO_OK, &failed_rank));
    if (failed_rank < 0) return ZERO_OK;
    if (r && z->device.text[0]) return zp_ctx_check(z, r); /* it was something else */
    return z->dead = zp_ctx_fail(
               z, ZERO_ERR_MEMORY,
               "rank %d could not get %zu bytes of the host's memory, of which %zu pinned",
               failed_rank, z->plan.host_bytes, z->plan.pinned_bytes);
}

static zero_result zp_offload_gpu_join(zero_ctx *z) {
    if (z->offload->gpu) return ZERO_OK;
    zp_offload_gpu *g = (zp_offload_gpu *)calloc(1, sizeof *g);
    if (!g) return zp_ctx_fail(z, ZERO_ERR_MEMORY, "the state of offload");
    z->offload->gpu = g;
    zp_offload_gpu_each_gate(g, zp_gate_init);
    return ZERO_OK;
}
static zero_result zp_offload_gpu_sync(zero_ctx *z) {
    zp_offload_gpu *g = z->offload->gpu;
    zp_device_finish_stream(&z->stream[ZP_GRADIENTS]);
    return g->down.device ? zp_device_sync_stream(&g->down) : ZERO_OK;
}
/* Opens the gates for threads that still wait: a lost device does not open them. */
static zero_result zp_offload_gpu_abandon(zero_ctx *z) {
    zp_offload_gpu *g = z->offload->gpu;
    if (!g) return ZERO_OK;
    zp_device_close_stream(&g->down);
    zp_device_close_stream(&g->up);
    zp_gate_abandon(&g->gate);
    for (int side = 0; side < ZP_SIDES; side++)
        if (g->staging[side].file) (void)zp_device_sync_stream(&z->stream[side]);
    zp_offload_gpu_each_gate(g, zp_gate_abandon);
    return ZERO_OK;
}
static zero_result zp_offload_gpu_destroy(zero_ctx *z) {
    zp_offload_gpu *g = z->offload->gpu;
    if (!g) return ZERO_OK;
    for (int i = 0; i < ZP_GPU_EVENTS; i++) zp_device_close_event(&g->event[i]);
    for (int i = 0; i < 2; i++) zp_device_close_pages(&g->memory[i]);
    zp_offload_gpu_each_gate(g, zp_gate_close);
    free(g);
    return ZERO_OK;
}
static zero_result zp_offload_gpu_plan(zero_ctx *z) {
    z->plan.context_bytes += sizeof *z->offload->gpu;
    return ZERO_OK;
}
#endif

static zp_extra zp_offload_gpu_row(void) {
    zp_extra x;
    memset(&x, 0, sizeof x);
    x.name = "offload, next to a GPU";
#ifdef __CUDACC__
    x.call[ZP_ON_JOIN] = zp_offload_gpu_join;
    x.call[ZP_ON_PLAN] = zp_offload_gpu_plan;
    x.call[ZP_ON_SHARE] = zp_offload_gpu_share;
    x.wrote = zp_cpu_update_note_write;
    x.call[ZP_ON_SYNC] = zp_offload_gpu_sync;
    x.call[ZP_ON_ABANDON] = zp_offload_gpu_abandon;
    x.call[ZP_ON_DESTROY] = zp_offload_gpu_destroy;
    x.stations = zp_offload_gpu_stations;
#endif
    return x;
}

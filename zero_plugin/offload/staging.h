/* staging.h - shards on their way between a rank's file and a GPU

   They pass through pinned pieces in two halves, which alternate, so that a unit takes a few large
   copies. Parameters are read for a gather. Reduced gradients are written, or, if micro-steps add
   up, read first and added. Each side has its own halves and its own lane, `asks`, which has one
   task for each unit:

     lane `asks`                                  the side's stream
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
   reaches a half waits for the file alone: see device_cuda.h. Only CUDA builds have this file. */
#pragma once

#include "async_update.h"

#ifdef __CUDACC__
typedef struct zp_staging_args {
    zero_ctx *z;
    int side, unit, writes;
    zp_lane_event updated; /* what the lane waits for first */
} zp_staging_args;

static char *zp_staging_place(const zero_ctx *z, int side, size_t half, size_t i) {
    const size_t place = half % 2 * ZP_STAGED + i, of = zp_type_bytes(z->array[side].type);
    return z->offload->staging[side] + place * ZP_PIECE_NUMEL * of;
}

/* The lane waits until the stream has copied `halves` halves. */
static void zp_staging_wait_copied(zp_staging *s, size_t halves) {
    for (; s->freed < halves; s->freed++) (void)zp_lane_pass_gate(&s->copied);
}
static void zp_staging_task(const void *args, size_t pieces, int threads) {
    const zp_staging_args *a = (const zp_staging_args *)args;
    zp_staging *s = &a->z->offload->gpu.staging[a->side];
    const zp_array *array = zp_ctx_side_array(a->z, a->side);
    zp_lane_wait_event(&a->updated);
    for (size_t from = 0; from < pieces; from += ZP_STAGED, s->asked++) {
        zp_lane_event *moved = &s->moved[s->asked % 2 * ZP_STAGED];
        zp_staging_wait_copied(s, zp_max(s->asked, 1) - 1);
        for (int i = 0; i < (int)ZP_STAGED; i++) zp_lane_wait_event(&moved[i]);
        if (a->writes) zp_lane_open_gate(&s->given);
        if (a->writes) zp_staging_wait_copied(s, s->asked + 1);
        for (size_t i = 0; i < zp_min(ZP_STAGED, pieces - from); i++) {
            const zp_transfer t = zp_file_piece(
                array, a->unit, from + i, zp_staging_place(a->z, a->side, s->asked, i), a->writes);
            zp_file_give(&t, &moved[i]);
        }
        if (!a->writes) zp_lane_open_gate(&s->given);
    }
}

/* The stream's callback: the next half was read, or may be written. */
static void zp_staging_wait(zero_ctx *z, zp_staging *s) {
    (void)zp_lane_pass_gate(&s->given);
    for (size_t i = 0; i < ZP_STAGED; i++)
        zp_file_wait(&z->offload->file, &s->moved[s->awaited % 2 * ZP_STAGED + i]);
    s->awaited++;
}
static void zp_staging_wait_parameters(void *z) {
    zp_staging_wait((zero_ctx *)z, &((zero_ctx *)z)->offload->gpu.staging[ZP_PARAM]);
}
static void zp_staging_wait_gradients(void *z) {
    zp_staging_wait((zero_ctx *)z, &((zero_ctx *)z)->offload->gpu.staging[ZP_GRAD]);
}

/* Moves unit u's shard between the file and `memory`, on the device. `adds`: adds what it reads. */
static zero_result zp_staging_move(zero_ctx *z, int side, int u, char *memory, int writes,
                                   int adds) {
    zp_offload *o = z->offload;
    zp_staging *g = &o->gpu.staging[side];
    zp_stream *s = &z->stream[side];
    const zp_array *a = zp_ctx_side_array(z, side);
    const size_t of = zp_type_bytes(a->type), most = ZP_STAGED * ZP_PIECE_NUMEL;
    zp_staging_args ask = {z, side, u, writes, {NULL, 0, 0}};
    if (side == ZP_PARAM) ask.updated = o->unit[u].task;
    if (writes)
        ZP_TRY(
            zp_device_wait_event(s, zp_ctx_is_delayed(z) ? &o->unit[u].spent : z->live[u].updated));
    *(writes ? &o->down_bytes : &o->up_bytes) += zp_array_part_bytes(a, u);
    ZP_TRY(zp_device_wait_lane_room(s, &g->asks));
    zp_lane_push(&g->asks, zp_staging_task, &ask, sizeof ask, zp_file_pieces(a, u));
    for (size_t at = 0; at < a->part[u].numel; at += most, g->halves++) {
        const size_t n = zp_min(most, a->part[u].numel - at);
        char *half = zp_staging_place(z, side, g->halves, 0), *here = memory + at * of;
        const zp_kernel_accumulate_args add = {o->staged_sums, here, a->type, 0, 1};
        char *to = writes ? half : adds ? (char *)o->staged_sums : here;
        ZP_TRY(zp_device_call_from_stream(
            s, side == ZP_PARAM ? zp_staging_wait_parameters : zp_staging_wait_gradients, z));
        ZP_TRY(zp_device_copy(s, to, writes ? here : half, n * of));
        ZP_TRY(zp_device_open_gate_from_stream(s, &g->copied));
        if (adds) ZP_TRY(zp_kernel_accumulate(s, &add, n / ZP_WIDE));
    }
    return ZERO_OK;
}
#endif

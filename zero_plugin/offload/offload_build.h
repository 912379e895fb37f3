/* offload_build.h - the row of offload: what it plans and allocates, and its stations */
#pragma once

#include "../core/build.h"
#include "cpu_pass.h"
#include "transfers.h"

/* Bytes of lists, and of lanes: of the stream `updates`, of CPU memory next to a GPU, and of files.
 */
static size_t zp_offload_build_context_bytes(zero_ctx *z) {
    const int cpu = z->ring.stops > 0 && !z->cfg.no_overlap;
    int n = zp_device_is_host() ? cpu : zp_cpu_update_is_on(z);
    for (int side = 0; side < ZP_SIDES && !zp_device_is_host(); side++)
        n += zp_ctx_side_array(z, side)->tier == ZERO_FILE;
    const size_t lanes = (size_t)n + (z->plan.file_bytes ? ZP_DISK_LANES : 0);
    return z->ring.stops * sizeof(zp_file_ring_stop) + z->disk_pieces * sizeof(uint64_t)
           + lanes * ZP_LANE_TASKS * sizeof(zp_task);
}

/* The arrays that an update touches, in the ring's order, and what it does with them. */
static void zp_offload_build_ring_arrays(zero_ctx *z) {
    zp_file_ring_array *t = z->ring.turn;
    const int masters = z->array[ZP_MASTER].share != ZP_NOTHING;
    memset(t, 0, sizeof z->ring.turn);
    t[ZP_UPDATED_PARAM].array = &z->array[zp_cpu_update_is_on(z) ? (int)ZP_UP
                                          : zp_ctx_keeps_next(z) ? (int)ZP_NEXT
                                                                 : (int)ZP_PARAM];
    t[ZP_UPDATED_PARAM].other = zp_ctx_keeps_next(z) ? &z->array[ZP_PARAM] : NULL;
    t[ZP_UPDATED_MEAN].array =
        zp_cpu_update_is_on(z) ? &z->array[ZP_DOWN] : zp_ctx_update_gradient(z);
    for (int i = 0; i <= ZP_STATES; i++) t[ZP_UPDATED_MASTER + i].array = &z->array[ZP_MASTER + i];
    for (int k = 0; k < ZP_UPDATED_ARRAYS; k++) {
        const int last = 1 << (z->rule->passes - 1), all = 2 * last - 1;
        t[k].reads = k != ZP_UPDATED_PARAM || !masters;
        t[k].writes = k == ZP_UPDATED_MEAN ? 0 : k > ZP_UPDATED_MASTER ? all : last;
    }
}

/* Memory for pieces on their way: of each array in the file a bounce, its part of the ring, and
   addends. */
static void zp_offload_build_piece_memory(zero_ctx *z) {
    char *at = z->disk_memory;
    for (int k = 0; k < ZP_ARRAYS; k++) {
        zp_array *a = &z->array[k];
        const size_t bytes = a->piece_bytes;
        const int twin = k == ZP_PARAM ? ZP_UP : k == ZP_MEAN ? ZP_DOWN : k;
        const zp_array *turned = &z->array[zp_cpu_update_is_on(z) ? twin : k];
        if (a->tier != ZERO_FILE || !zp_array_bytes_off_device(a, z->layout.all)) continue;
        a->disk = z->array[twin].disk = &z->disk;
        a->bounce = at;
        at += bytes;
        for (zp_file_ring_array *t = z->ring.turn; t < z->ring.turn + ZP_UPDATED_ARRAYS; t++) {
            if (t->array != turned) continue;
            t->memory = at;
            t->piece_bytes = bytes;
        }
        at += zp_offload_plan_places(z, k) * bytes;
        if (zp_offload_plan_addends(z, k)) z->addends = at;
        at += zp_offload_plan_addends(z, k) * bytes;
    }
}

/* What updates apart need: their stream, their stops, and the disk with the pieces on their way. */
static zero_result zp_offload_build_open_updates(zero_ctx *z) {
    const zero_config *c = &z->cfg;
    zp_file_ring *r = &z->ring;
    const size_t bytes = z->plan.file_bytes;
    if (!r->stops) return ZERO_OK;
    r->disk = &z->disk;
    if (bytes) ZP_TRY(zp_file_open(&z->disk, z->all, c->folder, bytes, z->disk_pieces));
    z->disk.unchecked = c->no_file_check;
    if (bytes) z->plan.file_way = zp_file_describe(&z->disk);
    if (bytes && c->log) {
        char text[ZP_TEXT_BYTES];
        (void)snprintf(text, sizeof text, "a file of %zu bytes in %.200s, by %s", bytes, c->folder,
                       z->plan.file_way);
        c->log(c->log_user, ZERO_LOG_INFO, text);
    }
    ZP_TRY(
        zp_device_open_stream(&z->updates, &z->device, c->stream, !c->no_overlap, 0, c->threads));
    zp_device_set_track(&z->updates, ZERO_TRACK_UPDATES);
    r->stop = (zp_file_ring_stop *)calloc(r->stops, sizeof *r->stop);
    if (!r->stop) return ZERO_ERR_MEMORY;
    if (zp_offload_plan_buffers(z)
        && posix_memalign((void **)&z->disk_memory, ZP_SECTOR, z->disk_bytes))
        return ZERO_ERR_MEMORY;
    zp_file_ring_stop *stop = r->stop;
    for (int i = 0; i < r->passes * z->layout.all; i++) {
        const int u = zp_ctx_nth_update(z, i % z->layout.all);
        z->live[u].old_next = 1; /* PARAM has the first weights */
        const size_t n = z->live[u].apart ? zp_array_pieces(&z->array[ZP_STATE], u) : 0;
        for (size_t piece = 0; piece < n; piece++, stop++) {
            stop->unit = u;
            stop->piece = piece;
        }
    }
    return ZERO_OK;
}

/* All ranks learn who has no room in the host's memory. */
static zero_result zp_offload_build_open_cpu(zero_ctx *z) {
    zp_cpu_update *h = &z->host;
    size_t pinned;
    const size_t all = zp_cpu_update_bytes(z, &pinned);
    const zero_result r = zp_cpu_update_open(z);
    int who = -1;
    if (!r && h->spans)
        for (int u = 0; u < z->layout.all; u++)
            (void)zp_build_make_spans(z, u,
                                      h->spans + (z->layout.unit[u].member - z->layout.members));
    ZP_DO(z, zp_comm_agree(z->all, r == ZERO_OK, &who));
    if (who < 0) return ZERO_OK;
    if (r && z->device.text[0]) return zp_ctx_check(z, r); /* it was something else */
    return z->dead = zp_ctx_fail(
               z, ZERO_ERR_MEMORY,
               "rank %d could not get %zu bytes of the host's memory, of which %zu pinned", who,
               all, pinned);
}

/* Before memory that ranks share is opened: the stream `updates`, the file and its pieces. */
static zero_result zp_offload_build_allocate(zero_ctx *z) {
    zp_offload_build_ring_arrays(z);
    return zp_offload_build_open_updates(z);
}
/* After all ranks have allocated that. */
static zero_result zp_offload_build_share(zero_ctx *z) {
    if (zp_cpu_update_keeps_state(z)) ZP_TRY(zp_offload_build_open_cpu(z));
    zp_offload_build_piece_memory(z);
    return ZERO_OK;
}
static void zp_offload_build_cut(zero_ctx *z, size_t *at) {
    const size_t places = zp_gpu_update_bytes(z), sums = zp_offload_plan_sums(z);
    if (places) z->host.places = (char *)zp_ctx_cut_arena(z, at, places, 1);
    if (sums) z->host.lift[ZP_GRAD].sums = (float *)zp_ctx_cut_arena(z, at, sums, 1);
}

/* ---- the plan ---- */

/* Gradients stay on the device if they are whole there, or if the GPU updates. */
static void zp_offload_build_choose(zero_ctx *z) {
    zp_array *mean = &z->array[ZP_MEAN];
    zp_gpu_update_choose(z);
    const int whole = z->array[ZP_GRAD].share == ZP_WHOLE;
    if (z->cfg.gradient_tier == ZERO_HOST && (whole || z->host.through)) mean->tier = ZERO_DEVICE;
}
/* The arrays are cut: those of the CPU's memory and of the file follow. */
static void zp_offload_build_plan_arrays(zero_ctx *z) {
    zp_cpu_update_plan(z);
    z->cpu_passes = zp_cpu_update_is_on(z) ? &zp_cpu_pass_calls : NULL;
    zp_offload_plan_file(z);
    zp_cpu_update_share_parts(z);
    zp_gpu_update_plan(z);
    z->plan.host_bytes = zp_cpu_update_bytes(z, &z->plan.pinned_bytes);
    z->piece_bytes = zp_offload_plan_buffers(z) + zp_offload_plan_sums(z) + zp_gpu_update_bytes(z);
}
static void zp_offload_build_plan_traffic(zero_ctx *z) {
    zp_offload_plan_file_traffic(z);
    zp_offload_plan_link_traffic(z);
}

/* ---- life ---- */

static void zp_offload_build_init(zero_ctx *z) {
    zp_lane_init_gate(&z->host.gate);
    for (int side = 0; side < ZP_SIDES; side++) {
        zp_lane_init_gate(&z->host.lift[side].given);
        zp_lane_init_gate(&z->host.lift[side].copied);
    }
}
static void zp_offload_build_finish(zero_ctx *z) {
    for (int side = 0; side < ZP_SIDES; side++)
        if (z->host.lift[side].open) zp_lane_sync(&z->host.lift[side].asks);
    zp_file_sync(&z->disk);
}
static void zp_offload_build_destroy(zero_ctx *z, int broken) {
    (void)broken;
    for (int side = 0; side < ZP_SIDES; side++)
        if (z->host.lift[side].open) zp_lane_close(&z->host.lift[side].asks);
    zp_file_close(&z->disk);
    if (!zp_cpu_update_keeps_state(z)) free(z->disk_memory);
    zp_cpu_update_close(z);
    free(z->ring.stop);
}
/* Pieces of state are read ahead while the last micro-step is reduced. */
static zero_result zp_offload_build_reduced(zero_ctx *z) {
    return z->plan.file_bytes ? zp_async_update_fill_ring(z) : ZERO_OK;
}

static zp_extra zp_offload_build_row(void) {
    zp_extra x;
    memset(&x, 0, sizeof x);
    x.name = "offload";
    x.refuse = zp_offload_plan_refuse;
    x.choose = zp_offload_build_choose;
    x.plan_units = zp_offload_plan_units;
    x.plan_arrays = zp_offload_build_plan_arrays;
    x.plan = zp_offload_build_plan_traffic;
    x.context_bytes = zp_offload_build_context_bytes;
    x.cut = zp_offload_build_cut;
    x.allocate = zp_offload_build_allocate;
    x.share = zp_offload_build_share;
    x.build = zp_transfer_build;
    x.decided = zp_transfer_decided;
    x.before_write = zp_transfer_before_write;
    x.before_put = zp_delayed_double;
    x.wrote = zp_transfer_wrote;
    x.finish_update = zp_delayed_finish;
    x.stations = zp_offload_stations;
    x.init = zp_offload_build_init;
    x.abandon = zp_cpu_update_abandon;
    x.finish = zp_offload_build_finish;
    x.destroy = zp_offload_build_destroy;
    x.reduced = zp_offload_build_reduced;
    x.fill_update = zp_cpu_pass_fill_update;
    return x;
}

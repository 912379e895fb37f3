/* offload_build.h - what offload allocates, and its row */
#pragma once

#include "../core/build.h"
#include "transfers.h"

/* ---- allocation ---- */

/* Returns the bytes of lists, and of lanes: of the stream `updates`, of staging, and of files. */
static size_t zp_offload_build_context_bytes(zero_ctx *z) {
    const zp_offload *o = z->offload;
    const int on_host = o->ring.stops > 0 && !z->cfg.no_overlap;
    const int next_to_gpu = o->cpu_updates + (z->array[ZP_PARAM].tier == ZERO_FILE)
                            + (z->array[ZP_MEAN].tier == ZERO_FILE);
    const size_t lanes = (size_t)(zp_device_is_host() ? on_host : next_to_gpu)
                         + (z->plan.file_bytes ? ZP_DISK_LANES : 0);
    return (size_t)z->layout.segments * (sizeof *o->unit + ZP_TWINS * sizeof(zp_array_part))
           + o->ring.stops * sizeof(zp_file_ring_stop) + o->file_pieces * sizeof(uint64_t)
           + lanes * ZP_LANE_TASKS * sizeof(zp_task);
}

static zero_result zp_offload_build_plan(zero_ctx *z) {
    zp_offload_plan_traffic(z);
    z->plan.context_bytes += zp_offload_build_context_bytes(z);
    return ZERO_OK;
}

static zero_result zp_offload_build_open_file(zero_ctx *z) {
    zp_offload *o = z->offload;
    const zero_config *c = &z->cfg;
    const size_t bytes = z->plan.file_bytes;
    char text[ZP_TEXT_BYTES];
    if (!bytes) return ZERO_OK;
    ZP_TRY(zp_file_open(&o->file, z->all, c->folder, bytes, o->file_pieces));
    for (int k = 0; k < ZP_ARRAYS; k++) o->filed[k].file = &o->file;
    o->file.unchecked = c->no_file_check;
    z->plan.file_way = zp_file_describe(&o->file);
    (void)snprintf(text, sizeof text, "a file of %zu bytes in %.200s, by %s", bytes, c->folder,
                   z->plan.file_way);
    if (c->log) c->log(c->log_user, ZERO_LOG_INFO, text);
    return ZERO_OK;
}

/* Allocates, before memory that ranks share: the stream `updates`, the ring's stops in the order of
   updates, the file, and the pieces. */
static zero_result zp_offload_build_allocate(zero_ctx *z) {
    zp_offload *o = z->offload;
    zp_file_ring *r = &o->ring;
    const zero_config *c = &z->cfg;
    if (!r->stops && !z->plan.file_bytes && !o->cpu_updates) return ZERO_OK;
    ZP_TRY(zp_offload_build_open_file(z));
    ZP_TRY(
        zp_device_open_stream(&z->updates, &z->device, c->stream, !c->no_overlap, 0, c->threads));
    zp_device_set_track(&z->updates, ZERO_TRACK_UPDATES);
    r->stop = (zp_file_ring_stop *)calloc(r->stops + 1, sizeof *r->stop);
    if (!r->stop) return ZERO_ERR_MEMORY;
    if (zp_device_is_host() && o->bytes[0]) {
        if (posix_memalign((void **)&o->memory[0], ZP_SECTOR, o->bytes[0])) return ZERO_ERR_MEMORY;
        zp_offload_plan_cut(z);
    }
    zp_file_ring_stop *stop = r->stop;
    for (int i = 0; i < r->passes * z->layout.all; i++) {
        const int u = zp_ctx_nth_update(z, i % z->layout.all);
        const size_t n = z->live[u].on_updates ? zp_file_pieces(&z->array[ZP_STATE], u) : 0;
        for (size_t piece = 0; piece < n; piece++, stop++) {
            stop->unit = u;
            stop->piece = piece;
        }
    }
    for (int u = 0; u < z->layout.all; u++) {
        o->unit[u].old_next = 1; /* PARAM has the first weights */
        zp_live *live = &z->live[u];
        if (live->on_updates) live->reader = z->updates_overlap ? &o->unit[u].spent : live->updated;
        if (z->updates_overlap) ZP_TRY(zp_device_open_event(&z->device, &o->unit[u].spent));
    }
    return ZERO_OK;
}
static zero_result zp_offload_build_cut(zero_ctx *z) {
    zp_offload *o = z->offload;
    if (o->places_bytes) o->places = (char *)zp_ctx_cut_arena(z, o->places_bytes, 1);
    return ZERO_OK;
}

/* ---- life ---- */

static zero_result zp_offload_build_init(zero_ctx *z) {
    z->offload->updater = &zp_async_updater;
    z->offload->move = zp_transfer_push;
    z->offload->replace = zp_delayed_replace;
    return ZERO_OK;
}
/* After all memory is allocated: sets what the core calls. */
static zero_result zp_offload_build_connect(zero_ctx *z) {
    for (int u = 0; u < z->layout.all; u++)
        if (z->live[u].on_updates) z->live[u].updater = z->updater = z->offload->updater;
    if (z->updates_overlap) z->find_weights = zp_delayed_find_weights;
    return ZERO_OK;
}
static zero_result zp_offload_build_finish(zero_ctx *z) {
    zp_file_sync(&z->offload->file);
    return ZERO_OK;
}
static zero_result zp_offload_build_destroy(zero_ctx *z) {
    zp_offload *o = z->offload;
    for (int u = 0; u < o->units; u++) zp_device_close_event(&o->unit[u].spent);
    zp_file_close(&o->file);
    if (zp_device_is_host()) free(o->memory[0]);
    free(o->ring.stop);
    free(o->unit);
    free(o->parts);
    return ZERO_OK;
}

static void zp_offload_build_wrote(zero_ctx *z, const zp_array *a, int u) {
    const int first = u < 0 ? 0 : u, end = u < 0 ? z->layout.all : u + 1;
    for (int i = first; i < end; i++) z->offload->unit[i].old_next = !z->update_pending;
    if (a && !a->filed->piece_bytes) return;
    zp_file_sync(&z->offload->file);
    zp_file_ring_forget(&z->offload->ring);
}
static zero_result zp_offload_build_sync(zero_ctx *z) {
    return z->updates.device ? zp_device_sync_stream(&z->updates) : ZERO_OK;
}
static zero_result zp_offload_build_stats(zero_ctx *z) {
    zero_stats *stats = &z->stats;
    zp_offload *o = z->offload;
    zp_file_sync(&o->file);
    stats->allocated_bytes += zp_device_is_host() ? o->bytes[0] : 0;
    stats->file_read_bytes = o->file.read_bytes;
    stats->file_written_bytes = o->file.written_bytes;
    stats->file_s = 1e-9 * (double)o->file.waited_ns;
    stats->down_bytes = o->down_bytes;
    stats->up_bytes = o->up_bytes;
    return ZERO_OK;
}

static zp_extra zp_offload_build_row(void) {
    zp_extra x;
    memset(&x, 0, sizeof x);
    x.name = "offload";
    x.state_bytes = sizeof(zp_offload);
    x.state_at = offsetof(zero_ctx, offload);
    x.settings = zp_offload_plan_settings;
    x.call[ZP_ON_CHECK] = zp_offload_plan_check;
    x.call[ZP_ON_CREATE] = zp_offload_build_init;
    x.call[ZP_ON_LAYOUT] = zp_offload_plan_layout;
    x.call[ZP_ON_CHOOSE] = zp_offload_plan_choose;
    x.call[ZP_ON_ARRAYS] = zp_offload_plan_arrays;
    x.call[ZP_ON_PLAN] = zp_offload_build_plan;
    x.call[ZP_ON_CUT] = zp_offload_build_cut;
    x.call[ZP_ON_ALLOCATE] = zp_offload_build_allocate;
    x.call[ZP_ON_BUILD] = zp_offload_build_connect;
    x.call[ZP_ON_PUT] = zp_delayed_double;
    x.wrote = zp_offload_build_wrote;
    x.call[ZP_ON_FINISH_UPDATE] = zp_delayed_finish;
    x.stations = zp_transfer_stations;
    x.call[ZP_ON_SYNC] = zp_offload_build_sync;
    x.call[ZP_ON_STATS] = zp_offload_build_stats;
    x.call[ZP_ON_FINISH] = zp_offload_build_finish;
    x.call[ZP_ON_DESTROY] = zp_offload_build_destroy;
    return x;
}

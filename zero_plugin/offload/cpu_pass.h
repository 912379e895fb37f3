/* cpu_pass.h - rules of several passes over units that the CPU updates, for a GPU

   The CPU's updates have sums, ratios and directions of their own, in pinned memory. These
   functions copy them to the device after the first pass, and back before the last. */
#pragma once

#include "../core/extra.h"
#include "cpu_update.h"

static void zp_cpu_pass_fill_update(const zero_ctx *z, int u, size_t first, zp_update *a) {
    if (!zp_cpu_update_has_unit(z, u)) return;
    a->sums = z->host.sums;
    a->trust = z->host.trust;
    a->direction = (float *)(void *)zp_array_at(&z->array[ZP_DEALT], u, first);
}

static const zp_control *zp_cpu_pass_control(const zero_ctx *z) { return z->host.control; }

/* Copies this rank's part of unit u from DEALT to its place, or down from there. */
static zero_result zp_cpu_pass_copy_directions(zero_ctx *z, int u, zp_stream *s, uintptr_t place,
                                               int down) {
    const zp_array_part *own = zp_ctx_own_part(z, u);
    char *host = zp_array_at(&z->array[ZP_DEALT], u, own->first);
    char *there = (char *)(place + own->first * sizeof(float));
    *(down ? &z->host.down_bytes : &z->host.up_bytes) += own->numel * sizeof(float);
    return zp_device_copy(s, down ? host : there, down ? there : host, own->numel * sizeof(float));
}
static zero_result zp_cpu_pass_send_directions(zero_ctx *z, int u, zp_stream *s, float *place) {
    return zp_cpu_pass_copy_directions(z, u, s, (uintptr_t)place, 0);
}
static zero_result zp_cpu_pass_take_directions(zero_ctx *z, int u, const float *place,
                                               zp_event *full) {
    ZP_TRY(zp_device_wait_event(&z->host.down, full));
    ZP_TRY(zp_cpu_pass_copy_directions(z, u, &z->host.down, (uintptr_t)place, 1));
    return zp_cpu_update_release(z, &z->host.returned);
}

static zero_result zp_cpu_pass_send_sums(zero_ctx *z, void *to, size_t bytes) {
    return zp_device_copy(&z->updates, to, z->host.sums, bytes);
}
static zero_result zp_cpu_pass_take_ratios(zero_ctx *z, const double *trust, size_t parts,
                                           zp_event *ready) {
    zp_cpu_update *h = &z->host;
    ZP_TRY(zp_device_wait_event(&h->down, ready));
    ZP_TRY(zp_device_copy(&h->down, h->trust, trust, parts * sizeof *trust));
    return zp_cpu_update_release(z, &h->returned);
}

static const zp_cpu_passes zp_cpu_pass_calls = {
    zp_cpu_update_has_unit,      zp_cpu_pass_control,   zp_cpu_pass_send_directions,
    zp_cpu_pass_take_directions, zp_cpu_pass_send_sums, zp_cpu_pass_take_ratios};

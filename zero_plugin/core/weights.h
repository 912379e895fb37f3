/* weights.h - copies weights from one array to another, between steps */
#pragma once

#include "runs.h"

/* Returns 1 if the update reads 16-bit weights: no f32 form of them exists, or its lower half. */
static int zp_weights_are_read(const zero_ctx *z) {
    return !z->array[ZP_MASTER].share || z->array[ZP_MASTER].type == ZP_LOW;
}

/* Copies this rank's part of unit u from one array to another, and converts it to the target's
   type. */
static zero_result zp_weights_copy(zero_ctx *z, int u, zp_array *from, zp_array *to) {
    const zp_array_part *own = zp_ctx_own_part(z, u);
    const int straight = from->type == to->type;
    const int staged = from->part[u].tier && !zp_device_is_host() && !to->part[u].tier && !straight;
    char *source, *target, *stage = z->data->stage.base;
    for (size_t e = own->first, n; e < own->first + own->numel; e += n) {
        n = own->first + own->numel - e;
        if (staged) n = zp_min(n, ZP_STAGE_NUMEL);
        ZP_DO(z, zp_array_open(from, u, e, &n, &z->compute, &source));
        ZP_DO(z, zp_array_open(to, u, e, &n, &z->compute, &target));
        const zp_kernel_convert_args a = {
            source, staged ? stage : target, from->type, to->type, NULL,
            0,      z->master.rounding,      0,          n,        0};
        const char *copied = straight ? source : stage;
        if (!straight) ZP_DO(z, zp_run_convert(z, from, u, &a, n));
        if (straight || staged)
            ZP_DO(z, zp_device_copy(&z->compute, target, copied, n * zp_type_bytes(to->type)));
        ZP_DO(z, zp_array_close(from, u, e, &z->compute, 0));
        ZP_DO(z, zp_array_close(to, u, e, &z->compute, 1));
    }
    return ZERO_OK;
}

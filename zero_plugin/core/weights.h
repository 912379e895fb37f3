/* weights.h - converts and copies weights between arrays, between steps */
#pragma once

#include "step.h"

/* Converts n values of unit u of array a, after zp_array_open. */
static zero_result zp_weights_convert(zero_ctx *z, const zp_array *a, int u,
                                      const zp_kernel_convert_args *args, size_t n) {
    const zp_tier *t = zp_array_tier(a, u);
    return t->convert ? t->convert(z, args, n) : zp_kernel_convert(&z->compute, args, n);
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
            source, staged ? stage : target, from->type, to->type, NULL, 0};
        const char *copied = straight ? source : stage;
        if (!straight) ZP_DO(z, zp_weights_convert(z, from, u, &a, n));
        if (straight || staged)
            ZP_DO(z, zp_device_copy(&z->compute, target, copied, n * zp_type_bytes(to->type)));
        ZP_DO(z, zp_array_close(from, u, e, &z->compute, 0));
        ZP_DO(z, zp_array_close(to, u, e, &z->compute, 1));
    }
    return ZERO_OK;
}

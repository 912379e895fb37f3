/* flush.h - warns if numbers are flushed to 0, which changes the weights */
#pragma once

#include "../core/extra.h"

/* x[0] is the smallest normal number. x[2] becomes the same, or 0 if the denormal x[1] is lost. */
typedef struct zp_flush_denormal_args {
    volatile float *x;
} zp_flush_denormal_args;

ZP_FN void zp_flush_denormal_at(const zp_flush_denormal_args *a, size_t one) {
    a->x[1] = a->x[0] * 0.5f;
    a->x[2] = a->x[1] * 2.0f;
}
ZP_KERNEL(zp_flush_denormal, zp_flush_denormal_args, 1)

/* Sets *flushes to 1 if the stream's computations flush denormal numbers to zero. SYNC. */
static zero_result zp_flush_detect(zp_device *d, void *stream, int *flushes) {
    zp_stream s;
    float *x = (float *)zp_device_alloc_host(3 * sizeof *x);
    const zp_flush_denormal_args a = {x};
    if (!x) return ZERO_ERR_MEMORY;
    x[0] = FLT_MIN;
    (void)zp_device_take_stream(&s, d, stream, 1);
    zero_result r = zp_flush_denormal(&s, &a, 1);
    if (!r) r = zp_device_sync_stream(&s);
    *flushes = !r && zp_type_bits(x[2]) == 0;
    zp_device_free_host(x);
    return r;
}

static zero_result zp_flush_warn(zero_ctx *z) {
    int flushes = 0;
    if (!z->cfg.log) return ZERO_OK;
    ZP_DO(z, zp_flush_detect(&z->device, z->cfg.stream, &flushes));
    if (flushes && !z->all->rank)
        z->cfg.log(
            z->cfg.log_user, ZERO_LOG_WARNING,
            "numbers below 1.2e-38 become 0 here: a program linked with -Ofast or -ffast-math sets "
            "its threads so, and nvcc's -use_fast_math or -ftz=true a GPU's code");
    return ZERO_OK;
}

static zp_extra zp_flush_row(void) {
    zp_extra x;
    memset(&x, 0, sizeof x);
    x.name = "flush";
    x.call[ZP_ON_CHOSEN] = zp_flush_warn;
    return x;
}

/* device.h - streams, events, tasks and copies, either of CUDA or of the CPU */
#pragma once

#ifdef __CUDACC__
#include "device_cuda.h"
#else
#include "device_cpu.h"
#endif

/* Begins a record for the work that s receives until zp_device_end_slice. Records of one stream
   nest. Returns NULL if events are not recorded: then the caller only tests a pointer. */
ZP_INLINE zp_record *zp_device_begin_slice(zp_stream *s, zero_event_kind kind, int unit,
                                           uint64_t bytes) {
    zp_recorder *t = s->device->recorder;
    return t ? t->begin(s, kind, unit, bytes) : NULL;
}
ZP_INLINE void zp_device_end_slice(zp_stream *s, zp_record *r) {
    if (r) s->device->recorder->end(s, r);
}

/* Makes `call`, which gives stream s work, and records that work; `call` may name the record,
   zp_slice. Returns an error of `call` to the caller. */
#define ZP_SLICE(s, kind, unit, bytes, call)                                                       \
    do {                                                                                           \
        zp_record *zp_slice = zp_device_begin_slice(s, kind, unit, bytes);                         \
        const zero_result zp_done = (call);                                                        \
        zp_device_end_slice(s, zp_slice);                                                          \
        if (zp_done) return zp_done;                                                               \
    } while (0)

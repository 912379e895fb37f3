/* streaming.h - copies to CPU memory that will not be read soon, around the caches: these would
   read each line before they write it */
#pragma once

#include "device.h"

enum { ZP_STREAMED_BYTES = 1 << 20 }; /* that a thread copies at a time */

typedef struct zp_streaming_args {
    char *to;
    const char *from;
} zp_streaming_args;

#if defined(__SSE2__) && !defined(__CUDACC__)
#include <immintrin.h>
static void zp_streaming_copy_bytes(char *to, const char *from, size_t bytes) {
    size_t at = zp_min((16 - ((uintptr_t)to & 15)) & 15, bytes);
    memcpy(to, from, at);
    for (; at + 16 <= bytes; at += 16)
        _mm_stream_si128((__m128i *)(void *)(to + at),
                         _mm_loadu_si128((const __m128i *)(const void *)(from + at)));
    _mm_sfence();
    memcpy(to + at, from + at, bytes - at);
}
#else
static void zp_streaming_copy_bytes(char *to, const char *from, size_t bytes) {
    memcpy(to, from, bytes);
}
#endif
static void zp_streaming_copy_task(const void *args, size_t bytes, int threads) {
    const zp_streaming_args a = *(const zp_streaming_args *)args;
    if (threads < 2 || bytes <= ZP_STREAMED_BYTES) {
        zp_streaming_copy_bytes(a.to, a.from, bytes);
        return; /* a parallel region may allocate, even with one thread */
    }
    ZP_OMP_FOR(1)
    for (size_t at = 0; at < bytes; at += ZP_STREAMED_BYTES)
        zp_streaming_copy_bytes(a.to + at, a.from + at, zp_min(ZP_STREAMED_BYTES, bytes - at));
}
/* A GPU copies to CPU memory as to any other. */
static zero_result zp_streaming_copy(zp_stream *s, char *to, const char *from, size_t bytes) {
    const zp_streaming_args a = {to, from};
    if (!zp_device_is_host()) return zp_device_copy(s, to, from, bytes);
    return bytes ? zp_device_push_task(s, zp_streaming_copy_task, &a, sizeof a, bytes) : ZERO_OK;
}

/* cuda_numbers.h - how kernels read and write numbers: f32, bf16 and f16 in memory, f32 in
   registers, 16 bytes at a time if the length of rows allows it. It also has the sum over a warp.

   A kernel is a template with two parameters: NUM, the type of its numbers, and W, how many of them
   a thread takes at once. W is NUM::WIDE (16 bytes), or 1 if rows are no multiple of that. */
#ifndef GPT2_CUDA_NUMBERS_H
#define GPT2_CUDA_NUMBERS_H

#include <cuda_runtime.h>
#include <stdint.h>

#include "../../zero_plugin.h"

#define OPS_DEVICE static __device__ __forceinline__

/* ---- one number ---------------------------------------------------------------------------- */

/* Returns two numbers in one word, the first in the lower half. On a GPU this is one instruction.
   On the CPU, where tests run kernels, the function computes the same value. */
OPS_DEVICE uint32_t ops_pack_bf16(float low, float high) {
#ifdef __CUDA_ARCH__
    uint32_t both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
#else
    uint32_t half[2];
    const float x[2] = {low, high};
    for (int i = 0; i < 2; i++) {
        const uint32_t b = __float_as_uint(x[i]);
        const bool nan = (b & 0x7FFFFFFFu) > 0x7F800000u;
        half[i] = nan ? 0x7FFFu : (b + 0x7FFFu + (b >> 16 & 1u)) >> 16;
    }
    return half[0] | half[1] << 16;
#endif
}

OPS_DEVICE uint32_t ops_pack_f16(float low, float high) {
#ifdef __CUDA_ARCH__
    uint32_t both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
#else
    uint16_t half[2];
    const float x[2] = {low, high};
    zero_convert(half, ZERO_F16, x, ZERO_F32, 2);
    return (uint32_t)half[0] | (uint32_t)half[1] << 16;
#endif
}

OPS_DEVICE float ops_from_f16(uint16_t half) {
    float x;
#ifdef __CUDA_ARCH__
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(half));
#else
    zero_convert(&x, ZERO_F32, &half, ZERO_F16, 1);
#endif
    return x;
}

struct ops_bf16 {
    typedef uint16_t word;
    static const int WIDE = 8;
    OPS_DEVICE float low(uint32_t both) { return __uint_as_float(both << 16); }
    OPS_DEVICE float high(uint32_t both) { return __uint_as_float(both & 0xFFFF0000u); }
    OPS_DEVICE uint32_t pack(float a, float b) { return ops_pack_bf16(a, b); }
};

struct ops_f16 {
    typedef uint16_t word;
    static const int WIDE = 8;
    OPS_DEVICE float low(uint32_t both) { return ops_from_f16((uint16_t)both); }
    OPS_DEVICE float high(uint32_t both) { return ops_from_f16((uint16_t)(both >> 16)); }
    OPS_DEVICE uint32_t pack(float a, float b) { return ops_pack_f16(a, b); }
};

struct ops_f32 {
    typedef float word;
    static const int WIDE = 4;
};

/* ---- W numbers ----------------------------------------------------------------------------- */

/* Converts a 16-byte word to 4 or 8 floats, and back. */
template <class NUM> OPS_DEVICE void ops_unpack(float *v, const uint4 &u) {
    const uint32_t all[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[2 * i] = NUM::low(all[i]);
        v[2 * i + 1] = NUM::high(all[i]);
    }
}
template <> __device__ __forceinline__ void ops_unpack<ops_f32>(float *v, const uint4 &u) {
    v[0] = __uint_as_float(u.x);
    v[1] = __uint_as_float(u.y);
    v[2] = __uint_as_float(u.z);
    v[3] = __uint_as_float(u.w);
}

template <class NUM> OPS_DEVICE uint4 ops_pack(const float *v) {
    return make_uint4(NUM::pack(v[0], v[1]), NUM::pack(v[2], v[3]), NUM::pack(v[4], v[5]),
                      NUM::pack(v[6], v[7]));
}
template <> __device__ __forceinline__ uint4 ops_pack<ops_f32>(const float *v) {
    return make_uint4(__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]),
                      __float_as_uint(v[3]));
}

OPS_DEVICE float ops_load_one(const float *p, ops_f32) { return *p; }
OPS_DEVICE float ops_load_one(const uint16_t *p, ops_bf16) { return ops_bf16::low(*p); }
OPS_DEVICE float ops_load_one(const uint16_t *p, ops_f16) { return ops_f16::low(*p); }
OPS_DEVICE void ops_store_one(float *p, float x, ops_f32) { *p = x; }
OPS_DEVICE void ops_store_one(uint16_t *p, float x, ops_bf16) {
    *p = (uint16_t)ops_pack_bf16(x, 0);
}
OPS_DEVICE void ops_store_one(uint16_t *p, float x, ops_f16) { *p = (uint16_t)ops_pack_f16(x, 0); }

/* Reads 16 bytes of device memory in one access. A compiler splits a plain copy into several. */
OPS_DEVICE uint4 ops_read16(const void *p) {
#ifdef __CUDA_ARCH__
    uint4 u;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(u.x), "=r"(u.y), "=r"(u.z), "=r"(u.w)
                 : "l"(p)
                 : "memory");
    return u;
#else
    return *(const uint4 *)p;
#endif
}
OPS_DEVICE void ops_write16(void *p, const uint4 &u) {
#ifdef __CUDA_ARCH__
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(u.x), "r"(u.y), "r"(u.z),
                 "r"(u.w)
                 : "memory");
#else
    *(uint4 *)p = u;
#endif
}

/* Loads v = p[0 .. W). p is a multiple of W numbers after the begin of an aligned row. */
template <class NUM, int W> OPS_DEVICE void ops_load(float (&v)[W], const typename NUM::word *p) {
    if constexpr (W == 1)
        v[0] = ops_load_one(p, NUM());
    else
        ops_unpack<NUM>(v, ops_read16(p));
}
/* W numbers in their stored type. 16-bit ones take half the registers of their f32 values. */
template <class NUM, int W> struct ops_raw { uint4 words; };
template <class NUM> struct ops_raw<NUM, 1> { typename NUM::word word; };
template <class NUM, int W>
OPS_DEVICE void ops_fetch(ops_raw<NUM, W> &raw, const typename NUM::word *p) {
    if constexpr (W == 1)
        raw.word = *p;
    else
        raw.words = ops_read16(p);
}
template <class NUM, int W> OPS_DEVICE void ops_values(float (&v)[W], const ops_raw<NUM, W> &raw) {
    if constexpr (W == 1)
        v[0] = ops_load_one(&raw.word, NUM());
    else
        ops_unpack<NUM>(v, raw.words);
}
/* Makes the compiler convert the raw numbers again later, instead of keeping their f32 values. */
template <class NUM, int W> OPS_DEVICE void ops_forget(ops_raw<NUM, W> &raw) {
#ifdef __CUDA_ARCH__
    if constexpr (W > 1)
        asm volatile(""
                     : "+r"(raw.words.x), "+r"(raw.words.y), "+r"(raw.words.z), "+r"(raw.words.w));
#else
    (void)raw;
#endif
}
template <class NUM, int W> OPS_DEVICE void ops_store(typename NUM::word *p, const float (&v)[W]) {
    if constexpr (W == 1)
        ops_store_one(p, v[0], NUM());
    else
        ops_write16(p, ops_pack<NUM>(v));
}

/* Add x to element i of a gradient of parameters, or to W elements from i on. */
OPS_DEVICE void ops_grad_add_one(void *grad, zero_type type, size_t i, float x) {
    if (type == ZERO_F32)
        ((float *)grad)[i] += x;
    else if (type == ZERO_BF16)
        ((uint16_t *)grad)[i] =
            (uint16_t)ops_pack_bf16(ops_bf16::low(((uint16_t *)grad)[i]) + x, 0);
    else
        ((uint16_t *)grad)[i] = (uint16_t)ops_pack_f16(ops_f16::low(((uint16_t *)grad)[i]) + x, 0);
}
template <class NUM> OPS_DEVICE void ops_grad_add_wide(typename NUM::word *p, const float *x) {
    float v[NUM::WIDE];
    ops_load<NUM, NUM::WIDE>(v, p);
#pragma unroll
    for (int j = 0; j < NUM::WIDE; j++) v[j] += x[j];
    ops_store<NUM, NUM::WIDE>(p, v);
}
template <int W>
OPS_DEVICE void ops_grad_add(void *grad, zero_type type, size_t i, const float (&x)[W]) {
    if constexpr (W == 1) {
        ops_grad_add_one(grad, type, i, x[0]);
    } else if (type == ZERO_F32) {
#pragma unroll
        for (int j = 0; j < W; j += 4) ops_grad_add_wide<ops_f32>((float *)grad + i + j, x + j);
    } else if constexpr (W == 8) { /* 16-bit gradients exist only with 16-bit numbers */
        if (type == ZERO_BF16)
            ops_grad_add_wide<ops_bf16>((uint16_t *)grad + i, x);
        else
            ops_grad_add_wide<ops_f16>((uint16_t *)grad + i, x);
    }
}

/* ---- warps --------------------------------------------------------------------------------- */

/* Returns the sum over the warp, in a fixed order, to every lane. All 32 lanes call it. */
OPS_DEVICE float ops_warp_sum(float x) {
#pragma unroll
    for (int with = 16; with > 0; with /= 2) x += __shfl_xor_sync(0xFFFFFFFFu, x, with);
    return x;
}
#endif

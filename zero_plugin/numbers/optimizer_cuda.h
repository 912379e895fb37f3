/* optimizer_cuda.h - the GPU's form of a pass: kernels; a part of optimizer.h */
#pragma once

#include "codes.h"
#include "random.h"

/* Returns the last span that begins at or before i; padding belongs to the span before it. `low` is
   a span that begins at or before i, often the last one. */
ZP_FN int zp_optimizer_span_from(const zp_update *u, size_t i, int low) {
    int high = u->nspans;
    if (low + 1 == high || u->spans[low + 1].begin > i) return low;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (u->spans[middle].begin <= i)
            low = middle;
        else
            high = middle;
    }
    return low;
}
ZP_FN int zp_optimizer_span_at(const zp_update *u, size_t i) {
    return zp_optimizer_span_from(u, i, 0);
}
ZP_FN void zp_optimizer_store(const zp_update *u, size_t i, const float *p) {
    if (u->master) zp_type_store_wide(u->master, ZERO_F32, i, p);
    if (u->rounding == ZP_NEAREST || u->type == ZERO_F32) {
        zp_type_store_wide(u->p, u->type, i, p);
        return;
    }
    uint16_t h[ZP_WIDE];
    for (size_t j = 0; j < ZP_WIDE; j++)
        h[j] = u->rounding == ZP_HALF_UP
                   ? zp_type_upper(p[j])
                   : zp_random_to_bf16(p[j], zp_random_of_element(u->element + i + j, u->key));
    if (u->low)
        *(ushort4 *)(void *)(u->low + i) = make_ushort4(zp_type_lower(p[0]), zp_type_lower(p[1]),
                                                        zp_type_lower(p[2]), zp_type_lower(p[3]));
    *(ushort4 *)(void *)((uint16_t *)u->p + i) = make_ushort4(h[0], h[1], h[2], h[3]);
}
/* Decodes n values of one block. Unrolled, the loop takes registers that the update lacks. */
ZP_FN void zp_optimizer_decode(const zp_update *u, int array, size_t i, float *x, size_t n) {
    const zp_codes *b = (const zp_codes *)u->state[array] + i / ZP_CODE_BLOCK;
    const uint8_t *code = b->code + i % ZP_CODE_BLOCK;
    const int squares = array && u->squares;
#ifdef __CUDA_ARCH__
#pragma unroll 1
#endif
    for (size_t j = 0; j < n; j++) x[j] = zp_codes_decode(code[j], b->scale, squares);
}
ZP_FN float zp_optimizer_state_at(const zp_update *u, int array, size_t i) {
    float x;
    if (u->state_type != ZP_CODES) return zp_type_load(u->state[array], u->state_type, i);
    zp_optimizer_decode(u, array, i, &x, 1);
    return x;
}
ZP_FN void zp_optimizer_load_state(const zp_update *u, int array, size_t i, float *x) {
    if (u->state_type != ZP_CODES)
        zp_type_load_wide(x, u->state[array], u->state_type, i);
    else
        zp_optimizer_decode(u, array, i, x, ZP_WIDE);
}
/* A warp has a block of codes. */
static_assert(ZP_CODE_BLOCK == 32 * ZP_WIDE, "all threads of a warp call zp_optimizer_store_codes");
static __device__ __forceinline__ void zp_optimizer_store_codes(const zp_update *u, int array,
                                                                size_t i, const float *x,
                                                                const uint32_t *random) {
    zp_codes *b = (zp_codes *)u->state[array] + i / ZP_CODE_BLOCK;
    const int squares = array && u->squares;
    uint32_t largest = 0;
    for (size_t j = 0; j < ZP_WIDE; j++)
        largest = zp_codes_magnitude(x[j]) > largest ? zp_codes_magnitude(x[j]) : largest;
    for (int w = 16; w; w /= 2) {
        const uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, largest, w);
        largest = other > largest ? other : largest;
    }
    const float scale = zp_type_bits_to_float(largest), by = zp_codes_by(scale, squares);
    uint8_t code[ZP_WIDE];
    for (size_t j = 0; j < ZP_WIDE; j++)
        code[j] =
            zp_codes_encode(x[j], by, squares, zp_codes_shift(zp_random_half(random[j], array)));
    *(uchar4 *)(void *)(b->code + i % ZP_CODE_BLOCK) =
        make_uchar4(code[0], code[1], code[2], code[3]);
    if (i % ZP_CODE_BLOCK == 0) b->scale = scale;
}
static __device__ __forceinline__ void zp_optimizer_store_state(const zp_update *u, int array,
                                                                size_t i, const float *x,
                                                                const uint32_t *random) {
    uint16_t h[ZP_WIDE];
    if (u->state_type == ZERO_F32) {
        zp_type_store_wide(u->state[array], ZERO_F32, i, x);
        return;
    }
    if (u->state_type == ZP_CODES) {
        zp_optimizer_store_codes(u, array, i, x, random);
        return;
    }
    for (size_t j = 0; j < ZP_WIDE; j++)
        h[j] = zp_random_to_bf16(x[j], zp_random_half(random[j], array));
    *(ushort4 *)(void *)((uint16_t *)u->state[array] + i) = make_ushort4(h[0], h[1], h[2], h[3]);
}
/* Spans begin at multiples of ZP_WIDE. Padding stays 0, because its gradient is 0. A thread issues
   its loads before it searches for the span, unless the rule asks whether that is a matrix. */
static __device__ __forceinline__ void zp_optimizer_update_threads(const zp_update *all, size_t n,
                                                                   int states, int does,
                                                                   zp_rule_body body,
                                                                   zp_rule_body matrix) {
    zp_update u = *all;
    int number = 0; /* of the span */
    for (size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x,
                stride = (size_t)gridDim.x * blockDim.x;
         at < n; at += stride) {
        const size_t i = u.begin + at * ZP_WIDE;
        float p[ZP_WIDE], g[ZP_WIDE], s1[ZP_WIDE], s2[ZP_WIDE];
        const zero_type type = u.master ? ZERO_F32 : u.type;
        if (does & ZP_HAS_MATRIX) number = zp_optimizer_span_from(all, i, number);
        const int is_matrix = does & ZP_HAS_MATRIX && all->spans[number].shape > 0;
        const int second = states > 1 && !is_matrix;
        if (does & ZP_MATRIX_ONLY && !is_matrix) continue;
        const uint4 p0 = zp_type_load_words(u.master ? u.master : u.p, type, i);
        const uint4 l0 = u.low ? zp_type_load_words(u.low, ZP_LOW, i) : make_uint4(0, 0, 0, 0);
        const uint4 g0 = zp_type_load_words(u.g, u.grad_type, i);
        zp_optimizer_load_state(&u, 0, i, s1);
        if (second) zp_optimizer_load_state(&u, 1, i, s2);
        if (is_matrix) zp_type_load_wide(s2, u.direction, ZERO_F32, i);
        if (!(does & ZP_HAS_MATRIX)) number = zp_optimizer_span_from(all, i, number);
        const zp_span *span = &all->spans[number];
        zp_optimizer_select_span(&u, all, span);
        zp_type_unpack_words(p, p0, type);
        if (u.low) zp_type_add_low_words(p, l0);
        zp_type_unpack_words(g, g0, u.grad_type);
        for (size_t j = 0, k = 0; j < ZP_WIDE; j++) {
            if (does & ZP_LAYERED && j == k) {
                u.ratio = (float)u.trust[zp_optimizer_span_part(span, i + j, ZP_WIDE - j, &k)];
                k += j;
            }
            const float now = g[j] * u.factor;
            if (is_matrix)
                matrix(&u, &p[j], &now, &s1[j], &s2[j]);
            else
                body(&u, &p[j], &now, &s1[j], &s2[j]);
        }
        if (!(does & ZP_KEEPS_WEIGHTS)) zp_optimizer_store(&u, i, p);
        if (is_matrix) zp_type_store_wide(u.direction, ZERO_F32, i, s2);
        if (does & ZP_KEEPS_STATE && (is_matrix || !(does & ZP_HAS_MATRIX))) continue;
        uint32_t key[2], random[ZP_WIDE];
        zp_optimizer_state_key(&u, key);
        for (size_t j = 0; j < ZP_WIDE && u.state_type != ZERO_F32; j++)
            random[j] = zp_random_of_element(u.element + i + j, key);
        zp_optimizer_store_state(&u, 0, i, s1, random);
        if (second) zp_optimizer_store_state(&u, 1, i, s2, random);
    }
}
#define ZP_PASS_FORMS(name, block, grid)                                                           \
    __global__ void __launch_bounds__(ZP_THREADS, 4)                                               \
        zp_rule_##name##_kernel(zp_update all, size_t n) {                                         \
        if (zp_optimizer_begin(&all)) grid;                                                        \
    }                                                                                              \
    ZP_PASS_LOOP(name, block)                                                                      \
    ZP_KERNEL_CALL(zp_rule_update_##name, zp_rule_##name##_kernel, zp_update,                      \
                   zp_device_grid(n, 8192))

/* optimizer_cuda.h - the GPU's form of a pass: kernels; a part of optimizer.h */
#pragma once

/* Returns the last span that begins at or before i; padding belongs to the span before it. */
ZP_FN int zp_optimizer_span_at(const zp_update *u, size_t i) {
    int low = 0, high = u->nspans;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (u->spans[middle].begin <= i)
            low = middle;
        else
            high = middle;
    }
    return low;
}
ZP_FN void zp_optimizer_store(const zp_update *u, size_t i, const float *p) {
    if (u->master) zp_type_store_wide(u->master, ZERO_F32, i, p);
    if (!u->stochastic) {
        zp_type_store_wide(u->p, u->type, i, p);
        return;
    }
    uint16_t h[ZP_WIDE];
    for (size_t j = 0; j < ZP_WIDE; j++)
        h[j] = zp_optimizer_to_bf16_randomly(p[j], zp_optimizer_random(u, i + j));
    *(ushort4 *)(void *)((uint16_t *)u->p + i) = make_ushort4(h[0], h[1], h[2], h[3]);
}
/* Spans begin at multiples of ZP_WIDE. Padding stays 0, because its gradient is 0. */
static __device__ __forceinline__ void zp_optimizer_update_threads(const zp_update *all, size_t n,
                                                                   int states, int does,
                                                                   zp_rule_body body,
                                                                   zp_rule_body matrix) {
    zp_update u = *all;
    for (size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x,
                stride = (size_t)gridDim.x * blockDim.x;
         at < n; at += stride) {
        const size_t i = u.begin + at * ZP_WIDE;
        float p[ZP_WIDE], g[ZP_WIDE], s1[ZP_WIDE], s2[ZP_WIDE];
        const zero_type type = u.master ? ZERO_F32 : u.type;
        const zp_span *span = &all->spans[zp_optimizer_span_at(all, i)];
        const int is_matrix = does & ZP_HAS_MATRIX && span->shape > 0;
        float *second = is_matrix ? u.direction : states > 1 ? u.state[1] : NULL;
        if (does & ZP_MATRIX_ONLY && !is_matrix) continue;
        const uint4 p0 = zp_type_load_words(u.master ? u.master : u.p, type, i);
        const uint4 g0 = zp_type_load_words(u.g, u.grad_type, i);
        zp_type_load_wide(s1, u.state[0], ZERO_F32, i);
        if (second) zp_type_load_wide(s2, second, ZERO_F32, i);
        zp_optimizer_select_span(&u, all, span);
        zp_type_unpack_words(p, p0, type);
        zp_type_unpack_words(g, g0, u.grad_type);
        for (size_t j = 0, k = 0; j < ZP_WIDE; j++) {
            if (does & ZP_LAYERED && j == k) {
                u.ratio = u.trust[zp_optimizer_span_part(span, i + j, ZP_WIDE - j, &k)];
                k += j;
            }
            const float now = (float)((double)g[j] * u.factor);
            if (is_matrix)
                matrix(&u, &p[j], &now, &s1[j], &s2[j]);
            else
                body(&u, &p[j], &now, &s1[j], &s2[j]);
        }
        if (!(does & ZP_KEEPS_WEIGHTS)) zp_optimizer_store(&u, i, p);
        zp_type_store_wide(u.state[0], ZERO_F32, i, s1);
        if (second) zp_type_store_wide(second, ZERO_F32, i, s2);
    }
}
#define ZP_PASS(name, states, does, body, matrix)                                                  \
    __global__ void __launch_bounds__(ZP_THREADS)                                                  \
        zp_rule_##name##_kernel(zp_update all, size_t n) {                                         \
        if (zp_optimizer_begin(&all))                                                              \
            zp_optimizer_update_threads(&all, n, states, does, body, matrix);                      \
    }                                                                                              \
    ZP_PASS_LOOP(name, states, does, body, matrix)                                                 \
    ZP_KERNEL_CALL(zp_rule_update_##name, zp_rule_##name##_kernel, zp_update,                      \
                   zp_device_grid(n, 8192))

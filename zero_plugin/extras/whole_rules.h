/* whole_rules.h - the update rules that need whole tensors, LAMB and Muon: bodies and rows

   numbers/rules.h says what a pass is, and what NORMS and MATRIX mean. */
#pragma once

#include "exact.h"
#include "../numbers/rules.h"

/* ---- sums of squares, on the CPU and the GPU ---- */

typedef float (*zp_whole_rule_move)(const zp_update *u, float p, float s1, float s2);

/* Adds the squares of weights, and of their updates, to the sums of their layers. */
ZP_INLINE void zp_whole_rule_add_squares(const zp_update *all, size_t at, size_t n,
                                         zp_whole_rule_move move) {
    float weights[ZP_UPDATE_BLOCK], moves[ZP_UPDATE_BLOCK], room[2][ZP_UPDATE_BLOCK];
    const zp_update u = *all;
    const float *p = zp_optimizer_read_weights(&u, at, n, weights);
    const float *s1 = zp_optimizer_read_state(&u, 0, at, n, room[0]),
                *s2 = zp_optimizer_read_state(&u, 1, at, n, room[1]);
    ZP_SIMD
    for (size_t i = 0; i < n; i++) moves[i] = move(&u, p[i], s1[i], s2[i]);
    for (size_t i = 0, k; i < n; i += k) {
        const size_t block = ZP_EXACT_BLOCK - (at + i) % ZP_EXACT_BLOCK;
        zp_limb *to =
            u.sums
            + 2 * ZP_LIMBS * zp_optimizer_span_part(u.span, at + i, zp_min(block, n - i), &k);
        for (int what = 0; what < 2; what++, to += ZP_LIMBS) {
            zp_limb piece[3];
            const int first = zp_exact_split(zp_exact_squares(what ? moves + i : p + i, k), piece);
            for (int j = 0; j < 3; j++)
                if (piece[j]) __atomic_fetch_add(&to[first + j], piece[j], __ATOMIC_RELAXED);
        }
    }
}
#ifdef __CUDACC__
/* Returns the f32 weight of element i. */
ZP_FN float zp_whole_rule_weight(const zp_update *u, size_t i) {
    if (u->master) return u->master[i];
    return u->low ? zp_type_join(((const uint16_t *)u->p)[i], u->low[i])
                  : zp_type_load(u->p, u->type, i);
}
/* Each thread takes a block of squares. Threads of one layer first add in shared memory. */
static __device__ __forceinline__ void zp_whole_rule_sum_squares(const zp_update *all,
                                                                 size_t blocks,
                                                                 zp_whole_rule_move move) {
    __shared__ zp_limb sums[2 * ZP_LIMBS];
    for (size_t at = (size_t)blockIdx.x * blockDim.x; at < blocks;
         at += (size_t)gridDim.x * blockDim.x) {
        const size_t begin = all->begin + at * ZP_EXACT_BLOCK;
        size_t n, left = 0, i = begin + threadIdx.x * ZP_EXACT_BLOCK;
        const size_t common =
            zp_optimizer_span_part(&all->spans[zp_optimizer_span_at(all, begin)], begin, 1, &n);
        const zp_span *span = &all->spans[zp_optimizer_span_at(all, i)];
        for (size_t k = threadIdx.x; k < 2 * ZP_LIMBS; k += blockDim.x) sums[k] = 0;
        __syncthreads();
        if (at + threadIdx.x < blocks && i >= span->begin && i < span->end)
            left = span->end - i < ZP_EXACT_BLOCK ? span->end - i : ZP_EXACT_BLOCK;
        zp_update u = *all;
        zp_optimizer_select_span(&u, all, span);
        for (; left; left -= n, i += n) {
            const size_t part = zp_optimizer_span_part(span, i, left, &n);
            float x[2][ZP_EXACT_BLOCK];
            for (size_t j = 0; j < n; j++) {
                x[0][j] = zp_whole_rule_weight(&u, i + j);
                x[1][j] = move(&u, x[0][j], zp_optimizer_state_at(&u, 0, i + j),
                               zp_optimizer_state_at(&u, 1, i + j));
            }
            for (int what = 0; what < 2; what++) {
                zp_limb piece[3], *to = part == common ? sums : u.sums + 2 * ZP_LIMBS * part;
                const int first = zp_exact_split(zp_exact_squares(x[what], n), piece);
                for (int k = 0; k < 3; k++)
                    if (piece[k]) atomicAdd(&to[what * ZP_LIMBS + first + k], piece[k]);
            }
        }
        __syncthreads();
        for (size_t k = threadIdx.x; k < 2 * ZP_LIMBS; k += blockDim.x)
            if (sums[k]) atomicAdd(&all->sums[2 * ZP_LIMBS * common + k], sums[k]);
        __syncthreads();
    }
}
#endif
#define ZP_NORMS(name, move)                                                                       \
    ZP_PASS_FORMS(name, zp_whole_rule_add_squares(u, at, n, move),                                 \
                  zp_whole_rule_sum_squares(                                                       \
                      &all, (n * ZP_WIDE + ZP_EXACT_BLOCK - 1) / ZP_EXACT_BLOCK, move))

/* ---- layers and matrices ---- */

/* Updates elements of one span: each layer with its ratio, and a matrix with its own body. */
ZP_INLINE void zp_whole_rule_update_range(const zp_update *u, size_t at, size_t n, int states,
                                          int does, zp_rule_body body, zp_rule_body matrix) {
    if (does & ZP_LAYERED) {
        zp_update mine = *u;
        for (size_t end = at + n, k; at < end; at += k) {
            mine.ratio = (float)u->trust[zp_optimizer_span_part(u->span, at, end - at, &k)];
            zp_optimizer_update_block(&mine, at, k, states, does, body);
        }
    } else if (does & ZP_HAS_MATRIX && u->span->shape > 0) {
        zp_optimizer_update_block(u, at, n, 1, does & ~ZP_VECTOR, matrix);
    } else if (!(does & ZP_MATRIX_ONLY)) {
        zp_optimizer_update_block(u, at, n, states, does & ~(ZP_HAS_MATRIX | ZP_KEEPS_STATE), body);
    }
}
#define ZP_WHOLE_PASS(name, states, does, body, matrix)                                            \
    ZP_PASS_FORMS(name, zp_whole_rule_update_range(u, at, n, states, does, body, matrix),          \
                  zp_optimizer_update_threads(&all, n, states, does, body, matrix))

/* ---- bodies ---- */

/* LAMB: Adam's moments, then the direction, which both passes compute with the same bits. */
ZP_FN void zp_whole_rule_lamb_moments_at(const zp_update *u, float *p, const float *g, float *m,
                                         float *v) {
    (void)zp_rule_adam_step(u, zp_type_load_row(g), m, v);
}
ZP_FN float zp_whole_rule_lamb_move(const zp_update *u, float p, float m, float v) {
    return u->bias_ratio * (m / (sqrtf(v) + u->corrected_eps)) + u->decay * p;
}
ZP_FN void zp_whole_rule_lamb_at(const zp_update *u, float *p, const float *g, float *m, float *v) {
    *p -= u->lr * u->ratio * zp_whole_rule_lamb_move(u, *p, *m, *v);
}
/* Muon: the input that a matrix's owner orthogonalises, then the use of its result. */
ZP_FN void zp_whole_rule_muon_send_at(const zp_update *u, float *p, const float *g, float *m,
                                      float *direction) {
    const float rest = (1.0f - u->momentum) * *g;
    *m = ZP_FMA(u->momentum, *m, rest);
    *direction = u->nesterov ? ZP_FMA(u->momentum, *m, rest) : *m;
}
ZP_FN void zp_whole_rule_muon_take_at(const zp_update *u, float *p, const float *g, float *m,
                                      float *direction) {
    *p -= u->lr * (u->decay * *p + u->span->shape * *direction);
}

ZP_PASS(lamb_moments, 2, ZP_KEEPS_WEIGHTS | ZP_VECTOR, zp_whole_rule_lamb_moments_at)
ZP_NORMS(lamb_norms, zp_whole_rule_lamb_move)
ZP_WHOLE_PASS(lamb, 2, ZP_LAYERED | ZP_KEEPS_STATE, zp_whole_rule_lamb_at, zp_whole_rule_lamb_at)
ZP_WHOLE_PASS(muon_send, 2, ZP_HAS_MATRIX | ZP_KEEPS_WEIGHTS | ZP_MATRIX_ONLY, zp_rule_adamw_at,
              zp_whole_rule_muon_send_at)
ZP_WHOLE_PASS(muon, 2, ZP_HAS_MATRIX | ZP_VECTOR | ZP_KEEPS_STATE, zp_rule_adamw_at,
              zp_whole_rule_muon_take_at)

/* The rules of the row "muon". */
static const zp_rule zp_whole_rules[] = {
    {"lamb",
     2,
     ZP_ADAM_READS,
     ZP_NORMS_OF_LAYERS,
     2,
     2,
     {zp_rule_update_lamb_moments, zp_rule_update_lamb_norms, zp_rule_update_lamb},
     {zp_rule_lamb_moments_loop, zp_rule_lamb_norms_loop, zp_rule_lamb_loop},
     NULL},
    {"muon",
     2,
     ZP_ADAM_READS,
     ZP_MATRICES,
     2,
     1,
     {zp_rule_update_muon_send, zp_rule_update_muon, NULL},
     {zp_rule_muon_send_loop, zp_rule_muon_loop, NULL},
     NULL},
    {NULL, 0, 0, 0, 0, 0, {NULL, NULL, NULL}, {NULL, NULL, NULL}, NULL}};

/* optimizer.h - the code that all update rules share

   This file has the spans of tensors, unscaling and clipping, master weights, 16-bit rounding
   (stochastic or to nearest), and layers and matrices. A pass has two forms with the same bits: a
   CPU loop and a GPU kernel. The bodies are in rules.h. State may be stored in another form
   (zp_state_form), which a pass decodes to f32 block by block, and encodes again. */
#pragma once

#include "kernels.h"

#define ZP_STATES       2
#define ZP_UPDATE_BLOCK ((size_t)512) /* elements whose 16-bit values are held in f32 */
#define ZP_UPDATE_PIECE ((size_t)64)  /* elements that are prefetched at once */
#define ZP_UPDATE_AHEAD ((size_t)512) /* elements between the update and the prefetch */
static_assert(ZP_UPDATE_PIECE % ZP_ROW_SIZE == 0, "a piece is whole rows");

/* A tensor's part of the arrays that are updated: elements [begin, end) of the arrays. */
typedef struct zp_span {
    size_t begin, end;
    uint64_t element; /* element i of the arrays is element `element + i` of the tensor, over all
                         layers, modulo 2^64 */
    float lr_factor, decay_factor;
    uint32_t key;    /* the tensor's key for stochastic rounding */
    uint64_t numel;  /* of one layer of the tensor */
    int part, parts; /* number of its first layer, among those of all tensors; its layers */
    float shape;     /* factor of a matrix's update, from its sides; 0: not a matrix */
} zp_span;

#define ZP_LIMBS 20                 /* of an exact sum of squares; see extras/exact.h */
typedef unsigned long long zp_limb; /* the 64-bit type of CUDA's atomics */

struct zp_state_form;
typedef struct zp_update { /* a unit, or a rank's shard of it */
    void *p;               /* parameters */
    float *master;         /* f32 weights; NULL: none */
    uint16_t *low;         /* their lower halves, if `p` has the upper ones; NULL: none */
    const void *g;
    void *state[ZP_STATES];
    const zp_control *control;
    size_t begin, end;    /* elements to update; all arrays have the same origin */
    const zp_span *spans; /* ascending, with padding between them */
    int nspans;
    zero_type type, grad_type, state_type;
    const struct zp_state_form *form; /* the CPU's, of state in another type than f32; NULL: f32 */
    float lr, beta1, beta2, eps, decay; /* lr, decay: times the span's factors if span is set */
    float factor, bias_ratio, step_size, corrected_eps; /* the last three: of moving averages */
    int first;                                          /* 1 in the first step that is taken */
    int squares;                                        /* the second state array has squares */
    zp_rounding rounding;                               /* of weights to 16 bits */
    /* The CPU's rounding of elements [at, at + n) of the weights p, if a row has it; else NULL. */
    void (*round)(const struct zp_update *u, size_t at, size_t n, const float *p);
    uint32_t key[2]; /* for stochastic rounding: of the tensor; of seed and step */
    uint64_t element;
    zp_limb *sums;       /* NORMS: [parts][2][ZP_LIMBS] of this rank */
    const double *trust; /* NORMS: [parts] */
    float *direction;    /* MATRIX: has the same shape as the other arrays */
    const zp_span *span; /* that is updated */
    float ratio;         /* NORMS: trust ratio of the element's layer */
    float momentum;      /* MATRIX */
    int nesterov;
} zp_update;

/* How a row stores state in another type. Spans begin at whole blocks of that type. */
typedef struct zp_state_form {
    /* Decodes elements [at, at + n) of a state array. */
    void (*read)(const zp_update *u, int array, size_t at, size_t n, float *to);
    /* Encodes these elements of the first array or, unless s2 is NULL, of both. */
    void (*write)(const zp_update *u, size_t at, size_t n, const float *s1, const float *s2);
    /* Converts n values from or to the type, as zp_kernel_convert does; its loop on the CPU. */
    zero_result (*convert)(zp_stream *s, const zp_kernel_convert_args *a, size_t n);
    zp_task_fn convert_loop;
} zp_state_form;

typedef void (*zp_rule_body)(const zp_update *u, float *p, const float *g, float *s1, float *s2);

/* Properties of a pass. */
enum {
    ZP_KEEPS_WEIGHTS = 1, /* does not write the weights */
    ZP_LAYERED = 2,       /* has a ratio for each layer */
    ZP_HAS_MATRIX = 4,    /* has another body for matrices, whose s2 is `direction` */
    ZP_MATRIX_ONLY = 8,   /* skips tensors that are not matrices */
    ZP_VECTOR = 16,       /* its body takes ZP_ROW_SIZE elements, except for matrices */
    ZP_KEEPS_STATE = 32   /* does not write state; with ZP_HAS_MATRIX, that of matrices */
};

ZP_FN uint32_t
zp_optimizer_mix(uint32_t x) { /* a permutation of 32 bits, after MurmurHash3's finaliser */
    x = (x ^ x >> 16) * 0x85EBCA6Bu;
    x = (x ^ x >> 13) * 0xC2B2AE35u;
    return x ^ x >> 16;
}
/* Sets the key of the random numbers of the state. Those of weights have u->key. */
ZP_FN void zp_optimizer_state_key(const zp_update *u, uint32_t *key) {
    key[0] = u->key[0];
    key[1] = zp_optimizer_mix(u->key[1] + 1);
}
ZP_FN int zp_optimizer_begin(zp_update *u) {
    const zp_control *c = u->control;
    u->factor = (float)c->factor;
    u->bias_ratio = c->bias_ratio;
    u->corrected_eps = u->eps * c->root_correction; /* of 0 / eps: eps is not 0 */
    if (u->corrected_eps < FLT_MIN) u->corrected_eps = FLT_MIN;
    u->first = c->steps == 1;
    u->key[1] = zp_optimizer_mix((uint32_t)c->steps
                                 ^ zp_optimizer_mix((uint32_t)(c->steps >> 32) ^ u->key[1]));
    return !c->skip;
}
/* Sets the fields of u that depend on the span. */
ZP_FN void zp_optimizer_select_span(zp_update *u, const zp_update *all, const zp_span *s) {
    u->lr = all->lr * s->lr_factor;
    u->decay = all->decay * s->decay_factor;
    u->step_size = u->lr * all->bias_ratio;
    u->key[0] = s->key;
    u->element = s->element;
    u->span = s;
}
/* Returns the number of the layer of a span's element i; padding belongs to the last layer. *ahead
   becomes the number of elements of the layer from i on, at most n. */
ZP_FN size_t zp_optimizer_span_part(const zp_span *s, size_t i, size_t n, size_t *ahead) {
    const uint64_t e = s->element + i, layer = e / s->numel, left = s->numel - e % s->numel;
    *ahead = left < n ? (size_t)left : n;
    return (size_t)s->part + (layer < (uint64_t)s->parts ? (size_t)layer : (size_t)s->parts - 1);
}

/* ---- the CPU's form ---- */

static void zp_optimizer_round_weights(const zp_update *u, size_t at, size_t n, const float *p) {
    uint16_t *to = (uint16_t *)u->p + at;
    if (u->type == ZERO_F32) return;
    if (u->round)
        u->round(u, at, n, p);
    else if (u->rounding == ZP_HALF_UP)
        zp_type_split_all(to, u->low ? u->low + at : NULL, p, n);
    else
        zp_type_narrow(to, u->type, p, n);
}
/* Returns the f32 weights of elements [at, at + n): those of an array, or a copy in `room`. */
ZP_INLINE float *zp_optimizer_read_weights(const zp_update *u, size_t at, size_t n, float *room) {
    if (u->master) return u->master + at;
    if (!u->low) return (float *)(uintptr_t)zp_type_view(u->p, u->type, at, n, room);
    zp_type_join_all(room, (const uint16_t *)u->p + at, u->low + at, n);
    return room;
}
/* Returns the f32 state of elements [at, at + n): the array itself, or a copy in `room`. */
ZP_INLINE float *zp_optimizer_read_state(const zp_update *u, int array, size_t at, size_t n,
                                         float *room) {
    if (!u->form) return (float *)u->state[array] + at;
    u->form->read(u, array, at, n, room);
    return room;
}
/* Loads later elements into the cache. A root and a division take so long that the core's own
   look-ahead does not reach them, and it would wait for memory. */
ZP_INLINE void zp_optimizer_prefetch(const void *array, zero_type type, size_t at, size_t n) {
    const size_t from = at + ZP_UPDATE_AHEAD, end = zp_type_array_bytes(type, from + n);
    for (size_t i = zp_type_array_bytes(type, from); i < end; i += 64)
        __builtin_prefetch((const void *)((uintptr_t)array + i), 1, 2);
}
/* Updates a piece of n elements with a vector body. In the loop, independent instructions fill the
   time of a division. A short piece is padded. */
ZP_INLINE void zp_optimizer_update_piece(const zp_update *u, float *p, const float *g, float *s1,
                                         float *s2, size_t n, zp_rule_body body) {
    float now[ZP_ROW_SIZE], room[4][ZP_UPDATE_PIECE], *const of[3] = {p, s1, s2};
    const size_t bytes = n * sizeof *p;
    const int rest = n < ZP_UPDATE_PIECE;
    if (rest) {
        memset(room, 0, sizeof room);
        for (int i = 0; i < 3; i++) memcpy(room[i], of[i], bytes);
        g = (const float *)memcpy(room[3], g, bytes);
    }
    float *const x = rest ? room[0] : p, *const m = rest ? room[1] : s1,
                 *const v = rest ? room[2] : s2;
    for (size_t i = 0; i < ZP_UPDATE_PIECE; i += ZP_ROW_SIZE) {
        zp_type_store_row(now, zp_type_load_row(&g[i]) * u->factor);
        body(u, &x[i], now, &m[i], &v[i]);
    }
    for (int i = 0; i < 3 && rest; i++) memcpy(of[i], room[i], bytes);
}
/* Updates elements [at, at + n), which are in one span. It is inlined with constant `states`,
   `does` and `body`, so that the loop has no call and no branch. */
ZP_INLINE void zp_optimizer_update_block(const zp_update *all, size_t at, size_t n, int states,
                                         int does, zp_rule_body body) {
    float weights[ZP_UPDATE_BLOCK], gradients[ZP_UPDATE_BLOCK], room[2][ZP_UPDATE_BLOCK];
    const zp_update u = *all; /* a copy that no store can change: no other function sees it */
    const int matrix = (does & ZP_HAS_MATRIX) != 0, second = states > 1 && !matrix;
    const float *g = zp_type_view(u.g, u.grad_type, at, n, gradients);
    float *p = zp_optimizer_read_weights(&u, at, n, weights);
    float *s1 = zp_optimizer_read_state(all, 0, at, n, room[0]), *s2 = s1;
    if (second) s2 = zp_optimizer_read_state(all, 1, at, n, room[1]);
    if (matrix) s2 = u.direction + at;
    for (size_t i = 0, k; i < n; i += k) {
        k = zp_min(n - i, ZP_UPDATE_PIECE);
        zp_optimizer_prefetch(u.p, u.type, at + i, k);
        zp_optimizer_prefetch(u.g, u.grad_type, at + i, k);
        zp_optimizer_prefetch(u.state[0], u.state_type, at + i, k);
        if (u.master) zp_optimizer_prefetch(u.master, ZERO_F32, at + i, k);
        if (u.low) zp_optimizer_prefetch(u.low, ZP_LOW, at + i, k);
        if (second) zp_optimizer_prefetch(u.state[1], u.state_type, at + i, k);
        if (matrix) zp_optimizer_prefetch(u.direction, ZERO_F32, at + i, k);
        if (does & ZP_VECTOR && ZP_ROW_SIZE > 1) {
            zp_optimizer_update_piece(&u, p + i, g + i, s1 + i, s2 + i, k, body);
            continue;
        }
        ZP_SIMD
        for (size_t j = i; j < i + k; j++) {
            const float now = g[j] * u.factor;
            body(&u, &p[j], &now, &s1[j], &s2[j]);
        }
    }
    if (!(does & ZP_KEEPS_WEIGHTS)) zp_optimizer_round_weights(all, at, n, p);
    if (!(does & ZP_KEEPS_STATE) && all->form) all->form->write(all, at, n, s1, second ? s2 : NULL);
}
static void zp_optimizer_walk(const zp_update *update, int threads,
                              void (*block)(const zp_update *u, size_t at, size_t n)) {
    zp_update all = *update, u;
    if (!zp_optimizer_begin(&all)) return;
    u = all;
    for (const zp_span *s = all.spans; s < all.spans + all.nspans; s++) {
        zp_optimizer_select_span(&u, &all, s);
        const size_t begin = zp_max(s->begin, all.begin), end = zp_min(s->end, all.end);
        ZP_OMP_FOR(end > begin + 32768)
        for (size_t at = begin; at < end; at += ZP_UPDATE_BLOCK) {
            block(&u, at, zp_min(ZP_UPDATE_BLOCK, end - at));
        }
    }
}
/* Defines a pass's loop. `block` updates elements [at, at + n) of zp_update *u. */
#define ZP_PASS_LOOP(name, block)                                                                  \
    static void zp_rule_##name##_block(const zp_update *u, size_t at, size_t n) { block; }         \
    static void zp_rule_##name##_loop(const void *u, size_t n, int threads) {                      \
        zp_optimizer_walk((const zp_update *)u, threads, zp_rule_##name##_block);                  \
    }

/* ZP_PASS_FORMS defines both forms of a pass. GPU: `grid` updates n times ZP_WIDE elements. */
#ifdef __CUDACC__
#include "optimizer_cuda.h"
#else
#define ZP_PASS_FORMS(name, block, grid)                                                           \
    ZP_PASS_LOOP(name, block)                                                                      \
    ZP_KERNEL_CALL(zp_rule_update_##name, zp_rule_##name##_loop, zp_update)
#endif
#define ZP_PASS(name, states, does, body)                                                          \
    ZP_PASS_FORMS(name, zp_optimizer_update_block(u, at, n, states, does, body),                   \
                  zp_optimizer_update_threads(&all, n, states, does, body, body))
/* Makes a pass of a body that takes the gradient of one element. */
#define ZP_RULE(name, states, body)                                                                \
    ZP_FN void zp_rule_##name##_one(const zp_update *u, float *p, const float *g, float *s1,       \
                                    float *s2) {                                                   \
        body(u, p, *g, s1, s2);                                                                    \
    }                                                                                              \
    ZP_PASS(name, states, 0, zp_rule_##name##_one)

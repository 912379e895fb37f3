/* rules.h - the update rules, and how to add one

   An update rule is a body on one element, a ZP_RULE line, a row in the table, which says what the
   rule reads, and a name in zero_optimizer: no other room asks for a rule by name. Everything
   around it is here once: unscaling and clipping, master weights or none, 16-bit rounding,
   stochastic or to nearest, and the two forms, a loop of the host and a kernel of the GPU, with the
   same bits.

   ADDING AN OPTIMIZER. In a file of your own that -DZERO_OWN_OPTIMIZERS='"own.h"' names (a path
   from this file's folder, or one of -I):
       ZP_FN void own_at(const zp_update *u, float *p, float g, float *s1, float *s2) {
           ... g: the mean gradient, unscaled and clipped; p: the weight; s1, s2: its state, zeros
               to begin with; u->lr, u->decay: times the tensor's factors; decay is the body's ...
       }
       #define ZERO_OWN(X) X(own, 1, own_at) // name, state arrays (1 or 2), body

   More rules: X(...) X(...). They are cfg.optimizer ZERO_OPTIMIZER_OWN, ZERO_OPTIMIZER_OWN + 1 ...
   A body sees one element: rules that need norms or matrices of tensors do not fit. */
#pragma once

#include "kernels.h"

#define ZP_STATES       2
#define ZP_UPDATE_BLOCK ((size_t)512) /* elements whose 16-bit values are held in f32 */

/* A tensor's part of what is updated at once: elements from the arrays' begin on. */
typedef struct zp_span {
    size_t begin, end;
    uint64_t element; /* number i of the arrays is element `element + i` of the tensor, over all
                         layers, modulo 2^64 */
    float lr_factor, decay_factor;
    uint32_t key; /* of stochastic rounding: the tensor */
} zp_span;

typedef struct zp_update { /* a unit, or a rank's shard of it */
    void *p;               /* parameters */
    float *master;         /* NULL: none */
    const void *g;
    float *state[ZP_STATES];
    const zp_control *control;
    size_t begin, end;    /* elements that are updated; arrays count from the same origin */
    const zp_span *spans; /* ascending; between them is padding */
    int nspans;
    zero_type type, grad_type;
    float lr, beta1, beta2, eps, decay; /* times the span's factors, once there is one */
    double factor, bias_ratio, step_size, corrected_eps; /* the last three: of moving averages */
    int first;                                           /* the first step that is taken */
    int stochastic;
    uint32_t key[2]; /* of stochastic rounding: tensor, then seed and step */
    uint64_t element;
} zp_update;

typedef void (*zp_rule_body)(const zp_update *u, float *p, float g, float *s1, float *s2);

ZP_FN uint32_t zp_mix(uint32_t x) { /* a permutation of 32 bits, after MurmurHash3's finaliser */
    x = (x ^ x >> 16) * 0x85EBCA6Bu;
    x = (x ^ x >> 13) * 0xC2B2AE35u;
    return x ^ x >> 16;
}
/* bf16 next below or above, with the probability of its nearness; 16 random bits. Values that are
   not finite, and those that would become so, round to nearest. */
ZP_FN uint16_t zp_to_bf16_randomly(float x, uint32_t random) {
    const uint32_t b = zp_bits(x), up = (b + (random & 0xFFFFu)) >> 16;
    const int nearest = (b & 0x7F800000u) == 0x7F800000u || (up & 0x7F80u) == 0x7F80u;
    return nearest ? zp_to_bf16(x) : (uint16_t)up;
}
/* A random number of an element (lower and upper half of its index), by two keys. */
ZP_FN uint32_t zp_draw(uint32_t low, uint32_t high, const uint32_t *key) {
    uint32_t x = (low ^ key[0]) * 0x9E3779B1u;
    x = (x ^ x >> 16) * 0x85EBCA6Bu + (high ^ key[1]);
    x = (x ^ x >> 13) * 0xC2B2AE35u;
    return x ^ x >> 16;
}
ZP_FN uint32_t zp_random(const zp_update *u, size_t i) {
    const uint64_t e = u->element + i;
    return zp_draw((uint32_t)e, (uint32_t)(e >> 32), u->key);
}

ZP_FN int zp_update_begin(zp_update *u) {
    const zp_control *c = u->control;
    u->factor = c->factor;
    u->bias_ratio = c->bias_ratio;
    u->corrected_eps = (double)u->eps * c->root_correction;
    u->first = c->steps == 1;
    u->key[1] = zp_mix((uint32_t)c->steps ^ zp_mix((uint32_t)(c->steps >> 32) ^ u->key[1]));
    return !c->skip;
}
/* u becomes that of one span. */
ZP_FN void zp_update_turn(zp_update *u, const zp_update *all, const zp_span *s) {
    u->lr = all->lr * s->lr_factor;
    u->decay = all->decay * s->decay_factor;
    u->step_size = (double)u->lr * all->bias_ratio;
    u->key[0] = s->key;
    u->element = s->element;
}

/* ---- the host's form ---- */

static void zp_narrow_randomly(const zp_update *u, uint16_t *to, size_t at, uint32_t n,
                               const float *p) {
    const uint64_t first = u->element + at;
    const uint32_t key[2] = {u->key[0], u->key[1]}, low = (uint32_t)first,
                   high = (uint32_t)(first >> 32);
    if (low + n < low) /* the index passes a multiple of 2^32 */
        for (uint32_t i = 0; i < n; i++) to[i] = zp_to_bf16_randomly(p[i], zp_random(u, at + i));
    else
        for (uint32_t i = 0; i < n; i++)
            to[i] = zp_to_bf16_randomly(p[i], zp_draw(low + i, high, key));
}
static void zp_update_close(const zp_update *u, size_t at, size_t n, const float *p) {
    uint16_t *to = (uint16_t *)u->p + at;
    if (u->type == ZERO_F32) return;
    if (u->stochastic)
        zp_narrow_randomly(u, to, at, (uint32_t)n, p);
    else
        zp_narrow(to, u->type, p, n);
}
/* Elements [at, at + n) of u, which lie in one span. Inlined where `states` and `body` are
   constants, so that the loop has no call and no branch. */
ZP_INLINE void zp_update_block(const zp_update *all, size_t at, size_t n, int states,
                               zp_rule_body body) {
    float weights[ZP_UPDATE_BLOCK], gradients[ZP_UPDATE_BLOCK];
    const zp_update u = *all; /* a copy that no store can change */
    const float *g = zp_view(u.g, u.grad_type, at, n, gradients);
    float *p = u.master ? u.master + at : (float *)(uintptr_t)zp_view(u.p, u.type, at, n, weights);
    float *s1 = u.state[0] + at, *s2 = u.state[states > 1] + at;
    ZP_SIMD
    for (size_t i = 0; i < n; i++)
        body(&u, &p[i], (float)((double)g[i] * u.factor), &s1[i], &s2[i]);
    zp_update_close(all, at, n, p);
}
static void zp_update_walk(const zp_update *update, size_t n, int threads,
                           void (*block)(const zp_update *u, size_t at, size_t n)) {
    zp_update all = *update, u;
    if (!zp_update_begin(&all)) return;
    u = all;
    for (const zp_span *s = all.spans; s < all.spans + all.nspans; s++) {
        zp_update_turn(&u, &all, s);
        const size_t begin = zp_max(s->begin, all.begin), end = zp_min(s->end, all.end);
        ZP_OMP_FOR(end > begin + 32768)
        for (size_t at = begin; at < end; at += ZP_UPDATE_BLOCK)
            block(&u, at, zp_min(ZP_UPDATE_BLOCK, end - at));
    }
}
#define ZP_RULE_LOOP(name, states, body)                                                           \
    static void zp_##name##_block(const zp_update *u, size_t at, size_t n) {                       \
        zp_update_block(u, at, n, states, body);                                                   \
    }                                                                                              \
    static void zp_##name##_loop(const void *u, size_t n, int threads) {                           \
        zp_update_walk((const zp_update *)u, n, threads, zp_##name##_block);                       \
    }

/* ---- the GPU's form ---- */

#ifdef __CUDACC__
/* The last span that begins at i or before; padding goes with the span before it. */
ZP_FN int zp_span_at(const zp_update *u, size_t i) {
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
ZP_FN void zp_update_store(const zp_update *u, size_t i, const float *p) {
    if (u->master) zp_store_wide(u->master, ZERO_F32, i, p);
    if (!u->stochastic) {
        zp_store_wide(u->p, u->type, i, p);
        return;
    }
    uint16_t h[ZP_WIDE];
    for (size_t j = 0; j < ZP_WIDE; j++) h[j] = zp_to_bf16_randomly(p[j], zp_random(u, i + j));
    *(ushort4 *)(void *)((uint16_t *)u->p + i) = make_ushort4(h[0], h[1], h[2], h[3]);
}
/* Spans begin at multiples of ZP_WIDE, and padding stays zeros: a gradient of zeros keeps them. */
static __device__ __forceinline__ void zp_update_threads(const zp_update *all, size_t n, int states,
                                                         zp_rule_body body) {
    zp_update u = *all;
    for (size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x,
                stride = (size_t)gridDim.x * blockDim.x;
         at < n; at += stride) {
        const size_t i = u.begin + at * ZP_WIDE;
        float p[ZP_WIDE], g[ZP_WIDE], s1[ZP_WIDE], s2[ZP_WIDE];
        const zero_type type = u.master ? ZERO_F32 : u.type;
        const uint4 p0 = zp_load_words(u.master ? u.master : u.p, type, i);
        const uint4 g0 = zp_load_words(u.g, u.grad_type, i);
        zp_load_wide(s1, u.state[0], ZERO_F32, i);
        if (states > 1) zp_load_wide(s2, u.state[1], ZERO_F32, i);
        zp_update_turn(&u, all, &all->spans[zp_span_at(all, i)]);
        zp_open_words(p, p0, type);
        zp_open_words(g, g0, u.grad_type);
        for (size_t j = 0; j < ZP_WIDE; j++)
            body(&u, &p[j], (float)((double)g[j] * u.factor), &s1[j], &s2[j]);
        zp_update_store(&u, i, p);
        zp_store_wide(u.state[0], ZERO_F32, i, s1);
        if (states > 1) zp_store_wide(u.state[1], ZERO_F32, i, s2);
    }
}
#define ZP_RULE(name, states, body)                                                                \
    __global__ void __launch_bounds__(ZP_THREADS) zp_##name##_kernel(zp_update all, size_t n) {    \
        if (zp_update_begin(&all)) zp_update_threads(&all, n, states, body);                       \
    }                                                                                              \
    ZP_RULE_LOOP(name, states, body)                                                               \
    ZP_KERNEL_CALL(zp_update_##name, zp_##name##_kernel, zp_update, zp_grid(n, 8192))
#else
#define ZP_RULE(name, states, body)                                                                \
    ZP_RULE_LOOP(name, states, body)                                                               \
    ZP_KERNEL_CALL(zp_update_##name, zp_##name##_loop, zp_update)
#endif

/* ---- the rules ---- */

/* Adam's step, with m / (sqrt(v / c) + eps) written as sqrt(c) m / (sqrt(v) + eps sqrt(c)). In f64,
   since the loop waits for memory all the same, but for the root, which would take too long: v is
   rounded before it and the root after, and nothing else until the three results are stored. */
ZP_FN double zp_adam_step(const zp_update *u, double g, float *m, float *v) {
    const double b1 = (double)u->beta1, b2 = (double)u->beta2;
    const double m1 = b1 * (double)*m + (1 - b1) * g, v1 = b2 * (double)*v + (1 - b2) * (g * g);
    *m = (float)m1;
    *v = (float)v1;
    return u->step_size * (m1 / ((double)sqrtf(*v) + u->corrected_eps));
}
ZP_FN void zp_adamw_at(const zp_update *u, float *p, float g, float *m, float *v) {
    const double was = (double)*p, decay = (double)u->lr * (double)u->decay;
    *p = (float)(was - (decay * was + zp_adam_step(u, (double)g, m, v)));
}
ZP_FN void zp_adam_at(const zp_update *u, float *p, float g, float *m, float *v) {
    const double was = (double)*p;
    *p = (float)(was - zp_adam_step(u, (double)u->decay * was + (double)g, m, v));
}
/* g with the decay added, which is remembered in m. */
ZP_FN float zp_momentum(const zp_update *u, float p, float g, float *m) {
    const float d = ZP_FMA(u->decay, p, g);
    *m = u->first ? d : ZP_FMA(u->beta1, *m, d);
    return d;
}
ZP_FN void zp_sgd_at(const zp_update *u, float *p, float g, float *m, float *unused) {
    (void)zp_momentum(u, *p, g, m);
    *p -= u->lr * *m;
}
ZP_FN void zp_nesterov_at(const zp_update *u, float *p, float g, float *m, float *unused) {
    const float d = zp_momentum(u, *p, g, m);
    *p -= u->lr * ZP_FMA(u->beta1, *m, d);
}
ZP_FN void zp_lion_at(const zp_update *u, float *p, float g, float *m, float *unused) {
    const float c = ZP_FMA(u->beta1, *m, (1.0f - u->beta1) * g);
    const float sign = (float)((c > 0) - (c < 0));
    *m = ZP_FMA(u->beta2, *m, (1.0f - u->beta2) * g);
    *p -= u->lr * ZP_FMA(u->decay, *p, sign);
}

#ifdef ZERO_OWN_OPTIMIZERS
#include ZERO_OWN_OPTIMIZERS
#else
#define ZERO_OWN(X)
#endif

ZP_RULE(adamw, 2, zp_adamw_at)
ZP_RULE(adam, 2, zp_adam_at)
ZP_RULE(sgd, 1, zp_sgd_at)
ZP_RULE(nesterov, 1, zp_nesterov_at)
ZP_RULE(lion, 1, zp_lion_at)
ZERO_OWN(ZP_RULE)

/* What a rule reads of zero_hyper, beside lr, weight_decay and max_norm. */
enum {
    ZP_BETA1 = 1,
    ZP_BETA2 = 2,
    ZP_EPS = 4,
    ZP_EPS_ALONE = 8 /* is divided by where the gradients of a weight are zeros */
};

typedef struct zp_rule {
    const char *name;
    int states; /* f32 arrays */
    int reads;
    zero_result (*update)(zp_stream *s, const zp_update *u,
                          size_t n); /* n times ZP_WIDE elements */
    zp_task_fn loop;                 /* the same on the host */
} zp_rule;

#define ZP_ROW(name, states, reads)                                                                \
    { #name, states, reads, zp_update_##name, zp_##name##_loop }
#define ZP_OWN_ROW(name, states, body) ZP_ROW(name, states, ZP_BETA1 | ZP_BETA2 | ZP_EPS),
#define ZP_OWN_CHECK(name, states, body)                                                           \
    static_assert((states) >= 1 && (states) <= ZP_STATES, #name ": 1 or 2 state arrays");
/* In the order of zero_optimizer. */
static const zp_rule zp_rules[] = {ZP_ROW(adamw, 2, ZP_BETA1 | ZP_BETA2 | ZP_EPS | ZP_EPS_ALONE),
                                   ZP_ROW(adam, 2, ZP_BETA1 | ZP_BETA2 | ZP_EPS | ZP_EPS_ALONE),
                                   ZP_ROW(sgd, 1, ZP_BETA1),
                                   ZP_ROW(nesterov, 1, ZP_BETA1),
                                   ZP_ROW(lion, 1, ZP_BETA1 | ZP_BETA2),
                                   ZERO_OWN(ZP_OWN_ROW)};
enum { ZP_RULES = sizeof zp_rules / sizeof *zp_rules };
static_assert((int)ZP_RULES >= (int)ZERO_OPTIMIZER_OWN, "a row for every rule of the header");
ZERO_OWN(ZP_OWN_CHECK)

/* h with zeros for what the rule does not read: ranks may differ in it. */
static zero_hyper zp_rule_reads(const zp_rule *rule, zero_hyper h) {
    if (!(rule->reads & ZP_BETA1)) h.beta1 = 0;
    if (!(rule->reads & ZP_BETA2)) h.beta2 = 0;
    if (!(rule->reads & ZP_EPS)) h.eps = 0;
    return h;
}

/* Whether every number that the rule reads is in its range; but for ZP_EPS_ALONE. */
static int zp_rule_takes(const zp_rule *rule, const zero_hyper *given) {
    const zero_hyper h = zp_rule_reads(rule, *given);
    return zp_not_below(h.lr) && zp_not_below(h.weight_decay) && !zp_nan((double)h.max_norm)
           && h.max_norm >= 0 && zp_not_below(h.beta1) && h.beta1 < 1 && zp_not_below(h.beta2)
           && h.beta2 < 1 && zp_not_below(h.eps);
}

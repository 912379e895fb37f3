/* rules.h - the update rules, and how to add one

   An update rule is a body on one element, a ZP_RULE line, a row in the table, which says what the
   rule reads and needs, and a name in zero_optimizer: no other room asks for a rule by name.
   Everything around it is here once: unscaling and clipping, master weights or none, 16-bit
   rounding, stochastic or to nearest, and the two forms, a loop of the host and a kernel of the
   GPU, with the same bits.

   A rule that NEEDS something of whole tensors has two passes over what this rank updates. The
   first one changes state alone, and leaves what the ranks then make of all shards together (see
   deal); the last one writes the weights.
     NORMS    of each layer of each tensor: the first pass sums squares of weights and of what they
              would be moved by; the last one has the layer's trust ratio
     MATRIX   the first pass writes a direction beside the elements of each matrix; the last one
              finds there what the matrix's owner has made of it. What is no matrix is the last
              pass's, by another body

   ADDING AN OPTIMIZER. In a file of your own that -DZERO_OWN_OPTIMIZERS='"own.h"' names (a path
   from this file's folder, or one of -I):
       ZP_FN void own_at(const zp_update *u, float *p, float g, float *s1, float *s2) {
           ... g: the mean gradient, unscaled and clipped; p: the weight; s1, s2: its state, zeros
               to begin with; u->lr, u->decay: times the tensor's factors; decay is the body's ...
       }
       #define ZERO_OWN(X) X(own, 1, own_at) // name, state arrays (1 or 2), body

   More rules: X(...) X(...). They are cfg.optimizer ZERO_OPTIMIZER_OWN, ZERO_OPTIMIZER_OWN + 1 ...
   A body sees one element: what needs norms or matrices of tensors is a row below. */
#pragma once

#include "optimizer.h"

/* Adam's step in two halves, of ZP_BODY_SIZE elements each, with m / (sqrt(v / c) + eps) written as
   sqrt(c) m / (sqrt(v) + eps sqrt(c)). In f64, since the loop waits for memory all the same, but
   for the root, which would take too long: v is rounded before it and the root after, and nothing
   else until the three results are stored. */
typedef struct zp_adam { /* what the first half leaves to the second */
    double m[ZP_BODY_SIZE];
    float root[ZP_BODY_SIZE];
} zp_adam;
#define ZP_EACH(i) ZP_EACH_F64S for (size_t i = 0; i < ZP_BODY_SIZE; i += ZP_F64S)
ZP_FN void zp_rule_adam_moments(const zp_update *u, zp_f64s g, float *m, float *v, zp_adam *a,
                                size_t i) {
    const double b1 = (double)u->beta1, b2 = (double)u->beta2;
    const zp_f64s m1 = zp_type_fma_f64s(b1, zp_type_set_f64s(&m[i]), (1 - b1) * g),
                  v1 = zp_type_fma_f64s(b2, zp_type_set_f64s(&v[i]), (1 - b2) * (g * g));
    zp_type_store_f64s(&m[i], m1);
    zp_type_store_f64s(&v[i], v1);
    zp_type_select_f64s(&a->m[i], m1);
    zp_type_sqrt_f64s(&a->root[i], &v[i]);
}
ZP_FN zp_f64s zp_rule_adam_step(const zp_update *u, const zp_adam *a, size_t i) {
    const zp_f64s root = zp_type_set_f64s(&a->root[i]);
    return u->step_size * (zp_type_load_f64s(&a->m[i]) / (root + u->corrected_eps));
}
ZP_FN void zp_rule_adamw_at(const zp_update *u, float *p, const float *g, float *m, float *v) {
    zp_adam a;
    ZP_EACH(i) zp_rule_adam_moments(u, zp_type_set_f64s(&g[i]), m, v, &a, i);
    ZP_EACH(i) {
        const zp_f64s was = zp_type_set_f64s(&p[i]), step = zp_rule_adam_step(u, &a, i);
        zp_type_store_f64s(&p[i], was - ((double)u->lr * (double)u->decay * was + step));
    }
}
ZP_FN void zp_rule_adam_at(const zp_update *u, float *p, const float *g, float *m, float *v) {
    const double decay = (double)u->decay;
    zp_adam a;
    ZP_EACH(i) {
        const zp_f64s d = zp_type_fma_f64s(decay, zp_type_set_f64s(&p[i]), zp_type_set_f64s(&g[i]));
        zp_rule_adam_moments(u, d, m, v, &a, i);
    }
    ZP_EACH(i) zp_type_store_f64s(&p[i], zp_type_set_f64s(&p[i]) - zp_rule_adam_step(u, &a, i));
}
/* g with the decay added, which is remembered in m. */
ZP_FN float zp_rule_momentum(const zp_update *u, float p, float g, float *m) {
    const float d = ZP_FMA(u->decay, p, g);
    *m = u->first ? d : ZP_FMA(u->beta1, *m, d);
    return d;
}
ZP_FN void zp_rule_sgd_at(const zp_update *u, float *p, float g, float *m, float *unused) {
    (void)zp_rule_momentum(u, *p, g, m);
    *p -= u->lr * *m;
}
ZP_FN void zp_rule_nesterov_at(const zp_update *u, float *p, float g, float *m, float *unused) {
    const float d = zp_rule_momentum(u, *p, g, m);
    *p -= u->lr * ZP_FMA(u->beta1, *m, d);
}
ZP_FN void zp_rule_lion_at(const zp_update *u, float *p, float g, float *m, float *unused) {
    const float c = ZP_FMA(u->beta1, *m, (1.0f - u->beta1) * g);
    const float sign = (float)((c > 0) - (c < 0));
    *m = ZP_FMA(u->beta2, *m, (1.0f - u->beta2) * g);
    *p -= u->lr * ZP_FMA(u->decay, *p, sign);
}

/* The sum of squares never ends; the decay, which torch adds to g, is in it. */
ZP_FN void zp_rule_adagrad_at(const zp_update *u, float *p, float g, float *s, float *unused) {
    const float d = ZP_FMA(u->decay, *p, g);
    *s = ZP_FMA(d, d, *s);
    *p -= u->lr * (d / (sqrtf(*s) + u->eps));
}
/* LAMB: Adam's moments; then the direction, made of them twice, with the same bits. */
ZP_FN void zp_rule_lamb_moments_at(const zp_update *u, float *p, const float *g, float *m,
                                   float *v) {
    zp_adam unused;
    ZP_EACH(i) zp_rule_adam_moments(u, zp_type_set_f64s(&g[i]), m, v, &unused, i);
}
ZP_FN float zp_rule_lamb_move(const zp_update *u, float p, float m, float v) {
    const double step = u->bias_ratio * ((double)m / ((double)sqrtf(v) + u->corrected_eps));
    return (float)(step + (double)u->decay * (double)p);
}
ZP_FN void zp_rule_lamb_at(const zp_update *u, float *p, const float *g, float *m, float *v) {
    *p = (float)((double)*p - (double)u->lr * u->ratio * (double)zp_rule_lamb_move(u, *p, *m, *v));
}
/* Muon: what a matrix's owner orthogonalises, and what it becomes. */
ZP_FN void zp_rule_muon_send_at(const zp_update *u, float *p, const float *g, float *m,
                                float *dealt) {
    const float rest = (1.0f - u->momentum) * *g;
    *m = ZP_FMA(u->momentum, *m, rest);
    *dealt = u->nesterov ? ZP_FMA(u->momentum, *m, rest) : *m;
}
ZP_FN void zp_rule_muon_take_at(const zp_update *u, float *p, const float *g, float *m,
                                float *dealt) {
    const double was = (double)*p, lr = (double)u->lr;
    *p = (float)(was - lr * ((double)u->decay * was + (double)u->span->shape * (double)*dealt));
}

#ifdef ZERO_OWN_OPTIMIZERS
#include ZERO_OWN_OPTIMIZERS
#else
#define ZERO_OWN(X)
#endif

ZP_PASS(adamw, 2, ZP_SEVERAL, zp_rule_adamw_at, zp_rule_adamw_at)
ZP_PASS(adam, 2, ZP_SEVERAL, zp_rule_adam_at, zp_rule_adam_at)
ZP_RULE(sgd, 1, zp_rule_sgd_at)
ZP_RULE(nesterov, 1, zp_rule_nesterov_at)
ZP_RULE(lion, 1, zp_rule_lion_at)
ZP_RULE(adagrad, 1, zp_rule_adagrad_at)
ZP_PASS(lamb_moments, 2, ZP_KEEPS | ZP_SEVERAL, zp_rule_lamb_moments_at, zp_rule_lamb_moments_at)
ZP_NORMS(lamb_norms, zp_rule_lamb_move)
ZP_PASS(lamb, 2, ZP_LAYERED, zp_rule_lamb_at, zp_rule_lamb_at)
ZP_PASS(muon_send, 2, ZP_DEALS | ZP_KEEPS | ZP_WAITS, zp_rule_adamw_at, zp_rule_muon_send_at)
ZP_PASS(muon, 2, ZP_DEALS | ZP_SEVERAL, zp_rule_adamw_at, zp_rule_muon_take_at)
ZERO_OWN(ZP_RULE)

/* What a rule reads of zero_hyper, beside lr, weight_decay and max_norm. */
enum {
    ZP_BETA1 = 1,
    ZP_BETA2 = 2,
    ZP_EPS = 4,
    ZP_EPS_ALONE = 8 /* is divided by where the gradients of a weight are zeros */
};

/* What it needs of whole tensors. */
enum {
    ZP_NORMS_OF_LAYERS = 1,
    ZP_MATRICES = 2 /* its second state array is there for what is no matrix alone */
};
#define ZP_PASSES 2
#define ZP_STEPS  3 /* kernels of all passes */

typedef struct zp_rule {
    const char *name;
    int states; /* f32 arrays */
    int reads, needs;
    int passes, firsts; /* firsts: kernels of the first of two */
    zero_result (*update[ZP_STEPS])(zp_stream *s, const zp_update *u,
                                    size_t n); /* n times ZP_WIDE elements */
    zp_task_fn loop[ZP_STEPS];                 /* the same on the host */
} zp_rule;

#define ZP_ROW(name, states, reads)                                                                \
    {                                                                                              \
#name, states, reads, 0, 1, 0, {zp_rule_update_##name, NULL, NULL }, {                     \
            zp_rule_##name##_loop, NULL, NULL                                                      \
        }                                                                                          \
    }
#define ZP_OWN_ROW(name, states, body) ZP_ROW(name, states, ZP_BETA1 | ZP_BETA2 | ZP_EPS),
#define ZP_OWN_CHECK(name, states, body)                                                           \
    static_assert((states) >= 1 && (states) <= ZP_STATES, #name ": 1 or 2 state arrays");
#define ZP_ADAM_READS (ZP_BETA1 | ZP_BETA2 | ZP_EPS | ZP_EPS_ALONE)
/* In the order of zero_optimizer. */
static const zp_rule zp_rules[] = {
    ZP_ROW(adamw, 2, ZP_ADAM_READS),
    ZP_ROW(adam, 2, ZP_ADAM_READS),
    ZP_ROW(sgd, 1, ZP_BETA1),
    ZP_ROW(nesterov, 1, ZP_BETA1),
    ZP_ROW(lion, 1, ZP_BETA1 | ZP_BETA2),
    ZP_ROW(adagrad, 1, ZP_EPS | ZP_EPS_ALONE),
    {"lamb",
     2,
     ZP_ADAM_READS,
     ZP_NORMS_OF_LAYERS,
     2,
     2,
     {zp_rule_update_lamb_moments, zp_rule_update_lamb_norms, zp_rule_update_lamb},
     {zp_rule_lamb_moments_loop, zp_rule_lamb_norms_loop, zp_rule_lamb_loop}},
    {"muon",
     2,
     ZP_ADAM_READS,
     ZP_MATRICES,
     2,
     1,
     {zp_rule_update_muon_send, zp_rule_update_muon, NULL},
     {zp_rule_muon_send_loop, zp_rule_muon_loop, NULL}},
    ZERO_OWN(ZP_OWN_ROW)};
enum { ZP_RULES = sizeof zp_rules / sizeof *zp_rules };
static_assert((int)ZP_RULES >= (int)ZERO_OPTIMIZER_OWN, "a row for every rule of the header");
ZERO_OWN(ZP_OWN_CHECK)

/* The kernels of a pass: [first, last). */
static int zp_rule_first(const zp_rule *rule, int pass) { return pass ? rule->firsts : 0; }
static int zp_rule_last(const zp_rule *rule, int pass) {
    return pass + 1 < rule->passes ? rule->firsts : rule->firsts + 1;
}

/* h with zeros for what the rule does not read: ranks may differ in it. */
static zero_hyper zp_rule_used_hyper(const zp_rule *rule, zero_hyper h) {
    if (!(rule->reads & ZP_BETA1)) h.beta1 = 0;
    if (!(rule->reads & ZP_BETA2)) h.beta2 = 0;
    if (!(rule->reads & ZP_EPS)) h.eps = 0;
    return h;
}

/* Whether every number that the rule reads is in its range; but for ZP_EPS_ALONE. */
static int zp_rule_accepts(const zp_rule *rule, const zero_hyper *given) {
    const zero_hyper h = zp_rule_used_hyper(rule, *given);
    return zp_type_not_below(h.lr) && zp_type_not_below(h.weight_decay)
           && !zp_type_is_nan((double)h.max_norm) && h.max_norm >= 0 && zp_type_not_below(h.beta1)
           && h.beta1 < 1 && zp_type_not_below(h.beta2) && h.beta2 < 1 && zp_type_not_below(h.eps);
}

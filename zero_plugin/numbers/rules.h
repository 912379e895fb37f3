/* rules.h - the update rules, and how to add one

   An update rule has four parts: a body on one element, a ZP_RULE line, a row in the table, and a
   name in zero_optimizer. The row states what the rule reads and needs; no other file asks for a
   rule by name. optimizer.h has all else once: unscaling and clipping, master weights, 16-bit
   rounding, and the two forms, a CPU loop and a GPU kernel, with the same bits.

   A rule that NEEDS results of whole tensors has two passes over this rank's elements. The first
   pass changes only state, and prepares what the ranks then compute from all shards. The last pass
   writes the weights. Such rules are in extras/whole_rules.h.
     NORMS    for each layer of each tensor the first pass sums squares of the weights and of their
              updates; the last pass receives the layer's trust ratio
     MATRIX   the first pass writes a direction for each element of a matrix; the last pass reads
              there the result of the matrix's owner. Only the last pass updates tensors that are
              not matrices, with another body

   ADDING AN OPTIMIZER. Write a file of your own that -DZERO_OWN_OPTIMIZERS='"own.h"' names. Its
   path is relative to this file's folder, or to a folder of -I.
       ZP_FN void own_at(const zp_update *u, float *p, float g, float *s1, float *s2) {
           ... g: the mean gradient, unscaled and clipped; p: the weight; s1, s2: its state, 0 at
               first; u->lr, u->decay: times the tensor's factors; the body applies decay ...
       }
       #define ZERO_OWN(X) X(own, 1, own_at) // name, state arrays (1 or 2), body

   For more rules write X(...) X(...). cfg.optimizer is ZERO_OPTIMIZER_OWN, or that + 1, and so on.
   A body sees one element. A rule that needs norms or matrices of tensors is a row in
   extras/whole_rules.h. */
#pragma once

#include "optimizer.h"

/* Adam's step, of ZP_ROW_SIZE elements. It computes m / (sqrt(v / c) + eps) as
   sqrt(c) m / (sqrt(v) + eps sqrt(c)), in f32, because f64 is slow on many GPUs. Each operation
   rounds once, on every processor: not all of them have a fused multiply-add. (1 - beta2) g comes
   before the square, which could be infinite where v is not. */
ZP_FN zp_row zp_rule_adam_step(const zp_update *u, zp_row g, float *m, float *v) {
    const zp_row m1 = u->beta1 * zp_type_load_row(m) + (1 - u->beta1) * g,
                 v1 = u->beta2 * zp_type_load_row(v) + (1 - u->beta2) * g * g;
    zp_type_store_row(m, m1);
    zp_type_store_row(v, v1);
    return u->step_size * (m1 / (zp_type_sqrt_row(v1) + u->corrected_eps));
}
ZP_FN void zp_rule_adamw_at(const zp_update *u, float *p, const float *g, float *m, float *v) {
    const zp_row was = zp_type_load_row(p), now = zp_type_load_row(g);
    zp_type_store_row(p, was - (u->lr * u->decay * was + zp_rule_adam_step(u, now, m, v)));
}
ZP_FN void zp_rule_adam_at(const zp_update *u, float *p, const float *g, float *m, float *v) {
    const zp_row was = zp_type_load_row(p), now = u->decay * was + zp_type_load_row(g);
    zp_type_store_row(p, was - zp_rule_adam_step(u, now, m, v));
}
/* Returns g plus the decay, and adds it to the momentum m. */
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

/* s sums squares over all steps. As in torch, g includes the decay. */
ZP_FN void zp_rule_adagrad_at(const zp_update *u, float *p, float g, float *s, float *unused) {
    const float d = ZP_FMA(u->decay, *p, g);
    *s = ZP_FMA(d, d, *s);
    *p -= u->lr * (d / (sqrtf(*s) + u->eps));
}
#ifdef ZERO_OWN_OPTIMIZERS
#include ZERO_OWN_OPTIMIZERS
#else
#define ZERO_OWN(X)
#endif

ZP_PASS(adamw, 2, ZP_VECTOR, zp_rule_adamw_at)
ZP_PASS(adam, 2, ZP_VECTOR, zp_rule_adam_at)
ZP_RULE(sgd, 1, zp_rule_sgd_at)
ZP_RULE(nesterov, 1, zp_rule_nesterov_at)
ZP_RULE(lion, 1, zp_rule_lion_at)
ZP_RULE(adagrad, 1, zp_rule_adagrad_at)
ZERO_OWN(ZP_RULE)

/* Fields of zero_hyper that a rule reads next to lr, weight_decay and max_norm; its properties. */
enum {
    ZP_BETA1 = 1,
    ZP_BETA2 = 2,
    ZP_EPS = 4,
    ZP_EPS_ALONE = 8,         /* eps alone is the divisor if all gradients of a weight are zeros */
    ZP_AVERAGES_SQUARES = 16, /* its second state array averages squares */
    ZP_GROWS = 32 /* its state only grows: small changes of large values would be lost */
};

/* What a rule needs of whole tensors. */
enum {
    ZP_NORMS_OF_LAYERS = 1,
    ZP_MATRICES = 2 /* its second state array is only for tensors that are not matrices */
};
#define ZP_STEPS 3 /* kernels of all passes */

typedef struct zp_rule {
    const char *name;
    int states; /* arrays, which bodies see in f32 */
    int reads, needs;
    int passes, firsts; /* firsts: kernels of the first pass of two */
    zero_result (*update[ZP_STEPS])(zp_stream *s, const zp_update *u,
                                    size_t n); /* n times ZP_WIDE elements */
    zp_task_fn loop[ZP_STEPS];                 /* the same on the CPU */
    const char *part; /* the row that has the functions; NULL: this table */
} zp_rule;

#define ZP_ROW(name, states, reads)                                                                \
    {                                                                                              \
#name, states, reads, 0, 1, 0,                                                             \
            {zp_rule_update_##name, NULL, NULL }, {zp_rule_##name##_loop, NULL, NULL }, NULL       \
    }
#define ZP_OWN_ROW(name, states, body) ZP_ROW(name, states, ZP_BETA1 | ZP_BETA2 | ZP_EPS),
#define ZP_OWN_CHECK(name, states, body)                                                           \
    static_assert((states) >= 1 && (states) <= ZP_STATES, #name ": 1 or 2 state arrays");
#define ZP_ADAM_READS (ZP_BETA1 | ZP_BETA2 | ZP_EPS | ZP_EPS_ALONE | ZP_AVERAGES_SQUARES)
/* The functions of this rule are in a capability's row, `part`: zp_extra_choose_rule finds them. */
#define ZP_RULE_OF(name, part)                                                                     \
    { #name, 0, 0, 0, 0, 0, {NULL, NULL, NULL }, {NULL, NULL, NULL }, part }
/* One row for each zero_optimizer, in its order. */
static const zp_rule zp_rules[] = {ZP_ROW(adamw, 2, ZP_ADAM_READS),
                                   ZP_ROW(adam, 2, ZP_ADAM_READS),
                                   ZP_ROW(sgd, 1, ZP_BETA1),
                                   ZP_ROW(nesterov, 1, ZP_BETA1),
                                   ZP_ROW(lion, 1, ZP_BETA1 | ZP_BETA2),
                                   ZP_ROW(adagrad, 1, ZP_EPS | ZP_EPS_ALONE | ZP_GROWS),
                                   ZP_RULE_OF(lamb, "muon"),
                                   ZP_RULE_OF(muon, "muon"),
                                   ZERO_OWN(ZP_OWN_ROW)};
enum { ZP_RULES = sizeof zp_rules / sizeof *zp_rules };
static_assert((int)ZP_RULES >= (int)ZERO_OPTIMIZER_OWN, "a row for every rule of the header");
ZERO_OWN(ZP_OWN_CHECK)

/* A pass has the kernels [first, last). */
static int zp_rule_first(const zp_rule *rule, int pass) { return pass ? rule->firsts : 0; }
static int zp_rule_last(const zp_rule *rule, int pass) {
    return pass + 1 < rule->passes ? rule->firsts : rule->firsts + 1;
}

/* Returns h with zeros in fields that the rule does not read, in which ranks may differ. */
static zero_hyper zp_rule_used_hyper(const zp_rule *rule, zero_hyper h) {
    if (!(rule->reads & ZP_BETA1)) h.beta1 = 0;
    if (!(rule->reads & ZP_BETA2)) h.beta2 = 0;
    if (!(rule->reads & ZP_EPS)) h.eps = 0;
    return h;
}

/* Returns 1 if every field that the rule reads is in its range. It does not test ZP_EPS_ALONE. */
static int zp_rule_accepts(const zp_rule *rule, const zero_hyper *given) {
    const zero_hyper h = zp_rule_used_hyper(rule, *given);
    return zp_type_not_below(h.lr) && zp_type_not_below(h.weight_decay)
           && !zp_type_is_nan((double)h.max_norm) && h.max_norm >= 0 && zp_type_not_below(h.beta1)
           && h.beta1 < 1 && zp_type_not_below(h.beta2) && h.beta2 < 1 && zp_type_not_below(h.eps);
}

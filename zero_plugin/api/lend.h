/* lend.h - arrays that stay yours: copies gradients from them and weights back

   For trainers whose weights are doubles, or not movable pointers. The plugin runs the hooks
   itself, unit by unit. A step is a pass of backward hooks alone, in which gradients are copied in,
   and an evaluation, in which weights are copied out. */
#pragma once

#include "adopt.h"

/* Number of elements per conversion, on the stack. */
enum { ZP_LENT_PIECE = 4096 };
typedef struct zp_lent_piece {
    double raw[ZP_LENT_PIECE]; /* of any type */
    float values[ZP_LENT_PIECE];
} zp_lent_piece;

/* Stores or adds your gradients times the loss scale to `ours`, and clears yours. */
static zero_result zp_lend_take(zero_ctx *z, char *ours, char *array, size_t n) {
    zp_lent_piece p;
    const zero_type type = z->array[ZP_GRAD].type;
    const int adds = z->adding == ZP_IN_PLACE && z->micro > 0;
    const float scale = z->report.scale;
    ZP_TRY(zp_adopt_copy(z, p.raw, array, n * zero_type_bytes(z->arrays_type)));
    zero_convert(p.values, ZERO_F32, p.raw, z->arrays_type, n);
    if (adds) ZP_TRY(zp_adopt_copy(z, p.raw, ours, n * zp_type_bytes(type)));
    for (size_t i = 0; i < n; i++)
        p.values[i] = p.values[i] * scale + (adds ? zp_type_load(p.raw, type, i) : 0);
    zp_type_narrow(p.raw, type, p.values, n);
    ZP_TRY(zp_adopt_copy(z, ours, p.raw, n * zp_type_bytes(type)));
    memset(p.raw, 0, n * zero_type_bytes(z->arrays_type)); /* a copy: the memory may be yours */
    return zp_adopt_copy(z, array, p.raw, n * zero_type_bytes(z->arrays_type));
}

static zero_result zp_lend_give(zero_ctx *z, char *array, const char *ours, size_t n) {
    zp_lent_piece p;
    const zero_type type = z->array[ZP_PARAM].type;
    ZP_TRY(zp_adopt_copy(z, p.raw, ours, n * zp_type_bytes(type)));
    zp_type_widen(p.values, p.raw, type, n);
    zero_convert(p.raw, z->arrays_type, p.values, ZERO_F32, n);
    return zp_adopt_copy(z, array, p.raw, n * zero_type_bytes(z->arrays_type));
}

/* Hashes your weights. */
static zero_result zp_lend_hash(zero_ctx *z, const char *array, size_t n, uint64_t *hash) {
    uint32_t words[2 * ZP_LENT_PIECE];
    const size_t bytes = n * zero_type_bytes(z->arrays_type);
    memset(words, 0, sizeof words);
    ZP_TRY(zp_adopt_copy(z, words, array, bytes));
    for (size_t i = 0; i < (bytes + 3) / 4; i++) *hash = zp_hash(*hash, words[i]);
    return ZERO_OK;
}

/* Copies a member, layer by layer, between your arrays and `memory`, which holds its unit. NULL:
   only hashes it. */
static zero_result zp_lend_member(zero_ctx *z, zp_side side, const zp_member *m, char *memory,
                                  const void *host, uint64_t *hash) {
    const zero_tensor_desc *d = &z->tensors[m->tensor].desc;
    const size_t of = zero_type_bytes(z->arrays_type), ours = zp_type_bytes(z->array[side].type);
    char *to = memory ? zp_pointer_of_member(z, side, m, memory) : NULL;
    for (size_t done = 0, n; done < m->numel; done += n) {
        const int layer = m->layer + (int)(done / d->numel);
        const size_t at = done % d->numel;
        char *array = zp_adopt_array(z, side, m->tensor, layer, host);
        n = zp_min(ZP_LENT_PIECE, d->numel - at);
        array += ((d->flags & ZERO_BY_SLOT ? 0 : (size_t)layer * d->numel) + at) * of;
        if (to && side == ZP_GRAD) ZP_TRY(zp_lend_take(z, to + done * ours, array, n));
        if (to && side == ZP_PARAM) ZP_TRY(zp_lend_give(z, array, to + done * ours, n));
        if (hash) ZP_TRY(zp_lend_hash(z, array, n, hash));
    }
    return ZERO_OK;
}

/* Checks (checked builds) that your weights are those last written back. */
static zero_result zp_lend_check(zero_ctx *z, const void *params) {
    for (int i = 0; ZERO_CHECK && i < z->layout.nmembers; i++) {
        const zp_member *m = &z->layout.members[i];
        uint64_t hash = ZP_HASH_EMPTY;
        ZP_TRY(zp_lend_member(z, ZP_PARAM, m, NULL, params, &hash));
        ZP_UNTIMELY(z, hash != *z->observer->written(z, m),
                    "tensor %s, layer %d, was written by your code (by its own optimizer?); "
                    "change weights only by the plugin's update and by zero_write_tensor",
                    z->tensors[m->tensor].desc.name, m->layer);
    }
    return ZERO_OK;
}

/* Copies the tensors of a segment, whose unit has begun. */
static zero_result zp_lend_segment(zero_ctx *z, zp_side side, int s, const void *host) {
    const zp_unit *x = &z->layout.unit[s];
    char *memory = side == ZP_PARAM ? zp_ctx_unit_pointer(z, s) : zp_ctx_unit_memory(z, ZP_GRAD, s);
    for (const zp_member *m = x->member; m < x->member + x->members; m++) {
        uint64_t *hash = side == ZP_PARAM && ZERO_CHECK ? z->observer->written(z, m) : NULL;
        if (hash) *hash = ZP_HASH_EMPTY;
        ZP_TRY(zp_lend_member(z, side, m, memory, host, hash));
    }
    return ZERO_OK;
}

/* Copies all units, each between its begin and end: gradients in, or weights out. KEEP tensors need
   no hooks. */
static zero_result zp_lend_units(zero_ctx *z, zp_side side, const void *host) {
    const int gives = side == ZP_PARAM;
    for (int i = 0; i < z->layout.all; i++) {
        const int u = gives ? i : z->layout.all - 1 - i, hooks = u < z->layout.units;
        if (hooks)
            ZP_TRY(gives ? zp_hook_forward_begin(z, u, NULL)
                         : zp_hook_backward_begin(z, u, NULL, NULL));
        ZP_EACH_SEGMENT(&z->layout, u, s)
        if (gives || s == u) ZP_TRY(zp_lend_segment(z, side, s, host)); /* no frozen gradients */
        if (hooks) ZP_TRY(gives ? zp_hook_forward_end(z, u) : zp_hook_backward_end(z, u));
    }
    return ZERO_OK;
}

static zero_result zp_lend_give_all(zero_ctx *z, const void *params) {
    ZP_TRY(zp_extra_call(z, ZP_ON_FINISH_UPDATE));
    ZP_TRY(zp_hook_pass_begin(z, ZERO_EVAL, 0, 1));
    ZP_TRY(zp_lend_units(z, ZP_PARAM, params));
    return zp_hook_pass_end(z);
}

static zero_result zp_lend_step(zero_ctx *z, void *params, void *grads, const zero_hyper *hyper,
                                double loss, double *mean) {
    (void)zero_loss_scale(z); /* the copy of gradients applies it */
    ZP_TRY(zp_lend_check(z, params));
    ZP_TRY(zero_train_begin(z));
    ZP_TRY(zp_lend_units(z, ZP_GRAD, grads));
    ZP_TRY(zero_train_end(z, hyper, loss, mean));
    return z->phase == ZP_IDLE ? zp_lend_give_all(z, params) : ZERO_OK;
}

static const char *const zp_lend_no_pass =
    "the arrays are yours: the weights are in them, and zero_lend_train is the step";

static zero_result zp_lend_read(zero_ctx *z, void *params) {
    ZP_ENTER(z, "zero_lend_read", ZP_IDLE, "weights are given back between steps");
    ZP_UNTIMELY(z, !z->pointers_stay, "no arrays are lent; call zero_lend first");
    const void *const host[2] = {NULL, params};
    ZP_TRY(zp_adopt_check(z, host, 0, z->arrays_type, NULL));
    z->no_pass = NULL;
    const zero_result r = zp_lend_give_all(z, params);
    z->no_pass = zp_lend_no_pass;
    return r;
}

zero_result zero_lend_read(zero_ctx *z, void *params) {
    ZP_RUN_AS(z, "zero_lend_read", zp_lend_read(z, params));
}

static zero_result zp_lend_run(zero_ctx *z, void *params, zero_type type) {
    ZP_ENTER(z, "zero_lend", ZP_NEW, "it replaces zero_build");
    ZP_REFUSE(z, (int)type < 0 || (type >= ZERO_TYPES && type != ZERO_F64),
              "type is %d; use a ZERO_ type", (int)type);
    z->pointers_stay = 1;
    z->no_pass = zp_lend_no_pass;
    z->arrays_type = type;
    ZP_TRY(zero_build(z));
    ZP_TRY(zp_adopt_all(z, params, NULL, type, NULL));
    z->bound = 1;
    return zp_lend_read(z, params);
}

zero_result zero_lend(zero_ctx *z, void *params, zero_type type) {
    ZP_RUN_AS(z, "zero_lend", zp_lend_run(z, params, type));
}

static zero_result zp_lend_train(zero_ctx *z, void *params, void *grads, const zero_hyper *hyper,
                                 double loss, double *mean) {
    const void *const host[2] = {grads, params};
    ZP_ENTER(z, "zero_lend_train", ZP_IDLE | ZP_BETWEEN,
             z->pointers_stay ? "the step before has not ended"
                              : "no arrays are lent; call zero_lend first");
    ZP_UNTIMELY(z, !z->pointers_stay, "no arrays are lent; call zero_lend first");
    const int micro = z->phase == ZP_BETWEEN ? z->micro + 1 : 0;
    if (micro + 1 == z->cfg.micro_steps) ZP_TRY(zp_life_check_hyper(z, hyper));
    ZP_TRY(zp_adopt_check(z, host, 1, z->arrays_type, NULL));
    z->no_pass = NULL;
    const zero_result r = zp_lend_step(z, params, grads, hyper, loss, mean);
    z->no_pass = zp_lend_no_pass;
    return r;
}

zero_result zero_lend_train(zero_ctx *z, void *params, void *grads, const zero_hyper *hyper,
                            double loss, double *mean) {
    ZP_RUN_AS(z, "zero_lend_train", zp_lend_train(z, params, grads, hyper, loss, mean));
}

/* tensors.h - functions of the header: announces and describes tensors */
#pragma once

#include "life.h"

/* Checks each field of a description alone, and resolves the defaults. */
static zero_result zp_tensor_resolve(zero_ctx *z, zp_tensor *t) {
    zero_tensor_desc *d = &t->desc;
    ZP_TRY(zp_extra_refuse_missing(z, zp_table_missing_fields, d));
    ZP_TRY(zp_extra_resolve_fields(z, zp_fields, d));
    ZP_EACH_EXTRA(z, x) ZP_TRY(zp_extra_resolve_fields(z, x->fields, d));
    if (!d->lr_factor) d->lr_factor = 1;
    if (!d->decay_factor) d->decay_factor = 1;
    t->lr_factor = d->lr_factor < 0 ? 0 : d->lr_factor;
    t->decay_factor = d->decay_factor < 0 ? 0 : d->decay_factor;
    return ZERO_OK;
}

/* Checks the number of elements, and the numbers of units. */
static zero_result zp_tensor_check_range(zero_ctx *z, const zero_tensor_desc *d) {
    const size_t most = (((size_t)1 << 48) - z->layout.numel) / (size_t)d->layers;
    ZP_REFUSE(z, d->numel - 1 >= most, "tensor %s: numel is %zu, expected 1..%zu (2^48 in all)",
              d->name, d->numel, most);
    ZP_REFUSE(z, (d->layers - 1) / d->together > (ZP_UNITS - d->unit) / d->every,
              "tensor %s: its units go above %d; lower .unit or .every, or raise .together",
              d->name, ZP_UNITS);
    return ZERO_OK;
}

static int zp_tensor_is_factor(float f) { return f == ZERO_NONE || zp_type_not_below(f); }

/* Checks that backward may overwrite a gradient. The stage can decide this. */
static zero_result zp_tensor_check_overwritten(zero_ctx *z, const zero_tensor_desc *d) {
    ZP_REFUSE(
        z,
        (d->flags & ZERO_OVERWRITTEN) && z->cfg.micro_steps > 1
            && z->array[ZP_GRAD].type == ZERO_F32 && z->cfg.accumulation == ZERO_ACCUMULATE_LOCAL,
        "tensor %s is OVERWRITTEN, but %d micro-steps accumulate in place; add (+=) in backward",
        d->name, z->cfg.micro_steps);
    return ZERO_OK;
}

/* Checks all fields of a resolved description. */
static zero_result zp_tensor_check(zero_ctx *z, const zero_tensor_desc *d) {
    ZP_REFUSE(z, !d->name[0], "name is empty; give each tensor a name");
    ZP_REFUSE(z, zp_bind_find_tensor(z, d->name), "tensor %s was announced; rename one", d->name);
    ZP_TRY(zp_tensor_check_range(z, d));
    ZP_REFUSE(z, d->flags & ~(2 * ZERO_F32_STATE - 1),
              "tensor %s: flags %d has unknown bits; use those of the header", d->name, d->flags);
    ZP_REFUSE(z, d->flags & ZERO_INLINE && d->flags & ZERO_BY_SLOT && !d->param && !d->grad,
              "tensor %s is both INLINE and BY_SLOT; leave one of the two flags out", d->name);
    ZP_REFUSE(z, d->flags & ZERO_INLINE && (d->param || d->grad) && d->layers > 1,
              "tensor %s: param and grad of one layer, not of %d; add rows", d->name, d->layers);
    ZP_TRY(zp_tensor_check_overwritten(z, d));
    const int alike = d->flags & ZERO_KEEP ? d->layers : d->together; /* of each so many layers */
    for (int l = 0; l < d->layers && d->frozen; l++)
        ZP_REFUSE(z, !d->frozen[l] != !d->frozen[l / alike * alike],
                  "tensor %s: layer %d is %s, but others of its unit are not; freeze whole units",
                  d->name, l, d->frozen[l] ? "frozen" : "trained");
    ZP_REFUSE(z, !zp_tensor_is_factor(d->lr_factor) || !zp_tensor_is_factor(d->decay_factor),
              "tensor %s: lr_factor %g, decay_factor %g, expected 0 or more, or ZERO_NONE", d->name,
              (double)d->lr_factor, (double)d->decay_factor);
    return ZERO_OK;
}

/* Adds a checked tensor to the list. */
static zero_result zp_tensor_add(zero_ctx *z, zp_tensor *t) {
    const char *of = t->desc.name;
    void *list = zp_list_grow(z->tensors, z->ntensors, &z->tensors_cap, sizeof *z->tensors);
    if (list) z->tensors = (zp_tensor *)list;
    char *frozen = list && t->desc.frozen ? (char *)malloc((size_t)t->desc.layers) : NULL;
    if (frozen) memcpy(frozen, t->desc.frozen, (size_t)t->desc.layers);
    t->desc.name = list && !frozen == !t->desc.frozen ? strdup(of) : NULL;
    t->desc.frozen = frozen;
    if (t->desc.name) z->tensors[z->ntensors] = *t;
    z->layout.numel += t->desc.numel * (size_t)t->desc.layers; /* as zp_layout_open counts them */
    if (t->desc.name && !zp_bind_add_tensor(z)) return ZERO_OK;
    free((void *)(uintptr_t)t->desc.name);
    free(frozen);
    return zp_ctx_fail(z, ZERO_ERR_MEMORY, "the names of %d tensors", z->ntensors + 1);
}

zero_result zero_tensor(zero_ctx *z, const zero_tensor_desc *d) {
    ZP_ENTER(z, "zero_tensor", ZP_NEW, "tensors are announced before zero_build");
    ZP_REFUSE(z, !d, "desc is NULL");
    char number[16];
    (void)snprintf(number, sizeof number, "%d", z->ntensors);
    zp_tensor t;
    memset(&t, 0, sizeof t);
    t.desc = *d;
    if (!d->name) t.desc.name = number;
    if (d->same_as && z->places) return z->places->add_same(z, &t.desc);
    ZP_TRY(zp_tensor_resolve(z, &t));
    ZP_TRY(zp_tensor_check(z, &t.desc));
    ZP_EACH_EXTRA(z, x) if (x->tensor) ZP_TRY(x->tensor(z, &t));
    return zp_tensor_add(z, &t);
}

static zero_result zp_tensor_announce(zero_ctx *z, const zero_tensor_desc *desc, int n) {
    ZP_ENTER(z, "zero_tensors", ZP_NEW, "tensors are announced before zero_build");
    ZP_REFUSE(z, n < 0 || (!desc && n), "n is %d, desc %p; pass a table", n, (const void *)desc);
    for (int i = 0; i < n; i++) ZP_TRY(zero_tensor(z, &desc[i]));
    return ZERO_OK;
}

zero_result zero_tensors(zero_ctx *z, const zero_tensor_desc *desc, int n) {
    ZP_RUN_AS(z, "zero_tensors", zp_tensor_announce(z, desc, n));
}

int zero_tensor_count(const zero_ctx *z) { return z ? z->ntensors : 0; }

zero_result zero_query_tensor(zero_ctx *z, int i, zero_tensor_desc *desc) {
    ZP_ENTER(z, "zero_query_tensor", ZP_ANY, "");
    ZP_REFUSE(z, !desc, "desc is NULL");
    ZP_TRY(zp_ctx_check_index(z, "tensor", i, z->ntensors));
    *desc = z->tensors[i].desc;
    return ZERO_OK;
}

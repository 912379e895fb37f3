/* tensors.h - the functions of the header: tensors are announced, and what is told of them */
#pragma once

#include "life.h"

zero_result zero_tensor(zero_ctx *z, const zero_tensor_desc *d) {
    ZP_ENTER(z, "zero_tensor", ZP_NEW, "tensors are announced before zero_build");
    ZP_REFUSE(z, !d, "desc is NULL");
    char number[16];
    (void)snprintf(number, sizeof number, "%d", z->ntensors);
    zp_tensor t = {*d, 0, 1, 1, 0, 1, 1, 0, 0, 0, NULL, NULL, 1, 1, 0, 0, {0, 0}};
    if (!d->name) t.desc.name = number;
    d = &t.desc;
    ZP_REFUSE(z, !d->name[0], "a tensor needs a name");
    ZP_REFUSE(z, zp_bind_find_tensor(z, d->name), "tensor %s was announced before", d->name);
    const struct {
        const char *name;
        int value, most;
    } field[] = {
        {"layers", d->layers, ZP_UNITS}, {"unit", d->unit, ZP_UNITS}, {"uses", d->uses, INT_MAX}};
    for (int i = 0; i < 3; i++)
        ZP_REFUSE(z, field[i].value < 0 || field[i].value > field[i].most,
                  "tensor %s: %s %d, expected 0..%d", d->name, field[i].name, field[i].value,
                  field[i].most);
    const size_t most = ((size_t)1 << 48) / (size_t)(d->layers ? d->layers : 1);
    ZP_REFUSE(z, d->numel < 1 || d->numel > most, "tensor %s: numel is %zu, expected 1..%zu",
              d->name, d->numel, most);
    ZP_REFUSE(z, d->flags & ZERO_COPY && !z->cfg.world, "tensor %s is COPY: of what world?",
              d->name);
    ZP_REFUSE(z, d->flags & ~(2 * ZERO_LATE - 1), "tensor %s: flags %d, unknown bits", d->name,
              d->flags);
    ZP_REFUSE(z, (d->flags & ZERO_INLINE) && (d->flags & ZERO_BY_SLOT),
              "tensor %s is INLINE, an array in the host's struct, and BY_SLOT", d->name);
    ZP_REFUSE(
        z,
        (d->flags & ZERO_OVERWRITTEN) && z->cfg.micro_steps > 1
            && z->array[ZP_GRAD].type == ZERO_F32 && z->cfg.accumulation == ZERO_ACCUMULATE_LOCAL,
        "tensor %s is OVERWRITTEN, but %d micro-steps accumulate in place (accumulation LOCAL)",
        d->name, z->cfg.micro_steps);
    zp_tensor *list =
        (zp_tensor *)zp_list_grow(z->tensors, z->ntensors, &z->tensors_cap, sizeof *list);
    if (list) z->tensors = list;
    char *name = list ? strdup(d->name) : NULL;
    if (!name) return zp_ctx_fail(z, ZERO_ERR_MEMORY, "the name of tensor %s", d->name);
    t.desc.name = name;
    if (!t.desc.layers) t.desc.layers = 1;
    if (!t.desc.uses) t.desc.uses = 1;
    z->tensors[z->ntensors] = t;
    if (!zp_bind_reserve_index(z)) return ZERO_OK;
    free(name);
    return zp_ctx_fail(z, ZERO_ERR_MEMORY, "the names of %d tensors", z->ntensors + 1);
}

int zero_tensor_count(const zero_ctx *z) { return z ? z->ntensors : 0; }

zero_result zero_query_tensor(zero_ctx *z, int i, zero_tensor_desc *desc) {
    ZP_ENTER(z, "zero_query_tensor", ZP_ANY, "");
    ZP_REFUSE(z, !desc, "desc is NULL");
    ZP_REFUSE(z, i < 0 || i >= z->ntensors, "tensor %d of %d", i, z->ntensors);
    *desc = z->tensors[i].desc;
    return ZERO_OK;
}

zero_result zero_tensor_together(zero_ctx *z, const char *name, int together) {
    ZP_ENTER(z, "zero_tensor_together", ZP_NEW, "units are cut before zero_build");
    zp_tensor *t;
    ZP_TRY(zp_bind_named_tensor(z, name, &t));
    ZP_REFUSE(z, together < 1 || together > ZP_UNITS,
              "tensor %s: %d layers in a unit, expected 1..%d", name, together, ZP_UNITS);
    t->together = together;
    return ZERO_OK;
}

zero_result zero_tensor_every(zero_ctx *z, const char *name, int every) {
    ZP_ENTER(z, "zero_tensor_every", ZP_NEW, "units are cut before zero_build");
    zp_tensor *t;
    ZP_TRY(zp_bind_named_tensor(z, name, &t));
    const int last = (t->desc.layers - 1) / t->together;
    ZP_REFUSE(z, every < 1 || every > ZP_UNITS || last > (ZP_UNITS - t->desc.unit) / every,
              "tensor %s: every %d units, expected 1..%d, and units up to that", name, every,
              ZP_UNITS);
    t->every = every;
    return ZERO_OK;
}

zero_result zero_tensor_group(zero_ctx *z, const char *name, float lr_factor, float decay_factor) {
    ZP_ENTER(z, "zero_tensor_group", ZP_NEW, "groups are made before zero_build");
    zp_tensor *t;
    ZP_TRY(zp_bind_named_tensor(z, name, &t));
    ZP_REFUSE(z, !zp_type_not_below(lr_factor) || !zp_type_not_below(decay_factor),
              "tensor %s: lr_factor %g, decay_factor %g, expected 0 or more", name,
              (double)lr_factor, (double)decay_factor);
    t->lr_factor = lr_factor;
    t->decay_factor = decay_factor;
    return ZERO_OK;
}

zero_result zero_tensor_divisor(zero_ctx *z, const char *name, int divisor) {
    ZP_ENTER(z, "zero_tensor_divisor", ZP_NEW, "divisors are said before zero_build");
    zp_tensor *t;
    ZP_TRY(zp_bind_named_tensor(z, name, &t));
    ZP_REFUSE(z, divisor < 0, "tensor %s: divisor %d, expected 1 or more, or 0: the context's",
              name, divisor);
    t->divisor = divisor;
    return ZERO_OK;
}

zero_result zero_tensor_matrix(zero_ctx *z, const char *name, size_t rows, size_t cols) {
    ZP_ENTER(z, "zero_tensor_matrix", ZP_NEW, "matrices are announced before zero_build");
    zp_tensor *t;
    ZP_TRY(zp_bind_named_tensor(z, name, &t));
    const size_t numel = t->desc.numel * (size_t)t->slices;
    const int whole = rows && cols && cols <= numel / rows && numel % (rows * cols) == 0;
    const int fits = whole && (t->slices == 1 || rows * cols == numel);
    ZP_REFUSE(
        z, (rows || cols) && !fits,
        "tensor %s: matrices of %zu x %zu, expected sides whose product %s %zu elements, or 0 "
        "x 0",
        name, rows, cols, t->slices > 1 ? "is that of a layer of all slices," : "divides its",
        numel);
    const int wanted = fits && z->rule->needs & ZP_MATRICES;
    t->rows = wanted ? rows : 0; /* other rules know of none */
    t->cols = wanted ? cols : 0;
    return ZERO_OK;
}

zero_result zero_tensor_sum(zero_ctx *z, const char *name, zero_group *over) {
    ZP_ENTER(z, "zero_tensor_sum", ZP_NEW, "groups are named before zero_build");
    zp_tensor *t;
    ZP_TRY(zp_bind_named_tensor(z, name, &t));
    ZP_REFUSE(z, !over, "tensor %s: the group is NULL", name);
    t->sum_group = over;
    return ZERO_OK;
}

zero_result zero_tensor_slice(zero_ctx *z, const char *name, zero_group *over, size_t outer) {
    ZP_ENTER(z, "zero_tensor_slice", ZP_NEW, "slices are announced before zero_build");
    zp_tensor *t;
    ZP_TRY(zp_bind_named_tensor(z, name, &t));
    ZP_REFUSE(z, !over, "tensor %s: the group is NULL", name);
    ZP_REFUSE(z, t->rows, "tensor %s: zero_tensor_slice comes before zero_tensor_matrix", name);
    ZP_REFUSE(z, !outer || t->desc.numel % outer,
              "tensor %s: a part of each of %zu rows, which do not divide its %zu elements", name,
              outer, t->desc.numel);
    const zp_tensor *other = z->sliced ? &z->tensors[z->sliced - 1] : NULL;
    ZP_REFUSE(z, other && other->slice_group != over,
              "tensor %s is a slice over another group than tensor %s", name, other->desc.name);
    t->slices = zero_group_size(over);
    t->outer = outer;
    if (!z->rule->needs || t->slices == 1) return ZERO_OK; /* other rules know of none */
    t->slice_group = over;
    if (!other) z->sliced = (int)(t - z->tensors) + 1;
    return ZERO_OK;
}

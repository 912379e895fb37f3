/* tensors.h - functions of the header: announces and describes tensors */
#pragma once

#include "life.h"

/* Checks the fields of a description with values in 0..most. */
static zero_result zp_tensor_check_range(zero_ctx *z, const zero_tensor_desc *d) {
    const struct {
        const char *name;
        int value, most;
    } field[] = {{"layers", d->layers, ZP_UNITS}, {"unit", d->unit, ZP_UNITS},
                 {"uses", d->uses, INT_MAX},      {"together", d->together, ZP_UNITS},
                 {"every", d->every, ZP_UNITS},   {"divisor", d->divisor, INT_MAX}};
    for (int i = 0; i < 6; i++)
        ZP_REFUSE(z, field[i].value < 0 || field[i].value > field[i].most,
                  "tensor %s: %s %d, expected 0..%d", d->name, field[i].name, field[i].value,
                  field[i].most);
    const size_t most = ((size_t)1 << 48) / (size_t)(d->layers ? d->layers : 1);
    ZP_REFUSE(z, d->numel < 1 || d->numel > most, "tensor %s: numel is %zu, expected 1..%zu",
              d->name, d->numel, most);
    const int together = d->together ? d->together : 1, every = d->every ? d->every : 1;
    const int last = ((d->layers ? d->layers : 1) - 1) / together;
    ZP_REFUSE(z, last > (ZP_UNITS - d->unit) / every,
              "tensor %s: a unit in every %d, and units up to %d only", d->name, every, ZP_UNITS);
    return ZERO_OK;
}

static int zp_tensor_is_factor(float f) { return f == ZERO_NONE || zp_type_not_below(f); }

/* Checks all fields of a named description. */
static zero_result zp_tensor_check(zero_ctx *z, const zero_tensor_desc *d) {
    ZP_REFUSE(z, !d->name[0], "a tensor needs a name");
    ZP_REFUSE(z, zp_bind_find_tensor(z, d->name), "tensor %s was announced before", d->name);
    ZP_TRY(zp_tensor_check_range(z, d));
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
    ZP_REFUSE(z, !zp_tensor_is_factor(d->lr_factor) || !zp_tensor_is_factor(d->decay_factor),
              "tensor %s: lr_factor %g, decay_factor %g, expected 0 or more, or ZERO_NONE", d->name,
              (double)d->lr_factor, (double)d->decay_factor);
    return ZERO_OK;
}

/* Resolves the defaults of a checked description. */
static void zp_tensor_resolve(zp_tensor *t) {
    zero_tensor_desc *d = &t->desc;
    if (!d->layers) d->layers = 1;
    if (!d->uses) d->uses = 1;
    if (!d->together) d->together = 1;
    if (!d->every) d->every = 1;
    if (!d->lr_factor) d->lr_factor = 1;
    if (!d->decay_factor) d->decay_factor = 1;
    t->lr_factor = d->lr_factor < 0 ? 0 : d->lr_factor;
    t->decay_factor = d->decay_factor < 0 ? 0 : d->decay_factor;
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
    ZP_TRY(zp_tensor_check(z, &t.desc));
    ZP_TRY(zp_extra_tensor(z, &t));
    zp_tensor *list =
        (zp_tensor *)zp_list_grow(z->tensors, z->ntensors, &z->tensors_cap, sizeof *list);
    if (list) z->tensors = list;
    char *name = list ? strdup(t.desc.name) : NULL;
    if (!name) return zp_ctx_fail(z, ZERO_ERR_MEMORY, "the name of tensor %s", t.desc.name);
    t.desc.name = name;
    zp_tensor_resolve(&t);
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

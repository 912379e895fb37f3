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
    const size_t most = ((size_t)1 << 48) / (size_t)d->layers;
    ZP_REFUSE(z, d->numel < 1 || d->numel > most, "tensor %s: numel is %zu, expected 1..%zu",
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

/* Adds the pointers of a row to tensor t: a slot for each layer. */
static zero_result zp_tensor_add_slots(zero_ctx *z, int t, const zero_tensor_desc *d, int layers) {
    char *const from[2] = {(char *)d->grad, (char *)d->param};
    const size_t stride = d->stride ? d->stride : sizeof(void *);
    for (int l = 0; l < layers && (d->param || d->grad); l++) {
        zp_slot *list = (zp_slot *)zp_list_grow(z->slots, z->nslots, &z->slots_cap, sizeof *list);
        if (!list) return zp_ctx_fail(z, ZERO_ERR_MEMORY, "the pointers of %s", d->name);
        z->slots = list;
        zp_slot *slot = &z->slots[z->nslots++];
        memset(slot, 0, sizeof *slot);
        slot->tensor = t;
        slot->layer = l;
        for (int side = 0; side < 2; side++) {
            if (!from[side]) continue;
            slot->place[side] = (void **)(void *)(from[side] + (size_t)l * stride);
            if (!(d->flags & ZERO_INLINE))
                memcpy(&slot->was[side], slot->place[side], sizeof slot->was[side]);
        }
    }
    return ZERO_OK;
}

/* Adds a row that is the same as an earlier one: another pointer to its tensor. */
static zero_result zp_tensor_add_alias(zero_ctx *z, const zero_tensor_desc *d) {
    zp_tensor *t;
    ZP_TRY(zp_bind_named_tensor(z, d->same_as, &t));
    const zero_tensor_desc *of = &t->desc;
    ZP_REFUSE(z, d->numel != of->numel || (d->layers ? d->layers : 1) != of->layers,
              "tensor %s has %zu elements in %d layers, but %s, its same_as, has %zu in %d; use "
              "its sizes",
              d->name, d->numel, d->layers, of->name, of->numel, of->layers);
    ZP_REFUSE(
        z, d->unit || d->uses || d->together || d->every || d->frozen || d->flags & ~ZERO_BY_SLOT,
        "tensor %s: set unit, uses, flags and the like in the row of %s", d->name, of->name);
    if (d->param || d->grad) return zp_tensor_add_slots(z, (int)(t - z->tensors), d, of->layers);
    ZP_REFUSE(z, of->flags & ZERO_BY_SLOT, "tensor %s: %s has no field; set .param or .grad",
              d->name, of->name);
    const int other = *zp_bind_place_of_field(z, d->field);
    ZP_REFUSE(z, other, "tensor %s: offset %zu is the field of tensor %s; use another", d->name,
              d->field, z->tensors[other - 1].desc.name);
    zp_alias *list =
        (zp_alias *)zp_list_grow(z->aliases, z->naliases, &z->aliases_cap, sizeof *list);
    if (!list) return zp_ctx_fail(z, ZERO_ERR_MEMORY, "tensor %s", d->name);
    const zp_alias alias = {(int)(t - z->tensors), t->aliases, d->field};
    z->aliases = list;
    z->aliases[z->naliases++] = alias;
    t->aliases = z->naliases;
    return ZERO_OK;
}

/* Adds a checked tensor to the list, after its slots. */
static zero_result zp_tensor_add(zero_ctx *z, zp_tensor *t) {
    const char *of = t->desc.name;
    zp_tensor *list =
        (zp_tensor *)zp_list_grow(z->tensors, z->ntensors, &z->tensors_cap, sizeof *list);
    if (list) z->tensors = list;
    char *frozen = list && t->desc.frozen ? (char *)malloc((size_t)t->desc.layers) : NULL;
    if (frozen) memcpy(frozen, t->desc.frozen, (size_t)t->desc.layers);
    t->desc.name = list && !frozen == !t->desc.frozen ? strdup(of) : NULL;
    t->desc.frozen = frozen;
    if (t->desc.name) z->tensors[z->ntensors] = *t;
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
    if (d->same_as) return zp_tensor_add_alias(z, &t.desc);
    ZP_TRY(zp_tensor_resolve(z, &t));
    ZP_TRY(zp_tensor_check(z, &t.desc));
    ZP_EACH_EXTRA(z, x) if (x->tensor) ZP_TRY(x->tensor(z, &t));
    if (d->param || d->grad) t.desc.flags |= ZERO_BY_SLOT;
    const int slots = z->nslots;
    zero_result r = zp_tensor_add_slots(z, z->ntensors, &t.desc, t.desc.layers);
    if (!r) r = zp_tensor_add(z, &t);
    if (r) z->nslots = slots;
    return r;
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

/* Returns the unit of the next small array: the last unit, until it has enough elements. */
static int zp_tensor_shared_unit(zero_ctx *z) {
    enum { ENOUGH = 1 << 16 };
    zp_last_unit *l = &z->last_unit;
    for (; l->seen < z->ntensors; l->seen++) {
        const zero_tensor_desc *d = &z->tensors[l->seen].desc;
        const int units = d->unit + d->layers;
        if (units > l->units) l->has = 0;
        if (units >= l->units) l->has += d->numel;
        if (units > l->units) l->units = units;
    }
    return l->units && l->has < ENOUGH ? l->units - 1 : l->units;
}

static zero_result zp_tensor_place(zero_ctx *z, const zero_tensor_desc *row) {
    ZP_ENTER(z, "zero_place", ZP_NEW, "tensors are announced before zero_build and zero_lend");
    ZP_REFUSE(z, !row, "row is NULL");
    zero_tensor_desc one = *row;
    char name[128];
    zp_tensor *same = zp_bind_find_tensor(z, one.name);
    if (same) { /* a row in a loop has the same name */
        (void)snprintf(name, sizeof name, "%.100s %d", one.name, ++same->namesakes);
        one.name = name;
    }
    if (!one.unit && one.flags == ZERO_INLINE) one.unit = zp_tensor_shared_unit(z);
    if (!one.unit && !one.flags && !one.same_as) one.flags = ZERO_KEEP;
    const zero_result r = zero_tensor(z, &one);
    if (r && !z->row[0]) memcpy(z->row, z->text, sizeof z->row);
    return r;
}

zero_result zero_place(zero_ctx *z, const zero_tensor_desc *row) {
    ZP_RUN_AS(z, "zero_place", zp_tensor_place(z, row));
}

int zero_tensor_count(const zero_ctx *z) { return z ? z->ntensors : 0; }

zero_result zero_query_tensor(zero_ctx *z, int i, zero_tensor_desc *desc) {
    ZP_ENTER(z, "zero_query_tensor", ZP_ANY, "");
    ZP_REFUSE(z, !desc, "desc is NULL");
    ZP_TRY(zp_ctx_check_index(z, "tensor", i, z->ntensors));
    *desc = z->tensors[i].desc;
    return ZERO_OK;
}

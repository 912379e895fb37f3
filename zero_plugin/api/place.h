/* place.h - a function of the header: announces a tensor whose pointers are scattered */
#pragma once

#include "tensors.h"
#include "../extras/places.h"

/* Returns the unit of the next small array: the last unit, until it has enough elements. */
static int zp_place_shared_unit(zero_ctx *z) {
    enum { ENOUGH = 1 << 16 };
    zp_last_unit *l = &z->placed->last_unit;
    for (; l->seen < z->ntensors; l->seen++) {
        const zero_tensor_desc *d = &z->tensors[l->seen].desc;
        const int units = d->unit + d->layers;
        if (units > l->units) l->has = 0;
        if (units >= l->units) l->has += d->numel;
        if (units > l->units) l->units = units;
    }
    return l->units && l->has < ENOUGH ? l->units - 1 : l->units;
}

static zero_result zp_place_row(zero_ctx *z, const zero_tensor_desc *row) {
    ZP_ENTER(z, "zero_place", ZP_NEW, "tensors are announced before zero_build and zero_lend");
    ZP_REFUSE(z, !row, "row is NULL");
    zero_tensor_desc one = *row;
    char name[128];
    zp_tensor *same = zp_bind_find_tensor(z, one.name);
    if (same) { /* a row in a loop has the same name */
        (void)snprintf(name, sizeof name, "%.100s %d", one.name, ++same->namesakes);
        one.name = name;
    }
    if (!one.unit && one.flags == ZERO_INLINE) one.unit = zp_place_shared_unit(z);
    if (!one.unit && !one.flags && !one.same_as) one.flags = ZERO_KEEP;
    const zero_result r = zero_tensor(z, &one);
    if (r && !z->row[0]) memcpy(z->row, z->text, sizeof z->row);
    return r;
}

zero_result zero_place(zero_ctx *z, const zero_tensor_desc *row) {
    ZP_RUN_AS(z, "zero_place", zp_place_row(z, row));
}

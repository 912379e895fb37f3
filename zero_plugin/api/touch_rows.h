/* touch_rows.h - function of the header: announces the rows of a gradient that backward touches */
#pragma once

#include "life.h"

/* Checks that all rows exist, and that their gradients are not complete. */
static zero_result zp_touch_rows_check(zero_ctx *z, const zp_tensor *t, const int *rows, int n) {
    const zero_tensor_desc *d = &t->desc;
    const size_t all = d->numel / zp_max(d->row_numel, 1) * (size_t)d->layers;
    ZP_REFUSE(z, !d->row_numel, "tensor %s has no rows; set its row_numel", d->name);
    ZP_REFUSE(z, n < 0 || (n && !rows), "tensor %s: n is %d, expected 0 or more, and rows an array",
              d->name, n);
    for (int i = 0; i < n; i++)
        ZP_REFUSE(z, rows[i] < 0 || (size_t)rows[i] >= all,
                  "tensor %s: rows[%d] is %d, expected 0..%zu", d->name, i, rows[i], all - 1);
    for (int l = 0; l < d->layers && z->phase == ZP_IN_PASS && z->pass == ZERO_TRAIN; l++) {
        const int u = zp_layout_segment_of(&z->layout, t, l);
        ZP_UNTIMELY(z, u < z->layout.all && zp_reduce_unit_is_written(z, u),
                    "tensor %s: the gradient of unit %d is complete in this micro-step; announce "
                    "its rows earlier",
                    d->name, u);
    }
    return ZERO_OK;
}

zero_result zero_touch_rows(zero_ctx *z, const char *tensor, const int *rows, int n) {
    ZP_ENTER(z, "zero_touch_rows", ZP_IDLE | ZP_IN_PASS | ZP_BETWEEN,
             "rows are announced after zero_build, before backward ends, not after zero_reduce");
    zp_tensor *t;
    ZP_TRY(zp_bind_named_tensor(z, tensor, &t));
    ZP_TRY(zp_touch_rows_check(z, t, rows, n));
    const zero_tensor_desc *d = &t->desc;
    const int step = zp_layout_layers_per_member(t);
    for (int l = 0; l < d->layers; l += step)
        z->rows->known[z->layout.by_tensor[zp_layout_member_of(t, l)] - z->layout.members] = 1;
    for (int i = 0; i < n; i++) {
        const size_t first = (size_t)rows[i] * d->row_numel;
        const zp_member *m = z->layout.by_tensor[zp_layout_member_of(t, (int)(first / d->numel))];
        const int marks = m->unit < z->layout.all && z->rows->unit[m->unit].block;
        if (marks)
            zp_rows_mark(z, m->unit, z->rows->unit[m->unit].pending, m->at + first - m->first,
                         d->row_numel);
    }
    return ZERO_OK;
}

/* ranges.h - the lists of ranges of a rank's state, to save and to load */
#pragma once

#include "ctx.h"

/* Appends a range to the list `whole` (see zero_state_ranges). */
static zero_result zp_range_add(zero_ctx *z, int whole, const zero_range *range) {
    int *n = &z->nranges[whole];
    void *list = zp_list_grow(z->ranges[whole], *n, &z->ranges_cap[whole], sizeof *range);
    if (!list) return zp_ctx_fail(z, ZERO_ERR_MEMORY, "%d ranges of the state", *n + 1);
    z->ranges[whole] = (zero_range *)list;
    z->ranges[whole][(*n)++] = *range;
    return ZERO_OK;
}

/* observe_layout.c - see observe_layout.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "observe_layout.h"

zero_result observe_layout(observer *s, zero_ctx *z, const layout *l) {
    static const char *const names[] = {"tp", "pp", "ep", "world", "cp", "heads", "ring"};
    const gpt2_parallel *p = &l->part; /* a pipeline and a ring have a thread for messages */
    zero_group *ring = p->ring == p->cp ? NULL : p->ring;
    zero_group *const all[] = {p->tp, l->stage.pp, p->ep, l->world, p->cp, p->heads, ring};
    for (int i = 0; i < 7; i++) {
        const int beside = all[i] == l->stage.pp || all[i] == p->ring;
        const zero_result result = observe_group(s, z, all[i], i, beside, names[i]);
        if (result != ZERO_OK) return result;
    }
    return ZERO_OK;
}

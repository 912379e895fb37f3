/* pointers.h - what the host reads and writes a unit's tensors by */
#pragma once

#include "check.h"

/* Where the host finds a member whose unit lies in `memory`. */
static char *zp_member_memory(const zero_ctx *z, zp_side side, const zp_member *m, char *memory) {
    const zp_shadow *shadow = zp_checks_shadow(z, side, m);
    return shadow ? shadow->data : memory + m->at * zp_bytes(z->array[side].type);
}

/* Writes the pointers of one unit's tensors: fields of the host's struct, if there is one, then
   slots. Memory NULL: they become NULL. */
static void zp_point(zero_ctx *z, zp_side side, int u, char *memory, void *host) {
    const zp_unit *x = &z->layout.unit[u];
    const size_t of = zp_bytes(z->array[side].type);
    if (z->lent) return;
    for (int i = 0; i < x->members && host; i++) {
        const zp_member *m = &x->member[i];
        const zero_tensor_desc *d = &z->tensors[m->tensor].desc;
        const uintptr_t at = memory ? (uintptr_t)zp_member_memory(z, side, m, memory) : 0;
        const uintptr_t to = memory ? at - m->first * of : 0;
        if (!(d->flags & ZERO_BY_SLOT)) memcpy((char *)host + d->field, &to, sizeof to);
        for (int k = 0; k < z->naliases; k++)
            if (z->aliases[k].tensor == m->tensor)
                memcpy((char *)host + z->aliases[k].field, &to, sizeof to);
    }
    for (int i = 0; i < z->nslots; i++) {
        const zp_slot *s = &z->slots[i];
        const zp_member *m = s->member;
        if (!s->place[side] || m->unit != u) continue;
        char *to = memory ? zp_member_memory(z, side, m, memory) : NULL;
        if (to) to += (size_t)(s->layer - m->layer) * z->tensors[m->tensor].desc.numel * of;
        memcpy(s->place[side], &to, sizeof to); /* as bytes: it may be any pointer to data */
    }
}

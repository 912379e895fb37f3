/* pointers.h - writes the pointers that your code uses for a unit's tensors */
#pragma once

#include "bind.h"
#include "observe.h"

/* Returns the address that your code uses for a member whose unit is in `memory`. */
static char *zp_pointer_of_member(const zero_ctx *z, zp_side side, const zp_member *m,
                                  char *memory) {
    char *place = z->observer ? z->observer->place(z, side, m) : NULL;
    return place ? place : memory + m->at * zp_type_bytes(z->array[side].type);
}

/* Writes the pointer that your code has bound to a layer; NULL if `memory` is NULL. */
static void zp_pointer_set_slot(zero_ctx *z, zp_side side, const zp_slot *s, char *memory) {
    const zp_member *m = s->member;
    const size_t layer = z->tensors[m->tensor].desc.numel * zp_type_bytes(z->array[side].type);
    if (!s->place[side] || z->pointers_stay) return;
    char *to = memory ? zp_pointer_of_member(z, side, m, memory) : NULL;
    if (to) to += (size_t)(s->layer - m->layer) * layer;
    memcpy(s->place[side], &to, sizeof to); /* as bytes: it may be any pointer to data */
}

/* Writes the pointers of one segment's tensors: first the fields of your struct, unless `host` is
   NULL, then the slots. */
static void zp_pointer_set_segment(zero_ctx *z, zp_side side, int u, char *memory, void *host) {
    const zp_unit *x = &z->layout.unit[u];
    const size_t of = zp_type_bytes(z->array[side].type);
    if (z->pointers_stay) return;
    for (int i = 0; i < x->members; i++) {
        const zp_member *m = &x->member[i];
        zp_tensor *t = &z->tensors[m->tensor];
        const uintptr_t at =
            memory && host ? (uintptr_t)zp_pointer_of_member(z, side, m, memory) : 0;
        const uintptr_t to = at ? at - m->first * of : 0;
        if (host) t->last_pointer[side] = to;
        if (host && !(t->desc.flags & ZERO_BY_SLOT))
            memcpy((char *)host + t->desc.field, &to, sizeof to);
        for (int k = t->aliases; k && host; k = z->aliases[k - 1].next)
            memcpy((char *)host + z->aliases[k - 1].field, &to, sizeof to);
        const int layers = z->nslots ? (int)(m->numel / t->desc.numel) : 0;
        for (int l = m->layer; l < m->layer + layers; l++)
            for (const zp_slot *s = zp_bind_next_slot(z, m->tensor, l, NULL); s;
                 s = zp_bind_next_slot(z, m->tensor, l, s))
                zp_pointer_set_slot(z, side, s, memory);
    }
}

/* Writes the pointers of unit u's tensors; NULL unless it is in memory. Frozen ones have no
   gradient. */
static void zp_pointer_set_unit(zero_ctx *z, zp_side side, int u, int in_memory, void *host) {
    ZP_EACH_SEGMENT(&z->layout, u, s) {
        char *memory = NULL;
        if (in_memory && side == ZP_PARAM) memory = zp_ctx_unit_pointer(z, s);
        if (in_memory && side == ZP_GRAD && s == u) memory = zp_ctx_unit_memory(z, ZP_GRAD, s);
        zp_pointer_set_segment(z, side, s, memory, host);
    }
}

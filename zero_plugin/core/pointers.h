/* pointers.h - writes the pointers that your code uses for a unit's tensors */
#pragma once

#include "bind.h"
#include "observe.h"

/* Returns the address that your code uses for a member whose unit is in `memory`. */
static char *zp_pointer_of_member(const zero_ctx *z, zp_side side, const zp_member *m,
                                  char *memory) {
    char *place = z->observer && z->observer->place ? z->observer->place(z, side, m) : NULL;
    return place ? place : memory + m->at * zp_type_bytes(z->array[side].type);
}

/* Writes the pointers of one segment's tensors: first the fields of your struct, unless `host` is
   NULL, then those at other places. */
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
        if (z->places) z->places->set(z, side, m, memory, host, to);
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

/* Sets a field of the caller to NULL, unless the caller has changed that pointer. */
static void zp_pointer_end_field(char *field, uintptr_t last_pointer) {
    static char *const none = NULL;
    if (!memcmp(field, &last_pointer, sizeof last_pointer)) memcpy(field, &none, sizeof none);
}

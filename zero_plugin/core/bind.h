/* bind.h - finds tensors by name and by field, through hash tables */
#pragma once

#include "ctx.h"

static uint64_t zp_bind_hash_name(const char *name) {
    uint64_t hash = ZP_HASH_EMPTY;
    for (const char *c = name; *c; c++) hash = zp_hash(hash, (unsigned char)*c);
    return hash;
}
/* Returns the place of a name in the index, used or free; then the place of a field. */
static int *zp_bind_place_of_name(const zero_ctx *z, const char *name) {
    for (size_t i = zp_bind_hash_name(name) >> 32;; i++) {
        int *at = &z->names[i & (z->index_room - 1)];
        if (!*at || !strcmp(z->tensors[*at - 1].desc.name, name)) return at;
    }
}
static int *zp_bind_place_of_field(const zero_ctx *z, size_t field) {
    for (size_t i = zp_hash(ZP_HASH_EMPTY, field) >> 32;; i++) {
        int *at = &z->names[z->index_room + (i & (z->index_room - 1))];
        if (!*at || z->tensors[*at - 1].desc.field == field) return at;
    }
}
static void zp_bind_index_tensor(zero_ctx *z, int t) {
    const zero_tensor_desc *d = &z->tensors[t].desc;
    *zp_bind_place_of_name(z, d->name) = t + 1;
    if (d->flags & ZERO_BY_SLOT) return;
    int *field = zp_bind_place_of_field(z, d->field);
    if (!*field) *field = t + 1;
}
/* Adds the tensor that follows the last one to the index, of which at most half is in use. */
static zero_result zp_bind_add_tensor(zero_ctx *z) {
    const size_t n = (size_t)z->ntensors + 1;
    if (2 * n > z->index_room) {
        const size_t room = zp_max(64, 2 * z->index_room);
        int *more = (int *)calloc(2 * room, sizeof *more);
        if (!more) return ZERO_ERR_MEMORY;
        free(z->names);
        z->names = more;
        z->index_room = room;
        for (int t = 0; t < z->ntensors; t++) zp_bind_index_tensor(z, t);
    }
    zp_bind_index_tensor(z, z->ntensors++);
    return ZERO_OK;
}
/* Returns the tensor with this name, or NULL. */
static zp_tensor *zp_bind_find_tensor(const zero_ctx *z, const char *name) {
    const int at = name && z->names ? *zp_bind_place_of_name(z, name) : 0;
    return at ? &z->tensors[at - 1] : NULL;
}
static zero_result zp_bind_named_tensor(zero_ctx *z, const char *name, zp_tensor **t) {
    *t = zp_bind_find_tensor(z, name);
    if (*t) return ZERO_OK;
    return zp_ctx_fail(z, ZERO_ERR_ARGUMENT, "no tensor is named %s; announce it first",
                       name ? name : "NULL");
}

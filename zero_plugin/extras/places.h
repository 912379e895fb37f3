/* places.h - pointers of your code to tensors that are no fields of its structs, and further fields

   A SLOT is a pointer at any place, to one layer of a tensor. An ALIAS is another field for the
   pointer of a tensor, for example of tied weights. */
#pragma once

#include "../core/extra.h"
#include "../core/pointers.h"

typedef struct zp_slot {
    int tensor, layer;
    const zp_member *member; /* the layer's member; NULL until zero_build */
    int next;                /* index of the layer's next slot; after the last the first */
    void **place[2];         /* by side: your code's pointer, which the plugin writes */
    char *was[2];            /* by side: its value at zero_tensor; NULL: none, or adopted */
} zp_slot;

typedef struct zp_alias { /* a further field for a tensor's pointer */
    int tensor;
    int next; /* 1 + the tensor's next alias; 0: none */
    size_t field;
} zp_alias;

typedef struct zp_last_unit { /* the last unit of the first `seen` tensors; its elements */
    int seen, units;
    size_t has;
} zp_last_unit;

typedef struct zp_places_state {
    zp_slot *slots; /* [nslots] by call of zero_tensor */
    int nslots, slots_cap;
    int *layer_slots;  /* [layout.layers] 1 + the last slot of a tensor's layer; 0: no slot */
    zp_alias *aliases; /* [naliases] */
    int naliases, aliases_cap;
    zp_last_unit last_unit;
} zp_places_state;

/* Returns the first slot of a layer, or the one after `s`, or NULL. Valid after the build. */
static const zp_slot *zp_place_next_slot(const zero_ctx *z, int tensor, int layer,
                                         const zp_slot *s) {
    const int last = z->placed->layer_slots[z->tensors[tensor].first_layer + layer] - 1;
    if (last < 0 || s == &z->placed->slots[last]) return NULL;
    return &z->placed->slots[(s ? s : &z->placed->slots[last])->next];
}

/* Writes the pointer that your code has bound to a layer; NULL if `memory` is NULL. */
static void zp_place_set_slot(zero_ctx *z, zp_side side, const zp_slot *s, char *memory) {
    const zp_member *m = s->member;
    const size_t layer = z->tensors[m->tensor].desc.numel * zp_type_bytes(z->array[side].type);
    if (!s->place[side] || z->pointers_stay) return;
    char *to = memory ? zp_pointer_of_member(z, side, m, memory) : NULL;
    if (to) to += (size_t)(s->layer - m->layer) * layer;
    memcpy(s->place[side], &to, sizeof to); /* as bytes: it may be any pointer to data */
}

/* Writes the pointers to member m: first other fields of your struct, then the slots. */
static void zp_place_set_member(zero_ctx *z, zp_side side, const zp_member *m, char *memory,
                                void *host, uintptr_t at) {
    const zp_tensor *t = &z->tensors[m->tensor];
    for (int k = t->aliases; k && host; k = z->placed->aliases[k - 1].next)
        memcpy((char *)host + z->placed->aliases[k - 1].field, &at, sizeof at);
    const int layers = z->placed->nslots ? (int)(m->numel / t->desc.numel) : 0;
    for (int l = m->layer; l < m->layer + layers; l++)
        for (const zp_slot *s = zp_place_next_slot(z, m->tensor, l, NULL); s;
             s = zp_place_next_slot(z, m->tensor, l, s))
            zp_place_set_slot(z, side, s, memory);
}

/* Returns your array of a layer, by its slots; NULL: none. */
static char *zp_place_array(const zero_ctx *z, zp_side side, int tensor, int layer) {
    const int inside = z->tensors[tensor].desc.flags & ZERO_INLINE;
    char *array = NULL;
    for (const zp_slot *s = zp_place_next_slot(z, tensor, layer, NULL); s && !array;
         s = zp_place_next_slot(z, tensor, layer, s)) {
        array = inside ? (char *)s->place[side] : s->was[side];
        if (!inside && z->pointers_stay && s->place[side])
            memcpy(&array, s->place[side], sizeof array);
    }
    return array;
}
static void zp_place_forget_arrays(zero_ctx *z) {
    for (int i = 0; i < z->placed->nslots; i++)
        z->placed->slots[i].was[0] = z->placed->slots[i].was[1] = NULL;
}
/* Another context takes over: its slots keep the arrays that zero_destroy gives back. */
ZP_UNUSED static void zp_place_pass_arrays(zero_ctx *z, zero_ctx *next) {
    zp_places_state *of = z->placed;
    for (int i = 0; i < next->placed->nslots; i++)
        for (int j = 0; j < of->nslots; j++) {
            const zp_slot *from = &of->slots[(i + j) % of->nslots];
            zp_slot *to = &next->placed->slots[i];
            if (from->place[0] != to->place[0] || from->place[1] != to->place[1]) continue;
            memcpy(to->was, from->was, sizeof to->was);
            break;
        }
    of->nslots = 0;
}

/* Drops the slots of a tensor that was refused after its slots were added. */
static void zp_place_drop_refused(zero_ctx *z) {
    zp_places_state *p = z->placed;
    while (p->nslots && p->slots[p->nslots - 1].tensor >= z->ntensors) p->nslots--;
}
/* Adds the pointers of a row to tensor t: a slot for each layer. */
static zero_result zp_place_add_slots(zero_ctx *z, int t, const zero_tensor_desc *d, int layers) {
    char *const from[2] = {(char *)d->grad, (char *)d->param};
    const size_t stride = d->stride ? d->stride : sizeof(void *);
    zp_place_drop_refused(z);
    for (int l = 0; l < layers && (d->param || d->grad); l++) {
        zp_slot *list = (zp_slot *)zp_list_grow(z->placed->slots, z->placed->nslots,
                                                &z->placed->slots_cap, sizeof *list);
        if (!list) return zp_ctx_fail(z, ZERO_ERR_MEMORY, "the pointers of %s", d->name);
        z->placed->slots = list;
        zp_slot *slot = &z->placed->slots[z->placed->nslots++];
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
static zero_result zp_place_add_same(zero_ctx *z, const zero_tensor_desc *d) {
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
    if (d->param || d->grad) return zp_place_add_slots(z, (int)(t - z->tensors), d, of->layers);
    ZP_REFUSE(z, of->flags & ZERO_BY_SLOT, "tensor %s: %s has no field; set .param or .grad",
              d->name, of->name);
    const int other = *zp_bind_place_of_field(z, d->field);
    ZP_REFUSE(z, other, "tensor %s: offset %zu is the field of tensor %s; use another", d->name,
              d->field, z->tensors[other - 1].desc.name);
    zp_alias *list = (zp_alias *)zp_list_grow(z->placed->aliases, z->placed->naliases,
                                              &z->placed->aliases_cap, sizeof *list);
    if (!list) return zp_ctx_fail(z, ZERO_ERR_MEMORY, "tensor %s", d->name);
    const zp_alias alias = {(int)(t - z->tensors), t->aliases, d->field};
    z->placed->aliases = list;
    z->placed->aliases[z->placed->naliases++] = alias;
    t->aliases = z->placed->naliases;
    return ZERO_OK;
}

/* Adds the slots of a tensor that is announced next. */
static zero_result zp_place_tensor(zero_ctx *z, zp_tensor *t) {
    if (!t->desc.param && !t->desc.grad) return ZERO_OK;
    t->desc.flags |= ZERO_BY_SLOT;
    return zp_place_add_slots(z, z->ntensors, &t->desc, t->desc.layers);
}

/* ---- the row ---- */

/* Links each slot and its layer, once the plan is made. */
static void zp_place_link_slot(zero_ctx *z, int i) {
    zp_slot *slot = &z->placed->slots[i];
    const zp_tensor *t = &z->tensors[slot->tensor];
    int *last = &z->placed->layer_slots[t->first_layer + slot->layer];
    slot->member = z->layout.by_tensor[zp_layout_member_of(t, slot->layer)];
    slot->next = *last ? z->placed->slots[*last - 1].next : i;
    if (*last) z->placed->slots[*last - 1].next = i;
    *last = i + 1;
}

static zero_result zp_place_create(zero_ctx *z) {
    static const zp_places places = {zp_place_add_same, zp_place_set_member, zp_place_array,
                                     zp_place_forget_arrays};
    z->places = &places;
    return ZERO_OK;
}
static zero_result zp_place_plan(zero_ctx *z) {
    z->plan.context_bytes += (size_t)z->layout.layers * sizeof(int);
    return ZERO_OK;
}
static zero_result zp_place_allocate(zero_ctx *z) {
    zp_places_state *p = z->placed;
    p->layer_slots = (int *)calloc((size_t)z->layout.layers, sizeof *p->layer_slots);
    zp_place_drop_refused(z);
    for (int i = 0; i < p->nslots && p->layer_slots; i++) zp_place_link_slot(z, i);
    return p->layer_slots ? ZERO_OK : ZERO_ERR_MEMORY;
}
/* Clears the caller's pointers to memory that is freed. A slot gets its array back, unless the
   array was adopted. */
static zero_result zp_place_finish(zero_ctx *z) {
    for (int i = 0; i < 2 * z->placed->nslots && !z->pointers_stay; i++) {
        const zp_slot *s = &z->placed->slots[i / 2];
        if (s->member && s->place[i % 2]) memcpy(s->place[i % 2], &s->was[i % 2], sizeof(char *));
    }
    for (int i = 0; i < 2 * z->ntensors; i++) {
        const zp_tensor *t = &z->tensors[i / 2];
        char *host = (char *)z->adopted[i % 2];
        for (int k = t->aliases; k && host; k = z->placed->aliases[k - 1].next)
            zp_pointer_end_field(host + z->placed->aliases[k - 1].field, t->last_pointer[i % 2]);
    }
    return ZERO_OK;
}
static zero_result zp_place_destroy(zero_ctx *z) {
    free(z->placed->slots);
    free(z->placed->layer_slots);
    free(z->placed->aliases);
    return ZERO_OK;
}

static const zp_setting zp_place_fields[] = {
    {ZP_FIELD(param), ZP_POINTER},
    {ZP_FIELD(grad), ZP_POINTER},
    {ZP_FIELD(same_as), ZP_POINTER},
    ZP_LAST_SETTING,
};
static zp_extra zp_places_row(void) {
    zp_extra x;
    memset(&x, 0, sizeof x);
    x.name = "place";
    x.state_bytes = sizeof(zp_places_state);
    x.state_at = offsetof(zero_ctx, placed);
    x.fields = zp_place_fields;
    x.tensor = zp_place_tensor;
    x.call[ZP_ON_CREATE] = zp_place_create;
    x.call[ZP_ON_PLAN] = zp_place_plan;
    x.call[ZP_ON_ALLOCATE] = zp_place_allocate;
    x.call[ZP_ON_FINISH] = zp_place_finish;
    x.call[ZP_ON_DESTROY] = zp_place_destroy;
    return x;
}

/* layout.h - the offsets of tensors, units and shards

   The layout depends only on the list of tensors and the number of ranks. No setting moves an
   element to another piece or another block of the norm. The plan and the build both use it.

   A unit has two SEGMENTS, its trained and its frozen tensors or layers (ZERO_FROZEN). Each is cut
   over the ranks by itself. Segment u is the trained one of unit u; segment u + zp_layout.all is
   its frozen one. A model without frozen tensors has no segments of the second kind.

     unit u:   [ tensor a | tensor b | ... | pad ]     tensors begin at cache lines
     shards:   |  rank 0  |  rank 1  |  ...  |         equal, whole cache lines
     pieces:   | 0  |  1  | 0  |  1  |  ...  |         by copy of the shards; one: the shard
               A tensor may have an ATOM: a number of elements that no shard boundary cuts, counted
               from its first element in the unit. The tensor then begins at a multiple of its
               atom, and a shard is a multiple of the atoms of all tensors in the unit
     KEEP:     one more unit, type-major: [ a: layer 0, 1, ... | b: layer 0, 1, ... | pad ]
     Tensors of which the rule keeps one state array come last in their unit. A second state array
     ends before them

   THE WAY OF A FROZEN PARAMETER. Of all arrays, PARAM alone keeps frozen segments. Hooks, buffers,
   prefetch and orders know units: one buffer holds both segments, the trained one first. The walk
   of a parameter (gather.h) runs once for each segment with elements, so a row's stations treat a
   frozen segment like any other. Reductions, norm, clipping, agreement, update and publishing run
   over units below `all`, as segments the trained ones, and so never meet a frozen tensor. A frozen
   weight is written by adoption, by name, or from a checkpoint, never by a step. It is saved once,
   as ZERO_MASTER in the parameters' type. After a load, ranks gather frozen segments kept whole */
#pragma once

#include "../machine/base.h"

typedef struct zp_member {   /* the part of a tensor in a unit: one layer or more */
    int unit, tensor, layer; /* unit: the segment; layer: the first of these layers */
    size_t first;            /* elements of the tensor before it */
    size_t at, numel;        /* elements, in the segment */
} zp_member;

typedef struct zp_tensor {
    zero_tensor_desc desc;         /* owns a copy of the name */
    size_t atom;                   /* elements that stay on one rank; 0: 1 */
    zero_group *slice_group;       /* the context's copy of desc.slice_of; NULL before zero_build */
    int first_member;              /* index in zp_layout.by_tensor: one per `together` layers */
    int aliases;                   /* 1 + the last alias; 0: none */
    float lr_factor, decay_factor; /* the factors; ZERO_NONE is stored as 0 */
    float shape;                   /* factor of its updates that depends on its shape; 0: none */
    int one_state;                 /* the rule keeps one state array for this tensor */
    int first_layer;               /* number of its first layer among those of all tensors */
    int namesakes;                 /* zero_place: number of later rows with the same name */
    uintptr_t last_pointer[2];     /* by side: the last pointer in its field */
} zp_tensor;

typedef struct zp_unit { /* one segment of a unit */
    zp_member *member;   /* [members], inside zp_layout.members */
    int members;
    int uses, forwards;   /* of the unit, per pass: writes by backward; uses in forward */
    size_t shard, piece;  /* elements of one rank; of a shard, those that one copy counts, saves */
    size_t grain;         /* divides a shard: multiple of a cache line and all atoms */
    size_t numel, padded; /* padded: shard * nranks */
    size_t content;       /* elements without alignment */
    size_t plain;         /* elements before the first tensor with one state; padded: none has */
    size_t largest_tensor;
    int only_one_d, f32_state; /* all tensors are ZERO_ONE_D; are ZERO_F32_STATE */
    int announced; /* a tensor names this unit; a KEEP tensor is stored in the KEEP unit */
} zp_unit;

typedef struct zp_layout {
    int units;          /* of your model */
    int all;            /* units + 1: the KEEP unit has the number `units` and may be empty */
    int segments;       /* all; or 2 * all, if a tensor is frozen */
    zp_unit *unit;      /* [segments] */
    zp_member *members; /* [nmembers] by segment, in the order of the tensors */
    int nmembers;
    zp_member **by_tensor;              /* [nmembers]: zp_layout_member_of */
    size_t numel, padded;               /* of all segments */
    size_t frozen_numel, frozen_padded; /* of frozen ones */
    int layers;                         /* of all tensors */
} zp_layout;

/* Returns the number of layers in one member; a KEEP tensor has one member. */
static int zp_layout_layers_per_member(const zp_tensor *t) {
    return t->desc.flags & ZERO_KEEP ? t->desc.layers : t->desc.together;
}
static int zp_layout_member_of(const zp_tensor *t, int layer) {
    return t->first_member + layer / zp_layout_layers_per_member(t);
}
/* Returns the unit that the tensor names for a layer. A KEEP layer is stored in the KEEP unit. */
static int zp_layout_announced_unit(const zp_tensor *t, int layer) {
    return t->desc.unit + layer / t->desc.together * t->desc.every;
}
static int zp_layout_is_frozen(const zp_tensor *t, int layer) {
    return t->desc.flags & ZERO_FROZEN || (t->desc.frozen && t->desc.frozen[layer]);
}
static int zp_layout_frozen_layers(const zp_tensor *t) {
    int n = 0;
    for (int i = 0; i < t->desc.layers; i++) n += zp_layout_is_frozen(t, i);
    return n;
}
static int zp_layout_is_all_frozen(const zp_tensor *t) {
    return zp_layout_frozen_layers(t) == t->desc.layers;
}
static int zp_layout_segment_of(const zp_layout *l, const zp_tensor *t, int layer) {
    const int unit = t->desc.flags & ZERO_KEEP ? l->units : zp_layout_announced_unit(t, layer);
    return unit + (zp_layout_is_frozen(t, layer) ? l->all : 0);
}
/* Returns the unit of a segment. */
static int zp_layout_unit_of(const zp_layout *l, int segment) { return segment % l->all; }
/* Return the elements of both segments of unit u, without and with padding. */
static size_t zp_layout_numel(const zp_layout *l, int u) {
    return l->unit[u].numel + (l->segments > l->all ? l->unit[u + l->all].numel : 0);
}
static size_t zp_layout_padded(const zp_layout *l, int u) {
    return l->unit[u].padded + (l->segments > l->all ? l->unit[u + l->all].padded : 0);
}

/* Returns 1 if unit u has tensors of which the rule keeps one state array. */
ZP_UNUSED static int zp_layout_has_one_state(const zp_layout *l, int u) {
    return l->unit[u].plain < l->unit[u].padded;
}

static void zp_layout_close(zp_layout *l) {
    free(l->unit);
    free(l->members);
    free(l->by_tensor);
    memset(l, 0, sizeof *l);
}

/* Runs the next statement for each segment s of unit u. */
#define ZP_EACH_SEGMENT(l, u, s) for (int s = (u); s < (l)->segments; s += (l)->all)

/* The order of updates, and in reverse the order of reductions: KEEP, which your code reads first,
   then the order of forward. */
static int zp_layout_nth_unit(const zp_layout *l, int i) { return i ? i - 1 : l->units; }

static size_t zp_layout_common_divisor(size_t a, size_t b) {
    return b ? zp_layout_common_divisor(b, a % b) : a;
}
static size_t zp_layout_common_multiple(size_t a, size_t b) {
    return a / zp_layout_common_divisor(a, b) * b;
}

/* Adds the member that begins with this layer to its unit. */
static zp_member *zp_layout_add_member(zp_layout *l, const zp_tensor *t, int tensor, int layer) {
    const zero_tensor_desc *d = &t->desc;
    const int kept = d->flags & ZERO_KEEP, segment = zp_layout_segment_of(l, t, layer);
    const size_t layers =
        zp_min((size_t)zp_layout_layers_per_member(t), (size_t)(d->layers - layer));
    const size_t atom = zp_max(t->atom, 1), first = (size_t)layer * d->numel;
    zp_unit *u = &l->unit[segment], *of = &l->unit[zp_layout_unit_of(l, segment)];
    const size_t at = zp_round_up(u->numel, zp_layout_common_multiple(zp_align, atom));
    const zp_member m = {segment, tensor, layer, first, at, layers * d->numel};
    u->grain = zp_layout_common_multiple(u->grain, atom);
    u->numel = m.at + m.numel;
    u->content += m.numel;
    u->largest_tensor = zp_max(u->largest_tensor, d->numel);
    u->only_one_d &= (d->flags & ZERO_ONE_D) != 0;
    u->f32_state |= (d->flags & ZERO_F32_STATE) != 0;
    const int forwards = d->uses + (d->flags & ZERO_AGAIN ? 1 : 0);
    if (!kept && d->uses > of->uses) of->uses = d->uses;
    if (!kept && forwards > of->forwards) of->forwards = forwards;
    u->member[u->members] = m;
    return &u->member[u->members++];
}

/* Numbers the members and the layers of all tensors, and allocates the lists. */
static zero_result zp_layout_alloc(zp_layout *l, zp_tensor *tensors, int n) {
    int frozen = 0;
    memset(l, 0, sizeof *l);
    for (int t = 0; t < n; t++) {
        const zero_tensor_desc *d = &tensors[t].desc;
        const int last = zp_layout_announced_unit(&tensors[t], d->layers - 1);
        if (last >= l->units) l->units = last + 1;
        tensors[t].first_member = l->nmembers;
        tensors[t].first_layer = l->layers;
        l->layers += d->layers;
        frozen += zp_layout_frozen_layers(&tensors[t]);
        l->nmembers = zp_layout_member_of(&tensors[t], d->layers - 1) + 1;
    }
    l->all = l->units + 1;
    l->segments = frozen ? 2 * l->all : l->all;
    l->unit = (zp_unit *)calloc((size_t)l->segments, sizeof *l->unit);
    l->members = (zp_member *)calloc((size_t)l->nmembers + 1, sizeof *l->members);
    l->by_tensor = (zp_member **)calloc((size_t)l->nmembers + 1, sizeof(zp_member *));
    if (l->unit && l->members && l->by_tensor) return ZERO_OK;
    zp_layout_close(l);
    return ZERO_ERR_MEMORY;
}

/* Counts the members of each unit, then fills them in. */
static void zp_layout_fill_units(zp_layout *l, const zp_tensor *tensors, int n) {
    zp_member *next = l->members;
    for (const zp_tensor *t = tensors; t < tensors + n; t++)
        for (int i = 0; i < t->desc.layers; i++) {
            l->unit[zp_layout_announced_unit(t, i)].announced = 1;
            if (i % zp_layout_layers_per_member(t) == 0)
                l->unit[zp_layout_segment_of(l, t, i)].members++;
        }
    for (zp_unit *u = l->unit; u < l->unit + l->segments; u++) {
        u->member = next;
        next += u->members;
        u->members = 0; /* counted again while filling */
        u->grain = zp_align;
        u->only_one_d = u->uses = u->forwards = 1;
    }
    for (int k = 0; k < 2 * n; k++) { /* those with one state after all others */
        const zp_tensor *t = &tensors[k % n];
        if (t->one_state != (k >= n)) continue;
        for (int i = 0; i < t->desc.layers; i += zp_layout_layers_per_member(t))
            l->by_tensor[zp_layout_member_of(t, i)] = zp_layout_add_member(l, t, k % n, i);
    }
}

/* Returns the elements of a piece if `all` ranks of all copies share the segment. */
static size_t zp_layout_piece(const zp_unit *u, size_t all) {
    return zp_round_up((u->numel + all - 1) / all, u->grain);
}

/* Lays all tensors out. `nranks` ranks share each of `copies` copies. A segment is cut for all
   ranks of all copies, and a shard has one piece for each copy. */
static zero_result zp_layout_open(zp_layout *l, zp_tensor *tensors, int n, int nranks, int copies) {
    const size_t all = (size_t)nranks * (size_t)copies;
    ZP_TRY(zp_layout_alloc(l, tensors, n));
    zp_layout_fill_units(l, tensors, n);
    for (zp_unit *u = l->unit; u < l->unit + l->segments; u++) {
        const int frozen = u >= l->unit + l->all;
        u->piece = zp_layout_piece(u, all);
        u->shard = u->piece * (size_t)copies;
        u->plain = u->padded = u->shard * (size_t)nranks;
        l->numel += u->content;
        l->padded += u->padded;
        l->frozen_numel += frozen ? u->content : 0;
        l->frozen_padded += frozen ? u->padded : 0;
        for (int i = u->members - 1; i >= 0 && !frozen && tensors[u->member[i].tensor].one_state;
             i--)
            u->plain = u->member[i].at;
    }
    return ZERO_OK;
}

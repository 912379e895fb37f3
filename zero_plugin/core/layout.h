/* layout.h - where a tensor, a unit and a shard begin

   Where things lie, from the list of tensors and the number of ranks alone: no setting moves an
   element to another piece or another block of the norm. Pure; used by the plan and by the build.

     unit u:   [ tensor a | tensor b | ... | pad ]     tensors begin on lines
     shards:   |  rank 0  |  rank 1  |  ...  |         equal, whole lines
     pieces:   | 0  |  1  | 0  |  1  |  ...  |         by replica; without replicas a shard is one
     KEEP:     one more unit, type-major: [ a: layer 0, 1, ... | b: layer 0, 1, ... | pad ]
     matrices, of a rule that needs them, lie behind everything else of their unit, so that a second
     state array, which is not for them, ends with what it is for */
#pragma once

#include "../machine/base.h"

typedef struct zp_member {   /* a tensor's part in a unit: one layer or more */
    int unit, tensor, layer; /* the first of these layers */
    size_t first;            /* elements of the tensor before it */
    size_t at, numel;        /* within the unit, elements */
} zp_member;

typedef struct zp_tensor {
    zero_tensor_desc desc;         /* name owned */
    int first_member;              /* in zp_layout.by_tensor: one per `together` layers */
    int aliases;                   /* 1 + the last of them; 0: it has none */
    float lr_factor, decay_factor; /* the values themselves: 0 for ZERO_NONE */
    size_t rows, cols; /* of its matrices, if the rule needs them: one after another; 0: none */
    int first_layer;   /* of the layers of all tensors */
    zero_group *slice_group; /* desc.slice_of, if the rule needs it; NULL: it is whole */
    int slices;              /* ranks of that */
    int namesakes;           /* of zero_place: rows of the same name that have followed */
    uintptr_t shown[2];      /* by side: the pointer that its field was given last */
} zp_tensor;

typedef struct zp_matrix {
    int unit, owner;       /* owner: the rank that makes it orthogonal */
    size_t at, rows, cols; /* at: in the unit; the sides of the whole */
    size_t kept;           /* elements of the owner's that are kept before it */
    size_t numel;          /* what this rank has of it: all, or a slice */
    int slices, sharer;    /* of a slice: of how many, and who of them makes it orthogonal */
    size_t outer;          /* as of the tensor */
} zp_matrix;

typedef struct zp_unit {
    zp_member *member; /* [members], of zp_layout.members */
    int members;
    int uses, forwards;          /* per pass: backward writes, and uses in forward */
    size_t numel, padded, shard; /* elements: with alignment; shard * nranks; of one rank */
    size_t piece;                /* of a shard, that one of its replicas counts and saves */
    size_t content;              /* elements without alignment */
    size_t plain;                /* elements before the first matrix */
    int matrices;
    size_t largest_tensor;
    int only_one_d;
    int announced; /* by a tensor, of which a KEEP one lies elsewhere */
} zp_unit;

typedef struct zp_layout {
    int units; /* of the host */
    int all;   /* with the KEEP unit, which is number `units` and may be empty */
    zp_unit *unit;
    zp_member *members; /* [nmembers] by unit, in order of announcement */
    int nmembers;
    zp_member **by_tensor; /* [nmembers]: zp_layout_member_of */
    size_t numel, padded;
    int layers;          /* of all tensors */
    zp_matrix *matrices; /* [nmatrices] by unit */
    int nmatrices;
    int sharers; /* ranks that have slices of the same matrices */
} zp_layout;

/* Layers that are one member: of KEEP all. */
static int zp_layout_layers_per_member(const zp_tensor *t) {
    return t->desc.flags & ZERO_KEEP ? t->desc.layers : t->desc.together;
}
static int zp_layout_member_of(const zp_tensor *t, int layer) {
    return t->first_member + layer / zp_layout_layers_per_member(t);
}
/* The unit that a layer is announced for; where it lies is another one if it is KEEP. */
static int zp_layout_announced_unit(const zp_tensor *t, int layer) {
    return t->desc.unit + layer / t->desc.together * t->desc.every;
}
static int zp_layout_unit_of(const zp_layout *l, const zp_tensor *t, int layer) {
    return t->desc.flags & ZERO_KEEP ? l->units : zp_layout_announced_unit(t, layer);
}

static void zp_layout_close(zp_layout *l) {
    free(l->unit);
    free(l->members);
    free(l->by_tensor);
    free(l->matrices);
    memset(l, 0, sizeof *l);
}

/* The order of updates, and backwards of reductions: KEEP, which a host reads before anything else,
   then as in a forward. */
static int zp_layout_nth_unit(const zp_layout *l, int i) { return i ? i - 1 : l->units; }

/* What begins with this layer becomes the next member of its unit. */
static zp_member *zp_layout_add_member(zp_layout *l, const zp_tensor *t, int tensor, int layer) {
    const zero_tensor_desc *d = &t->desc;
    const int kept = d->flags & ZERO_KEEP, unit = zp_layout_unit_of(l, t, layer);
    const size_t layers =
        zp_min((size_t)zp_layout_layers_per_member(t), (size_t)(d->layers - layer));
    zp_unit *u = &l->unit[unit];
    const zp_member m = {unit,
                         tensor,
                         layer,
                         (size_t)layer * d->numel,
                         zp_round_up(u->numel, zp_align),
                         layers * d->numel};
    u->numel = m.at + m.numel;
    u->content += m.numel;
    u->largest_tensor = zp_max(u->largest_tensor, d->numel);
    u->only_one_d &= (d->flags & ZERO_ONE_D) != 0;
    const int forwards = d->uses + (d->flags & ZERO_AGAIN ? 1 : 0);
    if (!kept && d->uses > u->uses) u->uses = d->uses;
    if (!kept && forwards > u->forwards) u->forwards = forwards;
    u->member[u->members] = m;
    return &u->member[u->members++];
}

/* Counts, then fills: members of a unit lie together. nranks ranks share a copy, of which there are
   so many replicas: a unit is cut for all of them, and a shard is the pieces of its replicas. */
static zero_result zp_layout_open(zp_layout *l, zp_tensor *tensors, int n, int nranks,
                                  int replicas) {
    const size_t all = (size_t)nranks * (size_t)replicas;
    memset(l, 0, sizeof *l);
    for (int t = 0; t < n; t++) {
        const zero_tensor_desc *d = &tensors[t].desc;
        const int last = zp_layout_announced_unit(&tensors[t], d->layers - 1);
        if (last >= l->units) l->units = last + 1;
        tensors[t].first_member = l->nmembers;
        tensors[t].first_layer = l->layers;
        l->layers += d->layers;
        l->nmembers = zp_layout_member_of(&tensors[t], d->layers - 1) + 1;
    }
    l->all = l->units + 1;
    l->unit = (zp_unit *)calloc((size_t)l->all, sizeof *l->unit);
    l->members = (zp_member *)calloc((size_t)l->nmembers + 1, sizeof *l->members);
    l->by_tensor = (zp_member **)calloc((size_t)l->nmembers + 1, sizeof(zp_member *));
    if (!l->unit || !l->members || !l->by_tensor) {
        zp_layout_close(l);
        return ZERO_ERR_MEMORY;
    }
    for (int t = 0; t < n; t++)
        for (int i = 0; i < tensors[t].desc.layers; i++) {
            l->unit[zp_layout_announced_unit(&tensors[t], i)].announced = 1;
            if (i % zp_layout_layers_per_member(&tensors[t]) == 0)
                l->unit[zp_layout_unit_of(l, &tensors[t], i)].members++;
        }
    zp_member *next = l->members;
    for (zp_unit *u = l->unit; u < l->unit + l->all; u++) {
        u->member = next;
        next += u->members;
        u->members = 0; /* counted again while filling */
        u->only_one_d = u->uses = u->forwards = 1;
    }
    for (int k = 0; k < 2 * n; k++) { /* matrices behind all others */
        const int t = k % n;
        if ((tensors[t].rows > 0) != (k >= n)) continue;
        for (int i = 0; i < tensors[t].desc.layers; i += zp_layout_layers_per_member(&tensors[t]))
            l->by_tensor[zp_layout_member_of(&tensors[t], i)] =
                zp_layout_add_member(l, &tensors[t], t, i);
    }
    for (zp_unit *u = l->unit; u < l->unit + l->all; u++) {
        u->piece = zp_round_up((u->numel + all - 1) / all, zp_align);
        u->shard = u->piece * (size_t)replicas;
        u->padded = u->shard * (size_t)nranks;
        l->numel += u->content;
        l->padded += u->padded;
        u->plain = u->padded;
        for (int i = u->members - 1; i >= 0 && tensors[u->member[i].tensor].rows; i--)
            u->plain = u->member[i].at;
    }
    return ZERO_OK;
}

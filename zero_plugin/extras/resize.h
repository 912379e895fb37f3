/* resize.h - state moves from contexts of some ranks to contexts of others, in memory

   BEFORE AND AFTER. Before, the ranks of the context z hold the state, in pieces that z's layout
   cuts. Afterwards the ranks of the context `next` hold it, in shards of next's layout. A rank
   stays (it has both contexts), leaves (z alone) or joins (next alone). At least one rank stays,
   because the two groups of ranks have nothing else in common.

     z, 2 ranks      |     piece 0     |     piece 1     |       of one unit
                          |       |         |       |
     next, 4 ranks   | shard 0| shard 1| shard 2| shard 3|

   THE WAY OF A UNIT. One unit moves after the other:
     1. Each rank of z copies its piece from its arrays to its PART, in memory that all ranks of
        `next` read. It then gives the pages of this unit's arrays back to the system. A rank that
        leaves is no rank of `next`. Its part is in memory that the ranks of z read, and a rank
        that stays, its RELAY, copies the part to its own memory.
     2. Each rank of `next` copies the elements of its shard from the parts to its arrays.
   Memory of `next` takes no space before it is written. So a rank never needs more than the larger
   of the two plans and the parts of one unit.

   A PART has room for 4 bytes of each element, for each kind of state. Values have the type of a
   zero_range. Both sides compute where an element is from its number in the segment and from the
   number of z's ranks, so they exchange no list. */
#pragma once

#include "lines.h"
#include "state.h"

typedef struct zp_resize_state {
    zp_memory parts;   /* of a context that is `next`: its ranks read them */
    zp_memory leaving; /* of a context that is z: the parts of ranks that leave */
} zp_resize_state;

/* What all ranks of both contexts know. */
typedef struct zp_resize_map {
    int32_t ranks, slots, leave;       /* of z; most parts in one rank's memory; ranks that leave */
    unsigned char relay[ZP_LOCAL_MAX]; /* by rank of z: the rank of `next` with its part */
    unsigned char slot[ZP_LOCAL_MAX];  /* and the place there */
} zp_resize_map;
static_assert(sizeof(zp_resize_map) <= ZP_MAIL_BYTES, "one exchange sends it");

typedef struct zp_resize {
    zero_ctx *z, *next; /* one of them may be NULL */
    zero_ctx *at;       /* the one that the current copies belong to */
    zp_resize_map map;
    size_t part_bytes; /* of the largest unit */
    uint64_t moved;    /* bytes that this rank got from others */
} zp_resize;

/* ---- where values are ---- */

/* Returns how many of zp_state_kinds segment s has: a frozen one has its weights alone. */
static int zp_resize_kinds(const zero_ctx *z, int s) {
    return s >= z->layout.all ? 1 : zp_state_count_kinds(z);
}

/* Returns the offset in a part of the values of kind number k of segment s; s -1: the bytes of a
   part with unit u. */
static size_t zp_resize_offset(const zero_ctx *z, int ranks, int u, int s, int k) {
    size_t at = 0;
    ZP_EACH_SEGMENT(&z->layout, u, i) {
        const size_t piece = zp_layout_piece(&z->layout.unit[i], (size_t)ranks);
        const int n = i == s ? k : zp_resize_kinds(z, i);
        at += (size_t)n * zp_round_up(piece * sizeof(float), 64);
        if (i == s) break;
    }
    return at;
}
static size_t zp_resize_part_bytes(const zero_ctx *z, int ranks) {
    size_t most = 64;
    for (int u = 0; u < z->layout.all; u++)
        most = zp_max(most, zp_resize_offset(z, ranks, u, -1, 0));
    return zp_round_up(most, 4096);
}

/* Copies the elements [from, end) of segment s: out of z to a part, or out of a part to `next`.
   They are inside the piece of `rank`, a rank of z. */
static zero_result zp_resize_copy(zp_resize *x, int out, int s, int rank, size_t from, size_t end,
                                  char *part) {
    zero_ctx *z = out ? x->z : x->next;
    const zp_unit *unit = &z->layout.unit[s];
    const size_t first = (size_t)rank * zp_layout_piece(unit, (size_t)x->map.ranks);
    for (int k = 0; k < zp_resize_kinds(z, s); k++)
        for (const zp_member *m = unit->member; m < unit->member + unit->members; m++) {
            const zp_tensor *t = &z->tensors[m->tensor];
            const size_t begins = zp_max(m->at, first), at = zp_max(m->at, from);
            const size_t ends = zp_min(m->at + m->numel, end);
            if (at >= ends || !zp_state_has_kind(z, zp_state_kinds[k], t)) continue;
            const zero_type type = zp_state_type(z, zp_state_kinds[k], t);
            const size_t of = zp_type_bytes(type), u = (size_t)zp_layout_unit_of(&z->layout, s);
            const zero_range range = {t->desc.name, zp_state_kinds[k], type, m->first + at - m->at,
                                      ends - at};
            char *values = part + zp_resize_offset(z, x->map.ranks, (int)u, s, k)
                           + (begins - first) * sizeof(float) + (at - begins) * of;
            ZP_TRY(zp_state_move(z, &range, out ? NULL : values, out ? values : NULL));
            if (!out && (x->map.relay[rank] != z->all->rank || x->map.slot[rank]))
                x->moved += range.count * of;
        }
    return ZERO_OK;
}

/* ---- one unit ---- */

/* Gives the pages of unit u's arrays back. Of weights that all ranks see in place, this rank's. */
static void zp_resize_release_unit(zero_ctx *z, int u) {
    for (int k = 0; k < ZP_ARRAYS; k++) {
        const zp_array *a = &z->array[k];
        if (k != ZP_PARAM && k < ZP_MASTER) continue;
        ZP_EACH_SEGMENT(&z->layout, u, s) {
            const zp_array_part *x = &a->part[s];
            const int seen = x->share == ZP_SEEN;
            const size_t first = seen ? zp_ctx_shard_first(z, s) : x->first,
                         n = seen ? zp_ctx_shard(z, s) : x->numel;
            if (x->numel && x->tier == ZERO_DEVICE)
                zp_device_release_pages(zp_array_at(a, s, first), zp_type_array_bytes(x->type, n));
        }
    }
}
/* Gives the pages back that hold no state: gradients, accumulators and gather buffers. */
static void zp_resize_release_buffers(zero_ctx *z) {
    const zp_memory *grad = &z->memory[ZP_GRAD], *param = &z->memory[ZP_PARAM];
    const zp_array *sum = &z->array[ZP_SUM];
    zp_device_release_pages(grad->base, grad->bytes);
    zp_device_release_pages(param->base + z->array[ZP_PARAM].bytes,
                            param->bytes - z->array[ZP_PARAM].bytes);
    if (sum->bytes) zp_device_release_pages(sum->memory, sum->bytes);
}

/* Step 1 of unit u. COLLECTIVE over the ranks of z if some leave. */
static zero_result zp_resize_give(zp_resize *x, int u) {
    zero_ctx *z = x->z;
    const int me = z->all->rank;
    char *part = x->next ? x->next->resize->parts.base : z->resize->leaving.base;
    ZP_EACH_SEGMENT(&z->layout, u, s) {
        const size_t piece = zp_ctx_piece(z, s), first = (size_t)me * piece;
        ZP_TRY(zp_resize_copy(x, 1, s, me, first, first + piece, part));
    }
    zp_resize_release_unit(z, u);
    if (!x->map.leave) return ZERO_OK;
    ZP_DO(z, zp_comm_barrier(z->all));
    const size_t bytes = zp_resize_offset(z, x->map.ranks, u, -1, 0);
    for (int r = 0; r < x->map.ranks && x->next; r++)
        if (x->map.slot[r] && x->map.relay[r] == x->next->all->rank)
            memcpy(x->next->resize->parts.base + x->map.slot[r] * x->part_bytes,
                   z->resize->leaving.peer[r], bytes);
    return zp_ctx_check(z, zp_comm_barrier(z->all)); /* ranks that leave may write the next part */
}
/* Step 2. COLLECTIVE over the ranks of `next`. */
static zero_result zp_resize_take(zp_resize *x, int u) {
    zero_ctx *z = x->next;
    const int all = z->policy.state == ZP_WHOLE;
    ZP_DO(z, zp_comm_barrier(z->all));
    ZP_EACH_SEGMENT(&z->layout, u, s) {
        const zp_unit *unit = &z->layout.unit[s];
        const size_t piece = zp_layout_piece(unit, (size_t)x->map.ranks);
        const size_t first = all ? 0 : zp_ctx_shard_first(z, s);
        const size_t end = zp_min(all ? unit->numel : first + unit->shard, unit->numel);
        for (size_t e = first, to; e < end; e = to) {
            const int rank = (int)(e / piece);
            to = zp_min(end, (size_t)(rank + 1) * piece);
            ZP_TRY(zp_resize_copy(x, 0, s, rank, e, to,
                                  z->resize->parts.peer[x->map.relay[rank]]
                                      + x->map.slot[rank] * x->part_bytes));
        }
    }
    return zp_ctx_check(z, zp_comm_barrier(z->all)); /* the parts may be overwritten */
}
/* Moves all units. */
static zero_result zp_resize_move_units(zp_resize *x) {
    if (x->z) zp_resize_release_buffers(x->z);
    for (int u = 0; u < (x->z ? x->z : x->next)->layout.all; u++) {
        x->at = x->z;
        if (x->z) ZP_TRY(zp_resize_give(x, u));
        x->at = x->next;
        if (x->next) ZP_TRY(zp_resize_take(x, u));
    }
    return ZERO_OK;
}

/* ---- before ---- */

/* Returns why the state of a context cannot move; NULL: it can. */
static const char *zp_resize_find_conflict(const zero_ctx *z) {
    const zero_config *c = &z->cfg;
    return !zp_device_is_host() ? "the CUDA build cannot move state; load a checkpoint"
           : z->all->transport->issue != zp_local_issue
               ? "only LOCAL ranks see each other's memory; load a checkpoint"
           : c->shard_ranks || c->second_ranks
               ? "shard_ranks and second_ranks keep copies of the shards; use 0"
           : c->world || c->joins || z->partner
               ? "world and joins tie the context to other ranks; use NULL"
           : c->feedback > 0 ? "the errors of feedback belong to one number of ranks; use 0"
           : c->muon.normalize > 0
               ? "muon.normalize keeps state of rows, which does not move yet; use 0"
           : z->pointers_stay ? "lent arrays stay yours; use zero_build or zero_adopt"
                              : NULL;
}

/* Settings that say what the state is, and how it continues. */
static const char *const zp_resize_same[] = {"type",       "master", "state_type",    "optimizer",
                                             "delay_from", "seed",   "virtual_ranks", NULL};

/* Checks that the state of z fits into `next`, which has its plan. */
static zero_result zp_resize_compare(zero_ctx *z, zero_ctx *next) {
    const zp_setting *set;
    char was[128], is[128];
    for (int i = 0; (set = zp_extra_setting(z, i)) != NULL; i++)
        for (const char *const *name = zp_resize_same; *name; name++) {
            if (strcmp(set->name, *name) != 0) continue;
            zp_line_print_setting(set, &z->cfg, was, sizeof was);
            zp_line_print_setting(set, &next->cfg, is, sizeof is);
            ZP_REFUSE(z, strcmp(was, is) != 0,
                      "the state has {%s}, the new context {%s}; use the same", was, is);
        }
    ZP_REFUSE(z, z->ntensors != next->ntensors || z->layout.nmembers != next->layout.nmembers,
              "the state has %d tensors in %d parts, the new context %d in %d; use the same",
              z->ntensors, z->layout.nmembers, next->ntensors, next->layout.nmembers);
    for (int i = 0; i < z->layout.nmembers; i++) {
        const zp_member *a = &z->layout.members[i], *b = &next->layout.members[i];
        const zp_unit *u = &z->layout.unit[a->unit], *v = &next->layout.unit[b->unit];
        const char *name = z->tensors[a->tensor].desc.name;
        ZP_REFUSE(z,
                  a->unit != b->unit || a->tensor != b->tensor || a->layer != b->layer
                      || a->at != b->at || a->numel != b->numel || u->numel != v->numel
                      || u->grain != v->grain || u->f32_state != v->f32_state
                      || strcmp(name, next->tensors[b->tensor].desc.name) != 0,
                  "tensor %s, or its place, differs in the new context; announce the same table",
                  name);
    }
    return ZERO_OK;
}

/* Sets the map on the ranks of z: each sends its rank in `next`, or -1. COLLECTIVE over z. */
static zero_result zp_resize_make_map(zp_resize *x) {
    zero_ctx *z = x->z;
    zp_resize_map *m = &x->map;
    const int32_t mine = x->next ? x->next->all->rank : -1;
    int stay[ZP_LOCAL_MAX], n = 0, parts[ZP_LOCAL_MAX] = {0};
    ZP_DO(z, zp_comm_exchange(z->all, &mine, sizeof mine));
    const int32_t *to = (const int32_t *)(const void *)z->all->mail;
    for (int r = 0; r < z->all->nranks; r++)
        if (to[r] >= 0) stay[n++] = r;
    ZP_REFUSE(z, !n, "all %d ranks leave; the state needs a rank that stays", z->all->nranks);
    m->ranks = z->all->nranks;
    m->slots = 1;
    m->leave = m->ranks - n;
    for (int r = 0, i = 0; r < m->ranks; r++) {
        const int by = to[r] >= 0 ? r : stay[i % n];
        i += to[r] < 0;
        m->relay[r] = (unsigned char)to[by];
        m->slot[r] = (unsigned char)(to[r] >= 0 ? 0 : ++parts[by]);
        m->slots = (int32_t)zp_max((size_t)m->slots, (size_t)m->slot[r] + 1);
    }
    return ZERO_OK;
}
/* Sends the map from the ranks that stay to those that join. COLLECTIVE over `next`. */
static zero_result zp_resize_send_map(zp_resize *x) {
    zero_ctx *z = x->next;
    const zp_resize_map *all = (const zp_resize_map *)(const void *)z->all->mail, *from = NULL;
    ZP_DO(z, zp_comm_exchange(z->all, &x->map, sizeof x->map));
    for (int r = 0; r < z->all->nranks; r++) {
        if (!all[r].ranks) continue;
        if (!from) from = &all[r];
        ZP_REFUSE(z, memcmp(from, &all[r], sizeof *from) != 0,
                  "rank %d stays from other ranks than a rank before it; pass contexts of one run",
                  r);
    }
    ZP_REFUSE(z, !from, "all %d ranks join; the state needs a rank that stays", z->all->nranks);
    if (!x->map.ranks) x->map = *from;
    return ZERO_OK;
}

/* Opens the memory of parts of ranks that leave. COLLECTIVE over z. A context opens it once. */
static zero_result zp_resize_open_leaving(zp_resize *x) {
    zero_ctx *z = x->z;
    x->part_bytes = zp_resize_part_bytes(z, x->map.ranks);
    if (!x->map.leave || z->resize->leaving.base) return ZERO_OK;
    zp_device_set_sparse(&z->device, 1);
    const zero_result r = zp_comm_open_memory(z->all, &z->resize->leaving, x->part_bytes, 0);
    ZP_DO(z, ZERO_OK);
    return r ? zp_ctx_fail(z, r, "%zu bytes for a unit that moves", x->part_bytes) : r;
}
/* Opens the memory of all parts. COLLECTIVE over `next`. */
static zero_result zp_resize_open_parts(zp_resize *x) {
    zero_ctx *z = x->next;
    x->part_bytes = zp_resize_part_bytes(z, x->map.ranks);
    const size_t bytes = (size_t)x->map.slots * x->part_bytes;
    zp_device_set_sparse(&z->device, 1);
    const zero_result r = zp_comm_open_memory(z->all, &z->resize->parts, bytes, 0);
    ZP_DO(z, ZERO_OK);
    return r ? zp_ctx_fail(z, r, "%zu bytes for a unit that moves", bytes) : r;
}

static zp_extra zp_resize_row(void) {
    zp_extra x;
    memset(&x, 0, sizeof x);
    x.name = "resize";
    x.state_bytes = sizeof(zp_resize_state);
    x.state_at = offsetof(zero_ctx, resize);
    return x;
}

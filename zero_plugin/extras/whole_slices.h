/* whole_slices.h - whole tensors with slices on the ranks of another group

   Tensor-parallel ranks cut tensors into slices (zero_tensor_desc.slice_of). If a rule needs whole
   tensors, this file collects the slices over their group, from the ranks that have the same shard
   of each slice. These ranks have units of the same sizes, so they assign matrices alike.

   NORMS. Every rank already has the sums of all shards. It adds them up, one sum per layer. Then an
   all-gather over the group brings the sums of the other slices. They are exact, so the order does
   not matter. A tensor that is whole on every rank of the group counts once, on the first.

   MATRIX. An owner has one slice of a matrix, the other ranks of the group have the rest. One of
   them, the sharer, collects all slices, makes the matrix orthogonal, and returns each slice.
     kept      [ sharer 0's matrices | sharer 1's | ... | whole ones ]    this rank's slices
     shared    [ slices of rank 0 | of rank 1 | ... ]    of the matrices that this rank is sharer of
     whole     [ row 0: rank 0's part, rank 1's, ... | row 1: ... ]    `outer` rows

   All messages use the gradient stream and the context's own copy of the group. */
#pragma once

#include "../comm/group.h"
#include "exact.h"
#include "../core/extra.h"
#include "muon.h"

/* ---- kernels ---- */

/* Adds limb i of the sums of all ranks, which are `stride` limbs apart. */
typedef struct zp_whole_slices_one_sum_args {
    const zp_limb *from;
    zp_limb *to;
    size_t stride;
    int ranks;
} zp_whole_slices_one_sum_args;

ZP_FN void zp_whole_slices_one_sum_at(const zp_whole_slices_one_sum_args *a, size_t i) {
    zp_limb sum = 0;
    for (int r = 0; r < a->ranks; r++) sum += a->from[(size_t)r * a->stride + i];
    a->to[i] = sum;
}
ZP_KERNEL(zp_whole_slices_one_sum, zp_whole_slices_one_sum_args, 32768)

/* Copies a slice to its places in the whole matrix, or back. The whole matrix has runs of `run`
   elements, from `slices` ranks cyclically. */
typedef struct zp_whole_slices_copy_args {
    float *slice, *whole;
    size_t run, rank, slices;
    int back;
} zp_whole_slices_copy_args;

ZP_FN void zp_whole_slices_copy_at(const zp_whole_slices_copy_args *a, size_t i) {
    float *there = &a->whole[(i / a->run * a->slices + a->rank) * a->run + i % a->run];
    if (a->back)
        a->slice[i] = *there;
    else
        *there = a->slice[i];
}
ZP_KERNEL(zp_whole_slices_copy, zp_whole_slices_copy_args, 32768)

/* ---- the plan ---- */

/* Returns the elements of this rank's slices that sharer s makes orthogonal, and their offset. */
static size_t zp_whole_slices_of(const zero_ctx *z, int s, size_t *at) {
    size_t numel = 0;
    *at = 0;
    for (int i = 0; i < z->whole->nmatrices; i++) {
        const zp_matrix *m = &z->whole->matrices[i];
        if (m->owner != z->data->rank || m->slices == 1) continue;
        if (m->sharer < s) *at += zp_round_up(m->numel, zp_align);
        if (m->sharer == s) numel += zp_round_up(m->numel, zp_align);
    }
    return numel;
}
/* Returns the number of slices of which the tensor is one; 1: it is whole. */
static int zp_whole_slices_count(const zp_tensor *t) {
    return t->desc.slice_of ? t->desc.slice_of->group.nranks : 1;
}
/* Returns 1 if this rank makes m orthogonal. */
static int zp_whole_slices_is_owner(const zero_ctx *z, const zp_matrix *m) {
    return m->owner == z->data->rank && (m->slices == 1 || m->sharer == z->whole->slice);
}
/* Returns the limbs of one rank's sums, over all layers. */
static size_t zp_whole_slices_limbs(const zero_ctx *z) { return z->whole->parts * 2 * ZP_LIMBS; }

/* Plans the buffers, after matrices are assigned and layers are counted. Returns their bytes. */
static size_t zp_whole_slices_plan(zero_ctx *z) {
    zp_whole_state *d = z->whole;
    size_t at;
    d->sliced = NULL;
    for (int t = 0; t < z->ntensors && z->rule->needs; t++)
        if (zp_whole_slices_count(&z->tensors[t]) > 1) d->sliced = &z->tensors[t];
    d->slices = d->sliced ? d->sliced->desc.slice_of->group.nranks : 1;
    d->slice = d->sliced ? d->sliced->desc.slice_of->group.rank : 0;
    d->shared_numel = d->whole_numel = 0;
    if (d->slices == 1) return 0;
    d->shared_numel = (size_t)d->slices * zp_whole_slices_of(z, d->slice, &at);
    for (int i = 0; i < z->whole->nmatrices; i++) {
        const zp_matrix *m = &z->whole->matrices[i];
        if (m->slices > 1 && zp_whole_slices_is_owner(z, m))
            d->whole_numel = zp_max(d->whole_numel, m->rows * m->cols);
    }
    return (d->shared_numel + d->whole_numel) * sizeof(float)
           + (size_t)d->slices * zp_whole_slices_limbs(z) * sizeof(zp_limb);
}

static void zp_whole_slices_cut(zero_ctx *z) {
    zp_whole_state *d = z->whole;
    const size_t limbs = (size_t)d->slices * zp_whole_slices_limbs(z);
    if (limbs) d->slice_sums = (zp_limb *)zp_ctx_cut_arena(z, limbs, sizeof *d->slice_sums);
    if (!d->nmatrices) return;
    d->shared = (float *)zp_ctx_cut_arena(z, d->shared_numel, sizeof *d->shared);
    d->whole = (float *)zp_ctx_cut_arena(z, d->whole_numel, sizeof *d->whole);
}

/* Bytes that this rank sends over the group in a step: if u is -1, its sums; otherwise its slices
   of unit u's matrices to their sharers, and, as a sharer, each other rank's slice back. */
static size_t zp_whole_slices_sent(const zero_ctx *z, int u) {
    const zp_whole_state *d = z->whole;
    size_t numel = 0;
    if (u < 0) return (size_t)(d->slices - 1) * zp_whole_slices_limbs(z) * sizeof(zp_limb);
    for (const zp_matrix *m = d->matrices; m < d->matrices + d->nmatrices; m++) {
        if (m->unit != u || m->owner != z->data->rank || m->slices == 1) continue;
        numel +=
            zp_round_up(m->numel, zp_align) * (m->sharer == d->slice ? (size_t)m->slices - 1 : 1);
    }
    return numel * sizeof(float);
}

/* ---- a step ---- */

typedef enum zp_whole_slices_what {
    ZP_SLICES_GATHER_SUMS,
    ZP_SLICES_COLLECT,
    ZP_SLICES_RETURN
} zp_whole_slices_what;
typedef struct zp_whole_slices_args {
    zero_ctx *z;
    zp_whole_slices_what what;
} zp_whole_slices_args;

/* Sends all slices to their sharers, or back to their owners. */
static zero_result zp_whole_slices_exchange(zero_ctx *z, zero_group *g, int back) {
    const zp_call call = {ZP_GROUP_ALL_TO_ALL, -1, 0};
    const zp_whole_state *d = z->whole;
    size_t at, mine = zp_whole_slices_of(z, d->slice, &at);
    zero_message *m = g->list;
    for (int sends = 1; sends >= 0; sends--)
        for (int i = 1; i < d->slices; i++) {
            const int peer = (d->slice + i) % d->slices;
            const size_t numel = zp_whole_slices_of(z, peer, &at);
            const int kept = sends != back;
            const zero_message one = {peer, sends,
                                      kept ? d->kept + at : d->shared + (size_t)peer * mine,
                                      (kept ? numel : mine) * sizeof(float)};
            *m = one;
            m += one.bytes > 0;
        }
    (void)zp_whole_slices_of(z, d->slice, &at);
    float *own = d->kept + at, *here = d->shared + (size_t)d->slice * mine;
    ZP_TRY(zp_device_copy(&g->stream, back ? own : here, back ? here : own, mine * sizeof *own));
    return zp_group_exchange_messages(g, &call, g->list, (int)(m - g->list));
}

static void zp_whole_slices_task(const void *args, size_t n, int threads) {
    const zp_whole_slices_args *a = (const zp_whole_slices_args *)args;
    zero_ctx *z = a->z;
    zp_whole_state *d = z->whole;
    zero_group *g = d->sliced->slice_group;
    const size_t bytes = zp_whole_slices_limbs(z) * sizeof(zp_limb);
    const zp_call call = {ZP_GROUP_ALL_GATHER, -1, bytes};
    const zp_parts sums = {d->slice_sums, bytes, bytes, SIZE_MAX};
    if (!g || zp_failure_result(&z->failure)) return;
    g->number++;
    zero_result r = a->what == ZP_SLICES_GATHER_SUMS
                        ? zp_group_gather_parts(g, &call, &sums)
                        : zp_whole_slices_exchange(z, g, a->what == ZP_SLICES_RETURN);
    r = zp_group_end(g, "what slices make whole", r);
    if (r) (void)zp_comm_fail(z->data, r, "%s", g->text);
}
static zero_result zp_whole_slices_send(zero_ctx *z, zp_whole_slices_what what) {
    const zp_whole_slices_args a = {z, what};
    if (zp_device_is_host())
        return zp_device_push_task(&z->stream[ZP_GRADIENTS], zp_whole_slices_task, &a, sizeof a, 1);
    zp_whole_slices_task(&a, 1, 1);
    return zp_failure_result(&z->failure);
}

/* Adds the sums of `ranks` shards, and gathers those of the other slices. */
static zero_result zp_whole_slices_add(zero_ctx *z, const zp_limb *sums, size_t stride, int ranks) {
    zp_stream *g = &z->stream[ZP_GRADIENTS];
    const size_t limbs = zp_whole_slices_limbs(z);
    zp_limb *mine = z->whole->slice_sums + (size_t)z->whole->slice * limbs;
    const zp_whole_slices_one_sum_args one = {sums, mine, stride, ranks};
    ZP_TRY(zp_whole_slices_one_sum(g, &one, limbs));
    for (int i = 0; i < z->ntensors && z->whole->slice; i++) {
        const zp_tensor *t = &z->tensors[i];
        const size_t layer = 2 * sizeof(zp_exact);
        if (zp_whole_slices_count(t) == 1)
            ZP_TRY(zp_device_clear(g, (char *)mine + (size_t)t->first_layer * layer,
                                   (size_t)t->desc.layers * layer));
    }
    z->data->meter.verdict_bytes += zp_whole_slices_sent(z, -1);
    return zp_whole_slices_send(z, ZP_SLICES_GATHER_SUMS);
}

/* Makes a matrix orthogonal after all its slices have arrived. */
static zero_result zp_whole_slices_orthogonalize(zero_ctx *z, zp_stream *s, const zp_matrix *m,
                                                 const zp_control *control) {
    const zp_whole_state *d = z->whole;
    size_t at;
    const size_t mine = zp_whole_slices_of(z, d->slice, &at), slices = (size_t)d->slices;
    zp_whole_slices_copy_args part = {NULL, d->whole, m->numel / m->outer, 0, slices, 0};
    for (part.back = 0; part.back < 2; part.back++) {
        for (part.rank = 0; part.rank < slices; part.rank++) {
            part.slice = d->shared + part.rank * mine + (m->kept - at);
            ZP_TRY(zp_whole_slices_copy(s, &part, m->numel));
        }
        if (!part.back)
            ZP_TRY(zp_muon_orthogonalize(s, d->whole, m->rows, m->cols, &z->cfg.muon, d->scratch,
                                         d->norm, control));
    }
    return ZERO_OK;
}

/* Collects slices before stream s works on matrices, and returns them after. */
static zero_result zp_whole_slices_collect(zero_ctx *z, zp_stream *s) {
    zp_stream *g = &z->stream[ZP_GRADIENTS];
    ZP_TRY(zp_whole_slices_send(z, ZP_SLICES_COLLECT));
    ZP_TRY(zp_device_record_event(g, &z->whole->event[ZP_SUMMED]));
    return zp_device_wait_event(s, &z->whole->event[ZP_SUMMED]);
}
static zero_result zp_whole_slices_return(zero_ctx *z, zp_stream *s) {
    zp_stream *g = &z->stream[ZP_GRADIENTS];
    ZP_TRY(zp_device_record_event(s, &z->whole->event[ZP_ENDED]));
    ZP_TRY(zp_device_wait_event(g, &z->whole->event[ZP_ENDED]));
    for (int u = 0; u < z->layout.all; u++) z->data->meter.sent_bytes += zp_whole_slices_sent(z, u);
    return zp_whole_slices_send(z, ZP_SLICES_RETURN);
}

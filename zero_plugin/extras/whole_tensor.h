/* whole_tensor.h - whole tensors between the two passes of an optimizer rule

   A rule that needs norms or matrices passes twice over this rank's shards (see rules.h). Shards
   stay in place. Between the passes, the ranks compute what the rule needs of whole tensors.

   NORMS. Every rank sums the squares of its shards exactly, by layer of each tensor (see exact.h).
   One all-gather of these sums, ZP_LIMBS words each, gives the same trust ratios on all ranks. At
   stage 0 each rank has everything and sends nothing.

   MATRIX. Each matrix has an owner, assigned by cost (see muon.h). A place has room for one unit in
   f32. There are ZP_PLACES places, or fewer if fewer units have matrices. Units use them
   cyclically, in the order of updates.

     compute (or updates)  the first pass writes the directions of its shard to the place: `full`
     gradient stream       all-gathers the place (not at stage 0); each owner copies its matrices
                           out: `read`
     compute (or updates)  after the pass over all units, each owner makes its matrices orthogonal,
                           one by one: `ended`
     gradient stream       writes the owned matrices of a unit to its place, among zeros, and
                           reduce-scatters it: x + 0 + ... is x. Stage 0 then gathers it. `full`
     compute (or updates)  the last pass reads its shard from the place: `read`

   All of this follows the decision about skipping. Messages are sent even in a skipped step, since
   ranks may learn of the decision late. Its arithmetic is left out.

   For tensor-parallel slices, see whole_slices.h: it adds sums before the ratios, and collects
   slices around the owners' work. Delayed updates do the same during the next step's forward. Rules
   that need no whole tensors use none of this. */
#pragma once

#include "../core/extra.h"
#include "whole_slices.h"

/* ---- the plan ---- */

static int zp_whole_tensor_is_whole(const zero_ctx *z) { return z->policy.state == ZP_WHOLE; }
static int zp_whole_tensor_has_matrices(const zero_ctx *z, int u) {
    return z->layout.unit[u].matrices > 0;
}

/* Returns the scale of an update of the tensor's matrices, by their shape; 0: it has none. */
static float zp_whole_tensor_scale(const zero_ctx *z, const zp_tensor *t) {
    const double rows = (double)t->rows, cols = (double)t->cols;
    if (!t->rows) return 0;
    if (z->cfg.muon.match_rms) return (float)(0.2 * sqrt(rows > cols ? rows : cols));
    return (float)sqrt(rows > cols ? rows / cols : 1);
}

/* Describes the all-gather of every rank's sums of squares. */
static zp_op zp_whole_tensor_sums_op(zero_ctx *z) {
    zp_op op = zp_ctx_make_op(z, ZP_GRADIENTS, ZP_ALL_GATHER, 0);
    op.unit = -1;
    op.type = ZERO_F32;
    op.shard = z->deal.sums_bytes / sizeof(float);
    op.target = z->deal.sums_at;
    op.source = op.target + (size_t)z->data->rank * z->deal.sums_bytes;
    return op;
}
/* Describes the gather of a place, or its reduction to shards in place. */
static zp_op zp_whole_tensor_op(zero_ctx *z, int u, int kind, int place) {
    zp_op op = zp_ctx_make_op(z, ZP_GRADIENTS, kind, u);
    const size_t at = z->deal.place_at + (size_t)place * z->deal.place_bytes;
    const size_t shard = at + (size_t)z->data->rank * op.shard * sizeof(float);
    op.type = ZERO_F32;
    op.scale = 1;
    op.source = kind == ZP_ALL_GATHER ? shard : at;
    op.target = kind == ZP_ALL_GATHER ? at : shard;
    return op;
}
/* Bytes that this rank sends: for a unit (a gather and a reduction), and for sums. */
static size_t zp_whole_tensor_sent(zero_ctx *z, int u) {
    const zp_op gather = zp_whole_tensor_op(z, u, ZP_ALL_GATHER, 0),
                reduce = zp_whole_tensor_op(z, u, ZP_REDUCE_SCATTER, 0);
    return zp_whole_tensor_has_matrices(z, u)
               ? zp_comm_op_bytes(&gather) + zp_comm_op_bytes(&reduce) + zp_whole_slices_sent(z, u)
               : 0;
}
static size_t zp_whole_tensor_sums_sent(zero_ctx *z) {
    const zp_op op = zp_whole_tensor_sums_op(z);
    const size_t gathered =
        z->deal.parts && !zp_whole_tensor_is_whole(z) ? zp_comm_op_bytes(&op) : 0;
    return gathered + zp_whole_slices_sums_sent(z);
}

/* Arrays of sums of one rank: the device has one, the CPU's update another. */
static int zp_whole_tensor_slots(const zero_ctx *z) { return 1 + z->cpu_updates; }

static void zp_whole_tensor_plan(zero_ctx *z) {
    zp_whole_tensor *d = &z->deal;
    const zp_layout *l = &z->layout;
    d->parts = zp_ctx_normed_layers(z);
    d->sums_bytes =
        zp_round_up(d->parts * 2 * sizeof(zp_exact), 256) * (size_t)zp_whole_tensor_slots(z);
    d->place_bytes = d->kept_numel = d->scratch_numel = 0;
    d->places = 0;
    const size_t of_slices = zp_whole_slices_plan(z);
    for (int u = 0; u < l->all; u++) {
        const size_t bytes = zp_round_up(l->unit[u].padded * sizeof(float), 256);
        if (!zp_whole_tensor_has_matrices(z, u)) continue;
        d->place_bytes = zp_max(d->place_bytes, bytes);
        d->places = (int)zp_min(ZP_PLACES, (size_t)d->places + 1);
    }
    for (int i = 0; i < l->nmatrices; i++) {
        const zp_matrix *m = &l->matrices[i];
        if (m->owner == z->data->rank) d->kept_numel += zp_round_up(m->numel, zp_align);
        if (!zp_whole_slices_is_owner(z, m)) continue;
        d->scratch_numel = zp_max(d->scratch_numel, zp_muon_scratch_numel(m->rows, m->cols));
    }
    const size_t bytes = (size_t)z->data->nranks * d->sums_bytes
                         + (size_t)d->places * d->place_bytes
                         + (d->kept_numel + d->scratch_numel) * sizeof(float)
                         + d->parts * sizeof *d->trust + of_slices;
    z->plan.buffer_bytes += bytes;
    z->plan.buffer_ceiling_bytes += bytes;
}

/* Cuts the part of the gradients' memory that peers read, from `at` on. Returns its end. */
static size_t zp_whole_tensor_cut_gradients(zero_ctx *z, size_t at) {
    zp_whole_tensor *d = &z->deal;
    if (!d->parts && !d->place_bytes) return at;
    d->sums_at = zp_round_up(at, 256);
    d->place_at = d->sums_at + (size_t)z->data->nranks * d->sums_bytes;
    return d->place_at + (size_t)d->places * d->place_bytes;
}

/* ---- a step ---- */

static char *zp_whole_tensor_at(const zero_ctx *z, size_t at) {
    return z->memory[ZP_GRAD].base + at;
}
static float *zp_whole_tensor_place(const zero_ctx *z, int place) {
    const size_t at = z->deal.place_at + (size_t)place * z->deal.place_bytes;
    return (float *)(void *)zp_whole_tensor_at(z, at);
}
static zp_limb *zp_whole_tensor_sums(const zero_ctx *z) {
    const size_t at = z->deal.sums_at + (size_t)z->data->rank * z->deal.sums_bytes;
    return (zp_limb *)(void *)zp_whole_tensor_at(z, at);
}
/* The place of unit u: units use the places cyclically. */
static int zp_whole_tensor_place_of(const zero_ctx *z, int u) {
    int turn = 0;
    for (int v = 0; v < u; v++) turn += zp_whole_tensor_has_matrices(z, v);
    return z->deal.places ? turn % z->deal.places : 0;
}
/* The stream that makes matrices orthogonal. */
static zp_stream *zp_whole_tensor_stream(zero_ctx *z) {
    return z->updates.device ? &z->updates : &z->compute;
}

/* Fills the fields of an update of unit u that begins at element `first`. */
static void zp_whole_tensor_fill_update(const zero_ctx *z, int u, size_t first, zp_update *a) {
    if (z->deal.parts) a->sums = zp_whole_tensor_sums(z);
    a->trust = z->deal.trust;
    a->momentum = z->cfg.muon.momentum;
    a->nesterov = !z->cfg.muon.no_nesterov;
    if (zp_whole_tensor_has_matrices(z, u))
        a->direction = zp_whole_tensor_place(z, zp_whole_tensor_place_of(z, u)) + first;
}

/* Copies the matrices of unit u that this rank owns out of its place, or back. */
static zero_result zp_whole_tensor_copy_matrices(zero_ctx *z, int u, float *place, int back) {
    for (int i = 0; i < z->layout.nmatrices; i++) {
        const zp_matrix *m = &z->layout.matrices[i];
        float *here = z->deal.kept + m->kept, *there = place + m->at;
        if (m->unit != u || m->owner != z->data->rank) continue;
        ZP_TRY(zp_device_copy(&z->stream[ZP_GRADIENTS], back ? there : here, back ? here : there,
                              m->numel * sizeof(float)));
    }
    return ZERO_OK;
}

/* Runs before stream s begins a pass over unit u. */
static zero_result zp_whole_tensor_begin_pass(zero_ctx *z, int u, int pass, zp_stream *s) {
    zp_whole_tensor *d = &z->deal;
    zp_stream *g = &z->stream[ZP_GRADIENTS];
    const int place = zp_whole_tensor_place_of(z, u);
    if (d->parts) return zp_device_wait_event(s, d->summed);
    if (!zp_whole_tensor_has_matrices(z, u)) return ZERO_OK;
    if (!pass) return zp_device_wait_event(s, d->read[place]);
    const zp_op reduce = zp_whole_tensor_op(z, u, ZP_REDUCE_SCATTER, place),
                gather = zp_whole_tensor_op(z, u, ZP_ALL_GATHER, place);
    float *memory = zp_whole_tensor_place(z, place);
    ZP_TRY(zp_device_wait_event(g, d->ended));
    ZP_TRY(zp_device_wait_event(g, d->read[place]));
    ZP_TRY(zp_device_clear(g, memory, z->layout.unit[u].padded * sizeof(float)));
    ZP_TRY(zp_whole_tensor_copy_matrices(z, u, memory, 1));
    ZP_TRY(zp_comm_issue(g, &reduce, 1));
    if (zp_whole_tensor_is_whole(z)) ZP_TRY(zp_comm_issue(g, &gather, 1));
    ZP_TRY(zp_device_record_event(g, d->full[place]));
    ZP_TRY(zp_device_wait_event(s, d->full[place]));
    return zp_extra_inputs_down(z, u, d->full[place], memory + zp_ctx_own_part(z, u)->first);
}
/* Runs after that pass is enqueued. */
static zero_result zp_whole_tensor_end_pass(zero_ctx *z, int u, int pass, zp_stream *s) {
    zp_whole_tensor *d = &z->deal;
    zp_stream *g = &z->stream[ZP_GRADIENTS];
    const int place = zp_whole_tensor_place_of(z, u);
    if (!zp_whole_tensor_has_matrices(z, u)) return ZERO_OK;
    if (pass) return zp_device_record_event(s, d->read[place]);
    const zp_op gather = zp_whole_tensor_op(z, u, ZP_ALL_GATHER, place);
    ZP_TRY(zp_extra_results_up(z, u, s,
                               zp_whole_tensor_place(z, place) + zp_ctx_own_part(z, u)->first));
    ZP_TRY(zp_device_record_event(s, d->full[place]));
    ZP_TRY(zp_device_wait_event(g, d->full[place]));
    if (!zp_whole_tensor_is_whole(z)) ZP_TRY(zp_comm_issue(g, &gather, 1));
    ZP_TRY(zp_whole_tensor_copy_matrices(z, u, zp_whole_tensor_place(z, place), 0));
    return zp_device_record_event(g, d->read[place]);
}

/* Between the passes, turns sums into trust ratios and clears this rank's sums. */
static zero_result zp_whole_tensor_compute_ratios(zero_ctx *z) {
    zp_whole_tensor *d = &z->deal;
    zp_stream *g = &z->stream[ZP_GRADIENTS], *from[2] = {&z->compute, &z->updates};
    const zp_op op = zp_whole_tensor_sums_op(z);
    const int whole = zp_whole_tensor_is_whole(z), slots = zp_whole_tensor_slots(z);
    const size_t slot = d->sums_bytes / (size_t)slots;
    const char *sums =
        whole ? (const char *)zp_whole_tensor_sums(z) : zp_whole_tensor_at(z, d->sums_at);
    zp_exact_trust_args trust = {
        (const zp_limb *)(const void *)sums,   d->trust,           slot / sizeof(zp_limb),
        slots * (whole ? 1 : z->data->nranks), z->cfg.trust_least, z->cfg.trust_most};
    ZP_TRY(zp_extra_results_up(z, -1, &z->updates, (char *)zp_whole_tensor_sums(z) + slot));
    for (int i = 0; i < 2 && from[i]->device; i++) {
        ZP_TRY(zp_device_record_event(from[i], d->full[i]));
        ZP_TRY(zp_device_wait_event(g, d->full[i]));
    }
    if (!whole) ZP_TRY(zp_comm_issue(g, &op, 1));
    if (d->slices > 1) {
        ZP_TRY(zp_whole_slices_add(z, trust.sums, trust.stride, trust.ranks));
        trust.sums = d->slice_sums;
        trust.stride = zp_whole_slices_limbs(z);
        trust.ranks = d->slices;
    }
    ZP_TRY(zp_exact_trust(g, &trust, d->parts));
    ZP_TRY(zp_device_clear(g, zp_whole_tensor_sums(z), d->sums_bytes));
    ZP_TRY(zp_device_record_event(g, d->summed));
    return zp_extra_inputs_down(z, -1, d->summed, d->trust);
}

/* Enqueues all work on whole tensors, after the first pass over all units. */
static zero_result zp_whole_tensor_between_passes(zero_ctx *z, const zp_control *control) {
    zp_whole_tensor *d = &z->deal;
    zp_stream *s = zp_whole_tensor_stream(z);
    if (d->parts) return zp_whole_tensor_compute_ratios(z);
    /* A CPU build knows the decision here: `control` may change while this work runs. */
    const int left_out = zp_device_is_host() && control->skip;
    control = zp_device_is_host() ? NULL : z->decision;
    for (int i = 0; i < d->places; i++) ZP_TRY(zp_device_wait_event(s, d->read[i]));
    ZP_TRY(zp_whole_slices_collect(z, s));
    for (int i = 0; i < z->layout.nmatrices; i++) {
        const zp_matrix *m = &z->layout.matrices[i];
        if (!zp_whole_slices_is_owner(z, m) || left_out) continue;
        ZP_TRY(m->slices > 1
                   ? zp_whole_slices_orthogonalize(z, s, m, control)
                   : zp_muon_orthogonalize(s, d->kept + m->kept, m->rows, m->cols,
                                           z->cfg.muon.turns, d->scratch, d->norm, control));
    }
    ZP_TRY(zp_whole_slices_return(z, s));
    return zp_device_record_event(d->slices > 1 ? &z->stream[ZP_GRADIENTS] : s, d->ended);
}

/* ---- the row ---- */

static zero_result zp_whole_tensor_layout(zero_ctx *z) {
    return zp_muon_layout_matrices(&z->layout, z->tensors, z->data->nranks);
}
static void zp_whole_tensor_cut(zero_ctx *z, size_t *at) {
    zp_whole_tensor *d = &z->deal;
    if (d->parts) d->trust = (double *)zp_ctx_cut_arena(z, at, d->parts, sizeof *d->trust);
    if (d->parts && d->slices > 1)
        d->slice_sums = (zp_limb *)zp_ctx_cut_arena(
            z, at, (size_t)d->slices * zp_whole_slices_limbs(z), sizeof *d->slice_sums);
    if (!z->layout.nmatrices) return;
    d->norm = (double *)zp_ctx_cut_arena(z, at, 1, sizeof *d->norm);
    d->kept = (float *)zp_ctx_cut_arena(z, at, d->kept_numel, sizeof *d->kept);
    d->scratch = (float *)zp_ctx_cut_arena(z, at, d->scratch_numel, sizeof *d->scratch);
    if (d->slices == 1) return;
    d->shared = (float *)zp_ctx_cut_arena(z, at, d->shared_numel, sizeof *d->shared);
    d->whole = (float *)zp_ctx_cut_arena(z, at, d->whole_numel, sizeof *d->whole);
}
static size_t zp_whole_tensor_row_sent(zero_ctx *z, int u) {
    return u < 0 ? zp_whole_tensor_sums_sent(z) : zp_whole_tensor_sent(z, u);
}
static zero_result zp_whole_tensor_between(zero_ctx *z) {
    return zp_whole_tensor_between_passes(z, z->control);
}
static void zp_whole_tensor_span(const zero_ctx *z, const zp_tensor *t, zp_span *span) {
    span->shape = zp_whole_tensor_scale(z, t);
}
static zp_extra zp_whole_tensor_row(void) {
    zp_extra x;
    memset(&x, 0, sizeof x);
    x.name = "rules for whole tensors";
    x.layout = zp_whole_tensor_layout;
    x.plan = zp_whole_tensor_plan;
    x.sent = zp_whole_tensor_row_sent;
    x.cut = zp_whole_tensor_cut;
    x.cut_gradients = zp_whole_tensor_cut_gradients;
    x.before_update = zp_whole_tensor_begin_pass;
    x.after_update = zp_whole_tensor_end_pass;
    x.between_passes = zp_whole_tensor_between;
    x.fill_update = zp_whole_tensor_fill_update;
    x.span = zp_whole_tensor_span;
    return x;
}

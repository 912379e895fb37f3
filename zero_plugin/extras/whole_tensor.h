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

   For tensor-parallel slices, whole_slices.h adds sums before the ratios, and collects slices
   around the owners' work. Delayed updates do the same during the next step's forward. Rules
   that need no whole tensors use none of this. */
#pragma once

#include "../core/bind.h"
#include "../core/ranges.h"
#include "../core/step.h"
#include "whole_rules.h"
#include "whole_slices.h"

/* ---- the plan ---- */

/* Returns the scale of an update of the tensor's matrices, by their shape; 0: it has none. */
static float zp_whole_tensor_scale(const zero_ctx *z, const zp_tensor *t) {
    const double rows = (double)t->desc.rows, cols = (double)t->desc.cols;
    if (!t->one_state) return 0;
    if (z->cfg.muon.match_rms) return (float)(0.2 * sqrt(rows > cols ? rows : cols));
    return (float)sqrt(rows > cols ? rows / cols : 1);
}

/* Describes the all-gather of every rank's sums of squares. */
static zp_op zp_whole_tensor_sums_op(zero_ctx *z) {
    zp_op op = zp_ctx_make_op(z, ZP_GRADIENTS, ZP_ALL_GATHER, 0);
    op.unit = -1;
    op.type = ZERO_F32;
    op.shard = z->whole->sums_bytes / sizeof(float);
    op.target = z->peer_at + z->whole->sums_at;
    op.source = op.target + (size_t)z->data->rank * z->whole->sums_bytes;
    return op;
}
/* Describes the gather of a place, or its reduction to shards in place. */
static zp_op zp_whole_tensor_op(zero_ctx *z, int u, int kind, int place) {
    zp_op op = zp_ctx_make_op(z, ZP_GRADIENTS, kind, u);
    const size_t at = z->peer_at + z->whole->place_at + (size_t)place * z->whole->place_bytes;
    const size_t shard = at + (size_t)z->data->rank * op.shard * sizeof(float);
    op.type = ZERO_F32;
    op.scale = 1;
    op.source = kind == ZP_ALL_GATHER ? shard : at;
    op.target = kind == ZP_ALL_GATHER ? at : shard;
    return op;
}
/* Returns the bytes that this rank sends for a unit (a gather and a reduction); -1: for sums. */
static size_t zp_whole_tensor_sent(zero_ctx *z, int u) {
    const zp_whole_state *d = z->whole;
    const size_t slices = d->slices > 1 ? zp_whole_slices_sent(z, u) : 0;
    if (u < 0) {
        const zp_op sums = zp_whole_tensor_sums_op(z);
        return slices + (d->parts && !zp_reduce_is_whole(z) ? zp_comm_op_bytes(&sums) : 0);
    }
    if (!zp_layout_has_one_state(&z->layout, u)) return 0;
    const zp_op gather = zp_whole_tensor_op(z, u, ZP_ALL_GATHER, 0),
                reduce = zp_whole_tensor_op(z, u, ZP_REDUCE_SCATTER, 0);
    return slices + zp_comm_op_bytes(&gather) + zp_comm_op_bytes(&reduce);
}

/* Arrays of sums of one rank: the device has one, and the updater may have another. */
static int zp_whole_tensor_slots(const zero_ctx *z) { return 1 + z->more_sums; }

/* Adds the moments of rows to the state, as MOMENT_2: an element of a matrix has that of its row.
   An owner saves and loads its matrices. Rank 0 saves zeros for frozen layers. */
static zero_result zp_whole_tensor_add_state(zero_ctx *z) {
    const zp_whole_state *d = z->whole;
    const zp_layout *l = &z->layout;
    if (!(z->cfg.muon.normalize > 0) || !(z->rule->needs & ZP_MATRICES)) return ZERO_OK;
    ZP_REFUSE(z, d->slices > 1,
              "muon.normalize is %g, but tensor %s is a slice, and no rank has its rows; use 0, or "
              "whole tensors",
              (double)z->cfg.muon.normalize, d->sliced->desc.name);
    for (int whole = 0; whole < 2; whole++) {
        for (const zp_matrix *m = d->matrices; m < d->matrices + d->nmatrices; m++) {
            const zero_range r = {z->tensors[m->tensor].desc.name, ZERO_MOMENT_2, ZERO_F32,
                                  m->first, m->numel};
            if (m->owner == z->data->rank && (whole || !z->copy))
                ZP_TRY(zp_range_add(z, whole, &r));
        }
        for (int i = 0; i < l->nmembers && !whole && !z->copy && z->data->rank == 0; i++) {
            const zp_member *m = &l->members[i];
            const zp_tensor *t = &z->tensors[m->tensor];
            const zero_range r = {t->desc.name, ZERO_MOMENT_2, ZERO_F32, m->first, m->numel};
            if (t->one_state && m->unit >= l->all && !(t->desc.flags & ZERO_FROZEN))
                ZP_TRY(zp_range_add(z, whole, &r));
        }
    }
    return ZERO_OK;
}

/* Copies the moments of rows [row, row + n) of an owned matrix to the staging buffer, or back. */
static zero_result zp_whole_tensor_copy_moments(zero_ctx *z, const zp_matrix *m, size_t row,
                                                size_t n, int back) {
    char *stage = z->data->stage.base;
    float *here = z->whole->moments + m->moments + row;
    ZP_DO(z, zp_device_copy(&z->compute, back ? (void *)here : stage, back ? stage : (void *)here,
                            n * sizeof *here));
    return zp_ctx_check(z, zp_device_sync_stream(&z->compute));
}
/* Copies the part of a range that is in matrix m, by rows. A put takes the first element of a row.
 */
static zero_result zp_whole_tensor_move_moments(zero_ctx *z, const zp_matrix *m,
                                                const zero_range *r, const char *values,
                                                float *out) {
    float *stage = (float *)(void *)z->data->stage.base;
    const size_t begin = zp_max(r->first, m->first) - m->first,
                 end = zp_min(r->first + r->count, m->first + m->numel) - m->first;
    for (size_t row = out ? begin / m->cols : zp_round_up(begin, m->cols) / m->cols, n;
         row * m->cols < end; row += n) {
        n = zp_min(ZP_STAGE_NUMEL, (end - 1) / m->cols + 1 - row);
        for (size_t i = 0; i < n && !out; i++)
            stage[i] = zp_type_load(values, r->type, m->first + (row + i) * m->cols - r->first);
        ZP_TRY(zp_whole_tensor_copy_moments(z, m, row, n, !out));
        for (size_t e = zp_max(row * m->cols, begin); out && e < zp_min((row + n) * m->cols, end);
             e++)
            out[m->first + e - r->first] = stage[e / m->cols - row];
    }
    return ZERO_OK;
}
static zero_result zp_whole_tensor_move_state(zero_ctx *z, const zero_range *r, const char *values,
                                              char *out, int *mine) {
    const zp_whole_state *d = z->whole;
    zp_tensor *t;
    if (!(z->cfg.muon.normalize > 0) || r->kind != ZERO_MOMENT_2) return ZERO_OK;
    ZP_TRY(zp_bind_named_tensor(z, r->name, &t));
    *mine = t->one_state && !(t->desc.flags & ZERO_FROZEN);
    if (!*mine) return ZERO_OK;
    const size_t total = t->desc.numel * (size_t)t->desc.layers;
    ZP_REFUSE(z,
              r->first > total || r->count > total - r->first || (int)r->type < 0
                  || r->type >= ZERO_TYPES || (out && r->type != ZERO_F32) || (!values && !out),
              "%s: expected values of [0, %zu) in f32, found [%zu, %zu) in type %d", r->name, total,
              r->first, r->first + r->count, (int)r->type);
    if (out) memset(out, 0, r->count * sizeof(float)); /* of frozen layers */
    for (const zp_matrix *m = d->matrices; m < d->matrices + d->nmatrices; m++) {
        if (&z->tensors[m->tensor] != t || m->first >= r->first + r->count
            || m->first + m->numel <= r->first)
            continue;
        ZP_REFUSE(z, out && m->owner != z->data->rank,
                  "%s: element %zu is kept by rank %d; use zero_state_range", r->name, m->first,
                  m->owner);
        if (m->owner == z->data->rank)
            ZP_TRY(zp_whole_tensor_move_moments(z, m, r, values, (float *)(void *)out));
    }
    return ZERO_OK;
}

static zero_result zp_whole_tensor_plan(zero_ctx *z) {
    zp_whole_state *d = z->whole;
    const zp_layout *l = &z->layout;
    d->parts = zp_ctx_normed_layers(z);
    d->sums_bytes = zp_round_up(zp_whole_slices_limbs(z) * sizeof(zp_limb), 256)
                    * (size_t)zp_whole_tensor_slots(z);
    d->place_bytes = d->kept_numel = d->scratch_numel = d->moments_numel = 0;
    d->places = 0;
    const size_t of_slices = zp_whole_slices_plan(z);
    for (int u = 0; u < l->all; u++) {
        const size_t bytes = zp_round_up(l->unit[u].padded * sizeof(float), 256);
        if (!zp_layout_has_one_state(&z->layout, u)) continue;
        d->place_bytes = zp_max(d->place_bytes, bytes);
        d->places = (int)zp_min(ZP_PLACES, (size_t)d->places + 1);
    }
    for (zp_matrix *m = d->matrices; m < d->matrices + d->nmatrices; m++) {
        if (m->owner == z->data->rank) d->kept_numel += zp_round_up(m->numel, zp_align);
        if (!zp_whole_slices_is_owner(z, m)) continue;
        m->moments = d->moments_numel;
        d->moments_numel += z->cfg.muon.normalize > 0 ? m->rows : 0;
        d->scratch_numel = zp_max(d->scratch_numel, zp_muon_scratch_numel(m->rows, m->cols));
    }
    const size_t bytes = (size_t)z->data->nranks * d->sums_bytes
                         + (size_t)d->places * d->place_bytes
                         + (d->kept_numel + d->scratch_numel + d->moments_numel) * sizeof(float)
                         + d->parts * sizeof *d->trust + of_slices;
    z->plan.buffer_bytes += bytes;
    z->plan.buffer_ceiling_bytes += bytes;
    z->plan.context_bytes += (size_t)d->nmatrices * sizeof *d->matrices;
    d->sums_at = z->peer_bytes;
    d->place_at = d->sums_at + (size_t)z->data->nranks * d->sums_bytes;
    z->peer_bytes = d->place_at + (size_t)d->places * d->place_bytes;
    return zp_whole_tensor_add_state(z);
}

/* ---- a step ---- */

static char *zp_whole_tensor_at(const zero_ctx *z, size_t at) {
    return z->memory[ZP_GRAD].base + z->peer_at + at;
}
static float *zp_whole_tensor_place(const zero_ctx *z, int place) {
    const size_t at = z->whole->place_at + (size_t)place * z->whole->place_bytes;
    return (float *)(void *)zp_whole_tensor_at(z, at);
}
static zp_limb *zp_whole_tensor_sums(const zero_ctx *z) {
    const size_t at = z->whole->sums_at + (size_t)z->data->rank * z->whole->sums_bytes;
    return (zp_limb *)(void *)zp_whole_tensor_at(z, at);
}
/* The place of unit u: units use the places cyclically. */
static int zp_whole_tensor_place_of(const zero_ctx *z, int u) {
    int before = 0;
    for (int v = 0; v < u; v++) before += zp_layout_has_one_state(&z->layout, v);
    return z->whole->places ? before % z->whole->places : 0;
}

/* Fills the fields of an update of unit u that begins at element `first`. */
static void zp_whole_tensor_fill_update(const zero_ctx *z, int u, size_t first, zp_update *a) {
    if (z->whole->parts) a->sums = zp_whole_tensor_sums(z);
    a->trust = z->whole->trust;
    a->momentum = z->cfg.muon.momentum;
    a->nesterov = !z->cfg.muon.no_nesterov;
    if (zp_layout_has_one_state(&z->layout, u))
        a->direction = zp_whole_tensor_place(z, zp_whole_tensor_place_of(z, u)) + first;
}

/* Copies the matrices of unit u that this rank owns out of its place, or back. */
static zero_result zp_whole_tensor_copy_matrices(zero_ctx *z, int u, float *place, int back) {
    const zp_whole_state *d = z->whole;
    for (const zp_matrix *m = d->matrices; m < d->matrices + d->nmatrices; m++) {
        float *here = d->kept + m->kept, *there = place + m->at;
        if (m->unit != u || m->owner != z->data->rank) continue;
        ZP_TRY(zp_device_copy(&z->stream[ZP_GRADIENTS], back ? there : here, back ? here : there,
                              m->numel * sizeof(float)));
    }
    return ZERO_OK;
}

/* Station: before unit u's stream begins a pass over the unit. */
static zero_result zp_whole_tensor_begin_pass(zero_ctx *z, int u) {
    zp_stream *s = zp_step_stream(z, u);
    zp_whole_state *d = z->whole;
    zp_stream *g = &z->stream[ZP_GRADIENTS];
    const int place = zp_whole_tensor_place_of(z, u);
    if (d->parts) return zp_device_wait_event(s, &d->event[ZP_SUMMED]);
    if (!zp_layout_has_one_state(&z->layout, u)) return ZERO_OK;
    if (!z->rule_pass) return zp_device_wait_event(s, &d->event[ZP_READ + place]);
    const zp_op reduce = zp_whole_tensor_op(z, u, ZP_REDUCE_SCATTER, place),
                gather = zp_whole_tensor_op(z, u, ZP_ALL_GATHER, place);
    float *memory = zp_whole_tensor_place(z, place);
    ZP_TRY(zp_device_wait_event(g, &d->event[ZP_ENDED]));
    ZP_TRY(zp_device_wait_event(g, &d->event[ZP_READ + place]));
    ZP_TRY(zp_device_clear(g, memory, z->layout.unit[u].padded * sizeof(float)));
    ZP_TRY(zp_whole_tensor_copy_matrices(z, u, memory, 1));
    ZP_TRY(zp_comm_issue(g, &reduce, 1));
    if (zp_reduce_is_whole(z)) ZP_TRY(zp_comm_issue(g, &gather, 1));
    ZP_TRY(zp_device_record_event(g, &d->event[ZP_FULL + place]));
    ZP_TRY(zp_device_wait_event(s, &d->event[ZP_FULL + place]));
    const zp_updater *by = z->live[u].updater;
    if (!by->inputs_down) return ZERO_OK;
    return by->inputs_down(z, u, &d->event[ZP_FULL + place], memory + zp_ctx_own_part(z, u)->first);
}
/* Station: after that pass is enqueued. */
static zero_result zp_whole_tensor_end_pass(zero_ctx *z, int u) {
    zp_stream *s = zp_step_stream(z, u);
    zp_whole_state *d = z->whole;
    zp_stream *g = &z->stream[ZP_GRADIENTS];
    const int place = zp_whole_tensor_place_of(z, u);
    if (!zp_layout_has_one_state(&z->layout, u)) return ZERO_OK;
    if (z->rule_pass) return zp_device_record_event(s, &d->event[ZP_READ + place]);
    const zp_op gather = zp_whole_tensor_op(z, u, ZP_ALL_GATHER, place);
    const zp_updater *by = z->live[u].updater;
    if (by->results_up)
        ZP_TRY(by->results_up(z, u, s,
                              zp_whole_tensor_place(z, place) + zp_ctx_own_part(z, u)->first));
    ZP_TRY(zp_device_record_event(s, &d->event[ZP_FULL + place]));
    ZP_TRY(zp_device_wait_event(g, &d->event[ZP_FULL + place]));
    if (!zp_reduce_is_whole(z)) ZP_TRY(zp_comm_issue(g, &gather, 1));
    ZP_TRY(zp_whole_tensor_copy_matrices(z, u, zp_whole_tensor_place(z, place), 0));
    return zp_device_record_event(g, &d->event[ZP_READ + place]);
}

/* Between the passes, turns sums into trust ratios and clears this rank's sums. */
static zero_result zp_whole_tensor_compute_ratios(zero_ctx *z) {
    zp_whole_state *d = z->whole;
    zp_stream *g = &z->stream[ZP_GRADIENTS], *from[2] = {&z->compute, &z->updates};
    const zp_op op = zp_whole_tensor_sums_op(z);
    const int whole = zp_reduce_is_whole(z), slots = zp_whole_tensor_slots(z);
    const size_t slot = d->sums_bytes / (size_t)slots;
    const char *sums =
        whole ? (const char *)zp_whole_tensor_sums(z) : zp_whole_tensor_at(z, d->sums_at);
    zp_exact_trust_args trust = {
        (const zp_limb *)(const void *)sums,   d->trust,           slot / sizeof(zp_limb),
        slots * (whole ? 1 : z->data->nranks), z->cfg.trust_least, z->cfg.trust_most};
    if (z->more_sums)
        ZP_TRY(z->updater->results_up(z, -1, &z->updates, (char *)zp_whole_tensor_sums(z) + slot));
    for (int i = 0; i < 2 && from[i]->device; i++) {
        ZP_TRY(zp_device_record_event(from[i], &d->event[ZP_FULL + i]));
        ZP_TRY(zp_device_wait_event(g, &d->event[ZP_FULL + i]));
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
    ZP_TRY(zp_device_record_event(g, &d->event[ZP_SUMMED]));
    return z->more_sums ? z->updater->inputs_down(z, -1, &d->event[ZP_SUMMED], d->trust) : ZERO_OK;
}

/* Enqueues all work on whole tensors, after the first pass over all units. */
static zero_result zp_whole_tensor_between_passes(zero_ctx *z) {
    zp_whole_state *d = z->whole;
    zp_stream *s = z->updates.device ? &z->updates : &z->compute; /* makes matrices orthogonal */
    const zp_control *control = z->control;
    z->rule_pass = 1;
    if (d->parts) return zp_whole_tensor_compute_ratios(z);
    /* A CPU build knows the decision here: `control` may change while this work runs. */
    const int sliced = d->slices > 1 && d->nmatrices;
    const int left_out = zp_device_is_host() && control->skip;
    control = zp_device_is_host() ? NULL : z->decision;
    for (int i = 0; i < d->places; i++) ZP_TRY(zp_device_wait_event(s, &d->event[ZP_READ + i]));
    if (sliced) ZP_TRY(zp_whole_slices_collect(z, s));
    for (const zp_matrix *m = d->matrices; m < d->matrices + d->nmatrices; m++) {
        if (!zp_whole_slices_is_owner(z, m) || left_out) continue;
        ZP_TRY(m->slices > 1 ? zp_whole_slices_orthogonalize(z, s, m, control)
                             : zp_muon_orthogonalize(s, d->kept + m->kept, m->rows, m->cols,
                                                     &z->cfg.muon, d->scratch, d->norm, control));
        if (z->cfg.muon.normalize > 0)
            ZP_TRY(zp_muon_normalize(s, d->kept + m->kept, m->rows, m->cols, &z->cfg.muon,
                                     d->moments + m->moments, d->scratch, d->norm, control));
    }
    if (sliced) ZP_TRY(zp_whole_slices_return(z, s));
    return zp_device_record_event(d->slices > 1 ? &z->stream[ZP_GRADIENTS] : s,
                                  &d->event[ZP_ENDED]);
}

/* ---- tensors ---- */

/* Checks the fields of a description for slices. */
static zero_result zp_whole_tensor_check_slices(zero_ctx *z, const zp_tensor *t) {
    const zero_tensor_desc *d = &t->desc;
    const size_t outer = d->outer ? d->outer : 1;
    ZP_REFUSE(z, d->outer && !d->slice_of,
              "tensor %s: outer is %zu, but slice_of is NULL; set both", d->name, d->outer);
    ZP_REFUSE(z, d->numel % outer,
              "tensor %s: outer is %zu, which does not divide its %zu elements; use a divisor",
              d->name, outer, d->numel);
    const zp_tensor *other = z->tensors, *end = z->tensors + z->ntensors;
    if (!d->slice_of || !z->rule->needs) return ZERO_OK;
    while (other < end && zp_whole_slices_count(other) == 1) other++;
    ZP_REFUSE(z, other < end && other->desc.slice_of != d->slice_of,
              "tensor %s is a slice over another group than tensor %s; use one group", d->name,
              other->desc.name);
    return ZERO_OK;
}
/* Checks the fields for slices and matrices. Rules that need no matrices do not see them. */
static zero_result zp_whole_tensor_check(zero_ctx *z, zp_tensor *t) {
    zero_tensor_desc *d = &t->desc;
    const size_t slices = (size_t)zp_whole_slices_count(t), numel = d->numel * slices;
    ZP_TRY(zp_whole_tensor_check_slices(z, t));
    const int whole =
        d->rows && d->cols && d->cols <= numel / d->rows && numel % (d->rows * d->cols) == 0;
    ZP_REFUSE(z, (d->rows || d->cols) && (!whole || (slices > 1 && d->rows * d->cols != numel)),
              "tensor %s: rows x cols is %zu x %zu; use sides whose product %s %zu elements, or 0 "
              "x 0",
              d->name, d->rows, d->cols,
              slices > 1 ? "is that of a layer of all slices," : "divides its", numel);
    if (d->slice_of && !d->outer) d->outer = 1;
    t->one_state = d->rows && z->rule->needs & ZP_MATRICES;
    t->shape = zp_whole_tensor_scale(z, t);
    if (z->rule->needs & ZP_MATRICES && !t->one_state) t->lr_factor *= z->cfg.muon.plain_lr;
    return ZERO_OK;
}
static void zp_whole_tensor_describe(const zero_ctx *z, const zp_tensor *t, char *text,
                                     size_t bytes) {
    const int slices = zp_whole_slices_count(t);
    const size_t n = strlen(text), rows = t->one_state ? t->desc.rows : 0;
    (void)snprintf(text + n, bytes - n, "matrices %zu x %zu, ", rows, rows ? t->desc.cols : 0);
    if (slices > 1)
        (void)snprintf(text + strlen(text), bytes - strlen(text), "slices %d of %zu rows, ", slices,
                       t->desc.outer);
}
/* Lists the matrices of all units, in the order of units. A rank has one slice of a matrix. */
static zero_result zp_whole_tensor_layout(zero_ctx *z) {
    zp_whole_state *d = z->whole;
    const zp_layout *l = &z->layout;
    int sharers = 1;
    size_t n = 0;
    free(d->matrices);
    d->matrices = NULL;
    d->nmatrices = 0;
    for (int i = 0; i < l->nmembers; i++) {
        const zp_tensor *t = &z->tensors[l->members[i].tensor];
        const int slices = zp_whole_slices_count(t);
        if (!t->one_state || l->members[i].unit >= l->all) continue; /* or frozen */
        n += l->members[i].numel / (t->desc.rows * t->desc.cols / (size_t)slices);
        sharers = slices > sharers ? slices : sharers;
    }
    if (!n) return ZERO_OK;
    if (n > INT_MAX) return ZERO_ERR_MEMORY;
    d->matrices = (zp_matrix *)calloc(n, sizeof *d->matrices);
    if (!d->matrices) return ZERO_ERR_MEMORY;
    for (int i = 0; i < l->nmembers; i++) {
        const zp_member *m = &l->members[i];
        const zp_tensor *t = &z->tensors[m->tensor];
        const int slices = zp_whole_slices_count(t);
        const size_t rows = t->desc.rows, cols = t->desc.cols, numel = rows * cols / (size_t)slices;
        const int matrices = t->one_state && m->unit < l->all;
        for (size_t at = 0; matrices && at < m->numel; at += numel) {
            const zp_matrix made = {m->unit, 0, m->at + at,    rows,      cols,          0, numel,
                                    slices,  0, t->desc.outer, m->tensor, m->first + at, 0};
            d->matrices[d->nmatrices++] = made;
        }
    }
    return zp_muon_assign_matrices(d->matrices, d->nmatrices, sharers, z->data->nranks);
}

/* ---- the row ---- */

static zero_result zp_whole_tensor_check_settings(zero_ctx *z) {
    const zero_config *c = &z->cfg;
    ZP_REFUSE(z, c->trust_least > 0 && c->trust_most > 0 && c->trust_least > c->trust_most,
              "trust_least %g is above trust_most %g; lower the first", (double)c->trust_least,
              (double)c->trust_most);
    return ZERO_OK;
}
static const zp_setting zp_whole_tensor_settings[] = {
    {ZP_SETTING(trust_least), ZP_REAL, 0, ZP_UNLIMITED, 0, 0},
    {ZP_SETTING(trust_most), ZP_REAL, 0, ZP_UNLIMITED, 0, 0},
    {ZP_SETTING(muon.momentum), ZP_REAL, 0, ZP_BELOW_1, 0.95, 0},
    {ZP_SETTING(muon.plain_lr), ZP_REAL, 0, ZP_UNLIMITED, 1, 0},
    {ZP_SETTING(muon.iterations), ZP_SIGNED, 0, 99, 5, 0},
    {ZP_SETTING(muon.match_rms), ZP_FLAG},
    {ZP_SETTING(muon.no_nesterov), ZP_FLAG},
    {ZP_SETTING(muon.polar_express), ZP_FLAG},
    {ZP_SETTING(muon.normalize), ZP_REAL, 0, ZP_BELOW_1, 0, 0},
    ZP_LAST_SETTING,
};

static zero_result zp_whole_tensor_cut(zero_ctx *z) {
    zp_whole_state *d = z->whole;
    if (d->parts) d->trust = (double *)zp_ctx_cut_arena(z, d->parts, sizeof *d->trust);
    if (d->nmatrices) {
        d->norm = (double *)zp_ctx_cut_arena(z, 1, sizeof *d->norm);
        d->kept = (float *)zp_ctx_cut_arena(z, d->kept_numel, sizeof *d->kept);
        d->scratch = (float *)zp_ctx_cut_arena(z, d->scratch_numel, sizeof *d->scratch);
        d->moments = (float *)zp_ctx_cut_arena(z, d->moments_numel, sizeof *d->moments);
    }
    if (d->slices > 1) zp_whole_slices_cut(z);
    return ZERO_OK;
}
static zero_result zp_whole_tensor_open(zero_ctx *z) {
    for (int i = 0; i < ZP_WHOLE_EVENTS && z->rule->needs; i++)
        ZP_TRY(zp_device_open_event(&z->device, &z->whole->event[i]));
    return ZERO_OK;
}
static zero_result zp_whole_tensor_close(zero_ctx *z) {
    for (int i = 0; i < ZP_WHOLE_EVENTS; i++) zp_device_close_event(&z->whole->event[i]);
    free(z->whole->matrices);
    return ZERO_OK;
}
/* A rule that needs whole tensors passes twice over all units. The core's station is the last
   pass. */
static int zp_whole_tensor_is_on(const zero_ctx *z) { return z->rule->passes > 1; }
static const zp_station zp_whole_tensor_stations[] = {
    {ZP_AT_FIRST_PASS, ZP_EACH_STEP, zp_whole_tensor_is_on, zp_whole_tensor_begin_pass, NULL},
    {ZP_AT_FIRST_UPDATE, ZP_EACH_STEP, zp_whole_tensor_is_on, zp_step_update_unit, NULL},
    {ZP_AT_FIRST_UPDATE, ZP_EACH_STEP, zp_whole_tensor_is_on, zp_whole_tensor_end_pass, NULL},
    {ZP_AT_LAST_PASS, ZP_EACH_STEP, zp_whole_tensor_is_on, NULL, zp_whole_tensor_between_passes},
    {ZP_AT_LAST_PASS, ZP_EACH_STEP, zp_whole_tensor_is_on, zp_whole_tensor_begin_pass, NULL},
    {ZP_AT_UPDATE, ZP_EACH_STEP, zp_whole_tensor_is_on, zp_whole_tensor_end_pass, NULL},
    ZP_LAST_STATION};
static zp_extra zp_whole_tensor_row(void) {
    zp_extra x;
    memset(&x, 0, sizeof x);
    x.name = "muon";
    x.state_bytes = sizeof(zp_whole_state);
    x.state_at = offsetof(zero_ctx, whole);
    x.settings = zp_whole_tensor_settings;
    x.call[ZP_ON_CHECK] = zp_whole_tensor_check_settings;
    x.rules = zp_whole_rules;
    x.tensor = zp_whole_tensor_check;
    x.describe = zp_whole_tensor_describe;
    x.call[ZP_ON_LAYOUT] = zp_whole_tensor_layout;
    x.call[ZP_ON_PLAN] = zp_whole_tensor_plan;
    x.sent = zp_whole_tensor_sent;
    x.call[ZP_ON_CUT] = zp_whole_tensor_cut;
    x.call[ZP_ON_ALLOCATE] = zp_whole_tensor_open;
    x.call[ZP_ON_DESTROY] = zp_whole_tensor_close;
    x.stations = zp_whole_tensor_stations;
    x.fill_update = zp_whole_tensor_fill_update;
    x.move_state = zp_whole_tensor_move_state;
    return x;
}

/* state.h - access to tensors by name, and as state for checkpoints

   Access by name works range by range. A rank reads values that it has itself. Otherwise their
   owner broadcasts them through the staging buffer.

   The state is a list of ranges of elements. They are saved and loaded in their stored type. */
#pragma once

#include "weights.h"

/* A run of a tensor's elements that one rank owns. */
typedef struct zp_run {
    int unit, owner; /* owner: rank of z->data, or, by pieces, the piece's number */
    size_t at;       /* first element, in the unit */
    size_t numel;
    size_t left; /* elements of the member from `at` on */
} zp_run;

static zp_run zp_state_cut_run(const zero_ctx *z, const zp_tensor *t, size_t element, size_t count,
                               int by_pieces) {
    zp_member *const *members = &z->layout.by_tensor[t->first_member]; /* all have one size */
    const size_t inside = element % members[0]->numel;
    const zp_member *m = members[element / members[0]->numel];
    const zp_segment *x = zp_layout_trained(&z->layout.unit[m->unit]);
    const size_t at = m->at + inside, shard = by_pieces ? x->piece : x->shard, owner = at / shard;
    const zp_run run = {m->unit, (int)owner, at,
                        zp_min(zp_min(count, m->numel - inside), (owner + 1) * shard - at),
                        m->numel - inside};
    return run;
}

static zp_run zp_state_run_at(const zero_ctx *z, const zp_tensor *t, size_t element, size_t count) {
    return zp_state_cut_run(z, t, element, count, 0);
}

/* Returns the array that keeps a kind. */
static zp_array *zp_state_kind_array(zero_ctx *z, zero_kind kind) {
    if (kind == ZERO_GRADIENT) return zp_ctx_update_gradient(z);
    if (kind == ZERO_MASTER && z->array[ZP_MASTER].share) return &z->array[ZP_MASTER];
    if (kind == ZERO_PARAMETER || kind == ZERO_MASTER) return &z->array[ZP_PARAM];
    return &z->array[ZP_STATE + (kind - ZERO_MOMENT_1)];
}

/* Returns 1 if tensor t has this kind. Matrices may have no second state array. */
static int zp_state_has_kind(zero_ctx *z, zero_kind kind, const zp_tensor *t) {
    return zp_state_kind_array(z, kind)->share && !(kind == ZERO_MOMENT_2 && t->matrices);
}

/* Returns the array that keeps unit u's part of a kind: delayed updates keep two weights. */
static zp_array *zp_state_kind_of_unit(zero_ctx *z, zero_kind kind, int u) {
    zp_array *a = zp_state_kind_array(z, kind);
    if (a != &z->array[ZP_PARAM]) return a;
    return kind == ZERO_MASTER ? zp_ctx_newest(z, u) : zp_ctx_weights(z, u);
}

/* Checks that the tensor, the kind and the range exist. */
static zero_result zp_state_check_range(zero_ctx *z, const char *name, zero_kind kind, size_t first,
                                        size_t count, zp_tensor **t) {
    ZP_TRY(zp_bind_named_tensor(z, name, t));
    ZP_REFUSE(z, (int)kind < 0 || kind >= ZERO_KIND_COUNT, "%s: kind %d, no such kind", name,
              (int)kind);
    ZP_REFUSE(z, !zp_state_has_kind(z, kind, *t), "%s: %s has one state array%s", name,
              z->rule->name, (*t)->matrices ? " for matrices" : "");
    const size_t total = (*t)->desc.numel * (size_t)(*t)->desc.layers;
    ZP_REFUSE(z, first > total || count > total - first,
              "%s has %zu elements, asked for [%zu, %zu)", name, total, first, first + count);
    return ZERO_OK;
}

/* Checks a range and waits until all streams are idle. SYNC. */
static zero_result zp_state_begin_access(zero_ctx *z, const char *call, int writes,
                                         const char *name, zero_kind kind, size_t first,
                                         size_t count, zp_tensor **t) {
    ZP_ENTER(z, call, ZP_IDLE | ZP_REDUCED,
             "tensors are read and written after zero_build, outside a step's passes");
    ZP_TRY(zp_state_check_range(z, name, kind, first, count, t));
    if (writes) ZP_TRY(zp_extra_finish_update(z));
    ZP_UNTIMELY(z, kind == ZERO_GRADIENT && z->phase != ZP_REDUCED,
                "%s: gradients are there between zero_reduce and zero_step", name);
    return zp_ctx_check(z, zp_extra_sync(z));
}

/* Reads a run in pieces through the staging buffer, as unscaled f32. out NULL: for peers alone. */
static zero_result zp_state_read_run(zero_ctx *z, zero_kind kind, const zp_run *run, float *out) {
    zp_array *a = zp_state_kind_of_unit(z, kind, run->unit);
    const zp_control *control = kind == ZERO_GRADIENT ? z->control : NULL;
    const int sent = a->part[run->unit].share == ZP_SHARD; /* else this rank can read it */
    const int here = !sent || run->owner == z->data->rank;
    float *stage = (float *)(void *)z->data->stage.base;
    for (size_t at = 0, n; at < run->numel; at += n) {
        char *from;
        n = zp_min(zp_array_contiguous(a, run->unit, run->at + at),
                   zp_min(ZP_STAGE_NUMEL, run->numel - at));
        if (here) {
            ZP_DO(z, zp_array_open(a, run->unit, run->at + at, &n, &z->compute, &from));
            const zp_kernel_convert_args args = {from, stage, a->type, ZERO_F32, control, 1};
            ZP_DO(z, zp_weights_convert(z, a, run->unit, &args, n));
            ZP_DO(z, zp_array_close(a, run->unit, run->at + at, &z->compute, 0));
        }
        ZP_DO(z, zp_device_sync_stream(&z->compute)); /* the CPU reads the staging buffer */
        if (sent && z->data->nranks > 1)
            ZP_DO(z, zp_comm_broadcast(z->data, here || !out ? stage : out + at, n * sizeof *out,
                                       run->owner));
        if (out && here) memcpy(out + at, stage, n * sizeof *out);
    }
    return ZERO_OK;
}

/* Writes values of any type from your code to this rank's array, if this rank keeps the run. */
static zero_result zp_state_put_values(zero_ctx *z, zero_kind kind, const zp_run *run,
                                       zero_type type, const char *values) {
    zp_array *a = zp_state_kind_of_unit(z, kind, run->unit);
    const zp_control *control = kind == ZERO_GRADIENT ? z->control : NULL;
    float *stage = (float *)(void *)z->data->stage.base;
    char *memory;
    if (a->part[run->unit].share != ZP_WHOLE && run->owner != z->data->rank) return ZERO_OK;
    const int straight = a->type == type && !control;
    for (size_t at = 0, n; at < run->numel; at += n) {
        n = straight ? run->numel - at : zp_min(ZP_STAGE_NUMEL, run->numel - at);
        ZP_TRY(zp_array_open(a, run->unit, run->at + at, &n, &z->compute, &memory));
        if (straight) {
            ZP_TRY(zp_device_copy(&z->compute, memory, values + at * zp_type_bytes(type),
                                  n * zp_type_bytes(type)));
        } else {
            const zp_kernel_convert_args args = {stage, memory, ZERO_F32, a->type, control, 0};
            ZP_TRY(zp_device_sync_stream(&z->compute));
            zp_type_widen(stage, values + at * zp_type_bytes(type), type, n);
            ZP_TRY(zp_weights_convert(z, a, run->unit, &args, n));
        }
        ZP_TRY(zp_array_close(a, run->unit, run->at + at, &z->compute, 1));
    }
    zp_extra_wrote(z, a, run->unit);
    return ZERO_OK;
}

/* Returns an error on all ranks if they ask for different ranges or values. COLLECTIVE. */
static zero_result zp_state_agree(zero_ctx *z, const zp_tensor *t, zero_kind kind, size_t first,
                                  size_t count, const float *values) {
    const uint64_t what[] = {(uint64_t)(t - z->tensors), (uint64_t)kind, first, count,
                             values != NULL};
    uint64_t mine = ZP_HASH_EMPTY;
    for (int i = 0; i < 5; i++) mine = zp_hash(mine, what[i]);
    for (size_t i = 0; i < count && values; i++) mine = zp_hash(mine, zp_type_bits(values[i]));
    ZP_DO(z, zp_comm_exchange(z->all, &mine, sizeof mine));
    const int r = zp_agree_first_difference(z->all, sizeof mine);
    if (!r) return ZERO_OK;
    return zp_ctx_fail(z, ZERO_ERR_MISMATCH,
                       values
                           ? "%s, [%zu, %zu): rank %d gives other values, or another range, than "
                             "rank 0; nothing is written"
                           : "%s, [%zu, %zu): rank %d asks for another tensor, kind or range than "
                             "rank 0",
                       t->desc.name, first, first + count, r);
}

/* Appends a range to the list `whole`. */
static zero_result zp_state_add_range(zero_ctx *z, int whole, const zero_range *range) {
    int *n = &z->nranges[whole];
    void *list = zp_list_grow(z->ranges[whole], *n, &z->ranges_cap[whole], sizeof *range);
    if (!list) return zp_ctx_fail(z, ZERO_ERR_MEMORY, "%d ranges of the state", *n + 1);
    z->ranges[whole] = (zero_range *)list;
    z->ranges[whole][(*n)++] = *range;
    return ZERO_OK;
}

/* Fills z->ranges from the plan. Ranges to load: all elements that this rank keeps. Ranges to save:
   elements that no other rank saves; with replicas, this replica's piece of the shard. */
static zero_result zp_state_plan(zero_ctx *z) {
    static const zero_kind kinds[] = {ZERO_MASTER, ZERO_MOMENT_1, ZERO_MOMENT_2, ZERO_PARAMETER};
    const int n = zp_ctx_is_delayed(z) ? 4 : 3;
    for (int whole = 0; whole < 2; whole++) {
        const int all = whole && z->policy.state == ZP_WHOLE, count_of = z->nreplicas;
        const int mine =
            whole || z->nreplicas == 1 ? z->data->rank : z->data->rank * count_of + z->replica;
        z->nranges[whole] = 0;
        for (int i = 0; i < n * z->ntensors; i++) { /* tensor by tensor, kind by kind */
            const zp_tensor *t = &z->tensors[i / n];
            const zp_array *a = zp_state_kind_array(z, kinds[i % n]);
            const size_t total =
                zp_state_has_kind(z, kinds[i % n], t) ? t->desc.numel * (size_t)t->desc.layers : 0;
            for (size_t at = 0, count; at < total; at += count) {
                const zp_run run = zp_state_cut_run(z, t, at, total - at, !whole);
                const zp_segment *x = zp_layout_trained(&z->layout.unit[run.unit]);
                const size_t first = (size_t)mine * (whole ? x->shard : x->piece);
                count = all ? total : run.numel;
                if (!all && run.owner != mine) { /* skip to this rank's elements */
                    count = run.owner < mine ? zp_min(run.left, first - run.at) : run.left;
                    continue;
                }
                const zero_range range = {t->desc.name, kinds[i % n], a->type, at, count};
                ZP_TRY(zp_state_add_range(z, whole, &range));
            }
        }
    }
    return zp_extra_add_state(z);
}

/* Copies values in, or out if `out` is set; out returns an error for elements of other ranks. */
static zero_result zp_state_move(zero_ctx *z, const zero_range *r, const char *values, char *out) {
    zp_tensor *t;
    ZP_REFUSE(z, !r, "range is NULL");
    ZP_EACH_EXTRA(z, x)
    if (x->owns_range && x->owns_range(z, r)) return x->move_state(z, r, values, out);
    ZP_TRY(zp_state_check_range(z, r->name, r->kind, r->first, r->count, &t));
    const int seen = r->kind == ZERO_PARAMETER;
    ZP_REFUSE(z,
              (seen ? !zp_ctx_is_delayed(z) : r->kind < ZERO_MOMENT_1) || (int)r->type < 0
                  || r->type >= ZERO_TYPES,
              "%s: kind %d, type %d: no such state", r->name, (int)r->kind, (int)r->type);
    ZP_REFUSE(z, !values && !out && r->count, "%s: [%zu, %zu) of NULL", r->name, r->first,
              r->first + r->count);
    if (!out) ZP_TRY(zp_extra_before_put(z));
    z->put_seen |= seen && !out;
    for (size_t done = 0; done < r->count;) {
        const zp_run run = zp_state_run_at(z, t, r->first + done, r->count - done);
        zp_array *a = zp_state_kind_of_unit(z, r->kind, run.unit);
        const int mine = z->policy.state == ZP_WHOLE || run.owner == z->data->rank;
        const size_t at = done * zp_type_bytes(r->type);
        char *from;
        done += run.numel;
        ZP_REFUSE(z, out && (!mine || a->type != r->type),
                  "%s: element %zu is kept by rank %d, in type %d, asked for in type %d", r->name,
                  r->first + done - run.numel, run.owner, (int)a->type, (int)r->type);
        if (mine && !out) ZP_DO(z, zp_state_put_values(z, r->kind, &run, r->type, values + at));
        if (!out) continue;
        for (size_t e = 0, n; e < run.numel; e += n) {
            n = run.numel - e;
            ZP_DO(z, zp_array_open(a, run.unit, run.at + e, &n, &z->compute, &from));
            ZP_DO(z, zp_device_copy_streaming(&z->compute, out + at + e * zp_type_bytes(r->type),
                                              from, n * zp_type_bytes(r->type)));
            ZP_DO(z, zp_array_close(a, run.unit, run.at + e, &z->compute, 0));
        }
    }
    return zp_ctx_check(z, zp_device_sync_stream(&z->compute));
}

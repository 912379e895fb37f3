/* state.h - access to tensors by name, and as state for checkpoints

   The state is a list of ranges of elements. They are saved and loaded in their stored type, split
   weights as f32. */
#pragma once

#include "../core/ranges.h"
#include "../core/weights.h"
#include "../machine/streaming.h"

/* The kinds of state, in the order of a tensor's ranges. Parameters are state if updates overlap
   with the next step, because passes then use older weights. */
static const zero_kind zp_state_kinds[] = {ZERO_MASTER, ZERO_MOMENT_1, ZERO_MOMENT_2,
                                           ZERO_PARAMETER};
static int zp_state_count_kinds(const zero_ctx *z) { return z->updates_overlap ? 4 : 3; }

/* FROZEN tensors have weights alone, in the type of parameters. If a tensor has trained layers as
   well, perhaps in another context, its frozen layers have the same kinds in the same types: their
   gradients and moments are 0. Returns 1 if tensor t has this kind. Some have no second state
   array. */
static int zp_state_has_kind(zero_ctx *z, zero_kind kind, const zp_tensor *t) {
    if (t->desc.flags & ZERO_FROZEN) return kind == ZERO_PARAMETER || kind == ZERO_MASTER;
    return zp_run_array(z, kind, 0)->share && !(kind == ZERO_MOMENT_2 && t->one_state);
}

/* Checks that the tensor, the kind and the range exist. */
static zero_result zp_state_check_range(zero_ctx *z, const char *name, zero_kind kind, size_t first,
                                        size_t count, zp_tensor **t) {
    ZP_TRY(zp_bind_named_tensor(z, name, t));
    ZP_REFUSE(z, (int)kind < 0 || kind >= ZERO_KIND_COUNT, "%s: kind is %d; use a ZERO_ kind", name,
              (int)kind);
    const int has = zp_state_has_kind(z, kind, *t);
    ZP_REFUSE(z, !has && (*t)->desc.flags & ZERO_FROZEN,
              "%s is frozen, and has no such state; use ZERO_PARAMETER or ZERO_MASTER", name);
    ZP_REFUSE(z, !has, "%s: %s has no such state array%s; use another kind", name, z->rule->name,
              (*t)->one_state ? " for matrices" : "");
    const size_t total = (*t)->desc.numel * (size_t)(*t)->desc.layers;
    ZP_REFUSE(z, first > total || count > total - first,
              "%s has %zu elements, but the range is [%zu, %zu); use a smaller one", name, total,
              first, first + count);
    return ZERO_OK;
}

/* Checks a range and waits until all streams are idle. SYNC. */
static zero_result zp_state_begin_access(zero_ctx *z, const char *call, int writes,
                                         const char *name, zero_kind kind, size_t first,
                                         size_t count, zp_tensor **t) {
    ZP_ENTER(z, call, ZP_IDLE | ZP_REDUCED,
             "tensors are read and written after zero_build, outside a step's passes");
    ZP_TRY(zp_state_check_range(z, name, kind, first, count, t));
    if (writes) ZP_TRY(zp_extra_call(z, ZP_ON_FINISH_UPDATE));
    ZP_UNTIMELY(z, kind == ZERO_GRADIENT && z->phase != ZP_REDUCED,
                "%s has no gradient now; call this between zero_reduce and zero_step", name);
    return zp_ctx_check(z, zp_extra_sync(z));
}

/* Returns an upper limit for the adjacent elements from e on in the array's storage. All ranks cut
   a unit at the same elements, even those that do not keep them. */
static size_t zp_state_contiguous(const zp_array *a, int u, size_t e) {
    const size_t most = zp_array_tier(a, u)->piece_numel, shard = a->part[u].numel;
    if (!most || !shard) return SIZE_MAX;
    return most - (a->part[u].share == ZP_SHARD ? e % shard : e) % most;
}

/* Returns the type of a kind's values of tensor t in state: split weights, and codes, are f32. */
static zero_type zp_state_type(zero_ctx *z, zero_kind kind, const zp_tensor *t) {
    int layer = 0; /* a trained one, unless all are frozen */
    while (layer + 1 < t->desc.layers && zp_layout_is_frozen(t, layer)) layer++;
    const int s = zp_layout_segment_of(&z->layout, t, layer);
    const int u = t->desc.flags & ZERO_FROZEN ? s : zp_layout_unit_of(&z->layout, s);
    const zero_type type = zp_run_array(z, kind, u)->part[u].type;
    return type < ZERO_TYPES ? type : ZERO_F32;
}

/* Reads at most *n values of a kind in this rank's arrays, from element e of unit u on, to the
   staging buffer, as unscaled f32. *n gets smaller where a piece of a file ends. */
static zero_result zp_state_load(zero_ctx *z, zero_kind kind, int u, size_t e, size_t *n) {
    zp_array *const from[] = {zp_run_array_of_unit(z, kind, u), zp_run_low_array(z, kind, u)};
    const zp_control *control = kind == ZERO_GRADIENT ? z->control : NULL;
    const int kept = from[0]->part[u].share != ZP_NOTHING;
    if (!kept) memset(z->data->stage.base, 0, *n * sizeof(float)); /* of a frozen layer */
    for (int i = 0; i < 2 && from[i] && kept; i++) { /* lower halves are added to the upper ones */
        char *memory;
        ZP_DO(z, zp_array_open(from[i], u, e, n, &z->compute, &memory));
        const zp_kernel_convert_args args = {
            memory, z->data->stage.base, from[i]->part[u].type, ZERO_F32, control,
            1,      ZP_NEAREST,          e % ZP_CODE_BLOCK,     *n,       from[i]->squares};
        ZP_DO(z, zp_run_convert(z, from[i], u, &args, *n));
        ZP_DO(z, zp_array_close(from[i], u, e, &z->compute, 0));
    }
    return zp_ctx_check(z, zp_device_sync_stream(&z->compute)); /* the CPU reads the values */
}

/* Reads a run in pieces through the staging buffer, as unscaled f32. out NULL: for peers alone. */
static zero_result zp_state_read_run(zero_ctx *z, zero_kind kind, const zp_run *run, float *out) {
    zp_array *a = zp_run_array_of_unit(z, kind, run->unit),
             *low = zp_run_low_array(z, kind, run->unit);
    const zp_share share = zp_run_share(z, kind, run->unit);
    const int sent = share == ZP_SHARD; /* else this rank can read it */
    const int here = !sent || run->owner == z->data->rank;
    float *stage = (float *)(void *)z->data->stage.base;
    for (size_t at = 0, n; at < run->numel; at += n) {
        const size_t e = run->at + at;
        n = zp_min(zp_state_contiguous(a, run->unit, e), zp_min(ZP_STAGE_NUMEL, run->numel - at));
        if (low) n = zp_min(n, zp_state_contiguous(low, run->unit, e));
        if (here) ZP_TRY(zp_state_load(z, kind, run->unit, e, &n));
        if (sent && z->data->nranks > 1)
            ZP_DO(z, zp_comm_broadcast(z->data, here || !out ? stage : out + at, n * sizeof *out,
                                       run->owner));
        if (out && here) memcpy(out + at, stage, n * sizeof *out);
    }
    return ZERO_OK;
}

/* Fills z->ranges from the plan. Ranges to load: all elements that this rank keeps. Ranges to save:
   elements that no other rank saves; if the shards have copies, this copy's piece of the shard. */
static zero_result zp_state_plan(zero_ctx *z) {
    const int n = zp_state_count_kinds(z);
    for (int whole = 0; whole < 2; whole++) {
        const int all = whole && z->policy.state == ZP_WHOLE, count_of = z->ncopies;
        const int mine =
            whole || z->ncopies == 1 ? z->data->rank : z->data->rank * count_of + z->copy;
        for (int i = 0; i < n * z->ntensors; i++) { /* tensor by tensor, kind by kind */
            const zp_tensor *t = &z->tensors[i / n];
            const zero_kind kind = zp_state_kinds[i % n];
            const int has = zp_state_has_kind(z, kind, t);
            const int again = kind == ZERO_PARAMETER && t->desc.flags & ZERO_FROZEN;
            const size_t total = has && !again ? t->desc.numel * (size_t)t->desc.layers : 0;
            for (size_t at = 0, count; at < total; at += count) {
                const zp_run run = zp_run_cut(z, t, at, total - at, !whole);
                const zp_unit *x = &z->layout.unit[run.unit];
                const size_t first = (size_t)mine * (whole ? x->shard : x->piece);
                count = all ? total : run.numel;
                if (!all && run.owner != mine) { /* skip to this rank's elements */
                    count = run.owner < mine ? zp_min(run.left, first - run.at) : run.left;
                    continue;
                }
                const zero_range range = {t->desc.name, kind, zp_state_type(z, kind, t), at, count};
                ZP_TRY(zp_range_add(z, whole, &range));
            }
        }
    }
    return ZERO_OK;
}

/* Copies this rank's values of a run out, in their type in state. SYNC if it must convert them. */
static zero_result zp_state_copy_out(zero_ctx *z, zero_kind kind, zero_type type, const zp_run *run,
                                     char *out) {
    zp_array *a = zp_run_array_of_unit(z, kind, run->unit);
    const int made = zp_run_low_array(z, kind, run->unit) || a->part[run->unit].type != type
                     || !a->part[run->unit].share;
    const size_t of = zp_type_bytes(type);
    char *from = z->data->stage.base;
    for (size_t e = 0, n; e < run->numel; e += n) {
        n = run->numel - e;
        if (made) { /* as f32 */
            n = zp_min(n, ZP_STAGE_NUMEL);
            ZP_TRY(zp_state_load(z, kind, run->unit, run->at + e, &n));
            memcpy(out + e * of, from, n * of);
            continue;
        }
        ZP_DO(z, zp_array_open(a, run->unit, run->at + e, &n, &z->compute, &from));
        ZP_DO(z, zp_streaming_copy(&z->compute, out + e * of, from, n * of));
        ZP_DO(z, zp_array_close(a, run->unit, run->at + e, &z->compute, 0));
    }
    return ZERO_OK;
}

/* The first elements of a block of codes. Later puts complete the block: a block that is encoded
   twice may get other codes. */
typedef struct zp_state_tail {
    zp_array *array;
    int unit;
    size_t first, numel; /* numel 0: none */
    float value[ZP_CODE_BLOCK];
} zp_state_tail;

/* Stores these elements, also those of an incomplete block. */
static zero_result zp_state_store_tail(zero_ctx *z) {
    zp_state_tail *t = z->tail;
    const zp_run run = {t->unit, 0, t->first, t->numel, t->numel};
    t->numel = 0;
    return run.numel ? zp_run_store(z, t->array, NULL, &run, ZERO_F32, (const char *)t->value)
                     : ZERO_OK;
}
/* Puts values of any type that this rank keeps. Codes are put by whole blocks. */
static zero_result zp_state_put(zero_ctx *z, zero_kind kind, zp_run run, zero_type type,
                                const char *values) {
    zp_state_tail *t = z->tail;
    zp_array *a = zp_run_array(z, kind, run.unit);
    const zp_array_part *part = &a->part[run.unit]; /* of a frozen layer: nothing */
    if (part->type != ZP_CODES || !part->share) return zp_run_put(z, kind, &run, type, values);
    for (size_t rest = run.numel; rest; rest -= run.numel) {
        const size_t place = run.at % ZP_CODE_BLOCK, whole = rest / ZP_CODE_BLOCK * ZP_CODE_BLOCK;
        const int follows = t->array == a && t->unit == run.unit && t->first + t->numel == run.at;
        if (!follows) ZP_TRY(zp_state_store_tail(z));
        run.numel = place || !whole ? zp_min(rest, ZP_CODE_BLOCK - place) : whole;
        if (!place && whole) {
            ZP_TRY(zp_run_store(z, a, NULL, &run, type, values));
        } else {
            if (!t->numel) t->array = a, t->unit = run.unit, t->first = run.at;
            zp_type_widen(t->value + t->numel, values, type, run.numel);
            t->numel += run.numel;
            const int ends = place + run.numel == ZP_CODE_BLOCK || run.numel == run.left;
            if (ends) ZP_TRY(zp_state_store_tail(z));
        }
        run.at += run.numel;
        run.left -= run.numel;
        values += run.numel * zp_type_bytes(type);
    }
    return ZERO_OK;
}

/* Copies values in, or out if `out` is set; out returns an error for elements of other ranks. */
static zero_result zp_state_move(zero_ctx *z, const zero_range *r, const char *values, char *out) {
    zp_tensor *t;
    int theirs = 0; /* a row's own state */
    ZP_REFUSE(z, !r, "range is NULL");
    ZP_EACH_EXTRA(z, x) {
        if (x->move_state) ZP_TRY(x->move_state(z, r, values, out, &theirs));
        if (theirs) return ZERO_OK;
    }
    ZP_TRY(zp_state_check_range(z, r->name, r->kind, r->first, r->count, &t));
    const int seen = r->kind == ZERO_PARAMETER;
    ZP_REFUSE(z,
              (seen ? !z->updates_overlap : r->kind < ZERO_MOMENT_1) || (int)r->type < 0
                  || r->type >= ZERO_TYPES,
              "%s: no state has kind %d and type %d; use those of zero_state_range", r->name,
              (int)r->kind, (int)r->type);
    ZP_REFUSE(z, !values && !out && r->count, "%s: values is NULL for [%zu, %zu); pass memory",
              r->name, r->first, r->first + r->count);
    ZP_TRY(out ? zp_state_store_tail(z) : zp_extra_call(z, ZP_ON_PUT));
    z->parameters_put |= seen && !out;
    for (size_t done = 0; done < r->count;) {
        const zp_run run = zp_run_at(z, t, r->first + done, r->count - done);
        const zero_type kept = zp_state_type(z, r->kind, t);
        const int mine = z->policy.state == ZP_WHOLE || run.owner == z->data->rank;
        const size_t at = done * zp_type_bytes(r->type);
        done += run.numel;
        ZP_REFUSE(
            z, out && (!mine || kept != r->type),
            "%s: element %zu is kept by rank %d in type %d, not in type %d; use zero_state_range",
            r->name, r->first + done - run.numel, run.owner, (int)kept, (int)r->type);
        /* a frozen layer's weight is the one of ZERO_MASTER */
        if (mine && !out && !(seen && run.unit >= z->layout.all))
            ZP_DO(z, zp_state_put(z, r->kind, run, r->type, values + at));
        if (out) ZP_TRY(zp_state_copy_out(z, r->kind, kept, &run, out + at));
    }
    return zp_ctx_check(z, zp_device_sync_stream(&z->compute));
}

/* Computes unit u's parameters from the master weights that your code put, unless that has put them
   as well. */
static zero_result zp_state_compute_unit(zero_ctx *z, int u) {
    zp_array *master = &z->array[ZP_MASTER], *newest = zp_ctx_newest(z, u);
    if (!zp_weights_are_read(z)) ZP_TRY(zp_weights_copy(z, u, master, newest));
    if (!z->update_pending || z->parameters_put) return ZERO_OK;
    return zp_weights_copy(z, u, newest, zp_ctx_weights(z, u));
}

/* Computes and publishes the parameters of all units. */
static zero_result zp_state_compute_weights(zero_ctx *z) {
    ZP_TRY(zp_state_store_tail(z));
    ZP_TRY(zp_extra_call(z, ZP_ON_PUT));
    for (int i = 0; i < z->layout.all; i++) {
        const int u = zp_ctx_nth_update(z, i);
        ZP_TRY(zp_state_compute_unit(z, u));
        ZP_EACH_SEGMENT(&z->layout, u, s)
        ZP_TRY(zp_gather_publish_update(z, s, &z->compute));
    }
    zp_extra_wrote(z, NULL, -1);
    return zp_gather_forget_all(z);
}

static zp_extra zp_state_row(void) {
    zp_extra x;
    memset(&x, 0, sizeof x);
    x.name = "state";
    x.state_bytes = sizeof(zp_state_tail);
    x.state_at = offsetof(zero_ctx, tail);
    x.call[ZP_ON_PLAN] = zp_state_plan;
    return x;
}

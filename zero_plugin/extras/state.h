/* state.h - access to tensors by name, and as state for checkpoints

   The state is a list of ranges of elements. They are saved and loaded in their stored type. */
#pragma once

#include "../core/runs.h"
#include "../machine/streaming.h"

/* Returns 1 if tensor t has this kind. Some have no second state array. */
static int zp_state_has_kind(zero_ctx *z, zero_kind kind, const zp_tensor *t) {
    return zp_run_array(z, kind)->share && !(kind == ZERO_MOMENT_2 && t->one_state);
}

/* Checks that the tensor, the kind and the range exist. */
static zero_result zp_state_check_range(zero_ctx *z, const char *name, zero_kind kind, size_t first,
                                        size_t count, zp_tensor **t) {
    ZP_TRY(zp_bind_named_tensor(z, name, t));
    ZP_REFUSE(z, (int)kind < 0 || kind >= ZERO_KIND_COUNT, "%s: kind %d, no such kind", name,
              (int)kind);
    ZP_REFUSE(z, !zp_state_has_kind(z, kind, *t), "%s: %s has one state array%s", name,
              z->rule->name, (*t)->one_state ? " for matrices" : "");
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
    if (writes) ZP_TRY(zp_extra_call(z, ZP_ON_FINISH_UPDATE));
    ZP_UNTIMELY(z, kind == ZERO_GRADIENT && z->phase != ZP_REDUCED,
                "%s: gradients are there between zero_reduce and zero_step", name);
    return zp_ctx_check(z, zp_extra_sync(z));
}

/* Fills z->ranges from the plan. Ranges to load: all elements that this rank keeps. Ranges to save:
   elements that no other rank saves; if the shards have copies, this copy's piece of the shard. */
static zero_result zp_state_plan(zero_ctx *z) {
    static const zero_kind kinds[] = {ZERO_MASTER, ZERO_MOMENT_1, ZERO_MOMENT_2, ZERO_PARAMETER};
    const int n = zp_ctx_updates_overlap(z) ? 4 : 3;
    for (int whole = 0; whole < 2; whole++) {
        const int all = whole && z->policy.state == ZP_WHOLE, count_of = z->ncopies;
        const int mine =
            whole || z->ncopies == 1 ? z->data->rank : z->data->rank * count_of + z->copy;
        for (int i = 0; i < n * z->ntensors; i++) { /* tensor by tensor, kind by kind */
            const zp_tensor *t = &z->tensors[i / n];
            const zp_array *a = zp_run_array(z, kinds[i % n]);
            const size_t total =
                zp_state_has_kind(z, kinds[i % n], t) ? t->desc.numel * (size_t)t->desc.layers : 0;
            for (size_t at = 0, count; at < total; at += count) {
                const zp_run run = zp_run_cut(z, t, at, total - at, !whole);
                const zp_segment *x = zp_layout_trained(&z->layout.unit[run.unit]);
                const size_t first = x->first + (size_t)mine * (whole ? x->shard : x->piece);
                count = all ? total : run.numel;
                if (!all && run.owner != mine) { /* skip to this rank's elements */
                    count = run.owner < mine ? zp_min(run.left, first - run.at) : run.left;
                    continue;
                }
                const zero_range range = {t->desc.name, kinds[i % n], a->type, at, count};
                ZP_TRY(zp_extra_add_range(z, whole, &range));
            }
        }
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
              (seen ? !zp_ctx_updates_overlap(z) : r->kind < ZERO_MOMENT_1) || (int)r->type < 0
                  || r->type >= ZERO_TYPES,
              "%s: kind %d, type %d: no such state", r->name, (int)r->kind, (int)r->type);
    ZP_REFUSE(z, !values && !out && r->count, "%s: [%zu, %zu) of NULL", r->name, r->first,
              r->first + r->count);
    if (!out) ZP_TRY(zp_extra_call(z, ZP_ON_PUT));
    z->parameters_put |= seen && !out;
    for (size_t done = 0; done < r->count;) {
        const zp_run run = zp_run_at(z, t, r->first + done, r->count - done);
        zp_array *a = zp_run_array_of_unit(z, r->kind, run.unit);
        const int mine = z->policy.state == ZP_WHOLE || run.owner == z->data->rank;
        const size_t at = done * zp_type_bytes(r->type);
        char *from;
        done += run.numel;
        ZP_REFUSE(z, out && (!mine || a->type != r->type),
                  "%s: element %zu is kept by rank %d, in type %d, asked for in type %d", r->name,
                  r->first + done - run.numel, run.owner, (int)a->type, (int)r->type);
        if (mine && !out) ZP_DO(z, zp_run_put(z, r->kind, &run, r->type, values + at));
        if (!out) continue;
        for (size_t e = 0, n; e < run.numel; e += n) {
            n = run.numel - e;
            ZP_DO(z, zp_array_open(a, run.unit, run.at + e, &n, &z->compute, &from));
            ZP_DO(z, zp_streaming_copy(&z->compute, out + at + e * zp_type_bytes(r->type), from,
                                       n * zp_type_bytes(r->type)));
            ZP_DO(z, zp_array_close(a, run.unit, run.at + e, &z->compute, 0));
        }
    }
    return zp_ctx_check(z, zp_device_sync_stream(&z->compute));
}

/* Computes unit u's parameters from the master weights that your code put. */
static zero_result zp_state_compute_unit(zero_ctx *z, int u) {
    zp_array *master = &z->array[ZP_MASTER], *newest = zp_ctx_newest(z, u);
    if (master->share) ZP_TRY(zp_weights_copy(z, u, master, newest));
    if (!z->update_pending || z->parameters_put) return ZERO_OK;
    return zp_weights_copy(z, u, newest, zp_ctx_weights(z, u));
}

/* Computes and publishes the parameters of all units. */
static zero_result zp_state_compute_weights(zero_ctx *z) {
    ZP_TRY(zp_extra_call(z, ZP_ON_PUT));
    for (int i = 0; i < z->layout.all; i++) {
        const int u = zp_ctx_nth_update(z, i);
        ZP_TRY(zp_state_compute_unit(z, u));
        ZP_TRY(zp_gather_publish_update(z, u, &z->compute));
    }
    zp_extra_wrote(z, NULL, -1);
    return zp_gather_forget_all(z);
}

static zp_extra zp_state_row(void) {
    zp_extra x;
    memset(&x, 0, sizeof x);
    x.name = "state";
    x.call[ZP_ON_PLAN] = zp_state_plan;
    return x;
}

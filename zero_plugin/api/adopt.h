/* adopt.h - adopts weights, and makes a step without hooks */
#pragma once

#include "tensors.h"
#include "values.h"

void zero_log_file(void *file, zero_log_level level, const char *sentence) {
    FILE *out = file ? (FILE *)file : stderr;
    if (level != ZERO_LOG_INFO) (void)fprintf(out, "%s\n", sentence);
}

/* ---- adoption ---- */

/* Returns your array: of one layer by slot, of all layers by the field of `host`. NULL: none. */
static char *zp_adopt_array(const zero_ctx *z, zp_side side, int tensor, int layer,
                            const void *host) {
    const zero_tensor_desc *d = &z->tensors[tensor].desc;
    const zp_slot *s = d->flags & ZERO_BY_SLOT ? zp_bind_next_slot(z, tensor, layer, NULL) : NULL;
    char *array = NULL;
    for (; s && !array; s = zp_bind_next_slot(z, tensor, layer, s)) {
        array = s->was[side];
        if (d->flags & ZERO_INLINE)
            array = (char *)s->place[side];
        else if (z->lent && s->place[side])
            memcpy(&array, s->place[side], sizeof array);
    }
    if (d->flags & ZERO_BY_SLOT || !host) return array;
    if (d->flags & ZERO_INLINE) return (char *)(uintptr_t)host + d->field;
    memcpy(&array, (const char *)host + d->field, sizeof array);
    return array;
}

/* Returns whether the plugin has adopted the array already. */
static int zp_adopt_is_ours(const zero_ctx *z, zp_side side, const char *array) {
    const zp_memory *m = &z->memory[side];
    return (array >= m->base && array < m->base + m->bytes)
           || (m->view && array >= m->view && array < m->view + m->bytes);
}

/* Releases your arrays of a tensor. */
static void zp_adopt_release(zero_ctx *z, zp_side side, int tensor, const void *host,
                             void (*release)(void *array)) {
    const zero_tensor_desc *d = &z->tensors[tensor].desc;
    zp_ctx_set_call(z, "zero_adopt"); /* named in a crash if an array is not an allocation */
    for (int l = 0; l < (d->flags & ZERO_BY_SLOT ? d->layers : 1); l++) {
        char *array = zp_adopt_array(z, side, tensor, l, host);
        if (array && !zp_adopt_is_ours(z, side, array)) release(array);
    }
}

/* Copies between your memory and the plugin's, and waits for the copy. */
static zero_result zp_adopt_copy(zero_ctx *z, void *to, const void *from, size_t bytes) {
    ZP_DO(z, zp_device_copy(&z->compute, to, from, bytes));
    return zp_ctx_check(z, zp_device_sync_stream(&z->compute));
}

/* Copies in pieces of CPU memory: `raw` as stored, `values` in f32. */
static zero_result zp_adopt_layer(zero_ctx *z, int tensor, int layer, char *array, zero_type type,
                                  char *raw, float *values) {
    const zp_tensor *t = &z->tensors[tensor];
    const zero_tensor_desc *d = &t->desc;
    const size_t first = (size_t)layer * d->numel, of = zero_type_bytes(type);
    for (size_t at = 0; at < d->numel; at += ZP_STAGE_NUMEL) {
        const size_t n = zp_min(ZP_STAGE_NUMEL, d->numel - at);
        ZP_TRY(zp_adopt_copy(z, raw, array + at * of, n * of));
        zero_convert(values, ZERO_F32, raw, type, n);
        ZP_TRY(zp_run_agree(z, t, ZERO_PARAMETER, first + at, n, values));
        ZP_TRY(zp_run_put_all(z, t, ZERO_PARAMETER, first + at, n, values));
        if (!z->observer || z->lent) continue;
        memset(raw, 0xFF, n * of); /* NaN in every type */
        ZP_TRY(zp_adopt_copy(z, array + at * of, raw, n * of));
    }
    return ZERO_OK;
}

/* Checks that every array exists and is yours. */
static zero_result zp_adopt_check(zero_ctx *z, zp_side side, const void *host) {
    const char *what = side == ZP_GRAD ? " of gradients" : "";
    for (int t = 0; t < z->ntensors; t++)
        for (int l = 0; l < z->tensors[t].desc.layers; l++) {
            const zero_tensor_desc *d = &z->tensors[t].desc;
            const char *array = zp_adopt_array(z, side, t, l, host);
            const int slot = d->flags & ZERO_BY_SLOT, inside = d->flags & ZERO_INLINE;
            const char *of = !slot ? "field" : inside ? "array" : "slot";
            ZP_REFUSE(z, !array, "tensor %s, layer %d: the host's %s%s is NULL", d->name, l, of,
                      what);
            ZP_REFUSE(z, zp_adopt_is_ours(z, side, array),
                      "tensor %s, layer %d: the host's %s%s points to the plugin's memory already: "
                      "zero_adopt stands in the place of zero_bind",
                      d->name, l, of, what);
        }
    return ZERO_OK;
}

static int zp_adopt_compare_extents(const void *a, const void *b) {
    const zp_extent *x = (const zp_extent *)a, *y = (const zp_extent *)b;
    if (x->at != y->at) return x->at < y->at ? -1 : 1;
    return x->side != y->side ? x->side - y->side : x->tensor - y->tensor;
}

/* Lists the caller's arrays of a side, `n` so far. The type of adopted gradients is unknown, so
   only their start is listed. */
static int zp_adopt_add_extents(zero_ctx *z, zp_side side, const void *host, zero_type type,
                                int n) {
    const size_t of = z->lent || side == ZP_PARAM ? zero_type_bytes(type) : 0;
    for (int t = 0; t < z->ntensors; t++) {
        const zero_tensor_desc *d = &z->tensors[t].desc;
        const int slots = d->flags & ZERO_BY_SLOT;
        for (int l = 0; l < (slots ? d->layers : 1); l++) {
            const char *array = zp_adopt_array(z, side, t, l, host);
            if (!array || zp_adopt_is_ours(z, side, array)) continue;
            zp_extent *x = &z->extents[n++];
            x->at = array;
            x->bytes = zp_max(1, d->numel * (size_t)(slots ? 1 : d->layers) * of);
            x->tensor = t;
            x->layer = l;
            x->side = side;
        }
    }
    return n;
}

/* Checks that no two of the n listed arrays overlap and, in checked builds, none is too small. */
static zero_result zp_adopt_check_extents(zero_ctx *z, int n, void (*release)(void *array)) {
    static const char *const of[2] = {"the gradient of ", ""};
    qsort(z->extents, (size_t)n, sizeof *z->extents, zp_adopt_compare_extents);
    for (int i = 1; i < n; i++) {
        const zp_extent *x = &z->extents[i - 1], *y = &z->extents[i];
        ZP_REFUSE(z, (size_t)(y->at - x->at) < x->bytes,
                  "%stensor %s, layer %d, and %stensor %s, layer %d, are in the same memory: each "
                  "array belongs to one row; tied weights are one row whose `uses` is 2",
                  of[x->side], z->tensors[x->tensor].desc.name, x->layer, of[y->side],
                  z->tensors[y->tensor].desc.name, y->layer);
    }
    for (int i = 0; i < n && z->observer; i++) {
        const zp_extent *x = &z->extents[i];
        if (x->side == ZP_GRAD && !z->lent) continue; /* their type is not known */
        const size_t room = z->observer->room((char *)(uintptr_t)x->at, release);
        ZP_REFUSE(z, room < x->bytes,
                  "%stensor %s, layer %d: its array has %zu bytes, the table says %zu", of[x->side],
                  z->tensors[x->tensor].desc.name, x->layer, room, x->bytes);
    }
    return ZERO_OK;
}

/* Checks the caller's arrays of these sides, unless they equal those of the last check. `host`: by
   side. `side`: the first. */
static zero_result zp_adopt_apart(zero_ctx *z, const void *const host[2], int side, zero_type type,
                                  void (*release)(void *array)) {
    const size_t cap = 2 * (size_t)z->layout.layers, bytes = cap * sizeof *z->extents;
    int n = 0;
    if (!z->extents) z->extents = (zp_extent *)calloc(2, bytes);
    if (!z->extents) return zp_ctx_fail(z, ZERO_ERR_MEMORY, "a list of %zu arrays", cap);
    memset(z->extents, 0, bytes);
    for (; side <= ZP_PARAM; side++)
        n = zp_adopt_add_extents(z, (zp_side)side, host[side], type, n);
    if (!memcmp(z->extents, z->extents + cap, bytes)) return ZERO_OK;
    memcpy(z->extents + cap, z->extents, bytes);
    const zero_result r = zp_adopt_check_extents(z, n, release);
    if (r) memset(z->extents + cap, 0, bytes); /* the next call refuses them again */
    return r;
}

/* Copies the weights, equal on all ranks. release NULL: arrays stay yours. */
static zero_result zp_adopt_all(zero_ctx *z, void *params, void *grads, zero_type type,
                                void (*release)(void *array)) {
    int failed_rank = -1;
    const void *const host[2] = {grads, params};
    zero_result r = zp_adopt_check(z, ZP_PARAM, params);
    if (!r) r = zp_adopt_apart(z, host, release ? ZP_GRAD : ZP_PARAM, type, release);
    float *values = r ? NULL : (float *)malloc(3 * ZP_STAGE_NUMEL * sizeof *values);
    if (!r && !values) r = zp_ctx_fail(z, ZERO_ERR_MEMORY, "a piece of the weights");
    const zero_result met = zp_ctx_check(z, zp_comm_agree(z->all, !r, &failed_rank));
    if (!r) r = met;
    if (!r && failed_rank >= 0)
        r = zp_ctx_fail(z, ZERO_ERR_MISMATCH, "rank %d has not all arrays, or no memory",
                        failed_rank);
    zp_ctx_set_call(z, z->lent ? "zero_lend" : "zero_adopt");
    if (!r) r = zp_extra_call(z, ZP_ON_FINISH_UPDATE);
    if (!r) r = zp_ctx_check(z, zp_extra_sync(z));
    for (int t = 0; t < z->ntensors; t++) {
        const zero_tensor_desc *d = &z->tensors[t].desc;
        for (int l = 0; l < d->layers && !r; l++) {
            char *layer = zp_adopt_array(z, ZP_PARAM, t, l, params);
            if (!(d->flags & ZERO_BY_SLOT)) layer += (size_t)l * d->numel * zero_type_bytes(type);
            r = zp_adopt_layer(z, t, l, layer, type, (char *)(values + ZP_STAGE_NUMEL), values);
        }
        if (r || !release) continue;
        zp_adopt_release(z, ZP_PARAM, t, params, release);
        zp_adopt_release(z, ZP_GRAD, t, grads, release);
    }
    free(values);
    return r;
}

zero_result zero_adopt(zero_ctx *z, void *params, void *grads, zero_type type,
                       void (*release)(void *array)) {
    if (z && z->phase == ZP_NEW) ZP_TRY(zero_build(z));
    ZP_ENTER(z, "zero_adopt", ZP_IDLE, "weights are adopted between steps");
    ZP_UNTIMELY(z, z->lent, "the arrays are lent, and stay the host's");
    ZP_REFUSE(z, type == ZERO_F64,
              "doubles do not become the plugin's, whose numbers have 32 bits at most: zero_lend "
              "leaves them the host's");
    ZP_REFUSE(z, (int)type < 0 || type >= ZERO_TYPES, "type %d, no such type", (int)type);
    ZP_TRY(zp_adopt_all(z, params, grads, type, release));
    for (int i = 0; i < z->nslots; i++) z->slots[i].was[0] = z->slots[i].was[1] = NULL;
    for (int u = 0; u < z->layout.units; u++) { /* a use without hooks then faults */
        zp_pointer_set_unit(z, ZP_PARAM, u, NULL, params);
        zp_pointer_set_unit(z, ZP_GRAD, u, NULL, grads);
    }
    z->adopted[ZP_GRAD] = grads;
    z->adopted[ZP_PARAM] = params;
    return zero_bind(z, params, grads);
}

/* ---- a step without hooks ---- */

zero_result zero_train_begin(zero_ctx *z) {
    if (!z) return ZERO_ERR_ARGUMENT;
    ZP_TRY(zero_pass_begin(z, ZERO_TRAIN, z->phase == ZP_BETWEEN ? z->micro + 1 : 0,
                           z->cfg.micro_steps));
    zp_ctx_set_call(z, "zero_train_begin");
    return ZERO_OK;
}

zero_result zero_train_end(zero_ctx *z, const zero_hyper *hyper, double loss, double *mean) {
    ZP_ENTER(z, "zero_train_end", ZP_IN_PASS, "zero_train_begin comes first");
    for (int t = 0; t < z->ntensors && !z->hooked; t++)
        ZP_UNTIMELY(z, !(z->tensors[t].desc.flags & ZERO_KEEP),
                    "no hook was called, and tensor %s is not KEEP: it would never be trained",
                    z->tensors[t].desc.name);
    if (z->micro + 1 == z->micro_steps)
        ZP_TRY(zp_life_check_hyper(z, hyper)); /* before the micro-step ends */
    ZP_TRY(zero_pass_end(z));
    z->loss = z->micro ? z->loss + loss : loss;
    double sum = z->loss, steps = z->micro + 1;
    if (z->micro + 1 == z->micro_steps) {
        ZP_TRY(zero_reduce(z));
        ZP_TRY(zero_step(z, hyper));
        /* your code reads weights at once without hooks */
        if (!z->hooked)
            ZP_DO(z, zp_device_wait_event(&z->compute, z->live[z->layout.units].gathered));
        steps *= z->all->nranks;
        if (mean) ZP_TRY(zero_all_sum(z, &sum, 1));
    }
    if (mean) *mean = sum / steps;
    zp_ctx_set_call(z, "zero_train_end");
    return ZERO_OK;
}

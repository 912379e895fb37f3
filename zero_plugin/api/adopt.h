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
    char *array = NULL;
    if (d->flags & ZERO_BY_SLOT) return z->places ? z->places->array(z, side, tensor, layer) : NULL;
    if (!host) return NULL;
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

/* Copies between your memory and the plugin's, and waits for the copy. */
static zero_result zp_adopt_copy(zero_ctx *z, void *to, const void *from, size_t bytes) {
    ZP_DO(z, zp_device_copy(&z->compute, to, from, bytes));
    return zp_ctx_check(z, zp_device_sync_stream(&z->compute));
}

/* Copies the weights of an array in pieces of CPU memory: `raw` as stored, `values` in f32. */
static zero_result zp_adopt_weights(zero_ctx *z, const zp_extent *x, zero_type type, char *raw,
                                    float *values) {
    const zp_tensor *t = &z->tensors[x->tensor];
    const size_t of = zero_type_bytes(type), numel = t->desc.numel;
    const size_t first = (size_t)x->layer * numel;
    for (size_t at = 0, n; at < x->bytes / of; at += n) {
        char *piece = (char *)(uintptr_t)x->at + at * of;
        n = zp_min(ZP_STAGE_NUMEL, numel - at % numel);
        ZP_TRY(zp_adopt_copy(z, raw, piece, n * of));
        zero_convert(values, ZERO_F32, raw, type, n);
        ZP_TRY(zp_run_agree(z, t, ZERO_PARAMETER, first + at, n, values));
        ZP_TRY(zp_run_put_all(z, t, ZERO_PARAMETER, first + at, n, values));
        if (!ZERO_CHECK || z->pointers_stay) continue;
        memset(raw, 0xFF, n * of); /* NaN in every type */
        ZP_TRY(zp_adopt_copy(z, piece, raw, n * of));
    }
    return ZERO_OK;
}

static int zp_adopt_compare_extents(const void *a, const void *b) {
    const zp_extent *x = (const zp_extent *)a, *y = (const zp_extent *)b;
    if (x->at != y->at) return x->at < y->at ? -1 : 1;
    return x->side != y->side ? x->side - y->side : x->tensor - y->tensor;
}

/* Appends your arrays of a side to the list, which has *n. Unless they are gradients that the
   plugin adopts, each must exist and be yours. Those have the type that backward adds to. */
static zero_result zp_adopt_list_side(zero_ctx *z, zp_side side, const void *host, zero_type type,
                                      int *n) {
    const int needed = z->pointers_stay || side == ZP_PARAM;
    const size_t bytes = needed ? zero_type_bytes(type) : zp_type_bytes(z->array[side].type);
    const char *what = side == ZP_GRAD ? " of gradients" : "";
    for (int t = 0; t < z->ntensors; t++) {
        const zero_tensor_desc *d = &z->tensors[t].desc;
        const int slots = d->flags & ZERO_BY_SLOT, inside = d->flags & ZERO_INLINE;
        const char *of = !slots ? "field" : inside ? "array" : "slot";
        for (int l = 0; l < (slots ? d->layers : 1); l++) {
            const int frozen = slots ? zp_layout_is_frozen(&z->tensors[t], l)
                                     : zp_layout_is_all_frozen(&z->tensors[t]);
            if (z->pointers_stay && side == ZP_GRAD && frozen) continue; /* perhaps no array */
            const char *array = zp_adopt_array(z, side, t, l, host);
            const int ours = array && zp_adopt_is_ours(z, side, array);
            ZP_REFUSE(z, !array && needed, "tensor %s, layer %d: your %s%s is NULL", d->name, l, of,
                      what);
            ZP_REFUSE(z, ours && needed,
                      "tensor %s, layer %d: your %s%s points to the plugin's memory already; "
                      "leave out zero_bind",
                      d->name, l, of, what);
            if (!array || ours) continue;
            zp_extent *x = &z->extents[(*n)++];
            x->at = array;
            x->bytes = d->numel * (size_t)(slots ? 1 : d->layers) * bytes;
            x->tensor = t;
            x->layer = l;
            x->side = side;
        }
    }
    return ZERO_OK;
}

/* Checks that no two of the n listed arrays overlap and, if a row observes, their sizes. */
static zero_result zp_adopt_check_extents(zero_ctx *z, int n, void (*release)(void *array)) {
    static const char *const of[2] = {"the gradient of ", ""};
    qsort(z->extents, (size_t)n, sizeof *z->extents, zp_adopt_compare_extents);
    for (int i = 1; i < n; i++) {
        const zp_extent *x = &z->extents[i], *before = x - 1;
        ZP_REFUSE(z, (size_t)(x->at - before->at) < before->bytes,
                  "%stensor %s, layer %d, and %stensor %s, layer %d, are in the same memory; write "
                  "one row for an array, with .uses 2 for tied weights",
                  of[before->side], z->tensors[before->tensor].desc.name, before->layer,
                  of[x->side], z->tensors[x->tensor].desc.name, x->layer);
    }
    ZP_TRY_IF(z->observer, check_extents, z, n, release);
    return ZERO_OK;
}

/* Returns the list of the last call that checked your arrays, those of weights first. An entry
   without an address ends it. */
static zp_extent *zp_adopt_list(const zero_ctx *z) {
    return z->extents + 2 * (size_t)z->layout.layers + 1;
}

/* Lists your arrays, and checks them unless the list is that of the last call. `host`: by side.
   gradients 0: only those of weights. */
static zero_result zp_adopt_check(zero_ctx *z, const void *const host[2], int gradients,
                                  zero_type type, void (*release)(void *array)) {
    const size_t cap = 2 * (size_t)z->layout.layers + 1, bytes = cap * sizeof *z->extents;
    int n = 0;
    if (!z->extents) z->extents = (zp_extent *)calloc(2, bytes);
    if (!z->extents) return zp_ctx_fail(z, ZERO_ERR_MEMORY, "a list of %zu arrays", cap);
    memset(z->extents, 0, bytes);
    ZP_TRY(zp_adopt_list_side(z, ZP_PARAM, host[ZP_PARAM], type, &n));
    if (gradients) ZP_TRY(zp_adopt_list_side(z, ZP_GRAD, host[ZP_GRAD], type, &n));
    if (!memcmp(z->extents, zp_adopt_list(z), bytes)) return ZERO_OK;
    memcpy(zp_adopt_list(z), z->extents, bytes);
    const zero_result r = zp_adopt_check_extents(z, n, release);
    if (r) memset(zp_adopt_list(z), 0, bytes); /* the next call refuses them again */
    return r;
}

/* Copies the listed weights tensor by tensor, and releases the tensor's arrays. */
static zero_result zp_adopt_tensors(zero_ctx *z, zero_type type, float *values,
                                    void (*release)(void *array)) {
    const zp_extent *x = zp_adopt_list(z), *grad = x, *next;
    while (grad->at && grad->side == ZP_PARAM) grad++;
    for (const zp_extent *const end = grad; x < end; x = next) {
        for (next = x; next < end && next->tensor == x->tensor; next++)
            ZP_TRY(zp_adopt_weights(z, next, type, (char *)(values + ZP_STAGE_NUMEL), values));
        /* the call is named in a crash if an array is not an allocation */
        for (const zp_extent *p = x; p < next && release; p++) release((void *)(uintptr_t)p->at);
        for (; grad->at && grad->tensor == x->tensor; grad++) release((void *)(uintptr_t)grad->at);
    }
    return ZERO_OK;
}

/* Copies the weights, equal on all ranks. release NULL: arrays stay yours. */
static zero_result zp_adopt_all(zero_ctx *z, void *params, void *grads, zero_type type,
                                void (*release)(void *array)) {
    int failed_rank = -1;
    const void *const host[2] = {grads, params};
    zero_result r = zp_adopt_check(z, host, release != NULL, type, release);
    float *values = r ? NULL : (float *)malloc(3 * ZP_STAGE_NUMEL * sizeof *values);
    if (!r && !values) r = zp_ctx_fail(z, ZERO_ERR_MEMORY, "a piece of the weights");
    const zero_result met = zp_ctx_check(z, zp_comm_agree(z->all, !r, &failed_rank));
    if (!r) r = met;
    if (!r && failed_rank >= 0)
        r = zp_ctx_fail(z, ZERO_ERR_MISMATCH, "rank %d lacks an array, or memory", failed_rank);
    if (!r) r = zp_extra_call(z, ZP_ON_FINISH_UPDATE);
    if (!r) r = zp_ctx_check(z, zp_extra_sync(z));
    if (!r) r = zp_adopt_tensors(z, type, values, release);
    free(values);
    return r;
}

/* Unless cfg.grads states the type that backward adds to, it must be that of your arrays. */
static zero_result zp_adopt_check_grad_type(zero_ctx *z, zero_type type) {
    const int f32 = z->cfg.type == ZERO_F32 || z->cfg.grads == ZERO_GRAD_F32;
    const zero_type added = f32 ? ZERO_F32 : z->cfg.type;
    ZP_REFUSE(z, z->grads_unstated && type != added,
              "your arrays are %s, but cfg.grads is AUTO, so that gradients are %s: if your "
              "backward adds %s, set cfg.grads to %s; otherwise change %s",
              zp_life_types[type], zp_life_types[added], zp_life_types[added],
              f32 ? "F32" : "AS_TYPE", f32 ? "cfg.type" : "it to F32, or cfg.type");
    return ZERO_OK;
}

static zero_result zp_adopt_run(zero_ctx *z, void *params, void *grads, zero_type type,
                                void (*release)(void *array)) {
    if (z->phase == ZP_NEW) ZP_TRY(zero_build(z));
    ZP_ENTER(z, "zero_adopt", ZP_IDLE, "weights are adopted between steps");
    ZP_UNTIMELY(z, z->pointers_stay, "the arrays are lent, and stay yours; leave out zero_adopt");
    ZP_REFUSE(
        z, type == ZERO_F64,
        "type is ZERO_F64, but the plugin's numbers have at most 32 bits; call zero_lend instead, "
        "which leaves the arrays yours");
    ZP_REFUSE(z, (int)type < 0 || type >= ZERO_TYPES, "type is %d; use a ZERO_ type", (int)type);
    ZP_TRY(zp_adopt_check_grad_type(z, type));
    ZP_TRY(zp_adopt_all(z, params, grads, type, release));
    if (z->places) z->places->forget_arrays(z);
    for (int u = 0; u < z->layout.units; u++) { /* a use without hooks then faults */
        zp_pointer_set_unit(z, ZP_PARAM, u, 0, params);
        zp_pointer_set_unit(z, ZP_GRAD, u, 0, grads);
    }
    z->adopted[ZP_GRAD] = grads;
    z->adopted[ZP_PARAM] = params;
    return zero_bind(z, params, grads);
}

zero_result zero_adopt(zero_ctx *z, void *params, void *grads, zero_type type,
                       void (*release)(void *array)) {
    ZP_RUN_AS(z, "zero_adopt", zp_adopt_run(z, params, grads, type, release));
}

/* ---- a step without hooks ---- */

zero_result zero_train_begin(zero_ctx *z) {
    ZP_RUN_AS(z, "zero_train_begin",
              zero_pass_begin(z, ZERO_TRAIN, z->phase == ZP_BETWEEN ? z->micro + 1 : 0,
                              z->cfg.micro_steps));
}

static zero_result zp_adopt_train_end(zero_ctx *z, const zero_hyper *hyper, double loss,
                                      double *mean) {
    ZP_ENTER(z, "zero_train_end", ZP_IN_PASS, "no pass has begun; call zero_train_begin first");
    for (int t = 0; t < z->ntensors && !z->hooked; t++)
        ZP_UNTIMELY(z, !(z->tensors[t].desc.flags & ZERO_KEEP),
                    "no hook was called, and tensor %s is not KEEP; add ZERO_KEEP or hooks",
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
        if (!z->hooked) ZP_TRY(zp_gather_wait(z, z->layout.units));
        steps *= z->all->nranks;
        if (mean && !z->add_loss) ZP_TRY(zero_all_sum(z, &sum, 1));
    }
    if (z->add_loss) ZP_TRY(z->add_loss(z, loss, mean && z->micro + 1 == z->micro_steps, &sum));
    if (mean) *mean = sum / steps;
    return ZERO_OK;
}

zero_result zero_train_end(zero_ctx *z, const zero_hyper *hyper, double loss, double *mean) {
    ZP_RUN_AS(z, "zero_train_end", zp_adopt_train_end(z, hyper, loss, mean));
}

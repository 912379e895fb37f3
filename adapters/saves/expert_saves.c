/* expert_saves.c - see expert_saves.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "expert_saves.h"

#include "../gpt2/experts.h"

#include <stdio.h>

static checkpoint_options make_expert_options(expert_saves *x, const layout *l,
                                              const gpt2_config *model,
                                              const checkpoint_options *o) {
    const experts_part whole = experts_part_of(NULL);
    checkpoint_options own = *o;
    experts_table(model, &whole, x->table);
    (void)snprintf(x->folder, sizeof x->folder, "%s/experts", o->folder);
    own.folder = x->folder;
    if (own.keep_last) own.keep_last += 1 + own.asynchronous;
    own.asynchronous = 0;
    own.tensors = x->table;
    own.ntensors = EXPERTS_TENSORS;
    own.parts = layout_parts(l, 1);
    return own;
}

size_t expert_saves_bytes(const zero_ctx *z, const checkpoint_parts *parts, checkpoint_way way) {
    if (way == CHECKPOINT_ASYNCHRONOUS) way = CHECKPOINT_WRITTEN;
    return z ? checkpoint_bytes(z, parts, way) : 0;
}

checkpoint_result expert_saves_open(expert_saves *x, const layout *l, const gpt2_config *model,
                                    const checkpoint_options *o) {
    if (!l->experts) return CHECKPOINT_OK;
    const checkpoint_options own = make_expert_options(x, l, model, o);
    return checkpoint_create(&x->saves, l->experts, &own);
}

checkpoint_result expert_saves_save(expert_saves *x, int64_t step) {
    return x->saves ? checkpoint_save(x->saves, step, NULL, 0) : CHECKPOINT_OK;
}

checkpoint_result expert_saves_load(expert_saves *x, int64_t step) {
    return x->saves ? checkpoint_load(x->saves, step) : CHECKPOINT_OK;
}

const char *expert_saves_error(const expert_saves *x) {
    return x->saves ? checkpoint_error(x->saves) : "";
}

void expert_saves_close(expert_saves *x) {
    checkpoint_destroy(x->saves);
    x->saves = NULL;
}

/* agree.h - compares data that must be the same on all ranks, before the ranks use it */
#pragma once

#include "extra.h"

/* Returns the first rank whose part of the last exchange differs from rank 0's; 0: none. */
static int zp_agree_first_difference(const zp_comm *g, size_t bytes) {
    for (int r = 1; r < g->nranks; r++)
        if (memcmp(g->mail, g->mail + (size_t)r * bytes, bytes)) return r;
    return 0;
}

/* Adds the value of a field to the hash, unless ranks may differ in it. */
static uint64_t zp_agree_add(uint64_t hash, const zp_setting *s, const void *of) {
    const double value = zp_config_get_setting(s, of);
    uint64_t word;
    memcpy(&word, &value, sizeof word);
    return s->free ? hash : zp_hash_wide(hash, word);
}

/* Compares settings and tensors. On a difference, all ranks return an error. COLLECTIVE. */
static zero_result zp_agree_compare(zero_ctx *z) {
    const zp_setting *s;
    uint64_t mine = ZP_HASH_EMPTY;
    if (z->compare) return z->compare(z);
    for (int i = 0; (s = zp_extra_setting(z, i)) != NULL; i++)
        mine = zp_agree_add(mine, s, &z->cfg);
    for (const zp_tensor *t = z->tensors; t < z->tensors + z->ntensors; t++) {
        const uint64_t words[] = {t->desc.numel, (uint64_t)t->desc.flags,
                                  (uint64_t)zp_layout_frozen_layers(t), zp_type_bits(t->lr_factor),
                                  zp_type_bits(t->decay_factor)};
        for (int i = 0; i < 5; i++) mine = zp_hash_wide(mine, words[i]);
        for (s = zp_fields; s->name; s++) mine = zp_agree_add(mine, s, &t->desc);
        ZP_EACH_EXTRA(z, x)
        for (s = x->fields; s && s->name; s++) mine = zp_agree_add(mine, s, &t->desc);
    }
    ZP_DO(z, zp_comm_exchange(z->all, &mine, sizeof mine));
    const int r = zp_agree_first_difference(z->all, sizeof mine);
    if (!r) return ZERO_OK;
    return z->dead = zp_ctx_fail(z, ZERO_ERR_MISMATCH,
                                 "settings or tensors of rank %d differ from those of rank 0; the "
                                 "part \"agree\" of make drop names the difference",
                                 r);
}

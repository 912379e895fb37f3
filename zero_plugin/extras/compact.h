/* compact.h - the optimizer's state in fewer bytes, and bf16 weights without master weights

   A pass decodes the state of a block of elements to f32, calls the body, and encodes the results.
   Rounding is stochastic, in BF16 and in codes (codes.h), because a slow average would not move if
   it were rounded to nearest. Random numbers depend on seed, step, tensor and element alone; each
   array has one half of their bits. A decoded value is encoded to itself in BF16. Codes are written
   by whole blocks, at which spans begin; a pass over parts of blocks writes no state
   (ZP_KEEPS_STATE). */
#pragma once

#include "../core/extra.h"
#include "../numbers/blocks.h"

/* Rounds weights stochastically. */
static void zp_compact_round(const zp_update *u, size_t at, size_t n, const float *p) {
    uint32_t random[ZP_CODE_BLOCK];
    for (size_t i = 0, k; i < n; i += k) {
        k = zp_min(n - i, ZP_CODE_BLOCK);
        ZP_BLOCK(k, draw, random, u->element + at + i, u->key);
        ZP_BLOCK(k, narrow, (uint16_t *)u->p + at + i, p + i, random, 0);
    }
}
/* Reads the state of elements [at, at + n). */
static void zp_compact_read(const zp_update *u, int array, size_t at, size_t n, float *to) {
    const zp_codes *codes = (const zp_codes *)u->state[array] + at / ZP_CODE_BLOCK;
    if (u->state_type == ZERO_BF16) {
        zp_type_widen(to, (const uint16_t *)u->state[array] + at, ZERO_BF16, n);
    } else if (at % ZP_CODE_BLOCK) {
        zp_codes_read(to, codes, array && u->squares, at % ZP_CODE_BLOCK, n);
    } else {
        for (size_t i = 0, k; i < n; i += k, codes++) {
            k = zp_min(n - i, ZP_CODE_BLOCK);
            ZP_BLOCK(k, decode, to + i, codes, array && u->squares);
        }
    }
}
/* Stores the state of elements [at, at + n), in one or two arrays that are not the stored ones. The
   work on random numbers is between a block's scales and its codes, which wait for the scales. */
static void zp_compact_write(const zp_update *u, size_t at, size_t n, const float *s1,
                             const float *s2) {
    uint32_t key[2], random[ZP_CODE_BLOCK];
    zp_blocks_state s = {{NULL, NULL}, {NULL, NULL}, s2 ? 2 : 1, u->squares, random};
    zp_optimizer_state_key(u, key);
    for (size_t i = 0, k; i < n; i += k) {
        const int codes = u->state_type == ZP_CODES;
        k = zp_min(n - i, ZP_CODE_BLOCK);
        for (int array = 0; array < s.arrays; array++) {
            s.from[array] = (array ? s2 : s1) + i;
            s.to[array] = (zp_codes *)u->state[array] + (at + i) / ZP_CODE_BLOCK;
            if (codes) ZP_BLOCK(k, scale, s.to[array], s.from[array]);
        }
        ZP_BLOCK(k, draw, random, u->element + at + i, key);
        if (codes) ZP_BLOCK(k, encode, &s);
        for (int array = 0; array < s.arrays && !codes; array++)
            ZP_BLOCK(k, narrow, (uint16_t *)u->state[array] + at + i, s.from[array], random, array);
    }
}
/* Converts codes to f32; i is an element. Or f32 to codes; i is a block. */
ZP_FN void zp_compact_convert_at(const zp_kernel_convert_args *a, size_t i) {
    if (a->to_type == ZP_CODES)
        zp_codes_replace((zp_codes *)a->to, i, (const float *)a->from, a->first,
                         a->first + a->numel, a->squares);
    else
        zp_codes_read((float *)a->to + i, (const zp_codes *)a->from, a->squares, a->first + i, 1);
}
ZP_KERNEL(zp_compact_convert, zp_kernel_convert_args, 32768)

static const zp_state_form zp_compact_form = {zp_compact_read, zp_compact_write, zp_compact_convert,
                                              zp_compact_convert_loop};

/* Sets the type of the state, and the rounding of weights. */
static zero_result zp_compact_choose(zero_ctx *z) {
    static const zero_type types[ZERO_STATE_TYPES] = {ZERO_F32, ZERO_BF16, ZP_CODES};
    ZP_REFUSE(z, z->cfg.state_type == ZERO_STATE_8BIT && z->rule->reads & ZP_GROWS,
              "state_type is 8BIT, but the state of %s only grows and loses small sums; use BF16",
              z->rule->name);
    for (int i = 0; i < ZP_STATES; i++) z->array[ZP_STATE + i].type = types[z->cfg.state_type];
    z->state_form = &zp_compact_form;
    z->round_weights = z->master.rounding == ZP_STOCHASTIC ? zp_compact_round : NULL;
    return ZERO_OK;
}
/* No shard boundary cuts a block of codes. */
static zero_result zp_compact_tensor(zero_ctx *z, zp_tensor *t) {
    if (z->cfg.state_type == ZERO_STATE_8BIT)
        t->atom = zp_layout_common_multiple(zp_max(t->atom, 1), ZP_CODE_BLOCK);
    return ZERO_OK;
}

static const zp_setting zp_compact_settings[] = {
    {ZP_SETTING(state_type), ZP_SIGNED, 0, ZERO_STATE_TYPES - 1, 0, 0},
    ZP_LAST_SETTING,
};
static zp_extra zp_compact_row(void) {
    zp_extra x;
    memset(&x, 0, sizeof x);
    x.name = "compact";
    x.settings = zp_compact_settings;
    x.call[ZP_ON_CHOOSE] = zp_compact_choose;
    x.tensor = zp_compact_tensor;
    return x;
}

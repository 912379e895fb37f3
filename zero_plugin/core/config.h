/* config.h - the core's settings: one table of their ranges and of the meaning of 0

   A new setting is a field of zero_config and a row here, or a row in the table of a capability
   (zp_extra.settings). These functions have no state: they write errors to `text`. */
#pragma once

#include "arrays.h"

#define ZP_UNITS           (1 << 20) /* maximum of layers and of units */
#define ZP_ANNOUNCED_CALLS (1 << 24) /* maximum of announced calls in a pass */
#define ZP_UNLIMITED       1e300
#define ZP_BELOW_1         ((double)0.99999994f) /* the largest float */

typedef enum zp_form { ZP_SIGNED = 0, ZP_UNSIGNED, ZP_REAL, ZP_BITS } zp_form;

typedef struct zp_setting { /* a field of zero_config, or of zero_tensor_desc */
    const char *name;
    size_t at, bytes; /* offset in the struct; size */
    zp_form form;
    double least, most; /* most: of BITS, those of the field that the row is about */
    double zero;        /* the meaning of 0; 0: zero itself, or a value from zp_config_resolve */
    int free;           /* 1: may differ between ranks: no bit and no collective depends on it */
} zp_setting;

#define ZP_SETTING(field) #field, offsetof(zero_config, field), sizeof(((zero_config *)0)->field)
#define ZP_FIELD(f)       #f, offsetof(zero_tensor_desc, f), sizeof(((zero_tensor_desc *)0)->f)
#define ZP_FIELD_BIT(bit) #bit, offsetof(zero_tensor_desc, flags), 4, ZP_BITS, 0, bit, 0, 0
#define ZP_FLAG           ZP_SIGNED, -ZP_UNLIMITED, ZP_UNLIMITED, 0, 0
#define ZP_POINTER        ZP_UNSIGNED, 0, ZP_UNLIMITED, 0, 1
#define ZP_LAST_SETTING                                                                            \
    { NULL, 0, 0, ZP_SIGNED, 0, 0, 0, 0 } /* ends the table of a row */
static const zp_setting zp_settings[] = {
    {ZP_SETTING(stage), ZP_SIGNED, 0, ZP_STAGES - 1, 0, 0},
    {ZP_SETTING(micro_steps), ZP_SIGNED, 0, ZP_UNLIMITED, 1, 0},
    {ZP_SETTING(accumulation), ZP_SIGNED, 0, ZERO_ACCUMULATE_SHARDED, 0, 0},
    {ZP_SETTING(type), ZP_SIGNED, 0, ZERO_TYPES - 1, 0, 0},
    {ZP_SETTING(grads), ZP_SIGNED, 0, ZERO_GRAD_AS_TYPE, 0, 0},
    {ZP_SETTING(master), ZP_SIGNED, 0, ZERO_MASTERS - 1, 0, 0},
    {ZP_SETTING(seed), ZP_UNSIGNED, 0, ZP_UNLIMITED, 0, 0},
    {ZP_SETTING(optimizer), ZP_SIGNED, 0, ZP_RULES - 1, 0, 0},
    {ZP_SETTING(scaler.fixed), ZP_REAL, 0, ZP_UNLIMITED, 0, 0},
    {ZP_SETTING(scaler.initial), ZP_REAL, 0, ZP_UNLIMITED, 65536, 0},
    {ZP_SETTING(scaler.minimum), ZP_REAL, 0, ZP_UNLIMITED, 1, 0},
    {ZP_SETTING(scaler.window), ZP_SIGNED, 0, ZP_UNLIMITED, 1000, 0},
    {ZP_SETTING(scaler.hysteresis), ZP_SIGNED, 0, ZP_UNLIMITED, 2, 0},
    {ZP_SETTING(scaler.consecutive_hysteresis), ZP_FLAG},
    {ZP_SETTING(prefetch), ZP_SIGNED, ZERO_NONE, ZERO_PREFETCH_MOST, 1, 0},
    {ZP_SETTING(bucket_numel), ZP_UNSIGNED, 0, ZP_UNLIMITED, 0, 0},
    {ZP_SETTING(persistence_numel), ZP_SIGNED, ZERO_NONE, ZP_UNLIMITED, 0, 0},
    {ZP_SETTING(open_units), ZP_SIGNED, ZERO_ALL, ZP_UNITS, 0, 0},
    {ZP_SETTING(no_overlap), ZP_FLAG},
    {ZP_SETTING(no_overflow_check), ZP_FLAG},
    {ZP_SETTING(no_mapping), ZP_FLAG},
    {ZP_SETTING(threads), ZP_SIGNED, 0, ZP_UNLIMITED, 0, 1},
    {ZP_SETTING(divisor), ZP_SIGNED, 0, ZP_UNLIMITED, 0, 0},
    {ZP_SETTING(timeout_s), ZP_REAL, 0, ZP_UNLIMITED, ZP_TIMEOUT_S, 0},
};
enum { ZP_SETTINGS = sizeof zp_settings / sizeof *zp_settings };
static_assert(sizeof(zero_type) == sizeof(int), "a setting that is an enum is read as an int");
static const zp_setting zp_fields[] = {{ZP_FIELD(layers), ZP_SIGNED, 0, ZP_UNITS, 1, 0},
                                       {ZP_FIELD(unit), ZP_SIGNED, 0, ZP_UNITS, 0, 0},
                                       {ZP_FIELD(uses), ZP_SIGNED, 0, ZP_UNLIMITED, 1, 0},
                                       {ZP_FIELD(together), ZP_SIGNED, 0, ZP_UNITS, 1, 0},
                                       {ZP_FIELD(every), ZP_SIGNED, 0, ZP_UNITS, 1, 0},
                                       ZP_LAST_SETTING};

typedef union zp_any {
    int i;
    int64_t l;
    uint64_t u;
    float f;
    double d;
} zp_any;

static double zp_config_get_setting(const zp_setting *s, const void *of) {
    zp_any x;
    memcpy(&x, (const char *)of + s->at, s->bytes);
    if (s->form == ZP_REAL) return s->bytes == 4 ? (double)x.f : x.d;
    if (s->form == ZP_BITS) return (double)(x.i & (int)s->most);
    if (s->bytes == 4) return (double)x.i;
    return s->form == ZP_SIGNED ? (double)x.l : (double)x.u;
}

static void zp_config_set_setting(const zp_setting *s, void *of, double value) {
    zp_any x;
    if (s->form != ZP_REAL)
        x.i = (int)value; /* no wider setting has a default */
    else if (s->bytes == 4)
        x.f = (float)value;
    else
        x.d = value;
    memcpy((char *)of + s->at, &x, s->bytes);
}

/* Checks a setting, and replaces 0 by its meaning. */
static zero_result zp_config_resolve_setting(const zp_setting *s, void *of, char *text,
                                             size_t bytes) {
    const double value = zp_config_get_setting(s, of);
    const char *number = s->form == ZP_REAL ? "a finite number, " : "";
    char most[32] = " or more";
    if (s->zero != 0 && value == 0) zp_config_set_setting(s, of, s->zero);
    if (zp_type_is_finite(value) && value >= s->least && value <= s->most) return ZERO_OK;
    if (s->most < ZP_UNLIMITED) (void)snprintf(most, sizeof most, "..%.9g", s->most);
    (void)snprintf(text, bytes, "%s is %.15g, expected %s%g%s", s->name, value, number, s->least,
                   most);
    return ZERO_ERR_ARGUMENT;
}

/* Replaces each 0 that depends on other settings. `cpu_ranks`: the group's. */
static void zp_config_resolve(zero_config *c, int cpu_ranks) {
    if (c->prefetch == ZERO_NONE) c->prefetch = 0;
    if (!c->accumulation) c->accumulation = zp_policies[c->stage].accumulation;
    if (!c->grads)
        c->grads = c->micro_steps > 1 || c->type == ZERO_F32 ? ZERO_GRAD_F32 : ZERO_GRAD_AS_TYPE;
    if (!c->master) c->master = c->type == ZERO_BF16 ? ZERO_MASTER_SPLIT : ZERO_MASTER_F32;
    if (c->scaler.fixed == 0 && c->type != ZERO_F16) c->scaler.fixed = 1;
    c->threads = zp_lane_get_threads(c->threads, cpu_ranks);
}

/* config.h - the settings: what they may be, and what zeros mean */
#ifndef ZP_CONFIG_H
#define ZP_CONFIG_H

#include "context.h"

static int zp_threads(int asked) {
#ifdef _OPENMP
    return asked > 0 ? asked : omp_get_max_threads();
#else
    (void)asked;
    return 1;
#endif
}

static zero_result zp_config_types(zero_ctx *z) {
    zero_config *c = &z->cfg;
    if ((int)c->type < 0 || c->type >= ZERO_TYPES)
        return zp_fail(z, ZERO_ERR_ARGUMENT, "type is %d, no such type", (int)c->type);
    if ((int)c->grads < 0 || c->grads > ZERO_GRAD_AS_TYPE)
        return zp_fail(z, ZERO_ERR_ARGUMENT, "grads is %d, no such choice", (int)c->grads);
    if ((int)c->optimizer < 0 || (int)c->optimizer >= ZP_RULES)
        return zp_fail(z, ZERO_ERR_ARGUMENT, "optimizer is %d, expected 0..%d", (int)c->optimizer,
                       ZP_RULES - 1);
    if (c->no_master && c->type != ZERO_BF16)
        return zp_fail(z, ZERO_ERR_ARGUMENT,
                       "no_master is set: weights can do without an f32 copy in BF16 alone");
    z->rule = &zp_rules[c->optimizer];
    return ZERO_OK;
}

static zero_result zp_config_scaler(zero_ctx *z) {
    zero_scaler *s = &z->cfg.scaler;
    if (!zp_not_below(s->fixed) || !zp_not_below(s->initial) || !zp_not_below(s->minimum)
        || s->window < 0 || s->hysteresis < 0)
        return zp_fail(
            z, ZERO_ERR_ARGUMENT,
            "scaler: fixed %g, initial %g, minimum %g, window %d, hysteresis %d: expected "
            "finite numbers, none below 0",
            (double)s->fixed, (double)s->initial, (double)s->minimum, s->window, s->hysteresis);
    if (s->fixed == 0 && z->cfg.type != ZERO_F16) s->fixed = 1;
    if (s->initial == 0) s->initial = 65536;
    if (s->minimum == 0) s->minimum = 1;
    if (s->window == 0) s->window = 1000;
    if (s->hysteresis == 0) s->hysteresis = 2;
    if (s->fixed == 0 && s->initial < s->minimum)
        return zp_fail(z, ZERO_ERR_ARGUMENT, "scaler: initial %g is below minimum %g",
                       (double)s->initial, (double)s->minimum);
    if (s->fixed == 0 && z->cfg.no_overflow_check)
        return zp_fail(z, ZERO_ERR_ARGUMENT,
                       "no_overflow_check is set, but a dynamic loss scale lives on overflows");
    z->report.divisor = (double)z->data->divisor;
    zp_scale_set(&z->report, s->fixed != 0 ? s->fixed : s->initial);
    z->report.used_scale = z->report.scale;
    z->report.hysteresis = s->hysteresis;
    z->report.last_overflow = -1;
    return ZERO_OK;
}

static zero_result zp_config_check(zero_ctx *z) {
    zero_config *c = &z->cfg;
    if (c->stage < 0 || c->stage > 3)
        return zp_fail(z, ZERO_ERR_ARGUMENT, "stage is %d, expected 0..3", c->stage);
    if (c->micro_steps < 0)
        return zp_fail(z, ZERO_ERR_ARGUMENT, "micro_steps is %d, expected 0 or more",
                       c->micro_steps);
    if ((int)c->accumulation < 0 || c->accumulation > ZERO_ACCUMULATE_SHARDED)
        return zp_fail(z, ZERO_ERR_ARGUMENT, "accumulation is %d, no such choice",
                       (int)c->accumulation);
    if (c->prefetch < ZERO_NONE || c->prefetch > ZP_PREFETCH_MAX)
        return zp_fail(z, ZERO_ERR_ARGUMENT, "prefetch is %d, expected -1..%d", c->prefetch,
                       ZP_PREFETCH_MAX);
    if (c->persistence_numel < ZERO_NONE)
        return zp_fail(z, ZERO_ERR_ARGUMENT, "persistence_numel is %lld, expected -1 or more",
                       (long long)c->persistence_numel);
    if (c->threads < 0)
        return zp_fail(z, ZERO_ERR_ARGUMENT, "threads is %d, expected 0 or more", c->threads);
    if (!(c->timeout_s >= 0))
        return zp_fail(z, ZERO_ERR_ARGUMENT, "timeout_s is %g, expected 0 or more", c->timeout_s);
    ZP_TRY(zp_config_types(z));
    ZP_TRY(zp_config_scaler(z));
    z->policy = zp_policies[c->stage];
    if (!c->micro_steps) c->micro_steps = 1;
    if (c->grads == ZERO_GRAD_AUTO)
        c->grads = c->micro_steps > 1 || c->type == ZERO_F32 ? ZERO_GRAD_F32 : ZERO_GRAD_AS_TYPE;
    z->type[ZP_PARAMETERS] = c->type;
    z->type[ZP_GRADIENTS] = c->grads == ZERO_GRAD_F32 ? ZERO_F32 : c->type;
    if (c->accumulation == ZERO_ACCUMULATE_AUTO) c->accumulation = z->policy.accumulation;
    const int adds_up = c->micro_steps > 1;
    z->sharded = adds_up ? c->accumulation == ZERO_ACCUMULATE_SHARDED : z->policy.shard_gradients;
    z->mapped =
        z->policy.shard_parameters && (z->data->nranks == 1 || (!c->no_mapping && z->data->shares));
    z->collects = adds_up && !z->sharded && z->type[ZP_GRADIENTS] != ZERO_F32;
    c->prefetch = c->prefetch == ZERO_NONE ? 0 : c->prefetch ? c->prefetch : 1;
    if (c->timeout_s == 0) c->timeout_s = ZP_TIMEOUT_S;
    c->threads = zp_threads(c->threads);
    return ZERO_OK;
}

#endif

/* hooks.h - the hooks of a pass: what happens when your code begins and ends a unit */
#pragma once

#include "reduce.h"

static zero_result zp_hook_begin_training(zero_ctx *z, int micro, int micro_steps) {
    const int expected = z->phase == ZP_BETWEEN ? z->micro + 1 : 0;
    const int together = micro == ZERO_TOGETHER;
    if (together) micro = expected;
    ZP_UNTIMELY(z, together && expected, "%d micro-steps have run; end the step first", expected);
    ZP_REFUSE(z, together && micro_steps > 1 && z->array[ZP_GRAD].type != ZERO_F32,
              "ZERO_TOGETHER adds gradients in f32, not in 16 bits; set cfg.grads to F32");
    ZP_REFUSE(z, micro_steps < 1 || micro_steps > z->cfg.micro_steps,
              "micro_steps is %d, cfg.micro_steps allows 1..%d", micro_steps, z->cfg.micro_steps);
    ZP_UNTIMELY(z, z->phase == ZP_REDUCED, "zero_reduce has run; call zero_step first");
    ZP_UNTIMELY(
        z, micro != expected || (expected && micro_steps != z->micro_steps) || micro >= micro_steps,
        "micro-step %d of %d, expected %d of %d", micro, micro_steps, expected,
        expected ? z->micro_steps : micro_steps);
    z->micro = together ? micro_steps - 1 : micro;
    z->micro_steps = micro_steps;
    z->pass_micro_steps = together ? micro_steps : 1;
    zp_events_set_step(z->device.recorder, z->taken, z->micro);
    for (int u = 0; u < z->layout.all; u++) {
        z->live[u].writes = 0;
        if (micro == 0) z->live[u].reduced = 0;
        if (z->adding != ZP_IN_PLACE || micro == 0) z->live[u].touched = 0;
    }
    if (micro == 0) ZP_TRY(zp_extra_call(z, ZP_ON_STEP));
    if (micro == 0) /* all ranks' verdicts: a peer that fails must not leave its old one here */
        ZP_DO(z, zp_device_clear(&z->stream[ZP_GRADIENTS], z->verdicts,
                                 (size_t)z->agreeing->nranks * (size_t)zp_ctx_verdict_words(z)
                                     * sizeof *z->verdicts));
    return zp_reduce_open_gradient(z, z->layout.units, 1);
}

static zero_result zp_hook_pass_begin(zero_ctx *z, zero_pass kind, int micro, int micro_steps) {
    ZP_ENTER(z, "zero_pass_begin", ZP_ANY, "");
    ZP_UNTIMELY(z, z->phase & (ZP_NEW | ZP_IN_PASS | ZP_OPEN), "%s",
                z->phase == ZP_NEW    ? "the context is not built; call zero_build first"
                : z->phase == ZP_OPEN ? "the state is open; call zero_state_end first"
                                      : "the last pass has not ended; call zero_pass_end first");
    ZP_UNTIMELY(z, z->no_pass, "%s", z->no_pass);
    ZP_REFUSE(z, kind != ZERO_TRAIN && kind != ZERO_EVAL, "kind %d; use TRAIN or EVAL", (int)kind);
    ZP_TRY_IF(z->announcer, begin, z, kind, micro == ZERO_TOGETHER);
    ZP_TRY_IF(z->observer, begin_pass, z, kind);
    if (kind == ZERO_TRAIN) ZP_TRY(zp_hook_begin_training(z, micro, micro_steps));
    ZP_TRY(zp_gather_wait(z, z->layout.units)); /* KEEP */
    z->resume = z->phase;
    z->phase = ZP_IN_PASS;
    z->pass = kind;
    z->order[kind].at = 0;
    z->hooked = 0;
    return ZERO_OK;
}

/* Every hook begins here: checks that a pass is open and that your model has this unit. */
static zero_result zp_hook_enter(zero_ctx *z, const char *call, int unit) {
    ZP_ENTER(z, call, ZP_ANY, "");
    if (z->all->unit) *z->all->unit = unit;
    ZP_UNTIMELY(z, z->phase != ZP_IN_PASS, "unit %d: no pass has begun; begin one first", unit);
    z->hooked = 1;
    return zp_ctx_check_index(z, "unit", unit, z->layout.units);
}

/* Your code may pass no struct (NULL) only if no tensor of the unit has a field in it. A frozen
   tensor has no gradient. */
static zero_result zp_hook_find_struct(zero_ctx *z, zp_side side, int unit, const void *host) {
    if ((host && host != ZERO_WANTED) || z->pointers_stay) return ZERO_OK;
    ZP_EACH_SEGMENT(&z->layout, unit, s)
    for (int i = 0; i < z->layout.unit[s].members && (side == ZP_PARAM || s == unit); i++) {
        const zero_tensor_desc *d = &z->tensors[z->layout.unit[s].member[i].tensor].desc;
        ZP_REFUSE(z, !(d->flags & ZERO_BY_SLOT),
                  "unit %d: your struct of %s is %s, but tensor %s has a field in it; pass it",
                  unit, side == ZP_PARAM ? "parameters" : "gradients",
                  host ? "ZERO_WANTED" : "NULL", d->name);
    }
    return ZERO_OK;
}

/* Ends the record of a unit's forward or backward, if it is open. */
static void zp_hook_end_slice(zero_ctx *z, zp_record **slice) {
    zp_device_end_slice(&z->compute, *slice);
    *slice = NULL;
}

static zero_result zp_hook_forward_begin(zero_ctx *z, int unit, void *params) {
    ZP_TRY(zp_hook_enter(z, "zero_forward_begin", unit));
    ZP_TRY(zp_hook_find_struct(z, ZP_PARAM, unit, params));
    zp_live *live = &z->live[unit];
    if (!live->parameter_opens) ZP_TRY_IF(z->announcer, match, z, ZERO_CALL_FORWARD, unit);
    ZP_TRY_IF(z->observer, hook, z, ZP_HOOK_FORWARD, unit);
    ZP_TRY(zp_gather_open(z, unit));
    zp_pointer_set_unit(z, ZP_PARAM, unit, 1, params);
    if (!live->forward_opens++)
        live->slice[0] = zp_device_begin_slice(&z->compute, ZERO_EVENT_FORWARD, unit, 0);
    return ZERO_OK;
}

static zero_result zp_hook_forward_end(zero_ctx *z, int unit) {
    ZP_TRY(zp_hook_enter(z, "zero_forward_end", unit));
    ZP_UNTIMELY(z, !z->live[unit].forward_opens, "unit %d: no forward has begun; begin one", unit);
    ZP_TRY_IF(z->observer, hook, z, ZP_HOOK_FORWARD_END, unit);
    if (!--z->live[unit].forward_opens) zp_hook_end_slice(z, &z->live[unit].slice[0]);
    return zp_gather_close(z, unit);
}

static zero_result zp_hook_backward_begin(zero_ctx *z, int unit, void *params, void *grads) {
    ZP_TRY(zp_hook_enter(z, "zero_backward_begin", unit));
    zp_live *live = &z->live[unit];
    ZP_UNTIMELY(z, z->pass != ZERO_TRAIN, "unit %d: no backward in an evaluation; use TRAIN", unit);
    ZP_UNTIMELY(z, zp_reduce_unit_is_written(z, unit),
                "unit %d: its gradient is complete after %d uses, here is one more; see "
                "zero_tensor_desc.uses",
                unit, z->layout.unit[unit].uses * z->pass_micro_steps);
    ZP_UNTIMELY(z, live->backward_opens == 64, "unit %d: 64 backwards are nested; end one", unit);
    ZP_TRY(zp_hook_find_struct(z, ZP_GRAD, unit, grads));
    if (params) ZP_TRY(zp_hook_find_struct(z, ZP_PARAM, unit, params));
    if (params && !live->parameter_opens)
        ZP_TRY_IF(z->announcer, match, z, ZERO_CALL_BACKWARD, unit);
    ZP_TRY_IF(z->observer, hook, z, ZP_HOOK_BACKWARD, unit);
    ZP_TRY(zp_reduce_open_gradient(z, unit, 0));
    if (params) ZP_TRY(zp_gather_open(z, unit));
    if (!live->backward_opens) ZP_TRY_IF(z->observer, move, z, unit, ZP_GRAD, 1);
    live->with_parameters = live->with_parameters << 1 | (params != NULL);
    live->backward_opens++;
    if (params)
        zp_pointer_set_unit(z, ZP_PARAM, unit, 1, params);
    else if (!live->parameter_opens) /* your code must not read old pointers */
        zp_pointer_set_unit(z, ZP_PARAM, unit, 0, NULL);
    zp_pointer_set_unit(z, ZP_GRAD, unit, 1, grads);
    if (live->backward_opens == 1)
        live->slice[1] = zp_device_begin_slice(&z->compute, ZERO_EVENT_BACKWARD, unit, 0);
    return ZERO_OK;
}

static zero_result zp_hook_backward_end(zero_ctx *z, int unit) {
    ZP_TRY(zp_hook_enter(z, "zero_backward_end", unit));
    zp_live *live = &z->live[unit];
    ZP_UNTIMELY(z, !live->backward_opens, "unit %d: no backward has begun; begin one", unit);
    ZP_TRY_IF(z->observer, hook, z, ZP_HOOK_BACKWARD_END, unit);
    if (live->backward_opens == 1) zp_hook_end_slice(z, &live->slice[1]);
    if (live->backward_opens == 1) ZP_TRY_IF(z->observer, move, z, unit, ZP_GRAD, 0);
    if (live->with_parameters & 1) ZP_TRY(zp_gather_close(z, unit));
    live->with_parameters >>= 1;
    const int uses =
        z->layout.unit[unit].uses * (zp_reduce_is_repeated(z) ? 1 : z->pass_micro_steps);
    if (--live->backward_opens || ++live->writes % uses || live->reduced_last) return ZERO_OK;
    return zp_reduce_is_due(z) && z->layout.unit[unit].numel ? zp_reduce_add_to_bucket(z, unit)
                                                             : ZERO_OK;
}

static zero_result zp_hook_pass_end(zero_ctx *z) {
    ZP_ENTER(z, "zero_pass_end", ZP_IN_PASS, "no pass has begun; call zero_pass_begin first");
    for (int u = 0; u < z->layout.units; u++) {
        const zp_live *live = &z->live[u];
        ZP_UNTIMELY(z, live->forward_opens || live->backward_opens,
                    "unit %d: its %s has not ended; call its end hook first", u,
                    live->forward_opens ? "forward" : "backward");
    }
    ZP_TRY_IF(z->announcer, end, z);
    ZP_TRY_IF(z->observer, end_pass, z);
    z->order[z->pass].n = z->order[z->pass].at;
    z->phase = z->resume;
    if (z->pass == ZERO_EVAL) {
        z->peers_read |= z->array[ZP_PARAM].share == ZP_SEEN && z->phase == ZP_REDUCED;
        zp_events_deliver(z->device.recorder);
        return ZERO_OK;
    }
    z->phase = ZP_BETWEEN;
    ZP_TRY(zp_reduce_finish_micro_step(z));
    zp_events_deliver(z->device.recorder);
    return ZERO_OK;
}

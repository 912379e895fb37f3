/* pass_order.h - functions of the header: the order of a pass, and gathers by your own schedule */
#pragma once

#include "life.h"

zero_result zero_pass_order(zero_ctx *z, zero_pass kind, int micro, const zero_turn *turns, int n) {
    ZP_ENTER(z, "zero_pass_order", ZP_NEW | ZP_IDLE, "orders are announced between steps");
    ZP_REFUSE(z, kind != ZERO_TRAIN && kind != ZERO_EVAL, "no such pass: %d", (int)kind);
    ZP_REFUSE(z, micro && (micro != ZERO_TOGETHER || kind == ZERO_EVAL),
              "micro is %d, expected 0, or ZERO_TOGETHER of a training pass", micro);
    ZP_REFUSE(z, n < 0 || n > ZP_TURNS || (n && !turns), "%d turns, expected 0..%d", n, ZP_TURNS);
    ZP_TRY(zp_life_plan(z));
    ZP_TRY(zp_order_check(z, turns, n));
    zp_order *t = &z->trace[kind];
    zero_turn *own = n ? (zero_turn *)calloc((size_t)n, sizeof *own) : NULL;
    if ((n && !own) || !zp_order_reserve(t, (size_t)n)) {
        free(own);
        return zp_ctx_fail(z, ZERO_ERR_MEMORY, "an order of %d turns", n);
    }
    if (n) memcpy(own, turns, (size_t)n * sizeof *own);
    free(t->turn);
    t->turn = own;
    t->turns = n;
    t->together = n && micro == ZERO_TOGETHER;
    z->planned = 0;
    if (z->phase == ZP_NEW) return ZERO_OK;
    zp_order_expect(z, kind);
    const zero_result r = zp_agree_compare_lines(z, zp_order_line);
    return r ? z->dead = r : ZERO_OK;
}

zero_result zero_gather(zero_ctx *z, int unit) {
    ZP_TRY(zp_hook_enter(z, "zero_gather", unit));
    ZP_TRY(zp_order_match(z, ZERO_TURN_GATHER, unit));
    ZP_TRY(zp_observe_hook(z, ZP_HOOK_GATHER, unit));
    ZP_TRY(zp_gather_acquire(z, unit));
    z->live[unit].held++;
    return ZERO_OK;
}

zero_result zero_release(zero_ctx *z, int unit) {
    ZP_TRY(zp_hook_enter(z, "zero_release", unit));
    ZP_UNTIMELY(z, !z->live[unit].held, "unit %d: zero_gather comes first", unit);
    ZP_TRY(zp_order_match(z, ZERO_TURN_RELEASE, unit));
    ZP_TRY(zp_observe_hook(z, ZP_HOOK_RELEASE, unit));
    zp_order_advance(&z->trace[z->pass], 1);
    z->live[unit].held--;
    zp_buffer_hold(&z->pool[ZP_PARAM], unit, -1);
    return ZERO_OK;
}

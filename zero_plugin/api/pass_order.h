/* pass_order.h - functions of the header: the order of a pass */
#pragma once

#include "life.h"

zero_result zero_pass_order(zero_ctx *z, zero_pass kind, int micro, const zero_turn *turns, int n) {
    ZP_ENTER(z, "zero_pass_order", ZP_NEW | ZP_IDLE, "orders are announced between steps");
    ZP_REFUSE(z, kind != ZERO_TRAIN && kind != ZERO_EVAL, "no such pass: %d", (int)kind);
    ZP_REFUSE(z, micro && (micro != ZERO_TOGETHER || kind == ZERO_EVAL),
              "micro is %d, expected 0, or ZERO_TOGETHER of a training pass", micro);
    ZP_REFUSE(z, n < 0 || n > ZP_ANNOUNCED_CALLS || (n && !turns), "%d turns, expected 0..%d", n,
              ZP_ANNOUNCED_CALLS);
    ZP_TRY(zp_life_plan(z));
    ZP_TRY(zp_order_check(z, turns, n));
    zp_order *t = &z->order[kind];
    zero_turn *own = n ? (zero_turn *)calloc((size_t)n, sizeof *own) : NULL;
    if ((n && !own) || !zp_order_reserve(t, (size_t)n)) {
        free(own);
        return zp_ctx_fail(z, ZERO_ERR_MEMORY, "an order of %d turns", n);
    }
    if (n) memcpy(own, turns, (size_t)n * sizeof *own);
    free(t->announced);
    t->announced = own;
    t->nannounced = n;
    t->all_micro_steps = n && micro == ZERO_TOGETHER;
    z->planned = 0;
    if (z->phase == ZP_NEW) return ZERO_OK;
    zp_order_expect(z, kind);
    const zero_result r = zp_agree_compare_lines(z, zp_order_line);
    return r ? z->dead = r : ZERO_OK;
}

/* pass_order.h - functions of the header: your code announces the order of a pass */
#pragma once

#include "life.h"
#include "../extras/lines.h"

static const char *const zp_pass_order_calls[ZERO_CALL_KINDS] = {"forward", "backward"};
static const char *const zp_pass_order_passes[2] = {"training pass", "evaluation"};

/* Prints call i of all orders, which ranks compare. */
static int zp_pass_order_line(const zero_ctx *z, int i, char *text, size_t bytes) {
    for (int kind = 0; kind < 2; i -= z->order[kind++].nannounced) {
        if (i >= z->order[kind].nannounced) continue;
        const zero_pass_call *call = &z->order[kind].announced[i];
        (void)snprintf(text, bytes, "call %d of a%s %s: %s of unit %d", i, kind ? "n" : "",
                       zp_pass_order_passes[kind], zp_pass_order_calls[call->kind], call->unit);
        return 1;
    }
    return 0;
}

/* Checks that every kind and every unit exists. */
static zero_result zp_pass_order_check_calls(zero_ctx *z, const zero_pass_call *calls, int n) {
    for (int i = 0; i < n; i++) {
        const int kind = (int)calls[i].kind, u = calls[i].unit;
        ZP_REFUSE(z, kind < 0 || kind >= ZERO_CALL_KINDS || u < 0 || u >= z->layout.units,
                  "call %d: kind %d of unit %d, expected kinds 0..%d and units 0..%d", i, kind, u,
                  ZERO_CALL_KINDS - 1, z->layout.units - 1);
    }
    return ZERO_OK;
}

static zero_result zp_pass_order_check(zero_ctx *z) {
    for (int i = 0; i < 2; i++)
        ZP_TRY(zp_pass_order_check_calls(z, z->order[i].announced, z->order[i].nannounced));
    return ZERO_OK;
}

/* Checks that this call is the next one of the announced order, if any. Changes nothing. */
static zero_result zp_pass_order_match(zero_ctx *z, zero_pass_call_kind kind, int unit) {
    const zp_order *t = &z->order[z->pass];
    if (!t->nannounced) return ZERO_OK;
    ZP_UNTIMELY(z, t->matched == t->nannounced,
                "%s of unit %d comes after the %d calls announced for this pass; announce it, too",
                zp_pass_order_calls[kind], unit, t->nannounced);
    const zero_pass_call *next = &t->announced[t->matched];
    ZP_UNTIMELY(z, next->kind != kind || next->unit != unit,
                "%s of unit %d, expected call %d of this pass as announced: %s of unit %d",
                zp_pass_order_calls[kind], unit, t->matched, zp_pass_order_calls[next->kind],
                next->unit);
    return ZERO_OK;
}

/* Begins a pass of this kind: its announced order starts again. */
static zero_result zp_pass_order_begin(zero_ctx *z, zero_pass kind, int together) {
    zp_order *t = &z->order[kind];
    ZP_UNTIMELY(z, t->nannounced && t->all_micro_steps != together,
                "the order of a %s was announced for %s; announce another one",
                zp_pass_order_passes[kind],
                t->all_micro_steps ? "all micro-steps together (ZERO_TOGETHER)" : "one micro-step");
    t->matched = 0;
    return ZERO_OK;
}

static zero_result zp_pass_order_end(zero_ctx *z) {
    const zp_order *t = &z->order[z->pass];
    if (t->matched == t->nannounced) return ZERO_OK;
    const zero_pass_call *next = &t->announced[t->matched];
    return zp_ctx_fail(z, ZERO_ERR_STATE, "call %d of %d has not come: %s of unit %d", t->matched,
                       t->nannounced, zp_pass_order_calls[next->kind], next->unit);
}

static const zp_announcer zp_pass_order_announcer = {zp_pass_order_begin, zp_pass_order_end,
                                                     zp_pass_order_match, zp_pass_order_check,
                                                     zp_pass_order_line};

zero_result zero_pass_order(zero_ctx *z, zero_pass kind, int micro, const zero_pass_call *calls,
                            int n) {
    ZP_ENTER(z, "zero_pass_order", ZP_NEW | ZP_IDLE, "orders are announced between steps");
    ZP_REFUSE(z, kind != ZERO_TRAIN && kind != ZERO_EVAL,
              "kind is %d, expected ZERO_TRAIN or ZERO_EVAL", (int)kind);
    ZP_REFUSE(z, micro && (micro != ZERO_TOGETHER || kind == ZERO_EVAL),
              "micro is %d, expected 0, or ZERO_TOGETHER of a training pass", micro);
    ZP_REFUSE(z, n < 0 || n > ZP_ANNOUNCED_CALLS || (n && !calls),
              "n is %d, expected 0..%d, and calls an array", n, ZP_ANNOUNCED_CALLS);
    ZP_TRY(zp_life_plan(z));
    ZP_TRY(zp_pass_order_check_calls(z, calls, n));
    zp_order *t = &z->order[kind];
    zero_pass_call *own = n ? (zero_pass_call *)calloc((size_t)n, sizeof *own) : NULL;
    if ((n && !own) || !zp_order_reserve(t, (size_t)n)) {
        free(own);
        return zp_ctx_fail(z, ZERO_ERR_MEMORY, "an order of %d calls", n);
    }
    if (n) memcpy(own, calls, (size_t)n * sizeof *own);
    free(t->announced);
    t->announced = own;
    t->nannounced = n;
    t->all_micro_steps = n && micro == ZERO_TOGETHER;
    z->announcer = &zp_pass_order_announcer;
    z->planned = 0;
    if (z->phase == ZP_NEW) return ZERO_OK;
    zp_order_expect(z, kind);
    const zero_result r = zp_lines_compare(z, zp_line_of_order);
    return r ? z->dead = r : ZERO_OK;
}

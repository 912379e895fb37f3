/* order.h - the order of a pass's calls, as the host announces it in the place of what is learnt

   It becomes the trace of its kind of pass, so that who gathers ahead, and the plan, see no
   difference; each call is compared with its turn. */
#pragma once

#include "context.h"

static const char *const zp_turn_words[ZERO_TURN_KINDS] = {"forward", "backward", "gather",
                                                           "release"};
static const char *const zp_pass_words[2] = {"training pass", "evaluation"};

/* Line i of what all ranks must have alike of their orders: how many turns, then each. */
static int zp_order_line(const zero_ctx *z, int i, char *text, size_t bytes) {
    memset(text, 0, bytes);
    if (!i) {
        const zp_trace *t = z->trace;
        (void)snprintf(text, bytes, "%d turns of a training pass%s, %d of an evaluation",
                       t[ZERO_TRAIN].turns, t[ZERO_TRAIN].together ? " of all micro-steps" : "",
                       t[ZERO_EVAL].turns);
        return 1;
    }
    for (int kind = 0, at = i - 1; kind < 2; at -= z->trace[kind++].turns) {
        if (at >= z->trace[kind].turns) continue;
        const zero_turn *turn = &z->trace[kind].turn[at];
        (void)snprintf(text, bytes, "turn %d of a%s %s: %s of unit %d", at, kind ? "n" : "",
                       zp_pass_words[kind], zp_turn_words[turn->kind], turn->unit);
        return 1;
    }
    return 0;
}

/* What is expected of a pass before any was seen: the announced order, if there is one. */
static int zp_order_load(zp_trace *t) {
    t->n = t->at = 0;
    for (int i = 0; i < t->turns; i++)
        if (t->turn[i].kind != ZERO_TURN_RELEASE) t->unit[t->n++] = t->turn[i].unit;
    return t->turns;
}

/* Every unit is there, and what is gathered is released, no more often. */
static zero_result zp_order_check(zero_ctx *z, const zero_turn *turns, int n) {
    zero_result r = ZERO_OK;
    const int units = z->layout.units;
    int *held = (int *)calloc((size_t)units + 1, sizeof *held);
    if (!held) return zp_fail(z, ZERO_ERR_MEMORY, "an order of %d turns", n);
    for (int i = 0; i < n && !r; i++) {
        const int kind = (int)turns[i].kind, u = turns[i].unit;
        if (kind < 0 || kind >= ZERO_TURN_KINDS || u < 0 || u >= units)
            r = zp_fail(z, ZERO_ERR_ARGUMENT,
                        "turn %d: kind %d of unit %d, expected kinds 0..%d and units 0..%d", i,
                        kind, u, ZERO_TURN_KINDS - 1, units - 1);
        else if (kind == ZERO_TURN_RELEASE && held[u]-- == 0)
            r = zp_fail(z, ZERO_ERR_ARGUMENT, "turn %d: unit %d is released and was not gathered",
                        i, u);
        else
            held[u] += kind == ZERO_TURN_GATHER;
    }
    for (int u = 0; u < units && !r; u++)
        if (held[u]) r = zp_fail(z, ZERO_ERR_ARGUMENT, "unit %d is gathered and not released", u);
    free(held);
    return r;
}

/* Inside a pass: the next turn is this one, where there are any. Nothing is changed. */
static zero_result zp_order_match(zero_ctx *z, zero_turn_kind kind, int unit) {
    const zp_trace *t = &z->trace[z->pass];
    if (!t->turns) return ZERO_OK;
    ZP_UNTIMELY(z, t->turned == t->turns,
                "%s of unit %d: the %d turns that were announced for this pass are over",
                zp_turn_words[kind], unit, t->turns);
    const zero_turn *next = &t->turn[t->turned];
    ZP_UNTIMELY(z, next->kind != kind || next->unit != unit,
                "%s of unit %d, but turn %d of this pass was announced as %s of unit %d",
                zp_turn_words[kind], unit, t->turned, zp_turn_words[next->kind], next->unit);
    return ZERO_OK;
}

/* A turn that was matched is taken; or it is refused for another reason, and will come again. */
static void zp_order_take(zp_trace *t, int taken) {
    t->turned += t->turns && taken;
    t->at -= t->turns && !taken;
}

/* A pass begins that the order is of. */
static zero_result zp_order_begin(zero_ctx *z, zero_pass kind, int together) {
    zp_trace *t = &z->trace[kind];
    ZP_UNTIMELY(z, t->turns && t->together != together, "the order of a %s was announced for %s",
                zp_pass_words[kind],
                t->together ? "all micro-steps together (ZERO_TOGETHER)" : "one micro-step");
    t->turned = 0;
    return ZERO_OK;
}

static zero_result zp_order_end(zero_ctx *z) {
    const zp_trace *t = &z->trace[z->pass];
    if (t->turned == t->turns) return ZERO_OK;
    const zero_turn *next = &t->turn[t->turned];
    return zp_fail(z, ZERO_ERR_STATE, "turn %d of %d has not come: %s of unit %d", t->turned,
                   t->turns, zp_turn_words[next->kind], next->unit);
}

/* order.h - the order of a pass's calls: learned from the last pass, or announced by your code

   An announced order replaces the learned one for its kind of pass, in prefetch and in the plan.
   The hooks compare each call with the announced order. */
#pragma once

#include "ctx.h"

static const char *const zp_order_call_words[ZERO_TURN_KINDS] = {"forward", "backward"};
static const char *const zp_order_pass_words[2] = {"training pass", "evaluation"};

/* Makes room for n visits; returns 0 if memory is exhausted. */
static int zp_order_reserve(zp_order *t, size_t n) {
    if (n <= (size_t)t->cap) return 1;
    int *unit = (int *)realloc(t->unit, n * sizeof *unit);
    if (!unit) return 0;
    t->unit = unit;
    t->cap = (int)n;
    return 1;
}

/* Records that `unit` is used now. If the order differs from the last pass, corrects it. */
static void zp_order_visit(zp_order *t, int unit) {
    int next = t->at;
    while (next < t->n && t->unit[next] != unit) next++;
    if (next == t->n) { /* not expected: insert it */
        if (t->n == t->cap) return;
        memmove(t->unit + t->at + 1, t->unit + t->at, (size_t)(t->n - t->at) * sizeof *t->unit);
        t->unit[t->at] = unit;
        t->n++;
    } else if (next > t->at) { /* expected later: remove the skipped units */
        memmove(t->unit + t->at, t->unit + next, (size_t)(t->n - next) * sizeof *t->unit);
        t->n -= next - t->at;
    }
    t->at++;
}

/* Finds the next distinct units, at most max. If `wraps`, includes those of the next micro-step. */
static int zp_order_ahead(const zp_order *t, int wraps, int max, int *soon) {
    int found = 0;
    for (int i = t->at; i < (wraps ? t->at + t->n : t->n) && found < max; i++) {
        const int unit = t->unit[i % t->n];
        int known = 0;
        for (int k = 0; k < found; k++) known |= soon[k] == unit;
        if (!known) soon[found++] = unit;
    }
    return found;
}

/* Prints line i of the announced orders, which ranks compare: the counts, then each call. */
static int zp_order_line(const zero_ctx *z, int i, char *text, size_t bytes) {
    memset(text, 0, bytes);
    if (!i) {
        const zp_order *t = z->order;
        (void)snprintf(text, bytes, "%d turns of a training pass%s, %d of an evaluation",
                       t[ZERO_TRAIN].nannounced,
                       t[ZERO_TRAIN].all_micro_steps ? " of all micro-steps" : "",
                       t[ZERO_EVAL].nannounced);
        return 1;
    }
    for (int kind = 0, at = i - 1; kind < 2; at -= z->order[kind++].nannounced) {
        if (at >= z->order[kind].nannounced) continue;
        const zero_turn *turn = &z->order[kind].announced[at];
        (void)snprintf(text, bytes, "turn %d of a%s %s: %s of unit %d", at, kind ? "n" : "",
                       zp_order_pass_words[kind], zp_order_call_words[turn->kind], turn->unit);
        return 1;
    }
    return 0;
}

/* Expects the announced order in the first pass; returns 0 if your code announced none. */
static int zp_order_load(zp_order *t) {
    t->n = t->at = 0;
    for (int i = 0; i < t->nannounced; i++) t->unit[t->n++] = t->announced[i].unit;
    return t->nannounced;
}

/* Checks that every kind and every unit exists. */
static zero_result zp_order_check(zero_ctx *z, const zero_turn *turns, int n) {
    for (int i = 0; i < n; i++) {
        const int kind = (int)turns[i].kind, u = turns[i].unit;
        ZP_REFUSE(z, kind < 0 || kind >= ZERO_TURN_KINDS || u < 0 || u >= z->layout.units,
                  "turn %d: kind %d of unit %d, expected kinds 0..%d and units 0..%d", i, kind, u,
                  ZERO_TURN_KINDS - 1, z->layout.units - 1);
    }
    return ZERO_OK;
}

/* Checks that this call is the next one of the announced order, if any. Changes nothing. */
static zero_result zp_order_match(zero_ctx *z, zero_turn_kind kind, int unit) {
    const zp_order *t = &z->order[z->pass];
    if (!t->nannounced) return ZERO_OK;
    ZP_UNTIMELY(z, t->matched == t->nannounced,
                "%s of unit %d: the %d turns that were announced for this pass are over",
                zp_order_call_words[kind], unit, t->nannounced);
    const zero_turn *next = &t->announced[t->matched];
    ZP_UNTIMELY(z, next->kind != kind || next->unit != unit,
                "%s of unit %d, but turn %d of this pass was announced as %s of unit %d",
                zp_order_call_words[kind], unit, t->matched, zp_order_call_words[next->kind],
                next->unit);
    return ZERO_OK;
}

/* Advances past a call that was matched. If it failed for another reason, expects it again. */
static void zp_order_advance(zp_order *t, int taken) {
    t->matched += t->nannounced && taken;
    t->at -= t->nannounced && !taken;
}

/* Begins a pass of this kind: its announced order starts again. */
static zero_result zp_order_begin(zero_ctx *z, zero_pass kind, int together) {
    zp_order *t = &z->order[kind];
    ZP_UNTIMELY(z, t->nannounced && t->all_micro_steps != together,
                "the order of a %s was announced for %s", zp_order_pass_words[kind],
                t->all_micro_steps ? "all micro-steps together (ZERO_TOGETHER)" : "one micro-step");
    t->matched = 0;
    return ZERO_OK;
}

static zero_result zp_order_end(zero_ctx *z) {
    const zp_order *t = &z->order[z->pass];
    if (t->matched == t->nannounced) return ZERO_OK;
    const zero_turn *next = &t->announced[t->matched];
    return zp_ctx_fail(z, ZERO_ERR_STATE, "turn %d of %d has not come: %s of unit %d", t->matched,
                       t->nannounced, zp_order_call_words[next->kind], next->unit);
}

/* Returns unit u's reductions in a step. A reduction at the end of a pass occurs once per pass. */
static int zp_order_reductions(const zero_ctx *z, int u) {
    const int ends = z->live[u].reduced_last || u == z->layout.units;
    if (!z->layout.unit[u].numel) return 0;
    if (z->adding != ZP_EACH_REDUCED || (ends && z->order[ZERO_TRAIN].all_micro_steps)) return 1;
    return z->cfg.micro_steps;
}

/* Expects the announced order. Without one, expects that of a model of layers: up in forward, down
   in backward, with the units that are used more often in between. */
static void zp_order_expect(zero_ctx *z, zero_pass kind) {
    zp_order *t = &z->order[kind];
    const int n = z->layout.units, backward = kind == ZERO_TRAIN;
    if (zp_order_load(t)) return;
    for (int leg = 0; leg < (backward ? 4 : 2); leg++)
        for (int i = 0; i < n; i++) {
            const int u = leg < 2 ? i : n - 1 - i;
            const zp_unit *x = &z->layout.unit[u];
            const int visits[4] = {1, x->forwards > 1, x->uses > 1, x->uses == 1};
            if (visits[leg]) zp_order_visit(t, u);
        }
    t->at = 0;
}

/* Assigns buffers to `unit` and the next units; the pool has prefetch + 2 or more. Writes the units
   that must be gathered to `fill`, and returns their number; -1: no buffer is free. */
static int zp_order_schedule(zero_ctx *z, const zp_order *t, int unit, int wraps, int *fill) {
    zp_buffers *pool = &z->pool[ZP_PARAM];
    int soon[ZERO_PREFETCH_MOST + 2], n = 0;
    soon[0] = unit; /* the others must not take its buffer */
    const int most = z->cfg.prefetch ? z->cfg.prefetch + 1 : 0;
    const int ahead = 1 + zp_order_ahead(t, wraps, most, soon + 1);
    for (int i = 0; i < ahead; i++) {
        const int own = z->live[soon[i]].own[ZP_PARAM];
        if (zp_ctx_unit_is_whole(z, ZP_PARAM, soon[i]) || !z->layout.unit[soon[i]].numel) continue;
        int got = zp_buffer_take(pool, soon[i], own, soon, ahead);
        if (got < 0 && i == 0) got = zp_buffer_take(pool, unit, own, NULL, 0); /* now before soon */
        if (got < 0 && i == 0) return -1;
        if (got > 0) fill[n++] = soon[i];
    }
    return n;
}

/* order.h - the order of a pass's calls: learned from the last pass, or announced by your code

   An announced order replaces the learned one for its kind of pass, in prefetch and in the plan.
   The hooks compare each call with the announced order. */
#pragma once

#include "ctx.h"

/* The functions of announced orders. z->announcer is NULL until your code announces one. */
typedef struct zp_announcer {
    /* A pass of this kind begins, and ends. */
    zero_result (*begin)(zero_ctx *z, zero_pass kind, int together);
    zero_result (*end)(zero_ctx *z);
    /* Checks that this call is the next one of the order. Changes nothing. */
    zero_result (*match)(zero_ctx *z, zero_pass_call_kind kind, int unit);
    /* Checks that every kind and every unit exists. */
    zero_result (*check)(zero_ctx *z);
    /* Prints call i of all orders, which ranks compare. Returns 0 if there are fewer. */
    int (*line)(const zero_ctx *z, int i, char *text, size_t bytes);
} zp_announcer;

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

/* Returns the number of segment u's reductions in a step. A unit that waits for the end of the pass
   is reduced once per pass. */
static int zp_order_reductions(const zero_ctx *z, int u) {
    const int ends = z->live[u].reduced_last || u == z->layout.units;
    if (u >= z->layout.all || !z->layout.unit[u].numel) return 0; /* frozen: none */
    if (z->adding != ZP_EACH_REDUCED || (ends && z->order[ZERO_TRAIN].all_micro_steps)) return 1;
    return z->cfg.micro_steps;
}

/* Expects the announced order. Without one, expects that of a model of layers: up in forward, down
   in backward, with the units that are used more often in between. */
static void zp_order_expect(zero_ctx *z, zero_pass kind) {
    zp_order *t = &z->order[kind];
    const int n = z->layout.units, backward = kind == ZERO_TRAIN;
    t->n = t->at = 0;
    for (int i = 0; i < t->nannounced; i++) t->unit[t->n++] = t->announced[i].unit;
    if (t->nannounced) return;
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
        if (zp_ctx_unit_is_whole(z, ZP_PARAM, soon[i]) || !zp_layout_numel(&z->layout, soon[i]))
            continue;
        int got = zp_buffer_take(pool, soon[i], own, soon, ahead);
        if (got < 0 && i == 0) got = zp_buffer_take(pool, unit, own, NULL, 0); /* now before soon */
        if (got < 0 && i == 0) return -1;
        if (got > 0) fill[n++] = soon[i];
    }
    return n;
}

/* new_ranks.h - function of the header: a run continues on other ranks (extras/resize.h)

   zero_resize is a list of steps. After each step, all ranks of both contexts exchange their
   errors, so they all run the next step, or none does. The ranks of z exchange theirs first, then
   those of `next`, then those of z again: the ranks that stay pass errors on in both directions.
   Before the first unit moves, an error leaves z as it was. Afterwards both contexts are dead. */
#pragma once

#include "access.h"
#include "../extras/resize.h"
#include "../extras/places.h"

/* The first error that this rank knows of. */
typedef struct zp_new_ranks_error {
    int32_t result;
    char text[ZP_MAIL_BYTES - sizeof(int32_t)];
} zp_new_ranks_error;

static void zp_new_ranks_keep(zp_new_ranks_error *e, zero_result r, const zero_ctx *z) {
    if (!r || e->result) return;
    e->result = (int32_t)r;
    memcpy(e->text, z->text, sizeof e->text - 1); /* the rest of a long text is cut off */
}

/* Exchanges errors. The group of a dead context cannot. COLLECTIVE over both contexts. */
static void zp_new_ranks_meet(const zp_resize *x, zp_new_ranks_error *e) {
    zero_ctx *const order[] = {x->z, x->next, x->z};
    for (int i = 0; i < 3; i++) {
        zero_ctx *z = order[i];
        if (!z || z->dead) continue;
        const zero_result r = zp_ctx_check(z, zp_comm_exchange(z->all, e, sizeof *e));
        const zp_new_ranks_error *all = (const zp_new_ranks_error *)(const void *)z->all->mail;
        zp_new_ranks_keep(e, r, z);
        for (int k = 0; k < z->all->nranks && !e->result; k++)
            if (all[k].result) *e = all[k];
    }
}

/* ---- the steps ---- */

static zero_result zp_new_ranks_check(zp_resize *x, zero_ctx *z) {
    const int old = z == x->z;
    ZP_ENTER(z, "zero_resize", old ? ZP_IDLE : ZP_NEW | ZP_IDLE,
             old ? "a run changes its ranks after zero_build, between steps"
                 : "the new context is in use; create another");
    const char *conflict = zp_resize_find_conflict(z);
    if (conflict) return zp_ctx_fail(z, ZERO_ERR_UNSUPPORTED, "%s", conflict);
    ZP_UNTIMELY(z, !old && (z->taken || z->resize->parts.base),
                "the new context has trained; create another");
    if (old || z->phase != ZP_NEW) return ZERO_OK;
    zp_device_set_sparse(&z->device, 1);
    return zp_life_plan(z);
}
static zero_result zp_new_ranks_make_map(zp_resize *x, zero_ctx *z) {
    return zp_resize_make_map(x);
}
static zero_result zp_new_ranks_send_map(zp_resize *x, zero_ctx *z) {
    return zp_resize_send_map(x);
}
static zero_result zp_new_ranks_compare(zp_resize *x, zero_ctx *z) {
    return x->next ? zp_resize_compare(z, x->next) : ZERO_OK;
}
static zero_result zp_new_ranks_build(zp_resize *x, zero_ctx *z) {
    return z->phase == ZP_NEW ? zero_build(z) : ZERO_OK;
}
static zero_result zp_new_ranks_open_leaving(zp_resize *x, zero_ctx *z) {
    return zp_resize_open_leaving(x);
}
static zero_result zp_new_ranks_open_parts(zp_resize *x, zero_ctx *z) {
    return zp_resize_open_parts(x);
}
static zero_result zp_new_ranks_begin(zp_resize *x, zero_ctx *z) { return zero_state_begin(z); }

/* The ranks that stay have the counters. */
typedef struct zp_new_ranks_counters {
    zero_counters counters;
    int32_t known, unused;
} zp_new_ranks_counters;
static zero_result zp_new_ranks_finish(zp_resize *x, zero_ctx *z) {
    zp_new_ranks_counters mine;
    memset(&mine, 0, sizeof mine);
    if (x->z) zero_state_counters(x->z, &mine.counters);
    mine.known = x->z != NULL;
    ZP_DO(z, zp_comm_exchange(z->all, &mine, sizeof mine));
    const zp_new_ranks_counters *from = (const zp_new_ranks_counters *)(const void *)z->all->mail;
    while (!from->known) from++;
    mine = *from;
    ZP_TRY(zero_state_set_counters(z, &mine.counters));
    return zero_state_end(z, 1);
}

/* The steps before the first unit moves, each on one of the two contexts. */
typedef struct zp_new_ranks_step {
    int next;
    zero_result (*run)(zp_resize *x, zero_ctx *z);
} zp_new_ranks_step;
static const zp_new_ranks_step zp_new_ranks_steps[] = {
    {0, zp_new_ranks_check},        {1, zp_new_ranks_check},      {0, zp_new_ranks_make_map},
    {1, zp_new_ranks_send_map},     {0, zp_new_ranks_compare},    {1, zp_new_ranks_build},
    {0, zp_new_ranks_open_leaving}, {1, zp_new_ranks_open_parts}, {0, zp_new_ranks_begin},
    {1, zp_new_ranks_begin}};
enum { ZP_NEW_RANKS_STEPS = sizeof zp_new_ranks_steps / sizeof *zp_new_ranks_steps };

static void zp_new_ranks_prepare(zp_resize *x, zp_new_ranks_error *e) {
    for (int i = 0; i < ZP_NEW_RANKS_STEPS && !e->result; i++) {
        zero_ctx *z = zp_new_ranks_steps[i].next ? x->next : x->z;
        if (z) zp_new_ranks_keep(e, zp_new_ranks_steps[i].run(x, z), z);
        zp_new_ranks_meet(x, e);
    }
}

static void zp_new_ranks_move(zp_resize *x, zp_new_ranks_error *e) {
    const zero_result r = zp_resize_move_units(x);
    zp_new_ranks_keep(e, r, x->at);
    if (!r && x->next) zp_new_ranks_keep(e, zp_new_ranks_finish(x, x->next), x->next);
    if (!e->result) zp_new_ranks_meet(x, e);
}

/* ---- after ---- */

/* Slots keep the arrays that zero_destroy gives back. Structs that your code has bound or adopted
   get the pointers of `next`. */
static zero_result zp_new_ranks_pass_pointers(zero_ctx *z, zero_ctx *next) {
    zp_place_pass_arrays(z, next);
    for (int side = 0; side < 2; side++) {
        if (z->adopted[side]) next->adopted[side] = z->adopted[side];
        z->adopted[side] = NULL;
    }
    if (!z->bound || next->bound) return ZERO_OK;
    return zero_bind(next, z->structs[ZP_PARAM], z->structs[ZP_GRAD]);
}

/* Reports the bytes that moved. COLLECTIVE over `next`. */
static zero_result zp_new_ranks_report(zp_resize *x, double start) {
    zero_ctx *z = x->next;
    double moved = (double)x->moved;
    char text[ZP_TEXT_BYTES];
    ZP_TRY(zero_all_sum(z, &moved, 1));
    if (!z->cfg.log || z->all->rank) return ZERO_OK;
    (void)snprintf(text, sizeof text,
                   "the state has moved from %d to %d ranks: %.0f bytes between ranks, in %.4f s",
                   x->map.ranks, z->all->nranks, moved, zp_seconds() - start);
    z->cfg.log(z->cfg.log_user, ZERO_LOG_INFO, text);
    return ZERO_OK;
}

static zero_result zp_new_ranks_succeed(zp_resize *x, double start) {
    if (x->z) x->z->phase = ZP_MOVED;
    if (x->z && x->next) ZP_TRY(zp_new_ranks_pass_pointers(x->z, x->next));
    return x->next ? zp_new_ranks_report(x, start) : ZERO_OK;
}
/* Gives both contexts the error. If units have moved, no rank may use one of them any more. */
static zero_result zp_new_ranks_fail(zp_resize *x, const zp_new_ranks_error *e, int moving) {
    zero_ctx *const both[] = {x->z, x->next};
    for (int i = 0; i < 2; i++) {
        zero_ctx *z = both[i];
        if (!z) continue;
        const int known = !strncmp(z->text, e->text, sizeof e->text - 1);
        (void)snprintf(z->text, sizeof z->text, "%s", e->text);
        if (!known && z->cfg.log) z->cfg.log(z->cfg.log_user, ZERO_LOG_ERROR, z->text);
        if (z->phase == ZP_OPEN) z->phase = ZP_IDLE;
        if (moving && !z->dead) z->dead = (zero_result)e->result;
        if (z->dead) zp_comm_abort(z->all, e->text);
    }
    return (zero_result)e->result;
}

zero_result zero_resize(zero_ctx *z, zero_ctx *next) {
    zero_ctx *const both[] = {z, next};
    const double start = zp_seconds();
    zp_new_ranks_error e;
    zp_resize x;
    if (z == next) return ZERO_ERR_ARGUMENT;
    memset(&e, 0, sizeof e);
    memset(&x, 0, sizeof x);
    x.z = z;
    x.next = next;
    for (int i = 0; i < 2; i++) {
        if (!both[i]) continue;
        both[i]->caller = "zero_resize";
        if (!both[i]->dead) both[i]->text[0] = 0;
    }
    zp_new_ranks_prepare(&x, &e);
    const int moving = !e.result;
    if (moving) zp_new_ranks_move(&x, &e);
    const zero_result r =
        e.result ? zp_new_ranks_fail(&x, &e, moving) : zp_new_ranks_succeed(&x, start);
    for (int i = 0; i < 2; i++) {
        if (!both[i]) continue;
        both[i]->caller = NULL;
        zp_device_set_sparse(&both[i]->device, 0);
    }
    return r;
}

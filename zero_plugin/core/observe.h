/* observe.h - passes calls on to a checked build

   The core calls the functions of z->observer at every hook. A build without checks has no
   observer, and each function here only tests one pointer. */
#pragma once

#include "ctx.h"

#ifndef ZERO_CHECK
#define ZERO_CHECK 0 /* 1: a checked build */
#endif

/* The kind of hook that your code called. */
enum { ZP_HOOK_FORWARD = 0, ZP_HOOK_FORWARD_END, ZP_HOOK_BACKWARD, ZP_HOOK_BACKWARD_END };

typedef struct zp_observer {
    zero_result (*begin_pass)(zero_ctx *z, zero_pass kind);
    zero_result (*end_pass)(zero_ctx *z);
    zero_result (*hook)(zero_ctx *z, uint32_t which, int unit);
    /* Unit u's parameters or gradients are given to your code, or taken back. */
    zero_result (*move)(zero_ctx *z, int u, zp_side side, int opens);
    /* Unit u's gradients were cleared. */
    zero_result (*cleared)(zero_ctx *z, int u);
    /* The plugin has written parameters: they must not change until it writes again. */
    zero_result (*parameters_changed)(zero_ctx *z);
    /* Returns the address that your code uses for a member; NULL: its address in the unit. */
    char *(*place)(const zero_ctx *z, zp_side side, const zp_member *m);
    /* Returns where to keep the hash of the array that the plugin returned to your code. */
    uint64_t *(*lent)(const zero_ctx *z, const zp_member *m);
    /* Returns the bytes from `array` to the end of its allocation, or SIZE_MAX if unknown. */
    size_t (*room)(char *array, void (*release)(void *array));
} zp_observer;

/* Defines zp_observe_NAME, which calls that function of the observer, if there is one. */
#define ZP_OBSERVE(name, parameters, arguments)                                                    \
    static zero_result zp_observe_##name parameters {                                              \
        return z->observer ? z->observer->name arguments : ZERO_OK;                                \
    }
ZP_OBSERVE(begin_pass, (zero_ctx * z, zero_pass kind), (z, kind))
ZP_OBSERVE(end_pass, (zero_ctx * z), (z))
ZP_OBSERVE(hook, (zero_ctx * z, uint32_t which, int unit), (z, which, unit))
ZP_OBSERVE(move, (zero_ctx * z, int u, zp_side side, int opens), (z, u, side, opens))
ZP_OBSERVE(cleared, (zero_ctx * z, int u), (z, u))
ZP_OBSERVE(parameters_changed, (zero_ctx * z), (z))
static uint64_t *zp_observe_lent(const zero_ctx *z, const zp_member *m) {
    return z->observer ? z->observer->lent(z, m) : NULL;
}
static char *zp_observe_place(const zero_ctx *z, zp_side side, const zp_member *m) {
    return z->observer ? z->observer->place(z, side, m) : NULL;
}

/* observe.h - what a row, for example that of a checked build, learns of your calls

   The core calls the functions of z->observer at every hook. Without an observer, each call only
   tests one pointer. A function that is NULL is not called. */
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
    /* Returns where to keep the hash of your array that the plugin has written. */
    uint64_t *(*written)(const zero_ctx *z, const zp_member *m);
    /* Checks that each of the n arrays in z->extents is as large as its tensor. */
    zero_result (*check_extents)(zero_ctx *z, int n, void (*release)(void *array));
} zp_observer;

static zero_result zp_observe_parameters_changed(zero_ctx *z) {
    ZP_TRY_IF(z->observer, parameters_changed, z);
    return ZERO_OK;
}

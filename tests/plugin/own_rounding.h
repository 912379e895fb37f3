/* own_rounding.h - a capability outside the plugin, for tests: weights with f32 masters round half
   up, as split weights do

   Compile the plugin with -DZERO_OWN_EXTRAS='"tests/plugin/own_rounding.h"'; no file of the plugin
   changes. */
#pragma once

static int own_rounding_up; /* the capability is on, for every context built while it is set */

/* zero_build and plans: settings are resolved. */
static zero_result own_rounding_choose(zero_ctx *z) {
    if (own_rounding_up && z->cfg.type == ZERO_BF16) z->master.rounding = ZP_HALF_UP;
    return ZERO_OK;
}
static zp_extra own_rounding_row(void) {
    zp_extra x;
    memset(&x, 0, sizeof x);
    x.name = "own";
    x.call[ZP_ON_CHOOSE] = own_rounding_choose;
    return x;
}
#define ZERO_OWN_EXTRA_ROWS own_rounding_row,

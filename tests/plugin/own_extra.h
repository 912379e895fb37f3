/* own_extra.h - a capability outside the plugin, for tests: it scales gradients, and counts
   reductions and updates

   Compile the plugin with -DZERO_OWN_EXTRAS='"tests/plugin/own_extra.h"'; no file of the plugin
   changes. Two stations of the gradient's walk and two of the step's do the work. While training, a
   rank whose `factor` is 0 runs none of them. */
#pragma once

enum { OWN_EXTRA_RANKS = 8 };

/* One per rank of a process. Set `factor` before zero_build, and leave it until zero_destroy. */
typedef struct own_extra_rank {
    float factor;       /* of every gradient; 0: the capability is off */
    long reductions;    /* of units, since zero_build; these three are set by zero_destroy */
    long updates;       /* of units */
    long published;     /* of units, right after the update of the same unit */
    int builds, leaves; /* calls of zero_build and zero_destroy that came here */
} own_extra_rank;
static own_extra_rank own_extra_ranks[OWN_EXTRA_RANKS];

static own_extra_rank *own_extra_mine(const zero_ctx *z) { return &own_extra_ranks[z->all->rank]; }

/* What the row keeps of a context. */
typedef struct own_extra_state {
    long reductions, updates, published;
    int last; /* the unit that was updated last */
} own_extra_state;
static own_extra_state *own_extra_of(const zero_ctx *z) { return (own_extra_state *)z->own; }
static int own_extra_is_on(const zero_ctx *z) { return own_extra_mine(z)->factor != 0; }

/* zero_create: refuses more ranks than there are counters. */
static zero_result own_extra_check(zero_ctx *z) {
    ZP_REFUSE(z, z->all->nranks > OWN_EXTRA_RANKS, "own_extra: %d ranks, at most %d",
              z->all->nranks, OWN_EXTRA_RANKS);
    return ZERO_OK;
}
static zero_result own_extra_build(zero_ctx *z) {
    own_extra_mine(z)->builds++;
    return ZERO_OK;
}
static zero_result own_extra_destroy(zero_ctx *z) {
    own_extra_mine(z)->leaves++;
    own_extra_mine(z)->reductions = own_extra_of(z)->reductions;
    own_extra_mine(z)->updates = own_extra_of(z)->updates;
    own_extra_mine(z)->published = own_extra_of(z)->published;
    return ZERO_OK;
}

/* Station: counts each reduction of unit u. */
static zero_result own_extra_count(zero_ctx *z, int u) {
    (void)u;
    own_extra_of(z)->reductions++;
    return ZERO_OK;
}
/* Station: scales this rank's shard of u's gradient, on the stream of gradients, once the sum over
   micro-steps and ranks is complete and before its squares are added up. */
static zero_result own_extra_scale(zero_ctx *z, int u) {
    const zp_world_rescale_args a = {zp_ctx_unit_mean(z, u), z->array[ZP_MEAN].type,
                                     own_extra_mine(z)->factor};
    return zp_world_rescale(&z->stream[ZP_GRADIENTS], &a, zp_ctx_shard(z, u));
}

/* Stations: count each update of unit u, and each publication that follows it. */
static zero_result own_extra_update(zero_ctx *z, int u) {
    own_extra_of(z)->updates++;
    own_extra_of(z)->last = u;
    return ZERO_OK;
}
static zero_result own_extra_publish(zero_ctx *z, int u) {
    own_extra_of(z)->published += own_extra_of(z)->last == u;
    return ZERO_OK;
}

static const zp_station own_extra_stations[] = {
    {ZP_AT_ISSUE, ZP_EACH_REDUCTION, own_extra_is_on, own_extra_count, NULL},
    {ZP_AT_SCALE, ZP_LAST_MICRO_STEP, own_extra_is_on, own_extra_scale, NULL},
    {ZP_AT_UPDATE, ZP_EACH_STEP, own_extra_is_on, own_extra_update, NULL},
    {ZP_AT_PUBLISH, ZP_EACH_STEP, own_extra_is_on, own_extra_publish, NULL},
    ZP_LAST_STATION};
static zp_extra own_extra_row(void) {
    zp_extra x;
    memset(&x, 0, sizeof x);
    x.name = "own";
    x.state_bytes = sizeof(own_extra_state);
    x.state_at = offsetof(zero_ctx, own);
    x.call[ZP_ON_SPLIT] = own_extra_check;
    x.call[ZP_ON_BUILD] = own_extra_build;
    x.call[ZP_ON_DESTROY] = own_extra_destroy;
    x.stations = own_extra_stations;
    return x;
}
#define ZERO_OWN_EXTRA_ROWS own_extra_row,

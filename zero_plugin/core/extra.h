/* extra.h - how a capability plugs into the core

   A capability is one row, a zp_extra, in a file of its own. extras/table.h lists the rows. The
   core names no row. To add a capability, write its file, include it in zero_plugin.cu, and add its
   row to the list. No line of core/ changes. A row has
     a struct    its own data about a context
     settings    a table like that of config.h; 0 is "off"
     moments     functions that run once, when a context is created, planned, built, destroyed ...
     stations    functions that run for each unit or step while training, in a walk
     questions   a few functions with arguments, at the end of zp_extra
   Rows run in the order of the list. A row changes the core's data: arrays, `live`, `plan`.

   WALKS. A walk is a list of stations, which run in order:
     gradient   from the backward that wrote a unit to the reduced shard (reduce.h)
     parameter  from the updated shard to the gathered unit (gather.h)
     agreement  zero_reduce: from the last reduction to the norm and the decision (step.h)
     step       zero_step: from the decision to the published weights (step.h)
   The core has the stations that every run needs. Rows add theirs; the place of a station decides
   where it runs. zero_build asks each station once whether this context needs it. A capability
   that is off therefore costs nothing while training. */
#pragma once

#include "ctx.h"

/* The places of all walks, in order. At one place, the core's stations run before the rows'. */
typedef enum zp_place {
    ZP_AT_WRITTEN,  /* gradient: its stream waits until backward has written the unit */
    ZP_AT_COLLECT,  /* 16-bit gradients of several micro-steps are added */
    ZP_AT_PRESUM,   /* sums over more ranks, before the reduction */
    ZP_AT_DESCRIBE, /* gradient, parameter: the core describes collectives in z->ops, z->gather */
    ZP_AT_CHANGE,   /* gradient, parameter: a row may change these descriptions */
    ZP_AT_FETCH,    /* parameter: the shard is copied to the place the gather reads */
    ZP_AT_ISSUE,    /* gradient, parameter: the core issues the collectives */
    ZP_AT_ADD,      /* gradient: sums that earlier micro-steps moved away are added */
    ZP_AT_COPIES,   /* sums over the copies of a shard */
    ZP_AT_SCALE,    /* tensors with a divisor of their own are scaled */
    ZP_AT_NORM,     /* the squares for the norm and the overflow check */
    ZP_AT_STORE,    /* the shard is copied to the tier that keeps it */
    ZP_AT_WHOLE,    /* stage 0: all ranks gather the reduced shards */
    ZP_AT_DONE,     /* gradient, parameter: the event that later work waits for is recorded */
    ZP_AT_AFTER,    /* gradient, parameter: work that no station waits for */
    ZP_AT_END,      /* gradient: the unit leaves the bucket */

    ZP_AT_READ_AHEAD, /* agreement: state that the update needs is on its way */
    ZP_AT_PASSED,     /* the gradient stream waits until compute has read all parameters */
    ZP_AT_AGREE,      /* all ranks exchange verdicts; a pending update is complete */

    ZP_AT_LAST_REPORT,  /* step: an error that the last step has reported is returned */
    ZP_AT_EVALUATIONS,  /* peers that evaluate with this rank's weights are waited for */
    ZP_AT_DECIDE,       /* by the agreement: skip or update, unscale, clip */
    ZP_AT_REPORT,       /* the decision is copied to host memory; rows begin their updates */
    ZP_AT_COUNT,        /* the step is counted */
    ZP_AT_FIRST_PASS,   /* rules of two passes: before the first pass over a unit */
    ZP_AT_FIRST_UPDATE, /* that pass, and work after it */
    ZP_AT_LAST_PASS,    /* between the passes over all units; before the last pass over a unit */
    ZP_AT_UPDATE,       /* that pass, and work after it */
    ZP_AT_PUBLISH,      /* the unit's new weights are gathered, now or when a pass uses them */
    ZP_AT_FORGET,       /* earlier gathered parameters are out of date */
    ZP_AT_NOTE_WEIGHTS, /* the observer notes the new weights */
    ZP_AT_DELIVER,      /* recorded events go to the caller */
    ZP_PLACES_OF_WALK
} zp_place;

/* How often a station runs. This also names its walk. */
typedef enum zp_when {
    ZP_EACH_MICRO_STEP, /* gradient */
    ZP_EACH_REDUCTION,  /* gradient: each micro-step whose gradient is reduced */
    ZP_LAST_MICRO_STEP, /* gradient: the last one of a step */
    ZP_EACH_GATHER,     /* parameter */
    ZP_EACH_AGREEMENT,  /* agreement */
    ZP_EACH_STEP        /* step */
} zp_when;

typedef enum zp_walk_kind {
    ZP_GRADIENT_WALK,
    ZP_PARAMETER_WALK,
    ZP_AGREEMENT_WALK,
    ZP_STEP_WALK
} zp_walk_kind;

/* One station: `unit` runs for each unit, or `once` runs once for all. The units are those of the
   bucket, the one that is gathered, or, in a step, all units in the order of updates. In a step,
   stations of units that follow each other run together, unit by unit. */
typedef struct zp_station {
    zp_place place;
    zp_when when;
    int (*needed)(const zero_ctx *z); /* NULL: every context with the row needs it */
    zero_result (*unit)(zero_ctx *z, int u);
    zero_result (*once)(zero_ctx *z);
} zp_station;
#define ZP_LAST_STATION                                                                            \
    { ZP_PLACES_OF_WALK, ZP_EACH_STEP, NULL, NULL, NULL } /* ends a table */

/* The moments of a context, in order. At each, the core calls x->call[moment] of every row that has
   it, up to the first error; in zero_destroy, of all rows. */
typedef enum zp_moment {
    ZP_ON_CREATE, /* zero_create: nothing is open, and settings are as your code gave them */
    ZP_ON_JOIN,   /* the ranks have connected; after zero_build: again, over other communicators, so
                     that the row opens its groups again. COLLECTIVE */
    ZP_ON_CHECK,  /* settings are resolved: refuse wrong ones. No rank knows the others' */
    ZP_ON_SPLIT,  /* check settings against the number of ranks; split the ranks. COLLECTIVE */
    ZP_ON_CHOOSE, /* change the arrays' types, shares and tiers */
    ZP_ON_CHOSEN, /* split the ranks, now that arrays are chosen. COLLECTIVE */

    ZP_ON_LAYOUT,  /* every plan: the layout is made. Allocate data about units, select units */
    ZP_ON_ARRAYS,  /* the core's arrays are cut; cut those of the row */
    ZP_ON_PLAN,    /* buffers and gathers are known: add to z->plan */
    ZP_ON_PLANNED, /* the plan is complete */

    ZP_ON_CUT,      /* zero_build, twice: cut the private arena; see zp_ctx_cut_arena */
    ZP_ON_ALLOCATE, /* allocate this rank's own memory */
    ZP_ON_SHARE,    /* all ranks have done that: allocate what needs all of them. COLLECTIVE */
    ZP_ON_MEMORY,   /* the groups' memory is open, also over other communicators. COLLECTIVE */
    ZP_ON_BUILD,    /* all memory is allocated. COLLECTIVE */

    ZP_ON_STEP,          /* the first micro-step of a step begins */
    ZP_ON_REDUCE,        /* zero_reduce begins: refuse it if it comes too early */
    ZP_ON_AGREED,        /* a call needs the agreement: refuse it if it comes too early */
    ZP_ON_SYNC,          /* wait until the row's streams and lanes are idle. SYNC */
    ZP_ON_STATS,         /* all streams are idle: add to z->stats */
    ZP_ON_FINISH_UPDATE, /* complete a pending update. COLLECTIVE if one is pending */
    ZP_ON_PUT,           /* weights will be computed from master weights that your code put */
    ZP_ON_STATE_BEGIN,   /* zero_state_begin */
    ZP_ON_STATE_END,     /* zero_state_end, after a put */

    ZP_ON_ABORT,   /* zero_destroy of a failed context: peers must not wait for this rank */
    ZP_ON_ABANDON, /* zero_destroy: end all waits in streams and lanes */
    ZP_ON_FINISH,  /* the core's lanes are idle: wait for the row's; streams are still open */
    ZP_ON_DESTROY, /* streams are closed, groups are open */
    ZP_ON_LEAVE,   /* the context's groups close: close those that were split from them */
    ZP_MOMENTS
} zp_moment;

/* A row. Every member except `name` may be NULL. A function returns the row, so that its code names
   each member that it sets. */
typedef struct zp_extra {
    const char *name;
    /* The row's struct: its bytes, and the offset in zero_ctx of the pointer to it. zero_create
       allocates it, filled with zeros, and zero_destroy frees it. */
    size_t state_bytes, state_at;
    const zp_setting *settings; /* the row's settings; ends with ZP_LAST_SETTING */
    const zp_setting *fields;   /* the same for the fields of zero_tensor_desc */
    const zp_rule *rules;       /* update rules, up to one without a name; see numbers/rules.h */
    const zp_station *stations; /* ends with ZP_LAST_STATION */
    zero_result (*call[ZP_MOMENTS])(zero_ctx *z);
    /* zero_tensor: checks the fields of t->desc that belong to the row, and resolves them. */
    zero_result (*tensor)(zero_ctx *z, zp_tensor *t);
    /* Appends to `text` those that must be the same on all ranks. */
    void (*describe)(const zero_ctx *z, const zp_tensor *t, char *text, size_t bytes);
    /* Returns the bytes that this rank sends for unit u in a step; u -1: for no single unit. */
    size_t (*sent)(zero_ctx *z, int u);
    /* Rules of several passes: sets the inputs of unit u's elements from `first` on. */
    void (*fill_update)(const zero_ctx *z, int u, size_t first, zp_update *a);
    /* Values were put into unit u of array a; a NULL: into any unit of any array. */
    void (*wrote)(zero_ctx *z, const zp_array *a, int u);
    /* If range r belongs to the row: sets *mine, and copies its values in or out. */
    zero_result (*move_state)(zero_ctx *z, const zero_range *r, const char *values, char *out,
                              int *mine);
} zp_extra;

/* A setting, or a field of zero_tensor_desc, of a part that drop.sh has left out. */
typedef struct zp_missing_setting {
    const char *part;
    zp_setting setting;
} zp_missing_setting;

#define ZP_EACH_EXTRA(z, x) for (const zp_extra *x = (z)->extras; x && x->name; x++)

/* Returns the row with this name; NULL: this copy of the plugin lacks the capability. */
static const zp_extra *zp_extra_find(const zero_ctx *z, const char *name) {
    ZP_EACH_EXTRA(z, x) if (!strcmp(x->name, name)) return x;
    return NULL;
}
/* Returns an error if this copy of the plugin lacks the capability that `what` needs. */
static zero_result zp_extra_need(zero_ctx *z, const char *name, const char *what) {
    if (zp_extra_find(z, name)) return ZERO_OK;
    return zp_ctx_fail(z, ZERO_ERR_UNSUPPORTED, "%s: " ZP_LEFT_OUT("%s"), what, name, name);
}
/* Selects the optimizer's rule: that of the table, or that which a row brings. */
static zero_result zp_extra_choose_rule(zero_ctx *z) {
    char text[64];
    z->rule = &zp_rules[z->cfg.optimizer];
    ZP_EACH_EXTRA(z, x)
    for (const zp_rule *r = x->rules; r && r->name; r++)
        if (!strcmp(r->name, z->rule->name)) z->rule = r;
    (void)snprintf(text, sizeof text, "optimizer %s", z->rule->name);
    return z->rule->passes ? ZERO_OK : zp_extra_need(z, z->rule->part, text);
}

/* Calls a moment of every row: up to the first error; or of all rows, whatever they return. */
static zero_result zp_extra_call(zero_ctx *z, zp_moment moment) {
    ZP_EACH_EXTRA(z, x) if (x->call[moment]) ZP_TRY(x->call[moment](z));
    return ZERO_OK;
}
static void zp_extra_call_all(zero_ctx *z, zp_moment moment) {
    ZP_EACH_EXTRA(z, x) if (x->call[moment])(void) x->call[moment](z);
}

/* Returns setting i of all tables: the core's, then those of the rows; NULL: there are fewer. */
static const zp_setting *zp_extra_setting(const zero_ctx *z, int i) {
    if (i < ZP_SETTINGS) return &zp_settings[i];
    i -= ZP_SETTINGS;
    ZP_EACH_EXTRA(z, x)
    for (const zp_setting *s = x->settings; s && s->name; s++)
        if (!i--) return s;
    return NULL;
}
/* Refuses settings in the struct `of` of parts that this copy lacks, up to one without a part,
   unless they are the defaults. */
static zero_result zp_extra_refuse_missing(zero_ctx *z, const zp_missing_setting *m, void *of) {
    for (; m->part; m++) {
        const zp_setting *s = &m->setting;
        const double value = zp_config_get_setting(s, of);
        if (value != 0 && (float)value != (float)s->zero)
            ZP_TRY(zp_extra_need(z, m->part, s->name));
        if (value == 0 && s->zero != 0) zp_config_set_setting(s, of, s->zero);
    }
    return ZERO_OK;
}
/* Checks each setting alone, and replaces 0 by its meaning. */
static zero_result zp_extra_resolve_settings(zero_ctx *z, const zp_missing_setting *missing) {
    const zp_setting *s;
    char text[ZP_TEXT_BYTES];
    for (int i = 0; (s = zp_extra_setting(z, i)) != NULL; i++)
        if (zp_config_resolve_setting(s, &z->cfg, text, sizeof text))
            return zp_ctx_fail(z, ZERO_ERR_ARGUMENT, "%s", text);
    return zp_extra_refuse_missing(z, missing, &z->cfg);
}
/* The same for the fields of a tensor that a table lists. NULL: none. */
static zero_result zp_extra_resolve_fields(zero_ctx *z, const zp_setting *s, zero_tensor_desc *d) {
    char text[ZP_TEXT_BYTES];
    for (; s && s->name; s++)
        ZP_REFUSE(z, zp_config_resolve_setting(s, d, text, sizeof text), "tensor %s: %s", d->name,
                  text);
    return ZERO_OK;
}

/* Opens the group of all ranks, and those that rows open at ZP_ON_JOIN. Between steps, another
   `comm` may follow zp_extra_close_groups; then zp_build_open_memory comes next. COLLECTIVE. */
static zero_result zp_extra_open_groups(zero_ctx *z, const zp_transport *t, const zero_comm *comm) {
    for (zp_comm *g = z->group; g < z->group + ZP_GROUPS; g++)
        zp_comm_prepare(g, &z->device, &z->failure, z->cfg.timeout_s);
    ZP_DO(z, zp_comm_open(z->all, t, comm));
    const int divisor = z->cfg.divisor > 0 ? z->cfg.divisor : z->all->nranks;
    if (z->all->sums) z->all->divisor = (float)divisor;
    ZP_TRY(zp_extra_call(z, ZP_ON_JOIN));
    zp_ctx_set_call(z, z->call);
    return ZERO_OK;
}

/* Closes all groups of the context. No stream may use them. If it is not broken: COLLECTIVE. */
static void zp_extra_close_groups(zero_ctx *z) {
    zp_extra_call_all(z, ZP_ON_LEAVE);
    for (int i = ZP_GROUPS - 1; i >= 0; i--)
        zp_ctx_close_part(&z->part[i], &z->group[i], z->broken);
}

static size_t zp_extra_sent(zero_ctx *z, int u) {
    size_t bytes = 0;
    ZP_EACH_EXTRA(z, x) bytes += x->sent ? x->sent(z, u) : 0;
    return bytes;
}
static void zp_extra_wrote(zero_ctx *z, const zp_array *a, int u) {
    ZP_EACH_EXTRA(z, x) if (x->wrote) x->wrote(z, a, u);
}
/* Waits until all streams and lanes are idle. SYNC. */
static zero_result zp_extra_sync(zero_ctx *z) {
    for (int i = 0; i < 2; i++) ZP_TRY(zp_device_sync_stream(&z->stream[i]));
    ZP_TRY(zp_extra_call(z, ZP_ON_SYNC));
    return zp_device_sync_stream(&z->compute);
}

/* Returns a new context with its rows and their structs, NULL: no memory. It is one allocation,
   since no peer learns of a failure before the ranks have joined. free releases it. */
typedef zp_extra (*zp_extra_row)(void);
static zero_ctx *zp_extra_make(const zp_extra_row *rows) {
    int n = 0;
    size_t at = zp_round_up(sizeof(zero_ctx), 64), lists = at;
    for (; rows[n]; n++) at += zp_round_up(rows[n]().state_bytes, 64);
    const size_t states = lists + zp_round_up(((size_t)n + 1) * sizeof(zp_extra), 64);
    zero_ctx *z = (zero_ctx *)calloc(1, at + states - lists);
    if (!z) return NULL;
    z->extras = (zp_extra *)(void *)((char *)z + lists);
    at = states;
    for (int i = 0; i < n; i++) {
        const zp_extra x = z->extras[i] = rows[i]();
        void *state = (char *)z + at;
        if (x.state_bytes) memcpy((char *)z + x.state_at, &state, sizeof state);
        at += zp_round_up(x.state_bytes, 64);
    }
    return z;
}

/* Appends the stations of one place that this context needs. */
static zero_result zp_extra_add_stations(zero_ctx *z, const zp_station *s, zp_place place) {
    static const zp_walk_kind walk_of[] = {ZP_GRADIENT_WALK,  ZP_GRADIENT_WALK,  ZP_GRADIENT_WALK,
                                           ZP_PARAMETER_WALK, ZP_AGREEMENT_WALK, ZP_STEP_WALK};
    for (; s && s->place != ZP_PLACES_OF_WALK; s++) {
        zp_walk *w = &z->walk[walk_of[s->when]];
        if (s->place != place || (s->needed && !s->needed(z))) continue;
        ZP_REFUSE(z, w->n == ZP_STATIONS, "over %d stations; raise ZP_STATIONS", (int)ZP_STATIONS);
        w->station[w->n++] = s;
    }
    return ZERO_OK;
}

/* Orders the stations of the core's tables, which NULL ends, and of all rows by place. */
static zero_result zp_extra_lay_walks(zero_ctx *z, const zp_station *const *core) {
    memset(z->walk, 0, sizeof z->walk);
    for (int place = 0; place < ZP_PLACES_OF_WALK; place++) {
        for (int i = 0; core[i]; i++) ZP_TRY(zp_extra_add_stations(z, core[i], (zp_place)place));
        ZP_EACH_EXTRA(z, x) ZP_TRY(zp_extra_add_stations(z, x->stations, (zp_place)place));
    }
    return ZERO_OK;
}

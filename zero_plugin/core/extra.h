/* extra.h - how a capability plugs into the core

   A capability is one row, a zp_extra, in a file of its own. extras/table.h lists the rows. The
   core calls the members of every row in the order of that list, skips those that are NULL, and
   names no row. To add a capability, write its file, include it in zero_plugin.cu, and add its row
   to the list. No line of core/ changes.

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

/* The places of all walks, in order. At one place, the core's stations run first, then those of the
   rows. */
typedef enum zp_place {
    ZP_AT_WRITTEN,  /* gradient: its stream waits until backward has written the unit */
    ZP_AT_COLLECT,  /* 16-bit gradients of several micro-steps are added */
    ZP_AT_PRESUM,   /* sums over other groups of ranks, before the reduction */
    ZP_AT_DESCRIBE, /* gradient, parameter: the core describes the collectives in z->ops, z->gather
                     */
    ZP_AT_CHANGE,   /* gradient, parameter: a row may change these descriptions */
    ZP_AT_FETCH,    /* parameter: the shard is copied to the place the gather reads */
    ZP_AT_ISSUE,    /* gradient, parameter: the core issues the collectives */
    ZP_AT_ADD,      /* gradient: sums that earlier micro-steps moved away are added */
    ZP_AT_COPIES,   /* sums over the replicas of a shard */
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
    ZP_AT_NOTE_WEIGHTS, /* a checked build notes the new weights */
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

/* A row. Every member except `name` may be NULL. A function returns the row, so that its code names
   each member that it sets. */
typedef struct zp_extra {
    const char *name;
    /* The row's struct: its bytes, and the offset in zero_ctx of the pointer to it. zero_create
       allocates it, filled with zeros, and zero_destroy frees it. */
    size_t state_bytes, state_at;
    /* Update rules, up to one without a name. The table in numbers/rules.h has their names. */
    const zp_rule *rules;
    /* zero_create calls this first. */
    void (*init)(zero_ctx *z);
    /* If the resolved settings are wrong, writes the reason to `text`; otherwise writes nothing. */
    void (*refuse)(const zero_config *c, char *text, size_t bytes);
    /* zero_create, after the ranks have connected and before settings are checked. */
    zero_result (*join)(zero_ctx *z);
    /* zero_create: these check settings against the number of ranks, and may split the ranks into
       groups: before and after the arrays are chosen. COLLECTIVE if they split. */
    zero_result (*check)(zero_ctx *z);
    zero_result (*resolve)(zero_ctx *z);
    /* zero_tensor: checks the fields of t->desc that belong to the row, and resolves them. */
    zero_result (*tensor)(zero_ctx *z, zp_tensor *t);
    /* Appends to `text` those that must be the same on all ranks. */
    void (*describe)(const zero_ctx *z, const zp_tensor *t, char *text, size_t bytes);
    /* Every plan, after the layout is made: allocates the data that the row needs about units. */
    zero_result (*layout)(zero_ctx *z);
    /* May change the arrays' types, shares and tiers, after the settings are resolved. */
    void (*choose)(zero_ctx *z);
    /* The plan: selects units to keep off the device; cuts the row's arrays after the core's. */
    void (*plan_units)(zero_ctx *z);
    void (*plan_arrays)(zero_ctx *z);
    /* Returns the bytes of pageable host memory that the row's lists and lanes need. */
    size_t (*context_bytes)(zero_ctx *z);
    /* The plan: adds the row's bytes to z->plan, after buffers and gathers are known. */
    void (*plan)(zero_ctx *z);
    /* Returns the bytes that this rank sends for unit u in a step; u -1: for no single unit. */
    size_t (*sent)(zero_ctx *z, int u);
    /* Cuts the row's part of the private arena; see zp_ctx_cut_arena. */
    void (*cut)(zero_ctx *z, size_t *at);
    /* Cuts the row's part of the gradients' memory, from byte `at` on; returns its end. */
    size_t (*cut_gradients)(zero_ctx *z, size_t at);
    /* zero_build: `allocate` allocates this rank's own memory. After all ranks have done that,
       `share` allocates the memory that needs all of them. `share` is COLLECTIVE. */
    zero_result (*allocate)(zero_ctx *z);
    zero_result (*share)(zero_ctx *z);
    /* zero_build, after all memory is allocated. COLLECTIVE. */
    zero_result (*build)(zero_ctx *z);
    /* zero_destroy of a failed context: makes sure that peers do not wait for this rank. */
    void (*abort)(zero_ctx *z);
    /* zero_destroy, in this order: `abandon` ends all waits in streams and lanes; `finish` waits
       for the row's lanes; `stop` runs before streams close, `destroy` before groups close. */
    void (*abandon)(zero_ctx *z);
    void (*finish)(zero_ctx *z);
    void (*stop)(zero_ctx *z);
    void (*destroy)(zero_ctx *z, int broken);
    /* The first micro-step of a step begins. */
    zero_result (*begin_step)(zero_ctx *z);
    /* The weights of unit u have changed, or, if u is -1, those of all units: earlier gathered
       parameters are out of date. */
    void (*forget)(zero_ctx *z, int u);
    /* Rules of several passes: adds the inputs of unit u's elements from `first` on. */
    void (*fill_update)(const zero_ctx *z, int u, size_t first, zp_update *a);
    /* The same rules, if the CPU updates unit u, whose tensors the device combines between the
       passes. results_up: stream s copies what the first pass found in unit u to `to` on the
       device. inputs_down: once `ready`, `from` is copied to where the last pass reads it. u -1:
       the sums of norms, and the ratios, of all units. */
    zero_result (*results_up)(zero_ctx *z, int u, zp_stream *s, void *to);
    zero_result (*inputs_down)(zero_ctx *z, int u, zp_event *ready, void *from);
    /* Fills the row's fields of a tensor's span in an update. */
    void (*span)(const zero_ctx *z, const zp_tensor *t, zp_span *span);
    /* Refuses zero_reduce (`reduces` 1), or a call that needs the agreement, if it comes too
       early. */
    zero_result (*check_order)(zero_ctx *z, int reduces);
    /* Before your code writes unit u's gradient again: the last update may still read it. */
    zero_result (*before_write)(zero_ctx *z, int u);
    /* before_put: weights will be computed from master weights that your code put. wrote: values
       were put into unit u of array a, or, if a is NULL, into any unit of any array. */
    zero_result (*before_put)(zero_ctx *z);
    void (*wrote)(zero_ctx *z, const zp_array *a, int u);
    /* Completes a pending update. COLLECTIVE if an update is pending. */
    zero_result (*finish_update)(zero_ctx *z);
    /* Waits until the row's streams and lanes are idle. SYNC. */
    zero_result (*sync)(zero_ctx *z);
    /* Adds the row's numbers to those of zero_query_stats. All streams are idle. */
    void (*stats)(zero_ctx *z, zero_stats *stats);
    /* The row's own state: adds its ranges; recognizes a range by its name; copies values in or
       out; zero_state_begin; zero_state_end, after a put. */
    zero_result (*add_state)(zero_ctx *z);
    int (*owns_range)(const zero_ctx *z, const zero_range *r);
    zero_result (*move_state)(zero_ctx *z, const zero_range *r, const char *values, char *out);
    void (*begin_state)(zero_ctx *z);
    zero_result (*end_state)(zero_ctx *z);
    /* Returns the context's own copy of a group that a tensor names; NULL: no copy. */
    zero_group *(*own_group)(const zero_ctx *z, const zero_group *given);
    const zp_station *stations; /* ends with ZP_LAST_STATION */
} zp_extra;

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

/* Define zp_extra_NAME, which calls that member of every row: up to the first error; without a
   result. */
#define ZP_EXTRA_TRY_WITH(name, parameters, arguments)                                             \
    ZP_UNUSED static zero_result zp_extra_##name parameters {                                      \
        ZP_EACH_EXTRA(z, x) if (x->name) ZP_TRY(x->name arguments);                                \
        return ZERO_OK;                                                                            \
    }
#define ZP_EXTRA_CALL_WITH(name, parameters, arguments)                                            \
    ZP_UNUSED static void zp_extra_##name parameters {                                             \
        ZP_EACH_EXTRA(z, x) if (x->name) x->name arguments;                                        \
    }
#define ZP_EXTRA_TRY(name)  ZP_EXTRA_TRY_WITH(name, (zero_ctx * z), (z))
#define ZP_EXTRA_CALL(name) ZP_EXTRA_CALL_WITH(name, (zero_ctx * z), (z))

ZP_EXTRA_CALL(init)
ZP_EXTRA_TRY(check)
ZP_EXTRA_TRY(resolve)
ZP_EXTRA_TRY(layout)
ZP_EXTRA_CALL(choose)
ZP_EXTRA_CALL(plan_units)
ZP_EXTRA_CALL(plan_arrays)
ZP_EXTRA_CALL(plan)
ZP_EXTRA_CALL_WITH(cut, (zero_ctx * z, size_t *at), (z, at))
ZP_EXTRA_TRY(allocate)
ZP_EXTRA_TRY(share)
ZP_EXTRA_TRY(build)
ZP_EXTRA_CALL(abort)
ZP_EXTRA_CALL(abandon)
ZP_EXTRA_CALL(finish)
ZP_EXTRA_CALL(stop)
ZP_EXTRA_CALL_WITH(destroy, (zero_ctx * z, int broken), (z, broken))
ZP_EXTRA_TRY(begin_step)
ZP_EXTRA_CALL_WITH(forget, (zero_ctx * z, int u), (z, u))
ZP_EXTRA_CALL_WITH(fill_update, (const zero_ctx *z, int u, size_t first, zp_update *a),
                   (z, u, first, a))
ZP_EXTRA_TRY_WITH(results_up, (zero_ctx * z, int u, zp_stream *s, void *to), (z, u, s, to))
ZP_EXTRA_TRY_WITH(inputs_down, (zero_ctx * z, int u, zp_event *ready, void *from),
                  (z, u, ready, from))
ZP_EXTRA_CALL_WITH(span, (const zero_ctx *z, const zp_tensor *t, zp_span *span), (z, t, span))
ZP_EXTRA_TRY_WITH(check_order, (zero_ctx * z, int reduces), (z, reduces))
ZP_EXTRA_TRY_WITH(before_write, (zero_ctx * z, int u), (z, u))
ZP_EXTRA_TRY(before_put)
ZP_EXTRA_CALL_WITH(wrote, (zero_ctx * z, const zp_array *a, int u), (z, a, u))
ZP_EXTRA_TRY(finish_update)
ZP_EXTRA_CALL_WITH(stats, (zero_ctx * z, zero_stats *stats), (z, stats))
ZP_EXTRA_TRY(add_state)
ZP_EXTRA_CALL(begin_state)
ZP_EXTRA_TRY(end_state)

static zero_result zp_extra_refuse(zero_ctx *z) {
    char text[ZP_TEXT_BYTES] = "";
    ZP_EACH_EXTRA(z, x) {
        if (x->refuse) x->refuse(&z->cfg, text, sizeof text);
        ZP_REFUSE(z, text[0], "%s", text);
    }
    return ZERO_OK;
}
static zero_result zp_extra_join(zero_ctx *z) {
    if (z->cfg.world || z->cfg.joins)
        ZP_TRY(zp_extra_need(z, "groups", z->cfg.world ? "world is set" : "joins is set"));
    ZP_EACH_EXTRA(z, x) if (x->join) ZP_TRY(x->join(z));
    return ZERO_OK;
}
static zero_result zp_extra_tensor(zero_ctx *z, zp_tensor *t) {
    const zero_tensor_desc *d = &t->desc;
    const char *what = d->flags & ZERO_COPY ? "ZERO_COPY" : d->sum_over ? "sum_over" : "slice_of";
    if (d->flags & ZERO_COPY || d->sum_over || (d->slice_of && z->rule->needs))
        ZP_TRY(zp_extra_need(z, "groups", what));
    ZP_EACH_EXTRA(z, x) if (x->tensor) ZP_TRY(x->tensor(z, t));
    return ZERO_OK;
}
static void zp_extra_describe(const zero_ctx *z, const zp_tensor *t, char *text, size_t bytes) {
    text[0] = 0;
    ZP_EACH_EXTRA(z, x) if (x->describe) x->describe(z, t, text, bytes);
}
static size_t zp_extra_context_bytes(zero_ctx *z) {
    size_t bytes = sizeof *z->extras;
    ZP_EACH_EXTRA(z, x)
    bytes += sizeof *x + x->state_bytes + (x->context_bytes ? x->context_bytes(z) : 0);
    return bytes;
}
static size_t zp_extra_sent(zero_ctx *z, int u) {
    size_t bytes = 0;
    ZP_EACH_EXTRA(z, x) bytes += x->sent ? x->sent(z, u) : 0;
    return bytes;
}
static size_t zp_extra_cut_gradients(zero_ctx *z, size_t at) {
    ZP_EACH_EXTRA(z, x) at = x->cut_gradients ? x->cut_gradients(z, at) : at;
    return at;
}
/* Waits until all streams and lanes are idle. SYNC. */
static zero_result zp_extra_sync(zero_ctx *z) {
    for (int i = 0; i < 2; i++) ZP_TRY(zp_device_sync_stream(&z->stream[i]));
    ZP_EACH_EXTRA(z, x) if (x->sync) ZP_TRY(x->sync(z));
    return zp_device_sync_stream(&z->compute);
}

ZP_UNUSED static zero_group *zp_extra_own_group(const zero_ctx *z, const zero_group *given) {
    ZP_EACH_EXTRA(z, x) if (x->own_group) return x->own_group(z, given);
    return NULL;
}

/* Appends a range of this rank's state to the list `whole` (see zero_state_ranges). */
ZP_UNUSED static zero_result zp_extra_add_range(zero_ctx *z, int whole, const zero_range *range) {
    int *n = &z->nranges[whole];
    void *list = zp_list_grow(z->ranges[whole], *n, &z->ranges_cap[whole], sizeof *range);
    if (!list) return zp_ctx_fail(z, ZERO_ERR_MEMORY, "%d ranges of the state", *n + 1);
    z->ranges[whole] = (zero_range *)list;
    z->ranges[whole][(*n)++] = *range;
    return ZERO_OK;
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
        ZP_REFUSE(z, w->n == ZP_STATIONS, "a walk has more than %d stations", (int)ZP_STATIONS);
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

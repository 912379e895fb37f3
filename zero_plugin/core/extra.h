/* extra.h - how a capability plugs into the core

   A capability is one row, a zp_extra, in a file of its own. extras/table.h lists the rows. The
   core calls the members of every row in the order of that list, skips those that are NULL, and
   names no row. To add a capability, write its file, include it in zero_plugin.cu, and add its row
   to the list. No line of core/ changes.

   WALKS. A walk is the list of stations that process a gradient, or a parameter, in order:
     gradient   from the backward that wrote a unit to the reduced shard (reduce.h)
     parameter  from the updated shard to the gathered unit (gather.h)
   The core has the stations that every run needs. Rows add theirs; the place of a station decides
   where it runs. zero_build asks each station once whether this context needs it. A capability
   that is off therefore costs nothing while training. */
#pragma once

#include "ctx.h"

/* The places of both walks, in order. */
typedef enum zp_place {
    ZP_AT_WRITTEN,  /* gradient: the stream waits until backward has written the unit */
    ZP_AT_COLLECT,  /* 16-bit gradients of several micro-steps are added */
    ZP_AT_PRESUM,   /* sums over other groups of ranks, before the reduction */
    ZP_AT_DESCRIBE, /* both: the core describes the collectives in z->ops, z->gather */
    ZP_AT_CHANGE,   /* both: a row may change these descriptions */
    ZP_AT_FETCH,    /* parameter: the shard is copied to the place the gather reads */
    ZP_AT_ISSUE,    /* both: the core issues the collectives */
    ZP_AT_ADD,      /* gradient: sums that earlier micro-steps moved away are added */
    ZP_AT_COPIES,   /* sums over the replicas of a shard */
    ZP_AT_SCALE,    /* tensors with a divisor of their own are scaled */
    ZP_AT_NORM,     /* the squares for the norm and the overflow check */
    ZP_AT_STORE,    /* the shard is copied to the tier that keeps it */
    ZP_AT_WHOLE,    /* stage 0: all ranks gather the reduced shards */
    ZP_AT_DONE,     /* both: the event that later work waits for is recorded */
    ZP_AT_AFTER,    /* both: work that no station waits for */
    ZP_AT_END,      /* gradient: the unit leaves the bucket */
    ZP_PLACES_OF_WALK
} zp_place;

/* How often a station of the gradient's walk runs. */
typedef enum zp_when {
    ZP_EACH_MICRO_STEP,
    ZP_EACH_REDUCTION, /* each micro-step whose gradient is reduced */
    ZP_LAST_MICRO_STEP /* the last one of a step */
} zp_when;

typedef enum zp_walk_kind { ZP_GRADIENT_WALK, ZP_PARAMETER_WALK, ZP_WALKS } zp_walk_kind;

/* One station: `unit` runs for each unit of the bucket, or `bucket` runs once for all of them. */
typedef struct zp_station {
    zp_walk_kind walk;
    zp_place place;
    zp_when when;
    int (*needed)(const zero_ctx *z); /* NULL: every context with the row needs it */
    zero_result (*unit)(zero_ctx *z, int u);
    zero_result (*bucket)(zero_ctx *z);
} zp_station;

/* A row. Every member except `name` may be NULL. A function returns the row, so that its code names
   each member that it sets. */
typedef struct zp_extra {
    const char *name;
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
    /* The layout: adds the data that the row needs about tensors. */
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
    /* The weights have changed: earlier gathered parameters are out of date. */
    void (*forget)(zero_ctx *z);
    /* Rules of several passes, on stream s: before and after each pass over unit u; between the
       first and the last pass of all units. fill_update adds inputs of elements from `first` on. */
    zero_result (*before_update)(zero_ctx *z, int u, int pass, zp_stream *s);
    zero_result (*after_update)(zero_ctx *z, int u, int pass, zp_stream *s);
    zero_result (*between_passes)(zero_ctx *z);
    void (*fill_update)(const zero_ctx *z, int u, size_t first, zp_update *a);
    /* The same rules, if the CPU updates unit u, and the device combines tensors between the
       passes. results_up: stream s copies the results of the first pass over unit u to `to` on the
       device. inputs_down: after event `ready`, `from` is copied to the place that the last pass
       reads. u -1: the sums of norms, and the ratios, of all units. */
    zero_result (*results_up)(zero_ctx *z, int u, zp_stream *s, void *to);
    zero_result (*inputs_down)(zero_ctx *z, int u, zp_event *ready, void *from);
    /* Fills the row's fields of a tensor's span in an update. */
    void (*span)(const zero_ctx *z, const zp_tensor *t, zp_span *span);
    /* zero_reduce has enqueued the agreement. */
    zero_result (*reduced)(zero_ctx *z);
    /* zero_step has decided whether and how to update. */
    zero_result (*decided)(zero_ctx *z);
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
    const zp_station *stations; /* the last one has neither `unit` nor `bucket` */
} zp_extra;

#define ZP_EACH_EXTRA(z, x) for (const zp_extra *x = (z)->extras; x && x->name; x++)

/* Defines zp_extra_NAME, which calls that member of every row, up to the first error. */
#define ZP_EXTRA_CALL(name)                                                                        \
    static zero_result zp_extra_##name(zero_ctx *z) {                                              \
        ZP_EACH_EXTRA(z, x) if (x->name) ZP_TRY(x->name(z));                                       \
        return ZERO_OK;                                                                            \
    }

static void zp_extra_init(zero_ctx *z) { ZP_EACH_EXTRA(z, x) if (x->init) x->init(z); }
static zero_result zp_extra_refuse(zero_ctx *z) {
    char text[ZP_TEXT_BYTES] = "";
    ZP_EACH_EXTRA(z, x) {
        if (x->refuse) x->refuse(&z->cfg, text, sizeof text);
        ZP_REFUSE(z, text[0], "%s", text);
    }
    return ZERO_OK;
}
ZP_EXTRA_CALL(join)
ZP_EXTRA_CALL(check)
ZP_EXTRA_CALL(resolve)
ZP_EXTRA_CALL(layout)
static void zp_extra_choose(zero_ctx *z) { ZP_EACH_EXTRA(z, x) if (x->choose) x->choose(z); }
static void zp_extra_plan_units(zero_ctx *z) {
    ZP_EACH_EXTRA(z, x) if (x->plan_units) x->plan_units(z);
}
static void zp_extra_plan_arrays(zero_ctx *z) {
    ZP_EACH_EXTRA(z, x) if (x->plan_arrays) x->plan_arrays(z);
}
static size_t zp_extra_context_bytes(zero_ctx *z) {
    size_t bytes = sizeof *z->extras;
    ZP_EACH_EXTRA(z, x) bytes += sizeof *x + (x->context_bytes ? x->context_bytes(z) : 0);
    return bytes;
}
ZP_EXTRA_CALL(allocate)
ZP_EXTRA_CALL(share)
static void zp_extra_plan(zero_ctx *z) { ZP_EACH_EXTRA(z, x) if (x->plan) x->plan(z); }
static size_t zp_extra_sent(zero_ctx *z, int u) {
    size_t bytes = 0;
    ZP_EACH_EXTRA(z, x) bytes += x->sent ? x->sent(z, u) : 0;
    return bytes;
}
static void zp_extra_cut(zero_ctx *z, size_t *at) { ZP_EACH_EXTRA(z, x) if (x->cut) x->cut(z, at); }
static size_t zp_extra_cut_gradients(zero_ctx *z, size_t at) {
    ZP_EACH_EXTRA(z, x) at = x->cut_gradients ? x->cut_gradients(z, at) : at;
    return at;
}
ZP_EXTRA_CALL(build)
static void zp_extra_abort(zero_ctx *z) { ZP_EACH_EXTRA(z, x) if (x->abort) x->abort(z); }
static void zp_extra_abandon(zero_ctx *z) { ZP_EACH_EXTRA(z, x) if (x->abandon) x->abandon(z); }
static void zp_extra_finish(zero_ctx *z) { ZP_EACH_EXTRA(z, x) if (x->finish) x->finish(z); }
static void zp_extra_stop(zero_ctx *z) { ZP_EACH_EXTRA(z, x) if (x->stop) x->stop(z); }
static void zp_extra_destroy(zero_ctx *z, int broken) {
    ZP_EACH_EXTRA(z, x) if (x->destroy) x->destroy(z, broken);
}
ZP_EXTRA_CALL(begin_step)
static void zp_extra_forget(zero_ctx *z) { ZP_EACH_EXTRA(z, x) if (x->forget) x->forget(z); }

static zero_result zp_extra_before_update(zero_ctx *z, int u, int pass, zp_stream *s) {
    ZP_EACH_EXTRA(z, x) if (x->before_update) ZP_DO(z, x->before_update(z, u, pass, s));
    return ZERO_OK;
}
static zero_result zp_extra_after_update(zero_ctx *z, int u, int pass, zp_stream *s) {
    ZP_EACH_EXTRA(z, x) if (x->after_update) ZP_DO(z, x->after_update(z, u, pass, s));
    return ZERO_OK;
}
static zero_result zp_extra_results_up(zero_ctx *z, int u, zp_stream *s, void *to) {
    ZP_EACH_EXTRA(z, x) if (x->results_up) ZP_DO(z, x->results_up(z, u, s, to));
    return ZERO_OK;
}
static zero_result zp_extra_inputs_down(zero_ctx *z, int u, zp_event *ready, void *from) {
    ZP_EACH_EXTRA(z, x) if (x->inputs_down) ZP_DO(z, x->inputs_down(z, u, ready, from));
    return ZERO_OK;
}
static zero_result zp_extra_between_passes(zero_ctx *z) {
    ZP_EACH_EXTRA(z, x) if (x->between_passes) ZP_DO(z, x->between_passes(z));
    return ZERO_OK;
}
ZP_EXTRA_CALL(reduced)
static zero_result zp_extra_decided(zero_ctx *z) {
    ZP_EACH_EXTRA(z, x) if (x->decided) ZP_DO(z, x->decided(z));
    return ZERO_OK;
}
static zero_result zp_extra_before_write(zero_ctx *z, int u) {
    ZP_EACH_EXTRA(z, x) if (x->before_write) ZP_DO(z, x->before_write(z, u));
    return ZERO_OK;
}
ZP_EXTRA_CALL(before_put)
static void zp_extra_wrote(zero_ctx *z, const zp_array *a, int u) {
    ZP_EACH_EXTRA(z, x) if (x->wrote) x->wrote(z, a, u);
}
ZP_EXTRA_CALL(finish_update)
static void zp_extra_stats(zero_ctx *z, zero_stats *stats) {
    ZP_EACH_EXTRA(z, x) if (x->stats) x->stats(z, stats);
}
/* Waits until all streams and lanes are idle. SYNC. */
static zero_result zp_extra_sync(zero_ctx *z) {
    for (int i = 0; i < 2; i++) ZP_TRY(zp_device_sync_stream(&z->stream[i]));
    ZP_EACH_EXTRA(z, x) if (x->sync) ZP_TRY(x->sync(z));
    return zp_device_sync_stream(&z->compute);
}
static void zp_extra_fill_update(const zero_ctx *z, int u, size_t first, zp_update *a) {
    ZP_EACH_EXTRA(z, x) if (x->fill_update) x->fill_update(z, u, first, a);
}
static void zp_extra_span(const zero_ctx *z, const zp_tensor *t, zp_span *span) {
    ZP_EACH_EXTRA(z, x) if (x->span) x->span(z, t, span);
}
ZP_EXTRA_CALL(add_state)
static void zp_extra_begin_state(zero_ctx *z) {
    ZP_EACH_EXTRA(z, x) if (x->begin_state) x->begin_state(z);
}
ZP_EXTRA_CALL(end_state)

/* Fills z->extras with the rows that a NULL-terminated list of functions returns. */
typedef zp_extra (*zp_extra_row)(void);
static zero_result zp_extra_make(zero_ctx *z, const zp_extra_row *rows) {
    int n = 0;
    while (rows[n]) n++;
    z->extras = (zp_extra *)calloc((size_t)n + 1, sizeof *z->extras);
    for (int i = 0; i < n && z->extras; i++) z->extras[i] = rows[i]();
    return z->extras ? ZERO_OK : ZERO_ERR_MEMORY;
}

/* Appends the stations of one place that this context needs. */
static zero_result zp_extra_add_stations(zero_ctx *z, const zp_station *s, zp_place place) {
    for (; s && (s->unit || s->bucket); s++) {
        zp_walk *w = &z->walk[s->walk];
        if (s->place != place || (s->needed && !s->needed(z))) continue;
        ZP_REFUSE(z, w->n == ZP_STATIONS, "a walk has more than %d stations", (int)ZP_STATIONS);
        w->station[w->n++] = s;
    }
    return ZERO_OK;
}

/* Orders the stations of the core and of all rows by place. At the same place, the core's stations
   come first. */
static zero_result zp_extra_lay_walks(zero_ctx *z, const zp_station *core) {
    for (int k = 0; k < ZP_WALKS; k++) z->walk[k].n = 0;
    for (int place = 0; place < ZP_PLACES_OF_WALK; place++) {
        ZP_TRY(zp_extra_add_stations(z, core, (zp_place)place));
        ZP_EACH_EXTRA(z, x) ZP_TRY(zp_extra_add_stations(z, x->stations, (zp_place)place));
    }
    return ZERO_OK;
}

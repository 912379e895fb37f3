/* extra.h - how a capability plugs into the core

   A capability is one row, a zp_extra, in a file of its own. extras/table.h lists the rows. The
   core calls the members of every row in the order of that list, skips those that are NULL, and
   names no row. To add a capability, write its file, include it in zero_plugin.cu, and add its row
   to the list. No line of core/ changes.

   WALKS. What happens to a gradient, and to a parameter, is a list of stations:
     gradient   from the backward that wrote a unit to the reduced shard (reduce.h)
     parameter  from the shard that was updated to the gathered unit (gather.h)
   The core brings the stations that every run needs; rows add theirs between them, by place.
   zero_build asks each station once whether this context needs it, so a capability that is off
   costs nothing while training. */
#pragma once

#include "ctx.h"

/* The places of both walks, in order. */
typedef enum zp_place {
    ZP_AT_WRITTEN,  /* gradient: the stream waits until backward has written the unit */
    ZP_AT_COLLECT,  /* 16-bit gradients of several micro-steps are added up */
    ZP_AT_PRESUM,   /* sums over other ranks that come before the reduction */
    ZP_AT_DESCRIBE, /* both: the collectives are described, in z->ops or z->gather */
    ZP_AT_CHANGE,   /* both: a row changes a description */
    ZP_AT_FETCH,    /* parameter: the shard is brought to where the gather reads it */
    ZP_AT_ISSUE,    /* both: the collectives are issued */
    ZP_AT_ADD,      /* gradient: what earlier micro-steps left elsewhere is added */
    ZP_AT_COPIES,   /* sums over the copies of a shard */
    ZP_AT_SCALE,    /* divisors of single tensors */
    ZP_AT_NORM,     /* squares for norm and overflow check */
    ZP_AT_STORE,    /* the shard goes to where it is kept */
    ZP_AT_WHOLE,    /* stage 0: shards are gathered again */
    ZP_AT_DONE,     /* both: the event that others wait for is recorded */
    ZP_AT_AFTER,    /* both: work that nobody in the walk waits for */
    ZP_AT_END,      /* gradient: the unit leaves the bucket */
    ZP_PLACES_OF_WALK
} zp_place;

/* How often a station of the gradient's walk runs. */
typedef enum zp_when {
    ZP_EACH_MICRO_STEP,
    ZP_EACH_REDUCTION, /* each micro-step that is reduced */
    ZP_LAST_MICRO_STEP /* of a step */
} zp_when;

typedef enum zp_walk_kind { ZP_GRADIENT_WALK, ZP_PARAMETER_WALK, ZP_WALKS } zp_walk_kind;

/* One station: either `unit`, for each unit of the bucket, or `bucket`, once for all of them. */
typedef struct zp_station {
    zp_walk_kind walk;
    zp_place place;
    zp_when when;
    int (*needed)(const zero_ctx *z); /* NULL: by every context that has the row */
    zero_result (*unit)(zero_ctx *z, int u);
    zero_result (*bucket)(zero_ctx *z);
} zp_station;

/* A row. Members other than `name` may be NULL. A row is a function that fills one, so that each
   member is named where it is set. */
typedef struct zp_extra {
    const char *name;
    /* zero_create, first of all. */
    void (*init)(zero_ctx *z);
    /* Writes to `text` what is wrong with the resolved settings; nothing if they are right. */
    void (*refuse)(const zero_config *c, char *text, size_t bytes);
    /* zero_create, after the ranks have met, before settings are checked. */
    zero_result (*join)(zero_ctx *z);
    /* zero_create: checks settings against the number of ranks, and may cut the ranks into groups,
       before and after the arrays are chosen. COLLECTIVE where it cuts. */
    zero_result (*check)(zero_ctx *z);
    zero_result (*resolve)(zero_ctx *z);
    /* The layout: adds what the row's tensors have besides. */
    zero_result (*layout)(zero_ctx *z);
    /* The settings are resolved, and the arrays have types, shares and tiers: changes these. */
    void (*choose)(zero_ctx *z);
    /* The plan: which units are kept elsewhere; after the core's arrays are cut, the row's own. */
    void (*plan_units)(zero_ctx *z);
    void (*plan_arrays)(zero_ctx *z);
    /* Bytes of lists and lanes, of ordinary CPU memory. */
    size_t (*context_bytes)(zero_ctx *z);
    /* The plan: adds the row's bytes to z->plan, after buffers and gathers are known. */
    void (*plan)(zero_ctx *z);
    /* Bytes that this rank sends in a step for unit u, and, for u -1, for no unit. */
    size_t (*sent)(zero_ctx *z, int u);
    /* Cuts the row's part of the private arena; see zp_ctx_cut_arena. */
    void (*cut)(zero_ctx *z, size_t *at);
    /* Cuts the row's part of the gradients' memory, from byte `at` on; returns its end. */
    size_t (*cut_gradients)(zero_ctx *z, size_t at);
    /* zero_build: what a rank allocates by itself; then, once all ranks have done that, what needs
       all of them. The second one is COLLECTIVE. */
    zero_result (*allocate)(zero_ctx *z);
    zero_result (*share)(zero_ctx *z);
    /* zero_build, after all memory is there. COLLECTIVE. */
    zero_result (*build)(zero_ctx *z);
    /* zero_destroy of a context that failed: peers must not wait for this rank. */
    void (*abort)(zero_ctx *z);
    /* zero_destroy: ends what streams and lanes may wait for; waits until the row's lanes are idle;
       while the streams are there; then while all groups are there. */
    void (*abandon)(zero_ctx *z);
    void (*finish)(zero_ctx *z);
    void (*stop)(zero_ctx *z);
    void (*destroy)(zero_ctx *z, int broken);
    /* The first micro-step of a step begins. */
    zero_result (*begin_step)(zero_ctx *z);
    /* The weights were changed: what was gathered before is old. */
    void (*forget)(zero_ctx *z);
    /* Passes of an optimizer step over unit u on stream s: before and after each; between the first
       and the last one of all units; and what the update of elements from `first` on reads. */
    zero_result (*before_update)(zero_ctx *z, int u, int pass, zp_stream *s);
    zero_result (*after_update)(zero_ctx *z, int u, int pass, zp_stream *s);
    zero_result (*between_passes)(zero_ctx *z);
    void (*fill_update)(const zero_ctx *z, int u, size_t first, zp_update *a);
    /* A tensor's part in an update. */
    void (*span)(const zero_ctx *z, const zp_tensor *t, zp_span *span);
    /* zero_reduce has enqueued the agreement. */
    zero_result (*reduced)(zero_ctx *z);
    /* zero_step has decided whether and how to update. */
    zero_result (*decided)(zero_ctx *z);
    /* Before your code writes unit u's gradient again: the last update may still read it. */
    zero_result (*before_write)(zero_ctx *z, int u);
    /* Weights are about to be made from masters that were put; and values were put into an array,
       or, NULL, into any. */
    zero_result (*before_put)(zero_ctx *z);
    void (*wrote)(zero_ctx *z, const zp_array *a);
    /* An update that is pending ends now. COLLECTIVE if one is. */
    zero_result (*finish_update)(zero_ctx *z);
    /* State of the row's own: adds its ranges; knows a range by its name, and moves its values in
       or out; zero_state_begin; zero_state_end, if something was put. */
    zero_result (*add_state)(zero_ctx *z);
    int (*owns_range)(const zero_ctx *z, const zero_range *r);
    zero_result (*move_state)(zero_ctx *z, const zero_range *r, const char *values, char *out);
    void (*begin_state)(zero_ctx *z);
    zero_result (*end_state)(zero_ctx *z);
    const zp_station *stations; /* the last one has neither `unit` nor `bucket` */
} zp_extra;

#define ZP_EACH_EXTRA(z, x) for (const zp_extra *x = (z)->extras; x && x->name; x++)

static void zp_extra_init(zero_ctx *z) { ZP_EACH_EXTRA(z, x) if (x->init) x->init(z); }
static zero_result zp_extra_refuse(zero_ctx *z) {
    char text[ZP_TEXT_BYTES] = "";
    ZP_EACH_EXTRA(z, x) {
        if (x->refuse) x->refuse(&z->cfg, text, sizeof text);
        ZP_REFUSE(z, text[0], "%s", text);
    }
    return ZERO_OK;
}
static zero_result zp_extra_join(zero_ctx *z) {
    ZP_EACH_EXTRA(z, x) if (x->join) ZP_TRY(x->join(z));
    return ZERO_OK;
}
static zero_result zp_extra_check(zero_ctx *z) {
    ZP_EACH_EXTRA(z, x) if (x->check) ZP_TRY(x->check(z));
    return ZERO_OK;
}
static zero_result zp_extra_resolve(zero_ctx *z) {
    ZP_EACH_EXTRA(z, x) if (x->resolve) ZP_TRY(x->resolve(z));
    return ZERO_OK;
}
static zero_result zp_extra_layout(zero_ctx *z) {
    ZP_EACH_EXTRA(z, x) if (x->layout) ZP_TRY(x->layout(z));
    return ZERO_OK;
}
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
static zero_result zp_extra_allocate(zero_ctx *z) {
    ZP_EACH_EXTRA(z, x) if (x->allocate) ZP_TRY(x->allocate(z));
    return ZERO_OK;
}
static zero_result zp_extra_share(zero_ctx *z) {
    ZP_EACH_EXTRA(z, x) if (x->share) ZP_TRY(x->share(z));
    return ZERO_OK;
}
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
static zero_result zp_extra_build(zero_ctx *z) {
    ZP_EACH_EXTRA(z, x) if (x->build) ZP_TRY(x->build(z));
    return ZERO_OK;
}
static void zp_extra_abort(zero_ctx *z) { ZP_EACH_EXTRA(z, x) if (x->abort) x->abort(z); }
static void zp_extra_abandon(zero_ctx *z) { ZP_EACH_EXTRA(z, x) if (x->abandon) x->abandon(z); }
static void zp_extra_finish(zero_ctx *z) { ZP_EACH_EXTRA(z, x) if (x->finish) x->finish(z); }
static void zp_extra_stop(zero_ctx *z) { ZP_EACH_EXTRA(z, x) if (x->stop) x->stop(z); }
static void zp_extra_destroy(zero_ctx *z, int broken) {
    ZP_EACH_EXTRA(z, x) if (x->destroy) x->destroy(z, broken);
}
static zero_result zp_extra_begin_step(zero_ctx *z) {
    ZP_EACH_EXTRA(z, x) if (x->begin_step) ZP_TRY(x->begin_step(z));
    return ZERO_OK;
}
static void zp_extra_forget(zero_ctx *z) { ZP_EACH_EXTRA(z, x) if (x->forget) x->forget(z); }

static zero_result zp_extra_before_update(zero_ctx *z, int u, int pass, zp_stream *s) {
    ZP_EACH_EXTRA(z, x) if (x->before_update) ZP_DO(z, x->before_update(z, u, pass, s));
    return ZERO_OK;
}
static zero_result zp_extra_after_update(zero_ctx *z, int u, int pass, zp_stream *s) {
    ZP_EACH_EXTRA(z, x) if (x->after_update) ZP_DO(z, x->after_update(z, u, pass, s));
    return ZERO_OK;
}
static zero_result zp_extra_between_passes(zero_ctx *z) {
    ZP_EACH_EXTRA(z, x) if (x->between_passes) ZP_DO(z, x->between_passes(z));
    return ZERO_OK;
}
static zero_result zp_extra_reduced(zero_ctx *z) {
    ZP_EACH_EXTRA(z, x) if (x->reduced) ZP_TRY(x->reduced(z));
    return ZERO_OK;
}
static zero_result zp_extra_decided(zero_ctx *z) {
    ZP_EACH_EXTRA(z, x) if (x->decided) ZP_DO(z, x->decided(z));
    return ZERO_OK;
}
static zero_result zp_extra_before_write(zero_ctx *z, int u) {
    ZP_EACH_EXTRA(z, x) if (x->before_write) ZP_DO(z, x->before_write(z, u));
    return ZERO_OK;
}
static zero_result zp_extra_before_put(zero_ctx *z) {
    ZP_EACH_EXTRA(z, x) if (x->before_put) ZP_TRY(x->before_put(z));
    return ZERO_OK;
}
static void zp_extra_wrote(zero_ctx *z, const zp_array *a) {
    ZP_EACH_EXTRA(z, x) if (x->wrote) x->wrote(z, a);
}
static zero_result zp_extra_finish_update(zero_ctx *z) {
    ZP_EACH_EXTRA(z, x) if (x->finish_update) ZP_TRY(x->finish_update(z));
    return ZERO_OK;
}
static void zp_extra_fill_update(const zero_ctx *z, int u, size_t first, zp_update *a) {
    ZP_EACH_EXTRA(z, x) if (x->fill_update) x->fill_update(z, u, first, a);
}
static void zp_extra_span(const zero_ctx *z, const zp_tensor *t, zp_span *span) {
    ZP_EACH_EXTRA(z, x) if (x->span) x->span(z, t, span);
}
static zero_result zp_extra_add_state(zero_ctx *z) {
    ZP_EACH_EXTRA(z, x) if (x->add_state) ZP_TRY(x->add_state(z));
    return ZERO_OK;
}
static void zp_extra_begin_state(zero_ctx *z) {
    ZP_EACH_EXTRA(z, x) if (x->begin_state) x->begin_state(z);
}
static zero_result zp_extra_end_state(zero_ctx *z) {
    ZP_EACH_EXTRA(z, x) if (x->end_state) ZP_TRY(x->end_state(z));
    return ZERO_OK;
}

/* Fills z->extras with the rows of a NULL-terminated list. */
typedef zp_extra (*zp_extra_row)(void);
static zero_result zp_extra_make(zero_ctx *z, const zp_extra_row *rows) {
    int n = 0;
    while (rows[n]) n++;
    z->extras = (zp_extra *)calloc((size_t)n + 1, sizeof *z->extras);
    for (int i = 0; i < n && z->extras; i++) z->extras[i] = rows[i]();
    return z->extras ? ZERO_OK : ZERO_ERR_MEMORY;
}

/* Appends the stations of one place that this context needs. */
static void zp_extra_add_stations(zero_ctx *z, const zp_station *s, zp_place place) {
    for (; s && (s->unit || s->bucket); s++) {
        zp_walk *w = &z->walk[s->walk];
        if (s->place == place && (!s->needed || s->needed(z)) && w->n < ZP_STATIONS)
            w->station[w->n++] = s;
    }
}

/* Lays out the walks: the core's stations and those of all rows, by place. A row's station comes
   after the core's of the same place. */
static void zp_extra_lay_walks(zero_ctx *z, const zp_station *core) {
    for (int k = 0; k < ZP_WALKS; k++) z->walk[k].n = 0;
    for (int place = 0; place < ZP_PLACES_OF_WALK; place++) {
        zp_extra_add_stations(z, core, (zp_place)place);
        ZP_EACH_EXTRA(z, x) zp_extra_add_stations(z, x->stations, (zp_place)place);
    }
}

/* gather.h - gathers parameters: for a hook, into a buffer of the pool, or after an update */
#pragma once

#include "pointers.h"
#include "extra.h"
#include "order.h"

/* The weights have changed: marks all gathered parameters as out of date. */
static zero_result zp_gather_forget_all(zero_ctx *z) {
    zp_buffer_forget_all(&z->pool[ZP_PARAM]);
    for (int u = 0; u < z->layout.segments; u++) z->live[u].version++;
    return ZERO_OK;
}

/* Describes segment u's all-gather in z->gather: from this rank's shard to the whole, in the array
   or in a buffer. The parameter stream waits until the buffer is released. */
static zero_result zp_gather_describe(zero_ctx *z, int u) {
    const zp_array *param = &z->array[ZP_PARAM];
    const int away = zp_array_off_device(param, u), whole = zp_ctx_unit_is_whole(z, ZP_PARAM, u);
    zp_op *op = &z->gather;
    *op = zp_ctx_make_op(z, ZP_PARAMETERS, ZP_ALL_GATHER, u);
    op->in_place = param->part[u].share == ZP_SEEN;
    op->wire = z->live[u].wire[ZP_PARAM];
    op->source = op->target = param->part[u].at;
    if (!whole) {
        zp_buffers *pool = &z->pool[ZP_PARAM];
        const int b = zp_buffer_find(pool, op->unit);
        op->target = zp_ctx_unit_in_buffer(z, ZP_PARAM, u, b);
        ZP_TRY(zp_device_wait_event(&z->stream[ZP_PARAMETERS], pool->buffer[b].released));
    }
    if (away || whole) op->source = op->target + (size_t)z->data->rank * zp_comm_op_shard_bytes(op);
    return ZERO_OK;
}

/* The stream waits for the unit's update, unless a row has chosen another group's copies. */
static zero_result zp_gather_wait_updated(zero_ctx *z, int u) {
    if (z->gather.group != z->data) return ZERO_OK;
    return zp_device_wait_event(&z->stream[ZP_PARAMETERS], z->live[u].updated);
}
static zero_result zp_gather_issue(zero_ctx *z, int u) {
    return zp_comm_send(&z->stream[ZP_PARAMETERS], &z->gather, 1);
}
static zero_result zp_gather_record(zero_ctx *z, int u) {
    return zp_device_record_event(&z->stream[ZP_PARAMETERS], z->live[u].gathered);
}

/* The core's stations of a parameter. */
static const zp_station zp_gather_stations[] = {
    {ZP_AT_DESCRIBE, ZP_EACH_GATHER, NULL, zp_gather_describe, NULL},
    {ZP_AT_FETCH, ZP_EACH_GATHER, NULL, zp_gather_wait_updated, NULL},
    {ZP_AT_ISSUE, ZP_EACH_GATHER, NULL, zp_gather_issue, NULL},
    {ZP_AT_DONE, ZP_EACH_GATHER, NULL, zp_gather_record, NULL},
    ZP_LAST_STATION};

/* Enqueues segment u's all-gather on the parameter stream: the parameter's walk. */
static zero_result zp_gather_segment(zero_ctx *z, int u) {
    const zp_walk *w = &z->walk[ZP_PARAMETER_WALK];
    for (int i = 0; i < w->n; i++) ZP_DO(z, w->station[i]->unit(z, u));
    return ZERO_OK;
}
/* Enqueues the all-gathers of unit u, which is not whole. */
static zero_result zp_gather_unit(zero_ctx *z, int u) {
    ZP_EACH_SEGMENT(&z->layout, u, s)
    if (z->layout.unit[s].numel) ZP_TRY(zp_gather_segment(z, s));
    return ZERO_OK;
}
/* The compute stream waits for the gathers of unit u. */
static zero_result zp_gather_wait(zero_ctx *z, int u) {
    ZP_EACH_SEGMENT(&z->layout, u, s)
    ZP_DO(z, zp_device_wait_event(&z->compute, z->live[s].gathered));
    return ZERO_OK;
}

/* Stream s has written segment u's weights. If it is kept whole, it is gathered at once, any other
   when a pass uses it. At stage 0 nothing is gathered: the next begin waits for the update. */
static zero_result zp_gather_publish_update(zero_ctx *z, int u, zp_stream *s) {
    const int whole = zp_ctx_unit_is_whole(z, ZP_PARAM, u) && z->layout.unit[u].numel;
    ZP_DO(z, zp_device_record_event(s, z->live[u].updated));
    if (whole && z->policy.state == ZP_SHARD) return zp_gather_segment(z, u);
    if (!whole || s == &z->compute) return ZERO_OK;
    return zp_ctx_check(z, zp_device_record_event(s, z->live[u].gathered));
}

/* Enqueues the gathers of u and of the units to prefetch, and holds u's buffer. */
static zero_result zp_gather_acquire(zero_ctx *z, int u) {
    int fill[ZERO_PREFETCH_MOST + 2];
    char open[128];
    zp_order *t = &z->order[z->pass];
    zp_buffers *pool = &z->pool[ZP_PARAM];
    const int wraps = z->pass == ZERO_TRAIN && z->micro + 1 < z->micro_steps;
    zp_order_visit(t, u);
    const int n = zp_order_schedule(z, t, u, wraps, fill);
    if (t->nannounced && n < 0)
        t->at--; /* your code may repeat the call */
    else if (t->nannounced)
        t->matched++;
    ZP_UNTIMELY(z, n < 0,
                "unit %d: all %d gather buffers belong to units that have begun and not ended "
                "(%s); raise open_units (ZERO_ALL: all of them), or prefetch",
                u, pool->n, zp_buffer_print_open(pool, open, sizeof open));
    for (int i = 0; i < n; i++) ZP_TRY(zp_gather_unit(z, fill[i]));
    zp_buffer_hold(pool, u, 1);
    return ZERO_OK;
}

/* The outermost begin of a unit acquires its parameters; the compute stream waits for them. */
static zero_result zp_gather_open(zero_ctx *z, int u) {
    zp_live *live = &z->live[u];
    if (!live->parameter_opens) ZP_TRY(zp_gather_acquire(z, u));
    if (live->parameter_opens++) return ZERO_OK;
    live->buffer[ZP_PARAM] = zp_buffer_find(&z->pool[ZP_PARAM], u);
    ZP_TRY(zp_gather_wait(z, u));
    ZP_TRY_IF(z->observer, move, z, u, ZP_PARAM, 1);
    return ZERO_OK;
}

static zero_result zp_gather_close(zero_ctx *z, int u) {
    zp_live *live = &z->live[u];
    zp_buffers *pool = &z->pool[ZP_PARAM];
    if (--live->parameter_opens) return ZERO_OK;
    ZP_TRY_IF(z->observer, move, z, u, ZP_PARAM, 0);
    if (live->buffer[ZP_PARAM] < 0) return ZERO_OK;
    zp_buffer *b = &pool->buffer[live->buffer[ZP_PARAM]];
    zp_buffer_hold(pool, u, -1);
    live->buffer[ZP_PARAM] = -1;
    return zp_ctx_check(z, zp_device_record_event(&z->compute, b->released));
}

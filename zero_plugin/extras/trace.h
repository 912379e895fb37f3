/* trace.h - the recorder: keeps records of what ran when, and passes them to zero_config.trace

   Records are in a ring of fixed size. Any thread takes the next free record with one atomic
   addition, fills it, and marks it as filled. Between steps the calling thread passes complete
   records to your function, in the order in which they were taken. A full ring drops records and
   counts them: no thread waits, and nothing is allocated after zero_build.

   WHICH THREAD WRITES THE TIMES of a record of stream s

     calling thread   at begin and end, for work that it does itself
     lane             for its tasks: every task that is pushed between begin and end carries the
                      record; the lane writes a time before the first and after each
     CUDA             two events of the record, recorded on s at begin and end. They are queried
                      when the record is passed on, and never waited for

   EXAMPLE OF ONE RECORD (the all-gather of unit u on the CPU, overlapped)

     caller   zp_device_begin_slice(parameter stream, GATHER, u) takes record i. The stream keeps
              it, and each task that is pushed now carries it
     caller   zp_comm_issue pushes the collective's task
     caller   zp_device_end_slice: record i is complete when the lane has run all tasks pushed so
              far. It marks the record as filled, and sets the stream's `last` to its number
     caller   zp_device_record_event copies `last` to the event `gathered`
     lane     reaches the task: writes `begin`, runs it, writes `end`
     caller   zero_forward_begin(u) must wait for `gathered`: zp_device_wait_event takes record j,
              a WAIT, sets its `flow` to the number of i, and writes both times itself
     caller   zero_step ends: record i is filled, and its lane has run the task. The calling thread
              copies i and j to zero_events, and passes them to zero_config.trace in one call */
#pragma once

#include "../core/extra.h"

#define ZP_RECORDS        ((size_t)1 << 13) /* places of the ring */
#define ZP_EVENTS_AT_ONCE 32                /* most records of one call of zero_config.trace */

typedef struct zp_passed_record { /* the part of a passed record that a later WAIT may need */
    uint64_t number;
    zero_event_kind kind;
    int unit, units;
} zp_passed_record;

typedef struct zp_trace {
    zp_recorder recorder; /* first: z->device.recorder points to it */
    zero_trace_fn pass;
    void *user;
    uint64_t number;         /* event i has this number + i; i counts from 1 */
    struct zp_trace *joined; /* of the other context if one joins the other: each waits for the
                                other's agreement */
    size_t taken, passed;    /* atomic: records taken by any thread; passed by the calling thread */
    uint64_t lost;           /* atomic: records dropped since the last ZERO_EVENT_LOST */
    zp_record *ring;         /* [ZP_RECORDS] record i at i % ZP_RECORDS */
    zp_passed_record *was;   /* [ZP_RECORDS] the record passed last from each place */
    struct zp_stamps *stamps; /* CUDA: the events of records; CPU: NULL */
} zp_trace;

static zp_record *zp_trace_take(zp_recorder *recorder, zero_event_kind kind, int track, int unit,
                                uint64_t bytes) {
    zp_trace *t = (zp_trace *)recorder;
    size_t i = __atomic_load_n(&t->taken, __ATOMIC_RELAXED);
    do {
        if (i - __atomic_load_n(&t->passed, __ATOMIC_ACQUIRE) >= ZP_RECORDS) {
            __atomic_add_fetch(&t->lost, 1, __ATOMIC_RELAXED);
            return NULL;
        }
    } while (
        !__atomic_compare_exchange_n(&t->taken, &i, i + 1, 1, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    zp_record *r = &t->ring[i % ZP_RECORDS];
    memset(&r->event, 0, sizeof r->event);
    r->event.kind = r->event.cause = kind;
    r->event.track = track;
    r->event.unit = unit;
    r->event.units = 1;
    r->event.bytes = bytes;
    r->event.step = __atomic_load_n(&recorder->step, __ATOMIC_RELAXED);
    r->event.micro = __atomic_load_n(&recorder->micro, __ATOMIC_RELAXED);
    r->event.number = t->number + (uint64_t)(i + 1);
    r->reached = NULL;
    r->place = i % ZP_RECORDS;
    r->outer = NULL;
    return r;
}

#ifdef __CUDACC__
#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#else
static void nvtxRangePushA(const char *name) {}
static void nvtxRangePop(void) {}
#endif
/* EVENTS OF RECORDS are created with the recorder, two for each place of its ring. An anchor maps
   GPU times to the CPU's clock: an event on an idle stream, and the clock when it was recorded. It
   is renewed at most ten times a second. */
typedef struct zp_stamps {
    zp_device *device;
    cudaEvent_t event[2 * ZP_RECORDS]; /* begin, end by place */
    cudaEvent_t anchor[2];             /* the one in use, and the next */
    double at[2];                      /* when they were recorded */
    double last[ZERO_TRACK_GROUPS];    /* latest begin of each track; later ones are not earlier */
} zp_stamps;

static void zp_trace_renew_anchor(zp_stamps *m) {
    if (zp_device_clear_error(cudaEventQuery(m->anchor[1])) == cudaSuccess) {
        const cudaEvent_t old = m->anchor[0];
        m->anchor[0] = m->anchor[1];
        m->at[0] = m->at[1];
        m->anchor[1] = old;
    }
    m->at[1] = zp_seconds();
    (void)zp_device_clear_error(cudaEventRecord(m->anchor[1], m->device->own));
}
/* Returns the event's time in seconds of the CPU's clock. It may be before the anchor. */
static double zp_trace_stamp_time(const zp_stamps *m, cudaEvent_t e) {
    float ms = 0;
    if (zp_device_clear_error(cudaEventElapsedTime(&ms, m->anchor[0], e)) != cudaSuccess) return 0;
    return m->at[0] + 1e-3 * (double)ms;
}
/* Sets the times of a record that no lane writes, and returns 1 if its work is over. */
static int zp_trace_is_over(zp_trace *t, zp_record *r) {
    zp_stamps *m = t->stamps;
    double *last = &m->last[r->event.track];
    if (r->event.end > 0) { /* the CPU wrote the times */
        if (r->event.begin > *last) *last = r->event.begin;
        return 1;
    }
    if (zp_seconds() > m->at[1] + 0.1) zp_trace_renew_anchor(m);
    if (zp_device_clear_error(cudaEventQuery(m->event[2 * r->place + 1])) == cudaErrorNotReady)
        return 0;
    const double begin = zp_trace_stamp_time(m, m->event[2 * r->place]);
    r->event.begin = begin > *last ? begin : *last;
    r->event.end = zp_trace_stamp_time(m, m->event[2 * r->place + 1]);
    if (r->event.end < r->event.begin) r->event.end = r->event.begin;
    *last = r->event.begin;
    return 1;
}
static zero_result zp_trace_open_stamps(zp_trace *t, zp_device *d) {
    zp_stamps *m = t->stamps = (zp_stamps *)calloc(1, sizeof *m);
    if (!m) return ZERO_ERR_MEMORY;
    m->device = d;
    for (size_t i = 0; i < 2 * ZP_RECORDS; i++) ZP_CUDA(d, cudaEventCreate(&m->event[i]));
    for (int i = 0; i < 2; i++) {
        ZP_CUDA(d, cudaEventCreate(&m->anchor[i]));
        ZP_CUDA(d, cudaStreamSynchronize(d->own));
        m->at[i] = zp_seconds();
        ZP_CUDA(d, cudaEventRecord(m->anchor[i], d->own));
    }
    ZP_CUDA(d, cudaStreamSynchronize(d->own));
    return ZERO_OK;
}
static void zp_trace_close_stamps(zp_stamps *m) {
    for (size_t i = 0; m && i < 2 * ZP_RECORDS; i++)
        if (m->event[i]) (void)cudaEventDestroy(m->event[i]);
    for (int i = 0; m && i < 2; i++)
        if (m->anchor[i]) (void)cudaEventDestroy(m->anchor[i]);
    free(m);
}
static zp_record *zp_trace_begin(zp_stream *s, zero_event_kind kind, int unit, uint64_t bytes) {
    zp_trace *t = (zp_trace *)s->device->recorder;
    zp_record *r = zp_trace_take(&t->recorder, kind, s->track, unit, bytes);
    if (!r) return NULL;
    (void)nvtxRangePushA(zero_event_name(kind));
    r->outer = s->slice;
    if (s->has_lane) s->slice = r;
    (void)zp_device_clear_error(cudaEventRecord(t->stamps->event[2 * r->place], s->cuda));
    return r;
}
static void zp_trace_end(zp_stream *s, zp_record *r) {
    const zp_trace *t = (const zp_trace *)s->device->recorder;
    s->last = r->event.number;
    (void)nvtxRangePop();
    if (s->has_lane) s->slice = r->outer;
    if (r->reached) {
        zp_lane_end_record(&s->lane, r);
        return;
    }
    (void)zp_device_clear_error(cudaEventRecord(t->stamps->event[2 * r->place + 1], s->cuda));
    zp_events_mark_filled(r);
}
#else
static int zp_trace_is_over(zp_trace *t, zp_record *r) { return 1; }
static zero_result zp_trace_open_stamps(zp_trace *t, zp_device *d) { return ZERO_OK; }
static void zp_trace_close_stamps(struct zp_stamps *m) {}
static zp_record *zp_trace_begin(zp_stream *s, zero_event_kind kind, int unit, uint64_t bytes) {
    zp_record *r = zp_trace_take(s->device->recorder, kind, s->track, unit, bytes);
    if (!r) return NULL;
    r->outer = s->slice;
    if (s->queued)
        s->slice = r;
    else
        r->event.begin = zp_seconds();
    return r;
}
static void zp_trace_end(zp_stream *s, zp_record *r) {
    s->last = r->event.number;
    if (s->queued) {
        s->slice = r->outer;
        zp_lane_end_record(&s->lane, r);
    } else {
        zp_events_record_run(r, r->event.begin, zp_seconds());
    }
}
#endif

/* Finds the passed record with that number. NULL: it was overwritten, or is another recorder's. */
static const zp_passed_record *zp_trace_find_passed(const zp_trace *t, uint64_t number) {
    const zp_passed_record *was = t && number ? &t->was[(size_t)(number - 1) % ZP_RECORDS] : NULL;
    return was && was->number == number ? was : NULL;
}

/* Sets the cause of a WAIT. Its record was passed earlier, or is in the recorder `joined`. */
static void zp_trace_find_cause(zp_trace *t, zp_record *r) {
    zp_passed_record *own = &t->was[r->place];
    const zp_passed_record *before = zp_trace_find_passed(t, r->event.flow);
    if (!before) before = zp_trace_find_passed(t->joined, r->event.flow);
    if (before) {
        r->event.cause = before->kind;
        r->event.unit = before->unit;
        r->event.units = before->units;
    }
    own->number = r->event.number;
    own->kind = r->event.kind;
    own->unit = r->event.unit;
    own->units = r->event.units;
}

/* Passes all complete records to zero_config.trace. */
static void zp_trace_deliver_own(zp_trace *t) {
    zero_event event[ZP_EVENTS_AT_ONCE];
    int n = 0;
    const size_t taken = __atomic_load_n(&t->taken, __ATOMIC_ACQUIRE);
    for (size_t i = t->passed; i != taken; i++) {
        zp_record *r = &t->ring[i % ZP_RECORDS];
        if (!__atomic_load_n(&r->filled, __ATOMIC_ACQUIRE)) break;
        if (r->reached && __atomic_load_n(r->reached, __ATOMIC_ACQUIRE) < r->wanted) break;
        if (!r->reached && !zp_trace_is_over(t, r)) break;
        zp_trace_find_cause(t, r);
        if (r->event.end > 0) event[n++] = r->event; /* otherwise the stream received no work */
        __atomic_store_n(&r->filled, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&t->passed, i + 1, __ATOMIC_RELEASE);
        if (n == ZP_EVENTS_AT_ONCE) t->pass(t->user, event, n);
        n %= ZP_EVENTS_AT_ONCE;
    }
    const uint64_t lost = __atomic_exchange_n(&t->lost, 0, __ATOMIC_RELAXED);
    if (lost) { /* n < ZP_EVENTS_AT_ONCE */
        memset(&event[n], 0, sizeof event[n]);
        event[n].kind = event[n].cause = ZERO_EVENT_LOST;
        event[n].unit = -1;
        event[n].bytes = lost;
        event[n].begin = event[n].end = zp_seconds();
        n++;
    }
    if (n) t->pass(t->user, event, n);
}
/* Passes the records of `joined` first, because waits may be for them. */
static void zp_trace_deliver(zp_recorder *recorder) {
    zp_trace *t = (zp_trace *)recorder;
    if (t->joined) zp_trace_deliver_own(t->joined);
    zp_trace_deliver_own(t);
}

/* ---- the row ---- */

static zero_result zp_trace_plan(zero_ctx *z) {
    const size_t record = sizeof(zp_record) + sizeof(zp_passed_record);
    if (z->cfg.trace) z->plan.context_bytes += sizeof(zp_trace) + ZP_RECORDS * record;
    return ZERO_OK;
}

/* Opens the recorder, if cfg.trace is set. zp_trace_close frees also what a failure leaves. */
static zero_result zp_trace_open(zero_ctx *z) {
    if (!z->cfg.trace) return ZERO_OK;
    zp_trace *t = (zp_trace *)calloc(1, sizeof *t);
    if (!t) return ZERO_ERR_MEMORY;
    const zp_recorder recorder = {
        zp_trace_take, zp_trace_begin, zp_trace_end, zp_trace_deliver, 0, 0};
    t->recorder = recorder;
    t->pass = z->cfg.trace;
    t->user = z->cfg.trace_user;
    t->number = ((uint64_t)z->all->rank + 1) << 40 | (uint64_t)(z->follows != 0) << 39;
    t->ring = (zp_record *)calloc(ZP_RECORDS, sizeof *t->ring);
    t->was = (zp_passed_record *)calloc(ZP_RECORDS, sizeof *t->was);
    t->joined = z->partner ? (zp_trace *)z->partner->device.recorder : NULL;
    if (t->joined) t->joined->joined = t;
    z->device.recorder = &t->recorder;
    return t->ring && t->was ? zp_trace_open_stamps(t, &z->device) : ZERO_ERR_MEMORY;
}

static zero_result zp_trace_close(zero_ctx *z) {
    zp_trace *t = (zp_trace *)z->device.recorder;
    if (!t) return ZERO_OK;
    z->device.recorder = NULL;
    if (t->joined) t->joined->joined = NULL;
    zp_trace_close_stamps(t->stamps);
    free(t->ring);
    free(t->was);
    free(t);
    return ZERO_OK;
}

static const zp_setting zp_trace_settings[] = {
    {ZP_SETTING(trace), ZP_POINTER},
    ZP_LAST_SETTING,
};
/* Rows that may still use the recorder when they are destroyed are before this one. */
static zp_extra zp_trace_row(void) {
    zp_extra x;
    memset(&x, 0, sizeof x);
    x.name = "trace";
    x.settings = zp_trace_settings;
    x.call[ZP_ON_PLAN] = zp_trace_plan;
    x.call[ZP_ON_ALLOCATE] = zp_trace_open;
    x.call[ZP_ON_DESTROY] = zp_trace_close;
    return x;
}

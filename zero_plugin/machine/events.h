/* events.h - records of what ran when, for zero_config.trace

   A RECORD is a slice of a track: the kind of work, its unit, and its begin and end. Records are in
   a ring of fixed size. Any thread takes the next free record with one atomic addition, fills it,
   and marks it as filled. Between steps the calling thread passes complete records to your
   function zero_config.trace, in the order in which they were taken. A full ring drops records and
   counts them: no thread waits, and nothing is allocated after zero_build.

   Without zero_config.trace the device's recorder is NULL, and each place below only tests that
   pointer. With it, the plugin uses the same streams, lanes and events as without, so it changes
   neither bits nor waits.

   WHERE RECORDS ARE MADE

     zp_device_begin_slice, _end   around work that a stream receives: zp_comm_issue, an update, a
                                   clear, a call of a group that uses the context's recorder
     zp_device_wait_event, _sync   when a stream or the calling thread waits: WAIT, with the number
                                   of the record that it waits for
     zp_file_give                  a piece of a file, on the lane that reads or writes it
     zero_group_trace              the time that it took to open the group

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
              a WAIT whose `flow` is the number of i, and writes both times itself
     caller   zero_step ends: record i is filled, and its lane has run the task. The calling thread
              copies i and j to zero_events, and passes them to zero_config.trace in one call */
#pragma once

#include "base.h"

#define ZP_RECORDS        ((size_t)1 << 13) /* places of the ring */
#define ZP_EVENTS_AT_ONCE 32                /* most records of one call of zero_config.trace */

typedef struct zp_record {
    zero_event event;
    int filled;              /* atomic: filled, except for the times of unfinished work */
    const size_t *reached;   /* tasks that its lane has run; NULL: no lane writes the times */
    size_t wanted;           /* the times are complete when *reached is this */
    size_t place;            /* in the ring */
    struct zp_record *outer; /* the stream's record around it */
} zp_record;

typedef struct zp_passed_record { /* the part of a passed record that a later WAIT may need */
    uint64_t number;
    zero_event_kind kind;
    int unit, units;
} zp_passed_record;

typedef struct zp_recorder {
    zero_trace_fn trace;
    void *user;
    /* Sets the times of a record that no lane writes, and returns 1 if it is over. NULL: it is. */
    int (*done)(struct zp_recorder *, zp_record *);
    void *own;                  /* state of the device */
    uint64_t number;            /* event i has this number + i; i counts from 1 */
    struct zp_recorder *joined; /* of the other context if one joins the other: each waits for
                                   the other's agreement */
    int64_t step;               /* atomic, as is micro: of new records */
    int micro;
    size_t taken, passed;  /* atomic: records taken by any thread; passed by the calling thread */
    uint64_t lost;         /* atomic: records dropped since the last ZERO_EVENT_LOST */
    zp_record *ring;       /* [ZP_RECORDS] record i at i % ZP_RECORDS */
    zp_passed_record *was; /* [ZP_RECORDS] the record passed last from each place */
} zp_recorder;

/* The track of this thread, if it is a lane. */
ZP_UNUSED static __thread int zp_track_now;

/* Sets the step and micro-step of new records. */
ZP_UNUSED static void zp_events_set_step(zp_recorder *t, int64_t step, int micro) {
    if (!t) return;
    __atomic_store_n(&t->step, step, __ATOMIC_RELAXED);
    __atomic_store_n(&t->micro, micro, __ATOMIC_RELAXED);
}

/* Takes the next free record. Returns NULL if events are not recorded or the ring is full. */
ZP_UNUSED static zp_record *zp_events_take_record(zp_recorder *t, zero_event_kind kind, int track,
                                                  int unit, uint64_t bytes) {
    if (!t) return NULL;
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
    r->event.step = __atomic_load_n(&t->step, __ATOMIC_RELAXED);
    r->event.micro = __atomic_load_n(&t->micro, __ATOMIC_RELAXED);
    r->event.number = t->number + (uint64_t)(i + 1);
    r->reached = NULL;
    r->place = i % ZP_RECORDS;
    r->outer = NULL;
    return r;
}

static void zp_events_mark_filled(zp_record *r) {
    __atomic_store_n(&r->filled, 1, __ATOMIC_RELEASE);
}

/* Fills a record of work that this thread has done itself. */
ZP_UNUSED static void zp_events_record_run(zp_record *r, double begin, double end) {
    if (!r) return;
    r->event.begin = begin;
    r->event.end = end;
    zp_events_mark_filled(r);
}

/* Completes a record of communication with `units` units: it has so many ranks, and this rank sends
   so many bytes. */
ZP_UNUSED static void zp_events_set_traffic(zp_record *r, int units, int ranks, uint64_t sent) {
    if (!r) return;
    r->event.units = units;
    r->event.ranks = ranks;
    r->event.sent = sent;
}

/* Takes a record of a wait for the record with number `flow`. */
ZP_UNUSED static zp_record *zp_events_record_wait(zp_recorder *t, int track, uint64_t flow) {
    zp_record *r = zp_events_take_record(t, ZERO_EVENT_WAIT, track, -1, 0);
    if (r) r->event.flow = flow;
    return r;
}

/* Fills a record of a lane's tasks: it is complete when *reached is `wanted`. */
ZP_UNUSED static void zp_events_record_task(zp_record *r, const size_t *reached, size_t wanted) {
    if (!r) return;
    r->reached = reached;
    r->wanted = wanted;
    zp_events_mark_filled(r);
}

/* Finds the passed record with that number. NULL: it was overwritten, or is another recorder's. */
static const zp_passed_record *zp_events_find_passed(const zp_recorder *t, uint64_t number) {
    const zp_passed_record *was = t && number ? &t->was[(size_t)(number - 1) % ZP_RECORDS] : NULL;
    return was && was->number == number ? was : NULL;
}

/* Sets the cause of a WAIT, whose record was passed earlier, or is in the recorder `joined`. */
static void zp_events_find_cause(zp_recorder *t, zp_record *r) {
    zp_passed_record *own = &t->was[r->place];
    const zp_passed_record *before = zp_events_find_passed(t, r->event.flow);
    if (!before) before = zp_events_find_passed(t->joined, r->event.flow);
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
static void zp_events_deliver_own(zp_recorder *t) {
    zero_event event[ZP_EVENTS_AT_ONCE];
    int n = 0;
    const size_t taken = __atomic_load_n(&t->taken, __ATOMIC_ACQUIRE);
    for (size_t i = t->passed; i != taken; i++) {
        zp_record *r = &t->ring[i % ZP_RECORDS];
        if (!__atomic_load_n(&r->filled, __ATOMIC_ACQUIRE)) break;
        if (r->reached && __atomic_load_n(r->reached, __ATOMIC_ACQUIRE) < r->wanted) break;
        if (!r->reached && t->done && !t->done(t, r)) break;
        zp_events_find_cause(t, r);
        if (r->event.end > 0) event[n++] = r->event; /* otherwise the stream received no work */
        __atomic_store_n(&r->filled, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&t->passed, i + 1, __ATOMIC_RELEASE);
        if (n == ZP_EVENTS_AT_ONCE) t->trace(t->user, event, n);
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
    if (n) t->trace(t->user, event, n);
}
/* Passes the records of `joined` first, because waits may be for them. */
static void zp_events_deliver(zp_recorder *t) {
    if (!t) return;
    if (t->joined) zp_events_deliver_own(t->joined);
    zp_events_deliver_own(t);
}

/* Opens a recorder; NULL: no memory. joins: its context joins that of the recorder `joined`. */
ZP_UNUSED static zp_recorder *zp_events_open(zero_trace_fn trace, void *user, int rank, int joins,
                                             zp_recorder *joined) {
    zp_recorder *t = (zp_recorder *)calloc(1, sizeof *t);
    zp_record *ring = t ? (zp_record *)calloc(ZP_RECORDS, sizeof *ring) : NULL;
    zp_passed_record *was = ring ? (zp_passed_record *)calloc(ZP_RECORDS, sizeof *was) : NULL;
    if (!was) {
        free(ring);
        free(t);
        return NULL;
    }
    t->was = was;
    t->trace = trace;
    t->user = user;
    t->number = ((uint64_t)rank + 1) << 40 | (uint64_t)(joins != 0) << 39;
    t->ring = ring;
    t->joined = joined;
    if (joined) joined->joined = t;
    return t;
}
ZP_UNUSED static void zp_events_close(zp_recorder *t) {
    if (t && t->joined) t->joined->joined = NULL;
    if (t) free(t->ring);
    if (t) free(t->was);
    free(t);
}

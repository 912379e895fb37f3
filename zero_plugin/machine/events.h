/* events.h - what ran when, if anybody asks

   A RECORD is a slice of a track: what ran, of which unit, from when to when. Records lie in a ring
   of fixed size. Any thread takes the next free one by one atomic addition, fills it, and seals it;
   the host's thread hands sealed records on, in the order in which they were taken, to the function
   that the host gave (zero_config.trace), between steps. A ring that is full loses records, and
   counts them: nobody ever waits, and nothing is allocated once the context is built.

   Without such a function the device's recorder is NULL: each of the places below is one test of a
   pointer. With it no stream, lane or event is used otherwise than without; so no bit and no wait
   depends on it.

   WHERE RECORDS COME FROM: the one way to a stream, and the one way into a wait

     zp_device_begin_slice, _end   around what is sent to a stream: zp_comm_issue, an update, a
   clearing .., and a call of a group that has lent its context's recorder zp_device_wait_event,
   _sync   a stream, or the host, waits: WAIT, with the number of what it waits for zp_file_give a
   piece of the file, on the lane that reads or writes it zero_group_trace       how long it took to
   make that group

   WHO WRITES THE TIMES of a slice of stream s

     the host's own work    the host, at begin and end
     a lane's tasks         the lane, which gets the record with every task that is pushed between
                            begin and end: before the first and behind each
     CUDA                   two events of the record's own, recorded on s at begin and end. They are
                            only looked at when the record is handed on, and never waited for

   THE WALK OF ONE RECORD (the all-gather of unit u, CPU version, overlapped)

     host     zp_device_begin_slice(parameter stream, GATHER, u): takes record i, which becomes the
              stream's: a task that is pushed now carries it
     host     zp_comm_issue: pushes the collective's task
     host     zp_device_end_slice: the record is complete when the lane has worked off as many tasks
   as it was given so far; seals it; the stream's `last` is its number host zp_device_record_event
   of `gathered` on that stream: the event takes `last` along lane     comes to the task: writes
   `begin`, runs it, writes `end` host     zero_forward_begin(u): zp_device_wait_event for
   `gathered` has to wait: takes record j, a WAIT whose `flow` is i's number; writes both times
   itself; seals it host     at the end of zero_step: record i is sealed, and its lane that far:
   copies i, then j, into a zero_event each, and calls zero_config.trace with as many as there are
 */
#pragma once

#include "base.h"

#define ZP_RECORDS ((size_t)1 << 13) /* places of the ring */
#define ZP_HANDED  32                /* records that are handed on at once, at most */

typedef struct zp_record {
    zero_event event;
    int sealed;            /* atomic: whoever took it is done with it, but for what is under way */
    const size_t *reached; /* of a lane: tasks worked off; NULL: the times are there */
    size_t wanted;         /* as many, and they are */
    size_t place;          /* in the ring */
    struct zp_record *outer; /* the stream's record before it */
} zp_record;

typedef struct zp_given { /* what is remembered of a record, for those that waited for it */
    uint64_t number;
    zero_event_kind kind;
    int unit, units;
} zp_given;

typedef struct zp_recorder {
    zero_trace_fn give;
    void *user;
    /* Is it over, and at which times? Of the device, for records that no lane writes; NULL: yes. */
    int (*done)(struct zp_recorder *, zp_record *);
    void *own;                  /* of the device */
    uint64_t number;            /* of its events, less their count from 1 on */
    struct zp_recorder *beside; /* of the context that its own joins, or is joined by: each
                                   waits for the other's agreement */
    int64_t step;               /* atomic, as `micro`: of what is recorded now */
    int micro;
    size_t taken, given; /* atomic: records so far; taken by anybody, given by the host */
    uint64_t lost;       /* atomic: since it was last told */
    zp_record *ring;     /* [ZP_RECORDS] number i at i % ZP_RECORDS */
    zp_given *was;       /* [ZP_RECORDS] what was given last from each place */
} zp_recorder;

/* The track of the lane that this thread is. */
ZP_UNUSED static __thread int zp_track_now;

/* What is recorded from now on is of this step and micro-step. */
ZP_UNUSED static void zp_events_place(zp_recorder *t, int64_t step, int micro) {
    if (!t) return;
    __atomic_store_n(&t->step, step, __ATOMIC_RELAXED);
    __atomic_store_n(&t->micro, micro, __ATOMIC_RELAXED);
}

/* The next free record. NULL: nobody asks, or there is none. */
ZP_UNUSED static zp_record *zp_events_take_record(zp_recorder *t, zero_event_kind kind, int track,
                                                  int unit, uint64_t bytes) {
    if (!t) return NULL;
    size_t i = __atomic_load_n(&t->taken, __ATOMIC_RELAXED);
    do {
        if (i - __atomic_load_n(&t->given, __ATOMIC_ACQUIRE) >= ZP_RECORDS) {
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

static void zp_events_seal(zp_record *r) { __atomic_store_n(&r->sealed, 1, __ATOMIC_RELEASE); }

/* A slice that this thread has run by itself. */
ZP_UNUSED static void zp_events_record_run(zp_record *r, double begin, double end) {
    if (!r) return;
    r->event.begin = begin;
    r->event.end = end;
    zp_events_seal(r);
}

/* A slice of waiting for what followed record number `flow`. */
ZP_UNUSED static zp_record *zp_events_record_wait(zp_recorder *t, int track, uint64_t flow) {
    zp_record *r = zp_events_take_record(t, ZERO_EVENT_WAIT, track, -1, 0);
    if (r) r->event.flow = flow;
    return r;
}

/* All tasks of record r are given to a lane, which has worked off `reached`. */
ZP_UNUSED static void zp_events_record_task(zp_record *r, const size_t *reached, size_t wanted) {
    if (!r) return;
    r->reached = reached;
    r->wanted = wanted;
    zp_events_seal(r);
}

/* What was given with that number; NULL: it is forgotten, or another recorder's. */
static const zp_given *zp_events_find_given(const zp_recorder *t, uint64_t number) {
    const zp_given *was = t && number ? &t->was[(size_t)(number - 1) % ZP_RECORDS] : NULL;
    return was && was->number == number ? was : NULL;
}

/* What a WAIT is for was taken before it, so it was given before, unless it is beside. */
static void zp_events_find_cause(zp_recorder *t, zp_record *r) {
    zp_given *own = &t->was[r->place];
    const zp_given *before = zp_events_find_given(t, r->event.flow);
    if (!before) before = zp_events_find_given(t->beside, r->event.flow);
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

/* Hands on what is complete. */
static void zp_events_deliver_own(zp_recorder *t) {
    zero_event event[ZP_HANDED];
    int n = 0;
    const size_t taken = __atomic_load_n(&t->taken, __ATOMIC_ACQUIRE);
    for (size_t i = t->given; i != taken; i++) {
        zp_record *r = &t->ring[i % ZP_RECORDS];
        if (!__atomic_load_n(&r->sealed, __ATOMIC_ACQUIRE)) break;
        if (r->reached && __atomic_load_n(r->reached, __ATOMIC_ACQUIRE) < r->wanted) break;
        if (!r->reached && t->done && !t->done(t, r)) break;
        zp_events_find_cause(t, r);
        if (r->event.end > 0) event[n++] = r->event; /* otherwise nothing was sent */
        __atomic_store_n(&r->sealed, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&t->given, i + 1, __ATOMIC_RELEASE);
        if (n == ZP_HANDED) t->give(t->user, event, n);
        n %= ZP_HANDED;
    }
    const uint64_t lost = __atomic_exchange_n(&t->lost, 0, __ATOMIC_RELAXED);
    if (lost) { /* n < ZP_HANDED */
        memset(&event[n], 0, sizeof event[n]);
        event[n].kind = event[n].cause = ZERO_EVENT_LOST;
        event[n].unit = -1;
        event[n].bytes = lost;
        event[n].begin = event[n].end = zp_seconds();
        n++;
    }
    if (n) t->give(t->user, event, n);
}
/* What is beside goes first: its events may be waited for. On the host's thread, or where nobody
   else is left. */
static void zp_events_deliver(zp_recorder *t) {
    if (!t) return;
    if (t->beside) zp_events_deliver_own(t->beside);
    zp_events_deliver_own(t);
}

/* joins: it is of a context that joins another one. beside: that one's, or NULL. NULL: there is no
   memory. */
ZP_UNUSED static zp_recorder *zp_events_open(zero_trace_fn give, void *user, int rank, int joins,
                                             zp_recorder *beside) {
    zp_recorder *t = (zp_recorder *)calloc(1, sizeof *t);
    zp_record *ring = t ? (zp_record *)calloc(ZP_RECORDS, sizeof *ring) : NULL;
    zp_given *was = ring ? (zp_given *)calloc(ZP_RECORDS, sizeof *was) : NULL;
    if (!was) {
        free(ring);
        free(t);
        return NULL;
    }
    t->was = was;
    t->give = give;
    t->user = user;
    t->number = ((uint64_t)rank + 1) << 40 | (uint64_t)(joins != 0) << 39;
    t->ring = ring;
    t->beside = beside;
    if (beside) beside->beside = t;
    return t;
}
ZP_UNUSED static void zp_events_close(zp_recorder *t) {
    if (t && t->beside) t->beside->beside = NULL;
    if (t) free(t->ring);
    if (t) free(t->was);
    free(t);
}

/* events.h - records of what ran when, for zero_config.trace

   A RECORD is a slice of a track: the kind of work, its unit, and its begin and end. A RECORDER
   keeps records and passes them to your function; extras/trace.h has it. Without zero_config.trace
   the device's recorder is NULL, and each place below only tests that pointer. With it, the plugin
   uses the same streams, lanes and events as without, so it changes neither bits nor waits.

   WHERE RECORDS ARE MADE

     zp_device_begin_slice, _end   around work that a stream receives: zp_comm_issue, an update, a
                                   clear, a call of a group that uses the context's recorder
     zp_device_wait_event, _sync   when a stream or the calling thread waits: WAIT, with the number
                                   of the record that it waits for
     zp_file_give                  a piece of a file, on the lane that reads or writes it
     zero_group_trace              the time that it took to open the group */
#pragma once

#include "base.h"

typedef struct zp_record {
    zero_event event;
    int filled;              /* atomic: filled, except for the times of unfinished work */
    const size_t *reached;   /* tasks that its lane has run; NULL: no lane writes the times */
    size_t wanted;           /* the times are complete when *reached is this */
    size_t place;            /* in the recorder */
    struct zp_record *outer; /* the stream's record around it */
} zp_record;

struct zp_stream; /* of device_cpu.h or device_cuda.h */

typedef struct zp_recorder {
    /* Takes a free record, in any thread. NULL: none is free. */
    zp_record *(*take)(struct zp_recorder *t, zero_event_kind kind, int track, int unit,
                       uint64_t bytes);
    /* Begin and end a record for the work that the stream receives between the two calls. Records
       of one stream nest. */
    zp_record *(*begin)(struct zp_stream *s, zero_event_kind kind, int unit, uint64_t bytes);
    void (*end)(struct zp_stream *s, zp_record *r);
    /* The calling thread passes all complete records to your function. */
    void (*deliver)(struct zp_recorder *t);
    int64_t step; /* atomic, as is micro: of new records */
    int micro;
} zp_recorder;

/* The track of this thread, if it is a lane. */
ZP_UNUSED static __thread int zp_track_now;

/* Sets the step and micro-step of new records. */
static void zp_events_set_step(zp_recorder *t, int64_t step, int micro) {
    if (!t) return;
    __atomic_store_n(&t->step, step, __ATOMIC_RELAXED);
    __atomic_store_n(&t->micro, micro, __ATOMIC_RELAXED);
}
static void zp_events_deliver(zp_recorder *t) {
    if (t) t->deliver(t);
}
/* Takes a free record. Returns NULL if events are not recorded, or none is free. */
static zp_record *zp_events_take_record(zp_recorder *t, zero_event_kind kind, int track, int unit,
                                        uint64_t bytes) {
    return t ? t->take(t, kind, track, unit, bytes) : NULL;
}
/* Takes a record of a wait for the record with number `flow`. */
static zp_record *zp_events_record_wait(zp_recorder *t, int track, uint64_t flow) {
    zp_record *r = zp_events_take_record(t, ZERO_EVENT_WAIT, track, -1, 0);
    if (r) r->event.flow = flow;
    return r;
}

static void zp_events_mark_filled(zp_record *r) {
    __atomic_store_n(&r->filled, 1, __ATOMIC_RELEASE);
}
/* Fills a record of work that this thread has done itself. */
static void zp_events_record_run(zp_record *r, double begin, double end) {
    if (!r) return;
    r->event.begin = begin;
    r->event.end = end;
    zp_events_mark_filled(r);
}
/* Completes a record of communication: its units, its ranks, and the bytes this rank sends. */
static void zp_events_set_traffic(zp_record *r, int units, int ranks, uint64_t sent) {
    if (!r) return;
    r->event.units = units;
    r->event.ranks = ranks;
    r->event.sent = sent;
}

/* device_cpu.h - streams, events, copies and memory of the CPU; macros that make a body a loop */
#pragma once

#include "lane.h"

typedef struct zp_device { /* of one rank */
    double exposed_s;      /* seconds in which the caller waited or communicated */
    zp_recorder *recorder; /* NULL: events are not recorded */
    int sparse;            /* pages of new memory take no space before they are written */
    char text[1];          /* "": no call of this device fails */
} zp_device;

typedef struct zp_stream { /* a lane, or the calling thread */
    zp_device *device;
    int threads;      /* OpenMP threads of a task */
    int communicates; /* the caller's time in a task counts as exposed */
    int queued;       /* 1: the lane runs the tasks; 0: the calling thread does */
    int track;        /* the track of events.h */
    zp_record *slice; /* the open record; NULL: none */
    uint64_t last;    /* number of the last record */
    zp_lane lane;
} zp_stream;

typedef zp_lane_event zp_event;

static zero_result zp_device_open(zp_device *d) {
    memset(d, 0, sizeof *d);
    return ZERO_OK;
}
static void zp_device_close(zp_device *d) {}
ZP_UNUSED static void zp_device_order_with(zp_device *d, zp_device *other) {}
/* 1: CPU threads do the work of streams, and they may wait in it. */
static int zp_on_host = 1;
static int zp_device_is_host(void) { return zp_on_host; }
static int zp_device_number(const zp_device *d) { return 0; }
ZP_UNUSED static void zp_device_choose(int rank) {}
static zero_result zp_device_reach(zp_device *d, int other) {
    return other ? ZERO_ERR_ARGUMENT : ZERO_OK;
}
static zero_result zp_device_check(zp_device *d) { return ZERO_OK; }

/* On the CPU your code's stream is the calling thread. */
static zero_result zp_device_take_stream(zp_stream *s, zp_device *d, void *stream, int threads) {
    memset(s, 0, sizeof *s);
    s->device = d;
    s->threads = threads;
    return ZERO_OK;
}
/* Returns the stream in the form in which your code passes it. */
ZP_UNUSED static void *zp_device_stream_handle(const zp_stream *s) { return NULL; }
static zero_result zp_device_open_stream(zp_stream *s, zp_device *d, void *stream, int queued,
                                         int urgency, int threads) {
    (void)zp_device_take_stream(s, d, stream, threads);
    s->communicates = 1;
    if (queued) ZP_TRY(zp_lane_open(&s->lane, 1));
    s->queued = queued;
    return ZERO_OK;
}
static void zp_device_close_stream(zp_stream *s) {
    if (s->queued) zp_lane_close(&s->lane);
    s->queued = 0;
}
/* Waits until the lane has run all tasks. */
static void zp_device_finish_stream(zp_stream *s) {
    if (s->queued) zp_lane_sync(&s->lane);
}

static zero_result zp_device_push_task(zp_stream *s, zp_task_fn fn, const void *args, size_t bytes,
                                       size_t n) {
    if (s->queued) {
        zp_lane_push(&s->lane, s->slice, fn, args, bytes, n);
        return ZERO_OK;
    }
    const double start = s->communicates ? zp_seconds() : 0;
    fn(args, n, s->threads);
    if (s->communicates) s->device->exposed_s += zp_seconds() - start;
    return ZERO_OK;
}

static zero_result zp_device_open_event(zp_device *d, zp_event *e) {
    memset(e, 0, sizeof *e);
    return ZERO_OK;
}
static void zp_device_close_event(zp_event *e) {}
static zero_result zp_device_record_event(zp_stream *s, zp_event *e) {
    e->after = s->last;
    if (s->queued)
        zp_lane_record(&s->lane, e);
    else
        e->lane = NULL;
    return ZERO_OK;
}
static int zp_device_event_passed(const zp_event *e) { return zp_lane_event_passed(e); }
/* The calling thread waits for the event. */
static zero_result zp_device_sync_event(zp_device *d, zp_event *e) {
    if (zp_lane_event_passed(e)) return ZERO_OK;
    zp_record *r = zp_events_record_wait(d->recorder, ZERO_TRACK_COMPUTE, e->after);
    const double start = zp_seconds();
    zp_lane_wait_event(e);
    const double end = zp_seconds();
    d->exposed_s += end - start;
    zp_events_record_run(r, start, end);
    return ZERO_OK;
}
static zero_result zp_device_wait_event(zp_stream *s, zp_event *e) {
    if (!s->queued) return zp_device_sync_event(s->device, e);
    if (e->lane == &s->lane || zp_lane_event_passed(e)) return ZERO_OK;
    zp_record *r = zp_events_record_wait(s->device->recorder, s->track, e->after);
    zp_lane_push(&s->lane, r, zp_lane_wait_event_task, e, sizeof *e, 0);
    zp_lane_end_record(&s->lane, r);
    return ZERO_OK;
}
static zero_result zp_device_sync_stream(zp_stream *s) {
    zp_event end = {NULL, 0, s->last};
    if (s->queued) zp_lane_record(&s->lane, &end);
    return zp_device_sync_event(s->device, &end);
}

/* Sets the track of the records that s makes from now on. */
static void zp_device_set_track(zp_stream *s, int track) {
    s->track = s->lane.track = s->queued ? track : (int)ZERO_TRACK_COMPUTE;
}
typedef struct zp_copy_args {
    void *to;
    const void *from; /* NULL: zeros */
} zp_copy_args;

static void zp_device_copy_task(const void *args, size_t bytes, int threads) {
    const zp_copy_args *a = (const zp_copy_args *)args;
    if (a->from)
        memcpy(a->to, a->from, bytes);
    else
        memset(a->to, 0, bytes);
}
static zero_result zp_device_copy(zp_stream *s, void *to, const void *from, size_t bytes) {
    const zp_copy_args a = {to, from};
    return bytes ? zp_device_push_task(s, zp_device_copy_task, &a, sizeof a, bytes) : ZERO_OK;
}
static zero_result zp_device_clear(zp_stream *s, void *p, size_t bytes) {
    return zp_device_copy(s, p, NULL, bytes);
}

/* Returns zeroed memory, in large pages if possible, because an update walks four arrays. */
static void *zp_device_alloc(zp_device *d, size_t bytes) {
    void *p = NULL;
    if (posix_memalign(&p, bytes >= (1u << 22) ? (size_t)1 << 21 : 4096, bytes)) return NULL;
    if (bytes >= (1u << 22)) zp_huge(p, bytes);
    const size_t pages = d && d->sparse ? bytes / 4096 * 4096 : 0;
    const size_t empty = pages && !madvise(p, pages, MADV_DONTNEED) ? pages : 0;
    memset((char *)p + empty, 0, bytes - empty);
    return p;
}
ZP_UNUSED static void zp_device_set_sparse(zp_device *d, int sparse) { d->sparse = sparse; }
/* Gives whole pages back to the system; they are zeros when they are used again. */
ZP_UNUSED static void zp_device_release_pages(char *p, size_t bytes) {
    const size_t skip = (4096 - (uintptr_t)p % 4096) % 4096;
    const size_t n = bytes > skip ? (bytes - skip) / 4096 * 4096 : 0;
    if (n && madvise(p + skip, n, MADV_REMOVE)) (void)madvise(p + skip, n, MADV_DONTNEED);
}
static void zp_device_free(void *p) { free(p); }
static void *zp_device_alloc_host(size_t bytes) { return zp_device_alloc(NULL, bytes); }
static void zp_device_free_host(void *p) { free(p); }

#define ZP_FN ZP_INLINE
#ifdef __FMA__ /* a fused multiply-add, which rounds once */
#define ZP_FMA(a, b, c) fmaf(a, b, c)
#else
#define ZP_FMA(a, b, c) ((a) * (b) + (c))
#endif
#define ZP_KERNEL(F, A, GRAIN)                                                                     \
    ZP_LOOP(F, A, GRAIN)                                                                           \
    ZP_KERNEL_CALL(F, F##_loop, A)
#define ZP_KERNEL_CALL(F, LOOP, A)                                                                 \
    static zero_result F(zp_stream *s, const A *a, size_t n) {                                     \
        return n ? zp_device_push_task(s, LOOP, a, sizeof *a, n) : ZERO_OK;                        \
    }

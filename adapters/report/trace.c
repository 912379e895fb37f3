/* trace.c - see trace.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "trace.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    TEXT = 1 << 16, /* written at once, at most */
    LINE = 512,
    KNOWN = 4096, /* slices that arrows can begin at */
    DEPTH = 32,
    BESIDE = 64, /* tid of a track's slices that do not nest, less the track's own */
    TIDS = BESIDE + ZERO_TRACK_FILES
};

typedef struct trace_known {
    uint64_t number;
    int tid;
    int64_t end; /* ns */
} trace_known;

struct trace {
    int file, rank, failed, told;
    double origin;
    char path[1024];
    int why;
    char *text; /* [TEXT] */
    size_t used;
    int depth[TIDS];
    int64_t open[TIDS][DEPTH]; /* ends of the slices around, ns */
    unsigned char named[TIDS];
    trace_known known[KNOWN];
};

/* ---- writing ------------------------------------------------------------------------------- */

static void trace_write(trace *t) {
    size_t done = 0;
    while (done < t->used && !t->failed) {
        const ssize_t wrote = write(t->file, t->text + done, t->used - done);
        if (wrote < 0 && errno == EINTR) continue;
        t->failed = wrote <= 0;
        t->why = errno;
        if (wrote > 0) done += (size_t)wrote;
    }
    t->used = 0;
}

__attribute__((format(printf, 2, 3))) static void trace_line(trace *t, const char *format, ...) {
    va_list values;
    if (t->used + LINE > TEXT) trace_write(t);
    va_start(values, format);
    const int n = vsnprintf(t->text + t->used, LINE, format, values);
    va_end(values);
    if (n > 0 && n < LINE) t->used += (size_t)n; /* never half a line */
}

/* Nanoseconds since the run began. */
static int64_t trace_ns(const trace *t, double time) { return llround((time - t->origin) * 1e9); }

/* Microseconds, three digits behind the point. */
static const char *trace_us(int64_t ns, char out[32]) {
    const char *sign = ns < 0 ? "-" : "";
    const unsigned long long u = (unsigned long long)(ns < 0 ? -ns : ns);
    (void)snprintf(out, 32, "%s%llu.%03llu", sign, u / 1000, u % 1000);
    return out;
}

/* ---- tracks -------------------------------------------------------------------------------- */

static void trace_name(trace *t, int tid) {
    static const char *const names[] = {"compute", "gradients", "parameters",
                                        "updates", "copies",    "host"};
    const int track = tid % BESIDE;
    const char *beside = tid >= BESIDE ? ", beside" : "";
    if (t->named[tid]) return;
    t->named[tid] = 1;
    if (track < ZERO_TRACK_FILE)
        trace_line(t,
                   "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,"
                   "\"args\":{\"name\":\"%s%s\"}},\n",
                   t->rank, tid, names[track], beside);
    else
        trace_line(t,
                   "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,"
                   "\"args\":{\"name\":\"file %d%s\"}},\n",
                   t->rank, tid, track - ZERO_TRACK_FILE, beside);
    trace_line(t,
               "{\"name\":\"thread_sort_index\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,"
               "\"args\":{\"sort_index\":%d}},\n",
               t->rank, tid, 2 * track + (tid >= BESIDE));
}

/* The slices of a tid nest: one that reaches out of the slice around it goes beside. */
static int trace_nests(trace *t, int tid, int64_t begin, int64_t end) {
    int *depth = &t->depth[tid];
    while (*depth && t->open[tid][*depth - 1] <= begin) --*depth;
    if (*depth == DEPTH || (*depth && end > t->open[tid][*depth - 1])) return 0;
    t->open[tid][(*depth)++] = end;
    return 1;
}
static int trace_place(trace *t, int track, int64_t begin, int64_t end) {
    int tid = track >= 0 && track < ZERO_TRACK_FILES ? track : ZERO_TRACK_HOST;
    if (!trace_nests(t, tid, begin, end)) {
        tid += BESIDE;
        (void)trace_nests(t, tid, begin, end);
    }
    trace_name(t, tid);
    return tid;
}

/* ---- events -------------------------------------------------------------------------------- */

/* From the slice that is waited for to the end of the wait. */
static void trace_arrow(trace *t, const zero_event *e, int tid, int64_t end) {
    const trace_known *from = &t->known[e->flow % KNOWN];
    char at[32];
    if (!e->flow || from->number != e->flow) return;
    const char *name = zero_event_name(e->cause);
    trace_line(t,
               "{\"name\":\"%s\",\"cat\":\"flow\",\"ph\":\"s\",\"id\":%llu,\"pid\":%d,\"tid\":%d,"
               "\"ts\":%s},\n",
               name, (unsigned long long)e->number, t->rank, from->tid,
               trace_us(from->end - 1, at));
    trace_line(t,
               "{\"name\":\"%s\",\"cat\":\"flow\",\"ph\":\"f\",\"bp\":\"e\",\"id\":%llu,"
               "\"pid\":%d,\"tid\":%d,\"ts\":%s},\n",
               name, (unsigned long long)e->number, t->rank, tid,
               trace_us((end > from->end ? end : from->end) - 1, at));
}

/* "forward 3", "reduction 3-5", "wait for gather 3", "agree". */
static void trace_title(const zero_event *e, char out[96]) {
    const int waits = e->kind == ZERO_EVENT_WAIT && e->cause != ZERO_EVENT_WAIT;
    char unit[32] = "";
    if (e->unit >= 0) (void)snprintf(unit, sizeof unit, " %d", e->unit);
    if (e->unit >= 0 && e->units > 1)
        (void)snprintf(unit, sizeof unit, " %d and %d more", e->unit, e->units - 1);
    (void)snprintf(out, 96, "%s%s%s", waits ? "wait for " : "",
                   zero_event_name(waits ? e->cause : e->kind), unit);
}

static void trace_event(trace *t, const zero_event *e) {
    char title[96], at[32], length[32];
    const int64_t begin = trace_ns(t, e->begin), end = trace_ns(t, e->end);
    if (e->kind == ZERO_EVENT_LOST) {
        trace_line(t,
                   "{\"name\":\"lost\",\"ph\":\"i\",\"s\":\"p\",\"pid\":%d,\"tid\":0,\"ts\":%s,"
                   "\"args\":{\"events\":%llu}},\n",
                   t->rank, trace_us(begin, at), (unsigned long long)e->bytes);
        return;
    }
    const int tid = trace_place(t, e->track, begin, end);
    const trace_known known = {e->number, tid, end > begin ? end : begin + 1};
    trace_title(e, title);
    trace_line(
        t,
        "{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%s,"
        "\"dur\":%s,\"args\":{\"step\":%lld,\"micro\":%d,\"unit\":%d,\"units\":%d,\"bytes\":%llu,"
        "\"sent\":%llu}},\n",
        title, zero_event_name(e->kind), t->rank, tid, trace_us(begin, at),
        trace_us(end - begin, length), (long long)e->step, e->micro, e->unit, e->units,
        (unsigned long long)e->bytes, (unsigned long long)e->sent);
    t->known[e->number % KNOWN] = known;
    if (e->kind == ZERO_EVENT_WAIT) trace_arrow(t, e, tid, end);
}

void trace_events(trace *t, const zero_event *events, int n) {
    for (int i = 0; i < n && !t->failed; i++) trace_event(t, &events[i]);
}

void trace_slice(trace *t, const char *name, int64_t step, double begin, double end) {
    char at[32], length[32];
    const int64_t from = trace_ns(t, begin), to = trace_ns(t, end);
    if (t->failed) return;
    trace_name(t, ZERO_TRACK_HOST);
    trace_line(t,
               "{\"name\":\"%s\",\"cat\":\"host\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%s,"
               "\"dur\":%s,\"args\":{\"step\":%lld}},\n",
               name, t->rank, ZERO_TRACK_HOST, trace_us(from, at), trace_us(to - from, length),
               (long long)step);
}

void trace_counter(trace *t, const char *name, double time, double value) {
    char at[32];
    if (t->failed || !isfinite(value)) return; /* JSON has no NaN */
    trace_line(t,
               "{\"name\":\"%s\",\"ph\":\"C\",\"pid\":%d,\"tid\":0,\"ts\":%s,"
               "\"args\":{\"%s\":%.9g}},\n",
               name, t->rank, trace_us(trace_ns(t, time), at), name, value);
}

/* ---- life ---------------------------------------------------------------------------------- */

trace *trace_open(const char *path, int rank, const trace_clock *clock, char *sentence,
                  size_t bytes) {
    const int begins = rank == 0 || clock->apart;
    trace *t = (trace *)calloc(1, sizeof *t);
    if (t != NULL) t->text = (char *)malloc(TEXT);
    if (t == NULL || t->text == NULL) {
        (void)snprintf(sentence, bytes, "-tr: no memory for a timeline");
        free(t);
        return NULL;
    }
    t->rank = rank;
    t->origin = clock->origin;
    if (clock->apart)
        (void)snprintf(t->path, sizeof t->path, "%s.r%d", path, rank);
    else
        (void)snprintf(t->path, sizeof t->path, "%s", path);
    const int flags = O_WRONLY | O_APPEND | O_CLOEXEC | (begins ? O_CREAT | O_TRUNC : 0);
    t->file = open(t->path, flags, 0666);
    if (t->file < 0) {
        (void)snprintf(sentence, bytes, "-tr: %s cannot be written: %s", t->path, strerror(errno));
        free(t->text);
        free(t);
        return NULL;
    }
    if (begins) trace_line(t, "[\n");
    trace_line(t,
               "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":0,"
               "\"args\":{\"name\":\"rank %d\"}},\n",
               rank, rank);
    trace_line(t,
               "{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":%d,\"tid\":0,"
               "\"args\":{\"sort_index\":%d}},\n",
               rank, rank);
    trace_write(t);
    return t;
}

int trace_flush(trace *t, char *sentence, size_t bytes) {
    trace_write(t);
    if (!t->failed || t->told) return 0;
    t->told = 1;
    (void)snprintf(sentence, bytes, "-tr: %s cannot be written any more: %s", t->path,
                   strerror(t->why));
    return 1;
}

int trace_close(trace *t, int ends, char *sentence, size_t bytes) {
    if (t == NULL) return 0;
    if (ends)
        trace_line(t, "{\"name\":\"end\",\"ph\":\"M\",\"pid\":%d,\"tid\":0,\"args\":{}}\n]\n",
                   t->rank);
    const int failed = trace_flush(t, sentence, bytes);
    (void)close(t->file);
    free(t->text);
    free(t);
    return failed;
}

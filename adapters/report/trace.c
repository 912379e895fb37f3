/* trace.c - see trace.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "trace.h"
#include "../system/regular_file.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    TEXT = 1 << 16, /* most bytes of one write */
    LINE = 512,
    KNOWN = 4096, /* newest slices at which an arrow can begin */
    DEPTH = 32,
    BESIDE = 64,          /* added to the tid of a slice that does not nest */
    EXPERTS = 2 * BESIDE, /* added to the tid of the experts' context */
    TIDS = EXPERTS + BESIDE + ZERO_TRACK_GROUPS,
    NAME = 16,
    TIDS_OF_RANK = 256 /* range of tids of each rank. Perfetto reserves tid 0, and sometimes takes
                          two threads for one if their tids are equal in two processes */
};

typedef struct trace_known {
    uint64_t number;
    int tid;
    int64_t end; /* ns */
} trace_known;

struct trace {
    int file, rank, tids, failed, told; /* tids: added to each tid in the file */
    int changes;                        /* of the ranks so far */
    double origin;
    char path[1024];
    int why;
    char *text; /* [TEXT] */
    size_t used;
    int depth[TIDS];
    int64_t open[TIDS][DEPTH]; /* ends of the open slices, in ns */
    unsigned char named[TIDS];
    char group[ZERO_TRACK_GROUPS - ZERO_TRACK_GROUP][NAME];
    trace_known known[2][KNOWN]; /* [1]: the experts' context */
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
    if (n > 0 && n < LINE) t->used += (size_t)n; /* a longer line is dropped */
}

/* Returns the nanoseconds since the run began. */
static int64_t trace_ns(const trace *t, double time) { return llround((time - t->origin) * 1e9); }

/* Slices and arrows are most of the file. They are made of strings and integers, because printf
   takes ten times as long. */
typedef struct trace_text {
    char at[LINE];
    size_t n;
} trace_text;

static void put_text(trace_text *x, const char *text) {
    const size_t n = strlen(text);
    if (x->n + n > LINE) return; /* does not happen: names are short */
    memcpy(x->at + x->n, text, n);
    x->n += n;
}
static void put_number(trace_text *x, int64_t value) {
    char digits[24];
    size_t n = sizeof digits;
    uint64_t left = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    do digits[--n] = (char)('0' + left % 10);
    while ((left /= 10) > 0);
    if (value < 0) digits[--n] = '-';
    if (x->n + sizeof digits - n > LINE) return;
    memcpy(x->at + x->n, digits + n, sizeof digits - n);
    x->n += sizeof digits - n;
}
/* Appends "key":value. */
static void put_field(trace_text *x, const char *key, int64_t value) {
    put_text(x, key);
    put_number(x, value);
}
/* Appends microseconds with three decimal places. */
static void put_us(trace_text *x, const char *key, int64_t ns) {
    const int64_t part = (ns < 0 ? -ns : ns) % 1000;
    put_text(x, key);
    if (ns < 0 && ns > -1000) put_text(x, "-");
    put_number(x, ns / 1000);
    put_text(x, part < 10 ? ".00" : part < 100 ? ".0" : ".");
    put_number(x, part);
}
static void trace_put(trace *t, const trace_text *x) {
    if (t->used + x->n > TEXT) trace_write(t);
    memcpy(t->text + t->used, x->at, x->n);
    t->used += x->n;
}

/* Returns microseconds with three decimal places as a string. */
static const char *trace_us(int64_t ns, char out[32]) {
    trace_text x;
    x.n = 0;
    put_us(&x, "", ns);
    memcpy(out, x.at, x.n);
    out[x.n] = 0;
    return out;
}

/* ---- tracks -------------------------------------------------------------------------------- */

static void trace_name(trace *t, int tid) {
    static const char *const names[] = {"compute", "gradients", "parameters",
                                        "updates", "copies",    "host"};
    char name[NAME + 8];
    const int track = tid % BESIDE, is_beside = tid % EXPERTS >= BESIDE;
    const char *beside = is_beside ? ", overlapping" : "",
               *whose = tid >= EXPERTS ? "experts: " : "";
    if (t->named[tid]) return;
    t->named[tid] = 1;
    if (track < ZERO_TRACK_FILE)
        (void)snprintf(name, sizeof name, "%s", names[track]);
    else if (track < ZERO_TRACK_FILES)
        (void)snprintf(name, sizeof name, "file %d", track - ZERO_TRACK_FILE);
    else
        (void)snprintf(name, sizeof name, "group %s", t->group[track - ZERO_TRACK_GROUP]);
    trace_line(t,
               "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,"
               "\"args\":{\"name\":\"%s%s%s\"}},\n",
               t->rank, t->tids + tid, whose, name, beside);
    trace_line(t,
               "{\"name\":\"thread_sort_index\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,"
               "\"args\":{\"sort_index\":%d}},\n",
               t->rank, t->tids + tid, 4 * track + 2 * (tid >= EXPERTS) + is_beside);
}

/* Returns 1 if the slice lies inside the open slices of a tid. Others get the tid + BESIDE. */
static int trace_nests(trace *t, int tid, int64_t begin, int64_t end) {
    int *depth = &t->depth[tid];
    while (*depth && t->open[tid][*depth - 1] <= begin) --*depth;
    if (*depth == DEPTH || (*depth && end > t->open[tid][*depth - 1])) return 0;
    t->open[tid][(*depth)++] = end;
    return 1;
}
static int trace_place(trace *t, int experts, int track, int64_t begin, int64_t end) {
    int tid = track >= 0 && track < ZERO_TRACK_GROUPS ? track : ZERO_TRACK_HOST;
    if (experts) tid += EXPERTS;
    if (!trace_nests(t, tid, begin, end)) {
        tid += BESIDE;
        (void)trace_nests(t, tid, begin, end);
    }
    trace_name(t, tid);
    return tid;
}

/* ---- events -------------------------------------------------------------------------------- */

/* Returns an event's number that is unique in the file, unless 64 changes of the ranks are between
   two of them. A viewer takes numbers below 2^53. A context counts ranks within its shard group, so
   ranks of two groups use the same numbers. Only 64 ranks can change. */
static uint64_t trace_number(const trace *t, uint64_t number) {
    const uint64_t count = number & (((uint64_t)1 << 40) - 1);
    const uint64_t of = (uint64_t)(t->changes & 63) << 7 | (uint64_t)(t->rank + 1);
    return number ? of << 40 | count : 0;
}
static trace_known *trace_slot(trace *t, uint64_t number) {
    return &t->known[number >> 39 & 1][number % KNOWN];
}

static void trace_end_of_arrow(trace *t, const zero_event *e, uint64_t id, const char *phase,
                               int tid, int64_t at) {
    trace_text x;
    x.n = 0;
    put_text(&x, "{\"name\":\"");
    put_text(&x, zero_event_name(e->cause));
    put_text(&x, "\",\"cat\":\"flow\",\"ph\":");
    put_text(&x, phase);
    put_field(&x, ",\"id\":", (int64_t)id);
    put_field(&x, ",\"pid\":", t->rank);
    put_field(&x, ",\"tid\":", t->tids + tid);
    put_us(&x, ",\"ts\":", at);
    put_text(&x, "},\n");
    trace_put(t, &x);
}

/* Draws an arrow from the awaited slice to the end of the wait. */
static void trace_arrow(trace *t, const zero_event *e, int tid, int64_t end) {
    const uint64_t flow = trace_number(t, e->flow), id = trace_number(t, e->number);
    const trace_known *from = trace_slot(t, flow);
    if (!flow || from->number != flow) return;
    trace_end_of_arrow(t, e, id, "\"s\"", from->tid, from->end - 1);
    trace_end_of_arrow(t, e, id, "\"f\",\"bp\":\"e\"", tid,
                       (end > from->end ? end : from->end) - 1);
}

/* Appends the title of a slice: "forward 3", "reduction 3 and 2 more", "wait for gather 3". */
static void put_title(trace_text *x, const zero_event *e) {
    const int waits = e->kind == ZERO_EVENT_WAIT && e->cause != ZERO_EVENT_WAIT;
    if (waits) put_text(x, "wait for ");
    put_text(x, zero_event_name(waits ? e->cause : e->kind));
    if (e->unit < 0) return;
    put_field(x, " ", e->unit);
    if (e->units < 2) return;
    put_field(x, " and ", e->units - 1);
    put_text(x, " more");
}

static void trace_put_slice(trace *t, const zero_event *e, int tid, int64_t begin, int64_t end) {
    trace_text x;
    x.n = 0;
    put_text(&x, "{\"name\":\"");
    put_title(&x, e);
    put_text(&x, "\",\"cat\":\"");
    put_text(&x, zero_event_name(e->kind));
    put_field(&x, "\",\"ph\":\"X\",\"pid\":", t->rank);
    put_field(&x, ",\"tid\":", t->tids + tid);
    put_us(&x, ",\"ts\":", begin);
    put_us(&x, ",\"dur\":", end - begin);
    put_field(&x, ",\"args\":{\"step\":", e->step);
    put_field(&x, ",\"micro\":", e->micro);
    put_field(&x, ",\"unit\":", e->unit);
    put_field(&x, ",\"units\":", e->units);
    put_field(&x, ",\"bytes\":", (int64_t)e->bytes);
    put_field(&x, ",\"sent\":", (int64_t)e->sent);
    put_field(&x, ",\"ranks\":", e->ranks);
    put_text(&x, "}},\n");
    trace_put(t, &x);
}

static void trace_event(trace *t, int experts, const zero_event *e) {
    char at[32];
    const int64_t begin = trace_ns(t, e->begin), end = trace_ns(t, e->end);
    if (e->kind == ZERO_EVENT_LOST) {
        trace_line(t,
                   "{\"name\":\"lost\",\"ph\":\"i\",\"s\":\"p\",\"pid\":%d,\"tid\":%d,\"ts\":%s,"
                   "\"args\":{\"events\":%llu}},\n",
                   t->rank, t->tids, trace_us(begin, at), (unsigned long long)e->bytes);
        return;
    }
    const int tid = trace_place(t, experts, e->track, begin, end);
    const uint64_t number = trace_number(t, e->number);
    const trace_known known = {number, tid, end > begin ? end : begin + 1};
    trace_put_slice(t, e, tid, begin, end);
    *trace_slot(t, number) = known;
    if (e->kind == ZERO_EVENT_WAIT) trace_arrow(t, e, tid, end);
}

void trace_events(trace *t, int experts, const zero_event *events, int n) {
    for (int i = 0; i < n && !t->failed; i++) trace_event(t, experts, &events[i]);
}

void trace_group(trace *t, int lane, const char *name) {
    (void)snprintf(t->group[lane], NAME, "%s", name);
}

void trace_slice(trace *t, const char *name, int64_t step, double begin, double end) {
    char at[32], length[32];
    const int64_t from = trace_ns(t, begin), to = trace_ns(t, end);
    if (t->failed) return;
    trace_name(t, ZERO_TRACK_HOST);
    trace_line(t,
               "{\"name\":\"%s\",\"cat\":\"host\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%s,"
               "\"dur\":%s,\"args\":{\"step\":%lld}},\n",
               name, t->rank, t->tids + ZERO_TRACK_HOST, trace_us(from, at),
               trace_us(to - from, length), (long long)step);
}

void trace_counter(trace *t, const char *name, double time, double value) {
    char at[32];
    if (t->failed || !isfinite(value)) return; /* JSON has no NaN */
    trace_line(t,
               "{\"name\":\"%s\",\"ph\":\"C\",\"pid\":%d,\"tid\":%d,\"ts\":%s,"
               "\"args\":{\"%s\":%.9g}},\n",
               name, t->rank, t->tids, trace_us(trace_ns(t, time), at), name, value);
}

/* ---- life ---------------------------------------------------------------------------------- */

static void trace_name_rank(trace *t, double within) {
    trace_line(t,
               "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":"
               "{\"name\":\"rank %d\",\"origin_ns\":%lld,\"within_ns\":%lld}},\n",
               t->rank, t->tids, t->rank, llround(t->origin * 1e9), llround(within * 1e9));
    trace_line(t,
               "{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,"
               "\"args\":{\"sort_index\":%d}},\n",
               t->rank, t->tids, t->rank);
}

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
    t->tids = TIDS_OF_RANK * (rank + 1);
    t->origin = clock->origin;
    if (clock->apart)
        (void)snprintf(t->path, sizeof t->path, "%s.r%d", path, rank);
    else
        (void)snprintf(t->path, sizeof t->path, "%s", path);
    const int flags = O_WRONLY | O_APPEND | (begins ? O_CREAT | O_TRUNC : 0);
    t->file = regular_file_open(t->path, flags);
    if (t->file < 0) {
        (void)snprintf(sentence, bytes, "-tr: %s cannot be written: %s", t->path,
                       regular_file_error(errno));
        free(t->text);
        free(t);
        return NULL;
    }
    if (begins) trace_line(t, "[\n");
    trace_name_rank(t, clock->within);
    if (clock->apart)
        trace_line(t,
                   "{\"name\":\"process_labels\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,"
                   "\"args\":{\"labels\":\"clock within %.1f us of rank 0's\"}},\n",
                   rank, t->tids, 1e6 * clock->within);
    trace_write(t);
    return t;
}

/* The first line of the file has the origin of its times. */
trace *trace_join(const char *path, int rank, int changes, char *sentence, size_t bytes) {
    static const char key[] = "\"origin_ns\":";
    char first[LINE + 1];
    trace_clock clock = {0, 0, 0};
    const int file = regular_file_open(path, O_RDONLY);
    const ssize_t n = file < 0 ? -1 : read(file, first, LINE);
    if (file >= 0) (void)close(file);
    first[n > 0 ? n : 0] = 0;
    const char *at = strstr(first, key);
    if (at == NULL) {
        (void)snprintf(sentence, bytes, "-tr: %.300s is not the timeline of the job; name its file",
                       path);
        return NULL;
    }
    clock.origin = (double)strtoll(at + sizeof key - 1, NULL, 10) * 1e-9;
    trace *t = trace_open(path, rank, &clock, sentence, bytes);
    if (t != NULL) t->changes = changes;
    return t;
}

void trace_change(trace *t, int rank, int changes) {
    t->rank = rank;
    t->tids = TIDS_OF_RANK * (rank + 1);
    t->changes = changes;
    memset(t->depth, 0, sizeof t->depth);
    memset(t->named, 0, sizeof t->named);
    memset(t->known, 0, sizeof t->known);
    trace_name_rank(t, 0);
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
        trace_line(t,
                   "{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,"
                   "\"args\":{\"sort_index\":%d}}\n]\n",
                   t->rank, t->tids, t->rank); /* the last object has no comma */
    const int failed = trace_flush(t, sentence, bytes);
    (void)close(t->file);
    free(t->text);
    free(t);
    return failed;
}

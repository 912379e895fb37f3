/* scalars.c - see scalars.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "scalars.h"
#include "../system/clock.h"
#include "../system/regular_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PATH = 1024, RECORD = 4096, TAG = 128 };

struct scalars {
    int events; /* descriptor of the event file; -1: none */
    char events_path[PATH + 128];
    char csv[PATH]; /* the folder of the CSV files; "": none */
    int told;
};

/* ---- bytes --------------------------------------------------------------------------------- */

uint32_t scalars_crc(const void *bytes, size_t n) {
    const unsigned char *p = (const unsigned char *)bytes;
    uint32_t crc = 0xFFFFFFFFu;
    for (size_t i = 0; i < n; i++) {
        crc ^= p[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82F63B78u : 0);
    }
    return ~crc;
}

typedef struct record {
    unsigned char at[RECORD];
    size_t n;
} record;

static void record_bytes(record *r, const void *bytes, size_t n) {
    if (r->n + n > RECORD) return; /* does not happen with few values and short tags */
    memcpy(r->at + r->n, bytes, n);
    r->n += n;
}
/* Appends a little-endian number on any machine. */
static void record_fixed(record *r, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++) {
        const unsigned char byte = (unsigned char)(value >> (8 * i));
        record_bytes(r, &byte, 1);
    }
}
static void record_varint(record *r, uint64_t value) {
    for (; value >= 128; value >>= 7) record_fixed(r, value % 128 + 128, 1);
    record_fixed(r, value, 1);
}
/* Appends a field's key. type: 0 varint, 1 eight bytes, 2 a length and bytes, 5 four
   bytes. */
static void record_key(record *r, int field, int type) {
    record_varint(r, (uint64_t)(field * 8 + type));
}
static void record_inside(record *r, int field, const void *bytes, size_t n) {
    record_key(r, field, 2);
    record_varint(r, n);
    record_bytes(r, bytes, n);
}
static void record_masked(record *r, const void *bytes, size_t n) {
    const uint32_t crc = scalars_crc(bytes, n);
    record_fixed(r, (crc >> 15 | crc << 17) + 0xA282EAD8u, 4);
}

static void event_begin(record *r, int64_t x) {
    uint64_t bits;
    const double time = clock_seconds(CLOCK_REALTIME);
    memcpy(&bits, &time, sizeof bits);
    r->n = 0;
    record_key(r, 1, 1);
    record_fixed(r, bits, 8);
    record_key(r, 2, 0);
    record_varint(r, (uint64_t)x);
}

static void event_values(record *r, const scalar *values, int n) {
    record all = {{0}, 0};
    for (int i = 0; i < n; i++) {
        record one = {{0}, 0};
        const float value = (float)values[i].value;
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        record_inside(&one, 1, values[i].tag, strlen(values[i].tag));
        record_key(&one, 2, 5);
        record_fixed(&one, bits, 4);
        record_inside(&all, 1, one.at, one.n);
    }
    record_inside(r, 5, all.at, all.n);
}

/* ---- files --------------------------------------------------------------------------------- */

/* Writes all bytes in one call, so that a killed run leaves whole records. */
static int file_put(int file, const void *bytes, size_t n) {
    ssize_t wrote;
    do wrote = write(file, bytes, n);
    while (wrote < 0 && errno == EINTR);
    if (wrote == (ssize_t)n) return 0;
    if (wrote >= 0) errno = ENOSPC;
    return 1;
}

static int event_write(int file, const record *event) {
    record framed = {{0}, 0};
    record_fixed(&framed, event->n, 8);
    record_masked(&framed, framed.at, 8);
    record_bytes(&framed, event->at, event->n);
    record_masked(&framed, event->at, event->n);
    return file_put(file, framed.at, framed.n);
}

/* Makes the folder and its parents. */
static void folder_make(const char *path) {
    char part[PATH];
    (void)snprintf(part, sizeof part, "%s", path);
    for (char *c = part + 1; *c; c++) {
        if (*c != '/') continue;
        *c = 0;
        (void)mkdir(part, 0777); /* open reports a failure */
        *c = '/';
    }
    (void)mkdir(part, 0777);
}

static int csv_put(const char *folder, int64_t x, const scalar *v) {
    char path[PATH + TAG + 8], line[TAG + 96];
    struct stat is;
    const char *slash = strrchr(v->tag, '/');
    (void)snprintf(path, sizeof path, "%s/%.127s.csv", folder, v->tag);
    for (char *c = path + strlen(folder) + 1; *c; c++)
        if (*c == '/' || *c == ' ') *c = '_';
    const int file = regular_file_open(path, O_WRONLY | O_CREAT | O_APPEND);
    if (file < 0) return 1;
    int n = 0;
    if (fstat(file, &is) == 0 && is.st_size == 0)
        n = snprintf(line, sizeof line, "step,%.100s\n", slash != NULL ? slash + 1 : v->tag);
    n += snprintf(line + n, sizeof line - (size_t)n, "%lld,%.9g\n", (long long)x, v->value);
    const int failed = file_put(file, line, (size_t)n), number = errno;
    (void)close(file);
    errno = number;
    return failed;
}

/* ---- life ---------------------------------------------------------------------------------- */

static int events_open(scalars *s, const char *folder) {
    char host[64] = "host";
    record first;
    (void)gethostname(host, sizeof host - 1);
    folder_make(folder);
    (void)snprintf(s->events_path, sizeof s->events_path,
                   "%.1000s/events.out.tfevents.%lld.%s.%d.0", folder, (long long)time(NULL), host,
                   (int)getpid());
    s->events = open(s->events_path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
    if (s->events < 0) return 1;
    event_begin(&first, 0);
    record_inside(&first, 3, "brain.Event:2", 13);
    return event_write(s->events, &first);
}

scalars *scalars_open(const char *tensorboard, const char *csv, char *sentence, size_t bytes) {
    scalars *s = (scalars *)calloc(1, sizeof *s);
    struct stat is;
    if (s == NULL) {
        (void)snprintf(sentence, bytes, "-tbd: no memory");
        return NULL;
    }
    s->events = -1;
    if (tensorboard[0] && events_open(s, tensorboard)) {
        (void)snprintf(sentence, bytes, "-tbd: %s cannot be written: %s", s->events_path,
                       strerror(errno));
        scalars_close(s);
        return NULL;
    }
    if (!csv[0]) return s;
    (void)snprintf(s->csv, sizeof s->csv, "%s", csv);
    folder_make(csv);
    if (stat(csv, &is) == 0 && S_ISDIR(is.st_mode) && access(csv, W_OK) == 0) return s;
    (void)snprintf(sentence, bytes, "-tcd: %s is no folder that can be written", csv);
    scalars_close(s);
    return NULL;
}

int scalars_put(scalars *s, int64_t x, const scalar *values, int n, char *sentence, size_t bytes) {
    record event;
    if (s == NULL) return 0;
    int failed = 0, number = 0;
    if (s->events >= 0) {
        event_begin(&event, x);
        event_values(&event, values, n);
        failed = event_write(s->events, &event);
        number = errno;
    }
    for (int i = 0; i < n && s->csv[0] && !failed; i++) {
        failed = csv_put(s->csv, x, &values[i]);
        number = errno;
    }
    if (!failed || s->told) return 0;
    s->told = 1;
    (void)snprintf(sentence, bytes, "-tbd, -tcd: figures of %lld samples cannot be written: %s",
                   (long long)x, regular_file_error(number));
    return 1;
}

void scalars_close(scalars *s) {
    if (s == NULL) return;
    if (s->events >= 0) (void)close(s->events);
    free(s);
}

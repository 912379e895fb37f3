/* spill_file.c - spill.h on the CPU: one file without a name, and one thread that reads and writes
   it by pread and pwrite, in the order of its jobs.

       job    | 0 | 1 | ... | records - 1 |   a ring: job n is at n % records
                    ^ done    ^ given

   `last` has the number of the last job of each record. The job has ended when `done` is above it.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* O_TMPFILE */
#endif
#include "spill.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

typedef struct spill_job {
    char *memory;
    int record, writes;
} spill_job;

struct spill {
    char folder[128];
    size_t bytes, records;
    int fd;
    spill_job *job;
    uint64_t *last; /* [records] number of jobs up to and including the record's last one */
    pthread_t thread;
    int runs; /* 1: the thread was started */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* protected by `lock`: */
    uint64_t given, done;
    int ends;
    zero_result status;
    char sentence[SPILL_SENTENCE];
};

/* Keeps the first error. */
__attribute__((format(printf, 3, 4))) static void spill_fail(spill *s, zero_result status,
                                                             const char *format, ...) {
    va_list list;
    pthread_mutex_lock(&s->lock);
    if (!s->status) {
        va_start(list, format);
        (void)vsnprintf(s->sentence, sizeof s->sentence, format, list);
        va_end(list);
        s->status = status;
    }
    pthread_mutex_unlock(&s->lock);
}

/* ---- the thread ---------------------------------------------------------------------------- */

/* Reads or writes all bytes of one record, or records an error. */
static void spill_move(spill *s, const spill_job *j) {
    const off_t begin = (off_t)j->record * (off_t)s->bytes;
    for (size_t at = 0; at < s->bytes;) {
        const off_t offset = begin + (off_t)at;
        const ssize_t moved = j->writes ? pwrite(s->fd, j->memory + at, s->bytes - at, offset)
                                        : pread(s->fd, j->memory + at, s->bytes - at, offset);
        if (moved > 0) {
            at += (size_t)moved;
        } else if (moved == 0) {
            spill_fail(s, ZERO_ERR_DEVICE, "the file of activations in %s ends at offset %lld",
                       s->folder, (long long)offset);
            return;
        } else if (errno != EINTR && errno != EAGAIN) {
            spill_fail(s, ZERO_ERR_DEVICE,
                       "the file of activations in %s, offset %lld: %s of %zu bytes: %s", s->folder,
                       (long long)offset, j->writes ? "write" : "read", s->bytes - at,
                       strerror(errno));
            return;
        }
    }
}

static void *spill_main(void *arg) {
    spill *s = (spill *)arg;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (s->done == s->given && !s->ends) pthread_cond_wait(&s->changed, &s->lock);
        if (s->done == s->given) break;
        const spill_job job = s->job[s->done % s->records];
        const int moves = !s->status;
        pthread_mutex_unlock(&s->lock);
        if (moves) spill_move(s, &job);
        pthread_mutex_lock(&s->lock);
        s->done++;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- opening and closing ------------------------------------------------------------------- */

/* Opens a file without a name. Returns -1 and sets errno on an error. */
static int spill_file(const char *folder) {
    char path[4096];
    const int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) return fd;
    if (snprintf(path, sizeof path, "%s/spill-XXXXXX", folder) >= (int)sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    const int named = mkostemp(path, O_CLOEXEC);
    if (named >= 0) (void)unlink(path);
    return named;
}

/* Opens the file, allocates memory, and starts the thread. */
static zero_result spill_open(spill *s, const spill_shape *shape, char *why) {
    const long long all = (long long)shape->records * (long long)shape->bytes;
    (void)snprintf(s->folder, sizeof s->folder, "%s", shape->folder);
    s->job = (spill_job *)calloc(s->records, sizeof *s->job);
    s->last = (uint64_t *)calloc(s->records, sizeof *s->last);
    if (!s->job || !s->last) return ZERO_ERR_MEMORY;
    s->fd = spill_file(shape->folder);
    if (s->fd < 0) {
        (void)snprintf(why, SPILL_SENTENCE, "a file of activations in %s: %s", s->folder,
                       strerror(errno));
        return ZERO_ERR_DEVICE;
    }
    int full = posix_fallocate(s->fd, 0, (off_t)all);
    while (full == EINTR) full = posix_fallocate(s->fd, 0, (off_t)all);
    if (full) {
        struct statvfs space = {0};
        if (ftruncate(s->fd, 0) == 0)
            (void)fstatvfs(s->fd, &space); /* after it has released its space */
        (void)snprintf(why, SPILL_SENTENCE,
                       "a file of activations in %s, of %lld bytes, where %llu are free: %s",
                       s->folder, all, (unsigned long long)space.f_bavail * space.f_frsize,
                       strerror(full));
        return ZERO_ERR_DEVICE;
    }
    const int none = pthread_create(&s->thread, NULL, spill_main, s);
    s->runs = !none;
    if (none) (void)snprintf(why, SPILL_SENTENCE, "a thread for activations: %s", strerror(none));
    return none ? ZERO_ERR_MEMORY : ZERO_OK;
}

zero_result spill_create(spill **s, const spill_shape *shape, char *why) {
    *s = NULL;
    (void)snprintf(why, SPILL_SENTENCE, "no folder for the file of activations");
    if (!shape->folder || shape->records < 1 || !shape->bytes) return ZERO_ERR_ARGUMENT;
    (void)snprintf(why, SPILL_SENTENCE, "no memory to keep activations in a file");
    spill *made = (spill *)calloc(1, sizeof *made);
    if (!made) return ZERO_ERR_MEMORY;
    made->fd = -1;
    made->bytes = shape->bytes;
    made->records = (size_t)shape->records;
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->changed, NULL);
    const zero_result result = spill_open(made, shape, why);
    if (result) {
        spill_destroy(made);
        return result;
    }
    *s = made;
    why[0] = '\0';
    return ZERO_OK;
}

void spill_destroy(spill *s) {
    if (!s) return;
    if (s->runs) {
        pthread_mutex_lock(&s->lock);
        s->ends = 1;
        pthread_cond_broadcast(&s->changed);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->thread, NULL);
    }
    if (s->fd >= 0) (void)close(s->fd);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s->job);
    free(s->last);
    free(s);
}

/* ---- jobs ---------------------------------------------------------------------------------- */

static void spill_give(spill *s, int record, void *memory, int writes) {
    pthread_mutex_lock(&s->lock);
    while (s->given - s->done == s->records) pthread_cond_wait(&s->changed, &s->lock);
    spill_job *j = &s->job[s->given++ % s->records];
    j->memory = (char *)memory;
    j->record = record;
    j->writes = writes;
    s->last[record] = s->given;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

void spill_put(spill *s, int record, const void *memory) {
    spill_give(s, record, (void *)(uintptr_t)memory, 1); /* the thread only reads it */
}

void spill_get(spill *s, int record, void *memory) { spill_give(s, record, memory, 0); }

void spill_await(spill *s, int record) {
    pthread_mutex_lock(&s->lock);
    while (s->done < s->last[record]) pthread_cond_wait(&s->changed, &s->lock);
    pthread_mutex_unlock(&s->lock);
}

zero_result spill_status(spill *s, const char **sentence) {
    pthread_mutex_lock(&s->lock);
    const zero_result status = s->status;
    pthread_mutex_unlock(&s->lock);
    if (sentence) *sentence = s->sentence; /* the sentence of the first error never changes */
    return status;
}

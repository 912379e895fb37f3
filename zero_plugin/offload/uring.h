/* uring.h - io_uring, with one ring for each lane of a file. The build must ask for it
   (ZERO_WITH_URING, -luring) and the kernel must allow it. Containers often forbid it. Otherwise
   threads call pread and pwrite. */
#pragma once

#include "../machine/base.h"

#define ZP_DISK_LANES 8
#define ZP_REQUESTS   4 /* requests of one transfer */

#ifdef ZERO_WITH_URING
#include <liburing.h>
typedef struct zp_uring {
    int n; /* ZP_DISK_LANES, or 0: no rings */
    struct io_uring ring[ZP_DISK_LANES];
} zp_uring;

static void zp_uring_close(zp_uring *r) {
    while (r->n) io_uring_queue_exit(&r->ring[--r->n]);
}
static void zp_uring_open(zp_uring *r) {
    while (r->n < ZP_DISK_LANES && !io_uring_queue_init(ZP_REQUESTS, &r->ring[r->n], 0)) r->n++;
    if (r->n < ZP_DISK_LANES) zp_uring_close(r);
}

/* Waits until all n requests are answered. Returns 0, or -1 and sets errno: the ring failed. */
static int zp_uring_wait(struct io_uring *ring, int n, int *answer) {
    for (int given = 0, answered = 0; answered < n;) {
        struct io_uring_cqe *c = NULL;
        const int more = given < n ? io_uring_submit(ring) : 0;
        if (more > 0) given += more;
        const int r = answered < given ? io_uring_wait_cqe(ring, &c) : more;
        if (r < 0 && r != -EINTR && r != -EAGAIN && r != -EBUSY) return errno = -r, -1;
        if (r < 0 || !c) continue;
        answer[io_uring_cqe_get_data64(c)] = c->res;
        io_uring_cqe_seen(ring, c);
        answered++;
    }
    return 0;
}

/* Transfers `left` bytes as several concurrent requests; all are answered on return. Returns the
   bytes transferred without a gap, 0 at the end of the file, or -1 and sets errno. */
static ssize_t zp_uring_move(zp_uring *r, size_t lane, int fd, char *memory, size_t left,
                             off_t from, int writes) {
    struct io_uring *ring = &r->ring[lane];
    const size_t each = zp_round_up((left + ZP_REQUESTS - 1) / ZP_REQUESTS, 4096);
    int answer[ZP_REQUESTS] = {0}, n = 0;
    for (size_t at = 0; at < left; at += each, n++) {
        struct io_uring_sqe *q = io_uring_get_sqe(ring); /* at most as many as the ring has */
        const unsigned bytes = (unsigned)zp_min(each, left - at);
        if (writes)
            io_uring_prep_write(q, fd, memory + at, bytes, (uint64_t)from + at);
        else
            io_uring_prep_read(q, fd, memory + at, bytes, (uint64_t)from + at);
        io_uring_sqe_set_data64(q, (uint64_t)n);
    }
    if (zp_uring_wait(ring, n, answer)) return -1;
    ssize_t there = 0;
    for (int i = 0; i < n; i++) {
        const size_t wanted = zp_min(each, left - (size_t)i * each);
        const int again = answer[i] == -EINTR || answer[i] == -EAGAIN;
        if (answer[i] < 0 && !(again && there)) return errno = -answer[i], -1;
        if (answer[i] < 0) break;
        there += answer[i];
        if ((size_t)answer[i] < wanted) break;
    }
    return there;
}
#else
typedef struct zp_uring {
    int n; /* 0 */
} zp_uring;
static void zp_uring_open(zp_uring *r) {}
static void zp_uring_close(zp_uring *r) {}
static ssize_t zp_uring_move(zp_uring *r, size_t lane, int fd, char *memory, size_t left,
                             off_t from, int writes) {
    return 0;
}
#endif

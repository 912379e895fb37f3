/* file.h - the tier FILE: arrays in one file per rank

   The file has its full size from the start and no name after it is opened, so nothing remains
   however the process ends. Arrays are stored in pieces of ZP_PIECE_NUMEL elements, each read and
   written as a whole. Transfers bypass the page cache if the file system allows it. If not, a write
   ends when the cache has written the piece out.

   ONE PIECE of a unit's update (the stream `updates` and the file's lanes)
     updates  zp_file_ring_fill: gives the piece's lane a task that reads it into the next place of
              the ring, after the write that the place still waits for: event `read`
     lane     reads, and compares the checksum with that of the last write
     updates  zp_file_ring_open: waits for `read`; the update works in the ring
     updates  zp_file_ring_close: gives the same lane a task that writes the piece back: event
              `written`; the place is then free again
   A piece always uses the same lane, so a read follows its last write. Pieces come in the order of
   updates, cyclically: after a step's last piece, the ring reads the next step's first ones ahead,
   except gradients, which the next backward writes. A file error fails the context: pieces that
   were not written are lost, and no update reads a piece that did not arrive. */
#pragma once

#include "../comm/comm.h"
#include "../core/arrays.h"
#include "uring.h"

#include <linux/magic.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>

#ifndef ZP_PIECE_NUMEL /* a test may set a smaller size */
#define ZP_PIECE_NUMEL ((size_t)1 << 18)
#endif
#define ZP_SECTOR ((size_t)4096) /* granularity of direct transfers, in bytes */
#define ZP_RING   8              /* pieces of an array that are in memory at once */

typedef struct zp_file {
    zp_comm *group;     /* source of failure and rank */
    const char *folder; /* cfg.folder, borrowed */
    int fd;             /* -1: not open, once `sum` is allocated */
    int unchecked;      /* no checksums */
    int direct;         /* bypasses the page cache */
    int in_memory;      /* the folder is in a tmpfs */
    zp_uring rings;     /* one ring for each lane */
    uint64_t *sum;      /* [pieces] checksums of the last writes; 0: never written, still zeros */
    zp_lane lane[ZP_DISK_LANES];
    int lanes;                          /* lanes that are open */
    uint64_t read_bytes, written_bytes; /* atomic, by lanes. Pieces read ahead count when used */
    uint64_t waited_ns;                 /* atomic, by streams: time waited for transfers */
} zp_file;

typedef struct zp_transfer { /* of one piece */
    zp_file *file;
    char *memory;
    size_t at, bytes; /* in the file, whole sectors */
    size_t piece;
    int writes;
    int ahead; /* read before it is needed */
} zp_transfer;

/* Computes four independent sums, since each waits for its last value. Never returns 0. */
static uint64_t zp_file_checksum(const char *bytes, size_t n) {
    uint64_t sum[4] = {1, 2, 3, 4}, word[4];
    for (size_t i = 0; i + sizeof word <= n; i += sizeof word) {
        memcpy(word, bytes + i, sizeof word);
        for (int k = 0; k < 4; k++) sum[k] = zp_hash_wide(sum[k], word[k]);
    }
    return zp_hash(zp_hash(zp_hash(sum[0], sum[1]), sum[2]), sum[3]) | 1;
}

static zero_result zp_file_fail(const zp_transfer *t, size_t done, int code) {
    return zp_comm_fail(t->file->group, ZERO_ERR_DEVICE, "%s byte %zu of rank %d's file in %s: %s",
                        t->writes ? "writing" : "reading", t->at + done, t->file->group->rank,
                        t->file->folder, code ? strerror(code) : "the file ends there");
}

/* Counts bytes that were transferred, or that were read ahead and are now used. */
static void zp_file_count_bytes(zp_file *f, int writes, size_t bytes) {
    __atomic_add_fetch(writes ? &f->written_bytes : &f->read_bytes, bytes, __ATOMIC_RELAXED);
}

/* Whether to repeat a call that was interrupted or is temporarily impossible. */
static int zp_file_is_retried(int code) { return code == EINTR || code == EAGAIN; }

/* Whether a file system or a kernel lacks such files or calls. Other errors would occur again. */
static int zp_file_is_unsupported(int code) {
    return code == EINVAL || code == EOPNOTSUPP || code == EISDIR || code == ENOSYS;
}

/* Returns the bytes that were transferred. 0: end of file; -1: see errno. */
static ssize_t zp_file_move_some(zp_file *f, const zp_transfer *t, size_t done) {
    char *memory = t->memory + done;
    const size_t left = t->bytes - done;
    const off_t at = (off_t)(t->at + done);
    if (f->rings.n)
        return zp_uring_move(&f->rings, t->piece % ZP_DISK_LANES, f->fd, memory, left, at,
                             t->writes);
    return t->writes ? pwrite(f->fd, memory, left, at) : pread(f->fd, memory, left, at);
}

/* Writes out a piece's bytes in the page cache, so that errors are reported now and unwritten bytes
   do not accumulate. Returns 0, or -1 and sets errno. */
static int zp_file_write_out(const zp_file *f, const zp_transfer *t) {
    const unsigned how =
        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
    if (!f->direct && t->writes && sync_file_range(f->fd, (off_t)t->at, (off_t)t->bytes, how) < 0)
        return zp_file_is_unsupported(errno) ? 0 : -1;
    return 0;
}

static zero_result zp_file_move(const zp_transfer *t) {
    zp_file *f = t->file;
    ZP_TRY(zp_failure_result(f->group->failure));
    if (t->writes && !f->unchecked) f->sum[t->piece] = zp_file_checksum(t->memory, t->bytes);
    for (size_t done = 0; done < t->bytes;) {
        const ssize_t n = zp_file_move_some(f, t, done);
        if (n < 0 && zp_file_is_retried(errno)) continue;
        if (n <= 0) return zp_file_fail(t, done, n < 0 ? errno : 0);
        done += (size_t)n;
    }
    while (zp_file_write_out(f, t))
        if (!zp_file_is_retried(errno)) return zp_file_fail(t, 0, errno);
    if (!t->ahead) zp_file_count_bytes(f, t->writes, t->bytes);
    if (t->writes || !f->sum[t->piece] || f->sum[t->piece] == zp_file_checksum(t->memory, t->bytes))
        return ZERO_OK;
    return zp_comm_fail(f->group, ZERO_ERR_DEVICE,
                        "bytes %zu to %zu of rank %d's file in %s are not what was written there",
                        t->at, t->at + t->bytes, f->group->rank, f->folder);
}
static void zp_file_task(const void *transfer, size_t n, int threads) {
    (void)zp_file_move((const zp_transfer *)transfer);
}
static zp_lane *zp_file_lane(zp_file *f, size_t piece) { return &f->lane[piece % ZP_DISK_LANES]; }

/* Lets the stream wait until the transfers before `e` are complete. */
static void zp_file_wait(zp_file *f, const zp_lane_event *e) {
    zp_recorder *t = f->group->device->recorder;
    zp_record *r =
        zp_lane_event_passed(e) ? NULL : zp_events_record_wait(t, zp_track_now, e->after);
    const double start = zp_seconds();
    zp_lane_wait_event(e);
    const double end = zp_seconds();
    const uint64_t waited = (uint64_t)((end - start) * 1e9);
    zp_events_record_run(r, start, end);
    __atomic_add_fetch(&f->waited_ns, waited, __ATOMIC_RELAXED);
}

/* Enqueues a transfer on its lane. Event `e` follows it. */
static void zp_file_give(const zp_transfer *t, zp_lane_event *e) {
    zp_lane *lane = zp_file_lane(t->file, t->piece);
    zp_record *r = zp_events_take_record(t->file->group->device->recorder,
                                         t->writes ? ZERO_EVENT_WRITE : ZERO_EVENT_READ,
                                         lane->track, -1, t->bytes);
    zp_lane_push(lane, r, zp_file_task, t, sizeof *t, 0);
    zp_lane_record(lane, e);
    if (r) e->after = r->event.number;
    zp_lane_end_record(lane, r);
}

/* Whether direct transfers may begin and end at sectors. */
static int zp_file_is_aligned(int fd) {
#ifdef STATX_DIOALIGN
    struct statx s;
    if (!statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &s) && s.stx_mask & STATX_DIOALIGN)
        return s.stx_dio_offset_align && ZP_SECTOR % s.stx_dio_offset_align == 0
               && ZP_SECTOR % zp_max(s.stx_dio_mem_align, 1) == 0;
#endif
    return 1;
}

/* Makes a file without a name. Returns its descriptor, or -1 and sets errno. */
static int zp_file_make(const zp_file *f) {
    char path[ZP_TEXT_BYTES];
    int fd = -1;
    do fd = open(f->folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    while (fd < 0 && zp_file_is_retried(errno));
    if (fd >= 0 || !zp_file_is_unsupported(errno)) return fd;
    if (snprintf(path, sizeof path, "%s/zero-XXXXXX", f->folder) >= (int)sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    const int named = mkostemp(path, O_CLOEXEC);
    if (named >= 0) (void)unlink(path);
    return named;
}
/* Bypasses the page cache from here on, if the file system allows it. Space is allocated before: a
   file system without a call for that gets single bytes written. A file of a tmpfs is in memory,
   even if it accepts O_DIRECT (Linux 6.6). */
static void zp_file_bypass_cache(zp_file *f) {
    struct statfs s;
    f->in_memory = !fstatfs(f->fd, &s) && s.f_type == TMPFS_MAGIC;
    if (f->in_memory) return;
    const int flags = fcntl(f->fd, F_GETFL);
    f->direct = flags >= 0 && zp_file_is_aligned(f->fd) && !fcntl(f->fd, F_SETFL, flags | O_DIRECT);
}

/* Opens the file and allocates its bytes. An error reports the bytes needed and free. */
static zero_result zp_file_open(zp_file *f, zp_comm *g, const char *folder, size_t bytes,
                                size_t pieces) {
    struct statvfs space;
    f->group = g;
    f->folder = folder;
    f->fd = -1;
    f->sum = (uint64_t *)calloc(pieces, sizeof *f->sum);
    if (!f->sum) return ZERO_ERR_MEMORY;
    const int fd = zp_file_make(f);
    const zero_result bad = errno == ENOMEM ? ZERO_ERR_MEMORY : ZERO_ERR_DEVICE;
    if (fd < 0) return zp_comm_fail(g, bad, "a file in %s: %s", folder, strerror(errno));
    f->fd = fd;
    int full = posix_fallocate(fd, 0, (off_t)bytes);
    while (zp_file_is_retried(full)) full = posix_fallocate(fd, 0, (off_t)bytes);
    if (full && (ftruncate(fd, 0) || fstatvfs(fd, &space))) /* frees the allocated space */
        memset(&space, 0, sizeof space);
    if (full)
        return zp_comm_fail(
            g, ZERO_ERR_MEMORY, "rank %d needs %zu bytes in %s, where %llu are free: %s", g->rank,
            bytes, folder, (unsigned long long)space.f_bavail * space.f_frsize, strerror(full));
    zp_file_bypass_cache(f);
    for (; f->lanes < ZP_DISK_LANES; f->lanes++) {
        ZP_TRY(zp_lane_open(&f->lane[f->lanes], 1));
        f->lane[f->lanes].track = ZERO_TRACK_FILE + f->lanes;
    }
    zp_uring_open(&f->rings);
    return ZERO_OK;
}

/* Returns a text that describes how the file is read and written. */
static const char *zp_file_describe(const zp_file *f) {
    static const char *const ways[2][3] = {{"pread and pwrite of threads, through the page cache",
                                            "pread and pwrite of threads, direct (O_DIRECT)",
                                            "pread and pwrite of threads, in memory (a tmpfs)"},
                                           {"io_uring, through the page cache",
                                            "io_uring, direct (O_DIRECT)",
                                            "io_uring, in memory (a tmpfs)"}};
    return ways[f->rings.n > 0][f->in_memory ? 2 : f->direct];
}

static void zp_file_sync(zp_file *f) {
    for (int i = 0; i < f->lanes; i++) zp_lane_sync(&f->lane[i]);
}

/* Closes the file after all lanes are idle, since lanes wait for the others' transfers. */
static void zp_file_close(zp_file *f) {
    zp_file_sync(f);
    for (int i = 0; i < f->lanes; i++) zp_lane_close(&f->lane[i]);
    zp_uring_close(&f->rings);
    if (f->sum && f->fd >= 0) (void)close(f->fd);
    free(f->sum);
    memset(f, 0, sizeof *f);
}

/* ---- parts of arrays ---- */

/* What the file keeps of one array. Its pieces pass through places in memory: place 0 is for access
   by name, the next ZP_RING are those of the ring, and ZP_DISK_LANES more are for sums of
   gradients. An array that nothing but gathers reads has place 0 alone. */
typedef struct zp_file_array {
    zp_file *file;
    size_t piece_bytes; /* of its largest piece, in whole sectors */
    char *places;       /* [1 + ZP_RING + ZP_DISK_LANES][piece_bytes] */
    size_t bounced;     /* 1 + the number of the piece in place 0; 0: none */
    uint64_t since;     /* file->written_bytes when it was read */
} zp_file_array;

/* Returns 1 if unit u's part is in the file. */
static int zp_file_has(const zp_array *a, int u) {
    return a->part[u].tier == ZERO_FILE && a->part[u].numel;
}
static size_t zp_file_pieces(const zp_array *a, int u) {
    return (a->part[u].numel + ZP_PIECE_NUMEL - 1) / ZP_PIECE_NUMEL;
}

/* Returns the bytes of n elements of a piece, in whole sectors. */
static size_t zp_file_piece_bytes(zero_type type, size_t n) {
    return zp_round_up(zp_type_array_bytes(type, n), ZP_SECTOR);
}
/* Returns the bytes of unit u's part, which begins each piece in a new sector. */
static size_t zp_file_part_bytes(const zp_array *a, int u) {
    const zp_array_part *x = &a->part[u];
    if (!zp_file_has(a, u)) return 0;
    const size_t before = zp_file_pieces(a, u) - 1;
    return before * zp_file_piece_bytes(x->type, ZP_PIECE_NUMEL)
           + zp_file_piece_bytes(x->type, x->numel - before * ZP_PIECE_NUMEL);
}

/* Returns the transfer of piece i of unit u's part. */
static zp_transfer zp_file_piece(const zp_array *a, int u, size_t i, char *memory, int writes) {
    const zp_array_part *x = &a->part[u];
    const size_t n = zp_min(x->numel - i * ZP_PIECE_NUMEL, ZP_PIECE_NUMEL);
    const size_t at = x->at + i * zp_file_piece_bytes(x->type, ZP_PIECE_NUMEL);
    const zp_transfer t = {a->filed->file, memory, at, zp_file_piece_bytes(x->type, n),
                           x->piece + i,   writes, 0};
    return t;
}

/* Access by name: reads the piece with element e, and writes it back. */
static zero_result zp_file_open_range(zp_array *a, int u, size_t e, size_t *n, zp_stream *s,
                                      char **p) {
    zp_file_array *x = a->filed;
    zp_file *f = x->file;
    const size_t at = e - a->part[u].first, i = at / ZP_PIECE_NUMEL;
    *n = zp_min(*n, ZP_PIECE_NUMEL - at % ZP_PIECE_NUMEL);
    *p = x->places + zp_type_array_bytes(a->part[u].type, at % ZP_PIECE_NUMEL);
    ZP_TRY(zp_device_sync_stream(s)); /* it may still copy the last open piece */
    zp_file_sync(f);                  /* a step may still write */
    const zp_transfer t = zp_file_piece(a, u, i, x->places, 0);
    if (x->bounced == t.piece + 1 && x->since == f->written_bytes) return ZERO_OK;
    x->bounced = 0;
    ZP_TRY(zp_file_move(&t));
    x->bounced = t.piece + 1;
    x->since = f->written_bytes;
    return ZERO_OK;
}
static zero_result zp_file_close_range(zp_array *a, int u, size_t e, zp_stream *s) {
    const size_t i = (e - a->part[u].first) / ZP_PIECE_NUMEL;
    const zp_transfer t = zp_file_piece(a, u, i, a->filed->places, 1);
    ZP_TRY(zp_device_sync_stream(s));
    ZP_TRY(zp_file_move(&t));
    a->filed->since = a->filed->file->written_bytes;
    return ZERO_OK;
}

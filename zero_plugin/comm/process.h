/* process.h - LOCAL of ranks that are processes, for example forked ones

   Each rank makes memory files, which peers open through /proc while the makers wait. */
#pragma once

#include "local.h"

/* Identifies a rank's memory file for its peers. In containers a process id may name a different
   process, so the peers compare the file's device and inode. */
typedef struct zp_piece {
    int64_t pid, fd, device, inode;
} zp_piece;

static zp_piece zp_process_piece_of(int fd) {
    struct stat s;
    zp_piece p = {(int64_t)getpid(), fd, -1, -1};
    if (fd < 0 || fstat(fd, &s)) return p;
    p.device = (int64_t)s.st_dev;
    p.inode = (int64_t)s.st_ino;
    return p;
}

/* Opens the peer's file. Returns -1 if this process cannot see it. */
static int zp_process_open_piece(const zp_piece *theirs) {
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)theirs->pid,
                   (long long)theirs->fd);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    const zp_piece found = zp_process_piece_of(fd);
    if (fd < 0 || (found.device == theirs->device && found.inode == theirs->inode)) return fd;
    (void)close(fd);
    return -1;
}

static int zp_process_no_files(int code) { return code == EMFILE || code == ENFILE; }
/* Exchanges all ranks' errors. All return that of the lowest rank, file limits first: with too many
   open files other shared memory fails, too. */
static zero_result zp_process_agree(zp_comm *g, size_t bytes, int code) {
    const int32_t mine = code, *theirs = (const int32_t *)(const void *)g->mail;
    char name[ZP_RANK_TEXT];
    int bad = -1;
    ZP_TRY(zp_comm_exchange(g, &mine, sizeof mine));
    for (int r = g->nranks - 1; r >= 0; r--)
        if (theirs[r]
            && (bad < 0 || zp_process_no_files(theirs[r]) || !zp_process_no_files(theirs[bad])))
            bad = r;
    if (bad < 0) return ZERO_OK;
    if (!zp_process_no_files(theirs[bad])) return ZERO_ERR_MEMORY;
    return zp_comm_fail(g, ZERO_ERR_DEVICE, "%s could not open a memory file of %zu bytes: %s",
                        zp_board_print_rank(g, bad, name), bytes, strerror(theirs[bad]));
}

/* Opens memory of ranks that are processes. */
static zero_result zp_process_open_files(zp_comm *g, zp_memory *m) {
    const zp_local_ranks *s = zp_board_ranks_of(g);
    const int one = m->how & ZP_ONE,
              fd = !one || s->me == 0 ? zp_shared_memory_make_file(m->bytes) : -1;
    int code = fd < 0 ? errno : 0;
    const zp_piece mine = zp_process_piece_of(fd),
                   *theirs = (const zp_piece *)(const void *)g->mail;
    zero_result r = zp_comm_exchange(g, &mine, sizeof mine);
    if (one && s->me) code = 0; /* this rank makes no file */
    for (int p = 0; p < (one ? 1 : s->n) && !r; p++) {
        errno = ENOMEM;
        const int file = p == s->me ? fd : zp_process_open_piece(&theirs[s->rank_of[p]]);
        if (!zp_shared_memory_map_piece(m, p, file) && !zp_process_no_files(code)) code = errno;
        if (file >= 0 && p != s->me) (void)close(file);
    }
    for (int p = 1; p < s->n && one; p++) m->peer[p] = m->peer[0];
    m->base = m->peer[s->me];
    if (!r) r = zp_process_agree(g, m->bytes, code);
    if (fd >= 0) (void)close(fd);
    if (r) zp_shared_memory_free(m);
    return r;
}

/* Opens memory that the ranks of this machine share, be they processes or threads. */
static zero_result zp_process_open_memory(zp_comm *g, zp_memory *m) {
    const zp_local_ranks *s = zp_board_ranks_of(g);
    const int threads = g->nranks == 1 || (s->local && !s->local->shared);
    return threads ? zp_shared_memory_open(g, m) : zp_process_open_files(g, m);
}

ZP_TRANSPORT(zp_process_transport, "LOCAL", zp_local_join, zp_local_refuse, zp_process_open_memory,
             NULL, zp_local_issue, zp_board_exchange, zp_board_broadcast, zp_local_bytes, 0,
             zp_board_abort_local, zp_local_leave, zp_local_board_bytes, NULL, NULL);
static const zp_transport_row zp_process_row = {ZERO_COMM_LOCAL, &zp_process_transport, ""};

/* shared_memory.h - how ranks of one machine see each other's memory

   Ranks that are threads use ordinary memory, and exchange addresses. A single copy for all ranks
   is a memory file, so that your code can get a second, read-only mapping. process.h adds the
   memory of processes. */
#pragma once

#include "board.h"

/* How memory was allocated. OWN: by this rank; HELD: by an owner on the board; FILES: mapped. */
typedef enum zp_holder { ZP_NO_OWNER = 0, ZP_OWN, ZP_HELD, ZP_FILES, ZP_WINDOW, ZP_NCCL } zp_holder;

/* Allocates memory that no peer maps. Returns NULL without memory. */
static char *zp_shared_memory_alloc(zp_comm *g, zp_memory *m) {
    void *p =
        m->how & ZP_ON_HOST ? zp_device_alloc_host(m->bytes) : zp_device_alloc(g->device, m->bytes);
    m->holder = ZP_OWN;
    return m->base = m->view = m->peer[0] = (char *)p;
}

/* Frees memory of kinds OWN and FILES. */
static void zp_shared_memory_free(zp_memory *m) {
    if (m->holder == ZP_OWN && m->how & ZP_ON_HOST) zp_device_free_host(m->base);
    if (m->holder == ZP_OWN && !(m->how & ZP_ON_HOST)) zp_device_free(m->base);
    for (int p = 0; p < ZP_LOCAL_MAX && m->holder == ZP_FILES; p++)
        if (m->peer[p] && (!(m->how & ZP_ONE) || p == 0)) (void)munmap(m->peer[p], m->bytes);
    if (m->holder == ZP_FILES && m->view && m->view != m->base) (void)munmap(m->view, m->bytes);
    memset(m->peer, 0, sizeof m->peer);
    m->base = m->view = NULL;
    m->holder = ZP_NO_OWNER;
}

static int zp_shared_memory_make_file(size_t bytes) {
    const int fd = (int)syscall(SYS_memfd_create, "zero", 1u /* close on exec */);
    if (fd < 0 || !ftruncate(fd, (off_t)bytes)) return fd;
    (void)close(fd);
    return -1;
}

static char *zp_shared_memory_map_file(int fd, size_t bytes, int writes) {
    const int how = writes ? PROT_READ | PROT_WRITE : PROT_READ;
    void *p = fd < 0 ? MAP_FAILED : mmap(NULL, bytes, how, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) return NULL;
    zp_huge(p, bytes);
    return (char *)p;
}

/* Maps the piece of place p, and a read-only view of a single copy. Returns 1 on success. */
static int zp_shared_memory_map_piece(zp_memory *m, int p, int fd) {
    m->holder = ZP_FILES;
    m->peer[p] = zp_shared_memory_map_file(fd, m->bytes, 1);
    if (m->how == ZP_ONE) m->view = zp_shared_memory_map_file(fd, m->bytes, 0);
    return m->peer[p] && (m->how != ZP_ONE || m->view);
}

static void zp_shared_memory_free_owner(zp_shared_memory_owner *h) {
    while (h) {
        zp_shared_memory_owner *next = h->next;
        zp_shared_memory_free(&h->memory);
        free(h);
        h = next;
    }
}

/* Allocates memory of threads, owned by the list. A single copy of the CPU's is a mapped file. */
static zp_shared_memory_owner *zp_shared_memory_make_owner(zp_comm *g,
                                                           zp_shared_memory_owner **list,
                                                           const zp_memory *wanted) {
    zp_shared_memory_owner *h = (zp_shared_memory_owner *)calloc(1, sizeof *h);
    if (!h) return NULL;
    zp_memory *m = &h->memory;
    m->bytes = wanted->bytes;
    m->how = wanted->how;
    const int file = zp_device_is_host() && m->how == ZP_ONE;
    const int fd = file ? zp_shared_memory_make_file(m->bytes) : -1;
    const int ok =
        file ? zp_shared_memory_map_piece(m, 0, fd) : zp_shared_memory_alloc(g, m) != NULL;
    m->base = m->peer[0];
    if (fd >= 0) (void)close(fd);
    if (!ok) {
        zp_shared_memory_free_owner(h);
        return NULL;
    }
    h->next = __atomic_load_n(list, __ATOMIC_ACQUIRE);
    while (!__atomic_compare_exchange_n(list, &h->next, h, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    }
    return h;
}

/* Opens memory of ranks that are threads. The first such memory is the board itself. */
static zero_result zp_shared_memory_open_threads(zp_comm *g, zp_memory *m) {
    const zp_local_ranks *s = zp_board_ranks_of(g);
    zp_shared_memory_owner *mine = NULL, **theirs = (zp_shared_memory_owner **)(void *)g->mail;
    if (!(m->how & ZP_ONE) || s->me == 0)
        mine = zp_shared_memory_make_owner(g, s->board ? &s->board->pieces : &s->local->boards, m);
    if (mine && !s->board) {
        zp_board *board = (zp_board *)(void *)mine->memory.base;
        board->self = mine;
        board->users = (uint32_t)s->n;
    }
    ZP_TRY(zp_comm_exchange(g, &mine, sizeof mine));
    for (int p = 0; p < s->n; p++) {
        const zp_shared_memory_owner *h = theirs[m->how & ZP_ONE ? 0 : p];
        if (!h) return ZERO_ERR_MEMORY; /* on all ranks alike */
        m->peer[p] = h->memory.base;
        if (p == s->me) m->view = h->memory.view;
    }
    m->base = m->peer[s->me];
    m->holder = ZP_HELD;
    return ZERO_OK;
}

/* Closes a board of threads for one rank. The last rank frees the memory of all its ranks. */
static void zp_shared_memory_close_board(zp_board *b) {
    if (__atomic_sub_fetch(&b->users, 1, __ATOMIC_ACQ_REL)) return;
    zp_shared_memory_owner *self = b->self; /* stays in the group's list, empty */
    for (int i = 0; i < 2 * ZP_CONTROL * ZP_LOCAL_MAX; i++)
        zp_device_close_event(&b->streams[0][0][0] + i);
    zp_shared_memory_free_owner(b->pieces);
    zp_shared_memory_free(&self->memory);
}

/* Frees all boards of a zero_local, with the memory that failed ranks left on them. */
static void zp_shared_memory_free_boards(zero_local *local) {
    for (zp_shared_memory_owner *h = local->boards; h; h = h->next)
        if (h->memory.holder)
            zp_shared_memory_free_owner(((zp_board *)(void *)h->memory.base)->pieces);
    zp_shared_memory_free_owner(local->boards);
    local->boards = NULL;
}

/* Opens memory that the ranks of this process share. The board is the first. */
static zero_result zp_shared_memory_open(zp_comm *g, zp_memory *m) {
    if (g->nranks > 1) return zp_shared_memory_open_threads(g, m);
    return zp_shared_memory_alloc(g, m) ? ZERO_OK : ZERO_ERR_MEMORY;
}

/* Opens the context's own board, before all other memory. COLLECTIVE. */
static zero_result zp_shared_memory_open_board(zp_comm *g) {
    zp_local_ranks *s = zp_board_ranks_of(g);
    const zero_result r =
        zp_comm_open_memory(g, &s->board_memory, sizeof(zp_board), ZP_ONE | ZP_ON_HOST);
    if (r) return zp_comm_fail(g, r, "memory that all ranks of the machine share");
    s->board = (zp_board *)(void *)s->board_memory.base;
    return ZERO_OK;
}

/* Marks this rank as gone, for peers that wait for it, and frees its memory, the board last. */
static void zp_shared_memory_close(zp_comm *g) {
    zp_local_ranks *s = zp_board_ranks_of(g);
    if (s->board) __atomic_store_n(&s->board->left[s->me], 1, __ATOMIC_RELEASE);
    for (zp_memory *m = g->first; m; m = m->next) {
        if (m == &s->board_memory && m->holder == ZP_HELD) zp_shared_memory_close_board(s->board);
        zp_shared_memory_free(m);
    }
    s->board = NULL;
}

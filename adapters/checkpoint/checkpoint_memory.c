/* checkpoint_memory.c - generations without a disk: files in the memory of the process that starts
   the ranks. They have no names. A forked rank inherits the descriptors, and opens the files by
   their numbers in /proc/self/fd. All else is as in FORMAT.md: reads are verified, and any number
   of ranks can load.

       slot 0   manifest, shard of rank 0, of rank 1, ...     complete while step[0] is not -1
       slot 1   the same; one slot is written while the other is complete */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "checkpoint_inside.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Shared by all ranks and the process that made it. Ranks meet before and after each write. */
struct checkpoint_memory {
    int ranks;
    int64_t step[CK_SLOTS]; /* -1: incomplete */
    int file[];             /* [CK_SLOTS][1 + ranks] descriptors: the manifest's, then the ranks' */
};

static size_t ck_memory_bytes(int ranks) {
    return sizeof(checkpoint_memory) + CK_SLOTS * (size_t)(1 + ranks) * sizeof(int);
}

static int ck_memory_file(const checkpoint_memory *m, int slot, int rank) {
    return m->file[slot * (1 + m->ranks) + 1 + rank];
}

checkpoint_memory *checkpoint_memory_create(int ranks) {
    void *shared = mmap(NULL, ck_memory_bytes(ranks), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return NULL;
    checkpoint_memory *m = (checkpoint_memory *)shared;
    const int files = CK_SLOTS * (1 + ranks);
    int made = 0;
    m->ranks = ranks;
    for (int slot = 0; slot < CK_SLOTS; slot++) m->step[slot] = -1;
    for (int i = 0; i < files; i++) {
        m->file[i] = (int)syscall(SYS_memfd_create, "checkpoint", 1u /* close on exec */);
        made += m->file[i] >= 0;
    }
    if (made == files) return m;
    checkpoint_memory_destroy(m);
    return NULL;
}

void checkpoint_memory_destroy(checkpoint_memory *m) {
    if (m == NULL) return;
    for (int i = 0; i < CK_SLOTS * (1 + m->ranks); i++)
        if (m->file[i] >= 0) (void)close(m->file[i]);
    (void)munmap(m, ck_memory_bytes(m->ranks));
}

uint64_t checkpoint_memory_taken(const checkpoint_memory *m) {
    uint64_t taken = 0;
    for (int i = 0; i < CK_SLOTS * (1 + m->ranks); i++) {
        struct stat file;
        if (fstat(m->file[i], &file) == 0) taken += (uint64_t)file.st_blocks * 512;
    }
    return taken;
}

int ck_memory_find(const checkpoint_memory *m, int64_t step) {
    int found = -1;
    for (int i = 0; i < CK_SLOTS; i++)
        if (m->step[i] >= 0 && (step < 0 || m->step[i] == step)
            && (found < 0 || m->step[i] > m->step[found]))
            found = i;
    return found;
}

checkpoint_result ck_memory_list(const checkpoint_memory *m, checkpoint_generation **list, int *n,
                                 ck_error *e) {
    const int newest = ck_memory_find(m, -1);
    *list = (checkpoint_generation *)calloc(CK_SLOTS, sizeof **list);
    if (*list == NULL) return ck_fail(e, CHECKPOINT_MEMORY, "no memory for a list of copies");
    for (int i = 0; i < CK_SLOTS && newest >= 0; i++) {
        const int slot = (newest + i) % CK_SLOTS;
        if (m->step[slot] < 0) continue;
        (*list)[*n].step = m->step[slot];
        (void)snprintf((*list)[(*n)++].name, sizeof(*list)->name, "fd");
    }
    return CHECKPOINT_OK;
}

void ck_memory_name(char out[CK_NAME], const checkpoint_memory *m, int slot, int rank) {
    (void)snprintf(out, CK_NAME, "%d", ck_memory_file(m, slot, rank));
}

checkpoint_result ck_memory_begin(checkpoint_memory *m, int slot, int ranks, ck_error *e) {
    __atomic_store_n(&m->step[slot], -1, __ATOMIC_RELEASE);
    if (ranks > m->ranks)
        return ck_fail(e, CHECKPOINT_ARGUMENT, "copies in memory are for %d ranks, found %d",
                       m->ranks, ranks);
    for (int r = ranks; r < m->ranks; r++) /* files of ranks that no longer exist */
        if (ftruncate(ck_memory_file(m, slot, r), 0))
            return ck_fail_errno(e, "cannot give back a copy of rank %d", r);
    return CHECKPOINT_OK;
}

checkpoint_result ck_memory_map(const checkpoint_memory *m, int slot, int rank, uint64_t bytes,
                                char **out, ck_error *e) {
    const int file = ck_memory_file(m, slot, rank);
    if (ftruncate(file, (off_t)bytes))
        return ck_fail_errno(e, "no memory for a copy of %" PRIu64 " bytes", bytes);
    void *at = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (at == MAP_FAILED)
        return ck_fail_errno(e, "no memory for a copy of %" PRIu64 " bytes", bytes);
    *out = (char *)at;
    return CHECKPOINT_OK;
}

void ck_memory_commit(checkpoint_memory *m, int slot, int64_t step) {
    __atomic_store_n(&m->step[slot], step, __ATOMIC_RELEASE);
}

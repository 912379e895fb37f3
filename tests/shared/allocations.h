/* allocations.h - includes the plugin with every call that gets memory, files or threads led
   through here, where it is counted, and where the k-th of them can be made to fail. A thread of a
   rank says whose book it writes in; threads that the plugin makes write in none, and are not
   expected to. */
#ifndef TEST_ALLOCATIONS_H
#define TEST_ALLOCATIONS_H

#include "harness.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>

typedef struct alloc_book {
    long calls, fail_at; /* fail_at: 1 is the next call; 0: none fails */
    long failed;         /* calls that were made to fail */
    long bytes; /* got by this rank less given back by it: a peer may give back what it got */
    long pieces, maps, files; /* not given back */
    long file_bytes;          /* of memory files, which count for who makes them */
} alloc_book;

static _Thread_local alloc_book *alloc_mine;
static long alloc_strangers; /* calls of threads without a book */

/* Sizes of what is out, by address: open addressing, a lock. */
enum { ALLOC_SLOTS = 1 << 16 };
static struct {
    void *p;
    size_t bytes;
} alloc_slot[ALLOC_SLOTS];
static pthread_mutex_t alloc_lock = PTHREAD_MUTEX_INITIALIZER;

static size_t alloc_find(const void *p) {
    size_t i = (size_t)test_mix((uint64_t)(uintptr_t)p) % ALLOC_SLOTS;
    while (alloc_slot[i].p && alloc_slot[i].p != p) i = (i + 1) % ALLOC_SLOTS;
    return i;
}

/* 1: this call must fail. */
static int alloc_refused(void) {
    alloc_book *b = alloc_mine;
    if (!b) {
        __atomic_add_fetch(&alloc_strangers, 1, __ATOMIC_RELAXED);
        return 0;
    }
    if (++b->calls != b->fail_at) return 0;
    b->failed++;
    errno = ENOMEM;
    return 1;
}

static void *alloc_note(void *p, size_t bytes) {
    if (!p) return NULL;
    pthread_mutex_lock(&alloc_lock);
    const size_t i = alloc_find(p);
    alloc_slot[i].p = p;
    alloc_slot[i].bytes = bytes;
    pthread_mutex_unlock(&alloc_lock);
    if (alloc_mine) {
        alloc_mine->bytes += (long)bytes;
        alloc_mine->pieces++;
    }
    return p;
}

static void alloc_forget(void *p) {
    if (!p) return;
    pthread_mutex_lock(&alloc_lock);
    size_t i = alloc_find(p);
    const size_t bytes = alloc_slot[i].bytes;
    alloc_slot[i].p = NULL;
    for (size_t k = (i + 1) % ALLOC_SLOTS; alloc_slot[k].p;
         k = (k + 1) % ALLOC_SLOTS) { /* close the gap */
        void *q = alloc_slot[k].p;
        const size_t size = alloc_slot[k].bytes;
        alloc_slot[k].p = NULL;
        i = alloc_find(q);
        alloc_slot[i].p = q;
        alloc_slot[i].bytes = size;
    }
    pthread_mutex_unlock(&alloc_lock);
    if (alloc_mine) {
        alloc_mine->bytes -= (long)bytes;
        alloc_mine->pieces--;
    }
}

static void *alloc_malloc(size_t n) { return alloc_refused() ? NULL : alloc_note(malloc(n), n); }
static void *alloc_calloc(size_t n, size_t size) {
    return alloc_refused() ? NULL : alloc_note(calloc(n, size), n * size);
}
static char *alloc_strdup(const char *s) {
    return alloc_refused() ? NULL : (char *)alloc_note(strdup(s), strlen(s) + 1);
}
static void alloc_free(void *p) {
    alloc_forget(p);
    free(p);
}
static void *alloc_realloc(void *p, size_t n) {
    if (alloc_refused()) return NULL;
    alloc_forget(p);
    return alloc_note(realloc(p, n), n);
}
static int alloc_posix_memalign(void **p, size_t align, size_t n) {
    if (alloc_refused()) return ENOMEM;
    const int code = posix_memalign(p, align, n);
    if (!code) (void)alloc_note(*p, n);
    return code;
}
static void *alloc_mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset) {
    if (alloc_refused()) return MAP_FAILED;
    void *p = mmap(at, n, protection, flags, fd, offset);
    if (p != MAP_FAILED && alloc_mine) alloc_mine->maps++;
    return p;
}
static int alloc_munmap(void *p, size_t n) {
    if (alloc_mine) alloc_mine->maps--;
    return munmap(p, n);
}
static int alloc_ftruncate(int fd, off_t bytes) {
    if (alloc_refused()) return -1;
    if (alloc_mine) alloc_mine->file_bytes += (long)bytes;
    return ftruncate(fd, bytes);
}
static int alloc_open(const char *path, int flags, int mode, ...) { /* mode: or nothing */
    if (alloc_refused()) return -1;
    const int fd = open(path, flags, mode);
    if (fd >= 0 && alloc_mine) alloc_mine->files++;
    return fd;
}
static int alloc_close(int fd) {
    if (alloc_mine) alloc_mine->files--;
    return close(fd);
}
static long alloc_file(long fd) {
    if (fd >= 0 && alloc_mine) alloc_mine->files++;
    return fd;
}
static int alloc_pthread_create(pthread_t *thread, const pthread_attr_t *attr,
                                void *(*work)(void *), void *arg) {
    return alloc_refused() ? EAGAIN : pthread_create(thread, attr, work, arg);
}

#define malloc(n)       alloc_malloc(n)
#define calloc(n, size) alloc_calloc(n, size)
#define realloc(p, n)   alloc_realloc(p, n)
#undef strdup
#define strdup(s)                                  alloc_strdup(s)
#define free(p)                                    alloc_free(p)
#define posix_memalign(p, align, n)                alloc_posix_memalign(p, align, n)
#define aligned_alloc(align, n)                    this_way_to_memory_is_not_counted
#define mmap(at, n, protection, flags, fd, offset) alloc_mmap(at, n, protection, flags, fd, offset)
#define munmap(p, n)                               alloc_munmap(p, n)
#define ftruncate(fd, n)                           alloc_ftruncate(fd, n)
#define open(path, ...)                            alloc_open(path, __VA_ARGS__, 0, 0)
#define close(fd)                                  alloc_close(fd)
#define pthread_create(thread, attr, work, arg)    alloc_pthread_create(thread, attr, work, arg)
#define syscall(number, ...)                                                                       \
    ((number) != SYS_memfd_create ? syscall(number, __VA_ARGS__)                                   \
     : alloc_refused()            ? -1L                                                            \
                                  : alloc_file(syscall(number, __VA_ARGS__)))

#include "../../zero_plugin.cu"

#undef malloc
#undef calloc
#undef realloc
#undef strdup
#undef free
#undef posix_memalign
#undef aligned_alloc
#undef mmap
#undef munmap
#undef ftruncate
#undef open
#undef close
#undef pthread_create
#undef syscall
#endif

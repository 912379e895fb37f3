/* allocations.h - counts every call by which the plugin gets memory, files or threads, and makes
   the k-th of them fail. The linker leads these calls here (--wrap; COUNTED in the Makefile), so
   the plugin's object is the one that other programs link. This file's own names for the system's
   calls, and the macros below, keep the test's calls out of the counts. A thread of a rank says in
   which book its calls are counted; threads that the plugin makes have no book, and are not
   expected to call. */
#ifndef TEST_ALLOCATIONS_H
#define TEST_ALLOCATIONS_H

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
char *__real_strdup(const char *s);
void __real_free(void *p);
int __real_posix_memalign(void **p, size_t align, size_t n);
void *__real_mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset);
int __real_munmap(void *p, size_t n);
int __real_ftruncate(int fd, off_t bytes);
int __real_open(const char *path, int flags, ...);
int __real_close(int fd);
long __real_syscall(long number, ...);
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*work)(void *),
                          void *arg);
#define malloc(n)                                  __real_malloc(n)
#define calloc(n, size)                            __real_calloc(n, size)
#define realloc(p, n)                              __real_realloc(p, n)
#define free(p)                                    __real_free(p)
#define mmap(at, n, protection, flags, fd, offset) __real_mmap(at, n, protection, flags, fd, offset)
#define munmap(p, n)                               __real_munmap(p, n)
#define pthread_create(thread, attr, work, arg)    __real_pthread_create(thread, attr, work, arg)
#include "harness.h"

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

/* ---- what the plugin calls; aligned_alloc has no function here, so its use fails to link ---- */

void *__wrap_malloc(size_t n) { return alloc_refused() ? NULL : alloc_note(malloc(n), n); }
void *__wrap_calloc(size_t n, size_t size) {
    return alloc_refused() ? NULL : alloc_note(calloc(n, size), n * size);
}
char *__wrap_strdup(const char *s) {
    return alloc_refused() ? NULL : (char *)alloc_note(__real_strdup(s), strlen(s) + 1);
}
void __wrap_free(void *p) {
    alloc_forget(p);
    free(p);
}
void *__wrap_realloc(void *p, size_t n) {
    if (alloc_refused()) return NULL;
    alloc_forget(p);
    return alloc_note(realloc(p, n), n);
}
int __wrap_posix_memalign(void **p, size_t align, size_t n) {
    if (alloc_refused()) return ENOMEM;
    const int code = __real_posix_memalign(p, align, n);
    if (!code) (void)alloc_note(*p, n);
    return code;
}
void *__wrap_mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset) {
    if (alloc_refused()) return MAP_FAILED;
    void *p = mmap(at, n, protection, flags, fd, offset);
    if (p != MAP_FAILED && alloc_mine) alloc_mine->maps++;
    return p;
}
int __wrap_munmap(void *p, size_t n) {
    if (alloc_mine) alloc_mine->maps--;
    return munmap(p, n);
}
int __wrap_ftruncate(int fd, off_t bytes) {
    if (alloc_refused()) return -1;
    if (alloc_mine) alloc_mine->file_bytes += (long)bytes;
    return __real_ftruncate(fd, bytes);
}
static int alloc_note_file(int fd) {
    if (fd >= 0 && alloc_mine) alloc_mine->files++;
    return fd;
}
int __wrap_open(const char *path, int flags, ...) {
    va_list list;
    va_start(list, flags);
    const int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, int) : 0;
    va_end(list);
    return alloc_refused() ? -1 : alloc_note_file(__real_open(path, flags, mode));
}
int __wrap_close(int fd) {
    if (alloc_mine) alloc_mine->files--;
    return __real_close(fd);
}
long __wrap_syscall(long number, ...) {
    long x[6];
    va_list list;
    va_start(list, number);
    for (int i = 0; i < 6; i++) x[i] = va_arg(list, long);
    va_end(list);
    if (number == SYS_memfd_create && alloc_refused()) return -1;
    const long result = __real_syscall(number, x[0], x[1], x[2], x[3], x[4], x[5]);
    return number == SYS_memfd_create ? alloc_note_file((int)result) : result;
}
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*work)(void *),
                          void *arg) {
    return alloc_refused() ? EAGAIN : pthread_create(thread, attr, work, arg);
}
#endif

/* checkpoint_base.c - error sentences, sizes, bytes and threads for this folder. */
#include "checkpoint_inside.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- sentences ---- */

checkpoint_result ck_fail(ck_error *e, checkpoint_result code, const char *format, ...) {
    va_list list;
    va_start(list, format);
    (void)vsnprintf(e->text, sizeof e->text, format, list);
    va_end(list);
    e->code = code;
    e->number = 0;
    return code;
}

checkpoint_result ck_fail_errno(ck_error *e, const char *format, ...) {
    const int number = errno;
    va_list list;
    va_start(list, format);
    const int n = vsnprintf(e->text, sizeof e->text, format, list);
    va_end(list);
    if (n >= 0 && (size_t)n < sizeof e->text) {
        char *to = e->text + n;
        (void)snprintf(to, sizeof e->text - (size_t)n, ": %s", strerror(number));
    }
    e->code = number == ENOMEM ? CHECKPOINT_MEMORY : CHECKPOINT_FILES;
    e->number = number;
    errno = number;
    return e->code;
}

checkpoint_result ck_fail_read(ck_error *e, const char *path) {
    (void)ck_fail_errno(e, "cannot read %s", path);
    if (e->number == EIO) e->code = CHECKPOINT_DAMAGED;
    return e->code;
}

/* ---- sizes, bytes ---- */

checkpoint_result ck_path(char out[CK_PATH], const char *folder, const char *name, ck_error *e) {
    const int n = snprintf(out, CK_PATH, "%s/%s", folder, name);
    if (n < 0 || n >= CK_PATH)
        return ck_fail(e, CHECKPOINT_ARGUMENT,
                       "the path %.200s.../%s is too long; use a shorter folder name", folder,
                       name);
    return CHECKPOINT_OK;
}

uint64_t ck_hash(const void *bytes, size_t n) { return XXH3_64bits(bytes, n); }

double ck_now(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

uint64_t ck_round_up(uint64_t bytes, uint64_t to) { return (bytes + to - 1) / to * to; }

uint64_t ck_table_bytes(uint64_t image_bytes) {
    return ck_round_up(ck_round_up(image_bytes, CK_BLOCK) / CK_BLOCK * sizeof(uint64_t), CK_PAGE);
}

uint64_t ck_file_bytes(uint64_t image_bytes) { return image_bytes + ck_table_bytes(image_bytes); }

void *ck_pages_alloc(size_t bytes) {
    return aligned_alloc(CK_PAGE, (size_t)ck_round_up(bytes ? bytes : 1, CK_PAGE));
}

void ck_little_endian(void *elements, zero_type type, size_t n) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    const size_t size = zero_type_bytes(type);
    char *at = (char *)elements;
    for (size_t i = 0; i < n; i++, at += size)
        for (size_t k = 0; k < size / 2; k++) {
            const char c = at[k];
            at[k] = at[size - 1 - k];
            at[size - 1 - k] = c;
        }
#else
    (void)elements;
    (void)type;
    (void)n;
#endif
}

/* ---- input and output ---- */

/* A file system may accept O_DIRECT at open and fail later. Returns 1 if the caller should retry.
 */
static int ck_again(int fd, int *direct) {
    if (errno == EINTR) return 1;
    if (errno != EINVAL || !*direct) return 0;
    *direct = 0;
    return fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_DIRECT) == 0;
}

int ck_write_all(int fd, const char *from, size_t n, int *direct) {
    while (n) {
        const ssize_t done = write(fd, from, n);
        if (done < 0 && ck_again(fd, direct)) continue;
        if (done <= 0) return -1;
        from += done;
        n -= (size_t)done;
        if (*direct && (size_t)done % CK_PAGE) /* a full disk; the next call reports it */
            *direct = fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_DIRECT) != 0;
    }
    return 0;
}

int ck_read_all(int fd, uint64_t at, char *to, size_t n, int *direct) {
    while (n) {
        const ssize_t done = pread(fd, to, n, (off_t)at);
        if (done < 0 && ck_again(fd, direct)) continue;
        if (done <= 0) return (int)done;
        to += done;
        at += (uint64_t)done;
        n -= (size_t)done;
    }
    return 1;
}

/* ---- threads ---- */

/* Only the caller's own threads get signals. */
int ck_thread_start(pthread_t *thread, void *(*body)(void *), void *arg) {
    sigset_t all, before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    const int failed = pthread_create(thread, NULL, body, arg);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}

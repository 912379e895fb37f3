/* faulty_io.c - preloaded into a program, lets the k-th call of a kind fail, once, with a given
   errno ("late", "slow": the k-th call of all that open, read or change files comes so many ms
   later; "creep": every removal does), and counts the memory that is in use. glibc only;
   test_checkpoint_faults.sh builds and uses it. The program declares these weak: void
   faulty_arm(const char *kind, long k, int number) - k 0: nothing fails long faulty_fired(void) -
   how often it did since then long faulty_live(void) - blocks of memory in use */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *p, size_t bytes);
void *__libc_memalign(size_t align, size_t bytes);
void __libc_free(void *p);

void faulty_arm(const char *kind, long k, int number);
long faulty_fired(void);
long faulty_live(void);

static const char *_Atomic armed; /* the kind */
static atomic_long left, fired, live;
static atomic_int number_to_give;

void faulty_arm(const char *kind, long k, int number) {
    atomic_store(&armed, NULL);
    atomic_store(&left, k);
    atomic_store(&fired, 0);
    atomic_store(&number_to_give, number);
    if (k > 0) atomic_store(&armed, kind);
}
long faulty_fired(void) { return atomic_load(&fired); }
long faulty_live(void) { return atomic_load(&live); }

/* This call is the one. */
static int fails(const char *kind) {
    const char *k = atomic_load(&armed);
    if (k == NULL || strcmp(k, kind) != 0 || atomic_fetch_sub(&left, 1) != 1) return 0;
    atomic_fetch_add(&fired, 1);
    errno = atomic_load(&number_to_give);
    return 1;
}

static void nap(void) {
    const int ms = atomic_load(&number_to_give);
    const struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    (void)nanosleep(&t, NULL);
}

static void late(void) {
    if (fails("late") || fails("slow")) nap();
}

static void creep(void) {
    const char *k = atomic_load(&armed);
    if (k != NULL && strcmp(k, "creep") == 0) nap();
}

#define REAL(name) (__extension__(__typeof__(&name)) dlsym(RTLD_NEXT, #name))

/* ---- memory ---- */

static void *counted(void *p) {
    if (p) atomic_fetch_add(&live, 1);
    return p;
}
void *malloc(size_t bytes) { return fails("memory") ? NULL : counted(__libc_malloc(bytes)); }
void *calloc(size_t n, size_t bytes) {
    return fails("memory") ? NULL : counted(__libc_calloc(n, bytes));
}
void *realloc(void *p, size_t bytes) {
    if (fails("memory")) return NULL;
    return p ? __libc_realloc(p, bytes) : counted(__libc_realloc(p, bytes));
}
void *aligned_alloc(size_t align, size_t bytes) {
    return fails("memory") ? NULL : counted(__libc_memalign(align, bytes));
}
void *memalign(size_t align, size_t bytes) {
    return fails("memory") ? NULL : counted(__libc_memalign(align, bytes));
}
int posix_memalign(void **p, size_t align, size_t bytes) {
    *p = fails("memory") ? NULL : counted(__libc_memalign(align, bytes));
    return *p ? 0 : ENOMEM;
}
void free(void *p) {
    if (p) atomic_fetch_sub(&live, 1);
    __libc_free(p);
}

/* ---- files ---- */

int open(const char *path, int flags, ...) {
    va_list list;
    va_start(list, flags);
    const mode_t mode = flags & O_CREAT ? va_arg(list, mode_t) : 0;
    va_end(list);
    late();
    if (flags & O_DIRECT && fails("direct")) return -1;
    return fails("open") ? -1 : REAL(open)(path, flags, mode);
}
int close(int fd) { /* reports, and closes all the same, as systems do */
    const int failed = fails("close");
    late();
    const int r = REAL(close)(fd);
    if (failed) errno = atomic_load(&number_to_give);
    return failed ? -1 : r;
}
ssize_t write(int fd, const void *p, size_t n) {
    late();
    if (fails("write")) { /* half of it is written before, as on a full disk */
        (void)!REAL(write)(fd, p, n / 2 / 4096 * 4096);
        errno = atomic_load(&number_to_give);
        return -1;
    }
    if (fails("short") && n > 4096) return REAL(write)(fd, p, n / 2 / 4096 * 4096);
    return REAL(write)(fd, p, n);
}
ssize_t read(int fd, void *p, size_t n) {
    late();
    return fails("read") ? -1 : REAL(read)(fd, p, n);
}
ssize_t pread(int fd, void *p, size_t n, off_t at) {
    late();
    return fails("read") ? -1 : REAL(pread)(fd, p, n, at);
}
int fsync(int fd) {
    late();
    return fails("fsync") ? -1 : REAL(fsync)(fd);
}
int rename(const char *from, const char *to) {
    late();
    return fails("rename") ? -1 : REAL(rename)(from, to);
}
int renameat2(int a, const char *from, int b, const char *to, unsigned flags) {
    return fails("rename") || fails("exchange") ? -1 : REAL(renameat2)(a, from, b, to, flags);
}
int mkdir(const char *path, mode_t mode) {
    late();
    return fails("mkdir") ? -1 : REAL(mkdir)(path, mode);
}
int unlink(const char *path) {
    late();
    creep();
    return fails("unlink") ? -1 : REAL(unlink)(path);
}
int rmdir(const char *path) { return fails("unlink") ? -1 : REAL(rmdir)(path); }
int fstat(int fd, struct stat *is) { return fails("stat") ? -1 : REAL(fstat)(fd, is); }
int statvfs(const char *path, struct statvfs *is) {
    if (!fails("full")) return REAL(statvfs)(path, is);
    memset(is, 0, sizeof *is);
    is->f_bavail = 3;
    is->f_frsize = 1024;
    return 0;
}
DIR *opendir(const char *path) {
    late();
    return fails("opendir") ? NULL : REAL(opendir)(path);
}
struct dirent *readdir(DIR *dir) {
    return fails("readdir") ? NULL : REAL(readdir)(dir);
}

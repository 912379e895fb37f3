/* mallocs.c - preloaded into a program, counts who calls malloc: the program itself, and libraries.
   At the end of the process a line goes to the file that MALLOCS names, with the process's number:
   `program N library M`. glibc only; tests/trainer/test_allocations.sh builds and uses it. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <unistd.h>

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *p, size_t bytes);
void *__libc_memalign(size_t align, size_t bytes);

static atomic_long by_program, by_library;
static const void *program; /* where the program was loaded */

static void count(const void *caller) {
    Dl_info info;
    const int known = program && dladdr(caller, &info);
    atomic_fetch_add(known && info.dli_fbase == program ? &by_program : &by_library, 1);
}

void *malloc(size_t bytes) {
    count(__builtin_return_address(0));
    return __libc_malloc(bytes);
}
void *calloc(size_t n, size_t bytes) {
    count(__builtin_return_address(0));
    return __libc_calloc(n, bytes);
}
void *realloc(void *p, size_t bytes) {
    count(__builtin_return_address(0));
    return __libc_realloc(p, bytes);
}
void *aligned_alloc(size_t align, size_t bytes) {
    count(__builtin_return_address(0));
    return __libc_memalign(align, bytes);
}
int posix_memalign(void **p, size_t align, size_t bytes) {
    count(__builtin_return_address(0));
    *p = __libc_memalign(align, bytes);
    return *p ? 0 : ENOMEM;
}

__attribute__((constructor)) static void begin(void) {
    Dl_info info;
    if (dladdr((void *)getauxval(AT_ENTRY), &info)) program = info.dli_fbase;
}

__attribute__((destructor)) static void end(void) {
    char line[128], path[512];
    const char *name = getenv("MALLOCS");
    if (!name) return;
    const int n = snprintf(line, sizeof line, "program %ld library %ld\n", atomic_load(&by_program),
                           atomic_load(&by_library));
    (void)snprintf(path, sizeof path, "%s.%d", name, (int)getpid());
    const int fd = open(path, O_CREAT | O_WRONLY | O_APPEND, 0666);
    if (fd < 0 || write(fd, line, (size_t)n) != n) _exit(125);
    (void)close(fd);
}

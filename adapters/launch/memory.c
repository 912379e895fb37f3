/* memory.c - see memory.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MEMORY_PATH = 4096 };

/* ---- small files --------------------------------------------------------------------------- */

/* Returns the number after `key` at the start of a line, or with key "" the first number of the
   file. Returns UINT64_MAX for "max", and if the file or the line does not exist. */
static uint64_t memory_read(const char *path, const char *key) {
    char line[512];
    uint64_t value = UINT64_MAX;
    FILE *file = fopen(path, "r");
    if (file == NULL) return value;
    while (fgets(line, sizeof line, file) != NULL) {
        char *end = line;
        size_t length = strlen(key);
        if (strncmp(line, key, length) != 0) continue;
        unsigned long long number = strtoull(line + length, &end, 10);
        if (end != line + length) value = (uint64_t)number;
        break;
    }
    fclose(file);
    return value;
}

static void memory_lower(launch_memory *memory, uint64_t bytes, const char *limit) {
    if (bytes >= memory->bytes) return;
    memory->bytes = bytes;
    snprintf(memory->limit, sizeof memory->limit, "%s", limit);
}

/* ---- control groups ------------------------------------------------------------------------ */

/* One of the two versions of control groups, with its names of files. */
typedef struct memory_cgroup {
    const char *limit, *usage, *dropped; /* files, and the line of memory.stat for file cache */
    char mount[MEMORY_PATH];             /* where the hierarchy is mounted; "": not mounted */
    char top[MEMORY_PATH];               /* the group that is mounted there */
    char path[MEMORY_PATH];              /* path of this process's group */
} memory_cgroup;

static int memory_is_listed(const char *list, const char *word) {
    size_t length = strlen(word);
    for (const char *at = strstr(list, word); at != NULL; at = strstr(at + 1, word))
        if ((at == list || at[-1] == ',') && (at[length] == ',' || at[length] == 0)) return 1;
    return 0;
}

/* Reads the groups of this process from lines "ID:CONTROLLERS:PATH". Version 2 has "0::PATH". */
static void memory_find_groups(const char *root, memory_cgroup *v1, memory_cgroup *v2) {
    char line[MEMORY_PATH + 256], name[MEMORY_PATH];
    snprintf(name, sizeof name, "%s/proc/self/cgroup", root);
    FILE *file = fopen(name, "r");
    if (file == NULL) return;
    while (fgets(line, sizeof line, file) != NULL) {
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':');
        char *path = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
        if (path == NULL) continue;
        *path++ = 0;
        controllers++;
        memory_cgroup *group = controllers[0] == 0                       ? v2
                               : memory_is_listed(controllers, "memory") ? v1
                                                                         : NULL;
        if (group != NULL) snprintf(group->path, sizeof group->path, "%.4000s", path);
    }
    fclose(file);
}

/* Reads mounts from lines "ID PARENT DEVICE TOP MOUNT OPTIONS... - TYPE SOURCE SUPEROPTIONS". */
static void memory_find_mounts(const char *root, memory_cgroup *v1, memory_cgroup *v2) {
    char line[2 * MEMORY_PATH], name[MEMORY_PATH];
    snprintf(name, sizeof name, "%s/proc/self/mountinfo", root);
    FILE *file = fopen(name, "r");
    if (file == NULL) return;
    while (fgets(line, sizeof line, file) != NULL) {
        char top[1024], mount[1024], type[32], options[1024];
        const char *rest = strstr(line, " - ");
        if (rest == NULL || sscanf(line, "%*s %*s %*s %1023s %1023s", top, mount) != 2) continue;
        if (sscanf(rest, " - %31s %*s %1023s", type, options) != 2) continue;
        memory_cgroup *group = strcmp(type, "cgroup2") == 0 ? v2
                               : strcmp(type, "cgroup") == 0 && memory_is_listed(options, "memory")
                                   ? v1
                                   : NULL;
        if (group == NULL) continue;
        snprintf(group->mount, sizeof group->mount, "%.2000s%s", root, mount);
        snprintf(group->top, sizeof group->top, "%s", strcmp(top, "/") == 0 ? "" : top);
    }
    fclose(file);
}

/* Reduces *memory to what the group in this folder leaves: its limit minus its usage. */
static void memory_apply_group(const memory_cgroup *group, const char *folder,
                               launch_memory *memory) {
    char path[MEMORY_PATH];
    snprintf(path, sizeof path, "%.3900s/%s", folder, group->limit);
    uint64_t limit = memory_read(path, "");
    if (limit > UINT64_MAX / 4) return; /* no limit: version 1 writes a huge number */
    char name[256];
    snprintf(name, sizeof name, "%s of the control group in %.180s", group->limit, folder);
    snprintf(path, sizeof path, "%.3900s/%s", folder, group->usage);
    uint64_t usage = memory_read(path, "");
    if (usage == UINT64_MAX) usage = 0;
    snprintf(path, sizeof path, "%.3900s/memory.stat", folder);
    uint64_t dropped = memory_read(path, group->dropped);
    if (dropped < usage) usage -= dropped;
    memory_lower(memory, limit > usage ? limit - usage : 0, name);
}

/* Does this for the process's group and all groups above it. If the path is not below the mount
   (another namespace), only the mounted group counts. */
static void memory_apply_groups(const memory_cgroup *group, launch_memory *memory) {
    char folder[MEMORY_PATH];
    size_t top = strlen(group->top), mount = strlen(group->mount);
    if (mount == 0) return;
    int below = strncmp(group->path, group->top, top) == 0;
    snprintf(folder, sizeof folder, "%.2000s%.2000s", group->mount, below ? group->path + top : "");
    for (;;) {
        size_t length = strlen(folder);
        while (length > mount && folder[length - 1] == '/') folder[--length] = 0;
        memory_apply_group(group, folder, memory);
        if (length <= mount) return;
        *strrchr(folder, '/') = 0;
    }
}

/* ---- public -------------------------------------------------------------------------------- */

void launch_memory_available(const char *root, launch_memory *memory) {
    char path[MEMORY_PATH];
    memory_cgroup v1, v2;
    memset(&v1, 0, sizeof v1);
    memset(&v2, 0, sizeof v2);
    v1.limit = "memory.limit_in_bytes";
    v1.usage = "memory.usage_in_bytes";
    v1.dropped = "total_inactive_file ";
    v2.limit = "memory.max";
    v2.usage = "memory.current";
    v2.dropped = "inactive_file ";
    memory->bytes = UINT64_MAX;
    memory->limit[0] = 0;
    snprintf(path, sizeof path, "%.4000s/proc/meminfo", root);
    uint64_t kib = memory_read(path, "MemAvailable:");
    if (kib < UINT64_MAX / 1024) memory_lower(memory, kib * 1024, "MemAvailable of /proc/meminfo");
    memory_find_groups(root, &v1, &v2);
    memory_find_mounts(root, &v1, &v2);
    memory_apply_groups(&v1, memory);
    memory_apply_groups(&v2, memory);
}

void launch_memory_tight(void) {
#ifdef __GLIBC__
    (void)mallopt(M_MMAP_THRESHOLD, 512 << 10);
    (void)mallopt(M_TRIM_THRESHOLD, 512 << 10);
    (void)malloc_trim(0);
#endif
}

uint64_t launch_memory_held(void) {
#ifdef __GLIBC__
    (void)malloc_trim(0);
#endif
    const uint64_t kib = memory_read("/proc/self/smaps_rollup", "Pss:");
    return kib < UINT64_MAX / 1024 ? kib * 1024 : 0;
}

void launch_memory_shared(const char *folder, launch_memory *memory) {
    struct statvfs space;
    memory->bytes = UINT64_MAX;
    memory->limit[0] = 0;
    if (statvfs(folder, &space) != 0) return;
    char name[256];
    snprintf(name, sizeof name, "free space of %.200s", folder);
    memory_lower(memory, (uint64_t)space.f_bavail * space.f_frsize, name);
}

/* Returns whether a memory file of this process can be opened through /proc, as other ranks do. */
static int memory_has_files(void) {
    int ok = 0;
    char path[64];
    const int made = (int)syscall(SYS_memfd_create, "launch", 1u /* close on exec */);
    if (made < 0) return 0;
    snprintf(path, sizeof path, "/proc/%ld/fd/%d", (long)getpid(), made);
    const int seen = ftruncate(made, 4096) == 0 ? open(path, O_RDWR | O_CLOEXEC) : -1;
    ok = seen >= 0;
    if (ok) close(seen);
    close(made);
    return ok;
}

static int memory_suffices(const launch *l, uint64_t need, const launch_memory *memory,
                           char sentence[LAUNCH_SENTENCE]) {
    const double mib = 1024.0 * 1024.0;
    uint64_t ranks = (uint64_t)l->local_ranks;
    if (need <= memory->bytes / ranks) return 1;
    snprintf(sentence, LAUNCH_SENTENCE,
             "%d rank%s of %.1f MiB each need %.1f MiB, but %.1f MiB are available: %s",
             l->local_ranks, l->local_ranks > 1 ? "s" : "", (double)need / mib,
             (double)need / mib * (double)ranks, (double)memory->bytes / mib, memory->limit);
    return 0;
}

/* Computes the limit of this rank's machine. */
static int memory_fits_here(const launch *l, uint64_t need, uint64_t shared,
                            char sentence[LAUNCH_SENTENCE]) {
    launch_memory memory;
    launch_memory_available("", &memory);
    if (!memory_suffices(l, need, &memory, sentence)) return 0;
    if (l->kind != LAUNCH_MPI || memory_has_files()) return 1;
    launch_memory_shared("/dev/shm", &memory);
    return memory_suffices(l, shared, &memory, sentence);
}

int launch_memory_fits(launch *l, uint64_t need, uint64_t shared) {
    char sentence[LAUNCH_SENTENCE];
    return launch_all(l, memory_fits_here(l, need, shared, sentence));
}

void launch_check_memory(launch *l, uint64_t need, uint64_t shared) {
    char sentence[LAUNCH_SENTENCE] = "";
    const int fits = memory_fits_here(l, need, shared, sentence);
    const size_t used = strlen(sentence);
    (void)snprintf(sentence + used, sizeof sentence - used,
                   "; zero_plan shows settings that need less");
    launch_agree(l, fits, sentence);
}

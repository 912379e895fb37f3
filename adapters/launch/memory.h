/* memory.h - finds how much memory the ranks of this machine can still allocate.

   Linux grants more memory than it has, and kills a process that uses it. So a trainer checks
   before it allocates. The smallest of these limits counts:
     MemAvailable of /proc/meminfo;
     for the memory cgroup of this process and each one above it (v1 or v2), its limit minus its
       usage, in which file cache that can be dropped does not count;
     for shared windows of MPI, also the free space of /dev/shm. The plugin uses it only if ranks
       cannot open each other's memory files through /proc.
   A limit that cannot be read is ignored. Systems other than Linux have no limit here.
*/
#ifndef LAUNCH_MEMORY_H
#define LAUNCH_MEMORY_H

#include "launch.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct launch_memory {
    uint64_t bytes;  /* UINT64_MAX: no limit is known */
    char limit[256]; /* name of the limit: "MemAvailable of /proc/meminfo", ... */
} launch_memory;

/* Returns the memory that processes here can still allocate. root is a prefix of /proc and /sys in
   all paths: "", or a folder with copies of such files in a test. */
void launch_memory_available(const char *root, launch_memory *memory);

/* Makes free() return memory to the system at once. By default glibc keeps up to twice the size of
   the largest block. The cost: matrix products get fresh pages, up to 6 % of a step. */
void launch_memory_tight(void);

/* Returns the bytes of memory that this process uses, with its part of shared pages (proportional
   set size). It first returns freed memory to the system. Returns 0 if this is not known. */
uint64_t launch_memory_held(void);

/* Returns the memory that shared windows of MPI can still use: the free space of `folder`. */
void launch_memory_shared(const char *folder, launch_memory *memory);

/* Returns whether the ranks of each machine fit into its memory. need: bytes per rank, of which
   `shared` may be shared between ranks. Call it before you allocate any of them. COLLECTIVE. */
int launch_memory_fits(launch *l, uint64_t need, uint64_t shared);
/* Ends all ranks if the ranks of a machine need more. The line has both numbers. COLLECTIVE. */
void launch_check_memory(launch *l, uint64_t need, uint64_t shared);

#ifdef __cplusplus
}
#endif
#endif

/* memory.h - how much memory the ranks of this machine can still get.

   Linux grants memory that it does not have, and kills a process when it is touched. So a trainer
   asks first. Three limits are looked at, and the least counts:
     MemAvailable of /proc/meminfo;
     of the memory cgroup of this process and each one above it (v1 or v2), the limit less what is
       used (file cache that can be dropped does not count as used);
     for MPI's shared windows also the free space of /dev/shm. The plugin asks for them only where
       ranks cannot open each other's memory files through /proc; those need no room there.
   What cannot be read is no limit. Elsewhere than on Linux there is none.
*/
#ifndef LAUNCH_MEMORY_H
#define LAUNCH_MEMORY_H

#include "launch.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct launch_memory {
    uint64_t bytes;  /* UINT64_MAX: no limit is known */
    char limit[256]; /* whose it is: "MemAvailable of /proc/meminfo", ... */
} launch_memory;

/* Memory that processes here can still get. root stands before /proc and /sys in all paths: "", or
   a folder with a copy of such files in a test. */
void launch_memory_available(const char *root, launch_memory *memory);

/* From here on what is freed goes back to the system, of which glibc keeps up to twice the largest
   block that ever was: what a product of matrices packs comes as fresh pages, up to 6 % of a step.
 */
void launch_memory_tight(void);

/* Bytes that this process has now; of pages that processes share its part of each (proportional set
   size). What was freed goes back to the system first. 0: not known. */
uint64_t launch_memory_held(void);

/* Memory that shared windows of MPI can still get: the free space of `folder` ("/dev/shm"). */
void launch_memory_shared(const char *folder, launch_memory *memory);

/* Whether the ranks of no machine together need more than it has. need: bytes per rank, of which
   `shared` may lie in memory shared between ranks. Before anything of it is allocated.
   COLLECTIVE. */
int launch_memory_fits(launch *l, uint64_t need, uint64_t shared);
/* Ends all ranks, with both numbers in the line, if they do. COLLECTIVE. */
void launch_check_memory(launch *l, uint64_t need, uint64_t shared);

#ifdef __cplusplus
}
#endif
#endif

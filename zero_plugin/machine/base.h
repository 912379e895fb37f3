/* base.h - limits, clock, hash, lists, the first failure

   Alignment is part of the layout. Each tensor and each shard begins on a cache line of the CPU or
   on a 128-byte line of the GPU, so an element's neighbours do not depend on the number of ranks.

   A collective fails on a communication thread; the calling thread returns the error at its next
   call. A context keeps its first failure, and its later collectives do nothing. */
#pragma once

#ifndef __linux__
#error "ZeRO for C needs Linux"
#elif __SIZEOF_POINTER__ < 8
#error "a 32-bit build (-m32): ZeRO for C needs 64 bits"
#endif
/* The preprocessor cannot detect -ffp-contract, clang's -fassociative-math alone, and nvcc's
   -use_fast_math. zero_create detects the last one because it flushes denormal numbers to zero. */
#if ZERO_FAST_MATH
#define ZP_UNKNOWN volatile /* otherwise the compiler assumes that no number is NaN */
#elif defined(__FAST_MATH__) || __FINITE_MATH_ONLY__ > 0 || defined(__ASSOCIATIVE_MATH__)
#error "fast math (-Ofast, -ffast-math) gives other bits: use -O3, or add -DZERO_FAST_MATH=1"
#define ZP_UNKNOWN
#else
#define ZP_UNKNOWN
#endif

/* Functions of one table share their parameters, and some do not use all of them. */
#pragma GCC diagnostic ignored "-Wunused-parameter"
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "../../zero_plugin.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#ifdef __CUDACC__
#define ZP_ALIGN ZP_ALIGN_GPU
#undef ZERO_WITH_MPI
#include <dlfcn.h>
#else
#define ZP_ALIGN ((size_t)32)
#undef ZERO_WITH_NCCL
#endif
/* The parts of this copy of the plugin; `make drop WITH=...` defines it. */
#ifndef ZERO_DROP_WITH
#define ZERO_DROP_WITH "..."
#endif
/* The error of a part that this copy lacks; `part` may be "%s", and is then formatted twice. */
#define ZP_LEFT_OUT(part)                                                                          \
    "this copy of the plugin lacks \"" part "\"; make drop DIR=... WITH=\"" ZERO_DROP_WITH         \
    " " part "\" adds it"

#define ZP_ALIGN_GPU     ((size_t)64)    /* elements of any type; 32 or a multiple of it */
#define ZP_LOCAL_MAX     64              /* ranks that share memory */
#define ZP_MAIL_BYTES    512             /* of one rank in an exchange */
#define ZP_TEXT_BYTES    384             /* of an error sentence */
#define ZP_COORDS_BYTES  64              /* of a rank's coordinates, for example "tp 1, pp 0" */
#define ZP_STAGE_NUMEL   ((size_t)65536) /* elements of the staging buffer */
#define ZP_NORM_BLOCK    ((size_t)1024)  /* elements summed into one f64 before blocks are added */
#define ZP_CONVERT_BLOCK ((size_t)512)   /* elements that are converted at a time, in a buffer */
#define ZP_SUM_BLOCK     ((size_t)2048)  /* elements summed over ranks while they stay in cache */
#define ZP_SUM_LEVELS    6 /* of a sum over ranks, above the nodes: 2^6 is ZP_LOCAL_MAX */
#define ZP_TIMEOUT_S     600.0
#define ZP_UNBUILT_S     3.0           /* wait of zero_destroy for peers before zero_build */
#define ZP_TASK_BYTES    ((size_t)768) /* most bytes of a task's arguments */
#define ZP_LANE_TASKS    ((size_t)128) /* most unfinished tasks of a lane */

typedef enum zp_channel { ZP_GRADIENTS = 0, ZP_PARAMETERS, ZP_CONTROL, ZP_CHANNELS } zp_channel;

static_assert(ZP_STAGE_NUMEL % ZP_ALIGN == 0, "staged pieces stay aligned");
static_assert(ZP_ALIGN % 32 == 0, "no shard ends inside a block whose squares are added at once");

#define ZP_UNUSED __attribute__((unused)) /* in some builds */
#define ZP_INLINE static inline __attribute__((always_inline, unused))

/* Tensors and shards begin at multiples of so many elements. It is a variable, like zp_on_host of
   device_cpu.h, so that a planner without a GPU can plan for a GPU. */
static size_t zp_align = ZP_ALIGN;

static size_t zp_round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }
static size_t zp_min(size_t a, size_t b) { return a < b ? a : b; }
static size_t zp_max(size_t a, size_t b) { return a > b ? a : b; }

#define ZP_TRY(call)                                                                               \
    do {                                                                                           \
        const zero_result zp_r = (call);                                                           \
        if (zp_r) return zp_r;                                                                     \
    } while (0)

/* Asks the system for large pages. */
ZP_UNUSED static void zp_huge(void *p, size_t bytes) { (void)madvise(p, bytes, MADV_HUGEPAGE); }

#define ZP_NAP_S 50e-6
ZP_UNUSED static void zp_nap_for(double seconds) { /* below 1 */
    const struct timespec t = {0, (long)(1e9 * seconds)};
    nanosleep(&t, NULL);
}
ZP_UNUSED static void zp_nap(void) { zp_nap_for(ZP_NAP_S); }

/* FNV-1a over words whose upper halves are 0. */
#define ZP_HASH_EMPTY ((uint64_t)14695981039346656037u)
static uint64_t zp_hash(uint64_t hash, uint64_t word) { return (hash ^ word) * 1099511628211u; }
/* For words in which every bit may differ. Multiplication moves bits only upwards: a difference in
   the highest byte would stay there, and two such differences could cancel each other. */
static uint64_t zp_hash_wide(uint64_t hash, uint64_t word) {
    return zp_hash(hash, word) ^ hash >> 29;
}

static double zp_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Cuts `bytes` from memory at *at, and advances *at to a multiple of `to`. Before the memory is
   allocated, base is NULL: this only measures, and returns NULL. */
static void *zp_cut_memory(char *base, size_t *at, size_t bytes, size_t to) {
    char *p = base ? base + *at : NULL;
    *at += zp_round_up(bytes, to);
    return p;
}

/* Returns a list with room for one more element. NULL: no memory; the old list stays valid. */
static void *zp_list_grow(void *list, int n, int *cap, size_t bytes) {
    if (n < *cap) return list;
    const int more = *cap ? 2 * *cap : 16;
    list = realloc(list, (size_t)more * bytes);
    if (list) *cap = more;
    return list;
}

typedef struct zp_failure {
    int result; /* zero_result; written once, after text */
    int claimed;
    char text[ZP_TEXT_BYTES];
} zp_failure;

static zero_result zp_failure_result(const zp_failure *f) {
    return (zero_result)__atomic_load_n(&f->result, __ATOMIC_ACQUIRE);
}

/* machine.h - the plugin's lanes and streams as threads of scheduler.h

   The plugin is compiled with its own files, except for the functions of lane.h that start, feed
   and wait for a thread. Those of the same name below keep the contract of lane.h, in its weakest
   form: a wait for an event orders the waiting lane after the event's tasks and nothing else, and
   is never left out because the event has passed. So it allows every order that CUDA's streams do.
   test_orders_lane.c shows that the real lane.h keeps this contract.

   The compute stream is a lane, too, if orders_async is 1: then your code only enqueues, as on a
   GPU. Otherwise it is the calling thread, as in the CPU build. */
#ifndef ORDERS_MACHINE_H
#define ORDERS_MACHINE_H

#include "scheduler.h"

/* Other code of this program sees memory and files through the scheduler. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>
void *orders_malloc(size_t bytes);
void *orders_calloc(size_t n, size_t bytes);
void *orders_realloc(void *p, size_t bytes);
int orders_posix_memalign(void **p, size_t to, size_t bytes);
void orders_free(void *p);
char *orders_strdup(const char *text);
void *orders_memcpy(void *to, const void *from, size_t n);
void *orders_memmove(void *to, const void *from, size_t n);
void *orders_memset(void *to, int value, size_t n);
int orders_memcmp(const void *a, const void *b, size_t n);
ssize_t orders_pread(int fd, void *to, size_t n, off_t at);
ssize_t orders_pwrite(int fd, const void *from, size_t n, off_t at);

#define malloc         orders_malloc
#define calloc         orders_calloc
#define realloc        orders_realloc
#define posix_memalign orders_posix_memalign
#define free           orders_free
#define strdup         orders_strdup
#define memcpy         orders_memcpy
#define memmove        orders_memmove
#define memset         orders_memset
#define memcmp         orders_memcmp
#define pread          orders_pread
#define pwrite         orders_pwrite

#define zp_lane_work            orders_unused_lane_work
#define zp_lane_open            orders_unused_lane_open
#define zp_lane_close           orders_unused_lane_close
#define zp_lane_push            orders_unused_lane_push
#define zp_lane_record          orders_unused_lane_record
#define zp_lane_event_passed    orders_unused_lane_event_passed
#define zp_lane_wait_event      orders_unused_lane_wait_event
#define zp_lane_wait_event_task orders_unused_lane_wait_event_task
#define zp_lane_wait            orders_unused_lane_wait
#define zp_lane_sync            orders_unused_lane_sync
#include "../../zero_plugin/machine/base.h"
#include "../../zero_plugin/machine/lane.h"
#undef zp_lane_work
#undef zp_lane_open
#undef zp_lane_close
#undef zp_lane_push
#undef zp_lane_record
#undef zp_lane_event_passed
#undef zp_lane_wait_event
#undef zp_lane_wait_event_task
#undef zp_lane_wait
#undef zp_lane_sync

/* A lane as the scheduler has it; orders_lane.c's functions are not instrumented. */
typedef struct orders_lane orders_lane;
orders_lane *orders_lane_open(int asked);
void orders_lane_close(orders_lane *l);
void orders_lane_push(orders_lane *l, void (*fn)(const void *, size_t, int), const void *args,
                      size_t bytes, size_t n);
size_t orders_lane_tail(const orders_lane *l);
void orders_lane_wait(orders_lane *l, size_t at);
int orders_lane_has_run(orders_lane *l, size_t at); /* asks: either answer is an order of its own */

/* Returns the scheduler's lane, which stands in the place of the tasks. */
static orders_lane *orders_of(const zp_lane *l) { return (orders_lane *)(void *)l->task; }

static int orders_async; /* 1: the compute stream is a lane */

static zero_result zp_lane_open(zp_lane *l, int threads) {
    memset(l, 0, sizeof *l);
    l->task = (zp_task *)(void *)orders_lane_open(0);
    return ZERO_OK;
}
static void zp_lane_close(zp_lane *l) { orders_lane_close(orders_of(l)); }
static void zp_lane_push(zp_lane *l, zp_record *record, zp_task_fn fn, const void *args,
                         size_t bytes, size_t n) {
    orders_lane_push(orders_of(l), fn, args, bytes, n);
}
static void zp_lane_record(zp_lane *l, zp_lane_event *e) {
    e->lane = l;
    e->at = orders_lane_tail(orders_of(l));
}
/* An event without a lane is complete. Otherwise the answer is "not yet", and the caller waits. */
static int zp_lane_event_passed(const zp_lane_event *e) { return !e->lane; }
static void zp_lane_wait_event(const zp_lane_event *e) {
    if (e->lane) orders_lane_wait(orders_of(e->lane), e->at);
}
static void zp_lane_wait_event_task(const void *event, size_t n, int threads) {
    zp_lane_wait_event((const zp_lane_event *)event);
}
static void zp_lane_wait(zp_lane *l, const zp_lane_event *e) {
    if (e->lane && e->lane != l) zp_lane_push(l, NULL, zp_lane_wait_event_task, e, sizeof *e, 0);
}
static void zp_lane_sync(zp_lane *l) {
    zp_lane_event end = {NULL, 0, 0};
    zp_lane_record(l, &end);
    zp_lane_wait_event(&end);
}

#define zp_device_take_stream  orders_take_stream
#define zp_device_event_passed orders_event_passed
#include "../../zero_plugin/machine/device_cpu.h"
#undef zp_device_take_stream
#undef zp_device_event_passed

static zero_result zp_device_take_stream(zp_stream *s, zp_device *d, void *stream, int threads) {
    ZP_TRY(orders_take_stream(s, d, stream, threads));
    if (!orders_async || !orders_is_first()) return ZERO_OK;
    memset(&s->lane, 0, sizeof s->lane);
    s->lane.task = (zp_task *)(void *)orders_lane_open(1);
    s->queued = 1;
    return ZERO_OK;
}
static int zp_device_event_passed(const zp_event *e) {
    return !e->lane || orders_lane_has_run(orders_of(e->lane), e->at);
}

#include "../../zero_plugin/machine/device.h"
#include "../../zero_plugin/comm/comm.h"
#include "../../zero_plugin/core/buffers.h"

/* Each of these calls can be removed, one at a time. */
#define ORDERS_GONE                  orders_removed(__FILE__, __LINE__)
#define zp_device_wait_event(s, e)   (ORDERS_GONE ? ZERO_OK : (zp_device_wait_event)(s, e))
#define zp_device_record_event(s, e) (ORDERS_GONE ? ZERO_OK : (zp_device_record_event)(s, e))
#define zp_device_sync_event(d, e)   (ORDERS_GONE ? ZERO_OK : (zp_device_sync_event)(d, e))
#define zp_device_sync_stream(s)     (ORDERS_GONE ? ZERO_OK : (zp_device_sync_stream)(s))
#define zp_device_finish_stream(s)   (ORDERS_GONE ? (void)0 : (zp_device_finish_stream)(s))
#define zp_lane_record(l, e)         (ORDERS_GONE ? (void)0 : (zp_lane_record)(l, e))
#define zp_lane_wait(l, e)           (ORDERS_GONE ? (void)0 : (zp_lane_wait)(l, e))
#define zp_lane_wait_event(e)        (ORDERS_GONE ? (void)0 : (zp_lane_wait_event)(e))
#define zp_lane_sync(l)              (ORDERS_GONE ? (void)0 : (zp_lane_sync)(l))
#define zp_comm_barrier(g)           (ORDERS_GONE ? ZERO_OK : (zp_comm_barrier)(g))
#define zp_buffer_hold(p, u, more)   (ORDERS_GONE ? (void)0 : (zp_buffer_hold)(p, u, more))
#define zp_buffer_release(p, b)      (ORDERS_GONE ? (void)0 : (zp_buffer_release)(p, b))
#define zp_buffer_forget_all(p)      (ORDERS_GONE ? (void)0 : (zp_buffer_forget_all)(p))

#endif

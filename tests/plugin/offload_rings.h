/* offload_rings.h - leads the plugin's requests of io_uring to test_offload.c, which counts them
   and makes them fail. It is included before the plugin's source in $B/rings.o: these calls are
   inline functions, which the linker cannot lead elsewhere. */
#pragma once

#include <liburing.h>

void disk_request(struct io_uring_sqe *q, uint64_t i);
int disk_wait(struct io_uring *ring, struct io_uring_cqe **c);
int disk_ring(unsigned n, struct io_uring *ring, unsigned flags);
#ifndef TEST_HARNESS_H /* the test itself makes its rings with the library's functions */
#define io_uring_sqe_set_data64 disk_request
#define io_uring_wait_cqe       disk_wait
#define io_uring_queue_init     disk_ring
#endif

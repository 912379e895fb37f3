/* spill.h - moves activations out of the computing memory between forward and backward: records of
   one size, written and read back while the model computes (spill_file.c: a thread and an unnamed
   file; spill_cuda.cu: pinned host memory and a separate stream).

   ORDER. Puts and gets run in the order in which they are called. Your code must not touch the
   memory of a put or get until spill_await of the same record. A get needs no await after the put
   of its record. One CPU thread owns a spill.

   WAITING. On the CPU spill_await waits, and spill_put waits if the thread is `records` jobs late.
   In CUDA all calls only enqueue: a put or get starts after the work that the context's stream has
   so far, and spill_await makes that stream wait.

   ERRORS are sticky: after an error no data moves, and spill_status returns the error. */
#ifndef GPT2_SPILL_H
#define GPT2_SPILL_H

#include <stddef.h>

#include "../../zero_plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct spill spill;

typedef struct spill_shape {
    int records;        /* 1 or more */
    size_t bytes;       /* bytes of a record */
    const char *folder; /* CPU: the folder of the file; only spill_create reads it */
    void *stream;       /* CUDA: the cudaStream_t that computes; borrowed */
} spill_shape;

enum { SPILL_SENTENCE = 256 };

/* Reserves the space of all records. Errors: ARGUMENT, MEMORY, DEVICE. On error *s is NULL,
   and `why` (SPILL_SENTENCE bytes) has the reason. */
zero_result spill_create(spill **s, const spill_shape *shape, char *why);
void spill_destroy(spill *s); /* NULL is allowed; waits */

/* record: 0..records-1 */
void spill_put(spill *s, int record, const void *memory);
void spill_get(spill *s, int record, void *memory);
void spill_await(spill *s, int record);

/* Returns the first error so far. s owns *sentence; `sentence` may be NULL. */
zero_result spill_status(spill *s, const char **sentence);

#ifdef __cplusplus
}
#endif
#endif

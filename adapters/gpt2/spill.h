/* spill.h - values that leave the memory that computes between forward and backward: records of one
   size, written behind the computation and read back ahead of it (spill_file.c: to a file without a
   name, by a thread; spill_cuda.cu: to pinned memory of the host, on a stream of its own).

   ORDER. Puts and gets take place in the order in which they are called. What a put reads, and what
   a get writes, belongs to the room until spill_await of the same record; a get needs no await
   after the put of its record. One spill belongs to one host thread.

   WAITING. On the CPU spill_await waits, and spill_put where the thread is `records` jobs behind.
   In CUDA all of them only enqueue: a put begins behind what the context's stream has been given so
   far, a get too, and spill_await makes that stream wait.

   ERRORS are sticky: after one nothing moves any more, and spill_status tells it. */
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
    size_t bytes;       /* of a record */
    const char *folder; /* CPU: where the file is made; read by spill_create alone */
    void *stream;       /* CUDA: the cudaStream_t that computes; borrowed */
} spill_shape;

enum { SPILL_SENTENCE = 256 };

/* Room for all records is made sure of here. Errors: ARGUMENT, MEMORY, DEVICE. On error *s is NULL,
   and `why` (SPILL_SENTENCE bytes) says what is the matter. */
zero_result spill_create(spill **s, const spill_shape *shape, char *why);
void spill_destroy(spill *s); /* NULL is allowed; waits */

/* record: 0..records-1 */
void spill_put(spill *s, int record, const void *memory);
void spill_get(spill *s, int record, void *memory);
void spill_await(spill *s, int record);

/* What went wrong so far. *sentence (may be NULL) is owned by s. */
zero_result spill_status(spill *s, const char **sentence);

#ifdef __cplusplus
}
#endif
#endif

/* ring.h - ring attention: keys and values travel around the ranks of a group, while each rank
   attends from its own queries (Liu, Zaharia, Abbeel 2023).

   PIECES. Each of the B sequences is cut into 2 n pieces, for n ranks. Rank i has pieces i and
   2n-1-i, one after the other in its T rows of a sequence (zigzag). A query sees the keys of
   earlier pieces, and of its own piece those up to its own token. So with the keys of another rank,
   every rank computes two of the four pairs of pieces, and with its own keys two halves and a whole
   one: all ranks have equal work in every round.

   ROUNDS. In round r rank i has the keys and values of rank i - r. It sends them to rank i + 1 and
   receives those of rank i - r - 1 while it computes round r. Forward adds each pair to a partial
   softmax (ops_partial), and so does not store any scores.

   BACKWARD computes the probabilities again from lse. Keys and values travel again. The gradient of
   a rank's keys and values (dkv, f32) begins on the rank after it, in round 1. Each rank computes
   its own part, adds what has arrived to it, and sends the sum on; the last rank sends it home,
   where the part of the rank itself is added. So dkv makes n - 1 hops, and always adds in the same
   order. The part of the rank itself is computed in two rounds, 0 and n, so that the first keys
   and the last dkv arrive while a rank computes.

   EXCHANGES are numbered, and the lane (../pipeline/pipeline_lane.h) runs them in order on a thread
   of its own. Exchange 0 has the keys for round 1. Exchange r + 1 begins when round r is computed,
   and has the keys for round r + 2 and, from r = 1 on, dkv of round r.
       round r waits for exchange r - 1, which has its keys
       dkv of round r - 1 has arrived after exchange r; the end of round r waits for it
   Keys are in two buffers: round r reads buffer r % 2, and exchange r - 1 fills it. Its earlier
   contents, of round r - 2, have been computed, and exchange r - 2 has sent them. In the same way
   dkv of round r is in buffer r % 2, which exchange r + 1 sends while round r + 1 fills the other.
   `arrived` is filled by exchange r + 1, after round r has added its earlier contents.

   CUDA. A call only enqueues. Operations are on the computing stream, exchanges on the group's, and
   the lane orders the two by events, so "waits" above means that a stream waits for an event of the
   other. The computing stream ends with the last exchange, so that memory is the caller's again for
   all that is enqueued after the call.

   MEMORY. The caller owns all memory: `keys`, twice the bytes of kv (B, T, 2, NH, head_size), and
   `floats`, ring_floats of the same shape. Both are borrowed during a call, and nothing in them is
   kept. The ring owns its thread.

   BYTES that a rank sends: forward n - 1 times kv; backward as many, and n - 1 times dkv.

   ERRORS are sticky: after an error of the group nothing is sent, and ring_forward and
   ring_backward return it. An error of an operation does not stop the exchanges, so no peer waits
   for this rank. */
#ifndef GPT2_RING_H
#define GPT2_RING_H

#include <stddef.h>
#include <stdint.h>

#include "../../zero_plugin.h"
#include "ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ring_attention ring_attention;

/* group: at least two ranks. It is borrowed until ring_close, and only the ring uses it during a
   call. CUDA: `computes` is the cudaStream_t of the operations, and `wires` that of the group; they
   may be equal, and then messages run between rounds. CPU: NULL. Returns NULL if memory or the
   thread is not available. */
ring_attention *ring_open(zero_group *group, void *computes, void *wires);
void ring_close(ring_attention *r); /* r may be NULL */

/* Returns the seconds since ring_open in which a round waited for an exchange; in CUDA, in which
   the calling thread waited. r NULL: 0. */
double ring_waited_s(const ring_attention *r);

/* shape: T tokens of this rank per sequence, an even number. */
size_t ring_floats(const ops_heads *shape);

/* Memory and inputs of a call. */
typedef struct ring_call {
    void *keys;
    float *floats;
    const void *qkv;  /* (B, T, 3, NH, head_size) */
    const void *bias; /* (3 NH head_size), as ops_attention's */
    ops_heads shape;
    size_t bytes; /* of one value of qkv */
} ring_call;

/* Compute what ops_attention and ops_attention_backward compute, for this rank's queries of whole
   sequences. dqkv may be qkv. COLLECTIVE. Errors: those of zero_group_send_receive. */
zero_result ring_forward(ring_attention *r, ops_ctx *o, const ring_call *c, void *out, float *lse);
zero_result ring_backward(ring_attention *r, ops_ctx *o, const ring_call *c, void *dqkv,
                          const void *dout, const void *out, const float *lse);

#ifdef __cplusplus
}
#endif
#endif

/* recheck.h - another rank computes a block again, and the ranks compare the results bit for bit.

   A processor that multiplies wrongly once in a while does not report it. Two ranks that compute
   the same products from the same numbers must get the same bits. So in some steps each rank sends
   what one block has read to a neighbour, which computes that block again.

   COMPARED. For one block, in the first micro-step of a step, three hashes (hash_words.h):
     output     the block's output, at the end of its forward
     gradient   the gradient of its input, at the end of its backward
     weights    the gradients of its weights. In the first micro-step they are this block's alone:
                the memory was clear before
   A change of what a block reads (its input, its weights) between forward and backward is found,
   too. Other micro-steps, other blocks, embeddings and classifier are not compared in this step.

   RANKS. W ranks have number w = d W/N + k: N data-parallel ranks d for each part k of the model
   and of the sequences. Rank w sends to the next rank with the same part, w + W/N modulo W.

   WAY OF ONE BLOCK, l, on rank w, from the hooks that open its unit to those that close it:
     forward    own block                                    hash of output        -> row.own
     backward   keep: a copy of the incoming gradient
                own block                                    hashes of both others -> row.own
                send x and the kept gradient to w + W/N; receive those of w - W/N
                forward and backward of the received values  three hashes          -> row.again
                all ranks gather all rows, and compare row[w].own with row[w + W/N].again
     If they differ and N is above 2: the same with w + 2 W/N, into row.third. Two of the three
     ranks agree, and the other one is wrong.
   The unit is open, so all ranks have its weights, at stage 3 too. The second computation uses the
   memory of the block's own values, which nothing reads any more.

   MEMORY. x, output, gradient and kept gradient (rows of C numbers each), the weights' gradients of
   a block in f32, and the rows. TRAFFIC of a check: x and the gradient once, W - 1 rows.

   BITS of training do not change: nothing but hashes is made of its values, and the second
   computation writes to its own memory and to that of dead values.

   WAITING. The ranks wait for each other in each check. A GPU's CPU waits for it once, or twice
   after a difference.

   ERRORS. Functions return the first error of the groups, with their sentence, or MISMATCH after a
   difference, which all ranks find at the same place. */
#ifndef RECHECK_H
#define RECHECK_H

#include "gpt2.h"
#include "ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum recheck_part {
    RECHECK_OUTPUT,
    RECHECK_GRADIENT,
    RECHECK_WEIGHTS,
    RECHECK_PARTS
} recheck_part;
/* Hashes of the rank's own block, and of the blocks of the rank before it and of the one before
   that. */
typedef enum recheck_of { RECHECK_OWN, RECHECK_AGAIN, RECHECK_THIRD, RECHECK_OF } recheck_of;

/* What a rank publishes. */
typedef struct recheck_row {
    uint64_t hash[RECHECK_OF][RECHECK_PARTS];
    uint64_t setting; /* hash of how the rank computes */
} recheck_row;

typedef struct recheck_shape {
    size_t row_bytes;   /* bytes of the rows of activations that this rank has between layers */
    size_t all_bytes;   /* bytes of all rows; more than row_bytes with sequence parallelism */
    size_t first_bytes; /* where its own rows begin in memory for all rows */
    size_t grad_bytes;  /* bytes of the weights' gradients of a block */
    int ranks;          /* W */
} recheck_shape;

typedef struct recheck {
    recheck_shape shape;
    zero_group *peers, *all; /* borrowed: N ranks with the same part, all W ranks */
    int rank, ranks, stride; /* w, N, W/N */
    void *memory;            /* all arrays below */
    void *x, *out;           /* received input; output of the second computation (row_bytes) */
    void *dres;              /* (all_bytes): the received gradient is in this rank's rows */
    void *kept;              /* (row_bytes) this rank's incoming gradient */
    void *grads;             /* (grad_bytes) */
    recheck_row *table;      /* [W] on the device */
    recheck_row *rows;       /* [W] on the host */
    int64_t step;            /* of the check that is due, for sentences */
    int block;               /* -1: no check is due */
    int has_output;          /* the output is hashed */
    int wrong;               /* rank that computes wrongly; -1: none, or not known */
    char sentence[512];
} recheck;

/* Returns the bytes of device memory that recheck_open allocates. */
size_t recheck_bytes(const recheck_shape *s);
/* Returns the bytes that this rank sends in a check without a difference. */
size_t recheck_sent(const recheck_shape *s);

/* Allocates a recheck, which the caller passes to recheck_close. The groups are borrowed. Errors:
   MEMORY; ARGUMENT if `peers` has one rank, or the numbers are not as above. */
zero_result recheck_open(recheck **c, const recheck_shape *s, zero_group *peers, zero_group *all,
                         gpt2_error *err);
void recheck_close(recheck *c); /* NULL is allowed */

/* Makes a check of block l due. `setting` describes how this rank computes. */
void recheck_begin(recheck *c, ops_ctx *o, int64_t step, int l, const char *setting);
/* Returns 1 if a check of block l is due. c may be NULL. */
static inline int recheck_is_due(const recheck *c, size_t l) {
    return c != NULL && c->block >= 0 && (size_t)c->block == l;
}

/* Adds to a hash of this rank's row. */
void recheck_hash(recheck *c, ops_ctx *o, recheck_of of, recheck_part part, const void *x,
                  size_t bytes, uint64_t seed);
/* Copies the incoming gradient (row_bytes). */
void recheck_keep(recheck *c, ops_ctx *o, const void *dres);
/* Sends x and the kept gradient to the rank that is `hop` ranks with the same part further, and
   receives those of the rank as many before. COLLECTIVE. */
zero_result recheck_exchange(recheck *c, const void *x, int hop);
/* Gathers all rows. *differs: 1 if any rank's hashes of AGAIN differ from those of OWN. COLLECTIVE,
   SYNC. */
zero_result recheck_compare(recheck *c, ops_ctx *o, int *differs);
/* Ends the check. After a difference returns MISMATCH, and sets the sentence and `wrong`. */
zero_result recheck_end(recheck *c, int differs);

/* Judges rows of W ranks, N of each part, in rank order: writes the first difference to `sentence`,
   or "". Returns the rank that is wrong, or -1. `third`: 1 if the rows have the third hashes. */
int recheck_judge(const recheck_row *rows, int W, int N, int third, int64_t step, int block,
                  char *sentence, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif

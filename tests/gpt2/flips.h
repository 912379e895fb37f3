/* flips.h - a processor that computes wrongly: the linker leads operations of ops.h through flips.c
   (--wrap), which flips one bit of what one call has stored. It also keeps digests, of its own, of
   the arrays that the trainer hashes.

   A rank is a thread or a process. FLIP="RANK STEP UNIT CALL" in the environment flips, on that
   rank of all, a bit of call number CALL of the operations in the unit, in that step; without it, a
   test sets flips_here. */
#ifndef TEST_FLIPS_H
#define TEST_FLIPS_H

#include <stddef.h>
#include <stdint.h>

enum { FLIPS_DIGESTS = 256 };

typedef struct flips {
    int unit;                       /* operations of this unit count */
    long at;                        /* number of the call that is changed, from 0 on; -1: none */
    uint64_t choice;                /* chooses the output, the number and the bit */
    size_t bytes, grad_bytes;       /* of a number */
    int open, depth;                /* the open unit */
    long calls;                     /* operations in the unit so far */
    int fired;                      /* a bit was flipped */
    uint64_t digest[FLIPS_DIGESTS]; /* of the hashed arrays, in order */
    int digests;
} flips;

/* Of this thread; NULL: nothing is counted or changed. */
extern _Thread_local flips *flips_here;

/* The arguments of --wrap. */
/* zero_forward_begin zero_forward_end zero_backward_begin zero_backward_end zero_group_open
   zero_pass_begin ops_linear ops_linear_dx ops_linear_dw ops_linear_gelu ops_linear_dx_gelu
   ops_linear_residual ops_norm ops_norm_backward ops_attention ops_attention_backward ops_hash */

#endif

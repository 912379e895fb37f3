/* cudnn_emulation.h - what a test sets and asks of the emulated cuDNN (cudnn.cc). */
#ifndef CUDNN_EMULATION_H
#define CUDNN_EMULATION_H

#include <stdint.h>

typedef struct cudnn_emulation {
    uint64_t calls;     /* so far, of all functions that return a status */
    uint64_t fail_call; /* the call with this number fails; 0: none */
    int64_t engines;    /* that heuristics offer: 0..3 */
    int engine;         /* that ran last: 1 in any order, 2 deterministic */
    int operations;     /* of the graph that ran last */
    uint64_t runs;
    int64_t more_bytes; /* of each workspace: another release's */
    int64_t live;       /* descriptors */

#ifdef __cplusplus
    cudnn_emulation()
        : calls(0), fail_call(0), engines(3), engine(-1), operations(0), runs(0), more_bytes(0),
          live(0) {}
#endif
} cudnn_emulation;

cudnn_emulation *cudnn_emulated(void);

#endif

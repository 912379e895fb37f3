/* machine.h - a file with a machine's measured rates, and the time of a step at these rates.

   A FILE is lines of KEY=VALUE (# begins a comment), or a JSON object with the same keys. TYPE is
   f32, bf16 or fp16. Rates are those of one rank while all ranks work. Defaults are in brackets.
       device=cpu             or gpu: the device of the ranks (default gpu)
       name=TEXT              a name for readers
       flops.TYPE=RATE        operations a second of a matrix product. Required
       block.TYPE.WIDTH=RATE  operations a second of a transformer block of this width, forward and
                              backward, without attention (default flops). The rate of a width
                              between two is interpolated by the logarithm of the width
       attention.TYPE=RATE    operations a second of attention, 12 width x T a token (flops.TYPE)
       vocabulary.TYPE=RATE   operations a second of embedding and classifier, 6 a parameter
                              (flops.TYPE)
       update=RATE            bytes a second that an update reads and writes, including the clearing
                              of gradients and the norm. Required
       link=RATE              bytes a second that a rank sends. Required for more than one rank
       overlap=SHARE          share of communication that backward hides while it runs (1)
       host_link=RATE         GPU: bytes a second between GPU memory and host memory
       host_update=RATE       GPU: like `update`, for the CPU
       disk=RATE              bytes a second to and from files, both added
       coding=RATE            bytes a second that -qw and -qg read and write to quantize
       latency=SECONDS        time of a message to another node (5e-6)
       far=RATE               bytes a second that a rank sends to other nodes (link). --scale has
                              rates of its own
       pass=RATE              bytes of parameters a second that each micro-step takes in addition to
                              the time of its tokens (a micro-step takes no time of its own)
       recompute.R=FACTOR     time of a block with -r R, 0, 2 or 3, divided by the time with -r 1
                              (1, 1, 4/3). -r 4 has the factor of -r 3

   THE STEP, in seconds, with n = tokens of a rank in a step, P = parameters, s = P or P/N updated:
       compute   n (72 L C^2 / block + 12 L C T / attention + 6 (Vp + 1) C / vocabulary); blocks
                 count recompute.R times. For a number of parameters alone: 6 n P / flops. Each
                 micro-step adds the parameters' bytes / pass
       send      plan.sent_bytes / link, minus overlap times the two thirds of compute that are
                 backward; at least 0
       update    s (2 x bytes of state + bytes of gradient and parameter) / update. For state in
                 files: the larger of that and (file_bytes read and written) / disk minus the
                 next forward (a third of compute). Inputs of blocks that -r 4 writes to a file
                 and reads again count in these bytes
   WHY A FILE. A machine has rates, a model has a plan. The time of a step needs both.
*/
#ifndef PLAN_MACHINE_H
#define PLAN_MACHINE_H

#include "plan.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { MACHINE_WIDTHS = 16, MACHINE_RECOMPUTES = 4 };

typedef struct machine_rates { /* rates of one type; 0: not given */
    double flops, attention, vocabulary;
    int widths;
    double width[MACHINE_WIDTHS], block[MACHINE_WIDTHS]; /* in the order of their widths */
} machine_rates;

typedef struct machine {
    char name[128];
    int on_gpus;
    machine_rates type[ZERO_TYPES];
    double update, link, overlap, host_link, host_update, disk, coding, latency, far, pass;
    double recompute[MACHINE_RECOMPUTES]; /* by -r; 0: not given */
} machine;

/* Returns the rate to other nodes, and the factor of -r. */
double machine_far(const machine *m);
double machine_again(const machine *m, int recompute);

/* Returns 0, or 1 and a sentence that names file, line and key. */
int machine_read(const char *path, machine *m, char *sentence, size_t bytes);
/* Writes lines of KEY=VALUE; `comment` is the first line. Returns 0, or 1 and a sentence. */
int machine_write(const char *path, const machine *m, const char *comment, char *sentence,
                  size_t bytes);

/* Seconds of a step's compute: of one block, and of embedding and classifier. */
typedef struct machine_parts {
    double block, vocabulary;
} machine_parts;
machine_parts machine_compute(const machine *m, const plan_case *c);

/* Seconds of a step's parts. */
typedef struct machine_step {
    double compute, send, update, all;
} machine_step;

/* Predicts a step. Returns 0, or 1 and a sentence if the file lacks a required rate. */
int machine_predict(const machine *m, const plan_case *c, const plan_answer *a, machine_step *step,
                    char *sentence, size_t bytes);

/* Returns the bytes that an update of this answer's shard reads and writes (see THE STEP). */
double machine_update_bytes(const plan_answer *a);

/* Operations of one token in the blocks (without attention), attention and vocabulary. */
typedef struct machine_work {
    double block, attention, vocabulary;
} machine_work;
machine_work machine_token(const gpt2_config *cfg, int seq_len);

#ifdef __cplusplus
}
#endif
#endif

/* machine.h - a machine's measured rates, as a file, and how long a step takes at them.

   A FILE is lines of KEY=VALUE (# begins a comment), or a JSON object with the same keys. TYPE is
   f32, bf16 or fp16; rates are those of one rank while all others work as well.
       device=cpu             or gpu: what ranks compute on (default gpu)
       name=TEXT              for people
       flops.TYPE=RATE        operations a second that a matrix product reaches. Needed
       block.TYPE.WIDTH=RATE  that a transformer block of this width reaches, forward and backward,
                              attention apart (default flops). Of widths between two it is
                              interpolated by the width's logarithm
       attention.TYPE=RATE    that attention reaches, 12 width x T operations a token (flops)
       vocabulary.TYPE=RATE   that embedding and classifier reach, 6 a parameter (flops)
       update=RATE            bytes a second that an update reads and writes, with what it comes
                              with: clearing gradients, the norm. Needed
       link=RATE              bytes a second that a rank sends. Needed for more than one rank
       overlap=SHARE          of communication, that backward hides as long as it takes (1)
       host_link=RATE         GPU: bytes a second between its memory and the host's
       host_update=RATE       GPU: what `update` is for the host's processors
       disk=RATE              bytes a second to and from files, both added
       coding=RATE            bytes a second that -qw and -qg read and write to pack and unpack
       latency=SECONDS        of a message to another node: of zero_plan --scale (5e-6)

   THE STEP, in seconds, with n = tokens of a rank in a step, P = parameters, s = P or P/N updated:
       compute   n (72 L C^2 / block + 12 L C T / attention + 6 (Vp + 1) C / vocabulary); blocks
                 that are computed again count 4/3. A number of parameters alone: 6 n P / flops
       send      plan.sent_bytes / link, less overlap times the two thirds of compute that are
                 backward, and not below 0
       update    s (2 x bytes of state + bytes of gradient and parameter) / update; in files:
                 what the next forward, a third of compute, does not hide of the larger of
                 that and of file_bytes read and written / disk
   WHY A ROOM. Rates are of a machine, plans of a model; a step's time is both.
*/
#ifndef PLAN_MACHINE_H
#define PLAN_MACHINE_H

#include "plan.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { MACHINE_WIDTHS = 16 };

typedef struct machine_rates { /* of one type; 0: not said */
    double flops, attention, vocabulary;
    int widths;
    double width[MACHINE_WIDTHS], block[MACHINE_WIDTHS]; /* by rising width */
} machine_rates;

typedef struct machine {
    char name[128];
    int on_gpus;
    machine_rates type[ZERO_TYPES];
    double update, link, overlap, host_link, host_update, disk, coding, latency;
} machine;

/* Returns 0, or 1 and a sentence that names file, line and key. */
int machine_read(const char *path, machine *m, char *sentence, size_t bytes);
/* As KEY=VALUE; `comment` becomes its first line. */
int machine_write(const char *path, const machine *m, const char *comment, char *sentence,
                  size_t bytes);

/* Seconds of a step's compute: of a block, and of embedding and classifier. */
typedef struct machine_parts {
    double block, vocabulary;
} machine_parts;
machine_parts machine_compute(const machine *m, const plan_case *c);

/* Seconds of a step's parts. */
typedef struct machine_step {
    double compute, send, update, all;
} machine_step;

/* 0; or 1 and a sentence: the file lacks a rate that this case needs. */
int machine_predict(const machine *m, const plan_case *c, const plan_answer *a, machine_step *step,
                    char *sentence, size_t bytes);

/* Bytes that an update of this answer's shard reads and writes, as THE STEP has them. */
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

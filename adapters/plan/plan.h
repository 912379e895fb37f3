/* plan.h - plans the memory and traffic of a configuration, without its ranks or machine.

   EXAMPLE
       plan_model model;
       plan_case c;
       plan_answer a;
       char why[PLAN_SENTENCE];
       plan_model_read("gpt2:d48", 0, &model, why, sizeof why);
       memset(&c, 0, sizeof c);
       c.model = &model;
       c.nranks = 64;
       c.on_gpus = 1;
       c.zero.stage = 3;
       c.zero.type = c.run.type = ZERO_BF16;
       c.run.batch = 4;
       c.run.seq_len = 1024;
       plan_ask(&c, &a, why, sizeof why);    // a.device_bytes

   WHY A FILE. zero_query_plan needs neither ranks nor memory, and gpt2_activation_bytes returns the
   activations of the model. This file joins both for one rank. It repeats no formula of stages or
   tiers.

   Functions that can fail return 0, or 1 and a sentence. They belong to one thread.
*/
#ifndef PLAN_H
#define PLAN_H

#include "../checkpoint/checkpoint.h"
#include "../gpt2/context.h"
#include "../gpt2/gpt2.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { PLAN_SENTENCE = 512 };

/* A GPT-2, or only a number of parameters. The plan cuts such a number into L equal blocks, because
   buffers need units. L blocks of width 128 L (GPT-3's proportions) have that many parameters. */
typedef struct plan_model {
    char name[256];
    int is_gpt2;
    gpt2_config gpt2;
    size_t numel; /* of all tensors */
    int blocks;
} plan_model;

/* text: a value of -e (a model's name as in gpt2.h, a file with weights, or a config.json), or a
   number of parameters: 7.5e9. seq_len: the sequence length of char: models; 0: 64. */
int plan_model_read(const char *text, int seq_len, plan_model *m, char *sentence, size_t bytes);

/* Makes the model of a number of parameters, 1 to 1e14. */
void plan_model_of(double numel, plan_model *m);

/* The case to plan. If all but the model is zero: stage 0 on one CPU rank, f32. */
typedef struct plan_case {
    const plan_model *model;
    zero_config zero; /* `folder` may be NULL, because no file is made */
    gpt2_run run;     /* of a GPT-2; batch 0: no activations */
    int nranks;       /* 0: 1 */
    int sharers;      /* ranks that share a layer's experts; 0: 1 */
    int tp,
        sequence; /* tensor-parallel ranks, 0: 1; sequence 1: they cut rows between layers, too */
    int cp;       /* context-parallel ranks, 0: 1 */
    context_way attends; /* how they divide attention */
    int pp, chunks;  /* pipeline stages, and chunks of each; 0: 1. The other factor of the ranks is
                        data-parallel */
    int node_size;   /* as in zero_comm */
    int on_gpus;     /* 0: CPUs */
    int one_machine; /* CPU: ranks map each other's memory, as with -pn */
    int checks;      /* 1: memory for checked products (-ck) is part of the activations */
    size_t state_bytes; /* plan_answer.state_bytes, if it is known; 0: plan_ask finds it */
    int saves;          /* number of ways in which the run saves, see `way` */
    checkpoint_way way[2];
} plan_case;

/* Bytes of one rank, the first of its stage. Other ranks differ only in padding, and in the
   matrices that MUON assigns to them. */
typedef struct plan_answer {
    int rank, pp_rank; /* the first tensor- and data-parallel rank of its stage */
    zero_plan zero;
    zero_config resolved; /* with all defaults */
    size_t activations;   /* with the model's scratch memory and a pipeline's messages */
    size_t state_bytes;   /* optimizer state and master weights, in all tiers */
    uint64_t among; /* sent in addition to zero.sent_bytes: among tensor-parallel ranks, between
                       stages, and among ranks that share experts */
    size_t away;    /* inputs of blocks, offloaded to host memory (GPU) or a file */
    size_t saves;   /* checkpoints and copies, in host memory */
    uint64_t device_bytes, host_bytes, file_bytes; /* all bytes of the rank, by tier */
} plan_answer;

/* Sets *ranks, the context-parallel ranks of a case that are a ring (1: none). Errors: those of
   context_choose. */
zero_result plan_ring(const plan_case *c, int *ranks, gpt2_error *err);

/* Plans the pipeline stage that takes most device memory. plan_ask_stage plans stage pp_rank. */
int plan_ask(const plan_case *c, plan_answer *a, char *sentence, size_t bytes);
int plan_ask_stage(const plan_case *c, int pp_rank, plan_answer *a, char *sentence, size_t bytes);

/* Adds the memory and the messages of c->run to an answer of the same case with run.batch 0. Both
   calls together give the answer of plan_ask. Not for a pipeline. */
int plan_add_run(const plan_case *c, plan_answer *a, char *sentence, size_t bytes);

/* The most bytes that a rank may take; 0: no limit. */
typedef struct plan_limits {
    double device, host, file;
} plan_limits;
int plan_fits(const plan_answer *a, const plan_limits *most);

/* Returns the largest c->run.batch, 1 to 65536, that fits, or 0 if none does. */
int plan_largest_batch(const plan_case *c, const plan_limits *most);

/* Returns the parameters of the largest model that fits with c's settings, to three digits and
   without activations, or 0 if none fits. Needs a limit of device memory. */
double plan_largest_model(const plan_case *c, const plan_limits *most);

#ifdef __cplusplus
}
#endif
#endif

/* plan.h - what a configuration will take and send, asked of the plugin without a machine.

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

   WHY A ROOM. The plugin plans what it is told of, and needs neither ranks nor memory for it
   (zero_query_plan); the model tells its activations (gpt2_activation_bytes). Both numbers of one
   rank, side by side, are all there is here: no formula of stages or tiers stands in this folder.

   Functions that can fail return 0, or 1 and a sentence. They belong to one thread.
*/
#ifndef PLAN_H
#define PLAN_H

#include "../checkpoint/checkpoint.h"
#include "../gpt2/gpt2.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { PLAN_SENTENCE = 512 };

/* A GPT-2; or a number of parameters alone, which is cut into equal blocks for the buffers' sake:
   as many as blocks of width 128 L have that many together (GPT-3's proportions), L of them. */
typedef struct plan_model {
    char name[256];
    int is_gpt2;
    gpt2_config gpt2;
    size_t numel; /* of all tensors */
    int blocks;
} plan_model;

/* text: what -e takes (gpt2.h; a file with weights or a config.json), or a number: 7.5e9.
   seq_len: of char: models; 0: 64. */
int plan_model_read(const char *text, int seq_len, plan_model *m, char *sentence, size_t bytes);

/* The same from a number of parameters, 1 to 1e14. */
void plan_model_of(double numel, plan_model *m);

/* What is asked. All zeros but the model: stage 0 on one CPU rank, f32. */
typedef struct plan_case {
    const plan_model *model;
    zero_config zero; /* `folder` may be NULL: a file is planned anywhere */
    gpt2_run run;     /* of a GPT-2; batch 0: no activations */
    int nranks;       /* 0: 1 */
    int sharers;      /* ranks that share a layer's experts; 0: 1 */
    int tp, sequence; /* tensor-parallel ranks, 0: 1; rows between layers are cut, too */
    int pp, chunks;   /* stages of a pipeline, and chunks of each; 0: 1. The rest of the ranks is
                         data-parallel */
    int node_size;    /* as in zero_comm */
    int on_gpus;      /* 0: CPUs */
    int one_machine;  /* CPU: ranks see each other's memory, as those of -pn do */
    int saves;        /* places that a run saves in: */
    checkpoint_way way[2];
} plan_case;

/* Bytes of one rank: the first of its stage (its others are alike, but for what the last ones pad,
   and for the matrices that MUON deals out). */
typedef struct plan_answer {
    int rank, pp_rank; /* of tensor- and data-parallel ranks the first */
    zero_plan zero;
    zero_config resolved; /* with every default */
    size_t activations;   /* and the model's scratch memory, and messages of a pipeline */
    size_t state_bytes;   /* optimizer state and master weights, wherever they lie */
    uint64_t among;       /* beside zero.sent_bytes: among parts of layers, between stages, and to
                             ranks that share experts, and back */
    size_t away;          /* inputs of blocks, kept in the host's memory (GPU) or in a file */
    size_t saves;         /* checkpoints and copies, in the host's memory */
    uint64_t device_bytes, host_bytes, file_bytes; /* all that a rank takes, by where it lies */
} plan_answer;

/* Of the stage whose ranks take most device memory; and of stage pp_rank. */
int plan_ask(const plan_case *c, plan_answer *a, char *sentence, size_t bytes);
int plan_ask_stage(const plan_case *c, int pp_rank, plan_answer *a, char *sentence, size_t bytes);

/* What a rank may take; 0: no limit. */
typedef struct plan_limits {
    double device, host, file;
} plan_limits;
int plan_fits(const plan_answer *a, const plan_limits *most);

/* The largest c->run.batch, 1 to 65536, with which it fits; 0: none does. */
int plan_largest_batch(const plan_case *c, const plan_limits *most);

/* Parameters of the largest model of c's settings that fits, of three digits; activations are left
   out. 0: none does. Needs a limit of device memory. */
double plan_largest_model(const plan_case *c, const plan_limits *most);

#ifdef __cplusplus
}
#endif
#endif

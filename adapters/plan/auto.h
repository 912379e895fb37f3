/* auto.h - chooses the settings of a run by its predicted time, for -z auto.

   EXAMPLE
       auto_result found;
       plan_request r;                      // with the limits r.most and the rates r.machine
       if (auto_search(&r, &found, why, sizeof why)) return fail(why);
       auto_print_table(&r, &found, "./train_gpt2_zero", flags, text, sizeof text);
       auto_flags(&r, &found.family[0].best.choice, flags);    // "-z 2 -b 4 -r 1 -d 16384"

   THE SEARCH. The table of dimensions in auto_space.c has a row for each searched flag. A row lists
   the legal values that are left by the rows before it. A flag that the user typed, or that a
   DeepSpeed file contains, has this one value. A new dimension is a new row, a field of
   auto_choice, and its cost in plan.h or auto_time.c.
       stage          -z: 0 to 3
       accumulation   -za: auto; at stages 2 and 3 with several micro-steps also local
       order          -mo: passes; at stages 2 and 3 with several micro-steps also layers
       layers         -mog: 1; with -mo layers also 4, or all of a smaller model
       state          -zos: device, host (GPUs) and file
       shards         -zog, -zop: gradients and parameters on the device, or where the state is; on
                      GPUs, gradients can be in host memory, too
       groups         -zs, -zh: 0, or the ranks of a node (-ns)
       prefetch       -zp: 1 and 0; if messages can overlap with computing, also 2 and 4
       batch          -b: divisors of a rank's windows in a step; its tokens stay
       recomputation  -r: 0 to 4; with several layers at once 3 and 4
   The search visits every combination. It asks plan.h for the memory and traffic of each context,
   for one, two and three micro-steps. From three on, every micro-step adds the same traffic. It
   leaves out only plans that cannot win, because their lower bound (auto_least_seconds) is not
   below the fastest plan of their family. Lossy plans are left out before their context is planned,
   also if their activations and state alone do not fit.

   THE CHOICE is the plan of the shortest predicted step (auto_predict) among those that fit into
   r.most. Of equally fast plans it is the first in the order of the table, which lists simple
   values first. Equal requests give equal choices.

   --allow-lossy. Combinations of -os, -qw and -qg that keep less accuracy are searched one after
   the other, the simple ones first. The fastest plan of one is the choice only if its step takes at
   most 97 % of the time of the fastest plan before it, or if none before it fits.

   A FAMILY is the set of plans with one stage and one triple of tiers, or all plans of one lossy
   combination. The result has the fastest plan of each family, or the plan of a family that is the
   least above the limit. The runner-up is the fastest plan of another family, because plans of the
   same family differ by little.

   THE STEP (auto_predict) is machine_predict's. If ranks are on several nodes, or on GPUs, the sent
   bytes and their overlap with computing come from the simulator (overlap.h) instead, at the rates
   `link` and `far`. Layouts with tensor parallelism, pipelines or experts keep machine_predict's.

   THE COMMAND LINE that repeats a choice has the user's flags without -z, and the chosen flags. The
   trainer gets the settings of the choice by setting the same flags, so both runs have equal bits.

   Functions that can fail return 0, or 1 and a sentence. Only one thread at a time may call them.
*/
#ifndef PLAN_AUTO_H
#define PLAN_AUTO_H

#include <stdio.h>

#include "plan_request.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    AUTO_FAMILIES = 96,
    AUTO_FLAGS = 512,  /* bytes of the flags of a choice */
    AUTO_TABLE = 8192, /* bytes of the printed table */
    AUTO_VALUES = 128, /* most values of a dimension */
    AUTO_NAME = 64     /* bytes of the name of a family's tiers */
};
/* The share of the time of the fastest exact plan that a lossy one may take. */
#define AUTO_LOSSY 0.97

/* A value for each searched flag, as in train_options. */
typedef struct auto_choice {
    int stage, accumulation, layer_order, layer_group;
    int optimizer, gradient, parameter; /* tiers; `gradient` may be TRAIN_TIER_AUTO if typed */
    int shard_ranks, second_ranks, prefetch;
    int state_type, weight_bits, gradient_bits;
    int batch, recompute;
    int micro_steps; /* follows from the batch */
} auto_choice;

typedef struct auto_plan {
    auto_choice choice;
    machine_step step;
    uint64_t device_bytes, host_bytes, file_bytes;
    uint64_t sent_bytes, moved_bytes; /* in a step: to other ranks, from and to files */
} auto_plan;

typedef struct auto_family {
    char tiers[AUTO_NAME];
    int fits;      /* 1: `best` is the fastest plan that fits; 0: the one with the least excess */
    int lossy;     /* number of a combination of --allow-lossy; 0: none */
    double excess; /* bytes over limit of `best`, of the tier that lacks most; at most 1 if fits */
    char unknown[PLAN_SENTENCE]; /* why plans that fit have no predicted time; "": they have */
    auto_plan best;
} auto_family;

typedef struct auto_result {
    auto_family family[AUTO_FAMILIES]; /* those that fit, the fastest first; then by excess */
    int families, fitting;
    int64_t legal, fit;            /* numbers of plans, without those of --allow-lossy */
    int64_t contexts, simulations; /* plans that were asked for, and steps that were simulated */
    int64_t step_tokens;           /* tokens of a step, over all ranks */
    double seconds;                /* duration of the search */
    char refused[PLAN_SENTENCE];   /* why the first refused plan was refused; "": none was */
} auto_result;

/* Searches. Fails if no plan is legal. found->fitting is 0 if none fits. r->machine is required. */
int auto_search(const plan_request *r, auto_result *found, char *sentence, size_t bytes);

/* Predicts a step. *simulated is set to 1 if it was simulated; NULL is allowed. */
int auto_predict(const machine *m, const plan_case *c, const plan_answer *a, machine_step *step,
                 int *simulated, char *sentence, size_t bytes);

/* Returns a time that the step is not shorter than, in less time than auto_predict. */
double auto_least_seconds(const machine *m, const plan_case *c, const plan_answer *a);

/* Writes the flags of a choice as arguments: all that the search chose, and -d. */
void auto_flags(const plan_request *r, const auto_choice *c, char flags[AUTO_FLAGS]);

/* Sets flags that auto_flags wrote. A typed flag with another value is an error. */
int auto_set_flags(train_options *o, const char *flags, char *sentence, size_t bytes);

/* Writes the table: choice, runner-up, the other families with the reason why they fall short, and
   the command line that repeats the choice: program, the flags that the user typed, and the chosen
   ones. */
void auto_print_table(const plan_request *r, const auto_result *found, const char *program,
                      const char *typed, char *text, size_t bytes);

/* Writes a line for each family, the fastest first. */
void auto_print_csv(const plan_request *r, const auto_result *found, FILE *csv);

#ifdef __cplusplus
}
#endif
#endif

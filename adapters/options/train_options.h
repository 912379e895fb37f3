/* train_options.h - all settings of train_gpt2_zero: their values, and their fields in a ds_config,
   whose `zero` and `hyper` are the plugin's own settings.

   The table, in train_options.c, is the one place where a setting is described: flag, default,
   range, help, DeepSpeed's key, the plugin's field. The trainer reads the command line only through
   these values.
*/
#ifndef TRAIN_OPTIONS_H
#define TRAIN_OPTIONS_H

#include <stddef.h>
#include <stdint.h>

#include "../ds_config/ds_config.h"
#include "options.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { TRAIN_MAX_ROUNDS = 1000, TRAIN_OPTIONS_MOST = 168 };
enum { TRAIN_TIER_AUTO = ZERO_TIERS }; /* -zog: follows -zos */

typedef struct train_options {
    const char *train_path, *val_path, *tokenizer_path, *model, *log_dir, *csv_path;
    option_list stage;                      /* -z; more than one: compare; none: auto */
    const char *server, *folder;            /* -ps, -pf */
    int method, rank, per_node, as_threads; /* -pi, -pr, -pg, -pt */
    int elastic, copies;                    /* -pe, -pm */
    int check_products;                     /* -ck; 0: never */
    const char *ranks_file;                 /* -pnf; "": none */
    const char *address, *join;             /* -pa, -pj; "": none */
    int ranks, node_size, threads;
    int tensor_parallel, sequence_parallel, untied; /* -tp, -sp, -ut */
    int context_parallel, context_way;              /* -cp, -ca */
    int sparse_rows;                                /* -sr: 0 off, 1 on, 2 auto */
    int pipeline, pipeline_chunks;                  /* -pp, -ppv */
    int experts, chosen, expert_group;              /* -en, -ek, -eg */
    int experts_apart;                              /* -ego */
    double capacity, aux;                           /* -ec, -ea */
    const char *layouts;                            /* -layouts; "": none to compare */
    const char *train, *freeze;                     /* -tn, -fz: patterns of names; "": all, none */
    int lora;                                       /* -lo; 0: no adapters */
    double lora_alpha;                              /* -loa; 0: the rank */
    const char *lora_on;                            /* -lot */
    int batch, seq_len, steps;
    int64_t step_tokens; /* -d */
    int virtual_ranks;   /* -vr; 0: off */
    int64_t seed;
    int order, overfit;
    int type, grads, master, state_type; /* -dt, -zg, -w, -os */
    int embedding_state;                 /* -oe: 0 as -os, 1 f32 */
    double scale, first_scale, least_scale;
    int scale_window, hysteresis;
    int optimizer, schedule, warmup;
    double lr, final_fraction, weight_decay, beta1, beta2, eps, clip;
    double momentum, plain_lr; /* -mm, -ml: of muon */
    int match_rms;             /* -mr */
    int polar_express;         /* -mp */
    double normuon;            /* -mn */
    int muon_heads;            /* -mh */
    double trust_least, trust_most;
    double skip_loss, skip_norm;  /* -sl, -sg; 0: never */
    const char *ds_path, *ds_out; /* -ds, -dso */
    int val_every, val_batches, sample_every, sample_tokens;
    int save_every, keep_last, keep_every, save_aside, save_or_go_on, resume; /* -n..., -y */
    int save_frozen;                                                          /* -nz */
    int recompute, tf32, any_order, graphs;
    int tile_rows;             /* -zl; 0: wte is whole */
    int mlp_rows;              /* -mt; 0: MLPs have no tiles */
    const char *products_path; /* -pc; "": the table's ways */
    int layer_order;           /* -mo: 1 layers */
    int layer_group;           /* -mog */
    int accumulation, prefetch, overlap, mapping;
    int shard_ranks, second_ranks;                     /* -zs, -zh */
    int integrity;                                     /* -zi */
    int weight_bits, frozen_weight_bits;               /* -qw, -qwf */
    int gradient_bits, feedback_reset;                 /* -qg, -qr */
    double feedback;                                   /* -qf */
    int optimizer_tier, gradient_tier, parameter_tier; /* -zos, -zog, -zop; see train_tiers */
    double offload_share;                              /* -zor; 0: all tiers are DEVICE */
    int delay_from;                                    /* -zod */
    int update_on;                                     /* -zou */
    double link_gbs, memory_gbs;                       /* -zol, -zom */
    const char *offload_folder;                        /* -zfd */
    int file_check;                                    /* -zfc */
    int64_t bucket, persistence;
    const char *memory, *machine; /* -me, -ma; "": no limit, no file */
    int lossy;                    /* -al */
    double timeout;
    int rounds;
    int print_batches;
    int print_every;                               /* -lp */
    int settings;                                  /* -st; 1: all rows */
    const char *trace_path;                        /* -tr; "": none, as the two folders */
    const char *tensorboard_dir, *csv_monitor_dir; /* -tbd, -tcd */
    int breakdown_every, comms_log, profile_step;  /* -tb, -tc, -tk; 0: never */
    int evaluate;                                  /* -h */
    const char *eval_path;                         /* -hf */
    int gelu_fusion, gpu_log;                      /* -ge, -lg: without effect */
    int help;                                      /* 1: the user wants help; --version: 2 */
    const char *help_about;                        /* the section or flag of --help, or "" */
    unsigned char given[TRAIN_OPTIONS_MOST];       /* 1 for each row with a typed flag */
    char error[512]; /* the first error of the command line; "": none */
} train_options;

/* Parses the command line. It never fails, and writes the first error to o->error. */
void train_options_parse(train_options *o, int argc, char **argv);

/* Prints what --help or --version asks for: the frequent flags, one section, one flag, or all.
   Returns 0, or 1 and a sentence if there is no such section. */
int train_options_help(const train_options *o, const char *program, char *sentence, size_t bytes);

/* Returns 1 if -e names a GPT-2 model, or a file with its weights: all models except char:. */
int train_is_gpt2(const char *model);

/* These call the functions of options.h for the trainer's table. */
size_t train_options_render(const train_options *o, char *text, size_t bytes);

/* A line for each path: "FLAG PATH" or "FLAG (none)". Ranks may give other paths; but whether they
   give one decides what they call together. */
void train_options_paths(const train_options *o, char *text, size_t bytes);
int train_options_given(const train_options *o, const char *flag);
/* Whether ranks may join and leave: -pnf, -pa, -pj. */
int train_changes_ranks(const train_options *o);
int train_options_fixed(const train_options *o, const char *flag, const ds_config *file);
/* Sets a flag as if it were typed. Returns 0, or 1 and o->error. */
int train_options_set(train_options *o, const char *flag, const char *value);
void train_options_store(const train_options *o, ds_config *settings);

/* Returns the word that was chosen for a flag. */
void train_options_word(const train_options *o, const char *flag, char word[OPTION_WORD_BYTES]);

void train_options_translate(const train_options *o, const char *sentence, char *out, size_t bytes);

/* For the file of -ds. _conflict returns 1 and a sentence if a typed flag has another value; _take
   copies the file's values to the options. */
int train_options_conflict(const train_options *o, const ds_config *file, char *sentence,
                           size_t bytes);
void train_options_take(train_options *o, const ds_config *file);

/* Finds the next typed flag from *row (0 at first) on that changes nothing here. Returns 1 and a
   sentence with the reason, or 0 after the last one. */
int train_options_idle(const train_options *o, int *row, char *sentence, size_t bytes);

/* Returns the next flag from *row (0 at first) on that changes the results of a training, or NULL
   after the last one. */
const char *train_options_course(int *row);

#ifdef __cplusplus
}
#endif
#endif

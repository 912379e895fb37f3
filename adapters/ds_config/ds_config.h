/* ds_config.h - reads a DeepSpeed configuration file (ds_config.json) for this trainer.

   EXAMPLE
       zero_hyper flags = {3e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f};
       ds_auto autos = {0};                       // replaces "auto"
       autos.ranks = 4;
       autos.micro_batch = 4;
       autos.hyper = &flags;
       ds_notes notes = {say, stderr};            // gets a sentence per key without effect
       ds_config ds;
       char sentence[512];
       if (ds_config_load("ds_config.json", &autos, &ds, &notes, sentence, sizeof sentence))
           give_up(sentence);
       zero_config cfg = ds.zero;                 // and ds.prefetch_numel

   WHICH KEYS. ds_table.h has every key of DeepSpeed 0.19.6 to 0.19.8, either applied, or accepted
   without effect (a note gives the reason), or not supported (unless its value means "off", an
   error names a replacement). A note names applied keys that DeepSpeed has removed. Any other key
   is an error that names the nearest key. null means "not given". An absent key has DeepSpeed's
   default if that changes the result: gradients are clipped to 1, AdamW has lr 1e-3, betas 0.9 and
   0.999, eps 1e-8, weight_decay 0. (But Lamb's trust ratio has bounds only if min_coeff and
   max_coeff are given; a note reports this.) If a key affects only memory and speed (buckets,
   prefetch, persistence, overlap), the plugin's default applies.

   TEXT. cJSON reads the JSON. As with DeepSpeed's reader (Hjson), it may have // and # and
   slash-star comments, and commas before a closing bracket. Hjson without quotes or commas is an
   error.

   OFFLOAD. "cpu" is ZERO_HOST, "nvme" ZERO_FILE at any stage, in an unnamed file in the
   folder nvme_path; `ratio` is the offloaded share. The file has no key for the tier of gradients:
   the trainer chooses it.

   ds_auto replaces "auto", as Hugging Face's trainer does. Keys that ds_auto does not have get
   DeepSpeed's default. If DeepSpeed has no default, "auto" is an error.

   ERRORS. Every function that can fail returns 0, or 1 and a sentence with file, line, key, the
   found and the expected value; *out is then all zeros. The functions print nothing, and keep no
   memory.
*/
#ifndef DS_CONFIG_H
#define DS_CONFIG_H

#include "../../zero_plugin.h"
#include "../schedule/schedule.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    DS_CONFIG_BYTES = 16 << 20, /* largest text */
    DS_CONFIG_KEYS = 4096,      /* most keys in it */
    DS_CONFIG_DEPTH = 64,       /* deepest nesting of brackets */
    DS_CONFIG_FOLDER = 512      /* bytes of nvme_path, its end included */
};

/* Values of the trainer's flags; 0 means "not known" (an absent type is F32). */
typedef struct ds_auto {
    int ranks;                /* all ranks that train together; required */
    int64_t train_batch;      /* sequences per step */
    int micro_batch;          /* sequences per rank and micro-step */
    int accumulation;         /* micro-steps per step */
    zero_type type;           /* fp16.enabled, bf16.enabled */
    const zero_hyper *hyper;  /* borrowed during the call; NULL: DeepSpeed's defaults. Also
                                 ds_config.hyper without an optimizer */
    zero_optimizer optimizer; /* used without an optimizer in the file; ADAMW */
    int64_t warmup_steps;     /* warmup_num_steps */
    int64_t total_steps;      /* total_num_steps */
    int64_t hidden;           /* width of the model: stage3_prefetch_bucket_size 0.9 hidden^2,
                                 stage3_param_persistence_threshold 10 hidden */
    const char *folder;       /* used without nvme_path; NULL: an absent nvme_path is an error */
    int tensor_parallel;      /* tensor-parallel ranks, pipeline stages and context-parallel */
    int pipeline;             /* ranks; the other factor of the ranks is data-parallel; 0: 1, or */
    int context_parallel;     /* the file's value */
    int none_frozen;          /* 1: the model trains all tensors */
} ds_auto;

/* Bits for keys in the file that have a value, also from "auto". */
enum {
    DS_GIVEN_OPTIMIZER = 1 << 0,
    DS_GIVEN_LR = 1 << 1,
    DS_GIVEN_BETAS = 1 << 2, /* or momentum */
    DS_GIVEN_EPS = 1 << 3,
    DS_GIVEN_DECAY = 1 << 4,
    DS_GIVEN_CLIPPING = 1 << 5,
    DS_GIVEN_STAGE = 1 << 6,
    DS_GIVEN_TYPE = 1 << 7, /* fp16.enabled or bf16.enabled */
    DS_GIVEN_PREFETCH = 1 << 9,
    DS_GIVEN_PERSISTENCE = 1 << 10,
    DS_GIVEN_OVERLAP = 1 << 11,
    DS_GIVEN_STEPS_PER_PRINT = 1 << 12,
    DS_GIVEN_OPTIMIZER_TIER = 1 << 13,
    DS_GIVEN_PARAMETER_TIER = 1 << 14,
    DS_GIVEN_SHARE = 1 << 15,
    DS_GIVEN_MOMENTUM = 1 << 16, /* Muon's */
    DS_GIVEN_PLAIN_LR = 1 << 17, /* adam_lr, or muon_lr in addition to lr */
    DS_GIVEN_LEAST_TRUST = 1 << 18,
    DS_GIVEN_MOST_TRUST = 1 << 19,
    DS_GIVEN_EXPERT_GROUP = 1 << 20,
    DS_GIVEN_EXPERTS_ASKED = 1 << 21,
    DS_GIVEN_EXPERTS_APART = 1 << 22,
    DS_GIVEN_SHARD_RANKS = 1 << 23,  /* mics_shard_size, above 0 */
    DS_GIVEN_SECOND_RANKS = 1 << 30, /* zero_hpz_partition_size, above 1 */
    DS_GIVEN_BREAKDOWN = 1 << 24,
    DS_GIVEN_COMMS = 1 << 25,
    DS_GIVEN_PROFILE = 1 << 26,
    DS_GIVEN_TENSOR_RANKS = 1 << 27,
    DS_GIVEN_PIPELINE = 1 << 28,
    DS_GIVEN_SEQUENCE = 1 << 29
};
#define DS_GIVEN_WEIGHT_BITS   ((uint64_t)1 << 31) /* an enum is an int */
#define DS_GIVEN_GRADIENT_BITS ((uint64_t)1 << 32)
#define DS_GIVEN_FEEDBACK      ((uint64_t)1 << 33)
#define DS_GIVEN_FROZEN_BITS   ((uint64_t)1 << 34)
#define DS_GIVEN_MUON_HEADS    ((uint64_t)1 << 35)
#define DS_GIVEN_CONTEXT_RANKS ((uint64_t)1 << 36)

typedef struct ds_config {
    zero_config zero; /* stage, micro_steps, type, grads, master, state_type, optimizer, scaler,
                         persistence_numel, no_overlap, no_overflow_check, optimizer_tier,
                         parameter_tier, offload_share, trust_least, trust_most, muon,
                         shard_ranks, second_ranks; the rest is 0 */
    zero_hyper hyper; /* the optimizer's; schedule_at returns the lr of a step */
    int has_schedule; /* 0: lr is constant, lr_schedule zeros */
    schedule lr_schedule;
    int64_t train_batch; /* micro_batch x accumulation x data-parallel ranks */
    int micro_batch, accumulation;
    int64_t prefetch_numel; /* stage3_prefetch_bucket_size, elements; see DS_GIVEN_PREFETCH */
    int steps_per_print;    /* 0: not given */
    uint64_t given;         /* DS_GIVEN_... */
    int breakdown;    /* wall_clock_breakdown: steps between two lines (steps_per_print, or 10);
                         0: no lines */
    int comms_log;    /* comms_logger.enabled */
    int profile_step; /* flops_profiler: this step, from 1 on; 0: none */
    char tensorboard[DS_CONFIG_FOLDER]; /* output_path/job_name of `tensorboard`, if it is enabled,
                                           else "" */
    char csv_monitor[DS_CONFIG_FOLDER]; /* the same of `csv_monitor` */
    char folder[DS_CONFIG_FOLDER];      /* nvme_path, for zero.folder; "": the trainer's folder, or
                                           no tier is FILE */
    int tensor_parallel;   /* ranks with one model in parts; see DS_GIVEN_TENSOR_RANKS */
    int pipeline;          /* stages; see DS_GIVEN_PIPELINE */
    int sequence_parallel; /* partition_activations; see DS_GIVEN_SEQUENCE */
    int context_parallel;  /* sequence_parallel_size: ranks with the same sequences; see
                              DS_GIVEN_CONTEXT_RANKS */
    int recompute;         /* cpu_checkpointing: 4, inputs of blocks are offloaded; 0: not given */
    int expert_group;      /* ranks that share a layer's experts; see DS_GIVEN_EXPERT_GROUP */
    int experts_asked;     /* by a token: 1 or 2; see DS_GIVEN_EXPERTS_ASKED */
    int per_head_muon;     /* 1: Muon's matrices of queries, keys and values are those of a head */
    int experts_apart; /* 1: neighbours have the same experts, not a group's; DS_GIVEN_EXPERTS_APART
                        */
} ds_config;

/* Gets a sentence (without newline) for each key that has no effect here, with the reason. */
typedef struct ds_notes {
    void (*note)(void *user, const char *sentence);
    void *user;
} ds_notes;

/* Reads a file. notes may be NULL. */
int ds_config_load(const char *path, const ds_auto *autos, ds_config *out, const ds_notes *notes,
                   char *sentence, size_t bytes);

/* The same from `length` bytes of text; `name` stands for the file in sentences. */
int ds_config_parse(const char *text, size_t length, const char *name, const ds_auto *autos,
                    ds_config *out, const ds_notes *notes, char *sentence, size_t bytes);

/* Returns the resolved values as JSON, which loads to the same ds_config with the same ds_auto. The
   caller frees it. NULL if memory is short. */
char *ds_config_print(const ds_config *ds);

#ifdef __cplusplus
}
#endif
#endif

/* ds_table.h - every key of the configuration of DeepSpeed 0.19.6 to 0.19.8, one row each, in the
   order of its documentation. Included by ds_config.c, and by the test, which makes a case of each
   row.

     APPLIED(path, kind, id)           the value goes to value[id]; kind and range are checked
     RANGED(path, kind, id, least, most)
     IGNORED(path, kind, why)          accepted without effect; the note ends with `why`
     REFUSED(path, kind, off, instead) an error that ends with `instead`, unless the value is `off`,
                                         null, "auto", or {"enabled": false}; of kind DS_OBJECT,
                                         unless it is null or false
     SECTION(path)                     an object whose keys have rows of their own

   ds_removed has the keys that newer versions of DeepSpeed refuse. They keep their rows.
*/
#ifndef DS_TABLE_H
#define DS_TABLE_H

#include <float.h>
#include <limits.h>
#include <stddef.h>
#include <string.h>

typedef enum ds_class { DS_SECTION, DS_APPLIED, DS_IGNORED, DS_REFUSED, DS_CLASSES } ds_class;

typedef enum ds_kind {
    DS_OBJECT, /* with rows of its own */
    DS_BOOL,
    DS_WHOLE, /* a number without fraction; 5e8 is one */
    DS_REAL,
    DS_TEXT,
    DS_TYPE,   /* "fp32", "bf16", "fp16", and torch's names for them */
    DS_DEVICE, /* "none", "cpu", "nvme": the numbers of zero_tier */
    DS_PAIR,   /* two numbers */
    DS_LIST,
    DS_ANY,     /* any form: its keys have no rows */
    DS_SCHEDULE /* checked by schedule_set */
} ds_kind;

/* Applied values, each a double. */
typedef enum ds_id {
    DS_NONE,
    DS_TRAIN_BATCH,
    DS_MICRO_BATCH,
    DS_ACCUMULATION,
    DS_STEPS_PER_PRINT,
    DS_CLIPPING,
    DS_COMM_TYPE,
    DS_ACCUM_TYPE,
    DS_PARAM_TYPE,
    DS_OPTIMIZER, /* texts that are looked at before all others */
    DS_SCHEDULER,
    DS_LR,
    DS_BETA1, /* and the next */
    DS_BETA2,
    DS_EPS,
    DS_DECAY,
    DS_MOMENTUM,
    DS_NESTEROV,
    DS_ADAM_W_MODE,
    DS_TORCH_ADAM,
    DS_MUON_LR,
    DS_ADAM_LR,
    DS_HEADS_OF_MUON,
    DS_MIN_COEFF,
    DS_MAX_COEFF,
    DS_FP16,
    DS_LOSS_SCALE,
    DS_SCALE_POWER,
    DS_SCALE_WINDOW,
    DS_HYSTERESIS,
    DS_CONSECUTIVE,
    DS_MIN_SCALE,
    DS_BF16,
    DS_CHECK_OVERFLOW,
    DS_NO_MASTER,
    DS_BF16_STATE,
    DS_STAGE,
    DS_OVERLAP,
    DS_PREFETCH,
    DS_PERSISTENCE,
    DS_OPTIMIZER_DEVICE,
    DS_OPTIMIZER_FOLDER, /* a text */
    DS_OPTIMIZER_RATIO,
    DS_PARAM_DEVICE,
    DS_PARAM_FOLDER, /* a text */
    DS_BREAKDOWN,
    DS_COMMS_LOG,
    DS_PROFILE,
    DS_PROFILE_STEP,
    DS_TENSORBOARD, /* and the next two: enabled, output_path, job_name; the latter are texts */
    DS_TENSORBOARD_PATH,
    DS_TENSORBOARD_NAME,
    DS_CSV,
    DS_CSV_PATH,
    DS_CSV_NAME,
    DS_TENSOR_RANKS,
    DS_CONTEXT_RANKS,
    DS_STAGES,
    DS_PARTITION,
    DS_CPU_CHECKPOINTING,
    DS_EXPERTS,
    DS_EXPERT_GROUP,
    DS_EXPERTS_ASKED,
    DS_EXPERTS_APART,
    DS_SHARD_RANKS,
    DS_SECOND_RANKS,
    DS_QUANTIZED_WEIGHTS,
    DS_QUANTIZED_FROZEN,
    DS_QUANTIZED_GRADIENTS,
    DS_LOCO_BETA,
    DS_LOCO_RESET,
    DS_IDS
} ds_id;

/* Optimizers that have the key in their params, and kinds of schedule (of schedule_find). */
enum {
    DS_FOR_ADAM = 1,
    DS_FOR_SGD = 2,
    DS_FOR_LION = 4,
    DS_FOR_ADAGRAD = 8,
    DS_FOR_LAMB = 16,
    DS_FOR_MUON = 32,
    DS_FOR_ALL = 63
};

typedef struct ds_row {
    const char *path;
    size_t length; /* of the path */
    ds_class class;
    ds_kind kind;
    ds_id id;
    double least, most;
    int optimizers;
    const char *off;
    const char *text;
} ds_row;

#define SECTION(path)                                                                              \
    { path, sizeof path - 1, DS_SECTION, DS_OBJECT, DS_NONE, 0, 0, 0, NULL, NULL }
#define RANGED(path, kind, id, least, most)                                                        \
    { path, sizeof path - 1, DS_APPLIED, kind, id, least, most, DS_FOR_ALL, NULL, NULL }
#define APPLIED(path, kind, id) RANGED(path, kind, id, 0, 0)
#define PARAM(key, kind, id, least, most, optimizers)                                              \
    {                                                                                              \
        "optimizer.params." key, sizeof "optimizer.params." key - 1, DS_APPLIED, kind, id, least,  \
            most, optimizers, NULL, NULL                                                           \
    }
#define SCHED(key) APPLIED("scheduler.params." key, DS_SCHEDULE, DS_NONE)
#define IGNORED(path, kind, why)                                                                   \
    { path, sizeof path - 1, DS_IGNORED, kind, DS_NONE, 0, 0, DS_FOR_ALL, NULL, why }
#define REFUSED(path, kind, off, instead)                                                          \
    { path, sizeof path - 1, DS_REFUSED, kind, DS_NONE, 0, 0, DS_FOR_ALL, off, instead }

#define DS_BELOW_1 0.99999994 /* the largest float below 1 */
#define DS_MANY    9007199254740992.0

/* ---- reasons that several rows share ---- */
#define WHY_OFF        "read only where its feature is switched on, which is not supported here"
#define WHY_BUCKET     "a bucket is as large as the largest unit; -zb sets a larger one"
#define WHY_MEMORY     "memory for gathers is planned from the model's units"
#define WHY_TORCH      "it is about PyTorch, which is not used here"
#define WHY_TIMES      "the trainer prints its own timings"
#define WHY_TRACE      "the trainer's flag -tr records each operation"
#define WHY_LAYERS     "the table has all layers, and the operations of each"
#define WHY_SAVING     "checkpoints have a format of their own; zero_ckpt lists and exports them"
#define WHY_SCALING    "gradients are summed in f32, which needs no scaling before the sum"
#define WHY_AIO        "the plugin sizes and spreads its transfers from and to files by itself"
#define WHY_RING       "the plugin plans its buffers between memory and files by itself"
#define WHY_PINNED     "memory is pinned where a GPU copies from it, and only there"
#define WHY_PIPELINE   "pieces are always read ahead, and written back while others are updated"
#define WHY_VOCABULARY "embedding, classifier and loss are always cut by vocabulary"
#define WHY_HEADS      "whole heads and channels are divided"
#define WHY_GROUPS     "the trainer makes its groups by itself"
#define WHY_EXPERTS    "experts are GPT-2's MLPs, as many as the trainer's own flag -en says"
#define WHY_GATES                                                                                  \
    "gates are softmaxes; one expert's output is multiplied by its gate, two by theirs over "      \
    "their sum"
#define WHY_GPT2 "the model is GPT-2, which the trainer knows how to cut"
#define WHY_BETWEEN                                                                                \
    "what goes between stages is in parts where partition_activations (-sp 1) is on, and whole "   \
    "otherwise"
#define USE_ZENFLOW                                                                                \
    "remove it; it delays the update of most weights; here -zod N delays that of all"
#define USE_DATA  "use the trainer's own data loader"
#define USE_WHOLE "remove it; each rank computes whole layers"
#define USE_TYPES "use \"fp16\" or \"bf16\""

#define ZO  "zero_optimization."
#define OPT "zero_optimization.offload_optimizer."
#define PAR "zero_optimization.offload_param."
#define ZEN "zero_optimization.zenflow."
#define DE  "data_efficiency."
#define EP  "expert_parallel."

/* bf16 and its old name bfloat16 */
#define BF16_ROWS(name)                                                                            \
    SECTION(name), APPLIED(name ".enabled", DS_BOOL, DS_BF16),                                     \
        IGNORED(name ".immediate_grad_update", DS_BOOL,                                            \
                "gradients are always accumulated as backward makes them"),                        \
        APPLIED(name ".check_grad_overflow", DS_BOOL, DS_CHECK_OVERFLOW),                          \
        APPLIED(name ".bf16_master_weights_and_grads", DS_BOOL, DS_NO_MASTER),                     \
        APPLIED(name ".bf16_optimizer_states", DS_BOOL, DS_BF16_STATE)

/* zero_optimization keys that may also be written without "stage3_" */
#define STAGE3_ROWS(prefix)                                                                        \
    RANGED(ZO prefix "prefetch_bucket_size", DS_WHOLE, DS_PREFETCH, 0, DS_MANY),                   \
        RANGED(ZO prefix "param_persistence_threshold", DS_WHOLE, DS_PERSISTENCE, 0, DS_MANY),     \
        IGNORED(ZO prefix "model_persistence_threshold", DS_WHOLE,                                 \
                "what stays unsharded is bounded by stage3_param_persistence_threshold alone"),    \
        IGNORED(ZO prefix "max_live_parameters", DS_WHOLE, WHY_MEMORY),                            \
        IGNORED(ZO prefix "max_reuse_distance", DS_WHOLE, WHY_MEMORY),                             \
        IGNORED(ZO prefix "gather_16bit_weights_on_model_save", DS_BOOL, WHY_SAVING),              \
        IGNORED(ZO prefix "module_granularity_threshold", DS_WHOLE, WHY_MEMORY),                   \
        IGNORED(ZO prefix "use_all_reduce_for_fetch_params", DS_BOOL,                              \
                "parameters are gathered, or seen in place")

static const ds_row ds_rows[] = {
    /* ---- batch ---- */
    RANGED("train_batch_size", DS_WHOLE, DS_TRAIN_BATCH, 1, INT_MAX),
    RANGED("train_micro_batch_size_per_gpu", DS_WHOLE, DS_MICRO_BATCH, 1, INT_MAX),
    RANGED("gradient_accumulation_steps", DS_WHOLE, DS_ACCUMULATION, 1, INT_MAX),
    REFUSED("managed_gradient_accumulation", DS_BOOL, "true",
            "use true; the trainer counts its micro-steps"),
    RANGED("sequence_parallel_size", DS_WHOLE, DS_CONTEXT_RANKS, 1, 4096),
    IGNORED("data_parallel_size", DS_WHOLE, "the launcher says how many ranks train"),
    IGNORED("dataloader_drop_last", DS_BOOL, "a step always takes a whole batch"),
    IGNORED("vocabulary_size", DS_WHOLE, "the model says how large its vocabulary is"),

    /* ---- optimizer ---- */
    SECTION("optimizer"),
    APPLIED("optimizer.type", DS_TEXT, DS_OPTIMIZER),
    IGNORED("optimizer.legacy_fusion", DS_BOOL, "the update is one fused pass"),
    SECTION("optimizer.params"),
    PARAM("lr", DS_REAL, DS_LR, 0, FLT_MAX, DS_FOR_ALL),
    PARAM("betas", DS_PAIR, DS_BETA1, 0, DS_BELOW_1,
          DS_FOR_ADAM | DS_FOR_LION | DS_FOR_LAMB | DS_FOR_MUON),
    PARAM("eps", DS_REAL, DS_EPS, FLT_MIN, FLT_MAX,
          DS_FOR_ADAM | DS_FOR_ADAGRAD | DS_FOR_LAMB | DS_FOR_MUON),
    PARAM("weight_decay", DS_REAL, DS_DECAY, 0, FLT_MAX, DS_FOR_ALL),
    PARAM("momentum", DS_REAL, DS_MOMENTUM, 0, DS_BELOW_1, DS_FOR_SGD | DS_FOR_MUON),
    PARAM("nesterov", DS_BOOL, DS_NESTEROV, 0, 0, DS_FOR_SGD),
    PARAM("adam_w_mode", DS_BOOL, DS_ADAM_W_MODE, 0, 0, DS_FOR_ADAM),
    PARAM("torch_adam", DS_BOOL, DS_TORCH_ADAM, 0, 0, DS_FOR_ADAM),
    REFUSED("optimizer.params.dampening", DS_REAL, "0", "use 0"),
    REFUSED("optimizer.params.bias_correction", DS_BOOL, "true", "use true"),
    REFUSED("optimizer.params.amsgrad", DS_BOOL, "false", "use false"),
    REFUSED("optimizer.params.maximize", DS_BOOL, "false", "use false"),
    REFUSED("optimizer.params.fp32_optimizer_states", DS_BOOL, "true",
            "use true; bf16.bf16_optimizer_states keeps moments in bf16"),
    REFUSED("optimizer.params.max_grad_norm", DS_REAL, "0", "use gradient_clipping"),
    IGNORED("optimizer.params.set_grad_none", DS_BOOL, WHY_TORCH),
    IGNORED("optimizer.params.foreach", DS_BOOL, WHY_TORCH),
    IGNORED("optimizer.params.fused", DS_BOOL, WHY_TORCH),
    IGNORED("optimizer.params.capturable", DS_BOOL, WHY_TORCH),
    IGNORED("optimizer.params.differentiable", DS_BOOL, WHY_TORCH),
    PARAM("muon_lr", DS_REAL, DS_MUON_LR, FLT_MIN, FLT_MAX, DS_FOR_MUON),
    PARAM("adam_lr", DS_REAL, DS_ADAM_LR, FLT_MIN, FLT_MAX, DS_FOR_MUON),
    PARAM("per_head_muon", DS_BOOL, DS_HEADS_OF_MUON, 0, 0, DS_FOR_MUON),
    IGNORED("optimizer.params.ns_method", DS_TEXT, "matrices are iterated in f32, by one method"),
    PARAM("min_coeff", DS_REAL, DS_MIN_COEFF, 0, FLT_MAX, DS_FOR_LAMB),
    PARAM("max_coeff", DS_REAL, DS_MAX_COEFF, FLT_MIN, FLT_MAX, DS_FOR_LAMB),
    REFUSED("optimizer.params.eps_inside_sqrt", DS_BOOL, "false", "use false"),
    REFUSED("optimizer.params.lr_decay", DS_REAL, "0", "use a scheduler"),
    REFUSED("optimizer.params.initial_accumulator_value", DS_REAL, "0", "use 0"),
    IGNORED("zero_allow_untested_optimizer", DS_BOOL, "every optimizer here works at every stage"),
    IGNORED("zero_force_ds_cpu_optimizer", DS_BOOL,
            "every optimizer here works with every offload"),

    /* ---- scheduler ---- */
    SECTION("scheduler"),
    APPLIED("scheduler.type", DS_TEXT, DS_SCHEDULER),
    SECTION("scheduler.params"),
    SCHED("warmup_min_lr"),
    SCHED("warmup_max_lr"),
    SCHED("warmup_num_steps"),
    SCHED("warmup_type"),
    SCHED("total_num_steps"),
    SCHED("warmup_min_ratio"),
    SCHED("cos_min_ratio"),
    SCHED("cycle_min_lr"),
    SCHED("cycle_max_lr"),
    SCHED("decay_lr_rate"),
    SCHED("cycle_first_step_size"),
    SCHED("cycle_second_step_size"),
    SCHED("cycle_first_stair_count"),
    SCHED("cycle_second_stair_count"),
    SCHED("decay_step_size"),
    SCHED("cycle_momentum"),
    SCHED("cycle_min_mom"),
    SCHED("cycle_max_mom"),
    SCHED("decay_mom_rate"),
    SCHED("lr_range_test_min_lr"),
    SCHED("lr_range_test_step_size"),
    SCHED("lr_range_test_step_rate"),
    SCHED("lr_range_test_staircase"),
    REFUSED("scheduler.params.last_batch_iteration", DS_WHOLE, "-1",
            "use -1; a schedule starts at step 0"),

    /* ---- communication ---- */
    APPLIED("communication_data_type", DS_TYPE, DS_COMM_TYPE),
    IGNORED("seq_parallel_communication_data_type", DS_TYPE,
            "activations are sent in the type of the run"),
    IGNORED("prescale_gradients", DS_BOOL, WHY_SCALING),
    IGNORED("gradient_predivide_factor", DS_REAL, WHY_SCALING),
    REFUSED("gradient_allreduce_op", DS_TEXT, "mean",
            "use \"mean\" and a learning rate that fits it"),
    IGNORED("disable_allgather", DS_BOOL, "DeepSpeed does not read it either"),
    IGNORED("allgather_size", DS_WHOLE, WHY_MEMORY),
    SECTION("data_types"),
    APPLIED("data_types.grad_accum_dtype", DS_TYPE, DS_ACCUM_TYPE),
    APPLIED("data_types.param_dtype", DS_TYPE, DS_PARAM_TYPE),
    IGNORED("data_types.buffer_dtype", DS_TYPE, "the model has no buffers"),
    IGNORED("data_types.keep_in_fp32_modules", DS_ANY, "the model has no buffers"),

    /* ---- types ---- */
    SECTION("fp16"),
    APPLIED("fp16.enabled", DS_BOOL, DS_FP16),
    REFUSED("fp16.auto_cast", DS_BOOL, "false", "use false; the inputs are tokens"),
    RANGED("fp16.loss_scale", DS_REAL, DS_LOSS_SCALE, 0, FLT_MAX),
    RANGED("fp16.initial_scale_power", DS_WHOLE, DS_SCALE_POWER, 0, 127),
    RANGED("fp16.loss_scale_window", DS_WHOLE, DS_SCALE_WINDOW, 1, INT_MAX),
    RANGED("fp16.hysteresis", DS_WHOLE, DS_HYSTERESIS, 1, INT_MAX),
    APPLIED("fp16.consecutive_hysteresis", DS_BOOL, DS_CONSECUTIVE),
    RANGED("fp16.min_loss_scale", DS_WHOLE, DS_MIN_SCALE, 1, 16777216),
    REFUSED("fp16.fp16_master_weights_and_grads", DS_BOOL, "false",
            "use bf16 with bf16_master_weights_and_grads, which needs no f32 master weights"),
    BF16_ROWS("bf16"),
    BF16_ROWS("bfloat16"),
    SECTION("torch_autocast"),
    REFUSED("torch_autocast.enabled", DS_BOOL, "false", USE_TYPES),
    IGNORED("torch_autocast.dtype", DS_TYPE, WHY_OFF),
    IGNORED("torch_autocast.lower_precision_safe_modules", DS_LIST, WHY_OFF),
    RANGED("gradient_clipping", DS_REAL, DS_CLIPPING, 0, FLT_MAX),

    /* ---- ZeRO ---- */
    SECTION("zero_optimization"),
    RANGED(ZO "stage", DS_WHOLE, DS_STAGE, 0, 3),
    APPLIED(ZO "overlap_comm", DS_BOOL, DS_OVERLAP),
    IGNORED(ZO "reduce_bucket_size", DS_WHOLE, WHY_BUCKET),
    IGNORED(ZO "contiguous_gradients", DS_BOOL, "gradients always lie in one buffer per unit"),
    IGNORED(ZO "reduce_scatter", DS_BOOL,
            "gradients are always reduced to the rank that needs them"),
    IGNORED(ZO "use_multi_rank_bucket_allreduce", DS_BOOL, "no rank's part is sent on its own"),
    IGNORED(ZO "allgather_partitions", DS_BOOL, "parameters are gathered unit by unit"),
    IGNORED(ZO "allgather_bucket_size", DS_WHOLE, WHY_MEMORY),
    IGNORED(ZO "compute_grad_norm", DS_BOOL, "the norm costs no pass of its own"),
    IGNORED(ZO "load_from_fp32_weights", DS_BOOL, WHY_SAVING),
    IGNORED(ZO "elastic_checkpoint", DS_BOOL, WHY_SAVING),
    IGNORED(
        ZO "sub_group_size", DS_WHOLE,
        "the update runs unit by unit, in a file or the host's memory by pieces of 262144 numbers"),
    IGNORED(ZO "ignore_unused_parameters", DS_BOOL, "a unit without backward has gradient 0"),
    IGNORED(ZO "legacy_stage1", DS_BOOL, "stage 1 gives the same results either way"),
    IGNORED(ZO "round_robin_gradients", DS_BOOL, "all ranks own equal parts of every unit"),
    IGNORED(ZO "parameter_alignment", DS_BOOL, "every tensor is aligned"),
    STAGE3_ROWS("stage3_"),
    IGNORED(ZO "stage3_gather_fp16_weights_on_model_save", DS_BOOL, WHY_SAVING),
    IGNORED(ZO "stage3_allgather_sequential", DS_BOOL, WHY_MEMORY),
    STAGE3_ROWS(""),
    IGNORED(ZO "allgather_sequential", DS_BOOL, WHY_MEMORY),
    IGNORED(ZO "memory_efficient_linear", DS_BOOL, WHY_TORCH),
    IGNORED(ZO "pipeline_loading_checkpoint", DS_BOOL, WHY_SAVING),
    IGNORED(ZO "override_module_apply", DS_BOOL, WHY_TORCH),
    IGNORED(ZO "log_trace_cache_warnings", DS_BOOL, "the order of units is fixed"),
    IGNORED(ZO "enable_sanity_checks", DS_BOOL, "the order of calls is always checked"),
    IGNORED(ZO "save_muon_momentum_buffer_in_memory", DS_BOOL, WHY_OFF),
    SECTION(ZO "leaf_module"),
    IGNORED(ZO "leaf_module.classes", DS_ANY, "units are gathered, and not modules"),
    IGNORED(ZO "leaf_module.names", DS_ANY, "units are gathered, and not modules"),
    IGNORED(ZO "leaf_module.name_suffixes", DS_ANY, "units are gathered, and not modules"),
    RANGED(ZO "zero_hpz_partition_size", DS_WHOLE, DS_SECOND_RANKS, 0, 1e6),
    APPLIED(ZO "zero_quantized_weights", DS_BOOL, DS_QUANTIZED_WEIGHTS),
    APPLIED(ZO "zero_quantized_nontrainable_weights", DS_BOOL, DS_QUANTIZED_FROZEN),
    APPLIED(ZO "zero_quantized_gradients", DS_BOOL, DS_QUANTIZED_GRADIENTS),
    SECTION(ZO "zeropp_loco_param"),
    RANGED(ZO "zeropp_loco_param.err_beta", DS_REAL, DS_LOCO_BETA, 0, 0.9999999),
    RANGED(ZO "zeropp_loco_param.reset_T", DS_WHOLE, DS_LOCO_RESET, 0, INT_MAX),
    RANGED(ZO "mics_shard_size", DS_WHOLE, DS_SHARD_RANKS, -1, 1e6),
    IGNORED(ZO "mics_hierarchical_params_gather", DS_BOOL,
            "between nodes a shard goes once to each, and inside them ranks copy from each other"),
    APPLIED(ZO "cpu_offload", DS_BOOL, DS_OPTIMIZER_DEVICE), /* old names: true is "cpu" */
    APPLIED(ZO "cpu_offload_param", DS_BOOL, DS_PARAM_DEVICE),
    APPLIED(ZO "cpu_offload_params", DS_BOOL, DS_PARAM_DEVICE),
    IGNORED(ZO "cpu_offload_use_pin_memory", DS_BOOL, WHY_PINNED),
    SECTION(ZO "offload_optimizer"),
    APPLIED(OPT "device", DS_DEVICE, DS_OPTIMIZER_DEVICE),
    APPLIED(OPT "nvme_path", DS_TEXT, DS_OPTIMIZER_FOLDER),
    IGNORED(OPT "buffer_count", DS_WHOLE, WHY_RING),
    IGNORED(OPT "pin_memory", DS_BOOL, WHY_PINNED),
    IGNORED(OPT "pipeline_read", DS_BOOL, WHY_PIPELINE),
    IGNORED(OPT "pipeline_write", DS_BOOL, WHY_PIPELINE),
    IGNORED(OPT "fast_init", DS_BOOL, "optimizer state begins where it is kept"),
    RANGED(OPT "ratio", DS_REAL, DS_OPTIMIZER_RATIO, 0, 1),
    REFUSED(
        OPT "super_offload", DS_BOOL, "false",
        "use false; it updates before the gradient's norm is known, and here no update is undone"),
    IGNORED(OPT "cpuadam_cores_perc", DS_REAL, "-nt says how many threads a rank computes with"),
    SECTION(ZO "offload_param"),
    APPLIED(PAR "device", DS_DEVICE, DS_PARAM_DEVICE),
    APPLIED(PAR "nvme_path", DS_TEXT, DS_PARAM_FOLDER),
    IGNORED(PAR "buffer_count", DS_WHOLE, WHY_RING),
    IGNORED(PAR "buffer_size", DS_WHOLE, WHY_RING),
    IGNORED(PAR "max_in_cpu", DS_WHOLE, WHY_RING),
    IGNORED(PAR "pin_memory", DS_BOOL, WHY_PINNED),
    REFUSED(ZO "zenflow", DS_OBJECT, "", USE_ZENFLOW),
    REFUSED(ZEN "topk_ratio", DS_REAL, "", USE_ZENFLOW),
    REFUSED(ZEN "select_strategy", DS_TEXT, "", USE_ZENFLOW),
    REFUSED(ZEN "select_interval", DS_ANY, "", USE_ZENFLOW),
    REFUSED(ZEN "update_interval", DS_ANY, "", USE_ZENFLOW),
    REFUSED(ZEN "overlap_step", DS_BOOL, "", USE_ZENFLOW),
    REFUSED(ZEN "offload", DS_BOOL, "", USE_ZENFLOW),
    REFUSED(ZEN "auto_ratio", DS_REAL, "", USE_ZENFLOW),
    REFUSED(ZEN "full_warm_up_rounds", DS_WHOLE, "", USE_ZENFLOW),
    REFUSED(ZEN "pt_reserved_cores_perc", DS_REAL, "", USE_ZENFLOW),
    REFUSED(ZEN "steps_per_epoch", DS_WHOLE, "", USE_ZENFLOW),

    /* ---- reading and writing ---- */
    RANGED("steps_per_print", DS_WHOLE, DS_STEPS_PER_PRINT, 1, INT_MAX),
    APPLIED("wall_clock_breakdown", DS_BOOL, DS_BREAKDOWN),
    IGNORED("memory_breakdown", DS_BOOL, "the trainer prints its plan of memory"),
    IGNORED("dump_state", DS_BOOL, "the trainer prints what it resolved"),
    IGNORED("disable_python_gc", DS_BOOL, WHY_TORCH),
    IGNORED("log_level", DS_TEXT, "the trainer has its own flags for what it prints"),
    APPLIED("use_data_before_expert_parallelism", DS_BOOL, DS_EXPERTS_APART),
    SECTION("timers"),
    SECTION("timers.throughput"),
    IGNORED("timers.throughput.enabled", DS_BOOL, WHY_TIMES),
    IGNORED("timers.throughput.synchronized", DS_BOOL, WHY_TIMES),
    SECTION("flops_profiler"),
    APPLIED("flops_profiler.enabled", DS_BOOL, DS_PROFILE),
    IGNORED("flops_profiler.recompute_fwd_factor", DS_REAL,
            "operations that are computed again are not counted"),
    RANGED("flops_profiler.profile_step", DS_WHOLE, DS_PROFILE_STEP, 1, INT_MAX),
    IGNORED("flops_profiler.module_depth", DS_WHOLE, WHY_LAYERS),
    IGNORED("flops_profiler.top_modules", DS_WHOLE, WHY_LAYERS),
    IGNORED("flops_profiler.detailed", DS_BOOL, WHY_LAYERS),
    IGNORED("flops_profiler.output_file", DS_TEXT, "the table is printed with the other lines"),
    SECTION("comms_logger"),
    APPLIED("comms_logger.enabled", DS_BOOL, DS_COMMS_LOG),
    IGNORED("comms_logger.verbose", DS_BOOL, WHY_TRACE),
    IGNORED("comms_logger.prof_all", DS_BOOL, "all operations are in the table"),
    IGNORED("comms_logger.prof_ops", DS_LIST, "all operations are in the table"),
    IGNORED("comms_logger.debug", DS_BOOL, WHY_TRACE),
    SECTION("tensorboard"),
    APPLIED("tensorboard.enabled", DS_BOOL, DS_TENSORBOARD),
    APPLIED("tensorboard.output_path", DS_TEXT, DS_TENSORBOARD_PATH),
    APPLIED("tensorboard.job_name", DS_TEXT, DS_TENSORBOARD_NAME),
    SECTION("wandb"),
    REFUSED("wandb.enabled", DS_BOOL, "false", "use tensorboard, and `wandb sync` of its folder"),
    IGNORED("wandb.group", DS_TEXT, WHY_OFF),
    IGNORED("wandb.team", DS_TEXT, WHY_OFF),
    IGNORED("wandb.project", DS_TEXT, WHY_OFF),
    SECTION("csv_monitor"),
    APPLIED("csv_monitor.enabled", DS_BOOL, DS_CSV),
    APPLIED("csv_monitor.output_path", DS_TEXT, DS_CSV_PATH),
    APPLIED("csv_monitor.job_name", DS_TEXT, DS_CSV_NAME),
    SECTION("comet"),
    REFUSED("comet.enabled", DS_BOOL, "false",
            "use tensorboard; Comet's upload tool reads its event files"),
    IGNORED("comet.samples_log_interval", DS_WHOLE, WHY_OFF),
    IGNORED("comet.project", DS_TEXT, WHY_OFF),
    IGNORED("comet.workspace", DS_TEXT, WHY_OFF),
    IGNORED("comet.api_key", DS_TEXT, WHY_OFF),
    IGNORED("comet.experiment_name", DS_TEXT, WHY_OFF),
    IGNORED("comet.experiment_key", DS_TEXT, WHY_OFF),
    IGNORED("comet.online", DS_BOOL, WHY_OFF),
    IGNORED("comet.mode", DS_TEXT, WHY_OFF),

    /* ---- checkpoints ---- */
    SECTION("checkpoint"),
    IGNORED("checkpoint.tag_validation", DS_TEXT, WHY_SAVING),
    REFUSED("checkpoint.load_universal", DS_BOOL, "false",
            "use false; adapters/checkpoint/deepspeed_import.py makes a checkpoint of one"),
    IGNORED("checkpoint.use_node_local_storage", DS_BOOL, WHY_SAVING),
    IGNORED("checkpoint.checkpoint_serialization", DS_BOOL, WHY_SAVING),
    SECTION("checkpoint.parallel_write"),
    IGNORED("checkpoint.parallel_write.pipeline_stage", DS_BOOL, WHY_SAVING),
    SECTION("checkpoint.writer"),
    IGNORED("checkpoint.writer.type", DS_TEXT, WHY_SAVING),
    IGNORED("checkpoint.writer.io_buffer_size", DS_WHOLE, WHY_SAVING),
    IGNORED("checkpoint.writer.io_buffer_double", DS_BOOL, WHY_SAVING),
    IGNORED("checkpoint.writer.io_multiplier", DS_WHOLE, WHY_SAVING),
    IGNORED("checkpoint.writer.show_statistics", DS_BOOL, WHY_SAVING),
    IGNORED("checkpoint.writer.data_parallel", DS_TEXT, WHY_SAVING),
    IGNORED("checkpoint.writer.decoupled", DS_BOOL, WHY_SAVING),
    REFUSED("datastates_ckpt", DS_OBJECT, "",
            "remove it; DeepSpeed's checkpoint files are not written"),
    SECTION("aio"),
    IGNORED("aio.block_size", DS_WHOLE, WHY_AIO),
    IGNORED("aio.queue_depth", DS_WHOLE, WHY_AIO),
    IGNORED("aio.intra_op_parallelism", DS_WHOLE, WHY_AIO),
    IGNORED("aio.thread_count", DS_WHOLE, WHY_AIO), /* an older name */
    IGNORED("aio.single_submit", DS_BOOL, WHY_AIO),
    IGNORED("aio.overlap_events", DS_BOOL, WHY_AIO),
    IGNORED("aio.use_gds", DS_BOOL, WHY_AIO),

    /* ---- activations, compilation ---- */
    SECTION("activation_checkpointing"),
    APPLIED("activation_checkpointing.partition_activations", DS_BOOL, DS_PARTITION),
    APPLIED("activation_checkpointing.cpu_checkpointing", DS_BOOL, DS_CPU_CHECKPOINTING),
    IGNORED("activation_checkpointing.contiguous_memory_optimization", DS_BOOL, WHY_TORCH),
    IGNORED("activation_checkpointing.number_checkpoints", DS_WHOLE,
            "the trainer's own flag -r chooses what backward recomputes"),
    IGNORED("activation_checkpointing.synchronize_checkpoint_boundary", DS_BOOL, WHY_TORCH),
    IGNORED("activation_checkpointing.profile", DS_BOOL, WHY_TIMES),
    SECTION("compile"),
    REFUSED("compile.deepcompile", DS_BOOL, "false", "use false; the code is compiled already"),
    IGNORED("compile.autoep_non_moe", DS_BOOL, WHY_TORCH),
    IGNORED("compile.free_activation", DS_BOOL, WHY_TORCH),
    IGNORED("compile.free_activation_threshold", DS_WHOLE, WHY_TORCH),
    REFUSED("compile.offload_activation", DS_BOOL, "false",
            "use false; -r 3 computes blocks again, -r 4 keeps their inputs off the device"),
    IGNORED("compile.offload_activation_pin_memory", DS_BOOL, WHY_OFF),
    REFUSED("compile.offload_opt_states", DS_BOOL, "false",
            "use false; zero_optimization.offload_optimizer offloads the state"),
    IGNORED("compile.double_buffer", DS_BOOL, WHY_TORCH),
    IGNORED("compile.symmetric_memory", DS_BOOL, WHY_TORCH),
    IGNORED("compile.debug_log", DS_BOOL, WHY_TORCH),
    REFUSED("compile.offload_parameters", DS_BOOL, "false",
            "use false; zero_optimization.offload_param offloads parameters"),
    IGNORED("compile.sync_before_reduce", DS_BOOL, WHY_TORCH),
    IGNORED("compile.sync_after_reduce", DS_BOOL, WHY_TORCH),
    IGNORED("compile.sync_before_allgather", DS_BOOL, WHY_TORCH),
    IGNORED("compile.sync_after_allgather", DS_BOOL, WHY_TORCH),
    IGNORED("compile.keep_int_input_tensors", DS_BOOL, WHY_TORCH),
    IGNORED("compile.keep_all_input_tensors", DS_BOOL, WHY_TORCH),
    IGNORED("compile.passes", DS_LIST, WHY_TORCH),

    /* ---- other kinds of parallelism ---- */
    SECTION("tensor_parallel"),
    RANGED("tensor_parallel.autotp_size", DS_WHOLE, DS_TENSOR_RANKS, 0, 4096),
    IGNORED("tensor_parallel.dtype", DS_ANY, "weights have the type of fp16 and bf16"),
    IGNORED("tensor_parallel.tp_overlap_comm", DS_BOOL,
            "parts meet when they are needed, in the order of the layers"),
    IGNORED("tensor_parallel.vocab_parallel_lm_head", DS_BOOL, WHY_VOCABULARY),
    IGNORED("tensor_parallel.vocab_parallel_ce_backend", DS_TEXT, WHY_VOCABULARY),
    SECTION("tensor_parallel.tensor_parallel"),
    RANGED("tensor_parallel.tensor_parallel.tp_size", DS_WHOLE, DS_TENSOR_RANKS, 0, 4096),
    IGNORED("tensor_parallel.tensor_parallel.tp_grain_size", DS_WHOLE, WHY_HEADS),
    IGNORED("tensor_parallel.tensor_parallel.mpu", DS_ANY, WHY_GROUPS),
    IGNORED("tensor_parallel.tensor_parallel.tp_group", DS_ANY, WHY_GROUPS),
    SECTION("tensor_parallel.tp"),
    RANGED("tensor_parallel.tp.tp_size", DS_WHOLE, DS_TENSOR_RANKS, 0, 4096),
    IGNORED("tensor_parallel.tp.tp_grain_size", DS_WHOLE, WHY_HEADS),
    IGNORED("tensor_parallel.tp.mpu", DS_ANY, WHY_GROUPS),
    IGNORED("tensor_parallel.tp.tp_group", DS_ANY, WHY_GROUPS),
    IGNORED("tensor_parallel.injection_policy_tuple", DS_ANY, WHY_GPT2),
    IGNORED("tensor_parallel.partition_config", DS_ANY, WHY_GPT2),
    IGNORED("tensor_parallel.preset_model", DS_TEXT, WHY_GPT2),
    IGNORED("tensor_parallel.keep_module_on_host", DS_BOOL, WHY_TORCH),
    IGNORED("tensor_parallel.replace_with_kernel_inject", DS_BOOL, WHY_TORCH),
    IGNORED("tensor_parallel.kernel_inject", DS_BOOL, WHY_TORCH),
    SECTION("pipeline"),
    RANGED("pipeline.stages", DS_WHOLE, DS_STAGES, 0, 512),
    IGNORED("pipeline.partition", DS_TEXT,
            "stages have as many blocks as makes their work alike, the classifier's counted"),
    IGNORED("pipeline.seed_layers", DS_BOOL, "first weights are the same at every layout"),
    IGNORED("pipeline.activation_checkpoint_interval", DS_WHOLE,
            "the trainer's own flag -r chooses what backward recomputes"),
    IGNORED("pipeline.pipe_partitioned", DS_BOOL, WHY_BETWEEN),
    IGNORED("pipeline.grad_partitioned", DS_BOOL, WHY_BETWEEN),
    IGNORED("pipeline.use_reentrant", DS_BOOL, WHY_TORCH),
    SECTION("expert_parallel"),
    APPLIED(EP "enabled", DS_BOOL, DS_EXPERTS),
    RANGED(EP "autoep_size", DS_WHOLE, DS_EXPERT_GROUP, 1, 65536),
    IGNORED(EP "expert_tensor_parallel_size", DS_WHOLE,
            "experts are divided by the ranks of tensor_parallel, as the rest is"),
    IGNORED(EP "validate_folding_routing", DS_BOOL, WHY_EXPERTS),
    IGNORED(EP "async_split_plan", DS_BOOL, WHY_EXPERTS),
    IGNORED(EP "preset_model", DS_TEXT, WHY_EXPERTS),
    IGNORED(EP "moe_layer_pattern", DS_TEXT, WHY_EXPERTS),
    IGNORED(EP "expert_pattern", DS_TEXT, WHY_EXPERTS),
    IGNORED(EP "router_pattern", DS_TEXT, WHY_EXPERTS),
    IGNORED(EP "use_grouped_mm", DS_BOOL, WHY_EXPERTS),
    IGNORED(EP "disable_triton_grouped_mm", DS_BOOL, WHY_EXPERTS),
    IGNORED(EP "route_norm", DS_ANY, WHY_GATES),
    IGNORED(EP "route_scale", DS_REAL, WHY_EXPERTS),
    IGNORED(EP "score_apply", DS_TEXT, WHY_GATES),
    IGNORED(EP "combine_impl", DS_TEXT, WHY_EXPERTS),
    IGNORED(EP "row_weighting_impl", DS_TEXT, WHY_EXPERTS),
    IGNORED(EP "gate_up_impl", DS_TEXT, WHY_EXPERTS),
    IGNORED(EP "comm_backend", DS_TEXT, WHY_EXPERTS),
    IGNORED(EP "comm_num_sm", DS_WHOLE, WHY_EXPERTS),
    IGNORED(EP "comm_qp_margin", DS_WHOLE, WHY_EXPERTS),
    IGNORED(EP "comm_max_tokens_per_rank", DS_WHOLE, WHY_EXPERTS),
    IGNORED(EP "num_expert_groups", DS_WHOLE, WHY_EXPERTS),
    IGNORED(EP "num_limited_groups", DS_WHOLE, WHY_EXPERTS),
    IGNORED(EP "score_func", DS_TEXT, WHY_GATES),
    RANGED(EP "top_k", DS_WHOLE, DS_EXPERTS_ASKED, 1, INT_MAX),
    IGNORED(EP "load_balance_coeff", DS_REAL,
            "an auxiliary loss balances experts; the trainer's own flag -ea is its factor"),
    IGNORED(EP "routed_scaling_factor", DS_ANY, WHY_EXPERTS),
    IGNORED(EP "expert_w1", DS_TEXT, WHY_EXPERTS),
    IGNORED(EP "expert_w2", DS_TEXT, WHY_EXPERTS),
    IGNORED(EP "expert_w3", DS_TEXT, WHY_EXPERTS),
    IGNORED(EP "num_experts_attr", DS_TEXT, WHY_EXPERTS),
    IGNORED(EP "top_k_attr", DS_TEXT, WHY_EXPERTS),
    IGNORED(EP "has_shared_experts", DS_BOOL, WHY_EXPERTS),
    IGNORED(EP "shared_experts_pattern", DS_TEXT, WHY_EXPERTS),
    IGNORED(EP "shared_experts_gate_pattern", DS_TEXT, WHY_EXPERTS),
    IGNORED(EP "expert_activation", DS_TEXT, WHY_EXPERTS),
    SECTION("hybrid_engine"),
    REFUSED("hybrid_engine.enabled", DS_BOOL, "false",
            "use false; the trainer generates text itself"),
    IGNORED("hybrid_engine.max_out_tokens", DS_WHOLE, WHY_OFF),
    IGNORED("hybrid_engine.inference_tp_size", DS_WHOLE, WHY_OFF),
    IGNORED("hybrid_engine.release_inference_cache", DS_BOOL, WHY_OFF),
    IGNORED("hybrid_engine.pin_parameters", DS_BOOL, WHY_OFF),
    IGNORED("hybrid_engine.tp_gather_partition_size", DS_WHOLE, WHY_OFF),
    IGNORED("hybrid_engine.enable_cuda_graph", DS_BOOL, WHY_OFF),

    /* ---- data ---- */
    SECTION("data_efficiency"),
    REFUSED(DE "enabled", DS_BOOL, "false", USE_DATA),
    IGNORED(DE "seed", DS_WHOLE, WHY_OFF),
    SECTION(DE "data_sampling"),
    REFUSED(DE "data_sampling.enabled", DS_BOOL, "false", USE_DATA),
    IGNORED(DE "data_sampling.num_epochs", DS_WHOLE, WHY_OFF),
    IGNORED(DE "data_sampling.num_workers", DS_WHOLE, WHY_OFF),
    IGNORED(DE "data_sampling.pin_memory", DS_BOOL, WHY_OFF),
    REFUSED(DE "data_sampling.curriculum_learning", DS_ANY, "{}", USE_DATA),
    REFUSED(DE "data_sampling.dynamic_batching", DS_ANY, "{}", USE_DATA),
    SECTION(DE "data_routing"),
    REFUSED(DE "data_routing.enabled", DS_BOOL, "false", USE_DATA),
    REFUSED(DE "data_routing.random_ltd", DS_ANY, "{}", USE_DATA),

    /* ---- tuning ---- */
    SECTION("autotuning"),
    REFUSED("autotuning.enabled", DS_BOOL, "false", "use false; -z auto and make tune choose here"),
    IGNORED("autotuning.fast", DS_BOOL, WHY_OFF),
    IGNORED("autotuning.results_dir", DS_TEXT, WHY_OFF),
    IGNORED("autotuning.exps_dir", DS_TEXT, WHY_OFF),
    IGNORED("autotuning.overwrite", DS_BOOL, WHY_OFF),
    IGNORED("autotuning.start_profile_step", DS_WHOLE, WHY_OFF),
    IGNORED("autotuning.end_profile_step", DS_WHOLE, WHY_OFF),
    IGNORED("autotuning.metric", DS_TEXT, WHY_OFF),
    IGNORED("autotuning.metric_path", DS_TEXT, WHY_OFF),
    IGNORED("autotuning.tuner_type", DS_TEXT, WHY_OFF),
    IGNORED("autotuning.tuner_early_stopping", DS_WHOLE, WHY_OFF),
    IGNORED("autotuning.tuner_num_trials", DS_WHOLE, WHY_OFF),
    IGNORED("autotuning.arg_mappings", DS_ANY, WHY_OFF),
    IGNORED("autotuning.max_train_batch_size", DS_WHOLE, WHY_OFF),
    IGNORED("autotuning.min_train_batch_size", DS_WHOLE, WHY_OFF),
    IGNORED("autotuning.max_train_micro_batch_size_per_gpu", DS_WHOLE, WHY_OFF),
    IGNORED("autotuning.min_train_micro_batch_size_per_gpu", DS_WHOLE, WHY_OFF),
    IGNORED("autotuning.num_tuning_micro_batch_sizes", DS_WHOLE, WHY_OFF),
    IGNORED("autotuning.mp_size", DS_WHOLE, WHY_OFF),
    SECTION("autotuning.model_info"),
    IGNORED("autotuning.model_info.profile", DS_BOOL, WHY_OFF),
    IGNORED("autotuning.model_info.num_params", DS_WHOLE, WHY_OFF),
    IGNORED("autotuning.model_info.hidden_size", DS_WHOLE, WHY_OFF),
    IGNORED("autotuning.model_info.num_layers", DS_WHOLE, WHY_OFF),
    IGNORED("autotuning.model_info_path", DS_TEXT, WHY_OFF),

    /* ---- not in DeepSpeed any more ---- */
    REFUSED("weight_quantization", DS_ANY, "", USE_TYPES),
    REFUSED("quantize_training", DS_ANY, "", USE_TYPES),
    REFUSED("compression_training", DS_ANY, "", USE_TYPES),
    REFUSED("amp", DS_ANY, "", USE_TYPES),
    REFUSED("nebula", DS_ANY, "", "remove it; DeepSpeed's checkpoint files are not written"),
    REFUSED("sparse_gradients", DS_BOOL, "false", "use false, and -sr 1 with -ut 1"),
    REFUSED("eigenvalue", DS_ANY, "", "remove it"),
    REFUSED("sparse_attention", DS_ANY, "", "remove it; attention is dense"),
    REFUSED(
        "elasticity", DS_ANY, "",
        "remove it, and set train_batch_size and the trainer's own flag -pe 1: if ranks die, the "
        "remaining ranks continue, with as many tokens per step"),
    REFUSED("graph_harvesting", DS_BOOL, "false", "use false; the code is compiled already"),
    REFUSED("curriculum_learning", DS_ANY, "", USE_DATA),
    REFUSED("progressive_layer_drop", DS_ANY, "", USE_WHOLE),
};

enum { DS_ROWS = sizeof ds_rows / sizeof *ds_rows };

/* Keys that DeepSpeed's reader refuses from a version on, whatever their value is. */
static const struct ds_removal {
    const char *path, *version;
} ds_removed[] = {
    {"nebula", "0.19.7"},
    {"compression_training", "0.19.7"},
    {"quantize_training", "0.19.7"},
    {"sparse_attention", "0.19.7"},
    {ZO "mics_shard_size", "0.19.7"},
    {ZO "mics_hierarchical_params_gather", "0.19.7"},
    {ZO "zeropp_loco_param", "0.19.8"},
    {"amp", "0.19.8"},
    {"sparse_gradients", "0.19.8"},
    {"eigenvalue", "0.19.8"},
    {"elasticity", "0.19.8"},
    {"graph_harvesting", "0.19.8"},
    {"curriculum_learning", "0.19.8"},
    {"progressive_layer_drop", "0.19.8"},
};

/* Returns the version of DeepSpeed that removed the key `path`, or an object around it. Returns
   NULL if 0.19.8 has the key. */
static inline const char *ds_removed_in(const char *path) {
    for (size_t i = 0; i < sizeof ds_removed / sizeof *ds_removed; i++) {
        const size_t n = strlen(ds_removed[i].path);
        if (strncmp(path, ds_removed[i].path, n) == 0 && (path[n] == 0 || path[n] == '.'))
            return ds_removed[i].version;
    }
    return NULL;
}

#endif

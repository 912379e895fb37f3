/* ds_print.c - what was resolved, as a configuration again; see ds_config.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "ds_inside.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void ds_digits(char *out, size_t bytes, double value) {
    if (floor(value) == value && fabs(value) < 1e15) {
        (void)snprintf(out, bytes, "%.0f", value); /* DeepSpeed takes 5e+02 for no integer */
        return;
    }
    for (int digits = 1; digits <= 17; digits++) {
        (void)snprintf(out, bytes, "%.*g", digits, value);
        if (strtod(out, NULL) == value) break;
    }
    for (char *c = out; *c; c++)
        if (*c == ',') *c = '.';
}

double ds_widen(float value) {
    char text[48];
    for (int digits = 1; digits <= 9; digits++) {
        (void)snprintf(text, sizeof text, "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value) return strtod(text, NULL);
    }
    return (double)value;
}

const char *ds_type_name(zero_type type) {
    return type == ZERO_F32 ? "fp32" : type == ZERO_BF16 ? "bf16" : "fp16";
}

const char *ds_device_name(zero_tier tier) {
    return tier == ZERO_DEVICE ? "none" : tier == ZERO_HOST ? "cpu" : "nvme";
}

/* ---- printing ------------------------------------------------------------------------------ */

/* Every put gives 0, or 1 without memory; an object that is missing takes nothing. */
static int ds_put(cJSON *object, const char *key, double value) {
    char text[48];
    ds_digits(text, sizeof text, value);
    return object == NULL || cJSON_AddRawToObject(object, key, text) == NULL;
}
static int ds_put_float(cJSON *object, const char *key, float value) {
    return ds_put(object, key, ds_widen(value));
}
static int ds_put_bool(cJSON *object, const char *key, int value) {
    return object == NULL || cJSON_AddBoolToObject(object, key, value) == NULL;
}
static int ds_put_text(cJSON *object, const char *key, const char *value) {
    return object == NULL || cJSON_AddStringToObject(object, key, value) == NULL;
}

static int ds_put_types(cJSON *root, const ds_config *ds) {
    const zero_scaler *s = &ds->zero.scaler;
    int bad = 0;
    if (ds->given & DS_GIVEN_TYPE) {
        cJSON *fp16 = cJSON_AddObjectToObject(root, "fp16");
        cJSON *bf16 = cJSON_AddObjectToObject(root, "bf16");
        bad |= ds_put_bool(fp16, "enabled", ds->zero.type == ZERO_F16);
        if (s->fixed != 0) bad |= ds_put_float(fp16, "loss_scale", s->fixed);
        if (s->initial != 0) bad |= ds_put(fp16, "initial_scale_power", ilogbf(s->initial));
        if (s->minimum != 0) bad |= ds_put_float(fp16, "min_loss_scale", s->minimum);
        if (s->window != 0) bad |= ds_put(fp16, "loss_scale_window", s->window);
        if (s->hysteresis != 0) bad |= ds_put(fp16, "hysteresis", s->hysteresis);
        if (s->consecutive_hysteresis) bad |= ds_put_bool(fp16, "consecutive_hysteresis", 1);
        bad |= ds_put_bool(bf16, "enabled", ds->zero.type == ZERO_BF16);
        if (ds->zero.no_overflow_check) bad |= ds_put_bool(bf16, "check_grad_overflow", 0);
        if (ds->zero.master == ZERO_MASTER_NONE)
            bad |= ds_put_bool(bf16, "bf16_master_weights_and_grads", 1);
        if (ds->zero.state_type == ZERO_STATE_BF16)
            bad |= ds_put_bool(bf16, "bf16_optimizer_states", 1);
    }
    if (ds->zero.grads != ZERO_GRAD_AUTO)
        bad |= ds_put_text(cJSON_AddObjectToObject(root, "data_types"), "grad_accum_dtype",
                           ds->zero.grads == ZERO_GRAD_F32 ? "fp32" : ds_type_name(ds->zero.type));
    return bad;
}

/* One of zero_optimization's two objects about tiers. */
static int ds_put_offload(cJSON *zero, const char *key, const ds_config *ds, zero_tier tier,
                          int has_share) {
    cJSON *offload = zero == NULL ? NULL : cJSON_AddObjectToObject(zero, key);
    int bad = ds_put_text(offload, "device", ds_device_name(tier));
    if (tier == ZERO_FILE && ds->folder[0]) bad |= ds_put_text(offload, "nvme_path", ds->folder);
    if (has_share) bad |= ds_put_float(offload, "ratio", ds->zero.offload_share);
    return bad;
}

static int ds_put_zero(cJSON *root, const ds_config *ds) {
    cJSON *zero = cJSON_AddObjectToObject(root, "zero_optimization");
    const int64_t persistence = ds->zero.persistence_numel;
    int bad = zero == NULL;
    if (ds->given & DS_GIVEN_STAGE) bad |= ds_put(zero, "stage", ds->zero.stage);
    if (ds->given & DS_GIVEN_OVERLAP)
        bad |= ds_put_bool(zero, "overlap_comm", !ds->zero.no_overlap);
    if (ds->given & DS_GIVEN_PREFETCH)
        bad |= ds_put(zero, "stage3_prefetch_bucket_size", (double)ds->prefetch_numel);
    if (ds->given & DS_GIVEN_PERSISTENCE)
        bad |= ds_put(zero, "stage3_param_persistence_threshold",
                      persistence == ZERO_NONE ? 0.0 : (double)persistence);
    if (ds->given & DS_GIVEN_SHARD_RANKS)
        bad |= ds_put(zero, "mics_shard_size", ds->zero.shard_ranks);
    if (ds->given & DS_GIVEN_SECOND_RANKS)
        bad |= ds_put(zero, "zero_hpz_partition_size", ds->zero.second_ranks);
    if (ds->given & DS_GIVEN_OPTIMIZER_TIER)
        bad |= ds_put_offload(zero, "offload_optimizer", ds, ds->zero.optimizer_tier,
                              (ds->given & DS_GIVEN_SHARE) != 0);
    if (ds->given & DS_GIVEN_PARAMETER_TIER)
        bad |= ds_put_offload(zero, "offload_param", ds, ds->zero.parameter_tier, 0);
    if (ds->given & DS_GIVEN_WEIGHT_BITS)
        bad |= ds_put_bool(zero, "zero_quantized_weights", ds->zero.weight_bits != 0);
    if (ds->given & DS_GIVEN_FROZEN_BITS)
        bad |= ds_put_bool(zero, "zero_quantized_nontrainable_weights",
                           ds->zero.frozen_weight_bits != 0);
    if (ds->given & DS_GIVEN_GRADIENT_BITS)
        bad |= ds_put_bool(zero, "zero_quantized_gradients", ds->zero.gradient_bits != 0);
    if (ds->given & DS_GIVEN_FEEDBACK) {
        cJSON *loco = cJSON_AddObjectToObject(zero, "zeropp_loco_param");
        bad |= loco == NULL || ds_put_float(loco, "err_beta", ds->zero.feedback)
               || ds_put(loco, "reset_T", ds->zero.feedback_reset);
    }
    return bad;
}

/* What Lamb and Muon have besides. */
static int ds_put_tensors(cJSON *params, const ds_config *ds) {
    const zero_config *z = &ds->zero;
    const double lr = ds->has_schedule ? ds->lr_schedule.lr : ds_widen(ds->hyper.lr);
    int bad = 0;
    if (ds->given & DS_GIVEN_MOMENTUM) bad |= ds_put_float(params, "momentum", z->muon.momentum);
    if (ds->given & DS_GIVEN_PLAIN_LR)
        bad |= ds_put(params, "adam_lr", (double)z->muon.plain_lr * lr);
    if (ds->given & DS_GIVEN_MUON_HEADS)
        bad |= ds_put_bool(params, "per_head_muon", ds->per_head_muon);
    if (ds->given & DS_GIVEN_LEAST_TRUST) bad |= ds_put_float(params, "min_coeff", z->trust_least);
    if (ds->given & DS_GIVEN_MOST_TRUST) bad |= ds_put_float(params, "max_coeff", z->trust_most);
    return bad;
}

static int ds_put_optimizer(cJSON *root, const ds_config *ds) {
    const zero_optimizer rule = ds->zero.optimizer;
    const int sgd = rule == ZERO_SGD || rule == ZERO_NESTEROV;
    if (!(ds->given & DS_GIVEN_OPTIMIZER)) return 0;
    cJSON *optimizer = cJSON_AddObjectToObject(root, "optimizer");
    int bad = ds_put_text(optimizer, "type",
                          sgd                    ? "SGD"
                          : rule == ZERO_LION    ? "Lion"
                          : rule == ZERO_ADAGRAD ? "Adagrad"
                          : rule == ZERO_LAMB    ? "Lamb"
                          : rule == ZERO_MUON    ? "Muon"
                          : rule == ZERO_ADAMW   ? "AdamW"
                                                 : "Adam");
    cJSON *params = cJSON_AddObjectToObject(optimizer, "params");
    if (ds->given & DS_GIVEN_LR)
        bad |= ds->has_schedule ? ds_put(params, "lr", ds->lr_schedule.lr)
                                : ds_put_float(params, "lr", ds->hyper.lr);
    if ((ds->given & DS_GIVEN_BETAS) && sgd) {
        bad |= ds_put(params, "momentum",
                      ds->has_schedule ? ds->lr_schedule.beta1 : ds_widen(ds->hyper.beta1));
    } else if (ds->given & DS_GIVEN_BETAS) {
        cJSON *betas = cJSON_AddArrayToObject(params, "betas");
        const double beta[] = {ds->has_schedule ? ds->lr_schedule.beta1 : ds_widen(ds->hyper.beta1),
                               ds->has_schedule ? ds->lr_schedule.beta2
                                                : ds_widen(ds->hyper.beta2)};
        for (int i = 0; i < 2; i++) {
            char text[48];
            ds_digits(text, sizeof text, beta[i]);
            cJSON *number = cJSON_CreateRaw(text);
            if (betas != NULL && number != NULL && cJSON_AddItemToArray(betas, number)) continue;
            cJSON_Delete(number);
            bad = 1;
        }
    }
    if (ds->given & DS_GIVEN_EPS) bad |= ds_put_float(params, "eps", ds->hyper.eps);
    if (ds->given & DS_GIVEN_DECAY)
        bad |= ds_put_float(params, "weight_decay", ds->hyper.weight_decay);
    bad |= ds_put_tensors(params, ds);
    if (rule == ZERO_NESTEROV) bad |= ds_put_bool(params, "nesterov", 1);
    if (rule == ZERO_ADAM) bad |= ds_put_bool(params, "adam_w_mode", 0);
    return bad;
}

/* One word of "log linear". */
static void ds_nth_word(const char *words, int n, char out[DS_WORD]) {
    for (; n > 0 && *words; words++) n -= *words == ' ';
    (void)snprintf(out, DS_WORD, "%.*s", (int)strcspn(words, " "), words);
}

static int ds_put_schedule(cJSON *root, const ds_config *ds) {
    const schedule *s = &ds->lr_schedule;
    size_t count = 0;
    const schedule_field *field = schedule_fields(&count);
    char word[DS_WORD];
    if (!ds->has_schedule) return 0;
    cJSON *scheduler = cJSON_AddObjectToObject(root, "scheduler");
    int bad = ds_put_text(scheduler, "type", schedule_name(s->kind));
    cJSON *params = cJSON_AddObjectToObject(scheduler, "params");
    for (size_t i = 0; i < count; i++, field++) {
        const char *at = (const char *)s + field->offset;
        double real;
        int64_t whole;
        int flag;
        if (!(field->kinds & (1u << (unsigned)s->kind))) continue;
        memcpy(&real, at, field->type == SCHEDULE_REAL ? sizeof real : 0);
        memcpy(&whole, at, field->type == SCHEDULE_WHOLE ? sizeof whole : 0);
        memcpy(&flag, at, field->type < SCHEDULE_BOOL ? 0 : sizeof flag);
        switch (field->type) {
        case SCHEDULE_REAL:
            if (!isnan(real)) bad |= ds_put(params, field->name, real);
            break;
        case SCHEDULE_WHOLE:
            if (whole != SCHEDULE_NOT_GIVEN) bad |= ds_put(params, field->name, (double)whole);
            break;
        case SCHEDULE_BOOL: bad |= ds_put_bool(params, field->name, flag); break;
        case SCHEDULE_WORD:
        default:
            ds_nth_word(field->words, flag, word);
            bad |= ds_put_text(params, field->name, word);
            break;
        }
    }
    return bad;
}

/* Prints a folder as output_path and job_name, which is the part after the last slash. */
static int ds_put_monitor(cJSON *root, const char *key, const char *folder) {
    char path[DS_CONFIG_FOLDER];
    if (!folder[0]) return 0;
    (void)snprintf(path, sizeof path, "%s", folder);
    char *slash = strrchr(path, '/');
    cJSON *monitor = cJSON_AddObjectToObject(root, key);
    int bad = ds_put_bool(monitor, "enabled", 1);
    bad |= ds_put_text(monitor, "job_name", slash + 1);
    *slash = 0;
    return bad | ds_put_text(monitor, "output_path", path[0] ? path : "/");
}

static int ds_put_shown(cJSON *root, const ds_config *ds) {
    int bad = 0;
    if (ds->breakdown) bad |= ds_put_bool(root, "wall_clock_breakdown", 1);
    if (ds->comms_log)
        bad |= ds_put_bool(cJSON_AddObjectToObject(root, "comms_logger"), "enabled", 1);
    if (ds->profile_step) {
        cJSON *profiler = cJSON_AddObjectToObject(root, "flops_profiler");
        bad |= ds_put_bool(profiler, "enabled", 1);
        bad |= ds_put(profiler, "profile_step", ds->profile_step);
    }
    return bad | ds_put_monitor(root, "tensorboard", ds->tensorboard)
           | ds_put_monitor(root, "csv_monitor", ds->csv_monitor);
}

static int ds_put_parallel(cJSON *root, const ds_config *ds) {
    int bad = 0;
    if (ds->given & DS_GIVEN_CONTEXT_RANKS)
        bad |= ds_put(root, "sequence_parallel_size", ds->context_parallel);
    if (ds->given & DS_GIVEN_TENSOR_RANKS)
        bad |= ds_put(cJSON_AddObjectToObject(root, "tensor_parallel"), "autotp_size",
                      ds->tensor_parallel);
    if (ds->given & DS_GIVEN_PIPELINE)
        bad |= ds_put(cJSON_AddObjectToObject(root, "pipeline"), "stages", ds->pipeline);
    if (ds->given & (DS_GIVEN_EXPERT_GROUP | DS_GIVEN_EXPERTS_ASKED)) {
        cJSON *experts = cJSON_AddObjectToObject(root, "expert_parallel");
        bad |= ds_put_bool(experts, "enabled", 1);
        if (ds->given & DS_GIVEN_EXPERT_GROUP)
            bad |= ds_put(experts, "autoep_size", ds->expert_group);
        if (ds->given & DS_GIVEN_EXPERTS_ASKED) bad |= ds_put(experts, "top_k", ds->experts_asked);
    }
    if (ds->given & DS_GIVEN_EXPERTS_APART)
        bad |= ds_put_bool(root, "use_data_before_expert_parallelism", ds->experts_apart);
    return bad;
}

static int ds_put_activations(cJSON *root, const ds_config *ds) {
    const int parts = (ds->given & DS_GIVEN_SEQUENCE) != 0, away = ds->recompute == 4;
    if (!parts && !away) return 0;
    cJSON *activations = cJSON_AddObjectToObject(root, "activation_checkpointing");
    return (parts && ds_put_bool(activations, "partition_activations", ds->sequence_parallel))
           | (away && ds_put_bool(activations, "cpu_checkpointing", 1));
}

char *ds_config_print(const ds_config *ds) {
    cJSON *root = cJSON_CreateObject();
    char *text = NULL;
    if (root == NULL) return NULL;
    int bad = ds_put(root, "train_batch_size", (double)ds->train_batch);
    bad |= ds_put(root, "train_micro_batch_size_per_gpu", ds->micro_batch);
    bad |= ds_put(root, "gradient_accumulation_steps", ds->accumulation);
    if (ds->given & DS_GIVEN_CLIPPING)
        bad |= ds_put_float(root, "gradient_clipping", ds->hyper.max_norm);
    if (ds->given & DS_GIVEN_STEPS_PER_PRINT)
        bad |= ds_put(root, "steps_per_print", ds->steps_per_print);
    bad |= ds_put_types(root, ds) | ds_put_zero(root, ds) | ds_put_optimizer(root, ds)
           | ds_put_schedule(root, ds) | ds_put_shown(root, ds) | ds_put_parallel(root, ds)
           | ds_put_activations(root, ds);
    if (!bad) text = cJSON_Print(root);
    cJSON_Delete(root);
    return text;
}

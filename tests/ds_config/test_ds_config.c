/* test_ds_config [FOLDER] - DeepSpeed's configuration: a case for every key of the table, errors of
   every class, "auto", batch sizes, comments, and that what is printed loads to the same. FOLDER:
   of the files, tests/ds_config. */
#include "../shared/harness.h"
#include "../../adapters/ds_config/ds_config.h"
#include "../../adapters/ds_config/ds_table.h"

#include <cjson/cJSON.h>
#include <ctype.h>
#include <math.h>

enum { TEXT = 8192 };

static const zero_hyper test_flags = {3e-4f, 0.85f, 0.95f, 1e-7f, 0.2f, 0.5f};
static const ds_auto test_autos = {.ranks = 2,
                                   .micro_batch = 4,
                                   .accumulation = 3,
                                   .type = ZERO_BF16,
                                   .hyper = &test_flags,
                                   .warmup_steps = 20,
                                   .total_steps = 300,
                                   .hidden = 64};
static const ds_auto test_plain = {.ranks = 2};

static int notes_seen;
static char notes_last[1024];
static void test_note(void *user, const char *sentence) {
    (void)user;
    notes_seen++;
    snprintf(notes_last, sizeof notes_last, "%s", sentence);
}
static const ds_notes notes_kept = {test_note, NULL};

static char why[768];
static int parse_with(const char *text, const ds_auto *autos, ds_config *ds) {
    notes_seen = 0;
    notes_last[0] = 0;
    return ds_config_parse(text, strlen(text), "ds.json", autos, ds, &notes_kept, why, sizeof why);
}
static int parse(const char *text, ds_config *ds) { return parse_with(text, &test_plain, ds); }

static int same(const ds_config *a, const ds_config *b) { return memcmp(a, b, sizeof *a) == 0; }

/* What is printed loads to the same. */
static void check_round(const char *what, const ds_config *ds, const ds_auto *autos) {
    ds_config again;
    char *text = ds_config_print(ds);
    const int failed =
        text == NULL
        || ds_config_parse(text, strlen(text), what, autos, &again, NULL, why, sizeof why);
    test_check(!failed && same(ds, &again), "%s printed and loaded again: %s\n%s", what,
               failed ? why : "differs", text ? text : "(no memory)");
    free(text);
}

/* The sentence has all of these words, which stars separate. */
static int says(const char *sentence, const char *words) {
    char copy[512];
    char *rest = NULL;
    snprintf(copy, sizeof copy, "%s", words);
    for (char *w = strtok_r(copy, "*", &rest); w; w = strtok_r(NULL, "*", &rest))
        if (strstr(sentence, w) == NULL) return 0;
    return 1;
}

static void check_error(const char *text, const char *words) {
    ds_config ds, none;
    memset(&none, 0, sizeof none);
    const int failed = parse(text, &ds);
    test_check(failed && says(why, words) && same(&ds, &none), "%.200s\n  gives \"%s\", not %s",
               text, failed ? why : "no error", words);
}

/* ---- a text with one key ---- */

/* Each object of the path and the key itself on a line of its own, from line 2 on, after the
   members in `before` ("" or with a comma at the end). Returns the key's line. */
static int one_key(char *out, const char *path, const char *value, const char *before) {
    char copy[160];
    char *rest = NULL, *next = NULL;
    int depth = 0, n = 0;
    snprintf(copy, sizeof copy, "%s", path);
    n += snprintf(out + n, (size_t)(TEXT - n), "{%s", before);
    for (char *w = strtok_r(copy, ".", &rest); w; w = next) {
        next = strtok_r(NULL, ".", &rest);
        n += snprintf(out + n, (size_t)(TEXT - n), "\n\"%s\": %s", w, next ? "{" : value);
        depth += next != NULL;
        if (depth == 1 && next && strcmp(w, "optimizer") == 0 && strcmp(next, "type") != 0)
            n += snprintf(out + n, (size_t)(TEXT - n), "\"type\": \"%s\",",
                          strstr(path, "momentum") || strstr(path, "nesterov") ? "SGD"
                          : strstr(path, "n_lr") || strstr(path, "m_lr") || strstr(path, "_muon")
                              ? "Muon"
                          : strstr(path, "_coeff") ? "Lamb"
                                                   : "Adam");
        if (depth == 1 && next && strcmp(w, "scheduler") == 0 && strcmp(next, "type") != 0)
            n += snprintf(out + n, (size_t)(TEXT - n), "\"type\": \"WarmupLR\",");
    }
    for (; depth >= 0; depth--) n += snprintf(out + n, (size_t)(TEXT - n), "\n}");
    int line = 2;
    for (const char *c = path; *c; c++) line += *c == '.';
    return line;
}

static const char *micro_before(const char *path) {
    return strcmp(path, "train_micro_batch_size_per_gpu") == 0
               ? ""
               : "\"train_micro_batch_size_per_gpu\": 6,";
}

/* The same text without the key: what it changes is the difference. */
static void without_key(const char *path, const char *before, ds_config *ds) {
    char text[TEXT];
    char up[160];
    snprintf(up, sizeof up, "%s", path);
    char *dot = strrchr(up, '.');
    if (dot == NULL) {
        snprintf(text, sizeof text, "{%s \"dump_state\": false}", before);
    } else {
        *dot = 0;
        one_key(text, path, "null", before);
    }
    if (parse(text, ds)) fprintf(stderr, "%s: %s\n", text, why);
}

/* ---- applied keys ---- */

#define FP16      "\"fp16\": {\"enabled\": true},"
#define MICRO     "\"train_micro_batch_size_per_gpu\": 6,"
#define IN(field) offsetof(ds_config, field)
#define NOWHERE   ((size_t)-1)

typedef struct applied_case {
    const char *path, *value, *before; /* before NULL: MICRO */
    char type;                         /* of the field: i int, f float, l int64, u given alone */
    size_t field;
    double expected;
    uint64_t given;
    size_t field2; /* of the same type */
    double expected2;
} applied_case;

static const applied_case applied[] = {
    {"train_batch_size", "24", NULL, 'b', 0, 2, 0, NOWHERE, 0},
    {"train_micro_batch_size_per_gpu", "5", "\"gradient_accumulation_steps\": 1,", 'm', 0, 5, 0,
     NOWHERE, 0},
    {"gradient_accumulation_steps", "4", NULL, 'b', 0, 4, 0, NOWHERE, 0},
    {"steps_per_print", "2000", NULL, 'i', IN(steps_per_print), 2000, DS_GIVEN_STEPS_PER_PRINT,
     NOWHERE, 0},
    {"gradient_clipping", "0.25", NULL, 'f', IN(hyper.max_norm), 0.25, DS_GIVEN_CLIPPING, NOWHERE,
     0},
    {"communication_data_type", "\"fp32\"", NULL, 'i', IN(zero.grads), ZERO_GRAD_F32, 0, NOWHERE,
     0},
    {"data_types.grad_accum_dtype", "\"fp32\"", NULL, 'i', IN(zero.grads), ZERO_GRAD_F32, 0,
     NOWHERE, 0},
    {"data_types.param_dtype", "\"fp32\"", NULL, 'u', 0, 0, 0, NOWHERE, 0},
    {"optimizer.type", "\"Lion\"", NULL, 'i', IN(zero.optimizer), ZERO_LION, DS_GIVEN_OPTIMIZER,
     NOWHERE, 0},
    {"optimizer.params.lr", "0.5", NULL, 'f', IN(hyper.lr), 0.5, DS_GIVEN_LR, NOWHERE, 0},
    {"optimizer.params.betas", "[0.25, 0.75]", NULL, 'f', IN(hyper.beta1), 0.25, DS_GIVEN_BETAS,
     IN(hyper.beta2), 0.75},
    {"optimizer.params.eps", "0.125", NULL, 'f', IN(hyper.eps), 0.125, DS_GIVEN_EPS, NOWHERE, 0},
    {"optimizer.params.weight_decay", "0.5", NULL, 'f', IN(hyper.weight_decay), 0.5, DS_GIVEN_DECAY,
     NOWHERE, 0},
    {"optimizer.params.momentum", "0.5", NULL, 'f', IN(hyper.beta1), 0.5, DS_GIVEN_BETAS, NOWHERE,
     0},
    {"optimizer.params.nesterov", "false", NULL, 'u', 0, 0, 0, NOWHERE, 0},
    {"optimizer.params.adam_w_mode", "false", NULL, 'i', IN(zero.optimizer), ZERO_ADAM, 0, NOWHERE,
     0},
    {"optimizer.params.torch_adam", "true", NULL, 'f', IN(hyper.weight_decay), 0.01f,
     DS_GIVEN_DECAY, NOWHERE, 0},
    {"optimizer.params.muon_lr", "0.01", NULL, 'f', IN(hyper.lr), 0.01,
     DS_GIVEN_LR | DS_GIVEN_PLAIN_LR, IN(zero.muon.plain_lr), 0.03},
    {"optimizer.params.adam_lr", "0.005", NULL, 'f', IN(zero.muon.plain_lr), 0.25,
     DS_GIVEN_PLAIN_LR, NOWHERE, 0},
    {"optimizer.params.per_head_muon", "true", NULL, 'i', IN(per_head_muon), 1, DS_GIVEN_MUON_HEADS,
     NOWHERE, 0},
    {"optimizer.params.min_coeff", "0.25", NULL, 'f', IN(zero.trust_least), 0.25,
     DS_GIVEN_LEAST_TRUST, NOWHERE, 0},
    {"optimizer.params.max_coeff", "4", NULL, 'f', IN(zero.trust_most), 4, DS_GIVEN_MOST_TRUST,
     NOWHERE, 0},
    {"fp16.enabled", "true", NULL, 'i', IN(zero.type), ZERO_F16, DS_GIVEN_TYPE, NOWHERE, 0},
    {"fp16.loss_scale", "128", MICRO FP16, 'F', IN(zero.scaler.fixed), 128, DS_GIVEN_TYPE, NOWHERE,
     0},
    {"fp16.initial_scale_power", "8", MICRO, 'F', IN(zero.scaler.initial), 256, DS_GIVEN_TYPE,
     NOWHERE, 0},
    {"fp16.loss_scale_window", "500", MICRO, 'I', IN(zero.scaler.window), 500, 0, NOWHERE, 0},
    {"fp16.hysteresis", "3", MICRO, 'I', IN(zero.scaler.hysteresis), 3, 0, NOWHERE, 0},
    {"fp16.consecutive_hysteresis", "true", MICRO, 'I', IN(zero.scaler.consecutive_hysteresis), 1,
     0, NOWHERE, 0},
    {"fp16.min_loss_scale", "2", MICRO, 'F', IN(zero.scaler.minimum), 2, 0, NOWHERE, 0},
    {"bf16.enabled", "true", NULL, 'i', IN(zero.type), ZERO_BF16, DS_GIVEN_TYPE, NOWHERE, 0},
    {"bf16.check_grad_overflow", "false", MICRO, 'B', IN(zero.no_overflow_check), 1, 0, NOWHERE, 0},
    {"bf16.bf16_optimizer_states", "true", MICRO, 'B', IN(zero.state_type), ZERO_STATE_BF16, 0,
     NOWHERE, 0},
    {"bf16.bf16_master_weights_and_grads", "true", MICRO, 'B', IN(zero.master), ZERO_MASTER_NONE, 0,
     NOWHERE, 0},
    {"bfloat16.enabled", "true", NULL, 'i', IN(zero.type), ZERO_BF16, DS_GIVEN_TYPE, NOWHERE, 0},
    {"bfloat16.check_grad_overflow", "false", MICRO, 'B', IN(zero.no_overflow_check), 1, 0, NOWHERE,
     0},
    {"bfloat16.bf16_optimizer_states", "true", MICRO, 'B', IN(zero.state_type), ZERO_STATE_BF16, 0,
     NOWHERE, 0},
    {"bfloat16.bf16_master_weights_and_grads", "true", MICRO, 'B', IN(zero.master),
     ZERO_MASTER_NONE, 0, NOWHERE, 0},
    {"zero_optimization.stage", "2", NULL, 'i', IN(zero.stage), 2, DS_GIVEN_STAGE, NOWHERE, 0},
    {"zero_optimization.overlap_comm", "false", NULL, 'i', IN(zero.no_overlap), 1, DS_GIVEN_OVERLAP,
     NOWHERE, 0},
    {"zero_optimization.stage3_prefetch_bucket_size", "5e7", NULL, 'l', IN(prefetch_numel), 5e7,
     DS_GIVEN_PREFETCH, NOWHERE, 0},
    {"zero_optimization.prefetch_bucket_size", "7", NULL, 'l', IN(prefetch_numel), 7,
     DS_GIVEN_PREFETCH, NOWHERE, 0},
    {"zero_optimization.stage3_param_persistence_threshold", "0", NULL, 'l',
     IN(zero.persistence_numel), ZERO_NONE, DS_GIVEN_PERSISTENCE, NOWHERE, 0},
    {"zero_optimization.param_persistence_threshold", "1e5", NULL, 'l', IN(zero.persistence_numel),
     1e5, DS_GIVEN_PERSISTENCE, NOWHERE, 0},
    {"zero_optimization.mics_shard_size", "4", NULL, 'i', IN(zero.shard_ranks), 4,
     DS_GIVEN_SHARD_RANKS, NOWHERE, 0},
    {"zero_optimization.mics_shard_size", "-1", MICRO, 'i', IN(zero.shard_ranks), 0, 0, NOWHERE, 0},
    {"zero_optimization.zero_hpz_partition_size", "2", NULL, 'i', IN(zero.second_ranks), 2,
     DS_GIVEN_SECOND_RANKS, NOWHERE, 0},
    {"zero_optimization.zero_hpz_partition_size", "1", MICRO, 'i', IN(zero.second_ranks), 0, 0,
     NOWHERE, 0},
    {"zero_optimization.offload_optimizer.device", "\"cpu\"", NULL, 'i', IN(zero.optimizer_tier),
     ZERO_HOST, DS_GIVEN_OPTIMIZER_TIER, NOWHERE, 0},
    {"zero_optimization.offload_param.device", "\"cpu\"", NULL, 'i', IN(zero.parameter_tier),
     ZERO_HOST, DS_GIVEN_PARAMETER_TIER, NOWHERE, 0},
    {"zero_optimization.offload_optimizer.ratio", "0.3", NULL, 'F', IN(zero.offload_share), 0.3,
     DS_GIVEN_SHARE, NOWHERE, 0},
    {"zero_optimization.cpu_offload", "true", NULL, 'i', IN(zero.optimizer_tier), ZERO_HOST,
     DS_GIVEN_OPTIMIZER_TIER, NOWHERE, 0},
    {"zero_optimization.cpu_offload_param", "true", NULL, 'i', IN(zero.parameter_tier), ZERO_HOST,
     DS_GIVEN_PARAMETER_TIER, NOWHERE, 0},
    {"zero_optimization.cpu_offload_params", "true", NULL, 'i', IN(zero.parameter_tier), ZERO_HOST,
     DS_GIVEN_PARAMETER_TIER, NOWHERE, 0},
    {"zero_optimization.zero_quantized_weights", "true", NULL, 'i', IN(zero.weight_bits), 8,
     DS_GIVEN_WEIGHT_BITS, NOWHERE, 0},
    {"zero_optimization.zero_quantized_nontrainable_weights", "true", NULL, 'i',
     IN(zero.frozen_weight_bits), 8, DS_GIVEN_FROZEN_BITS, NOWHERE, 0},
    {"zero_optimization.zero_quantized_gradients", "true", NULL, 'i', IN(zero.gradient_bits), 4,
     DS_GIVEN_GRADIENT_BITS, NOWHERE, 0},
    {"activation_checkpointing.cpu_checkpointing", "true", NULL, 'i', IN(recompute), 4, 0, NOWHERE,
     0},
    {"activation_checkpointing.cpu_checkpointing", "false", NULL, 'i', IN(recompute), 0, 0, NOWHERE,
     0},
    {"wall_clock_breakdown", "true", NULL, 'i', IN(breakdown), 10, DS_GIVEN_BREAKDOWN, NOWHERE, 0},
    {"comms_logger.enabled", "true", NULL, 'i', IN(comms_log), 1, DS_GIVEN_COMMS, NOWHERE, 0},
    {"flops_profiler.enabled", "true", NULL, 'i', IN(profile_step), 1, DS_GIVEN_PROFILE, NOWHERE,
     0},
    {"flops_profiler.profile_step", "7", NULL, 'I', IN(profile_step), 7, 0, NOWHERE, 0},
};
enum { APPLIED_CASES = sizeof applied / sizeof *applied };

static void put_field(ds_config *ds, char type, size_t field, double value) {
    char *at = (char *)ds + field;
    if (type == 'l') memcpy(at, &(int64_t){(int64_t)value}, sizeof(int64_t));
    if (type == 'i' || type == 'I' || type == 'B') memcpy(at, &(int){(int)value}, sizeof(int));
    if (type == 'f' || type == 'F') memcpy(at, &(float){(float)value}, sizeof(float));
}

/* Keys that count only where their type is on, or a device is named: the text has it in the same
   object. */
static void with_switch(char *text, const char *path) {
    char key[80], both[160], copy[TEXT];
    snprintf(key, sizeof key, "\"%s\"", strrchr(path, '.') + 1);
    snprintf(both, sizeof both, "%s, %s",
             strstr(path, ".offload_") ? "\"device\": \"cpu\"" : "\"enabled\": true", key);
    char *at = strstr(text, key);
    snprintf(copy, sizeof copy, "%.*s%s%s", (int)(at - text), text, both, at + strlen(key));
    snprintf(text, TEXT, "%s", copy);
}

static void check_applied(const applied_case *c) {
    char text[TEXT], off[TEXT];
    const char *before = c->before == NULL || isupper((unsigned char)c->type) ? MICRO : c->before;
    ds_config base, ds;
    one_key(text, c->path, c->value, before);
    one_key(off, c->path, "null", before);
    if (strcmp(c->path, "optimizer.type") == 0)
        snprintf(off, sizeof off, "{%s}", "\"train_micro_batch_size_per_gpu\": 6");
    if (c->type == 'm') snprintf(off, sizeof off, "{\"train_micro_batch_size_per_gpu\": 6}");
    if (isupper((unsigned char)c->type)) {
        with_switch(text, c->path);
        with_switch(off, c->path);
    }
    if (!test_check(!parse(off, &base), "%s: %s", c->path, why)) return;
    if (!test_check(!parse(text, &ds), "%s: %s", c->path, why)) return;
    if (c->type == 'b' || c->type == 'm') { /* 2 ranks */
        if (c->type == 'b') base.accumulation = base.zero.micro_steps = (int)c->expected;
        if (c->type == 'm') base.micro_batch = (int)c->expected;
        base.train_batch = (int64_t)base.micro_batch * base.accumulation * 2;
    } else if (c->type != 'u') {
        put_field(&base, c->type, c->field, c->expected);
        if (c->field2 != NOWHERE) put_field(&base, c->type, c->field2, c->expected2);
    }
    base.given |= c->given;
    test_check(same(&base, &ds), "%s: another field than its own changed, or not its own", c->path);
    check_round(c->path, &ds, &test_plain);
    char wrong[TEXT];
    const int line = one_key(wrong, c->path, "[\"wrong\"]", before);
    char expected[64];
    snprintf(expected, sizeof expected, "line %d*%s is ", line, c->path);
    if (strcmp(c->path, "fp16.enabled") != 0) check_error(wrong, expected);
}

/* ---- the schedule's parameters: every one changes its own field ---- */

static const char *const kinds[] = {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle",
                                    "LRRangeTest"};

static void schedule_text(char *out, const char *kind, const char *key, const char *value) {
    const int cycle = strcmp(kind, "OneCycle") == 0,
              total = strstr(kind, "Decay") || strstr(kind, "Cos");
    int n = snprintf(out, TEXT, "{" MICRO "\"scheduler\": {\"type\": \"%s\", \"params\": {", kind);
    if (total && strcmp(key, "total_num_steps") != 0)
        n += snprintf(out + n, (size_t)(TEXT - n), "\"total_num_steps\": 5000,");
    if (cycle && strcmp(key, "cycle_min_lr") != 0)
        n += snprintf(out + n, (size_t)(TEXT - n), "\"cycle_min_lr\": 0.25,");
    if (cycle && strcmp(key, "cycle_max_lr") != 0)
        n += snprintf(out + n, (size_t)(TEXT - n), "\"cycle_max_lr\": 0.5,");
    snprintf(out + n, (size_t)(TEXT - n), "\n\"%s\": %s}}}", key, value);
}

static int check_schedule_key(const char *key) {
    char text[TEXT], words[128];
    ds_config ds;
    int readers = 0;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        schedule_kind kind = SCHEDULE_WARMUP;
        schedule expected;
        if (schedule_from_name(kinds[k], &kind)) return 0;
        const schedule_field *field = schedule_find(kind, key);
        if (field == NULL) {
            schedule_text(text, kinds[k], key, "1");
            snprintf(words, sizeof words, "line 2*scheduler.params.%s*%s", key, kinds[k]);
            check_error(text, words);
            continue;
        }
        readers++;
        const double value = field->type == SCHEDULE_REAL    ? 0.375
                             : field->type == SCHEDULE_WHOLE ? 7
                                                             : 1;
        schedule_text(text, kinds[k], key,
                      field->type == SCHEDULE_REAL    ? "0.375"
                      : field->type == SCHEDULE_WHOLE ? "7.0"
                      : field->type == SCHEDULE_WORD  ? "\"linear\""
                                                      : "true");
        if (!test_check(!parse(text, &ds), "%s: %s", text, why)) continue;
        schedule_defaults(&expected, kind);
        expected.lr = 1e-3;
        expected.beta1 = 0.9;
        expected.beta2 = 0.999;
        if (schedule_find(kind, "total_num_steps")) expected.total_num_steps = 5000;
        if (schedule_find(kind, "cycle_min_lr")) expected.cycle_min_lr = 0.25;
        if (schedule_find(kind, "cycle_max_lr")) expected.cycle_max_lr = 0.5;
        (void)schedule_set(&expected, key, value, words, sizeof words);
        test_check(ds.has_schedule && memcmp(&expected, &ds.lr_schedule, sizeof expected) == 0,
                   "%s of %s: another field than its own", key, kinds[k]);
        check_round(key, &ds, &test_plain);
        schedule_text(text, kinds[k], key, "[1]");
        snprintf(words, sizeof words, "line 2*scheduler.params.%s*expected", key);
        check_error(text, words);
    }
    return readers;
}

/* ---- ignored and refused keys ---- */

static const char *some_value(ds_kind kind) {
    static const char *const values[] = {
        "{}",       "true",    "77",       "0.25", "\"cpu\"",
        "\"fp32\"", "\"cpu\"", "[0, 0.5]", "[]",   "{\"free\": [{\"in\": 1}]}",
        "1"};
    return values[kind];
}

static void check_ignored(const ds_row *row) {
    char text[TEXT], words[256];
    ds_config base, ds;
    const int line = one_key(text, row->path, some_value(row->kind), micro_before(row->path));
    without_key(row->path, MICRO, &base);
    if (!test_check(!parse(text, &ds), "%s: %s", row->path, why)) return;
    snprintf(words, sizeof words, "line %d*%s*%s", line, row->path, row->text);
    test_check(notes_seen == 1 && says(notes_last, words), "%s: %d notes, the last \"%s\"",
               row->path, notes_seen, notes_last);
    test_check(same(&base, &ds), "%s changes something", row->path);
    if (row->kind == DS_ANY) return;
    one_key(text, row->path, "{\"a\": 1}", micro_before(row->path));
    snprintf(words, sizeof words, "line %d*%s is an object, expected", line, row->path);
    check_error(text, words);
}

/* The nearest object above that is refused as a whole, or the key itself. */
static const ds_row *refusing(const ds_row *row, int *line) {
    for (int i = 0; i < DS_ROWS; i++) {
        const size_t n = strlen(ds_rows[i].path);
        if (ds_rows[i].class != DS_REFUSED || ds_rows[i].kind != DS_OBJECT) continue;
        if (strncmp(row->path, ds_rows[i].path, n) != 0 || row->path[n] != '.') continue;
        (*line)--;
        return &ds_rows[i];
    }
    return row;
}

static void check_refused(const ds_row *row) {
    char text[TEXT], words[256], value[64];
    ds_config base, ds;
    const char *bad =
        row->kind == DS_BOOL && strcmp(row->off, "true") == 0 ? "false" : some_value(row->kind);
    int line = one_key(text, row->path, bad, MICRO);
    const ds_row *by = refusing(row, &line);
    snprintf(words, sizeof words, "line %d*%s is *not supported*%s", line, by->path, by->text);
    check_error(text, words);
    if (by != row) return;
    without_key(row->path, MICRO, &base);
    const int quote = row->kind == DS_TEXT && row->off[0];
    snprintf(value, sizeof value, "%s%s%s", quote ? "\"" : "",
             row->off[0]              ? row->off
             : row->kind == DS_OBJECT ? "false"
             : row->kind == DS_ANY    ? "{\"enabled\": false, \"more\": 1}"
                                      : "\"auto\"",
             quote ? "\"" : "");
    one_key(text, row->path, value, MICRO);
    test_check(!parse(text, &ds) && same(&base, &ds) && !notes_seen, "%s is off with %s: %s",
               row->path, value, why);
}

static void check_section(const ds_row *row) {
    char text[TEXT], words[256];
    ds_config ds;
    const int line = one_key(text, row->path, "7", MICRO);
    snprintf(words, sizeof words, "line %d*%s is 7, expected an object", line, row->path);
    check_error(text, words);
    one_key(text, row->path, "{}", MICRO);
    test_check(!parse(text, &ds), "%s: %s", row->path, why);
    one_key(text, row->path, "{\n\"no_such_key_at_all\": 1}", MICRO);
    snprintf(words, sizeof words, "line %d*%s.no_such_key_at_all*no such key", line + 1, row->path);
    check_error(text, words);
}

/* A note names the version in which DeepSpeed removed a key that works here, and a key that has no
   effect here; an error names one that does not work. */
static void test_notes(void) {
    static const struct {
        const char *text, *note;
    } cases[] = {
        {"\"zero_optimization\": {\"stage\": 3,\n\"mics_shard_size\": 2}",
         "line 2*mics_shard_size: DeepSpeed removed this key in 0.19.7; here it works"},
        {"\"zero_optimization\": {\"stage\": 3,\n\"mics_shard_size\": -1}", NULL},
        {"\"zero_optimization\": {\"stage\": 2, \"zero_quantized_gradients\": true,\n"
         "\"zeropp_loco_param\": {}}",
         "line 2*zeropp_loco_param: DeepSpeed removed this key in 0.19.8; here it works"},
        {"\"zero_optimization\": {\"stage\": 2, \"zero_quantized_gradients\": true}", NULL},
        {"\"zero_optimization\": {\"stage\": 1, \"compute_grad_norm\": false}",
         "compute_grad_norm has no effect: the norm costs no pass"},
        {"\"bf16\": {\"bf16_master_weights_and_grads\": true}",
         "bf16_master_weights_and_grads has no effect without bf16.enabled"},
        {"\"bf16\": {\"bf16_optimizer_states\": true}, \"fp16\": {\"enabled\": true}",
         "bf16_optimizer_states has no effect without bf16.enabled"},
        {"\"bf16\": {\"bf16_optimizer_states\": false}", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[TEXT];
        ds_config ds;
        snprintf(text, sizeof text, "{" MICRO "%s}", cases[i].text);
        if (!test_check(!parse(text, &ds), "%s: %s", text, why)) continue;
        test_check(notes_seen == (cases[i].note != NULL)
                       && (!cases[i].note || says(notes_last, cases[i].note)),
                   "%s: %d notes, the last \"%s\"", text, notes_seen, notes_last);
    }
    ds_auto autos = test_plain;
    ds_config none;
    autos.none_frozen = 1;
    test_check(!parse_with("{" MICRO "\"zero_optimization\": {\"stage\": 3, "
                           "\"zero_quantized_nontrainable_weights\": true}}",
                           &autos, &none)
                   && none.zero.frozen_weight_bits == 0 && notes_seen == 1
                   && says(notes_last, "no tensor is frozen"),
               "frozen weights of a model without: %s %s", why, notes_last);
    for (size_t i = 0; i < sizeof ds_removed / sizeof *ds_removed; i++) {
        int rows = 0;
        for (int j = 0; j < DS_ROWS; j++) rows += strcmp(ds_rows[j].path, ds_removed[i].path) == 0;
        test_check(rows == 1, "%s has %d rows", ds_removed[i].path, rows);
    }
    check_error(
        "{\"train_micro_batch_size_per_gpu\": 2, \"elasticity\": {\"enabled\": true}}",
        "elasticity is an object, which is not supported (nor by DeepSpeed 0.19.8 and newer)");
    test_check(ds_removed_in("zero_optimization.zeropp_loco_param.err_beta") != NULL
                   && ds_removed_in("zero_optimization.stage") == NULL
                   && ds_removed_in("amplitude") == NULL,
               "versions of keys");
}

/* What stands in the place of a feature is named. */
static void test_instead(void) {
    check_error("{\"train_micro_batch_size_per_gpu\": 2,\n\"elasticity\": {\"enabled\": true, "
                "\"max_train_batch_size\": 2000}}",
                "line 2*elasticity*not supported*train_batch_size*-pe 1");
}

static void test_table(void) {
    int count[DS_CLASSES] = {0};
    for (int i = 0; i < DS_ROWS; i++) {
        const ds_row *row = &ds_rows[i];
        int cases = 0;
        count[row->class]++;
        for (int j = 0; j < i; j++)
            if (strcmp(ds_rows[j].path, row->path) == 0)
                test_check(0, "two rows for %s", row->path);
        if (row->class == DS_SECTION) check_section(row);
        if (row->class == DS_IGNORED) check_ignored(row);
        if (row->class == DS_REFUSED) check_refused(row);
        if (row->class != DS_APPLIED) continue;
        for (int c = 0; c < APPLIED_CASES; c++) {
            if (strcmp(applied[c].path, row->path) != 0) continue;
            check_applied(&applied[c]);
            cases++;
        }
        if (row->kind == DS_SCHEDULE) cases += check_schedule_key(strrchr(row->path, '.') + 1);
        if (row->id == DS_SCHEDULER) cases++; /* by the schedules */
        if (row->id == DS_OPTIMIZER_FOLDER || row->id == DS_PARAM_FOLDER)
            cases++;                                                      /* test_folders */
        if (row->id >= DS_TENSORBOARD && row->id <= DS_CSV_NAME) cases++; /* test_monitors */
        if (row->id == DS_TENSOR_RANKS || row->id == DS_CONTEXT_RANKS || row->id == DS_STAGES
            || row->id == DS_PARTITION)
            cases++;                                                       /* test_parallel */
        if (row->id >= DS_EXPERTS && row->id <= DS_EXPERTS_APART) cases++; /* test_experts */
        if (row->id == DS_LOCO_BETA || row->id == DS_LOCO_RESET) cases++;  /* test_loco */
        test_check(cases > 0, "no case for %s", row->path);
    }
    printf("%d keys: %d applied, %d without effect, %d not supported; %d objects\n",
           DS_ROWS - count[DS_SECTION], count[DS_APPLIED], count[DS_IGNORED], count[DS_REFUSED],
           count[DS_SECTION]);
    size_t n = 0;
    const schedule_field *field = schedule_fields(&n);
    for (size_t i = 0; i < n; i++) {
        char path[96];
        int rows = 0;
        snprintf(path, sizeof path, "scheduler.params.%s", field[i].name);
        for (int j = 0; j < DS_ROWS; j++) rows += strcmp(ds_rows[j].path, path) == 0;
        test_check(rows == (field[i].kinds >> SCHEDULE_WARMUP != 0), "%s has %d rows", path, rows);
    }
}

/* ---- errors ---- */

static const struct {
    const char *text, *words;
} errors[] = {
    /* syntax */
    {"", "nothing"},
    {" // only a comment", "nothing"},
    {"[1]", "expected an object"},
    {"{\n\"a\" 1}", "line 2*column 5*not JSON"},
    {"{\n\n  \"train_batch_size\": 4,,\n}", "line 3*column 26*not JSON"},
    {"{\"train_batch_size\": 4", "line 1*ends too early"},
    {"{\"train_batch_size\": 4}\n}", "line 2*column 1*not JSON"},
    {"{\"train_batch_size\": auto}", "line 1*column 22*not JSON"},
    {"{\n\"a\": \"b\n\"}", "line 2*column 6*no closing quote"},
    {"{\n /* \n", "line 2*column 2*no end"},
    {"{\"a\": [,]}", "not JSON"},
    {"{\"a\": nan}", "not JSON"},
    {"{\"a\": 1 / 2}", "not JSON"},
    /* unknown */
    {"{\n\"zero_optimization\": {\n\"stge\": 2}}",
     "line 3*zero_optimization.stge*did you mean zero_optimization.stage?"},
    {"{\"stage\": 2}", "line 1*stage*did you mean zero_optimization.stage?"},
    {"{\"optimiser\": {}}", "did you mean optimizer?"},
    {"{\"Train_Batch_Size\": 4}", "did you mean train_batch_size?"},
    {"{\"train_batchsize\": 4}", "did you mean train_batch_size?"},
    {"{\"zero_optimization\": {\"reduce_bucket\": 4}}",
     "mean zero_optimization.reduce_bucket_size?"},
    {"{\"zero_optimization\": {\"loss_scale\": 4}}", "mean fp16.loss_scale?"},
    {"{\"fp16\": {\"loss_scale_windw\": 4}}", "mean fp16.loss_scale_window?"},
    {"{\"loss_scale_wnidw\": 4}", "mean fp16.loss_scale_window?"},
    {"{\"fp16\": {\"loss_scal\": 4}}", "mean fp16.loss_scale?"},
    {"{\"fp16\": {\"loss_scale_value\": 4}}", "mean fp16.loss_scale?"},
    {"{\"train_micro_batch_size\": 4}", "mean train_micro_batch_size_per_gpu?"},
    {"{\"train_batch_size_per_gpu\": 4}", "mean train_micro_batch_size_per_gpu?"},
    {"{\"zero_optimization.stage\": 4}", "mean zero_optimization.stage?"},
    {"{\"zzzzzzzzzzzzzzzzzzzz\": 4}", "no such key"},
    {"{\"fp16\": {\"\\u0007\\u00e9\": 4}}", "fp16.???*no such key"},
    {"{\"\": 4}", "no such key"},
    /* type and range */
    {"{\"zero_optimization\": {\n\"stage\": 4}}",
     "line 2*zero_optimization.stage is 4, expected a whole number from 0 to 3"},
    {"{\"zero_optimization\": {\"stage\": \"2\"}}",
     "is \"2\", expected a whole number from 0 to 3"},
    {"{\"zero_optimization\": {\"stage\": 1.5}}", "is 1.5, expected a whole number"},
    {"{\"zero_optimization\": {\"overlap_comm\": 1}}", "is 1, expected true or false"},
    {"{\"zero_optimization\": {\"stage3_prefetch_bucket_size\": -1}}", "is -1, expected*0 or more"},
    {"{\"zero_optimization\": {\"stage3_prefetch_bucket_size\": 5e30}}", "expected"},
    {"{\"gradient_clipping\": -1}", "is -1, expected a number, 0 or more"},
    {"{\"gradient_clipping\": 1e999}", "expected a number"},
    {"{\"train_batch_size\": 2, \"gradient_clipping\": 1e-60}", "gradient_clipping is 1e-60"},
    {"{\"fp16\": {\"loss_scale\": true}}", "fp16.loss_scale is true, expected a number"},
    {"{\"fp16\": {\"hysteresis\": 0}}",
     "fp16.hysteresis is 0, expected a whole number from 1 to 2147483647"},
    {"{\"fp16\": {\"initial_scale_power\": 128}}", "from 0 to 127"},
    {"{\"communication_data_type\": \"fp8\"}",
     "is \"fp8\", expected \"fp32\", \"bf16\" or \"fp16\""},
    {"{\"optimizer\": {\"type\": \"Adam\", \"params\": {\"betas\": [0.9]}}}",
     "betas is a list, expected"},
    {"{\"optimizer\": {\"type\": \"Adam\", \"params\": {\"betas\": [0.9, 1]}}}", "below 1"},
    {"{\"optimizer\": {\"type\": \"Adam\", \"params\": {\"eps\": 0}}}",
     "eps is 0, expected*above 0"},
    {"{\"optimizer\": {\"type\": 3}}", "optimizer.type is 3, expected a text"},
    /* twice */
    {"{\n\"train_batch_size\": 1,\n\"train_batch_size\": 1}",
     "line 3*train_batch_size is given twice, first in line 2"},
    {"{\"tensor_parallel\": {\"partition_config\": {\"x\": 1,\n\"x\": 2}}}", "line 2*twice*line 1"},
    {"{\"bf16\": {\"enabled\": true},\n\"bfloat16\": {\"enabled\": true}}",
     "line 2*same key*line 1"},
    /* together */
    {"{\"train_batch_size\": 4,\n\"fp16\": {\"enabled\": true},\n\"bf16\": {\"enabled\": true}}",
     "line 2*fp16.enabled*bf16.enabled*line 3*both"},
    {"{\"train_batch_size\": 4, \"fp16\": {\"enabled\": true, \"initial_scale_power\": 2,\n"
     "\"min_loss_scale\": 8}}",
     "line 2*min_loss_scale is 8*initial_scale_power: 4"},
    {"{\"train_batch_size\": 4, \"fp16\": {\"enabled\": true},\n\"communication_data_type\": "
     "\"bf16\"}",
     "line 2*communication_data_type is bf16 with parameters in fp16*use \"fp32\""},
    {"{\"train_batch_size\": 4,\n\"data_types\": {\"param_dtype\": \"bf16\"}}",
     "line 2*data_types.param_dtype is bf16*fp32"},
    /* optimizer */
    {"{\"optimizer\": {\n\"type\": \"OneBitAdam\", \"params\": {\"freeze_step\": 2}}}",
     "line 2*\"OneBitAdam\", which is not supported*0.19.7*AdamW with "
     "zero_quantized_gradients*-qg 4 -qf 0.8"},
    {"{\"optimizer\": {\n\"type\": \"OneBitLamb\"}}", "line 2*\"OneBitLamb\"*Lamb with*-qg 4"},
    {"{\"optimizer\": {\n\"type\": \"ZeroOneAdam\"}}", "line 2*\"ZeroOneAdam\"*AdamW with*-qg 4"},
    {"{\"optimizer\": {\n\"type\": \"RAdam\"}}",
     "line 2*\"RAdam\", which is not supported: use AdamW, Adam, SGD, Lion, Adagrad, "
     "Lamb or Muon"},
    {"{\"train_batch_size\": 4, \"zero_optimization\": {\"stage\": 2,\n"
     "\"zero_quantized_weights\": true}}",
     "line 2*zero_quantized_weights is true at stage 2*use stage 3"},
    {"{\"train_batch_size\": 4, \"zero_optimization\": {\"stage\": 0,\n"
     "\"zero_quantized_gradients\": true}}",
     "line 2*zero_quantized_gradients is true at stage 0*stage 1 to 3"},
    {"{\"train_batch_size\": 4, \"optimizer\": {\"type\": \"Lamb\", \"params\": {\n\"min_coeff\": "
     "2, \"max_coeff\": 1}}}",
     "line 2*min_coeff is 2, above max_coeff 1*smaller"},
    {"{\"train_batch_size\": 4, \"optimizer\": {\"type\": \"Muon\", \"params\": {\n\"momentum\": "
     "0}}}",
     "line 2*momentum is 0, expected one above 0 for Muon"},
    {"{\"optimizer\": {\"type\": \"Adagrad\", \"params\": {\n\"lr_decay\": 0.5}}}",
     "line 2*lr_decay is 0.5*use a scheduler"},
    {"{\"optimizer\": {\"type\": \"Adagrad\", \"params\": {\n\"betas\": [0, 0.5]}}}",
     "line 2*betas is no parameter of Adagrad"},
    {"{\"optimizer\": {\n\"params\": {\"lr\": 2}}}", "line 2*without optimizer.type"},
    {"{\"optimizer\": {\"type\": \"auto\"}}", "optimizer.type is \"auto\", expected"},
    {"{\"optimizer\": {\"type\": \"AdamW\",\n\"params\": {\"momentum\": 0.5}}}",
     "line 2*optimizer.params.momentum is no parameter of AdamW"},
    {"{\"optimizer\": {\"type\": \"SGD\", \"params\": {\"eps\": 0.5}}}",
     "eps is no parameter of SGD"},
    {"{\"optimizer\": {\"type\": \"SGD\", \"params\": {\"dampening\": 0.5}}}",
     "dampening is 0.5*use 0"},
    {"{\"train_batch_size\": 4, \"optimizer\": {\"type\": \"SGD\", \"params\": {\"nesterov\": "
     "true}}}",
     "expected a momentum above 0"},
    /* scheduler */
    {"{\"scheduler\": {\n\"type\": \"CosineAnnealingLR\"}}",
     "line 2*\"CosineAnnealingLR\", which is not supported: use WarmupLR"},
    {"{\"scheduler\": {\"type\": \"cosine\"}}", "not supported: use WarmupLR"},
    {"{\"scheduler\": {\n\"params\": {\"warmup_min_lr\": 0}}}", "line 2*without scheduler.type"},
    {"{\"train_batch_size\": 4, \"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {}}}",
     "total_num_steps"},
    {"{\"train_batch_size\": 4, \"scheduler\": {\"type\": \"OneCycle\"}}", "cycle_m"},
    {"{\"train_batch_size\": 4, \"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\n"
     "\"warmup_num_steps\": 0}}}",
     "line 2*warmup_num_steps"},
    {"{\"train_batch_size\": 4, \"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\n"
     "\"warmup_type\": \"sine\"}}}",
     "line 2*warmup_type*sine"},
    {"{\"train_batch_size\": 4, \"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {\n"
     "\"total_num_steps\": \"auto\"}}}",
     "line 2*total_num_steps is \"auto\""},
    /* offload */
    {"{\"train_batch_size\": 4, \"zero_optimization\": {\"stage\": 2,\n\"offload_param\": "
     "{\"device\": \"cpu\"}}}",
     "line 2*offload_param.device is \"cpu\" at stage 2*use stage 3"},
    {"{\"train_batch_size\": 4, \"zero_optimization\": {\"stage\": 1, \"cpu_offload_param\": "
     "true}}",
     "cpu_offload_param is \"cpu\" at stage 1"},
    {"{\"train_batch_size\": 4, \"zero_optimization\": {\"stage\": 0,\n\"offload_param\": "
     "{\"device\": \"nvme\", \"nvme_path\": \"/x\"}}}",
     "line 2*offload_param.device is \"nvme\" at stage 0"},
    {"{\"zero_optimization\": {\"offload_optimizer\": {\"device\": \"gpu\"}}}",
     "offload_optimizer.device is \"gpu\", expected \"none\", \"cpu\" or \"nvme\""},
    {"{\"zero_optimization\": {\"offload_optimizer\": {\"ratio\": 1.5}}}",
     "offload_optimizer.ratio is 1.5, expected a number from 0 to 1"},
    {"{\"zero_optimization\": {\"cpu_offload\": false,\n\"offload_optimizer\": {\"device\": "
     "\"cpu\"}}}",
     "line 2*offload_optimizer.device is the same key as zero_optimization.cpu_offload in line 1"},
    {"{\"zero_optimization\": {\"offload_optimizer\": {\"super_offload\": true}}}",
     "super_offload is true*not supported*before the gradient's norm is known"},
    {"{\"zero_optimization\": {\"zenflow\": {\"topk_ratio\": 0.1}}}",
     "zenflow is an object*not supported*-zod N delays that of all"},
    /* batch, with 2 ranks */
    {"{}", "train_micro_batch_size_per_gpu is missing"},
    {"{\"gradient_accumulation_steps\": 2}", "train_micro_batch_size_per_gpu is missing"},
    {"{\n\"train_micro_batch_size_per_gpu\": \"auto\"}", "line 2*\"auto\"*no value"},
    {"{\n\"train_batch_size\": 10,\n\"train_micro_batch_size_per_gpu\": 3}",
     "line 2*10 (line 2)*3 (line 3)*1 (solved)*2 ranks = 6"},
    {"{\"train_batch_size\": 10,\n\"train_micro_batch_size_per_gpu\": 2,\n"
     "\"gradient_accumulation_steps\": 3}",
     "10 (line 1)*2 (line 2)*3 (line 3)*= 12"},
    {"{\"train_batch_size\": 1}", "0 (solved)*2 ranks = 0"},
    {"{\"train_batch_size\": 2147483648}", "from 1 to 2147483647"},
    {"{\"train_micro_batch_size_per_gpu\": 2147483647, \"gradient_accumulation_steps\": "
     "2147483647}",
     "train_batch_size"},
    {"{\"train_batch_size\": 0}", "expected a whole number from 1"},
};

static void test_errors(void) {
    char *big = NULL;
    ds_config ds;
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        check_error(errors[i].text, errors[i].words);
    /* bounds */
    big = (char *)malloc((size_t)DS_CONFIG_BYTES + 2);
    if (big == NULL) return;
    memset(big, ' ', (size_t)DS_CONFIG_BYTES + 1);
    big[DS_CONFIG_BYTES + 1] = 0;
    test_check(parse(big, &ds) && says(why, "16 MiB"), "too long: %s", why);
    memset(big, '[', 1000);
    big[0] = '{';
    memcpy(big + 1, "\"aio\":", 6);
    big[1000] = 0;
    test_check(parse(big, &ds) && says(why, "deeper than 64"), "too deep: %s", why);
    int n = sprintf(big, "{\"tensor_parallel\":{\"partition_config\":{");
    for (int i = 0; i <= DS_CONFIG_KEYS; i++) n += sprintf(big + n, "\"k%d\":1,", i);
    sprintf(big + n, "\"k\":1}}}");
    test_check(parse(big, &ds) && says(why, "more than 4096 keys"), "too many: %s", why);
    test_check(ds_config_parse("{\0}", 3, "x", &test_plain, &ds, NULL, why, sizeof why)
                   && says(why, "byte 0"),
               "a byte 0: %s", why);
    test_check(ds_config_parse("{\"a\"}", 2, "x", &test_plain, &ds, NULL, why, sizeof why),
               "cut off");
    ds_auto none = {0};
    test_check(parse_with("{\"train_batch_size\": 4}", &none, &ds) && says(why, "ranks is 0"), "%s",
               why);
    memset(big, 'k', 500);
    memcpy(big, "{\"", 2);
    memcpy(big + 500, "\": 1}", 6);
    test_check(parse(big, &ds) && says(why, "kkk...: DeepSpeed has no such key"), "%s", why);
    char tiny[8];
    test_check(ds_config_parse("{\"a\": 1}", 8, "x", &test_plain, &ds, NULL, tiny, sizeof tiny)
                   && strlen(tiny) == 7,
               "a short sentence: %s", tiny);
    free(big);
    test_check(ds_config_load("/nowhere/ds.json", &test_plain, &ds, NULL, why, sizeof why)
                   && says(why, "/nowhere/ds.json*No such file"),
               "no file: %s", why);
    test_check(ds_config_load("/", &test_plain, &ds, NULL, why, sizeof why)
                   && says(why, "cannot be"),
               "a folder: %s", why);
}

/* ---- values ---- */

/* 1 of the three given, or 2, or all: DeepSpeed's rules; "auto" comes from the flags. */
static void test_batch(void) {
    static const struct {
        const char *text;
        int autos;
        int64_t train;
        int micro, steps;
    } cases[] = {
        {"{\"train_batch_size\": 24}", 0, 24, 12, 1},
        {"{\"train_micro_batch_size_per_gpu\": 3}", 0, 6, 3, 1},
        {"{\"train_batch_size\": 24, \"train_micro_batch_size_per_gpu\": 3}", 0, 24, 3, 4},
        {"{\"train_batch_size\": 24, \"gradient_accumulation_steps\": 3}", 0, 24, 4, 3},
        {"{\"train_micro_batch_size_per_gpu\": 3, \"gradient_accumulation_steps\": 5}", 0, 30, 3,
         5},
        {"{\"train_batch_size\": 12, \"train_micro_batch_size_per_gpu\": 3, "
         "\"gradient_accumulation_steps\": 2}",
         0, 12, 3, 2},
        {"{\"train_batch_size\": null, \"train_micro_batch_size_per_gpu\": 3}", 0, 6, 3, 1},
        {"{\"train_batch_size\": 24.0, \"gradient_accumulation_steps\": \"auto\"}", 0, 24, 12, 1},
        {"{\"train_batch_size\": \"auto\", \"train_micro_batch_size_per_gpu\": \"auto\", "
         "\"gradient_accumulation_steps\": \"auto\"}",
         1, 24, 4, 3},
        {"{\"train_micro_batch_size_per_gpu\": \"auto\"}", 1, 8, 4, 1},
        {"{\"train_batch_size\": 48, \"train_micro_batch_size_per_gpu\": \"auto\"}", 1, 48, 4, 6},
    };
    ds_config ds;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const ds_auto *autos = cases[i].autos ? &test_autos : &test_plain;
        const int failed = parse_with(cases[i].text, autos, &ds);
        test_check(!failed && ds.train_batch == cases[i].train && ds.micro_batch == cases[i].micro
                       && ds.accumulation == cases[i].steps
                       && ds.zero.micro_steps == cases[i].steps,
                   "%s: %s, %lld = %d x %d x 2", cases[i].text, why, (long long)ds.train_batch,
                   ds.micro_batch, ds.accumulation);
        if (!failed) check_round(cases[i].text, &ds, autos);
    }
    /* "auto" beside two numbers is their product, whatever the trainer would take by itself */
    ds_auto autos = test_plain;
    autos.train_batch = 12;
    const char *text = "{\"train_batch_size\": \"auto\", \"train_micro_batch_size_per_gpu\": 5, "
                       "\"gradient_accumulation_steps\": 7}";
    test_check(!parse_with(text, &autos, &ds) && ds.train_batch == 70 && ds.micro_batch == 5
                   && ds.accumulation == 7,
               "%s: %s, %lld", text, why, (long long)ds.train_batch);
}

static int near_to(double a, double b) { return fabs(a - b) <= 1e-6 * fabs(b); }

static void test_defaults(void) {
    ds_config ds;
    test_check(!parse("{\"train_batch_size\": 8}", &ds), "%s", why);
    test_check(ds.zero.stage == 0 && ds.zero.type == ZERO_F32 && ds.zero.optimizer == ZERO_ADAMW
                   && ds.hyper.lr == 1e-3f && ds.hyper.beta1 == 0.9f && ds.hyper.beta2 == 0.999f
                   && ds.hyper.eps == 1e-8f && ds.hyper.weight_decay == 0 && ds.hyper.max_norm == 1
                   && !ds.has_schedule && ds.given == 0,
               "DeepSpeed's defaults");
    test_check(!parse_with("{\"train_batch_size\": 8}", &test_autos, &ds)
                   && ds.hyper.lr == test_flags.lr && ds.hyper.beta1 == test_flags.beta1
                   && ds.hyper.max_norm == 1,
               "without an optimizer the flags count, clipping is DeepSpeed's");
    test_check(!parse("{\"train_batch_size\": 8, \"zero_optimization\": true}", &ds)
                   && ds.zero.stage == 1,
               "zero_optimization true: stage %d", ds.zero.stage);
    test_check(
        !parse("{\"train_batch_size\": 8, \"zero_optimization\": {\"stage\": \"auto\"}}", &ds)
            && ds.given == 0,
        "stage \"auto\" gives no stage, so that of -z stands: given %x", (unsigned)ds.given);
    test_check(!parse("{\"train_batch_size\": 8, \"optimizer\": {\"type\": \"Adam\"}}", &ds)
                   && ds.zero.optimizer == ZERO_ADAMW,
               "Adam is AdamW");
    test_check(!parse("{\"train_batch_size\": 8, \"optimizer\": {\"type\": \"Adagrad\"}}", &ds)
                   && ds.zero.optimizer == ZERO_ADAGRAD && ds.hyper.lr == 1e-2f
                   && ds.hyper.eps == 1e-10f && ds.hyper.weight_decay == 0 && !notes_seen,
               "Adagrad's defaults");
    test_check(!parse("{\"train_batch_size\": 8, \"optimizer\": {\"type\": \"lamb\"}}", &ds)
                   && ds.zero.optimizer == ZERO_LAMB && ds.hyper.lr == 1e-3f
                   && ds.hyper.beta2 == 0.999f && ds.hyper.eps == 1e-8f && ds.zero.trust_least == 0
                   && ds.zero.trust_most == 0 && notes_seen == 1,
               "Lamb's defaults, and a note about its bounds");
    test_check(
        !parse("{\"train_batch_size\": 8, \"optimizer\": {\"type\": \"Muon\", \"params\": "
               "{\"lr\": 0.25, \"momentum\": 0.5, \"adam_lr\": 0.125}}}",
               &ds)
            && ds.zero.optimizer == ZERO_MUON && ds.hyper.lr == 0.25f
            && ds.zero.muon.momentum == 0.5f && ds.zero.muon.plain_lr == 0.5f
            && ds.hyper.beta1 == 0.9f && ds.hyper.beta2 == 0.95f && ds.hyper.eps == 1e-10f
            && ds.given
                   == (DS_GIVEN_OPTIMIZER | DS_GIVEN_LR | DS_GIVEN_MOMENTUM | DS_GIVEN_PLAIN_LR),
        "Muon's learning rates");
    test_check(!parse("{\"train_batch_size\": 8, \"optimizer\": {\"type\": \"AdamW\", \"params\": "
                      "{\"adam_w_mode\": false}}}",
                      &ds)
                   && ds.zero.optimizer == ZERO_ADAMW && notes_seen == 1,
               "AdamW stays AdamW");
    test_check(!parse("{\"train_batch_size\": 8, \"optimizer\": {\"type\": \"SGD\"}}", &ds)
                   && ds.zero.optimizer == ZERO_SGD && ds.hyper.beta1 == 0,
               "SGD without momentum");
    test_check(
        !parse("{\"train_batch_size\": 8, \"fp16\": {\"enabled\": false, \"loss_scale\": 8}}", &ds)
            && ds.zero.scaler.fixed == 0,
        "the scale counts for fp16 alone");
    test_check(!parse("{\"train_batch_size\": 8, \"bf16\": {\"enabled\": true}, "
                      "\"communication_data_type\": \"bf16\", "
                      "\"data_types\": {\"grad_accum_dtype\": \"fp32\"}}",
                      &ds)
                   && ds.zero.grads == ZERO_GRAD_F32 && notes_seen == 1,
               "fp32 wins, and a note says so");
    test_check(
        !parse("{\"train_batch_size\": 8, \"optimizer\": {\"type\": \"SGD\"}, \"scheduler\": "
               "{\"type\": \"OneCycle\", \"params\": {\"cycle_min_lr\": 1, \"cycle_max_lr\": 2}}}",
               &ds)
            && ds.lr_schedule.cycle_momentum == 0 && notes_seen == 1,
        "OneCycle with SGD: %s", why);
}

/* Offload: an object's members, those of the other, and what comes of them. */
static const char *offload_text(const char *optimizer, const char *param) {
    static char text[TEXT];
    snprintf(text, sizeof text,
             "{\"train_batch_size\": 8, \"zero_optimization\": {\"stage\": 3,\n"
             "\"offload_optimizer\": {%s},\n\"offload_param\": {%s}}}",
             optimizer, param);
    return text;
}

static void test_folders(void) {
    static char path[DS_CONFIG_FOLDER + 64];
    ds_auto autos = test_plain;
    ds_config ds;
    const char *text =
        offload_text("\"device\": \"nvme\", \"nvme_path\": \"/a b/\\u00e9\", \"ratio\": 0.5",
                     "\"device\": \"nvme\", \"nvme_path\": \"/a b/\\u00e9\"");
    test_check(!parse(text, &ds) && ds.zero.optimizer_tier == ZERO_FILE
                   && ds.zero.parameter_tier == ZERO_FILE && ds.zero.offload_share == 0.5f
                   && strcmp(ds.folder, "/a b/\xC3\xA9") == 0 && notes_seen == 1
                   && says(notes_last, "line 2*ratio 0.5*parameters"),
               "%s: %s, %s", text, why, notes_last);
    check_round(text, &ds, &test_plain);
    text = offload_text("\"device\": \"nvme\", \"nvme_path\": \"/a\"",
                        "\"device\": \"nvme\", \"nvme_path\": \"/b\"");
    check_error(text,
                "line 3*offload_param.nvme_path differs from the folder*line 2*give the same");
    text = offload_text("\"device\": \"nvme\", \"nvme_path\": \"/a\"",
                        "\"device\": \"cpu\", \"nvme_path\": \"/b\"");
    test_check(!parse(text, &ds) && strcmp(ds.folder, "/a") == 0 && notes_seen == 1
                   && says(notes_last, "line 3*offload_param.nvme_path has no effect"),
               "a folder of host memory: %s, %s", why, notes_last);
    text = offload_text("\"device\": \"nvme\", \"nvme_path\": null", "");
    check_error(text, "line 2*offload_optimizer.device is \"nvme\" without nvme_path*-zfd");
    autos.folder = "/c";
    test_check(!parse_with(text, &autos, &ds) && ds.zero.optimizer_tier == ZERO_FILE
                   && !ds.folder[0],
               "the trainer's folder: %s", why);
    check_round(text, &ds, &autos);
    memset(path, 'p', sizeof path - 1);
    path[0] = '"';
    path[sizeof path - 2] = '"';
    char members[TEXT / 2];
    snprintf(members, sizeof members, "\"device\": \"nvme\", \"nvme_path\": %s", path);
    check_error(offload_text(members, ""), "line 2*nvme_path has 573 characters*at most 511");
}

/* {"train_batch_size": 8, KEY: {MEMBERS}} */
static const char *monitor_text(const char *key, const char *members) {
    static char text[TEXT];
    snprintf(text, sizeof text, "{\"train_batch_size\": 8,\n\"%s\": {%s}}", key, members);
    return text;
}

static void test_monitors(void) {
    static const struct {
        const char *members, *folder[2], *note; /* of tensorboard, csv_monitor */
    } cases[] = {
        {"\"enabled\": true, \"output_path\": \"/a b/\", \"job_name\": \"j\"",
         {"/a b/j", "/a b/j"},
         NULL},
        {"\"enabled\": true, \"output_path\": \"runs\"",
         {"runs/DeepSpeedJobName", "runs/DeepSpeedJobName"},
         NULL},
        {"\"enabled\": true, \"output_path\": \"\"",
         {"tensorboard/DeepSpeedJobName", "csv_monitor/DeepSpeedJobName"},
         NULL},
        {"\"enabled\": \"auto\"", {"", ""}, NULL},
        {"\"enabled\": false, \"job_name\": \"j\"", {"", ""}, "line 2*job_name has no effect"},
        {"\"output_path\": \"/a\"", {"", ""}, "line 2*output_path has no effect"}};
    static const char *const keys[] = {"tensorboard", "csv_monitor"};
    static char path[DS_CONFIG_FOLDER + 8], members[DS_CONFIG_FOLDER + 64];
    ds_config ds;
    for (int k = 0; k < 2; k++) {
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            const char *text = monitor_text(keys[k], cases[i].members);
            const char *mine = k ? ds.csv_monitor : ds.tensorboard;
            const char *other = k ? ds.tensorboard : ds.csv_monitor;
            test_check(!parse(text, &ds) && !strcmp(mine, cases[i].folder[k]) && !other[0]
                           && notes_seen == (cases[i].note != NULL)
                           && (!cases[i].note || says(notes_last, cases[i].note)),
                       "%s: %s, %s, %s", text, mine, why, notes_last);
            if (ds.given == 0) check_round(text, &ds, &test_plain);
        }
        memset(path, 'p', DS_CONFIG_FOLDER - 4);
        snprintf(members, sizeof members, "\"enabled\": true, \"output_path\": \"%s\"", path);
        check_error(monitor_text(keys[k], members), "line 2*expected at most 510");
        check_error(monitor_text(keys[k], "\"enabled\": true, \"job_name\": \"a/\""),
                    "line 2*job_name is \"a/\", expected a name");
    }
    check_error("{\"train_batch_size\": 8,\n\"wandb\": {\"enabled\": true}}",
                "line 2*wandb.enabled*use tensorboard*wandb sync");
    check_error("{\"train_batch_size\": 8,\n\"comet\": {\"enabled\": true}}",
                "line 2*comet.enabled*use tensorboard");
    const char *text = "{\"train_batch_size\": 8, \"steps_per_print\": 3, "
                       "\"wall_clock_breakdown\": true,\n\"flops_profiler\": "
                       "{\"profile_step\": 4}}";
    test_check(!parse(text, &ds) && ds.breakdown == 3 && ds.profile_step == 0 && notes_seen == 1
                   && says(notes_last, "line 2*profile_step has no effect"),
               "%s: %s, %s", text, why, notes_last);
}

static void test_offload(void) {
    ds_config ds;
    const char *text = offload_text("\"device\": \"cpu\", \"ratio\": 0", "\"device\": \"cpu\"");
    test_check(!parse(text, &ds) && ds.zero.optimizer_tier == ZERO_DEVICE
                   && ds.zero.parameter_tier == ZERO_HOST && ds.zero.offload_share == 0
                   && !(ds.given & DS_GIVEN_SHARE),
               "ratio 0 leaves the optimizer where it is: %s", why);
    check_round(text, &ds, &test_plain);
    text = offload_text("\"device\": \"none\", \"ratio\": 0.5", "");
    test_check(!parse(text, &ds) && ds.given == (DS_GIVEN_STAGE | DS_GIVEN_OPTIMIZER_TIER)
                   && notes_seen == 1 && says(notes_last, "ratio has no effect"),
               "a ratio of nothing: %s, %s", why, notes_last);
    text =
        "{\"train_batch_size\": 8, \"zero_optimization\": {\"stage\": 0, \"cpu_offload\": true}}";
    test_check(!parse(text, &ds) && ds.zero.optimizer_tier == ZERO_HOST && notes_seen == 1
                   && says(notes_last, "cpu_offload is for stages 1 to 3*stage 0"),
               "stage 0: %s, %s", why, notes_last);
    text = "{\"train_batch_size\": 8, \"zero_optimization\": {\"offload_param\": {\"device\": "
           "\"cpu\"}}}";
    test_check(!parse(text, &ds) && ds.zero.parameter_tier == ZERO_HOST,
               "without a stage the flags' counts: %s", why);
    test_folders();
    test_monitors();
}

static void test_comments(void) {
    ds_config a, b;
    const char *plain =
        "{\"train_batch_size\": 8, \"csv_monitor\": {\"output_path\": \"a//b/*c*/#d\"}}";
    const char *texts[] = {
        "// one\n{\"train_batch_size\": 8, // two\n\"csv_monitor\": {\"output_path\": "
        "\"a//b/*c*/#d\"}} // three",
        "\xEF\xBB\xBF{\"train_batch_size\": /**/ 8, # x\r\n\"csv_monitor\"/* { \" */: "
        "{\"output_path\": \"a//b/*c*/#d\",},}\r\n/***/",
        "{/*\n*/\"train_batch_size\"://\n8,/*/ */\"csv_monitor\":{\"output_path\":\"a\\\"//b\"}}#",
    };
    test_check(!parse(plain, &a), "%s", why);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        test_check(!parse(texts[i], &b) && same(&a, &b), "comments %zu: %s", i, why);
    check_error("/*\n\n*/{\n// \"stage\"\n/* \" */ \"stage\": \"//\"}", "line 5*stage*no such key");
    check_error("{\"log_level\": \"// \\\" :\",\n\"x_y_z\": 1}", "line 2*x_y_z");
    check_error("{ /", "not JSON");
    check_error("{ /*/", "no end");
}

/* Allocations of cJSON fail, the nth one: an error or the same result. */
static long alloc_left;
static void *alloc_or_not(size_t bytes) { return alloc_left-- > 0 ? malloc(bytes) : NULL; }

static void test_memory(void) {
    const char *text = "{\"train_batch_size\": 8, \"optimizer\": {\"type\": \"Adam\", \"params\": "
                       "{\"lr\": 0.1, \"betas\": [0.5, 0.5]}}, \"fp16\": {\"enabled\": true}, "
                       "\"scheduler\": {\"type\": \"WarmupLR\"}}";
    cJSON_Hooks hooks = {alloc_or_not, free};
    ds_config ds, whole;
    int failures = 0, ok = 1;
    (void)parse(text, &whole);
    char *printed = ds_config_print(&whole);
    cJSON_InitHooks(&hooks);
    for (long n = 0; n < 200; n++) {
        alloc_left = n;
        if (parse(text, &ds))
            failures++;
        else
            ok &= same(&ds, &whole);
        alloc_left = n;
        char *again = ds_config_print(&whole);
        ok &= again == NULL || strcmp(again, printed) == 0;
        free(again);
    }
    cJSON_InitHooks(NULL);
    free(printed);
    test_check(ok && failures > 10 && failures < 200, "%d of 200 failed", failures);
}

/* ---- files ---- */

static const char *folder;
static int load(const char *name, const ds_auto *autos, ds_config *ds) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    notes_seen = 0;
    const int failed = ds_config_load(path, autos, ds, &notes_kept, why, sizeof why);
    if (!failed) check_round(name, ds, autos);
    return failed;
}

static void test_zero2(void) {
    ds_config ds;
    ds_auto half = test_autos;
    half.type = ZERO_F16;
    if (!test_check(!load("zero2.json", &half, &ds), "%s", why)) return;
    test_check(ds.zero.stage == 2 && ds.zero.type == ZERO_F16 && ds.zero.optimizer == ZERO_ADAMW
                   && ds.zero.micro_steps == 3 && ds.zero.no_overlap == 0
                   && ds.zero.grads == ZERO_GRAD_AUTO,
               "zero2.json: zero_config");
    test_check(ds.zero.scaler.fixed == 0 && ds.zero.scaler.initial == 65536
                   && ds.zero.scaler.window == 1000 && ds.zero.scaler.hysteresis == 2
                   && ds.zero.scaler.minimum == 1 && !ds.zero.scaler.consecutive_hysteresis,
               "zero2.json: scaler");
    test_check(ds.hyper.lr == 3e-5f && ds.hyper.beta1 == 0.8f && ds.hyper.beta2 == 0.999f
                   && ds.hyper.eps == 1e-8f && ds.hyper.weight_decay == 3e-7f
                   && ds.hyper.max_norm == 0.5f,
               "zero2.json: hyper");
    test_check(ds.has_schedule && ds.lr_schedule.kind == SCHEDULE_WARMUP
                   && ds.lr_schedule.lr == 3e-5 && ds.lr_schedule.warmup_min_lr == 0
                   && ds.lr_schedule.warmup_max_lr == 3e-5
                   && ds.lr_schedule.warmup_num_steps == 500,
               "zero2.json: schedule");
    test_check(ds.train_batch == 24 && ds.micro_batch == 4 && ds.steps_per_print == 2000,
               "zero2.json: sizes");
    test_check(notes_seen == 5, "zero2.json: %d notes", notes_seen);
    test_check(!load("zero2_offload.json", &half, &ds) && ds.zero.optimizer_tier == ZERO_HOST
                   && ds.zero.parameter_tier == ZERO_DEVICE && ds.zero.stage == 2,
               "zero2_offload.json: %s", why);
}

static void test_zero3(void) {
    ds_config ds;
    if (!test_check(!load("zero3_auto.json", &test_autos, &ds), "%s", why)) return;
    test_check(ds.zero.stage == 3 && ds.zero.type == ZERO_BF16 && ds.hyper.lr == 3e-4f
                   && ds.hyper.beta1 == 0.85f && ds.hyper.beta2 == 0.95f && ds.hyper.eps == 1e-7f
                   && ds.hyper.weight_decay == 0.2f && ds.hyper.max_norm == 0.5f,
               "zero3_auto.json: hyper");
    test_check(ds.prefetch_numel == 3686 && ds.zero.persistence_numel == 640
                   && ds.zero.scaler.initial == 0,
               "zero3_auto.json: sizes");
    test_check(ds.lr_schedule.kind == SCHEDULE_WARMUP_DECAY && ds.lr_schedule.total_num_steps == 300
                   && ds.lr_schedule.warmup_num_steps == 20 && ds.lr_schedule.warmup_min_lr == 0
                   && ds.lr_schedule.warmup_max_lr == 3e-4,
               "zero3_auto.json: schedule");
    test_check(load("zero3_auto.json", &test_plain, &ds)
                   && says(why, "train_micro_batch_size_per_gpu is \"auto\""),
               "without flags: %s", why);
    test_check(!load("zero3_offload.json", &test_plain, &ds) && ds.zero.parameter_tier == ZERO_FILE
                   && ds.zero.optimizer_tier == ZERO_DEVICE && !strcmp(ds.folder, "/local_nvme"),
               "zero3_offload.json: %s", why);
    test_check(!load("zero3_host.json", &test_autos, &ds) && ds.zero.optimizer_tier == ZERO_HOST
                   && ds.zero.parameter_tier == ZERO_HOST && !ds.folder[0]
                   && ds.zero.type == ZERO_BF16 && ds.accumulation == 3 && notes_seen == 11,
               "zero3_host.json: %s, %d notes", why, notes_seen);
}

static void test_files(void) {
    ds_config ds;
    test_zero2();
    test_zero3();
    test_check(!load("zero1.json", &test_plain, &ds) && ds.zero.stage == 1 && ds.micro_batch == 8
                   && ds.accumulation == 4 && ds.zero.scaler.initial == 2048
                   && ds.zero.scaler.consecutive_hysteresis && near_to(ds.hyper.lr, 1.5e-4)
                   && ds.hyper.max_norm == 0.1f && ds.zero.optimizer == ZERO_ADAMW,
               "zero1.json: %s", why);
    test_check(!load("zero2_sgd.json", &test_plain, &ds) && ds.zero.stage == 2
                   && ds.zero.optimizer == ZERO_SGD && ds.hyper.beta1 == 0.9f && ds.micro_batch == 2
                   && ds.zero.type == ZERO_F16,
               "zero2_sgd.json: %s", why);
    test_check(!load("bf16.json", &test_plain, &ds) && ds.zero.master == ZERO_MASTER_NONE
                   && ds.zero.no_overlap && ds.zero.no_overflow_check
                   && ds.zero.grads == ZERO_GRAD_AS_TYPE && ds.zero.persistence_numel == ZERO_NONE
                   && ds.prefetch_numel == 0 && (ds.given & DS_GIVEN_PREFETCH)
                   && ds.zero.optimizer == ZERO_LION && ds.lr_schedule.beta1 == 0.95
                   && ds.lr_schedule.cycle_momentum,
               "bf16.json: %s", why);
    test_check(!load("fp32.json", &test_plain, &ds) && ds.zero.optimizer == ZERO_NESTEROV
                   && ds.accumulation == 4 && ds.lr_schedule.lr == 0.123456789012
                   && ds.hyper.max_norm == 0
                   && ds.lr_schedule.warmup_type == SCHEDULE_WARMUP_LINEAR,
               "fp32.json: %s", why);
    test_check(!load("adam_l2.json", &test_plain, &ds) && ds.zero.optimizer == ZERO_ADAM
                   && ds.zero.scaler.fixed == 128 && ds.zero.grads == ZERO_GRAD_F32
                   && ds.hyper.weight_decay == 0 && ds.zero.stage == 1,
               "adam_l2.json: %s", why);
    test_check(!load("minimal.json", &test_autos, &ds) && ds.micro_batch == 4, "minimal.json: %s",
               why);
}

/* ---- ranks of other kinds than data-parallel ones ---- */

/* Keys beside a batch of 48 in two micro-steps, of so many ranks: text, and what was read. */
static int load_divided(const char *keys, int ranks, char text[TEXT], ds_auto *autos,
                        ds_config *ds) {
    *autos = test_plain;
    autos->ranks = ranks;
    snprintf(text, TEXT, "{\"train_batch_size\": 48, %s\n\"gradient_accumulation_steps\": 2}",
             keys);
    return parse_with(text, autos, ds);
}

static void check_parallel(const char *keys, int ranks, int tp, int pp, int sequence, int micro) {
    char text[TEXT];
    ds_auto autos;
    ds_config ds;
    const int read = !load_divided(keys, ranks, text, &autos, &ds);
    test_check(read && ds.tensor_parallel == tp && ds.pipeline == pp
                   && ds.sequence_parallel == sequence && ds.micro_batch == micro && !notes_seen,
               "%s: -tp %d -pp %d -sp %d -b %d, %d notes %s; %s", text, ds.tensor_parallel,
               ds.pipeline, ds.sequence_parallel, ds.micro_batch, notes_seen, notes_last, why);
    check_round(text, &ds, &autos);
}

static void check_experts(const char *keys, int ranks, int group, int asked, int apart, int notes) {
    char text[TEXT];
    ds_auto autos;
    ds_config ds;
    const int read = !load_divided(keys, ranks, text, &autos, &ds);
    test_check(read && ds.expert_group == group && ds.experts_asked == asked
                   && ds.experts_apart == apart && notes_seen == notes,
               "%s: -eg %d -ek %d -ego %d, %d notes %s; %s", text, ds.expert_group,
               ds.experts_asked, ds.experts_apart, notes_seen, notes_last, why);
    check_round(text, &ds, &autos);
}

static void test_experts(void) {
    check_experts("", 4, 0, 0, 0, 0);
    check_experts("\"expert_parallel\": {\"enabled\": true},", 4, 0, 0, 0, 0);
    check_experts("\"expert_parallel\": {\"enabled\": true, \"autoep_size\": 4},", 4, 4, 0, 0, 0);
    check_experts("\"expert_parallel\": {\"enabled\": true, \"autoep_size\": \"auto\", "
                  "\"top_k\": 2},",
                  4, 0, 2, 0, 0);
    check_experts("\"expert_parallel\": {\"enabled\": true, \"autoep_size\": 2, "
                  "\"top_k\": \"auto\"}, \"tensor_parallel\": {\"autotp_size\": 2},"
                  "\"use_data_before_expert_parallelism\": true,",
                  4, 2, 0, 1, 0);
    check_experts("\"use_data_before_expert_parallelism\": false,", 4, 0, 0, 0, 0);
    check_experts("\"expert_parallel\": {\"enabled\": false, \"autoep_size\": 3, "
                  "\"top_k\": 8},",
                  4, 0, 0, 0, 2);
    check_error("{" MICRO "\"expert_parallel\": {\"enabled\": true,\n\"autoep_size\": 3}}",
                "line 2*autoep_size is 3, which does not divide 2 data-parallel ranks");
    check_error("{" MICRO "\"expert_parallel\": {\"enabled\": true,\n\"top_k\": 8}}",
                "line 2*top_k is 8, expected 1 or 2");
    check_error("{" MICRO "\"expert_parallel\": {\"enabled\": 1}}", "enabled is 1*true or false");
}

/* sequence_parallel_size: the ranks with the same sequences count once in the batch. */
static void check_context(const char *keys, int ranks, int cp, uint64_t given, int micro) {
    char text[TEXT];
    ds_auto autos;
    ds_config ds;
    const int read = !load_divided(keys, ranks, text, &autos, &ds);
    test_check(read && ds.context_parallel == cp && ds.given == given && ds.micro_batch == micro
                   && !notes_seen,
               "%s: -cp %d -b %d, %d notes %s; %s", text, ds.context_parallel, ds.micro_batch,
               notes_seen, notes_last, why);
    check_round(text, &ds, &autos);
}

static void test_context(void) {
    ds_auto autos = test_plain;
    ds_config ds;
    check_context("", 4, 1, 0, 6);
    check_context("\"sequence_parallel_size\": 1,", 4, 1, DS_GIVEN_CONTEXT_RANKS, 6);
    check_context("\"sequence_parallel_size\": 2,", 4, 2, DS_GIVEN_CONTEXT_RANKS, 12);
    check_context("\"sequence_parallel_size\": 4,", 4, 4, DS_GIVEN_CONTEXT_RANKS, 24);
    check_error("{" MICRO "\n\"sequence_parallel_size\": 3}",
                "line 2*2 ranks cannot be divided into groups of 3 that share sequences");
    check_error("{" MICRO "\n\"sequence_parallel_size\": 0}",
                "line 2*sequence_parallel_size is 0, expected");
    check_error("{" MICRO "\n\"sequence_parallel_size\": true}", "sequence_parallel_size is true");
    autos.ranks = 8; /* the flag's, where the file says nothing */
    autos.context_parallel = 4;
    test_check(
        !parse_with("{\"train_batch_size\": 48, \"gradient_accumulation_steps\": 2}", &autos, &ds)
            && ds.micro_batch == 12 && ds.context_parallel == 4 && ds.given == 0,
        "-cp 4: -b %d; %s", ds.micro_batch, why);
}

static void test_parallel(void) {
    ds_auto autos = test_plain;
    ds_config ds;
    check_parallel("", 4, 1, 1, 0, 6);
    check_parallel("\"tensor_parallel\": {\"autotp_size\": 2},", 4, 2, 1, 0, 12);
    check_parallel("\"tensor_parallel\": {\"autotp_size\": 0},", 4, 1, 1, 0, 6);
    check_parallel("\"tensor_parallel\": {\"tp\": {\"tp_size\": 4}},", 4, 4, 1, 0, 24);
    check_parallel("\"tensor_parallel\": {\"tensor_parallel\": {\"tp_size\": 2}},", 2, 2, 1, 0, 24);
    check_parallel("\"pipeline\": {\"stages\": 2},", 4, 1, 2, 0, 12);
    check_parallel("\"pipeline\": {\"stages\": \"auto\"},", 4, 1, 1, 0, 6);
    check_parallel("\"pipeline\": {\"stages\": 2}, \"tensor_parallel\": {\"autotp_size\": 2},"
                   "\"activation_checkpointing\": {\"partition_activations\": true},",
                   8, 2, 2, 1, 12);
    check_error("{" MICRO "\"tensor_parallel\": {\"autotp_size\": 2,\n\"tp\": {\"tp_size\": 2}}}",
                "line 2*tp_size is the same key as tensor_parallel.autotp_size");
    check_error("{" MICRO "\"tensor_parallel\": {\n\"autotp_size\": 3}}",
                "line 2*2 ranks cannot be divided into 1 stages of 3 tensor-parallel ranks");
    check_error("{" MICRO "\n\"pipeline\": {\"stages\": 4}}", "line 2*4 stages of 1");
    check_error("{" MICRO "\n\"pipeline\": {\"stages\": 600}}", "line 2*stages is 600, expected");
    check_error("{" MICRO "\n\"tensor_parallel\": {\"autotp_size\": true}}", "autotp_size is true");
    check_error("{" MICRO "\n\"activation_checkpointing\": {\"partition_activations\": 2}}",
                "line 2*partition_activations is 2*true or false");
    /* the flags' where the file says nothing; one rank has whole activations */
    const char *text = "{\"train_batch_size\": 48, \"activation_checkpointing\": "
                       "{\"partition_activations\": true}, \"gradient_accumulation_steps\": 2}";
    autos.ranks = 8;
    autos.tensor_parallel = autos.pipeline = 2;
    test_check(!parse_with(text, &autos, &ds) && ds.micro_batch == 12 && ds.sequence_parallel == 1
                   && ds.given == DS_GIVEN_SEQUENCE,
               "%s: -b %d -sp %d; %s", text, ds.micro_batch, ds.sequence_parallel, why);
    test_check(!parse(text, &ds) && ds.sequence_parallel == 0 && notes_seen == 1
                   && says(notes_last, "partition_activations has no effect*there is only one"),
               "%s: %s", text, notes_last);
}

/* Error feedback, of packed gradients alone. */
static void test_loco(void) {
    static const struct {
        const char *packs, *loco;
        float beta;
        int reset;
    } cases[] = {{"true", "{\"err_beta\": 0.5, \"reset_T\": 7}", 0.5f, 7},
                 {"true", "{}", 0.8f, 1024},
                 {"true", "{\"err_beta\": 0}", 0, 0},
                 {"true", "null", 0, 0},
                 {"false", "{\"err_beta\": 0.5}", 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[TEXT];
        ds_config ds;
        snprintf(text, sizeof text,
                 "{" MICRO "\"zero_optimization\": {\"zero_quantized_gradients\": %s,\n"
                 "\"zeropp_loco_param\": %s}}",
                 cases[i].packs, cases[i].loco);
        notes_last[0] = 0;
        if (!test_check(!parse(text, &ds), "%s: %s", text, why)) continue;
        test_check(ds.zero.feedback == cases[i].beta && ds.zero.feedback_reset == cases[i].reset,
                   "%s: beta %g, reset %d", text, (double)ds.zero.feedback, ds.zero.feedback_reset);
        check_round(text, &ds, &test_plain);
        if (i == 4)
            test_check(says(notes_last, "line 2*zeropp_loco_param has no effect"), "%s: %s", text,
                       notes_last);
    }
}

int main(int argc, char **argv) {
    folder = argc > 1 ? argv[1] : "tests/ds_config";
    test_table();
    test_instead();
    test_notes();
    test_errors();
    test_batch();
    test_defaults();
    test_offload();
    test_comments();
    test_memory();
    test_files();
    test_parallel();
    test_context();
    test_experts();
    test_loco();
    return test_summary();
}

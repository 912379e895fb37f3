/* lora_files.c - see lora_files.h. */
#include "lora_files.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../gpt2/frozen.h"
#include "../gpt2/lora.h"
#include "model_inside.h"

enum { CONFIG_MOST = 1 << 16, LAYERS_MOST = 4096 };

static const char *const modules[LORA_MATRICES] = {"attn.c_attn", "attn.c_proj", "mlp.c_fc",
                                                   "mlp.c_proj"};
/* Sides of the modules, in units of C. */
static const int sides[LORA_MATRICES][2] = {{1, 3}, {1, 1}, {1, 4}, {4, 1}};

/* ---- values of a checkpoint ---------------------------------------------------------------- */

int lora_values(const gpt2_config *cfg, checkpoint_value v[LORA_VALUES]) {
    const gpt2_lora *lora = gpt2_lora_of(cfg);
    if (!lora) return 0;
    v[0] = (checkpoint_value){"lora.rank", CHECKPOINT_INT, lora->rank, 0, NULL};
    v[1] = (checkpoint_value){"lora.alpha", CHECKPOINT_REAL, 0, (double)lora->alpha, NULL};
    return LORA_VALUES;
}

int lora_values_read(const checkpoint_reader *r, float *alpha) {
    int64_t rank = 0;
    *alpha = 0;
    for (int i = 0; i < checkpoint_values(r); i++) {
        const checkpoint_value *v = checkpoint_value_at(r, i);
        if (strcmp(v->name, "lora.rank") == 0 && v->kind == CHECKPOINT_INT) rank = v->number;
        if (strcmp(v->name, "lora.alpha") == 0 && v->kind == CHECKPOINT_REAL)
            *alpha = (float)v->real;
    }
    return rank > 0 && rank <= 1 << 16 && *alpha > 0 ? (int)rank : 0;
}

/* ---- save ---------------------------------------------------------------------------------- */

/* The first row of the table that is of adapters. */
static int first_row(const gpt2_config *cfg) { return GPT2_TENSORS + (cfg->untied != 0); }

static void print_header(FILE *out, const model_file *f, zero_type type) {
    static const char *const types[ZERO_TYPES] = {"F32", "BF16", "F16"};
    uint64_t at = 0;
    int tensor;
    fputs("{\"__metadata__\":{\"format\":\"pt\"}", out);
    for (int row = first_row(f->cfg); (tensor = gpt2_tensor_at(f->cfg, row)) >= 0; row++)
        for (int l = 0; l < f->cfg->layers; l++) {
            const uint64_t end = at + f->table[row].numel * zero_type_bytes(type);
            size_t rows, columns;
            lora_sides(f->cfg, tensor, &rows, &columns);
            fprintf(out,
                    ",\"base_model.model.transformer.h.%d.%s.lora_%c.weight\":{\"dtype\":\"%s\","
                    "\"shape\":[%zu,%zu],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}",
                    l, modules[lora_matrix(tensor)], lora_is_b(tensor) ? 'B' : 'A', types[type],
                    rows, columns, at, end);
            at = end;
        }
    fputc('}', out);
    while (ftell(out) % 8) fputc(' ', out); /* so that tensors are aligned */
}

/* Returns the header with its length, *n bytes, which the caller frees. NULL: no memory. */
static char *make_header(const model_file *f, zero_type type, size_t *n) {
    const uint64_t none = 0;
    char *text = NULL;
    FILE *out = open_memstream(&text, n);
    if (!out) return NULL;
    (void)fwrite(&none, sizeof none, 1, out);
    print_header(out, f, type);
    const int failed = ferror(out);
    if (fclose(out) || failed) {
        free(text);
        return NULL;
    }
    const uint64_t length = *n - sizeof length;
    memcpy(text, &length, sizeof length);
    return text;
}

static zero_result save_tensors(model_file *f, zero_type type) {
    size_t n = 0;
    char *header = make_header(f, type, &n);
    if (!header) return model_refuse(f->e, ZERO_ERR_MEMORY, "%.300s: no memory", f->path);
    f->bytes = n;
    zero_result r = model_put(f, 0, n, header);
    free(header);
    for (int row = first_row(f->cfg); !r && gpt2_tensor_at(f->cfg, row) >= 0; row++) {
        const size_t total = model_total(&f->table[row]);
        r = model_copy_out(f, row, 0, total, type, f->bytes);
        f->bytes += total * zero_type_bytes(type);
    }
    return r;
}

static zero_result save_config(const gpt2_config *cfg, const char *path, const char *base,
                               gpt2_error *e) {
    const gpt2_lora *lora = gpt2_lora_of(cfg);
    cJSON *root = cJSON_CreateObject(), *names = cJSON_AddArrayToObject(root, "target_modules");
    model_file f = {.cfg = cfg, .e = e, .path = path, .fd = -1};
    for (int k = 0; k < LORA_MATRICES; k++)
        if (lora->on >> k & 1u) cJSON_AddItemToArray(names, cJSON_CreateString(modules[k]));
    cJSON_AddStringToObject(root, "peft_type", "LORA");
    cJSON_AddStringToObject(root, "task_type", "CAUSAL_LM");
    cJSON_AddStringToObject(root, "base_model_name_or_path", base ? base : "");
    cJSON_AddNumberToObject(root, "r", lora->rank);
    cJSON_AddNumberToObject(root, "lora_alpha", (double)lora->alpha);
    cJSON_AddNumberToObject(root, "lora_dropout", 0);
    cJSON_AddStringToObject(root, "bias", "none");
    cJSON_AddBoolToObject(root, "fan_in_fan_out", 1);
    cJSON_AddBoolToObject(root, "inference_mode", 1);
    char *text = cJSON_Print(root);
    cJSON_Delete(root);
    zero_result r =
        text ? model_create(&f, path) : model_refuse(e, ZERO_ERR_MEMORY, "%.300s: no memory", path);
    if (text) f.bytes = strlen(text);
    if (!r) r = model_put(&f, 0, strlen(text), text);
    if (!r) r = model_commit(&f);
    cJSON_free(text);
    model_close(&f);
    return r;
}

zero_result lora_save_from(model_read read, void *user, const gpt2_config *cfg, const char *path,
                           zero_type type, const char *base, gpt2_error *err) {
    gpt2_error e = {""};
    model_file f = {.cfg = cfg, .e = &e, .path = path, .fd = -1, .read = read, .user = user};
    char config[MODEL_PATH];
    zero_result r = model_buffers(&f);
    if (!r) r = model_create(&f, path);
    if (!r) r = save_tensors(&f, type);
    if (!r) r = model_commit(&f);
    if (!r && !model_path_next_to(config, sizeof config, path, "adapter_config.json"))
        r = model_refuse(&e, ZERO_ERR_ARGUMENT, "%.300s: the path is too long; use a shorter one",
                         path);
    if (!r) r = save_config(cfg, config, base, &e);
    model_close(&f);
    return model_hand_out(err, &e, r);
}

/* ---- read ---------------------------------------------------------------------------------- */

typedef struct lora_entry {
    uint64_t at; /* byte of the file; 0: the tensor is missing */
    zero_type type;
    size_t rows, columns;
} lora_entry;

struct lora_reader {
    gpt2_error e;
    model_file in;
    gpt2_lora lora;
    int layers, channels;
    lora_entry *entry; /* [LAYERS_MOST][LORA_MATRICES][2] */
};

static lora_entry *entry_at(const lora_reader *r, int layer, int matrix, int b) {
    return &r->entry[(layer * LORA_MATRICES + matrix) * 2 + b];
}

static zero_result bad(const lora_reader *r, const char *name, const char *what) {
    return model_refuse(r->in.e, ZERO_ERR_ARGUMENT, "%.200s: %.150s: %.150s", r->in.path, name,
                        what);
}

static const char *skip(const char *name, const char *prefix) {
    const size_t n = strlen(prefix);
    return strncmp(name, prefix, n) == 0 ? name + n : name;
}

/* Parses h.N.MODULE.lora_A.weight. Returns 0 for another name. */
static int parse_name(const char *name, int *layer, int *matrix, int *b) {
    int n = 0;
    name = skip(skip(name, "base_model.model."), "transformer.");
    if (sscanf(name, "h.%d.%n", layer, &n) != 1 || n == 0 || *layer < 0 || *layer >= LAYERS_MOST)
        return 0;
    for (*matrix = 0; *matrix < LORA_MATRICES; ++*matrix) {
        const char *rest = skip(name + n, modules[*matrix]);
        if (rest == name + n) continue;
        *b = strcmp(rest, ".lora_B.weight") == 0;
        return *b || strcmp(rest, ".lora_A.weight") == 0;
    }
    return 0;
}

static zero_result take_tensor(void *user, const model_tensor *t) {
    lora_reader *r = (lora_reader *)user;
    int layer, matrix, b;
    if (!parse_name(t->name, &layer, &matrix, &b))
        return bad(r, t->name, "no matrix of an adapter of GPT-2");
    if (t->type < 0) return bad(r, t->name, "its dtype is not F32, BF16 or F16");
    if (t->dims != 2 || !t->shape[0] || !t->shape[1] || t->shape[0] > 1 << 18
        || t->shape[1] > 1 << 18)
        return bad(r, t->name, "it does not have two dimensions of a possible size");
    lora_entry *x = entry_at(r, layer, matrix, b);
    if (x->at) return bad(r, t->name, "there twice");
    x->at = t->at;
    x->type = (zero_type)t->type;
    x->rows = (size_t)t->shape[0];
    x->columns = (size_t)t->shape[1];
    r->lora.on |= 1u << matrix;
    if (layer >= r->layers) r->layers = layer + 1;
    return ZERO_OK;
}

/* Checks that every layer has the same adapters, of one rank and width. */
static zero_result check_tensors(lora_reader *r) {
    int k = 0;
    if (!r->lora.on) return bad(r, "header", "no adapters");
    while (!(r->lora.on >> k & 1u)) k++;
    const lora_entry *first = entry_at(r, 0, k, 0);
    r->channels = (int)(first->columns / (size_t)sides[k][0]);
    for (int l = 0; l < r->layers; l++)
        for (int m = 0; m < 2 * LORA_MATRICES; m++) {
            const lora_entry *x = entry_at(r, l, m / 2, m % 2);
            const size_t rank = (size_t)r->lora.rank, C = (size_t)r->channels;
            const size_t rows = m % 2 ? (size_t)sides[m / 2][1] * C : rank;
            const size_t columns = m % 2 ? rank : (size_t)sides[m / 2][0] * C;
            char name[64];
            (void)snprintf(name, sizeof name, "h.%d.%s.lora_%c", l, modules[m / 2],
                           m % 2 ? 'B' : 'A');
            if (!(r->lora.on >> (m / 2) & 1u)) continue;
            if (!x->at) return bad(r, name, "it is missing; other layers have it");
            if (x->rows != rows || x->columns != columns)
                return bad(r, name, "its shape does not fit the rank of the config, or GPT-2");
        }
    return ZERO_OK;
}

/* Checks the settings that change the result. Returns the name of a setting
   that is not supported, or NULL. */
static const char *refused(const cJSON *root) {
    static const char *const off[] = {"use_dora",         "use_rslora",   "lora_bias",
                                      "modules_to_save",  "rank_pattern", "alpha_pattern",
                                      "layer_replication"};
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(root, "peft_type");
    const cJSON *bias = cJSON_GetObjectItemCaseSensitive(root, "bias");
    if (!cJSON_IsString(type) || strcmp(type->valuestring, "LORA") != 0) return "peft_type";
    if (bias && (!cJSON_IsString(bias) || strcmp(bias->valuestring, "none") != 0)) return "bias";
    for (size_t i = 0; i < sizeof off / sizeof *off; i++) {
        const cJSON *x = cJSON_GetObjectItemCaseSensitive(root, off[i]);
        const int none = !x || cJSON_IsNull(x) || cJSON_IsFalse(x)
                         || ((cJSON_IsObject(x) || cJSON_IsArray(x)) && !x->child);
        if (!none) return off[i];
    }
    return NULL;
}

static zero_result read_config(lora_reader *r, const char *path) {
    char text[CONFIG_MOST];
    model_file f = {.e = r->in.e, .path = path, .fd = -1};
    zero_result result = model_open(&f, path, r->in.e);
    if (!result && f.bytes > sizeof text)
        result = model_refuse(r->in.e, ZERO_ERR_ARGUMENT,
                              "%.300s: too long for a config; use the file that peft wrote", path);
    const size_t n = result ? 0 : (size_t)f.bytes;
    if (!result) result = model_get(&f, 0, n, text);
    model_close(&f);
    if (result) return result;
    cJSON *root = cJSON_ParseWithLength(text, n);
    const cJSON *rank = cJSON_GetObjectItemCaseSensitive(root, "r");
    const cJSON *alpha = cJSON_GetObjectItemCaseSensitive(root, "lora_alpha");
    const char *why = cJSON_IsObject(root) ? refused(root) : "JSON object";
    if (!why && (!cJSON_IsNumber(rank) || rank->valuedouble < 1 || rank->valuedouble > 1 << 16))
        why = "r";
    if (!why && (!cJSON_IsNumber(alpha) || !(alpha->valuedouble > 0))) why = "lora_alpha";
    if (why)
        result = model_refuse(
            r->in.e, ZERO_ERR_ARGUMENT,
            "%.300s: %s is missing, or has a value that is not supported; export it again", path,
            why);
    if (!result) r->lora.rank = (int)rank->valuedouble;
    if (!result) r->lora.alpha = (float)alpha->valuedouble;
    cJSON_Delete(root);
    return result;
}

static zero_result open_reader(lora_reader *r, const char *path) {
    char config[MODEL_PATH];
    r->entry = (lora_entry *)calloc((size_t)LAYERS_MOST * LORA_MATRICES * 2, sizeof *r->entry);
    if (!r->entry) return model_refuse(r->in.e, ZERO_ERR_MEMORY, "%.300s: no memory", path);
    if (!model_path_next_to(config, sizeof config, path, "adapter_config.json"))
        return model_refuse(r->in.e, ZERO_ERR_ARGUMENT,
                            "%.300s: the path is too long; use a shorter one", path);
    MODEL_TRY(read_config(r, config));
    MODEL_TRY(model_open(&r->in, path, r->in.e));
    MODEL_TRY(model_safetensors_list(&r->in, take_tensor, r));
    return check_tensors(r);
}

zero_result lora_reader_open(lora_reader **out, const char *path, gpt2_error *err) {
    lora_reader *r = (lora_reader *)calloc(1, sizeof *r);
    gpt2_error none = {""};
    *out = NULL;
    if (!r)
        return model_hand_out(err, &none,
                              model_refuse(&none, ZERO_ERR_MEMORY, "%.300s: no memory", path));
    r->in.e = &r->e;
    r->in.path = path;
    r->in.fd = -1;
    const zero_result result = open_reader(r, path);
    (void)model_hand_out(err, &r->e, result);
    if (result)
        lora_reader_close(r);
    else
        *out = r;
    return result;
}

void lora_reader_close(lora_reader *r) {
    if (!r) return;
    model_close(&r->in);
    free(r->entry);
    free(r);
}

gpt2_lora lora_reader_info(const lora_reader *r, int *layers, int *channels) {
    *layers = r->layers;
    *channels = r->channels;
    return r->lora;
}

zero_result lora_reader_get(lora_reader *r, int tensor, size_t first, size_t count, float *out,
                            gpt2_error *e) {
    const int matrix = lora_matrix(tensor), b = lora_is_b(tensor);
    zero_result result = ZERO_OK;
    for (size_t done = 0, n; done < count && !result; done += n) {
        const lora_entry *any = entry_at(r, 0, matrix, b);
        const size_t numel = any->rows * any->columns, in = (first + done) % numel;
        const lora_entry *x = entry_at(r, (int)((first + done) / numel), matrix, b);
        const size_t bytes = zero_type_bytes(x->type);
        unsigned char raw[4096];
        n = numel - in < count - done ? numel - in : count - done;
        if (n > sizeof raw / bytes) n = sizeof raw / bytes;
        result = model_get(&r->in, x->at + in * bytes, n * bytes, raw);
        if (!result) zero_convert(out + done, ZERO_F32, raw, x->type, n);
    }
    return model_hand_out(e, &r->e, result);
}

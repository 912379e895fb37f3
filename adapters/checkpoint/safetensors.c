/* safetensors.c - the safetensors half of model_files.h: a header that is believed only after every
   length and offset in it is checked, and GPT-2's tensors by transformers' names. */
#define MODEL_FILES_INSIDE
#include "model_files.h"

#include <cjson/cJSON.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    LENGTH_BYTES = 8,
    HEADER_MOST = 1 << 20, /* what a JSON tree of it may take is some 40 times as much */
    CONFIG_MOST = 1 << 16,
    DIMS = 8,
    LAYERS_MOST = 4096,
    TILE = 32
};

/* ---- names and shapes ---------------------------------------------------------------------- */

/* The 16 tensors in gpt2.h's order. A shape is in units of V, maxT or C; 0: no second dimension.
   Turned: the file has (in, out), the context (out, in). */
enum { BY_V = -1, BY_T = -2 };
typedef struct st_name {
    const char *name; /* after "transformer.", layered ones after "h.N." too */
    int layered, turned;
    int rows, columns; /* in the file */
} st_name;

static const st_name st_names[GPT2_TENSORS] = {
    {"wte.weight", 0, 0, BY_V, 1},      {"wpe.weight", 0, 0, BY_T, 1},
    {"ln_1.weight", 1, 0, 1, 0},        {"ln_1.bias", 1, 0, 1, 0},
    {"attn.c_attn.weight", 1, 1, 1, 3}, {"attn.c_attn.bias", 1, 0, 3, 0},
    {"attn.c_proj.weight", 1, 1, 1, 1}, {"attn.c_proj.bias", 1, 0, 1, 0},
    {"ln_2.weight", 1, 0, 1, 0},        {"ln_2.bias", 1, 0, 1, 0},
    {"mlp.c_fc.weight", 1, 1, 1, 4},    {"mlp.c_fc.bias", 1, 0, 4, 0},
    {"mlp.c_proj.weight", 1, 1, 4, 1},  {"mlp.c_proj.bias", 1, 0, 1, 0},
    {"ln_f.weight", 0, 0, 1, 0},        {"ln_f.bias", 0, 0, 1, 0},
};
enum { ST_WTE = 0, ST_WPE = 1, ST_SKIPPED = -1, ST_HEAD = -2, ST_UNKNOWN = -3 };

static size_t st_size(const gpt2_config *c, int unit) {
    if (unit == BY_V) return (size_t)c->vocab_size;
    if (unit == BY_T) return (size_t)c->max_seq_len;
    return (size_t)unit * (size_t)c->channels;
}

static size_t st_rows(const gpt2_config *c, int tensor) {
    return st_size(c, st_names[tensor].rows);
}

static size_t st_columns(const gpt2_config *c, int tensor) {
    return st_names[tensor].columns ? st_size(c, st_names[tensor].columns) : 1;
}

/* "h.N." with N as a number is written, 0..LAYERS_MOST-1. Returns what follows, or NULL. */
static const char *st_layer(const char *name, int *layer) {
    int n = 0, digits = 0;
    if (strncmp(name, "h.", 2) != 0) return NULL;
    const char *at = name + 2;
    for (; *at >= '0' && *at <= '9' && digits < 5; at++, digits++) n = 10 * n + (*at - '0');
    if (*at != '.' || digits == 0 || (digits > 1 && name[2] == '0') || n >= LAYERS_MOST)
        return NULL;
    *layer = n;
    return at + 1;
}

/* Which tensor a name is: 0..15, or ST_... */
static int st_find(const char *name, int *layer) {
    static const char prefix[] = "transformer.";
    *layer = 0;
    if (strcmp(name, "lm_head.weight") == 0) return ST_HEAD;
    if (strncmp(name, prefix, sizeof prefix - 1) == 0) name += sizeof prefix - 1;
    const char *inside = st_layer(name, layer);
    if (inside != NULL && strcmp(inside, "attn.bias") == 0) return ST_SKIPPED;
    if (inside != NULL && strcmp(inside, "attn.masked_bias") == 0) return ST_SKIPPED;
    for (int i = 0; i < GPT2_TENSORS; i++) {
        const char *said = st_names[i].layered ? inside : name;
        if (said != NULL && strcmp(said, st_names[i].name) == 0) return i;
    }
    return ST_UNKNOWN;
}

/* ---- the header ---------------------------------------------------------------------------- */

typedef struct st_entry {
    const char *name;  /* owned by the tree */
    int tensor, layer; /* see st_find */
    int type;          /* zero_type, or -1: one that only what is skipped may have */
    int dims;
    uint64_t shape[DIMS];
    uint64_t begin, end; /* bytes, from the start of the data */
} st_entry;

typedef struct st_header {
    cJSON *root;
    uint64_t data; /* where the data begins in the file */
    int entries;
    st_entry *entry;
    int *at; /* [layers][16]: the entry's number + 1; 0: it is missing */
    const st_entry *head;
    gpt2_config cfg;
} st_header;

/* NULL: it is missing. */
static const st_entry *st_at(const st_header *h, int layer, int tensor) {
    const int number = h->at[layer * GPT2_TENSORS + tensor];
    return number == 0 ? NULL : &h->entry[number - 1];
}

static void st_free(st_header *h) {
    cJSON_Delete(h->root);
    free(h->entry);
    free(h->at);
    memset(h, 0, sizeof *h);
}

static zero_result st_bad(const model_file *f, const char *name, const char *what) {
    return model_refuse(f->e, ZERO_ERR_ARGUMENT, "%.200s: %.100s: %.150s", f->path, name, what);
}

static zero_result st_no_memory(const model_file *f) {
    return model_refuse(f->e, ZERO_ERR_MEMORY, "%.200s: no memory for its header", f->path);
}

/* Whole numbers that a double holds exactly. */
static int st_whole(const cJSON *x, uint64_t *out) {
    if (!cJSON_IsNumber(x) || !(x->valuedouble >= 0) || x->valuedouble > 9007199254740992.0)
        return 0;
    *out = (uint64_t)x->valuedouble;
    return (double)*out == x->valuedouble;
}

/* Bytes of a number of this dtype, 0: none; *type: its zero_type or -1. */
static uint64_t st_dtype(const char *name, int *type) {
    static const struct {
        const char *name;
        int bytes, type;
    } types[] = {{"F32", 4, ZERO_F32}, {"BF16", 2, ZERO_BF16}, {"F16", 2, ZERO_F16},
                 {"BOOL", 1, -1},      {"U8", 1, -1},          {"I8", 1, -1},
                 {"I16", 2, -1},       {"U16", 2, -1},         {"I32", 4, -1},
                 {"U32", 4, -1},       {"I64", 8, -1},         {"U64", 8, -1},
                 {"F64", 8, -1}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strcmp(name, types[i].name) != 0) continue;
        *type = types[i].type;
        return (uint64_t)types[i].bytes;
    }
    return 0;
}

/* Reads the shape; 0: it is none. *bytes is multiplied by the number of elements. */
static int st_shape(st_entry *x, const cJSON *list, uint64_t *bytes) {
    const cJSON *size;
    if (!cJSON_IsArray(list)) return 0;
    cJSON_ArrayForEach(size, list) {
        uint64_t *n = &x->shape[x->dims];
        if (x->dims == DIMS || !st_whole(size, n)) return 0;
        if (*n && *bytes > (UINT64_C(1) << 53) / *n) return 0;
        *bytes *= *n;
        x->dims++;
    }
    return 1;
}

static zero_result st_parse_entry(const model_file *f, st_entry *x, const cJSON *o, uint64_t data) {
    const cJSON *dtype = cJSON_GetObjectItemCaseSensitive(o, "dtype");
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(o, "data_offsets");
    uint64_t bytes;
    x->name = o->string;
    if (!cJSON_IsObject(o) || cJSON_GetArraySize(o) != 3 || !cJSON_IsString(dtype)
        || !cJSON_IsArray(offsets))
        return st_bad(f, x->name, "no object of dtype, shape and data_offsets");
    bytes = st_dtype(dtype->valuestring, &x->type);
    if (bytes == 0)
        return model_refuse(f->e, ZERO_ERR_ARGUMENT, "%.200s: %.100s: unknown dtype \"%.50s\"",
                            f->path, x->name, dtype->valuestring);
    if (!st_shape(x, cJSON_GetObjectItemCaseSensitive(o, "shape"), &bytes))
        return st_bad(f, x->name, "its shape is no list of at most 8 sizes");
    if (cJSON_GetArraySize(offsets) != 2 || !st_whole(offsets->child, &x->begin)
        || !st_whole(offsets->child->next, &x->end) || x->begin > x->end)
        return st_bad(f, x->name, "its data_offsets are no two places in order");
    if (x->end > f->bytes - data)
        return model_refuse(f->e, ZERO_ERR_ARGUMENT,
                            "%.200s: %.100s: ends at byte %" PRIu64 " of the data, the file has "
                            "%" PRIu64 ": cut short",
                            f->path, x->name, x->end, f->bytes - data);
    if (x->end - x->begin != bytes)
        return model_refuse(f->e, ZERO_ERR_ARGUMENT,
                            "%.200s: %.100s: its shape takes %" PRIu64 " bytes, its data_offsets "
                            "have %" PRIu64,
                            f->path, x->name, bytes, x->end - x->begin);
    x->tensor = st_find(x->name, &x->layer);
    return ZERO_OK;
}

static int st_by_place(const void *a, const void *b) {
    const st_entry *x = (const st_entry *)a, *y = (const st_entry *)b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

/* Every byte of the data belongs to one tensor. */
static zero_result st_check_places(const model_file *f, const st_header *h) {
    uint64_t at = 0;
    for (int i = 0; i < h->entries; i++) {
        const st_entry *x = &h->entry[i];
        if (x->begin != at)
            return model_refuse(f->e, ZERO_ERR_ARGUMENT,
                                "%.200s: %.100s: begins at byte %" PRIu64 " of the data, %s that "
                                "before it, which ends at %" PRIu64,
                                f->path, x->name, x->begin,
                                x->begin < at ? "overlaps" : "leaves a gap behind", at);
        at = x->end;
    }
    if (at == f->bytes - h->data) return ZERO_OK;
    return model_refuse(f->e, ZERO_ERR_ARGUMENT,
                        "%.200s: the tensors end at byte %" PRIu64 " of the data, the file has "
                        "%" PRIu64,
                        f->path, at, f->bytes - h->data);
}

static zero_result st_parse_entries(const model_file *f, st_header *h) {
    const cJSON *o;
    int metadata = 0;
    h->entry = (st_entry *)calloc((size_t)cJSON_GetArraySize(h->root) + 1, sizeof *h->entry);
    if (h->entry == NULL) return st_no_memory(f);
    cJSON_ArrayForEach(o, h->root) {
        if (strcmp(o->string, "__metadata__") != 0) {
            MODEL_TRY(st_parse_entry(f, &h->entry[h->entries++], o, h->data));
            continue;
        }
        const cJSON *value;
        if (!cJSON_IsObject(o) || metadata++)
            return st_bad(f, o->string, "no object, or there twice");
        cJSON_ArrayForEach(value, o) {
            if (!cJSON_IsString(value)) return st_bad(f, o->string, "holds more than strings");
        }
    }
    qsort(h->entry, (size_t)h->entries, sizeof *h->entry, st_by_place);
    return st_check_places(f, h);
}

static zero_result st_parse_text(const model_file *f, st_header *h, const char *text, size_t n) {
    const char *end = NULL;
    if (text[0] == '{') h->root = cJSON_ParseWithLengthOpts(text, n, &end, 0);
    if (!cJSON_IsObject(h->root)) return st_bad(f, "header", "no JSON object");
    for (; end < text + n; end++)
        if (*end != ' ') return st_bad(f, "header", "something follows the JSON object");
    return st_parse_entries(f, h);
}

static zero_result st_read_header(const model_file *f, st_header *h) {
    uint64_t n = 0;
    char *text;
    if (f->bytes < LENGTH_BYTES + 2)
        return st_bad(f, "header", "too short for a model file of any kind");
    MODEL_TRY(model_get(f, 0, LENGTH_BYTES, &n));
    if (n < 2 || n > HEADER_MOST || n > f->bytes - LENGTH_BYTES)
        return model_refuse(f->e, ZERO_ERR_ARGUMENT,
                            "%.200s: neither llm.c's magic number nor a safetensors header: its "
                            "length would be %" PRIu64 " (at most %d, file %" PRIu64 " bytes)",
                            f->path, n, HEADER_MOST, f->bytes);
    h->data = LENGTH_BYTES + n;
    text = (char *)malloc((size_t)n);
    if (text == NULL) return st_no_memory(f);
    zero_result r = model_get(f, LENGTH_BYTES, (size_t)n, text);
    if (r == ZERO_OK) r = st_parse_text(f, h, text, (size_t)n);
    free(text);
    return r;
}

/* ---- the model that a header holds --------------------------------------------------------- */

/* What was named twice, unknown, or cannot be a weight. Finds the number of layers. */
static zero_result st_check_names(const model_file *f, st_header *h) {
    for (int i = 0; i < h->entries; i++) {
        const st_entry *x = &h->entry[i];
        if (x->tensor == ST_SKIPPED) continue;
        if (x->tensor == ST_UNKNOWN) return st_bad(f, x->name, "no tensor of GPT-2");
        if (x->type < 0) return st_bad(f, x->name, "its dtype is not F32, BF16 or F16");
        if (x->layer >= h->cfg.layers) h->cfg.layers = x->layer + 1;
        if (x->tensor != ST_HEAD) continue;
        if (h->head != NULL) return st_bad(f, x->name, "there twice");
        h->head = x;
    }
    if (h->cfg.layers == 0) return st_bad(f, "header", "it has no tensor");
    h->at = (int *)calloc((size_t)h->cfg.layers * GPT2_TENSORS, sizeof *h->at);
    if (h->at == NULL) return st_no_memory(f);
    for (int i = 0; i < h->entries; i++) {
        const st_entry *x = &h->entry[i];
        if (x->tensor < 0) continue;
        int *place = &h->at[x->layer * GPT2_TENSORS + x->tensor];
        if (*place != 0) return st_bad(f, x->name, "there twice");
        *place = i + 1;
    }
    return ZERO_OK;
}

static zero_result st_missing(const model_file *f, int layer, int tensor) {
    char name[64];
    if (st_names[tensor].layered)
        (void)snprintf(name, sizeof name, "h.%d.%s", layer, st_names[tensor].name);
    else
        (void)snprintf(name, sizeof name, "%s", st_names[tensor].name);
    return st_bad(f, name, "is missing");
}

static zero_result st_check_shape(const model_file *f, const gpt2_config *c, const st_entry *x,
                                  int tensor) {
    const int dims = st_names[tensor].columns ? 2 : 1;
    const size_t rows = st_rows(c, tensor), columns = st_columns(c, tensor);
    if (x->dims == dims && x->shape[0] == rows && (dims == 1 || x->shape[1] == columns))
        return ZERO_OK;
    return model_refuse(f->e, ZERO_ERR_ARGUMENT,
                        "%.200s: %.100s: has %d dimensions, %" PRIu64 " x %" PRIu64
                        ", where the other shapes make it %zu x %zu",
                        f->path, x->name, x->dims, x->dims > 0 ? x->shape[0] : 1,
                        x->dims > 1 ? x->shape[1] : 1, rows, columns);
}

/* V, maxT and C are in the embeddings' shapes; every other shape follows from them. */
static zero_result st_find_config(const model_file *f, st_header *h) {
    gpt2_config *c = &h->cfg;
    for (int i = ST_WTE; i <= ST_WPE; i++) {
        const st_entry *x = st_at(h, 0, i);
        if (x == NULL) return st_missing(f, 0, i);
        if (x->dims != 2 || x->shape[0] < 1 || x->shape[0] > 1 << 20 || x->shape[1] < 1
            || x->shape[1] > 1 << 16)
            return st_bad(f, x->name, "has not two dimensions of a possible size");
    }
    c->vocab_size = (int)st_at(h, 0, ST_WTE)->shape[0];
    c->padded_vocab_size = (c->vocab_size + 127) / 128 * 128;
    c->channels = (int)st_at(h, 0, ST_WTE)->shape[1];
    c->max_seq_len = (int)st_at(h, 0, ST_WPE)->shape[0];
    for (int l = 0; l < c->layers; l++)
        for (int i = 0; i < GPT2_TENSORS; i++) {
            const st_entry *x = st_at(h, l, i);
            if (l > 0 && !st_names[i].layered) continue;
            if (x == NULL) return st_missing(f, l, i);
            MODEL_TRY(st_check_shape(f, c, x, i));
        }
    return h->head == NULL ? ZERO_OK : st_check_shape(f, c, h->head, ST_WTE);
}

/* n_head of the config.json beside the file; 0: there is none. */
static int st_config_heads(const char *path) {
    char beside[MODEL_PATH], text[CONFIG_MOST];
    const char *slash = strrchr(path, '/');
    const int folder = slash == NULL ? 0 : (int)(slash - path) + 1;
    if (snprintf(beside, sizeof beside, "%.*sconfig.json", folder, path) >= (int)sizeof beside)
        return 0;
    const int fd = open(beside, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    const ssize_t n = read(fd, text, sizeof text);
    (void)close(fd);
    cJSON *root = n > 0 ? cJSON_ParseWithLength(text, (size_t)n) : NULL;
    const cJSON *heads = cJSON_GetObjectItemCaseSensitive(root, "n_head");
    const int found = cJSON_IsNumber(heads) ? heads->valueint : 0;
    cJSON_Delete(root);
    return found > 0 ? found : 0;
}

static void st_find_heads(const model_file *f, st_header *h) {
    const cJSON *metadata = cJSON_GetObjectItemCaseSensitive(h->root, "__metadata__");
    const cJSON *heads = cJSON_GetObjectItemCaseSensitive(metadata, "n_head");
    if (cJSON_IsString(heads)) {
        const long n = strtol(heads->valuestring, NULL, 10);
        h->cfg.heads = n > 0 && n <= 1 << 16 ? (int)n : -1;
    } else {
        h->cfg.heads = st_config_heads(f->path);
    }
}

/* Everything that can be checked without a context; h is to be freed in any case. */
static zero_result st_open(const model_file *f, st_header *h) {
    gpt2_config with_heads;
    memset(h, 0, sizeof *h);
    MODEL_TRY(st_read_header(f, h));
    MODEL_TRY(st_check_names(f, h));
    MODEL_TRY(st_find_config(f, h));
    st_find_heads(f, h);
    with_heads = h->cfg;
    if (with_heads.heads == 0) with_heads.heads = 1;
    return model_check_config(&with_heads, f->path, f->e);
}

zero_result model_safetensors_info(const model_file *f, model_info *info) {
    st_header h;
    const zero_result r = st_open(f, &h);
    if (r == ZERO_OK) {
        info->format = MODEL_SAFETENSORS;
        info->type = (zero_type)st_at(&h, 0, ST_WTE)->type;
        info->cfg = h.cfg;
    }
    st_free(&h);
    return r;
}

/* ---- turning ------------------------------------------------------------------------------- */

/* out[c][r] = in[r][c], tile by tile, so that both sides stay in the cache. */
static void turn(float *out, const float *in, size_t rows, size_t columns) {
    for (size_t r0 = 0; r0 < rows; r0 += TILE)
        for (size_t c0 = 0; c0 < columns; c0 += TILE) {
            const size_t r1 = r0 + TILE < rows ? r0 + TILE : rows;
            const size_t c1 = c0 + TILE < columns ? c0 + TILE : columns;
            for (size_t r = r0; r < r1; r++)
                for (size_t c = c0; c < c1; c++) out[c * rows + r] = in[r * columns + c];
        }
}

/* A layer of a tensor that is (rows, columns) in the file and (columns, rows) in the context. It
   goes in bands of whole rows of the context, which are columns of the file:

       file           j0    j1              context
       rows 0   ......XXXXXX......          j0  XXXXXXXXXX
            1   ......XXXXXX......  <-->        XXXXXXXXXX
            :   ......XXXXXX......          j1  XXXXXXXXXX                                        */
typedef struct st_turned {
    const char *name;     /* of the context's tensor */
    size_t first;         /* element of the context where the layer begins */
    size_t rows, columns; /* in the file */
    zero_type type;
    uint64_t at; /* byte of the file where it begins */
} st_turned;

static zero_result band_get(const model_file *f, const st_turned *t, size_t j0, size_t wide) {
    const size_t bytes = zero_type_bytes(t->type);
    for (size_t i = 0; i < t->rows; i++)
        MODEL_TRY(model_get(f, t->at + (i * t->columns + j0) * bytes, wide * bytes,
                            f->raw + i * wide * bytes));
    return ZERO_OK;
}

static zero_result band_put(const model_file *f, const st_turned *t, size_t j0, size_t wide) {
    const size_t bytes = zero_type_bytes(t->type);
    for (size_t i = 0; i < t->rows; i++)
        MODEL_TRY(model_put(f, t->at + (i * t->columns + j0) * bytes, wide * bytes,
                            f->raw + i * wide * bytes));
    return ZERO_OK;
}

static zero_result turned_in(const model_file *f, const st_turned *t) {
    const size_t most = f->piece / t->rows;
    for (size_t j = 0; j < t->columns; j += most) {
        const size_t wide = t->columns - j < most ? t->columns - j : most, n = wide * t->rows;
        MODEL_TRY(model_agree(f->z, band_get(f, t, j, wide), f->e));
        zero_convert(f->turned, ZERO_F32, f->raw, t->type, n);
        turn(f->values, f->turned, t->rows, wide);
        MODEL_TRY(model_plugin(f, zero_write_tensor(f->z, t->name, ZERO_MASTER,
                                                    t->first + j * t->rows, n, f->values)));
    }
    return ZERO_OK;
}

static zero_result turned_out(const model_file *f, const st_turned *t) {
    const size_t most = f->piece / t->rows;
    for (size_t j = 0; j < t->columns; j += most) {
        const size_t wide = t->columns - j < most ? t->columns - j : most, n = wide * t->rows;
        zero_result r = ZERO_OK;
        MODEL_TRY(model_plugin(f, zero_read_tensor(f->z, t->name, f->kind, t->first + j * t->rows,
                                                   n, f->fd < 0 ? NULL : f->values)));
        if (f->fd >= 0) {
            turn(f->turned, f->values, wide, t->rows);
            r = model_narrow(f, t->type, n, f->turned, t->name);
            if (r == ZERO_OK) r = band_put(f, t, j, wide);
        }
        MODEL_TRY(model_agree(f->z, r, f->e));
    }
    return ZERO_OK;
}

/* Layer l of tensor i, either way. */
static zero_result st_copy(const model_file *f, const zero_tensor_desc *d, int i, int l,
                           zero_type type, uint64_t at, int in) {
    const st_turned t = {
        d->name, (size_t)l * d->numel, st_rows(f->cfg, i), st_columns(f->cfg, i), type, at};
    if (st_names[i].turned) return in ? turned_in(f, &t) : turned_out(f, &t);
    return in ? model_copy_in(f, t.name, ZERO_MASTER, t.first, t.rows * t.columns, type, at)
              : model_copy_out(f, t.name, t.first, t.rows * t.columns, type, at);
}

/* ---- load ---------------------------------------------------------------------------------- */

/* An output layer of its own is nothing that GPT-2 here can hold. */
static zero_result st_check_head(const model_file *f, const st_header *h) {
    const st_entry *a = st_at(h, 0, ST_WTE), *b = h->head;
    unsigned char *other = (unsigned char *)f->values;
    if (b == NULL) return ZERO_OK;
    if (b->type != a->type) return st_bad(f, b->name, "has another dtype than wte.weight");
    for (uint64_t at = 0; at < a->end - a->begin; at += f->piece * 2) {
        const uint64_t left = a->end - a->begin - at;
        const size_t n = left < f->piece * 2 ? (size_t)left : f->piece * 2;
        MODEL_TRY(model_get(f, h->data + a->begin + at, n, f->raw));
        MODEL_TRY(model_get(f, h->data + b->begin + at, n, other));
        if (memcmp(f->raw, other, n) != 0)
            return st_bad(f, b->name, "differs from wte.weight: the two are not tied");
    }
    return ZERO_OK;
}

/* Rows V..Vp of wte, which no file of this format has. */
static zero_result st_clear_padding(const model_file *f, const zero_tensor_desc *d) {
    size_t first = (size_t)f->cfg->vocab_size * (size_t)f->cfg->channels;
    memset(f->values, 0, f->piece * sizeof(float));
    while (first < d->numel) {
        const size_t n = d->numel - first < f->piece ? d->numel - first : f->piece;
        MODEL_TRY(
            model_plugin(f, zero_write_tensor(f->z, d->name, ZERO_MASTER, first, n, f->values)));
        first += n;
    }
    return ZERO_OK;
}

static zero_result st_load(const model_file *f, const st_header *h) {
    zero_tensor_desc table[GPT2_TENSORS];
    gpt2_describe(f->cfg, table);
    for (int i = 0; i < GPT2_TENSORS; i++)
        for (int l = 0; l < (st_names[i].layered ? f->cfg->layers : 1); l++) {
            const st_entry *x = st_at(h, l, i);
            MODEL_TRY(st_copy(f, &table[i], i, l, (zero_type)x->type, h->data + x->begin, 1));
        }
    return st_clear_padding(f, &table[ST_WTE]);
}

zero_result model_safetensors_load(model_file *f) {
    st_header h;
    zero_result r = st_open(f, &h);
    /* the file may have been replaced by another since it was compared */
    if (r == ZERO_OK) r = model_same(&h.cfg, f->cfg, f->path, f->e);
    if (r == ZERO_OK) r = st_check_head(f, &h);
    r = model_agree(f->z, r, f->e);
    if (r == ZERO_OK) r = st_load(f, &h);
    st_free(&h);
    return r;
}

/* ---- save ---------------------------------------------------------------------------------- */

static uint64_t st_bytes(const gpt2_config *c, int tensor, zero_type type) {
    return (uint64_t)st_rows(c, tensor) * st_columns(c, tensor) * zero_type_bytes(type);
}

/* Tensors lie in gpt2.h's order, a tensor's layers after one another. */
static void st_print(FILE *out, const gpt2_config *c, zero_type type) {
    static const char *const types[ZERO_TYPES] = {"F32", "BF16", "F16"};
    uint64_t at = 0;
    fprintf(out, "{\"__metadata__\":{\"format\":\"pt\",\"n_head\":\"%d\"}", c->heads);
    for (int i = 0; i < GPT2_TENSORS; i++)
        for (int l = 0; l < (st_names[i].layered ? c->layers : 1); l++) {
            const uint64_t bytes = st_bytes(c, i, type);
            fputs(",\"transformer.", out);
            if (st_names[i].layered) fprintf(out, "h.%d.", l);
            fprintf(out, "%s\":{\"dtype\":\"%s\",\"shape\":[%zu", st_names[i].name, types[type],
                    st_rows(c, i));
            if (st_names[i].columns) fprintf(out, ",%zu", st_columns(c, i));
            fprintf(out, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", at, at + bytes);
            at += bytes;
        }
    fputc('}', out);
    while (ftell(out) % 8) fputc(' ', out); /* tensors are aligned so */
}

/* The header with its length; *n bytes, the caller's to free. NULL: no memory. */
static char *st_make_header(const gpt2_config *c, zero_type type, size_t *n) {
    char *text = NULL;
    FILE *out = open_memstream(&text, n);
    const uint64_t none = 0;
    if (out == NULL) return NULL;
    (void)fwrite(&none, LENGTH_BYTES, 1, out);
    st_print(out, c, type);
    const int failed = ferror(out);
    if (fclose(out) || failed) {
        free(text);
        return NULL;
    }
    const uint64_t length = *n - LENGTH_BYTES;
    memcpy(text, &length, LENGTH_BYTES);
    return text;
}

static zero_result st_save(const model_file *f, zero_type type, uint64_t at) {
    zero_tensor_desc table[GPT2_TENSORS];
    gpt2_describe(f->cfg, table);
    for (int i = 0; i < GPT2_TENSORS; i++)
        for (int l = 0; l < (st_names[i].layered ? f->cfg->layers : 1); l++) {
            MODEL_TRY(st_copy(f, &table[i], i, l, type, at, 0));
            at += st_bytes(f->cfg, i, type);
        }
    return ZERO_OK;
}

zero_result model_safetensors_save(model_file *f, zero_type type) {
    size_t n = 0;
    char *header = st_make_header(f->cfg, type, &n);
    zero_result r = ZERO_OK;
    if (header == NULL) r = st_no_memory(f);
    f->bytes = n;
    for (int i = 0; i < GPT2_TENSORS; i++)
        f->bytes +=
            st_bytes(f->cfg, i, type) * (uint64_t)(st_names[i].layered ? f->cfg->layers : 1);
    if (r == ZERO_OK && f->fd >= 0) r = model_put(f, 0, n, header);
    free(header);
    MODEL_TRY(model_agree(f->z, r, f->e));
    return st_save(f, type, n);
}

zero_result model_save_hf_config(const gpt2_config *cfg, const char *path, gpt2_error *err) {
    gpt2_error e = {""};
    model_file f = {.cfg = cfg, .e = &e, .path = path, .fd = -1};
    char text[1024];
    const int end = cfg->vocab_size == 50257 ? 50256 : -1; /* <|endoftext|> */
    int n = snprintf(
        text, sizeof text,
        "{\n  \"activation_function\": \"gelu_new\",\n  \"architectures\": [\"GPT2LMHeadModel\"],\n"
        "  \"layer_norm_epsilon\": 1e-05,\n  \"model_type\": \"gpt2\",\n  \"n_ctx\": %d,\n"
        "  \"n_embd\": %d,\n  \"n_head\": %d,\n  \"n_layer\": %d,\n  \"n_positions\": %d,\n"
        "  \"tie_word_embeddings\": true,\n",
        cfg->max_seq_len, cfg->channels, cfg->heads, cfg->layers, cfg->max_seq_len);
    n += snprintf(text + n, sizeof text - (size_t)n,
                  end < 0 ? "  \"bos_token_id\": null,\n  \"eos_token_id\": null,\n"
                          : "  \"bos_token_id\": 50256,\n  \"eos_token_id\": 50256,\n");
    n += snprintf(text + n, sizeof text - (size_t)n, "  \"vocab_size\": %d\n}\n", cfg->vocab_size);
    f.bytes = (uint64_t)n;
    zero_result r = model_check_config(cfg, path, &e);
    if (r == ZERO_OK) r = model_create(&f, path);
    if (r == ZERO_OK) r = model_put(&f, 0, (size_t)n, text);
    if (r == ZERO_OK) r = model_commit(&f);
    model_close(&f);
    if (err != NULL) *err = e;
    return r;
}

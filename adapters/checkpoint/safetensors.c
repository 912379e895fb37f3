/* safetensors.c - the safetensors format of model_files.h: headers, GPT-2's tensors by the names of
   transformers, and the index of a model in several files. Every length and offset of a header is
   checked before it is used. */
#include "model_inside.h"

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
    HEADER_MOST =
        1 << 20, /* bytes in all files; a JSON tree takes about 40 times the bytes of its text */
    FILES_MOST = 512, /* files of one model, which are open at the same time */
    NAME_MOST = 255,  /* bytes of a file's name */
    CONFIG_MOST = 1 << 16,
    DIMS = 8,
    LAYERS_MOST = 4096,
    TILE = 32
};

/* ---- names and shapes ---------------------------------------------------------------------- */

/* The tensors in gpt2.h's order. A shape is in units of V, maxT or C; 0: no second dimension.
   transposed: the file has (in, out), the context (out, in). */
enum { BY_V = -1, BY_T = -2 };
typedef struct st_name {
    const char *name; /* name without "transformer.", and without "h.N." for a tensor of a layer */
    int layered, transposed;
    int rows, columns; /* in the file */
} st_name;

static const st_name st_names[GPT2_MOST_TENSORS] = {
    {"wte.weight", 0, 0, BY_V, 1},      {"wpe.weight", 0, 0, BY_T, 1},
    {"ln_1.weight", 1, 0, 1, 0},        {"ln_1.bias", 1, 0, 1, 0},
    {"attn.c_attn.weight", 1, 1, 1, 3}, {"attn.c_attn.bias", 1, 0, 3, 0},
    {"attn.c_proj.weight", 1, 1, 1, 1}, {"attn.c_proj.bias", 1, 0, 1, 0},
    {"ln_2.weight", 1, 0, 1, 0},        {"ln_2.bias", 1, 0, 1, 0},
    {"mlp.c_fc.weight", 1, 1, 1, 4},    {"mlp.c_fc.bias", 1, 0, 4, 0},
    {"mlp.c_proj.weight", 1, 1, 4, 1},  {"mlp.c_proj.bias", 1, 0, 1, 0},
    {"ln_f.weight", 0, 0, 1, 0},        {"ln_f.bias", 0, 0, 1, 0},
    {"lm_head.weight", 0, 0, BY_V, 1}, /* of untied models; no "transformer." before it */
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

/* Reads "h.N." with a decimal N of 0..LAYERS_MOST-1. Returns the rest of the name, or NULL. */
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

/* Returns the number of the tensor with this name, 0..15, or ST_... */
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

/* ---- headers ------------------------------------------------------------------------------- */

typedef struct st_entry {
    const char *name;  /* owned by the tree */
    int part;          /* the file that has it */
    int tensor, layer; /* see st_find */
    int type;          /* zero_type, or -1: a type that is allowed only for skipped tensors */
    int dims;
    uint64_t shape[DIMS];
    uint64_t begin, end; /* bytes, from the start of the data */
} st_entry;

/* One of the files of a model. */
typedef struct st_part {
    model_file in;    /* for model_get */
    const char *name; /* with an index: the file's name there */
    char *path;       /* with an index: owned */
    cJSON *root;
    uint64_t data; /* where the data begins in the file */
} st_part;

typedef struct model_header {
    cJSON *index; /* NULL: one file, which the caller has opened */
    st_part *part;
    int parts, entries;
    size_t left; /* bytes of HEADER_MOST that headers may still take */
    st_entry *entry;
    int *at; /* [layers][16]: the entry's number + 1; 0: it is missing */
    const st_entry *head;
    gpt2_config cfg;
} st_header;

/* Returns the entry of a tensor, or NULL if it is missing. */
static const st_entry *st_at(const st_header *h, int layer, int tensor) {
    const int number = h->at[layer * GPT2_TENSORS + tensor];
    return number == 0 ? NULL : &h->entry[number - 1];
}

void model_safetensors_close(model_file *f) {
    st_header *h = f->header;
    if (h == NULL) return;
    for (int i = 0; i < h->parts; i++) {
        cJSON_Delete(h->part[i].root);
        if (h->index != NULL && h->part[i].in.fd >= 0) (void)close(h->part[i].in.fd);
        free(h->part[i].path);
    }
    cJSON_Delete(h->index);
    free(h->part);
    free(h->entry);
    free(h->at);
    free(h);
    f->header = NULL;
}

#define ST_FIX "; use a whole file of a GPT-2 model"
static zero_result st_bad(const model_file *f, const char *name, const char *what) {
    return model_refuse(f->e, ZERO_ERR_ARGUMENT, "%.200s: %.100s: %.150s" ST_FIX, f->path, name,
                        what);
}

static zero_result st_no_memory(const model_file *f) {
    return model_refuse(f->e, ZERO_ERR_MEMORY, "%.200s: no memory for its header", f->path);
}

/* Reads a whole number up to 2^53, which a double holds exactly. Returns 0 if it is none. */
static int st_whole(const cJSON *x, uint64_t *out) {
    if (!cJSON_IsNumber(x) || !(x->valuedouble >= 0) || x->valuedouble > 9007199254740992.0)
        return 0;
    *out = (uint64_t)x->valuedouble;
    return (double)*out == x->valuedouble;
}

/* Returns the bytes of an element of this dtype, or 0 if it is no dtype. *type is its zero_type, or
   -1. */
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

/* Reads a shape, and multiplies *bytes by its number of elements. Returns 0 if it is no shape. */
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
        return model_refuse(f->e, ZERO_ERR_ARGUMENT,
                            "%.200s: %.100s: unknown dtype \"%.50s\"; use F32, F16 or BF16",
                            f->path, x->name, dtype->valuestring);
    if (!st_shape(x, cJSON_GetObjectItemCaseSensitive(o, "shape"), &bytes))
        return st_bad(f, x->name, "its shape is no list of at most 8 sizes");
    if (cJSON_GetArraySize(offsets) != 2 || !st_whole(offsets->child, &x->begin)
        || !st_whole(offsets->child->next, &x->end) || x->begin > x->end)
        return st_bad(f, x->name, "its data_offsets are no two places in order");
    if (x->end > f->bytes - data)
        return model_refuse(f->e, ZERO_ERR_ARGUMENT,
                            "%.200s: %.100s: ends at byte %" PRIu64 " of the data, the file has "
                            "%" PRIu64 ": cut short; copy the file again",
                            f->path, x->name, x->end, f->bytes - data);
    if (x->end - x->begin != bytes)
        return model_refuse(f->e, ZERO_ERR_ARGUMENT,
                            "%.200s: %.100s: its shape takes %" PRIu64 " bytes, its data_offsets "
                            "have %" PRIu64 ST_FIX,
                            f->path, x->name, bytes, x->end - x->begin);
    x->tensor = st_find(x->name, &x->layer);
    return ZERO_OK;
}

static int st_by_place(const void *a, const void *b) {
    const st_entry *x = (const st_entry *)a, *y = (const st_entry *)b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

/* Checks that every byte of the data belongs to exactly one tensor. */
static zero_result st_check_places(const st_part *p, const st_entry *entry, int n) {
    const model_file *f = &p->in;
    uint64_t at = 0;
    for (int i = 0; i < n; i++) {
        const st_entry *x = &entry[i];
        if (x->begin != at)
            return model_refuse(f->e, ZERO_ERR_ARGUMENT,
                                "%.200s: %.100s: begins at byte %" PRIu64 " of the data, %s that "
                                "before it, which ends at %" PRIu64 ST_FIX,
                                f->path, x->name, x->begin,
                                x->begin < at ? "overlaps" : "leaves a gap after", at);
        at = x->end;
    }
    if (at == f->bytes - p->data) return ZERO_OK;
    return model_refuse(f->e, ZERO_ERR_ARGUMENT,
                        "%.200s: the tensors end at byte %" PRIu64 " of the data, the file has "
                        "%" PRIu64 ST_FIX,
                        f->path, at, f->bytes - p->data);
}

/* Adds the entries of a file to the header's. */
static zero_result st_parse_entries(const st_part *p, st_header *h) {
    const model_file *f = &p->in;
    const cJSON *o;
    int metadata = 0;
    const int before = h->entries;
    const size_t most = (size_t)before + (size_t)cJSON_GetArraySize(p->root) + 1;
    void *more = realloc(h->entry, most * sizeof *h->entry);
    if (more == NULL) return st_no_memory(f);
    h->entry = (st_entry *)more;
    cJSON_ArrayForEach(o, p->root) {
        if (strcmp(o->string, "__metadata__") != 0) {
            st_entry *x = &h->entry[h->entries++];
            memset(x, 0, sizeof *x);
            x->part = (int)(p - h->part);
            MODEL_TRY(st_parse_entry(f, x, o, p->data));
            continue;
        }
        const cJSON *value;
        if (!cJSON_IsObject(o) || metadata++)
            return st_bad(f, o->string, "no object, or there twice");
        cJSON_ArrayForEach(value, o) {
            if (!cJSON_IsString(value)) return st_bad(f, o->string, "holds more than strings");
        }
    }
    const int n = h->entries - before;
    qsort(h->entry + before, (size_t)n, sizeof *h->entry, st_by_place);
    return st_check_places(p, h->entry + before, n);
}

static zero_result st_parse_text(st_part *p, st_header *h, const char *text, size_t n) {
    const char *end = NULL;
    if (text[0] == '{') p->root = cJSON_ParseWithLengthOpts(text, n, &end, 0);
    if (!cJSON_IsObject(p->root)) return st_bad(&p->in, "header", "no JSON object");
    for (; end < text + n; end++)
        if (*end != ' ') return st_bad(&p->in, "header", "something follows the JSON object");
    return st_parse_entries(p, h);
}

static zero_result st_read_header(st_part *p, st_header *h) {
    const model_file *f = &p->in;
    uint64_t n = 0;
    char *text;
    if (f->bytes < LENGTH_BYTES + 2)
        return st_bad(f, "header", "too short for a model file of any kind");
    MODEL_TRY(model_get(f, 0, LENGTH_BYTES, &n));
    if (n < 2 || n > h->left || n > f->bytes - LENGTH_BYTES)
        return model_refuse(f->e, ZERO_ERR_ARGUMENT,
                            "%.200s: neither llm.c's magic number nor a safetensors header: its "
                            "length would be %" PRIu64 " (at most %zu, file %" PRIu64 " bytes); "
                            "use a file of one of these",
                            f->path, n, h->left, f->bytes);
    h->left -= (size_t)n;
    p->data = LENGTH_BYTES + n;
    text = (char *)malloc((size_t)n);
    if (text == NULL) return st_no_memory(f);
    zero_result r = model_get(f, LENGTH_BYTES, (size_t)n, text);
    if (r == ZERO_OK) r = st_parse_text(p, h, text, (size_t)n);
    free(text);
    return r;
}

/* ---- an index: which file has which tensor ------------------------------------------------- */

static const cJSON *st_map(const st_header *h) {
    return cJSON_GetObjectItemCaseSensitive(h->index, "weight_map");
}

/* Returns whether the name has no folder, so that the file is in the index's own folder. */
static int st_plain(const cJSON *file) {
    if (!cJSON_IsString(file)) return 0;
    const char *name = file->valuestring;
    return name[0] != 0 && name[0] != '.' && strchr(name, '/') == NULL && strlen(name) <= NAME_MOST;
}

static zero_result st_read_index(const model_file *f, st_header *h) {
    const cJSON *file;
    if (f->bytes < 2 || f->bytes > HEADER_MOST)
        return model_refuse(f->e, ZERO_ERR_ARGUMENT,
                            "%.200s: has %" PRIu64 " bytes; an index has 2 to %d", f->path,
                            f->bytes, HEADER_MOST);
    char *text = (char *)malloc((size_t)f->bytes);
    if (text == NULL) return st_no_memory(f);
    const zero_result r = model_get(f, 0, (size_t)f->bytes, text);
    if (r == ZERO_OK) h->index = cJSON_ParseWithLength(text, (size_t)f->bytes);
    free(text);
    MODEL_TRY(r);
    if (!cJSON_IsObject(st_map(h)) || st_map(h)->child == NULL)
        return st_bad(f, "index", "no JSON object with a weight_map of tensors");
    cJSON_ArrayForEach(file, st_map(h)) {
        if (!st_plain(file))
            return st_bad(f, file->string, "its file is not named, or not by a name in its folder");
    }
    return ZERO_OK;
}

/* Finds the part with this name. Opens the file when it is first named. */
static zero_result st_open_part(const model_file *f, st_header *h, const char *name) {
    for (int i = 0; i < h->parts; i++)
        if (strcmp(h->part[i].name, name) == 0) return ZERO_OK;
    if (h->parts == FILES_MOST) return st_bad(f, "index", "names more than 512 files");
    st_part *p = &h->part[h->parts++];
    const char *slash = strrchr(f->path, '/');
    const size_t folder = slash == NULL ? 0 : (size_t)(slash - f->path) + 1;
    p->in.fd = -1;
    p->name = name;
    p->path = (char *)malloc(folder + strlen(name) + 1);
    if (p->path == NULL) return st_no_memory(f);
    memcpy(p->path, f->path, folder);
    memcpy(p->path + folder, name, strlen(name) + 1);
    MODEL_TRY(model_open(&p->in, p->path, f->e));
    return st_read_header(p, h);
}

static int st_has(const st_header *h, const char *tensor, const char *file) {
    for (int i = 0; i < h->entries; i++)
        if (strcmp(h->entry[i].name, tensor) == 0
            && strcmp(h->part[h->entry[i].part].name, file) == 0)
            return 1;
    return 0;
}

/* Checks that the files have the tensors that the map lists, and no others. */
static zero_result st_check_map(const model_file *f, const st_header *h) {
    const cJSON *file;
    for (int i = 0; i < h->entries; i++) {
        const st_entry *x = &h->entry[i];
        const st_part *p = &h->part[x->part];
        file = cJSON_GetObjectItemCaseSensitive(st_map(h), x->name);
        if (file == NULL)
            return model_refuse(f->e, ZERO_ERR_ARGUMENT,
                                "%.200s: %.100s: is in %.100s, but not in the weight_map" ST_FIX,
                                f->path, x->name, p->name);
        if (strcmp(file->valuestring, p->name) != 0)
            return model_refuse(f->e, ZERO_ERR_ARGUMENT,
                                "%.200s: %.100s: is in %.100s, the weight_map says %.50s" ST_FIX,
                                f->path, x->name, p->name, file->valuestring);
    }
    cJSON_ArrayForEach(file, st_map(h)) {
        if (!st_has(h, file->string, file->valuestring))
            return model_refuse(
                f->e, ZERO_ERR_ARGUMENT,
                "%.200s: %.100s: is missing in %.100s, where the weight_map has it" ST_FIX, f->path,
                file->string, file->valuestring);
    }
    return ZERO_OK;
}

/* Reads the header of the only file, or the headers of all files that the index names. */
static zero_result st_read_parts(const model_file *f, st_header *h) {
    const cJSON *file;
    const int index = model_ends(f->path, ".json");
    h->left = HEADER_MOST;
    if (index) MODEL_TRY(st_read_index(f, h));
    const int names = index ? cJSON_GetArraySize(st_map(h)) : 1;
    h->part =
        (st_part *)calloc(names < FILES_MOST ? (size_t)names + 1 : FILES_MOST, sizeof *h->part);
    if (h->part == NULL) return st_no_memory(f);
    if (!index) {
        h->parts = 1;
        h->part[0].in.e = f->e;
        h->part[0].in.path = f->path;
        h->part[0].in.fd = f->fd;
        h->part[0].in.bytes = f->bytes;
        return st_read_header(&h->part[0], h);
    }
    cJSON_ArrayForEach(file, st_map(h)) MODEL_TRY(st_open_part(f, h, file->valuestring));
    return st_check_map(f, h);
}

/* ---- the model that a header holds --------------------------------------------------------- */

/* Refuses tensors that are named twice, unknown, or no weights. Finds the number of layers. */
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
                        ", where the other shapes make it %zu x %zu; use a GPT-2 model",
                        f->path, x->name, x->dims, x->dims > 0 ? x->shape[0] : 1,
                        x->dims > 1 ? x->shape[1] : 1, rows, columns);
}

/* Takes V, maxT and C from the shapes of the embeddings; the other shapes follow from them. */
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

/* Returns n_head from the config.json next to the file, or 0 if there is none. */
static int st_config_heads(const char *path) {
    char config[MODEL_PATH], text[CONFIG_MOST];
    if (!model_path_next_to(config, sizeof config, path, "config.json")) return 0;
    const int fd = open(config, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
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
    const cJSON *heads = NULL;
    for (int i = 0; i < h->parts && heads == NULL; i++)
        heads = cJSON_GetObjectItemCaseSensitive(
            cJSON_GetObjectItemCaseSensitive(h->part[i].root, "__metadata__"), "n_head");
    if (cJSON_IsString(heads)) {
        const long n = strtol(heads->valuestring, NULL, 10);
        h->cfg.heads = n > 0 && n <= 1 << 16 ? (int)n : -1;
    } else {
        h->cfg.heads = st_config_heads(f->path);
    }
}

/* Makes all checks that need no buffers. */
static zero_result st_open(const model_file *f, st_header *h) {
    gpt2_config with_heads;
    MODEL_TRY(st_read_parts(f, h));
    MODEL_TRY(st_check_names(f, h));
    MODEL_TRY(st_find_config(f, h));
    st_find_heads(f, h);
    with_heads = h->cfg;
    if (with_heads.heads == 0) with_heads.heads = 1;
    return model_check_config(&with_heads, f->path, f->e);
}

zero_result model_safetensors_info(model_file *f) {
    f->header = (st_header *)calloc(1, sizeof *f->header);
    if (f->header == NULL) return st_no_memory(f);
    MODEL_TRY(st_open(f, f->header));
    f->info.format = MODEL_SAFETENSORS;
    f->info.type = (zero_type)st_at(f->header, 0, ST_WTE)->type;
    f->info.cfg = f->header->cfg;
    return ZERO_OK;
}

/* Closes the header alone: the file is the caller's. */
zero_result model_safetensors_list(const model_file *f,
                                   zero_result (*each)(void *user, const model_tensor *t),
                                   void *user) {
    model_file own = *f;
    own.header = (st_header *)calloc(1, sizeof *own.header);
    if (own.header == NULL) return st_no_memory(f);
    zero_result r = model_ends(f->path, ".json") ? st_bad(f, "header", "it is an index of files")
                                                 : st_read_parts(f, own.header);
    for (int i = 0; i < own.header->entries && r == ZERO_OK; i++) {
        const st_entry *x = &own.header->entry[i];
        const model_tensor t = {x->name, x->type, x->dims, x->shape,
                                own.header->part[0].data + x->begin};
        r = each(user, &t);
    }
    model_safetensors_close(&own);
    return r;
}

/* ---- transposing --------------------------------------------------------------------------- */

/* Computes elements [skip, skip + n) of out[c][r] = in[r][c], in the order of `out`. It works tile
   by tile, so that both sides stay in the cache. */
static void transpose(float *out, const float *in, size_t rows, size_t columns, size_t skip,
                      size_t n) {
    for (size_t r0 = 0; r0 < rows; r0 += TILE)
        for (size_t c0 = 0; c0 < columns; c0 += TILE) {
            const size_t r1 = r0 + TILE < rows ? r0 + TILE : rows;
            const size_t c1 = c0 + TILE < columns ? c0 + TILE : columns;
            for (size_t c = c0; c < c1; c++) {
                const size_t row = c * rows;
                const size_t from = row + r0 < skip ? skip : row + r0;
                const size_t to = row + r1 < skip + n ? row + r1 : skip + n;
                for (size_t k = from; k < to; k++) out[k - skip] = in[(k - row) * columns + c];
            }
        }
}

/* A layer of a tensor that is (rows, columns) in the file and (columns, rows) in the context. It is
   read in bands of whole rows of the context, which are columns of the file:

       file           j0    j1              context
       rows 0   ......XXXXXX......          j0  XXXXXXXXXX
            1   ......XXXXXX......  <-->        XXXXXXXXXX
            :   ......XXXXXX......          j1  XXXXXXXXXX                                        */
typedef struct st_transposed {
    int tensor;
    size_t first;         /* element of the context where the layer begins */
    size_t rows, columns; /* in the file */
    zero_type type;
    uint64_t at; /* byte of the file where it begins */
} st_transposed;

/* Reads elements [first, first + n) of a layer. */
static zero_result transposed_in(const model_file *f, const model_file *in, const st_transposed *t,
                                 size_t first, size_t n, float *out) {
    const size_t bytes = zero_type_bytes(t->type), most = f->piece / t->rows;
    for (size_t done = 0; done < n;) {
        const size_t j = (first + done) / t->rows, skip = (first + done) % t->rows;
        const size_t left = (skip + n - done + t->rows - 1) / t->rows;
        const size_t wide = left < most ? left : most, here = wide * t->rows - skip;
        const size_t run = here < n - done ? here : n - done;
        for (size_t i = 0; i < t->rows; i++)
            MODEL_TRY(model_get(in, t->at + (i * t->columns + j) * bytes, wide * bytes,
                                f->raw + i * wide * bytes));
        zero_convert(f->values, ZERO_F32, f->raw, t->type, wide * t->rows);
        transpose(out + done, f->values, t->rows, wide, skip, run);
        done += run;
    }
    return ZERO_OK;
}

static zero_result band_put(const model_file *f, const st_transposed *t, size_t j0, size_t wide) {
    const size_t bytes = zero_type_bytes(t->type);
    for (size_t i = 0; i < t->rows; i++)
        MODEL_TRY(model_put(f, t->at + (i * t->columns + j0) * bytes, wide * bytes,
                            f->raw + i * wide * bytes));
    return ZERO_OK;
}

static zero_result transposed_out(const model_file *f, const st_transposed *t) {
    const size_t most = f->piece / t->rows;
    for (size_t j = 0; j < t->columns; j += most) {
        const size_t wide = t->columns - j < most ? t->columns - j : most, n = wide * t->rows;
        zero_result r = ZERO_OK;
        MODEL_TRY(f->read(f->user, t->tensor, ZERO_MASTER, t->first + j * t->rows, n,
                          f->fd < 0 ? NULL : f->values, f->e));
        if (f->fd >= 0) {
            transpose(f->transposed, f->values, wide, t->rows, 0, n);
            r = model_narrow(f, t->type, n, f->transposed, f->table[t->tensor].name);
            if (r == ZERO_OK) r = band_put(f, t, j, wide);
        }
        MODEL_TRY(model_agree(f->z, r, f->e));
    }
    return ZERO_OK;
}

/* ---- load ---------------------------------------------------------------------------------- */

/* Reads bytes [at, at + n) of an entry without conversion. */
static zero_result st_get(const st_header *h, const st_entry *x, uint64_t at, size_t n, void *out) {
    const st_part *p = &h->part[x->part];
    return model_get(&p->in, p->data + x->begin + at, n, out);
}

int model_safetensors_head(const model_file *f) { return f->header != NULL && f->header->head; }

zero_result model_safetensors_unties(const model_file *f, int *unties) {
    const st_header *h = f->header;
    const st_entry *a = st_at(h, 0, ST_WTE), *b = h->head;
    unsigned char *other = (unsigned char *)f->values;
    *unties = b != NULL && b->type != a->type;
    if (b == NULL || *unties) return ZERO_OK;
    for (uint64_t at = 0; at < a->end - a->begin; at += f->piece * 2) {
        const uint64_t left = a->end - a->begin - at;
        const size_t n = left < f->piece * 2 ? (size_t)left : f->piece * 2;
        MODEL_TRY(st_get(h, a, at, n, f->raw));
        MODEL_TRY(st_get(h, b, at, n, other));
        *unties = memcmp(f->raw, other, n) != 0;
        if (*unties) break;
    }
    return ZERO_OK;
}

/* Refuses a file with a classifier that differs from wte, unless the model is untied. */
zero_result model_safetensors_ready(const model_file *f) {
    const st_header *h = f->header;
    int unties = 0;
    if (f->cfg->untied) return ZERO_OK;
    MODEL_TRY(model_safetensors_unties(f, &unties));
    if (!unties) return ZERO_OK;
    return st_bad(f, h->head->name,
                  h->head->type != st_at(h, 0, ST_WTE)->type
                      ? "has another dtype than wte.weight"
                      : "differs from wte.weight: the two are not tied");
}

/* Writes elements [first, first + n) of one layer of a tensor. */
static zero_result st_get_layer(const model_file *f, int layer, int tensor, size_t first, size_t n,
                                float *out) {
    const st_header *h = f->header;
    const st_entry *x = tensor == GPT2_LMHEADW ? h->head : st_at(h, layer, tensor);
    const st_part *p = &h->part[x->part];
    const zero_type type = (zero_type)x->type;
    const size_t size = zero_type_bytes(type);
    if (st_names[tensor].transposed) {
        const st_transposed t = {tensor,
                                 0,
                                 st_rows(f->cfg, tensor),
                                 st_columns(f->cfg, tensor),
                                 type,
                                 p->data + x->begin};
        return transposed_in(f, &p->in, &t, first, n, out);
    }
    MODEL_TRY(st_get(h, x, first * size, n * size, f->raw));
    zero_convert(out, ZERO_F32, f->raw, type, n);
    return ZERO_OK;
}

zero_result model_safetensors_get(const model_file *f, int tensor, size_t first, size_t n,
                                  float *out) {
    const size_t numel = st_rows(f->cfg, tensor) * st_columns(f->cfg, tensor);
    for (size_t done = 0; done < n;) {
        const size_t at = first + done, layer = st_names[tensor].layered ? at / numel : 0;
        const size_t in_layer = at - layer * numel;
        if (in_layer
            >= numel) { /* rows V..Vp of a padded vocabulary, which no file of this format has */
            memset(out + done, 0, (n - done) * sizeof *out);
            break;
        }
        const size_t run = numel - in_layer < n - done ? numel - in_layer : n - done;
        MODEL_TRY(st_get_layer(f, (int)layer, tensor, in_layer, run, out + done));
        done += run;
    }
    return ZERO_OK;
}

/* ---- save ---------------------------------------------------------------------------------- */

static uint64_t st_bytes(const gpt2_config *c, int tensor, zero_type type) {
    return (uint64_t)st_rows(c, tensor) * st_columns(c, tensor) * zero_type_bytes(type);
}

static int st_tensors(const gpt2_config *c) { return GPT2_TENSORS + (c->untied != 0); }

/* Prints the header. Tensors are in gpt2.h's order, and the layers of a tensor one after another.
 */
static void st_print(FILE *out, const gpt2_config *c, zero_type type) {
    static const char *const types[ZERO_TYPES] = {"F32", "BF16", "F16"};
    uint64_t at = 0;
    fprintf(out, "{\"__metadata__\":{\"format\":\"pt\",\"n_head\":\"%d\"}", c->heads);
    for (int i = 0; i < st_tensors(c); i++)
        for (int l = 0; l < (st_names[i].layered ? c->layers : 1); l++) {
            const uint64_t bytes = st_bytes(c, i, type);
            fputs(i == GPT2_LMHEADW ? ",\"" : ",\"transformer.", out);
            if (st_names[i].layered) fprintf(out, "h.%d.", l);
            fprintf(out, "%s\":{\"dtype\":\"%s\",\"shape\":[%zu", st_names[i].name, types[type],
                    st_rows(c, i));
            if (st_names[i].columns) fprintf(out, ",%zu", st_columns(c, i));
            fprintf(out, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", at, at + bytes);
            at += bytes;
        }
    fputc('}', out);
    while (ftell(out) % 8) fputc(' ', out); /* aligns the tensors */
}

/* Returns the header after its length, *n bytes, which the caller frees. NULL: memory is short. */
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
    for (int i = 0; i < st_tensors(f->cfg); i++)
        for (int l = 0; l < (st_names[i].layered ? f->cfg->layers : 1); l++) {
            const st_transposed t = {
                i, (size_t)l * f->table[i].numel, st_rows(f->cfg, i), st_columns(f->cfg, i), type,
                at};
            MODEL_TRY(st_names[i].transposed
                          ? transposed_out(f, &t)
                          : model_copy_out(f, i, t.first, t.rows * t.columns, type, at));
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
    for (int i = 0; i < st_tensors(f->cfg); i++)
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
        "  \"tie_word_embeddings\": %s,\n",
        cfg->max_seq_len, cfg->channels, cfg->heads, cfg->layers, cfg->max_seq_len,
        cfg->untied ? "false" : "true");
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

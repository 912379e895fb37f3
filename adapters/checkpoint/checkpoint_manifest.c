/* checkpoint_manifest.c - manifest.json to and from a struct. FORMAT.md describes it. A
   manifest may be damaged, or made by an attacker. So its checksum is verified first, and then each
   value is checked before use. */
#include "checkpoint_inside.h"

#include <cjson/cJSON.h>

#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const ck_types[ZERO_TYPES] = {"f32", "bf16", "fp16"};
static const char *const ck_kinds[CK_ALL_ARRAYS] = {"weight", "moment_1", "moment_2", "parameter"};
#define CK_MOST 9007199254740992.0 /* 2^53: a double holds all whole numbers up to this */
enum { CK_MOST_PARTS = 1 << 16 };  /* most parts of a tensor */

/* ---- the struct ---- */

static void ck_values_free(ck_manifest *m) {
    for (int i = 0; i < m->nvalues; i++) {
        free((void *)(uintptr_t)m->value[i].name);
        free((void *)(uintptr_t)m->value[i].text);
    }
    free(m->value);
    m->value = NULL;
    m->nvalues = 0;
}

void ck_manifest_free(ck_manifest *m) {
    ck_values_free(m);
    for (int t = 0; t < m->ntensors; t++) {
        free(m->tensor[t].name);
        for (int k = 0; k < CK_ALL_ARRAYS; k++) free(m->tensor[t].array[k].piece);
    }
    free(m->tensor);
    free(m->index);
    free(m->file);
    free(m->config);
    memset(m, 0, sizeof *m);
}

/* Returns the place of a name in the index, found or free. At most half of the index is used. */
static int *ck_manifest_place(const ck_manifest *m, const char *name) {
    for (size_t i = (size_t)ck_hash(name, strlen(name));; i++) {
        int *at = &m->index[i & (2 * (size_t)m->room - 1)];
        if (*at == 0 || strcmp(m->tensor[*at - 1].name, name) == 0) return at;
    }
}
int ck_manifest_find(const ck_manifest *m, const char *name) {
    return m->room ? *ck_manifest_place(m, name) - 1 : -1;
}

/* Makes room for one more tensor. Returns 0 if memory is short. */
static int ck_manifest_grow(ck_manifest *m) {
    const int room = m->room ? 2 * m->room : 32;
    if (m->ntensors < m->room) return 1;
    int *index = (int *)calloc(2 * (size_t)room, sizeof *index);
    void *more = index ? realloc(m->tensor, (size_t)room * sizeof *m->tensor) : NULL;
    if (more == NULL) {
        free(index);
        return 0;
    }
    free(m->index);
    m->index = index;
    m->tensor = (ck_tensor *)more;
    m->room = room;
    for (int t = 0; t < m->ntensors; t++) *ck_manifest_place(m, m->tensor[t].name) = t + 1;
    return 1;
}

int ck_is_feedback(const char *name) {
    return strncmp(name, ZERO_FEEDBACK_NAME, strlen(ZERO_FEEDBACK_NAME)) == 0;
}

ck_tensor *ck_manifest_tensor(ck_manifest *m, const char *name) {
    const int t = ck_manifest_find(m, name);
    if (t >= 0) return &m->tensor[t];
    if (!ck_manifest_grow(m)) return NULL;
    ck_tensor *x = &m->tensor[m->ntensors];
    memset(x, 0, sizeof *x);
    x->name = strdup(name);
    if (x->name == NULL) return NULL;
    x->layers = 1;
    *ck_manifest_place(m, name) = ++m->ntensors;
    return x;
}

ck_piece *ck_array_add(ck_array *a, const ck_piece *piece) {
    if (a->npieces == a->room) {
        const int room = a->room ? 2 * a->room : 8;
        void *more = realloc(a->piece, (size_t)room * sizeof *a->piece);
        if (more == NULL) return NULL;
        a->piece = (ck_piece *)more;
        a->room = room;
    }
    a->piece[a->npieces] = *piece;
    return &a->piece[a->npieces++];
}

static int ck_piece_order(const void *a, const void *b) {
    const ck_piece *x = (const ck_piece *)a, *y = (const ck_piece *)b;
    return (x->first > y->first) - (x->first < y->first);
}

checkpoint_result ck_array_close(const ck_tensor *t, ck_array *a, ck_error *e) {
    const uint64_t total = t->layers * t->numel;
    uint64_t at = 0;
    if (a->npieces) qsort(a->piece, (size_t)a->npieces, sizeof *a->piece, ck_piece_order);
    for (int i = 0; i < a->npieces; i++) {
        if (a->piece[i].first != at || a->piece[i].count > total - at)
            return ck_fail(e, CHECKPOINT_DAMAGED,
                           "%s: elements %" PRIu64 "... are there twice or not at all", t->name,
                           at);
        at += a->piece[i].count;
    }
    if (at != total)
        return ck_fail(e, CHECKPOINT_DAMAGED, "%s: %" PRIu64 " of %" PRIu64 " elements are there",
                       t->name, at, total);
    return CHECKPOINT_OK;
}

static checkpoint_result ck_value_copy(checkpoint_value *to, const checkpoint_value *from,
                                       ck_error *e) {
    *to = *from;
    to->name = strdup(from->name);
    to->text = from->kind == CHECKPOINT_TEXT ? strdup(from->text ? from->text : "") : NULL;
    if (to->name == NULL || (from->kind == CHECKPOINT_TEXT && to->text == NULL))
        return ck_fail(e, CHECKPOINT_MEMORY, "no memory for the value %s", from->name);
    return CHECKPOINT_OK;
}

checkpoint_result ck_manifest_set_values(ck_manifest *m, const checkpoint_value *values, int n,
                                         ck_error *e) {
    ck_values_free(m);
    if (n < 0 || (n && values == NULL))
        return ck_fail(e, CHECKPOINT_ARGUMENT, "%d values at %p; expected an array of 0 or more", n,
                       (const void *)values);
    for (int i = 0; i < n; i++) {
        if (values[i].name == NULL || (int)values[i].kind < 0 || values[i].kind > CHECKPOINT_TEXT)
            return ck_fail(e, CHECKPOINT_ARGUMENT, "value %d has no name or no kind; set both", i);
        for (int k = 0; k < i; k++)
            if (strcmp(values[k].name, values[i].name) == 0)
                return ck_fail(e, CHECKPOINT_ARGUMENT,
                               "two values are named %s; use each name once", values[i].name);
    }
    m->value = (checkpoint_value *)calloc((size_t)n + 1, sizeof *m->value);
    if (m->value == NULL) return ck_fail(e, CHECKPOINT_MEMORY, "no memory for %d values", n);
    for (int i = 0; i < n; i++) {
        m->nvalues = i + 1;
        CK_TRY(ck_value_copy(&m->value[i], &values[i], e));
    }
    return CHECKPOINT_OK;
}

const char *ck_optimizer_name(zero_optimizer optimizer, char out[CK_NAME]) {
    static const char *const names[] = {"adamw", "adam",    "sgd",  "nesterov",
                                        "lion",  "adagrad", "lamb", "muon"};
    if (optimizer < ZERO_OPTIMIZER_OWN)
        (void)snprintf(out, CK_NAME, "%s", names[optimizer]);
    else
        (void)snprintf(out, CK_NAME, "own-%d", (int)optimizer - (int)ZERO_OPTIMIZER_OWN);
    return out;
}

/* ---- printing ---- */

typedef struct ck_text {
    char *at;
    size_t n, room;
    int failed; /* 1: memory was short, and the rest of the text is dropped */
} ck_text;

static int ck_text_room(ck_text *t, size_t more) {
    if (t->failed || t->n + more < t->room) return !t->failed;
    const size_t room = 2 * (t->room + more) + 4096;
    char *at = (char *)realloc(t->at, room);
    t->failed = at == NULL;
    if (at == NULL) return 0;
    t->at = at;
    t->room = room;
    return 1;
}

static void ck_text_append(ck_text *t, const char *format, ...) CK_PRINTF(2, 3);
static void ck_text_append(ck_text *t, const char *format, ...) {
    char line[512];
    va_list list;
    va_start(list, format);
    const int n = vsnprintf(line, sizeof line, format, list);
    va_end(list);
    if (n < 0 || (size_t)n >= sizeof line || !ck_text_room(t, (size_t)n)) {
        t->failed = 1;
        return;
    }
    memcpy(t->at + t->n, line, (size_t)n + 1);
    t->n += (size_t)n;
}

static void ck_quote(ck_text *t, const char *text) {
    ck_text_append(t, "\"");
    for (const unsigned char *c = (const unsigned char *)text; *c && !t->failed; c++) {
        if (*c == '"' || *c == '\\')
            ck_text_append(t, "\\%c", *c);
        else if (*c == '\n')
            ck_text_append(t, "\\n");
        else if (*c < 0x20 || *c == 0x7f)
            ck_text_append(t, "\\u%04x", *c);
        else
            ck_text_append(t, "%c", *c);
    }
    ck_text_append(t, "\"");
}

static void ck_print_counters(ck_text *t, const zero_counters *c) {
    ck_text_append(
        t,
        "  \"counters\": {\"steps\": %" PRId64 ", \"skipped\": %" PRId64 ", \"iteration\": %" PRId64
        ", \"last_overflow\": %" PRId64 ", \"scale\": %.9g, \"hysteresis\": %d},\n",
        c->steps, c->skipped, c->iteration, c->last_overflow, (double)c->scale, c->hysteresis);
}

/* Integers are decimal text, and other numbers hexadecimal, so nothing is rounded. */
static void ck_print_values(ck_text *t, const ck_manifest *m) {
    ck_text_append(t, "  \"values\": [");
    for (int i = 0; i < m->nvalues; i++) {
        const checkpoint_value *v = &m->value[i];
        ck_text_append(t, "%s\n    {\"name\": ", i ? "," : "");
        ck_quote(t, v->name);
        if (v->kind == CHECKPOINT_INT) ck_text_append(t, ", \"int\": \"%" PRId64 "\"}", v->number);
        if (v->kind == CHECKPOINT_REAL) ck_text_append(t, ", \"real\": \"%a\"}", v->real);
        if (v->kind != CHECKPOINT_TEXT) continue;
        ck_text_append(t, ", \"text\": ");
        ck_quote(t, v->text);
        ck_text_append(t, "}");
    }
    ck_text_append(t, "%s],\n", m->nvalues ? "\n  " : "");
}

static void ck_print_array(ck_text *t, const ck_array *a, const char *kind) {
    ck_text_append(t, "\n      {\"kind\": \"%s\", \"type\": \"%s\", \"pieces\": [", kind,
                   ck_types[a->type]);
    for (int i = 0; i < a->npieces; i++) {
        const ck_piece *p = &a->piece[i];
        ck_text_append(t, "%s[%d, %" PRIu64 ", %" PRIu64 ", %" PRIu64 "]", i ? ", " : "", p->file,
                       p->first, p->count, p->offset);
    }
    ck_text_append(t, "]}");
}

static void ck_print_tensors(ck_text *t, const ck_manifest *m) {
    ck_text_append(t, "  \"tensors\": [");
    for (int i = 0; i < m->ntensors; i++) {
        const ck_tensor *x = &m->tensor[i];
        ck_text_append(t, "%s\n    {\"name\": ", i ? "," : "");
        ck_quote(t, x->name);
        ck_text_append(t, ", \"layers\": %" PRIu64 ", \"numel\": %" PRIu64, x->layers, x->numel);
        if (x->parts > 1)
            ck_text_append(t, ", \"slice\": [%" PRIu64 ", %" PRIu64 "]", x->row, x->parts);
        if (x->f32_state) ck_text_append(t, ", \"state\": \"f32\"");
        ck_text_append(t, ", \"arrays\": [");
        for (int k = 0; k < CK_ALL_ARRAYS; k++) {
            if (k < CK_SEEN ? k >= x->narrays : x->array[k].npieces == 0) continue;
            if (k) ck_text_append(t, ",");
            ck_print_array(t, &x->array[k], ck_kinds[k]);
        }
        ck_text_append(t, "]}");
    }
    ck_text_append(t, "\n  ],\n");
}

static void ck_print_files(ck_text *t, const ck_manifest *m) {
    ck_text_append(t, "  \"block_bytes\": %d,\n  \"files\": [", CK_BLOCK);
    for (int i = 0; i < m->nfiles; i++) {
        const ck_file *f = &m->file[i];
        ck_text_append(t,
                       "%s\n    {\"name\": \"%s\", \"bytes\": %" PRIu64
                       ", \"image_bytes\": %" PRIu64 ", \"table\": \"%016" PRIx64 "\"}",
                       i ? "," : "", f->name, ck_file_bytes(f->image_bytes), f->image_bytes,
                       f->table);
    }
    ck_text_append(t, "\n  ],\n");
}

/* The format of the last 28 bytes. The checksum covers all bytes before its first digit. */
#define CK_SEAL_HEAD "\"checksum\": \""
#define CK_SEAL_TAIL "\"}\n"
enum { CK_DIGITS = 16, CK_TAIL = CK_DIGITS + sizeof CK_SEAL_TAIL - 1 };

/* A reader that does not know parts must not read their order as the dense one, and a reader that
   does not know pending updates must not resume without them. One that does not know frozen tensors
   would miss their moments. */
static int ck_manifest_version(const ck_manifest *m) {
    int version = CK_VERSION;
    for (int t = 0; t < m->ntensors; t++) {
        const ck_tensor *x = &m->tensor[t];
        const int frozen = ck_is_frozen(m, x) && !ck_is_feedback(x->name);
        const int needs = frozen                          ? CK_FROZEN_VERSION
                          : x->array[CK_SEEN].npieces > 0 ? CK_SEEN_VERSION
                          : x->parts > 1                  ? CK_PARTS_VERSION
                                                          : CK_VERSION;
        if (needs > version) version = needs;
    }
    return version;
}

char *ck_manifest_print(const ck_manifest *m, size_t *bytes) {
    ck_text t = {NULL, 0, 0, 0};
    const zero_config *c = &m->run;
    ck_text_append(&t,
                   "{\"format\": \"zero-checkpoint\", \"version\": %d,\n  \"step\": %" PRId64 ",\n",
                   ck_manifest_version(m), m->step);
    ck_text_append(&t, "  \"save\": \"%016" PRIx64 "\",\n  \"optimizer\": {\"name\": ", m->save);
    ck_quote(&t, m->optimizer);
    ck_text_append(&t, ", \"arrays\": %d},\n", m->narrays - 1);
    ck_print_counters(&t, &m->counters);
    ck_print_values(&t, m);
    ck_text_append(&t,
                   "  \"run\": {\"stage\": %d, \"ranks\": %d, \"type\": \"%s\", \"no_master\": %d, "
                   "%s%s\"seed\": \"%" PRIu64 "\", \"micro_steps\": %d},\n  \"config\": ",
                   c->stage, m->nranks, ck_types[c->type], c->master == ZERO_MASTER_NONE,
                   c->master == ZERO_MASTER_SPLIT ? "\"master\": \"split\", " : "",
                   c->state_type == ZERO_STATE_8BIT ? "\"state\": \"8bit\", " : "", c->seed,
                   c->micro_steps);
    ck_quote(&t, m->config ? m->config : "");
    ck_text_append(&t, ",\n");
    ck_print_files(&t, m);
    ck_print_tensors(&t, m);
    ck_text_append(&t, "  " CK_SEAL_HEAD);
    if (!t.failed) ck_text_append(&t, "%016" PRIx64 CK_SEAL_TAIL, ck_hash(t.at, t.n));
    if (t.failed) {
        free(t.at);
        return NULL;
    }
    *bytes = t.n;
    return t.at;
}

/* ---- parsing ---- */

static const char *ck_string(const cJSON *o, const char *key) {
    const cJSON *s = cJSON_GetObjectItemCaseSensitive(o, key);
    return cJSON_IsString(s) ? s->valuestring : NULL;
}

/* Reads an integer in [least, most]. Returns 0 if it is anything else. */
static int ck_whole(const cJSON *x, double least, double most, int64_t *out) {
    if (!cJSON_IsNumber(x)) return 0;
    const double d = x->valuedouble;
    if (!(d >= least && d <= most) || d != floor(d)) return 0;
    *out = (int64_t)d;
    return 1;
}
static int ck_key(const cJSON *o, const char *key, double least, double most, int64_t *out) {
    return ck_whole(cJSON_GetObjectItemCaseSensitive(o, key), least, most, out);
}

static int ck_key_hex(const cJSON *o, const char *key, uint64_t *out) {
    const char *s = ck_string(o, key);
    char *end;
    if (s == NULL || strlen(s) != CK_DIGITS || strspn(s, "0123456789abcdef") != CK_DIGITS) return 0;
    *out = strtoull(s, &end, 16);
    return 1;
}

static int ck_word(const cJSON *o, const char *key, const char *const *words, int n) {
    const char *s = ck_string(o, key);
    for (int i = 0; s != NULL && i < n; i++)
        if (strcmp(s, words[i]) == 0) return i;
    return -1;
}

static checkpoint_result ck_bad(ck_error *e, const char *what) {
    return ck_fail(e, CHECKPOINT_DAMAGED, "manifest.json: %s is missing or wrong", what);
}

static checkpoint_result ck_parse_head(ck_manifest *m, const cJSON *root, ck_error *e) {
    const cJSON *o = cJSON_GetObjectItemCaseSensitive(root, "optimizer");
    const char *format = ck_string(root, "format"), *name = ck_string(o, "name");
    const char *config = ck_string(root, "config");
    int64_t arrays;
    if (format == NULL || strcmp(format, "zero-checkpoint") != 0
        || !ck_key(root, "version", 0, CK_MOST, &m->version))
        return ck_bad(e, "format or version");
    if (m->version < CK_VERSION || m->version > CK_FROZEN_VERSION)
        return ck_fail(e, CHECKPOINT_DAMAGED,
                       "manifest.json: version %" PRId64 ", this reads %d to %d", m->version,
                       CK_VERSION, CK_FROZEN_VERSION);
    if (!ck_key(root, "step", 0, CK_MOST, &m->step)) return ck_bad(e, "step");
    if (!ck_key_hex(root, "save", &m->save)) return ck_bad(e, "save");
    if (name == NULL || strlen(name) >= CK_NAME || !ck_key(o, "arrays", 0, CK_ARRAYS - 1, &arrays))
        return ck_bad(e, "optimizer");
    memcpy(m->optimizer, name, strlen(name) + 1);
    m->narrays = (int)arrays + 1;
    if (config == NULL) return ck_bad(e, "config");
    m->config = strdup(config);
    if (m->config == NULL) return ck_fail(e, CHECKPOINT_MEMORY, "no memory for the configuration");
    return CHECKPOINT_OK;
}

static checkpoint_result ck_parse_counters(ck_manifest *m, const cJSON *root, ck_error *e) {
    const cJSON *o = cJSON_GetObjectItemCaseSensitive(root, "counters");
    const cJSON *scale = cJSON_GetObjectItemCaseSensitive(o, "scale");
    zero_counters *c = &m->counters;
    int64_t hysteresis;
    if (!ck_key(o, "steps", 0, CK_MOST, &c->steps) || !ck_key(o, "skipped", 0, CK_MOST, &c->skipped)
        || !ck_key(o, "iteration", 0, CK_MOST, &c->iteration)
        || !ck_key(o, "last_overflow", -1, CK_MOST, &c->last_overflow)
        || !ck_key(o, "hysteresis", 0, 2147483647, &hysteresis) || !cJSON_IsNumber(scale)
        || !(scale->valuedouble >= (double)FLT_TRUE_MIN && scale->valuedouble <= (double)FLT_MAX))
        return ck_bad(e, "counters");
    c->hysteresis = (int)hysteresis;
    c->scale = (float)scale->valuedouble;
    return CHECKPOINT_OK;
}

static checkpoint_result ck_parse_run(ck_manifest *m, const cJSON *root, ck_error *e) {
    const cJSON *o = cJSON_GetObjectItemCaseSensitive(root, "run");
    const int type = ck_word(o, "type", ck_types, ZERO_TYPES);
    const char *seed = ck_string(o, "seed"), *master = ck_string(o, "master"),
               *state = ck_string(o, "state");
    int64_t stage, ranks, no_master, micro_steps;
    if (type < 0 || seed == NULL || !ck_key(o, "stage", 0, 3, &stage)
        || !ck_key(o, "ranks", 1, 1e9, &ranks) || !ck_key(o, "no_master", 0, 1, &no_master)
        || !ck_key(o, "micro_steps", 0, 1e9, &micro_steps))
        return ck_bad(e, "run");
    m->run.type = (zero_type)type;
    m->run.stage = (int)stage;
    m->run.master = no_master                            ? ZERO_MASTER_NONE
                    : master && !strcmp(master, "split") ? ZERO_MASTER_SPLIT
                                                         : ZERO_MASTER_F32;
    m->run.state_type = state && !strcmp(state, "8bit") ? ZERO_STATE_8BIT : ZERO_STATE_F32;
    m->run.micro_steps = (int)micro_steps;
    m->run.seed = strtoull(seed, NULL, 10);
    m->nranks = (int)ranks;
    return CHECKPOINT_OK;
}

static int ck_parse_value(checkpoint_value *v, const cJSON *o) {
    const char *number = ck_string(o, "int"), *real = ck_string(o, "real");
    char *end = NULL;
    memset(v, 0, sizeof *v);
    v->name = ck_string(o, "name");
    v->text = ck_string(o, "text");
    errno = 0;
    if (number != NULL) {
        v->number = strtoll(number, &end, 10);
        v->kind = CHECKPOINT_INT;
    } else if (real != NULL) {
        v->real = strtod(real, &end);
        v->kind = CHECKPOINT_REAL;
    } else {
        v->kind = CHECKPOINT_TEXT;
        return v->name != NULL && v->text != NULL;
    }
    v->text = NULL;
    return v->name != NULL && *end == 0 && end != (number ? number : real)
           && (number == NULL || errno == 0);
}

static checkpoint_result ck_parse_values(ck_manifest *m, const cJSON *root, ck_error *e) {
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(root, "values"), *o;
    if (!cJSON_IsArray(list)) return ck_bad(e, "values");
    const int n = cJSON_GetArraySize(list);
    checkpoint_value *values = (checkpoint_value *)calloc((size_t)n + 1, sizeof *values);
    int i = 0, ok = 1;
    if (values == NULL) return ck_fail(e, CHECKPOINT_MEMORY, "no memory for %d values", n);
    cJSON_ArrayForEach(o, list) ok &= ck_parse_value(&values[i++], o);
    const checkpoint_result r =
        ok ? ck_manifest_set_values(m, values, n, e) : ck_bad(e, "one of the values");
    free(values);
    return r == CHECKPOINT_ARGUMENT ? ck_bad(e, "one of the values") : r;
}

/* Returns 1 for a plain file name, so that it stays in the generation's folder. */
static int ck_plain(const char *name) {
    return name != NULL && *name && *name != '.' && strlen(name) < CK_NAME
           && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_.") == strlen(name);
}

static checkpoint_result ck_parse_files(ck_manifest *m, const cJSON *root, ck_error *e) {
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(root, "files"), *o;
    int64_t block, bytes, image;
    if (!ck_key(root, "block_bytes", CK_BLOCK, CK_BLOCK, &block)) return ck_bad(e, "block_bytes");
    if (!cJSON_IsArray(list)) return ck_bad(e, "files");
    m->file = (ck_file *)calloc((size_t)cJSON_GetArraySize(list) + 1, sizeof *m->file);
    if (m->file == NULL) return ck_fail(e, CHECKPOINT_MEMORY, "no memory for the list of files");
    cJSON_ArrayForEach(o, list) {
        ck_file *f = &m->file[m->nfiles++];
        const char *name = ck_string(o, "name");
        if (!ck_plain(name) || !ck_key(o, "bytes", CK_HEADER, CK_MOST, &bytes)
            || !ck_key(o, "image_bytes", CK_HEADER, CK_MOST, &image) || image % CK_PAGE
            || !ck_key_hex(o, "table", &f->table)
            || (uint64_t)bytes != ck_file_bytes((uint64_t)image))
            return ck_bad(e, "one of the files");
        memcpy(f->name, name, strlen(name) + 1);
        f->image_bytes = (uint64_t)image;
    }
    return CHECKPOINT_OK;
}

static int ck_parse_piece(ck_piece *p, const cJSON *o, const ck_manifest *m, uint64_t size) {
    const cJSON *x[4];
    int64_t v[4];
    if (cJSON_GetArraySize(o) != 4) return 0;
    x[0] = o->child;
    for (int i = 1; i < 4; i++) x[i] = x[i - 1]->next;
    for (int i = 0; i < 4; i++)
        if (!ck_whole(x[i], 0, i ? CK_MOST : (double)m->nfiles - 1, &v[i])) return 0;
    p->file = (int)v[0];
    p->first = (uint64_t)v[1];
    p->count = (uint64_t)v[2];
    p->offset = (uint64_t)v[3];
    const uint64_t image = m->file[p->file].image_bytes;
    return p->count > 0 && p->offset >= CK_HEADER && p->offset <= image && p->offset % size == 0
           && p->count <= (image - p->offset) / size;
}

static checkpoint_result ck_parse_array(const ck_manifest *m, const ck_tensor *t, ck_array *a,
                                        const cJSON *o, const char *kind, ck_error *e) {
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(o, "pieces"), *x;
    const char *said = ck_string(o, "kind");
    const int type = ck_word(o, "type", ck_types, ZERO_TYPES);
    if (said == NULL || strcmp(said, kind) != 0 || type < 0 || !cJSON_IsArray(list))
        return ck_fail(e, CHECKPOINT_DAMAGED, "manifest.json: %s: %s is missing or wrong", t->name,
                       kind);
    a->type = (zero_type)type;
    cJSON_ArrayForEach(x, list) {
        ck_piece p;
        if (!cJSON_IsArray(x) || !ck_parse_piece(&p, x, m, zero_type_bytes(a->type)))
            return ck_fail(e, CHECKPOINT_DAMAGED, "manifest.json: %s: a piece of its %s is wrong",
                           t->name, kind);
        if (ck_array_add(a, &p) == NULL)
            return ck_fail(e, CHECKPOINT_MEMORY, "no memory for the pieces of %s", t->name);
    }
    return ck_array_close(t, a, e);
}

/* Reads how a tensor in parts is stored; without the keys it is whole. Returns 0 on wrong values.
 */
static int ck_parse_slice(ck_tensor *t, const cJSON *o) {
    const cJSON *slice = cJSON_GetObjectItemCaseSensitive(o, "slice");
    const uint64_t total = t->layers * t->numel;
    int64_t row, parts;
    if (slice == NULL) return 1;
    if (!cJSON_IsArray(slice) || cJSON_GetArraySize(slice) != 2
        || !ck_whole(slice->child, 1, (double)total, &row)
        || !ck_whole(slice->child->next, 2, CK_MOST_PARTS, &parts))
        return 0;
    t->row = (uint64_t)row;
    t->parts = (uint64_t)parts;
    return total % t->row == 0 && t->row % t->parts == 0;
}

static checkpoint_result ck_parse_tensor(ck_manifest *m, const cJSON *o, ck_error *e) {
    const cJSON *arrays = cJSON_GetObjectItemCaseSensitive(o, "arrays");
    const char *name = ck_string(o, "name");
    int64_t layers, numel;
    if (name == NULL || !ck_key(o, "layers", 1, CK_MOST, &layers)
        || !ck_key(o, "numel", 1, CK_MOST, &numel) || (double)layers * (double)numel > CK_MOST
        || ck_manifest_find(m, name) >= 0)
        return ck_bad(e, "one of the tensors");
    ck_tensor *t = ck_manifest_tensor(m, name);
    if (t == NULL) return ck_fail(e, CHECKPOINT_MEMORY, "no memory for the tensor %s", name);
    t->layers = (uint64_t)layers;
    t->numel = (uint64_t)numel;
    const char *state = ck_string(o, "state");
    t->f32_state = state != NULL && strcmp(state, "f32") == 0;
    if (!ck_parse_slice(t, o))
        return ck_fail(e, CHECKPOINT_DAMAGED, "manifest.json: %s: its slice is wrong", t->name);
    const cJSON *last = cJSON_GetArrayItem(arrays, cJSON_GetArraySize(arrays) - 1);
    const char *kind = ck_string(last, "kind");
    const int sees = kind != NULL && strcmp(kind, ck_kinds[CK_SEEN]) == 0;
    const int alone = m->narrays < 2 || ck_is_feedback(name) || m->version >= CK_FROZEN_VERSION;
    const int n = cJSON_GetArraySize(arrays) - sees, least = alone ? 1 : 2;
    if (n < least || n > m->narrays) /* a second one may be only for tensors that are no matrices */
        return ck_fail(e, CHECKPOINT_DAMAGED, "manifest.json: %s has %d arrays, expected %d",
                       t->name, n, m->narrays);
    t->narrays = n;
    const cJSON *x = arrays->child;
    for (int k = 0; k < t->narrays; k++, x = x->next)
        CK_TRY(ck_parse_array(m, t, &t->array[k], x, ck_kinds[k], e));
    return sees ? ck_parse_array(m, t, &t->array[CK_SEEN], last, kind, e) : CHECKPOINT_OK;
}

static checkpoint_result ck_parse_tree(ck_manifest *m, const cJSON *root, ck_error *e) {
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(root, "tensors"), *o;
    CK_TRY(ck_parse_head(m, root, e));
    CK_TRY(ck_parse_counters(m, root, e));
    CK_TRY(ck_parse_run(m, root, e));
    CK_TRY(ck_parse_values(m, root, e));
    CK_TRY(ck_parse_files(m, root, e));
    if (!cJSON_IsArray(list)) return ck_bad(e, "tensors");
    cJSON_ArrayForEach(o, list) CK_TRY(ck_parse_tensor(m, o, e));
    return CHECKPOINT_OK;
}

static checkpoint_result ck_manifest_check(const char *text, size_t bytes, ck_error *e) {
    const size_t head = sizeof CK_SEAL_HEAD - 1;
    char digits[CK_DIGITS + 1];
    if (bytes < head + CK_TAIL || memcmp(text + bytes - CK_TAIL - head, CK_SEAL_HEAD, head) != 0
        || memcmp(text + bytes - CK_TAIL + CK_DIGITS, CK_SEAL_TAIL, sizeof CK_SEAL_TAIL - 1) != 0)
        return ck_fail(e, CHECKPOINT_DAMAGED, "manifest.json does not end with its checksum");
    (void)snprintf(digits, sizeof digits, "%016" PRIx64, ck_hash(text, bytes - CK_TAIL));
    if (memcmp(digits, text + bytes - CK_TAIL, CK_DIGITS) != 0)
        return ck_fail(e, CHECKPOINT_DAMAGED, "manifest.json is corrupt: its checksum is wrong");
    return CHECKPOINT_OK;
}

/* The checksum is right, so a parse error means short memory or a foreign writer. */
checkpoint_result ck_manifest_parse(ck_manifest *m, const char *text, size_t bytes, ck_error *e) {
    memset(m, 0, sizeof *m);
    CK_TRY(ck_manifest_check(text, bytes, e));
    cJSON *root = cJSON_ParseWithLength(text, bytes);
    if (root == NULL)
        return ck_fail(e, CHECKPOINT_MEMORY, "manifest.json is no JSON, or there is no memory");
    const checkpoint_result r = ck_parse_tree(m, root, e);
    cJSON_Delete(root);
    return r;
}

checkpoint_result ck_manifest_read(ck_manifest *m, const char *folder, ck_error *e) {
    char path[CK_PATH], *text = NULL;
    size_t bytes = 0;
    CK_TRY(ck_path(path, folder, "manifest.json", e));
    CK_TRY(ck_file_read(path, &text, &bytes, e));
    ck_error why = {CHECKPOINT_OK, 0, ""};
    const checkpoint_result r = ck_manifest_parse(m, text, bytes, &why);
    free(text);
    return r ? ck_fail(e, r, "%.400s/%.220s", folder, why.text) : r;
}

checkpoint_result ck_manifest_write(const ck_manifest *m, const char *folder, const char *name,
                                    ck_error *e) {
    char path[CK_PATH];
    size_t bytes = 0;
    CK_TRY(ck_path(path, folder, name, e));
    char *text = ck_manifest_print(m, &bytes);
    if (text == NULL) return ck_fail(e, CHECKPOINT_MEMORY, "no memory for %s", name);
    const checkpoint_result r = ck_file_write(path, text, bytes, e);
    free(text);
    return r;
}

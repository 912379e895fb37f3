/* ds_config.c - see ds_config.h.

   Four passes: comments become spaces while the lines of keys are noted (ds_text.c); cJSON parses;
   every key finds its row of ds_table.h and is checked against it (walk); what the rows collected
   becomes a ds_config (resolve).
*/
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "ds_inside.h"
#include "ds_table.h"
#include "../system/regular_file.h"

#include <cjson/cJSON.h>
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { DS_UNKNOWN = -1, DS_INSIDE = -2 };

/* One key of the text. Keys are in the order of the text, which is also the order of a walk through
 * cJSON's tree. */
typedef struct ds_entry {
    const cJSON *item;
    const cJSON *object; /* that it is a member of */
    int parent;          /* entry; -1: the file's own object */
    int row;             /* of ds_rows; DS_UNKNOWN; DS_INSIDE: of something free in form */
} ds_entry;

typedef enum ds_state { DS_ABSENT = 0, DS_SET, DS_AUTO } ds_state;

typedef struct ds_reader {
    const char *name;
    char *sentence;
    size_t bytes;
    const ds_auto *autos; /* in the end `shares` */
    ds_auto shares;       /* its ranks are the data-parallel ones */
    const ds_notes *notes;
    ds_config *out;

    ds_text text; /* a copy */
    cJSON *root;
    ds_entry *entry; /* [text.nkeys] */
    int nentries;

    ds_state state[DS_IDS];
    double value[DS_IDS];
    int at[DS_IDS]; /* entry */

    int optimizers; /* DS_FOR_...; 0: no optimizer is given */
    const char *optimizer;
    schedule_kind scheduler;
    double lr, beta1, beta2; /* as the file has them, not rounded to float */
} ds_reader;

/* ---- sentences ----------------------------------------------------------------------------- */

__attribute__((format(printf, 3, 4))) static int ds_fail(ds_reader *r, int line, const char *format,
                                                         ...) {
    char what[640];
    va_list list;
    va_start(list, format);
    (void)vsnprintf(what, sizeof what, format, list);
    va_end(list);
    if (line > 0)
        (void)snprintf(r->sentence, r->bytes, "%s, line %d: %s", r->name, line, what);
    else
        (void)snprintf(r->sentence, r->bytes, "%s: %s", r->name, what);
    return 1;
}

__attribute__((format(printf, 3, 4))) static void ds_note(const ds_reader *r, int line,
                                                          const char *format, ...) {
    char what[640], all[768];
    va_list list;
    if (r->notes == NULL || r->notes->note == NULL) return;
    va_start(list, format);
    (void)vsnprintf(what, sizeof what, format, list);
    va_end(list);
    (void)snprintf(all, sizeof all, "%.96s, line %d: %s", r->name, line, what);
    r->notes->note(r->notes->user, all);
}

/* For keys that DeepSpeed has removed, and that are applied here. */
static void ds_note_removed(const ds_reader *r, int e) {
    const char *path = ds_rows[r->entry[e].row].path, *version = ds_removed_in(path);
    ds_note(r, r->text.line[e], "%s: DeepSpeed removed this key in %s; here it works", path,
            version);
}

/* A word of the file for a sentence: printable and short. */
static void ds_shorten(char out[DS_WORD], const char *text) {
    size_t n = 0;
    for (; n < DS_WORD - 4 && text[n]; n++)
        out[n] = text[n] < 32 || text[n] > 126 ? '?' : text[n]; /* beyond ASCII: may be cut apart */
    if (text[n]) {
        memset(out + n, '.', 3);
        n += 3;
    }
    out[n] = 0;
}

/* The key with its objects, dots between them. */
static void ds_path(const ds_reader *r, int e, char out[DS_PATH]) {
    const ds_entry *x = &r->entry[e];
    char word[DS_WORD];
    if (x->row >= 0) {
        (void)snprintf(out, DS_PATH, "%s", ds_rows[x->row].path);
        return;
    }
    const int known = x->parent >= 0 && r->entry[x->parent].row >= 0;
    ds_shorten(word, x->item->string);
    (void)snprintf(out, DS_PATH, "%.100s%s%s", known ? ds_rows[r->entry[x->parent].row].path : "",
                   known ? "." : "", word);
}

static void ds_found(const cJSON *item, char out[DS_WORD + 8]) {
    char word[DS_WORD];
    if (cJSON_IsString(item)) {
        ds_shorten(word, item->valuestring);
        (void)snprintf(out, DS_WORD + 8, "\"%s\"", word);
    } else if (cJSON_IsNumber(item)) {
        ds_digits(out, DS_WORD, item->valuedouble);
    } else {
        (void)snprintf(out, DS_WORD, "%s",
                       cJSON_IsBool(item)    ? cJSON_IsTrue(item) ? "true" : "false"
                       : cJSON_IsNull(item)  ? "null"
                       : cJSON_IsArray(item) ? "a list"
                                             : "an object");
    }
}

static void ds_expected(const ds_row *row, char out[DS_PATH]) {
    static const char *const kinds[] = {"an object {...}",
                                        "true or false",
                                        "a whole number",
                                        "a number",
                                        "a text in quotes",
                                        "\"fp32\", \"bf16\" or \"fp16\"",
                                        "\"none\", \"cpu\" or \"nvme\"",
                                        "a list of 2 numbers",
                                        "a list",
                                        "another value",
                                        "a number, a text or true or false"};
    char least[48], most[48];
    const char *kind = kinds[row->kind];
    ds_digits(least, sizeof least, row->least);
    ds_digits(most, sizeof most, row->most);
    if (row->least == row->most)
        (void)snprintf(out, DS_PATH, "%s", kind);
    else if (row->most >= (double)FLT_MAX || row->most >= DS_MANY)
        (void)snprintf(out, DS_PATH, "%s, %s", kind,
                       row->least > 0 && row->least < 1 ? "above 0"
                       : row->least == 0                ? "0 or more"
                                                        : "1 or more");
    else if (row->most == DS_BELOW_1)
        (void)snprintf(out, DS_PATH, "%s, from %s to below 1", kind, least);
    else
        (void)snprintf(out, DS_PATH, "%s from %s to %s", kind, least, most);
}

static int ds_wrong(ds_reader *r, int e) {
    char path[DS_PATH], found[DS_WORD + 8], expected[DS_PATH];
    ds_path(r, e, path);
    ds_found(r->entry[e].item, found);
    ds_expected(&ds_rows[r->entry[e].row], expected);
    return ds_fail(r, r->text.line[e], "%s is %s, expected %s", path, found, expected);
}

/* ---- parse ---------------------------------------------------------------------------------- */

static int ds_parse(ds_reader *r) {
    const char *end = NULL;
    r->root = cJSON_ParseWithLengthOpts(r->text.bytes, r->text.length + 1, &end, 1);
    if (r->root != NULL && cJSON_IsObject(r->root)) return 0;
    if (r->root != NULL) return ds_fail(r, 1, "expected an object {...} around all keys");
    int line = 1;
    const char *start = r->text.bytes;
    if (end == NULL || end < r->text.bytes || end > r->text.bytes + r->text.length)
        return ds_fail(r, 0, "no memory to parse it");
    for (const char *c = r->text.bytes; c < end; c++) {
        if (*c != '\n') continue;
        line++;
        start = c + 1;
    }
    return ds_fail(r, line, "column %zu: this is not JSON%s; correct it here",
                   (size_t)(end - start) + 1, *end == 0 ? ": it ends too early" : "");
}

/* ---- index: which row each key has --------------------------------------------------------- */

static int ds_find_row(const char *path) {
    const size_t length = strlen(path);
    for (int i = 0; i < DS_ROWS; i++)
        if (ds_rows[i].length == length && memcmp(ds_rows[i].path, path, length) == 0) return i;
    return DS_UNKNOWN;
}

static int ds_row_of(const ds_reader *r, int parent, const char *key) {
    char path[DS_PATH];
    const int up = parent < 0 ? DS_UNKNOWN : r->entry[parent].row;
    if (parent >= 0 && (up < 0 || ds_rows[up].kind != DS_OBJECT)) return DS_INSIDE;
    if (strlen(key) > DS_WORD || strchr(key, '.') != NULL) return DS_UNKNOWN;
    (void)snprintf(path, sizeof path, "%s%s%s", parent < 0 ? "" : ds_rows[up].path,
                   parent < 0 ? "" : ".", key);
    return ds_find_row(path);
}

/* Recursion is as deep as brackets are nested, which the scan has bounded. */
static void ds_index(ds_reader *r, const cJSON *container, int parent) {
    const cJSON *item = NULL;
    cJSON_ArrayForEach(item, container) {
        int under = parent;
        if (cJSON_IsObject(container)) {
            if (r->nentries == r->text.nkeys) return;
            ds_entry *x = &r->entry[r->nentries];
            x->item = item;
            x->object = container;
            x->parent = parent;
            x->row = ds_row_of(r, parent, item->string);
            under = r->nentries++;
        }
        if (cJSON_IsObject(item) || cJSON_IsArray(item)) ds_index(r, item, under);
    }
}

static int ds_duplicates(ds_reader *r) {
    char path[DS_PATH];
    for (int i = 0; i < r->nentries; i++)
        for (int j = 0; j < i; j++) {
            const ds_entry *a = &r->entry[j], *b = &r->entry[i];
            if (a->object != b->object || strcmp(a->item->string, b->item->string) != 0) continue;
            ds_path(r, i, path);
            return ds_fail(r, r->text.line[i], "%s is given twice, first in line %d; leave one out",
                           path, r->text.line[j]);
        }
    return 0;
}

/* Returns the entry of a row, or -1 if it is absent or null. */
static int ds_entry_of(const ds_reader *r, const char *path) {
    for (int e = 0; e < r->nentries; e++)
        if (r->entry[e].row >= 0 && strcmp(ds_rows[r->entry[e].row].path, path) == 0
            && !cJSON_IsNull(r->entry[e].item))
            return e;
    return -1;
}

/* ---- unknown keys -------------------------------------------------------------------------- */

static int ds_least(int a, int b) { return a < b ? a : b; }

/* Insertions, deletions, replacements and swaps of neighbours that make b of a, at most `most`;
   case is nothing. */
static int ds_distance(const char *a, const char *b, int most) {
    const int n = (int)strlen(a), m = (int)strlen(b);
    int d[DS_WORD + 1][DS_WORD + 1];
    if (n > DS_WORD || m > DS_WORD || abs(n - m) >= most) return most;
    for (int i = 0; i <= n; i++) {
        const int x = i ? tolower((unsigned char)a[i - 1]) : 0;
        int least = i; /* of the first column */
        for (int j = 0; j <= m; j++) {
            d[i][j] = abs(i - j) < most ? i + j : most;
            if (i == 0 || j == 0 || abs(i - j) >= most) continue;
            const int y = tolower((unsigned char)b[j - 1]);
            d[i][j] = ds_least(d[i - 1][j] + 1, d[i][j - 1] + 1);
            d[i][j] = ds_least(d[i][j], d[i - 1][j - 1] + (x != y));
            if (i > 1 && j > 1 && x == tolower((unsigned char)b[j - 2])
                && y == tolower((unsigned char)a[i - 2]))
                d[i][j] = ds_least(d[i][j], d[i - 2][j - 2] + 1);
            least = ds_least(least, d[i][j]);
        }
        if (least >= most) return most; /* no later row has less */
    }
    return d[n][m];
}

/* Returns twice the number of edits between a key and the key of a row, if that is below `best`. A
 * missing end (reduce_bucket) counts less than two edits. An additional end (stage_number) counts
 * as much as the farthest key that is still near. */
static int ds_far(const char *key, const char *row, int farthest, int best) {
    const size_t n = strlen(key), m = strlen(row), both = n < m ? n : m;
    const int edits = 2 * ds_distance(key, row, (best + 1) / 2);
    if (both < 5 || n == m || strncasecmp(key, row, both) != 0) return edits;
    return ds_least(edits, n < m ? 3 : farthest);
}

/* Returns the row nearest to a key, in the object `path`, or if that is NULL in any object. Returns
 * NULL if none is near. */
static const char *ds_nearest(const char *key, const char *path) {
    const size_t length = strlen(key), in = path == NULL ? 0 : strlen(path);
    const int farthest = 2 * (length < 5 ? 1 : length < 9 ? 2 : (int)(length / 3)) + 1;
    int best = farthest + 1;
    const char *found = NULL;
    for (int i = 0; i < DS_ROWS; i++) {
        const char *full = ds_rows[i].path, *dot = strrchr(full, '.');
        const char *leaf = dot == NULL ? full : dot + 1;
        const size_t above = dot == NULL ? 0 : (size_t)(dot - full);
        if (path != NULL && (above != in || strncmp(full, path, in) != 0)) continue;
        const int distance = ds_far(key, strchr(key, '.') == NULL ? leaf : full, farthest, best);
        if (distance >= best) continue;
        best = distance;
        found = full;
    }
    return found;
}

static int ds_unknown(ds_reader *r, int e) {
    const ds_entry *x = &r->entry[e];
    char path[DS_PATH];
    const char *key = x->item->string;
    const char *object = x->parent < 0 ? "" : ds_rows[r->entry[x->parent].row].path;
    const char *near = strchr(key, '.') == NULL ? ds_nearest(key, object) : NULL;
    if (near == NULL) near = ds_nearest(key, NULL);
    ds_path(r, e, path);
    if (near == NULL)
        return ds_fail(r, r->text.line[e], "%s: DeepSpeed has no such key; leave it out", path);
    return ds_fail(r, r->text.line[e], "%s: DeepSpeed has no such key; did you mean %s?", path,
                   near);
}

/* ---- walk: every key against its row ------------------------------------------------------- */

/* "fp32", "torch.bfloat16", ...: -1 for no type that is known here */
static int ds_type_of(const char *word) {
    static const struct {
        const char *word;
        zero_type type;
    } words[] = {{"fp32", ZERO_F32},  {"float32", ZERO_F32},   {"float", ZERO_F32},
                 {"bf16", ZERO_BF16}, {"bfloat16", ZERO_BF16}, {"fp16", ZERO_F16},
                 {"half", ZERO_F16},  {"float16", ZERO_F16}};
    if (strncmp(word, "torch.", 6) == 0) word += 6;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcasecmp(words[i].word, word) == 0) return (int)words[i].type;
    return -1;
}

/* Returns the tier of "none", "cpu" or "nvme", or -1. */
static int ds_device_of(const char *word) {
    for (int tier = ZERO_DEVICE; tier < ZERO_TIERS; tier++)
        if (strcasecmp(ds_device_name((zero_tier)tier), word) == 0) return tier;
    return -1;
}

static int ds_is_auto(const cJSON *item) {
    return cJSON_IsString(item) && strcmp(item->valuestring, "auto") == 0;
}

/* In the row's range; a row without one allows every finite number. */
static int ds_in_range(const ds_row *row, const cJSON *item) {
    const double x = item->valuedouble;
    if (!cJSON_IsNumber(item) || !isfinite(x)) return 0;
    if (row->kind == DS_WHOLE && (floor(x) != x || fabs(x) > DS_MANY)) return 0;
    return row->least == row->most || (x >= row->least && x <= row->most);
}

static int ds_pair_fits(const ds_row *row, const cJSON *item) {
    if (!cJSON_IsArray(item) || cJSON_GetArraySize(item) != 2) return 0;
    return ds_in_range(row, item->child) && ds_in_range(row, item->child->next);
}

static int ds_fits(const ds_row *row, const cJSON *item) {
    switch (row->kind) {
    case DS_OBJECT: return cJSON_IsObject(item);
    case DS_BOOL: return cJSON_IsBool(item);
    case DS_WHOLE:
    case DS_REAL: return ds_in_range(row, item);
    case DS_TEXT: return cJSON_IsString(item);
    case DS_TYPE: return cJSON_IsString(item) && ds_type_of(item->valuestring) >= 0;
    case DS_DEVICE: return cJSON_IsString(item) && ds_device_of(item->valuestring) >= 0;
    case DS_PAIR: return ds_pair_fits(row, item);
    case DS_LIST: return cJSON_IsArray(item);
    case DS_ANY:
    case DS_SCHEDULE:
    default: return 1;
    }
}

/* Returns 1 if the value of an unsupported key switches its feature off. */
static int ds_is_off(const ds_row *row, const cJSON *item) {
    if (row->kind == DS_OBJECT) return cJSON_IsFalse(item);
    if (ds_is_auto(item)) return 1;
    if (cJSON_IsBool(item))
        return strcmp(row->off, "true") == 0 ? cJSON_IsTrue(item) : cJSON_IsFalse(item);
    if (cJSON_IsNumber(item))
        return row->off[0] != 0 && strcmp(row->off, "{}") != 0
               && item->valuedouble == strtod(row->off, NULL);
    if (cJSON_IsString(item))
        return row->off[0] != 0 && strcasecmp(row->off, item->valuestring) == 0;
    if (!cJSON_IsObject(item)) return 0;
    if (item->child == NULL) return strcmp(row->off, "{}") == 0;
    return cJSON_IsFalse(cJSON_GetObjectItemCaseSensitive(item, "enabled"));
}

static int ds_walk_refused(ds_reader *r, int e) {
    const ds_row *row = &ds_rows[r->entry[e].row];
    const cJSON *item = r->entry[e].item;
    char found[DS_WORD + 8];
    if (ds_is_off(row, item)) return 0;
    if (row->kind != DS_OBJECT && !ds_fits(row, item)) return ds_wrong(r, e);
    ds_found(item, found);
    const char *removed = ds_removed_in(row->path);
    return ds_fail(r, r->text.line[e], "%s is %s, which is not supported%s%s%s: %s", row->path,
                   found, removed ? " (nor by DeepSpeed " : "", removed ? removed : "",
                   removed ? " and newer)" : "", row->text);
}

/* An id that two names have (bf16 and bfloat16, with and without stage3_) is set by one. */
static int ds_walk_set(ds_reader *r, int e, ds_id id, ds_state state, double value) {
    char path[DS_PATH];
    if (r->state[id] != DS_ABSENT && r->at[id] != e) {
        ds_path(r, e, path);
        return ds_fail(r, r->text.line[e], "%s is the same key as %s in line %d; leave one out",
                       path, ds_rows[r->entry[r->at[id]].row].path, r->text.line[r->at[id]]);
    }
    r->state[id] = state;
    r->value[id] = value;
    r->at[id] = e;
    return 0;
}

static int ds_walk_applied(ds_reader *r, int e) {
    const ds_row *row = &ds_rows[r->entry[e].row];
    const cJSON *item = r->entry[e].item;
    if (row->id == DS_NONE || row->id == DS_OPTIMIZER || row->id == DS_SCHEDULER)
        return 0; /* looked at before, or with the schedule */
    if (!(row->optimizers & (r->optimizers ? r->optimizers : DS_FOR_ALL)))
        return ds_fail(r, r->text.line[e], "%s is no parameter of %s; leave it out", row->path,
                       r->optimizer);
    if (ds_is_auto(item))
        return ds_walk_set(r, e, row->id, DS_AUTO, 0)
               || (row->kind == DS_PAIR && ds_walk_set(r, e, (ds_id)(row->id + 1), DS_AUTO, 0));
    if (!ds_fits(row, item)) return ds_wrong(r, e);
    if (row->kind == DS_PAIR)
        return ds_walk_set(r, e, row->id, DS_SET, item->child->valuedouble)
               || ds_walk_set(r, e, (ds_id)(row->id + 1), DS_SET, item->child->next->valuedouble);
    return ds_walk_set(r, e, row->id, DS_SET,
                       row->kind == DS_BOOL     ? cJSON_IsTrue(item)
                       : row->kind == DS_TYPE   ? ds_type_of(item->valuestring)
                       : row->kind == DS_DEVICE ? ds_device_of(item->valuestring)
                                                : item->valuedouble);
}

/* "zero_optimization": true means stage 1. This is the oldest form. */
static int ds_walk_section(ds_reader *r, int e) {
    const ds_row *row = &ds_rows[r->entry[e].row];
    const cJSON *item = r->entry[e].item;
    if (cJSON_IsObject(item)) return 0;
    if (strcmp(row->path, "zero_optimization") != 0 || !cJSON_IsBool(item)) return ds_wrong(r, e);
    return ds_walk_set(r, e, DS_STAGE, DS_SET, cJSON_IsTrue(item));
}

static int ds_walk(ds_reader *r, int e) {
    const ds_entry *x = &r->entry[e];
    if (x->row == DS_INSIDE) return 0;
    if (x->row == DS_UNKNOWN) return ds_unknown(r, e);
    if (cJSON_IsNull(x->item)) return 0;
    const ds_row *row = &ds_rows[x->row];
    switch (row->class) {
    case DS_SECTION: return ds_walk_section(r, e);
    case DS_APPLIED: return ds_walk_applied(r, e);
    case DS_REFUSED: return ds_walk_refused(r, e);
    case DS_IGNORED:
    case DS_CLASSES:
    default: break;
    }
    if (!ds_is_auto(x->item) && !ds_fits(row, x->item)) return ds_wrong(r, e);
    ds_note(r, r->text.line[e], "%s has no effect: %s", row->path, row->text);
    return 0;
}

/* ---- resolve: what the values mean together ------------------------------------------------ */

static double ds_get(const ds_reader *r, ds_id id, double otherwise) {
    return r->state[id] == DS_SET ? r->value[id] : otherwise;
}

static int ds_line_of(const ds_reader *r, ds_id id) { return r->text.line[r->at[id]]; }

static const char *ds_row_name(const ds_reader *r, ds_id id) {
    return ds_rows[r->entry[r->at[id]].row].path;
}

/* ---- kinds of ranks ------------------------------------------------------------------------ */

/* A number of ranks of a kind: the file's; 0 there, as an absent one, is the flag's. */
static int ds_resolve_kind(ds_reader *r, ds_id id, int flag, uint64_t given) {
    const int said = (int)ds_get(r, id, 0);
    if (said) r->out->given |= given;
    return said ? said : flag > 0 ? flag : 1;
}

/* Sets the number of data-parallel ranks that share experts. */
static int ds_resolve_experts(ds_reader *r) {
    ds_config *o = r->out;
    const int on = ds_get(r, DS_EXPERTS, 0) != 0;
    static const ds_id idle[2] = {DS_EXPERT_GROUP, DS_EXPERTS_ASKED};
    if (r->state[DS_EXPERTS_APART] == DS_SET) {
        o->experts_apart = r->value[DS_EXPERTS_APART] != 0;
        o->given |= DS_GIVEN_EXPERTS_APART;
    }
    for (int i = 0; i < 2 && !on; i++)
        if (r->state[idle[i]] == DS_SET)
            ds_note(r, ds_line_of(r, idle[i]), "%s has no effect: expert_parallel is not enabled",
                    ds_row_name(r, idle[i]));
    if (!on) return 0;
    if (r->state[DS_EXPERTS_ASKED] == DS_SET) {
        o->experts_asked = (int)r->value[DS_EXPERTS_ASKED];
        o->given |= DS_GIVEN_EXPERTS_ASKED;
        if (o->experts_asked > 2)
            return ds_fail(r, ds_line_of(r, DS_EXPERTS_ASKED),
                           "%s is %d, expected 1 or 2, the number of experts per token",
                           ds_row_name(r, DS_EXPERTS_ASKED), o->experts_asked);
    }
    if (r->state[DS_EXPERT_GROUP] != DS_SET) return 0;
    o->expert_group = (int)r->value[DS_EXPERT_GROUP];
    o->given |= DS_GIVEN_EXPERT_GROUP;
    if (r->autos->ranks % o->expert_group)
        return ds_fail(r, ds_line_of(r, DS_EXPERT_GROUP),
                       "%s is %d, which does not divide %d data-parallel ranks; use a divisor",
                       ds_row_name(r, DS_EXPERT_GROUP), o->expert_group, r->autos->ranks);
    return 0;
}

/* Batches are of the data-parallel ranks, which are known from here on. */
static int ds_resolve_parallel(ds_reader *r) {
    ds_config *o = r->out;
    ds_auto *a = &r->shares;
    *a = *r->autos;
    r->autos = a;
    o->tensor_parallel =
        ds_resolve_kind(r, DS_TENSOR_RANKS, a->tensor_parallel, DS_GIVEN_TENSOR_RANKS);
    o->pipeline = ds_resolve_kind(r, DS_STAGES, a->pipeline, DS_GIVEN_PIPELINE);
    o->context_parallel =
        ds_resolve_kind(r, DS_CONTEXT_RANKS, a->context_parallel, DS_GIVEN_CONTEXT_RANKS);
    const int parts = o->tensor_parallel * o->pipeline, each = parts * o->context_parallel;
    if (a->ranks % parts == 0 && a->ranks % each)
        return ds_fail(r, r->state[DS_CONTEXT_RANKS] ? ds_line_of(r, DS_CONTEXT_RANKS) : 0,
                       "%d ranks cannot be divided into groups of %d that share sequences "
                       "(sequence_parallel_size); change one of them",
                       a->ranks / parts, o->context_parallel);
    if (a->ranks % each)
        return ds_fail(r,
                       r->state[DS_STAGES]         ? ds_line_of(r, DS_STAGES)
                       : r->state[DS_TENSOR_RANKS] ? ds_line_of(r, DS_TENSOR_RANKS)
                                                   : 0,
                       "%d ranks cannot be divided into %d stages of %d tensor-parallel ranks; "
                       "change one of them",
                       a->ranks, o->pipeline, o->tensor_parallel);
    a->ranks /= each;
    const int other =
        (o->given & (DS_GIVEN_TENSOR_RANKS | DS_GIVEN_PIPELINE | DS_GIVEN_CONTEXT_RANKS)) != 0;
    if (other && a->accumulation && a->micro_batch)
        a->accumulation = (int)(a->train_batch / a->micro_batch / a->ranks);
    if (ds_resolve_experts(r)) return 1;
    if (ds_get(r, DS_CPU_CHECKPOINTING, 0) != 0) o->recompute = 4;
    if (r->state[DS_PARTITION] != DS_SET) return 0;
    if (o->tensor_parallel > 1) {
        o->sequence_parallel = r->value[DS_PARTITION] != 0;
        o->given |= DS_GIVEN_SEQUENCE;
    } else if (r->value[DS_PARTITION] != 0) {
        ds_note(r, ds_line_of(r, DS_PARTITION),
                "%s has no effect: it divides activations among tensor-parallel ranks, and there "
                "is only one",
                ds_row_name(r, DS_PARTITION));
    }
    return 0;
}

/* ---- batches, types ------------------------------------------------------------------------ */

/* "(line 3)" for a value of the file, "(solved)" for one that follows from others */
static const char *ds_source(const ds_reader *r, ds_id id, char out[32]) {
    if (r->state[id] == DS_SET)
        (void)snprintf(out, 32, "(line %d)", ds_line_of(r, id));
    else
        (void)snprintf(out, 32, r->state[id] == DS_AUTO ? "(auto)" : "(solved)");
    return out;
}

/* Computes the numbers that are not given (0), by DeepSpeed's rules. */
static void ds_solve(int64_t *train, int64_t *micro, int64_t *steps, int64_t ranks) {
    if (*train && *micro) {
        if (!*steps) *steps = *train / *micro / ranks;
        return;
    }
    if (!*steps) *steps = 1;
    if (*train)
        *micro = *train / ranks / *steps;
    else if ((double)*micro * (double)*steps * (double)ranks <= INT_MAX)
        *train = *micro * *steps * ranks;
}

static int ds_resolve_batch(ds_reader *r) {
    const ds_auto *a = r->autos;
    const ds_state micro_state = r->state[DS_MICRO_BATCH];
    /* "auto" with two numbers is their product. The trainer reports a flag with another
     * value. */
    const int follows = r->state[DS_TRAIN_BATCH] == DS_AUTO && micro_state == DS_SET
                        && r->state[DS_ACCUMULATION] == DS_SET;
    const int known = r->state[DS_TRAIN_BATCH] && !follows;
    int64_t train = (int64_t)ds_get(r, DS_TRAIN_BATCH, known ? (double)a->train_batch : 0);
    int64_t micro = (int64_t)ds_get(r, DS_MICRO_BATCH, micro_state ? a->micro_batch : 0);
    int64_t steps =
        (int64_t)ds_get(r, DS_ACCUMULATION, r->state[DS_ACCUMULATION] ? a->accumulation : 0);
    if (train == 0 && micro == 0 && micro_state) train = a->train_batch;
    if (train == 0 && micro == 0)
        return ds_fail(r, micro_state ? ds_line_of(r, DS_MICRO_BATCH) : 0,
                       "train_micro_batch_size_per_gpu is %s, expected a number there or in "
                       "train_batch_size",
                       micro_state ? "\"auto\", which the trainer has no value for" : "missing");
    ds_solve(&train, &micro, &steps, a->ranks);
    const double product = (double)micro * (double)steps * (double)a->ranks;
    if ((double)train != product || product < 1 || product > INT_MAX) {
        char s[3][32];
        return ds_fail(r, r->state[DS_TRAIN_BATCH] ? ds_line_of(r, DS_TRAIN_BATCH) : 0,
                       "train_batch_size %lld %s is not train_micro_batch_size_per_gpu %lld %s x "
                       "gradient_accumulation_steps %lld %s x %d ranks = %.0f; change one of them",
                       (long long)train, ds_source(r, DS_TRAIN_BATCH, s[0]), (long long)micro,
                       ds_source(r, DS_MICRO_BATCH, s[1]), (long long)steps,
                       ds_source(r, DS_ACCUMULATION, s[2]), a->ranks, product);
    }
    r->out->train_batch = train;
    r->out->micro_batch = (int)micro;
    r->out->accumulation = r->out->zero.micro_steps = (int)steps;
    return 0;
}

static int ds_resolve_type(ds_reader *r) {
    const int fp16 = ds_get(r, DS_FP16, r->state[DS_FP16] && r->autos->type == ZERO_F16) != 0;
    const int bf16 = ds_get(r, DS_BF16, r->state[DS_BF16] && r->autos->type == ZERO_BF16) != 0;
    const char *bf16_path =
        r->state[DS_BF16] ? ds_rows[r->entry[r->at[DS_BF16]].row].path : "bf16.enabled";
    if (fp16 && bf16)
        return ds_fail(r, ds_line_of(r, DS_FP16),
                       "fp16.enabled and %s (line %d) are both true: use one of them", bf16_path,
                       ds_line_of(r, DS_BF16));
    r->out->zero.type = fp16 ? ZERO_F16 : bf16 ? ZERO_BF16 : ZERO_F32;
    if (r->state[DS_FP16] || r->state[DS_BF16]) r->out->given |= DS_GIVEN_TYPE;
    if (r->state[DS_PARAM_TYPE] == DS_SET && r->value[DS_PARAM_TYPE] != (double)r->out->zero.type)
        return ds_fail(r, ds_line_of(r, DS_PARAM_TYPE),
                       "data_types.param_dtype is %s, but fp16.enabled and bf16.enabled make "
                       "parameters %s: leave it out",
                       ds_type_name((zero_type)(int)r->value[DS_PARAM_TYPE]),
                       ds_type_name(r->out->zero.type));
    if (r->out->zero.type != ZERO_BF16) {
        const ds_id without[2] = {DS_NO_MASTER, DS_BF16_STATE};
        for (int i = 0; i < 2; i++)
            if (ds_get(r, without[i], 0) != 0)
                ds_note(r, ds_line_of(r, without[i]), "%s has no effect without bf16.enabled",
                        i ? "bf16_optimizer_states" : "bf16_master_weights_and_grads");
        return 0;
    }
    r->out->zero.no_overflow_check = ds_get(r, DS_CHECK_OVERFLOW, 1) == 0;
    if (ds_get(r, DS_NO_MASTER, 0) != 0) {
        r->out->zero.master = ZERO_MASTER_NONE;
        ds_note(r, ds_line_of(r, DS_NO_MASTER),
                "bf16_master_weights_and_grads: updates are rounded stochastically here, to "
                "nearest in DeepSpeed");
    }
    if (ds_get(r, DS_BF16_STATE, 0) != 0) {
        r->out->zero.state_type = ZERO_STATE_BF16;
        ds_note(r, ds_line_of(r, DS_BF16_STATE),
                "bf16_optimizer_states: moments are rounded stochastically here, to nearest in "
                "DeepSpeed");
    }
    return 0;
}

/* A value that is not 0 must not become 0 as a float, where 0 would mean "off". */
static int ds_float(ds_reader *r, ds_id id, double value, float *out) {
    *out = (float)value;
    if (value == 0 || *out >= FLT_MIN) return 0;
    return ds_wrong(r, r->at[id]);
}

/* Reads the settings of the loss scale, which apply to fp16 only. */
static int ds_resolve_scaler(ds_reader *r) {
    zero_scaler *s = &r->out->zero.scaler;
    if (r->out->zero.type != ZERO_F16) return 0;
    if (ds_float(r, DS_LOSS_SCALE, ds_get(r, DS_LOSS_SCALE, 0), &s->fixed)) return 1;
    if (s->fixed != 0) return 0;
    if (r->state[DS_SCALE_POWER] == DS_SET)
        s->initial = (float)ldexp(1.0, (int)r->value[DS_SCALE_POWER]);
    s->minimum = (float)ds_get(r, DS_MIN_SCALE, 0);
    s->window = (int)ds_get(r, DS_SCALE_WINDOW, 0);
    s->hysteresis = (int)ds_get(r, DS_HYSTERESIS, 0);
    s->consecutive_hysteresis = ds_get(r, DS_CONSECUTIVE, 0) != 0;
    const float initial = s->initial == 0 ? 65536 : s->initial;
    if (s->minimum <= initial) return 0;
    return ds_fail(r, ds_line_of(r, DS_MIN_SCALE),
                   "fp16.min_loss_scale is %.0f, expected at most the first scale, 2 to the power "
                   "of fp16.initial_scale_power: %.0f",
                   (double)s->minimum, (double)initial);
}

/* Gradients are sent as they are kept, so both keys mean one thing; f32 wins. */
static int ds_resolve_grads(ds_reader *r) {
    static const ds_id ids[] = {DS_ACCUM_TYPE, DS_COMM_TYPE};
    zero_grad_type *grads = &r->out->zero.grads;
    int f32 = 0, as_type = 0;
    for (int i = 0; i < 2; i++) {
        if (r->state[ids[i]] != DS_SET) continue;
        const zero_type type = (zero_type)(int)r->value[ids[i]];
        if (type != ZERO_F32 && type != r->out->zero.type)
            return ds_fail(r, ds_line_of(r, ids[i]),
                           "%s is %s with parameters in %s, which is not supported: use \"fp32\" "
                           "or leave it out",
                           ds_rows[r->entry[r->at[ids[i]]].row].path, ds_type_name(type),
                           ds_type_name(r->out->zero.type));
        if (type == ZERO_F32)
            f32 = 1;
        else
            as_type = 1;
    }
    *grads = f32 ? ZERO_GRAD_F32 : as_type ? ZERO_GRAD_AS_TYPE : ZERO_GRAD_AUTO;
    if (f32 && as_type)
        ds_note(r, ds_line_of(r, DS_COMM_TYPE),
                "gradients are sent in the type they accumulate in, so both are fp32");
    return 0;
}

/* A size that "auto" makes of the model's width: written if there is a value. */
static int ds_size(const ds_reader *r, ds_id id, double automatic, int64_t *out) {
    if (r->state[id] == DS_ABSENT) return 0;
    if (r->state[id] == DS_AUTO && (r->autos->hidden <= 0 || automatic > DS_MANY)) return 0;
    *out = (int64_t)ds_get(r, id, automatic);
    return 1;
}

static void ds_resolve_zero(ds_reader *r) {
    ds_config *o = r->out;
    const double h = (double)r->autos->hidden;
    int64_t persistence = 0;
    o->zero.stage = (int)ds_get(r, DS_STAGE, 0);
    if (r->state[DS_STAGE] == DS_SET) o->given |= DS_GIVEN_STAGE; /* "auto": that of the flag */
    if (r->state[DS_OVERLAP] == DS_SET) {
        o->zero.no_overlap = r->value[DS_OVERLAP] == 0;
        o->given |= DS_GIVEN_OVERLAP;
    }
    if (ds_size(r, DS_PREFETCH, 0.9 * h * h, &o->prefetch_numel)) o->given |= DS_GIVEN_PREFETCH;
    if (ds_size(r, DS_PERSISTENCE, 10 * h, &persistence)) {
        o->zero.persistence_numel = persistence == 0 ? ZERO_NONE : persistence;
        o->given |= DS_GIVEN_PERSISTENCE;
    }
    const int shard = (int)ds_get(r, DS_SHARD_RANKS, 0),
              second = (int)ds_get(r, DS_SECOND_RANKS, 0);
    if (shard > 0) { /* -1: all */
        o->zero.shard_ranks = shard;
        o->given |= DS_GIVEN_SHARD_RANKS;
        ds_note_removed(r, r->at[DS_SHARD_RANKS]);
    }
    if (second > 1) o->zero.second_ranks = second; /* 1: none */
    if (second > 1) o->given |= DS_GIVEN_SECOND_RANKS;
    o->steps_per_print = (int)ds_get(r, DS_STEPS_PER_PRINT, 0);
    if (o->steps_per_print) o->given |= DS_GIVEN_STEPS_PER_PRINT;
}

/* ---- offload ------------------------------------------------------------------------------- */

/* All devices have the same nvme_path, because a rank has one file in one folder. */
static int ds_resolve_folder(ds_reader *r, ds_id id, ds_id device, zero_tier tier) {
    const int given = r->state[id] == DS_SET;
    const char *path = given ? r->entry[r->at[id]].item->valuestring : "";
    if (tier != ZERO_FILE) {
        if (given)
            ds_note(r, ds_line_of(r, id), "%s has no effect: no state is in a file",
                    ds_row_name(r, id));
        return 0;
    }
    if (!path[0])
        return r->autos->folder != NULL
                   ? 0
                   : ds_fail(r, ds_line_of(r, device),
                             "%s is \"nvme\" without nvme_path: expected a folder there, or in the "
                             "flag -zfd",
                             ds_row_name(r, device));
    if (strlen(path) >= sizeof r->out->folder)
        return ds_fail(r, ds_line_of(r, id), "%s has %zu characters, expected at most %zu",
                       ds_row_name(r, id), strlen(path), sizeof r->out->folder - 1);
    if (r->out->folder[0] && strcmp(r->out->folder, path) != 0)
        return ds_fail(r, ds_line_of(r, id),
                       "%s differs from the folder of offload_optimizer (line %d): a rank has one "
                       "file for both; give the same folder",
                       ds_row_name(r, id), ds_line_of(r, DS_OPTIMIZER_FOLDER));
    (void)snprintf(r->out->folder, sizeof r->out->folder, "%s", path);
    return 0;
}

/* The part of the optimizer's state that is offloaded; here it is that of parameters as well. */
static void ds_resolve_share(ds_reader *r) {
    zero_config *z = &r->out->zero;
    const double share = ds_get(r, DS_OPTIMIZER_RATIO, 1);
    if (r->state[DS_OPTIMIZER_RATIO] != DS_SET) return;
    if (!z->optimizer_tier) {
        ds_note(r, ds_line_of(r, DS_OPTIMIZER_RATIO),
                "%s has no effect: it applies if device is \"cpu\" or \"nvme\"",
                ds_row_name(r, DS_OPTIMIZER_RATIO));
        return;
    }
    if ((float)share == 0) {
        z->optimizer_tier = ZERO_DEVICE;
        return;
    }
    z->offload_share = (float)share;
    r->out->given |= DS_GIVEN_SHARE;
    if (share < 1 && z->parameter_tier)
        ds_note(r, ds_line_of(r, DS_OPTIMIZER_RATIO),
                "%s %g is also the share of the parameters that are offloaded",
                ds_row_name(r, DS_OPTIMIZER_RATIO), share);
}

static int ds_resolve_offload(ds_reader *r) {
    zero_config *z = &r->out->zero;
    z->optimizer_tier = (zero_tier)(int)ds_get(r, DS_OPTIMIZER_DEVICE, ZERO_DEVICE);
    z->parameter_tier = (zero_tier)(int)ds_get(r, DS_PARAM_DEVICE, ZERO_DEVICE);
    if (r->state[DS_OPTIMIZER_DEVICE] == DS_SET) r->out->given |= DS_GIVEN_OPTIMIZER_TIER;
    if (r->state[DS_PARAM_DEVICE] == DS_SET) r->out->given |= DS_GIVEN_PARAMETER_TIER;
    if (z->parameter_tier && (r->out->given & DS_GIVEN_STAGE) && z->stage < 3)
        return ds_fail(r, ds_line_of(r, DS_PARAM_DEVICE),
                       "%s is \"%s\" at stage %d, where parameters are not sharded: use stage 3, "
                       "or leave it out",
                       ds_row_name(r, DS_PARAM_DEVICE), ds_device_name(z->parameter_tier),
                       z->stage);
    if (z->optimizer_tier && (r->out->given & DS_GIVEN_STAGE) && z->stage == 0)
        ds_note(r, ds_line_of(r, DS_OPTIMIZER_DEVICE),
                "%s is for stages 1 to 3 in DeepSpeed; here it is applied at stage 0, too",
                ds_row_name(r, DS_OPTIMIZER_DEVICE));
    ds_resolve_share(r);
    return ds_resolve_folder(r, DS_OPTIMIZER_FOLDER, DS_OPTIMIZER_DEVICE, z->optimizer_tier)
           || ds_resolve_folder(r, DS_PARAM_FOLDER, DS_PARAM_DEVICE, z->parameter_tier);
}

/* ---- quantized communication --------------------------------------------------------------- */

/* DeepSpeed's are 8 bits for weights, and 4 for gradients. */
static int ds_resolve_packed(ds_reader *r) {
    zero_config *z = &r->out->zero;
    const int staged = (r->out->given & DS_GIVEN_STAGE) != 0;
    const int loco = ds_entry_of(r, "zero_optimization.zeropp_loco_param");
    const int fed = loco >= 0 && cJSON_IsObject(r->entry[loco].item);
    z->weight_bits = ds_get(r, DS_QUANTIZED_WEIGHTS, 0) != 0 ? 8 : 0;
    z->frozen_weight_bits = ds_get(r, DS_QUANTIZED_FROZEN, 0) != 0 ? 8 : 0;
    if (z->frozen_weight_bits && r->autos->none_frozen) {
        z->frozen_weight_bits = 0;
        ds_note(r, ds_line_of(r, DS_QUANTIZED_FROZEN),
                "zero_quantized_nontrainable_weights has no effect: no tensor is frozen");
    }
    z->gradient_bits = ds_get(r, DS_QUANTIZED_GRADIENTS, 0) != 0 ? 4 : 0;
    if (r->state[DS_QUANTIZED_WEIGHTS] == DS_SET) r->out->given |= DS_GIVEN_WEIGHT_BITS;
    if (r->state[DS_QUANTIZED_FROZEN] == DS_SET) r->out->given |= DS_GIVEN_FROZEN_BITS;
    if (r->state[DS_QUANTIZED_GRADIENTS] == DS_SET) r->out->given |= DS_GIVEN_GRADIENT_BITS;
    const int gathered = z->weight_bits ? DS_QUANTIZED_WEIGHTS : DS_QUANTIZED_FROZEN;
    if ((z->weight_bits || z->frozen_weight_bits) && staged && z->stage < 3)
        return ds_fail(r, ds_line_of(r, gathered),
                       "%s is true at stage %d, where no rank has exact shards of the parameters: "
                       "use stage 3, or false",
                       ds_row_name(r, gathered), z->stage);
    if (z->gradient_bits && staged && z->stage < 1)
        return ds_fail(
            r, ds_line_of(r, DS_QUANTIZED_GRADIENTS),
            "%s is true at stage 0, where gradients are not sharded: use stage 1 to 3, or false",
            ds_row_name(r, DS_QUANTIZED_GRADIENTS));
    if (!fed) return 0;
    if (!z->gradient_bits) {
        ds_note(r, r->text.line[loco],
                "zero_optimization.zeropp_loco_param has no effect: it is for "
                "zero_quantized_gradients");
        return 0;
    }
    z->feedback = (float)ds_get(r, DS_LOCO_BETA, 0.8);
    z->feedback_reset = z->feedback > 0 ? (int)ds_get(r, DS_LOCO_RESET, 1024) : 0;
    r->out->given |= DS_GIVEN_FEEDBACK;
    ds_note_removed(r, loco);
    return 0;
}

/* ---- what a run shows of itself ------------------------------------------------------------ */

/* output_path/job_name, if the monitor is enabled: id, and the next two values. DeepSpeed's
   own folder, without an output_path, is in the user's home; here it is where the run is. */
static int ds_resolve_monitor(ds_reader *r, ds_id id, const char *normal, char *out) {
    const char *text[2] = {normal, "DeepSpeedJobName"};
    const int on = ds_get(r, id, 0) != 0;
    for (int i = 0; i < 2; i++) {
        const ds_id part = (ds_id)((int)id + 1 + i);
        const int given = r->state[part] == DS_SET;
        const char *said = given ? r->entry[r->at[part]].item->valuestring : "";
        if (said[0]) text[i] = said;
        if (given && !on)
            ds_note(r, ds_line_of(r, part), "%s has no effect: its feature is not enabled",
                    ds_row_name(r, part));
    }
    if (!on) return 0;
    if (text[1][strlen(text[1]) - 1] == '/')
        return ds_fail(r, ds_line_of(r, (ds_id)((int)id + 2)), "%s is \"%.64s\", expected a name",
                       ds_row_name(r, (ds_id)((int)id + 2)), text[1]);
    const size_t length = strlen(text[0]);
    const char *between = length > 0 && text[0][length - 1] == '/' ? "" : "/";
    if (snprintf(out, DS_CONFIG_FOLDER, "%s%s%s", text[0], between, text[1]) < DS_CONFIG_FOLDER)
        return 0;
    return ds_fail(r, ds_line_of(r, id),
                   "%s: output_path and job_name have %zu characters, expected at most %d",
                   ds_row_name(r, id), length + strlen(text[1]), DS_CONFIG_FOLDER - 2);
}

static int ds_resolve_shown(ds_reader *r) {
    ds_config *o = r->out;
    const int prints = o->steps_per_print ? o->steps_per_print : 10; /* DeepSpeed's default */
    o->breakdown = ds_get(r, DS_BREAKDOWN, 0) != 0 ? prints : 0;
    o->comms_log = ds_get(r, DS_COMMS_LOG, 0) != 0;
    if (ds_get(r, DS_PROFILE, 0) != 0) o->profile_step = (int)ds_get(r, DS_PROFILE_STEP, 1);
    if (r->state[DS_PROFILE_STEP] == DS_SET && !o->profile_step)
        ds_note(r, ds_line_of(r, DS_PROFILE_STEP), "%s has no effect: its feature is not enabled",
                ds_row_name(r, DS_PROFILE_STEP));
    if (o->breakdown) o->given |= DS_GIVEN_BREAKDOWN;
    if (o->comms_log) o->given |= DS_GIVEN_COMMS;
    if (o->profile_step) o->given |= DS_GIVEN_PROFILE;
    return ds_resolve_monitor(r, DS_TENSORBOARD, "tensorboard", o->tensorboard)
           || ds_resolve_monitor(r, DS_CSV, "csv_monitor", o->csv_monitor);
}

/* ---- optimizer ----------------------------------------------------------------------------- */

/* Its params are checked against it, so this comes before the walk. */
static int ds_pick_optimizer(ds_reader *r) {
    static const struct {
        const char *name;
        int optimizers;
    } known[] = {{"AdamW", DS_FOR_ADAM}, {"Adam", DS_FOR_ADAM},       {"SGD", DS_FOR_SGD},
                 {"Lion", DS_FOR_LION},  {"Adagrad", DS_FOR_ADAGRAD}, {"Lamb", DS_FOR_LAMB},
                 {"Muon", DS_FOR_MUON}};
    const int e = ds_entry_of(r, "optimizer.type"), params = ds_entry_of(r, "optimizer.params");
    char word[DS_WORD];
    if (e < 0)
        return params < 0
                   ? 0
                   : ds_fail(
                       r, r->text.line[params],
                       "optimizer.params is given without optimizer.type; add it, with AdamW, "
                       "Adam, SGD, Lion, Adagrad, Lamb or Muon");
    if (!cJSON_IsString(r->entry[e].item) || ds_is_auto(r->entry[e].item)) return ds_wrong(r, e);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcasecmp(known[i].name, r->entry[e].item->valuestring) != 0) continue;
        r->optimizer = known[i].name;
        r->optimizers = known[i].optimizers;
        return 0;
    }
    ds_shorten(word, r->entry[e].item->valuestring);
    if (!strcasecmp(word, "OneBitAdam") || !strcasecmp(word, "ZeroOneAdam")
        || !strcasecmp(word, "OneBitLamb"))
        return ds_fail(
            r, r->text.line[e],
            "optimizer.type is \"%s\", which is not supported (nor by DeepSpeed 0.19.7 and newer); "
            "to send less, use %s with zero_quantized_gradients and zeropp_loco_param (-qg 4 -qf "
            "0.8)",
            word, strcasecmp(word, "OneBitLamb") ? "AdamW" : "Lamb");
    return ds_fail(
        r, r->text.line[e],
        "optimizer.type is \"%s\", which is not supported: use AdamW, Adam, SGD, Lion, Adagrad, "
        "Lamb or Muon",
        word);
}

/* Reads lr and betas as doubles, for the schedules: from the file, from the flags if they are
 * "auto", or DeepSpeed's defaults. */
static double ds_number(const ds_reader *r, ds_id id, const float *flag, double normal) {
    if (r->state[id] == DS_AUTO && flag != NULL) return ds_widen(*flag);
    return ds_get(r, id, normal);
}

static zero_optimizer ds_rule(const ds_reader *r) {
    if (r->optimizers == DS_FOR_LION) return ZERO_LION;
    if (r->optimizers == DS_FOR_ADAGRAD) return ZERO_ADAGRAD;
    if (r->optimizers == DS_FOR_LAMB) return ZERO_LAMB;
    if (r->optimizers == DS_FOR_MUON) return ZERO_MUON;
    if (r->optimizers == DS_FOR_SGD)
        return ds_get(r, DS_NESTEROV, 0) != 0 ? ZERO_NESTEROV : ZERO_SGD;
    if (strcmp(r->optimizer, "Adam") == 0 && ds_get(r, DS_ADAM_W_MODE, 1) == 0) return ZERO_ADAM;
    return ZERO_ADAMW; /* also "Adam", unless it says otherwise: DeepSpeed's default */
}

static void ds_resolve_given(ds_reader *r) {
    const struct {
        ds_id id;
        uint64_t given;
    } bits[] = {{DS_LR, DS_GIVEN_LR},
                {DS_MUON_LR, DS_GIVEN_LR},
                {DS_BETA1, DS_GIVEN_BETAS},
                {DS_MOMENTUM, r->optimizers == DS_FOR_MUON ? DS_GIVEN_MOMENTUM : DS_GIVEN_BETAS},
                {DS_EPS, DS_GIVEN_EPS},
                {DS_DECAY, DS_GIVEN_DECAY},
                {DS_CLIPPING, DS_GIVEN_CLIPPING},
                {DS_MUON_LR, DS_GIVEN_PLAIN_LR},
                {DS_ADAM_LR, DS_GIVEN_PLAIN_LR},
                {DS_HEADS_OF_MUON, DS_GIVEN_MUON_HEADS},
                {DS_MIN_COEFF, DS_GIVEN_LEAST_TRUST},
                {DS_MAX_COEFF, DS_GIVEN_MOST_TRUST}};
    for (size_t i = 0; i < sizeof bits / sizeof *bits; i++)
        if (r->state[bits[i].id]) r->out->given |= bits[i].given;
    if (r->optimizers) r->out->given |= DS_GIVEN_OPTIMIZER;
}

/* Converts Muon's two learning rates to one and a multiple, and reads Lamb's bounds. */
static int ds_resolve_tensors(ds_reader *r, const zero_hyper *flags) {
    zero_config *z = &r->out->zero;
    const int e = ds_entry_of(r, "optimizer.type");
    z->trust_least = (float)ds_get(r, DS_MIN_COEFF, 0);
    z->trust_most = (float)ds_get(r, DS_MAX_COEFF, 0);
    if (r->optimizers == DS_FOR_LAMB && !(r->state[DS_MIN_COEFF] && r->state[DS_MAX_COEFF]))
        ds_note(r, r->text.line[e],
                "Lamb's trust ratio is bounded only if min_coeff and max_coeff are given; "
                "DeepSpeed's defaults are 0.01 and 10");
    if (z->trust_least > 0 && z->trust_most > 0 && z->trust_least > z->trust_most)
        return ds_fail(r, ds_line_of(r, DS_MIN_COEFF),
                       "optimizer.params.min_coeff is %g, above max_coeff %g: use a smaller one",
                       (double)z->trust_least, (double)z->trust_most);
    if (r->optimizers != DS_FOR_MUON) return 0;
    const double lr = ds_number(r, DS_LR, flags ? &flags->lr : NULL, 0.02);
    const double plain = r->state[DS_LR] || r->state[DS_ADAM_LR] ? lr : 3e-4;
    r->lr = ds_get(r, DS_MUON_LR, lr);
    z->muon.momentum = (float)ds_get(r, DS_MOMENTUM, 0.95);
    if (z->muon.momentum <= 0)
        return ds_fail(r, ds_line_of(r, DS_MOMENTUM),
                       "optimizer.params.momentum is 0, expected one above 0 for Muon");
    r->out->per_head_muon = ds_get(r, DS_HEADS_OF_MUON, 0) != 0;
    if (r->lr <= 0) return 0;
    z->muon.plain_lr = (float)(ds_get(r, DS_ADAM_LR, plain) / r->lr);
    if (z->muon.plain_lr != 1) r->out->given |= DS_GIVEN_PLAIN_LR;
    return 0;
}

static int ds_resolve_optimizer(ds_reader *r) {
    static const zero_hyper normal = {1e-3f, 0.9f, 0.999f, 1e-8f, 0.0f, 1.0f};
    const zero_hyper *flags = r->autos->hyper, *base = flags != NULL ? flags : &normal;
    zero_hyper *h = &r->out->hyper;
    r->out->zero.optimizer = r->autos->optimizer;
    *h = *base;
    ds_resolve_given(r);
    if (r->optimizers) {
        const int sgd = r->optimizers == DS_FOR_SGD, sums = r->optimizers == DS_FOR_ADAGRAD;
        const int muon = r->optimizers == DS_FOR_MUON;
        r->out->zero.optimizer = ds_rule(r);
        int decays = r->out->zero.optimizer == ZERO_ADAMW && ds_get(r, DS_TORCH_ADAM, 0) != 0;
        if (decays && !r->state[DS_DECAY])
            r->out->given |= DS_GIVEN_DECAY; /* torch's own default */
        r->lr = ds_number(r, DS_LR, flags ? &flags->lr : NULL, sums ? 1e-2 : 1e-3);
        r->beta1 = sgd ? ds_get(r, DS_MOMENTUM, 0)
                       : ds_number(r, DS_BETA1, flags ? &flags->beta1 : NULL, 0.9);
        r->beta2 =
            sgd ? 0 : ds_number(r, DS_BETA2, flags ? &flags->beta2 : NULL, muon ? 0.95 : 0.999);
        if (ds_resolve_tensors(r, flags)) return 1;
        h->lr = (float)r->lr;
        h->beta1 = (float)r->beta1;
        h->beta2 = (float)r->beta2;
        h->eps = sgd ? 0
                     : (float)ds_number(r, DS_EPS, flags ? &flags->eps : NULL,
                                        sums || muon ? 1e-10 : 1e-8);
        h->weight_decay =
            (float)ds_number(r, DS_DECAY, flags ? &flags->weight_decay : NULL, decays ? 0.01 : 0.0);
        if (r->out->zero.optimizer == ZERO_NESTEROV && h->beta1 == 0)
            return ds_fail(r, ds_line_of(r, DS_NESTEROV),
                           "optimizer.params.nesterov is true, expected a momentum above 0");
    }
    if (!r->optimizers) {
        r->lr = ds_widen(h->lr);
        r->beta1 = ds_widen(h->beta1);
        r->beta2 = ds_widen(h->beta2);
    }
    if (r->state[DS_ADAM_W_MODE] == DS_SET && r->value[DS_ADAM_W_MODE] == 0
        && r->out->zero.optimizer == ZERO_ADAMW)
        ds_note(r, ds_line_of(r, DS_ADAM_W_MODE),
                "optimizer.params.adam_w_mode has no effect: it is for type Adam");
    return ds_float(r, DS_CLIPPING, ds_number(r, DS_CLIPPING, flags ? &flags->max_norm : NULL, 1.0),
                    &h->max_norm);
}

/* ---- schedule ------------------------------------------------------------------------------ */

static int ds_pick_scheduler(ds_reader *r) {
    const int e = ds_entry_of(r, "scheduler.type"), params = ds_entry_of(r, "scheduler.params");
    char word[DS_WORD];
    static const char names[] = "WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle or LRRangeTest";
    if (e < 0)
        return params < 0
                   ? 0
                   : ds_fail(r, r->text.line[params],
                             "scheduler.params is given without scheduler.type; add it, with %s",
                             names);
    if (!cJSON_IsString(r->entry[e].item) || ds_is_auto(r->entry[e].item)) return ds_wrong(r, e);
    if (schedule_from_name(r->entry[e].item->valuestring, &r->scheduler) == 0
        && r->scheduler >= SCHEDULE_WARMUP) {
        r->out->has_schedule = 1;
        return 0;
    }
    ds_shorten(word, r->entry[e].item->valuestring);
    return ds_fail(r, r->text.line[e], "scheduler.type is \"%s\", which is not supported: use %s",
                   word, names);
}

/* "auto" as Hugging Face's trainer fills it; otherwise the default that stands there already. */
static int ds_schedule_auto(ds_reader *r, int e, const schedule_field *field) {
    const ds_auto *a = r->autos;
    char why[256];
    double value = 0;
    if (strcmp(field->name, "warmup_max_lr") == 0)
        value = r->lr;
    else if (strcmp(field->name, "warmup_num_steps") == 0)
        value = (double)a->warmup_steps;
    else if (strcmp(field->name, "total_num_steps") == 0)
        value = (double)a->total_steps;
    else if (!field->needed)
        return 0;
    if (value > 0 && schedule_set(&r->out->lr_schedule, field->name, value, why, sizeof why) == 0)
        return 0;
    return ds_fail(r, r->text.line[e],
                   "scheduler.params.%s is \"auto\", which the trainer has no value for: expected "
                   "a number",
                   field->name);
}

static int ds_schedule_set(ds_reader *r, int e) {
    const cJSON *item = r->entry[e].item;
    const char *key = item->string;
    const schedule_field *field = schedule_find(r->scheduler, key);
    char why[256] = "", found[DS_WORD + 8];
    int failed = 1;
    if (field == NULL)
        return ds_fail(r, r->text.line[e],
                       "scheduler.params.%s is not a parameter of %s; leave it out", key,
                       schedule_name(r->scheduler));
    if (ds_is_auto(item)) return ds_schedule_auto(r, e, field);
    if (field->type == SCHEDULE_WORD && cJSON_IsString(item))
        failed = schedule_set_word(&r->out->lr_schedule, key, item->valuestring, why, sizeof why);
    else if (field->type == SCHEDULE_BOOL ? cJSON_IsBool(item)
                                          : field->type != SCHEDULE_WORD && cJSON_IsNumber(item))
        failed = schedule_set(&r->out->lr_schedule, key,
                              cJSON_IsBool(item) ? cJSON_IsTrue(item) : item->valuedouble, why,
                              sizeof why);
    if (!failed) return 0;
    if (why[0]) return ds_fail(r, r->text.line[e], "scheduler.params.%s: %s", key, why);
    ds_found(item, found);
    return ds_fail(r, r->text.line[e], "scheduler.params.%s is %s, expected %s", key, found,
                   field->type == SCHEDULE_BOOL    ? "true or false"
                   : field->type == SCHEDULE_WORD  ? "a text in quotes"
                   : field->type == SCHEDULE_WHOLE ? "a whole number"
                                                   : "a number");
}

static int ds_resolve_schedule(ds_reader *r) {
    schedule *s = &r->out->lr_schedule;
    const int type = ds_entry_of(r, "scheduler.type"), params = ds_entry_of(r, "scheduler.params");
    char why[256];
    if (!r->out->has_schedule) return 0;
    schedule_defaults(s, r->scheduler);
    for (int e = 0; e < r->nentries; e++)
        if (params >= 0 && r->entry[e].parent == params && !cJSON_IsNull(r->entry[e].item)
            && r->entry[e].row >= 0 && ds_rows[r->entry[e].row].kind == DS_SCHEDULE)
            if (ds_schedule_set(r, e)) return 1;
    s->lr = r->lr;
    s->beta1 = r->beta1;
    s->beta2 = r->beta2;
    if (s->kind == SCHEDULE_ONE_CYCLE && s->cycle_momentum
        && (r->out->zero.optimizer == ZERO_SGD || r->out->zero.optimizer == ZERO_NESTEROV)) {
        s->cycle_momentum = 0;
        ds_note(r, r->text.line[type],
                "OneCycle does not change the momentum of SGD, as in DeepSpeed");
    }
    if (schedule_check(s, why, sizeof why) == 0) return 0;
    return ds_fail(r, r->text.line[type], "scheduler.params: %s", why);
}

/* ---- reading ------------------------------------------------------------------------------- */

static int ds_resolve(ds_reader *r) {
    if (ds_resolve_parallel(r) || ds_resolve_batch(r) || ds_resolve_type(r) || ds_resolve_scaler(r)
        || ds_resolve_grads(r))
        return 1;
    ds_resolve_zero(r);
    return ds_resolve_offload(r) || ds_resolve_packed(r) || ds_resolve_optimizer(r)
           || ds_resolve_schedule(r) || ds_resolve_shown(r);
}

static int ds_read(ds_reader *r, const char *text, size_t length) {
    if (r->autos->ranks < 1)
        return ds_fail(r, 0, "ranks is %d, expected 1 or more", r->autos->ranks);
    if (length > DS_CONFIG_BYTES)
        return ds_fail(r, 0, "more than %d MiB; give a smaller file", DS_CONFIG_BYTES >> 20);
    r->text.bytes = (char *)malloc(length + 1);
    if (r->text.bytes == NULL) return ds_fail(r, 0, "no memory to read it");
    if (length > 0) memcpy(r->text.bytes, text, length);
    r->text.bytes[length] = 0;
    r->text.length = length;
    if (ds_scan_text(&r->text)) return ds_fail(r, r->text.why_line, "%s", r->text.why);
    if (ds_parse(r)) return 1;
    r->entry = (ds_entry *)calloc((size_t)r->text.nkeys + 1, sizeof *r->entry);
    if (r->entry == NULL) return ds_fail(r, 0, "no memory to read it");
    ds_index(r, r->root, -1);
    if (ds_duplicates(r) || ds_pick_optimizer(r) || ds_pick_scheduler(r)) return 1;
    for (int e = 0; e < r->nentries; e++)
        if (ds_walk(r, e)) return 1;
    return ds_resolve(r);
}

int ds_config_parse(const char *text, size_t length, const char *name, const ds_auto *autos,
                    ds_config *out, const ds_notes *notes, char *sentence, size_t bytes) {
    ds_reader *r = (ds_reader *)calloc(1, sizeof *r);
    memset(out, 0, sizeof *out);
    if (bytes > 0) sentence[0] = 0;
    if (r == NULL) {
        (void)snprintf(sentence, bytes, "%s: no memory to read it", name);
        return 1;
    }
    r->name = name;
    r->sentence = sentence;
    r->bytes = bytes;
    r->autos = autos;
    r->notes = notes;
    r->out = out;
    const int failed = ds_read(r, text, length);
    if (failed) memset(out, 0, sizeof *out);
    cJSON_Delete(r->root);
    free(r->text.bytes);
    free(r->entry);
    free(r);
    return failed;
}

int ds_config_load(const char *path, const ds_auto *autos, ds_config *out, const ds_notes *notes,
                   char *sentence, size_t bytes) {
    const size_t most = DS_CONFIG_BYTES + 1;
    int failed = 1;
    char *text = NULL;
    FILE *file = regular_file_stream(path, "r");
    memset(out, 0, sizeof *out);
    if (file == NULL) {
        (void)snprintf(sentence, bytes, "%s: cannot be opened: %s", path,
                       regular_file_error(errno));
        return 1;
    }
    text = (char *)malloc(most);
    errno = 0;
    const size_t length = text == NULL ? 0 : fread(text, 1, most, file);
    if (text == NULL || ferror(file))
        (void)snprintf(sentence, bytes, "%s: cannot be read: %s", path,
                       strerror(errno ? errno : ENOMEM));
    else
        failed = ds_config_parse(text, length, path, autos, out, notes, sentence, bytes);
    free(text);
    (void)fclose(file);
    return failed;
}

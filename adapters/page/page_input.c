/* page_input.c - see page_input.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "page_input.h"

#include "../report/sentence.h"
#include "../system/regular_file.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PAGE_MOST_BYTES ((size_t)1 << 30) /* of a file */

/* Reads a whole file, and adds a zero. */
static char *page_read(const char *path, size_t *length, char *sentence, size_t bytes) {
    FILE *file = regular_file_stream(path, "r");
    char *text = NULL;
    size_t room = 0, used = 0, got = 0;
    if (file == NULL) {
        (void)sentence_fail(sentence, bytes, "%.300s: cannot be read (%s); give a file that exists",
                            path, regular_file_error(errno));
        return NULL;
    }
    do {
        char *more = NULL;
        used += got;
        if (room - used < 2 && room < PAGE_MOST_BYTES)
            more = (char *)realloc(text, room = room ? 2 * room : 65536);
        if (more != NULL) text = more;
        if (room - used < 2 || text == NULL) break;
        got = fread(text + used, 1, room - used - 1, file);
    } while (got > 0);
    const int failed = ferror(file) || got > 0 || text == NULL;
    (void)fclose(file);
    if (!failed && memchr(text, 0, used) == NULL) {
        text[used] = 0;
        *length = used;
        return text;
    }
    (void)sentence_fail(sentence, bytes,
                        failed ? "%.300s: cannot be read; give another file"
                               : "%.300s: not a text; give another file",
                        path);
    free(text);
    return NULL;
}

/* Makes room for one more element. Room doubles. Returns NULL if memory is short. */
static void *page_grow(void *list, int n, size_t size) {
    if (n & (n - 1) || (n && n < 16)) return list;
    return realloc(list, (n ? 2 * (size_t)n : 16) * size);
}

/* ---- notes --------------------------------------------------------------------------------- */

static const char *const page_note_names[PAGE_NOTES] = {"program", "commit", "model", "ranks",
                                                        "flags",   "host",   "date"};

const char *page_note_name(int line) { return page_note_names[line]; }

int page_note_read(const char *source, page_note *note, char *sentence, size_t bytes) {
    char path[1100];
    size_t length = 0;
    for (int i = 0; i < PAGE_NOTES; i++) note->value[i] = "";
    (void)snprintf(path, sizeof path, "%.1000s.note", source);
    if (!source[0] || access(path, F_OK) != 0) return 0;
    note->text = page_read(path, &length, sentence, bytes);
    if (note->text == NULL) return 1;
    char *rest = NULL;
    for (char *line = strtok_r(note->text, "\n", &rest); line != NULL;
         line = strtok_r(NULL, "\n", &rest))
        for (int i = 0; i < PAGE_NOTES; i++) {
            const size_t name = strlen(page_note_names[i]);
            if (strncmp(line, page_note_names[i], name) == 0 && line[name] == ' ')
                note->value[i] = line + name + 1;
        }
    return 0;
}

void page_note_free(page_note *note) { free(note->text); }

/* ---- numbers ------------------------------------------------------------------------------- */

static int page_number(const char *text, page_value *v) {
    char *end = NULL;
    v->number = strtod(text, &end);
    v->text = text;
    return end != text && !*end;
}

/* ---- main.log ------------------------------------------------------------------------------ */

/* Fills what a line's words "KEY:VALUE" say; `kind`: what line it is. */
static int page_log_words(char *line, page_step *s, page_value *look, char *kind) {
    const page_value none = {NAN, ""};
    char *rest = NULL;
    int numbers = 1;
    *look = s->loss = s->norm = s->tps = s->ms = s->mib = none;
    s->step = -1;
    *kind = 0;
    for (char *word = strtok_r(line, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        page_value v;
        char *value = strchr(word, ':');
        if (value == NULL) return 0;
        *value++ = 0;
        numbers &= page_number(value, &v);
        if (strcmp(word, "s") == 0) s->step = (int64_t)v.number;
        page_value *to = strcmp(word, "trl") == 0    ? &s->loss
                         : strcmp(word, "tel") == 0  ? look
                         : strcmp(word, "eval") == 0 ? look
                         : strcmp(word, "norm") == 0 ? &s->norm
                         : strcmp(word, "tps") == 0  ? &s->tps
                         : strcmp(word, "ms") == 0   ? &s->ms
                         : strcmp(word, "mib") == 0  ? &s->mib
                                                     : NULL;
        if (to != NULL) *to = v;
        if (to == &s->loss || to == look) *kind = word[0] == 'e' ? 'e' : to == look ? 'v' : 's';
    }
    return numbers && s->step >= 0 && *kind;
}

/* Returns whether a line of main.log is about the run, and has nothing to draw. */
static int page_log_is_note(const char *line) {
    static const char *const words[] = {"products:", "auto:", "ranks:"};
    int at = 0;
    long long step;
    if (sscanf(line, "s:%lld %n", &step, &at) != 1 || at == 0) return 0;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strncmp(line + at, words[i], strlen(words[i])) == 0) return 1;
    return 0;
}

int page_log_read(const char *path, page_log *log, char *sentence, size_t bytes) {
    size_t length = 0;
    int number = 0;
    memset(log, 0, sizeof *log);
    log->text = page_read(path, &length, sentence, bytes);
    if (log->text == NULL) return 1;
    for (char *line = log->text, *next; (next = strchr(line, '\n')) != NULL; line = next + 1) {
        page_step s;
        page_value look;
        char kind, start[64];
        *next = 0;
        number++;
        if (page_log_is_note(line)) continue;
        (void)snprintf(start, sizeof start, "%.60s", line);
        if (!page_log_words(line, &s, &look, &kind))
            return sentence_fail(
                sentence, bytes,
                "%.300s:%d: expected 's:STEP trl:LOSS ...', 's:STEP tel:LOSS ...' or "
                "'s:STEP eval:SHARE ...', found '%s'",
                path, number, start);
        if (kind == 's') {
            page_step *list = (page_step *)page_grow(log->step, log->steps, sizeof *list);
            if (list == NULL)
                return sentence_fail(sentence, bytes,
                                     "%.300s: no memory for it; give a smaller file", path);
            log->step = list;
            log->step[log->steps++] = s;
        } else if (kind == 'v') {
            page_look *list =
                (page_look *)page_grow(log->validation, log->validations, sizeof *list);
            if (list == NULL)
                return sentence_fail(sentence, bytes,
                                     "%.300s: no memory for it; give a smaller file", path);
            const page_look one = {s.step, look};
            log->validation = list;
            log->validation[log->validations++] = one;
        }
    }
    if (log->steps) return 0;
    return sentence_fail(sentence, bytes,
                         "%.300s: no line of a step; give the main.log of a run with -o", path);
}

void page_log_free(page_log *log) {
    free(log->step);
    free(log->validation);
    free(log->text);
    memset(log, 0, sizeof *log);
}

/* ---- CSV ----------------------------------------------------------------------------------- */

static int page_in_words(const char *words, const char *word) {
    const size_t length = strlen(word);
    for (const char *at = words; *at; at += strcspn(at, " "), at += *at == ' ')
        if (strcspn(at, " ") == length && memcmp(at, word, length) == 0) return 1;
    return 0;
}

static int page_csv_column(const page_csv *csv, const char *name) {
    for (int i = 0; i < csv->columns; i++)
        if (strcmp(csv->cell[i], name) == 0) return i;
    return -1;
}

/* Cuts a line at its commas into the cells of row `row` (0: the header). */
static int page_csv_cut(page_csv *csv, char *line, int row) {
    int n = 0;
    for (char *cell = line; cell != NULL; n++) {
        char *comma = strchr(cell, ',');
        if (comma != NULL) *comma++ = 0;
        if (n == csv->columns) return -1;
        csv->cell[row * csv->columns + n] = cell;
        cell = comma;
    }
    return n == csv->columns ? 0 : -1;
}

static int page_csv_check(const char *path, const page_csv *csv, int row, const char *needed,
                          const char *words, char *sentence, size_t bytes) {
    page_value v;
    for (int i = 0; i < csv->columns; i++) {
        const char *name = csv->cell[i], *cell = csv->cell[(row + 1) * csv->columns + i];
        if (!page_in_words(needed, name) || page_in_words(words, name)) continue;
        if (!page_number(cell, &v) || !isfinite(v.number))
            return sentence_fail(sentence, bytes,
                                 "%.300s:%d: %.40s: expected a number, found '%.40s'", path,
                                 row + 2, name, cell);
    }
    return 0;
}

static int page_csv_needs(const char *path, const page_csv *csv, const char *needed, char *sentence,
                          size_t bytes) {
    char name[64];
    for (const char *at = needed; *at; at += strcspn(at, " "), at += *at == ' ') {
        (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(at, " "), at);
        if (page_csv_column(csv, name) < 0)
            return sentence_fail(sentence, bytes, "%.300s:1: expected a column %s", path, name);
    }
    return 0;
}

int page_csv_read(const char *path, const char *needed, const char *words, page_csv *csv,
                  char *sentence, size_t bytes) {
    size_t length = 0, lines = 0;
    memset(csv, 0, sizeof *csv);
    csv->text = page_read(path, &length, sentence, bytes);
    if (csv->text == NULL) return 1;
    csv->columns = 1;
    for (const char *p = csv->text; *p; p++) {
        lines += *p == '\n';
        csv->columns += *p == ',' && lines == 0;
    }
    csv->cell = (const char **)calloc((lines + 1) * (size_t)csv->columns, sizeof *csv->cell);
    if (csv->cell == NULL)
        return sentence_fail(sentence, bytes, "%.300s: no memory for it; give a smaller file",
                             path);
    csv->rows = -1;
    for (char *line = csv->text, *next; (next = strchr(line, '\n')) != NULL; line = next + 1) {
        *next = 0;
        if (next > line && next[-1] == '\r') next[-1] = 0;
        if (page_csv_cut(csv, line, ++csv->rows))
            return sentence_fail(sentence, bytes, "%.300s:%d: expected %d cells, as the header has",
                                 path, csv->rows + 1, csv->columns);
        if (csv->rows == 0 && page_csv_needs(path, csv, needed, sentence, bytes)) return 1;
        if (csv->rows > 0
            && page_csv_check(path, csv, csv->rows - 1, needed, words, sentence, bytes))
            return 1;
    }
    if (csv->rows > 0) return 0;
    return sentence_fail(sentence, bytes, "%.300s: no row after its header; run make compare again",
                         path);
}

page_value page_csv_value(const page_csv *csv, int row, const char *column) {
    page_value v = {NAN, ""};
    const int i = page_csv_column(csv, column);
    if (i >= 0 && !page_number(csv->cell[(row + 1) * csv->columns + i], &v)) v.number = NAN;
    return v;
}

void page_csv_free(page_csv *csv) {
    free(csv->cell);
    free(csv->text);
    memset(csv, 0, sizeof *csv);
}

/* ---- traces -------------------------------------------------------------------------------- */

/* Returns the end of the object at p, after its brace, or NULL if the brace is missing. */
static const char *page_object_end(const char *p) {
    int depth = 0;
    for (; *p; p++) {
        if (*p == '"') {
            for (p++; *p && *p != '"'; p++)
                if (*p == '\\' && p[1]) p++;
            if (!*p) return NULL;
        }
        depth += (*p == '{') - (*p == '}');
        if (depth == 0) return p + 1;
    }
    return NULL;
}

static void page_copy(char *to, size_t bytes, const cJSON *text) {
    (void)snprintf(to, bytes, "%s", cJSON_IsString(text) ? text->valuestring : "");
}

static int page_int(const cJSON *number) {
    return cJSON_IsNumber(number) && fabs(number->valuedouble) < 1e9 ? number->valueint : 0;
}

/* One event; others than slices and names of tracks are passed over. Returns a word that it lacks;
   NULL: it is right. */
static const char *page_trace_event(page_trace *t, const cJSON *event) {
    const cJSON *ph = cJSON_GetObjectItem(event, "ph"), *args = cJSON_GetObjectItem(event, "args");
    const cJSON *name = cJSON_GetObjectItem(event, "name"), *at = cJSON_GetObjectItem(event, "ts");
    const cJSON *took = cJSON_GetObjectItem(event, "dur"),
                *step = cJSON_GetObjectItem(args, "step");
    const int rank = page_int(cJSON_GetObjectItem(event, "pid"));
    const int track = page_int(cJSON_GetObjectItem(event, "tid"));
    if (!cJSON_IsString(ph)) return "ph";
    if (!cJSON_IsString(name)) return "name";
    if (ph->valuestring[0] == 'M' && strcmp(name->valuestring, "thread_name") == 0) {
        page_track *list = (page_track *)page_grow(t->track, t->tracks, sizeof *list);
        if (list == NULL) return "memory";
        t->track = list;
        page_copy(list[t->tracks].name, sizeof list->name, cJSON_GetObjectItem(args, "name"));
        list[t->tracks].rank = rank;
        list[t->tracks++].track = track;
    }
    if (ph->valuestring[0] != 'X') return NULL;
    if (!cJSON_IsNumber(at)) return "ts";
    if (!cJSON_IsNumber(took) || took->valuedouble < 0) return "dur";
    page_slice *list = (page_slice *)page_grow(t->slice, t->slices, sizeof *list);
    if (list == NULL) return "memory";
    t->slice = list;
    page_slice *s = &list[t->slices++];
    page_copy(s->name, sizeof s->name, name);
    page_copy(s->kind, sizeof s->kind, cJSON_GetObjectItem(event, "cat"));
    s->rank = rank;
    s->track = track;
    s->at_us = at->valuedouble;
    s->took_us = took->valuedouble;
    s->step = cJSON_IsNumber(step) ? (int64_t)step->valuedouble : -1;
    return NULL;
}

static int page_line_of(const char *text, const char *p) {
    int line = 1;
    for (; text < p; text++) line += *text == '\n';
    return line;
}

int page_trace_read(const char *path, page_trace *trace, char *sentence, size_t bytes) {
    size_t length = 0;
    memset(trace, 0, sizeof *trace);
    char *text = page_read(path, &length, sentence, bytes);
    if (text == NULL) return 1;
    const char *p = text + strspn(text, " \t\r\n");
    int failed = 0;
    if (*p != '[')
        failed = sentence_fail(sentence, bytes, "%.300s:1: expected an array of events, '['", path);
    for (p += *p == '['; !failed;) {
        p += strspn(p, " \t\r\n,");
        if (!*p || *p == ']') break;
        const char *end = *p == '{' ? page_object_end(p) : p;
        if (end == NULL) break; /* the run was killed */
        cJSON *event = end > p ? cJSON_ParseWithLength(p, (size_t)(end - p)) : NULL;
        const char *lacks = event == NULL ? "" : page_trace_event(trace, event);
        cJSON_Delete(event);
        if (lacks != NULL)
            failed = sentence_fail(sentence, bytes, "%.300s:%d: %s%s, found '%.40s'", path,
                                   page_line_of(text, p), *lacks ? "expected an event with " : "",
                                   *lacks ? lacks : "expected an event of JSON", p);
        p = end;
    }
    free(text);
    if (failed || trace->slices) return failed;
    return sentence_fail(sentence, bytes, "%.300s: no slice (ph X); give a file of -tr", path);
}

void page_trace_free(page_trace *trace) {
    free(trace->slice);
    free(trace->track);
    memset(trace, 0, sizeof *trace);
}

typedef struct page_span {
    int64_t step;
    double from, to;
} page_span;

static int page_by_length(const void *a, const void *b) {
    const page_span *x = (const page_span *)a, *y = (const page_span *)b;
    const double p = x->to - x->from, q = y->to - y->from;
    return p != q ? (p > q) - (p < q) : (x->step > y->step) - (x->step < y->step);
}

int64_t page_trace_step(const page_trace *trace) {
    page_span *span = NULL;
    int n = 0;
    int64_t found = -1, least = INT64_MAX, most = -1;
    for (int i = 0; i < trace->slices; i++) {
        const page_slice *s = &trace->slice[i];
        int k = n - 1;
        if (s->step < 0 || s->rank != trace->slice[0].rank) continue;
        while (k >= 0 && span[k].step != s->step) k--;
        if (k < 0) {
            page_span *list = (page_span *)page_grow(span, n, sizeof *list);
            if (list == NULL) break;
            const page_span one = {s->step, s->at_us, s->at_us + s->took_us};
            span = list;
            span[k = n++] = one;
        }
        if (s->at_us < span[k].from) span[k].from = s->at_us;
        if (s->at_us + s->took_us > span[k].to) span[k].to = s->at_us + s->took_us;
        if (s->step < least) least = s->step;
        if (s->step > most) most = s->step;
    }
    int kept = 0;
    for (int i = 0; i < n; i++)
        if (n <= 3 || (span[i].step != least && span[i].step != most)) span[kept++] = span[i];
    if (kept) {
        qsort(span, (size_t)kept, sizeof *span, page_by_length);
        found = span[kept / 2].step;
    }
    free(span);
    return found;
}

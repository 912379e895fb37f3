/* ds_text.c - makes JSON of text with comments, and notes where its keys are; see ds_inside.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "ds_inside.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

__attribute__((format(printf, 3, 4))) static int ds_text_fail(ds_text *r, int line,
                                                              const char *format, ...) {
    va_list list;
    va_start(list, format);
    (void)vsnprintf(r->why, sizeof r->why, format, list);
    va_end(list);
    r->why_line = line;
    return 1;
}

typedef struct ds_scan {
    size_t i;
    int line;
    size_t line_start;
    int depth;
    char last, before; /* the last two bytes that mean something; 's' for a whole string */
    size_t last_at;
    int string_line;
} ds_scan;

static void ds_scan_mean(ds_scan *s, char c) {
    s->before = s->last;
    s->last = c;
    s->last_at = s->i;
}

static void ds_scan_newline(ds_scan *s) {
    s->line++;
    s->line_start = s->i + 1;
}

/* s->i is at the opening quote, and comes to the closing one. */
static int ds_scan_string(ds_text *t, ds_scan *s) {
    const size_t column = s->i - s->line_start + 1;
    for (s->i++; s->i < t->length && t->bytes[s->i] != '\n'; s->i++) {
        if (t->bytes[s->i] == '"') {
            s->string_line = s->line;
            ds_scan_mean(s, 's');
            return 0;
        }
        if (t->bytes[s->i] == '\\' && s->i + 1 < t->length && t->bytes[s->i + 1] != '\n') s->i++;
    }
    return ds_text_fail(t, s->line, "column %zu: the text that starts here has no closing quote",
                        column);
}

/* s->i is at the comment's first byte, and comes to its last one. Lines stay where they are. */
static int ds_scan_comment(ds_text *t, ds_scan *s) {
    const int open = s->line, block = t->bytes[s->i] == '/' && t->bytes[s->i + 1] == '*';
    const size_t column = s->i - s->line_start + 1, first = s->i;
    const char *end = block ? strstr(t->bytes + first + 2, "*/") : strchr(t->bytes + first, '\n');
    size_t past = end == NULL ? t->length : (size_t)(end - t->bytes) + (block ? 2 : 0);
    if (block && end == NULL)
        return ds_text_fail(t, open, "column %zu: the comment that starts here has no end", column);
    for (s->i = first; s->i < past; s->i++) {
        if (t->bytes[s->i] == '\n') ds_scan_newline(s);
        if (t->bytes[s->i] != '\n') t->bytes[s->i] = ' ';
    }
    s->i--;
    return 0;
}

/* A bracket: depth, and the comma before a closing one, which Hjson allows. */
static int ds_scan_bracket(ds_text *t, ds_scan *s, char c) {
    if (c == '{' || c == '[') {
        if (++s->depth > DS_CONFIG_DEPTH)
            return ds_text_fail(t, s->line, "brackets are nested deeper than %d", DS_CONFIG_DEPTH);
    } else {
        s->depth--;
        if (s->last == ',' && s->before != ',' && s->before != '{' && s->before != '[')
            t->bytes[s->last_at] = ' ';
    }
    return 0;
}

static int ds_scan_colon(ds_text *t, const ds_scan *s) {
    if (s->last != 's') return 0;
    if (t->nkeys == DS_CONFIG_KEYS)
        return ds_text_fail(t, s->line, "more than %d keys", DS_CONFIG_KEYS);
    t->line[t->nkeys++] = s->string_line;
    return 0;
}

int ds_scan_text(ds_text *t) {
    ds_scan s;
    memset(&s, 0, sizeof s);
    s.line = 1;
    if (memchr(t->bytes, 0, t->length) != NULL) return ds_text_fail(t, 0, "a byte 0 in the text");
    for (; s.i < t->length; s.i++) {
        const char c = t->bytes[s.i];
        int failed = 0;
        if (c == '\n') ds_scan_newline(&s);
        if (isspace((unsigned char)c)) continue;
        if (c == '#' || (c == '/' && (t->bytes[s.i + 1] == '/' || t->bytes[s.i + 1] == '*'))) {
            if (ds_scan_comment(t, &s)) return 1;
            continue;
        }
        if (c == '"') {
            if (ds_scan_string(t, &s)) return 1;
            continue;
        }
        if (c == '{' || c == '}' || c == '[' || c == ']') failed = ds_scan_bracket(t, &s, c);
        if (c == ':') failed = ds_scan_colon(t, &s);
        if (failed) return 1;
        ds_scan_mean(&s, c);
    }
    return s.last == 0 ? ds_text_fail(t, 0, "there is nothing in it") : 0;
}

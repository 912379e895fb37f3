/* options.c - see options.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "options.h"

#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- words --------------------------------------------------------------------------------- */

/* The index of text among the blank-separated words; -1: it is none of them. */
static int option_find_word(const char *words, const char *text) {
    const size_t length = strlen(text);
    int index = 0;
    for (const char *at = words; *at; index++) {
        const size_t word = strcspn(at, " ");
        if (word == length && memcmp(at, text, length) == 0) return index;
        at += word + (at[word] == ' ');
    }
    return -1;
}

void option_word(const char *words, int index, char word[OPTION_WORD_BYTES]) {
    for (; index > 0; index--) words += strcspn(words, " ") + 1;
    (void)snprintf(word, OPTION_WORD_BYTES, "%.*s", (int)strcspn(words, " "), words);
}

const option *options_find(const option_set *o, const char *flag) {
    for (int i = 0; i < o->rows; i++)
        if (o->table[i].flag != NULL && strcmp(o->table[i].flag, flag) == 0) return &o->table[i];
    return NULL;
}

int options_given(const option_set *o, const char *flag) {
    return o->given[options_find(o, flag) - o->table];
}

/* ---- values as numbers --------------------------------------------------------------------- */

static void *option_field(const option_set *o, const option *d) {
    return (char *)o->values + d->field;
}

static double option_number(const option_set *o, const option *d) {
    const void *field = option_field(o, d);
    switch (d->type) {
    case OPTION_INT:
    case OPTION_RANK:
    case OPTION_WORD: return *(const int *)field;
    case OPTION_LONG: return (double)*(const int64_t *)field;
    case OPTION_REAL: return *(const double *)field;
    case OPTION_STAGES: return ((const option_list *)field)->at[0];
    default: return 0;
    }
}

static void option_set_number(const option_set *o, const option *d, double value) {
    void *field = option_field(o, d);
    switch (d->type) {
    case OPTION_INT:
    case OPTION_RANK:
    case OPTION_WORD: *(int *)field = (int)value; break;
    case OPTION_LONG: *(int64_t *)field = (int64_t)value; break;
    case OPTION_REAL: *(double *)field = value; break;
    case OPTION_STAGES: ((option_list *)field)->at[0] = (int)value; break;
    default: break;
    }
}

/* ---- the command line ---------------------------------------------------------------------- */

__attribute__((format(printf, 2, 3))) static void option_error(option_set *o, const char *format,
                                                               ...) {
    va_list values;
    if (o->error[0]) return; /* the first one counts */
    va_start(values, format);
    (void)vsnprintf(o->error, o->error_bytes, format, values);
    va_end(values);
}

static void option_parse_number(option_set *o, const option *d, const char *text) {
    char *end = NULL;
    const double value = strtod(text, &end);
    const int whole = d->type != OPTION_REAL;
    if (end == text || *end || !isfinite(value) || (whole && value != floor(value)))
        option_error(o, "%s: expected a %snumber, found '%s'", d->flag, whole ? "whole " : "",
                     text);
    else if (value < d->least || value > d->most)
        option_error(o, "%s: expected %.10g to %.10g, found %s", d->flag, d->least, d->most, text);
    else
        option_set_number(o, d, value);
}

static void option_parse_stages(option_set *o, const option *d, const char *text) {
    option_list *list = (option_list *)option_field(o, d);
    list->n = 0;
    for (const char *at = text;; at += 2) {
        const int ends = at[0] == 0 ? 0 : at[1] == 0;
        if (at[0] < '0' || at[0] > '3' || (!ends && at[1] != ',') || list->n == OPTION_LIST) {
            option_error(o,
                         "%s: expected a stage, 0 to 3, or up to four with commas between, found "
                         "'%s'",
                         d->flag, text);
            return;
        }
        list->at[list->n++] = at[0] - '0';
        if (ends) return;
    }
}

static void option_parse(option_set *o, const option *d, const char *text) {
    const int word = d->words != NULL ? option_find_word(d->words, text) : 0;
    switch (d->type) {
    case OPTION_INT:
    case OPTION_RANK:
    case OPTION_LONG:
    case OPTION_REAL: option_parse_number(o, d, text); break;
    case OPTION_PATH:
    case OPTION_TEXT: *(const char **)option_field(o, d) = text; break;
    case OPTION_STAGES: option_parse_stages(o, d, text); break;
    case OPTION_WORD:
        option_set_number(o, d, word);
        if (word < 0)
            option_error(o, "%s: expected one of: %s; found '%s'", d->flag, d->words, text);
        break;
    case OPTION_FIXED:
        if (word < 0)
            option_error(o, "%s %s is not supported yet (%s); accepted: %s", d->flag, text, d->help,
                         d->words);
        break;
    case OPTION_HEADING: break;
    }
}

int options_parse(option_set *o, int argc, char **argv, int compares,
                  int (*foreign)(const char *)) {
    for (int i = 0; i < o->rows; i++) {
        const option *d = &o->table[i];
        const char *value = compares && d->compare != NULL ? d->compare : d->normal;
        if (value != NULL) option_parse(o, d, value);
    }
    for (int i = 1; i < argc; i += 2) {
        const option *d = options_find(o, argv[i]);
        if (foreign(argv[i])) {
            i--;
            continue;
        }
        if (strcmp(argv[i], "--help") == 0) return 1;
        if (d == NULL)
            option_error(o, "unknown flag '%s'; --help lists all", argv[i]);
        else if (i + 1 >= argc)
            option_error(o,
                         "%s: expected a value, found the end of the line; --help lists all flags",
                         argv[i]);
        else
            option_parse(o, d, argv[i + 1]);
        if (d != NULL) o->given[d - o->table] = 1;
    }
    return 0;
}

/* ---- help ---------------------------------------------------------------------------------- */

void options_print_wrapped(const char *text, int indent) {
    const int width = 99;
    int column = indent;
    while (*text) {
        const int word = (int)strcspn(text, " ");
        if (column > indent && column + 1 + word > width) {
            printf("\n%*s", indent, "");
            column = indent;
        }
        column += printf("%s%.*s", column > indent ? " " : "", word, text);
        text += word + (text[word] == ' ');
    }
    printf("\n");
}

static void option_help(const option *d) {
    char text[512], values[128] = "";
    if (d->type == OPTION_HEADING) {
        printf("\n%s\n", d->help);
        return;
    }
    if (d->normal != NULL && d->compare != NULL)
        (void)snprintf(values, sizeof values, " (default %s; in a comparison %s)", d->normal,
                       d->compare);
    else if (d->normal != NULL && d->normal[0])
        (void)snprintf(values, sizeof values, " (default %s)", d->normal);
    (void)snprintf(text, sizeof text, "%s%s%s%s", d->help, d->words != NULL ? ": " : "",
                   d->words != NULL ? d->words : "", values);
    printf("  %-5s ", d->flag);
    options_print_wrapped(text, 8);
}

void options_help(const option_set *o) {
    for (int i = 0; i < o->rows; i++) option_help(&o->table[i]);
}

/* ---- values as text ------------------------------------------------------------------------ */

/* "FLAG VALUE\n"; "" for what may differ between ranks. */
static int option_render(const option_set *o, const option *d, char *text, size_t bytes) {
    const void *field = option_field(o, d);
    char word[OPTION_WORD_BYTES], list[2 * OPTION_LIST + 1] = "";
    switch (d->type) {
    case OPTION_INT: return snprintf(text, bytes, "%s %d\n", d->flag, *(const int *)field);
    case OPTION_LONG:
        return snprintf(text, bytes, "%s %lld\n", d->flag, (long long)*(const int64_t *)field);
    case OPTION_REAL: return snprintf(text, bytes, "%s %.17g\n", d->flag, *(const double *)field);
    case OPTION_TEXT: return snprintf(text, bytes, "%s %s\n", d->flag, *(const char *const *)field);
    case OPTION_WORD:
        option_word(d->words, *(const int *)field, word);
        return snprintf(text, bytes, "%s %s\n", d->flag, word);
    case OPTION_STAGES:
        for (int i = 0; i < ((const option_list *)field)->n; i++) {
            list[2 * i] = (char)('0' + ((const option_list *)field)->at[i]);
            list[2 * i + 1] = ',';
        }
        return snprintf(text, bytes, "%s %.*s\n", d->flag, 2 * ((const option_list *)field)->n - 1,
                        list);
    default: return 0;
    }
}

size_t options_render(const option_set *o, char *text, size_t bytes) {
    size_t used = 0;
    text[0] = 0;
    for (int i = 0; i < o->rows && used < bytes; i++)
        used += (size_t)option_render(o, &o->table[i], text + used, bytes - used);
    return used < bytes ? used : bytes - 1;
}

const char *options_line(const char *lines, const char *name, int *length) {
    const size_t chars = strlen(name);
    for (const char *at = lines; *at; at += strcspn(at, "\n"), at += *at == '\n') {
        if (strncmp(at, name, chars) != 0 || at[chars] != ' ') continue;
        at += chars + 1;
        *length = (int)strcspn(at, "\n");
        return at;
    }
    return NULL;
}

/* ---- the target ---------------------------------------------------------------------------- */

static int64_t option_per(const option_set *o, const option *d) {
    return d->per ? *(const int *)(const void *)((const char *)o->values + d->per) : 1;
}

static void option_store(const option_set *o, const option *d, void *target) {
    void *to = (char *)target + d->to;
    const double value = option_number(o, d);
    const int64_t count = value > 0 ? (int64_t)value : value < 0 ? 0 : -1;
    switch (d->form) {
    case OPTION_AS_INT: *(int *)to = (int)value; break;
    case OPTION_AS_NOT: *(int *)to = value == 0; break;
    case OPTION_AS_FLOAT: *(float *)to = (float)value; break;
    case OPTION_AS_DOUBLE: *(double *)to = value; break;
    case OPTION_AS_INT64: *(int64_t *)to = (int64_t)value / option_per(o, d); break;
    case OPTION_AS_SIZE: *(size_t *)to = (size_t)value; break;
    case OPTION_AS_COUNT: *(int *)to = (int)count; break;
    case OPTION_AS_COUNT64: *(int64_t *)to = count; break;
    case OPTION_AS_NOTHING: break;
    }
}

/* As the option would have it. */
static double option_found(const option_set *o, const option *d, const void *target) {
    const void *to = (const char *)target + d->to;
    switch (d->form) {
    case OPTION_AS_INT: return *(const int *)to;
    case OPTION_AS_NOT: return !*(const int *)to;
    case OPTION_AS_FLOAT: return (double)*(const float *)to;
    case OPTION_AS_DOUBLE: return *(const double *)to;
    case OPTION_AS_INT64: return (double)(*(const int64_t *)to * option_per(o, d));
    case OPTION_AS_SIZE: return (double)*(const size_t *)to;
    case OPTION_AS_COUNT: return *(const int *)to > 0 ? *(const int *)to : 0;
    case OPTION_AS_COUNT64: return *(const int64_t *)to > 0 ? (double)*(const int64_t *)to : 0;
    case OPTION_AS_NOTHING: break;
    }
    return 0;
}

/* Whether the file has a value for a row. A list of several is the command line's alone. */
static int option_in_file(const option_set *o, const option *d, const void *target, unsigned bits) {
    if (d->key == NULL) return 0;
    if (d->type == OPTION_STAGES && ((const option_list *)option_field(o, d))->n > 1) return 0;
    if (d->bit) return (bits & d->bit) != 0;
    const double found = option_found(o, d, target);
    return d->form == OPTION_AS_NOT ? found == 0 : found != 0;
}

void options_store(const option_set *o, void *target) {
    for (int i = 0; i < o->rows; i++) option_store(o, &o->table[i], target);
}

int options_conflict(const option_set *o, const void *target, unsigned bits, const char *name,
                     char *sentence, size_t bytes) {
    for (int i = 0; i < o->rows; i++) {
        const option *d = &o->table[i];
        char a[32], b[32];
        if (!o->given[i] || !option_in_file(o, d, target, bits)) continue;
        const double found = option_found(o, d, target);
        double typed = option_number(o, d);
        if (d->form == OPTION_AS_FLOAT) typed = (double)(float)typed;
        if (typed == found || (d->unsaid && typed == 0)) continue;
        (void)snprintf(a, sizeof a, "%.7g", typed);
        (void)snprintf(b, sizeof b, "%.7g", found);
        if (d->type == OPTION_WORD) {
            option_word(d->words, (int)typed, a);
            option_word(d->words, (int)found, b);
        }
        (void)snprintf(sentence, bytes, "%s %s, but %s gives %s %s: leave one of the two out",
                       d->flag, a, name, d->key, b);
        return 1;
    }
    return 0;
}

void options_take(option_set *o, const void *target, unsigned bits) {
    for (int i = 0; i < o->rows; i++) {
        const option *d = &o->table[i];
        if (option_in_file(o, d, target, bits)
            || (d->key != NULL
                && (d->rule == OPTION_FILE_ALWAYS
                    || (d->rule == OPTION_FILE_UNLESS_TYPED && !o->given[i]))))
            option_set_number(o, d, option_found(o, d, target));
    }
}

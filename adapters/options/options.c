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

enum { OPTION_NAME = 32 }; /* characters of the longest flag */

/* ---- words --------------------------------------------------------------------------------- */

/* Returns the index of text among the blank-separated words, or -1. */
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

/* Returns the length of the flag in an argument: the whole argument, or up to the = in
 * --name=value. */
static int option_length(const char *argument) {
    return (int)(strncmp(argument, "--", 2) == 0 ? strcspn(argument, "=") : strlen(argument));
}

/* Returns the row of an argument, by its short or long name, or NULL. */
static const option *option_find(const option_set *o, const char *argument) {
    const size_t length = (size_t)option_length(argument);
    char name[OPTION_NAME + 1];
    (void)snprintf(name, sizeof name, "%.*s", (int)length, argument);
    for (int i = 0; i < o->rows && length <= OPTION_NAME; i++) {
        const option *d = &o->table[i];
        if (d->flag == NULL) continue;
        if (strcmp(d->name, name) == 0) return d;
        if (d->aliases != NULL && option_find_word(d->aliases, name) >= 0) return d;
    }
    return options_find(o, argument);
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
    if (o->error[0]) return; /* the first error is kept */
    va_start(values, format);
    (void)vsnprintf(o->error, o->error_bytes, format, values);
    va_end(values);
}

#define OPTION_TYPED(o) (o)->typed_length, (o)->typed

static void option_parse_number(option_set *o, const option *d, const char *text) {
    char *end = NULL;
    const double value = strtod(text, &end);
    const int whole = d->type != OPTION_REAL;
    if (end == text || *end || !isfinite(value) || (whole && value != floor(value)))
        option_error(o, "%.*s: expected a %snumber, found '%s'", OPTION_TYPED(o),
                     whole ? "whole " : "", text);
    else if (value < d->least || value > d->most)
        option_error(o, "%.*s: expected %.10g to %.10g, found %s", OPTION_TYPED(o), d->least,
                     d->most, text);
    else
        option_set_number(o, d, value);
}

static void option_parse_stages(option_set *o, const option *d, const char *text) {
    option_list *list = (option_list *)option_field(o, d);
    list->n = list->at[0] = 0;
    if (strcmp(text, "auto") == 0) return;
    if (strstr(text, "auto") != NULL) {
        option_error(o,
                     "%.*s: auto chooses one stage, and a list compares several (found '%s'); give "
                     "auto alone, or numbers alone",
                     OPTION_TYPED(o), text);
        return;
    }
    for (const char *at = text;; at += 2) {
        const int ends = at[0] == 0 ? 0 : at[1] == 0;
        if (at[0] < '0' || at[0] > '3' || (!ends && at[1] != ',') || list->n == OPTION_LIST) {
            option_error(o,
                         "%.*s: expected a stage, 0 to 3, up to four with commas between, or "
                         "auto, found '%s'",
                         OPTION_TYPED(o), text);
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
    case OPTION_TEXT:
        *(const char **)option_field(o, d) = text;
        if (!text[0] && d->normal[0]) /* for example, an unset variable of the shell */
            option_error(o, "%.*s: expected a value such as '%s', found ''", OPTION_TYPED(o),
                         d->normal);
        break;
    case OPTION_STAGES: option_parse_stages(o, d, text); break;
    case OPTION_WORD:
        option_set_number(o, d, word);
        if (word < 0)
            option_error(o, "%.*s: expected one of: %s; found '%s'", OPTION_TYPED(o), d->words,
                         text);
        break;
    case OPTION_HEADING: break;
    }
}

/* Returns the number of insertions, deletions and replacements that change a into b. */
static int option_distance(const char *a, const char *b) {
    int row[OPTION_NAME + 1], n = (int)strlen(a), m = (int)strlen(b);
    if (n > OPTION_NAME || m > OPTION_NAME) return OPTION_NAME;
    for (int k = 0; k <= m; k++) row[k] = k;
    for (int i = 1; i <= n; i++) {
        int above_left = row[0];
        row[0] = i;
        for (int k = 1; k <= m; k++) {
            const int above = row[k], change = above_left + (a[i - 1] != b[k - 1]);
            row[k] = 1 + (above < row[k - 1] ? above : row[k - 1]);
            if (change < row[k]) row[k] = change;
            above_left = above;
        }
    }
    return row[m];
}

/* Returns the flag that the user probably meant: the long name with the fewest edits, or a short
   name without its dash. A long name that starts with the text counts as nearer than two edits.
   Returns NULL if no flag is near. */
static const char *option_nearest(const option_set *o, const char *text) {
    const char *found = NULL, *bare = text + strspn(text, "-");
    const int length = option_length(bare);
    int best = 2 * (1 + length / 3);
    char word[OPTION_NAME + 1];
    (void)snprintf(word, sizeof word, "%.*s", (int)strcspn(bare, "="), bare);
    if (length == 0) return NULL;
    for (int i = 0; i < o->rows; i++) {
        const option *d = &o->table[i];
        if (d->flag == NULL) continue;
        if (strcmp(d->flag + 1, word) == 0) return d->flag;
        const size_t begins = strlen(word);
        const int far = 2 * option_distance(word, d->name + 2);
        const int near = far > 3 && begins > 2 && strncmp(d->name + 2, word, begins) == 0 ? 3 : far;
        if (near >= best) continue;
        best = near;
        found = d->name;
    }
    return found;
}

static void option_unknown(option_set *o, const char *text) {
    const char *near = option_nearest(o, text);
    if (near != NULL)
        option_error(o, "unknown flag '%s': did you mean %s? --help all lists every flag", text,
                     near);
    else
        option_error(o, "unknown flag '%s'; --help all lists every flag", text);
}

/* Returns whether argument i asks for help or the version. *about: the word that follows. */
static int option_is_help(int argc, char **argv, int i, const char **about) {
    const char *next = i + 1 < argc ? argv[i + 1] : "-";
    if (strcmp(argv[i], "--version") == 0) return OPTIONS_VERSION;
    if (strcmp(argv[i], "-h") == 0) return next[0] == '-' ? OPTIONS_HELP : 0;
    if (strncmp(argv[i], "--help=", 7) == 0)
        next = argv[i] + 7;
    else if (strcmp(argv[i], "--help") != 0)
        return 0;
    if (about != NULL && (i + 1 < argc || argv[i][6] == '=')) *about = next;
    return OPTIONS_HELP;
}

/* Returns the default of a row for what the program does. */
static const char *option_default(const option *d, unsigned defaults) {
    if (defaults & OPTIONS_COMPARE && d->compare != NULL) return d->compare;
    return defaults & OPTIONS_GPT2 && d->gpt2 != NULL ? d->gpt2 : d->normal;
}

/* Returns the value of the flag at argv[*at], or NULL. *at becomes the index of its last argument.
 */
static const char *option_value(int argc, char **argv, int *at) {
    const char *text = argv[*at];
    const int length = option_length(text);
    if (text[length] == '=') return text + length + 1;
    return *at + 1 < argc ? argv[++*at] : NULL;
}

static void option_parse_argument(option_set *o, const option *d, int argc, char **argv, int *at) {
    o->typed = argv[*at];
    o->typed_length = option_length(argv[*at]);
    const int flag_at = *at;
    const char *value = option_value(argc, argv, at);
    const option *next = value != NULL && *at > flag_at ? option_find(o, value) : NULL;
    o->given[d - o->table] = 1;
    if (value == NULL)
        option_error(o,
                     "%.*s: expected a value, found the end of the line; --help %.*s describes it",
                     OPTION_TYPED(o), OPTION_TYPED(o));
    else if (next != NULL)
        option_error(o, "%.*s: expected a value, found the flag '%s'; every flag takes a value",
                     OPTION_TYPED(o), value);
    else
        option_parse(o, d, value);
}

int options_parse(option_set *o, int argc, char **argv, unsigned defaults,
                  int (*foreign)(const char *), const char **about) {
    if (about != NULL) *about = "";
    for (int i = 0; i < o->rows; i++) {
        const option *d = &o->table[i];
        const char *value = option_default(d, defaults);
        o->typed = d->flag;
        o->typed_length = d->flag != NULL ? (int)strlen(d->flag) : 0;
        if (value != NULL) option_parse(o, d, value);
    }
    for (int i = 1; i < argc; i++) {
        const option *d = option_find(o, argv[i]);
        if (foreign(argv[i])) continue;
        const int help = option_is_help(argc, argv, i, about);
        if (help) return help;
        if (d != NULL)
            option_parse_argument(o, d, argc, argv, &i);
        else {
            option_unknown(o, argv[i]);
            (void)option_value(argc, argv, &i);
        }
    }
    return 0;
}

int options_set(option_set *o, const char *flag, const char *value) {
    const option *d = options_find(o, flag);
    o->typed = flag;
    o->typed_length = (int)strlen(flag);
    if (d == NULL) {
        option_unknown(o, flag);
        return 1;
    }
    o->given[d - o->table] = 1;
    option_parse(o, d, value);
    return o->error[0] != 0;
}

int options_size(const char *text, double *size) {
    static const char units[] = "KMGTP";
    char *end = NULL;
    const double number = strtod(text, &end);
    const char *letter = end != text && *end ? strchr(units, *end) : NULL;
    double unit = 1;
    if (letter != NULL) {
        const int power = (int)(letter - units) + 1, decimal = strcmp(end + 1, "B") == 0;
        unit = pow(decimal ? 1000 : 1024, power);
        end += decimal ? 2 : strcmp(end + 1, "iB") == 0 ? 3 : 1;
    }
    *size = number * unit;
    return end == text || *end || strpbrk(text, "xX") != NULL || !isfinite(*size) || *size <= 0;
}

const char *options_value(const option_set *o, int argc, char **argv, const char *flag) {
    const char *found = NULL;
    for (int i = 1; i < argc; i++) {
        const option *d = option_find(o, argv[i]);
        if (d == NULL) continue;
        const char *value = option_value(argc, argv, &i);
        if (value != NULL && strcmp(d->flag, flag) == 0) found = value;
    }
    return found;
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

enum { OPTION_INDENT = 34 }; /* column of the help texts */

/* Writes the defaults of a row: "(default 64; of a GPT-2 model 1024; in a comparison 256)". */
static void option_defaults(const option *d, char *text, size_t bytes) {
    size_t used = 0;
    text[0] = 0;
    if (d->normal == NULL || (!d->normal[0] && d->gpt2 == NULL && d->compare == NULL)) return;
    used = (size_t)snprintf(text, bytes, " (default %s", d->normal);
    if (d->gpt2 != NULL)
        used += (size_t)snprintf(text + used, bytes - used, "; of a GPT-2 model %s", d->gpt2);
    if (d->compare != NULL)
        used += (size_t)snprintf(text + used, bytes - used, "; in a comparison %s", d->compare);
    (void)snprintf(text + used, bytes - used, ")");
}

static void option_help(const option *d) {
    char text[640], defaults[128], names[OPTION_NAME + 16];
    if (d->type == OPTION_HEADING) {
        printf("\n%s%s%s%s\n", d->help, d->name ? " [" : "", d->name ? d->name : "",
               d->name ? "]" : "");
        return;
    }
    option_defaults(d, defaults, sizeof defaults);
    (void)snprintf(text, sizeof text, "%s%s%s%s%s%s", d->help, d->words != NULL ? ": " : "",
                   d->words != NULL ? d->words : "", defaults, d->aliases != NULL ? "; also: " : "",
                   d->aliases != NULL ? d->aliases : "");
    (void)snprintf(names, sizeof names, "%-4s %s", d->flag, d->name);
    printf("  %-31s ", names);
    options_print_wrapped(text, OPTION_INDENT);
}

void options_help(const option_set *o) {
    for (int i = 0; i < o->rows; i++) option_help(&o->table[i]);
}

void options_help_brief(const option_set *o) {
    for (int i = 0; i < o->rows; i++) {
        const option *d = &o->table[i];
        if (d->brief != NULL) printf("  %-4s %-20s %s\n", d->flag, d->name, d->brief);
    }
}

int options_help_topic(const option_set *o, const char *about) {
    const option *d = option_find(o, about);
    int found = d != NULL, shown = 0;
    if (found) option_help(d);
    for (int i = 0; i < o->rows && d == NULL; i++) {
        const option *row = &o->table[i];
        if (row->type == OPTION_HEADING) shown = row->name != NULL && strcmp(row->name, about) == 0;
        if (shown) option_help(row);
        found |= shown;
    }
    return found;
}

void options_help_topics(const option_set *o) {
    char text[512] = "";
    for (int i = 0; i < o->rows; i++) {
        const option *d = &o->table[i];
        const size_t used = strlen(text);
        if (d->type == OPTION_HEADING && d->name != NULL)
            (void)snprintf(text + used, sizeof text - used, "%s%s", used ? " " : "", d->name);
    }
    printf("  ");
    options_print_wrapped(text, 2);
}

/* ---- values as text ------------------------------------------------------------------------ */

/* Writes "FLAG VALUE\n", or "" for an option that may differ between ranks. */
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
        if (((const option_list *)field)->n == 0)
            return snprintf(text, bytes, "%s auto\n", d->flag);
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

int options_idle(const option_set *o, int *row, char *sentence, size_t bytes) {
    for (; *row < o->rows; ++*row) {
        const option *d = &o->table[*row];
        if (d->idle == NULL || !o->given[*row]) continue;
        (void)snprintf(sentence, bytes, "%s %.10g changes nothing here: %s", d->flag,
                       option_number(o, d), d->idle);
        ++*row;
        return 1;
    }
    return 0;
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

/* Returns the value in the target, in the units of the option. */
static double option_load(const option_set *o, const option *d, const void *target) {
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

/* Returns whether the file has a value for a row. Only the command line can have a list of several.
 */
static int option_in_file(const option_set *o, const option *d, const void *target, uint64_t bits) {
    if (d->key == NULL) return 0;
    if (d->type == OPTION_STAGES && ((const option_list *)option_field(o, d))->n > 1) return 0;
    if (d->bit) return (bits & d->bit) != 0;
    const double found = option_load(o, d, target);
    return d->form == OPTION_AS_NOT ? found == 0 : found != 0;
}

int options_fixed(const option_set *o, const char *flag, const void *target, uint64_t bits) {
    const option *d = options_find(o, flag);
    return o->given[d - o->table] || option_in_file(o, d, target, bits);
}

void options_store(const option_set *o, void *target) {
    for (int i = 0; i < o->rows; i++) option_store(o, &o->table[i], target);
}

int options_conflict(const option_set *o, const void *target, uint64_t bits, const char *name,
                     char *sentence, size_t bytes) {
    for (int i = 0; i < o->rows; i++) {
        const option *d = &o->table[i];
        char a[32], b[32];
        const int there = option_in_file(o, d, target, bits);
        if (!o->given[i] || !(there || (d->bit && d->rule == OPTION_FILE_ALWAYS))) continue;
        const double found = option_load(o, d, target);
        double typed = option_number(o, d);
        if (d->form == OPTION_AS_FLOAT) typed = (double)(float)typed;
        const int chooses =
            d->type == OPTION_STAGES && ((const option_list *)option_field(o, d))->n == 0;
        if (!chooses && (typed == found || (d->unsaid && typed == 0))) continue;
        (void)snprintf(a, sizeof a, "%.7g", typed);
        (void)snprintf(b, sizeof b, "%.7g", found);
        if (chooses) (void)snprintf(a, sizeof a, "auto");
        if (d->type == OPTION_WORD) {
            option_word(d->words, (int)typed, a);
            option_word(d->words, (int)found, b);
        }
        if (!there) {
            (void)snprintf(
                sentence, bytes,
                "%s %s: %s has no %s, which is %s by default; write \"auto\" there to use "
                "the value of the flag, or leave out the flag",
                d->flag, a, name, d->key, b);
            return 1;
        }
        (void)snprintf(sentence, bytes, "%s %s: %s gives %s %s; leave one of the two out", d->flag,
                       a, name, d->key, b);
        return 1;
    }
    return 0;
}

/* Returns the row with the setting that a text starts with, or NULL. A name of one word counts
   only before " is ", because it can also be an ordinary word. */
static const option *option_of_member(const option_set *o, const char *text) {
    const size_t length = strspn(text, "abcdefghijklmnopqrstuvwxyz_0123456789");
    for (int i = 0; i < o->rows && length > 0; i++) {
        const char *member = o->table[i].target_name;
        if (member == NULL) continue;
        const char *dot = strrchr(member, '.'), *name = dot != NULL ? dot + 1 : member;
        if (strlen(name) != length || strncmp(name, text, length) != 0) continue;
        if (strchr(name, '_') != NULL || strncmp(text + length, " is ", 4) == 0)
            return &o->table[i];
    }
    return NULL;
}

/* Returns the length of a word at the start of a text if it is one of the row's words in upper
 * case.
 */
static int option_upper_word(const option *d, const char *text) {
    const int length = (int)strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ");
    char word[OPTION_WORD_BYTES] = "";
    if (length == 0 || length >= OPTION_WORD_BYTES || d->words == NULL) return 0;
    for (int i = 0; i < length; i++) word[i] = (char)(text[i] + ('a' - 'A'));
    return option_find_word(d->words, word) >= 0 ? length : 0;
}

void options_translate(const option_set *o, const char *sentence, char *out, size_t bytes) {
    size_t used = 0;
    const char *colon = strstr(sentence, ": ");
    const int call = strncmp(sentence, "zero_", 5) == 0 && colon != NULL;
    if (call && option_of_member(o, colon + 2) != NULL) sentence = colon + 2;
    for (const char *at = sentence; *at && used + 1 < bytes;) {
        const int begins = at == sentence || strchr(" (,;", at[-1]) != NULL;
        const option *d = begins ? option_of_member(o, at) : NULL;
        if (d == NULL) {
            out[used++] = *at++;
            continue;
        }
        used += (size_t)snprintf(out + used, bytes - used, "%s", d->flag);
        at += strspn(at, "abcdefghijklmnopqrstuvwxyz_0123456789");
        const int value = strncmp(at, " is ", 4) == 0 ? option_upper_word(d, at + 4) : 0;
        if (value == 0 || used + 5 + (size_t)value > bytes) continue;
        used += (size_t)snprintf(out + used, bytes - used, " is ");
        for (at += 4; *at >= 'A' && *at <= 'Z'; at++) out[used++] = (char)(*at + ('a' - 'A'));
    }
    out[used < bytes ? used : bytes - 1] = 0;
}

void options_take(option_set *o, const void *target, uint64_t bits) {
    for (int i = 0; i < o->rows; i++) {
        const option *d = &o->table[i];
        if (option_in_file(o, d, target, bits)
            || (d->key != NULL
                && (d->rule == OPTION_FILE_ALWAYS
                    || (d->rule == OPTION_FILE_UNLESS_TYPED && !o->given[i]))))
            option_set_number(o, d, option_load(o, d, target));
    }
}

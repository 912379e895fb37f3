/* report.c - see report.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "report.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

int report_begin(void) {
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", O_RDWR) != fd) return 0;
    return 1;
}

int report_end(char *sentence, size_t bytes) {
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout)) return 0;
    if (errno == 0 && putchar('\n') >= 0)
        (void)fflush(stdout); /* it failed before: flush again to get errno */
    const int number = errno;
    (void)snprintf(sentence, bytes, "the output cannot be written%s%s", number ? ": " : "",
                   number ? strerror(number) : "");
    return 1;
}

static void report_set_live(report *r, int live) {
    r->live = live;
    if (r->shared_live != NULL) __atomic_store_n(r->shared_live, live, __ATOMIC_RELEASE);
}

void report_print(report *r, const char *format, ...) {
    if (!r->speaks) return;
    va_list values;
    char sentence[128];
    if (r->live) printf("\r\033[K");
    report_set_live(r, 0);
    va_start(values, format);
    vprintf(format, values);
    va_end(values);
    if (!report_end(sentence, sizeof sentence) || r->lost) return;
    r->lost = 1;
    if (r->on_loss != NULL) r->on_loss(r->user, sentence);
}

void report_clear(report *r) {
    if (r->live) report_print(r, "%s", "");
}

void report_warn(report *r, const char *format, ...) {
    va_list values;
    report_clear(r);
    if (!r->speaks) return;
    fprintf(stderr, "%s: warning: ", r->program);
    va_start(values, format);
    vfprintf(stderr, format, values);
    va_end(values);
    fprintf(stderr, "\n");
}

int report_is_terminal(void) {
    const char *kind = getenv("TERM");
    return isatty(STDOUT_FILENO) && (kind == NULL || strcmp(kind, "dumb") != 0);
}

/* Returns the width for the live line: a line that wraps cannot be rewritten. */
static int report_columns(void) {
    struct winsize size;
    const int known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
    return known ? size.ws_col - 1 : 79;
}

void report_live(report *r, const char *line) {
    if (!r->terminal) return;
    report_set_live(r, 0); /* the next print clears the line itself */
    report_print(r, "\r\033[K%.*s", report_columns(), line);
    report_set_live(r, 1);
}

enum { REPORT_COLUMN = 52 }; /* width of the values in a table */

void report_rule(report *r) {
    report_print(
        r, "+----------------------+------------------------------------------------------+\n");
}

/* Returns the length of the first line of a text in a column: up to the last blank that fits, or
   the column's width if a word is longer. */
static int report_line_length(const char *text) {
    int blank = 0;
    for (int i = 0; i <= REPORT_COLUMN; i++) {
        if (!text[i]) return i;
        if (text[i] == ' ') blank = i;
    }
    return blank ? blank : REPORT_COLUMN;
}

void report_row(report *r, const char *name, const char *format, ...) {
    char all[512];
    const char *text = all;
    va_list values;
    va_start(values, format);
    (void)vsnprintf(all, sizeof all, format, values);
    va_end(values);
    do {
        const int length = report_line_length(text);
        report_print(r, "| %-20s | %-*.*s |\n", name, REPORT_COLUMN, length, text);
        text += length + (text[length] == ' ');
        name = "";
    } while (*text);
}

void report_mib(report *r, const char *name, uint64_t bytes, const char *more) {
    report_row(r, name, "%.1f MiB%s", (double)bytes / (1024 * 1024), more);
}

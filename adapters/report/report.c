/* report.c - see report.h. */
#include "report.h"

#include <stdio.h>

void report_vsay(report *r, const char *format, va_list values) {
    if (!r->speaks) return;
    vprintf(format, values);
    fflush(stdout);
}

void report_say(report *r, const char *format, ...) {
    va_list values;
    va_start(values, format);
    report_vsay(r, format, values);
    va_end(values);
}

void report_clear(report *r) {
    if (r->terminal) report_say(r, "\r\033[K");
}

void report_progress(report *r, double done, double seconds) {
    const int left = done > 0 ? (int)(seconds / done * (1 - done) + 0.5) : 0;
    if (!r->terminal) return;
    report_say(r, "%3.0f%% done", 100 * done);
    if (done > 0) report_say(r, " | %d min %02d s left", left / 60, left % 60);
}

void report_rule(report *r) {
    report_say(r,
               "+----------------------+------------------------------------------------------+\n");
}

void report_row(report *r, const char *name, const char *format, ...) {
    char text[256];
    va_list values;
    va_start(values, format);
    (void)vsnprintf(text, sizeof text, format, values);
    va_end(values);
    report_say(r, "| %-20s | %-52s |\n", name, text);
}

/* report.h - what a job of many ranks says on stdout: rank 0 speaks, on a terminal over a line of
   progress that is rewritten.

   WHY A ROOM. Trainer and comparison say things alike, and nothing of how they are said is theirs.
   Each line is flushed, so that a file or a pipe has it when it was said.
*/
#ifndef REPORT_H
#define REPORT_H

#include <stdarg.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define REPORT_PRINTF(format_at, values_at) __attribute__((format(printf, format_at, values_at)))
#else
#define REPORT_PRINTF(format_at, values_at)
#endif

typedef struct report {
    int speaks;   /* 0: another rank does, and nothing is printed */
    int terminal; /* 1: there is a line of progress */
} report;

void report_say(report *r, const char *format, ...) REPORT_PRINTF(2, 3);
void report_vsay(report *r, const char *format, va_list values) REPORT_PRINTF(2, 0);

/* The bottom line of a terminal; whoever speaks clears it first. done: 0 to 1. */
void report_clear(report *r);
void report_progress(report *r, double done, double seconds);

/* A table of names and values. */
void report_rule(report *r);
void report_row(report *r, const char *name, const char *format, ...) REPORT_PRINTF(3, 4);

#ifdef __cplusplus
}
#endif
#endif

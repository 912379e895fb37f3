/* report.h - prints for a job of many ranks. Only rank 0 prints to stdout. On a terminal the last
   line shows progress, and is rewritten.

   WHY A FILE. The trainer, the comparison and the tools print in one form. Each line is flushed, so
   a file or a pipe has it at once. A line that cannot be written is reported.
*/
#ifndef REPORT_H
#define REPORT_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define REPORT_PRINTF(format_at, values_at) __attribute__((format(printf, format_at, values_at)))
#else
#define REPORT_PRINTF(format_at, values_at)
#endif

typedef struct report {
    const char *program; /* the name before each warning */
    int speaks;          /* 0: another rank prints, and this one prints nothing */
    int terminal;        /* 1: stdout shows a live line, which is rewritten */
    int live;            /* private: the live line is shown now */
    int *shared_live;    /* NULL, or a copy of `live` for other processes of the terminal */
    int lost;            /* 1: some text could not be written */
    void (*on_loss)(void *user, const char *sentence); /* called once, at the first such loss */
    void *user;
} report;

void report_print(report *r, const char *format, ...) REPORT_PRINTF(2, 3);
/* Prints a line to stderr: "PROGRAM: warning: ...". */
void report_warn(report *r, const char *format, ...) REPORT_PRINTF(2, 3);

/* Shows the live line of a terminal, cut to its width; elsewhere does nothing. The next
   report_print replaces it. Call report_clear before you write to stderr. */
void report_live(report *r, const char *line);
void report_clear(report *r);

/* Returns 1 if stdout is a terminal on which a line can be rewritten. */
int report_is_terminal(void);

/* Prints a table of names and values, 79 columns wide. A longer value continues in the next row.
   report_mib prints bytes as MiB, and then `more`. */
void report_rule(report *r);
void report_row(report *r, const char *name, const char *format, ...) REPORT_PRINTF(3, 4);
void report_mib(report *r, const char *name, uint64_t bytes, const char *more);

/* Checks that all output to stdout was written. Returns 0, or 1 and a sentence. */
int report_end(char *sentence, size_t bytes);

/* Call it first in main. It opens /dev/null for each closed descriptor of 0 to 2. Otherwise a file
   opened later could get such a number, and printed text with it. Returns 0 on failure. */
int report_begin(void);

#ifdef __cplusplus
}
#endif
#endif

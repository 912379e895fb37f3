/* report.h - what a job of many ranks says on stdout: rank 0 speaks, on a terminal over a line of
   progress that is rewritten.

   WHY A ROOM. Trainer, comparison and tools say things alike, and nothing of how they are said is
   theirs. Each line is flushed, so that a file or a pipe has it when it was said, and one that
   cannot be written is not lost without a word.
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
    const char *program; /* what stands before warnings */
    int speaks;          /* 0: another rank does, and nothing is printed */
    int terminal;        /* 1: there is a live line, which is rewritten */
    int live;            /* private: it stands there now */
    int lost;            /* 1: something could not be written */
    void (*on_loss)(void *user, const char *sentence); /* called when that is found, once */
    void *user;
} report;

void report_print(report *r, const char *format, ...) REPORT_PRINTF(2, 3);
/* A line of stderr: "PROGRAM: warning: ...". */
void report_warn(report *r, const char *format, ...) REPORT_PRINTF(2, 3);

/* The bottom line of a terminal, cut to its width; nothing elsewhere. What is said next takes its
   place; report_clear is for what is written to stderr. */
void report_live(report *r, const char *line);
void report_clear(report *r);

/* Whether stdout is a terminal on which a line can be rewritten. */
int report_is_terminal(void);

/* A table of names and values. _mib: bytes as MiB, and words behind them. */
void report_rule(report *r);
void report_row(report *r, const char *name, const char *format, ...) REPORT_PRINTF(3, 4);
void report_mib(report *r, const char *name, uint64_t bytes, const char *more);

/* Whether all that was printed to stdout is written. Returns 0, or 1 and a sentence. */
int report_end(char *sentence, size_t bytes);

/* First in main: a descriptor of 0 to 2 that was closed becomes /dev/null, so that no file that is
   opened later gets its number, and what is printed. Returns 0 where it cannot be. */
int report_begin(void);

#ifdef __cplusplus
}
#endif
#endif

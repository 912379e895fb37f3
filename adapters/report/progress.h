/* progress.h - reports the progress of long work.

   ON A TERMINAL progress_at rewrites the live line of report.h at most ten times a second: the name
   of the work, the finished share, the remaining time. ELSEWHERE it prints a line every
   PROGRESS_PAUSE_S seconds, and none for short work. So a log stays readable, and shows whether a
   run hangs.

   WHY A FILE. Data, weights, validation, evaluation and steps report progress in one form. A call
   only reads the clock, unless it prints.
*/
#ifndef PROGRESS_H
#define PROGRESS_H

#include <stdint.h>

#include "report.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    PROGRESS_PAUSE_S = 20,  /* between two lines, if stdout is not a terminal */
    PROGRESS_LONG_MIB = 256 /* larger work is announced by a line everywhere */
};

typedef struct progress {
    report *out;
    const char *what; /* borrowed */
    double began;     /* clock */
    double told;      /* private: when the last line was written */
} progress;

/* what: "validation". */
void progress_begin(progress *p, report *out, const char *what);

/* Reports the finished share `done`, 0 to 1. A terminal shows `note` instead of `what`, unless it
   is NULL. You may call it often. */
void progress_at(progress *p, double done, const char *note);

/* Reports work without a known share: "WHAT ...". bytes: the size of its data; 0: small. */
void progress_phase(report *out, const char *what, uint64_t bytes);

/* Does the same for a file that the caller reads next. */
void progress_file(report *out, const char *what, const char *path);

#ifdef __cplusplus
}
#endif
#endif

/* progress.h - how far work is that takes long, so that nobody waits before a silent screen.

   ON A TERMINAL the live line of report.h, rewritten ten times a second at most: what is being
   done, the share that is done, the time that remains. ELSEWHERE a line now and then, and none for
   work that is short: a log stays readable, and a run that hangs can be told from one that works.

   WHY A ROOM. Data, weights, validation, evaluation and steps all take long at some size; that they
   tell it alike, and at no cost (a look at the clock), is not the business of any of them.
*/
#ifndef PROGRESS_H
#define PROGRESS_H

#include <stdint.h>

#include "report.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    PROGRESS_PAUSE_S = 20,  /* between two lines that are not on a terminal */
    PROGRESS_LONG_MIB = 256 /* work on so much is announced by a line everywhere */
};

typedef struct progress {
    report *out;
    const char *what; /* borrowed */
    double began;     /* clock */
    double told;      /* private: when the last line was written */
} progress;

/* what: "validation". */
void progress_begin(progress *p, report *out, const char *what);

/* done: the share, 0 to 1. note: what a terminal shows before it instead of `what`; NULL: nothing
   else. Call it as often as there is something to tell. */
void progress_at(progress *p, double done, const char *note);

/* Work whose share is not known: "WHAT ...". bytes: that it goes through; 0: not much. */
void progress_phase(report *out, const char *what, uint64_t bytes);

/* The same for a file that is about to be read. */
void progress_file(report *out, const char *what, const char *path);

#ifdef __cplusplus
}
#endif
#endif

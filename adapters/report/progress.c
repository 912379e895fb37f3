/* progress.c - see progress.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "progress.h"
#include "pace.h"

#include <math.h>
#include <stdio.h>
#include <sys/stat.h>

#define PROGRESS_BLINK_S 0.1 /* between two live lines */

/* "12% done, 3 min 05 s left". The share is rounded down: 100% means that all is done. */
static void progress_words(double done, double seconds, char *text, size_t bytes) {
    const double share = done < 0 ? 0 : done > 1 ? 1 : done;
    const double left = share > 0 ? seconds / share * (1 - share) : 0;
    const long all = left < 1e9 ? (long)(left + 0.5) : 0;
    int used = snprintf(text, bytes, "%.0f%% done", floor(100 * share + 1e-9));
    if (share <= 0 || share >= 1) return;
    if (all >= 3600)
        (void)snprintf(text + used, bytes - (size_t)used, ", %ld h %02ld min left", all / 3600,
                       all / 60 % 60);
    else
        (void)snprintf(text + used, bytes - (size_t)used, ", %ld min %02ld s left", all / 60,
                       all % 60);
}

void progress_begin(progress *p, report *out, const char *what) {
    p->out = out;
    p->what = what;
    p->began = p->told = pace_clock();
    progress_phase(out, what, 0);
}

void progress_at(progress *p, double done, const char *note) {
    char words[64], line[256];
    const double now = pace_clock();
    const double pause = p->out->terminal ? PROGRESS_BLINK_S : (double)PROGRESS_PAUSE_S;
    if (now - p->told < pause || (note != NULL && !p->out->terminal)) return;
    p->told = now;
    progress_words(done, now - p->began, words, sizeof words);
    (void)snprintf(line, sizeof line, "%s | %s", note != NULL ? note : p->what, words);
    if (p->out->terminal)
        report_live(p->out, line);
    else
        report_print(p->out, "%s\n", line);
}

void progress_phase(report *out, const char *what, uint64_t bytes) {
    char line[256];
    const uint64_t mib = bytes >> 20;
    (void)snprintf(line, sizeof line, "%.240s ...", what);
    if (out->terminal)
        report_live(out, line);
    else if (mib >= PROGRESS_LONG_MIB)
        report_print(out, "%s, %llu MiB\n", what, (unsigned long long)mib);
}

void progress_file(report *out, const char *what, const char *path) {
    char line[256];
    struct stat is;
    (void)snprintf(line, sizeof line, "%.30s %.200s", what, path);
    progress_phase(out, line, stat(path, &is) == 0 ? (uint64_t)is.st_size : 0);
}

/* main_log.c - see main_log.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "main_log.h"
#include "../system/regular_file.h"
#include "../system/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINE = 512 };

struct main_log {
    int file;
    char folder[1024], path[1024 + 16];
    char error[1024 + 128], note[1024 + 128];
    int told;     /* 1: main_log_note has returned the note */
    int failing;  /* the last line was lost */
    int64_t lost; /* lines */
};

static int main_log_fail(main_log *log, const char *what, int number) {
    (void)snprintf(log->error, sizeof log->error, "-o: %s %s: %s", log->path, what,
                   regular_file_error(number));
    return 1;
}

/* ---- opening ------------------------------------------------------------------------------- */

static int main_log_open_file(main_log *log, int flags) {
    (void)mkdir(log->folder, 0777); /* open reports a folder that is missing */
    const int file = regular_file_open(log->path, O_RDWR | O_CREAT | O_APPEND | flags);
    if (file < 0) (void)main_log_fail(log, "cannot be written", errno);
    return file;
}

/* Notes that steps first to last have no line. */
static void main_log_note_gap(main_log *log, int64_t first, int64_t last) {
    if (first > last || log->note[0]) return; /* the note names the first gap only */
    (void)snprintf(log->note, sizeof log->note, "%s lacks the lines of steps %lld to %lld",
                   log->path, (long long)first, (long long)last);
}

/* Returns the offset of the first incomplete line, or of the first line of `step` or a later one,
   which a killed run wrote after its last checkpoint. */
static off_t main_log_end(main_log *log, FILE *lines, int64_t step) {
    char line[LINE];
    off_t end = 0;
    int64_t next = 0;
    while (fgets(line, sizeof line, lines) != NULL && strchr(line, '\n') != NULL) {
        long long found = -1;
        int chars = 0;
        if (sscanf(line, "s:%lld trl:%n", &found, &chars) == 1 && found >= step) break;
        if (chars > 0 && found >= 0) {
            main_log_note_gap(log, next, found - 1);
            next = found + 1;
        }
        end = ftello(lines);
    }
    main_log_note_gap(log, next, step - 1);
    return end;
}

static int main_log_cut(main_log *log, int64_t step) {
    const int again = dup(log->file);
    FILE *lines = again >= 0 ? fdopen(again, "r") : NULL;
    const off_t end = lines != NULL && step > 0 ? main_log_end(log, lines, step) : 0;
    const int failed = lines == NULL || ferror(lines) || ftruncate(log->file, end) != 0;
    const int number = errno;
    if (lines != NULL) (void)fclose(lines);
    return failed ? main_log_fail(log, "cannot be continued", number) : 0;
}

main_log *main_log_open(const char *folder, int64_t step, char *sentence, size_t bytes) {
    main_log *log = (main_log *)calloc(1, sizeof *log);
    if (log == NULL || strlen(folder) >= sizeof log->folder) {
        (void)snprintf(sentence, bytes, "-o: %.200s: %s", folder,
                       log == NULL ? "no memory for a log" : "the path is too long");
        free(log);
        return NULL;
    }
    memcpy(log->folder, folder, strlen(folder) + 1);
    (void)snprintf(log->path, sizeof log->path, "%s/main.log", folder);
    log->file = main_log_open_file(log, 0);
    if (log->file >= 0 && main_log_cut(log, step) == 0) return log;
    (void)snprintf(sentence, bytes, "%s", log->error);
    (void)main_log_close(log);
    return NULL;
}

/* ---- lines --------------------------------------------------------------------------------- */

/* Appends all bytes or none: after an error it cuts the part that was written. Returns 0 or errno.
 */
static int main_log_append(int file, const char *text, size_t bytes) {
    struct stat before;
    if (fstat(file, &before) != 0) return errno;
    for (size_t done = 0; done < bytes;) {
        const ssize_t wrote = write(file, text + done, bytes - done);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote < 0) {
            const int number = errno;
            return ftruncate(file, before.st_size) == 0 ? number : errno;
        }
        done += (size_t)wrote;
    }
    return 0;
}

static int main_log_copy(int from, int to) {
    char piece[4096];
    ssize_t got;
    for (off_t at = 0; (got = pread(from, piece, sizeof piece, at)) > 0; at += got) {
        const int number = main_log_append(to, piece, (size_t)got);
        if (number) return number;
    }
    return got < 0 ? errno : 0;
}

/* If the log was removed, makes it again and copies its lines from the open file. */
static int main_log_find(main_log *log) {
    struct stat is;
    if (stat(log->path, &is) == 0 || errno != ENOENT) return 0;
    const int file = main_log_open_file(log, O_EXCL);
    if (file < 0) return 1;
    const int number = main_log_copy(log->file, file);
    (void)close(log->file);
    log->file = file;
    if (number) return main_log_fail(log, "cannot be written", number);
    (void)snprintf(log->note, sizeof log->note, "%s was removed, and is made again", log->path);
    log->told = 0;
    return 0;
}

static int main_log_line(main_log *log, const char *line, int chars) {
    const int was_failing = log->failing;
    log->failing = main_log_find(log);
    if (!log->failing) {
        const int number = main_log_append(log->file, line, (size_t)chars);
        log->failing = number != 0 && main_log_fail(log, "cannot be written", number);
    }
    log->lost += log->failing;
    return log->failing && !was_failing;
}

int main_log_step(main_log *log, const main_log_values *v) {
    char line[LINE], skipped[32] = "";
    if (log == NULL) return 0;
    if (v->skipped) (void)snprintf(skipped, sizeof skipped, " skipped:%lld", (long long)v->skipped);
    const int chars = snprintf(
        line, sizeof line, "s:%lld trl:%.4f lr:%.6f norm:%.2f t:%.3f ms:%.3f tps:%.0f mib:%.1f%s\n",
        (long long)v->step, v->loss, v->lr, v->norm, clock_seconds(CLOCK_REALTIME),
        1e3 * v->seconds, v->tokens_per_s, v->mib, skipped);
    return main_log_line(log, line, chars < LINE ? chars : LINE - 1);
}

static int main_log_look(main_log *log, int64_t step, const char *name, double value) {
    char line[LINE];
    if (log == NULL) return 0;
    const int chars = snprintf(line, sizeof line, "s:%lld %s:%.4f t:%.3f\n", (long long)step, name,
                               value, clock_seconds(CLOCK_REALTIME));
    return main_log_line(log, line, chars < LINE ? chars : LINE - 1);
}

int main_log_validation(main_log *log, int64_t step, double loss) {
    return main_log_look(log, step, "tel", loss);
}

int main_log_evaluation(main_log *log, int64_t step, double share) {
    return main_log_look(log, step, "eval", share);
}

int main_log_products(main_log *log, int64_t step, uint64_t hash) {
    char line[LINE];
    if (log == NULL) return 0;
    const int chars =
        snprintf(line, sizeof line, "s:%lld products:%016llx t:%.3f\n", (long long)step,
                 (unsigned long long)hash, clock_seconds(CLOCK_REALTIME));
    return main_log_line(log, line, chars < LINE ? chars : LINE - 1);
}

int main_log_auto(main_log *log, int64_t step, const char *flags) {
    char line[LINE], text[LINE / 2];
    if (log == NULL) return 0;
    (void)snprintf(text, sizeof text, "%s", flags);
    for (char *c = text; *c; c++)
        if (*c == ' ') *c = ',';
    const int chars = snprintf(line, sizeof line, "s:%lld auto:%s t:%.3f\n", (long long)step, text,
                               clock_seconds(CLOCK_REALTIME));
    return main_log_line(log, line, chars < LINE ? chars : LINE - 1);
}

int main_log_ranks(main_log *log, int64_t step, int ranks, double seconds) {
    char line[LINE];
    if (log == NULL) return 0;
    const int chars =
        snprintf(line, sizeof line, "s:%lld ranks:%d ms:%.3f t:%.3f\n", (long long)step, ranks,
                 seconds * 1e3, clock_seconds(CLOCK_REALTIME));
    return main_log_line(log, line, chars < LINE ? chars : LINE - 1);
}

const char *main_log_error(const main_log *log) { return log->error; }

const char *main_log_note(main_log *log) {
    if (log == NULL || log->told || !log->note[0]) return NULL;
    log->told = 1;
    return log->note;
}

int main_log_sync(main_log *log) {
    if (log == NULL || fsync(log->file) == 0) return 0;
    return main_log_fail(log, "cannot be written", errno);
}

int64_t main_log_close(main_log *log) {
    if (log == NULL) return 0;
    int64_t lost = log->lost;
    if (log->file >= 0 && close(log->file) != 0 && lost == 0) lost = 1;
    free(log);
    return lost;
}

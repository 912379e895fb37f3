/* main_log.c - see main_log.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "main_log.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct main_log {
    FILE *file;
};

/* Where the first line of a later step starts, or the first one that is not whole: a run that was
   killed went on after its last checkpoint. */
static long main_log_end(FILE *log, int64_t step) {
    char line[256];
    long end = 0;
    long long found;
    while (fgets(line, sizeof line, log) != NULL && strchr(line, '\n') != NULL) {
        if (sscanf(line, "s:%lld ", &found) == 1 && found >= step) break;
        end = ftell(log);
    }
    return end;
}

static FILE *main_log_open_at(const char *path, int64_t step) {
    FILE *log = step > 0 ? fopen(path, "r+") : NULL;
    if (log == NULL && step > 0 && errno != ENOENT) return NULL;
    if (log == NULL) return fopen(path, "w");
    const long end = main_log_end(log, step);
    if (fseek(log, end, SEEK_SET) == 0 && ftruncate(fileno(log), end) == 0) return log;
    fclose(log);
    return NULL;
}

main_log *main_log_open(const char *folder, int64_t step, char *sentence, size_t bytes) {
    char path[1024];
    main_log *log = (main_log *)calloc(1, sizeof *log);
    (void)snprintf(path, sizeof path, "%s/main.log", folder);
    (void)mkdir(folder, 0777); /* fopen tells if it is not there */
    if (log != NULL) log->file = main_log_open_at(path, step);
    if (log != NULL && log->file != NULL) return log;
    (void)snprintf(sentence, bytes, "-o: %s cannot be written: %s", path, strerror(errno));
    free(log);
    return NULL;
}

void main_log_step(main_log *log, int64_t step, double loss, double lr, double norm) {
    if (log == NULL) return;
    fprintf(log->file, "s:%lld trl:%.4f lr:%.6f norm:%.2f\n", (long long)step, loss, lr, norm);
    fflush(log->file);
}

void main_log_validation(main_log *log, int64_t step, double loss) {
    if (log == NULL) return;
    fprintf(log->file, "s:%lld tel:%.4f\n", (long long)step, loss);
    fflush(log->file);
}

void main_log_sync(main_log *log) {
    if (log != NULL) (void)fsync(fileno(log->file));
}

void main_log_close(main_log *log) {
    if (log == NULL) return;
    fclose(log->file);
    free(log);
}

/* run_note.c - see run_note.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "run_note.h"

#include "../system/regular_file.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "../../zero_plugin.h"

#ifndef RUN_NOTE_COMMIT
#define RUN_NOTE_COMMIT "unknown" /* a build without git */
#endif

void run_note_flags(int argc, char **argv, char text[RUN_NOTE_FLAGS]) {
    size_t used = 0;
    text[0] = 0;
    for (int i = 1; i < argc && used < RUN_NOTE_FLAGS; i++) {
        const char *quote = argv[i][0] == 0 || strpbrk(argv[i], " \t\n\"*?$") != NULL ? "'" : "";
        used += (size_t)snprintf(text + used, RUN_NOTE_FLAGS - used, "%s%s%s%s", i > 1 ? " " : "",
                                 quote, argv[i], quote);
    }
    for (char *c = text; *c; c++)
        if (*c == '\n' || *c == '\r') *c = ' ';
}

int run_note_write(const char *path, const run_note *n) {
    char name[1100], host[128] = "unknown", date[32];
    struct stat is;
    struct tm now;
    const time_t seconds = time(NULL);
    if (!path[0] || stat(path, &is) != 0 || !S_ISREG(is.st_mode)) return 0;
    (void)gethostname(host, sizeof host - 1);
    (void)strftime(date, sizeof date, "%Y-%m-%d %H:%M UTC", gmtime_r(&seconds, &now));
    (void)snprintf(name, sizeof name, "%.1000s.note", path);
    FILE *file = regular_file_stream(name, "w");
    if (file == NULL) return errno;
    const int failed = fprintf(file,
                               "program %s %s\ncommit %s\nmodel %s\nranks %d\nflags %s\nhost %s\n"
                               "date %s\n",
                               n->program, zero_version(), RUN_NOTE_COMMIT, n->model, n->ranks,
                               n->flags, host, date)
                       < 0;
    const int number = errno;
    return fclose(file) != 0 ? errno : failed ? number : 0;
}

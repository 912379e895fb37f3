/* checkpoint_folder.c - generations as folders. A folder's name is its state. step_00000020 is
   complete. .tmp-ID is being written. .old-ID was replaced by another save of its step, and stays
   valid until that save is durable. .gone-ID is being removed. .left-ID is from a later step than
   the run resumed from. Only renames change the state. */
#include "checkpoint_inside.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

checkpoint_result ck_folder_make(const char *path, ck_error *e) {
    struct stat is;
    if (mkdir(path, 0777) == 0) return CHECKPOINT_OK;
    if (errno == EEXIST && stat(path, &is) == 0 && S_ISDIR(is.st_mode)) return CHECKPOINT_OK;
    return ck_fail_errno(e, "cannot make the folder %s", path);
}

checkpoint_result ck_folder_sync(const char *path, ck_error *e) {
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return ck_fail_errno(e, "cannot open the folder %s", path);
    const int failed = fsync(fd);
    const int number = errno;
    (void)close(fd);
    errno = number;
    /* EINVAL means that the file system has nothing to sync here. */
    if (failed && number != EINVAL) return ck_fail_errno(e, "cannot fsync the folder %s", path);
    return CHECKPOINT_OK;
}

checkpoint_result ck_folder_remove(const char *path, ck_error *e) {
    DIR *dir = opendir(path);
    const struct dirent *entry;
    char file[CK_PATH];
    checkpoint_result r = CHECKPOINT_OK;
    if (dir == NULL) return errno == ENOENT ? r : ck_fail_errno(e, "cannot open %s", path);
    while (!r && (entry = readdir(dir)) != NULL) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        r = ck_path(file, path, entry->d_name, e);
        if (!r && unlink(file) && errno != ENOENT) r = ck_fail_errno(e, "cannot remove %s", file);
    }
    (void)closedir(dir);
    if (!r && rmdir(path) && errno != ENOENT) r = ck_fail_errno(e, "cannot remove %s", path);
    return r;
}

/* ---- room ---- */

static uint64_t ck_room(const char *path) {
    struct statvfs is;
    return statvfs(path, &is) ? UINT64_MAX : (uint64_t)is.f_bavail * is.f_frsize;
}

checkpoint_result ck_folder_room(const char *path, uint64_t bytes, ck_error *e) {
    const uint64_t there = ck_room(path);
    if (there >= bytes) return CHECKPOINT_OK;
    return ck_fail(e, CHECKPOINT_FILES,
                   "%" PRIu64 " bytes are needed in %s, %" PRIu64
                   " are there; free some, or give another folder",
                   bytes, path, there);
}

void ck_folder_explain(const char *path, uint64_t bytes, ck_error *e) {
    const uint64_t there = ck_room(path);
    const size_t n = strlen(e->text);
    const int full = e->code == CHECKPOINT_FILES
                     && (e->number == ENOSPC || e->number == EDQUOT || e->number == EFBIG);
    if (there == UINT64_MAX || !full) return;
    (void)snprintf(e->text + n, sizeof e->text - n,
                   " (%" PRIu64 " bytes are needed in all, %" PRIu64 " are there)", bytes, there);
}

/* ---- small files ---- */

static checkpoint_result ck_read_rest(int fd, const char *path, char *text, size_t bytes,
                                      ck_error *e) {
    int direct = 0;
    const int got = ck_read_all(fd, 0, text, bytes, &direct);
    if (got < 0) return ck_fail_read(e, path);
    if (got == 0) return ck_fail(e, CHECKPOINT_DAMAGED, "%s has become shorter", path);
    text[bytes] = 0;
    return CHECKPOINT_OK;
}

checkpoint_result ck_file_read(const char *path, char **text, size_t *bytes, ck_error *e) {
    struct stat is;
    checkpoint_result r = CHECKPOINT_OK;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    *text = NULL;
    *bytes = 0;
    if (fd < 0) {
        const int gone = errno == ENOENT || errno == ENOTDIR;
        (void)ck_fail_errno(e, "cannot open %s", path);
        return gone ? (e->code = CHECKPOINT_DAMAGED) : e->code;
    }
    if (fstat(fd, &is))
        r = ck_fail_errno(e, "cannot look at %s", path);
    else if (!S_ISREG(is.st_mode) || is.st_size > INT32_MAX)
        r = ck_fail(e, CHECKPOINT_DAMAGED, "%s is no file, or too large", path);
    else if ((*text = (char *)malloc((size_t)is.st_size + 1)) == NULL)
        r = ck_fail(e, CHECKPOINT_MEMORY, "no memory for %s", path);
    else
        r = ck_read_rest(fd, path, *text, *bytes = (size_t)is.st_size, e);
    (void)close(fd);
    if (!r) return r;
    free(*text);
    *text = NULL;
    return r;
}

checkpoint_result ck_file_write(const char *path, const char *text, size_t bytes, ck_error *e) {
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) return ck_fail_errno(e, "cannot make %s", path);
    int direct = 0;
    const int failed = ck_write_all(fd, text, bytes, &direct) || fsync(fd), number = errno;
    const int closed = close(fd);
    if (failed) errno = number;
    return failed || closed ? ck_fail_errno(e, "cannot write %s", path) : CHECKPOINT_OK;
}

/* ---- names ---- */

void ck_generation_name(char out[CK_NAME], int64_t step) {
    (void)snprintf(out, CK_NAME, "step_%08" PRId64, step);
}

/* Returns the text after the digits of step_..., and writes *step. NULL: another name. */
static const char *ck_generation_tail(const char *name, int64_t *step) {
    char *end, again[CK_NAME];
    if (strncmp(name, "step_", 5) != 0 || name[5] < '0' || name[5] > '9') return NULL;
    errno = 0;
    *step = strtoll(name + 5, &end, 10);
    if (errno || end - name >= CK_NAME) return NULL;
    ck_generation_name(again, *step);
    return strlen(again) == (size_t)(end - name) && strncmp(again, name, strlen(again)) == 0 ? end
                                                                                             : NULL;
}

/* Sorts the newest first. Of one step, the complete one precedes those that it replaced. */
static int ck_generation_order(const void *a, const void *b) {
    const checkpoint_generation *x = (const checkpoint_generation *)a,
                                *y = (const checkpoint_generation *)b;
    if (x->step != y->step) return x->step > y->step ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int ck_list_add(checkpoint_generation **list, int *n, const char *name, int64_t step) {
    if ((*n & (*n - 1)) == 0) { /* full at powers of two */
        const size_t room = *n ? 2 * (size_t)*n : 1;
        void *more = realloc(*list, room * sizeof **list);
        if (more == NULL) return 0;
        *list = (checkpoint_generation *)more;
    }
    (*list)[*n].step = step;
    memcpy((*list)[*n].name, name, strlen(name) + 1); /* shorter than CK_NAME */
    ++*n;
    return 1;
}

checkpoint_result checkpoint_list(const char *folder, checkpoint_generation **list, int *n,
                                  char *why) {
    ck_error e = {CHECKPOINT_OK, 0, ""};
    const struct dirent *entry;
    int64_t step;
    DIR *dir = opendir(folder);
    *list = NULL;
    *n = 0;
    if (dir == NULL) (void)ck_fail_errno(&e, "cannot open the folder %s", folder);
    while (dir != NULL && !e.code && (errno = 0, entry = readdir(dir)) != NULL) {
        const char *tail = ck_generation_tail(entry->d_name, &step);
        if (tail == NULL || (*tail && strncmp(tail, ".old-", 5) != 0)
            || strlen(entry->d_name) >= CK_NAME)
            continue;
        if (!ck_list_add(list, n, entry->d_name, step))
            (void)ck_fail(&e, CHECKPOINT_MEMORY, "no memory to list %s", folder);
    }
    if (dir != NULL && !e.code && errno) (void)ck_fail_errno(&e, "cannot list %s", folder);
    if (dir != NULL) (void)closedir(dir);
    if (*n && !e.code) qsort(*list, (size_t)*n, sizeof **list, ck_generation_order);
    if (e.code) {
        free(*list);
        *list = NULL;
        *n = 0;
    }
    memcpy(why, e.text, sizeof e.text);
    return e.code;
}

/* ---- publishing ---- */

/* Replaces a save of the same step. The two names are exchanged in one call, if the system can do
   that. Otherwise the old one first gets a name that a load still finds. */
static checkpoint_result ck_generation_replace(const char *from, const char *to, uint64_t id,
                                               ck_error *e) {
    char old[CK_PATH];
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) == 0) return CHECKPOINT_OK;
    if (errno != EINVAL && errno != ENOSYS)
        return ck_fail_errno(e, "cannot exchange %s and %s", from, to);
    const int n = snprintf(old, sizeof old, "%s.old-%016" PRIx64, to, id);
    if (n < 0 || (size_t)n >= sizeof old)
        return ck_fail(e, CHECKPOINT_ARGUMENT,
                       "the path %.200s... is too long; use a shorter folder name", to);
    if (rename(to, old)) return ck_fail_errno(e, "cannot rename %s", to);
    if (rename(from, to) == 0) return CHECKPOINT_OK;
    (void)ck_fail_errno(e, "cannot rename %s to %s", from, to);
    (void)rename(old, to);
    return e->code;
}

checkpoint_result ck_generation_publish(const char *folder, const char *temporary, int64_t step,
                                        uint64_t id, int *done, ck_error *e) {
    char name[CK_NAME], from[CK_PATH], to[CK_PATH];
    ck_generation_name(name, step);
    CK_TRY(ck_path(from, folder, temporary, e));
    CK_TRY(ck_path(to, folder, name, e));
    CK_TRY(ck_folder_sync(from, e));
    if (rename(from, to)) {
        if (errno != ENOTEMPTY && errno != EEXIST)
            return ck_fail_errno(e, "cannot rename %s to %s", from, to);
        CK_TRY(ck_generation_replace(from, to, id, e));
    }
    *done = 1;
    return ck_folder_sync(folder, e);
}

/* ---- removing ---- */

static void ck_log(const ck_keep *k, const char *sentence) {
    if (k->log) k->log(k->user, sentence);
}

/* Renames the folder first, so that no load finds a partly removed generation. */
static void ck_generation_drop(const ck_keep *k, const char *name) {
    char from[CK_PATH], to[CK_PATH], gone[2 * CK_NAME];
    int64_t step;
    ck_error e = {CHECKPOINT_OK, 0, ""};
    const char *tail = ck_generation_tail(name, &step);
    if (tail == NULL) return;
    (void)snprintf(gone, sizeof gone, "%.*s.gone-%016" PRIx64, (int)(tail - name), name, k->id);
    if (ck_path(from, k->folder, name, &e) || ck_path(to, k->folder, gone, &e)) return;
    if (rename(from, to))
        (void)ck_fail_errno(&e, "cannot rename %s to %s", from, to);
    else
        (void)ck_folder_remove(to, &e);
    if (e.code) ck_log(k, e.text);
}

static void ck_generation_leave(const ck_keep *k, const char *name) {
    char from[CK_PATH], to[CK_PATH], left[2 * CK_NAME], sentence[CHECKPOINT_SENTENCE];
    ck_error e = {CHECKPOINT_OK, 0, ""};
    (void)snprintf(left, sizeof left, "%s.left-%016" PRIx64, name, k->id);
    if (ck_path(from, k->folder, name, &e) || ck_path(to, k->folder, left, &e)) return;
    if (rename(from, to))
        (void)ck_fail_errno(&e, "cannot rename %s to %s", from, to);
    else
        (void)snprintf(sentence, sizeof sentence,
                       "%s is of a run that continued differently; its name is now %s", name, left);
    ck_log(k, e.code ? e.text : sentence);
}

void ck_generation_prune(const ck_keep *k) {
    checkpoint_generation *list;
    char why[CHECKPOINT_SENTENCE], kept[CK_NAME];
    int n, place = 0;
    if (checkpoint_list(k->folder, &list, &n, why)) {
        ck_log(k, why);
        return;
    }
    for (int i = 0; i < n; i++) {
        ck_generation_name(kept, list[i].step);
        const int whole = strcmp(kept, list[i].name) == 0;
        const int again = !whole && list[i].step == k->step;
        const int many = whole && list[i].step <= k->step && k->last > 0 && place++ >= k->last
                         && !(k->every > 0 && list[i].step % k->every == 0);
        if (list[i].step > k->step)
            ck_generation_leave(k, list[i].name);
        else if (again || many)
            ck_generation_drop(k, list[i].name);
    }
    free(list);
}

/* ---- what killed runs left ---- */

void ck_leftovers_find(ck_leftovers *l, const char *folder) {
    DIR *dir = opendir(folder);
    const struct dirent *entry;
    int64_t step;
    while (dir != NULL && (entry = readdir(dir)) != NULL) {
        const char *tail = ck_generation_tail(entry->d_name, &step);
        if (tail == NULL || (strncmp(tail, ".tmp-", 5) != 0 && strncmp(tail, ".gone-", 6) != 0)
            || strlen(entry->d_name) >= CK_NAME)
            continue;
        if (!ck_list_add(&l->list, &l->n, entry->d_name, step)) break; /* the next run finds it */
    }
    if (dir != NULL) (void)closedir(dir);
}

void ck_leftovers_remove(ck_leftovers *l, const char *folder, double seconds) {
    const double end = ck_now() + seconds;
    char path[CK_PATH];
    ck_error ignored;
    while (l->n > 0) {
        if (!ck_path(path, folder, l->list[--l->n].name, &ignored))
            (void)ck_folder_remove(path, &ignored);
        if (ck_now() > end) return;
    }
    ck_leftovers_free(l);
}

void ck_leftovers_free(ck_leftovers *l) {
    free(l->list);
    l->list = NULL;
    l->n = 0;
}

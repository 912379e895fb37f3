/* checkpoint_shard.c - shard files: written once from an image of the state, and read in blocks
   that are verified before use. All sizes are multiples of a page, so direct I/O needs no special
   cases. Direct I/O does not fill the system's cache, and keeps fsync short. */
#include "checkpoint_inside.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- names, bytes ---- */

void ck_shard_name(char out[CK_NAME], int rank) {
    (void)snprintf(out, CK_NAME, "shard_%05d.bin", rank);
}

static void ck_store(unsigned char *to, uint64_t x, int n) {
    for (int i = 0; i < n; i++) to[i] = (unsigned char)(x >> (8 * i));
}
static uint64_t ck_fetch(const unsigned char *from, int n) {
    uint64_t x = 0;
    for (int i = 0; i < n; i++) x |= (uint64_t)from[i] << (8 * i);
    return x;
}

/* ---- the header: it names the run that wrote the file, for error sentences ---- */

static const char ck_magic[8] = {'Z', 'E', 'R', 'O', 'S', 'H', 'R', 'D'};
enum { CK_HEADER_USED = 56 };

void ck_header_write(void *page, const ck_header *h) {
    unsigned char *at = (unsigned char *)page;
    memset(at, 0, CK_HEADER);
    memcpy(at, ck_magic, sizeof ck_magic);
    ck_store(at + 8, CK_VERSION, 4);
    ck_store(at + 12, CK_BLOCK, 4);
    ck_store(at + 16, h->save, 8);
    ck_store(at + 24, (uint64_t)h->step, 8);
    ck_store(at + 32, h->rank, 4);
    ck_store(at + 36, h->nranks, 4);
    ck_store(at + 40, h->image_bytes, 8);
    ck_store(at + 48, ck_hash(at, 48), 8);
}

int ck_header_read(const void *page, ck_header *h) {
    const unsigned char *at = (const unsigned char *)page;
    memset(h, 0, sizeof *h);
    if (memcmp(at, ck_magic, sizeof ck_magic) != 0 || ck_fetch(at + 8, 4) != CK_VERSION
        || ck_fetch(at + 12, 4) != CK_BLOCK || ck_fetch(at + 48, 8) != ck_hash(at, 48))
        return 0;
    h->save = ck_fetch(at + 16, 8);
    h->step = (int64_t)ck_fetch(at + 24, 8);
    h->rank = (uint32_t)ck_fetch(at + 32, 4);
    h->nranks = (uint32_t)ck_fetch(at + 36, 4);
    h->image_bytes = ck_fetch(at + 40, 8);
    return 1;
}

/* ---- writing ---- */

/* Opens the file with direct I/O, if `direct` is set and the file system has it. */
static int ck_open(const char *path, int flags, int *direct) {
    int fd = -1;
    if (*direct) fd = open(path, flags | O_CLOEXEC | O_DIRECT, 0666);
    if (fd < 0 && (!*direct || errno == EINVAL || errno == EEXIST)) {
        if (errno == EEXIST && *direct) return -1;
        *direct = 0;
        fd = open(path, flags | O_CLOEXEC, 0666);
    }
    return fd;
}

void ck_blocks_hash(char *table, uint64_t at, const char *bytes, size_t n) {
    for (size_t done = 0; done < n; done += CK_BLOCK) {
        const size_t block = n - done < CK_BLOCK ? n - done : CK_BLOCK;
        unsigned char *to = (unsigned char *)table + (at + done) / CK_BLOCK * sizeof(uint64_t);
        ck_store(to, ck_hash(bytes + done, block), 8);
    }
}

static checkpoint_result ck_shard_body(const ck_shard *s, int fd, int *direct, const char *path,
                                       ck_error *e) {
    const size_t table = (size_t)ck_table_bytes(s->image_bytes);
    memset(s->table, 0, table);
    for (uint64_t at = 0; at < s->image_bytes; at += CK_WINDOW) {
        const uint64_t left = s->image_bytes - at;
        const size_t n = left < CK_WINDOW ? (size_t)left : CK_WINDOW;
        char *bytes = s->image ? s->image + at : s->window;
        if (s->work && ck_given_up(s->work))
            return ck_fail(e, CHECKPOINT_FILES,
                           "%s: given up, because another rank failed; see its message", path);
        if (!s->image) CK_TRY(s->fill(s->user, at, n, bytes, e));
        ck_blocks_hash(s->table, at, bytes, n);
        if (ck_write_all(fd, bytes, n, direct)) return ck_fail_errno(e, "cannot write %s", path);
    }
    if (ck_write_all(fd, s->table, table, direct)) return ck_fail_errno(e, "cannot write %s", path);
    if (fsync(fd)) return ck_fail_errno(e, "cannot fsync %s", path);
    return CHECKPOINT_OK;
}

checkpoint_result ck_shard_write(const ck_shard *s, ck_error *e) {
    char part[CK_NAME], name[CK_NAME], from[CK_PATH], to[CK_PATH];
    int direct = s->direct;
    (void)snprintf(part, sizeof part, "shard_%05d.part", s->rank);
    ck_shard_name(name, s->rank);
    CK_TRY(ck_path(from, s->folder, part, e));
    CK_TRY(ck_path(to, s->folder, name, e));
    const int fd = ck_open(from, O_WRONLY | O_CREAT | O_TRUNC, &direct);
    if (fd < 0) return ck_fail_errno(e, "cannot make %s", from);
    checkpoint_result r = ck_shard_body(s, fd, &direct, from, e);
    if (close(fd) && !r) r = ck_fail_errno(e, "cannot close %s", from);
    if (!r && rename(from, to)) r = ck_fail_errno(e, "cannot rename %s to %s", from, to);
    return r; /* rank 0 syncs the folder with all files in it, before it renames it */
}

checkpoint_result ck_shard_table(const char *folder, ck_file *file, ck_error *e) {
    const size_t bytes = (size_t)ck_table_bytes(file->image_bytes);
    char path[CK_PATH], *table;
    int direct = 0;
    CK_TRY(ck_path(path, folder, file->name, e));
    const int fd = ck_open(path, O_RDONLY | O_NONBLOCK, &direct);
    if (fd < 0 && errno == ENOENT) return CHECKPOINT_NONE;
    if (fd < 0) return ck_fail_errno(e, "cannot open %s", path);
    table = (char *)malloc(bytes);
    const int got = table ? ck_read_all(fd, file->image_bytes, table, bytes, &direct) : 0;
    checkpoint_result r = CHECKPOINT_OK;
    if (!table)
        r = ck_fail(e, CHECKPOINT_MEMORY, "no memory to read %s", path);
    else if (got < 0)
        r = ck_fail_errno(e, "cannot read %s", path);
    else if (!got)
        r = ck_fail(e, CHECKPOINT_FILES,
                    "%s is shorter than it was written; let no other program write there", path);
    else
        file->table = ck_hash(table, bytes);
    free(table);
    (void)close(fd);
    return r;
}

/* ---- reading ---- */

/* Reports, from its header, why a file does not belong to the manifest. */
static checkpoint_result ck_source_alien(ck_source *s, const ck_manifest *m, int file,
                                         ck_error *e) {
    ck_header h;
    char *page = (char *)ck_pages_alloc(CK_HEADER);
    const int got = page ? ck_read_all(s->fd, 0, page, CK_HEADER, &s->direct) : 0;
    const int known = got > 0 && ck_header_read(page, &h);
    free(page);
    if (known && (h.step != m->step || h.save != m->save))
        return ck_fail(e, CHECKPOINT_DAMAGED,
                       "%s is of another save (step %" PRId64 ", %016" PRIx64 ")", s->path, h.step,
                       h.save);
    if (known && (int)h.rank != file)
        return ck_fail(e, CHECKPOINT_DAMAGED, "%s is the file of rank %u", s->path, h.rank);
    return ck_fail(e, CHECKPOINT_DAMAGED, "%s is corrupt: its table of checksums is", s->path);
}

static checkpoint_result ck_source_size(ck_source *s, const ck_file *f, ck_error *e) {
    struct stat is;
    if (fstat(s->fd, &is)) return ck_fail_errno(e, "cannot look at %s", s->path);
    if ((uint64_t)is.st_size != ck_file_bytes(f->image_bytes))
        return ck_fail(e, CHECKPOINT_DAMAGED, "%s has %" PRIu64 " bytes, expected %" PRIu64,
                       s->path, (uint64_t)is.st_size, ck_file_bytes(f->image_bytes));
    return CHECKPOINT_OK;
}

checkpoint_result ck_source_open(ck_source *s, const char *folder, const ck_manifest *m, int file,
                                 int direct, ck_error *e) {
    const ck_file *f = &m->file[file];
    const size_t bytes = (size_t)ck_table_bytes(f->image_bytes);
    memset(s, 0, sizeof *s);
    s->fd = -1;
    s->direct = direct;
    s->image_bytes = f->image_bytes;
    CK_TRY(ck_path(s->path, folder, f->name, e));
    s->fd = ck_open(s->path, O_RDONLY | O_NONBLOCK, &s->direct);
    if (s->fd < 0) {
        const int gone = errno == ENOENT || errno == ENOTDIR || errno == EISDIR;
        (void)ck_fail_errno(e, "cannot open %s", s->path);
        return gone ? (e->code = CHECKPOINT_DAMAGED) : e->code;
    }
    CK_TRY(
        ck_source_size(s, f, e)); /* first, because the size of the file limits the memory below */
    s->table = (char *)ck_pages_alloc(bytes);
    if (s->table == NULL) return ck_fail(e, CHECKPOINT_MEMORY, "no memory to read %s", s->path);
    if (ck_read_all(s->fd, s->image_bytes, s->table, bytes, &s->direct) <= 0)
        return ck_fail_read(e, s->path);
    if (ck_hash(s->table, bytes) != f->table) return ck_source_alien(s, m, file, e);
    s->read_bytes = bytes;
    return CHECKPOINT_OK;
}

void ck_source_close(ck_source *s) {
    if (s->fd >= 0) (void)close(s->fd);
    free(s->table);
    s->fd = -1;
    s->table = NULL;
}

checkpoint_result ck_source_read(ck_source *s, uint64_t at, size_t bytes, char *window,
                                 ck_error *e) {
    const int got = ck_read_all(s->fd, at, window, bytes, &s->direct);
    if (got < 0) return ck_fail_read(e, s->path);
    if (got == 0) return ck_fail(e, CHECKPOINT_DAMAGED, "%s has become shorter", s->path);
    for (size_t done = 0; done < bytes; done += CK_BLOCK) {
        const size_t block = bytes - done < CK_BLOCK ? bytes - done : CK_BLOCK;
        const char *entry = s->table + (at + done) / CK_BLOCK * sizeof(uint64_t);
        if (ck_fetch((const unsigned char *)entry, 8) != ck_hash(window + done, block))
            return ck_fail(e, CHECKPOINT_DAMAGED, "%s is corrupt in bytes %" PRIu64 " to %" PRIu64,
                           s->path, at + done, at + done + block - 1);
    }
    s->read_bytes += bytes;
    return CHECKPOINT_OK;
}

/* ---- elements, in the order of the files ---- */

static checkpoint_result ck_copies_push(ck_copies *list, const ck_copy *copy, ck_error *e) {
    if (list->n == list->room) {
        const int room = list->room ? 2 * list->room : 64;
        void *more = realloc(list->copy, (size_t)room * sizeof *list->copy);
        if (more == NULL) return ck_fail(e, CHECKPOINT_MEMORY, "no memory for a list of pieces");
        list->copy = (ck_copy *)more;
        list->room = room;
    }
    list->copy[list->n++] = *copy;
    return CHECKPOINT_OK;
}

checkpoint_result ck_copies_add(ck_copies *list, const ck_manifest *m, int tensor, int array,
                                int use, uint64_t first, uint64_t count, ck_error *e) {
    const ck_array *a = &m->tensor[tensor].array[array];
    const uint64_t size = zero_type_bytes(a->type), end = first + count;
    int low = 0, high = a->npieces;
    while (low < high) { /* finds the first piece that ends after `first` */
        const int mid = low + (high - low) / 2;
        if (a->piece[mid].first + a->piece[mid].count > first)
            high = mid;
        else
            low = mid + 1;
    }
    for (; low < a->npieces && a->piece[low].first < end; low++) {
        const ck_piece *p = &a->piece[low];
        const uint64_t from = p->first > first ? p->first : first;
        const uint64_t to = p->first + p->count < end ? p->first + p->count : end;
        const uint64_t at = p->offset + (from - p->first) * size;
        const ck_copy copy = {p->file, tensor, array, use, a->type, from, to - from, at};
        CK_TRY(ck_copies_push(list, &copy, e));
    }
    return CHECKPOINT_OK;
}

checkpoint_result ck_copies_dense(ck_copies *list, const ck_manifest *m, int tensor, int array,
                                  int use, uint64_t first, uint64_t count, ck_error *e) {
    const ck_cut c = ck_cut_of(&m->tensor[tensor]);
    for (uint64_t part = 0; part < c.parts; part++) {
        const uint64_t from = ck_cut_before(&c, part, first);
        const uint64_t to = ck_cut_before(&c, part, first + count);
        const uint64_t begin = part * (c.total / c.parts) + from;
        CK_TRY(ck_copies_add(list, m, tensor, array, use, begin, to - from, e));
    }
    return CHECKPOINT_OK;
}

static int ck_copy_order(const void *a, const void *b) {
    const ck_copy *x = (const ck_copy *)a, *y = (const ck_copy *)b;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* Returns the end, in whole blocks, of the bytes to read in the window from `at`. */
static uint64_t ck_window_end(const ck_copy *copy, int n, uint64_t at, uint64_t image) {
    const uint64_t most = at + CK_WINDOW < image ? at + CK_WINDOW : image;
    uint64_t end = at;
    for (int i = 0; i < n && copy[i].offset < most; i++) {
        const uint64_t last = copy[i].offset + copy[i].count * zero_type_bytes(copy[i].type);
        if (copy[i].offset > ck_round_up(end, CK_BLOCK) && end > at) break; /* a gap: seek */
        if (last > end) end = last;
    }
    end = ck_round_up(end, CK_BLOCK);
    return end < most ? end : most;
}

/* Passes the elements in [at, end) to `take`, and keeps the rest of the copies. */
static checkpoint_result ck_window_take(ck_copy *copy, int n, uint64_t at, uint64_t end,
                                        char *window, ck_take take, void *user, ck_error *e) {
    for (int i = 0; i < n && copy[i].offset < end; i++) {
        const uint64_t size = zero_type_bytes(copy[i].type), here = (end - copy[i].offset) / size;
        ck_copy part = copy[i];
        part.count = here < part.count ? here : part.count;
        if (part.count == 0) continue;
        char *elements = window + (part.offset - at);
        ck_little_endian(elements, part.type, (size_t)part.count);
        CK_TRY(take(user, &part, elements, e));
        copy[i].first += part.count;
        copy[i].offset += part.count * size;
        copy[i].count -= part.count;
    }
    return CHECKPOINT_OK;
}

/* A window that a thread reads while the calling thread uses the window before. */
typedef struct ck_ahead {
    ck_source *source;
    uint64_t at, end; /* end 0: no window is being read */
    char *bytes;
    pthread_t thread;
    int running;
    ck_error error;
} ck_ahead;

static void *ck_ahead_read(void *arg) {
    ck_ahead *w = (ck_ahead *)arg;
    w->error.code = CHECKPOINT_OK;
    (void)ck_source_read(w->source, w->at, (size_t)(w->end - w->at), w->bytes, &w->error);
    return NULL;
}

/* Begins to read the next wanted window after byte `from`. The calling thread itself reads if
   `from` is 0 or no thread can be started. */
static void ck_ahead_start(ck_ahead *w, const ck_copy *copy, int n, uint64_t from) {
    int i = 0;
    while (i < n && copy[i].offset + copy[i].count * zero_type_bytes(copy[i].type) <= from) i++;
    w->end = 0;
    if (i == n) return;
    w->at = (copy[i].offset > from ? copy[i].offset : from) / CK_BLOCK * CK_BLOCK;
    w->end = ck_window_end(copy + i, n - i, w->at, w->source->image_bytes);
    w->running = from && ck_thread_start(&w->thread, ck_ahead_read, w) == 0;
    if (!w->running) (void)ck_ahead_read(w);
}

static void ck_ahead_join(ck_ahead *w) {
    if (w->end && w->running) (void)pthread_join(w->thread, NULL);
    w->running = 0;
}

/* Runs the copies of one file. They stay sorted, because the rest after a window begins at the
   window's end. */
static checkpoint_result ck_copies_file(ck_source *s, ck_copy *copy, int n, char *window,
                                        ck_take take, void *user, ck_error *e) {
    ck_ahead w[2] = {{.source = s, .bytes = window}, {.source = s, .bytes = window + CK_WINDOW}};
    ck_ahead *now = &w[0], *next = &w[1];
    for (ck_ahead_start(now, copy, n, 0); now->end && !e->code;) {
        ck_ahead_join(now);
        if (now->error.code) {
            *e = now->error;
            return e->code;
        }
        ck_ahead_start(next, copy, n, now->end);
        (void)ck_window_take(copy, n, now->at, now->end, now->bytes, take, user, e);
        while (n > 0 && copy->count == 0) copy++, n--;
        ck_ahead *was = now;
        now = next;
        next = was;
    }
    ck_ahead_join(now);
    return e->code;
}

checkpoint_result ck_copies_run(ck_copies *list, const char *folder, const ck_manifest *m,
                                int direct, char *window, ck_take take, void *user,
                                uint64_t *read_bytes, ck_error *e) {
    checkpoint_result r = CHECKPOINT_OK;
    if (list->n) qsort(list->copy, (size_t)list->n, sizeof *list->copy, ck_copy_order);
    for (int at = 0, next; at < list->n && !r; at = next) {
        ck_source s;
        for (next = at; next < list->n && list->copy[next].file == list->copy[at].file; next++) {}
        r = ck_source_open(&s, folder, m, list->copy[at].file, direct, e);
        if (!r) r = ck_copies_file(&s, list->copy + at, next - at, window, take, user, e);
        *read_bytes += s.read_bytes;
        ck_source_close(&s);
    }
    return r;
}

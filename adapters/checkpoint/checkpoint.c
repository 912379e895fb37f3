/* checkpoint.c - saves and loads on all ranks together. Each rank brings its outcome to the next
   meeting (ck_agree, ck_together). Then all ranks continue, or all return the same error. So no
   rank waits for a rank that failed. */
#include "checkpoint_inside.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { CK_LATE = 60 /* seconds that a file may take to be seen by another host */ };
/* Seconds for removing leftovers of killed runs: before the run, and after each save. */
static const double ck_clean_first = 0.25, ck_clean_again = 0.1;

/* One range of this rank, its place in stored order, and its begin in the image. */
typedef struct ck_item {
    zero_range range;
    ck_cut cut;
    uint64_t part, first, offset;
} ck_item;

struct checkpoint {
    zero_ctx *z;
    checkpoint_options o; /* its pointers are copies, or NULL */
    ck_ranks all;
    int rank, nranks; /* this rank, and the number of ranks */
    char folder[CK_PATH];
    int lock;               /* rank 0: the locked folder; otherwise -1 */
    ck_leftovers leftovers; /* rank 0 */
    ck_error error;
    zero_result plugin;

    ck_manifest plan; /* the manifest of the state to save; a save adds steps, counters, values and
                         checksums */
    ck_item *item;    /* ranges of this rank, by offset */
    int nitems, cursor;
    uint64_t image_bytes, total_bytes, id, saves;
    char *window, *table, *host, *image; /* image: in host, aligned; asynchronous only */

    /* while a save runs, its thread owns plan, notes and these */
    ck_work work;
    int flying;    /* an asynchronous save is running */
    int published; /* rank 0: `temporary` is now the checkpoint that was replaced */
    char temporary[CK_PATH];
    double write_s;
    char notes[4 * CHECKPOINT_SENTENCE];

    /* of checkpoints in memory */
    int slot;             /* rank 0: step that was saved or loaded last; -1: none */
    char *held[CK_SLOTS]; /* this rank's files, after it has written them */

    ck_manifest loaded;
    int has_loaded;
    checkpoint_report report;
};

static const ck_error ck_none = {CHECKPOINT_OK, 0, ""};

/* ---- errors ---- */

/* Runs file work on rank 0 while the other ranks wait. */
static checkpoint_result ck_on_first(checkpoint *c, ck_body body, void *arg, ck_error *e) {
    return ck_together(&c->work, &c->all, c->rank == 0 ? body : NULL, arg, e);
}

/* Stores the error for checkpoint_error, and returns its code. */
static checkpoint_result ck_return(checkpoint *c, const ck_error *e) {
    c->error = *e;
    c->plugin = e->code == CHECKPOINT_PLUGIN ? (zero_result)e->number : ZERO_OK;
    return e->code;
}

static void ck_note(void *user, const char *sentence) {
    checkpoint *c = (checkpoint *)user;
    const size_t n = strlen(c->notes);
    (void)snprintf(c->notes + n, sizeof c->notes - n, "%s\n", sentence);
}

/* Logs a sentence, which all ranks have, once. */
static void ck_log(const checkpoint *c, const char *sentence) {
    if (c->o.log && c->rank == 0) c->o.log(c->o.log_user, sentence);
}

/* Logs the thread's notes one by one, in the calling thread. */
static void ck_notes_log(checkpoint *c) {
    char *next;
    for (char *at = c->notes; c->o.log && (next = strchr(at, '\n')) != NULL; at = next + 1) {
        *next = 0;
        c->o.log(c->o.log_user, at);
    }
    c->notes[0] = 0;
}

/* ---- saved ranges of all ranks ---- */

static int ck_array_of(zero_kind kind) {
    return kind == ZERO_PARAMETER  ? CK_SEEN
           : kind == ZERO_MOMENT_1 ? 1
           : kind == ZERO_MOMENT_2 ? 2
                                   : 0;
}

/* Returns the elements of the range that are adjacent in the whole tensor too. */
static ck_item ck_item_of(const checkpoint_parts *parts, const zero_range *r, int *saves) {
    checkpoint_place p = {0, 0, 1, 0, 1, r->first, r->count};
    ck_item x = {*r, {0, 0, 1}, 0, 0, 0};
    if (parts->place) parts->place(parts->user, r->name, r->first, &p);
    if (p.n < x.range.count) x.range.count = p.n;
    x.cut.total = p.total;
    x.cut.row = p.parts > 1 ? p.row : p.total;
    x.cut.parts = (uint64_t)p.parts;
    x.part = (uint64_t)p.part;
    x.first = p.first + x.part * (p.total / x.cut.parts);
    *saves = p.saves;
    return x;
}

/* Lists the ranges that this rank saves, or with `whole` all ranges that it needs. If items is
 * NULL, it only computes their number and the size of their image. */
static int ck_items(const zero_ctx *z, const checkpoint_parts *parts, int whole, ck_item *items,
                    uint64_t *image) {
    const int ranges = zero_state_ranges(z, whole);
    uint64_t at = CK_HEADER;
    int n = 0, saves;
    for (int i = 0; i < ranges; i++) {
        zero_range r;
        /* This function does not change the context, but the plugin's functions take one to write
         * errors to. */
        if (zero_state_range((zero_ctx *)(uintptr_t)z, whole, i, &r)) continue;
        while (r.count > 0) {
            ck_item x = ck_item_of(parts, &r, &saves);
            r.first += x.range.count;
            r.count -= x.range.count;
            if (saves == CHECKPOINT_LEFT_OUT || (!saves && !whole)) continue;
            x.offset = at;
            if (items) items[n] = x;
            n++;
            at = ck_round_up(at + x.range.count * zero_type_bytes(x.range.type), CK_ALIGN);
        }
    }
    if (image) *image = ck_round_up(at, CK_PAGE);
    return n;
}

size_t checkpoint_bytes(const zero_ctx *z, const checkpoint_parts *parts, checkpoint_way way) {
    uint64_t image;
    (void)ck_items(z, parts, 0, NULL, &image);
    if (way == CHECKPOINT_COPIED) return (size_t)(CK_WINDOWS + CK_SLOTS * ck_file_bytes(image));
    const uint64_t copy = way == CHECKPOINT_ASYNCHRONOUS ? image + CK_PAGE : 0;
    return (size_t)(CK_WINDOWS + ck_table_bytes(image) + copy);
}

/* A range in a message to the other ranks. Its name and a zero follow. */
typedef struct ck_wire {
    uint64_t first, count, offset, row;
    uint32_t array, type, parts, name_bytes;
    uint64_t f32_state;
} ck_wire;

/* Returns 1 if the run keeps state in 8 bits, but not that of this tensor. */
static int ck_keeps_f32(const checkpoint *c, const char *name) {
    zero_tensor_desc d;
    if (c->plan.run.state_type != ZERO_STATE_8BIT) return 0;
    for (int i = 0; i < zero_tensor_count(c->z); i++)
        if (!zero_query_tensor(c->z, i, &d) && strcmp(d.name, name) == 0)
            return (d.flags & ZERO_F32_STATE) != 0;
    return 0;
}

static size_t ck_wire_pack(const checkpoint *c, char *out) {
    size_t n = sizeof c->image_bytes;
    if (out) memcpy(out, &c->image_bytes, n);
    for (int i = 0; i < c->nitems; i++) {
        const ck_item *x = &c->item[i];
        const uint32_t name = (uint32_t)strlen(x->range.name) + 1;
        const ck_wire w = {x->first,
                           x->range.count,
                           x->offset,
                           x->cut.row,
                           (uint32_t)ck_array_of(x->range.kind),
                           (uint32_t)x->range.type,
                           (uint32_t)x->cut.parts,
                           name,
                           (uint64_t)ck_keeps_f32(c, x->range.name)};
        if (out) memcpy(out + n, &w, sizeof w);
        if (out) memcpy(out + n + sizeof w, x->range.name, name);
        n += sizeof w + name;
    }
    return n;
}

static checkpoint_result ck_wire_unpack(checkpoint *c, int rank, const char *in, size_t bytes,
                                        ck_error *e) {
    ck_file *f = &c->plan.file[rank];
    ck_shard_name(f->name, rank);
    memcpy(&f->image_bytes, in, sizeof f->image_bytes);
    c->total_bytes += ck_file_bytes(f->image_bytes);
    for (size_t at = sizeof f->image_bytes; at < bytes;) {
        ck_wire w;
        memcpy(&w, in + at, sizeof w);
        const ck_piece piece = {rank, w.first, w.count, w.offset};
        ck_tensor *t = ck_manifest_tensor(&c->plan, in + at + sizeof w);
        if (t == NULL || ck_array_add(&t->array[w.array], &piece) == NULL)
            return ck_fail(e, CHECKPOINT_MEMORY, "no memory for the list of tensors");
        t->array[w.array].type = (zero_type)w.type;
        t->row = w.parts > 1 ? w.row : 0;
        t->parts = w.parts > 1 ? w.parts : 0;
        t->f32_state = (int)w.f32_state;
        if (w.array < CK_SEEN && t->narrays <= (int)w.array) t->narrays = (int)w.array + 1;
        if (w.array == 0) t->numel += w.count;
        at += sizeof w + w.name_bytes;
    }
    return CHECKPOINT_OK;
}

/* Takes the shape of each tensor from the caller's table, if the table has one of the same size. */
static checkpoint_result ck_plan_close(checkpoint *c, const checkpoint_options *o, ck_error *e) {
    ck_manifest *m = &c->plan;
    for (int k = 0; k < o->ntensors && o->tensors; k++) {
        const zero_tensor_desc *d = &o->tensors[k];
        const uint64_t layers = d->layers > 1 ? (uint64_t)d->layers : 1;
        const int i = ck_manifest_find(m, d->name);
        if (i < 0 || m->tensor[i].layers != 1 || layers * d->numel != m->tensor[i].numel) continue;
        m->tensor[i].layers = layers;
        m->tensor[i].numel = d->numel;
    }
    for (int i = 0; i < m->ntensors; i++) {
        ck_tensor *t = &m->tensor[i];
        if (t->narrays > m->narrays) m->narrays = t->narrays;
        for (int k = 0; k < CK_ALL_ARRAYS; k++)
            if (k < t->narrays || t->array[k].npieces) CK_TRY(ck_array_close(t, &t->array[k], e));
    }
    return CHECKPOINT_OK;
}

/* Collects the bytes of all ranks' ranges, and allocates the largest. All ranks succeed, or none.
 */
static checkpoint_result ck_plan_sizes(checkpoint *c, uint64_t *bytes, char **wire, ck_error *e) {
    uint64_t most = 1;
    if (bytes == NULL) (void)ck_fail(e, CHECKPOINT_MEMORY, "no memory for %d sizes", c->nranks);
    CK_TRY(ck_agree(&c->all, e));
    bytes[c->rank] = ck_wire_pack(c, NULL);
    for (int r = 0; r < c->nranks; r++) {
        const zero_result zr = ck_broadcast(&c->all, &bytes[r], sizeof bytes[r], r);
        if (zr) return ck_plugin(&c->all, zr, e);
        if (bytes[r] > most) most = bytes[r];
    }
    *wire = (char *)malloc((size_t)most);
    if (*wire == NULL) (void)ck_fail(e, CHECKPOINT_MEMORY, "no memory for ranges");
    return ck_agree(&c->all, e);
}

/* Each rank broadcasts its ranges. A rank that runs out of memory still takes part in all
 * broadcasts. */
static checkpoint_result ck_plan_exchange(checkpoint *c, const checkpoint_options *o, ck_error *e) {
    uint64_t *bytes = (uint64_t *)calloc((size_t)c->nranks, sizeof *bytes);
    char *wire = NULL;
    ck_error mine = ck_none;
    (void)ck_plan_sizes(c, bytes, &wire, e);
    for (int r = 0; r < c->nranks && !e->code; r++) {
        if (r == c->rank) (void)ck_wire_pack(c, wire);
        const zero_result zr = ck_broadcast(&c->all, wire, (size_t)bytes[r], r);
        if (zr) (void)ck_plugin(&c->all, zr, e);
        if (!zr && !mine.code) (void)ck_wire_unpack(c, r, wire, (size_t)bytes[r], &mine);
    }
    free(wire);
    free(bytes);
    if (e->code) return e->code;
    *e = mine;
    if (!e->code) (void)ck_plan_close(c, o, e);
    return ck_agree(&c->all, e);
}

/* ---- create ---- */

static char *ck_align(char *p) {
    return p + (ck_round_up((uint64_t)(uintptr_t)p, CK_PAGE) - (uint64_t)(uintptr_t)p);
}

static checkpoint_result ck_reserve(checkpoint *c, ck_error *e) {
    const int n = ck_items(c->z, &c->o.parts, 0, NULL, NULL);
    c->item = (ck_item *)calloc((size_t)n + 1, sizeof *c->item);
    c->plan.file = (ck_file *)calloc((size_t)c->nranks, sizeof *c->plan.file);
    c->window = (char *)ck_pages_alloc(CK_WINDOWS);
    if (c->item == NULL || c->plan.file == NULL || c->window == NULL)
        return ck_fail(e, CHECKPOINT_MEMORY, "no memory to read and write in");
    c->nitems = n;
    (void)ck_items(c->z, &c->o.parts, 0, c->item, &c->image_bytes);
    const uint64_t table = ck_table_bytes(c->image_bytes);
    c->report.bytes = c->image_bytes + table;
    if (c->o.memory)
        return CHECKPOINT_OK; /* the files of this place are mapped when they are first written */
    c->table = (char *)ck_pages_alloc((size_t)table);
    if (c->o.asynchronous) c->host = (char *)zero_host_alloc((size_t)c->image_bytes + CK_PAGE);
    if (c->table == NULL || (c->o.asynchronous && c->host == NULL))
        return ck_fail(e, CHECKPOINT_MEMORY, "no memory for a copy of %" PRIu64 " bytes",
                       c->image_bytes);
    if (c->host) c->image = ck_align(c->host);
    c->report.bytes = c->image_bytes + table;
    return CHECKPOINT_OK;
}

static checkpoint_result ck_options(checkpoint *c, const checkpoint_options *o, ck_error *e) {
    const char *config = o->config ? o->config : "";
    const char *folder = o->memory ? CK_MEMORY : o->folder;
    if (folder == NULL || folder[0] == 0 || strlen(folder) > CK_PATH - 4 * CK_NAME)
        return ck_fail(e, CHECKPOINT_ARGUMENT, "options.folder is missing or too long; set it");
    if (o->keep_last < 0 || o->keep_every < 0 || o->ntensors < 0)
        return ck_fail(e, CHECKPOINT_ARGUMENT,
                       "keep_last is %d, keep_every %" PRId64 "; use 0 or more", o->keep_last,
                       o->keep_every);
    memcpy(c->folder, folder, strlen(folder) + 1);
    c->plan.config = strdup(config);
    if (c->plan.config == NULL) return ck_fail(e, CHECKPOINT_MEMORY, "no memory for options");
    c->plan.nranks = c->plan.nfiles = c->nranks;
    (void)ck_optimizer_name(c->plan.run.optimizer, c->plan.optimizer);
    return ck_reserve(c, e);
}

/* Creates the folder if it is missing, and locks it, so that no other run can save in it. */
static checkpoint_result ck_lock_folder(checkpoint *c, ck_error *e) {
    const char *slash = strrchr(c->folder, '/');
    char parent[CK_PATH];
    const int made = access(c->folder, F_OK) != 0;
    (void)snprintf(parent, sizeof parent, "%.*s", slash ? (int)(slash - c->folder) + 1 : 1,
                   slash ? c->folder : ".");
    CK_TRY(ck_folder_make(c->folder, e));
    if (made) CK_TRY(ck_folder_sync(parent, e));
    if (c->lock >= 0) (void)close(c->lock);
    c->lock = open(c->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (c->lock < 0) return ck_fail_errno(e, "cannot open the folder %s", c->folder);
    if (flock(c->lock, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
        return ck_fail(e, CHECKPOINT_FILES,
                       "another run saves in %.400s at this time; give another folder", c->folder);
    return CHECKPOINT_OK;
}

static checkpoint_result ck_open_folder(void *arg, ck_error *e) {
    checkpoint *c = (checkpoint *)arg;
    char sentence[CHECKPOINT_SENTENCE];
    CK_TRY(ck_lock_folder(c, e));
    ck_leftovers_find(&c->leftovers, c->folder);
    ck_leftovers_remove(&c->leftovers, c->folder, ck_clean_first);
    (void)snprintf(
        sentence, sizeof sentence,
        "%d incomplete folders of killed runs are left in %.400s; every save removes some",
        c->leftovers.n, c->folder);
    if (c->leftovers.n > 0) ck_note(c, sentence);
    if (getrandom(&c->id, sizeof c->id, 0) != (ssize_t)sizeof c->id)
        c->id = (uint64_t)time(NULL) << 20 ^ (uint64_t)(uintptr_t)c;
    return CHECKPOINT_OK;
}

checkpoint_result checkpoint_create(checkpoint **out, zero_ctx *z, const checkpoint_options *o) {
    ck_error e = ck_none;
    ck_ranks all;
    checkpoint *c = (checkpoint *)calloc(1, sizeof *c);
    *out = c;
    if (!ck_ranks_open(
            &all, z,
            o->parts.world)) { /* this error cannot be reported: the other ranks time out */
        free(c);
        *out = NULL;
        return CHECKPOINT_MEMORY;
    }
    if (c == NULL) {
        (void)ck_fail(&e, CHECKPOINT_MEMORY, "no memory for a checkpoint");
        const checkpoint_result result = ck_agree(&all, &e);
        ck_ranks_close(&all);
        return result;
    }
    c->z = z;
    c->all = all;
    c->lock = c->slot = -1;
    c->o = *o;
    c->o.folder = c->o.config = NULL;
    c->o.tensors = NULL;
    c->rank = all.rank;
    c->nranks = all.n;
    c->report.saved_step = -1;
    zero_query_config(z, &c->plan.run);
    if (!ck_work_open(&c->work, c->plan.run.timeout_s))
        (void)ck_fail(&e, CHECKPOINT_MEMORY, "no memory for a thread");
    if (!e.code) (void)ck_options(c, o, &e);
    if (ck_on_first(c, c->o.memory ? NULL : ck_open_folder, c, &e)) return ck_return(c, &e);
    if (ck_plan_exchange(c, o, &e)) return ck_return(c, &e);
    const zero_result zr = ck_broadcast(&c->all, &c->id, sizeof c->id, 0);
    if (zr) (void)ck_plugin(&c->all, zr, &e);
    c->report.total_bytes = c->total_bytes;
    ck_notes_log(c);
    return ck_return(c, &e);
}

/* ---- a shard's image ---- */

/* Returns the part of a range in [at, at + bytes) of the image. Windows begin and end at multiples
 * of each element's size. */
static checkpoint_result ck_fill_item(checkpoint *c, const ck_item *x, uint64_t at, uint64_t end,
                                      char *out, ck_error *e) {
    const uint64_t size = zero_type_bytes(x->range.type);
    const uint64_t last = x->offset + x->range.count * size;
    const uint64_t from = x->offset > at ? x->offset : at, to = last < end ? last : end;
    zero_range part = x->range;
    part.first += (size_t)((from - x->offset) / size);
    part.count = (size_t)((to - from) / size);
    const zero_result zr = zero_state_get(c->z, &part, out + (from - at));
    if (zr) return ck_plugin(&c->all, zr, e);
    ck_little_endian(out + (from - at), part.type, part.count);
    return CHECKPOINT_OK;
}

/* Reads bytes [at, at + bytes) of the image. Calls go from its begin to its end. */
static checkpoint_result ck_fill(checkpoint *c, uint64_t at, size_t bytes, char *out, ck_error *e) {
    const uint64_t end = at + bytes;
    uint64_t done = at;
    if (at == 0) {
        const ck_header h = {c->plan.save, c->image_bytes, c->plan.step, (uint32_t)c->rank,
                             (uint32_t)c->nranks};
        ck_header_write(out, &h);
        done = CK_HEADER;
        c->cursor = 0;
    }
    for (; c->cursor < c->nitems && c->item[c->cursor].offset < end; c->cursor++) {
        const ck_item *x = &c->item[c->cursor];
        const uint64_t last = x->offset + x->range.count * zero_type_bytes(x->range.type);
        if (x->offset > done) memset(out + (done - at), 0, (size_t)(x->offset - done));
        CK_TRY(ck_fill_item(c, x, at, end, out, e));
        done = last < end ? last : end;
        if (last > end) break; /* the range continues in the next window */
    }
    memset(out + (done - at), 0, (size_t)(end - done));
    return CHECKPOINT_OK;
}

/* Does the same for the thread that writes: it asks the calling thread to copy. */
typedef struct ck_part {
    checkpoint *c;
    uint64_t at;
    size_t bytes;
    char *out;
} ck_part;
static checkpoint_result ck_fill_part(void *arg, ck_error *e) {
    const ck_part *p = (const ck_part *)arg;
    return ck_fill(p->c, p->at, p->bytes, p->out, e);
}
static checkpoint_result ck_fill_asked(void *user, uint64_t at, size_t bytes, char *out,
                                       ck_error *e) {
    checkpoint *c = (checkpoint *)user;
    ck_part part = {c, at, bytes, out};
    return ck_work_ask(&c->work, ck_fill_part, &part, e);
}

/* Writes this rank's shard, from a copy of the state or from the open state. */
static checkpoint_result ck_write(void *arg, ck_error *e) {
    checkpoint *c = (checkpoint *)arg;
    const ck_shard s = {c->temporary,  c->rank, !c->o.not_direct, c->image_bytes, c->image,
                        ck_fill_asked, c,       c->window,        c->table,       &c->work};
    const double start = ck_now();
    if (ck_shard_write(&s, e) == CHECKPOINT_FILES) ck_folder_explain(c->folder, c->total_bytes, e);
    c->write_s = ck_now() - start;
    return e->code;
}

/* ---- rank 0 makes shards a generation ---- */

/* Waits for the files of all ranks. During an asynchronous save ranks can still be writing. Hosts
 * that share a folder can see a file late, up to CK_LATE seconds after it was written. */
static checkpoint_result ck_tables(checkpoint *c, ck_error *e) {
    double end = 0;
    for (int i = 0; i < c->plan.nfiles; i++) {
        struct timespec pause = {0, 1000000};
        checkpoint_result r;
        while ((r = ck_shard_table(c->temporary, &c->plan.file[i], e)) == CHECKPOINT_NONE) {
            if (ck_given_up(&c->work))
                return ck_fail(e, CHECKPOINT_FILES,
                               "given up: another rank failed; see its message");
            if (end == 0 && ck_alone(&c->work)) end = ck_now() + CK_LATE;
            if (end > 0 && ck_now() > end)
                return ck_fail(
                    e, CHECKPOINT_FILES,
                    "%s/%s does not appear on this host; use a folder that all hosts share",
                    c->temporary, c->plan.file[i].name);
            (void)nanosleep(&pause, NULL);
            if (pause.tv_nsec < 64000000) pause.tv_nsec *= 2;
        }
        if (r) return r;
    }
    return CHECKPOINT_OK;
}

static checkpoint_result ck_commit(void *arg, ck_error *e) {
    checkpoint *c = (checkpoint *)arg;
    CK_TRY(ck_tables(c, e));
    checkpoint_result r = ck_manifest_write(&c->plan, c->temporary, "manifest.json", e);
    if (!r)
        r = ck_generation_publish(c->folder, strrchr(c->temporary, '/') + 1, c->plan.step,
                                  c->plan.save, &c->published, e);
    if (r) {
        ck_folder_explain(c->folder, c->total_bytes, e);
        return r;
    }
    const ck_keep keep = {
        c->folder, c->plan.step, c->o.keep_last, c->o.keep_every, c->plan.save, ck_note, c};
    ck_error ignored = ck_none;
    ck_generation_prune(&keep);
    (void)ck_folder_remove(c->temporary, &ignored); /* remove the checkpoint that it replaced */
    ck_leftovers_remove(&c->leftovers, c->folder, ck_clean_again);
    return CHECKPOINT_OK;
}

/* ---- save ---- */

/* Makes the folder again if it was removed or moved since the run began. */
static checkpoint_result ck_same_folder(checkpoint *c, ck_error *e) {
    struct stat mine, there;
    char sentence[CHECKPOINT_SENTENCE];
    if (stat(c->folder, &there) == 0 && fstat(c->lock, &mine) == 0 && mine.st_dev == there.st_dev
        && mine.st_ino == there.st_ino)
        return CHECKPOINT_OK;
    (void)snprintf(sentence, sizeof sentence,
                   "%.400s is not the folder any more that this run began with: saves go to a new "
                   "one",
                   c->folder);
    ck_note(c, sentence);
    ck_leftovers_free(&c->leftovers);
    return ck_lock_folder(c, e);
}

/* Makes the folder to which all ranks write. */
static checkpoint_result ck_save_folder(void *arg, ck_error *e) {
    checkpoint *c = (checkpoint *)arg;
    uint64_t pieces = 0;
    CK_TRY(ck_same_folder(c, e));
    for (int t = 0; t < c->plan.ntensors; t++)
        for (int k = 0; k < CK_ALL_ARRAYS; k++)
            pieces += (uint64_t)c->plan.tensor[t].array[k].npieces;
    CK_TRY(ck_folder_room(c->folder, c->total_bytes + pieces * CK_NAME + CK_PAGE, e));
    return ck_folder_make(c->temporary, e);
}

/* Ranks agree on the state and the folder of a save. No file is open afterwards. */
static checkpoint_result ck_save_open(checkpoint *c, int64_t step, const checkpoint_value *values,
                                      int n, ck_error *e) {
    char name[CK_NAME];
    int64_t his = step;
    const zero_result zr = ck_broadcast(&c->all, &his, sizeof his, 0);
    if (zr) return ck_plugin(&c->all, zr, e);
    const uint64_t number[] = {c->id, ++c->saves};
    c->published = 0;
    c->plan.step = step;
    c->plan.save = ck_hash(number, sizeof number);
    ck_generation_name(name, step);
    const int length = snprintf(c->temporary, sizeof c->temporary, "%s/%s.tmp-%016" PRIx64,
                                c->folder, name, c->plan.save);
    if (step < 0 || his != step || length >= (int)sizeof c->temporary)
        (void)ck_fail(e, CHECKPOINT_ARGUMENT,
                      "step %" PRId64 ": expected 0 or more, and the same on all ranks", step);
    if (!e->code && c->rank == 0) (void)ck_manifest_set_values(&c->plan, values, n, e);
    return ck_on_first(c, ck_save_folder, c, e);
}

static checkpoint_result ck_remove_temporary(void *arg, ck_error *e) {
    const checkpoint *c = (const checkpoint *)arg;
    return c->published ? CHECKPOINT_OK : ck_folder_remove(c->temporary, e);
}

/* Records the outcome of a save, which is the same on all ranks. */
static checkpoint_result ck_save_end(checkpoint *c, const ck_error *e) {
    ck_error ignored = ck_none;
    c->report.write_s = c->write_s;
    if (e->code)
        (void)ck_on_first(c, ck_remove_temporary, c, &ignored);
    else
        c->report.saved_step = c->plan.step;
    ck_notes_log(c);
    return e->code;
}

/* All ranks call this, or none. */
static checkpoint_result ck_state_begin(checkpoint *c, ck_error *e) {
    const zero_result zr = zero_state_begin(c->z);
    if (zr) return ck_plugin(&c->all, zr, e);
    zero_state_counters(c->z, &c->plan.counters);
    return CHECKPOINT_OK;
}

/* A synchronous save: the state stays open until it is written. */
static checkpoint_result ck_save_now(checkpoint *c, ck_error *e) {
    CK_TRY(ck_state_begin(c, e));
    const checkpoint_result written = ck_together(&c->work, &c->all, ck_write, c, e);
    (void)zero_state_end(c->z, 0);
    return written ? written : ck_on_first(c, ck_commit, c, e);
}

static checkpoint_result ck_write_aside(void *arg, ck_error *e) {
    const checkpoint *c = (const checkpoint *)arg;
    CK_TRY(ck_write(arg, e));
    return c->rank == 0 ? ck_commit(arg, e) : CHECKPOINT_OK;
}

/* An asynchronous save: the calling thread waits only for a copy of the state. */
static checkpoint_result ck_save_aside(checkpoint *c, ck_error *e) {
    const double start = ck_now();
    CK_TRY(ck_state_begin(c, e));
    (void)ck_fill(c, 0, (size_t)c->image_bytes, c->image, e);
    c->report.copy_s = ck_now() - start;
    (void)zero_state_end(c->z, 0);
    if (ck_agree(&c->all, e)) return e->code;
    ck_work_begin(&c->work, ck_write_aside, c, e);
    c->flying = 1;
    return CHECKPOINT_OK;
}

/* ---- save in memory ---- */

/* Writes this rank's file in memory, block by block; each checksum is computed while its block is
 * in the cache. */
static checkpoint_result ck_memory_fill(checkpoint *c, int slot, ck_error *e) {
    char **file = &c->held[slot];
    const uint64_t bytes = ck_file_bytes(c->image_bytes);
    if (*file == NULL) CK_TRY(ck_memory_map(c->o.memory, slot, c->rank, bytes, file, e));
    char *table = *file + c->image_bytes;
    memset(table, 0, (size_t)ck_table_bytes(c->image_bytes));
    for (uint64_t at = 0; at < c->image_bytes; at += CK_BLOCK) {
        const uint64_t left = c->image_bytes - at;
        const size_t n = left < CK_BLOCK ? (size_t)left : (size_t)CK_BLOCK;
        CK_TRY(ck_fill(c, at, n, *file + at, e));
        ck_blocks_hash(table, at, *file + at, n);
    }
    return CHECKPOINT_OK;
}

/* Commits the copy on rank 0, when all ranks have written their files. */
static checkpoint_result ck_memory_close(checkpoint *c, int slot, ck_error *e) {
    char name[CK_NAME];
    ck_memory_name(name, c->o.memory, slot, CK_OF_MANIFEST);
    CK_TRY(ck_tables(c, e));
    CK_TRY(ck_manifest_write(&c->plan, c->temporary, name, e));
    ck_memory_commit(c->o.memory, slot, c->plan.step);
    c->slot = slot;
    return CHECKPOINT_OK;
}

/* Saves to the slot that the run would not resume from. No rank writes to it before rank 0 has
 * marked it as incomplete, and no rank writes to the other slot before rank 0 has committed this
 * one. */
static checkpoint_result ck_save_memory(checkpoint *c, int64_t step, const checkpoint_value *values,
                                        int n, ck_error *e) {
    int64_t first[2] = {step, c->slot == 0};
    const zero_result zr = ck_broadcast(&c->all, first, sizeof first, 0);
    if (zr) return ck_plugin(&c->all, zr, e);
    const int slot = (int)first[1];
    c->plan.step = step;
    c->plan.save = (uint64_t)++c->saves;
    (void)snprintf(c->temporary, sizeof c->temporary, CK_MEMORY "/fd");
    if (step < 0 || first[0] != step)
        (void)ck_fail(e, CHECKPOINT_ARGUMENT,
                      "step %" PRId64 ": expected 0 or more, and the same on all ranks", step);
    if (!e->code && c->rank == 0) (void)ck_memory_begin(c->o.memory, slot, c->nranks, e);
    if (!e->code && c->rank == 0) (void)ck_manifest_set_values(&c->plan, values, n, e);
    if (ck_agree(&c->all, e)) return e->code;
    for (int r = 0; r < c->nranks; r++) ck_memory_name(c->plan.file[r].name, c->o.memory, slot, r);
    CK_TRY(ck_state_begin(c, e));
    (void)ck_memory_fill(c, slot, e);
    (void)zero_state_end(c->z, 0);
    if (ck_agree(&c->all, e)) return e->code;
    if (c->rank == 0) (void)ck_memory_close(c, slot, e);
    return ck_agree(&c->all, e);
}

/* ---- saves of all kinds ---- */

/* Ends an asynchronous save. */
static checkpoint_result ck_finish(checkpoint *c, ck_error *e) {
    if (!c->flying) return CHECKPOINT_OK;
    c->flying = 0;
    (void)ck_work_end(&c->work, &c->all, e);
    return ck_save_end(c, e);
}

static void ck_log_wait(checkpoint *c, int64_t step) {
    char sentence[CHECKPOINT_SENTENCE];
    if (c->report.waited_s < 0.01) return;
    (void)snprintf(sentence, sizeof sentence,
                   "the save of step %" PRId64 " waited %.2f s for the one before to be written",
                   step, c->report.waited_s);
    ck_log(c, sentence);
}

/* Returns the result of the previous save, with its step. The sentence is about this save. */
static checkpoint_result ck_save_result(checkpoint *c, const ck_error *before, int64_t earlier,
                                        ck_error *e) {
    char text[CHECKPOINT_SENTENCE];
    if (before->code && before->code != CHECKPOINT_PLUGIN) {
        memcpy(text, before->text, sizeof text);
        (void)ck_fail(e, before->code,
                      "the save of step %" PRId64 " failed (%s step %" PRId64 "): %.480s", earlier,
                      e->code ? "and so did that of" : "now comes that of", c->plan.step, text);
    }
    return ck_return(c, e);
}

checkpoint_result checkpoint_save(checkpoint *c, int64_t step, const checkpoint_value *values,
                                  int nvalues) {
    const double start = ck_now();
    const int64_t earlier = c->plan.step;
    ck_error e = ck_none, before = ck_none;
    if (c->o.memory) {
        (void)ck_save_memory(c, step, values, nvalues, &e);
        c->report.stall_s = ck_now() - start;
        return ck_return(c, &e);
    }
    (void)ck_finish(c, &before);
    c->report.waited_s = ck_now() - start;
    if (before.code == CHECKPOINT_PLUGIN) return ck_return(c, &before);
    ck_log_wait(c, step);
    if (ck_save_open(c, step, values, nvalues, &e) == CHECKPOINT_OK)
        (void)(c->image ? ck_save_aside(c, &e) : ck_save_now(c, &e));
    if (!c->flying) (void)ck_save_end(c, &e);
    c->report.stall_s = ck_now() - start;
    return ck_save_result(c, &before, earlier, &e);
}

checkpoint_result checkpoint_wait(checkpoint *c) {
    ck_error e = ck_none;
    (void)ck_finish(c, &e);
    return ck_return(c, &e);
}

void checkpoint_destroy(checkpoint *c) {
    ck_error e = ck_none;
    if (c == NULL) return;
    (void)ck_finish(c, &e);
    ck_work_close(&c->work);
    if (c->lock >= 0) (void)close(c->lock);
    ck_leftovers_free(&c->leftovers);
    ck_manifest_free(&c->plan);
    ck_manifest_free(&c->loaded);
    for (int i = 0; i < CK_SLOTS; i++)
        if (c->held[i]) (void)munmap(c->held[i], (size_t)ck_file_bytes(c->image_bytes));
    free(c->item);
    free(c->window);
    free(c->table);
    zero_host_free(c->host);
    ck_ranks_close(&c->all);
    free(c);
}

/* ---- load ---- */

/* Reads the manifest of a checkpoint. */
typedef struct ck_text {
    const char *folder, *name;
    char *text;
    size_t bytes;
} ck_text;
static checkpoint_result ck_text_read(void *arg, ck_error *e) {
    ck_text *t = (ck_text *)arg;
    char path[CK_PATH];
    CK_TRY(ck_path(path, t->folder, t->name, e));
    return ck_file_read(path, &t->text, &t->bytes, e);
}

/* Broadcasts rank 0's manifest, so that all ranks use the same. */
static checkpoint_result ck_load_manifest(checkpoint *c, const char *folder, int64_t step,
                                          ck_manifest *m, ck_error *e) {
    char name[CK_NAME] = "manifest.json";
    if (c->o.memory && c->rank == 0)
        ck_memory_name(name, c->o.memory, ck_memory_find(c->o.memory, step), CK_OF_MANIFEST);
    ck_text read = {folder, name, NULL, 0};
    if (ck_on_first(c, ck_text_read, &read, e)) {
        free(read.text);
        return e->code;
    }
    char *text = read.text;
    size_t bytes = read.bytes;
    zero_result zr = ck_broadcast(&c->all, &bytes, sizeof bytes, 0);
    if (c->rank != 0 && !zr) text = (char *)malloc(bytes + 1);
    if (text == NULL && !zr) (void)ck_fail(e, CHECKPOINT_MEMORY, "no memory for manifest.json");
    if (!zr && ck_agree(&c->all, e) == CHECKPOINT_OK) {
        zr = ck_broadcast(&c->all, text, bytes, 0);
        if (!zr) (void)ck_manifest_parse(m, text, bytes, e);
        if (!zr) (void)ck_agree(&c->all, e);
    }
    free(text);
    return zr ? ck_plugin(&c->all, zr, e) : e->code;
}

/* What to do about a checkpoint that does not fit the context. */
#define CK_FIX "; load it with the settings of that run, or give another folder"
static checkpoint_result ck_same_tensor(const ck_tensor *mine, const ck_tensor *his, ck_error *e) {
    const int shapes = mine->layers > 1 && his->layers > 1 && mine->layers != his->layers;
    if (mine->layers * mine->numel == his->layers * his->numel && !shapes) return CHECKPOINT_OK;
    return ck_fail(e, CHECKPOINT_MODEL,
                   "another model: tensor %s has %" PRIu64 " x %" PRIu64
                   " elements in the checkpoint, %" PRIu64 " x %" PRIu64 " here" CK_FIX,
                   mine->name, his->layers, his->numel, mine->layers, mine->numel);
}

/* Returns the number of the tensor with this name and size in m, or -1. */
static int ck_find_feedback(const ck_manifest *m, const char *name, uint64_t numel) {
    const int i = ck_manifest_find(m, name);
    return i >= 0 && m->tensor[i].layers * m->tensor[i].numel == numel ? i : -1;
}
/* Finds each rank's error feedback in m. If one rank's is missing, no rank loads any. */
static int ck_has_feedback(const checkpoint *c, const ck_manifest *m) {
    int has = 0;
    for (int t = 0; t < c->plan.ntensors; t++) {
        const ck_tensor *mine = &c->plan.tensor[t];
        if (!ck_is_feedback(mine->name)) continue;
        if (ck_find_feedback(m, mine->name, mine->layers * mine->numel) < 0) return 0;
        has = 1;
    }
    return has;
}
static void ck_log_feedback(const checkpoint *c, const ck_manifest *m) {
    int mine = 0, his = 0;
    char text[160];
    for (int t = 0; t < c->plan.ntensors; t++) mine += ck_is_feedback(c->plan.tensor[t].name);
    for (int t = 0; t < m->ntensors; t++) his += ck_is_feedback(m->tensor[t].name);
    if (!mine || ck_has_feedback(c, m)) return;
    (void)snprintf(text, sizeof text,
                   "errors that are fed back begin at zero: the checkpoint has those of %d ranks%s",
                   his, his == mine ? " of other nodes" : "");
    ck_log(c, text);
}

/* Logs that the run of the checkpoint kept 16-bit weights with other masters than this run. */
static void ck_log_masters(const checkpoint *c, const ck_manifest *m) {
    static const char *const words[ZERO_MASTERS] = {"f32 masters", "f32 masters", "split masters",
                                                    "no masters"};
    const zero_config *was = &m->run, *is = &c->plan.run;
    char text[160];
    if (was->master == is->master || was->type == ZERO_F32 || is->type == ZERO_F32) return;
    (void)snprintf(text, sizeof text,
                   "the weights are converted: the checkpoint was saved with %s, this run has %s",
                   words[was->master], words[is->master]);
    ck_log(c, text);
}

/* Reports the tensors that were frozen where the checkpoint was saved and are not here, or the
   reverse. */
static void ck_log_frozen(const checkpoint *c, const ck_manifest *m, int thawed) {
    char text[CHECKPOINT_SENTENCE];
    int n = 0, first = -1;
    for (int t = 0; t < c->plan.ntensors; t++) {
        const ck_tensor *mine = &c->plan.tensor[t];
        if (ck_is_feedback(mine->name)) continue;
        const int was = m->tensor[ck_manifest_find(m, mine->name)].narrays == 1;
        const int differs = was != (mine->narrays == 1) && was == thawed;
        if (differs && !n++) first = t;
    }
    if (!n || c->o.weights_only) return;
    (void)snprintf(text, sizeof text,
                   thawed
                       ? "%d of %d tensors were frozen and are trained now, such as %.200s: master "
                         "weights are made from the stored weights, and moments begin at zero"
                       : "%d of %d tensors were trained and are frozen now, such as %.200s: "
                         "moments are dropped, and weights are rounded to the parameters' type",
                   n, c->plan.ntensors, c->plan.tensor[first].name);
    ck_log(c, text);
}

/* Returns how the run of m kept the state of a tensor. State in 8 bits is stored as f32. */
static zero_state_type ck_state_type(const ck_manifest *m, const ck_tensor *t) {
    if (m->run.state_type == ZERO_STATE_8BIT && !t->f32_state) return ZERO_STATE_8BIT;
    return t->array[1].type == ZERO_BF16 ? ZERO_STATE_BF16 : ZERO_STATE_F32;
}
/* Writes how the run of m kept its state, such as "8 bits (f32 in 2 tensors, such as wte)". */
static void ck_print_states(const ck_manifest *m, char text[200]) {
    static const char *const words[ZERO_STATE_TYPES] = {"f32", "bf16", "8 bits"};
    zero_state_type most = ZERO_STATE_F32;
    int n = 0, first = 0;
    for (int t = 0; t < m->ntensors; t++) {
        const ck_tensor *x = &m->tensor[t];
        if (ck_is_feedback(x->name) || x->narrays < 2) continue;
        if (ck_state_type(m, x)) most = ck_state_type(m, x);
        if (!ck_state_type(m, x) && !n++) first = t;
    }
    const int len = snprintf(text, 200, "%s", words[most]);
    if (most && n)
        (void)snprintf(text + len, 200 - (size_t)len, " (f32 in %d tensor%s, such as %.99s)", n,
                       n > 1 ? "s" : "", m->tensor[first].name);
}
/* Logs that the run of the checkpoint kept state in other types. */
static void ck_log_states(const checkpoint *c, const ck_manifest *m) {
    char text[CHECKPOINT_SENTENCE], was[200], is[200];
    int differs = 0;
    for (int t = 0; t < c->plan.ntensors && !c->o.weights_only; t++) {
        const ck_tensor *mine = &c->plan.tensor[t];
        if (ck_is_feedback(mine->name) || mine->narrays < 2) continue;
        const ck_tensor *his = &m->tensor[ck_manifest_find(m, mine->name)];
        differs |= his->narrays > 1 && ck_state_type(m, his) != ck_state_type(&c->plan, mine);
    }
    if (!differs) return;
    ck_print_states(m, was);
    ck_print_states(&c->plan, is);
    (void)snprintf(text, sizeof text,
                   "the optimizer's state is converted: the checkpoint was saved with %s, this run "
                   "has %s",
                   was, is);
    ck_log(c, text);
}

/* Returns 1 if each trained tensor of m has its parameters as the next step saw them: the
 * checkpoint has a pending update. */
static int ck_has_seen(const ck_manifest *m) {
    for (int t = 0; t < m->ntensors; t++) {
        const ck_tensor *x = &m->tensor[t];
        if (ck_is_feedback(x->name) || ck_is_frozen(m, x)) continue;
        if (x->array[CK_SEEN].npieces == 0) return 0;
    }
    return 1;
}

/* Returns 1 if this run neither saves nor loads the tensor. */
static int ck_is_left_out(const checkpoint *c, const char *name) {
    checkpoint_place p = {0, 0, 1, 0, 1, 0, 1};
    if (c->o.parts.place) c->o.parts.place(c->o.parts.user, name, 0, &p);
    return p.saves == CHECKPOINT_LEFT_OUT;
}

/* Returns the first tensor that only the checkpoint has, or NULL. */
static const char *ck_only_there(const checkpoint *c, const ck_manifest *m) {
    for (int t = 0; t < m->ntensors; t++) {
        const char *name = m->tensor[t].name;
        if (!ck_is_feedback(name) && ck_manifest_find(&c->plan, name) < 0
            && !ck_is_left_out(c, name))
            return name;
    }
    return NULL;
}

/* The checkpoint lacks a tensor: it is of another model, or was saved without frozen tensors. */
static checkpoint_result ck_lacks_tensor(const checkpoint *c, const ck_manifest *m,
                                         const ck_tensor *mine, ck_error *e) {
    const char *more = ck_only_there(c, m);
    if (!more && ck_is_frozen(&c->plan, mine))
        return ck_fail(e, CHECKPOINT_MODEL,
                       "the checkpoint was saved without frozen tensors (it has no %s); leave them "
                       "out here, too (train_gpt2_zero: -nz 0), or give another folder",
                       mine->name);
    return ck_fail(e, CHECKPOINT_MODEL, "another model: the checkpoint has no tensor %s%s%s" CK_FIX,
                   mine->name, more ? ", and this one has no tensor " : "", more ? more : "");
}

static checkpoint_result ck_same_model(const checkpoint *c, const ck_manifest *m, ck_error *e) {
    for (int t = 0; t < c->plan.ntensors; t++) {
        const ck_tensor *mine = &c->plan.tensor[t];
        const int i = ck_manifest_find(m, mine->name);
        if (ck_is_feedback(mine->name)) continue;
        if (i < 0) return ck_lacks_tensor(c, m, mine, e);
        CK_TRY(ck_same_tensor(mine, &m->tensor[i], e));
    }
    const char *more = ck_only_there(c, m);
    if (more)
        return ck_fail(e, CHECKPOINT_MODEL, "another model: this one has no tensor %s" CK_FIX,
                       more);
    if (c->o.weights_only) return CHECKPOINT_OK;
    const int all = c->plan.narrays == 1 || m->narrays == 1; /* all tensors may be frozen */
    if (strcmp(c->plan.optimizer, m->optimizer) != 0 || (c->plan.narrays != m->narrays && !all))
        return ck_fail(
            e, CHECKPOINT_MODEL,
            "another optimizer: %s with %d arrays in the checkpoint, %s with %d here" CK_FIX,
            m->optimizer, m->narrays - 1, c->plan.optimizer, c->plan.narrays - 1);
    for (int t = 0; t < c->plan.ntensors; t++) {
        const ck_tensor *mine = &c->plan.tensor[t];
        if (ck_is_feedback(mine->name)) continue;
        const ck_tensor *his = &m->tensor[ck_manifest_find(m, mine->name)];
        if (mine->narrays != his->narrays && mine->narrays > 1 && his->narrays > 1)
            return ck_fail(e, CHECKPOINT_MODEL,
                           "another optimizer: %s has %d arrays of its state in the checkpoint, %d "
                           "here, where other tensors are matrices" CK_FIX,
                           mine->name, his->narrays - 1, mine->narrays - 1);
    }
    return CHECKPOINT_OK;
}

typedef struct ck_loading {
    checkpoint *c;
    int nneed;
    const ck_manifest *m;
    const char *folder;
    ck_item *need; /* ranges that this rank needs; the `use` of a copy points to one */
    ck_copies list;
    int touched;         /* the state has been changed */
    const ck_copy *part; /* the item that is loaded, and its elements */
    const char *elements;
} ck_loading;

/* Returns the range of dense elements that contains the item and no other element of its part. */
static void ck_item_dense(const ck_item *x, uint64_t *first, uint64_t *end) {
    (void)ck_cut_dense(&x->cut, x->first, 1, first);
    (void)ck_cut_dense(&x->cut, x->first + x->range.count - 1, 1, end);
    ++*end;
}

/* Returns 1 if the item is a moment of a tensor that was frozen where the checkpoint was saved. */
static int ck_lacks_moment(const ck_loading *l, const ck_item *x) {
    const int array = ck_array_of(x->range.kind);
    if (array == 0 || array == CK_SEEN || ck_is_feedback(x->range.name)) return 0;
    return !ck_has_array(&l->m->tensor[ck_manifest_find(l->m, x->range.name)], array);
}

/* Lists the ranges that this rank needs, in the order of the files. */
static checkpoint_result ck_load_list(ck_loading *l, ck_error *e) {
    const checkpoint *c = l->c;
    const int n = ck_items(c->z, &c->o.parts, 1, NULL, NULL);
    l->need = (ck_item *)calloc((size_t)n + 1, sizeof *l->need);
    l->nneed = n;
    if (l->need == NULL) return ck_fail(e, CHECKPOINT_MEMORY, "no memory for %d ranges", n);
    (void)ck_items(c->z, &c->o.parts, 1, l->need, NULL);
    for (int i = 0; i < n; i++) {
        ck_item *x = &l->need[i];
        int array = ck_array_of(x->range.kind);
        const int t = ck_manifest_find(l->m, x->range.name);
        const int fed = ck_is_feedback(x->range.name);
        if (fed && (c->o.weights_only || !ck_has_feedback(c, l->m))) continue;
        const ck_cut his = ck_cut_of(&l->m->tensor[t]);
        uint64_t first, end;
        if (array && c->o.weights_only) continue;
        if (array == CK_SEEN && !ck_has_seen(l->m)) continue;
        if (ck_lacks_moment(l, x)) continue; /* ck_load_zeros sets it to zero */
        /* the next step sees a weight that was frozen */
        if (array == CK_SEEN && !ck_has_array(&l->m->tensor[t], CK_SEEN)) array = 0;
        if (x->cut.parts == 1) x->cut.total = x->cut.row = his.total;
        if (ck_cut_is_same(&his, &x->cut)) {
            CK_TRY(ck_copies_add(&l->list, l->m, t, array, i, x->first, x->range.count, e));
            continue;
        }
        ck_item_dense(x, &first, &end);
        CK_TRY(ck_copies_dense(&l->list, l->m, t, array, i, first, end - first, e));
    }
    return CHECKPOINT_OK;
}

/* Loads n elements, from stored element `at` of this rank's part on. */
static checkpoint_result ck_load_put_run(ck_loading *l, const ck_item *x, uint64_t at, uint64_t n,
                                         const char *elements, ck_error *e) {
    const zero_range r = {x->range.name, x->range.kind, l->part->type,
                          x->range.first + (size_t)(at - x->first), (size_t)n};
    const zero_result zr = zero_state_put(l->c->z, &r, elements);
    l->touched = 1;
    return zr ? ck_plugin(&l->c->all, zr, e) : CHECKPOINT_OK;
}

/* Loads the elements of a part of the file that belong to this rank. */
static checkpoint_result ck_load_put(void *arg, ck_error *e) {
    ck_loading *l = (ck_loading *)arg;
    const ck_copy *part = l->part;
    const ck_item *x = &l->need[part->use];
    const ck_cut his = ck_cut_of(&l->m->tensor[part->tensor]);
    const uint64_t size = zero_type_bytes(part->type);
    if (ck_cut_is_same(&his, &x->cut))
        return ck_load_put_run(l, x, part->first, part->count, l->elements, e);
    for (uint64_t done = 0, n; done < part->count; done += n) {
        uint64_t begin, at, mine, m;
        n = ck_cut_dense(&his, part->first + done, part->count - done, &begin);
        for (at = begin; (m = ck_cut_next(&x->cut, x->part, &at, begin + n, &mine)) > 0; at += m)
            CK_TRY(ck_load_put_run(l, x, mine, m, l->elements + (done + at - begin) * size, e));
    }
    return CHECKPOINT_OK;
}

static checkpoint_result ck_load_take(void *user, const ck_copy *part, void *elements,
                                      ck_error *e) {
    ck_loading *l = (ck_loading *)user;
    l->part = part;
    l->elements = (const char *)elements;
    return ck_work_ask(&l->c->work, ck_load_put, l, e);
}

static checkpoint_result ck_load_read(void *arg, ck_error *e) {
    ck_loading *l = (ck_loading *)arg;
    checkpoint *c = l->c;
    return ck_copies_run(&l->list, l->folder, l->m, !c->o.not_direct, c->window, ck_load_take, l,
                         &c->report.read_bytes, e);
}

/* Sets the moments of tensors that were frozen to zero. */
static zero_result ck_load_zeros(const ck_loading *l) {
    static const float zeros[4096];
    for (int i = 0; i < l->nneed && !l->c->o.weights_only; i++) {
        const zero_range *all = &l->need[i].range;
        if (!ck_lacks_moment(l, &l->need[i])) continue;
        for (size_t at = 0, n; at < all->count; at += n) {
            n = all->count - at < 4096 ? all->count - at : 4096;
            const zero_range r = {all->name, all->kind, ZERO_F32, all->first + at, n};
            const zero_result zr = zero_state_put(l->c->z, &r, zeros);
            if (zr) return zr;
        }
    }
    return ZERO_OK;
}

static checkpoint_result ck_load_state(ck_loading *l, ck_error *e) {
    checkpoint *c = l->c;
    (void)ck_load_list(l, e);
    if (ck_agree(&c->all, e)) return e->code;
    ck_log_feedback(c, l->m);
    ck_log_masters(c, l->m);
    ck_log_frozen(c, l->m, 1);
    ck_log_frozen(c, l->m, 0);
    ck_log_states(c, l->m);
    zero_result zr = zero_state_begin(c->z);
    if (!zr) zr = ck_load_zeros(l);
    if (!zr) (void)ck_together(&c->work, &c->all, ck_load_read, l, e);
    if (!zr && !c->o.weights_only) zr = zero_state_set_counters(c->z, &l->m->counters);
    if (!zr) zr = zero_state_end(c->z, 1); /* also after an error: all ranks come here */
    if (zr && !e->code) (void)ck_plugin(&c->all, zr, e);
    return ck_agree(&c->all, e);
}

static checkpoint_result ck_load_one(ck_loading *l, const checkpoint_generation *g, ck_error *e) {
    checkpoint *c = l->c;
    char folder[CK_PATH];
    ck_manifest m;
    memset(&m, 0, sizeof m);
    memset(&l->list, 0, sizeof l->list);
    l->m = &m;
    l->folder = folder;
    if (ck_path(folder, c->folder, g->name, e)) return e->code; /* the same on all ranks */
    if (ck_load_manifest(c, folder, g->step, &m, e) == CHECKPOINT_OK) {
        if (m.step != g->step)
            (void)ck_fail(e, CHECKPOINT_DAMAGED, "%s holds step %" PRId64, folder, m.step);
        else if (ck_same_model(c, &m, e) == CHECKPOINT_OK)
            (void)ck_load_state(l, e);
    }
    free(l->list.copy);
    free(l->need);
    l->need = NULL;
    if (e->code) {
        ck_manifest_free(&m);
        return e->code;
    }
    ck_manifest_free(&c->loaded);
    c->loaded = m;
    c->has_loaded = 1;
    if (c->o.memory && c->rank == 0) c->slot = ck_memory_find(c->o.memory, g->step);
    return CHECKPOINT_OK;
}

static void ck_log_skipped(checkpoint *c, const char *name, const ck_error *e) {
    char sentence[CHECKPOINT_SENTENCE + 2 * CK_NAME];
    c->report.skipped++;
    (void)snprintf(sentence, sizeof sentence, "%s is skipped: %s", name, e->text);
    ck_log(c, sentence);
}

/* Rank 0 lists the checkpoints. */
typedef struct ck_offer {
    const char *folder;
    const checkpoint_memory *memory;
    checkpoint_generation *list;
    int n;
} ck_offer;
static checkpoint_result ck_offer_list(void *arg, ck_error *e) {
    ck_offer *offer = (ck_offer *)arg;
    if (offer->memory) return ck_memory_list(offer->memory, &offer->list, &offer->n, e);
    return e->code = checkpoint_list(offer->folder, &offer->list, &offer->n, e->text);
}

/* Tries the checkpoints of rank 0's list, the newest first. */
static checkpoint_result ck_load_any(ck_loading *l, const ck_offer *offer, int64_t step,
                                     ck_error *e) {
    checkpoint *c = l->c;
    const checkpoint_generation *list = offer->list;
    ck_error first = ck_none; /* error of the newest damaged one */
    char newest[CK_NAME] = "";
    for (int i = 0;; i++) {
        checkpoint_generation g = {-1, ""};
        while (i < offer->n && step >= 0 && list[i].step != step) i++;
        if (i < offer->n) g = list[i];
        const zero_result zr = ck_broadcast(&c->all, &g, sizeof g, 0);
        if (zr) return ck_plugin(&c->all, zr, e);
        if (g.step < 0) break;
        *e = ck_none;
        if (ck_load_one(l, &g, e) != CHECKPOINT_DAMAGED) return e->code;
        if (!first.code) memcpy(newest, g.name, sizeof newest);
        if (!first.code) first = *e;
        if (c->o.refuse_damaged) break;
        ck_log_skipped(c, g.name, e);
    }
    if (first.code)
        return ck_fail(e, CHECKPOINT_DAMAGED,
                       "no checkpoint in %.150s is complete%s: %s: %.350s%s; give another folder",
                       c->folder, c->o.refuse_damaged ? " enough" : "", newest, first.text,
                       l->touched ? "; the weights are a mixture now" : "");
    return ck_fail(e, CHECKPOINT_NONE, "there is no checkpoint%s in %.400s; give another folder",
                   step >= 0 ? " of this step" : "", c->folder);
}

checkpoint_result checkpoint_load(checkpoint *c, int64_t step) {
    const double start = ck_now();
    ck_loading l = {.c = c};
    ck_offer offer = {c->folder, c->o.memory, NULL, 0};
    ck_error e = ck_none;
    if (ck_finish(c, &e)) return ck_return(c, &e);
    c->report.skipped = 0;
    c->report.read_bytes = 0;
    if (ck_on_first(c, ck_offer_list, &offer, &e) == CHECKPOINT_OK)
        (void)ck_load_any(&l, &offer, step, &e);
    free(offer.list);
    if (e.code == CHECKPOINT_OK) c->report.saved_step = c->loaded.step;
    c->report.load_s = ck_now() - start;
    return ck_return(c, &e);
}

/* ---- queries ---- */

int64_t checkpoint_step(const checkpoint *c) { return c->has_loaded ? c->loaded.step : -1; }

static const checkpoint_value *ck_value(const checkpoint *c, const char *name,
                                        checkpoint_value_kind kind) {
    for (int i = 0; i < c->loaded.nvalues; i++)
        if (c->loaded.value[i].kind == kind && strcmp(c->loaded.value[i].name, name) == 0)
            return &c->loaded.value[i];
    return NULL;
}

int checkpoint_get_int(const checkpoint *c, const char *name, int64_t *number) {
    const checkpoint_value *v = ck_value(c, name, CHECKPOINT_INT);
    if (v) *number = v->number;
    return v != NULL;
}

int checkpoint_get_real(const checkpoint *c, const char *name, double *real) {
    const checkpoint_value *v = ck_value(c, name, CHECKPOINT_REAL);
    if (v) *real = v->real;
    return v != NULL;
}

int checkpoint_get_text(const checkpoint *c, const char *name, const char **text) {
    const checkpoint_value *v = ck_value(c, name, CHECKPOINT_TEXT);
    if (v) *text = v->text;
    return v != NULL;
}

int checkpoint_get_counters(const checkpoint *c, zero_counters *counters) {
    if (c->has_loaded) *counters = c->loaded.counters;
    return c->has_loaded;
}

const char *checkpoint_config(const checkpoint *c) {
    return c->has_loaded && c->loaded.config ? c->loaded.config : "";
}

const char *checkpoint_error(const checkpoint *c) {
    return c ? c->error.text : "no memory for a checkpoint";
}

zero_result checkpoint_plugin_result(const checkpoint *c) { return c->plugin; }

void checkpoint_query(const checkpoint *c, checkpoint_report *report) {
    *report = c->report;
    if (c->rank != 0 || !c->flying || !ck_work_done(&c->work) || c->work.outcome.code) return;
    report->saved_step = c->plan.step; /* rank 0 has checked the files of all ranks */
    report->write_s = c->write_s;
}

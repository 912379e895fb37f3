/* checkpoint_writer.c - a generation without a context: for converters. It writes one shard file
   in windows that a callback fills, so the whole model is never in memory. */
#include "checkpoint_inside.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

typedef struct ck_pull {
    const ck_manifest *m;
    ck_read read;
    void *user;
    float *values; /* CK_WINDOW bytes */
} ck_pull;

/* Fills the part of an array in [at, end) of the image. */
static checkpoint_result ck_pull_array(const ck_pull *p, int tensor, int array, uint64_t at,
                                       uint64_t end, char *out, ck_error *e) {
    const ck_array *a = &p->m->tensor[tensor].array[array];
    const uint64_t size = zero_type_bytes(a->type), begin = a->piece->offset;
    const uint64_t last = begin + a->piece->count * size, to = last < end ? last : end;
    for (uint64_t from = begin > at ? begin : at, n; from < to; from += n * size) {
        n = (to - from) / size;
        if (n > CK_WINDOW / sizeof(float)) n = CK_WINDOW / sizeof(float);
        CK_TRY(p->read(p->user, tensor, array, (from - begin) / size, (size_t)n, p->values, e));
        zero_convert(out + (from - at), a->type, p->values, ZERO_F32, (size_t)n);
        ck_little_endian(out + (from - at), a->type, (size_t)n);
    }
    return CHECKPOINT_OK;
}

/* Fills bytes [at, at + bytes) of the image. */
static checkpoint_result ck_pull_fill(void *user, uint64_t at, size_t bytes, char *out,
                                      ck_error *e) {
    const ck_pull *p = (const ck_pull *)user;
    const ck_manifest *m = p->m;
    memset(out, 0, bytes);
    if (at == 0) {
        const ck_header h = {m->save, m->file->image_bytes, m->step, 0, 1};
        ck_header_write(out, &h);
    }
    for (int t = 0; t < m->ntensors; t++)
        for (int k = 0; k < CK_ALL_ARRAYS; k++)
            if (ck_has_array(&m->tensor[t], k))
                CK_TRY(ck_pull_array(p, t, k, at, at + bytes, out, e));
    return CHECKPOINT_OK;
}

/* Makes each array one piece of the one file. */
static checkpoint_result ck_pull_plan(ck_manifest *m, ck_error *e) {
    uint64_t at = CK_HEADER;
    ck_file *file = (ck_file *)calloc(1, sizeof *file);
    if (file == NULL) return ck_fail(e, CHECKPOINT_MEMORY, "no memory for a file's name");
    free(m->file);
    m->file = file;
    m->nfiles = 1;
    for (int t = 0; t < m->ntensors; t++)
        for (int k = 0; k < CK_ALL_ARRAYS; k++) {
            ck_array *a = &m->tensor[t].array[k];
            if (!ck_has_array(&m->tensor[t], k)) continue;
            const ck_piece whole = {0, 0, m->tensor[t].layers * m->tensor[t].numel, at};
            a->npieces = 0;
            if (ck_array_add(a, &whole) == NULL)
                return ck_fail(e, CHECKPOINT_MEMORY, "no memory for the list of tensors");
            at = ck_round_up(at + whole.count * zero_type_bytes(a->type), CK_ALIGN);
        }
    file->image_bytes = ck_round_up(at, CK_PAGE);
    ck_shard_name(file->name, 0);
    return CHECKPOINT_OK;
}

static checkpoint_result ck_pull_folder(const char *folder, const ck_manifest *m, ck_error *e) {
    checkpoint_generation *list;
    int n;
    CK_TRY(ck_folder_make(folder, e));
    e->code = checkpoint_list(folder, &list, &n, e->text);
    if (e->code) return e->code;
    if (n > 0 && list->step >= m->step)
        (void)ck_fail(e, CHECKPOINT_ARGUMENT,
                      "%.400s has %s: a run would resume from that, and not from step %" PRId64
                      "; give another folder",
                      folder, list->name, m->step);
    free(list);
    if (e->code) return e->code;
    return ck_folder_room(folder, ck_file_bytes(m->file->image_bytes) + CK_BLOCK, e);
}

/* Writes shard and manifest to the folder `temporary`, which is renamed when both are complete. */
static checkpoint_result ck_pull_write(const char *temporary, ck_manifest *m, const ck_shard *s,
                                       ck_error *e) {
    CK_TRY(ck_shard_write(s, e));
    m->file->table = ck_hash(s->table, (size_t)ck_table_bytes(s->image_bytes));
    return ck_manifest_write(m, temporary, "manifest.json", e);
}

static checkpoint_result ck_pull_publish(const char *folder, ck_manifest *m, ck_shard s,
                                         ck_error *e) {
    char name[CK_NAME], temporary[2 * CK_NAME], path[CK_PATH];
    ck_error ignored = {CHECKPOINT_OK, 0, ""};
    int done = 0;
    ck_generation_name(name, m->step);
    (void)snprintf(temporary, sizeof temporary, "%s.tmp-%016" PRIx64, name, m->save);
    CK_TRY(ck_path(path, folder, temporary, e));
    CK_TRY(ck_folder_make(path, e));
    s.folder = path;
    if (ck_pull_write(path, m, &s, e) == CHECKPOINT_OK)
        (void)ck_generation_publish(folder, temporary, m->step, m->save, &done, e);
    if (e->code) ck_folder_explain(folder, ck_file_bytes(s.image_bytes), e);
    if (!done) (void)ck_folder_remove(path, &ignored);
    return e->code;
}

checkpoint_result ck_generation_write(const char *folder, ck_manifest *m, ck_read read, void *user,
                                      ck_error *e) {
    if (getrandom(&m->save, sizeof m->save, 0) != (ssize_t)sizeof m->save)
        return ck_fail_errno(e, "no random number to name the save");
    CK_TRY(ck_pull_plan(m, e));
    CK_TRY(ck_pull_folder(folder, m, e));
    const uint64_t image = m->file->image_bytes;
    ck_pull p = {m, read, user, (float *)malloc(CK_WINDOW)};
    ck_shard s = {.direct = 1, .image_bytes = image, .fill = ck_pull_fill, .user = &p};
    s.window = (char *)ck_pages_alloc(CK_WINDOW);
    s.table = (char *)ck_pages_alloc((size_t)ck_table_bytes(image));
    if (p.values == NULL || s.window == NULL || s.table == NULL)
        (void)ck_fail(e, CHECKPOINT_MEMORY, "no memory to write in");
    else
        (void)ck_pull_publish(folder, m, s, e);
    free(p.values);
    free(s.window);
    free(s.table);
    return e->code;
}

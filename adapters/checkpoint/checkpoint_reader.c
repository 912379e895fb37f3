/* checkpoint_reader.c - a generation without a context: for tools, converters, and runs that have
   ended. */
#include "checkpoint_inside.h"

#include <stdlib.h>
#include <string.h>

struct checkpoint_reader {
    char folder[CK_PATH];
    ck_manifest m;
    char *window;
};

static checkpoint_result ck_copy_error(const ck_error *e, char *why) {
    if (why) memcpy(why, e->text, sizeof e->text);
    return e->code;
}

static checkpoint_result ck_reader_fill(checkpoint_reader *r, const char *path, ck_error *e) {
    r->window = (char *)ck_pages_alloc(CK_WINDOWS);
    if (r->window == NULL) return ck_fail(e, CHECKPOINT_MEMORY, "no memory to read in");
    CK_TRY(ck_manifest_read(&r->m, path, e));
    memcpy(r->folder, path, strlen(path) + 1); /* it fits: the manifest's path did */
    return CHECKPOINT_OK;
}

checkpoint_result checkpoint_open(checkpoint_reader **out, const char *path, char *why) {
    ck_error e = {CHECKPOINT_OK, 0, ""};
    checkpoint_reader *r = (checkpoint_reader *)calloc(1, sizeof *r);
    if (r == NULL)
        (void)ck_fail(&e, CHECKPOINT_MEMORY, "no memory for a reader");
    else if (ck_reader_fill(r, path, &e)) {
        checkpoint_close(r);
        r = NULL;
    }
    *out = r;
    return ck_copy_error(&e, why);
}

void checkpoint_close(checkpoint_reader *r) {
    if (r == NULL) return;
    ck_manifest_free(&r->m);
    free(r->window);
    free(r);
}

int checkpoint_reader_splits(const checkpoint_reader *r) {
    return r->m.run.type == ZERO_BF16 && r->m.run.master == ZERO_MASTER_SPLIT;
}
int64_t checkpoint_reader_step(const checkpoint_reader *r) { return r->m.step; }
int checkpoint_tensors(const checkpoint_reader *r) { return r->m.ntensors; }
int checkpoint_values(const checkpoint_reader *r) { return r->m.nvalues; }
const char *checkpoint_reader_config(const checkpoint_reader *r) { return r->m.config; }
const char *checkpoint_optimizer(const checkpoint_reader *r) { return r->m.optimizer; }

void checkpoint_query_counters(const checkpoint_reader *r, zero_counters *counters) {
    *counters = r->m.counters;
}

const checkpoint_value *checkpoint_value_at(const checkpoint_reader *r, int i) {
    return i >= 0 && i < r->m.nvalues ? &r->m.value[i] : NULL;
}

void checkpoint_query_tensor(const checkpoint_reader *r, int i, checkpoint_tensor *tensor) {
    memset(tensor, 0, sizeof *tensor);
    if (i < 0 || i >= r->m.ntensors) return;
    const ck_tensor *t = &r->m.tensor[i];
    tensor->name = t->name;
    tensor->layers = (size_t)t->layers;
    tensor->numel = (size_t)t->numel;
    tensor->arrays = t->narrays;
    tensor->parts = (int)ck_cut_of(t).parts;
    for (int k = 0; k < t->narrays; k++) tensor->type[k] = t->array[k].type;
}

/* The memory for dense elements from `first`. */
typedef struct ck_target {
    float *out;
    uint64_t first;
    ck_cut cut;
} ck_target;

static checkpoint_result ck_reader_take(void *user, const ck_copy *part, void *elements,
                                        ck_error *e) {
    const ck_target *to = (const ck_target *)user;
    const char *from = (const char *)elements;
    (void)e;
    for (uint64_t done = 0, n, at; done < part->count; done += n) {
        n = ck_cut_dense(&to->cut, part->first + done, part->count - done, &at);
        zero_convert(to->out + (at - to->first), ZERO_F32, from, part->type, (size_t)n);
        from += n * zero_type_bytes(part->type);
    }
    return CHECKPOINT_OK;
}

checkpoint_result checkpoint_read(checkpoint_reader *r, int tensor, int array, size_t first,
                                  size_t count, float *out, char *why) {
    ck_error e = {CHECKPOINT_OK, 0, ""};
    ck_copies list = {0, 0, NULL};
    uint64_t read_bytes = 0;
    ck_target to = {out, first, {0, 0, 1}};
    const ck_tensor *t = tensor >= 0 && tensor < r->m.ntensors ? &r->m.tensor[tensor] : NULL;
    const uint64_t total = t ? t->layers * t->numel : 0;
    if (t == NULL || !ck_has_array(t, array) || first > total || count > total - first)
        (void)ck_fail(&e, CHECKPOINT_ARGUMENT,
                      "tensor %d, array %d: no elements [%zu, %zu); stay within its array", tensor,
                      array, first, first + count);
    else if (!ck_copies_dense(&list, &r->m, tensor, array, 0, first, count, &e)) {
        to.cut = ck_cut_of(t);
        (void)ck_copies_run(&list, r->folder, &r->m, 0, r->window, ck_reader_take, &to, &read_bytes,
                            &e);
    }
    free(list.copy);
    return ck_copy_error(&e, why);
}

static checkpoint_result ck_verify_file(checkpoint_reader *r, int file, uint64_t *bytes,
                                        ck_error *e) {
    ck_source s;
    checkpoint_result result = ck_source_open(&s, r->folder, &r->m, file, 0, e);
    for (uint64_t at = 0; at < s.image_bytes && !result; at += CK_WINDOW) {
        const uint64_t left = s.image_bytes - at;
        const size_t n = left < CK_WINDOW ? (size_t)left : CK_WINDOW;
        result = ck_source_read(&s, at, n, r->window, e);
    }
    *bytes += s.read_bytes;
    ck_source_close(&s);
    return result;
}

checkpoint_result checkpoint_verify(checkpoint_reader *r, uint64_t *bytes, char *why) {
    ck_error e = {CHECKPOINT_OK, 0, ""};
    *bytes = 0;
    for (int i = 0; i < r->m.nfiles && !e.code; i++) (void)ck_verify_file(r, i, bytes, &e);
    return ck_copy_error(&e, why);
}

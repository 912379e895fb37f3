/* model_io.c - what the formats of model_files.h share: results that all ranks agree on, files that
   replace another at once, and pieces of a file on their way from a context. */
#include "model_inside.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Elements of a buffer; three buffers are the memory that model_files.h promises. */
enum { PIECE = 1 << 19 };

/* ---- results ------------------------------------------------------------------------------- */

zero_result model_refuse(gpt2_error *e, zero_result result, const char *format, ...) {
    va_list list;
    va_start(list, format);
    (void)vsnprintf(e->sentence, sizeof e->sentence, format, list);
    va_end(list);
    return result;
}

zero_result model_from_plugin(const model_file *f, zero_result result) {
    if (result == ZERO_OK) return result;
    return model_refuse(f->e, result, "%.200s: %.300s", f->path, zero_last_error(f->z));
}

zero_result model_agree(zero_ctx *z, zero_result result, gpt2_error *e) {
    struct {
        zero_result result;
        gpt2_error e;
    } told;
    double failed = result != ZERO_OK;
    if (z == NULL) return result;
    zero_result r = zero_all_sum(z, &failed, 1);
    for (int rank = 0; r == ZERO_OK && failed > 0 && rank < zero_nranks(z); rank++) {
        memset(&told, 0, sizeof told);
        told.result = result;
        if (result != ZERO_OK) told.e = *e;
        r = zero_broadcast(z, &told, sizeof told, rank);
        if (r != ZERO_OK || told.result == ZERO_OK) continue;
        *e = told.e;
        return told.result;
    }
    if (r != ZERO_OK) return model_refuse(e, r, "%.400s", zero_last_error(z));
    return ZERO_OK;
}

zero_result model_hand_out(gpt2_error *err, const gpt2_error *e, zero_result result) {
    if (err == NULL) return result;
    *err = *e;
    if (result == ZERO_OK) err->sentence[0] = 0;
    return result;
}

/* ---- configurations ------------------------------------------------------------------------ */

zero_result model_check_config(const gpt2_config *c, const char *path, gpt2_error *e) {
    const int most = 1 << 20; /* most positions, and most entries of the vocabulary */
    if (c->layers < 1 || c->layers > 4096 || c->channels < 1 || c->channels > 1 << 16
        || c->heads < 1 || c->max_seq_len < 1 || c->max_seq_len > most || c->vocab_size < 1
        || c->vocab_size > most || c->padded_vocab_size < c->vocab_size
        || c->padded_vocab_size > most + 128)
        return model_refuse(e, ZERO_ERR_ARGUMENT,
                            "%.200s: %d layers, %d channels, %d heads, %d positions and %d of %d "
                            "vocabulary entries are out of range; use a GPT-2 model",
                            path, c->layers, c->channels, c->heads, c->max_seq_len, c->vocab_size,
                            c->padded_vocab_size);
    if (c->channels % c->heads)
        return model_refuse(e, ZERO_ERR_ARGUMENT,
                            "%.200s: %d heads do not divide %d channels; use a GPT-2 model", path,
                            c->heads, c->channels);
    return ZERO_OK;
}

size_t model_total(const zero_tensor_desc *d) {
    return d->numel * (size_t)(d->layers ? d->layers : 1);
}

/* ---- files --------------------------------------------------------------------------------- */

static zero_result refuse_errno(const model_file *f, const char *what) {
    const int number = errno;
    return model_refuse(f->e, ZERO_ERR_ARGUMENT, "%.300s: %s: %s", f->path, what, strerror(number));
}

zero_result model_open(model_file *f, const char *path, gpt2_error *e) {
    struct stat is;
    f->path = path;
    f->e = e;
    f->fd =
        open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* does not wait for the writer of a pipe */
    if (f->fd < 0) return refuse_errno(f, "the file cannot be opened");
    if (fstat(f->fd, &is)) return refuse_errno(f, "its length cannot be read");
    if (!S_ISREG(is.st_mode))
        return model_refuse(e, ZERO_ERR_ARGUMENT,
                            "%.300s: not a file; use the path of a model file", path);
    f->bytes = (uint64_t)is.st_size;
    return ZERO_OK;
}

zero_result model_get_from(const model_file *f, int fd, uint64_t at, size_t bytes, void *out) {
    unsigned char *to = (unsigned char *)out;
    while (bytes > 0) {
        const ssize_t n = pread(fd, to, bytes, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return refuse_errno(f, "it cannot be read");
        if (n == 0)
            return model_refuse(
                f->e, ZERO_ERR_ARGUMENT,
                "%.300s: cut short: it ends at byte %" PRIu64 "; copy the file again", f->path, at);
        to += n;
        at += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return ZERO_OK;
}

zero_result model_get(const model_file *f, uint64_t at, size_t bytes, void *out) {
    return model_get_from(f, f->fd, at, bytes, out);
}

/* Returns the error of a failed write. A full disk is the usual cause, so the sentence has the
   needed bytes. */
static zero_result refuse_write(const model_file *f) {
    const int number = errno;
    return model_refuse(f->e, ZERO_ERR_ARGUMENT,
                        "%.300s: cannot be written: %s (%" PRIu64 " bytes are needed)", f->path,
                        strerror(number), f->bytes);
}

zero_result model_put(const model_file *f, uint64_t at, size_t bytes, const void *data) {
    const unsigned char *from = (const unsigned char *)data;
    while (bytes > 0) {
        const ssize_t n = pwrite(f->fd, from, bytes, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return refuse_write(f);
        from += n;
        at += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return ZERO_OK;
}

zero_result model_create(model_file *f, const char *path) {
    const int n = snprintf(f->temporary, sizeof f->temporary, "%s.tmp-%ld", path, (long)getpid());
    if (n < 0 || n >= (int)sizeof f->temporary) {
        f->temporary[0] = 0;
        return model_refuse(f->e, ZERO_ERR_ARGUMENT,
                            "%.300s...: the path is too long; use a shorter one", path);
    }
    (void)unlink(f->temporary); /* a killed run with the same process number may have left it */
    f->fd = open(f->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (f->fd < 0) {
        f->temporary[0] = 0;
        return refuse_errno(f, "the file cannot be made");
    }
    return ZERO_OK;
}

int model_path_next_to(char *out, size_t bytes, const char *path, const char *name) {
    const char *slash = strrchr(path, '/');
    const int folder = slash == NULL ? 0 : (int)(slash - path) + 1;
    return snprintf(out, bytes, "%.*s%s", folder, path, name) < (int)bytes;
}

int model_ends(const char *path, const char *tail) {
    const size_t n = strlen(path), end = strlen(tail);
    return n > end && strcmp(path + n - end, tail) == 0;
}

int model_is_file(const char *path) {
    return model_ends(path, ".bin") || model_ends(path, ".safetensors")
           || model_ends(path, ".json");
}

/* Syncs the folder, because only then a rename is durable. */
static int sync_folder(const char *path) {
    char folder[MODEL_PATH];
    if (!model_path_next_to(folder, sizeof folder, path, ".")) return 0;
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return 0;
    const int failed =
        fsync(fd) && errno != EINVAL; /* EINVAL: the file system has nothing to sync */
    (void)close(fd);
    return !failed;
}

zero_result model_commit(model_file *f) {
    if (fsync(f->fd)) return refuse_write(f);
    const int failed = close(f->fd);
    f->fd = -1;
    if (failed) return refuse_write(f);
    if (rename(f->temporary, f->path)) return refuse_errno(f, "it cannot be renamed");
    f->temporary[0] = 0;
    if (!sync_folder(f->path)) return refuse_errno(f, "its folder cannot be fsynced");
    return ZERO_OK;
}

void model_close(model_file *f) {
    if (f->fd >= 0) (void)close(f->fd);
    if (f->temporary[0]) (void)unlink(f->temporary);
    free(f->raw);
    free(f->values);
    free(f->transposed);
    memset(f, 0, sizeof *f);
    f->fd = -1;
}

zero_result model_buffers(model_file *f) {
    const size_t row = 4 * (size_t)f->cfg->channels;
    const int tensors = gpt2_table(f->cfg, NULL, 0, f->table);
    size_t most = row;
    for (int i = 0; i < tensors; i++)
        if (model_total(&f->table[i]) > most) most = model_total(&f->table[i]);
    most = (most + row - 1) / row * row;
    f->piece = row > PIECE ? row : PIECE / row * row;
    if (f->piece > most) f->piece = most;
    f->raw = (unsigned char *)malloc(f->piece * 4);
    f->values = (float *)malloc(f->piece * sizeof(float));
    f->transposed = (float *)malloc(f->piece * sizeof(float));
    if (f->raw && f->values && f->transposed) return ZERO_OK;
    return model_refuse(f->e, ZERO_ERR_MEMORY, "%.300s: no memory for three buffers of %zu bytes",
                        f->path, f->piece * 4);
}

/* ---- pieces -------------------------------------------------------------------------------- */

zero_result model_narrow(const model_file *f, zero_type type, size_t n, const float *values,
                         const char *name) {
    zero_convert(f->raw, type, values, ZERO_F32, n);
    if (type == ZERO_F32) return ZERO_OK;
    const uint16_t infinite = type == ZERO_BF16 ? 0x7F80 : 0x7C00;
    for (size_t i = 0; i < n; i++) {
        uint16_t bits;
        memcpy(&bits, f->raw + 2 * i, sizeof bits);
        if ((bits & 0x7FFF) == infinite && isfinite(values[i]))
            return model_refuse(f->e, ZERO_ERR_ARGUMENT,
                                "%.300s: %s: %g is too large for %s; write f32", f->path, name,
                                (double)values[i], type == ZERO_BF16 ? "bf16" : "f16");
    }
    return ZERO_OK;
}

zero_result model_copy_out(const model_file *f, int tensor, size_t first, size_t n, zero_type type,
                           uint64_t at) {
    while (n > 0) {
        const size_t m = n < f->piece ? n : f->piece;
        const size_t bytes = m * zero_type_bytes(type);
        zero_result r = ZERO_OK;
        MODEL_TRY(
            f->read(f->user, tensor, ZERO_MASTER, first, m, f->fd < 0 ? NULL : f->values, f->e));
        if (f->fd >= 0) r = model_narrow(f, type, m, f->values, f->table[tensor].name);
        if (f->fd >= 0 && r == ZERO_OK) r = model_put(f, at, bytes, f->raw);
        MODEL_TRY(model_agree(f->z, r, f->e));
        first += m;
        n -= m;
        at += bytes;
    }
    return ZERO_OK;
}

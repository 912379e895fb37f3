/* llmc_bin.c - llm.c's model and state files, and what both formats of model_files.h share: pieces
   of a file on their way to a context and back, results that all ranks agree on, files that replace
   another at once, and a reader for those who have no context. */
#define MODEL_FILES_INSIDE
#include "model_files.h"

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

/* Elements of a buffer; three buffers are the memory that the header promises. */
enum { PIECE = 1 << 19 };

/* ---- results ------------------------------------------------------------------------------- */

zero_result model_refuse(gpt2_error *e, zero_result result, const char *format, ...) {
    va_list list;
    va_start(list, format);
    (void)vsnprintf(e->sentence, sizeof e->sentence, format, list);
    va_end(list);
    return result;
}

static zero_result from_plugin(const model_file *f, zero_result result) {
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

/* What a public function returns: the sentence goes to the caller, if there is one to go to. */
static zero_result hand_out(gpt2_error *err, const gpt2_error *e, zero_result result) {
    if (err == NULL) return result;
    *err = *e;
    if (result == ZERO_OK) err->sentence[0] = 0;
    return result;
}

/* ---- configurations ------------------------------------------------------------------------ */

zero_result model_check_config(const gpt2_config *c, const char *path, gpt2_error *e) {
    const int most = 1 << 20; /* positions or entries */
    if (c->layers < 1 || c->layers > 4096 || c->channels < 1 || c->channels > 1 << 16
        || c->heads < 1 || c->max_seq_len < 1 || c->max_seq_len > most || c->vocab_size < 1
        || c->vocab_size > most || c->padded_vocab_size < c->vocab_size
        || c->padded_vocab_size > most + 128)
        return model_refuse(e, ZERO_ERR_ARGUMENT,
                            "%.200s: %d layers, %d channels, %d heads, %d positions and %d of %d "
                            "vocabulary entries are out of range",
                            path, c->layers, c->channels, c->heads, c->max_seq_len, c->vocab_size,
                            c->padded_vocab_size);
    if (c->channels % c->heads)
        return model_refuse(e, ZERO_ERR_ARGUMENT, "%.200s: %d heads do not divide %d channels",
                            path, c->heads, c->channels);
    return ZERO_OK;
}

static size_t total(const zero_tensor_desc *d) {
    return d->numel * (size_t)(d->layers ? d->layers : 1);
}

/* ARGUMENT with the first tensor of the file's model that has another size than cfg's. */
static zero_result same_model(const gpt2_config *found, const gpt2_config *cfg, const char *path,
                              gpt2_error *e) {
    zero_tensor_desc theirs[GPT2_TENSORS], ours[GPT2_TENSORS];
    gpt2_describe(found, theirs);
    gpt2_describe(cfg, ours);
    for (int i = 0; i < GPT2_TENSORS; i++) {
        if (theirs[i].numel == ours[i].numel && theirs[i].layers == ours[i].layers) continue;
        return model_refuse(
            e, ZERO_ERR_ARGUMENT,
            "%.200s: of another model: %s has %d x %zu elements there, %d x %zu here", path,
            ours[i].name, theirs[i].layers, theirs[i].numel, ours[i].layers, ours[i].numel);
    }
    if (found->vocab_size != cfg->vocab_size)
        return model_refuse(
            e, ZERO_ERR_ARGUMENT,
            "%.200s: of another model: wte has %d vocabulary entries there, %d here", path,
            found->vocab_size, cfg->vocab_size);
    if (found->heads && found->heads != cfg->heads)
        return model_refuse(e, ZERO_ERR_ARGUMENT,
                            "%.200s: of another model: qkvw has %d heads there, %d here", path,
                            found->heads, cfg->heads);
    return ZERO_OK;
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
    f->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe without a writer, too */
    if (f->fd < 0) return refuse_errno(f, "the file cannot be opened");
    if (fstat(f->fd, &is)) return refuse_errno(f, "its length cannot be told");
    if (!S_ISREG(is.st_mode)) return model_refuse(e, ZERO_ERR_ARGUMENT, "%.300s: not a file", path);
    f->bytes = (uint64_t)is.st_size;
    return ZERO_OK;
}

static zero_result get_from(const model_file *f, int fd, uint64_t at, size_t bytes, void *out) {
    unsigned char *to = (unsigned char *)out;
    while (bytes > 0) {
        const ssize_t n = pread(fd, to, bytes, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return refuse_errno(f, "it cannot be read");
        if (n == 0)
            return model_refuse(f->e, ZERO_ERR_ARGUMENT,
                                "%.300s: cut short: it ends at byte %" PRIu64, f->path, at);
        to += n;
        at += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return ZERO_OK;
}

zero_result model_get(const model_file *f, uint64_t at, size_t bytes, void *out) {
    return get_from(f, f->fd, at, bytes, out);
}

/* Disk full is the failure that users meet: they are told how much they need. */
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
        return model_refuse(f->e, ZERO_ERR_ARGUMENT, "%.300s...: the path is too long", path);
    }
    (void)unlink(f->temporary); /* of a run that was killed, of the same number */
    f->fd = open(f->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (f->fd < 0) {
        f->temporary[0] = 0;
        return refuse_errno(f, "the file cannot be made");
    }
    return ZERO_OK;
}

int model_beside(char *out, size_t bytes, const char *path, const char *name) {
    const char *slash = strrchr(path, '/');
    const int folder = slash == NULL ? 0 : (int)(slash - path) + 1;
    return snprintf(out, bytes, "%.*s%s", folder, path, name) < (int)bytes;
}

int model_ends(const char *path, const char *tail) {
    const size_t n = strlen(path), end = strlen(tail);
    return n > end && strcmp(path + n - end, tail) == 0;
}

/* The folder's entry is what makes a rename last. */
static int sync_folder(const char *path) {
    char folder[MODEL_PATH];
    if (!model_beside(folder, sizeof folder, path, ".")) return 0;
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return 0;
    const int failed = fsync(fd) && errno != EINVAL; /* a file system with nothing to sync */
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
    model_safetensors_close(f);
    free(f->raw);
    free(f->values);
    free(f->turned);
    memset(f, 0, sizeof *f);
    f->fd = -1;
}

static zero_result make_buffers(model_file *f) {
    const size_t row = 4 * (size_t)f->cfg->channels;
    gpt2_describe(f->cfg, f->table);
    f->piece = row > PIECE ? row : PIECE / row * row;
    f->raw = (unsigned char *)malloc(f->piece * 4);
    f->values = (float *)malloc(f->piece * sizeof(float));
    f->turned = (float *)malloc(f->piece * sizeof(float));
    if (f->raw && f->values && f->turned) return ZERO_OK;
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
            return model_refuse(f->e, ZERO_ERR_ARGUMENT, "%.300s: %s: %g is too large for %s",
                                f->path, name, (double)values[i],
                                type == ZERO_BF16 ? "bf16" : "f16");
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

/* ---- llm.c's model files ------------------------------------------------------------------- */

enum {
    HEADER_INTS = 256,
    MODEL_MAGIC = 20240326,
    MODEL_F32 = 3,
    MODEL_BF16 = 5,
    STATE_MAGIC = 20240527,
    STATE_VERSION = 1
};
static const size_t header_bytes = HEADER_INTS * sizeof(int32_t);

static zero_result check_length(const model_file *f, uint64_t expected) {
    if (f->bytes == expected) return ZERO_OK;
    return model_refuse(f->e, ZERO_ERR_ARGUMENT,
                        "%.300s: expected %" PRIu64 " bytes, found %" PRIu64 "%s", f->path,
                        expected, f->bytes, f->bytes < expected ? ": the file is cut short" : "");
}

static zero_result read_header(const model_file *f, int32_t h[HEADER_INTS]) {
    if (f->bytes < header_bytes)
        return model_refuse(f->e, ZERO_ERR_ARGUMENT,
                            "%.300s: expected a header of %zu bytes, found %" PRIu64
                            ": the file is cut short",
                            f->path, header_bytes, f->bytes);
    return model_get(f, 0, header_bytes, h);
}

static zero_result llmc_info(model_file *f) {
    int32_t h[HEADER_INTS];
    MODEL_TRY(read_header(f, h));
    if (h[1] != MODEL_F32 && h[1] != MODEL_BF16)
        return model_refuse(f->e, ZERO_ERR_ARGUMENT,
                            "%.300s: version %d, expected %d (f32) or %d (bf16)", f->path,
                            (int)h[1], MODEL_F32, MODEL_BF16);
    const gpt2_config c = {h[2], h[3], h[7], h[4], h[5], h[6]};
    const model_info info = {MODEL_LLMC, h[1] == MODEL_F32 ? ZERO_F32 : ZERO_BF16, c};
    f->info = info;
    MODEL_TRY(model_check_config(&c, f->path, f->e));
    return check_length(f, header_bytes + gpt2_numel(&c) * zero_type_bytes(info.type));
}

/* Elements of the tensors before this one, in the order of llm.c's files. */
static size_t elements_before(const model_file *f, int tensor) {
    size_t sum = 0;
    for (int i = 0; i < tensor; i++) sum += total(&f->table[i]);
    return sum;
}

/* n elements, at most a piece. */
static zero_result llmc_get(const model_file *f, int tensor, size_t first, size_t n, float *out) {
    const size_t size = zero_type_bytes(f->info.type);
    const uint64_t at = elements_before(f, tensor) + first;
    MODEL_TRY(model_get(f, header_bytes + at * size, n * size, f->raw));
    zero_convert(out, ZERO_F32, f->raw, f->info.type, n);
    return ZERO_OK;
}

static zero_result llmc_save(model_file *f, zero_type type) {
    const gpt2_config *c = f->cfg;
    const int32_t known[8] = {MODEL_MAGIC,    type == ZERO_F32 ? MODEL_F32 : MODEL_BF16,
                              c->max_seq_len, c->vocab_size,
                              c->layers,      c->heads,
                              c->channels,    c->padded_vocab_size};
    int32_t h[HEADER_INTS] = {0};
    uint64_t at = header_bytes;
    zero_result r = ZERO_OK;
    memcpy(h, known, sizeof known);
    f->bytes = header_bytes + gpt2_numel(c) * zero_type_bytes(type);
    if (f->fd >= 0) r = model_put(f, 0, header_bytes, h);
    MODEL_TRY(model_agree(f->z, r, f->e));
    for (int i = 0; i < GPT2_TENSORS; i++) {
        const size_t n = total(&f->table[i]);
        MODEL_TRY(model_copy_out(f, i, 0, n, type, at));
        at += n * zero_type_bytes(type);
    }
    return ZERO_OK;
}

/* ---- either format ------------------------------------------------------------------------- */

/* Opens the file and lets it say what it is: f->info. */
static zero_result open_info(model_file *f, const char *path) {
    int32_t magic = 0;
    MODEL_TRY(model_open(f, path, f->e));
    if (f->bytes >= sizeof magic) MODEL_TRY(model_get(f, 0, sizeof magic, &magic));
    if (magic == STATE_MAGIC)
        return model_refuse(f->e, ZERO_ERR_ARGUMENT,
                            "%.300s: llm.c's optimizer state, which does not tell the model: its "
                            "model file is wanted here",
                            path);
    return magic == MODEL_MAGIC ? llmc_info(f) : model_safetensors_info(f);
}

static zero_result make_ready(model_file *f) {
    MODEL_TRY(make_buffers(f));
    return f->header == NULL ? ZERO_OK : model_safetensors_ready(f);
}

/* n elements, at most a piece; not collective. */
static zero_result get_elements(const model_file *f, int tensor, size_t first, size_t n,
                                float *out) {
    return f->header == NULL ? llmc_get(f, tensor, first, n, out)
                             : model_safetensors_get(f, tensor, first, n, out);
}

zero_result model_info_read(const char *path, model_info *info, gpt2_error *err) {
    gpt2_error e = {""};
    model_file f = {.e = &e, .path = path, .fd = -1};
    const zero_result r = open_info(&f, path);
    if (r == ZERO_OK) *info = f.info;
    model_close(&f);
    return hand_out(err, &e, r);
}

static zero_result open_for_load(model_file *f, const char *path) {
    MODEL_TRY(model_check_config(f->cfg, "the announced model", f->e));
    MODEL_TRY(open_info(f, path));
    MODEL_TRY(same_model(&f->info.cfg, f->cfg, path, f->e));
    return make_ready(f);
}

static zero_result load(const model_file *f) {
    for (int i = 0; i < GPT2_TENSORS; i++) {
        const zero_tensor_desc *d = &f->table[i];
        const size_t all = total(d);
        for (size_t first = 0; first < all; first += f->piece) {
            const size_t n = all - first < f->piece ? all - first : f->piece;
            MODEL_TRY(model_agree(f->z, get_elements(f, i, first, n, f->turned), f->e));
            MODEL_TRY(
                from_plugin(f, zero_write_tensor(f->z, d->name, ZERO_MASTER, first, n, f->turned)));
        }
    }
    return ZERO_OK;
}

zero_result model_load(zero_ctx *z, const gpt2_config *cfg, const char *path, gpt2_error *err) {
    gpt2_error e = {""};
    model_file f = {.z = z, .cfg = cfg, .e = &e, .path = path, .fd = -1};
    zero_result r = model_agree(z, open_for_load(&f, path), &e);
    if (r == ZERO_OK) r = load(&f);
    model_close(&f);
    return hand_out(err, &e, r);
}

static zero_result open_for_save(model_file *f, model_format format, zero_type type) {
    if (format < 0 || format >= MODEL_FORMATS || type < 0 || type >= ZERO_TYPES
        || (format == MODEL_LLMC && type == ZERO_F16))
        return model_refuse(f->e, ZERO_ERR_ARGUMENT,
                            "%.300s: there is no format %d with numbers of type %d", f->path,
                            (int)format, (int)type);
    MODEL_TRY(model_check_config(f->cfg, f->path, f->e));
    MODEL_TRY(make_buffers(f));
    return f->z == NULL || zero_rank(f->z) == 0 ? model_create(f, f->path) : ZERO_OK;
}

/* f is closed. */
static zero_result save(model_file *f, model_format format, zero_type type, gpt2_error *err) {
    gpt2_error e = {""};
    f->e = &e;
    zero_result r = model_agree(f->z, open_for_save(f, format, type), &e);
    if (r == ZERO_OK)
        r = format == MODEL_LLMC ? llmc_save(f, type) : model_safetensors_save(f, type);
    if (r == ZERO_OK) r = model_agree(f->z, f->fd < 0 ? ZERO_OK : model_commit(f), &e);
    model_close(f);
    return hand_out(err, &e, r);
}

/* A context's weights, as a model_read. */
static zero_result read_context(void *user, int tensor, zero_kind kind, size_t first, size_t count,
                                float *out, gpt2_error *e) {
    const model_file *f = (const model_file *)user;
    (void)kind;
    (void)e; /* is f->e */
    return from_plugin(f,
                       zero_read_tensor(f->z, f->table[tensor].name, f->kind, first, count, out));
}

zero_result model_save(zero_ctx *z, const gpt2_config *cfg, const char *path, model_format format,
                       zero_type type, gpt2_error *err) {
    model_file f = {.z = z, .cfg = cfg, .path = path, .fd = -1};
    zero_config is;
    zero_query_config(z, &is);
    f.kind = is.type == type ? ZERO_PARAMETER : ZERO_MASTER;
    f.read = read_context;
    f.user = &f;
    return save(&f, format, type, err);
}

zero_result model_save_from(model_read read, void *user, const gpt2_config *cfg, const char *path,
                            model_format format, zero_type type, gpt2_error *err) {
    model_file f = {.cfg = cfg, .path = path, .fd = -1, .read = read, .user = user};
    return save(&f, format, type, err);
}

/* ---- llm.c's state files --------------------------------------------------------------------

   header, then m, v and perhaps masters: `shard` floats each. Whole (stage 0), shard is all
   elements in the order of model files. ZeRO-1 over N ranks cuts every layer of every tensor into N
   equal parts, and rank r's arrays are its parts, one after another:

       tensor     wte            wpe        ln1w: layer 0, layer 1 ...
       rank 0     [first half ]  [1st half] [1st] [1st] ...          N = 2
       rank 1     [second half]  [2nd half] [2nd] [2nd] ... */

enum { RANK_DIGITS = 5, MOST_RANKS = 4096, SHUFFLE_RNG_BYTES = 2520 };

typedef struct state_files {
    llmc_state said;
    size_t shard; /* elements of one array in one file */
    int parts;    /* files that are read, and parts that a layer of a tensor is cut into */
    int *fd;
} state_files;

/* The file of another rank, from that of rank 0. */
static zero_result state_path(char out[MODEL_PATH], const model_file *f, int rank) {
    const size_t n = strlen(f->path), tail = RANK_DIGITS + strlen(".bin");
    if (n >= MODEL_PATH || !model_ends(f->path, "_00000.bin"))
        return model_refuse(f->e, ZERO_ERR_ARGUMENT,
                            "%.300s: the first rank's state file is called ..._00000.bin", f->path);
    (void)snprintf(out, MODEL_PATH, "%.*s%05d.bin", (int)(n - tail), f->path, rank);
    return ZERO_OK;
}

/* Bytes of a state file whose arrays have `shard` elements. What a permuted data loader leaves
   behind them tells its own length: a count and that many int32, twice, and a generator. */
static zero_result state_length(const model_file *f, const llmc_state *s, size_t shard,
                                uint64_t *bytes) {
    uint64_t count;
    *bytes = header_bytes + (uint64_t)shard * sizeof(float) * (s->masters ? 3 : 2);
    if (!s->shuffled) return ZERO_OK;
    for (int list = 0; list < 2; list++) {
        if (f->bytes < 8 || *bytes > f->bytes - 8) return ZERO_OK;
        MODEL_TRY(model_get(f, *bytes, sizeof count, &count));
        *bytes += sizeof count;
        if (count > (f->bytes - *bytes) / sizeof(int32_t)) {
            *bytes = UINT64_MAX;
            return ZERO_OK;
        }
        *bytes += count * sizeof(int32_t);
    }
    *bytes += SHUFFLE_RNG_BYTES;
    return ZERO_OK;
}

static zero_result state_header(const model_file *f, int rank, llmc_state *s) {
    int32_t h[HEADER_INTS];
    MODEL_TRY(read_header(f, h));
    if (h[0] != STATE_MAGIC || h[1] != STATE_VERSION)
        return model_refuse(f->e, ZERO_ERR_ARGUMENT,
                            "%.300s: no state file (magic %d, version %d, expected %d and %d)",
                            f->path, (int)h[0], (int)h[1], STATE_MAGIC, STATE_VERSION);
    if (h[2] < 1 || h[2] > MOST_RANKS || h[3] != rank || h[4] < 0 || h[4] > 1 || h[5] < 0
        || h[5] > 1 || h[10] < 0)
        return model_refuse(f->e, ZERO_ERR_ARGUMENT,
                            "%.300s: of rank %d of %d (expected %d), masters %d, shuffled %d, step "
                            "%d: out of range",
                            f->path, (int)h[3], (int)h[2], rank, (int)h[4], (int)h[5], (int)h[10]);
    s->ranks = (int)h[2];
    s->masters = (int)h[4];
    s->shuffled = (int)h[5];
    s->step = h[10];
    memcpy(&s->rng, &h[20], sizeof s->rng);
    memcpy(&s->rng_last_update, &h[22], sizeof s->rng_last_update);
    memcpy(&s->data_shard, &h[30], sizeof s->data_shard);
    memcpy(&s->data_sample, &h[32], sizeof s->data_sample);
    return ZERO_OK;
}

/* llm.c shards only what divides. */
static int divides(const gpt2_config *cfg, int ranks) {
    zero_tensor_desc table[GPT2_TENSORS];
    gpt2_describe(cfg, table);
    for (int i = 0; i < GPT2_TENSORS; i++)
        if (table[i].numel % (size_t)ranks) return 0;
    return 1;
}

/* Nothing in a state file says how it is cut, but its length does. */
static zero_result state_layout(const model_file *f, state_files *s) {
    const size_t whole = gpt2_numel(f->cfg);
    uint64_t bytes, sharded;
    s->shard = whole;
    s->parts = 1;
    MODEL_TRY(state_length(f, &s->said, whole, &bytes));
    if (bytes == f->bytes) return ZERO_OK;
    if (s->said.ranks == 1 || !divides(f->cfg, s->said.ranks)) return check_length(f, bytes);
    s->parts = s->said.ranks;
    s->shard = whole / (size_t)s->parts;
    s->said.sharded = 1;
    MODEL_TRY(state_length(f, &s->said, s->shard, &sharded));
    return check_length(f, sharded);
}

static zero_result state_check(const model_file *f, int rank, state_files *s) {
    llmc_state said = {0};
    uint64_t bytes;
    MODEL_TRY(state_header(f, rank, &said));
    if (rank == 0) {
        s->said = said;
        return state_layout(f, s);
    }
    if (said.step != s->said.step || said.ranks != s->said.ranks || said.masters != s->said.masters)
        return model_refuse(f->e, ZERO_ERR_ARGUMENT,
                            "%.300s: step %" PRId64 " of %d ranks, masters %d; rank 0's: step "
                            "%" PRId64 " of %d ranks, masters %d",
                            f->path, said.step, said.ranks, said.masters, s->said.step,
                            s->said.ranks, s->said.masters);
    MODEL_TRY(state_length(f, &said, s->shard, &bytes));
    return check_length(f, bytes);
}

/* Opens and checks the files; the first says how many there are. */
static zero_result state_open(model_file *f, state_files *s) {
    char path[MODEL_PATH];
    MODEL_TRY(model_check_config(f->cfg, "the announced model", f->e));
    MODEL_TRY(make_buffers(f));
    s->fd = (int *)malloc(MOST_RANKS * sizeof *s->fd);
    if (s->fd == NULL) return model_refuse(f->e, ZERO_ERR_MEMORY, "%.300s: no memory", f->path);
    for (int rank = 0; rank < MOST_RANKS; rank++) s->fd[rank] = -1;
    s->parts = 1;
    for (int rank = 0; rank < s->parts; rank++) {
        model_file one = {.z = f->z, .cfg = f->cfg, .fd = -1};
        MODEL_TRY(state_path(path, f, rank));
        const zero_result r = model_open(&one, path, f->e);
        s->fd[rank] = one.fd;
        MODEL_TRY(r);
        MODEL_TRY(state_check(&one, rank, s));
    }
    return ZERO_OK;
}

static void state_close(state_files *s) {
    for (int rank = 0; s->fd != NULL && rank < s->parts && rank < MOST_RANKS; rank++)
        if (s->fd[rank] >= 0) (void)close(s->fd[rank]);
    free(s->fd);
}

/* Elements [first, first + n) of a tensor, from the parts of the files that have them. */
static zero_result state_get(const model_file *f, const state_files *s, int array, int tensor,
                             size_t first, size_t n, float *out) {
    const size_t numel = f->table[tensor].numel, before = elements_before(f, tensor);
    const size_t parts = (size_t)s->parts, part = numel / parts;
    for (size_t done = 0; done < n;) {
        const size_t layer = (first + done) / numel, in_layer = (first + done) % numel;
        const size_t rank = in_layer / part, in_part = in_layer % part;
        const size_t run = part - in_part < n - done ? part - in_part : n - done;
        const uint64_t at = (uint64_t)array * s->shard + before / parts + layer * part + in_part;
        MODEL_TRY(get_from(f, s->fd[rank], header_bytes + at * sizeof(float), run * sizeof(float),
                           out + done));
        done += run;
    }
    return ZERO_OK;
}

static zero_result state_load_array(const model_file *f, const state_files *s, int array,
                                    zero_kind kind) {
    for (int i = 0; i < GPT2_TENSORS; i++) {
        const zero_tensor_desc *d = &f->table[i];
        const size_t all = total(d);
        for (size_t first = 0; first < all; first += f->piece) {
            const size_t n = all - first < f->piece ? all - first : f->piece;
            MODEL_TRY(model_agree(f->z, state_get(f, s, array, i, first, n, f->values), f->e));
            MODEL_TRY(from_plugin(f, zero_write_tensor(f->z, d->name, kind, first, n, f->values)));
        }
    }
    return ZERO_OK;
}

static zero_result state_set_step(const model_file *f, int64_t step) {
    zero_counters counters;
    MODEL_TRY(from_plugin(f, zero_state_begin(f->z)));
    zero_state_counters(f->z, &counters);
    counters.steps = step;
    zero_result r = from_plugin(f, zero_state_set_counters(f->z, &counters));
    const zero_result ended = from_plugin(f, zero_state_end(f->z, 0));
    return r == ZERO_OK ? ended : r;
}

/* Where a state file has what, by the arrays' order in it. */
static const zero_kind state_kinds[3] = {ZERO_MOMENT_1, ZERO_MOMENT_2, ZERO_MASTER};

static zero_result state_load(const model_file *f, const state_files *s) {
    for (int array = 0; array < 2 + s->said.masters; array++)
        MODEL_TRY(state_load_array(f, s, array, state_kinds[array]));
    return state_set_step(f, s->said.step);
}

static zero_result open_for_state(model_file *f, state_files *s) {
    zero_config is;
    zero_query_config(f->z, &is);
    if (is.optimizer != ZERO_ADAMW && is.optimizer != ZERO_ADAM)
        return model_refuse(f->e, ZERO_ERR_ARGUMENT,
                            "%.300s: holds AdamW's moments; the optimizer here is another",
                            f->path);
    return state_open(f, s);
}

zero_result llmc_state_load(zero_ctx *z, const gpt2_config *cfg, const char *path,
                            llmc_state *state, gpt2_error *err) {
    gpt2_error e = {""};
    model_file f = {.z = z, .cfg = cfg, .e = &e, .path = path, .fd = -1};
    state_files s = {.fd = NULL};
    zero_result r = model_agree(z, open_for_state(&f, &s), &e);
    if (r == ZERO_OK) r = state_load(&f, &s);
    if (r == ZERO_OK && state != NULL) *state = s.said;
    state_close(&s);
    model_close(&f);
    return hand_out(err, &e, r);
}

/* ---- without a context ---------------------------------------------------------------------- */

struct model_reader {
    gpt2_error e;
    gpt2_config shape;       /* of the model; unknown heads are 1: values do not depend on them */
    model_file model, state; /* state.path NULL: there is none */
    state_files s;
};

static zero_result reader_open(model_reader *r, const char *model, const char *state) {
    MODEL_TRY(open_info(&r->model, model));
    r->shape = r->model.info.cfg;
    if (r->shape.heads == 0) r->shape.heads = 1;
    r->model.cfg = r->state.cfg = &r->shape;
    MODEL_TRY(make_ready(&r->model));
    r->state.path = state;
    return state == NULL ? ZERO_OK : state_open(&r->state, &r->s);
}

zero_result model_reader_open(model_reader **out, const char *model, const char *state,
                              gpt2_error *err) {
    gpt2_error none = {""};
    model_reader *r = (model_reader *)calloc(1, sizeof *r);
    *out = NULL;
    if (r == NULL)
        return hand_out(err, &none,
                        model_refuse(&none, ZERO_ERR_MEMORY, "%.300s: no memory", model));
    r->model.e = r->state.e = &r->e;
    r->model.fd = r->state.fd = -1;
    const zero_result result = reader_open(r, model, state);
    (void)hand_out(err, &r->e, result);
    if (result == ZERO_OK)
        *out = r;
    else
        model_reader_close(r);
    return result;
}

void model_reader_close(model_reader *r) {
    if (r == NULL) return;
    state_close(&r->s);
    model_close(&r->state);
    model_close(&r->model);
    free(r);
}

const model_info *model_reader_info(const model_reader *r) { return &r->model.info; }

const llmc_state *model_reader_state(const model_reader *r) {
    return r->state.path == NULL ? NULL : &r->s.said;
}

static zero_result reader_weights(const model_reader *r, int tensor, size_t first, size_t count,
                                  float *out) {
    const size_t piece = r->model.piece;
    for (size_t done = 0; done < count; done += piece) {
        const size_t n = count - done < piece ? count - done : piece;
        MODEL_TRY(get_elements(&r->model, tensor, first + done, n, out + done));
    }
    return ZERO_OK;
}

zero_result model_reader_get(void *reader, int tensor, zero_kind kind, size_t first, size_t count,
                             float *out, gpt2_error *e) {
    model_reader *r = (model_reader *)reader;
    const int arrays = r->state.path == NULL ? 0 : 2 + r->s.said.masters;
    zero_result result = ZERO_OK;
    int array = 0;
    while (array < arrays && state_kinds[array] != kind) array++;
    if (array < arrays)
        result = state_get(&r->state, &r->s, array, tensor, first, count, out);
    else if (kind == ZERO_MASTER)
        result = reader_weights(r, tensor, first, count, out);
    else
        memset(out, 0, count * sizeof *out);
    return hand_out(e, &r->e, result);
}

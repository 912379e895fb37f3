/* model_files.c - a model file of either format: into a context, out of a context, and without
   one. */
#include "model_inside.h"

#include <stdlib.h>
#include <string.h>

/* ---- a file and a model -------------------------------------------------------------------- */

/* Checks that two models are equal. If not, returns ARGUMENT and names the first tensor with
   another size. */
static zero_result same_model(const gpt2_config *found, const gpt2_config *cfg, const char *path,
                              gpt2_error *e) {
    zero_tensor_desc theirs[GPT2_TENSORS], ours[GPT2_TENSORS];
    gpt2_describe(found, theirs);
    gpt2_describe(cfg, ours);
    for (int i = 0; i < GPT2_TENSORS; i++) {
        if (theirs[i].numel == ours[i].numel && theirs[i].layers == ours[i].layers) continue;
        return model_refuse(e, ZERO_ERR_ARGUMENT,
                            "%.200s: of another model: %s has %d x %zu elements there, %d x %zu "
                            "here; use its model",
                            path, ours[i].name, theirs[i].layers, theirs[i].numel, ours[i].layers,
                            ours[i].numel);
    }
    if (found->vocab_size != cfg->vocab_size)
        return model_refuse(
            e, ZERO_ERR_ARGUMENT,
            "%.200s: of another model: wte has %d vocabulary entries there, %d here; use its model",
            path, found->vocab_size, cfg->vocab_size);
    if (found->heads && found->heads != cfg->heads)
        return model_refuse(
            e, ZERO_ERR_ARGUMENT,
            "%.200s: of another model: qkvw has %d heads there, %d here; use its model", path,
            found->heads, cfg->heads);
    return ZERO_OK;
}

/* ---- either format ------------------------------------------------------------------------- */

/* Opens the file and reads its header to f->info. */
static zero_result open_info(model_file *f, const char *path) {
    int32_t magic = 0;
    MODEL_TRY(model_open(f, path, f->e));
    if (f->bytes >= sizeof magic) MODEL_TRY(model_get(f, 0, sizeof magic, &magic));
    if (magic == MODEL_STATE_MAGIC)
        return model_refuse(f->e, ZERO_ERR_ARGUMENT,
                            "%.300s: this is llm.c's optimizer state, which does not contain the "
                            "model; give its model file",
                            path);
    return magic == MODEL_LLMC_MAGIC ? model_llmc_info(f) : model_safetensors_info(f);
}

/* Closes a file of either format. */
static void close_file(model_file *f) {
    model_safetensors_close(f);
    model_close(f);
}

static zero_result make_ready(model_file *f) {
    MODEL_TRY(model_buffers(f));
    return f->header == NULL ? ZERO_OK : model_safetensors_ready(f);
}

/* Reads n elements, at most a piece. Not collective. */
static zero_result get_elements(const model_file *f, int tensor, size_t first, size_t n,
                                float *out) {
    return f->header == NULL ? model_llmc_get(f, tensor, first, n, out)
                             : model_safetensors_get(f, tensor, first, n, out);
}

zero_result model_info_read(const char *path, model_info *info, gpt2_error *err) {
    gpt2_error e = {""};
    model_file f = {.e = &e, .path = path, .fd = -1};
    const zero_result r = open_info(&f, path);
    if (r == ZERO_OK) *info = f.info;
    close_file(&f);
    return model_hand_out(err, &e, r);
}

static zero_result open_for_load(model_file *f, const char *path) {
    MODEL_TRY(model_check_config(f->cfg, "the announced model", f->e));
    MODEL_TRY(open_info(f, path));
    MODEL_TRY(same_model(&f->info.cfg, f->cfg, path, f->e));
    return make_ready(f);
}

/* Loads tensor number `tensor` of the context from tensor number `from` of the file. */
static zero_result load_tensor(const model_file *f, const gpt2_parallel *how, int tensor,
                               int from) {
    const size_t all = model_total(&f->table[from]);
    for (size_t first = 0; first < all; first += f->piece) {
        const size_t n = all - first < f->piece ? all - first : f->piece;
        MODEL_TRY(model_agree(f->z, get_elements(f, from, first, n, f->transposed), f->e));
        const zero_result r =
            gpt2_write(f->z, f->cfg, how, tensor, ZERO_MASTER, first, n, f->transposed);
        if (r != ZERO_OK)
            return model_refuse(f->e, r, "%.200s: %.300s", f->path, gpt2_parallel_error(f->z, how));
    }
    return ZERO_OK;
}

static zero_result load(const model_file *f, const gpt2_parallel *how) {
    for (int i = 0; i < GPT2_TENSORS; i++) MODEL_TRY(load_tensor(f, how, i, i));
    if (!f->cfg->untied) return ZERO_OK;
    return load_tensor(f, how, GPT2_LMHEADW, model_safetensors_head(f) ? GPT2_LMHEADW : GPT2_WTE);
}

zero_result model_load_part(zero_ctx *z, const gpt2_config *cfg, const gpt2_parallel *how,
                            const char *path, gpt2_error *err) {
    gpt2_error e = {""};
    model_file f = {.z = z, .cfg = cfg, .e = &e, .path = path, .fd = -1};
    zero_result r = model_agree(z, open_for_load(&f, path), &e);
    if (r == ZERO_OK) r = load(&f, how);
    close_file(&f);
    return model_hand_out(err, &e, r);
}

zero_result model_load(zero_ctx *z, const gpt2_config *cfg, const char *path, gpt2_error *err) {
    return model_load_part(z, cfg, NULL, path, err);
}

static zero_result open_for_save(model_file *f, model_format format, zero_type type) {
    if (format < 0 || format >= MODEL_FORMATS || type < 0 || type >= ZERO_TYPES
        || (format == MODEL_LLMC && type == ZERO_F16))
        return model_refuse(
            f->e, ZERO_ERR_ARGUMENT,
            "%.300s: there is no format %d with numbers of type %d; use f32 or bf16", f->path,
            (int)format, (int)type);
    if (format == MODEL_LLMC && f->cfg->untied)
        return model_refuse(f->e, ZERO_ERR_ARGUMENT,
                            "%.300s: llm.c's files have no place for a classifier that is not wte "
                            "(an untied model); use .safetensors",
                            f->path);
    MODEL_TRY(model_check_config(f->cfg, f->path, f->e));
    MODEL_TRY(model_buffers(f));
    return f->z == NULL || zero_rank(f->z) == 0 ? model_create(f, f->path) : ZERO_OK;
}

/* Saves a context's weights, and closes f. */
static zero_result save(model_file *f, model_format format, zero_type type, gpt2_error *err) {
    gpt2_error e = {""};
    f->e = &e;
    zero_result r = model_agree(f->z, open_for_save(f, format, type), &e);
    if (r == ZERO_OK)
        r = format == MODEL_LLMC ? model_llmc_save(f, type) : model_safetensors_save(f, type);
    if (r == ZERO_OK) r = model_agree(f->z, f->fd < 0 ? ZERO_OK : model_commit(f), &e);
    model_close(f);
    return model_hand_out(err, &e, r);
}

/* A model_read that reads a context's weights. */
static zero_result read_context(void *user, int tensor, zero_kind kind, size_t first, size_t count,
                                float *out, gpt2_error *e) {
    const model_file *f = (const model_file *)user;
    (void)kind;
    (void)e; /* the same as f->e */
    return model_from_plugin(
        f, zero_read_tensor(f->z, f->table[tensor].name, f->kind, first, count, out));
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

/* ---- without a context --------------------------------------------------------------------- */

struct model_reader {
    gpt2_error e;
    gpt2_config
        shape; /* shape of the model; unknown heads are 1, because no value depends on them */
    model_file model, state; /* state.path NULL: no state file */
    model_state s;
};

static zero_result reader_open(model_reader *r, const char *model, const char *state) {
    MODEL_TRY(open_info(&r->model, model));
    r->shape = r->model.info.cfg;
    if (r->shape.heads == 0) r->shape.heads = 1;
    r->model.cfg = r->state.cfg = &r->shape;
    MODEL_TRY(model_buffers(&r->model));
    if (r->model.header) MODEL_TRY(model_safetensors_unties(&r->model, &r->shape.untied));
    r->model.info.cfg.untied = r->shape.untied;
    (void)gpt2_table(&r->shape, NULL, 0, r->model.table);
    r->state.path = state;
    return state == NULL ? ZERO_OK : model_state_open(&r->state, &r->s);
}

zero_result model_reader_open(model_reader **out, const char *model, const char *state,
                              gpt2_error *err) {
    gpt2_error none = {""};
    model_reader *r = (model_reader *)calloc(1, sizeof *r);
    *out = NULL;
    if (r == NULL)
        return model_hand_out(err, &none,
                              model_refuse(&none, ZERO_ERR_MEMORY, "%.300s: no memory", model));
    r->model.e = r->state.e = &r->e;
    r->model.fd = r->state.fd = -1;
    const zero_result result = reader_open(r, model, state);
    (void)model_hand_out(err, &r->e, result);
    if (result == ZERO_OK)
        *out = r;
    else
        model_reader_close(r);
    return result;
}

void model_reader_close(model_reader *r) {
    if (r == NULL) return;
    model_state_close(&r->s);
    model_close(&r->state);
    close_file(&r->model);
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
    while (array < arrays && model_state_kinds[array] != kind) array++;
    if (array < arrays)
        result = model_state_get(&r->state, &r->s, array, tensor, first, count, out);
    else if (kind == ZERO_MASTER)
        result = reader_weights(r, tensor, first, count, out);
    else
        memset(out, 0, count * sizeof *out);
    return model_hand_out(e, &r->e, result);
}

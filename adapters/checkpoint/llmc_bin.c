/* llmc_bin.c - llm.c's model and state files. */
#include "model_inside.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- llm.c's model files ------------------------------------------------------------------- */

enum { HEADER_INTS = 256, MODEL_F32 = 3, MODEL_BF16 = 5, STATE_VERSION = 1 };
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

zero_result model_llmc_info(model_file *f) {
    int32_t h[HEADER_INTS];
    MODEL_TRY(read_header(f, h));
    if (h[1] != MODEL_F32 && h[1] != MODEL_BF16)
        return model_refuse(f->e, ZERO_ERR_ARGUMENT,
                            "%.300s: version %d, expected %d (f32) or %d (bf16)", f->path,
                            (int)h[1], MODEL_F32, MODEL_BF16);
    const gpt2_config c = {h[2], h[3], h[7], h[4], h[5], h[6], 0, GPT2_NO_EXPERTS, NULL, 0, 0, 0};
    const model_info info = {MODEL_LLMC, h[1] == MODEL_F32 ? ZERO_F32 : ZERO_BF16, c};
    f->info = info;
    MODEL_TRY(model_check_config(&c, f->path, f->e));
    return check_length(f, header_bytes + gpt2_numel(&c) * zero_type_bytes(info.type));
}

/* Returns the number of elements in the tensors before this one, in the order of llm.c's files. */
static size_t elements_before(const model_file *f, int tensor) {
    size_t sum = 0;
    for (int i = 0; i < tensor; i++) sum += model_total(&f->table[i]);
    return sum;
}

zero_result model_llmc_get(const model_file *f, int tensor, size_t first, size_t n, float *out) {
    const size_t size = zero_type_bytes(f->info.type);
    const uint64_t at = elements_before(f, tensor) + first;
    MODEL_TRY(model_get(f, header_bytes + at * size, n * size, f->raw));
    zero_convert(out, ZERO_F32, f->raw, f->info.type, n);
    return ZERO_OK;
}

zero_result model_llmc_save(model_file *f, zero_type type) {
    const gpt2_config *c = f->cfg;
    const int32_t known[8] = {MODEL_LLMC_MAGIC, type == ZERO_F32 ? MODEL_F32 : MODEL_BF16,
                              c->max_seq_len,   c->vocab_size,
                              c->layers,        c->heads,
                              c->channels,      c->padded_vocab_size};
    int32_t h[HEADER_INTS] = {0};
    uint64_t at = header_bytes;
    zero_result r = ZERO_OK;
    memcpy(h, known, sizeof known);
    f->bytes = header_bytes + gpt2_numel(c) * zero_type_bytes(type);
    if (f->fd >= 0) r = model_put(f, 0, header_bytes, h);
    MODEL_TRY(model_agree(f->z, r, f->e));
    for (int i = 0; i < GPT2_TENSORS; i++) {
        const size_t n = model_total(&f->table[i]);
        MODEL_TRY(model_copy_out(f, i, 0, n, type, at));
        at += n * zero_type_bytes(type);
    }
    return ZERO_OK;
}

/* ---- llm.c's state files --------------------------------------------------------------------

   header, then m, v and perhaps masters: `shard` floats each. Whole (stage 0), shard is all
   elements in the order of model files. ZeRO-1 over N ranks cuts every layer of every tensor into N
   equal parts, and rank r's arrays are its parts, one after another:

       tensor     wte            wpe        ln1w: layer 0, layer 1 ...
       rank 0     [first half ]  [1st half] [1st] [1st] ...          N = 2
       rank 1     [second half]  [2nd half] [2nd] [2nd] ... */

enum { RANK_DIGITS = 5, MOST_RANKS = 4096, SHUFFLE_RNG_BYTES = 2520 };

/* Makes the path of another rank's file from that of rank 0. */
static zero_result state_path(char out[MODEL_PATH], const model_file *f, int rank) {
    const size_t n = strlen(f->path), tail = RANK_DIGITS + strlen(".bin");
    if (n >= MODEL_PATH || !model_ends(f->path, "_00000.bin"))
        return model_refuse(f->e, ZERO_ERR_ARGUMENT,
                            "%.300s: not the state of the first rank; give ..._00000.bin", f->path);
    (void)snprintf(out, MODEL_PATH, "%.*s%05d.bin", (int)(n - tail), f->path, rank);
    return ZERO_OK;
}

/* Computes the bytes of a state file with arrays of `shard` elements. A permuted data loader adds a
   part after them: two lists of int32, each after its length, and the state of a generator. */
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
    if (h[0] != MODEL_STATE_MAGIC || h[1] != STATE_VERSION)
        return model_refuse(f->e, ZERO_ERR_ARGUMENT,
                            "%.300s: no state file (magic %d, version %d, expected %d and %d)",
                            f->path, (int)h[0], (int)h[1], MODEL_STATE_MAGIC, STATE_VERSION);
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

/* Returns 1 if the ranks divide every tensor. If not, llm.c does not shard. */
static int divides(const gpt2_config *cfg, int ranks) {
    zero_tensor_desc table[GPT2_TENSORS];
    gpt2_describe(cfg, table);
    for (int i = 0; i < GPT2_TENSORS; i++)
        if (table[i].numel % (size_t)ranks) return 0;
    return 1;
}

/* Finds how a state file is divided from its length, because nothing in the file says it. */
static zero_result state_layout(const model_file *f, model_state *s) {
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

static zero_result state_check(const model_file *f, int rank, model_state *s) {
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

zero_result model_state_open(model_file *f, model_state *s) {
    char path[MODEL_PATH];
    MODEL_TRY(model_check_config(f->cfg, "the announced model", f->e));
    MODEL_TRY(model_buffers(f));
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

void model_state_close(model_state *s) {
    for (int rank = 0; s->fd != NULL && rank < s->parts && rank < MOST_RANKS; rank++)
        if (s->fd[rank] >= 0) (void)close(s->fd[rank]);
    free(s->fd);
}

zero_result model_state_get(const model_file *f, const model_state *s, int array, int tensor,
                            size_t first, size_t n, float *out) {
    const size_t numel = f->table[tensor].numel, before = elements_before(f, tensor);
    const size_t parts = (size_t)s->parts, part = numel / parts;
    for (size_t done = 0; done < n;) {
        const size_t layer = (first + done) / numel, in_layer = (first + done) % numel;
        const size_t rank = in_layer / part, in_part = in_layer % part;
        const size_t run = part - in_part < n - done ? part - in_part : n - done;
        const uint64_t at = (uint64_t)array * s->shard + before / parts + layer * part + in_part;
        MODEL_TRY(model_get_from(f, s->fd[rank], header_bytes + at * sizeof(float),
                                 run * sizeof(float), out + done));
        done += run;
    }
    return ZERO_OK;
}

static zero_result state_load_array(const model_file *f, const model_state *s, int array,
                                    zero_kind kind) {
    for (int i = 0; i < GPT2_TENSORS; i++) {
        const zero_tensor_desc *d = &f->table[i];
        const size_t all = model_total(d);
        for (size_t first = 0; first < all; first += f->piece) {
            const size_t n = all - first < f->piece ? all - first : f->piece;
            MODEL_TRY(
                model_agree(f->z, model_state_get(f, s, array, i, first, n, f->values), f->e));
            MODEL_TRY(
                model_from_plugin(f, zero_write_tensor(f->z, d->name, kind, first, n, f->values)));
        }
    }
    return ZERO_OK;
}

static zero_result state_set_step(const model_file *f, int64_t step) {
    zero_counters counters;
    MODEL_TRY(model_from_plugin(f, zero_state_begin(f->z)));
    zero_state_counters(f->z, &counters);
    counters.steps = step;
    zero_result r = model_from_plugin(f, zero_state_set_counters(f->z, &counters));
    const zero_result ended = model_from_plugin(f, zero_state_end(f->z, 0));
    return r == ZERO_OK ? ended : r;
}

const zero_kind model_state_kinds[3] = {ZERO_MOMENT_1, ZERO_MOMENT_2, ZERO_MASTER};

static zero_result state_load(const model_file *f, const model_state *s) {
    for (int array = 0; array < 2 + s->said.masters; array++)
        MODEL_TRY(state_load_array(f, s, array, model_state_kinds[array]));
    return state_set_step(f, s->said.step);
}

static zero_result open_for_state(model_file *f, model_state *s) {
    zero_config is;
    zero_query_config(f->z, &is);
    if (is.optimizer != ZERO_ADAMW && is.optimizer != ZERO_ADAM)
        return model_refuse(f->e, ZERO_ERR_ARGUMENT,
                            "%.300s: holds AdamW's moments; the optimizer here is another",
                            f->path);
    return model_state_open(f, s);
}

zero_result llmc_state_load(zero_ctx *z, const gpt2_config *cfg, const char *path,
                            llmc_state *state, gpt2_error *err) {
    gpt2_error e = {""};
    model_file f = {.z = z, .cfg = cfg, .e = &e, .path = path, .fd = -1};
    model_state s = {.fd = NULL};
    zero_result r = model_agree(z, open_for_state(&f, &s), &e);
    if (r == ZERO_OK) r = state_load(&f, &s);
    if (r == ZERO_OK && state != NULL) *state = s.said;
    model_state_close(&s);
    model_close(&f);
    return model_hand_out(err, &e, r);
}

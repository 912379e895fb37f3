/* tensor_parallel.c - see tensor_parallel.h. Common subset of C11 and CUDA C++. */
#include "tensor_parallel.h"

#include "lora.h"
#include "stages.h"

#include <stdlib.h>
#include <string.h>

/* ---- communication ------------------------------------------------------------------------- */

void tensor_parallel_open(tensor_parallel *p, const gpt2_parallel *how, zero_type type) {
    memset(p, 0, sizeof *p);
    p->size = 1;
    p->type = type;
    p->bytes = zero_type_bytes(type);
    if (how == NULL || zero_group_size(how->tp) < 2) return;
    p->group = how->tp;
    p->rank = (size_t)zero_group_rank(how->tp);
    p->size = (size_t)zero_group_size(how->tp);
    p->sequence = how->sequence;
}

size_t tensor_parallel_rows(const tensor_parallel *p, size_t R) {
    return p->sequence ? R / p->size : R;
}

size_t tensor_parallel_first(const tensor_parallel *p, size_t R) {
    return p->sequence ? p->rank * (R / p->size) : 0;
}

static int is_on(const tensor_parallel *p, size_t n) {
    return p->group != NULL && n > 0 && p->result == ZERO_OK;
}

void tensor_parallel_gather(tensor_parallel *p, void *all, size_t R, size_t C) {
    if (p->sequence) tensor_parallel_join(p, all, R / p->size * C);
}

void tensor_parallel_join(tensor_parallel *p, void *all, size_t n) {
    const size_t bytes = n * p->bytes;
    if (is_on(p, n))
        p->result = zero_group_all_gather(p->group, (char *)all + p->rank * bytes, all, bytes);
}

void tensor_parallel_sum(tensor_parallel *p, void *all, void *mine, size_t R, size_t C) {
    if (!is_on(p, R * C)) return;
    p->result = p->sequence ? zero_group_reduce_scatter(p->group, all, mine, R / p->size * C,
                                                        p->type, ZERO_SUM)
                            : zero_group_all_reduce(p->group, all, R * C, p->type, ZERO_SUM);
}

void tensor_parallel_reduce(tensor_parallel *p, float *values, size_t n, zero_reduction how) {
    if (is_on(p, n)) p->result = zero_group_all_reduce(p->group, values, n, ZERO_F32, how);
}

/* ---- slices -------------------------------------------------------------------------------- */

/* Returns a rank's slice of an adapter. If the matrix is cut by rows, the adapter's B is cut in the
   same way and A is whole. If it is cut by columns, A is cut and B is whole. */
static tensor_slice slice_of_adapter(const gpt2_config *cfg, int tensor, int rank, int size) {
    const int matrix = lora_matrix(tensor), by_rows = matrix == LORA_QKV || matrix == LORA_FC;
    tensor_slice s = {1, 1, 1, 0, 1};
    size_t rows, columns;
    lora_sides(cfg, tensor, &rows, &columns);
    s.inner = rows * columns;
    if (by_rows != lora_is_b(tensor)) return s; /* whole */
    s.outer = !by_rows ? rows : matrix == LORA_QKV ? 3 : 1;
    s.inner = by_rows ? columns : 1;
    s.dim = rows * columns / s.outer / s.inner;
    s.count = s.dim / (size_t)size;
    s.first = s.count * (size_t)rank;
    return s;
}

tensor_slice tensor_slice_of(const gpt2_config *cfg, int tensor, int rank, int size) {
    const size_t C = (size_t)cfg->channels, parts = (size_t)size;
    tensor_slice s = {1, 1, 1, 0, 1};
    if (lora_matrix(tensor) >= 0) return slice_of_adapter(cfg, tensor, rank, size);
    switch (tensor) {
    case GPT2_WTE:
    case GPT2_LMHEADW:
        s.dim = (size_t)cfg->padded_vocab_size;
        s.inner = C;
        break;
    case GPT2_QKVW:
    case GPT2_QKVB:
        s.outer = 3;
        s.dim = C;
        s.inner = tensor == GPT2_QKVW ? C : 1;
        break;
    case GPT2_ATTPROJW:
    case GPT2_FCPROJW:
        s.outer = C;
        s.dim = tensor == GPT2_FCPROJW ? 4 * C : C;
        break;
    case GPT2_FCW:
    case GPT2_FCB:
        s.dim = 4 * C;
        s.inner = tensor == GPT2_FCW ? C : 1;
        break;
    default: /* every rank has the whole tensor */
        s.inner = tensor == GPT2_WPE ? (size_t)cfg->max_seq_len * C : C;
        return s;
    }
    s.count = s.dim / parts;
    s.first = s.count * (size_t)rank;
    return s;
}

int tensor_slice_is_whole(const tensor_slice *s) { return s->count == s->dim; }

size_t tensor_slice_numel(const tensor_slice *s) { return s->outer * s->count * s->inner; }

size_t tensor_slice_before(const tensor_slice *s, size_t i) {
    const size_t row = s->dim * s->inner, from = s->first * s->inner, n = s->count * s->inner;
    const size_t rest = i % row, of_rest = rest < from ? 0 : rest - from < n ? rest - from : n;
    return i / row * n + of_rest;
}

/* Finds the next run of dense elements [first, first + n) in the slice, from *i on. *i becomes the
   end of the run. Returns 0 if there is none. */
static size_t next_run(const tensor_slice *s, size_t *i, size_t end, size_t *run) {
    const size_t row = s->dim * s->inner, from = s->first * s->inner,
                 to = from + s->count * s->inner;
    size_t rest = *i % row;
    if (rest >= to) {
        *i += row - rest;
        rest = 0;
    }
    if (rest < from) {
        *i += from - rest;
        rest = from;
    }
    if (*i >= end) return 0;
    *run = *i;
    const size_t n = to - rest < end - *i ? to - rest : end - *i;
    *i += n;
    return n;
}

size_t tensor_slice_take(const tensor_slice *s, float *values, size_t first, size_t n, size_t *at) {
    size_t taken = 0, i = first, run = 0, m;
    *at = tensor_slice_before(s, first);
    while ((m = next_run(s, &i, first + n, &run)) > 0) {
        memmove(values + taken, values + (run - first), m * sizeof *values);
        taken += m;
    }
    return taken;
}

void tensor_slice_put(const tensor_slice *s, float *values, size_t first, size_t n,
                      const float *part) {
    size_t i = first, run = 0, m;
    while ((m = next_run(s, &i, first + n, &run)) > 0) {
        memcpy(values + (run - first), part, m * sizeof *values);
        part += m;
    }
}

/* ---- access to tensors by name ------------------------------------------------------------- */

const char *gpt2_tensor_name(int tensor) {
    static const char *const names[GPT2_MOST_TENSORS] = {"wte",
                                                         "wpe",
                                                         "ln1w",
                                                         "ln1b",
                                                         "qkvw",
                                                         "qkvb",
                                                         "attprojw",
                                                         "attprojb",
                                                         "ln2w",
                                                         "ln2b",
                                                         "fcw",
                                                         "fcb",
                                                         "fcprojw",
                                                         "fcprojb",
                                                         "lnfw",
                                                         "lnfb",
                                                         "lmheadw",
                                                         "qkvw.lora_a",
                                                         "qkvw.lora_b",
                                                         "attprojw.lora_a",
                                                         "attprojw.lora_b",
                                                         "fcw.lora_a",
                                                         "fcw.lora_b",
                                                         "fcprojw.lora_a",
                                                         "fcprojw.lora_b"};
    return names[tensor];
}

enum { PIECE = 1 << 18 /* most dense elements at once */ };

/* Returns the elements of a layer of the dense tensor. */
static size_t layer_numel(const gpt2_config *cfg, int tensor) {
    const tensor_slice s = tensor_slice_of(cfg, tensor, 0, 1);
    return s.outer * s.dim * s.inner;
}

/* Writes elements that this stage has. `first` counts in the layers of the stage. */
static zero_result write_part(zero_ctx *z, const gpt2_config *cfg, const gpt2_parallel *how,
                              int tensor, zero_kind kind, size_t first, size_t n, float *values) {
    const zero_group *tp = how ? how->tp : NULL;
    const tensor_slice s = tensor_slice_of(cfg, tensor, zero_group_rank(tp), zero_group_size(tp));
    size_t at = first;
    if (!tensor_slice_is_whole(&s)) n = tensor_slice_take(&s, values, first, n, &at);
    if (n == 0) return ZERO_OK;
    return zero_write_tensor(z, gpt2_tensor_name(tensor), kind, at, n, values);
}

const char *gpt2_parallel_error(const zero_ctx *z, const gpt2_parallel *how) {
    const char *sentence = zero_last_error(z);
    if (!sentence[0] && how && how->experts) sentence = zero_last_error(how->experts);
    return sentence[0] || !how ? sentence : zero_group_error(how->tp);
}

zero_result gpt2_write(zero_ctx *z, const gpt2_config *cfg, const gpt2_parallel *how, int tensor,
                       zero_kind kind, size_t first, size_t n, float *values) {
    const size_t numel = layer_numel(cfg, tensor);
    for (size_t i = 0; i < n;) {
        const gpt2_run_of run =
            gpt2_stage_run(cfg, how ? how->stage : NULL, tensor, numel, first + i, n - i);
        if (run.here) ZERO_TRY(write_part(z, cfg, how, tensor, kind, run.first, run.n, values + i));
        i += run.n;
    }
    return ZERO_OK;
}

/* Returns the most elements of dense elements [first, first + n) that the slice of a rank has. */
static size_t most_of(const gpt2_config *cfg, int tensor, int size, size_t first, size_t n) {
    size_t most = 0;
    for (int rank = 0; rank < size; rank++) {
        const tensor_slice s = tensor_slice_of(cfg, tensor, rank, size);
        const size_t has = tensor_slice_before(&s, first + n) - tensor_slice_before(&s, first);
        if (has > most) most = has;
    }
    return most;
}

int gpt2_place_of(const gpt2_config *cfg, const gpt2_parallel *how, const char *name, size_t at,
                  gpt2_place *out) {
    const zero_group *tp = how ? how->tp : NULL;
    const gpt2_stage *stage = how ? how->stage : NULL;
    int row = 0, t = 0;
    while ((t = gpt2_tensor_at(cfg, row)) >= 0 && strcmp(gpt2_tensor_name(t), name) != 0) row++;
    if (t < 0) return -1;
    const tensor_slice s = tensor_slice_of(cfg, t, zero_group_rank(tp), zero_group_size(tp));
    const int whole = tensor_slice_is_whole(&s);
    const size_t layers = (size_t)gpt2_tensor_layers(cfg, t);
    const gpt2_run_of run = gpt2_stage_place(cfg, stage, t, tensor_slice_numel(&s), at);
    out->total = layers * layer_numel(cfg, t);
    out->row = s.dim * s.inner;
    out->parts = whole ? 1 : zero_group_size(tp);
    out->part = whole ? 0 : zero_group_rank(tp);
    out->owner = (!whole || zero_group_rank(tp) == 0)
                 && (gpt2_stage_is_whole(stage) || run.owner == stage->stage);
    out->first = run.first;
    out->n = run.n;
    return t;
}

/* Reads at most PIECE elements. parts: [size][PIECE], memory that the group's collectives can
 * access. */
static zero_result read_piece(zero_ctx *z, const gpt2_config *cfg, zero_group *tp, int tensor,
                              zero_kind kind, size_t first, size_t n, float *parts, float *out) {
    const int size = zero_group_size(tp), rank = zero_group_rank(tp);
    const tensor_slice mine = tensor_slice_of(cfg, tensor, rank, size);
    const size_t most = most_of(cfg, tensor, size, first, n);
    const size_t at = tensor_slice_before(&mine, first);
    const size_t has = tensor_slice_before(&mine, first + n) - at;
    zero_result result = ZERO_OK;
    if (has > 0)
        result = zero_read_tensor(z, gpt2_tensor_name(tensor), kind, at, has,
                                  parts + (size_t)rank * most);
    if (result == ZERO_OK)
        result =
            zero_group_all_gather(tp, parts + (size_t)rank * most, parts, most * sizeof *parts);
    if (result == ZERO_OK) result = zero_group_barrier(tp); /* also waits for a device */
    for (int i = 0; i < size && result == ZERO_OK && out; i++) {
        const tensor_slice s = tensor_slice_of(cfg, tensor, i, size);
        tensor_slice_put(&s, out, first, n, parts + (size_t)i * most);
    }
    return result;
}

/* Reads elements that this stage has. */
static zero_result read_part(zero_ctx *z, const gpt2_config *cfg, const gpt2_parallel *how,
                             int tensor, zero_kind kind, size_t first, size_t n, float *out) {
    zero_group *tp = how ? how->tp : NULL;
    const size_t size = (size_t)zero_group_size(tp);
    const tensor_slice s = tensor_slice_of(cfg, tensor, zero_group_rank(tp), (int)size);
    zero_result result = ZERO_OK;
    if (tensor_slice_is_whole(&s))
        return zero_read_tensor(z, gpt2_tensor_name(tensor), kind, first, n, out);
    float *parts = (float *)zero_host_alloc(size * PIECE * sizeof(float));
    if (!parts) return ZERO_ERR_MEMORY;
    for (size_t i = 0; i < n && result == ZERO_OK; i += PIECE)
        result = read_piece(z, cfg, tp, tensor, kind, first + i, n - i < PIECE ? n - i : PIECE,
                            parts, out ? out + i : NULL);
    zero_host_free(parts);
    return result;
}

/* Sends a run of elements of one stage to all stages, at most PIECE, through memory that the
   group's collectives can access. */
static zero_result share_run(zero_ctx *z, const gpt2_config *cfg, const gpt2_parallel *how,
                             int tensor, zero_kind kind, const gpt2_run_of *run, float *piece,
                             float *out) {
    zero_group *pp = how->stage->pp;
    const int owns = zero_group_rank(pp) == run->owner;
    if (owns) ZERO_TRY(read_part(z, cfg, how, tensor, kind, run->first, run->n, piece));
    ZERO_TRY(zero_group_broadcast(pp, piece, run->n * sizeof *piece, run->owner));
    ZERO_TRY(zero_group_barrier(pp)); /* also waits for a device */
    if (out) memcpy(out, piece, run->n * sizeof *piece);
    return ZERO_OK;
}

zero_result gpt2_read(zero_ctx *z, const gpt2_config *cfg, const gpt2_parallel *how, int tensor,
                      zero_kind kind, size_t first, size_t n, float *out) {
    const size_t numel = layer_numel(cfg, tensor);
    zero_result result = ZERO_OK;
    if (how == NULL || gpt2_stage_is_whole(how->stage))
        return read_part(z, cfg, how, tensor, kind, first, n, out);
    float *piece = (float *)zero_host_alloc(PIECE * sizeof(float));
    if (!piece) return ZERO_ERR_MEMORY;
    for (size_t i = 0; i < n && result == ZERO_OK;) {
        const size_t left = n - i < PIECE ? n - i : PIECE;
        const gpt2_run_of run = gpt2_stage_run(cfg, how->stage, tensor, numel, first + i, left);
        result = share_run(z, cfg, how, tensor, kind, &run, piece, out ? out + i : NULL);
        i += run.n;
    }
    zero_host_free(piece);
    return result;
}

/* experts.c - see experts.h. Common subset of C11 and CUDA C++.

   The layout of the slots, for N ranks with El experts each and capacity c. [E][c] is [N][El][c]:
     on the rank that has the rows
       [to rank 0: expert 0 .. El-1 | to rank 1: expert El .. | ...]
     on the rank that has the experts, after the all-to-all
       [from rank 0: its El experts | from rank 1: ... | ...]

   A product has the c rows that one rank sent to one expert. The sums over the sending ranks are
   added in rank order, as one rank adds the sums of its micro-steps. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include "experts.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "normals.h"
#include "ops_experts.h"
#include "stages.h"

enum { LEAST_CAPACITY = 4, STREAM = 17 };

/* ---- before anything is built ---------------------------------------------------------------- */

int experts_layers(const gpt2_config *cfg) { return cfg->moe.experts ? cfg->layers / 2 : 0; }
int experts_is_layer(const gpt2_config *cfg, int block) {
    return cfg->moe.experts > 0 && block % 2 == 1;
}

experts_part experts_part_of(const gpt2_parallel *how) {
    const experts_part all = {0, 1, 0, 1, NULL};
    if (!how) return all;
    const experts_part part = {zero_group_rank(how->ep), zero_group_size(how->ep),
                               zero_group_rank(how->tp), zero_group_size(how->tp),
                               gpt2_stage_is_whole(how->stage) ? NULL : how->stage};
    return part;
}

/* Each chunk of a stage begins with a block without experts, so every second block has
 * experts. */
static int layers_of(const gpt2_config *cfg, const experts_part *part) {
    if (!cfg->moe.experts) return 0;
    return part->stage ? gpt2_stage_layers(part->stage) / 2 : experts_layers(cfg);
}
/* Returns the number in the model of the part's layer i. */
static int layer_of(const experts_part *part, int i) {
    return part->stage ? gpt2_stage_block(part->stage, 2 * i + 1) / 2 : i;
}
/* Returns the number of experts per layer that the part has. */
static int mine_of(const gpt2_config *cfg, const experts_part *part) {
    return cfg->moe.experts / part->ranks;
}

int experts_number(const gpt2_config *cfg, const experts_part *part, int tensor, int layer) {
    const int mine = mine_of(cfg, part);
    if (tensor == EXPERTS_GATEW) return layer_of(part, layer);
    return layer_of(part, layer / mine) * cfg->moe.experts + part->rank * mine + layer % mine;
}

/* Returns the elements of one layer, or of one expert, of a tensor of the whole model. */
static size_t numel_of(const gpt2_config *cfg, int tensor) {
    const size_t C = (size_t)cfg->channels, E = (size_t)cfg->moe.experts;
    const size_t of[EXPERTS_TENSORS] = {E * C, 4 * C * C, 4 * C, 4 * C * C, C};
    return of[tensor];
}

/* Returns the range of a tensor's layer, or expert, that the part has: its hidden channels, or all.
 */
static tensor_slice slice_of(const gpt2_config *cfg, const experts_part *part, int tensor) {
    const size_t C = (size_t)cfg->channels;
    tensor_slice s = {1, 4 * C, 1, 0, 4 * C / (size_t)part->tp};
    if (tensor == EXPERTS_XFCW) s.inner = C;
    if (tensor == EXPERTS_XPROJW) s.outer = C;
    s.first = s.count * (size_t)part->tp_rank;
    if (tensor != EXPERTS_GATEW && tensor != EXPERTS_XPROJB) return s;
    const tensor_slice whole = {1, 1, numel_of(cfg, tensor), 0, 1};
    return whole;
}
static size_t part_numel(const gpt2_config *cfg, const experts_part *part, int tensor) {
    const tensor_slice s = slice_of(cfg, part, tensor);
    return tensor_slice_numel(&s);
}

size_t experts_numel(const gpt2_config *cfg) {
    size_t one = 0;
    for (int i = EXPERTS_XFCW; i < EXPERTS_TENSORS; i++) one += numel_of(cfg, i);
    return (size_t)experts_layers(cfg)
           * (numel_of(cfg, EXPERTS_GATEW) + one * (size_t)cfg->moe.experts);
}

__attribute__((format(printf, 2, 3))) static zero_result refuse(gpt2_error *err, const char *format,
                                                                ...) {
    va_list values;
    va_start(values, format);
    if (err) (void)vsnprintf(err->sentence, sizeof err->sentence, format, values);
    va_end(values);
    return ZERO_ERR_ARGUMENT;
}

zero_result experts_check(const gpt2_config *cfg, int ranks, gpt2_error *err) {
    const int E = cfg->moe.experts, k = cfg->moe.chosen;
    int near = ranks < E ? ranks : E;
    if (E == 0)
        return ranks == 1
                   ? ZERO_OK
                   : refuse(err, "%d ranks, but the model has no experts to share; set -en", ranks);
    if (E < 2 || E > OPS_MOST_EXPERTS)
        return refuse(err, "%d experts, expected 2 to %d", E, OPS_MOST_EXPERTS);
    if (k < 1 || k > OPS_MOST_CHOSEN)
        return refuse(err, "top k is %d, expected 1 or %d", k, OPS_MOST_CHOSEN);
    if (cfg->layers < 2)
        return refuse(
            err,
            "experts replace the MLP of every second block; use a model of more blocks (found %d)",
            cfg->layers);
    if (!(cfg->moe.capacity > 0) || !(cfg->moe.aux >= 0))
        return refuse(err,
                      "the capacity factor is %g, expected more than 0, or the weight of the "
                      "auxiliary loss is %g, expected 0 or more",
                      (double)cfg->moe.capacity, (double)cfg->moe.aux);
    while (near > 1 && E % near) near--;
    if (near != ranks)
        return refuse(err, "%d ranks do not divide %d experts; the nearest number that does is %d",
                      ranks, E, near);
    return ZERO_OK;
}

static const char *const names[EXPERTS_TENSORS] = {"gatew", "xfcw", "xfcb", "xprojw", "xprojb"};

/* Base pointers, rebased by the hooks. */
typedef struct expert_tensors {
    void *at[EXPERTS_TENSORS];
} expert_tensors;

/* Returns 1 if this rank is the first of those that have the same elements of a tensor. */
static int is_owner(const experts_part *part, int tensor, const tensor_slice *s) {
    return !(tensor == EXPERTS_GATEW && part->rank) && !(tensor_slice_is_whole(s) && part->tp_rank);
}

void experts_table(const gpt2_config *cfg, const experts_part *part,
                   zero_tensor_desc out[EXPERTS_TENSORS]) {
    const int L = layers_of(cfg, part);
    memset(out, 0, EXPERTS_TENSORS * sizeof *out);
    for (int i = 0; i < EXPERTS_TENSORS; i++) {
        zero_tensor_desc *d = &out[i];
        const tensor_slice slice = slice_of(cfg, part, i);
        d->name = names[i];
        d->numel = tensor_slice_numel(&slice);
        d->layers = i ? L * mine_of(cfg, part) : L;
        d->unit = i ? L : 0;
        d->uses = 1;
        d->field = offsetof(expert_tensors, at) + (size_t)i * sizeof(void *);
        if (i == EXPERTS_XFCB || i == EXPERTS_XPROJB) d->flags = ZERO_NO_DECAY | ZERO_ONE_D;
        if (!is_owner(part, i, &slice)) d->flags |= ZERO_COPY;
    }
}

zero_result experts_announce(zero_ctx *z, const gpt2_config *cfg, const gpt2_parallel *how) {
    const size_t C = (size_t)cfg->channels;
    const experts_part part = experts_part_of(how);
    zero_tensor_desc table[EXPERTS_TENSORS];
    experts_table(cfg, &part, table);
    if (part.ranks > 1) table[EXPERTS_GATEW].sum_over = how->ep;
    for (int t = 0; t < EXPERTS_TENSORS && part.tp > 1; t++) {
        const tensor_slice s = slice_of(cfg, &part, t);
        if (tensor_slice_is_whole(&s)) continue;
        table[t].slice_of = how->tp;
        table[t].outer = s.outer;
    }
    table[EXPERTS_XFCW].rows = table[EXPERTS_XPROJW].cols = 4 * C;
    table[EXPERTS_XFCW].cols = table[EXPERTS_XPROJW].rows = C;
    return zero_tensors(z, table, EXPERTS_TENSORS);
}

int experts_units(const gpt2_config *cfg, const experts_part *part) {
    return layers_of(cfg, part) * (1 + mine_of(cfg, part));
}
int experts_world_units(const gpt2_config *cfg) {
    return experts_layers(cfg) * (1 + cfg->moe.experts);
}

void experts_world(const gpt2_config *cfg, const experts_part *part, int dense, int *out) {
    const int L = layers_of(cfg, part), n = L * mine_of(cfg, part);
    for (int i = 0; i < L; i++) *out++ = dense + experts_number(cfg, part, EXPERTS_GATEW, i);
    for (int i = 0; i < n; i++)
        *out++ = dense + experts_layers(cfg) + experts_number(cfg, part, EXPERTS_XFCW, i);
}

int experts_place_of(const gpt2_config *cfg, const gpt2_parallel *how, const char *name, size_t at,
                     gpt2_place *out) {
    const experts_part part = experts_part_of(how);
    int t = 0;
    while (t < EXPERTS_TENSORS && strcmp(names[t], name) != 0) t++;
    if (t == EXPERTS_TENSORS || !cfg->moe.experts) return -1;
    const tensor_slice s = slice_of(cfg, &part, t);
    const size_t numel = tensor_slice_numel(&s), L = (size_t)experts_layers(cfg);
    const int layer = (int)(at / numel), mine = mine_of(cfg, &part);
    const int follow = t == EXPERTS_GATEW
                           ? 1
                           : mine - layer % mine; /* the unit has the same number in the model */
    out->total = (t == EXPERTS_GATEW ? L : L * (size_t)cfg->moe.experts) * numel_of(cfg, t);
    out->row = s.dim * s.inner;
    out->parts = tensor_slice_is_whole(&s) ? 1 : part.tp;
    out->part = out->parts > 1 ? part.tp_rank : 0;
    out->owner = is_owner(&part, t, &s);
    out->first = (size_t)experts_number(cfg, &part, t, layer) * numel + at % numel;
    out->n = (size_t)follow * numel - at % numel;
    return t;
}

void experts_add_plan(zero_plan *plan, const zero_plan *x) {
    plan->numel += x->numel;
    plan->padded_numel += x->padded_numel;
    plan->param_bytes += x->param_bytes;
    plan->grad_bytes += x->grad_bytes;
    plan->optimizer_bytes += x->optimizer_bytes;
    plan->buffer_bytes += x->buffer_bytes;
    plan->context_bytes += x->context_bytes;
    plan->formula_bytes += x->formula_bytes;
    plan->buffer_ceiling_bytes += x->buffer_ceiling_bytes;
    plan->accumulator_bytes += x->accumulator_bytes;
    plan->sent_bytes += x->sent_bytes;
    plan->gather_bytes += x->gather_bytes;
    plan->formula_sent_bytes += x->formula_sent_bytes;
    plan->kept_bytes += x->kept_bytes;
    plan->units += x->units;
    plan->verdict_bytes += x->verdict_bytes;
    plan->file_bytes += x->file_bytes;
    plan->file_read_bytes += x->file_read_bytes;
    plan->file_written_bytes += x->file_written_bytes;
    plan->host_bytes += x->host_bytes;
    plan->pinned_bytes += x->pinned_bytes;
    plan->down_bytes += x->down_bytes;
    plan->up_bytes += x->up_bytes;
    if (!plan->file_way) plan->file_way = x->file_way;
    plan->update_host_s += x->update_host_s;
    plan->update_device_s += x->update_device_s;
}

/* ---- weights --------------------------------------------------------------------------------- */

enum { CHUNK = 1 << 16 };

/* Initializes layer l of this rank, which has this number in the model. */
static zero_result init_layer(zero_ctx *z, const gpt2_config *cfg, const tensor_slice *slice,
                              int tensor, uint64_t seed, size_t number, size_t l, float *chunk) {
    const size_t numel = numel_of(cfg, tensor), own = tensor_slice_numel(slice);
    const double deviation = tensor == EXPERTS_XPROJW ? 0.02 / sqrt(2.0 * cfg->layers) : 0.02;
    for (size_t first = 0; first < numel; first += CHUNK) {
        size_t n = numel - first < CHUNK ? numel - first : CHUNK, at = first;
        memset(chunk, 0, n * sizeof *chunk);
        if (tensor != EXPERTS_XFCB && tensor != EXPERTS_XPROJB)
            gpt2_normals(chunk, seed, STREAM + ((uint64_t)tensor + 1) / 2, number * numel + first,
                         n, deviation);
        if (!tensor_slice_is_whole(slice)) n = tensor_slice_take(slice, chunk, first, n, &at);
        if (n == 0) continue;
        ZERO_TRY(zero_write_tensor(z, names[tensor], ZERO_PARAMETER, l * own + at, n, chunk));
    }
    return ZERO_OK;
}

zero_result experts_init(zero_ctx *z, const gpt2_config *cfg, const gpt2_parallel *how,
                         uint64_t seed) {
    const experts_part part = experts_part_of(how);
    zero_tensor_desc table[EXPERTS_TENSORS];
    zero_result result = ZERO_OK;
    float *chunk = (float *)malloc(CHUNK * sizeof *chunk);
    if (!chunk) return ZERO_ERR_MEMORY;
    experts_table(cfg, &part, table);
    for (int i = 0; i < EXPERTS_TENSORS; i++) {
        const tensor_slice s = slice_of(cfg, &part, i);
        for (int l = 0; l < table[i].layers && result == ZERO_OK; l++)
            result = init_layer(z, cfg, &s, i, seed, (size_t)experts_number(cfg, &part, i, l),
                                (size_t)l, chunk);
    }
    free(chunk);
    return result;
}

/* Gathers parts [tp][n] through memory that the group's collectives can access. */
static zero_result read_parts(zero_ctx *z, const gpt2_config *cfg, const gpt2_parallel *how,
                              int tensor, zero_kind kind, size_t layer, size_t first, size_t n,
                              float *parts, float *out) {
    experts_part part = experts_part_of(how);
    tensor_slice s = slice_of(cfg, &part, tensor);
    const size_t at = tensor_slice_before(&s, first);
    const size_t has = tensor_slice_before(&s, first + n) - at;
    float *own = parts + (size_t)part.tp_rank * n;
    if (has > 0)
        ZERO_TRY(zero_read_tensor(z, names[tensor], kind, layer * tensor_slice_numel(&s) + at, has,
                                  own));
    ZERO_TRY(zero_group_all_gather(how->tp, own, parts, n * sizeof *parts));
    ZERO_TRY(zero_group_barrier(how->tp)); /* also waits for a device */
    for (part.tp_rank = 0; part.tp_rank < part.tp && out; part.tp_rank++) {
        s = slice_of(cfg, &part, tensor);
        tensor_slice_put(&s, out, first, n, parts + (size_t)part.tp_rank * n);
    }
    return ZERO_OK;
}

zero_result experts_read(zero_ctx *z, const gpt2_config *cfg, const gpt2_parallel *how, int tensor,
                         zero_kind kind, int layer, size_t first, size_t n, float *out) {
    const experts_part part = experts_part_of(how);
    const tensor_slice s = slice_of(cfg, &part, tensor);
    const size_t l = (size_t)layer;
    if (tensor_slice_is_whole(&s))
        return zero_read_tensor(z, names[tensor], kind, l * tensor_slice_numel(&s) + first, n, out);
    float *parts = (float *)zero_host_alloc((size_t)part.tp * n * sizeof *parts);
    if (!parts) return ZERO_ERR_MEMORY;
    const zero_result result = read_parts(z, cfg, how, tensor, kind, l, first, n, parts, out);
    zero_host_free(parts);
    return result;
}

/* Returns the hash of one layer. It starts with the layer's number. */
static zero_result hash_layer(zero_ctx *z, const gpt2_config *cfg, const gpt2_parallel *how,
                              int tensor, int l, float *chunk, uint64_t *all) {
    const experts_part part = experts_part_of(how);
    const size_t numel = numel_of(cfg, tensor);
    const uint64_t number = (uint64_t)experts_number(cfg, &part, tensor, l);
    uint64_t hash = gpt2_mix(number * EXPERTS_TENSORS + (uint64_t)tensor + 1);
    for (size_t first = 0; first < numel; first += CHUNK) {
        const size_t n = numel - first < CHUNK ? numel - first : CHUNK;
        ZERO_TRY(experts_read(z, cfg, how, tensor, ZERO_MASTER, l, first, n, chunk));
        for (size_t i = 0; i < n; i++) {
            uint32_t bits;
            memcpy(&bits, &chunk[i], sizeof bits);
            hash = gpt2_mix(hash ^ bits);
        }
    }
    *all ^= hash;
    return ZERO_OK;
}

/* Sends each rank's hash to all ranks. `all` is in memory that groups can access. */
static zero_result hash_ranks(zero_group *over, uint64_t *all, uint64_t *hash) {
    if (zero_group_size(over) == 1) return ZERO_OK;
    all[zero_group_rank(over)] = *hash;
    ZERO_TRY(zero_group_all_gather(over, all + zero_group_rank(over), all, sizeof *all));
    ZERO_TRY(zero_group_barrier(over));
    *hash = 0;
    for (int r = 0; r < zero_group_size(over); r++) *hash ^= all[r];
    return ZERO_OK;
}

zero_result experts_hash(zero_ctx *z, const gpt2_config *cfg, const gpt2_parallel *how,
                         uint64_t *hash) {
    const experts_part part = experts_part_of(how);
    zero_tensor_desc table[EXPERTS_TENSORS];
    zero_result result = ZERO_OK;
    const int most =
        part.stage && part.stage->stages > part.ranks ? part.stage->stages : part.ranks;
    const size_t bytes = CHUNK * sizeof(float) + (size_t)most * sizeof(uint64_t);
    float *chunk = (float *)zero_host_alloc(bytes);
    if (!chunk) return ZERO_ERR_MEMORY;
    uint64_t *all = (uint64_t *)(void *)(chunk + CHUNK);
    *hash = 0;
    experts_table(cfg, &part, table);
    for (int i = 0; i < EXPERTS_TENSORS; i++)
        for (int l = 0; l < table[i].layers && result == ZERO_OK; l++) {
            uint64_t one = 0;
            result = hash_layer(z, cfg, how, i, l, chunk, &one);
            if (i || !part.rank) *hash ^= one; /* every rank has the gates */
        }
    if (result == ZERO_OK) result = hash_ranks(how->ep, all, hash);
    if (result == ZERO_OK && part.stage) result = hash_ranks(part.stage->pp, all, hash);
    zero_host_free(chunk);
    return result;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* The values of a layer that forward stores for backward. */
typedef struct expert_values {
    ops_route route;
    void *inbox; /* (S, C) rows received; S = E capacity slots */
    void *back;  /* (S, C) results received */
    void *fch;   /* (S, H) before GELU; if blocks are recomputed: of one product, shared by all */
    void *gelu;  /* (S, H) after GELU, or also shared */
} expert_values;

struct experts {
    gpt2_config cfg;
    zero_ctx *z;    /* borrowed, like the next ones */
    zero_group *ep; /* NULL: one rank */
    ops_ctx *ops;
    experts_part part;
    tensor_parallel tp;
    size_t C, E, H, mine, ranks, capacity, slots; /* `mine` is El */
    size_t bytes, grad_bytes;
    size_t numel[EXPERTS_TENSORS]; /* elements of a layer, or expert, of this rank */
    int recompute, layers;
    int longest, sets; /* most layers of a chunk; number of micro-batches that keep their values */
    expert_values *values; /* [sets][longest] */
    int at;                /* where the values of layer 0 would be in the current set */
    void *memory;
    void *out, *in;            /* (S, C) rows to send */
    void *zeros;               /* (capacity, C) */
    void *dfch;                /* (capacity, H) */
    float *dweights, *dlogits; /* (R, k), (R, E) */
    double *totals;            /* (2) */
    expert_tensors params, grads;
    zero_result result;
    char sentence[256];
};

size_t experts_capacity(const gpt2_config *cfg, size_t R) {
    const double mean = (double)R / cfg->moe.experts * cfg->moe.chosen;
    const double wanted = ceil(mean * (double)cfg->moe.capacity);
    const size_t capacity = wanted >= (double)R ? R : (size_t)wanted;
    const size_t least = R < LEAST_CAPACITY ? R : LEAST_CAPACITY;
    return capacity < least ? least : capacity;
}

static void *cut(char *base, size_t *at, size_t n, size_t bytes_each) {
    char *p = base ? base + *at : NULL;
    *at += (n * bytes_each + 127) / 128 * 128;
    return p;
}

static void place_layer(const experts *x, expert_values *v, size_t R, char *base, size_t *at) {
    const size_t E = x->E, k = (size_t)x->cfg.moe.chosen, S = x->slots, H = x->H;
    ops_route *t = &v->route;
    t->gates = (float *)cut(base, at, R * E, sizeof(float));
    t->weights = (float *)cut(base, at, R * k, sizeof(float));
    t->slots = (int *)cut(base, at, R * k, sizeof(int));
    t->choices = (int *)cut(base, at, R * k, sizeof(int));
    t->rows = (int *)cut(base, at, S, sizeof(int));
    t->shares = (float *)cut(base, at, E, sizeof(float));
    v->inbox = cut(base, at, S * x->C, x->bytes);
    v->back = cut(base, at, S * x->C, x->bytes);
    if (x->recompute < GPT2_RECOMPUTE_BLOCK) v->fch = cut(base, at, S * H, x->bytes);
    if (x->recompute == GPT2_RECOMPUTE_NONE) v->gelu = cut(base, at, S * H, x->bytes);
}

/* Sets every pointer, or only measures (base NULL). Returns the bytes. */
static size_t place(experts *x, size_t R, char *base) {
    const size_t C = x->C, H = x->H, S = x->slots, c = x->capacity;
    size_t at = 0;
    x->totals = (double *)cut(base, &at, 2, sizeof(double));
    double *sums = (double *)cut(base, &at, 2 * x->E, sizeof(double));
    x->out = cut(base, &at, S * C, x->bytes);
    x->in = x->ranks > 1 ? cut(base, &at, S * C, x->bytes) : x->out;
    x->zeros = cut(base, &at, c * C, x->bytes);
    x->dfch = cut(base, &at, c * H, x->bytes);
    x->dweights = (float *)cut(base, &at, R * (size_t)x->cfg.moe.chosen, sizeof(float));
    x->dlogits = (float *)cut(base, &at, R * x->E, sizeof(float));
    void *fch = x->recompute < GPT2_RECOMPUTE_BLOCK ? NULL : cut(base, &at, c * H, x->bytes);
    void *gelu = x->recompute == GPT2_RECOMPUTE_NONE ? NULL : cut(base, &at, c * H, x->bytes);
    for (int i = 0; i < x->sets * x->longest; i++) {
        expert_values spare, *v = x->values ? &x->values[i] : &spare;
        v->fch = fch;
        v->gelu = gelu;
        v->route.sums = sums;
        place_layer(x, v, R, base, &at);
    }
    return at;
}

/* Returns the rows of a rank: with context parallelism those of its pieces of sequences. */
static size_t rows_of(const gpt2_run *run) {
    const int pieces = zero_group_size(run->parallel ? run->parallel->cp : NULL);
    return (size_t)run->batch * (size_t)(run->seq_len / pieces);
}

static void set_shape(experts *x, const gpt2_config *cfg, const gpt2_run *run,
                      const experts_part *part) {
    const size_t R = rows_of(run);
    memset(x, 0, sizeof *x);
    x->cfg = *cfg;
    x->part = *part;
    x->ranks = (size_t)part->ranks;
    x->C = (size_t)cfg->channels;
    x->E = (size_t)cfg->moe.experts;
    x->H = 4 * x->C / (size_t)part->tp;
    x->mine = x->E / x->ranks;
    x->capacity = experts_capacity(cfg, R);
    x->slots = x->E * x->capacity;
    x->bytes = zero_type_bytes(run->type);
    for (int i = 0; i < EXPERTS_TENSORS; i++) x->numel[i] = part_numel(cfg, part, i);
    x->recompute = run->recompute;
    x->layers = layers_of(cfg, part);
    x->longest = part->stage ? gpt2_stage_most(part->stage) / 2 : x->layers;
    x->sets = part->stage ? part->stage->slots : run->together > 1 ? run->together : 1;
}

size_t experts_bytes_of(const gpt2_config *cfg, const gpt2_run *run, int ranks) {
    experts_part part = experts_part_of(run->parallel);
    experts shape;
    if (!cfg->moe.experts) return 0;
    part.ranks = ranks;
    set_shape(&shape, cfg, run, &part);
    return place(&shape, rows_of(run), NULL);
}

uint64_t experts_sent_of(const gpt2_config *cfg, const gpt2_run *run, int ranks) {
    const uint64_t weights = rows_of(run) * (uint64_t)cfg->moe.chosen * sizeof(float);
    experts_part part = experts_part_of(run->parallel);
    experts shape;
    if (!cfg->moe.experts) return 0;
    part.ranks = ranks;
    set_shape(&shape, cfg, run, &part);
    const uint64_t others = shape.slots / shape.ranks * (shape.ranks - 1), tp = (uint64_t)part.tp;
    return (uint64_t)shape.layers
           * (4 * others * shape.C * shape.bytes + 2 * weights * (tp - 1) / tp);
}

static int sharers(const gpt2_run *run) { return experts_part_of(run->parallel).ranks; }
size_t experts_bytes(const gpt2_config *cfg, const gpt2_run *run) {
    return experts_bytes_of(cfg, run, sharers(run));
}
uint64_t experts_sent(const gpt2_config *cfg, const gpt2_run *run) {
    return experts_sent_of(cfg, run, sharers(run));
}

/* The arguments of the operations. */
static void set_routes(experts *x, const zero_config *c) {
    for (int i = 0; i < x->sets * x->longest; i++) {
        ops_route *t = &x->values[i].route;
        t->type = c->type;
        t->grad_type = c->grads == ZERO_GRAD_F32 ? ZERO_F32 : c->type;
        t->stream = c->stream;
        t->experts = x->E;
        t->chosen = (size_t)x->cfg.moe.chosen;
        t->capacity = x->capacity;
        x->grad_bytes = zero_type_bytes(t->grad_type);
    }
}

zero_result experts_create(experts **x, const gpt2_config *cfg, const gpt2_run *run, ops_ctx *ops,
                           gpt2_error *err) {
    const size_t R = rows_of(run);
    zero_config c;
    *x = NULL;
    if (experts_layers(cfg) <= 0)
        return refuse(err, "no block of the model has experts; set moe.experts");
    experts *made = (experts *)malloc(sizeof *made);
    if (!made) return ZERO_ERR_MEMORY;
    const experts_part part = experts_part_of(run->parallel);
    set_shape(made, cfg, run, &part);
    made->part.stage = NULL; /* borrowed for the call */
    tensor_parallel_open(&made->tp, run->parallel, run->type);
    if (made->ranks > 1) made->ep = run->parallel->ep;
    made->z = run->parallel->experts;
    made->ops = ops;
    const size_t bytes = place(made, R, NULL);
    made->values =
        (expert_values *)calloc((size_t)made->sets * (size_t)made->longest, sizeof *made->values);
    made->memory = ops_alloc(bytes);
    if (!made->values || !made->memory) {
        (void)refuse(err, "out of memory for %.1f MiB of the experts' activations",
                     (double)bytes / (1024 * 1024));
        experts_destroy(made);
        return ZERO_ERR_MEMORY;
    }
    (void)place(made, R, (char *)made->memory);
    zero_query_config(made->z, &c);
    set_routes(made, &c);
    ops_clear(ops, made->totals, 2 * sizeof(double));
    ops_clear(ops, made->zeros, made->capacity * made->C * made->bytes);
    *x = made;
    return ZERO_OK;
}

void experts_destroy(experts *x) {
    if (!x) return;
    ops_free(x->memory);
    free(x->values);
    free(x);
}

const char *experts_error(const experts *x) { return x->sentence; }

/* ---- a layer --------------------------------------------------------------------------------- */

/* Keeps the first error. */
static int went(experts *x, zero_result result, const char *why) {
    if (result != ZERO_OK && x->result == ZERO_OK) {
        x->result = result;
        (void)snprintf(x->sentence, sizeof x->sentence, "%s", why);
    }
    return x->result == ZERO_OK;
}
static int hooked(experts *x, zero_result result) {
    return went(x, result, result == ZERO_OK ? "" : zero_last_error(x->z));
}

zero_result experts_pass_begin(experts *x, zero_pass kind, int micro, int micro_steps) {
    (void)hooked(x, zero_pass_begin(x->z, kind, micro, micro_steps));
    return x->result;
}
zero_result experts_pass_end(experts *x) {
    (void)hooked(x, zero_pass_end(x->z));
    return x->result;
}

/* Sends out (S, C) to `to`: to the ranks of the experts, or back. A single rank uses the same
 * memory for both. */
static void exchange(experts *x, const void *out, void *to) {
    const size_t bytes = x->slots / x->ranks * x->C * x->bytes;
    if (x->ep == NULL || x->result != ZERO_OK) return;
    const zero_result result = zero_group_all_to_all(x->ep, out, to, bytes);
    (void)went(x, result, result == ZERO_OK ? "" : zero_group_error(x->ep));
}

void experts_choose(experts *x, int slot, int first) { x->at = slot * x->longest - first; }
const void *experts_no_bias(const experts *x) { return x->zeros; }
static const expert_values *values_of(const experts *x, int i) { return &x->values[x->at + i]; }

static int unit_of_gate(int i) { return i; }
static int unit_of_expert(const experts *x, int i, size_t e) {
    return x->layers + i * (int)x->mine + (int)e;
}

/* ---- several micro-batches pass a layer together --------------------------------------------- */

int experts_open_units(const gpt2_config *cfg, const experts_part *part) {
    return 1 + mine_of(cfg, part);
}

/* Returns the n-th unit of layer i to open in forward. Backward opens them in reverse order. */
static int unit_to_open(int layers, int mine, int i, int n) {
    return n == 0 ? i : layers + i * mine + n - 1;
}

zero_result experts_order(zero_ctx *z, const gpt2_config *cfg, const experts_part *part) {
    const int L = layers_of(cfg, part), mine = mine_of(cfg, part), n = L * (1 + mine);
    zero_pass_call *calls = (zero_pass_call *)calloc(2 * (size_t)n + 1, sizeof *calls);
    if (!calls) return ZERO_ERR_MEMORY;
    for (int k = 0; k < n; k++) {
        const int unit = unit_to_open(L, mine, k / (1 + mine), k % (1 + mine));
        const zero_pass_call there = {ZERO_CALL_FORWARD, unit}, back = {ZERO_CALL_BACKWARD, unit};
        calls[k] = there;
        calls[2 * n - 1 - k] = back;
    }
    const zero_result result = zero_pass_order(z, ZERO_TRAIN, 0, calls, 2 * n);
    free(calls);
    return result;
}

zero_result experts_hold(experts *x, int i, int backward) {
    const int mine = (int)x->mine;
    for (int n = 0; n <= mine; n++) {
        const int unit = unit_to_open(x->layers, mine, i, backward ? mine - n : n);
        const zero_result result = backward ? zero_backward_begin(x->z, unit, &x->params, &x->grads)
                                            : zero_forward_begin(x->z, unit, &x->params);
        if (!hooked(x, result)) break;
    }
    return x->result;
}
zero_result experts_release(experts *x, int i, int backward) {
    const int mine = (int)x->mine;
    for (int n = 0; n <= mine; n++) {
        const int unit = unit_to_open(x->layers, mine, i, backward ? mine - n : n);
        if (!hooked(x, backward ? zero_backward_end(x->z, unit) : zero_forward_end(x->z, unit)))
            break;
    }
    return x->result;
}

/* ---- a layer's operations -------------------------------------------------------------------- */

/* Returns tensor number `tensor` of layer or expert l. */
static void *param(const experts *x, int tensor, size_t l) {
    return (char *)x->params.at[tensor] + l * x->numel[tensor] * x->bytes;
}
static void *grad(const experts *x, int tensor, size_t l) {
    return (char *)x->grads.at[tensor] + l * x->numel[tensor] * x->grad_bytes;
}

/* Returns the slots of expert e with the rows of rank s. A row has n numbers. */
static void *slots_of(const experts *x, void *all, size_t s, size_t e, size_t n) {
    return (char *)all + (s * x->mine + e) * x->capacity * n * x->bytes;
}
/* The same for arrays that may have the rows of one product only. */
static void *hidden_of(const experts *x, void *all, size_t s, size_t e, int recompute) {
    return x->recompute < recompute ? slots_of(x, all, s, e, x->H) : all;
}

/* Computes expert e of layer i, from inbox to `to`. With tensor parallelism only the first rank
 * adds the bias. */
static void expert_forward(experts *x, int i, size_t e, void *to) {
    const expert_values *v = values_of(x, i);
    const size_t l = (size_t)i * x->mine + e, n = x->capacity, C = x->C, H = x->H;
    const void *bias = x->tp.rank ? x->zeros : param(x, EXPERTS_XPROJB, l);
    for (size_t s = 0; s < x->ranks; s++) {
        void *fch = hidden_of(x, v->fch, s, e, GPT2_RECOMPUTE_BLOCK);
        void *gelu = hidden_of(x, v->gelu, s, e, GPT2_RECOMPUTE_GELU);
        ops_linear_gelu(x->ops, fch, gelu, 0, slots_of(x, v->inbox, s, e, C),
                        param(x, EXPERTS_XFCW, l), param(x, EXPERTS_XFCB, l), n, C, H);
        ops_linear_residual(x->ops, slots_of(x, to, s, e, C), x->zeros, gelu,
                            param(x, EXPERTS_XPROJW, l), bias, n, H, C);
    }
}

zero_result experts_forward(experts *x, int i, void *out, const void *residual, const void *in,
                            size_t R, int counts) {
    const expert_values *v = values_of(x, i);
    void *rows = x->ep ? x->out : v->inbox, *results = x->ep ? x->out : v->back;
    if (!hooked(x, zero_forward_begin(x->z, unit_of_gate(i), &x->params))) return x->result;
    ops_gates(&v->route, in, param(x, EXPERTS_GATEW, (size_t)i), R, x->C);
    if (!hooked(x, zero_forward_end(x->z, unit_of_gate(i)))) return x->result;
    ops_routes(&v->route, counts ? x->totals : NULL, R);
    ops_dispatch(&v->route, rows, in, R, x->C);
    exchange(x, rows, v->inbox);
    for (size_t e = 0; e < x->mine; e++) {
        if (!hooked(x, zero_forward_begin(x->z, unit_of_expert(x, i, e), &x->params))) break;
        expert_forward(x, i, e, results);
        if (!hooked(x, zero_forward_end(x->z, unit_of_expert(x, i, e)))) break;
    }
    exchange(x, results, v->back);
    if (x->result == ZERO_OK) ops_combine(&v->route, out, residual, v->back, R, x->C);
    return x->result;
}

/* Backward of expert e of layer i, from dout to din, both (S, C). */
static void expert_backward(experts *x, int i, size_t e, void *din, void *dout) {
    const expert_values *v = values_of(x, i);
    const size_t l = (size_t)i * x->mine + e, n = x->capacity, C = x->C, H = x->H;
    const int kept = x->recompute == GPT2_RECOMPUTE_NONE;
    for (size_t s = 0; s < x->ranks; s++) {
        void *fch = hidden_of(x, v->fch, s, e, GPT2_RECOMPUTE_BLOCK);
        void *gelu = hidden_of(x, v->gelu, s, e, GPT2_RECOMPUTE_GELU);
        const void *inbox = slots_of(x, v->inbox, s, e, C), *dy = slots_of(x, dout, s, e, C);
        if (x->recompute >= GPT2_RECOMPUTE_BLOCK)
            ops_linear_gelu(x->ops, fch, gelu, 1, inbox, param(x, EXPERTS_XFCW, l),
                            param(x, EXPERTS_XFCB, l), n, C, H);
        ops_linear_dx_gelu(x->ops, x->dfch, grad(x, EXPERTS_XFCB, l), gelu, kept, dy,
                           param(x, EXPERTS_XPROJW, l), fch, param(x, EXPERTS_XFCB, l), n, H, C);
        ops_linear_dw(x->ops, grad(x, EXPERTS_XPROJW, l), grad(x, EXPERTS_XPROJB, l), dy, gelu, n,
                      H, C);
        ops_linear_dw(x->ops, grad(x, EXPERTS_XFCW, l), NULL, x->dfch, inbox, n, C, H);
        ops_linear_dx(x->ops, slots_of(x, din, s, e, C), x->dfch, param(x, EXPERTS_XFCW, l), n, C,
                      H);
    }
}

/* With tensor parallelism only the first rank adds the gates' part of the sum. `out` has the
 * gradients to send, `in` those received. A single rank uses the same memory for both; each product
 * of an expert writes only what the others have read. */
zero_result experts_backward(experts *x, int i, void *din, const void *in, const void *dout,
                             size_t R, float aux) {
    const expert_values *v = values_of(x, i);
    ops_combine_backward(&v->route, x->out, x->dweights, dout, v->back, R, x->C);
    tensor_parallel_reduce(&x->tp, x->dweights, R * v->route.chosen, ZERO_SUM);
    (void)went(x, x->tp.result, x->tp.result == ZERO_OK ? "" : zero_group_error(x->tp.group));
    exchange(x, x->out, x->in);
    for (size_t e = x->mine; e-- > 0;) {
        const int unit = unit_of_expert(x, i, e);
        if (!hooked(x, zero_backward_begin(x->z, unit, &x->params, &x->grads))) break;
        expert_backward(x, i, e, x->in, x->in);
        if (!hooked(x, zero_backward_end(x->z, unit))) break;
    }
    exchange(x, x->in, x->out);
    if (x->result != ZERO_OK) return x->result;
    if (!hooked(x, zero_backward_begin(x->z, unit_of_gate(i), &x->params, &x->grads)))
        return x->result;
    ops_routes_backward(&v->route, x->dlogits, x->dweights, aux, R);
    ops_gates_dw(&v->route, grad(x, EXPERTS_GATEW, (size_t)i), x->dlogits, in, R, x->C);
    if (x->tp.rank) ops_clear(x->ops, x->dlogits, R * x->E * sizeof *x->dlogits);
    ops_dispatch_backward(&v->route, din, x->out, x->dlogits, param(x, EXPERTS_GATEW, (size_t)i), R,
                          x->C);
    (void)hooked(x, zero_backward_end(x->z, unit_of_gate(i)));
    return x->result;
}

void experts_take(experts *x, double *aux, double *dropped) {
    *aux = ops_take_sum(x->ops, x->totals);
    *dropped = ops_take_sum(x->ops, x->totals + 1);
}

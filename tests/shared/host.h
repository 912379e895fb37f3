/* host.h - a made-up host: any list of tensors of any type, walked as a trainer would walk its
   layers, with gradients that are a function of (step, micro-step, rank, tensor, element); and the
   same training without any sharding, as the reference. */
#ifndef TEST_HOST_H
#define TEST_HOST_H

#include "harness.h"
#include <math.h>

#define HOST_TENSORS 12
#define HOST_NAME    16
#define HOST_FROZEN                                                                                \
    512 /* ZERO_FROZEN: same.sh also compiles this file with plugins that lack it                  \
         */

struct host_run;

typedef struct host_spec {
    uint64_t seed;
    int nranks, node_size, steps, micro_steps;
    int shard_ranks; /* as cfg says it, for the reference */
    int ntensors, units;
    zero_tensor_desc desc[HOST_TENSORS];
    char name[HOST_TENSORS][HOST_NAME];
    int integer;     /* gradients are small whole numbers: sums are exact in any order */
    int slots;       /* pointers by slot instead of by field */
    int recompute;   /* a forward inside every backward */
    int silent_unit; /* no backward reaches this unit; -1: all are reached */
    int evaluate;    /* an evaluation pass between steps */
    int adopts;      /* the first weights are adopted arrays, instead of written by name */
    int reversed;    /* sums over ranks begin with the last rank */
    int no_state;    /* the plugin was dropped without the part `state`: values cannot be read */
    int groups;      /* every tensor has factors of its own (host_factor) */
    int leaves;      /* gradients are those of leaf rank * leaves + micro-step; 0: as above */
    int pinned;      /* one bit per tensor: its factors are 0, so it is trained and stays */
    size_t rows[HOST_TENSORS], cols[HOST_TENSORS]; /* of matrices, for MUON; 0: none */
    size_t row[HOST_TENSORS]; /* elements of a row; backward touches few rows. 0: it touches all */
    zero_hyper adamw;
    zero_config cfg;
    /* spoils gradients of tensor t from element `first` on, after backward wrote them; may be NULL
     */
    void (*poison)(struct host_run *h, int t, size_t first, void *g);
} host_spec;

/* What small hosts share: ranks of one thread, one micro-step, three units that backward reaches.
 */
__attribute__((unused)) static void host_small(host_spec *s, uint64_t seed, int nranks, int stage,
                                               const zero_tensor_desc *desc, int n) {
    memset(s, 0, sizeof *s);
    s->seed = seed;
    s->nranks = nranks;
    s->micro_steps = 1;
    s->ntensors = n;
    s->units = 3;
    s->silent_unit = -1;
    memcpy(s->desc, desc, (size_t)n * sizeof *desc);
    s->cfg.stage = stage;
    s->cfg.threads = 1;
    const zero_hyper a = {0.01f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f};
    s->adamw = a;
}

typedef struct host_pointers {
    char *field[HOST_TENSORS];
} host_pointers;

/* Whole copies, type-major, and plain AdamW on them. */
typedef struct host_reference {
    float *master[HOST_TENSORS], *p[HOST_TENSORS]; /* p: as stored */
    float *m[HOST_TENSORS], *v[HOST_TENSORS];
    float *g[HOST_TENSORS]; /* mean gradients, unscaled */
    int64_t steps;
} host_reference;

static float host_get(const void *memory, zero_type type, size_t i) {
    float x = 0;
    zero_convert(&x, ZERO_F32, (const char *)memory + i * zero_type_bytes(type), type, 1);
    return x;
}
static void host_put(void *memory, zero_type type, size_t i, float x) {
    zero_convert((char *)memory + i * zero_type_bytes(type), type, &x, ZERO_F32, 1);
}
static float host_round(zero_type type, float x) {
    char stored[4];
    host_put(stored, type, 0, x);
    return host_get(stored, type, 0);
}
static int host_splits(const host_spec *s) {
    return s->cfg.master == ZERO_MASTER_SPLIT
           || (s->cfg.master == ZERO_MASTER_AUTO && s->cfg.type == ZERO_BF16);
}
/* As the plugin stores a master: split weights round half up. */
__attribute__((unused)) static float host_round_weight(const host_spec *s, float x) {
    uint32_t bits;
    if (!host_splits(s)) return host_round(s->cfg.type, x);
    memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x8000u) & 0xFFFF0000u; /* no reference has a NaN */
    memcpy(&x, &bits, sizeof x);
    return x;
}
static zero_type host_grad_type(const host_spec *s) {
    const int wide =
        s->cfg.grads == ZERO_GRAD_F32 || (s->cfg.grads == ZERO_GRAD_AUTO && s->micro_steps > 1);
    return wide ? ZERO_F32 : s->cfg.type;
}
/* Of the reference: a scale that stays where it begins. */
static float host_scale(const host_spec *s) {
    const zero_scaler *c = &s->cfg.scaler;
    if (c->fixed != 0 || s->cfg.type != ZERO_F16) return c->fixed != 0 ? c->fixed : 1.0f;
    return c->initial != 0 ? c->initial : 65536.0f;
}

static int host_frozen(const host_spec *s, int t, size_t layer) {
#if ZERO_ABI > 12
    if (s->desc[t].frozen && s->desc[t].frozen[layer]) return 1;
#endif
    return (s->desc[t].flags & HOST_FROZEN) != 0;
}
/* Element i of a tensor is frozen; then all are. */
static int host_stays(const host_spec *s, int t, size_t i) {
    return host_frozen(s, t, i / s->desc[t].numel);
}
__attribute__((unused)) static int host_all_frozen(const host_spec *s, int t) {
    const int layers = s->desc[t].layers ? s->desc[t].layers : 1;
    int n = 0;
    for (int l = 0; l < layers; l++) n += host_frozen(s, t, (size_t)l);
    return n == layers;
}

/* Of a tensor's learning rate (what 0) and weight decay (what 1). */
static float host_factor(const host_spec *s, int t, int what) {
    static const float factor[2][4] = {{1, 0.5f, 2, 0}, {0, 2, 0.5f, 1}};
    if (s->pinned >> t & 1) return 0;
    return s->groups ? factor[what][t % 4] : 1.0f;
}

#if ZERO_ABI < 5 /* same.sh compares with plugins of before */
#define ZERO_LAMB                               (ZERO_LION + 100)
#define ZERO_MUON                               (ZERO_LION + 101)
#define zero_tensor_matrix(z, name, rows, cols) ((void)(rows), (void)(cols), ZERO_OK)
#endif
#ifndef host_cut
#define host_cut(desc) ((void)(desc))
#endif

/* Announces tensor t with its factors and its matrices. */
static zero_result host_announce(zero_ctx *z, const host_spec *s, int t, zero_tensor_desc *d) {
    const float lr = host_factor(s, t, 0), decay = host_factor(s, t, 1);
#if ZERO_ABI < 11
    const zero_result r = zero_tensor(z, d);
    if (r || (s->groups && zero_tensor_group(z, d->name, lr, decay))) return ZERO_ERR_ARGUMENT;
    return zero_tensor_matrix(z, d->name, s->rows[t], s->cols[t]);
#else
    d->lr_factor = lr > 0 ? lr : ZERO_NONE;
    d->decay_factor = decay > 0 ? decay : ZERO_NONE;
    d->rows = s->rows[t];
    d->cols = s->cols[t];
    host_cut(d);
    return zero_tensor(z, d);
#endif
}

/* The tensor has a second state array. */
__attribute__((unused)) static int host_two(const host_spec *s, int t) {
    const zero_optimizer rule = s->cfg.optimizer;
    return rule <= ZERO_ADAM || rule == ZERO_LAMB || (rule == ZERO_MUON && !s->rows[t]);
}

static size_t host_numel(const host_spec *s, int t) {
    return s->desc[t].numel * (size_t)(s->desc[t].layers ? s->desc[t].layers : 1);
}

/* A rank touches one of twelve rows. It touches all in step 1, and sometimes none. */
static int host_touches(const host_spec *s, int step, int micro, int rank, int t, size_t row) {
    const int none = (step + micro + rank + t) % 4 == 3;
    const uint64_t h = test_mix(s->seed + (uint64_t)(((step * 8 + micro) * 64 + rank) * 16 + t));
    return step == 1 || (!none && test_mix(h ^ row) % 12 == 0);
}

static float host_value(const host_spec *s, int what, int step, int micro, int rank, int t,
                        size_t i) {
    const uint64_t h = test_mix(s->seed
                                ^ test_mix((uint64_t)what * 1000003u + (uint64_t)step * 7919u
                                           + (uint64_t)micro * 104729u + (uint64_t)rank * 1299709u
                                           + (uint64_t)t * 15485863u)
                                ^ test_mix((uint64_t)i));
    if (what == 1 && s->row[t] && !host_touches(s, step, micro, rank, t, i / s->row[t])) return 0;
    if (what == 1 && s->integer) return (float)((int)(h % 17) - 8);
    return (float)((double)(h >> 40) / (double)(1 << 24) - 0.5);
}

/* How much one use of a unit adds: the gradient is split over the uses, exactly. */
static int host_uses(const host_spec *s, int unit) {
    int uses = 1;
    for (int t = 0; t < s->ntensors; t++) {
        const zero_tensor_desc *d = &s->desc[t];
        const int layers = d->layers ? d->layers : 1;
        if (!(d->flags & ZERO_KEEP) && unit >= d->unit && unit < d->unit + layers && d->uses > uses)
            uses = d->uses;
    }
    return uses;
}

__attribute__((unused)) static void host_reference_open(host_reference *r, const host_spec *s) {
    memset(r, 0, sizeof *r);
    for (int t = 0; t < s->ntensors; t++) {
        const size_t n = host_numel(s, t);
        r->p[t] = (float *)calloc(n, sizeof(float));
        r->m[t] = (float *)calloc(n, sizeof(float));
        r->v[t] = (float *)calloc(n, sizeof(float));
        r->g[t] = (float *)calloc(n, sizeof(float));
        r->master[t] = (float *)calloc(n, sizeof(float));
        for (size_t i = 0; i < n; i++) {
            r->master[t][i] = host_value(s, 0, 0, 0, 0, t, i);
            r->p[t][i] = host_round_weight(s, r->master[t][i]);
            if (host_stays(s, t, i)) r->master[t][i] = r->p[t][i]; /* its only form */
        }
    }
}
__attribute__((unused)) static void host_reference_close(host_reference *r, const host_spec *s) {
    for (int t = 0; t < s->ntensors; t++) {
        free(r->p[t]);
        free(r->m[t]);
        free(r->v[t]);
        free(r->g[t]);
        free(r->master[t]);
    }
}

static int host_unit_of(const host_spec *s, int t, size_t i) {
    return s->desc[t].unit + (int)(i / s->desc[t].numel);
}

/* Adds one micro-step's gradient of one rank, use by use, where backward would. */
static float host_gradient(const host_spec *s, float sum, int step, int micro, int rank, int t,
                           size_t i) {
    if (host_unit_of(s, t, i) == s->silent_unit) return sum;
    const float g = host_scale(s) * host_value(s, 1, step, micro, rank, t, i);
    const int uses = s->desc[t].flags & ZERO_KEEP ? 1 : host_uses(s, host_unit_of(s, t, i));
    for (int k = 0; k < uses; k++) sum = host_round(host_grad_type(s), sum + g);
    return sum;
}

/* The sum over ranks as the plugin defines it: inside nodes in rank order, then over nodes. */
static float host_sum(const host_spec *s, const float *by_rank) {
    const int size = s->node_size ? s->node_size : s->nranks,
              last = s->reversed ? s->nranks - 1 : 0;
    float total = 0;
    for (int node = 0; node * size < s->nranks; node++) {
        float sum = by_rank[abs(last - node * size)];
        for (int r = 1; r < size; r++) sum += by_rank[abs(last - node * size - r)];
        total = node ? total + sum : sum;
    }
    return total;
}

/* Of shard groups (cfg.shard_ranks, here too), whose ranks are added in order: each adds up its
   micro-steps, then the groups are summed, and what comes of it is divided. */
static float host_sharded_gradient(const host_spec *s, int step, int t, size_t i) {
    const int size = s->shard_ranks ? s->shard_ranks : s->nranks;
    const float scale = 1.0f / (float)s->nranks;
    float total = 0;
    for (int group = 0; group * size < s->nranks; group++) {
        float acc = 0;
        for (int micro = 0; micro < s->micro_steps; micro++) {
            float sum = 0;
            for (int r = group * size; r < (group + 1) * size; r++) {
                const float g = host_gradient(s, 0, step, micro, r, t, i);
                sum = r == group * size ? g : sum + g;
            }
            acc = micro ? acc + sum : sum;
        }
        total = group ? total + acc : acc;
    }
    return host_round(host_grad_type(s), scale * total);
}

/* Scaled, as it is stored after reduction. */
static float host_mean_gradient(const host_spec *s, int sharded, int step, int t, size_t i) {
    float local[64], acc = 0;
    const float scale = 1.0f / (float)s->nranks;
    const zero_type type = host_grad_type(s);
    const int collects = !sharded && type != ZERO_F32;
    if (sharded && s->shard_ranks && s->shard_ranks < s->nranks)
        return host_sharded_gradient(s, step, t, i);
    memset(local, 0, sizeof local);
    for (int micro = 0; micro < s->micro_steps; micro++) {
        for (int r = 0; r < s->nranks; r++) {
            const float g =
                host_gradient(s, sharded || collects ? 0 : local[r], step, micro, r, t, i);
            local[r] = collects && micro ? local[r] + g : g;
        }
        if (sharded) acc = micro ? acc + scale * host_sum(s, local) : scale * host_sum(s, local);
    }
    if (sharded) return host_round(type, acc);
    for (int r = 0; r < s->nranks; r++) local[r] = host_round(type, local[r]);
    return host_round(type, scale * host_sum(s, local));
}

/* AdamW as the header states it, in f32. */
typedef struct host_adamw {
    float beta1, beta2, ratio, eps; /* the last two: with the corrections of step `steps` */
} host_adamw;
__attribute__((unused)) static host_adamw host_adamw_at(const zero_hyper *a, int steps) {
    const double root = sqrt(1.0 - pow((double)a->beta2, steps));
    const double ratio = root / (1.0 - pow((double)a->beta1, steps));
    return (host_adamw){a->beta1, a->beta2, (float)ratio, a->eps * (float)root};
}
__attribute__((unused)) static void host_adamw_step(const host_adamw *a, float lr, float decay,
                                                    float g, float *p, float *m, float *v) {
    *m = a->beta1 * *m + (1 - a->beta1) * g;
    *v = a->beta2 * *v + (1 - a->beta2) * g * g;
    *p -= lr * decay * *p + lr * a->ratio * (*m / (sqrtf(*v) + a->eps));
}

/* `clip`: what the gradient is multiplied by besides 1 / scale. */
__attribute__((unused)) static void host_reference_step(host_reference *r, const host_spec *s,
                                                        int sharded, int step, double clip) {
    const zero_hyper *a = &s->adamw;
    const float factor = (float)(clip / (double)host_scale(s));
    const host_adamw now = host_adamw_at(a, ++r->steps);
    for (int t = 0; t < s->ntensors; t++) {
        const float lr = a->lr * host_factor(s, t, 0);
        const float decay =
            s->desc[t].flags & ZERO_NO_DECAY ? 0 : a->weight_decay * host_factor(s, t, 1);
        for (size_t i = 0; i < host_numel(s, t); i++) {
            if (host_stays(s, t, i)) continue;
            const float scaled = host_mean_gradient(s, sharded, step, t, i);
            r->g[t][i] = scaled * (1.0f / host_scale(s));
            host_adamw_step(&now, lr, decay, scaled * factor, &r->master[t][i], &r->m[t][i],
                            &r->v[t][i]);
            r->p[t][i] = host_round_weight(s, r->master[t][i]);
        }
    }
}

__attribute__((unused)) static double host_reference_norm(const host_spec *s, int sharded,
                                                          int step) {
    double sum = 0;
    for (int t = 0; t < s->ntensors; t++)
        for (size_t i = 0; i < host_numel(s, t); i++) {
            if (host_stays(s, t, i)) continue;
            const double g = (double)host_mean_gradient(s, sharded, step, t, i);
            sum += g * g;
        }
    return sqrt(sum) / (double)host_scale(s);
}

/* ---- the host on the plugin ---- */

typedef struct host_run {
    const host_spec *spec;
    test_rank *rank;
    zero_ctx *z;
    host_pointers params, grads;
    void *slot_p[HOST_TENSORS][64], *slot_g[HOST_TENSORS][64]; /* [tensor][layer] */
    const host_reference *reference; /* what parameters must be, or NULL */
    int step, micro;
    float scale; /* of the loss */
} host_run;

#define HOST_TRY(run, call)                                                                        \
    do {                                                                                           \
        const zero_result host_r = (call);                                                         \
        if (host_r) {                                                                              \
            test_rank_fail((run)->rank, "%s: %s", #call, zero_last_error((run)->z));               \
            return 0;                                                                              \
        }                                                                                          \
    } while (0)

static int host_in_unit(const zero_tensor_desc *d, int unit) {
    return unit >= d->unit && unit < d->unit + (d->layers ? d->layers : 1);
}

static char *host_tensor(host_run *h, int t, int layer, int grad) {
    const zero_type type = grad ? host_grad_type(h->spec) : h->spec->cfg.type;
    if (h->spec->slots) return (char *)(grad ? h->slot_g[t][layer] : h->slot_p[t][layer]);
    return (grad ? h->grads.field[t] : h->params.field[t])
           + (size_t)layer * h->spec->desc[t].numel * zero_type_bytes(type);
}

/* The unit's parameters, as the host sees them through its pointers, are the reference's. */
static int host_look(host_run *h, int unit) {
    const host_spec *s = h->spec;
    for (int t = 0; t < s->ntensors && h->reference; t++) {
        const zero_tensor_desc *d = &s->desc[t];
        if (!host_in_unit(d, unit)) continue;
        const size_t at = (size_t)(unit - d->unit) * d->numel;
        const char *memory = host_tensor(h, t, unit - d->unit, 0);
        for (size_t i = 0; i < d->numel; i++) {
            const float seen = host_get(memory, s->cfg.type, i);
            if (memcmp(&seen, &h->reference->p[t][at + i], sizeof seen)) {
                test_rank_fail(h->rank, "step %d, unit %d, %s[%zu] is %.9g, expected %.9g", h->step,
                               unit, d->name, at + i, (double)seen,
                               (double)h->reference->p[t][at + i]);
                return 0;
            }
        }
    }
    return 1;
}

static int host_forward(host_run *h, int unit) {
    HOST_TRY(h, zero_forward_begin(h->z, unit, &h->params));
    if (!host_look(h, unit)) return 0;
    HOST_TRY(h, zero_forward_end(h->z, unit));
    return 1;
}

static int host_backward(host_run *h, int unit, int with_params, int first) {
    const host_spec *s = h->spec;
    HOST_TRY(h, zero_backward_begin(h->z, unit, with_params ? &h->params : NULL, &h->grads));
    if (with_params && !host_look(h, unit)) return 0;
    if (s->recompute && with_params && !host_forward(h, unit)) return 0;
    for (int t = 0; t < s->ntensors; t++) {
        const zero_tensor_desc *d = &s->desc[t];
        if (!host_in_unit(d, unit) || ((d->flags & ZERO_KEEP) && !first)) continue;
        if (host_frozen(s, t, (size_t)(unit - d->unit))) {
            const char *none = s->slots ? (char *)h->slot_g[t][unit - d->unit] : h->grads.field[t];
            if (none) test_rank_fail(h->rank, "unit %d: %s has a gradient", unit, d->name);
            continue;
        }
        char *g = host_tensor(h, t, unit - d->unit, 1);
        const zero_type type = host_grad_type(s);
        const size_t at = (size_t)(unit - d->unit) * d->numel;
        const int store = (d->flags & ZERO_OVERWRITTEN) && first;
        const int leaf = h->rank->rank * s->leaves + h->micro, rank = s->leaves ? 0 : h->rank->rank;
        for (size_t i = 0; i < d->numel; i++) {
            const float x = h->scale * host_value(s, 1, h->step, leaf, rank, t, at + i);
            host_put(g, type, i, store ? x : host_get(g, type, i) + x);
        }
        if (s->poison) s->poison(h, t, at, g);
    }
    HOST_TRY(h, zero_backward_end(h->z, unit));
    return 1;
}

static int host_train_pass(host_run *h) {
    const host_spec *s = h->spec;
    HOST_TRY(h, zero_pass_begin(h->z, ZERO_TRAIN, h->micro, s->micro_steps));
    h->scale = zero_loss_scale(h->z);
    for (int u = 0; u < s->units; u++)
        if (!host_forward(h, u)) return 0;
    for (int u = 0; u < s->units; u++)
        if (host_uses(s, u) > 1 && !host_forward(h, u)) return 0;
    for (int u = s->units - 1; u >= 0; u--)
        for (int k = 0; k + 1 < host_uses(s, u) && u != s->silent_unit; k++)
            if (!host_backward(h, u, 1, k == 0)) return 0;
    for (int u = s->units - 1; u >= 0; u--)
        if (u != s->silent_unit && !host_backward(h, u, host_uses(s, u) == 1, host_uses(s, u) == 1))
            return 0;
    HOST_TRY(h, zero_pass_end(h->z));
    return 1;
}

/* All passes of a step, its reduction and its update. */
__attribute__((unused)) static int host_train_step(host_run *h) {
    for (h->micro = 0; h->micro < h->spec->micro_steps; h->micro++)
        if (!host_train_pass(h)) return 0;
    HOST_TRY(h, zero_reduce(h->z));
    HOST_TRY(h, zero_step(h->z, &h->spec->adamw));
    h->step++;
    return 1;
}

__attribute__((unused)) static int host_evaluate(host_run *h) {
    HOST_TRY(h, zero_pass_begin(h->z, ZERO_EVAL, 0, 1));
    for (int u = 0; u < h->spec->units; u++)
        if (!host_forward(h, u)) return 0;
    HOST_TRY(h, zero_pass_end(h->z));
    return 1;
}

/* Writes in pieces that cut across layers and shards. */
static int host_fill(host_run *h) {
    const host_spec *s = h->spec;
    for (int t = 0; t < s->ntensors; t++) {
        const size_t n = host_numel(s, t), piece = n / 3 + 1;
        float *values = (float *)malloc(piece * sizeof *values);
        for (size_t at = 0; at < n; at += piece) {
            const size_t count = at + piece < n ? piece : n - at;
            for (size_t i = 0; i < count; i++) values[i] = host_value(s, 0, 0, 0, 0, t, at + i);
            const zero_result r =
                zero_write_tensor(h->z, s->desc[t].name, ZERO_PARAMETER, at, count, values);
            if (r) test_rank_fail(h->rank, "%s", zero_last_error(h->z));
        }
        free(values);
    }
    return !h->rank->failed;
}

/* A plugin whose table has no pointers takes slots one by one. */
static inline int host_open_slots(host_run *h) {
#ifndef ZERO_ARRAY
    const host_spec *s = h->spec;
    for (int t = 0; t < s->ntensors && s->slots; t++)
        for (int l = 0; l < (s->desc[t].layers ? s->desc[t].layers : 1); l++)
            HOST_TRY(h, zero_slot(h->z, s->desc[t].name, l, &h->slot_p[t][l], &h->slot_g[t][l]));
#else
    (void)h;
#endif
    return 1;
}

/* Makes the arrays that the plugin will adopt: one per tensor, or with slots one per layer. */
static inline void host_make_arrays(host_run *h) {
    const host_spec *s = h->spec;
    for (int t = 0; t < s->ntensors; t++) {
        const size_t numel = s->desc[t].numel, layers = host_numel(s, t) / numel;
        const size_t arrays = s->slots ? layers : 1, each = host_numel(s, t) / arrays;
        for (size_t a = 0; a < arrays; a++) {
            float *array = (float *)malloc(each * sizeof *array);
            for (size_t i = 0; i < each; i++) array[i] = host_value(s, 0, 0, 0, 0, t, a * each + i);
            if (s->slots)
                h->slot_p[t][a] = array;
            else
                h->params.field[t] = (char *)array;
        }
    }
}

/* Announces all tensors to a context, with the pointers of h. */
static inline zero_result host_announce_all(host_run *h, zero_ctx *z) {
    const host_spec *s = h->spec;
    for (int t = 0; t < s->ntensors; t++) {
        zero_tensor_desc d = s->desc[t];
        zero_plan early; /* of some of the tensors: what it was made of must be gone in the next */
        if (t == s->ntensors - 1) (void)zero_query_plan(z, &early);
        d.flags |= s->slots ? ZERO_BY_SLOT : 0;
        d.field = (size_t)t * sizeof(char *);
#ifdef ZERO_ARRAY /* same.sh also compiles this file with plugins whose rows had no pointers */
        if (s->slots) d.param = h->slot_p[t], d.grad = h->slot_g[t];
#endif
        ZERO_TRY(host_announce(z, s, t, &d));
    }
    return ZERO_OK;
}

/* The settings of the context. */
static inline zero_config host_config(const host_spec *s) {
    zero_config cfg = s->cfg;
    cfg.micro_steps = s->micro_steps;
    cfg.log = test_quiet;
    if (host_grad_type(s) == ZERO_F32) cfg.grads = ZERO_GRAD_F32;
    return cfg;
}

static inline int host_open(host_run *h, const host_spec *s, test_rank *rank) {
    zero_comm comm = test_comm(rank);
    zero_config cfg = host_config(s);
    memset(h, 0, sizeof *h);
    h->spec = s;
    h->rank = rank;
    if (s->adopts && !cfg.grads) cfg.grads = ZERO_GRAD_AS_TYPE; /* the arrays are F32 */
    HOST_TRY(h, zero_create(&h->z, &cfg, &comm));
    if (s->adopts) host_make_arrays(h);
    HOST_TRY(h, host_announce_all(h, h->z));
    if (s->adopts) {
        HOST_TRY(h, zero_adopt(h->z, &h->params, &h->grads, ZERO_F32, free));
        return 1;
    }
    HOST_TRY(h, zero_build(h->z));
    HOST_TRY(h, zero_bind(h->z, &h->params, &h->grads));
    return host_open_slots(h) && host_fill(h);
}

/* Reads a whole tensor in pieces and compares it, bit by bit. */
__attribute__((unused)) static int host_compare(host_run *h, zero_kind kind, float *const *expected,
                                                const char *what) {
    const host_spec *s = h->spec;
    const int weights = kind == ZERO_PARAMETER || kind == ZERO_MASTER;
    for (int t = 0; t < s->ntensors && !s->no_state; t++) {
        if (host_all_frozen(s, t) && !weights) continue; /* it has none */
        const size_t n = host_numel(s, t);
        float *seen = (float *)calloc(n, sizeof *seen);
        const zero_result a = zero_read_tensor(h->z, s->desc[t].name, kind, 0, n / 2, seen);
        const zero_result b =
            a ? a : zero_read_tensor(h->z, s->desc[t].name, kind, n / 2, n - n / 2, seen + n / 2);
        size_t i = 0;
        while (!b && i < n && !memcmp(&seen[i], &expected[t][i], sizeof *seen)) i++;
        if (b)
            test_rank_fail(h->rank, "%s", zero_last_error(h->z));
        else if (i < n)
            test_rank_fail(h->rank, "step %d: %s of %s[%zu] is %.9g, expected %.9g", h->step, what,
                           s->desc[t].name, i, (double)seen[i], (double)expected[t][i]);
        free(seen);
        if (h->rank->failed) return 0;
    }
    return 1;
}

__attribute__((unused)) static uint64_t host_hash_floats(uint64_t hash, const float *x, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        hash = test_mix(hash ^ bits);
    }
    return hash;
}

/* The reference's weights, as stored and in f32, m and v. */
__attribute__((unused)) static uint64_t host_hash_reference(uint64_t hash, const host_reference *r,
                                                            const host_spec *s) {
    for (int t = 0; t < s->ntensors; t++) {
        float *const kinds[] = {r->p[t], r->m[t], r->v[t], r->master[t]};
        for (int k = 0; k < (s->cfg.type == ZERO_F32 ? 3 : 4); k++)
            hash = host_hash_floats(hash, kinds[k], host_numel(s, t));
    }
    return hash;
}

/* A 64-bit hash of all weights, m and v. */
__attribute__((unused)) static uint64_t host_hash(host_run *h) {
    const host_spec *s = h->spec;
    uint64_t hash = 0;
    for (int t = 0; t < s->ntensors; t++)
        for (int kind = 0; kind < ZERO_KIND_COUNT; kind++) {
            const size_t n = host_numel(s, t);
            if (kind == ZERO_GRADIENT || (kind == ZERO_MASTER && s->cfg.type == ZERO_F32)) continue;
            if (kind == ZERO_MOMENT_2 && !host_two(s, t)) continue;
            if (host_all_frozen(s, t) && kind != ZERO_PARAMETER) continue;
            float *seen = (float *)calloc(n, sizeof *seen);
            if (zero_read_tensor(h->z, s->desc[t].name, (zero_kind)kind, 0, n, seen))
                test_rank_fail(h->rank, "%s", zero_last_error(h->z));
            hash = host_hash_floats(hash, seen, n);
            free(seen);
        }
    return hash;
}
#endif

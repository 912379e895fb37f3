/* host_own.h - what the hosts of our own have in common. A host is a small model with its own
   forward and backward, written as if the plugin were not there, but for the hooks. The same code
   trains twice: without the plugin (`z` NULL: every tensor whole, ranks one after another, their
   gradients summed in rank order, AdamW as the header states it) and with it, at every stage, on 1,
   2 and 3 ranks, as threads and as processes. Losses, weights and moments must be the same bits.
   C11 and C++17. */
#ifndef TEST_HOST_OWN_H
#define TEST_HOST_OWN_H

#include "../shared/harness.h"
#include <math.h>

#define OWN_TENSORS 12
#define OWN_RANKS   3
#define OWN_STEPS   12

struct own_run;

/* How a tensor takes part, beside its description. */
enum {
    OWN_TRAINED = 0,
    OWN_FROZEN,    /* group factors 0 and 0: keeps its bits */
    OWN_UNREACHED, /* no gradient reaches it: only weight decay moves it */
    OWN_UNDECAYED  /* nor does that: group factors 1 and 0 */
};

typedef struct own_host {
    const char *name;
    int ntensors, micro_steps;
    zero_tensor_desc desc[OWN_TENSORS];
    int part[OWN_TENSORS];
    size_t state_bytes; /* the host's own structs; they begin with those of base pointers */
    size_t grads_at;    /* offsetof the struct of gradients; parameters are at 0 */
    /* Where the host keeps its pointer to a layer of a tensor; NULL: in structs of base pointers */
    float **(*slot)(void *state, int tensor, int layer, int grad);
    void *(*open)(void); /* NULL: state_bytes of zeros */
    void (*close)(void *state);
    double (*pass)(struct own_run *r, void *state);     /* forward, backward; the loss */
    double (*evaluate)(struct own_run *r, void *state); /* forward alone; NULL: none */
} own_host;

/* One rank's training, or the one without ranks. */
typedef struct own_run {
    const own_host *host;
    zero_ctx *z; /* NULL: without the plugin */
    void *state;
    int rank, step, micro;
    float scale; /* of the loss */
} own_run;

/* Training without the plugin, and what it gave. */
typedef struct own_whole {
    const own_host *host;
    int nranks;
    float *start[OWN_TENSORS], *p[OWN_TENSORS], *m[OWN_TENSORS], *v[OWN_TENSORS];
    float *g[OWN_TENSORS][OWN_RANKS]; /* of one pass */
    float *mean[OWN_TENSORS];         /* of the step so far */
    double loss[OWN_STEPS][4 /* micro */][OWN_RANKS];
    double seen[OWN_STEPS][OWN_RANKS]; /* by evaluate, after the step */
} own_whole;

__attribute__((unused)) static const zero_hyper own_hyper = {0.02f, 0.9f, 0.95f, 1e-8f, 0.1f, 0};

/* A host that is refused ends the test: there is nothing to go on with. */
__attribute__((unused)) static void own_must(const own_run *r, zero_result result,
                                             const char *call) {
    if (result == ZERO_OK) return;
    fprintf(stderr, "FAILED: %s, step %d: %s: %s\n", r->host->name, r->step, call,
            zero_last_error(r->z));
    printf("0 passed, 1 failed\n");
    fflush(NULL);
    _exit(1);
}

/* ---- the hooks, as hosts call them ---- */

#define OWN_HOOK(r, call)                                                                          \
    if ((r)->z) own_must(r, call, #call)

static void *own_grads(const own_run *r) { return (char *)r->state + r->host->grads_at; }

__attribute__((unused)) static void own_forward_begin(own_run *r, int unit) {
    OWN_HOOK(r, zero_forward_begin(r->z, unit, r->state));
}
__attribute__((unused)) static void own_forward_end(own_run *r, int unit) {
    OWN_HOOK(r, zero_forward_end(r->z, unit));
}
/* reads: backward reads the unit's parameters, and does not only write gradients */
__attribute__((unused)) static void own_backward_begin(own_run *r, int unit, int reads) {
    OWN_HOOK(r, zero_backward_begin(r->z, unit, reads ? r->state : NULL, own_grads(r)));
}
__attribute__((unused)) static void own_backward_end(own_run *r, int unit) {
    OWN_HOOK(r, zero_backward_end(r->z, unit));
}

/* ---- numbers ---- */

/* -1..1, of (seed, a, b, c) alone */
static float own_value(uint64_t seed, uint64_t a, uint64_t b, uint64_t c) {
    const uint64_t h = test_mix(seed ^ test_mix(a * 1000003u + b * 7919u + test_mix(c)));
    return (float)((double)(h >> 40) / (double)(1 << 23) - 1.0);
}

static int own_layers(const own_host *h, int t) {
    return h->desc[t].layers ? h->desc[t].layers : 1;
}
static size_t own_numel(const own_host *h, int t) {
    return h->desc[t].numel * (size_t)own_layers(h, t);
}
/* Of a tensor's learning rate (what 0) and weight decay (what 1). */
static float own_factor(const own_host *h, int t, int what) {
    if (h->part[t] == OWN_FROZEN) return 0;
    return what && h->part[t] == OWN_UNDECAYED ? 0.0f : 1.0f;
}
static int own_micro_steps(const own_host *h) { return h->micro_steps ? h->micro_steps : 1; }

/* out[n][outs] = x[n][ins] w[outs][ins]^T + b[outs]; b may be NULL */
__attribute__((unused)) static void own_linear(float *out, const float *x, const float *w,
                                               const float *b, int n, int ins, int outs) {
    for (int i = 0; i < n; i++)
        for (int o = 0; o < outs; o++) {
            float sum = b ? b[o] : 0;
            for (int k = 0; k < ins; k++) sum += x[i * ins + k] * w[o * ins + k];
            out[i * outs + o] = sum;
        }
}
/* Adds to dx[n][ins], dw[outs][ins] and db[outs], each of which may be NULL. */
__attribute__((unused)) static void own_linear_backward(float *dx, float *dw, float *db,
                                                        const float *dout, const float *x,
                                                        const float *w, int n, int ins, int outs) {
    for (int i = 0; i < n; i++)
        for (int o = 0; o < outs; o++) {
            const float d = dout[i * outs + o];
            for (int k = 0; k < ins && dx; k++) dx[i * ins + k] += d * w[o * ins + k];
            for (int k = 0; k < ins && dw; k++) dw[o * ins + k] += d * x[i * ins + k];
            if (db) db[o] += d;
        }
}

/* out = x / rms(x) g, row by row (Zhang and Sennrich 2019) */
__attribute__((unused)) static void own_rmsnorm(float *out, const float *x, const float *g, int n,
                                                int c) {
    for (int i = 0; i < n; i++, x += c, out += c) {
        float sum = 0;
        for (int k = 0; k < c; k++) sum += x[k] * x[k];
        const float s = 1 / sqrtf(sum / (float)c + 1e-5f);
        for (int k = 0; k < c; k++) out[k] = x[k] * s * g[k];
    }
}
__attribute__((unused)) static void own_rmsnorm_backward(float *dx, float *dg, const float *dout,
                                                         const float *x, const float *g, int n,
                                                         int c) {
    for (int i = 0; i < n; i++, x += c, dout += c, dx += c) {
        float sum = 0, dot = 0;
        for (int k = 0; k < c; k++) sum += x[k] * x[k];
        const float s = 1 / sqrtf(sum / (float)c + 1e-5f);
        for (int k = 0; k < c; k++) dot += dout[k] * g[k] * x[k];
        for (int k = 0; k < c; k++) dx[k] += s * dout[k] * g[k] - x[k] * s * s * s * dot / (float)c;
        for (int k = 0; k < c && dg; k++) dg[k] += dout[k] * x[k] * s;
    }
}

/* Mean cross entropy of n rows; logits[n][v] become their gradient, times scale. */
__attribute__((unused)) static double own_cross_entropy(float *logits, const int *target, int n,
                                                        int v, float scale) {
    double loss = 0;
    for (int i = 0; i < n; i++, logits += v) {
        float top = logits[0], sum = 0;
        for (int k = 1; k < v; k++) top = logits[k] > top ? logits[k] : top;
        for (int k = 0; k < v; k++) sum += expf(logits[k] - top);
        loss -= (double)(logits[target[i]] - top - logf(sum)) / n;
        for (int k = 0; k < v; k++)
            logits[k] =
                (expf(logits[k] - top) / sum - (k == target[i] ? 1.0f : 0.0f)) * (scale / (float)n);
    }
    return loss;
}

/* Half the mean square of x - target; d becomes its gradient, times scale. */
__attribute__((unused)) static double own_square(float *d, const float *x, const float *target,
                                                 int n, float scale) {
    double loss = 0;
    for (int i = 0; i < n; i++) {
        const float e = x[i] - target[i];
        loss += 0.5 * (double)e * (double)e / n;
        d[i] = e * (scale / (float)n);
    }
    return loss;
}

/* ---- training without the plugin ---- */

static void *own_open(const own_host *h) {
    void *state = h->open ? h->open() : calloc(1, h->state_bytes);
    if (!state) abort();
    return state;
}
static void own_close(const own_host *h, void *state) {
    if (h->close)
        h->close(state);
    else
        free(state);
}

/* Points the host at whole arrays, type-major. */
static void own_point(const own_run *r, int t, float *p, float *g) {
    const own_host *h = r->host;
    const size_t field = h->desc[t].field;
    if (!h->slot) {
        memcpy((char *)r->state + field, &p, sizeof p);
        memcpy((char *)own_grads(r) + field, &g, sizeof g);
    }
    for (int l = 0; l < own_layers(h, t) && h->slot; l++) {
        *h->slot(r->state, t, l, 0) = p + (size_t)l * h->desc[t].numel;
        *h->slot(r->state, t, l, 1) = g + (size_t)l * h->desc[t].numel;
    }
}

static float *own_zeros(size_t n) {
    float *x = (float *)calloc(n, sizeof *x);
    if (!x) abort();
    return x;
}

static void own_whole_open(own_whole *w, const own_host *h, int nranks) {
    memset(w, 0, sizeof *w);
    w->host = h;
    w->nranks = nranks;
    for (int t = 0; t < h->ntensors; t++) {
        const size_t n = own_numel(h, t);
        w->start[t] = own_zeros(n);
        w->p[t] = own_zeros(n);
        w->m[t] = own_zeros(n);
        w->v[t] = own_zeros(n);
        w->mean[t] = own_zeros(n);
        for (int r = 0; r < nranks; r++) w->g[t][r] = own_zeros(n);
        for (size_t i = 0; i < n; i++)
            w->start[t][i] = h->desc[t].flags & ZERO_ONE_D
                                 ? 1 + 0.1f * own_value(5, (uint64_t)t, i, 0)
                                 : 0.5f * own_value(5, (uint64_t)t, i, 0);
        memcpy(w->p[t], w->start[t], n * sizeof(float));
    }
}
static void own_whole_close(own_whole *w) {
    for (int t = 0; t < w->host->ntensors; t++) {
        free(w->start[t]);
        free(w->p[t]);
        free(w->m[t]);
        free(w->v[t]);
        free(w->mean[t]);
        for (int r = 0; r < w->nranks; r++) free(w->g[t][r]);
    }
}

/* The host as `rank`: cleared gradients in w->g, pointers to whole arrays. */
static own_run own_whole_run(own_whole *w, void *state, int rank, int step, int micro) {
    const own_run r = {
        w->host, NULL, state, rank, step, micro, 1.0f / (float)own_micro_steps(w->host)};
    for (int t = 0; t < w->host->ntensors; t++) {
        memset(w->g[t][rank], 0, own_numel(w->host, t) * sizeof(float));
        own_point(&r, t, w->p[t], w->g[t][rank]);
    }
    return r;
}
static double own_whole_pass(own_whole *w, void *state, int rank, int step, int micro) {
    own_run r = own_whole_run(w, state, rank, step, micro);
    return w->host->pass(&r, state);
}
static void own_whole_evaluate(own_whole *w, void *state, int step) {
    for (int rank = 0; rank < w->nranks && w->host->evaluate; rank++) {
        own_run r = own_whole_run(w, state, rank, step, 0);
        w->seen[step][rank] = w->host->evaluate(&r, state);
    }
}

/* Adds the mean over ranks: summed in f32 in rank order, times 1/N. */
static void own_whole_mean(own_whole *w, int micro) {
    const float scale = 1.0f / (float)w->nranks;
    for (int t = 0; t < w->host->ntensors; t++)
        for (size_t i = 0; i < own_numel(w->host, t); i++) {
            float sum = w->g[t][0][i];
            for (int r = 1; r < w->nranks; r++) sum += w->g[t][r][i];
            w->mean[t][i] = micro ? w->mean[t][i] + scale * sum : scale * sum;
        }
}

/* AdamW as the header states it, in f32. */
static void own_whole_update(own_whole *w, int steps) {
    const zero_hyper *a = &own_hyper;
    const double root = sqrt(1.0 - pow((double)a->beta2, (double)steps));
    const float ratio = (float)(root / (1.0 - pow((double)a->beta1, (double)steps)));
    const float eps = a->eps * (float)root, b1 = a->beta1, b2 = a->beta2;
    for (int t = 0; t < w->host->ntensors; t++) {
        const float lr = a->lr * own_factor(w->host, t, 0);
        const int plain = (w->host->desc[t].flags & ZERO_NO_DECAY) != 0;
        const float decay = plain ? 0 : lr * (a->weight_decay * own_factor(w->host, t, 1));
        for (size_t i = 0; i < own_numel(w->host, t); i++) {
            const float g = w->mean[t][i];
            const float m = w->m[t][i] = b1 * w->m[t][i] + (1 - b1) * g;
            const float v = w->v[t][i] = b2 * w->v[t][i] + (1 - b2) * g * g;
            w->p[t][i] -= decay * w->p[t][i] + lr * ratio * (m / (sqrtf(v) + eps));
        }
    }
}

/* Trains; 1: the loss fell. */
static int own_whole_train(own_whole *w) {
    void *state = own_open(w->host);
    double first = 0, last = 0;
    for (int step = 0; step < OWN_STEPS; step++) {
        for (int micro = 0; micro < own_micro_steps(w->host); micro++) {
            for (int r = 0; r < w->nranks; r++)
                w->loss[step][micro][r] = own_whole_pass(w, state, r, step, micro);
            own_whole_mean(w, micro);
        }
        own_whole_update(w, step + 1);
        own_whole_evaluate(w, state, step);
        if (step == 0) first = w->loss[0][0][0];
        last = w->loss[step][0][0];
    }
    own_close(w->host, state);
    return last < 0.9 * first;
}

/* ---- training with it ---- */

typedef struct own_job {
    const own_whole *whole;
    zero_config cfg;
} own_job;

static void own_build(own_run *r) {
    const own_host *h = r->host;
    for (int t = 0; t < h->ntensors; t++) {
        zero_tensor_desc d = h->desc[t];
        if (h->slot) {
            d.param = h->slot(r->state, t, 0, 0);
            d.grad = h->slot(r->state, t, 0, 1);
            if (own_layers(h, t) > 1)
                d.stride = (size_t)((char *)h->slot(r->state, t, 1, 0) - (char *)d.param);
        }
        const float lr = own_factor(h, t, 0), decay = own_factor(h, t, 1);
        d.lr_factor = lr > 0 ? lr : ZERO_NONE;
        d.decay_factor = decay > 0 ? decay : ZERO_NONE;
        own_must(r, zero_tensor(r->z, &d), "zero_tensor");
    }
    own_must(r, zero_build(r->z), "zero_build");
    own_must(r, zero_bind(r->z, r->state, own_grads(r)), "zero_bind");
}

/* 1: what the plugin has of this kind is what `expected` says, bit by bit. */
static int own_same(const own_run *r, zero_kind kind, int t, const float *expected) {
    const size_t n = own_numel(r->host, t);
    float *seen = own_zeros(n);
    own_must(r, zero_read_tensor(r->z, r->host->desc[t].name, kind, 0, n, seen),
             "zero_read_tensor");
    const int same = !memcmp(seen, expected, n * sizeof *seen);
    free(seen);
    return same;
}

static void own_compare(const own_run *r, test_rank *rank, const own_whole *w) {
    for (int t = 0; t < r->host->ntensors; t++) {
        const char *name = r->host->desc[t].name;
        const int part = r->host->part[t];
        /* every rank takes part in each read, whatever the last one showed */
        const int p = own_same(r, ZERO_PARAMETER, t, w->p[t]);
        const int m = own_same(r, ZERO_MOMENT_1, t, w->m[t]);
        const int v = own_same(r, ZERO_MOMENT_2, t, w->v[t]);
        const int still = own_same(r, ZERO_PARAMETER, t, w->start[t]);
        if (!p || !m || !v)
            test_rank_fail(rank, "%s: parameters%s, m%s, v%s", name, p ? "" : " differ",
                           m ? "" : " differ", v ? "" : " differ");
        if (still != (part == OWN_FROZEN || part == OWN_UNDECAYED))
            test_rank_fail(rank, "%s %s", name, still ? "did not move" : "moved");
    }
}

static void own_step(own_run *r, test_rank *rank, const own_whole *w) {
    const int micro_steps = own_micro_steps(r->host);
    for (r->micro = 0; r->micro < micro_steps; r->micro++) {
        const double expected = w->loss[r->step][r->micro][r->rank];
        own_must(r, zero_pass_begin(r->z, ZERO_TRAIN, r->micro, micro_steps), "zero_pass_begin");
        r->scale = zero_loss_scale(r->z) / (float)micro_steps;
        const double loss = r->host->pass(r, r->state);
        own_must(r, zero_pass_end(r->z), "zero_pass_end");
        if (memcmp(&loss, &expected, sizeof loss))
            test_rank_fail(rank, "step %d: loss is %.17g, expected %.17g", r->step, loss, expected);
    }
    own_must(r, zero_reduce(r->z), "zero_reduce");
    own_must(r, zero_step(r->z, &own_hyper), "zero_step");
}

/* Evaluates on every rank; what the first one sees is told to all, as a drawn token would be. */
static void own_evaluate(own_run *r, test_rank *rank, const own_whole *w) {
    const double *expected = w->seen[r->step];
    r->micro = 0;
    own_must(r, zero_pass_begin(r->z, ZERO_EVAL, 0, 1), "zero_pass_begin");
    double seen = r->host->evaluate(r, r->state);
    own_must(r, zero_pass_end(r->z), "zero_pass_end");
    if (memcmp(&seen, &expected[r->rank], sizeof seen))
        test_rank_fail(rank, "step %d: evaluation sees %.17g, expected %.17g", r->step, seen,
                       expected[r->rank]);
    own_must(r, zero_broadcast(r->z, &seen, sizeof seen, 0), "zero_broadcast");
    if (memcmp(&seen, &expected[0], sizeof seen))
        test_rank_fail(rank, "step %d: not told what rank 0 saw", r->step);
}

static void own_rank(test_rank *rank) {
    const own_job *job = (const own_job *)rank->arg;
    const own_whole *w = job->whole;
    const zero_comm comm = test_comm(rank);
    own_run r = {w->host, NULL, own_open(w->host), rank->rank, 0, 0, 1};
    own_must(&r, zero_create(&r.z, &job->cfg, &comm), "zero_create");
    own_build(&r);
    for (int t = 0; t < w->host->ntensors; t++)
        own_must(&r,
                 zero_write_tensor(r.z, w->host->desc[t].name, ZERO_PARAMETER, 0,
                                   own_numel(w->host, t), w->start[t]),
                 "zero_write_tensor");
    for (; r.step < OWN_STEPS; r.step++) {
        own_step(&r, rank, w);
        if (w->host->evaluate) own_evaluate(&r, rank, w);
    }
    own_compare(&r, rank, w);
    zero_destroy(r.z);
    own_close(w->host, r.state);
}

/* ---- the test ---- */

/* The loss changes along a random direction as the gradient says: the host's backward is right. */
__attribute__((unused)) static int own_slope_fits(own_whole *w) {
    const double e = 1.0 / 1024;
    double slope = 0, loss[2] = {0, 0};
    void *state = own_open(w->host);
    (void)own_whole_pass(w, state, 0, 0, 0);
    for (int t = 0; t < w->host->ntensors; t++)
        for (size_t i = 0; i < own_numel(w->host, t) && w->host->part[t] == OWN_TRAINED; i++)
            slope += (double)w->g[t][0][i] * (double)own_value(9, (uint64_t)t, i, 0);
    for (int side = 0; side < 2; side++) {
        for (int t = 0; t < w->host->ntensors; t++)
            for (size_t i = 0; i < own_numel(w->host, t) && w->host->part[t] == OWN_TRAINED; i++)
                w->p[t][i] =
                    w->start[t][i] + (float)(side ? -e : e) * own_value(9, (uint64_t)t, i, 0);
        loss[side] = own_whole_pass(w, state, 0, 0, 0);
    }
    for (int t = 0; t < w->host->ntensors; t++)
        memcpy(w->p[t], w->start[t], own_numel(w->host, t) * sizeof(float));
    own_close(w->host, state);
    const double seen = (loss[0] - loss[1]) / (2 * e) / own_micro_steps(w->host);
    return fabs(seen - slope) < 0.01 * fabs(slope) + 1e-4;
}

typedef struct own_setting {
    int stage, no_mapping, prefetch;
    int64_t persistence;
    int no_overlap;
} own_setting;

/* Every stage, then what stage 3 can be told: copies instead of peers' memory, gathers one ahead,
   none or three ahead, nothing kept unsharded. */
static const own_setting own_settings[] = {
    {0, 0, 0, 0, 0},         {1, 0, 0, 0, 0},         {2, 0, 0, 0, 0},         {3, 0, 0, 0, 0},
    {3, 1, 0, ZERO_NONE, 0}, {3, 1, ZERO_NONE, 0, 1}, {3, 1, 3, ZERO_NONE, 0}, {2, 1, 0, 0, 1}};
enum { OWN_SETTINGS = (int)(sizeof own_settings / sizeof *own_settings) };

static void own_one(const own_whole *w, const own_setting *s, int processes) {
    own_job job;
    memset(&job, 0, sizeof job);
    job.whole = w;
    job.cfg.stage = s->stage;
    job.cfg.no_mapping = s->no_mapping;
    job.cfg.prefetch = s->prefetch;
    job.cfg.persistence_numel = s->persistence;
    job.cfg.no_overlap = s->no_overlap;
    job.cfg.threads = 1;
    job.cfg.micro_steps = own_micro_steps(w->host);
    job.cfg.accumulation = ZERO_ACCUMULATE_SHARDED; /* the same sums at every stage */
    job.cfg.timeout_s = 60;
    job.cfg.log = test_quiet;
    const int ok = processes ? test_processes(w->nranks, 0, own_rank, &job, 100)
                             : test_ranks(w->nranks, 0, own_rank, &job);
    test_check(ok, "%s: stage %d, %d %s, mapping %d, prefetch %d: %s", w->host->name, s->stage,
               w->nranks, processes ? "processes" : "threads", !s->no_mapping, s->prefetch,
               test_first);
}

__attribute__((unused)) static void own_test(const own_host *h) {
    for (int nranks = 1; nranks <= OWN_RANKS; nranks++) {
        own_whole w;
        own_whole_open(&w, h, nranks);
        test_check(own_slope_fits(&w), "%s: its gradient is not that of its loss", h->name);
        test_check(own_whole_train(&w), "%s: the loss does not fall", h->name);
        for (int i = 0; i < OWN_SETTINGS; i++)
            for (int processes = 0; processes < 2; processes++)
                own_one(&w, &own_settings[i], processes);
        own_whole_close(&w);
    }
}
#endif

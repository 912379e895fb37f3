/* test_codec.c [SEED [FOLDER]] - contexts whose numbers travel packed, against plain training that
   packs in the same places by plain_codec.h: the same bits at every setting that may change none.
 */
#include "plain_codec.h"

/* ---- contexts ---- */

/* What bits depend on. */
typedef struct codec_group {
    int nranks, node_size, shard_ranks, micro_steps, sharded, weights, gradients;
    float beta;
    int reset, bad, clip;
    zero_type type;
    zero_grad_type grads;
} codec_group;
/* What they do not. */
typedef struct codec_setting {
    int stage, no_overlap, bucket, prefetch, no_mapping, threads, tier, second_ranks;
} codec_setting;

enum { CODEC_STEPS = 4, CODEC_BAD = 1 };
static const zero_tensor_desc codec_tensors[] = {
    {"emb", 5003, .layers = 1},
    {"w", 1009, 4, .unit = 1},
    {"b", 33, 4, .unit = 1, .flags = ZERO_ONE_D | ZERO_NO_DECAY},
    {"v", 70, 1, .unit = 5, .flags = ZERO_ONE_D}, /* a unit of vectors */
    {"norm", 9, 3, .unit = 1, .flags = ZERO_KEEP | ZERO_ONE_D | ZERO_NO_DECAY},
    {"out", 300, 1, .unit = 6}};
enum { CODEC_TENSORS = sizeof codec_tensors / sizeof *codec_tensors, CODEC_UNITS = 7 };

typedef struct codec_run { /* in shared memory */
    host_spec spec;
    codec_group group;
    uint64_t hash[8];
    double norm[8][CODEC_STEPS];
    uint64_t sent[8];
    zero_plan plan[8];
    int looks, saves;
} codec_run;

static host_reference codec_after[CODEC_STEPS + 1]; /* what hooks hand out after each step */
static double codec_norm[CODEC_STEPS];
static const char *codec_folder = "/tmp";

/* One element that is not finite, on one rank. */
static void codec_poison(host_run *h, int t, size_t first, void *g) {
    const size_t at = 600;
    if (h->step != CODEC_BAD || h->micro || h->rank->rank != h->spec->nranks - 1 || t != 1) return;
    if (at >= first && at - first < h->spec->desc[t].numel)
        host_put(g, host_grad_type(h->spec), at - first, NAN);
}

static void codec_spec(host_spec *s, const codec_group *g, const codec_setting *how) {
    static const int prefetch[] = {0, ZERO_NONE, 3};
    static const size_t bucket[] = {0, 6000, 100000};
    memset(s, 0, sizeof *s);
    s->ntensors = CODEC_TENSORS;
    s->units = CODEC_UNITS;
    memcpy(s->desc, codec_tensors, sizeof codec_tensors);
    s->seed = 17;
    s->nranks = g->nranks;
    s->node_size = g->node_size;
    s->micro_steps = g->micro_steps;
    s->silent_unit = -1;
    s->adamw = (zero_hyper){0.01f, 0.9f, 0.95f, 1e-8f, 0.1f, g->clip ? 0.5f : 0.0f};
    s->poison = g->bad ? codec_poison : NULL;
    zero_config *c = &s->cfg;
    c->stage = how->stage;
    c->accumulation = g->sharded ? ZERO_ACCUMULATE_SHARDED : ZERO_ACCUMULATE_LOCAL;
    c->type = g->type;
    c->grads = g->grads;
    c->scaler.hysteresis = 1;
    c->scaler.initial = 16;
    c->weight_bits = g->weights;
    c->gradient_bits = g->gradients;
    c->feedback = g->beta;
    c->feedback_reset = g->reset;
    s->shard_ranks = c->shard_ranks = g->shard_ranks;
    c->second_ranks = how->second_ranks;
    c->no_overlap = how->no_overlap;
    c->bucket_numel = bucket[how->bucket];
    c->prefetch = prefetch[how->prefetch];
    c->no_mapping = how->no_mapping;
    c->threads = 1 + how->threads;
    c->timeout_s = 60;
    c->folder = codec_folder;
    if (how->tier) c->optimizer_tier = ZERO_FILE;
    if (how->tier && c->stage == 3) c->parameter_tier = ZERO_FILE;
    if (how->tier && c->stage > 1 && (g->sharded || g->micro_steps == 1))
        c->gradient_tier = ZERO_FILE;
}

static int codec_divisor(int a, int b) { return b ? codec_divisor(b, a % b) : a; }

/* Who adds what up first: `size` consecutive ranks share a copy, of which `local` are a node; in as
   many groups. */
typedef struct plain_ranks {
    int size, local, groups;
} plain_ranks;
static plain_ranks plain_ranks_of(const host_spec *s) {
    const int n = s->nranks, size = s->shard_ranks ? s->shard_ranks : n;
    const int node = codec_divisor(size, s->node_size ? s->node_size : n);
    const plain_ranks x = {size, node > 1 ? node : size, n / size};
    return x;
}

/* The plain training's own layout: tensors on lines, pieces of whole lines, a shard those of its
   copies. */
typedef struct plain_unit {
    size_t at[CODEC_TENSORS], from[CODEC_TENSORS], numel[CODEC_TENSORS]; /* by member */
    int tensor[CODEC_TENSORS], members;
    size_t shard, padded;
    int vectors, kept;
} plain_unit;
static plain_unit plain_unit_of(const host_spec *s, int unit) {
    plain_unit x;
    size_t end = 0;
    memset(&x, 0, sizeof x);
    x.vectors = 1;
    x.kept = unit == s->units;
    for (int t = 0; t < s->ntensors; t++) {
        const zero_tensor_desc *d = &s->desc[t];
        const int kept = d->flags & ZERO_KEEP;
        if (x.kept ? !kept : (kept || !host_in_unit(d, unit))) continue;
        const int m = x.members++;
        x.tensor[m] = t;
        x.at[m] = (end + 31) / 32 * 32;
        x.numel[m] = kept ? d->numel * (size_t)d->layers : d->numel;
        x.from[m] = kept ? 0 : (size_t)(unit - d->unit) * d->numel;
        x.vectors &= (d->flags & ZERO_ONE_D) != 0;
        end = x.at[m] + x.numel[m];
    }
    const size_t ranks = (size_t)s->nranks;
    const plain_ranks of = plain_ranks_of(s);
    x.shard = ((end + ranks - 1) / ranks + 31) / 32 * 32 * (size_t)of.groups;
    x.padded = x.shard * (size_t)of.size;
    return x;
}

enum { PLAIN_MOST = 5376 };
typedef struct plain_errors {
    float sent[8][CODEC_UNITS + 1][PLAIN_MOST], summed[8][CODEC_UNITS + 1][PLAIN_MOST];
} plain_errors;
static plain_errors *plain_error;

/* The units of a group's ranks, of which `first` is the first, become the sums of their shards,
   packed on the way. */
static void plain_reduce(const host_spec *s, int unit, const plain_unit *x, int first,
                         float (*g)[PLAIN_MOST], float *out) {
    static float sent[8][PLAIN_MOST], sum[8][PLAIN_MOST], y[PLAIN_MOST];
    const zero_config *c = &s->cfg;
    const plain_ranks of = plain_ranks_of(s);
    const int n = of.size, local = of.local, nodes = n / local;
    const size_t shard = x->shard;
    const float scale = host_scale(s);
    for (int r = 0; r < n; r++)
        for (int o = 0; o < n; o++) {
            float *at = sent[r] + (size_t)o * shard, *error = plain_error->sent[first + r][unit];
            if (c->feedback > 0)
                plain_feed(c->gradient_bits, g[r] + (size_t)o * shard, shard,
                           error + (size_t)o * shard, c->feedback, scale, at);
            else
                plain_through(c->gradient_bits, g[r] + (size_t)o * shard, shard, at, NULL);
        }
    for (int o = 0; o < n; o++)
        for (int k = 0; k < nodes; k++) {
            float *here = sum[k] + (size_t)o * shard;
            for (size_t i = 0; i < shard; i++) {
                const size_t e = (size_t)o * shard + i;
                here[i] = sent[k * local][e];
                for (int p = 1; p < local; p++) here[i] += sent[k * local + p][e];
            }
            if (nodes == 1) continue;
            const int rank = first + k * local + o % local; /* that has summed it */
            memcpy(y, here, shard * sizeof *y);
            if (c->feedback > 0)
                plain_feed(c->gradient_bits, y, shard,
                           plain_error->summed[rank][unit] + (size_t)(o / local) * shard,
                           c->feedback, scale, here);
            else
                plain_through(c->gradient_bits, y, shard, here, NULL);
        }
    for (size_t e = 0; e < x->padded; e++) {
        out[e] = sum[0][e];
        for (int k = 1; k < nodes; k++) out[e] += sum[k][e];
    }
}

/* The sum over a group's ranks of what is not packed: inside nodes, then over nodes. */
static void plain_sum(const plain_ranks *of, size_t n, float (*g)[PLAIN_MOST], float *out) {
    for (size_t e = 0; e < n; e++)
        for (int node = 0; node < of->size; node += of->local) {
            float sum = g[node][e];
            for (int r = node + 1; r < node + of->local; r++) sum += g[r][e];
            out[e] = node ? out[e] + sum : sum;
        }
}

/* The mean gradient of a unit, scaled, as it is stored after reduction: each group of ranks that
   share a copy adds up its micro-steps, then the groups are summed, and what comes of it is
   divided; one group alone divides each. */
static void plain_mean(const host_spec *s, int sharded, int step, int unit, const plain_unit *x,
                       float *mean) {
    static float g[8][PLAIN_MOST], out[PLAIN_MOST], acc[8][PLAIN_MOST];
    const plain_ranks of = plain_ranks_of(s);
    const zero_type type = host_grad_type(s);
    const int collects = !sharded && type != ZERO_F32;
    const float scale = 1.0f / (float)s->nranks, within = of.groups > 1 ? 1 : scale;
    memset(g, 0, sizeof g);
    for (int micro = 0; micro < s->micro_steps; micro++) {
        for (int r = 0; r < s->nranks; r++)
            for (int m = 0; m < x->members; m++)
                for (size_t i = 0; i < x->numel[m]; i++) {
                    float *at = &g[r][x->at[m] + i];
                    const float one = host_gradient(s, sharded || collects ? 0 : *at, step, micro,
                                                    r, x->tensor[m], x->from[m] + i);
                    *at = collects && micro ? *at + one : one;
                    if (s->poison && step == CODEC_BAD && micro == 0 && r == s->nranks - 1
                        && x->tensor[m] == 1 && x->from[m] + i == 600)
                        *at = NAN;
                }
        if (!sharded && micro + 1 < s->micro_steps) continue;
        for (int r = 0; r < s->nranks; r++)
            for (size_t e = 0; e < x->padded; e++) g[r][e] = host_round(type, g[r][e]);
        for (int k = 0; k < of.groups; k++) {
            const int first = k * of.size;
            if (s->cfg.gradient_bits && of.size > 1 && !x->vectors)
                plain_reduce(s, unit, x, first, g + first, out);
            else
                plain_sum(&of, x->padded, g + first, out);
            for (size_t e = 0; e < x->padded; e++) {
                const float more = within * out[e];
                acc[k][e] = sharded && micro ? acc[k][e] + more : more;
            }
        }
    }
    for (size_t e = 0; e < x->padded; e++) {
        for (int k = 1; k < of.groups; k++) acc[0][e] += acc[k][e];
        mean[e] = host_round(type, of.groups > 1 ? scale * acc[0][e] : acc[0][e]);
    }
}

/* AdamW as host.h has it, of one element whose scaled gradient is given. */
static void plain_adamw(host_reference *r, const host_spec *s, int t, size_t i, double clip,
                        float scaled) {
    const zero_hyper *a = &s->adamw;
    const host_adamw now = host_adamw_at(a, r->steps);
    const float decay = s->desc[t].flags & ZERO_NO_DECAY ? 0 : a->weight_decay;
    const float factor = (float)(clip / (double)host_scale(s));
    host_adamw_step(&now, a->lr, decay, scaled * factor, &r->master[t][i], &r->m[t][i],
                    &r->v[t][i]);
    r->p[t][i] = host_round_weight(s, r->master[t][i]);
}

/* What hooks hand out: weights that came packed, of units that are not kept unsharded. */
static void plain_show(const host_spec *s, const host_reference *r, host_reference *shown) {
    static float whole[PLAIN_MOST], out[PLAIN_MOST];
    for (int t = 0; t < HOST_TENSORS; t++) {
        free(shown->p[t]);
        shown->p[t] = t < s->ntensors ? (float *)malloc(host_numel(s, t) * sizeof(float)) : NULL;
        if (t < s->ntensors) memcpy(shown->p[t], r->p[t], host_numel(s, t) * sizeof(float));
    }
    for (int u = 0; u < s->units && s->cfg.weight_bits; u++) {
        const plain_unit x = plain_unit_of(s, u);
        if (x.vectors || plain_ranks_of(s).size == 1) continue;
        memset(whole, 0, sizeof whole);
        for (int m = 0; m < x.members; m++)
            memcpy(whole + x.at[m], r->p[x.tensor[m]] + x.from[m], x.numel[m] * sizeof *whole);
        for (int o = 0; o < plain_ranks_of(s).size; o++)
            plain_through(s->cfg.weight_bits, whole + (size_t)o * x.shard, x.shard,
                          out + (size_t)o * x.shard, NULL);
        for (int m = 0; m < x.members; m++)
            for (size_t i = 0; i < x.numel[m]; i++)
                shown->p[x.tensor[m]][x.from[m] + i] = host_round(s->cfg.type, out[x.at[m] + i]);
    }
}

/* The same training without any plugin, into codec_after and codec_norm; its hash at the end. What
   clips are the plugin's norms, whose last bits are of its own order: first it is asked without,
   for what they are to be. */
static uint64_t plain_train(const codec_group *g, const double *norms) {
    static float mean[PLAIN_MOST];
    const codec_setting any = {3, 0, 0, 0, 0, 0, 0, 0};
    host_spec s;
    host_reference r;
    uint64_t hash = 0;
    codec_spec(&s, g, &any);
    host_reference_open(&r, &s);
    memset(plain_error, 0, sizeof *plain_error);
    plain_errors *before = (plain_errors *)malloc(sizeof *before);
    for (int step = 0; step <= CODEC_STEPS; step++) {
        const int skips = g->bad && step == CODEC_BAD, sharded = g->sharded && g->micro_steps > 1;
        double sum = 0;
        plain_show(&s, &r, &codec_after[step]);
        if (step == CODEC_STEPS) break;
        if (g->reset && step % g->reset == 0) memset(plain_error, 0, sizeof *plain_error);
        r.steps += !skips;
        *before = *plain_error;
        const double most = (double)s.adamw.max_norm, norm = norms ? norms[step] : 0;
        const double clip = most > 0 && norm + 1e-6 > most ? most / (norm + 1e-6) : 1;
        for (int u = 0; u <= s.units; u++) {
            const plain_unit x = plain_unit_of(&s, u);
            plain_mean(&s, sharded, step, u, &x, mean);
            for (size_t e = 0; e < x.padded; e++) sum += (double)mean[e] * (double)mean[e];
            for (int m = 0; m < x.members && !skips; m++)
                for (size_t i = 0; i < x.numel[m]; i++)
                    plain_adamw(&r, &s, x.tensor[m], x.from[m] + i, clip, mean[x.at[m] + i]);
        }
        codec_norm[step] = sqrt(sum) / (double)host_scale(&s);
        if (skips && g->type == ZERO_F16) *plain_error = *before;
        if (skips) s.cfg.scaler.initial /= 2;
    }
    free(before);
    hash = host_hash_reference(hash, &r, &s);
    host_reference_close(&r, &s);
    return hash;
}

/* Errors are this rank's, of one kind, and as many as there are. */
static void codec_bad_ranges(host_run *h, const zero_range *errors, const void *values) {
    zero_range bad[3] = {*errors, *errors, *errors};
    bad[0].count++;
    bad[1].first = bad[1].count + 1;
    bad[2].kind = ZERO_MOMENT_1;
    for (int i = 0; i < 4; i++)
        if (zero_state_put(h->z, i < 3 ? &bad[i] : errors, i < 3 ? values : NULL)
            != ZERO_ERR_ARGUMENT)
            test_rank_fail(h->rank, "bad range %d of errors is taken", i);
}

/* Saves all that this rank goes on from, and goes on from it in a context made anew; saves 2: but
   for the errors. */
static int codec_again(host_run *h, int saves) {
    enum { MOST = 64 };
    zero_range range[MOST];
    void *values[MOST] = {NULL};
    zero_counters counters;
    const int step = h->step;
    HOST_TRY(h, zero_state_begin(h->z));
    const int n = zero_state_ranges(h->z, 1);
    for (int i = 0; i < n && n <= MOST; i++) {
        HOST_TRY(h, zero_state_range(h->z, 1, i, &range[i]));
        values[i] = malloc(range[i].count * zero_type_bytes(range[i].type));
        HOST_TRY(h, zero_state_get(h->z, &range[i], values[i]));
    }
    zero_state_counters(h->z, &counters);
    HOST_TRY(h, zero_state_end(h->z, 0));
    const host_reference *reference = h->reference;
    const host_spec *s = h->spec;
    test_rank *rank = h->rank;
    zero_ctx *old = h->z;
    char name[64];
    const plain_ranks of = plain_ranks_of(s);
    snprintf(name, sizeof name, ZERO_FEEDBACK_NAME "%d of %d, %d by %d", rank->rank, s->nranks,
             of.size, of.local);
    if (!host_open(h, s, rank)) return 0;
    h->step = step;
    h->reference = reference;
    HOST_TRY(h, zero_state_begin(h->z));
    for (int i = 0; i < n && n <= MOST; i++) {
        const int last = i == n - 1, fed = !strncmp(range[i].name, ZERO_FEEDBACK_NAME, 17);
        if (fed != (last && s->cfg.feedback > 0 && of.size > 1)
            || (fed && strcmp(range[i].name, name)))
            test_rank_fail(rank, "range %d of %d is %s", i, n, range[i].name);
        if (fed) codec_bad_ranges(h, &range[i], values[i]);
        if (!fed || saves == 1) HOST_TRY(h, zero_state_put(h->z, &range[i], values[i]));
    }
    if (n > MOST) test_rank_fail(rank, "%d ranges", n);
    HOST_TRY(h, zero_state_set_counters(h->z, &counters));
    HOST_TRY(h, zero_state_end(h->z, 1));
    zero_destroy(old); /* it owns the names */
    for (int i = 0; i < n && i < MOST; i++) free(values[i]);
    return 1;
}

static void codec_rank(test_rank *rank) {
    codec_run *run = (codec_run *)rank->arg;
    const host_spec *s = &run->spec;
    host_run h;
    int ok = host_open(&h, s, rank);
    if (run->looks) h.reference = codec_after;
    for (int step = 0; step < CODEC_STEPS && ok; step++) {
        zero_step_report report;
        memset(&report, 0, sizeof report);
        if (step == 2 && run->saves) ok = codec_again(&h, run->saves);
        ok = ok && host_train_step(&h);
        if (ok && zero_step_result(h.z, &report)) test_rank_fail(rank, "%s", zero_last_error(h.z));
        run->norm[rank->rank][step] = report.norm;
        if (h.reference) h.reference++;
    }
    if (ok) {
        zero_stats stats;
        if (zero_query_stats(h.z, &stats) || zero_query_plan(h.z, &run->plan[rank->rank]))
            test_rank_fail(rank, "%s", zero_last_error(h.z));
        run->sent[rank->rank] = stats.sent_bytes;
        run->hash[rank->rank] = host_hash(&h);
    }
    zero_destroy(h.z);
}

static const char *codec_name(const codec_group *g) {
    static char text[200];
    snprintf(
        text, sizeof text,
        "%d ranks, nodes of %d, -zs %d, type %d, gradients %d, %d micro-steps, %s, -qw %d -qg %d "
        "-qf %g -qr %d, bad %d, clip %d",
        g->nranks, g->node_size, g->shard_ranks, (int)g->type, (int)g->grads, g->micro_steps,
        g->sharded ? "SHARDED" : "LOCAL", g->weights, g->gradients, (double)g->beta, g->reset,
        g->bad, g->clip);
    return text;
}

static codec_run *codec_shared;

/* The norms are those of the plain training. */
static void codec_norms(const codec_group *g) {
    for (int step = 0; step < CODEC_STEPS; step++) {
        const double is = codec_shared->norm[0][step], was = codec_norm[step];
        test_check(isnan(is) == isnan(was) && (isnan(was) || fabs(is - was) <= 1e-6 * was),
                   "%s: norm %g in step %d, expected %g", codec_name(g), is, step, was);
    }
}

/* One training, against `expected`; 0: nothing yet. */
static void codec_train(const codec_group *g, const codec_setting *how, int processes,
                        uint64_t expected, int looks, int saves) {
    codec_run *run = codec_shared;
    memset(run, 0, sizeof *run);
    run->group = *g;
    run->saves = saves;
    run->looks = looks;
    codec_spec(&run->spec, g, how);
    (void)alarm(100);
    int ok = processes ? test_processes(g->nranks, g->node_size, codec_rank, run, 100)
                       : test_ranks(g->nranks, g->node_size, codec_rank, run);
    for (int r = 0; r < g->nranks; r++) ok &= run->hash[r] == (expected ? expected : run->hash[0]);
    test_check(ok,
               "%s: stage %d, -zh %d, overlap %d, bucket %d, prefetch %d, mapping %d, threads %d, "
               "tier %d, processes %d: %016llx, expected %016llx: %s",
               codec_name(g), how->stage, how->second_ranks, !how->no_overlap, how->bucket,
               how->prefetch, !how->no_mapping, 1 + how->threads, how->tier, processes,
               (unsigned long long)run->hash[0], (unsigned long long)expected, test_first);
    if (looks && ok) codec_norms(g);
}

/* Bytes of a step: the formula, the plan and the meter. */
static void codec_bytes(const codec_group *g, const codec_setting *how) {
    const codec_run *run = codec_shared;
    const host_spec *s = &run->spec;
    const plain_ranks of = plain_ranks_of(s);
    const size_t n = (size_t)of.size, local = (size_t)of.local, nodes = n / local;
    const size_t others = (size_t)of.groups - 1, stored = zero_type_bytes(g->type);
    const size_t grad = zero_type_bytes(host_grad_type(s));
    const size_t times = g->sharded ? (size_t)g->micro_steps : 1;
    double sum = 0, memory = 0, gathered = 0, packed = 0;
    for (int u = 0; u <= s->units; u++) {
        const plain_unit x = plain_unit_of(s, u);
        zero_plan_unit unit;
        memset(&unit, 0, sizeof unit);
        const int codes = !x.vectors && n > 1;
        const double one = (double)plain_bytes(g->gradients ? g->gradients : 8, x.shard);
        const double weights = (double)plain_bytes(g->weights ? g->weights : 8, x.shard);
        /* gathers: of what is kept unsharded one, of the rest one in forward and one in backward,
           but of a last unit whose buffer is still there */
        if (codes && g->gradients)
            sum += (double)times * one * (double)((local - 1) * nodes + nodes - 1);
        else
            sum += (double)(times * x.shard * (n - 1) * grad);
        sum += (double)(others * x.shard / (others + 1) * (sizeof(float) + grad));
        if (how->stage < 3) sum += (double)(x.shard * (n - 1) * stored);
        if (codes && g->gradients) packed = one > packed ? one : packed;
        if (codes && g->gradients && g->beta > 0)
            memory += (g->type == ZERO_F16 ? 4 : 2)
                      * (double)(x.padded + (nodes > 1 ? nodes * x.shard : 0));
        if (codes && g->weights) gathered = weights > gathered ? weights : gathered;
    }
    memory += (gathered + 2 * packed) * (double)n;
    const zero_plan *p = &run->plan[0];
    if (how->stage < 3)
        test_check((double)p->sent_bytes == sum, "%s: %zu bytes planned, the formula says %.0f",
                   codec_name(g), p->sent_bytes, sum);
    test_check((double)p->packed_bytes == memory, "%s: %zu bytes kept, the formula says %.0f",
               codec_name(g), p->packed_bytes, memory);
    test_check(run->sent[0] == (uint64_t)CODEC_STEPS * p->sent_bytes,
               "%s, stage %d: %llu bytes sent in %d steps, planned %zu each", codec_name(g),
               how->stage, (unsigned long long)run->sent[0], CODEC_STEPS, p->sent_bytes);
}

/* As many ranks as divide those that share a copy; every second time none are said. */
static int codec_drawn_part(test_random *r, int share, int nranks) {
    const int n = share ? share : nranks, part = 1 + test_below(r, n);
    return test_below(r, 2) ? codec_divisor(n, part) : 0;
}
static codec_setting codec_drawn(test_random *r, const codec_group *g, int i) {
    codec_setting how;
    how.stage = g->weights ? 3 : 1 + i % 3;
    how.no_overlap = test_below(r, 3) == 0;
    how.bucket = test_below(r, 3);
    how.prefetch = test_below(r, 3);
    how.no_mapping = test_below(r, 2);
    how.threads = test_below(r, 2);
    how.tier = test_below(r, 3) == 0;
    how.second_ranks = how.stage == 3 ? codec_drawn_part(r, g->shard_ranks, g->nranks) : 0;
    return how;
}

/* A first run says the norms, which are those of the plain training but for their last bits; with
   these that clips as the runs do. */
static void codec_clipped(const codec_group *g, int runs, test_random *r) {
    double norms[CODEC_STEPS];
    codec_setting how = codec_drawn(r, g, 0);
    (void)plain_train(g, NULL);
    codec_train(g, &how, 0, 0, 0, 0);
    memcpy(norms, codec_shared->norm[0], sizeof norms);
    codec_norms(g);
    const uint64_t expected = plain_train(g, norms);
    for (int k = 0; k < runs; k++) {
        how = codec_drawn(r, g, k);
        codec_train(g, &how, 0, expected, 1, 0);
    }
}

static void codec_contexts(uint64_t seed, int runs, int processes) {
    static const int ranks[][2] = {{2, 0}, {3, 0}, {4, 2}, {4, 0}, {4, 1}, {6, 2}, {6, 3}, {2, 1}};
    static const struct {
        zero_type type;
        zero_grad_type grads;
    } types[] = {{ZERO_F32, ZERO_GRAD_AUTO},
                 {ZERO_BF16, ZERO_GRAD_AS_TYPE},
                 {ZERO_F16, ZERO_GRAD_AS_TYPE},
                 {ZERO_BF16, ZERO_GRAD_F32}};
    static const int bits[][2] = {{0, 4}, {0, 8}, {8, 0}, {4, 0}, {8, 4}, {4, 8}};
    test_random r = {test_mix(seed)};
    for (int i = 0; i < (processes ? 12 : 96); i++) {
        codec_group g;
        memset(&g, 0, sizeof g);
        g.nranks = ranks[i % 8][0];
        g.node_size = ranks[i % 8][1];
        g.type = types[i / 2 % 4].type;
        g.grads = types[i / 2 % 4].grads;
        g.weights = bits[i % 6][0];
        g.gradients = bits[i % 6][1];
        g.beta = g.gradients && i % 3 ? 0.8f : 0;
        g.reset = g.beta > 0 && i % 2 ? 2 : 0;
        g.micro_steps = 1 + i / 3 % 3;
        g.sharded = i / 5 % 2;
        g.bad = i % 4 == 1 || (g.type == ZERO_F16 && i % 3 == 0);
        g.shard_ranks = codec_drawn_part(&r, 0, g.nranks);
        const uint64_t expected = plain_train(&g, NULL);
        for (int k = 0; k < runs; k++) {
            const codec_setting how = codec_drawn(&r, &g, i + k);
            codec_train(&g, &how, processes, expected, 1, 0);
            if (!processes) codec_bytes(&g, &how);
        }
        if (processes || i % 2) continue;
        const codec_setting how = codec_drawn(&r, &g, i);
        codec_train(&g, &how, 0, expected, 0, 1);
        /* a reset comes where the state was saved, and a rank alone has no errors */
        if (!(g.beta > 0) || g.reset || g.shard_ranks == 1) continue;
        codec_run *run = codec_shared;
        memset(run, 0, sizeof *run);
        run->saves = 2;
        codec_spec(&run->spec, &g, &how);
        test_check(test_ranks(g.nranks, g.node_size, codec_rank, run) && run->hash[0] != expected
                       && run->hash[1] == run->hash[0],
                   "%s: errors are not needed, or not cleared: %s", codec_name(&g), test_first);
    }
    for (int i = 0; i < 8 && !processes; i++) {
        codec_group g = {.nranks = ranks[i][0], .node_size = ranks[i][1], .micro_steps = 1 + i % 2};
        g.gradients = i % 2 ? 4 : 8;
        g.weights = i % 3 == 2 ? 8 : 0;
        g.beta = i % 4 == 0 ? 0.8f : 0;
        g.clip = g.sharded = 1;
        g.shard_ranks = codec_drawn_part(&r, 0, g.nranks);
        codec_clipped(&g, runs + 1, &r);
    }
}

/* ---- errors ---- */

static void codec_refused(void) {
    static const struct {
        int stage, weights, gradients;
        float beta;
        int reset;
        const char *says;
        int frozen;
    } bad[] = {{2, 8, 0, 0, 0, "weight_bits is 8: at stage 2", 0},
               {0, 4, 0, 0, 0, "weight_bits is 4: at stage 0", 0},
               {3, 5, 0, 0, 0, "weight_bits is 5, expected 8 or 4", 0},
               {2, 0, 0, 0, 0, "frozen_weight_bits is 8: at stage 2", 8},
               {3, 0, 0, 0, 0, "frozen_weight_bits is 3, expected 8 or 4", 3},
               {3, 0, 16, 0, 0, "gradient_bits is 16, expected 8 or 4", 0},
               {0, 0, 4, 0, 0, "gradient_bits is 4: at stage 0", 0},
               {3, 8, 0, 0.5f, 0, "feedback is 0.5, but gradients are not quantized", 0},
               {3, 0, 4, 1.0f, 0, "feedback is 1", 0},
               {3, 0, 4, -0.5f, 0, "feedback is -0.5", 0},
               {3, 0, 4, 0, 7, "feedback_reset is 7, but feedback is 0", 0},
               {3, 0, 4, 0.5f, -1, "feedback_reset is -1", 0}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
        zero_config cfg;
        zero_ctx *z = NULL;
        memset(&cfg, 0, sizeof cfg);
        cfg.stage = bad[i].stage;
        cfg.weight_bits = bad[i].weights;
        cfg.frozen_weight_bits = bad[i].frozen;
        cfg.gradient_bits = bad[i].gradients;
        cfg.feedback = bad[i].beta;
        cfg.feedback_reset = bad[i].reset;
        const zero_result r = zero_create(&z, &cfg, &self);
        test_check(r == ZERO_ERR_ARGUMENT && strstr(zero_last_error(z), bad[i].says),
                   "case %zu: %d, %s", i, (int)r, zero_last_error(z));
        zero_destroy(z);
    }
}

int main(int argc, char **argv) {
    const uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    if (argc > 2) codec_folder = argv[2];
    codec_shared = (codec_run *)test_shared(sizeof *codec_shared);
    plain_error = (plain_errors *)test_shared(sizeof *plain_error);
    codec_contexts(seed, 2, 1); /* first: OpenMP's threads do not survive a fork */
    codec_refused();
    codec_contexts(seed, 3, 0);
    return test_summary();
}

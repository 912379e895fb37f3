/* hashes.c [PART-OF-A-NAME [EVERY]] - what some hundred small trainings end with, a line each,
   under a line of columns: hashes of weights, optimizer state and reports, bytes that were planned,
   sent and allocated. No other order of sums, partition or traffic goes unseen in it.
   tests/tools/same.sh compares two versions of the plugin by it, so it is written against the
   header alone, and against what the header has had since 1.0.0. Hashes are of all ranks in order,
   bytes and counts are sums over ranks. Last line: N passed, N failed. */
#include "../shared/host.h"

enum { HASHES_RANKS = 8, HASHES_STEPS = 4 };

#define HASHES_COLUMNS(X)                                                                          \
    X(weights) /* parameters and master weights of all tensors, by name */                         \
    X(state)   /* the optimizer's arrays */                                                        \
    X(shards)  /* what each rank saves: ranges, as stored, and the counters */                     \
    X(reports) /* of every step; the norm where it is asked for */                                 \
    X(units)   /* the plan by units */                                                             \
    X(param)   /* planned bytes ... */                                                             \
    X(grad)                                                                                        \
    X(optimizer)                                                                                   \
    X(buffer)                                                                                      \
    X(accumulator)                                                                                 \
    X(kept)                                                                                        \
    X(formula)                                                                                     \
    X(formula_sent)                                                                                \
    X(planned) /* ... and traffic of a step */                                                     \
    X(sent)    /* counted bytes ... */                                                             \
    X(mapped)                                                                                      \
    X(reductions) /* ... and units */                                                              \
    X(gathers)                                                                                     \
    X(allocated)                                                                                   \
    X(clips) /* the norm clips gradients: for tests/tools/same.txt */                              \
    HASHES_VERDICTS(X)
#if ZERO_ABI > 1
#define HASHES_VERDICTS(X) X(verdict_planned) X(verdict) /* of a step; of all */ HASHES_FILES(X)
#else
#define HASHES_VERDICTS(X)
#endif
#if ZERO_ABI > 3 /* tiers: planned, and written in all steps */
#define HASHES_FILES(X) X(file) X(file_read) X(file_written) X(file_moved)
#else
#define HASHES_FILES(X)
#endif
#define HASHES_INDEX(name) HASH_##name,
#define HASHES_NAME(name)  #name,
enum { HASHES_COLUMNS(HASHES_INDEX) HASHES_N };
static const char *const hashes_names[] = {HASHES_COLUMNS(HASHES_NAME)};
enum { HASHES_MIXED = HASH_units + 1 }; /* columns before this one are hashes */

/* ---- configurations ---- */

typedef struct hashes_type {
    const char *name;
    zero_type type;
    zero_grad_type grads;
    zero_master master;
    float fixed, initial; /* loss scales; small enough for f16 */
} hashes_type;
static const hashes_type hashes_types[] = {
    {"f32", ZERO_F32, ZERO_GRAD_AUTO, ZERO_MASTER_AUTO, 0, 0},
    {"bf16", ZERO_BF16, ZERO_GRAD_AUTO, ZERO_MASTER_AUTO, 0, 0},
    {"bf16-g32", ZERO_BF16, ZERO_GRAD_F32, ZERO_MASTER_F32, 0, 0},
    {"bf16-alone", ZERO_BF16, ZERO_GRAD_AS_TYPE, ZERO_MASTER_NONE, 0, 0},
    {"f16", ZERO_F16, ZERO_GRAD_AUTO, ZERO_MASTER_AUTO, 0, 16},
    {"f16-g16", ZERO_F16, ZERO_GRAD_AS_TYPE, ZERO_MASTER_AUTO, 0, 16},
    {"f16-fixed", ZERO_F16, ZERO_GRAD_F32, ZERO_MASTER_AUTO, 8, 0}};
static const char *const hashes_rules[] = {"adamw", "adam", "sgd", "nesterov", "lion"};
static const int hashes_groups[][2] = {{1, 0}, {2, 0}, {3, 0}, {4, 0}, {4, 2},
                                       {5, 0}, {6, 2}, {6, 3}, {8, 4}}; /* ranks, of a node */
enum { HASHES_TYPES = 7, HASHES_RULES = 5, HASHES_GROUPS = 9, HASHES_MODELS = 3 };

static const zero_tensor_desc hashes_tied[] = {
    {"emb", 700, 1, .uses = 2},
    {"mat", 331, 3, .unit = 1},
    {"vec", 17, 3, .unit = 1, .flags = ZERO_NO_DECAY | ZERO_ONE_D},
    {"norm", 9, 3, .unit = 1, .flags = ZERO_KEEP | ZERO_NO_DECAY},
    {"out", 5, 1, .unit = 4, .flags = ZERO_ONE_D}};
static const zero_tensor_desc hashes_plain[] = {
    {"emb", 5003, .layers = 1},
    {"w", 1009, 6, .unit = 1},
    {"b", 33, 6, .unit = 1, .flags = ZERO_ONE_D | ZERO_NO_DECAY}};
static const zero_tensor_desc hashes_large[] = {/* several blocks of the norm in a shard */
                                                {"emb", 20011, .layers = 1},
                                                {"w", 30011, 2, .unit = 1},
                                                {"k", 513, 2, .unit = 1, .flags = ZERO_KEEP}};

typedef struct hashes_case { /* in shared memory */
    host_spec spec;          /* first: hashes_poison finds the case by it */
    int alone, processes;    /* a rank without a group; ranks that are processes */
    int bad;                 /* 1 + the element of tensor 0 that is not finite in step 1; 0: none */
    int skip;                /* step 2 is dropped by the host */
    int norm;                /* the host asks for the norm */
    char name[128];
    uint64_t column[HASHES_RANKS][HASHES_N];
} hashes_case;

/* What a set of configurations goes through; -1: drawn by the number of the configuration. */
typedef struct hashes_pick {
    int stage, type, rule, group, micro, sharded, model, overlap, prefetch, mapping, bucket;
    int tiers; /* never drawn: bits of HASHES_FILE_* */
} hashes_pick;

enum { HASHES_FILE_STATE = 1, HASHES_FILE_GRADS = 2, HASHES_FILE_PARAMS = 4, HASHES_DELAYS = 8 };
#if ZERO_ABI > 3
/* What the stage can have of these. */
static void hashes_tiers(host_spec *s, int tiers) {
    zero_config *c = &s->cfg;
    const int shards =
        c->stage > 1 && (s->micro_steps == 1 || c->accumulation == ZERO_ACCUMULATE_SHARDED);
    if (tiers & HASHES_FILE_STATE) c->optimizer_tier = ZERO_FILE;
    if ((tiers & HASHES_FILE_GRADS) && shards) c->gradient_tier = ZERO_FILE;
    if ((tiers & HASHES_FILE_PARAMS) && c->stage == 3) c->parameter_tier = ZERO_FILE;
    if (tiers & HASHES_DELAYS) c->delay_from = 2;
    if (tiers & HASHES_FILE_PARAMS) c->offload_share = 0.75f;
    c->folder = "/tmp";
}
#else
static void hashes_tiers(host_spec *s, int tiers) { (void)s, (void)tiers; }
#endif

static int hashes_draw(test_random *r, int picked, int n) {
    const int drawn = test_below(r, n); /* always, so that what is picked leaves the rest */
    return picked < 0 ? drawn : picked;
}

static void hashes_poison(host_run *h, int t, size_t first, void *g) {
    static const float values[] = {NAN, INFINITY, -INFINITY};
    const host_spec *s = h->spec;
    const int bad = ((const hashes_case *)(const void *)s)->bad - 1;
    if (bad < 0 || t || h->step != 1 || h->rank->rank != bad % s->nranks) return;
    if ((size_t)bad >= first && (size_t)bad - first < s->desc[t].numel)
        host_put(g, host_grad_type(s), (size_t)bad - first, values[bad % 3]);
}

static void hashes_model(host_spec *s, int model, int bucket) {
    static const size_t buckets[HASHES_MODELS][3] = {
        {0, 3000, 100000}, {0, 6000, 20000}, {0, 60000, 200000}};
    const zero_tensor_desc *desc = model == 0   ? hashes_tied
                                   : model == 1 ? hashes_plain
                                                : hashes_large;
    s->ntensors = model == 0 ? 5 : 3;
    s->units = model == 0 ? 5 : model == 1 ? 7 : 3;
    memcpy(s->desc, desc, (size_t)s->ntensors * sizeof *desc);
    s->cfg.bucket_numel = buckets[model][bucket];
}

static void hashes_store(host_spec *s, const hashes_type *type, int rule) {
    s->cfg.type = type->type;
    s->cfg.grads = type->grads;
    s->cfg.master = type->master;
    s->cfg.seed = 5;
    s->cfg.optimizer = (zero_optimizer)rule;
    s->cfg.scaler.fixed = type->fixed;
    s->cfg.scaler.initial = type->initial;
    s->cfg.scaler.window = 1;
    s->cfg.scaler.hysteresis = 1;
}

/* How the host behaves; every gradient may be overwritten where it is stored but once a step. */
static void hashes_host(hashes_case *c, test_random *r) {
    host_spec *s = &c->spec;
    s->slots = test_below(r, 3) == 0;
    s->recompute = test_below(r, 3) == 0;
    s->evaluate = test_below(r, 2);
    s->groups = test_below(r, 2);
    s->silent_unit = test_below(r, 6) ? -1 : test_below(r, s->units);
    const int once = s->cfg.accumulation == ZERO_ACCUMULATE_SHARDED || s->micro_steps == 1;
    for (int t = 0; t < s->ntensors && s->slots && once; t++)
        if (!(s->desc[t].flags & ZERO_KEEP)) s->desc[t].flags |= ZERO_OVERWRITTEN;
    const int overflows = test_below(r, 3) == 0 || s->cfg.type == ZERO_F16;
    c->bad = overflows ? 1 + test_below(r, (int)s->desc[0].numel) : 0;
    c->skip = test_below(r, 5) == 0;
    c->norm = test_below(r, 3) == 0;
    s->poison = hashes_poison;
}

static void hashes_spec(hashes_case *c, int number, const hashes_pick *p) {
    static const int prefetches[] = {0, ZERO_NONE, 2, 5};
    static const int64_t persistence[] = {0, ZERO_NONE, 100000};
    test_random r = {(uint64_t)number * 1000003u};
    host_spec *s = &c->spec;
    memset(c, 0, sizeof *c);
    const int type = hashes_draw(&r, p->type, HASHES_TYPES);
    const int rule = hashes_draw(&r, p->rule, HASHES_RULES);
    const int group = hashes_draw(&r, p->group, HASHES_GROUPS);
    const int model = hashes_draw(&r, p->model, HASHES_MODELS);
    const int bucket = hashes_draw(&r, p->bucket, 3);
    const int prefetch = hashes_draw(&r, p->prefetch, 4), kept = test_below(&r, 3);
    s->seed = (uint64_t)number;
    s->nranks = hashes_groups[group][0];
    s->node_size = hashes_groups[group][1];
    c->alone = s->nranks == 1 && test_below(&r, 2);
    s->steps = HASHES_STEPS;
    s->cfg.stage = hashes_draw(&r, p->stage, 4);
    s->micro_steps = 1 + hashes_draw(&r, p->micro, 3);
    const int sharded = hashes_draw(&r, p->sharded, 2);
    s->cfg.accumulation = sharded ? ZERO_ACCUMULATE_SHARDED : ZERO_ACCUMULATE_LOCAL;
    s->cfg.no_overlap = !hashes_draw(&r, p->overlap, 2);
    s->cfg.no_mapping = !hashes_draw(&r, p->mapping, 2);
    s->cfg.prefetch = prefetches[prefetch];
    s->cfg.persistence_numel = persistence[kept];
    s->cfg.threads = 1;
    s->cfg.timeout_s = 100;
    hashes_model(s, model, bucket);
    hashes_store(s, &hashes_types[type], rule);
    const float clip = test_below(&r, 2) ? 1.0f : 0.0f;
    const zero_hyper hyper = {0.01f, 0.9f, 0.95f, 1e-8f, 0.1f, clip};
    s->adamw = hyper;
    hashes_host(c, &r);
    hashes_tiers(s, p->tiers);
    snprintf(c->name, sizeof c->name, "%d:z%d,%s,%s,%s%d/%d,%d%c,m%d,b%d,o%d,p%d,k%d,v%d%s%.0d%s",
             number, s->cfg.stage, hashes_types[type].name, hashes_rules[rule],
             c->alone ? "self" : "r", s->nranks, s->node_size, s->micro_steps, sharded ? 'S' : 'L',
             model, bucket, !s->cfg.no_overlap, s->cfg.prefetch, kept, !s->cfg.no_mapping,
             p->tiers ? ",t" : "", p->tiers, c->skip ? ",skips" : "");
}

/* ---- one rank ---- */

static uint64_t hashes_bytes(uint64_t hash, const void *memory, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) hash = test_mix(hash ^ ((const unsigned char *)memory)[i]);
    return hash;
}
static uint64_t hashes_number(uint64_t hash, double x) { return hashes_bytes(hash, &x, sizeof x); }

static int hashes_step(host_run *h, const hashes_case *c, uint64_t *hash) {
    const host_spec *s = h->spec;
    zero_step_report report;
    double norm = 0;
    for (h->micro = 0; h->micro < s->micro_steps; h->micro++)
        if (!host_train_pass(h)) return 0;
    HOST_TRY(h, zero_reduce(h->z));
    if (c->norm) HOST_TRY(h, zero_norm(h->z, &norm));
    if (c->skip && h->step == 2)
        HOST_TRY(h, zero_skip_step(h->z));
    else
        HOST_TRY(h, zero_step(h->z, &s->adamw));
    HOST_TRY(h, zero_step_result(h->z, &report));
    *hash = hashes_number(hashes_number(*hash, norm), report.norm);
    *hash = hashes_number(hashes_number(*hash, report.stepped), (double)report.loss_scale);
    *hash = hashes_number(hashes_number(*hash, (double)report.next_loss_scale), (double)h->step);
    if (report.bad_tensor) {
        *hash = hashes_bytes(*hash, report.bad_tensor, strlen(report.bad_tensor));
        *hash = hashes_number(hashes_number(*hash, (double)report.bad_index), report.bad_rank);
    }
    const int left_out =
        (h->step == 1 && c->bad && s->silent_unit != 0) || (h->step == 2 && c->skip);
    if (report.stepped == left_out)
        test_rank_fail(h->rank, "step %d: stepped is %d", h->step, report.stepped);
    h->step++;
    return !s->evaluate || host_evaluate(h);
}

/* All of a tensor's numbers of one kind. */
static uint64_t hashes_tensor(host_run *h, uint64_t hash, int t, zero_kind kind) {
    const size_t n = host_numel(h->spec, t);
    float *seen = (float *)calloc(n, sizeof *seen);
    if (zero_read_tensor(h->z, h->spec->desc[t].name, kind, 0, n, seen))
        test_rank_fail(h->rank, "%s", zero_last_error(h->z));
    hash = host_hash_floats(hash, seen, n);
    free(seen);
    return hash;
}

/* A write brings a pending update in, of nothing as well. */
static int hashes_apply(host_run *h) {
    HOST_TRY(h, zero_write_tensor(h->z, h->spec->desc[0].name, ZERO_MOMENT_1, 0, 0, NULL));
    return 1;
}

/* What this rank would save: names, ranges and bytes as they are stored. */
static int hashes_shards(host_run *h, uint64_t *hash) {
    zero_counters n;
    HOST_TRY(h, zero_state_begin(h->z));
    for (int i = 0; i < zero_state_ranges(h->z, 0); i++) {
        zero_range range;
        HOST_TRY(h, zero_state_range(h->z, 0, i, &range));
        if (range.kind == ZERO_PARAMETER)
            continue; /* with delays, where nothing is pending: as the
                         weights */
        const size_t bytes = range.count * zero_type_bytes(range.type);
        void *values = malloc(bytes + 1);
        const zero_result got = zero_state_get(h->z, &range, values);
        *hash = hashes_bytes(*hash, range.name, strlen(range.name));
        *hash = hashes_number(hashes_number(*hash, (double)range.first), (double)range.count);
        if (!got) *hash = hashes_bytes(*hash, values, bytes);
        free(values);
        HOST_TRY(h, got);
    }
    zero_state_counters(h->z, &n);
    *hash = hashes_number(hashes_number(*hash, (double)n.steps), (double)n.skipped);
    *hash = hashes_number(hashes_number(*hash, (double)n.iteration), (double)n.last_overflow);
    *hash = hashes_number(hashes_number(*hash, (double)n.scale), n.hysteresis);
    HOST_TRY(h, zero_state_end(h->z, 0));
    return 1;
}

static int hashes_plan(host_run *h, uint64_t *column) {
    zero_plan plan;
    HOST_TRY(h, zero_query_plan(h->z, &plan));
    for (int u = 0; u < plan.units; u++) {
        zero_plan_unit unit;
        uint64_t hash = column[HASH_units];
        HOST_TRY(h, zero_query_plan_unit(h->z, u, &unit));
        hash = hashes_number(hashes_number(hash, (double)unit.numel), (double)unit.padded);
        hash = hashes_number(hashes_number(hash, unit.reductions), unit.gathers);
        column[HASH_units] =
            hashes_number(hashes_number(hash, unit.unsharded), (double)unit.sent_bytes);
    }
    column[HASH_param] = plan.param_bytes;
    column[HASH_grad] = plan.grad_bytes;
    column[HASH_optimizer] = plan.optimizer_bytes;
    column[HASH_buffer] = plan.buffer_bytes;
    column[HASH_accumulator] = plan.accumulator_bytes;
    column[HASH_kept] = plan.kept_bytes;
    column[HASH_formula] = plan.formula_bytes;
    column[HASH_formula_sent] = plan.formula_sent_bytes;
    column[HASH_planned] = plan.sent_bytes;
    return 1;
}

static int hashes_counts(host_run *h, uint64_t *column) {
    zero_stats stats;
    zero_plan plan;
    HOST_TRY(h, zero_query_plan(h->z, &plan));
    HOST_TRY(h, zero_query_stats(h->z, &stats));
    column[HASH_sent] = stats.sent_bytes;
    column[HASH_mapped] = stats.mapped_bytes;
    column[HASH_reductions] = stats.reductions;
    column[HASH_gathers] = stats.gathers;
    column[HASH_allocated] = stats.allocated_bytes;
    column[HASH_clips] = h->spec->adamw.max_norm > 0;
#if ZERO_ABI > 1 /* the older one agrees by the host's own exchange */
    column[HASH_verdict_planned] = plan.verdict_bytes;
    column[HASH_verdict] = stats.verdict_bytes;
    if (stats.verdict_bytes != HASHES_STEPS * plan.verdict_bytes)
        test_rank_fail(h->rank, "the verdicts' bytes are not what was planned");
#endif
#if ZERO_ABI > 3
    column[HASH_file] = plan.file_bytes;
    column[HASH_file_read] = plan.file_read_bytes;
    column[HASH_file_written] = plan.file_written_bytes;
    column[HASH_file_moved] = stats.file_written_bytes;
#endif
    if (stats.param_bytes != column[HASH_param] || stats.grad_bytes != column[HASH_grad]
        || stats.optimizer_bytes != column[HASH_optimizer]
        || stats.buffer_bytes != column[HASH_buffer])
        test_rank_fail(h->rank, "what is allocated is not what was planned");
    return 1;
}

static void hashes_rank(test_rank *rank) {
    hashes_case *c = (hashes_case *)rank->arg;
    uint64_t *column = c->column[rank->rank];
    host_run h;
    int ok = host_open(&h, &c->spec, rank) && hashes_plan(&h, column);
    for (int step = 0; step < c->spec.steps && ok; step++)
        ok = hashes_step(&h, c, &column[HASH_reports]);
    ok = ok && hashes_counts(&h, column) && hashes_apply(&h)
         && hashes_shards(&h, &column[HASH_shards]);
    for (int t = 0; t < c->spec.ntensors && ok; t++) {
        uint64_t *w = &column[HASH_weights], *s = &column[HASH_state];
        *w = hashes_tensor(&h, *w, t, ZERO_PARAMETER);
        *w = hashes_tensor(&h, *w, t, ZERO_MASTER);
        *s = hashes_tensor(&h, *s, t, ZERO_MOMENT_1);
        if (c->spec.cfg.optimizer <= ZERO_ADAM) *s = hashes_tensor(&h, *s, t, ZERO_MOMENT_2);
    }
    zero_destroy(h.z);
}

/* ---- all of them ---- */

static const char *hashes_part = "";
static int hashes_every = 1; /* a configuration of so many */
static int hashes_number_of; /* configurations so far */

static void hashes_print(const hashes_case *c) {
    printf("%s", c->name);
    for (int k = 0; k < HASHES_N; k++) {
        uint64_t all = 0;
        for (int r = 0; r < c->spec.nranks; r++)
            all = k < HASHES_MIXED ? test_mix(all ^ c->column[r][k]) : all + c->column[r][k];
        printf(k < HASHES_MIXED ? " %016llx" : " %llu", (unsigned long long)all);
    }
    printf("\n");
}

static void hashes_run(hashes_case *c, const hashes_pick *pick, int processes) {
    int ok;
    hashes_spec(c, ++hashes_number_of, pick);
    if (!strstr(c->name, hashes_part) || hashes_number_of % hashes_every) return;
    const host_spec *s = &c->spec;
    (void)alarm(100); /* a wait for ever is a failure */
    if (c->alone) {
        test_rank one;
        memset(&one, 0, sizeof one);
        test_rank_set(&one, 0, 1, NULL, 0, c);
        hashes_rank(&one);
        ok = !one.failed;
        snprintf(test_first, sizeof test_first, "%.500s", one.why);
    } else if (processes)
        ok = test_processes(s->nranks, s->node_size, hashes_rank, c, 90);
    else
        ok = test_ranks(s->nranks, s->node_size, hashes_rank, c);
    for (int r = 1; r < s->nranks && ok; r++)
        ok = c->column[r][HASH_weights] == c->column[0][HASH_weights]
             && c->column[r][HASH_state] == c->column[0][HASH_state]
             && c->column[r][HASH_reports] == c->column[0][HASH_reports];
    if (test_check(ok, "%s: %s", c->name, test_first[0] ? test_first : "ranks differ"))
        hashes_print(c);
}

/* Stages by what they are crossed with; the rest is drawn. */
static void hashes_stage(hashes_case *c, int stage) {
    const hashes_pick any = {stage, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0};
    for (int i = 0; i < HASHES_TYPES * HASHES_RULES; i++) {
        hashes_pick p = any;
        p.type = i / HASHES_RULES;
        p.rule = i % HASHES_RULES;
        hashes_run(c, &p, 0);
    }
    for (int i = 0; i < HASHES_GROUPS * 5; i++) { /* 1, 2 and 3 micro-steps, LOCAL and SHARDED */
        hashes_pick p = any;
        p.group = i / 5;
        p.micro = (i % 5 + 1) / 2;
        p.sharded = i % 2;
        hashes_run(c, &p, 0);
    }
    for (int i = 0; i < 24; i++) { /* what only stage 3 has, and what all have */
        hashes_pick p = any;
        p.overlap = i % 2;
        p.model = i / 2 % 3;
        if (stage == 3) p.prefetch = i / 6;
        if (stage < 3) p.bucket = i / 6 % 3;
        p.mapping = (i + i / 6) % 2;
        hashes_run(c, &p, 0);
    }
}

/* Tiers, alone and together: what they end with is what all in memory does. */
static void hashes_away(hashes_case *c) {
    for (int i = 0; i < (ZERO_ABI > 3 ? 4 * 14 : 0); i++) {
        hashes_pick p = {i % 4, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 1 + i / 4};
        uint64_t ends[HASHES_RANKS][HASHES_N];
        hashes_run(c, &p, 0);
        if (!strstr(c->name, hashes_part) || hashes_number_of % hashes_every) continue;
        memcpy(ends, c->column, sizeof ends);
        hashes_number_of--; /* the same again */
        p.tiers = 0;
        hashes_run(c, &p, 0);
        const int ran = strstr(c->name, hashes_part) != NULL;
        for (int r = 0; r < c->spec.nranks && ran; r++)
            (void)test_check(!memcmp(ends[r], c->column[r], HASH_units * sizeof ends[r][0]),
                             "%s: other bits than with tiers %d", c->name, 1 + i / 4);
    }
}

int main(int argc, char **argv) {
    hashes_case *c = (hashes_case *)test_shared(sizeof *c);
    if (argc > 1) hashes_part = argv[1];
    if (argc > 2 && atoi(argv[2]) > 0) hashes_every = atoi(argv[2]);
    printf("name");
    for (int k = 0; k < HASHES_N; k++) printf(" %s", hashes_names[k]);
    printf("\n");
#ifndef __CUDACC__ /* its local ranks are threads */
    for (int i = 0; i < 24; i++) {
        const hashes_pick p = {i % 4, -1, -1, 1 + i % 6, -1, -1, -1, -1, -1, i / 4 % 2, -1, 0};
        hashes_run(c, &p, 1);
    }
#endif
    for (int stage = 0; stage < 4; stage++) hashes_stage(c, stage);
#ifndef __CUDACC__
    hashes_away(c);
#endif
    return test_summary();
}

/* test_frozen.c [FOLDER] - frozen tensors. They stay as they are, and the others train as plain
   AdamW on whole tensors, or as next to tensors that are trained with learning rate 0: at every
   stage, with every type, rule, tier and kind of traffic. They take no gradient memory, no state
   and no reduction. State moves between runs that froze others. Files are made in FOLDER (.). */
#include "../shared/host.h"

#include <stddef.h>

enum { FROZEN_STEPS = 3, FROZEN_RANKS = 4, FROZEN_TENSORS = 7 };

static const char *frozen_folder = ".";

/* A tied embedding and its positions, blocks with matrices, vectors and kept norms, and a head. */
static const zero_tensor_desc frozen_table[FROZEN_TENSORS] = {
    {"emb", 700, 1, .uses = 2},
    {"pos", 91, .layers = 1},
    {"mat", 24 * 31, 4, .unit = 1},
    {"low", 24 * 3, 4, .unit = 1},
    {"vec", 17, 4, .unit = 1, .flags = ZERO_NO_DECAY | ZERO_ONE_D},
    {"norm", 9, 4, .unit = 1, .flags = ZERO_KEEP | ZERO_NO_DECAY},
    {"out", 35, 1, .unit = 5}};
/* LAYERS: some layers of the blocks, except of kept norms. */
enum {
    EMB = 1,
    POS = 2,
    MAT = 4,
    LOW = 8,
    VEC = 16,
    NORM = 32,
    OUT = 64,
    EVERY = 127,
    LAYERS = 128
};
static const char frozen_layers[] = {1, 1, 0, 1};

/* The sets that are frozen: one tensor, whole units, kept ones, all but one, all. */
static const int frozen_sets[] = {
    MAT,         EMB,          EMB | POS,       NORM,  VEC,    MAT | NORM,
    EVERY - LOW, EVERY - NORM, MAT | LOW | VEC, EVERY, LAYERS, LAYERS | EMB | POS};
enum { FROZEN_SETS = sizeof frozen_sets / sizeof *frozen_sets };

static void frozen_spec(host_spec *s, int set, int stage) {
    host_small(s, 17, FROZEN_RANKS, stage, frozen_table, FROZEN_TENSORS);
    s->steps = FROZEN_STEPS;
    s->units = 6;
    s->integer = 1;
    for (int t = 0; t < FROZEN_TENSORS; t++)
        if (set >> t & 1) s->desc[t].flags |= ZERO_FROZEN;
    for (int t = 2; t < 5; t++)
        if (set & LAYERS) s->desc[t].frozen = frozen_layers;
    s->adamw.max_norm = 0;
    s->rows[2] = 24;
    s->cols[2] = 31;
    s->cfg.timeout_s = 60;
    s->cfg.folder = frozen_folder;
}

/* ---- one run ---- */

typedef struct frozen_run { /* spec first: host.h passes it on */
    host_spec spec;
    int compares, looks;     /* with plain AdamW: at the end; in every hook */
    float *weights, *states; /* rank 0's copies of all weights, then of master, m and v; or NULL */
    zero_plan plan;
    zero_stats before, after; /* the steps; rank 0's */
} frozen_run;

static size_t frozen_numel(const host_spec *s) {
    size_t n = 0;
    for (int t = 0; t < s->ntensors; t++) n += host_numel(s, t);
    return n;
}

/* Reads a kind of all tensors of `set`. */
static int frozen_read(host_run *h, zero_kind kind, int set, float *values) {
    for (int t = 0; t < h->spec->ntensors; t++) {
        const size_t n = host_numel(h->spec, t);
        if (set >> t & 1 && (kind != ZERO_MOMENT_2 || host_two(h->spec, t)))
            HOST_TRY(h, zero_read_tensor(h->z, h->spec->desc[t].name, kind, 0, n, values));
        values += n;
    }
    return 1;
}

/* Copies all weights, and the state of tensors that neither run has frozen or pinned. */
static int frozen_keep(host_run *h, frozen_run *run) {
    static const zero_kind kinds[] = {ZERO_MASTER, ZERO_MOMENT_1, ZERO_MOMENT_2};
    const size_t n = frozen_numel(h->spec);
    int trained = ~h->spec->pinned, ok;
    for (int t = 0; t < h->spec->ntensors; t++)
        for (size_t l = 0; l < 4; l++) /* also those with some frozen layers */
            if (host_frozen(h->spec, t, h->spec->desc[t].layers > 1 ? l : 0)) trained &= ~(1 << t);
    float *all = (float *)calloc(4 * n, sizeof *all); /* every rank takes part in a read */
    ok = frozen_read(h, ZERO_PARAMETER, EVERY, all);
    for (int k = 0; k < 3 && ok; k++)
        ok = frozen_read(h, kinds[k], trained, all + (size_t)(1 + k) * n);
    if (!h->rank->rank && run->weights) memcpy(run->weights, all, 4 * n * sizeof *all);
    free(all);
    return ok;
}

static int frozen_train(host_run *h, frozen_run *run, host_reference *reference) {
    const host_spec *s = h->spec;
    const int sharded = s->micro_steps > 1 && s->cfg.accumulation == ZERO_ACCUMULATE_SHARDED;
    zero_plan plan;
    zero_stats before, after;
    HOST_TRY(h, zero_query_plan(h->z, &plan));
    HOST_TRY(h, zero_query_stats(h->z, &before));
    for (h->step = 0; h->step < s->steps;) {
        for (h->micro = 0; h->micro < s->micro_steps; h->micro++)
            if (!host_train_pass(h)) return 0;
        host_reference_step(reference, s, sharded, h->step, 1);
        HOST_TRY(h, zero_reduce(h->z));
        /* reading would count as reads of the file */
        const int seen = run->compares && !s->cfg.gradient_tier;
        if (seen && !host_compare(h, ZERO_GRADIENT, reference->g, "gradient")) return 0;
        HOST_TRY(h, zero_step(h->z, &s->adamw));
        h->step++;
    }
    HOST_TRY(h, zero_query_stats(h->z, &after));
    if (!s->cfg.delay_from) { /* the last update is still pending */
        if (after.sent_bytes - before.sent_bytes != plan.sent_bytes * (uint64_t)s->steps)
            test_rank_fail(h->rank, "sent %llu bytes in %d steps, planned %zu a step",
                           (unsigned long long)(after.sent_bytes - before.sent_bytes), s->steps,
                           plan.sent_bytes);
    }
    if (!h->rank->rank) run->plan = plan, run->before = before, run->after = after;
    return !h->rank->failed;
}

static void frozen_body(test_rank *r) {
    frozen_run *run = (frozen_run *)r->arg;
    host_run h;
    host_reference reference;
    host_reference_open(&reference, &run->spec);
    int ok = host_open(&h, &run->spec, r);
    h.reference = run->looks ? &reference : NULL;
    ok = ok && frozen_train(&h, run, &reference) && frozen_keep(&h, run);
    if (ok && run->looks) ok = host_evaluate(&h);
    if (ok && run->compares)
        (void)(host_compare(&h, ZERO_PARAMETER, reference.p, "parameter")
               && host_compare(&h, ZERO_MASTER, reference.master, "master")
               && host_compare(&h, ZERO_MOMENT_1, reference.m, "m")
               && host_compare(&h, ZERO_MOMENT_2, reference.v, "v"));
    zero_destroy(h.z);
    host_reference_close(&reference, &run->spec);
}

static int frozen_go(frozen_run *run) {
    return test_ranks(run->spec.nranks, run->spec.node_size, frozen_body, run);
}

/* ---- against plain AdamW ---- */

/* Settings that leave the result as it is. */
enum {
    AS_IS,
    NO_OVERLAP,
    NO_MAPPING,
    NO_PREFETCH,
    DEEP,
    NONE_STAYS,
    ALL_STAY,
    LOCAL_SUMS,
    SHARDED_SUMS,
    BF16,
    BF16_SPLIT,
    BF16_SUMS,
    F16,
    FILES,
    FILE_SHARE,
    FILES_BF16,
    SECOND,
    REPLICAS,
    QUANTIZED,
    QUANTIZED_FROZEN,
    SLOTS,
    ADOPTS,
    RECOMPUTES,
    ODD_RANKS,
    ALONE,
    FROZEN_WAYS
};

static void frozen_set_way(frozen_run *run, int way) {
    host_spec *s = &run->spec;
    zero_config *c = &s->cfg;
    const int files = way == FILES || way == FILE_SHARE || way == FILES_BF16;
    c->no_overlap = way == NO_OVERLAP;
    c->no_mapping = way >= NO_MAPPING && way <= ALL_STAY;
    c->prefetch = way == NO_PREFETCH ? ZERO_NONE : way == DEEP ? 5 : 0;
    c->persistence_numel = way == NONE_STAYS || files ? ZERO_NONE : way == ALL_STAY ? 1 << 20 : 0;
    if (way == LOCAL_SUMS || way == SHARDED_SUMS || way == BF16_SUMS || way == FILES_BF16)
        s->micro_steps = 3;
    c->accumulation = way == SHARDED_SUMS || (way == FILES_BF16 && c->stage >= 2)
                          ? ZERO_ACCUMULATE_SHARDED
                          : ZERO_ACCUMULATE_LOCAL;
    if (way == BF16 || way == BF16_SPLIT || way == BF16_SUMS || way == FILES_BF16)
        c->type = ZERO_BF16, c->grads = ZERO_GRAD_AS_TYPE;
    if (way == BF16_SPLIT || way == FILES_BF16) c->master = ZERO_MASTER_SPLIT;
    if (way == F16) c->type = ZERO_F16, c->grads = ZERO_GRAD_AS_TYPE, c->scaler.fixed = 4;
    if (files) c->optimizer_tier = ZERO_FILE;
    if (files && c->stage >= 2) c->gradient_tier = ZERO_FILE;
    if (files && c->stage == 3) c->parameter_tier = ZERO_FILE;
    if (way == FILE_SHARE) c->offload_share = 0.5f;
    if (way == SECOND && c->stage == 3) c->second_ranks = 2, c->no_mapping = 1;
    if (way == REPLICAS && c->stage) c->shard_ranks = s->shard_ranks = 2;
    if (way == QUANTIZED && c->stage == 3) c->weight_bits = 8;
    if (way == QUANTIZED_FROZEN && c->stage == 3) c->frozen_weight_bits = 4;
    run->looks = !c->weight_bits && !c->frozen_weight_bits;
    s->slots = way == SLOTS;
    s->adopts = way == ADOPTS;
    s->recompute = way == RECOMPUTES;
    if (way == ODD_RANKS) s->nranks = 3;
    if (way == ALONE) s->nranks = 1;
}

static void frozen_adamw(int set, int stage, int way) {
    frozen_run run;
    memset(&run, 0, sizeof run);
    frozen_spec(&run.spec, set, stage);
    run.compares = 1;
    frozen_set_way(&run, way);
    const int ok = frozen_go(&run);
    test_check(ok, "frozen %d, stage %d, way %d: %s", set, stage, way, test_first);
    if (!ok || !run.spec.cfg.optimizer_tier) return;
    const uint64_t read = run.after.file_read_bytes - run.before.file_read_bytes,
                   written = run.after.file_written_bytes - run.before.file_written_bytes;
    const uint64_t steps = (uint64_t)run.spec.steps;
    test_check(read == steps * run.plan.file_read_bytes
                   && written == steps * run.plan.file_written_bytes
                   && (written || (set | NORM) == EVERY),
               "frozen %d, stage %d, way %d: %llu bytes read and %llu written, planned %zu and %zu",
               set, stage, way, (unsigned long long)read, (unsigned long long)written,
               run.plan.file_read_bytes, run.plan.file_written_bytes);
}

/* ---- against tensors whose learning rate is 0 ---- */

typedef struct frozen_other {
    const char *name;
    zero_optimizer optimizer;
    zero_type type;
    zero_master master;
    int delay, files, micro_steps;
    zero_state_type state;
} frozen_other;
static const frozen_other frozen_others[] = {
    {.name = "AdamW"},
    {.name = "Adam", .optimizer = ZERO_ADAM},
    {.name = "Lion, split", .optimizer = ZERO_LION, .type = ZERO_BF16, .master = ZERO_MASTER_SPLIT},
    {.name = "SGD, no master",
     .optimizer = ZERO_SGD,
     .type = ZERO_BF16,
     .master = ZERO_MASTER_NONE},
    {.name = "Adagrad, files", .optimizer = ZERO_ADAGRAD, .files = 1},
    {.name = "LAMB", .optimizer = ZERO_LAMB},
    {.name = "LAMB, bf16, files", .optimizer = ZERO_LAMB, .type = ZERO_BF16, .files = 1},
    {.name = "Muon", .optimizer = ZERO_MUON},
    {.name = "Muon, split, files",
     .optimizer = ZERO_MUON,
     .type = ZERO_BF16,
     .master = ZERO_MASTER_SPLIT,
     .files = 1},
    {.name = "AdamW, delayed", .delay = 2},
    {.name = "AdamW, delayed, files, sums", .delay = 2, .files = 1, .micro_steps = 2},
    {.name = "Lion, delayed, split",
     .optimizer = ZERO_LION,
     .type = ZERO_BF16,
     .master = ZERO_MASTER_SPLIT,
     .delay = 1},
    {.name = "AdamW, split, 8-bit state, delayed, files",
     .type = ZERO_BF16,
     .master = ZERO_MASTER_SPLIT,
     .state = ZERO_STATE_8BIT,
     .delay = 1,
     .files = 1},
    {.name = "Muon, 8-bit state, sums",
     .optimizer = ZERO_MUON,
     .state = ZERO_STATE_8BIT,
     .micro_steps = 2},
    {.name = "LAMB, bf16 state, files",
     .optimizer = ZERO_LAMB,
     .state = ZERO_STATE_BF16,
     .files = 1}};
enum { FROZEN_OTHERS = sizeof frozen_others / sizeof *frozen_others };

static void frozen_other_run(frozen_run *run, const frozen_other *o, int set, int pinned,
                             int stage) {
    memset(run, 0, sizeof *run);
    frozen_spec(&run->spec, set, stage);
    zero_config *c = &run->spec.cfg;
    run->spec.integer = 0;
    run->spec.pinned = pinned;
    run->spec.steps = 4;
    run->spec.micro_steps = o->micro_steps ? o->micro_steps : 1;
    c->accumulation = ZERO_ACCUMULATE_LOCAL;
    c->optimizer = o->optimizer;
    c->type = o->type;
    c->master = o->master;
    c->state_type = o->state;
    if (o->type) c->grads = ZERO_GRAD_AS_TYPE;
    c->delay_from = o->delay;
    if (o->files) c->optimizer_tier = ZERO_FILE;
    if (o->files && stage == 3) c->parameter_tier = ZERO_FILE;
    if (o->files) c->persistence_numel = ZERO_NONE;
    run->weights = (float *)calloc(4 * frozen_numel(&run->spec), sizeof(float));
}

static void frozen_pinned(const frozen_other *o, int set) {
    frozen_run pinned, frozen;
    frozen_other_run(&pinned, o, 0, set, 1);
    const int ok = frozen_go(&pinned);
    test_check(ok, "%s, pinned %d: %s", o->name, set, test_first);
    const size_t bytes = 4 * frozen_numel(&pinned.spec) * sizeof(float);
    for (int stage = 0; stage < 4 && ok; stage++) {
        frozen_other_run(&frozen, o, set, 0, stage);
        const int went = frozen_go(&frozen);
        test_check(went && !memcmp(pinned.weights, frozen.weights, bytes),
                   "%s, frozen %d, stage %d: other weights or state than next to tensors that are "
                   "trained with learning rate 0; %s",
                   o->name, set, stage, went ? "" : test_first);
        free(frozen.weights);
    }
    free(pinned.weights);
}

/* ---- quantized gradients: the same bits at every stage, near those of exact gradients ---- */

static int frozen_gradients_run(frozen_run *run, int set, int stage, int bits,
                                zero_state_type state) {
    memset(run, 0, sizeof *run);
    frozen_spec(&run->spec, set, stage);
    run->spec.integer = 0;
    run->spec.cfg.gradient_bits = bits;
    run->spec.cfg.state_type = state;
    run->weights = (float *)calloc(4 * frozen_numel(&run->spec), sizeof(float));
    return frozen_go(run);
}

/* Returns how many weights of trained layers differ. far: by more than AdamW's steps can differ; of
   frozen ones, at all. */
static long frozen_differ(const frozen_run *a, const frozen_run *b, long *far) {
    const host_spec *s = &a->spec;
    const float most = 2 * s->adamw.lr * FROZEN_STEPS;
    long n = 0;
    size_t at = 0;
    *far = 0;
    for (int t = 0; t < s->ntensors; t++)
        for (size_t i = 0; i < host_numel(s, t); i++, at++) {
            const int stays = host_stays(s, t, i), other = a->weights[at] != b->weights[at];
            n += other && !stays;
            *far += stays ? other : !(fabsf(a->weights[at] - b->weights[at]) <= most);
        }
    return n;
}

static void frozen_gradients(int set, int bits, zero_state_type state) {
    frozen_run exact, first, run;
    long far;
    const int ok = frozen_gradients_run(&exact, set, 1, 0, state)
                   & frozen_gradients_run(&first, set, 1, bits, state);
    const long n = frozen_differ(&first, &exact, &far);
    test_check(ok && !far && !n == (set == EVERY),
               "frozen %d, gradients of %d bits: %ld weights differ from those of exact gradients, "
               "%ld too much; %s",
               set, bits, n, far, test_first);
    for (int stage = 2; stage < 4; stage++) {
        const int went = frozen_gradients_run(&run, set, stage, bits, state);
        test_check(
            went
                && !memcmp(run.weights, first.weights, 4 * frozen_numel(&run.spec) * sizeof(float)),
            "frozen %d, gradients of %d bits, stage %d: other weights or state than at stage "
            "1; %s",
            set, bits, stage, test_first);
        free(run.weights);
    }
    free(exact.weights);
    free(first.weights);
}

/* ---- bytes ---- */

typedef struct frozen_bytes {
    zero_plan plan;
    zero_plan_unit unit[7];
} frozen_bytes;

/* The plan of a model of four ranks without its tensors of `without`. */
static int frozen_plan_of(frozen_bytes *b, int set, int without, int stage, zero_type type) {
    const zero_comm comm = {ZERO_COMM_SELF, 0, NULL, 0};
    zero_config cfg = {.stage = stage, .type = type, .log = test_quiet, .no_mapping = 1};
    zero_ctx *z = NULL;
    host_spec s;
    frozen_spec(&s, set, stage);
    int ok = !zero_create(&z, &cfg, &comm);
    for (int t = 0; t < FROZEN_TENSORS && ok; t++)
        if (!(without >> t & 1)) ok = !zero_tensor(z, &s.desc[t]);
    ok = ok && !zero_query_plan(z, &b->plan);
    for (int u = 0; u < b->plan.units && u < 7 && ok; u++)
        ok = !zero_query_plan_unit(z, u, &b->unit[u]);
    if (!ok) (void)fprintf(stderr, "%s\n", zero_last_error(z));
    zero_destroy(z);
    return ok;
}

/* Gradients and state are those of a model without the frozen tensors, parameters those of all. */
static void frozen_memory(int stage, zero_type type) {
    const int set = EMB | MAT; /* each unit has trained tensors as well */
    frozen_bytes all, frozen, without;
    memset(&frozen, 0, sizeof frozen);
    const int ok = frozen_plan_of(&all, 0, 0, stage, type)
                   && frozen_plan_of(&frozen, set, 0, stage, type)
                   && frozen_plan_of(&without, 0, set, stage, type);
    if (!test_check(ok, "stage %d: plans", stage)) return;
    const zero_plan *a = &all.plan, *f = &frozen.plan, *w = &without.plan;
    const size_t master = type == ZERO_F32    ? 8
                          : type == ZERO_BF16 ? 10
                                              : 12,
                 of = zero_type_bytes(type);
    test_check(f->numel == a->numel && f->grad_bytes == w->grad_bytes
                   && f->optimizer_bytes == w->optimizer_bytes,
               "stage %d: gradients %zu and state %zu bytes, without the frozen tensors %zu, %zu",
               stage, f->grad_bytes, f->optimizer_bytes, w->grad_bytes, w->optimizer_bytes);
    test_check(f->formula_bytes == a->formula_bytes - (master + of) * (a->numel - w->numel),
               "stage %d: the formula says %zu, of all trained %zu", stage, f->formula_bytes,
               a->formula_bytes);
    test_check(f->padded_numel * of == f->param_bytes, "one rank keeps %zu bytes of %zu elements",
               f->param_bytes, f->padded_numel);
    for (int u = 0; u < 6; u++)
        test_check(frozen.unit[u].numel == all.unit[u].numel
                       && frozen.unit[u].reductions == without.unit[u].reductions,
                   "stage %d, unit %d: %zu elements, %d reductions", stage, u, frozen.unit[u].numel,
                   frozen.unit[u].reductions);
    if (!frozen_plan_of(&frozen, EMB | POS, 0, stage, type)) return;
    test_check(frozen.unit[0].reductions == 0 && frozen.unit[1].reductions == 1,
               "stage %d: a frozen unit has %d reductions, the next %d", stage,
               frozen.unit[0].reductions, frozen.unit[1].reductions);
}

/* A measured run: reductions, gathers and bytes of a step, at every stage. */
static void frozen_traffic(int stage) {
    frozen_run run, trained;
    memset(&run, 0, sizeof run);
    frozen_spec(&run.spec, EMB | POS | MAT, stage);
    run.spec.cfg.no_mapping = 1;
    trained = run;
    for (int t = 0; t < FROZEN_TENSORS; t++) trained.spec.desc[t].flags &= ~ZERO_FROZEN;
    const int ok = frozen_go(&run) && frozen_go(&trained);
    const uint64_t reductions = run.after.reductions - run.before.reductions,
                   of_all = trained.after.reductions - trained.before.reductions;
    test_check(ok && reductions == of_all - FROZEN_STEPS
                   && run.plan.sent_bytes < trained.plan.sent_bytes,
               "stage %d: %llu reductions instead of %llu, %zu bytes instead of %zu: %s", stage,
               (unsigned long long)reductions, (unsigned long long)of_all, run.plan.sent_bytes,
               trained.plan.sent_bytes, test_first);
}

typedef struct frozen_host {
    float *a, *b;
} frozen_host;

/* ---- quantized gathers of frozen tensors ---- */

typedef struct frozen_bits {
    int weights, frozen; /* bits */
    size_t sent;         /* bytes of a step, planned */
    int exact, near;     /* trained weights in a hook that are the stored ones, or within 0.1 */
    int frozen_exact, frozen_near; /* the same of frozen weights */
} frozen_bits;
enum { BITS_NUMEL = 1000, BITS_RANKS = 2 };

static void frozen_bits_body(test_rank *r) {
    frozen_bits *b = (frozen_bits *)r->arg;
    const zero_config cfg = {.stage = 3,
                             .log = test_quiet,
                             .weight_bits = b->weights,
                             .frozen_weight_bits = b->frozen,
                             .persistence_numel = ZERO_NONE,
                             .no_mapping = 1};
    const zero_tensor_desc table[] = {
        {.name = "a", .numel = BITS_NUMEL, .field = offsetof(frozen_host, a)},
        {.name = "b",
         .numel = BITS_NUMEL,
         .flags = ZERO_FROZEN,
         .field = offsetof(frozen_host, b)}};
    const zero_comm comm = test_comm(r);
    frozen_host p = {NULL, NULL};
    float x[BITS_NUMEL];
    zero_plan plan;
    zero_ctx *z = NULL;
    for (int i = 0; i < BITS_NUMEL; i++) x[i] = sinf((float)i);
    const int ok = !zero_create(&z, &cfg, &comm) && !zero_tensors(z, table, 2) && !zero_build(z)
                   && !zero_write_tensor(z, "a", ZERO_PARAMETER, 0, BITS_NUMEL, x)
                   && !zero_write_tensor(z, "b", ZERO_PARAMETER, 0, BITS_NUMEL, x)
                   && !zero_pass_begin(z, ZERO_EVAL, 0, 1) && !zero_forward_begin(z, 0, &p);
    for (int i = 0; i < BITS_NUMEL && ok && !r->rank; i++) {
        b->exact += p.a[i] == x[i];
        b->near += fabsf(p.a[i] - x[i]) < 0.1f;
        b->frozen_exact += p.b[i] == x[i];
        b->frozen_near += fabsf(p.b[i] - x[i]) < 0.1f;
    }
    if (!ok || zero_forward_end(z, 0) || zero_pass_end(z) || zero_query_plan(z, &plan))
        test_rank_fail(r, "%s", zero_last_error(z));
    else if (!r->rank)
        b->sent = plan.sent_bytes;
    zero_destroy(z);
}

/* Only the kinds that are asked for are rounded, and take fewer bytes. */
static void frozen_quantized(void) {
    frozen_bits none = {0}, frozen = {.frozen = 4}, both = {.weights = 8},
                two = {8, 4, 0, 0, 0, 0, 0};
    frozen_bits *const all[] = {&none, &frozen, &both, &two};
    for (int i = 0; i < 4; i++) {
        frozen_bits *b = all[i];
        const int ok = test_ranks(BITS_RANKS, 0, frozen_bits_body, b);
        test_check(ok && b->near == BITS_NUMEL && b->frozen_near == BITS_NUMEL
                       && (b->exact == BITS_NUMEL) == !b->weights
                       && (b->frozen_exact == BITS_NUMEL) == !(b->weights || b->frozen),
                   "bits %d and %d: %d trained and %d frozen weights are exact; %s", b->weights,
                   b->frozen, b->exact, b->frozen_exact, test_first);
    }
    test_check(none.sent > frozen.sent && frozen.sent > both.sent && both.sent > two.sent,
               "sent bytes: %zu, frozen 4 bits %zu, all 8 bits %zu, frozen 4 and others 8 bits %zu",
               none.sent, frozen.sent, both.sent, two.sent);
    const zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
    const zero_tensor_desc trained = {.name = "a", .numel = 40, .flags = ZERO_BY_SLOT};
    const zero_config cfg = {.stage = 3, .log = test_quiet, .frozen_weight_bits = 8};
    zero_ctx *z = NULL;
    const zero_result r =
        zero_create(&z, &cfg, &self) || zero_tensor(z, &trained) ? ZERO_OK : zero_build(z);
    test_check(r == ZERO_ERR_ARGUMENT && strstr(zero_last_error(z), "no tensor is frozen"),
               "nothing is frozen: %s", zero_last_error(z));
    zero_destroy(z);
}

/* ---- state between runs that froze others ---- */

typedef struct frozen_move {
    host_spec from, to;
    long saved; /* weights that the ranks of the first run save */
} frozen_move;

/* Puts the state of the first run, whose tensors of `had` were frozen, rank by rank. */
static int frozen_put(host_run *h, const host_reference *of, int had) {
    zero_counters counters;
    HOST_TRY(h, zero_state_begin(h->z));
    for (int i = 0; i < zero_state_ranges(h->z, 1); i++) {
        zero_range r;
        int t = 0;
        HOST_TRY(h, zero_state_range(h->z, 1, i, &r));
        while (strcmp(h->spec->desc[t].name, r.name)) t++;
        const float *const from[] = {of->master[t], of->m[t], of->v[t]};
        if (r.kind != ZERO_MASTER && had >> t & 1) continue; /* the first run has none */
        const int k = r.kind == ZERO_MASTER ? 0 : r.kind - ZERO_MOMENT_1 + 1;
        r.type = ZERO_F32; /* rounded where it is kept in another type */
        HOST_TRY(h, zero_state_put(h->z, &r, from[k] + r.first));
    }
    zero_state_counters(h->z, &counters);
    counters.steps = of->steps;
    HOST_TRY(h, zero_state_set_counters(h->z, &counters));
    HOST_TRY(h, zero_state_end(h->z, 1));
    return 1;
}

/* Trains with the first set, and counts the weights that it saves. */
static int frozen_move_from(test_rank *rank, frozen_move *m, host_reference *r) {
    host_run h;
    long saved = 0;
    int ok = host_open(&h, &m->from, rank);
    for (int step = 0; step < 2 && ok; step++) {
        ok = host_train_step(&h);
        host_reference_step(r, &m->from, 0, step, 1);
    }
    ok = ok && host_compare(&h, ZERO_MASTER, r->master, "master");
    for (int i = 0; i < zero_state_ranges(h.z, 0) && ok; i++) {
        zero_range range;
        ok = !zero_state_range(h.z, 0, i, &range);
        saved += range.kind == ZERO_MASTER ? (long)range.count : 0;
    }
    __atomic_add_fetch(&m->saved, saved, __ATOMIC_RELAXED);
    zero_destroy(h.z);
    return ok;
}

/* What the second run must have: weights that it freezes are rounded. */
static void frozen_move_reference(host_reference *r, const host_spec *to) {
    for (int t = 0; t < to->ntensors; t++)
        for (size_t i = 0; i < host_numel(to, t); i++) {
            r->p[t][i] = host_round_weight(to, r->master[t][i]);
            if (!host_stays(to, t, i)) continue;
            r->master[t][i] = r->p[t][i];
            if (!host_all_frozen(to, t)) r->m[t][i] = r->v[t][i] = 0; /* dropped */
        }
}

static void frozen_move_body(test_rank *rank) {
    frozen_move *m = (frozen_move *)rank->arg;
    host_reference r;
    host_run h;
    int had = 0;
    host_reference_open(&r, &m->from);
    for (int t = 0; t < FROZEN_TENSORS; t++) had |= host_all_frozen(&m->from, t) << t;
    const int went = frozen_move_from(rank, m, &r);
    int ok = went && host_open(&h, &m->to, rank);
    ok = ok && frozen_put(&h, &r, had);
    frozen_move_reference(&r, &m->to);
    if (ok) {
        h.reference = &r;
        h.step = 2;
        ok = host_compare(&h, ZERO_PARAMETER, r.p, "parameter") && host_evaluate(&h)
             && host_train_step(&h);
        host_reference_step(&r, &m->to, 0, 2, 1);
        (void)(ok && host_compare(&h, ZERO_PARAMETER, r.p, "parameter")
               && host_compare(&h, ZERO_MASTER, r.master, "master")
               && host_compare(&h, ZERO_MOMENT_1, r.m, "m"));
    }
    if (went) zero_destroy(h.z);
    host_reference_close(&r, &m->from);
}

static void frozen_moves(int from, int to, int stage, int stage_to, zero_master master, int files) {
    frozen_move m;
    memset(&m, 0, sizeof m);
    frozen_spec(&m.from, from, stage);
    frozen_spec(&m.to, to, stage_to);
    host_spec *const both[] = {&m.from, &m.to};
    for (int i = 0; i < 2; i++) {
        zero_config *c = &both[i]->cfg;
        c->type = master == ZERO_MASTER_AUTO ? ZERO_F32 : ZERO_BF16;
        c->grads = ZERO_GRAD_AS_TYPE;
        c->master = master;
        if (files) c->optimizer_tier = ZERO_FILE, c->persistence_numel = ZERO_NONE;
        if (files && c->stage == 3) c->parameter_tier = ZERO_FILE;
    }
    const int ok = test_ranks(FROZEN_RANKS, 0, frozen_move_body, &m);
    test_check(ok && m.saved == (long)frozen_numel(&m.from),
               "from %d frozen at stage %d to %d at stage %d, master %d, files %d: %ld of %zu "
               "weights are saved; %s",
               from, stage, to, stage_to, (int)master, files, m.saved, frozen_numel(&m.from),
               test_first);
}

/* A frozen layer has no state in 8 bits: it is read as zeros, and what is put is left out. The
   first block of the trained layer is put in two pieces. */
static void frozen_codes(void) {
    enum { LAYER = 200 };
    static float values[2 * LAYER], back[2 * LAYER];
    const zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
    const zero_config cfg = {.log = test_quiet, .state_type = ZERO_STATE_8BIT};
    const zero_tensor_desc w = {.name = "w", .numel = LAYER, .layers = 2, .frozen = "\1\0"};
    const zero_range first = {"w", ZERO_MOMENT_1, ZERO_F32, 0, LAYER + 50};
    const zero_range second = {"w", ZERO_MOMENT_1, ZERO_F32, LAYER + 50, LAYER - 50};
    const zero_range all = {"w", ZERO_MOMENT_1, ZERO_F32, 0, 2 * LAYER};
    zero_ctx *z = NULL;
    for (int i = 0; i < 2 * LAYER; i++) values[i] = 1 + (float)i;
    const int ok = !zero_create(&z, &cfg, &self) && !zero_tensors(z, &w, 1) && !zero_build(z)
                   && !zero_state_begin(z) && !zero_state_put(z, &first, values)
                   && !zero_state_put(z, &second, values + LAYER + 50)
                   && !zero_state_get(z, &all, back) && !zero_state_end(z, 0);
    test_check(ok, "codes of a frozen layer: %s", zero_last_error(z));
    for (int i = 0; i < 2 * LAYER; i++) {
        const float expected = i < LAYER ? 0 : values[i];
        test_check(fabsf(back[i] - expected) <= 4, "moment %d is %g, expected about %g", i,
                   (double)back[i], (double)expected);
    }
    zero_destroy(z);
}

/* A tensor all of whose layers are listed as frozen, as on a pipeline's stage, has state of the
   types of a trained one: weights, and moments of 0. A ZERO_FROZEN tensor has weights alone. */
static void frozen_listed(zero_type type, zero_state_type state, zero_optimizer rule) {
    enum { LAYER = 12 };
    static const zero_kind kinds[] = {ZERO_MASTER, ZERO_MOMENT_1, ZERO_MOMENT_2};
    const zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
    zero_config cfg = {.log = test_quiet, .type = type, .state_type = state, .optimizer = rule};
    zero_tensor_desc w[3] = {
        {.name = "trained", .numel = LAYER, .layers = 2},
        {.name = "listed", .numel = LAYER, .layers = 2, .frozen = "\1\1"},
        {.name = "flagged", .numel = LAYER, .layers = 2, .flags = ZERO_FROZEN}};
    zero_type found[3][3] = {{ZERO_F32}};
    size_t count[3][3] = {{0}};
    float values[2 * LAYER], back[2 * LAYER];
    zero_range r;
    zero_ctx *z = NULL;
    for (int t = 0; t < 3; t++) w[t].rows = 3, w[t].cols = 4, w[t].flags |= ZERO_BY_SLOT;
    for (int i = 0; i < 2 * LAYER; i++) values[i] = 1 + (float)i;
    cfg.muon.normalize = rule == ZERO_MUON ? 0.9f : 0;
    int ok = !zero_create(&z, &cfg, &self) && !zero_tensors(z, w, 3) && !zero_build(z)
             && !zero_write_tensor(z, "listed", ZERO_PARAMETER, 0, 2 * LAYER, values)
             && !zero_state_begin(z);
    for (int i = 0; ok && i < zero_state_ranges(z, 0); i++) {
        int t = 0, k = 0;
        ok = !zero_state_range(z, 0, i, &r);
        while (t < 3 && strcmp(w[t].name, r.name) != 0) t++;
        while (k < 3 && kinds[k] != r.kind) k++;
        if (t == 3 || k == 3) continue;
        found[t][k] = r.type;
        count[t][k] += r.count;
        if (t != 1) continue;
        memset(back, 0xFF, sizeof back);
        ok = !zero_state_get(z, &r, back);
        for (size_t j = 0; ok && j < r.count; j++) {
            const float expected = k ? 0 : values[r.first + j];
            test_check(host_get((char *)back, r.type, j) == expected, "listed, kind %d: %g at %zu",
                       (int)r.kind, (double)host_get((char *)back, r.type, j), r.first + j);
        }
        ok = ok && !zero_state_put(z, &r, back);
    }
    ok = ok && !zero_state_end(z, 1)
         && !zero_read_tensor(z, "listed", ZERO_PARAMETER, 0, 2 * LAYER, back);
    test_check(ok && !memcmp(back, values, sizeof back), "listed: %s", zero_last_error(z));
    for (int k = 0; k < 3; k++)
        test_check(found[0][k] == found[1][k] && count[0][k] == count[1][k]
                       && count[2][k] == (k ? 0 : 2 * LAYER),
                   "type %d, state %d, kind %d: trained %zu of type %d, listed %zu of type %d, "
                   "flagged %zu",
                   (int)type, (int)state, k, count[0][k], (int)found[0][k], count[1][k],
                   (int)found[1][k], count[2][k]);
    zero_destroy(z);
}

/* ---- arrays of the host, and sentences ---- */

static float *frozen_array(size_t n, float first) {
    float *x = (float *)malloc(n * sizeof *x);
    for (size_t i = 0; i < n; i++) x[i] = first + (float)i;
    return x;
}

static zero_ctx *frozen_two(frozen_host *p, frozen_host *g, int kept) {
    const zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
    const zero_config cfg = {.log = test_quiet};
    const zero_tensor_desc table[] = {
        {.name = "a", .numel = 40, .flags = kept, .field = offsetof(frozen_host, a)},
        {.name = "b",
         .numel = 50,
         .unit = kept ? 0 : 1,
         .flags = kept | ZERO_FROZEN,
         .field = offsetof(frozen_host, b)}};
    zero_ctx *z = NULL;
    *p = (frozen_host){frozen_array(40, 1), frozen_array(50, 100)};
    *g = (frozen_host){frozen_array(40, 0), frozen_array(50, 0)};
    if (zero_create(&z, &cfg, &self) || zero_tensors(z, table, 2)) exit(2);
    return z;
}

static const zero_hyper frozen_hyper = {0.01f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f};

/* An adopted gradient of a frozen tensor is released, and its pointer is NULL. */
static void frozen_adopted(int kept) {
    frozen_host p, g;
    zero_ctx *z = frozen_two(&p, &g, kept);
    float seen[50];
    int ok = !zero_adopt(z, &p, &g, ZERO_F32, free) && !zero_train_begin(z);
    if (kept) {
        test_check(ok && p.a && p.b && g.a && !g.b && p.b[7] == 107, "kept: wrong pointers");
        for (int i = 0; i < 40 && ok; i++) g.a[i] = 1;
    }
    for (int u = 0; u < 2 && !kept && ok; u++) {
        ok = !zero_forward_begin(z, u, &p);
        test_check(ok && (u ? p.b[7] == 107 : p.a[7] == 8), "unit %d: wrong weights", u);
        ok = ok && !zero_forward_end(z, u);
    }
    for (int u = 1; u >= 0 && !kept && ok; u--) {
        g.b = seen; /* the hook of unit 1 changes it */
        ok = !zero_backward_begin(z, u, &p, &g);
        test_check(ok && (u ? !g.b : g.a && g.b == seen), "unit %d: wrong pointers", u);
        for (int i = 0; i < 40 && ok && !u; i++) g.a[i] = 1;
        ok = ok && !zero_backward_end(z, u);
    }
    ok = ok && !zero_train_end(z, &frozen_hyper, 1, NULL);
    ok = ok && !zero_read_tensor(z, "b", ZERO_PARAMETER, 0, 50, seen);
    test_check(ok && seen[0] == 100 && seen[49] == 149, "kept %d: %s", kept, zero_last_error(z));
    ok = !zero_read_tensor(z, "a", ZERO_PARAMETER, 0, 40, seen);
    test_check(ok && seen[0] < 1, "the trained tensor is not trained");
    zero_destroy(z);
}

/* The gradient of a frozen array that stays the host's is left alone, and may be missing. */
static void frozen_lent(int missing) {
    frozen_host p, g;
    zero_ctx *z = frozen_two(&p, &g, 0);
    float *mine = g.b;
    int ok = !zero_lend(z, &p, ZERO_F32);
    for (int i = 0; i < 40; i++) g.a[i] = 1;
    if (missing) g.b = NULL;
    ok = ok && !zero_lend_train(z, &p, &g, &frozen_hyper, 1, NULL);
    test_check(ok && p.a[0] < 1 && p.b[7] == 107 && g.a[3] == 0 && mine[3] == 3
                   && g.b == (missing ? NULL : mine),
               "lent, missing %d: %s", missing, zero_last_error(z));
    zero_destroy(z);
    free(p.a);
    free(p.b);
    free(g.a);
    free(mine);
}

static void frozen_sentences(void) {
    static const zero_kind none[] = {ZERO_GRADIENT, ZERO_MOMENT_1, ZERO_MOMENT_2};
    frozen_host p, g;
    zero_ctx *z = frozen_two(&p, &g, 0);
    float value = 5;
    int ok = !zero_adopt(z, &p, &g, ZERO_F32, free);
    for (int k = 0; k < 3 && ok; k++) {
        const zero_result r = zero_read_tensor(z, "b", none[k], 0, 1, &value);
        test_check(r == ZERO_ERR_ARGUMENT && strstr(zero_last_error(z), "b is frozen"),
                   "kind %d: %s", (int)none[k], zero_last_error(z));
    }
    ok = ok && !zero_write_tensor(z, "b", ZERO_MASTER, 3, 1, &value);
    ok = ok && !zero_read_tensor(z, "b", ZERO_PARAMETER, 3, 1, &value);
    test_check(ok && value == 5, "a frozen weight is written by name: %s", zero_last_error(z));
    zero_destroy(z);
}

int main(int argc, char **argv) {
    (void)alarm(900);
    if (argc > 1) frozen_folder = argv[1];
    for (int set = 0; set < FROZEN_SETS; set++)
        for (int way = 0; way < FROZEN_WAYS; way++)
            for (int stage = 0; stage < 4; stage++)
                if ((!set || !way || (way + stage + set) % 4 == 0) && test_sampled(3))
                    frozen_adamw(frozen_sets[set], stage, way);
    for (int i = 0; i < FROZEN_OTHERS; i++)
        for (int set = 0; set < FROZEN_SETS; set += 1 + (i + set) % 3)
            if (!(frozen_sets[set] & LAYERS) && test_sampled(3))
                frozen_pinned(&frozen_others[i], frozen_sets[set]);
    for (int set = 0; set < FROZEN_SETS; set++)
        for (int bits = 4; bits <= 8; bits += 4)
            if (test_sampled(2))
                frozen_gradients(frozen_sets[set], bits,
                                 (zero_state_type)((set + bits / 4) % ZERO_STATE_TYPES));
    for (int stage = 0; stage < 4; stage++) {
        frozen_memory(stage, ZERO_F32);
        frozen_memory(stage, ZERO_BF16);
        frozen_traffic(stage);
        frozen_moves(MAT | NORM, EMB | VEC, stage, 3 - stage, ZERO_MASTER_F32, 0);
        frozen_moves(EVERY - LOW, MAT, stage, stage, ZERO_MASTER_SPLIT, stage % 2);
        frozen_moves(0, EMB | POS | NORM, stage, (stage + 1) % 4, ZERO_MASTER_AUTO, stage % 2);
        frozen_moves(LAYERS, MAT, stage, 3 - stage, ZERO_MASTER_F32, stage == 2);
        frozen_moves(VEC, LAYERS | POS, stage, stage, ZERO_MASTER_SPLIT, stage == 3);
        frozen_moves(EMB | POS | NORM, 0, stage, (stage + 2) % 4, ZERO_MASTER_F32, 1);
    }
    frozen_codes();
    for (int state = 0; state < ZERO_STATE_TYPES; state++) {
        frozen_listed(ZERO_F32, (zero_state_type)state, ZERO_ADAMW);
        frozen_listed(ZERO_BF16, (zero_state_type)state, ZERO_MUON);
        frozen_listed(ZERO_F16, (zero_state_type)state, ZERO_LION);
    }
    frozen_adopted(0);
    frozen_adopted(ZERO_KEEP);
    frozen_lent(0);
    frozen_lent(1);
    frozen_sentences();
    frozen_quantized();
    return test_summary();
}

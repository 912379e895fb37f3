/* test_checkpoint.c [all|tool] - checkpoints against training that was not interrupted, bit by bit:
   pairs of stages, types, optimizers and numbers of ranks; what is kept and removed; damage of
   every byte; other models; saves written aside. `all`: ranks to 8 and every pair. */
#include "../shared/host.h"
#include "../../adapters/checkpoint/checkpoint.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

enum { CKT_STEPS = 10, CKT_RANKS = 8, CKT_TYPES = 10 };
/* more types: bf16 */
enum { CKT_NONE = 3, CKT_SPLIT, CKT_STATE, CKT_SPLIT_STATE, CKT_8BIT, CKT_MIXED, CKT_BF16_MIXED };

static const char *const ckt_types[CKT_TYPES] = {"f32",
                                                 "bf16",
                                                 "fp16",
                                                 "bf16 without masters",
                                                 "bf16 with split masters",
                                                 "bf16 with bf16 state",
                                                 "bf16 with split masters and bf16 state",
                                                 "bf16 with split masters and 8-bit state",
                                                 "the same with f32 state of embeddings",
                                                 "bf16 with split masters, bf16 state and f32 "
                                                 "state of embeddings"};
static char ckt_root[256]; /* of all folders that the tests make */

/* ---- folders ---- */

static const char *ckt_path(const char *name) {
    static __thread char path[4][512];
    static __thread int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%.200s", ckt_root, name);
    return path[turn];
}

static void ckt_remove(const char *path) {
    char command[600];
    snprintf(command, sizeof command, "rm -rf '%s'", path);
    if (system(command)) abort();
}

static int ckt_exists(const char *folder, const char *name) {
    char path[600];
    struct stat is;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return stat(path, &is) == 0;
}

/* How many entries' names hold `part`. */
static int ckt_count(const char *folder, const char *part) {
    DIR *dir = opendir(folder);
    const struct dirent *entry;
    int n = 0;
    while (dir && (entry = readdir(dir)) != NULL) n += strstr(entry->d_name, part) != NULL;
    if (dir) (void)closedir(dir);
    return n;
}

/* ---- a job: open, load, train, save ---- */

typedef struct ckt_job {
    host_spec spec;
    checkpoint_options o;
    int load;        /* first, and go on from its step */
    int64_t of;      /* this one, or CHECKPOINT_NEWEST */
    int until, save; /* train up to this step; save at multiples of it, 0: never */
    checkpoint_result loaded;
    int64_t step;        /* that was loaded */
    uint64_t begin, end; /* hashes of the state */
    uint64_t skipped;    /* steps, of the whole training */
    char error[CHECKPOINT_SENTENCE];
    void (*also)(struct ckt_job *j, host_run *h, checkpoint *c); /* at the end; may be NULL */
    void *arg;
} ckt_job;

static void ckt_spec(host_spec *s, int nranks, int stage, int type) {
    static const struct {
        const char *name;
        size_t numel;
        int layers, unit, uses, flags;
    } list[] = {{"wte", 1037, 1, 0, 2, 0},
                {"wpe", 64, 1, 0, 2, ZERO_KEEP},
                {"w", 333, 3, 1, 0, 0},
                {"b", 7, 3, 1, 0, ZERO_ONE_D | ZERO_NO_DECAY},
                {"norm", 5, 1, 4, 0, ZERO_ONE_D}};
    memset(s, 0, sizeof *s);
    s->seed = 5;
    s->nranks = nranks;
    s->micro_steps = 1;
    s->units = 5;
    s->silent_unit = -1;
    for (size_t t = 0; t < sizeof list / sizeof *list; t++) {
        zero_tensor_desc *d = &s->desc[s->ntensors++];
        d->name = list[t].name;
        d->numel = list[t].numel;
        d->layers = list[t].layers;
        d->unit = list[t].unit;
        d->uses = list[t].uses;
        d->flags = list[t].flags;
    }
    s->cfg.stage = stage;
    s->cfg.type = type > 2 ? ZERO_BF16 : (zero_type)type;
    s->cfg.master = type == CKT_NONE ? ZERO_MASTER_NONE : ZERO_MASTER_F32;
    if (type == CKT_SPLIT || type >= CKT_SPLIT_STATE) s->cfg.master = ZERO_MASTER_SPLIT;
    if (type >= CKT_STATE) s->cfg.state_type = ZERO_STATE_BF16;
    if (type == CKT_8BIT || type == CKT_MIXED) s->cfg.state_type = ZERO_STATE_8BIT;
    for (int t = 0; t < 2 && type >= CKT_MIXED; t++) s->desc[t].flags |= ZERO_F32_STATE;
    s->cfg.seed = 77;
    s->cfg.threads = 1;
    s->cfg.scaler.window = 2; /* the scale grows until it overflows: all counters move */
    const zero_hyper a = {0.01f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f};
    s->adamw = a;
}

/* What a checkpoint holds, at any type: masters and moments. */
static uint64_t ckt_state(host_run *h) {
    static const zero_kind kinds[] = {ZERO_MASTER, ZERO_MOMENT_1, ZERO_MOMENT_2};
    const host_spec *s = h->spec;
    uint64_t hash = 0;
    for (int t = 0; t < s->ntensors; t++)
        for (int k = 0; k < (s->cfg.optimizer >= ZERO_SGD ? 2 : 3); k++) {
            const size_t n = host_numel(s, t);
            if (k && host_all_frozen(s, t)) continue;
            float *seen = (float *)calloc(n, sizeof *seen);
            if (zero_read_tensor(h->z, s->desc[t].name, kinds[k], 0, n, seen))
                test_rank_fail(h->rank, "%s", zero_last_error(h->z));
            hash = host_hash_floats(hash, seen, n);
            free(seen);
        }
    return hash;
}

/* Parameters are their masters, rounded. */
static void ckt_rounded(host_run *h) {
    const host_spec *s = h->spec;
    for (int t = 0; t < s->ntensors; t++) {
        const size_t n = host_numel(s, t);
        float *p = (float *)calloc(n, sizeof *p), *m = (float *)calloc(n, sizeof *m);
        if (zero_read_tensor(h->z, s->desc[t].name, ZERO_PARAMETER, 0, n, p)
            || zero_read_tensor(h->z, s->desc[t].name, ZERO_MASTER, 0, n, m))
            test_rank_fail(h->rank, "%s", zero_last_error(h->z));
        for (size_t i = 0; i < n; i++)
            if (p[i] != host_round_weight(s, m[i]))
                test_rank_fail(h->rank, "%s[%zu] is %g, its master %g", s->desc[t].name, i,
                               (double)p[i], (double)m[i]);
        free(p);
        free(m);
    }
}

static int ckt_save(host_run *h, checkpoint *c) {
    const checkpoint_value v[] = {{"position", CHECKPOINT_INT, INT64_MIN + h->step, 0, NULL},
                                  {"rate", CHECKPOINT_REAL, 0, 1.0 / (3 + h->step), NULL},
                                  {"words", CHECKPOINT_TEXT, 0, 0, "a \"b\" \\ \n\x01 \xc3\xa9"}};
    if (checkpoint_save(c, h->step, v, 3)) test_rank_fail(h->rank, "save: %s", checkpoint_error(c));
    return !h->rank->failed;
}

static void ckt_values(host_run *h, const checkpoint *c) {
    int64_t position = 0;
    double rate = 0;
    const char *words = "";
    if (!checkpoint_get_int(c, "position", &position) || position != INT64_MIN + h->step
        || !checkpoint_get_real(c, "rate", &rate) || rate != 1.0 / (3 + h->step)
        || !checkpoint_get_text(c, "words", &words) || checkpoint_get_int(c, "rate", &position)
        || strcmp(words, "a \"b\" \\ \n\x01 \xc3\xa9") != 0)
        test_rank_fail(h->rank, "values are not what was saved");
}

static void ckt_load(ckt_job *j, host_run *h, checkpoint *c) {
    const checkpoint_result r = checkpoint_load(c, j->of);
    if (h->rank->rank == 0) {
        j->loaded = r;
        snprintf(j->error, sizeof j->error, "%s", checkpoint_error(c));
        j->step = checkpoint_step(c);
    }
    if (r) return;
    h->step = (int)checkpoint_step(c);
    ckt_values(h, c);
    const uint64_t hash = ckt_state(h);
    if (h->rank->rank == 0) j->begin = hash;
}

static void ckt_body(test_rank *r) {
    ckt_job *j = (ckt_job *)r->arg;
    host_run h;
    checkpoint *c = NULL;
    if (!host_open(&h, &j->spec, r)) return;
    if (checkpoint_create(&c, h.z, &j->o)) test_rank_fail(r, "create: %s", checkpoint_error(c));
    if (!r->failed && j->load) ckt_load(j, &h, c);
    while (!r->failed && h.step < j->until && host_train_step(&h))
        if (j->save && h.step % j->save == 0) (void)ckt_save(&h, c);
    if (!r->failed && j->also) j->also(j, &h, c);
    if (!r->failed && checkpoint_wait(c)) test_rank_fail(r, "wait: %s", checkpoint_error(c));
    const uint64_t hash = r->failed ? 0 : ckt_state(&h);
    zero_stats stats = {0};
    if (!r->failed && zero_query_stats(h.z, &stats)) test_rank_fail(r, "%s", zero_last_error(h.z));
    if (r->rank == 0) j->end = hash, j->skipped = stats.skipped;
    checkpoint_destroy(c);
    zero_destroy(h.z);
}

static int ckt_run(ckt_job *j) { return test_ranks(j->spec.nranks, 0, ckt_body, j); }

static void ckt_job_set(ckt_job *j, const char *folder, int nranks, int stage, int type) {
    memset(j, 0, sizeof *j);
    ckt_spec(&j->spec, nranks, stage, type);
    j->o.folder = folder;
    j->of = CHECKPOINT_NEWEST;
    j->o.tensors = j->spec.desc;
    j->o.ntensors = j->spec.ntensors;
    j->o.config = "{\"a\": 1}";
}

/* ---- bitwise ---- */

/* How a training differs from ckt_spec's. */
typedef struct ckt_variant {
    const char *name;
    zero_optimizer optimizer;
    int micro_steps;
    zero_accumulation accumulation;
    float normalize; /* Muon's rows */
} ckt_variant;

static const ckt_variant ckt_variants[] = {
    {"adamw", ZERO_ADAMW, 1, ZERO_ACCUMULATE_AUTO, 0}, /* the one that other tests load */
    {"local", ZERO_ADAMW, 3, ZERO_ACCUMULATE_LOCAL, 0},
    {"shards", ZERO_ADAMW, 2, ZERO_ACCUMULATE_SHARDED, 0},
    {"adam", ZERO_ADAM, 1, ZERO_ACCUMULATE_AUTO, 0},
    {"sgd", ZERO_SGD, 1, ZERO_ACCUMULATE_AUTO, 0},
    {"nesterov", ZERO_NESTEROV, 2, ZERO_ACCUMULATE_SHARDED, 0},
    {"lion", ZERO_LION, 2, ZERO_ACCUMULATE_LOCAL, 0},
    {"adagrad", ZERO_ADAGRAD, 1, ZERO_ACCUMULATE_AUTO, 0},
    {"lamb", ZERO_LAMB, 1, ZERO_ACCUMULATE_AUTO, 0},
    {"muon", ZERO_MUON, 2, ZERO_ACCUMULATE_SHARDED, 0},
    {"normuon", ZERO_MUON, 2, ZERO_ACCUMULATE_SHARDED, 0.95f}};
enum { CKT_VARIANTS = sizeof ckt_variants / sizeof *ckt_variants };

/* Trained by nranks at stage a, saved by it. */
typedef struct ckt_pair {
    const ckt_variant *v;
    int type, nranks, a;
} ckt_pair;

static const char *ckt_pair_folder(const ckt_pair *p) {
    char name[64];
    if (p->v == ckt_variants)
        snprintf(name, sizeof name, "pair-%d-%d-%d", p->type, p->nranks, p->a);
    else
        snprintf(name, sizeof name, "pair-%s-%d-%d-%d", p->v->name, p->type, p->nranks, p->a);
    return ckt_path(name);
}

static void ckt_pair_set(ckt_job *j, const ckt_pair *p, int nranks, int stage) {
    ckt_job_set(j, ckt_pair_folder(p), nranks, stage, p->type);
    j->spec.cfg.optimizer = p->v->optimizer;
    j->spec.cfg.muon.normalize = p->v->normalize;
    j->spec.rows[1] = 8, j->spec.cols[1] = 8; /* wpe, w: matrices, if any are wanted */
    j->spec.rows[2] = 9, j->spec.cols[2] = 37;
    j->spec.micro_steps = p->v->micro_steps;
    j->spec.cfg.accumulation = p->v->accumulation; /* the same at every stage: the same bits */
    j->spec.cfg.grads = ZERO_GRAD_AS_TYPE; /* fp16 overflows, also where micro-steps add up */
}

/* What p->nranks saved is loaded by m, bit by bit. */
static void ckt_other(const ckt_pair *p, int m, int b) {
    ckt_job j;
    uint64_t hash[2] = {0, 0};
    for (int i = 0; i < 2; i++) {
        ckt_pair_set(&j, p, i ? m : p->nranks, i ? b : p->a);
        j.load = 1;
        const int ok = ckt_run(&j) && j.loaded == CHECKPOINT_OK;
        hash[i] = ok ? j.begin : (uint64_t)i;
    }
    test_check(hash[0] == hash[1], "%s, %s, stage %d on %d ranks, then %d on %d: %s %s", p->v->name,
               ckt_types[p->type], p->a, p->nranks, b, m, test_first, j.error);
}

/* Trains CKT_STEPS at stage a and saves; goes on at each stage b. `twice`: of training without a
   stop. In fp16 some steps are skipped before the save, and some after it. */
static void ckt_stages(const ckt_pair *p, const ckt_job *twice, int every) {
    ckt_job j;
    ckt_pair_set(&j, p, p->nranks, p->a);
    j.until = j.save = CKT_STEPS;
    j.o.asynchronous = p->a % 2;
    if (!test_check(ckt_run(&j), "%s, %s, %d ranks, stage %d: %s", p->v->name, ckt_types[p->type],
                    p->nranks, p->a, test_first))
        return;
    const uint64_t saved = j.end, skipped = j.skipped;
    const int skips = p->type == ZERO_F16 ? skipped > 0 && skipped < twice->skipped : skipped == 0;
    test_check(skips, "%s, %s, %d ranks: %d steps are skipped before the save, %d in all",
               p->v->name, ckt_types[p->type], p->nranks, (int)skipped, (int)twice->skipped);
    for (int b = 0; b < 4; b++) {
        if (!every && (p->a + b + p->nranks + p->type) % 2) continue;
        ckt_pair_set(&j, p, p->nranks, b);
        j.load = 1;
        j.until = 2 * CKT_STEPS;
        const int ok = ckt_run(&j) && j.loaded == CHECKPOINT_OK && j.step == CKT_STEPS;
        test_check(ok && j.begin == saved && j.end == twice->end && j.skipped == twice->skipped,
                   "%s, %s, %d ranks, stage %d then %d: %s %s, loaded %d, went on %d, skipped %d",
                   p->v->name, ckt_types[p->type], p->nranks, p->a, b, test_first, j.error,
                   j.begin == saved, j.end == twice->end, (int)j.skipped);
    }
    if (p->v != ckt_variants) ckt_other(p, 1 + (p->nranks + p->a) % CKT_RANKS, (p->a + 1) % 4);
}

/* From each stage to each, or to every second one. */
static void ckt_pairs(const ckt_variant *v, int type, int nranks, int every) {
    ckt_pair p = {v, type, nranks, (type + nranks) % 4};
    ckt_job twice;
    ckt_pair_set(&twice, &p, nranks, p.a);
    twice.o.folder = ckt_path("none");
    twice.until = 2 * CKT_STEPS;
    if (!test_check(ckt_run(&twice), "without a stop: %s", test_first)) return;
    for (p.a = 0; p.a < 4; p.a++) ckt_stages(&p, &twice, every);
}

static uint64_t ckt_seed = 1; /* chooses the samples */

/* The first variant at every type; of the others one type and number of ranks, by the seed. */
static void ckt_bitwise(int all) {
    test_random r = {test_mix(ckt_seed)};
    for (int v = 0; v < CKT_VARIANTS; v++) {
        const int has_8bit = ckt_variants[v].optimizer != ZERO_ADAGRAD;
        const int types = has_8bit ? CKT_BF16_MIXED : CKT_8BIT; /* ckt_cross has the last type */
        const int sampled = test_below(&r, types), ranks = 1 + test_below(&r, 4);
        for (int type = 0; type < types; type++)
            for (int n = 1; n <= (all ? CKT_RANKS : 4); n++)
                if (all || v == 0 || (type == sampled && n == ranks))
                    ckt_pairs(&ckt_variants[v], type, n, all);
    }
}

/* Any number of ranks loads what others saved, of the first variant; ckt_bitwise left it. */
static void ckt_ranks(int all) {
    test_random r = {test_mix(ckt_seed + 1)};
    for (int type = 0; type < CKT_BF16_MIXED; type++)
        for (int n = 1; n <= (all ? CKT_RANKS : 4); n++)
            for (int m = 1; m <= CKT_RANKS; m++) {
                if (!all && test_below(&r, 3)) continue;
                for (int pair = 0; pair < 16; pair++) {
                    const ckt_pair p = {ckt_variants, type, n, pair / 4};
                    if (all || pair == test_below(&r, 16)) ckt_other(&p, m, pair % 4);
                }
            }
}

static void ckt_check_rounded(ckt_job *j, host_run *h, checkpoint *c) {
    (void)j;
    (void)c;
    ckt_rounded(h);
}

/* Notes what a load logs about masters and state. */
typedef struct ckt_notes {
    char of_masters[256], of_state[256];
} ckt_notes;
static void ckt_note(void *user, const char *sentence) {
    ckt_notes *n = (ckt_notes *)user;
    const int masters = strstr(sentence, "weights are converted") != NULL;
    if (masters || strstr(sentence, "state is converted"))
        snprintf(masters ? n->of_masters : n->of_state, 256, "%s", sentence);
}

/* The masters and state of one type are those of another, unless the other has fewer bits; a load
   logs that their form is another. */
static void ckt_cross(void) {
    static const char *const forms[CKT_TYPES] = {
        NULL,          "f32 masters",   "f32 masters",   "no masters",    "split masters",
        "f32 masters", "split masters", "split masters", "split masters", "split masters"};
    static const char *const states[CKT_TYPES] = {"f32",
                                                  "f32",
                                                  "f32",
                                                  "f32",
                                                  "f32",
                                                  "bf16",
                                                  "bf16",
                                                  "8 bits",
                                                  "8 bits (f32 in 2 tensors, such as wte)",
                                                  "bf16 (f32 in 2 tensors, such as wte)"};
    ckt_pair more = {ckt_variants, CKT_BF16_MIXED, 3, 0};
    for (; more.a < 4; more.a++) {
        ckt_job j;
        ckt_pair_set(&j, &more, more.nranks, more.a);
        j.until = j.save = CKT_STEPS;
        test_check(ckt_run(&j), "%s: %s", ckt_types[more.type], test_first);
    }
    for (int from = 0; from < CKT_TYPES; from++)
        for (int to = 0; to < CKT_TYPES; to++) {
            ckt_job j;
            char name[64];
            ckt_notes text = {"", ""}, said = {"", ""};
            uint64_t hash[2] = {0, 0};
            const int same = !strcmp(states[from], states[to]);
            const int wider =
                (from == CKT_8BIT && to == CKT_MIXED)
                || (from >= CKT_STATE && from <= CKT_SPLIT_STATE && to == CKT_BF16_MIXED);
            const int rounds =
                (to == CKT_NONE && from != CKT_NONE) || (to >= CKT_STATE && !same && !wider);
            if (!same)
                snprintf(text.of_state, sizeof text.of_state,
                         "the optimizer's state is converted: the checkpoint was saved with %s, "
                         "this run has %s",
                         states[from], states[to]);
            if (forms[from] && forms[to] && strcmp(forms[from], forms[to]) != 0)
                snprintf(
                    text.of_masters, sizeof text.of_masters,
                    "the weights are converted: the checkpoint was saved with %s, this run has %s",
                    forms[from], forms[to]);
            snprintf(name, sizeof name, "pair-%d-3-%d", from, to % 4);
            for (int i = 0; i < 2; i++) {
                ckt_job_set(&j, ckt_path(name), i ? 2 : 3, i ? 3 : 1, i ? to : from);
                j.load = 1;
                if (i) j.also = ckt_check_rounded;
                j.o.log = ckt_note;
                j.o.log_user = &said;
                hash[i] = ckt_run(&j) && !j.loaded ? j.begin : (uint64_t)i;
            }
            test_check((hash[0] == hash[1]) == !rounds && !strcmp(said.of_masters, text.of_masters)
                           && !strcmp(said.of_state, text.of_state),
                       "%s to %s: %s %s; logged: %s; %s", ckt_types[from], ckt_types[to],
                       test_first, j.error, said.of_masters, said.of_state);
        }
}

/* ---- frozen tensors ---- */

static const char ckt_layers[3] = {1, 0, 1};

typedef struct ckt_freeze {
    int was; /* tensors that were frozen at the save, one bit each */
    uint64_t parameters;
    char said[2][CHECKPOINT_SENTENCE]; /* of tensors that are trained now, and frozen now */
    int feedback;                      /* sentences about error feedback that begins at zero */
} ckt_freeze;

static void ckt_freeze_set(ckt_job *j, int set) {
    for (int t = 0; t < j->spec.ntensors; t++)
        if (set >> t & 1) j->spec.desc[t].flags |= ZERO_FROZEN;
    if (set & 128) j->spec.desc[2].frozen = ckt_layers;
}
static void ckt_note_frozen(void *user, const char *sentence) {
    ckt_freeze *f = (ckt_freeze *)user;
    f->feedback += strstr(sentence, "errors that are fed back begin at zero") != NULL;
    if (strstr(sentence, "are trained now"))
        snprintf(f->said[0], sizeof f->said[0], "%s", sentence);
    if (strstr(sentence, "are frozen now")) snprintf(f->said[1], sizeof f->said[1], "%s", sentence);
}

/* All parameters are those of the save. A tensor that was frozen has them as masters, and moments
   of zero. */
static void ckt_check_frozen(ckt_job *j, host_run *h, checkpoint *c) {
    ckt_freeze *f = (ckt_freeze *)j->arg;
    const host_spec *s = h->spec;
    uint64_t hash = 0;
    (void)c;
    for (int t = 0; t < s->ntensors; t++) {
        const size_t n = host_numel(s, t);
        float *p = (float *)calloc(2 * n, sizeof *p), *x = p + n;
        zero_result r = zero_read_tensor(h->z, s->desc[t].name, ZERO_PARAMETER, 0, n, p);
        hash = host_hash_floats(hash, p, n);
        for (int k = 0; k < 3 && !r && f->was >> t & 1; k++) {
            const zero_kind kinds[] = {ZERO_MASTER, ZERO_MOMENT_1, ZERO_MOMENT_2};
            if (k && host_all_frozen(s, t)) continue;
            r = zero_read_tensor(h->z, s->desc[t].name, kinds[k], 0, n, x);
            for (size_t i = 0; i < n; i++)
                if (memcmp(&x[i], k ? &(float){0} : &p[i], sizeof *x))
                    test_rank_fail(h->rank, "kind %d of %s[%zu] is %g, the weight is %g",
                                   (int)kinds[k], s->desc[t].name, i, (double)x[i], (double)p[i]);
        }
        if (r) test_rank_fail(h->rank, "%s", zero_last_error(h->z));
        free(p);
    }
    if (h->rank->rank == 0) f->parameters = hash;
}

/* Saves with the first set frozen, goes on with it, and loads with another set. */
static void ckt_frozen_pair(int type, int was, int now, int stage) {
    const char *folder = ckt_path("frozen");
    ckt_freeze a = {.was = was & 127}, b = {.was = was & 127};
    ckt_job j, twice;
    ckt_remove(folder);
    ckt_job_set(&twice, ckt_path("none"), 3, stage, type);
    ckt_freeze_set(&twice, was);
    twice.until = 6;
    ckt_job_set(&j, folder, 3, 3 - stage, type);
    ckt_freeze_set(&j, was);
    j.until = j.save = 3;
    test_check(ckt_run(&twice) && ckt_run(&j), "frozen %d: %s", was, test_first);
    for (int on = 0; on < 2; on++) { /* the same set, then the same on other ranks */
        ckt_job_set(&j, folder, on ? 2 : 3, stage, type);
        ckt_freeze_set(&j, was);
        j.load = 1;
        j.until = on ? 0 : 6;
        j.o.log = ckt_note_frozen;
        j.o.log_user = &a;
        if (on) j.also = ckt_check_frozen, j.arg = &a;
        const int ok = ckt_run(&j) && !j.loaded && !a.said[0][0] && !a.said[1][0];
        test_check(ok && (on || j.end == twice.end), "%s, frozen %d, stage %d: %s %s %s",
                   ckt_types[type], was, stage, test_first, j.error, a.said[0]);
    }
    ckt_job_set(&j, folder, 4, stage, type);
    ckt_freeze_set(&j, now);
    j.load = 1;
    j.o.log = ckt_note_frozen;
    j.o.log_user = &b;
    j.also = ckt_check_frozen;
    j.arg = &b;
    const int ok = ckt_run(&j) && !j.loaded && b.parameters == a.parameters;
    test_check(ok && !b.said[0][0] == !(was & ~now & 127) && !b.said[1][0] == !(now & ~was & 127),
               "%s, frozen %d, then %d, stage %d: %s %s, parameters %d; logged: %s; %s",
               ckt_types[type], was, now, stage, test_first, j.error, b.parameters == a.parameters,
               b.said[0], b.said[1]);
}

/* A frozen tensor is stored once, in the type of the parameters. */
static void ckt_frozen_once(void) {
    char why[CHECKPOINT_SENTENCE] = "";
    checkpoint_reader *r = NULL;
    ckt_job j;
    ckt_remove(ckt_path("frozen"));
    ckt_job_set(&j, ckt_path("frozen"), 3, 3, 1);
    ckt_freeze_set(&j, 1);
    j.until = j.save = 1;
    test_check(ckt_run(&j), "frozen: %s", test_first);
    test_check(!checkpoint_open(&r, ckt_path("frozen/step_00000001"), why), "%s", why);
    for (int t = 0; r && t < checkpoint_tensors(r); t++) {
        checkpoint_tensor x;
        checkpoint_query_tensor(r, t, &x);
        const int frozen = !strcmp(x.name, "wte");
        test_check(x.arrays == (frozen ? 1 : 3) && x.type[0] == (frozen ? ZERO_BF16 : ZERO_F32),
                   "%s has %d arrays, weights of type %d", x.name, x.arrays, (int)x.type[0]);
    }
    checkpoint_close(r);
}

/* A run with error feedback loads a checkpoint without any: its errors are no tensor that was
   trained and is frozen now. */
static void ckt_frozen_feedback(void) {
    const char *folder = ckt_path("frozen");
    ckt_freeze said = {.was = 1};
    ckt_job j;
    ckt_remove(folder);
    ckt_job_set(&j, folder, 2, 2, 0);
    ckt_freeze_set(&j, 1);
    j.until = j.save = 2;
    test_check(ckt_run(&j), "frozen: %s", test_first);
    ckt_job_set(&j, folder, 2, 2, 0);
    ckt_freeze_set(&j, 1);
    j.spec.cfg.gradient_bits = 8;
    j.spec.cfg.feedback = 0.8f;
    j.load = 1;
    j.until = 2;
    j.o.log = ckt_note_frozen;
    j.o.log_user = &said;
    test_check(ckt_run(&j) && !j.loaded, "error feedback begins: %s %s", test_first, j.error);
    test_check(!said.said[0][0] && !said.said[1][0] && said.feedback == 1,
               "error feedback begins: logged %s; %s; %d times that it does", said.said[0],
               said.said[1], said.feedback);
}

static void ckt_frozen(void) {
    for (int type = 0; type < CKT_TYPES; type++)
        for (int stage = 0; stage < 4; stage++) {
            ckt_frozen_pair(type, 1, stage % 2 ? 0 : 6, stage); /* wte, then none, or w and wpe */
            if (type < 2) ckt_frozen_pair(type, 128 | 16, 128, stage); /* layers of w, and norm */
            if (type == stage) ckt_frozen_pair(type, 31, 8, stage);    /* all, then b */
        }
    ckt_frozen_once();
    ckt_frozen_feedback();
}

/* ---- what stays ---- */

static void ckt_keep(void) {
    const char *folder = ckt_path("keep");
    ckt_job j;
    for (int aside = 0; aside < 2; aside++) {
        ckt_remove(folder);
        ckt_job_set(&j, folder, 2, 2, 0);
        j.until = 12;
        j.save = 2;
        j.o.asynchronous = aside;
        j.o.keep_last = 2;
        j.o.keep_every = 6;
        test_check(ckt_run(&j), "keep: %s", test_first);
        test_check(ckt_exists(folder, "step_00000012") && ckt_exists(folder, "step_00000010")
                       && ckt_exists(folder, "step_00000006") && ckt_count(folder, "step_") == 3,
                   "the last 2 and every 6th stay, aside %d: %d", aside,
                   ckt_count(folder, "step_"));
    }
    ckt_job_set(&j, folder, 2, 1, 0); /* back to 6, on to 8: 10 and 12 are of another branch */
    j.load = 1;
    j.of = 6;
    j.until = 8;
    j.save = 8;
    test_check(ckt_run(&j) && j.step == 6 && ckt_exists(folder, "step_00000008")
                   && !ckt_exists(folder, "step_00000012") && ckt_count(folder, ".left-") == 2,
               "generations after the one saved are set aside: %s", test_first);
    j.of = 6;
    test_check(ckt_run(&j) && j.step == 6 && ckt_exists(folder, "step_00000008")
                   && ckt_count(folder, ".tmp-") == 0 && ckt_count(folder, ".old-") == 0,
               "a generation is saved again: %s", test_first);
    ckt_job_set(&j, folder, 3, 0, 0);
    j.load = 1;
    test_check(ckt_run(&j) && j.step == 8, "the newest is loaded: %s %s", test_first, j.error);
    if (mkdir(ckt_path("keep/step_00000099.tmp-0123"), 0777)
        || mkdir(ckt_path("keep/step_00000004.gone-0123"), 0777))
        abort();
    j.of = 7;
    test_check(ckt_run(&j) && j.loaded == CHECKPOINT_NONE, "no such step: %d", (int)j.loaded);
    test_check(!ckt_count(folder, ".tmp-") && !ckt_count(folder, ".gone-"),
               "leftovers are removed");
}

/* ---- errors ---- */

static void ckt_middle(ckt_job *j, host_run *h, checkpoint *c) {
    (void)j;
    h->micro = 0;
    if (!host_train_pass(h)) return;
    const checkpoint_result r = checkpoint_save(c, 3, NULL, 0);
    if (r != CHECKPOINT_PLUGIN || checkpoint_plugin_result(c) != ZERO_ERR_STATE
        || strstr(checkpoint_error(c), "a step is in progress") == NULL)
        test_rank_fail(h->rank, "in the middle of a step: %d, %s", (int)r, checkpoint_error(c));
    if (zero_reduce(h->z)) test_rank_fail(h->rank, "%s", zero_last_error(h->z));
}

static void ckt_arguments(ckt_job *j, host_run *h, checkpoint *c) {
    const checkpoint_value twice[] = {{"a", CHECKPOINT_INT, 1, 0, NULL},
                                      {"a", CHECKPOINT_INT, 2, 0, NULL}};
    (void)j;
    if (checkpoint_save(c, -1, NULL, 0) != CHECKPOINT_ARGUMENT
        || checkpoint_save(c, h->rank->rank, NULL, 0) != CHECKPOINT_ARGUMENT
        || checkpoint_save(c, 1, twice, 2) != CHECKPOINT_ARGUMENT || !checkpoint_error(c)[0]
        || checkpoint_save(c, 1, twice, 1) != CHECKPOINT_OK || checkpoint_error(c)[0])
        test_rank_fail(h->rank, "arguments: %s", checkpoint_error(c));
}

/* A rank that is gone: the others are told, soon, and nothing of the save is left to be loaded. */
static void ckt_peer(ckt_job *j, host_run *h, checkpoint *c) {
    (void)j;
    if (checkpoint_wait(c)) test_rank_fail(h->rank, "before: %s", checkpoint_error(c));
    if (h->rank->rank == 1) {
        zero_local_abort(h->rank->local, 1, "gone");
    } else if (checkpoint_save(c, 2, NULL, 0) != CHECKPOINT_PLUGIN
               || checkpoint_save(c, 2, NULL, 0) != CHECKPOINT_PLUGIN)
        test_rank_fail(h->rank, "a peer is gone: %s", checkpoint_error(c));
    else
        test_rank_fail(h->rank, "told: %s", checkpoint_error(c));
    if (h->rank->rank == 1) test_rank_fail(h->rank, "told: gone");
}

static void ckt_gone(int aside) {
    ckt_job j;
    const char *folder = ckt_path("gone");
    const double start = test_now();
    ckt_remove(folder);
    ckt_job_set(&j, folder, 3, 2, 0);
    j.o.asynchronous = aside;
    j.until = j.save = 1;
    j.also = ckt_peer;
    test_check(!ckt_run(&j) && strstr(test_first, "told: ") != NULL && test_now() - start < 5,
               "a rank is gone: %s", test_first);
    ckt_job_set(&j, folder, 2, 2, 0);
    j.load = 1;
    test_check(ckt_run(&j) && j.step == 1 && ckt_count(folder, "step_") == 1,
               "after a rank was gone: %d %s", (int)j.step, j.error);
}

/* The folder is removed while the run goes on, or another is put in its place. */
static void ckt_remake(ckt_job *j, host_run *h, checkpoint *c) {
    for (int moved = 0; moved < 2; moved++) {
        char other[600];
        snprintf(other, sizeof other, "%s.moved", j->o.folder);
        if (checkpoint_wait(c)) test_rank_fail(h->rank, "%s", checkpoint_error(c));
        if (zero_barrier(h->z)) test_rank_fail(h->rank, "%s", zero_last_error(h->z));
        if (h->rank->rank == 0 && !moved) ckt_remove(j->o.folder);
        if (h->rank->rank == 0 && moved && (rename(j->o.folder, other) || mkdir(j->o.folder, 0777)))
            abort();
        if (zero_barrier(h->z)) test_rank_fail(h->rank, "%s", zero_last_error(h->z));
        if (!ckt_save(h, c)) return;
        if (checkpoint_wait(c)) test_rank_fail(h->rank, "%s", checkpoint_error(c));
    }
}

/* Holds the folder's lock as a run does. 0: somebody else has it. */
static int ckt_lock(const char *folder) {
    const int fd = open(folder, O_RDONLY | O_DIRECTORY);
    const int got = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0;
    if (fd >= 0) (void)close(fd);
    return got;
}

static void ckt_locked(ckt_job *j, host_run *h, checkpoint *c) {
    ckt_remake(j, h, c);
    if (h->rank->rank == 0 && ckt_lock(j->o.folder))
        test_rank_fail(h->rank, "the new folder is not locked");
}

static void ckt_removed(void) {
    ckt_job j;
    const char *folder = ckt_path("removed");
    for (int aside = 0; aside < 2; aside++) {
        ckt_remove(folder);
        ckt_remove(ckt_path("removed.moved"));
        ckt_job_set(&j, folder, 3, 2, 0);
        j.o.asynchronous = aside;
        j.until = 2;
        j.save = 1;
        j.also = ckt_locked;
        const int ok = ckt_run(&j);
        test_check(ok && ckt_exists(folder, "step_00000002/manifest.json")
                       && ckt_count(folder, "step_") == 1
                       && ckt_count(ckt_path("removed.moved"), "step_") == 1,
                   "a folder that was removed is made again, aside %d: %s", aside, test_first);
    }
}

static void ckt_errors(void) {
    ckt_job j;
    ckt_gone(0);
    ckt_gone(1);
    ckt_job_set(&j, ckt_path("errors"), 2, 2, 0);
    j.also = ckt_middle;
    test_check(ckt_run(&j), "%s", test_first);
    ckt_job_set(&j, ckt_path("errors"), 2, 2, 0);
    j.load = 1;
    test_check(ckt_run(&j) && j.loaded == CHECKPOINT_NONE && ckt_count(j.o.folder, "step_") == 0,
               "an empty folder: %d %s", (int)j.loaded, j.error);
    j.load = 0;
    j.also = ckt_arguments;
    test_check(ckt_run(&j) && ckt_count(j.o.folder, "step_") == 1, "%s", test_first);
    ckt_job_set(&j, "/proc/none/such", 3, 2, 0);
    test_check(!ckt_run(&j) && strstr(test_first, "/proc/none/such") != NULL, "%s", test_first);
}

/* One thing differs from what was saved by 2 ranks at stage 2; the sentence has `word`. */
static void ckt_model(const char *word, void (*change)(host_spec *s), int weights_only) {
    ckt_job j;
    ckt_job_set(&j, ckt_path("pair-0-2-2"), 2, 1, 0);
    change(&j.spec);
    j.load = 1;
    j.o.weights_only = weights_only;
    const int ran = ckt_run(&j);
    if (weights_only)
        test_check(j.loaded == CHECKPOINT_OK, "weights only: %s", j.error);
    else
        test_check(ran && j.loaded == CHECKPOINT_MODEL && strstr(j.error, word) != NULL,
                   "another model (%s): %d %s", word, (int)j.loaded, j.error);
}
static void ckt_larger(host_spec *s) { s->desc[2].numel++; }
static void ckt_shaped(host_spec *s) {
    s->desc[2].layers = 9; /* as many elements */
    s->desc[2].numel = 111;
    s->units = 10;
    s->desc[3].layers = 9;
    s->desc[4].unit = 9;
}
static void ckt_renamed(host_spec *s) { s->desc[3].name = "bias"; }
static void ckt_fewer(host_spec *s) { s->ntensors--, s->units--; }
static void ckt_lion(host_spec *s) { s->cfg.optimizer = ZERO_LION; }
static void ckt_models(void) {
    ckt_model("tensor w has 3 x 333", ckt_larger, 0);
    ckt_model("tensor w has 3 x 333", ckt_shaped, 0);
    ckt_model("no tensor bias", ckt_renamed, 0);
    ckt_model("this one has no tensor norm", ckt_fewer, 0);
    ckt_model("lion", ckt_lion, 0);
    ckt_model("", ckt_lion, 1);
}

/* ---- without a context ---- */

static void ckt_reader(void) {
    char why[CHECKPOINT_SENTENCE];
    checkpoint_reader *one = NULL, *two = NULL;
    checkpoint_generation *list = NULL;
    uint64_t bytes = 0;
    int n = 0, same = 1;
    test_check(checkpoint_list(ckt_path("pair-1-3-3"), &list, &n, why) == CHECKPOINT_OK && n == 1
                   && list[0].step == CKT_STEPS,
               "list: %d %s", n, why);
    free(list);
    test_check(!checkpoint_open(&one, ckt_path("pair-1-3-3/step_00000010"), why), "%s", why);
    test_check(!checkpoint_open(&two, ckt_path("pair-1-3-0/step_00000010"), why), "%s", why);
    if (!one || !two) return;
    test_check(!checkpoint_verify(one, &bytes, why) && bytes >= 3 * 4096 * 2, "verify: %s", why);
    test_check(checkpoint_tensors(one) == 5 && strcmp(checkpoint_optimizer(one), "adamw") == 0
                   && checkpoint_reader_step(one) == CKT_STEPS
                   && strcmp(checkpoint_reader_config(one), "{\"a\": 1}") == 0
                   && checkpoint_values(one) == 3,
               "what the manifest tells");
    for (int t = 0; t < checkpoint_tensors(one); t++) { /* two stages, the same elements */
        checkpoint_tensor x;
        checkpoint_query_tensor(one, t, &x);
        const size_t total = x.layers * x.numel;
        float *a = (float *)calloc(total, sizeof *a), *b = (float *)calloc(total, sizeof *b);
        for (int k = 0; k < x.arrays && a && b; k++) {
            same &= !checkpoint_read(one, t, k, 0, total, a, why);
            for (size_t at = 0; at < total; at += 10) /* in small parts */
                same &=
                    !checkpoint_read(two, t, k, at, total - at < 10 ? total - at : 10, b + at, why);
            same &= memcmp(a, b, total * sizeof *a) == 0;
        }
        free(a);
        free(b);
    }
    test_check(same, "read: %s", why);
    float x;
    test_check(checkpoint_read(one, 0, 3, 0, 1, &x, why) == CHECKPOINT_ARGUMENT
                   && checkpoint_read(one, 0, 0, 1037, 1, &x, why) == CHECKPOINT_ARGUMENT
                   && checkpoint_read(one, 9, 0, 0, 1, &x, why) == CHECKPOINT_ARGUMENT,
               "what is not there");
    checkpoint_close(one);
    checkpoint_close(two);
}

/* ---- damage ---- */

static const char *const ckt_files[] = {"manifest.json", "shard_00000.bin", "shard_00001.bin"};

typedef struct ckt_damage {
    uint64_t good;    /* hash of what was saved */
    char folder[512]; /* of the generation */
    long tried, detected, harmless, wrong;
    char first[CHECKPOINT_SENTENCE];
} ckt_damage;

/* Loads and judges; weights that are wrong are the one thing that must not be. */
static void ckt_judge(ckt_damage *d, host_run *h, checkpoint *c, const char *what, long at) {
    const checkpoint_result r = checkpoint_load(c, CHECKPOINT_NEWEST);
    d->tried++;
    if (r == CHECKPOINT_DAMAGED && strlen(checkpoint_error(c)) > 10)
        d->detected++;
    else if (r == CHECKPOINT_OK && ckt_state(h) == d->good)
        d->harmless++;
    else if (!d->wrong++)
        snprintf(d->first, sizeof d->first, "%s at %ld: %d %.400s", what, at, (int)r,
                 checkpoint_error(c));
}

static void ckt_flip(ckt_damage *d, host_run *h, checkpoint *c, const char *name, int bit) {
    char path[600];
    unsigned char byte, other;
    snprintf(path, sizeof path, "%s/%s", d->folder, name);
    const int fd = open(path, O_RDWR);
    struct stat is;
    if (fd < 0 || fstat(fd, &is)) abort();
    for (long at = 0; at < is.st_size; at++) {
        if (pread(fd, &byte, 1, at) != 1) abort();
        other = (unsigned char)(byte ^ (1u << ((unsigned long)(at + bit) % 8)));
        if (pwrite(fd, &other, 1, at) != 1) abort();
        ckt_judge(d, h, c, name, at);
        if (pwrite(fd, &byte, 1, at) != 1) abort();
    }
    (void)close(fd);
}

static void ckt_truncate(ckt_damage *d, host_run *h, checkpoint *c, const char *name) {
    char path[600], *whole;
    struct stat is;
    snprintf(path, sizeof path, "%s/%s", d->folder, name);
    const int fd = open(path, O_RDWR);
    if (fd < 0 || fstat(fd, &is) || (whole = (char *)malloc((size_t)is.st_size)) == NULL) abort();
    if (pread(fd, whole, (size_t)is.st_size, 0) != is.st_size) abort();
    for (long at = is.st_size - 1; at >= 0; at--) {
        if (ftruncate(fd, at)) abort();
        ckt_judge(d, h, c, "shorter", at);
    }
    if (pwrite(fd, whole, (size_t)is.st_size, 0) != is.st_size
        || pwrite(fd, "", 1, is.st_size) != 1)
        abort();
    ckt_judge(d, h, c, "longer", is.st_size + 1);
    if (ftruncate(fd, is.st_size)) abort();
    (void)close(fd);
    free(whole);
}

/* Renames that are undone behind the judgement: a missing file, two that change places, one of
   another save. */
static void ckt_names(ckt_damage *d, host_run *h, checkpoint *c) {
    char a[600], b[600], away[600];
    snprintf(away, sizeof away, "%s/away", d->folder);
    for (int i = 0; i < 3; i++) {
        snprintf(a, sizeof a, "%s/%s", d->folder, ckt_files[i]);
        if (rename(a, away)) abort();
        ckt_judge(d, h, c, "missing", i);
        for (int k = 0; k < 3; k++) {
            snprintf(b, sizeof b, "%s/%s", d->folder, ckt_files[k]);
            if (k == i) continue;
            if (rename(b, a) || rename(away, b)) abort();
            ckt_judge(d, h, c, "swapped", 10 * i + k);
            if (rename(b, away) || rename(a, b)) abort();
        }
        snprintf(b, sizeof b, "%s/../../other/step_00000002/%s", d->folder, ckt_files[i]);
        if (link(b, a)) abort();
        ckt_judge(d, h, c, "of another save", i);
        if (rename(away, a)) abort();
    }
    snprintf(a, sizeof a, "%.*s8", (int)strlen(d->folder) - 1, d->folder);
    if (rename(d->folder, a)) abort();
    ckt_judge(d, h, c, "a step with the name of another", 8);
    if (checkpoint_load(c, CHECKPOINT_NEWEST) != CHECKPOINT_DAMAGED)
        test_rank_fail(h->rank, "step 2 was loaded as step 8");
    if (rename(a, d->folder)) abort();
}

static void ckt_damage_all(ckt_job *j, host_run *h, checkpoint *c) {
    ckt_damage *d = (ckt_damage *)j->arg;
    d->good = j->begin;
    for (int i = 0; i < 3; i++) {
        ckt_flip(d, h, c, ckt_files[i], i);
        ckt_truncate(d, h, c, ckt_files[i]);
    }
    ckt_names(d, h, c);
}

static void ckt_small(host_spec *s) {
    s->ntensors = 2;
    s->units = 1;
    s->desc[0].numel = 323; /* both ranks have some */
    s->desc[1].numel = 6;
}

static void ckt_damaged(void) {
    static ckt_damage d;
    ckt_job j;
    for (int i = 0; i < 2; i++) {
        ckt_job_set(&j, ckt_path(i ? "other" : "damage"), 2, 3, 0);
        ckt_small(&j.spec);
        j.spec.seed += (uint64_t)i;
        j.until = j.save = 2;
        test_check(ckt_run(&j), "damage: %s", test_first);
    }
    ckt_job_set(&j, ckt_path("damage"), 1, 0, 0);
    ckt_small(&j.spec);
    snprintf(d.folder, sizeof d.folder, "%s/step_00000002", j.o.folder);
    j.load = 1;
    j.o.not_direct = 1;
    j.also = ckt_damage_all;
    j.arg = &d;
    test_check(ckt_run(&j) && j.loaded == CHECKPOINT_OK, "damage: %s %s", test_first, j.error);
    printf("damage: %ld tried, %ld detected, %ld harmless, %ld wrong\n", d.tried, d.detected,
           d.harmless, d.wrong);
    test_check(d.wrong == 0 && d.detected > 1000, "damage: %ld wrong: %s", d.wrong, d.first);
}

/* The newest is damaged: the one before is taken, or refused, by all ranks alike. */
static void ckt_log(void *user, const char *sentence) { strncat((char *)user, sentence, 900); }

static void ckt_older(void) {
    static char told[2000];
    ckt_job j;
    const char *folder = ckt_path("older");
    ckt_job_set(&j, folder, 3, 3, 1);
    j.until = 6;
    j.save = 2;
    test_check(ckt_run(&j), "older: %s", test_first);
    const int fd = open(ckt_path("older/step_00000006/shard_00001.bin"), O_RDWR);
    if (fd < 0 || pwrite(fd, "!", 1, 4200) != 1 || close(fd)) abort();
    if (unlink(ckt_path("older/step_00000004/shard_00002.bin"))) abort();
    for (int refuse = 0; refuse < 2; refuse++) {
        ckt_job_set(&j, folder, 4, 2, 1);
        j.load = 1;
        j.o.refuse_damaged = refuse;
        j.o.log = ckt_log;
        j.o.log_user = told;
        const int ok = ckt_run(&j);
        if (refuse)
            test_check(ok && j.loaded == CHECKPOINT_DAMAGED && strstr(j.error, "shard_00001"),
                       "refused: %d %s", (int)j.loaded, j.error);
        else
            test_check(ok && j.loaded == CHECKPOINT_OK && j.step == 2
                           && strstr(told, "step_00000006 is skipped")
                           && strstr(told, "shard_00002.bin"),
                       "skipped: %s, told: %s", test_first, told);
    }
    if (unlink(ckt_path("older/step_00000002/shard_00000.bin"))) abort();
    ckt_job_set(&j, folder, 2, 1, 1);
    j.load = 1;
    test_check(ckt_run(&j) && j.loaded == CHECKPOINT_DAMAGED && strstr(j.error, folder)
                   && strstr(j.error, "is complete: step_00000006: "),
               "all are damaged: %s", j.error);
}

/* Shards of several windows: 38 MB, read by other numbers of ranks, with pieces that end anywhere;
   and a byte that is wrong far behind the first window. */
static void ckt_large(void) {
    static const int ranks[] = {2, 1, 3}, stages[] = {3, 0, 2};
    ckt_job j;
    uint64_t saved = 0;
    for (int i = 0; i < 4; i++) {
        ckt_job_set(&j, ckt_path("large"), ranks[i % 3], stages[i % 3], 0);
        j.spec.desc[0].numel = 3000017;
        j.spec.desc[2].numel = 50021;
        j.load = i > 0;
        j.until = j.save = i == 0;
        if (i == 3) {
            const int fd = open(ckt_path("large/step_00000001/shard_00001.bin"), O_RDWR);
            if (fd < 0 || pwrite(fd, "!!", 2, 17 << 20) != 2 || close(fd)) abort();
        }
        const int ok = ckt_run(&j);
        if (i == 0) saved = j.end;
        if (i == 3)
            test_check(ok && j.loaded == CHECKPOINT_DAMAGED, "large, damaged: %s", j.error);
        else
            test_check(ok && !j.loaded && (i == 0 || j.begin == saved), "large, %d ranks: %s %s",
                       ranks[i], test_first, j.error);
    }
}

/* Two generations for tests/checkpoint/test_checkpoint_tool.sh, in a folder that stays. */
static int ckt_tool(void) {
    ckt_job j;
    ckt_job_set(&j, getenv("CHECKPOINT_KEEP"), 3, 2, 3);
    j.until = 4;
    j.save = 2;
    test_check(j.o.folder != NULL && ckt_run(&j), "tool: %s", test_first);
    return test_summary();
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "tool") == 0) return ckt_tool();
    const int all = argc > 1 && strcmp(argv[1], "all") == 0; /* else `sample SEED` */
    if (argc > 2) ckt_seed = strtoull(argv[2], NULL, 10);
    const char *where = getenv("TMPDIR");
    snprintf(ckt_root, sizeof ckt_root, "%.200s/test_checkpoint.XXXXXX", where ? where : "/tmp");
    if (mkdtemp(ckt_root) == NULL) abort();
    ckt_bitwise(all);
    ckt_ranks(all);
    ckt_cross();
    ckt_frozen();
    ckt_keep();
    ckt_errors();
    ckt_removed();
    ckt_models();
    ckt_reader();
    ckt_older();
    ckt_damaged();
    ckt_large();
    ckt_remove(ckt_root);
    return test_summary();
}

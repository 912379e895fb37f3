/* test_gpt2_pipeline.c - GPT-2 over the stages of a pipeline, of adapters/gpt2/pipelined.h, beside
   the same micro-steps without one: the same bits with the classifier untied, at every stage of
   ZeRO, number of chunks, type and recomputation, with wte in tiles, inputs of blocks away, delayed
   updates and state in a file; tied, those of a plain reference that adds up lookup and classifier
   apart. And what it sends, evaluates, and refuses.

   With ops_cpu.c as C; with ops_cuda.cu by nvcc on a GPU, or by g++ on the emulation. */
#include "../shared/harness.h"
#include "test_gpt2_ranks.h"

#include "../../adapters/gpt2/pipelined.h"
#include "../../adapters/pipeline/pipeline.h"

#include <math.h>

enum { V = 300, Vp = 384, L = 8, NH = 2, C = 32, MAXT = 16, T = 12, B = 2, STEPS = 3, MOST_M = 8 };
enum { TOKENS = B * T };

/* A training, and what rank 0 finds. */
typedef struct training {
    int stages, chunks, data; /* p, v, data-parallel ranks; p 0: no pipeline */
    int zero_stage, micro, recompute, untied;
    zero_type type;
    float max_norm;
    int adds_by_hand; /* the reference of tied embeddings: untied, with gradients added here */
    int looks;        /* evaluates and samples as well */
    int tile_rows, delay_from, sharded;
    zero_tier tier; /* of optimizer state; sharded: of gradients, too */
    /* found */
    double loss[STEPS], norm[STEPS], eval;
    float logits[V];
    float *weights; /* all tensors; lmheadw last */
    uint64_t sent[16];
} training;

typedef struct ranks {
    zero_group *world, *dp, *pp, *ends;
    gpt2_stage stage;
    gpt2_parallel how;
    int world_unit[2 * Vp / 32 + L + 3];
    zero_ctx *z;
    gpt2_model *model;
    gpt2_pipeline *line;
    gpt2_error err;
} ranks;

/* One rank, without a pipeline. */
static training plain_of(int micro, int untied) {
    training t;
    memset(&t, 0, sizeof t);
    t.chunks = t.data = t.recompute = 1;
    t.micro = micro;
    t.untied = untied;
    return t;
}

static gpt2_config config_of(const training *t) {
    const gpt2_config c = {MAXT, V, Vp, L, NH, C, t->untied || t->adds_by_hand, GPT2_NO_EXPERTS,
                           NULL, 0, 0,  0};
    return c;
}

static gpt2_run run_of(const training *t, const ranks *k) {
    const gpt2_run run = {
        B, T, t->recompute, t->type, 0, 0, t->tile_rows, P_tmpdir, t->stages ? &k->how : NULL, 0,
        0, 0};
    return run;
}

/* ---- ranks
 * ---------------------------------------------------------------------------------------- */

/* Rank = stage * data + data-parallel rank. */
static zero_result open_groups(ranks *k, const training *t, const zero_comm *comm) {
    const int stage = comm->rank / t->data, data = comm->rank % t->data;
    const int last = t->stages > 0 ? t->stages - 1 : 0;
    ZERO_TRY(zero_group_open(&k->world, comm, NULL, 30));
    ZERO_TRY(zero_group_split(k->world, stage, data, &k->dp));
    ZERO_TRY(zero_group_split(k->world, data, stage, &k->pp));
    return zero_group_split(k->pp, stage == 0 || stage == last ? 0 : -1, stage, &k->ends);
}

static zero_result make_stage(ranks *k, const training *t, const gpt2_config *cfg) {
    if (!t->stages) return ZERO_OK;
    ZERO_TRY(
        gpt2_stage_make(&k->stage, cfg, t->stages, t->chunks, zero_group_rank(k->pp), T, &k->err));
    k->stage.pp = k->pp;
    k->stage.ends = k->ends;
    k->how.stage = &k->stage;
    gpt2_pipeline_slots(&k->stage, t->micro);
    return ZERO_OK;
}

static zero_result make_context(ranks *k, const training *t, const gpt2_config *cfg) {
    const zero_comm dp = zero_group_comm(k->dp);
    const int tiles = gpt2_tiles(cfg, 1, t->tile_rows);
    zero_config zc;
    memset(&zc, 0, sizeof zc);
    zc.stage = t->zero_stage;
    zc.micro_steps = t->micro;
    zc.accumulation = t->sharded ? ZERO_ACCUMULATE_SHARDED : ZERO_ACCUMULATE_LOCAL;
    zc.gradient_tier = t->sharded && t->zero_stage >= 2 ? t->tier : ZERO_DEVICE;
    zc.grads = ZERO_GRAD_F32;
    zc.type = t->type;
    zc.log = test_quiet;
    zc.no_mapping = t->stages != 4; /* where units are seen in place nothing is gathered */
    zc.world = k->world;
    zc.delay_from = t->delay_from;
    zc.optimizer_tier = t->tier;
    zc.folder = P_tmpdir;
    zc.world_units = gpt2_world_units(cfg, tiles);
    gpt2_stage_world(cfg, t->stages ? &k->stage : NULL, tiles, k->world_unit);
    zc.world_unit = k->world_unit;
    ZERO_TRY(zero_create(&k->z, &zc, &dp));
    ZERO_TRY(gpt2_announce(k->z, cfg, t->stages ? &k->how : NULL, t->tile_rows));
    if (t->stages) ZERO_TRY(gpt2_pipeline_order(k->z, cfg, &k->stage, tiles, t->micro));
    ZERO_TRY(zero_build(k->z));
    return gpt2_init_part(k->z, cfg, t->stages ? &k->how : NULL, 7, &k->err);
}

static zero_result open_all(ranks *k, const training *t, const gpt2_config *cfg,
                            const zero_comm *comm) {
    memset(k, 0, sizeof *k);
    ZERO_TRY(open_groups(k, t, comm));
    ZERO_TRY(make_stage(k, t, cfg));
    ZERO_TRY(make_context(k, t, cfg));
    const gpt2_run run = run_of(t, k);
    ZERO_TRY(gpt2_create(&k->model, k->z, cfg, &run, &k->err));
    if (!t->stages) return ZERO_OK;
    return gpt2_pipeline_open(&k->line, k->z, k->model, &k->stage, t->micro, NULL, &k->err);
}

static void close_all(ranks *k) {
    gpt2_pipeline_close(k->line);
    gpt2_destroy(k->model);
    zero_destroy(k->z);
    zero_group_close(k->ends);
    zero_group_close(k->pp);
    zero_group_close(k->dp);
    zero_group_close(k->world);
}

/* ---- steps
 * ----------------------------------------------------------------------------------------- */

/* Different for every data-parallel rank, step and micro-batch. */
static void draw_tokens(int *tokens, int data, int at) {
    for (int i = 0; i < TOKENS; i++)
        tokens[i] = (int)(gpt2_draw(5, 1000 + (uint64_t)data, (uint64_t)(at * TOKENS + i)) % V);
}

/* Batches that lie in memory; the sequences that each has, NULL: B. */
typedef struct lying {
    const int *inputs, *targets, *rows;
} lying;

static int load_lying(void *user, int i, int *inputs, int *targets) {
    const lying *l = (const lying *)user;
    if (inputs) memcpy(inputs, l->inputs + i * TOKENS, TOKENS * sizeof(int));
    if (targets) memcpy(targets, l->targets + i * TOKENS, TOKENS * sizeof(int));
    return l->rows ? l->rows[i] : B;
}

static zero_result run_passes(ranks *k, const training *t, const int *inputs, const int *targets) {
    const float factor = zero_loss_scale(k->z) / (float)t->micro;
    lying l = {inputs, targets, NULL};
    const gpt2_feed feed = {load_lying, NULL, &l};
    if (k->line) {
        ZERO_TRY(zero_pass_begin(k->z, ZERO_TRAIN, ZERO_TOGETHER, t->micro));
        ZERO_TRY(gpt2_pipeline_train(k->line, &feed, factor));
        return zero_pass_end(k->z);
    }
    for (int i = 0; i < t->micro; i++) {
        ZERO_TRY(zero_pass_begin(k->z, ZERO_TRAIN, i, t->micro));
        ZERO_TRY(
            gpt2_train_step(k->model, inputs + i * TOKENS, targets + i * TOKENS, factor, NULL));
        ZERO_TRY(zero_pass_end(k->z));
    }
    return ZERO_OK;
}

/* The plain reference: lookup's and classifier's gradients, added once, for both copies. */
static zero_result add_by_hand(zero_ctx *z) {
    static __thread float lookup[Vp * C], classifier[Vp * C];
    ZERO_TRY(zero_read_tensor(z, "wte", ZERO_GRADIENT, 0, (size_t)Vp * C, lookup));
    ZERO_TRY(zero_read_tensor(z, "lmheadw", ZERO_GRADIENT, 0, (size_t)Vp * C, classifier));
    for (int i = 0; i < Vp * C; i++) lookup[i] += classifier[i];
    ZERO_TRY(zero_write_tensor(z, "wte", ZERO_GRADIENT, 0, (size_t)Vp * C, lookup));
    return zero_write_tensor(z, "lmheadw", ZERO_GRADIENT, 0, (size_t)Vp * C, lookup);
}

static zero_result take_step(ranks *k, training *t, int data, int step) {
    static __thread int inputs[MOST_M * TOKENS], targets[MOST_M * TOKENS];
    const zero_hyper hyper = {1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, t->max_norm};
    zero_step_report report;
    double loss = 0;
    for (int i = 0; i < t->micro; i++) {
        draw_tokens(inputs + i * TOKENS, data, 2 * (step * t->micro + i));
        draw_tokens(targets + i * TOKENS, data, 2 * (step * t->micro + i) + 1);
    }
    ZERO_TRY(run_passes(k, t, inputs, targets));
    ZERO_TRY(zero_reduce(k->z));
    if (t->adds_by_hand) ZERO_TRY(add_by_hand(k->z));
    ZERO_TRY(zero_step(k->z, &hyper));
    ZERO_TRY(zero_step_result(k->z, &report));
    ZERO_TRY(gpt2_take_losses(k->model, &loss));
    ZERO_TRY(zero_group_all_reduce(k->world, &loss, 1, ZERO_F64, ZERO_SUM));
    t->loss[step] = loss / t->data;
    t->norm[step] = report.norm;
    return ZERO_OK;
}

/* What the stage sent to its neighbours: before anything else is asked of their group. */
static void note_sent(ranks *k, training *t, int rank) {
    zero_group_stats stats;
    if (!k->line) return;
    zero_group_query_stats(k->pp, &stats);
    __atomic_store_n(&t->sent[rank], stats.sent_bytes, __ATOMIC_RELAXED);
}

/* Three batches, one of them of fewer rows, one of none; and what follows a few tokens. */
static zero_result look(ranks *k, training *t) {
    static __thread int inputs[3 * TOKENS], targets[3 * TOKENS];
    const int rows[3] = {B, 1, 0};
    for (int i = 0; i < 3; i++) {
        draw_tokens(inputs + i * TOKENS, 0, 900 + i);
        draw_tokens(targets + i * TOKENS, 0, 950 + i);
    }
    t->eval = 0;
    if (k->line) {
        lying l = {inputs, targets, rows};
        const gpt2_feed feed = {load_lying, NULL, &l};
        ZERO_TRY(gpt2_pipeline_loss(k->line, &feed, 0, 3, &t->eval));
        ZERO_TRY(zero_group_all_reduce(k->pp, &t->eval, 1, ZERO_F64, ZERO_SUM));
        return gpt2_pipeline_logits(k->line, inputs, T - 3, t->logits);
    }
    for (int i = 0; i < 3; i++) {
        double sum = 0;
        ZERO_TRY(zero_pass_begin(k->z, ZERO_EVAL, 0, 1));
        ZERO_TRY(gpt2_loss(k->model, inputs + i * TOKENS, targets + i * TOKENS, rows[i], &sum));
        ZERO_TRY(zero_pass_end(k->z));
        t->eval += sum;
    }
    ZERO_TRY(zero_pass_begin(k->z, ZERO_EVAL, 0, 1));
    ZERO_TRY(gpt2_logits(k->model, inputs, T - 3, t->logits));
    return zero_pass_end(k->z);
}

static size_t numel_of(const gpt2_config *cfg, int tensor) {
    zero_tensor_desc table[GPT2_MOST_TENSORS];
    (void)gpt2_table(cfg, NULL, 0, table);
    return table[tensor].numel * (size_t)table[tensor].layers;
}

/* All tensors, in pieces that do not fit their layers. */
static zero_result read_weights(ranks *k, const training *t, const gpt2_config *cfg, float *at) {
    for (int i = 0; i < GPT2_TENSORS + (cfg->untied != 0); i++) {
        const size_t n = numel_of(cfg, i);
        for (size_t first = 0; first < n; first += 5000) {
            const size_t count = n - first < 5000 ? n - first : 5000;
            ZERO_TRY(
                gpt2_read(k->z, cfg, t->stages ? &k->how : NULL, i, ZERO_MASTER, first, count, at));
            if (at) at += count;
        }
    }
    return ZERO_OK;
}

/* A step, and whether it gathered and sent what is planned. */
static zero_result take_counted_step(ranks *k, training *t, int data, int step) {
    zero_plan p;
    zero_stats before, after;
    ZERO_TRY(zero_query_plan(k->z, &p));
    ZERO_TRY(zero_query_stats(k->z, &before));
    ZERO_TRY(take_step(k, t, data, step));
    ZERO_TRY(zero_query_stats(k->z, &after));
    const uint64_t gathers = after.gather_bytes - before.gather_bytes;
    const uint64_t sent = after.sent_bytes - before.sent_bytes;
    /* delayed updates gather a step later, and without a pipeline the first step is learnt from */
    if (!t->stages || t->delay_from || (gathers == p.gather_bytes && sent == p.sent_bytes))
        return ZERO_OK;
    snprintf(k->err.sentence, sizeof k->err.sentence,
             "step %d: %llu bytes sent to gather of %llu, planned %zu of %zu", step,
             (unsigned long long)gathers, (unsigned long long)sent, p.gather_bytes, p.sent_bytes);
    return ZERO_ERR_STATE;
}

static zero_result train_all(ranks *k, training *t, const gpt2_config *cfg, int rank) {
    const int data = rank % t->data;
    if (t->adds_by_hand) {
        static __thread float lookup[Vp * C];
        ZERO_TRY(zero_read_tensor(k->z, "wte", ZERO_MASTER, 0, (size_t)Vp * C, lookup));
        ZERO_TRY(zero_write_tensor(k->z, "lmheadw", ZERO_MASTER, 0, (size_t)Vp * C, lookup));
    }
    for (int step = 0; step < STEPS; step++) ZERO_TRY(take_counted_step(k, t, data, step));
    return t->looks ? look(k, t) : read_weights(k, t, cfg, t->weights);
}

static void train_body(test_rank *r) {
    training own = *(training *)r->arg, *t = r->rank ? &own : (training *)r->arg;
    const gpt2_config cfg = config_of(t);
    const zero_comm comm = test_comm(r);
    ranks k;
    if (r->rank) own.weights = NULL;
    zero_result result = open_all(&k, t, &cfg, &comm);
    if (!result) result = train_all(&k, t, &cfg, r->rank);
    if (result)
        test_rank_fail(r, "result %d: %s; %s; %s; %s", (int)result, k.err.sentence,
                       k.line ? gpt2_pipeline_error(k.line) : "",
                       k.model ? gpt2_last_error(k.model) : "", k.z ? zero_last_error(k.z) : "");
    close_all(&k);
}

static void describe(const training *t, char text[160]) {
    snprintf(text, 160,
             "p %d, v %d, m %d, %d data ranks, stage %d, type %d, recompute %d, tiles %d, delay "
             "%d, tier %d%s%s",
             t->stages, t->chunks, t->micro, t->data, t->zero_stage, (int)t->type, t->recompute,
             t->tile_rows, t->delay_from, (int)t->tier, t->sharded ? ", sharded" : "",
             t->untied ? ", untied" : "");
}

static int train(training *t) {
    char text[160];
    describe(t, text);
    const gpt2_config cfg = config_of(t);
    t->weights = (float *)calloc(gpt2_numel(&cfg), sizeof(float));
    return test_check(test_ranks((t->stages ? t->stages : 1) * t->data, 0, train_body, t), "%s: %s",
                      text, test_first);
}

static void forget(training *t) {
    free(t->weights);
    t->weights = NULL;
}

/* ---- the same bits
 * ----------------------------------------------------------------------------------- */

static void same_training(const training *a, const training *b) {
    char text[160];
    const gpt2_config cfg = config_of(a);
    size_t differ = 0;
    describe(b, text);
    for (size_t i = 0; i < gpt2_numel(&cfg); i++)
        differ += memcmp(&a->weights[i], &b->weights[i], sizeof(float)) != 0;
    test_check(differ == 0, "%s: %zu weights differ", text, differ);
    for (int i = 0; i < STEPS; i++) {
        test_check(fabs(a->loss[i] - b->loss[i]) < 1e-12 * a->loss[i],
                   "%s: loss %.17g, not %.17g at step %d", text, b->loss[i], a->loss[i], i);
        test_check(a->norm[i] == b->norm[i], "%s: norm %.17g, not %.17g at step %d", text,
                   b->norm[i], a->norm[i], i);
    }
}

/* One reference of each type and recomputation; a pipeline at each stage and shape beside it. */
static void test_untied(void) {
    static const int shapes[][3] = {{2, 1, 3}, {2, 2, 4}, {4, 1, 4}, {4, 2, 4}, {8, 1, 2}};
    for (int type = ZERO_F32; type <= (EMULATED ? ZERO_F32 : ZERO_BF16); type++)
        for (int i = EMULATED; i < (EMULATED ? 2 : 5); i++) {
            training plain = plain_of(shapes[i][2], 1);
            plain.data = shapes[i][0] == 8 ? 1 : 2;
            plain.zero_stage = plain.recompute = i % 4;
            plain.type = (zero_type)type;
            plain.max_norm = 1.0f;
            if (!train(&plain)) continue;
            for (int stage = EMULATED; stage <= 3; stage += 1 + EMULATED) {
                training t = plain;
                t.stages = shapes[i][0];
                t.chunks = shapes[i][1];
                t.zero_stage = stage;
                if (train(&t)) same_training(&plain, &t);
                forget(&t);
            }
            forget(&plain);
        }
}

static void test_recompute(void) {
    for (int recompute = EMULATED ? 3 : 0; recompute <= GPT2_RECOMPUTE_AWAY; recompute++) {
        training plain = plain_of(4, 1), t;
        plain.recompute = recompute;
        t = plain;
        t.stages = 2;
        t.chunks = 2;
        t.zero_stage = 2;
        if (train(&plain) && train(&t)) same_training(&plain, &t);
        forget(&plain);
        forget(&t);
    }
}

/* Tiles of wte, inputs of blocks that are away, delayed updates, state in a file: one after the
   other, then together; reductions of every micro-step, with gradients in the file. */
static void test_ways(void) {
    static const struct {
        int tile_rows, recompute, delay_from, sharded;
        zero_tier tier;
    } ways[] = {{96, 1, 0, 0, ZERO_DEVICE}, {0, GPT2_RECOMPUTE_AWAY, 0, 0, ZERO_DEVICE},
                {0, 1, 2, 0, ZERO_DEVICE},  {32, GPT2_RECOMPUTE_AWAY, 1, 0, ZERO_FILE},
                {0, 1, 0, 1, ZERO_DEVICE},  {32, 1, 0, 1, ZERO_FILE}};
    static const int shapes[][3] = {{2, 1, 4}, {4, 2, 4}, {3, 1, 1}};
    for (int w = 0; w < (EMULATED ? 1 : 6); w++)
        for (int i = 0; i < (EMULATED ? 1 : 3); i++) {
            training plain = plain_of(shapes[i][2], 1), t;
            plain.data = 2 - (i == 1);
            plain.max_norm = 1.0f;
            plain.type = i == 1 ? ZERO_BF16 : ZERO_F32;
            plain.tile_rows = ways[w].tile_rows;
            plain.recompute = ways[w].recompute;
            plain.delay_from = ways[w].delay_from;
            plain.sharded = ways[w].sharded;
            if (!train(&plain)) continue;
            for (int stage = EMULATED ? 3 : 0; stage <= 3; stage++) {
                t = plain;
                t.stages = shapes[i][0];
                t.chunks = shapes[i][1];
                t.zero_stage = stage;
                t.tier = ways[w].tier;
                if (train(&t)) same_training(&plain, &t);
                forget(&t);
            }
            forget(&plain);
        }
}

/* Tied, without clipping: the reference's norm counts lookup and classifier apart. */
static void test_tied(int tile_rows) {
    training usual = plain_of(4, 0), plain;
    usual.tile_rows = tile_rows;
    plain = usual;
    plain.adds_by_hand = 1;
    if (!train(&plain) || !train(&usual)) return;
    for (int stages = 2; stages <= 4; stages += 2)
        for (int stage = EMULATED ? stages - 1 : 0; stage <= 3; stage += EMULATED ? 4 : 1) {
            training t = usual;
            size_t differ = 0;
            t.stages = stages;
            t.chunks = 1 + stage % 2;
            t.zero_stage = stage;
            if (!train(&t)) continue;
            const gpt2_config cfg = config_of(&t);
            for (size_t i = 0; i < gpt2_numel(&cfg); i++)
                differ += memcmp(&plain.weights[i], &t.weights[i], sizeof(float)) != 0;
            test_check(differ == 0, "tied, p %d, stage %d: %zu weights differ", stages, stage,
                       differ);
            for (int i = 0; i < STEPS; i++) {
                test_check(fabs(usual.loss[i] - t.loss[i]) < 1e-5, "tied: loss %g, not %g",
                           t.loss[i], usual.loss[i]);
                test_check(fabs(usual.norm[i] / t.norm[i] - 1) < 1e-6, "tied: norm %.9g, not %.9g",
                           t.norm[i], usual.norm[i]);
            }
            forget(&t);
        }
    forget(&plain);
    forget(&usual);
}

/* ---- what else
 * --------------------------------------------------------------------------------------- */

static void test_looks(int tile_rows) {
    for (int chunks = 1 + EMULATED; chunks <= 2; chunks++)
        for (int stage = EMULATED ? 3 : 0; stage <= 3; stage += 3) {
            training plain = plain_of(4, 1), t;
            double most = 0;
            plain.max_norm = 1.0f;
            plain.looks = 1;
            plain.tile_rows = tile_rows;
            t = plain;
            t.stages = 2;
            t.chunks = chunks;
            t.zero_stage = stage;
            if (!train(&plain) || !train(&t)) continue;
            for (int i = 0; i < V; i++) most = fmax(most, fabs(plain.logits[i] - t.logits[i]));
            test_check(plain.eval == t.eval && plain.eval > 0, "v %d: evaluation %.17g, not %.17g",
                       chunks, t.eval, plain.eval);
            test_check(most < 1e-5 && plain.logits[0] != 0, "v %d: logits differ by %g", chunks,
                       most);
            forget(&plain);
            forget(&t);
        }
}

/* One step; nothing else goes over the stages' group. */
static void sent_body(test_rank *r) {
    training own = *(training *)r->arg, *t = &own;
    const gpt2_config cfg = config_of(t);
    const zero_comm comm = test_comm(r);
    ranks k;
    zero_result result = open_all(&k, t, &cfg, &comm);
    if (!result) result = take_step(&k, t, r->rank % t->data, 0);
    if (result) test_rank_fail(r, "result %d: %s", (int)result, k.z ? zero_last_error(k.z) : "");
    if (!result) note_sent(&k, (training *)r->arg, r->rank);
    close_all(&k);
}

static void test_sent(void) {
    training t = plain_of(4, 1);
    t.stages = 4;
    t.chunks = t.zero_stage = 2;
    t.type = ZERO_BF16;
    const gpt2_config cfg = config_of(&t);
    ranks none;
    memset(&none, 0, sizeof none);
    const gpt2_run run = run_of(&t, &none);
    uint64_t all = 0;
    test_check(test_ranks(4, 0, sent_body, &t), "a step of 4 stages: %s", test_first);
    for (int rank = 0; rank < 4; rank++) {
        gpt2_stage s;
        const gpt2_parallel how = {NULL, 0, &s, NULL, NULL, NULL, NULL, NULL, NULL};
        gpt2_run one = run;
        one.parallel = &how;
        (void)gpt2_stage_make(&s, &cfg, 4, 2, rank, T, NULL);
        const uint64_t formula = gpt2_pipeline_sent(&cfg, &one, t.micro);
        test_check(t.sent[rank] == formula, "stage %d sent %llu bytes, not %llu", rank,
                   (unsigned long long)t.sent[rank], (unsigned long long)formula);
        all += formula;
    }
    /* b s h for each of p v - 1 boundaries, both directions, and micro-batches */
    test_check(all == (uint64_t)(4 * 2 - 1) * 2 * 4 * TOKENS * C * 2, "all stages send %llu bytes",
               (unsigned long long)all);
}

static void test_refusals(void) {
    const training t = plain_of(4, 0);
    const gpt2_config cfg = config_of(&t);
    gpt2_stage s;
    gpt2_error err;
    test_check(gpt2_stage_make(&s, &cfg, 9, 1, 0, T, &err)
                   && strstr(err.sentence, "use at most 8 stages"),
               "nine stages of eight blocks: %s", err.sentence);
    test_check(gpt2_stage_make(&s, &cfg, 4, 3, 0, T, &err)
                   && strstr(err.sentence, "use at most 2 chunks"),
               "twelve chunks of eight blocks: %s", err.sentence);
    test_check(!gpt2_stage_make(&s, &cfg, 4, 2, 3, T, &err), "eight chunks: %s", err.sentence);
}

int main(void) {
    test_refusals();
    test_sent();
    test_looks(0);
    if (!EMULATED) test_looks(64);
    test_recompute();
    test_ways();
    test_tied(0);
    if (!EMULATED) test_tied(96);
    test_untied();
#ifdef EMULATED_LAUNCH
    test_check(!emulation_found(), "the emulation found: %s", emulation_found());
#endif
    return test_summary();
}

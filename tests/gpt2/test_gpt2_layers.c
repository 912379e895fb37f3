/* test_gpt2_layers.c - micro-batches that pass each layer together, gpt2_train_layers of
   adapters/gpt2/gpt2.h, beside the same micro-steps one after the other with accumulation LOCAL:
   the same bits with a classifier or tiles of its own, in every type, stage, recomputation and
   tier, with quantized traffic, replicas, tensor parallelism and frozen tensors; a tied wte up to
   rounding; bytes and memory as planned, whatever the number of micro-batches.

   With ops_cpu.c as C; with ops_cuda.cu by nvcc on a GPU, or by g++ on the emulation. */
#include "../shared/harness.h"
#include "test_gpt2_ranks.h"

#include "../../adapters/gpt2/frozen.h"
#include "../../adapters/gpt2/gpt2.h"
#include "../../adapters/gpt2/lora.h"
#include "../../adapters/gpt2/stages.h"

#include <math.h>

#ifdef _OPENMP
#include <omp.h>
#endif

enum { V = 300, Vp = 384, L = 5, NH = 4, C = 32, T = 12, B = 2, STEPS = 3, MOST_MICRO = 5 };

#ifdef __CUDACC__
enum { SAME_GELU = 0 }; /* what cuBLASLt and the own kernel say of GELU is a rounding apart */
#else
enum { SAME_GELU = 1 };
#endif

/* A training on dp x tp ranks, and what the first rank finds. */
typedef struct training {
    int layers; /* 1: layer by layer */
    int micro, dp, tp, sequence, untied, tile_rows, recompute, stage, no_overlap, lora;
    int weight_bits, gradient_bits, shard_ranks, no_mapping;
    int group; /* layers that a micro-batch passes before the next one does */
    zero_type type;
    zero_tier tier; /* of optimizer state, gradients and parameters, as the stage allows */
    const char *freeze;
    double loss[STEPS], norm[STEPS], eval; /* loss: the mean over micro-batches and ranks */
    float logits[V];
    uint64_t weights; /* a hash of all of them */
    zero_plan plan;
    zero_stats stats; /* of the steps */
    size_t activations;
} training;

typedef ranks_part part;

static gpt2_config config_of(const training *t) {
    const gpt2_config c = {T, V, Vp, L, NH, C, t->untied, GPT2_NO_EXPERTS, NULL, 0, 0, 0};
    return c;
}
static gpt2_run run_of(const training *t, const gpt2_parallel *how) {
    const gpt2_run run = {B,
                          T,
                          t->recompute,
                          t->type,
                          0,
                          0,
                          t->tile_rows,
                          P_tmpdir,
                          how,
                          t->layers ? t->micro : 0,
                          0,
                          t->layers ? t->group : 0};
    return run;
}

static zero_config settings_of(const part *p) {
    const training *t = p->t;
    zero_config zc;
    memset(&zc, 0, sizeof zc);
    zc.stage = t->stage;
    zc.micro_steps = t->layers ? 1 : t->micro;
    zc.accumulation = ZERO_ACCUMULATE_LOCAL;
    zc.type = t->type;
    zc.grads = ZERO_GRAD_F32;
    zc.no_overlap = t->no_overlap;
    zc.weight_bits = t->weight_bits;
    zc.gradient_bits = t->gradient_bits;
    zc.shard_ranks = t->shard_ranks;
    zc.no_mapping = t->no_mapping;
    zc.optimizer_tier = t->tier;
    if (t->layers && t->stage >= 2) zc.gradient_tier = t->tier;
    if (t->stage == 3) zc.parameter_tier = t->tier;
    zc.folder = P_tmpdir;
    zc.persistence_numel = ZERO_NONE;
    if (t->layers && t->micro > 1) zc.open_units = gpt2_open_units(t->group);
    zc.log = test_quiet;
    zc.world = p->world;
    return zc;
}

static zero_result adapt(part *p) {
    const gpt2_lora lora = {4, 4.0f, 1u << LORA_QKV};
    p->cfg = config_of(p->t);
    if (!p->t->lora && !p->t->freeze) return ZERO_OK;
    ZERO_TRY(gpt2_adapt(&p->cfg, p->t->lora ? &lora : NULL, "", p->t->freeze ? p->t->freeze : "",
                        &p->frozen, &p->err));
    p->cfg.frozen = p->frozen;
    return ZERO_OK;
}

static zero_result open_model(part *p, const zero_comm *comm) {
    const training *t = p->t;
    const int tiles = gpt2_tiles(&p->cfg, t->tp, t->tile_rows);
    ZERO_TRY(ranks_part_open(p, comm, t->tp, t->sequence));
    const zero_comm data = zero_group_comm(p->dp);
    const zero_config zc = settings_of(p);
    const gpt2_run run = run_of(t, &p->how);
    ZERO_TRY(zero_create(&p->z, &zc, &data));
    ZERO_TRY(gpt2_announce(p->z, &p->cfg, &p->how, t->tile_rows));
    ZERO_TRY((t->layers ? gpt2_layers_order : gpt2_frozen_order)(p->z, &p->cfg, tiles));
    ZERO_TRY(zero_build(p->z));
    ZERO_TRY(gpt2_init_part(p->z, &p->cfg, &p->how, 7, &p->err));
    ZERO_TRY(gpt2_lora_init(p->z, &p->cfg, &p->how, 7, &p->err));
    return gpt2_create(&p->m, p->z, &p->cfg, &run, &p->err);
}

/* Forward and backward of all micro-batches. */
static zero_result micro_steps(part *p, int step) {
    static const int R = B * T;
    const int M = p->t->micro;
    const float factor = zero_loss_scale(p->z) / (float)M;
    int inputs[MOST_MICRO * B * T], targets[MOST_MICRO * B * T];
    for (int k = 0; k < M; k++) {
        int tokens[2 * B * T];
        ranks_draw_tokens(tokens, R, V, p->dp_rank, step * M + k);
        memcpy(inputs + k * R, tokens, (size_t)R * sizeof *tokens);
        memcpy(targets + k * R, tokens + R, (size_t)R * sizeof *tokens);
    }
    if (p->t->layers) {
        ZERO_TRY(gpt2_pass_begin(p->m, ZERO_TRAIN, 0, 1));
        ZERO_TRY(gpt2_train_layers(p->m, inputs, targets, factor));
        return gpt2_pass_end(p->m);
    }
    for (int k = 0; k < M; k++) {
        ZERO_TRY(gpt2_pass_begin(p->m, ZERO_TRAIN, k, M));
        ZERO_TRY(gpt2_train_step(p->m, inputs + k * R, targets + k * R, factor, NULL));
        ZERO_TRY(gpt2_pass_end(p->m));
    }
    return ZERO_OK;
}

static zero_result evaluate(part *p) {
    training *t = p->t;
    int tokens[2 * B * T];
    ranks_draw_tokens(tokens, B * T, V, p->dp_rank, 1000);
    ZERO_TRY(gpt2_pass_begin(p->m, ZERO_EVAL, 0, 1));
    ZERO_TRY(gpt2_loss(p->m, tokens, tokens + B * T, p->dp_rank ? 0 : B - 1, &t->eval));
    ZERO_TRY(gpt2_pass_end(p->m));
    ranks_draw_tokens(tokens, B * T, V, 0, 1001);
    ZERO_TRY(gpt2_pass_begin(p->m, ZERO_EVAL, 0, 1));
    ZERO_TRY(gpt2_logits(p->m, tokens, T - 4, t->logits));
    return gpt2_pass_end(p->m);
}

static zero_result take_step(part *p, int step) {
    training *t = p->t;
    const zero_hyper hyper = {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f};
    zero_step_report done;
    double mean = 0;
    ZERO_TRY(micro_steps(p, step));
    ZERO_TRY(zero_reduce(p->z));
    ZERO_TRY(zero_step(p->z, &hyper));
    ZERO_TRY(gpt2_take_losses(p->m, &mean));
    ZERO_TRY(zero_all_sum(p->z, &mean, 1));
    ZERO_TRY(zero_step_result(p->z, &done));
    t->loss[step] = mean / t->dp;
    t->norm[step] = done.norm;
    return ZERO_OK;
}

static void subtract(zero_stats *x, const zero_stats *before) {
    x->sent_bytes -= before->sent_bytes;
    x->gather_bytes -= before->gather_bytes;
    x->gathers -= before->gathers;
    x->reductions -= before->reductions;
    x->file_read_bytes -= before->file_read_bytes;
    x->file_written_bytes -= before->file_written_bytes;
}

static zero_result train_part(part *p, const zero_comm *comm) {
    training *t = p->t;
    zero_stats before;
    ZERO_TRY(adapt(p));
    ZERO_TRY(open_model(p, comm));
    ZERO_TRY(zero_query_plan(p->z, &t->plan));
    ZERO_TRY(zero_query_stats(p->z, &before));
    for (int step = 0; step < STEPS; step++) ZERO_TRY(take_step(p, step));
    ZERO_TRY(zero_query_stats(p->z, &t->stats));
    subtract(&t->stats, &before);
    const gpt2_run run = run_of(t, &p->how);
    t->activations = gpt2_activation_bytes(&p->cfg, &run);
    ZERO_TRY(evaluate(p));
    return zero_hash(p->z, &t->weights);
}

static void train_body(test_rank *r) {
    training *wanted = (training *)r->arg, own = *wanted;
    const zero_comm comm = test_comm(r);
    part p;
    memset(&p, 0, sizeof p);
    p.rank = r->rank;
    p.t = r->rank ? &own : wanted;
    const zero_result result = train_part(&p, &comm);
    if (result) ranks_part_report(&p, r, result);
    ranks_part_close(&p);
    gpt2_frozen_free(p.frozen);
}

static const char *name_of(const training *t, char text[256]) {
    (void)snprintf(
        text, 256,
        "%s, %d micro-steps, dp %d tp %d sequence %d untied %d tiles %d recompute %d "
        "stage %d overlap %d type %d tier %d bits %d %d shards of %d freeze '%s' lora %d group %d",
        t->layers ? "layers" : "passes", t->micro, t->dp, t->tp, t->sequence, t->untied,
        t->tile_rows, t->recompute, t->stage, !t->no_overlap, (int)t->type, (int)t->tier,
        t->weight_bits, t->gradient_bits, t->shard_ranks, t->freeze ? t->freeze : "", t->lora,
        t->group);
    return text;
}

static int train(training *t) {
    char name[256];
    return test_check(test_ranks(t->dp * t->tp, 0, train_body, t), "%s: %s", name_of(t, name),
                      test_first);
}

/* Checks that the steps sent, gathered, read and wrote what the plan says. */
static void check_planned(const training *t) {
    char name[256];
    const zero_plan *p = &t->plan;
    const zero_stats *s = &t->stats;
    test_check(s->sent_bytes == STEPS * (uint64_t)p->sent_bytes
                   && s->gather_bytes == STEPS * (uint64_t)p->gather_bytes
                   && s->file_read_bytes == STEPS * (uint64_t)p->file_read_bytes
                   && s->file_written_bytes == STEPS * (uint64_t)p->file_written_bytes,
               "%s: sent %llu, to gather %llu, read %llu, written %llu in %d steps; planned %zu, "
               "%zu, %zu, %zu a step",
               name_of(t, name), (unsigned long long)s->sent_bytes,
               (unsigned long long)s->gather_bytes, (unsigned long long)s->file_read_bytes,
               (unsigned long long)s->file_written_bytes, STEPS, p->sent_bytes, p->gather_bytes,
               p->file_read_bytes, p->file_written_bytes);
}

static int same(const training *a, const training *b) {
    return a->weights == b->weights && !memcmp(a->loss, b->loss, sizeof a->loss)
           && !memcmp(a->norm, b->norm, sizeof a->norm) && a->eval == b->eval
           && !memcmp(a->logits, b->logits, sizeof a->logits);
}

/* Trains t layer by layer, and checks that it has the bits of `passes`. */
static void check_same(training t, const training *passes) {
    char name[256];
    t.layers = 1;
    train(&t);
    test_check(same(&t, passes), "%s: other bits: weights %016llx, %016llx; losses %.9g, %.9g",
               name_of(&t, name), (unsigned long long)t.weights,
               (unsigned long long)passes->weights, t.loss[STEPS - 1], passes->loss[STEPS - 1]);
    check_planned(&t);
}

static training training_of(int micro, int dp, int untied, int tile_rows) {
    training t;
    memset(&t, 0, sizeof t);
    t.micro = micro;
    t.dp = dp;
    t.tp = 1;
    t.untied = untied;
    t.tile_rows = tile_rows;
    return t;
}

/* ---- the same bits ------------------------------------------------------------------------- */

/* Embedding and classifier whose gradients are added in the same order. */
static const struct ends { int untied, tile_rows; } ends[] = {{1, 0}, {0, 96}, {1, 128}};

/* Every stage, recomputation, overlap and tier. Passes need not be repeated: on a CPU their bits
   depend on none of these, as other tests show. */
static void test_bits(zero_type type, const struct ends *e) {
    training passes = training_of(3, 2, e->untied, e->tile_rows);
    passes.type = type;
    train(&passes);
    for (int stage = 0; stage < 4; stage++)
        for (int recompute = 0; recompute <= GPT2_RECOMPUTE_AWAY; recompute++) {
            training t = passes;
            if (!test_sampled(EMULATED ? 7 : 3)) continue;
            if (!SAME_GELU) {
                passes.recompute = t.recompute = recompute;
                train(&passes);
            }
            t.stage = stage;
            t.no_mapping = recompute > 1;
            t.recompute = recompute;
            t.no_overlap = recompute % 2;
            if (stage > 0 && !EMULATED) t.tier = (stage + recompute) % 3 ? ZERO_FILE : ZERO_DEVICE;
            check_same(t, &passes);
        }
}

/* More and fewer micro-batches; one is a plain step. */
static void test_numbers(void) {
    for (int micro = 1; micro <= MOST_MICRO; micro += micro < 2 ? 1 : 3) {
        training passes = training_of(micro, 2, 1, 0);
        passes.recompute = GPT2_RECOMPUTE_BLOCK;
        passes.stage = 1;
        train(&passes);
        training t = passes;
        t.stage = 3;
        check_same(t, &passes);
    }
}

/* Each needs passes of its own. */
static void test_kinds(void) {
    training kinds[12];
    int n = 0;
    for (int i = 0; i < 12; i++) kinds[i] = training_of(3, 2, 1, 0);
    kinds[n].weight_bits = kinds[n].gradient_bits = 8;
    kinds[n++].stage = 3;
    kinds[n].dp = 4;
    kinds[n].shard_ranks = 2;
    kinds[n++].stage = 3;
    kinds[n].tp = 2;
    kinds[n++].stage = 3;
    kinds[n].tp = 2;
    kinds[n].sequence = 1;
    kinds[n].tile_rows = 96;
    kinds[n].recompute = GPT2_RECOMPUTE_NORM;
    kinds[n++].stage = 2;
    kinds[n].tp = 2;
    kinds[n].sequence = 1;
    kinds[n].untied = 0;
    kinds[n].tile_rows = 64;
    kinds[n].recompute = GPT2_RECOMPUTE_AWAY;
    kinds[n++].stage = 3;
    kinds[n].freeze = "wte,wpe,h.0.*,h.1.*";
    kinds[n].recompute = GPT2_RECOMPUTE_BLOCK;
    kinds[n++].stage = 3;
    kinds[n].freeze = "*b";
    kinds[n++].stage = 2;
    kinds[n].lora = 1;
    kinds[n].tile_rows = 128;
    kinds[n++].stage = 3;
    kinds[n].type = ZERO_F16;
    kinds[n].freeze = "h.0.*";
    kinds[n].recompute = GPT2_RECOMPUTE_AWAY;
    kinds[n++].stage = 3;
    for (int i = 0; i < n; i++) {
        if (!test_sampled(EMULATED ? 4 : 2)) continue;
        train(&kinds[i]);
        check_same(kinds[i], &kinds[i]);
    }
}

/* Groups of 2 to all layers; the last group may have fewer. */
static void test_groups(void) {
    training passes = training_of(3, 2, 1, 0);
    train(&passes);
    for (int i = 0; i < 24; i++) {
        training t = passes;
        t.group = 2 + i % (L - 1);
        t.stage = i / 2 % 4;
        t.recompute = i % 3 ? GPT2_RECOMPUTE_AWAY : GPT2_RECOMPUTE_BLOCK;
        t.no_overlap = i % 5 == 0;
        t.no_mapping = i % 2;
        if (i % 4 == 3 && t.stage > 0 && !EMULATED) t.tier = ZERO_FILE;
        if (!SAME_GELU) {
            passes.recompute = t.recompute;
            train(&passes);
        }
        if (test_sampled(EMULATED ? 6 : 2)) check_same(t, &passes);
    }
    training kinds[5];
    for (int i = 0; i < 5; i++) kinds[i] = training_of(3, 2, 1, 0);
    kinds[0].tp = kinds[1].tp = 2;
    kinds[0].stage = 3;
    kinds[1].sequence = 1;
    kinds[1].tile_rows = 96;
    kinds[1].stage = 2;
    kinds[2].lora = 1;
    kinds[2].stage = 3;
    kinds[3].freeze = "*b";
    kinds[3].stage = 2;
    kinds[4].weight_bits = kinds[4].gradient_bits = 8;
    kinds[4].stage = 3;
    for (int i = 0; i < 5; i++) {
        kinds[i].group = 2 + i % 2;
        kinds[i].recompute = i % 2 ? GPT2_RECOMPUTE_AWAY : GPT2_RECOMPUTE_BLOCK;
        if (!test_sampled(EMULATED ? 4 : 1)) continue;
        train(&kinds[i]);
        check_same(kinds[i], &kinds[i]);
    }
}

/* ---- a tied wte ------------------------------------------------------------------------------ */

/* Its gradient adds the classifier's parts first, so it differs by roundings, at every stage by the
   same ones. */
static void test_tied(void) {
    training passes = training_of(4, 2, 0, 0), first;
    train(&passes);
    memset(&first, 0, sizeof first);
    for (int stage = 0; stage < 4; stage++) {
        char name[256];
        training t = passes;
        double off = 0;
        t.layers = 1;
        t.stage = stage;
        t.recompute = stage;
        train(&t);
        if (stage == 0) first = t;
        test_check(same(&t, &first), "%s: other bits than stage 0", name_of(&t, name));
        for (int i = 0; i < STEPS; i++)
            off = fmax(off, fmax(fabs(t.loss[i] / passes.loss[i] - 1),
                                 fabs(t.norm[i] / passes.norm[i] - 1)));
        test_check(off <= 1e-5 && t.loss[0] == passes.loss[0], "%s: off by %g", name, off);
        check_planned(&t);
    }
}

/* ---- bytes and memory ------------------------------------------------------------------------ */

/* At stage 3 two gathers of each unit, less those that a buffer still has, and one reduction; as
   many with any number of micro-batches. Passes gather and reduce in each micro-step. */
static void test_traffic(void) {
    training one = training_of(1, 2, 1, 0), t, passes;
    one.stage = 3;
    one.layers = one.no_mapping = 1;
    train(&one);
    t = passes = one;
    t.micro = passes.micro = 4;
    passes.layers = 0;
    train(&t);
    train(&passes);
    test_check(
        t.stats.sent_bytes == one.stats.sent_bytes && t.stats.gather_bytes == one.stats.gather_bytes
            && t.stats.gathers == one.stats.gathers && t.stats.reductions == one.stats.reductions
            && t.plan.grad_bytes == one.plan.grad_bytes
            && t.plan.buffer_bytes == one.plan.buffer_bytes,
        "4 micro-steps in layers send %llu bytes in %llu gathers and %llu reductions, one "
        "%llu in %llu and %llu",
        (unsigned long long)t.stats.sent_bytes, (unsigned long long)t.stats.gathers,
        (unsigned long long)t.stats.reductions, (unsigned long long)one.stats.sent_bytes,
        (unsigned long long)one.stats.gathers, (unsigned long long)one.stats.reductions);
    /* units: embeddings, blocks, norm, classifier. The lookup's backward reads no weights; that of
       the classifier and norm follow at once; three buffers keep the last block. */
    test_check(t.stats.gathers == STEPS * (1 + 2 * (uint64_t)L - 1 + 1 + 1)
                   && t.stats.reductions == STEPS * ((uint64_t)L + 3),
               "%llu gathers and %llu reductions in %d steps", (unsigned long long)t.stats.gathers,
               (unsigned long long)t.stats.reductions, STEPS);
    test_check(passes.stats.gathers >= 3 * t.stats.gathers
                   && passes.plan.sent_bytes > 2 * t.plan.sent_bytes,
               "4 passes: %llu gathers", (unsigned long long)passes.stats.gathers);
    check_planned(&t);
}

/* A pipeline orders its micro-batches itself. */
static void test_refused(void) {
    const training t = training_of(2, 1, 1, 0);
    const gpt2_config cfg = config_of(&t);
    gpt2_stage stage;
    gpt2_error err = {""};
    gpt2_run run = run_of(&t, NULL);
    run.together = -1;
    test_check(gpt2_activation_bytes(&cfg, &run) == 0, "-1 micro-batches together are accepted");
    run.together = 2;
    for (int recompute = 0; recompute <= GPT2_RECOMPUTE_AWAY; recompute++)
        for (int group = -1; group <= L + 1; group++) {
            const int legal = group == 0 || group == 1
                              || (group > 0 && group <= L && recompute >= GPT2_RECOMPUTE_BLOCK);
            run.recompute = recompute;
            run.group = group;
            test_check((gpt2_activation_bytes(&cfg, &run) > 0) == legal,
                       "groups of %d with recompute %d", group, recompute);
        }
    run.recompute = run.group = 0;
    test_check(!gpt2_stage_make(&stage, &cfg, 2, 1, 0, T, &err), "%s", err.sentence);
    stage.slots = 1;
    const gpt2_parallel how = {NULL, 0, &stage, NULL, NULL, NULL, NULL, NULL, NULL};
    run.parallel = &how;
    for (int together = 0; together < 3; together++) {
        run.together = together;
        test_check((gpt2_activation_bytes(&cfg, &run) > 0) == (together < 2),
                   "%d micro-batches together in a pipeline", together);
    }
}

/* Bytes that a further micro-batch adds: with blocks computed again their inputs, and what is
   between layers. */
static void test_memory(void) {
    const size_t R = (size_t)B * T, row = R * C * sizeof(float);
    for (int away = 0; away < 2; away++) {
        training t = training_of(2, 1, 1, 0);
        t.layers = 1;
        t.recompute = away ? GPT2_RECOMPUTE_AWAY : GPT2_RECOMPUTE_BLOCK;
        const gpt2_config cfg = config_of(&t);
        gpt2_run two = run_of(&t, NULL), three = two;
        three.together = 3;
        const size_t more = gpt2_activation_bytes(&cfg, &three) - gpt2_activation_bytes(&cfg, &two);
        const size_t between = 5 * ((R * sizeof(float) + 127) / 128 * 128) + row; /* and dres */
        const size_t inputs = away ? 3 : L + 1;
        test_check(more == inputs * row + between, "a micro-batch takes %zu bytes, expected %zu",
                   more, inputs * row + between);
        test_check(gpt2_away_bytes(&cfg, &three) == (away ? 3 * (size_t)(L + 1 - 3) * row : 0),
                   "offloaded: %zu", gpt2_away_bytes(&cfg, &three));
        two.group = three.group = 2; /* 3 groups of 5 layers */
        const size_t grouped =
            gpt2_activation_bytes(&cfg, &three) - gpt2_activation_bytes(&cfg, &two);
        test_check(grouped == (away ? 3 : 4) * row + between,
                   "in groups of 2, a micro-batch takes %zu bytes", grouped);
        test_check(gpt2_away_bytes(&cfg, &three) == (away ? 3 * row : 0),
                   "offloaded by groups: %zu", gpt2_away_bytes(&cfg, &three));
    }
}

#ifdef EMULATED_LAUNCH
/* In any order that the streams allow. */
static void test_order(void) {
    training passes = training_of(3, 1, 1, 0);
    passes.recompute = GPT2_RECOMPUTE_BLOCK;
    train(&passes);
    for (uint64_t seed = 1; seed <= 4; seed++) {
        training t = passes;
        t.layers = 1;
        t.stage = seed % 2 ? 3 : 0;
        t.recompute = GPT2_RECOMPUTE_AWAY;
        emulation_seed(seed);
        train(&t);
        emulation_seed(0);
        test_check(same(&t, &passes), "order %d: other bits", (int)seed);
    }
}
#endif

int main(void) {
#ifdef _OPENMP
    omp_set_num_threads(1);
#endif
    test_refused();
    test_memory();
    test_traffic();
    test_tied();
    test_numbers();
    test_kinds();
    test_groups();
    for (int type = 0; type < ZERO_TYPES; type++)
        for (int i = 0; i < 3; i++)
            if (!EMULATED || (type + i) % 3 == 0) test_bits((zero_type)type, &ends[i]);
#ifdef EMULATED_LAUNCH
    test_order();
    test_check(!emulation_found(), "the emulation found: %s", emulation_found());
#endif
    return test_summary();
}

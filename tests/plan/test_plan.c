/* test_plan.c - the planner: the ZeRO paper's figures to the digit; a plan without ranks is the
   plan of ranks, and what they allocate; machines as files.

   ./test_plan [FOLDER]    FOLDER: for files, /tmp without */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "tests/shared/harness.h"

#include <malloc.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "adapters/gpt2/experts.h"
#include "adapters/gpt2/pipelined.h"
#include "adapters/parallel/layout.h"
#include "adapters/plan/machine.h"
#include "adapters/plan/plan_world.h"

/* ---- the paper ----------------------------------------------------------------------------- */

/* As the paper prints GB: from 100 on cut off to whole numbers, below rounded to one digit behind
   the point, or two where that leaves fewer than two; trailing zeros are left out. */
static void paper_print(double bytes, char text[32]) {
    const double gb = bytes / 1e9;
    if (gb >= 100)
        snprintf(text, 32, "%.0f", floor(gb));
    else
        snprintf(text, 32, "%.*f", gb < 2 ? 2 : 1, gb + 1e-9);
    char *point = strchr(text, '.');
    for (size_t n = strlen(text); point != NULL && (text[n - 1] == '0' || text[n - 1] == '.');) {
        const int dot = text[n - 1] == '.';
        text[--n] = 0;
        if (dot) break;
    }
}

static double formula_of(const plan_model *m, int stage, int ranks, int on_gpus) {
    char why[PLAN_SENTENCE] = "";
    plan_answer a;
    plan_case c;
    memset(&c, 0, sizeof c);
    c.model = m;
    c.nranks = ranks;
    c.on_gpus = on_gpus;
    c.zero.stage = stage;
    c.zero.type = ZERO_BF16;
    c.zero.master = ZERO_MASTER_F32; /* as in the paper */
    test_check(!plan_ask(&c, &a, why, sizeof why), "stage %d of %d ranks: %s", stage, ranks, why);
    return (double)a.zero.formula_bytes;
}

/* Rajbhandari et al. 2020, table 1: GB of a device, by stage, size and data-parallel degree. */
static void test_table_1(void) {
    static const char *const sizes[] = {"7.5e9", "128e9", "1e12"};
    static const int degrees[] = {1, 4, 16, 64, 256, 1024};
    static const char *const table[3][3][6] = {{{"120", "52.5", "35.6", "31.4", "30.4", "30.1"},
                                                {"120", "41.3", "21.6", "16.6", "15.4", "15.1"},
                                                {"120", "30", "7.5", "1.88", "0.47", "0.12"}},
                                               {{"2048", "896", "608", "536", "518", "513"},
                                                {"2048", "704", "368", "284", "263", "257"},
                                                {"2048", "512", "128", "32", "8", "2"}},
                                               {{"16000", "7000", "4750", "4187", "4046", "4011"},
                                                {"16000", "5500", "2875", "2218", "2054", "2013"},
                                                {"16000", "4000", "1000", "250", "62.5", "15.6"}}};
    for (int m = 0; m < 3; m++) {
        char why[PLAN_SENTENCE] = "", text[32];
        plan_model model;
        if (!test_check(!plan_model_read(sizes[m], 0, &model, why, sizeof why), "%s", why)) return;
        for (int stage = 1; stage <= 3; stage++)
            for (int d = 0; d < 6; d++) {
                paper_print(formula_of(&model, stage, degrees[d], d % 2), text);
                test_check(strcmp(text, table[m][stage - 1][d]) == 0,
                           "%s parameters, stage %d, %d ranks: %s GB, the paper has %s", sizes[m],
                           stage, degrees[d], text, table[m][stage - 1][d]);
            }
    }
}

/* Figure 1: 7.5B, 64 ranks. */
static void test_figure_1(void) {
    static const char *const figure[] = {"120.0", "31.4", "16.6", "1.9"};
    plan_model model;
    plan_model_of(7.5e9, &model);
    for (int stage = 0; stage < 4; stage++) {
        char text[32];
        snprintf(text, sizeof text, "%.1f", formula_of(&model, stage, 64, 1) / 1e9);
        test_check(strcmp(text, figure[stage]) == 0, "stage %d: %s GB, figure 1 has %s", stage,
                   text, figure[stage]);
    }
}

/* ---- planned and measured ------------------------------------------------------------------ */

typedef struct measured {
    zero_plan plan;
    zero_config resolved;
    double bytes[4]; /* by kind, allocated; the mean over ranks */
    double activations;
    int failed;
    char why[256];
} measured;

typedef struct real_run {
    const plan_case *c;
    measured *out; /* shared */
} real_run;

static double heap_bytes(void) {
    const struct mallinfo2 now = mallinfo2();
    return (double)now.uordblks + (double)now.hblkhd;
}

/* A rank that is really there: builds context and model, and looks at what they took. */
static int real_rank(const zero_comm *comm, void *arg) {
    const real_run *run = (const real_run *)arg;
    const plan_case *c = run->c;
    zero_tensor_desc table[GPT2_TENSORS];
    gpt2_model *m = NULL;
    gpt2_error error = {""};
    zero_stats stats;
    measured here;
    zero_ctx *z = NULL;
    memset(&here, 0, sizeof here);
    memset(&stats, 0, sizeof stats);
    gpt2_describe_tiled(&c->model->gpt2, c->run.tile_rows, table);
    zero_result r = zero_create(&z, &c->zero, comm);
    if (!r) r = zero_tensors(z, table, GPT2_TENSORS);
    if (!r) r = zero_build(z);
    if (!r) r = zero_query_plan(z, &here.plan);
    here.plan.file_way = NULL; /* known from the build on */
    if (!r) r = zero_query_stats(z, &stats);
    zero_query_config(z, &here.resolved);
    const double before = heap_bytes();
    if (!r) r = gpt2_create(&m, z, &c->model->gpt2, &c->run, &error);
    here.activations = heap_bytes() - before;
    double bytes[4] = {(double)stats.param_bytes, (double)stats.grad_bytes,
                       (double)stats.optimizer_bytes, (double)stats.buffer_bytes};
    if (!r) r = zero_all_sum(z, bytes, 4);
    for (int i = 0; i < 4; i++) here.bytes[i] = bytes[i] / zero_nranks(z);
    if (r)
        snprintf(here.why, sizeof here.why, "%.200s",
                 *error.sentence ? error.sentence : zero_last_error(z));
    here.failed = r != ZERO_OK;
    if (comm->rank == 0) *run->out = here;
    gpt2_destroy(m);
    zero_destroy(z);
    return here.failed;
}

/* Within 1%, and what the allocator and oneDNN keep for themselves. */
static int is_near(double planned, double found, double own) {
    return fabs(planned - found) <= 0.01 * planned + own;
}

static void check_measured(const plan_case *c, measured *shared, const char *what) {
    const real_run run = {c, shared};
    char why[PLAN_SENTENCE] = "";
    plan_answer a;
    memset(shared, 0, sizeof *shared);
    if (!test_check(!plan_ask(c, &a, why, sizeof why), "%s: %s", what, why)) return;
    const int code = zero_run_local(c->nranks, real_rank, (void *)(uintptr_t)&run);
    if (!test_check(code == 0, "%s: %s", what, shared->why)) return;
    test_check(memcmp(&a.zero, &shared->plan, sizeof a.zero) == 0,
               "%s: planned %zu + %zu + %zu + %zu, sent %zu; the ranks' plan is %zu + %zu + %zu + "
               "%zu, sent %zu",
               what, a.zero.param_bytes, a.zero.grad_bytes, a.zero.optimizer_bytes,
               a.zero.buffer_bytes, a.zero.sent_bytes, shared->plan.param_bytes,
               shared->plan.grad_bytes, shared->plan.optimizer_bytes, shared->plan.buffer_bytes,
               shared->plan.sent_bytes);
    const double planned[4] = {(double)a.zero.param_bytes, (double)a.zero.grad_bytes,
                               (double)a.zero.optimizer_bytes, (double)a.zero.buffer_bytes};
    for (int i = 0; i < 4; i++)
        test_check(is_near(planned[i], shared->bytes[i], 4096),
                   "%s: kind %d: %.0f bytes, planned %.0f", what, i, shared->bytes[i], planned[i]);
    test_check(is_near((double)a.activations, shared->activations, 131072),
               "%s: activations take %.0f bytes, planned %zu", what, shared->activations,
               a.activations);
}

static void test_measured(const char *folder) {
    measured *shared = (measured *)test_shared(sizeof *shared);
    char why[PLAN_SENTENCE] = "", what[128];
    plan_model model;
    test_check(!plan_model_read("char:3x128x4", 0, &model, why, sizeof why), "%s", why);
    for (int i = 0; i < 24; i++) {
        plan_case c;
        memset(&c, 0, sizeof c);
        c.model = &model;
        c.nranks = 1 + i % 3;
        c.one_machine = 1;
        c.zero.stage = i % 4;
        c.zero.type = c.run.type = i % 2 ? ZERO_BF16 : ZERO_F32;
        c.zero.micro_steps = 1 + i / 12;
        c.zero.grads = i / 12 ? ZERO_GRAD_F32 : ZERO_GRAD_AUTO;
        c.zero.folder = folder;
        c.zero.optimizer_tier = i % 5 == 4 ? ZERO_FILE : ZERO_DEVICE;
        c.zero.parameter_tier = i % 5 == 4 && c.zero.stage == 3 ? ZERO_FILE : ZERO_DEVICE;
        c.zero.no_mapping = i % 7 == 6;
        c.zero.threads = 1;
        c.run.batch = 8;
        c.run.seq_len = 64;
        c.run.recompute = i / 4 % 4;
        snprintf(what, sizeof what, "stage %d, %d ranks, type %d, recompute %d", c.zero.stage,
                 c.nranks, (int)c.zero.type, c.run.recompute);
        check_measured(&c, shared, what);
    }
}

/* ---- layouts ------------------------------------------------------------------------------- */

/* What a rank of a layout plans and takes, really there; by rank. */
typedef struct laid {
    zero_plan plan;
    double activations;
    char why[256];
} laid;
typedef struct laid_run {
    const plan_case *c;
    laid *out; /* shared */
} laid_run;

typedef struct laid_rank {
    layout l;
    zero_ctx *z;
    gpt2_model *m;
    gpt2_pipeline *line;
    gpt2_error error;
} laid_rank;

static zero_result lay(const plan_case *c, const zero_comm *comm, laid_rank *k, laid *out) {
    const layout_sizes sizes = {c->pp, c->tp, c->sharers, 0, c->cp > 0 ? c->cp : 1};
    const gpt2_config *model = &c->model->gpt2;
    gpt2_run run = c->run;
    zero_config own = c->zero;
    if (layout_divide(&k->l, c->nranks, comm->rank, sizes, out->why, sizeof out->why)
        || layout_stages(&k->l, model, c->chunks, own.micro_steps, run.seq_len, out->why,
                         sizeof out->why))
        return ZERO_ERR_ARGUMENT;
    if (plan_ring(c, &k->l.ring, &k->error)) return ZERO_ERR_ARGUMENT;
    k->l.part.sequence = c->tp > 1 && c->sequence;
    k->l.mixed = model->moe.experts > 0;
    k->l.tile_rows = run.tile_rows;
    ZERO_TRY(layout_open(&k->l, comm, NULL, 60));
    const zero_comm shards = layout_comm(&k->l, comm);
    ZERO_TRY(layout_settings(&k->l, model, &own));
    ZERO_TRY(zero_create(&k->z, &own, &shards));
    ZERO_TRY(gpt2_announce(k->z, model, &k->l.part, run.tile_rows));
    ZERO_TRY(layout_experts(&k->l, k->z, model, &own, 0, NULL));
    ZERO_TRY(layout_order(&k->l, k->z, model, &own));
    ZERO_TRY(layout_build(&k->l, k->z, &out->plan));
    out->plan.file_way = NULL; /* as above */
    const double before = heap_bytes();
    run.parallel = &k->l.part;
    ZERO_TRY(gpt2_create(&k->m, k->z, model, &run, &k->error));
    ZERO_TRY(
        gpt2_pipeline_open(&k->line, k->z, k->m, &k->l.stage, own.micro_steps, NULL, &k->error));
    out->activations = heap_bytes() - before;
    return layout_sum(&k->l, k->z, NULL, 0);
}

static int laid_main(const zero_comm *comm, void *arg) {
    const laid_run *run = (const laid_run *)arg;
    laid *out = &run->out[comm->rank];
    laid_rank k;
    memset(&k, 0, sizeof k);
    const zero_result r = lay(run->c, comm, &k, out);
    if (r && !out->why[0])
        snprintf(out->why, sizeof out->why, "%.80s; %.80s; %.80s", k.error.sentence,
                 k.z ? zero_last_error(k.z) : "", layout_error(&k.l));
    gpt2_pipeline_close(k.line);
    gpt2_destroy(k.m);
    layout_destroy(&k.l, k.z);
    layout_close(&k.l);
    return r != ZERO_OK;
}

/* The plan of each stage is that of all its ranks, and the most loaded one's is the answer. */
static void check_layout(const plan_case *c, laid *shared) {
    const laid_run run = {c, shared};
    char why[PLAN_SENTENCE] = "", what[128];
    plan_answer all, most;
    snprintf(
        what, sizeof what,
        "cp %d tp %d pp %d chunks %d sequence %d ep %d of %d ranks, stage %d, rule %d, recompute "
        "%d, tiles of %d",
        c->cp, c->tp, c->pp, c->chunks, c->sequence, c->sharers, c->nranks, c->zero.stage,
        (int)c->zero.optimizer, c->run.recompute, c->run.tile_rows);
    memset(shared, 0, (size_t)c->nranks * sizeof *shared);
    memset(&most, 0, sizeof most);
    const int code = zero_run_local(c->nranks, laid_main, (void *)(uintptr_t)&run);
    for (int r = 0; code && r < c->nranks; r++)
        if (shared[r].why[0]) test_check(0, "%s: rank %d: %s", what, r, shared[r].why);
    if (!test_check(code == 0, "%s: code %d", what, code)) return;
    for (int r = 0; r < c->nranks; r++) {
        const int stage = r / (c->nranks / c->pp);
        plan_answer a;
        if (!test_check(!plan_ask_stage(c, stage, &a, why, sizeof why), "%s: %s", what, why))
            return;
        /* a matrix is one rank's: who is not the first of its stage may take less */
        const int alike = c->zero.optimizer != ZERO_MUON || r % (c->nranks / c->pp) == 0;
        test_check(!alike || memcmp(&a.zero, &shared[r].plan, sizeof a.zero) == 0,
                   "%s: rank %d: planned %zu + %zu + %zu + %zu, sent %zu, verdict %zu; it says %zu "
                   "+ %zu + %zu + %zu, %zu, %zu",
                   what, r, a.zero.param_bytes, a.zero.grad_bytes, a.zero.optimizer_bytes,
                   a.zero.buffer_bytes, a.zero.sent_bytes, a.zero.verdict_bytes,
                   shared[r].plan.param_bytes, shared[r].plan.grad_bytes,
                   shared[r].plan.optimizer_bytes, shared[r].plan.buffer_bytes,
                   shared[r].plan.sent_bytes, shared[r].plan.verdict_bytes);
        test_check(is_near((double)a.activations, shared[r].activations, 131072),
                   "%s: rank %d: activations take %.0f bytes, planned %zu", what, r,
                   shared[r].activations, a.activations);
        if (a.device_bytes > most.device_bytes) most = a;
    }
    test_check(!plan_ask(c, &all, why, sizeof why) && all.device_bytes == most.device_bytes
                   && all.rank == most.rank && all.among == most.among,
               "%s: the most loaded is rank %d, not %d: %s", what, all.rank, most.rank, why);
}

/* Layouts that a model of 4 heads and 64 positions cannot have; `base`: a case that fits. */
static void refuse_layouts(const plan_case *base) {
    char why[PLAN_SENTENCE] = "";
    plan_case c = *base;
    plan_answer a;
    c.run.tile_rows = 0;
    c.sharers = c.tp = 1;
    c.nranks = c.cp = 8;
    c.attends = CONTEXT_ULYSSES;
    test_check(plan_ask(&c, &a, why, sizeof why) && strstr(why, "do not divide the 4 heads"), "%s",
               why);
    c.attends = CONTEXT_RING;
    c.run.seq_len = 40;
    test_check(plan_ask(&c, &a, why, sizeof why)
                   && strstr(why, "the nearest lengths are 32 and 48"),
               "%s", why);
    c.run.seq_len = 128;
    c.cp = 1;
    c.nranks = 1;
    test_check(plan_ask(&c, &a, why, sizeof why) && strstr(why, "positions for 64 tokens"), "%s",
               why);
    c.run.seq_len = 64;
    c.nranks = 8;
    c.pp = 2;
    c.tp = 3;
    test_check(plan_ask(&c, &a, why, sizeof why) && strstr(why, "the nearest size is -tp 2"), "%s",
               why);
    c.nranks = c.tp = 8;
    c.pp = 1;
    test_check(plan_ask(&c, &a, why, sizeof why) && strstr(why, "does not divide the 4 heads"),
               "%s", why);
}

static void test_layouts(void) {
    static const int cases[][12] = {
        /* ranks, tp, pp, chunks, sequence, micro-steps, experts, ranks that share them,
           recompute, tiles, cp (0: 1), how they attend */
        {2, 2, 1, 1, 0, 1, 0, 1, 0, 0},
        {4, 2, 1, 1, 1, 2, 0, 1, 1, 0},
        {4, 1, 2, 1, 0, 4, 0, 1, 2, 0},
        {4, 1, 4, 1, 0, 4, 0, 1, 0, 0},
        {4, 2, 2, 2, 0, 4, 0, 1, 1, 0},
        {8, 2, 2, 1, 1, 2, 0, 1, 2, 0},
        {4, 2, 1, 1, 0, 2, 4, 2, 0, 0},
        {4, 2, 1, 1, 1, 1, 4, 1, 1, 0},
        {8, 2, 2, 1, 0, 2, 4, 2, 2, 0},
        {4, 1, 2, 1, 0, 4, 4, 2, 0, 0},
        {4, 1, 2, 1, 0, 4, 0, 1, 4, 0},
        {4, 1, 4, 1, 0, 4, 0, 1, 0, 32},
        {4, 2, 2, 2, 0, 4, 0, 1, 4, 32},
        {8, 2, 2, 1, 1, 2, 0, 1, 4, 32},
        {2, 1, 2, 2, 0, 4, 0, 1, 4, 0},
        {4, 1, 2, 4, 0, 2, 0, 1, 3, 64},
        {2, 1, 1, 1, 0, 2, 0, 1, 0, 0, 2},
        {4, 1, 1, 1, 0, 1, 0, 1, 3, 0, 4},
        {4, 1, 1, 1, 0, 2, 0, 1, 1, 32, 2},
        {4, 1, 1, 1, 0, 2, 0, 1, 4, 0, 4},
        {2, 1, 1, 1, 0, 1, 0, 1, 0, 0, 2, CONTEXT_RING},
        {4, 1, 1, 1, 0, 1, 0, 1, 3, 32, 4, CONTEXT_RING},
        {4, 1, 1, 1, 0, 2, 0, 1, 4, 0, 4, CONTEXT_BOTH},
        {8, 1, 1, 1, 0, 2, 0, 1, 1, 0, 4, CONTEXT_RING},
        {8, 2, 1, 1, 0, 2, 0, 1, 1, 32, 2, CONTEXT_RING},
        {4, 1, 2, 1, 0, 4, 0, 1, 1, 0, 2},
        {8, 2, 2, 2, 0, 4, 0, 1, 4, 32, 2, CONTEXT_RING},
        {4, 1, 1, 1, 0, 2, 4, 4, 1, 0, 2},
        {8, 2, 2, 1, 1, 2, 4, 2, 3, 0, 2, CONTEXT_RING},
        {4, 2, 1, 1, 0, 1, 0, 1, 3, 0, 2}};
    static const zero_optimizer rules[] = {ZERO_ADAMW, ZERO_LAMB, ZERO_MUON};
    laid *shared = (laid *)test_shared(8 * sizeof *shared);
    char why[PLAN_SENTENCE] = "";
    plan_model model;
    plan_case c;
    test_check(!plan_model_read("char:8x128x4", 0, &model, why, sizeof why), "%s", why);
    for (int i = 0; i < (int)(sizeof cases / sizeof *cases); i++) {
        const gpt2_moe none = {0, 0, 0, 0}, some = {cases[i][6], 2, 1.25f, 0.01f};
        memset(&c, 0, sizeof c);
        model.gpt2.moe = cases[i][6] ? some : none;
        c.model = &model;
        c.sharers = cases[i][7];
        c.nranks = cases[i][0];
        c.tp = cases[i][1];
        c.cp = cases[i][10];
        c.attends = (context_way)cases[i][11];
        c.pp = cases[i][2];
        c.chunks = cases[i][3];
        c.sequence = cases[i][4];
        c.one_machine = 1;
        c.zero.stage = i % 4;
        c.zero.type = c.run.type = i % 2 ? ZERO_BF16 : ZERO_F32;
        c.zero.optimizer = rules[i % 3];
        c.zero.micro_steps = cases[i][5];
        c.zero.accumulation = c.pp > 1 ? ZERO_ACCUMULATE_LOCAL : ZERO_ACCUMULATE_AUTO;
        c.zero.grads = c.pp > 1 || cases[i][5] > 1 ? ZERO_GRAD_F32
                                                   : ZERO_GRAD_AUTO; /* as train_tiers has them */
        c.zero.threads = 1;
        c.run.batch = 4;
        c.run.seq_len = 64;
        c.run.recompute = cases[i][8];
        c.run.tile_rows = cases[i][9];
        c.run.folder = P_tmpdir;
        c.run.mlp_rows = c.run.recompute >= GPT2_RECOMPUTE_BLOCK && i % 2 ? 100 : 0;
        check_layout(&c, shared);
    }
    refuse_layouts(&c);
}

/* A number of parameters: each of tp x pp parts has as many, within a block. */
static void test_parts_of_a_number(void) {
    const plan_limits most = {8 * 1073741824.0, 0, 0};
    char why[PLAN_SENTENCE] = "";
    plan_answer a;
    plan_model m;
    plan_case c;
    memset(&c, 0, sizeof c);
    plan_model_of(7.5e9, &m);
    c.model = &m;
    c.nranks = 64;
    c.on_gpus = 1;
    c.zero.stage = 1;
    c.zero.type = ZERO_BF16;
    const double alone = plan_largest_model(&c, &most);
    c.tp = 4;
    c.pp = 2;
    const double parts = 7.5e9 / 8, block = 7.5e9 / m.blocks / 4;
    test_check(!plan_ask(&c, &a, why, sizeof why) && fabs((double)a.zero.numel - parts) <= block + 4
                   && a.zero.nranks == 8,
               "an eighth of the parameters is %zu: %s", a.zero.numel, why);
    const double larger = plan_largest_model(&c, &most);
    test_check(alone > 0 && larger > 3 * alone, "the largest model is of %g, over data alone %g",
               larger, alone);
}

/* ---- models, limits ------------------------------------------------------------------------ */

static void test_models(void) {
    static const char *const wrong[][2] = {{"0", "-e 0: expected a whole number"},
                                           {"1.5", "whole number"},
                                           {"1e15", "1 to 1e+14"},
                                           {"-3", "whole number"},
                                           {"nan", "whole number"},
                                           {"d13", "'d13' is not a model"},
                                           {"/none.bin", "/none.bin"}};
    char why[PLAN_SENTENCE];
    plan_model m;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        why[0] = 0;
        test_check(plan_model_read(wrong[i][0], 0, &m, why, sizeof why)
                       && strstr(why, wrong[i][1]) != NULL && strchr(why, '\n') == NULL,
                   "-e %s: '%s'", wrong[i][0], why);
    }
    for (double numel = 1; numel < 1e14; numel *= 7.3) {
        plan_case c;
        plan_answer a;
        memset(&c, 0, sizeof c);
        plan_model_of(floor(numel), &m);
        c.model = &m;
        c.nranks = 7;
        c.zero.stage = 3;
        test_check(!plan_ask(&c, &a, why, sizeof why) && (double)a.zero.numel == floor(numel),
                   "%.0f parameters are planned as %zu: %s", floor(numel), a.zero.numel, why);
    }
}

static void test_limits(void) {
    char why[PLAN_SENTENCE];
    plan_model model, next;
    plan_case c;
    plan_answer a;
    memset(&c, 0, sizeof c);
    test_check(!plan_model_read("d12", 0, &model, why, sizeof why), "%s", why);
    c.model = &model;
    c.on_gpus = 1;
    c.zero.type = ZERO_BF16;
    c.run.seq_len = 1024;
    c.run.recompute = 1;
    for (int gib = 2; gib < 100; gib += 13) {
        const plan_limits most = {gib * 1073741824.0, 0, 0};
        c.zero.stage = gib % 4;
        c.nranks = 1 + gib % 9;
        const int batch = plan_largest_batch(&c, &most);
        c.run.batch = batch;
        const int fits = batch == 0 || (!plan_ask(&c, &a, why, sizeof why) && plan_fits(&a, &most));
        c.run.batch = batch + 1;
        const int more = !plan_ask(&c, &a, why, sizeof why) && plan_fits(&a, &most);
        test_check(fits && !more, "%d GiB: the largest batch is not %d", gib, batch);
        const double numel = plan_largest_model(&c, &most);
        c.run.batch = 0;
        c.model = &next;
        plan_model_of(numel, &next);
        const int holds = !plan_ask(&c, &a, why, sizeof why) && plan_fits(&a, &most);
        plan_model_of(floor(numel * 1.011), &next);
        const int larger = !plan_ask(&c, &a, why, sizeof why) && plan_fits(&a, &most);
        test_check(holds && !larger, "%d GiB: the largest model is not %g", gib, numel);
        c.model = &model;
    }
}

/* ---- machines ------------------------------------------------------------------------------ */

static int machine_from(const char *path, const char *text, machine *m, char *why) {
    FILE *file = fopen(path, "w");
    if (file == NULL || fputs(text, file) < 0 || fclose(file) != 0) exit(1);
    why[0] = 0;
    return machine_read(path, m, why, PLAN_SENTENCE);
}

static void test_machine_files(const char *path) {
    static const char *const wrong[][2] = {
        {"flops.f32=1e11\nupdate\n", ":2: expected KEY=VALUE, found 'update'"},
        {"flops.f33=1e11\n", ":1: unknown key 'flops.f33'"},
        {"# a\n\nblock.f32=1\n", ":3: unknown key 'block.f32'"},
        {"block.f32.x=1\n", "unknown key 'block.f32.x'"},
        {"update=-1\n", ":1: update: expected a number above 0 (and below 1e300), found '-1'"},
        {"update=1e9x\n", "expected a number above 0 (and below 1e300), found '1e9x'"},
        {"update=nan\n", "expected a number above 0"},
        {"update=1.79e308\n", "expected a number above 0"}, /* it would be written as infinite */
        {"block.f32.inf=1\n", "unknown key 'block.f32.inf'"},
        {"overlap=1.5\n", "overlap: expected a number from 0 to 1, found '1.5'"},
        {"device=tpu\n", "device: expected cpu or gpu, found 'tpu'"},
        {"{\"flops.f32\": 1e11,\n \"update\": }", ":2: expected JSON from here on"},
        {"{\"update\": [1]}", "update: expected a number or a string"},
        {"{\"updates\": 1}", "unknown key 'updates'"},
        {"=5\n", "unknown key ''"},
        {"", "has no rates"},
        {"\n# a comment\n", "has no rates"},
        {" { }\n", "has no rates"}};
    char why[PLAN_SENTENCE];
    machine m, again;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        test_check(machine_from(path, wrong[i][0], &m, why) && strstr(why, wrong[i][1]) != NULL
                       && strstr(why, path) == why && strchr(why, '\n') == NULL,
                   "'%s': '%s'", wrong[i][0], why);
    test_check(machine_read("/none/such", &m, why, sizeof why) && strstr(why, "/none/such"), "%s",
               why);
    test_check(
        !machine_from(path,
                      " flops.bf16 = 4e14 # a comment\r\nblock.bf16.512=2e14\n"
                      "block.bf16.128=1e14\nupdate=3e12\noverlap=0.5\ndevice=cpu\nname=a b\n",
                      &m, why)
            && m.type[ZERO_BF16].flops == 4e14 && m.type[ZERO_BF16].widths == 2
            && m.type[ZERO_BF16].width[0] == 128 && m.overlap == 0.5 && !m.on_gpus
            && strcmp(m.name, "a b") == 0,
        "a machine as lines: %s", why);
    test_check(!machine_write(path, &m, "again", why, sizeof why)
                   && !machine_read(path, &again, why, sizeof why)
                   && memcmp(&m, &again, sizeof m) == 0,
               "a machine that is written and read is another: %s", why);
    struct rlimit before, little;
    getrlimit(RLIMIT_FSIZE, &before);
    little = before;
    little.rlim_cur = 8; /* as on a full disk */
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &little);
    const int failed = machine_write(path, &m, "cut off", why, sizeof why);
    setrlimit(RLIMIT_FSIZE, &before);
    test_check(failed && strstr(why, "cannot be written (File too large)") && access(path, F_OK),
               "a file that cannot be written is left, or without an error: %s", why);
    test_check(
        !machine_from(path, "{\"flops.f32\": 1e11, \"device\": \"gpu\", \"link\": 2e9}", &m, why)
            && m.type[ZERO_F32].flops == 1e11 && m.on_gpus && m.link == 2e9 && m.overlap == 1,
        "a machine as JSON: %s", why);
    remove(path);
}

static void test_prediction(void) {
    char why[PLAN_SENTENCE] = "";
    plan_model model;
    plan_case c;
    plan_answer a;
    machine m;
    machine_step step;
    memset(&c, 0, sizeof c);
    memset(&m, 0, sizeof m);
    test_check(!plan_model_read("d12", 0, &model, why, sizeof why), "%s", why);
    c.model = &model;
    c.run.batch = 2;
    c.run.seq_len = 512;
    c.nranks = 2;
    c.zero.stage = 1;
    test_check(!plan_ask(&c, &a, why, sizeof why), "%s", why);
    test_check(machine_predict(&m, &c, &a, &step, why, sizeof why) && strstr(why, "flops.f32"),
               "%s", why);
    m.type[ZERO_F32].flops = 1e12;
    m.update = 1e10;
    test_check(machine_predict(&m, &c, &a, &step, why, sizeof why) && strstr(why, "lacks link"),
               "%s", why);
    m.link = 1e9;
    m.overlap = 1;
    test_check(!machine_predict(&m, &c, &a, &step, why, sizeof why), "%s", why);
    /* what gpt2.h counts, but for what stands beside products: wpe, norms, biases */
    const double flops = 1024 * gpt2_flops_per_token(&model.gpt2, 512);
    test_check(fabs(step.compute * 1e12 / flops - 1) < 0.005, "%g operations, %g by gpt2.h",
               step.compute * 1e12, flops);
    const double sent = (double)a.zero.sent_bytes / 1e9 - step.compute * 2 / 3;
    test_check(fabs(step.send - (sent > 0 ? sent : 0)) < 1e-9, "%g s are exposed", step.send);
    test_check(fabs(step.update - 28.0 * (double)a.zero.padded_numel / 2 / 1e10) < 1e-6,
               "the update takes %g s", step.update);
    test_check(step.all == step.compute + step.send + step.update, "a sum");
    c.zero.optimizer_tier = ZERO_FILE;
    test_check(!plan_ask(&c, &a, why, sizeof why)
                   && machine_predict(&m, &c, &a, &step, why, sizeof why)
                   && strstr(why, "lacks disk"),
               "%s", why);
    m.disk = 1e8; /* slower than anything else */
    const double moved = (double)a.zero.file_read_bytes + (double)a.zero.file_written_bytes;
    test_check(!machine_predict(&m, &c, &a, &step, why, sizeof why)
                   && fabs(step.update - (moved / 1e8 - step.compute / 3)) < 1e-6,
               "a disk's update takes %g s: %s", step.update, why);
}

/* Experts: what a rank has of them falls as more ranks share them, and what travels is told. */
static void test_experts(void) {
    const gpt2_moe moe = {8, 2, 1.0f, 0.01f};
    char why[PLAN_SENTENCE] = "";
    plan_model m;
    plan_answer a[2];
    plan_case c;
    test_check(!plan_model_read("char:4x64x4", 32, &m, why, sizeof why), "%s", why);
    m.gpt2.moe = moe;
    memset(&c, 0, sizeof c);
    c.model = &m;
    c.nranks = 4;
    c.run.batch = 2;
    c.run.seq_len = 32;
    const size_t dense = gpt2_numel(&m.gpt2), all = experts_numel(&m.gpt2);
    const size_t gates = 2 * 8 * 64, slots = 8 * 16; /* 64 rows ask 2 of 8 */
    for (int i = 0; i < 2; i++) {
        c.sharers = i ? 4 : 1;
        test_check(!plan_ask(&c, &a[i], why, sizeof why), "experts: %s", why);
    }
    test_check(a[0].zero.numel == dense + all, "%zu elements, one rank's experts", a[0].zero.numel);
    test_check(a[1].zero.numel == dense + gates + (all - gates) / 4,
               "%zu elements, a quarter of the experts", a[1].zero.numel);
    test_check(a[0].among == 0 && a[1].among == 4 * 2 * slots * 64 * 4 * 3 / 4, "%llu bytes travel",
               (unsigned long long)a[1].among);
    test_check(a[1].device_bytes < a[0].device_bytes, "%llu bytes, of all experts %llu",
               (unsigned long long)a[1].device_bytes, (unsigned long long)a[0].device_bytes);
    c.sharers = 3;
    test_check(plan_ask(&c, &a[0], why, sizeof why) && strstr(why, "nearest number that does is 2"),
               "%s", why);
}

int main(int argc, char **argv) {
    const char *folder = argc > 1 ? argv[1] : "/tmp";
    char path[512];
    snprintf(path, sizeof path, "%s/test_plan.%ld", folder, (long)getpid());
    plan_for_gpus(0);
#ifdef _OPENMP
    omp_set_num_threads(1); /* scratch memory is by threads */
#endif
    test_measured(folder); /* first: these fork */
    test_layouts();
    test_parts_of_a_number();
    test_figure_1();
    test_table_1();
    test_models();
    test_experts();
    test_limits();
    test_machine_files(path);
    test_prediction();
    return test_summary();
}

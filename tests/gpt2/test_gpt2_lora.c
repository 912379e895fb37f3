/* test_gpt2_lora.c - low-rank adapters of GPT-2, of adapters/gpt2/lora.h: a model with adapters is
   the dense model with W + alpha/rank B A, in its loss and, by the chain rule, in its gradients;
   its weights have the same bits at every stage and with every recomputation, its traffic is that
   of the plan, and tensor-parallel ranks compute the same up to rounding.

   With ops_cpu.c as C; with ops_cuda.cu by nvcc on a GPU, or by g++ on the emulation. */
#include "../shared/harness.h"
#include "test_gpt2_ranks.h"

#include "../../adapters/gpt2/frozen.h"
#include "../../adapters/gpt2/lora.h"

#include <math.h>

enum { V = 300, Vp = 384, L = 3, NH = 2, C = 48, T = 12, B = 2, MICRO = 2, STEPS = 3, ALL = 15 };

typedef struct training {
    gpt2_lora lora;
    const char *train; /* base tensors that are trained, too */
    int stage, recompute, tile_rows, untied;
    zero_type type;
    zero_state_type state;
    int dp, tp, sequence;
    int begins;             /* 1: B stays zeros */
    int dense;              /* 1: no adapters; the matrices contain them */
    double loss;            /* of the last step; mean over ranks */
    double first;           /* of the first step */
    float *weights, *grads; /* rank 0's copies of all tensors of the table, or NULL */
} training;

typedef struct part {
    int rank, dp_rank;
    training *t;
    gpt2_config cfg, whole; /* whole: with adapters, although t is dense */
    gpt2_frozen *frozen;
    gpt2_parallel how;
    zero_group *world, *tp, *dp;
    zero_ctx *z;
    gpt2_model *m;
    gpt2_error err;
} part;

static gpt2_config config_of(const training *t, const gpt2_frozen *f) {
    const gpt2_config c = {T, V, Vp, L, NH, C, t->untied, GPT2_NO_EXPERTS, f, 0, 0, 0};
    return c;
}

/* ---- tensors ------------------------------------------------------------------------------- */

/* Reads all tensors that `cfg` lists; gradients of frozen ones are left out as zeros. */
static zero_result read_all(part *p, zero_kind kind, float *out) {
    zero_tensor_desc table[GPT2_MOST_TENSORS];
    const int n = gpt2_table(&p->cfg, NULL, 0, table);
    for (int row = 0; row < n; row++) {
        const int tensor = gpt2_tensor_at(&p->cfg, row);
        const size_t count = table[row].numel * (size_t)table[row].layers;
        if (kind != ZERO_GRADIENT || !gpt2_is_frozen(&p->cfg, tensor, 0))
            ZERO_TRY(gpt2_read(p->z, &p->cfg, &p->how, tensor, kind, 0, count, out));
        out += count;
    }
    return ZERO_OK;
}

static size_t numel_of(const part *p) { return gpt2_numel(&p->cfg); }

/* Elements of A (layer by layer) as it is drawn, and of B as this test sets it. */
static float element_of(const part *p, int tensor, size_t i) {
    size_t rows, columns;
    lora_sides(&p->whole, tensor, &rows, &columns);
    const double u = (double)(gpt2_draw(11, (uint64_t)tensor, i) >> 11) / 9007199254740992.0;
    return (float)((2 * u - 1) / sqrt((double)columns));
}

static zero_result write_adapters(part *p) {
    GPT2_EACH_TENSOR(&p->cfg, row, tensor) {
        float *values;
        size_t rows, columns, n;
        if (lora_matrix(tensor) < 0) continue;
        lora_sides(&p->cfg, tensor, &rows, &columns);
        n = L * rows * columns;
        values = (float *)malloc(n * sizeof *values);
        for (size_t i = 0; i < n; i++) values[i] = element_of(p, tensor, i);
        const zero_result r =
            gpt2_write(p->z, &p->cfg, &p->how, tensor, ZERO_PARAMETER, 0, n, values);
        free(values);
        if (r) return r;
    }
    return ZERO_OK;
}

static int base_of(int matrix) {
    static const int base[LORA_MATRICES] = {GPT2_QKVW, GPT2_ATTPROJW, GPT2_FCW, GPT2_FCPROJW};
    return base[matrix];
}

/* W += alpha/rank B A in a model without adapters. */
static zero_result merge(part *p) {
    const gpt2_lora *lora = &p->t->lora;
    const float scale = lora->alpha / (float)lora->rank;
    for (int k = 0; k < LORA_MATRICES; k++) {
        size_t I, O, r;
        if (!(lora->on >> k & 1u)) continue;
        lora_sides(&p->whole, lora_tensor(k, 0), &r, &I);
        lora_sides(&p->whole, lora_tensor(k, 1), &O, &r);
        float *w = (float *)malloc(L * O * I * sizeof *w);
        zero_result result =
            gpt2_read(p->z, &p->cfg, &p->how, base_of(k), ZERO_PARAMETER, 0, L * O * I, w);
        for (size_t l = 0; l < L; l++)
            for (size_t o = 0; o < O; o++)
                for (size_t i = 0; i < I; i++)
                    for (size_t j = 0; j < r; j++)
                        w[(l * O + o) * I + i] +=
                            scale * element_of(p, lora_tensor(k, 1), (l * O + o) * r + j)
                            * element_of(p, lora_tensor(k, 0), (l * r + j) * I + i);
        if (!result)
            result =
                gpt2_write(p->z, &p->cfg, &p->how, base_of(k), ZERO_PARAMETER, 0, L * O * I, w);
        free(w);
        if (result) return result;
    }
    return ZERO_OK;
}

/* ---- a training ---------------------------------------------------------------------------- */

static zero_result open_groups(part *p, const zero_comm *comm) {
    const int tp = p->t->tp;
    p->dp_rank = p->rank / tp;
    ZERO_TRY(ranks_open(comm, p->rank, tp, &p->world, &p->tp, &p->dp));
    p->how.tp = p->tp;
    p->how.sequence = p->t->sequence;
    return ZERO_OK;
}

static zero_result open_model(part *p) {
    const training *t = p->t;
    const zero_comm comm = zero_group_comm(p->dp);
    const gpt2_run run = {B, T, t->recompute, t->type, 0, 0, t->tile_rows, P_tmpdir, &p->how, 0,
                          0, 0};
    const gpt2_config base = config_of(t, NULL);
    zero_config zc;
    memset(&zc, 0, sizeof zc);
    zc.stage = t->stage;
    zc.micro_steps = MICRO;
    zc.accumulation = ZERO_ACCUMULATE_SHARDED;
    zc.type = t->type;
    zc.grads = ZERO_GRAD_F32;
    zc.state_type = t->state;
    zc.log = test_quiet;
    zc.world = p->world;
    zc.persistence_numel = ZERO_NONE;
    ZERO_TRY(gpt2_adapt(&base, &t->lora, t->train, "", &p->frozen, &p->err));
    p->whole = config_of(t, p->frozen);
    p->cfg = config_of(t, t->dense ? NULL : p->frozen);
    ZERO_TRY(zero_create(&p->z, &zc, &comm));
    ZERO_TRY(gpt2_announce(p->z, &p->cfg, &p->how, t->tile_rows));
    ZERO_TRY(gpt2_frozen_order(p->z, &p->cfg, gpt2_tiles(&p->cfg, t->tp, t->tile_rows)));
    ZERO_TRY(zero_build(p->z));
    ZERO_TRY(gpt2_init_part(p->z, &p->cfg, &p->how, 7, &p->err));
    ZERO_TRY(gpt2_lora_init(p->z, &p->cfg, &p->how, 7, &p->err));
    if (!t->begins) ZERO_TRY(t->dense ? merge(p) : write_adapters(p));
    return gpt2_create(&p->m, p->z, &p->cfg, &run, &p->err);
}

static zero_result take_step(part *p, int step) {
    const zero_hyper hyper = {1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f};
    training *t = p->t;
    int tokens[2 * B * T];
    double mean = 0;
    for (int micro = 0; micro < MICRO; micro++) {
        ranks_draw_tokens(tokens, B * T, V, p->dp_rank, step * MICRO + micro);
        ZERO_TRY(zero_pass_begin(p->z, ZERO_TRAIN, micro, MICRO));
        ZERO_TRY(
            gpt2_train_step(p->m, tokens, tokens + B * T, zero_loss_scale(p->z) / MICRO, NULL));
        ZERO_TRY(zero_pass_end(p->z));
    }
    ZERO_TRY(zero_reduce(p->z));
    if (step == 0 && t->grads) ZERO_TRY(read_all(p, ZERO_GRADIENT, t->grads));
    ZERO_TRY(zero_step(p->z, &hyper));
    ZERO_TRY(gpt2_take_losses(p->m, &mean));
    ZERO_TRY(zero_all_sum(p->z, &mean, 1));
    t->loss = mean / t->dp;
    if (step == 0) t->first = t->loss;
    return ZERO_OK;
}

static zero_result train_part(part *p, const zero_comm *comm, test_rank *r) {
    zero_plan plan;
    zero_stats before, after;
    ZERO_TRY(open_groups(p, comm));
    ZERO_TRY(open_model(p));
    ZERO_TRY(zero_query_plan(p->z, &plan));
    ZERO_TRY(zero_query_stats(p->z, &before));
    for (int step = 0; step < STEPS; step++) ZERO_TRY(take_step(p, step));
    ZERO_TRY(zero_query_stats(p->z, &after));
    const uint64_t sent = after.sent_bytes - before.sent_bytes;
    if (!p->t->grads && sent != STEPS * (uint64_t)plan.sent_bytes)
        test_rank_fail(r, "sent %llu bytes in %d steps, planned %zu a step",
                       (unsigned long long)sent, STEPS, plan.sent_bytes);
    return p->t->weights ? read_all(p, ZERO_MASTER, p->t->weights) : ZERO_OK;
}

static void train_body(test_rank *r) {
    training *wanted = (training *)r->arg, own = *wanted;
    const zero_comm comm = test_comm(r);
    const size_t most = 2 * (size_t)Vp * C + (size_t)T * C + L * (20 * C * C + 100 * C * 16);
    part p;
    memset(&p, 0, sizeof p);
    p.rank = r->rank;
    p.t = r->rank ? &own : wanted;
    if (r->rank && own.weights) own.weights = (float *)calloc(most, sizeof(float));
    if (r->rank && own.grads) own.grads = (float *)calloc(most, sizeof(float));
    const zero_result result = train_part(&p, &comm, r);
    if (result)
        test_rank_fail(r, "result %d: %s; %s; %s; %s", (int)result, p.err.sentence,
                       p.m ? gpt2_last_error(p.m) : "", p.z ? zero_last_error(p.z) : "",
                       zero_group_error(p.tp));
    if (r->rank) free(own.weights);
    if (r->rank) free(own.grads);
    gpt2_destroy(p.m);
    zero_destroy(p.z);
    ranks_close(p.world, p.tp, p.dp);
    gpt2_frozen_free(p.frozen);
}

/* Trains, with copies of weights and, if asked for, of gradients. Returns the number of elements.
 */
static size_t train(training *t, int grads) {
    part p;
    memset(&p, 0, sizeof p);
    const gpt2_config base = config_of(t, NULL);
    gpt2_frozen *f = NULL;
    if (!t->train) t->train = "";
    if (!test_check(!gpt2_adapt(&base, &t->lora, t->train, "", &f, &p.err), "%s", p.err.sentence))
        return 0;
    p.cfg = config_of(t, t->dense ? NULL : f);
    const size_t n = numel_of(&p);
    gpt2_frozen_free(f);
    t->weights = (float *)calloc(n, sizeof *t->weights);
    t->grads = grads ? (float *)calloc(n, sizeof *t->grads) : NULL;
    const int ok = test_check(test_ranks(t->dp * t->tp, 0, train_body, t),
                              "rank %d on %u, dp %d tp %d sequence %d stage %d type %d recompute "
                              "%d tiles %d untied %d: %s",
                              t->lora.rank, t->lora.on, t->dp, t->tp, t->sequence, t->stage,
                              (int)t->type, t->recompute, t->tile_rows, t->untied, test_first);
    return ok ? n : 0;
}

static void drop(training *t) {
    free(t->weights);
    free(t->grads);
}

static training with(int rank, float alpha, unsigned on, int dp, int tp) {
    training t;
    memset(&t, 0, sizeof t);
    t.lora.rank = rank;
    t.lora.alpha = alpha;
    t.lora.on = on;
    t.dp = dp;
    t.tp = tp;
    t.train = "";
    return t;
}

/* ---- next to the dense model --------------------------------------------------------------- */

/* Where the layers of a tensor of a training begin in its copies. */
static float *copy_of(const training *t, const gpt2_frozen *f, float *all, int tensor) {
    const gpt2_config cfg = config_of(t, t->dense ? NULL : f);
    zero_tensor_desc table[GPT2_MOST_TENSORS];
    (void)gpt2_table(&cfg, NULL, 0, table);
    for (int row = 0; gpt2_tensor_at(&cfg, row) != tensor; row++)
        all += table[row].numel * (size_t)table[row].layers;
    return all;
}

static double distance(const float *a, const double *b, size_t n) {
    double off = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        off += pow((double)a[i] - b[i], 2);
        all += pow(b[i], 2);
    }
    return all > 0 ? sqrt(off / all) : 1;
}

/* dA = scale B^T dW, dB = scale dW A^T */
static void check_matrix(const training *t, const training *dense, const gpt2_frozen *f, int k) {
    part p;
    size_t I, O, r;
    memset(&p, 0, sizeof p);
    p.whole = config_of(t, f);
    lora_sides(&p.whole, lora_tensor(k, 0), &r, &I);
    lora_sides(&p.whole, lora_tensor(k, 1), &O, &r);
    const double scale = (double)t->lora.alpha / t->lora.rank;
    const float *dw = copy_of(dense, f, dense->grads, base_of(k));
    double *da = (double *)calloc(L * r * I, sizeof *da),
           *db = (double *)calloc(L * O * r, sizeof *db);
    for (size_t l = 0; l < L; l++)
        for (size_t o = 0; o < O; o++)
            for (size_t j = 0; j < r; j++)
                for (size_t i = 0; i < I; i++) {
                    const double d = scale * (double)dw[(l * O + o) * I + i];
                    const size_t a = (l * r + j) * I + i, b = (l * O + o) * r + j;
                    da[a] += d * (double)element_of(&p, lora_tensor(k, 1), b);
                    db[b] += d * (double)element_of(&p, lora_tensor(k, 0), a);
                }
    const double a = distance(copy_of(t, f, t->grads, lora_tensor(k, 0)), da, L * r * I);
    const double b = distance(copy_of(t, f, t->grads, lora_tensor(k, 1)), db, L * O * r);
    test_check(a < 2e-5 && b < 2e-5, "%s: gradients are off by %g and %g",
               gpt2_tensor_name(base_of(k)), a, b);
    free(da);
    free(db);
}

static void test_dense(int recompute) {
    training t = with(5, 8, ALL, 1, 1), dense = t;
    const gpt2_config base = config_of(&t, NULL);
    gpt2_frozen *f = NULL;
    dense.dense = 1;
    t.recompute = recompute;
    if (train(&t, 1) && train(&dense, 1) && !gpt2_adapt(&base, &t.lora, "", "", &f, NULL)) {
        test_check(fabs(t.first / dense.first - 1) < 1e-6, "loss %.9g, of the dense model %.9g",
                   t.first, dense.first);
        for (int k = 0; k < LORA_MATRICES; k++) check_matrix(&t, &dense, f, k);
    }
    gpt2_frozen_free(f);
    drop(&t);
    drop(&dense);
}

/* B begins as zeros: the first loss is that of the model without adapters, bit for bit. */
static void test_begin(void) {
    training t = with(4, 4, ALL, 1, 1), dense = t;
    t.begins = dense.begins = 1;
    dense.dense = 1;
    if (train(&t, 0) && train(&dense, 0))
        test_check(t.first == dense.first && t.loss != dense.loss,
                   "first losses %.9g and %.9g, last %.9g and %.9g", t.first, dense.first, t.loss,
                   dense.loss);
    drop(&t);
    drop(&dense);
}

/* An adapter of more elements than are drawn at once begins as the formula says, up to its end. */
static void test_first_values(void) {
    enum { WIDE = 256, BLOCKS = 3, RANK = 96, SIDE = 4 * WIDE, SOME = 64 };
    const gpt2_lora lora = {RANK, RANK, 1u << LORA_FCPROJ};
    const size_t n = (size_t)BLOCKS * RANK * SIDE,
                 at[] = {0, ((size_t)1 << 18) - SOME / 2, n - SOME};
    const int tensor = lora_tensor(LORA_FCPROJ, 0);
    const zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
    const zero_config zc = {.optimizer = ZERO_SGD, .log = test_quiet};
    gpt2_config cfg = {T, V, Vp, BLOCKS, NH, WIDE, 0, GPT2_NO_EXPERTS, NULL, 0, 0, 0};
    gpt2_frozen *f = NULL;
    zero_ctx *z = NULL;
    gpt2_error e = {""};
    float seen[SOME];
    int wrong = 0, ok = !gpt2_adapt(&cfg, &lora, "", "", &f, &e);
    cfg.frozen = f;
    ok = ok && !zero_create(&z, &zc, &self) && !gpt2_announce(z, &cfg, NULL, 0) && !zero_build(z)
         && !gpt2_lora_init(z, &cfg, NULL, 7, &e);
    for (int k = 0; k < 3 && ok; k++) {
        ok = !zero_read_tensor(z, gpt2_tensor_name(tensor), ZERO_PARAMETER, at[k], SOME, seen);
        for (size_t i = 0; i < SOME; i++) {
            const uint64_t r = gpt2_draw(7, 64 + (uint64_t)tensor, at[k] + i) >> 11;
            const double u = ((double)r + 0.5) / 9007199254740992.0;
            wrong += seen[i] != (float)((2 * u - 1) / sqrt((double)SIDE));
        }
    }
    test_check(ok && !wrong, "%d first values are wrong: %s %s", wrong, e.sentence,
               z ? zero_last_error(z) : "");
    zero_destroy(z);
    gpt2_frozen_free(f);
}

/* ---- stages and parts ---------------------------------------------------------------------- */

static void test_stages(const char *name, training first) {
    training one = first;
    const size_t n = train(&one, 0);
    for (int stage = 1; stage < 4 && n; stage++) {
        training t = first;
        t.stage = stage;
        if (train(&t, 0))
            test_check(t.loss == one.loss && !memcmp(t.weights, one.weights, n * sizeof(float)),
                       "%s, stage %d: other bits, or another loss: %.9g and %.9g", name, stage,
                       t.loss, one.loss);
        drop(&t);
    }
    drop(&one);
}

static void test_recomputed(void) {
    training one = with(4, 8, ALL, 2, 1);
    const size_t n = train(&one, 0);
    for (int again = 1; again <= GPT2_RECOMPUTE_AWAY && n; again++) {
        training t = with(4, 8, ALL, 2, 1);
        t.recompute = again;
        if (train(&t, 0))
            test_check(!memcmp(t.weights, one.weights, n * sizeof(float)),
                       "recompute %d: other bits", again);
        drop(&t);
    }
    drop(&one);
}

static void test_parts(int dp, int tp, int sequence, int stage, int tile_rows) {
    training one = with(4, 8, ALL, dp, 1), t = with(4, 8, ALL, dp, tp);
    one.tile_rows = t.tile_rows = tile_rows;
    t.sequence = sequence;
    t.stage = stage;
    const size_t n = train(&one, 1);
    if (n && train(&t, 1)) {
        double *whole = (double *)malloc(n * sizeof *whole);
        for (size_t i = 0; i < n; i++) whole[i] = (double)one.grads[i];
        const double off = distance(t.grads, whole, n);
        test_check(fabs(t.first / one.first - 1) < 1e-6 && fabs(t.loss / one.loss - 1) < 1e-4
                       && off < 1e-5,
                   "dp %d tp %d sequence %d stage %d: losses %.9g %.9g, whole %.9g %.9g; gradients "
                   "are off by %g",
                   dp, tp, sequence, stage, t.first, t.loss, one.first, one.loss, off);
        free(whole);
    }
    drop(&one);
    drop(&t);
}

/* ---- settings ------------------------------------------------------------------------------ */

static void refuse(gpt2_lora lora, int experts, const char *words) {
    const training any = with(1, 1, 1, 1, 1);
    gpt2_config cfg = config_of(&any, NULL);
    gpt2_frozen *f = NULL;
    gpt2_error err = {""};
    cfg.moe.experts = experts;
    const zero_result r = gpt2_adapt(&cfg, &lora, "", "", &f, &err);
    test_check(r == ZERO_ERR_ARGUMENT && !f && strstr(err.sentence, words), "%d, %s", (int)r,
               err.sentence);
}

static void test_settings(void) {
    const training any = with(1, 1, 1, 1, 1);
    const gpt2_config cfg = config_of(&any, NULL);
    const gpt2_lora lora = {4, 8, 5}, widest = {C, 1, 1};
    zero_tensor_desc table[GPT2_MOST_TENSORS];
    gpt2_frozen *f = NULL;
    char words[32];
    unsigned on = 0;
    test_check(!gpt2_lora_parse("fcproj,qkv", &on) && on == 9, "fcproj,qkv: %u", on);
    test_check(gpt2_lora_parse("qkv,attn", &on) && gpt2_lora_parse("", &on), "attn, or nothing");
    gpt2_lora_print(ALL, words);
    test_check(!strcmp(words, "qkv,proj,fc,fcproj"), "%s", words);
    test_check(!gpt2_lora_check(&cfg, &widest, NULL), "adapters of as many rows as channels");
    refuse((gpt2_lora){C + 1, 8, 1}, 0, "--lora 49: the rank of adapters is 1 to the number");
    refuse((gpt2_lora){4, -1, 1}, 0, "alpha is a positive number");
    refuse((gpt2_lora){4, 1, 1}, 4, "--lora 4: a model with experts");
    if (!test_check(!gpt2_adapt(&cfg, &lora, "*", "", &f, NULL) && f && f->lora.rank == 4,
                    "adapters of a model that is trained"))
        return;
    gpt2_frozen_free(f);
    if (!test_check(!gpt2_adapt(&cfg, &lora, "lnf*", "h.1.qkvw.lora_a", &f, NULL), "patterns"))
        return;
    const gpt2_config adapted = config_of(&any, f);
    test_check(gpt2_table(&adapted, NULL, 0, table) == GPT2_TENSORS + 4
                   && !strcmp(table[19].name, "fcw.lora_b") && table[19].numel == 4 * C * 4
                   && table[19].layers == L,
               "%s: %zu", table[19].name, table[19].numel);
    test_check(f->lowest == 0 && !f->layer[GPT2_LNFW][0] && f->layer[GPT2_WTE][0]
                   && f->layer[lora_tensor(LORA_QKV, 0)][1]
                   && !f->layer[lora_tensor(LORA_QKV, 1)][1],
               "lowest %d", f->lowest);
    gpt2_frozen_free(f);
}

int main(void) {
    training t = with(4, 4, 1, 2, 1);
    test_settings();
    test_first_values();
    test_begin();
    test_dense(0);
    test_dense(2);
    test_stages("queries, keys and values", t);
    t.lora.on = ALL;
    t.type = ZERO_BF16;
    t.recompute = 2;
    test_stages("bf16", t);
    t.state = ZERO_STATE_8BIT;
    test_stages("bf16, 8-bit state", t);
    t.type = ZERO_F32;
    t.tile_rows = 96;
    t.untied = 1;
    t.train = "ln*,*b";
    t.state = ZERO_STATE_BF16;
    test_stages("tiles, untied, norms and biases", t);
    test_recomputed();
    test_parts(1, 2, 0, 0, 0);
    test_parts(1, 2, 1, 1, 0);
    test_parts(2, 2, 1, 3, 96);
    return test_summary();
}

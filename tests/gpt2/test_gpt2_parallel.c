/* test_gpt2_parallel.c - GPT-2 over the ranks of groups, adapters/gpt2/tensor_parallel.h, beside
   the same model on data-parallel ranks alone: gradients of the first step, losses, norms, logits;
   the same bits at every stage; bytes as the formula says; memory as planned; what cannot be cut;
   LAMB and Muon, which look at whole tensors.

   With ops_cpu.c as C; with ops_cuda.cu by nvcc on a GPU, or by g++ on the emulation. */
#include "../shared/harness.h"
#include "test_gpt2_ranks.h"

#include "../../adapters/gpt2/gpt2.h"
#include "../../adapters/gpt2/tensor_parallel.h"

#include <math.h>

#ifdef _OPENMP
#include <omp.h>
#endif

enum { V = 300, Vp = 384, L = 2, NH = 4, C = 32, T = 16, B = 2, MOST_STEPS = 50, MICRO = 2 };

/* A training on dp x tp ranks, and what the first rank finds. */
typedef struct training {
    int dp, tp, sequence, untied, tile_rows, recompute, stage, steps;
    zero_type type;
    zero_optimizer rule;
    double loss[MOST_STEPS], norm[MOST_STEPS], eval;
    float logits[V];
    float *grad;            /* of the first step, dense; NULL: not wanted */
    uint64_t weights;       /* dense; a hash of this test's own */
    uint64_t sent, formula; /* of the tensor-parallel group, in the first step */
    zero_group_stats stats; /* of that step */
    int planned;            /* the context sent in it what its plan says */
} training;

typedef ranks_part part;

static gpt2_config config_of(const training *t) {
    const gpt2_config c = {T, V, Vp, L, NH, C, t->untied, GPT2_NO_EXPERTS, NULL, 0, 0, 0};
    return c;
}

/* Elements of a model, tied or not, at most. */
static size_t most_numel(void) {
    const gpt2_config untied = {T, V, Vp, L, NH, C, 1, GPT2_NO_EXPERTS, NULL, 0, 0, 0};
    return gpt2_numel(&untied);
}

static gpt2_run run_of(const part *p) {
    const training *t = p->t;
    const gpt2_run run = {B, T, t->recompute, t->type, 0, 0, t->tile_rows, P_tmpdir, &p->how, 0,
                          0, 0};
    return run;
}

static zero_result open_model(part *p) {
    const training *t = p->t;
    const zero_comm comm = zero_group_comm(p->dp);
    const gpt2_run run = run_of(p);
    zero_config zc;
    memset(&zc, 0, sizeof zc);
    zc.stage = t->stage;
    zc.micro_steps = MICRO;
    zc.accumulation = ZERO_ACCUMULATE_SHARDED;
    zc.type = t->type;
    zc.grads = ZERO_GRAD_F32;
    zc.optimizer = t->rule;
    zc.muon.match_rms = 1;
    zc.log = test_quiet;
    zc.world = p->world;
    p->cfg = config_of(t);
    ZERO_TRY(zero_create(&p->z, &zc, &comm));
    ZERO_TRY(gpt2_announce(p->z, &p->cfg, &p->how, t->tile_rows));
    ZERO_TRY(zero_build(p->z));
    ZERO_TRY(gpt2_init_part(p->z, &p->cfg, &p->how, 7, &p->err));
    return gpt2_create(&p->m, p->z, &p->cfg, &run, &p->err);
}

/* Reads all tensors; out may be NULL. `hash` is of what is read. */
static zero_result read_all(part *p, zero_kind kind, float *out, uint64_t *hash) {
    return ranks_read_all(p->z, &p->cfg, &p->how, kind, out, hash);
}

static zero_result take_step(part *p, int step) {
    training *t = p->t;
    const zero_hyper hyper = {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f};
    zero_group_stats before, after;
    zero_step_report done;
    int tokens[2 * B * T];
    uint64_t hash;
    double mean = 0;
    zero_group_query_stats(p->tp, &before);
    for (int micro = 0; micro < MICRO; micro++) {
        ranks_draw_tokens(tokens, B * T, V, p->dp_rank, step * MICRO + micro);
        ZERO_TRY(zero_pass_begin(p->z, ZERO_TRAIN, micro, MICRO));
        ZERO_TRY(
            gpt2_train_step(p->m, tokens, tokens + B * T, zero_loss_scale(p->z) / MICRO, NULL));
        ZERO_TRY(zero_pass_end(p->z));
    }
    zero_group_query_stats(p->tp, &after);
    ZERO_TRY(zero_reduce(p->z));
    if (step == 0 && t->grad) ZERO_TRY(read_all(p, ZERO_GRADIENT, t->grad, &hash));
    ZERO_TRY(zero_step(p->z, &hyper));
    ZERO_TRY(gpt2_take_losses(p->m, &mean));
    ZERO_TRY(zero_all_sum(p->z, &mean, 1));
    ZERO_TRY(zero_step_result(p->z, &done));
    t->loss[step] = mean / t->dp;
    t->norm[step] = done.norm;
    if (step) return ZERO_OK;
    zero_plan plan;
    zero_stats stats;
    ZERO_TRY(zero_query_plan(p->z, &plan));
    ZERO_TRY(zero_query_stats(p->z, &stats));
    t->planned = plan.sent_bytes == stats.sent_bytes && plan.verdict_bytes == stats.verdict_bytes
                 && plan.verdict_bytes > 0;
    const gpt2_run run = run_of(p);
    t->stats = after;
    t->sent = after.sent_bytes - before.sent_bytes;
    t->formula = MICRO * gpt2_parallel_bytes(&p->cfg, &run);
    return ZERO_OK;
}

static zero_result train_part(part *p, const zero_comm *comm) {
    training *t = p->t;
    int tokens[2 * B * T];
    ZERO_TRY(ranks_part_open(p, comm, t->tp, t->sequence));
    zero_group_name(p->tp, "tp");
    ZERO_TRY(open_model(p));
    for (int step = 0; step < t->steps; step++) ZERO_TRY(take_step(p, step));
    ranks_draw_tokens(tokens, B * T, V, p->dp_rank, 1000);
    ZERO_TRY(zero_pass_begin(p->z, ZERO_EVAL, 0, 1));
    ZERO_TRY(gpt2_loss(p->m, tokens, tokens + B * T, p->dp_rank ? 0 : B - 1, &t->eval));
    ZERO_TRY(zero_pass_end(p->z));
    ranks_draw_tokens(tokens, B * T, V, 0, 1001);
    ZERO_TRY(zero_pass_begin(p->z, ZERO_EVAL, 0, 1));
    ZERO_TRY(gpt2_logits(p->m, tokens, T - 3, t->logits));
    ZERO_TRY(zero_pass_end(p->z));
    return read_all(p, ZERO_MASTER, NULL, &t->weights);
}

static void train_body(test_rank *r) {
    training *wanted = (training *)r->arg, own = *wanted;
    const zero_comm comm = test_comm(r);
    part p;
    memset(&p, 0, sizeof p);
    p.rank = r->rank;
    p.t = r->rank ? &own : wanted;
    if (r->rank && own.grad) own.grad = (float *)malloc(most_numel() * sizeof(float));
    const zero_result result = train_part(&p, &comm);
    if (result) ranks_part_report(&p, r, result);
    if (r->rank) free(own.grad);
    ranks_part_close(&p);
}

static int train(training *t) {
    return test_check(
        test_ranks(t->dp * t->tp, 0, train_body, t),
        "dp %d, tp %d, sequence %d, untied %d, tiles of %d, recompute %d, stage %d: %s", t->dp,
        t->tp, t->sequence, t->untied, t->tile_rows, t->recompute, t->stage, test_first);
}

static training layout(int dp, int tp, int sequence) {
    training t;
    memset(&t, 0, sizeof t);
    t.dp = dp;
    t.tp = tp;
    t.sequence = sequence;
    t.steps = 4;
    return t;
}

static const char *name_of(const training *t, char text[128]) {
    (void)snprintf(
        text, 128,
        "dp %d tp %d sequence %d untied %d tiles %d recompute %d stage %d type %d rule %d", t->dp,
        t->tp, t->sequence, t->untied, t->tile_rows, t->recompute, t->stage, (int)t->type,
        (int)t->rule);
    return text;
}

/* ---- beside one data-parallel rank, or as many --------------------------------------------- */

static void check_gradients(const training *t, const training *whole, double most) {
    const gpt2_config cfg = config_of(t);
    zero_tensor_desc table[GPT2_MOST_TENSORS];
    const int n = gpt2_table(&cfg, NULL, 0, table);
    char name[128];
    size_t at = 0;
    for (int k = 0; k < n; k++) {
        double off = 0, all = 0;
        for (size_t end = at + table[k].numel * (size_t)table[k].layers; at < end; at++) {
            off += pow((double)t->grad[at] - (double)whole->grad[at], 2);
            all += pow((double)whole->grad[at], 2);
        }
        test_check(all > 0 && sqrt(off / all) <= most, "%s: gradient of %s is off by %g",
                   name_of(t, name), table[k].name, sqrt(off / all));
    }
}

/* Relative to each other. */
static double apart(double a, double b) { return fabs(a - b) / fabs(b); }

/* rounding: what a gradient may be off, relative to its norm. */
static void check_near(training *t, const training *whole, double rounding) {
    double loss = 0, norm = 0, logit = 0;
    char name[128];
    t->grad = (float *)malloc(most_numel() * sizeof(float));
    train(t);
    (void)name_of(t, name);
    for (int i = 0; i < t->steps; i++) {
        loss = fmax(loss, fabs(t->loss[i] - whole->loss[i]));
        norm = fmax(norm, apart(t->norm[i], whole->norm[i]));
    }
    for (int i = 0; i < V; i++)
        logit = fmax(logit, fabs((double)t->logits[i] - (double)whole->logits[i]));
    test_check(loss <= 10 * rounding, "%s: losses are off by %g", name, loss);
    test_check(apart(t->norm[0], whole->norm[0]) <= rounding / 10 && norm <= 100 * rounding,
               "%s: norm %.9g, whole %.9g; off by %g later", name, t->norm[0], whole->norm[0],
               norm);
    test_check(apart(t->eval, whole->eval) <= 10 * rounding, "%s: evaluation %.9g, whole %.9g",
               name, t->eval, whole->eval);
    test_check(logit <= 100 * rounding, "%s: logits are off by %g", name, logit);
    check_gradients(t, whole, rounding);
    test_check(t->planned, "%s: the context sends other bytes than planned", name);
    free(t->grad);
    t->grad = NULL;
}

static training whole_of(int dp, int untied, int steps, zero_type type) {
    training whole = layout(dp, 1, 0);
    whole.untied = untied;
    whole.steps = steps;
    whole.type = type;
    whole.grad = (float *)malloc(most_numel() * sizeof(float));
    train(&whole);
    return whole;
}

/* Long runs of the first cases, a few steps of all. */
static void test_near(int dp, int untied, int steps) {
    static const struct near_case {
        int tp, sequence, tile_rows, recompute;
    } cases[] = {{2, 0, 0, 1}, {2, 1, 0, 1},  {4, 0, 0, 0},
                 {4, 1, 0, 3}, {2, 0, 96, 1}, {4, 1, 32, 2}};
    training whole = whole_of(dp, untied, steps, ZERO_F32);
    for (int i = 0; i < (steps > 4 ? 2 : 6); i++) {
        training t = layout(dp, cases[i].tp, cases[i].sequence);
        t.untied = untied;
        t.steps = steps;
        t.tile_rows = cases[i].tile_rows;
        t.recompute = cases[i].recompute;
        if (dp * t.tp <= 4) check_near(&t, &whole, 1e-5);
    }
    free(whole.grad);
}

/* Sums are rounded to the type of activations, once a sum. */
static void test_near_half(void) {
    training whole = whole_of(1, 0, 4, ZERO_BF16);
    for (int sequence = 0; sequence < 2; sequence++) {
        training t = layout(1, 2, sequence);
        t.type = ZERO_BF16;
        check_near(&t, &whole, 0.02);
    }
    free(whole.grad);
}

/* ---- the same bits ------------------------------------------------------------------------- */

static int same_bytes(const void *a, const void *b, size_t n) { return memcmp(a, b, n) == 0; }

static void check_same(training *t, const training *as) {
    char name[128];
    train(t);
    test_check(same_bytes(t->loss, as->loss, sizeof t->loss)
                   && same_bytes(t->norm, as->norm, sizeof t->norm) && t->weights == as->weights
                   && same_bytes(&t->eval, &as->eval, sizeof t->eval)
                   && same_bytes(t->logits, as->logits, sizeof t->logits),
               "%s: other bits than recompute %d at stage %d: loss %.9g, %.9g; norm %.9g, %.9g",
               name_of(t, name), as->recompute, as->stage, t->loss[3], as->loss[3], t->norm[3],
               as->norm[3]);
}

/* In CUDA what cuBLASLt and the own kernel say of GELU is a rounding apart. */
#ifdef __CUDACC__
enum { SAME_GELU = 0 };
#else
enum { SAME_GELU = 1 };
#endif

static void test_bits(int sequence, int tile_rows, int untied) {
    training first = layout(2, 2, sequence);
    first.tile_rows = tile_rows;
    first.untied = untied;
    train(&first);
    for (int stage = 1; stage < 4; stage++) {
        training t = first;
        t.stage = stage;
        check_same(&t, &first);
    }
    for (int recompute = 1; recompute <= GPT2_RECOMPUTE_AWAY; recompute++) {
        training t = first;
        t.recompute = recompute;
        t.stage = recompute % 4;
        if (SAME_GELU)
            check_same(&t, &first);
        else
            train(&t);
        test_check(t.sent == t.formula && t.sent > 0, "recompute %d: %llu bytes sent, formula %llu",
                   recompute, (unsigned long long)t.sent, (unsigned long long)t.formula);
    }
    test_check(first.sent == first.formula && first.sent > 0, "%llu bytes sent, formula %llu",
               (unsigned long long)first.sent, (unsigned long long)first.formula);
}

/* Rules that look at whole tensors: near one rank that has them, and the same at every stage. */
static void test_rules(int steps) {
    static const zero_optimizer rules[] = {ZERO_LAMB, ZERO_MUON};
    for (int i = 0; i < 2; i++) {
        training whole = layout(1, 1, 0);
        whole.rule = rules[i];
        whole.steps = steps;
        whole.grad = (float *)malloc(most_numel() * sizeof(float));
        train(&whole);
        for (int k = 0; k < (EMULATED ? 1 : 3); k++) {
            training t = whole;
            t.tp = k == 2 ? 4 : 2;
            t.sequence = k > 0;
            t.untied = 0;
            check_near(&t, &whole, 1e-5);
        }
        free(whole.grad);
        training first = layout(2, 2, i);
        first.rule = rules[i];
        first.tile_rows = i ? 0 : 96;
        train(&first);
        for (int stage = EMULATED ? 3 : 1; stage < 4; stage++) {
            training t = first;
            t.stage = stage;
            check_same(&t, &first);
        }
        test_check(first.planned, "rule %d: other bytes than planned", (int)rules[i]);
    }
}

/* ---- figures ------------------------------------------------------------------------------- */

/* The formula in words of the layers: all-reduces of b s h. */
static void test_traffic(void) {
    const uint64_t one = (uint64_t)2 * B * T * C * sizeof(float) / 2; /* 2 (N-1)/N, N = 2 */
    const uint64_t loss = (uint64_t)3 * 2 * B * T * sizeof(float) / 2;
    training t = layout(1, 2, 0);
    t.steps = 1;
    train(&t);
    test_check(t.sent == MICRO * ((4 * L + 2) * one + loss), "%llu bytes, of 4 all-reduces a block",
               (unsigned long long)t.sent);
    test_check(t.stats.all_reduces == MICRO * (4 * L + 2 + 3) && t.stats.all_gathers == 0,
               "%llu all-reduces, %llu all-gathers", (unsigned long long)t.stats.all_reduces,
               (unsigned long long)t.stats.all_gathers);
    t.sequence = 1;
    train(&t);
    test_check(t.sent == MICRO * ((4 * L + 2) * one + loss), "%llu bytes, of gathers and scatters",
               (unsigned long long)t.sent);
    test_check(t.stats.all_reduces == MICRO * 3 && t.stats.all_gathers == MICRO * (4 * L + 2)
                   && t.stats.reduce_scatters == MICRO * (4 * L + 2),
               "%llu all-gathers, %llu reduce-scatters", (unsigned long long)t.stats.all_gathers,
               (unsigned long long)t.stats.reduce_scatters);
}

/* Activations of a block: with `whole` of R rows, `cut` of its rows between layers. */
static size_t block_bytes(size_t ranks, size_t cut_by) {
    const size_t R = B * T, Rp = R / cut_by, Cp = C / ranks;
    const size_t kept = R * (2 * C + 3 * Cp + Cp + 4 * Cp + 4 * Cp) + Rp * 2 * C; /* GELU kept */
    return (kept + R * NH / ranks + 4 * Rp) * sizeof(float);
}

typedef struct memory_case {
    int tp, sequence;
    size_t one, two;
} memory_case;

static void memory_body(test_rank *r) {
    memory_case *t = (memory_case *)r->arg;
    const zero_comm comm = test_comm(r);
    zero_group *tp = NULL;
    if (zero_group_open(&tp, &comm, NULL, 60)) test_rank_fail(r, "%s", zero_group_error(tp));
    const gpt2_parallel how = {tp, t->sequence, NULL, NULL, NULL, NULL, NULL, NULL, NULL};
    const gpt2_run run = {B, T, 0, ZERO_F32, 0, 0, 0, NULL, &how, 0, 0, 0};
    const gpt2_config one = {T, V, Vp, 1, NH, C, 0, GPT2_NO_EXPERTS, NULL, 0, 0, 0},
                      two = {T, V, Vp, 2, NH, C, 0, GPT2_NO_EXPERTS, NULL, 0, 0, 0};
    if (r->rank == 0) t->one = gpt2_activation_bytes(&one, &run);
    if (r->rank == 0) t->two = gpt2_activation_bytes(&two, &run);
    zero_group_close(tp);
}

static void test_activations(void) {
    for (int tp = 1; tp <= 4; tp *= 2)
        for (int sequence = 0; sequence < 2; sequence++) {
            memory_case t = {tp, sequence, 0, 0};
            test_check(test_ranks(tp, 0, memory_body, &t), "activations: %s", test_first);
            const size_t want = block_bytes((size_t)tp, sequence ? (size_t)tp : 1);
            const size_t is = t.two - t.one;
            test_check(is >= want && is < want + 12 * 128,
                       "tp %d, sequence %d: a block takes %zu bytes, "
                       "the formula says %zu",
                       tp, sequence, is, want);
        }
}

static void check_refused(int heads, int vocab, int seq_len, int tile_rows, int ranks, int sequence,
                          const char *words, int nearest) {
    const gpt2_config c = {64, vocab - 3,       vocab, 2, heads, heads * 8,
                           0,  GPT2_NO_EXPERTS, NULL,  0, 0,     0};
    gpt2_error err = {""};
    char end[32];
    const zero_result r = gpt2_parallel_check(&c, seq_len, tile_rows, ranks, sequence, &err);
    (void)snprintf(end, sizeof end, "does is %d", nearest);
    test_check(r == ZERO_ERR_ARGUMENT && strstr(err.sentence, words) && strstr(err.sentence, end),
               "%d heads over %d ranks: %s", heads, ranks, err.sentence);
}

static void test_refused(void) {
    const gpt2_config fits = {64, 300, 384, 2, 12, 96, 0, GPT2_NO_EXPERTS, NULL, 0, 0, 0};
    check_refused(12, 384, 16, 0, 5, 0, "12 heads", 4);
    check_refused(12, 128, 16, 0, 12, 0, "128 rows", 4);
    check_refused(12, 384, 15, 0, 4, 1, "15 tokens", 3);
    check_refused(8, 384, 16, 64, 8, 0, "multiple of 32", 4);
    for (int ranks = 1; ranks <= 4; ranks++)
        test_check(!gpt2_parallel_check(&fits, 12, 64, ranks, 1, NULL), "%d ranks fit", ranks);
}

/* ---- slices -------------------------------------------------------------------------------- */

/* Every element has one owner, and goes and comes back by runs of any length. */
static void test_slices(void) {
    const gpt2_config cfg = {5, 11, 12, 3, 2, 4, 1, GPT2_NO_EXPERTS, NULL, 0, 0, 0};
    zero_tensor_desc table[GPT2_MOST_TENSORS];
    const int n = gpt2_table(&cfg, NULL, 0, table);
    for (int k = 0; k < n; k++)
        for (int size = 1; size <= 2; size++) {
            const size_t all = table[k].numel * (size_t)table[k].layers;
            float *back = (float *)calloc(all, sizeof *back), piece[7], taken[7];
            size_t had[2] = {0, 0};
            int ok = 1;
            for (size_t first = 0; first < all; first += 7)
                for (int rank = 0; rank < size; rank++) {
                    const tensor_slice s = tensor_slice_of(&cfg, k, rank, size);
                    const size_t m = all - first < 7 ? all - first : 7;
                    size_t at = 0;
                    for (size_t i = 0; i < m; i++) piece[i] = (float)(first + i + 1);
                    const size_t got = tensor_slice_take(&s, piece, first, m, &at);
                    ok = ok && at == had[rank] && got == tensor_slice_before(&s, first + m) - at;
                    had[rank] += got;
                    memcpy(taken, piece, sizeof taken);
                    tensor_slice_put(&s, back + first, first, m, taken);
                }
            for (size_t i = 0; i < all; i++) ok = ok && back[i] == (float)(i + 1);
            const tensor_slice s = tensor_slice_of(&cfg, k, 0, size);
            ok = ok && had[0] == tensor_slice_numel(&s) * (size_t)table[k].layers;
            test_check(ok, "%s over %d ranks", table[k].name, size);
            free(back);
        }
}

int main(void) {
#ifdef _OPENMP
    omp_set_num_threads(1);
#endif
    test_slices();
    test_refused();
    test_activations();
    test_traffic();
    for (int i = EMULATED; i < 4 - EMULATED; i++) test_bits(i % 2, i / 2 * 64, i / 2);
    if (!EMULATED) test_near(1, 0, MOST_STEPS);
    if (!EMULATED) test_near(2, 0, MOST_STEPS);
    for (int i = 0; i < (EMULATED ? 1 : 4); i++) test_near(1 + i % 2, i / 2, 4);
    test_rules(EMULATED ? 4 : MOST_STEPS);
    test_near_half();
#ifdef EMULATED_LAUNCH
    test_check(!emulation_found(), "the emulation found: %s", emulation_found());
#endif
    return test_summary();
}

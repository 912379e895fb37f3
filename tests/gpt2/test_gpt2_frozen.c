/* test_gpt2_frozen.c - frozen tensors of GPT-2, of adapters/gpt2/frozen.h: which ones patterns
   select; and a training whose trained tensors have the bits of one that trains all and writes the
   frozen weights back after each step, at every stage, with recomputation, tiles, an untied
   classifier and 16 bits, and whose gathers, reductions and activations are those of the plan.

   With ops_cpu.c as C; with ops_cuda.cu by nvcc on a GPU, or by g++ on the emulation. */
#include "../shared/harness.h"

#include "../../adapters/gpt2/frozen.h"
#include "../../adapters/gpt2/gpt2.h"

enum { V = 300, Vp = 384, L = 4, NH = 2, C = 48, MAXT = 16, T = 13, B = 2, STEPS = 3, RANKS = 2 };

typedef struct training {
    const char *train, *freeze;
    int stage, tile_rows, recompute, untied, by_hand; /* by_hand: the weights are written back */
    zero_type type;
    zero_state_type state;
    double loss;
    float *weights; /* rank 0's copy of all, or NULL */
    size_t numel;
} training;

static gpt2_config config_of(const training *t, const gpt2_frozen *frozen) {
    const gpt2_config c = {MAXT, V, Vp, L, NH, C, t->untied, GPT2_NO_EXPERTS, frozen, 0, 0, 0};
    return c;
}

/* Reads or writes all tensors, or, to write, the frozen layers alone. */
static zero_result move(zero_ctx *z, const gpt2_config *cfg, const gpt2_frozen *f, float *values,
                        int writes) {
    zero_tensor_desc table[GPT2_MOST_TENSORS];
    const int n = gpt2_table(cfg, NULL, 0, table);
    for (int t = 0; t < n; t++)
        for (int l = 0; l < table[t].layers; l++, values += table[t].numel) {
            const size_t numel = table[t].numel, first = (size_t)l * numel;
            if (!writes)
                ZERO_TRY(zero_read_tensor(z, table[t].name, ZERO_PARAMETER, first, numel, values));
            else if (f->layer[t][l])
                ZERO_TRY(zero_write_tensor(z, table[t].name, ZERO_MASTER, first, numel, values));
        }
    return ZERO_OK;
}

static void draw_tokens(int *tokens, int rank, int step) {
    for (int i = 0; i < 2 * B * T; i++)
        tokens[i] =
            (int)(gpt2_draw(5, 1000 + (uint64_t)rank, (uint64_t)(step * 2 * B * T + i)) % V);
}

static zero_result take_steps(zero_ctx *z, gpt2_model *m, const gpt2_config *cfg,
                              const gpt2_frozen *f, training *t, float *values, test_rank *r) {
    const zero_hyper hyper = {1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 0};
    int tokens[2 * B * T];
    zero_plan plan;
    zero_stats before, after;
    ZERO_TRY(move(z, cfg, f, values, 0));
    ZERO_TRY(zero_query_plan(z, &plan));
    ZERO_TRY(zero_query_stats(z, &before));
    for (int step = 0; step < STEPS; step++) {
        draw_tokens(tokens, r->rank, step);
        ZERO_TRY(zero_pass_begin(z, ZERO_TRAIN, 0, 1));
        ZERO_TRY(gpt2_train_step(m, tokens, tokens + B * T, zero_loss_scale(z), &t->loss));
        ZERO_TRY(zero_pass_end(z));
        ZERO_TRY(zero_reduce(z));
        ZERO_TRY(zero_step(z, &hyper));
        if (t->by_hand) ZERO_TRY(move(z, cfg, f, values, 1));
    }
    ZERO_TRY(zero_query_stats(z, &after));
    const uint64_t sent = after.sent_bytes - before.sent_bytes;
    if (!t->by_hand && sent != STEPS * (uint64_t)plan.sent_bytes)
        test_rank_fail(r, "sent %llu bytes in %d steps, planned %zu a step",
                       (unsigned long long)sent, STEPS, plan.sent_bytes);
    return move(z, cfg, f, values, 0);
}

static zero_result run_rank(zero_ctx **z, gpt2_model **m, const gpt2_config *cfg,
                            const gpt2_frozen *f, training *t, float *values, test_rank *r) {
    const zero_comm comm = test_comm(r);
    const gpt2_run run = {B, T, t->recompute, t->type, 0, 0, t->tile_rows, P_tmpdir, NULL, 0, 0, 0};
    zero_config zc;
    gpt2_error err = {""};
    memset(&zc, 0, sizeof zc);
    zc.stage = t->stage;
    zc.type = t->type;
    zc.grads = ZERO_GRAD_AS_TYPE;
    zc.state_type = t->state;
    zc.log = test_quiet;
    zc.persistence_numel = ZERO_NONE;
    ZERO_TRY(zero_create(z, &zc, &comm));
    ZERO_TRY(gpt2_announce(*z, cfg, NULL, t->tile_rows));
    ZERO_TRY(gpt2_frozen_order(*z, cfg, gpt2_tiles(cfg, 1, t->tile_rows)));
    ZERO_TRY(zero_build(*z));
    ZERO_TRY(gpt2_init(*z, cfg, 7, &err));
    ZERO_TRY(gpt2_create(m, *z, cfg, &run, &err));
    return take_steps(*z, *m, cfg, f, t, values, r);
}

static void train_body(test_rank *r) {
    training own = *(training *)r->arg, *t = r->rank ? &own : (training *)r->arg;
    const gpt2_config all = config_of(t, NULL);
    gpt2_frozen *f = NULL;
    zero_ctx *z = NULL;
    gpt2_model *m = NULL;
    gpt2_error err = {""};
    float *values = (float *)calloc(gpt2_numel(&all), sizeof *values);
    zero_result result = gpt2_freeze(&all, t->train, t->freeze, &f, &err);
    const gpt2_config cfg = config_of(t, t->by_hand ? NULL : f);
    if (!result) result = run_rank(&z, &m, &cfg, f, t, values, r);
    if (result)
        test_rank_fail(r, "result %d: %s; %s; %s", (int)result, err.sentence,
                       m ? gpt2_last_error(m) : "", zero_last_error(z));
    if (!r->rank && t->weights) memcpy(t->weights, values, gpt2_numel(&all) * sizeof *values);
    gpt2_destroy(m);
    zero_destroy(z);
    gpt2_frozen_free(f);
    free(values);
}

static int train(training *t) {
    const gpt2_config all = config_of(t, NULL);
    t->numel = gpt2_numel(&all);
    t->weights = (float *)calloc(t->numel, sizeof *t->weights);
    return test_check(test_ranks(RANKS, 0, train_body, t),
                      "train '%s', freeze '%s', stage %d, tiles of %d, recompute %d: %s", t->train,
                      t->freeze, t->stage, t->tile_rows, t->recompute, test_first);
}

/* ---- patterns ------------------------------------------------------------------------------ */

static void select_some(const char *train, const char *freeze, int frozen, int lowest) {
    const gpt2_config cfg = {MAXT, V, Vp, L, NH, C, 0, GPT2_NO_EXPERTS, NULL, 0, 0, 0};
    gpt2_frozen *f = NULL;
    gpt2_error err = {""};
    int n = 0;
    const zero_result r = gpt2_freeze(&cfg, train, freeze, &f, &err);
    for (int t = 0; t < GPT2_TENSORS && f; t++)
        for (int l = 0; l < (t >= GPT2_LN1W && t <= GPT2_FCPROJB ? L : 1); l++) n += f->layer[t][l];
    test_check(!r && n == frozen && (f ? f->lowest : -1) == lowest,
               "train '%s', freeze '%s': %d frozen, expected %d; lowest block %d, expected %d; %s",
               train, freeze, n, frozen, f ? f->lowest : -1, lowest, err.sentence);
    gpt2_frozen_free(f);
}

static void refuse_some(const char *train, const char *freeze, const char *flag,
                        const char *words) {
    const gpt2_config cfg = {MAXT, V, Vp, L, NH, C, 0, GPT2_NO_EXPERTS, NULL, 0, 0, 0};
    gpt2_frozen *f = NULL;
    gpt2_error err = {""};
    const zero_result r = gpt2_freeze(&cfg, train, freeze, &f, &err);
    test_check(r == ZERO_ERR_ARGUMENT && !f && strstr(err.sentence, flag) == err.sentence
                   && strstr(err.sentence, words),
               "train '%s', freeze '%s': %d, %s", train, freeze, (int)r, err.sentence);
}

static void test_patterns(void) {
    select_some("", "", 0, -1);
    select_some("*", "", 0, -1);
    select_some("", "wte,wpe", 2, 0);
    select_some("", "qkvw", L, -1);
    select_some("", "h.0.*,h.1.*,w?e", 2 + 24, 2);
    select_some("h.3.*,lnf*", "", 4 + 36 - 2 + 0, 3);
    select_some("h.[23].*", "h.2.qkv*", 4 + 24 + 2, 2);
    select_some("lnf?", "", 2 + 48, L);
    refuse_some("", "h.4.*",
                "--freeze h.4.*:", "no tensor has such a name; the names are wte wpe ");
    refuse_some("wte,nothing", "", "--train nothing:", "and h.0.ln1w to h.3.fcprojb");
    refuse_some("", "*", "--freeze *:", "no tensor is left to train");
}

/* ---- training ------------------------------------------------------------------------------ */

static void test_same(const char *name, training first) {
    if (!test_sampled(3)) return;
    training hand = first;
    hand.by_hand = 1;
    hand.stage = 1;
    if (!train(&hand)) return;
    for (int stage = 0; stage < 4; stage++) {
        training t = first;
        t.stage = stage;
        if (train(&t))
            test_check(t.loss == hand.loss
                           && !memcmp(t.weights, hand.weights, t.numel * sizeof *t.weights),
                       "%s, stage %d: other bits, or another loss: %.9g and %.9g", name, stage,
                       t.loss, hand.loss);
        free(t.weights);
    }
    free(hand.weights);
}

static void test_activations(void) {
    training t = {.train = "h.3.*", .freeze = ""};
    const gpt2_config all = config_of(&t, NULL);
    gpt2_frozen *f = NULL;
    const gpt2_run run = {B, T, 0, ZERO_F32, 0, 0, 0, NULL, NULL, 0, 0, 0};
    if (!test_check(!gpt2_freeze(&all, t.train, t.freeze, &f, NULL), "h.3.*")) return;
    const gpt2_config some = config_of(&t, f);
    gpt2_config one = all; /* scratch memory, which depends on the processor, is the same */
    one.layers = 1;
    const size_t whole = gpt2_activation_bytes(&all, &run),
                 less = gpt2_activation_bytes(&some, &run),
                 three = whole - gpt2_activation_bytes(&one, &run);
    test_check(whole - less > three / 2,
               "activations take %zu bytes, with one trained block %zu; three blocks have %zu",
               whole, less, three);
    /* block 3 has 12 C^2 + 13 C parameters: forward 2, backward 4; all other blocks, the final norm
       and the classifier have a forward, and the last two a backward to their input */
    const double block = 12.0 * C * C + 13.0 * C, ends = 2.0 * C + (double)Vp * C;
    const double flops =
        2 * (L * block + ends) + 4 * block + 2 * ends + 4.0 * L * C * T + 8.0 * C * T;
    test_check(gpt2_flops_per_token(&some, T) == flops, "operations per token: %.0f, expected %.0f",
               gpt2_flops_per_token(&some, T), flops);
    gpt2_frozen_free(f);
}

int main(void) {
    test_patterns();
    test_activations();
    test_same("all but blocks 0 and 1", (training){.train = "", .freeze = "w?e,h.0.*,h.1.*"});
    test_same("vectors", (training){.train = "*b,ln*", .freeze = ""});
    test_same("matrices", (training){.train = "", .freeze = "*b,ln*", .recompute = 2});
    test_same("the embedding", (training){.train = "wte", .freeze = "", .recompute = 3});
    test_same("positions", (training){.train = "wpe", .freeze = "", .recompute = 1});
    test_same("the head", (training){.train = "lnf*,lmheadw", .freeze = "", .untied = 1});
    test_same("tiles", (training){.train = "h.2.*,h.3.fc*", .freeze = "", .tile_rows = 96});
    test_same("tiles, a frozen embedding",
              (training){.train = "", .freeze = "wte", .tile_rows = 96});
    test_same("tiles, untied",
              (training){.train = "lmheadw,h.3.*", .freeze = "", .tile_rows = 96, .untied = 1});
    test_same("bf16", (training){.train = "", .freeze = "wte,h.[01].*,*b", .type = ZERO_BF16});
    test_same("bf16, 8-bit state", (training){.train = "",
                                              .freeze = "wte,h.[01].*,*b",
                                              .type = ZERO_BF16,
                                              .state = ZERO_STATE_8BIT});
    test_same("bf16 state",
              (training){.train = "h.1.*,wpe", .freeze = "", .state = ZERO_STATE_BF16});
    return test_summary();
}

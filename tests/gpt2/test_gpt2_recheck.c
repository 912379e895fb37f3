/* test_gpt2_recheck.c - blocks that another rank computes again, adapters/gpt2/recheck.h. Without a
   flipped bit there is never a difference, and the weights are those of a run without checks. With
   one, at a random bit of what a random operation of the checked block has stored (flips.h), a
   difference is reported if and only if the compared arrays have changed: this test keeps digests
   of its own. Of three ranks, the one that computed wrongly is found.

   Build: with ops_cpu.c as C. */
#include "../shared/harness.h"
#include "flips.h"
#include "test_gpt2_ranks.h"

#include "../../adapters/gpt2/gpt2.h"
#include "../../adapters/gpt2/recheck.h"

#ifdef _OPENMP
#include <omp.h>
#endif

enum { V = 60, Vp = 128, L = 3, NH = 4, C = 32, T = 8, B = 2, MOST = 6 };

/* A training on dp x tp ranks, and what the ranks find. */
typedef struct training {
    int dp, tp, sequence, stage, recompute, micro_steps, steps;
    zero_type type;
    int checks;      /* 1: in every step */
    int flip_rank;   /* -1: no flip */
    long at;         /* the call that is changed */
    uint64_t choice; /* and the bit */
    flips seen[MOST];
    zero_result result[MOST];
    char sentence[MOST][512];
    int wrong[MOST];
    int64_t ended; /* steps made */
    uint64_t weights;
    uint64_t sent, formula;
} training;

typedef ranks_part part;

static zero_result open_part(part *p, const zero_comm *comm) {
    const training *t = p->t;
    const gpt2_config cfg = {T, V, Vp, L, NH, C, 0, GPT2_NO_EXPERTS, NULL, 0, 0, 0};
    const gpt2_run run = {B, T, t->recompute, t->type, 0, 0, 0, P_tmpdir, &p->how, 0, 0, 0};
    zero_config zc;
    memset(&zc, 0, sizeof zc);
    p->cfg = cfg;
    ZERO_TRY(ranks_part_open(p, comm, t->tp, t->sequence));
    const zero_comm of_data = zero_group_comm(p->dp);
    zc.stage = t->stage;
    zc.micro_steps = t->micro_steps;
    zc.type = t->type;
    zc.grads = ZERO_GRAD_F32;
    zc.log = test_quiet;
    zc.world = t->tp > 1 ? p->world : NULL;
    ZERO_TRY(zero_create(&p->z, &zc, &of_data));
    ZERO_TRY(gpt2_announce(p->z, &cfg, &p->how, 0));
    ZERO_TRY(zero_build(p->z));
    ZERO_TRY(gpt2_init_part(p->z, &cfg, &p->how, 7, &p->err));
    ZERO_TRY(gpt2_create(&p->m, p->z, &cfg, &run, &p->err));
    p->t->formula = gpt2_check_sent(&cfg, &run, t->dp * t->tp);
    return t->checks ? gpt2_check_open(p->m, p->dp, p->world, &p->err) : ZERO_OK;
}

static void watch(part *p, int step, flips *f) {
    const training *t = p->t;
    memset(f, 0, sizeof *f);
    f->unit = 1 + step % L; /* of the checked block; unit 0 has the embeddings */
    f->at = p->rank == t->flip_rank && step == t->steps - 1 ? t->at : -1;
    f->choice = t->choice;
    f->bytes = zero_type_bytes(t->type);
    f->grad_bytes = sizeof(float);
    f->open = -1;
    flips_here = f;
}

static zero_result take_step(part *p, int step) {
    const training *t = p->t;
    const zero_hyper hyper = {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f};
    int tokens[2 * B * T];
    zero_group_stats before, between, all;
    zero_group_query_stats(p->dp, &before);
    zero_group_query_stats(p->world, &all);
    watch(p, step, &p->t->seen[p->rank]);
    if (t->checks) gpt2_check_next(p->m, step + 1, step);
    for (int micro = 0; micro < t->micro_steps; micro++) {
        ranks_draw_tokens(tokens, B * T, V, p->rank / t->tp, step * t->micro_steps + micro);
        ZERO_TRY(zero_pass_begin(p->z, ZERO_TRAIN, micro, t->micro_steps));
        ZERO_TRY(gpt2_train_step(p->m, tokens, tokens + B * T,
                                 zero_loss_scale(p->z) / (float)t->micro_steps, NULL));
        ZERO_TRY(zero_pass_end(p->z));
        flips_here = NULL;
    }
    zero_group_query_stats(p->dp, &between);
    p->t->sent = between.sent_bytes - before.sent_bytes;
    zero_group_query_stats(p->world, &between);
    p->t->sent += between.sent_bytes - all.sent_bytes;
    ZERO_TRY(zero_reduce(p->z));
    return zero_step(p->z, &hyper);
}

static void train_body(test_rank *r) {
    training *t = (training *)r->arg, own = *t;
    const zero_comm comm = test_comm(r);
    part p;
    memset(&p, 0, sizeof p);
    p.rank = r->rank;
    p.t = &own;
    zero_result result = open_part(&p, &comm);
    const int opened = result == ZERO_OK;
    int step = 0;
    for (; step < t->steps && result == ZERO_OK; step++) result = take_step(&p, step);
    flips_here = NULL;
    t->result[r->rank] = result;
    t->wrong[r->rank] = p.m ? gpt2_wrong_rank(p.m) : -1;
    t->seen[r->rank] = own.seen[r->rank];
    (void)snprintf(t->sentence[r->rank], sizeof t->sentence[0], "%s",
                   p.m ? gpt2_last_error(p.m) : p.err.sentence);
    if (result == ZERO_OK) {
        uint64_t hash = 0;
        result = ranks_read_all(p.z, &p.cfg, &p.how, ZERO_MASTER, NULL, &hash);
        if (r->rank == 0) t->weights = hash;
        if (r->rank == 0) t->sent = own.sent;
        if (r->rank == 0) t->formula = own.formula;
    }
    if (r->rank == 0) t->ended = step;
    if (!opened || (result != ZERO_OK && result != ZERO_ERR_MISMATCH))
        ranks_part_report(&p, r, result);
    ranks_part_close(&p);
}

static int train(training *t) {
    return test_check(test_ranks(t->dp * t->tp, 0, train_body, t),
                      "dp %d tp %d stage %d type %d recompute %d: %s", t->dp, t->tp, t->stage,
                      (int)t->type, t->recompute, test_first);
}

static training layout(int dp, int tp, int stage, zero_type type, int recompute) {
    training t;
    memset(&t, 0, sizeof t);
    t.dp = dp;
    t.tp = tp;
    t.stage = stage;
    t.type = type;
    t.recompute = recompute;
    t.micro_steps = 1;
    t.steps = 1;
    t.checks = 1;
    t.flip_rank = -1;
    return t;
}

/* ---- without a flip ------------------------------------------------------------------------ */

static void test_equal(training t) {
    training without = t;
    without.checks = 0;
    t.steps = without.steps = 2 * L;
    if (!train(&t) || !train(&without)) return;
    for (int r = 0; r < t.dp * t.tp; r++)
        test_check(t.result[r] == ZERO_OK, "dp %d tp %d stage %d type %d recompute %d: %s", t.dp,
                   t.tp, t.stage, (int)t.type, t.recompute, t.sentence[r]);
    test_check(t.weights == without.weights,
               "dp %d tp %d stage %d type %d recompute %d: weights %016llx, without checks %016llx",
               t.dp, t.tp, t.stage, (int)t.type, t.recompute, (unsigned long long)t.weights,
               (unsigned long long)without.weights);
    test_check(t.sent == t.formula, "dp %d tp %d: a check sends %llu bytes, planned %llu", t.dp,
               t.tp, (unsigned long long)t.sent, (unsigned long long)t.formula);
}

/* ---- flips --------------------------------------------------------------------------------- */

typedef struct counts {
    int flips, seen, found, named;
} counts;

/* Returns 1 if the digests of any rank's compared arrays have changed. After a difference, ranks
   compute a third time, so one list may be the longer one. */
static int has_changed(const training *t, const training *calm) {
    for (int r = 0; r < t->dp * t->tp; r++)
        for (int i = 0; i < calm->seen[r].digests; i++)
            if (t->seen[r].digest[i] != calm->seen[r].digest[i]) return 1;
    return 0;
}

static void flip_once(training t, const training *calm, test_random *random, counts *n) {
    const int ranks = t.dp * t.tp;
    t.flip_rank = test_below(random, ranks);
    t.at = test_below(random, (int)calm->seen[t.flip_rank].calls);
    t.choice = test_next(random);
    if (!train(&t)) return;
    const int changed = has_changed(&t, calm), found = t.result[0] == ZERO_ERR_MISMATCH;
    n->flips++;
    n->seen += changed;
    n->found += found;
    test_check(t.seen[t.flip_rank].fired, "call %ld of rank %d changed nothing", t.at, t.flip_rank);
    test_check(found == changed,
               "dp %d tp %d stage %d type %d recompute %d, call %ld of rank %d: %s", t.dp, t.tp,
               t.stage, (int)t.type, t.recompute, t.at, t.flip_rank,
               found ? t.sentence[0] : "the compared arrays have changed, and nothing is reported");
    for (int r = 1; r < ranks; r++)
        test_check(t.result[r] == t.result[0] && t.wrong[r] == t.wrong[0]
                       && strcmp(t.sentence[r], t.sentence[0]) == 0,
                   "rank %d: '%s', rank 0: '%s'", r, t.sentence[r], t.sentence[0]);
    if (!found) return;
    const int expected = t.dp < 3 ? -1 : t.flip_rank;
    const int same = t.dp < 3 ? t.wrong[0] == -1 : t.wrong[0] / t.tp == expected / t.tp;
    n->named += t.dp > 2 && same;
    test_check(same, "rank %d flipped a bit, found %d: %s", expected, t.wrong[0], t.sentence[0]);
    if (t.tp == 1 && t.dp < 3)
        test_check(strstr(t.sentence[0], "step 1: rank") && strstr(t.sentence[0], "cannot decide"),
                   "sentence: %s", t.sentence[0]);
}

static void test_flips(training t, int times, test_random *random, counts *n) {
    training calm = t;
    if (!train(&calm)) return;
    for (int i = 0; i < times; i++) flip_once(t, &calm, random, n);
}

/* ---- the judge ----------------------------------------------------------------------------- */

static void test_judge(void) {
    enum { W = 6, N = 3, STRIDE = 2 };
    char sentence[512];
    recheck_row rows[W];
    for (int wrong = 0; wrong < W; wrong++)
        for (int k = 0; k < RECHECK_PARTS; k++) {
            memset(rows, 0, sizeof rows);
            rows[wrong].hash[RECHECK_OWN][k] = 1; /* it computes one part wrongly, always */
            rows[wrong].hash[RECHECK_AGAIN][k] = 2;
            rows[wrong].hash[RECHECK_THIRD][k] = 3;
            test_check(recheck_judge(rows, W, N, 1, 5, 3, sentence, sizeof sentence) == wrong,
                       "rank %d: %s", wrong, sentence);
            test_check(recheck_judge(rows, W, N, 0, 5, 3, sentence, sizeof sentence) == -1,
                       "two ranks: %s", sentence);
        }
    memset(rows, 0, sizeof rows);
    test_check(recheck_judge(rows, W, N, 1, 5, 3, sentence, sizeof sentence) == -1 && !sentence[0],
               "no difference: %s", sentence);
    rows[1].hash[RECHECK_OWN][RECHECK_OUTPUT] = rows[1].hash[RECHECK_OWN][RECHECK_WEIGHTS] = 1;
    rows[1 + STRIDE].hash[RECHECK_AGAIN][RECHECK_GRADIENT] = 1;
    rows[1 + 2 * STRIDE].hash[RECHECK_THIRD][RECHECK_OUTPUT] = 7;
    test_check(recheck_judge(rows, W, N, 1, 5, 3, sentence, sizeof sentence) == -1
                   && strstr(sentence, "step 5: rank 3 computed block 3 of rank 1 again, and the "
                                       "bits of its output, the gradient of its input and the "
                                       "gradients of its weights differ. Rank 5 computed a third"),
               "three results: %s", sentence);
    rows[4].setting = 1;
    test_check(recheck_judge(rows, W, N, 1, 5, 3, sentence, sizeof sentence) == -1
                   && strstr(sentence, "ranks 0 and 4 compute with different"),
               "settings: %s", sentence);
}

int main(int argc, char **argv) {
    const int times = argc > 1 ? atoi(argv[1]) : 12;
    test_random random = {argc > 2 ? strtoull(argv[2], NULL, 10) : 1};
    counts n = {0, 0, 0, 0};
#ifdef _OPENMP
    omp_set_num_threads(1);
#endif
    test_judge();
    for (int stage = 0; stage < 4; stage++)
        for (int type = 0; type < 3; type++)
            test_equal(layout(2 + stage % 2, 1, stage, (zero_type)type, (stage + type) % 5));
    training several = layout(2, 2, 1, ZERO_F32, 2);
    several.sequence = 1;
    several.micro_steps = 2;
    test_equal(several);
    for (int i = 0; i < 12; i++)
        test_flips(layout(2 + i % 2, 1, i % 4, i % 3 ? ZERO_F32 : ZERO_BF16, i % 5), times, &random,
                   &n);
    test_flips(layout(3, 2, 3, ZERO_F32, 1), times / 2, &random, &n);
    printf("%d flipped bits: %d changed what is compared (%.1f%%), %d of them were found; of three "
           "ranks, the one that flipped was named %d times\n",
           n.flips, n.seen, 100.0 * n.seen / (n.flips ? n.flips : 1), n.found, n.named);
    return test_summary();
}

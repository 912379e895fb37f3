/* test_split.c [all] - split master weights: a bf16 weight and the 16 lower bits of its f32 master.

     patterns   every f32 comes back bit by bit from its two halves, and a NaN as the quiet one of
                its sign. Another weight than to nearest even results only where the lower half is
                0x8000 above an even upper one. `all`: of all 2^32 patterns, otherwise of all upper
                halves with a sample of lower ones
     rounding   a run with split weights has the bits of a run with f32 masters that rounds half
                up, at stages 0 to 3, after several steps, for each update rule. The plugin is
                compiled with the row of own_rounding.h for that
     ties       after one step from equal states, weights differ from those of f32 masters only
                in such ties */
#define ZERO_OWN_EXTRAS "tests/plugin/own_rounding.h"
#include "../../zero_plugin.cu"

#include "../shared/host.h"

/* ---- patterns ---- */

enum { SPLIT_BLOCK = 1024 };

/* Checks the f32 patterns [first, first + SPLIT_BLOCK * every) of which `every` are apart. Returns
   how many fail. */
static long split_block(uint32_t first, uint32_t every) {
    float x[SPLIT_BLOCK], back[SPLIT_BLOCK];
    uint16_t upper[SPLIT_BLOCK], lower[SPLIT_BLOCK], even[SPLIT_BLOCK];
    long failed = 0;
    for (uint32_t i = 0; i < SPLIT_BLOCK; i++) x[i] = zp_type_bits_to_float(first + i * every);
    zp_type_split_all(upper, lower, x, SPLIT_BLOCK);
    zp_type_join_all(back, upper, lower, SPLIT_BLOCK);
    zp_type_narrow(even, ZERO_BF16, x, SPLIT_BLOCK);
    for (uint32_t i = 0; i < SPLIT_BLOCK; i++) {
        const uint32_t bits = first + i * every, size = bits & 0x7FFFFFFFu;
        const int nan = size > 0x7F800000u, tie = (bits & 0xFFFFu) == 0x8000u && !(bits >> 16 & 1u);
        const uint32_t expected = nan ? (bits & 0x80000000u) | 0x7FC00000u : bits;
        failed += zp_type_bits(back[i]) != expected || (nan && lower[i]);
        failed += !nan && (upper[i] != even[i]) != tie;
        failed += upper[i] != zp_type_upper(x[i]) || lower[i] != zp_type_lower(x[i]);
    }
    return failed;
}

static void split_patterns(int all) {
    const uint32_t every = all ? 1 : 61;
    long failed = 0, blocks = 0;
    for (uint64_t at = 0; at < (uint64_t)1 << 32; at += (uint64_t)SPLIT_BLOCK * every, blocks++)
        failed += split_block((uint32_t)at, every);
    test_check(!failed, "%ld of %ld patterns do not come back, or round otherwise", failed,
               blocks * SPLIT_BLOCK);
    printf("%ld patterns\n", blocks * SPLIT_BLOCK);
    failed = 0; /* every upper half, with the lower ones at which something changes */
    static const uint32_t low[] = {0, 1, 0x7FFE, 0x7FFF, 0x8000, 0x8001, 0xFFFE, 0xFFFF};
    for (uint64_t at = 0; at < 8; at++)
        for (uint32_t up = 0; up < 64; up++)
            failed += split_block(up * SPLIT_BLOCK << 16 | low[at], 65536);
    test_check(!failed, "%ld patterns at the ends of lower halves fail", failed);
}

/* Named patterns, as the header describes them. */
static void split_examples(void) {
    static const struct {
        uint32_t bits;
        uint16_t upper, lower;
    } of[] = {{0x80000000u, 0x8000, 0},      {0x7F800000u, 0x7F80, 0},
              {0x3F808000u, 0x3F81, 0x8000}, {0x3F807FFFu, 0x3F80, 0x7FFF},
              {0x7F7FFFFFu, 0x7F80, 0xFFFF}, {0xFF7F8000u, 0xFF80, 0x8000},
              {0x00000001u, 0, 1},           {0x8000FFFFu, 0x8001, 0xFFFF},
              {0x7F800001u, 0x7FC0, 0},      {0xFFFFFFFFu, 0xFFC0, 0}};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        const float x = zp_type_bits_to_float(of[i].bits);
        test_check(zp_type_upper(x) == of[i].upper && zp_type_lower(x) == of[i].lower,
                   "%08x becomes %04x and %04x", (unsigned)of[i].bits, zp_type_upper(x),
                   zp_type_lower(x));
    }
}

/* ---- runs ---- */

enum { SPLIT_RANKS = 3, SPLIT_STEPS = 6, SPLIT_NUMEL = 4096 };

typedef struct split_run { /* rank 0's results */
    host_spec spec;
    float *master, *weight; /* [numel] of all tensors, owned by the run */
    size_t numel;
    uint64_t hash;
    int ties; /* the first values are ties */
} split_run;

static const zero_tensor_desc split_tensors[] = {
    {"emb", 700, .uses = 2},
    {"mat", 330, .layers = 3, .unit = 1},
    {"norm", 9, .layers = 3, .unit = 1, .flags = ZERO_KEEP | ZERO_NO_DECAY},
    {"out", 5, .unit = 4, .flags = ZERO_ONE_D}};

/* Gradients of the tensor `mat` depend on the weights that backward sees. */
static void split_use_weights(host_run *h, int t, size_t first, void *g) {
    const size_t n = h->spec->desc[t].numel;
    const char *w = host_tensor(h, t, (int)(first / n), 0);
    for (size_t i = 0; i < n && t == 1; i++)
        host_put(g, ZERO_BF16, i, host_get(g, ZERO_BF16, i) + host_get(w, ZERO_BF16, i));
}

static void split_spec(host_spec *s, int stage, zero_optimizer rule, int micro_steps) {
    host_small(s, 23, SPLIT_RANKS, stage, split_tensors, 4);
    s->units = 5;
    s->steps = SPLIT_STEPS;
    s->micro_steps = micro_steps;
    s->cfg.type = ZERO_BF16;
    s->cfg.grads = ZERO_GRAD_AS_TYPE;
    s->cfg.accumulation = ZERO_ACCUMULATE_SHARDED;
    s->cfg.optimizer = rule;
    s->rows[1] = 22, s->cols[1] = 15;
    s->poison = split_use_weights;
}

/* Writes values of which every second one is a tie above an even upper half. */
static int split_write_ties(host_run *h) {
    for (int t = 0; t < h->spec->ntensors; t++) {
        const size_t n = host_numel(h->spec, t);
        float x[SPLIT_NUMEL];
        for (uint32_t i = 0; i < n; i++)
            x[i] = zp_type_bits_to_float(0x3F000000u + (i << 17) % 0x800000u + (i & 1u) * 0x8000u);
        HOST_TRY(h, zero_write_tensor(h->z, h->spec->desc[t].name, ZERO_MASTER, 0, n, x));
    }
    return 1;
}

static int split_read(host_run *h, zero_kind kind, float *values) {
    for (int t = 0; t < h->spec->ntensors; t++) {
        const size_t n = host_numel(h->spec, t);
        HOST_TRY(h, zero_read_tensor(h->z, h->spec->desc[t].name, kind, 0, n, values));
        values += n;
    }
    return 1;
}

static int split_train(host_run *h, split_run *run) {
    float *all = (float *)calloc(run->numel, sizeof *all); /* every rank takes part in a read */
    int ok = !run->ties || split_write_ties(h);
    for (h->step = 0; h->step < h->spec->steps && ok; h->step++) {
        for (h->micro = 0; h->micro < h->spec->micro_steps && ok; h->micro++)
            ok = host_train_pass(h);
        ok = ok && !zero_reduce(h->z) && !zero_step(h->z, &h->spec->adamw);
    }
    ok = ok && split_read(h, ZERO_MASTER, all);
    if (ok && !h->rank->rank) memcpy(run->master, all, run->numel * sizeof *all);
    ok = ok && split_read(h, ZERO_PARAMETER, all);
    if (ok && !h->rank->rank) memcpy(run->weight, all, run->numel * sizeof *all);
    const uint64_t hash = ok ? host_hash(h) : 0;
    if (!h->rank->rank) run->hash = hash;
    free(all);
    return ok;
}

static void split_body(test_rank *r) {
    split_run *run = (split_run *)r->arg;
    host_run h;
    if (host_open(&h, &run->spec, r) && !split_train(&h, run) && !r->failed)
        test_rank_fail(r, "%s", zero_last_error(h.z));
    zero_destroy(h.z);
}

/* up: f32 masters, and weights that round half up. */
static int split_go(split_run *run, const host_spec *spec, zero_master master, int up, int ties) {
    memset(run, 0, sizeof *run);
    run->spec = *spec;
    run->spec.cfg.master = master;
    run->ties = ties;
    own_rounding_up = up;
    for (int t = 0; t < spec->ntensors; t++) run->numel += host_numel(spec, t);
    run->master = (float *)calloc(2 * run->numel, sizeof(float));
    run->weight = run->master + run->numel;
    const int ok = test_ranks(spec->nranks, 0, split_body, run);
    own_rounding_up = 0;
    return ok;
}

static int split_same(const split_run *a, const split_run *b) {
    return a->hash == b->hash && !memcmp(a->master, b->master, 2 * a->numel * sizeof *a->master);
}

/* At every stage, the split run has the bits of the f32 run at stage 0 that rounds half up. */
static void split_rule(zero_optimizer rule, int micro_steps) {
    host_spec spec;
    split_run up, even, split;
    split_spec(&spec, 0, rule, micro_steps);
    int ok = split_go(&up, &spec, ZERO_MASTER_F32, 1, 1);
    ok = split_go(&even, &spec, ZERO_MASTER_F32, 0, 1) && ok;
    test_check(ok && !split_same(&up, &even), "rule %d: rounding makes no difference: %s",
               (int)rule, test_first);
    for (int stage = 0; stage < 4; stage++) {
        split_spec(&spec, stage, rule, micro_steps);
        ok = split_go(&split, &spec, ZERO_MASTER_SPLIT, 0, 1);
        test_check(ok && split_same(&up, &split),
                   "rule %d, stage %d, %d micro-steps: split weights are not those of f32 masters "
                   "that round half up: %s",
                   (int)rule, stage, micro_steps, test_first);
        free(split.master);
    }
    free(up.master);
    free(even.master);
}

/* One step from equal states. lr 0: every second weight is a tie and stays one. */
static void split_ties(int stage, float lr) {
    host_spec spec;
    split_run even, split;
    long ties = 0, others = 0, masters = 0, written = 0;
    split_spec(&spec, stage, ZERO_ADAMW, 1);
    spec.steps = 1;
    spec.poison = NULL; /* gradients are equal in both runs */
    spec.adamw.lr = lr;
    const int ok = split_go(&even, &spec, ZERO_MASTER_F32, 0, 1)
                   & split_go(&split, &spec, ZERO_MASTER_SPLIT, 0, 1);
    for (size_t i = 0; i < even.numel; i++) {
        const uint32_t bits = zp_type_bits(split.master[i]);
        const int tie = (bits & 0xFFFFu) == 0x8000u && !(bits >> 16 & 1u);
        masters += zp_type_bits(even.master[i]) != bits;
        ties += tie;
        others += (zp_type_bits(even.weight[i]) != zp_type_bits(split.weight[i])) != tie;
    }
    for (int t = 0; t < spec.ntensors; t++) written += (long)host_numel(&spec, t) / 2;
    test_check(ok && !others && !masters && (lr > 0 || ties == written),
               "stage %d, lr %g: %ld masters differ, %ld weights differ without a tie or with one "
               "do not, %ld ties: %s",
               stage, (double)lr, masters, others, ties, test_first);
    free(even.master);
    free(split.master);
}

int main(int argc, char **argv) {
    (void)alarm(600);
    split_examples();
    split_patterns(argc > 1 && !strcmp(argv[1], "all"));
    for (int rule = 0; rule < ZERO_OPTIMIZER_OWN; rule++)
        for (int micro_steps = 1; micro_steps <= 2; micro_steps++)
            split_rule((zero_optimizer)rule, micro_steps);
    for (int stage = 0; stage < 4; stage++) {
        split_ties(stage, 0);
        split_ties(stage, 0.01f);
    }
    return test_summary();
}

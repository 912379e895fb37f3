/* test_states.c - optimizer state in fewer bytes than f32.

     draws      bf16 state is rounded to one of its two neighbours, without bias; encoding what was
                decoded changes nothing; random numbers depend on step, seed, tensor, element and
                array, and not on the place
     codes      values decoded from 8 bits are encoded to the same codes; others become one of two
                neighbours, without bias; a square above 0 never becomes 0
     averages   a slow average in bf16 follows f32's, where rounding to nearest sticks
     steps      one step from equal states gives the weights of f32 states bit by bit, and each
                moment is a neighbour of f32's
     stages     runs of each update rule have the same bits at stages 0 to 3, with one micro-step
                and with two, and other ones than with f32 states
     writes     a write by name rounds to nearest, with split master weights as well
     pieces     state in 8 bits that is copied out and put in pieces, on other ranks, is the same
   test_bits.c, test_offload.c and test_checkpoint.c have settings, tiers and checkpoints. */
#include "../../zero_plugin.cu"

#include "../shared/host.h"

/* ---- rounding ---- */

enum { STATES_N = 4096 };

typedef struct states_array {
    zp_update update;
    uint16_t stored[2][STATES_N];
} states_array;

static zp_update *states_open(states_array *a, uint32_t tensor, uint64_t seed, uint64_t element) {
    memset(a, 0, sizeof *a);
    a->update.state[0] = a->stored[0];
    a->update.state[1] = a->stored[1];
    a->update.state_type = ZERO_BF16;
    a->update.key[0] = tensor;
    a->update.key[1] = (uint32_t)seed;
    a->update.element = element;
    return &a->update;
}

/* Returns how many of the values are stored as other bits in a than in b. */
static int states_differ(const uint16_t *a, const uint16_t *b) {
    int n = 0;
    for (int i = 0; i < STATES_N; i++) n += a[i] != b[i];
    return n;
}

/* Stores x in both arrays. */
static void states_write(const zp_update *u, const float *x) {
    for (size_t at = 0; at < STATES_N; at += ZP_UPDATE_BLOCK)
        zp_optimizer_write_states(u, at, ZP_UPDATE_BLOCK, x + at, x + at);
}

static void states_draws(void) {
    static states_array a, b, c;
    static float x[STATES_N], back[STATES_N];
    static const uint32_t low[] = {0, 1, 0x4000, 0x8000, 0xC000, 0xFFFF};
    const uint64_t far = ((uint64_t)1 << 32) - STATES_N / 2; /* indices cross 2^32 */
    for (int k = 0; k < 6; k++) {
        int up = 0, wrong = 0;
        for (uint32_t i = 0; i < STATES_N; i++)
            x[i] = zp_type_bits_to_float((0x3C80u + i % 512) << 16 | low[k]);
        const zp_update *u = states_open(&a, 7, 3, far);
        states_write(u, x);
        for (uint32_t i = 0; i < STATES_N; i++) {
            const int steps = a.stored[0][i] - (int)(zp_type_bits(x[i]) >> 16);
            wrong += steps != 0 && (steps != 1 || !low[k]);
            up += steps;
        }
        const double expected = STATES_N * (double)low[k] / 65536, spread = 5 * sqrt(STATES_N) / 2;
        test_check(!wrong && fabs(up - expected) <= spread,
                   "lower half %x: %d of %d round up, %d to no neighbour", (unsigned)low[k], up,
                   STATES_N, wrong);
        if (low[k] != 0x8000) continue;
        const int arrays = states_differ(a.stored[0], a.stored[1]);
        states_write(states_open(&b, 8, 3, far), x);
        const int tensors = states_differ(a.stored[0], b.stored[0]);
        states_write(states_open(&b, 7, 4, far), x);
        const int steps = states_differ(a.stored[0], b.stored[0]);
        states_write(states_open(&b, 7, 3, far + 1), x);
        const int elements = states_differ(a.stored[0], b.stored[0]);
        test_check(arrays > 1000 && tensors > 1000 && steps > 1000 && elements > 1000,
                   "equal random numbers: %d arrays, %d tensors, %d steps, %d elements differ",
                   arrays, tensors, steps, elements);
        u = states_open(&c, 7, 3, far); /* in another order, in other blocks */
        for (size_t at = STATES_N, n; at; at -= n) {
            n = zp_min(at, 37);
            zp_optimizer_write_states(u, at - n, n, x + at - n, NULL);
        }
        test_check(!states_differ(a.stored[0], c.stored[0]), "rounding depends on the block");
        memcpy(b.stored[0], a.stored[0], sizeof b.stored[0]);
        zp_type_widen(back, a.stored[0], ZERO_BF16, STATES_N);
        u = states_open(&a, 7, 5, far);
        states_write(u, back);
        test_check(!states_differ(a.stored[0], b.stored[0]), "encoding again changes values");
    }
}

/* Blocks of all sizes, with values of all magnitudes below the scale. */
static void states_codes(void) {
    static states_array a;
    static zp_codes blocks[STATES_N / ZP_CODE_BLOCK], again[STATES_N / ZP_CODE_BLOCK];
    static float x[STATES_N], back[STATES_N];
    const float none[ZP_CODE_BLOCK] = {0};
    const uint32_t key[2] = {3, 4};
    test_random r = {31};
    for (int squares = 0; squares < 2; squares++) {
        int changed = 0, far = 0, lost = 0;
        double up = 0, expected = 0;
        const zp_update *u = states_open(&a, 3, 4, 0);
        for (uint32_t i = 0; i < STATES_N; i++) {
            const double size = ldexp(1 + (double)test_below(&r, 1 << 20) / (1 << 20),
                                      -(int)test_below(&r, 24) - (int)(i / ZP_CODE_BLOCK) * 4);
            x[i] = (float)(squares || test_below(&r, 2) ? size : -size);
        }
        for (size_t b = 0; b < STATES_N / ZP_CODE_BLOCK; b++) {
            const size_t at = b * ZP_CODE_BLOCK, n = ZP_CODE_BLOCK - b % 5;
            float shift[ZP_CODE_BLOCK];
            for (size_t j = 0; j < ZP_CODE_BLOCK; j++) {
                shift[j] = zp_codes_shift(zp_optimizer_random(u, key, at + j));
                if (j >= n) x[at + j] = 0;
            }
            zp_codes_write(&blocks[b], x + at, n, squares, shift);
            zp_codes_read(back + at, &blocks[b], squares, 0, ZP_CODE_BLOCK);
            zp_codes_write(&again[b], back + at, n, squares, none);
            for (size_t j = 0; j < n; j++) {
                const uint8_t nearest =
                    zp_codes_encode(x[at + j], zp_codes_by(blocks[b].scale, squares), squares, 0);
                const int is = squares ? blocks[b].code[j] : (int8_t)blocks[b].code[j];
                const double by = (double)blocks[b].scale, v = (double)x[at + j];
                const double code = squares ? 255 * sqrt(v / by) : 254 * v / (by + fabs(v));
                far += fabs(is - code) > 1.001 || abs((int8_t)(nearest - is)) > 1;
                lost += squares && back[at + j] == 0;
                if (!squares || code > 1) up += is - floor(code), expected += code - floor(code);
            }
        }
        changed = memcmp(blocks, again, sizeof blocks) != 0;
        test_check(!changed && !far && !lost && fabs(up - expected) < 5 * sqrt(STATES_N) / 2,
                   "squares %d: codes change %d; %d are no neighbours, %d squares are lost; %g are "
                   "rounded up of %g",
                   squares, changed, far, lost, up, expected);
    }
    long wraps = 0; /* the largest code stays what it is, with every random number */
    for (uint32_t i = 0; i < 1 << 15; i++)
        for (int k = 0; k < 64; k++) {
            const float scale = ldexpf(1 + (float)test_below(&r, 1 << 23) * 0x1p-23f, -k);
            const float shift = zp_codes_shift(i);
            wraps += zp_codes_encode(scale, zp_codes_by(scale, 1), 1, shift) != 255;
            wraps += zp_codes_encode(scale, zp_codes_by(scale, 0), 0, shift) != 127;
        }
    test_check(!wraps, "the largest code changes %ld times", wraps);
    memset(x, 0, sizeof x);
    zp_codes_write(&blocks[0], x, ZP_CODE_BLOCK, 0, none);
    zp_codes_read(back, &blocks[0], 0, 0, ZP_CODE_BLOCK);
    test_check(!memcmp(x, back, sizeof none), "a block of zeros is %g", (double)back[0]);
    x[5] = NAN;
    zp_codes_write(&blocks[0], x, ZP_CODE_BLOCK, 0, none);
    zp_codes_read(back, &blocks[0], 0, 0, ZP_CODE_BLOCK);
    test_check(zp_type_is_nan((double)back[5]), "NaN becomes %g", (double)back[5]);
}

/* Gradients of size 1, then of 1/8: v = 0.999 v + 0.001 g^2 changes by less than half a unit of the
   last of 8 bits. */
static void states_averages(void) {
    enum { STEPS = 4000 };
    static uint16_t state[2][STATES_N];
    static float p[STATES_N], g[STATES_N];
    const zp_span span = {0, STATES_N, 0, 1, 1, 5, STATES_N, 0, 1, 0};
    zp_control control;
    double v = 0, mean = 0;
    uint16_t nearest = 0;
    zp_device d;
    zp_stream s;
    memset(&control, 0, sizeof control);
    (void)zp_device_open(&d);
    (void)zp_device_take_stream(&s, &d, NULL, 1);
    zp_update u;
    memset(&u, 0, sizeof u);
    u.p = p, u.g = g, u.state[0] = state[0], u.state[1] = state[1], u.state_type = ZERO_BF16;
    u.control = &control, u.spans = &span, u.nspans = 1, u.end = STATES_N;
    u.lr = 1e-3f, u.beta1 = 0.9f, u.beta2 = 0.999f, u.eps = 1e-8f;
    control.factor = control.bias_ratio = control.root_correction = 1;
    for (int step = 0; step < STEPS; step++) {
        const float now = step < STEPS / 2 ? 1.0f : 0.125f;
        for (int i = 0; i < STATES_N; i++) g[i] = now;
        control.steps = step + 1;
        (void)zp_rule_update_adamw(&s, &u, STATES_N / ZP_WIDE);
        v = (double)u.beta2 * v + (1 - (double)u.beta2) * (double)(now * now);
        nearest = zp_type_to_bf16((float)((double)u.beta2 * (double)zp_type_from_bf16(nearest)
                                          + (1 - (double)u.beta2) * (double)(now * now)));
    }
    for (int i = 0; i < STATES_N; i++) mean += (double)zp_type_from_bf16(state[1][i]) / STATES_N;
    test_check(fabs(mean / v - 1) < 0.01, "v is %g, the mean of those in bf16 %g", v, mean);
    const double stuck = fabs((double)zp_type_from_bf16(nearest) / v - 1);
    test_check(stuck > 0.1, "rounding to nearest would do: off by %g", stuck);
    zp_device_close(&d);
}

/* ---- runs ---- */

enum { STATES_RANKS = 3, STATES_STEPS = 5 };

typedef struct states_run { /* rank 0's results */
    host_spec spec;
    float *weight, *state[2]; /* [numel] of all tensors, owned by the run */
    size_t numel;
    uint64_t hash;
} states_run;

static const zero_tensor_desc states_tensors[] = {
    {"emb", 700, .uses = 2},
    {"mat", 330, .layers = 3, .unit = 1},
    {"norm", 9, .layers = 3, .unit = 1, .flags = ZERO_KEEP | ZERO_NO_DECAY},
    {"out", 5, .unit = 4, .flags = ZERO_ONE_D}};

static void states_spec(host_spec *s, int stage, zero_optimizer rule, zero_type type) {
    host_small(s, 29, STATES_RANKS, stage, states_tensors, 4);
    s->units = 5;
    s->steps = STATES_STEPS;
    s->cfg.type = type;
    s->cfg.grads = ZERO_GRAD_AS_TYPE;
    s->cfg.accumulation = ZERO_ACCUMULATE_SHARDED;
    s->cfg.optimizer = rule;
    s->cfg.seed = 11;
    s->rows[1] = 22, s->cols[1] = 15;
}

static int states_read(host_run *h, states_run *run, zero_kind kind, float *values) {
    float *all = (float *)calloc(run->numel, sizeof *all); /* every rank takes part in a read */
    size_t at = 0;
    int ok = 1;
    for (int t = 0; t < h->spec->ntensors && ok; t++) {
        const size_t n = host_numel(h->spec, t);
        if (kind != ZERO_MOMENT_2 || host_two(h->spec, t))
            ok = !zero_read_tensor(h->z, h->spec->desc[t].name, kind, 0, n, all + at);
        at += n;
    }
    if (!h->rank->rank) memcpy(values, all, run->numel * sizeof *all);
    free(all);
    if (!ok) test_rank_fail(h->rank, "%s", zero_last_error(h->z));
    return ok;
}

static void states_body(test_rank *r) {
    states_run *run = (states_run *)r->arg;
    host_run h;
    int ok = host_open(&h, &run->spec, r);
    while (ok && h.step < run->spec.steps) ok = host_train_step(&h);
    ok = ok && states_read(&h, run, ZERO_MASTER, run->weight)
         && states_read(&h, run, ZERO_MOMENT_1, run->state[0])
         && states_read(&h, run, ZERO_MOMENT_2, run->state[1]);
    const uint64_t hash = ok ? host_hash(&h) : 0;
    if (!r->rank) run->hash = hash;
    zero_destroy(h.z);
}

static int states_go(states_run *run, const host_spec *spec, zero_state_type type) {
    memset(run, 0, sizeof *run);
    run->spec = *spec;
    run->spec.cfg.state_type = type;
    for (int t = 0; t < spec->ntensors; t++) run->numel += host_numel(spec, t);
    run->weight = (float *)calloc(3 * run->numel, sizeof(float));
    run->state[0] = run->weight + run->numel;
    run->state[1] = run->state[0] + run->numel;
    return test_ranks(spec->nranks, 0, states_body, run);
}

/* After one step, weights are those of f32 states, and a moment is one of two neighbours. Momentum
   and averages begin with gradients, which are the same. LAMB and Muon read stored moments. */
static void states_step(zero_optimizer rule, zero_state_type type) {
    host_spec spec;
    states_run wide, narrow;
    long others = 0, far = 0, up = 0, inexact = 0;
    states_spec(&spec, 0, rule, ZERO_F32);
    spec.steps = 1;
    const int ok = states_go(&wide, &spec, ZERO_STATE_F32) & states_go(&narrow, &spec, type);
    for (size_t i = 0; i < wide.numel; i++)
        others += zp_type_bits(wide.weight[i]) != zp_type_bits(narrow.weight[i]);
    for (size_t i = 0; i < 2 * wide.numel && type == ZERO_STATE_BF16; i++) {
        const uint32_t is = zp_type_bits(narrow.state[0][i]), was = zp_type_bits(wide.state[0][i]);
        const uint32_t steps = (is >> 16) - (was >> 16);
        far += (is & 0xFFFFu) || steps > 1 || (steps && !(was & 0xFFFFu));
        up += steps == 1;
        inexact += (was & 0xFFFFu) != 0;
    }
    const int reads_stored = rule == ZERO_LAMB;
    test_check(ok && !far && (reads_stored ? others > 0 : others == 0) && up >= inexact / 3
                   && up <= inexact * 2 / 3,
               "rule %d, type %d: %ld weights differ, %ld moments are no neighbours, %ld of %ld "
               "are rounded "
               "up: %s",
               (int)rule, (int)type, others, far, up, inexact, test_first);
    free(wide.weight);
    free(narrow.weight);
}

static void states_stages(zero_optimizer rule, int micro_steps, int kind, zero_state_type type) {
    static const zero_type types[] = {ZERO_F32, ZERO_BF16, ZERO_BF16, ZERO_F16};
    static const zero_master masters[] = {ZERO_MASTER_AUTO, ZERO_MASTER_SPLIT, ZERO_MASTER_NONE,
                                          ZERO_MASTER_AUTO};
    uint64_t first = 0;
    for (int stage = 0; stage < 4; stage++) {
        host_spec spec;
        states_run run, wide;
        states_spec(&spec, stage, rule, types[kind]);
        spec.micro_steps = micro_steps;
        spec.cfg.master = masters[kind];
        int ok = states_go(&run, &spec, type);
        if (!stage) first = run.hash;
        test_check(ok && run.hash == first,
                   "rule %d, type %d, %d micro-steps, kind %d, stage %d: %s", (int)rule, (int)type,
                   micro_steps, kind, stage, test_first);
        free(run.weight);
        if (stage) continue;
        ok = states_go(&wide, &spec, ZERO_STATE_F32);
        test_check(ok && wide.hash != first, "rule %d: the type of state makes no difference: %s",
                   (int)rule, test_first);
        free(wide.weight);
        spec.cfg.seed++;
        ok = states_go(&wide, &spec, type);
        test_check(ok && wide.hash != first, "rule %d: the seed makes no difference: %s", (int)rule,
                   test_first);
        free(wide.weight);
    }
}

/* ---- writes ---- */

/* Writes ties, and values near them, to both moments. */
static void states_write_body(test_rank *r) {
    enum { N = 330 };
    host_run h;
    float x[N], back[N];
    const host_spec *spec = (const host_spec *)r->arg;
    int ok = host_open(&h, spec, r);
    for (uint32_t i = 0; i < N; i++)
        x[i] = zp_type_bits_to_float((0x3E00u + i) << 16 | (0x7FFFu + i % 3));
    for (int kind = ZERO_MOMENT_1; kind <= ZERO_MOMENT_2 && ok; kind++) {
        ok = !zero_write_tensor(h.z, "mat", (zero_kind)kind, N, N, x)
             && !zero_read_tensor(h.z, "mat", (zero_kind)kind, N, N, back);
        for (int i = 0; i < N && ok; i++)
            if (back[i] != host_round(ZERO_BF16, x[i]))
                test_rank_fail(r, "moment %d, element %d is %a, and %a was written", kind, i,
                               (double)back[i], (double)x[i]);
    }
    if (!ok && !r->failed) test_rank_fail(r, "%s", zero_last_error(h.z));
    zero_destroy(h.z);
}

static void states_writes(int stage, zero_master master) {
    host_spec spec;
    states_spec(&spec, stage, ZERO_ADAMW, ZERO_BF16);
    spec.cfg.state_type = ZERO_STATE_BF16;
    spec.cfg.master = master;
    test_check(test_ranks(STATES_RANKS, 0, states_write_body, &spec), "stage %d, master %d: %s",
               stage, (int)master, test_first);
}

/* ---- pieces ---- */

enum { STATES_PIECE = 37 };

typedef struct states_copy {
    host_spec spec[2];
    uint64_t hash[2];
    float *value[HOST_TENSORS][3]; /* by kind from MOMENT_1 on; [2]: the master */
} states_copy;

static float *states_copy_at(states_copy *c, const zero_range *range) {
    for (int t = 0; t < c->spec[0].ntensors; t++)
        if (!strcmp(c->spec[0].desc[t].name, range->name))
            return c->value[t][range->kind == ZERO_MASTER ? 2 : range->kind - ZERO_MOMENT_1]
                   + range->first;
    return NULL;
}

/* put 0: trains, and copies out the ranges that this rank saves. 1: puts what it loads. */
static void states_copy_body(test_rank *r, int put) {
    states_copy *c = (states_copy *)r->arg;
    host_run h;
    zero_range range;
    int ok = host_open(&h, &c->spec[put], r);
    while (ok && !put && h.step < STATES_STEPS) ok = host_train_step(&h);
    ok = ok && !zero_state_begin(h.z);
    for (int i = 0; ok && i < zero_state_ranges(h.z, put); i++) {
        ok = !zero_state_range(h.z, put, i, &range) && range.type == ZERO_F32;
        const size_t end = range.first + range.count;
        while (ok && range.first < end) {
            range.count = zp_min(STATES_PIECE, end - range.first);
            float *values = states_copy_at(c, &range);
            ok = !(put ? zero_state_put(h.z, &range, values) : zero_state_get(h.z, &range, values));
            range.first += range.count;
        }
    }
    ok = ok && !zero_state_end(h.z, put);
    const uint64_t hash = ok ? host_hash(&h) : 0;
    if (!r->rank) c->hash[put] = hash;
    if (!ok && !r->failed) test_rank_fail(r, "%s", zero_last_error(h.z));
    zero_destroy(h.z);
}
static void states_get_body(test_rank *r) { states_copy_body(r, 0); }
static void states_put_body(test_rank *r) { states_copy_body(r, 1); }

static void states_pieces(int stage, zero_optimizer rule) {
    states_copy c;
    memset(&c, 0, sizeof c);
    for (int put = 0; put < 2; put++) {
        states_spec(&c.spec[put], put ? 3 - stage : stage, rule, ZERO_F32);
        c.spec[put].cfg.state_type = ZERO_STATE_8BIT;
    }
    c.spec[1].nranks = 2;
    for (int t = 0; t < c.spec[0].ntensors; t++)
        for (int k = 0; k < 3; k++)
            c.value[t][k] = (float *)calloc(host_numel(&c.spec[0], t), sizeof(float));
    const int ok = test_ranks(STATES_RANKS, 0, states_get_body, &c)
                   & test_ranks(c.spec[1].nranks, 0, states_put_body, &c);
    test_check(ok && c.hash[0] == c.hash[1], "stage %d, rule %d: %s", stage, (int)rule, test_first);
    for (int t = 0; t < c.spec[0].ntensors; t++)
        for (int k = 0; k < 3; k++) free(c.value[t][k]);
}

int main(void) {
    (void)alarm(600);
    states_draws();
    states_codes();
    states_averages();
    for (int rule = 0; rule < ZERO_OPTIMIZER_OWN; rule++)
        for (int type = ZERO_STATE_BF16; type < ZERO_STATE_TYPES; type++) {
            if (rule == ZERO_ADAGRAD && type == ZERO_STATE_8BIT) continue; /* it is refused */
            states_step((zero_optimizer)rule, (zero_state_type)type);
            for (int micro_steps = 1; micro_steps <= 2; micro_steps++)
                states_stages((zero_optimizer)rule, micro_steps, (rule + micro_steps) % 4,
                              (zero_state_type)type);
        }
    for (int stage = 0; stage < 4; stage++)
        states_pieces(stage, stage % 2 ? ZERO_MUON : ZERO_ADAMW);
    for (int stage = 0; stage < 4; stage++)
        for (int master = ZERO_MASTER_F32; master < ZERO_MASTERS; master++)
            states_writes(stage, (zero_master)master);
    return test_summary();
}

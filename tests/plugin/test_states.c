/* test_states.c [FOLDER] - optimizer state in fewer bytes than f32. Files are made in FOLDER (.).

     draws      bf16 state is rounded to one of its two neighbours, without bias; encoding what was
                decoded changes nothing; random numbers depend on step, seed, tensor, element and
                array, and not on the place
     codes      values decoded from 8 bits are encoded to the same codes; others become one of two
                neighbours, without bias; a square above 0 never becomes 0
     blocks     a whole block's instructions have the bits of plain C
     averages   a slow average in bf16 follows f32's, where rounding to nearest sticks
     steps      one step from equal states gives the weights of f32 states bit by bit, and each
                moment is a neighbour of f32's
     stages     runs of each update rule have the same bits at stages 0 to 3, with one micro-step
                and with two, and other ones than with f32 states
     writes     a write by name rounds to nearest, with split master weights as well
     long       ranges longer than the staging buffer are copied out and put whole
     pieces     state in 8 bits that is copied out and put in pieces, on other ranks, is the same
     ways       each kind of state, of master weights, and a frozen layer, with accumulation,
                delayed updates, files, groups of shards and quantized traffic: equal bits at
                every stage
     plan       state that stays f32 (ZERO_F32_STATE) takes the bytes of the formula
     libraries  after 100 steps with the same gradients, 8-bit state is no further from f32 state
                than that of the libraries in tests/reference/states.txt
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
        zp_compact_write(u, at, ZP_UPDATE_BLOCK, x + at, x + at);
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
            zp_compact_write(u, at - n, n, x + at - n, NULL);
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
            uint32_t random[ZP_CODE_BLOCK];
            for (size_t j = 0; j < ZP_CODE_BLOCK; j++) {
                random[j] = zp_random_of_element(u->element + at + j, key);
                if (j >= n) x[at + j] = 0;
            }
            zp_codes_write(&blocks[b], x + at, n, squares, random, 16 * squares);
            zp_codes_read(back + at, &blocks[b], squares, 0, ZP_CODE_BLOCK);
            zp_codes_write(&again[b], back + at, n, squares, NULL, 0);
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
    int inexact = 0; /* the decoded square is the quotient, rounded once */
    for (int code = 0; code < 256; code++) {
        const float square = (float)(code * code);
        inexact += zp_codes_decode((uint8_t)code, 1, 1) != square / 65025.0f;
    }
    test_check(!inexact, "%d of 256 decoded squares are not code^2 / 255^2", inexact);
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
    zp_codes_write(&blocks[0], x, ZP_CODE_BLOCK, 0, NULL, 0);
    zp_codes_read(back, &blocks[0], 0, 0, ZP_CODE_BLOCK);
    test_check(!memcmp(x, back, ZP_CODE_BLOCK * sizeof *x), "a block of zeros is %g",
               (double)back[0]);
    x[5] = NAN;
    zp_codes_write(&blocks[0], x, ZP_CODE_BLOCK, 0, NULL, 0);
    zp_codes_read(back, &blocks[0], 0, 0, ZP_CODE_BLOCK);
    test_check(zp_type_is_nan((double)back[5]), "NaN becomes %g", (double)back[5]);
}

/* A whole block has instructions of its own. Their bits are those of plain C, for values of every
   kind and for indices on both sides of 2^32. */
static void states_blocks(void) {
    enum { KINDS = 400 };
    static const uint64_t first[] = {0, 12345, 0xFFFFFF7F, 0xFFFFFF80, 0xFFFFFFC1, 0x1FFFFFFFF};
    static const uint32_t odd[] = {0,          0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000,
                                   0xFFC01234, 0x7F812345, 0x7F7FFFFF, 0x00000001, 0x807FFFFF,
                                   0x3F808000, 0x3F818000, 0x7F7F0001, 0x00800000};
    const size_t n = ZP_CODE_BLOCK, odds = sizeof odd / sizeof *odd;
    test_random r = {77};
    int differ[4] = {0};
    for (int kind = 0; kind < KINDS; kind++) {
        const uint32_t key[2] = {(uint32_t)test_below(&r, 1 << 30), (uint32_t)kind};
        uint32_t random[2][ZP_CODE_BLOCK];
        uint16_t half[2][ZP_CODE_BLOCK];
        float x[2][ZP_CODE_BLOCK], back[2][ZP_CODE_BLOCK];
        zp_codes code[2][2];
        for (size_t j = 0; j < n; j++)
            for (int i = 0; i < 2; i++) {
                const uint32_t sign = i || test_below(&r, 2) ? 0 : 0x80000000;
                const uint32_t size = (uint32_t)(100 - kind % 80 + (int)test_below(&r, 20)) << 23;
                x[i][j] = zp_type_bits_to_float(sign | size | (uint32_t)test_below(&r, 1 << 23));
                if (kind % 3 == 0 && test_below(&r, 8) == 0)
                    x[i][j] = zp_type_bits_to_float(odd[test_below(&r, (int)odds)]);
                if (kind % 7 == 0 && test_below(&r, 2)) x[i][j] = 0;
                if (kind % 50 == 1) x[i][j] = 0;
            }
        zp_blocks_plain_draw(n, random[0], first[kind % 6], key);
        ZP_BLOCK(n, draw, random[1], first[kind % 6], key);
        differ[0] += memcmp(random[0], random[1], sizeof *random) != 0;
        zp_blocks_plain_narrow(n, half[0], x[0], random[0], kind & 1);
        ZP_BLOCK(n, narrow, half[1], x[0], random[0], kind & 1);
        differ[1] += memcmp(half[0], half[1], sizeof *half) != 0;
        for (int i = 0; i < 2; i++) {
            zp_blocks_plain_scale(n, &code[0][i], x[i]);
            ZP_BLOCK(n, scale, &code[1][i], x[i]);
        }
        for (int way = 0; way < 2; way++) {
            const zp_blocks_state s = {{&code[way][0], &code[way][1]},
                                       {x[0], x[1]},
                                       kind % 11 ? 2 : 1,
                                       kind % 5 != 0,
                                       random[0]};
            if (kind % 11 == 0) memset(&code[way][1], 0, sizeof code[way][1]);
            if (way)
                ZP_BLOCK(n, encode, &s);
            else
                zp_blocks_plain_encode(n, &s);
        }
        differ[2] += memcmp(code[0], code[1], sizeof *code) != 0;
        zp_blocks_plain_decode(n, back[0], &code[0][1], kind % 5 != 0);
        ZP_BLOCK(n, decode, back[1], &code[0][1], kind % 5 != 0);
        differ[3] += memcmp(back[0], back[1], sizeof *back) != 0;
    }
    test_check(!differ[0] && !differ[1] && !differ[2] && !differ[3],
               "of %d blocks differ from plain C: %d random numbers, %d in bf16, %d codes, %d "
               "decoded",
               KINDS, differ[0], differ[1], differ[2], differ[3]);
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
    u.form = &zp_compact_form;
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

static const float *states_start; /* [numel of `w`]: its first weights; NULL: those of host.h */

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
    if (ok && states_start)
        ok = !zero_write_tensor(h.z, "w", ZERO_MASTER, 0, run->numel, states_start);
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

/* A range longer than the staging buffer, which converts split masters and codes. */
static void states_long(void) {
    enum { N = 2 * ZP_STAGE_NUMEL + 300 };
    const zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
    const zero_config cfg = {.type = ZERO_BF16,
                             .master = ZERO_MASTER_SPLIT,
                             .state_type = ZERO_STATE_8BIT,
                             .log = test_quiet};
    const zero_tensor_desc w = {.name = "w", .numel = N, .flags = ZERO_BY_SLOT};
    const zero_kind kinds[] = {ZERO_MASTER, ZERO_MOMENT_1};
    float *values = (float *)malloc(2 * (size_t)N * sizeof *values), *back = values + N;
    zero_ctx *z = NULL;
    int ok = !zero_create(&z, &cfg, &self) && !zero_tensors(z, &w, 1) && !zero_build(z)
             && !zero_state_begin(z);
    for (int i = 0; i < N; i++) values[i] = 1 + (float)i * 0x1p-20f;
    for (int k = 0; k < 2; k++) {
        const zero_range r = {"w", kinds[k], ZERO_F32, 0, N};
        int wrong = 0;
        ok = ok && !zero_state_put(z, &r, values) && !zero_state_get(z, &r, back);
        for (int i = 0; i < N && ok; i++)
            wrong += k ? fabsf(back[i] - values[i]) > 0.01f : back[i] != values[i];
        test_check(ok && !wrong, "kind %d: %d of %d values are wrong: %s", (int)kinds[k], wrong, N,
                   zero_last_error(z));
    }
    if (ok) (void)zero_state_end(z, 1);
    zero_destroy(z);
    free(values);
}

/* ---- with other settings ---- */

enum { STATES_WAY_RANKS = 4 };

static const char *states_folder = ".";

typedef struct states_way {
    const char *name;
    int micro_steps, sharded, delay;
    int files;           /* 1: state; 2: all that the stage shards */
    float share;         /* of the model, in files */
    int from_stage;      /* the first one that has it */
    int groups, seconds; /* ranks of them */
    int weight_bits, gradient_bits;
    int own; /* other bits than with no setting: compared between its stages */
} states_way;

static const states_way states_ways[] = {
    {.name = "no overlap"},
    {.name = "sums, local", .micro_steps = 2, .own = 1},
    {.name = "sums, sharded", .micro_steps = 2, .sharded = 1, .own = 1},
    {.name = "delayed", .delay = 2, .own = 1},
    {.name = "delayed, files", .delay = 2, .files = 2, .own = 1},
    {.name = "delayed, sums, half in files",
     .micro_steps = 2,
     .sharded = 1,
     .delay = 1,
     .files = 1,
     .share = 0.5f,
     .own = 1},
    {.name = "state in files", .files = 1},
    {.name = "all in files", .files = 2},
    {.name = "groups of shards", .groups = 2, .from_stage = 1, .own = 1},
    {.name = "groups of shards, files", .groups = 2, .from_stage = 1, .files = 2, .own = 1},
    {.name = "secondary partition", .seconds = 2, .from_stage = 3},
    {.name = "quantized weights", .weight_bits = 8, .from_stage = 3},
    {.name = "quantized gradients", .gradient_bits = 8, .from_stage = 1, .own = 1},
    {.name = "quantized, in groups, files",
     .groups = 2,
     .gradient_bits = 4,
     .files = 1,
     .from_stage = 1,
     .own = 1}};
enum { STATES_WAYS = sizeof states_ways / sizeof *states_ways };

typedef struct states_kind {
    const char *name;
    zero_type type;
    zero_master master;
    zero_state_type state;
    int f32;    /* the embedding's state stays f32 */
    int frozen; /* a layer is */
    zero_optimizer rule;
} states_kind;

static const states_kind states_kinds[] = {
    {"split", ZERO_BF16, ZERO_MASTER_SPLIT, ZERO_STATE_F32, 0, 1, ZERO_ADAMW},
    {"bf16 state", ZERO_F32, ZERO_MASTER_AUTO, ZERO_STATE_BF16, 0, 1, ZERO_ADAMW},
    {"split, 8-bit state", ZERO_BF16, ZERO_MASTER_SPLIT, ZERO_STATE_8BIT, 0, 0, ZERO_ADAMW},
    {"split, 8-bit state, f32 embedding", ZERO_BF16, ZERO_MASTER_SPLIT, ZERO_STATE_8BIT, 1, 1,
     ZERO_ADAMW},
    {"no master, 8-bit state, Lion", ZERO_BF16, ZERO_MASTER_NONE, ZERO_STATE_8BIT, 0, 1, ZERO_LION},
    {"bf16 state, f32 embedding, Muon", ZERO_BF16, ZERO_MASTER_F32, ZERO_STATE_BF16, 1, 0,
     ZERO_MUON}};
enum { STATES_KINDS = sizeof states_kinds / sizeof *states_kinds };

static void states_kind_spec(host_spec *s, const states_kind *k, int stage) {
    static const char layers[] = {0, 1, 0};
    states_spec(s, stage, k->rule, k->type);
    s->nranks = STATES_WAY_RANKS;
    s->cfg.master = k->master;
    if (k->f32) s->desc[0].flags |= ZERO_F32_STATE;
    if (k->frozen) s->desc[1].frozen = layers;
}

static void states_way_spec(host_spec *s, const states_kind *k, const states_way *w, int stage) {
    zero_config *c = &s->cfg;
    states_kind_spec(s, k, stage);
    c->no_overlap = w == states_ways;
    s->micro_steps = w->micro_steps ? w->micro_steps : 1;
    c->accumulation = w->sharded ? ZERO_ACCUMULATE_SHARDED : ZERO_ACCUMULATE_LOCAL;
    c->delay_from = w->delay;
    if (w->files) c->optimizer_tier = ZERO_FILE;
    if (w->files > 1 && stage > 1) c->gradient_tier = ZERO_FILE;
    if (w->files > 1 && stage > 2) c->parameter_tier = ZERO_FILE;
    if (w->files) c->persistence_numel = ZERO_NONE;
    c->folder = states_folder;
    c->offload_share = w->share;
    c->shard_ranks = w->groups;
    c->second_ranks = w->seconds;
    c->weight_bits = w->weight_bits;
    c->gradient_bits = w->gradient_bits;
    c->no_mapping = w->seconds || w->weight_bits;
}

/* At every stage that has the way, a run has the bits of the first such stage, or of stage 0. */
static void states_way_of(const states_kind *k, const states_way *w, uint64_t alone) {
    uint64_t first = alone;
    for (int stage = w->from_stage; stage < 4; stage++) {
        host_spec spec;
        states_run run;
        states_way_spec(&spec, k, w, stage);
        const int ok = states_go(&run, &spec, k->state);
        if (w->own && stage == w->from_stage) first = run.hash;
        test_check(ok && run.hash == first, "%s, %s, stage %d: %016llx, expected %016llx: %s",
                   k->name, w->name, stage, (unsigned long long)run.hash, (unsigned long long)first,
                   test_first);
        free(run.weight);
    }
}

static void states_kind_of(const states_kind *k) {
    host_spec spec;
    states_run run, other;
    states_kind_spec(&spec, k, 0);
    test_check(states_go(&run, &spec, k->state), "%s: %s", k->name, test_first);
    if (k->f32) spec.desc[0].flags &= ~ZERO_F32_STATE;
    const int ok = states_go(&other, &spec, k->f32 ? k->state : ZERO_STATE_F32);
    test_check(ok && ((run.hash == other.hash) == (!k->f32 && !k->state)),
               "%s: the kind of state makes no difference: %s", k->name, test_first);
    for (int w = 0; w < STATES_WAYS; w++) states_way_of(k, &states_ways[w], run.hash);
    free(run.weight);
    free(other.weight);
}

/* ---- bytes of state in f32 ---- */

static void states_plan(zero_state_type type, int flagged) {
    static const double of[ZERO_STATE_TYPES] = {4, 2, 132.0 / 128};
    const zero_comm comm = {ZERO_COMM_SELF, 0, NULL, 0};
    const zero_config cfg = {.type = ZERO_BF16,
                             .grads = ZERO_GRAD_AS_TYPE,
                             .master = ZERO_MASTER_SPLIT,
                             .state_type = type,
                             .log = test_quiet};
    zero_tensor_desc emb = {"emb", 12800, .flags = flagged ? ZERO_F32_STATE : 0},
                     pos = {"pos", 1280, .flags = flagged == 1 ? ZERO_F32_STATE : 0},
                     mat = {"mat", 128000, .unit = 1};
    zero_ctx *z = NULL;
    zero_plan plan;
    memset(&plan, 0, sizeof plan);
    int ok = !zero_create(&z, &cfg, &comm) && !zero_tensor(z, &emb) && !zero_tensor(z, &pos)
             && !zero_tensor(z, &mat);
    const zero_result r = ok ? zero_query_plan(z, &plan) : ZERO_ERR_STATE;
    const double wide = flagged == 1 ? 14080 : 0, others = 142080 - wide;
    const double state = 2 * (of[type] * others + 4 * wide), all = state + 6 * (others + wide);
    if (flagged == 2)
        test_check(ok && r == ZERO_ERR_ARGUMENT
                       && strstr(zero_last_error(z), "tensor pos is not F32_STATE"),
                   "a unit with both: %s", zero_last_error(z));
    else
        test_check(!r && (double)plan.formula_bytes == all
                       && (double)plan.optimizer_bytes == state + 2 * (others + wide),
                   "type %d, flags %d: the formula has %zu bytes, the plan %zu of state, expected "
                   "%g, %g",
                   (int)type, flagged, plan.formula_bytes, plan.optimizer_bytes, all,
                   state + 2 * (others + wide));
    zero_destroy(z);
}

/* ---- libraries: the numbers of tests/reference/states.py ---- */

enum { STATES_LIBRARY_N = 16384, STATES_LIBRARY_STEPS = 100 };

static double states_library_mix(uint32_t i, uint32_t what) {
    return (double)(zp_optimizer_mix(i * 0x9E3779B1u + what * 0x7FEB352Du) >> 16) / 65536 - 0.5;
}
static void states_library_gradient(host_run *h, int t, size_t first, void *g) {
    (void)t;
    for (uint32_t i = 0; i < STATES_LIBRARY_N; i++) {
        const double u = states_library_mix(i, (uint32_t)h->step + 1),
                     x = 4 * u * u * u + states_library_mix(i, 1000) / 16;
        ((float *)g)[first + i] = (float)ldexp(x, -(int)(i / 512 % 8));
    }
}

/* The norm of a - b, divided by that of b. */
static double states_distance(const float *a, const float *b) {
    double far = 0, all = 0;
    for (int i = 0; i < STATES_LIBRARY_N; i++) {
        const double d = (double)a[i] - (double)b[i];
        far += d * d;
        all += (double)b[i] * (double)b[i];
    }
    return sqrt(far / all);
}

static void states_libraries(const char *path) {
    static const zero_tensor_desc tensors[] = {{"w", STATES_LIBRARY_N, .layers = 1}};
    static float start[STATES_LIBRARY_N];
    FILE *file = fopen(path, "r");
    char line[128], what[32], name[32];
    double value;
    host_spec spec;
    states_run run[ZERO_STATE_TYPES];
    int weights = 0, libraries = 0;
    host_small(&spec, 1, 1, 0, tensors, 1);
    spec.units = 1;
    spec.steps = STATES_LIBRARY_STEPS;
    spec.poison = states_library_gradient;
    const zero_hyper hyper = {1e-3f, 0.9f, 0.999f, 1e-8f, 0.01f, 0};
    spec.adamw = hyper;
    for (uint32_t i = 0; i < STATES_LIBRARY_N; i++)
        start[i] = (float)(states_library_mix(i, 2000) / 16);
    states_start = start;
    for (int type = 0; type < ZERO_STATE_TYPES; type++)
        test_check(states_go(&run[type], &spec, (zero_state_type)type), "%s", test_first);
    states_start = NULL;
    const double far = states_distance(run[ZERO_STATE_8BIT].weight, run[0].weight),
                 bf16 = states_distance(run[ZERO_STATE_BF16].weight, run[0].weight);
    printf("distance from f32 state: 8 bits %.3g, bf16 %.3g\n", far, bf16);
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "%31s %31s %lf", what, name, &value) != 3) continue;
        const int weight = !strcmp(what, "weight"), i = weight ? atoi(name) % STATES_LIBRARY_N : 0;
        weights += weight;
        libraries += !weight;
        if (weight)
            test_check(fabs((double)run[0].weight[i] - value) < 1e-6,
                       "weight %d is %.9g with f32 state, torch has %.9g", i,
                       (double)run[0].weight[i], value);
        else
            test_check(far <= value, "distance from f32 state: %.3g with 8 bits, %s has %.3g", far,
                       name, value);
    }
    test_check(weights == 16 && libraries > 0, "%s: %d weights, %d libraries", path, weights,
               libraries);
    for (int type = 0; type < ZERO_STATE_TYPES; type++) free(run[type].weight);
    if (file) (void)fclose(file);
}

int main(int argc, char **argv) {
    (void)alarm(600);
    if (argc > 1) states_folder = argv[1];
    states_draws();
    states_codes();
    states_blocks();
    states_averages();
    for (int rule = 0; rule < ZERO_OPTIMIZER_OWN; rule++)
        for (int type = ZERO_STATE_BF16; type < ZERO_STATE_TYPES; type++) {
            if (rule == ZERO_ADAGRAD && type == ZERO_STATE_8BIT) continue; /* it is refused */
            states_step((zero_optimizer)rule, (zero_state_type)type);
            for (int micro_steps = 1; micro_steps <= 2; micro_steps++)
                states_stages((zero_optimizer)rule, micro_steps, (rule + micro_steps) % 4,
                              (zero_state_type)type);
        }
    states_long();
    for (int stage = 0; stage < 4; stage++)
        states_pieces(stage, stage % 2 ? ZERO_MUON : ZERO_ADAMW);
    for (int stage = 0; stage < 4; stage++)
        for (int master = ZERO_MASTER_F32; master < ZERO_MASTERS; master++)
            states_writes(stage, (zero_master)master);
    states_libraries("tests/reference/states.txt");
    for (int k = 0; k < STATES_KINDS; k++) states_kind_of(&states_kinds[k]);
    for (int type = 0; type < ZERO_STATE_TYPES; type++)
        for (int flagged = 0; flagged < 3; flagged++) states_plan((zero_state_type)type, flagged);
    return test_summary();
}

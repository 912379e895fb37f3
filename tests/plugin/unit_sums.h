/* unit_sums.h - sums over ranks in each type and order, and sums of micro-steps.
   A part of test_unit.c, which includes the plugin. */
#ifndef TEST_UNIT_SUMS_H
#define TEST_UNIT_SUMS_H

static float unit_sum_one(const zp_sum *s, size_t i, float before) {
    volatile float total = 0; /* every sum is rounded */
    for (int node = 0; node < s->n / s->group; node++) {
        volatile float sum = zp_type_load(s->source[node * s->group], s->type, i);
        for (int p = 1; p < s->group; p++)
            sum = sum + zp_type_load(s->source[node * s->group + p], s->type, i);
        total = node ? total + sum : sum;
    }
    volatile float scaled = s->scale * total;
    return s->accumulate ? before + scaled : scaled;
}

enum { UNIT_SUM = 5000 };

typedef struct unit_summed {
    float x[8 * UNIT_SUM], before[UNIT_SUM], sum[UNIT_SUM], out[UNIT_SUM];
    uint16_t half[8 * UNIT_SUM]; /* x in 16 bit */
} unit_summed;

/* The first k elements are what they must be, the others are not touched. */
static int unit_sum_case(unit_summed *u, zp_sum *s, size_t k) {
    memcpy(u->sum, u->before, sizeof u->sum);
    memcpy(u->out, u->before, sizeof u->out);
    zp_kernel_sum_slices(s, k, 2);
    for (size_t i = 0; i < UNIT_SUM; i++) {
        const float e = i < k ? unit_sum_one(s, i, u->before[i]) : u->before[i];
        float stored = 0;
        if (s->sum && memcmp(&u->sum[i], &e, sizeof e)) return 0;
        zp_type_store(&stored, s->out_type, 0, e);
        if (i >= k && s->out_type != ZERO_F32)
            memcpy(&stored, (char *)u->before + 2 * i, 2); /* what was there */
        const size_t bytes = zp_type_bytes(s->out_type);
        if (memcmp((char *)u->out + bytes * i, &stored, bytes)) return 0;
    }
    return 1;
}

/* f32 and 16 bit, into each other, with an accumulator and without. */
static void unit_sum_types(unit_summed *u, int n, int group) {
    static const zero_type types[][2] = {
        {ZERO_F32, ZERO_F32}, {ZERO_BF16, ZERO_BF16}, {ZERO_F16, ZERO_F16}, {ZERO_BF16, ZERO_F32},
        {ZERO_F16, ZERO_F32}, {ZERO_F32, ZERO_BF16},  {ZERO_F32, ZERO_F16}};
    for (int t = 0; t < 7; t++)
        for (int how = 0; how < 3; how++) { /* store, store with a sum, accumulate */
            const zero_type in = types[t][0], out = types[t][1];
            zp_sum s = {.type = in,
                        .out_type = out,
                        .n = n,
                        .group = group,
                        .out = u->out,
                        .sum = how && out != ZERO_F32 ? u->sum : NULL,
                        .scale = 1.0f / (float)n,
                        .accumulate = how == 2};
            if (in != ZERO_F32) zero_convert(u->half, in, u->x, ZERO_F32, 8 * UNIT_SUM);
            for (int p = 0; p < n; p++)
                s.source[p] = in == ZERO_F32 ? (void *)(u->x + p * UNIT_SUM)
                                             : (void *)(u->half + p * UNIT_SUM);
            size_t k = 1;
            while (k <= UNIT_SUM && unit_sum_case(u, &s, k)) k += k < 70 ? 1 : 821;
            test_check(k > UNIT_SUM, "sum of %d in groups of %d, %s to %s, %d, %zu elements", n,
                       group, unit_type_names[in], unit_type_names[out], how, k);
        }
}

static void unit_sums(void) {
    static unit_summed u;
    test_random r = {81};
    for (int i = 0; i < 8 * UNIT_SUM; i++) u.x[i] = unit_float(&r, -20, 15);
    for (int i = 0; i < UNIT_SUM; i++) u.before[i] = unit_float(&r, -20, 15);
    for (int n = 1; n <= 8; n++)
        for (int group = 1; group <= n; group++)
            if (n % group == 0) unit_sum_types(&u, n, group);
}

/* A micro-step's gradient is added in f32; the last sum is rounded into the gradient. */
static void unit_collect(void) {
    enum { N = 4096 };
    static float sum[N], expected[N];
    static uint16_t g[N], was[N];
    zp_device d;
    test_random r = {83};
    (void)zp_device_open(&d);
    zp_stream s = unit_stream(&d, 2);
    for (zero_type type = ZERO_BF16; type <= ZERO_F16; type++)
        for (int micro = 0; micro < 4; micro++) {
            int wrong = 0;
            const zp_kernel_accumulate_args a = {sum, g, type, micro == 0, micro == 3};
            for (size_t i = 0; i < N; i++) {
                zp_type_store(g, type, i, unit_float(&r, -12, 8));
                was[i] = g[i];
                expected[i] =
                    micro ? expected[i] + zp_type_load(g, type, i) : zp_type_load(g, type, i);
            }
            (void)zp_kernel_accumulate(&s, &a, N / ZP_WIDE);
            for (size_t i = 0; i < N; i++) {
                uint16_t e = was[i];
                if (micro == 3) zp_type_store(&e, type, 0, expected[i]);
                wrong += zp_type_bits(sum[i]) != zp_type_bits(expected[i]) || g[i] != e;
            }
            test_check(!wrong, "%s, micro-step %d: %d gradients are collected wrongly",
                       unit_type_names[type], micro, wrong);
        }
    zp_device_close(&d);
}

/* THE ORDER OF A SUM is data of a group: if each group has the reverse order, training has the bits
   of a reference that adds the ranks in reverse. */
enum { UNIT_REVERSED_RANKS = 8 };

typedef struct unit_reversed {
    host_spec spec;
    host_reference reference;
} unit_reversed;

static void unit_reversed_rank(test_rank *r) {
    unit_reversed *run = (unit_reversed *)r->arg;
    host_run h;
    if (host_open(&h, &run->spec, r)) {
        zp_comm *g = h.z->data;
        const int size = g->node_size, nodes = g->nranks / size;
        for (int i = 0; i < size; i++) g->order.inside[i] = (unsigned char)(size - 1 - i);
        for (int i = 0; i < nodes; i++) g->order.across[i] = (unsigned char)(nodes - 1 - i);
        while (h.step < run->spec.steps && host_train_step(&h))
            ;
        if (!r->failed && host_compare(&h, ZERO_PARAMETER, run->reference.p, "weight"))
            (void)host_compare(&h, ZERO_MOMENT_1, run->reference.m, "moment");
    }
    zero_destroy(h.z);
}

static void unit_reference(host_reference *x, const host_spec *s) {
    host_reference_open(x, s);
    for (int step = 0; step < s->steps; step++) host_reference_step(x, s, 0, step, 1);
}

static void unit_reversed_sums(void) {
    static const int node_size[] = {0, 4, 2}; /* sums of 4 numbers are rounded, of 2 or 3 not */
    for (int i = 0; i < 12; i++) {
        static unit_reversed run;
        host_reference plain;
        host_spec *s = &run.spec;
        small_spec(s, UNIT_REVERSED_RANKS, i / 3);
        s->cfg.type = i % 2 ? ZERO_BF16 : ZERO_F32;
        s->cfg.grads = ZERO_GRAD_F32; /* sums of so few numbers of 16 bits are exact */
        s->node_size = node_size[i % 3];
        s->steps = 2;
        unit_reference(&plain, s);
        s->reversed = 1;
        unit_reference(&run.reference, s);
        const int same = !memcmp(plain.m[0], run.reference.m[0], s->desc[0].numel * sizeof(float));
        test_check(!same,
                   "nodes of %d ranks, type %d: the order of a sum changes no bit of a moment",
                   s->node_size, (int)s->cfg.type);
        test_check(test_ranks(UNIT_REVERSED_RANKS, s->node_size, unit_reversed_rank, &run),
                   "stage %d, nodes of %d ranks, type %d: %s", s->cfg.stage, s->node_size,
                   (int)s->cfg.type, test_first);
        host_reference_close(&plain, s);
        host_reference_close(&run.reference, s);
    }
}

static void unit_sums_all(void) {
    unit_reversed_sums();
    unit_sums();
    unit_collect();
}

#endif

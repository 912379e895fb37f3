/* bench_step.c
   [f32|bf16|f16|bf16-alone|f16-f32grads|bf16-split|bf16-states|bf16-8bit|split-8bit...]
   [adamw|adam|sgd|nesterov|lion] [MILLIONS...]
   - the optimizer step (zero_step: skip, clip and bias corrections read, then the rule) against
   this machine's bandwidth: a plain loop with the same reads and writes on arrays of the same size,
   in turns within one run. Also the norm. One rank, all its threads. Words may come in any order;
   sizes are 1, 10 and 100 by default, types all. */
#include "../shared/harness.h"

#ifdef _OPENMP
#include <omp.h>
#endif

static int bench_compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double bench_median(double *t, int n) {
    qsort(t, (size_t)n, sizeof *t, bench_compare);
    return t[n / 2];
}

/* What is stored how. */
typedef struct bench_kind {
    const char *name;
    zero_type type;
    zero_grad_type grads;
    zero_master master;
    zero_state_type states;
} bench_kind;
static const bench_kind bench_kinds[] = {
    {"f32", ZERO_F32, ZERO_GRAD_AS_TYPE, ZERO_MASTER_F32, ZERO_STATE_F32},
    {"bf16", ZERO_BF16, ZERO_GRAD_AS_TYPE, ZERO_MASTER_F32, ZERO_STATE_F32},
    {"f16", ZERO_F16, ZERO_GRAD_AS_TYPE, ZERO_MASTER_F32, ZERO_STATE_F32},
    {"bf16-alone", ZERO_BF16, ZERO_GRAD_AS_TYPE, ZERO_MASTER_NONE, ZERO_STATE_F32},
    {"f16-f32grads", ZERO_F16, ZERO_GRAD_F32, ZERO_MASTER_F32, ZERO_STATE_F32},
    {"bf16-split", ZERO_BF16, ZERO_GRAD_AS_TYPE, ZERO_MASTER_SPLIT, ZERO_STATE_F32},
    {"bf16-states", ZERO_BF16, ZERO_GRAD_AS_TYPE, ZERO_MASTER_F32, ZERO_STATE_BF16},
    {"bf16-8bit", ZERO_BF16, ZERO_GRAD_AS_TYPE, ZERO_MASTER_F32, ZERO_STATE_8BIT},
    {"split-8bit", ZERO_BF16, ZERO_GRAD_AS_TYPE, ZERO_MASTER_SPLIT, ZERO_STATE_8BIT}};
static const char *const bench_rules[] = {"adamw", "adam", "sgd", "nesterov", "lion"};
enum { BENCH_KINDS = 9, BENCH_RULES = 5, BENCH_BLOCK = 2048 };

typedef struct bench_arrays { /* of the plain loop: what a step reads and writes */
    float *weights;           /* f32: weights, or the master copy; NULL: none */
    uint16_t *half, *low;     /* 16-bit weights, and their lower halves; NULL: none */
    void *m, *v;              /* v NULL: one state array */
    size_t state_bytes;       /* of one of its elements */
    const void *g;
    zero_type g_type;
} bench_arrays;

static int bench_two_states(zero_optimizer rule) { return rule <= ZERO_ADAM; }

static size_t bench_state_bytes(const bench_kind *k) {
    return k->states == ZERO_STATE_F32 ? 4 : k->states == ZERO_STATE_BF16 ? 2 : 1;
}

/* Bytes of one element that a step must read and write. */
static double bench_bytes(const bench_kind *k, zero_optimizer rule) {
    const double g = k->type == ZERO_F32 || k->grads == ZERO_GRAD_F32 ? 4 : 2;
    const double weights = k->type == ZERO_F32              ? 8
                           : k->master == ZERO_MASTER_NONE  ? 4
                           : k->master == ZERO_MASTER_SPLIT ? 8
                                                            : 10;
    return g + weights + 2.0 * (bench_two_states(rule) ? 2 : 1) * (double)bench_state_bytes(k);
}

/* Reads and writes n elements of state from element `at` on, and adds them to w. */
static void bench_plain_state(void *state, size_t bytes, size_t at, size_t n, float *w) {
    float *f = (float *)state + at;
    uint16_t *half = (uint16_t *)state + at;
    uint8_t *code = (uint8_t *)state + at;
    for (size_t i = 0; i < n && bytes == 4; i++) w[i] += f[i] += 1;
    for (size_t i = 0; i < n && bytes == 2; i++) w[i] += (float)(half[i] ^= 1);
    for (size_t i = 0; i < n && bytes == 1; i++) w[i] += (float)(code[i] ^= 1);
}

/* The same reads and writes and next to no arithmetic: widening is a shift, narrowing another. */
static void bench_plain_block(const bench_arrays *a, size_t at, size_t n) {
    float p[BENCH_BLOCK], g[BENCH_BLOCK];
    const uint16_t *g16 = (const uint16_t *)a->g + at;
    const float *g32 = (const float *)a->g + at;
    float *w = a->weights ? a->weights + at : p;
    uint16_t *half = a->half ? a->half + at : NULL, *low = a->low ? a->low + at : NULL;
    for (size_t i = 0; i < n && a->g_type != ZERO_F32; i++) {
        const uint32_t bits = (uint32_t)g16[i] << 16;
        memcpy(&g[i], &bits, sizeof bits);
    }
    if (a->g_type != ZERO_F32) g32 = g;
    for (size_t i = 0; i < n && !a->weights; i++) {
        const uint32_t bits = (uint32_t)half[i] << 16 | (low ? low[i] : 0);
        memcpy(&p[i], &bits, sizeof bits);
    }
    for (size_t i = 0; i < n; i++) w[i] += g32[i];
    bench_plain_state(a->m, a->state_bytes, at, n, w);
    if (a->v) bench_plain_state(a->v, a->state_bytes, at, n, w);
    for (size_t i = 0; i < n && half; i++) {
        uint32_t bits;
        memcpy(&bits, &w[i], sizeof bits);
        half[i] = (uint16_t)(bits >> 16);
        if (low) low[i] = (uint16_t)bits;
    }
}
static void bench_plain(const bench_arrays *a, size_t n) {
#ifdef _OPENMP
#pragma omp parallel for
#endif
    for (size_t at = 0; at < n; at += BENCH_BLOCK)
        bench_plain_block(a, at, n - at < BENCH_BLOCK ? n - at : BENCH_BLOCK);
}

static void *bench_array(size_t bytes) {
    void *p = NULL;
    if (posix_memalign(&p, (size_t)1 << 21, bytes)) exit(1);
#ifdef MADV_HUGEPAGE
    (void)madvise(p, bytes, MADV_HUGEPAGE); /* as the plugin's memory has them */
#endif
    memset(p, 0, bytes);
    return p;
}

static bench_arrays bench_arrays_open(const bench_kind *k, zero_optimizer rule, size_t n) {
    bench_arrays a = {NULL, NULL, NULL, NULL, NULL, bench_state_bytes(k), NULL, ZERO_F32};
    a.g_type = k->grads == ZERO_GRAD_F32 ? ZERO_F32 : k->type;
    if (k->master < ZERO_MASTER_SPLIT) a.weights = (float *)bench_array(n * sizeof(float));
    if (k->type != ZERO_F32) a.half = (uint16_t *)bench_array(n * sizeof(uint16_t));
    if (k->master == ZERO_MASTER_SPLIT) a.low = (uint16_t *)bench_array(n * sizeof(uint16_t));
    a.m = bench_array(n * a.state_bytes);
    if (bench_two_states(rule)) a.v = bench_array(n * a.state_bytes);
    a.g = bench_array(n * zero_type_bytes(a.g_type));
    return a;
}
static void bench_arrays_close(bench_arrays *a) {
    free(a->weights);
    free(a->half);
    free(a->low);
    free(a->m);
    free(a->v);
    free((void *)(uintptr_t)a->g);
}

static void bench_die(zero_ctx *z, const char *call) {
    fprintf(stderr, "bench_step: %s: %s\n", call, zero_last_error(z));
    exit(1);
}

static zero_ctx *bench_open(const bench_kind *k, zero_optimizer rule, size_t n) {
    zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
    zero_config cfg;
    zero_ctx *z = NULL;
    memset(&cfg, 0, sizeof cfg);
    cfg.type = k->type;
    cfg.grads = k->grads;
    cfg.master = k->master;
    cfg.state_type = k->states;
    cfg.optimizer = rule;
    cfg.scaler.fixed = 1;
    zero_tensor_desc d = {"x", n, 1, .uses = 1};
    if (zero_create(&z, &cfg, &self) || zero_tensor(z, &d) || zero_build(z))
        bench_die(z, "zero_build");
    return z;
}

/* Gradients as backward leaves them, in pieces. */
static void bench_fill(void *g, zero_type type, size_t n) {
    float x[7 * 292];
    for (size_t i = 0; i < 7 * 292; i++) x[i] = 1e-4f * (float)(i % 7);
    for (size_t at = 0; at < n; at += 7 * 292)
        zero_convert((char *)g + at * zero_type_bytes(type), type, x, ZERO_F32,
                     n - at < 7 * 292 ? n - at : 7 * 292);
}

enum { ROUNDS = 9 };

static void bench_size(const bench_kind *kind, zero_optimizer rule, size_t n) {
    void *params = NULL, *grads = NULL; /* the host's two structs of one field each */
    zero_hyper hyper = {1e-3f, 0.9f, 0.99f, 1e-8f, 0.1f, 1.0f};
    zero_ctx *z = bench_open(kind, rule, n);
    bench_arrays plain = bench_arrays_open(kind, rule, n);
    double step[ROUNDS], norm[ROUNDS], loop[ROUNDS], value;
    for (int k = -1; k < ROUNDS; k++) {
        if (zero_pass_begin(z, ZERO_TRAIN, 0, 1) || zero_backward_begin(z, 0, &params, &grads))
            bench_die(z, "pass");
        bench_fill(grads, plain.g_type, n);
        const double t0 = test_now();
        if (zero_backward_end(z, 0) || zero_pass_end(z) || zero_reduce(z) || zero_norm(z, &value))
            bench_die(z, "reduce");
        const double t1 = test_now();
        if (zero_step(z, &hyper)) bench_die(z, "step");
        const double t2 = test_now();
        bench_plain(&plain, n);
        const double t3 = test_now();
        if (k < 0) continue;
        norm[k] = t1 - t0;
        step[k] = t2 - t1;
        loop[k] = t3 - t2;
    }
    const double s = bench_median(step, ROUNDS), l = bench_median(loop, ROUNDS),
                 m = bench_median(norm, ROUNDS), bytes = bench_bytes(kind, rule) * (double)n;
    printf("%-12s %-8s %6.0f M  step %8.2f ms  %5.2f G/s  %6.1f GB/s  plain loop %6.1f GB/s  share "
           "%5.1f %%  norm %7.2f ms %6.1f GB/s\n",
           kind->name, bench_rules[rule], (double)n / 1e6, s * 1e3, (double)n / s / 1e9,
           bytes / s / 1e9, bytes / l / 1e9, 100 * l / s, m * 1e3,
           (double)zero_type_bytes(plain.g_type) * (double)n / m / 1e9);
    fflush(stdout);
    bench_arrays_close(&plain);
    zero_destroy(z);
}

int main(int argc, char **argv) {
    static const double usual[] = {1, 10, 100};
    int wanted[BENCH_KINDS] = {0}, kinds = 0, sizes = 0;
    zero_optimizer rule = ZERO_ADAMW;
    for (int i = 1; i < argc; i++) {
        int known = 0;
        for (int k = 0; k < BENCH_KINDS; k++)
            if (!strcmp(argv[i], bench_kinds[k].name)) known = wanted[k] = kinds = 1;
        for (int k = 0; k < BENCH_RULES; k++)
            if (!strcmp(argv[i], bench_rules[k])) rule = (zero_optimizer)k, known = 1;
        sizes += atof(argv[i]) > 0;
        if (known || atof(argv[i]) > 0) continue;
        fprintf(stderr, "bench_step: %s is no type, optimizer or size\n", argv[i]);
        return 2;
    }
    for (int k = 0; k < BENCH_KINDS; k++) {
        if (kinds && !wanted[k]) continue;
        for (int i = 1; i < argc; i++)
            if (atof(argv[i]) > 0) bench_size(&bench_kinds[k], rule, (size_t)(atof(argv[i]) * 1e6));
        for (int i = 0; i < 3 && !sizes; i++)
            bench_size(&bench_kinds[k], rule, (size_t)(usual[i] * 1e6));
    }
    return 0;
}

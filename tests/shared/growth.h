/* growth.h - what a rank's work costs as tensors and ranks grow, in counts and in processor time:
   one rank of many that do not exist (many_transport.h) announces, plans, builds, steps and asks
   for its state by name. test_growth.c counts, bench_ranks.c measures.

   With GROWTH_COUNTS the plugin's object is $B/counted.o: the compiler adds a call to each of its
   basic blocks (-fsanitize-coverage=trace-pc), and growth_count.c counts these calls. Each 64 bytes
   that the plugin copies, clears or compares count as one more (growth_bytes.h). */
#ifndef TEST_GROWTH_H
#define TEST_GROWTH_H

#ifdef GROWTH_COUNTS
long growth_counted(void);
#else
static long growth_counted(void) { return 0; }
#endif
#include "many_world.h"

#include "harness.h"

typedef enum growth_phase {
    GROWTH_ANNOUNCE,
    GROWTH_PLAN,
    GROWTH_BUILD,
    GROWTH_STEP,
    GROWTH_STATE,
    GROWTH_PHASES
} growth_phase;
static const char *const growth_names[] = {"announce", "plan", "build", "step", "state"};

typedef enum growth_kind { GROWTH_FIELDS, GROWTH_SLOTS, GROWTH_KEEP, GROWTH_KINDS } growth_kind;
static const char *const growth_kinds[] = {"fields", "slots", "KEEP by slots"};

typedef struct growth_case {
    growth_kind kind;
    int stage, ranks, tensors, of_unit; /* tensors of a unit */
    size_t numel;                       /* of a tensor */
} growth_case;

typedef struct growth_cost {
    double seconds[GROWTH_PHASES];  /* of this process's processors */
    long operations[GROWTH_PHASES]; /* 0 without GROWTH_COUNTS */
    long exchanges[GROWTH_PHASES], collectives[GROWTH_PHASES];
} growth_cost;

static double growth_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct growth_host { /* pointers, by tensor */
    float **param, **grad;
} growth_host;

static zero_result growth_announce(zero_ctx *z, const growth_case *c, growth_host *h) {
    for (int t = 0; t < c->tensors; t++) {
        char name[32];
        (void)snprintf(name, sizeof name, "layer.%d.weight", t);
        const int by_slot = c->kind != GROWTH_FIELDS;
        const zero_tensor_desc d = {.name = name,
                                    .numel = c->numel,
                                    .unit = c->kind == GROWTH_KEEP ? 0 : t / c->of_unit,
                                    .flags = c->kind == GROWTH_KEEP ? ZERO_KEEP : 0,
                                    .decay_factor = 0.5f,
                                    .field = (size_t)t * sizeof(float *),
                                    .param = by_slot ? &h->param[t] : NULL,
                                    .grad = by_slot ? &h->grad[t] : NULL};
        const zero_tensor_desc again = {.numel = c->numel,
                                        .same_as = name,
                                        .field = (size_t)(c->tensors + t) * sizeof(float *)};
        ZERO_TRY(zero_tensor(z, &d));
        if (!by_slot) ZERO_TRY(zero_tensor(z, &again));
    }
    return ZERO_OK;
}

static zero_result growth_plan(zero_ctx *z, int units) {
    zero_plan plan;
    zero_plan_unit unit;
    ZERO_TRY(zero_query_plan(z, &plan));
    for (int u = 0; u < units; u++) ZERO_TRY(zero_query_plan_unit(z, u, &unit));
    return ZERO_OK;
}

static zero_result growth_step(zero_ctx *z, const growth_case *c, int units, growth_host *h) {
    const zero_hyper hyper = {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f};
    ZERO_TRY(zero_pass_begin(z, ZERO_TRAIN, 0, 1));
    for (int u = 0; u < units && c->kind != GROWTH_KEEP; u++) {
        ZERO_TRY(zero_forward_begin(z, u, h->param));
        ZERO_TRY(zero_forward_end(z, u));
    }
    for (int u = units - 1; u >= 0 && c->kind != GROWTH_KEEP; u--) {
        ZERO_TRY(zero_backward_begin(z, u, h->param, h->grad));
        ZERO_TRY(zero_backward_end(z, u));
    }
    ZERO_TRY(zero_pass_end(z));
    ZERO_TRY(zero_reduce(z));
    ZERO_TRY(zero_step(z, &hyper));
    zero_step_report report;
    return zero_step_result(z, &report); /* waits */
}

static zero_result growth_state(zero_ctx *z) {
    char *out = (char *)malloc((size_t)64 << 20);
    zero_result r = out ? zero_state_begin(z) : ZERO_ERR_MEMORY;
    for (int i = 0; !r && i < zero_state_ranges(z, 0); i++) {
        zero_range range;
        r = zero_state_range(z, 0, i, &range);
        if (!r) r = zero_state_get(z, &range, out);
    }
    if (!r) r = zero_state_end(z, 0);
    free(out);
    return r;
}

/* 0: it failed, and has said so. */
static int growth_measure(const growth_case *c, growth_cost *cost) {
    const int units = c->kind == GROWTH_KEEP ? 1 : (c->tensors + c->of_unit - 1) / c->of_unit;
    const size_t pointers = 2 * (size_t)c->tensors; /* and of aliases */
    many_world world = {c->ranks, 0, 0};
    const zero_comm comm = {MANY_KIND, c->ranks / 2, &world, 0};
    growth_host h = {(float **)calloc(pointers, sizeof *h.param),
                     (float **)calloc(pointers, sizeof *h.grad)};
    zero_config cfg;
    zero_ctx *z = NULL;
    memset(&cfg, 0, sizeof cfg);
    cfg.stage = c->stage;
    cfg.threads = 1;
    zero_result r = h.param && h.grad ? zero_create(&z, &cfg, &comm) : ZERO_ERR_MEMORY;
    for (int p = 0; p < GROWTH_PHASES && !r; p++) {
        const double start = growth_now();
        const long operations = growth_counted();
        const long exchanges = world.exchanges, collectives = world.collectives;
        r = p == GROWTH_ANNOUNCE ? growth_announce(z, c, &h)
            : p == GROWTH_PLAN   ? growth_plan(z, c->kind == GROWTH_KEEP ? 0 : units)
            : p == GROWTH_BUILD  ? zero_build(z)
            : p == GROWTH_STEP   ? growth_step(z, c, units, &h)
                                 : growth_state(z);
        cost->seconds[p] = growth_now() - start;
        cost->operations[p] = growth_counted() - operations;
        cost->exchanges[p] = world.exchanges - exchanges;
        cost->collectives[p] = world.collectives - collectives;
    }
    if (r) fprintf(stderr, "%d tensors, %d ranks: %s\n", c->tensors, c->ranks, zero_last_error(z));
    zero_destroy(z);
    free(h.param);
    free(h.grad);
    return !r;
}

#endif

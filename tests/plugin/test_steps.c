/* test_steps.c - steps of small models: weights are those of plain AdamW on the mean of the ranks'
   gradients, also with other numbers of threads; counters, small collectives, and models that once
   went wrong. */
#include "small.h"

/* Invariant 9, and at any number of ranks: the weights are those of plain AdamW on the mean. */
static void steps_plain_rank(test_rank *rank) {
    const host_spec *s = (const host_spec *)rank->arg;
    host_run h;
    host_reference reference;
    host_reference_open(&reference, s);
    int ok = host_open(&h, s, rank);
    h.reference = &reference;
    for (h.step = 0; h.step < s->steps && ok; h.step++) {
        ok = small_step(&h);
        host_reference_step(&reference, s, 0, h.step, 1.0f);
    }
    ok = ok && host_compare(&h, ZERO_PARAMETER, reference.p, "parameter")
         && host_compare(&h, ZERO_MASTER, reference.master, "master")
         && host_compare(&h, ZERO_MOMENT_1, reference.m, "m")
         && host_compare(&h, ZERO_MOMENT_2, reference.v, "v");
    zero_destroy(h.z);
    host_reference_close(&reference, s);
}

static void steps_plain(void) {
    static const char *const types[] = {"f32", "bf16", "f16"};
    for (int stage = 0; stage < 4; stage++)
        for (int nranks = 1; nranks <= 3; nranks++)
            for (int k = 0; k < 6; k++) {
                host_spec s;
                small_spec(&s, nranks, stage);
                s.cfg.type = (zero_type)(k % 3);
                s.groups = k / 3;
                s.cfg.scaler.fixed = k % 3 == ZERO_F16 ? 64.0f : 0.0f;
                test_check(test_ranks(nranks, 0, steps_plain_rank, &s),
                           "plain AdamW, %s, stage %d, %d ranks: %s", types[k % 3], stage, nranks,
                           test_first);
            }
}

/* Ranks with different numbers of threads, as on machines of different size, train alike. */
static void steps_threads_rank(test_rank *rank) {
    host_spec s = *(const host_spec *)rank->arg;
    s.cfg.threads = 1 + rank->rank;
    rank->arg = &s;
    steps_plain_rank(rank);
}

static void steps_threads(void) {
    for (int stage = 0; stage < 4; stage++) {
        host_spec s;
        small_spec(&s, 3, stage);
        s.steps = 2;
        s.desc[1].numel = 40000; /* OpenMP divides arrays above 32768 elements */
        test_check(test_ranks(3, 0, steps_threads_rank, &s), "threads differ, stage %d: %s", stage,
                   test_first);
    }
}

/* Names that differ where no error's sentence reaches. */
static void steps_long_name_rank(test_rank *rank) {
    char name[1001];
    const zero_tensor_desc d = {name, 5, .layers = 1};
    const zero_config cfg = {.log = test_quiet};
    const zero_comm comm = test_comm(rank);
    zero_ctx *z = NULL;
    memset(name, 'n', sizeof name);
    name[999] = (char)('a' + rank->rank);
    name[1000] = 0;
    if (zero_create(&z, &cfg, &comm) || zero_tensor(z, &d) || zero_build(z) != ZERO_ERR_MISMATCH
        || !strstr(zero_last_error(z), "hash"))
        test_rank_fail(rank, "\"%s\"", zero_last_error(z));
    zero_destroy(z);
}

/* What a run goes on from; a loss scale that has not begun begins. */
static void steps_counters(void) {
    const zero_config cfg = {.type = ZERO_F16, .scaler.initial = 4096};
    const zero_counters good = {7, 3, 5, 2, 128, 1};
    const zero_counters bad[] = {
        {-1, 3, 5, 2, 128, 1}, {7, -1, 5, 2, 128, 1}, {7, 3, -1, 2, 128, 1}, {7, 3, 5, -2, 128, 1},
        {7, 3, 5, 2, NAN, 1},  {7, 3, 5, 2, 0, 1},    {7, 3, 5, 2, 128, -1}};
    zero_ctx *z = small_build(&cfg);
    zero_counters now, fresh = good;
    fresh.iteration = 0;
    zero_state_counters(z, &now);
    test_check(now.steps == 0 && now.skipped == 0 && now.iteration == 0 && now.last_overflow == -1
                   && now.scale == 4096 && now.hysteresis == 2,
               "counters of a new context: %d", (int)now.last_overflow);
    test_check(!zero_state_begin(z), "%s", zero_last_error(z));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        small_expect_error(z, zero_state_set_counters(z, &bad[i]), ZERO_ERR_ARGUMENT,
                           "zero_state_set_counters", "a counter is below 0");
    small_expect_error(z, zero_state_set_counters(z, NULL), ZERO_ERR_ARGUMENT,
                       "zero_state_set_counters", "a counter is below 0");
    test_check(!zero_state_set_counters(z, &good), "%s", zero_last_error(z));
    zero_state_counters(z, &now);
    test_check(!memcmp(&now, &good, sizeof now), "counters that were set are read");
    test_check(!zero_state_set_counters(z, &fresh), "%s", zero_last_error(z));
    zero_state_counters(z, &now);
    test_check(now.steps == 7 && now.skipped == 3 && now.iteration == 0 && now.last_overflow == -1
                   && now.scale == 4096 && now.hysteresis == 2,
               "a scale that begins: %g, %d left", (double)now.scale, now.hysteresis);
    test_check(!zero_state_end(z, 1), "%s", zero_last_error(z));
    zero_destroy(z);
}

static void steps_collectives_rank(test_rank *r) {
    zero_ctx *z = NULL;
    zero_config cfg = {.log = test_quiet};
    zero_comm comm = test_comm(r);
    double v[65], few[3] = {r->rank + 1, 2, -7}; /* the last of each is not in the sum */
    enum { N = 700001 };
    unsigned char *data = (unsigned char *)malloc(N);
    int ok = !zero_create(&z, &cfg, &comm);
    for (int i = 0; i < 65; i++) v[i] = (double)(i + 1) * 0.1 * (r->rank + 1);
    const double beyond = v[64];
    ok = ok && !zero_all_sum(z, v, 64); /* before build, too */
    ok = ok && !zero_all_sum(z, few, 2);
    if (v[64] != beyond || few[0] != r->nranks * (r->nranks + 1) / 2 || few[1] != 2 * r->nranks
        || few[2] != -7)
        test_rank_fail(r, "sums of two: %g and %g, beyond them %g and %g", few[0], few[1], few[2],
                       v[64]);
    for (int i = 0; i < 64 && ok; i++) {
        double sum = 0;
        for (int p = 0; p < r->nranks; p++) sum += (double)(i + 1) * 0.1 * (p + 1);
        if (v[i] != sum) test_rank_fail(r, "sum %d is %.17g, expected %.17g", i, v[i], sum);
    }
    if (ok) small_announce(z);
    ok = ok && !zero_build(z) && !zero_barrier(z) && !zero_all_sum(z, v, 0)
         && !zero_broadcast(z, NULL, 0, 0);
    for (int root = 0; root < r->nranks && ok; root++) {
        for (int i = 0; i < N; i++) data[i] = (unsigned char)(r->rank == root ? i * 7 + root : 255);
        ok = !zero_broadcast(z, data, N, root);
        for (int i = 0; i < N && ok; i++)
            if (data[i] != (unsigned char)(i * 7 + root)) {
                test_rank_fail(r, "byte %d from %d", i, root);
                break;
            }
    }
    if (!ok) test_rank_fail(r, "%s", zero_last_error(z));
    zero_destroy(z);
    free(data);
}

/* Units of a deep nest leave few buffers: what is gathered ahead must not take the place of what
   was gathered a moment before. */
static void steps_deep_nest(test_rank *r) {
    static const int order[] = {0, 1, 5};
    zero_ctx *z = NULL;
    host_pointers p;
    zero_config cfg = {
        .stage = 3, .no_mapping = 1, .prefetch = 2, .log = test_quiet, .timeout_s = 5};
    zero_comm comm = test_comm(r);
    const zero_tensor_desc d = {"w", 64, .layers = 9};
    float values[64];
    int ok = !zero_create(&z, &cfg, &comm) && !zero_tensor(z, &d) && !zero_build(z);
    for (int l = 0; l < 9 && ok; l++) {
        for (int i = 0; i < 64; i++) values[i] = (float)(100 * l + i);
        ok = !zero_write_tensor(z, "w", ZERO_PARAMETER, (size_t)l * 64, 64, values);
    }
    ok = ok && !zero_pass_begin(z, ZERO_EVAL, 0, 1);
    for (int i = 0; i < 3 && ok; i++) {
        ok = !zero_forward_begin(z, order[i], &p);
        for (int k = 0; k < 64 && ok; k++)
            if (((float *)(void *)p.field[0])[64 * order[i] + k] != (float)(100 * order[i] + k))
                test_rank_fail(r, "unit %d", order[i]);
    }
    for (int i = 2; i >= 0 && ok; i--) ok = !zero_forward_end(z, order[i]);
    for (int u = 6; u < 9 && ok; u++) {
        ok = !zero_forward_begin(z, u, &p);
        if (ok && ((float *)(void *)p.field[0])[64 * u + 63] != (float)(100 * u + 63))
            test_rank_fail(r, "unit %d", u);
        ok = ok && !zero_forward_end(z, u);
    }
    ok = ok && !zero_pass_end(z);
    for (int l = 0; l < 9 && ok; l++) { /* and nothing was gathered over another unit */
        ok = !zero_read_tensor(z, "w", ZERO_PARAMETER, (size_t)l * 64, 64, values);
        for (int i = 0; i < 64 && ok; i++)
            if (values[i] != (float)(100 * l + i)) test_rank_fail(r, "unit %d was written over", l);
    }
    if (!ok) test_rank_fail(r, "%s", zero_last_error(z));
    zero_destroy(z);
}

/* A peer that is still looking at the parameters, after zero_reduce, sees the old ones: mapped
   shards are updated in place. */
static void steps_look_before_step(test_rank *rank) {
    const host_spec *s = (const host_spec *)rank->arg;
    const struct timespec wait = {0, 20000000};
    host_run h;
    int ok = host_open(&h, s, rank) && host_train_pass(&h);
    ok = ok && !zero_reduce(h.z) && !zero_pass_begin(h.z, ZERO_EVAL, 0, 1)
         && !zero_forward_begin(h.z, 1, &h.params);
    if (ok) {
        if (rank->rank == 0) nanosleep(&wait, NULL);
        for (size_t i = 0; i < s->desc[1].numel; i++)
            if (host_get(host_tensor(&h, 1, 0, 0), s->cfg.type, i)
                != host_value(s, 0, 0, 0, 0, 1, i))
                test_rank_fail(rank, "mat[%zu] has moved", i);
    }
    ok = ok && !zero_forward_end(h.z, 1) && !zero_pass_end(h.z) && !zero_step(h.z, &s->adamw);
    if (!ok) test_rank_fail(rank, "%s", zero_last_error(h.z));
    zero_destroy(h.z);
}

static void steps_regressions(void) {
    for (int stage = 0; stage < 4; stage++) {
        host_spec s;
        small_spec(&s, 3, stage);
        test_check(test_ranks(3, 0, steps_look_before_step, &s),
                   "evaluation between reduce and step, stage %d: %s", stage, test_first);
    }
    test_check(test_ranks(2, 0, steps_deep_nest, NULL), "gathers ahead in a deep nest: %s",
               test_first);
}

int main(void) {
    (void)alarm(300); /* a rank that never returns is a failure */
    steps_plain();
    steps_threads();
    test_check(test_ranks(2, 0, steps_long_name_rank, NULL), "long names: %s", test_first);
    steps_counters();
    for (int n = 1; n <= 4; n++)
        test_check(test_ranks(n, 0, steps_collectives_rank, NULL), "small collectives: %s",
                   test_first);
    steps_regressions();
    return test_summary();
}

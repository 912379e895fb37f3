/* small.h - a context of three small units on one rank, and the check of an error's sentence. */
#ifndef TEST_SMALL_H
#define TEST_SMALL_H

#include "../shared/host.h"

/* Checks a result, and that its sentence names the call, the rank and what was wrong. */
static inline void small_expect_error(zero_ctx *z, zero_result got, zero_result expected,
                                      const char *call, const char *what) {
    char rank[64];
    const char *text = zero_last_error(z);
    snprintf(rank, sizeof rank, "%s, rank %d of %d: ", call, zero_rank(z), zero_nranks(z));
    test_check(got == expected && !strncmp(text, rank, strlen(rank))
                   && strstr(text + strlen(rank), what),
               "%s must fail with %d and name \"%s\": %d, \"%s\"", call, (int)expected, what,
               (int)got, text);
}

static inline zero_ctx *small_create(const zero_config *given) {
    zero_ctx *z = NULL;
    zero_config cfg = {0};
    const zero_comm comm = {ZERO_COMM_SELF, 0, NULL, 0};
    if (given) cfg = *given;
    cfg.log = test_quiet;
    test_check(zero_create(&z, &cfg, &comm) == ZERO_OK && !zero_last_error(z)[0], "a context");
    return z;
}

/* Three units; each pass uses "top" twice, and "bias" is KEEP. */
static inline void small_announce(zero_ctx *z) {
    const zero_tensor_desc top = {"top", 40, 1, .uses = 2},
                           body = {"body", 100, 2, .unit = 1, .field = sizeof(float *)};
    const zero_tensor_desc bias = {
        "bias", 5, 2, .unit = 1, .flags = ZERO_KEEP, .field = 2 * sizeof(float *)};
    test_check(!zero_tensor(z, &top) && !zero_tensor(z, &body) && !zero_tensor(z, &bias),
               "tensors");
}

static inline zero_ctx *small_build(const zero_config *cfg) {
    zero_ctx *z = small_create(cfg);
    small_announce(z);
    test_check(zero_build(z) == ZERO_OK, "a context is built: %s", zero_last_error(z));
    return z;
}

static inline int small_micro_step(zero_ctx *z, int micro, int micro_steps) {
    host_pointers p, g;
    int bad = zero_bind(z, &p, &g) || zero_pass_begin(z, ZERO_TRAIN, micro, micro_steps);
    for (int u = 0; u < 3; u++) bad |= zero_forward_begin(z, u, &p) || zero_forward_end(z, u);
    bad |= zero_backward_begin(z, 0, &p, &g) || zero_backward_end(z, 0);
    for (int u = 2; u >= 0; u--)
        bad |= zero_backward_begin(z, u, &p, &g) || zero_backward_end(z, u);
    return !bad && !zero_pass_end(z);
}

static const zero_hyper small_adamw = {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 0};

/* A model for the trainer of host.h: a tied tensor, three blocks, KEEP and a last unit. */
static inline void small_spec(host_spec *s, int nranks, int stage) {
    static const zero_tensor_desc desc[] = {
        {"emb", 700, 1, .uses = 2},
        {"mat", 331, 3, .unit = 1},
        {"vec", 17, 3, .unit = 1, .flags = ZERO_NO_DECAY | ZERO_ONE_D},
        {"norm", 9, 3, .unit = 1, .flags = ZERO_KEEP | ZERO_NO_DECAY},
        {"out", 5, 1, .unit = 4, .flags = ZERO_ONE_D}};
    memset(s, 0, sizeof *s);
    s->seed = 5;
    s->nranks = nranks;
    s->steps = 3;
    s->micro_steps = 1;
    s->ntensors = 5;
    s->units = 5;
    s->silent_unit = -1;
    memcpy(s->desc, desc, sizeof desc);
    s->cfg.stage = stage;
    s->cfg.threads = 1;
    s->adamw = (zero_hyper){0.01f, 0.9f, 0.95f, 1e-8f, 0.1f, 0};
}

static inline int small_step(host_run *h) {
    for (h->micro = 0; h->micro < h->spec->micro_steps; h->micro++)
        if (!host_train_pass(h)) return 0;
    HOST_TRY(h, zero_reduce(h->z));
    HOST_TRY(h, zero_step(h->z, &h->spec->adamw));
    return 1;
}

#endif

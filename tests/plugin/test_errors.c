/* test_errors.c - every public function returns an error for what it may not be given, and for a
   call in the wrong order. The sentence names the call, the rank and the values. The program links
   the plugin, so it uses public names alone. */
#include "small.h"

/* Each result has a sentence of its own, and other numbers have none. */
static void errors_results(void) {
    const char *none = zero_result_string(ZERO_RESULT_COUNT);
    test_check(!strcmp(zero_result_string((zero_result)-1), none), "result -1: %s", none);
    for (int r = 0; r < ZERO_RESULT_COUNT; r++) {
        const char *text = zero_result_string((zero_result)r);
        int others = 0;
        for (int o = 0; o < ZERO_RESULT_COUNT; o++)
            others += o != r && !strcmp(text, zero_result_string((zero_result)o));
        test_check(text[0] && strcmp(text, none) != 0 && !others, "result %d: \"%s\"", r, text);
    }
}

static void errors_bad_config(zero_config cfg, const char *what) {
    zero_ctx *z = NULL;
    const zero_comm comm = {ZERO_COMM_SELF, 0, NULL, 0};
    const zero_tensor_desc d = {"a", 1, .layers = 1};
    cfg.log = test_quiet;
    const zero_result r = zero_create(&z, &cfg, &comm);
    small_expect_error(z, r, ZERO_ERR_ARGUMENT, "zero_create", what);
    test_check(zero_tensor(z, &d) == ZERO_ERR_ARGUMENT && zero_build(z) == ZERO_ERR_ARGUMENT,
               "%s: sticky", what);
    zero_destroy(z);
}

static void errors_of_config(void) {
    errors_bad_config((zero_config){.stage = 4}, "stage is 4, expected 0..3");
    errors_bad_config((zero_config){.stage = -1}, "stage is -1");
    errors_bad_config((zero_config){.micro_steps = -2}, "micro_steps is -2");
    errors_bad_config((zero_config){.accumulation = (zero_accumulation)3}, "accumulation is 3");
    errors_bad_config((zero_config){.accumulation = (zero_accumulation)-1}, "accumulation is -1");
    errors_bad_config((zero_config){.prefetch = -2}, "prefetch is -2");
    errors_bad_config((zero_config){.prefetch = 65}, "prefetch is 65");
    errors_bad_config((zero_config){.persistence_numel = -2}, "persistence_numel is -2");
    errors_bad_config((zero_config){.timeout_s = -1}, "timeout_s is -1");
    errors_bad_config((zero_config){.timeout_s = NAN}, "timeout_s is nan");
    errors_bad_config((zero_config){.timeout_s = INFINITY}, "timeout_s is inf");
    errors_bad_config((zero_config){.threads = -1}, "threads is -1, expected 0 or more");
    errors_bad_config((zero_config){.type = (zero_type)3}, "type is 3");
    errors_bad_config((zero_config){.type = (zero_type)-1}, "type is -1");
    errors_bad_config((zero_config){.grads = (zero_grad_type)3}, "grads is 3");
    errors_bad_config((zero_config){.grads = (zero_grad_type)-1}, "grads is -1");
    errors_bad_config((zero_config){.optimizer = ZERO_OPTIMIZER_OWN},
                      "optimizer is 8, expected 0..7");
    errors_bad_config((zero_config){.optimizer = (zero_optimizer)-1}, "optimizer is -1");
    errors_bad_config((zero_config){.master = ZERO_MASTER_NONE}, "master is NONE");
    errors_bad_config((zero_config){.master = ZERO_MASTER_NONE, .type = ZERO_F16},
                      "master is NONE");
    errors_bad_config((zero_config){.master = ZERO_MASTER_SPLIT}, "master is SPLIT");
    errors_bad_config((zero_config){.optimizer = ZERO_ADAGRAD, .state_type = ZERO_STATE_8BIT},
                      "state_type is 8BIT, but the state of adagrad only grows");
    errors_bad_config((zero_config){.master = ZERO_MASTER_SPLIT, .type = ZERO_F16},
                      "F16 has an exponent of its own");
}

static void errors_bad_scaler(zero_scaler scaler, const char *what) {
    errors_bad_config((zero_config){.type = ZERO_F16, .scaler = scaler}, what);
}

static void errors_of_scaler(void) {
    errors_bad_scaler((zero_scaler){.fixed = -1}, "scaler.fixed is -1");
    errors_bad_scaler((zero_scaler){.fixed = NAN}, "scaler.fixed is nan");
    errors_bad_scaler((zero_scaler){.fixed = INFINITY}, "scaler.fixed is inf");
    errors_bad_scaler((zero_scaler){.initial = -2}, "scaler.initial is -2");
    errors_bad_scaler((zero_scaler){.initial = INFINITY}, "scaler.initial is inf");
    errors_bad_scaler((zero_scaler){.minimum = -3}, "scaler.minimum is -3");
    errors_bad_scaler((zero_scaler){.minimum = NAN}, "scaler.minimum is nan");
    errors_bad_scaler((zero_scaler){.window = -4}, "scaler.window is -4");
    errors_bad_scaler((zero_scaler){.hysteresis = -5}, "scaler.hysteresis is -5");
    errors_bad_scaler((zero_scaler){.initial = 2, .minimum = 4},
                      "scaler.initial 2 is below scaler.minimum 4");
    errors_bad_config((zero_config){.type = ZERO_F16, .no_overflow_check = 1}, "no_overflow_check");
}

static void errors_bad_comm(zero_comm comm, zero_result expected, const char *what) {
    zero_ctx *z = NULL;
    zero_config cfg = {.log = test_quiet};
    const zero_result r = zero_create(&z, &cfg, &comm);
    small_expect_error(z, r, expected, "zero_create", what);
    test_check(zero_nranks(z) == 1, "%s: %d ranks before there is a group", what, zero_nranks(z));
    zero_destroy(z);
}

static void errors_of_comm(void) {
    zero_local *local = NULL;
    zero_ctx *z = NULL;
    zero_config cfg = {0};
    zero_comm comm = {ZERO_COMM_SELF, 0, NULL, 0};
    test_check(zero_local_create(&local, 0, 0) == ZERO_ERR_ARGUMENT, "no ranks");
    test_check(zero_local_create(&local, 65, 0) == ZERO_ERR_ARGUMENT, "65 ranks");
    test_check(zero_local_create(NULL, 2, 0) == ZERO_ERR_ARGUMENT, "nowhere to put it");
    test_check(zero_create(NULL, &cfg, &comm) == ZERO_ERR_ARGUMENT, "zero_create(NULL)");
    test_check(zero_create(&z, NULL, &comm) == ZERO_ERR_ARGUMENT, "no configuration");
    test_check(zero_create(&z, &cfg, NULL) == ZERO_ERR_ARGUMENT, "no communicator");
    errors_bad_comm((zero_comm){ZERO_COMM_LOCAL, 0, NULL, 0}, ZERO_ERR_ARGUMENT, "handle is NULL");
    errors_bad_comm((zero_comm){(zero_comm_kind)9, 0, NULL, 0}, ZERO_ERR_ARGUMENT, "kind is 9");
    errors_bad_comm((zero_comm){(zero_comm_kind)-99999, 0, NULL, 0}, ZERO_ERR_ARGUMENT,
                    "kind is -99999");
    errors_bad_comm((zero_comm){(zero_comm_kind)4, 0, NULL, 0}, ZERO_ERR_ARGUMENT, "kind is 4");
    for (int i = 0; i < 3; i++) { /* a group of its own each: who cannot join ends it for all */
        static const zero_comm bad[] = {{ZERO_COMM_LOCAL, 1, NULL, 0},
                                        {ZERO_COMM_LOCAL, -1, NULL, 0},
                                        {ZERO_COMM_LOCAL, 0, NULL, 2}};
        static const char *const what[] = {"rank is 1", "rank is -1", "node_size 2"};
        if (!test_check(!zero_local_create(&local, 1, 0), "a group")) return;
        comm = bad[i];
        comm.handle = local;
        errors_bad_comm(comm, ZERO_ERR_ARGUMENT, what[i]);
        zero_local_destroy(local);
    }
#ifndef ZERO_WITH_MPI
    errors_bad_comm((zero_comm){ZERO_COMM_MPI, 0, NULL, 0}, ZERO_ERR_UNSUPPORTED, "MPI");
#endif
    zero_local_destroy(NULL);
    zero_destroy(NULL);
    test_check(zero_barrier(NULL) == ZERO_ERR_ARGUMENT && zero_last_error(NULL)[0], "no context");
}

static void errors_resolved_config(void) {
    zero_config seen;
    zero_config given = {.stage = 2};
    zero_ctx *z = small_create(&given);
    zero_query_config(z, &seen);
    test_check(seen.stage == 2 && seen.micro_steps == 1
                   && seen.accumulation == ZERO_ACCUMULATE_SHARDED && seen.prefetch == 1
                   && seen.timeout_s == 600 && seen.threads >= 1,
               "defaults at stage 2");
    test_check(zero_rank(z) == 0 && zero_nranks(z) == 1 && zero_loss_scale(z) == 1.0f,
               "rank 0 of 1");
    zero_destroy(z);
    given.stage = 1;
    given.prefetch = ZERO_NONE;
    z = small_create(&given);
    zero_query_config(z, &seen);
    test_check(seen.accumulation == ZERO_ACCUMULATE_LOCAL && seen.prefetch == 0,
               "defaults at stage 1");
    test_check(seen.grads == ZERO_GRAD_F32 && seen.scaler.fixed == 1, "defaults of F32");
    zero_destroy(z);
    given = (zero_config){.type = ZERO_F16};
    z = small_create(&given);
    zero_query_config(z, &seen);
    test_check(seen.grads == ZERO_GRAD_AS_TYPE && seen.scaler.fixed == 0
                   && seen.scaler.initial == 65536 && seen.scaler.minimum == 1
                   && seen.scaler.window == 1000 && seen.scaler.hysteresis == 2,
               "defaults of F16");
    zero_destroy(z);
    given = (zero_config){.type = ZERO_BF16, .micro_steps = 2};
    z = small_create(&given);
    zero_query_config(z, &seen);
    test_check(seen.grads == ZERO_GRAD_F32 && seen.scaler.fixed == 1, "defaults of BF16");
    zero_destroy(z);
}

static void errors_bad_tensor(zero_ctx *z, zero_tensor_desc d, const char *what) {
    small_expect_error(z, zero_tensor(z, &d), ZERO_ERR_ARGUMENT, "zero_tensor", what);
}

static void errors_bad_factors(zero_ctx *z, float lr, float decay, const char *what) {
    errors_bad_tensor(
        z, (zero_tensor_desc){.name = "b", .numel = 1, .lr_factor = lr, .decay_factor = decay},
        what);
}

/* All tensors have 2^48 elements at most, also after a plan: sums of their bytes do not overflow.
 */
static void errors_of_totals(void) {
    zero_config cfg = {.stage = 1};
    zero_ctx *z = small_create(&cfg);
    zero_plan plan;
    const zero_tensor_desc a = {"a", (size_t)1 << 47, .layers = 1},
                           b = {"b", (size_t)1 << 26, .layers = 1 << 20};
    test_check(zero_tensor(z, &a) == ZERO_OK && zero_query_plan(z, &plan) == ZERO_OK, "2^47");
    test_check(zero_tensor(z, &b) == ZERO_OK, "2^46 more");
    errors_bad_tensor(
        z, (zero_tensor_desc){"c", ((size_t)1 << 46) + 1, .layers = 1},
        "tensor c: numel is 70368744177665, expected 1..70368744177664 (2^48 in all)");
    const zero_tensor_desc c = {"c", (size_t)1 << 46, .layers = 1};
    test_check(zero_tensor(z, &c) == ZERO_OK, "2^48 in all");
    errors_bad_tensor(z, (zero_tensor_desc){"d", 1, .layers = 1}, "numel is 1, expected 1..0");
    zero_destroy(z);
}

static void errors_of_tensors(void) {
    zero_config cfg = {.micro_steps = 3, .accumulation = ZERO_ACCUMULATE_LOCAL};
    const zero_tensor_desc good = {"good", 5, .layers = 0}, gap = {"gap", 5, 1, .unit = 2};
    zero_ctx *z = small_create(&cfg);
    test_check(zero_tensor(z, &good) == ZERO_OK, "a tensor");
    small_expect_error(z, zero_tensor(z, NULL), ZERO_ERR_ARGUMENT, "zero_tensor", "desc is NULL");
    errors_bad_tensor(z, (zero_tensor_desc){"", 1, .layers = 1}, "name");
    errors_bad_tensor(z, good, "tensor good was announced");
    errors_bad_tensor(z, (zero_tensor_desc){"b", 0, .layers = 1}, "tensor b: numel is 0");
    errors_bad_tensor(z, (zero_tensor_desc){"b", (size_t)-1, .layers = 1},
                      "tensor b: numel is 18446744073709551615");
    errors_bad_tensor(z, (zero_tensor_desc){"b", ((size_t)1 << 28) + 1, .layers = 1 << 20},
                      "tensor b: numel is 268435457, expected 1..268435455");
    errors_bad_tensor(z, (zero_tensor_desc){"b", ((size_t)1 << 48) + 1, .layers = 0},
                      "tensor b: numel is 281474976710657, expected 1..281474976710651");
    errors_bad_tensor(z, (zero_tensor_desc){"b", 1, .layers = -1}, "tensor b: layers is -1");
    errors_bad_tensor(z, (zero_tensor_desc){"b", 1, 1, .unit = -3}, "unit is -3");
    errors_bad_tensor(z, (zero_tensor_desc){"b", 1, 1, .unit = 1000000000},
                      "tensor b: unit is 1000000000, expected 0..1048576");
    errors_bad_tensor(z, (zero_tensor_desc){"b", 1, .layers = 1 << 30},
                      "tensor b: layers is 1073741824, expected 0..1048576");
    errors_bad_tensor(z, (zero_tensor_desc){"b", 1, 1, .uses = -4}, "uses is -4");
    errors_bad_tensor(z, (zero_tensor_desc){"b", 1, 1, .flags = 2048}, "flags 2048");
    errors_bad_tensor(z, (zero_tensor_desc){"b", 1, 3, .flags = ZERO_KEEP, .frozen = "\1\1\0"},
                      "layer 2 is trained, but others of its unit are not");
    errors_bad_tensor(z, (zero_tensor_desc){"b", 1, 4, .together = 2, .frozen = "\1\1\0\1"},
                      "layer 3 is frozen, but others of its unit are not");
    errors_bad_tensor(z, (zero_tensor_desc){"b", 1, 1, .flags = ZERO_OVERWRITTEN}, "3 micro-steps");
    errors_bad_factors(z, -0.5f, 1, "b: lr_factor -0.5");
    errors_bad_factors(z, 1, -2, "decay_factor -2");
    errors_bad_factors(z, NAN, 1, "lr_factor nan");
    errors_bad_factors(z, 1, INFINITY, "decay_factor inf");
    test_check(zero_tensor(z, &gap) == ZERO_OK, "a tensor of unit 2");
    small_expect_error(z, zero_build(z), ZERO_ERR_ARGUMENT, "zero_build",
                       "unit 1 has no tensor, expected one in each of 0..2");
    zero_destroy(z);
    z = small_create(NULL);
    const zero_tensor_desc fields[] = {{"a", 4, .layers = 2, .field = 8}, /* units 0 and 1 */
                                       {"b", 4, .unit = 2, .field = 8},
                                       {"c", 4, .unit = 1, .field = 16},
                                       {"d", 4, .unit = 2, .field = 8}};
    test_check(!zero_tensors(z, fields, 4), "fields: %s", zero_last_error(z));
    small_expect_error(z, zero_build(z), ZERO_ERR_ARGUMENT, "zero_build",
                       "tensors b and d of unit 2 have the same field (offset 8)");
    zero_destroy(z);
    z = small_create(NULL);
    small_expect_error(z, zero_build(z), ZERO_ERR_STATE, "zero_build", "no tensor");
    zero_destroy(z);
}

/* Without a context, what has no result answers as one rank that trains nothing. */
static void errors_no_context(void) {
    zero_config cfg;
    zero_counters counters;
    memset(&cfg, 1, sizeof cfg);
    memset(&counters, 1, sizeof counters);
    zero_query_config(NULL, &cfg);
    zero_query_config(NULL, NULL);
    zero_state_counters(NULL, &counters);
    zero_state_counters(NULL, NULL);
    test_check(zero_rank(NULL) == 0 && zero_nranks(NULL) == 1 && zero_loss_scale(NULL) == 1
                   && zero_state_ranges(NULL, 0) == 0 && zero_state_ranges(NULL, 1) == 0,
               "no context: one rank");
    test_check(cfg.stage == 0 && cfg.timeout_s == 0 && cfg.log == NULL && counters.steps == 0
                   && counters.hysteresis == 0,
               "no context: zeros");
}

static void errors_before_build(void) {
    zero_ctx *z = small_create(NULL);
    zero_stats stats;
    zero_step_report report;
    float x = 0;
    double norm;
    const zero_result S = ZERO_ERR_STATE;
    small_announce(z);
    small_expect_error(z, zero_bind(z, NULL, NULL), S, "zero_bind", "zero_build");
    small_expect_error(z, zero_pass_begin(z, ZERO_TRAIN, 0, 1), S, "zero_pass_begin", "zero_build");
    small_expect_error(z, zero_forward_begin(z, 1, NULL), S, "zero_forward_begin", "unit 1");
    small_expect_error(z, zero_forward_end(z, 1), S, "zero_forward_end", "unit 1");
    small_expect_error(z, zero_backward_begin(z, 2, NULL, NULL), S, "zero_backward_begin",
                       "unit 2");
    small_expect_error(z, zero_backward_end(z, 2), S, "zero_backward_end", "unit 2");
    small_expect_error(z, zero_pass_end(z), S, "zero_pass_end", "no pass");
    small_expect_error(z, zero_reduce(z), S, "zero_reduce", "micro-steps");
    small_expect_error(z, zero_norm(z, &norm), S, "zero_norm", "zero_reduce");
    small_expect_error(z, zero_step(z, &small_adamw), S, "zero_step", "zero_reduce");
    small_expect_error(z, zero_step_result(z, &report), S, "zero_step_result", "no step");
    small_expect_error(z, zero_read_tensor(z, "top", ZERO_PARAMETER, 0, 1, &x), S,
                       "zero_read_tensor", "zero_build");
    small_expect_error(z, zero_write_tensor(z, "top", ZERO_PARAMETER, 0, 1, &x), S,
                       "zero_write_tensor", "zero_build");
    small_expect_error(z, zero_broadcast(z, &x, 4, 0), S, "zero_broadcast", "zero_build");
    small_expect_error(z, zero_query_stats(z, &stats), S, "zero_query_stats", "zero_build");
    small_expect_error(z, zero_state_begin(z), S, "zero_state_begin", "call zero_build first");
    test_check(zero_build(z) == ZERO_OK, "errors of order harm nothing");
    small_expect_error(z, zero_build(z), S, "zero_build", "built already");
    const zero_tensor_desc late = {"late", 1, .layers = 1};
    small_expect_error(z, zero_tensor(z, &late), S, "zero_tensor", "before zero_build");
    small_expect_error(z, zero_skip_step(z), S, "zero_skip_step", "call zero_reduce first");
    zero_destroy(z);
}

static void errors_of_hooks(void) {
    zero_config cfg = {.stage = 3, .micro_steps = 2};
    zero_ctx *z = small_build(&cfg);
    host_pointers p, g;
    const zero_result S = ZERO_ERR_STATE, A = ZERO_ERR_ARGUMENT;
    test_check(!zero_bind(z, &p, &g), "bind");
    small_expect_error(z, zero_pass_begin(z, (zero_pass)2, 0, 1), A, "zero_pass_begin", "2");
    small_expect_error(z, zero_pass_begin(z, ZERO_TRAIN, 0, 3), A, "zero_pass_begin",
                       "micro_steps is 3");
    small_expect_error(z, zero_pass_begin(z, ZERO_TRAIN, 0, 0), A, "zero_pass_begin",
                       "micro_steps is 0");
    small_expect_error(z, zero_pass_begin(z, ZERO_TRAIN, 1, 2), S, "zero_pass_begin",
                       "micro-step 1 of 2, expected 0");
    small_expect_error(z, zero_pass_begin(z, ZERO_TRAIN, -1, 2), S, "zero_pass_begin",
                       "micro-step -1 of 2");
    test_check(!zero_pass_begin(z, ZERO_TRAIN, 0, 2), "pass");
    small_expect_error(z, zero_pass_begin(z, ZERO_TRAIN, 0, 2), S, "zero_pass_begin",
                       "has not ended");
    small_expect_error(z, zero_forward_begin(z, 3, &p), A, "zero_forward_begin",
                       "unit 3, expected 0..2");
    small_expect_error(z, zero_forward_begin(z, -1, &p), A, "zero_forward_begin", "unit -1");
    small_expect_error(z, zero_forward_begin(z, 1, NULL), A, "zero_forward_begin", "tensor body");
    small_expect_error(z, zero_forward_end(z, 1), S, "zero_forward_end", "unit 1");
    small_expect_error(z, zero_backward_begin(z, 1, &p, NULL), A, "zero_backward_begin",
                       "tensor body");
    small_expect_error(z, zero_backward_end(z, 1), S, "zero_backward_end", "unit 1");
    test_check(!zero_forward_begin(z, 1, &p), "forward");
    small_expect_error(z, zero_pass_end(z), S, "zero_pass_end", "unit 1: its forward");
    test_check(!zero_forward_end(z, 1) && !zero_backward_begin(z, 2, &p, &g), "backward");
    small_expect_error(z, zero_pass_end(z), S, "zero_pass_end", "unit 2: its backward");
    test_check(!zero_backward_end(z, 2), "backward");
    small_expect_error(z, zero_backward_begin(z, 2, &p, &g), S, "zero_backward_begin",
                       "unit 2: its gradient is complete after 1");
    test_check(!zero_backward_begin(z, 0, &p, &g) && !zero_backward_begin(z, 0, NULL, &g)
                   && !zero_backward_begin(z, 0, &p, &g) && !zero_backward_end(z, 0)
                   && !zero_backward_end(z, 0) && !zero_backward_end(z, 0),
               "first use: three nested backwards, two of which want parameters");
    test_check(!zero_backward_begin(z, 0, NULL, &g), "second use");
    test_check(!zero_backward_begin(z, 0, &p, &g) && p.field[0] != NULL && !zero_backward_end(z, 0),
               "a nested backward that wants parameters gets them");
    test_check(!zero_backward_end(z, 0), "second use");
    small_expect_error(z, zero_backward_begin(z, 0, &p, &g), S, "zero_backward_begin",
                       "complete after 2 uses");
    small_expect_error(z, zero_reduce(z), S, "zero_reduce", "2 micro-steps");
    test_check(!zero_pass_end(z), "pass");
    small_expect_error(z, zero_pass_begin(z, ZERO_TRAIN, 0, 2), S, "zero_pass_begin",
                       "micro-step 0 of 2, expected 1 of 2");
    small_expect_error(z, zero_pass_begin(z, ZERO_TRAIN, 1, 1), S, "zero_pass_begin",
                       "micro-step 1 of 1");
    small_expect_error(z, zero_reduce(z), S, "zero_reduce", "2 micro-steps");
    test_check(small_micro_step(z, 1, 2) && !zero_reduce(z) && !zero_step(z, &small_adamw),
               "errors of order harm nothing");
    zero_destroy(z);
}

static void errors_of_evaluation(void) {
    zero_ctx *z = small_build(NULL);
    host_pointers p, g;
    const zero_result S = ZERO_ERR_STATE;
    float x = 0;
    test_check(!zero_pass_begin(z, ZERO_EVAL, 0, 1) && !zero_forward_begin(z, 1, &p), "evaluation");
    small_expect_error(z, zero_backward_begin(z, 1, &p, &g), S, "zero_backward_begin",
                       "unit 1: no backward in an evaluation");
    small_expect_error(z, zero_reduce(z), S, "zero_reduce", "micro-steps");
    small_expect_error(z, zero_step(z, &small_adamw), S, "zero_step", "zero_reduce");
    small_expect_error(z, zero_read_tensor(z, "body", ZERO_PARAMETER, 0, 1, &x), S,
                       "zero_read_tensor", "passes");
    small_expect_error(z, zero_pass_end(z), S, "zero_pass_end", "unit 1");
    test_check(!zero_forward_end(z, 1) && !zero_pass_end(z), "evaluation");
    small_expect_error(z, zero_forward_begin(z, 1, &p), S, "zero_forward_begin", "unit 1: no pass");
    zero_destroy(z);
}

static void errors_of_steps(void) {
    zero_ctx *z = small_build(NULL);
    zero_step_report report;
    double norm;
    const zero_result S = ZERO_ERR_STATE, A = ZERO_ERR_ARGUMENT;
    static const zero_hyper bad[] = {{-1, 0.9f, 0.9f, 0, 0, 0},  {1, 1.0f, 0.9f, 0, 0, 0},
                                     {1, -0.1f, 0.9f, 0, 0, 0},  {1, 0.9f, 1.5f, 0, 0, 0},
                                     {1, 0.9f, NAN, 0, 0, 0},    {1, 0.9f, 0.9f, -1, 0, 0},
                                     {1, 0.9f, 0.9f, 0, -2, 0},  {1, 0.9f, 0.9f, 0, 0, -3},
                                     {1, 0.9f, 0.9f, 0, 0, NAN}, {1, 0.9f, 0.9f, 0, 0, 0}};
    static const char *const what[] = {"lr -1",        "betas 1 ", "betas -0.1",      "and 1.5",
                                       "and nan",      "eps -1",   "weight_decay -2", "max_norm -3",
                                       "max_norm nan", "eps is 0"};
    test_check(small_micro_step(z, 0, 1), "a pass");
    small_expect_error(z, zero_step(z, &small_adamw), S, "zero_step", "call zero_reduce first");
    small_expect_error(z, zero_norm(z, &norm), S, "zero_norm", "zero_reduce");
    test_check(!zero_reduce(z), "reduce");
    small_expect_error(z, zero_reduce(z), S, "zero_reduce", "micro-steps");
    small_expect_error(z, zero_pass_begin(z, ZERO_TRAIN, 0, 1), S, "zero_pass_begin",
                       "call zero_step first");
    small_expect_error(z, zero_norm(z, NULL), A, "zero_norm", "NULL");
    small_expect_error(z, zero_step(z, NULL), A, "zero_step", "hyper is NULL");
    for (int i = 0; i < 10; i++)
        small_expect_error(z, zero_step(z, &bad[i]), A, "zero_step", what[i]);
    small_expect_error(z, zero_step_result(z, &report), S, "zero_step_result", "no step");
    test_check(!zero_step(z, &small_adamw), "step");
    small_expect_error(z, zero_step(z, &small_adamw), S, "zero_step", "call zero_reduce first");
    small_expect_error(z, zero_step_result(z, NULL), A, "zero_step_result", "NULL");
    test_check(!zero_step_result(z, &report) && report.stepped && report.steps == 1, "report");
    test_check(small_micro_step(z, 0, 1) && !zero_reduce(z), "a second step");
    small_expect_error(z, zero_step_result(z, &report), S, "zero_step_result", "zero_reduce");
    zero_destroy(z);
}

static void errors_of_access(void) {
    zero_ctx *z = small_build(NULL);
    float x[256] = {0};
    double sums[65] = {0};
    zero_plan_unit unit;
    const zero_result S = ZERO_ERR_STATE, A = ZERO_ERR_ARGUMENT;
    small_expect_error(z, zero_read_tensor(z, "nobody", ZERO_PARAMETER, 0, 1, x), A,
                       "zero_read_tensor", "nobody");
    small_expect_error(z, zero_read_tensor(z, NULL, ZERO_PARAMETER, 0, 1, x), A, "zero_read_tensor",
                       "NULL");
    small_expect_error(z, zero_read_tensor(z, "body", (zero_kind)5, 0, 1, x), A, "zero_read_tensor",
                       "body: kind is 5");
    small_expect_error(z, zero_read_tensor(z, "body", ZERO_PARAMETER, 0, 201, x), A,
                       "zero_read_tensor", "body has 200 elements");
    small_expect_error(z, zero_read_tensor(z, "body", ZERO_PARAMETER, 201, 0, x), A,
                       "zero_read_tensor", "[201, 201)");
    small_expect_error(z, zero_read_tensor(z, "body", ZERO_PARAMETER, (size_t)-1, 2, x), A,
                       "zero_read_tensor", "200");
    small_expect_error(z, zero_read_tensor(z, "body", ZERO_GRADIENT, 0, 1, x), S,
                       "zero_read_tensor", "body has no gradient now");
    small_expect_error(z, zero_write_tensor(z, "body", ZERO_GRADIENT, 0, 1, x), S,
                       "zero_write_tensor", "body has no gradient now");
    small_expect_error(z, zero_write_tensor(z, "body", ZERO_PARAMETER, 0, 1, NULL), A,
                       "zero_write_tensor", "body: values");
    test_check(!zero_read_tensor(z, "body", ZERO_PARAMETER, 200, 0, NULL),
               "nothing read at the end");
    small_expect_error(z, zero_all_sum(z, sums, 65), A, "zero_all_sum", "n is 65");
    small_expect_error(z, zero_all_sum(z, sums, -1), A, "zero_all_sum", "n is -1");
    small_expect_error(z, zero_all_sum(z, NULL, 2), A, "zero_all_sum", "values is NULL");
    small_expect_error(z, zero_broadcast(z, NULL, 4, 0), A, "zero_broadcast", "data is NULL");
    small_expect_error(z, zero_broadcast(z, x, 4, 1), A, "zero_broadcast", "root is 1");
    small_expect_error(z, zero_broadcast(z, x, 4, -1), A, "zero_broadcast", "root is -1");
    small_expect_error(z, zero_query_stats(z, NULL), A, "zero_query_stats", "NULL");
    small_expect_error(z, zero_query_plan(z, NULL), A, "zero_query_plan", "NULL");
    small_expect_error(z, zero_query_plan_unit(z, 4, &unit), A, "zero_query_plan_unit",
                       "unit 4, expected 0..3");
    small_expect_error(z, zero_query_plan_unit(z, 0, NULL), A, "zero_query_plan_unit",
                       "plan is NULL");
    small_expect_error(z, zero_state_range(z, 0, 0, NULL), A, "zero_state_range", "range is NULL");
    test_check(!zero_state_begin(z), "the state opens");
    small_expect_error(z, zero_state_begin(z), S, "zero_state_begin", "the state is open already");
    test_check(!zero_state_end(z, 0), "the state closes");
    test_check(small_micro_step(z, 0, 1), "a pass");
    small_expect_error(z, zero_read_tensor(z, "body", ZERO_PARAMETER, 0, 1, x), S,
                       "zero_read_tensor", "passes");
    zero_destroy(z);
}

/* More units open than there are buffers is an error that says what to raise. */
static void errors_too_many_open(test_rank *r) {
    zero_ctx *z = NULL;
    host_pointers p;
    zero_config cfg = {.stage = 3, .no_mapping = 1, .prefetch = 1, .log = test_quiet};
    zero_comm comm = test_comm(r);
    const zero_tensor_desc d = {"w", 50, .layers = 8};
    if (zero_create(&z, &cfg, &comm) || zero_tensor(z, &d) || zero_build(z)
        || zero_pass_begin(z, ZERO_EVAL, 0, 1))
        test_rank_fail(r, "%s", zero_last_error(z));
    for (int u = 0; u < 3 && !r->failed; u++)
        if (zero_forward_begin(z, u, &p)) test_rank_fail(r, "unit %d: %s", u, zero_last_error(z));
    if (!r->failed
        && (zero_forward_begin(z, 5, &p) != ZERO_ERR_STATE
            || !strstr(zero_last_error(z), "unit 5: all 3")))
        test_rank_fail(r, "a fourth unit: %s", zero_last_error(z));
    for (int u = 0; u < 3 && !r->failed; u++)
        if (zero_forward_end(z, u)) test_rank_fail(r, "%s", zero_last_error(z));
    if (!r->failed && (zero_forward_begin(z, 5, &p) || zero_forward_end(z, 5) || zero_pass_end(z)))
        test_rank_fail(r, "%s", zero_last_error(z));
    zero_destroy(z);
}

/* A setting too small is an error that says the number. */
static void errors_of_bucket(void) {
    zero_config cfg = {.stage = 2, .bucket_numel = 100};
    zero_plan plan;
    zero_ctx *z = small_create(&cfg);
    small_announce(z);
    small_expect_error(z, zero_query_plan(z, &plan), ZERO_ERR_ARGUMENT, "zero_query_plan",
                       "bucket_numel is 100");
    test_check(strstr(zero_last_error(z), "has 128 elements") != NULL, "the least bucket: %s",
               zero_last_error(z));
    small_expect_error(z, zero_build(z), ZERO_ERR_ARGUMENT, "zero_build", "bucket_numel is 100");
    zero_destroy(z);
}

int main(void) {
    (void)alarm(300); /* a rank that never returns is a failure */
    errors_results();
    errors_of_config();
    errors_of_scaler();
    errors_of_comm();
    errors_resolved_config();
    errors_of_totals();
    errors_of_tensors();
    errors_no_context();
    errors_before_build();
    errors_of_hooks();
    errors_of_evaluation();
    errors_of_steps();
    errors_of_access();
    test_check(test_ranks(2, 0, errors_too_many_open, NULL), "units open: %s", test_first);
    errors_of_bucket();
    return test_summary();
}

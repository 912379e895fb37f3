/* test_model.c CASES [SEED] - random tensor lists, units, uses, sizes, ranks, micro-steps and
   settings against an unsharded reference, exact: gradients are whole numbers, so that every sum is
   the same in any order, and the reference rounds where the plugin does. */
#include "../shared/host.h"

static void model_tensors(host_spec *s, test_random *r) {
    const int layers = 1 + test_below(r, 4), blocks = 1 + test_below(r, 4);
    const int embedded = test_below(r, 3), first = embedded ? 1 : 0;
    s->units = first + layers;
    for (int t = 0; t < blocks + (embedded ? 1 : 0); t++) {
        zero_tensor_desc *d = &s->desc[s->ntensors];
        const int block = t < blocks;
        snprintf(s->name[s->ntensors], HOST_NAME, "t%d", s->ntensors);
        d->numel = 1 + (size_t)(test_below(r, 4) ? test_below(r, 70) : test_below(r, 3000));
        d->layers = block ? layers : 1;
        d->unit = block ? first : 0;
        d->uses = !block && embedded == 2 ? 2 + test_below(r, 2) : 0;
        if (test_below(r, 3) == 0) d->flags |= ZERO_NO_DECAY;
        if (test_below(r, 3) == 0) d->flags |= ZERO_ONE_D;
        if (test_below(r, 5) == 0) d->flags |= ZERO_KEEP;
        s->ntensors++;
    }
    for (int t = 0; t < s->ntensors; t++) s->desc[t].name = s->name[t];
    for (int t = 0; t < s->ntensors && s->seed % 3 == 0; t++)
        if (test_mix(s->seed + (uint64_t)t) % 3 == 0) s->desc[t].flags |= ZERO_FROZEN;
}

static void model_types(host_spec *s, test_random *r) {
    static const float fixed[] = {1, 8, 1024, 0.25f};
    static const float initial[] = {1, 16, 256};
    zero_config *c = &s->cfg;
    c->type = (zero_type)test_below(r, ZERO_TYPES);
    c->grads = (zero_grad_type)test_below(r, 3);
    if (test_below(r, 2)) /* not so large that f16 overflows */
        c->scaler.fixed = fixed[test_below(r, c->type == ZERO_F16 ? 2 : 4)];
    else
        c->scaler.initial = initial[test_below(r, 3)];
    s->groups = test_below(r, 2);
    if (c->type == ZERO_BF16 && s->seed % 2) c->master = ZERO_MASTER_SPLIT;
}

static void model_settings(host_spec *s, test_random *r) {
    static const int64_t thresholds[] = {0, 0, ZERO_NONE, 50, 100000};
    zero_config *c = &s->cfg;
    c->stage = test_below(r, 4);
    c->accumulation = (zero_accumulation)test_below(r, 3);
    c->prefetch = test_below(r, 4) - 1;
    c->bucket_numel = test_below(r, 2) ? 0 : (size_t)100000 << test_below(r, 3);
    c->persistence_numel = thresholds[test_below(r, 5)];
    c->no_overlap = test_below(r, 2);
    c->no_mapping = test_below(r, 2);
    c->threads = 1;
    s->slots = test_below(r, 3) == 0;
    s->recompute = test_below(r, 3) == 0;
    s->adopts = test_below(r, 3) == 0;
    s->evaluate = test_below(r, 2);
    s->silent_unit = test_below(r, 4) ? -1 : test_below(r, s->units);
    model_types(s, r);
    for (int t = 0; t < s->ntensors; t++) {
        const int local = s->micro_steps > 1 && host_grad_type(s) == ZERO_F32
                          && (c->accumulation == ZERO_ACCUMULATE_LOCAL
                              || (c->accumulation == ZERO_ACCUMULATE_AUTO && c->stage < 2));
        if (!local && test_below(r, 5) == 0) s->desc[t].flags |= ZERO_OVERWRITTEN;
    }
}

static void model_spec(host_spec *s, uint64_t seed) {
    static const int ranks[] = {1, 2, 3, 4, 5, 6, 7, 8, 2, 3, 4, 2};
    test_random r = {seed * 1000003u};
    memset(s, 0, sizeof *s);
    s->seed = seed;
    s->integer = 1;
    s->nranks = ranks[test_below(&r, 12)];
    if (seed % 97 == 0) s->nranks = 9 + test_below(&r, 56); /* now and then up to 64 */
    s->steps = 1 + test_below(&r, 3);
    s->micro_steps = 1 + test_below(&r, 3);
    if (s->nranks > 8) s->steps = s->micro_steps = 1;
    if (s->nranks % 2 == 0 && test_below(&r, 3) == 0) s->node_size = s->nranks / 2;
    model_tensors(s, &r);
    model_settings(s, &r);
    zero_hyper a = {0.01f, 0.9f, 0.95f, 1e-8f, 0.1f, test_below(&r, 2) ? 0.0f : 3.0f};
    s->adamw = a;
}

static int model_sharded(const host_spec *s) {
    const zero_accumulation a = s->cfg.accumulation;
    if (s->micro_steps == 1) return 0; /* one micro-step: the same either way */
    return a == ZERO_ACCUMULATE_SHARDED || (a == ZERO_ACCUMULATE_AUTO && s->cfg.stage >= 2);
}

static int model_step(host_run *h, host_reference *reference) {
    const host_spec *s = h->spec;
    const int sharded = model_sharded(s);
    double norm = 0;
    zero_step_report report;
    for (h->micro = 0; h->micro < s->micro_steps; h->micro++)
        if (!host_train_pass(h)) return 0;
    HOST_TRY(h, zero_reduce(h->z));
    HOST_TRY(h, zero_norm(h->z, &norm));
    const double expected = host_reference_norm(s, sharded, h->step);
    const float scale = host_scale(s);
    if (fabs(norm - expected)
        > 3 * 0x1p-24 * expected) /* squares are added in f32, see UNIT_NORM_ERROR */
        test_rank_fail(h->rank, "norm is %.17g, expected %.17g", norm, expected);
    double clip = 1;
    if (s->adamw.max_norm > 0 && norm + 1e-6 > (double)s->adamw.max_norm)
        clip = (double)s->adamw.max_norm / (norm + 1e-6);
    host_reference_step(reference, s, sharded, h->step, clip);
    if (!host_compare(h, ZERO_GRADIENT, reference->g, "gradient")) return 0;
    HOST_TRY(h, zero_step(h->z, &s->adamw));
    HOST_TRY(h, zero_step_result(h->z, &report));
    if (!report.stepped || report.norm != norm || report.steps != h->step + 1
        || report.loss_scale != scale || report.next_loss_scale != scale)
        test_rank_fail(h->rank, "the report of step %d is wrong", h->step);
    return !s->evaluate || host_evaluate(h);
}

/* What was sent is what the plan says, and what was allocated. */
static int model_counts(host_run *h) {
    zero_plan plan;
    zero_stats stats;
    const host_spec *s = h->spec;
    HOST_TRY(h, zero_query_plan(h->z, &plan));
    HOST_TRY(h, zero_query_stats(h->z, &stats));
    if (!s->evaluate && s->silent_unit < 0
        && stats.sent_bytes != plan.sent_bytes * (uint64_t)s->steps)
        test_rank_fail(h->rank, "sent %llu bytes in %d steps, planned %zu a step",
                       (unsigned long long)stats.sent_bytes, s->steps, plan.sent_bytes);
    if (plan.buffer_bytes > plan.buffer_ceiling_bytes + plan.accumulator_bytes)
        test_rank_fail(h->rank, "buffers of %zu bytes, ceiling %zu", plan.buffer_bytes,
                       plan.buffer_ceiling_bytes);
    return !h->rank->failed;
}

static void model_rank(test_rank *rank) {
    const host_spec *s = (const host_spec *)rank->arg;
    host_run h;
    host_reference reference;
    host_reference_open(&reference, s);
    int ok = host_open(&h, s, rank);
    h.reference = &reference;
    for (h.step = 0; h.step < s->steps && ok; h.step++) ok = model_step(&h, &reference);
    ok = ok && host_compare(&h, ZERO_PARAMETER, reference.p, "parameter")
         && host_compare(&h, ZERO_MASTER, reference.master, "master")
         && host_compare(&h, ZERO_MOMENT_1, reference.m, "m")
         && host_compare(&h, ZERO_MOMENT_2, reference.v, "v") && model_counts(&h);
    zero_destroy(h.z);
    host_reference_close(&reference, s);
}

/* Returns 1 if this plugin has no access by name (make drop without the part `state`). */
static int model_lacks_state(void) {
    const zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
    const zero_tensor_desc one = {.name = "one", .numel = 1};
    const zero_config cfg = {.log = test_quiet};
    zero_ctx *z = NULL;
    float value = 0;
    if (zero_create(&z, &cfg, &self) || zero_tensor(z, &one) || zero_build(z)) exit(2);
    const zero_result r = zero_read_tensor(z, "one", ZERO_PARAMETER, 0, 1, &value);
    const int names_part = strstr(zero_last_error(z), "lacks \"state\"") != NULL;
    test_check(!r || (r == ZERO_ERR_UNSUPPORTED && names_part), "zero_read_tensor: %s",
               zero_last_error(z));
    zero_destroy(z);
    return r != ZERO_OK;
}

/* Returns 1 if this plugin takes no pointers outside structs (make drop without the part `place`).
 */
static int model_lacks_slots(void) {
    static void *pointer;
    const zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
    const zero_tensor_desc one = {.name = "one", .numel = 1, .param = &pointer};
    const zero_config cfg = {.log = test_quiet};
    zero_ctx *z = NULL;
    if (zero_create(&z, &cfg, &self)) exit(2);
    const zero_result r = zero_tensor(z, &one);
    const int names_part = strstr(zero_last_error(z), "lacks \"place\"") != NULL;
    test_check(!r || (r == ZERO_ERR_UNSUPPORTED && names_part), "zero_tensor: %s",
               zero_last_error(z));
    zero_destroy(z);
    return r != ZERO_OK;
}

/* Without access by name, an evaluation after each step compares the weights. */
int main(int argc, char **argv) {
    const int no_state = model_lacks_state(), no_slots = model_lacks_slots();
    const int cases = argc > 1 ? atoi(argv[1]) : 1000;
    const uint64_t seed = argc > 2 ? (uint64_t)atoll(argv[2]) : 1;
    for (int i = 0; i < cases; i++) {
        host_spec s;
        model_spec(&s, seed + (uint64_t)i);
        s.no_state = no_state;
        if (no_slots) s.slots = 0;
        s.evaluate |= no_state;
        s.adopts |= no_state;
        const int ok = test_ranks(s.nranks, s.node_size, model_rank, &s);
        test_check(ok,
                   "case %llu (stage %d, type %d, master %d, gradients %d, scale %g, %d ranks, %d "
                   "micro-steps, "
                   "accumulation %d, overlap %d, mapping %d): %s",
                   (unsigned long long)s.seed, s.cfg.stage, (int)s.cfg.type, (int)s.cfg.master,
                   (int)s.cfg.grads, (double)host_scale(&s), s.nranks, s.micro_steps,
                   (int)s.cfg.accumulation, !s.cfg.no_overlap, !s.cfg.no_mapping, test_first);
    }
    return test_summary();
}

/* test_skips.c - a step whose gradients are not finite changes nothing, on any rank, and its report
   names the tensor, the element and the rank that owns it. Without the check, the step is made. */
#include "small.h"

typedef struct skips_bad { /* what goes wrong in step 1: elements, each on one rank */
    host_spec spec;        /* first: host.h finds its way back by this address */
    int n, tensor[2], rank[2], micro;
    size_t element[2];
    float value;
    int expect; /* which of them is named */
    int owner;  /* rank that owns it */
} skips_bad;

static void skips_poison(host_run *h, int t, size_t first, void *g) {
    const skips_bad *b = (const skips_bad *)(const void *)h->spec;
    for (int i = 0; i < b->n; i++)
        if (h->step == 1 && h->micro == b->micro && h->rank->rank == b->rank[i] && b->tensor[i] == t
            && b->element[i] >= first && b->element[i] < first + h->spec->desc[t].numel)
            host_put(g, host_grad_type(h->spec), b->element[i] - first, b->value);
}

/* Where an element lies, from the header's words alone: tensors of a unit on lines, equal shards.
 */
static int skips_owner(zero_ctx *z, const host_spec *s, int tensor, size_t element) {
    const zero_tensor_desc *d = &s->desc[tensor];
    const int kept = d->flags & ZERO_KEEP,
              unit = kept ? s->units : d->unit + (int)(element / d->numel);
    size_t at = 0;
    zero_plan_unit plan;
    for (int t = 0; t < tensor; t++) {
        const zero_tensor_desc *o = &s->desc[t];
        const size_t layers = o->layers ? (size_t)o->layers : 1;
        if (kept ? !(o->flags & ZERO_KEEP) : (o->flags & ZERO_KEEP) || !host_in_unit(o, unit))
            continue;
        at += (o->numel * (kept ? layers : 1) + 31) / 32 * 32;
    }
    if (zero_query_plan_unit(z, unit, &plan)) return -1;
    return (int)((at + (kept ? element : element % d->numel)) / (plan.padded / (size_t)s->nranks));
}

static int skips_check_report(host_run *h, const skips_bad *b) {
    zero_step_report r;
    const host_spec *s = h->spec;
    HOST_TRY(h, zero_step_result(h->z, &r));
    const int bad = h->step == 1, t = b->tensor[b->expect];
    const float scale = s->cfg.type == ZERO_F16 ? 16.0f : 1.0f;
    if (r.loss_scale != scale || r.next_loss_scale != scale) /* one overflow is hysteresis */
        test_rank_fail(h->rank, "step %d: scale %g, next %g", h->step, (double)r.loss_scale,
                       (double)r.next_loss_scale);
    if (r.stepped != !bad || r.skipped != (h->step >= 1) || r.steps != (h->step < 1 ? 1 : h->step))
        test_rank_fail(h->rank, "step %d: stepped %d, steps %lld, skipped %lld", h->step, r.stepped,
                       (long long)r.steps, (long long)r.skipped);
    else if (!bad && (r.bad_tensor || !isfinite(r.norm)))
        test_rank_fail(h->rank, "step %d: %s is bad in a good step", h->step, r.bad_tensor);
    else if (bad
             && (isfinite(r.norm) || !r.bad_tensor || strcmp(r.bad_tensor, s->desc[t].name)
                 || r.bad_index != b->element[b->expect]
                 || r.bad_rank != skips_owner(h->z, s, t, b->element[b->expect])))
        test_rank_fail(h->rank, "%s[%zu] of rank %d is bad, reported %s[%zu] of rank %d",
                       s->desc[t].name, b->element[b->expect],
                       skips_owner(h->z, s, t, b->element[b->expect]),
                       r.bad_tensor ? r.bad_tensor : "nothing", r.bad_index, r.bad_rank);
    return !h->rank->failed;
}

static void skips_bad_rank(test_rank *rank) {
    const skips_bad *b = (const skips_bad *)rank->arg;
    const host_spec *s = &b->spec;
    host_run h;
    int ok = host_open(&h, s, rank);
    uint64_t before = 0;
    for (h.step = 0; h.step < s->steps && ok; h.step++) {
        ok = small_step(&h) && skips_check_report(&h, b);
        const uint64_t hash = ok ? host_hash(&h) : 0;
        if (ok && h.step >= 1 && (hash == before) != (h.step == 1))
            test_rank_fail(rank, "step %d: weights, m and v %s", h.step,
                           h.step == 1 ? "moved" : "did not move");
        before = hash;
        ok &= !rank->failed;
    }
    zero_destroy(h.z);
}

/* `type` 3: bf16 without master weights; 4: with split ones. */
static void skips_bad_case(int nranks, int stage, int k, int type, const skips_bad *what) {
    static const float values[] = {NAN, INFINITY, -INFINITY};
    skips_bad b = *what;
    small_spec(&b.spec, nranks, stage);
    b.spec.poison = skips_poison;
    b.spec.micro_steps = 1 + k % 2;
    b.micro = k / 2 % 2 ? 0 : b.spec.micro_steps - 1;
    b.spec.cfg.type = type > 2 ? ZERO_BF16 : (zero_type)type;
    b.spec.cfg.master = type == 3   ? ZERO_MASTER_NONE
                        : type == 4 ? ZERO_MASTER_SPLIT
                                    : ZERO_MASTER_F32;
    b.spec.cfg.state_type = (zero_state_type)(k % 2); /* 8BIT has other shards */
    b.spec.cfg.grads = (zero_grad_type)(k / 3 % 3);
    b.spec.cfg.scaler.initial = 16;
    b.spec.cfg.accumulation = (zero_accumulation)(k % 3);
    b.spec.cfg.no_mapping = k % 2;
    b.spec.cfg.no_overlap = k % 3 == 1;
    b.value = values[k % 3];
    for (int i = 0; i < b.n; i++) b.rank[i] %= nranks;
    test_check(test_ranks(nranks, 0, skips_bad_rank, &b),
               "%s[%zu] is %g, stage %d, %d ranks, type %d, %d: %s", b.spec.desc[b.tensor[0]].name,
               b.element[0], (double)b.value, stage, nranks, type, k, test_first);
}

static void skips_of_steps(void) {
    static const skips_bad cases[] = {
        /* n, tensors, ranks, micro, elements, value, the one named */
        {.n = 1, .tensor = {0, 0}, .rank = {0, 0}, .element = {0, 0}}, /* the very first */
        {.n = 1,
         .tensor = {0, 0},
         .rank = {1, 0},
         .element = {699, 0}}, /* of a tied tensor, last shard */
        {.n = 1, .tensor = {1, 0}, .rank = {2, 0}, .element = {330, 0}}, /* layer 0's last */
        {.n = 1, .tensor = {1, 0}, .rank = {3, 0}, .element = {331, 0}}, /* layer 1's first */
        {.n = 1,
         .tensor = {2, 0},
         .rank = {1, 0},
         .element = {50, 0}}, /* last shard, which is padded */
        {.n = 1, .tensor = {3, 0}, .rank = {0, 0}, .element = {13, 0}}, /* KEEP */
        {.n = 1, .tensor = {4, 0}, .rank = {1, 0}, .element = {4, 0}},  /* most shards are empty */
        {.n = 2,
         .tensor = {1, 1},
         .rank = {0, 1},
         .element = {5, 700},
         .expect = 0}, /* two units, one shard */
        {.n = 2, .tensor = {1, 0}, .rank = {0, 2}, .element = {900, 2}, .expect = 1},
        {.n = 2,
         .tensor = {3, 1},
         .rank = {2, 2},
         .element = {0, 993 - 1},
         .expect = 1}, /* KEEP is the last unit */
        {.n = 2,
         .tensor = {0, 0},
         .rank = {3, 0},
         .element = {650, 20},
         .expect = 1}}; /* one unit, two shards */
    for (int i = 0; i < 11; i++)
        for (int stage = 0; stage < 4; stage++)
            for (int nranks = 1; nranks <= 4; nranks += nranks == 1 ? 2 : 1)
                for (int type = 0; type < 5; type++)
                    skips_bad_case(nranks, stage, i + stage + nranks + type, type, &cases[i]);
}

/* no_overflow_check steps all the same; max_norm needs a norm, so that it implies the check. */
static void skips_unchecked_rank(test_rank *rank) {
    const skips_bad *b = (const skips_bad *)rank->arg;
    host_run h;
    zero_step_report r = {0};
    float seen[2] = {0, 0};
    int ok = host_open(&h, &b->spec, rank);
    for (h.step = 0; h.step < 2 && ok; h.step++) ok = small_step(&h);
    if (ok
        && (zero_step_result(h.z, &r) || zero_read_tensor(h.z, "mat", ZERO_PARAMETER, 4, 2, seen)))
        test_rank_fail(rank, "%s", zero_last_error(h.z));
    const int steps = b->spec.adamw.max_norm > 0 ? 1 : 2;
    if (ok
        && (r.stepped != (steps == 2) || r.steps != steps || isfinite(r.norm)
            || isfinite(seen[0]) == (steps == 2) || !isfinite(seen[1])))
        test_rank_fail(rank, "stepped %d, mat[4] %g, mat[5] %g", r.stepped, (double)seen[0],
                       (double)seen[1]);
    zero_destroy(h.z);
}

static void skips_unchecked(void) {
    for (int stage = 0; stage < 4; stage++)
        for (int clip = 0; clip < 2; clip++) {
            skips_bad b = {
                .n = 1, .tensor = {1, 0}, .rank = {1, 0}, .element = {4, 0}, .value = NAN};
            small_spec(&b.spec, 2, stage);
            b.spec.poison = skips_poison;
            b.spec.cfg.no_overflow_check = 1;
            b.spec.adamw.max_norm = clip ? 1.0f : 0.0f;
            test_check(test_ranks(2, 0, skips_unchecked_rank, &b),
                       "not checked, stage %d, clip %d: %s", stage, clip, test_first);
        }
}

int main(void) {
    (void)alarm(300); /* a rank that never returns is a failure */
    skips_of_steps();
    skips_unchecked();
    return test_summary();
}

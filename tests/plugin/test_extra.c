/* test_extra.c - a capability can be added to the plugin without editing the core. The plugin is
   compiled with the row of own_extra.h, which scales gradients by a factor, and counts reductions
   and updates.

   At stages 0 to 3, with 1 and 2 micro-steps and both ways of accumulation, on 3 ranks, the same
   training runs without the row, and with it, by factors that are powers of two, so that products
   are exact:
     scaled     the gradients, and their norm, are `factor` times those of the run without the row
     undone     SGD with the learning rate divided by the factor gives the same weights, bit by bit
     off        factor 0 adds no station to the walks, and changes no bit
     atoms      shards whose boundaries cut no atom of a tensor change no bit either */
#define ZERO_OWN_EXTRAS "tests/plugin/own_extra.h"
#include "../../zero_plugin.cu"

/* Sets the atom of all tensors before the build. Each rank is a thread. */
static size_t extra_atom;
static zero_result extra_build(zero_ctx *z) {
    for (int t = 0; t < z->ntensors; t++) z->tensors[t].atom = extra_atom;
    return zero_build(z);
}
#define zero_build extra_build
#include "../shared/host.h"

enum { EXTRA_RANKS = 3, EXTRA_STEPS = 3, EXTRA_UNITS = 8 };

typedef struct extra_rank { /* what one rank found */
    uint64_t weights;
    double norm;     /* of the first step */
    float *gradient; /* of the first step: [all tensors], owned by extra_run */
    size_t shard;    /* of unit 0 */
    int stations, step_stations, reductions, updates, published;
} extra_rank;

typedef struct extra_run {
    host_spec spec;
    float factor;
    size_t numel;
    extra_rank rank[EXTRA_RANKS];
    int failed;
} extra_run;

static const zero_tensor_desc extra_tensors[] = {
    {"emb", 700, .uses = 2},
    {"mat", 331, .layers = 6, .unit = 1},
    {"norm", 9, .layers = 6, .unit = 1, .flags = ZERO_KEEP | ZERO_NO_DECAY},
    {"out", 5, .unit = 7, .flags = ZERO_ONE_D}};

static void extra_spec(host_spec *s, int stage, int micro_steps, int sharded, zero_type type) {
    host_small(s, 11, EXTRA_RANKS, stage, extra_tensors, 4);
    s->units = EXTRA_UNITS;
    s->steps = EXTRA_STEPS;
    s->micro_steps = micro_steps;
    s->cfg.accumulation = sharded ? ZERO_ACCUMULATE_SHARDED : ZERO_ACCUMULATE_LOCAL;
    s->cfg.optimizer = ZERO_SGD;
    s->cfg.grads = ZERO_GRAD_F32;
    s->cfg.type = type;
    s->cfg.scaler.fixed = 1;
    s->cfg.persistence_numel = ZERO_NONE;
    s->adamw.beta1 = 0.5f;
    s->adamw.weight_decay = 0;
    s->adamw.max_norm = 0;
}

static int extra_read(host_run *h, zero_kind kind, float *values) {
    for (int t = 0; t < h->spec->ntensors; t++) {
        const size_t n = host_numel(h->spec, t);
        HOST_TRY(h, zero_read_tensor(h->z, h->spec->desc[t].name, kind, 0, n, values));
        values += n;
    }
    return 1;
}

static int extra_train(host_run *h, extra_rank *mine, float *values, size_t numel) {
    for (h->step = 0; h->step < h->spec->steps; h->step++) {
        for (h->micro = 0; h->micro < h->spec->micro_steps; h->micro++)
            if (!host_train_pass(h)) return 0;
        HOST_TRY(h, zero_reduce(h->z));
        if (h->step == 0) {
            HOST_TRY(h, zero_norm(h->z, &mine->norm));
            if (!extra_read(h, ZERO_GRADIENT, mine->gradient)) return 0;
        }
        HOST_TRY(h, zero_step(h->z, &h->spec->adamw));
    }
    if (!extra_read(h, ZERO_PARAMETER, values)) return 0;
    mine->weights = host_hash_floats(0, values, numel);
    return 1;
}

static void extra_body(test_rank *r) {
    extra_run *run = (extra_run *)r->arg;
    extra_rank *mine = &run->rank[r->rank];
    own_extra_rank *own = &own_extra_ranks[r->rank];
    float *values = (float *)calloc(run->numel, sizeof *values);
    host_run h;
    memset(own, 0, sizeof *own);
    own->factor = run->factor;
    if (host_open(&h, &run->spec, r)) {
        mine->shard = zp_ctx_shard(h.z, 0);
        mine->stations = h.z->walk[ZP_GRADIENT_WALK].n;
        mine->step_stations = h.z->walk[ZP_STEP_WALK].n;
        (void)extra_train(&h, mine, values, run->numel);
    }
    zero_destroy(h.z);
    mine->reductions = (int)own->reductions;
    mine->updates = (int)own->updates;
    mine->published = (int)own->published;
    if (!r->failed && (own->builds != 1 || own->leaves != 1))
        test_rank_fail(r, "build came %d times, destroy %d times", own->builds, own->leaves);
    free(values);
}

static void extra_go(extra_run *run, const host_spec *spec, float factor, float lr) {
    run->spec = *spec;
    run->spec.adamw.lr = lr;
    run->factor = factor;
    run->numel = 0;
    for (int t = 0; t < spec->ntensors; t++) run->numel += host_numel(spec, t);
    for (int i = 0; i < EXTRA_RANKS; i++)
        run->rank[i].gradient = (float *)calloc(run->numel, sizeof(float));
    run->failed = !test_ranks(EXTRA_RANKS, 0, extra_body, run);
}
static void extra_close(extra_run *run) {
    for (int i = 0; i < EXTRA_RANKS; i++) free(run->rank[i].gradient);
}

/* Every gradient of every rank is `factor` times that of `plain`, and so is the norm. */
static int extra_scaled(const extra_run *plain, const extra_run *run) {
    int other = 0, zero = 1;
    for (int i = 0; i < EXTRA_RANKS; i++) {
        const extra_rank *a = &plain->rank[i], *b = &run->rank[i];
        other |= b->norm != (double)run->factor * a->norm;
        for (size_t k = 0; k < run->numel; k++) {
            other |= b->gradient[k] != run->factor * a->gradient[k];
            zero &= a->gradient[k] == 0;
        }
    }
    return !other && !zero;
}
static int extra_same_weights(const extra_run *a, const extra_run *b) {
    int same = 1;
    for (int i = 0; i < EXTRA_RANKS; i++) same &= a->rank[i].weights == b->rank[i].weights;
    return same;
}

static void extra_case(int stage, int micro_steps, int sharded, zero_type type) {
    char name[80];
    host_spec spec;
    extra_run plain, half, quarter, off, atoms;
    snprintf(name, sizeof name, "stage %d, %d micro-steps, %s, type %d", stage, micro_steps,
             sharded ? "SHARDED" : "LOCAL", (int)type);
    extra_spec(&spec, stage, micro_steps, sharded, type);
    extra_go(&plain, &spec, 0, 0.25f);
    extra_go(&half, &spec, 0.5f, 0.5f);      /* the learning rate undoes the factor */
    extra_go(&quarter, &spec, 0.25f, 0.25f); /* and here does not */
    extra_go(&off, &spec, 0, 0.25f);
    extra_atom = 96;
    extra_go(&atoms, &spec, 0, 0.25f);
    extra_atom = 0;
    test_check(!plain.failed && !half.failed && !quarter.failed && !off.failed && !atoms.failed,
               "%s: %s", name, test_first);
    test_check(extra_scaled(&plain, &half) && extra_scaled(&plain, &quarter),
               "%s: gradients, norm %g, are not scaled by 0.5: %g, or 0.25: %g", name,
               plain.rank[0].norm, half.rank[0].norm, quarter.rank[0].norm);
    test_check(extra_same_weights(&plain, &half) && !extra_same_weights(&plain, &quarter),
               "%s: lr / factor must give the same weights, lr others", name);
    test_check(extra_same_weights(&plain, &off), "%s: two runs without the row differ", name);
    test_check(extra_same_weights(&plain, &atoms) && atoms.rank[0].shard == 288
                   && plain.rank[0].shard == 256,
               "%s: with atoms of 96 elements the weights differ, or the shards: %zu and %zu", name,
               plain.rank[0].shard, atoms.rank[0].shard);
    /* Of each unit, and of the one that holds the tensors with ZERO_KEEP. */
    for (int i = 0; i < EXTRA_RANKS; i++) {
        const int counted = half.rank[i].reductions, units = EXTRA_UNITS + 1;
        const int expected = units * EXTRA_STEPS * (sharded ? micro_steps : 1);
        test_check(counted == expected && plain.rank[i].reductions == 0,
                   "%s: rank %d counted %d reductions, expected %d", name, i, counted, expected);
        test_check(half.rank[i].updates == units * EXTRA_STEPS
                       && half.rank[i].published == half.rank[i].updates
                       && plain.rank[i].updates == 0,
                   "%s: rank %d counted %d updates, %d of them published before the next one", name,
                   i, half.rank[i].updates, half.rank[i].published);
    }
    test_check(half.rank[0].stations == plain.rank[0].stations + 2,
               "%s: %d stations with the row, %d without", name, half.rank[0].stations,
               plain.rank[0].stations);
    test_check(half.rank[0].step_stations == plain.rank[0].step_stations + 2,
               "%s: %d stations of a step with the row, %d without", name,
               half.rank[0].step_stations, plain.rank[0].step_stations);
    extra_close(&plain);
    extra_close(&half);
    extra_close(&quarter);
    extra_close(&off);
    extra_close(&atoms);
}

int main(void) {
    for (int stage = 0; stage <= 3; stage++)
        for (int micro_steps = 1; micro_steps <= 2; micro_steps++)
            for (int sharded = 0; sharded < micro_steps; sharded++)
                for (int type = 0; type < 2; type++)
                    extra_case(stage, micro_steps, sharded, type ? ZERO_BF16 : ZERO_F32);
    return test_summary();
}

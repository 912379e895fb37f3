/* test_ease.c - what makes a host's lines few: rows of tensors by field, slots named as they are
   announced, aliases, weights that are adopted from the host's arrays, steps without hooks, several
   layers in a unit, all units open at once, a hash. Compiled with ZERO_CHECK=1 as well
   (test_ease_checked): then adopted arrays are NaN. Against the header alone. */
#include "../shared/harness.h"

#include <float.h>
#include <math.h>

#ifndef TEST_CHECKED
#define TEST_CHECKED 0
#endif

enum { LAYERS = 5, WIDTH = 70, RANKS = 3, TENSORS = 4 };

typedef struct ease_host {
    float *emb, *fcw, *fcb, *norm, *head; /* head: the embedding, by another name */
} ease_host;

static const zero_tensor_desc ease_table[TENSORS] = {
    ZERO_FIELD(ease_host, emb, 3 * WIDTH),
    ZERO_FIELD(ease_host, fcw, 2 * WIDTH, .layers = LAYERS, .unit = 1),
    ZERO_FIELD(ease_host, fcb, WIDTH, .layers = LAYERS, .unit = 1, .flags = ZERO_ONE_D),
    ZERO_FIELD(ease_host, norm, WIDTH, .layers = LAYERS, .unit = 1, .flags = ZERO_KEEP)};

/* What a case does; how it ends, for all ranks. */
typedef struct ease_case {
    int stage, keep, together, open, micro_steps, mapped, wanted, skew, null;
    zero_type arrays;
    uint64_t hash[RANKS];
    double mean[RANKS];
    zero_plan plan[RANKS];
    char why[RANKS][512];
} ease_case;

static double ease_value(int t, size_t i) { return sin((double)(t * 1000 + (int)i)) / 8; }
static float *ease_field(ease_host *h, int t) {
    float *at;
    memcpy(&at, (char *)h + ease_table[t].field, sizeof at);
    return at;
}
static size_t ease_numel(int t) {
    return ease_table[t].numel * (size_t)(ease_table[t].layers ? ease_table[t].layers : 1);
}

/* Arrays of the host's own, as it had them before there was a plugin. */
static void ease_arrays(ease_host *h, const ease_case *c, int rank) {
    memset(h, 0, sizeof *h);
    for (int t = 0; t < TENSORS; t++) {
        const size_t n = ease_numel(t);
        float *values = (float *)malloc(n * sizeof *values);
        for (size_t i = 0; i < n; i++) values[i] = (float)ease_value(t, i);
        if (c->skew && t == 1 && rank == 1) values[3] += 1;
        zero_convert(values, c->arrays, values, ZERO_F32, n);
        if (c->null != t + 1) memcpy((char *)h + ease_table[t].field, &values, sizeof values);
        if (c->null == t + 1) free(values);
    }
    h->head = h->emb;
}

static zero_result ease_open(zero_ctx **z, const zero_comm *comm, const ease_case *c) {
    zero_config cfg = {0};
    cfg.stage = c->stage;
    cfg.micro_steps = c->micro_steps;
    cfg.accumulation = ZERO_ACCUMULATE_SHARDED;
    cfg.open_units = c->open;
    cfg.no_mapping = !c->mapped;
    cfg.persistence_numel = ZERO_NONE;
    cfg.grads = ZERO_GRAD_F32; /* some of the arrays have 16 bits */
    cfg.threads = 1;
    cfg.timeout_s = 20;
    ZERO_TRY(zero_create(z, &cfg, comm));
    for (int t = 0; t < TENSORS; t++) {
        zero_tensor_desc d = ease_table[t];
        if (c->keep) d.flags |= ZERO_KEEP;
        if (t) d.together = c->together;
        ZERO_TRY(zero_tensors(*z, &d, 1));
    }
    const zero_tensor_desc head =
        ZERO_FIELD(ease_host, head, ease_table[0].numel, .same_as = "emb");
    ZERO_TRY(zero_tensor(*z, &head));
    return zero_build(*z);
}

/* Gradients that depend on the weights, on the rank and on the micro-step. */
static void ease_backward(float *grad, const float *w, size_t n, int rank, int step) {
    for (size_t i = 0; i < n; i++)
        grad[i] += 0.25f * w[i] + 0.01f * (float)(((int)i + 3 * rank + step) % 7 - 3);
}

static zero_result ease_hooks(zero_ctx *z, const ease_case *c, ease_host *p, ease_host *g, int rank,
                              int step) {
    const int k = c->together ? c->together : 1, units = (LAYERS + k - 1) / k;
    const int nested = c->open != 0;
    ZERO_TRY(zero_forward_begin(z, 0, p));
    for (int u = 0; u < units; u++) {
        ZERO_TRY(zero_forward_begin(z, 1 + u, p));
        if (!nested) ZERO_TRY(zero_forward_end(z, 1 + u));
    }
    for (int u = 0; u < units && nested; u++) ZERO_TRY(zero_forward_end(z, 1 + u));
    ZERO_TRY(zero_forward_end(z, 0));
    ZERO_TRY(zero_backward_begin(z, 0, p, g));
    ease_backward(g->head, p->head, 3 * WIDTH, rank, step);
    for (int u = 0; u < units; u++) {
        ZERO_TRY(zero_backward_begin(z, 1 + u, p, g));
        for (int l = u * k; l < LAYERS && l < (u + 1) * k; l++) {
            const size_t at = (size_t)l * WIDTH;
            ease_backward(g->fcw + 2 * at, p->fcw + 2 * at, 2 * WIDTH, rank, step);
            ease_backward(g->fcb + at, p->fcb + at, WIDTH, rank, step);
        }
        if (!nested) ZERO_TRY(zero_backward_end(z, 1 + u));
    }
    for (int u = 0; u < units && nested; u++) ZERO_TRY(zero_backward_end(z, 1 + u));
    ease_backward(g->norm, p->norm, LAYERS * WIDTH, rank, step);
    return zero_backward_end(z, 0);
}

static zero_result ease_train(zero_ctx *z, ease_case *c, ease_host *p, ease_host *g, int rank) {
    const zero_hyper hyper = {0.01f, 0.9f, 0.95f, 1e-8f, 0.1f, 0};
    for (int step = 0; step < 3; step++)
        for (int micro = 0; micro < c->micro_steps; micro++) {
            ZERO_TRY(zero_train_begin(z));
            if (c->keep)
                for (int t = 0; t < TENSORS; t++)
                    ease_backward(ease_field(g, t), ease_field(p, t), ease_numel(t), rank, micro);
            else
                ZERO_TRY(ease_hooks(z, c, p, g, rank, micro));
            ZERO_TRY(zero_train_end(z, &hyper, 10.0 * step + micro + rank, &c->mean[rank]));
        }
    return zero_hash(z, &c->hash[rank]);
}

static zero_result ease_work(zero_ctx *z, ease_case *c, int rank) {
    ease_host p, g, old;
    ease_arrays(&p, c, rank);
    old = p;
    memset(&g, 0, sizeof g);
    zero_result r = zero_adopt(z, &p, &g, c->arrays, NULL);
    for (int t = 0; t < TENSORS && !r; t++) {
        float had, got[4];
        zero_convert(&had, ZERO_F32, ease_field(&old, t), c->arrays, 1);
        test_check(isnan(had) == TEST_CHECKED, "tensor %d: what was adopted is %g", t, (double)had);
        r = zero_read_tensor(z, ease_table[t].name, ZERO_PARAMETER, 2, 4, got);
        for (size_t i = 0; i < 4 && !r; i++) {
            float value = (float)ease_value(t, i + 2);
            zero_convert(&value, c->arrays, &value, ZERO_F32, 1);
            zero_convert(&value, ZERO_F32, &value, c->arrays, 1);
            test_check(got[i] == value, "tensor %d: %g, expected %g", t, (double)got[i],
                       (double)value);
        }
    }
    if (!r) test_check(p.norm != old.norm && g.norm, "KEEP tensors are the plugin's");
    if (!r && c->keep) test_check(p.head == p.emb && g.head == g.emb, "the alias follows");
    for (int t = 0; t < TENSORS; t++) free(ease_field(&old, t));
    if (!r) r = ease_train(z, c, &p, &g, rank);
    return r;
}

static void ease_rank(test_rank *r) {
    ease_case *c = (ease_case *)r->arg;
    const zero_comm comm = test_comm(r);
    zero_ctx *z = NULL;
    zero_result got = ease_open(&z, &comm, c);
    if (!got) got = zero_query_plan(z, &c->plan[r->rank]);
    if (!got) got = ease_work(z, c, r->rank);
    snprintf(c->why[r->rank], sizeof c->why[0], "%s", got ? zero_last_error(z) : "");
    zero_destroy(z);
}

static void ease_run(ease_case *c, int nranks) {
    if (!c->micro_steps) c->micro_steps = 1;
    (void)test_ranks(nranks, 0, ease_rank, c);
}

/* The same weights at every stage, with hooks and without, however layers are cut into units. */
static void ease_same(void) {
    for (int nranks = 1; nranks <= RANKS; nranks++)
        for (int micro = 1; micro <= 2; micro++) {
            uint64_t expected = 0;
            for (int stage = 0; stage <= 3; stage++)
                for (int way = 0; way < 6; way++) {
                    ease_case c = {0};
                    c.stage = stage;
                    c.micro_steps = micro;
                    c.mapped = way % 2;
                    c.keep = way == 0;
                    c.together = way == 2 ? 2 : way == 3 ? LAYERS : 0;
                    c.open = way == 4 ? ZERO_ALL : way == 5 ? LAYERS + 1 : 0;
                    ease_run(&c, nranks);
                    if (!expected) expected = c.hash[0];
                    for (int r = 0; r < nranks; r++)
                        test_check(!c.why[r][0] && c.hash[r] == expected,
                                   "%d ranks, stage %d, %d micro-steps, way %d, rank %d: %016llx "
                                   "expected %016llx: %s",
                                   nranks, stage, micro, way, r, (unsigned long long)c.hash[r],
                                   (unsigned long long)expected, c.why[r]);
                    const double mean = 20 + (nranks - 1) / 2.0 + (micro - 1) / 2.0;
                    test_check(c.mean[nranks - 1] == mean, "a mean loss of %g, expected %g",
                               c.mean[nranks - 1], mean);
                }
        }
}

/* How many units may be open is told before, and by the error, which names those that are. */
static void ease_units(void) {
    ease_case c = {0};
    c.stage = 3;
    c.open = 4; /* of 6, and the hooks open all of them */
    ease_run(&c, 2);
    test_check(c.plan[0].open_forward == 4 && c.plan[0].open_backward == 4,
               "%d and %d units may be open", c.plan[0].open_forward, c.plan[0].open_backward);
    test_check(strstr(c.why[0], "unit 4: all 4 gather buffers") && strstr(c.why[0], "(3, 2, 1, 0)")
                   && strstr(c.why[0], "open_units"),
               "too many units: %s", c.why[0]);
    ease_case all = {0};
    all.stage = 3;
    all.open = ZERO_ALL;
    ease_run(&all, 2);
    test_check(all.plan[0].open_forward == LAYERS + 1 && all.plan[0].open_backward == LAYERS + 1,
               "ZERO_ALL: %d and %d", all.plan[0].open_forward, all.plan[0].open_backward);
    ease_case none = {0};
    ease_run(&none, 2);
    test_check(none.plan[0].open_forward == LAYERS + 1, "stage 0: %d", none.plan[0].open_forward);
}

/* 16-bit arrays; arrays that differ between ranks, or are not there. */
static void ease_arrays_of_all_kinds(void) {
    for (int type = 1; type < ZERO_TYPES; type++) {
        ease_case c = {0};
        c.stage = 2;
        c.arrays = (zero_type)type;
        ease_run(&c, 2);
        test_check(!c.why[0][0] && c.hash[0] == c.hash[1], "arrays of type %d: %s", type, c.why[0]);
    }
    ease_case skew = {0};
    skew.stage = 1;
    skew.skew = 1;
    ease_run(&skew, 2);
    test_check(strstr(skew.why[0], "rank 1 gives other values") != NULL, "other values: %s",
               skew.why[0]);
    for (int t = 0; t < TENSORS; t++) {
        char text[64];
        ease_case c = {0};
        c.null = t + 1;
        ease_run(&c, 2);
        snprintf(text, sizeof text, "tensor %s, layer 0: your field is NULL", ease_table[t].name);
        test_check(strstr(c.why[0], text) != NULL, "no array: %s", c.why[0]);
    }
}

/* Slots: adopted where they pointed to, a tensor's second slots follow, ZERO_WANTED hands out
   parameters; only where there is no field. */
static void ease_slots(void) {
    const zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
    struct layer {
        float *before, *second;
    } layer[LAYERS] = {{NULL, NULL}};
    float *w[LAYERS], *got, *old[LAYERS], other[WIDTH] = {0};
    const zero_tensor_desc rows[] = {{"w", WIDTH, LAYERS, .param = w},
                                     {"f", WIDTH, 1, .unit = LAYERS},
                                     {"w again", WIDTH, LAYERS, .same_as = "w",
                                      .param = &layer->second, .stride = sizeof *layer}};
    zero_config cfg = {0};
    zero_ctx *z;
    struct {
        float *f;
    } host = {other};
    cfg.stage = 3;
    for (int l = 0; l < LAYERS; l++) {
        w[l] = old[l] = (float *)malloc(WIDTH * sizeof(float));
        for (int i = 0; i < WIDTH; i++) w[l][i] = (float)(100 * l + i);
    }
    zero_result r = zero_create(&z, &cfg, &self);
    if (!r) r = zero_tensors(z, rows, 3);
    if (!r) r = zero_adopt(z, &host, NULL, ZERO_F32, NULL);
    if (!r) r = zero_pass_begin(z, ZERO_TRAIN, 0, 1);
    for (int l = 0; l < LAYERS && !r; l++) {
        r = zero_forward_begin(z, l, ZERO_WANTED);
        got = w[l];
        test_check(!r && got != old[l] && got[7] == (float)(100 * l + 7), "layer %d by slot", l);
        test_check(layer[l].second == got && !layer[l].before, "the second slot follows");
        if (!r) r = zero_forward_end(z, l);
    }
    test_check(!r, "slots: %s", zero_last_error(z));
    if (!r) r = zero_backward_begin(z, 2, ZERO_WANTED, NULL);
    test_check(!r && layer[2].second, "a backward with parameters: %s", zero_last_error(z));
    if (!r) r = zero_backward_end(z, 2);
    if (!r) r = zero_backward_begin(z, 3, NULL, NULL);
    test_check(!r && !w[3], "a backward without parameters");
    if (!r) (void)zero_backward_end(z, 3);
    test_check(zero_forward_begin(z, LAYERS, ZERO_WANTED) == ZERO_ERR_ARGUMENT
                   && strstr(zero_last_error(z), "ZERO_WANTED"),
               "ZERO_WANTED for a field: %s", zero_last_error(z));
    zero_destroy(z);
    for (int l = 0; l < LAYERS; l++) free(old[l]);
}

static int ease_released;
static void ease_release(void *array) {
    ease_released++;
    free(array);
}

/* Adopted arrays are given back; what zero_bind has made the plugin's cannot be adopted; a tensor
   that neither a hook nor KEEP reaches is told; weights are whole behind a step without hooks. */
static void ease_misused(test_rank *r) {
    const zero_comm comm = test_comm(r);
    static const zero_tensor_desc two[] = {ZERO_FIELD(ease_host, emb, 300000, .flags = ZERO_KEEP),
                                           ZERO_FIELD(ease_host, fcw, 400, .layers = 2, .unit = 0)};
    const zero_hyper hyper = {0.01f, 0.9f, 0.95f, 1e-8f, 0, 0};
    const int stage = *(const int *)r->arg;
    for (int n = 1; n <= 2; n++) {
        zero_config cfg = {0};
        zero_ctx *z;
        ease_host p = {0}, g = {0};
        double mean = 0, sum = 0, again = 0;
        cfg.stage = stage;
        cfg.threads = 1;
        if (!test_check(!zero_create(&z, &cfg, &comm) && !zero_tensors(z, two, n) && !zero_build(z),
                        "a context: %s", zero_last_error(z)))
            return;
        p.emb = (float *)calloc(300000, sizeof(float));
        p.fcw = (float *)calloc(800, sizeof(float));
        g.emb = (float *)calloc(300000, sizeof(float));
        const int before = __atomic_load_n(&ease_released, __ATOMIC_RELAXED);
        zero_result got = zero_adopt(z, &p, &g, ZERO_F32, ease_release);
        test_check(!got && ease_released - before >= n + 1, "released: %s", zero_last_error(z));
        test_check(n == 1 || !p.fcw, "without KEEP a pointer is NULL until its hooks");
        if (n == 1) free(p.fcw);
        got = zero_adopt(z, &p, &g, ZERO_F32, free);
        test_check(got == ZERO_ERR_ARGUMENT && strstr(zero_last_error(z), "leave out zero_bind"),
                   "adopted twice: %s", zero_last_error(z));
        for (int step = 0; step < 5 && n == 1; step++) {
            (void)zero_train_begin(z);
            for (int i = 0; i < 300000; i++) g.emb[i] += (float)(i % 7 + step);
            got = zero_train_end(z, &hyper, 1, &mean);
            sum = again = 0;
            for (int i = 0; i < 300000; i++) sum += (double)p.emb[i];
            (void)zero_pass_begin(z, ZERO_EVAL, 0, 1);
            for (int i = 0; i < 300000; i++) again += (double)p.emb[i];
            (void)zero_pass_end(z);
            test_check(!got && sum == again, "weights behind a step: %g, then %g", sum, again);
        }
        if (n == 2) {
            (void)zero_train_begin(z);
            got = zero_train_end(z, &hyper, 1, &mean);
            test_check(got == ZERO_ERR_STATE
                           && strstr(zero_last_error(z), "tensor fcw is not KEEP"),
                       "no hook: %s", zero_last_error(z));
        }
        zero_destroy(z);
    }
}

/* A host with a malloc for each array: tensors without names, whose places are named as they are
   announced; both arrays of each are given back, and weights are trained. */
static void ease_announced(test_rank *r) {
    enum { TENSORS_HERE = 5 };
    const int stage = *(const int *)r->arg;
    const zero_comm comm = test_comm(r);
    const zero_hyper hyper = {0.01f, 0.9f, 0.95f, 1e-8f, 0, 0};
    zero_config cfg = {0};
    zero_plan plan;
    zero_ctx *z;
    static float *all[RANKS][2][TENSORS_HERE];
    float **w = all[r->rank][0], **g = all[r->rank][1], *second = NULL;
    cfg.stage = stage;
    cfg.threads = 1;
    if (!test_check(!zero_create(&z, &cfg, &comm), "a context: %s", zero_last_error(z))) return;
    zero_result got = ZERO_OK;
    for (int t = 0; t < TENSORS_HERE && !got; t++) {
        const int keep = t != 3, unit = keep ? 0 : 1, row = t > 3;
        const zero_tensor_desc d = {.numel = 100,
                                    .unit = keep ? 0 : unit - 1,
                                    .flags = keep ? ZERO_KEEP : 0,
                                    .param = &w[t],
                                    .grad = &g[t]};
        w[t] = (float *)calloc(100, sizeof(float));
        g[t] = t == 2 ? NULL : (float *)calloc(100, sizeof(float));
        w[t][7] = (float)(t + 1);
        if (row)
            ZERO_PLACE(z, w[t], g[t], 100);
        else
            got = zero_tensor(z, &d);
        if (!got)
            got = zero_query_plan(z, &plan); /* what is planned before the build is not kept */
    }
    const zero_tensor_desc again = {.numel = 100, .same_as = "1", .param = &second};
    if (!got) got = zero_tensor(z, &again);
    const int before = __atomic_load_n(&ease_released, __ATOMIC_RELAXED);
    if (!got) got = zero_adopt(z, NULL, NULL, ZERO_F32, ease_release);
    test_check(
        !got && __atomic_load_n(&ease_released, __ATOMIC_RELAXED) - before >= 2 * TENSORS_HERE - 1,
        "stage %d: both arrays are given back: %s", stage, zero_last_error(z));
    test_check(!got && w[4][7] == 5 && second == w[1] && g[2] && !w[3] && !g[3],
               "stage %d: pointers behind zero_adopt", stage);
    test_check(zero_adopt(z, NULL, NULL, ZERO_F32, free) == ZERO_ERR_ARGUMENT, "adopted twice");
    for (int step = 0; step < 3 && !got; step++) {
        got = zero_train_begin(z);
        if (!got) got = zero_forward_begin(z, 0, ZERO_WANTED);
        if (!got) got = zero_forward_end(z, 0);
        for (int t = 0; t < TENSORS_HERE && !got; t++)
            for (int i = 0; i < 100 && t != 3; i++) g[t][i] += w[t][i];
        if (!got) got = zero_train_end(z, &hyper, 0, NULL);
    }
    if (!got) got = zero_pass_begin(z, ZERO_EVAL, 0, 1);
    test_check(!got && w[4][7] < 5 && w[4][7] > 4.9f && w[4][8] == 0, "stage %d: trained: %s",
               stage, zero_last_error(z));
    if (!got) (void)zero_pass_end(z);
    zero_destroy(z);
}

/* What is refused, and where it is named. */
static void ease_refused(void) {
    const zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
    const int farthest = ((1 << 20) - 1) / (LAYERS - 1); /* the last layer is in unit 1 << 20 */
    zero_config cfg = {0};
    zero_ctx *z;
    uint64_t hash;
    ease_host p = {0};
    cfg.open_units = -2;
    test_check(zero_create(&z, &cfg, &self) == ZERO_ERR_ARGUMENT
                   && strstr(zero_last_error(z), "open_units is -2"),
               "open_units -2: %s", zero_last_error(z));
    zero_destroy(z);
    cfg.open_units = 0;
    if (!test_check(!zero_create(&z, &cfg, &self), "a context: %s", zero_last_error(z))) return;
    test_check(zero_tensors(z, NULL, 1) == ZERO_ERR_ARGUMENT, "no table");
    test_check(zero_adopt(z, &p, &p, ZERO_F32, NULL) == ZERO_ERR_STATE
                   && strstr(zero_last_error(z), "no tensor was announced"),
               "adopted without tensors: %s", zero_last_error(z));
    zero_destroy(z);
    if (!test_check(!zero_create(&z, &cfg, &self), "a context: %s", zero_last_error(z))) return;
    test_check(zero_tensors(z, ease_table, TENSORS) == ZERO_OK, "a table");
    float *slot = NULL;
    const zero_tensor_desc slots = {"slots", 4, .unit = 9, .param = &slot};
    const struct {
        zero_tensor_desc row;
        const char *words;
    } wrong[] = {{{"again", 3 * WIDTH, .same_as = "nobody"}, "no tensor is named nobody"},
                 {{"again", 3 * WIDTH, .same_as = "emb", .field = offsetof(ease_host, fcw)},
                  "is the field of tensor fcw"},
                 {{"again", WIDTH, .same_as = "emb"}, "emb, its same_as, has"},
                 {{"again", 3 * WIDTH, 2, .same_as = "emb"}, "in 2 layers, but emb"},
                 {{"again", 3 * WIDTH, .uses = 2, .same_as = "emb"}, "in the row of emb"},
                 {{"again", 4, .same_as = "slots"}, "slots has no field; set .param or .grad"}};
    test_check(!zero_tensor(z, &slots), "slots: %s", zero_last_error(z));
    for (int i = 0; i < 6; i++)
        test_check(zero_tensor(z, &wrong[i].row) == ZERO_ERR_ARGUMENT
                       && strstr(zero_last_error(z), wrong[i].words),
                   "the same as another row, %d: %s", i, zero_last_error(z));
    test_check(zero_tensor_count(z) == TENSORS + 1, "they are no tensors");
    zero_destroy(z);
    if (!test_check(!zero_create(&z, &cfg, &self), "a context: %s", zero_last_error(z))) return;
    test_check(zero_tensors(z, ease_table, TENSORS) == ZERO_OK, "a table");
    zero_tensor_desc more = ease_table[1];
    more.name = "more";
    more.together = -1;
    test_check(zero_tensor(z, &more) == ZERO_ERR_ARGUMENT, "no layers together");
    more.together = (1 << 20) + 1;
    test_check(zero_tensor(z, &more) == ZERO_ERR_ARGUMENT, "too many layers together");
    more.together = 0;
    more.every = -1;
    test_check(zero_tensor(z, &more) == ZERO_ERR_ARGUMENT, "units before one another");
    more.every = farthest + 1;
    test_check(zero_tensor(z, &more) == ZERO_ERR_ARGUMENT, "units that are too far");
    test_check(zero_hash(z, &hash) == ZERO_ERR_STATE, "hashed before the build");
    test_check(zero_adopt(z, &p, &p, ZERO_F32, NULL) == ZERO_ERR_ARGUMENT
                   && strstr(zero_last_error(z), "your field is NULL"),
               "no arrays, and built: %s", zero_last_error(z));
    test_check(zero_build(z) == ZERO_ERR_STATE && zero_hash(z, NULL) == ZERO_ERR_ARGUMENT,
               "hash NULL");
    test_check(zero_adopt(z, &p, &p, (zero_type)9, NULL) == ZERO_ERR_ARGUMENT, "arrays of no type");
    test_check(zero_adopt(z, NULL, NULL, ZERO_F32, NULL) == ZERO_ERR_ARGUMENT, "no arrays");
    test_check(zero_train_end(z, NULL, 0, NULL) == ZERO_ERR_STATE, "an end without a begin");
    test_check(zero_tensor(z, &more) == ZERO_ERR_STATE, "a tensor after the build");
    zero_destroy(z);
    test_check(zero_tensors(NULL, NULL, 0) && zero_hash(NULL, &hash)
                   && zero_adopt(NULL, NULL, NULL, ZERO_F32, NULL) && zero_train_begin(NULL)
                   && zero_train_end(NULL, NULL, 0, NULL),
               "no context");
}

/* Returns the hash of tensors a and b, announced in either order, whose elements are `one`, except
   for element `at`: `a` and `b`. */
static uint64_t ease_hash_of(int swapped, int at, float one, float a, float b) {
    enum { N = 8 };
    const zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
    const zero_tensor_desc rows[2] = {{"a", N, 1, .unit = swapped}, {"b", N, 1, .unit = !swapped}};
    const zero_config cfg = {0};
    zero_ctx *z;
    uint64_t hash = 0;
    if (zero_create(&z, &cfg, &self)) return 0;
    zero_result r = zero_tensors(z, &rows[swapped], 1);
    if (!r) r = zero_tensors(z, &rows[!swapped], 1);
    if (!r) r = zero_build(z);
    for (int t = 0; t < 2 && !r; t++) {
        float values[N];
        for (int i = 0; i < N; i++) values[i] = i == at ? (t ? b : a) : one;
        r = zero_write_tensor(z, rows[t].name, ZERO_PARAMETER, 0, N, values);
    }
    if (!r) r = zero_hash(z, &hash);
    test_check(!r && hash, "a hash: %s", zero_last_error(z));
    zero_destroy(z);
    return hash;
}

/* The hash does not depend on the order of the tensors, and no two differences cancel. */
static void ease_hash(void) {
    const float less = 1, more = 1 + FLT_EPSILON;
    for (int at = 0; at < 8; at++) {
        const uint64_t first = ease_hash_of(0, at, less, less, more);
        test_check(first == ease_hash_of(1, at, less, less, more), "tensors in another order");
        test_check(first != ease_hash_of(0, at, less, more, less), "the other tensor, %d", at);
        test_check(first != ease_hash_of(0, at, more, less, more), "other weights, %d", at);
    }
}

/* Arrays of 40 numbers that zero_adopt takes from fields or slots. */
typedef struct apart_host {
    float *a, *b, *again;
} apart_host;
enum { APART_NUMEL = 40 };
static const zero_tensor_desc apart_table[] = {
    ZERO_FIELD(apart_host, a, APART_NUMEL, .flags = ZERO_KEEP),
    ZERO_FIELD(apart_host, b, APART_NUMEL / 2, .layers = 2)};

static float *apart_array(size_t numel) { return (float *)calloc(numel, sizeof(float)); }

static void apart_log(void *user, zero_log_level level, const char *sentence) {
    char *seen = (char *)user;
    if (level == ZERO_LOG_INFO && strstr(sentence, " tensors of "))
        (void)snprintf(seen, 80, "%s", sentence);
}

static zero_ctx *apart_open(char *log, int slots, apart_host *p, apart_host *g) {
    const zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
    zero_config cfg = {0};
    zero_ctx *z;
    cfg.log = log ? apart_log : NULL;
    cfg.log_user = log;
    const zero_result r = zero_create(&z, &cfg, &self);
    test_check(!r, "a context");
    for (int t = 0; t < 2 && slots; t++) {
        const zero_tensor_desc row = {t ? "1" : "0", APART_NUMEL, .flags = ZERO_KEEP,
                                      .param = t ? &p->b : &p->a, .grad = t ? &g->b : &g->a};
        test_check(!zero_place(z, &row), "row %d", t);
    }
    test_check(slots || !zero_tensors(z, apart_table, 2), "tensors: %s", zero_last_error(z));
    const zero_tensor_desc again = ZERO_FIELD(apart_host, again, APART_NUMEL, .same_as = "a");
    if (!slots) test_check(!zero_tensor(z, &again), "an alias");
    return z;
}

/* Arrays that overlap are refused before any is released. */
static void ease_overlaps(void) {
    enum { FAULTS = 7, N = APART_NUMEL };
    static const char *const words[2][FAULTS] = {
        {"tensor a, layer 0, and tensor b, layer 0, are in the same memory",
         "tensor a, layer 0, and tensor b, layer 0, are in the same memory",
         "the gradient of tensor b, layer 0, and tensor a, layer 0,",
         "the gradient of tensor a, layer 0, and the gradient of tensor b, layer 0,",
         "the gradient of tensor b, layer 0, and tensor a, layer 0,",
         "the gradient of tensor a, layer 0, and the gradient of tensor b, layer 0,"},
        {"tensor 0, layer 0, and tensor 1, layer 0, are in the same memory",
         "tensor 0, layer 0, and tensor 1, layer 0, are in the same memory",
         "the gradient of tensor 1, layer 0, and tensor 0, layer 0,",
         "the gradient of tensor 0, layer 0, and the gradient of tensor 1, layer 0,",
         "the gradient of tensor 1, layer 0, and tensor 0, layer 0,",
         "the gradient of tensor 0, layer 0, and the gradient of tensor 1, layer 0,"}};
    for (int k = 0; k < 2 * FAULTS; k++) {
        const int slots = k / FAULTS, fault = k % FAULTS;
        const char *expected = words[slots][fault]; /* NULL: arrays that touch are accepted */
        float *block = apart_array(2 * N), *other = apart_array(2 * N);
        apart_host p = {block, other, NULL}, g = {NULL, NULL, NULL};
        if (fault == 0) p.b = block;
        if (fault == 1) p.b = block + N - 1;
        if (fault == 2) g.b = block;
        if (fault == 3) g.a = g.b = other + N;
        if (fault == 4) g.b = block, p.a = block + N - 1;
        if (fault == 5) p.b = block + N, g.a = other, g.b = other + N - 1;
        if (fault == 6) p.b = block + N;
        zero_ctx *z = apart_open(NULL, slots, &p, &g);
        const zero_result r = zero_adopt(z, &p, &g, ZERO_F32, expected ? free : NULL);
        test_check(expected ? r == ZERO_ERR_ARGUMENT && strstr(zero_last_error(z), expected) : !r,
                   "slots %d, fault %d: %d, %s", slots, fault, (int)r, zero_last_error(z));
        zero_destroy(z);
        free(block);
        free(other);
    }
}

/* A checked build compares what `free` would get with the table. */
static void ease_sizes(void) {
    enum { NONE, WEIGHTS, GRADIENT, KINDS };
    static const char *const words[KINDS][2] = {
        {"", ""},
        {"tensor b, layer 0: its allocation has", "tensor 1, layer 0: its allocation has"},
        {"the gradient of tensor b, layer 0: its allocation has",
         "the gradient of tensor 1, layer 0: its allocation has"}};
    for (int k = 0; k < 2 * (TEST_CHECKED ? KINDS : 1); k++) {
        const int slots = k & 1, small = k >> 1;
        const size_t of[KINDS] = {0, small == WEIGHTS ? 4 : APART_NUMEL,
                                  small == GRADIENT ? 4 : APART_NUMEL};
        apart_host p = {apart_array(APART_NUMEL), apart_array(of[WEIGHTS]), NULL};
        apart_host g = {apart_array(APART_NUMEL), apart_array(of[GRADIENT]), NULL};
        float *const was[4] = {p.a, p.b, g.a, g.b};
        zero_ctx *z = apart_open(NULL, slots, &p, &g);
        const zero_result r = zero_adopt(z, &p, &g, ZERO_F32, free);
        test_check(r == (small ? ZERO_ERR_ARGUMENT : ZERO_OK)
                       && strstr(zero_last_error(z), words[small][slots]),
                   "slots %d, small %d: %d, %s", slots, small, (int)r, zero_last_error(z));
        zero_destroy(z);
        for (int i = 0; i < 4 && small; i++) free(was[i]);
    }
}

/* zero_destroy leaves no pointer to what it frees, and the caller's own pointers as they are. The
   build counts what the table has. */
static void ease_ended(void) {
    for (int slots = 0; slots < 2; slots++) {
        char log[80] = "";
        float mine = 0;
        apart_host p = {apart_array(APART_NUMEL), apart_array(APART_NUMEL), NULL};
        apart_host g = {apart_array(APART_NUMEL), apart_array(APART_NUMEL), NULL};
        zero_ctx *z = apart_open(log, slots, &p, &g);
        test_check(!zero_adopt(z, &p, &g, ZERO_F32, free), "adopted: %s", zero_last_error(z));
        test_check(!strcmp(log, slots ? "2 tensors of 80 elements, in 2 units"
                                      : "2 tensors of 80 elements, in 3 units"),
                   "slots %d: the build logs: %s", slots, log);
        if (!slots)
            test_check(!zero_pass_begin(z, ZERO_TRAIN, 0, 1) && !zero_forward_begin(z, 1, &p)
                           && !zero_forward_end(z, 1) && !zero_backward_begin(z, 1, &p, &g)
                           && !zero_backward_end(z, 1) && !zero_pass_end(z) && p.b && g.b
                           && p.again == p.a,
                       "a pass: %s", zero_last_error(z));
        if (!slots) g.a = &mine;
        zero_destroy(z);
        test_check(!p.a && !p.b && !p.again && (slots ? !g.a : g.a == &mine) && !g.b,
                   "slots %d: after zero_destroy: %p %p, %p %p", slots, (void *)p.a, (void *)p.b,
                   (void *)g.a, (void *)g.b);
    }
    apart_host p = {apart_array(APART_NUMEL), apart_array(APART_NUMEL), NULL},
               g = {NULL, NULL, NULL};
    const apart_host was = p;
    zero_ctx *z = apart_open(NULL, 1, &p, &g);
    test_check(!zero_build(z) && p.a != was.a, "built, and not adopted");
    zero_destroy(z);
    test_check(p.a == was.a && p.b == was.b, "slots have what they had before");
    free(p.a);
    free(p.b);
}

/* Places are named after what they are, and take the fields of a row. */
static void ease_places(void) {
    static const char *const names[] = {"p[l].a",   "p[l].a 1", "p[l].a 2", "p[l].b",
                                        "p[l].b 1", "p[l].b 2", "p->again"};
    const zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
    const zero_config cfg = {0};
    apart_host p[3] = {{NULL, NULL, NULL}}, g[3] = {{NULL, NULL, NULL}};
    zero_tensor_desc d;
    zero_ctx *z;
    if (!test_check(!zero_create(&z, &cfg, &self), "a context")) return;
    for (int l = 0; l < 3; l++) ZERO_PLACE(z, p[l].a, g[l].a, APART_NUMEL);
    for (int l = 0; l < 3; l++)
        ZERO_PLACE(z, p[l].b, g[l].b, 4 * (size_t)l + 1, .unit = l, .flags = ZERO_ONE_D);
    ZERO_PLACE(z, p->again, g->again, 5, .flags = ZERO_KEEP | ZERO_NO_DECAY);
    test_check(zero_tensor_count(z) == 7 && zero_tensor_count(NULL) == 0, "7 tensors");
    for (int i = 0; i < 7; i++) {
        const int last = i == 6, b = i >= 3 && !last;
        const int flags = last ? ZERO_KEEP | ZERO_NO_DECAY : b ? ZERO_ONE_D : ZERO_KEEP;
        test_check(!zero_query_tensor(z, i, &d) && !strcmp(d.name, names[i]) && d.layers == 1
                       && d.numel
                              == (last ? 5
                                  : b  ? 4 * (size_t)(i - 3) + 1
                                       : APART_NUMEL)
                       && d.unit == (b ? i - 3 : 0) && d.flags == (flags | ZERO_BY_SLOT),
                   "tensor %d: %s, %zu, unit %d, flags %d", i, d.name, d.numel, d.unit, d.flags);
    }
    test_check(zero_query_tensor(z, 7, &d) == ZERO_ERR_ARGUMENT
                   && zero_query_tensor(z, -1, &d) == ZERO_ERR_ARGUMENT
                   && zero_query_tensor(z, 0, NULL) == ZERO_ERR_ARGUMENT,
               "no such tensor: %s", zero_last_error(z));
    test_check(!zero_build(z) && p[2].a && !p[1].b, "built: %s", zero_last_error(z));
    zero_destroy(z);
}

/* A step whose hyper is refused has not begun to end: the same call with another one goes on. */
static void ease_hyper(void) {
    const zero_hyper good = {0.01f, 0.9f, 0.95f, 1e-8f, 0, 0}, bad = {-1, 0.9f, 0.95f, 1e-8f, 0, 0};
    float w[2][APART_NUMEL];
    for (int refused = 0; refused < 2; refused++) {
        apart_host p = {apart_array(APART_NUMEL), apart_array(APART_NUMEL), NULL};
        apart_host g = {NULL, NULL, NULL};
        zero_ctx *z = apart_open(NULL, 1, &p, &g);
        test_check(!zero_adopt(z, NULL, NULL, ZERO_F32, free) && !zero_train_begin(z), "adopted");
        for (int i = 0; i < APART_NUMEL; i++) g.a[i] += (float)(1 + i);
        if (refused)
            test_check(zero_train_end(z, &bad, 0, NULL) == ZERO_ERR_ARGUMENT
                           && strstr(zero_last_error(z), "zero_train_end, rank 0 of 1: lr -1"),
                       "lr -1: %s", zero_last_error(z));
        if (refused)
            test_check(zero_train_end(z, NULL, 0, NULL) == ZERO_ERR_ARGUMENT, "hyper is NULL");
        test_check(!zero_train_end(z, &good, 0, NULL), "goes on: %s", zero_last_error(z));
        memcpy(w[refused], p.a, sizeof w[refused]);
        zero_destroy(z);
    }
    test_check(w[0][0] < 0 && !memcmp(w[0], w[1], sizeof w[0]), "the same weights");
}

/* An error inside a function that calls others names the one that your code called. */
static void ease_named(void) {
    const zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
    const zero_hyper hyper = {0.01f, 0.9f, 0.95f, 1e-8f, 0, 0};
    zero_config cfg = {0};
    cfg.scaler.fixed = 2;
    cfg.grads = ZERO_GRAD_F32;
    zero_ctx *z[2];
    for (int i = 0; i < 2; i++)
        if (!test_check(!zero_create(&z[i], &cfg, &self), "a context")) return;
    const zero_tensor_desc wrong = {.name = "wrong"};
    struct {
        float *w;
    } p = {apart_array(8)}, g = {NULL};
    const zero_tensor_desc table[] = {{"w", 4, .layers = 2}};
#define NAMED(call, text)                                                                          \
    test_check((call) && strstr(zero_last_error(z[0]), text), "%s: %s", #call,                     \
               zero_last_error(z[0]))
    NAMED(zero_tensors(z[0], &wrong, 1), "zero_tensors, rank 0 of 1: tensor wrong");
    NAMED(zero_place(z[0], &wrong), "zero_place, rank 0 of 1: tensor wrong");
    NAMED(zero_tensor(z[0], &wrong), "zero_tensor, rank 0 of 1: tensor wrong");
    NAMED(zero_train_begin(z[0]), "zero_train_begin, rank 0 of 1: the context is not built");
    NAMED(zero_adopt(z[0], NULL, NULL, ZERO_F32, NULL), "zero_adopt, rank 0 of 1: a row of the");
    zero_destroy(z[0]);
    z[0] = z[1];
    test_check(!zero_tensors(z[0], table, 1) && !zero_adopt(z[0], &p, &g, ZERO_F32, free), "built");
    test_check(!zero_train_begin(z[0]), "begun");
    NAMED(zero_train_begin(z[0]), "zero_train_begin, rank 0 of 1: the last pass has not ended");
    NAMED(zero_pass_begin(z[0], ZERO_EVAL, 0, 1), "zero_pass_begin, rank 0 of 1: the last pass");
    test_check(!zero_forward_begin(z[0], 0, &p) && !zero_forward_end(z[0], 0)
                   && !zero_backward_begin(z[0], 0, NULL, &g),
               "hooks: %s", zero_last_error(z[0]));
    NAMED(zero_train_end(z[0], &hyper, 0, NULL), "zero_train_end, rank 0 of 1: unit 0: its backw");
    test_check(!zero_backward_end(z[0], 0), "a hook ends: %s", zero_last_error(z[0]));
    NAMED(zero_train_end(z[0], &hyper, 0, NULL), "zero_train_end, rank 0 of 1: zero_loss_scale");
    NAMED(zero_step(z[0], &hyper), "zero_step, rank 0 of 1: no gradient is reduced");
    zero_destroy(z[0]);
    if (!test_check(!zero_create(&z[0], &cfg, &self), "a context")) return;
    NAMED(zero_lend(z[0], NULL, ZERO_F32), "zero_lend, rank 0 of 1: no tensor was announced");
    zero_destroy(z[0]);
#undef NAMED
}

/* What all KEEP and no hooks cost, in bytes an element, as the guide's table has it: stages 0 to 3,
   and 3 where ranks do not see one copy of the parameters. */
static void ease_costs(test_rank *r) {
    static const zero_tensor_desc d = ZERO_FIELD(ease_host, emb, 4000000, .flags = ZERO_KEEP);
    const double n = r->nranks;
    const double expected[] = {16, 8 + 8 / n, 8 + 12 / n, 4 + 16 / n, 8 + 12 / n};
    const zero_comm comm = test_comm(r);
    for (int i = 0; i < 5; i++) {
        zero_config cfg = {0};
        zero_plan p = {0};
        zero_ctx *z = NULL;
        cfg.stage = i < 4 ? i : 3;
        cfg.no_mapping = i == 4;
        if (zero_create(&z, &cfg, &comm) || zero_tensor(z, &d) || zero_query_plan(z, &p))
            test_rank_fail(r, "stage %d: %s", cfg.stage, zero_last_error(z));
        const double all =
            (double)(p.param_bytes + p.grad_bytes + p.optimizer_bytes + p.buffer_bytes) / 4e6;
        if (all < expected[i] || all > expected[i] + 0.1)
            test_rank_fail(r, "row %d on %d ranks: %gP, expected %gP", i, r->nranks, all,
                           expected[i]);
        zero_destroy(z);
    }
}

int main(void) {
    ease_same();
    for (int n = 2; n <= RANKS + 1; n++)
        test_check(test_ranks(n, 0, ease_costs, NULL), "what no hooks cost: %s", test_first);
    ease_units();
    ease_arrays_of_all_kinds();
    ease_slots();
    for (int stage = 0; stage < 4; stage++) (void)test_ranks(2, 0, ease_misused, &stage);
    for (int stage = 0; stage < 4; stage++) (void)test_ranks(2, 0, ease_announced, &stage);
    ease_refused();
    ease_overlaps();
    ease_sizes();
    ease_ended();
    ease_hyper();
    ease_named();
    ease_places();
    ease_hash();
    return test_summary();
}

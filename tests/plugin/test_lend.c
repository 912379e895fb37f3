/* test_lend.c - arrays that stay the host's: inside a struct, by pointer, by slot, row by row; f32,
   double and 16 bit; gradients that are sums. They train as adopted ones do, bit for bit, at every
   stage. Compiled with ZERO_CHECK=1 as well (test_lend_checked). Against the header alone. */
#include "../shared/harness.h"

#include <math.h>

#ifndef TEST_CHECKED
#define TEST_CHECKED 0
#endif

enum { RANKS = 3, TENSORS = 3, WIDTH = 5000, LAYERS = 3, STEPS = 3 };
static const size_t lend_numel[TENSORS] = {70, (size_t)WIDTH *LAYERS, 333};

/* How the host has its arrays; ADOPTED: they become the plugin's, what all others are held to. */
enum { ADOPTED, INLINE, POINTERS, SLOTS, KEPT_SLOTS, ARRAYS, WAYS };

typedef struct lend_host {
    char *blob[TENSORS]; /* pointers; INLINE: the struct is what blob[0] points to */
} lend_host;

typedef struct lend_case {
    int stage, way, micro_steps, together;
    int sums; /* gradients are sums over as many samples; 0: means */
    zero_accumulation accumulation;
    zero_type type, arrays;
    float huge; /* a gradient of rank 1's in step 1 */
    uint64_t hash[RANKS];
    zero_step_report report[RANKS];
    char why[RANKS][512];
} lend_case;

static size_t lend_before(int t) { /* elements of the blob */
    size_t n = 0;
    for (int i = 0; i < t; i++) n += lend_numel[i];
    return n;
}

static void lend_host_new(lend_host *h, const lend_case *c, float by) {
    char *all = (char *)calloc(lend_before(TENSORS), sizeof(double));
    for (int t = 0; t < TENSORS; t++) {
        h->blob[t] = all + lend_before(t) * zero_type_bytes(c->arrays);
        for (size_t i = 0; i < lend_numel[t]; i++) {
            const float value = by * (float)((int)((i * 7 + (size_t)t) % 23) - 11);
            zero_convert(h->blob[t] + i * zero_type_bytes(c->arrays), c->arrays, &value, ZERO_F32,
                         1);
        }
    }
}

static float lend_get(const lend_host *h, const lend_case *c, int t, size_t i) {
    float value;
    zero_convert(&value, ZERO_F32, h->blob[t] + i * zero_type_bytes(c->arrays), c->arrays, 1);
    return value;
}

static zero_result lend_tensors(zero_ctx *z, const lend_case *c, lend_host *p, lend_host *g) {
    static const char *const names[TENSORS] = {"a", "b", "c"};
    for (int t = 0; t < TENSORS; t++) {
        zero_tensor_desc row = {names[t], lend_numel[t], .flags = ZERO_KEEP};
        row.param = &p->blob[t], row.grad = &g->blob[t];
        if (c->way == ARRAYS)
            row.flags = ZERO_INLINE, row.param = p->blob[t], row.grad = g->blob[t];
        if (c->way == ARRAYS || c->way == KEPT_SLOTS) ZERO_TRY(zero_place(z, &row));
        if (c->way == ARRAYS || c->way == KEPT_SLOTS) continue;
        const int layers = t == 1 && c->way != SLOTS ? LAYERS : 1;
        zero_tensor_desc d = {names[t], lend_numel[t] / (size_t)layers, .layers = layers};
        d.unit = c->way == SLOTS ? t : t == 2 ? LAYERS / (c->together ? c->together : 1) : 0;
        d.flags = c->way == ADOPTED ? ZERO_KEEP : c->way == INLINE ? ZERO_INLINE : 0;
        d.field = c->way == INLINE ? lend_before(t) * zero_type_bytes(c->arrays)
                                   : (size_t)t * sizeof(char *);
        if (t == 2 && c->way == POINTERS) d.flags = ZERO_KEEP;
        if (layers > 1) d.together = c->together;
        if (c->way == SLOTS) d.param = &p->blob[t], d.grad = &g->blob[t];
        ZERO_TRY(zero_tensors(z, &d, 1));
    }
    return ZERO_OK;
}

/* Gradients that depend on the weights, the rank and the micro-step; f32, whatever they are stored
   in. */
static void lend_backward(const lend_case *c, const lend_host *p, lend_host *g, int rank, int step,
                          int micro) {
    for (int t = 0; t < TENSORS; t++)
        for (size_t i = 0; i < lend_numel[t]; i++) {
            char *at = g->blob[t] + i * zero_type_bytes(c->arrays);
            float d =
                0.25f * lend_get(p, c, t, i) + 0.01f * (float)(((int)i + 3 * rank + micro) % 7 - 3);
            if (step == 1 && rank == 1 && t == 1 && i == 4321 && c->huge != 0) d = c->huge;
            if (c->sums) d *= (float)c->sums;
            d += lend_get(g, c, t, i); /* which is 0: no host clears */
            zero_convert(at, c->arrays, &d, ZERO_F32, 1);
        }
}

static zero_result lend_work(zero_ctx *z, lend_case *c, lend_host *p, lend_host *g, int rank) {
    const zero_hyper hyper = {0.01f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.5f};
    const int adopted = c->way == ADOPTED, inside = c->way == INLINE;
    void *params = inside ? (void *)p->blob[0] : p, *grads = inside ? (void *)g->blob[0] : g;
    double mean = 0;
    ZERO_TRY(lend_tensors(z, c, p, g));
    if (c->way >= SLOTS) params = grads = NULL;
    ZERO_TRY(adopted ? zero_adopt(z, p, g, ZERO_F32, NULL) : zero_lend(z, params, c->arrays));
    for (int step = 0; step < STEPS; step++)
        for (int micro = 0; micro < c->micro_steps; micro++) {
            if (adopted) ZERO_TRY(zero_train_begin(z));
            lend_backward(c, p, g, rank, step, micro);
            ZERO_TRY(adopted ? zero_train_end(z, &hyper, 2 + rank, &mean)
                             : zero_lend_train(z, params, grads, &hyper, 2 + rank, &mean));
            test_check(micro + 1 < c->micro_steps || mean == 2 + (zero_nranks(z) - 1) / 2.0,
                       "the mean loss is %g", mean);
            if (step == 1 && micro + 1 == c->micro_steps)
                ZERO_TRY(zero_step_result(z, &c->report[rank]));
        }
    for (int t = 0; t < TENSORS; t++) { /* the host's are the plugin's */
        static const char *const names[TENSORS] = {"a", "b", "c"};
        const size_t at = lend_numel[t] - 3;
        float values[3] = {4, 5, 6}, had;
        const char *name = names[t];
        ZERO_TRY(zero_read_tensor(z, name, ZERO_PARAMETER, at, 3, values));
        had = lend_get(p, c, t, at + 1);
        test_check(had == values[1], "way %d, tensor %d: %g, the plugin has %g", c->way, t,
                   (double)had, (double)values[1]);
        if (adopted) continue;
        values[1] = 7; /* and follow on demand */
        ZERO_TRY(zero_write_tensor(z, name, ZERO_PARAMETER, at, 3, values));
        ZERO_TRY(zero_lend_read(z, params));
        test_check(lend_get(p, c, t, at + 1) == 7, "read again");
        values[1] = had;
        ZERO_TRY(zero_write_tensor(z, name, ZERO_PARAMETER, at, 3, values));
    }
    return zero_hash(z, &c->hash[rank]);
}

static void lend_rank(test_rank *r) {
    lend_case *c = (lend_case *)r->arg;
    const zero_comm comm = test_comm(r);
    zero_config cfg = {0};
    zero_ctx *z = NULL;
    lend_host p, g;
    cfg.stage = c->stage;
    cfg.type = c->type;
    cfg.micro_steps = c->micro_steps;
    cfg.accumulation = c->accumulation;
    cfg.divisor = c->sums * r->nranks;
    cfg.scaler.initial = 256;
    cfg.threads = 1;
    cfg.timeout_s = 20;
    lend_host_new(&p, c, 0.01f);
    lend_host_new(&g, c, 0);
    char *all[2] = {p.blob[0], g.blob[0]};
    zero_result got = zero_create(&z, &cfg, &comm);
    if (!got) got = lend_work(z, c, &p, &g, r->rank);
    snprintf(c->why[r->rank], sizeof c->why[0], "%s", got ? zero_last_error(z) : "");
    zero_destroy(z);
    for (int i = 0; i < 2; i++) free(all[i]);
}

/* f32, in every way the host has them: as adopted; doubles that hold the same numbers as well. */
static void lend_same(void) {
    for (int nranks = 1; nranks <= RANKS; nranks++)
        for (int k = 0; k < 3; k++) {
            uint64_t expected = 0;
            for (int stage = 0; stage <= 3; stage++)
                for (int way = 0; way < WAYS + 2; way++) {
                    lend_case c = {0};
                    c.stage = stage;
                    c.micro_steps = k ? 2 : 1;
                    /* at stages 0 and 1 in the gradients' own memory */
                    c.accumulation =
                        k == 2 && stage < 2 ? ZERO_ACCUMULATE_LOCAL : ZERO_ACCUMULATE_SHARDED;
                    if (k == 2 && stage >= 2) continue;
                    c.sums = way % 2 ? 16 : 0;
                    c.way = way == WAYS ? INLINE : way == WAYS + 1 ? POINTERS : way;
                    c.arrays = way >= WAYS ? ZERO_F64 : ZERO_F32;
                    c.together = way == INLINE ? LAYERS : 0;
                    (void)test_ranks(nranks, 0, lend_rank, &c);
                    if (!expected) expected = c.hash[0];
                    for (int r = 0; r < nranks; r++)
                        test_check(!c.why[r][0] && c.hash[r] == expected,
                                   "%d ranks, stage %d, %d micro-steps, way %d, rank %d: %016llx "
                                   "expected %016llx: %s",
                                   nranks, stage, c.micro_steps, way, r,
                                   (unsigned long long)c.hash[r], (unsigned long long)expected,
                                   c.why[r]);
                }
        }
}

/* 16-bit weights of a host in doubles or f32; the loss scale is the plugin's alone, and what its
   type cannot hold is a skipped step. */
static void lend_types(void) {
    for (int type = 1; type < ZERO_TYPES; type++)
        for (int huge = 0; huge < 3; huge++) {
            uint64_t expected = 0;
            for (int stage = 0; stage <= 3; stage++)
                for (int way = INLINE; way < WAYS; way++) {
                    lend_case c = {0};
                    c.stage = stage;
                    c.micro_steps = 1;
                    c.way = way;
                    c.type = (zero_type)type;
                    c.arrays = way == SLOTS ? ZERO_F32 : way == INLINE ? c.type : ZERO_F64;
                    if (huge && way == INLINE) c.arrays = ZERO_F32;
                    c.huge = huge == 2 ? 1e5f : huge ? 1e30f * 1e30f : 0; /* 1e5 * 256: of F16 */
                    (void)test_ranks(2, 0, lend_rank, &c);
                    /* what is rounded before it is scaled differs where arrays have 16 bits */
                    if (way == INLINE && !huge) {
                        test_check(!c.why[0][0], "arrays of type %d: %s", type, c.why[0]);
                        continue;
                    }
                    if (!expected) expected = c.hash[0];
                    test_check(!c.why[0][0] && c.hash[0] == expected && c.hash[1] == expected,
                               "type %d, stage %d, way %d: %s", type, stage, way, c.why[0]);
                    const int skips = huge == 1 || (huge == 2 && type == ZERO_F16);
                    test_check(c.report[1].stepped == !skips, "type %d, huge %d: stepped %d", type,
                               huge, c.report[1].stepped);
                }
        }
}

#define REFUSED(call, result, text)                                                                \
    do {                                                                                           \
        const zero_result refused = (call);                                                        \
        test_check(refused == (result) && strstr(zero_last_error(z), text), "%s: %d, %s", #call,   \
                   (int)refused, zero_last_error(z));                                              \
    } while (0)

/* Rows: not tested one by one. */
static void lend_refused_rows(void) {
    const zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
    const zero_hyper hyper = {0.01f, 0.9f, 0.95f, 1e-8f, 0, 0};
    zero_config cfg = {0};
    float some[40] = {0}, more[40] = {0};
    zero_ctx *z;
    if (!test_check(!zero_create(&z, &cfg, &self), "a context: %s", zero_last_error(z))) return;
    const zero_tensor_desc layers = {
        .name = "layers", .numel = 8, .layers = 5, .flags = ZERO_INLINE, .param = some};
    ZERO_ARRAY(z, more, NULL, 40);
    REFUSED(zero_tensor(z, &layers), ZERO_ERR_ARGUMENT, "param and grad of one layer, not of 5");
    ZERO_ARRAY(z, some, more, 0);
    test_check(strstr(zero_last_error(z), "tensor some: numel is 0") != NULL, "a refused row: %s",
               zero_last_error(z));
    ZERO_ARRAY(z, some, more, 0);
    REFUSED(zero_lend(z, NULL, ZERO_F32), ZERO_ERR_ARGUMENT,
            "a row of the table was refused: zero_place, rank 0 of 1: tensor some: numel is 0");
    zero_destroy(z);
    if (!test_check(!zero_create(&z, &cfg, &self), "a context: %s", zero_last_error(z))) return;
    ZERO_ARRAY(z, more, NULL, 40);
    REFUSED(zero_adopt(z, NULL, NULL, ZERO_F32, NULL), ZERO_ERR_STATE, "call zero_lend instead");
    test_check(!zero_lend(z, NULL, ZERO_F32), "arrays: %s", zero_last_error(z));
    REFUSED(zero_lend_train(z, NULL, NULL, &hyper, 0, NULL), ZERO_ERR_ARGUMENT,
            "tensor more, layer 0: your array of gradients is NULL");
    REFUSED(zero_place(z, &layers), ZERO_ERR_STATE, "zero_lend");
    zero_destroy(z);
    if (!test_check(!zero_create(&z, &cfg, &self), "a context: %s", zero_last_error(z))) return;
    ZERO_ARRAY(z, NULL, more, 40);
    ZERO_ARRAY(z, NULL, more, 70000);
    ZERO_ARRAY(z, NULL, more, 40);
    zero_plan plan;
    test_check(!zero_query_plan(z, &plan) && plan.units == 2, "small arrays share units: %d",
               plan.units);
    REFUSED(zero_lend(z, NULL, ZERO_F32), ZERO_ERR_ARGUMENT, "your array is NULL");
    zero_destroy(z);
}

/* Arrays in the same memory are refused; so is a hyper, and the gradients stay for the next call.
 */
static void lend_refused_arrays(void) {
    const zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
    const zero_hyper hyper = {0.01f, 0.9f, 0.95f, 1e-8f, 0, 0},
                     bad = {0.01f, 2, 0.95f, 1e-8f, 0, 0};
    zero_config cfg = {0};
    float w[80] = {0}, g[80] = {0};
    zero_ctx *z;
    if (!test_check(!zero_create(&z, &cfg, &self), "a context: %s", zero_last_error(z))) return;
    ZERO_ARRAY(z, w, g, 40);
    ZERO_ARRAY(z, w, g + 40, 40);
    REFUSED(zero_lend(z, NULL, ZERO_F32), ZERO_ERR_ARGUMENT,
            "tensor w, layer 0, and tensor w 1, layer 0, are in the same memory");
    zero_destroy(z);
    for (int k = 0; k < 2; k++) {
        if (!test_check(!zero_create(&z, &cfg, &self), "a context: %s", zero_last_error(z))) return;
        ZERO_ARRAY(z, w, g, 40);
        ZERO_ARRAY(z, w + 40, k ? w : g + 39, 40);
        test_check(!zero_lend(z, NULL, ZERO_F32), "the weights are apart");
        for (int twice = 0; twice < 2; twice++)
            REFUSED(zero_lend_train(z, NULL, NULL, &hyper, 0, NULL), ZERO_ERR_ARGUMENT,
                    k ? "are in the same memory"
                      : "the gradient of tensor w, layer 0, and the gradient of tensor w + 40, "
                        "layer 0,");
        zero_destroy(z);
    }
    if (!test_check(!zero_create(&z, &cfg, &self), "a context: %s", zero_last_error(z))) return;
    ZERO_ARRAY(z, w, g, 80);
    test_check(!zero_lend(z, NULL, ZERO_F32), "lent");
    g[3] = 1;
    REFUSED(zero_lend_train(z, NULL, NULL, &bad, 0, NULL), ZERO_ERR_ARGUMENT, "betas 2 and");
    REFUSED(zero_lend_train(z, NULL, NULL, NULL, 0, NULL), ZERO_ERR_ARGUMENT, "hyper is NULL");
    test_check(g[3] == 1 && !zero_lend_train(z, NULL, NULL, &hyper, 0, NULL) && w[3] < 0
                   && g[3] == 0,
               "the gradients stay for the next call: %s", zero_last_error(z));
    zero_destroy(z);
}

/* What is refused, and what is said. */
static void lend_refused(void) {
    typedef struct inside {
        float w[40];
        float *p;
    } inside;
    static const zero_tensor_desc w[] = {ZERO_FIELD(inside, w, 40, .flags = ZERO_INLINE)};
    static const zero_tensor_desc both[] = {ZERO_FIELD(inside, w, 40, .flags = ZERO_INLINE),
                                            ZERO_FIELD(inside, p, 40)};
    const zero_tensor_desc wrong = {"x", 4, 1, .flags = ZERO_INLINE | ZERO_BY_SLOT};
    const zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
    const zero_hyper hyper = {0.01f, 0.9f, 0.95f, 1e-8f, 0, 0};
    zero_config cfg = {0};
    inside p = {{0}, NULL}, g = {{0}, NULL};
    float more[40] = {0}, sums[40] = {0};
    zero_ctx *z;
    cfg.type = ZERO_F64;
    test_check(zero_create(&z, &cfg, &self) == ZERO_ERR_ARGUMENT, "weights of 64 bits");
    zero_destroy(z);
    cfg.type = ZERO_F32;
    if (!test_check(!zero_create(&z, &cfg, &self), "a context: %s", zero_last_error(z))) return;
    REFUSED(zero_tensor(z, &wrong), ZERO_ERR_ARGUMENT, "BY_SLOT");
    REFUSED(zero_lend(z, &p, (zero_type)5), ZERO_ERR_ARGUMENT, "type is 5");
    test_check(!zero_tensors(z, w, 1), "a table");
    REFUSED(zero_build(z), ZERO_ERR_STATE, "zero_lend");
    REFUSED(zero_lend_train(z, &p, &g, &hyper, 0, NULL), ZERO_ERR_STATE, "call zero_lend first");
    zero_destroy(z);
    if (!test_check(!zero_create(&z, &cfg, &self) && !zero_tensors(z, &both[1], 1), "a context: %s",
                    zero_last_error(z)))
        return;
    p.p = more;
    REFUSED(zero_adopt(z, &p, &g, ZERO_F64, NULL), ZERO_ERR_ARGUMENT, "call zero_lend instead");
    REFUSED(zero_lend_read(z, &p), ZERO_ERR_STATE, "call zero_lend first");
    zero_destroy(z);
    p.p = NULL;
    if (!test_check(!zero_create(&z, &cfg, &self) && !zero_tensors(z, both, 2), "a context: %s",
                    zero_last_error(z)))
        return;
    REFUSED(zero_lend(z, &p, ZERO_F32), ZERO_ERR_ARGUMENT, "p, layer 0: your field is NULL");
    zero_destroy(z);
    p.p = more;
    if (!test_check(!zero_create(&z, &cfg, &self) && !zero_tensors(z, both, 2), "a context: %s",
                    zero_last_error(z)))
        return;
    test_check(!zero_lend(z, &p, ZERO_F32), "lent: %s", zero_last_error(z));
    REFUSED(zero_lend_train(z, &p, &g, &hyper, 0, NULL), ZERO_ERR_ARGUMENT, "of gradients is NULL");
    REFUSED(zero_lend_train(z, &p, NULL, &hyper, 0, NULL), ZERO_ERR_ARGUMENT, "is NULL");
    REFUSED(zero_train_begin(z), ZERO_ERR_STATE, "zero_lend_train is the step");
    REFUSED(zero_adopt(z, &p, &g, ZERO_F32, NULL), ZERO_ERR_STATE, "lent");
    g.p = sums;
    test_check(p.p == more && !zero_lend_train(z, &p, &g, &hyper, 0, NULL), "a step: %s",
               zero_last_error(z));
    for (int i = 0; i < 4; i += 3) { /* the first, and the last */
        const float was = p.w[i];
        p.w[i] += 1; /* by the host */
        const zero_result got = zero_lend_train(z, &p, &g, &hyper, 0, NULL);
        test_check(TEST_CHECKED ? got == ZERO_ERR_STATE && strstr(zero_last_error(z), "tensor w")
                                : got == ZERO_OK,
                   "w[%d] is written by the host: %s", i, zero_last_error(z));
        p.w[i] = was;
    }
    zero_destroy(z);
    test_check(zero_lend(NULL, NULL, ZERO_F32) && zero_lend_read(NULL, NULL)
                   && zero_lend_train(NULL, NULL, NULL, NULL, 0, NULL) && zero_place(NULL, NULL),
               "no context");
}

/* Doubles: rounded to nearest on the way down, exact on the way up, at any address. */
static void lend_numbers(void) {
    const double wide[] = {1.0 + 0x1p-30, -0x1p-140, 1e300, 3.25};
    const float expected[] = {1.0f, -0x1p-140f, 1e30f * 1e30f, 3.25f};
    char at[sizeof wide + 1], back[sizeof wide + 1];
    float narrow[4];
    double again[4];
    memcpy(at + 1, wide, sizeof wide);
    zero_convert(narrow, ZERO_F32, at + 1, ZERO_F64, 4);
    test_check(!memcmp(narrow, expected, sizeof narrow), "doubles to f32");
    zero_convert(back + 1, ZERO_F64, narrow, ZERO_F32, 4);
    memcpy(again, back + 1, sizeof again);
    for (int i = 0; i < 4; i++) test_check(again[i] == (double)expected[i], "and back");
    zero_convert(again, ZERO_F64, wide, ZERO_F64, 4);
    test_check(!memcmp(again, wide, sizeof wide) && zero_type_bytes(ZERO_F64) == 8, "doubles");
}

/* 16-bit gradients of several micro-steps: their type is stated, except for arrays that are lent.
 */
static void lend_unstated(void) {
    const zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
    const size_t numel = 40;
    for (int k = 0; k < 32; k++) {
        const int lends = k & 1, type = 1 + (k >> 1 & 1), micro_steps = 1 + (k >> 2 & 1);
        const zero_grad_type grads = (zero_grad_type)(k >> 3);
        const int refused = !lends && micro_steps > 1 && grads == ZERO_GRAD_AUTO;
        uint16_t w[40] = {0}, g[40] = {0};
        void *param = w, *grad = g;
        zero_config cfg = {0};
        zero_ctx *z;
        if (grads > ZERO_GRAD_AS_TYPE) continue;
        cfg.type = (zero_type)type;
        cfg.micro_steps = micro_steps;
        cfg.grads = grads;
        if (!test_check(!zero_create(&z, &cfg, &self), "a context")) return;
        ZERO_PLACE(z, param, grad, numel);
        const zero_result r = lends ? zero_lend(z, NULL, (zero_type)type)
                                    : zero_adopt(z, NULL, NULL, (zero_type)type, NULL);
        test_check(r == (refused ? ZERO_ERR_ARGUMENT : ZERO_OK)
                       && (!refused || strstr(zero_last_error(z), "grads is AUTO")),
                   "type %d, grads %d, %d micro-steps, lends %d: %d, %s", type, (int)grads,
                   micro_steps, lends, (int)r, zero_last_error(z));
        zero_destroy(z);
    }
}

/* Adopts arrays of 512 numbers of `type`, and trains a step whose backward adds 1 to gradients of
   cfg->type, or with cfg->grads F32 to floats. Returns the norm. */
static double adopted_norm(zero_ctx *z, const zero_config *cfg, zero_type type, zero_result *r) {
    enum { N = 512 };
    const zero_hyper hyper = {0.01f, 0.9f, 0.95f, 1e-8f, 0, 0};
    const zero_type added = cfg->grads == ZERO_GRAD_F32 ? ZERO_F32 : cfg->type;
    zero_step_report report = {0};
    float w[N] = {0}, g[N] = {0}, one[N];
    void *param = w, *grad = g;
    for (int i = 0; i < N; i++) one[i] = 1;
    zero_place(z, &(const zero_tensor_desc){.numel = N, .param = &param, .grad = &grad});
    *r = zero_adopt(z, NULL, NULL, type, NULL);
    if (!*r) *r = zero_train_begin(z);
    if (!*r) zero_convert(grad, added, one, ZERO_F32, N);
    if (!*r) *r = zero_train_end(z, &hyper, 0, NULL);
    if (!*r) *r = zero_step_result(z, &report);
    return report.norm;
}

/* Arrays of another type than the gradients: cfg.grads states what backward adds. */
static void lend_adopted_types(void) {
    const zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
    static const char *const change[] = {"set cfg.grads to F32; otherwise change cfg.type",
                                         "set cfg.grads to AS_TYPE; otherwise change it to F32, "
                                         "or cfg.type"};
    for (int k = 0; k < 27; k++) {
        const zero_type type = (zero_type)(k % 3), arrays = (zero_type)(k / 3 % 3);
        const zero_grad_type grads = (zero_grad_type)(k / 9);
        const int refused = grads == ZERO_GRAD_AUTO && type != arrays;
        zero_config cfg = {0};
        zero_ctx *z;
        zero_result r;
        cfg.type = type;
        cfg.grads = grads;
        cfg.scaler.fixed = 1; /* backward does not ask for a scale */
        if (!test_check(!zero_create(&z, &cfg, &self), "a context")) return;
        const double norm = adopted_norm(z, &cfg, arrays, &r);
        test_check(r == (refused ? ZERO_ERR_ARGUMENT : ZERO_OK)
                       && (!refused || strstr(zero_last_error(z), change[type != ZERO_F32])),
                   "type %d, arrays %d, grads %d: %s", (int)type, (int)arrays, (int)grads,
                   zero_last_error(z));
        test_check(refused || fabs(norm - sqrt(512.0)) < 1e-6,
                   "type %d, arrays %d, grads %d: a norm of %g", (int)type, (int)arrays, (int)grads,
                   norm);
        zero_destroy(z);
    }
}

int main(void) {
    lend_unstated();
    lend_adopted_types();
    lend_same();
    lend_types();
    lend_refused_rows();
    lend_refused_arrays();
    lend_refused();
    lend_numbers();
    return test_summary();
}

/* test_gpt2.c - adapters/gpt2/gpt2.h: configurations, files, initialisation, and the whole model
   against one in f64: loss, logits, and gradients by finite differences. Then what must not change
   a bit (recompute, stages), in every type, 16-bit gradients against those of f32, memory, and
   errors.

   With ops_cpu.c as C; with ops_cuda.cu by nvcc on a GPU, or by g++ on the emulation. */
#include "../shared/harness.h"
#include "test_gpt2_reference.h"

#include "../../adapters/gpt2/gpt2.h"

#ifdef _OPENMP
#include <omp.h>
#endif
#ifdef EMULATED_LAUNCH
#include "../emulation/cublaslt_emulation.h"
#include "../emulation/emulation.h"
#endif

#ifdef __CUDACC__
#define PRODUCTS "cuBLASLt f32"
enum { ON_GPU = 1 };
#else
#define PRODUCTS "f32 by the table for "
enum { ON_GPU = 0 };
#endif

static gpt2_error err;
static void *model_stream;     /* of later contexts */
static int with_graphs;        /* later trainings record graphs of blocks */
static size_t graphs_launched; /* in the last training */

/* ---- memory: what gpt2_create allocates is counted here ---------------------------------------
 */

#ifdef EMULATED_LAUNCH
static size_t allocated_bytes(void) { return emulation_live_bytes(); }
#elif !defined(__CUDACC__)
static size_t aligned_bytes;
static size_t allocated_bytes(void) { return aligned_bytes; }

/* The C library's, with a count. */
void *aligned_alloc(size_t alignment, size_t bytes) {
    void *p = NULL;
    aligned_bytes += bytes;
    return posix_memalign(&p, alignment, bytes) ? NULL : p;
}
#endif

/* ---- configurations ---------------------------------------------------------------------------
 */

static void test_parse_one(const char *text, int L, int C, int NH, int T, int V, int Vp) {
    gpt2_config c;
    const int ok = gpt2_config_parse(text, 0, 0, &c, &err) == ZERO_OK;
    test_check(ok && c.layers == L && c.channels == C && c.heads == NH && c.max_seq_len == T
                   && c.vocab_size == V && c.padded_vocab_size == Vp,
               "%s is parsed wrongly: %s", text, err.sentence);
}

static void test_parse(void) {
    static const char *const wrong[] = {"",
                                        "d",
                                        "d13",
                                        "d12x",
                                        "gpt2:12",
                                        "gpt3:c5140",
                                        "char:4x128",
                                        "char:4x128x4x",
                                        "char:4x128x5",
                                        "char:0x8x1",
                                        "char:-1x8x1",
                                        "model.bin"};
    gpt2_config c = {1, 2, 3, 4, 5, 6, 0, GPT2_NO_EXPERTS, NULL, 0, 0, 0};
    test_parse_one("d6", 6, 384, 6, 1024, 50257, 50304);
    test_parse_one("d12", 12, 768, 12, 1024, 50257, 50304);
    test_parse_one("gpt2:d48", 48, 1600, 25, 1024, 50257, 50304);
    gpt2_config longer;
    test_check(!gpt2_config_parse("d12", 0, 16384, &longer, NULL) && longer.max_seq_len == 16384
                   && !gpt2_config_parse("gpt3:c768", 0, 1500, &longer, NULL)
                   && longer.max_seq_len == 2048,
               "%d positions", longer.max_seq_len);
    test_parse_one("gpt3:c768", 12, 768, 12, 2048, 50257, 50304);
    test_parse_one("gpt3:c2560", 32, 2560, 32, 2048, 50257, 50304);
    test_parse_one("char:4x128x4", 4, 128, 4, 64, 65, 128);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        test_check(gpt2_config_parse(wrong[i], 0, 0, &c, &err) == ZERO_ERR_ARGUMENT
                       && err.sentence[0] && c.layers == 4,
                   "'%s' is accepted", wrong[i]);
    gpt2_config_parse("char:4x128x5", 0, 0, &c, &err);
    test_check(strstr(err.sentence, "5 heads do not divide 128") != NULL, "says: %s", err.sentence);
    test_check(gpt2_config_parse("char:2x8x2", 300, 33, &c, NULL) == ZERO_OK && c.vocab_size == 300
                   && c.padded_vocab_size == 384 && c.max_seq_len == 33,
               "sizes given with a descriptor are not taken");
}

static void test_describe(void) {
    gpt2_config c;
    zero_tensor_desc t[GPT2_TENSORS];
    gpt2_config_parse("d12", 0, 0, &c, &err);
    gpt2_describe(&c, t);
    test_check(gpt2_numel(&c) == 124475904, "GPT-2 124M has %zu parameters", gpt2_numel(&c));
    for (int i = 0; i < GPT2_TENSORS; i++)
        test_check(t[i].field == (size_t)i * sizeof(void *)
                       && t[i].unit
                              == (i < 2    ? 0
                                  : i < 14 ? 1
                                           : 13)
                       && t[i].layers == (i < 2 || i > 13 ? 1 : 12) && t[i].uses == (i ? 1 : 2),
                   "%s: field %zu unit %d layers %d uses %d", t[i].name, t[i].field, t[i].unit,
                   t[i].layers, t[i].uses);
    /* 6 (124475904 - 1024 * 768) + 12 * 12 * 768 * 64 */
    test_check(gpt2_flops_per_token(&c, 64) == 749214720.0, "operations per token: %.0f",
               gpt2_flops_per_token(&c, 64));
    test_check(gpt2_matmul_rate(ZERO_F32, 1) > (ON_GPU ? 1 : 1e8)
                   && gpt2_matmul_rate(ZERO_BF16, 0) > (ON_GPU ? 1 : 1e8),
               "rate of products");
    test_check(gpt2_peak_rate(ZERO_BF16, 0) >= gpt2_peak_rate(ZERO_F32, 1)
                   && gpt2_peak_rate(ZERO_F32, 1) >= gpt2_peak_rate(ZERO_F32, 0)
                   && (ON_GPU || gpt2_peak_rate(ZERO_BF16, 0) == 0),
               "the maker's rates");
}

/* ---- a tiny model in f64 ----------------------------------------------------------------------
 */

enum { L = 2, NH = 3, C = 12, H = C / NH, V = 11, Vp = 128, MAXT = 9, T = 7, B = 2, R = B * T };

static const gpt2_config tiny = {MAXT, V, Vp, L, NH, C, 0, GPT2_NO_EXPERTS, NULL, 0, 0, 0};

/* All parameters, type-major, and where each tensor begins. */
typedef struct tiny_model {
    double *p;
    size_t at[GPT2_TENSORS + 1];
} tiny_model;

static int tiny_inputs[R], tiny_targets[R];

static void make_tokens(void) {
    for (int i = 0; i < R; i++) {
        tiny_inputs[i] = (int)(gpt2_draw(5, 1000, (uint64_t)i) % V);
        tiny_targets[i] = (int)(gpt2_draw(6, 1000, (uint64_t)i) % V);
    }
}

/* The layer's part of a tensor; numel elements each. */
static const double *part(const tiny_model *m, int tensor, size_t l, size_t numel) {
    return m->p + m->at[tensor] + l * numel;
}

static void reference_block(const tiny_model *m, size_t l, double *x, size_t b, size_t t) {
    static double n[R * C], qkv[R * 3 * C], att[R * C], out[R * C], fc[R * 4 * C];
    const size_t r = b * t;
    ref_norm(n, x, part(m, 2, l, C), part(m, 3, l, C), r, C);
    ref_linear(qkv, n, part(m, 4, l, 3 * C * C), part(m, 5, l, 3 * C), r, C, 3 * C);
    ref_attention(att, qkv, b, t, NH, H);
    ref_linear(out, att, part(m, 6, l, C * C), part(m, 7, l, C), r, C, C);
    for (size_t i = 0; i < r * C; i++) x[i] += out[i];
    ref_norm(n, x, part(m, 8, l, C), part(m, 9, l, C), r, C);
    ref_linear(fc, n, part(m, 10, l, 4 * C * C), part(m, 11, l, 4 * C), r, C, 4 * C);
    for (size_t i = 0; i < r * 4 * C; i++) fc[i] = ref_gelu(fc[i]);
    ref_linear(out, fc, part(m, 12, l, 4 * C * C), part(m, 13, l, C), r, 4 * C, C);
    for (size_t i = 0; i < r * C; i++) x[i] += out[i];
}

/* logits (b t, V) */
static void reference_logits(const tiny_model *m, double *logits, const int *inputs, size_t b,
                             size_t t) {
    static double x[R * C], n[R * C];
    for (size_t i = 0; i < b * t * C; i++)
        x[i] = m->p[m->at[0] + (size_t)inputs[i / C] * C + i % C]
               + m->p[m->at[1] + i / C % t * C + i % C];
    for (size_t l = 0; l < L; l++) reference_block(m, l, x, b, t);
    ref_norm(n, x, part(m, 14, 0, C), part(m, 15, 0, C), b * t, C);
    ref_linear(logits, n, part(m, 0, 0, 0), NULL, b * t, C, V);
}

static double reference_loss(const tiny_model *m, size_t rows) {
    static double logits[R * V];
    double sum = 0;
    reference_logits(m, logits, tiny_inputs, rows, T);
    for (size_t r = 0; r < rows * T; r++)
        sum += ref_cross_entropy(logits + r * V, (size_t)tiny_targets[r], V);
    return sum;
}

/* ---- the tiny model through the plugin ---------------------------------------------------------
 */

typedef struct setup {
    int stage, recompute, micro_steps;
    zero_type type;
    zero_grad_type grads;
} setup;

/* Without it no later test says anything: a machine without a GPU, for one. */
static void must(int ok, const char *why) {
    if (!test_check(ok, "%s", why)) exit(test_summary());
}

static zero_ctx *make_context(const setup *s, const zero_comm *comm, const gpt2_config *cfg) {
    zero_config zc;
    zero_tensor_desc t[GPT2_TENSORS];
    zero_ctx *z = NULL;
    memset(&zc, 0, sizeof zc);
    zc.stage = s->stage;
    zc.micro_steps = s->micro_steps;
    zc.type = s->type;
    zc.grads = s->grads;
    if (!zc.grads && s->micro_steps > 1) zc.grads = ZERO_GRAD_F32;
    zc.log = test_quiet;
    zc.stream = model_stream;
    gpt2_describe(cfg, t);
    zero_result r = zero_create(&z, &zc, comm);
    for (int i = 0; i < GPT2_TENSORS && !r; i++) r = zero_tensor(z, &t[i]);
    if (!r) r = zero_build(z);
    must(r == ZERO_OK, zero_last_error(z));
    return z;
}

/* Biases and norms that are not all alike, so that their gradients say something. */
static void ruffle(zero_ctx *z, const gpt2_config *cfg) {
    zero_tensor_desc t[GPT2_TENSORS];
    gpt2_describe(cfg, t);
    for (int i = 0; i < GPT2_TENSORS; i++) {
        float values[512];
        const size_t n = t[i].numel * (size_t)t[i].layers;
        if (!(t[i].flags & ZERO_ONE_D)) continue;
        zero_read_tensor(z, t[i].name, ZERO_PARAMETER, 0, n, values);
        for (size_t j = 0; j < n; j++)
            values[j] += 0.2f * (float)(gpt2_draw(9, (uint64_t)i, j) >> 40) * 0x1p-24f - 0.1f;
        zero_write_tensor(z, t[i].name, ZERO_PARAMETER, 0, n, values);
    }
}

/* All tensors of a kind, type-major (gpt2_numel floats). */
static int read_all(zero_ctx *z, const gpt2_config *cfg, zero_kind kind, float *out) {
    zero_tensor_desc t[GPT2_TENSORS];
    gpt2_describe(cfg, t);
    for (int i = 0; i < GPT2_TENSORS; i++) {
        const size_t n = t[i].numel * (size_t)t[i].layers;
        if (zero_read_tensor(z, t[i].name, kind, 0, n, out)) return 0;
        out += n;
    }
    return 1;
}

static tiny_model as_reference(zero_ctx *z) {
    zero_tensor_desc t[GPT2_TENSORS];
    tiny_model m;
    const size_t n = gpt2_numel(&tiny);
    float *values = (float *)malloc(n * sizeof(float));
    m.p = (double *)malloc(n * sizeof(double));
    read_all(z, &tiny, ZERO_PARAMETER, values);
    for (size_t i = 0; i < n; i++) m.p[i] = (double)values[i];
    gpt2_describe(&tiny, t);
    m.at[0] = 0;
    for (int i = 0; i < GPT2_TENSORS; i++) m.at[i + 1] = m.at[i] + t[i].numel * (size_t)t[i].layers;
    free(values);
    return m;
}

/* A step's loss, gradients (gpt2_numel) and evaluation. */
typedef struct outcome {
    double loss, eval;
    float *grads;
} outcome;

static outcome run_step(const setup *s, zero_ctx *z) {
    const gpt2_run run = {B, T, s->recompute, s->type, 0, 0, 0, NULL, NULL, 0, 0, 0};
    outcome o = {0, 0, (float *)calloc(gpt2_numel(&tiny), sizeof(float))};
    gpt2_model *m;
    int ok = gpt2_create(&m, z, &tiny, &run, &err) == ZERO_OK;
    for (int i = 0; i < s->micro_steps && ok; i++) {
        ok &= zero_pass_begin(z, ZERO_TRAIN, i, s->micro_steps) == ZERO_OK;
        ok &= gpt2_train_step(m, tiny_inputs, tiny_targets,
                              zero_loss_scale(z) / (float)s->micro_steps, &o.loss)
              == ZERO_OK;
        ok &= zero_pass_end(z) == ZERO_OK;
    }
    ok = ok && !zero_reduce(z) && read_all(z, &tiny, ZERO_GRADIENT, o.grads);
    const zero_hyper frozen = {0, 0.9f, 0.95f, 1e-8f, 0, 0};
    ok = ok && !zero_step(z, &frozen) && !zero_pass_begin(z, ZERO_EVAL, 0, 1);
    ok = ok && gpt2_loss(m, tiny_inputs, tiny_targets, B, &o.eval) == ZERO_OK && !zero_pass_end(z);
    test_check(ok, "a step at stage %d, recompute %d fails: %s; %s", s->stage, s->recompute,
               zero_last_error(z), err.sentence);
    gpt2_destroy(m);
    return o;
}

static void check_gradients(tiny_model *m, const float *grads) {
    zero_tensor_desc t[GPT2_TENSORS];
    gpt2_describe(&tiny, t);
    for (int k = 0; k < GPT2_TENSORS; k++) {
        const size_t n = m->at[k + 1] - m->at[k], step = n > 2000 ? 7 : n > 200 ? 3 : 1;
        double most = 0, off = 0;
        for (size_t i = m->at[k]; i < m->at[k + 1]; i += step) {
            const double before = m->p[i], h = 1e-4;
            m->p[i] = before + h;
            const double up = reference_loss(m, B);
            m->p[i] = before - h;
            const double slope = (up - reference_loss(m, B)) / (2 * h * R);
            m->p[i] = before;
            most = fmax(most, fabs(slope));
            off = fmax(off, fabs(slope - (double)grads[i]));
        }
        test_check(off <= 1e-5 * fmax(most, 1e-3) && most > 0, "gradient of %s: off by %g of %g",
                   t[k].name, off, most);
    }
}

static void test_against_reference(void) {
    const zero_comm comm = {ZERO_COMM_SELF, 0, NULL, 0};
    const setup s = {0, 1, 1, ZERO_F32, ZERO_GRAD_F32};
    zero_ctx *z = make_context(&s, &comm, &tiny);
    gpt2_init(z, &tiny, 3, &err);
    ruffle(z, &tiny);
    tiny_model m = as_reference(z);
    const outcome o = run_step(&s, z);
    const double expected = reference_loss(&m, B) / R;
    test_check(fabs(o.loss - expected) < 1e-6, "loss %.9f, expected %.9f", o.loss, expected);
    test_check(o.eval == o.loss * R || fabs(o.eval / R - o.loss) < 1e-12, "evaluation differs");
    check_gradients(&m, o.grads);
    free(o.grads);
    free(m.p);
    zero_destroy(z);
}

/* Logits of the next token, with the tokens before it from keys and values that are kept. */
static double next_logits_error(zero_ctx *z, gpt2_model *model, const int *inputs, int t,
                                const double *expected) {
    float logits[V];
    double off = 0;
    zero_pass_begin(z, ZERO_EVAL, 0, 1);
    const zero_result r = gpt2_next_logits(model, inputs, t, logits);
    zero_pass_end(z);
    for (int i = 0; i < V; i++)
        off = fmax(off, fabs((double)logits[i] - expected[(t - 1) * V + i]));
    return r == ZERO_OK ? off : INFINITY;
}

static void test_next_logits(zero_ctx *z, gpt2_model *model, const tiny_model *m) {
    double expected[R * V], loss;
    int other[T];
    reference_logits(m, expected, tiny_inputs, 1, T);
    for (int round = 0; round < 2; round++)
        for (int t = 1; t <= T; t++) {
            const double off = next_logits_error(z, model, tiny_inputs, t, expected);
            test_check(off < 1e-6, "next logits after %d tokens: off by %g", t, off);
        }
    /* Other tokens before the last one change nothing while the old ones are kept. After a pass,
       everything is computed again, and they do. */
    memcpy(other, tiny_inputs, sizeof other);
    other[0] = (other[0] + 1) % V;
    (void)next_logits_error(z, model, tiny_inputs, T - 1, expected);
    const double kept = next_logits_error(z, model, other, T, expected);
    (void)next_logits_error(z, model, tiny_inputs, T - 1, expected);
    zero_pass_begin(z, ZERO_EVAL, 0, 1);
    (void)gpt2_loss(model, tiny_inputs, tiny_targets, 1, &loss);
    zero_pass_end(z);
    const double again = next_logits_error(z, model, other, T, expected);
    test_check(kept < 1e-6 && again > 1e-4, "keys are kept: %g, and computed again: %g", kept,
               again);
}

/* Evaluation of fewer rows, and logits after every position. */
static void test_evaluation(void) {
    const zero_comm comm = {ZERO_COMM_SELF, 0, NULL, 0};
    const gpt2_run run = {B, T, 0, ZERO_F32, 0, 0, 0, NULL, NULL, 0, 0, 0};
    const setup s = {3, 0, 1, ZERO_F32, ZERO_GRAD_F32};
    zero_ctx *z = make_context(&s, &comm, &tiny);
    gpt2_model *model;
    double loss, expected[R * V];
    float logits[V];
    gpt2_init(z, &tiny, 4, &err);
    ruffle(z, &tiny);
    tiny_model m = as_reference(z);
    must(gpt2_create(&model, z, &tiny, &run, &err) == ZERO_OK, err.sentence);
    for (int rows = 0; rows <= B; rows++) {
        zero_pass_begin(z, ZERO_EVAL, 0, 1);
        const zero_result r = gpt2_loss(model, tiny_inputs, tiny_targets, rows, &loss);
        zero_pass_end(z);
        const double want = rows ? reference_loss(&m, (size_t)rows) : 0;
        test_check(r == ZERO_OK && fabs(loss - want) < 1e-6 * R, "%d rows: loss %.9f not %.9f",
                   rows, loss, want);
    }
    for (int t = 1; t <= T; t++) {
        double off = 0;
        zero_pass_begin(z, ZERO_EVAL, 0, 1);
        const zero_result r = gpt2_logits(model, tiny_inputs, t, logits);
        zero_pass_end(z);
        reference_logits(&m, expected, tiny_inputs, 1, (size_t)t);
        for (int i = 0; i < V; i++)
            off = fmax(off, fabs((double)logits[i] - expected[(t - 1) * V + i]));
        test_check(r == ZERO_OK && off < 1e-6, "logits after %d tokens: off by %g", t, off);
    }
    test_next_logits(z, model, &m);
    free(m.p);
    gpt2_destroy(model);
    zero_destroy(z);
}

/* ---- types -------------------------------------------------------------------------------------
 */

static const struct number_types {
    const char *name;
    zero_type type;
    zero_grad_type grads;
    double rounding; /* largest relative error of one */
} types[] = {{"f32", ZERO_F32, ZERO_GRAD_F32, 0x1p-24},
             {"bf16", ZERO_BF16, ZERO_GRAD_AS_TYPE, 0x1p-8},
             {"bf16, f32 gradients", ZERO_BF16, ZERO_GRAD_F32, 0x1p-8},
             {"f16", ZERO_F16, ZERO_GRAD_AS_TYPE, 0x1p-11},
             {"f16, f32 gradients", ZERO_F16, ZERO_GRAD_F32, 0x1p-11}};
enum { TYPES = sizeof types / sizeof *types };

static zero_ctx *make_tiny(const setup *s) {
    const zero_comm comm = {ZERO_COMM_SELF, 0, NULL, 0};
    zero_ctx *z = make_context(s, &comm, &tiny);
    gpt2_init(z, &tiny, 3, &err);
    ruffle(z, &tiny);
    return z;
}

/* In CUDA, in 16 bits, GELU may be cuBLASLt's, and when it is computed again the own kernel's: then
   gradients have other bits. */
static int gelu_again(const setup *s) {
    return ON_GPU && s->type != ZERO_F32
           && (s->recompute == GPT2_RECOMPUTE_GELU || s->recompute == GPT2_RECOMPUTE_NORM);
}

static void same_bits(const struct number_types *t) {
    outcome first[2] = {{0, 0, NULL}, {0, 0, NULL}}; /* by gelu_again */
    for (int i = 0; i < 16; i++) {
        const setup s = {i / 4, i % 4, 2, t->type, t->grads};
        zero_ctx *z = make_tiny(&s);
        const outcome o = run_step(&s, z);
        outcome *f = &first[gelu_again(&s)];
        const int kept = !f->grads;
        if (kept) *f = o;
        test_check(o.loss == first->loss && o.eval == first->eval,
                   "%s, stage %d, recompute %d: loss", t->name, s.stage, s.recompute);
        /* Where accumulation happens differs between stages 0-1 and 2-3, not within. */
        if (s.stage == 2 && s.recompute < 2 && (s.recompute == 0 || gelu_again(&s)))
            memcpy(f->grads, o.grads, gpt2_numel(&tiny) * sizeof(float));
        test_check(!memcmp(o.grads, f->grads, gpt2_numel(&tiny) * sizeof(float)),
                   "%s, stage %d, recompute %d: gradients", t->name, s.stage, s.recompute);
        if (!kept) free(o.grads);
        zero_destroy(z);
    }
    free(first[0].grads);
    free(first[1].grads);
}

/* Losses that are asked for later are the mean of those that were not. */
static void test_losses(void) {
    const setup s = {0, 1, 3, ZERO_F32, ZERO_GRAD_F32};
    const gpt2_run run = {B, T, 1, ZERO_F32, 0, 0, 0, NULL, NULL, 0, 0, 0};
    const int *const inputs[] = {tiny_inputs, tiny_targets, tiny_inputs};
    zero_ctx *z = make_tiny(&s);
    gpt2_model *m = NULL;
    double each[3] = {0, 0, 0}, mean = -1, none = -1;
    int ok = gpt2_create(&m, z, &tiny, &run, &err) == ZERO_OK;
    for (int i = 0; i < 3 && ok; i++)
        ok = !zero_pass_begin(z, ZERO_TRAIN, i, 3)
             && !gpt2_train_step(m, inputs[i], tiny_targets, 1, i == 1 ? NULL : &each[i])
             && !zero_pass_end(z);
    ok = ok && !gpt2_take_losses(m, &mean) && !gpt2_take_losses(m, &none) && !zero_reduce(z)
         && !zero_skip_step(z) && !zero_pass_begin(z, ZERO_EVAL, 0, 1)
         && !gpt2_loss(m, tiny_targets, tiny_targets, B, &each[1]) && !zero_pass_end(z);
    test_check(ok && none == 0 && each[0] == each[2] && each[0] * R != each[1]
                   && fabs(mean - (each[0] + each[1] / R + each[2]) / 3) < 1e-12,
               "losses %.15g %.15g %.15g have the mean %.15g, then %g: %s", each[0], each[1] / R,
               each[2], mean, none, gpt2_last_error(m));
    gpt2_destroy(m);
    zero_destroy(z);
}

/* An f32 context with the parameters of another. */
static zero_ctx *copy_as_f32(zero_ctx *from) {
    static const setup s = {0, 0, 1, ZERO_F32, ZERO_GRAD_F32};
    zero_tensor_desc t[GPT2_TENSORS];
    zero_ctx *z = make_tiny(&s);
    float *values = (float *)malloc(gpt2_numel(&tiny) * sizeof(float));
    gpt2_describe(&tiny, t);
    for (int i = 0; i < GPT2_TENSORS; i++) {
        const size_t n = t[i].numel * (size_t)t[i].layers;
        zero_read_tensor(from, t[i].name, ZERO_PARAMETER, 0, n, values);
        zero_write_tensor(z, t[i].name, ZERO_PARAMETER, 0, n, values);
    }
    free(values);
    return z;
}

/* Loss and gradients in 16 bits against those in f32 with the same parameters. Roundings at some
   thirty places add up like random steps: a tensor's gradient, in the 2-norm, is off by a few. */
static void near_f32(const struct number_types *t) {
    const setup s = {0, 0, 1, t->type, t->grads}, plain = {0, 0, 1, ZERO_F32, ZERO_GRAD_F32};
    zero_ctx *z = make_tiny(&s), *z32 = copy_as_f32(z);
    const outcome o = run_step(&s, z), exact = run_step(&plain, z32);
    zero_tensor_desc d[GPT2_TENSORS];
    size_t at = 0;
    gpt2_describe(&tiny, d);
    test_check(fabs(o.loss - exact.loss) <= t->rounding * exact.loss, "%s: loss %.7f, in f32 %.7f",
               t->name, o.loss, exact.loss);
    for (int k = 0; k < GPT2_TENSORS; k++) {
        double off = 0, all = 0;
        for (size_t end = at + d[k].numel * (size_t)d[k].layers; at < end; at++) {
            off += pow((double)o.grads[at] - (double)exact.grads[at], 2);
            all += pow((double)exact.grads[at], 2);
        }
        test_check(all > 0 && sqrt(off / all) <= 4 * t->rounding,
                   "%s: gradient of %s is off by %.2f roundings", t->name, d[k].name,
                   sqrt(off / all) / t->rounding);
    }
    free(o.grads);
    free(exact.grads);
    zero_destroy(z);
    zero_destroy(z32);
}

/* Trains for some steps; parameters into out (gpt2_numel floats), the last loss is returned. */
static double train(const setup *s, float *out) {
    const gpt2_run run = {B, T, s->recompute, s->type, 0, 0, 0, NULL, NULL, 0, 0, 0};
    const zero_hyper hyper = {1e-2f, 0.9f, 0.95f, 1e-8f, 0, 1.0f};
    zero_ctx *z = make_tiny(s);
    gpt2_model *m = NULL;
    double loss = 0;
    int ok = gpt2_create(&m, z, &tiny, &run, &err) == ZERO_OK;
    if (ok && with_graphs) ok = gpt2_record_graphs(m, &err) == ZERO_OK;
    for (int i = 0; i < 40 && ok; i++)
        ok = !zero_pass_begin(z, ZERO_TRAIN, 0, 1)
             && !gpt2_train_step(m, tiny_inputs, tiny_targets, zero_loss_scale(z), &loss)
             && !zero_pass_end(z) && !zero_reduce(z) && !zero_step(z, &hyper);
    test_check(ok && read_all(z, &tiny, ZERO_PARAMETER, out), "training fails: %s; %s",
               zero_last_error(z), err.sentence);
    graphs_launched = m ? gpt2_graph_launches(m) : 0;
    gpt2_destroy(m);
    zero_destroy(z);
    return loss;
}

/* Graphs of blocks give the same bits. After a few passes all blocks are launched as graphs, also
   backward at stages 2 and 3, where gradients alternate between two buffers; on the CPU none is. */
static void test_graphs(const struct number_types *t) {
    const size_t n = gpt2_numel(&tiny);
    float *a = (float *)calloc(n, sizeof(float)), *b = (float *)calloc(n, sizeof(float));
    for (int stage = 0; stage < 4; stage++) {
        const setup s = {stage, stage, 1, t->type, t->grads};
        const size_t most = (size_t)(40 * L * (stage == 3 ? 3 : 2));
        const double loss = train(&s, a);
        with_graphs = 1;
        const double other = train(&s, b);
        with_graphs = 0;
        test_check(loss == other && !memcmp(a, b, n * sizeof(float)),
                   "%s, stage %d: other losses or parameters with graphs", t->name, stage);
        test_check(
            ON_GPU ? graphs_launched >= most * 3 / 4 && graphs_launched < most : !graphs_launched,
            "%s, stage %d: %zu of %zu graphs were launched", t->name, stage, graphs_launched, most);
    }
    free(a);
    free(b);
}

static void test_training(const struct number_types *t) {
    const setup whole = {0, 0, 1, t->type, t->grads}, sharded = {3, 3, 1, t->type, t->grads};
    const size_t n = gpt2_numel(&tiny);
    float *a = (float *)calloc(n, sizeof(float)), *b = (float *)calloc(n, sizeof(float));
    const double loss = train(&whole, a), other = train(&sharded, b);
    test_check(loss < 1.5 && loss == other, "%s: 40 steps take the loss from 2.4 to %.7f, %.7f",
               t->name, loss, other);
    test_check(!memcmp(a, b, n * sizeof(float)), "%s: other parameters at stage 3", t->name);
    free(a);
    free(b);
}

static void test_types(void) {
    for (int i = 0; i < TYPES; i++) {
        same_bits(&types[i]);
        test_training(&types[i]);
#ifdef __CUDACC__
        cudaStream_t stream = NULL;
        must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess, "a stream");
        model_stream = (void *)stream; /* the default stream cannot be recorded */
#endif
        test_graphs(&types[i]);
#ifdef __CUDACC__
        (void)cudaStreamDestroy(stream);
        model_stream = NULL;
#endif
        if (types[i].type != ZERO_F32) near_f32(&types[i]);
    }
}

/* ---- initialisation ---------------------------------------------------------------------------
 */

static const gpt2_config small = {16, 300, 384, 2, 2, 48, 0, GPT2_NO_EXPERTS, NULL, 0, 0, 0};

/* Values from another program with the same formula. */
static void test_draws(void) {
    test_check(gpt2_draw(0, 0, 0) == 0xA706DD2F4D197E6Fu, "draw 0 of stream 0");
    test_check(gpt2_draw(42, 1000, 123456789) == 0x3C95F376EAC92516u, "draw of stream 1000");
}

/* One element by the formula, with the C library's functions. */
static double normal_of(uint64_t s, int tensor, uint64_t i) {
    const double u = ((double)(gpt2_draw(s, (uint64_t)tensor, 2 * i) >> 11) + 0.5) * 0x1p-53;
    const double v = ((double)(gpt2_draw(s, (uint64_t)tensor, 2 * i + 1) >> 11) + 0.5) * 0x1p-53;
    return sqrt(-2 * log(u)) * cos(2 * M_PI * v);
}

static double expected_element(int tensor, size_t i) {
    switch (tensor) {
    case 0: return i < (size_t)300 * 48 ? 0.02 * normal_of(7, 0, i) : 0;
    case 1:
    case 4:
    case 10: return 0.02 * normal_of(7, tensor, i);
    case 6:
    case 12: return 0.02 / sqrt(4) * normal_of(7, tensor, i);
    case 2:
    case 8:
    case 14: return 1;
    default: return 0;
    }
}

static void init_body(test_rank *r) {
    const setup *s = (const setup *)r->arg;
    const zero_comm comm = test_comm(r);
    zero_ctx *z = make_context(s, &comm, &small);
    zero_tensor_desc t[GPT2_TENSORS];
    float *values = (float *)malloc(gpt2_numel(&small) * sizeof(float));
    size_t at = 0;
    if (gpt2_init(z, &small, 7, NULL)) test_rank_fail(r, "gpt2_init: %s", zero_last_error(z));
    if (!read_all(z, &small, ZERO_PARAMETER, values)) test_rank_fail(r, "read");
    gpt2_describe(&small, t);
    for (int k = 0; k < GPT2_TENSORS; k++)
        for (size_t i = 0; i < t[k].numel * (size_t)t[k].layers; i++, at++)
            if (fabs((double)values[at] - expected_element(k, i)) > 1e-8)
                test_rank_fail(r, "%s[%zu] = %g, expected %g", t[k].name, i, (double)values[at],
                               expected_element(k, i));
    free(values);
    zero_destroy(z);
}

static void test_init(void) {
    for (int stage = 0; stage < 4; stage++) {
        setup s = {stage, 0, 1, ZERO_F32, ZERO_GRAD_F32};
        for (int n = 1; n <= 3; n++)
            test_check(test_ranks(n, 0, init_body, &s), "initialisation at stage %d, %d ranks: %s",
                       stage, n, test_first);
    }
}

/* ---- memory and errors -------------------------------------------------------------------------
 */

#if !defined(__CUDACC__) || defined(EMULATED_LAUNCH)
static void check_memory(zero_type type, int together) {
    const zero_comm comm = {ZERO_COMM_SELF, 0, NULL, 0};
    const setup s = {0, 0, 1, type, ZERO_GRAD_AUTO};
    zero_ctx *z = make_context(&s, &comm, &small);
    size_t last = SIZE_MAX;
    for (int recompute = 0; recompute < 4; recompute++) {
        const gpt2_run run = {5, 16, recompute, type, 0, 0, 0, NULL, NULL, together, 0, 0};
        gpt2_model *m;
        const size_t before = allocated_bytes();
        const zero_result r = gpt2_create(&m, z, &small, &run, &err);
        const double made = (double)(allocated_bytes() - before);
        const double told = (double)gpt2_activation_bytes(&small, &run);
        test_check(r == ZERO_OK && fabs(made - told) <= 0.01 * told && told < (double)last,
                   "type %d, %d together, recompute %d: %.0f bytes, announced %.0f", (int)type,
                   together, recompute, made, told);
        last = (size_t)told;
        gpt2_destroy(m);
    }
    zero_destroy(z);
}
#endif

/* On a GPU logits are not cut as small, and there are 32 MiB for cuBLASLt. */
static void test_memory(void) {
#if !defined(__CUDACC__) || defined(EMULATED_LAUNCH)
    for (int t = 0; t < ZERO_TYPES; t++) check_memory((zero_type)t, 3 * (t % 2));
#endif
    gpt2_config d12;
    const gpt2_run run = {4, 64, 1, ZERO_F32, 0, 0, 0, NULL, NULL, 0, 0, 0},
                   half = {4, 64, 1, ZERO_BF16, 0, 0, 0, NULL, NULL, 0, 0, 0};
    gpt2_config_parse("d12", 0, 0, &d12, &err);
    test_check(gpt2_activation_bytes(&d12, &run) < 170e6 + 70e6 * ON_GPU,
               "GPT-2 124M, T 64, B 4: %zu bytes", gpt2_activation_bytes(&d12, &run));
    test_check(gpt2_activation_bytes(&d12, &half) < 105e6 + 60e6 * ON_GPU,
               "the same in bf16: %zu bytes", gpt2_activation_bytes(&d12, &half));
}

static void test_errors(void) {
    static const gpt2_run wrong[] = {{0, 4, 0, ZERO_F32, 0, 0, 0, NULL, NULL, 0, 0, 0},
                                     {1, 0, 0, ZERO_F32, 0, 0, 0, NULL, NULL, 0, 0, 0},
                                     {1, 17, 0, ZERO_F32, 0, 0, 0, NULL, NULL, 0, 0, 0},
                                     {1, 4, 5, ZERO_F32, 0, 0, 0, NULL, NULL, 0, 0, 0},
                                     {1, 4, -1, ZERO_F32, 0, 0, 0, NULL, NULL, 0, 0, 0},
                                     {1 << 30, 16, 0, ZERO_F32, 0, 0, 0, NULL, NULL, 0, 0, 0},
                                     {1, 4, 0, ZERO_TYPES, 0, 0, 0, NULL, NULL, 0, 0, 0}};
    const zero_comm comm = {ZERO_COMM_SELF, 0, NULL, 0};
    const gpt2_run run = {B, T, 0, ZERO_F32, 0, 0, 0, NULL, NULL, 0, 0, 0};
    const setup s = {0, 0, 1, ZERO_F32, ZERO_GRAD_F32};
    zero_ctx *z = make_context(&s, &comm, &tiny);
    gpt2_model *m = NULL;
    double loss;
    float logits[V];
    int tokens[R];
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        test_check(gpt2_create(&m, z, &small, &wrong[i], &err) == ZERO_ERR_ARGUMENT && !m
                       && err.sentence[0],
                   "run %zu is accepted", i);
        test_check(gpt2_activation_bytes(&small, &wrong[i]) == 0, "bytes of run %zu", i);
    }
    gpt2_run other = run;
    other.type = ZERO_BF16;
    test_check(gpt2_create(&m, z, &tiny, &other, &err) == ZERO_ERR_ARGUMENT && !m
                   && strstr(err.sentence, "bf16") && strstr(err.sentence, "f32"),
               "a run in bf16 on f32 parameters: %s", err.sentence);
    must(gpt2_create(&m, z, &tiny, &run, &err) == ZERO_OK, err.sentence);
    test_check(!*gpt2_last_error(m), "a sentence before any error");
    test_check(!strncmp(gpt2_product_path(m), PRODUCTS, strlen(PRODUCTS))
                   && *gpt2_attention_path(m),
               "products go by %s, attention by %s", gpt2_product_path(m), gpt2_attention_path(m));
    memcpy(tokens, tiny_inputs, sizeof tokens);
    tokens[3] = V; /* in the padding */
    test_check(gpt2_train_step(m, tokens, tiny_targets, 1, &loss) == ZERO_ERR_ARGUMENT
                   && strstr(gpt2_last_error(m), "input token 3 is 11"),
               "says: %s", gpt2_last_error(m));
    tokens[3] = -1;
    test_check(gpt2_loss(m, tiny_inputs, tokens, B, &loss) == ZERO_ERR_ARGUMENT
                   && strstr(gpt2_last_error(m), "target token 3 is -1"),
               "says: %s", gpt2_last_error(m));
    test_check(gpt2_loss(m, tiny_inputs, tiny_targets, B + 1, &loss) == ZERO_ERR_ARGUMENT, "rows");
    test_check(gpt2_logits(m, tiny_inputs, T + 1, logits) == ZERO_ERR_ARGUMENT, "tokens");
    /* outside a pass the plugin refuses, and its sentence arrives */
    test_check(gpt2_train_step(m, tiny_inputs, tiny_targets, 1, &loss) == ZERO_ERR_STATE
                   && strstr(gpt2_last_error(m), "zero_forward_begin"),
               "says: %s", gpt2_last_error(m));
    gpt2_destroy(m);
    gpt2_destroy(NULL);
    zero_destroy(z);
}

#ifdef __CUDACC__
/* Channels that no kernel takes are refused when the model is made; TF32 is near f32. */
static void test_cuda(void) {
    const zero_comm comm = {ZERO_COMM_SELF, 0, NULL, 0};
    const gpt2_config odd = {8, 11, 128, 1, 1, 5003, 0, GPT2_NO_EXPERTS, NULL, 0, 0, 0};
    const gpt2_run run = {1, 8, 0, ZERO_F32, 0, 0, 0, NULL, NULL, 0, 0, 0},
                   tf32 = {B, T, 0, ZERO_F32, 1, 0, 0, NULL, NULL, 0, 0, 0};
    const setup s = {0, 0, 1, ZERO_F32, ZERO_GRAD_F32};
    zero_ctx *z = make_context(&s, &comm, &tiny);
    gpt2_model *m = NULL;
    double loss = 0;
    test_check(gpt2_create(&m, z, &odd, &run, &err) == ZERO_ERR_UNSUPPORTED && !m
                   && strstr(err.sentence, "5003 channels"),
               "odd channels: %s", err.sentence);
    gpt2_init(z, &tiny, 3, &err);
    ruffle(z, &tiny);
    tiny_model reference = as_reference(z);
    test_check(gpt2_create(&m, z, &tiny, &tf32, &err) == ZERO_OK
                   && strstr(gpt2_product_path(m), "TF32"),
               "TF32: %s", err.sentence);
    zero_pass_begin(z, ZERO_EVAL, 0, 1);
    const zero_result r = gpt2_loss(m, tiny_inputs, tiny_targets, B, &loss);
    zero_pass_end(z);
    const double off = fabs(loss - reference_loss(&reference, B)) / R;
    test_check(r == ZERO_OK && off < 1e-3, "loss in TF32 is off by %g", off);
    free(reference.p);
    gpt2_destroy(m);
    zero_destroy(z);
#ifdef EMULATED_LAUNCH
    test_check(!emulation_found() && emulated_cublaslt_live() == 0, "left behind: %s, %d objects",
               emulation_found(), emulated_cublaslt_live());
#endif
}
#endif

#ifdef EMULATED_LAUNCH
/* Steps whose host never waits within one, with tokens that are overwritten as soon as a call
   returns; parameters into out, the mean loss is returned. */
static double run_unwaited(const setup *s, float *out) {
    const gpt2_run run = {B, T, s->recompute, s->type, 0, 0, 0, NULL, NULL, 0, 0, 0};
    const zero_hyper hyper = {1e-2f, 0.9f, 0.95f, 1e-8f, 0, 1.0f};
    zero_ctx *z = make_tiny(s);
    gpt2_model *m = NULL;
    double loss = 0;
    int ok = gpt2_create(&m, z, &tiny, &run, &err) == ZERO_OK;
    for (int i = 0; i < 2 * s->micro_steps && ok; i++) {
        const int micro = i % s->micro_steps, last = micro + 1 == s->micro_steps;
        int tokens[2][R];
        for (int k = 0; k < 2 * R; k++)
            tokens[k / R][k % R] = (int)(gpt2_draw(8, 1000 + (uint64_t)i, (uint64_t)k) % V);
        ok = !zero_pass_begin(z, ZERO_TRAIN, micro, s->micro_steps)
             && !gpt2_train_step(m, tokens[0], tokens[1], 1.0f / (float)s->micro_steps, NULL);
        memset(tokens, 0x7F, sizeof tokens);
        ok = ok && !zero_pass_end(z) && (!last || (!zero_reduce(z) && !zero_step(z, &hyper)));
    }
    ok = ok && !gpt2_take_losses(m, &loss) && read_all(z, &tiny, ZERO_PARAMETER, out);
    test_check(ok, "steps that nobody waits for fail: %s; %s", zero_last_error(z), err.sentence);
    gpt2_destroy(m);
    zero_destroy(z);
    return loss;
}

/* In any order that the streams allow, the same bits. */
static void test_order(void) {
    const size_t n = gpt2_numel(&tiny);
    float *first = (float *)calloc(n, sizeof(float)), *other = (float *)calloc(n, sizeof(float));
    for (int stage = 0; stage < 4; stage += 3) {
        const setup s = {stage, 1, 5, ZERO_BF16, ZERO_GRAD_F32};
        const double loss = run_unwaited(&s, first);
        for (uint64_t seed = 1; seed <= 10; seed++) {
            emulation_seed(seed);
            const double found = run_unwaited(&s, other);
            emulation_seed(0);
            test_check(found == loss && !memcmp(first, other, n * sizeof(float)),
                       "stage %d, order %d: loss %.9f, not %.9f, or other parameters", stage,
                       (int)seed, found, loss);
        }
    }
    test_check(!emulation_found(), "the emulation found: %s", emulation_found());
    free(first);
    free(other);
}
#endif

int main(void) {
#ifdef _OPENMP
    omp_set_num_threads(2);
#endif
    make_tokens();
    test_parse();
    test_describe();
    test_draws();
    test_init();
    test_against_reference();
    test_evaluation();
    test_types();
    test_losses();
    test_memory();
    test_errors();
#ifdef __CUDACC__
    test_cuda();
#endif
#ifdef EMULATED_LAUNCH
    test_order();
#endif
    return test_summary();
}

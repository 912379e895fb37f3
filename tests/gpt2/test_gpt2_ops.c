/* test_gpt2_ops.c - every operation of adapters/gpt2/ops.h, in every type, against f64: values
   against a plain reference on the same (rounded) inputs, gradients against central finite
   differences of that reference, whose error is below 1e-8. What is computed in f32 may differ by
   TOLERANCE times the largest value compared with; what is stored in 16 bits, by one rounding more.
   Shapes are no multiples of anything, and cross the bounds of vectors, tiles and blocks. Then
   accuracy of the elementary functions, determinism, values that are not finite, and errors.

   `test_gpt2_ops attention`: bf16 attention alone.

   With ops_cpu.c as C; with ops_cuda.cu by nvcc on a GPU, or by g++ on the emulation, where what
   cuBLASLt fuses is also refused, kind by kind. Device memory goes through ops.h alone. */
#include "../shared/harness.h"
#include "test_gpt2_reference.h"

#include "../../adapters/gpt2/hash_words.h"
#include "../../adapters/gpt2/ops.h"

#ifdef EMULATED_LAUNCH
#include "../emulation/cublaslt_emulation.h"
#include "../emulation/emulation.h"
enum { EMULATED = 1 };
#else
enum { EMULATED = 0 };
#endif
#ifdef _OPENMP
#include <omp.h>
#endif

#define TOLERANCE 3e-6

#ifdef __CUDACC__
#define PLAIN "cuBLASLt f32"
enum { ON_GPU = 1, SHIFT = 896 }; /* memory moves by lines: products know 128 bytes */
#else
#define PLAIN "f32 by the table for "
enum { ON_GPU = 0, SHIFT = 832 };
#endif

static ops_ctx *ops;
static zero_type type, grad_type; /* those of ops */
static test_random seed = {1};

static double uniform(void) { return (double)(test_next(&seed) >> 11) * 0x1p-52 - 1.0; }

/* The largest relative error of one rounding; the test of f32 is TOLERANCE. */
static double rounding(zero_type t) {
    return t == ZERO_BF16 ? 0x1p-8 : t == ZERO_F16 ? 0x1p-11 : 0;
}

/* The value that is stored for x. */
static double stored(zero_type t, double x) {
    float f = (float)x;
    char bytes[4];
    zero_convert(bytes, t, &f, ZERO_F32, 1);
    zero_convert(&f, ZERO_F32, bytes, t, 1);
    return (double)f;
}

/* n numbers to the device, as a type. */
static void put_all(void *device, zero_type t, const float *x, size_t n) {
    void *bytes = malloc((n + 1) * zero_type_bytes(t));
    zero_convert(bytes, t, x, ZERO_F32, n);
    ops_upload(ops, device, bytes, n * zero_type_bytes(t));
    free(bytes);
}

/* An array with equal values in f64, in f32, and as the operations have it; grad: the gradient of
   the objective, which begins with `start` where it is added to. */
typedef struct array {
    double *d;
    float *v;       /* what f held when it was last written or read here; so with g */
    float *g;       /* of grad */
    void *f, *grad; /* on the device */
    size_t n;
    zero_type type, grad_type;
    double start;
} array;

static void set(const array *a, size_t i, double value) {
    a->d[i] = stored(a->type, value);
    a->v[i] = (float)a->d[i];
}

/* d and v go to the device; so does every value of grad. */
static void send(const array *a) { put_all(a->f, a->type, a->v, a->n); }
static void fill_grad(const array *a, double value) {
    for (size_t i = 0; i < a->n; i++) a->g[i] = (float)value;
    put_all(a->grad, a->grad_type, a->g, a->n);
}
static void clear_grad(const array *a) { fill_grad(a, a->start); }
/* The gradient, or the values, of one are the values of another. */
static void copy_to_grad(const array *to, const array *from) {
    memcpy(to->g, from->v, to->n * sizeof(float));
    put_all(to->grad, to->grad_type, to->g, to->n);
}
static void copy_values(const array *to, const array *from) {
    memcpy(to->v, from->v, to->n * sizeof(float));
    send(to);
}

/* Reads back. */
static void fetch(const array *a) {
    ops_download(ops, a->v, a->f, a->type, a->n);
    ops_download(ops, a->g, a->grad, a->grad_type, a->n);
}

static array make_as(size_t n, double scale, zero_type t, zero_type grad, double start) {
    array a = {(double *)malloc((n + 1) * sizeof(double)),
               (float *)malloc((n + 1) * sizeof(float)),
               (float *)malloc((n + 1) * sizeof(float)),
               ops_alloc(n * zero_type_bytes(t)),
               ops_alloc(n * zero_type_bytes(grad)),
               n,
               t,
               grad,
               start};
    for (size_t i = 0; i < n; i++) set(&a, i, uniform() * scale);
    send(&a);
    clear_grad(&a);
    return a;
}

static array make(size_t n, double scale) { return make_as(n, scale, type, type, 0); }
static array make_param(size_t n, double scale) { return make_as(n, scale, type, grad_type, 0.75); }
static array make_floats(size_t n) { return make_as(n, 0, ZERO_F32, ZERO_F32, 0); }
static float *floats(const array *a) { return (float *)a->f; }

/* A bias of what a linear layer has written: in CUDA it is there already. */
static array make_left_bias(size_t n) { return make_param(n, ON_GPU ? 0 : 1); }

static void drop(array a) {
    free(a.d);
    free(a.v);
    free(a.g);
    ops_free(a.f);
    ops_free(a.grad);
}

/* R integers on the device: the last batch's tokens. */
static int *make_tokens(int *host, size_t R, size_t V) {
    int *tokens = (int *)ops_alloc(R * sizeof(int));
    for (size_t r = 0; r < R; r++) host[r] = test_below(&seed, (int)V);
    ops_take_batch(ops, tokens, NULL, host, NULL, R);
    return tokens;
}

static double largest(const double *x, size_t n) {
    double most = 0;
    for (size_t i = 0; i < n; i++) most = fabs(x[i]) > most ? fabs(x[i]) : most;
    return most;
}

/* How much more than a rounding the difference is. */
static double beyond(double found, double expected, zero_type t) {
    const double least = t == ZERO_F16 ? 0x1p-25 : 0; /* half a step where numbers are denormal */
    return fmax(fabs(found - expected) - fmax(rounding(t) * fabs(expected), least), 0);
}

/* Values against the reference's; `roundings` of values that they are computed from. */
static void near_values(const char *what, const array *a, double roundings) {
    double most = largest(a->d, a->n), off = 0;
    for (size_t i = 0; i < a->n; i++) off = fmax(off, beyond((double)a->v[i], a->d[i], a->type));
    test_check(off <= (TOLERANCE + roundings * rounding(a->type)) * fmax(most, 1.0),
               "%s in type %d: off by %g of %g", what, (int)a->type, off, most);
}

/* One operation: the sum of out * weight, as a function of the inputs' f64 values. */
typedef struct op_case {
    const char *name;
    size_t R, T, I, O, NH; /* as the operation uses them */
    const int *tokens;
    array in[4]; /* inputs */
    array out;   /* d: the reference's output; f: that of the operation */
    array weight;
    void (*reference)(struct op_case *c);
    double roundings;       /* of values that a gradient is computed from, not of itself */
    double value_roundings; /* the same of `out` */
} op_case;

static double objective(op_case *c) {
    double sum = 0;
    c->reference(c);
    for (size_t i = 0; i < c->out.n; i++) sum += c->out.d[i] * c->weight.d[i];
    return sum;
}

/* The gradient of input `k` against finite differences, at up to 80 elements. */
static void same_gradient(op_case *c, int k, const char *input) {
    array *a = &c->in[k];
    const size_t step = a->n / 80 + 1;
    double most = 1e-3, off = 0;
    for (size_t i = test_next(&seed) % step; i < a->n; i += step) {
        const double before = a->d[i], h = 1e-4;
        a->d[i] = before + h;
        const double up = objective(c);
        a->d[i] = before - h;
        const double slope = (up - objective(c)) / (2 * h);
        a->d[i] = before;
        most = fmax(most, fabs(slope));
        off = fmax(off, beyond((double)a->g[i], a->start + slope, a->grad_type));
    }
    test_check(off <= (TOLERANCE + c->roundings * rounding(type)) * most,
               "%s in types %d, %d: gradient of %s off by %g of %g (R %zu T %zu I %zu O %zu)",
               c->name, (int)type, (int)a->grad_type, input, off, most, c->R, c->T, c->I, c->O);
}

static void finish(op_case *c, int inputs, const char *const *names) {
    fetch(&c->out);
    for (int k = 0; k < inputs; k++) fetch(&c->in[k]);
    objective(c);
    near_values(c->name, &c->out, c->value_roundings);
    for (int k = 0; k < inputs; k++) same_gradient(c, k, names[k]);
    for (int k = 0; k < inputs; k++) drop(c->in[k]);
    drop(c->out);
    drop(c->weight);
}

/* ---- the operations ------------------------------------------------------------------------- */

static uint64_t bits_of_all; /* of what threads do not change: embeddings' gradients, attention */

static uint64_t hash(uint64_t bits, const float *from, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t word;
        memcpy(&word, from + i, sizeof word);
        bits = test_mix(bits ^ word);
    }
    return bits;
}

static void embed_reference(op_case *c) {
    for (size_t r = 0; r < c->R; r++)
        for (size_t i = 0; i < c->I; i++)
            c->out.d[r * c->I + i] =
                c->in[0].d[(size_t)c->tokens[r] * c->I + i] + c->in[1].d[r % c->T * c->I + i];
}

static void test_embed(size_t B, size_t T, size_t C, size_t V) {
    static const char *const names[] = {"wte", "wpe"};
    const size_t R = B * T;
    int host[256], *tokens = make_tokens(host, R, V);
    op_case c = {"embed",
                 R,
                 T,
                 C,
                 0,
                 0,
                 host,
                 {make_param(V * C, 1), make_param(T * C, 1)},
                 make(R * C, 0),
                 make(R * C, 1),
                 embed_reference,
                 0,
                 0};
    ops_embed(ops, c.out.f, tokens, c.in[0].f, c.in[1].f, R, T, C);
    ops_embed_backward(ops, c.in[0].grad, c.in[1].grad, c.weight.f, tokens, R, T, C);
    for (int k = 0; k < 2; k++) {
        fetch(&c.in[k]);
        bits_of_all = hash(bits_of_all, c.in[k].g, c.in[k].n);
    }
    finish(&c, 2, names);
    ops_free(tokens);
}

static void linear_reference(op_case *c) {
    ref_linear(c->out.d, c->in[0].d, c->in[1].d, NULL, c->R, c->I, c->O);
}

static void test_linear(size_t R, size_t I, size_t O) {
    static const char *const names[] = {"x", "w"};
    op_case c = {"linear",
                 R,
                 0,
                 I,
                 O,
                 0,
                 NULL,
                 {make(R * I, 1), make_param(O * I, 1)},
                 make(R * O, 0),
                 make(R * O, 1),
                 linear_reference,
                 0,
                 0};
    ops_linear(ops, c.out.f, c.in[0].f, c.in[1].f, NULL, R, I, O);
    ops_linear_dx(ops, c.in[0].grad, c.weight.f, c.in[1].f, R, I, O);
    ops_linear_dw(ops, c.in[1].grad, NULL, c.weight.f, c.in[0].f, R, I, O);
    finish(&c, 2, names);
}

/* The same values, bit by bit. */
static int same_bits(const array *a, const array *b) {
    fetch(a);
    fetch(b);
    return !memcmp(a->v, b->v, a->n * sizeof(float));
}

static void bias_reference(op_case *c) {
    for (size_t i = 0; i < c->R * c->I; i++)
        c->out.d[i] = c->in[0].d[i] + c->in[1].d[i] + c->in[2].d[i % c->I];
}

static void test_bias(size_t R, size_t C) {
    static const char *const names[] = {"x", "y", "bias"};
    op_case c = {"bias",
                 R,
                 0,
                 C,
                 0,
                 0,
                 NULL,
                 {make(R * C, 1), make(R * C, 1), make_param(C, 1)},
                 make(R * C, 0),
                 make(R * C, 1),
                 bias_reference,
                 0,
                 0};
    copy_to_grad(&c.in[0], &c.weight);
    copy_to_grad(&c.in[1], &c.weight);
    copy_values(&c.out, &c.in[1]);
    ops_add_bias(ops, c.out.f, c.in[0].f, c.out.f, c.in[2].f, R, C); /* in place */
    ops_bias_backward(ops, c.in[2].grad, c.weight.f, R, C);
    finish(&c, 3, names);
}

static void norm_reference(op_case *c) {
    ref_norm(c->out.d, c->in[0].d, c->in[1].d, c->in[2].d, c->R, c->I);
}

static void test_norm(size_t R, size_t C) {
    static const char *const names[] = {"x", "w", "b"};
    op_case c = {"norm",
                 R,
                 0,
                 C,
                 0,
                 0,
                 NULL,
                 {make(R * C, 2), make_param(C, 1), make_param(C, 1)},
                 make(R * C, 0),
                 make(R * C, 1),
                 norm_reference,
                 0,
                 0};
    array mean = make_floats(R), rstd = make_floats(R), again = make(R * C, 0);
    ops_norm(ops, c.out.f, floats(&mean), floats(&rstd), c.in[0].f, c.in[1].f, c.in[2].f, R, C);
    ops_norm_again(ops, again.f, floats(&mean), floats(&rstd), c.in[0].f, c.in[1].f, c.in[2].f, R,
                   C);
    test_check(same_bits(&c.out, &again), "norm again: other bits");
    ops_norm_backward(ops, again.f, c.in[1].grad, c.in[2].grad, c.weight.f, c.in[0].f,
                      floats(&mean), floats(&rstd), c.in[1].f, 1, R, C);
    fill_grad(&c.in[0], 1.0); /* is added to */
    clear_grad(&c.in[1]);
    clear_grad(&c.in[2]);
    ops_norm_backward(ops, c.in[0].grad, c.in[1].grad, c.in[2].grad, c.weight.f, c.in[0].f,
                      floats(&mean), floats(&rstd), c.in[1].f, 0, R, C);
    fetch(&again);
    fetch(&c.in[0]);
    int sums = 1;
    for (size_t i = 0; i < R * C; i++) {
        const double d = (double)again.v[i], sum = (double)c.in[0].g[i];
        if (type == ZERO_F32)
            sums &= (float)sum == 1.0f + (float)d;
        else
            sums &= beyond(sum, 1 + d, type) <= rounding(type) * fabs(d) * 1.01 + 1e-6;
    }
    copy_to_grad(&c.in[0], &again);
    test_check(sums, "norm backward: adding is not storing plus the sum");
    finish(&c, 3, names);
    drop(mean);
    drop(rstd);
    drop(again);
}

/* A row has the gradient that it has among fewer rows: in CUDA a block takes one row after another,
   and a warp that is done with one goes ahead to the next. */
static void test_norm_rounds(size_t R, size_t C, size_t fewer) {
    array x = make(R * C, 2), w = make_param(C, 1), b = make_param(C, 1), dout = make(R * C, 1);
    array all = make(R * C, 0), parts = make(R * C, 0);
    array mean = make_as(R, 1, ZERO_F32, ZERO_F32, 0), rstd = make_as(R, 1, ZERO_F32, ZERO_F32, 0);
    ops_norm_backward(ops, all.f, w.grad, b.grad, dout.f, x.f, floats(&mean), floats(&rstd), w.f, 1,
                      R, C);
    for (size_t r = 0; r < R; r += fewer) {
        const size_t at = r * C * zero_type_bytes(type);
        ops_norm_backward(ops, (char *)parts.f + at, w.grad, b.grad, (char *)dout.f + at,
                          (char *)x.f + at, floats(&mean) + r, floats(&rstd) + r, w.f, 1,
                          R - r < fewer ? R - r : fewer, C);
    }
    test_check(same_bits(&all, &parts), "norm backward in type %d: %zu rows of %zu, other bits",
               (int)type, R, C);
    const array every[] = {x, w, b, dout, all, parts, mean, rstd};
    for (size_t i = 0; i < sizeof every / sizeof *every; i++) drop(every[i]);
}

static void gelu_reference(op_case *c) {
    for (size_t i = 0; i < c->R * c->I; i++)
        c->out.d[i] = ref_gelu(c->in[0].d[i] + c->in[1].d[i % c->I]);
}

static void test_gelu(size_t R, size_t C) {
    static const char *const names[] = {"x", "bias"};
    op_case c = {"gelu",
                 R,
                 0,
                 C,
                 0,
                 0,
                 NULL,
                 {make(R * C, 4), make_param(C, 1)},
                 make(R * C, 0),
                 make(R * C, 1),
                 gelu_reference,
                 0,
                 0};
    array again = make(R * C, 0);
    ops_gelu(ops, c.out.f, c.in[0].f, c.in[1].f, R, C);
    copy_to_grad(&c.in[0], &c.weight);
    ops_gelu_backward(ops, c.in[0].grad, c.in[1].grad, again.f, c.in[0].f, c.in[1].f, R, C);
    test_check(same_bits(&c.out, &again), "gelu again: other bits");
    finish(&c, 2, names);
    drop(again);
}

/* Operations of the types at hand; attention of one shape, or none. */
static ops_ctx *make_ops(size_t B, size_t T, size_t NH, size_t H) {
    const ops_limits limits = {B, NH, T, H, 8192, 512, 512};
    const ops_settings settings = {type, grad_type, NULL, 0, 0};
    char why[OPS_SENTENCE];
    ops_ctx *o = NULL;
    const zero_result result = ops_create(&o, &limits, &settings, why);
    test_check(result == ZERO_OK && o && !*why, "ops_create: %s", why);
    if (!o) exit(1);
    return o;
}

static void attention_reference(op_case *c) {
    const size_t C3 = 3 * c->I * c->NH, n = c->R * C3;
    double *qkv = (double *)malloc((n + 1) * sizeof(double));
    for (size_t i = 0; i < n; i++) qkv[i] = c->in[0].d[i] + c->in[1].d[i % C3];
    ref_attention(c->out.d, qkv, c->R / c->T, c->T, c->NH, c->I);
    free(qkv);
}

static int rounds_probabilities(void) {
    const char *path = ops_attention_path(ops);
    return strstr(path, "cuDNN") || strstr(path, "bf16");
}

/* The pairs of two pieces of whole sequences, or with an odd number of tokens of one piece. */
static int list_pairs(size_t T, ops_pair list[3]) {
    const size_t half = T / 2;
    const ops_pair all = {0, 0, T, 1};
    const ops_pair pairs[] = {{half, 0, half, 0}, {0, 0, half, 1}, {half, half, half, 1}};
    if (T % 2) list[0] = all;
    for (int i = 0; i < 3 && T % 2 == 0; i++) list[i] = pairs[i];
    return T % 2 ? 1 : 3;
}

/* ops_attention and its gradient, in pieces. out: of the type; qkv's gradient is stored. */
static void attend_in_pieces(const array *qkv, const array *bias, const array *out,
                             const array *lse, const array *dout, const ops_heads *s) {
    const size_t rows = s->batch * s->seq_len, C = s->heads * s->head_size, n = rows * C;
    float *memory = (float *)ops_alloc((4 * n + 3 * rows * s->heads) * sizeof *memory);
    void *kv = ops_alloc(2 * n * zero_type_bytes(type));
    const ops_partial state = {memory, memory + n, memory + n + rows * s->heads};
    ops_slopes g = {
        memory,  memory + n,           memory + 2 * n + rows * s->heads, dout->f, qkv->f, kv,
        bias->f, (const float *)lse->f};
    ops_pair list[3];
    const int pairs = list_pairs(s->seq_len, list);
    ops_take_keys(ops, kv, qkv->f, s);
    ops_partial_begin(ops, &state, s);
    for (int i = 0; i < pairs; i++) ops_partial_add(ops, &state, qkv->f, kv, bias->f, &list[i], s);
    ops_partial_end(ops, out->f, (float *)lse->f, &state, s);
    ops_clear(ops, g.dkv, 2 * n * sizeof *g.dkv);
    ops_slopes_begin(ops, &g, out->f, s);
    for (int i = pairs; i-- > 0;) ops_slopes_add(ops, &g, &list[i], s);
    ops_slopes_end(ops, qkv->grad, &g, s);
    ops_free(kv);
    ops_free(memory);
}

/* Returns how far a is from b, relative to the norm of b. */
static double far_from(const float *a, const float *b, size_t n) {
    double off = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        off += pow((double)a[i] - (double)b[i], 2);
        all += pow((double)b[i], 2);
    }
    return sqrt(off / all);
}

/* Pieces that are longer than the keys at once, beside attention of whole sequences, in f32. */
static void test_long_pieces(size_t B, size_t T, size_t NH, size_t H) {
    const size_t R = B * T, C = NH * H;
    const ops_heads shape = {B, T, NH, H};
    ops_ctx *all = ops;
    if (type != ZERO_F32) return;
    array qkv = make(R * 3 * C, 1.5), bias = make_param(3 * C, 1), dout = make(R * C, 1);
    array out[2] = {make(R * C, 0), make(R * C, 0)};
    array lse[2] = {make_floats(R * NH), make_floats(R * NH)};
    float *whole = (float *)malloc(R * 3 * C * sizeof *whole);
    ops = make_ops(B, T, NH, H);
    ops_attention(ops, out[0].f, floats(&lse[0]), qkv.f, bias.f, &shape);
    ops_attention_backward(ops, qkv.grad, dout.f, out[0].f, floats(&lse[0]), qkv.f, bias.f, &shape);
    fetch(&qkv);
    memcpy(whole, qkv.g, R * 3 * C * sizeof *whole);
    ops_destroy(ops);
    ops = make_ops(B, 0, NH, H);
    attend_in_pieces(&qkv, &bias, &out[1], &lse[1], &dout, &shape);
    test_check(ops_status(ops, NULL) == ZERO_OK, "attention by pieces fails");
    fetch(&qkv);
    for (int i = 0; i < 2; i++) {
        fetch(&out[i]);
        fetch(&lse[i]);
    }
    bits_of_all = hash(hash(bits_of_all, out[1].v, out[1].n), qkv.g, qkv.n);
    const double of_out = far_from(out[1].v, out[0].v, R * C);
    const double of_lse = far_from(lse[1].v, lse[0].v, R * NH);
    const double of_qkv = far_from(qkv.g, whole, R * 3 * C);
    test_check(of_out < 1e-6 && of_lse < 1e-6 && of_qkv < 2e-6,
               "%zu tokens by pieces: off by %g, lse %g, gradient %g", T, of_out, of_lse, of_qkv);
    ops_destroy(ops);
    ops = all;
    free(whole);
    drop(qkv);
    drop(bias);
    drop(dout);
    for (int i = 0; i < 2; i++) {
        drop(out[i]);
        drop(lse[i]);
    }
}

/* A sequence that is computed in pieces: its first tokens have the outputs of a sequence that ends
   with them, and the gradient may replace qkv. */
static void test_long_sequence(size_t T, size_t before, size_t NH, size_t H) {
    const size_t C = NH * H;
    const ops_heads shape = {1, T, NH, H}, first = {1, before, NH, H};
    ops_ctx *all = ops;
    if (ON_GPU) return; /* the CPU alone has two ways */
    array qkv = make(T * 3 * C, 1.5), bias = make_param(3 * C, 1), dout = make(T * C, 1);
    array out[2] = {make(T * C, 0), make(before * C, 0)};
    array lse[2] = {make_floats(T * NH), make_floats(before * NH)};
    ops = make_ops(1, T, NH, H);
    ops_attention(ops, out[0].f, floats(&lse[0]), qkv.f, bias.f, &shape);
    ops_attention(ops, out[1].f, floats(&lse[1]), qkv.f, bias.f, &first);
    for (int i = 0; i < 2; i++) {
        fetch(&out[i]);
        fetch(&lse[i]);
    }
    const double most = type == ZERO_F32 ? 1e-6 : 4e-3;
    const double of_out = far_from(out[0].v, out[1].v, before * C);
    double of_lse = 0;
    for (size_t h = 0; h < NH; h++)
        of_lse += far_from(lse[0].v + h * T, lse[1].v + h * before, before);
    test_check(of_out < most && of_lse < most, "%zu of %zu tokens: off by %g, lse %g", before, T,
               of_out, of_lse);
    ops_attention_backward(ops, qkv.grad, dout.f, out[0].f, floats(&lse[0]), qkv.f, bias.f, &shape);
    ops_attention_backward(ops, qkv.f, dout.f, out[0].f, floats(&lse[0]), qkv.f, bias.f, &shape);
    test_check(!memcmp(qkv.f, qkv.grad, T * 3 * C * zero_type_bytes(type)),
               "the gradient of %zu tokens differs if it replaces qkv", T);
    test_check(ops_status(ops, NULL) == ZERO_OK, "attention over %zu tokens fails", T);
    ops_destroy(ops);
    ops = all;
    drop(qkv);
    drop(bias);
    drop(dout);
    for (int i = 0; i < 2; i++) {
        drop(out[i]);
        drop(lse[i]);
    }
}

/* Backward takes a sum over the rounded output; its error meets keys and values of up to 2.5. cuDNN
   and products of bf16 also round probabilities before they multiply by them. */
static void test_attention_by(int pieces, size_t B, size_t T, size_t NH, size_t H) {
    static const char *const names[] = {"qkv", "bias"};
    const size_t R = B * T, C = NH * H;
    const ops_heads shape = {B, T, NH, H};
    ops_ctx *all = ops;
    ops = make_ops(B, pieces ? 0 : T, NH, H); /* the heads of a context are fixed */
    op_case c = {pieces ? "attention by pieces" : "attention",
                 R,
                 T,
                 H,
                 0,
                 NH,
                 NULL,
                 {make(R * 3 * C, 1.5), make_left_bias(3 * C)},
                 make(R * C, 0),
                 make(R * C, 1),
                 attention_reference,
                 T == 1 ? 8.0 : 4.0,
                 !pieces && rounds_probabilities() ? 1.0 : 0.0};
    array lse = make_floats(R * NH);
    if (pieces) {
        attend_in_pieces(&c.in[0], &c.in[1], &c.out, &lse, &c.weight, &shape);
    } else {
        ops_attention(ops, c.out.f, floats(&lse), c.in[0].f, c.in[1].f, &shape);
        ops_attention_backward(ops, c.in[0].grad, c.weight.f, c.out.f, floats(&lse), c.in[0].f,
                               c.in[1].f, &shape);
    }
    fetch(&c.out);
    fetch(&c.in[0]);
    if (!ON_GPU) /* there are several ways, tested one behind the other */
        bits_of_all = hash(hash(bits_of_all, c.out.v, c.out.n), c.in[0].g, c.in[0].n);
    ops_bias_backward(ops, c.in[1].grad, c.in[0].grad, R, 3 * C);
    finish(&c, 2, names);
    drop(lse);
    test_check(ops_status(ops, NULL) == ZERO_OK && (!ON_GPU || *ops_attention_path(ops)),
               "attention fails, or has no name: %s", ops_attention_path(ops));
    ops_destroy(ops);
    ops = all;
}

static void test_attention(size_t B, size_t T, size_t NH, size_t H) {
    test_attention_by(0, B, T, NH, H);
}

static void test_pieces(void) {
    test_attention_by(1, 1, 1, 1, 1);
    test_attention_by(1, 2, 37, 3, 5);
    test_attention_by(1, 1, 66, 2, 33);
    test_long_pieces(2, 162, 1, 64);
    test_long_pieces(1, 140, 2, 100);
    test_long_pieces(1, 74, 1, 160);
    if (EMULATED) return; /* a hundred times as slow */
    test_long_pieces(1, 512, 2, 64);
    test_long_pieces(2, 602, 1, 20);
    test_long_pieces(1, 1111, 1, 33);
    test_long_pieces(1, 2310, 2, 33);
}

static void cross_entropy_reference(op_case *c) {
    for (size_t r = 0; r < c->R; r++)
        c->out.d[r] = ref_cross_entropy(c->in[0].d + r * c->O, (size_t)c->tokens[r], c->I);
}

static void test_cross_entropy(size_t R, size_t V, size_t Vp) {
    static const char *const names[] = {"logits"};
    int host[64], *targets = make_tokens(host, R, V);
    op_case c = {"cross entropy",
                 R,
                 0,
                 V,
                 Vp,
                 0,
                 host,
                 {make(R * Vp, 5)},
                 make_floats(R),
                 make_floats(R),
                 cross_entropy_reference,
                 0,
                 0};
    array losses = make_floats(R);
    for (size_t r = 0; r < R; r++) c.weight.d[r] = 0.25;
    copy_to_grad(&c.in[0], &c.in[0]);
    ops_cross_entropy(ops, floats(&c.out), c.in[0].grad, targets, 0, 0.0f, R, V, Vp);
    fetch(&c.in[0]);
    test_check(!memcmp(c.in[0].g, c.in[0].v, R * Vp * sizeof(float)), "evaluation wrote logits");
    ops_cross_entropy(ops, floats(&losses), c.in[0].grad, targets, 1, 0.25f, R, V, Vp);
    test_check(same_bits(&c.out, &losses), "evaluation has another loss");
    fetch(&c.in[0]);
    int zeros = 1;
    for (size_t i = 0; i < R * Vp; i++) zeros &= i % Vp < V || c.in[0].g[i] == 0.0f;
    test_check(zeros, "padded entries have gradients");
    finish(&c, 1, names);
    drop(losses);
    ops_free(targets);
}

/* ---- what a device may fuse ------------------------------------------------------------------ */

/* The type's rounding happens to fch too, and GELU's slope is up to 1.13. */
static void linear_gelu_reference(op_case *c) {
    ref_linear(c->out.d, c->in[0].d, c->in[1].d, c->in[2].d, c->R, c->I, c->O);
    for (size_t i = 0; i < c->R * c->O; i++) c->out.d[i] = ref_gelu(c->out.d[i]);
}

static void test_linear_gelu(size_t R, size_t I, size_t O) {
    op_case c = {"linear gelu",
                 R,
                 0,
                 I,
                 O,
                 0,
                 NULL,
                 {make(R * I, 1), make_param(O * I, 1), make_param(O, 1)},
                 make(R * O, 0),
                 make(R * O, 1),
                 linear_gelu_reference,
                 0,
                 2};
    array fch = make(R * O, 0), again = make(R * O, 0), other = make(R * O, 0);
    ops_linear_gelu(ops, fch.f, c.out.f, 0, c.in[0].f, c.in[1].f, c.in[2].f, R, I, O);
    ops_linear_gelu(ops, again.f, other.f, 1, c.in[0].f, c.in[1].f, c.in[2].f, R, I, O);
    test_check(same_bits(&fch, &again), "linear gelu again: other bits");
    finish(&c, 0, NULL);
    for (int k = 0; k < 3; k++) drop(c.in[k]);
    drop(fch);
    drop(again);
    drop(other);
}

/* y = GELU(x + bias) w^T */
static void gelu_linear_reference(op_case *c) {
    const size_t n = c->R * c->I;
    double *gelu = (double *)malloc((n + 1) * sizeof(double));
    for (size_t i = 0; i < n; i++) gelu[i] = ref_gelu(c->in[0].d[i] + c->in[1].d[i % c->I]);
    ref_linear(c->out.d, gelu, c->in[2].d, NULL, c->R, c->I, c->O);
    free(gelu);
}

static void test_gelu_linear(size_t R, size_t I, size_t O) {
    static const char *const names[] = {"fch", "bias"};
    op_case c = {"gelu linear",
                 R,
                 0,
                 I,
                 O,
                 0,
                 NULL,
                 {make(R * I, 2), make_left_bias(I), make_param(O * I, 1)},
                 make(R * O, 0),
                 make(R * O, 1),
                 gelu_linear_reference,
                 2,
                 sqrt((double)I)};
    array gelu = make(R * I, 0), again = make(R * I, 0);
    ops_gelu(ops, gelu.f, c.in[0].f, c.in[1].f, R, I);
    ops_linear(ops, c.out.f, gelu.f, c.in[2].f, NULL, R, I, O);
    for (int kept = 0; kept < 2; kept++) {
        clear_grad(&c.in[1]);
        ops_linear_dx_gelu(ops, c.in[0].grad, c.in[1].grad, again.f, kept, c.weight.f, c.in[2].f,
                           c.in[0].f, c.in[1].f, R, I, O);
        test_check(same_bits(&gelu, &again), "gelu linear, kept %d: other bits", kept);
    }
    finish(&c, 2, names);
    drop(c.in[2]);
    drop(gelu);
    drop(again);
}

static void residual_reference(op_case *c) {
    ref_linear(c->out.d, c->in[1].d, c->in[2].d, c->in[3].d, c->R, c->I, c->O);
    for (size_t i = 0; i < c->R * c->O; i++) c->out.d[i] += c->in[0].d[i];
}

/* And the gradient of the bias beside that of the weights. */
static void test_residual(size_t R, size_t I, size_t O) {
    static const char *const names[] = {"x", "in", "w", "bias"};
    op_case c = {"residual",
                 R,
                 0,
                 I,
                 O,
                 0,
                 NULL,
                 {make(R * O, 1), make(R * I, 1), make_param(O * I, 1), make_param(O, 1)},
                 make(R * O, 0),
                 make(R * O, 1),
                 residual_reference,
                 0,
                 1};
    ops_linear_residual(ops, c.out.f, c.in[0].f, c.in[1].f, c.in[2].f, c.in[3].f, R, I, O);
    copy_to_grad(&c.in[0], &c.weight);
    ops_linear_dx(ops, c.in[1].grad, c.weight.f, c.in[2].f, R, I, O);
    ops_linear_dw(ops, c.in[2].grad, c.in[3].grad, c.weight.f, c.in[1].f, R, I, O);
    finish(&c, 4, names);
}

/* f64 sums of f32 numbers, taken away. */
static void test_sums(void) {
    array x = make_as(1000, 1, ZERO_F32, ZERO_F32, 0);
    double *total = (double *)ops_alloc(sizeof(double)), sum = 0;
    for (size_t i = 0; i < x.n; i++) sum += x.d[i];
    ops_clear(ops, total, sizeof(double));
    ops_sum(ops, total, floats(&x), 1000);
    ops_sum(ops, total, floats(&x), 1);
    const double found = ops_take_sum(ops, total), none = ops_take_sum(ops, total);
    test_check(fabs(found - sum - x.d[0]) < 1e-12 && none == 0, "a sum of %g is %g, then %g", sum,
               found, none);
    ops_free(total);
    drop(x);
}

/* Hashes of any number of bytes, from an address that is no word's, and of each flipped bit of one.
 */
static void test_hash(void) {
    enum { N = 4002, FIRST = 6 };
    unsigned char x[FIRST + N];
    uint64_t *sum = (uint64_t *)ops_alloc(sizeof *sum), found;
    char *there = (char *)ops_alloc(sizeof x);
    for (size_t i = 0; i < sizeof x; i++) x[i] = (unsigned char)(i * 37 + i / 200);
    ops_upload(ops, there, x, sizeof x);
    for (size_t n = 0; n <= N; n += n < 40 ? 2 : 1980) {
        uint64_t expected = 0, word;
        for (size_t i = 0; i < n; i += sizeof word) {
            word = 0;
            memcpy(&word, x + FIRST + i, n - i < sizeof word ? n - i : sizeof word);
            expected += hash_words_term(word, 5 + i / sizeof word);
        }
        ops_clear(ops, sum, sizeof *sum);
        ops_hash(ops, sum, there + FIRST, n, 5);
        ops_download(ops, (float *)(void *)&found, sum, ZERO_F32, 2);
        test_check(found == expected, "hash of %zu bytes: %016llx, expected %016llx", n,
                   (unsigned long long)found, (unsigned long long)expected);
    }
    for (int bit = 0; bit < 64; bit++)
        test_check(hash_words_term(7, 3) != hash_words_term(7 ^ (uint64_t)1 << bit, 3), "bit %d",
                   bit);
    ops_free(sum);
    ops_free(there);
}

/* Sums that are put off are those that are not: as often as any queue is full, and into the same
   gradient twice. */
static void test_held_sums(void) {
    enum { N = 11, C = 40, ROWS = 70 };
    array dy = make(ROWS * C, 1), bias[2], w[2];
    array mean = make_floats(ROWS), rstd = make_floats(ROWS), out = make(ROWS * C, 0);
    for (int k = 0; k < 2; k++) {
        bias[k] = make_param(N * C, 0);
        w[k] = make_param(2 * C, 1);
    }
    copy_values(&w[1], &w[0]);
    for (int held = 0; held < 2; held++) {
        const size_t zg = zero_type_bytes(grad_type);
        char *db = (char *)bias[held].grad, *dw = (char *)w[held].grad;
        ops_norm(ops, out.f, floats(&mean), floats(&rstd), dy.f, w[0].f, w[0].f, ROWS, C);
        if (held) ops_sums_begin(ops);
        for (size_t i = 0; i < N; i++) ops_bias_backward(ops, db + i * C * zg, dy.f, ROWS - i, C);
        ops_bias_backward(ops, db, out.f, ROWS, C);
        ops_bias_backward(ops, db, dy.f, ROWS, C);
        ops_norm_backward(ops, out.f, dw, dw + C * zg, dy.f, dy.f, floats(&mean), floats(&rstd),
                          w[0].f, 1, ROWS, C);
        if (held) ops_sums_end(ops);
        fetch(&bias[held]);
        fetch(&w[held]);
    }
    test_check(!memcmp(bias[0].g, bias[1].g, N * C * sizeof(float))
                   && !memcmp(w[0].g, w[1].g, 2 * C * sizeof(float)),
               "types %d, %d: sums that are put off have other bits", (int)type, (int)grad_type);
    test_check(bias[0].g[0] != 0.75f && w[0].g[0] != 0.75f, "nothing was added");
    for (int k = 0; k < 2; k++) {
        drop(bias[k]);
        drop(w[k]);
    }
    drop(dy);
    drop(mean);
    drop(rstd);
    drop(out);
}

/* A query whose scores have all overflowed, to -infinity, attends to nothing else instead. (f16
   does not hold numbers that large; what cuDNN does is its own affair.) */
static void test_attention_overflow(void) {
    const ops_heads shape = {1, 2, 1, 1};
    if (ON_GPU || type == ZERO_F16) return;
    ops_ctx *all = ops;
    ops = make_ops(1, 2, 1, 1);
    array qkv = make(6, 1), bias = make_param(3, 0), out = make(2, 0), lse = make_floats(2);
    set(&qkv, 0, -1e30); /* q and k of token 0 */
    set(&qkv, 1, 1e30);
    set(&qkv, 3, 0); /* q of token 1 */
    send(&qkv);
    ops_attention(ops, out.f, floats(&lse), qkv.f, bias.f, &shape);
    fetch(&out);
    fetch(&lse);
    test_check(isnan(out.v[0]) && isnan(lse.v[0]) && !isnan(out.v[1]) && !isnan(lse.v[1]),
               "attention (%s): scores of -infinity gave %g, lse %g; others %g, %g",
               ops_attention_path(ops), (double)out.v[0], (double)lse.v[0], (double)out.v[1],
               (double)lse.v[1]);
    drop(qkv);
    drop(bias);
    drop(out);
    drop(lse);
    ops_destroy(ops);
    ops = all;
}

static void test_attentions(void) {
    test_attention(1, 1, 1, 1);
    test_attention(2, 37, 3, 5);
    test_attention(1, 64, 2, 32);
    test_attention(2, 65, 1, 16);
    test_attention(1, 100, 2, 33);
    test_attention(1, 40, 1, 80);
    test_attention(1, 200, 1, 64);
    test_pieces();
    test_long_sequence(2341, 2048, 2, 33);
    test_attention_overflow();
}

static void test_all_operations(void) {
    test_embed(3, 7, 5, 5);
    test_embed(4, 33, 129, 5);
    test_embed(4, 64, 24, 2);
    test_linear(1, 1, 1);
    test_linear(7, 13, 5);
    test_linear(65, 130, 37);
    test_linear(200, 48, 144);
    test_linear(400, 5, 11);
    test_linear(3, 390, 7);
    test_linear(5, 9, 800);
    test_linear(5, 9, 384);
    test_bias(1, 1);
    test_bias(37, 19);
    test_bias(19, 264);
    test_bias(8300, 3);
    test_norm(1, 5);
    test_norm(13, 67);
    test_norm(70, 128);
    test_norm(3, 1000);
    test_norm(2, 1101);
    test_norm(2, 2504);
    test_norm(3, 2505);
    test_norm(3300, 8);               /* more rows than a launch has places for at once */
    test_norm_rounds(450, 2056, 300); /* the same where a row has several warps */
    test_gelu(3, 7);
    test_gelu(29, 100);
    test_linear_gelu(1, 3, 7);
    test_linear_gelu(33, 24, 96);
    test_gelu_linear(5, 7, 3);
    test_gelu_linear(37, 96, 24);
    test_residual(3, 5, 7);
    test_residual(40, 48, 16);
    test_attentions();
    test_cross_entropy(1, 1, 128);
    test_cross_entropy(9, 65, 128);
    test_cross_entropy(5, 301, 384);
    test_sums();
    test_hash();
    test_held_sums();
}

/* ---- accuracy ------------------------------------------------------------------------------- */

/* e^x, seen through a softmax of two: within 3e-7 of its value from e^-86 up; on a GPU, whose expf
   may be one step off, 4e-7. */
static void test_exponential(void) {
    enum { N = 86000, STEP = ON_GPU ? 40 : 1, ROWS = N / STEP };
    static float logits[ROWS][2];
    static int targets[ROWS];
    array x = make_floats(2 * (size_t)ROWS), losses = make_floats(ROWS);
    int *on_device = (int *)ops_alloc(sizeof targets);
    double off = 0;
    for (int i = 0; i < ROWS; i++)
        logits[i][1] = -86.0f * (float)(i * STEP + 1) / N, logits[i][0] = 0.0f;
    ops_upload(ops, on_device, targets, sizeof targets);
    memcpy(x.v, logits, sizeof logits);
    send(&x);
    ops_cross_entropy(ops, floats(&losses), x.f, on_device, 1, 1.0f, ROWS, 2, 2);
    fetch(&x);
    for (int i = 0; i < ROWS; i++) {
        const double e = exp((double)logits[i][1]);
        off = fmax(off, fabs((double)x.v[2 * i + 1] / (e / (1 + e)) - 1));
    }
    test_check(off < (ON_GPU ? 4e-7 : 3e-7), "exponential: relative error %g", off);
    ops_free(on_device);
    drop(x);
    drop(losses);
}

/* GELU, whose tanh is a logistic function of t: within 3e-7 (1 + |t|) of its value; the rounding of
   t is what weighs. Its slope within 1e-6 absolutely. */
static void test_gelu_accuracy(void) {
    enum { N = 100000 };
    array x = make_floats(N), y = make_floats(N), slope = make_floats(N);
    array bias = make_floats(1), sum = make_floats(1);
    double off = 0, slope_off = 0;
    for (int i = 0; i < N; i++) {
        x.v[i] = 16.0f * (float)i / N - 8.0f;
        slope.v[i] = 1.0f;
    }
    send(&x);
    send(&slope);
    ops_gelu_backward(ops, slope.f, sum.f, y.f, x.f, bias.f, N, 1);
    fetch(&y);
    fetch(&slope);
    for (int i = 0; i < N; i++) {
        const double v = (double)x.v[i], t = 2 * sqrt(2 / M_PI) * (v + 0.044715 * v * v * v);
        const double s = 1 / (1 + exp(-t));
        const double d = s + v * s * (1 - s) * 2 * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * v * v);
        if (v != 0) off = fmax(off, fabs((double)y.v[i] / (v * s) - 1) / (1 + fabs(t)));
        slope_off = fmax(slope_off, fabs((double)slope.v[i] - d));
    }
    test_check(off < 3e-7, "gelu: relative error %g (1 + |t|)", off);
    test_check(slope_off < 1e-6, "gelu's slope: error %g", slope_off);
    drop(x);
    drop(y);
    drop(slope);
    drop(bias);
    drop(sum);
}

/* A value that is not finite is not lost on its way; and far from 0 GELU is still one. */
static void test_not_finite(void) {
    array x = make(64, 0), y = make(64, 0), bias = make_param(64, 0), slope = make(64, 0);
    array losses = make_floats(1);
    const int target = 3;
    int *on_device = (int *)ops_alloc(sizeof target);
    ops_upload(ops, on_device, &target, sizeof target);
    for (size_t i = 0; i < 64; i++) {
        set(&x, i, i == 21 ? NAN : i == 5 ? -40 : i == 6 ? 40 : 1);
        set(&slope, i, 1);
    }
    send(&x);
    send(&slope);
    ops_gelu_backward(ops, slope.f, bias.grad, y.f, x.f, bias.f, 1, 64);
    fetch(&y);
    fetch(&slope);
    fetch(&bias);
    test_check(isnan(y.v[21]) && isnan(slope.v[21]) && isnan(bias.g[21]) && !isnan(y.v[20]),
               "gelu lost a NaN");
    test_check(fabsf(y.v[5]) < 1e-9f && fabsf(slope.v[5]) < 1e-9f && y.v[6] == 40.0f
                   && slope.v[6] == 1.0f,
               "gelu of -40 and 40: %g, %g; slopes %g, %g", (double)y.v[5], (double)y.v[6],
               (double)slope.v[5], (double)slope.v[6]);
    set(&x, 40, -INFINITY);
    send(&x);
    ops_cross_entropy(ops, floats(&losses), x.f, on_device, 1, 1.0f, 1, 64, 64);
    fetch(&losses);
    fetch(&x);
    test_check(isnan(losses.v[0]) && isnan(x.v[0]), "cross entropy lost a NaN");
    ops_free(on_device);
    drop(x);
    drop(y);
    drop(bias);
    drop(slope);
    drop(losses);
}

/* ---- determinism and errors ------------------------------------------------------------------ */

enum { DB = 3, DT = 70, DNH = 2, DH = 24, DC = DNH * DH, DR = DB * DT };

/* Three blocks of memory, filled alike: numbers of the type, f32, and gradients. */
typedef struct pool {
    char *memory;
    size_t n;
    zero_type type;
} pool;

static pool fill(size_t n, zero_type t, size_t shift) {
    const pool p = {(char *)ops_alloc(n * zero_type_bytes(t) + shift), n, t};
    float *values = (float *)malloc(n * sizeof(float));
    for (size_t i = 0; i < n; i++) values[i] = (float)uniform();
    put_all(p.memory + shift, t, values, n);
    free(values);
    return p;
}

static uint64_t hash_pool(uint64_t bits, const pool *p, size_t shift) {
    float *values = (float *)malloc(p->n * sizeof(float));
    ops_download(ops, values, p->memory + shift, p->type, p->n);
    bits = hash(bits, values, p->n);
    free(values);
    return bits;
}

/* Runs a chain of operations in memory that begins `shift` bytes into a block; returns the bits. */
static uint64_t chain(size_t shift) {
    const test_random before = seed;
    const ops_heads shape = {DB, DT, DNH, DH};
    const size_t z = zero_type_bytes(type), zg = zero_type_bytes(grad_type);
    uint64_t bits = 0;
    seed.state = 77;
    const pool numbers = fill(9 * DR * DC + 3 * DC * DC + DC * 4, type, shift);
    const pool others = fill(DR * DNH + 2 * DR, ZERO_F32, shift);
    const pool grads = fill(3 * DC * DC + DC * 6, grad_type, shift);
    seed = before;
    char *x = numbers.memory + shift, *w = x + DR * DC * z, *qkv = w + 3 * DC * DC * z;
    char *out = qkv + 3 * DR * DC * z, *dqkv = out + DR * DC * z, *bias = dqkv + 3 * DR * DC * z;
    char *dw = grads.memory + shift, *db = dw + 3 * DC * DC * zg;
    float *lse = (float *)(void *)(others.memory + shift), *mean = lse + DR * DNH;
    ops_norm(ops, out, mean, mean + DR, x, w, bias, DR, DC);
    ops_linear(ops, qkv, out, w, bias, DR, DC, 3 * DC);
    ops_attention(ops, out, lse, qkv, bias, &shape);
    ops_attention_backward(ops, dqkv, x, out, lse, qkv, bias, &shape);
    ops_linear_dw(ops, dw, NULL, dqkv, x, DR, DC, 3 * DC);
    ops_linear_dx(ops, out, dqkv, w, DR, DC, 3 * DC);
    ops_norm_backward(ops, x, db, db + DC * zg, out, qkv, mean, mean + DR, w, 0, DR, DC);
    ops_gelu_backward(ops, x, db + 2 * DC * zg, qkv, out, w, DR, DC);
    ops_bias_backward(ops, db + 3 * DC * zg, x, DR, DC);
    bits = hash_pool(bits, &numbers, shift);
    bits = hash_pool(bits, &others, shift);
    bits = hash_pool(bits, &grads, shift);
    ops_free(numbers.memory);
    ops_free(others.memory);
    ops_free(grads.memory);
    return bits;
}

static void test_determinism(void) {
    ops_ctx *all = ops;
    ops = make_ops(DB, DT, DNH, DH);
    const uint64_t first = chain(0);
    for (size_t shift = 0; shift < 8192; shift += (ON_GPU ? 3 : 1) * SHIFT)
        test_check(chain(shift) == first, "type %d: other bits %zu bytes further on", (int)type,
                   shift);
    test_check(ops_status(ops, NULL) == ZERO_OK, "an operation of the chain failed");
    ops_destroy(ops);
    ops = all;
}

/* No rows: nothing is read or written. */
static void test_no_rows(void) {
    const ops_heads shape = {0, 8, 2, 4};
    float one = 1.0f;
    ops_embed(ops, NULL, NULL, &one, &one, 0, 8, 1);
    ops_embed_backward(ops, &one, &one, NULL, NULL, 0, 8, 1);
    ops_add_bias(ops, NULL, NULL, NULL, &one, 0, 1);
    ops_linear_dx(ops, NULL, NULL, &one, 0, 1, 1);
    ops_gelu(ops, NULL, NULL, &one, 0, 1);
    ops_attention_backward(ops, NULL, NULL, NULL, NULL, NULL, &one, &shape);
    ops_norm(ops, NULL, NULL, NULL, NULL, NULL, NULL, 0, 8);
    ops_norm_backward(ops, NULL, &one, &one, NULL, NULL, NULL, NULL, NULL, 0, 0, 1);
    ops_linear(ops, NULL, NULL, &one, &one, 0, 1, 1);
    ops_linear_dw(ops, &one, &one, NULL, NULL, 0, 1, 1);
    ops_linear_gelu(ops, NULL, NULL, 0, NULL, &one, &one, 0, 1, 1);
    ops_linear_dx_gelu(ops, NULL, &one, NULL, 0, NULL, &one, NULL, &one, 0, 1, 1);
    ops_linear_residual(ops, NULL, NULL, NULL, &one, &one, 0, 1, 1);
    ops_take_batch(ops, NULL, NULL, NULL, NULL, 0);
    ops_gelu_backward(ops, NULL, &one, NULL, NULL, &one, 0, 1);
    ops_bias_backward(ops, &one, NULL, 0, 1);
    ops_attention(ops, NULL, NULL, NULL, NULL, &shape);
    ops_cross_entropy(ops, NULL, NULL, NULL, 1, 1.0f, 0, 1, 1);
    test_check(one == 1.0f && ops_status(ops, NULL) == ZERO_OK, "no rows are not nothing");
}

static void test_sticky_error(void) {
    const ops_limits limits = {1, 1, 8, 4, 16, 16, 16};
    const ops_settings settings = {ZERO_F32, ZERO_F32, NULL, 0, 0};
    const ops_heads shape = {1, 9, 1, 4};
    const char *sentence = "";
    char why[OPS_SENTENCE];
    ops_ctx *o = NULL;
    type = grad_type = ZERO_F32;
    ops = make_ops(0, 1, 0, 1);
    array x = make(4, 1), y = make(4, 0);
    test_check(ops_create(&o, &limits, &settings, why) == ZERO_OK, "ops_create: %s", why);
    test_check(!*(ops_status(o, &sentence), sentence), "a sentence before any error");
    ops_attention(o, NULL, NULL, NULL, NULL, &shape);
    test_check(ops_status(o, &sentence) == ZERO_ERR_ARGUMENT && strstr(sentence, "9 tokens"),
               "attention beyond its limits says '%s'", sentence);
    ops_linear(o, y.f, x.f, x.f, NULL, 1, 2, 2);
    ops_bias_backward(o, y.f, x.f, 1, 4);
    fetch(&y);
    test_check(y.v[0] == 0.0f, "an operation ran after an error");
    drop(x);
    drop(y);
    ops_destroy(ops);
    ops_destroy(o);
    ops_destroy(NULL);
}

/* All of it in one type; `bits`: those of embeddings, which threads do not change. */
static void with_type(zero_type t, zero_type grad, int threads, uint64_t *bits) {
    type = t;
    grad_type = grad;
    seed.state = 1;
    bits_of_all = 0;
    ops = make_ops(0, 1, 0, 1);
    test_all_operations();
    test_check(!*bits || *bits == bits_of_all, "embeddings, attention: other bits with %d threads",
               threads);
    *bits = bits_of_all;
    test_determinism();
    if (t == ZERO_F32) {
        test_exponential();
        test_gelu_accuracy();
    }
    test_not_finite();
    test_no_rows();
    const char *sentence;
    test_check(ops_status(ops, &sentence) == ZERO_OK, "an operation failed: %s", sentence);
    test_check(strstr(ops_product_path(ops), t == ZERO_F32    ? PLAIN
                                             : t == ZERO_BF16 ? "bf16"
                                                              : "f16")
                   != NULL,
               "products go by '%s'", ops_product_path(ops));
    ops_destroy(ops);
}

#ifdef __CUDACC__
/* What the log says about shapes that can be fused; on a GPU it is only printed. */
static void test_path(zero_type t, const char *expected) {
    type = grad_type = t;
    ops = make_ops(0, 1, 0, 1);
    test_linear_gelu(33, 24, 96);
    test_gelu_linear(37, 96, 24);
    test_residual(40, 48, 16);
    printf("products: %s\n", ops_product_path(ops));
#ifdef EMULATED_LAUNCH
    test_check(!strcmp(ops_product_path(ops), expected), "products go by '%s', not '%s'",
               ops_product_path(ops), expected);
#else
    (void)expected;
#endif
    ops_destroy(ops);
}
#endif

#ifdef EMULATED_LAUNCH
/* Every kernel that stands in for an epilogue, found out early or late; nothing left behind. */
static void test_emulated(uint64_t bits[ZERO_TYPES][2]) {
    for (unsigned late = 0; late < 2; late++) {
        const unsigned how = late ? EMULATED_REFUSE_LATE : 0;
        emulated_cublaslt_refuse(how | EMULATED_REFUSE_GELU | EMULATED_REFUSE_DGELU);
        test_path(ZERO_BF16, "cuBLASLt bf16; fused: bias, residual; "
                             "own kernels: GELU, GELU's gradient");
        emulated_cublaslt_refuse(how | EMULATED_REFUSE_BIAS | EMULATED_REFUSE_DGELU);
        test_path(ZERO_F16, "cuBLASLt f16; fused: GELU; "
                            "own kernels: residual, GELU's gradient");
        emulated_cublaslt_refuse(how | EMULATED_REFUSE_BIAS | EMULATED_REFUSE_GELU
                                 | EMULATED_REFUSE_DGELU);
        test_path(ZERO_F32, "cuBLASLt f32; own kernels: bias, residual, GELU, GELU's gradient");
    }
    with_type(ZERO_BF16, ZERO_F32, 1, &bits[ZERO_BF16][0]);
    emulated_cublaslt_refuse(EMULATED_REFUSE_PLAIN | EMULATED_REFUSE_GELU);
    with_type(ZERO_F16, ZERO_F16, 1, &bits[ZERO_F16][1]);
    emulated_cublaslt_refuse(0);
    emulation_thread_order(7);
    with_type(ZERO_F32, ZERO_F32, 1, &bits[ZERO_F32][0]);
    emulation_thread_order(8); /* warps run ahead of one another */
    with_type(ZERO_BF16, ZERO_BF16, 1, &bits[ZERO_BF16][1]);
    emulation_thread_order(0);
}

static void test_nothing_left(void) {
    test_check(!emulation_found(), "the emulation found: %s", emulation_found());
    test_check(emulated_cublaslt_live() == 0 && emulation_live() == 0,
               "%d objects of cuBLASLt and %zu of CUDA are left", emulated_cublaslt_live(),
               emulation_live());
}
#endif

/* The way that is tested is none that oneDNN may not take. */
static void test_attention_way(const char *most) {
    const char *path = ops_attention_path(ops);
    const char *without = !most                               ? "nothing"
                          : !strcmp(most, "AVX512_CORE")      ? "bf16"
                          : !strcmp(most, "AVX512_CORE_BF16") ? "AMX"
                                                              : "nothing";
    test_check(!strstr(path, without), "attention goes by %s with %s", path, most);
    printf("attention: %s\n", path);
}

/* Of a bf16 run, where ONEDNN_MAX_CPU_ISA chooses the way. */
static int test_attention_alone(void) {
    uint64_t bits = 0;
    type = grad_type = ZERO_BF16;
    for (int threads = 1; threads <= 3; threads += 2) {
#ifdef _OPENMP
        omp_set_num_threads(threads);
#endif
        seed.state = 1;
        bits_of_all = 0;
        ops = make_ops(0, 1, 0, 1);
        test_attentions();
        test_check(!bits || bits == bits_of_all, "attention: other bits with %d threads", threads);
        bits = bits_of_all;
        test_determinism();
        if (threads == 1) test_attention_way(getenv("ONEDNN_MAX_CPU_ISA"));
        ops_destroy(ops);
    }
    return test_summary();
}

int main(int argc, char **argv) {
    static uint64_t bits[ZERO_TYPES][2];
    if (argc > 1 && !strcmp(argv[1], "attention")) return test_attention_alone();
    for (int threads = 1; threads <= (ON_GPU ? 1 : 3); threads += 2) {
#ifdef _OPENMP
        omp_set_num_threads(threads);
#endif
        for (int t = 0; t < ZERO_TYPES; t++) {
            with_type((zero_type)t, ZERO_F32, threads, &bits[t][0]);
            if (t) with_type((zero_type)t, (zero_type)t, threads, &bits[t][1]);
        }
    }
#ifdef __CUDACC__
    test_path(ZERO_BF16, "cuBLASLt bf16; fused: residual, GELU, GELU's gradient");
    test_path(ZERO_F32, "cuBLASLt f32; fused: bias, residual; own kernels: GELU, GELU's gradient");
#endif
#ifdef EMULATED_LAUNCH
    test_emulated(bits);
#endif
    test_sticky_error();
    for (int t = 0; t < ZERO_TYPES; t++)
        test_check(ops_matmul_rate((zero_type)t, 0, 1) > (ON_GPU ? 1 : 1e8),
                   "the rate of products in type %d", t);
#ifdef EMULATED_LAUNCH
    test_nothing_left();
#endif
    return test_summary();
}

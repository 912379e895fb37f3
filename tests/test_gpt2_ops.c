/* test_gpt2_ops.c - every operation of adapters/gpt2/ops.h, in every type, against f64: values
   against a plain reference on the same (rounded) inputs, gradients against central finite
   differences of that reference, whose error is below 1e-8. What is computed in f32 may differ by
   TOLERANCE times the largest value compared with; what is stored in 16 bits, by one rounding more.
   Shapes are no multiples of anything, and cross the bounds of vectors, tiles and blocks. Then
   accuracy of the elementary functions, determinism, values that are not finite, and errors. */
#include "harness.h"
#include "test_gpt2_reference.h"

#include "../adapters/gpt2/ops.h"

#ifdef _OPENMP
#include <omp.h>
#endif

#define TOLERANCE 3e-6

static ops_ctx *ops;
static zero_type type, grad_type; /* those of ops */
static test_random seed = {1};

static double uniform(void) { return (double)(test_next(&seed) >> 11) * 0x1p-52 - 1.0; }

/* The largest relative error of one rounding; the test of f32 is TOLERANCE. */
static double rounding(zero_type t) {
    return t == ZERO_BF16 ? 0x1p-8 : t == ZERO_F16 ? 0x1p-11 : 0;
}

static void put(void *x, zero_type t, size_t i, double value) {
    const float f = (float)value;
    zero_convert((char *)x + i * zero_type_bytes(t), t, &f, ZERO_F32, 1);
}

static double get(const void *x, zero_type t, size_t i) {
    float f;
    zero_convert(&f, ZERO_F32, (const char *)x + i * zero_type_bytes(t), t, 1);
    return (double)f;
}

/* An array with equal values in f64 and as the operations have it; grad: the gradient of the
   objective, which begins with `start` where it is added to. */
typedef struct array {
    double *d;
    void *f, *grad;
    size_t n;
    zero_type type, grad_type;
    double start;
} array;

static void set(const array *a, size_t i, double value) {
    put(a->f, a->type, i, value);
    a->d[i] = get(a->f, a->type, i);
}

static void clear_grad(const array *a) {
    for (size_t i = 0; i < a->n; i++) put(a->grad, a->grad_type, i, a->start);
}

static array make_as(size_t n, double scale, zero_type t, zero_type grad, double start) {
    array a = {(double *)malloc((n + 1) * sizeof(double)),
               ops_alloc(n * zero_type_bytes(t)),
               ops_alloc(n * zero_type_bytes(grad)),
               n,
               t,
               grad,
               start};
    for (size_t i = 0; i < n; i++) set(&a, i, uniform() * scale);
    clear_grad(&a);
    return a;
}

static array make(size_t n, double scale) { return make_as(n, scale, type, type, 0); }
static array make_param(size_t n, double scale) { return make_as(n, scale, type, grad_type, 0.75); }
static array make_floats(size_t n) { return make_as(n, 0, ZERO_F32, ZERO_F32, 0); }

static size_t bytes_of(size_t n) { return n * zero_type_bytes(type); }

static void drop(array a) {
    free(a.d);
    ops_free(a.f);
    ops_free(a.grad);
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

/* Values against the reference's. */
static void same_values(const char *what, const array *a) {
    double most = largest(a->d, a->n), off = 0;
    for (size_t i = 0; i < a->n; i++)
        off = fmax(off, beyond(get(a->f, a->type, i), a->d[i], a->type));
    test_check(off <= TOLERANCE * fmax(most, 1.0), "%s in type %d: off by %g of %g", what,
               (int)a->type, off, most);
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
    double roundings; /* of values that a gradient is computed from, not of itself */
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
        off = fmax(off, beyond(get(a->grad, a->grad_type, i), a->start + slope, a->grad_type));
    }
    test_check(off <= (TOLERANCE + c->roundings * rounding(type)) * most,
               "%s in types %d, %d: gradient of %s off by %g of %g (R %zu T %zu I %zu O %zu)",
               c->name, (int)type, (int)a->grad_type, input, off, most, c->R, c->T, c->I, c->O);
}

static void finish(op_case *c, int inputs, const char *const *names) {
    objective(c);
    same_values(c->name, &c->out);
    for (int k = 0; k < inputs; k++) same_gradient(c, k, names[k]);
    for (int k = 0; k < inputs; k++) drop(c->in[k]);
    drop(c->out);
    drop(c->weight);
}

/* ---- the operations ------------------------------------------------------------------------- */

static uint64_t embed_bits; /* of the gradients of all calls */

static uint64_t hash(uint64_t bits, const void *from, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) bits = test_mix(bits ^ ((const unsigned char *)from)[i]);
    return bits;
}

static void embed_reference(op_case *c) {
    for (size_t r = 0; r < c->R; r++)
        for (size_t i = 0; i < c->I; i++)
            c->out.d[r * c->I + i] =
                c->in[0].d[(size_t)c->tokens[r] * c->I + i] + c->in[1].d[r % c->T * c->I + i];
}

static void test_embed(size_t B, size_t T, size_t C) {
    static const char *const names[] = {"wte", "wpe"};
    const size_t R = B * T, V = 5;
    int tokens[256];
    for (size_t r = 0; r < R; r++) tokens[r] = test_below(&seed, (int)V);
    op_case c = {"embed",
                 R,
                 T,
                 C,
                 0,
                 0,
                 tokens,
                 {make_param(V * C, 1), make_param(T * C, 1)},
                 make(R * C, 0),
                 make(R * C, 1),
                 embed_reference,
                 0};
    ops_embed(ops, c.out.f, tokens, c.in[0].f, c.in[1].f, R, T, C);
    ops_embed_backward(ops, c.in[0].grad, c.in[1].grad, c.weight.f, tokens, R, T, C);
    for (int k = 0; k < 2; k++)
        embed_bits = hash(embed_bits, c.in[k].grad, c.in[k].n * zero_type_bytes(grad_type));
    finish(&c, 2, names);
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
                 0};
    ops_linear(ops, c.out.f, c.in[0].f, c.in[1].f, R, I, O);
    ops_linear_dx(ops, c.in[0].grad, c.weight.f, c.in[1].f, R, I, O);
    ops_linear_dw(ops, c.in[1].grad, c.weight.f, c.in[0].f, R, I, O);
    finish(&c, 2, names);
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
                 0};
    memcpy(c.in[0].grad, c.weight.f, bytes_of(R * C));
    memcpy(c.in[1].grad, c.weight.f, bytes_of(R * C));
    memcpy(c.out.f, c.in[1].f, bytes_of(R * C));
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
                 0};
    array mean = make_floats(R), rstd = make_floats(R), again = make(R * C, 0);
    ops_norm(ops, c.out.f, (float *)mean.f, (float *)rstd.f, c.in[0].f, c.in[1].f, c.in[2].f, R, C);
    ops_norm_again(ops, again.f, (float *)mean.f, (float *)rstd.f, c.in[0].f, c.in[1].f, c.in[2].f,
                   R, C);
    test_check(!memcmp(c.out.f, again.f, bytes_of(R * C)), "norm again: other bits");
    ops_norm_backward(ops, again.f, c.in[1].grad, c.in[2].grad, c.weight.f, c.in[0].f,
                      (float *)mean.f, (float *)rstd.f, c.in[1].f, 1, R, C);
    for (size_t i = 0; i < R * C; i++) put(c.in[0].grad, type, i, 1.0); /* is added to */
    clear_grad(&c.in[1]);
    clear_grad(&c.in[2]);
    ops_norm_backward(ops, c.in[0].grad, c.in[1].grad, c.in[2].grad, c.weight.f, c.in[0].f,
                      (float *)mean.f, (float *)rstd.f, c.in[1].f, 0, R, C);
    int sums = 1;
    for (size_t i = 0; i < R * C; i++) {
        const double d = get(again.f, type, i), sum = get(c.in[0].grad, type, i);
        if (type == ZERO_F32)
            sums &= (float)sum == 1.0f + (float)d;
        else
            sums &= beyond(sum, 1 + d, type) <= rounding(type) * fabs(d) * 1.01 + 1e-6;
        put(c.in[0].grad, type, i, d);
    }
    test_check(sums, "norm backward: adding is not storing plus the sum");
    finish(&c, 3, names);
    drop(mean);
    drop(rstd);
    drop(again);
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
                 0};
    array again = make(R * C, 0);
    ops_gelu(ops, c.out.f, c.in[0].f, c.in[1].f, R, C);
    memcpy(c.in[0].grad, c.weight.f, bytes_of(R * C));
    ops_gelu_backward(ops, c.in[0].grad, c.in[1].grad, again.f, c.in[0].f, c.in[1].f, R, C);
    test_check(!memcmp(c.out.f, again.f, bytes_of(R * C)), "gelu again: other bits");
    finish(&c, 2, names);
    drop(again);
}

static void attention_reference(op_case *c) {
    const size_t C3 = 3 * c->I * c->NH, n = c->R * C3;
    double *qkv = (double *)malloc((n + 1) * sizeof(double));
    for (size_t i = 0; i < n; i++) qkv[i] = c->in[0].d[i] + c->in[1].d[i % C3];
    ref_attention(c->out.d, qkv, c->R / c->T, c->T, c->NH, c->I);
    free(qkv);
}

/* Backward takes a sum over the rounded output; its error meets keys and values of up to 2.5. */
static void test_attention(size_t B, size_t T, size_t NH, size_t H) {
    static const char *const names[] = {"qkv", "bias"};
    const size_t R = B * T, C = NH * H;
    const ops_heads shape = {B, T, NH, H};
    op_case c = {"attention",
                 R,
                 T,
                 H,
                 0,
                 NH,
                 NULL,
                 {make(R * 3 * C, 1.5), make_param(3 * C, 1)},
                 make(R * C, 0),
                 make(R * C, 1),
                 attention_reference,
                 T == 1 ? 8 : 4};
    array lse = make_floats(R * NH);
    ops_attention(ops, c.out.f, (float *)lse.f, c.in[0].f, c.in[1].f, &shape);
    ops_attention_backward(ops, c.in[0].grad, c.weight.f, c.out.f, (float *)lse.f, c.in[0].f,
                           c.in[1].f, &shape);
    ops_bias_backward(ops, c.in[1].grad, c.in[0].grad, R, 3 * C);
    finish(&c, 2, names);
    drop(lse);
}

static void cross_entropy_reference(op_case *c) {
    for (size_t r = 0; r < c->R; r++)
        c->out.d[r] = ref_cross_entropy(c->in[0].d + r * c->O, (size_t)c->tokens[r], c->I);
}

static void test_cross_entropy(size_t R, size_t V, size_t Vp) {
    static const char *const names[] = {"logits"};
    int targets[64];
    for (size_t r = 0; r < R; r++) targets[r] = test_below(&seed, (int)V);
    op_case c = {"cross entropy",
                 R,
                 0,
                 V,
                 Vp,
                 0,
                 targets,
                 {make(R * Vp, 5)},
                 make_floats(R),
                 make_floats(R),
                 cross_entropy_reference,
                 0};
    array losses = make_floats(R);
    for (size_t r = 0; r < R; r++) c.weight.d[r] = 0.25;
    memcpy(c.in[0].grad, c.in[0].f, bytes_of(R * Vp));
    ops_cross_entropy(ops, (float *)c.out.f, c.in[0].grad, targets, 0, 0.0f, R, V, Vp);
    test_check(!memcmp(c.in[0].grad, c.in[0].f, bytes_of(R * Vp)), "evaluation wrote logits");
    ops_cross_entropy(ops, (float *)losses.f, c.in[0].grad, targets, 1, 0.25f, R, V, Vp);
    test_check(!memcmp(c.out.f, (float *)losses.f, R * sizeof(float)),
               "evaluation has another loss");
    int zeros = 1;
    for (size_t i = 0; i < R * Vp; i++) zeros &= i % Vp < V || get(c.in[0].grad, type, i) == 0;
    test_check(zeros, "padded entries have gradients");
    finish(&c, 1, names);
    drop(losses);
}

static void test_all_operations(void) {
    test_embed(3, 7, 5);
    test_embed(4, 33, 129);
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
    test_norm(1, 5);
    test_norm(13, 67);
    test_norm(70, 128);
    test_gelu(3, 7);
    test_gelu(29, 100);
    test_attention(1, 1, 1, 1);
    test_attention(2, 37, 3, 5);
    test_attention(1, 64, 2, 32);
    test_attention(2, 65, 1, 16);
    test_attention(1, 100, 2, 33);
    test_attention(1, 200, 1, 64);
    test_cross_entropy(1, 1, 128);
    test_cross_entropy(9, 65, 128);
    test_cross_entropy(5, 301, 384);
}

/* ---- accuracy ------------------------------------------------------------------------------- */

/* e^x, seen through a softmax of two: within 3e-7 of its value from e^-86 up. */
static void test_exponential(void) {
    enum { N = 86000 };
    static float logits[N][2], losses[N];
    static int targets[N];
    double off = 0;
    for (int i = 0; i < N; i++) logits[i][1] = -86.0f * (float)(i + 1) / N, logits[i][0] = 0.0f;
    ops_cross_entropy(ops, losses, logits[0], targets, 1, 1.0f, N, 2, 2);
    for (int i = 0; i < N; i++) {
        const double e = exp((double)(-86.0f * (float)(i + 1) / N));
        off = fmax(off, fabs((double)logits[i][1] / (e / (1 + e)) - 1));
    }
    test_check(off < 3e-7, "exponential: relative error %g", off);
}

/* GELU, whose tanh is a logistic function of t: within 3e-7 (1 + |t|) of its value; the rounding of
   t is what weighs. Its slope within 1e-6 absolutely. */
static void test_gelu_accuracy(void) {
    enum { N = 100000 };
    static float x[N], y[N], slope[N];
    const float bias[1] = {0.0f};
    float sum[1] = {0.0f};
    double off = 0, slope_off = 0;
    for (int i = 0; i < N; i++) {
        x[i] = 16.0f * (float)i / N - 8.0f;
        slope[i] = 1.0f;
    }
    ops_gelu_backward(ops, slope, sum, y, x, bias, N, 1);
    for (int i = 0; i < N; i++) {
        const double v = (double)x[i], t = 2 * sqrt(2 / M_PI) * (v + 0.044715 * v * v * v);
        const double s = 1 / (1 + exp(-t));
        const double d = s + v * s * (1 - s) * 2 * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * v * v);
        if (v != 0) off = fmax(off, fabs((double)y[i] / (v * s) - 1) / (1 + fabs(t)));
        slope_off = fmax(slope_off, fabs((double)slope[i] - d));
    }
    test_check(off < 3e-7, "gelu: relative error %g (1 + |t|)", off);
    test_check(slope_off < 1e-6, "gelu's slope: error %g", slope_off);
}

/* A value that is not finite is not lost on its way. */
static void test_not_finite(void) {
    array x = make(64, 0), y = make(64, 0), bias = make_param(64, 0), slope = make(64, 0);
    array losses = make_floats(1);
    const int target = 3;
    for (size_t i = 0; i < 64; i++) set(&x, i, i == 21 ? NAN : 1), set(&slope, i, 1);
    ops_gelu_backward(ops, slope.f, bias.grad, y.f, x.f, bias.f, 1, 64);
    test_check(isnan(get(y.f, type, 21)) && isnan(get(slope.f, type, 21))
                   && isnan(get(bias.grad, grad_type, 21)) && !isnan(get(y.f, type, 20)),
               "gelu lost a NaN");
    set(&x, 40, -INFINITY);
    ops_cross_entropy(ops, (float *)losses.f, x.f, &target, 1, 1.0f, 1, 64, 64);
    test_check(isnan(get(losses.f, ZERO_F32, 0)) && isnan(get(x.f, type, 0)),
               "cross entropy lost a NaN");
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
    size_t bytes;
} pool;

static pool fill(size_t n, zero_type t, size_t shift) {
    const pool p = {(char *)ops_alloc(n * zero_type_bytes(t) + shift), n * zero_type_bytes(t)};
    for (size_t i = 0; i < n; i++) put(p.memory + shift, t, i, uniform());
    return p;
}

/* Runs a chain of operations in memory that begins `shift` bytes into a block; returns the bits. */
static uint64_t chain(size_t shift) {
    const test_random before = seed;
    const ops_heads shape = {DB, DT, DNH, DH};
    const size_t z = zero_type_bytes(type), zg = zero_type_bytes(grad_type);
    uint64_t bits = 0;
    seed.state = 77;
    const pool numbers = fill(9 * DR * DC + 3 * DC * DC + DC * 4, type, shift);
    const pool floats = fill(DR * DNH + 2 * DR, ZERO_F32, shift);
    const pool grads = fill(3 * DC * DC + DC * 6, grad_type, shift);
    seed = before;
    char *x = numbers.memory + shift, *w = x + DR * DC * z, *qkv = w + 3 * DC * DC * z;
    char *out = qkv + 3 * DR * DC * z, *dqkv = out + DR * DC * z, *bias = dqkv + 3 * DR * DC * z;
    char *dw = grads.memory + shift, *db = dw + 3 * DC * DC * zg;
    float *lse = (float *)(void *)(floats.memory + shift), *mean = lse + DR * DNH;
    ops_norm(ops, out, mean, mean + DR, x, w, bias, DR, DC);
    ops_linear(ops, qkv, out, w, DR, DC, 3 * DC);
    ops_attention(ops, out, lse, qkv, bias, &shape);
    ops_attention_backward(ops, dqkv, x, out, lse, qkv, bias, &shape);
    ops_linear_dw(ops, dw, dqkv, x, DR, DC, 3 * DC);
    ops_linear_dx(ops, out, dqkv, w, DR, DC, 3 * DC);
    ops_norm_backward(ops, x, db, db + DC * zg, out, qkv, mean, mean + DR, w, 0, DR, DC);
    ops_gelu_backward(ops, x, db + 2 * DC * zg, qkv, out, w, DR, DC);
    ops_bias_backward(ops, db + 3 * DC * zg, x, DR, DC);
    bits = hash(bits, numbers.memory + shift, numbers.bytes);
    bits = hash(bits, floats.memory + shift, floats.bytes);
    bits = hash(bits, grads.memory + shift, grads.bytes);
    ops_free(numbers.memory);
    ops_free(floats.memory);
    ops_free(grads.memory);
    return bits;
}

static void test_determinism(void) {
    const uint64_t first = chain(0);
    for (size_t shift = 0; shift < 8192; shift += 832)
        test_check(chain(shift) == first, "type %d: other bits %zu bytes further on", (int)type,
                   shift);
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
    ops_linear(ops, NULL, NULL, &one, 0, 1, 1);
    ops_linear_dw(ops, &one, NULL, NULL, 0, 1, 1);
    ops_gelu_backward(ops, NULL, &one, NULL, NULL, &one, 0, 1);
    ops_bias_backward(ops, &one, NULL, 0, 1);
    ops_attention(ops, NULL, NULL, NULL, NULL, &shape);
    ops_cross_entropy(ops, NULL, NULL, NULL, 1, 1.0f, 0, 1, 1);
    test_check(one == 1.0f && ops_status(ops, NULL) == ZERO_OK, "no rows are not nothing");
}

static void test_sticky_error(void) {
    const ops_limits limits = {8, 4, 16, 16, 16};
    const ops_heads shape = {1, 9, 1, 4};
    const char *sentence = "";
    float x[4] = {1, 2, 3, 4}, y[4] = {0};
    ops_ctx *o = NULL;
    test_check(ops_create(&o, &limits, ZERO_F32, ZERO_F32) == ZERO_OK, "ops_create");
    test_check(!*(ops_status(o, &sentence), sentence), "a sentence before any error");
    ops_attention(o, NULL, NULL, NULL, NULL, &shape);
    test_check(ops_status(o, &sentence) == ZERO_ERR_ARGUMENT && strstr(sentence, "9 tokens"),
               "attention beyond its limits says '%s'", sentence);
    ops_linear(o, y, x, x, 1, 2, 2);
    ops_bias_backward(o, y, x, 1, 4);
    test_check(y[0] == 0.0f, "an operation ran after an error");
    ops_destroy(o);
    ops_destroy(NULL);
}

/* All of it in one type; `bits`: those of embeddings, which threads do not change. */
static void with_type(zero_type t, zero_type grad, int threads, uint64_t *bits) {
    const ops_limits limits = {256, 64, 1024, 512, 512};
    type = t;
    grad_type = grad;
    seed.state = 1;
    embed_bits = 0;
    if (!test_check(ops_create(&ops, &limits, t, grad) == ZERO_OK, "ops_create, %d threads",
                    threads))
        return;
    test_all_operations();
    test_check(!*bits || *bits == embed_bits, "embeddings: other bits with %d threads", threads);
    *bits = embed_bits;
    test_determinism();
    if (t == ZERO_F32) {
        test_exponential();
        test_gelu_accuracy();
    }
    test_not_finite();
    test_no_rows();
    test_check(ops_status(ops, NULL) == ZERO_OK, "an operation failed");
    test_check(strstr(ops_product_path(ops), t == ZERO_F32    ? "oneDNN f32"
                                             : t == ZERO_BF16 ? "bf16"
                                                              : "f16")
                   != NULL,
               "products go by '%s'", ops_product_path(ops));
    ops_destroy(ops);
}

int main(void) {
    static uint64_t bits[ZERO_TYPES][2];
    for (int threads = 1; threads <= 3; threads += 2) {
#ifdef _OPENMP
        omp_set_num_threads(threads);
#endif
        for (int t = 0; t < ZERO_TYPES; t++) {
            with_type((zero_type)t, ZERO_F32, threads, &bits[t][0]);
            if (t) with_type((zero_type)t, (zero_type)t, threads, &bits[t][1]);
        }
    }
    test_sticky_error();
    for (int t = 0; t < ZERO_TYPES; t++)
        test_check(ops_matmul_rate((zero_type)t, 1) > 1e8, "the rate of products in type %d", t);
    return test_summary();
}

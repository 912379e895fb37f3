/* test_attention.cu - attention on CUDA, own kernels and cuDNN's, forward and backward, against a
   naive reference in f64 from the same rounded inputs. On a GPU, or on the emulation of one, where
   cuDNN's graphs are interpreted and faults are injected.

   An error is measured as the norm of the difference over the norm of the reference. Allowed are:
     own kernels, f32         1e-6: sums of f32 in another order
     own kernels, bf16, f16   the rounding of stored numbers (2^-9 and 2^-12 at most, half of that
                              on average) and, in gradients, of `out`, from which they are made
     cuDNN                    also that of probabilities and their gradients, before each product
   Two independent roundings add up to 1.4 times one; tolerances are about twice
   what is expected. A wrong operand or transpose gives an error of about 1. */
#include "../../adapters/gpt2/attention_cuda.h"
#include "../../adapters/gpt2/cuda_bytes.h"
#include "../shared/harness.h"

#include <cuda_runtime.h>
#include <float.h>
#include <math.h>

#ifdef EMULATED_LAUNCH
#include "../emulation/emulation.h"
#ifdef GPT2_WITH_CUDNN
#include "../emulation/cudnn_emulation.h"
#endif
#endif

#ifdef EMULATED_LAUNCH
enum { ON_EMULATION = 1 };
#else
enum { ON_EMULATION = 0 };
#endif

static void must(cudaError_t e, const char *what) {
    if (e == cudaSuccess) return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(e));
    exit(1);
}
#define MUST(call) must(call, #call)

static void *allocate(size_t bytes) {
    void *p = malloc(bytes ? bytes : 1);
    if (!p) abort();
    return p;
}
static double *doubles(size_t n) {
    double *p = (double *)allocate(n * sizeof *p);
    memset(p, 0, n * sizeof *p);
    return p;
}

/* ---- device memory with guards --------------------------------------------------------------- */

enum { GUARD = 256 };

typedef struct buffer {
    char *memory; /* GUARD bytes, then the numbers, then GUARD bytes */
    size_t bytes;
} buffer;

static void *at(const buffer *b) { return b->memory + GUARD; }
static buffer buffer_make(size_t bytes) { /* all NaN */
    buffer b;
    b.bytes = bytes;
    void *p = NULL;
    MUST(cudaMalloc(&p, bytes + 2 * GUARD));
    b.memory = (char *)p;
    MUST(cudaMemset(b.memory, 0xFF, bytes + 2 * GUARD));
    return b;
}
static void buffer_free(buffer *b) { MUST(cudaFree(b->memory)); }
/* Nothing was written around it. */
static int buffer_whole(const buffer *b) {
    unsigned char guard[2 * GUARD];
    int whole = 1;
    MUST(cudaMemcpy(guard, b->memory, GUARD, cudaMemcpyDeviceToHost));
    MUST(cudaMemcpy(guard + GUARD, b->memory + GUARD + b->bytes, GUARD, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 2 * GUARD; i++) whole &= guard[i] == 0xFF;
    return whole;
}
static void upload(const buffer *b, zero_type type, const float *from, size_t n) {
    void *packed = allocate(n * 4);
    zero_convert(packed, type, from, ZERO_F32, n);
    MUST(cudaMemcpy(at(b), packed, n * zero_type_bytes(type), cudaMemcpyHostToDevice));
    free(packed);
}
static float *download(const buffer *b, zero_type type, size_t n) {
    void *packed = allocate(n * 4);
    float *to = (float *)allocate(n * sizeof *to);
    MUST(cudaMemcpy(packed, at(b), n * zero_type_bytes(type), cudaMemcpyDeviceToHost));
    zero_convert(to, ZERO_F32, packed, type, n);
    free(packed);
    return to;
}

/* ---- a case and its reference ---------------------------------------------------------------- */

typedef struct problem {
    attention_shape shape;
    zero_type type;
    size_t nqkv, nout, nlse;
    double sharpness;            /* times which errors are allowed */
    float *qkv, *dout;           /* rounded to the type */
    double *out, *lse, *dqkv;    /* the reference */
    buffer qkv_d, dout_d;        /* inputs */
    buffer out_d, lse_d, dqkv_d; /* results */
} problem;

static float *numbers(size_t n, zero_type type, float scale, uint64_t seed) {
    test_random r = {seed};
    float *x = (float *)allocate(n * sizeof *x);
    void *packed = allocate(n * 4);
    for (size_t i = 0; i < n; i++) {
        const double u = (double)(test_next(&r) >> 11) * 0x1p-53 + 0x1p-54;
        const double v = (double)(test_next(&r) >> 11) * 0x1p-53;
        x[i] = scale * (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
    }
    zero_convert(packed, type, x, ZERO_F32, n);
    zero_convert(x, ZERO_F32, packed, type, n);
    free(packed);
    return x;
}

/* Row t of q, k or v (part 0, 1, 2) of head h, and of out. */
static size_t part_at(const attention_shape *s, size_t b, size_t t, size_t part, size_t h) {
    return (((b * s->seq_len + t) * 3 + part) * s->heads + h) * s->head_size;
}
static size_t out_at(const attention_shape *s, size_t b, size_t t, size_t h) {
    return ((b * s->seq_len + t) * s->heads + h) * s->head_size;
}
static double dot(const float *a, const float *b, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)a[i] * (double)b[i];
    return sum;
}

/* One query: forward, then its share of all gradients. p, dp: seq_len numbers each. */
static void reference_row(problem *c, size_t b, size_t h, size_t t, double *p, double *dp) {
    const attention_shape *s = &c->shape;
    const size_t n = s->head_size, q = part_at(s, b, t, 0, h), o = out_at(s, b, t, h);
    const double scale = 1 / sqrt((double)n);
    double most = -INFINITY, sum = 0, delta = 0;
    for (size_t i = 0; i <= t; i++) {
        p[i] = dot(c->qkv + q, c->qkv + part_at(s, b, i, 1, h), n) * scale;
        most = p[i] > most ? p[i] : most;
    }
    for (size_t i = 0; i <= t; i++) sum += p[i] = exp(p[i] - most);
    c->lse[(b * s->heads + h) * s->seq_len + t] = most + log(sum);
    for (size_t i = 0; i <= t; i++) {
        const float *v = c->qkv + part_at(s, b, i, 2, h);
        p[i] /= sum;
        dp[i] = dot(c->dout + o, v, n);
        delta += p[i] * dp[i];
        for (size_t j = 0; j < n; j++) c->out[o + j] += p[i] * (double)v[j];
    }
    for (size_t i = 0; i <= t; i++) {
        const size_t k = part_at(s, b, i, 1, h), v = part_at(s, b, i, 2, h);
        const double ds = p[i] * (dp[i] - delta) * scale;
        for (size_t j = 0; j < n; j++) {
            c->dqkv[q + j] += ds * (double)c->qkv[k + j];
            c->dqkv[k + j] += ds * (double)c->qkv[q + j];
            c->dqkv[v + j] += p[i] * (double)c->dout[o + j];
        }
    }
}

static void problem_make(problem *c, attention_shape shape, zero_type type, float scale) {
    const size_t rows = shape.batch * shape.seq_len * shape.heads, bytes = zero_type_bytes(type);
    double *p = doubles(shape.seq_len), *dp = doubles(shape.seq_len);
    c->shape = shape;
    c->type = type;
    c->sharpness = scale;
    c->nlse = rows;
    c->nout = rows * shape.head_size;
    c->nqkv = 3 * c->nout;
    c->qkv = numbers(c->nqkv, type, scale, rows + shape.head_size);
    c->dout = numbers(c->nout, type, 1, 7 * rows + shape.head_size);
    c->out = doubles(c->nout);
    c->lse = doubles(c->nlse);
    c->dqkv = doubles(c->nqkv);
    for (size_t b = 0; b < shape.batch; b++)
        for (size_t h = 0; h < shape.heads; h++)
            for (size_t t = 0; t < shape.seq_len; t++) reference_row(c, b, h, t, p, dp);
    c->qkv_d = buffer_make(c->nqkv * bytes);
    c->dout_d = buffer_make(c->nout * bytes);
    c->out_d = buffer_make(c->nout * bytes);
    c->lse_d = buffer_make(c->nlse * 4);
    c->dqkv_d = buffer_make(c->nqkv * bytes);
    upload(&c->qkv_d, type, c->qkv, c->nqkv);
    upload(&c->dout_d, type, c->dout, c->nout);
    free(p);
    free(dp);
}
static void problem_free(problem *c) {
    buffer *all[] = {&c->qkv_d, &c->dout_d, &c->out_d, &c->lse_d, &c->dqkv_d};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) buffer_free(all[i]);
    free(c->qkv);
    free(c->dout);
    free(c->out);
    free(c->lse);
    free(c->dqkv);
}

/* ---- comparing ------------------------------------------------------------------------------- */

static const char *const type_names[] = {"f32", "bf16", "f16"};

typedef struct tolerance {
    double out, gradient;
} tolerance;
static tolerance allowed(zero_type type, int cudnn) {
    const tolerance own[] = {{1e-6, 1e-6}, {4e-3, 4e-3}, {5e-4, 5e-4}};
    const tolerance other[] = {{0, 0}, {6e-3, 8e-3}, {8e-4, 1e-3}};
    return cudnn ? other[type] : own[type];
}

/* Norm of the difference over the norm of the reference; of rows of n numbers, each of which begins
   `stride` after the last one. A NaN is an infinite error. A reference of nothing but rounding, as
   dq and dk of a first token are, counts as 0: the difference is relative to `floor` then. */
static double error_of(const float *x, const double *ref, size_t rows, size_t n, size_t stride,
                       double floor) {
    double difference = 0, norm = 0;
    for (size_t r = 0; r < rows; r++)
        for (size_t i = r * stride; i < r * stride + n; i++) {
            const double d = (double)x[i] - ref[i];
            difference += d * d;
            norm += ref[i] * ref[i];
        }
    norm = sqrt(norm) > floor ? sqrt(norm) : floor;
    return difference == difference ? sqrt(difference) / norm : INFINITY;
}

typedef struct errors {
    double out, lse, dq, dk, dv;
} errors;

static errors compare(const problem *c) {
    const attention_shape *s = &c->shape;
    const size_t rows = s->batch * s->seq_len, width = s->heads * s->head_size;
    float *out = download(&c->out_d, c->type, c->nout),
          *lse = download(&c->lse_d, ZERO_F32, c->nlse);
    float *dqkv = download(&c->dqkv_d, c->type, c->nqkv);
    const double floor = s->seq_len == 1 ? sqrt((double)c->nout) : 0;
    errors e;
    e.out = error_of(out, c->out, rows, width, width, 0);
    e.lse = error_of(lse, c->lse, 1, c->nlse, c->nlse, sqrt((double)c->nlse));
    e.dq = error_of(dqkv, c->dqkv, rows, width, 3 * width, floor);
    e.dk = error_of(dqkv + width, c->dqkv + width, rows, width, 3 * width, floor);
    e.dv = error_of(dqkv + 2 * width, c->dqkv + 2 * width, rows, width, 3 * width, 0);
    free(out);
    free(lse);
    free(dqkv);
    return e;
}

static errors worst[2][ZERO_TYPES]; /* [cuDNN][type] */
static double more(double a, double b) { return a > b ? a : b; }

static void judge(const problem *c, int cudnn, const char *path) {
    const attention_shape *s = &c->shape;
    const tolerance t = allowed(c->type, cudnn);
    const errors e = compare(c);
    errors *w = &worst[cudnn][c->type];
    const double gradient = t.gradient * c->sharpness, out = t.out * c->sharpness;
    const int near =
        e.out <= out && e.lse <= 1e-6 && e.dq <= gradient && e.dk <= gradient && e.dv <= gradient;
    test_check(near, "%s, B%zu T%zu H%zu D%zu %s: out %.2g lse %.2g dq %.2g dk %.2g dv %.2g", path,
               s->batch, s->seq_len, s->heads, s->head_size, type_names[c->type], e.out, e.lse,
               e.dq, e.dk, e.dv);
    test_check(buffer_whole(&c->out_d) && buffer_whole(&c->lse_d) && buffer_whole(&c->dqkv_d)
                   && buffer_whole(&c->qkv_d) && buffer_whole(&c->dout_d),
               "%s, B%zu T%zu H%zu D%zu %s: nothing is written around results", path, s->batch,
               s->seq_len, s->heads, s->head_size, type_names[c->type]);
    w->out = more(w->out, e.out);
    w->lse = more(w->lse, e.lse);
    w->dq = more(w->dq, e.dq);
    w->dk = more(w->dk, e.dk);
    w->dv = more(w->dv, e.dv);
}

/* ---- running --------------------------------------------------------------------------------- */

static cudaStream_t stream;

static void forget(const problem *c) { /* results of an earlier run */
    MUST(cudaMemset(at(&c->out_d), 0xFF, c->out_d.bytes));
    MUST(cudaMemset(at(&c->lse_d), 0xFF, c->lse_d.bytes));
    MUST(cudaMemset(at(&c->dqkv_d), 0xFF, c->dqkv_d.bytes));
    MUST(cudaDeviceSynchronize());
}
static zero_result run(attention *a, const problem *c) {
    forget(c);
    zero_result r =
        attention_forward(a, at(&c->out_d), (float *)at(&c->lse_d), at(&c->qkv_d), &c->shape);
    if (!r)
        r = attention_backward(a, at(&c->dqkv_d), at(&c->dout_d), at(&c->out_d),
                               (const float *)at(&c->lse_d), at(&c->qkv_d), &c->shape);
    MUST(cudaStreamSynchronize(stream));
    return r;
}

static attention *make(const attention_shape *largest, zero_type type, int deterministic) {
    attention *a = NULL;
    const zero_result r = attention_create(&a, largest, type, stream, deterministic);
    if (!test_check(!r, "attention_create: %s", attention_error(a))) exit(test_summary());
    return a;
}
static int with_cudnn(const attention *a) { return !strncmp(attention_path(a), "cuDNN", 5); }

/* Bits of all results; the same bits give the same number. */
static uint64_t fingerprint(const problem *c) {
    const buffer *all[] = {&c->out_d, &c->lse_d, &c->dqkv_d};
    uint64_t h = 0;
    for (int k = 0; k < 3; k++) {
        unsigned char *x = (unsigned char *)allocate(all[k]->bytes);
        MUST(cudaMemcpy(x, at(all[k]), all[k]->bytes, cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < all[k]->bytes; i++) h = test_mix(h ^ x[i]);
        free(x);
    }
    return h;
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void test_values(attention_shape shape, zero_type type, float scale) {
    problem c;
    problem_make(&c, shape, type, scale);
    for (int deterministic = 0; deterministic < 2; deterministic++) {
        attention *a = make(&shape, type, deterministic);
        const int cudnn = with_cudnn(a);
        if (cudnn || !deterministic) {
            test_check(!run(a, &c), "%s: %s", attention_path(a), attention_error(a));
            judge(&c, cudnn, attention_path(a));
        }
        if (cudnn && !deterministic) {
            attention_use_own(a);
            test_check(!run(a, &c), "%s: %s", attention_path(a), attention_error(a));
            judge(&c, 0, attention_path(a));
        }
        attention_destroy(a);
    }
    problem_free(&c);
}

static void test_shapes(zero_type type) {
    static const attention_shape shapes[] = {
        {1, 1, 1, 64},   {2, 5, 3, 16},   {1, 64, 1, 64},  {1, 65, 3, 64}, {3, 100, 1, 64},
        {1, 130, 2, 64}, {1, 70, 3, 128}, {2, 33, 1, 128}, {2, 33, 3, 20}, {1, 40, 1, 256},
        {1, 50, 1, 7},   {1, 35, 2, 96},  {1, 50, 1, 200}, {1, 17, 5, 72}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) test_values(shapes[i], type, 1);
    const attention_shape sharp = {1, 97, 3, 64};
    test_values(sharp, type, 4); /* scores up to about 70: one key takes nearly all */
#ifndef EMULATED_LAUNCH
    const attention_shape large[] = {{2, 1024, 3, 64}, {1, 1024, 2, 128}, {1, 1000, 5, 64}};
    for (int i = 0; i < 3; i++) test_values(large[i], type, 1);
#endif
}

/* A context that was made for more gives the results of one that was not: the same bits from the
   own kernels, and from cuDNN near the reference. */
static void test_smaller(zero_type type) {
    const attention_shape largest = {3, 80, 3, 64};
    const attention_shape calls[] = {{1, 80, 3, 64}, {2, 80, 3, 64}, {3, 1, 3, 64}, {2, 37, 3, 64}};
    attention *a = make(&largest, type, 0);
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        problem c;
        problem_make(&c, calls[i], type, 1);
        const int cudnn = with_cudnn(a) && calls[i].seq_len == largest.seq_len;
        test_check(!run(a, &c), "a smaller call: %s", attention_error(a));
        judge(&c, cudnn, "a smaller call");
        const uint64_t bits = fingerprint(&c);
        attention *exact = make(&calls[i], type, 0);
        if (!cudnn) attention_use_own(exact);
        test_check(!run(exact, &c) && fingerprint(&c) == bits, "the bits of a context of its size");
        attention_destroy(exact);
        problem_free(&c);
    }
    attention_destroy(a);
}

static void test_same_bits(zero_type type) {
    const attention_shape shape = {2, 150, 3, 64};
    problem c;
    problem_make(&c, shape, type, 1);
    attention *a = make(&shape, type, 1);
    (void)run(a, &c);
    const uint64_t first = fingerprint(&c);
    for (int i = 1; i <= 4; i++) {
#ifdef EMULATED_LAUNCH /* a barrier that is missing shows when threads run in another order */
        emulation_thread_order((uint64_t)i);
#endif
        test_check(!run(a, &c) && fingerprint(&c) == first, "%s, %s: the same bits each time",
                   attention_path(a), type_names[type]);
    }
#ifdef EMULATED_LAUNCH
    for (uint64_t seed = 1; seed <= 3; seed++) { /* nothing is read before it is there */
        emulation_seed(seed);
        test_check(!run(a, &c) && fingerprint(&c) == first, "the same bits in any order");
    }
    emulation_seed(0);
    emulation_thread_order(0);
#endif
    attention_destroy(a);
    problem_free(&c);
}

static void test_nothing(void) {
    const attention_shape shape = {1, 20, 1, 64}, none = {0, 20, 1, 64};
    problem c;
    problem_make(&c, shape, ZERO_F32, 1);
    attention *a = make(&shape, ZERO_F32, 0);
    forget(&c);
    const uint64_t before = fingerprint(&c);
    c.shape = none;
    test_check(!run(a, &c) && fingerprint(&c) == before, "an empty batch does nothing");
    c.shape = shape;
    attention_destroy(a);
    attention_destroy(NULL);
    problem_free(&c);
}

static void test_arguments(void) {
    const attention_shape bad[] = {{0, 8, 1, 64}, {1, 0, 1, 64},  {1, 8, 0, 64},
                                   {1, 8, 1, 0},  {1, 8, 1, 257}, {1, 1 << 20, 1, 64}};
    const attention_shape good = {2, 8, 2, 64};
    const attention_shape calls[] = {{3, 8, 2, 64}, {2, 9, 2, 64}, {2, 8, 1, 64}, {2, 8, 2, 32}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        attention *a = NULL;
        const zero_result r = attention_create(&a, &bad[i], ZERO_F32, stream, 0);
        test_check(r == ZERO_ERR_ARGUMENT && strstr(attention_error(a), "channels"),
                   "a shape that cannot be, %d", (int)i);
        attention_destroy(a);
    }
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        attention *a = make(&good, ZERO_F32, 0);
        const zero_result r = attention_forward(a, NULL, NULL, NULL, &calls[i]);
        const zero_result s = attention_backward(a, NULL, NULL, NULL, NULL, NULL, &calls[i]);
        test_check(r == ZERO_ERR_ARGUMENT && s == r && strstr(attention_error(a), "made for"),
                   "a call that is too large, %d", (int)i);
        attention_destroy(a);
    }
}

static void test_paths(void) {
    const attention_shape shape = {2, 40, 3, 64}, odd = {2, 40, 3, 20};
    for (int type = 0; type < ZERO_TYPES; type++) {
        attention *a = make(&shape, (zero_type)type, 0), *b = make(&odd, (zero_type)type, 0);
        printf("%-4s %s; heads of 20: %s\n", type_names[type], attention_path(a),
               attention_path(b));
#if defined(GPT2_WITH_CUDNN) && defined(EMULATED_LAUNCH)
        test_check(with_cudnn(a) == (type != ZERO_F32), "%s", attention_path(a));
#endif
        test_check(!strncmp(attention_path(b), "own kernel (f32 tiles): ", 24), "%s",
                   attention_path(b));
        for (int fixed = 0; fixed < 2; fixed++) {
            attention *c = make(&shape, (zero_type)type, fixed);
            test_check(attention_bytes(c) == attention_scratch_bytes(&shape, (zero_type)type, fixed)
                           || !ON_EMULATION,
                       "%s: %zu bytes, planned %zu", attention_path(c), attention_bytes(c),
                       attention_scratch_bytes(&shape, (zero_type)type, fixed));
            attention_destroy(c);
        }
        test_check(attention_bytes(b) == attention_scratch_bytes(&odd, (zero_type)type, 0),
                   "memory without");
        attention_destroy(a);
        attention_destroy(b);
    }
}

#if defined(GPT2_WITH_CUDNN) && defined(EMULATED_LAUNCH)
/* The plan has what cuDNN requests, which is what is allocated. On a Hopper of cuDNN 9.19 that is
   also what cuda_bytes.h computes for machines without a GPU. */
static void test_asking(void) {
    const attention_shape shapes[] = {
        {2, 40, 3, 64}, {3, 129, 2, 128}, {1, 23, 2, 64}, {2, 8, 1, 20}};
    cudnn_emulation *e = cudnn_emulated();
    for (int k = 0; k < 2 * 2 * 4; k++) {
        const attention_shape *s = &shapes[k / 4];
        const int fixed = k & 1, other = k >> 1 & 1;
        const ops_limits l = {s->batch, s->heads, s->seq_len, s->head_size, 0, 0, 0};
        const ops_settings settings = {ZERO_BF16, ZERO_BF16, NULL, 0, !fixed};
        const size_t formula = cuda_delta_bytes(s->batch, s->heads, s->seq_len)
                               + cuda_attention_bytes(&l, &settings, HOPPER);
        attention_forget();
        e->more_bytes = other ? 4096 : 0;
        const size_t planned = attention_scratch_bytes(s, ZERO_BF16, fixed);
        const uint64_t calls = e->calls;
        attention *a = make(s, ZERO_BF16, fixed);
        test_check(attention_bytes(a) == planned, "%s: %zu bytes, planned %zu", attention_path(a),
                   attention_bytes(a), planned);
        test_check(planned == formula + (with_cudnn(a) ? (size_t)e->more_bytes : 0),
                   "%s: planned %zu bytes, computed %zu", attention_path(a), planned, formula);
        test_check(e->calls - calls < 8, "the plans of the question are used: %d calls",
                   (int)(e->calls - calls));
        attention_destroy(a);
    }
    e->more_bytes = 0;
    attention_forget();
    e->engines = 0; /* no kernels: the own ones need no workspace */
    test_check(attention_scratch_bytes(&shapes[0], ZERO_BF16, 1) == cuda_delta_bytes(2, 3, 40),
               "without a kernel of cuDNN");
    e->engines = 3;
    attention_forget();
    const size_t right = attention_scratch_bytes(&shapes[0], ZERO_BF16, 1);
    attention_forget();
    e->calls = 0;
    e->fail_call = 1;
    test_check(attention_scratch_bytes(&shapes[0], ZERO_BF16, 1) == right,
               "where cuDNN does not answer, the sizes of cuda_bytes.h are planned");
    e->fail_call = 0;
}

/* A device with memory for a number of heads' workspaces: backward runs in as many pieces as it
   must, of the batch and then of the heads, and gives the bits of one piece. */
static void test_little_memory(void) {
    const attention_shape shape = {4, 24, 3, 64};
    const size_t head = cuda_head_bytes(shape.seq_len, HOPPER), more = cuda_other_bytes(HOPPER);
    const struct {
        size_t heads; /* for which there is memory */
        int pieces;
    } cases[] = {{12, 1}, {11, 2}, {6, 2}, {5, 4}, {3, 4}, {2, 12}, {1, 12}};
    problem c;
    problem_make(&c, shape, ZERO_BF16, 1);
    const size_t live = emulation_live_bytes(), delta = cuda_delta_bytes(4, 3, 24);
    uint64_t whole = 0;
    char text[64];
    test_check(attention_spare_bytes(&shape, ZERO_BF16, 1) == 11 * head
                   && attention_spare_bytes(&shape, ZERO_BF16, 0) == 0
                   && attention_spare_bytes(&shape, ZERO_F32, 1) == 0,
               "all but one head can be lacking: %zu", attention_spare_bytes(&shape, ZERO_BF16, 1));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        emulation_memory(live + delta + cases[i].heads * head + more);
        attention *a = make(&shape, ZERO_BF16, 1);
        const uint64_t runs = cudnn_emulated()->runs;
        test_check(with_cudnn(a) && !run(a, &c), "memory for %zu heads: %s, %s", cases[i].heads,
                   attention_path(a), attention_error(a));
        if (!i) whole = fingerprint(&c);
        test_check(fingerprint(&c) == whole, "the bits of one piece");
        test_check((int)(cudnn_emulated()->runs - runs) == 1 + cases[i].pieces,
                   "memory for %zu heads: %d runs, expected forward and %d pieces", cases[i].heads,
                   (int)(cudnn_emulated()->runs - runs), cases[i].pieces);
        test_check(attention_bytes(a) <= delta + cases[i].heads * head + more, "%zu bytes",
                   attention_bytes(a));
        (void)snprintf(text, sizeof text, ", %d pieces", cases[i].pieces);
        test_check(!strstr(attention_path(a), text) == (cases[i].pieces == 1), "%s",
                   attention_path(a));
        attention_destroy(a);
    }
    emulation_memory(live + delta + head);
    attention *a = NULL;
    const zero_result r = attention_create(&a, &shape, ZERO_BF16, stream, 1);
    test_check(r == ZERO_ERR_MEMORY && strstr(attention_error(a), "bytes of device memory"),
               "memory for less than one head: %s", attention_error(a));
    attention_destroy(a);
    emulation_memory(0);
    problem_free(&c);
}

/* Where memory does not suffice for the workspace, backward runs in pieces of the batch, or of the
   heads, and gives the same bits. */
static void test_pieces(void) {
    const attention_shape shapes[] = {{2, 24, 3, 64}, {5, 24, 2, 64}, {1, 24, 5, 64}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        problem c;
        problem_make(&c, shapes[i], ZERO_BF16, 1);
        attention *a = make(&shapes[i], ZERO_BF16, 1);
        test_check(!run(a, &c), "whole: %s", attention_error(a));
        const uint64_t whole = fingerprint(&c), runs = cudnn_emulated()->runs;
        const size_t bytes = attention_bytes(a);
        attention_destroy(a);
        emulation_fail(EMULATION_ALLOCATION, 2); /* the workspace; the first one is delta */
        a = make(&shapes[i], ZERO_BF16, 1);
        test_check(with_cudnn(a) && attention_bytes(a) < bytes, "%s: %zu bytes instead of %zu",
                   attention_path(a), attention_bytes(a), bytes);
        test_check(!run(a, &c) && fingerprint(&c) == whole, "pieces give the same bits: %s",
                   attention_error(a));
        judge(&c, 1, "pieces");
        test_check(cudnn_emulated()->runs - runs == (i == 0 ? 3 : 4), "%d runs",
                   (int)(cudnn_emulated()->runs - runs));
        attention_destroy(a);
        problem_free(&c);
    }
    const attention_shape uneven = {2, 23, 3, 64};
    emulation_fail(EMULATION_ALLOCATION, 2);
    attention *a = make(&uneven, ZERO_BF16, 1);
    test_check(strstr(attention_path(a), "is no multiple of 4") != NULL, "%s", attention_path(a));
    attention_destroy(a);
}

/* Graphs have the operations that are known to be accepted, and the right engine runs. */
static void test_cudnn_engines(void) {
    const attention_shape shape = {1, 24, 2, 64};
    cudnn_emulation *e = cudnn_emulated();
    problem c;
    attention_forget();
    problem_make(&c, shape, ZERO_BF16, 1);
    for (int deterministic = 0; deterministic < 2; deterministic++) {
        attention *a = make(&shape, ZERO_BF16, deterministic);
        forget(&c);
        test_check(!attention_forward(a, at(&c.out_d), (float *)at(&c.lse_d), at(&c.qkv_d), &shape)
                       && e->operations == 14 && e->engine == 1 + deterministic,
                   "forward: %d operations, engine %d", e->operations, e->engine);
        test_check(!run(a, &c) && e->operations == 22 - deterministic
                       && e->engine == 1 + deterministic,
                   "backward: %d operations, engine %d", e->operations, e->engine);
        test_check(!strstr(attention_path(a), "deterministic") == !deterministic, "%s",
                   attention_path(a));
        attention_destroy(a);
        const int64_t kept = e->live;
        const uint64_t calls = e->calls;
        a = make(&shape, ZERO_BF16, deterministic);
        test_check(e->live == kept && e->calls - calls < 8,
                   "a second context has the plans: %d calls", (int)(e->calls - calls));
        test_check(!run(a, &c), "they run");
        judge(&c, 1, "plans that were kept");
        attention_destroy(a);
        attention_forget();
        test_check(e->live == 0, "%d descriptors are left", (int)e->live);
    }
    for (int engines = 0; engines < 3; engines++) {
        e->engines = engines;
        attention *a = make(&shape, ZERO_BF16, 1);
        test_check(!with_cudnn(a) && strstr(attention_path(a), "own kernel (f32 tiles): cuDNN"),
                   "%d engines: %s", engines, attention_path(a));
        printf("%d engines: %s\n", engines, attention_path(a));
        test_check(!run(a, &c) && !attention_error(a)[0], "the own kernel runs instead");
        judge(&c, 0, attention_path(a));
        attention_destroy(a);
        a = make(&shape, ZERO_BF16, 1);
        test_check(!with_cudnn(a) && strstr(attention_path(a), "own kernel (f32 tiles): cuDNN"),
                   "a second context knows that, too: %s", attention_path(a));
        attention_destroy(a);
        attention_forget();
        test_check(e->live == 0, "%d descriptors are left", (int)e->live);
    }
    e->engines = 3;
    problem_free(&c);
}

/* Every call of cuDNN fails in turn: an error with a sentence, or another plan, and no leak. */
static void test_cudnn_faults(void) {
    const attention_shape shape = {1, 9, 1, 64};
    cudnn_emulation *e = cudnn_emulated();
    int failed = 0, fell_back = 0;
    problem c;
    problem_make(&c, shape, ZERO_F16, 1);
    for (uint64_t k = 1;; k++) {
        attention *a = NULL;
        e->calls = 0;
        e->fail_call = k;
        zero_result r = attention_create(&a, &shape, ZERO_F16, stream, k % 2);
        if (!r) r = run(a, &c);
        const int reached = e->calls >= k;
        e->fail_call = 0;
        if (r)
            test_check(r == ZERO_ERR_DEVICE && strstr(attention_error(a), "told to fail"),
                       "call %d fails: %s", (int)k, attention_error(a));
        failed += r != ZERO_OK;
        if (reached && !r) {
            fell_back++;
            test_check(!run(a, &c), "call %d fails, but it goes on: %s", (int)k,
                       attention_error(a));
            judge(&c, with_cudnn(a), attention_path(a));
        }
        attention_destroy(a);
        attention_forget();
        if (e->live) test_check(0, "call %d fails: %d descriptors are left", (int)k, (int)e->live);
        if (!reached) break;
    }
    printf("cuDNN's calls: %d failures are errors, %d lead to another plan\n", failed, fell_back);
    test_check(failed > 300 && fell_back > 2, "all of them were tried");
    problem_free(&c);
}
#endif

#ifdef EMULATED_LAUNCH
static void test_cuda_faults(void) {
    const attention_shape shape = {1, 9, 1, 64};
    const size_t live = emulation_live();
    problem c;
    problem_make(&c, shape, ZERO_BF16, 1);
    uint64_t calls = 1;
    for (uint64_t k = 1; k <= calls; k++) {
        attention *a = NULL;
        emulation_fail(EMULATION_ANY, k);
        zero_result r = attention_create(&a, &shape, ZERO_BF16, stream, 0);
        if (!r) r = attention_forward(a, at(&c.out_d), (float *)at(&c.lse_d), at(&c.qkv_d), &shape);
        if (!r)
            r = attention_backward(a, at(&c.dqkv_d), at(&c.dout_d), at(&c.out_d),
                                   (const float *)at(&c.lse_d), at(&c.qkv_d), &shape);
        calls = emulation_calls(EMULATION_ANY);
        const int reached = calls >= k;
        emulation_fail(EMULATION_ANY, 0);
        test_check(!reached || (r && attention_error(a)[0]), "CUDA's call %d fails: %s", (int)k,
                   attention_error(a));
        attention_destroy(a);
        if (!reached) break;
        calls = k + 1;
    }
    problem_free(&c);
    test_check(emulation_live() == live, "what was allocated is freed");
    (void)cudaGetLastError(); /* of what attention_destroy met */
}
#else
/* Milliseconds of one call, after one that does not count. */
static double time_of(attention *a, const problem *c, int backward) {
    enum { TIMES = 20 };
    cudaEvent_t start, stop;
    float ms = 0;
    MUST(cudaEventCreate(&start));
    MUST(cudaEventCreate(&stop));
    for (int i = -1; i < TIMES; i++) {
        if (i == 0) MUST(cudaEventRecord(start, stream));
        if (backward)
            (void)attention_backward(a, at(&c->dqkv_d), at(&c->dout_d), at(&c->out_d),
                                     (const float *)at(&c->lse_d), at(&c->qkv_d), &c->shape);
        else
            (void)attention_forward(a, at(&c->out_d), (float *)at(&c->lse_d), at(&c->qkv_d),
                                    &c->shape);
    }
    MUST(cudaEventRecord(stop, stream));
    MUST(cudaEventSynchronize(stop));
    MUST(cudaEventElapsedTime(&ms, start, stop));
    MUST(cudaEventDestroy(start));
    MUST(cudaEventDestroy(stop));
    return (double)ms / TIMES;
}

/* Both ways at a size of training: speed, and that they agree, without a reference. */
static void bench(zero_type type, size_t head_size) {
    const attention_shape tiny = {1, 1, 1, head_size};
    const attention_shape shape = {16, 1024, 768 / head_size, head_size};
    /* products of the causal half: 2 forward, 5 backward */
    const double product = (double)(shape.batch * shape.heads * shape.head_size)
                           * (double)(shape.seq_len * shape.seq_len);
    const size_t n = shape.batch * shape.seq_len * 768, bytes = zero_type_bytes(type);
    problem c;
    problem_make(&c, tiny, type, 1);
    buffer *all[] = {&c.qkv_d, &c.dqkv_d, &c.dout_d, &c.out_d, &c.lse_d};
    const size_t sizes[] = {3 * n * bytes, 3 * n * bytes, n * bytes, n * bytes, n / head_size * 4};
    for (int i = 0; i < 5; i++) {
        buffer_free(all[i]);
        *all[i] = buffer_make(sizes[i]);
    }
    float *x = numbers(3 * n, type, 1, 5);
    upload(&c.qkv_d, type, x, 3 * n);
    upload(&c.dout_d, type, x, n);
    free(x);
    c.shape = shape;
    attention *a = make(&shape, type, 0);
    for (int own = !with_cudnn(a); own < 2; own++) {
        if (own) attention_use_own(a);
        const double forward = time_of(a, &c, 0), backward = time_of(a, &c, 1);
        printf("%-4s B16 T1024 C768 D%-3zu forward %.3f ms, %.1f TFLOP/s; backward %.3f ms, "
               "%.1f TFLOP/s; %s\n",
               type_names[type], head_size, forward, 2 * product / forward * 1e-9, backward,
               5 * product / backward * 1e-9, attention_path(a));
    }
    attention_destroy(a);
    problem_free(&c);
}
#endif

int main(int argc, char **argv) {
    MUST(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    test_paths();
    test_arguments();
    test_nothing();
    for (int type = 0; type < ZERO_TYPES; type++) {
        test_shapes((zero_type)type);
        test_smaller((zero_type)type);
        test_same_bits((zero_type)type);
    }
#ifdef EMULATED_LAUNCH
    (void)argc;
    (void)argv;
    test_cuda_faults();
#ifdef GPT2_WITH_CUDNN
    test_asking();
    test_little_memory();
    test_pieces();
    test_cudnn_engines();
    test_cudnn_faults();
#endif
    test_check(!emulation_found(), "the emulation found: %s", emulation_found());
#else
    for (int type = 0; argc > 1 && !strcmp(argv[1], "bench") && type < ZERO_TYPES; type++) {
        bench((zero_type)type, 64);
        bench((zero_type)type, 128);
    }
#endif
    for (int cudnn = 0; cudnn < 2; cudnn++)
        for (int type = 0; type < ZERO_TYPES; type++) {
            const errors *w = &worst[cudnn][type];
            if (w->out > 0)
                printf("largest errors, %s %-4s: out %.1e lse %.1e dq %.1e dk %.1e dv %.1e\n",
                       cudnn ? "cuDNN" : "own  ", type_names[type], w->out, w->lse, w->dq, w->dk,
                       w->dv);
        }
    attention_forget();
    MUST(cudaStreamDestroy(stream));
    return test_summary();
}

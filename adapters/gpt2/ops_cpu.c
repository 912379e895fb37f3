/* ops_cpu.c - ops.h on the CPU. Matrix products are oneDNN's (2.6 or 3.x), the rest is here.

   Build: cc -std=c11 -O3 -march=native -ffp-contract=off -fno-math-errno -fopenmp -c ops_cpu.c

   Determinism. Elements are computed by the same operations whether they fall into a vector or a
   tail, since contraction is off and every fused multiply-add is written out. Sums over columns
   have a fixed order. Sums over rows are made per thread, over a range of rows that depends on the
   number of threads alone, then added in thread order. */
#include "ops.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <dnnl.h>
#ifdef _OPENMP
#include <omp.h>
#define OMP(x) _Pragma(#x)
#else
#define OMP(x)
#endif

#ifdef __FMA__
#define FMA(a, b, c) __builtin_fmaf(a, b, c)
#else
#define FMA(a, b, c) ((a) * (b) + (c))
#endif

/* Attention works in tiles of TILE_M x TILE_N, as many as registers hold; rows of its scratch
   memory are multiples of PAD, which TILE_N divides. vec_zip_low and _high interleave the lower and
   the upper halves of two vectors. */
#if defined(__AVX512F__)
#include <immintrin.h>
enum { LANES = 16, TILE_M = 8 };
typedef __m512 vec;
static inline vec vec_set(float x) { return _mm512_set1_ps(x); }
static inline vec vec_load(const float *p) { return _mm512_load_ps(p); }
static inline void vec_store(float *p, vec x) { _mm512_store_ps(p, x); }
static inline vec vec_fma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
static inline vec vec_zip_low(vec a, vec b) {
    const __m512i from = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    return _mm512_permutex2var_ps(a, from, b);
}
static inline vec vec_zip_high(vec a, vec b) {
    const __m512i from =
        _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    return _mm512_permutex2var_ps(a, from, b);
}
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
enum { LANES = 8, TILE_M = 4 };
typedef __m256 vec;
static inline vec vec_set(float x) { return _mm256_set1_ps(x); }
static inline vec vec_load(const float *p) { return _mm256_load_ps(p); }
static inline void vec_store(float *p, vec x) { _mm256_store_ps(p, x); }
static inline vec vec_fma(vec a, vec b, vec c) { return _mm256_fmadd_ps(a, b, c); }
static inline vec vec_zip_low(vec a, vec b) {
    return _mm256_permute2f128_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b), 0x20);
}
static inline vec vec_zip_high(vec a, vec b) {
    return _mm256_permute2f128_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b), 0x31);
}
#else
enum { LANES = 4, TILE_M = 4 };
typedef struct vec {
    float f[LANES];
} vec;
static inline vec vec_set(float x) {
    vec v;
    for (int i = 0; i < LANES; i++) v.f[i] = x;
    return v;
}
static inline vec vec_load(const float *p) {
    vec v;
    for (int i = 0; i < LANES; i++) v.f[i] = p[i];
    return v;
}
static inline void vec_store(float *p, vec x) {
    for (int i = 0; i < LANES; i++) p[i] = x.f[i];
}
static inline vec vec_fma(vec a, vec b, vec c) {
    for (int i = 0; i < LANES; i++) c.f[i] = FMA(a.f[i], b.f[i], c.f[i]);
    return c;
}
static inline vec vec_zip_low(vec a, vec b) {
    vec v;
    for (int i = 0; i < LANES; i++) v.f[i] = (i % 2 ? b : a).f[i / 2];
    return v;
}
static inline vec vec_zip_high(vec a, vec b) {
    vec v;
    for (int i = 0; i < LANES; i++) v.f[i] = (i % 2 ? b : a).f[(LANES + i) / 2];
    return v;
}
#endif
enum { TILE_N = 2 * LANES, PAD = 32, QUERIES = 64 /* queries whose scores are held at once */ };

static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }
static size_t least(size_t a, size_t b) { return a < b ? a : b; }

/* ---- context ------------------------------------------------------------------------------- */

/* What a thread needs for one attention head. T' = T rounded up to PAD, H' = head size likewise;
   everything beyond T and the head size is zero. Panels are TILE_N keys wide:
   kt[p][d][c] = k[p * TILE_N + c][d]. */
typedef struct head_work {
    float *q, *k, *v, *dout; /* (T', H'); q times 1 / sqrt(head size) */
    float *kt, *vt;          /* (T' / TILE_N, H', TILE_N) */
    float *dk, *dv;          /* (T', H') */
    float *p, *dp;           /* (QUERIES, T'): scores, then probabilities; and their gradients */
    float *tile;             /* (TILE_M, H') */
    float *none;             /* (H') zeros */
    float *lse, *delta;      /* (T') */
} head_work;

struct ops_ctx {
    ops_limits limits;
    size_t threads;
    float *scratch;       /* head_work of each thread, then its partial sums */
    size_t thread_floats; /* of scratch per thread */
    size_t sums_at;       /* where partial sums begin in a thread's part; limits.width floats */
    zero_result status;
    char sentence[256];
};

static size_t thread_count(void) {
#ifdef _OPENMP
    return (size_t)omp_get_max_threads();
#else
    return 1;
#endif
}

static size_t this_thread(void) {
#ifdef _OPENMP
    return (size_t)omp_get_thread_num();
#else
    return 0;
#endif
}

/* Keeps the first error. */
static void fail(ops_ctx *o, zero_result status, const char *format, ...) {
    va_list list;
    va_start(list, format);
    if (!o->status) (void)vsnprintf(o->sentence, sizeof o->sentence, format, list);
    va_end(list);
    if (!o->status) o->status = status;
}

static float *take(float **at, size_t floats) {
    float *p = *at;
    *at += floats;
    return p;
}

/* Cuts a thread's scratch memory for heads of T, H. */
static void cut_head_work(head_work *w, float *memory, size_t T, size_t H) {
    float *at = memory;
    const size_t t = round_up(T, PAD), th = t * round_up(H, PAD);
    w->q = take(&at, th);
    w->k = take(&at, th);
    w->v = take(&at, th);
    w->dout = take(&at, th);
    w->kt = take(&at, th);
    w->vt = take(&at, th);
    w->dk = take(&at, th);
    w->dv = take(&at, th);
    w->p = take(&at, QUERIES * t);
    w->dp = take(&at, QUERIES * t);
    w->tile = take(&at, TILE_M * round_up(H, PAD));
    w->none = take(&at, round_up(H, PAD));
    w->lse = take(&at, t);
    w->delta = take(&at, t);
}

static size_t thread_floats(const ops_limits *limits, size_t *sums_at) {
    const size_t t = round_up(limits->seq_len, PAD), h = round_up(limits->head_size, PAD);
    *sums_at = 8 * t * h + 2 * QUERIES * t + (TILE_M + 1) * h + 2 * t; /* as cut_head_work */
    return *sums_at + round_up(limits->width, PAD);
}

size_t ops_scratch_bytes(const ops_limits *limits) {
    size_t sums_at;
    return thread_floats(limits, &sums_at) * thread_count() * sizeof(float);
}

zero_result ops_create(ops_ctx **o, const ops_limits *limits) {
    ops_ctx *made = (ops_ctx *)calloc(1, sizeof *made);
    *o = NULL;
    if (!made) return ZERO_ERR_MEMORY;
    made->limits = *limits;
    made->threads = thread_count();
    made->thread_floats = thread_floats(limits, &made->sums_at);
    made->scratch = (float *)ops_alloc(made->thread_floats * made->threads * sizeof(float));
    if (!made->scratch) {
        free(made);
        return ZERO_ERR_MEMORY;
    }
    *o = made;
    return ZERO_OK;
}

void ops_destroy(ops_ctx *o) {
    if (!o) return;
    ops_free(o->scratch);
    free(o);
}

zero_result ops_status(const ops_ctx *o, const char **sentence) {
    if (sentence) *sentence = o->sentence;
    return o->status;
}

void *ops_alloc(size_t bytes) {
    return bytes > SIZE_MAX - 64 ? NULL : aligned_alloc(64, round_up(bytes ? bytes : 1, 64));
}

void ops_free(void *memory) { free(memory); }

void ops_upload(ops_ctx *o, void *device, const void *host, size_t bytes) {
    (void)o;
    if (bytes) memcpy(device, host, bytes);
}

void ops_download(ops_ctx *o, void *host, const void *device, size_t bytes) {
    (void)o;
    if (bytes) memcpy(host, device, bytes);
}

double ops_sum(ops_ctx *o, const float *x, size_t n) {
    double sum = 0;
    (void)o;
    for (size_t i = 0; i < n; i++) sum += (double)x[i];
    return sum;
}

/* ---- linear layers ------------------------------------------------------------------------- */

static const char *dnnl_sentence(dnnl_status_t status) {
    switch (status) {
    case dnnl_success: return "success";
    case dnnl_out_of_memory: return "out of memory";
    case dnnl_invalid_arguments: return "invalid arguments";
    case dnnl_unimplemented: return "not implemented";
    case dnnl_runtime_error: return "runtime error";
    default: return "an error";
    }
}

/* c (m, n) = a (m, k) b (k, n), or += with beta 1. 'T': the operand lies transposed. No gaps. */
static void product(ops_ctx *o, char ta, char tb, size_t m, size_t n, size_t k, const float *a,
                    const float *b, float beta, float *c) {
    dnnl_status_t status;
    if (o->status || !m || !n || !k) return;
    status = dnnl_sgemm(ta, tb, (dnnl_dim_t)m, (dnnl_dim_t)n, (dnnl_dim_t)k, 1.0f, a,
                        (dnnl_dim_t)(ta == 'T' ? m : k), b, (dnnl_dim_t)(tb == 'T' ? k : n), beta,
                        c, (dnnl_dim_t)n);
    if (status != dnnl_success)
        fail(o, status == dnnl_out_of_memory ? ZERO_ERR_MEMORY : ZERO_ERR_UNSUPPORTED,
             "oneDNN's product of (%zu, %zu) and (%zu, %zu) says: %s", m, k, k, n,
             dnnl_sentence(status));
}

void ops_linear(ops_ctx *o, float *y, const float *x, const float *w, size_t R, size_t I,
                size_t O) {
    product(o, 'N', 'T', R, O, I, x, w, 0.0f, y);
}

void ops_linear_dx(ops_ctx *o, float *dx, const float *dy, const float *w, size_t R, size_t I,
                   size_t O) {
    product(o, 'N', 'N', R, I, O, dy, w, 0.0f, dx);
}

void ops_linear_dw(ops_ctx *o, float *dw, const float *dy, const float *x, size_t R, size_t I,
                   size_t O) {
    product(o, 'T', 'N', O, I, R, dy, x, 1.0f, dw);
}

static double seconds(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The best of 8 products of n x n matrices; a, b, c are (n, n). */
static double product_rate(size_t n, const float *a, const float *b, float *c) {
    const dnnl_dim_t d = (dnnl_dim_t)n;
    double best = 0;
    for (int i = 0; i < 8; i++) {
        double t = seconds();
        if (dnnl_sgemm('N', 'N', d, d, d, 1.0f, a, d, b, d, 0.0f, c, d) != dnnl_success) return 0;
        t = seconds() - t;
        if (i && t > 0 && 2e0 * (double)(n * n * n) / t > best)
            best = 2e0 * (double)(n * n * n) / t;
    }
    return best;
}

double ops_matmul_rate(int threads) {
    enum { N = 768 };
    float *memory = (float *)ops_alloc(3 * N * N * sizeof(float));
    double rate;
    if (!memory) return 0;
    for (size_t i = 0; i < 3 * N * N; i++) memory[i] = (float)(i % 7) - 3.0f;
#ifdef _OPENMP
    const int before = omp_get_max_threads();
    if (threads > 0) omp_set_num_threads(threads);
#endif
    rate = product_rate(N, memory, memory + N * N, memory + 2 * N * N);
#ifdef _OPENMP
    omp_set_num_threads(before);
#endif
    (void)threads;
    ops_free(memory);
    return rate;
}

/* ---- sums over rows ------------------------------------------------------------------------ */

static float *thread_sums(ops_ctx *o) {
    return o->scratch + this_thread() * o->thread_floats + o->sums_at;
}

/* sums (C) += the rows of dy (rows, C), four at a time. */
static void add_rows(float *sums, const float *dy, size_t rows, size_t C) {
    size_t r = 0;
    for (; r + 4 <= rows; r += 4) {
        const float *a = dy + r * C, *b = a + C, *c = b + C, *d = c + C;
        OMP(omp simd)
        for (size_t i = 0; i < C; i++) sums[i] += (a[i] + b[i]) + (c[i] + d[i]);
    }
    for (; r < rows; r++) {
        OMP(omp simd)
        for (size_t i = 0; i < C; i++) sums[i] += dy[r * C + i];
    }
}

/* out (C) += what threads have summed from column `first` on, in thread order. */
static void add_sums(const ops_ctx *o, float *out, size_t first, size_t C) {
    for (size_t t = 0; t < o->threads; t++) {
        const float *sums = o->scratch + t * o->thread_floats + o->sums_at + first;
        OMP(omp simd)
        for (size_t i = 0; i < C; i++) out[i] += sums[i];
    }
}

/* Rows of thread t: [*first, *end). */
static void thread_rows(const ops_ctx *o, size_t R, size_t *first, size_t *end) {
    *first = R * this_thread() / o->threads;
    *end = R * (this_thread() + 1) / o->threads;
}

/* Opens a region in which every thread has its range of rows and its cleared sums. */
#define TEAM(o) OMP(omp parallel num_threads((int)(o)->threads))
#define ROWS(o) OMP(omp parallel for num_threads((int)(o)->threads) schedule(static))

void ops_bias_backward(ops_ctx *o, float *dbias, const float *dy, size_t R, size_t C) {
    if (o->status || !R) return;
    TEAM(o) {
        float *sums = thread_sums(o);
        size_t r, end;
        thread_rows(o, R, &r, &end);
        memset(sums, 0, C * sizeof(float));
        add_rows(sums, dy + r * C, end - r, C);
    }
    add_sums(o, dbias, 0, C);
}

void ops_add_bias(ops_ctx *o, float *out, const float *x, const float *y, const float *bias,
                  size_t R, size_t C) {
    if (o->status) return;
    ROWS(o)
    for (size_t r = 0; r < R; r++) {
        const size_t at = r * C;
        OMP(omp simd)
        for (size_t i = 0; i < C; i++) out[at + i] = x[at + i] + (y[at + i] + bias[i]);
    }
}

/* ---- embeddings ---------------------------------------------------------------------------- */

void ops_embed(ops_ctx *o, float *out, const int *tokens, const float *wte, const float *wpe,
               size_t R, size_t T, size_t C) {
    if (o->status) return;
    ROWS(o)
    for (size_t r = 0; r < R; r++) {
        const float *word = wte + (size_t)tokens[r] * C, *place = wpe + r % T * C;
        OMP(omp simd)
        for (size_t i = 0; i < C; i++) out[r * C + i] = word[i] + place[i];
    }
}

/* Threads divide the columns, not the rows: two rows may hold the same token. */
void ops_embed_backward(ops_ctx *o, float *dwte, float *dwpe, const float *dout, const int *tokens,
                        size_t R, size_t T, size_t C) {
    if (o->status) return;
    TEAM(o) {
        size_t first, end;
        thread_rows(o, C, &first, &end);
        for (size_t r = 0; r < R; r++) {
            float *word = dwte + (size_t)tokens[r] * C, *place = dwpe + r % T * C;
            OMP(omp simd)
            for (size_t i = first; i < end; i++) {
                word[i] += dout[r * C + i];
                place[i] += dout[r * C + i];
            }
        }
    }
}

/* ---- elementary functions ------------------------------------------------------------------ */

static inline uint32_t bits_of(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float of_bits(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* A number whose order among others is that of x; NaN is above all. Compilers make vectors of a
   maximum of these, but not of one of floats, unless told that there is no NaN. */
static inline int32_t order_of(float x) {
    int32_t i;
    memcpy(&i, &x, sizeof i);
    return i < 0 ? i ^ INT32_MAX : i;
}

static inline float of_order(int32_t i) {
    float x;
    i = i < 0 ? i ^ INT32_MAX : i;
    memcpy(&x, &i, sizeof x);
    return x;
}

/* e^x within 1.5 ulp for -87 < x < 88; 0 below, e^88 above; NaN stays NaN.
   x = n ln 2 + r; adding 1.5 * 2^23 rounds to n and leaves it in the low bits of the sum. ln 2 is
   split so that n times its first part is exact. The polynomial is fitted to (e^r - 1 - r) / r^2
   on |r| < 0.347, relative error of e^r 4e-9. */
static inline float exp_of(float x) {
    const float top = x > 88.0f ? 88.0f : x;
    const float shifted = FMA(top, 1.44269504f, 12582912.0f), n = shifted - 12582912.0f;
    const float r = FMA(n, 2.12194440e-4f, FMA(n, -0.693359375f, top));
    float p = FMA(r, 1.3751091e-3f, 8.3690036e-3f);
    p = FMA(p, r, 4.1669547e-2f);
    p = FMA(p, r, 1.6666518e-1f);
    p = FMA(p, r, 4.9999989e-1f);
    p = FMA(p, r * r, r) + 1.0f;
    p = p * of_bits((bits_of(shifted) << 23) + 0x3F800000u);
    return x < -87.0f ? 0.0f : p;
}

/* ---- layer norm ---------------------------------------------------------------------------- */

static inline void norm_row(float *out, const float *x, float mean, float rstd, const float *w,
                            const float *b, size_t C) {
    OMP(omp simd)
    for (size_t i = 0; i < C; i++) out[i] = FMA((x[i] - mean) * rstd, w[i], b[i]);
}

void ops_norm(ops_ctx *o, float *out, float *mean, float *rstd, const float *x, const float *w,
              const float *b, size_t R, size_t C) {
    if (o->status) return;
    ROWS(o)
    for (size_t r = 0; r < R; r++) {
        const float *row = x + r * C;
        float sum = 0, squares = 0;
        OMP(omp simd reduction(+ : sum))
        for (size_t i = 0; i < C; i++) sum += row[i];
        const float m = sum / (float)C;
        OMP(omp simd reduction(+ : squares))
        for (size_t i = 0; i < C; i++) squares += (row[i] - m) * (row[i] - m);
        mean[r] = m;
        rstd[r] = 1.0f / sqrtf(squares / (float)C + 1e-5f);
        norm_row(out + r * C, row, m, rstd[r], w, b, C);
    }
}

void ops_norm_again(ops_ctx *o, float *out, const float *mean, const float *rstd, const float *x,
                    const float *w, const float *b, size_t R, size_t C) {
    if (o->status) return;
    ROWS(o)
    for (size_t r = 0; r < R; r++) norm_row(out + r * C, x + r * C, mean[r], rstd[r], w, b, C);
}

/* With n = (x - mean) rstd and g = dout w: dx = rstd (g - mean(g) - n mean(g n)). */
static void norm_row_backward(float *dx, float *dw, float *db, const float *dout, const float *x,
                              float mean, float rstd, const float *w, int store, size_t C) {
    float sum = 0, dot = 0;
    OMP(omp simd reduction(+ : sum, dot))
    for (size_t i = 0; i < C; i++) {
        const float n = (x[i] - mean) * rstd, g = dout[i] * w[i];
        sum += g;
        dot += g * n;
        dw[i] += dout[i] * n;
        db[i] += dout[i];
    }
    sum /= (float)C;
    dot /= (float)C;
    OMP(omp simd)
    for (size_t i = 0; i < C; i++) {
        const float n = (x[i] - mean) * rstd;
        const float d = rstd * (dout[i] * w[i] - sum - n * dot);
        dx[i] = store ? d : dx[i] + d;
    }
}

void ops_norm_backward(ops_ctx *o, float *dx, float *dw, float *db, const float *dout,
                       const float *x, const float *mean, const float *rstd, const float *w,
                       int store, size_t R, size_t C) {
    if (o->status || !R) return;
    TEAM(o) {
        float *sums = thread_sums(o);
        size_t first, end;
        thread_rows(o, R, &first, &end);
        memset(sums, 0, 2 * C * sizeof(float));
        for (size_t r = first; r < end; r++)
            norm_row_backward(dx + r * C, sums, sums + C, dout + r * C, x + r * C, mean[r], rstd[r],
                              w, store, C);
    }
    add_sums(o, dw, 0, C);
    add_sums(o, db, C, C);
}

/* ---- GELU ---------------------------------------------------------------------------------- */

/* 0.5 (1 + tanh u) = 1 / (1 + e^-2u), so that GELU is x s(x), s the logistic function of
   2 sqrt(2 / pi) (x + 0.044715 x^3). */
#define GELU_A 1.5957691f   /* 2 sqrt(2 / pi) */
#define GELU_B 0.071354816f /* the same times 0.044715 */

/* e^-2u */
static inline float gelu_exp(float x) { return exp_of(-x * FMA(GELU_B, x * x, GELU_A)); }

void ops_gelu(ops_ctx *o, float *out, const float *x, const float *bias, size_t R, size_t C) {
    if (o->status) return;
    ROWS(o)
    for (size_t r = 0; r < R; r++) {
        const size_t at = r * C;
        OMP(omp simd)
        for (size_t i = 0; i < C; i++) {
            const float v = x[at + i] + bias[i];
            out[at + i] = v * (1.0f / (1.0f + gelu_exp(v)));
        }
    }
}

/* d/dx (x s) = s + x s (1 - s) (A + 3 B x^2), where 1 - s = e^-2u s */
static void gelu_row_backward(float *d, float *sums, float *out, const float *x, const float *bias,
                              size_t C) {
    OMP(omp simd)
    for (size_t i = 0; i < C; i++) {
        const float v = x[i] + bias[i], e = gelu_exp(v), s = 1.0f / (1.0f + e), y = v * s;
        const float slope = FMA(y * (e * s), FMA(3.0f * GELU_B, v * v, GELU_A), s);
        out[i] = y;
        d[i] *= slope;
        sums[i] += d[i];
    }
}

void ops_gelu_backward(ops_ctx *o, float *d, float *dbias, float *out, const float *x,
                       const float *bias, size_t R, size_t C) {
    if (o->status || !R) return;
    TEAM(o) {
        float *sums = thread_sums(o);
        size_t first, end;
        thread_rows(o, R, &first, &end);
        memset(sums, 0, C * sizeof(float));
        for (size_t r = first; r < end; r++)
            gelu_row_backward(d + r * C, sums, out + r * C, x + r * C, bias, C);
    }
    add_sums(o, dbias, 0, C);
}

/* ---- attention ----------------------------------------------------------------------------- */

/* c (TILE_M, TILE_N) = a (TILE_M, n) b (n, TILE_N), or += . Element (i, k) of a is a[i am + k ak].
   Every element of c is one chain of fused multiply-adds in the order of k. Three rows of a share a
   pointer: more would not fit the registers. */
static inline void tile_product(float *c, size_t ldc, const float *a, size_t am, size_t ak,
                                const float *b, size_t ldb, size_t n, int add) {
    const float *rows[(TILE_M + 2) / 3];
    vec sum[TILE_M][2];
    for (size_t i = 0; i < TILE_M; i += 3) rows[i / 3] = a + i * am;
    for (size_t i = 0; i < TILE_M; i++) {
        sum[i][0] = add ? vec_load(c + i * ldc) : vec_set(0.0f);
        sum[i][1] = add ? vec_load(c + i * ldc + LANES) : vec_set(0.0f);
    }
    for (size_t k = 0; k < n; k++, b += ldb) {
        const vec b0 = vec_load(b), b1 = vec_load(b + LANES);
        for (size_t i = 0; i < TILE_M; i++) {
            const vec x = vec_set(rows[i / 3][i % 3 * am]);
            sum[i][0] = vec_fma(x, b0, sum[i][0]);
            sum[i][1] = vec_fma(x, b1, sum[i][1]);
        }
        for (size_t i = 0; i < TILE_M; i += 3) rows[i / 3] += ak;
    }
    for (size_t i = 0; i < TILE_M; i++) {
        vec_store(c + i * ldc, sum[i][0]);
        vec_store(c + i * ldc + LANES, sum[i][1]);
    }
}

/* What one call works on: sequence and head, and sizes. */
typedef struct head_shape {
    size_t T, H;   /* tokens, head size */
    size_t tp, hp; /* T', H' */
    size_t C;      /* channels of all heads */
} head_shape;

/* to (T', H') = (from (T, H) with rows `stride` apart + bias) * scale, zeros around. */
static void pack(float *to, const float *from, size_t stride, const float *bias, float scale,
                 const head_shape *s) {
    const size_t H = s->H;
    for (size_t t = 0; t < s->T; t++) {
        float *row = to + t * s->hp;
        const float *in = from + t * stride;
        OMP(omp simd)
        for (size_t i = 0; i < H; i++) row[i] = (in[i] + bias[i]) * scale;
        for (size_t i = H; i < s->hp; i++) row[i] = 0.0f;
    }
    memset(to + s->T * s->hp, 0, (s->tp - s->T) * s->hp * sizeof(float));
}

/* Row i of r becomes column i: as often as LANES can be halved, the first half of the rows is
   interleaved with the second. */
static inline void transpose(vec r[LANES]) {
    for (int stage = LANES; stage > 1; stage /= 2) {
        vec t[LANES];
        for (int i = 0; i < LANES / 2; i++) {
            t[2 * i] = vec_zip_low(r[i], r[i + LANES / 2]);
            t[2 * i + 1] = vec_zip_high(r[i], r[i + LANES / 2]);
        }
        for (int i = 0; i < LANES; i++) r[i] = t[i];
    }
}

/* to (T' / TILE_N, H', TILE_N) from (T', H'). */
static void pack_panels(float *to, const float *from, const head_shape *s) {
    for (size_t t = 0; t < s->tp; t += LANES)
        for (size_t d = 0; d < s->hp; d += LANES) {
            float *at = to + t / TILE_N * TILE_N * s->hp + t % TILE_N + d * TILE_N;
            vec r[LANES];
            for (size_t i = 0; i < LANES; i++) r[i] = vec_load(from + (t + i) * s->hp + d);
            transpose(r);
            for (size_t i = 0; i < LANES; i++) vec_store(at + i * TILE_N, r[i]);
        }
}

/* Scores of queries [i0, i0 + QUERIES) against the keys they see: p (QUERIES, T') = a bt, with a
   (T', H') and bt in panels. Row i is filled up to a multiple of PAD beyond i. */
static void scores(float *p, const float *a, const float *bt, size_t i0, const head_shape *s) {
    const size_t end = least(i0 + QUERIES, s->tp);
    for (size_t j = 0; j < round_up(end, PAD); j += TILE_N)
        for (size_t i = i0; i < end; i += TILE_M)
            if (j < round_up(i + TILE_M, PAD))
                tile_product(p + (i - i0) * s->tp + j, s->tp, a + i * s->hp, s->hp, 1,
                             bt + j * s->hp, TILE_N, s->hp, 0);
}

/* Columns of scores that a query needs: what it sees, rounded up so that no loop has a tail. */
enum { STEP = 16 };
static inline uint32_t columns(size_t seen) { return ((uint32_t)seen + STEP - 1) / STEP * STEP; }

static inline float row_most(const float *p, uint32_t seen) {
    const uint32_t all = columns(seen);
    int32_t most = INT32_MIN;
    OMP(omp simd reduction(max : most))
    for (uint32_t j = 0; j < all; j++) {
        const int32_t x = j < seen ? order_of(p[j]) : INT32_MIN;
        most = x > most ? x : most;
    }
    return of_order(most);
}

/* p becomes e^(p - most), zeros beyond what is seen; returns the sum. */
static inline float row_exp(float *p, float most, uint32_t seen) {
    const uint32_t all = columns(seen);
    float sum = 0;
    OMP(omp simd reduction(+ : sum))
    for (uint32_t j = 0; j < all; j++) {
        p[j] = j < seen ? exp_of(p[j] - most) : 0.0f;
        sum += p[j];
    }
    return sum;
}

/* p (rows, ld) from scores of queries i.. that see i + 1.. keys, zeros beyond; lse (rows): the
   logarithms of the denominators. Scores beyond are masked and not overwritten one by one, which
   would stall the vector loads that follow. Rows take each step together: one row alone is a long
   chain of dependent instructions. */
static void softmax_rows(float *p, size_t ld, size_t i, size_t rows, float *lse) {
    float most[TILE_M], sum[TILE_M];
    for (size_t r = 0; r < rows; r++) most[r] = row_most(p + r * ld, (uint32_t)(i + r + 1));
    for (size_t r = 0; r < rows; r++) sum[r] = row_exp(p + r * ld, most[r], (uint32_t)(i + r + 1));
    for (size_t r = 0; r < rows; r++) {
        const float share = 1.0f / sum[r];
        const uint32_t all = columns(i + r + 1);
        float *row = p + r * ld;
        OMP(omp simd)
        for (uint32_t j = 0; j < all; j++) row[j] *= share;
    }
    for (size_t r = 0; r < rows; r++) lse[r] = most[r] + logf(sum[r]);
}

/* The forward of one head: out (T, H) with rows C apart, lse (T). qkv points at q of token 0. */
static void head_forward(const head_work *w, const head_shape *s, float *out, float *lse,
                         const float *qkv, const float *bias) {
    const size_t C = s->C;
    pack(w->q, qkv, 3 * C, bias, 1.0f / sqrtf((float)s->H), s);
    pack(w->k, qkv + C, 3 * C, bias + C, 1.0f, s);
    pack(w->v, qkv + 2 * C, 3 * C, bias + 2 * C, 1.0f, s);
    pack_panels(w->kt, w->k, s);
    for (size_t i0 = 0; i0 < s->T; i0 += QUERIES) {
        scores(w->p, w->q, w->kt, i0, s);
        for (size_t i = i0; i < least(i0 + QUERIES, s->T); i += TILE_M) {
            float *p = w->p + (i - i0) * s->tp;
            const size_t rows = least(TILE_M, s->T - i);
            softmax_rows(p, s->tp, i, rows, lse + i);
            for (size_t d = 0; d < s->hp; d += TILE_N)
                tile_product(w->tile + d, s->hp, p, s->tp, 1, w->v + d, s->hp, i + TILE_M, 0);
            for (size_t r = 0; r < rows; r++)
                memcpy(out + (i + r) * C, w->tile + r * s->hp, s->H * sizeof(float));
        }
    }
}

/* p becomes probabilities, dp the gradient of the scores: p (dp - delta); zeros beyond. */
static void softmax_row_backward(float *p, float *dp, float lse, float delta, size_t seen) {
    const uint32_t end = (uint32_t)seen, all = columns(seen);
    OMP(omp simd)
    for (uint32_t j = 0; j < all; j++) {
        p[j] = j < end ? exp_of(p[j] - lse) : 0.0f;
        dp[j] = j < end ? p[j] * (dp[j] - delta) : 0.0f;
    }
}

/* dk, dv (T', H') += what queries [i0, end) say: p and dp transposed times dout and q. */
static void add_key_gradients(const head_work *w, const head_shape *s, size_t i0, size_t end) {
    for (size_t j = 0; j < end; j += TILE_M) {
        const size_t i = j > i0 ? j : i0, at = (i - i0) * s->tp + j;
        for (size_t d = 0; d < s->hp; d += TILE_N) {
            tile_product(w->dv + j * s->hp + d, s->hp, w->p + at, 1, s->tp, w->dout + i * s->hp + d,
                         s->hp, end - i, 1);
            tile_product(w->dk + j * s->hp + d, s->hp, w->dp + at, 1, s->tp, w->q + i * s->hp + d,
                         s->hp, end - i, 1);
        }
    }
}

/* to (T, H) with rows 3C apart, from (rows, H'). */
static void unpack(float *to, const float *from, float scale, size_t rows, const head_shape *s) {
    for (size_t r = 0; r < rows; r++) {
        OMP(omp simd)
        for (size_t i = 0; i < s->H; i++) to[r * 3 * s->C + i] = from[r * s->hp + i] * scale;
    }
}

static void query_block_backward(const head_work *w, const head_shape *s, float *dq, size_t i0) {
    const size_t end = least(i0 + QUERIES, s->tp);
    scores(w->p, w->q, w->kt, i0, s);
    scores(w->dp, w->dout, w->vt, i0, s);
    for (size_t i = i0; i < end; i += TILE_M) {
        float *p = w->p + (i - i0) * s->tp, *dp = w->dp + (i - i0) * s->tp;
        for (size_t r = 0; r < TILE_M; r++)
            softmax_row_backward(p + r * s->tp, dp + r * s->tp, w->lse[i + r], w->delta[i + r],
                                 i + r + 1);
        for (size_t d = 0; d < s->hp; d += TILE_N)
            tile_product(w->tile + d, s->hp, dp, s->tp, 1, w->k + d, s->hp, i + TILE_M, 0);
        if (i < s->T)
            unpack(dq + i * 3 * s->C, w->tile, 1.0f / sqrtf((float)s->H), least(TILE_M, s->T - i),
                   s);
    }
    add_key_gradients(w, s, i0, end);
}

/* lse and delta = sum(dout out) of each query, as rows beyond T need them: 0. */
static void pack_rows(const head_work *w, const head_shape *s, const float *lse, const float *dout,
                      const float *out) {
    for (size_t t = 0; t < s->T; t++) {
        const float *a = dout + t * s->C, *b = out + t * s->C;
        float dot = 0;
        OMP(omp simd reduction(+ : dot))
        for (size_t i = 0; i < s->H; i++) dot += a[i] * b[i];
        w->delta[t] = dot;
        w->lse[t] = lse[t];
    }
    for (size_t t = s->T; t < s->tp; t++) w->delta[t] = w->lse[t] = 0.0f;
}

/* The backward of one head: dqkv like qkv in head_forward. */
static void head_backward(const head_work *w, const head_shape *s, float *dqkv, const float *dout,
                          const float *out, const float *lse, const float *qkv, const float *bias) {
    const size_t C = s->C;
    pack(w->q, qkv, 3 * C, bias, 1.0f / sqrtf((float)s->H), s);
    pack(w->k, qkv + C, 3 * C, bias + C, 1.0f, s);
    pack(w->v, qkv + 2 * C, 3 * C, bias + 2 * C, 1.0f, s);
    memset(w->none, 0, s->hp * sizeof(float));
    pack(w->dout, dout, C, w->none, 1.0f, s);
    pack_panels(w->kt, w->k, s);
    pack_panels(w->vt, w->v, s);
    pack_rows(w, s, lse, dout, out);
    memset(w->dk, 0, s->tp * s->hp * sizeof(float));
    memset(w->dv, 0, s->tp * s->hp * sizeof(float));
    for (size_t i0 = 0; i0 < s->T; i0 += QUERIES) query_block_backward(w, s, dqkv, i0);
    unpack(dqkv + C, w->dk, 1.0f, s->T, s);
    unpack(dqkv + 2 * C, w->dv, 1.0f, s->T, s);
}

static head_shape head_shape_of(const ops_heads *shape) {
    head_shape s;
    s.T = shape->seq_len;
    s.H = shape->head_size;
    s.tp = round_up(s.T, PAD);
    s.hp = round_up(s.H, PAD);
    s.C = shape->heads * shape->head_size;
    return s;
}

static int attention_fits(ops_ctx *o, const ops_heads *shape) {
    if (o->status || !shape->batch) return 0;
    if (shape->seq_len > o->limits.seq_len || shape->head_size > o->limits.head_size)
        fail(o, ZERO_ERR_ARGUMENT,
             "attention over %zu tokens with heads of %zu exceeds %zu and %zu", shape->seq_len,
             shape->head_size, o->limits.seq_len, o->limits.head_size);
    return !o->status;
}

void ops_attention(ops_ctx *o, float *out, float *lse, const float *qkv, const float *bias,
                   const ops_heads *shape) {
    const head_shape s = head_shape_of(shape);
    if (!attention_fits(o, shape)) return;
    ROWS(o)
    for (size_t i = 0; i < shape->batch * shape->heads; i++) {
        const size_t row = i / shape->heads * s.T, column = i % shape->heads * s.H;
        head_work w;
        cut_head_work(&w, o->scratch + this_thread() * o->thread_floats, s.T, s.H);
        head_forward(&w, &s, out + row * s.C + column, lse + i * s.T, qkv + row * 3 * s.C + column,
                     bias + column);
    }
}

void ops_attention_backward(ops_ctx *o, float *dqkv, const float *dout, const float *out,
                            const float *lse, const float *qkv, const float *bias,
                            const ops_heads *shape) {
    const head_shape s = head_shape_of(shape);
    if (!attention_fits(o, shape)) return;
    ROWS(o)
    for (size_t i = 0; i < shape->batch * shape->heads; i++) {
        const size_t row = i / shape->heads * s.T, column = i % shape->heads * s.H;
        head_work w;
        cut_head_work(&w, o->scratch + this_thread() * o->thread_floats, s.T, s.H);
        head_backward(&w, &s, dqkv + row * 3 * s.C + column, dout + row * s.C + column,
                      out + row * s.C + column, lse + i * s.T, qkv + row * 3 * s.C + column,
                      bias + column);
    }
}

/* ---- cross entropy ------------------------------------------------------------------------- */

static float cross_entropy_row(float *x, size_t target, int train, float scale, size_t V,
                               size_t Vp) {
    const float at_target = x[target];
    int32_t highest = INT32_MIN;
    float sum = 0;
    OMP(omp simd reduction(max : highest))
    for (size_t i = 0; i < V; i++) {
        const int32_t order = order_of(x[i]);
        highest = order > highest ? order : highest;
    }
    const float most = of_order(highest);
    if (!train) {
        OMP(omp simd reduction(+ : sum))
        for (size_t i = 0; i < V; i++) sum += exp_of(x[i] - most);
    } else {
        OMP(omp simd reduction(+ : sum))
        for (size_t i = 0; i < V; i++) {
            x[i] = exp_of(x[i] - most);
            sum += x[i];
        }
        const float share = scale / sum;
        OMP(omp simd)
        for (size_t i = 0; i < V; i++) x[i] *= share;
        for (size_t i = V; i < Vp; i++) x[i] = 0.0f;
        x[target] -= scale;
    }
    return logf(sum) + most - at_target;
}

void ops_cross_entropy(ops_ctx *o, float *losses, float *logits, const int *targets, int train,
                       float scale, size_t R, size_t V, size_t Vp) {
    if (o->status) return;
    ROWS(o)
    for (size_t r = 0; r < R; r++)
        losses[r] = cross_entropy_row(logits + r * Vp, (size_t)targets[r], train, scale, V, Vp);
}

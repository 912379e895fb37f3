/* ops_cpu.c - ops.h on the CPU. Matrix products are products.c's in f32 and oneDNN's (2.6 or 3.x)
   in 16 bits, attention of bf16 runs is attention_bf16.h's where the processor can, attention piece
   by piece is attention_pairs.h's, the rest is here.

   Build: cc -std=c11 -O3 -march=native -ffp-contract=off -fno-math-errno -fopenmp -c ops_cpu.c

   Types. Every body is written once, for rows of f32. Where rows are stored in 16 bits, threads
   work on copies of a row or two, which do not leave the cache: no pass over memory is added.

   Determinism. Elements are computed by the same operations whether they fall into a vector or a
   tail, since contraction is off and every fused multiply-add is written out. Sums over columns
   have a fixed order. Sums over rows are made per thread, over a range of rows that depends on the
   number of threads alone, then added in thread order. */
#include "ops.h"

#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dnnl.h>
#ifdef _OPENMP
#include <omp.h>
#define OMP(x) _Pragma(#x)
#else
#define OMP(x)
#endif

#include "../system/clock.h"
#include "hash_words.h"
#include "matmul.h"
#include "products.h"

#ifdef __FMA__
#define FMA(a, b, c) __builtin_fmaf(a, b, c)
#else
#define FMA(a, b, c) ((a) * (b) + (c))
#endif

/* Attention works in tiles of TILE_M x TILE_N, as many as registers hold; rows of its scratch
   memory are multiples of PAD, which TILE_N divides. pack asks the cache for the row AHEAD of
   the one that it reads; 0: for none. vec_hold loads what many instructions use; vec_zip_low and
   _high interleave the lower and the upper halves of two vectors. */
#if defined(__AVX512F__)
#include <immintrin.h>
enum { LANES = 16, TILE_M = 8, AHEAD = 0 };
typedef __m512 vec;
static inline vec vec_set(float x) { return _mm512_set1_ps(x); }
static inline vec vec_load(const float *p) { return _mm512_load_ps(p); }
static inline vec vec_hold(const float *p) { return _mm512_load_ps(p); }
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
enum { LANES = 8, TILE_M = 4, AHEAD = 8 };
typedef __m256 vec;
static inline vec vec_set(float x) { return _mm256_set1_ps(x); }
static inline vec vec_load(const float *p) { return _mm256_load_ps(p); }
/* Without the empty instruction gcc makes the load a part of each multiplication by it, and a
   processor that does two of either at once waits for loads. */
static inline vec vec_hold(const float *p) {
    vec v = _mm256_load_ps(p);
    __asm__("" : "+x"(v));
    return v;
}
static inline void vec_store(float *p, vec x) { _mm256_store_ps(p, x); }
static inline vec vec_fma(vec a, vec b, vec c) { return _mm256_fmadd_ps(a, b, c); }
static inline vec vec_zip_low(vec a, vec b) {
    return _mm256_permute2f128_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b), 0x20);
}
static inline vec vec_zip_high(vec a, vec b) {
    return _mm256_permute2f128_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b), 0x31);
}
#else
enum { LANES = 4, TILE_M = 4, AHEAD = 0 };
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
static inline vec vec_hold(const float *p) { return vec_load(p); }
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
enum {
    TILE_N = 2 * LANES,
    PAD = 32,
    QUERIES = 64,         /* queries with scores in memory at once */
    LONGEST_WHOLE = 2048, /* tokens; scores of longer sequences do not fit a processor's own cache,
                             and attention_pairs.h computes them in pieces */
    GAP = 16 /* added to rows of scores: rows that are a power of two apart share few sets of a
                cache */
};

/* GCC uses only half of the vector width for some processors, which used to be slower with all of
 * it. */
#if defined(__AVX512F__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC target("prefer-vector-width=512")
#endif

/* Written before a loop over an array that must be kept in registers. */
#define UNROLLED _Pragma("GCC unroll 16")

static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }
static size_t least(size_t a, size_t b) { return a < b ? a : b; }

/* ---- context ------------------------------------------------------------------------------- */

/* Scratch memory of a thread for one attention head. T' is T, and H' the head size, rounded up to
 * PAD; elements beyond T and the head size are zero. Panels are TILE_N keys wide: kt[p][d][c] = k[p
 * * TILE_N + c][d]. */
typedef struct head_work {
    float *q, *k, *v, *dout; /* (T', H'); q times 1 / sqrt(head size) */
    float *kt, *vt;          /* (T' / TILE_N, H', TILE_N) */
    float *dk, *dv;          /* (T', H') */
    float *p, *dp;           /* (QUERIES, T' + GAP): scores, then probabilities; their gradients */
    float *tile;             /* (TILE_M, H') */
    float *none;             /* (H') zeros */
    float *lse, *delta;      /* (T') */
} head_work;

enum {
    SLICE = 384, /* rows of dw at once: see ops_linear_dw */
    BLOCK = 384, /* a product that needs conversion works on BLOCK x BLOCK x BLOCK */
    BLOCKS_BYTES = 3 * BLOCK * BLOCK * 4,
    SCRATCH_BYTES = 1 << 20, /* reserved per thread for oneDNN, which uses 0.05 to 0.9 MiB */
    ROOMS = 4                /* rows in f32 that a thread keeps at once */
};

typedef struct attention_way attention_way;
static const attention_way *choose_attention(zero_type type);
static size_t attention_floats(const ops_ctx *o);

struct ops_ctx {
    ops_limits limits;
    zero_type type, grad_type;
    size_t threads;
    float *scratch;       /* head_work of each thread, then its partial sums, then its rooms */
    size_t thread_floats; /* floats of scratch memory per thread */
    size_t sums_at;       /* where partial sums begin in a thread's part; limits.width floats */
    size_t rooms_at;      /* where its rows of f32 begin, `room` floats each; 16 bits only */
    size_t room;          /* limits.width, rounded up */
    float *vectors;       /* 2 of them, `room` floats each: a bias or norm weights in f32 */
    int *first_row, *next_row; /* see chain_rows */
    matmuls *products;
    int native;                    /* oneDNN computes products of 16-bit types */
    float *blocks;                 /* for block_converted, if it does not */
    const products_choice *chosen; /* borrowed; NULL: the table */
    char path[96];                 /* ops_product_path */
    const attention_way *attends;
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

/* TEAM is a region that all threads run, and ROWS a loop that they divide. */
#define TEAM(o) OMP(omp parallel num_threads((int)(o)->threads))
#define ROWS(o) OMP(omp parallel for num_threads((int)(o)->threads) schedule(static))

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

/* Divides a thread's scratch memory for heads of T, H. */
static head_work cut_head_work(float *memory, size_t T, size_t H) {
    head_work w;
    float *at = memory;
    const size_t t = round_up(T, PAD), th = t * round_up(H, PAD);
    w.q = take(&at, th);
    w.k = take(&at, th);
    w.v = take(&at, th);
    w.dout = take(&at, th);
    w.kt = take(&at, th);
    w.vt = take(&at, th);
    w.dk = take(&at, th);
    w.dv = take(&at, th);
    w.p = take(&at, QUERIES * (t + GAP));
    w.dp = take(&at, QUERIES * (t + GAP));
    w.tile = take(&at, TILE_M * round_up(H, PAD));
    w.none = take(&at, round_up(H, PAD));
    w.lse = take(&at, t);
    w.delta = take(&at, t);
    return w;
}

/* Returns the floats that cut_head_work divides. */
static size_t head_floats(size_t T, size_t H) {
    const size_t t = round_up(T, PAD), h = round_up(H, PAD);
    return 8 * t * h + 2 * QUERIES * (t + GAP) + (TILE_M + 1) * h + 2 * t;
}

/* The parts of a thread's scratch memory; see ops_ctx. */
static void lay_out(ops_ctx *o) {
    const size_t vocab = round_up(o->limits.vocab, PAD);
    o->threads = thread_count();
    o->room = round_up(o->limits.width, PAD);
    o->attends = choose_attention(o->type);
    o->sums_at = attention_floats(o);
    o->rooms_at = o->sums_at + o->room;
    o->thread_floats = o->rooms_at;
    if (o->type == ZERO_F32) return;
    o->thread_floats += vocab > ROOMS * o->room ? vocab : ROOMS * o->room;
}

/* Scratch memory of 16-bit products: for oneDNN or for conversion, before either is chosen. */
static size_t product_bytes(const ops_ctx *o) {
    return o->threads * SCRATCH_BYTES > BLOCKS_BYTES ? o->threads * SCRATCH_BYTES : BLOCKS_BYTES;
}

static size_t vector_bytes(const ops_ctx *o) {
    return o->type == ZERO_F32 ? 0 : 2 * o->room * sizeof(float);
}

static size_t chain_bytes(const ops_ctx *o) {
    return (o->limits.vocab + o->limits.rows) * sizeof(int);
}

size_t ops_scratch_bytes(const ops_limits *limits, const ops_settings *settings) {
    const zero_type type = settings->type;
    ops_ctx o;
    memset(&o, 0, sizeof o);
    o.limits = *limits;
    o.type = type;
    lay_out(&o);
    return o.thread_floats * o.threads * sizeof(float) + vector_bytes(&o) + chain_bytes(&o)
           + products_scratch_bytes() + (type == ZERO_F32 ? 0 : product_bytes(&o));
}

size_t ops_spare_bytes(const ops_limits *limits, const ops_settings *settings) {
    (void)limits;
    (void)settings;
    return 0;
}

static int open_products(ops_ctx *o);

zero_result ops_create(ops_ctx **o, const ops_limits *limits, const ops_settings *settings,
                       char *why) {
    ops_ctx *made = (ops_ctx *)calloc(1, sizeof *made);
    *o = NULL;
    (void)snprintf(why, OPS_SENTENCE, "no memory for operations");
    if (!made) return ZERO_ERR_MEMORY;
    made->limits = *limits;
    made->type = settings->type;
    made->grad_type = settings->grad_type;
    lay_out(made);
    made->scratch = (float *)ops_alloc(made->thread_floats * made->threads * sizeof(float));
    made->vectors = (float *)ops_alloc(vector_bytes(made));
    made->first_row = (int *)ops_alloc(chain_bytes(made));
    made->next_row = made->first_row + limits->vocab;
    if (!made->scratch || !made->vectors || !made->first_row || open_products(made)) {
        ops_destroy(made);
        return ZERO_ERR_MEMORY;
    }
    *o = made;
    why[0] = '\0';
    return ZERO_OK;
}

void ops_destroy(ops_ctx *o) {
    if (!o) return;
    matmul_close(o->products);
    ops_free(o->blocks);
    ops_free(o->scratch);
    ops_free(o->vectors);
    ops_free(o->first_row);
    free(o);
}

const char *ops_product_path(const ops_ctx *o) { return o->path; }

/* With fewer rows, reading wte and its gradient again would cost more than the products. */
size_t ops_logits_budget(void) { return (size_t)32 << 20; }

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

void ops_download(ops_ctx *o, float *host, const void *device, zero_type type, size_t n) {
    (void)o;
    zero_convert(host, ZERO_F32, device, type, n);
}

void ops_take_batch(ops_ctx *o, int *tokens, int *targets, const int *host_tokens,
                    const int *host_targets, size_t R) {
    ops_upload(o, tokens, host_tokens, R * sizeof(int));
    if (targets) ops_upload(o, targets, host_targets, R * sizeof(int));
}

void ops_sum(ops_ctx *o, double *total, const float *x, size_t n) {
    double sum = 0;
    (void)o;
    for (size_t i = 0; i < n; i++) sum += (double)x[i];
    *total += sum;
}

double ops_take_sum(ops_ctx *o, double *total) {
    const double sum = *total;
    (void)o;
    *total = 0;
    return sum;
}

void ops_clear(ops_ctx *o, void *device, size_t bytes) {
    (void)o;
    memset(device, 0, bytes);
}

void ops_copy(ops_ctx *o, void *to, const void *from, size_t bytes) {
    if (!o->status && bytes) memcpy(to, from, bytes);
}

void ops_hash(ops_ctx *o, uint64_t *sum, const void *x, size_t bytes, uint64_t seed) {
    const size_t words = bytes / sizeof(uint64_t), rest = bytes % sizeof(uint64_t);
    uint64_t total = 0, last = 0;
    if (o->status || !bytes) return;
    OMP(omp parallel for schedule(static) reduction(+ : total) num_threads((int)o->threads))
    for (size_t i = 0; i < words; i++) {
        uint64_t word;
        memcpy(&word, (const char *)x + i * sizeof word, sizeof word);
        total += hash_words_term(word, seed + i);
    }
    if (rest) {
        memcpy(&last, (const char *)x + words * sizeof last, rest);
        total += hash_words_term(last, seed + words);
    }
    *sum += total;
}

void ops_transpose(ops_ctx *o, void *to, const void *from, size_t rows, size_t columns,
                   size_t bytes) {
    if (o->status || !bytes) return;
    OMP(omp parallel for collapse(2) schedule(static) num_threads((int)o->threads))
    for (size_t c = 0; c < columns; c++)
        for (size_t r = 0; r < rows; r++)
            memcpy((char *)to + (c * rows + r) * bytes,
                   (const char *)from + (r * columns + c) * bytes, bytes);
}

void ops_sums_begin(ops_ctx *o) { (void)o; }
void ops_sums_end(ops_ctx *o) { (void)o; }

/* ---- which products ------------------------------------------------------------------------ */

static void fail_product(ops_ctx *o, int status, size_t m, size_t n, size_t k) {
    fail(o, status == dnnl_out_of_memory ? ZERO_ERR_MEMORY : ZERO_ERR_UNSUPPORTED,
         "oneDNN's product of (%zu, %zu) and (%zu, %zu) says: %s", m, k, k, n,
         matmul_sentence(status));
}

/* Matrices of the context's types, without gaps. If a is transposed, the product is a gradient of
   weights and is added to c. */
static matmul product_shape(const ops_ctx *o, char ta, char tb, size_t m, size_t n, size_t k) {
    const int add = ta == 'T';
    const matmul p = {
        ta,  tb, m, n, k, add ? m : k, tb == 'T' ? k : n, n, o->type, add ? o->grad_type : o->type,
        add, 0};
    return p;
}

/* Products of a 16-bit type are oneDNN's, if it has any for this processor: one of the three kinds
   is tried, and the one that adds. */
static int try_products(ops_ctx *o, char *way, size_t bytes) {
    const matmul plain = product_shape(o, 'N', 'T', 64, 64, 64);
    const matmul add = product_shape(o, 'T', 'N', 64, 64, 64);
    return matmul_try(o->products, &add, way, bytes) && matmul_try(o->products, &plain, way, bytes);
}

static void name_path(ops_ctx *o, const char *choice) {
    static const char *const from[ZERO_TYPES] = {"", " after conversion from bf16",
                                                 " after conversion from f16"};
    (void)snprintf(o->path, sizeof o->path, "f32 by the %s%s", choice, from[o->type]);
}

/* Computes a product of f32 operands, or with `converted` of 16-bit operands. Returns 1 if memory
 * is short, otherwise 0. */
static int open_f32(ops_ctx *o, int converted) {
    o->blocks = converted ? (float *)ops_alloc(product_bytes(o)) : NULL;
    return (converted && !o->blocks) || matmul_reserve(o->products, products_scratch_bytes());
}

/* Returns 1 if memory is short, otherwise 0. */
static int open_products(ops_ctx *o) {
    char way[64] = "", why[8];
    products_choice table;
    memset(&table, 0, sizeof table);
    (void)products_open(&table, "", o->threads, why, sizeof why);
    name_path(o, table.name);
    o->products = matmul_open();
    if (!o->products) return 1;
    o->native = o->type != ZERO_F32 && try_products(o, way, sizeof way);
    if (!o->native) return open_f32(o, o->type != ZERO_F32);
    (void)snprintf(o->path, sizeof o->path, "oneDNN %s (%s)", o->type == ZERO_BF16 ? "bf16" : "f16",
                   way);
    return matmul_reserve(o->products, product_bytes(o)) != 0;
}

zero_result ops_choose_products(products_choice *c, const char *path, const ops_layer *layers,
                                int n, int threads, char *why) {
    memset(c, 0, sizeof *c);
    for (int i = 0; i < n; i++) {
        const ops_layer *l = &layers[i];
        products_add(c, 'N', 'T', l->rows, l->out, l->in);
        products_add(c, 'N', 'N', l->rows, l->in, l->out);
        products_add(c, 'T', 'N', l->out, l->in, l->rows);
    }
    const size_t team = threads > 0 ? (size_t)threads : thread_count();
    return products_open(c, path, team, why, OPS_SENTENCE) ? ZERO_ERR_ARGUMENT : ZERO_OK;
}

zero_result ops_graphs(ops_ctx *o, size_t places, size_t bytes) {
    (void)o, (void)places, (void)bytes;
    return ZERO_OK;
}
int ops_graph_begin(ops_ctx *o, size_t place, const void *key) {
    (void)o, (void)place, (void)key;
    return 0;
}
void ops_graph_end(ops_ctx *o) { (void)o; }
size_t ops_graph_launches(const ops_ctx *o) {
    (void)o;
    return 0;
}

void ops_take_products(ops_ctx *o, const products_choice *c) {
    o->chosen = c;
    if (!o->native) name_path(o, c->name);
}

/* ---- linear layers ------------------------------------------------------------------------- */

static void product_f32(ops_ctx *o, const matmul *p, const void *a, const void *b, void *c) {
    const int status = products_multiply(o->chosen, o->products, p, (const float *)a,
                                         (const float *)b, (float *)c);
    if (status) fail_product(o, status, p->m, p->n, p->k);
}

/* The same for 16-bit operands, by oneDNN. */
static void product_native(ops_ctx *o, const matmul *p, const void *a, const void *b, void *c) {
    const int status = matmul_run(o->products, p, a, b, c);
    if (status) fail_product(o, status, p->m, p->n, p->k);
}

/* Converts a block (rows, columns) of a matrix with rows `gap` apart to f32, and back. */
static void load_block(const ops_ctx *o, float *to, const void *from, zero_type type, size_t at,
                       size_t gap, size_t rows, size_t columns) {
    const char *first = (const char *)from + at * zero_type_bytes(type);
    (void)o; /* without OpenMP */
    ROWS(o)
    for (size_t r = 0; r < rows; r++)
        zero_convert(to + r * columns, ZERO_F32, first + r * gap * zero_type_bytes(type), type,
                     columns);
}

static void store_block(const ops_ctx *o, void *to, zero_type type, size_t at, size_t gap,
                        const float *from, size_t rows, size_t columns) {
    char *first = (char *)to + at * zero_type_bytes(type);
    (void)o;
    ROWS(o)
    for (size_t r = 0; r < rows; r++)
        zero_convert(first + r * gap * zero_type_bytes(type), type, from + r * columns, ZERO_F32,
                     columns);
}

/* Computes the block of c at row i and column j by products of f32 blocks. */
static void block_converted(ops_ctx *o, const matmul *s, const void *a, const void *b, void *c,
                            size_t i, size_t j) {
    float *fa = o->blocks, *fb = fa + BLOCK * BLOCK, *fc = fb + BLOCK * BLOCK;
    const size_t m = least(BLOCK, s->m - i), n = least(BLOCK, s->n - j);
    const int ta = s->ta == 'T', tb = s->tb == 'T';
    const zero_type to = s->to;
    if (s->add) load_block(o, fc, c, to, i * s->n + j, s->n, m, n);
    for (size_t at = 0; at < s->k; at += BLOCK) {
        const size_t k = least(BLOCK, s->k - at), gap_b = tb ? s->k : s->n;
        load_block(o, fa, a, o->type, ta ? at * s->gap_a + i : i * s->gap_a + at, s->gap_a,
                   ta ? k : m, ta ? m : k);
        load_block(o, fb, b, o->type, tb ? j * gap_b + at : at * gap_b + j, gap_b, tb ? n : k,
                   tb ? k : n);
        const matmul p = {s->ta,    s->tb,        m, n, k, ta ? m : k, tb ? k : n, n, ZERO_F32,
                          ZERO_F32, s->add || at, 0};
        product_f32(o, &p, fa, fb, fc);
    }
    store_block(o, c, to, i * s->n + j, s->n, fc, m, n);
}

static void run_product(ops_ctx *o, const matmul *p, const void *a, const void *b, void *c) {
    if (o->status || !p->m || !p->n || !p->k) return;
    if (o->type == ZERO_F32) {
        product_f32(o, p, a, b, c);
    } else if (o->native) {
        product_native(o, p, a, b, c);
    } else {
        for (size_t i = 0; i < p->m; i += BLOCK)
            for (size_t j = 0; j < p->n; j += BLOCK) block_converted(o, p, a, b, c, i, j);
    }
}

/* c = a b, see product_shape. */
static void product(ops_ctx *o, char ta, char tb, size_t m, size_t n, size_t k, const void *a,
                    const void *b, void *c) {
    const matmul p = product_shape(o, ta, tb, m, n, k);
    run_product(o, &p, a, b, c);
}
/* c += a b, of the context's type. */
static void product_added(ops_ctx *o, char tb, size_t m, size_t n, size_t k, const void *a,
                          const void *b, void *c) {
    matmul p = product_shape(o, 'N', tb, m, n, k);
    p.add = 1;
    run_product(o, &p, a, b, c);
}

/* The function that reads y adds the bias. */
void ops_linear(ops_ctx *o, void *y, const void *x, const void *w, const void *bias, size_t R,
                size_t I, size_t O) {
    (void)bias;
    product(o, 'N', 'T', R, O, I, x, w, y);
}

void ops_linear_dx(ops_ctx *o, void *dx, const void *dy, const void *w, size_t R, size_t I,
                   size_t O) {
    product(o, 'N', 'N', R, I, O, dy, w, dx);
}

void ops_linear_add(ops_ctx *o, void *y, const void *x, const void *w, size_t R, size_t I,
                    size_t O) {
    product_added(o, 'T', R, O, I, x, w, y);
}
void ops_linear_dx_add(ops_ctx *o, void *dx, const void *dy, const void *w, size_t R, size_t I,
                       size_t O) {
    product_added(o, 'N', R, I, O, dy, w, dx);
}
int ops_adds_bias(void) { return 0; }

/* In bf16 in slices of dw: measured, products of 768 x 768 x 256 reach 430 GFLOP/s where one of
   3072 x 768 x 256 reaches 280. */
void ops_linear_dw(ops_ctx *o, void *dw, void *dbias, const void *dy, const void *x, size_t R,
                   size_t I, size_t O) {
    if (dbias) ops_bias_backward(o, dbias, dy, R, O);
    if (!o->native) {
        product(o, 'T', 'N', O, I, R, dy, x, dw);
        return;
    }
    for (size_t i = 0; i < O && R && I && !o->status; i += SLICE) {
        matmul p = product_shape(o, 'T', 'N', least(SLICE, O - i), I, R);
        p.gap_a = O;
        product_native(o, &p, (const char *)dy + i * zero_type_bytes(o->type), x,
                       (char *)dw + i * I * zero_type_bytes(o->grad_type));
    }
}

void ops_linear_gelu(ops_ctx *o, void *fch, void *gelu, int again, const void *x, const void *w,
                     const void *bias, size_t R, size_t I, size_t O) {
    ops_linear(o, fch, x, w, bias, R, I, O);
    if (!again) ops_gelu(o, gelu, fch, bias, R, O);
}

void ops_linear_dx_gelu(ops_ctx *o, void *dfch, void *dbias, void *gelu, int kept, const void *dy,
                        const void *w, const void *fch, const void *bias, size_t R, size_t I,
                        size_t O) {
    (void)kept; /* the same value is stored again at no cost */
    ops_linear_dx(o, dfch, dy, w, R, I, O);
    ops_gelu_backward(o, dfch, dbias, gelu, fch, bias, R, I);
}

void ops_linear_residual(ops_ctx *o, void *out, const void *x, const void *in, const void *w,
                         const void *bias, size_t R, size_t I, size_t O) {
    ops_linear(o, out, in, w, bias, R, I, O);
    ops_add_bias(o, out, x, out, bias, R, O);
}

/* The shapes for the measured rate: x (R, I), y (R, O) and w (O, I). Small products can be
   faster than large ones, and which of the three products of a layer is the fastest depends on the
   processor. */
enum {
    RATE_SHAPES = 3,
    RATE_PRODUCTS = 3,
    RATE_NUMBERS = 768 * 3072 /* elements of the largest matrix */
};
static const struct rate_shape {
    size_t R, I, O;
} rate_shapes[RATE_SHAPES] = {{256, 768, 768}, {768, 768, 768}, {256, 768, 3072}};

/* Returns the operations per second of the fastest of several runs of one product, or 0 after an
   error. kind: 0 y = x w^T, 1 dx = dy w, 2 dw = dy^T x. The first run, which creates the product,
   does not count. */
static double product_rate(ops_ctx *o, int kind, const struct rate_shape *s, void *to,
                           const void *a, const void *b) {
    const double work = 2e0 * (double)(s->R * s->I * s->O);
    double best = 0, spent = 0;
    for (int i = 0; !o->status && (i < 4 || (spent < 0.01 && i < 64)); i++) {
        double t = clock_seconds(CLOCK_MONOTONIC);
        if (kind == 0) ops_linear(o, to, a, b, NULL, s->R, s->I, s->O);
        if (kind == 1) ops_linear_dx(o, to, a, b, s->R, s->I, s->O);
        if (kind == 2) ops_linear_dw(o, to, NULL, a, b, s->R, s->I, s->O);
        t = clock_seconds(CLOCK_MONOTONIC) - t;
        if (i) spent += t;
        if (i && t > 0 && work / t > best) best = work / t;
    }
    return o->status ? 0 : best;
}

/* Returns the rate of the fastest product of all shapes. memory: three matrices. */
static double fastest_rate(ops_ctx *o, char *memory, size_t matrix_bytes) {
    double best = 0;
    for (int i = 0; i < RATE_SHAPES * RATE_PRODUCTS; i++) {
        const double rate = product_rate(o, i % RATE_PRODUCTS, &rate_shapes[i / RATE_PRODUCTS],
                                         memory + 2 * matrix_bytes, memory, memory + matrix_bytes);
        if (rate > best) best = rate;
    }
    return o->status ? 0 : best;
}

double ops_peak_rate(zero_type type, int tf32) {
    (void)type;
    (void)tf32;
    return 0; /* there is no table of processors */
}

double ops_matmul_rate(zero_type type, int tf32, int threads) {
    const ops_limits limits = {1, 1, 1, 1, 1, 1, 1};
    const ops_settings settings = {type, type, NULL, tf32, 0};
    char why[OPS_SENTENCE];
    const size_t n = RATE_NUMBERS, bytes = n * zero_type_bytes(type);
    char *memory = (char *)ops_alloc(3 * bytes);
    ops_ctx *o = NULL;
    double rate = 0;
#ifdef _OPENMP
    const int before = omp_get_max_threads();
    if (threads > 0) omp_set_num_threads(threads);
#endif
    if (memory && ops_create(&o, &limits, &settings, why) == ZERO_OK) {
        for (size_t i = 0; i < 2 * n; i++) {
            const float x = (float)(i % 7) - 3.0f;
            zero_convert(memory + i * zero_type_bytes(type), type, &x, ZERO_F32, 1);
        }
        rate = fastest_rate(o, memory, bytes);
    }
    ops_destroy(o);
#ifdef _OPENMP
    omp_set_num_threads(before);
#endif
    (void)threads;
    ops_free(memory);
    return rate;
}

/* ---- rows ---------------------------------------------------------------------------------- */

/* Returns a thread's i-th buffer for a row of f32. */
static float *room(const ops_ctx *o, size_t i) {
    return o->scratch + this_thread() * o->thread_floats + o->rooms_at + i * o->room;
}

/* Return n numbers of x, from element `at` on, as f32: x itself, or a copy in a buffer. load_row is
 * for reading, open_row for changing, and new_row for writing: its contents are undefined.
 * close_row stores the numbers. */
static inline const float *load_row(zero_type type, float *in, const void *x, size_t at, size_t n) {
    if (type == ZERO_F32) return (const float *)x + at;
    zero_convert(in, ZERO_F32, (const uint16_t *)x + at, type, n);
    return in;
}

static inline float *new_row(zero_type type, float *in, void *x, size_t at) {
    return type == ZERO_F32 ? (float *)x + at : in;
}

static inline float *open_row(zero_type type, float *in, void *x, size_t at, size_t n) {
    (void)load_row(type, in, x, at, n);
    return new_row(type, in, x, at);
}

static inline void close_row(zero_type type, void *x, size_t at, const float *row, size_t n) {
    if (type != ZERO_F32) zero_convert((uint16_t *)x + at, type, row, ZERO_F32, n);
}

/* Returns the i-th of two vectors that all threads read. It must not be called inside a TEAM. */
static const float *load_vector(const ops_ctx *o, size_t i, const void *x, size_t n) {
    return load_row(o->type, o->vectors + i * o->room, x, 0, n);
}

/* ---- sums over rows ------------------------------------------------------------------------ */

static float *thread_sums(ops_ctx *o) {
    return o->scratch + this_thread() * o->thread_floats + o->sums_at;
}

/* Adds the rows of dy (rows, C) to sums (C), four at a time. */
static void add_rows(const ops_ctx *o, float *sums, const void *dy, size_t first, size_t end,
                     size_t C) {
    size_t r = first;
    for (; r + 4 <= end; r += 4) {
        const float *a = load_row(o->type, room(o, 0), dy, r * C, C);
        const float *b = load_row(o->type, room(o, 1), dy, (r + 1) * C, C);
        const float *c = load_row(o->type, room(o, 2), dy, (r + 2) * C, C);
        const float *d = load_row(o->type, room(o, 3), dy, (r + 3) * C, C);
        OMP(omp simd)
        for (size_t i = 0; i < C; i++) sums[i] += (a[i] + b[i]) + (c[i] + d[i]);
    }
    for (; r < end; r++) {
        const float *a = load_row(o->type, room(o, 0), dy, r * C, C);
        OMP(omp simd)
        for (size_t i = 0; i < C; i++) sums[i] += a[i];
    }
}

/* Adds the sums of all threads, from column `first` on, to out (C), in the order of threads. out
 * has the type of gradients. */
static void add_sums(const ops_ctx *o, void *out, size_t first, size_t C) {
    float *total = open_row(o->grad_type, room(o, 0), out, 0, C);
    for (size_t t = 0; t < o->threads; t++) {
        const float *sums = o->scratch + t * o->thread_floats + o->sums_at + first;
        OMP(omp simd)
        for (size_t i = 0; i < C; i++) total[i] += sums[i];
    }
    close_row(o->grad_type, out, 0, total, C);
}

/* Rows of thread t: [*first, *end). */
static void thread_rows(const ops_ctx *o, size_t R, size_t *first, size_t *end) {
    *first = R * this_thread() / o->threads;
    *end = R * (this_thread() + 1) / o->threads;
}

void ops_bias_backward(ops_ctx *o, void *dbias, const void *dy, size_t R, size_t C) {
    if (o->status || !R) return;
    TEAM(o) {
        float *sums = thread_sums(o);
        size_t first, end;
        thread_rows(o, R, &first, &end);
        memset(sums, 0, C * sizeof(float));
        add_rows(o, sums, dy, first, end, C);
    }
    add_sums(o, dbias, 0, C);
}

void ops_add_bias(ops_ctx *o, void *out, const void *x, const void *y, const void *bias, size_t R,
                  size_t C) {
    if (o->status || !R) return;
    const float *b = load_vector(o, 0, bias, C);
    ROWS(o)
    for (size_t r = 0; r < R; r++) {
        const float *xs = load_row(o->type, room(o, 0), x, r * C, C);
        const float *ys = load_row(o->type, room(o, 1), y, r * C, C);
        float *sum = new_row(o->type, room(o, 0), out, r * C);
        OMP(omp simd)
        for (size_t i = 0; i < C; i++) sum[i] = xs[i] + (ys[i] + b[i]);
        close_row(o->type, out, r * C, sum, C);
    }
}

void ops_scale(ops_ctx *o, void *x, float factor, size_t R, size_t C) {
    if (o->status || !R) return;
    ROWS(o)
    for (size_t r = 0; r < R; r++) {
        float *row = open_row(o->type, room(o, 0), x, r * C, C);
        OMP(omp simd)
        for (size_t i = 0; i < C; i++) row[i] *= factor;
        close_row(o->type, x, r * C, row, C);
    }
}

/* ---- embeddings ---------------------------------------------------------------------------- */

void ops_embed(ops_ctx *o, void *out, const int *tokens, const void *wte, const void *wpe, size_t R,
               size_t T, size_t C) {
    if (o->status) return;
    ROWS(o)
    for (size_t r = 0; r < R; r++) {
        const float *word = load_row(o->type, room(o, 0), wte, (size_t)tokens[r] * C, C);
        const float *place = load_row(o->type, room(o, 1), wpe, r % T * C, C);
        float *sum = new_row(o->type, room(o, 0), out, r * C);
        OMP(omp simd)
        for (size_t i = 0; i < C; i++) sum[i] = word[i] + place[i];
        close_row(o->type, out, r * C, sum, C);
    }
}

/* Links the rows of each token: first_row[token], then next_row[r] after r, -1 after the last. */
static void chain_rows(const ops_ctx *o, const int *tokens, size_t R) {
    for (size_t r = 0; r < R; r++) o->first_row[tokens[r]] = -1;
    for (size_t r = R; r-- > 0;) {
        o->next_row[r] = o->first_row[tokens[r]];
        o->first_row[tokens[r]] = (int)r;
    }
}

/* Adds the rows of one token, or position, to columns [first, first + n) of its gradient. */
static void add_row(const ops_ctx *o, float *sum, const void *dout, size_t at, size_t n) {
    const float *d = load_row(o->type, room(o, 1), dout, at, n);
    OMP(omp simd)
    for (size_t i = 0; i < n; i++) sum[i] += d[i];
}

/* Adds the rows of `token` to dwte, which begins with row `base` of wte. */
static void add_word(const ops_ctx *o, void *dwte, const void *dout, size_t token, size_t base,
                     size_t C, size_t first, size_t n) {
    const size_t at = (token - base) * C + first;
    float *sum = open_row(o->grad_type, room(o, 0), dwte, at, n);
    for (int r = o->first_row[token]; r >= 0; r = o->next_row[r])
        add_row(o, sum, dout, (size_t)r * C + first, n);
    close_row(o->grad_type, dwte, at, sum, n);
}

static void add_place(const ops_ctx *o, void *dwpe, const void *dout, size_t place, size_t R,
                      size_t T, size_t C, size_t first, size_t n) {
    float *sum = open_row(o->grad_type, room(o, 0), dwpe, place * C + first, n);
    for (size_t r = place; r < R; r += T) add_row(o, sum, dout, r * C + first, n);
    close_row(o->grad_type, dwpe, place * C + first, sum, n);
}

/* Threads divide the columns, not the rows: two rows may hold the same token. */
static void add_words(ops_ctx *o, void *dwte, const void *dout, const int *tokens,
                      const ops_tile *t, size_t R, size_t C) {
    chain_rows(o, tokens, R);
    TEAM(o) {
        size_t first, end;
        thread_rows(o, C, &first, &end);
        for (size_t r = 0; r < R; r++) {
            const size_t token = (size_t)tokens[r];
            if (o->first_row[token] == (int)r && token - t->first < t->rows)
                add_word(o, dwte, dout, token, t->first, C, first, end - first);
        }
    }
}

static void add_places(ops_ctx *o, void *dwpe, const void *dout, size_t R, size_t T, size_t C) {
    TEAM(o) {
        size_t first, end;
        thread_rows(o, C, &first, &end);
        for (size_t t = 0; t < least(T, R); t++)
            add_place(o, dwpe, dout, t, R, T, C, first, end - first);
    }
}

void ops_embed_backward(ops_ctx *o, void *dwte, void *dwpe, const void *dout, const int *tokens,
                        size_t R, size_t T, size_t C) {
    const ops_tile all = {0, o->limits.vocab, o->limits.vocab};
    if (o->status) return;
    add_words(o, dwte, dout, tokens, &all, R, C);
    add_places(o, dwpe, dout, R, T, C);
}

void ops_tile_rows_backward(ops_ctx *o, void *dw, const void *dout, const int *tokens,
                            const ops_tile *t, size_t R, size_t C) {
    if (!o->status) add_words(o, dw, dout, tokens, t, R, C);
}

void ops_places_backward(ops_ctx *o, void *dwpe, const void *dout, size_t R, size_t T, size_t C) {
    if (!o->status) add_places(o, dwpe, dout, R, T, C);
}

void ops_tile_rows(ops_ctx *o, void *out, const int *tokens, const void *w, const ops_tile *t,
                   size_t R, size_t C) {
    const size_t bytes = C * zero_type_bytes(o->type);
    if (o->status) return;
    ROWS(o)
    for (size_t r = 0; r < R; r++) {
        const size_t row = (size_t)tokens[r] - t->first;
        if (row < t->rows) memcpy((char *)out + r * bytes, (const char *)w + row * bytes, bytes);
    }
}

void ops_add_places(ops_ctx *o, void *out, const void *wpe, size_t R, size_t T, size_t C) {
    if (o->status) return;
    ROWS(o)
    for (size_t r = 0; r < R; r++) {
        const float *place = load_row(o->type, room(o, 1), wpe, r % T * C, C);
        float *sum = open_row(o->type, room(o, 0), out, r * C, C);
        OMP(omp simd)
        for (size_t i = 0; i < C; i++) sum[i] += place[i];
        close_row(o->type, out, r * C, sum, C);
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

/* Returns an integer with the same order as x; NaN is above all others. Compilers vectorize the
   maximum of these integers, but not of floats, unless an option excludes NaN. */
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
   on |r| < 0.347, relative error of e^r 4e-9. The result 0 is a
   mask, because without vector masks (AVX2) gcc compiles a condition to a jump and does not
   vectorize. -fno-trapping-math would vectorize it, but replaces (float)(int)x by trunc, which
   returns -0. */
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
    return of_bits(bits_of(p) & ((uint32_t)(x < -87.0f) - 1u));
}

/* ---- layer norm ---------------------------------------------------------------------------- */

static inline void norm_row(float *out, const float *x, float mean, float rstd, const float *w,
                            const float *b, size_t C) {
    OMP(omp simd)
    for (size_t i = 0; i < C; i++) out[i] = FMA((x[i] - mean) * rstd, w[i], b[i]);
}

void ops_norm(ops_ctx *o, void *out, float *mean, float *rstd, const void *x, const void *w,
              const void *b, size_t R, size_t C) {
    if (o->status || !R) return;
    const float *weight = load_vector(o, 0, w, C), *bias = load_vector(o, 1, b, C);
    ROWS(o)
    for (size_t r = 0; r < R; r++) {
        const float *row = load_row(o->type, room(o, 0), x, r * C, C);
        float *normed = new_row(o->type, room(o, 1), out, r * C);
        float sum = 0, squares = 0;
        OMP(omp simd reduction(+ : sum))
        for (size_t i = 0; i < C; i++) sum += row[i];
        const float m = sum / (float)C;
        OMP(omp simd reduction(+ : squares))
        for (size_t i = 0; i < C; i++) squares += (row[i] - m) * (row[i] - m);
        mean[r] = m;
        rstd[r] = 1.0f / sqrtf(squares / (float)C + 1e-5f);
        norm_row(normed, row, m, rstd[r], weight, bias, C);
        close_row(o->type, out, r * C, normed, C);
    }
}

void ops_norm_again(ops_ctx *o, void *out, const float *mean, const float *rstd, const void *x,
                    const void *w, const void *b, size_t R, size_t C) {
    if (o->status || !R) return;
    const float *weight = load_vector(o, 0, w, C), *bias = load_vector(o, 1, b, C);
    ROWS(o)
    for (size_t r = 0; r < R; r++) {
        const float *row = load_row(o->type, room(o, 0), x, r * C, C);
        float *normed = new_row(o->type, room(o, 1), out, r * C);
        norm_row(normed, row, mean[r], rstd[r], weight, bias, C);
        close_row(o->type, out, r * C, normed, C);
    }
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

void ops_norm_backward(ops_ctx *o, void *dx, void *dw, void *db, const void *dout, const void *x,
                       const float *mean, const float *rstd, const void *w, int store, size_t R,
                       size_t C) {
    if (o->status || !R) return;
    const float *weight = load_vector(o, 0, w, C);
    TEAM(o) {
        float *sums = thread_sums(o);
        size_t first, end;
        thread_rows(o, R, &first, &end);
        memset(sums, 0, 2 * C * sizeof(float));
        for (size_t r = first; r < end; r++) {
            const float *d = load_row(o->type, room(o, 0), dout, r * C, C);
            const float *row = load_row(o->type, room(o, 1), x, r * C, C);
            float *out = store ? new_row(o->type, room(o, 2), dx, r * C)
                               : open_row(o->type, room(o, 2), dx, r * C, C);
            norm_row_backward(out, sums, sums + C, d, row, mean[r], rstd[r], weight, store, C);
            close_row(o->type, dx, r * C, out, C);
        }
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

void ops_gelu(ops_ctx *o, void *out, const void *x, const void *bias, size_t R, size_t C) {
    if (o->status || !R) return;
    const float *b = load_vector(o, 0, bias, C);
    ROWS(o)
    for (size_t r = 0; r < R; r++) {
        const float *row = load_row(o->type, room(o, 0), x, r * C, C);
        float *y = new_row(o->type, room(o, 0), out, r * C);
        OMP(omp simd)
        for (size_t i = 0; i < C; i++) {
            const float v = row[i] + b[i];
            y[i] = v * (1.0f / (1.0f + gelu_exp(v)));
        }
        close_row(o->type, out, r * C, y, C);
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

void ops_gelu_backward(ops_ctx *o, void *d, void *dbias, void *out, const void *x, const void *bias,
                       size_t R, size_t C) {
    if (o->status || !R) return;
    const float *b = load_vector(o, 0, bias, C);
    TEAM(o) {
        float *sums = thread_sums(o);
        size_t first, end;
        thread_rows(o, R, &first, &end);
        memset(sums, 0, C * sizeof(float));
        for (size_t r = first; r < end; r++) {
            const float *row = load_row(o->type, room(o, 0), x, r * C, C);
            float *slope = open_row(o->type, room(o, 1), d, r * C, C);
            float *y = new_row(o->type, room(o, 2), out, r * C);
            gelu_row_backward(slope, sums, y, row, b, C);
            close_row(o->type, d, r * C, slope, C);
            close_row(o->type, out, r * C, y, C);
        }
    }
    add_sums(o, dbias, 0, C);
}

/* ---- attention ----------------------------------------------------------------------------- */

/* c (TILE_M, columns) = a (TILE_M, n) b (n, columns), or += . Element (i, k) of a is
   a[i am + k ak]; columns are TILE_N, or LANES where the constant `vectors` is 1. Every element of
   c is one chain of fused multiply-adds in the order of k. Three rows of a share a pointer: more
   would not fit the registers. */
static inline __attribute__((always_inline)) void tile_columns(float *c, size_t ldc, const float *a,
                                                               size_t am, size_t ak, const float *b,
                                                               size_t ldb, size_t n, int add,
                                                               int vectors) {
    const float *rows[(TILE_M + 2) / 3];
    vec sum[TILE_M][2];
    UNROLLED
    for (size_t i = 0; i < TILE_M; i += 3) rows[i / 3] = a + i * am;
    UNROLLED
    for (size_t i = 0; i < TILE_M; i++) {
        sum[i][0] = add ? vec_load(c + i * ldc) : vec_set(0.0f);
        if (vectors > 1) sum[i][1] = add ? vec_load(c + i * ldc + LANES) : vec_set(0.0f);
    }
    for (size_t k = 0; k < n; k++, b += ldb) {
        const vec b0 = vec_hold(b), b1 = vectors > 1 ? vec_hold(b + LANES) : b0;
        UNROLLED
        for (size_t i = 0; i < TILE_M; i++) {
            const vec x = vec_set(rows[i / 3][i % 3 * am]);
            sum[i][0] = vec_fma(x, b0, sum[i][0]);
            if (vectors > 1) sum[i][1] = vec_fma(x, b1, sum[i][1]);
        }
        UNROLLED
        for (size_t i = 0; i < TILE_M; i += 3) rows[i / 3] += ak;
    }
    UNROLLED
    for (size_t i = 0; i < TILE_M; i++) {
        vec_store(c + i * ldc, sum[i][0]);
        if (vectors > 1) vec_store(c + i * ldc + LANES, sum[i][1]);
    }
}

static __attribute__((noinline)) void tile_product(float *c, size_t ldc, const float *a, size_t am,
                                                   size_t ak, const float *b, size_t ldb, size_t n,
                                                   int add) {
    if (add)
        tile_columns(c, ldc, a, am, ak, b, ldb, n, 1, 2);
    else
        tile_columns(c, ldc, a, am, ak, b, ldb, n, 0, 2);
}

/* The arguments of one call: sequence, head, and sizes. */
typedef struct head_shape {
    size_t T, H;   /* tokens, head size */
    size_t tp, hp; /* T', H' */
    size_t lp;     /* distance of rows of scores */
    size_t C;      /* number of channels of all heads */
    zero_type type;
    int tiles; /* AMX computes products of bf16 */
} head_shape;

/* Returns the address of element i of x. */
static inline const void *element(const void *x, zero_type type, size_t i) {
    return (const char *)x + i * (type == ZERO_F32 ? 4 : 2);
}

/* Prefetches a row of a head, from element `at` on. The hardware does not detect a pattern in rows
 * so far apart. */
static inline void ask(const void *x, size_t at, const head_shape *s) {
    const size_t bytes = s->type == ZERO_F32 ? 4 : 2;
    for (size_t d = 0; d < s->H * bytes; d += 64)
        __builtin_prefetch((const void *)((uintptr_t)x + at * bytes + d), 0, 3);
}

/* Computes to (T', H') = (from (T, H) with rows `stride` apart + bias) * scale, padded with zeros.
 */
static void pack(float *to, const void *from, size_t stride, const float *bias, float scale,
                 const head_shape *s) {
    const size_t H = s->H;
    for (size_t t = 0; t < s->T; t++) {
        float *row = to + t * s->hp;
        if (AHEAD) ask(from, (t + AHEAD) * stride, s);
        const float *in = load_row(s->type, row, from, t * stride, H);
        size_t d = 0;
        for (; d + PAD <= H; d += PAD) {
            OMP(omp simd)
            for (size_t i = d; i < d + PAD; i++) row[i] = (in[i] + bias[i]) * scale;
        }
        for (; d < s->hp; d++) row[d] = d < H ? (in[d] + bias[d]) * scale : 0.0f;
    }
    memset(to + s->T * s->hp, 0, (s->tp - s->T) * s->hp * sizeof(float));
}

/* Prefetches TILE_M rows of a head, from element `at` on, for writing. */
static inline void expect(void *x, size_t at, size_t stride, const head_shape *s) {
    const size_t bytes = s->type == ZERO_F32 ? 4 : 2;
    for (size_t r = 0; r < TILE_M; r++)
        for (size_t d = 0; d < s->H * bytes; d += 64)
            __builtin_prefetch((void *)((uintptr_t)x + (at + r * stride) * bytes + d), 1, 2);
}

/* Transposes r: row i becomes column i. log2(LANES) times, the first half of the rows is
 * interleaved with the second half. */
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

/* Converts (T', H') to panels (T' / TILE_N, H', TILE_N). */
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

/* Returns the columns of scores that queries before `end` need: the visible ones, rounded up so
 * that no loop has a tail. TILE_M divides STEP, so columns that only some rows of a tile can see
 * are in its last step. */
enum { STEP = 16 };
static inline uint32_t columns(size_t end) { return ((uint32_t)end + STEP - 1) / STEP * STEP; }

/* Computes scores of queries [i0, i0 + QUERIES) for the visible keys: p (QUERIES, T') = a bt, with
 * a (T', H') and bt in panels. Row i is filled up to column columns(i + 1) or further. */
static void scores(float *p, const float *a, const float *bt, size_t i0, const head_shape *s) {
    const size_t end = least(i0 + QUERIES, s->tp);
    for (size_t j = 0; j < round_up(end, PAD); j += TILE_N)
        for (size_t i = j / STEP * STEP > i0 ? j / STEP * STEP : i0; i < end; i += TILE_M) {
            float *c = p + (i - i0) * s->lp + j;
            const float *q = a + i * s->hp, *keys = bt + j * s->hp;
            if (j + LANES < columns(i + TILE_M))
                tile_product(c, s->lp, q, s->hp, 1, keys, TILE_N, s->hp, 0);
            else
                tile_columns(c, s->lp, q, s->hp, 1, keys, TILE_N, s->hp, 0, 1);
        }
}

/* Writes `hidden` to the scores p (TILE_M, columns) of queries i and later that they must not see.
 * It writes whole vectors, because a load after stores of parts would stall. */
static void hide(float *p, size_t ld, size_t i, float hidden) {
    const uint32_t at = (uint32_t)i / STEP * STEP;
    for (uint32_t r = 0; r < TILE_M; r++) {
        const uint32_t seen = (uint32_t)i + r + 1 - at;
        float *row = p + r * ld + at;
        OMP(omp simd)
        for (uint32_t j = 0; j < STEP; j++) row[j] = j < seen ? row[j] : hidden;
    }
}

static inline float row_most(const float *p, uint32_t all) {
    int32_t most = INT32_MIN;
    OMP(omp simd reduction(max : most))
    for (uint32_t j = 0; j < all; j++) {
        const int32_t x = order_of(p[j]);
        most = x > most ? x : most;
    }
    return of_order(most);
}

/* Replaces p by e^(p - most), and returns the sum. */
static inline float row_exp(float *p, float most, uint32_t all) {
    float sum = 0;
    OMP(omp simd reduction(+ : sum))
    for (uint32_t j = 0; j < all; j++) {
        p[j] = exp_of(p[j] - most);
        sum += p[j];
    }
    return sum;
}

/* p (TILE_M, ld) from scores of queries i.. becomes probabilities times their denominators, zeros
   where nothing is seen; share: 1 / denominators; lse: their logarithms. Hidden
   scores are -infinity, because a number would count if all visible scores overflow. The loops
   handle several rows together: one row alone is a long chain of dependent instructions. */
static void softmax_rows(float *p, size_t ld, size_t i, float *share, float *lse) {
    const uint32_t all = columns(i + TILE_M);
    float most[TILE_M], sum[TILE_M];
    hide(p, ld, i, -INFINITY);
    for (size_t r = 0; r < TILE_M; r++) most[r] = row_most(p + r * ld, all);
    for (size_t r = 0; r < TILE_M; r++) sum[r] = row_exp(p + r * ld, most[r], all);
    for (size_t r = 0; r < TILE_M; r++) share[r] = 1.0f / sum[r];
    for (size_t r = 0; r < TILE_M; r++) lse[r] = most[r] + logf(sum[r]);
}

/* Stores (rows, H') to (T, H), from element `at` on, with rows `stride` apart. The source is
 * overwritten. */
static void unpack(void *to, size_t at, size_t stride, float *from, float scale, size_t rows,
                   const head_shape *s) {
    for (size_t r = 0; r < rows; r++, at += stride) {
        const float *in = from + r * s->hp;
        float *row = new_row(s->type, from + r * s->hp, to, at);
        OMP(omp simd)
        for (size_t i = 0; i < s->H; i++) row[i] = in[i] * scale;
        close_row(s->type, to, at, row, s->H);
    }
}

static void pack_qkv(const head_work *w, const head_shape *s, const void *qkv, const float *bias) {
    const size_t C = s->C;
    pack(w->q, qkv, 3 * C, bias, 1.0f / sqrtf((float)s->H), s);
    pack(w->k, element(qkv, s->type, C), 3 * C, bias + C, 1.0f, s);
    pack(w->v, element(qkv, s->type, 2 * C), 3 * C, bias + 2 * C, 1.0f, s);
}

/* Computes the forward of one head: out (T, H) with rows C apart, and lse (T). qkv points to q of
 * token 0. */
static void head_forward(float *memory, const head_shape *s, void *out, float *lse, const void *qkv,
                         const float *bias) {
    const head_work cut = cut_head_work(memory, s->T, s->H), *w = &cut;
    pack_qkv(w, s, qkv, bias);
    pack_panels(w->kt, w->k, s);
    for (size_t i0 = 0; i0 < s->T; i0 += QUERIES) {
        scores(w->p, w->q, w->kt, i0, s);
        for (size_t i = i0; i < least(i0 + QUERIES, s->T); i += TILE_M) {
            float *p = w->p + (i - i0) * s->lp, share[TILE_M];
            const size_t rows = least(TILE_M, s->T - i);
            expect(out, i * s->C, s->C, s);
            softmax_rows(p, s->lp, i, share, w->lse + i);
            for (size_t d = 0; d < s->hp; d += TILE_N)
                tile_product(w->tile + d, s->hp, p, s->lp, 1, w->v + d, s->hp, i + TILE_M, 0);
            for (size_t r = 0; r < rows; r++)
                unpack(out, (i + r) * s->C, s->C, w->tile + r * s->hp, share[r], 1, s);
        }
    }
    memcpy(lse, w->lse, s->T * sizeof(float));
}

/* For queries i and later, replaces p by the probabilities and dp by the gradient of the scores, p
 * (dp - delta). Hidden elements become zero. */
static void softmax_rows_backward(float *p, float *dp, size_t ld, size_t i, const float *lse,
                                  const float *delta) {
    const uint32_t all = columns(i + TILE_M);
    for (size_t r = 0; r < TILE_M; r++) {
        float *row = p + r * ld, *slope = dp + r * ld;
        OMP(omp simd)
        for (uint32_t j = 0; j < all; j++) {
            row[j] = exp_of(row[j] - lse[r]);
            slope[j] = row[j] * (slope[j] - delta[r]);
        }
    }
    hide(p, ld, i, 0.0f);
    hide(dp, ld, i, 0.0f);
}

/* Adds the part of queries [i0, end) to dk and dv (T', H'): p and dp transposed, times dout and q.
 */
static void add_key_gradients(const head_work *w, const head_shape *s, size_t i0, size_t end) {
    for (size_t j = 0; j < end; j += TILE_M) {
        const size_t i = j > i0 ? j : i0, at = (i - i0) * s->lp + j;
        for (size_t d = 0; d < s->hp; d += TILE_N) {
            tile_product(w->dv + j * s->hp + d, s->hp, w->p + at, 1, s->lp, w->dout + i * s->hp + d,
                         s->hp, end - i, 1);
            tile_product(w->dk + j * s->hp + d, s->hp, w->dp + at, 1, s->lp, w->q + i * s->hp + d,
                         s->hp, end - i, 1);
        }
    }
}

static void query_block_backward(const head_work *w, const head_shape *s, void *dqkv, size_t i0) {
    const size_t end = least(i0 + QUERIES, s->tp);
    scores(w->p, w->q, w->kt, i0, s);
    scores(w->dp, w->dout, w->vt, i0, s);
    for (size_t i = i0; i < end; i += TILE_M) {
        float *p = w->p + (i - i0) * s->lp, *dp = w->dp + (i - i0) * s->lp;
        for (size_t k = 0; k < 3; k++) expect(dqkv, (3 * i + k) * s->C, 3 * s->C, s);
        softmax_rows_backward(p, dp, s->lp, i, w->lse + i, w->delta + i);
        for (size_t d = 0; d < s->hp; d += TILE_N)
            tile_product(w->tile + d, s->hp, dp, s->lp, 1, w->k + d, s->hp, i + TILE_M, 0);
        if (i < s->T)
            unpack(dqkv, i * 3 * s->C, 3 * s->C, w->tile, 1.0f / sqrtf((float)s->H),
                   least(TILE_M, s->T - i), s);
    }
    add_key_gradients(w, s, i0, end);
}

/* Never inlined: a compiler that knows more about the rows would add in another order. */
__attribute__((noinline)) static float dot_row(const float *a, const float *b, size_t n) {
    float dot = 0;
    OMP(omp simd reduction(+ : dot))
    for (size_t i = 0; i < n; i++) dot += a[i] * b[i];
    return dot;
}

/* Computes lse and delta = sum(dout out) of each query. Rows beyond T get 0. */
static void pack_rows(const head_work *w, const head_shape *s, const float *lse, const void *out) {
    for (size_t t = 0; t < s->T; t++) {
        w->delta[t] =
            dot_row(w->dout + t * s->hp, load_row(s->type, w->tile, out, t * s->C, s->H), s->H);
        w->lse[t] = lse[t];
    }
    for (size_t t = s->T; t < s->tp; t++) w->delta[t] = w->lse[t] = 0.0f;
}

/* Computes the backward of one head. dqkv has the layout of qkv in head_forward. */
static void head_backward(float *memory, const head_shape *s, void *dqkv, const void *dout,
                          const void *out, const float *lse, const void *qkv, const float *bias) {
    const head_work cut = cut_head_work(memory, s->T, s->H), *w = &cut;
    pack_qkv(w, s, qkv, bias);
    memset(w->none, 0, s->hp * sizeof(float));
    pack(w->dout, dout, s->C, w->none, 1.0f, s);
    pack_panels(w->kt, w->k, s);
    pack_panels(w->vt, w->v, s);
    pack_rows(w, s, lse, out);
    memset(w->dk, 0, s->tp * s->hp * sizeof(float));
    memset(w->dv, 0, s->tp * s->hp * sizeof(float));
    for (size_t i0 = 0; i0 < s->T; i0 += QUERIES) query_block_backward(w, s, dqkv, i0);
    unpack(dqkv, s->C, 3 * s->C, w->dk, 1.0f, s->T, s);
    unpack(dqkv, 2 * s->C, 3 * s->C, w->dv, 1.0f, s->T, s);
}

#include "attention_bf16.h"

/* A bf16 run uses the first row that the processor and oneDNN's settings allow. Other runs use the
 * last row. */
struct attention_way {
    const char *name;
    unsigned isa; /* the instructions that oneDNN may use; it has requested AMX from the kernel */
    int tiles;
    void (*forward)(float *memory, const head_shape *s, void *out, float *lse, const void *qkv,
                    const float *bias);
    void (*backward)(float *memory, const head_shape *s, void *dqkv, const void *dout,
                     const void *out, const float *lse, const void *qkv, const float *bias);
};
static const attention_way attention_ways[] = {
#ifdef WITH_TILES
    {"own tiles, bf16 by AMX", dnnl_cpu_isa_avx512_core_amx, 1, bf16_forward, bf16_backward},
#endif
#ifdef WITH_BF16
    {"own tiles, bf16", dnnl_cpu_isa_avx512_core_bf16, 0, bf16_forward, bf16_backward},
#endif
    {"own tiles, f32", 0, 0, head_forward, head_backward}};

/* Returns 1 if attention over T tokens is computed in pieces of a sequence: in f32 alone. */
static int in_pieces(const ops_ctx *o, size_t T) {
    return T > LONGEST_WHOLE && o->attends->forward == head_forward;
}

static const attention_way *choose_attention(zero_type type) {
    const unsigned has = type == ZERO_BF16 ? (unsigned)dnnl_get_effective_cpu_isa() : 0;
    const attention_way *way = attention_ways;
    while ((has & way->isa) != way->isa) way++;
    return way;
}

const char *ops_attention_path(const ops_ctx *o) { return o->attends->name; }

static head_shape head_shape_of(const ops_ctx *o, const ops_heads *shape) {
    head_shape s;
    s.type = o->type;
    s.tiles = o->attends->tiles;
    s.T = shape->seq_len;
    s.H = shape->head_size;
    s.tp = round_up(s.T, PAD);
    s.hp = round_up(s.H, PAD);
    s.lp = s.tp + GAP;
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

#include "attention_pairs.h"

/* Returns the floats of scratch memory that attention over at most limits.seq_len tokens needs. */
static size_t attention_floats(const ops_ctx *o) {
    const size_t T = o->limits.seq_len, H = o->limits.head_size;
    if (!in_pieces(o, T)) return T ? head_floats(T, H) : pair_floats(H);
    const size_t whole = head_floats(LONGEST_WHOLE, H), pieces = long_floats(T, H);
    return whole > pieces ? whole : pieces;
}

void ops_attention(ops_ctx *o, void *out, float *lse, const void *qkv, const void *bias,
                   const ops_heads *shape) {
    const head_shape s = head_shape_of(o, shape);
    if (!attention_fits(o, shape)) return;
    const float *b = load_vector(o, 0, bias, 3 * s.C);
    ROWS(o)
    for (size_t i = 0; i < shape->batch * shape->heads; i++) {
        const size_t row = i / shape->heads * s.T, column = i % shape->heads * s.H;
        float *memory = o->scratch + this_thread() * o->thread_floats;
        void *to = (char *)element(out, s.type, row * s.C + column);
        const void *from = element(qkv, s.type, row * 3 * s.C + column);
        if (in_pieces(o, s.T))
            long_forward(o, memory, &s, to, lse + i * s.T, from, b + column);
        else
            o->attends->forward(memory, &s, to, lse + i * s.T, from, b + column);
    }
}

void ops_attention_backward(ops_ctx *o, void *dqkv, const void *dout, const void *out,
                            const float *lse, const void *qkv, const void *bias,
                            const ops_heads *shape) {
    const head_shape s = head_shape_of(o, shape);
    if (!attention_fits(o, shape)) return;
    const float *b = load_vector(o, 0, bias, 3 * s.C);
    ROWS(o)
    for (size_t i = 0; i < shape->batch * shape->heads; i++) {
        const size_t row = i / shape->heads * s.T, column = i % shape->heads * s.H;
        const size_t at = row * s.C + column, wide = row * 3 * s.C + column;
        float *memory = o->scratch + this_thread() * o->thread_floats;
        void *to = (char *)element(dqkv, s.type, wide);
        const void *d = element(dout, s.type, at), *y = element(out, s.type, at);
        const void *from = element(qkv, s.type, wide);
        if (in_pieces(o, s.T))
            long_backward(o, memory, &s, to, d, y, lse + i * s.T, from, b + column);
        else
            o->attends->backward(memory, &s, to, d, y, lse + i * s.T, from, b + column);
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

void ops_cross_entropy(ops_ctx *o, float *losses, void *logits, const int *targets, int train,
                       float scale, size_t R, size_t V, size_t Vp) {
    if (o->status) return;
    ROWS(o)
    for (size_t r = 0; r < R; r++) {
        float *row = open_row(o->type, room(o, 0), logits, r * Vp, Vp);
        losses[r] = cross_entropy_row(row, (size_t)targets[r], train, scale, V, Vp);
        if (train) close_row(o->type, logits, r * Vp, row, Vp);
    }
}

/* ---- cross entropy, tile by tile ----------------------------------------------------------- */

/* Returns the largest of n numbers and of `most`, in the order of order_of. */
static int32_t highest_of(const float *x, size_t n, int32_t most) {
    OMP(omp simd reduction(max : most))
    for (size_t i = 0; i < n; i++) {
        const int32_t order = order_of(x[i]);
        most = order > most ? order : most;
    }
    return most;
}

/* Computes x (rows) as for ops_softmax_tile, and adds to the sum of the row. */
static void softmax_tile_row(float *x, float *most, float *sum, float *factor, const ops_tile *t,
                             int train) {
    const float before = *most;
    const float all = of_order(highest_of(x, t->valid, t->first ? order_of(before) : INT32_MIN));
    float more = 0;
    *factor = t->first ? exp_of(before - all) : 0.0f;
    if (train) {
        OMP(omp simd reduction(+ : more))
        for (size_t i = 0; i < t->valid; i++) {
            x[i] = exp_of(x[i] - all);
            more += x[i];
        }
        for (size_t i = t->valid; i < t->rows; i++) x[i] = 0.0f;
    } else {
        OMP(omp simd reduction(+ : more))
        for (size_t i = 0; i < t->valid; i++) more += exp_of(x[i] - all);
    }
    *sum = t->first ? FMA(*sum, *factor, more) : more;
    *most = all;
}

void ops_softmax_tile(ops_ctx *o, const ops_softmax *s, void *logits, const int *targets,
                      const ops_tile *t, int train, size_t R) {
    if (o->status) return;
    ROWS(o)
    for (size_t r = 0; r < R; r++) {
        const size_t target = (size_t)targets[r] - t->first;
        float *row = open_row(o->type, room(o, 0), logits, r * t->rows, t->rows);
        if (target < t->rows) s->losses[r] = row[target];
        softmax_tile_row(row, &s->most[r], &s->sum[r], &s->factor[r], t, train);
        if (train) close_row(o->type, logits, r * t->rows, row, t->rows);
    }
}

void ops_softmax_add(ops_ctx *o, float *mean, const ops_softmax *s, const void *x,
                     const ops_tile *t, size_t R, size_t C) {
    if (o->status) return;
    ROWS(o)
    for (size_t r = 0; r < R; r++) {
        const float *more = load_row(o->type, room(o, 0), x, r * C, C);
        const float factor = s->factor[r];
        float *sum = mean + r * C;
        if (!t->first) {
            memcpy(sum, more, C * sizeof(float));
            continue;
        }
        OMP(omp simd)
        for (size_t i = 0; i < C; i++) sum[i] = FMA(sum[i], factor, more[i]);
    }
}

void ops_softmax_begin(ops_ctx *o, const ops_softmax *s, size_t R) {
    for (size_t r = 0; r < R && !o->status; r++) {
        s->most[r] = -FLT_MAX;
        s->sum[r] = s->losses[r] = 0.0f;
    }
}

void ops_softmax_meet(ops_ctx *o, const ops_softmax *s, const float *most, size_t R) {
    for (size_t r = 0; r < R && !o->status; r++) {
        s->factor[r] = exp_of(s->most[r] - most[r]);
        s->sum[r] *= s->factor[r];
        s->most[r] = most[r];
    }
}

void ops_softmax_share(ops_ctx *o, const ops_softmax *s, size_t R) {
    for (size_t r = 0; r < R && !o->status; r++) s->factor[r] = s->sum[r] / s->factor[r];
}

void ops_softmax_end(ops_ctx *o, const ops_softmax *s, size_t R) {
    for (size_t r = 0; r < R && !o->status; r++)
        s->losses[r] = logf(s->sum[r]) + s->most[r] - s->losses[r];
}

void ops_softmax_dx(ops_ctx *o, void *dx, const float *mean, const ops_softmax *s, float scale,
                    size_t R, size_t C) {
    if (o->status) return;
    ROWS(o)
    for (size_t r = 0; r < R; r++) {
        const float share = 1.0f / s->sum[r], *of = mean + r * C;
        float *d = open_row(o->type, room(o, 0), dx, r * C, C);
        OMP(omp simd)
        for (size_t i = 0; i < C; i++) d[i] = scale * (of[i] * share - d[i]);
        close_row(o->type, dx, r * C, d, C);
    }
}

void ops_softmax_backward(ops_ctx *o, void *logits, const ops_softmax *s, const int *targets,
                          const ops_tile *t, float scale, size_t R) {
    if (o->status) return;
    ROWS(o)
    for (size_t r = 0; r < R; r++) {
        const size_t target = (size_t)targets[r] - t->first;
        const float most = s->most[r], share = scale / s->sum[r];
        float *x = open_row(o->type, room(o, 0), logits, r * t->rows, t->rows);
        OMP(omp simd)
        for (size_t i = 0; i < t->valid; i++) x[i] = exp_of(x[i] - most) * share;
        for (size_t i = t->valid; i < t->rows; i++) x[i] = 0.0f;
        if (target < t->rows) x[target] -= scale;
        close_row(o->type, logits, r * t->rows, x, t->rows);
    }
}

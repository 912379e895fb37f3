/* products.c - see products.h; choices as text and as files: products_text.c. */
#include "products.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <dnnl.h>

/* ---- the ways to compute a product --------------------------------------------------------- */

static int sgemm(const matmul *p, const float *a, const float *b, float *c) {
    return (int)dnnl_sgemm(p->ta, p->tb, (dnnl_dim_t)p->m, (dnnl_dim_t)p->n, (dnnl_dim_t)p->k, 1.0f,
                           a, (dnnl_dim_t)p->gap_a, b, (dnnl_dim_t)p->gap_b, p->add ? 1.0f : 0.0f,
                           c, (dnnl_dim_t)p->gap_c);
}

/* PRODUCT_APART copies blocks of the operands, and calls sgemm for them. With AVX2 oneDNN reads
   operands with few rows or columns in place. If the bytes of a row are a multiple of 512, its rows
   begin in the same few sets of the cache, and a product can lose half of its rate. The rows of a
   copy are GAP further apart. */
enum {
    WIDTH = 512,                          /* rows and columns of c that one call computes */
    DEPTH = 256,                          /* of k */
    GAP = 16,                             /* floats between the rows of a copy */
    COPY = (WIDTH + GAP) * (DEPTH + GAP), /* floats of a block, transposed or not */
    APART_BYTES = 2 * COPY * (int)sizeof(float)
};

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

/* Copies a block (rows, columns) of a matrix. Rows of the matrix are `gap` elements apart. */
static void copy_block(float *to, const float *from, size_t rows, size_t columns, size_t gap) {
#ifdef _OPENMP
#pragma omp parallel for schedule(static)
#endif
    for (size_t r = 0; r < rows; r++)
        memcpy(to + r * (columns + GAP), from + r * gap, columns * sizeof *to);
}

/* Copies the block at (row, column) of an operand. Returns the distance of its rows in `to`. */
static size_t take_block(float *to, const float *from, char transposed, size_t gap,
                         const size_t at[2], const size_t size[2]) {
    const int t = transposed == 'T';
    copy_block(to, from + at[t] * gap + at[!t], size[t], size[!t], gap);
    return size[!t] + GAP;
}

static int multiply_apart(matmuls *kept, const matmul *p, const float *a, const float *b,
                          float *c) {
    float *fa = (float *)matmul_scratch(kept, APART_BYTES);
    if (!fa) return dnnl_out_of_memory;
    float *fb = fa + COPY;
    for (size_t l = 0; l < p->k; l += DEPTH)
        for (size_t j = 0; j < p->n; j += WIDTH) {
            matmul s = *p;
            s.k = least(DEPTH, p->k - l);
            s.n = least(WIDTH, p->n - j);
            s.add = l || p->add;
            s.gap_b = take_block(fb, b, p->tb, p->gap_b, (size_t[]){l, j}, (size_t[]){s.k, s.n});
            for (size_t i = 0; i < p->m; i += WIDTH) {
                s.m = least(WIDTH, p->m - i);
                s.gap_a =
                    take_block(fa, a, p->ta, p->gap_a, (size_t[]){i, l}, (size_t[]){s.m, s.k});
                const int status = sgemm(&s, fa, fb, c + i * p->gap_c + j);
                if (status) return status;
            }
        }
    return dnnl_success;
}

int products_multiply_by(product_way way, matmuls *kept, const matmul *p, const float *a,
                         const float *b, float *c) {
    matmul by = *p;
    if (way == PRODUCT_SGEMM) return sgemm(p, a, b, c);
    if (way == PRODUCT_APART) return multiply_apart(kept, p, a, b, c);
    by.packed = way == PRODUCT_PACKED;
    return matmul_run(kept, &by, a, b, c);
}

int products_multiply(const products_choice *chosen, matmuls *kept, const matmul *p, const float *a,
                      const float *b, float *c) {
    return products_multiply_by(products_way(chosen, p->ta, p->tb, p->m, p->n, p->k), kept, p, a, b,
                                c);
}

const char *products_name(product_way way) {
    static const char *const names[PRODUCT_WAYS] = {"sgemm", "matmul", "packed", "apart"};
    return names[way];
}

/* ---- the table ----------------------------------------------------------------------------- */

enum { ANY = -1, INTEL, AMD, OTHER };
enum { AMX, AVX512, AVX2, LESS };

static int maker(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_is("intel")) return INTEL;
    if (__builtin_cpu_is("amd")) return AMD;
#endif
    return OTHER;
}

/* Returns the instruction set that oneDNN uses. */
static int instructions(void) {
    static const int isa[] = {dnnl_cpu_isa_avx512_core_amx, dnnl_cpu_isa_avx512_core,
                              dnnl_cpu_isa_avx2};
    const int has = (int)dnnl_get_effective_cpu_isa();
    int i = 0;
    while (i < LESS && (has & isa[i]) != isa[i]) i++;
    return i;
}

static const char *const processors[][LESS + 1] = {
    {"Intel, AMX", "Intel, AVX-512", "Intel, AVX2", "Intel"},
    {"AMD, AMX", "AMD, AVX-512", "AMD, AVX2", "AMD"},
    {"other, AMX", "other, AVX-512", "other, AVX2", "other"}};

const char *products_processor(void) { return processors[maker()][instructions()]; }

/* A product takes the way of the first row that fits. A shape has a row if another way was measured
   to be 5 % faster than sgemm; tests/figures.md has the figures. */
static const struct {
    signed char maker, instructions;
    char ta, tb; /* 0: any */
    product_way way;
    size_t m[3], n[3], k[3]; /* from, to, multiples of; {0}: any */
} defaults[] = {
    {INTEL, AMX, 'T', 'N', PRODUCT_MATMUL, {1536, 2048, 1}, {384, 512, 1}, {1024, 4096, 1}},
    {INTEL, AMX, 'N', 'T', PRODUCT_MATMUL, {768, 768, 1}, {128, 128, 1}, {512, 512, 1}},
    {AMD, AVX2, 'T', 'N', PRODUCT_APART, {128, 4096, 128}, {128, 256, 128}, {0}},
    {AMD, AVX2, 'T', 'N', PRODUCT_APART, {128, 256, 128}, {384, 4096, 128}, {0}},
    {AMD, AVX2, 'T', 'N', PRODUCT_APART, {384, 512, 128}, {384, 512, 128}, {0}},
    {AMD, AVX2, 'N', 'N', PRODUCT_APART, {16, 256, 1}, {512, 4096, 512}, {0}},
    {AMD, AVX2, 'N', 'N', PRODUCT_APART, {257, 512, 1}, {512, 512, 1}, {0}},
    {AMD, AVX2, 'N', 'N', PRODUCT_APART, {256, 384, 1}, {768, 768, 1}, {1024, 4096, 1024}},
    {ANY, ANY, 0, 0, PRODUCT_SGEMM, {0}, {0}, {0}},
};

static int fits(const size_t range[3], size_t n) {
    return !range[1] || (n >= range[0] && n <= range[1] && n % range[2] == 0);
}

const products_line *products_find(const products_choice *c, char ta, char tb, size_t m, size_t n,
                                   size_t k) {
    for (int i = 0; i < c->lines; i++) {
        const products_line *l = &c->line[i];
        if (l->ta == ta && l->tb == tb && l->m == m && l->n == n && l->k == k) return l;
    }
    return NULL;
}

static int is_for(size_t row, int by, int has) {
    return (defaults[row].maker == ANY || defaults[row].maker == by)
           && (defaults[row].instructions == ANY || defaults[row].instructions == has);
}

size_t products_scratch_bytes(void) {
    for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++)
        if (defaults[i].way == PRODUCT_APART && is_for(i, maker(), instructions()))
            return APART_BYTES;
    return 0;
}

static product_way table_way(int by, int has, char ta, char tb, size_t m, size_t n, size_t k) {
    for (size_t i = 0;; i++)
        if (is_for(i, by, has)
            && (!defaults[i].ta || (defaults[i].ta == ta && defaults[i].tb == tb))
            && fits(defaults[i].m, m) && fits(defaults[i].n, n) && fits(defaults[i].k, k))
            return defaults[i].way;
}

product_way products_table(const char *processor, char ta, char tb, size_t m, size_t n, size_t k) {
    enum { EACH = LESS + 1, LAST = (OTHER + 1) * EACH - 1 };
    int i = 0;
    while (i < LAST && strcmp(processor, processors[i / EACH][i % EACH]) != 0) i++;
    return table_way(i / EACH, i % EACH, ta, tb, m, n, k);
}

product_way products_way(const products_choice *chosen, char ta, char tb, size_t m, size_t n,
                         size_t k) {
    const products_line *line = chosen ? products_find(chosen, ta, tb, m, n, k) : NULL;
    return line ? line->way : table_way(maker(), instructions(), ta, tb, m, n, k);
}

void products_add(products_choice *c, char ta, char tb, size_t m, size_t n, size_t k) {
    const products_line l = {ta, tb, m, n, k, products_way(NULL, ta, tb, m, n, k), {0}};
    if (c->lines < PRODUCTS_MOST && !products_find(c, ta, tb, m, n, k)) c->line[c->lines++] = l;
}

/* ---- measuring ----------------------------------------------------------------------------- */

static double seconds(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void measure_line(products_line *l, matmuls *kept, const float *a, const float *b,
                         float *c) {
    const int tn = l->ta == 'T', nt = l->tb == 'T';
    const matmul p = {l->ta, l->tb,    l->m,     l->n, l->k, tn ? l->m : l->k, nt ? l->k : l->n,
                      l->n,  ZERO_F32, ZERO_F32, tn,   0};
    const double work = 2.0 * (double)l->m * (double)l->n * (double)l->k;
    const int rounds = work > 2e9 ? 4 : work > 2e8 ? 6 : 10; /* the first creates primitives */
    for (int w = 0; w < PRODUCT_WAYS; w++) l->rates[w] = 0;
    for (int i = 0; i < rounds; i++)
        for (int w = 0; w < PRODUCT_WAYS; w++) {
            double t = seconds();
            const int failed = products_multiply_by((product_way)w, kept, &p, a, b, c);
            t = seconds() - t;
            if (!failed && t > 0 && work / t > l->rates[w]) l->rates[w] = work / t;
        }
    int best = (int)l->way;
    for (int w = 0; w < PRODUCT_WAYS; w++)
        if (l->rates[w] > l->rates[best] && l->rates[w] > 1.05 * l->rates[l->way]) best = w;
    l->way = (product_way)best;
}

static float *floats(size_t n) { return (float *)aligned_alloc(64, (4 * n + 63) / 64 * 64); }

int products_measure(products_choice *choice) {
    size_t most[3] = {1, 1, 1};
    for (int i = 0; i < choice->lines; i++) {
        const products_line *l = &choice->line[i];
        const size_t sizes[3] = {l->m * l->k, l->k * l->n, l->m * l->n};
        for (int k = 0; k < 3; k++)
            if (sizes[k] > most[k]) most[k] = sizes[k];
    }
    float *a = floats(most[0]), *b = floats(most[1]), *c = floats(most[2]);
    matmuls *kept = matmul_open();
    const int failed = !a || !b || !c || !kept;
    for (size_t i = 0; !failed && i < most[0]; i++) a[i] = (float)(i % 7) - 3.0f;
    for (size_t i = 0; !failed && i < most[1]; i++) b[i] = (float)(i % 5) - 2.0f;
    if (!failed) memset(c, 0, most[2] * sizeof *c);
    for (int i = 0; !failed && i < choice->lines; i++)
        measure_line(&choice->line[i], kept, a, b, c);
    free(a);
    free(b);
    free(c);
    matmul_close(kept);
    return failed;
}

/* products.c - see products.h; choices as text and as files: products_text.c. */
#include "products.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <dnnl.h>

/* ---- ways ---------------------------------------------------------------------------------- */

static int sgemm(const matmul *p, const float *a, const float *b, float *c) {
    return (int)dnnl_sgemm(p->ta, p->tb, (dnnl_dim_t)p->m, (dnnl_dim_t)p->n, (dnnl_dim_t)p->k, 1.0f,
                           a, (dnnl_dim_t)p->gap_a, b, (dnnl_dim_t)p->gap_b, p->add ? 1.0f : 0.0f,
                           c, (dnnl_dim_t)p->gap_c);
}

int products_multiply_by(product_way way, matmuls *kept, const matmul *p, const float *a,
                         const float *b, float *c) {
    matmul by = *p;
    if (way == PRODUCT_SGEMM) return sgemm(p, a, b, c);
    by.packed = way == PRODUCT_PACKED;
    return matmul_run(kept, &by, a, b, c);
}

int products_multiply(const products_choice *chosen, matmuls *kept, const matmul *p, const float *a,
                      const float *b, float *c) {
    return products_multiply_by(products_way(chosen, p->ta, p->tb, p->m, p->n, p->k), kept, p, a, b,
                                c);
}

const char *products_name(product_way way) {
    static const char *const names[PRODUCT_WAYS] = {"sgemm", "matmul", "packed"};
    return names[way];
}

/* ---- which way ----------------------------------------------------------------------------- */

enum { ANY = -1, INTEL, AMD, OTHER };
enum { AMX, AVX512, AVX2, LESS };

static int maker(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_is("intel")) return INTEL;
    if (__builtin_cpu_is("amd")) return AMD;
#endif
    return OTHER;
}

/* What oneDNN goes by. */
static int instructions(void) {
    static const int isa[] = {dnnl_cpu_isa_avx512_core_amx, dnnl_cpu_isa_avx512_core,
                              dnnl_cpu_isa_avx2};
    const int has = (int)dnnl_get_effective_cpu_isa();
    int i = 0;
    while (i < LESS && (has & isa[i]) != isa[i]) i++;
    return i;
}

const char *products_processor(void) {
    static const char *const names[3][4] = {
        {"Intel, AMX", "Intel, AVX-512", "Intel, AVX2", "Intel"},
        {"AMD, AMX", "AMD, AVX-512", "AMD, AVX2", "AMD"},
        {"other, AMX", "other, AVX-512", "other, AVX2", "other"}};
    return names[maker()][instructions()];
}

/* The first row that fits counts. A way other than sgemm is here for what was measured to be 5 %
   faster by it; figures are in tests/figures.md. */
static const struct {
    int maker, instructions;
    char ta, tb;             /* 0: any */
    size_t m[2], n[2], k[2]; /* from, to; 0, 0: any */
    product_way way;
} defaults[] = {
    {INTEL, AMX, 'T', 'N', {1536, 2048}, {384, 512}, {1024, 4096}, PRODUCT_MATMUL},
    {INTEL, AMX, 'N', 'T', {768, 768}, {128, 128}, {512, 512}, PRODUCT_MATMUL},
    {ANY, ANY, 0, 0, {0, 0}, {0, 0}, {0, 0}, PRODUCT_SGEMM},
};

static int fits(const size_t range[2], size_t n) {
    return !range[1] || (n >= range[0] && n <= range[1]);
}

const products_line *products_find(const products_choice *c, char ta, char tb, size_t m, size_t n,
                                   size_t k) {
    for (int i = 0; i < c->lines; i++) {
        const products_line *l = &c->line[i];
        if (l->ta == ta && l->tb == tb && l->m == m && l->n == n && l->k == k) return l;
    }
    return NULL;
}

product_way products_way(const products_choice *chosen, char ta, char tb, size_t m, size_t n,
                         size_t k) {
    const products_line *line = chosen ? products_find(chosen, ta, tb, m, n, k) : NULL;
    const int by = maker(), has = instructions();
    if (line) return line->way;
    for (size_t i = 0;; i++)
        if ((defaults[i].maker == ANY || defaults[i].maker == by)
            && (defaults[i].instructions == ANY || defaults[i].instructions == has)
            && (!defaults[i].ta || (defaults[i].ta == ta && defaults[i].tb == tb))
            && fits(defaults[i].m, m) && fits(defaults[i].n, n) && fits(defaults[i].k, k))
            return defaults[i].way;
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
    const int rounds = work > 2e9 ? 4 : work > 2e8 ? 6 : 10; /* the first makes primitives */
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

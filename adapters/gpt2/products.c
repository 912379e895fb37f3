/* products.c - see products.h. */
#include "products.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <dnnl.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "vectors.h"

#if defined(__GNUC__) && !defined(__clang__)
#define UNROLL _Pragma("GCC unroll 16") /* or sums pass through memory */
#else
#define UNROLL
#endif

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

/* ---- tiles --------------------------------------------------------------------------------- */

/* Goto and van de Geijn 2008: a block of a stays in the second cache, a panel of b in the first,
   and tiles of c in registers.

       c (m, n)      a block of a: up to ROWS x DEPTH        a panel of b: DEPTH x COLUMNS
       +--+--+--     +-----------+                           +--+
       |  |  |       | strip     | up to STRIP rows          |  |
       +--+--+--     +-----------+                           |  |
       |  |  |       | strip     |                           |  |
                                                             +--+
   An element of c is one chain of fused multiply-adds in the order of k, which leaves the registers
   between blocks of k alone: neither threads nor the cuts of m and n are in its bits. */
enum {
    COLUMNS = 2 * LANES,
    STRIP = LANES == 16  ? 14
            : LANES == 8 ? 6
                         : 4, /* with two vectors each, what registers hold */
    DEPTH = 256,
    ROWS = 56 * STRIP,
    LEAP = DEPTH + 16, /* from row to row of a block: not all in the same lines of the cache */
    BLOCK_FLOATS = ROWS * LEAP,
    PANEL_FLOATS = DEPTH * COLUMNS,
    EDGE_FLOATS = STRIP * COLUMNS
};

/* c (rows, COLUMNS) = a (rows, depth) b (depth, COLUMNS), or +=. Element (i, k) of a is
   a[i am + k ak]. Inlined where `rows`, am and ak are constants, so that sums are registers. */
static inline __attribute__((always_inline)) void tile(const size_t rows, float *c, size_t gap_c,
                                                       const float *a, const size_t am,
                                                       const size_t ak, const float *b,
                                                       size_t depth, int add) {
    vec sum[STRIP][2];
    UNROLL
    for (size_t i = 0; i < rows; i++) sum[i][0] = sum[i][1] = vec_set(0.0f);
    if (add) {
        UNROLL
        for (size_t i = 0; i < rows; i++) {
            sum[i][0] = vec_load(c + i * gap_c);
            sum[i][1] = vec_load(c + i * gap_c + LANES);
        }
    }
    for (size_t k = 0; k < depth; k++, a += ak, b += COLUMNS) {
        const vec b0 = vec_load(b), b1 = vec_load(b + LANES);
        UNROLL
        for (size_t i = 0; i < rows; i++) {
            const vec x = vec_set(a[i * am]);
            sum[i][0] = vec_fma(x, b0, sum[i][0]);
            sum[i][1] = vec_fma(x, b1, sum[i][1]);
        }
    }
    UNROLL
    for (size_t i = 0; i < rows; i++) {
        vec_store(c + i * gap_c, sum[i][0]);
        vec_store(c + i * gap_c + LANES, sum[i][1]);
    }
}

/* A strip of a: rows LEAP apart, or, of an a that lies transposed, columns STRIP apart. */
typedef struct strip {
    const float *a;
    size_t first, rows; /* of the product */
    int turned;
} strip;

#define STRIP_OF(n)                                                                                \
    case n:                                                                                        \
        if (s->turned)                                                                             \
            tile(n, c, gap_c, s->a, 1, STRIP, b, depth, add);                                      \
        else                                                                                       \
            tile(n, c, gap_c, s->a, LEAP, 1, b, depth, add);                                       \
        return;

static void strip_tile(const strip *s, float *c, size_t gap_c, const float *b, size_t depth,
                       int add) {
    switch (s->rows) {
        STRIP_OF(1)
        STRIP_OF(2)
        STRIP_OF(3)
        STRIP_OF(4)
#if defined(__AVX512F__) || defined(__AVX2__)
        STRIP_OF(5)
        STRIP_OF(6)
#endif
#ifdef __AVX512F__
        STRIP_OF(7)
        STRIP_OF(8)
        STRIP_OF(9)
        STRIP_OF(10)
        STRIP_OF(11)
        STRIP_OF(12)
        STRIP_OF(13)
        STRIP_OF(14)
#endif
    default: return;
    }
}

/* Rows [first, first + rows) of a block of a that has columns [at, at + depth) of a. */
static strip pack_strip(float *to, const f32_product *p, size_t first, size_t rows, size_t at,
                        size_t depth) {
    const strip s = {to, first, rows, p->ta == 'T'};
    const float *from = p->a + (s.turned ? at * p->gap_a + first : first * p->gap_a + at);
    const size_t wide = first + STRIP <= p->m ? STRIP : rows; /* a constant copies faster */
    if (!s.turned)
        for (size_t i = 0; i < rows; i++)
            memcpy(to + i * LEAP, from + i * p->gap_a, depth * sizeof(float));
    else if (wide == STRIP)
        for (size_t k = 0; k < depth; k++)
            memcpy(to + k * STRIP, from + k * p->gap_a, STRIP * sizeof(float));
    else
        for (size_t k = 0; k < depth; k++)
            memcpy(to + k * STRIP, from + k * p->gap_a, wide * sizeof(float));
    return s;
}

/* Rows [at, at + depth), columns [first, first + columns) of b, zeros beyond. */
static void pack_panel(float *to, const f32_product *p, size_t at, size_t depth, size_t first,
                       size_t columns) {
    const int turned = p->tb == 'T', whole = columns == COLUMNS;
    const float *from = p->b + (turned ? first * p->gap_b + at : at * p->gap_b + first);
    size_t k = 0;
    if (!turned && whole)
        for (; k < depth; k++)
            memcpy(to + k * COLUMNS, from + k * p->gap_b, COLUMNS * sizeof(float));
    if (turned && whole)
        for (; k + LANES <= depth; k += LANES)
            for (size_t j = 0; j < COLUMNS; j += LANES) {
                vec rows[LANES];
                for (size_t i = 0; i < LANES; i++)
                    rows[i] = vec_load(from + (j + i) * p->gap_b + k);
                transpose(rows);
                for (size_t i = 0; i < LANES; i++) vec_store(to + (k + i) * COLUMNS + j, rows[i]);
            }
    for (; k < depth; k++)
        for (size_t j = 0; j < COLUMNS; j++)
            to[k * COLUMNS + j] = j >= columns ? 0.0f
                                  : turned     ? from[j * p->gap_b + k]
                                               : from[k * p->gap_b + j];
}

/* The tile at the right edge of c, through a whole one beside it. */
static void edge_tile(const strip *s, float *c, size_t gap_c, const float *b, size_t depth, int add,
                      float *edge, size_t columns) {
    for (size_t i = 0; i < s->rows && add; i++)
        memcpy(edge + i * COLUMNS, c + i * gap_c, columns * sizeof(float));
    strip_tile(s, edge, COLUMNS, b, depth, add);
    for (size_t i = 0; i < s->rows; i++)
        memcpy(c + i * gap_c, edge + i * COLUMNS, columns * sizeof(float));
}

/* Rows [first, end) and columns [left, right) of c, of a's columns [at, at + depth). */
static void block_product(const f32_product *p, size_t first, size_t end, size_t left, size_t right,
                          size_t at, size_t depth, float *scratch) {
    const size_t strips = (end - first + STRIP - 1) / STRIP;
    float *panel = scratch + BLOCK_FLOATS, *edge = panel + PANEL_FLOATS;
    const int add = p->add || at > 0;
    strip s[ROWS / STRIP];
    for (size_t i = 0; i < strips; i++) {
        const size_t from = first + (end - first) * i / strips;
        const size_t to = first + (end - first) * (i + 1) / strips;
        s[i] = pack_strip(scratch + i * STRIP * LEAP, p, from, to - from, at, depth);
    }
    for (size_t j = left; j < right; j += COLUMNS) {
        const size_t columns = least(COLUMNS, right - j);
        pack_panel(panel, p, at, depth, j, columns);
        for (size_t i = 0; i < strips; i++) {
            float *c = p->c + s[i].first * p->gap_c + j;
            if (columns == COLUMNS)
                strip_tile(&s[i], c, p->gap_c, panel, depth, add);
            else
                edge_tile(&s[i], c, p->gap_c, panel, depth, add, edge, columns);
        }
    }
}

/* A part of c: blocks of equal size, as far as that goes. */
static void part_product(const f32_product *p, size_t first, size_t end, size_t left, size_t right,
                         float *scratch) {
    const size_t depths = (p->k + DEPTH - 1) / DEPTH, blocks = (end - first + ROWS - 1) / ROWS;
    for (size_t q = 0; q < depths; q++) {
        const size_t at = p->k * q / depths, depth = p->k * (q + 1) / depths - at;
        for (size_t i = 0; i < blocks; i++)
            block_product(p, first + (end - first) * i / blocks,
                          first + (end - first) * (i + 1) / blocks, left, right, at, depth,
                          scratch);
    }
}

enum { THREAD_FLOATS = BLOCK_FLOATS + PANEL_FLOATS + EDGE_FLOATS };

size_t products_scratch(size_t threads) { return threads * THREAD_FLOATS; }

/* Threads divide the longer side of c. */
static int tiles(const f32_product *p, float *scratch, size_t threads) {
    const size_t panels = (p->n + COLUMNS - 1) / COLUMNS;
    const int by_rows = p->m > p->n;
#ifdef _OPENMP
#pragma omp parallel for num_threads((int)threads) schedule(static)
#endif
    for (size_t t = 0; t < threads; t++) {
        const size_t first = by_rows ? p->m * t / threads : 0;
        const size_t end = by_rows ? p->m * (t + 1) / threads : p->m;
        const size_t left = by_rows ? 0 : panels * t / threads * COLUMNS;
        const size_t right = by_rows ? p->n : least(panels * (t + 1) / threads * COLUMNS, p->n);
        if (first < end && left < right)
            part_product(p, first, end, left, right, scratch + t * THREAD_FLOATS);
    }
    return 0;
}

/* ---- oneDNN -------------------------------------------------------------------------------- */

static int sgemm(const f32_product *p, float *scratch, size_t threads) {
    (void)scratch;
    (void)threads; /* as many as OpenMP has */
    return (int)dnnl_sgemm(p->ta, p->tb, (dnnl_dim_t)p->m, (dnnl_dim_t)p->n, (dnnl_dim_t)p->k, 1.0f,
                           p->a, (dnnl_dim_t)p->gap_a, p->b, (dnnl_dim_t)p->gap_b,
                           p->add ? 1.0f : 0.0f, p->c, (dnnl_dim_t)p->gap_c);
}

/* ---- which way ----------------------------------------------------------------------------- */

typedef int (*product_fn)(const f32_product *p, float *scratch, size_t threads);

static const struct {
    const char *name;
    product_fn multiply;
} ways[PRODUCT_WAYS] = {{"sgemm", sgemm}, {"tiles", tiles}};

enum { ANY_PROCESSOR = 0, INTEL, AMD };

static int processor(void) {
#if defined(__x86_64__)
    if (__builtin_cpu_is("intel")) return INTEL;
    if (__builtin_cpu_is("amd")) return AMD;
#endif
    return ANY_PROCESSOR;
}

/* The first row that fits counts; figures are in tests/figures.md. */
static const struct {
    int processor, lanes; /* 0: any */
    char ta;              /* 0: any */
    size_t longer, k;     /* the longer of m and n, and k, at least */
    product_way way;
} defaults[] = {
    {INTEL, 16, 'T', 1536, 2048, PRODUCT_TILES},
    {ANY_PROCESSOR, 0, 0, 0, 0, PRODUCT_SGEMM},
};

product_way products_way(const products_choice *chosen, char ta, char tb, size_t m, size_t n,
                         size_t k) {
    const int is = processor();
    for (int i = 0; chosen && i < chosen->lines; i++) {
        const products_line *l = &chosen->line[i];
        if (l->ta == ta && l->tb == tb && l->m == m && l->n == n && l->k == k) return l->way;
    }
    for (size_t i = 0;; i++)
        if ((!defaults[i].processor || defaults[i].processor == is)
            && (!defaults[i].lanes || defaults[i].lanes == LANES)
            && (!defaults[i].ta || defaults[i].ta == ta) && k >= defaults[i].k
            && (m >= defaults[i].longer || n >= defaults[i].longer))
            return defaults[i].way;
}

const char *products_name(product_way way) { return ways[way].name; }

/* What the table goes by. */
static const char *processor_name(void) {
    static const char *const names[3][3] = {{"other, 4 lanes", "other, 8 lanes", "other, 16 lanes"},
                                            {"Intel, 4 lanes", "Intel, 8 lanes", "Intel, 16 lanes"},
                                            {"AMD, 4 lanes", "AMD, 8 lanes", "AMD, 16 lanes"}};
    return names[processor()][LANES / 8];
}

int products_multiply_by(product_way way, const f32_product *p, float *scratch, size_t threads) {
    return ways[way].multiply(p, scratch, threads);
}

int products_multiply(const products_choice *chosen, const f32_product *p, float *scratch,
                      size_t threads) {
    return products_multiply_by(products_way(chosen, p->ta, p->tb, p->m, p->n, p->k), p, scratch,
                                threads);
}

static int is_known(const products_choice *c, const products_line *l) {
    for (int i = 0; i < c->lines; i++) {
        const products_line *k = &c->line[i];
        if (k->ta == l->ta && k->tb == l->tb && k->m == l->m && k->n == l->n && k->k == l->k)
            return 1;
    }
    return 0;
}

void products_add(products_choice *c, char ta, char tb, size_t m, size_t n, size_t k) {
    products_line l;
    memset(&l, 0, sizeof l);
    l.ta = ta;
    l.tb = tb;
    l.m = m;
    l.n = n;
    l.k = k;
    l.way = products_way(NULL, ta, tb, m, n, k);
    if (c->lines < PRODUCTS_MOST && !is_known(c, &l)) c->line[c->lines++] = l;
}

/* ---- measuring ----------------------------------------------------------------------------- */

static double seconds(void) {
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void measure_line(products_line *l, float *a, float *b, float *c, float *scratch,
                         size_t threads) {
    const f32_product p = {l->ta,
                           l->tb,
                           l->m,
                           l->n,
                           l->k,
                           a,
                           b,
                           c,
                           l->ta == 'T' ? l->m : l->k,
                           l->tb == 'T' ? l->k : l->n,
                           l->n,
                           l->ta == 'T'};
    const double work = 2.0 * (double)l->m * (double)l->n * (double)l->k;
    const int rounds = work > 2e9 ? 3 : work > 2e8 ? 5 : 9;
    for (int w = 0; w < PRODUCT_WAYS; w++) l->rates[w] = 0;
    for (int i = 0; i < rounds; i++)
        for (int w = 0; w < PRODUCT_WAYS; w++) {
            double t = seconds();
            const int failed = ways[w].multiply(&p, scratch, threads);
            t = seconds() - t;
            if (!failed && t > 0 && work / t > l->rates[w]) l->rates[w] = work / t;
        }
    for (int w = 0; w < PRODUCT_WAYS; w++)
        if (l->rates[w] > l->rates[l->way]) l->way = (product_way)w;
}

static float *floats(size_t n) { return (float *)aligned_alloc(64, (4 * n + 63) / 64 * 64); }

int products_measure(products_choice *choice, size_t threads) {
    size_t most[3] = {1, 1, 1};
    for (int i = 0; i < choice->lines; i++) {
        const products_line *l = &choice->line[i];
        const size_t sizes[3] = {l->m * l->k, l->k * l->n, l->m * l->n};
        for (int k = 0; k < 3; k++)
            if (sizes[k] > most[k]) most[k] = sizes[k];
    }
    float *a = floats(most[0]), *b = floats(most[1]), *c = floats(most[2]);
    float *scratch = floats(products_scratch(threads));
    const int failed = !a || !b || !c || !scratch;
    for (size_t i = 0; !failed && i < most[0]; i++) a[i] = (float)(i % 7) - 3.0f;
    for (size_t i = 0; !failed && i < most[1]; i++) b[i] = (float)(i % 5) - 2.0f;
    if (!failed) memset(c, 0, most[2] * sizeof *c);
    for (int i = 0; !failed && i < choice->lines; i++)
        measure_line(&choice->line[i], a, b, c, scratch, threads);
    free(a);
    free(b);
    free(c);
    free(scratch);
    return failed;
}

/* ---- as text ------------------------------------------------------------------------------- */

static int find_way(const char *name) {
    for (int w = 0; w < PRODUCT_WAYS; w++)
        if (!strcmp(name, ways[w].name)) return w;
    return -1;
}

/* Why a line, without its comment, says no shape; NULL: it does, and was added. */
static const char *parse_line(products_choice *c, const char *line) {
    char kind[4], way[16];
    products_line l;
    int end = 0;
    memset(&l, 0, sizeof l);
    if (sscanf(line, "%3s %zu %zu %zu %15s %n", kind, &l.m, &l.n, &l.k, way, &end) != 5 || line[end]
        || strchr(line, '-'))
        return "expected KIND M N K WAY";
    if (strcmp(kind, "NN") && strcmp(kind, "NT") && strcmp(kind, "TN") && strcmp(kind, "TT"))
        return "a product is NN, NT, TN or TT";
    l.ta = kind[0];
    l.tb = kind[1];
    if (!l.m || !l.n || !l.k || l.m > 1 << 24 || l.n > 1 << 24 || l.k > 1 << 24)
        return "sizes are 1 to 16777216";
    const int found = find_way(way);
    if (found < 0) return "known ways are sgemm and tiles";
    l.way = (product_way)found;
    if (is_known(c, &l)) return "this product has a line already";
    if (c->lines == PRODUCTS_MOST) return "there are more than 64 products";
    c->line[c->lines++] = l;
    return NULL;
}

int products_parse(products_choice *c, const char *text, char *sentence, size_t bytes) {
    memset(c, 0, sizeof *c);
    for (int number = 1; *text; number++) {
        char line[128];
        const size_t all = strcspn(text, "\n"), said = strcspn(text, "#\n");
        const char *why = said >= sizeof line ? "a line is too long" : NULL;
        memcpy(line, text, why ? 0 : said);
        line[why ? 0 : said] = '\0';
        if (!why && line[strspn(line, " \t\r")]) why = parse_line(c, line);
        if (why) {
            (void)snprintf(sentence, bytes, "%d: %s", number, why);
            return 1;
        }
        text += all + (text[all] == '\n');
    }
    return 0;
}

/* The choice alone, of line i. */
static int print_line(const products_line *l, char *text, size_t bytes) {
    return snprintf(text, bytes, "%c%c %zu %zu %zu %s", l->ta, l->tb, l->m, l->n, l->k,
                    ways[l->way].name);
}

size_t products_print(const products_choice *c, size_t threads, char *text, size_t bytes) {
    size_t at = (size_t)snprintf(text, bytes, "# %zu thread%s, %s; GFLOP/s of", threads,
                                 threads == 1 ? "" : "s", processor_name());
    for (int w = 0; w < PRODUCT_WAYS; w++)
        at += (size_t)snprintf(text + at, bytes - at, " %s", ways[w].name);
    at += (size_t)snprintf(text + at, bytes - at, "\n");
    for (int i = 0; i < c->lines && at < bytes; i++) {
        at += (size_t)print_line(&c->line[i], text + at, bytes - at);
        for (int w = 0; w < PRODUCT_WAYS && at < bytes; w++)
            at += (size_t)snprintf(text + at, bytes - at, "%s %.1f", w ? "" : " #",
                                   c->line[i].rates[w] * 1e-9);
        if (at < bytes) at += (size_t)snprintf(text + at, bytes - at, "\n");
    }
    return at;
}

static uint64_t hash_of(const products_choice *c) {
    char line[128];
    uint64_t hash = 0xCBF29CE484222325u; /* FNV-1a (Fowler, Noll, Vo) */
    for (int i = 0; i < c->lines; i++) {
        (void)print_line(&c->line[i], line, sizeof line);
        for (const char *p = line; *p; p++) hash = (hash ^ (unsigned char)*p) * 0x100000001B3u;
        hash = (hash ^ '\n') * 0x100000001B3u;
    }
    return c->lines ? hash : 0;
}

/* ---- a file -------------------------------------------------------------------------------- */

static int say_file(char *sentence, size_t bytes, const char *path, const char *what) {
    (void)snprintf(sentence, bytes, "%.150s: %s", path, what);
    return 1;
}

/* Under another name first: nobody reads half of it. */
static int write_choice(const products_choice *c, const char *path, size_t threads, char *sentence,
                        size_t bytes) {
    char text[PRODUCTS_TEXT], part[1024];
    const size_t length = products_print(c, threads, text, sizeof text);
    (void)snprintf(part, sizeof part, "%.1000s.part", path);
    FILE *f = fopen(part, "w");
    int failed = !f || fwrite(text, 1, length, f) != length;
    if (f && fclose(f)) failed = 1;
    if (!failed && !rename(part, path)) return 0;
    const int number = errno;
    if (f) (void)remove(part);
    return say_file(sentence, bytes, path, strerror(number));
}

/* Returns 2 where there is no file. */
static int read_choice(products_choice *c, const char *path, char *sentence, size_t bytes) {
    char text[PRODUCTS_TEXT], why[128];
    FILE *f = fopen(path, "r");
    if (!f && errno == ENOENT) return 2;
    if (!f) return say_file(sentence, bytes, path, strerror(errno));
    const size_t length = fread(text, 1, sizeof text - 1, f);
    const int failed = ferror(f), number = errno, more = fgetc(f) != EOF;
    (void)fclose(f);
    text[length] = '\0';
    if (failed) return say_file(sentence, bytes, path, strerror(number));
    if (more) return say_file(sentence, bytes, path, "is longer than a choice");
    if (strlen(text) != length) return say_file(sentence, bytes, path, "is no text");
    if (!products_parse(c, text, why, sizeof why)) return 0;
    (void)snprintf(sentence, bytes, "%.150s:%s", path, why);
    return 1;
}

int products_open(products_choice *c, const char *path, size_t threads, char *sentence,
                  size_t bytes) {
    products_choice wanted = *c;
    memset(c, 0, sizeof *c);
    (void)snprintf(c->name, sizeof c->name, "table for %s", processor_name());
    if (!path[0]) return 0;
    int result = read_choice(c, path, sentence, bytes);
    if (result == 1) return 1;
    if (result == 2) {
        *c = wanted;
        if (products_measure(c, threads))
            return say_file(sentence, bytes, path, "no memory to measure products in");
        if (write_choice(c, path, threads, sentence, bytes)) return 1;
    }
    c->hash = hash_of(c);
    (void)snprintf(c->name, sizeof c->name, "choice of hash %016llx", (unsigned long long)c->hash);
    return 0;
}

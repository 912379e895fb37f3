/* test_products.c - adapters/gpt2/products.h: every way against f64 at shapes that cross all its
   blocks; the same bits again, of other addresses and of products made anew; choices as text and as
   files, good and bad. */
#include "../shared/harness.h"

#include "../../adapters/gpt2/products.h"

#include <sys/stat.h>
#ifdef _OPENMP
#include <omp.h>
#endif

static test_random seed = {1};
static float uniform(void) { return (float)((double)(test_next(&seed) >> 11) * 0x1p-52 - 1.0); }

/* Matrices with rows apart, which what lies between would spoil. */
typedef struct matrices {
    matmul p;
    matmuls *kept;
    float *a, *b, *c, *before;
    size_t c_floats;
} matrices;

static float *floats(size_t n) { return (float *)aligned_alloc(64, (n * 4 + 63) / 64 * 64); }

static matrices make(char ta, char tb, size_t m, size_t n, size_t k, size_t apart, int add) {
    matrices x;
    const size_t wide_a = (ta == 'T' ? m : k) + apart, high_a = ta == 'T' ? k : m;
    const size_t wide_b = (tb == 'T' ? k : n) + apart, high_b = tb == 'T' ? n : k;
    x.c_floats = m * (n + apart);
    x.a = floats(wide_a * high_a);
    x.b = floats(wide_b * high_b);
    x.c = floats(x.c_floats);
    x.before = floats(x.c_floats);
    x.kept = matmul_open();
    for (size_t i = 0; i < wide_a * high_a; i++) x.a[i] = uniform();
    for (size_t i = 0; i < wide_b * high_b; i++) x.b[i] = uniform();
    for (size_t i = 0; i < x.c_floats; i++) x.before[i] = uniform();
    const matmul p = {ta, tb, m, n, k, wide_a, wide_b, n + apart, ZERO_F32, ZERO_F32, add, 0};
    x.p = p;
    return x;
}
static void drop(matrices *x) {
    free(x->a);
    free(x->b);
    free(x->c);
    free(x->before);
    matmul_close(x->kept);
}

static int multiply(const matrices *x, product_way way) {
    memcpy(x->c, x->before, x->c_floats * sizeof *x->c);
    return products_multiply_by(way, x->kept, &x->p, x->a, x->b, x->c);
}

/* The largest error, and what lies between the rows of c is as before. */
static double worst(const matrices *x) {
    const matmul *p = &x->p;
    double most = 0;
    for (size_t i = 0; i < p->m; i++)
        for (size_t j = 0; j < p->gap_c; j++) {
            const size_t at = i * p->gap_c + j;
            double sum = j >= p->n || p->add ? (double)x->before[at] : 0;
            for (size_t k = 0; k < p->k && j < p->n; k++)
                sum += (double)x->a[p->ta == 'T' ? k * p->gap_a + i : i * p->gap_a + k]
                       * (double)x->b[p->tb == 'T' ? j * p->gap_b + k : k * p->gap_b + j];
            const double error = sum - (double)x->c[at];
            if (!(error <= most && -error <= most)) most = error < 0 ? -error : error;
            if (error != error) return 1e9;
        }
    return most;
}

static void test_shape(char ta, char tb, size_t m, size_t n, size_t k, size_t apart, int add,
                       int threads) {
#ifdef _OPENMP
    omp_set_num_threads(threads);
#endif
    matrices x = make(ta, tb, m, n, k, apart, add);
    for (int way = 0; way < PRODUCT_WAYS; way++) {
        const int status = multiply(&x, (product_way)way);
        const double error = worst(&x), allowed = 4e-7 * (double)k + 1e-6;
        test_check(!status && error <= allowed, "%s %c%c %zu %zu %zu, %d threads: error %g of %g",
                   products_name((product_way)way), ta, tb, m, n, k, threads, error, allowed);
    }
    drop(&x);
}

static void test_shapes(void) {
    static const size_t sizes[][3] = {
        {1, 1, 1},      {1, 65, 33},    {14, 32, 256},   {15, 33, 257}, {29, 64, 16},
        {100, 31, 300}, {33, 95, 513},  {128, 128, 128}, {801, 40, 70}, {50, 200, 1},
        {7, 7, 600},    {1600, 33, 20}, {20, 1040, 520}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int kind = 0; kind < 16; kind++)
            test_shape(kind & 1 ? 'T' : 'N', kind & 2 ? 'T' : 'N', sizes[i][0], sizes[i][1],
                       sizes[i][2], i % 2 ? 5 : 0, kind >> 2 & 1, kind & 8 ? 3 : 1);
}

/* Equal products have equal bits: again, elsewhere in memory, and by what another context made. */
static void test_bits(char ta, char tb, int threads) {
#ifdef _OPENMP
    omp_set_num_threads(threads);
#endif
    matrices x = make(ta, tb, 390, 130, 2100, 3, 1);
    const size_t a = x.p.gap_a * (ta == 'T' ? x.p.k : x.p.m);
    float *one = floats(x.c_floats), *elsewhere = floats(a + 3);
    memcpy(elsewhere + 3, x.a, a * sizeof *x.a);
    for (int way = 0; way < PRODUCT_WAYS; way++) {
        (void)multiply(&x, (product_way)way);
        memcpy(one, x.c, x.c_floats * sizeof *one);
        for (int again = 0; again < 3; again++) {
            float *const was = x.a;
            if (again == 1) x.a = elsewhere + 3;
            if (again == 2) matmul_close(x.kept), x.kept = matmul_open();
            (void)multiply(&x, (product_way)way);
            x.a = was;
            test_check(!memcmp(one, x.c, x.c_floats * sizeof *one),
                       "%s %c%c, %d threads: other bits, %d", products_name((product_way)way), ta,
                       tb, threads, again);
        }
    }
    free(elsewhere);
    free(one);
    drop(&x);
}

/* More products than are kept: the oldest give way, and are made again. */
static void test_many(void) {
    enum { MANY = 80 };
    matrices x = make('N', 'T', MANY, 16, 16, 0, 0);
    for (int round = 0; round < 2; round++)
        for (size_t m = 1; m <= MANY; m++) {
            x.p.m = m;
            const int status = multiply(&x, m % 2 ? PRODUCT_PACKED : PRODUCT_MATMUL);
            test_check(!status && worst(&x) <= 1e-5, "product %zu of %d", m, MANY);
        }
    drop(&x);
}

/* What figures.md says of each kind of processor. */
static void test_table(void) {
    static const struct {
        const char *processor;
        char ta, tb;
        size_t m, n, k;
        product_way way;
    } rows[] = {{"Intel, AMX", 'T', 'N', 1536, 384, 2048, PRODUCT_MATMUL},
                {"Intel, AMX", 'N', 'T', 768, 128, 512, PRODUCT_MATMUL},
                {"Intel, AMX", 'T', 'N', 384, 128, 768, PRODUCT_SGEMM},
                {"Intel, AVX2", 'T', 'N', 384, 128, 768, PRODUCT_SGEMM},
                {"AMD, AVX-512", 'T', 'N', 384, 128, 768, PRODUCT_SGEMM},
                {"AMD, AVX2", 'T', 'N', 384, 128, 768, PRODUCT_APART},
                {"AMD, AVX2", 'T', 'N', 128, 512, 768, PRODUCT_APART},
                {"AMD, AVX2", 'T', 'N', 384, 384, 2048, PRODUCT_APART},
                {"AMD, AVX2", 'T', 'N', 1536, 384, 2048, PRODUCT_SGEMM},
                {"AMD, AVX2", 'T', 'N', 192, 192, 768, PRODUCT_SGEMM},
                {"AMD, AVX2", 'N', 'N', 256, 3072, 768, PRODUCT_APART},
                {"AMD, AVX2", 'N', 'N', 320, 3072, 768, PRODUCT_SGEMM},
                {"AMD, AVX2", 'N', 'N', 512, 512, 128, PRODUCT_APART},
                {"AMD, AVX2", 'N', 'N', 256, 768, 3072, PRODUCT_APART},
                {"AMD, AVX2", 'N', 'N', 128, 768, 3072, PRODUCT_SGEMM},
                {"AMD, AVX2", 'N', 'N', 256, 768, 2304, PRODUCT_SGEMM},
                {"AMD, AVX2", 'N', 'T', 256, 3072, 768, PRODUCT_SGEMM},
                {"other", 'N', 'N', 256, 3072, 768, PRODUCT_SGEMM}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const product_way way = products_table(rows[i].processor, rows[i].ta, rows[i].tb, rows[i].m,
                                               rows[i].n, rows[i].k);
        test_check(way == rows[i].way, "%s: %c%c %zu %zu %zu goes by %s", rows[i].processor,
                   rows[i].ta, rows[i].tb, rows[i].m, rows[i].n, rows[i].k, products_name(way));
        test_check(
            products_table(products_processor(), rows[i].ta, rows[i].tb, rows[i].m, rows[i].n,
                           rows[i].k)
                == products_way(NULL, rows[i].ta, rows[i].tb, rows[i].m, rows[i].n, rows[i].k),
            "row %zu: the table is not that of %s", i, products_processor());
        test_check(products_table(products_processor(), rows[i].ta, rows[i].tb, rows[i].m,
                                  rows[i].n, rows[i].k)
                           != PRODUCT_APART
                       || products_scratch_bytes() > 0,
                   "row %zu: no scratch memory for copies", i);
    }
}

/* ---- choices ------------------------------------------------------------------------------- */

static void test_text(void) {
    products_choice c, again;
    char sentence[PRODUCTS_SENTENCE], text[PRODUCTS_TEXT], second[PRODUCTS_TEXT];
    const char *good =
        "# a comment\n\nNT 768 384 128 packed # 98.1 131.4 0.0\r\n  TN 1 2 3   sgemm\n"
        "NN 4 5 6 matmul";
    test_check(!products_parse(&c, good, sentence, sizeof sentence) && c.lines == 3,
               "a good choice: %s", sentence);
    test_check(products_way(&c, 'N', 'T', 768, 384, 128) == PRODUCT_PACKED
                   && products_way(&c, 'T', 'N', 1, 2, 3) == PRODUCT_SGEMM
                   && products_way(&c, 'N', 'N', 4, 5, 6) == PRODUCT_MATMUL,
               "a choice has another way");
    test_check(products_way(&c, 'N', 'N', 7, 7, 7) == products_way(NULL, 'N', 'N', 7, 7, 7),
               "what no line says has not the table's way");
    products_print(&c, 2, text, sizeof text);
    const int failed = products_parse(&again, text, sentence, sizeof sentence);
    products_print(&again, 2, second, sizeof second);
    test_check(!failed && again.lines == 3 && !strcmp(text, second),
               "printed and read again: %s\n%s", sentence, text);
}

static void test_bad_text(void) {
    static const char *const bad[][2] = {
        {"NT 1 2 3", "1: expected KIND M N K ALGORITHM"},
        {"\n# x\nNT 1 2 x matmul", "3: expected KIND M N K ALGORITHM"},
        {"NT 1 2 3 matmul more", "1: expected KIND M N K ALGORITHM"},
        {"NT -1 2 3 matmul", "1: expected KIND M N K ALGORITHM"},
        {"NX 1 2 3 matmul", "1: a product is NN, NT, TN or TT"},
        {"NT 0 2 3 matmul", "1: sizes are 1 to 16777216"},
        {"NT 1 99999999 3 matmul", "1: sizes are 1 to 16777216"},
        {"NT 1 2 3 mkl", "1: the GEMM algorithms are sgemm, matmul, packed and apart"},
        {"NT 1 2 3 matmul\nNT 1 2 3 sgemm", "2: this product has a line already"},
    };
    products_choice c;
    char sentence[PRODUCTS_SENTENCE], text[PRODUCTS_TEXT];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        test_check(products_parse(&c, bad[i][0], sentence, sizeof sentence)
                       && !strcmp(sentence, bad[i][1]),
                   "'%s' is told as '%s'", bad[i][0], sentence);
    memset(text, ' ', 200);
    text[200] = 0;
    test_check(products_parse(&c, text, sentence, sizeof sentence)
                   && !strcmp(sentence, "1: a line is too long"),
               "a long line: %s", sentence);
    size_t at = 0;
    for (int i = 1; i <= PRODUCTS_MOST + 1; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "NN %d 1 1 matmul\n", i);
    test_check(products_parse(&c, text, sentence, sizeof sentence)
                   && !strcmp(sentence, "65: there are more than 64 products"),
               "too many lines: %s", sentence);
}

static char *read_all(const char *path) {
    char *text = (char *)calloc(1, PRODUCTS_TEXT);
    FILE *f = fopen(path, "r");
    if (f) (void)!fread(text, 1, PRODUCTS_TEXT - 1, f);
    if (f) fclose(f);
    return text;
}

static void test_file(void) {
    char folder[] = "/tmp/test_products.XXXXXX", path[64], sentence[PRODUCTS_SENTENCE] = "";
    products_choice made, again;
    struct stat part;
    test_check(mkdtemp(folder) != NULL, "no folder");
    snprintf(path, sizeof path, "%s/choice", folder);
    memset(&made, 0, sizeof made);
    products_add(&made, 'N', 'T', 64, 48, 32);
    products_add(&made, 'T', 'N', 48, 32, 64);
    products_add(&made, 'N', 'T', 64, 48, 32);
    test_check(made.lines == 2, "%d lines of two products", made.lines);
    test_check(!products_open(&made, path, 1, sentence, sizeof sentence) && made.lines == 2
                   && made.hash && made.line[0].rates[0] > 0 && made.line[1].rates[1] > 0,
               "measured: %s", sentence);
    char *first = read_all(path);
    memset(&again, 0, sizeof again);
    products_add(&again, 'N', 'N', 9, 9, 9);
    test_check(!products_open(&again, path, 1, sentence, sizeof sentence) && again.lines == 2
                   && again.hash == made.hash && !strcmp(again.name, made.name),
               "read again: %s", sentence);
    char *second = read_all(path);
    test_check(first[0] && !strcmp(first, second), "the file is written twice");
    free(first);
    free(second);
    snprintf(path, sizeof path, "%s/choice.part", folder);
    test_check(stat(path, &part) != 0, "a part of a file is left");
    snprintf(path, sizeof path, "%s/choice", folder);
    FILE *f = fopen(path, "w");
    if (f) fputs("NT 1 2 3 matmul\nNT 1 2 3 4\n", f);
    if (f) fclose(f);
    char told[128];
    snprintf(told, sizeof told, "%s:2: the GEMM algorithms are sgemm, matmul, packed and apart",
             path);
    test_check(products_open(&again, path, 1, sentence, sizeof sentence) && !strcmp(sentence, told),
               "a bad file is told as '%s'", sentence);
    f = fopen(path, "w");
    if (f) fwrite("NT 1 2 3 matmul\n\0\n", 1, 18, f);
    if (f) fclose(f);
    test_check(products_open(&again, path, 1, sentence, sizeof sentence)
                   && strstr(sentence, "is no text"),
               "a file of zeros is told as '%s'", sentence);
    remove(path);
    snprintf(path, sizeof path, "%s/none/choice", folder);
    test_check(products_open(&again, path, 1, sentence, sizeof sentence)
                   && strstr(sentence, "No such file"),
               "a folder that is not there is told as '%s'", sentence);
    test_check(products_open(&again, folder, 1, sentence, sizeof sentence)
                   && strstr(sentence, "directory"),
               "a folder is told as '%s'", sentence);
    test_check(!products_open(&again, "", 1, sentence, sizeof sentence) && !again.lines
                   && !again.hash && !strncmp(again.name, "table for ", 10),
               "without a file: '%s'", again.name);
    rmdir(folder);
}

int main(void) {
    test_shapes();
    for (int kind = 0; kind < 8; kind++)
        test_bits(kind & 1 ? 'T' : 'N', kind & 2 ? 'T' : 'N', kind & 4 ? 2 : 1);
    test_many();
    test_table();
    test_text();
    test_bad_text();
    test_file();
    return test_summary();
}

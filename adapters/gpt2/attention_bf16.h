/* attention_bf16.h - causal attention of one head, in bf16 on the CPU. Only ops_cpu.c includes this
   file. On processors without the instructions, ops_cpu.c computes attention in f32.

   Products multiply bf16 operands and add in f32, as in flash attention (Dao et al. 2022). They use
   AMX if the processor and the kernel have it, otherwise the instruction VDPBF16PS. Softmax and its
   gradient are computed in f32. The code rounds to bf16: q, k and v with their biases; e^(score -
   largest score); and in backward the probabilities and the gradient of the scores.

   Scores are stored transposed: a row is a key, and its columns are queries. So a maximum or a sum
   over keys works on whole vectors of 16 queries.

   All products have the form c (EDGE, EDGE) = a (EDGE, k) b (k, EDGE). Operand a is stored by rows.
   Operand b is stored by pairs of rows: the 32-bit word (i, j) of (k / 2, columns) has b[2i][j] in
   its lower half, and b[2i + 1][j] in its upper half. To make operands from a matrix x:
       transpose the words of x (rows, columns / 2)   x transposed, as an operand b
       pair the rows of x                             x, as an operand b
       pair the rows, then transpose the words        x transposed, as an operand a
   T' and H' are T and H, rounded up to multiples of EDGE. Operands have T' and H' rows or columns,
   with zeros after the first T and H. */
#ifndef GPT2_ATTENTION_BF16_H
#define GPT2_ATTENTION_BF16_H

#if defined(__AVX512BF16__) && defined(__AVX512BW__) && defined(__AVX512VL__)                      \
    && defined(__AVX512DQ__)

#define WITH_BF16 1 /* if the compiler also has AMX: WITH_TILES */

enum { EDGE = PAD, KEYS = 64 /* number of keys that compute their gradients together */ };

/* A thread's memory for one head. Arrays without a shape are (T', H'). A transposed array has one
   block after the other, each for EDGE queries: (H' / 2, EDGE) words, or (H', EDGE) floats. */
typedef struct bf16_work {
    uint16_t *k, *v, *rows;
    uint16_t *across;     /* (H', T'): v transposed in forward, k transposed in backward */
    uint16_t *pairs;      /* the paired rows from which `across` is made */
    uint16_t *qt, *doutt; /* q and dout, transposed block by block */
    uint16_t *qp, *doutp; /* q and dout in pairs of rows */
    uint16_t *p, *ds;     /* (KEYS, T'): probabilities, and the gradients of scores. In forward p is
                             (T', EDGE) in pairs of rows */
    uint16_t *dsp;        /* (KEYS, EDGE): ds in pairs of rows */
    float *dq;            /* transposed: blocks of (H', EDGE) */
    float *s, *dp;        /* (EDGE, EDGE): scores, gradients of p. In forward s is (T', EDGE) */
    float *tile;          /* (H', EDGE) or (EDGE, H'): the result of a product */
    float *lse, *delta;   /* (T'): lse times log2 e; the sum of dout * out of each query */
} bf16_work;

static uint16_t *take_halves(float **at, size_t n) { return (uint16_t *)(void *)take(at, n / 2); }

/* cut_bf16_work uses memory with the size that cut_head_work needs. This compares the two sizes, in
   floats, for the smallest T' and H'. With larger ones the size of cut_head_work grows faster. */
_Static_assert(16 * PAD * PAD + 4 * QUERIES * PAD + 2 * (TILE_M + 1) * PAD + 4 * PAD
                   >= 11 * PAD * PAD + 2 * KEYS * PAD + KEYS * EDGE + 2 * PAD * EDGE
                          + 2 * EDGE * EDGE + 2 * PAD * EDGE + 4 * PAD,
               "scratch memory of attention");
static void cut_bf16_work(bf16_work *w, float *memory, const head_shape *s) {
    float *at = memory;
    const size_t t = s->tp, h = s->hp, th = t * h;
    uint16_t **const whole[] = {&w->k,  &w->v,     &w->rows, &w->across, &w->pairs,
                                &w->qt, &w->doutt, &w->qp,   &w->doutp};
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) *whole[i] = take_halves(&at, th);
    w->p = take_halves(&at, KEYS * t);
    w->ds = take_halves(&at, KEYS * t);
    w->dsp = take_halves(&at, KEYS * EDGE);
    w->dq = take(&at, th);
    w->s = take(&at, t * EDGE);
    w->dp = take(&at, EDGE * EDGE);
    w->tile = take(&at, h * EDGE);
    w->lse = take(&at, t);
    w->delta = take(&at, t);
}

/* ---- the product --------------------------------------------------------------------------- */

/* lda counts 16-bit elements; ldb counts words; ldc counts floats. add: c += the product. */
typedef struct bf16_product {
    float *c;
    size_t ldc;
    const uint16_t *a;
    size_t lda;
    const void *b;
    size_t ldb, k;
    int add;
} bf16_product;

static void multiply_by_vectors(const bf16_product *p) {
    enum { ROWS_OF_A = 8 }; /* computed at once: their sums fill 16 of 32 registers */
    for (size_t r = 0; r < EDGE; r += ROWS_OF_A) {
        float *c = p->c + r * p->ldc;
        const uint16_t *rows[(ROWS_OF_A + 2) / 3];
        const char *b = (const char *)p->b;
        __m512 sum[ROWS_OF_A][2];
        for (size_t i = 0; i < ROWS_OF_A; i += 3) rows[i / 3] = p->a + (r + i) * p->lda;
        for (size_t i = 0; i < 2 * ROWS_OF_A; i++)
            sum[i / 2][i % 2] =
                p->add ? vec_load(c + i / 2 * p->ldc + i % 2 * LANES) : vec_set(0.0f);
        for (size_t k = 0; k < p->k; k += 2, b += 4 * p->ldb) {
            const __m512bh b0 = (__m512bh)_mm512_load_si512(b);
            const __m512bh b1 = (__m512bh)_mm512_load_si512(b + 64);
            for (size_t i = 0; i < ROWS_OF_A; i++) {
                int two;
                memcpy(&two, rows[i / 3] + i % 3 * p->lda + k, sizeof two);
                const __m512bh x = (__m512bh)_mm512_set1_epi32(two);
                sum[i][0] = _mm512_dpbf16_ps(sum[i][0], x, b0);
                sum[i][1] = _mm512_dpbf16_ps(sum[i][1], x, b1);
            }
        }
        for (size_t i = 0; i < 2 * ROWS_OF_A; i++)
            vec_store(c + i / 2 * p->ldc + i % 2 * LANES, sum[i / 2][i % 2]);
    }
}

#ifdef __AMX_BF16__
#define WITH_TILES 1
/* Configures AMX (palette 1): eight tiles of 16 rows, 64 bytes each. */
static void bf16_begin(int tiles) {
    static const uint8_t shape[64] = {
        1,         [16] = 64, [18] = 64, [20] = 64, [22] = 64, [24] = 64,
        [26] = 64, [28] = 64, [30] = 64, [48] = 16, [49] = 16, [50] = 16,
        [51] = 16, [52] = 16, [53] = 16, [54] = 16, [55] = 16};
    if (tiles) _tile_loadconfig(shape);
}

static void bf16_end(int tiles) {
    if (tiles) _tile_release();
}

static void multiply_by_tiles(const bf16_product *p) {
    const size_t row = 4 * p->ldc, a = 2 * p->lda, b = 4 * p->ldb;
    float *c = p->c, *below = c + 16 * p->ldc;
    __asm__ volatile("" ::: "memory"); /* GCC does not know that loading a tile reads memory */
    if (p->add) {
        _tile_loadd(0, c, row);
        _tile_loadd(1, c + 16, row);
        _tile_loadd(2, below, row);
        _tile_loadd(3, below + 16, row);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (size_t k = 0; k < p->k; k += 32) {
        const char *at = (const char *)p->b + k / 2 * b;
        _tile_loadd(4, p->a + k, a);
        _tile_loadd(6, at, b);
        _tile_loadd(7, at + 64, b);
        _tile_loadd(5, p->a + k + 16 * p->lda, a);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, row);
    _tile_stored(1, c + 16, row);
    _tile_stored(2, below, row);
    _tile_stored(3, below + 16, row);
}
#else
static void bf16_begin(int tiles) { (void)tiles; }
static void bf16_end(int tiles) { (void)tiles; }
static void multiply_by_tiles(const bf16_product *p) { (void)p; }
#endif

static inline void multiply(int tiles, bf16_product p) {
    (tiles ? multiply_by_tiles : multiply_by_vectors)(&p);
}

/* ---- operands ------------------------------------------------------------------------------ */

/* Returns a mask of the 16 columns from `at` on: 1 for each that is one of the H columns. */
static inline __mmask16 columns_of(size_t H, size_t at) {
    return (__mmask16)(H <= at ? 0 : H - at < 16 ? (1u << (H - at)) - 1 : 0xFFFF);
}

static inline __m512 read_bf16(const uint16_t *from, __mmask16 m) {
    const __m512i x = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(m, from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
}

static inline void write_bf16(uint16_t *to, __mmask16 m, __m512 x) {
    _mm256_mask_storeu_epi16(to, m, (__m256i)_mm512_cvtneps_pbh(x));
}

/* to (T', H') = from (T, H) + bias. Rows of `from` are `stride` apart. bias may be NULL. */
static void pack_bf16(uint16_t *to, const uint16_t *from, size_t stride, const float *bias,
                      const head_shape *s) {
    for (size_t t = 0; t < s->T; t++)
        for (size_t d = 0; d < s->hp; d += 16) {
            const __mmask16 m = columns_of(s->H, d);
            __m512 x = read_bf16(from + t * stride + d, m);
            if (bias) x = _mm512_add_ps(x, _mm512_maskz_loadu_ps(m, bias + d));
            write_bf16(to + t * s->hp + d, 0xFFFF, x);
        }
    memset(to + s->T * s->hp, 0, (s->tp - s->T) * s->hp * sizeof *to);
}

/* Transposes words: to (columns, rows) from `from` (rows, columns). Rows of `to` are `ldt` apart.
 */
static void transpose_words(void *to, size_t ldt, const void *from, size_t rows, size_t columns) {
    for (size_t r = 0; r < rows; r += LANES)
        for (size_t c = 0; c < columns; c += LANES) {
            vec v[LANES];
            for (size_t i = 0; i < LANES; i++)
                v[i] = vec_load((const float *)from + (r + i) * columns + c);
            transpose(v);
            for (size_t i = 0; i < LANES; i++) vec_store((float *)to + (c + i) * ldt + r, v[i]);
        }
}

/* Transposes each block of EDGE rows of x (T', H'), as an operand b. */
static void transpose_blocks(uint16_t *to, const uint16_t *x, const head_shape *s) {
    for (size_t t = 0; t < s->tp; t += EDGE)
        transpose_words(to + t * s->hp, EDGE, x + t * s->hp, EDGE, s->hp / 2);
}

/* Returns a permutation. Its word i has element lower + i in the lower half, and element upper + i
   in the upper half. */
static inline __m512i interleave(int lower, int upper) {
    const __m512i i = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i above = _mm512_add_epi32(i, _mm512_set1_epi32(upper));
    return _mm512_or_si512(_mm512_add_epi32(i, _mm512_set1_epi32(lower)),
                           _mm512_slli_epi32(above, 16));
}

/* Stores x (T', H') in pairs of rows, as an operand b. */
static void pair_rows(uint16_t *to, const uint16_t *x, const head_shape *s) {
    for (size_t t = 0; t < s->tp; t += 2)
        for (size_t d = 0; d < s->hp; d += 32, to += 64) {
            const __m512i row = _mm512_load_si512(x + t * s->hp + d);
            const __m512i next = _mm512_load_si512(x + (t + 1) * s->hp + d);
            _mm512_store_si512(to, _mm512_permutex2var_epi16(row, interleave(0, 32), next));
            _mm512_store_si512(to + 32, _mm512_permutex2var_epi16(row, interleave(16, 48), next));
        }
}

/* Stores x (T', H') transposed in w->across, as an operand a. */
static void transpose_across(const bf16_work *w, const uint16_t *x, const head_shape *s) {
    pair_rows(w->pairs, x, s);
    transpose_words(w->across, s->tp / 2, w->pairs, s->tp / 2, s->hp);
}

/* Stores `from` (H', EDGE), transposed and times the factor of each query, in `to` (rows, H). Rows
   of `to` are `stride` apart. */
static void store_transposed(uint16_t *to, size_t stride, const float *from, const vec factor[2],
                             size_t rows, const head_shape *s) {
    for (size_t d = 0; d < s->hp; d += LANES)
        for (size_t half = 0; half < 2 && LANES * half < rows; half++) {
            const size_t first = LANES * half;
            vec v[LANES];
            for (size_t i = 0; i < LANES; i++)
                v[i] = _mm512_mul_ps(vec_load(from + (d + i) * EDGE + first), factor[half]);
            transpose(v);
            for (size_t i = 0; i < LANES && first + i < rows; i++)
                write_bf16(to + (first + i) * stride + d, columns_of(s->H, d), v[i]);
        }
}

/* Stores `from` (rows, H') times one factor, without transposing it. */
static void store_rows(uint16_t *to, size_t stride, const float *from, float factor, size_t rows,
                       const head_shape *s) {
    for (size_t r = 0; r < rows; r++)
        for (size_t d = 0; d < s->hp; d += LANES)
            write_bf16(to + r * stride + d, columns_of(s->H, d),
                       _mm512_mul_ps(vec_load(from + r * s->hp + d), vec_set(factor)));
}

/* ---- softmax ------------------------------------------------------------------------------- */

#define LOG2_E 1.44269504f

/* Returns 2^x within 2 ulp; NaN stays NaN. x is an integer plus r, with r in [0, 1). The polynomial
   is fitted to 2^r, with a relative error of 1.4e-7. */
static inline vec power_of_2(vec x) {
    const vec r = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    vec p = vec_fma(r, vec_set(1.87757669e-3f), vec_set(8.98933969e-3f));
    p = vec_fma(p, r, vec_set(5.58263175e-2f));
    p = vec_fma(p, r, vec_set(0.240153611f));
    p = vec_fma(p, r, vec_set(0.693153083f));
    p = vec_fma(p, r, vec_set(1.0f));
    return _mm512_scalef_ps(p, x);
}

/* Returns a mask of the 16 queries from `query` on: 1 for each that sees the key. */
static inline __mmask16 seen(size_t key, size_t query) {
    return (__mmask16)(key <= query ? 0xFFFF : key - query < 16 ? 0xFFFFu << (key - query) : 0);
}

/* Both functions round two vectors to bf16. The first returns x and then `next`; the second pairs
   their elements in words. */
static inline __m512i rounded(vec x, vec next) { return (__m512i)_mm512_cvtne2ps_pbh(next, x); }
static inline __m512i paired(vec x, vec next) {
    return _mm512_permutexvar_epi16(interleave(0, 16), rounded(x, next));
}

/* Computes the scores of EDGE queries from i0 on for EDGE keys from j0 on. `most` becomes the
   largest score of each query so far. The score of a key that a query must not see is -infinity,
   because a finite one would count if all visible scores overflow. */
static void score_block(const bf16_work *w, const head_shape *s, size_t i0, size_t j0,
                        vec most[2]) {
    float *at = w->s + j0 * EDGE;
    multiply(s->tiles, (bf16_product){at, EDGE, w->k + j0 * s->hp, s->hp, w->qt + i0 * s->hp, EDGE,
                                      s->hp, 0});
    for (size_t j = 0; j < EDGE; j++)
        for (size_t half = 0; half < 2; half++) {
            float *row = at + j * EDGE + LANES * half;
            vec x = vec_load(row);
            if (j0 == i0) {
                x = _mm512_mask_mov_ps(vec_set(-INFINITY), seen(j, LANES * half), x);
                vec_store(row, x);
            }
            most[half] = _mm512_max_ps(x, most[half]);
        }
}

/* Computes p = 2^(s scale - base) in pairs of rows, as an operand b, and adds it up over all keys.
 */
static void exponentials(const bf16_work *w, size_t keys, vec scale, const vec base[2],
                         vec sum[2]) {
    for (size_t j = 0; j < keys; j += 2)
        for (size_t half = 0; half < 2; half++) {
            const float *row = w->s + j * EDGE + LANES * half;
            const vec x = power_of_2(_mm512_fmsub_ps(vec_load(row), scale, base[half]));
            const vec y = power_of_2(_mm512_fmsub_ps(vec_load(row + EDGE), scale, base[half]));
            sum[half] = _mm512_add_ps(sum[half], _mm512_add_ps(x, y));
            _mm512_store_si512(w->p + j * EDGE + 32 * half, paired(x, y));
        }
}

/* ---- a head -------------------------------------------------------------------------------- */

/* Forward of EDGE queries from i0 on. */
static void query_block(const bf16_work *w, const head_shape *s, uint16_t *out, float *lse,
                        size_t i0) {
    const float scale = LOG2_E / sqrtf((float)s->H);
    const size_t rows = least(EDGE, s->T - i0), keys = i0 + EDGE;
    vec most[2] = {vec_set(-INFINITY), vec_set(-INFINITY)}, base[2], sum[2], share[2];
    float log_sum[EDGE] __attribute__((aligned(64))), largest[EDGE] __attribute__((aligned(64)));
    for (size_t j0 = 0; j0 < keys; j0 += EDGE) score_block(w, s, i0, j0, most);
    for (size_t half = 0; half < 2; half++) {
        base[half] = _mm512_mul_ps(most[half], vec_set(scale));
        sum[half] = vec_set(0.0f);
    }
    exponentials(w, keys, vec_set(scale), base, sum);
    for (size_t d = 0; d < s->hp; d += EDGE)
        multiply(s->tiles, (bf16_product){w->tile + d * EDGE, EDGE, w->across + d * s->tp, s->tp,
                                          w->p, EDGE, keys, 0});
    for (size_t half = 0; half < 2; half++) {
        share[half] = _mm512_div_ps(vec_set(1.0f), sum[half]);
        vec_store(log_sum + LANES * half, sum[half]);
        vec_store(largest + LANES * half, base[half]);
    }
    store_transposed(out + i0 * s->C, s->C, w->tile, share, rows, s);
    for (size_t i = 0; i < rows; i++) lse[i0 + i] = largest[i] / LOG2_E + logf(log_sum[i]);
}

/* Computes what head_forward computes. */
static void bf16_forward(float *memory, const head_shape *s, void *out, float *lse, const void *qkv,
                         const float *bias) {
    const uint16_t *from = (const uint16_t *)qkv;
    bf16_work w;
    cut_bf16_work(&w, memory, s);
    pack_bf16(w.rows, from, 3 * s->C, bias, s);
    pack_bf16(w.k, from + s->C, 3 * s->C, bias + s->C, s);
    pack_bf16(w.v, from + 2 * s->C, 3 * s->C, bias + 2 * s->C, s);
    transpose_blocks(w.qt, w.rows, s);
    transpose_across(&w, w.v, s);
    bf16_begin(s->tiles);
    for (size_t i0 = 0; i0 < s->T; i0 += EDGE) query_block(&w, s, (uint16_t *)out, lse, i0);
    bf16_end(s->tiles);
}

/* Computes p and ds of EDGE queries from i0 on and EDGE keys from j on. The arrays begin with key
   j0. */
static void block_gradients(const bf16_work *w, const head_shape *s, size_t i0, size_t j0,
                            size_t j) {
    const vec scale = vec_set(LOG2_E / sqrtf((float)s->H));
    const size_t above = j - j0;
    for (size_t r = 0; r < EDGE; r += 2) {
        vec p[2][2], d[2][2]; /* row, half */
        for (size_t i = 0; i < 4; i++) {
            const size_t row = r + i / 2, column = i % 2 * LANES, at = row * EDGE + column;
            const vec base = vec_load(w->lse + i0 + column);
            const vec delta = vec_load(w->delta + i0 + column);
            vec x = power_of_2(_mm512_fmsub_ps(vec_load(w->s + at), scale, base));
            if (i0 == j) x = _mm512_maskz_mov_ps(seen(row, column), x);
            p[i / 2][i % 2] = x;
            d[i / 2][i % 2] = _mm512_mul_ps(x, _mm512_sub_ps(vec_load(w->dp + at), delta));
        }
        for (size_t i = 0; i < 2; i++) {
            const size_t at = (above + r + i) * s->tp + i0;
            _mm512_store_si512(w->p + at, rounded(p[i][0], p[i][1]));
            _mm512_store_si512(w->ds + at, rounded(d[i][0], d[i][1]));
            _mm512_store_si512(w->dsp + (above + r) * EDGE + 32 * i, paired(d[0][i], d[1][i]));
        }
    }
}

/* Computes p and ds of EDGE queries from i0 on and keys [j0, end), and adds to dq. */
static void query_block_of_keys(const bf16_work *w, const head_shape *s, size_t i0, size_t j0,
                                size_t end) {
    for (size_t j = j0; j < end; j += EDGE) {
        multiply(s->tiles, (bf16_product){w->s, EDGE, w->k + j * s->hp, s->hp, w->qt + i0 * s->hp,
                                          EDGE, s->hp, 0});
        multiply(s->tiles, (bf16_product){w->dp, EDGE, w->v + j * s->hp, s->hp,
                                          w->doutt + i0 * s->hp, EDGE, s->hp, 0});
        block_gradients(w, s, i0, j0, j);
    }
    for (size_t d = 0; d < s->hp; d += EDGE)
        multiply(s->tiles,
                 (bf16_product){w->dq + i0 * s->hp + d * EDGE, EDGE, w->across + d * s->tp + j0,
                                s->tp, w->dsp, EDGE, end - j0, j0 > 0});
}

/* Stores the gradient of EDGE keys (or values) from row j on: a (EDGE, T') b, over the queries that
   see them. */
static void key_block(const bf16_work *w, const head_shape *s, uint16_t *to, const uint16_t *a,
                      const uint16_t *b, float factor, size_t j) {
    for (size_t d = 0; d < s->hp; d += EDGE)
        multiply(s->tiles, (bf16_product){w->tile + d, s->hp, a + j, s->tp, b + j * s->hp + 2 * d,
                                          s->hp, s->tp - j, 0});
    store_rows(to + j * 3 * s->C, 3 * s->C, w->tile, factor, least(EDGE, s->T - j), s);
}

/* Computes what pack_rows computes. */
static void pack_rows_bf16(const bf16_work *w, const head_shape *s, const float *lse,
                           const uint16_t *out) {
    for (size_t t = 0; t < s->tp; t++) {
        vec dot = vec_set(0.0f);
        for (size_t d = 0; d < s->hp && t < s->T; d += LANES)
            dot = vec_fma(read_bf16(w->rows + t * s->hp + d, 0xFFFF),
                          read_bf16(out + t * s->C + d, columns_of(s->H, d)), dot);
        w->delta[t] = _mm512_reduce_add_ps(dot);
        w->lse[t] = t < s->T ? lse[t] * LOG2_E : 0.0f;
    }
}

static void pack_backward(const bf16_work *w, const head_shape *s, const uint16_t *dout,
                          const uint16_t *out, const float *lse, const uint16_t *qkv,
                          const float *bias) {
    pack_bf16(w->k, qkv + s->C, 3 * s->C, bias + s->C, s);
    pack_bf16(w->v, qkv + 2 * s->C, 3 * s->C, bias + 2 * s->C, s);
    transpose_across(w, w->k, s);
    pack_bf16(w->rows, qkv, 3 * s->C, bias, s);
    transpose_blocks(w->qt, w->rows, s);
    pair_rows(w->qp, w->rows, s);
    pack_bf16(w->rows, dout, s->C, NULL, s);
    transpose_blocks(w->doutt, w->rows, s);
    pair_rows(w->doutp, w->rows, s);
    pack_rows_bf16(w, s, lse, out);
}

/* Computes what head_backward computes. */
static void bf16_backward(float *memory, const head_shape *s, void *dqkv, const void *dout,
                          const void *out, const float *lse, const void *qkv, const float *bias) {
    const float scale = 1.0f / sqrtf((float)s->H);
    const vec factor[2] = {vec_set(scale), vec_set(scale)};
    uint16_t *to = (uint16_t *)dqkv;
    bf16_work w;
    cut_bf16_work(&w, memory, s);
    pack_backward(&w, s, (const uint16_t *)dout, (const uint16_t *)out, lse, (const uint16_t *)qkv,
                  bias);
    bf16_begin(s->tiles);
    for (size_t j0 = 0; j0 < s->tp; j0 += KEYS) {
        const size_t end = least(j0 + KEYS, s->tp);
        for (size_t i0 = j0; i0 < s->tp; i0 += EDGE)
            query_block_of_keys(&w, s, i0, j0, least(end, i0 + EDGE));
        for (size_t j = j0; j < end; j += EDGE) {
            const size_t at = (j - j0) * s->tp;
            key_block(&w, s, to + s->C, w.ds + at, w.qp, scale, j);
            key_block(&w, s, to + 2 * s->C, w.p + at, w.doutp, 1.0f, j);
        }
    }
    bf16_end(s->tiles);
    for (size_t i0 = 0; i0 < s->T; i0 += EDGE)
        store_transposed(to + i0 * 3 * s->C, 3 * s->C, w.dq + i0 * s->hp, factor,
                         least(EDGE, s->T - i0), s);
}

#endif
#endif

/* codec_kernels.h - kernels that quantize, dequantize and add up blocks

   The CPU reads a block, works on it in f32 while it stays in the L1 cache, and writes it. It
   uses streaming stores for results that are larger than the cache. A GPU keeps the block in
   registers. */
#pragma once

#include "codec_blocks.h"

/* ---- prefetching and streaming ---- Memory latency exceeds the work on a block, so each loop
   prefetches ZP_AHEAD_BYTES ahead. A thread that writes more than the cache holds uses streaming
   stores: a usual store first reads its line. */
enum { ZP_AHEAD_BYTES = 2048, ZP_KEPT_BYTES = 1 << 20 };
#ifndef __CUDA_ARCH__
#define ZP_PREFETCH(p, writes) __builtin_prefetch(p, writes)
#else
#define ZP_PREFETCH(p, writes) (void)(p)
#endif
ZP_FN void zp_codec_kernels_prefetch_block(const void *p, size_t bytes) {
    for (size_t at = 0; at < bytes; at += 64) ZP_PREFETCH((const char *)p + ZP_AHEAD_BYTES + at, 0);
}
/* Prefetches the line of scales after the next, because a store that misses delays later stores. */
ZP_FN void zp_codec_kernels_prefetch_scale(const char *scale) { ZP_PREFETCH(scale + 128, 1); }
/* Parts and blocks are aligned to 64 bytes if the array is. */
ZP_FN int zp_codec_kernels_is_streaming(uintptr_t to, size_t bytes) {
    return ZP_PAST_CACHES && bytes >= ZP_KEPT_BYTES && to % 64 == 0;
}

/* ---- one block ---- */

/* Stores sender p's block in x, or adds it to x. */
ZP_FN void zp_codec_kernels_decode_sender(const zp_quantized *c, const zp_block *k, int p, size_t n,
                                          float *x, int adds) {
    char *from = (char *)(uintptr_t)c->from + (size_t)p * c->stride;
    const zp_codec_place at = zp_codec_quantized_at(c, from, k->part, k->b);
    float scale;
    memcpy(&scale, at.scale, sizeof scale);
    zp_codec_kernels_prefetch_block(at.codes, ZP_QUANT_BLOCK * (size_t)c->codec.bits / 8);
    ZP_BODY(n, decode, &c->codec, (const uint8_t *)at.codes, scale, x, adds);
}
/* The sum over the senders. */
ZP_FN void zp_codec_kernels_sum_block(const zp_quantized *c, const zp_block *k, size_t n,
                                      float *x) {
    zp_codec_kernels_decode_sender(c, k, 0, n, x, 0);
    for (int p = 1; p < c->n; p++) zp_codec_kernels_decode_sender(c, k, p, n, x, 1);
}

/* Returns the errors to read, or, if `next`, those to write. */
ZP_FN uint16_t *zp_codec_kernels_errors_of(const zp_codec_kernels_encode_args *a, int next) {
    return a->error + ((a->control->fed ^ (next || a->again)) ? a->copy_distance : 0);
}

ZP_FN void zp_codec_kernels_encode_block(const zp_codec_kernels_encode_args *a, const zp_block *k,
                                         size_t n, int streams) {
    const zp_quantized *c = &a->sum;
    const zp_codec_place p =
        zp_codec_quantized_at(c, a->to, zp_codec_output_part(a, k->part), k->b);
    const char *from = (const char *)a->x + k->at * zp_type_bytes(a->type);
    const uint16_t *error = a->error ? zp_codec_kernels_errors_of(a, 0) + k->at : NULL;
    uint16_t *next = a->error ? zp_codec_kernels_errors_of(a, 1) + k->at : NULL;
    float x[ZP_QUANT_BLOCK];
    if (c->n) {
        zp_codec_kernels_sum_block(c, k, n, x);
    } else {
        zp_codec_kernels_prefetch_block(from, ZP_QUANT_BLOCK * zp_type_bytes(a->type));
        ZP_BODY(n, load, x, from, a->type);
    }
    if (error) {
        zp_codec_kernels_prefetch_block(error, ZP_QUANT_BLOCK * sizeof *error);
        ZP_BODY(n, add_error, error, a->control->scale, x);
    }
    const uint32_t largest = ZP_BODY(n, largest, x);
    const zp_block_scale m = zp_codec_scale_block(largest, c->codec.most);
    memcpy(p.scale, &m.scale, sizeof m.scale);
    zp_codec_kernels_prefetch_scale(p.scale);
    if (m.inverse == 0)
        memset(p.codes, 0, n * (size_t)c->codec.bits / 8);
    else
        ZP_BODY(n, encode, &c->codec, x, m.inverse, (uint8_t *)p.codes, streams);
    if (!error) return;
    if (largest < 0x7F800000u) {
        ZP_BODY(n, next_error, a, x, m, error, next);
    } else if (next != error) {
        memcpy(next, error, n * sizeof *next);
    }
}

ZP_FN void zp_codec_kernels_decode_block(const zp_codec_kernels_decode_args *a, const zp_block *k,
                                         size_t n, int streams) {
    float x[ZP_QUANT_BLOCK];
    float *total = a->total ? a->total : a->type == ZERO_F32 ? (float *)a->out : NULL;
    const float *before = a->accumulate ? total + k->at : NULL;
    if (before) zp_codec_kernels_prefetch_block(before, ZP_QUANT_BLOCK * sizeof *before);
    zp_codec_kernels_sum_block(&a->sum, k, n, x);
    if (a->scale != 1 || before) ZP_BODY(n, scale, x, a->scale, before);
    if (total) ZP_BODY(n, store, total + k->at, ZERO_F32, x, streams && !before);
    if (a->type != ZERO_F32) ZP_BODY(n, store, (uint16_t *)a->out + k->at, a->type, x, streams);
}

/* Whether a thread that writes n blocks uses streaming stores. */
ZP_FN int zp_codec_kernels_encode_streams(const zp_codec_kernels_encode_args *a, size_t n) {
    return zp_codec_kernels_is_streaming((uintptr_t)a->to,
                                         n * ZP_QUANT_BLOCK * (size_t)a->sum.codec.bits / 8);
}
ZP_FN int zp_codec_kernels_decode_streams(const zp_codec_kernels_decode_args *a, size_t n) {
    return zp_codec_kernels_is_streaming((uintptr_t)a->out | (uintptr_t)a->total,
                                         n * ZP_QUANT_BLOCK * zp_type_bytes(a->type));
}
/* The processor prefetches within a page of 4 KiB, in several pages at once. With one sender, n
   blocks are therefore taken alternately from four places. Returns the block after i others. */
ZP_FN size_t zp_codec_kernels_interleave(const zp_quantized *c, size_t i, size_t n) {
    const size_t places = 4, each = n / places; /* a constant: no division */
    return c->n > 1 || i >= each * places ? i : i % places * each + i / places;
}
static_assert(sizeof zp_codecs == 2 * sizeof *zp_codecs, "a branch for each");
#define ZP_OMP_EACH(WORTH) ZP_PRAGMA(omp parallel num_threads(threads) if (WORTH))
#define ZP_OMP_SHARED ZP_PRAGMA(omp for nowait)
/* Instantiates F_block for each codec and type, once for whole blocks, whose length is a constant,
   and once for shorter ones. */
#define ZP_BLOCKS(F)                                                                               \
    ZP_INLINE void F##_each(F##_args a, size_t n, int streams, const zp_codec codec,               \
                            zero_type type) {                                                      \
        a.sum.codec = codec;                                                                       \
        a.type = type;                                                                             \
        ZP_OMP_SHARED                                                                              \
        for (size_t i = 0; i < n; i++) {                                                           \
            const zp_block k =                                                                     \
                zp_codec_block_of(&a.sum, zp_codec_kernels_interleave(&a.sum, i, n));              \
            if (k.n == ZP_QUANT_BLOCK)                                                             \
                F##_block(&a, &k, ZP_QUANT_BLOCK, streams);                                        \
            else                                                                                   \
                F##_block(&a, &k, k.n, streams);                                                   \
        }                                                                                          \
    }                                                                                              \
    ZP_INLINE void F##_typed(const F##_args *a, size_t n, int streams, const zp_codec codec) {     \
        if (a->type == ZERO_F32)                                                                   \
            F##_each(*a, n, streams, codec, ZERO_F32);                                             \
        else if (a->type == ZERO_BF16)                                                             \
            F##_each(*a, n, streams, codec, ZERO_BF16);                                            \
        else                                                                                       \
            F##_each(*a, n, streams, codec, ZERO_F16);                                             \
    }                                                                                              \
    ZP_UNUSED static void F##_loop(const void *args, size_t n, int threads) {                      \
        ZP_OMP_EACH(n > 64) {                                                                      \
            const F##_args a = *(const F##_args *)args; /* a copy that no store can change */      \
            const int streams = F##_streams(&a, n / (size_t)threads);                              \
            if (a.sum.codec.bits == zp_codecs[0].bits)                                             \
                F##_typed(&a, n, streams, zp_codecs[0]);                                           \
            else                                                                                   \
                F##_typed(&a, n, streams, zp_codecs[1]);                                           \
            zp_codec_blocks_stream_end();                                                          \
        }                                                                                          \
    }                                                                                              \
    static_assert(sizeof(F##_args) <= ZP_TASK_BYTES, "a task carries its arguments");
ZP_BLOCKS(zp_codec_kernels_encode)
ZP_BLOCKS(zp_codec_kernels_decode)

#ifdef __CUDACC__
/* Kernels with the same bits. Each lane takes 16 numbers of a block: eight from `at` on and eight
   from at + 16 on. These are the numbers of eight bytes of 4-bit codes, and 16-bit numbers are read
   16 bytes at a time. */
#define ZP_RUN        8
#define ZP_LANES_EACH (ZP_QUANT_BLOCK / (2 * ZP_RUN)) /* lanes of one block */
static_assert(ZP_QUANT_BLOCK == 128 || ZP_QUANT_BLOCK == 256, "a warp takes whole blocks");
#define ZP_SENDERS 4 /* senders that are read before any is added */
typedef struct zp_lane_codes {
    uint2 run[2]; /* 4 bits: the first one has both */
} zp_lane_codes;

ZP_FN size_t zp_codec_kernels_lane_at(size_t lane) {
    return lane / 2 * ZP_QUANT_GROUP + lane % 2 * ZP_RUN;
}
/* A lane's numbers as they are stored. 16 bits: two in each of the first eight words. */
typedef struct zp_lane_words {
    uint32_t word[2 * ZP_RUN];
} zp_lane_words;
ZP_FN void zp_codec_kernels_put_word(uint32_t *to, uint4 word) {
    to[0] = word.x;
    to[1] = word.y;
    to[2] = word.z;
    to[3] = word.w;
}
/* Reads a lane's numbers. Nothing is computed before the last load, so that all are in flight. */
ZP_FN void zp_codec_kernels_lane_fetch(zp_lane_words *w, const void *from, zero_type type,
                                       size_t at) {
    const uint4 *p = (const uint4 *)(const void *)((const char *)from + at * zp_type_bytes(type));
    zp_codec_kernels_put_word(w->word, p[0]);
    if (type == ZERO_F32) {
        zp_codec_kernels_put_word(w->word + 4, p[1]);
        zp_codec_kernels_put_word(w->word + 8, p[4]);
        zp_codec_kernels_put_word(w->word + 12, p[5]);
    } else {
        zp_codec_kernels_put_word(w->word + 4, p[2]);
    }
}
/* Number j of a lane's bf16 numbers. They stay as they are stored: as f32 they would take twice the
   registers. */
ZP_FN float zp_codec_kernels_lane_bf16(const zp_lane_words *w, int j) {
    const uint32_t both = w->word[j / 2];
    return zp_type_bits_to_float(j % 2 ? both & 0xFFFF0000u : both << 16);
}
ZP_FN void zp_codec_kernels_lane_set_bf16(zp_lane_words *w, int j, float x) {
    const uint32_t half = zp_type_to_bf16(x), both = w->word[j / 2];
    w->word[j / 2] = j % 2 ? (both & 0xFFFFu) | half << 16 : (both & 0xFFFF0000u) | half;
}
ZP_FN void zp_codec_kernels_lane_store_words(uint16_t *to, size_t at, const zp_lane_words *w) {
    const uint32_t *h = w->word;
    uint4 *p = (uint4 *)(void *)(to + at);
    p[0] = make_uint4(h[0], h[1], h[2], h[3]);
    p[2] = make_uint4(h[4], h[5], h[6], h[7]);
}
/* Tests the type once, not for each number. */
ZP_FN void zp_codec_kernels_lane_widen(float *x, const zp_lane_words *w, zero_type type) {
    if (type == ZERO_F32)
        for (int j = 0; j < 2 * ZP_RUN; j++) x[j] = zp_type_bits_to_float(w->word[j]);
    else if (type == ZERO_BF16)
        for (int j = 0; j < 2 * ZP_RUN; j++) x[j] = zp_codec_kernels_lane_bf16(w, j);
    else
        for (int j = 0; j < 2 * ZP_RUN; j++)
            x[j] = zp_type_from_f16((uint16_t)(w->word[j / 2] >> 16 * (j % 2)));
}
ZP_FN void zp_codec_kernels_store_run(void *to, zero_type type, size_t at, const float *x) {
    if (type == ZERO_F32) {
        zp_type_store_wide(to, type, at, x);
        zp_type_store_wide(to, type, at + 4, x + 4);
        return;
    }
    uint32_t h[4];
    if (type == ZERO_BF16)
        for (int j = 0; j < 4; j++)
            h[j] = zp_type_to_bf16(x[2 * j]) | (uint32_t)zp_type_to_bf16(x[2 * j + 1]) << 16;
    else
        for (int j = 0; j < 4; j++)
            h[j] = zp_type_to_f16(x[2 * j]) | (uint32_t)zp_type_to_f16(x[2 * j + 1]) << 16;
    *(uint4 *)(void *)((uint16_t *)to + at) = make_uint4(h[0], h[1], h[2], h[3]);
}
ZP_FN void zp_codec_kernels_lane_store(void *to, zero_type type, size_t at, const float *x) {
    zp_codec_kernels_store_run(to, type, at, x);
    zp_codec_kernels_store_run(to, type, at + 16, x + ZP_RUN);
}
ZP_FN zp_lane_codes zp_codec_kernels_lane_read(const zp_codec *c, const char *codes, size_t lane) {
    const uint2 *words = (const uint2 *)(const void *)codes;
    const size_t at = c->bits == 8 ? zp_codec_kernels_lane_at(lane) / 8 : lane;
    const zp_lane_codes x = {{words[at], c->bits == 8 ? words[at + 2] : make_uint2(0, 0)}};
    return x;
}
ZP_FN void zp_codec_kernels_lane_write(const zp_codec *c, char *codes, size_t lane,
                                       zp_lane_codes x) {
    uint2 *words = (uint2 *)(void *)codes;
    const size_t at = c->bits == 8 ? zp_codec_kernels_lane_at(lane) / 8 : lane;
    words[at] = x.run[0];
    if (c->bits == 8) words[at + 2] = x.run[1];
}
/* Returns the word that holds the code of a lane's number j, from bit `at` on. */
ZP_FN uint32_t *zp_codec_kernels_lane_word(const zp_codec *c, zp_lane_codes *x, int j, int *at) {
    uint2 *run = &x->run[c->bits == 8 ? j / ZP_RUN : 0];
    *at = 8 * (j & 3) + (c->bits == 8 || j < ZP_RUN ? 0 : 4);
    return j & 4 ? &run->y : &run->x;
}
/* The sum over the senders of a lane's numbers. */
ZP_FN void zp_codec_kernels_lane_sum(const zp_quantized *c, const zp_block *k, size_t lane,
                                     float *x) {
    for (int first = 0; first < c->n; first += ZP_SENDERS) {
        zp_lane_codes codes[ZP_SENDERS];
        float scale[ZP_SENDERS];
        for (int p = 0; p < ZP_SENDERS; p++) {
            char *from = (char *)(uintptr_t)c->from + (size_t)(first + p) * c->stride;
            const zp_codec_place at = zp_codec_quantized_at(c, from, k->part, k->b);
            if (first + p >= c->n) continue;
            scale[p] = *(const float *)(const void *)at.scale;
            codes[p] = zp_codec_kernels_lane_read(&c->codec, at.codes, lane);
        }
        for (int p = 0; p < ZP_SENDERS; p++)
            for (int j = 0; j < 2 * ZP_RUN && first + p < c->n; j++) {
                int at;
                const uint32_t code =
                    *zp_codec_kernels_lane_word(&c->codec, &codes[p], j, &at) >> at;
                const float v = zp_codec_decode_value(
                    c->codec.bits == 8 ? (int8_t)(uint8_t)code : zp_codec_sign_extend(code),
                    scale[p]);
                x[j] = first + p ? x[j] + v : v;
            }
    }
}
/* Writes a lane's codes; if `feeds`, the errors become the next ones. */
ZP_FN void zp_codec_kernels_lane_encode(const zp_codec_kernels_encode_args *a, const float *x,
                                        zp_block_scale m, char *to, size_t lane,
                                        zp_lane_words *errors, int feeds) {
    const zp_codec *c = &a->sum.codec;
    const uint32_t mask = c->bits == 8 ? 255u : 15u;
    const float unscale = feeds ? 1.0f / a->control->scale : 1;
    zp_lane_codes codes = {{make_uint2(0, 0), make_uint2(0, 0)}};
    for (int j = 0; j < 2 * ZP_RUN; j++) {
        const int32_t code = m.inverse == 0 ? 0 : zp_codec_encode_value(x[j], m.inverse);
        int at;
        *zp_codec_kernels_lane_word(c, &codes, j, &at) |= ((uint32_t)code & mask) << at;
        if (!feeds) continue;
        const float error = zp_codec_kernels_lane_bf16(errors, j);
        const float next = zp_codec_next_error(x[j], zp_codec_decode_value(code, m.scale), error,
                                               a->beta, unscale);
        zp_codec_kernels_lane_set_bf16(errors, j, next);
    }
    zp_codec_kernels_lane_write(c, to, lane, codes);
}
/* Inlined with constant `bits` and `sums`, so that a lane's codes stay in registers, and numbers
   that are read take none while senders are added. sums: of senders, instead of x. */
static __device__ __forceinline__ void zp_codec_kernels_encode_bits(zp_codec_kernels_encode_args a,
                                                                    size_t blocks, int bits,
                                                                    int sums) {
    a.sum.codec.bits = bits;
    a.sum.codec.most = (1 << (bits - 1)) - 1;
    const size_t lane = threadIdx.x % ZP_LANES_EACH, each = ZP_THREADS / ZP_LANES_EACH;
    const zp_quantized *c = &a.sum;
    for (size_t first = blockIdx.x * each; first < blocks; first += gridDim.x * each) {
        const size_t i = first + threadIdx.x / ZP_LANES_EACH; /* whole warps reach the shuffles */
        const zp_block k = zp_codec_block_of(c, i < blocks ? i : first);
        const size_t at = k.at + zp_codec_kernels_lane_at(lane);
        const int here = i < blocks && zp_codec_kernels_lane_at(lane) < k.n;
        float x[2 * ZP_RUN] = {0};
        zp_lane_words numbers, errors = {{0}};
        uint32_t largest = 0;
        if (here && sums) zp_codec_kernels_lane_sum(c, &k, lane, x);
        if (here && !sums) zp_codec_kernels_lane_fetch(&numbers, a.x, a.type, at);
        if (here && a.error)
            zp_codec_kernels_lane_fetch(&errors, zp_codec_kernels_errors_of(&a, 0), ZERO_BF16, at);
        if (here && !sums) zp_codec_kernels_lane_widen(x, &numbers, a.type);
        for (int j = 0; j < 2 * ZP_RUN; j++) {
            if (a.error) x[j] += a.control->scale * zp_codec_kernels_lane_bf16(&errors, j);
            largest = zp_codec_largest(largest, x[j]);
        }
        for (int w = (int)ZP_LANES_EACH / 2; w; w /= 2) {
            const uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, largest, w);
            largest = other > largest ? other : largest;
        }
        const zp_block_scale m = zp_codec_scale_block(largest, c->codec.most);
        const int feeds = a.error && largest < 0x7F800000u;
        const zp_codec_place p =
            zp_codec_quantized_at(c, a.to, zp_codec_output_part(&a, k.part), k.b);
        if (here && lane == 0) *(float *)(void *)p.scale = m.scale;
        if (here) zp_codec_kernels_lane_encode(&a, x, m, p.codes, lane, &errors, feeds);
        if (here && (feeds || (a.error && a.copy_distance)))
            zp_codec_kernels_lane_store_words(zp_codec_kernels_errors_of(&a, 1), at, &errors);
    }
}
__global__ void __launch_bounds__(ZP_THREADS, 3)
    zp_codec_kernels_encode_lanes(zp_codec_kernels_encode_args a, size_t blocks) {
    if (a.sum.codec.bits == 8)
        a.sum.n ? zp_codec_kernels_encode_bits(a, blocks, 8, 1)
                : zp_codec_kernels_encode_bits(a, blocks, 8, 0);
    else
        a.sum.n ? zp_codec_kernels_encode_bits(a, blocks, 4, 1)
                : zp_codec_kernels_encode_bits(a, blocks, 4, 0);
}
ZP_KERNEL_CALL(zp_codec_kernels_encode, zp_codec_kernels_encode_lanes, zp_codec_kernels_encode_args,
               zp_device_grid(ZP_LANES_EACH *n, 8192))

static __device__ __forceinline__ void zp_codec_kernels_decode_bits(zp_codec_kernels_decode_args a,
                                                                    size_t blocks, int bits) {
    a.sum.codec.bits = bits;
    const size_t lane = threadIdx.x % ZP_LANES_EACH, each = ZP_THREADS / ZP_LANES_EACH;
    float *sum = a.total || a.type != ZERO_F32 ? a.total : (float *)a.out;
    for (size_t i = blockIdx.x * each + threadIdx.x / ZP_LANES_EACH; i < blocks;
         i += gridDim.x * each) {
        const zp_block k = zp_codec_block_of(&a.sum, i);
        const size_t at = k.at + zp_codec_kernels_lane_at(lane);
        float x[2 * ZP_RUN], before[2 * ZP_RUN] = {0};
        zp_lane_words earlier;
        if (zp_codec_kernels_lane_at(lane) >= k.n) continue;
        if (a.accumulate) zp_codec_kernels_lane_fetch(&earlier, sum, ZERO_F32, at);
        zp_codec_kernels_lane_sum(&a.sum, &k, lane, x);
        if (a.accumulate) zp_codec_kernels_lane_widen(before, &earlier, ZERO_F32);
        for (int j = 0; j < 2 * ZP_RUN; j++)
            x[j] = a.accumulate ? before[j] + a.scale * x[j] : a.scale * x[j];
        if (sum) zp_codec_kernels_lane_store(sum, ZERO_F32, at, x);
        if (a.type != ZERO_F32) zp_codec_kernels_lane_store(a.out, a.type, at, x);
    }
}
__global__ void __launch_bounds__(ZP_THREADS)
    zp_codec_kernels_decode_lanes(zp_codec_kernels_decode_args a, size_t blocks) {
    if (a.sum.codec.bits == 8)
        zp_codec_kernels_decode_bits(a, blocks, 8);
    else
        zp_codec_kernels_decode_bits(a, blocks, 4);
}
ZP_KERNEL_CALL(zp_codec_kernels_decode, zp_codec_kernels_decode_lanes, zp_codec_kernels_decode_args,
               zp_device_grid(ZP_LANES_EACH *n, 8192))
#else
ZP_KERNEL_CALL(zp_codec_kernels_encode, zp_codec_kernels_encode_loop, zp_codec_kernels_encode_args)
ZP_KERNEL_CALL(zp_codec_kernels_decode, zp_codec_kernels_decode_loop, zp_codec_kernels_decode_args)
#endif
/* Enqueue the kernels for all blocks of all parts. */
static zero_result zp_codec_kernels_encode_parts(zp_stream *s,
                                                 const zp_codec_kernels_encode_args *a) {
    return zp_codec_kernels_encode(s, a, (size_t)a->sum.parts * zp_codec_blocks(a->sum.numel));
}
static zero_result zp_codec_kernels_decode_parts(zp_stream *s,
                                                 const zp_codec_kernels_decode_args *a) {
    return zp_codec_kernels_decode(s, a, (size_t)a->sum.parts * zp_codec_blocks(a->sum.numel));
}

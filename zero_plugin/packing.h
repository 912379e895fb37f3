/* packing.h - numbers are packed, unpacked and added up: what becomes of a block

   On the CPU a block is read, worked on in f32 while it stays in the first cache, and written; on
   GPUs it stays in registers. */
#pragma once

#include "codec.h"

/* ---- what is done to the numbers of a block: plainly ----
   Each loop has words of one size, and n is a number that the compiler knows but for a part's last
   block: so they become the processor's widest. */

/* x = a packed block's numbers, or x += them. */
ZP_FN void zp_plain_open(const zp_codec *c, const uint8_t *codes, float scale, size_t n, float *x,
                         int adds) {
    const size_t half = ZP_CODED_GROUP / 2;
    uint32_t pair[ZP_CODED_BLOCK / 2];
    if (c->bits == 8) {
        for (size_t j = 0; j < n; j++) {
            const float v = zp_decoded(((const int8_t *)codes)[j], scale);
            x[j] = adds ? x[j] + v : v;
        }
        return;
    }
    for (size_t j = 0; j < n / 2; j++) pair[j] = codes[j];
    for (size_t g = 0; g < n; g += ZP_CODED_GROUP)
        for (size_t j = 0; j < half; j++) {
            const uint32_t both = pair[g / 2 + j];
            const float low = zp_decoded(zp_half_code(both), scale),
                        high = zp_decoded(zp_half_code(both >> 4), scale);
            x[g + j] = adds ? x[g + j] + low : low;
            x[g + j + half] = adds ? x[g + j + half] + high : high;
        }
}
ZP_FN uint32_t zp_plain_largest(const float *x, size_t n) {
    uint32_t largest = 0;
    for (size_t j = 0; j < n; j++) largest = zp_largest(largest, x[j]);
    return largest;
}
/* Codes of a block that is finite and has a scale. */
ZP_FN void zp_plain_codes(const zp_codec *c, const float *x, size_t n, float inverse, uint8_t *to) {
    uint32_t code[ZP_CODED_BLOCK], pair[ZP_CODED_BLOCK / 2];
    const size_t half = ZP_CODED_GROUP / 2;
    for (size_t j = 0; j < n; j++) code[j] = (uint32_t)zp_code(x[j], inverse);
    if (c->bits == 8) {
        for (size_t j = 0; j < n; j++) to[j] = (uint8_t)code[j];
        return;
    }
    for (size_t g = 0; g < n; g += ZP_CODED_GROUP)
        for (size_t j = 0; j < half; j++)
            pair[g / 2 + j] = (code[g + j] & 15u) | code[g + j + half] << 4;
    for (size_t j = 0; j < n / 2; j++) to[j] = (uint8_t)pair[j];
}

/* ---- and by instructions that compilers do not find, with the same bits ---- */
#if defined(__AVX512F__) && !defined(__CUDACC__)
ZP_FN void zp_wide_put(float *x, __m512 v, int adds) {
    _mm512_storeu_ps(x, adds ? _mm512_add_ps(_mm512_loadu_ps(x), v) : v);
}
ZP_FN __m128i zp_wide_bytes(const uint8_t *p) {
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}
/* Half a byte has 16 values: they are looked up. */
ZP_FN void zp_block_open(const zp_codec *c, const uint8_t *codes, float scale, size_t n, float *x,
                         int adds) {
    const __m512 by = _mm512_set1_ps(scale);
    const __m512 value =
        _mm512_mul_ps(_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1), by);
    for (size_t j = 0; j < n && c->bits == 8; j += 16) {
        const __m512i code = _mm512_cvtepi8_epi32(zp_wide_bytes(codes + j));
        zp_wide_put(x + j, _mm512_mul_ps(_mm512_cvtepi32_ps(code), by), adds);
    }
    for (size_t j = 0; j < n && c->bits == 4; j += 32) {
        const __m512i both = _mm512_cvtepu8_epi32(zp_wide_bytes(codes + j / 2));
        zp_wide_put(x + j, _mm512_permutexvar_ps(both, value), adds);
        zp_wide_put(x + j + 16, _mm512_permutexvar_ps(_mm512_srli_epi32(both, 4), value), adds);
    }
}
ZP_FN uint32_t zp_block_largest(const float *x, size_t n) {
    const __m512i sign = _mm512_set1_epi32(0x7FFFFFFF);
    __m512i largest = _mm512_setzero_si512();
    for (size_t j = 0; j < n; j += 16)
        largest = _mm512_max_epu32(largest, _mm512_and_si512(_mm512_loadu_si512(x + j), sign));
    return _mm512_reduce_max_epu32(largest);
}
ZP_FN __m512i zp_wide_codes(const float *x, __m512 inverse) {
    return _mm512_cvt_roundps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), inverse),
                                    _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
ZP_FN void zp_wide_store(uint8_t *to, __m512i words) {
    _mm_storeu_si128((__m128i *)(void *)to, _mm512_cvtepi32_epi8(words));
}
ZP_FN void zp_block_codes(const zp_codec *c, const float *x, size_t n, float inverse, uint8_t *to) {
    const __m512 by = _mm512_set1_ps(inverse);
    const __m512i low = _mm512_set1_epi32(15);
    for (size_t j = 0; j < n && c->bits == 8; j += 16)
        zp_wide_store(to + j, zp_wide_codes(x + j, by));
    for (size_t j = 0; j < n && c->bits == 4; j += 32) {
        const __m512i high = _mm512_slli_epi32(zp_wide_codes(x + j + 16, by), 4);
        const __m512i both = _mm512_and_si512(zp_wide_codes(x + j, by), low);
        zp_wide_store(to + j / 2, _mm512_or_si512(both, high));
    }
}
#else
#define zp_block_open    zp_plain_open
#define zp_block_largest zp_plain_largest
#define zp_block_codes   zp_plain_codes
#endif

/* ---- a block ---- */

/* x = a packed block's numbers, or x += them. */
ZP_FN void zp_packed_open(const zp_coded *c, zp_packed p, size_t n, float *x, int adds) {
    float scale;
    memcpy(&scale, p.scale, sizeof scale);
    zp_block_open(&c->codec, (const uint8_t *)p.codes, scale, n, x, adds);
}
/* The sum over the senders. */
ZP_FN void zp_block_sum(const zp_coded *c, const zp_block *k, size_t n, float *x) {
    char *from = (char *)(uintptr_t)c->from;
    zp_packed_open(c, zp_packed_at(c, from, k->part, k->b), n, x, 0);
    for (int p = 1; p < c->n; p++)
        zp_packed_open(c, zp_packed_at(c, from + (size_t)p * c->stride, k->part, k->b), n, x, 1);
}

/* The errors that are fed; `next`: those that are made. */
ZP_FN uint16_t *zp_errors_of(const zp_encode_args *a, int next) {
    return a->error + ((a->control->fed ^ (next || a->again)) ? a->apart : 0);
}

/* Adds errors to what is to be sent; and makes the next ones of what came out, or, where that is
   not finite, of those before. */
ZP_FN void zp_block_feed(const zp_encode_args *a, const zp_block *k, size_t n, float *x,
                         float *error) {
    const float loss_scale = a->control->scale;
    zp_widen(error, zp_errors_of(a, 0) + k->at, ZERO_BF16, n);
    for (size_t j = 0; j < n; j++) {
        const float more = loss_scale * error[j];
        x[j] += more;
    }
}
ZP_FN void zp_block_keep(const zp_encode_args *a, const zp_block *k, zp_packed p, size_t n,
                         const float *x, float *error) {
    const float unscale = 1.0f / a->control->scale, beta = a->beta;
    float out[ZP_CODED_BLOCK];
    zp_packed_open(&a->sum, p, n, out, 0);
    for (size_t j = 0; j < n; j++) error[j] = zp_next_error(x[j], out[j], error[j], beta, unscale);
    zp_narrow(zp_errors_of(a, 1) + k->at, ZERO_BF16, error, n);
}

/* n: of k. */
ZP_FN void zp_encode_block(const zp_encode_args *a, const zp_block *k, size_t n) {
    const zp_coded *c = &a->sum;
    const zp_packed p = zp_packed_at(c, a->to, zp_packed_place(a, k->part), k->b);
    float copy[ZP_CODED_BLOCK], error[ZP_CODED_BLOCK];
    const float *x = copy;
    if (c->n)
        zp_block_sum(c, k, n, copy);
    else if (a->type == ZERO_F32 && !a->error)
        x = (const float *)a->x + k->at;
    else
        zp_widen(copy, (const char *)a->x + k->at * zp_bytes(a->type), a->type, n);
    if (a->error) zp_block_feed(a, k, n, copy, error);
    const uint32_t largest = zp_block_largest(x, n);
    const zp_measure m = zp_block_measure(largest, c->codec.most);
    memcpy(p.scale, &m.scale, sizeof m.scale);
    if (m.inverse == 0)
        memset(p.codes, 0, n * (size_t)c->codec.bits / 8);
    else
        zp_block_codes(&c->codec, x, n, m.inverse, (uint8_t *)p.codes);
    if (!a->error) return;
    if (largest < 0x7F800000u)
        zp_block_keep(a, k, p, n, x, error);
    else if (a->apart)
        zp_narrow(zp_errors_of(a, 1) + k->at, ZERO_BF16, error, n);
}
ZP_FN void zp_encode_at(const zp_encode_args *a, size_t i) {
    const zp_block k = zp_block_of(&a->sum, i);
    if (k.n == ZP_CODED_BLOCK)
        zp_encode_block(a, &k, ZP_CODED_BLOCK);
    else
        zp_encode_block(a, &k, k.n);
}

ZP_FN void zp_decode_block(const zp_decode_args *a, const zp_block *k, size_t n) {
    float x[ZP_CODED_BLOCK];
    float *total = a->total ? a->total + k->at : a->type == ZERO_F32 ? (float *)a->out + k->at : x;
    const int plain = !a->accumulate && a->scale == 1; /* x is the same, times 1 */
    zp_block_sum(&a->sum, k, n, plain ? total : x);
    if (a->accumulate)
        for (size_t j = 0; j < n; j++) total[j] += a->scale * x[j];
    else if (!plain)
        for (size_t j = 0; j < n; j++) total[j] = a->scale * x[j];
    if (a->type != ZERO_F32) zp_narrow((uint16_t *)a->out + k->at, a->type, total, n);
}
ZP_FN void zp_decode_at(const zp_decode_args *a, size_t i) {
    const zp_block k = zp_block_of(&a->sum, i);
    if (k.n == ZP_CODED_BLOCK)
        zp_decode_block(a, &k, ZP_CODED_BLOCK);
    else
        zp_decode_block(a, &k, k.n);
}

#ifdef __CUDACC__
ZP_LOOP(zp_encode, zp_encode_args, 64)
ZP_LOOP(zp_decode, zp_decode_args, 64)

/* By hand, with the same bits: half a warp takes a block, and each of its lanes 16 numbers, a run
   of eight from `at` on and one from at + 16 on: what eight bytes of 4-bit codes have. So 16-bit
   numbers are read 16 bytes at a time. */
#define ZP_LANES_EACH ((size_t)16) /* lanes of a block, and numbers of a lane */
#define ZP_RUN        8
#define ZP_SENDERS    4 /* that are read before any is added */
typedef struct zp_lane_codes {
    uint2 run[2]; /* of 4 bits one has both */
} zp_lane_codes;

ZP_FN size_t zp_lane_at(size_t lane) { return lane / 2 * ZP_CODED_GROUP + lane % 2 * ZP_RUN; }
ZP_FN void zp_run_load(float *x, const void *from, zero_type type, size_t at) {
    if (type == ZERO_F32) {
        zp_load_wide(x, from, type, at);
        zp_load_wide(x + 4, from, type, at + 4);
        return;
    }
    const uint4 h = *(const uint4 *)(const void *)((const uint16_t *)from + at);
    zp_open_words(x, make_uint4(h.x & 0xFFFFu, h.x >> 16, h.y & 0xFFFFu, h.y >> 16), type);
    zp_open_words(x + 4, make_uint4(h.z & 0xFFFFu, h.z >> 16, h.w & 0xFFFFu, h.w >> 16), type);
}
ZP_FN void zp_run_store(void *to, zero_type type, size_t at, const float *x) {
    if (type == ZERO_F32) {
        zp_store_wide(to, type, at, x);
        zp_store_wide(to, type, at + 4, x + 4);
        return;
    }
    uint32_t h[4];
    for (int j = 0; j < 4; j++) {
        const float low = x[2 * j], high = x[2 * j + 1];
        h[j] = type == ZERO_BF16 ? zp_to_bf16(low) | (uint32_t)zp_to_bf16(high) << 16
                                 : zp_to_f16(low) | (uint32_t)zp_to_f16(high) << 16;
    }
    *(uint4 *)(void *)((uint16_t *)to + at) = make_uint4(h[0], h[1], h[2], h[3]);
}
ZP_FN void zp_lane_load(float *x, const void *from, zero_type type, size_t at) {
    zp_run_load(x, from, type, at);
    zp_run_load(x + ZP_RUN, from, type, at + 16);
}
ZP_FN void zp_lane_store(void *to, zero_type type, size_t at, const float *x) {
    zp_run_store(to, type, at, x);
    zp_run_store(to, type, at + 16, x + ZP_RUN);
}
ZP_FN zp_lane_codes zp_lane_read(const zp_codec *c, const char *codes, size_t lane) {
    const uint2 *words = (const uint2 *)(const void *)codes;
    const size_t at = c->bits == 8 ? zp_lane_at(lane) / 8 : lane;
    const zp_lane_codes x = {{words[at], c->bits == 8 ? words[at + 2] : make_uint2(0, 0)}};
    return x;
}
ZP_FN void zp_lane_write(const zp_codec *c, char *codes, size_t lane, zp_lane_codes x) {
    uint2 *words = (uint2 *)(void *)codes;
    const size_t at = c->bits == 8 ? zp_lane_at(lane) / 8 : lane;
    words[at] = x.run[0];
    if (c->bits == 8) words[at + 2] = x.run[1];
}
/* Where a lane's number j has its code: in a word, from bit `at` on. */
ZP_FN uint32_t *zp_lane_word(const zp_codec *c, zp_lane_codes *x, int j, int *at) {
    uint2 *run = &x->run[c->bits == 8 ? j / ZP_RUN : 0];
    *at = 8 * (j & 3) + (c->bits == 8 || j < ZP_RUN ? 0 : 4);
    return j & 4 ? &run->y : &run->x;
}
/* The sum over the senders of a lane's numbers. */
ZP_FN void zp_lane_sum(const zp_coded *c, const zp_block *k, size_t lane, float *x) {
    for (int first = 0; first < c->n; first += ZP_SENDERS) {
        zp_lane_codes codes[ZP_SENDERS];
        float scale[ZP_SENDERS];
        for (int p = 0; p < ZP_SENDERS; p++) {
            char *from = (char *)(uintptr_t)c->from + (size_t)(first + p) * c->stride;
            const zp_packed at = zp_packed_at(c, from, k->part, k->b);
            if (first + p >= c->n) continue;
            scale[p] = *(const float *)(const void *)at.scale;
            codes[p] = zp_lane_read(&c->codec, at.codes, lane);
        }
        for (int p = 0; p < ZP_SENDERS; p++)
            for (int j = 0; j < 2 * ZP_RUN && first + p < c->n; j++) {
                int at;
                const uint32_t code = *zp_lane_word(&c->codec, &codes[p], j, &at) >> at;
                const float v = zp_decoded(
                    c->codec.bits == 8 ? (int8_t)(uint8_t)code : zp_half_code(code), scale[p]);
                x[j] = first + p ? x[j] + v : v;
            }
    }
}
/* A lane's codes go out; where errors are fed back (`feeds`) they become the next ones. */
ZP_FN void zp_lane_encode(const zp_encode_args *a, const float *x, zp_measure m, char *to,
                          size_t lane, float *error, int feeds) {
    const zp_codec *c = &a->sum.codec;
    const uint32_t mask = c->bits == 8 ? 255u : 15u;
    const float unscale = feeds ? 1.0f / a->control->scale : 1;
    zp_lane_codes codes = {{make_uint2(0, 0), make_uint2(0, 0)}};
    for (int j = 0; j < 2 * ZP_RUN; j++) {
        const int32_t code = m.inverse == 0 ? 0 : zp_code(x[j], m.inverse);
        int at;
        *zp_lane_word(c, &codes, j, &at) |= ((uint32_t)code & mask) << at;
        if (feeds)
            error[j] = zp_next_error(x[j], zp_decoded(code, m.scale), error[j], a->beta, unscale);
    }
    zp_lane_write(c, to, lane, codes);
}
__global__ void __launch_bounds__(ZP_THREADS) zp_encode_lanes(zp_encode_args a, size_t blocks) {
    const size_t lane = threadIdx.x % ZP_LANES_EACH, each = ZP_THREADS / ZP_LANES_EACH;
    const zp_coded *c = &a.sum;
    for (size_t first = blockIdx.x * each; first < blocks; first += gridDim.x * each) {
        const size_t i = first + threadIdx.x / ZP_LANES_EACH; /* whole warps come to the shuffles */
        const zp_block k = zp_block_of(c, i < blocks ? i : first);
        const zp_packed p = zp_packed_at(c, a.to, zp_packed_place(&a, k.part), k.b);
        const size_t at = k.at + zp_lane_at(lane);
        const int here = i < blocks && zp_lane_at(lane) < k.n;
        float x[2 * ZP_RUN] = {0}, error[2 * ZP_RUN] = {0};
        uint32_t largest = 0;
        if (here && c->n) zp_lane_sum(c, &k, lane, x);
        if (here && !c->n) zp_lane_load(x, a.x, a.type, at);
        if (here && a.error) zp_lane_load(error, zp_errors_of(&a, 0), ZERO_BF16, at);
        for (int j = 0; j < 2 * ZP_RUN; j++) {
            if (a.error) x[j] += a.control->scale * error[j];
            largest = zp_largest(largest, x[j]);
        }
        for (int w = (int)ZP_LANES_EACH / 2; w; w /= 2) {
            const uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, largest, w);
            largest = other > largest ? other : largest;
        }
        const zp_measure m = zp_block_measure(largest, c->codec.most);
        const int feeds = a.error && largest < 0x7F800000u;
        if (here && lane == 0) *(float *)(void *)p.scale = m.scale;
        if (here) zp_lane_encode(&a, x, m, p.codes, lane, error, feeds);
        if (here && (feeds || (a.error && a.apart)))
            zp_lane_store(zp_errors_of(&a, 1), ZERO_BF16, at, error);
    }
}
ZP_KERNEL_CALL(zp_encode, zp_encode_lanes, zp_encode_args, zp_grid(ZP_LANES_EACH *n, 8192))

__global__ void __launch_bounds__(ZP_THREADS) zp_decode_lanes(zp_decode_args a, size_t blocks) {
    const size_t lane = threadIdx.x % ZP_LANES_EACH, each = ZP_THREADS / ZP_LANES_EACH;
    float *sum = a.total || a.type != ZERO_F32 ? a.total : (float *)a.out;
    for (size_t i = blockIdx.x * each + threadIdx.x / ZP_LANES_EACH; i < blocks;
         i += gridDim.x * each) {
        const zp_block k = zp_block_of(&a.sum, i);
        const size_t at = k.at + zp_lane_at(lane);
        float x[2 * ZP_RUN], before[2 * ZP_RUN] = {0};
        if (zp_lane_at(lane) >= k.n) continue;
        if (a.accumulate) zp_lane_load(before, sum, ZERO_F32, at);
        zp_lane_sum(&a.sum, &k, lane, x);
        for (int j = 0; j < 2 * ZP_RUN; j++)
            x[j] = a.accumulate ? before[j] + a.scale * x[j] : a.scale * x[j];
        if (sum) zp_lane_store(sum, ZERO_F32, at, x);
        if (a.type != ZERO_F32) zp_lane_store(a.out, a.type, at, x);
    }
}
ZP_KERNEL_CALL(zp_decode, zp_decode_lanes, zp_decode_args, zp_grid(ZP_LANES_EACH *n, 8192))
#else
ZP_KERNEL(zp_encode, zp_encode_args, 64)
ZP_KERNEL(zp_decode, zp_decode_args, 64)
#endif
/* All blocks of all parts. */
static zero_result zp_encode_parts(zp_stream *s, const zp_encode_args *a) {
    return zp_encode(s, a, (size_t)a->sum.parts * zp_coded_blocks(a->sum.numel));
}
static zero_result zp_decode_parts(zp_stream *s, const zp_decode_args *a) {
    return zp_decode(s, a, (size_t)a->sum.parts * zp_coded_blocks(a->sum.numel));
}

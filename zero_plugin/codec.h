/* codec.h - how numbers travel: small integers, and a scale for every block of them

   A part of n numbers (a shard) is packed into one message: the scales of its blocks of 256, f32,
   then the codes, both up to a multiple of 64 bytes. Blocks are cut within a part, so that nothing
   but the layout of shards decides what shares a scale.

     part:   | scale 0, scale 1, ... | codes of block 0 | codes of block 1 | ... |
     8 bits: a byte is the code of one number
     4 bits: of 32 numbers byte j has the codes of number j, low half, and of number j + 16

   CODES are symmetric: with most = 2^(bits-1) - 1,
     scale = largest |x| of the block / most        code = x * (most / largest), to nearest even
   so that the largest number is met and none is clipped; what comes out is code * scale, which is
   finite (a scale that would make it infinite is the number below). A block whose scale would not
   be a normal number is zeros. One with a number that is not finite has NaN for its scale, and is
   NaN as a whole: a step that it reaches is skipped.

   FEEDBACK. What a sender's codes have lost is kept, in bf16 and without the loss scale, and added
   to what it sends next: with y = x + error, error becomes beta error + (1 - beta) (y - what came
   out). A block that is not finite leaves its errors as they are. (LoCo: Xie et al. 2024, equation
   9, whose moving average this is.)

   SUMS. Packed parts of several ranks become numbers block by block, while they stay in cache: in
   f32, in rank order; the sum goes where zp_sum's goes, or is packed again for the next hop. */
#pragma once

#include "exact.h"

#define ZP_CODED_BLOCK ((size_t)256)
#define ZP_CODED_GROUP ((size_t)32) /* a part is a multiple of that many numbers */
static_assert(ZP_CODED_GROUP == ZP_EXACT_BLOCK, "no shard ends inside a group, nor inside those");

typedef struct zp_codec {
    int bits, most;
} zp_codec;
static const zp_codec zp_codecs[] = {{8, 127}, {4, 7}};

/* NULL: numbers travel as they are stored. */
static const zp_codec *zp_codec_of(int bits) {
    for (size_t i = 0; i < sizeof zp_codecs / sizeof *zp_codecs; i++)
        if (zp_codecs[i].bits == bits) return &zp_codecs[i];
    return NULL;
}

ZP_FN size_t zp_coded_blocks(size_t n) { return (n + ZP_CODED_BLOCK - 1) / ZP_CODED_BLOCK; }
ZP_FN size_t zp_coded_line(size_t bytes) { return (bytes + 63) / 64 * 64; }
/* Of a part of n numbers: where its codes begin, and all of it. */
ZP_FN size_t zp_packed_codes(size_t n) { return zp_coded_line(4 * zp_coded_blocks(n)); }
ZP_FN size_t zp_packed_bytes(const zp_codec *c, size_t n) {
    return zp_packed_codes(n) + zp_coded_line(n * (size_t)c->bits / 8);
}

/* Packed numbers to read: `parts` parts behind one another, and n senders' of each, `stride` bytes
   apart. */
typedef struct zp_coded {
    const char *from;
    size_t stride, numel; /* numel: of a part */
    zp_codec codec;
    int n, parts;
} zp_coded;

/* Numbers, `parts` parts behind one another, or the sums of packed ones, become packed parts. Part
   r goes to place r % locals * (parts / locals) + r / locals: a message's parts are together. */
typedef struct zp_encode_args {
    zp_coded sum;  /* sum.n 0: of x; numel, parts and codec are those of what is written, too */
    const void *x; /* [parts][numel] */
    char *to;
    zero_type type;
    int locals;
    uint16_t *error;           /* [parts][numel] bf16; NULL: no feedback */
    const zp_control *control; /* feedback: x is scaled by its loss scale */
    float beta;
} zp_encode_args;

/* Packed parts, or sums of them, become numbers: times scale into `sum`, or added to it, and from
   there rounded to `out`, as zp_sum has it; [parts][numel]. */
typedef struct zp_decode_args {
    zp_coded sum;
    void *out;
    float *total; /* f32 besides `out`; NULL: none */
    zero_type type;
    float scale;
    int accumulate;
} zp_decode_args;

/* A block's scale, and what its numbers are multiplied by; 0: all codes are 0. `largest`: the bits
   of the largest magnitude. */
typedef struct zp_measure {
    float scale, inverse;
} zp_measure;
ZP_FN zp_measure zp_block_measure(uint32_t largest, int most) {
    const float all = (float)most;
    zp_measure m = {0, 0};
    if (largest >= 0x7F800000u) {
        m.scale = zp_float(0x7FC00000u);
    } else if (largest >= zp_bits(all * FLT_MIN)) {
        m.scale = zp_float(largest) / all;
        m.inverse = all / zp_float(largest);
        if (zp_bits(all * m.scale) == 0x7F800000u) m.scale = zp_float(zp_bits(m.scale) - 1);
    }
    return m;
}
ZP_FN uint32_t zp_largest(uint32_t largest, float x) {
    const uint32_t magnitude = zp_bits(x) & 0x7FFFFFFFu;
    return magnitude > largest ? magnitude : largest;
}
ZP_FN int32_t zp_code(float x, float inverse) { return (int32_t)rintf(x * inverse); }
ZP_FN float zp_decoded(int32_t code, float scale) { return (float)code * scale; }
/* Of half a byte. */
ZP_FN int32_t zp_half_code(uint32_t half) { return (int32_t)((half & 15u) ^ 8u) - 8; }
/* The next error, of what was to be sent, what came out, and the error before. */
ZP_FN float zp_next_error(float y, float out, float error, float beta, float unscale) {
    const float kept = beta * error, lost = (1.0f - beta) * ((y - out) * unscale);
    return kept + lost;
}

/* Where block b of part r lies, in a sender's packed parts. */
typedef struct zp_packed {
    char *scale, *codes;
} zp_packed;
ZP_FN zp_packed zp_packed_at(const zp_coded *c, char *base, size_t part, size_t b) {
    char *from = base + part * zp_packed_bytes(&c->codec, c->numel);
    const zp_packed at = {from + 4 * b, from + zp_packed_codes(c->numel)
                                            + b * ZP_CODED_BLOCK * (size_t)c->codec.bits / 8};
    return at;
}
ZP_FN size_t zp_packed_place(const zp_encode_args *a, size_t part) {
    const size_t locals = (size_t)a->locals;
    return part % locals * ((size_t)a->sum.parts / locals) + part / locals;
}
/* Block i of all parts. */
typedef struct zp_block {
    size_t part, b, at, n; /* at: its first number, of all parts' */
} zp_block;
ZP_FN zp_block zp_block_of(const zp_coded *c, size_t i) {
    const size_t blocks = zp_coded_blocks(c->numel), part = i / blocks, b = i % blocks;
    const size_t first = b * ZP_CODED_BLOCK, left = c->numel - first;
    const zp_block block = {part, b, part * c->numel + first,
                            left < ZP_CODED_BLOCK ? left : ZP_CODED_BLOCK};
    return block;
}

/* x = a packed block's numbers, or x += them. Each loop has words of one size, and n is a number
   that the compiler knows but for a part's last block: so they become the processor's widest. */
ZP_FN void zp_block_open(const zp_coded *c, zp_packed p, size_t n, float *x, int adds) {
    const uint8_t *codes = (const uint8_t *)p.codes;
    const size_t half = ZP_CODED_GROUP / 2;
    uint32_t pair[ZP_CODED_BLOCK / 2];
    float scale;
    memcpy(&scale, p.scale, sizeof scale);
    if (c->codec.bits == 8) {
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
/* The sum over the senders. */
ZP_FN void zp_block_sum(const zp_coded *c, const zp_block *k, size_t n, float *x) {
    char *from = (char *)(uintptr_t)c->from;
    zp_block_open(c, zp_packed_at(c, from, k->part, k->b), n, x, 0);
    for (int p = 1; p < c->n; p++)
        zp_block_open(c, zp_packed_at(c, from + (size_t)p * c->stride, k->part, k->b), n, x, 1);
}

/* Codes of a block that is finite and has a scale. */
ZP_FN void zp_block_codes(const zp_codec *c, const float *x, size_t n, float inverse, char *to) {
    uint32_t code[ZP_CODED_BLOCK], pair[ZP_CODED_BLOCK / 2];
    const size_t half = ZP_CODED_GROUP / 2;
    for (size_t j = 0; j < n; j++) code[j] = (uint32_t)zp_code(x[j], inverse);
    if (c->bits == 8) {
        for (size_t j = 0; j < n; j++) ((uint8_t *)to)[j] = (uint8_t)code[j];
        return;
    }
    for (size_t g = 0; g < n; g += ZP_CODED_GROUP)
        for (size_t j = 0; j < half; j++)
            pair[g / 2 + j] = (code[g + j] & 15u) | code[g + j + half] << 4;
    for (size_t j = 0; j < n / 2; j++) ((uint8_t *)to)[j] = (uint8_t)pair[j];
}

/* Adds errors to what is to be sent; and makes the next ones of what came out. */
ZP_FN void zp_block_feed(const zp_encode_args *a, const zp_block *k, size_t n, float *x,
                         float *error) {
    const float loss_scale = a->control->scale;
    zp_widen(error, a->error + k->at, ZERO_BF16, n);
    for (size_t j = 0; j < n; j++) {
        const float more = loss_scale * error[j];
        x[j] += more;
    }
}
ZP_FN void zp_block_keep(const zp_encode_args *a, const zp_block *k, zp_packed p, size_t n,
                         const float *x, float *error) {
    const float unscale = 1.0f / a->control->scale, beta = a->beta;
    float out[ZP_CODED_BLOCK];
    zp_block_open(&a->sum, p, n, out, 0);
    for (size_t j = 0; j < n; j++) error[j] = zp_next_error(x[j], out[j], error[j], beta, unscale);
    zp_narrow(a->error + k->at, ZERO_BF16, error, n);
}

/* n: of k. */
ZP_FN void zp_encode_block(const zp_encode_args *a, const zp_block *k, size_t n) {
    const zp_coded *c = &a->sum;
    const zp_packed p = zp_packed_at(c, a->to, zp_packed_place(a, k->part), k->b);
    float copy[ZP_CODED_BLOCK], error[ZP_CODED_BLOCK];
    const float *x = copy;
    uint32_t largest = 0;
    if (c->n)
        zp_block_sum(c, k, n, copy);
    else if (a->type == ZERO_F32 && !a->error)
        x = (const float *)a->x + k->at;
    else
        zp_widen(copy, (const char *)a->x + k->at * zp_bytes(a->type), a->type, n);
    if (a->error) zp_block_feed(a, k, n, copy, error);
    for (size_t j = 0; j < n; j++) largest = zp_largest(largest, x[j]);
    const zp_measure m = zp_block_measure(largest, c->codec.most);
    memcpy(p.scale, &m.scale, sizeof m.scale);
    if (m.inverse == 0)
        memset(p.codes, 0, n * (size_t)c->codec.bits / 8);
    else
        zp_block_codes(&c->codec, x, n, m.inverse, p.codes);
    if (a->error && largest < 0x7F800000u) zp_block_keep(a, k, p, n, x, error);
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

/* By hand, with the same bits: a warp takes a block, and each of its lanes eight numbers, four from
   `at` on and four from at + 16 on: what a word of 4-bit codes has. */
#define ZP_WARP ((size_t)32)
#define ZP_EACH 8
ZP_FN size_t zp_lane_at(size_t lane) { return lane / 4 * ZP_CODED_GROUP + lane % 4 * 4; }
ZP_FN void zp_lane_load(float *x, const void *from, zero_type type, size_t at) {
    const uint4 low = zp_load_words(from, type, at), high = zp_load_words(from, type, at + 16);
    zp_open_words(x, low, type);
    zp_open_words(x + 4, high, type);
}
ZP_FN void zp_lane_store(void *to, zero_type type, size_t at, const float *x) {
    zp_store_wide(to, type, at, x);
    zp_store_wide(to, type, at + 16, x + 4);
}
ZP_FN uint2 zp_lane_words(const zp_codec *c, const char *codes, size_t lane) {
    const uint32_t *words = (const uint32_t *)(const void *)codes;
    const size_t at = zp_lane_at(lane) / 4;
    return c->bits == 8 ? make_uint2(words[at], words[at + 4]) : make_uint2(words[lane], 0);
}
ZP_FN int32_t zp_lane_code(const zp_codec *c, uint2 words, int j) {
    if (c->bits == 8) return (int8_t)((j < 4 ? words.x : words.y) >> (8 * (j & 3)));
    return zp_half_code(words.x >> (8 * (j & 3) + (j < 4 ? 0 : 4)));
}
/* The sum over the senders of a lane's numbers. */
ZP_FN void zp_lane_sum(const zp_coded *c, const zp_block *k, size_t lane, float *x) {
    for (int p = 0; p < c->n; p++) {
        char *from = (char *)(uintptr_t)c->from + (size_t)p * c->stride;
        const zp_packed at = zp_packed_at(c, from, k->part, k->b);
        const float scale = *(const float *)(const void *)at.scale;
        const uint2 words = zp_lane_words(&c->codec, at.codes, lane);
        for (int j = 0; j < ZP_EACH; j++) {
            const float v = zp_decoded(zp_lane_code(&c->codec, words, j), scale);
            x[j] = p ? x[j] + v : v;
        }
    }
}
/* A lane's codes go out, and what they say comes back in `out`. */
ZP_FN void zp_lane_codes(const zp_codec *c, const float *x, zp_measure m, char *codes, size_t lane,
                         float *out) {
    uint32_t *words = (uint32_t *)(void *)codes;
    uint32_t low = 0, high = 0;
    for (int j = 0; j < ZP_EACH; j++) {
        const int32_t code = m.inverse == 0 ? 0 : zp_code(x[j], m.inverse);
        out[j] = zp_decoded(code, m.scale);
        if (c->bits == 4)
            low |= ((uint32_t)code & 15u) << (8 * (j & 3) + (j < 4 ? 0 : 4));
        else if (j < 4)
            low |= ((uint32_t)code & 255u) << (8 * j);
        else
            high |= ((uint32_t)code & 255u) << (8 * (j - 4));
    }
    const size_t at = c->bits == 8 ? zp_lane_at(lane) / 4 : lane;
    words[at] = low;
    if (c->bits == 8) words[at + 4] = high;
}
__global__ void __launch_bounds__(ZP_THREADS) zp_encode_warps(zp_encode_args a, size_t blocks) {
    const size_t lane = threadIdx.x % ZP_WARP, warps = ZP_THREADS / ZP_WARP;
    const zp_coded *c = &a.sum;
    for (size_t i = blockIdx.x * warps + threadIdx.x / ZP_WARP; i < blocks;
         i += gridDim.x * warps) {
        const zp_block k = zp_block_of(c, i);
        const zp_packed p = zp_packed_at(c, a.to, zp_packed_place(&a, k.part), k.b);
        const size_t at = k.at + zp_lane_at(lane);
        const int here = zp_lane_at(lane) < k.n;
        float x[ZP_EACH] = {0}, error[ZP_EACH] = {0}, out[ZP_EACH];
        uint32_t largest = 0;
        if (here && c->n) zp_lane_sum(c, &k, lane, x);
        if (here && !c->n) zp_lane_load(x, a.x, a.type, at);
        if (here && a.error) zp_lane_load(error, a.error, ZERO_BF16, at);
        for (int j = 0; j < ZP_EACH; j++) {
            if (a.error) x[j] += a.control->scale * error[j];
            largest = zp_largest(largest, x[j]);
        }
        for (int w = (int)ZP_WARP / 2; w; w /= 2) {
            const uint32_t other = __shfl_xor_sync(0xFFFFFFFFu, largest, w);
            largest = other > largest ? other : largest;
        }
        const zp_measure m = zp_block_measure(largest, c->codec.most);
        if (lane == 0) *(float *)(void *)p.scale = m.scale;
        if (!here) continue;
        zp_lane_codes(&c->codec, x, m, p.codes, lane, out);
        if (!a.error || largest >= 0x7F800000u) continue;
        for (int j = 0; j < ZP_EACH; j++)
            error[j] = zp_next_error(x[j], out[j], error[j], a.beta, 1.0f / a.control->scale);
        zp_lane_store(a.error, ZERO_BF16, at, error);
    }
}
ZP_KERNEL_CALL(zp_encode, zp_encode_warps, zp_encode_args, zp_grid(ZP_WARP *n, 8192))

__global__ void __launch_bounds__(ZP_THREADS) zp_decode_warps(zp_decode_args a, size_t blocks) {
    const size_t lane = threadIdx.x % ZP_WARP, warps = ZP_THREADS / ZP_WARP;
    float *sum = a.total || a.type != ZERO_F32 ? a.total : (float *)a.out;
    for (size_t i = blockIdx.x * warps + threadIdx.x / ZP_WARP; i < blocks;
         i += gridDim.x * warps) {
        const zp_block k = zp_block_of(&a.sum, i);
        const size_t at = k.at + zp_lane_at(lane);
        float x[ZP_EACH], before[ZP_EACH] = {0};
        if (zp_lane_at(lane) >= k.n) continue;
        if (a.accumulate) zp_lane_load(before, sum, ZERO_F32, at);
        zp_lane_sum(&a.sum, &k, lane, x);
        for (int j = 0; j < ZP_EACH; j++)
            x[j] = a.accumulate ? before[j] + a.scale * x[j] : a.scale * x[j];
        if (sum) zp_lane_store(sum, ZERO_F32, at, x);
        if (a.type != ZERO_F32) zp_lane_store(a.out, a.type, at, x);
    }
}
ZP_KERNEL_CALL(zp_decode, zp_decode_warps, zp_decode_args, zp_grid(ZP_WARP *n, 8192))
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

/* codec.h - the format of quantized numbers: small integers, with one scale per block

   A part of n numbers (a shard) becomes one message: the f32 scales of its blocks of 128, then the
   codes. Both are padded to a multiple of 64 bytes. A block never crosses a part, so the layout of
   shards alone decides which numbers share a scale. Tensors and shards begin at multiples of
   ZP_ALIGN elements: 32 on the CPU, 64 on CUDA. The two builds therefore cut different blocks, and
   their quantized numbers of one model differ in bits.

     part:   | scale 0, scale 1, ... | codes of block 0 | codes of block 1 | ... |
     8 bits: one byte is the code of one number
     4 bits: of 32 numbers, byte j holds number j (low half) and number j + 16 (high half)

   CODES are symmetric. With most = 2^(bits-1) - 1:
     scale = largest |x| of the block / most        code = x * (most / largest), to nearest even
   The largest number is exact and none is clipped. The decoded value code * scale is always finite:
   a scale that would make it infinite is replaced by the next smaller number. If the scale would
   not be a normal number, the block decodes to zeros. If the block contains Inf or NaN, its scale
   is NaN and so is every number of the block; the step is then skipped.

   ERROR FEEDBACK. A sender keeps what quantization lost, as bf16 without the loss scale, and adds
   it to what it sends next. With y = x + error:
     error' = beta error + (1 - beta) (y - decoded y)     LoCo: Xie et al. 2024, equation 9
   A block that is not finite leaves its errors unchanged. fp16 skips steps regularly, so it keeps
   two copies: a step reads the copy of the last step taken and writes the other. That other copy
   counts once the step itself is taken, so a skipped step changes no error.

   SUMS. Quantized parts of several ranks are added block by block in cache: in f32, in rank order.
   The sum is stored like that of zp_sum, or quantized again for the next hop. */
#pragma once

#include "../numbers/kernels.h"

#define ZP_QUANT_BLOCK ((size_t)128)
#define ZP_QUANT_GROUP ((size_t)32) /* a part is a multiple of this many numbers */
static_assert(ZP_ALIGN % ZP_QUANT_GROUP == 0, "no shard ends inside a group");

typedef struct zp_codec {
    int bits, most;
} zp_codec;
static const zp_codec zp_codecs[] = {{8, 127}, {4, 7}};

/* Returns the codec for `bits`, or NULL: numbers travel as they are stored. */
static const zp_codec *zp_codec_find(int bits) {
    for (size_t i = 0; i < sizeof zp_codecs / sizeof *zp_codecs; i++)
        if (zp_codecs[i].bits == bits) return &zp_codecs[i];
    return NULL;
}

ZP_FN size_t zp_codec_blocks(size_t n) { return (n + ZP_QUANT_BLOCK - 1) / ZP_QUANT_BLOCK; }
ZP_FN size_t zp_codec_line(size_t bytes) { return (bytes + 63) / 64 * 64; }
/* The offset of the codes in a part of n numbers, and the bytes of the whole part. */
ZP_FN size_t zp_codec_codes_offset(size_t n) { return zp_codec_line(4 * zp_codec_blocks(n)); }
ZP_FN size_t zp_codec_quantized_bytes(const zp_codec *c, size_t n) {
    return zp_codec_codes_offset(n) + zp_codec_line(n * (size_t)c->bits / 8);
}

/* Quantized numbers to read: `parts` consecutive parts from each of n senders, whose messages are
   `stride` bytes apart. */
typedef struct zp_quantized {
    const char *from;
    size_t stride, numel; /* numel: elements of one part */
    zp_codec codec;
    int n, parts;
} zp_quantized;

/* Quantizes `parts` consecutive parts, or the sums of quantized ones. Part r is written to place r
   % locals * (parts / locals) + r / locals, so that the parts of one message are consecutive. */
typedef struct zp_codec_kernels_encode_args {
    zp_quantized sum; /* sum.n 0: quantizes x. numel, parts and codec also describe the output */
    const void *x;    /* [parts][numel] */
    char *to;
    zero_type type;
    int locals;
    uint16_t *error;           /* [parts][numel] bf16; NULL: no feedback */
    const zp_control *control; /* error feedback: x is multiplied by its loss scale */
    float beta;
    int again;            /* a later reduction of the same step: reads what the first one wrote */
    size_t copy_distance; /* elements between the two copies of the errors; 0: one copy */
} zp_codec_kernels_encode_args;

/* Dequantizes parts or sums of parts, times `scale`. The result is written or added to `total`, and
   rounded to `out`, as in zp_sum. Shape: [parts][numel]. */
typedef struct zp_codec_kernels_decode_args {
    zp_quantized sum;
    void *out;
    float *total; /* f32, in addition to `out`; NULL: none */
    zero_type type;
    float scale;
    int accumulate;
} zp_codec_kernels_decode_args;

/* The scale of a block, and the factor before rounding (0: all codes are 0). `largest` has the bits
   of the largest magnitude. */
typedef struct zp_block_scale {
    float scale, inverse;
} zp_block_scale;
ZP_FN zp_block_scale zp_codec_scale_block(uint32_t largest, int most) {
    const float all = (float)most;
    zp_block_scale m = {0, 0};
    if (largest >= 0x7F800000u) {
        m.scale = zp_type_bits_to_float(0x7FC00000u);
    } else if (largest >= zp_type_bits(all * FLT_MIN)) {
        m.scale = zp_type_bits_to_float(largest) / all;
        m.inverse = all / zp_type_bits_to_float(largest);
        if (largest >= 0x7F7FFF00u /* below this, every decoded value is finite */
            && zp_type_bits(all * m.scale) == 0x7F800000u)
            m.scale = zp_type_bits_to_float(zp_type_bits(m.scale) - 1);
    }
    return m;
}
ZP_FN uint32_t zp_codec_largest(uint32_t largest, float x) {
    const uint32_t size = zp_type_bits(x) & 0x7FFFFFFFu;
    return size > largest ? size : largest;
}
/* Rounds to nearest even: adding 1.5 * 2^23 leaves the integer in the sum's low bits. */
ZP_FN int32_t zp_codec_encode_value(float x, float inverse) {
    const float whole = 12582912.0f; /* 1.5 * 2^23 */
    const float turned = x * inverse;
    return (int32_t)(zp_type_bits(turned + whole) - zp_type_bits(whole));
}
ZP_FN float zp_codec_decode_value(int32_t code, float scale) { return (float)code * scale; }
/* Sign-extends a 4-bit code. */
ZP_FN int32_t zp_codec_sign_extend(uint32_t half) { return (int32_t)((half & 15u) ^ 8u) - 8; }
/* Returns the next error from the value to send, its decoded value and the last error. */
ZP_FN float zp_codec_next_error(float y, float out, float error, float beta, float unscale) {
    const float kept = beta * error, lost = (1.0f - beta) * ((y - out) * unscale);
    return kept + lost;
}

/* The addresses of block b of part `part` in the message of a sender. */
typedef struct zp_codec_place {
    char *scale, *codes;
} zp_codec_place;
ZP_FN zp_codec_place zp_codec_quantized_at(const zp_quantized *c, char *base, size_t part,
                                           size_t b) {
    char *from = base + part * zp_codec_quantized_bytes(&c->codec, c->numel);
    const zp_codec_place at = {from + 4 * b, from + zp_codec_codes_offset(c->numel)
                                                 + b * ZP_QUANT_BLOCK * (size_t)c->codec.bits / 8};
    return at;
}
ZP_FN size_t zp_codec_output_part(const zp_codec_kernels_encode_args *a, size_t part) {
    const uint32_t locals = (uint32_t)a->locals, r = (uint32_t)part;
    return locals == 1 ? part : r % locals * ((uint32_t)a->sum.parts / locals) + r / locals;
}
/* Block i, counted over all parts. */
typedef struct zp_block {
    size_t part, b, at, n; /* b: in its part; at: its first number, counted over all parts */
} zp_block;
ZP_FN zp_block zp_codec_block_of(const zp_quantized *c, size_t i) {
    const size_t blocks = zp_codec_blocks(c->numel);
    const int narrow = (i | blocks) >> 32 == 0; /* a 64-bit division costs as much as a block */
    const size_t part = narrow ? (uint32_t)i / (uint32_t)blocks : i / blocks;
    const size_t b = i - part * blocks, first = b * ZP_QUANT_BLOCK, left = c->numel - first;
    const zp_block block = {part, b, part * c->numel + first,
                            left < ZP_QUANT_BLOCK ? left : ZP_QUANT_BLOCK};
    return block;
}

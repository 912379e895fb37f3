/* codec.h - how numbers travel: small integers, and a scale for every block of them

   A part of n numbers (a shard) is packed into one message: the scales of its blocks of 128, f32,
   then the codes, both up to a multiple of 64 bytes. Blocks are cut within a part, so that nothing
   but the layout of shards decides what shares a scale. Tensors and shards begin on lines of 32
   elements on the CPU and of 64 on CUDA (ZP_ALIGN): the two builds cut other blocks, so that packed
   numbers of one model differ between them in bits.

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
   9, whose moving average this is.) Where steps are skipped as a matter of course (fp16) there are
   two copies: a step reads that of the last step taken and writes the other, which counts once this
   step is taken, too. So of a step that is skipped nothing is carried, and nothing is lost.

   SUMS. Packed parts of several ranks become numbers block by block, while they stay in cache: in
   f32, in rank order; the sum goes where zp_sum's goes, or is packed again for the next hop. */
#pragma once

#include "../numbers/exact.h"

#define ZP_QUANT_BLOCK ((size_t)128)
#define ZP_QUANT_GROUP ((size_t)32) /* a part is a multiple of that many numbers */
static_assert(ZP_QUANT_GROUP == ZP_EXACT_BLOCK, "no shard ends inside a group, nor inside those");

typedef struct zp_codec {
    int bits, most;
} zp_codec;
static const zp_codec zp_codecs[] = {{8, 127}, {4, 7}};

/* NULL: numbers travel as they are stored. */
static const zp_codec *zp_codec_find(int bits) {
    for (size_t i = 0; i < sizeof zp_codecs / sizeof *zp_codecs; i++)
        if (zp_codecs[i].bits == bits) return &zp_codecs[i];
    return NULL;
}

ZP_FN size_t zp_codec_blocks(size_t n) { return (n + ZP_QUANT_BLOCK - 1) / ZP_QUANT_BLOCK; }
ZP_FN size_t zp_codec_line(size_t bytes) { return (bytes + 63) / 64 * 64; }
/* Of a part of n numbers: where its codes begin, and all of it. */
ZP_FN size_t zp_codec_codes_offset(size_t n) { return zp_codec_line(4 * zp_codec_blocks(n)); }
ZP_FN size_t zp_codec_quantized_bytes(const zp_codec *c, size_t n) {
    return zp_codec_codes_offset(n) + zp_codec_line(n * (size_t)c->bits / 8);
}

/* Packed numbers to read: `parts` parts behind one another, and n senders' of each, `stride` bytes
   apart. */
typedef struct zp_quantized {
    const char *from;
    size_t stride, numel; /* numel: of a part */
    zp_codec codec;
    int n, parts;
} zp_quantized;

/* Numbers, `parts` parts behind one another, or the sums of packed ones, become packed parts. Part
   r goes to place r % locals * (parts / locals) + r / locals: a message's parts are together. */
typedef struct zp_codec_kernels_encode_args {
    zp_quantized sum; /* sum.n 0: of x; numel, parts and codec are those of what is written, too */
    const void *x;    /* [parts][numel] */
    char *to;
    zero_type type;
    int locals;
    uint16_t *error;           /* [parts][numel] bf16; NULL: no feedback */
    const zp_control *control; /* feedback: x is scaled by its loss scale */
    float beta;
    int again;    /* not the first in this step: it goes on from what that one wrote */
    size_t apart; /* elements from one copy of the errors to the other; 0: there is one */
} zp_codec_kernels_encode_args;

/* Packed parts, or sums of them, become numbers: times scale into `sum`, or added to it, and from
   there rounded to `out`, as zp_sum has it; [parts][numel]. */
typedef struct zp_codec_kernels_decode_args {
    zp_quantized sum;
    void *out;
    float *total; /* f32 besides `out`; NULL: none */
    zero_type type;
    float scale;
    int accumulate;
} zp_codec_kernels_decode_args;

/* A block's scale, and what its numbers are multiplied by; 0: all codes are 0. `largest`: the bits
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
        if (largest >= 0x7F7FFF00u /* below, all codes' numbers are finite */
            && zp_type_bits(all * m.scale) == 0x7F800000u)
            m.scale = zp_type_bits_to_float(zp_type_bits(m.scale) - 1);
    }
    return m;
}
ZP_FN uint32_t zp_codec_largest(uint32_t largest, float x) {
    const uint32_t magnitude = zp_type_bits(x) & 0x7FFFFFFFu;
    return magnitude > largest ? magnitude : largest;
}
/* To nearest even, by the sum's own rounding: its last bits are the whole number. */
ZP_FN int32_t zp_codec_encode_value(float x, float inverse) {
    const float whole = 12582912.0f; /* 1.5 * 2^23 */
    const float turned = x * inverse;
    return (int32_t)(zp_type_bits(turned + whole) - zp_type_bits(whole));
}
ZP_FN float zp_codec_decode_value(int32_t code, float scale) { return (float)code * scale; }
/* Of half a byte. */
ZP_FN int32_t zp_codec_sign_extend(uint32_t half) { return (int32_t)((half & 15u) ^ 8u) - 8; }
/* The next error, of what was to be sent, what came out, and the error before. */
ZP_FN float zp_codec_next_error(float y, float out, float error, float beta, float unscale) {
    const float kept = beta * error, lost = (1.0f - beta) * ((y - out) * unscale);
    return kept + lost;
}

/* Where block b of part r lies, in a sender's packed parts. */
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
/* Block i of all parts. */
typedef struct zp_block {
    size_t part, b, at, n; /* at: its first number, of all parts' */
} zp_block;
ZP_FN zp_block zp_codec_block_of(const zp_quantized *c, size_t i) {
    const size_t blocks = zp_codec_blocks(c->numel);
    const int narrow = (i | blocks) >> 32 == 0; /* a division of 64 bits costs as much as a block */
    const size_t part = narrow ? (uint32_t)i / (uint32_t)blocks : i / blocks;
    const size_t b = i - part * blocks, first = b * ZP_QUANT_BLOCK, left = c->numel - first;
    const zp_block block = {part, b, part * c->numel + first,
                            left < ZP_QUANT_BLOCK ? left : ZP_QUANT_BLOCK};
    return block;
}

/* codec.c - proofs: the format of quantized numbers, and the hash of words */
#include "../../zero_plugin/extras/codec_blocks.h"
#include "proof.h"

/* A part of any size: blocks tile it, and each block's scale and codes are inside the message. */
static void block_holds(int bits, uint64_t most) {
    zp_quantized q = {NULL, 0, 0, {8, 127}, 1, 1};
    q.codec = *zp_codec_find(bits);
    q.numel = any(1, most) * ZP_QUANT_GROUP;
    const size_t blocks = zp_codec_blocks(q.numel), i = any(0, most);
    ASSUME(i < blocks);
    const zp_block b = zp_codec_block_of(&q, i);
    const size_t codes = zp_codec_codes_offset(q.numel) + b.b * ZP_QUANT_BLOCK * (size_t)bits / 8;
    PROVE(b.part == 0 && b.b == i && b.at == i * ZP_QUANT_BLOCK, "blocks are in order");
    PROVE(b.n == (i + 1 < blocks ? ZP_QUANT_BLOCK : q.numel - b.at) && b.n <= ZP_QUANT_BLOCK,
          "blocks tile the part");
    PROVE(4 * b.b + 4 <= zp_codec_codes_offset(q.numel), "scales end before the codes");
    PROVE(codes + b.n * (size_t)bits / 8 <= zp_codec_quantized_bytes(&q.codec, q.numel),
          "codes end inside the message");
}
void block_of_8_bits(void) { block_holds(8, (1 << 27) - 1); }
void block_of_many(void) { block_holds(8, ((uint64_t)1 << 43) - 1); } /* 2^48 numbers */

/* Parts have places of their own, for any number of ranks of a node and of parts up to 64. */
void output_part(void) {
    zp_codec_kernels_encode_args a = {0};
    a.locals = ANY_INT(1, 8);
    const int groups = ANY_INT(1, 8);
    a.sum.parts = a.locals * groups;
    const size_t p = any(0, 63), q = any(0, 63);
    ASSUME(p < (size_t)a.sum.parts && q < (size_t)a.sum.parts);
    const size_t at = zp_codec_output_part(&a, p), other = zp_codec_output_part(&a, q);
    PROVE(at < (size_t)a.sum.parts, "a part is inside the messages");
    PROVE(p == q || at != other, "no two parts have one place");
}

/* The scale of a block, all 2^31 largest magnitudes: every decoded value is finite, or the block is
 * NaN. */
static void scale_holds(int most) {
    const uint32_t largest = (uint32_t)any(0, 0x7FFFFFFF);
    const zp_block_scale m = zp_codec_scale_block(largest, most);
    if (largest >= 0x7F800000u) {
        PROVE(zp_type_is_nan((double)m.scale), "a block that is not finite decodes to NaN");
        return;
    }
    const float end = zp_codec_decode_value(most, m.scale);
    PROVE(m.scale >= 0 && zp_type_is_finite((double)end), "decoded values are finite");
    PROVE(zp_type_is_finite((double)m.inverse) && (m.scale > 0) == (m.inverse > 0),
          "a block of zeros has no scale");
}
void scale_of_8_bits(void) { scale_holds(127); }
void scale_of_4_bits(void) { scale_holds(7); }

/* A group of 4-bit codes, any codes: each number has its own half of a byte, and decodes to its
 * code. */
void group_of_4_bits(void) {
    float x[32], y[32];
    uint8_t codes[16];
    const zp_codec *c = zp_codec_find(4);
    for (int i = 0; i < 32; i++) x[i] = (float)ANY_INT(-7, 7);
    zp_codec_blocks_plain_encode(32, c, x, 1, codes, 0);
    zp_codec_blocks_plain_decode(32, c, codes, 1, y, 0);
    const int i = ANY_INT(0, 31);
    PROVE(x[i] == y[i], "a code is decoded to itself");
}
void sign_extend(void) {
    const uint32_t u = ANY_U32();
    const int32_t c = zp_codec_sign_extend(u);
    PROVE(c >= -8 && c <= 7 && ((uint32_t)c & 15u) == (u & 15u),
          "four bits are a number from -8 to 7");
}

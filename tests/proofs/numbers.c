/* numbers.c - proofs: conversions of f32 to 16 bits, split masters, stochastic rounding, codes of 8
 * bits */
#include "../../zero_plugin/numbers/codes.h"
#include "../../zero_plugin/numbers/random.h"
#include "proof.h"

static float number(uint32_t bits) { return zp_type_bits_to_float(bits); }
static int is_nan(uint32_t bits) { return (bits & 0x7FFFFFFFu) > 0x7F800000u; }

/* All 2^32 patterns: a split f32 is the same f32 again, and a NaN the quiet one of its sign. */
void split_masters(void) {
    const uint32_t b = ANY_U32();
    const uint16_t upper = zp_type_upper(number(b)), lower = zp_type_lower(number(b));
    const uint32_t again = zp_type_bits(zp_type_join(upper, lower));
    const uint32_t low = zp_type_bits(zp_type_add_low(zp_type_from_bf16(upper), lower));
    PROVE(again == (is_nan(b) ? (b & 0x80000000u) | 0x7FC00000u : b), "the halves are the f32");
    PROVE(low == again, "the lower half added to the upper one is the f32");
}

/* Every split f32 rounds half up: its upper half is at most half a unit of its last place away. */
void split_rounds(void) {
    const uint32_t b = ANY_U32() & 0x7FFFFFFFu, up = (uint32_t)zp_type_upper(number(b)) << 16;
    ASSUME(!is_nan(b));
    PROVE(up <= b ? b - up < 0x8000u : up - b <= 0x8000u, "the upper half is the nearest bf16");
}

/* All bf16 numbers are themselves again. All f32 numbers go to the nearest one, ties to even. */
void bf16_again(void) {
    const uint16_t h = (uint16_t)any(0, 0xFFFF);
    const uint32_t b = zp_type_bits(zp_type_from_bf16(h));
    PROVE(zp_type_to_bf16(number(b)) == (is_nan(b) ? h | 0x40 : h), "a bf16 is itself again");
}
void bf16_nearest(void) {
    const uint32_t b = ANY_U32();
    ASSUME((b & 0x7FFFFFFFu) < 0x7F7F8000u); /* below the middle of the largest bf16 and 2^128 */
    const uint16_t h = zp_type_to_bf16(number(b));
    const double x = number(b), at = zp_type_from_bf16(h);
    const int grows = (h & 0x7FFF) < 0x7F7F; /* h + 1 is finite */
    const double above = grows ? zp_type_from_bf16((uint16_t)(h + 1)) : 0;
    const double below = h & 0x7FFF ? zp_type_from_bf16((uint16_t)(h - 1)) : 0;
    const double far = at < x ? x - at : at - x;
    PROVE(h >> 15 == b >> 31, "the sign stays");
    if (grows) {
        const double other = above < x ? x - above : above - x;
        PROVE(far < other || (far == other && !(h & 1)), "no larger bf16 is nearer");
    }
    if (h & 0x7FFF) {
        const double other = below < x ? x - below : below - x;
        PROVE(far < other || (far == other && !(h & 1)), "no smaller bf16 is nearer");
    }
}
void bf16_ends(void) {
    const uint32_t b = ANY_U32();
    ASSUME((b & 0x7FFFFFFFu) >= 0x7F7F8000u);
    const uint16_t h = zp_type_to_bf16(number(b)) & 0x7FFF;
    PROVE(is_nan(b) ? h > 0x7F80 : h == 0x7F80,
          "numbers beyond the middle are infinite, NaN stays");
}

/* The same of fp16. */
void f16_again(void) {
    const uint16_t h = (uint16_t)any(0, 0xFFFF);
    const uint32_t b = zp_type_bits(zp_type_from_f16(h));
    PROVE(zp_type_to_f16(number(b)) == (is_nan(b) ? h | 0x200 : h), "an fp16 is itself again");
}
void f16_nearest(void) {
    const uint32_t b = ANY_U32();
    ASSUME((b & 0x7FFFFFFFu) < 0x477FF000u); /* 65520 */
    const uint16_t h = zp_type_to_f16(number(b));
    const double x = number(b), at = zp_type_from_f16(h), far = at < x ? x - at : at - x;
    PROVE(h >> 15 == b >> 31 && (h & 0x7FFF) < 0x7C00, "the sign stays, and the number is finite");
    if ((h & 0x7FFF) < 0x7BFF) {
        const double above = zp_type_from_f16((uint16_t)(h + 1));
        const double other = above < x ? x - above : above - x;
        PROVE(far < other || (far == other && !(h & 1)), "no larger fp16 is nearer");
    }
    if (h & 0x7FFF) {
        const double below = zp_type_from_f16((uint16_t)(h - 1));
        const double other = below < x ? x - below : below - x;
        PROVE(far < other || (far == other && !(h & 1)), "no smaller fp16 is nearer");
    }
}
void f16_ends(void) {
    const uint32_t b = ANY_U32();
    ASSUME((b & 0x7FFFFFFFu) >= 0x477FF000u);
    const uint16_t h = zp_type_to_f16(number(b)) & 0x7FFF;
    PROVE(is_nan(b) ? h > 0x7C00 : h == 0x7C00, "65520 and more are infinite, NaN stays");
}

/* Stochastic rounding, every f32 and every random number: to one of the two neighbours, and up for
   exactly as many of the 2^16 random numbers as the distance says. Finite numbers stay finite. */
void random_bf16(void) {
    const uint32_t b = ANY_U32(), random = ANY_U32();
    const uint16_t h = zp_random_to_bf16(number(b), random), cut = (uint16_t)(b >> 16);
    const uint32_t size = b & 0x7FFFFFFFu;
    if (is_nan(b)) {
        PROVE((h & 0x7FFF) > 0x7F80, "NaN stays");
    } else if (size > 0x7F7F0000u) {
        PROVE(h == zp_type_to_bf16(number(b)), "beyond the largest bf16 it is to nearest");
    } else {
        const int up = (random & 0xFFFFu) >= 0x10000u - (b & 0xFFFFu);
        PROVE(h == (uint16_t)(cut + up), "it rounds up as often as the number is nearer to it");
        PROVE((h & 0x7FFF) < 0x7F80, "finite stays finite");
    }
}

/* ---- codes of 8 bits ---- The scale is from 1 to 2: other normal ones only move all exponents. */
static float scale(void) { return number((uint32_t)any(0x3F800000u, 0x40000000u)); }
static float short_scale(void) {
    return number((uint32_t)any(0x3F8, 0x400) << 20);
} /* 3 bits after the point */

void codes_decode(void) {
    const int c = ANY_INT(-127, 126);
    const float s = short_scale();
    const float x = zp_codes_decode((uint8_t)c, s, 0),
                next = zp_codes_decode((uint8_t)(c + 1), s, 0);
    PROVE(x >= -s && x < next && next <= s, "signed codes grow within the scale");
}
void codes_decode_squares(void) {
    const int c = ANY_INT(0, 254);
    const float s = short_scale();
    const float x = zp_codes_decode((uint8_t)c, s, 1),
                next = zp_codes_decode((uint8_t)(c + 1), s, 1);
    PROVE(x >= 0 && x < next && next <= s, "codes of squares grow within the scale");
    PROVE((x > 0) == (c > 0), "only code 0 is 0");
}
void codes_end(void) {
    const float s = scale();
    PROVE(zp_codes_decode(127, s, 0) == s && zp_codes_decode(0x81, s, 0) == -s,
          "the scale is exact");
    PROVE(zp_codes_decode(255, s, 1) == s, "the largest square is the scale");
}
void codes_shift(void) {
    const float x = zp_codes_shift(ANY_U32());
    PROVE(x > -0.5f && x < 0.5f, "a shift is below half a code");
}
/* Signed values up to the scale: codes are in -127..127 also with a shift. */
void codes_encode(void) {
    const float s = scale(), shift = any(0, 1) ? 0 : zp_codes_shift(ANY_U32());
    const float x = number(ANY_U32());
    ASSUME(x >= -s && x <= s);
    const int8_t c = (int8_t)zp_codes_encode(x, s, 0, shift);
    PROVE(c >= -127, "a signed code is not -128");
    PROVE(x >= 0 ? c >= 0 : c <= 0, "the code has the sign of its value");
}
/* Decoded values have their codes again. */
void codes_again(void) {
    const int c = ANY_INT(-127, 127);
    const float s = short_scale();
    const int8_t again = (int8_t)zp_codes_encode(zp_codes_decode((uint8_t)c, s, 0), s, 0, 0);
    PROVE(again == c, "a decoded value has its code again");
}

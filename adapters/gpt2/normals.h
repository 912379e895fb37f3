/* normals.h - normal numbers of a stream of draws. They do not use libm, because its last bits
   differ between C libraries. Common subset of C11 and CUDA C++. */
#ifndef NORMALS_H
#define NORMALS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "gpt2.h"

static inline double uniform_of(uint64_t r) { return ((double)(r >> 11) + 0.5) * 0x1p-53; }

static inline uint64_t bits_of(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline double of_bits(uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* ln u, 0 < u < 1, within 1e-15 times the larger of |ln u| and 1: u = m / 2^n with m between
   sqrt(1/2) and sqrt(2), ln m = 2 artanh((m - 1) / (m + 1)). Written out, as cos_turns, so that any
   compiler makes the same bits, and vectors. */
static inline double log_of(double u) {
    const uint64_t root = 0x3FE6A09E667F3BCDu; /* of 1/2 */
    const uint64_t n = (root + 0x000FFFFFFFFFFFFFu - bits_of(u)) >> 52;
    const double m = of_bits(bits_of(u) + (n << 52)), s = (m - 1.0) / (m + 1.0), z = s * s;
    double p = 1.0 / 21;
    p = p * z + 1.0 / 19;
    p = p * z + 1.0 / 17;
    p = p * z + 1.0 / 15;
    p = p * z + 1.0 / 13;
    p = p * z + 1.0 / 11;
    p = p * z + 1.0 / 9;
    p = p * z + 1.0 / 7;
    p = p * z + 1.0 / 5;
    p = p * z + 1.0 / 3;
    return (2.0 * s + 2.0 * s * z * p) - (double)n * 0.69314718055994530942;
}

/* cos(2 pi v), 0 <= v < 1, within 1e-15: v = k / 4 + y with |y| <= 1/8, then the series of cosine
   or sine. */
static inline double cos_turns(double v) {
    const double shifted = 4.0 * v + 6755399441055744.0; /* 1.5 * 2^52: k in the low bits */
    const double k = shifted - 6755399441055744.0, y = v - 0.25 * k, z = y * y;
    double c = 0.28200596845579121507, s = 0.10422916220813984117;
    c = c * z - 1.7143907110886720654;
    c = c * z + 7.9035363713184688042;
    c = c * z - 26.426256783374397453;
    c = c * z + 60.244641371876660363;
    c = c * z - 85.456817206693727736;
    c = c * z + 64.939394022668291491;
    c = c * z - 19.739208802178717238;
    c = c * z + 1.0;
    s = s * z - 0.71812230177850051223;
    s = s * z + 3.8199525848482821277;
    s = s * z - 15.094642576822990392;
    s = s * z + 42.058693944897653145;
    s = s * z - 76.705859753061385842;
    s = s * z + 81.605249276075054203;
    s = s * z - 41.341702240399760234;
    s = (s * z + 6.2831853071795864769) * y;
    const double x = bits_of(shifted) & 1 ? s : c;
    return of_bits(bits_of(x) ^ ((bits_of(shifted) + 1) & 2) << 62); /* minus for k = 1, 2 */
}

/* Writes normal numbers first .. first + n - 1 of a stream, as gpt2_init describes. */
static inline void gpt2_normals(float *out, uint64_t seed, uint64_t stream, uint64_t first,
                                size_t n, double deviation) {
    const uint64_t key = gpt2_mix(seed + GPT2_GOLDEN * (stream + 1));
#ifdef _OPENMP
#pragma omp parallel for simd schedule(static)
#endif
    for (size_t j = 0; j < n; j++) {
        const uint64_t at = key + GPT2_GOLDEN * (2 * (first + j) + 1);
        const double u = uniform_of(gpt2_mix(at)), v = uniform_of(gpt2_mix(at + GPT2_GOLDEN));
        out[j] = (float)(sqrt(-2.0 * log_of(u)) * cos_turns(v) * deviation);
    }
}

#endif

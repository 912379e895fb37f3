/* hash_words.h - the hash of ops_hash: a sum over words, so that any number of threads can compute
   it in any order.

       hash(x) = sum over i of mix(x[i] + G (seed + i + 1))  modulo 2^64

   x[i] are words of 8 bytes; the last one is filled up with zeros. mix is a bijection of 64 bits
   (the finaliser of SplitMix64; Steele, Lea, Flood 2014). So a change of any bits of a single word
   always changes the hash. Changes of several words are missed once in 2^64 times. */
#ifndef HASH_WORDS_H
#define HASH_WORDS_H

#include <stdint.h>

#ifdef __CUDACC__
#define HASH_WORDS_INLINE static inline __host__ __device__
#else
#define HASH_WORDS_INLINE static inline
#endif

HASH_WORDS_INLINE uint64_t hash_words_term(uint64_t word, uint64_t at) {
    uint64_t x = word + 0x9E3779B97F4A7C15u * (at + 1);
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

#endif

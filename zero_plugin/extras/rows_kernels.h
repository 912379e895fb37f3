/* rows_kernels.h - the GPU's kernels for rows.h: pack, unpack, add and check blocks

   A message has the touched blocks of a shard's part of a round, one after the other. The kernels
   find a block in it with a table, which has a word of the map and the blocks before that word:

     map     | bits, before | bits, before | ...      a word for each 64 blocks of the shard
     message | block 3 | block 70 | ...

   Each thread takes ZP_WIDE elements. Most blocks are not touched: their threads read a word of the
   table, and end. */
#pragma once

#include "../numbers/kernels.h"

/* A word of a shard's map, and how many bits the words before it have. */
typedef struct zp_rows_word {
    uint64_t bits, before;
} zp_rows_word;

/* Returns the number of bits of x. Host and GPU compilers have no common name for it. */
ZP_FN size_t zp_rows_kernels_count_bits(uint64_t x) {
    x -= x >> 1 & 0x5555555555555555u;
    x = (x & 0x3333333333333333u) + (x >> 2 & 0x3333333333333333u);
    x = (x + (x >> 4)) & 0x0F0F0F0F0F0F0F0Fu;
    return (size_t)(x * 0x0101010101010101u >> 56);
}

/* Element e of a shard, in the message of a round that begins at word `from`. */
typedef struct zp_rows_place {
    int touched; /* the message has it */
    size_t at;   /* its index in the message */
} zp_rows_place;

ZP_FN zp_rows_place zp_rows_kernels_find(const zp_rows_word *map, size_t from, size_t block,
                                         size_t e) {
    const size_t b = e / block;
    const uint64_t bit = (uint64_t)1 << b % 64;
    const zp_rows_word w = map[b / 64];
    const zp_rows_place p = {
        (w.bits & bit) != 0,
        (w.before - map[from].before + zp_rows_kernels_count_bits(w.bits & (bit - 1))) * block
            + e % block};
    return p;
}

/* Moves the blocks of a round between consecutive shards and their messages. */
typedef struct zp_rows_kernels_move_args {
    const zp_rows_word *map; /* [shards][words] */
    size_t words, from, to;  /* words of a shard's map; the round has words [from, to) */
    size_t block, shard, of; /* elements of a block and of a shard; bytes of an element */
    char *shards, *message;
    size_t stride; /* bytes from a message to the next */
    int skipped;   /* this shard is not moved; -1: all are */
    int packs;     /* 1: to the messages. 0: from them; other blocks of the round become 0 */
} zp_rows_kernels_move_args;

ZP_FN void zp_rows_kernels_move_at(const zp_rows_kernels_move_args *a, size_t i) {
    const size_t round = 64 * a->block * (a->to - a->from) / ZP_WIDE; /* threads of a shard */
    const size_t r = i / round, e = 64 * a->block * a->from + i % round * ZP_WIDE;
    if ((int)r == a->skipped || e >= a->shard) return;
    const zp_rows_place p = zp_rows_kernels_find(a->map + r * a->words, a->from, a->block, e);
    if (a->packs && !p.touched) return;
    uint64_t *own = (uint64_t *)(void *)(a->shards + (r * a->shard + e) * a->of);
    uint64_t *message = (uint64_t *)(void *)(a->message + r * a->stride + p.at * a->of);
    for (size_t k = 0; k < ZP_WIDE * a->of / sizeof *own; k++) {
        if (a->packs)
            message[k] = own[k];
        else
            own[k] = p.touched ? message[k] : 0;
    }
}
ZP_KERNEL(zp_rows_kernels_move, zp_rows_kernels_move_args, 4096)

/* Adds a round's blocks to this rank's shard, in the order of the dense sum. Where a rank did not
   touch a block, its gradient has zeros. */
typedef struct zp_rows_kernels_add_args {
    zp_sum sum;              /* source[p]: of place p, its message, or this rank's shard */
    const zp_rows_word *map; /* [sum.n][words] by place */
    size_t words, from, block, shard;
    int own; /* the place of this rank */
} zp_rows_kernels_add_args;

ZP_FN void zp_rows_kernels_add_at(const zp_rows_kernels_add_args *a, size_t i) {
    const size_t e = 64 * a->block * a->from + i * ZP_WIDE;
    float total[ZP_WIDE] = {0}, node[ZP_WIDE] = {0};
    if (e >= a->shard) return;
    for (int p = 0; p < a->sum.n; p++) {
        const zp_rows_place place =
            zp_rows_kernels_find(a->map + (size_t)p * a->words, a->from, a->block, e);
        float x[ZP_WIDE] = {0};
        if (place.touched)
            zp_type_load_wide(x, a->sum.source[p], a->sum.type, p == a->own ? e : place.at);
        zp_kernel_sum_add_wide(&a->sum, p, x, total, node);
    }
    zp_kernel_sum_store_wide(&a->sum, e, total);
}
ZP_KERNEL(zp_rows_kernels_add, zp_rows_kernels_add_args, 4096)

/* A checked build: finds an element that is not 0 in a block that was not announced. */
typedef struct zp_rows_kernels_check_args {
    const zp_rows_word *map; /* [nranks][words] */
    const char *unit;
    size_t words, block, shard, of;
    volatile uint64_t *found; /* receives 1 + the index of such an element */
} zp_rows_kernels_check_args;

ZP_FN void zp_rows_kernels_check_at(const zp_rows_kernels_check_args *a, size_t i) {
    const size_t r = i / a->shard, e = i % a->shard;
    uint32_t bits = 0;
    memcpy(&bits, a->unit + i * a->of, a->of == 4 ? 4 : 2);
    if (bits && !zp_rows_kernels_find(a->map + r * a->words, 0, a->block, e).touched)
        *a->found = 1 + i;
}
ZP_KERNEL(zp_rows_kernels_check, zp_rows_kernels_check_args, 4096)

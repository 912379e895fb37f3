/* context.c - see context.h. Common subset of C11 and CUDA C++. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include "context.h"

#include "frozen.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static zero_result refuse(gpt2_error *err, const char *format, ...) {
    va_list list;
    if (!err) return ZERO_ERR_ARGUMENT;
    va_start(list, format);
    (void)vsnprintf(err->sentence, sizeof err->sentence, format, list);
    va_end(list);
    return ZERO_ERR_ARGUMENT;
}

/* Returns the divisor of n that is nearest to k, the lower one of two. */
static int nearest_divisor(int n, int k) {
    for (int off = 0; off < k; off++) {
        if (n % (k - off) == 0) return k - off;
        if (k + off <= n && n % (k + off) == 0) return k + off;
    }
    return 1;
}

zero_result context_check(const gpt2_config *cfg, int seq_len, int ranks, gpt2_error *err) {
    if (err) err->sentence[0] = 0;
    if (ranks == 1) return ZERO_OK;
    if (ranks < 1 || cfg->heads % ranks)
        return refuse(err,
                      "%d context-parallel ranks do not divide the %d heads, which attention "
                      "divides among them; the nearest number that does is %d",
                      ranks, cfg->heads, ranks < 1 ? 1 : nearest_divisor(cfg->heads, ranks));
    if (seq_len % ranks == 0) return ZERO_OK;
    const int below = seq_len / ranks * ranks, above = below + ranks;
    if (below == 0 || above > cfg->max_seq_len)
        return refuse(err,
                      "%d context-parallel ranks do not divide sequences of %d tokens; the nearest "
                      "length is %d",
                      ranks, seq_len, below ? below : above);
    return refuse(err,
                  "%d context-parallel ranks do not divide sequences of %d tokens; the nearest "
                  "lengths are %d and %d",
                  ranks, seq_len, below, above);
}

void context_open(context_parallel *p, const gpt2_parallel *how, zero_type type) {
    memset(p, 0, sizeof *p);
    p->size = 1;
    p->bytes = zero_type_bytes(type);
    if (how == NULL || zero_group_size(how->cp) < 2) return;
    p->group = how->cp;
    p->rank = (size_t)zero_group_rank(how->cp);
    p->size = (size_t)zero_group_size(how->cp);
}

size_t context_first(const context_parallel *p, size_t piece) { return p->rank * piece; }

void context_take(const context_parallel *p, int *to, const int *from, size_t B, size_t piece) {
    for (size_t b = 0; b < B; b++)
        memcpy(to + b * piece, from + (b * p->size + p->rank) * piece, piece * sizeof *to);
}

ops_heads context_heads(const context_parallel *p, const ops_heads *piece) {
    ops_heads s = *piece;
    s.seq_len *= p->size;
    s.heads /= p->size;
    return s;
}

void context_bias(const context_parallel *p, ops_ctx *o, void *out, const void *bias,
                  const ops_heads *piece) {
    const size_t bytes = piece->heads / p->size * piece->head_size * p->bytes;
    for (size_t part = 0; part < 3; part++)
        ops_copy(o, (char *)out + part * bytes,
                 (const char *)bias + (part * p->size + p->rank) * bytes, bytes);
}

/* ---- exchanges ----------------------------------------------------------------------------- */

/* Sends [N][bytes] of `out` to the ranks, and receives as much in `in`. */
static void exchange(context_parallel *p, const void *out, void *in, size_t bytes) {
    if (p->group != NULL && p->result == ZERO_OK && bytes > 0)
        p->result = zero_group_all_to_all(p->group, out, in, bytes);
}

/* The bytes of one token's values of a rank's heads, and of what two ranks exchange. */
static size_t token_bytes(const context_parallel *p, const ops_heads *piece) {
    return piece->heads / p->size * piece->head_size * p->bytes;
}
static size_t message_bytes(const context_parallel *p, size_t parts, const ops_heads *piece) {
    return piece->batch * piece->seq_len * parts * token_bytes(p, piece);
}

/* A message has the heads of one rank and the tokens of another: (B, T/N, parts, NH/N, head_size).
   In an array of pieces messages alternate with each value of (B, T/N, parts), and in an array of
   heads with each sequence. */
void context_to_heads(context_parallel *p, ops_ctx *o, void *out, const void *in, void *spare,
                      size_t parts, const ops_heads *piece) {
    const size_t B = piece->batch, T = piece->seq_len, each = token_bytes(p, piece);
    ops_transpose(o, out, in, B * T * parts, p->size, each);
    exchange(p, out, spare, message_bytes(p, parts, piece));
    ops_transpose(o, out, spare, p->size, B, T * parts * each);
}

void context_to_pieces(context_parallel *p, ops_ctx *o, void *out, const void *in, void *spare,
                       size_t parts, const ops_heads *piece) {
    const size_t B = piece->batch, T = piece->seq_len, each = token_bytes(p, piece);
    ops_transpose(o, out, in, B, p->size, T * parts * each);
    exchange(p, out, spare, message_bytes(p, parts, piece));
    ops_transpose(o, out, spare, p->size, B * T * parts, each);
}

void context_losses(context_parallel *p, ops_ctx *o, float *all, const float *losses, float *spare,
                    size_t B, size_t piece) {
    if (p->group != NULL && p->result == ZERO_OK && B > 0)
        p->result = zero_group_all_gather(p->group, losses, spare, B * piece * sizeof *losses);
    ops_transpose(o, all, spare, p->size, B, piece * sizeof *losses);
}

void context_share(context_parallel *p, void *data, size_t bytes, size_t t, size_t piece) {
    if (p->group != NULL && p->result == ZERO_OK)
        p->result = zero_group_broadcast(p->group, data, bytes, (int)(t / piece));
}

uint64_t context_sent(const gpt2_config *cfg, const gpt2_run *run) {
    const uint64_t size = (uint64_t)zero_group_size(run->parallel ? run->parallel->cp : NULL);
    const uint64_t piece = (uint64_t)run->batch * (uint64_t)run->seq_len / size;
    const uint64_t values = 4 * piece * (uint64_t)cfg->channels / size * (size - 1);
    const int below = cfg->frozen ? cfg->frozen->lowest : 0; /* blocks without backward */
    const uint64_t layers = (uint64_t)cfg->layers;
    const uint64_t back = below < cfg->layers ? layers - (uint64_t)(below > 0 ? below : 0) : 0;
    const uint64_t blocks = layers + back * (run->recompute >= GPT2_RECOMPUTE_BLOCK ? 2 : 1);
    return blocks * values * zero_type_bytes(run->type);
}

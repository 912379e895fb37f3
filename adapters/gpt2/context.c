/* context.c - see context.h. Common subset of C11 and CUDA C++. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include "context.h"

#include "frozen.h"
#include "stages.h"

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

/* ---- how ranks divide a sequence ------------------------------------------------------------ */

/* Returns the largest number, at most `most`, that divides both. */
static int common_divisor(int a, int b, int most) {
    int d = most;
    while (d > 1 && (a % d || b % d)) d--;
    return d;
}

/* Returns the divisor of n that is nearest to k, the lower one of two. If d divides n, so does
   n / d, so the smallest divisor from k on comes from the largest one up to n / k. */
static int nearest_divisor(int n, int k) {
    if (k > n) return n;
    const int below = common_divisor(n, n, k), above = n / common_divisor(n, n, n / k);
    return k - below <= above - k ? below : above;
}

/* Returns the number of which T must be a multiple: N, and with a ring 2r pieces. `rows`: ranks
   that divide the rows of each piece, or 1. */
static int multiple_of(int ranks, int ring_ranks, int rows) {
    const int halves = ring_ranks > 1 && ranks % (2 * ring_ranks) ? 2 : 1;
    return ranks * (rows % halves ? halves * rows : rows);
}

/* Returns the heads that context-parallel ranks share. */
static int heads_of(const context_shape *s) { return s->cfg->heads / s->tp; }

zero_result context_choose(const context_shape *s, context_way way, int *ring_ranks,
                           gpt2_error *err) {
    const int ranks = s->ranks, heads = heads_of(s), automatic = way == CONTEXT_AUTO;
    const int whole = ranks < 1 || heads % ranks == 0;
    *ring_ranks = 1;
    if (ranks < 2) return context_check(s, 1, err);
    const int u = common_divisor(ranks, heads, ranks - 1);
    if (automatic && whole) way = CONTEXT_ULYSSES;
    if (automatic && way == CONTEXT_AUTO) way = u > 1 ? CONTEXT_BOTH : CONTEXT_RING;
    if (way == CONTEXT_BOTH && u == 1)
        return refuse(err,
                      "%d context-parallel ranks cannot be a ring of groups that exchange heads, "
                      "because no size of a group between 1 and %d divides both the ranks and the "
                      "%d heads; use -ca ring%s",
                      ranks, ranks, heads, whole ? " or -ca ulysses" : "");
    *ring_ranks = way == CONTEXT_RING ? ranks : way == CONTEXT_BOTH ? ranks / u : 1;
    return context_check(s, *ring_ranks, err);
}

const char *context_name(int ranks, int ring_ranks, char name[CONTEXT_NAME]) {
    if (ring_ranks < 2 || ring_ranks == ranks)
        (void)snprintf(name, CONTEXT_NAME, "%s", ring_ranks < 2 ? "Ulysses" : "ring");
    else
        (void)snprintf(name, CONTEXT_NAME, "%d Ulysses x %d ring", ranks / ring_ranks, ring_ranks);
    return name;
}

zero_result context_check(const context_shape *s, int ring_ranks, gpt2_error *err) {
    const int ranks = s->ranks, heads = heads_of(s), seq_len = s->seq_len;
    char pieces[128] = "";
    if (err) err->sentence[0] = 0;
    if (ranks == 1) return ZERO_OK;
    const int u = ranks < 1 ? 0 : ranks / ring_ranks;
    if (ranks < 1 || heads % u)
        return refuse(err,
                      "%d context-parallel ranks do not divide the %d heads%s, which attention "
                      "divides among them; the nearest number that does is %d%s",
                      u, heads, s->tp > 1 ? " of a tensor-parallel rank" : "",
                      ranks < 1 ? 1 : nearest_divisor(heads, ranks),
                      ranks > 1 ? ", and ring attention takes any" : "");
    const int each = multiple_of(ranks, ring_ranks, s->sequence ? s->tp : 1);
    if (seq_len % each == 0) return ZERO_OK;
    const int below = seq_len / each * each, above = below + each;
    if (ring_ranks > 1)
        (void)snprintf(pieces, sizeof pieces, " into the %d pieces of a ring", 2 * ring_ranks);
    const size_t used = strlen(pieces);
    if (s->sequence && s->tp > 1)
        (void)snprintf(pieces + used, sizeof pieces - used, ", with -sp also over %d -tp ranks",
                       s->tp);
    if (below == 0 || above > s->cfg->max_seq_len)
        return refuse(err,
                      "%d context-parallel ranks do not divide sequences of %d tokens%s; the "
                      "nearest length is %d",
                      ranks, seq_len, pieces, below ? below : above);
    return refuse(err,
                  "%d context-parallel ranks do not divide sequences of %d tokens%s; the nearest "
                  "lengths are %d and %d",
                  ranks, seq_len, pieces, below, above);
}

void context_open(context_parallel *p, const gpt2_parallel *how, zero_type type) {
    memset(p, 0, sizeof *p);
    p->size = p->heads = p->ring_size = 1;
    p->bytes = zero_type_bytes(type);
    const int rows = how != NULL && how->sequence ? zero_group_size(how->tp) : 1;
    p->multiple = (size_t)rows;
    if (how == NULL || zero_group_size(how->cp) < 2) return;
    p->group = how->cp;
    p->rank = (size_t)zero_group_rank(how->cp);
    p->size = (size_t)zero_group_size(how->cp);
    p->ring_group = zero_group_size(how->ring) > 1 ? how->ring : NULL;
    p->ring_stream = how->ring_stream;
    p->ring_size = (size_t)zero_group_size(p->ring_group);
    p->heads = p->size / p->ring_size;
    if (p->heads > 1) p->heads_group = p->ring_group != NULL ? how->heads : how->cp;
    p->multiple = (size_t)multiple_of((int)p->size, (int)p->ring_size, rows);
}

zero_result context_start(context_parallel *p, void *stream) {
    if (p->ring_group == NULL) return ZERO_OK;
    p->turns = ring_open(p->ring_group, stream, p->ring_stream);
    return p->turns != NULL ? ZERO_OK : ZERO_ERR_MEMORY;
}

void context_close(context_parallel *p) {
    ring_close(p->turns);
    p->turns = NULL;
}

/* Keeps the first error of a group. */
static void keep(context_parallel *p, zero_result result, const zero_group *group) {
    if (p->result != ZERO_OK || result == ZERO_OK) return;
    p->result = result;
    p->failed = group;
}

const char *context_error(const context_parallel *p) { return zero_group_error(p->failed); }

/* ---- tokens ---------------------------------------------------------------------------------- */

static size_t least(size_t a, size_t b) { return a < b ? a : b; }
static size_t larger(size_t a, size_t b) { return a > b ? a : b; }

size_t context_spans(const context_parallel *p, size_t rank, size_t piece, context_span list[2]) {
    const size_t i = rank / p->heads, begin = rank % p->heads * piece, end = begin + piece;
    const size_t half = p->heads * piece / 2; /* of the tokens of a ring's rank: a piece of 2r */
    const context_span whole = {0, rank * piece, piece};
    size_t n = 0;
    list[0] = whole;
    if (p->ring_size == 1) return 1;
    if (begin < half) {
        list[n].at = 0;
        list[n].first = i * half + begin;
        list[n++].n = least(end, half) - begin;
    }
    if (end > half) {
        const size_t from = larger(begin, half);
        list[n].at = from - begin;
        list[n].first = (2 * p->ring_size - 1 - i) * half + from - half;
        list[n++].n = end - from;
    }
    return n;
}

size_t context_find(const context_parallel *p, size_t t, size_t piece, size_t *row) {
    for (size_t rank = 0; rank < p->size; rank++) {
        context_span list[2];
        const size_t n = context_spans(p, rank, piece, list);
        for (size_t i = 0; i < n; i++) {
            if (t < list[i].first || t - list[i].first >= list[i].n) continue;
            *row = list[i].at + t - list[i].first;
            return rank;
        }
    }
    *row = 0;
    return 0;
}

size_t context_multiple(const context_parallel *p) { return p->multiple; }

void context_take(const context_parallel *p, int *to, const int *from, size_t B, size_t piece) {
    context_span list[2];
    const size_t n = context_spans(p, p->rank, piece, list);
    for (size_t b = 0; b < B; b++)
        for (size_t i = 0; i < n; i++)
            memcpy(to + b * piece + list[i].at, from + b * p->size * piece + list[i].first,
                   list[i].n * sizeof *to);
}

ops_heads context_heads(const context_parallel *p, const ops_heads *piece) {
    ops_heads s = *piece;
    s.seq_len *= p->heads;
    s.heads /= p->heads;
    return s;
}

void context_bias(const context_parallel *p, ops_ctx *o, void *out, const void *bias,
                  const ops_heads *piece) {
    const size_t bytes = piece->heads / p->heads * piece->head_size * p->bytes;
    for (size_t part = 0; part < 3; part++)
        ops_copy(o, (char *)out + part * bytes,
                 (const char *)bias + (part * p->heads + p->rank % p->heads) * bytes, bytes);
}

/* ---- exchanges ----------------------------------------------------------------------------- */

/* Sends [u][bytes] of `out` to the ranks, and receives as much in `in`. */
static void exchange(context_parallel *p, const void *out, void *in, size_t bytes) {
    if (p->heads_group != NULL && p->result == ZERO_OK && bytes > 0)
        keep(p, zero_group_all_to_all(p->heads_group, out, in, bytes), p->heads_group);
}

/* Return the bytes of one token's values for the heads of one rank, and the bytes of the message
   that a rank sends to another. */
static size_t token_bytes(const context_parallel *p, const ops_heads *piece) {
    return piece->heads / p->heads * piece->head_size * p->bytes;
}
static size_t message_bytes(const context_parallel *p, size_t parts, const ops_heads *piece) {
    return piece->batch * piece->seq_len * parts * token_bytes(p, piece);
}

/* Changes from an array by tokens, (B, T/N, parts, NH, head_size), to one by heads, which has all
   tokens of a rank's heads. A message has the heads of one rank and the tokens of another: (B, T/N,
   parts, NH/u, head_size). In the array by tokens, each token has a part of every message; in the
   array by heads, each sequence has. */
void context_to_heads(context_parallel *p, ops_ctx *o, void *out, const void *in, void *spare,
                      size_t parts, const ops_heads *piece) {
    const size_t B = piece->batch, T = piece->seq_len, each = token_bytes(p, piece);
    ops_transpose(o, out, in, B * T * parts, p->heads, each);
    exchange(p, out, spare, message_bytes(p, parts, piece));
    ops_transpose(o, out, spare, p->heads, B, T * parts * each);
}

void context_to_pieces(context_parallel *p, ops_ctx *o, void *out, const void *in, void *spare,
                       size_t parts, const ops_heads *piece) {
    const size_t B = piece->batch, T = piece->seq_len, each = token_bytes(p, piece);
    ops_transpose(o, out, in, B, p->heads, T * parts * each);
    exchange(p, out, spare, message_bytes(p, parts, piece));
    ops_transpose(o, out, spare, p->heads, B * T * parts, each);
}

/* ---- attention ------------------------------------------------------------------------------- */

static ring_call call_of(const context_parallel *p, const ring_call *memory,
                         const ops_heads *shape) {
    ring_call c = *memory;
    c.shape = *shape;
    c.bytes = p->bytes;
    return c;
}

/* With an empty batch there is nothing to send, on any rank of the ring. */
void context_attend(context_parallel *p, ops_ctx *o, const ring_call *memory, void *out, float *lse,
                    const ops_heads *shape) {
    const ring_call c = call_of(p, memory, shape);
    if (p->turns == NULL)
        ops_attention(o, out, lse, c.qkv, c.bias, shape);
    else if (p->result == ZERO_OK && shape->batch > 0)
        keep(p, ring_forward(p->turns, o, &c, out, lse), p->ring_group);
}

void context_attend_backward(context_parallel *p, ops_ctx *o, const ring_call *memory, void *dqkv,
                             const void *dout, const void *out, const float *lse,
                             const ops_heads *shape) {
    const ring_call c = call_of(p, memory, shape);
    if (p->turns == NULL)
        ops_attention_backward(o, dqkv, dout, out, lse, c.qkv, c.bias, shape);
    else if (p->result == ZERO_OK && shape->batch > 0)
        keep(p, ring_backward(p->turns, o, &c, dqkv, dout, out, lse), p->ring_group);
}

/* ---- losses and logits ----------------------------------------------------------------------- */

/* Copies the losses (B, piece) of a rank to their tokens in all (B, N piece). */
static void place_losses(const context_parallel *p, ops_ctx *o, float *all, const float *losses,
                         size_t rank, size_t B, size_t piece) {
    context_span list[2];
    const size_t n = context_spans(p, rank, piece, list);
    for (size_t b = 0; b < B; b++)
        for (size_t i = 0; i < n; i++)
            ops_copy(o, all + b * p->size * piece + list[i].first, losses + b * piece + list[i].at,
                     list[i].n * sizeof *all);
}

void context_losses(context_parallel *p, ops_ctx *o, float *all, const float *losses, float *spare,
                    size_t B, size_t piece) {
    if (p->group == NULL || p->result != ZERO_OK || B == 0) return;
    keep(p, zero_group_all_gather(p->group, losses, spare, B * piece * sizeof *losses), p->group);
    for (size_t rank = 0; rank < p->size; rank++)
        place_losses(p, o, all, spare + rank * B * piece, rank, B, piece);
}

void context_share(context_parallel *p, void *data, size_t bytes, size_t t, size_t piece) {
    size_t row;
    if (p->group == NULL || p->result != ZERO_OK) return;
    const int root = (int)context_find(p, t, piece, &row);
    keep(p, zero_group_broadcast(p->group, data, bytes, root), p->group);
}

uint64_t context_sent(const gpt2_config *cfg, const gpt2_run *run) {
    context_parallel p;
    context_open(&p, run->parallel, run->type);
    const uint64_t size = zero_type_bytes(run->type);
    const uint64_t rows = (uint64_t)run->batch * (uint64_t)run->seq_len / p.size;
    const uint64_t tp = (uint64_t)zero_group_size(run->parallel ? run->parallel->tp : NULL);
    const uint64_t values = rows * (uint64_t)cfg->channels / tp;
    const uint64_t heads = 4 * values / p.heads * (p.heads - 1) * size;
    const uint64_t hops = 2 * values * (p.ring_size - 1); /* values of keys, or of their gradient */
    const gpt2_stage *stage = run->parallel ? run->parallel->stage : NULL;
    const int whole = gpt2_stage_is_whole(stage);
    const int layers = whole ? cfg->layers : gpt2_stage_layers(stage);
    const int lowest = cfg->frozen ? cfg->frozen->lowest : 0; /* of the blocks with backward */
    uint64_t back = 0;
    for (int l = 0; l < layers; l++) back += (whole ? l : gpt2_stage_block(stage, l)) >= lowest;
    const uint64_t again = run->recompute >= GPT2_RECOMPUTE_BLOCK ? back : 0;
    return ((uint64_t)layers + again + back) * (heads + hops * size) + back * hops * sizeof(float);
}

/* recheck.c - see recheck.h. Common subset of C11 and CUDA C++. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include "recheck.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hash_words.h"

/* Adds n bytes to *at, and returns their address. memory NULL: only measures. */
static void *cut(char *memory, size_t *at, size_t n) {
    char *p = memory ? memory + *at : NULL;
    *at += (n + 127) / 128 * 128; /* alignment: a line of a GPU's memory */
    return p;
}

static size_t lay_out(recheck *c, const recheck_shape *s) {
    char *memory = (char *)c->memory;
    size_t at = 0;
    c->x = cut(memory, &at, s->row_bytes);
    c->out = cut(memory, &at, s->row_bytes);
    c->dres = cut(memory, &at, s->all_bytes);
    c->kept = cut(memory, &at, s->row_bytes);
    c->grads = cut(memory, &at, s->grad_bytes);
    c->table = (recheck_row *)cut(memory, &at, (size_t)s->ranks * sizeof *c->table);
    return at;
}

size_t recheck_bytes(const recheck_shape *s) {
    recheck measured;
    memset(&measured, 0, sizeof measured);
    return lay_out(&measured, s);
}

size_t recheck_sent(const recheck_shape *s) {
    return 2 * s->row_bytes + (size_t)(s->ranks - 1) * sizeof(recheck_row);
}

static zero_result refuse(gpt2_error *err, zero_result result, const char *sentence) {
    if (err) (void)snprintf(err->sentence, sizeof err->sentence, "%s", sentence);
    return result;
}

zero_result recheck_open(recheck **c, const recheck_shape *s, zero_group *peers, zero_group *all,
                         gpt2_error *err) {
    *c = NULL;
    recheck *made = (recheck *)calloc(1, sizeof *made);
    if (!made) return refuse(err, ZERO_ERR_MEMORY, "no memory to check products");
    made->shape = *s;
    made->peers = peers;
    made->all = all;
    made->rank = zero_group_rank(all);
    made->ranks = zero_group_size(peers);
    made->stride = s->ranks / made->ranks;
    made->block = made->wrong = -1;
    made->memory = ops_alloc(recheck_bytes(s));
    made->rows = (recheck_row *)calloc((size_t)s->ranks, sizeof *made->rows);
    *c = made;
    if (made->memory) (void)lay_out(made, s);
    const int fits = made->ranks > 1 && zero_group_size(all) == s->ranks
                     && made->rank / made->stride == zero_group_rank(peers);
    const zero_result result = !fits                          ? ZERO_ERR_ARGUMENT
                               : !made->memory || !made->rows ? ZERO_ERR_MEMORY
                                                              : ZERO_OK;
    if (result == ZERO_OK) return ZERO_OK;
    recheck_close(made);
    *c = NULL;
    if (result == ZERO_ERR_MEMORY) return refuse(err, result, "no memory to check products");
    return refuse(err, result,
                  "products are checked by another rank with the same part of the model, and this "
                  "group of ranks has none");
}

void recheck_close(recheck *c) {
    if (!c) return;
    ops_free(c->memory);
    free(c->rows);
    free(c);
}

static recheck_row *own_row(const recheck *c) { return c->table + c->rank; }

void recheck_begin(recheck *c, ops_ctx *o, int64_t step, int l, const char *setting) {
    uint64_t hash = 0;
    for (const char *p = setting; *p; p++) hash = hash_words_term(hash + (unsigned char)*p, hash);
    c->step = step;
    c->block = l;
    c->has_output = 0;
    c->wrong = -1;
    c->sentence[0] = '\0';
    ops_clear(o, own_row(c), sizeof(recheck_row));
    ops_upload(o, &own_row(c)->setting, &hash, sizeof hash);
}

void recheck_hash(recheck *c, ops_ctx *o, recheck_of of, recheck_part part, const void *x,
                  size_t bytes, uint64_t seed) {
    if (of == RECHECK_OWN && part == RECHECK_OUTPUT) c->has_output = 1;
    ops_hash(o, &own_row(c)->hash[of][part], x, bytes, seed);
}

void recheck_keep(recheck *c, ops_ctx *o, const void *dres) {
    ops_copy(o, c->kept, dres, c->shape.row_bytes);
}

/* Returns an error of a group, and keeps its sentence. */
static zero_result grouped(recheck *c, const zero_group *g, zero_result result) {
    if (result != ZERO_OK)
        (void)snprintf(c->sentence, sizeof c->sentence, "%s", zero_group_error(g));
    return result;
}

zero_result recheck_exchange(recheck *c, const void *x, int hop) {
    const int N = c->ranks, here = zero_group_rank(c->peers);
    const int to = (here + hop) % N, from = (here + N - hop) % N;
    const size_t bytes = c->shape.row_bytes;
    char *dres = (char *)c->dres + c->shape.first_bytes;
    const zero_message list[] = {{to, 1, (void *)(uintptr_t)x, bytes},
                                 {from, 0, c->x, bytes},
                                 {to, 1, c->kept, bytes},
                                 {from, 0, dres, bytes}};
    return grouped(c, c->peers, zero_group_send_receive(c->peers, list, 4));
}

/* Returns the parts, as bits, in which two ranks' hashes of one block differ. */
static unsigned parts_that_differ(const uint64_t a[RECHECK_PARTS],
                                  const uint64_t b[RECHECK_PARTS]) {
    unsigned parts = 0;
    for (int p = 0; p < RECHECK_PARTS; p++) parts |= (unsigned)(a[p] != b[p]) << p;
    return parts;
}

zero_result recheck_compare(recheck *c, ops_ctx *o, int *differs) {
    const size_t W = (size_t)c->shape.ranks;
    *differs = 0;
    const zero_result result = grouped(
        c, c->all, zero_group_all_gather(c->all, own_row(c), c->table, sizeof(recheck_row)));
    if (result != ZERO_OK) return result;
    ops_download(o, (float *)(void *)c->rows, c->table, ZERO_F32,
                 W * sizeof(recheck_row) / sizeof(float)); /* the bits, as f32 */
    for (size_t w = 0; w < W; w++) {
        const recheck_row *next = &c->rows[(w + (size_t)c->stride) % W];
        *differs |= c->rows[w].setting != c->rows[0].setting
                    || parts_that_differ(c->rows[w].hash[RECHECK_OWN], next->hash[RECHECK_AGAIN]);
    }
    return ZERO_OK;
}

zero_result recheck_end(recheck *c, int differs) {
    const int block = c->block;
    c->block = -1;
    if (!differs) return ZERO_OK;
    c->wrong = recheck_judge(c->rows, c->shape.ranks, c->ranks, c->ranks > 2, c->step, block,
                             c->sentence, sizeof c->sentence);
    return ZERO_ERR_MISMATCH;
}

static void name_parts(unsigned parts, char *text, size_t bytes) {
    static const char *const names[RECHECK_PARTS] = {"its output", "the gradient of its input",
                                                     "the gradients of its weights"};
    size_t used = 0;
    text[0] = '\0';
    for (int p = 0; p < RECHECK_PARTS; p++) {
        if (!(parts >> p & 1u)) continue;
        const char *between = !used ? "" : parts >> (p + 1) ? ", " : " and ";
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", between, names[p]);
    }
}

/* Two of the three ranks that computed block `block` of rank w agree, or none. Returns the wrong
   rank, or -1. */
static int find_wrong(const recheck_row *rows, int w, int W, int N, int third, char *text,
                      size_t bytes) {
    const int next = (w + W / N) % W, last = (w + 2 * (W / N)) % W;
    if (!third) {
        (void)snprintf(text, bytes,
                       "Two ranks cannot decide which of them is wrong. Three or more "
                       "data-parallel ranks can");
        return -1;
    }
    const uint64_t *vote = rows[last].hash[RECHECK_THIRD];
    const int as_own = !parts_that_differ(vote, rows[w].hash[RECHECK_OWN]);
    const int as_next = !parts_that_differ(vote, rows[next].hash[RECHECK_AGAIN]);
    const int wrong = as_own ? next : as_next ? w : -1;
    if (wrong >= 0)
        (void)snprintf(text, bytes, "Rank %d computed what rank %d did: rank %d is wrong", last,
                       as_own ? w : next, wrong);
    else
        (void)snprintf(text, bytes,
                       "Rank %d computed a third result: at least two of the ranks are wrong",
                       last);
    return wrong;
}

int recheck_judge(const recheck_row *rows, int W, int N, int third, int64_t step, int block,
                  char *sentence, size_t bytes) {
    char parts[96], verdict[160];
    sentence[0] = '\0';
    for (int w = 1; w < W; w++)
        if (rows[w].setting != rows[0].setting) {
            (void)snprintf(sentence, bytes,
                           "products cannot be checked: ranks 0 and %d compute with different "
                           "instructions or libraries, so their bits differ anyway; use equal "
                           "processors, or leave out the check",
                           w);
            return -1;
        }
    for (int w = 0; w < W; w++) {
        const int next = (w + W / N) % W;
        const unsigned differ =
            parts_that_differ(rows[w].hash[RECHECK_OWN], rows[next].hash[RECHECK_AGAIN]);
        if (!differ) continue;
        const int wrong = find_wrong(rows, w, W, N, third, verdict, sizeof verdict);
        name_parts(differ, parts, sizeof parts);
        (void)snprintf(sentence, bytes,
                       "step %lld: rank %d computed block %d of rank %d again, and the bits of %s "
                       "differ. %s",
                       (long long)step, next, block, w, parts, verdict);
        return wrong;
    }
    return -1;
}

/* checkpoint_cut.c - tensors in parts: converts between stored and dense indices. Only
   arithmetic. */
#include "checkpoint_inside.h"

int ck_cut_is_same(const ck_cut *a, const ck_cut *b) {
    return a->total == b->total && a->row == b->row && a->parts == b->parts;
}

ck_cut ck_cut_of(const ck_tensor *t) {
    const uint64_t total = t->layers * t->numel;
    const ck_cut whole = {total, total, 1}, cut = {total, t->row, t->parts};
    return t->parts > 1 ? cut : whole;
}

uint64_t ck_cut_dense(const ck_cut *c, uint64_t at, uint64_t n, uint64_t *dense) {
    const uint64_t each = c->total / c->parts, width = c->row / c->parts;
    const uint64_t part = at / each, i = at % each, left = width - i % width;
    *dense = i / width * c->row + part * width + i % width;
    return left < n ? left : n;
}

uint64_t ck_cut_before(const ck_cut *c, uint64_t part, uint64_t dense) {
    const uint64_t width = c->row / c->parts, from = part * width, rest = dense % c->row;
    const uint64_t of_rest = rest < from ? 0 : rest - from < width ? rest - from : width;
    return dense / c->row * width + of_rest;
}

uint64_t ck_cut_next(const ck_cut *c, uint64_t part, uint64_t *dense, uint64_t end, uint64_t *at) {
    const uint64_t each = c->total / c->parts, i = ck_cut_before(c, part, *dense);
    if (i == each) return 0;
    *at = part * each + i;
    const uint64_t n = ck_cut_dense(c, *at, each - i, dense);
    if (*dense >= end) return 0;
    return n < end - *dense ? n : end - *dense;
}

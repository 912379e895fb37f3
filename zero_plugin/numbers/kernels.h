/* kernels.h - the element-wise bodies

   Bodies work on f32 values. zp_control holds the values of a step that only the device knows
   (skip, clip factor, step count). Bodies read it once before their loop. */
#pragma once

#include "type.h"

#include <float.h>

/* The verdict that a rank sends to the others at the end of a step. The words from CALL on must be
   the same on all ranks: your code's last call, its parameters, and the counters. */
enum {
    ZP_SQUARES = 0, /* of this rank's shard, scaled */
    ZP_BAD_UNIT,    /* 1 + the lowest unit with an element that is not finite; 0: none */
    ZP_BAD_PLACE,   /* that element's index in the unit */
    ZP_CALL,        /* 0: no step yet; 1: zero_step, 2: zero_skip_step */
    ZP_HYPER,       /* six words */
    ZP_COUNTERS = ZP_HYPER + 6,
    ZP_SCALE = ZP_COUNTERS + 4, /* the loss scale: never 0 */
    ZP_VERDICT = ZP_COUNTERS + 6
};

typedef struct zp_control { /* in device memory; the agreement and the step write it */
    double sumsq;           /* of the scaled mean gradient of all ranks */
    double norm;            /* of the mean gradient, unscaled */
    double bad_unit, bad_offset, bad_rank; /* first element that is not finite; bad_unit -1: none */
    double differing[2];                   /* rank 0's value, and that of differs_rank */
    /* The first word in which a rank differs from rank 0 (0: none), and the rank. They stay until
       your code asks; no step is taken meanwhile. */
    int differs, differs_rank;
    int64_t steps, skipped;  /* first after the result of the agreement */
    int skip, at_floor;      /* of this step; at_floor: it overflowed at the smallest scale */
    double factor;           /* the gradient's factor for unscaling and clipping */
    float scale, used_scale; /* of the next backward; of the one that was reduced last */
    double stored;           /* reduced values are the mean times this: scale * divisor */
    double divisor;          /* the group's */
    int hysteresis;          /* overflows left before the loss scale is halved */
    int64_t iteration, last_overflow;
    int fed; /* the copy (0 or 1) of the fed-back errors that the last step wrote */
    /* corrections after t steps of moving averages by beta1 and beta2, which begin at 0 */
    float bias_ratio;      /* sqrt(1 - beta2^t) / (1 - beta1^t) */
    float root_correction; /* sqrt(1 - beta2^t), for eps */
} zp_control;

/* Adds the n lanes of an f64 sum by halves, so that a warp, a block and a CPU get the same bits. */
ZP_FN double zp_kernel_add_by_halves(double *lane, size_t n) {
    for (size_t w = n / 2; w; w /= 2)
        for (size_t j = 0; j < w; j++) lane[j] += lane[j + w];
    return lane[0];
}

/* Sums the squares of one block of a gradient shard. f64 is slow on many GPUs, so the squares of a
   row, 32 neighbours, are added in f32: in pairs, then pairs of pairs, and so on. If f32 does not
   hold a row's sum, its squares are added in f64. The rows' sums are added in f64. A row's bits do
   not depend on where it is computed, nor on the layout, because no shard ends inside a row. */
typedef struct zp_kernel_norm_args {
    const void *g;
    zero_type type;
    size_t numel;
    double *partial;
} zp_kernel_norm_args;

#define ZP_NORM_ROW   ((size_t)32)
#define ZP_NORM_LANES ((size_t)8) /* row r is in lane r modulo ZP_NORM_LANES */
ZP_FN size_t zp_kernel_norm_blocks(const zp_kernel_norm_args *a) {
    return (a->numel + ZP_NORM_BLOCK - 1) / ZP_NORM_BLOCK;
}
/* Returns 1 if a row's sum is between 2^-100 and the largest f32: no square has overflowed, and
   what denormal squares have lost is too small to count. */
ZP_FN int zp_kernel_norm_is_held(float sum) {
    return zp_type_bits(sum) - 0x0D800000u < 0x7F800000u - 0x0D800000u;
}
/* Sums the squares of the row from element i to `end`, in f64. */
ZP_FN double zp_kernel_norm_add_wide(const void *g, zero_type type, size_t i, size_t end) {
    double lane[4] = {0};
    for (; i < end; i += 4)
        for (size_t j = 0; j < 4; j++) {
            const double x = (double)zp_type_load(g, type, i + j);
            lane[j] += x * x; /* the product is exact */
        }
    return zp_kernel_add_by_halves(lane, 4);
}
ZP_FN float zp_kernel_norm_add_four(const float *x) {
    return (x[0] * x[0] + x[1] * x[1]) + (x[2] * x[2] + x[3] * x[3]);
}
ZP_FN void zp_kernel_norm_add_pairs(float *to, const float *x, size_t n) {
    ZP_SIMD
    for (size_t i = 0; i < n; i++) to[i] = x[2 * i] + x[2 * i + 1];
}
/* Writes the sums of a block's rows to `row`, and returns their number, or 0 if all are 0. */
ZP_FN size_t zp_kernel_norm_rows(const zp_kernel_norm_args *a, size_t block, double *row) {
    const size_t first = block * ZP_NORM_BLOCK, left = a->numel - first;
    const size_t n = left < ZP_NORM_BLOCK ? left : ZP_NORM_BLOCK, rows = n / ZP_NORM_ROW;
    float copy[ZP_NORM_BLOCK], x[ZP_NORM_BLOCK / 4], y[ZP_NORM_BLOCK / 8];
    const float *g = zp_type_view(a->g, a->type, first, n, copy);
    int held = 1;
    ZP_SIMD
    for (size_t i = 0; i < n / 4; i++) x[i] = zp_kernel_norm_add_four(g + 4 * i);
    zp_kernel_norm_add_pairs(y, x, n / 8);
    zp_kernel_norm_add_pairs(x, y, n / 16);
    zp_kernel_norm_add_pairs(y, x, rows);
    for (size_t r = 0; r < rows; r++) held &= zp_kernel_norm_is_held(y[r]);
    uint32_t any = (uint32_t)held; /* the gradient of an embedding is mostly zeros */
    for (size_t i = 0; i < n && !held; i++) any |= zp_type_bits(g[i]) << 1;
    for (size_t r = 0; r < rows && any; r++)
        row[r] = zp_kernel_norm_is_held(y[r])
                     ? (double)y[r]
                     : zp_kernel_norm_add_wide(g, ZERO_F32, r * ZP_NORM_ROW, (r + 1) * ZP_NORM_ROW);
    return any ? rows : 0;
}
ZP_FN void zp_kernel_norm_at(const zp_kernel_norm_args *a, size_t block) {
    double lane[ZP_NORM_LANES] = {0}, row[ZP_NORM_BLOCK / ZP_NORM_ROW];
    const size_t rows = zp_kernel_norm_rows(a, block, row);
    for (size_t r = 0; r < rows; r++) lane[r % ZP_NORM_LANES] += row[r];
    a->partial[block] = zp_kernel_add_by_halves(lane, ZP_NORM_LANES);
}
/* The lanes of a fold, for the thread blocks of a GPU that compute them. ZP_FOLD_GROUP lanes next
   to each other are a group. */
#define ZP_FOLD_LANES  ((size_t)256)
#define ZP_FOLD_GROUP  ((size_t)32)
#define ZP_FOLD_GROUPS (ZP_FOLD_LANES / ZP_FOLD_GROUP)
typedef struct zp_fold {
    double lane[ZP_FOLD_LANES];
    size_t bad[ZP_FOLD_LANES];
    unsigned ended[ZP_FOLD_GROUPS + 1]; /* thread blocks of each group, and groups; else 0 */
} zp_fold;
/* Adds one unit's blocks to this rank's verdict, in ZP_FOLD_LANES lanes: block b is in lane b
   modulo ZP_FOLD_LANES. If the unit has a block that is not finite, it finds the first bad element,
   and keeps that of the lowest unit. */
typedef struct zp_kernel_fold_args {
    zp_kernel_norm_args norm;
    double *verdict;       /* [ZP_VERDICT], zeros to begin with */
    double unit, shard_at; /* the shard's first element within the unit */
    double *squares;       /* receives the sum; NULL: the verdict does */
    zp_fold *fold;         /* the GPU's; on the CPU NULL */
} zp_kernel_fold_args;

/* Adds a block to its lane's sum; *bad becomes the block if it is not finite and lower. */
ZP_FN void zp_kernel_fold_add(double *sum, size_t *bad, double partial, size_t block) {
    *sum += partial;
    if (!zp_type_is_finite(partial) && block < *bad) *bad = block;
}
ZP_FN void zp_kernel_fold_close(const zp_kernel_fold_args *a, double sum, size_t bad) {
    *(a->squares ? a->squares : &a->verdict[ZP_SQUARES]) += sum;
    if (bad == (size_t)-1
        || (a->verdict[ZP_BAD_UNIT] > 0 && a->verdict[ZP_BAD_UNIT] <= a->unit + 1))
        return;
    size_t i = bad * ZP_NORM_BLOCK;
    while (i < a->norm.numel && zp_type_is_finite(zp_type_load(a->norm.g, a->norm.type, i))) i++;
    a->verdict[ZP_BAD_UNIT] = a->unit + 1;
    a->verdict[ZP_BAD_PLACE] = a->shard_at + (double)i;
}
ZP_FN void zp_kernel_fold_at(const zp_kernel_fold_args *a, size_t one) {
    double lane[ZP_FOLD_LANES];
    size_t bad = (size_t)-1;
    for (size_t j = 0; j < ZP_FOLD_LANES; j++) lane[j] = 0;
    for (size_t b = 0; b < zp_kernel_norm_blocks(&a->norm); b++)
        zp_kernel_fold_add(&lane[b % ZP_FOLD_LANES], &bad, a->norm.partial[b], b);
    zp_kernel_fold_close(a, zp_kernel_add_by_halves(lane, ZP_FOLD_LANES), bad);
}

ZP_FN void zp_kernel_set_scale(zp_control *c, float scale) {
    c->scale = scale;
    c->stored = (double)scale * c->divisor;
}

/* Writes the words on which all ranks must agree to this rank's verdict. One thread. */
typedef struct zp_kernel_complete_verdict_args {
    double *verdict;
    const zp_control *control;
    zero_hyper hyper; /* of the last step */
    int call;
} zp_kernel_complete_verdict_args;

ZP_FN void zp_kernel_complete_verdict_at(const zp_kernel_complete_verdict_args *a, size_t one) {
    const zp_control *c = a->control;
    const double words[ZP_VERDICT - ZP_CALL] = {
        (double)a->call,           (double)a->hyper.lr,      (double)a->hyper.beta1,
        (double)a->hyper.beta2,    (double)a->hyper.eps,     (double)a->hyper.weight_decay,
        (double)a->hyper.max_norm, (double)c->steps,         (double)c->skipped,
        (double)c->iteration,      (double)c->last_overflow, (double)c->scale,
        (double)c->hysteresis};
    for (int i = 0; i < ZP_VERDICT - ZP_CALL; i++) a->verdict[ZP_CALL + i] = words[i];
}
ZP_KERNEL(zp_kernel_complete_verdict, zp_kernel_complete_verdict_args, 1)

/* Combines all ranks' verdicts, in rank order. A verdict that did not arrive is zeros: the exchange
   has failed, your code gets that error, and the zeros do not count as a difference. */
typedef struct zp_kernel_combine_verdicts_args {
    zp_control *control;
    const double *verdicts;
    int nranks;
    int units;        /* after each verdict come the squares of so many units */
    int words;        /* then further words of a row */
    const int *order; /* [nranks] order of the addition; NULL: rank order */
} zp_kernel_combine_verdicts_args;

ZP_FN int zp_kernel_verdict_rank(const zp_kernel_combine_verdicts_args *a, int place) {
    return a->order ? a->order[place] : place;
}
ZP_FN const double *zp_kernel_verdict_of(const zp_kernel_combine_verdicts_args *a, int rank) {
    return a->verdicts + (size_t)(ZP_VERDICT + a->units + a->words) * (size_t)rank;
}
/* Returns a term of the sum of squares. The first terms are the units, each of which is added over
   the ranks, in an order that does not depend on the layout. The others are the ranks' squares. */
ZP_FN double zp_kernel_verdict_term(const zp_kernel_combine_verdicts_args *a, int term) {
    if (term >= a->units)
        return zp_kernel_verdict_of(a, zp_kernel_verdict_rank(a, term - a->units))[ZP_SQUARES];
    double unit = 0;
    for (int k = 0; k < a->nranks; k++)
        unit += zp_kernel_verdict_of(a, zp_kernel_verdict_rank(a, k))[ZP_VERDICT + term];
    return unit;
}
/* Returns the first word in which a rank differs from rank 0, or 0. */
ZP_FN int zp_kernel_differing_word(const zp_kernel_combine_verdicts_args *a, int rank) {
    const double *v = zp_kernel_verdict_of(a, rank), *first = a->verdicts;
    const int came = v[ZP_SCALE] != 0 && first[ZP_SCALE] != 0;
    for (int i = ZP_CALL; i < ZP_VERDICT && came; i++)
        if (v[i] != first[i]) return i;
    return 0;
}
/* Returns the place, x or y, with the lower bad unit, or the earlier one; nranks: none is bad. */
ZP_FN int zp_kernel_lower_bad(const zp_kernel_combine_verdicts_args *a, int x, int y) {
    double unit[2];
    for (int i = 0; i < 2; i++) {
        const int place = i ? y : x;
        unit[i] = place < a->nranks
                      ? zp_kernel_verdict_of(a, zp_kernel_verdict_rank(a, place))[ZP_BAD_UNIT]
                      : 0;
    }
    if (unit[0] == 0 || unit[1] == 0) return unit[0] != 0 ? x : unit[1] != 0 ? y : a->nranks;
    return unit[0] < unit[1] || (unit[0] == unit[1] && x < y) ? x : y;
}
/* `differs` and `bad`: the places that count; nranks: none. */
ZP_FN void zp_kernel_close_verdicts(const zp_kernel_combine_verdicts_args *a, double sum,
                                    int differs, int bad) {
    zp_control *c = a->control;
    c->sumsq = sum;
    c->norm = sqrt(sum) / c->stored;
    c->bad_unit = -1;
    if (bad < a->nranks) {
        const int rank = zp_kernel_verdict_rank(a, bad);
        const double *v = zp_kernel_verdict_of(a, rank);
        c->bad_unit = v[ZP_BAD_UNIT] - 1;
        c->bad_offset = v[ZP_BAD_PLACE];
        c->bad_rank = rank;
    }
    if (differs == a->nranks || c->differs) return;
    c->differs_rank = zp_kernel_verdict_rank(a, differs);
    c->differs = zp_kernel_differing_word(a, c->differs_rank);
    c->differing[0] = a->verdicts[c->differs];
    c->differing[1] = zp_kernel_verdict_of(a, c->differs_rank)[c->differs];
}
ZP_FN void zp_kernel_combine_verdicts_at(const zp_kernel_combine_verdicts_args *a, size_t one) {
    int differs = a->nranks, bad = a->nranks;
    double sum = 0;
    for (int term = 0; term < a->units + a->nranks; term++) sum += zp_kernel_verdict_term(a, term);
    for (int k = a->nranks; k-- > 0;) {
        if (zp_kernel_differing_word(a, zp_kernel_verdict_rank(a, k))) differs = k;
        bad = zp_kernel_lower_bad(a, bad, k);
    }
    zp_kernel_close_verdicts(a, sum, differs, bad);
}

/* The loss scale after a step, by DeepSpeed's rules (zero_scaler in the header). */
ZP_FN void zp_kernel_next_scale(zp_control *c, const zero_scaler *s, int overflow) {
    if (overflow) {
        if (c->hysteresis == 1) {
            c->at_floor = c->scale <= s->minimum;
            zp_kernel_set_scale(c, c->scale / 2 > s->minimum ? c->scale / 2 : s->minimum);
        } else {
            c->hysteresis--;
        }
        c->last_overflow = c->iteration;
    } else {
        const int64_t stable = c->iteration - c->last_overflow - 1;
        const int grows = stable > 0 && stable % s->window == 0;
        if (grows) zp_kernel_set_scale(c, 2 * c->scale);
        if (grows || s->consecutive_hysteresis) c->hysteresis = s->hysteresis;
    }
    c->iteration++;
}

/* Decides what the update does: skip, unscale, clip, bias corrections. One thread. */
typedef struct zp_kernel_decide_args {
    zp_control *control;
    zero_hyper hyper;
    zero_scaler scaler;
    int check;
    int drop; /* your code wants no update */
} zp_kernel_decide_args;

ZP_FN void zp_kernel_decide_at(const zp_kernel_decide_args *a, size_t one) {
    zp_control *c = a->control;
    const double stored = c->stored, norm = c->norm, most = (double)a->hyper.max_norm;
    /* a norm that is not finite cannot be used to clip, so clipping implies the check */
    c->skip = a->drop || c->differs || (!zp_type_is_finite(norm) && (a->check || most > 0));
    c->used_scale = c->scale;
    c->at_floor = 0;
    if (a->scaler.fixed == 0) zp_kernel_next_scale(c, &a->scaler, !zp_type_is_finite(norm));
    if (c->skip) {
        c->skipped++;
        return;
    }
    const double clip = most > 0 && norm + 1e-6 > most ? most / (norm + 1e-6) : 1;
    c->factor = clip / stored;
    c->steps++;
    c->fed ^= 1;
    const double root = sqrt(1.0 - pow((double)a->hyper.beta2, (double)c->steps));
    c->bias_ratio = (float)(root / (1.0 - pow((double)a->hyper.beta1, (double)c->steps)));
    c->root_correction = (float)root;
}
ZP_KERNEL(zp_kernel_decide, zp_kernel_decide_args, 1)

/* Adds a micro-step's 16-bit gradient to the f32 accumulator. `last` also rounds the sum into the
   gradient, which is reduced next. The body takes ZP_WIDE elements. */
typedef struct zp_kernel_accumulate_args {
    float *sum;
    void *g;
    zero_type type;
    int first, last;
} zp_kernel_accumulate_args;

ZP_FN void zp_kernel_accumulate_at(const zp_kernel_accumulate_args *a, size_t at) {
    float g[ZP_WIDE], sum[ZP_WIDE];
    zp_type_load_wide(g, a->g, a->type, ZP_WIDE * at);
    if (!a->first) zp_type_load_wide(sum, a->sum, ZERO_F32, ZP_WIDE * at);
    for (size_t j = 0; j < ZP_WIDE; j++) sum[j] = a->first ? g[j] : sum[j] + g[j];
    zp_type_store_wide(a->sum, ZERO_F32, ZP_WIDE * at, sum);
    if (a->last) zp_type_store_wide(a->g, a->type, ZP_WIDE * at, sum);
}
ZP_KERNEL(zp_kernel_accumulate, zp_kernel_accumulate_args, 2048)

/* A sum of n ranks' slices, in order of their places; each `group` places are a node. On
   the CPU, each radix[0] nodes are added, then each radix[1] of these sums, and so on. The total
   times scale is stored in `sum`, or added to it, then rounded to `out`. If `out` is f32 and `sum`
   is NULL, `out` is the sum. */
typedef struct zp_sum {
    const void *source[ZP_LOCAL_MAX]; /* by place */
    zero_type type, out_type;
    int n, group;
    void *out;
    float *sum; /* f32; NULL: none */
    float scale;
    int accumulate;
    unsigned char radix[ZP_SUM_LEVELS]; /* 0: no further level */
} zp_sum;

/* Adds ZP_WIDE elements of place p to the sum. `node` has the sum of p's node, from the second node
   on. The caller clears both sums. */
ZP_FN void zp_kernel_sum_add_wide(const zp_sum *s, int p, const float *x, float *total,
                                  float *node) {
    float *to = p < s->group ? total : node;
    for (size_t j = 0; j < ZP_WIDE; j++) to[j] = p % s->group == 0 ? x[j] : to[j] + x[j];
    if (p >= s->group && (p + 1) % s->group == 0)
        for (size_t j = 0; j < ZP_WIDE; j++) total[j] += node[j];
}
/* Stores the sum of ZP_WIDE elements from element i on. */
ZP_FN void zp_kernel_sum_store_wide(const zp_sum *s, size_t i, float *total) {
    float *sum = s->sum || s->out_type != ZERO_F32 ? s->sum : (float *)s->out, x[ZP_WIDE];
    if (s->accumulate) zp_type_load_wide(x, sum, ZERO_F32, i);
    for (size_t j = 0; j < ZP_WIDE; j++)
        total[j] = s->accumulate ? x[j] + s->scale * total[j] : s->scale * total[j];
    if (sum) zp_type_store_wide(sum, ZERO_F32, i, total);
    if (s->out_type != ZERO_F32) zp_type_store_wide(s->out, s->out_type, i, total);
}

/* sum = x or sum += x, n values of `type` from element `at` on. */
static void zp_kernel_add_to_sum(float *sum, const void *x, zero_type type, size_t at, size_t n,
                                 int first) {
    float wide[ZP_SUM_BLOCK];
    if (first) {
        zp_type_widen(sum, (const char *)x + at * zp_type_bytes(type), type, n);
        return;
    }
    const float *add = zp_type_view(x, type, at, n, wide);
    for (size_t i = 0; i < n; i++) sum[i] += add[i];
}

/* The piece stays in cache. */
static void zp_kernel_sum_piece(const zp_sum *s, size_t at, size_t n) {
    float level[ZP_SUM_LEVELS + 1][ZP_SUM_BLOCK]; /* written before they are read */
    float *total = level[0];
    for (int p = 0; p < s->n; p++) {
        zp_kernel_add_to_sum(level[0], s->source[p], s->type, at, n, p % s->group == 0);
        for (int l = 0, size = s->group; size < s->n && (p + 1) % size == 0; l++) {
            const int all = s->radix[l] ? size * s->radix[l] : s->n;
            zp_kernel_add_to_sum(level[l + 1], level[l], ZERO_F32, 0, n, (p + 1 - size) % all == 0);
            total = level[l + 1];
            size = all;
        }
    }
    float *sum = s->sum ? s->sum + at : s->out_type == ZERO_F32 ? (float *)s->out + at : total;
    if (s->accumulate)
        for (size_t i = 0; i < n; i++) sum[i] += s->scale * total[i];
    else
        for (size_t i = 0; i < n; i++) sum[i] = s->scale * total[i];
    if (s->out_type != ZERO_F32) zp_type_narrow((uint16_t *)s->out + at, s->out_type, sum, n);
}

/* Several threads share a sum of more than 16384 source elements. */
static void zp_kernel_sum_slices(const zp_sum *s, size_t numel, int threads) {
    ZP_OMP_FOR(numel * (size_t)s->n > 16384)
    for (size_t at = 0; at < numel; at += ZP_SUM_BLOCK)
        zp_kernel_sum_piece(s, at, zp_min(ZP_SUM_BLOCK, numel - at));
}

/* Converts stored values to f32 and back, for access by name. Gradients are unscaled. From ZP_LOW:
   adds lower halves to the upper ones that `to` has, in f32. To ZP_LOW: stores lower halves. Codes
   have a kernel of their own. */
typedef struct zp_kernel_convert_args {
    const void *from;
    void *to;
    zero_type from_type, to_type;
    const zp_control *control; /* has the gradients' scale; NULL for other arrays */
    int reads;
    zp_rounding rounding; /* to BF16; ZP_STOCHASTIC: to nearest */
    size_t first, numel;  /* ZP_CODES: the first element's place in its block; all elements */
    int squares;          /* ZP_CODES: values are squares */
} zp_kernel_convert_args;

ZP_FN void zp_kernel_convert_at(const zp_kernel_convert_args *a, size_t i) {
    const float scale = a->control ? (float)a->control->stored : 1;
    const float factor = a->reads ? 1.0f / scale : scale;
    if (a->from_type == ZP_LOW) {
        float *to = (float *)a->to + i;
        *to = zp_type_add_low(*to, ((const uint16_t *)a->from)[i]);
        return;
    }
    const float x = factor * zp_type_load(a->from, a->from_type, i);
    if (a->to_type == ZP_LOW)
        ((uint16_t *)a->to)[i] = zp_type_lower(x);
    else if (a->to_type == ZERO_BF16 && a->rounding == ZP_HALF_UP)
        ((uint16_t *)a->to)[i] = zp_type_upper(x);
    else
        zp_type_store(a->to, a->to_type, i, x);
}
ZP_KERNEL(zp_kernel_convert, zp_kernel_convert_args, 32768)

/* The GPU has its own kernels for the norm, the verdicts and the sum, with the same bits. */
#ifdef __CUDACC__
#include "kernels_cuda.h"
#else
ZP_KERNEL(zp_kernel_norm, zp_kernel_norm_args, 64)
ZP_KERNEL(zp_kernel_fold, zp_kernel_fold_args, 1)
ZP_KERNEL(zp_kernel_combine_verdicts, zp_kernel_combine_verdicts_args, 1)

/* Adds the squares of a unit's shard to this rank's verdict. */
static zero_result zp_kernel_take_squares(zp_stream *s, const zp_kernel_fold_args *a) {
    ZP_TRY(zp_kernel_norm(s, &a->norm, zp_kernel_norm_blocks(&a->norm)));
    return zp_kernel_fold(s, a, 1);
}

/* Sums n times ZP_WIDE elements at once, because the calling thread is a stream's own. */
static zero_result zp_kernel_sum_ranks(zp_stream *s, const zp_sum *sum, size_t n) {
    zp_kernel_sum_slices(sum, n * ZP_WIDE, s->threads);
    return ZERO_OK;
}
#endif

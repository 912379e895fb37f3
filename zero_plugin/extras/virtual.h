/* virtual.h - sums over a fixed number of virtual ranks: bits that do not depend on the ranks

   cfg.virtual_ranks V fixes the order of all sums of a step, so that any admissible number of ranks
   N gives the same weights. A step has V micro-steps over all ranks, the LEAVES. Rank r computes
   leaves r V/N to (r + 1) V/N - 1, one for each of its micro-steps.

   THE TREE. The radices of V are its prime factors in descending order, from the top down. A node
   adds its children in order: ((c0 + c1) + c2). N must be a product of the first radices. Each rank
   then owns a whole subtree, and the sum over ranks is the rest of the tree.

     V = 12: radices 3, 2, 2            N = 1, 3, 6 or 12

                       root                           radix 3  \ N = 3: the reduction over ranks
           /             |             \                       /
        0..3            4..7           8..11          radix 2  \ N = 3: each rank's own subtree
       /    \          /    \         /     \         radix 2  /
      01    23        45    67       89    1011       leaves

   PARTIAL SUMS. Each micro-step's gradient is written alone: memory is cleared before each one. A
   station then adds it on the gradient stream. For each level of its own subtree, a rank keeps one
   f32 sum of each unit: that of the node which lacks children. A complete node is added to the sum
   of the level above, in the same pass over memory. The sums belong to the gradient
   stream alone, in the private arena, and zero_plan counts them as accumulators. The rank's total
   exists in the step's last micro-step only:
     f32      it overwrites the gradient, which is then reduced as usual
     16 bits  rounding a subtree would depend on N. The totals of a bucket are written in f32 to
              memory that peers read, and reduced there; the sum over all leaves is rounded once
   The reduction begins after the total on the same stream. It ends after all peers have read, so
   that the next bucket may overwrite the totals.

   NORM. The sum of the squares of each row of 32 neighbours does not depend on the layout
   (numbers/kernels.h). A rank adds its rows without rounding (exact.h), and its verdict carries
   these sums, so the norm does not depend on where shards end.

   LOSS. zero_train_end adds the losses in the order of leaves.

   Everything else has no part in sums: stochastic rounding depends on (seed, step, tensor,
   element), no shard ends inside a block of 8-bit state, and norms of layers are exact. */
#pragma once

#include "../core/extra.h"
#include "../core/order.h"
#include "../core/verdict.h"
#include "exact.h"

enum { ZP_VIRTUAL_LEVELS = 20 }; /* 2^20 is ZP_UNITS */

typedef struct zp_virtual_state {
    int leaves;                   /* of this rank: V / N; 0: off */
    int levels;                   /* of its subtree */
    int unstated;                 /* your code's cfg.grads was AUTO */
    int radix[ZP_VIRTUAL_LEVELS]; /* [levels] from the leaves up */
    size_t *at;                   /* [layout.all] first element of each unit in a level's sums */
    size_t numel;                 /* elements of a level's sums */
    float *sums;                  /* [levels][numel] */
    size_t totals_at;             /* 16 bits: offset of a bucket's f32 totals from peer_at */
    double *losses;               /* [leaves] of this step */
} zp_virtual_state;

static int zp_virtual_is_on(const zero_ctx *z) { return z->leaves->leaves != 0; }
static int zp_virtual_adds(const zero_ctx *z) { return z->leaves->levels != 0; }
/* Returns 1 if totals are f32 and gradients are not. */
static int zp_virtual_widens(const zero_ctx *z) {
    return zp_virtual_adds(z) && z->array[ZP_GRAD].type != ZERO_F32;
}

/* ---- the tree ---- */

/* Writes the radices of v from the top down, and returns their number. */
static int zp_virtual_find_radices(int v, int radix[ZP_VIRTUAL_LEVELS]) {
    int n = 0;
    for (int p = 2; v > 1; p++)
        for (; v % p == 0; v /= p) {
            memmove(radix + 1, radix, (size_t)n++ * sizeof *radix);
            radix[0] = p;
        }
    return n;
}
/* Returns how many of the first radices have the product `ranks`; -1: none. */
static int zp_virtual_find_cut(const int *radix, int n, int ranks) {
    int product = 1, i = 0;
    while (i < n && product < ranks) product *= radix[i++];
    return product == ranks ? i : -1;
}
/* Prints the radices, and the products of the first ones. */
static void zp_virtual_print_tree(const int *radix, int n, char *radices, char *products,
                                  size_t bytes) {
    int product = 1;
    size_t r = 0, p = (size_t)snprintf(products, bytes, "1");
    radices[0] = 0;
    for (int i = 0; i < n && r + 16 < bytes && p + 16 < bytes; i++) {
        product *= radix[i];
        r += (size_t)snprintf(radices + r, bytes - r, "%s%d", i ? ", " : "", radix[i]);
        p += (size_t)snprintf(products + p, bytes - p, "%s%d", i + 1 < n ? ", " : " or ", product);
    }
}

/* Sets the tree of this number of ranks, if it is admissible; zp_virtual_check reports others. */
static zero_result zp_virtual_join(zero_ctx *z) {
    zp_virtual_state *x = z->leaves;
    zero_config *c = &z->cfg;
    int radix[ZP_VIRTUAL_LEVELS];
    if (c->virtual_ranks < 1 || c->virtual_ranks > ZP_UNITS) return ZERO_OK;
    x->unstated = z->phase == ZP_NEW && !c->grads;
    const int n = zp_virtual_find_radices(c->virtual_ranks, radix);
    const int cut = zp_virtual_find_cut(radix, n, z->all->nranks);
    if (cut < 0 || z->all->nranks > ZP_LOCAL_MAX) return ZERO_OK;
    x->leaves = c->virtual_ranks / z->all->nranks;
    x->levels = n - cut;
    for (int i = 0; i < x->levels; i++) x->radix[i] = radix[n - 1 - i];
    for (int i = 0; i < cut; i++) z->all->order.radix[i] = (unsigned char)radix[cut - 1 - i];
    if (!c->micro_steps) c->micro_steps = x->leaves;
    if (!c->divisor) c->divisor = c->virtual_ranks;
    if (!c->accumulation) c->accumulation = ZERO_ACCUMULATE_LOCAL;
    return ZERO_OK;
}

/* ---- settings ---- */

/* Returns the setting that virtual_ranks excludes, with the reason; NULL: there is none. */
static const char *zp_virtual_find_conflict(const zero_ctx *z) {
    const zero_config *c = &z->cfg;
    return !zp_device_is_host() ? "the CUDA build adds in another order; use the CPU build"
           : z->all->transport->issue != zp_local_issue
               ? "only LOCAL communicators add a tree; use one"
           : c->accumulation == ZERO_ACCUMULATE_SHARDED
               ? "accumulation is SHARDED, which adds micro-step by micro-step over all ranks and "
                 "so in another tree; use LOCAL"
           : c->type != ZERO_F32 && z->leaves->unstated
               ? "grads is AUTO, which depends on the number of ranks; set it to the type that "
                 "your "
                 "backward writes, F32 or AS_TYPE"
           : c->gradient_bits ? "gradient_bits quantizes what a rank sends, before it is summed; "
                                "use 0"
           : c->weight_bits || c->frozen_weight_bits
               ? "weight_bits quantizes in blocks that begin with shards; use 0"
           : c->shard_ranks || c->second_ranks
               ? "shard_ranks and second_ranks divide the ranks once more; use 0"
           : c->world || c->joins ? "world and joins sum over ranks outside this context; use NULL"
           : c->gradient_tier == ZERO_FILE
               ? "gradient_tier FILE needs sharded accumulation, which adds in another tree; use "
                 "DEVICE"
               : NULL;
}
static zero_result zp_virtual_check(zero_ctx *z) {
    const int v = z->cfg.virtual_ranks, ranks = z->all->nranks, leaves = v / ranks;
    char radices[128], products[128];
    int radix[ZP_VIRTUAL_LEVELS];
    if (!v) return ZERO_OK;
    const char *conflict = zp_virtual_find_conflict(z);
    ZP_REFUSE(z, conflict, "virtual_ranks is %d: %s", v, conflict);
    zp_virtual_print_tree(radix, zp_virtual_find_radices(v, radix), radices, products,
                          sizeof radices);
    ZP_REFUSE(z, !zp_virtual_is_on(z),
              "virtual_ranks is %d, a tree of %s, which %d ranks cannot divide among them; use %s "
              "ranks",
              v, radices, ranks, products);
    ZP_REFUSE(
        z, z->cfg.micro_steps != leaves,
        "virtual_ranks is %d, so each of %d ranks has %d micro-steps per step (found %d); set "
        "micro_steps to that, or to 0",
        v, ranks, leaves, z->cfg.micro_steps);
    return ZERO_OK;
}
static zero_result zp_virtual_tensor(zero_ctx *z, zp_tensor *t) {
    const zero_tensor_desc *d = &t->desc;
    const char *field = d->row_numel           ? "row_numel"
                        : d->sum_over          ? "sum_over"
                        : d->slice_of          ? "slice_of"
                        : d->divisor           ? "divisor"
                        : d->flags & ZERO_COPY ? "ZERO_COPY"
                                               : NULL;
    ZP_REFUSE(z, zp_virtual_is_on(z) && field,
              "tensor %s has %s, which virtual_ranks does not support yet; leave one of them out",
              d->name, field);
    return ZERO_OK;
}

/* ---- the plan ---- */

static zero_result zp_virtual_choose(zero_ctx *z) {
    if (!zp_virtual_adds(z)) return ZERO_OK;
    z->adding = ZP_COLLECTED;
    z->array[ZP_SUM].share = ZP_NOTHING; /* so that the core collects nothing */
    if (z->policy.gradients == ZP_SHARD) z->array[ZP_GRAD].share = ZP_NOTHING; /* in buffers */
    return ZERO_OK;
}

static zero_result zp_virtual_sum_squares(zero_ctx *z);
static zero_result zp_virtual_add_loss(zero_ctx *z, double loss, int last, double *sum);

static zero_result zp_virtual_layout(zero_ctx *z) {
    zp_virtual_state *x = z->leaves;
    if (!zp_virtual_is_on(z)) return ZERO_OK;
    free(x->at);
    x->at = (size_t *)calloc((size_t)z->layout.all, sizeof *x->at);
    if (!x->losses) x->losses = (double *)calloc((size_t)x->leaves, sizeof *x->losses);
    if (!x->at || !x->losses) return ZERO_ERR_MEMORY;
    x->numel = 0;
    for (int u = 0; u < z->layout.all; u++) {
        x->at[u] = x->numel;
        x->numel += z->layout.unit[u].padded;
    }
    z->row_takes_norm = 1;
    z->verdict_words = ZP_LIMBS;
    z->sum_squares = zp_virtual_sum_squares;
    z->add_loss = zp_virtual_add_loss;
    return ZERO_OK;
}

static zero_result zp_virtual_plan(zero_ctx *z) {
    zp_virtual_state *x = z->leaves;
    zero_plan *plan = &z->plan;
    if (!zp_virtual_is_on(z)) return ZERO_OK;
    const size_t sums = (size_t)x->levels * x->numel * sizeof(float);
    size_t most = zp_virtual_widens(z) ? z->bucket_numel : 0;
    for (int u = 0; u < z->layout.all && most; u++) most = zp_max(most, z->layout.unit[u].padded);
    plan->accumulator_bytes += sums;
    plan->buffer_bytes += sums + most * sizeof(float);
    plan->buffer_ceiling_bytes += most * sizeof(float);
    plan->context_bytes +=
        (size_t)z->layout.all * sizeof *x->at + (size_t)x->leaves * sizeof *x->losses;
    x->totals_at = zp_round_up(z->peer_bytes, 256);
    if (most) z->peer_bytes = x->totals_at + most * sizeof(float);
    return ZERO_OK;
}

/* Returns the bytes that f32 totals send more than gradients in 16 bits. */
static size_t zp_virtual_sent(zero_ctx *z, int u) {
    if (u < 0 || !zp_virtual_widens(z) || !zp_order_reductions(z, u)) return 0;
    zp_op op = zp_ctx_make_op(z, ZP_GRADIENTS, ZP_REDUCE_SCATTER, u);
    const size_t narrow = zp_comm_op_bytes(&op);
    op.type = ZERO_F32;
    return zp_comm_op_bytes(&op) - narrow;
}

static zero_result zp_virtual_cut_arena(zero_ctx *z) {
    zp_virtual_state *x = z->leaves;
    if (zp_virtual_adds(z))
        x->sums = (float *)zp_ctx_cut_arena(z, (size_t)x->levels * x->numel, sizeof *x->sums);
    return ZERO_OK;
}
static zero_result zp_virtual_close(zero_ctx *z) {
    free(z->leaves->at);
    free(z->leaves->losses);
    return ZERO_OK;
}

/* A step begins: all its micro-steps are leaves, and each is a pass of its own. */
static zero_result zp_virtual_begin_step(zero_ctx *z) {
    const int leaves = z->leaves->leaves;
    ZP_REFUSE(z, leaves && z->micro_steps != leaves,
              "micro_steps is %d, but each of the %d ranks has %d of the virtual ranks; use that",
              z->micro_steps, z->all->nranks, leaves);
    ZP_REFUSE(
        z, leaves && z->pass_micro_steps > 1,
        "ZERO_TOGETHER adds gradients of %d micro-steps before virtual_ranks can; begin a pass "
        "for each",
        z->pass_micro_steps);
    return ZERO_OK;
}

/* ---- the way of a gradient ---- */

/* Adds a leaf to the partial sums of the levels in the set `adds`, from the leaves up, and stores
   the result. The body takes ZP_WIDE elements. */
typedef struct zp_virtual_add_args {
    const void *g;
    zero_type type;
    const float *sums; /* the unit's in level 0; those of the next level are `stride` further */
    size_t stride;
    uint32_t adds; /* bit l: level l */
    float *to;
} zp_virtual_add_args;

ZP_FN void zp_virtual_add_at(const zp_virtual_add_args *a, size_t at) {
    float x[ZP_WIDE], sum[ZP_WIDE];
    zp_type_load_wide(x, a->g, a->type, ZP_WIDE * at);
    for (int l = 0; a->adds >> l; l++) {
        if (!(a->adds >> l & 1)) continue;
        zp_type_load_wide(sum, a->sums + (size_t)l * a->stride, ZERO_F32, ZP_WIDE * at);
        for (size_t j = 0; j < ZP_WIDE; j++) x[j] = sum[j] + x[j];
    }
    zp_type_store_wide(a->to, ZERO_F32, ZP_WIDE * at, x);
}
ZP_KERNEL(zp_virtual_add, zp_virtual_add_args, 2048)

/* Returns the offset in the gradients' memory of the total of unit u, one of the bucket's. */
static size_t zp_virtual_total_at(const zero_ctx *z, int u) {
    size_t at = z->peer_at + z->leaves->totals_at;
    for (int i = 0; i < z->nbucket && z->bucket[i] != u; i++)
        at += z->layout.unit[z->bucket[i]].padded * sizeof(float);
    return at;
}

/* Station: adds the micro-step's gradient of unit u to the tree. If it completes nodes, their sums
   go up with it, to the first level with a node that lacks a child. */
static zero_result zp_virtual_add_leaf(zero_ctx *z, int u) {
    const zp_virtual_state *x = z->leaves;
    zp_stream *s = &z->stream[ZP_GRADIENTS];
    const size_t n = z->layout.unit[u].padded;
    char *g = zp_ctx_unit_memory(z, ZP_GRAD, u);
    zp_virtual_add_args add = {g, z->array[ZP_GRAD].type, x->sums + x->at[u], x->numel, 0, NULL};
    int level = 0;
    for (int child = z->micro; level < x->levels; child /= x->radix[level++]) {
        const int digit = child % x->radix[level];
        if (digit) add.adds |= 1u << level;
        if (digit + 1 < x->radix[level]) break;
    }
    char *total = zp_virtual_widens(z) ? z->memory[ZP_GRAD].base + zp_virtual_total_at(z, u) : g;
    add.to =
        level < x->levels ? x->sums + (size_t)level * x->numel + x->at[u] : (float *)(void *)total;
    ZP_SLICE(s, ZERO_EVENT_NORM, u, n * sizeof(float), zp_virtual_add(s, &add, n / ZP_WIDE));
    return ZERO_OK;
}

/* Station: the reductions of 16-bit gradients sum f32 totals, in place. */
static zero_result zp_virtual_change_reduction(zero_ctx *z) {
    for (int i = 0; i < z->nbucket; i++) {
        zp_op *op = &z->ops[i];
        op->type = ZERO_F32;
        op->source = zp_virtual_total_at(z, z->bucket[i]);
        op->target = op->source + (size_t)z->data->rank * zp_comm_op_shard_bytes(op);
    }
    return ZERO_OK;
}
/* Station: rounds unit u's sum over all leaves to 16 bits. */
static zero_result zp_virtual_round(zero_ctx *z, int u) {
    const size_t first = zp_ctx_shard_first(z, u), n = zp_ctx_shard(z, u);
    const zp_kernel_convert_args round = {z->memory[ZP_GRAD].base + zp_virtual_total_at(z, u)
                                              + first * sizeof(float),
                                          zp_ctx_unit_mean(z, u),
                                          ZERO_F32,
                                          z->array[ZP_MEAN].type,
                                          NULL,
                                          0,
                                          ZP_NEAREST,
                                          0,
                                          n,
                                          0};
    return zp_kernel_convert(&z->stream[ZP_GRADIENTS], &round, n);
}

/* ---- the norm ---- */

typedef struct zp_virtual_squares_args {
    zp_kernel_fold_args fold;
    zp_limb *sum; /* [ZP_LIMBS] in this rank's verdict */
} zp_virtual_squares_args;

/* Adds the rows of one block. Returns 1 if it has a number that is not finite. */
static int zp_virtual_add_block(const zp_virtual_squares_args *a, size_t block) {
    double row[ZP_NORM_BLOCK / ZP_NORM_ROW];
    zp_limb piece[3], sum[ZP_LIMBS + 2] = {0};
    const size_t rows = zp_kernel_norm_rows(&a->fold.norm, block, row);
    for (size_t r = 0; r < rows; r++) {
        const int first = zp_exact_split(row[r], piece);
        for (int k = 0; k < 3; k++) sum[first + k] += piece[k];
    }
    for (int k = 0; k < ZP_LIMBS && rows; k++)
        if (sum[k]) __atomic_fetch_add(&a->sum[k], sum[k], __ATOMIC_RELAXED);
    return sum[ZP_LIMBS - 1] != 0;
}
static void zp_virtual_squares_task(const void *args, size_t blocks, int threads) {
    const zp_virtual_squares_args *a = (const zp_virtual_squares_args *)args;
    int bad = 0;
    ZP_OMP_FOR(blocks > 32)
    for (size_t b = 0; b < blocks; b++)
        if (zp_virtual_add_block(a, b)) __atomic_store_n(&bad, 1, __ATOMIC_RELAXED);
    for (size_t b = 0; b < blocks && bad; b++) { /* rare: finds the first one */
        double row[ZP_NORM_BLOCK / ZP_NORM_ROW];
        const size_t rows = zp_kernel_norm_rows(&a->fold.norm, b, row);
        for (size_t r = 0; r < rows && bad; r++)
            if (!zp_type_is_finite(row[r])) {
                zp_kernel_fold_close(&a->fold, 0, b);
                bad = 0;
            }
    }
}
/* Station: adds the squares of this rank's shard of unit u to its verdict. */
static zero_result zp_virtual_take_norm(zero_ctx *z, int u) {
    zp_stream *s = &z->stream[ZP_GRADIENTS];
    const zp_array *mean = &z->array[ZP_MEAN];
    const size_t n = zp_ctx_shard(z, u);
    const zp_virtual_squares_args squares = {{{zp_ctx_unit_mean(z, u), mean->type, n, NULL},
                                              z->verdict,
                                              (double)u,
                                              (double)zp_ctx_shard_first(z, u),
                                              NULL,
                                              NULL},
                                             (zp_limb *)(void *)(z->verdict + ZP_VERDICT)};
    const size_t blocks = zp_kernel_norm_blocks(&squares.fold.norm);
    ZP_SLICE(s, ZERO_EVENT_NORM, u, n * zp_type_bytes(mean->type),
             blocks
                 ? zp_device_push_task(s, zp_virtual_squares_task, &squares, sizeof squares, blocks)
                 : ZERO_OK);
    return ZERO_OK;
}

/* Adds the exact sums of all verdicts. One thread. */
typedef struct zp_virtual_total_args {
    zp_control *control;
    const zp_limb *sums; /* of rank 0 */
    size_t stride;       /* limbs from there to the next rank's */
    int ranks;
} zp_virtual_total_args;

ZP_FN void zp_virtual_total_one_at(const zp_virtual_total_args *a, size_t one) {
    zp_control *c = a->control;
    c->sumsq = zp_exact_total(a->sums, a->stride, a->ranks);
    c->norm = sqrt(c->sumsq) / c->stored;
}
ZP_KERNEL(zp_virtual_total_one, zp_virtual_total_args, 1)

static zero_result zp_virtual_sum_squares(zero_ctx *z) {
    const zp_virtual_total_args total = {z->control,
                                         (const zp_limb *)(const void *)(z->verdicts + ZP_VERDICT),
                                         (size_t)zp_ctx_verdict_words(z), z->agreeing->nranks};
    return zp_virtual_total_one(&z->stream[ZP_GRADIENTS], &total, 1);
}
static_assert(sizeof(zp_limb) == sizeof(double), "a limb is a word of a verdict");

/* ---- the loss ---- */

/* Sums the losses of all leaves in their order. Each exchange carries some leaves; only the rank of
   a leaf adds another number than 0 there. COLLECTIVE if `last`. */
static zero_result zp_virtual_add_loss(zero_ctx *z, double loss, int last, double *sum) {
    enum { MOST = ZP_MAIL_BYTES / sizeof(double) };
    const zp_virtual_state *x = z->leaves;
    const int all = x->leaves * z->all->nranks, mine = x->leaves * z->all->rank;
    double values[MOST];
    x->losses[z->micro] = loss;
    if (last) *sum = 0;
    for (int first = 0; first < all && last; first += MOST) {
        const int n = (int)zp_min(MOST, (size_t)(all - first));
        for (int i = 0; i < n; i++) {
            const int leaf = first + i - mine;
            values[i] = leaf >= 0 && leaf < x->leaves ? x->losses[leaf] : 0;
        }
        ZP_TRY(zero_all_sum(z, values, n));
        for (int i = 0; i < n; i++) *sum += values[i];
    }
    return ZERO_OK;
}

static const zp_station zp_virtual_stations[] = {
    {ZP_AT_COLLECT, ZP_EACH_MICRO_STEP, zp_virtual_adds, zp_virtual_add_leaf, NULL},
    {ZP_AT_CHANGE, ZP_EACH_REDUCTION, zp_virtual_widens, NULL, zp_virtual_change_reduction},
    {ZP_AT_ADD, ZP_LAST_MICRO_STEP, zp_virtual_widens, zp_virtual_round, NULL},
    {ZP_AT_NORM, ZP_LAST_MICRO_STEP, zp_virtual_is_on, zp_virtual_take_norm, NULL},
    ZP_LAST_STATION};
static const zp_setting zp_virtual_settings[] = {
    {ZP_SETTING(virtual_ranks), ZP_SIGNED, 0, ZP_UNITS, 0, 0},
    ZP_LAST_SETTING,
};
static zp_extra zp_virtual_row(void) {
    zp_extra x;
    memset(&x, 0, sizeof x);
    x.name = "virtual";
    x.state_bytes = sizeof(zp_virtual_state);
    x.state_at = offsetof(zero_ctx, leaves);
    x.settings = zp_virtual_settings;
    x.stations = zp_virtual_stations;
    x.call[ZP_ON_JOIN] = zp_virtual_join;
    x.call[ZP_ON_CHECK] = zp_virtual_check;
    x.tensor = zp_virtual_tensor;
    x.call[ZP_ON_CHOOSE] = zp_virtual_choose;
    x.call[ZP_ON_LAYOUT] = zp_virtual_layout;
    x.call[ZP_ON_PLAN] = zp_virtual_plan;
    x.call[ZP_ON_STEP] = zp_virtual_begin_step;
    x.sent = zp_virtual_sent;
    x.call[ZP_ON_CUT] = zp_virtual_cut_arena;
    x.call[ZP_ON_DESTROY] = zp_virtual_close;
    return x;
}

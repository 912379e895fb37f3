/* flips.c - see flips.h. */
#include "flips.h"

#include "../../adapters/gpt2/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Thread_local flips *flips_here;

/* ---- FLIP: one process per rank ------------------------------------------------------------ */

static flips of_process;
static int flip_rank = -1, flip_step, flip_unit, steps, rank_here = -1;
static long flip_call;

static void read_flip(int rank) {
    const char *text = getenv("FLIP");
    if (rank_here >= 0) return;
    rank_here = rank;
    if (!text) return;
    if (sscanf(text, "%d %d %d %ld", &flip_rank, &flip_step, &flip_unit, &flip_call) != 4) {
        fprintf(stderr, "FLIP: expected RANK STEP UNIT CALL, found '%s'\n", text);
        exit(2);
    }
}

static void count_step(void) {
    steps++;
    flips_here = NULL;
    if (rank_here != flip_rank || steps != flip_step) return;
    memset(&of_process, 0, sizeof of_process);
    of_process.unit = flip_unit;
    of_process.at = flip_call;
    of_process.bytes = of_process.grad_bytes = sizeof(float);
    of_process.open = -1;
    of_process.choice = 2 * 22; /* of the first array, bit 22: half of a number or so */
    flips_here = &of_process;
}

zero_result __real_zero_group_open(zero_group **g, const zero_comm *comm, void *stream, double s);
zero_result __wrap_zero_group_open(zero_group **g, const zero_comm *comm, void *stream, double s);
zero_result __wrap_zero_group_open(zero_group **g, const zero_comm *comm, void *stream, double s) {
    if (getenv("FLIP")) read_flip(comm->rank);
    return __real_zero_group_open(g, comm, stream, s);
}
zero_result __real_zero_pass_begin(zero_ctx *z, zero_pass kind, int micro, int micro_steps);
zero_result __wrap_zero_pass_begin(zero_ctx *z, zero_pass kind, int micro, int micro_steps);
zero_result __wrap_zero_pass_begin(zero_ctx *z, zero_pass kind, int micro, int micro_steps) {
    if (rank_here >= 0 && kind == ZERO_TRAIN && micro == 0) count_step();
    return __real_zero_pass_begin(z, kind, micro, micro_steps);
}

/* ---- units --------------------------------------------------------------------------------- */

static void open_unit(int unit) {
    if (!flips_here) return;
    flips_here->depth++;
    flips_here->open = unit;
}
static void close_unit(void) {
    if (flips_here && --flips_here->depth == 0) flips_here->open = -1;
}

#define BEGIN(way, parameters, arguments)                                                          \
    zero_result __real_zero_##way##_begin parameters;                                              \
    zero_result __wrap_zero_##way##_begin parameters;                                              \
    zero_result __wrap_zero_##way##_begin parameters {                                             \
        open_unit(unit);                                                                           \
        return __real_zero_##way##_begin arguments;                                                \
    }                                                                                              \
    zero_result __real_zero_##way##_end(zero_ctx *z, int unit);                                    \
    zero_result __wrap_zero_##way##_end(zero_ctx *z, int unit);                                    \
    zero_result __wrap_zero_##way##_end(zero_ctx *z, int unit) {                                   \
        close_unit();                                                                              \
        return __real_zero_##way##_end(z, unit);                                                   \
    }
BEGIN(forward, (zero_ctx * z, int unit, void *params), (z, unit, params))
BEGIN(backward, (zero_ctx * z, int unit, void *params, void *grads), (z, unit, params, grads))

/* ---- operations ---------------------------------------------------------------------------- */

/* What a call has stored. NULL: not this time. */
typedef struct stored {
    void *array;
    size_t bytes;
} stored;

/* Counts a call, and flips a bit if it is its turn. */
static void flip(const stored *list, int n) {
    flips *f = flips_here;
    if (!f || f->open != f->unit || f->calls++ != f->at) return;
    uint64_t from = f->choice;
    int which = (int)(from % (uint64_t)n);
    from /= (uint64_t)n;
    while (!list[which].array || !list[which].bytes) which = (which + 1) % n;
    const uint64_t bit = from % (8 * (uint64_t)list[which].bytes);
    ((unsigned char *)list[which].array)[bit / 8] ^= (unsigned char)(1u << bit % 8);
    f->fired = 1;
}
static size_t numbers(size_t n) { return flips_here ? n * flips_here->bytes : 0; }
static size_t gradients(size_t n) { return flips_here ? n * flips_here->grad_bytes : 0; }

/* An operation that stores up to two arrays. */
#define OPERATION(name, parameters, arguments, a, a_bytes, b, b_bytes)                             \
    void __real_##name parameters;                                                                 \
    void __wrap_##name parameters;                                                                 \
    void __wrap_##name parameters {                                                                \
        __real_##name arguments;                                                                   \
        const stored list[] = {{a, a_bytes}, {b, b_bytes}};                                        \
        flip(list, 2);                                                                             \
    }

OPERATION(ops_linear,
          (ops_ctx * o, void *y, const void *x, const void *w, const void *bias, size_t R, size_t I,
           size_t O),
          (o, y, x, w, bias, R, I, O), y, numbers(R *O), NULL, 0)
OPERATION(ops_linear_dx,
          (ops_ctx * o, void *dx, const void *dy, const void *w, size_t R, size_t I, size_t O),
          (o, dx, dy, w, R, I, O), dx, numbers(R *I), NULL, 0)
OPERATION(ops_linear_dw,
          (ops_ctx * o, void *dw, void *dbias, const void *dy, const void *x, size_t R, size_t I,
           size_t O),
          (o, dw, dbias, dy, x, R, I, O), dw, gradients(I *O), dbias, gradients(O))
OPERATION(ops_linear_gelu,
          (ops_ctx * o, void *fch, void *gelu, int again, const void *x, const void *w,
           const void *bias, size_t R, size_t I, size_t O),
          (o, fch, gelu, again, x, w, bias, R, I, O), fch, numbers(R *O), again ? NULL : gelu,
          numbers(R *O))
OPERATION(ops_linear_dx_gelu,
          (ops_ctx * o, void *dfch, void *dbias, void *gelu, int kept, const void *dy,
           const void *w, const void *fch, const void *bias, size_t R, size_t I, size_t O),
          (o, dfch, dbias, gelu, kept, dy, w, fch, bias, R, I, O), dfch, numbers(R *I), dbias,
          gradients(I))
OPERATION(ops_linear_residual,
          (ops_ctx * o, void *out, const void *x, const void *in, const void *w, const void *bias,
           size_t R, size_t I, size_t O),
          (o, out, x, in, w, bias, R, I, O), out, numbers(R *O), NULL, 0)
OPERATION(ops_norm,
          (ops_ctx * o, void *out, float *mean, float *rstd, const void *x, const void *w,
           const void *b, size_t R, size_t C),
          (o, out, mean, rstd, x, w, b, R, C), out, numbers(R *C), rstd, R * sizeof *rstd)
OPERATION(ops_norm_backward,
          (ops_ctx * o, void *dx, void *dw, void *db, const void *dout, const void *x,
           const float *mean, const float *rstd, const void *w, int store, size_t R, size_t C),
          (o, dx, dw, db, dout, x, mean, rstd, w, store, R, C), dx, numbers(R *C), dw, gradients(C))
#define HEADS(s) ((s)->batch * (s)->seq_len * (s)->heads)
OPERATION(ops_attention,
          (ops_ctx * o, void *out, float *lse, const void *qkv, const void *bias,
           const ops_heads *s),
          (o, out, lse, qkv, bias, s), out, numbers(HEADS(s) * s->head_size), lse,
          HEADS(s) * sizeof *lse)
OPERATION(ops_attention_backward,
          (ops_ctx * o, void *dqkv, const void *dout, const void *out, const float *lse,
           const void *qkv, const void *bias, const ops_heads *s),
          (o, dqkv, dout, out, lse, qkv, bias, s), dqkv, numbers(3 * HEADS(s) * s->head_size), NULL,
          0)

/* ---- digests ------------------------------------------------------------------------------- */

void __real_ops_hash(ops_ctx *o, uint64_t *sum, const void *x, size_t bytes, uint64_t seed);
void __wrap_ops_hash(ops_ctx *o, uint64_t *sum, const void *x, size_t bytes, uint64_t seed);
void __wrap_ops_hash(ops_ctx *o, uint64_t *sum, const void *x, size_t bytes, uint64_t seed) {
    flips *f = flips_here;
    __real_ops_hash(o, sum, x, bytes, seed);
    if (!f || f->digests == FLIPS_DIGESTS) return;
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ ((const unsigned char *)x)[i]) * 0x100000001b3u;
    f->digest[f->digests++] = hash;
}

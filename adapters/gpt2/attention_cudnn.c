/* attention_cudnn.c - implements attention_cudnn.h: flash attention as two graphs of small
   operations. cuDNN recognises the graphs, and runs forward as one kernel and backward as a few.

   Build: cc -std=c11 -DGPT2_WITH_CUDNN -c attention_cudnn.c, with the headers of cuDNN 9 and CUDA.
   Without the definition the file is empty.

   The comments of build_forward and of the parts of backward have the formulas. cuDNN checks only
   the structure of a graph, and accepts one with a wrong operand. Tests therefore compare the
   values with those of the own kernel, on a GPU and with an interpreter of graphs. */
#ifdef GPT2_WITH_CUDNN
#include "attention_cudnn.h"

#include <dlfcn.h>
#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cudnn.h>

#if CUDNN_MAJOR < 9
#error "attention_cudnn.c needs cuDNN 9 or later"
#endif

typedef cudnnBackendDescriptor_t descriptor;

enum { DESCRIPTORS = 112, OPERATIONS = 24, CONFIGS = 16, RANK = 4, SENTENCE = 448 };

struct attention_cudnn {
    cudnnHandle_t handle;
    descriptor
        device; /* in tests, with cuDNN 9.8 or later: describes a GPU that is absent; else NULL */
    cudnnDataType_t type;
    int gpu, deterministic;
    int failed;            /* 1: a call returned an error, and the context is not used again */
    attention_plan *made;  /* the plans of this context, and the shapes without a plan */
    attention_cudnn *next; /* in the list of idle contexts */
    char text[SENTENCE];
};

/* One graph and its plan; the descriptors live as long as the plan. */
typedef struct graph {
    descriptor all[DESCRIPTORS];
    int nall;
    descriptor operations[OPERATIONS];
    int noperations;
    int64_t next_id; /* id of the next tensor that exists only inside the graph */
    descriptor plan;
    int64_t workspace_bytes;
} graph;

struct attention_plan {
    graph graph;
    attention_shape shape;
    size_t row_heads; /* heads of a sequence, of which the plan takes shape.heads */
    int backward;
    char why[SENTENCE]; /* "", or why cuDNN has no plan for the shape */
    attention_plan *next;
};

/* The ids in a graph of the caller's memory and scalars. */
enum {
    ID_Q = 1,
    ID_K,
    ID_V,
    ID_OUT,
    ID_LSE,
    ID_DOUT,
    ID_DQ,
    ID_DK,
    ID_DV,
    ID_ROW_SUM,
    ID_DQ_SUM,
    ID_SCALE,
    ID_MASKED,
    ID_ONE,
    ID_INSIDE = 100 /* the first id of tensors inside the graph */
};

/* ---- errors -------------------------------------------------------------------------------- */

/* Returns UNSUPPORTED if the device or this release lacks something, otherwise the error. */
static zero_result result_of(cudnnStatus_t s) {
    if (s == CUDNN_STATUS_SUCCESS) return ZERO_OK;
    if (CUDNN_STATUS_CATEGORY((int)s) == (int)CUDNN_STATUS_NOT_SUPPORTED)
        return ZERO_ERR_UNSUPPORTED;
    return s == CUDNN_STATUS_ALLOC_FAILED ? ZERO_ERR_MEMORY : ZERO_ERR_DEVICE;
}

__attribute__((format(printf, 3, 4))) static zero_result fail(attention_cudnn *c, zero_result r,
                                                              const char *format, ...) {
    va_list list;
    const size_t version = cudnnGetVersion();
    const int n = snprintf(c->text, sizeof c->text, "cuDNN %zu.%zu.%zu: ", version / 10000,
                           version / 100 % 100, version % 100);
    va_start(list, format);
    (void)vsnprintf(c->text + n, sizeof c->text - (size_t)n, format, list);
    va_end(list);
    return r;
}

static zero_result check(attention_cudnn *c, cudnnStatus_t s, const char *what) {
    char detail[256] = "";
    if (s == CUDNN_STATUS_SUCCESS) return ZERO_OK;
    cudnnGetLastErrorString(detail, sizeof detail);
    for (char *p = detail; *p; p++)
        if (*p == '\n') *p = ' ';
    return fail(c, result_of(s), "%s: %s%s%.200s", what, cudnnGetErrorString(s),
                detail[0] ? ": " : "", detail);
}

#define TRY(call)                                                                                  \
    do {                                                                                           \
        const zero_result result_ = (call);                                                        \
        if (result_) return result_;                                                               \
    } while (0)

/* ---- descriptors --------------------------------------------------------------------------- */

static zero_result make(attention_cudnn *c, graph *g, cudnnBackendDescriptorType_t type,
                        descriptor *d) {
    *d = NULL;
    if (g->nall == DESCRIPTORS) return fail(c, ZERO_ERR_DEVICE, "too many descriptors");
    TRY(check(c, cudnnBackendCreateDescriptor(type, d), "cudnnBackendCreateDescriptor"));
    g->all[g->nall++] = *d;
    return ZERO_OK;
}
static zero_result set(attention_cudnn *c, descriptor d, cudnnBackendAttributeName_t name,
                       cudnnBackendAttributeType_t type, int64_t n, const void *values) {
    return check(c, cudnnBackendSetAttribute(d, name, type, n, values), "cudnnBackendSetAttribute");
}
static zero_result set_descriptor(attention_cudnn *c, descriptor d,
                                  cudnnBackendAttributeName_t name, descriptor value) {
    return set(c, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}
static zero_result finish(attention_cudnn *c, descriptor d, const char *what) {
    return check(c, cudnnBackendFinalize(d), what);
}
/* Destroys the descriptor that was created last, which is then no part of the graph. */
static void drop(graph *g) {
    if (g->nall) (void)cudnnBackendDestroyDescriptor(g->all[--g->nall]);
}
static void graph_close(graph *g) {
    while (g->nall) drop(g);
    g->plan = NULL;
}

/* ---- tensors ------------------------------------------------------------------------------- */

/* A layout has four dimensions and their strides, in elements. A tensor exists in memory, is a
   number that the CPU passes, or exists only inside the graph. */
typedef enum tensor_place { IN_MEMORY, BY_VALUE, INSIDE } tensor_place;
typedef struct layout {
    int64_t dims[RANK], strides[RANK];
} layout;

static zero_result tensor(attention_cudnn *c, graph *g, descriptor *d, const layout *l,
                          cudnnDataType_t type, tensor_place place, int64_t id) {
    const bool by_value = place == BY_VALUE, inside = place == INSIDE;
    const int64_t alignment = 16, own = inside ? g->next_id++ : id;
    TRY(make(c, g, CUDNN_BACKEND_TENSOR_DESCRIPTOR, d));
    TRY(set(c, *d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type));
    TRY(set(c, *d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, RANK, l->dims));
    TRY(set(c, *d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, RANK, l->strides));
    TRY(set(c, *d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &own));
    TRY(set(c, *d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment));
    TRY(set(c, *d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &inside));
    TRY(set(c, *d, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &by_value));
    return finish(c, *d, "tensor");
}

/* Returns the layout of the same memory with rows and columns exchanged. */
static layout transposed(const layout *l) {
    layout t = *l;
    t.dims[2] = l->dims[3];
    t.dims[3] = l->dims[2];
    t.strides[2] = l->strides[3];
    t.strides[3] = l->strides[2];
    return t;
}

/* The layouts of one shape, dimensions (B, NH, rows, columns). */
typedef struct layouts {
    layout part;   /* q, k or v in (B, T, 3, NH, HS), from its first element on */
    layout head;   /* (B, T, NH, HS) */
    layout inner;  /* (B, NH, T, HS) */
    layout scores; /* (B, NH, T, T) */
    layout row;    /* (B, NH, T, 1) */
    layout scalar;
} layouts;

static layouts layouts_of(const attention_shape *s, size_t row_heads) {
    const int64_t b = (int64_t)s->batch, t = (int64_t)s->seq_len, h = (int64_t)s->heads,
                  d = (int64_t)s->head_size, all = (int64_t)row_heads;
    const layouts l = {{{b, h, t, d}, {3 * t * all * d, d, 3 * all * d, 1}},
                       {{b, h, t, d}, {t * all * d, d, all * d, 1}},
                       {{b, h, t, d}, {h * t * d, t * d, d, 1}},
                       {{b, h, t, t}, {h * t * t, t * t, t, 1}},
                       {{b, h, t, 1}, {all * t, t, 1, 1}},
                       {{1, 1, 1, 1}, {1, 1, 1, 1}}};
    return l;
}

/* ---- operations ---------------------------------------------------------------------------- */

static zero_result add(attention_cudnn *c, graph *g, descriptor operation, const char *what) {
    if (g->noperations == OPERATIONS) return fail(c, ZERO_ERR_DEVICE, "too many operations");
    g->operations[g->noperations++] = operation;
    return finish(c, operation, what);
}

static zero_result multiply(attention_cudnn *c, graph *g, descriptor a, descriptor b,
                            descriptor to) {
    const cudnnDataType_t precision = CUDNN_DATA_FLOAT;
    descriptor how, o;
    TRY(make(c, g, CUDNN_BACKEND_MATMUL_DESCRIPTOR, &how));
    TRY(set(c, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &precision));
    TRY(finish(c, how, "product"));
    TRY(make(c, g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, &o));
    TRY(set_descriptor(c, o, CUDNN_ATTR_OPERATION_MATMUL_DESC, how));
    TRY(set_descriptor(c, o, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a));
    TRY(set_descriptor(c, o, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b));
    TRY(set_descriptor(c, o, CUDNN_ATTR_OPERATION_MATMUL_CDESC, to));
    return add(c, g, o, "operation of a product");
}

/* to = x (mode) b; b and choice may be NULL. choice: the result is x where it is true, otherwise b.
   axis: the axis of GEN_INDEX, which returns the index along this axis. */
static zero_result pointwise_with(attention_cudnn *c, graph *g, cudnnPointwiseMode_t mode,
                                  cudnnDataType_t precision, int64_t axis, descriptor x,
                                  descriptor b, descriptor choice, descriptor to) {
    descriptor how, o;
    TRY(make(c, g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, &how));
    TRY(set(c, how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode));
    TRY(set(c, how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &precision));
    if (mode == CUDNN_POINTWISE_GEN_INDEX)
        TRY(set(c, how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &axis));
    TRY(finish(c, how, "pointwise"));
    TRY(make(c, g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, &o));
    TRY(set_descriptor(c, o, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how));
    TRY(set_descriptor(c, o, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x));
    if (b) TRY(set_descriptor(c, o, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b));
    if (choice) TRY(set_descriptor(c, o, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, choice));
    TRY(set_descriptor(c, o, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, to));
    return add(c, g, o, "operation of a pointwise");
}
static zero_result pointwise(attention_cudnn *c, graph *g, cudnnPointwiseMode_t mode, descriptor x,
                             descriptor b, descriptor to) {
    return pointwise_with(c, g, mode, CUDNN_DATA_FLOAT, 0, x, b, NULL, to);
}

/* Reduces x over its columns. */
static zero_result reduce(attention_cudnn *c, graph *g, cudnnReduceTensorOp_t mode, descriptor x,
                          descriptor to) {
    const cudnnDataType_t precision = CUDNN_DATA_FLOAT;
    descriptor how, o;
    TRY(make(c, g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR, &how));
    TRY(set(c, how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &mode));
    TRY(set(c, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &precision));
    TRY(finish(c, how, "reduction"));
    TRY(make(c, g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, &o));
    TRY(set_descriptor(c, o, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how));
    TRY(set_descriptor(c, o, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x));
    TRY(set_descriptor(c, o, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, to));
    return add(c, g, o, "operation of a reduction");
}

/* Gives the elements of x another layout. It moves nothing. */
static zero_result reshape(attention_cudnn *c, graph *g, descriptor x, descriptor to) {
    descriptor o;
    TRY(make(c, g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, &o));
    TRY(set_descriptor(c, o, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x));
    TRY(set_descriptor(c, o, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, to));
    return add(c, g, o, "operation of a reshape");
}

/* ---- the two graphs ------------------------------------------------------------------------ */

/* Creates an f32 tensor that exists only inside the graph. */
static zero_result inside(attention_cudnn *c, graph *g, const layout *l, descriptor *d) {
    return tensor(c, g, d, l, CUDNN_DATA_FLOAT, INSIDE, 0);
}
static zero_result memory(attention_cudnn *c, graph *g, const layout *l, cudnnDataType_t type,
                          int64_t id, descriptor *d) {
    return tensor(c, g, d, l, type, IN_MEMORY, id);
}
static zero_result number(attention_cudnn *c, graph *g, const layouts *l, int64_t id,
                          descriptor *d) {
    return tensor(c, g, d, &l->scalar, CUDNN_DATA_FLOAT, BY_VALUE, id);
}

/* masked = the scores of keys up to the query, and ID_MASKED for other keys. It takes 4 operations.
 */
static zero_result mask(attention_cudnn *c, graph *g, const layouts *l, descriptor scores,
                        descriptor *masked) {
    descriptor query, key, seen, otherwise;
    TRY(tensor(c, g, &query, &l->scores, CUDNN_DATA_INT32, INSIDE, 0));
    TRY(tensor(c, g, &key, &l->scores, CUDNN_DATA_INT32, INSIDE, 0));
    TRY(tensor(c, g, &seen, &l->scores, CUDNN_DATA_BOOLEAN, INSIDE, 0));
    TRY(number(c, g, l, ID_MASKED, &otherwise));
    TRY(inside(c, g, &l->scores, masked));
    TRY(pointwise_with(c, g, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, 2, scores, NULL, NULL,
                       query));
    TRY(pointwise_with(c, g, CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_INT32, 3, scores, NULL, NULL,
                       key));
    TRY(pointwise_with(c, g, CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, 0, query, key, NULL,
                       seen));
    return pointwise_with(c, g, CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, 0, scores,
                          otherwise, seen, *masked);
}

/* scaled = q k^T * scale. It takes 2 operations. */
static zero_result scores(attention_cudnn *c, graph *g, const layouts *l, descriptor q,
                          descriptor k_transposed, descriptor scale, descriptor *scaled) {
    descriptor product;
    TRY(inside(c, g, &l->scores, &product));
    TRY(inside(c, g, &l->scores, scaled));
    TRY(multiply(c, g, q, k_transposed, product));
    return pointwise(c, g, CUDNN_POINTWISE_MUL, product, scale, *scaled);
}

/* s   = mask(q k^T * scale)
   m   = max s,  e = exp(s - m),  n = sum e,  lse = m + log n
   out = (e / n) v,  e / n rounded to the type */
static zero_result build_forward(attention_cudnn *c, graph *g, const layouts *l) {
    const layout k_layout = transposed(&l->part);
    descriptor q, k, v, out, lse, scale, scaled, s, m, less, e, n, log_n, p;
    TRY(memory(c, g, &l->part, c->type, ID_Q, &q));
    TRY(memory(c, g, &k_layout, c->type, ID_K, &k));
    TRY(memory(c, g, &l->part, c->type, ID_V, &v));
    TRY(memory(c, g, &l->head, c->type, ID_OUT, &out));
    TRY(memory(c, g, &l->row, CUDNN_DATA_FLOAT, ID_LSE, &lse));
    TRY(number(c, g, l, ID_SCALE, &scale));
    TRY(inside(c, g, &l->row, &m));
    TRY(inside(c, g, &l->scores, &less));
    TRY(inside(c, g, &l->scores, &e));
    TRY(inside(c, g, &l->row, &n));
    TRY(inside(c, g, &l->row, &log_n));
    TRY(tensor(c, g, &p, &l->scores, c->type, INSIDE, 0));

    TRY(scores(c, g, l, q, k, scale, &scaled));
    TRY(mask(c, g, l, scaled, &s));
    TRY(reduce(c, g, CUDNN_REDUCE_TENSOR_MAX, s, m));
    TRY(pointwise(c, g, CUDNN_POINTWISE_SUB, s, m, less));
    TRY(pointwise(c, g, CUDNN_POINTWISE_EXP, less, NULL, e));
    TRY(reduce(c, g, CUDNN_REDUCE_TENSOR_ADD, e, n));
    TRY(pointwise(c, g, CUDNN_POINTWISE_LOG, n, NULL, log_n));
    TRY(pointwise(c, g, CUDNN_POINTWISE_ADD, m, log_n, lse));
    TRY(pointwise(c, g, CUDNN_POINTWISE_DIV, e, n, p));
    return multiply(c, g, p, v, out);
}

/* The tensors that the parts of backward share. */
typedef struct shared {
    descriptor q, k, dout, scale; /* k transposed */
    descriptor row_sum;           /* the sum of dout * out over a head */
    descriptor p;                 /* probabilities */
} shared;

/* row_sum = sum(dout * out) * 1. It is in memory, because cuDNN computes it in a separate pass. */
static zero_result build_row_sum(attention_cudnn *c, graph *g, const layouts *l, shared *b) {
    descriptor out, product, sum, one;
    TRY(memory(c, g, &l->head, c->type, ID_OUT, &out));
    TRY(memory(c, g, &l->row, CUDNN_DATA_FLOAT, ID_ROW_SUM, &b->row_sum));
    TRY(number(c, g, l, ID_ONE, &one));
    TRY(inside(c, g, &l->head, &product));
    TRY(inside(c, g, &l->row, &sum));
    TRY(pointwise(c, g, CUDNN_POINTWISE_MUL, b->dout, out, product));
    TRY(reduce(c, g, CUDNN_REDUCE_TENSOR_ADD, product, sum));
    return pointwise(c, g, CUDNN_POINTWISE_MUL, sum, one, b->row_sum);
}

/* p = exp(mask(q k^T * scale - lse)),  dv = p^T dout with p rounded to the type */
static zero_result build_dv(attention_cudnn *c, graph *g, const layouts *l, shared *b) {
    const layout scores_t = transposed(&l->scores);
    descriptor lse, scaled, less, masked, p_transposed, dv;
    TRY(memory(c, g, &l->row, CUDNN_DATA_FLOAT, ID_LSE, &lse));
    TRY(memory(c, g, &l->part, c->type, ID_DV, &dv));
    TRY(inside(c, g, &l->scores, &less));
    TRY(inside(c, g, &l->scores, &b->p));
    TRY(tensor(c, g, &p_transposed, &scores_t, c->type, INSIDE, 0));
    TRY(scores(c, g, l, b->q, b->k, b->scale, &scaled));
    TRY(pointwise(c, g, CUDNN_POINTWISE_SUB, scaled, lse, less));
    TRY(mask(c, g, l, less, &masked));
    TRY(pointwise(c, g, CUDNN_POINTWISE_EXP, masked, NULL, b->p));
    TRY(reshape(c, g, b->p, p_transposed));
    return multiply(c, g, p_transposed, b->dout, dv);
}

/* ds = p * (dout v^T - row_sum) * scale,  dk = ds^T q with ds rounded to the type */
static zero_result build_dk(attention_cudnn *c, graph *g, const layouts *l, const shared *b,
                            descriptor *ds) {
    const layout scores_t = transposed(&l->scores), v_layout = transposed(&l->part);
    descriptor v, dp, less, times, ds_transposed, dk;
    TRY(memory(c, g, &v_layout, c->type, ID_V, &v));
    TRY(memory(c, g, &l->part, c->type, ID_DK, &dk));
    TRY(inside(c, g, &l->scores, &dp));
    TRY(inside(c, g, &l->scores, &less));
    TRY(inside(c, g, &l->scores, &times));
    TRY(inside(c, g, &l->scores, ds));
    TRY(tensor(c, g, &ds_transposed, &scores_t, c->type, INSIDE, 0));
    TRY(multiply(c, g, b->dout, v, dp));
    TRY(pointwise(c, g, CUDNN_POINTWISE_SUB, dp, b->row_sum, less));
    TRY(pointwise(c, g, CUDNN_POINTWISE_MUL, less, b->p, times));
    TRY(pointwise(c, g, CUDNN_POINTWISE_MUL, times, b->scale, *ds));
    TRY(reshape(c, g, *ds, ds_transposed));
    return multiply(c, g, ds_transposed, b->q, dk);
}

/* dq = ds k, summed in f32 over tiles of keys in the order of their arrival, then rounded. For
   deterministic results the product is stored directly, and cuDNN chooses other kernels; the
   numerical notes of cuDNN 9.19 do not distinguish the two. */
static zero_result build_dq(attention_cudnn *c, graph *g, const layouts *l, const shared *b,
                            descriptor ds) {
    descriptor k, dq, sum;
    TRY(memory(c, g, &l->part, c->type, ID_DQ, &dq));
    TRY(tensor(c, g, &k, &l->part, c->type, INSIDE, 0));
    TRY(reshape(c, g, b->k, k));
    if (c->deterministic) return multiply(c, g, ds, k, dq);
    TRY(memory(c, g, &l->inner, CUDNN_DATA_FLOAT, ID_DQ_SUM, &sum));
    TRY(multiply(c, g, ds, k, sum));
    return pointwise(c, g, CUDNN_POINTWISE_IDENTITY, sum, NULL, dq);
}

static zero_result build_backward(attention_cudnn *c, graph *g, const layouts *l) {
    const layout k_layout = transposed(&l->part);
    shared b;
    descriptor ds;
    TRY(memory(c, g, &l->part, c->type, ID_Q, &b.q));
    TRY(memory(c, g, &k_layout, c->type, ID_K, &b.k));
    TRY(memory(c, g, &l->head, c->type, ID_DOUT, &b.dout));
    TRY(number(c, g, l, ID_SCALE, &b.scale));
    TRY(build_row_sum(c, g, l, &b));
    TRY(build_dv(c, g, l, &b));
    TRY(build_dk(c, g, l, &b, &ds));
    return build_dq(c, g, l, &b, ds);
}

/* ---- plans --------------------------------------------------------------------------------- */

/* Completes the graph, and gets n configurations from cuDNN, best first. They are the last
   descriptors of the graph. */
static zero_result propose(attention_cudnn *c, graph *g, descriptor *configs, int64_t *n) {
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    descriptor whole, heuristics;
    TRY(make(c, g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, &whole));
    TRY(set(c, whole, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->noperations,
            g->operations));
    if (c->handle)
        TRY(set(c, whole, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &c->handle));
    TRY(finish(c, whole, "operation graph"));
    TRY(make(c, g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, &heuristics));
    TRY(set_descriptor(c, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, whole));
    TRY(set(c, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode));
#if CUDNN_VERSION >= 90800
    if (c->device) TRY(set_descriptor(c, heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, c->device));
#endif
    TRY(finish(c, heuristics, "heuristics"));
    for (int i = 0; i < CONFIGS; i++)
        TRY(make(c, g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &configs[i]));
    return check(c,
                 cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                          CUDNN_TYPE_BACKEND_DESCRIPTOR, CONFIGS, n, configs),
                 "results of the heuristics");
}

/* *yes becomes 1 if the context may use a configuration: any, or, if deterministic, one that always
   gives the same bits. */
static zero_result usable(attention_cudnn *c, graph *g, descriptor config, int *yes) {
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    int64_t n = 0, count = 0;
    descriptor engine;
    *yes = 1;
    if (!c->deterministic) return ZERO_OK;
    TRY(make(c, g, CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine));
    TRY(check(c,
              cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE,
                                       CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &engine),
              "engine of a configuration"));
    TRY(check(c,
              cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                       CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT,
                                       &n, notes),
              "numerical notes"));
    for (int64_t i = 0; i < n; i++)
        if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC) *yes = 0;
    drop(g);
    return ZERO_OK;
}

static zero_result plan_of(attention_cudnn *c, graph *g, descriptor config) {
    int64_t count = 0;
    TRY(make(c, g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, &g->plan));
    TRY(set_descriptor(c, g->plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config));
    if (c->handle)
        TRY(set(c, g->plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &c->handle));
#if CUDNN_VERSION >= 90800
    if (c->device) TRY(set_descriptor(c, g->plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, c->device));
#endif
    TRY(finish(c, g->plan, "execution plan"));
    return check(c,
                 cudnnBackendGetAttribute(g->plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                          CUDNN_TYPE_INT64, 1, &count, &g->workspace_bytes),
                 "workspace size");
}

/* Makes a plan of the first configuration that allows it. Returns UNSUPPORTED if none does, for any
   reason, with the sentence of the last one. */
static zero_result choose(attention_cudnn *c, graph *g, const char *direction) {
    descriptor configs[CONFIGS];
    int64_t n = 0;
    int deterministic = 0;
    TRY(propose(c, g, configs, &n));
    for (int64_t i = 0; i < n; i++) {
        const int before = g->nall;
        int yes;
        TRY(usable(c, g, configs[i], &yes));
        if (!yes) continue;
        deterministic++;
        const zero_result r = plan_of(c, g, configs[i]);
        if (!r || r == ZERO_ERR_MEMORY) return r;
        while (g->nall > before) drop(g);
        g->plan = NULL;
    }
    if (!n)
        return fail(c, ZERO_ERR_UNSUPPORTED, "no %s kernel for this device and shape", direction);
    if (!deterministic)
        return fail(c, ZERO_ERR_UNSUPPORTED, "no %s kernel is deterministic", direction);
    return ZERO_ERR_UNSUPPORTED;
}

static void destroy_plan(attention_plan *p) {
    graph_close(&p->graph);
    free(p);
}

/* Makes the plan of a new shape. A shape without a plan is kept, too. */
static zero_result make_plan(attention_cudnn *c, attention_plan *p) {
    const layouts l = layouts_of(&p->shape, p->row_heads);
    p->graph.next_id = ID_INSIDE;
    zero_result r =
        p->backward ? build_backward(c, &p->graph, &l) : build_forward(c, &p->graph, &l);
    if (!r) r = choose(c, &p->graph, p->backward ? "backward" : "forward");
    if (r != ZERO_ERR_UNSUPPORTED) return r;
    graph_close(&p->graph);
    (void)snprintf(p->why, sizeof p->why, "%s", c->text);
    return ZERO_OK;
}

static attention_plan *find_plan(const attention_cudnn *c, const attention_shape *s,
                                 size_t row_heads, int backward) {
    attention_plan *p = c->made;
    while (p
           && (p->backward != backward || p->shape.batch != s->batch
               || p->shape.seq_len != s->seq_len || p->shape.heads != s->heads
               || p->shape.head_size != s->head_size || p->row_heads != row_heads))
        p = p->next;
    return p;
}

zero_result attention_cudnn_plan(attention_cudnn *c, const attention_shape *shape, size_t row_heads,
                                 int backward, attention_plan **out) {
    attention_plan *p = find_plan(c, shape, row_heads, backward);
    *out = NULL;
    if (!p) {
        p = (attention_plan *)calloc(1, sizeof *p);
        if (!p) return fail(c, ZERO_ERR_MEMORY, "no memory for a plan");
        p->shape = *shape;
        p->row_heads = row_heads;
        p->backward = backward;
        const zero_result r = make_plan(c, p);
        if (r) {
            c->failed = 1;
            destroy_plan(p);
            return r;
        }
        p->next = c->made;
        c->made = p;
    }
    if (p->why[0]) {
        (void)snprintf(c->text, sizeof c->text, "%s", p->why);
        return ZERO_ERR_UNSUPPORTED;
    }
    *out = p;
    return ZERO_OK;
}

size_t attention_cudnn_workspace_bytes(const attention_plan *p) {
    return (size_t)p->graph.workspace_bytes;
}

/* ---- the context --------------------------------------------------------------------------- */

size_t attention_cudnn_version(void) { return cudnnGetVersion(); }

const char *attention_cudnn_error(const attention_cudnn *c) {
    return c ? c->text : "cuDNN: no memory for the context";
}

/* Unused contexts and their plans. cuDNN compiles kernels for up to a second per plan, so plans are
   kept. A plan belongs to the handle with which it was made, and only one thread at a time may use
   a handle. A thread therefore takes a whole context out of this list, and returns it later. */
static attention_cudnn *idle;
static pthread_mutex_t idle_lock = PTHREAD_MUTEX_INITIALIZER;

static void destroy_context(attention_cudnn *c) {
    while (c->made) {
        attention_plan *p = c->made;
        c->made = p->next;
        destroy_plan(p);
    }
    if (c->handle) (void)cudnnDestroy(c->handle);
    free(c);
}

/* Removes from the list, and returns, an idle context of this GPU, type and determinism; or NULL.
 */
static attention_cudnn *take_idle(int gpu, cudnnDataType_t type, int deterministic) {
    (void)pthread_mutex_lock(&idle_lock);
    attention_cudnn **at = &idle;
    while (*at
           && ((*at)->gpu != gpu || (*at)->type != type || (*at)->deterministic != deterministic))
        at = &(*at)->next;
    attention_cudnn *c = *at;
    if (c) *at = c->next;
    (void)pthread_mutex_unlock(&idle_lock);
    return c;
}

/* cuDNN compiles kernels by NVRTC, which it opens by name, as NVRTC opens its builtins. Run paths
   of this program name the toolkit; those of a cuDNN in Python's packages, and of NVRTC, do not. A
   library that is open already is found. Without them, cuDNN reports the missing one. */
static void open_compiler(void) {
    char name[48];
    int major = 0, minor = 0, (*version)(int *, int *) = NULL;
    (void)snprintf(name, sizeof name, "libnvrtc.so.%d", CUDART_VERSION / 1000);
    void *nvrtc = dlopen(name, RTLD_LAZY);
    if (nvrtc) *(void **)&version = dlsym(nvrtc, "nvrtcVersion");
    if (!version || version(&major, &minor)) return;
    (void)snprintf(name, sizeof name, "libnvrtc-builtins.so.%d.%d", major, minor);
    (void)dlopen(name, RTLD_LAZY);
}

zero_result attention_cudnn_create(attention_cudnn **out, int gpu, zero_type type, void *stream,
                                   int deterministic) {
    const cudnnDataType_t data_type = type == ZERO_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
    attention_cudnn *c = take_idle(gpu, data_type, deterministic);
    const int is_new = c == NULL;
    if (is_new) c = (attention_cudnn *)calloc(1, sizeof *c);
    *out = c;
    if (!c) return ZERO_ERR_MEMORY;
    c->gpu = gpu;
    c->type = data_type;
    c->deterministic = deterministic;
    c->text[0] = 0;
    if (is_new) open_compiler();
    zero_result r = is_new ? check(c, cudnnCreate(&c->handle), "cudnnCreate") : ZERO_OK;
    if (!r) r = check(c, cudnnSetStream(c->handle, (cudaStream_t)stream), "cudnnSetStream");
    c->failed = r != ZERO_OK;
    return r == ZERO_ERR_UNSUPPORTED ? ZERO_ERR_DEVICE : r;
}

void attention_cudnn_destroy(attention_cudnn *c) {
    if (!c) return;
    if (c->failed) {
        destroy_context(c);
        return;
    }
    (void)pthread_mutex_lock(&idle_lock);
    c->next = idle;
    idle = c;
    (void)pthread_mutex_unlock(&idle_lock);
}

void attention_cudnn_forget(void) {
    (void)pthread_mutex_lock(&idle_lock);
    attention_cudnn *list = idle;
    idle = NULL;
    (void)pthread_mutex_unlock(&idle_lock);
    while (list) {
        attention_cudnn *c = list;
        list = c->next;
        destroy_context(c);
    }
}

/* ---- running ------------------------------------------------------------------------------- */

enum { BOUND = 16 };
typedef struct bindings {
    int64_t ids[BOUND];
    void *pointers[BOUND];
    int n;
} bindings;

static void bind_to(bindings *b, int64_t id, void *pointer) {
    b->ids[b->n] = id;
    b->pointers[b->n++] = pointer;
}
/* Binds q, k and v, or their gradients, each from its first element on. */
static void bind_parts(bindings *b, int64_t first_id, void *packed, const attention_plan *p) {
    const size_t bytes = 2 * p->row_heads * p->shape.head_size;
    for (int i = 0; i < 3; i++) bind_to(b, first_id + i, (char *)packed + (size_t)i * bytes);
}

static zero_result execute(attention_cudnn *c, const graph *g, const bindings *b, void *workspace) {
    graph of_call = {0};
    descriptor pack;
    zero_result r = make(c, &of_call, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
    if (!r) r = set(c, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, b->n, b->ids);
    if (!r)
        r = set(c, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, b->n,
                b->pointers);
    if (!r) r = set(c, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    if (!r) r = finish(c, pack, "variant pack");
    if (!r) r = check(c, cudnnBackendExecute(c->handle, g->plan, pack), "cudnnBackendExecute");
    graph_close(&of_call);
    c->failed |= r != ZERO_OK;
    return r == ZERO_ERR_UNSUPPORTED ? ZERO_ERR_DEVICE : r;
}

zero_result attention_cudnn_run(attention_cudnn *c, attention_plan *p, const attention_tensors *t) {
    /* Releases before 9.10 need the lowest number. */
    float scale = 1.0f / sqrtf((float)p->shape.head_size), one = 1;
    float masked = cudnnGetVersion() < 91000 ? -FLT_MAX : -INFINITY;
    bindings b = {0};
    bind_parts(&b, ID_Q, t->qkv, p);
    bind_to(&b, ID_OUT, t->out);
    bind_to(&b, ID_LSE, t->lse);
    bind_to(&b, ID_SCALE, &scale);
    bind_to(&b, ID_MASKED, &masked);
    if (!p->backward) return execute(c, &p->graph, &b, t->workspace);
    bind_parts(&b, ID_DQ, t->dqkv, p);
    bind_to(&b, ID_DOUT, t->dout);
    bind_to(&b, ID_ROW_SUM, t->row_sum);
    bind_to(&b, ID_ONE, &one);
    if (!c->deterministic) bind_to(&b, ID_DQ_SUM, t->dq_sum);
    return execute(c, &p->graph, &b, t->workspace);
}

#else
typedef int attention_cudnn_not_built; /* C does not allow an empty file */
#endif

/* cuda_products.h - matrix products of ops_cuda.cu by cuBLASLt. Each shape has one descriptor and
   one algorithm, which the first product of the shape finds, and which are kept.

   cuBLASLt stores matrices by columns. A matrix (rows, columns) here is therefore a matrix
   (columns, rows) for cuBLASLt, with the same memory and a leading dimension of `columns`. So this
   file requests the transposed product: d^T (m, n) = a (m, k) b (k, n), where m counts along a row
   of d in memory.

       y (R, O)  = x (R, I) w^T     m = O  n = R  k = I   a = w  transposed   b = x
       dx (R, I) = dy (R, O) w      m = I  n = R  k = O   a = w               b = dy
       dw (O, I) += dy^T x          m = I  n = O  k = R   a = x               b = dy transposed

   Epilogues: a bias has m elements, and is added to every row of d. The input of GELU is stored in
   a second array with the layout of d. */
#ifndef GPT2_CUDA_PRODUCTS_H
#define GPT2_CUDA_PRODUCTS_H

#include <cublasLt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../zero_plugin.h"
#include "cuda_bytes.h"

#ifndef OPS_FUSED_GELU /* 0: kernels of ops_cuda.cu compute GELU in every type */
#define OPS_FUSED_GELU 1
#endif

enum {
    PRODUCT_PLACES = 256, /* most shapes that are kept */
    PRODUCT_CHOICES = 8   /* most algorithms that are tried for a shape */
};

/* What a product does in addition to the multiplication. */
typedef enum product_extra {
    PRODUCT_PLAIN = 0,
    PRODUCT_BIAS,          /* + bias */
    PRODUCT_RESIDUAL,      /* + bias + c */
    PRODUCT_GELU,          /* aux = the product + bias, d = GELU(aux) */
    PRODUCT_GELU_BACKWARD, /* the product times GELU's derivative at aux */
    PRODUCT_ADD            /* + d */
} product_extra;
enum { PRODUCT_EXTRAS = PRODUCT_ADD + 1 };

/* Everything on which the choice of an algorithm depends. Keys are compared byte by byte, so the
   struct has no padding. */
typedef struct product_key {
    size_t m, n, k;
    int32_t ta, tb; /* 1: a, or b, is stored transposed */
    int32_t extra;  /* product_extra */
    int32_t add;    /* 1: d has the type of gradients, and the product is added to it */
    int32_t align;  /* all operands begin at multiples of so many bytes */
    int32_t none;
} product_key;

typedef struct product {
    product_key key;
    int works; /* -1: cuBLASLt has no algorithm */
    cublasLtMatmulDesc_t op;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algo;
} product;

typedef struct product_operands {
    const void *a, *b;
    void *d;
    const void *c;    /* PRODUCT_RESIDUAL */
    const void *bias; /* BIAS, RESIDUAL, GELU */
    void *aux;        /* GELU: written; GELU_BACKWARD: read */
} product_operands;

typedef struct products {
    cublasLtHandle_t handle;
    void *workspace;
    cudaStream_t stream;
    zero_type type, grad_type;
    int tf32;
    product places[PRODUCT_PLACES];
    size_t next;             /* the place that the next shape takes */
    unsigned fused, refused; /* one bit for each product_extra: seen to work, seen to fail */
    char path[192];
    char error[192]; /* the sentence of the first error, or "" */
} products;

static zero_result products_fail(products *p, const char *call, cublasStatus_t status) {
    if (!p->error[0])
        (void)snprintf(p->error, sizeof p->error, "%s: %s", call, cublasLtGetStatusString(status));
    return status == CUBLAS_STATUS_ALLOC_FAILED ? ZERO_ERR_MEMORY : ZERO_ERR_DEVICE;
}

#define PRODUCT_TRY(p, call)                                                                       \
    do {                                                                                           \
        const cublasStatus_t product_status = (call);                                              \
        if (product_status != CUBLAS_STATUS_SUCCESS)                                               \
            return products_fail(p, #call, product_status);                                        \
    } while (0)

static cudaDataType_t product_type(zero_type type) {
    return type == ZERO_F32 ? CUDA_R_32F : type == ZERO_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

/* Writes the text for a log: the type, what cuBLASLt fused, and what kernels of ops_cuda.cu
   computed instead. */
static void products_say(products *p) {
    static const char *const types[ZERO_TYPES] = {"f32", "bf16", "f16"};
    static const char *const extras[PRODUCT_EXTRAS] = {
        "some plain products", "bias", "residual", "GELU", "GELU's gradient", "sums"};
    size_t used = (size_t)snprintf(p->path, sizeof p->path, "cuBLASLt %s%s", types[p->type],
                                   p->type == ZERO_F32 && p->tf32 ? " (TF32)" : "");
    for (int refused = 0; refused < 2; refused++) {
        const char *before = refused ? "; own kernels: " : "; fused: ";
        for (unsigned e = refused ? PRODUCT_PLAIN : PRODUCT_BIAS; e < PRODUCT_EXTRAS; e++) {
            if (!((refused ? p->refused : p->fused) >> e & 1u) || used >= sizeof p->path) continue;
            used +=
                (size_t)snprintf(p->path + used, sizeof p->path - used, "%s%s", before, extras[e]);
            before = ", ";
        }
    }
}

/* Notes that an extra was seen to work, or to fail. */
static void product_note(products *p, unsigned *seen, int extra) {
    if (*seen >> extra & 1u) return;
    *seen |= 1u << extra;
    products_say(p);
}

static zero_result products_open(products *p, zero_type type, zero_type grad_type, int tf32,
                                 cudaStream_t stream, void *workspace) {
    memset(p, 0, sizeof *p);
    p->type = type;
    p->grad_type = grad_type;
    p->tf32 = tf32;
    p->stream = stream;
    p->workspace = workspace;
    PRODUCT_TRY(p, cublasLtCreate(&p->handle));
    products_say(p);
    return ZERO_OK;
}

static void product_drop(product *x) {
    if (x->op) (void)cublasLtMatmulDescDestroy(x->op);
    if (x->a) (void)cublasLtMatrixLayoutDestroy(x->a);
    if (x->b) (void)cublasLtMatrixLayoutDestroy(x->b);
    if (x->d) (void)cublasLtMatrixLayoutDestroy(x->d);
    memset(x, 0, sizeof *x);
}

static void products_close(products *p) {
    for (size_t i = 0; i < PRODUCT_PLACES; i++) product_drop(&p->places[i]);
    if (p->handle) (void)cublasLtDestroy(p->handle);
    p->handle = NULL;
}

static cublasLtEpilogue_t product_epilogue(product_extra extra) {
    switch (extra) {
    case PRODUCT_BIAS:
    case PRODUCT_RESIDUAL: return CUBLASLT_EPILOGUE_BIAS;
    case PRODUCT_GELU: return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case PRODUCT_GELU_BACKWARD: return CUBLASLT_EPILOGUE_DGELU;
    default: return CUBLASLT_EPILOGUE_DEFAULT;
    }
}

/* Returns 0 for cases that are not requested of cuBLASLt: GELU with rows that are no multiple of 8,
   which its interface excludes, and GELU in f32, which the kernel of ops_cuda.cu computes more
   exactly. */
static int product_may_fuse(const products *p, const product_key *key) {
    const int gelu = key->extra == PRODUCT_GELU || key->extra == PRODUCT_GELU_BACKWARD;
    return !gelu || (OPS_FUSED_GELU && key->m % 8 == 0 && (p->type != ZERO_F32 || p->tf32));
}

static zero_result product_set(products *p, product *x, cublasLtMatmulDescAttributes_t attribute,
                               const void *value, size_t bytes) {
    PRODUCT_TRY(p, cublasLtMatmulDescSetAttribute(x->op, attribute, value, bytes));
    return ZERO_OK;
}

/* Writes the pointers of this call to the descriptor. */
static zero_result product_point(products *p, product *x, const product_operands *v) {
    zero_result result = ZERO_OK;
    if (v->bias)
        result = product_set(p, x, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &v->bias, sizeof v->bias);
    if (v->aux && result == ZERO_OK)
        result =
            product_set(p, x, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &v->aux, sizeof v->aux);
    return result;
}

static zero_result product_describe(products *p, product *x, const product_operands *v) {
    const product_key *key = &x->key;
    const cudaDataType_t in = product_type(p->type);
    const cudaDataType_t out = product_type(key->add ? p->grad_type : p->type);
    const cublasOperation_t ta = key->ta ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t tb = key->tb ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasLtEpilogue_t epilogue = product_epilogue((product_extra)key->extra);
    const cublasComputeType_t compute =
        p->type == ZERO_F32 && p->tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    const uint64_t m = key->m, n = key->n, k = key->k;
    const int64_t lda = (int64_t)(key->ta ? k : m), ldb = (int64_t)(key->tb ? n : k);
    const int64_t ldd = (int64_t)m;
    zero_result result = ZERO_OK;
    PRODUCT_TRY(p, cublasLtMatmulDescCreate(&x->op, compute, CUDA_R_32F));
    PRODUCT_TRY(p, cublasLtMatrixLayoutCreate(&x->a, in, key->ta ? k : m, key->ta ? m : k, lda));
    PRODUCT_TRY(p, cublasLtMatrixLayoutCreate(&x->b, in, key->tb ? n : k, key->tb ? k : n, ldb));
    PRODUCT_TRY(p, cublasLtMatrixLayoutCreate(&x->d, out, m, n, ldd));
    result = product_set(p, x, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof ta);
    if (!result) result = product_set(p, x, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof tb);
    if (!result)
        result = product_set(p, x, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    if (!result && v->aux)
        result = product_set(p, x, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &ldd, sizeof ldd);
    return result ? result : product_point(p, x, v);
}

/* Sets the limits for the choice: workspace, alignment, and only algorithms that add parts of a sum
   in f32, so that results are rounded once. */
static zero_result product_prefer(products *p, cublasLtMatmulPreference_t preference,
                                  uint32_t align) {
    static const cublasLtMatmulPreferenceAttributes_t operands[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    const uint64_t room = PRODUCT_WORKSPACE;
    const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    PRODUCT_TRY(p, cublasLtMatmulPreferenceSetAttribute(
                       preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room, sizeof room));
    PRODUCT_TRY(p, cublasLtMatmulPreferenceSetAttribute(preference,
                                                        CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                        &schemes, sizeof schemes));
    for (int i = 0; i < 4; i++)
        PRODUCT_TRY(
            p, cublasLtMatmulPreferenceSetAttribute(preference, operands[i], &align, sizeof align));
    return ZERO_OK;
}

/* Requests an algorithm, and sets x->works if there is one. */
static zero_result product_choose(products *p, product *x, cublasLtMatmulPreference_t preference) {
    cublasLtMatmulHeuristicResult_t found[PRODUCT_CHOICES];
    int count = 0;
    const zero_result result = product_prefer(p, preference, (uint32_t)x->key.align);
    if (result) return result;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        p->handle, x->op, x->a, x->b, x->d, x->d, preference, PRODUCT_CHOICES, found, &count);
    x->works = -1;
    for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < count && x->works < 0; i++) {
        if (found[i].state != CUBLAS_STATUS_SUCCESS || found[i].workspaceSize > PRODUCT_WORKSPACE)
            continue;
        x->algo = found[i].algo;
        x->works = 1;
    }
    return ZERO_OK;
}

static zero_result product_make(products *p, product *x, const product_operands *v) {
    cublasLtMatmulPreference_t preference = NULL;
    zero_result result = product_describe(p, x, v);
    if (result) return result;
    PRODUCT_TRY(p, cublasLtMatmulPreferenceCreate(&preference));
    result = product_choose(p, x, preference);
    (void)cublasLtMatmulPreferenceDestroy(preference);
    return result;
}

/* Returns the alignment of all operands, at most 128 bytes. So the same product has the same
   algorithm, and the same bits, at all addresses with this alignment. */
static int32_t product_alignment(const product_operands *v) {
    const void *const all[] = {v->a, v->b, v->c, v->d, v->bias, v->aux};
    uintptr_t bits = 128;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) bits |= (uintptr_t)all[i];
    return (int32_t)(bits & (~bits + 1));
}

/* Finds the place of a shape. A new shape takes the place of the oldest one. */
static zero_result product_find(products *p, const product_key *key, const product_operands *v,
                                product **found) {
    for (size_t i = 0; i < PRODUCT_PLACES; i++)
        if (p->places[i].works && !memcmp(&p->places[i].key, key, sizeof *key)) {
            *found = &p->places[i];
            return (*found)->works > 0 ? product_point(p, *found, v) : ZERO_OK;
        }
    product *x = &p->places[p->next];
    p->next = (p->next + 1) % PRODUCT_PLACES;
    product_drop(x);
    x->key = *key;
    *found = x;
    x->works = -1;
    const zero_result result = product_may_fuse(p, key) ? product_make(p, x, v) : ZERO_OK;
    if (result) return result;
    if (x->works < 0) product_note(p, &p->refused, key->extra);
    return ZERO_OK;
}

/* Enqueues a product. *done becomes 0 if cuBLASLt cannot compute it in one call; then nothing was
   enqueued. This function sets key.align. */
static zero_result products_run(products *p, product_key key, const product_operands *v,
                                int *done) {
    const float one = 1.0f, zero = 0.0f;
    const int adds = key.add || key.extra == PRODUCT_RESIDUAL || key.extra == PRODUCT_ADD;
    product *x = NULL;
    key.align = product_alignment(v);
    const zero_result result = product_find(p, &key, v, &x);
    *done = 0;
    if (result || x->works < 0) return result;
    const cublasStatus_t status = cublasLtMatmul(
        p->handle, x->op, &one, v->a, x->a, v->b, x->b, adds ? &one : &zero, v->c ? v->c : v->d,
        x->d, v->d, x->d, &x->algo, p->workspace, PRODUCT_WORKSPACE, p->stream);
    *done = status == CUBLAS_STATUS_SUCCESS;
    if (*done) product_note(p, &p->fused, key.extra);
    if (*done) return ZERO_OK;
    if (status != CUBLAS_STATUS_NOT_SUPPORTED) return products_fail(p, "cublasLtMatmul", status);
    x->works = -1;
    product_note(p, &p->refused, key.extra);
    return ZERO_OK;
}
#endif

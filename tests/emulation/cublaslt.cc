/* cublaslt.cc - the part of cuBLASLt that adapters/gpt2 uses, on the CPU: as its documentation
   says, with plain loops. Layouts count columns first, operands may lie transposed, every element
   of D = op(A) op(B) + beta C is summed in f64 and rounded once; then the epilogue.

   It is stricter than the library: descriptors must be complete when an algorithm is asked for, and
   what was promised there (alignment, workspace) must hold when a product is called. A product runs
   on its stream, as work of the device, and soils its workspace. */
#include "engine.h"

#include <cublasLt.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <atomic>
#include <vector>

#include "../../zero_plugin.h"
#include "cublaslt_emulation.h"

namespace {

std::atomic<unsigned> refused;
std::atomic<uint64_t> products, fused;
std::atomic<int> live;

struct matmul {
    cublasComputeType_t compute;
    cublasOperation_t ta, tb;
    cublasLtEpilogue_t epilogue;
    const void *bias;
    void *aux;
    int64_t aux_ld;
};
struct layout {
    cudaDataType_t type;
    uint64_t rows, cols;
    int64_t ld;
};
struct preference {
    uint64_t workspace;
    uint32_t schemes, align[4];
};
/* What an algorithm remembers of what it was found for. */
struct algorithm {
    uint64_t m, n, k, workspace;
    uint32_t align[4];
    uint32_t epilogue;
};
static_assert(sizeof(algorithm) <= sizeof(cublasLtMatmulAlgo_t), "kept in the opaque struct");

/* A call, with everything that it needs when its turn comes. */
struct call {
    matmul op;
    layout a, b, c, d;
    const void *pa, *pb, *pc;
    void *pd, *workspace;
    uint64_t workspace_bytes;
    float alpha, beta;
};

const matmul *of(cublasLtMatmulDesc_t d) { return (const matmul *)(const void *)d; }
const layout *of(cublasLtMatrixLayout_t l) { return (const layout *)(const void *)l; }

zero_type number(cudaDataType_t type) {
    return type == CUDA_R_32F ? ZERO_F32 : type == CUDA_R_16BF ? ZERO_BF16 : ZERO_F16;
}
float load(const void *p, cudaDataType_t type, size_t i) {
    const zero_type t = number(type);
    float x;
    zero_convert(&x, ZERO_F32, (const char *)p + i * zero_type_bytes(t), t, 1);
    return x;
}
void store(void *p, cudaDataType_t type, size_t i, float x) {
    const zero_type t = number(type);
    zero_convert((char *)p + i * zero_type_bytes(t), t, &x, ZERO_F32, 1);
}

/* To 10 bits of mantissa, to nearest. */
float tf32(float x) {
    uint32_t b;
    memcpy(&b, &x, sizeof b);
    if ((b & 0x7F800000u) != 0x7F800000u) b = (b + 0xFFFu + (b >> 13 & 1u)) & ~0x1FFFu;
    memcpy(&x, &b, sizeof x);
    return x;
}

double gelu(double x) { return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
double gelu_slope(double x) {
    const double t = tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

bool has_bias(const matmul &op) {
    return op.epilogue == CUBLASLT_EPILOGUE_BIAS || op.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}
bool has_aux(const matmul &op) {
    return op.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS || op.epilogue == CUBLASLT_EPILOGUE_DGELU;
}

bool refuses(cublasLtEpilogue_t e) {
    const unsigned which = refused.load();
    return (which & EMULATED_REFUSE_PLAIN && e == CUBLASLT_EPILOGUE_DEFAULT)
           || (which & EMULATED_REFUSE_BIAS && e == CUBLASLT_EPILOGUE_BIAS)
           || (which & EMULATED_REFUSE_GELU && e == CUBLASLT_EPILOGUE_GELU_AUX_BIAS)
           || (which & EMULATED_REFUSE_DGELU && e == CUBLASLT_EPILOGUE_DGELU);
}

/* (rows, cols) of op(X). */
uint64_t rows_of(const layout &x, cublasOperation_t t) {
    return t == CUBLAS_OP_N ? x.rows : x.cols;
}
uint64_t cols_of(const layout &x, cublasOperation_t t) {
    return t == CUBLAS_OP_N ? x.cols : x.rows;
}

bool types_fit(const matmul &op, const layout &a, const layout &b, const layout &c,
               const layout &d) {
    if (a.type != b.type || c.type != d.type) return false;
    if (op.compute == CUBLAS_COMPUTE_32F_FAST_TF32)
        return a.type == CUDA_R_32F && d.type == CUDA_R_32F;
    if (op.compute != CUBLAS_COMPUTE_32F) return false;
    return d.type == a.type || d.type == CUDA_R_32F;
}

bool shapes_fit(const matmul &op, const layout &a, const layout &b, const layout &c,
                const layout &d) {
    const layout *const all[] = {&a, &b, &c, &d};
    for (const layout *l : all)
        if (!l->rows || !l->cols || l->ld < (int64_t)l->rows) return false;
    return rows_of(a, op.ta) == d.rows && cols_of(b, op.tb) == d.cols
           && cols_of(a, op.ta) == rows_of(b, op.tb) && c.rows == d.rows && c.cols == d.cols;
}

bool epilogue_fits(const matmul &op, const layout &d) {
    if (has_bias(op) && !op.bias) return false;
    if (has_aux(op)
        && (!op.aux || op.aux_ld % 8 || op.aux_ld < (int64_t)d.rows || (uintptr_t)op.aux % 16))
        return false;
    return has_bias(op) || has_aux(op) || op.epilogue == CUBLASLT_EPILOGUE_DEFAULT;
}

/* op(X) (rows, cols) as floats, row by row; with `turn`, column by column. */
std::vector<float> gather(const call &c, const void *p, const layout &x, cublasOperation_t t,
                          bool turn) {
    const uint64_t rows = rows_of(x, t), cols = cols_of(x, t);
    std::vector<float> v(rows * cols);
    for (uint64_t i = 0; i < rows; i++)
        for (uint64_t j = 0; j < cols; j++) {
            const size_t at = t == CUBLAS_OP_N ? i + j * (size_t)x.ld : j + i * (size_t)x.ld;
            const float f = load(p, x.type, at);
            v[turn ? j * rows + i : i * cols + j] =
                c.op.compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? tf32(f) : f;
        }
    return v;
}

void finish(const call &c, uint64_t i, uint64_t j, double sum) {
    const size_t at = i + j * (size_t)c.d.ld;
    if (c.beta != 0) sum += (double)c.beta * (double)load(c.pc, c.c.type, i + j * (size_t)c.c.ld);
    if (has_bias(c.op)) sum += (double)load(c.op.bias, c.d.type, i);
    if (c.op.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) {
        store(c.op.aux, c.d.type, i + j * (size_t)c.op.aux_ld, (float)sum);
        sum = gelu(sum);
    }
    if (c.op.epilogue == CUBLASLT_EPILOGUE_DGELU)
        sum *= gelu_slope((double)load(c.op.aux, c.d.type, i + j * (size_t)c.op.aux_ld));
    store(c.pd, c.d.type, at, (float)sum);
}

void run(const call *c) {
    const uint64_t m = c->d.rows, n = c->d.cols, k = cols_of(c->a, c->op.ta);
    const std::vector<float> a = gather(*c, c->pa, c->a, c->op.ta, false);
    const std::vector<float> b = gather(*c, c->pb, c->b, c->op.tb, true);
    if (c->workspace) memset(c->workspace, 0xFF, c->workspace_bytes);
    for (uint64_t j = 0; j < n; j++)
        for (uint64_t i = 0; i < m; i++) {
            double sum = 0;
            for (uint64_t x = 0; x < k; x++) sum += (double)a[i * k + x] * (double)b[j * k + x];
            finish(*c, i, j, (double)c->alpha * sum);
        }
}

template <class T> T *make() {
    live++;
    return (T *)calloc(1, 256); /* at least the opaque struct */
}
cublasStatus_t drop(void *p) {
    if (!p) return CUBLAS_STATUS_INVALID_VALUE;
    live--;
    free(p);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t put(void *to, size_t expected, const void *from, size_t bytes) {
    if (bytes != expected || !from) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, from, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

} // namespace

/* ---- what tests set and ask ---------------------------------------------------------------- */

void emulated_cublaslt_refuse(unsigned which) { refused = which; }
uint64_t emulated_cublaslt_products(void) { return products; }
uint64_t emulated_cublaslt_fused(void) { return fused; }
int emulated_cublaslt_live(void) { return live; }

/* ---- the library --------------------------------------------------------------------------- */

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
    *handle = (cublasLtHandle_t)(void *)make<char>();
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return drop(handle); }

const char *cublasLtGetStatusString(cublasStatus_t status) {
    return status == CUBLAS_STATUS_SUCCESS         ? "success"
           : status == CUBLAS_STATUS_NOT_SUPPORTED ? "the functionality is not supported"
           : status == CUBLAS_STATUS_INVALID_VALUE ? "an unsupported value or parameter"
                                                   : "another error";
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
    if (scale != CUDA_R_32F) return CUBLAS_STATUS_INVALID_VALUE;
    matmul *op = make<matmul>();
    op->compute = compute;
    op->ta = op->tb = CUBLAS_OP_N;
    op->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    *desc = (cublasLtMatmulDesc_t)(void *)op;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) { return drop(desc); }

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes) {
    matmul *op = (matmul *)(void *)desc;
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return put(&op->ta, sizeof(int32_t), value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB: return put(&op->tb, sizeof(int32_t), value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return put(&op->epilogue, sizeof(uint32_t), value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return put(&op->bias, sizeof op->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
        return put(&op->aux, sizeof op->aux, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
        return put(&op->aux_ld, sizeof op->aux_ld, value, bytes);
    default: return CUBLAS_STATUS_NOT_SUPPORTED;
    }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *made, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t ld) {
    layout *l = make<layout>();
    l->type = type;
    l->rows = rows;
    l->cols = cols;
    l->ld = ld;
    *made = (cublasLtMatrixLayout_t)(void *)l;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) { return drop(l); }

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *made) {
    preference *p = make<preference>();
    p->schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
    for (uint32_t &align : p->align) align = 256;
    *made = (cublasLtMatmulPreference_t)(void *)p;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) { return drop(p); }

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t made,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *value, size_t bytes) {
    preference *p = (preference *)(void *)made;
    const int operand = (int)attribute - (int)CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
    if (operand >= 0 && operand < 4) return put(&p->align[operand], 4, value, bytes);
    if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES)
        return put(&p->workspace, sizeof p->workspace, value, bytes);
    if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK)
        return put(&p->schemes, sizeof p->schemes, value, bytes);
    return CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t la, cublasLtMatrixLayout_t lb,
                                              cublasLtMatrixLayout_t lc, cublasLtMatrixLayout_t ld,
                                              cublasLtMatmulPreference_t made, int wanted,
                                              cublasLtMatmulHeuristicResult_t *found, int *count) {
    const matmul &op = *of(desc);
    const layout &a = *of(la), &b = *of(lb), &c = *of(lc), &d = *of(ld);
    const preference *p = (const preference *)(const void *)made;
    *count = 0;
    if (wanted < 1) return CUBLAS_STATUS_INVALID_VALUE;
    if (!types_fit(op, a, b, c, d) || !shapes_fit(op, a, b, c, d) || !epilogue_fits(op, d))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (refuses(op.epilogue) && !(refused & EMULATED_REFUSE_LATE))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    algorithm algo = {};
    algo.m = d.rows;
    algo.n = d.cols;
    algo.k = cols_of(a, op.ta);
    algo.epilogue = op.epilogue;
    algo.workspace = p->workspace < 4096 ? p->workspace : 4096;
    memcpy(algo.align, p->align, sizeof algo.align);
    memset(found, 0, sizeof *found);
    memcpy(&found->algo, &algo, sizeof algo);
    found->workspaceSize = algo.workspace;
    found->state = CUBLAS_STATUS_SUCCESS;
    *count = 1;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *A, cublasLtMatrixLayout_t la, const void *B,
                              cublasLtMatrixLayout_t lb, const void *beta, const void *C,
                              cublasLtMatrixLayout_t lc, void *D, cublasLtMatrixLayout_t ld,
                              const cublasLtMatmulAlgo_t *chosen, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
    const matmul &op = *of(desc);
    const void *const operands[4] = {A, B, C, D};
    algorithm algo;
    memcpy(&algo, chosen, sizeof algo);
    if (algo.m != of(ld)->rows || algo.n != of(ld)->cols || algo.k != cols_of(*of(la), op.ta)
        || algo.epilogue != (uint32_t)op.epilogue)
        return CUBLAS_STATUS_INVALID_VALUE;
    for (int i = 0; i < 4; i++)
        if (!operands[i] || (uintptr_t)operands[i] % algo.align[i])
            return CUBLAS_STATUS_INVALID_VALUE;
    if (workspace_bytes < algo.workspace || (algo.workspace && !workspace)
        || !epilogue_fits(op, *of(ld)))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (refuses(op.epilogue)) return CUBLAS_STATUS_NOT_SUPPORTED;
    products++;
    if (op.epilogue != CUBLASLT_EPILOGUE_DEFAULT) fused++;
    const call c = {op,
                    *of(la),
                    *of(lb),
                    *of(lc),
                    *of(ld),
                    A,
                    B,
                    C,
                    D,
                    workspace,
                    algo.workspace,
                    *(const float *)alpha,
                    *(const float *)beta};
    return emulation::enqueue_work(stream, "cuBLASLt", [c] { run(&c); }) == cudaSuccess
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_EXECUTION_FAILED;
}

/* test_cublaslt.c - the descriptions and preferences of cuda_products.h in the real cuBLASLt, which
   needs neither a GPU nor a handle for them: every product of GPT-2's layers, in each type. What
   was set is read back. That cuBLASLt has an algorithm for them is seen on a GPU alone. Run by
   test_cublaslt.sh. */
#include "../../adapters/gpt2/cuda_products.h"
#include "../shared/harness.h"

typedef struct layer {
    size_t rows, in, out;
} layer;

static void check_layout(cublasLtMatrixLayout_t layout, uint64_t rows, uint64_t cols,
                         cudaDataType_t type, const char *name) {
    uint64_t r = 0, c = 0;
    int64_t ld = 0;
    uint32_t t = 99;
    size_t n;
    int bad =
        cublasLtMatrixLayoutGetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_ROWS, &r, sizeof r, &n)
        != 0;
    bad |= cublasLtMatrixLayoutGetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_COLS, &c, sizeof c, &n)
           != 0;
    bad |= cublasLtMatrixLayoutGetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_LD, &ld, sizeof ld, &n)
           != 0;
    bad |= cublasLtMatrixLayoutGetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_TYPE, &t, sizeof t, &n)
           != 0;
    test_check(!bad && r == rows && c == cols && ld == (int64_t)rows && t == (uint32_t)type,
               "%s: %llu x %llu, leading dimension %lld", name, (unsigned long long)r,
               (unsigned long long)c, (long long)ld);
}

static void check_description(const products *p, const product *x, const product_operands *v) {
    const product_key *key = &x->key;
    const cudaDataType_t in = product_type(p->type),
                         out = product_type(key->add ? p->grad_type : p->type);
    cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    const void *aux = NULL, *bias = NULL;
    int64_t aux_ld = 0;
    size_t n;
    int bad = cublasLtMatmulDescGetAttribute(x->op, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                             sizeof epilogue, &n)
              != 0;
    bad |= cublasLtMatmulDescGetAttribute(x->op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias,
                                          sizeof bias, &n)
           != 0;
    bad |= cublasLtMatmulDescGetAttribute(x->op, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux,
                                          sizeof aux, &n)
           != 0;
    bad |= cublasLtMatmulDescGetAttribute(x->op, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &aux_ld,
                                          sizeof aux_ld, &n)
           != 0;
    test_check(!bad && epilogue == product_epilogue((product_extra)key->extra) && bias == v->bias
                   && aux == v->aux && (!v->aux || aux_ld == (int64_t)key->m),
               "%zu x %zu x %zu, extra %d: the description", key->m, key->n, key->k,
               (int)key->extra);
    check_layout(x->a, key->ta ? key->k : key->m, key->ta ? key->m : key->k, in, "a");
    check_layout(x->b, key->tb ? key->n : key->k, key->tb ? key->k : key->n, in, "b");
    check_layout(x->d, key->m, key->n, out, "d");
}

static void check_preference(products *p) {
    cublasLtMatmulPreference_t preference = NULL;
    uint64_t room = 0;
    uint32_t align = 0, schemes = 0;
    size_t n;
    int bad = cublasLtMatmulPreferenceCreate(&preference) != 0
              || product_prefer(p, preference, 16) != ZERO_OK;
    bad |= cublasLtMatmulPreferenceGetAttribute(
               preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room, sizeof room, &n)
           != 0;
    bad |= cublasLtMatmulPreferenceGetAttribute(
               preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align, sizeof align, &n)
           != 0;
    bad |= cublasLtMatmulPreferenceGetAttribute(
               preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes, &n)
           != 0;
    test_check(!bad && room == PRODUCT_WORKSPACE && align == 16
                   && schemes == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE,
               "the preference: %s", p->error);
    (void)cublasLtMatmulPreferenceDestroy(preference);
}

/* One product: its description is made, read back and dropped. */
static int check_product(products *p, size_t m, size_t n, size_t k, int ta, int tb,
                         product_extra extra, int add) {
    static char operand[8][256] __attribute__((aligned(128)));
    const int has_bias =
        extra == PRODUCT_BIAS || extra == PRODUCT_RESIDUAL || extra == PRODUCT_GELU;
    const int has_aux = extra == PRODUCT_GELU || extra == PRODUCT_GELU_BACKWARD;
    const product_key key = {m, n, k, ta, tb, (int32_t)extra, add, 128, 0};
    const product_operands v = {operand[0],
                                operand[1],
                                operand[2],
                                extra == PRODUCT_RESIDUAL ? operand[3] : NULL,
                                has_bias ? operand[4] : NULL,
                                has_aux ? operand[5] : NULL};
    product x;
    memset(&x, 0, sizeof x);
    x.key = key;
    if (!product_may_fuse(p, &key)) return 0;
    test_check(product_describe(p, &x, &v) == ZERO_OK, "%zu x %zu x %zu, extra %d: %s", m, n, k,
               (int)extra, p->error);
    check_description(p, &x, &v);
    check_preference(p);
    product_drop(&x);
    return 1;
}

static int check_layer(products *p, const layer *l) {
    const size_t R = l->rows, I = l->in, O = l->out;
    int n = 0;
    for (int extra = PRODUCT_PLAIN; extra <= PRODUCT_GELU; extra++)
        n += check_product(p, O, R, I, 1, 0, (product_extra)extra, 0);
    n += check_product(p, I, R, O, 0, 0, PRODUCT_PLAIN, 0);
    n += check_product(p, I, R, O, 0, 0, PRODUCT_GELU_BACKWARD, 0);
    return n + check_product(p, I, O, R, 0, 1, PRODUCT_PLAIN, 1);
}

int main(void) {
    const layer layers[] = {{32768, 768, 2304},  {32768, 768, 768},   {32768, 768, 3072},
                            {32768, 3072, 768},  {8192, 768, 50304},  {16384, 1600, 4800},
                            {16384, 1600, 6400}, {16384, 6400, 1600}, {4096, 1600, 50304},
                            {256, 64, 192},      {77, 1600, 1600},    {1, 128, 512}};
    static products p;
    int n = 0;
    for (int type = 0; type < ZERO_TYPES; type++)
        for (int wide = 0; wide < 2; wide++) { /* f32: TF32; others: f32 gradients */
            memset(&p, 0, sizeof p);
            p.type = (zero_type)type;
            p.grad_type = wide ? ZERO_F32 : p.type;
            p.tf32 = type == ZERO_F32 && wide;
            for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++)
                n += check_layer(&p, &layers[i]);
        }
    printf("%d descriptions, cuBLASLt %zu\n", n, cublasLtGetVersion());
    test_check(n >= 360, "%d descriptions", n);
    return test_summary();
}

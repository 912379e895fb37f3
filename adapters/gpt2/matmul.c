/* matmul.c - see matmul.h. */
#include "matmul.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dnnl.h>

/* A product that oneDNN has prepared. Each call sets the addresses of the memory objects. */
typedef struct made {
    matmul is;
    dnnl_primitive_t product; /* NULL: this place is free */
    dnnl_primitive_t reorder; /* copies b to another layout; NULL: the product reads b in place */
    dnnl_memory_t a, b, c, packed, scratch;
    size_t packed_bytes, scratch_bytes; /* packed_bytes is rounded up to a multiple of 64 */
} made;

enum { PLACES = 64 }; /* a batch size needs 15 or 20, and sampling needs more */

struct matmuls {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    made places[PLACES];
    size_t next; /* the place that the next product takes */
    char *scratch;
    size_t scratch_bytes;
};

/* The functions that differ between oneDNN 2.x and 3.x. */
#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t layout;
typedef const_dnnl_memory_desc_t const_layout;
#define LAYOUT(l) (l)
static void layout_drop(layout l) { (void)dnnl_memory_desc_destroy(l); }
static dnnl_status_t layout_make(layout *l, const dnnl_dims_t sizes, dnnl_data_type_t type,
                                 const dnnl_dims_t strides) {
    return dnnl_memory_desc_create_with_strides(l, 2, sizes, type, strides);
}
static dnnl_status_t layout_any(layout *l, const dnnl_dims_t sizes, dnnl_data_type_t type) {
    return dnnl_memory_desc_create_with_tag(l, 2, sizes, type, dnnl_format_tag_any);
}
static dnnl_status_t sum_append(dnnl_post_ops_t ops) {
    return dnnl_post_ops_append_sum(ops, 1.0f, 0, dnnl_data_type_undef);
}
static dnnl_status_t describe(dnnl_primitive_desc_t *d, dnnl_engine_t engine, layout a, layout b,
                              layout c, const_dnnl_primitive_attr_t attributes) {
    return dnnl_matmul_primitive_desc_create(d, engine, a, b, NULL, c, attributes);
}
#else
typedef dnnl_memory_desc_t layout;
typedef const dnnl_memory_desc_t *const_layout;
#define LAYOUT(l) (&(l))
static void layout_drop(layout l) { (void)l; }
static dnnl_status_t layout_make(layout *l, const dnnl_dims_t sizes, dnnl_data_type_t type,
                                 const dnnl_dims_t strides) {
    return dnnl_memory_desc_init_by_strides(l, 2, sizes, type, strides);
}
static dnnl_status_t layout_any(layout *l, const dnnl_dims_t sizes, dnnl_data_type_t type) {
    return dnnl_memory_desc_init_by_tag(l, 2, sizes, type, dnnl_format_tag_any);
}
static dnnl_status_t sum_append(dnnl_post_ops_t ops) { return dnnl_post_ops_append_sum(ops, 1.0f); }
static dnnl_status_t describe(dnnl_primitive_desc_t *d, dnnl_engine_t engine, layout a, layout b,
                              layout c, const_dnnl_primitive_attr_t attributes) {
    dnnl_matmul_desc_t product;
    const dnnl_status_t status = dnnl_matmul_desc_init(&product, &a, &b, NULL, &c);
    return status ? status : dnnl_primitive_desc_create(d, &product, attributes, engine, NULL);
}
#endif

#define TRY(call)                                                                                  \
    do {                                                                                           \
        const dnnl_status_t try_status = (call);                                                   \
        if (try_status != dnnl_success) return try_status;                                         \
    } while (0)

const char *matmul_sentence(int status) {
    switch (status) {
    case dnnl_success: return "success";
    case dnnl_out_of_memory: return "out of memory";
    case dnnl_invalid_arguments: return "invalid arguments";
    case dnnl_unimplemented: return "not implemented";
    case dnnl_runtime_error: return "runtime error";
    default: return "an error";
    }
}

/* ---- creating a product -------------------------------------------------------------------- */

static dnnl_data_type_t dnnl_type(zero_type type) {
    return type == ZERO_F32 ? dnnl_f32 : type == ZERO_BF16 ? dnnl_bf16 : dnnl_f16;
}

/* The caller provides scratch memory. With `add` the product is added to c. */
static dnnl_status_t make_attributes(dnnl_primitive_attr_t *attributes, int add) {
    dnnl_post_ops_t sum;
    TRY(dnnl_primitive_attr_create(attributes));
    TRY(dnnl_primitive_attr_set_scratchpad_mode(*attributes, dnnl_scratchpad_mode_user));
    if (!add) return dnnl_success;
    TRY(dnnl_post_ops_create(&sum));
    dnnl_status_t status = sum_append(sum);
    if (!status) status = dnnl_primitive_attr_set_post_ops(*attributes, sum);
    (void)dnnl_post_ops_destroy(sum);
    return status;
}

enum { A, B, C, ANY_B, LAYOUTS };

static dnnl_status_t make_layouts(const matmul *p, layout l[LAYOUTS]) {
    const dnnl_dim_t m = (dnnl_dim_t)p->m, n = (dnnl_dim_t)p->n, k = (dnnl_dim_t)p->k;
    const dnnl_dim_t ga = (dnnl_dim_t)p->gap_a, gb = (dnnl_dim_t)p->gap_b;
    const dnnl_dims_t a = {m, k}, b = {k, n}, c = {m, n}, rows = {(dnnl_dim_t)p->gap_c, 1};
    const dnnl_dims_t as = {p->ta == 'T' ? 1 : ga, p->ta == 'T' ? ga : 1};
    const dnnl_dims_t bs = {p->tb == 'T' ? 1 : gb, p->tb == 'T' ? gb : 1};
    TRY(layout_make(&l[A], a, dnnl_type(p->type), as));
    TRY(layout_make(&l[B], b, dnnl_type(p->type), bs));
    TRY(layout_make(&l[C], c, dnnl_type(p->to), rows));
    return p->packed ? layout_any(&l[ANY_B], b, dnnl_type(p->type)) : dnnl_success;
}

/* Creates the copy of b to the layout of the product, unless b has that layout. */
static dnnl_status_t make_reorder(made *p, dnnl_engine_t engine, layout from,
                                  const_dnnl_primitive_desc_t product) {
    const_layout to = dnnl_primitive_desc_query_md(product, dnnl_query_weights_md, 0);
    dnnl_primitive_desc_t d = NULL;
    if (dnnl_memory_desc_equal(LAYOUT(from), to)) return dnnl_success;
    TRY(dnnl_memory_create(&p->packed, to, engine, DNNL_MEMORY_NONE));
    p->packed_bytes = (dnnl_memory_desc_get_size(to) + 63) / 64 * 64;
    TRY(dnnl_reorder_primitive_desc_create(&d, LAYOUT(from), engine, to, engine, NULL));
    const dnnl_status_t status = dnnl_primitive_create(&p->reorder, d);
    (void)dnnl_primitive_desc_destroy(d);
    return status;
}

/* Creates the primitives and their memory objects, and finds the bytes of scratch memory. */
static dnnl_status_t make_primitives(made *p, dnnl_engine_t engine, const layout l[LAYOUTS],
                                     const_dnnl_primitive_desc_t d) {
    const_layout scratch = dnnl_primitive_desc_query_md(d, dnnl_query_scratchpad_md, 0);
    TRY(dnnl_primitive_create(&p->product, d));
    TRY(dnnl_memory_create(&p->a, LAYOUT(l[A]), engine, DNNL_MEMORY_NONE));
    TRY(dnnl_memory_create(&p->b, LAYOUT(l[B]), engine, DNNL_MEMORY_NONE));
    TRY(dnnl_memory_create(&p->c, LAYOUT(l[C]), engine, DNNL_MEMORY_NONE));
    TRY(dnnl_memory_create(&p->scratch, scratch, engine, DNNL_MEMORY_NONE));
    p->scratch_bytes = dnnl_memory_desc_get_size(scratch);
    return p->is.packed ? make_reorder(p, engine, l[B], d) : dnnl_success;
}

/* Creates a product. name (may be NULL) receives the name of the implementation. */
static dnnl_status_t make(const matmuls *s, made *p, const matmul *is, char *name, size_t bytes) {
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_primitive_desc_t d = NULL;
    const char *found = "";
    layout l[LAYOUTS];
    memset(p, 0, sizeof *p);
    memset(l, 0, sizeof l);
    p->is = *is;
    dnnl_status_t status = make_layouts(is, l);
    if (!status) status = make_attributes(&attributes, is->add);
    if (!status)
        status = describe(&d, s->engine, l[A], l[is->packed ? ANY_B : B], l[C], attributes);
    if (!status) status = dnnl_primitive_desc_query(d, dnnl_query_impl_info_str, 0, (void *)&found);
    if (!status && name) (void)snprintf(name, bytes, "%s", found);
    if (!status) status = make_primitives(p, s->engine, l, d);
    if (d) (void)dnnl_primitive_desc_destroy(d);
    if (attributes) (void)dnnl_primitive_attr_destroy(attributes);
    for (int i = 0; i < LAYOUTS; i++) layout_drop(l[i]);
    return status;
}

static void drop(made *p) {
    const dnnl_memory_t memory[] = {p->a, p->b, p->c, p->packed, p->scratch};
    for (int i = 0; i < 5; i++)
        if (memory[i]) (void)dnnl_memory_destroy(memory[i]);
    if (p->product) (void)dnnl_primitive_destroy(p->product);
    if (p->reorder) (void)dnnl_primitive_destroy(p->reorder);
    memset(p, 0, sizeof *p);
}

/* ---- kept products ------------------------------------------------------------------------- */

int matmul_reserve(matmuls *s, size_t bytes) {
    if (bytes <= s->scratch_bytes) return dnnl_success;
    free(s->scratch);
    s->scratch = (char *)aligned_alloc(64, (bytes + 63) / 64 * 64);
    s->scratch_bytes = s->scratch ? bytes : 0;
    return s->scratch ? dnnl_success : dnnl_out_of_memory;
}

void *matmul_scratch(matmuls *s, size_t bytes) {
    return matmul_reserve(s, bytes) ? NULL : s->scratch;
}

/* The engine is created for the first product that needs it. */
static dnnl_status_t need_engine(matmuls *s) {
    if (!s->engine) TRY(dnnl_engine_create(&s->engine, dnnl_cpu, 0));
    return s->stream ? dnnl_success
                     : dnnl_stream_create(&s->stream, s->engine, dnnl_stream_default_flags);
}

matmuls *matmul_open(void) { return (matmuls *)calloc(1, sizeof(matmuls)); }

void matmul_close(matmuls *s) {
    if (!s) return;
    for (size_t i = 0; i < PLACES; i++) drop(&s->places[i]);
    if (s->stream) (void)dnnl_stream_destroy(s->stream);
    if (s->engine) (void)dnnl_engine_destroy(s->engine);
    free(s->scratch);
    free(s);
}

static int is_same(const matmul *x, const matmul *y) {
    return x->m == y->m && x->n == y->n && x->k == y->k && x->ta == y->ta && x->tb == y->tb
           && x->gap_a == y->gap_a && x->gap_b == y->gap_b && x->gap_c == y->gap_c
           && x->type == y->type && x->to == y->to && x->add == y->add && x->packed == y->packed;
}

/* Finds the place of a product. A new product takes the place of the oldest one. */
static dnnl_status_t find(matmuls *s, const matmul *is, const made **found) {
    for (size_t i = 0; i < PLACES; i++) {
        *found = &s->places[i];
        if ((*found)->product && is_same(&(*found)->is, is)) return dnnl_success;
    }
    made *p = &s->places[s->next];
    *found = p;
    drop(p);
    dnnl_status_t status = need_engine(s);
    if (!status) status = make(s, p, is, NULL, 0);
    if (!status) status = matmul_reserve(s, p->packed_bytes + p->scratch_bytes);
    if (status)
        drop(p);
    else
        s->next = (s->next + 1) % PLACES;
    return status;
}

int matmul_run(matmuls *s, const matmul *is, const void *a, const void *b, void *c) {
    const made *p = NULL;
    TRY(find(s, is, &p));
    TRY(dnnl_memory_set_data_handle(p->a, (void *)(uintptr_t)a));
    TRY(dnnl_memory_set_data_handle(p->b, (void *)(uintptr_t)b));
    TRY(dnnl_memory_set_data_handle(p->c, c));
    TRY(dnnl_memory_set_data_handle(p->scratch, s->scratch + p->packed_bytes));
    if (p->reorder) {
        const dnnl_exec_arg_t args[] = {{DNNL_ARG_FROM, p->b}, {DNNL_ARG_TO, p->packed}};
        TRY(dnnl_memory_set_data_handle(p->packed, s->scratch));
        TRY(dnnl_primitive_execute(p->reorder, s->stream, 2, args));
    }
    const dnnl_exec_arg_t args[] = {{DNNL_ARG_SRC, p->a},
                                    {DNNL_ARG_WEIGHTS, p->reorder ? p->packed : p->b},
                                    {DNNL_ARG_DST, p->c},
                                    {DNNL_ARG_SCRATCHPAD, p->scratch}};
    TRY(dnnl_primitive_execute(p->product, s->stream, 4, args));
    return dnnl_stream_wait(s->stream);
}

/* Rejects plain loops, which are slow, and the emulation of bf16 on processors that have AVX-512
   without its bf16 instructions: that is slower than conversion to f32. */
int matmul_try(matmuls *s, const matmul *is, char *name, size_t bytes) {
    made p;
    if (need_engine(s)) return 0;
    const int works = !make(s, &p, is, name, bytes);
    drop(&p);
    return works && strncmp(name, "ref", 3) != 0 && strncmp(name, "gemm:jit", 8) != 0;
}

/* bench_ops.c [char4|char6|d12|d12-long...] [f32|bf16] - the operations of a training step one by
   one, on one thread: how long they take in a step, the share of all, and the share of what their
   limit allows. Limits: of products and attention their operations at the rate of the best product
   measured here; of the others a plain loop with the same reads and writes on arrays of the same
   size, in turns with them. One rank; a step of 2 ranks has its collectives besides, and half the
   update from stage 1 on. */
#include "../shared/harness.h"

#include "../../adapters/gpt2/gpt2.h"
#include "../../adapters/gpt2/ops.h"

#ifdef _OPENMP
#include <omp.h>
#endif

typedef struct bench_model {
    const char *name, *descriptor;
    size_t B, T;
} bench_model;
static const bench_model bench_models[] = {{"char4", "char:4x128x4", 12, 64},
                                           {"char6", "char:6x384x6", 8, 256},
                                           {"d12", "d12", 4, 64},
                                           {"d12-long", "d12", 1, 1024}};

/* Sizes, and memory that all operations share: (R, 4C) each, or the classifier's. */
typedef struct bench {
    size_t L, C, R, V, Vp, chunk, params;
    ops_heads heads;
    zero_type type;
    ops_ctx *o;
    void *x, *y, *z, *w, *dw, *bias, *logits, *wte, *dwte;
    float *a, *b, *lse;
    int *tokens;
    zero_ctx *plugin;
} bench;

/* ---- the operations ------------------------------------------------------------------------ */

static void run_products(bench *s, size_t I, size_t O) {
    ops_linear(s->o, s->y, s->x, s->w, NULL, s->R, I, O);
    ops_linear_dx(s->o, s->z, s->y, s->w, s->R, I, O);
    ops_linear_dw(s->o, s->dw, NULL, s->y, s->x, s->R, I, O);
}
static void run_qkv(bench *s) { run_products(s, s->C, 3 * s->C); }
static void run_proj(bench *s) { run_products(s, s->C, s->C); }
static void run_fc(bench *s) { run_products(s, s->C, 4 * s->C); }
static void run_fcproj(bench *s) { run_products(s, 4 * s->C, s->C); }
static void run_classifier(bench *s) {
    ops_linear(s->o, s->logits, s->x, s->wte, NULL, s->chunk, s->C, s->Vp);
    ops_linear_dx(s->o, s->y, s->logits, s->wte, s->chunk, s->C, s->Vp);
    ops_linear_dw(s->o, s->dwte, NULL, s->logits, s->x, s->chunk, s->C, s->Vp);
}
static void run_attention(bench *s) { ops_attention(s->o, s->y, s->lse, s->x, s->bias, &s->heads); }
static void run_attention_backward(bench *s) {
    ops_attention_backward(s->o, s->z, s->y, s->y, s->lse, s->x, s->bias, &s->heads);
}
static void run_norm(bench *s) {
    ops_norm(s->o, s->y, s->a, s->b, s->x, s->w, s->bias, s->R, s->C);
}
static void run_norm_backward(bench *s) {
    ops_norm_backward(s->o, s->z, s->dw, s->dw, s->y, s->x, s->a, s->b, s->w, 0, s->R, s->C);
}
static void run_gelu(bench *s) { ops_gelu(s->o, s->y, s->x, s->bias, s->R, 4 * s->C); }
static void run_gelu_backward(bench *s) {
    ops_gelu_backward(s->o, s->z, s->dw, s->y, s->x, s->bias, s->R, 4 * s->C);
}
static void run_add_bias(bench *s) { ops_add_bias(s->o, s->z, s->x, s->y, s->bias, s->R, s->C); }
static void run_bias_backward(bench *s) { ops_bias_backward(s->o, s->dw, s->x, s->R, s->C); }
static void run_cross_entropy(bench *s) {
    ops_cross_entropy(s->o, s->a, s->logits, s->tokens, 1, 1e-3f, s->chunk, s->V, s->Vp);
}
static void run_embed(bench *s) {
    ops_embed(s->o, s->y, s->tokens, s->wte, s->w, s->R, s->heads.seq_len, s->C);
}
static void run_embed_backward(bench *s) {
    ops_embed_backward(s->o, s->dwte, s->dw, s->y, s->tokens, s->R, s->heads.seq_len, s->C);
}
static void die(const char *what) {
    fprintf(stderr, "bench_ops: %s\n", what);
    exit(1);
}
/* A backward's gradients, and their norm: what a step waits for. */
static void before_update(bench *s) {
    void *params = NULL, *grads = NULL;
    zero_ctx *z = s->plugin;
    double norm;
    if (zero_pass_begin(z, ZERO_TRAIN, 0, 1) || zero_backward_begin(z, 0, &params, &grads))
        die(zero_last_error(z));
    memset(grads, 0, s->params * zero_type_bytes(s->type));
    if (zero_backward_end(z, 0) || zero_pass_end(z) || zero_reduce(z) || zero_norm(z, &norm))
        die(zero_last_error(z));
}
static void run_update(bench *s) {
    const zero_hyper hyper = {1e-3f, 0.9f, 0.99f, 1e-8f, 0.1f, 1.0f};
    if (zero_step(s->plugin, &hyper)) die(zero_last_error(s->plugin));
}

/* ---- limits -------------------------------------------------------------------------------- */

/* Adds up so many arrays of n floats into so many. */
static void plain(float *const in[3], float *const out[2], int reads, int writes, size_t n) {
    const float *a = in[0], *b = in[1], *c = in[2];
    float *x = out[0], *y = out[1];
    if (reads == 1 && writes == 0) {
        float sum[64] = {0};
        for (size_t i = 0; i + 64 <= n; i += 64)
            for (size_t k = 0; k < 64; k++) sum[k] += a[i + k];
        x[0] = sum[n % 64];
    } else if (reads == 1) {
        for (size_t i = 0; i < n; i++) x[i] = 0.5f * a[i];
    } else if (reads == 2 && writes == 1) {
        for (size_t i = 0; i < n; i++) x[i] = a[i] + b[i];
    } else if (reads == 2) {
        for (size_t i = 0; i < n; i++) x[i] = a[i] + b[i], y[i] = a[i] - b[i];
    } else {
        for (size_t i = 0; i < n; i++) x[i] = a[i] + b[i] + c[i];
    }
}
/* The same reads and writes as AdamW's. */
static void plain_update(float *p, float *m, float *v, const float *g, size_t n) {
    for (size_t i = 0; i < n; i++) {
        m[i] += g[i];
        v[i] -= g[i];
        p[i] += m[i];
    }
}

typedef struct bench_row {
    const char *name;
    void (*run)(bench *s);
    double calls; /* in a step */
    double work;  /* operations; 0: its limit is memory */
    size_t n;     /* elements of each array */
    int reads, writes;
} bench_row;

typedef struct bench_time {
    double run, limit; /* seconds of a call, the least of all rounds */
} bench_time;

enum { MODELS = sizeof bench_models / sizeof *bench_models, ROWS = 18, ROUNDS = 7 };

static float *floats(size_t n) {
    float *p = NULL;
    if (posix_memalign((void **)&p, (size_t)1 << 21, (n * 4 + 63) / 64 * 64)) die("no memory");
#ifdef MADV_HUGEPAGE
    (void)madvise(p, n * 4, MADV_HUGEPAGE); /* as the plugin's memory has them */
#endif
    for (size_t i = 0; i < n; i++) p[i] = 1e-2f * (float)(i % 7);
    return p;
}

static void least_of(double *best, double t) {
    if (*best <= 0 || t < *best) *best = t;
}

/* Short operations are called so often that a clock sees them. */
static int repeats(const bench_row *r) {
    const double n = r->work > 0 ? r->work / 100 : 4.0 * (double)r->n;
    return n > 1e7 ? 1 : n > 1e6 ? 4 : 16;
}

static bench_time measure(bench *s, const bench_row *r, double rate) {
    bench_time t = {0, 0};
    const size_t bytes = r->n * zero_type_bytes(s->type), n = (bytes + 3) / 4;
    const int is_update = r->run == run_update, again = is_update ? 1 : repeats(r);
    float *in[3] = {NULL, NULL, NULL}, *out[2] = {NULL, NULL};
    for (int i = 0; i < 3 && r->work <= 0; i++) in[i] = floats(is_update ? r->n : n);
    for (int i = 0; i < 2 && r->work <= 0; i++) out[i] = floats(is_update && !i ? r->n : n);
    for (int round = -1; round < ROUNDS; round++) {
        memcpy(s->z, s->x, s->R * 4 * s->C * zero_type_bytes(s->type)); /* no denormal numbers */
        if (is_update) before_update(s);
        double at = test_now();
        for (int k = 0; k < again; k++) r->run(s);
        if (round >= 0) least_of(&t.run, (test_now() - at) / again);
        at = test_now();
        for (int k = 0; k < again && r->work <= 0; k++) {
            if (is_update)
                plain_update(in[0], in[1], in[2], out[0], r->n);
            else
                plain(in, out, r->reads, r->writes, n);
        }
        if (round >= 0 && r->work <= 0) least_of(&t.limit, (test_now() - at) / again);
    }
    for (int i = 0; i < 3; i++) free(in[i]);
    for (int i = 0; i < 2; i++) free(out[i]);
    if (r->work > 0) t.limit = r->work / rate;
    return t;
}

/* ---- a model ------------------------------------------------------------------------------- */

static zero_ctx *open_plugin(const bench *s) {
    const zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
    const zero_tensor_desc d = {"x", s->params, 1, .uses = 1};
    zero_config cfg;
    zero_ctx *z = NULL;
    memset(&cfg, 0, sizeof cfg);
    cfg.type = s->type;
    cfg.scaler.fixed = 1;
    if (zero_create(&z, &cfg, &self) || zero_tensor(z, &d) || zero_build(z))
        die(zero_last_error(z));
    return z;
}

static void *numbers(const bench *s, size_t n) {
    char *p = (char *)ops_alloc(n * zero_type_bytes(s->type));
    if (!p) die("no memory");
    for (size_t i = 0; i < n; i++) {
        const float x = 1e-2f * ((float)(i * 7919 % 101) - 50.0f);
        zero_convert(p + i * zero_type_bytes(s->type), s->type, &x, ZERO_F32, 1);
    }
    return p;
}

static bench open_bench(const bench_model *m, zero_type type) {
    gpt2_config cfg;
    gpt2_error err;
    bench s;
    char why[OPS_SENTENCE];
    memset(&s, 0, sizeof s);
    if (gpt2_config_parse(m->descriptor, 0, 0, &cfg, &err)) die(err.sentence);
    s.type = type;
    s.L = (size_t)cfg.layers;
    s.C = (size_t)cfg.channels;
    s.R = m->B * m->T;
    s.V = (size_t)cfg.vocab_size;
    s.Vp = (size_t)cfg.padded_vocab_size;
    s.params = gpt2_numel(&cfg);
    const size_t most = ops_logits_budget() / (s.Vp * zero_type_bytes(type));
    const size_t chunks = (s.R + most - 1) / most;
    s.chunk = (s.R + chunks - 1) / chunks;
    const ops_heads heads = {m->B, m->T, (size_t)cfg.heads, s.C / (size_t)cfg.heads};
    s.heads = heads;
    const ops_limits limits = {m->B, heads.heads, m->T, heads.head_size, 4 * s.C, s.Vp, s.R};
    const ops_settings settings = {type, type, NULL, 0, 0};
    if (ops_create(&s.o, &limits, &settings, why)) die(why);
    void **const rows[] = {&s.x, &s.y, &s.z};
    for (int i = 0; i < 3; i++) *rows[i] = numbers(&s, s.R * 4 * s.C);
    s.w = numbers(&s, 4 * s.C * s.C + (size_t)cfg.max_seq_len * s.C);
    s.dw = numbers(&s, 4 * s.C * s.C + (size_t)cfg.max_seq_len * s.C);
    s.bias = numbers(&s, 4 * s.C);
    s.logits = numbers(&s, s.chunk * s.Vp);
    s.wte = numbers(&s, s.Vp * s.C);
    s.dwte = numbers(&s, s.Vp * s.C);
    s.a = (float *)ops_alloc(s.R * sizeof(float));
    s.b = (float *)ops_alloc(s.R * sizeof(float));
    s.lse = (float *)ops_alloc(s.R * heads.heads * sizeof(float));
    s.tokens = (int *)ops_alloc(s.R * sizeof(int));
    for (size_t r = 0; r < s.R; r++) s.tokens[r] = (int)(r * 31 % s.V);
    s.plugin = open_plugin(&s);
    return s;
}
static void close_bench(bench *s) {
    void *const all[] = {s->x,   s->y,    s->z, s->w, s->dw,  s->bias,  s->logits,
                         s->wte, s->dwte, s->a, s->b, s->lse, s->tokens};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) ops_free(all[i]);
    ops_destroy(s->o);
    zero_destroy(s->plugin);
}

static int bench_rows(const bench *s, bench_row r[ROWS]) {
    const double L = (double)s->L, R = (double)s->R, C = (double)s->C;
    const double chunks = R / (double)s->chunk, T = (double)s->heads.seq_len;
    const size_t rc = s->R * s->C, logits = s->chunk * s->Vp;
    const bench_row all[] = {
        {"qkv, 3 products", run_qkv, L, 18 * R * C * C, 0, 0, 0},
        {"projection, 3 products", run_proj, L, 6 * R * C * C, 0, 0, 0},
        {"fc, 3 products", run_fc, L, 24 * R * C * C, 0, 0, 0},
        {"fcproj, 3 products", run_fcproj, L, 24 * R * C * C, 0, 0, 0},
        {"classifier, 3 products", run_classifier, chunks, 6 * (double)logits * C, 0, 0, 0},
        {"attention", run_attention, L, 2 * R * C * T, 0, 0, 0},
        {"attention, backward", run_attention_backward, L, 5 * R * C * T, 0, 0, 0},
        {"layer norm", run_norm, 2 * L + 1, 0, rc, 1, 1},
        {"layer norm, backward", run_norm_backward, 2 * L + 1, 0, rc, 3, 1},
        {"GELU", run_gelu, L, 0, 4 * rc, 1, 1},
        {"GELU, backward", run_gelu_backward, L, 0, 4 * rc, 2, 2},
        {"bias and residual", run_add_bias, 2 * L, 0, rc, 2, 1},
        {"gradients of biases", run_bias_backward, 5 * L, 0, rc, 1, 0},
        {"cross entropy", run_cross_entropy, chunks, 0, logits, 1, 1},
        {"embedding", run_embed, 1, 0, rc, 2, 1},
        {"embedding, backward", run_embed_backward, 1, 0, rc, 2, 1},
        {"update", run_update, 1, 0, s->params, 4, 3},
    };
    memcpy(r, all, sizeof all);
    return (int)(sizeof all / sizeof *all);
}

static void bench_one(const bench_model *m, zero_type type) {
    bench s = open_bench(m, type);
    bench_row r[ROWS];
    bench_time t[ROWS];
    double all = 0, products = 0, work = 0;
    double rate = 0;
    for (int i = 0; i < 3; i++) {
        const double now = gpt2_matmul_rate(type, 1);
        if (now > rate) rate = now;
    }
    const int n = bench_rows(&s, r);
    for (int i = 0; i < n; i++) {
        t[i] = measure(&s, &r[i], rate);
        all += t[i].run * r[i].calls;
        if (r[i].work > 0 && r[i].work * r[i].calls / (t[i].run * r[i].calls) > rate)
            rate = r[i].work / t[i].run;
    }
    printf("%s in %s, %s; attention: %s; the best product at %.1f GFLOP/s\n", m->name,
           type == ZERO_F32 ? "f32" : "bf16", ops_product_path(s.o), ops_attention_path(s.o),
           rate * 1e-9);
    for (int i = 0; i < n; i++) {
        const double limit = r[i].work > 0 ? r[i].work / rate : t[i].limit;
        printf("  %-24s %8.2f ms a step  %5.1f %% of all  %5.1f %% of its limit (%s)\n", r[i].name,
               1e3 * t[i].run * r[i].calls, 100 * t[i].run * r[i].calls / all,
               100 * limit / t[i].run, r[i].work > 0 ? "products" : "a plain loop");
        if (r[i].work > 0) products += t[i].run * r[i].calls, work += r[i].work * r[i].calls;
    }
    printf("  %-24s %8.2f ms a step; products and attention %.1f %% of it, at %.1f GFLOP/s\n",
           "all", 1e3 * all, 100 * products / all, work / products * 1e-9);
    fflush(stdout);
    close_bench(&s);
}

int main(int argc, char **argv) {
    zero_type type = ZERO_F32;
    int said = 0;
#ifdef _OPENMP
    omp_set_num_threads(1);
#endif
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "bf16")) type = ZERO_BF16;
    for (int i = 1; i < argc; i++) {
        int known = !strcmp(argv[i], "bf16") || !strcmp(argv[i], "f32");
        for (int k = 0; k < MODELS; k++)
            if (!strcmp(argv[i], bench_models[k].name)) {
                bench_one(&bench_models[k], type);
                known = said = 1;
            }
        if (known) continue;
        fprintf(stderr, "bench_ops: %s is no model or type\n", argv[i]);
        return 2;
    }
    for (int k = 0; k < MODELS && !said; k++) bench_one(&bench_models[k], type);
    return 0;
}

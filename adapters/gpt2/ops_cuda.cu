/* ops_cuda.cu - ops.h on CUDA: matrix products by cuBLASLt (cuda_products.h), attention by
   attention_cuda.h, the rest by cuda_kernels.h.

   Build: nvcc -std=c++17 -O3 -fmad=false -c ops_cuda.cu; link: -lcublasLt -lcudart

   FUSED. A product adds its bias and its residual. In 16 bits and in TF32 it also applies GELU and
   keeps GELU's input, and in backward it multiplies by GELU's derivative. If cuBLASLt does not
   support this, a plain product and a kernel compute it. The first product of a shape finds out,
   and ops_product_path reports it, as well as a missing plain product. A separate kernel always
   sums the gradients of biases. An epilogue would round them to 16 bits before they are added in
   f32.

   A BLOCK'S LAUNCHES. Forward 7: norm, product, attention, product, norm, product, product.
   Backward of the second half 7: product, columns (GELU again, and the gradient of its bias),
   product of weights, columns, product of weights, product, norm. Of the first half 8: product of
   weights, columns, product, attention, product of weights, columns, product, norm. One more adds
   the partial sums of columns and norms. So a block has 23 launches, and more if attention needs
   more than one in each direction.

   ORDER. All work is enqueued on one stream. The CPU waits in ops_download, ops_upload and
   ops_take_sum, and in ops_take_batch if two batches are being copied. */
#include "ops.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime.h>

#include "attention_cuda.h"
#include "cuda_bytes.h"
#include "cuda_kernels.h"
#include "cuda_products.h"

#ifdef EMULATED_LAUNCH /* tests run kernels on the CPU */
#define OPS_LAUNCH    EMULATED_LAUNCH
#define OPS_RATE_SIZE 64
#else
#define OPS_LAUNCH(kernel, grid, block, shared, stream, ...)                                       \
    kernel<<<grid, block, shared, stream>>>(__VA_ARGS__)
#endif

#ifndef OPS_RATE_SIZE /* size of the matrices of ops_matmul_rate */
#define OPS_RATE_SIZE 8192
#endif

/* ---- context ------------------------------------------------------------------------------- */

enum {
    STAGINGS = 2,         /* most batches that are being copied */
    BLOCKS_PER_SM = 16,   /* in kernels that work row by row */
    MOST_ODD_WIDTH = 4096 /* most C of a norm, if its rows are no multiple of 16 bytes */
};

/* Host memory for a batch: tokens, targets, and the lists of embed_lists. */
typedef struct staging {
    int *memory;      /* pinned; NULL: not allocated yet */
    cudaEvent_t sent; /* its contents have been copied */
} staging;

typedef struct recorded {
    char *key;
    int seen;              /* 1: `key` is set */
    cudaGraphExec_t graph; /* recorded for that key; NULL: none */
} recorded;
enum { GRAPH_KEYS = 2 };
/* A place of ops_graphs: its last keys, because buffers of gradients alternate. */
typedef struct recorded_place {
    recorded of[GRAPH_KEYS];
    unsigned keys; /* so far: the next new one is of[keys % GRAPH_KEYS] */
} recorded_place;

struct ops_ctx {
    ops_limits limits;
    zero_type type, grad_type;
    cudaStream_t stream;
    unsigned processors; /* SMs */
    products matrices;
    struct attention *attend; /* NULL: limits.heads is 0 */
    char *memory;             /* device memory of the arrays below */
    void *workspace;          /* cuBLASLt's */
    float *partial;           /* sums of columns by parts, of all pending jobs */
    size_t partial_used;      /* floats in use */
    finish_jobs pending;      /* see ops_sums_begin */
    int held;
    float *segments;   /* (slots, width / 2) see embed_segment_kernel */
    int *lists;        /* of the last batch, as in a staging from `order` on */
    embed_lists embed; /* pointers into lists; order NULL: not sorted yet */
    staging stagings[STAGINGS];
    staging *last;          /* has the last batch */
    size_t last_rows;       /* rows of the last batch */
    unsigned batches;       /* number so far: the next one takes stagings[batches % STAGINGS] */
    int *chain;             /* CPU memory: (vocab + rows), see sort_tokens */
    double *sum;            /* pinned CPU memory, for ops_take_sum */
    recorded_place *graphs; /* [places] */
    char *keys;
    size_t places, key_bytes, launches;
    recorded *recording; /* the stream is being recorded for it; NULL: it is not */
    zero_result status;
    char sentence[OPS_SENTENCE];
};

static void fail(ops_ctx *o, zero_result status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Keeps the first error. */
static void fail(ops_ctx *o, zero_result status, const char *format, ...) {
    va_list list;
    if (o->status) return;
    va_start(list, format);
    (void)vsnprintf(o->sentence, sizeof o->sentence, format, list);
    va_end(list);
    o->status = status;
}

/* Returns 1 if the call succeeded; otherwise records the error. */
static int worked(ops_ctx *o, cudaError_t e, const char *call) {
    if (e == cudaSuccess) return 1;
    fail(o, e == cudaErrorMemoryAllocation ? ZERO_ERR_MEMORY : ZERO_ERR_DEVICE, "%s: %s", call,
         cudaGetErrorString(e));
    return 0;
}
#define WORKED(o, call) worked(o, call, #call)

/* Launches a kernel on the context's stream, and reports a refused launch at once. */
#define RUN(o, kernel, grid, block, ...)                                                           \
    do {                                                                                           \
        OPS_LAUNCH(kernel, grid, block, 0, (o)->stream, __VA_ARGS__);                              \
        (void)worked(o, cudaGetLastError(), "launch of " #kernel);                                 \
    } while (0)

/* Calls `use`, a macro of (NUM, W), for the context's type and rows of C numbers. */
#define FOR_ROWS(o, C, use)                                                                        \
    do {                                                                                           \
        const int wide = (C) % ((o)->type == ZERO_F32 ? 4 : 8) == 0;                               \
        if ((o)->type == ZERO_F32 && wide) use(ops_f32, 4);                                        \
        if ((o)->type == ZERO_F32 && !wide) use(ops_f32, 1);                                       \
        if ((o)->type == ZERO_BF16 && wide) use(ops_bf16, 8);                                      \
        if ((o)->type == ZERO_BF16 && !wide) use(ops_bf16, 1);                                     \
        if ((o)->type == ZERO_F16 && wide) use(ops_f16, 8);                                        \
        if ((o)->type == ZERO_F16 && !wide) use(ops_f16, 1);                                       \
    } while (0)
#define IN(NUM, p)  ((const typename NUM::word *)(p))
#define OUT(NUM, p) ((typename NUM::word *)(p))

static size_t least(size_t a, size_t b) { return a < b ? a : b; }
static size_t most(size_t a, size_t b) { return a > b ? a : b; }
static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

/* ---- memory -------------------------------------------------------------------------------- */

/* Cuts the context's memory, or, if o->memory is NULL, only measures it. Returns the bytes. */
static size_t lay_out(ops_ctx *o) {
    size_t part[CUDA_PARTS], from = 0;
    char *at[CUDA_PARTS];
    const size_t sum = cuda_parts(&o->limits, part);
    for (int i = 0; i < CUDA_PARTS; i++) {
        at[i] = o->memory ? o->memory + from : NULL;
        from += part[i];
    }
    o->workspace = at[0];
    o->partial = (float *)(void *)at[1];
    o->segments = (float *)(void *)at[2];
    o->lists = (int *)(void *)at[3];
    return sum;
}

static attention_shape attention_limits(const ops_limits *l) {
    const attention_shape shape = {l->batch, l->seq_len, l->heads, l->head_size};
    return shape;
}

size_t ops_scratch_bytes(const ops_limits *limits, const ops_settings *settings) {
    ops_ctx o;
    const attention_shape shape = attention_limits(limits);
    memset(&o, 0, sizeof o);
    o.limits = *limits;
    return lay_out(&o)
           + (limits->heads ? attention_scratch_bytes(&shape, settings->type, !settings->any_order)
                            : 0);
}

size_t ops_spare_bytes(const ops_limits *limits, const ops_settings *settings) {
    const attention_shape shape = attention_limits(limits);
    return limits->heads ? attention_spare_bytes(&shape, settings->type, !settings->any_order) : 0;
}

size_t ops_logits_budget(void) { return cuda_logits_budget(); }

void *ops_alloc(size_t bytes) {
    void *memory = NULL;
    if (cudaMalloc(&memory, bytes ? bytes : 1) == cudaSuccess) return memory;
    (void)cudaGetLastError(); /* the caller sees NULL */
    return NULL;
}

void ops_free(void *memory) {
    if (memory) (void)cudaFree(memory);
}

void ops_clear(ops_ctx *o, void *device, size_t bytes) {
    if (!o->status) (void)WORKED(o, cudaMemsetAsync(device, 0, bytes, o->stream));
}

void ops_copy(ops_ctx *o, void *to, const void *from, size_t bytes) {
    if (!o->status && bytes)
        (void)WORKED(o, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, o->stream));
}

void ops_upload(ops_ctx *o, void *device, const void *host, size_t bytes) {
    if (o->status || !bytes) return;
    if (WORKED(o, cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, o->stream)))
        (void)WORKED(o, cudaStreamSynchronize(o->stream));
}

void ops_download(ops_ctx *o, float *host, const void *device, zero_type type, size_t n) {
    const size_t bytes = n * zero_type_bytes(type);
    void *stored = type == ZERO_F32 ? host : malloc(bytes ? bytes : 1);
    if (!stored) fail(o, ZERO_ERR_MEMORY, "no memory to read %zu numbers back", n);
    if (!o->status && bytes
        && WORKED(o, cudaMemcpyAsync(stored, device, bytes, cudaMemcpyDeviceToHost, o->stream))
        && WORKED(o, cudaStreamSynchronize(o->stream)) && stored != host)
        zero_convert(host, ZERO_F32, stored, type, n);
    if (stored != host) free(stored);
}

/* ---- creating and destroying --------------------------------------------------------------- */

/* Checks the limits before anything is allocated. */
static void check_limits(ops_ctx *o) {
    const size_t wide = o->type == ZERO_F32 ? 4 : 8, width = o->limits.width / 4;
    const size_t widest = (size_t)NORM_THREADS * NORM_MOST * wide;
    if (width % wide == 0 ? width > widest : width > MOST_ODD_WIDTH)
        fail(o, ZERO_ERR_UNSUPPORTED,
             "%zu channels: on CUDA at most %d, or %zu if they are a multiple of %zu", width,
             MOST_ODD_WIDTH, widest, wide);
}

static void open_staging(ops_ctx *o) {
    const size_t ints = 2 * o->limits.rows + list_ints(o->limits.rows);
    for (int i = 0; i < STAGINGS && !o->status; i++) {
        staging *s = &o->stagings[i];
        if (!WORKED(o, cudaEventCreateWithFlags(&s->sent, cudaEventDisableTiming))) return;
        if (WORKED(o, cudaMallocHost((void **)&s->memory, ints * sizeof(int)))) continue;
        s->memory = NULL;
        (void)cudaEventDestroy(s->sent);
    }
    if (!o->status && !WORKED(o, cudaMallocHost((void **)&o->sum, sizeof *o->sum))) o->sum = NULL;
    o->chain = (int *)malloc((o->limits.vocab + o->limits.rows) * sizeof(int));
    if (!o->chain) fail(o, ZERO_ERR_MEMORY, "no memory to sort tokens");
}

static void open_device(ops_ctx *o) {
    int device = 0, processors = 1;
    if (!WORKED(o, cudaGetDevice(&device))
        || !WORKED(o, cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device)))
        return;
    o->processors = (unsigned)processors;
    const size_t bytes = lay_out(o);
    o->memory = (char *)ops_alloc(bytes);
    if (!o->memory) {
        fail(o, ZERO_ERR_MEMORY, "no memory on the GPU for %zu bytes of scratch memory", bytes);
        return;
    }
    (void)lay_out(o);
    open_staging(o);
}

static void open_libraries(ops_ctx *o, const ops_settings *settings) {
    if (o->status) return;
    zero_result result =
        products_open(&o->matrices, o->type, o->grad_type, settings->tf32, o->stream, o->workspace);
    if (result) fail(o, result, "%s", o->matrices.error);
    if (o->status || !o->limits.heads) return;
    const attention_shape shape = attention_limits(&o->limits);
    result = attention_create(&o->attend, &shape, o->type, o->stream, !settings->any_order);
    if (result) fail(o, result, "attention: %s", attention_error(o->attend));
}

zero_result ops_choose_products(products_choice *c, const char *path, const ops_layer *layers,
                                int n, int threads, char *why) {
    (void)layers;
    (void)n;
    (void)threads;
    memset(c, 0, sizeof *c);
    snprintf(c->name, sizeof c->name, "choice of cuBLASLt");
    if (!path[0]) return ZERO_OK;
    snprintf(why, OPS_SENTENCE, "%.150s: cuBLASLt chooses by itself which way products take", path);
    return ZERO_ERR_UNSUPPORTED;
}

void ops_take_products(ops_ctx *o, const products_choice *c) {
    (void)o;
    (void)c;
}

zero_result ops_create(ops_ctx **o, const ops_limits *limits, const ops_settings *settings,
                       char *why) {
    ops_ctx *made = (ops_ctx *)calloc(1, sizeof *made);
    *o = NULL;
    (void)snprintf(why, OPS_SENTENCE, "no memory for operations");
    if (!made) return ZERO_ERR_MEMORY;
    made->limits = *limits;
    made->type = settings->type;
    made->grad_type = settings->grad_type;
    made->stream = (cudaStream_t)settings->stream;
    check_limits(made);
    if (!made->status) open_device(made);
    open_libraries(made, settings);
    const zero_result result = made->status;
    (void)snprintf(why, OPS_SENTENCE, "%s", made->sentence);
    if (result)
        ops_destroy(made);
    else
        *o = made;
    return result;
}

void ops_destroy(ops_ctx *o) {
    if (!o) return;
    (void)cudaStreamSynchronize(o->stream);
    for (size_t i = 0; i < o->places; i++)
        for (int k = 0; k < GRAPH_KEYS; k++)
            if (o->graphs[i].of[k].graph) (void)cudaGraphExecDestroy(o->graphs[i].of[k].graph);
    free(o->graphs);
    free(o->keys);
    attention_destroy(o->attend);
    products_close(&o->matrices);
    for (int i = 0; i < STAGINGS; i++) {
        if (!o->stagings[i].memory) continue;
        (void)cudaFreeHost(o->stagings[i].memory);
        (void)cudaEventDestroy(o->stagings[i].sent);
    }
    if (o->sum) (void)cudaFreeHost(o->sum);
    ops_free(o->memory);
    free(o->chain);
    free(o);
}

const char *ops_product_path(const ops_ctx *o) { return o->matrices.path; }

const char *ops_attention_path(const ops_ctx *o) {
    return o->attend ? attention_path(o->attend) : "";
}

zero_result ops_status(const ops_ctx *o, const char **sentence) {
    if (sentence) *sentence = o->sentence;
    return o->status;
}

/* ---- graphs -------------------------------------------------------------------------------- */

zero_result ops_graphs(ops_ctx *o, size_t places, size_t bytes) {
    o->graphs = (recorded_place *)calloc(places, sizeof *o->graphs);
    o->keys = (char *)malloc(places * GRAPH_KEYS * bytes);
    if (!o->graphs || !o->keys) {
        fail(o, ZERO_ERR_MEMORY, "no memory for %zu graphs", places);
        return o->status;
    }
    for (size_t i = 0; i < places * GRAPH_KEYS; i++)
        o->graphs[i / GRAPH_KEYS].of[i % GRAPH_KEYS].key = o->keys + i * bytes;
    o->places = places;
    o->key_bytes = bytes;
    return ZERO_OK;
}

int ops_graph_begin(ops_ctx *o, size_t place, const void *key) {
    if (o->status || place >= o->places) return 0;
    recorded_place *at = &o->graphs[place];
    recorded *g = NULL;
    for (recorded *one = at->of; one < at->of + GRAPH_KEYS; one++)
        if (one->seen && memcmp(one->key, key, o->key_bytes) == 0) g = one;
    if (g && g->graph) {
        o->launches++;
        (void)WORKED(o, cudaGraphLaunch(g->graph, o->stream));
        return 1;
    }
    if (g) { /* other threads may use CUDA meanwhile */
        if (WORKED(o, cudaStreamBeginCapture(o->stream, cudaStreamCaptureModeThreadLocal)))
            o->recording = g;
        return 0;
    }
    g = &at->of[at->keys++ % GRAPH_KEYS];
    if (g->graph) (void)WORKED(o, cudaGraphExecDestroy(g->graph));
    g->graph = NULL;
    memcpy(g->key, key, o->key_bytes);
    g->seen = 1;
    return 0;
}

/* Ends the recording and launches the graph, because recorded operations have not run yet. */
void ops_graph_end(ops_ctx *o) {
    cudaGraph_t graph = NULL;
    recorded *g = o->recording;
    if (!g) return;
    o->recording = NULL;
    if (WORKED(o, cudaStreamEndCapture(o->stream, &graph))
        && WORKED(o, cudaGraphInstantiate(&g->graph, graph, 0))) {
        o->launches++;
        (void)WORKED(o, cudaGraphLaunch(g->graph, o->stream));
    }
    if (graph) (void)cudaGraphDestroy(graph);
}

size_t ops_graph_launches(const ops_ctx *o) { return o->launches; }

/* ---- sums of losses ------------------------------------------------------------------------ */

void ops_sum(ops_ctx *o, double *total, const float *x, size_t n) {
    if (!o->status && n) RUN(o, sum_kernel, 1, SUM_THREADS, total, x, n);
}

double ops_take_sum(ops_ctx *o, double *total) {
    if (o->status
        || !WORKED(o,
                   cudaMemcpyAsync(o->sum, total, sizeof *total, cudaMemcpyDeviceToHost, o->stream))
        || !WORKED(o, cudaMemsetAsync(total, 0, sizeof *total, o->stream))
        || !WORKED(o, cudaStreamSynchronize(o->stream)))
        return 0;
    return *o->sum;
}

void ops_hash(ops_ctx *o, uint64_t *sum, const void *x, size_t bytes, uint64_t seed) {
    const size_t each = (size_t)SUM_THREADS * sizeof(uint64_t), blocks = (bytes + each - 1) / each;
    if (o->status || !bytes) return;
    RUN(o, hash_kernel, (unsigned)least(blocks, (size_t)o->processors * BLOCKS_PER_SM), SUM_THREADS,
        (unsigned long long *)sum, (const unsigned short *)x, bytes / 2, seed);
}

/* ---- embeddings ---------------------------------------------------------------------------- */

/* Returns the lists of R rows, in CPU or device memory. */
static embed_lists lists_at(int *memory, size_t R) {
    embed_lists l;
    l.order = memory;
    l.start = memory + R;
    l.slot = memory + R + (R + 1);
    l.longs = memory + R + (R + 1) + R;
    l.segments = l.count = 0;
    return l;
}

/* Cuts the rows of one token, order[first, end), into segments. If there are several, each gets a
   slot, and the token is added to `longs`. */
static void cut_segments(int *memory, size_t R, embed_lists *l, int *slots, int token, int first,
                         int end) {
    int *start = memory + R, *slot = start + R + 1, *longs = slot + R;
    const int several = end - first > SEGMENT_ROWS;
    if (several) {
        longs[3 * l->count] = token;
        longs[3 * l->count + 1] = *slots;
    }
    for (int at = first; at < end; at += SEGMENT_ROWS) {
        start[l->segments] = at;
        slot[l->segments++] = several ? (*slots)++ : -1;
    }
    if (several) longs[3 * l->count++ + 2] = *slots;
}

/* Fills the lists. It chains the rows of each token (first[token], then next[row], and -1 at the
   end), and writes the chains in the order of their first rows. So it makes no pass over the
   vocabulary. */
static embed_lists sort_tokens(int *memory, int *chain, size_t vocab, const int *tokens, size_t R) {
    int *first = chain, *next = chain + vocab;
    embed_lists l = lists_at(memory, R);
    int at = 0, slots = 0;
    for (size_t r = 0; r < R; r++) first[tokens[r]] = -1;
    for (size_t r = R; r-- > 0;) {
        next[r] = first[tokens[r]];
        first[tokens[r]] = (int)r;
    }
    for (size_t r = 0; r < R; r++) {
        if (first[tokens[r]] != (int)r) continue;
        const int begin = at;
        for (int row = (int)r; row >= 0; row = next[row]) memory[at++] = row;
        cut_segments(memory, R, &l, &slots, tokens[r], begin, at);
    }
    memory[R + (size_t)l.segments] = at;
    return l;
}

void ops_take_batch(ops_ctx *o, int *tokens, int *targets, const int *host_tokens,
                    const int *host_targets, size_t R) {
    staging *s = &o->stagings[o->batches++ % STAGINGS];
    const size_t bytes = R * sizeof(int);
    if (o->status || !R) return;
    if (R > o->limits.rows) {
        fail(o, ZERO_ERR_ARGUMENT, "a batch of %zu tokens exceeds %zu", R, o->limits.rows);
        return;
    }
    if (!WORKED(o, cudaEventSynchronize(s->sent)))
        return; /* the copy of the batch before the last */
    memcpy(s->memory, host_tokens, bytes);
    if (targets) memcpy(s->memory + R, host_targets, bytes);
    (void)WORKED(o, cudaMemcpyAsync(tokens, s->memory, bytes, cudaMemcpyHostToDevice, o->stream));
    if (targets)
        (void)WORKED(
            o, cudaMemcpyAsync(targets, s->memory + R, bytes, cudaMemcpyHostToDevice, o->stream));
    (void)WORKED(o, cudaEventRecord(s->sent, o->stream));
    o->last = s;
    o->last_rows = R;
    o->embed.order = NULL;
}

/* Copies the lists of the last batch to the device. Only backward needs them; by then the GPU has
   work from the rest of the step while the CPU sorts. */
static void send_lists(ops_ctx *o) {
    const size_t R = o->last_rows;
    int *lists = o->last->memory + 2 * R;
    const embed_lists sorted = sort_tokens(lists, o->chain, o->limits.vocab, o->last->memory, R);
    o->embed = lists_at(o->lists, R);
    o->embed.segments = sorted.segments;
    o->embed.count = sorted.count;
    (void)WORKED(o, cudaMemcpyAsync(o->lists, lists, list_ints(R) * sizeof(int),
                                    cudaMemcpyHostToDevice, o->stream));
    (void)WORKED(o, cudaEventRecord(o->last->sent, o->stream));
}

/* Return the threads of a block that works on rows of n pieces, and the blocks of its launch. */
static unsigned row_threads(size_t n) { return (unsigned)least(round_up(most(n, 1), 32), 256); }
static unsigned row_blocks(const ops_ctx *o, size_t R) {
    return (unsigned)least(R, (size_t)o->processors * BLOCKS_PER_SM);
}

/* Copies words of the largest type that divides `bytes` and both addresses. */
void ops_transpose(ops_ctx *o, void *to, const void *from, size_t rows, size_t columns,
                   size_t bytes) {
    const size_t odd = bytes | (size_t)(uintptr_t)to | (size_t)(uintptr_t)from;
    const size_t word = odd % 8 == 0 ? 8 : odd % 4 == 0 ? 4 : 2, n = bytes / word;
    const unsigned grid = row_blocks(o, (rows * columns * n + 255) / 256);
    if (o->status || !rows || !columns || !n) return;
    if (word == 8)
        RUN(o, (transpose_kernel<unsigned long long>), grid, 256, (unsigned long long *)to,
            (const unsigned long long *)from, rows, columns, n);
    else if (word == 4)
        RUN(o, (transpose_kernel<unsigned>), grid, 256, (unsigned *)to, (const unsigned *)from,
            rows, columns, n);
    else
        RUN(o, (transpose_kernel<unsigned short>), grid, 256, (unsigned short *)to,
            (const unsigned short *)from, rows, columns, n);
}

void ops_embed(ops_ctx *o, void *out, const int *tokens, const void *wte, const void *wpe, size_t R,
               size_t T, size_t C) {
    if (o->status || !R) return;
#define USE(NUM, W)                                                                                \
    RUN(o, (embed_kernel<NUM, W>), row_blocks(o, R), row_threads(C / (W)), (NUM::word *)out,       \
        tokens, (const NUM::word *)wte, (const NUM::word *)wpe, R, T, C)
    FOR_ROWS(o, C, USE);
#undef USE
}

/* Sorts the tokens of the last batch, if that was not done yet. Returns 1 if it has these rows. */
static int lists_are_sent(ops_ctx *o, size_t R, size_t C) {
    if (o->status || !R) return 0;
    if (C > o->limits.width / 2 || R != o->last_rows) {
        fail(o, ZERO_ERR_ARGUMENT,
             "the gradient of embeddings: %zu rows of %zu channels are not "
             "those of the last batch",
             R, C);
        return 0;
    }
    if (!o->embed.order) send_lists(o);
    return !o->status;
}

void ops_tile_rows_backward(ops_ctx *o, void *dw, const void *dout, const int *tokens,
                            const ops_tile *t, size_t R, size_t C) {
    const embed_lists *l = &o->embed;
    const size_t blocks = (size_t)o->processors * BLOCKS_PER_SM;
    if (!lists_are_sent(o, R, C)) return;
#define USE(NUM, W)                                                                                \
    RUN(o, (embed_segment_kernel<NUM, W>), (unsigned)least((size_t)l->segments, 4 * blocks),       \
        row_threads(C / (W)), dw, o->grad_type, o->segments, (const NUM::word *)dout, tokens, *l,  \
        *t, C)
    FOR_ROWS(o, C, USE);
#undef USE
    if (l->count)
        RUN(o, embed_long_kernel, (unsigned)least((size_t)l->count, blocks), row_threads(C), dw,
            o->grad_type, (const float *)o->segments, *l, *t, C);
}

void ops_places_backward(ops_ctx *o, void *dwpe, const void *dout, size_t R, size_t T, size_t C) {
    if (o->status || !R) return;
#define USE(NUM, W)                                                                                \
    RUN(o, (embed_place_kernel<NUM, W>), (unsigned)least(T, R), row_threads(C / (W)), dwpe,        \
        o->grad_type, (const NUM::word *)dout, R, T, C)
    FOR_ROWS(o, C, USE);
#undef USE
}

void ops_embed_backward(ops_ctx *o, void *dwte, void *dwpe, const void *dout, const int *tokens,
                        size_t R, size_t T, size_t C) {
    const ops_tile all = {0, o->limits.vocab, o->limits.vocab};
    ops_tile_rows_backward(o, dwte, dout, tokens, &all, R, C);
    ops_places_backward(o, dwpe, dout, R, T, C);
}

void ops_tile_rows(ops_ctx *o, void *out, const int *tokens, const void *w, const ops_tile *t,
                   size_t R, size_t C) {
    if (o->status || !R) return;
#define USE(NUM, W)                                                                                \
    RUN(o, (tile_rows_kernel<NUM, W>), row_blocks(o, R), row_threads(C / (W)), (NUM::word *)out,   \
        tokens, (const NUM::word *)w, *t, R, C)
    FOR_ROWS(o, C, USE);
#undef USE
}

void ops_add_places(ops_ctx *o, void *out, const void *wpe, size_t R, size_t T, size_t C) {
    if (o->status || !R) return;
#define USE(NUM, W)                                                                                \
    RUN(o, (add_places_kernel<NUM, W>), row_blocks(o, R), row_threads(C / (W)), (NUM::word *)out,  \
        (const NUM::word *)wpe, R, T, C)
    FOR_ROWS(o, C, USE);
#undef USE
}

/* ---- biases and GELU ----------------------------------------------------------------------- */

void ops_add_bias(ops_ctx *o, void *out, const void *x, const void *y, const void *bias, size_t R,
                  size_t C) {
    if (o->status || !R) return;
#define USE(NUM, W)                                                                                \
    RUN(o, (add_bias_kernel<NUM, W>), row_blocks(o, R), row_threads(C / (W)), (NUM::word *)out,    \
        (const NUM::word *)x, (const NUM::word *)y, (const NUM::word *)bias, R, C)
    FOR_ROWS(o, C, USE);
#undef USE
}

/* Adds all pending sums to their gradients, in one launch. */
static void finish_pending(ops_ctx *o) {
    const dim3 block(COLUMN_LANES, COLUMN_ROWS);
    if (!o->status && o->pending.count)
        RUN(o, finish_kernel, o->pending.job[o->pending.count - 1].end, block, o->pending,
            o->grad_type);
    o->pending.count = 0;
    o->partial_used = 0;
}

/* Returns memory for partial sums (parts, n) of a gradient. Jobs of one launch run at the same
   time, so a gradient must not be in a launch twice. */
static float *partial_room(ops_ctx *o, const void *grad, size_t parts, size_t n) {
    const size_t floats = round_up(parts * n, 64);
    int again = o->partial_used + floats > partial_floats(&o->limits);
    for (int i = 0; i < o->pending.count; i++) again |= o->pending.job[i].a == grad;
    if (again) finish_pending(o);
    if (floats > partial_floats(&o->limits))
        fail(o, ZERO_ERR_ARGUMENT, "sums of %zu columns exceed a width of %zu", n, o->limits.width);
    float *room = o->partial + o->partial_used;
    o->partial_used += floats;
    return room;
}

/* Adds a kernel's partial sums to gradients: at once, or in ops_sums_end. */
static void finish(ops_ctx *o, void *a, void *b, size_t split, const float *partial, size_t parts,
                   size_t n) {
    finish_job *job = &o->pending.job[o->pending.count];
    const unsigned before = o->pending.count ? job[-1].end : 0;
    job->a = a;
    job->b = b;
    job->partial = partial;
    job->split = split;
    job->parts = parts;
    job->n = n;
    job->end = before + (unsigned)((n + COLUMN_LANES - 1) / COLUMN_LANES);
    o->pending.count++;
    if (!o->held || o->pending.count == FINISH_JOBS) finish_pending(o);
}

void ops_sums_begin(ops_ctx *o) { o->held = 1; }

void ops_sums_end(ops_ctx *o) {
    o->held = 0;
    finish_pending(o);
}

/* dbias += the sums of the columns of d; see column_pass. */
static void columns(ops_ctx *o, column_pass pass, void *dbias, void *d, void *out, const void *x,
                    const void *bias, size_t R, size_t C) {
    const dim3 block(COLUMN_LANES, COLUMN_ROWS);
    float *partial = NULL;
    size_t parts = 0;
    if (o->status || !R) return;
#define PASS(NUM, W, P)                                                                            \
    RUN(o, (column_kernel<NUM, W, P>), grid, block, partial, (NUM::word *)d, (NUM::word *)out,     \
        (const NUM::word *)x, (const NUM::word *)bias, R, C)
#define USE(NUM, W)                                                                                \
    do {                                                                                           \
        const size_t strips = (C + COLUMN_LANES * (W)-1) / (COLUMN_LANES * (W));                   \
        parts = most(least(COLUMN_BLOCKS / strips, R / COLUMN_ROWS), 1);                           \
        partial = partial_room(o, dbias, parts, C);                                                \
        if (o->status) return;                                                                     \
        const dim3 grid((unsigned)strips, (unsigned)parts);                                        \
        if (pass == COLUMN_SUM) PASS(NUM, W, COLUMN_SUM);                                          \
        if (pass == COLUMN_GELU_AGAIN) PASS(NUM, W, COLUMN_GELU_AGAIN);                            \
        if (pass == COLUMN_GELU_BACKWARD) PASS(NUM, W, COLUMN_GELU_BACKWARD);                      \
    } while (0)
    FOR_ROWS(o, C, USE);
#undef USE
#undef PASS
    finish(o, dbias, NULL, C, partial, parts, C);
}

void ops_bias_backward(ops_ctx *o, void *dbias, const void *dy, size_t R, size_t C) {
    columns(o, COLUMN_SUM, dbias, (void *)dy, NULL, NULL, NULL, R, C); /* only reads */
}

void ops_gelu(ops_ctx *o, void *out, const void *x, const void *bias, size_t R, size_t C) {
    if (o->status || !R) return;
#define USE(NUM, W)                                                                                \
    RUN(o, (gelu_kernel<NUM, W>), row_blocks(o, R), row_threads(C / (W)), (NUM::word *)out,        \
        (const NUM::word *)x, (const NUM::word *)bias, R, C)
    FOR_ROWS(o, C, USE);
#undef USE
}

void ops_gelu_backward(ops_ctx *o, void *d, void *dbias, void *out, const void *x, const void *bias,
                       size_t R, size_t C) {
    columns(o, COLUMN_GELU_BACKWARD, dbias, d, out, x, bias, R, C);
}

/* ---- linear layers ------------------------------------------------------------------------- */

static product_key key_of(size_t m, size_t n, size_t k, int ta, int tb, product_extra extra,
                          int add) {
    product_key key;
    memset(&key, 0, sizeof key);
    key.m = m;
    key.n = n;
    key.k = k;
    key.ta = ta;
    key.tb = tb;
    key.extra = extra;
    key.add = add;
    return key;
}

static product_operands operands(const void *a, const void *b, void *d) {
    product_operands v;
    memset(&v, 0, sizeof v);
    v.a = a;
    v.b = b;
    v.d = d;
    return v;
}

/* Returns 0 if cuBLASLt cannot compute the product in one call, otherwise 1, also after an error.
 */
static int run_product(ops_ctx *o, const product_key *key, const product_operands *v) {
    int done = 0;
    if (o->status || !key->m || !key->n || !key->k) return 1;
    const zero_result result = products_run(&o->matrices, *key, v, &done);
    if (result)
        fail(o, result, "a product of (%zu, %zu) and (%zu, %zu): %s", key->n, key->k, key->k,
             key->m, o->matrices.error);
    return done || result;
}

/* Computes a product without extras, or one that is added to an activation, which always works. */
static void run_plain(ops_ctx *o, const product_key *key, const product_operands *v) {
    const int adds = key->add || key->extra == PRODUCT_ADD;
    const zero_type to = key->extra == PRODUCT_ADD ? o->type : o->grad_type;
    const plain_product p = {key->m, key->n, key->k, key->ta, key->tb};
    const size_t blocks = (p.m * p.n + 255) / 256;
    if (run_product(o, key, v)) return;
#define USE(NUM, W)                                                                                \
    RUN(o, product_kernel<NUM>, row_blocks(o, blocks), 256, v->d, adds, to,                        \
        (const NUM::word *)v->a, (const NUM::word *)v->b, p)
    if (o->type == ZERO_F32) USE(ops_f32, 1);
    if (o->type == ZERO_BF16) USE(ops_bf16, 1);
    if (o->type == ZERO_F16) USE(ops_f16, 1);
#undef USE
}

void ops_linear(ops_ctx *o, void *y, const void *x, const void *w, const void *bias, size_t R,
                size_t I, size_t O) {
    product_operands v = operands(w, x, y);
    v.bias = bias;
    product_key key = key_of(O, R, I, 1, 0, PRODUCT_BIAS, 0);
    if (bias && run_product(o, &key, &v)) return;
    key.extra = PRODUCT_PLAIN;
    v.bias = NULL;
    run_plain(o, &key, &v);
    if (bias) ops_add_bias(o, y, NULL, y, bias, R, O);
}

void ops_linear_dx(ops_ctx *o, void *dx, const void *dy, const void *w, size_t R, size_t I,
                   size_t O) {
    const product_operands v = operands(w, dy, dx);
    const product_key key = key_of(I, R, O, 0, 0, PRODUCT_PLAIN, 0);
    run_plain(o, &key, &v);
}

void ops_linear_add(ops_ctx *o, void *y, const void *x, const void *w, size_t R, size_t I,
                    size_t O) {
    const product_operands v = operands(w, x, y);
    const product_key key = key_of(O, R, I, 1, 0, PRODUCT_ADD, 0);
    run_plain(o, &key, &v);
}

void ops_linear_dx_add(ops_ctx *o, void *dx, const void *dy, const void *w, size_t R, size_t I,
                       size_t O) {
    const product_operands v = operands(w, dy, dx);
    const product_key key = key_of(I, R, O, 0, 0, PRODUCT_ADD, 0);
    run_plain(o, &key, &v);
}

int ops_adds_bias(void) { return 1; }

void ops_scale(ops_ctx *o, void *x, float factor, size_t R, size_t C) {
    if (o->status || !R) return;
#define USE(NUM, W)                                                                                \
    RUN(o, (scale_kernel<NUM, W>), row_blocks(o, R), row_threads(C / (W)), (NUM::word *)x, factor, \
        R, C)
    FOR_ROWS(o, C, USE);
#undef USE
}

void ops_linear_dw(ops_ctx *o, void *dw, void *dbias, const void *dy, const void *x, size_t R,
                   size_t I, size_t O) {
    const product_operands v = operands(x, dy, dw);
    const product_key key = key_of(I, O, R, 0, 1, PRODUCT_PLAIN, 1);
    run_plain(o, &key, &v);
    if (dbias) ops_bias_backward(o, dbias, dy, R, O);
}

/* Computes gelu even with `again`, because another product could give other bits. */
void ops_linear_gelu(ops_ctx *o, void *fch, void *gelu, int again, const void *x, const void *w,
                     const void *bias, size_t R, size_t I, size_t O) {
    product_operands v = operands(w, x, gelu);
    const product_key key = key_of(O, R, I, 1, 0, PRODUCT_GELU, 0);
    (void)again;
    v.bias = bias;
    v.aux = fch;
    if (run_product(o, &key, &v)) return;
    ops_linear(o, fch, x, w, bias, R, I, O);
    ops_gelu(o, gelu, fch, NULL, R, O);
}

/* fch contains its bias. */
void ops_linear_dx_gelu(ops_ctx *o, void *dfch, void *dbias, void *gelu, int kept, const void *dy,
                        const void *w, const void *fch, const void *bias, size_t R, size_t I,
                        size_t O) {
    product_operands v = operands(w, dy, dfch);
    const product_key key = key_of(I, R, O, 0, 0, PRODUCT_GELU_BACKWARD, 0);
    (void)bias;
    v.aux = (void *)fch; /* the product only reads it */
    if (run_product(o, &key, &v)) {
        columns(o, kept ? COLUMN_SUM : COLUMN_GELU_AGAIN, dbias, dfch, gelu, fch, NULL, R, I);
        return;
    }
    ops_linear_dx(o, dfch, dy, w, R, I, O);
    ops_gelu_backward(o, dfch, dbias, gelu, fch, NULL, R, I);
}

void ops_linear_residual(ops_ctx *o, void *out, const void *x, const void *in, const void *w,
                         const void *bias, size_t R, size_t I, size_t O) {
    product_operands v = operands(w, in, out);
    product_key key = key_of(O, R, I, 1, 0, PRODUCT_RESIDUAL, 0);
    v.bias = bias;
    v.c = x;
    if (run_product(o, &key, &v)) return;
    key.extra = PRODUCT_PLAIN;
    v.bias = v.c = NULL;
    run_plain(o, &key, &v);
    ops_add_bias(o, out, x, out, bias, R, O);
}

/* ---- layer norm ---------------------------------------------------------------------------- */

void ops_norm(ops_ctx *o, void *out, float *mean, float *rstd, const void *x, const void *w,
              const void *b, size_t R, size_t C) {
    const dim3 block(32, NORM_WARPS);
    const unsigned grid = row_blocks(o, (R + NORM_WARPS - 1) / NORM_WARPS);
    if (o->status || !R) return;
#define USE(NUM, W)                                                                                \
    RUN(o, (norm_kernel<NUM, W, false>), grid, block, (NUM::word *)out, mean, rstd,                \
        (const NUM::word *)x, (const NUM::word *)w, (const NUM::word *)b, R, C)
    FOR_ROWS(o, C, USE);
#undef USE
}

void ops_norm_again(ops_ctx *o, void *out, const float *mean, const float *rstd, const void *x,
                    const void *w, const void *b, size_t R, size_t C) {
    const dim3 block(32, NORM_WARPS);
    const unsigned grid = row_blocks(o, (R + NORM_WARPS - 1) / NORM_WARPS);
    if (o->status || !R) return;
#define USE(NUM, W)                                                                                \
    RUN(o, (norm_kernel<NUM, W, true>), grid, block, (NUM::word *)out, (float *)mean,              \
        (float *)rstd, (const NUM::word *)x, (const NUM::word *)w, (const NUM::word *)b, R, C)
    FOR_ROWS(o, C, USE); /* the kernel only reads mean and rstd */
#undef USE
}

/* Returns the threads of a block: as many as a row needs, with *K columns each, times as many rows
   as 512 threads can take. */
static dim3 norm_block(size_t pieces, int *K) {
    *K = pieces <= NORM_THREADS ? 1 : pieces <= 2 * NORM_THREADS ? 2 : NORM_MOST;
    const size_t x = round_up((pieces + (size_t)*K - 1) / (size_t)*K, 32);
    return dim3((unsigned)x, (unsigned)most(least(512 / x, 8), 1));
}

/* Returns the blocks of the launch: at most as many as run on the GPU at once, because a second
   round with few blocks would leave most of it idle. */
static size_t norm_parts(const ops_ctx *o, dim3 block, size_t R) {
    const size_t held = o->processors * (NORM_HELD / (block.x * block.y));
    return least((R + block.y - 1) / block.y, least(held, NORM_PARTS));
}

void ops_norm_backward(ops_ctx *o, void *dx, void *dw, void *db, const void *dout, const void *x,
                       const float *mean, const float *rstd, const void *w, int store, size_t R,
                       size_t C) {
    float *partial = NULL;
    size_t parts = 0;
    if (o->status || !R) return;
#define WITH(NUM, W, K)                                                                            \
    RUN(o, (norm_backward_kernel<NUM, W, K>), (unsigned)parts, block, (NUM::word *)dx, partial,    \
        (const NUM::word *)dout, (const NUM::word *)x, mean, rstd, (const NUM::word *)w, store, R, \
        C)
#define USE(NUM, W)                                                                                \
    do {                                                                                           \
        int K;                                                                                     \
        const dim3 block = norm_block(C / (W), &K);                                                \
        parts = norm_parts(o, block, R);                                                           \
        partial = partial_room(o, dw, parts, 2 * C);                                               \
        if (o->status) return;                                                                     \
        if (K == 1) WITH(NUM, W, 1);                                                               \
        if (K == 2) WITH(NUM, W, 2);                                                               \
        if (K == NORM_MOST) WITH(NUM, W, NORM_MOST);                                               \
    } while (0)
    FOR_ROWS(o, C, USE);
#undef USE
#undef WITH
    finish(o, dw, db, C, partial, parts, 2 * C);
}

/* ---- attention ----------------------------------------------------------------------------- */

static attention_shape shape_of(const ops_heads *s) {
    const attention_shape shape = {s->batch, s->seq_len, s->heads, s->head_size};
    return shape;
}

static void attended(ops_ctx *o, zero_result result) {
    if (result) fail(o, result, "attention: %s", attention_error(o->attend));
}

/* Returns 1 if the call has rows, and they are within the limits. */
static int attention_fits(ops_ctx *o, const ops_heads *s) {
    if (o->status || !s->batch) return 0;
    if (s->seq_len > o->limits.seq_len || s->head_size > o->limits.head_size || !o->attend)
        fail(o, ZERO_ERR_ARGUMENT,
             "attention over %zu tokens with heads of %zu exceeds %zu and %zu", s->seq_len,
             s->head_size, o->limits.seq_len, o->limits.head_size);
    return !o->status;
}

/* qkv contains its bias: see ops_linear. */
void ops_attention(ops_ctx *o, void *out, float *lse, const void *qkv, const void *bias,
                   const ops_heads *s) {
    const attention_shape shape = shape_of(s);
    (void)bias;
    if (attention_fits(o, s)) attended(o, attention_forward(o->attend, out, lse, qkv, &shape));
}

void ops_attention_backward(ops_ctx *o, void *dqkv, const void *dout, const void *out,
                            const float *lse, const void *qkv, const void *bias,
                            const ops_heads *s) {
    const attention_shape shape = shape_of(s);
    (void)bias;
    if (attention_fits(o, s))
        attended(o, attention_backward(o->attend, dqkv, dout, out, lse, qkv, &shape));
}

/* ---- cross entropy ------------------------------------------------------------------------- */

void ops_cross_entropy(ops_ctx *o, float *losses, void *logits, const int *targets, int train,
                       float scale, size_t R, size_t V, size_t Vp) {
    if (o->status || !R) return;
#define USE(NUM, W)                                                                                \
    RUN(o, (cross_entropy_kernel<NUM, W>), (unsigned)R,                                            \
        (unsigned)least(round_up(Vp / (W), 32), CLASSIFIER_THREADS), losses, (NUM::word *)logits,  \
        targets, train, scale, V, Vp)
    FOR_ROWS(o, Vp, USE);
#undef USE
}

/* ---- cross entropy, tile by tile ----------------------------------------------------------- */

/* Returns the threads of a block that has a row of logits. */
static unsigned logit_threads(size_t pieces) {
    return (unsigned)least(round_up(most(pieces, 1), 32), CLASSIFIER_THREADS);
}

void ops_softmax_tile(ops_ctx *o, const ops_softmax *s, void *logits, const int *targets,
                      const ops_tile *t, int train, size_t R) {
    if (o->status || !R) return;
#define USE(NUM, W)                                                                                \
    RUN(o, (softmax_tile_kernel<NUM, W>), (unsigned)R, logit_threads(t->rows / (W)), *s,           \
        (NUM::word *)logits, targets, *t, train)
    FOR_ROWS(o, t->rows, USE);
#undef USE
}

void ops_softmax_add(ops_ctx *o, float *mean, const ops_softmax *s, const void *x,
                     const ops_tile *t, size_t R, size_t C) {
    if (o->status || !R) return;
#define USE(NUM, W)                                                                                \
    RUN(o, (softmax_add_kernel<NUM, W>), row_blocks(o, R), row_threads(C / (W)), mean, s->factor,  \
        (const NUM::word *)x, t->first == 0, R, C)
    FOR_ROWS(o, C, USE);
#undef USE
}

void ops_softmax_begin(ops_ctx *o, const ops_softmax *s, size_t R) {
    if (!o->status && R) RUN(o, softmax_begin_kernel, row_blocks(o, (R + 255) / 256), 256, *s, R);
}

void ops_softmax_meet(ops_ctx *o, const ops_softmax *s, const float *most, size_t R) {
    if (!o->status && R)
        RUN(o, softmax_meet_kernel, row_blocks(o, (R + 255) / 256), 256, *s, most, R);
}

void ops_softmax_share(ops_ctx *o, const ops_softmax *s, size_t R) {
    if (!o->status && R) RUN(o, softmax_share_kernel, row_blocks(o, (R + 255) / 256), 256, *s, R);
}

void ops_softmax_end(ops_ctx *o, const ops_softmax *s, size_t R) {
    if (!o->status && R) RUN(o, softmax_end_kernel, row_blocks(o, (R + 255) / 256), 256, *s, R);
}

void ops_softmax_dx(ops_ctx *o, void *dx, const float *mean, const ops_softmax *s, float scale,
                    size_t R, size_t C) {
    if (o->status || !R) return;
#define USE(NUM, W)                                                                                \
    RUN(o, (softmax_dx_kernel<NUM, W>), row_blocks(o, R), row_threads(C / (W)), (NUM::word *)dx,   \
        mean, (const float *)s->sum, scale, R, C)
    FOR_ROWS(o, C, USE);
#undef USE
}

void ops_softmax_backward(ops_ctx *o, void *logits, const ops_softmax *s, const int *targets,
                          const ops_tile *t, float scale, size_t R) {
    if (o->status || !R) return;
#define USE(NUM, W)                                                                                \
    RUN(o, (softmax_backward_kernel<NUM, W>), (unsigned)R, logit_threads(t->rows / (W)),           \
        (NUM::word *)logits, *s, targets, *t, scale)
    FOR_ROWS(o, t->rows, USE);
#undef USE
}

/* ---- figures ------------------------------------------------------------------------------- */

/* Dense TFLOP/s that manufacturers state for products that add in f32, without sparsity: f16 and
   bf16, TF32, f32. The first row counts that has the last characters of a word of the GPU's name.
 */
static const struct card_rate {
    const char *name;
    double half, tf32, f32;
} card_rates[] = {{"GB200", 2500, 1250, 80},
                  {"B200", 2250, 1125, 75},
                  {"B100", 1750, 875, 60},
                  {"H100 PCIe", 756, 378, 51},
                  {"H100 NVL", 835, 417, 60},
                  {"H100", 989, 494, 67},
                  {"H200 NVL", 835, 417, 60},
                  {"H200", 989, 494, 67},
                  {"H800", 989, 494, 67},
                  {"H20", 148, 74, 44},
                  {"A100", 312, 156, 19.5},
                  {"A800", 312, 156, 19.5},
                  {"L40S", 362, 183, 91.6},
                  {"L40", 181, 90.5, 90.5},
                  {"L4", 121, 60, 30.3},
                  {"A40", 149.7, 74.8, 37.4},
                  {"A10G", 70, 35, 35},
                  {"A10", 125, 62.5, 31.2},
                  {"RTX A6000", 154.8, 77.4, 38.7},
                  {"RTX 6000 Ada", 364.2, 182.1, 91.1},
                  {"RTX 5090", 209.5, 104.8, 104.8},
                  {"RTX 4090", 165.2, 82.6, 82.6},
                  {"RTX 3090", 71, 35.6, 35.6}};

/* Returns NULL for a GPU that the table lacks, and for a part of a GPU (MIG). */
static const card_rate *find_card(const char *name) {
    if (strstr(name, "MIG")) return NULL;
    for (size_t i = 0; i < sizeof card_rates / sizeof *card_rates; i++) {
        const char *at = strstr(name, card_rates[i].name);
        if (at && !isalnum((unsigned char)at[strlen(card_rates[i].name)])) return &card_rates[i];
    }
    return NULL;
}

double ops_peak_rate(zero_type type, int tf32) {
    cudaDeviceProp properties;
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess
        || cudaGetDeviceProperties(&properties, device) != cudaSuccess) {
        (void)cudaGetLastError();
        return 0;
    }
    const card_rate *card = find_card(properties.name);
    if (!card) return 0;
    return 1e12 * (type != ZERO_F32 ? card->half : tf32 ? card->tf32 : card->f32);
}

/* Returns the seconds of the fastest of several products of n x n matrices, or 0 after an error. */
static double product_seconds(ops_ctx *o, size_t n, char *memory, cudaEvent_t *at) {
    const size_t bytes = n * n * zero_type_bytes(o->type);
    float best = 0, ms = 0;
#define USE(NUM, W)                                                                                \
    RUN(o, fill_kernel<NUM>, o->processors *BLOCKS_PER_SM, 256, (NUM::word *)memory, 2 * n * n)
    if (o->type == ZERO_F32) USE(ops_f32, 1);
    if (o->type == ZERO_BF16) USE(ops_bf16, 1);
    if (o->type == ZERO_F16) USE(ops_f16, 1);
#undef USE
    for (int i = 0; i < 8 && !o->status; i++) {
        (void)WORKED(o, cudaEventRecord(at[0], o->stream));
        ops_linear(o, memory + 2 * bytes, memory, memory + bytes, NULL, n, n, n);
        (void)WORKED(o, cudaEventRecord(at[1], o->stream));
        (void)WORKED(o, cudaEventSynchronize(at[1]));
        (void)WORKED(o, cudaEventElapsedTime(&ms, at[0], at[1]));
        if (i && ms > 0 && (best == 0 || ms < best)) best = ms;
    }
    return o->status ? 0 : 1e-3 * (double)best;
}

double ops_matmul_rate(zero_type type, int tf32, int threads) {
    const size_t n = OPS_RATE_SIZE;
    const ops_limits limits = {0, 0, 0, 0, 4, 1, 1};
    char *memory = (char *)ops_alloc(3 * n * n * zero_type_bytes(type));
    cudaEvent_t at[2] = {NULL, NULL};
    cudaStream_t stream = NULL;
    ops_ctx *o = NULL;
    char why[OPS_SENTENCE];
    double seconds = 0;
    (void)threads;
    int ok = memory && cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess;
    for (int i = 0; i < 2; i++) ok = ok && cudaEventCreate(&at[i]) == cudaSuccess;
    const ops_settings settings = {type, type, stream, tf32, 0};
    if (ok && ops_create(&o, &limits, &settings, why) == ZERO_OK)
        seconds = product_seconds(o, n, memory, at);
    ops_destroy(o);
    for (int i = 0; i < 2; i++)
        if (at[i]) (void)cudaEventDestroy(at[i]);
    if (stream) (void)cudaStreamDestroy(stream);
    ops_free(memory);
    (void)cudaGetLastError(); /* if the rate cannot be measured, that is no error */
    return seconds > 0 ? 2 * (double)n * (double)n * (double)n / seconds : 0;
}

/* ---- attention piece by piece ---------------------------------------------------------------- */

/* Returns 1 if the call has work to do. */
static int pairs_fit(ops_ctx *o, const ops_heads *s) {
    if (o->status || !s->batch) return 0;
    if (!o->attend) fail(o, ZERO_ERR_ARGUMENT, "attention by pieces, but the limits have no heads");
    return !o->status;
}

void ops_take_keys(ops_ctx *o, void *kv, const void *qkv, const ops_heads *s) {
    const size_t R = s->batch * s->seq_len, C = s->heads * s->head_size;
    if (o->status || !R) return;
#define USE(NUM, W)                                                                                \
    RUN(o, (take_keys_kernel<NUM, W>), row_blocks(o, R), row_threads(2 * C / (W)), OUT(NUM, kv),   \
        IN(NUM, qkv), R, 2 * C)
    FOR_ROWS(o, C, USE);
#undef USE
}

void ops_partial_begin(ops_ctx *o, const ops_partial *state, const ops_heads *s) {
    const size_t rows = s->batch * s->seq_len * s->heads;
    if (!pairs_fit(o, s)) return;
    ops_clear(o, state->out, rows * s->head_size * sizeof *state->out);
    RUN(o, partial_begin_kernel, row_blocks(o, (rows + 255) / 256), 256, *state, rows);
}

void ops_partial_add(ops_ctx *o, const ops_partial *state, const void *qkv, const void *kv,
                     const void *bias, const ops_pair *pair, const ops_heads *s) {
    const attention_shape shape = shape_of(s);
    (void)bias; /* qkv contains it */
    if (pairs_fit(o, s)) attended(o, attention_pair(o->attend, state, qkv, kv, pair, &shape));
}

void ops_partial_end(ops_ctx *o, void *out, float *lse, const ops_partial *state,
                     const ops_heads *s) {
    const size_t R = s->batch * s->seq_len, C = s->heads * s->head_size;
    if (!pairs_fit(o, s)) return;
#define USE(NUM, W)                                                                                \
    RUN(o, (partial_end_kernel<NUM, W>), row_blocks(o, R), row_threads(C / (W)), OUT(NUM, out),    \
        lse, *state, *s)
    FOR_ROWS(o, s->head_size, USE);
#undef USE
}

void ops_slopes_begin(ops_ctx *o, const ops_slopes *g, const void *out, const ops_heads *s) {
    const attention_shape shape = shape_of(s);
    if (!pairs_fit(o, s)) return;
    ops_clear(o, g->dq, s->batch * s->seq_len * s->heads * s->head_size * sizeof *g->dq);
    attended(o, attention_delta(o->attend, g, out, &shape));
}

void ops_slopes_add(ops_ctx *o, const ops_slopes *g, const ops_pair *pair, const ops_heads *s) {
    const attention_shape shape = shape_of(s);
    if (pairs_fit(o, s)) attended(o, attention_pair_backward(o->attend, g, pair, &shape));
}

void ops_slopes_end(ops_ctx *o, void *dqkv, const ops_slopes *g, const ops_heads *s) {
    const size_t R = s->batch * s->seq_len, C = s->heads * s->head_size;
    const float scale = 1.0f / sqrtf((float)s->head_size);
    if (!pairs_fit(o, s)) return;
#define USE(NUM, W)                                                                                \
    RUN(o, (slopes_end_kernel<NUM, W>), row_blocks(o, R), row_threads(3 * C / (W)),                \
        OUT(NUM, dqkv), *g, scale, R, 3 * C)
    FOR_ROWS(o, C, USE);
#undef USE
}

void ops_add_f32(ops_ctx *o, float *to, const float *x, size_t n) {
    if (!o->status && n) RUN(o, add_f32_kernel, row_blocks(o, (n + 255) / 256), 256, to, x, n);
}

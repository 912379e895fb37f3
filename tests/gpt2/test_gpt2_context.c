/* test_gpt2_context.c - GPT-2 with the sequence divided over ranks, adapters/gpt2/context.h, next
   to the same model on ranks with whole sequences, by exchanges of heads (Ulysses), by a ring and
   by both: first loss, gradients of the first step, losses, losses of tokens, logits; the same bits
   at every stage and with every recomputation; bytes as the formula says; activations as planned;
   an overflow skips on all ranks; what cannot be divided.

   With ops_cpu.c as C; with ops_cuda.cu by nvcc on a GPU, or by g++ on the emulation. */
#include "../shared/harness.h"
#include "test_gpt2_ranks.h"

#include "../../adapters/gpt2/context.h"
#include "../../adapters/gpt2/frozen.h"
#include "../../adapters/gpt2/gpt2.h"

#include <math.h>

#ifdef _OPENMP
#include <omp.h>
#endif

/* T divides into the pieces of a ring of 2, 3 or 4 ranks. */
enum { V = 300, Vp = 384, L = 2, NH = 4, C = 32, T = 24, B = 2, MOST_STEPS = 20, MICRO = 2 };

/* What the trace of a rank's first steps has seen. */
enum { MOST_EVENTS = 2048, LANE = 4 };
typedef struct trace_seen {
    int n;
    zero_event event[MOST_EVENTS];
} trace_seen;

static void take_events(void *user, const zero_event *events, int n) {
    trace_seen *s = (trace_seen *)user;
    for (int i = 0; i < n && s->n < MOST_EVENTS; i++) s->event[s->n++] = events[i];
}

/* A training on dp x cp ranks, and what the first rank finds. */
typedef struct training {
    int dp, cp, untied, tile_rows, recompute, stage, steps, together, group, sparse;
    int ring;     /* of the cp ranks, those that are a ring; 0: 1 */
    int tp;       /* tensor-parallel ranks, neighbours; 0: 1 */
    int sequence; /* 1: which also divide rows between layers */
    float scale;  /* f16: the first loss scale */
    zero_type type;
    double loss[MOST_STEPS], norm[MOST_STEPS], eval;
    int skipped; /* steps */
    float logits[V], tokens[B * T];
    float *grad;            /* of the first step; NULL: not wanted */
    uint64_t weights;       /* a hash */
    uint64_t sent, formula; /* of the context-parallel group, in the first step */
    uint64_t exchanges;     /* all-to-alls of that step */
    uint64_t messages;      /* sent and received in that step */
    trace_seen *events;     /* of the first rank; NULL: not traced */
    int planned;            /* the context sent in it what its plan says */
} training;

/* What one rank has. */
typedef struct part {
    training *t;
    gpt2_config cfg;
    int rank, dp_rank;
    zero_group *world, *cp, *dp, *heads, *ring; /* heads, ring: NULL or parts of cp */
    zero_group *tp, *data;                      /* NULL: all ranks have the whole model */
    zero_group *circle;                         /* CUDA: the ranks of `ring` */
    gpt2_parallel how;
    zero_ctx *z;
    gpt2_model *m;
    gpt2_error err;
} part;

static gpt2_config config_of(const training *t) {
    const gpt2_config c = {T, V, Vp, L, NH, C, t->untied, GPT2_NO_EXPERTS, NULL, 0, 0, t->sparse};
    return c;
}

static size_t most_numel(void) {
    const gpt2_config untied = {T, V, Vp, L, NH, C, 1, GPT2_NO_EXPERTS, NULL, 0, 0, 0};
    return gpt2_numel(&untied);
}

static gpt2_run run_of(const part *p) {
    const training *t = p->t;
    const gpt2_run run = {B,        T,       t->recompute, t->type, 0,       0, t->tile_rows,
                          P_tmpdir, &p->how, t->together,  0,       t->group};
    return run;
}

#ifdef __CUDACC__
/* The messages of the ring have a stream of their own, as in the trainer. */
static zero_result open_circle(part *p, int apart, int colour, int key) {
    cudaStream_t wires = NULL;
    (void)apart;
    if (cudaStreamCreateWithFlags(&wires, cudaStreamNonBlocking)) return ZERO_ERR_DEVICE;
    p->how.ring_stream = wires;
    ZERO_TRY(zero_group_split(p->cp, colour, key, &p->circle));
    const zero_comm comm = zero_group_comm(p->circle);
    return zero_group_open(&p->ring, &comm, wires, 60);
}
static void close_circle(part *p) {
    zero_group_close(p->ring);
    zero_group_close(p->circle);
    if (p->how.ring_stream) (void)cudaStreamDestroy((cudaStream_t)p->how.ring_stream);
}
#else
static zero_result open_circle(part *p, int apart, int colour, int key) {
    return apart ? zero_group_split(p->cp, colour, key, &p->ring) : ZERO_OK;
}
static void close_circle(part *p) { zero_group_close(p->ring); }
#endif

/* Opens the groups of neighbours that exchange heads, and of the ring. */
static zero_result open_ring(part *p) {
    const training *t = p->t;
    const int ring = t->ring > 1 ? t->ring : 1, neighbours = t->cp / ring;
    const int c = zero_group_rank(p->cp);
    if (ring == 1) return ZERO_OK;
    if (neighbours > 1) ZERO_TRY(zero_group_split(p->cp, c / neighbours, c, &p->heads));
    ZERO_TRY(open_circle(p, neighbours > 1, c % neighbours, c));
    p->how.heads = p->heads;
    p->how.ring = p->ring ? p->ring : p->cp;
    return ZERO_OK;
}

/* Adds up what the groups of a context have sent. */
static zero_group_stats context_stats(const part *p) {
    const zero_group *const all[] = {p->cp, p->heads, p->ring, p->tp};
    zero_group_stats sum, of;
    memset(&sum, 0, sizeof sum);
    for (int i = 0; i < 4; i++) {
        zero_group_query_stats(all[i], &of);
        sum.sent_bytes += of.sent_bytes;
        sum.all_to_alls += of.all_to_alls;
        sum.messages += of.messages;
    }
    return sum;
}

/* rank = (dp_rank * cp + cp_rank) * tp + tp_rank */
static zero_result open_groups(part *p, const zero_comm *comm) {
    const training *t = p->t;
    const int tp = t->tp > 1 ? t->tp : 1;
    p->dp_rank = p->rank / tp / t->cp;
    if (tp == 1) return ranks_open(comm, p->rank, t->cp, &p->world, &p->cp, &p->dp);
    ZERO_TRY(zero_group_open(&p->world, comm, NULL, 60));
    ZERO_TRY(zero_group_split(p->world, p->rank / tp, p->rank, &p->tp));
    ZERO_TRY(zero_group_split(p->world, p->rank % tp, p->rank, &p->data));
    return zero_group_split(p->data, p->dp_rank, p->rank, &p->cp);
}

/* The context has all ranks with the same part of the model: those with the same sequences count as
   data-parallel. */
static zero_result open_model(part *p, const zero_comm *comm) {
    const training *t = p->t;
    const gpt2_run run = run_of(p);
    zero_config zc;
    ZERO_TRY(open_groups(p, comm));
    zero_group_name(p->cp, "cp");
    p->how.cp = p->cp;
    p->how.tp = p->tp;
    p->how.sequence = t->sequence;
    ZERO_TRY(open_ring(p));
    const zero_comm all = zero_group_comm(p->tp ? p->data : p->world);
    memset(&zc, 0, sizeof zc);
    if (p->tp) zc.world = p->world;
    zc.stage = t->stage;
    zc.micro_steps = t->together > 1 ? 1 : MICRO;
    zc.open_units = gpt2_open_units(t->group);
    zc.accumulation = ZERO_ACCUMULATE_SHARDED;
    zc.type = t->type;
    zc.grads = ZERO_GRAD_F32;
    zc.scaler.initial = t->scale;
    zc.log = test_quiet;
    if (t->events) zc.trace = take_events;
    zc.trace_user = t->events;
    p->cfg = config_of(t);
    ZERO_TRY(zero_create(&p->z, &zc, &all));
    ZERO_TRY(gpt2_announce(p->z, &p->cfg, &p->how, t->tile_rows));
    if (t->together > 1)
        ZERO_TRY(gpt2_layers_order(p->z, &p->cfg, gpt2_tiles(&p->cfg, 1, t->tile_rows)));
    ZERO_TRY(zero_build(p->z));
    if (t->events) ZERO_TRY(zero_group_trace(p->ring ? p->ring : p->cp, p->z, LANE));
    ZERO_TRY(gpt2_init_part(p->z, &p->cfg, &p->how, 7, &p->err));
    return gpt2_create(&p->m, p->z, &p->cfg, &run, &p->err);
}

/* Reads all tensors; out may be NULL. `hash` is of what is read. */
static zero_result read_all(part *p, zero_kind kind, float *out, uint64_t *hash) {
    return ranks_read_all(p->z, &p->cfg, &p->how, kind, out, hash);
}

/* Runs the micro-steps of a step, one after another or layer by layer. */
static zero_result run_passes(part *p, int step) {
    const training *t = p->t;
    int tokens[2 * B * T], all[2][MICRO * B * T];
    for (int micro = 0; micro < MICRO; micro++) {
        ranks_draw_tokens(tokens, B * T, V, p->dp_rank, step * MICRO + micro);
        memcpy(all[0] + micro * B * T, tokens, B * T * sizeof *tokens);
        memcpy(all[1] + micro * B * T, tokens + B * T, B * T * sizeof *tokens);
        if (t->together > 1) continue;
        ZERO_TRY(zero_pass_begin(p->z, ZERO_TRAIN, micro, MICRO));
        ZERO_TRY(
            gpt2_train_step(p->m, tokens, tokens + B * T, zero_loss_scale(p->z) / MICRO, NULL));
        ZERO_TRY(zero_pass_end(p->z));
    }
    if (t->together < 2) return ZERO_OK;
    ZERO_TRY(zero_pass_begin(p->z, ZERO_TRAIN, 0, 1));
    ZERO_TRY(gpt2_train_layers(p->m, all[0], all[1], zero_loss_scale(p->z) / MICRO));
    return zero_pass_end(p->z);
}

static zero_result take_step(part *p, int step) {
    training *t = p->t;
    const zero_hyper hyper = {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f};
    zero_step_report done;
    uint64_t hash;
    double mean = 0;
    const zero_group_stats before = context_stats(p);
    ZERO_TRY(run_passes(p, step));
    const zero_group_stats after = context_stats(p);
    ZERO_TRY(zero_reduce(p->z));
    if (step == 0 && t->grad) ZERO_TRY(read_all(p, ZERO_GRADIENT, t->grad, &hash));
    ZERO_TRY(zero_step(p->z, &hyper));
    ZERO_TRY(gpt2_take_losses(p->m, &mean));
    ZERO_TRY(zero_all_sum(p->z, &mean, 1));
    ZERO_TRY(zero_step_result(p->z, &done));
    t->loss[step] = mean / (t->dp * t->cp);
    t->norm[step] = done.norm;
    t->skipped = (int)done.skipped;
    if (step) return ZERO_OK;
    zero_plan plan;
    zero_stats stats;
    ZERO_TRY(zero_query_plan(p->z, &plan));
    ZERO_TRY(zero_query_stats(p->z, &stats));
    /* the plan counts all rows of the embeddings, and a batch touches some of them */
    t->planned =
        (t->sparse ? plan.sent_bytes > stats.sent_bytes : plan.sent_bytes == stats.sent_bytes)
        && plan.verdict_bytes == stats.verdict_bytes;
    const gpt2_run run = run_of(p);
    t->sent = after.sent_bytes - before.sent_bytes;
    t->exchanges = after.all_to_alls - before.all_to_alls;
    t->messages = after.messages - before.messages;
    t->formula = MICRO * gpt2_parallel_bytes(&p->cfg, &run);
    return ZERO_OK;
}

/* Evaluates B - 1 sequences on the first data-parallel rank and none on the others, and the logits
   after a number of tokens that the ranks do not divide. */
static zero_result evaluate(part *p) {
    training *t = p->t;
    int tokens[2 * B * T];
    const int rows = p->dp_rank ? 0 : B - 1;
    ranks_draw_tokens(tokens, B * T, V, p->dp_rank, 1000);
    ZERO_TRY(zero_pass_begin(p->z, ZERO_EVAL, 0, 1));
    ZERO_TRY(gpt2_loss(p->m, tokens, tokens + B * T, rows, &t->eval));
    ZERO_TRY(gpt2_token_losses(p->m, t->tokens, (size_t)(rows * T)));
    ZERO_TRY(zero_pass_end(p->z));
    ZERO_TRY(zero_all_sum(p->z, &t->eval, 1));
    ranks_draw_tokens(tokens, B * T, V, 0, 1001);
    ZERO_TRY(zero_pass_begin(p->z, ZERO_EVAL, 0, 1));
    ZERO_TRY(gpt2_logits(p->m, tokens, T - 4, t->logits));
    ZERO_TRY(zero_pass_end(p->z));
    ZERO_TRY(zero_pass_begin(p->z, ZERO_EVAL, 0, 1));
    ZERO_TRY(gpt2_next_logits(p->m, tokens, T - 3, t->logits));
    return zero_pass_end(p->z);
}

static zero_result train_part(part *p, const zero_comm *comm) {
    ZERO_TRY(open_model(p, comm));
    for (int step = 0; step < p->t->steps; step++) ZERO_TRY(take_step(p, step));
    ZERO_TRY(evaluate(p));
    return read_all(p, ZERO_MASTER, NULL, &p->t->weights);
}

/* With a seed, the emulation draws the order of the ranks' calls and of their streams' work. */
#ifdef EMULATED_LAUNCH
static int in_order;
static void enter_order(const test_rank *r) {
    if (in_order) emulation_enter(r->rank, r->nranks);
}
static void leave_order(void) {
    if (in_order) emulation_leave();
}
#else
static void enter_order(const test_rank *r) { (void)r; }
static void leave_order(void) {}
#endif

static void train_body(test_rank *r) {
    training *wanted = (training *)r->arg, own = *wanted;
    const zero_comm comm = test_comm(r);
    part p;
    memset(&p, 0, sizeof p);
    p.rank = r->rank;
    p.t = r->rank ? &own : wanted;
    if (r->rank) own.events = NULL;
    if (r->rank && own.grad) own.grad = (float *)malloc(most_numel() * sizeof(float));
    enter_order(r);
    const zero_result result = train_part(&p, &comm);
    if (result)
        test_rank_fail(r, "result %d: %s; %s; %s; %s; %s", (int)result, p.err.sentence,
                       p.m ? gpt2_last_error(p.m) : "", p.z ? zero_last_error(p.z) : "",
                       zero_group_error(p.cp), zero_group_error(p.world));
    if (r->rank) free(own.grad);
    gpt2_destroy(p.m);
    zero_destroy(p.z);
    zero_group_close(p.heads);
    close_circle(&p);
    zero_group_close(p.cp);
    zero_group_close(p.data);
    zero_group_close(p.tp);
    ranks_close(p.world, NULL, p.dp);
    leave_order();
}

static const char *name_of(const training *t, char text[160]) {
    (void)snprintf(
        text, 160,
        "dp %d cp %d ring %d tp %d%s untied %d tiles %d recompute %d stage %d type %d together %d",
        t->dp, t->cp, t->ring, t->tp, t->sequence ? "s" : "", t->untied, t->tile_rows, t->recompute,
        t->stage, (int)t->type, t->together);
    return text;
}

static int train(training *t) {
    char name[160];
    return test_check(test_ranks(t->dp * t->cp * (t->tp > 1 ? t->tp : 1), 0, train_body, t),
                      "%s: %s", name_of(t, name), test_first);
}

static training layout(int dp, int cp) {
    training t;
    memset(&t, 0, sizeof t);
    t.dp = dp;
    t.cp = cp;
    t.steps = EMULATED ? 2 : 4;
    t.recompute = GPT2_RECOMPUTE_GELU;
    return t;
}

/* ---- next to ranks with whole sequences ----------------------------------------------------- */

/* Returns how far `a` is from `b`, relative to the norm of b. */
static double apart(const float *a, const float *b, size_t n) {
    double off = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        off += pow((double)a[i] - (double)b[i], 2);
        all += pow((double)b[i], 2);
    }
    return all > 0 ? sqrt(off / all) : INFINITY;
}

static void check_gradients(const training *t, const training *whole, double most) {
    const gpt2_config cfg = config_of(t);
    zero_tensor_desc table[GPT2_MOST_TENSORS];
    const int n = gpt2_table(&cfg, NULL, 0, table);
    char name[160];
    size_t at = 0;
    for (int k = 0; k < n; k++) {
        const size_t count = table[k].numel * (size_t)table[k].layers;
        const double off = apart(t->grad + at, whole->grad + at, count);
        test_check(off <= most, "%s: gradient of %s is off by %g", name_of(t, name), table[k].name,
                   off);
        at += count;
    }
}

/* f32: `loosely` 1. 16 bits: what rounding may change, in multiples of it. */
static void check_near(training *t, const training *whole, double loosely) {
    char name[160];
    double loss = 0;
    t->grad = (float *)malloc(most_numel() * sizeof(float));
    train(t);
    (void)name_of(t, name);
    const double first = fabs(t->loss[0] - whole->loss[0]) / whole->loss[0];
    for (int i = 0; i < t->steps; i++) loss = fmax(loss, fabs(t->loss[i] - whole->loss[i]));
    test_check(first <= 1e-6 * loosely, "%s: the first loss is off by %g", name, first);
    test_check(loss <= 1e-4 * loosely, "%s: losses are off by %g", name, loss);
    check_gradients(t, whole, 1e-5 * loosely);
    test_check(fabs(t->eval - whole->eval) / whole->eval <= 1e-4 * loosely,
               "%s: evaluation %.9g, whole %.9g", name, t->eval, whole->eval);
    const double tokens = apart(t->tokens, whole->tokens, (B - 1) * T);
    const double logits = apart(t->logits, whole->logits, V);
    test_check(tokens <= 1e-4 * loosely, "%s: losses of tokens are off by %g", name, tokens);
    test_check(logits <= 1e-3 * loosely, "%s: logits are off by %g", name, logits);
    test_check(t->sent == t->formula && (t->cp == 1 || t->sent > 0),
               "%s: %llu bytes sent, formula %llu", name, (unsigned long long)t->sent,
               (unsigned long long)t->formula);
    test_check(t->planned, "%s: the context sends other bytes than planned", name);
    free(t->grad);
    t->grad = NULL;
}

static training whole_of(const training *t) {
    training whole = *t;
    whole.cp = 1;
    whole.ring = whole.tp = whole.sequence = 0;
    whole.grad = (float *)malloc(most_numel() * sizeof(float));
    train(&whole);
    return whole;
}

/* Numbers of context-parallel ranks, and how many of them are a ring. */
static const int ways[][2] = {{2, 1}, {4, 1}, {2, 2}, {3, 3}, {4, 4}, {4, 2}};
enum { WAYS = 6 };

static void test_near(int dp, int most_cp, int steps) {
    training t = layout(dp, 1);
    t.steps = steps;
    training whole = whole_of(&t);
    for (int i = 0; i < WAYS; i++) {
        training its = t;
        its.cp = ways[i][0];
        its.ring = ways[i][1];
        if (its.cp <= most_cp) check_near(&its, &whole, 1);
    }
    free(whole.grad);
}

/* The other ways through the model: tiles, an untied classifier, touched rows, layer by layer, and
   by groups of layers. */
static void test_ways(int cp, int ring) {
    for (int way = 0; way < 5; way += EMULATED ? 4 : 1) {
        training t = layout(1, cp);
        t.ring = ring;
        t.untied = way % 2;
        t.tile_rows = way < 2 ? 96 : 0;
        t.sparse = way == 3;
        t.together = way == 2 || way == 4 ? MICRO : 0;
        t.group = way == 4 ? 2 : 0;
        t.stage = way == 4 ? 3 : way;
        t.recompute = way;
        training whole = whole_of(&t);
        check_near(&t, &whole, 1);
        free(whole.grad);
    }
}

static void test_halves(int cp, int ring) {
    static const zero_type types[] = {ZERO_BF16, ZERO_F16};
    for (int i = 0; i < 2; i++) {
        training t = layout(1, cp);
        t.ring = ring;
        t.type = types[i];
        t.scale = 1024;
        training whole = whole_of(&t);
        check_near(&t, &whole, i ? 200 : 2000);
        test_check(!t.skipped && !whole.skipped, "type %d: steps were skipped", (int)t.type);
        free(whole.grad);
    }
}

/* A first loss scale that overflows: every rank skips, or the ranks would differ. */
static void test_overflow(int cp, int ring) {
    training t = layout(1, cp);
    t.ring = ring;
    t.type = ZERO_F16;
    t.scale = 16777216.0f;
    train(&t);
    training again = t;
    again.stage = 3;
    again.skipped = 0;
    train(&again);
    test_check(t.skipped > 0 && again.skipped == t.skipped, "%d and %d steps were skipped",
               t.skipped, again.skipped);
    test_check(t.weights == again.weights, "after an overflow stage 3 has other weights");
}

/* ---- the same bits -------------------------------------------------------------------------- */

static int same_bytes(const void *a, const void *b, size_t n) { return memcmp(a, b, n) == 0; }

static void check_same(training *t, const training *as) {
    char name[160];
    train(t);
    test_check(same_bytes(t->loss, as->loss, sizeof t->loss)
                   && same_bytes(t->norm, as->norm, sizeof t->norm) && t->weights == as->weights
                   && same_bytes(&t->eval, &as->eval, sizeof t->eval)
                   && same_bytes(t->logits, as->logits, sizeof t->logits),
               "%s: other bits than recompute %d at stage %d: loss %.9g, %.9g", name_of(t, name),
               as->recompute, as->stage, t->loss[3], as->loss[3]);
}

/* Together with tensor parallelism. */
static void test_tensor_parallel(void) {
    for (int i = 0; i < 6; i++) {
        const int way = i % 3;
        training t = layout(1, 2);
        t.tp = 2;
        t.sequence = i > 2;
        t.ring = way ? 2 : 0;
        t.tile_rows = way == 2 ? 96 : 0;
        t.untied = way == 2;
        t.recompute = way == 2 ? GPT2_RECOMPUTE_BLOCK : GPT2_RECOMPUTE_GELU;
        t.stage = way;
        training whole = whole_of(&t), first = t;
        check_near(&t, &whole, 1);
        free(whole.grad);
        train(&first);
        t = first;
        t.stage = 3 - way;
        check_same(&t, &first);
    }
}

/* In CUDA what cuBLASLt and the own kernel say of GELU is a rounding apart. */
#ifdef __CUDACC__
enum { SAME_GELU = 0 };
#else
enum { SAME_GELU = 1 };
#endif

static void test_bits(int dp, int cp, int ring, int tile_rows) {
    training first = layout(dp, cp);
    first.ring = ring;
    first.tile_rows = tile_rows;
    train(&first);
    for (int stage = 1; stage < 4; stage++) {
        training t = first;
        t.stage = stage;
        check_same(&t, &first);
    }
    for (int recompute = 0; recompute <= GPT2_RECOMPUTE_AWAY; recompute += EMULATED ? 3 : 1) {
        training t = first;
        t.recompute = recompute;
        t.stage = recompute % 4;
        if (SAME_GELU)
            check_same(&t, &first);
        else
            train(&t);
        test_check(t.sent == t.formula && t.sent > 0, "recompute %d: %llu bytes sent, formula %llu",
                   recompute, (unsigned long long)t.sent, (unsigned long long)t.formula);
    }
}

/* ---- figures -------------------------------------------------------------------------------- */

/* The formula in words: 4 b T C / N x (N - 1) / N numbers a layer forward, and as many backward. */
static void test_traffic(void) {
    for (int cp = 2; cp <= (EMULATED ? 2 : 4); cp *= 2)
        for (int again = 0; again < 2; again++) {
            const uint64_t of_layer =
                (uint64_t)(4 * B * T * C / cp * (cp - 1) / cp) * sizeof(float);
            training t = layout(1, cp);
            t.steps = 1;
            t.recompute = again ? GPT2_RECOMPUTE_BLOCK : GPT2_RECOMPUTE_NONE;
            train(&t);
            test_check(t.sent == (uint64_t)(MICRO * L * (2 + again)) * of_layer,
                       "cp %d, recompute %d: %llu bytes", cp, t.recompute,
                       (unsigned long long)t.sent);
            test_check(t.exchanges == (uint64_t)(MICRO * L * (4 + 2 * again)),
                       "cp %d, recompute %d: %llu all-to-alls", cp, t.recompute,
                       (unsigned long long)t.exchanges);
        }
}

/* A ring sends two numbers for each channel of its tokens on each of N - 1 hops: forward once;
   backward keys and values again, and their gradients in f32. */
static void test_traffic_of_ring(zero_type type) {
    for (int cp = EMULATED ? 4 : 2; cp <= 4; cp++)
        for (int again = 0; again < 2; again++) {
            const uint64_t hops = (uint64_t)(2 * B * T * C / cp * (cp - 1));
            const uint64_t bytes = hops * ((uint64_t)(2 + again) * zero_type_bytes(type) + 4);
            training t = layout(1, cp);
            t.ring = cp;
            t.steps = 1;
            t.type = type;
            t.scale = 1024;
            t.recompute = again ? GPT2_RECOMPUTE_BLOCK : GPT2_RECOMPUTE_NONE;
            train(&t);
            test_check(t.sent == MICRO * L * bytes && t.sent == t.formula,
                       "ring of %d, recompute %d: %llu bytes, expected %llu, formula %llu", cp,
                       t.recompute, (unsigned long long)t.sent,
                       (unsigned long long)(MICRO * L * bytes), (unsigned long long)t.formula);
            /* each hop sends a message and receives one */
            const uint64_t calls = (uint64_t)(2 * (3 + again) * (cp - 1));
            test_check(t.messages == MICRO * L * calls && t.exchanges == 0,
                       "ring of %d, recompute %d: %llu messages, expected %llu", cp, t.recompute,
                       (unsigned long long)t.messages, (unsigned long long)(MICRO * L * calls));
        }
}

/* Returns how many messages of the trace lie inside forward or backward of a unit. */
static int messages_inside(const trace_seen *s, zero_event_kind kind, int unit) {
    int count = 0;
    for (int i = 0; i < s->n; i++) {
        const zero_event *m = &s->event[i];
        int inside = 0;
        for (int k = 0; k < s->n && m->track == ZERO_TRACK_GROUP + LANE; k++) {
            const zero_event *e = &s->event[k];
            inside |=
                e->kind == kind && e->unit == unit && e->begin <= m->begin && m->end <= e->end;
        }
        count += inside && m->kind == ZERO_EVENT_MESSAGES;
    }
    return count;
}

/* The trace has the ring's exchanges, which lie beside forward and backward of the blocks. */
static void test_trace(int cp) {
    training t = layout(1, cp);
    trace_seen *events = (trace_seen *)test_shared(sizeof *events);
    t.ring = cp;
    t.steps = 1;
    t.events = events;
    train(&t);
    test_check(events->n > 0 && events->n < MOST_EVENTS, "%d events", events->n);
    for (int unit = 1; unit <= L; unit++) {
        /* evaluation has three passes; backward's exchange 1 of a ring of two is empty */
        const int forward = messages_inside(events, ZERO_EVENT_FORWARD, unit);
        const int backward = messages_inside(events, ZERO_EVENT_BACKWARD, unit);
        test_check(forward == (MICRO + 3) * (cp - 1), "unit %d: %d exchanges forward", unit,
                   forward);
        test_check(backward == MICRO * (cp > 2 ? cp + 1 : 2), "unit %d: %d exchanges backward",
                   unit, backward);
    }
}

typedef struct memory_case {
    int cp, ring;
    size_t one, two;
} memory_case;

static void memory_body(test_rank *r) {
    memory_case *t = (memory_case *)r->arg;
    const zero_comm comm = test_comm(r);
    zero_group *cp = NULL;
    if (zero_group_open(&cp, &comm, NULL, 60)) test_rank_fail(r, "%s", zero_group_error(cp));
    const gpt2_parallel how = {NULL, 0, NULL, NULL, NULL, cp, t->ring ? cp : NULL, NULL, NULL};
    const gpt2_run run = {B, T, 0, ZERO_F32, 0, 0, 0, NULL, &how, 0, 0, 0};
    const gpt2_config one = {T, V, Vp, 1, NH, C, 0, GPT2_NO_EXPERTS, NULL, 0, 0, 0},
                      two = {T, V, Vp, 2, NH, C, 0, GPT2_NO_EXPERTS, NULL, 0, 0, 0};
    if (r->rank == 0) t->one = gpt2_activation_bytes(&one, &run);
    if (r->rank == 0) t->two = gpt2_activation_bytes(&two, &run);
    zero_group_close(cp);
}

/* A block keeps R = B T/N rows, and with exchanges of heads the output of attention twice. */
static void test_activations(void) {
    for (int i = 0; i < 6; i++) {
        const int ring = i > 2, cp = ring ? i - 1 : 1 << i;
        const size_t R = (size_t)(B * T / cp), twice = cp > 1 && !ring ? C : 0;
        const size_t want = R * (16 * C + twice + NH + 4) * sizeof(float);
        memory_case t = {cp, ring, 0, 0};
        test_check(test_ranks(cp, 0, memory_body, &t), "activations: %s", test_first);
        const size_t is = t.two - t.one;
        test_check(is >= want && is < want + 13 * 128,
                   "cp %d, ring %d: a block takes %zu bytes, the formula says %zu", cp, ring, is,
                   want);
    }
}

/* ---- what cannot be divided ------------------------------------------------------------------ */

static void check_refused(int heads, int seq_len, int ranks, context_way way, const char *words) {
    const gpt2_config c = {64, 300, 384, 2, heads, 96, 0, GPT2_NO_EXPERTS, NULL, 0, 0, 0};
    const context_shape s = {&c, 1, 0, seq_len, ranks};
    gpt2_error err = {""};
    int ring = 0;
    const zero_result r = context_choose(&s, way, &ring, &err);
    test_check(r == ZERO_ERR_ARGUMENT && strstr(err.sentence, words),
               "%d heads, %d tokens over %d ranks: %s", heads, seq_len, ranks, err.sentence);
}

static void check_chosen(int heads, int ranks, context_way way, int seq_len, int ring) {
    const gpt2_config c = {64, 300, 384, 2, heads, heads * 8, 0, GPT2_NO_EXPERTS, NULL, 0, 0, 0};
    const context_shape s = {&c, 1, 0, seq_len, ranks};
    gpt2_error err = {""};
    int is = 0;
    const zero_result r = context_choose(&s, way, &is, &err);
    test_check(!r && is == ring, "%d heads over %d ranks, way %d: a ring of %d, expected %d; %s",
               heads, ranks, (int)way, is, ring, err.sentence);
}

static void test_refused(void) {
    const gpt2_config fits = {64, 300, 384, 2, 12, 96, 0, GPT2_NO_EXPERTS, NULL, 0, 0, 0};
    check_refused(12, 20, 5, CONTEXT_ULYSSES, "12 heads");
    check_refused(12, 20, 5, CONTEXT_ULYSSES, "that does is 4");
    check_refused(12, 15, 4, CONTEXT_AUTO, "lengths are 12 and 16");
    check_refused(12, 2, 4, CONTEXT_AUTO, "length is 4");
    check_refused(12, 63, 6, CONTEXT_AUTO, "length is 60");
    for (int tokens = 6; tokens <= 24; tokens += 2) /* two ranks divide the rows of each piece */
        for (int ring = 1; ring <= 2; ring++) {
            const context_shape rows = {&fits, 2, 1, tokens, 2};
            test_check(!context_check(&rows, ring, NULL) == (tokens % 4 == 0),
                       "%d tokens in rows, ring of %d", tokens, ring);
        }
    for (int ranks = 1; ranks <= 4; ranks++) {
        const context_shape s = {&fits, ranks < 4 ? 4 : 1, 0, 12, ranks};
        test_check(!context_check(&s, 1, NULL) == (ranks != 2), "%d ranks", ranks);
    }
    for (int ranks = 1; ranks <= 4; ranks++) check_chosen(12, ranks, CONTEXT_ULYSSES, 12, 1);
    check_refused(12, 12, 4, CONTEXT_RING, "8 pieces of a ring; the nearest lengths are 8 and 16");
    check_refused(12, 63, 3, CONTEXT_RING, "6 pieces of a ring; the nearest length is 60");
    check_refused(12, 15, 5, CONTEXT_AUTO,
                  "10 pieces of a ring; the nearest lengths are 10 and 20");
    check_refused(6, 6, 4, CONTEXT_AUTO, "4 pieces of a ring; the nearest lengths are 4 and 8");
    check_refused(12, 12, 3, CONTEXT_BOTH, "use -ca ring or -ca ulysses");
    check_refused(7, 24, 6, CONTEXT_BOTH, "no size of a group between 1 and 6 divides both");
    check_chosen(12, 4, CONTEXT_AUTO, 24, 1);
    check_chosen(12, 5, CONTEXT_AUTO, 20, 5);
    check_chosen(6, 4, CONTEXT_AUTO, 24, 2);
    check_chosen(12, 4, CONTEXT_RING, 24, 4);
    check_chosen(12, 4, CONTEXT_BOTH, 24, 2);
    check_chosen(9, 6, CONTEXT_AUTO, 12, 2);
    check_chosen(1, 4, CONTEXT_AUTO, 8, 4);
}

/* Every token of a sequence is in one place, and its rank and row are found. */
static void test_spans(void) {
    for (int i = 0; i < 8; i++) {
        static const int sizes[][2] = {{1, 1}, {2, 1}, {2, 2}, {3, 3},
                                       {4, 2}, {6, 2}, {6, 3}, {4, 4}};
        context_parallel p;
        int seen[T] = {0};
        memset(&p, 0, sizeof p);
        p.size = (size_t)sizes[i][0];
        p.ring_size = (size_t)sizes[i][1];
        p.heads = p.size / p.ring_size;
        const size_t piece = T / p.size;
        for (size_t rank = 0; rank < p.size; rank++) {
            context_span list[2];
            size_t rows = 0;
            const size_t n = context_spans(&p, rank, piece, list);
            for (size_t k = 0; k < n; rows += list[k++].n)
                for (size_t t = 0; t < list[k].n; t++) {
                    size_t row = T;
                    seen[list[k].first + t]++;
                    test_check(context_find(&p, list[k].first + t, piece, &row) == rank
                                   && row == list[k].at + t && row == rows + t,
                               "%zu ranks: row %zu", p.size, row);
                }
            test_check(rows == piece, "%zu ranks: %zu rows", p.size, rows);
        }
        for (int t = 0; t < T; t++) test_check(seen[t] == 1, "token %d: %d times", t, seen[t]);
    }
}

static void test_ring(void) {
    if (!EMULATED) test_traffic_of_ring(ZERO_F32);
    test_traffic_of_ring(ZERO_BF16);
    test_trace(EMULATED ? 3 : 2);
    if (!EMULATED) test_trace(4);
    test_bits(1, 2, 2, 0);
    if (!EMULATED) test_bits(1, 3, 3, 96);
    if (!EMULATED) test_bits(1, 4, 2, 0);
    if (!EMULATED) test_ways(2, 2);
    test_ways(3, 3);
    if (!EMULATED) test_ways(4, 2);
    test_halves(3, 3);
    if (!EMULATED) test_halves(4, 2);
    test_overflow(3, 3);
}

#ifdef EMULATED_LAUNCH
/* The ring in any order that the streams allow: the same bits. */
static void test_order(void) {
    training first = layout(1, 3);
    first.ring = 3;
    train(&first);
    for (uint64_t seed = 1; seed <= 3; seed++) {
        training t = first;
        t.stage = seed == 3 ? 3 : 0;
        emulation_seed(seed);
        in_order = 1;
        check_same(&t, &first);
        emulation_seed(0);
        in_order = 0;
    }
}
#endif

int main(void) {
#ifdef _OPENMP
    omp_set_num_threads(1);
#endif
    test_refused();
    test_spans();
    test_activations();
    test_traffic();
    test_near(1, 4, EMULATED ? 2 : MOST_STEPS);
    if (!EMULATED) test_near(2, 2, 8);
    test_bits(1, 2, 1, 0);
    if (!EMULATED) test_bits(1, 4, 1, 96);
    if (!EMULATED) test_bits(2, 2, 1, 0);
    if (!EMULATED) test_ways(2, 1);
    test_halves(2, 1);
    test_overflow(4, 1);
    test_ring();
    if (!EMULATED) test_tensor_parallel();
#ifdef EMULATED_LAUNCH
    test_order();
    test_check(!emulation_found(), "the emulation found: %s", emulation_found());
#endif
    return test_summary();
}

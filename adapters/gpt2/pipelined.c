/* pipelined.c - see pipelined.h. Common subset of C11 and CUDA C++. */
#include "pipelined.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../pipeline/pipeline_run.h"

struct gpt2_pipeline {
    zero_ctx *z;
    gpt2_model *model;
    const gpt2_stage *stage;
    pipeline_run *run;
    pipeline_plan train, eval; /* of a step; of a forward of one micro-batch or several */
    void *memory;              /* [most buffers][bytes] */
    int buffers;
    size_t bytes;          /* of a message */
    size_t tokens;         /* B T */
    int *inputs, *targets; /* (B T) of the current micro-batch */
    float *losses;         /* (B T) */
    /* of the current call */
    const gpt2_feed *feed;
    int first; /* the number in the feed of micro-batch 0 */
    float factor;
    double sum;
    float
        *logits; /* of the token that follows the first t tokens; NULL: the call computes losses */
    int t;
    int in_host; /* a function of this file failed: `error` has its sentence already */
    gpt2_error error;
};

/* ---- before the context is built ----------------------------------------------------------- */

static pipeline_shape shape_of(const gpt2_stage *s, int micro, int forward_only) {
    const pipeline_shape shape = {s->stages, micro, s->chunks, forward_only};
    return shape;
}

void gpt2_pipeline_slots(gpt2_stage *s, int micro_steps) {
    const pipeline_shape shape = shape_of(s, micro_steps, 0);
    s->slots = pipeline_in_flight(&shape, s->stage);
}

static size_t message_bytes(const gpt2_config *cfg, const gpt2_run *run) {
    const gpt2_parallel *how = run->parallel;
    const size_t cut = how && how->sequence ? (size_t)zero_group_size(how->tp) : 1;
    const size_t piece = (size_t)run->seq_len / (size_t)zero_group_size(how ? how->cp : NULL);
    return (size_t)run->batch * piece / cut * (size_t)cfg->channels * zero_type_bytes(run->type);
}

static const gpt2_stage *stage_of(const gpt2_run *run) {
    const gpt2_stage *s = run->parallel ? run->parallel->stage : NULL;
    return gpt2_stage_is_whole(s) ? NULL : s;
}

size_t gpt2_pipeline_bytes(const gpt2_config *cfg, const gpt2_run *run, int micro_steps) {
    const gpt2_stage *s = stage_of(run);
    pipeline_plan plan;
    if (!s) return 0;
    const pipeline_shape shape = shape_of(s, micro_steps, 0);
    if (pipeline_make(&plan, &shape, s->stage)) return 0;
    const size_t bytes = (size_t)plan.buffers * message_bytes(cfg, run);
    pipeline_free(&plan);
    return bytes;
}

uint64_t gpt2_pipeline_sent(const gpt2_config *cfg, const gpt2_run *run, int micro_steps) {
    const gpt2_stage *s = stage_of(run);
    if (!s) return 0;
    const pipeline_shape shape = shape_of(s, micro_steps, 0);
    return (uint64_t)pipeline_sends(&shape, s->stage) * message_bytes(cfg, run);
}

/* ---- the order of a step ------------------------------------------------------------------- */

typedef struct pass_calls {
    zero_pass_call *list; /* NULL: the calls are only counted */
    int n;
} pass_calls;

static void add_call(pass_calls *t, zero_pass_call_kind kind, int unit) {
    const zero_pass_call call = {kind, unit};
    if (t->list) t->list[t->n] = call;
    t->n++;
}

/* Adds the units that gpt2_chunk_forward begins. */
static void add_forward(pass_calls *t, const gpt2_config *cfg, const gpt2_stage *s, int tiles,
                        int c) {
    const int block = gpt2_stage_first_block(cfg, s, tiles) + gpt2_stage_first(s, c);
    for (int i = 0; i <= tiles && gpt2_stage_is_first(s) && c == 0; i++)
        add_call(t, ZERO_CALL_FORWARD, i);
    for (int i = 0; i < gpt2_stage_blocks(s, c); i++) add_call(t, ZERO_CALL_FORWARD, block + i);
}

/* Adds the units that gpt2_chunk_backward begins with parameters. The backward of the lookup reads
   no parameters. */
static void add_backward(pass_calls *t, const gpt2_config *cfg, const gpt2_stage *s, int tiles,
                         int c) {
    const int first = gpt2_stage_first_block(cfg, s, tiles), norm = first + gpt2_stage_layers(s);
    const int rows = cfg->untied ? norm + 1 : 0, block = first + gpt2_stage_first(s, c);
    if (gpt2_stage_is_last(s) && c == s->chunks - 1) {
        add_call(t, ZERO_CALL_FORWARD, norm);
        if (!tiles)
            add_call(t, ZERO_CALL_FORWARD,
                     rows); /* the classifier's backward runs inside its forward */
        for (int i = 0; i < tiles; i++) add_call(t, ZERO_CALL_FORWARD, rows + i);
        for (int i = tiles; i-- > 0;) add_call(t, ZERO_CALL_BACKWARD, rows + i);
        add_call(t, ZERO_CALL_BACKWARD, norm);
    }
    for (int i = gpt2_stage_blocks(s, c); i-- > 0;) add_call(t, ZERO_CALL_BACKWARD, block + i);
}

static void add_works(pass_calls *t, const gpt2_config *cfg, const gpt2_stage *s, int tiles,
                      const pipeline_plan *plan) {
    t->n = 0;
    for (int i = 0; i < plan->works; i++)
        (plan->work[i].backward ? add_backward : add_forward)(t, cfg, s, tiles,
                                                              plan->work[i].chunk);
}

zero_result gpt2_pipeline_order(zero_ctx *z, const gpt2_config *cfg, const gpt2_stage *stage,
                                int tiles, int micro_steps) {
    const pipeline_shape shape = shape_of(stage, micro_steps, 0);
    pipeline_plan plan;
    pass_calls t = {NULL, 0};
    if (pipeline_make(&plan, &shape, stage->stage)) return ZERO_ERR_MEMORY;
    add_works(&t, cfg, stage, tiles, &plan);
    t.list = (zero_pass_call *)calloc((size_t)t.n + 1, sizeof *t.list);
    if (t.list) add_works(&t, cfg, stage, tiles, &plan);
    const zero_result result =
        t.list ? zero_pass_order(z, ZERO_TRAIN, ZERO_TOGETHER, t.list, t.n) : ZERO_ERR_MEMORY;
    free(t.list);
    pipeline_free(&plan);
    return result;
}

/* ---- opening and closing ------------------------------------------------------------------- */

static zero_result refuse(gpt2_error *err, zero_result result, const char *why) {
    if (err) (void)snprintf(err->sentence, sizeof err->sentence, "%s", why);
    return result;
}

static zero_result get_memory(gpt2_pipeline *p, int buffers) {
    if (buffers <= p->buffers) return ZERO_OK;
    gpt2_free(p->memory);
    p->buffers = 0;
    p->memory = gpt2_memory((size_t)buffers * p->bytes);
    if (!p->memory)
        return refuse(&p->error, ZERO_ERR_MEMORY, "no memory for a pipeline's messages");
    p->buffers = buffers;
    return ZERO_OK;
}

static zero_result open_run(gpt2_pipeline *p, int micro_steps, void *wires) {
    const pipeline_shape shape = shape_of(p->stage, micro_steps, 0);
    const int layers = p->stage->first[p->stage->stages * p->stage->chunks];
    char why[PIPELINE_SENTENCE];
    zero_config c;
    if (pipeline_check(&shape, layers, why, sizeof why))
        return refuse(&p->error, ZERO_ERR_ARGUMENT, why);
    if (pipeline_make(&p->train, &shape, p->stage->stage))
        return refuse(&p->error, ZERO_ERR_MEMORY, "no memory for a schedule");
    zero_query_config(p->z, &c);
    const zero_result result = pipeline_open(&p->run, p->stage->pp, c.stream, wires, why);
    if (result != ZERO_OK) return refuse(&p->error, result, why);
    return get_memory(p, p->train.buffers);
}

static zero_result get_tokens(gpt2_pipeline *p) {
    p->inputs = (int *)calloc(2 * p->tokens, sizeof *p->inputs);
    p->losses = (float *)calloc(p->tokens, sizeof *p->losses);
    if (!p->inputs || !p->losses)
        return refuse(&p->error, ZERO_ERR_MEMORY, "no memory for a batch's tokens");
    p->targets = p->inputs + p->tokens;
    return ZERO_OK;
}

zero_result gpt2_pipeline_open(gpt2_pipeline **p, zero_ctx *z, gpt2_model *model,
                               const gpt2_stage *stage, int micro_steps, void *wires,
                               gpt2_error *err) {
    gpt2_pipeline *made = (gpt2_pipeline *)calloc(1, sizeof *made);
    *p = NULL;
    if (!made) return refuse(err, ZERO_ERR_MEMORY, "no memory for a pipeline");
    made->z = z;
    made->model = model;
    made->stage = stage;
    made->bytes = gpt2_chunk_bytes(model);
    made->tokens = gpt2_batch_tokens(model);
    zero_result result = get_tokens(made);
    if (result == ZERO_OK && !gpt2_stage_is_whole(stage))
        result = open_run(made, micro_steps, wires);
    if (result != ZERO_OK) {
        (void)refuse(err, result, made->error.sentence);
        gpt2_pipeline_close(made);
        return result;
    }
    *p = made;
    return ZERO_OK;
}

void gpt2_pipeline_close(gpt2_pipeline *p) {
    if (!p) return;
    pipeline_close(p->run);
    pipeline_free(&p->train);
    pipeline_free(&p->eval);
    gpt2_free(p->memory);
    free(p->inputs);
    free(p->losses);
    free(p);
}

const char *gpt2_pipeline_error(const gpt2_pipeline *p) { return p->error.sentence; }

/* ---- passes -------------------------------------------------------------------------------- */

/* Copies the sentence of an error: the model's, or, if that is empty, the context's. */
static zero_result failed(gpt2_pipeline *p, zero_result result) {
    if (result == ZERO_OK) return ZERO_OK;
    const char *why = gpt2_last_error(p->model);
    p->in_host = 1;
    return refuse(&p->error, result, why[0] ? why : zero_last_error(p->z));
}

static zero_result step(gpt2_pipeline *p, const pipeline_plan *plan,
                        const pipeline_functions *host) {
    p->in_host = 0;
    p->error.sentence[0] = '\0';
    const zero_result result = pipeline_step(p->run, plan, host, p->memory, p->bytes);
    if (result != ZERO_OK && !p->in_host)
        (void)refuse(&p->error, result, zero_group_error(p->stage->pp));
    return result;
}

/* Returns 1 for the last chunk of the model. */
static int is_end(const gpt2_pipeline *p, const pipeline_work *w) {
    return gpt2_stage_is_last(p->stage) && w->chunk == p->stage->chunks - 1;
}

/* Begins a chunk. The first and the last chunk load their tokens for each call, because keeping the
   tokens of all micro-batches would take more memory than loading them takes time. */
static gpt2_chunk enter(gpt2_pipeline *p, const pipeline_work *w, void *in) {
    const int first = in == NULL, last = is_end(p, w);
    gpt2_chunk c;
    memset(&c, 0, sizeof c);
    c.chunk = w->chunk;
    c.slot = w->slot;
    c.inputs = p->inputs;
    c.targets = p->targets;
    c.in = in;
    c.rows =
        p->feed->load(p->feed->user, w->micro, first ? p->inputs : NULL, last ? p->targets : NULL);
    return c;
}

static zero_result train_forward(void *user, const pipeline_work *w, void *in, void *out) {
    gpt2_pipeline *p = (gpt2_pipeline *)user;
    gpt2_chunk c = enter(p, w, in);
    c.out = out;
    c.train = 1;
    return failed(p, gpt2_chunk_forward(p->model, &c));
}

static zero_result train_backward(void *user, const pipeline_work *w, void *in, void *gradient) {
    gpt2_pipeline *p = (gpt2_pipeline *)user;
    gpt2_chunk c = enter(p, w, in);
    c.gradient = gradient;
    return failed(p, gpt2_chunk_backward(p->model, &c, p->factor));
}

zero_result gpt2_pipeline_train(gpt2_pipeline *p, const gpt2_feed *feed, float loss_factor) {
    const pipeline_functions host = {train_forward, train_backward, p};
    p->feed = feed;
    p->first = 0;
    p->factor = loss_factor;
    return step(p, &p->train, &host);
}

/* ---- evaluation ---------------------------------------------------------------------------- */

static zero_result eval_end(gpt2_pipeline *p, const pipeline_work *w, const gpt2_chunk *c) {
    double sum = 0;
    if (p->logits) return gpt2_chunk_logits(p->model, c, p->t, p->logits);
    ZERO_TRY(gpt2_chunk_loss(p->model, c, &sum));
    p->sum += sum;
    if (!p->feed->take) return ZERO_OK;
    const size_t n = (size_t)c->rows * (p->tokens / (size_t)gpt2_batch(p->model));
    ZERO_TRY(gpt2_token_losses(p->model, p->losses, n));
    p->feed->take(p->feed->user, p->first + w->micro, p->losses);
    return ZERO_OK;
}

/* Forward of one chunk, as a pass of its own, because chunks of other micro-batches run in between.
 */
static zero_result eval_forward(void *user, const pipeline_work *w, void *in, void *out) {
    gpt2_pipeline *p = (gpt2_pipeline *)user;
    gpt2_chunk c = enter(p, w, in);
    c.out = out;
    zero_result result = gpt2_pass_begin(p->model, ZERO_EVAL, 0, 1);
    if (result == ZERO_OK) result = gpt2_chunk_forward(p->model, &c);
    if (result == ZERO_OK && is_end(p, w)) result = eval_end(p, w, &c);
    if (result == ZERO_OK) result = gpt2_pass_end(p->model);
    return failed(p, result);
}

/* Runs forward for n micro-batches. The plan is kept for the next call with the same n. */
static zero_result evaluate(gpt2_pipeline *p, int n) {
    const pipeline_functions host = {eval_forward, NULL, p};
    if (p->eval.shape.micro != n) {
        const pipeline_shape shape = shape_of(p->stage, n, 1);
        pipeline_free(&p->eval);
        if (pipeline_make(&p->eval, &shape, p->stage->stage))
            return refuse(&p->error, ZERO_ERR_MEMORY, "no memory for a schedule");
    }
    ZERO_TRY(get_memory(p, p->eval.buffers));
    return step(p, &p->eval, &host);
}

/* Computes the loss of batch i without a pipeline, in one pass. */
static zero_result plain_loss(gpt2_pipeline *p, const gpt2_feed *feed, int i) {
    const int rows = feed->load(feed->user, i, p->inputs, p->targets);
    double sum = 0;
    ZERO_TRY(gpt2_pass_begin(p->model, ZERO_EVAL, 0, 1));
    ZERO_TRY(gpt2_loss(p->model, p->inputs, p->targets, rows, &sum));
    p->sum += sum;
    if (feed->take)
        ZERO_TRY(gpt2_token_losses(p->model, p->losses,
                                   (size_t)rows * (p->tokens / (size_t)gpt2_batch(p->model))));
    ZERO_TRY(gpt2_pass_end(p->model));
    if (feed->take) feed->take(feed->user, i, p->losses);
    return ZERO_OK;
}

zero_result gpt2_pipeline_loss(gpt2_pipeline *p, const gpt2_feed *feed, int first, int n,
                               double *sum) {
    zero_result result = ZERO_OK;
    p->feed = feed;
    p->first = first;
    p->logits = NULL;
    p->sum = 0;
    if (p->run)
        result = evaluate(p, n);
    else
        for (int i = 0; i < n && result == ZERO_OK; i++)
            result = failed(p, plain_loss(p, feed, first + i));
    *sum = p->sum;
    return result;
}

/* A batch in memory, and whether its losses were taken. It is the `user` of a feed. */
typedef struct batch {
    const int *inputs, *targets;
    size_t bytes;
    int rows, taken;
} batch;

static int load_held(void *user, int i, int *inputs, int *targets) {
    const batch *b = (const batch *)user;
    (void)i;
    if (inputs) memcpy(inputs, b->inputs, b->bytes);
    if (targets) memcpy(targets, b->targets, b->bytes);
    return b->rows;
}
static void take_held(void *user, int i, const float *losses) {
    (void)i;
    ((batch *)user)->taken = losses != NULL;
}

zero_result gpt2_pipeline_batch(gpt2_pipeline *p, const int *inputs, const int *targets, int rows,
                                const float **losses) {
    batch b = {inputs, targets, p->tokens * sizeof *inputs, rows, 0};
    const gpt2_feed feed = {load_held, take_held, &b};
    double sum;
    const zero_result result = gpt2_pipeline_loss(p, &feed, 0, 1, &sum);
    *losses = b.taken ? p->losses : NULL;
    return result;
}

/* Sends the logits of the last stage to all stages. */
static zero_result share_logits(gpt2_pipeline *p, float *logits, size_t n) {
    float *shared = (float *)zero_host_alloc(n * sizeof *shared);
    if (!shared) return refuse(&p->error, ZERO_ERR_MEMORY, "no memory for logits");
    memcpy(shared, logits, n * sizeof *shared);
    zero_result result =
        zero_group_broadcast(p->stage->pp, shared, n * sizeof *shared, p->stage->stages - 1);
    if (result == ZERO_OK) result = zero_group_barrier(p->stage->pp);
    if (result != ZERO_OK)
        (void)refuse(&p->error, result, zero_group_error(p->stage->pp));
    else
        memcpy(logits, shared, n * sizeof *shared);
    zero_host_free(shared);
    return result;
}

/* One sequence of t tokens, padded to `all`. No token attends to a later one. */
typedef struct sequence {
    const int *tokens;
    size_t t, all;
} sequence;

static int load_sequence(void *user, int i, int *inputs, int *targets) {
    const sequence *s = (const sequence *)user;
    (void)i;
    (void)targets;
    if (inputs) memset(inputs, 0, s->all * sizeof *inputs);
    if (inputs) memcpy(inputs, s->tokens, s->t * sizeof *inputs);
    return 1;
}

static zero_result plain_logits(gpt2_pipeline *p, const int *inputs, int t, int next,
                                float *logits) {
    ZERO_TRY(gpt2_pass_begin(p->model, ZERO_EVAL, 0, 1));
    ZERO_TRY((next ? gpt2_next_logits : gpt2_logits)(p->model, inputs, t, logits));
    return gpt2_pass_end(p->model);
}

zero_result gpt2_pipeline_logits(gpt2_pipeline *p, const int *inputs, int t, float *logits) {
    sequence s = {inputs, (size_t)t, p->tokens};
    const gpt2_feed feed = {load_sequence, NULL, &s};
    if (!p->run) return failed(p, plain_logits(p, inputs, t, 0, logits));
    p->first = 0;
    p->feed = &feed;
    p->logits = logits;
    p->t = t;
    const zero_result result = evaluate(p, 1);
    p->feed = NULL;
    if (result != ZERO_OK) return result;
    return share_logits(p, logits, gpt2_vocabulary(p->model));
}

zero_result gpt2_pipeline_next_logits(gpt2_pipeline *p, const int *inputs, int t, float *logits) {
    if (p->run) return gpt2_pipeline_logits(p, inputs, t, logits);
    return failed(p, plain_logits(p, inputs, t, 1, logits));
}

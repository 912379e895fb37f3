/* test_gpt2_experts.c - GPT-2 with a mixture of experts, adapters/gpt2/experts.h: a layer beside a
   plain one in doubles, whose gradients are differences; trainings on data-parallel ranks that
   share experts beside one rank that routes each rank's tokens by themselves, with tensor and
   pipeline parallelism, optimizers that look at whole tensors, delayed updates and tiles; the same
   bits at every stage; all-to-alls and bytes as the formula says; what cannot be.

   With ops_cpu.c as C; with ops_cuda.cu by nvcc on a GPU, or by g++ on the emulation. */
#include "../shared/harness.h"
#include "test_gpt2_ranks.h"

#include "../../adapters/gpt2/experts.h"
#include "../../adapters/gpt2/frozen.h"
#include "../../adapters/gpt2/gpt2.h"
#include "../../adapters/gpt2/pipelined.h"

#include <math.h>

#ifdef _OPENMP
#include <omp.h>
#endif

/* ---- one layer beside a plain one ------------------------------------------------------------ */

enum { LC = 8, LR = 12, LE = 4, HIDDEN = 4 * LC, LAYER_NUMEL = 3 * LC * LR + 12 * LE * LC * LC };

/* A layer of experts, in doubles: tensors behind one another. */
typedef struct plain {
    double gatew[LE][LC], xfcw[LE][HIDDEN][LC], xfcb[LE][HIDDEN], xprojw[LE][LC][HIDDEN],
        xprojb[LE][LC], in[LR][LC];
} plain;
enum { PLAIN_NUMEL = (int)(sizeof(plain) / sizeof(double)) };

typedef struct layer_case {
    int chosen;
    float capacity, aux;
    int recompute;
} layer_case;

static double plain_gelu(double x) {
    return 0.5 * x * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
}

static void plain_gates(const plain *p, double gates[LR][LE]) {
    for (int r = 0; r < LR; r++) {
        double sum = 0;
        for (int e = 0; e < LE; e++) {
            double logit = 0;
            for (int c = 0; c < LC; c++) logit += p->in[r][c] * p->gatew[e][c];
            sum += gates[r][e] = exp(logit);
        }
        for (int e = 0; e < LE; e++) gates[r][e] /= sum;
    }
}

/* Who has a row's choice j: the expert, or -1, dropped. Returns how many are. */
static int plain_choose(const layer_case *t, double gates[LR][LE], int has[LR][2], int first[LR]) {
    int taken[LE] = {0}, dropped = 0, choice[LR][2];
    int capacity = (int)ceil((double)LR / LE * t->chosen * (double)t->capacity);
    if (capacity < 4) capacity = 4;
    for (int r = 0; r < LR; r++)
        for (int j = 0; j < 2; j++) {
            int most = -1;
            for (int e = 0; e < LE; e++)
                if (!(j && e == choice[r][0]) && (most < 0 || gates[r][e] > gates[r][most]))
                    most = e;
            choice[r][j] = most;
            has[r][j] = -1;
        }
    for (int j = 0; j < t->chosen; j++)
        for (int r = 0; r < LR; r++) {
            const int room = taken[choice[r][j]]++ < capacity;
            has[r][j] = room ? choice[r][j] : -1;
            dropped += !room;
        }
    for (int r = 0; r < LR; r++) first[r] = choice[r][0];
    return dropped;
}

static void plain_expert(const plain *p, int e, const double *in, double weight, double *out) {
    for (int c = 0; c < LC; c++) out[c] += weight * p->xprojb[e][c];
    for (int h = 0; h < HIDDEN; h++) {
        double x = p->xfcb[e][h];
        for (int c = 0; c < LC; c++) x += p->xfcw[e][h][c] * in[c];
        x = plain_gelu(x);
        for (int c = 0; c < LC; c++) out[c] += weight * p->xprojw[e][c][h] * x;
    }
}

/* out, and the sum of out times dout + aux times the auxiliary loss. */
static double plain_layer(const layer_case *t, const plain *p, double out[LR][LC],
                          const float *dout, double *auxiliary, int *dropped) {
    double gates[LR][LE], loss = 0, aux = 0;
    int has[LR][2], first[LR];
    plain_gates(p, gates);
    *dropped = plain_choose(t, gates, has, first);
    for (int r = 0; r < LR; r++) {
        double sum = 0;
        for (int c = 0; c < LC; c++) out[r][c] = 0;
        for (int j = 0; j < 2; j++) sum += has[r][j] < 0 ? 0 : gates[r][has[r][j]];
        for (int j = 0; j < 2; j++)
            if (has[r][j] >= 0)
                plain_expert(p, has[r][j], p->in[r],
                             gates[r][has[r][j]] / (t->chosen == 1 ? 1 : sum), out[r]);
        for (int c = 0; c < LC; c++) loss += out[r][c] * (double)dout[r * LC + c];
    }
    for (int e = 0; e < LE; e++) {
        double share = 0, mean = 0;
        for (int r = 0; r < LR; r++) {
            share += first[r] == e;
            mean += gates[r][e];
        }
        aux += LE * share / LR * mean / LR;
    }
    *auxiliary = aux;
    return loss + (double)t->aux * aux;
}

/* What the layer of experts.h makes of it; weights and input in f32. */
typedef struct layer_made {
    float out[LR * LC], grad[PLAIN_NUMEL];
    double aux, dropped;
} layer_made;

static const char *const tensor_names[] = {"gatew", "xfcw", "xfcb", "xprojw", "xprojb"};
static const size_t tensor_numel[] = {LE * LC, LE *HIDDEN *LC, LE *HIDDEN, LE *HIDDEN *LC, LE *LC};

/* Memory of the device, and back. */
static void upload(ops_ctx *o, void *to, const float *from, size_t n) {
#ifdef __CUDACC__
    (void)o;
    (void)cudaMemcpy(to, from, n * sizeof *from, cudaMemcpyHostToDevice);
    (void)cudaDeviceSynchronize(); /* the copy may still run, and streams do not wait for it */
#else
    (void)o;
    memcpy(to, from, n * sizeof *from);
#endif
}

static zero_result run_layer(zero_ctx *z, experts *x, ops_ctx *o, const layer_case *t,
                             const plain *p, const float *dout, layer_made *made) {
    const size_t n = LR * LC;
    float *at = (float *)ops_alloc(5 * n * sizeof(float)), in[LR * LC];
    for (size_t i = 0; i < n; i++) in[i] = (float)(&p->in[0][0])[i];
    ops_clear(o, at, 5 * n * sizeof(float));
    upload(o, at, in, n);
    upload(o, at + n, dout, n);
    ZERO_TRY(zero_pass_begin(z, ZERO_TRAIN, 0, 1));
    ZERO_TRY(experts_forward(x, 0, at + 2 * n, at + 4 * n, at, LR, 1));
    ZERO_TRY(experts_backward(x, 0, at + 3 * n, at, at + n, LR, t->aux));
    ZERO_TRY(zero_pass_end(z));
    ZERO_TRY(zero_reduce(z));
    ops_download(o, made->out, at + 2 * n, ZERO_F32, n);
    size_t done = 0;
    for (int i = 0; i < 5; i++) {
        ZERO_TRY(zero_read_tensor(z, tensor_names[i], ZERO_GRADIENT, 0, tensor_numel[i],
                                  made->grad + done));
        done += tensor_numel[i];
    }
    ops_download(o, made->grad + done, at + 3 * n, ZERO_F32, n);
    experts_take(x, &made->aux, &made->dropped);
    ops_free(at);
    return ZERO_OK;
}

static zero_result make_layer(const layer_case *t, const plain *p, const float *dout,
                              layer_made *made) {
    const gpt2_config cfg = {LR,   65, 128, 2, 2, LC, 0, {LE, t->chosen, t->capacity, t->aux},
                             NULL, 0,  0,   0};
    const ops_limits limits = {1, 2, LR, LC / 2, HIDDEN, 128, LR};
    const ops_settings settings = {ZERO_F32, ZERO_F32, NULL, 0, 0};
    const zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
    gpt2_parallel how;
    memset(&how, 0, sizeof how);
    const gpt2_run run = {1, LR, t->recompute, ZERO_F32, 0, 0, 0, NULL, &how, 0, 0, 0};
    const double *from = &p->gatew[0][0];
    float values[LE * HIDDEN * LC];
    char why[OPS_SENTENCE];
    zero_config zc;
    zero_ctx *z = NULL;
    experts *x = NULL;
    ops_ctx *o = NULL;
    memset(&zc, 0, sizeof zc);
    zero_result r = zero_create(&z, &zc, &self);
    if (!r) r = experts_announce(z, &cfg, &how);
    if (!r) r = zero_build(z);
    for (int i = 0; i < 5 && !r; i++) {
        for (size_t k = 0; k < tensor_numel[i]; k++) values[k] = (float)*from++;
        r = zero_write_tensor(z, tensor_names[i], ZERO_PARAMETER, 0, tensor_numel[i], values);
    }
    how.experts = z;
    if (!r) r = ops_create(&o, &limits, &settings, why);
    if (!r) r = experts_create(&x, &cfg, &run, o, NULL);
    if (!r) r = run_layer(z, x, o, t, p, dout, made);
    test_check(!r, "a layer: %d: %s %s", (int)r, zero_last_error(z), x ? experts_error(x) : "");
    experts_destroy(x);
    ops_destroy(o);
    zero_destroy(z);
    return r;
}

static double drawn(uint64_t stream, uint64_t i) {
    return (double)(gpt2_draw(3, stream, i) >> 11) / 4503599627370496.0 - 1;
}

static void test_layer(layer_case t) {
    plain *p = (plain *)calloc(1, sizeof *p);
    layer_made *made = (layer_made *)calloc(1, sizeof *made);
    double *at = &p->gatew[0][0], out[LR][LC], aux = 0, off = 0, all = 0, other[2];
    float dout[LR * LC];
    int dropped = 0, ignored;
    for (int i = 0; i < PLAIN_NUMEL; i++) at[i] = (double)(float)(0.5 * drawn(1, (uint64_t)i));
    for (int r = 0; r < LR; r++) p->in[r][0] += 0.5; /* some experts are asked more than others */
    for (int i = 0; i < LE; i++) p->gatew[i][0] = (double)(float)(0.8 * i);
    for (int i = 0; i < LR * LC; i++) dout[i] = (float)drawn(2, (uint64_t)i);
    for (int r = 0; r < LR; r++)
        for (int c = 0; c < LC; c++) p->in[r][c] = (double)(float)p->in[r][c];
    (void)plain_layer(&t, p, out, dout, &aux, &dropped);
    if (make_layer(&t, p, dout, made) == ZERO_OK) {
        for (int i = 0; i < LR * LC; i++)
            off = fmax(off, fabs((double)made->out[i] - (&out[0][0])[i]));
        test_check(off < 1e-6, "k %d: a layer's output is off by %g", t.chosen, off);
        test_check(fabs(made->aux - aux) < 1e-6 && made->dropped == dropped,
                   "k %d: auxiliary loss %.9g, plain %.9g; dropped %g, plain %d", t.chosen,
                   made->aux, aux, made->dropped, dropped);
        test_check((dropped > 0) == (t.capacity < 2), "k %d, capacity %g: %d dropped", t.chosen,
                   (double)t.capacity, dropped);
        off = 0;
        for (int i = 0; i < PLAIN_NUMEL; i++) {
            const double was = at[i], step = 1e-6;
            double some[LR][LC];
            for (int sign = 0; sign < 2; sign++) {
                at[i] = was + (sign ? step : -step);
                other[sign] = plain_layer(&t, p, some, dout, &aux, &ignored);
            }
            at[i] = was;
            const double difference = (other[1] - other[0]) / (2 * step);
            off += pow(difference - (double)made->grad[i], 2);
            all += pow(difference, 2);
        }
        test_check(sqrt(off / all) < 1e-6, "k %d, recompute %d: gradients are off by %g", t.chosen,
                   t.recompute, sqrt(off / all));
    }
    free(made);
    free(p);
}

/* ---- trainings ---------------------------------------------------------------------------------
 */

#ifdef __CUDACC__
enum { SAME_GELU = 0 }; /* what cuBLASLt and the own kernel say of GELU is a rounding apart */
#else
enum { SAME_GELU = 1 };
#endif

enum { V = 300, Vp = 384, L = 4, NH = 4, C = 32, T = 16, B = 2, MICRO = 2, MOST_STEPS = 20 };
enum { E = 4, MOST_NUMEL = 800000, MOST_UNITS = 256, MOST_MICRO = 4 };

/* A training on pp stages of dp ranks, ep of which share a layer's experts, of tp that have it in
   parts; and what the first rank finds. */
typedef struct training {
    int dp, ep, chosen, stage, steps, recompute, micro;
    int tp, sequence, pp, chunks, layers, untied, tile_rows, delay;
    int together; /* 1: the micro-batches pass each layer together; 0: one after the other */
    zero_optimizer optimizer;
    zero_accumulation accumulation;
    zero_type type;
    zero_tier tier;
    float capacity;
    double loss[MOST_STEPS], norm[MOST_STEPS], aux[MOST_STEPS], dropped[MOST_STEPS], eval;
    float *grad; /* of the first step: all that is dense, then gates and experts; shared by ranks */
    uint64_t weights;
    uint64_t sent, formula, exchanges; /* of the expert group, in the first step */
    int planned;                       /* both contexts sent in that step what their plans say */
} training;

typedef struct part {
    training *t;
    gpt2_config cfg;
    int rank, dp_rank;
    zero_group *world, *dp, *ep, *edp, *tp;
    gpt2_stage stage;
    gpt2_parallel how;
    zero_ctx *z, *zx;
    gpt2_model *m;
    gpt2_pipeline *line;
    int unit[MOST_UNITS], expert_unit[MOST_UNITS];
    double *sums; /* memory that groups reach */
    gpt2_error err;
} part;

static gpt2_config config_of(const training *t) {
    const gpt2_config c = {
        T, V, Vp, t->layers, NH, C, t->untied, {E, t->chosen, t->capacity, 0.05f}, NULL, 0, 0, 0};
    return c;
}

static gpt2_run run_of(const part *p) {
    const training *t = p->t;
    const gpt2_run run = {B,        T,       t->recompute,           t->type, 0, 0, t->tile_rows,
                          P_tmpdir, &p->how, t->together * t->micro, 0,       0};
    return run;
}

/* Rank = (stage * dp + data-parallel rank) * tp + tensor-parallel rank. */
static zero_result open_groups(part *p, const zero_comm *comm) {
    const training *t = p->t;
    const int tp_rank = p->rank % t->tp, dp = p->rank / t->tp % t->dp;
    const int pp = p->rank / t->tp / t->dp, ends = pp == 0 || pp == t->pp - 1;
    p->dp_rank = dp;
    p->sums = (double *)zero_host_alloc(3 * sizeof *p->sums);
    ZERO_TRY(zero_group_open(&p->world, comm, NULL, 60));
    ZERO_TRY(zero_group_split(p->world, pp * t->tp + tp_rank, dp, &p->dp));
    ZERO_TRY(zero_group_split(p->dp, dp / t->ep, dp, &p->ep));
    ZERO_TRY(zero_group_split(p->dp, dp % t->ep, dp, &p->edp));
    ZERO_TRY(zero_group_split(p->world, pp * t->dp + dp, tp_rank, &p->tp));
    p->how.ep = p->ep;
    p->how.tp = p->tp;
    p->how.sequence = t->sequence;
    if (t->pp == 1) return ZERO_OK;
    ZERO_TRY(gpt2_stage_make(&p->stage, &p->cfg, t->pp, t->chunks, pp, T, &p->err));
    gpt2_pipeline_slots(&p->stage, t->micro);
    p->how.stage = &p->stage;
    ZERO_TRY(zero_group_split(p->world, dp * t->tp + tp_rank, pp, &p->stage.pp));
    return zero_group_split(p->world, ends ? dp * t->tp + tp_rank : -1, pp, &p->stage.ends);
}

static zero_result open_contexts(part *p) {
    const training *t = p->t;
    const zero_comm comm = zero_group_comm(p->dp), of_experts = zero_group_comm(p->edp);
    const int tiles = gpt2_tiles(&p->cfg, t->tp, t->tile_rows);
    const int dense = gpt2_world_units(&p->cfg, tiles);
    const experts_part mine = experts_part_of(&p->how);
    zero_config zc;
    memset(&zc, 0, sizeof zc);
    zc.stage = t->stage;
    zc.micro_steps = t->together ? 1 : t->micro;
    zc.no_mapping = t->together;
    zc.accumulation = t->accumulation;
    zc.type = t->type;
    zc.log = test_quiet;
    zc.world = p->world;
    zc.world_units = dense + experts_world_units(&p->cfg);
    zc.optimizer_tier = t->tier;
    zc.folder = P_tmpdir;
    zc.optimizer = t->optimizer;
    zc.delay_from = t->delay;
    if (t->micro > 1 || t->accumulation == ZERO_ACCUMULATE_LOCAL) zc.grads = ZERO_GRAD_F32;
    if (t->pp > 1) gpt2_stage_world(&p->cfg, &p->stage, tiles, p->unit);
    if (t->pp > 1) zc.world_unit = p->unit;
    ZERO_TRY(zero_create(&p->z, &zc, &comm));
    ZERO_TRY(gpt2_announce(p->z, &p->cfg, &p->how, t->tile_rows));
    if (t->together) ZERO_TRY(gpt2_layers_order(p->z, &p->cfg, tiles));
    ZERO_TRY(zero_build(p->z));
    experts_world(&p->cfg, &mine, dense, p->expert_unit);
    zc.world_unit = p->expert_unit;
    zc.joins = p->z;
    zc.divisor = t->dp;
    if (t->together) zc.open_units = experts_open_units(&p->cfg, &mine);
    ZERO_TRY(zero_create(&p->zx, &zc, &of_experts));
    ZERO_TRY(experts_announce(p->zx, &p->cfg, &p->how));
    if (t->together) ZERO_TRY(experts_order(p->zx, &p->cfg, &mine));
    p->how.experts = p->zx;
    return zero_build(p->zx);
}

static zero_result open_model(part *p) {
    const gpt2_run run = run_of(p);
    ZERO_TRY(open_contexts(p));
    ZERO_TRY(gpt2_init_part(p->z, &p->cfg, &p->how, 7, &p->err));
    ZERO_TRY(gpt2_create(&p->m, p->z, &p->cfg, &run, &p->err));
    return gpt2_pipeline_open(&p->line, p->z, p->m, p->how.stage, p->t->micro, NULL, &p->err);
}

/* Gradients: dense ones by the first rank, experts by the first that has each, to their places. */
static zero_result read_gradients(part *p) {
    const experts_part mine = experts_part_of(&p->how), all = experts_part_of(NULL);
    zero_tensor_desc table[GPT2_MOST_TENSORS], x[EXPERTS_TENSORS], whole[EXPERTS_TENSORS];
    const int n = gpt2_table(&p->cfg, NULL, 0, table);
    float *own = p->rank == 0 ? p->t->grad : NULL;
    size_t at = 0;
    for (int i = 0; i < n; i++) {
        const size_t count = table[i].numel * (size_t)table[i].layers;
        ZERO_TRY(
            gpt2_read(p->z, &p->cfg, &p->how, i, ZERO_GRADIENT, 0, count, own ? own + at : NULL));
        at += count;
    }
    experts_table(&p->cfg, &mine, x);
    experts_table(&p->cfg, &all, whole);
    for (int i = 0; i < EXPERTS_TENSORS; i++)
        for (int l = 0; l < x[i].layers; l++) {
            const int place = experts_number(&p->cfg, &mine, i, l);
            float *to = p->t->grad + at + (size_t)place * whole[i].numel;
            for (int k = 0; k < i; k++) to += whole[k].numel * (size_t)whole[k].layers;
            const int keeps = p->dp_rank < mine.ranks && !mine.tp_rank && (i || !mine.rank);
            ZERO_TRY(experts_read(p->zx, &p->cfg, &p->how, i, ZERO_GRADIENT, l, 0, whole[i].numel,
                                  keeps ? to : NULL));
        }
    return ZERO_OK;
}

/* Batches of a step, or what is looked at, of which the first data-parallel rank has a batch. */
typedef struct tokens_of {
    const part *p;
    int first, each, rows;
} tokens_of;

static int load_tokens(void *user, int i, int *inputs, int *targets) {
    const tokens_of *l = (const tokens_of *)user;
    int tokens[2 * B * T];
    ranks_draw_tokens(tokens, B * T, V, 0, l->first + i * l->each);
    if (inputs) memcpy(inputs, tokens, B * T * sizeof *tokens);
    if (targets) memcpy(targets, tokens + B * T, B * T * sizeof *tokens);
    return l->rows;
}

static zero_result run_layers(part *p, tokens_of *l, float factor) {
    int inputs[MOST_MICRO * B * T], targets[MOST_MICRO * B * T];
    for (int i = 0; i < p->t->micro; i++)
        (void)load_tokens(l, i, inputs + i * B * T, targets + i * B * T);
    ZERO_TRY(gpt2_pass_begin(p->m, ZERO_TRAIN, 0, 1));
    ZERO_TRY(gpt2_train_layers(p->m, inputs, targets, factor));
    return gpt2_pass_end(p->m);
}

static zero_result run_micro_steps(part *p, int step) {
    training *t = p->t;
    const float factor = zero_loss_scale(p->z) / (float)t->micro;
    tokens_of l = {p, step * t->micro * t->dp + p->dp_rank, t->dp, B};
    const gpt2_feed feed = {load_tokens, NULL, &l};
    int tokens[2 * B * T];
    if (t->pp > 1) {
        ZERO_TRY(gpt2_pass_begin(p->m, ZERO_TRAIN, ZERO_TOGETHER, t->micro));
        ZERO_TRY(gpt2_pipeline_train(p->line, &feed, factor));
        return gpt2_pass_end(p->m);
    }
    if (t->together) return run_layers(p, &l, factor);
    for (int micro = 0; micro < t->micro; micro++) {
        (void)load_tokens(&l, micro, tokens, tokens + B * T);
        ZERO_TRY(gpt2_pass_begin(p->m, ZERO_TRAIN, micro, t->micro));
        ZERO_TRY(gpt2_train_step(p->m, tokens, tokens + B * T, factor, NULL));
        ZERO_TRY(gpt2_pass_end(p->m));
    }
    return ZERO_OK;
}

/* Over all ranks, in place. */
static zero_result sum_all(part *p, double *values, int n) {
    memcpy(p->sums, values, (size_t)n * sizeof *values);
    ZERO_TRY(zero_group_all_reduce(p->world, p->sums, (size_t)n, ZERO_F64, ZERO_SUM));
    ZERO_TRY(zero_group_barrier(p->world));
    memcpy(values, p->sums, (size_t)n * sizeof *values);
    return ZERO_OK;
}

static uint64_t sent_by(const part *p) {
    zero_group_stats tp, ep;
    zero_group_query_stats(p->tp, &tp);
    zero_group_query_stats(p->ep, &ep);
    return tp.sent_bytes + ep.sent_bytes;
}

static zero_result check_planned(part *p) {
    zero_ctx *const contexts[] = {p->z, p->zx};
    p->t->planned = 1;
    for (int i = 0; i < 2; i++) {
        zero_plan plan;
        zero_stats stats;
        ZERO_TRY(zero_query_plan(contexts[i], &plan));
        ZERO_TRY(zero_query_stats(contexts[i], &stats));
        p->t->planned &=
            stats.sent_bytes == plan.sent_bytes && stats.gather_bytes == plan.gather_bytes;
    }
    return ZERO_OK;
}

static zero_result take_step(part *p, int step) {
    training *t = p->t;
    const zero_hyper hyper = {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f};
    const gpt2_run run = run_of(p);
    zero_group_stats before, after;
    zero_step_report done;
    double sums[3];
    zero_group_query_stats(p->ep, &before);
    const uint64_t sent = sent_by(p);
    ZERO_TRY(run_micro_steps(p, step));
    zero_group_query_stats(p->ep, &after);
    t->sent = step ? t->sent : sent_by(p) - sent;
    ZERO_TRY(zero_reduce(p->zx));
    ZERO_TRY(zero_reduce(p->z));
    if (step == 0 && t->grad) ZERO_TRY(read_gradients(p));
    ZERO_TRY(zero_step(p->zx, &hyper));
    ZERO_TRY(zero_step(p->z, &hyper));
    ZERO_TRY(gpt2_take_losses(p->m, &sums[0]));
    ZERO_TRY(gpt2_take_experts(p->m, &sums[1], &sums[2]));
    ZERO_TRY(sum_all(p, sums, 3));
    ZERO_TRY(zero_step_result(p->z, &done));
    t->loss[step] = sums[0] / t->dp / t->tp;
    t->aux[step] = sums[1] / t->dp / t->tp;
    t->dropped[step] = sums[2] / t->tp;
    t->norm[step] = done.norm;
    if (step) return ZERO_OK;
    ZERO_TRY(check_planned(p));
    t->exchanges = after.all_to_alls - before.all_to_alls;
    t->formula = (uint64_t)t->micro * gpt2_parallel_bytes(&p->cfg, &run);
    return ZERO_OK;
}

/* Of the whole model's weights, however they are divided. */
static zero_result hash_dense(part *p, uint64_t *hash) {
    zero_tensor_desc table[GPT2_MOST_TENSORS];
    const int n = gpt2_table(&p->cfg, NULL, 0, table);
    zero_result result = ZERO_OK;
    float *values = (float *)calloc(MOST_NUMEL, sizeof *values);
    for (int i = 0; i < n && !result; i++) {
        const size_t count = table[i].numel * (size_t)table[i].layers;
        result = gpt2_read(p->z, &p->cfg, &p->how, i, ZERO_MASTER, 0, count, values);
        for (size_t k = 0; k < count; k++) {
            uint32_t bits;
            memcpy(&bits, &values[k], sizeof bits);
            *hash = test_mix(*hash ^ bits);
        }
    }
    free(values);
    return result;
}

static zero_result look(part *p) {
    training *t = p->t;
    tokens_of l = {p, 1000, 0, p->dp_rank ? 0 : B};
    const gpt2_feed feed = {load_tokens, NULL, &l};
    uint64_t dense = 0, mixed = 0;
    ZERO_TRY(gpt2_pipeline_loss(p->line, &feed, 0, 1, &t->eval));
    ZERO_TRY(sum_all(p, &t->eval, 1));
    t->eval /= t->tp;
    ZERO_TRY(hash_dense(p, &dense));
    ZERO_TRY(experts_hash(p->zx, &p->cfg, &p->how, &mixed));
    t->weights = test_mix(dense ^ test_mix(mixed));
    return ZERO_OK;
}

static zero_result train_part(part *p, const zero_comm *comm) {
    p->cfg = config_of(p->t);
    ZERO_TRY(open_groups(p, comm));
    ZERO_TRY(open_model(p));
    for (int step = 0; step < p->t->steps; step++) ZERO_TRY(take_step(p, step));
    return look(p);
}

static void train_body(test_rank *r) {
    training *wanted = (training *)r->arg, own = *wanted;
    const zero_comm comm = test_comm(r);
    part p;
    memset(&p, 0, sizeof p);
    p.rank = r->rank;
    p.t = r->rank ? &own : wanted;
    const zero_result result = train_part(&p, &comm);
    if (result)
        test_rank_fail(r, "result %d: %s; %s; %s; %s; %s; %s", (int)result, p.err.sentence,
                       p.line ? gpt2_pipeline_error(p.line) : "", p.m ? gpt2_last_error(p.m) : "",
                       p.z ? zero_last_error(p.z) : "", p.zx ? zero_last_error(p.zx) : "",
                       zero_group_error(p.ep));
    gpt2_pipeline_close(p.line);
    gpt2_destroy(p.m);
    zero_destroy(p.zx);
    zero_destroy(p.z);
    zero_host_free(p.sums);
    zero_group_close(p.stage.ends);
    zero_group_close(p.stage.pp);
    zero_group_close(p.tp);
    zero_group_close(p.edp);
    zero_group_close(p.ep);
    zero_group_close(p.dp);
    zero_group_close(p.world);
}

static const char *name_of(const training *t, char text[128]) {
    (void)snprintf(text, 128,
                   "pp %dx%d dp %d tp %d%s ep %d k %d stage %d recompute %d type %d tier %d opt %d "
                   "delay %d tiles %d",
                   t->pp, t->chunks, t->dp, t->tp, t->sequence ? "s" : "", t->ep, t->chosen,
                   t->stage, t->recompute, (int)t->type, (int)t->tier, (int)t->optimizer, t->delay,
                   t->tile_rows);
    return text;
}

static int train(training *t) {
    char name[128];
    return test_check(test_ranks(t->pp * t->dp * t->tp, 0, train_body, t), "%s: %s",
                      name_of(t, name), test_first);
}

static training layout(int dp, int ep, int chosen) {
    training t;
    memset(&t, 0, sizeof t);
    t.dp = dp;
    t.ep = ep;
    t.chosen = chosen;
    t.steps = EMULATED ? 2 : 6;
    t.micro = MICRO;
    t.tp = t.pp = t.chunks = 1;
    t.layers = L;
    t.accumulation = ZERO_ACCUMULATE_SHARDED;
    t.capacity = 1.0f;
    return t;
}

/* ---- micro-batches that pass each layer together ------------------------------------------------
 */

/* The bits of one after the other, and in both contexts the bytes of the plan. The auxiliary losses
   of a step add up in another order. */
static void test_layers(void) {
    static const struct {
        int ep, tp, sequence, recompute, tile_rows;
    } of[] = {{2, 1, 0, 0, 0}, {1, 1, 0, 3, 0}, {2, 1, 0, 4, 96}, {2, 2, 1, 1, 64}};
    for (int i = 0; i < 4; i++) {
        char name[128];
        training passes = layout(2, of[i].ep, 2);
        if (!test_sampled(EMULATED ? 4 : 2)) continue;
        passes.steps = 3;
        passes.micro = 3;
        passes.untied = !of[i].tile_rows;
        passes.tp = of[i].tp;
        passes.sequence = of[i].sequence;
        passes.recompute = of[i].recompute;
        passes.tile_rows = of[i].tile_rows;
        passes.accumulation = ZERO_ACCUMULATE_LOCAL;
        train(&passes);
        for (int stage = 0; stage < 4; stage++) {
            training t = passes;
            t.together = 1;
            t.stage = stage;
            train(&t);
            test_check(t.weights == passes.weights && t.eval == passes.eval
                           && !memcmp(t.loss, passes.loss, sizeof t.loss)
                           && !memcmp(t.norm, passes.norm, sizeof t.norm)
                           && !memcmp(t.dropped, passes.dropped, sizeof t.dropped)
                           && fabs(t.aux[2] - passes.aux[2]) <= 1e-12 * passes.aux[2],
                       "%s, layer by layer: other bits", name_of(&t, name));
            test_check(t.planned && t.sent == t.formula, "%s: other bytes than planned", name);
        }
    }
}

/* ---- beside one rank that takes the ranks' batches one after the other -------------------------
 */

static double apart(double a, double b) { return fabs(a - b) / fabs(b); }

static void check_gradients(const training *t, const training *one, double most) {
    const gpt2_config cfg = config_of(t);
    const experts_part all_of = experts_part_of(NULL);
    zero_tensor_desc table[GPT2_MOST_TENSORS + EXPERTS_TENSORS];
    int n = gpt2_table(&cfg, NULL, 0, table);
    char name[128];
    size_t at = 0;
    experts_table(&cfg, &all_of, table + n);
    for (int k = 0; k < n + EXPERTS_TENSORS; k++) {
        double off = 0, all = 0;
        for (size_t end = at + table[k].numel * (size_t)table[k].layers; at < end; at++) {
            off += pow((double)t->grad[at] - (double)one->grad[at], 2);
            all += pow((double)one->grad[at], 2);
        }
        test_check(all > 0 && sqrt(off / all) <= most, "%s: gradient of %s is off by %g",
                   name_of(t, name), table[k].name, sqrt(off / all));
    }
}

/* As t's ranks together, one after the other. */
static training one_rank_of(const training *t) {
    training one = *t;
    one.micro = t->micro * t->dp;
    one.dp = one.ep = one.tp = one.pp = one.chunks = 1;
    one.sequence = one.stage = one.recompute = one.tile_rows = 0;
    one.tier = ZERO_DEVICE;
    one.grad = (float *)calloc(MOST_NUMEL, sizeof(float));
    train(&one);
    return one;
}

static void check_near(training *t, const training *one, double rounding) {
    double loss = 0, norm = 0, aux = 0, dropped = 0, all = 0;
    char name[128];
    t->grad = (float *)calloc(MOST_NUMEL, sizeof(float));
    train(t);
    (void)name_of(t, name);
    for (int i = 0; i < t->steps; i++) {
        loss = fmax(loss, fabs(t->loss[i] - one->loss[i]));
        norm = fmax(norm, apart(t->norm[i], one->norm[i]));
        aux = fmax(aux, fabs(t->aux[i] - one->aux[i]));
        dropped += fabs(t->dropped[i] - one->dropped[i]);
        all += one->dropped[i];
    }
    test_check(loss <= 10 * rounding && aux <= 10 * rounding,
               "%s: losses are off by %g, auxiliary ones by %g", name, loss, aux);
    test_check(apart(t->norm[0], one->norm[0]) <= rounding / 10 && norm <= 100 * rounding,
               "%s: norm %.9g, one rank's %.9g; off by %g later", name, t->norm[0], one->norm[0],
               norm);
    test_check(all > 0 && (t->type != ZERO_F32 || dropped == 0),
               "%s: %g choices dropped on one rank, %g otherwise", name, all, dropped);
    test_check(apart(t->eval, one->eval) <= 10 * rounding, "%s: evaluation %.9g, one rank's %.9g",
               name, t->eval, one->eval);
    check_gradients(t, one, rounding);
    free(t->grad);
    t->grad = NULL;
}

static void test_near(int dp, int chosen, zero_type type, double rounding) {
    training first = layout(dp, 1, chosen);
    first.type = type;
    training one = one_rank_of(&first);
    for (int ep = 1; ep <= dp; ep *= 2) {
        training t = layout(dp, ep, chosen);
        t.type = type;
        check_near(&t, &one, rounding);
    }
    free(one.grad);
}

static void check_same(training *t, const training *as) {
    char name[128];
    train(t);
    test_check(!memcmp(t->loss, as->loss, sizeof t->loss)
                   && !memcmp(t->norm, as->norm, sizeof t->norm)
                   && !memcmp(t->aux, as->aux, sizeof t->aux)
                   && !memcmp(t->dropped, as->dropped, sizeof t->dropped)
                   && t->weights == as->weights && !memcmp(&t->eval, &as->eval, sizeof t->eval),
               "%s: other bits than stage 0: loss %.9g, %.9g; norm %.9g, %.9g", name_of(t, name),
               t->loss[1], as->loss[1], t->norm[1], as->norm[1]);
}

/* Beside tensor and pipeline parallelism, with everything else that divides. */
static void test_divided(void) {
    static const struct {
        int pp, chunks, dp, tp, sequence, ep, layers, tile_rows;
    } of[] = {{1, 1, 1, 2, 0, 1, L, 0}, {1, 1, 2, 2, 1, 2, L, 0}, {1, 1, 2, 4, 0, 2, L, 32},
              {2, 1, 2, 1, 0, 2, L, 0}, {2, 1, 1, 2, 1, 1, 5, 0}, {2, 2, 2, 2, 0, 2, 8, 0},
              {2, 1, 2, 2, 1, 1, L, 0}, {1, 1, 2, 1, 0, 2, L, 64}};
    for (int i = EMULATED; i < (EMULATED ? 5 : 8); i += EMULATED ? 3 : 1) {
        training t = layout(of[i].dp, of[i].ep, 1 + i % 2);
        t.pp = of[i].pp;
        t.chunks = of[i].chunks;
        t.tp = of[i].tp;
        t.sequence = of[i].sequence;
        t.layers = of[i].layers;
        t.tile_rows = of[i].tile_rows;
        t.untied = i % 2;
        t.stage = i % 4;
        t.recompute = SAME_GELU ? i % 4 : 0;
        if (t.pp > 1) t.accumulation = ZERO_ACCUMULATE_LOCAL;
        training one = one_rank_of(&t);
        check_near(&t, &one, 1e-5);
        test_check(t.sent == t.formula && t.sent > 0, "%d: %llu bytes sent, formula %llu", i,
                   (unsigned long long)t.sent, (unsigned long long)t.formula);
        free(one.grad);
    }
}

/* Optimizers that look at whole tensors, of which tensor-parallel ranks have slices too, and
   updates that come a step later. */
static void test_updates(void) {
    static const struct {
        zero_optimizer optimizer;
        int tp, delay;
    } of[5] = {{ZERO_LAMB, 1, 0},
               {ZERO_MUON, 1, 0},
               {ZERO_ADAMW, 1, 2},
               {ZERO_LAMB, 2, 0},
               {ZERO_MUON, 2, 0}};
    for (int i = 0; i < 5; i += 1 + 2 * EMULATED) {
        training t = layout(of[i].tp > 1 ? 2 : 4, 2, 1);
        t.optimizer = of[i].optimizer;
        t.tp = of[i].tp;
        t.delay = of[i].delay;
        t.steps = EMULATED ? 2 : 4;
        training one = one_rank_of(&t);
        check_near(&t, &one, 1e-5);
        free(one.grad);
        training first = t;
        for (int stage = 1; stage < 4; stage += 1 + EMULATED) {
            t.stage = stage;
            t.tier = stage == 3 ? ZERO_HOST : ZERO_DEVICE;
            check_same(&t, &first);
        }
    }
}

/* A pipeline's bits are those of its micro-steps without one; auxiliary losses are added up stage
   by stage. */
static void test_pipeline_bits(void) {
    for (int chunks = 1; chunks < 3 - EMULATED; chunks++) {
        training whole = layout(2, 2, chunks);
        whole.accumulation = ZERO_ACCUMULATE_LOCAL;
        whole.untied = 1;
        whole.layers = chunks == 1 ? 5 : 8;
        whole.micro = 4;
        train(&whole);
        for (int stage = 3 * EMULATED; stage < 4; stage++) {
            training t = whole;
            t.pp = 2;
            t.chunks = chunks;
            t.stage = stage;
            t.recompute = SAME_GELU ? stage : 0;
            train(&t);
            char name[128];
            double aux = 0, loss = 0;
            for (int i = 0; i < t.steps; i++) {
                aux = fmax(aux, apart(t.aux[i], whole.aux[i]));
                loss = fmax(loss, apart(t.loss[i], whole.loss[i]));
            }
            test_check(t.weights == whole.weights && !memcmp(t.norm, whole.norm, sizeof t.norm)
                           && !memcmp(t.dropped, whole.dropped, sizeof t.dropped) && aux < 1e-12
                           && loss < 1e-12,
                       "%s: other bits than without a pipeline: norm %.17g, %.17g; aux %g, loss %g",
                       name_of(&t, name), t.norm[1], whole.norm[1], aux, loss);
        }
    }
}

/* Parts at every stage. */
static void test_part_bits(void) {
    for (int sequence = EMULATED; sequence < 2; sequence++) {
        training first = layout(2, 2, 2 - sequence);
        first.tp = 2;
        first.sequence = sequence;
        train(&first);
        for (int stage = 1 + EMULATED; stage < 4; stage++) {
            training t = first;
            t.stage = stage;
            t.tier = stage == 2 ? ZERO_HOST : ZERO_DEVICE;
            check_same(&t, &first);
        }
    }
}

static void test_bits(int ep, int chosen) {
    training first = layout(4, ep, chosen);
    train(&first);
    test_check(first.sent == first.formula && (first.sent > 0) == (ep > 1),
               "ep %d: %llu bytes sent, formula %llu", ep, (unsigned long long)first.sent,
               (unsigned long long)first.formula);
    for (int stage = 1; stage < 4; stage++) {
        training t = first;
        t.stage = stage;
        check_same(&t, &first);
    }
    for (int recompute = 1; recompute <= GPT2_RECOMPUTE_AWAY && SAME_GELU; recompute++) {
        training t = first;
        t.recompute = recompute;
        t.stage = recompute % 4;
        check_same(&t, &first);
        test_check(t.sent == t.formula, "recompute %d: %llu bytes sent, formula %llu", recompute,
                   (unsigned long long)t.sent, (unsigned long long)t.formula);
    }
    for (int tier = ZERO_HOST; tier < ZERO_TIERS && SAME_GELU; tier++) {
        training t = first;
        t.tier = (zero_tier)tier;
        t.stage = 3;
        check_same(&t, &first);
    }
}

/* A rank that alone has its experts divides by the data-parallel ranks all the same, also where
   gradients are reduced where they lie. */
static void test_alone(void) {
    training first = layout(2, 2, 1);
    first.micro = 1;
    first.accumulation = ZERO_ACCUMULATE_AUTO;
    first.stage = 2;
    train(&first);
    for (int stage = 0; stage < 4; stage++) {
        training t = first;
        t.stage = stage;
        check_same(&t, &first);
    }
}

/* In words of the layers: four all-to-alls of E capacity C numbers. */
static void test_traffic(void) {
    training t = layout(2, 2, 2);
    t.steps = 1;
    train(&t);
    const uint64_t slots = E * (B * T / E * 2); /* factor 1 */
    test_check(t.exchanges == MICRO * 4 * (L / 2), "%llu all-to-alls",
               (unsigned long long)t.exchanges);
    test_check(t.sent == MICRO * 4 * (L / 2) * slots * C * sizeof(float) / 2,
               "%llu bytes of all-to-alls", (unsigned long long)t.sent);
}

/* ---- what cannot be ----------------------------------------------------------------------------
 */

static void check_refused(int layers, gpt2_moe moe, int ranks, const char *words) {
    gpt2_config c = {T, V, Vp, layers, NH, C, 0, GPT2_NO_EXPERTS, NULL, 0, 0, 0};
    gpt2_error err = {""};
    c.moe = moe;
    test_check(experts_check(&c, ranks, &err) == ZERO_ERR_ARGUMENT && strstr(err.sentence, words),
               "%d experts over %d ranks: %s", moe.experts, ranks, err.sentence);
}

static void test_refused(void) {
    const gpt2_moe six = {6, 1, 1, 0}, one = {1, 1, 1, 0}, three = {4, 3, 1, 0},
                   none = {4, 2, 0, 0};
    const gpt2_moe no = GPT2_NO_EXPERTS;
    check_refused(4, six, 4, "nearest number that does is 3");
    check_refused(4, six, 8, "nearest number that does is 6");
    check_refused(4, one, 1, "expected 2");
    check_refused(4, three, 1, "top k is 3");
    check_refused(4, none, 1, "capacity factor");
    check_refused(1, six, 1, "every second block");
    check_refused(4, no, 2, "no experts");
    gpt2_config small = {T, V, Vp, 5, NH, C, 0, GPT2_NO_EXPERTS, NULL, 0, 0, 0};
    gpt2_stage stage;
    gpt2_error err = {""};
    small.moe = six;
    test_check(gpt2_stage_make(&stage, &small, 3, 1, 0, T, &err) == ZERO_ERR_ARGUMENT
                   && strstr(err.sentence, "use at most 2 stages"),
               "three stages of five blocks: %s", err.sentence);
    test_check(gpt2_stage_make(&stage, &small, 2, 2, 0, T, &err) == ZERO_ERR_ARGUMENT
                   && strstr(err.sentence, "use at most 1 chunk"),
               "two stages of two chunks of five blocks: %s", err.sentence);
    gpt2_config c = {T, V, Vp, L, NH, C, 0, {8, 2, 1.0f, 0}, NULL, 0, 0, 0};
    test_check(experts_capacity(&c, 64) == 16 && experts_capacity(&c, 8) == 4
                   && experts_capacity(&c, 2) == 2,
               "capacities");
    c.moe.capacity = 100;
    test_check(experts_capacity(&c, 64) == 64, "more slots than rows");
}

int main(void) {
#ifdef _OPENMP
    omp_set_num_threads(1);
#endif
    const layer_case layers[] = {
        {1, 1.0f, 0.3f, 0}, {2, 1.0f, 0.3f, 1}, {1, 4.0f, 0, 2}, {2, 4.0f, 0, 3}, {2, 1.0f, 0, 0}};
    test_refused();
    for (int i = 0; i < (int)(sizeof layers / sizeof *layers); i++) test_layer(layers[i]);
    test_traffic();
    test_layers();
    test_alone();
    for (int i = EMULATED; i < 4 - EMULATED; i++) test_bits(1 << i % 3, 1 + i % 2);
    for (int i = EMULATED; i < 4 - EMULATED; i++)
        test_near(2 + 2 * (i / 2), 1 + i % 2, ZERO_F32, 1e-5);
    test_near(2, 2, ZERO_BF16, 0.03);
    test_divided();
    test_updates();
    test_part_bits();
    test_pipeline_bits();
#ifdef EMULATED_LAUNCH
    test_check(!emulation_found(), "the emulation found: %s", emulation_found());
#endif
    return test_summary();
}

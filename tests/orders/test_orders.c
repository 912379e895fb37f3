/* test_orders.c - every order that events, streams and collectives allow, for small models

     test_orders            the cases of `make test-long`, in 10 minutes at most
     test_orders all        all cases, hours
     test_orders sample S   a sample of about 8 s, drawn by S
     test_orders cases      the cases' names
     test_orders case NAME [PLACE]  this case alone, if a rank dies, at this place alone
     test_orders places     by case: seconds of one order, and the calls that it can do without
     test_orders remove FILE:LINE [NAME]  the cases of 2 and 4 ranks, or one, without the call at
                            that line of the plugin: an error is expected

   Ranks with three units train a few steps; see machine.h, net.h and scheduler.h for how they run.
   In each order
     no access to memory, or to the file, races with another one,
     no thread waits for ever,
     every unit is reduced as often as the plan says,
     memory stays within the plan,
     the weights are those of one rank without sharding, bit by bit.
   If a rank dies, at any place where it uses another thread or rank, or if ranks call zero_step
   with different values, every other rank returns an error, and can destroy its context.
   A gradient depends on every bit of the weight that backward reads, so a weight of another step
   changes the result.

   WHAT IS NOT EXPLORED. The plugin's CUDA code: streams are CUDA's in what they may reorder, but
   the kernels are the CPU's. Orders inside a task: it runs as one piece between two waits. OpenMP:
   each task has one thread. Time limits: no wait ends by itself. For each place at which a rank may
   die, the orders of the others after it, but not all orders in which it gets there. An update that
   was enqueued before the death was known may still change weights that a rank of the same failed
   step reads; this is not counted as an error, because nothing of that step is used. */
#include "machine.h"

#include "../../zero_plugin.cu"

void orders_lane_forget(void);

enum { UNITS = 5, KEEP = UNITS, TENSORS, LARGEST = 160, SAMPLE = 24, EVERY = 199 };

typedef struct fields {
    char *t[TENSORS];
} fields;
static const size_t numel[TENSORS] = {70, 90, 80, 60, 50, 5};

typedef struct test_case {
    char name[64];
    int nranks, stage, micro_steps, prefetch, steps;
    int fast;  /* parameters of peers are read in place, if the stage can */
    int async; /* the compute stream runs by itself */
    int no_overlap;
    int evaluates; /* evaluations between steps, and before and after zero_reduce; 2: not after it
                    */
    int units;     /* 3, or all UNITS: then more than there are buffers */
    int quits;     /* the context is destroyed right after the last zero_step */
    int skips;     /* from the second step on, training passes use the first unit alone */
    int unwritten; /* no weight is written before the first pass: all are 0 */
    int differs;   /* rank 1 gives another learning rate: all ranks must fail */
    int asks;      /* the norm, and the result of each step, are asked for */
    int saves;     /* the state is read and put back before the last step, as by a checkpoint */
    zero_optimizer rule;
    int together; /* all micro-steps in one pass: each layer for all of them */
    int file;     /* optimizer, gradient and parameter tiers: one bit each */
    int delays;   /* updates overlap with the next step */
    int dies;     /* rank dies - 1 dies at every place, one after the other; 0: none */
    int gives_up; /* when a rank gives up is explored, too */
    int slow;     /* the case is not closed in 60 seconds: `all` alone has it */
    int shard_ranks, second_ranks, weight_bits, gradient_bits, node_size;
    zero_type type;
    int grads_as_type;
    zero_accumulation accumulation;
} test_case;

static const test_case *now_case;
static int is_reference; /* one rank takes the gradients of all */
static orders_net *net;
static float expected[TENSORS][LARGEST], result[ORDERS_RANKS][TENSORS][LARGEST];
static int cells[ORDERS_RANKS];
static int ended[ORDERS_RANKS]; /* 1: with an error; 2: without */
static int may_fail;            /* a rank dies */
static int executions;

static int has_tensor(int t) { return t == KEEP || t < now_case->units; }
static uint32_t mix(uint32_t x) {
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}
static float initial(int t, size_t i) {
    return (float)(mix((uint32_t)(t * 1000) + (uint32_t)i) % 1024) / 512 - 1;
}

/* ---- your code: what a trainer enqueues ---- */

typedef struct work {
    const char *p, *keep;
    char *g;
    zero_type type, grad_type;
    float *seen; /* of this unit: forward writes it, backward reads it */
    int rank, step, micro, tensor;
} work;

/* The gradient of an element is a small whole number, so that sums have no rounding. */
static float slope(const work *w, int rank, size_t i) {
    const uint32_t bits = zp_type_bits(zp_type_load(w->p, w->type, i));
    const uint32_t place = (uint32_t)(((rank * 8 + w->step) * 4 + w->micro) * 4 + w->tensor);
    return (float)(int)(mix(bits ^ mix(place * 4096 + (uint32_t)i)) % 17) - 8;
}
static void forward_task(const void *args, size_t n, int threads) {
    const work *w = (const work *)args;
    float sum = 0;
    for (size_t i = 0; i < n; i++) sum += zp_type_load(w->p, w->type, i);
    for (size_t i = 0; i < numel[KEEP]; i++) sum += zp_type_load(w->keep, w->type, i);
    *w->seen = sum;
}
static void backward_task(const void *args, size_t n, int threads) {
    const work *w = (const work *)args;
    const int first = is_reference ? 0 : w->rank, end = is_reference ? now_case->nranks : first + 1;
    for (int r = first; r < end; r++)
        for (size_t i = 0; i < n; i++)
            zp_type_store(w->g, w->grad_type, i,
                          zp_type_load(w->g, w->grad_type, i) + slope(w, r, i));
    if (*w->seen != *w->seen) zp_type_store(w->g, w->grad_type, 0, *w->seen); /* NaN */
}

typedef struct rank_run {
    zero_ctx *z;
    fields p, g;
    int rank, step, micro;
    float *seen;
} rank_run;

#define TRY(call)                                                                                  \
    do {                                                                                           \
        if (call) return 0;                                                                        \
    } while (0)

static zero_result enqueue(rank_run *h, zp_task_fn fn, int t) {
    const work w = {
        h->p.t[t],          h->p.t[KEEP], h->g.t[t], h->z->cfg.type, h->z->array[ZP_GRAD].type,
        &h->seen[t % KEEP], h->rank,      h->step,   h->micro,       t};
    return zp_device_push_task(&h->z->compute, fn, &w, sizeof w, numel[t]);
}
static int forward(rank_run *h, int u) {
    TRY(zero_forward_begin(h->z, u, &h->p));
    TRY(enqueue(h, forward_task, u));
    TRY(zero_forward_end(h->z, u));
    return 1;
}
static int backward(rank_run *h, int u) {
    TRY(zero_backward_begin(h->z, u, &h->p, &h->g));
    TRY(enqueue(h, backward_task, u));
    if (u == 0) TRY(enqueue(h, backward_task, KEEP));
    TRY(zero_backward_end(h->z, u));
    return 1;
}
/* Uses the first `units` units. The others are gathered ahead if the last evaluation used them. */
static int evaluate(rank_run *h, int units) {
    TRY(zero_pass_begin(h->z, ZERO_EVAL, 0, 1));
    for (int u = 0; u < units; u++)
        if (!forward(h, u)) return 0;
    TRY(zero_pass_end(h->z));
    return 1;
}
static int train_pass(rank_run *h) {
    const test_case *c = now_case;
    const int n = c->together ? c->micro_steps : 1;
    const int units = c->skips && h->step ? 1 : c->units;
    TRY(zero_pass_begin(h->z, ZERO_TRAIN, c->together ? ZERO_TOGETHER : h->micro, c->micro_steps));
    for (int u = 0; u < units; u++)
        for (int m = 0; m < n; m++)
            if (!forward(h, u)) return 0;
    for (int u = units - 1; u >= 0; u--)
        for (int m = 0; m < n; m++) {
            if (c->together) h->micro = m;
            if (!backward(h, u)) return 0;
        }
    TRY(zero_pass_end(h->z));
    return 1;
}

/* Each unit is reduced as often as the plan says. */
static void check_reductions(rank_run *h) {
    for (int u = 0; u <= now_case->units && now_case->nranks > 1 && !is_reference; u++) {
        const int once =
            u == now_case->units && now_case->together; /* KEEP tensors: at the end of a pass */
        const int n = orders_reductions[h->rank][u], copies = now_case->shard_ranks > 0;
        const int wanted = (once ? 1 : zp_order_reductions(h->z, u)) + copies;
        orders_reductions[h->rank][u] = 0;
        if (n != wanted && !now_case->gradient_bits && now_case->rule != ZERO_MUON)
            orders_fail("unit %d was reduced %d times in a step, expected %d", u, n, wanted);
    }
}

/* Each rank writes its own cell, and reads those of the others after zero_barrier. */
static int meet(rank_run *h) {
    int sum = 0;
    cells[h->rank] = 1;
    TRY(zero_barrier(h->z));
    for (int r = 0; r < now_case->nranks && !is_reference; r++) sum += cells[r];
    if (!is_reference && sum != now_case->nranks) orders_fail("%d ranks have met", sum);
    return 1;
}

/* Reads this rank's state, and puts it back. */
static int save_state(rank_run *h) {
    zero_counters counters;
    TRY(zero_state_begin(h->z));
    zero_state_counters(h->z, &counters);
    for (int i = 0; i < zero_state_ranges(h->z, 1); i++) {
        zero_range range;
        TRY(zero_state_range(h->z, 1, i, &range));
        void *values = orders_hold(range.count * sizeof(float));
        TRY(zero_state_get(h->z, &range, values));
        TRY(zero_state_put(h->z, &range, values));
        memset(values, 0, range.count * sizeof(float)); /* they are yours again */
    }
    for (int i = 0; i < 2; i++) TRY(zero_state_set_counters(h->z, &counters));
    TRY(zero_state_end(h->z, 1));
    return 1;
}

/* The first pass gathers each unit, although no write marked earlier gathers as out of date. */
static void check_first_gathers(rank_run *h) {
    for (int u = 0; u < now_case->units && now_case->unwritten && !is_reference; u++)
        if (!orders_gathers[h->rank][u])
            orders_fail("unit %d was not gathered for the first pass", u);
}

static int train(rank_run *h) {
    zero_hyper hyper = {0.01f, 0.9f, 0.95f, 1e-8f, 0.1f, 0};
    const test_case *c = now_case;
    zero_step_report report;
    double norm;
    for (h->step = 0; h->step < c->steps; h->step++) {
        if (c->evaluates && !evaluate(h, c->units)) return 0;
        if (c->saves && h->step + 1 == c->steps && !save_state(h)) return 0;
        for (h->micro = 0; h->micro < (c->together ? 1 : c->micro_steps); h->micro++)
            if (!train_pass(h)) return 0;
        if (c->evaluates && !evaluate(h, c->units)) return 0;
        if (h->step == 0) check_first_gathers(h);
        TRY(zero_reduce(h->z));
        check_reductions(h);
        if (c->evaluates == 1 && !evaluate(h, 1)) return 0;
        if (c->asks) TRY(zero_norm(h->z, &norm));
        hyper.lr = c->differs && h->rank == 1 && h->step == 0 ? 0.02f : 0.01f;
        TRY(zero_step(h->z, &hyper));
        if (c->asks) TRY(zero_step_result(h->z, &report));
    }
    return 1;
}

static int announce(rank_run *h) {
    static const char *const names[TENSORS] = {"a", "b", "c", "d", "e", "keep"};
    for (int t = 0; t < TENSORS; t++) {
        if (!has_tensor(t)) continue;
        zero_tensor_desc d;
        memset(&d, 0, sizeof d);
        d.name = names[t];
        d.numel = numel[t];
        d.unit = t % KEEP;
        d.rows = now_case->rule == ZERO_MUON && t < KEEP ? 10 : 0;
        d.cols = d.rows ? d.numel / 10 : 0;
        d.flags = t == KEEP ? ZERO_KEEP : 0;
        d.field = offsetof(fields, t) + (size_t)t * sizeof(float *);
        TRY(zero_tensor(h->z, &d));
    }
    TRY(zero_build(h->z));
    TRY(zero_bind(h->z, &h->p, &h->g));
    for (int t = 0; t < TENSORS && !now_case->unwritten; t++) {
        if (!has_tensor(t)) continue;
        float values[LARGEST];
        for (size_t i = 0; i < numel[t]; i++) values[i] = initial(t, i);
        TRY(zero_write_tensor(h->z, names[t], ZERO_PARAMETER, 0, numel[t], values));
    }
    return 1;
}

static void check_memory(zero_ctx *z) {
    zero_plan plan;
    zero_stats stats;
    if (zero_query_plan(z, &plan) || zero_query_stats(z, &stats)) return;
    const size_t most =
                     plan.param_bytes + plan.grad_bytes + plan.optimizer_bytes + plan.buffer_bytes,
                 has = stats.param_bytes + stats.grad_bytes + stats.optimizer_bytes
                       + stats.buffer_bytes;
    if (has > most) orders_fail("%zu bytes were allocated, the plan has %zu", has, most);
}

static int finish(rank_run *h) {
    static const char *const names[TENSORS] = {"a", "b", "c", "d", "e", "keep"};
    if (now_case->evaluates && !evaluate(h, now_case->units)) return 0;
    if (now_case->asks && !meet(h)) return 0;
    TRY(zero_apply_pending(h->z));
    for (int t = 0; t < TENSORS; t++)
        if (has_tensor(t))
            TRY(zero_read_tensor(h->z, names[t], ZERO_PARAMETER, 0, numel[t], result[h->rank][t]));
    if (!is_reference) check_memory(h->z);
    return 1;
}

static void configure(zero_config *cfg) {
    const test_case *c = now_case;
    memset(cfg, 0, sizeof *cfg);
    cfg->micro_steps = c->micro_steps;
    cfg->divisor = 4;
    cfg->threads = 1;
    cfg->type = c->type;
    cfg->grads = c->grads_as_type ? ZERO_GRAD_AS_TYPE : ZERO_GRAD_F32;
    cfg->delay_from = c->delays;
    cfg->optimizer = c->rule;
    if (is_reference) return;
    cfg->stage = c->stage;
    cfg->prefetch = c->prefetch ? c->prefetch : ZERO_NONE;
    cfg->no_overlap = c->no_overlap;
    cfg->bucket_numel = 200;
    cfg->persistence_numel = ZERO_NONE;
    cfg->folder = "/dev/shm";
    if (c->file & 1) cfg->optimizer_tier = ZERO_FILE;
    if (c->file & 2) cfg->gradient_tier = ZERO_FILE;
    if (c->file & 4) cfg->parameter_tier = ZERO_FILE;
    cfg->shard_ranks = c->shard_ranks;
    cfg->second_ranks = c->second_ranks;
    cfg->no_mapping = c->second_ranks > 0;
    cfg->weight_bits = c->weight_bits;
    cfg->gradient_bits = c->gradient_bits;
    cfg->accumulation = c->accumulation;
}

static void run_rank(int rank, void *arg) {
    zero_comm comm = {ZERO_COMM_OWN, rank, net, now_case->node_size};
    zero_config cfg;
    if (is_reference) comm.kind = ZERO_COMM_SELF;
    rank_run *h = (rank_run *)orders_hold(sizeof *h);
    h->rank = rank;
    h->seen = (float *)orders_hold(64);
    configure(&cfg);
    zero_result r = zero_create(&h->z, &cfg, &comm);
    const int ok = !r && announce(h) && train(h) && (now_case->quits || finish(h)),
              fails = may_fail || now_case->differs;
    if (!ok && !fails) orders_fail("%s: %s", now_case->name, zero_last_error(h->z));
    if (!ok && h->z->dead != ZERO_ERR_PEER && h->z->dead != ZERO_ERR_MISMATCH)
        orders_fail("%s: expected the error of a peer, got %s", now_case->name,
                    zero_last_error(h->z));
    if (ok && now_case->differs && !is_reference) orders_fail("ranks differ, and no rank fails");
    zero_destroy(h->z);
    ended[rank] = 1 + (ok && !now_case->quits);
}

static void begin_execution(void *arg) {
    orders_lane_forget();
    orders_net_forget();
    net = orders_net_open(now_case->nranks);
    memset(orders_reductions, 0, sizeof orders_reductions);
    memset(orders_gathers, 0, sizeof orders_gathers);
    memset(ended, 0, sizeof ended);
    memset(cells, 0, sizeof cells);
}
/* Quantized messages change the result, but no order may. */
static int is_lossy(void) { return now_case->gradient_bits || now_case->weight_bits; }

static void end_execution(void *arg) {
    const int sets = is_reference || (is_lossy() && !executions++);
    if (sets) memcpy(expected, result[0], sizeof expected);
    for (int r = 0; r < (is_reference ? 1 : now_case->nranks); r++)
        for (int t = 0; t < TENSORS && ended[r] == 2; t++)
            if (has_tensor(t) && memcmp(result[r][t], expected[t], numel[t] * sizeof(float)))
                orders_fail("tensor %d of rank %d is not that of one rank", t, r);
}

/* Trains on one rank without sharding. */
static void run_reference(const test_case *c) {
    const orders_test t = {1, begin_execution, run_rank, end_execution, NULL, 0, 0, 0, 0};
    now_case = c;
    is_reference = 1;
    orders_async = 0;
    (void)orders_explore(&t);
    is_reference = 0;
}

/* ---- the cases ---- */

enum { CASES = 512 };
static test_case cases[CASES];
static int n_cases;

static test_case *add(const char *kind, int nranks, int stage, int micro_steps) {
    if (n_cases == CASES) orders_fail("more than %d cases", CASES);
    test_case *c = &cases[n_cases++];
    memset(c, 0, sizeof *c);
    c->nranks = nranks;
    c->stage = stage;
    c->micro_steps = micro_steps;
    c->units = 3;
    c->prefetch = 1;
    c->steps = 2;
    c->async = 1;
    snprintf(c->name, sizeof c->name, "%s-%dx%d-m%d", kind, nranks, stage, micro_steps);
    return c;
}

/* What every stage has. */
static void add_stage(int nranks, int stage, int micro) {
    test_case *c;
    add("plain", nranks, stage, micro);
    add("inline", nranks, stage, micro)->async = 0;
    c = add("blocking", nranks, stage, micro);
    c->async = 0;
    c->no_overlap = 1;
    add("evaluates", nranks, stage, micro)->evaluates = 1;
    add("asks", nranks, stage, micro)->asks = 1;
    add("saves", nranks, stage, micro)->saves = 1;
    c = add("lamb", nranks, stage, micro);
    c->rule = ZERO_LAMB;
    c->async = 0;
    c = add("muon", nranks, stage, micro);
    c->rule = ZERO_MUON;
    c->async = 0;
    c = add("bf16", nranks, stage, micro);
    c->type = ZERO_BF16;
    c = add("bf16-grads", nranks, stage, micro);
    c->type = ZERO_BF16;
    c->grads_as_type = 1;
    add("local", nranks, stage, micro)->accumulation = ZERO_ACCUMULATE_LOCAL;
    add("sharded", nranks, stage, micro)->accumulation = ZERO_ACCUMULATE_SHARDED;
    if (micro > 1) add("layers", nranks, stage, micro)->together = 1;
    c = add("delayed", nranks, stage, micro);
    c->async = 0;
    c->delays = 1;
    c->steps = 3;
    c = add("file", nranks, stage, micro);
    c->async = 0;
    c->file = stage == 3 ? 7 : stage == 2 ? 3 : 1;
    c = add("delayed-file", nranks, stage, micro);
    c->async = 0;
    c->saves = 1;
    c->delays = 2;
    c->steps = 3;
    c->file = stage == 3 ? 7 : stage == 2 ? 3 : 1;
}
static void add_stage_3(int nranks, int micro) {
    test_case *c;
    add("mapped", nranks, 3, micro)->fast = 1;
    c = add("mapped-evaluates", nranks, 3, micro);
    c->fast = c->evaluates = 1;
    c = add("mapped-before", nranks, 3, micro);
    c->fast = 1;
    c->evaluates = 2;
    c = add("mapped-saves", nranks, 3, micro);
    c->fast = c->evaluates = c->saves = 1;
    add("quits", nranks, 3, micro)->quits = 1;
    c = add("delayed-quits", nranks, 3, micro);
    c->async = 0;
    c->delays = c->quits = 1;
    c->steps = 3;
    c = add("delayed-5-units", nranks, 3, micro);
    c->units = UNITS;
    c->async = 0;
    c->delays = c->evaluates = 1;
    c->steps = 3;
    c = add("delayed-skips", nranks, 3, micro);
    c->units = UNITS;
    c->async = 0;
    c->delays = c->skips = 1;
    c->steps = 3;
    c = add("muon-file", nranks, 3, micro);
    c->rule = ZERO_MUON;
    c->async = 0;
    c->file = 7;
    c = add("mapped-delayed", nranks, 3, micro);
    c->async = 0;
    c->fast = c->evaluates = c->delays = 1;
    c = add("file-5-units", nranks, 3, micro);
    c->units = UNITS;
    c->async = 0;
    c->file = 7;
    c = add("evaluates-5-units", nranks, 3, micro);
    c->units = UNITS;
    c->evaluates = 1;
    add("unwritten", nranks, 3, micro)->unwritten = 1;
    add("prefetch0", nranks, 3, micro)->prefetch = 0;
    add("prefetch2", nranks, 3, micro)->prefetch = 2;
    c = add("prefetch0-evaluates", nranks, 3, micro);
    c->prefetch = 0;
    c->evaluates = 1;
}
static void add_cases(void) {
    for (int nranks = 2; nranks <= 3; nranks++)
        for (int micro = 1; micro <= 2; micro++) {
            for (int stage = 0; stage <= 3; stage++) {
                add_stage(nranks, stage, micro);
                if (micro > 1) continue;
                test_case *c = add("differs", nranks, stage, micro);
                c->differs = c->asks = 1;
                c->slow = nranks > 2;
                if (nranks > 2) continue;
                c = add("gives-up", nranks, stage, micro);
                c->differs = c->asks = c->gives_up = c->slow = 1;
            }
            add_stage_3(nranks, micro);
        }
    for (int micro = 1; micro <= 2; micro++) {
        for (int stage = 0; stage <= 3; stage++)
            add("lamb-queued", 2, stage, micro)->rule = ZERO_LAMB;
        for (int stage = 1; stage <= 3; stage++) {
            add("subgroups", 4, stage, micro)->shard_ranks = 2;
            test_case *c = add("packed-gradients", 2, stage, micro);
            c->gradient_bits = 8;
        }
        for (int stage = 0; stage <= 3; stage++) add("dies", 2, stage, micro)->dies = 1 + stage % 2;
        add("dies-mapped", 2, 3, micro)->fast = 1;
        cases[n_cases - 1].dies = 1;
        add("second", 4, 3, micro)->second_ranks = 2;
        add("packed-weights", 2, 3, micro)->weight_bits = 8;
    }
}

static void sum_reports(orders_report *all, const orders_report *r) {
    all->classes += r->classes;
    all->cut += r->cut;
    all->accesses = r->accesses;
    all->seconds += r->seconds;
    all->closed &= r->closed;
    if (r->steps > all->steps) all->steps = r->steps;
}

static long only_place; /* the only place to die at; 0: many */

/* A rank dies at its first place, then at another one `every` places later, and so on. */
static void run_deaths(const test_case *c, orders_test t, orders_report *all, int every) {
    const long places = all->points[c->dies - 1];
    const double end = zp_seconds() + t.budget_s;
    t.die_rank = c->dies - 1;
    may_fail = orders_net_faulty = 1;
    for (t.die_at = only_place ? only_place : 1; t.die_at <= places && all->closed;
         t.die_at += every) {
        t.budget_s = end - zp_seconds();
        const orders_report r = orders_explore(&t);
        sum_reports(all, &r);
        if (t.budget_s <= 0) all->closed = 0;
        if (only_place) break;
    }
    may_fail = 0;
}

static orders_report run_case(const test_case *c, double budget_s, int every) {
    orders_test t = {c->nranks, begin_execution, run_rank, end_execution, NULL, budget_s, 0, 0, 0};
    executions = 0;
    orders_net_faulty = 0;
    run_reference(c);
    orders_async = c->async;
    orders_shared_is_fast = c->fast;
    orders_net_faulty = c->gives_up;
    orders_report r = orders_explore(&t);
    if (c->dies && r.closed) run_deaths(c, t, &r, every);
    return r;
}

/* Prints the calls that can be removed and that a case reaches, in its first order and the first
   one of some deaths. */
static void print_places(const test_case *c) {
    const double begun = zp_seconds();
    orders_list_places(1);
    orders_report r = run_case(c, 1e-9, 1);
    orders_test t = {c->nranks, begin_execution, run_rank, end_execution, NULL, 1e-9, 0, 0, 0};
    may_fail = orders_net_faulty = c->dies > 0;
    t.die_rank = c->dies - 1;
    for (t.die_at = 1; c->dies && t.die_at <= r.points[c->dies - 1]; t.die_at += 7)
        (void)orders_explore(&t);
    may_fail = 0;
    printf("%s %.2f", c->name, zp_seconds() - begun);
    orders_print_places();
    puts("");
}

static void print_report(const test_case *c, const orders_report *r, int every) {
    printf("%-26s %s: %ld classes of orders", c->name, r->closed ? "closed" : "NOT CLOSED",
           r->classes);
    if (c->dies) printf(", of %ld places to die at every %dth", r->points[c->dies - 1], every);
    printf(", %ld operations, %ld accesses, %.1f s\n", r->steps, r->accesses, r->seconds);
    fflush(stdout);
}

int main(int argc, char **argv) {
    const char *const what = argc > 1 ? argv[1] : "", *const which = argc > 2 ? argv[2] : NULL;
    const char *const only = !strcmp(what, "case") ? which : argc > 3 ? argv[3] : NULL;
    if (!strcmp(what, "case") && argc > 3) only_place = atol(argv[3]);
    const int removes = which && !strcmp(what, "remove"), lists = !strcmp(what, "cases"),
              places = !strcmp(what, "places"), all = !strcmp(what, "all") || !strcmp(what, "case"),
              seed = which && !strcmp(what, "sample") ? atoi(which) : -1;
    int closed = 0, open = 0, classes = 0;
    const double begun = zp_seconds();
    if (removes) orders_remove(which);
    add_cases();
    for (int i = 0; i < n_cases; i++) {
        const test_case *c = &cases[i];
        if (only && strcmp(only, c->name)) continue;
        if (lists) puts(c->name);
        if (places) print_places(c);
        if (lists || places || (c->slow && !all)) continue;
        if (removes && !only && (c->nranks == 3 || (c->dies && c->stage < 3))) continue;
        if (seed >= 0 && (i + seed) % SAMPLE) continue;
        const int every = all ? 1 : removes ? 150 : EVERY;
        const orders_report r = run_case(c, all ? 3600 : 60, every);
        closed += r.closed;
        open += !r.closed;
        classes += (int)r.classes;
        if (!removes) print_report(c, &r, every);
    }
    if (lists || places) return 0;
    if (removes && !orders_removal_reached()) puts("the call was never reached");
    printf("%d classes of orders in %.0f s; %d cases are not closed\n", classes,
           zp_seconds() - begun, open);
    printf("%d passed, %d failed\n", closed, open);
    return open > 0 || closed == 0;
}

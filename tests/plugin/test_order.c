/* test_order.c [SEED] - the order of a pass, announced in the place of what is learnt: random
   orders of several micro-batches' hooks at every stage. Same bits as one micro-step after the
   other; as many gathers and bytes as planned, in the first step too; the first step gathers ahead
   as the third does where the order is learnt; backwards in two parts are complete after the
   second; who departs from the order, and ranks that announce different ones, are told where. And
   tensors with a divisor of their own. */
#include "../shared/harness.h"

#include <math.h>

enum { UNITS = 6, MICRO = 4, STEPS = 3, RANKS = 3, TURNS = 2 * UNITS * MICRO * 3, NUMEL = 700 };

typedef struct order_turn {
    zero_pass_call turn;
    int micro;
} order_turn;

typedef struct order_run {
    uint64_t seed;
    int stage, prefetch, together, announced, no_overlap; /* announced: 2: after zero_build */
    int sharded, file;                                    /* accumulation; gradients in a file */
    int split; /* backwards in two parts; 2: the second comes before the unit's next first */
    zero_type type;
    order_turn turn[TURNS];
    int n;
    /* found, by rank 0 */
    uint64_t hash;
    double norm[STEPS];
    int ahead[STEPS]; /* gathers that came before another unit's turn than their own */
} order_run;

typedef struct order_host {
    float *w;
} order_host;

/* ---- orders ---- */

static void order_add(order_run *o, zero_pass_call_kind kind, int unit, int micro) {
    const order_turn t = {{kind, unit}, micro};
    o->turn[o->n++] = t;
}

/* Each micro-batch goes up and down; a unit's backwards come in the order of micro-batches. */
static void order_draw(order_run *o) {
    test_random r = {o->seed};
    int at[MICRO] = {0}, left = MICRO * 2 * UNITS;
    o->n = 0;
    while (left) {
        const int m = test_below(&r, MICRO), k = at[m], back = k >= UNITS;
        const int u = back ? 2 * UNITS - 1 - k : k;
        if (k == 2 * UNITS || (back && m && at[m - 1] <= k)) continue;
        if (!o->together && m && at[m - 1] < 2 * UNITS) continue;
        order_add(o, back ? ZERO_CALL_BACKWARD : ZERO_CALL_FORWARD, u, m);
        at[m]++;
        left--;
    }
}

/* ---- one rank ---- */

/* Gathers that come before the turn of another unit: of the compute track alone (no_overlap). */
typedef struct order_seen {
    int waiting[UNITS], ahead, own; /* own: the next gather is of the unit whose turn it is */
    order_run *run;
} order_seen;

static void order_event(void *user, const zero_event *e, int n) {
    order_seen *s = (order_seen *)user;
    for (int i = 0; i < n; i++) {
        const int u = e[i].unit;
        if (u < 0 || u >= UNITS) continue;
        if (e[i].kind == ZERO_EVENT_GATHER) s->waiting[u] = 1;
        if (e[i].kind != ZERO_EVENT_FORWARD && e[i].kind != ZERO_EVENT_BACKWARD) continue;
        s->waiting[u] = 0;
        for (int k = 0; k < UNITS; k++) {
            s->ahead += s->waiting[k] == 1;
            if (s->waiting[k]) s->waiting[k] = 2;
        }
    }
}

static int order_turns(const order_run *o, zero_pass_call *turns) {
    for (int i = 0; i < o->n; i++) turns[i] = o->turn[i].turn;
    return o->n;
}

static zero_result order_announce(zero_ctx *z, const order_run *o) {
    static __thread zero_pass_call turns[TURNS];
    const int n = order_turns(o, turns), of_pass = o->together ? n : n / MICRO;
    return zero_pass_order(z, ZERO_TRAIN, o->together ? ZERO_TOGETHER : 0, turns, of_pass);
}

static zero_result order_open(zero_ctx **z, const order_run *o, const zero_comm *comm,
                              order_seen *seen) {
    zero_config cfg = {0};
    cfg.stage = o->stage;
    cfg.type = o->type;
    cfg.grads = ZERO_GRAD_F32;
    cfg.micro_steps = MICRO;
    cfg.accumulation = o->sharded ? ZERO_ACCUMULATE_SHARDED : ZERO_ACCUMULATE_LOCAL;
    cfg.gradient_tier = o->file ? ZERO_FILE : ZERO_DEVICE;
    cfg.folder = P_tmpdir;
    cfg.prefetch = o->prefetch ? o->prefetch : ZERO_NONE;
    cfg.no_mapping = 1;
    cfg.open_units = 4;
    cfg.threads = 1;
    cfg.timeout_s = 20;
    cfg.no_overlap = o->no_overlap;
    cfg.trace = o->no_overlap ? order_event : NULL;
    cfg.trace_user = seen;
    const zero_tensor_desc w = {
        .name = "w", .numel = NUMEL, .layers = UNITS, .uses = o->split ? 2 : 1};
    ZERO_TRY(zero_create(z, &cfg, comm));
    ZERO_TRY(zero_tensor(*z, &w));
    if (o->announced == 1) ZERO_TRY(order_announce(*z, o));
    ZERO_TRY(zero_build(*z));
    if (o->announced == 2) ZERO_TRY(order_announce(*z, o));
    static const float none[NUMEL];
    float values[NUMEL];
    memcpy(values, none, sizeof values);
    for (int u = 0; u < UNITS; u++) {
        for (size_t i = 0; i < NUMEL; i++)
            values[i] = (float)(test_mix((uint64_t)u * NUMEL + i) % 1000) / 500 - 1;
        ZERO_TRY(zero_write_tensor(*z, "w", ZERO_PARAMETER, (size_t)u * NUMEL, NUMEL, values));
    }
    return ZERO_OK;
}

static float order_weight(const order_run *o, const order_host *p, size_t i) {
    float x;
    if (o->type == ZERO_F32) return p->w[i];
    zero_convert(&x, ZERO_F32, (const uint16_t *)(void *)p->w + i, o->type, 1);
    return x;
}

static float order_value(size_t at, int rank, int micro) {
    const uint64_t h = test_mix(at + 1000003 * (uint64_t)(rank * MICRO + micro));
    return (float)(h % 1024) / 512 - 1;
}

/* The second part of a backward, of the elements with odd numbers. */
static zero_result order_rest(zero_ctx *z, int u, int micro, int rank) {
    order_host g = {NULL};
    ZERO_TRY(zero_backward_begin(z, u, NULL, &g));
    for (size_t at = (size_t)u * NUMEL + 1; at < (size_t)(u + 1) * NUMEL; at += 2)
        g.w[at] += order_value(at, rank, micro);
    return zero_backward_end(z, u);
}

/* The host's part of a turn; the gradient depends on the weights. */
static zero_result order_take(zero_ctx *z, const order_run *o, const order_turn *t, int rank) {
    const int u = t->turn.unit, late = o->split == 2;
    const size_t end = (size_t)(u + 1) * NUMEL;
    order_host p = {NULL}, g = {NULL};
    if (t->turn.kind == ZERO_CALL_FORWARD) {
        ZERO_TRY(zero_forward_begin(z, u, &p));
        return zero_forward_end(z, u);
    }
    if (late && t->micro) ZERO_TRY(order_rest(z, u, t->micro - 1, rank));
    ZERO_TRY(zero_backward_begin(z, u, &p, &g));
    for (size_t at = end - NUMEL; at < end; at += o->split ? 2 : 1)
        g.w[at] += order_value(at, rank, t->micro) + order_weight(o, &p, at);
    ZERO_TRY(zero_backward_end(z, u));
    if (o->split && (!late || t->micro == MICRO - 1)) ZERO_TRY(order_rest(z, u, t->micro, rank));
    return ZERO_OK;
}

static zero_result order_pass(zero_ctx *z, const order_run *o, int rank) {
    for (int i = 0; i < o->n; i++) {
        const order_turn *t = &o->turn[i];
        const int begins = i == 0 || (!o->together && o->turn[i - 1].micro != t->micro);
        if (begins && i) ZERO_TRY(zero_pass_end(z));
        if (begins)
            ZERO_TRY(zero_pass_begin(z, ZERO_TRAIN, o->together ? ZERO_TOGETHER : t->micro, MICRO));
        ZERO_TRY(order_take(z, o, t, rank));
    }
    return zero_pass_end(z);
}

/* What was counted is what was planned. */
static void order_counts(test_rank *r, zero_ctx *z, const zero_stats *before, int step) {
    zero_plan p;
    zero_stats now;
    uint64_t gathers = 0;
    if (zero_query_plan(z, &p) || zero_query_stats(z, &now))
        test_rank_fail(r, "%s", zero_last_error(z));
    for (int u = 0; u < p.units; u++) {
        zero_plan_unit unit;
        if (zero_query_plan_unit(z, u, &unit)) test_rank_fail(r, "%s", zero_last_error(z));
        gathers += (uint64_t)unit.gathers;
    }
    if (now.gathers - before->gathers != gathers
        || now.sent_bytes - before->sent_bytes != p.sent_bytes
        || now.gather_bytes - before->gather_bytes != p.gather_bytes)
        test_rank_fail(r,
                       "step %d: %llu gathers of %llu bytes, %llu in all, planned %llu of %zu, %zu",
                       step, (unsigned long long)(now.gathers - before->gathers),
                       (unsigned long long)(now.gather_bytes - before->gather_bytes),
                       (unsigned long long)(now.sent_bytes - before->sent_bytes),
                       (unsigned long long)gathers, p.gather_bytes, p.sent_bytes);
}

static void order_body(test_rank *r) {
    order_run *o = (order_run *)r->arg;
    const zero_comm comm = test_comm(r);
    const zero_hyper h = {0.01f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.5f};
    static __thread order_seen seen;
    zero_stats before;
    zero_step_report report;
    uint64_t hash = 0;
    zero_ctx *z = NULL;
    memset(&seen, 0, sizeof seen);
    zero_result e = order_open(&z, o, &comm, &seen);
    for (int step = 0; step < STEPS && !e; step++) {
        seen.ahead = 0;
        e = zero_query_stats(z, &before);
        if (!e) e = order_pass(z, o, r->rank);
        if (!e) e = zero_reduce(z);
        if (!e) e = zero_step(z, &h);
        if (!e) e = zero_step_result(z, &report);
        if (!e && (o->announced == 1)) order_counts(r, z, &before, step);
        if (!e && r->rank == 0) o->norm[step] = report.norm;
        if (!e && r->rank == 0) o->ahead[step] = seen.ahead;
    }
    if (!e) e = zero_hash(z, &hash);
    if (e) test_rank_fail(r, "%s", zero_last_error(z));
    if (r->rank == 0) o->hash = hash;
    zero_destroy(z);
}

/* ---- same bits, planned gathers ---- */

static void order_case(uint64_t seed, int stage) {
    test_random r = {seed};
    order_run plain = {0}, o;
    char text[200];
    plain.seed = seed;
    plain.stage = stage;
    plain.type = (zero_type)(seed % 2);
    plain.sharded = seed / 2 % 2;
    plain.split = seed % 4 == 1;
    order_draw(&plain);
    test_check(test_ranks(RANKS, 0, order_body, &plain), "seed %llu, plain: %s",
               (unsigned long long)seed, test_first);
    for (int i = 0; i < 8; i++) {
        o = plain;
        o.together = i % 4 > 0;
        o.announced = i % 4 == 3 ? 2 : i > 0;
        o.file = plain.sharded && stage >= 2 && i % 3 == 2;
        o.prefetch = test_below(&r, 4);
        o.split = plain.split ? 1 + (o.together && !o.sharded) : 0;
        o.seed = test_next(&r);
        order_draw(&o);
        snprintf(text, sizeof text, "seed %llu, stage %d, order %d, prefetch %d%s%s%s",
                 (unsigned long long)seed, stage, i, o.prefetch, o.sharded ? ", sharded" : "",
                 o.file ? ", in a file" : "", o.split ? ", backwards in two parts" : "");
        if (!test_check(test_ranks(RANKS, 0, order_body, &o), "%s: %s", text, test_first)) continue;
        test_check(o.hash == plain.hash && !memcmp(o.norm, plain.norm, sizeof o.norm),
                   "%s: other bits", text);
    }
}

/* The order of 1F1B: three forwards ahead. */
static void order_1f1b(order_run *o) {
    o->n = 0;
    for (int i = 0; i < MICRO + 2; i++) {
        for (int u = 0; u < UNITS && i < MICRO; u++) order_add(o, ZERO_CALL_FORWARD, u, i);
        for (int u = UNITS; u-- > 0 && i >= 2;) order_add(o, ZERO_CALL_BACKWARD, u, i - 2);
    }
}

/* What the third step of a learnt order gathers ahead, an announced one does in the first. */
static void order_first_step(void) {
    order_run learnt = {0}, said;
    learnt.stage = 3;
    learnt.prefetch = 2;
    learnt.together = learnt.no_overlap = 1;
    order_1f1b(&learnt);
    said = learnt;
    said.announced = 1;
    test_check(test_ranks(RANKS, 0, order_body, &learnt), "learnt: %s", test_first);
    test_check(test_ranks(RANKS, 0, order_body, &said), "announced: %s", test_first);
    test_check(learnt.hash == said.hash, "announced: other bits");
    test_check(said.ahead[0] == learnt.ahead[2] && said.ahead[2] == learnt.ahead[2]
                   && learnt.ahead[0] < said.ahead[0] && said.ahead[0] > UNITS * MICRO,
               "units gathered ahead: announced %d in the first step, %d in the third; learnt %d, "
               "%d",
               said.ahead[0], said.ahead[2], learnt.ahead[0], learnt.ahead[2]);
}

/* ---- departures ---- */

static int order_says(test_rank *r, zero_ctx *z, zero_result got, zero_result want,
                      const char *words) {
    if (got == want && strstr(zero_last_error(z), words)) return 1;
    test_rank_fail(r, "expected '%s', found %d: %s", words, (int)got, zero_last_error(z));
    return 0;
}

static void order_departs(test_rank *r) {
    const zero_comm comm = test_comm(r);
    order_run o = {0};
    order_host p, g;
    zero_ctx *z = NULL;
    o.stage = 3;
    o.together = 1;
    order_1f1b(&o);
    if (order_open(&z, &o, &comm, NULL)) test_rank_fail(r, "%s", zero_last_error(z));
    const struct {
        zero_pass_call turn[2];
        const char *words;
    } bad[] = {{{{ZERO_CALL_FORWARD, UNITS}, {ZERO_CALL_FORWARD, 0}}, "call 0: kind 0 of unit 6"},
               {{{ZERO_CALL_FORWARD, 0}, {ZERO_CALL_KINDS, 0}}, "call 1: kind 2 of unit 0"}};
    for (int i = 0; i < 2; i++)
        (void)order_says(r, z, zero_pass_order(z, ZERO_TRAIN, 0, bad[i].turn, 2), ZERO_ERR_ARGUMENT,
                         bad[i].words);
    (void)order_says(r, z, zero_pass_order(z, ZERO_EVAL, ZERO_TOGETHER, NULL, 0), ZERO_ERR_ARGUMENT,
                     "micro is -2");
    (void)order_says(r, z, zero_pass_order(z, ZERO_TRAIN, 0, NULL, 3), ZERO_ERR_ARGUMENT,
                     "n is 3, expected 0");
    if (order_announce(z, &o)) test_rank_fail(r, "%s", zero_last_error(z));
    (void)order_says(r, z, zero_pass_begin(z, ZERO_TRAIN, 0, MICRO), ZERO_ERR_STATE,
                     "was announced for all micro-steps together");
    if (zero_pass_begin(z, ZERO_TRAIN, ZERO_TOGETHER, MICRO))
        test_rank_fail(r, "%s", zero_last_error(z));
    (void)order_says(
        r, z, zero_forward_begin(z, 1, &p), ZERO_ERR_STATE,
        "forward of unit 1, expected call 0 of this pass as announced: forward of unit 0");
    (void)order_says(r, z, zero_pass_end(z), ZERO_ERR_STATE,
                     "call 0 of 48 has not come: forward of unit 0");
    for (int i = 0; i < o.n; i++) { /* nothing was lost */
        if (order_take(z, &o, &o.turn[i], r->rank)) test_rank_fail(r, "%s", zero_last_error(z));
        if (i == 0)
            (void)order_says(r, z, zero_backward_begin(z, 0, &p, &g), ZERO_ERR_STATE,
                             "backward of unit 0, expected call 1 of this pass as announced:");
    }
    (void)order_says(r, z, zero_forward_begin(z, 0, &p), ZERO_ERR_STATE,
                     "forward of unit 0 comes after the 48 calls announced for this pass");
    (void)order_says(r, z, zero_pass_order(z, ZERO_TRAIN, 0, NULL, 0), ZERO_ERR_STATE,
                     "between steps");
    const zero_hyper h = {0.01f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.5f};
    if (zero_pass_end(z) || zero_reduce(z) || zero_step(z, &h)
        || zero_pass_order(z, ZERO_TRAIN, 0, NULL, 0) || zero_pass_begin(z, ZERO_TRAIN, 0, 1)
        || zero_forward_begin(z, 3, &p))
        test_rank_fail(r, "learnt again: %s", zero_last_error(z));
    (void)order_says(r, z, zero_pass_end(z), ZERO_ERR_STATE, "unit 3: its forward has not ended");
    if (zero_forward_end(z, 3) || zero_backward_begin(z, 3, &p, &g) || zero_backward_end(z, 3)
        || zero_pass_end(z) || zero_reduce(z) || zero_step(z, &h))
        test_rank_fail(r, "a step: %s", zero_last_error(z));
    /* an evaluation has its own */
    const zero_pass_call look[2] = {{ZERO_CALL_FORWARD, 4}, {ZERO_CALL_FORWARD, 1}};
    if (zero_pass_order(z, ZERO_EVAL, 0, look, 2) || zero_pass_begin(z, ZERO_EVAL, 0, 1)
        || zero_forward_begin(z, 4, &p) || zero_forward_end(z, 4))
        test_rank_fail(r, "an evaluation: %s", zero_last_error(z));
    (void)order_says(r, z, zero_pass_end(z), ZERO_ERR_STATE, "forward of unit 1");
    if (zero_forward_begin(z, 1, &p) || zero_forward_end(z, 1) || zero_pass_end(z))
        test_rank_fail(r, "an evaluation: %s", zero_last_error(z));
    zero_destroy(z);
}

/* Layers that share units leave fewer units than the order names. */
static void order_fewer(test_rank *r) {
    const zero_comm comm = test_comm(r);
    const zero_tensor_desc w = {
        .name = "w", .numel = NUMEL, .layers = UNITS, .uses = 1, .together = 2};
    order_run o = {0};
    zero_config cfg = {0};
    zero_ctx *z = NULL;
    cfg.stage = 3;
    cfg.micro_steps = MICRO;
    cfg.prefetch = 2;
    cfg.no_mapping = 1;
    cfg.timeout_s = 20;
    o.together = 1;
    order_1f1b(&o);
    if (zero_create(&z, &cfg, &comm) || zero_tensor(z, &w))
        test_rank_fail(r, "%s", zero_last_error(z));
    (void)order_says(r, z, order_announce(z, &o), ZERO_ERR_ARGUMENT, "of unit 3, expected kinds");
    zero_destroy(z);
}

/* Ranks announce two orders: each is told both. */
static void order_mismatch(test_rank *r, const order_run *o, const char *one, const char *other) {
    const zero_comm comm = test_comm(r);
    zero_ctx *z = NULL;
    (void)order_says(r, z, order_open(&z, o, &comm, NULL), ZERO_ERR_MISMATCH, "");
    const char *why = zero_last_error(z);
    if (!strstr(why, one) || !strstr(why, other)) test_rank_fail(r, "%s", why);
    zero_destroy(z);
}

/* Rank 1's turn 2 is another one. */
static void order_differs(test_rank *r) {
    order_run o = {0};
    o.stage = 3;
    o.together = 1;
    o.announced = *(const int *)r->arg;
    order_1f1b(&o);
    if (r->rank == 1) o.turn[2].turn.unit = 5;
    order_mismatch(r, &o, "call 2 of a training pass: forward of unit 2", "forward of unit 5");
}

/* Rank 1 announces one micro-step, the others all. */
static void order_counts_differ(test_rank *r) {
    order_run o = {.stage = 3, .together = r->rank != 1, .announced = 1};
    order_1f1b(&o);
    order_mismatch(r, &o, "calls of a training pass of all micro-steps, 0 of an evaluation",
                   "calls of a training pass, 0 of an evaluation");
}

/* ---- divisors ---- */

typedef struct order_pair {
    float *a, *b, *c;
} order_pair;

typedef struct order_divide {
    int stage, divisor, keep, type, node;
} order_divide;

/* `b` and `c` lie in one unit with `a`; the sum of b's gradient is divided by `divisor`. */
static void order_divides(test_rank *r) {
    const order_divide *o = (const order_divide *)r->arg;
    const zero_comm comm = test_comm(r);
    const zero_hyper h = {0.5f, 0, 0, 0, 0, 0};
    zero_config cfg = {0};
    zero_ctx *z = NULL;
    order_pair p, g;
    float grad[300], seen[300];
    double norm = 0, right = 0;
    cfg.stage = o->stage;
    cfg.optimizer = ZERO_SGD;
    cfg.type = (zero_type)o->type;
    cfg.grads = o->type ? ZERO_GRAD_F32 : ZERO_GRAD_AUTO;
    cfg.micro_steps = 2;
    if (o->type) cfg.grads = ZERO_GRAD_F32;
    cfg.no_mapping = 1;
    cfg.shard_ranks = o->node;
    cfg.timeout_s = 20;
    const int flags = o->keep ? ZERO_KEEP : 0;
    const zero_tensor_desc table[3] = {
        {.name = "a", .numel = 300, .flags = flags, .field = offsetof(order_pair, a)},
        {.name = "b",
         .numel = 300,
         .flags = flags,
         .divisor = o->divisor,
         .field = offsetof(order_pair, b)},
        {.name = "c", .numel = 300, .flags = flags, .field = offsetof(order_pair, c)}};
    int e = zero_create(&z, &cfg, &comm) || zero_tensors(z, table, 3) || zero_build(z)
            || zero_bind(z, &p, &g);
    for (int micro = 0; micro < 2 && !e; micro++) {
        e = zero_pass_begin(z, ZERO_TRAIN, micro, 2) || zero_forward_begin(z, 0, &p)
            || zero_forward_end(z, 0) || zero_backward_begin(z, 0, &p, &g);
        float *const to[3] = {g.a, g.b, g.c};
        for (int k = 0; k < 3 && !e; k++)
            for (int i = 0; i < 300; i++) to[k][i] += (float)((i + k) % 7 + r->rank * (micro + 1));
        if (!e) e = zero_backward_end(z, 0) || zero_pass_end(z);
    }
    if (!e) e = zero_reduce(z) || zero_norm(z, &norm);
    for (int k = 0; k < 3 && !e; k++) {
        const char *const name = table[k].name;
        e = zero_read_tensor(z, name, ZERO_GRADIENT, 0, 300, grad);
        for (int i = 0; i < 300 && !e; i++) {
            double sum = 0;
            for (int rank = 0; rank < r->nranks; rank++) sum += 2 * ((i + k) % 7) + 3 * rank;
            const double mean = sum / (k == 1 && o->divisor ? o->divisor : r->nranks);
            right += mean * mean;
            if (fabs((double)grad[i] - mean) > (o->type ? 0.02 : 1e-6) * mean)
                test_rank_fail(r, "%s[%d]: gradient %g, expected %g", name, i, (double)grad[i],
                               mean);
        }
    }
    if (!e) e = zero_step(z, &h);
    for (int k = 0; k < 3 && !e; k++) { /* the update sees what was read */
        e = zero_read_tensor(z, table[k].name, ZERO_MASTER, 0, 300, seen);
        for (int i = 0; i < 300 && !e && k == 1; i++) {
            double sum = 0;
            for (int rank = 0; rank < r->nranks; rank++) sum += 2 * ((i + k) % 7) + 3 * rank;
            const double to = -0.5 * sum / (o->divisor ? o->divisor : r->nranks);
            if (fabs((double)seen[i] - to) > (o->type ? 0.02 : 1e-6) * fabs(to))
                test_rank_fail(r, "b[%d] is %g, expected %g", i, (double)seen[i], to);
        }
    }
    if (e) test_rank_fail(r, "%s", zero_last_error(z));
    if (!e && fabs(norm / sqrt(right) - 1) > (o->type ? 0.01 : 1e-6))
        test_rank_fail(r, "norm %.9g, expected %.9g", norm, sqrt(right));
    zero_destroy(z);
}

static void order_divisor_differs(test_rank *r) {
    const zero_comm comm = test_comm(r);
    zero_tensor_desc w = {.name = "w", .numel = 9, .divisor = -1};
    zero_config cfg = {0};
    zero_ctx *z = NULL;
    if (zero_create(&z, &cfg, &comm)) test_rank_fail(r, "a context");
    (void)order_says(r, z, zero_tensor(z, &w), ZERO_ERR_ARGUMENT,
                     "tensor w: divisor is -1, expected 0 or more");
    w.divisor = 2 + r->rank;
    if (zero_tensor(z, &w)) test_rank_fail(r, "%s", zero_last_error(z));
    (void)order_says(r, z, zero_build(z), ZERO_ERR_MISMATCH, "divisor 2");
    zero_destroy(z);
}

static void order_all_divisors(void) {
    static const int divisors[] = {0, 1, 2, 4, 7};
    for (int i = 0; i < 5 * 4 * 4; i++) {
        const order_divide o = {i / 20, divisors[i % 5], i / 5 % 4 == 1, i / 5 % 4 == 2,
                                i / 5 % 4 == 3 && i >= 20 ? 2 : 0};
        test_check(test_ranks(4, 0, order_divides, (void *)(uintptr_t)&o),
                   "stage %d, divisor %d, keep %d, type %d, shard_ranks %d: %s", o.stage, o.divisor,
                   o.keep, o.type, o.node, test_first);
    }
    test_check(test_ranks(2, 0, order_divisor_differs, NULL), "divisors: %s", test_first);
}

int main(int argc, char **argv) {
    const uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    int announced[] = {1, 2};
    (void)alarm(240);
    order_first_step();
    test_check(test_ranks(RANKS, 0, order_departs, NULL), "departures: %s", test_first);
    test_check(test_ranks(RANKS, 0, order_fewer, NULL), "fewer units: %s", test_first);
    for (int i = 0; i < 2; i++)
        test_check(test_ranks(RANKS, 0, order_differs, &announced[i]), "another order: %s",
                   test_first);
    test_check(test_ranks(RANKS, 0, order_counts_differ, NULL), "other counts: %s", test_first);
    order_all_divisors();
    for (int stage = 0; stage <= 3; stage++)
        for (uint64_t k = 0; k < (stage == 3 ? 12 : 4); k++) order_case(seed * 1000 + k, stage);
    return test_summary();
}

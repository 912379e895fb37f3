/* test_faults.c - invariants 7 and 8: whatever goes wrong on one rank, every rank gets an error and
   a sentence, in time; nothing hangs, leaks or crashes. A watchdog ends the test where a rank would
   wait for ever. */
#include "../shared/allocations.h"

#include <signal.h>

enum { FAULT_RANKS = 3, FAULT_UNITS = 5 };

/* ---- watchdog ---- */

static char fault_case[200];

static void fault_bark(int signal) {
    static const char text[] = "HANGS: ";
    (void)signal;
    (void)!write(2, text, sizeof text - 1);
    (void)!write(2, fault_case, strlen(fault_case));
    (void)!write(2, "\n", 1);
    _exit(3);
}

__attribute__((format(printf, 1, 2))) static void fault_begin(const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(fault_case, sizeof fault_case, format, list);
    va_end(list);
    (void)alarm(60);
}

/* ---- a host that stops at the first error ---- */

/* Where a rank is when it is made to do something else. */
typedef enum fault_place {
    AT_CREATE,
    AT_BUILD,
    AT_IDLE,
    AT_FORWARD,
    AT_BACKWARD,
    AT_BETWEEN,
    AT_REDUCED,
    AT_STEPPED,
    FAULT_PLACES
} fault_place;

typedef struct fault_rank { /* what became of a rank; shared memory */
    zero_result result;
    char text[600];
    double at; /* when it returned */
    long live; /* pieces, maps and files that it did not give back */
    alloc_book book;
} fault_rank;

typedef struct fault_test {
    zero_config cfg;
    int node_size, steps, odd; /* odd: the rank that is different */
    fault_place place;         /* where it is */
    int step;                  /* and in which step */
    /* what it does there; 1: it goes on */
    int (*deed)(struct fault_test *t, zero_ctx *z, test_rank *r);
    void (*body)(test_rank *r); /* the whole life of a rank */
    void (*change)(struct fault_test *t, zero_config *cfg, zero_comm *comm, zero_tensor_desc *desc,
                   int *n);
    int which;  /* for `change` and `deed` */
    int group;  /* the odd one's tensor has another learning rate (1), or decay (2) */
    int sticky; /* every later call is tried, too */
    double deed_at;
    fault_rank rank[FAULT_RANKS];
} fault_test;

typedef struct fault_host {
    float *field[5];
} fault_host;

static const zero_tensor_desc fault_desc[] = {
    {"emb", 70, 1, .uses = 2},
    {"mat", 331, 3, .unit = 1, .field = sizeof(float *)},
    {"vec", 17, 3, .unit = 1, .flags = ZERO_ONE_D, .field = 2 * sizeof(float *)},
    {"norm", 9, 3, .unit = 1, .flags = ZERO_KEEP, .field = 3 * sizeof(float *)},
    {"out", 50, 1, .unit = 4, .field = 4 * sizeof(float *)}};

#define FAULT_LEFT ZERO_RESULT_COUNT /* no failure: this rank goes, as its deed wants it */
#define FAULT_TRY(call)                                                                            \
    do {                                                                                           \
        const zero_result fault_r = (call);                                                        \
        if (fault_r) return fault_r;                                                               \
    } while (0)
/* Is this the place where the odd one does it? */
#define FAULT_HERE(where)                                                                          \
    do {                                                                                           \
        if (r->rank == t->odd && t->deed && t->place == (where) && step == t->step) {              \
            t->deed_at = test_now();                                                               \
            if (!t->deed(t, z, r)) return FAULT_LEFT;                                              \
        }                                                                                          \
    } while (0)

static zero_result fault_build(fault_test *t, test_rank *r, zero_ctx **out) {
    static __thread void *param[3], *grad[3]; /* slots, to the end of the context */
    zero_config cfg = t->cfg;
    zero_comm comm = test_comm(r);
    zero_tensor_desc desc[8];
    zero_ctx *z = NULL;
    int n = 5, step = 0;
    float values[70];
    memcpy(desc, fault_desc, sizeof fault_desc);
    comm.node_size = t->node_size;
    cfg.log = test_quiet;
    if (t->change && r->rank == t->odd) t->change(t, &cfg, &comm, desc, &n);
    const zero_result created = zero_create(out, &cfg, &comm);
    z = *out;
    if (created) return created;
    FAULT_HERE(AT_CREATE);
    if (t->group && r->rank == t->odd) desc[1].lr_factor = t->group == 1 ? 0.25f : 1;
    if (t->group && r->rank == t->odd) desc[1].decay_factor = t->group == 2 ? 0.125f : 1;
    for (int i = 0; i < n; i++) {
        const zero_tensor_desc slots = {.numel = desc[i].numel,
                                        .layers = desc[i].layers,
                                        .same_as = desc[i].name,
                                        .param = param,
                                        .grad = grad};
        FAULT_TRY(zero_tensor(z, &desc[i]));
        if (!strcmp(desc[i].name, "vec")) FAULT_TRY(zero_tensor(z, &slots));
    }
    FAULT_HERE(AT_BUILD);
    FAULT_TRY(zero_build(z));
    FAULT_HERE(AT_IDLE);
    for (int i = 0; i < 70; i++) values[i] = (float)i;
    return zero_write_tensor(z, "emb", ZERO_PARAMETER, 0, 70, values);
}

static zero_result fault_pass(fault_test *t, test_rank *r, zero_ctx *z, fault_host *p,
                              fault_host *g, int micro, int micro_steps, int step) {
    FAULT_TRY(zero_pass_begin(z, ZERO_TRAIN, micro, micro_steps));
    for (int u = 0; u < FAULT_UNITS; u++) {
        if (u == 2) FAULT_HERE(AT_FORWARD);
        FAULT_TRY(zero_forward_begin(z, u, p));
        FAULT_TRY(zero_forward_end(z, u));
    }
    FAULT_TRY(zero_backward_begin(z, 0, p, g));
    FAULT_TRY(zero_backward_end(z, 0));
    for (int u = FAULT_UNITS - 1; u >= 0; u--) {
        if (u == 2) FAULT_HERE(AT_BACKWARD);
        FAULT_TRY(zero_backward_begin(z, u, u ? p : NULL, g));
        for (int k = 0; k < 50 && u == 4; k++) g->field[4][k] += 0.5f;
        FAULT_TRY(zero_backward_end(z, u));
    }
    return zero_pass_end(z);
}

static zero_result fault_train(fault_test *t, test_rank *r, zero_ctx *z) {
    const zero_hyper adamw = {0.01f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f};
    const int micro_steps = t->cfg.micro_steps ? t->cfg.micro_steps : 1;
    zero_step_report report;
    fault_host p, g;
    uint64_t hash;
    float seen[70];
    FAULT_TRY(zero_bind(z, &p, &g));
    for (int step = 0; step < t->steps; step++) {
        for (int micro = 0; micro < micro_steps; micro++) {
            FAULT_TRY(fault_pass(t, r, z, &p, &g, micro, micro_steps, step));
            if (!micro) FAULT_HERE(AT_BETWEEN);
        }
        FAULT_TRY(zero_reduce(z));
        FAULT_HERE(AT_REDUCED);
        FAULT_TRY(zero_step(z, &adamw));
        FAULT_TRY(zero_step_result(z, &report));
        FAULT_HERE(AT_STEPPED);
    }
    FAULT_TRY(zero_hash(z, &hash));
    return zero_read_tensor(z, "emb", ZERO_PARAMETER, 0, 70, seen);
}

/* After a failure every call says the same again. */
static int fault_stays(zero_ctx *z, zero_result result) {
    const zero_hyper adamw = {0.01f, 0.9f, 0.95f, 1e-8f, 0.1f, 0};
    const zero_tensor_desc late = {"late", 1, .layers = 1};
    char text[600];
    float x[4] = {0};
    double d[2] = {0};
    zero_step_report report;
    zero_stats stats;
    zero_plan plan;
    zero_plan_unit unit;
    snprintf(text, sizeof text, "%s", zero_last_error(z));
    const zero_result seen[] = {zero_tensor(z, &late),
                                zero_build(z),
                                zero_query_plan(z, &plan),
                                zero_query_plan_unit(z, 0, &unit),
                                zero_bind(z, NULL, NULL),
                                zero_pass_begin(z, ZERO_TRAIN, 0, 1),
                                zero_forward_begin(z, 0, NULL),
                                zero_forward_end(z, 0),
                                zero_backward_begin(z, 0, NULL, NULL),
                                zero_backward_end(z, 0),
                                zero_pass_end(z),
                                zero_reduce(z),
                                zero_norm(z, d),
                                zero_step(z, &adamw),
                                zero_step_result(z, &report),
                                zero_read_tensor(z, "emb", ZERO_PARAMETER, 0, 1, x),
                                zero_write_tensor(z, "emb", ZERO_PARAMETER, 0, 1, x),
                                zero_all_sum(z, d, 1),
                                zero_broadcast(z, x, 4, 0),
                                zero_barrier(z),
                                zero_query_stats(z, &stats)};
    for (size_t i = 0; i < sizeof seen / sizeof *seen; i++)
        if (seen[i] != result) return 0;
    return !strcmp(text, zero_last_error(z));
}

/* One that trains. */
static void fault_body(test_rank *r) {
    fault_test *t = (fault_test *)r->arg;
    fault_rank *mine = &t->rank[r->rank];
    zero_ctx *z = NULL;
    alloc_mine = &mine->book;
    mine->result = fault_build(t, r, &z);
    if (!mine->result) mine->result = fault_train(t, r, z);
    if (mine->result == FAULT_LEFT) mine->result = ZERO_OK;
    mine->at = test_now();
    snprintf(mine->text, sizeof mine->text, "%s", z ? zero_last_error(z) : "no context");
    /* where the call itself was wrong, and no collective failed, the context lives on */
    if (t->sticky && mine->result && mine->result != ZERO_ERR_STATE
        && !fault_stays(z, mine->result))
        test_rank_fail(r, "the error is not the same at every later call: %s, then %s", mine->text,
                       zero_last_error(z));
    zero_destroy(z);
    mine->live = mine->book.pieces + mine->book.maps + mine->book.files;
    alloc_mine = NULL;
}

/* One that has groups. */
static void fault_groups(test_rank *r) {
    fault_test *t = (fault_test *)r->arg;
    fault_rank *mine = &t->rank[r->rank];
    const zero_comm comm = test_comm(r);
    zero_group *all = NULL, *part = NULL;
    float x[5000] = {0};
    alloc_mine = &mine->book;
    zero_result e = zero_group_open(&all, &comm, NULL, t->cfg.timeout_s);
    if (!e) e = zero_group_split(all, 0, r->rank, &part);
    if (!e) e = zero_group_all_reduce(part, x, 5000, ZERO_F32, ZERO_SUM);
    mine->result = e;
    const zero_group *const says = part ? part : all;
    const char *text = says ? zero_group_error(says) : "";
    snprintf(mine->text, sizeof mine->text, "%s", text[0] ? text : "no context");
    zero_group_close(part);
    zero_group_close(all);
    mine->live = mine->book.pieces + mine->book.maps + mine->book.files;
    alloc_mine = NULL;
}

static alloc_book fault_launcher; /* of the thread that makes the groups */

static void fault_reset(fault_test *t) {
    memset(t->rank, 0, sizeof t->rank);
    memset(&fault_launcher, 0, sizeof fault_launcher);
    t->deed_at = 0;
    alloc_strangers = 0;
}

static int fault_run(fault_test *t, int processes) {
    return processes ? test_processes(FAULT_RANKS, 0, t->body, t, 30)
                     : test_ranks(FAULT_RANKS, 0, t->body, t);
}

/* What all have not given back: of threads, the last one to let go of a board frees it, or the
 * group. */
static long fault_live(const fault_test *t) {
    long live = fault_launcher.pieces + fault_launcher.maps;
    for (int i = 0; i < FAULT_RANKS; i++) live += t->rank[i].live;
    return live;
}

/* A sentence says `call, rank r of n: `; NULL if this one does not. */
static const char *fault_sentence(const char *text, int rank) {
    char whom[40];
    snprintf(whom, sizeof whom, ", rank %d of %d: ", rank, FAULT_RANKS);
    const char *at = strstr(text, whom);
    return at && at > text && !strncmp(text, "zero_", 5) ? at + strlen(whom) : NULL;
}

static fault_test *fault_shared(void) {
    static fault_test *t;
    if (!t) t = (fault_test *)test_shared(sizeof *t);
    memset(t, 0, sizeof *t);
    t->steps = 2;
    t->odd = -1;
    t->body = fault_body;
    return t;
}

static void fault_config(fault_test *t, int which) {
    static const zero_config cfg[] = {
        {.stage = 3, .no_mapping = 1, .prefetch = 2, .micro_steps = 2},
        {.stage = 0, .no_overlap = 1},
        {.stage = 3, .persistence_numel = ZERO_NONE},
        {.stage = 1, .micro_steps = 2},
        {.stage = 2},
        {.stage = 3,
         .optimizer_tier = ZERO_FILE,
         .gradient_tier = ZERO_FILE,
         .parameter_tier = ZERO_FILE,
         .micro_steps = 2,
         .folder = "/tmp"},
        {.stage = 3, .shard_ranks = 1}};
    t->cfg = cfg[which];
    t->cfg.threads = 1;
    t->cfg.timeout_s = 8;
}

/* ---- the k-th allocation fails ---- */

/* 0: there is no k-th one. */
static int fault_allocation(fault_test *t, int processes, long k) {
    fault_reset(t);
    t->rank[t->odd].book.fail_at = k;
    const double start = test_now();
    int ok = fault_run(t, processes);
    const int failed = t->rank[t->odd].book.failed > 0;
    const char *cause = fault_sentence(t->rank[t->odd].text, t->odd); /* which peers are told */
    for (int i = 0; i < FAULT_RANKS; i++) {
        const fault_rank *x = &t->rank[i];
        ok &= failed ? x->result == ZERO_ERR_MEMORY || (x->result == ZERO_ERR_PEER && i != t->odd)
                     : !x->result;
        ok &= !failed || !strcmp(x->text, "no context") || fault_sentence(x->text, i);
        ok &= x->result != ZERO_ERR_PEER || !cause || strstr(x->text, cause);
    }
    const long live = fault_live(t);
    ok &= live == 0 && alloc_strangers == 0 && test_now() - start < 5;
    test_check(ok, "%s: live %ld, results %d %d %d: %s | %s | %s %s", fault_case, live,
               (int)t->rank[0].result, (int)t->rank[1].result, (int)t->rank[2].result,
               t->rank[0].text, t->rank[1].text, t->rank[2].text, test_first);
    return failed;
}

static void fault_allocations(int which, int processes, void (*body)(test_rank *r)) {
    fault_test *t = fault_shared();
    fault_config(t, which);
    t->body = body;
    for (t->odd = 0; t->odd < FAULT_RANKS; t->odd++)
        for (long k = 1;; k++) {
            fault_begin("allocation %ld of rank %d fails, configuration %d, processes %d%s", k,
                        t->odd, which, processes, body == fault_groups ? ", groups" : "");
            if (!fault_allocation(t, processes, k)) break;
        }
}

/* ---- ranks that disagree ---- */

enum { FAULT_TYPE = 19, FAULT_MASTER = 21, FAULT_GROUP = 32 }; /* of the changes below */

static void fault_change(fault_test *t, zero_config *cfg, zero_comm *comm, zero_tensor_desc *desc,
                         int *n) {
    switch (t->which) {
    case 0: cfg->stage = 1; break;
    case 1: cfg->micro_steps = 7; break;
    case 2: cfg->accumulation = ZERO_ACCUMULATE_LOCAL; break;
    case 3: cfg->prefetch = 3; break;
    case 4: cfg->bucket_numel = 100000; break;
    case 5: cfg->persistence_numel = 77; break;
    case 6: cfg->no_overlap = 1; break;
    case 7: cfg->no_overflow_check = 1; break;
    case 8: cfg->no_mapping = 1; break;
    case 9: cfg->timeout_s = 9; break;
    case 10: cfg->seed = UINT64_MAX; break;
    case 11: comm->node_size = 1; break;
    case 12: *n = 4; break;
    case 13: desc[1].numel = 332; break;
    case 14: desc[1].layers = 2; break;
    case 15: desc[4].unit = 3; break;
    case 16: desc[0].uses = 3; break;
    case 17: desc[2].flags = ZERO_NO_DECAY; break;
    case 18: desc[3].name = "nrom"; break;
    case 19: cfg->type = ZERO_BF16; break;
    case 20: cfg->grads = ZERO_GRAD_F32; break;
    case 21: cfg->master = ZERO_MASTER_F32; break;
    case 22: cfg->seed = 12; break;
    case 23: cfg->seed = (uint64_t)7 << 32; break;
    case 24: cfg->optimizer = ZERO_LION; break;
    case 25: cfg->scaler.fixed = 8; break;
    case 26: cfg->scaler.initial = 32; break;
    case 27: cfg->scaler.minimum = 2; break;
    case 28: cfg->scaler.window = 3; break;
    case 29: cfg->scaler.hysteresis = 4; break;
    case 30: cfg->scaler.consecutive_hysteresis = 1; break;
    case 31: cfg->state_type = ZERO_STATE_BF16; break;
    case FAULT_GROUP:
    case FAULT_GROUP + 1: break; /* fault_test.group */
    default:
        desc[1] = fault_desc[2];
        desc[2] = fault_desc[1];
        break;
    }
}

static void fault_disagreements(void) {
    static const char *const what[][2] = {
        /* what the two sides of the sentence say */
        {"stage 2", "stage 1"},
        {"micro_steps 1", "micro_steps 7"},
        {"accumulation 2", "accumulation 1"},
        {"prefetch 1", "prefetch 3"},
        {"bucket_numel 0", "bucket_numel 100000"},
        {"persistence_numel 0", "persistence_numel 77"},
        {"no_overlap 0", "no_overlap 1"},
        {"no_overflow_check 0", "no_overflow_check 1"},
        {"no_mapping 0", "no_mapping 1"},
        {"timeout_s 8", "timeout_s 9"},
        {"seed 0", "seed 18446744073709551615"},
        {"node_size 3", "node_size 1"},
        {"tensors 5", "tensors 4"},
        {"tensor 1: numel 331", "tensor 1: numel 332"},
        {"layers 3", "layers 2"},
        {"unit 4", "unit 3"},
        {"uses 2", "uses 3"},
        {"flags 8", "flags 2"},
        {"name norm", "name nrom"},
        {"type 2", "type 1"},
        {"grads 2", "grads 1"},
        {"master 2", "master 1"},
        {"seed 0", "seed 12"},
        {"seed 0", "seed 30064771072"},
        {"optimizer 0", "optimizer 4"},
        {"scaler.fixed 0", "scaler.fixed 8"},
        {"scaler.initial 65536", "scaler.initial 32"},
        {"scaler.minimum 1", "scaler.minimum 2"},
        {"scaler.window 1000", "scaler.window 3"},
        {"scaler.hysteresis 2", "scaler.hysteresis 4"},
        {"scaler.consecutive_hysteresis 0", "scaler.consecutive_hysteresis 1"},
        {"state_type 0", "state_type 1"},
        {"lr_factor 1,", "lr_factor 0.25,"},
        {"decay_factor 1,", "decay_factor 0.125,"},
        {"tensor 1: numel 331", "numel 17"}};
    enum { CHANGES = sizeof what / sizeof *what };
    fault_test *t = fault_shared();
    fault_config(t, 4);
    t->change = fault_change;
    t->sticky = 1;
    for (t->which = 0; t->which < CHANGES; t->which++)
        for (t->odd = 0; t->odd < FAULT_RANKS; t->odd++) {
            t->cfg.type = t->which < FAULT_TYPE      ? ZERO_F32
                          : t->which == FAULT_MASTER ? ZERO_BF16
                                                     : ZERO_F16;
            t->group = t->which == FAULT_GROUP ? 1 : t->which == FAULT_GROUP + 1 ? 2 : 0;
            fault_begin("rank %d has %s", t->odd, what[t->which][1]);
            fault_reset(t);
            int ok = fault_run(t, t->odd == 1);
            for (int i = 0; i < FAULT_RANKS; i++) {
                const char *said = fault_sentence(t->rank[i].text, i);
                ok &= t->rank[i].result == ZERO_ERR_MISMATCH && said
                      && strstr(said, what[t->which][0]) && strstr(said, what[t->which][1]);
            }
            test_check(ok && !fault_live(t), "%s: %s | %s | %s %s", fault_case, t->rank[0].text,
                       t->rank[1].text, t->rank[2].text, test_first);
        }
}

/* A value that is wrong by itself, on one rank only: that rank says so, the others that it failed.
 */
static void fault_change_badly(fault_test *t, zero_config *cfg, zero_comm *comm,
                               zero_tensor_desc *desc, int *n) {
    (void)n;
    if (t->which == 0) cfg->stage = 4;
    if (t->which == 1) comm->node_size = 2;
    if (t->which == 2) desc[1].numel = 0;
    if (t->which == 3) comm->rank = 3;
    if (t->which > 4) cfg->type = ZERO_F16;
    if (t->which == 5) cfg->type = (zero_type)5;
    if (t->which == 6) cfg->optimizer = (zero_optimizer)17;
    if (t->which == 7) cfg->scaler.window = -3;
    if (t->which == 8) cfg->master = ZERO_MASTER_NONE;
    if (t->which == 9) cfg->no_overflow_check = 1;
    if (t->which == 4)
        comm->handle = NULL; /* who has lost the group cannot tell anyone: they wait */
}

static void fault_bad_values(void) {
    static const char *const what[] = {"stage is 4",      "node_size 2",
                                       "numel is 0",      "rank is 3",
                                       "handle is NULL",  "type is 5",
                                       "optimizer is 17", "scaler.window is -3",
                                       "master is NONE",  "no_overflow_check is 1"};
    fault_test *t = fault_shared();
    fault_config(t, 2);
    t->change = fault_change_badly;
    for (t->which = 0; t->which < 10; t->which++)
        for (t->odd = 0; t->odd < FAULT_RANKS; t->odd++) {
            const zero_result others = t->which == 4 ? ZERO_ERR_TIMEOUT : ZERO_ERR_PEER;
            fault_begin("rank %d: %s", t->odd, what[t->which]);
            fault_reset(t);
            t->cfg.timeout_s = t->which == 4 ? 0.3 : 8;
            const double start = test_now();
            int ok = fault_run(t, t->odd == 1);
            for (int i = 0; i < FAULT_RANKS; i++) {
                const zero_result r = t->rank[i].result;
                if (i == t->odd)
                    ok &= r == ZERO_ERR_ARGUMENT;
                else
                    ok &= r == others || (t->which == 4 && r == ZERO_ERR_PEER);
                if (i == t->odd || t->which != 4)
                    ok &= strstr(t->rank[i].text, what[t->which]) != NULL;
            }
            test_check(ok && !fault_live(t) && test_now() - start < 2,
                       "%s: %d %d %d %s | %s | %s %s", fault_case, (int)t->rank[0].result,
                       (int)t->rank[1].result, (int)t->rank[2].result, t->rank[0].text,
                       t->rank[1].text, t->rank[2].text, test_first);
        }
}

/* ---- hooks in another order ---- */

static int fault_deed_order(fault_test *t, zero_ctx *z, test_rank *r) {
    fault_host p, g;
    float seen[8];
    double sum[2] = {0};
    zero_result e = zero_bind(z, &p, &g);
    (void)r;
    if (e) return 1;
    switch (t->which) {
    case 0:
        e = zero_backward_begin(z, 1, &p, &g) || zero_backward_end(z, 1);
        break; /* unit 1 before unit 2 */
    case 1:
        e = zero_forward_begin(z, 4, &p) || zero_forward_end(z, 4);
        break;                                  /* unit 4 before unit 2 */
    case 2: e = zero_pass_end(z); break;        /* no more hooks */
    case 3: e = zero_all_sum(z, sum, 2); break; /* one call too many */
    case 4: e = zero_read_tensor(z, "out", ZERO_MOMENT_1, 0, 8, seen); break;
    default: e = zero_barrier(z); break;
    }
    (void)e;
    return 1;
}

/* 0: never; a rank that only finds out about its own mistake has a STATE error of its own. */
static int fault_order_ok(const fault_test *t) {
    int ok = 1;
    for (int i = 0; i < FAULT_RANKS; i++) {
        const zero_result r = t->rank[i].result;
        ok &= r == ZERO_ERR_MISMATCH || r == ZERO_ERR_TIMEOUT || r == ZERO_ERR_PEER
              || (i == t->odd && r == ZERO_ERR_STATE);
        ok &= fault_sentence(t->rank[i].text, i) != NULL;
    }
    return ok && !fault_live(t);
}

static void fault_orders(void) {
    static const struct {
        int which, config;
        fault_place place;
    } cases[] = {{0, 4, AT_BACKWARD}, {0, 1, AT_BACKWARD}, {0, 0, AT_BACKWARD}, {0, 3, AT_BACKWARD},
                 {1, 0, AT_FORWARD},  {2, 4, AT_BACKWARD}, {2, 0, AT_FORWARD},  {2, 1, AT_BACKWARD},
                 {3, 4, AT_STEPPED},  {3, 0, AT_FORWARD},  {4, 2, AT_STEPPED},  {4, 3, AT_IDLE},
                 {5, 4, AT_IDLE},     {5, 1, AT_REDUCED}};
    fault_test *t = fault_shared();
    t->deed = fault_deed_order;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (t->odd = 0; t->odd < FAULT_RANKS; t->odd += 2) {
            fault_config(t, cases[i].config);
            t->which = cases[i].which;
            t->place = cases[i].place;
            t->cfg.timeout_s = 0.25;
            fault_begin("rank %d calls in another order, case %d", t->odd, (int)i);
            fault_reset(t);
            const double start = test_now();
            const int ok = fault_run(t, i % 4 == 3) && fault_order_ok(t);
            test_check(ok && test_now() - start < 4, "%s: %d %d %d %s | %s | %s %s", fault_case,
                       (int)t->rank[0].result, (int)t->rank[1].result, (int)t->rank[2].result,
                       t->rank[0].text, t->rank[1].text, t->rank[2].text, test_first);
        }
}

/* ---- a rank that leaves ---- */

static int fault_deed_leave(fault_test *t, zero_ctx *z, test_rank *r) {
    (void)t;
    (void)z;
    (void)r;
    return 0; /* fault_body destroys the context */
}

/* The others know within a second, and know who. */
static void fault_check_left(const fault_test *t, const char *why, int died) {
    int ok = t->deed_at > 0 && (died || !fault_live(t));
    double late = 0;
    char who[32];
    snprintf(who, sizeof who, "rank %d ", t->odd);
    for (int i = 0; i < FAULT_RANKS; i++) {
        if (i == t->odd) continue;
        const char *said = fault_sentence(t->rank[i].text, i);
        ok &= t->rank[i].result == ZERO_ERR_PEER && said && strstr(said, who) && strstr(said, why);
        if (t->rank[i].at - t->deed_at > late) late = t->rank[i].at - t->deed_at;
    }
    test_check(ok && late < 1, "%s: %d %d %d after %.3f s: %s | %s | %s %s", fault_case,
               (int)t->rank[0].result, (int)t->rank[1].result, (int)t->rank[2].result, late,
               t->rank[0].text, t->rank[1].text, t->rank[2].text, test_first);
}

static void fault_leavers(void) {
    fault_test *t = fault_shared();
    t->deed = fault_deed_leave;
    t->sticky = 1;
    for (int config = 0; config < 6; config++)
        for (t->place = AT_CREATE; t->place < FAULT_PLACES; t->place++) {
            fault_config(t, config);
            t->odd = (config + (int)t->place) % FAULT_RANKS;
            t->step = 0;
            fault_begin("rank %d leaves at place %d, configuration %d", t->odd, (int)t->place,
                        config);
            fault_reset(t);
            const int ok = fault_run(t, (int)t->place % 3 == config % 3);
            test_check(ok, "%s: %s", fault_case, test_first);
            /* in the middle of something, it has failed; otherwise it is only gone */
            const int calm =
                t->place <= AT_IDLE || t->place == AT_REDUCED || t->place == AT_STEPPED;
            fault_check_left(
                t, calm ? "destroyed its context before" : "failed: it gave up its context", 0);
        }
}

/* ---- a process that is killed, and the launcher that sees it ---- */

static int fault_deed_die(fault_test *t, zero_ctx *z, test_rank *r) {
    (void)t;
    (void)z;
    (void)r;
    (void)kill(getpid(), SIGKILL);
    return 0;
}

static void fault_launch(fault_test *t) {
    zero_local *local = NULL;
    test_rank ranks[FAULT_RANKS];
    pid_t pid[FAULT_RANKS];
    memset(ranks, 0, sizeof ranks);
    if (zero_local_create(&local, FAULT_RANKS, 1)) return;
    fflush(NULL);
    for (int i = 0; i < FAULT_RANKS; i++) {
        ranks[i] = (test_rank){.rank = i, .nranks = FAULT_RANKS, .local = local, .arg = t};
        if ((pid[i] = fork()) != 0) continue;
        (void)alarm(30);
        fault_body(&ranks[i]);
        _exit(0);
    }
    for (int i = 0; i < FAULT_RANKS; i++) {
        int status = 0, who = 0;
        const pid_t gone = waitpid(-1, &status, 0);
        while (who < FAULT_RANKS - 1 && pid[who] != gone) who++;
        if (WIFSIGNALED(status)) zero_local_abort(local, who, "killed by a signal");
    }
    zero_local_destroy(local);
}

static void fault_killed(void) {
    fault_test *t = fault_shared();
    t->deed = fault_deed_die;
    for (int config = 0; config < 6; config++)
        for (t->place = AT_CREATE; t->place < FAULT_PLACES; t->place += 1 + config % 2) {
            fault_config(t, config);
            t->odd = (config + (int)t->place) % FAULT_RANKS;
            fault_begin("rank %d is killed at place %d, configuration %d", t->odd, (int)t->place,
                        config);
            fault_reset(t);
            fault_launch(t);
            fault_check_left(t, "killed by a signal", 1);
        }
}

/* ---- aborted from outside, at any moment ---- */

typedef struct fault_abort {
    zero_local *local;
    double after;
    double at;
} fault_abort;

static void *fault_abort_main(void *arg) {
    fault_abort *a = (fault_abort *)arg;
    for (const double end = test_now() + a->after; test_now() < end;) {}
    a->at = test_now();
    zero_local_abort(a->local, 77, "the user pressed a key");
    zero_local_abort(a->local, 78, "and another one, too late");
    return NULL;
}

static void fault_aborts(void) {
    fault_test *t = fault_shared();
    test_random random = {3};
    t->steps = 1000000;
    t->sticky = 1;
    for (int i = 0; i < 60; i++) {
        test_rank ranks[FAULT_RANKS];
        pthread_t aborter;
        fault_abort a = {NULL, (double)test_below(&random, 1000) * (i % 3 ? 2e-5 : 1e-6), 0};
        fault_config(t, i % 5);
        fault_begin("aborted after %g s, configuration %d", a.after, i % 5);
        fault_reset(t);
        memset(ranks, 0, sizeof ranks);
        if (zero_local_create(&a.local, FAULT_RANKS, 0)) return;
        for (int k = 0; k < FAULT_RANKS; k++) {
            ranks[k] = (test_rank){
                .rank = k, .nranks = FAULT_RANKS, .local = a.local, .arg = t, .body = fault_body};
            if (pthread_create(&ranks[k].thread, NULL, test_rank_main, &ranks[k])) abort();
        }
        if (pthread_create(&aborter, NULL, fault_abort_main, &a)) abort();
        pthread_join(aborter, NULL);
        int ok = 1;
        for (int k = 0; k < FAULT_RANKS; k++) {
            pthread_join(ranks[k].thread, NULL);
            const fault_rank *x = &t->rank[k];
            ok &= x->result == ZERO_ERR_PEER
                  && strstr(x->text, "rank 77 failed: the user pressed a key") && !ranks[k].failed
                  && x->at - a.at < 1;
        }
        zero_local_destroy(a.local);
        test_check(ok && !fault_live(t), "%s: live %ld: %s | %s | %s", fault_case, fault_live(t),
                   t->rank[0].text, t->rank[1].text, t->rank[2].text);
    }
}

/* ---- ranks that write different values ---- */

/* Every rank is told, nothing is written, and the context lives. */
static void fault_write_rank(test_rank *r) {
    fault_test *t = (fault_test *)r->arg;
    zero_ctx *z = NULL;
    float values[70], seen[70];
    int ok = !fault_build(t, r, &z);
    for (int kind = 0; kind < ZERO_KIND_COUNT && ok; kind++) {
        if (kind == ZERO_GRADIENT) continue;
        for (int i = 0; i < 70; i++) values[i] = (float)(100 * kind + i);
        ok = !zero_write_tensor(z, "emb", (zero_kind)kind, 0, 70, values);
        if (r->rank == t->odd) values[kind % 2 ? 20 : 31] += 1; /* the range's first is 20 */
        if (zero_write_tensor(z, "emb", (zero_kind)kind, 20, 50, values + 20) != ZERO_ERR_MISMATCH
            || !strstr(zero_last_error(z), "emb, [20, 70): rank "))
            test_rank_fail(r, "kind %d: %s", kind, zero_last_error(z));
        memset(values, 0, sizeof values); /* the same values, at another place */
        if (zero_write_tensor(z, "emb", (zero_kind)kind, r->rank == t->odd, 9, values)
            != ZERO_ERR_MISMATCH)
            test_rank_fail(r, "kind %d, another range: %s", kind, zero_last_error(z));
        ok = ok && !zero_read_tensor(z, "emb", (zero_kind)kind, 0, 70, seen);
        for (int i = 0; i < 70 && ok; i++)
            if (seen[i] != (float)(100 * kind + i)) test_rank_fail(r, "kind %d: written", kind);
    }
    if (!ok) test_rank_fail(r, "%s", zero_last_error(z));
    zero_destroy(z);
}

static void fault_writes(void) {
    fault_test *t = fault_shared();
    for (int config = 0; config < 5; config++)
        for (t->odd = 0; t->odd < FAULT_RANKS; t->odd++) {
            fault_config(t, config);
            fault_begin("rank %d writes other values, configuration %d", t->odd, config);
            test_check(test_ranks(FAULT_RANKS, 0, fault_write_rank, t), "%s: %s", fault_case,
                       test_first);
        }
}

/* ---- ranks that ask for different things ---- */

/* Where ranks send each other what is asked for, every rank is told; the context lives. */
static void fault_read_rank(test_rank *r) {
    fault_test *t = (fault_test *)r->arg;
    const zero_result expected = t->cfg.stage ? ZERO_ERR_MISMATCH : ZERO_OK;
    const int odd = r->rank == t->odd;
    zero_ctx *z = NULL;
    float seen[70];
    int ok = !fault_build(t, r, &z);
    for (int kind = 0; kind < ZERO_KIND_COUNT && ok; kind++) {
        if (kind == ZERO_GRADIENT) continue;
        const zero_result of_kind =
            zero_read_tensor(z, "emb", odd && kind ? ZERO_PARAMETER : (zero_kind)kind, 0, 70, seen);
        if (of_kind != (kind ? expected : ZERO_OK))
            test_rank_fail(r, "kind %d: %d, %s", kind, (int)of_kind, zero_last_error(z));
        const zero_result of_range =
            zero_read_tensor(z, "emb", (zero_kind)kind, (size_t)odd, 9, r->rank ? NULL : seen);
        if (of_range != expected || (expected && !strstr(zero_last_error(z), "asks for another")))
            test_rank_fail(r, "range: %d, %s", (int)of_range, zero_last_error(z));
        ok = !zero_read_tensor(z, "emb", ZERO_PARAMETER, 0, 70, r->rank ? NULL : seen);
        for (int i = 0; i < 70 && ok && !r->rank; i++)
            if (seen[i] != (float)i) test_rank_fail(r, "kind %d: emb[%d]", kind, i);
    }
    if (!ok) test_rank_fail(r, "%s", zero_last_error(z));
    zero_destroy(z);
}

static void fault_reads(void) {
    fault_test *t = fault_shared();
    for (int config = 0; config < 5; config++)
        for (t->odd = 0; t->odd < FAULT_RANKS; t->odd++) {
            fault_config(t, config);
            fault_begin("rank %d reads something else, configuration %d", t->odd, config);
            test_check(test_ranks(FAULT_RANKS, 0, fault_read_rank, t), "%s: %s", fault_case,
                       test_first);
        }
}

/* ---- a meeting place of threads, used by a process ---- */

static void fault_forked(void) {
    zero_local *local = NULL;
    const zero_config cfg = {.log = test_quiet};
    int status = -1;
    if (!test_check(!zero_local_create(&local, 2, 0), "a group of threads")) return;
    fault_begin("a group of threads is used by a process");
    const double start = test_now();
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        const zero_comm comm = {ZERO_COMM_LOCAL, 1, local, 0};
        zero_ctx *z = NULL;
        const zero_result r = zero_create(&z, &cfg, &comm);
        const int told = r == ZERO_ERR_ARGUMENT && strstr(zero_last_error(z), "shared 0")
                         && strstr(zero_last_error(z), "need shared 1");
        zero_destroy(z);
        _exit(told ? 0 : 1);
    }
    (void)waitpid(pid, &status, 0);
    test_check(status == 0 && test_now() - start < 1, "%s: status %d after %.2f s", fault_case,
               status, test_now() - start);
    zero_local_destroy(local);
}

/* ---- late ranks ---- */

static int fault_deed_sleep(fault_test *t, zero_ctx *z, test_rank *r) {
    const struct timespec wait = {0, 900000000};
    (void)t;
    (void)z;
    (void)r;
    nanosleep(&wait, NULL);
    return 1;
}

static void fault_late(void) {
    static const fault_place place[] = {AT_BUILD, AT_FORWARD, AT_REDUCED};
    fault_test *t = fault_shared();
    t->deed = fault_deed_sleep;
    t->sticky = 1;
    for (int i = 0; i < 3; i++)
        for (int limit = 0; limit < (i ? 1 : 2); limit++) { /* with patience nothing is wrong */
            fault_config(t, i == 2 ? 4 : 0);
            t->odd = i;
            t->place = place[i];
            t->cfg.timeout_s = limit ? 8 : 0.2;
            fault_begin("rank %d is late, limit %g s", i, t->cfg.timeout_s);
            fault_reset(t);
            int ok = fault_run(t, i == 1), timed_out = 0;
            for (int k = 0; k < FAULT_RANKS; k++) {
                const fault_rank *x = &t->rank[k];
                const double waited = x->at - t->deed_at;
                timed_out += x->result == ZERO_ERR_TIMEOUT;
                if (limit)
                    ok &= x->result == ZERO_OK;
                else
                    ok &= x->result == ZERO_ERR_TIMEOUT || x->result == ZERO_ERR_PEER;
                ok &= limit || k == i || (waited > 0.19 && waited < 0.85);
                ok &= limit || fault_sentence(x->text, k) != NULL;
            }
            test_check(ok && !fault_live(t) && (limit || timed_out),
                       "%s: %d %d %d: %s | %s | %s %s", fault_case, (int)t->rank[0].result,
                       (int)t->rank[1].result, (int)t->rank[2].result, t->rank[0].text,
                       t->rank[1].text, t->rank[2].text, test_first);
        }
}

/* ---- destroyed at any moment ---- */

/* One rank, alone, leaves at any place, whatever is under way. */
static void fault_alone(void) {
    fault_test *t = fault_shared();
    t->deed = fault_deed_leave;
    t->odd = 0;
    for (int config = 0; config < 6; config++)
        for (t->place = AT_CREATE; t->place < FAULT_PLACES; t->place++) {
            fault_config(t, config);
            fault_begin("a rank alone leaves at place %d, configuration %d", (int)t->place, config);
            fault_reset(t);
            zero_local *local = NULL;
            if (zero_local_create(&local, 1, 0)) return;
            test_rank r = {.rank = 0, .nranks = 1, .local = local, .arg = t};
            fault_body(&r);
            alloc_mine = &fault_launcher;
            zero_local_destroy(local);
            test_check(t->rank[0].result == ZERO_OK && !fault_live(t), "%s: live %ld: %s",
                       fault_case, fault_live(t), t->rank[0].text);
        }
}

int main(void) {
    alloc_mine = &fault_launcher;
    (void)signal(SIGALRM, fault_bark);
    fault_allocations(2, 1, fault_body); /* first: OpenMP's threads do not survive a fork */
    fault_allocations(0, 1, fault_body);
    fault_allocations(6, 1, fault_body);
    fault_allocations(0, 1, fault_groups);
    fault_forked();
    for (int config = 0; config < 7; config++) fault_allocations(config, 0, fault_body);
    fault_allocations(0, 0, fault_groups);
    fault_disagreements();
    fault_bad_values();
    fault_writes();
    fault_reads();
    fault_orders();
    fault_leavers();
    fault_killed();
    fault_aborts();
    fault_late();
    fault_alone();
    return test_summary();
}

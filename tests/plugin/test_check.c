/* test_check.c - a checked build (ZERO_CHECK=1) tells misuse at the call, or faults at the place;
   at every stage. Linked with $B/checked.o, the plugin compiled with the checks. */
#include "../shared/harness.h"

enum { LAYERS = 3, WIDTH = 100, HEAD = 40 };

/* Type-major, as llm.c's: layer l of `w` begins at w + l * WIDTH. */
typedef struct check_host {
    float *w, *b, *head, *kept;
} check_host;

typedef struct check_run {
    zero_ctx *z;
    check_host p, g;
} check_run;

static int check_open(check_run *c, const zero_comm *comm, int stage, int no_mapping) {
    const zero_tensor_desc table[] = {
        {"w", WIDTH, LAYERS, .unit = 1, .field = offsetof(check_host, w)},
        {"b", WIDTH, LAYERS, .unit = 1, .field = offsetof(check_host, b)},
        {"head", HEAD, 1, .uses = 2, .field = offsetof(check_host, head)},
        {"kept", WIDTH, LAYERS, .unit = 1, .flags = ZERO_KEEP,
         .field = offsetof(check_host, kept)}};
    zero_config cfg = {0};
    cfg.stage = stage;
    cfg.no_mapping = no_mapping;
    cfg.threads = 1;
    cfg.timeout_s = 20;
    memset(c, 0, sizeof *c);
    if (zero_create(&c->z, &cfg, comm)) return 0;
    for (int i = 0; i < 4; i++)
        if (zero_tensor(c->z, &table[i])) return 0;
    float ones[LAYERS * WIDTH];
    for (int i = 0; i < LAYERS * WIDTH; i++) ones[i] = 1;
    if (zero_build(c->z) || zero_bind(c->z, &c->p, &c->g)) return 0;
    return !zero_write_tensor(c->z, "w", ZERO_PARAMETER, 0, LAYERS * WIDTH, ones);
}

static zero_result check_layer(check_run *c, int l, double *sum) {
    ZERO_TRY(zero_forward_begin(c->z, 1 + l, &c->p));
    for (int i = 0; i < WIDTH; i++)
        *sum += (double)(c->p.w[l * WIDTH + i] + c->p.b[l * WIDTH + i] + c->p.kept[i]);
    return zero_forward_end(c->z, 1 + l);
}

static zero_result check_layer_back(check_run *c, int l) {
    ZERO_TRY(zero_backward_begin(c->z, 1 + l, &c->p, &c->g));
    for (int i = 0; i < WIDTH; i++) {
        c->g.w[l * WIDTH + i] += 1;
        c->g.b[l * WIDTH + i] += c->p.w[l * WIDTH + i];
        c->g.kept[l * WIDTH + i] += 1;
    }
    return zero_backward_end(c->z, 1 + l);
}

static zero_result check_head(check_run *c, double *sum) {
    ZERO_TRY(zero_forward_begin(c->z, 0, &c->p));
    *sum += (double)c->p.head[HEAD - 1];
    return zero_forward_end(c->z, 0);
}

/* A pass as it should be, with layers in this order. */
static zero_result check_pass(check_run *c, const int *order) {
    double sum = 0;
    ZERO_TRY(zero_pass_begin(c->z, ZERO_TRAIN, 0, 1));
    ZERO_TRY(check_head(c, &sum));
    for (int i = 0; i < LAYERS; i++) ZERO_TRY(check_layer(c, order[i], &sum));
    ZERO_TRY(check_head(c, &sum));
    for (int use = 0; use < 2; use++) {
        ZERO_TRY(zero_backward_begin(c->z, 0, use ? NULL : &c->p, &c->g));
        for (int i = 0; i < HEAD; i++) c->g.head[i] += 1;
        ZERO_TRY(zero_backward_end(c->z, 0));
        for (int i = LAYERS - 1; i >= 0 && !use; i--) ZERO_TRY(check_layer_back(c, order[i]));
    }
    return zero_pass_end(c->z);
}

static zero_result check_step(check_run *c, const int *order) {
    const zero_hyper hyper = {1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f};
    ZERO_TRY(check_pass(c, order));
    ZERO_TRY(zero_reduce(c->z));
    return zero_step(c->z, &hyper);
}

static const int straight[LAYERS] = {0, 1, 2}, crossed[LAYERS] = {0, 2, 1};
static const zero_comm alone = {ZERO_COMM_SELF, 0, NULL, 0};

/* ---- what is told at the call ---- */

static int check_says(const check_run *c, const char *words) {
    return strstr(zero_last_error(c->z), words) != NULL;
}

static void check_told(int stage) {
    check_run c;
    double sum = 0;
    if (!test_check(check_open(&c, &alone, stage, 0), "stage %d: opens", stage)) return;
    test_check(!check_step(&c, straight) && !check_step(&c, crossed),
               "stage %d: what is right is let through: %s", stage, zero_last_error(c.z));
    test_check(!zero_pass_begin(c.z, ZERO_TRAIN, 0, 1)
                   && zero_backward_begin(c.z, 1, &c.p, &c.g) == ZERO_ERR_STATE
                   && check_says(&c, "unit 1: backward comes before forward"),
               "stage %d: %s", stage, zero_last_error(c.z));
    test_check(!check_layer(&c, 0, &sum) && check_layer(&c, 0, &sum) == ZERO_ERR_STATE
                   && check_says(&c, "announce 1 uses"),
               "stage %d: a unit twice: %s", stage, zero_last_error(c.z));
    test_check(!check_head(&c, &sum) && !check_head(&c, &sum)
                   && check_head(&c, &sum) == ZERO_ERR_STATE && check_says(&c, "forward number 3"),
               "stage %d: a tied unit three times: %s", stage, zero_last_error(c.z));
    test_check(!zero_forward_begin(c.z, 2, &c.p) && zero_pass_end(c.z) == ZERO_ERR_STATE
                   && check_says(&c, "unit 2: its forward has not ended"),
               "stage %d: begin without end: %s", stage, zero_last_error(c.z));
    zero_destroy(c.z);
}

/* Where the plugin has a tensor with these values: the only place in the memory that this process
   may write, apart from the caller's own `values`. NULL: it is not there, or not once. */
static float *check_find(const float *values, size_t bytes) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512], *found = NULL;
    int times = 0;
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        char may[5];
        if (sscanf(line, "%lx-%lx %4s", &from, &to, may) != 3 || strncmp(may, "rw", 2)) continue;
        char *at = (char *)from; /* NOLINT(performance-no-int-to-ptr): an address as text */
        while ((at = (char *)memmem(at, to - (size_t)at, values, bytes))) {
            if (at != (const char *)values) found = at, times++;
            at += bytes;
        }
    }
    if (maps) fclose(maps);
    return times == 1 ? (float *)(void *)found : NULL;
}

/* The host finds out where a tensor really lies, and writes there between steps. */
static void check_written(int stage) {
    check_run c;
    float x = 0, values[16];
    if (!test_check(check_open(&c, &alone, stage, 0), "stage %d: opens", stage)) return;
    test_check(!check_step(&c, straight), "stage %d: a step", stage);
    for (int i = 0; i < 16; i++) values[i] = 0.1234567f + 0.001f * (float)(stage + i);
    test_check(!zero_write_tensor(c.z, "w", ZERO_PARAMETER, WIDTH + 7, 16, values),
               "stage %d: values to look for", stage);
    float *inside = check_find(values, sizeof values);
    if (!test_check(inside != NULL, "stage %d: the tensor's place is not found", stage)) return;
    const float was = *inside;
    *inside += 1;
    test_check(zero_pass_begin(c.z, ZERO_TRAIN, 0, 1) == ZERO_ERR_STATE
                   && check_says(&c, "tensor w, layer 1, was written"),
               "stage %d: %s", stage, zero_last_error(c.z));
    *inside = was;
    test_check(!check_step(&c, straight), "stage %d: goes on: %s", stage, zero_last_error(c.z));
    c.p.kept[WIDTH + 3] += 1;
    test_check(zero_pass_begin(c.z, ZERO_EVAL, 0, 1) == ZERO_ERR_STATE
                   && check_says(&c, "tensor kept"),
               "stage %d: %s", stage, zero_last_error(c.z));
    test_check(!zero_write_tensor(c.z, "kept", ZERO_PARAMETER, 0, 1, &x)
                   && !check_step(&c, straight),
               "stage %d: zero_write_tensor tells the plugin: %s", stage, zero_last_error(c.z));
    zero_destroy(c.z);
}

/* Pointers that go nowhere, and two that go to one place. */
static void check_bindings(void) {
    const zero_tensor_desc slot = {"slot", 8, 2, .flags = ZERO_BY_SLOT},
                           kept = {"kept", 8, 1, .flags = ZERO_KEEP}, a = {"a", 8, 1, .field = 16},
                           b = {"b", 8, 1, .field = 16};
    const zero_config cfg = {0};
    zero_ctx *z;
    for (int keeps = 0; keeps < 2; keeps++) {
        if (zero_create(&z, &cfg, &alone) || (keeps && zero_tensor(z, &kept))
            || zero_tensor(z, &slot) || zero_build(z))
            test_check(0, "%s", zero_last_error(z));
        test_check(zero_pass_begin(z, ZERO_TRAIN, 0, 1) == ZERO_ERR_STATE
                       && strstr(zero_last_error(z), keeps ? "zero_bind" : "slot, layer 0"),
                   "%s", zero_last_error(z));
        zero_destroy(z);
    }
    test_check(!zero_create(&z, &cfg, &alone) && !zero_tensor(z, &a) && !zero_tensor(z, &b)
                   && zero_build(z) == ZERO_ERR_ARGUMENT
                   && strstr(zero_last_error(z), "tensors a and b of unit 0"),
               "%s", zero_last_error(z));
    zero_destroy(z);
}

/* ---- what faults at the place ---- */

typedef enum check_fault {
    KEPT_PARAMETER = 0, /* read after its end */
    KEPT_GRADIENT,      /* written after its end */
    NEXT_LAYER,         /* read in the layer before, without KEEP */
    LAST_LAYER,         /* read before any begin of it */
    WRITTEN_PARAMETER,  /* between begin and end */
    PAST_END,           /* of the tensor, where its neighbour in the unit would be */
    CACHED_PARAMETER,   /* of the step before, read between begin and end */
    CACHED_IN_BACKWARD, /* the same, but of the forward before */
    CACHED_GRADIENT,    /* of the step before, added to between begin and end */
    RIGHT,              /* nothing wrong */
    FAULTS
} check_fault;
static const char *const fault_names[FAULTS] = {"a parameter kept past its end",
                                                "a gradient kept past its end",
                                                "the next layer's tensor",
                                                "the last layer's, before it",
                                                "a parameter written",
                                                "the neighbour of a tensor",
                                                "a parameter cached in the step before",
                                                "a parameter cached in the forward",
                                                "a gradient cached in the step before",
                                                "nothing"};

static volatile float check_sink;

static void check_commit(check_run *c, check_fault fault, const check_host *cached) {
    double sum = 0;
    (void)zero_pass_begin(c->z, ZERO_TRAIN, 0, 1);
    (void)check_head(c, &sum);
    (void)zero_forward_begin(c->z, 1, &c->p);
    if (fault == NEXT_LAYER) check_sink = c->p.w[WIDTH + 60];
    if (fault == RIGHT && c->p.w[WIDTH] == c->p.w[WIDTH]) _exit(2); /* the gap is NaN */
    if (fault == LAST_LAYER) check_sink = c->p.b[2 * WIDTH + 5];
    if (fault == WRITTEN_PARAMETER) c->p.w[3] = 1;
    if (fault == PAST_END) check_sink = c->p.w[WIDTH + 32];
    if (fault == CACHED_PARAMETER) check_sink = cached[0].w[3];
    const float *in_forward = c->p.w;
    (void)zero_forward_end(c->z, 1);
    if (fault == KEPT_PARAMETER) check_sink = c->p.w[3];
    (void)zero_backward_begin(c->z, 1, &c->p, &c->g);
    c->g.w[3] += c->p.w[3];
    if (fault == CACHED_IN_BACKWARD) check_sink = in_forward[3];
    if (fault == CACHED_GRADIENT) cached[1].w[3] += 1;
    (void)zero_backward_end(c->z, 1);
    if (fault == KEPT_GRADIENT) c->g.w[3] += 1;
}

/* The pointers that layer 0's begins write in a step: of parameters and of gradients. */
static zero_result check_cache(check_run *c, check_host cached[2]) {
    const zero_hyper hyper = {1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f};
    double sum = 0;
    ZERO_TRY(zero_pass_begin(c->z, ZERO_TRAIN, 0, 1));
    ZERO_TRY(zero_forward_begin(c->z, 1, &c->p));
    cached[0] = c->p;
    ZERO_TRY(zero_forward_end(c->z, 1));
    ZERO_TRY(check_layer(c, 1, &sum));
    ZERO_TRY(check_layer_back(c, 1));
    ZERO_TRY(check_layer_back(c, 0));
    cached[1] = c->g;
    ZERO_TRY(zero_pass_end(c->z));
    ZERO_TRY(zero_reduce(c->z));
    return zero_step(c->z, &hyper);
}

/* In a first step, or in one before which the uses of units are known. */
static void check_faults(int stage, check_fault fault, int later) {
    int status = 0;
    const pid_t child = fork();
    if (child == 0) {
        check_run c;
        check_host cached[2] = {{NULL, NULL, NULL, NULL}, {NULL, NULL, NULL, NULL}};
        if (!check_open(&c, &alone, stage, 1)) _exit(1);
        if (later && check_step(&c, straight)) _exit(1);
        if (fault >= CACHED_PARAMETER && check_cache(&c, cached)) _exit(1);
        check_commit(&c, fault, cached);
        _exit(0);
    }
    (void)waitpid(child, &status, 0);
    const int faulted =
        WIFSIGNALED(status) && (WTERMSIG(status) == SIGSEGV || WTERMSIG(status) == SIGBUS);
    const int expected = fault == RIGHT ? WIFEXITED(status) && WEXITSTATUS(status) == 0 : faulted;
    test_check(expected, "stage %d, step %d: %s: status %x", stage, later, fault_names[fault],
               (unsigned)status);
}

/* Cached pointers on two ranks, which copy each other's shards. At least one rank must fault; the
   other may wait for it. check_rank has the same steps without a fault. */
static void check_cached_on_two(int stage, check_fault fault) {
    zero_local *local = NULL;
    int faulted = 0;
    pid_t child[2];
    if (!test_check(!zero_local_create(&local, 2, 1), "a meeting place")) return;
    for (int rank = 0; rank < 2; rank++) {
        child[rank] = fork();
        if (child[rank]) continue;
        const zero_comm comm = {ZERO_COMM_LOCAL, rank, local, 0};
        check_run c;
        check_host cached[2] = {{NULL, NULL, NULL, NULL}, {NULL, NULL, NULL, NULL}};
        if (!check_open(&c, &comm, stage, 1) || check_cache(&c, cached)) _exit(1);
        check_commit(&c, fault, cached);
        _exit(0);
    }
    for (int i = 0; i < 2; i++) {
        int status = 0;
        const pid_t ended = waitpid(-1, &status, 0);
        faulted |=
            WIFSIGNALED(status) && (WTERMSIG(status) == SIGSEGV || WTERMSIG(status) == SIGBUS);
        zero_local_abort(local, ended == child[1], "it ended");
        test_check(!WIFEXITED(status) || WEXITSTATUS(status) == 0 || i,
                   "stage %d, 2 ranks: %s: status %x", stage, fault_names[fault], (unsigned)status);
    }
    test_check(faulted, "stage %d, 2 ranks: %s", stage, fault_names[fault]);
    zero_local_destroy(local);
}

/* ---- ranks that differ ---- */

static void check_rank(test_rank *r) {
    const int stage = *(const int *)r->arg;
    const zero_comm comm = test_comm(r);
    check_run c;
    zero_result result = ZERO_OK;
    if (!check_open(&c, &comm, stage, r->nranks == 3)) {
        test_rank_fail(r, "opens: %s", zero_last_error(c.z));
        return;
    }
    result = check_step(&c, straight);
    if (result) test_rank_fail(r, "a step: %s", zero_last_error(c.z));
    result = check_step(&c, r->rank == r->nranks - 1 ? crossed : straight);
    if (result != ZERO_ERR_MISMATCH && result != ZERO_ERR_PEER)
        test_rank_fail(r, "another order was let through: %d", (int)result);
    if (result == ZERO_ERR_MISMATCH && !strstr(zero_last_error(c.z), "unit"))
        test_rank_fail(r, "it names no unit: %s", zero_last_error(c.z));
    zero_destroy(c.z);
}

/* An evaluation has no reduction that would tell. */
static void check_rank_eval(test_rank *r) {
    const int stage = *(const int *)r->arg;
    const zero_comm comm = test_comm(r);
    check_run c;
    double sum = 0;
    if (!check_open(&c, &comm, stage, 0)) {
        test_rank_fail(r, "opens: %s", zero_last_error(c.z));
        return;
    }
    (void)zero_pass_begin(c.z, ZERO_EVAL, 0, 1);
    (void)check_layer(&c, 0, &sum);
    (void)check_layer(&c, r->rank ? 2 : 1, &sum);
    if (zero_pass_end(c.z) != ZERO_ERR_MISMATCH
        || !strstr(zero_last_error(c.z),
                   "hook 2 of the pass: rank 0 called forward_begin of unit 2, "
                   "rank 1 called forward_begin of unit 3"))
        test_rank_fail(r, "%s", zero_last_error(c.z));
    zero_destroy(c.z);
}

int main(void) {
    check_bindings();
    for (int stage = 0; stage < 4; stage++) {
        check_told(stage);
        check_written(stage);
        for (int f = 0; f < 2 * FAULTS; f++) check_faults(stage, (check_fault)(f / 2), f % 2);
        for (int f = CACHED_PARAMETER; f < RIGHT; f++) check_cached_on_two(stage, (check_fault)f);
        for (int n = 2; n <= 3; n++)
            test_check(test_ranks(n, 0, check_rank, &stage), "stage %d, %d ranks: %s", stage, n,
                       test_first);
    }
    for (int stage = 0; stage < 4; stage++)
        test_check(test_ranks(2, 0, check_rank_eval, &stage), "stage %d, evaluation: %s", stage,
                   test_first);
    return test_summary();
}

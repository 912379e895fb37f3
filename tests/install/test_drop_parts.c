/* test_drop_parts.c WITH PART... - the plugin was dropped with the parts WITH and lacks each PART.
   A call that needs PART returns ZERO_ERR_UNSUPPORTED (zero_start_local: 126), and its message has
   the command that adds it. */
#include "../shared/harness.h"

static char said[1024]; /* the last message that was logged */
static void drop_log(void *user, zero_log_level level, const char *sentence) {
    (void)user, (void)level;
    snprintf(said, sizeof said, "%s", sentence);
}

static void drop_trace(void *user, const zero_event *events, int n) {
    (void)user, (void)events, (void)n;
}

/* Creates a context with these settings, and calls functions of `order`, `lend` and `state`. */
static zero_result drop_try(const zero_config *cfg, zero_comm_kind kind, int lends, int orders,
                            size_t row_numel) {
    const zero_comm comm = {kind, 0, NULL, 0};
    const zero_tensor_desc one = {.name = "one", .numel = 1, .row_numel = row_numel};
    zero_ctx *z = NULL;
    float value = 0;
    zero_result r = zero_create(&z, cfg, &comm);
    if (!r) r = zero_tensor(z, &one);
    if (!r && orders) r = zero_pass_order(z, ZERO_EVAL, 0, NULL, 0);
    if (!r && lends) r = zero_lend(z, &value, ZERO_F32);
    if (!r) r = zero_build(z);
    if (!r) r = zero_read_tensor(z, "one", ZERO_PARAMETER, 0, 1, &value);
    zero_destroy(z);
    return r;
}

static int drop_is_clear(const void *data, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if (((const char *)data)[i]) return 0;
    return 1;
}

static int drop_rank(const zero_comm *comm, void *arg) {
    (void)comm, (void)arg;
    return 0;
}

/* zero_run_local has no log of the caller: the sentence is on stderr. */
static void drop_run_local(void) {
    char text[1024] = "";
    FILE *caught = tmpfile();
    const int before = dup(2);
    if (!test_check(caught && before >= 0 && dup2(fileno(caught), 2) == 2, "stderr")) return;
    const int code = zero_run_local(1, drop_rank, NULL);
    (void)fflush(stderr);
    (void)dup2(before, 2);
    (void)close(before);
    rewind(caught);
    text[fread(text, 1, sizeof text - 1, caught)] = 0;
    (void)fclose(caught);
    test_check(code == 126, "zero_run_local returns %d", code);
    test_check(strstr(text, "zero_run_local: ") && strstr(text, "lacks \"start\""),
               "zero_run_local: %s", text);
}

/* Returns 1 if a copy with these parts has local ranks that are processes. */
static int drop_has_processes(const char *with) {
    static const char *const parts[] = {"groups", "mpi",  "muon",     "nccl",
                                        "packed", "rows", "subgroups"};
    for (int i = 0; i < 7; i++)
        if (strstr(with, parts[i])) return 1;
    return 0;
}

/* Returns 1 if other parts bring pointers that are no fields. */
static int drop_has_pointers(const char *with) {
    return strstr(with, "check") || strstr(with, "lend") || strstr(with, "resize");
}

/* Local ranks that are processes are refused, unless another part brings them. */
static void drop_processes(const zero_config *cfg, int refused) {
    zero_local *local = NULL;
    zero_ctx *z = NULL;
    zero_result r = zero_local_create(&local, 1, 1);
    const zero_comm comm = {ZERO_COMM_LOCAL, 0, local, 0};
    if (!r) r = zero_create(&z, cfg, &comm);
    test_check(refused ? r == ZERO_ERR_UNSUPPORTED && strstr(zero_last_error(z), "start\" adds it")
                       : r == ZERO_OK,
               "processes: result %d, %s", (int)r, zero_last_error(z));
    zero_destroy(z);
    zero_local_destroy(local);
}

/* In what two ranks differ. */
enum { DROP_SETTING, DROP_TENSOR, DROP_CALL, DROP_DIFFERENCES };

/* Two ranks with other settings or tensors return MISMATCH from zero_build; after other calls, from
   zero_norm of the next step. */
static struct drop_two {
    zero_local *local;
    int differ;
    zero_result result[2];
    char text[2][256];
} drop_two;

static void *drop_two_rank(void *arg) {
    const int rank = arg != NULL;
    const zero_comm comm = {ZERO_COMM_LOCAL, rank, drop_two.local, 0};
    const zero_config cfg = {.threads = 1,
                             .prefetch = drop_two.differ == DROP_SETTING ? 1 + rank : 0};
    const zero_tensor_desc one = {.name = "one",
                                  .numel = drop_two.differ == DROP_TENSOR ? 8 + (size_t)rank : 8};
    const zero_hyper hyper = {1e-3f, 0.9f, 0.95f, 1e-8f, 0, 0};
    double norm;
    zero_ctx *z = NULL;
    zero_result r = zero_create(&z, &cfg, &comm);
    if (!r) r = zero_tensor(z, &one);
    if (!r) r = zero_build(z);
    for (int step = 0; step < 2 && !r; step++) {
        r = zero_pass_begin(z, ZERO_TRAIN, 0, 1);
        if (!r) r = zero_pass_end(z);
        if (!r) r = zero_reduce(z);
        if (!r && step) r = zero_norm(z, &norm);
        if (!r) r = rank ? zero_skip_step(z) : zero_step(z, &hyper);
    }
    drop_two.result[rank] = r;
    (void)snprintf(drop_two.text[rank], sizeof drop_two.text[rank], "%.255s", zero_last_error(z));
    zero_destroy(z);
    return NULL;
}

static void drop_differ(int differ) {
    pthread_t other;
    drop_two.differ = differ;
    if (!test_check(!zero_local_create(&drop_two.local, 2, 0)
                        && !pthread_create(&other, NULL, drop_two_rank, &drop_two),
                    "two ranks"))
        return;
    (void)drop_two_rank(NULL);
    (void)pthread_join(other, NULL);
    zero_local_destroy(drop_two.local);
    for (int r = 0; r < 2; r++)
        test_check(drop_two.result[r] == ZERO_ERR_MISMATCH
                       && strstr(drop_two.text[r], "the part \"agree\" of make drop"),
                   "ranks differ (%d): result %d, %s", differ, (int)drop_two.result[r],
                   drop_two.text[r]);
}

/* Each field that needs `groups` is refused, with its name and the command. No group can exist, so
   that any address will do. */
static void drop_fields(const zero_config *cfg) {
    static int any[2];
    zero_group *const group = (zero_group *)(void *)any;
    const zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
    const struct {
        const char *name;
        zero_tensor_desc desc;
    } of_tensor[] = {{"divisor", {.name = "one", .numel = 1, .divisor = 2}},
                     {"ZERO_COPY", {.name = "one", .numel = 1, .flags = ZERO_COPY}},
                     {"sum_over", {.name = "one", .numel = 1, .sum_over = group}},
                     {"slice_of", {.name = "one", .numel = 1, .slice_of = group}}};
    zero_ctx *z = NULL;
    for (int i = 0; i < 4; i++) {
        zero_result r = zero_create(&z, cfg, &self);
        if (!r) r = zero_tensor(z, &of_tensor[i].desc);
        const char *why = zero_last_error(z);
        test_check(r == ZERO_ERR_UNSUPPORTED && strstr(why, of_tensor[i].name)
                       && strstr(why, "groups\" adds it"),
                   "%s: result %d, %s", of_tensor[i].name, (int)r, why);
        zero_destroy(z);
    }
    for (int i = 0; i < 2; i++) {
        zero_config c = *cfg;
        if (i)
            c.joins = (zero_ctx *)(void *)any;
        else
            c.world = group;
        const zero_result r = zero_create(&z, &c, &self);
        const char *why = zero_last_error(z);
        test_check(r == ZERO_ERR_UNSUPPORTED && strstr(why, i ? "joins" : "world")
                       && strstr(why, "groups\" adds it"),
                   "cfg field %d: result %d, %s", i, (int)r, why);
        zero_destroy(z);
    }
}

/* Calls a function of the part in a context of one rank. */
static zero_result drop_call(const char *part, const zero_config *cfg) {
    const zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
    const zero_limits none = {0};
    const zero_tensor_desc one = {.name = "one", .numel = 1};
    zero_plan_unit plan;
    float *value = NULL;
    zero_ctx *z = NULL;
    zero_result r = zero_create(&z, cfg, &self);
    if (!r && !strcmp(part, "suggest")) r = zero_suggest(z, &none, NULL);
    if (!r && !strcmp(part, "figures")) r = zero_query_plan_unit(z, 0, &plan);
    if (!r && !strcmp(part, "resize")) r = zero_resize(z, NULL);
    if (!r && !strcmp(part, "place")) {
        const zero_tensor_desc two = {.name = "two", .numel = 1, .param = &value};
        r = zero_tensor(z, &one);
        ZERO_PLACE(z, value, value, 1);
        test_check(r || zero_build(z), "zero_build forgets the row of zero_place");
        zero_destroy(z);
        r = zero_create(&z, cfg, &self);
        if (!r) r = zero_tensor(z, &two);
    }
    zero_destroy(z);
    return r;
}

/* Makes a call that needs the part. more: the copy has parts that bring local processes. */
static zero_result drop_need(const char *part, int more) {
    zero_config cfg = {.log = drop_log, .threads = 1, .folder = "."};
    zero_comm_kind kind = ZERO_COMM_SELF;
    if (!strcmp(part, "offload")) cfg.optimizer_tier = ZERO_FILE;
    if (!strcmp(part, "packed")) cfg.stage = 3, cfg.weight_bits = 8;
    if (!strcmp(part, "subgroups")) cfg.shard_ranks = 1;
    if (!strcmp(part, "compact")) cfg.state_type = ZERO_STATE_BF16;
    if (!strcmp(part, "virtual")) cfg.virtual_ranks = 1;
    if (!strcmp(part, "integrity")) cfg.integrity = 1;
    if (!strcmp(part, "muon")) cfg.optimizer = ZERO_MUON;
    if (!strcmp(part, "trace")) cfg.trace = drop_trace;
    if (!strcmp(part, "mpi")) kind = ZERO_COMM_MPI;
    if (!strcmp(part, "nccl")) kind = ZERO_COMM_NCCL;
    if (!strcmp(part, "compact")) {
        zero_config none = cfg;
        none.state_type = ZERO_STATE_F32;
        none.type = ZERO_BF16;
        none.master = ZERO_MASTER_NONE;
        const zero_result r = drop_try(&none, kind, 0, 0, 0);
        test_check(r == ZERO_ERR_UNSUPPORTED && strstr(said, "compact\" adds it"),
                   "master NONE: result %d, %s", (int)r, said);
    }
    if (!strcmp(part, "start")) {
        zero_ctx *z = NULL;
        drop_run_local();
        drop_processes(&cfg, !more);
        return zero_start_local(&z, &cfg, 1) == 126 && !z ? ZERO_ERR_UNSUPPORTED : ZERO_OK;
    }
    if (!strcmp(part, "state")) {
        zero_counters counters;
        memset(&counters, 1, sizeof counters);
        zero_state_counters(NULL, &counters);
        test_check(drop_is_clear(&counters, sizeof counters), "zero_state_counters writes zeros");
    }
    if (!strcmp(part, "groups")) {
        zero_group *g = NULL;
        zero_group_stats stats;
        memset(&stats, 1, sizeof stats);
        zero_group_query_stats(NULL, &stats);
        test_check(drop_is_clear(&stats, sizeof stats), "zero_group_query_stats writes zeros");
        const char *why = zero_group_error(NULL);
        test_check(strstr(why, "lacks \"groups\"") && strstr(why, "groups\" adds it"),
                   "zero_group_error: %s", why);
        const zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
        const zero_result r = zero_group_open(&g, &self, NULL, 1);
        test_check(r == ZERO_ERR_UNSUPPORTED, "zero_group_open: the result is %d", (int)r);
        drop_fields(&cfg);
        cfg.world_units = 2;
    }
    if (!strcmp(part, "suggest") || !strcmp(part, "figures") || !strcmp(part, "place")
        || !strcmp(part, "resize"))
        return drop_call(part, &cfg);
    return drop_try(&cfg, kind, !strcmp(part, "lend"), !strcmp(part, "order"),
                    !strcmp(part, "rows"));
}

/* Settings of a missing part may have their defaults, as zero_query_config returns them. */
static void drop_defaults(void) {
    const zero_comm self = {ZERO_COMM_SELF, 0, NULL, 0};
    zero_config cfg = {.threads = 1};
    for (int again = 0; again < 2; again++) {
        zero_ctx *z = NULL;
        const zero_result r = zero_create(&z, &cfg, &self);
        test_check(!r, "defaults: %s", zero_last_error(z));
        zero_query_config(z, &cfg);
        test_check(cfg.offload_share == 1 && cfg.muon.iterations == 5,
                   "offload_share %g, muon.iterations %d", (double)cfg.offload_share,
                   cfg.muon.iterations);
        zero_destroy(z);
    }
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    for (int i = 2; i < argc; i++) {
        if (!strcmp(argv[i], "place") && drop_has_pointers(argv[1])) continue;
        if (!strcmp(argv[i], "figures") && strstr(argv[1], "suggest")) continue; /* it needs them */
        if (!strcmp(argv[i], "agree")) { /* the core compares without it, and names nothing */
            for (int d = 0; d < DROP_DIFFERENCES && !strcmp(argv[1], "core"); d++) drop_differ(d);
            continue;
        }
        char lacks[64], with[256];
        snprintf(lacks, sizeof lacks, "lacks \"%s\"", argv[i]);
        snprintf(with, sizeof with, "WITH=\"%s %s\"", argv[1], argv[i]);
        said[0] = 0;
        const zero_result r = drop_need(argv[i], drop_has_processes(argv[1]));
        test_check(r == ZERO_ERR_UNSUPPORTED, "%s: the result is %d", argv[i], (int)r);
        test_check(strstr(said, lacks) && strstr(said, with), "%s: the message is: %s", argv[i],
                   said);
    }
    drop_defaults();
    return test_summary();
}

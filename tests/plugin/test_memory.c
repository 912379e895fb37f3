/* test_memory.c - invariants 2, 3 and 6: what a rank keeps, counted where it asks the system for
   memory, is what the plan says and what the stage table says; buffers keep the ceiling of the
   design; a step allocates nothing; bytes sent are those of the plan. Ranks are processes, so that
   what is counted is one rank's own. The model has GPT-2's shape: 5 million elements. */
#include "../shared/allocations.h"

#include <math.h>

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#if !defined(__has_feature)
#define MEM_RESIDENT /* a sanitizer would add its own */
#elif !__has_feature(address_sanitizer) && !__has_feature(thread_sanitizer)
#define MEM_RESIDENT
#endif
#endif

enum { MEM_C = 256, MEM_LAYERS = 6, MEM_V = 4096, MEM_T = 256, MEM_STEPS = 2, MEM_TENSORS = 9 };
enum { MEM_VERDICT = 16 };    /* numbers that a rank sends to each other one at the end of a step */
enum { MEM_ROUNDED = 32768 }; /* bytes, of whole pages and small lists */

typedef struct mem_host {
    char *field[MEM_TENSORS];
} mem_host;

static const zero_tensor_desc mem_desc[MEM_TENSORS] = {
    {"wte", MEM_V *MEM_C, 1, .uses = 2},
    {"wpe", MEM_T *MEM_C, 1, .uses = 1, .field = 1 * sizeof(char *)},
    {"ln", 4 * MEM_C, MEM_LAYERS, .unit = 1, .uses = 1, .flags = ZERO_ONE_D | ZERO_NO_DECAY,
     .field = 2 * sizeof(char *)},
    {"qkv", 3 * MEM_C *MEM_C, MEM_LAYERS, .unit = 1, .uses = 1, .field = 3 * sizeof(char *)},
    {"proj", MEM_C *MEM_C, MEM_LAYERS, .unit = 1, .uses = 1, .field = 4 * sizeof(char *)},
    {"fc", 4 * MEM_C *MEM_C, MEM_LAYERS, .unit = 1, .uses = 1, .field = 5 * sizeof(char *)},
    {"fcproj", 4 * MEM_C *MEM_C, MEM_LAYERS, .unit = 1, .uses = 1, .field = 6 * sizeof(char *)},
    {"bias", 9 * MEM_C + 3, MEM_LAYERS, .unit = 1, .uses = 1, .flags = ZERO_ONE_D | ZERO_NO_DECAY,
     .field = 7 * sizeof(char *)},
    {"lnf", 2 * MEM_C, 1, .unit = MEM_LAYERS + 1, .uses = 1, .flags = ZERO_ONE_D | ZERO_NO_DECAY,
     .field = 8 * sizeof(char *)}};
enum { MEM_UNITS = MEM_LAYERS + 2 };

/* Bytes of a parameter, of a gradient, and of the optimizer's state and master of one element. */
static size_t mem_of_p(const zero_config *c) { return zero_type_bytes(c->type); }
static zero_type mem_grad_type(const zero_config *c) {
    const int wide =
        c->grads == ZERO_GRAD_F32 || (c->grads == ZERO_GRAD_AUTO && c->micro_steps > 1);
    return wide ? ZERO_F32 : c->type;
}
static size_t mem_of_g(const zero_config *c) { return zero_type_bytes(mem_grad_type(c)); }
static double mem_of_state(const zero_config *c) {
    static const size_t of_master[ZERO_MASTERS] = {4, 4, 2, 0}; /* AUTO of BF16 is SPLIT */
    const size_t states = c->optimizer <= ZERO_ADAM ? 2 : 1;
    static const double of_type[ZERO_STATE_TYPES] = {4, 2, 132.0 / 128};
    const size_t master = c->type == ZERO_F32                  ? 0
                          : c->type == ZERO_BF16 && !c->master ? of_master[ZERO_MASTER_SPLIT]
                                                               : of_master[c->master];
    return (double)states * of_type[c->state_type] + (double)master;
}

typedef struct mem_test { /* shared memory */
    zero_config cfg;
    int f32_embedding; /* with 8-bit state: that of wte and wpe stays f32 */
    int frozen;        /* tensors, one bit each */
    int node_size;     /* 0: of all ranks */
    zero_plan plan;    /* rank 0's */
    zero_plan_unit unit[MEM_UNITS];
    zero_stats stats;
    long own[64]; /* bytes of memory and files that a rank has got for itself */
} mem_test;

/* ---- one rank ---- */

#define MEM_TRY(call)                                                                              \
    do {                                                                                           \
        if (call) {                                                                                \
            test_rank_fail(r, "%s: %s", #call, zero_last_error(z));                                \
            return 0;                                                                              \
        }                                                                                          \
    } while (0)

/* Adds a small gradient, times the scale, in whatever type. */
static void mem_add(zero_type type, char *g, size_t n, float scale) {
    float wide[1024];
    for (size_t at = 0; at < n; at += 1024) {
        const size_t k = n - at < 1024 ? n - at : 1024;
        char *to = g + at * zero_type_bytes(type);
        zero_convert(wide, ZERO_F32, to, type, k);
        for (size_t i = 0; i < k; i++) wide[i] += scale * (0.01f * (float)((at + i) % 7) - 0.02f);
        zero_convert(to, type, wide, ZERO_F32, k);
    }
}

static int mem_backward(test_rank *r, zero_ctx *z, int unit, mem_host *p, mem_host *g) {
    const mem_test *m = (const mem_test *)r->arg;
    const zero_type type = mem_grad_type(&m->cfg);
    MEM_TRY(zero_backward_begin(z, unit, p, g));
    for (int t = 0; t < MEM_TENSORS; t++) {
        const zero_tensor_desc *d = &mem_desc[t];
        if (unit < d->unit || unit >= d->unit + d->layers || m->frozen >> t & 1) continue;
        const size_t at = (size_t)(unit - d->unit) * d->numel * zero_type_bytes(type);
        mem_add(type, g->field[t] + at, d->numel, zero_loss_scale(z));
    }
    MEM_TRY(zero_backward_end(z, unit));
    return 1;
}

static int mem_pass(test_rank *r, zero_ctx *z, zero_pass kind, int micro, int micro_steps) {
    mem_host p, g;
    memset(&p, 0, sizeof p);
    memset(&g, 0, sizeof g);
    MEM_TRY(zero_pass_begin(z, kind, micro, micro_steps));
    for (int i = 0; i <= MEM_UNITS; i++) { /* embeddings first, and last as the classifier */
        const int u = i % MEM_UNITS;
        MEM_TRY(zero_forward_begin(z, u, &p));
        MEM_TRY(zero_forward_end(z, u));
    }
    if (kind == ZERO_TRAIN) {
        if (!mem_backward(r, z, 0, &p, &g)) return 0;
        for (int u = MEM_UNITS - 1; u > 0; u--)
            if (!mem_backward(r, z, u, &p, &g)) return 0;
        MEM_TRY(zero_backward_begin(z, 0, NULL, &g)); /* the lookup reads no weights */
        MEM_TRY(zero_backward_end(z, 0));
    }
    MEM_TRY(zero_pass_end(z));
    return 1;
}

static int mem_step(test_rank *r, zero_ctx *z, int micro_steps) {
    const zero_hyper adamw = {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f};
    zero_step_report report;
    double norm;
    for (int micro = 0; micro < micro_steps; micro++)
        if (!mem_pass(r, z, ZERO_TRAIN, micro, micro_steps)) return 0;
    MEM_TRY(zero_reduce(z));
    MEM_TRY(zero_norm(z, &norm));
    MEM_TRY(zero_step(z, &adamw));
    MEM_TRY(zero_step_result(z, &report));
    return report.stepped;
}

/* Resident memory of this process that is not shared, in bytes. */
static long mem_resident(void) {
    char line[256];
    long kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "RssAnon: %ld", &kib) == 1) break;
    if (f) fclose(f);
    return kib * 1024;
}

/* What passes do beside training: nothing of it allocates. */
static int mem_others(test_rank *r, zero_ctx *z) {
    static float piece[5000];
    double sum = 1;
    MEM_TRY(zero_read_tensor(z, "qkv", ZERO_PARAMETER, 12345, 5000, piece));
    MEM_TRY(zero_write_tensor(z, "qkv", ZERO_PARAMETER, 12345, 5000, piece));
    MEM_TRY(zero_read_tensor(z, "bias", ZERO_MOMENT_1, 0, 5000, piece));
    MEM_TRY(zero_read_tensor(z, "wte", ZERO_MASTER, 0, 5000, piece));
    MEM_TRY(zero_all_sum(z, &sum, 1));
    MEM_TRY(zero_broadcast(z, piece, sizeof piece, 0));
    MEM_TRY(zero_barrier(z));
    return 1;
}

static int mem_train(test_rank *r, zero_ctx *z, mem_test *t, alloc_book *book) {
    const long calls = book->calls;
    for (int step = 0; step < MEM_STEPS; step++)
        if (!mem_step(r, z, t->cfg.micro_steps)) return 0;
    if (r->rank == 0)
        MEM_TRY(zero_query_stats(z, &t->stats)); /* before anything else is sent */
    else
        MEM_TRY(zero_query_stats(z, &(zero_stats){0}));
    if (!mem_pass(r, z, ZERO_EVAL, 0, 1) || !mem_others(r, z)) return 0;
    if (book->calls != calls || alloc_strangers)
        test_rank_fail(r, "%ld allocations after zero_build, %ld of them on the plugin's threads",
                       book->calls - calls + alloc_strangers, alloc_strangers);
    return !r->failed;
}

static int mem_open(test_rank *r, zero_ctx **out, mem_test *t) {
    zero_comm comm = test_comm(r);
    zero_plan before, after;
    zero_ctx *z = NULL;
    zero_config cfg = t->cfg;
    if (mem_grad_type(&cfg) == ZERO_F32) cfg.grads = ZERO_GRAD_F32;
    const zero_result created = zero_create(out, &cfg, &comm);
    z = *out;
    MEM_TRY(created);
    for (int i = 0; i < MEM_TENSORS; i++) {
        zero_tensor_desc d = mem_desc[i];
        if (i < 2 && t->f32_embedding) d.flags |= ZERO_F32_STATE;
        if (t->frozen >> i & 1) d.flags |= ZERO_FROZEN;
        MEM_TRY(zero_tensor(z, &d));
    }
    MEM_TRY(zero_query_plan(z, &before));
    MEM_TRY(zero_build(z));
    MEM_TRY(zero_query_plan(z, &after));
    before.file_way = after.file_way; /* known once there is a file */
    if (memcmp(&before, &after, sizeof before)) test_rank_fail(r, "the plan changed in zero_build");
    if (r->rank == 0) t->plan = after;
    for (int u = 0; u < MEM_UNITS && r->rank == 0; u++)
        MEM_TRY(zero_query_plan_unit(z, u, &t->unit[u]));
    return !r->failed;
}

static void mem_rank(test_rank *r) {
    mem_test *t = (mem_test *)r->arg;
    alloc_book book;
    zero_ctx *z = NULL;
    memset(&book, 0, sizeof book);
    alloc_mine = &book;
    alloc_strangers = 0;
    const long resident = mem_resident();
    const int ok = mem_open(r, &z, t) && mem_train(r, z, t, &book);
    t->own[r->rank] = book.bytes + book.file_bytes;
#ifdef MEM_RESIDENT
    /* nothing large comes from elsewhere; the rest is stacks, and up to 2 MiB a piece for large
     * pages */
    if (ok && mem_resident() - resident > book.bytes + (14l << 20))
        test_rank_fail(r, "%ld bytes are resident, counted were %ld", mem_resident() - resident,
                       book.bytes);
#else
    (void)resident;
    (void)ok;
#endif
    zero_destroy(z);
    if (!r->failed && (book.pieces || book.bytes || book.maps || book.files))
        test_rank_fail(r, "not given back: %ld pieces, %ld bytes, %ld maps, %ld files", book.pieces,
                       book.bytes, book.maps, book.files);
}

/* ---- what the figures must be ---- */

static const char *mem_name(const mem_test *t, int nranks) {
    static const char *const types[] = {"f32", "bf16", "f16"};
    static char text[280];
    snprintf(
        text, sizeof text,
        "stage %d, %s, gradients %s%s, optimizer %d, %d ranks, %s, %d micro-steps, %s, "
        "prefetch %d, bucket %zu, nodes of %d, shard_ranks %d, second_ranks %d, %d and %d bits, "
        "frozen %d, delayed from %d%s%s",
        t->cfg.stage, types[t->cfg.type], types[mem_grad_type(&t->cfg)],
        t->cfg.master == ZERO_MASTER_NONE    ? ", no master"
        : t->cfg.master == ZERO_MASTER_SPLIT ? ", split"
                                             : "",
        (int)t->cfg.optimizer, nranks, t->cfg.no_mapping ? "copied" : "mapped", t->cfg.micro_steps,
        t->cfg.accumulation == ZERO_ACCUMULATE_AUTO    ? "default"
        : t->cfg.accumulation == ZERO_ACCUMULATE_LOCAL ? "LOCAL"
                                                       : "SHARDED",
        t->cfg.prefetch, t->cfg.bucket_numel, t->node_size, t->cfg.shard_ranks, t->cfg.second_ranks,
        t->cfg.weight_bits, t->cfg.gradient_bits, t->frozen, t->cfg.delay_from,
        t->f32_embedding                       ? ", 8-bit state, f32 of the embedding"
        : t->cfg.state_type == ZERO_STATE_8BIT ? ", 8-bit state"
        : t->cfg.state_type                    ? ", bf16 state"
                                               : "",
        t->plan.file_bytes ? ", files" : "");
    return text;
}

static int mem_near(double a, double b) { return a <= 1.01 * b && a >= 0.99 * b; }

/* The header's table: bytes of parameters, gradients, optimizer state. */
static void mem_table(const mem_test *t, double p, int n, double *kind) {
    const zero_config *c = &t->cfg;
    const double wider = t->f32_embedding ? 2 * (4 - 132.0 / 128) * (MEM_V + MEM_T) * MEM_C : 0;
    kind[0] = (double)mem_of_p(c) * p / (c->stage >= 3 ? n : 1);
    kind[1] = (double)mem_of_g(c) * p / (c->stage >= 2 ? n : 1);
    kind[2] = (mem_of_state(c) * p + wider) / (c->stage >= 1 ? n : 1);
}

/* What is in a file moves there; bytes of that. */
static double mem_filed(const mem_test *t, double *kind) {
    const zero_tier tier[] = {t->cfg.parameter_tier, t->cfg.gradient_tier, t->cfg.optimizer_tier};
    double filed = 0;
    for (int k = 0; k < 3; k++) {
        if (tier[k] != ZERO_FILE) continue;
        filed += kind[k];
        kind[k] = 0;
    }
    return filed;
}

static int mem_parts(const mem_test *t) {
    return t->cfg.shard_ranks || t->cfg.second_ranks || t->cfg.weight_bits || t->cfg.gradient_bits;
}

/* What ranks allocate is what the plan says. */
static void mem_check_allocated(const mem_test *t, int nranks) {
    const zero_plan *p = &t->plan;
    const double numbers =
        (double)(p->param_bytes + p->grad_bytes + p->optimizer_bytes + p->buffer_bytes);
    const double planned = numbers + (double)p->context_bytes;
    double own = 0;
    for (int r = 0; r < nranks; r++) own += (double)t->own[r];
    test_check(fabs(own / nranks - planned) <= MEM_ROUNDED,
               "%s: %.0f bytes a rank are allocated, %.0f planned", mem_name(t, nranks),
               own / nranks, planned);
    /* parameters are one file, rank 0's; and so are the places where parts of the ranks meet */
    const int one_for_all = (t->cfg.stage == 3 && !t->cfg.no_mapping) || mem_parts(t);
    test_check(mem_near((double)t->stats.allocated_bytes, numbers),
               "%s: zero_stats says %zu bytes, planned are %.0f", mem_name(t, nranks),
               t->stats.allocated_bytes, numbers);
    for (int r = 0; r < nranks && !one_for_all; r++)
        test_check(mem_near((double)t->own[r], planned), "%s: rank %d has %ld bytes, planned %.0f",
                   mem_name(t, nranks), r, t->own[r], planned);
}

static void mem_check_bytes(const mem_test *t, int nranks) {
    const zero_plan *p = &t->plan;
    double kind[3];
    mem_table(t, (double)p->numel, t->cfg.shard_ranks ? t->cfg.shard_ranks : nranks, kind);
    const double filed = mem_filed(t, kind), kept = kind[0] + kind[1] + kind[2];
    test_check(mem_near((double)p->param_bytes, kind[0]) && mem_near((double)p->grad_bytes, kind[1])
                   && mem_near((double)p->optimizer_bytes, kind[2]),
               "%s: %zu, %zu, %zu bytes, the table says %.0f, %.0f, %.0f", mem_name(t, nranks),
               p->param_bytes, p->grad_bytes, p->optimizer_bytes, kind[0], kind[1], kind[2]);
    test_check(mem_near((double)p->file_bytes, filed), "%s: a file of %zu bytes, expected %.0f",
               mem_name(t, nranks), p->file_bytes, filed);
    test_check(mem_near((double)p->formula_bytes, kept + filed)
                   && p->formula_bytes
                          <= p->param_bytes + p->grad_bytes + p->optimizer_bytes + p->file_bytes,
               "%s: formula %zu", mem_name(t, nranks), p->formula_bytes);
}

/* Whole gradients, or their shards, where micro-steps accumulate and the stage keeps them otherwise
   or keeps 16-bit ones. */
static double mem_accumulators(const mem_test *t, int nranks) {
    const double padded = 4.0 * (double)t->plan.padded_numel;
    const int sharded = t->cfg.accumulation == ZERO_ACCUMULATE_SHARDED
                        || (t->cfg.accumulation == ZERO_ACCUMULATE_AUTO && t->cfg.stage >= 2);
    if (t->cfg.micro_steps == 1) return 0;
    if (mem_of_g(&t->cfg) == 2) return sharded ? padded / nranks : padded; /* f32 beside them */
    if (t->cfg.stage >= 2) return sharded ? 0 : padded - padded / nranks;
    return sharded ? padded / nranks : 0;
}

/* The design's words: the embedding's gradient, (prefetch + 2) of the largest block's parameters
   and gradients, a bucket; at stage 3 one gathered embedding more. Here also what it does not speak
   of: the staging buffer, and units that persist. */
static void mem_check_ceiling(const mem_test *t, int nranks) {
    const size_t embedding = t->unit[0].padded, block = t->unit[1].padded;
    const size_t bucket = t->cfg.bucket_numel ? t->cfg.bucket_numel : block;
    const size_t ahead = (size_t)(t->cfg.prefetch < 0 ? 0 : t->cfg.prefetch ? t->cfg.prefetch : 1);
    const size_t of_p = mem_of_p(&t->cfg), of_g = mem_of_g(&t->cfg);
    size_t ceiling = 4 * 65536;
    if (t->cfg.stage >= 2)
        ceiling += embedding * of_g + (ahead + 2) * (of_p + of_g) * block + bucket * of_g;
    if (t->cfg.stage == 3) ceiling += embedding * of_p + t->plan.kept_bytes;
    const double sums = mem_accumulators(t, nranks);
    const double rest = (double)t->plan.buffer_bytes - sums;
    test_check(mem_near((double)t->plan.accumulator_bytes, sums),
               "%s: accumulators of %zu bytes, expected %.0f", mem_name(t, nranks),
               t->plan.accumulator_bytes, sums);
    test_check(rest <= (double)ceiling + 4096,
               "%s: buffers of %.0f bytes, the design's ceiling is %zu", mem_name(t, nranks), rest,
               ceiling);
    test_check(rest <= (double)t->plan.buffer_ceiling_bytes,
               "%s: buffers of %.0f bytes, the plan's ceiling is %zu", mem_name(t, nranks), rest,
               t->plan.buffer_ceiling_bytes);
    if (t->cfg.stage == 2 && !t->cfg.bucket_numel) /* blocks are reduced alone, from two buffers */
        test_check(rest <= (double)((embedding + 2 * block) * of_g + 4 * 65536 + 4096),
                   "%s: buffers of %.0f bytes, more than the embedding and two blocks",
                   mem_name(t, nranks), rest);
    if (t->cfg.stage >= 2)
        test_check(t->plan.buffer_ceiling_bytes <= ceiling + 4 * 65536 + 4096,
                   "%s: the plan's ceiling %zu is above the design's %zu", mem_name(t, nranks),
                   t->plan.buffer_ceiling_bytes, ceiling);
    if (t->cfg.stage == 3 && t->cfg.no_mapping && t->cfg.bucket_numel) /* all terms are known */
        test_check(t->plan.buffer_ceiling_bytes + 4 * 65536 >= ceiling,
                   "%s: the plan's ceiling %zu lacks what the design's %zu has",
                   mem_name(t, nranks), t->plan.buffer_ceiling_bytes, ceiling);
}

/* Sent is what is planned, unit by unit; and the formula plus the padding that is stated. */
static void mem_check_traffic(const mem_test *t, int nranks) {
    const zero_plan *p = &t->plan;
    const int sharded = t->cfg.accumulation == ZERO_ACCUMULATE_SHARDED
                        || (t->cfg.accumulation == ZERO_ACCUMULATE_AUTO && t->cfg.stage >= 2);
    const int reductions = sharded ? t->cfg.micro_steps : 1;
    const double of_g = (double)mem_of_g(&t->cfg), of_p = (double)mem_of_p(&t->cfg);
    double sum = 0, formula = 0, gathered = 0, mapped = 0;
    int plain = 1;
    for (int u = 0; u < MEM_UNITS; u++) {
        const zero_plan_unit *x = &t->unit[u];
        /* at stage 0 what is gathered is gradients */
        const double times = x->reductions * of_g + x->gathers * (t->cfg.stage ? of_p : of_g);
        sum += (double)x->sent_bytes;
        formula += times * (double)x->numel * (nranks - 1) / nranks;
        gathered += (double)x->gathers * of_p * (double)(x->padded - x->padded / (size_t)nranks);
        plain &= x->reductions == reductions
                 && x->gathers <= (t->cfg.stage < 3 ? 1 : 2 * t->cfg.micro_steps);
        plain &=
            (double)x->sent_bytes == times * (double)(x->padded / (size_t)nranks) * (nranks - 1);
    }
    if (t->cfg.stage == 3 && !t->cfg.no_mapping) mapped = gathered * MEM_STEPS;
    test_check(t->stats.sent_bytes == p->sent_bytes * (uint64_t)MEM_STEPS,
               "%s: sent %llu bytes in %d steps, planned %zu each", mem_name(t, nranks),
               (unsigned long long)t->stats.sent_bytes, MEM_STEPS, p->sent_bytes);
    test_check(t->stats.verdict_bytes == p->verdict_bytes * (uint64_t)MEM_STEPS
                   && p->verdict_bytes == (size_t)(nranks - 1) * MEM_VERDICT * sizeof(double),
               "%s: %llu bytes of verdicts in %d steps, planned %zu", mem_name(t, nranks),
               (unsigned long long)t->stats.verdict_bytes, MEM_STEPS, p->verdict_bytes);
    test_check((double)p->sent_bytes == sum && plain, "%s: units of the plan", mem_name(t, nranks));
    test_check(fabs((double)p->formula_sent_bytes - formula) < 0.51
                   && (double)p->sent_bytes >= formula && (double)p->sent_bytes <= 1.01 * formula,
               "%s: %zu bytes, the formula says %.0f", mem_name(t, nranks), p->sent_bytes, formula);
    test_check((double)t->stats.mapped_bytes == mapped, "%s: %llu bytes mapped, expected %.0f",
               mem_name(t, nranks), (unsigned long long)t->stats.mapped_bytes, mapped);
    const double gathers = t->cfg.stage < 3 ? 1 : 2 * t->cfg.micro_steps;
    const double limit = reductions * of_g + gathers * (t->cfg.stage ? of_p : of_g);
    test_check(formula <= limit * (double)p->numel * (nranks - 1) / nranks + 8,
               "%s: more than %g bytes per parameter", mem_name(t, nranks), limit);
}

static void mem_case(mem_test *t, int nranks) {
    const double start = test_now();
    t->cfg.threads = 1;
    t->cfg.log = test_quiet;
    memset(t->own, 0, sizeof t->own);
    const int ok = test_processes(nranks, t->node_size, mem_rank, t, 60);
    if (!test_check(ok, "%s: %s", mem_name(t, nranks), test_first)) return;
    mem_check_allocated(t, nranks);
    if (t->frozen || t->cfg.delay_from) { /* beyond the table */
        const uint64_t sent = t->plan.sent_bytes * (uint64_t)MEM_STEPS;
        test_check(t->cfg.delay_from || t->stats.sent_bytes == sent,
                   "%s: sent %llu bytes in %d steps, planned %zu each", mem_name(t, nranks),
                   (unsigned long long)t->stats.sent_bytes, MEM_STEPS, t->plan.sent_bytes);
        return;
    }
    mem_check_bytes(t, nranks);
    if (!mem_parts(t) && !t->cfg.optimizer_tier) mem_check_ceiling(t, nranks);
    if (!mem_parts(t)) mem_check_traffic(t, nranks);
    printf(
        "%s: %.1f MB a rank, %.1f of them buffers, %.1f sent a step, %.1f s\n", mem_name(t, nranks),
        1e-6
            * (double)(t->plan.param_bytes + t->plan.grad_bytes + t->plan.optimizer_bytes
                       + t->plan.buffer_bytes),
        1e-6 * (double)t->plan.buffer_bytes, 1e-6 * (double)t->plan.sent_bytes, test_now() - start);
}

/* Types, with one micro-step and with two, which accumulate here or there. */
static void mem_types(mem_test *t) {
    static const zero_config kinds[] = {
        {.type = ZERO_BF16, .grads = ZERO_GRAD_AS_TYPE, .master = ZERO_MASTER_F32},
        {.type = ZERO_F16, .grads = ZERO_GRAD_AS_TYPE},
        {.type = ZERO_BF16, .grads = ZERO_GRAD_AS_TYPE, .master = ZERO_MASTER_NONE},
        {.type = ZERO_BF16,
         .grads = ZERO_GRAD_AS_TYPE,
         .master = ZERO_MASTER_SPLIT,
         .state_type = ZERO_STATE_BF16},
        {.type = ZERO_BF16,
         .grads = ZERO_GRAD_AS_TYPE,
         .master = ZERO_MASTER_SPLIT,
         .state_type = ZERO_STATE_8BIT},
        {.type = ZERO_BF16, .grads = ZERO_GRAD_AS_TYPE, .master = ZERO_MASTER_SPLIT},
        {.type = ZERO_BF16, .grads = ZERO_GRAD_F32, .master = ZERO_MASTER_F32},
        {.type = ZERO_F16, .optimizer = ZERO_LION, .prefetch = 2},
        {.type = ZERO_F32, .optimizer = ZERO_SGD}};
    for (int kind = 0; kind < (int)(sizeof kinds / sizeof *kinds); kind++)
        for (int stage = 0; stage < 4; stage++)
            for (int k = 0; k < 3; k++) {
                t->cfg = kinds[kind];
                t->cfg.stage = stage;
                t->cfg.micro_steps = k ? 2 : 1;
                t->cfg.accumulation = (zero_accumulation)k;
                t->cfg.no_mapping = (kind + k) % 2;
                if (t->cfg.optimizer == ZERO_SGD && k) continue;
                t->f32_embedding = kind == 4 && stage % 2;
                mem_case(t, k ? 2 : 3 - stage % 2);
            }
}

/* Groups that are cut from the ranks, and packed numbers with the hops' own groups. */
static void mem_groups(mem_test *t) {
    static const zero_config kinds[] = {
        {.stage = 1, .gradient_bits = 8},
        {.stage = 3, .no_mapping = 1, .weight_bits = 8, .gradient_bits = 4, .feedback = 0.8f},
        {.stage = 3, .type = ZERO_F16, .weight_bits = 4, .gradient_bits = 4, .feedback = 0.8f},
        {.stage = 2, .shard_ranks = 2},
        {.stage = 3, .type = ZERO_BF16, .no_mapping = 1, .second_ranks = 2},
        {.stage = 3, .weight_bits = 8, .gradient_bits = 4, .shard_ranks = 2, .second_ranks = 1}};
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++)
        for (t->node_size = 0; t->node_size <= 2; t->node_size += 2) {
            t->cfg = kinds[kind];
            t->cfg.micro_steps = 1;
            mem_case(t, 4);
        }
    t->node_size = 0;
}

/* What is in files is no memory, the pieces on their way are; and no more is sent. */
static void mem_files(mem_test *t) {
    static const zero_config kinds[] = {
        {.stage = 1, .optimizer_tier = ZERO_FILE},
        {.stage = 2, .type = ZERO_BF16, .optimizer_tier = ZERO_FILE, .gradient_tier = ZERO_FILE},
        {.stage = 3,
         .no_mapping = 1,
         .persistence_numel = ZERO_NONE,
         .optimizer_tier = ZERO_FILE,
         .gradient_tier = ZERO_FILE,
         .parameter_tier = ZERO_FILE}};
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
        t->cfg = kinds[kind];
        t->cfg.micro_steps = 1;
        t->cfg.folder = "/tmp";
        mem_case(t, 2);
    }
}

/* Frozen tensors, and delayed updates with their second weights. */
static void mem_frozen(mem_test *t) {
    enum { WTE = 1, MATRICES = 0x78 };
    static const zero_config kinds[] = {
        {.type = ZERO_F32},
        {.type = ZERO_BF16, .grads = ZERO_GRAD_AS_TYPE, .state_type = ZERO_STATE_8BIT},
        {.type = ZERO_BF16, .grads = ZERO_GRAD_AS_TYPE, .delay_from = 1},
        {.type = ZERO_BF16,
         .grads = ZERO_GRAD_AS_TYPE,
         .master = ZERO_MASTER_F32,
         .state_type = ZERO_STATE_BF16,
         .delay_from = 1}};
    static const int frozen[] = {MATRICES, WTE | 2, 0, MATRICES | WTE};
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++)
        for (int stage = 0; stage < 4; stage++) {
            t->cfg = kinds[kind];
            t->cfg.stage = stage;
            t->cfg.micro_steps = 1;
            t->cfg.no_mapping = (int)kind % 2;
            t->frozen = frozen[kind];
            mem_case(t, 2);
        }
    t->frozen = 0;
}

int main(void) {
    mem_test *t = (mem_test *)test_shared(sizeof *t);
    for (int nranks = 1; nranks <= 4; nranks += nranks)
        for (int stage = 0; stage < 4; stage++)
            for (int copied = 0; copied < (stage == 3 ? 2 : 1); copied++) {
                t->cfg = (zero_config){.stage = stage, .no_mapping = copied, .micro_steps = 1};
                mem_case(t, nranks);
            }
    for (int stage = 0; stage < 4;
         stage++) /* accumulation in the other place, other buckets, prefetch and threshold */
        for (int k = 0; k < 2; k++) {
            t->cfg =
                (zero_config){.stage = stage,
                              .no_mapping = 1,
                              .micro_steps = 2,
                              .prefetch = k ? 3 : ZERO_NONE,
                              .accumulation = k ? ZERO_ACCUMULATE_SHARDED : ZERO_ACCUMULATE_LOCAL,
                              .bucket_numel = k ? 2000000 : 0,
                              .persistence_numel = k ? 2000 : ZERO_NONE,
                              .no_overlap = k};
            mem_case(t, 2);
        }
    mem_types(t);
    mem_groups(t);
    mem_files(t);
    mem_frozen(t);
    return test_summary();
}

/* test_integrity.c [flips] - with cfg.integrity, a bit that changes in memory is found

     hash       the hash of a block depends on each of its bits and on their places, and not on the
                number of threads
     flips      runs with random settings, in which one rank flips one bit: of weights, masters,
                optimizer state, sums of gradients, reduced gradients, gather buffers; between
                steps, between micro-steps, inside a pass, before the update. Each is found before
                the update that would use it, and the error names rank, array, unit and step. A run
                without a flip has no error, and the hash of a run without cfg.integrity
     messages   a gather that delivers another bit, a replica that differs: the ranks are named
     refusals   settings that do not fit */
#include "../../zero_plugin.cu"

#include "../shared/host.h"

enum { INTEGRITY_RANKS = 4, INTEGRITY_STEPS = 3 };

/* What is flipped, in addition to arrays: shards of other ranks in weights that are kept whole, and
   gathered shards in a buffer. When. */
enum { INTEGRITY_OTHERS = ZP_ARRAYS, INTEGRITY_BUFFER, INTEGRITY_TARGETS };
enum { INTEGRITY_IDLE, INTEGRITY_BETWEEN, INTEGRITY_PASS, INTEGRITY_REDUCED, INTEGRITY_POINTS };

static const zero_tensor_desc integrity_tensors[] = {
    {"emb", 700, .uses = 2},
    {"mat", 330, .layers = 3, .unit = 1},
    {"norm", 9, .layers = 3, .unit = 1, .flags = ZERO_KEEP | ZERO_NO_DECAY},
    {"out", 5, .unit = 4, .flags = ZERO_ONE_D},
    {"base", 77, .layers = 3, .unit = 1, .flags = ZERO_FROZEN}};

typedef struct integrity_trial {
    host_spec spec;
    int flips; /* 1: the run flips a bit */
    int victim, step, micro, point;
    test_random random;
    int target, unit; /* what was flipped; target -1: nothing */
    int later;        /* the next step uses it, a frozen unit, or the stream `updates` */
    int failed_step[INTEGRITY_RANKS], result[INTEGRITY_RANKS];
    char text[INTEGRITY_RANKS][512];
    uint64_t hash;
} integrity_trial;

/* Returns the memory of a target, and its bytes; 0: the run has none of it now. */
static size_t integrity_find(zero_ctx *z, int target, int u, int point, char **memory) {
    const zp_integrity_copy *c = &z->integrity->copy[u];
    const size_t shard = zp_ctx_shard(z, u) * zp_type_bytes(z->cfg.type);
    const int n = z->data->nranks, me = z->data->rank;
    const int sums = z->array[ZP_SUM].share ? (int)ZP_SUM : (int)ZP_MEAN;
    if (!z->layout.unit[u].numel) return 0;
    if (target == INTEGRITY_BUFFER) {
        /* after a step buffers are empty, whatever is in their memory */
        if (!c->buffer || point == INTEGRITY_IDLE || point == INTEGRITY_REDUCED) return 0;
        *memory = zp_integrity_in_buffer(z, u, c->buffer - 1);
        return (size_t)n * shard;
    }
    if (target == INTEGRITY_OTHERS) {
        const int whole = z->array[ZP_PARAM].part[u].share == ZP_WHOLE;
        /* after the agreement they are not used any more, but overwritten */
        if (!whole || z->policy.state == ZP_WHOLE || n == 1 || point == INTEGRITY_REDUCED) return 0;
        *memory = zp_array_at(&z->array[ZP_PARAM], u, 0) + (size_t)((me + 1) % n) * shard;
        return shard;
    }
    if (target == ZP_SUM || target == ZP_MEAN || target == ZP_GRAD) {
        const int between = z->adding == ZP_IN_PLACE ? (int)ZP_GRAD : sums;
        if (u >= z->layout.all) return 0;
        if (point == INTEGRITY_REDUCED) {
            if (&z->array[target] != zp_ctx_update_gradient(z)) return 0;
        } else if (point != INTEGRITY_BETWEEN || target != between || z->cfg.virtual_ranks)
            return 0;
    }
    return zp_integrity_part(z, target, u, memory);
}

static const int integrity_rare[] = {ZP_GRAD, ZP_MEAN, ZP_SUM, INTEGRITY_BUFFER};
static void integrity_flip(host_run *h, integrity_trial *t) {
    zero_ctx *z = h->z;
    char *memory;
    if (!t->flips || h->rank->rank != t->victim || h->step != t->step || t->target >= 0) return;
    if (zp_extra_sync(z)) return; /* nothing is on its way */
    for (int i = 0; i < 200; i++) {
        const int rare = test_below(&t->random, 2); /* what few settings and points have */
        const int target = rare ? integrity_rare[test_below(&t->random, 4)]
                                : test_below(&t->random, INTEGRITY_TARGETS);
        const int u = test_below(&t->random, z->layout.segments);
        const size_t bytes = integrity_find(z, target, u, t->point, &memory);
        if (!bytes) continue;
        const uint64_t bit = test_next(&t->random) % (8 * bytes);
        memory[bit / 8] = (char)(memory[bit / 8] ^ 1 << bit % 8);
        t->target = target;
        t->unit = u;
        t->later = u >= z->layout.all ? target == ZP_PARAM : z->live[u].on_updates;
        return;
    }
}
static void integrity_in_pass(host_run *h, int tensor, size_t first, void *g) {
    integrity_trial *t = (integrity_trial *)h->rank->arg;
    (void)tensor, (void)first, (void)g;
    if (t->point == INTEGRITY_PASS && h->micro == t->micro) integrity_flip(h, t);
}

static int integrity_train(host_run *h, integrity_trial *t) {
    const host_spec *s = h->spec;
    while (h->step < s->steps) {
        if (t->point == INTEGRITY_IDLE) integrity_flip(h, t);
        for (h->micro = 0; h->micro < s->micro_steps; h->micro++) {
            if (!host_train_pass(h)) return 0;
            if (t->point == INTEGRITY_BETWEEN && h->micro == t->micro) integrity_flip(h, t);
        }
        HOST_TRY(h, zero_reduce(h->z));
        if (t->point == INTEGRITY_REDUCED) integrity_flip(h, t);
        HOST_TRY(h, zero_step(h->z, &s->adamw));
        h->step++;
        if (s->evaluate && !host_evaluate(h)) return 0;
    }
    return 1;
}

static void integrity_body(test_rank *r) {
    integrity_trial *t = (integrity_trial *)r->arg;
    host_run h;
    int ok = host_open(&h, &t->spec, r) && integrity_train(&h, t);
    const uint64_t hash = ok ? host_hash(&h) : 0;
    ok = ok && !r->failed;
    if (!r->rank) t->hash = hash;
    t->failed_step[r->rank] = ok ? -1 : h.step;
    t->result[r->rank] = ok ? ZERO_OK : h.z ? (int)h.z->dead : -1;
    snprintf(t->text[r->rank], sizeof t->text[0], "%.500s", r->why);
    zero_destroy(h.z);
    if (t->flips) r->failed = 0;
}

/* ---- settings ---- */

static void integrity_spec(host_spec *s, test_random *r) {
    static const zero_optimizer rules[] = {ZERO_ADAMW, ZERO_SGD, ZERO_LION, ZERO_LAMB, ZERO_MUON};
    const int nranks = 1 + test_below(r, INTEGRITY_RANKS), stage = test_below(r, 4);
    host_small(s, test_next(r), nranks, stage, integrity_tensors, 5);
    zero_config *c = &s->cfg;
    s->units = 5;
    s->rows[1] = 22, s->cols[1] = 15;
    s->steps = INTEGRITY_STEPS;
    s->micro_steps = 1 + test_below(r, 3);
    s->adopts = test_below(r, 3) == 0;
    s->evaluate = test_below(r, 3) == 0;
    s->poison = integrity_in_pass;
    c->integrity = 1;
    c->timeout_s = 30;
    c->type = (zero_type)test_below(r, 3);
    c->grads = test_below(r, 2) ? ZERO_GRAD_F32 : ZERO_GRAD_AS_TYPE;
    c->scaler.fixed = 1;
    c->master = c->type == ZERO_BF16 ? (zero_master)test_below(r, ZERO_MASTERS) : ZERO_MASTER_AUTO;
    c->state_type = (zero_state_type)test_below(r, ZERO_STATE_TYPES);
    c->optimizer = rules[test_below(r, 5)];
    c->accumulation = (zero_accumulation)test_below(r, 3);
    c->no_overlap = test_below(r, 4) == 0;
    c->no_mapping = test_below(r, 2);
    c->bucket_numel = test_below(r, 2) ? 2000 : 0;
    c->persistence_numel = test_below(r, 2) ? ZERO_NONE : 0;
    c->prefetch = test_below(r, 3) - 1;
    if (nranks == 4 && stage && test_below(r, 3) == 0) c->shard_ranks = 2;
    if (nranks == 4 && stage == 3 && !c->shard_ranks && test_below(r, 3) == 0) c->second_ranks = 2;
    if (nranks != 3 && s->micro_steps < 3 && !c->shard_ranks && !c->second_ranks
        && test_below(r, 4) == 0) {
        c->virtual_ranks = nranks * s->micro_steps;
        c->accumulation = ZERO_ACCUMULATE_LOCAL;
    }
    c->folder = "/tmp";
    if (test_below(r, 5) == 0) c->optimizer_tier = ZERO_FILE;
    if (stage == 3 && test_below(r, 5) == 0) c->parameter_tier = ZERO_FILE;
    if (stage > 1 && c->accumulation != ZERO_ACCUMULATE_LOCAL && test_below(r, 5) == 0)
        c->gradient_tier = ZERO_FILE;
}
static void integrity_print(const host_spec *s, char *text, size_t bytes) {
    const zero_config *c = &s->cfg;
    snprintf(text, bytes,
             "seed %llu: %d ranks, stage %d, type %d, grads %d, master %d, state %d, rule %d, %d "
             "micro-steps, accumulation %d, overlap %d, mapping %d, shard_ranks %d, second_ranks "
             "%d, virtual_ranks %d, tiers %d %d %d",
             (unsigned long long)s->seed, s->nranks, c->stage, (int)c->type, (int)c->grads,
             (int)c->master, (int)c->state_type, (int)c->optimizer, s->micro_steps,
             (int)c->accumulation, !c->no_overlap, !c->no_mapping, c->shard_ranks, c->second_ranks,
             c->virtual_ranks, (int)c->optimizer_tier, (int)c->gradient_tier,
             (int)c->parameter_tier);
}

/* ---- flips ---- */

static long integrity_found, integrity_by_target[INTEGRITY_TARGETS];

/* Checks that a rank reports the flip before the update that would use it, with all names. */
static void integrity_check_found(const integrity_trial *t, const char *settings) {
    static const char *const points[] = {"between steps", "between micro-steps", "in a pass",
                                         "before the update"};
    char rank[64], unit[64];
    const int u = t->unit, all = t->spec.units + 1; /* KEEP is the last of all */
    const char *name = t->target == INTEGRITY_OTHERS   ? "other parameters"
                       : t->target == INTEGRITY_BUFFER ? "gathered parameters"
                                                       : zp_integrity_names[t->target];
    int named = 0;
    snprintf(rank, sizeof rank,
             t->target == INTEGRITY_OTHERS ? "rank %d has" : "memory of rank %d ", t->victim);
    snprintf(unit, sizeof unit, "unit %d (", u < all ? u : u - all);
    for (int r = 0; r < t->spec.nranks; r++) {
        const char *text = t->text[r];
        named |= t->result[r] == ZERO_ERR_DEVICE && strstr(text, rank) && strstr(text, name)
                 && strstr(text, unit) && strstr(text, "in step");
        if (t->failed_step[r] < 0 || t->failed_step[r] > t->step + 1 + t->later) named = 0;
    }
    const int early = t->failed_step[t->victim] == t->step
                      || (t->later && t->failed_step[t->victim] == t->step + 1);
    if (test_check(named && early, "%s of unit %d, rank %d, step %d, %s: step %d: %s\n  %s", name,
                   t->unit, t->victim, t->step, points[t->point], t->failed_step[t->victim],
                   t->text[t->victim], settings)) {
        integrity_found++;
        integrity_by_target[t->target]++;
    }
}

/* One setting: runs without and with hashes, and runs with a flip. */
static void integrity_setting(test_random *r, int flips) {
    integrity_trial *t = (integrity_trial *)calloc(1, sizeof *t);
    host_spec spec;
    char settings[512];
    uint64_t plain;
    integrity_spec(&spec, r);
    integrity_print(&spec, settings, sizeof settings);
    t->spec = spec;
    t->spec.cfg.integrity = 0;
    int ok =
        test_check(test_ranks(spec.nranks, 0, integrity_body, t), "%s: %s", settings, test_first);
    plain = t->hash;
    t->spec = spec;
    ok = ok
         && test_check(test_ranks(spec.nranks, 0, integrity_body, t) && t->hash == plain,
                       "%s: hash %016llx, without integrity %016llx: %s", settings,
                       (unsigned long long)t->hash, (unsigned long long)plain, test_first);
    for (int i = 0; i < flips && ok; i++) {
        memset(t, 0, sizeof *t);
        t->spec = spec;
        t->flips = 1;
        t->target = -1;
        t->victim = test_below(r, spec.nranks);
        t->point = test_below(r, INTEGRITY_POINTS);
        t->step = test_below(r, INTEGRITY_STEPS - 1); /* one step follows */
        t->micro = test_below(r, spec.micro_steps);
        if (t->point == INTEGRITY_BETWEEN) {
            if (spec.micro_steps == 1) t->point = INTEGRITY_IDLE;
            t->micro = test_below(r, spec.micro_steps > 1 ? spec.micro_steps - 1 : 1);
        }
        /* the first pass hashes what was written before it */
        if (t->point == INTEGRITY_IDLE && !t->step) t->step = 1;
        t->random.state = test_next(r);
        (void)test_ranks(spec.nranks, 0, integrity_body, t);
        if (t->target >= 0)
            integrity_check_found(t, settings);
        else
            test_check(t->failed_step[0] < 0, "no flip, but %s\n  %s", t->text[0], settings);
    }
    free(t);
}

/* ---- the hash ---- */

static void integrity_hash(void) {
    zero_ctx *z = (zero_ctx *)calloc(1, sizeof *z);
    z->integrity = (zp_integrity_state *)calloc(1, sizeof *z->integrity);
    for (uint32_t i = 0; i < ZP_INTEGRITY_WORDS; i++)
        z->integrity->factor[i] = zp_optimizer_mix(i) | 1;
    enum { MOST = 1 << 20 };
    char *memory = (char *)malloc(MOST);
    for (size_t i = 0; i < MOST; i++) memory[i] = (char)test_mix(i);
    static const size_t sizes[] = {4, 64, 2044, 2048, 2052, 4096, 100000, MOST};
    int differ = 1, alike = 1;
    for (int k = 0; k < 8; k++) {
        const uint64_t one = zp_integrity_hash(z, memory, sizes[k], 1);
        alike &= one == zp_integrity_hash(z, memory, sizes[k], 3);
        for (int i = 0; i < 200; i++) {
            const uint64_t bit = test_mix((uint64_t)(k * 200 + i)) % (8 * sizes[k]);
            memory[bit / 8] = (char)(memory[bit / 8] ^ 1 << bit % 8);
            differ &= one != zp_integrity_hash(z, memory, sizes[k], 1);
            memory[bit / 8] = (char)(memory[bit / 8] ^ 1 << bit % 8);
        }
    }
    test_check(differ, "a flipped bit leaves the hash");
    test_check(alike, "three threads have another hash than one");
    const uint64_t before = zp_integrity_hash(z, memory, 8192, 1);
    char block[2048];
    memcpy(block, memory, 2048); /* two blocks, then two words, exchange places */
    memcpy(memory, memory + 2048, 2048);
    memcpy(memory + 2048, block, 2048);
    test_check(before != zp_integrity_hash(z, memory, 8192, 1), "the order of blocks is lost");
    const uint64_t words = zp_integrity_hash(z, memory, 8192, 1);
    memcpy(block, memory, 4);
    memcpy(memory, memory + 4, 4);
    memcpy(memory + 4, block, 4);
    test_check(words != zp_integrity_hash(z, memory, 8192, 1), "the order of words is lost");
    test_check(zp_integrity_hash(z, (memset(memory, 0, 4096), memory), 4096, 1)
                   != zp_integrity_hash(z, memory, 2048, 1),
               "zeros at the end are lost");
    free(memory);
    free(z->integrity);
    free(z);
}

/* ---- messages and replicas ---- */

/* A transport that flips a bit of rank 2's shard of unit 1 when rank 1 gathers it: at each gather
   of step 1, or at the first. */
static const zp_transport *integrity_transport;
static zp_transport integrity_spoiled;
static int integrity_spoils; /* gathers that are left to spoil */

static void integrity_spoil_task(const void *args, size_t n, int threads) {
    char *const *at = (char *const *)args;
    (void)n, (void)threads;
    **at = (char)(**at ^ 4);
}
static zero_result integrity_issue(zp_stream *s, const zp_op *op, int n) {
    ZP_TRY(integrity_transport->issue(s, op, n));
    for (int i = 0; i < n; i++) {
        if (op[i].channel != ZP_PARAMETERS || op[i].unit != 1 || op[i].group->rank != 1) continue;
        if (op[i].in_place || __atomic_load_n(&integrity_spoils, __ATOMIC_RELAXED) < 1) continue;
        char *at = op[i].memory->base + op[i].target + 2 * zp_comm_op_shard_bytes(&op[i]) + 5;
        __atomic_fetch_sub(&integrity_spoils, 1, __ATOMIC_RELAXED);
        ZP_TRY(zp_device_push_task(s, integrity_spoil_task, &at, sizeof at, 1));
    }
    return ZERO_OK;
}

/* In step 1: gathers are spoiled, or, without that, rank 1 has other weights and knows no better.
 */
typedef struct integrity_case {
    const char *name, *error;
    int nranks, stage, shard_ranks, spoils;
} integrity_case;
static const integrity_case integrity_cases[] = {
    {"each gather", "rank 1 has other parameters of unit 1 (tensor mat) than rank 2", 3, 3, 0, 99},
    {"one gather", "rank 1 received two different shards of rank 2", 3, 3, 0, 1},
    {"stage 2", "rank 1 has other parameters of unit 1 (tensor mat) than rank 2", 3, 2, 0, 1},
    {"stage 0, 3 ranks", "those of rank 1 are wrong", 3, 0, 0, 0},
    {"stage 0, 2 ranks", "the wrong ones are not known", 2, 0, 0, 0},
    {"replicas", "ranks 3 and 1 have different parameters of unit 2", 4, 3, 2, 0},
    {"replicas, stage 1", "ranks 1 and 3 have different parameters of unit 2", 4, 1, 2, 0}};

static void integrity_case_body(test_rank *r) {
    integrity_trial *t = (integrity_trial *)r->arg;
    const int spoils = t->micro;
    host_run h;
    int ok = host_open(&h, &t->spec, r);
    if (ok && spoils) h.z->data->transport = &integrity_spoiled;
    for (int step = 0; step < 3 && ok; step++) {
        if (ok && step == (t->spec.cfg.stage < 3 ? 0 : 1) && spoils && r->rank == 1)
            __atomic_store_n(&integrity_spoils, spoils, __ATOMIC_RELAXED);
        if (ok && step == 1 && !spoils && r->rank == 1) {
            char *memory;
            (void)zp_extra_sync(h.z);
            if (zp_integrity_part(h.z, ZP_PARAM, 2, &memory)) memory[5] = (char)(memory[5] ^ 4);
            zp_integrity_visit(h.z, ZP_PARAM, 2, 1, 0, 1);
        }
        ok = host_train_step(&h);
    }
    t->result[r->rank] = ok || !h.z ? 0 : (int)h.z->dead;
    snprintf(t->text[r->rank], sizeof t->text[0], "%.500s", r->why);
    r->failed = 0;
    zero_destroy(h.z);
}
static void integrity_messages(void) {
    integrity_transport = zp_transport_find(ZERO_COMM_LOCAL);
    integrity_spoiled = *integrity_transport;
    integrity_spoiled.issue = integrity_issue;
    for (size_t i = 0; i < sizeof integrity_cases / sizeof *integrity_cases; i++) {
        const integrity_case *c = &integrity_cases[i];
        integrity_trial *t = (integrity_trial *)calloc(1, sizeof *t);
        int found = 0;
        host_small(&t->spec, 11, c->nranks, c->stage, integrity_tensors, 5);
        t->spec.units = 5;
        t->spec.cfg.integrity = 1;
        t->spec.cfg.no_mapping = 1;
        t->spec.cfg.prefetch = ZERO_NONE; /* two buffers: units are gathered twice */
        t->spec.cfg.timeout_s = 30;
        t->spec.cfg.shard_ranks = c->shard_ranks;
        t->micro = c->spoils;
        integrity_spoils = 0;
        (void)test_ranks(c->nranks, 0, integrity_case_body, t);
        for (int r = 0; r < c->nranks; r++)
            found |= t->result[r] == ZERO_ERR_DEVICE && strstr(t->text[r], c->error) != NULL;
        for (int r = 0; r < c->nranks; r++) found &= t->result[r] != 0;
        test_check(found, "%s: %s | %s | %s", c->name, t->text[0], t->text[1], t->text[2]);
        free(t);
    }
}

/* ---- state ---- */

/* Access by name and a state that is loaded renew hashes. A flip does not get into a checkpoint. */
static void integrity_state_body(test_rank *r) {
    integrity_trial *t = (integrity_trial *)r->arg;
    float values[700];
    zero_range range;
    host_run h;
    char *memory;
    int ok = host_open(&h, &t->spec, r) && host_train_step(&h);
    ok = ok && !zero_state_begin(h.z);
    for (int i = 0; ok && i < zero_state_ranges(h.z, 1); i++) {
        ok = !zero_state_range(h.z, 1, i, &range) && range.count <= 990;
        float *copy = (float *)calloc(1000, sizeof *copy);
        ok = ok && !zero_state_get(h.z, &range, copy);
        copy[0] = range.kind == ZERO_MASTER ? 3 : copy[0];
        ok = ok && !zero_state_put(h.z, &range, copy);
        free(copy);
    }
    ok = ok && !zero_state_end(h.z, 1) && host_train_step(&h);
    for (int i = 0; i < 700; i++) values[i] = 0.5f;
    const zero_kind kinds[] = {ZERO_PARAMETER, ZERO_MASTER, ZERO_MOMENT_1, ZERO_MOMENT_2};
    for (int k = 0; k < 4; k++)
        ok = ok && !zero_write_tensor(h.z, "emb", kinds[k], 10, 500, values) && host_train_step(&h);
    ok = ok && (h.micro = 0, host_train_pass(&h)) && !zero_reduce(h.z)
         && !zero_write_tensor(h.z, "emb", ZERO_GRADIENT, 10, 500, values)
         && !zero_step(h.z, &t->spec.adamw) && (h.step++, host_train_step(&h));
    if (!ok) test_rank_fail(r, "%s", zero_last_error(h.z));
    if (ok && !zp_extra_sync(h.z) && zp_integrity_part(h.z, ZP_STATE, 2, &memory))
        memory[9] = (char)(memory[9] ^ 64);
    if (ok
        && (zero_state_begin(h.z) != ZERO_ERR_DEVICE
            || !strstr(zero_last_error(h.z), "optimizer state 1 of unit 2 (tensor mat)")))
        test_rank_fail(r, "zero_state_begin: %s", zero_last_error(h.z));
    zero_destroy(h.z);
}
static void integrity_state(void) {
    for (int stage = 0; stage < 4; stage++) {
        integrity_trial *t = (integrity_trial *)calloc(1, sizeof *t);
        host_small(&t->spec, 5, 2, stage, integrity_tensors, 5);
        t->spec.units = 5;
        t->spec.cfg.integrity = 1;
        t->spec.cfg.no_mapping = stage % 2;
        t->spec.cfg.timeout_s = 30;
        t->spec.cfg.type = stage % 2 ? ZERO_BF16 : ZERO_F32;
        test_check(test_ranks(2, 0, integrity_state_body, t), "stage %d: %s", stage, test_first);
        free(t);
    }
}

/* The bytes of hashes are in the plan, and the verdict's words too. */
static void integrity_plan(void) {
    zero_plan plan[2];
    for (int on = 0; on < 2; on++) {
        integrity_trial t;
        host_run h;
        test_rank alone;
        memset(&t, 0, sizeof t);
        memset(&alone, 0, sizeof alone);
        alone.nranks = 1;
        host_small(&t.spec, 5, 1, 3, integrity_tensors, 5);
        t.spec.units = 5;
        t.spec.cfg.integrity = on;
        test_check(host_open(&h, &t.spec, &alone) && !zero_query_plan(h.z, &plan[on]), "the plan");
        if (on) test_check(h.z->integrity->bytes == plan[1].hash_bytes, "bytes of hashes");
        if (!on) test_check(!h.z->integrity->hash && !h.z->observer, "off: it has lists");
        for (int i = 0; i < 4 && !on; i++)
            for (int k = 0; k < h.z->walk[i].n; k++)
                for (const zp_station *s = zp_integrity_stations; s->place != ZP_PLACES_OF_WALK;
                     s++)
                    test_check(h.z->walk[i].station[k] != s, "off: a station is in a walk");
        zero_destroy(h.z);
    }
    test_check(!plan[0].hash_bytes && plan[1].hash_bytes > 0
                   && plan[1].context_bytes - plan[0].context_bytes == plan[1].hash_bytes,
               "hashes have %zu bytes, the context %zu more than without", plan[1].hash_bytes,
               plan[1].context_bytes - plan[0].context_bytes);
}

/* ---- refusals ---- */

static void integrity_refusals(void) {
    static const char *const why[] = {"integrity is 2",   "with weight_bits, gathered",
                                      "delay_from keeps", "no_file_check is 1",
                                      "agree with ranks", NULL};
    const zero_comm alone = {ZERO_COMM_SELF, 0, NULL, 0};
    for (int i = 0; why[i]; i++) {
        zero_config cfg = {.integrity = 1, .stage = 3, .threads = 1};
        zero_group *g = NULL;
        zero_ctx *z = NULL;
        if (i == 0) cfg.integrity = 2;
        if (i == 1) cfg.weight_bits = 8;
        if (i == 2) cfg.delay_from = 1;
        if (i == 3) cfg.optimizer_tier = ZERO_FILE, cfg.folder = "/tmp", cfg.no_file_check = 1;
        if (i == 4) (void)zero_group_open(&g, &alone, NULL, 0), cfg.world = g;
        const zero_result r = zero_create(&z, &cfg, &alone);
        test_check(r == ZERO_ERR_ARGUMENT && strstr(zero_last_error(z), why[i]),
                   "%s: result %d, %s", why[i], (int)r, zero_last_error(z));
        zero_destroy(z);
        zero_group_close(g);
    }
}

int main(int argc, char **argv) {
    const long flips = argc > 1 ? atol(argv[1]) : 250;
    const char *seed = getenv("SEED");
    test_random random = {test_mix(seed ? strtoull(seed, NULL, 10) : 37)};
    integrity_hash();
    integrity_plan();
    integrity_refusals();
    integrity_state();
    integrity_messages();
    while (integrity_found < flips && test_failed < 10) integrity_setting(&random, 5);
    printf("%ld flips found:", integrity_found);
    for (int i = 0; i < INTEGRITY_TARGETS; i++)
        printf(" %s %ld%s",
               i == INTEGRITY_OTHERS   ? "shards of others"
               : i == INTEGRITY_BUFFER ? "gather buffers"
                                       : zp_integrity_names[i],
               integrity_by_target[i], i + 1 < INTEGRITY_TARGETS ? "," : "\n");
    return test_summary();
}

/* test_resize.c - zero_resize: a run continues on other ranks.

     virtual   runs with virtual_ranks through random sequences of admissible numbers of ranks, with
               other stages, tiers, buckets and ranks that stay, leave and join each time: the hash
               of losses, norms, scales, weights and moments is that of a run on one rank. Over
               types, masters, state types and update rules. In threads and in processes
     plain     without virtual_ranks: weights and moments are the same bits before and after, and
               the run continues with the bits of one that has put the same state
     refusals  numbers of ranks, settings, tensors and calls that do not fit: all ranks get the same
               error, and the run continues without a difference
     faults    a rank that dies at any instant: an error, or the right weights, and no wait
     memory    the process never has more pages than the larger plan and one unit

   RESIZES=N makes each run of `virtual` that long (20 and 5 unless set); SEED=N other sequences. */
#include "../shared/allocations.h"
#include "small.h"
#include "virtual_host.h"

enum { RESIZE_PHASES = 1024, RESIZE_SEATS = 12 };

/* Some ranks for some steps. A seat is a thread or a process that is a rank, or waits. */
typedef struct resize_phase {
    int nranks, steps, stage, how;
    int rank[RESIZE_SEATS]; /* by seat; -1: it waits */
    int refused;            /* an attempt that must fail comes before it; see resize_attempts */
} resize_phase;

typedef struct resize_run {
    host_spec spec; /* of one rank */
    int leaves;     /* V; 0: without virtual_ranks */
    int seats, phases, first_step;
    resize_phase phase[RESIZE_PHASES];
    zero_local *local[RESIZE_PHASES], *attempt[RESIZE_PHASES];
    uint64_t hash;
    uint64_t bits[2]; /* plain: of the state, before and after */
} resize_run;

static test_random resize_random;

/* Sets the specification of a phase. */
static void resize_spec(const resize_run *run, const resize_phase *p, host_spec *s) {
    *s = run->spec;
    s->nranks = p->nranks;
    s->cfg.stage = p->stage;
    virtual_set_layout(s, p->how);
    if (!run->leaves) return;
    s->leaves = s->micro_steps = run->leaves / p->nranks;
}

static double resize_moved; /* bytes, by the last line of the log; -1: none */

static void resize_log(void *user, zero_log_level level, const char *text) {
    double bytes;
    int from, to;
    (void)user;
    if (level == ZERO_LOG_INFO
        && sscanf(text, "the state has moved from %d to %d ranks: %lf bytes", &from, &to, &bytes)
               == 3)
        resize_moved = bytes;
}

/* Creates the context of the next phase, with all tensors. */
static zero_result resize_create(host_run *h, const host_spec *s, zero_ctx **next) {
    zero_config cfg = host_config(s);
    const zero_comm comm = test_comm(h->rank);
    cfg.log = resize_log;
    ZERO_TRY(zero_create(next, &cfg, &comm));
    return host_announce_all(h, *next);
}

/* Trains the steps of a phase. Rank 0 adds them to the hash. */
static int resize_train(host_run *h, resize_run *run, int steps) {
    for (int end = h->step + steps; h->step < end; h->step++) {
        zero_step_report done;
        double mean = 0;
        for (h->micro = 0; h->micro < h->spec->micro_steps; h->micro++)
            if (!virtual_pass(h, &mean)) return 0;
        HOST_TRY(h, zero_step_result(h->z, &done));
        if (h->rank->rank) continue;
        run->hash = virtual_mix(run->hash, mean);
        if (done.stepped) run->hash = virtual_mix(run->hash, done.norm);
        run->hash = virtual_mix(run->hash, (double)zero_loss_scale(h->z));
        run->hash = virtual_mix(run->hash, (double)done.skipped);
    }
    return 1;
}

/* Enters phase p: creates the new context, moves the state, and destroys the old context. */
static int resize_enter(host_run *h, resize_run *run, int p, const host_spec *s, int seat) {
    zero_ctx *next = NULL;
    test_rank *r = h->rank;
    h->spec = s;
    if (run->phase[p].rank[seat] >= 0) {
        test_rank_set(r, run->phase[p].rank[seat], s->nranks, run->local[p], 0, r->arg);
        if (resize_create(h, s, &next))
            test_rank_fail(r, "a new context: %s", zero_last_error(next));
    }
    if (!h->z && !next) return 1;
    const int joins = !h->z;
    if (zero_resize(h->z, next))
        test_rank_fail(r, "phase %d, %d ranks: %s", p, s->nranks,
                       zero_last_error(next ? next : h->z));
    if (!next && zero_barrier(h->z) != ZERO_ERR_STATE)
        test_rank_fail(r, "a context without its state is used");
    zero_destroy(h->z);
    h->z = next;
    if (next && joins && !r->failed) HOST_TRY(h, zero_bind(next, &h->params, &h->grads));
    return !r->failed;
}

/* Attempts that are refused, and words of the error that all ranks get. */
typedef enum resize_attempt_kind {
    RESIZE_NONE,
    RESIZE_SIZE,    /* a number of ranks that the tree lacks */
    RESIZE_SEED,    /* another seed on all new ranks */
    RESIZE_TENSORS, /* the new rank 0 has one tensor less */
    RESIZE_BUCKET,  /* a setting that does not fit the tensors, on all new ranks */
    RESIZE_LEAVE,   /* all ranks leave, others join */
    RESIZE_PASS,    /* one rank is in a pass */
    RESIZE_ATTEMPTS
} resize_attempt_kind;
static const char *const resize_attempts[RESIZE_ATTEMPTS] = {"",
                                                             "virtual_ranks is",
                                                             "the new context {seed 8}",
                                                             "the new context 4 in",
                                                             "bucket_numel",
                                                             "a rank that stays",
                                                             "between steps"};

static int resize_attempt_ranks(const resize_run *run, int p) {
    const int now = p ? run->phase[p - 1].nranks : 0;
    if (run->phase[p].refused == RESIZE_LEAVE) return run->seats - now > 0 ? run->seats - now : 1;
    return run->phase[p].refused == RESIZE_SIZE ? 5 : run->seats;
}
/* Creates the context of an attempt, with what is wrong. */
static void resize_create_wrong(host_run *h, const resize_run *run, int p, int rank,
                                zero_ctx **next) {
    host_run other = *h;
    test_rank r = *h->rank;
    host_spec s = run->spec;
    const int kind = run->phase[p].refused, n = resize_attempt_ranks(run, p);
    if (kind == RESIZE_SEED) s.cfg.seed = 8;
    if (kind == RESIZE_TENSORS && !rank) s.ntensors--;
    if (kind == RESIZE_BUCKET) s.cfg.bucket_numel = 1, s.cfg.stage = 2;
    s.micro_steps = kind == RESIZE_SIZE ? 0 : run->leaves / n;
    if (kind == RESIZE_LEAVE) s.cfg.virtual_ranks = 0;
    test_rank_set(&r, rank, n, run->attempt[p], 0, r.arg);
    other.spec = &s;
    other.rank = &r;
    (void)resize_create(&other, &s, next);
}
/* All ranks get the same error, and their contexts stay as they were. */
static int resize_attempt(host_run *h, resize_run *run, int p, int seat) {
    zero_ctx *next = NULL;
    const int kind = run->phase[p].refused, n = resize_attempt_ranks(run, p);
    int rank = seat < n ? seat : -1, waits = 0;
    for (int i = 0; i < seat; i++) waits += run->phase[p - 1].rank[i] < 0;
    if (kind == RESIZE_LEAVE) rank = h->z || waits >= n ? -1 : waits;
    if (kind == RESIZE_PASS && h->z && !h->rank->rank)
        HOST_TRY(h, zero_pass_begin(h->z, ZERO_EVAL, 0, 1));
    if (rank >= 0) resize_create_wrong(h, run, p, rank, &next);
    if (!h->z && !next) return 1;
    const zero_result got = zero_resize(h->z, next);
    const char *why = zero_last_error(h->z ? h->z : next);
    const int other = kind == RESIZE_TENSORS && strstr(why, "tensors 4}"); /* zero_build finds it */
    if (!got || !(other || strstr(why, resize_attempts[kind])))
        test_rank_fail(h->rank, "attempt %d: result %d, %s", kind, (int)got, why);
    zero_destroy(next);
    if (kind == RESIZE_PASS && h->z && !h->rank->rank) {
        for (int u = 0; u < h->spec->units; u++)
            if (!host_forward(h, u)) return 0;
        HOST_TRY(h, zero_pass_end(h->z));
    } else if (kind == RESIZE_PASS && h->z && !host_evaluate(h))
        return 0;
    return !h->rank->failed;
}

static void resize_body(test_rank *r) {
    resize_run *run = (resize_run *)r->arg;
    const int seat = r->rank;
    host_run h;
    host_spec spec[2];
    memset(&h, 0, sizeof h);
    h.rank = r;
    for (int p = 0; p < run->phases; p++) {
        host_spec *s = &spec[p % 2];
        const int rank = run->phase[p].rank[seat];
        resize_spec(run, &run->phase[p], s);
        if (p == 0 && rank >= 0) {
            test_rank_set(r, rank, s->nranks, run->local[0], 0, run);
            if (!host_open(&h, s, r)) break;
        }
        if (p && run->phase[p].refused && !resize_attempt(&h, run, p, seat)) break;
        if (p && !resize_enter(&h, run, p, s, seat)) break;
        if (rank >= 0 && !resize_train(&h, run, run->phase[p].steps)) break;
        if (rank < 0) h.step += run->phase[p].steps;
    }
    if (h.z && !r->failed) {
        const uint64_t bits = host_hash(&h);
        if (!r->rank) run->hash = test_mix(run->hash ^ bits);
    }
    zero_destroy(h.z);
}

/* Runs all phases on threads or processes. Returns 1 if no rank failed. */
static int resize_go(resize_run *run, int processes) {
    int ok = 1;
    run->hash = 0;
    for (int p = 0; p < run->phases; p++)
        ok &= !zero_local_create(&run->local[p], run->phase[p].nranks, processes)
              && !zero_local_create(&run->attempt[p], resize_attempt_ranks(run, p), processes);
    if (ok)
        ok = processes ? test_processes(run->seats, 0, resize_body, run, 3000)
                       : test_ranks(run->seats, 0, resize_body, run);
    for (int p = 0; p < run->phases; p++) {
        zero_local_destroy(run->local[p]);
        zero_local_destroy(run->attempt[p]);
    }
    return ok;
}

/* ---- virtual ---- */

/* Chooses ranks at random among the seats. A rank of the phase before stays. */
static void resize_choose_seats(const resize_run *run, const resize_phase *before,
                                resize_phase *p) {
    int stay, list[RESIZE_SEATS];
    do {
        stay = !before;
        for (int i = 0; i < run->seats; i++) {
            const int j = test_below(&resize_random, i + 1);
            list[i] = list[j];
            list[j] = i;
        }
        for (int i = 0; i < run->seats; i++) {
            p->rank[list[i]] = i < p->nranks ? i : -1;
            stay |= i < p->nranks && before && before->rank[list[i]] >= 0;
        }
    } while (!stay);
}

static void resize_alone(resize_run *run, int steps) {
    run->seats = run->phases = 1;
    run->phase[0] = (resize_phase){1, steps, 0, 0, {0}, 0};
}

/* Sets a random sequence over V virtual ranks. */
static int resize_sequence(resize_run *run, int v, int resizes) {
    int steps = 0;
    run->seats = run->leaves;
    run->phases = resizes + 1;
    for (int i = 0; i < run->phases; i++) {
        resize_phase *p = &run->phase[i];
        p->nranks = virtual_ranks_of[v][1 + test_below(&resize_random, 4)];
        p->steps = 1 + (i == 0);
        p->stage = test_below(&resize_random, 4);
        p->how = test_below(&resize_random, 32);
        resize_choose_seats(run, i ? p - 1 : NULL, p);
        steps += p->steps;
    }
    return steps;
}

static void resize_virtual(const virtual_case *c, int v, int resizes, int processes, int slots) {
    resize_run *run = (resize_run *)test_shared(sizeof *run);
    run->leaves = virtual_ranks_of[v][0];
    virtual_spec(&run->spec, run->leaves, 1, 0);
    virtual_set_case(&run->spec, c);
    run->spec.slots = slots;
    const uint64_t seed = resize_random.state;
    const int steps = resize_sequence(run, v, resizes);
    int ok = resize_go(run, processes);
    const uint64_t hash = run->hash;
    test_check(ok, "%s, V %d, seed %llu, %d resizes%s: %s", c->name, run->leaves,
               (unsigned long long)seed, resizes, processes ? ", processes" : "", test_first);
    resize_alone(run, steps);
    test_check(resize_go(run, 0), "%s, one rank: %s", c->name, test_first);
    test_check(!ok || hash == run->hash,
               "%s, V %d, seed %llu, %d resizes: hash %016llx, without a resize %016llx", c->name,
               run->leaves, (unsigned long long)seed, resizes, (unsigned long long)hash,
               (unsigned long long)run->hash);
    munmap(run, sizeof *run);
}

/* ---- plain ---- */

/* A run without virtual_ranks on spec[0].nranks, then on spec[1].nranks. */
typedef struct resize_plain_run {
    host_spec spec[2];
    zero_local *local;
    float *state[HOST_TENSORS][ZERO_KIND_COUNT]; /* at the moment of the change */
    zero_counters counters;
    uint64_t bits[2], end[2]; /* before, after; at the end, and of the run that put the state */
} resize_plain_run;

static int resize_plain_steps(host_run *h, int steps) {
    for (int end = h->step + steps; h->step < end; h->step++) {
        double mean;
        h->micro = 0;
        if (!virtual_pass(h, &mean)) return 0;
    }
    return 1;
}

/* Returns 1 if tensor t has a kind. */
static int resize_has(const host_spec *s, int t, int kind) {
    if (kind == ZERO_GRADIENT) return 0;
    if (kind == ZERO_MOMENT_2 && !host_two(s, t)) return 0;
    return kind == ZERO_PARAMETER || kind == ZERO_MASTER || !host_all_frozen(s, t);
}

/* Reads the whole state, on rank 0 into the run. */
static int resize_read(host_run *h, resize_plain_run *run) {
    for (int t = 0; t < h->spec->ntensors; t++)
        for (int kind = 0; kind < ZERO_KIND_COUNT; kind++) {
            if (!resize_has(h->spec, t, kind)) continue;
            const size_t n = host_numel(h->spec, t);
            float *values = (float *)malloc(n * sizeof *values);
            HOST_TRY(h,
                     zero_read_tensor(h->z, h->spec->desc[t].name, (zero_kind)kind, 0, n, values));
            if (!h->rank->rank)
                run->state[t][kind] = values;
            else
                free(values);
        }
    HOST_TRY(h, zero_state_begin(h->z));
    if (!h->rank->rank) zero_state_counters(h->z, &run->counters);
    HOST_TRY(h, zero_state_end(h->z, 0));
    return 1;
}
/* Puts it, as a checkpoint is loaded. */
static int resize_put(host_run *h, const resize_plain_run *run) {
    HOST_TRY(h, zero_state_begin(h->z));
    for (int i = 0; i < zero_state_ranges(h->z, 1); i++) {
        zero_range range;
        int t = 0;
        HOST_TRY(h, zero_state_range(h->z, 1, i, &range));
        while (strcmp(range.name, h->spec->desc[t].name) != 0) t++;
        range.type = ZERO_F32;
        HOST_TRY(h, zero_state_put(h->z, &range, run->state[t][range.kind] + range.first));
    }
    HOST_TRY(h, zero_state_set_counters(h->z, &run->counters));
    HOST_TRY(h, zero_state_end(h->z, 1));
    return 1;
}

static int resize_plain_change(test_rank *r, host_run *h, resize_plain_run *run, int seat) {
    zero_ctx *next = NULL;
    const int joins = !h->z;
    h->rank = r;
    h->spec = &run->spec[1];
    h->step = run->spec[0].steps;
    if (seat < run->spec[1].nranks) {
        test_rank_set(r, seat, run->spec[1].nranks, run->local, 0, run);
        if (resize_create(h, h->spec, &next)) test_rank_fail(r, "%s", zero_last_error(next));
    }
    if (zero_resize(h->z, next)) test_rank_fail(r, "%s", zero_last_error(next ? next : h->z));
    zero_destroy(h->z);
    h->z = next;
    if (!next || r->failed) return !r->failed;
    if (joins) HOST_TRY(h, zero_bind(next, &h->params, &h->grads));
    const uint64_t bits = host_hash(h);
    if (!r->rank) run->bits[1] = bits;
    if (!resize_plain_steps(h, h->spec->steps)) return 0;
    const uint64_t end = host_hash(h);
    if (!r->rank) run->end[0] = end;
    return !r->failed;
}
static void resize_plain_body(test_rank *r) {
    resize_plain_run *run = (resize_plain_run *)r->arg;
    const int seat = r->rank;
    host_run h;
    int ok = 1;
    memset(&h, 0, sizeof h);
    r->nranks = run->spec[0].nranks;
    if (seat < r->nranks) {
        ok = host_open(&h, &run->spec[0], r) && resize_plain_steps(&h, run->spec[0].steps);
        const uint64_t bits = ok ? host_hash(&h) : 0;
        if (!seat) run->bits[0] = bits;
        ok = ok && resize_read(&h, run);
    }
    const int changed = ok && resize_plain_change(r, &h, run, seat) && h.z;
    zero_destroy(h.z);
    for (int t = 0; t < run->spec[1].ntensors && changed; t++)
        for (int l = 0; l < 3; l++)
            if (h.slot_p[t][l] || h.slot_g[t][l]
                || (run->spec[1].adopts && seat < run->spec[0].nranks && h.params.field[t]))
                test_rank_fail(r, "a pointer to %s is left", run->spec[1].desc[t].name);
}
static void resize_loaded_body(test_rank *r) {
    resize_plain_run *run = (resize_plain_run *)r->arg;
    host_spec spec = run->spec[1];
    host_run h;
    spec.adopts = 0;
    if (host_open(&h, &spec, r)) {
        h.step = run->spec[0].steps;
        if (resize_put(&h, run) && resize_plain_steps(&h, spec.steps)) {
            const uint64_t end = host_hash(&h);
            if (!r->rank) run->end[1] = end;
        }
    }
    zero_destroy(h.z);
}

static void resize_plain(const virtual_case *c, const int ranks[2], const int stage[2], int form) {
    static resize_plain_run run;
    memset(&run, 0, sizeof run);
    for (int i = 0; i < 2; i++) {
        host_spec *s = &run.spec[i];
        virtual_spec(s, ranks[i], ranks[i], stage[i]);
        virtual_set_case(s, c);
        virtual_set_layout(s, form * 7 + 11 * i);
        s->cfg.virtual_ranks = 0;
        s->steps = 2 + i;
        s->slots = form & 1;
        s->adopts = form >> 1 & 1;
    }
    const int seats = ranks[0] > ranks[1] ? ranks[0] : ranks[1];
    test_check(!zero_local_create(&run.local, ranks[1], 0), "a zero_local");
    resize_moved = -1;
    const int ok = test_ranks_of(seats, ranks[0], 0, resize_plain_body, &run);
    test_check(ok, "%s, %d to %d ranks, stage %d to %d, form %d: %s", c->name, ranks[0], ranks[1],
               stage[0], stage[1], form, test_first);
    zero_local_destroy(run.local);
    test_check(!ok || test_ranks(ranks[1], 0, resize_loaded_body, &run), "%s, loaded: %s", c->name,
               test_first);
    test_check(!ok || (run.bits[0] && run.bits[0] == run.bits[1]),
               "%s, %d to %d ranks, stage %d to %d: the state's hash was %016llx and is %016llx",
               c->name, ranks[0], ranks[1], stage[0], stage[1], (unsigned long long)run.bits[0],
               (unsigned long long)run.bits[1]);
    test_check(!ok || (run.end[0] && run.end[0] == run.end[1]),
               "%s, %d to %d ranks, stage %d to %d: the hash is %016llx, of a loaded run %016llx",
               c->name, ranks[0], ranks[1], stage[0], stage[1], (unsigned long long)run.end[0],
               (unsigned long long)run.end[1]);
    for (int t = 0; t < HOST_TENSORS; t++)
        for (int k = 0; k < ZERO_KIND_COUNT; k++) free(run.state[t][k]);
}

/* The bytes in the log. If nothing changes, none move. At stage 0, each rank that joins gets all:
   weights and two moments of trained elements, and the weights of the frozen ones. */
static void resize_bytes(void) {
    static const int same[2] = {3, 3}, more[2] = {1, 4}, stages[2] = {3, 3}, whole[2] = {1, 0};
    double numel = 0;
    resize_plain(&virtual_cases[0], same, stages, 0);
    test_check(resize_moved == 0, "equal layouts: %.0f bytes have moved", resize_moved);
    for (int t = 0; t < 5; t++) {
        const zero_tensor_desc *d = &virtual_tensors[t];
        numel += (double)d->numel * (d->layers ? d->layers : 1) * (d->flags & ZERO_FROZEN ? 1 : 3);
    }
    resize_plain(&virtual_cases[0], more, whole, 0);
    test_check(resize_moved == 3 * 4 * numel, "1 to 4 ranks: %.0f bytes have moved, expected %.0f",
               resize_moved, 3 * 4 * numel);
}

/* ---- refusals ---- */

static void resize_refused(int v) {
    resize_run *run = (resize_run *)test_shared(sizeof *run);
    run->leaves = virtual_ranks_of[v][0];
    virtual_spec(&run->spec, run->leaves, 1, 0);
    run->spec.slots = v;
    const int steps = resize_sequence(run, v, 2 * RESIZE_ATTEMPTS);
    for (int p = 1; p < run->phases; p++) run->phase[p].refused = p % RESIZE_ATTEMPTS;
    for (int p = 1; p < run->phases; p++) {
        int stays = 0; /* ranks among the first five, which an attempt with a wrong number has */
        for (int seat = 0; seat < 5 && seat < run->seats; seat++)
            stays += run->phase[p - 1].rank[seat] >= 0;
        /* an attempt in which all leave needs others; with a wrong number, one must stay */
        if ((run->phase[p].refused == RESIZE_LEAVE && run->phase[p - 1].nranks == run->seats)
            || (run->phase[p].refused == RESIZE_SIZE && !stays))
            run->phase[p].refused = RESIZE_NONE;
    }
    int ok = resize_go(run, 0);
    const uint64_t hash = run->hash;
    test_check(ok, "refused, V %d: %s", run->leaves, test_first);
    resize_alone(run, steps);
    test_check(resize_go(run, 0) && (!ok || hash == run->hash),
               "refused, V %d: hash %016llx, without a resize %016llx: %s", run->leaves,
               (unsigned long long)hash, (unsigned long long)run->hash, test_first);
    munmap(run, sizeof *run);
}

/* One rank: settings that cannot move, and calls at the wrong time. */
static void resize_refuse(const zero_config *was, const zero_config *is, zero_result result,
                          const char *what) {
    zero_ctx *z = small_build(was), *next = small_create(is);
    small_announce(next);
    small_expect_error(z, zero_resize(z, next), result, "zero_resize", what);
    test_check(strstr(zero_last_error(next), what) != NULL, "the new context's error: %s",
               zero_last_error(next));
    zero_destroy(next);
    test_check(small_micro_step(z, 0, 1) && !zero_reduce(z) && !zero_step(z, &small_adamw),
               "a refused context trains on: %s", zero_last_error(z));
    zero_destroy(z);
}
static void resize_refusals(void) {
    const zero_config plain = {0}, lion = {.optimizer = ZERO_LION},
                      fed = {.stage = 2, .gradient_bits = 8, .feedback = 0.5f};
    const zero_config copies = {.stage = 1, .shard_ranks = 1}, bf16 = {.type = ZERO_BF16},
                      delayed = {.delay_from = 1};
    const zero_config rows = {.optimizer = ZERO_MUON, .muon = {.normalize = 0.9f}};
    resize_refuse(&plain, &lion, ZERO_ERR_ARGUMENT,
                  "the state has {optimizer 0}, the new context {optimizer 4}; use the same");
    resize_refuse(&plain, &bf16, ZERO_ERR_ARGUMENT, "{type 1}");
    resize_refuse(&plain, &delayed, ZERO_ERR_ARGUMENT, "{delay_from 1}");
    resize_refuse(&fed, &fed, ZERO_ERR_UNSUPPORTED, "feedback");
    resize_refuse(&copies, &copies, ZERO_ERR_UNSUPPORTED, "shard_ranks");
    resize_refuse(&rows, &rows, ZERO_ERR_UNSUPPORTED, "muon.normalize");

    zero_ctx *z = small_build(&plain), *next = small_build(&plain), *third = small_create(&plain);
    small_announce(third);
    test_check(zero_resize(NULL, NULL) == ZERO_ERR_ARGUMENT
                   && zero_resize(z, z) == ZERO_ERR_ARGUMENT,
               "no context, or the same one twice");
    small_expect_error(z, zero_resize(z, NULL), ZERO_ERR_ARGUMENT, "zero_resize",
                       "all 1 ranks leave; the state needs a rank that stays");
    small_expect_error(third, zero_resize(NULL, third), ZERO_ERR_ARGUMENT, "zero_resize",
                       "all 1 ranks join; the state needs a rank that stays");
    test_check(!zero_resize(z, next), "a built context takes state: %s", zero_last_error(z));
    small_expect_error(z, zero_barrier(z), ZERO_ERR_STATE, "zero_barrier",
                       "another context has the state now; destroy this one");
    small_expect_error(z, zero_resize(z, third), ZERO_ERR_STATE, "zero_resize",
                       "another context has the state now");
    test_check(small_micro_step(next, 0, 1) && !zero_reduce(next) && !zero_step(next, &small_adamw),
               "the new context trains: %s", zero_last_error(next));
    zero_destroy(third);
    third = small_build(&plain);
    small_expect_error(third, zero_resize(third, next), ZERO_ERR_STATE, "zero_resize",
                       "the new context has trained; create another");
    zero_destroy(third);
    zero_destroy(next);
    zero_destroy(z);
}

/* ---- faults ---- */

/* A rank of the old or of the new communicator dies at some instant of the second phase's change.
   Its launcher says so. All calls end; then a rank goes on with the context that is left to it. */
typedef struct resize_fault_run {
    resize_run run; /* two phases */
    int fails;      /* 0: the old communicator; 1: the new one */
    unsigned after_us;
    int seat; /* instead: an allocation fails on this seat */
    alloc_book book;
    int began, moved, kept, ended; /* ranks: entered; with a new context; with the old one; at the
                                      end, without an error */
    uint64_t hash;
} resize_fault_run;

static void *resize_kill(void *arg) {
    resize_fault_run *f = (resize_fault_run *)arg;
    while (__atomic_load_n(&f->began, __ATOMIC_ACQUIRE) < f->run.seats) usleep(10);
    usleep(f->after_us);
    if (!f->book.fail_at) zero_local_abort(f->run.local[f->fails], 0, "killed");
    return NULL;
}

/* Trains to the end. Returns 1 if no call fails. */
static int resize_fault_end(host_run *h, const resize_fault_run *f) {
    double mean;
    const resize_run *run = &f->run;
    for (const int end = h->step + run->phase[1].steps; h->step < end; h->step++)
        for (h->micro = 0; h->micro < h->spec->micro_steps; h->micro++)
            if (!virtual_pass(h, &mean)) return 0;
    return 1;
}
static void resize_fault_body(test_rank *r) {
    resize_fault_run *f = (resize_fault_run *)r->arg;
    resize_run *run = &f->run;
    const int seat = r->rank, was = run->phase[0].rank[seat], is = run->phase[1].rank[seat];
    zero_ctx *next = NULL;
    host_run h;
    host_spec spec[2];
    memset(&h, 0, sizeof h);
    h.rank = r;
    for (int p = 0; p < 2; p++) {
        resize_spec(run, &run->phase[p], &spec[p]);
        spec[p].cfg.timeout_s = 60;
    }
    test_rank_set(r, was, run->phase[0].nranks, run->local[0], 0, f);
    if (was >= 0 && (!host_open(&h, &spec[0], r) || !resize_train(&h, run, run->phase[0].steps)))
        test_rank_fail(r, "before the change");
    if (was < 0) h.step = run->phase[0].steps;
    test_rank other = *r;
    test_rank_set(&other, is, run->phase[1].nranks, run->local[1], 0, f);
    h.rank = &other;
    const host_spec *old = h.spec;
    h.spec = &spec[1];
    (void)__atomic_add_fetch(&f->began, 1, __ATOMIC_ACQ_REL);
    alloc_mine = f->book.fail_at && seat == f->seat ? &f->book : NULL;
    if (is >= 0) (void)resize_create(&h, &spec[1], &next);
    const zero_result got = zero_resize(h.z, next);
    alloc_mine = NULL;
    const int moved = !got && next, kept = got && h.z && !zero_barrier(h.z);
    if (got && !*zero_last_error(h.z ? h.z : next))
        test_rank_fail(r, "an error without a sentence");
    if (moved || !kept) {
        zero_destroy(h.z);
        h.z = moved ? next : NULL;
        if (!moved) zero_destroy(next);
    } else {
        zero_destroy(next);
        h.spec = old;
        h.rank = r;
    }
    if (moved && was < 0) (void)zero_bind(h.z, &h.params, &h.grads);
    (void)__atomic_add_fetch(&f->moved, moved, __ATOMIC_ACQ_REL);
    (void)__atomic_add_fetch(&f->kept, kept, __ATOMIC_ACQ_REL);
    test_rank quiet = *h.rank; /* errors of calls are no failures here */
    h.rank = &quiet;
    if (h.z && resize_fault_end(&h, f)) {
        const uint64_t bits = host_hash(&h);
        (void)__atomic_add_fetch(&f->ended, !quiet.failed, __ATOMIC_ACQ_REL);
        if (!quiet.failed && !quiet.rank) f->hash = bits;
    }
    zero_destroy(h.z);
}

/* Counts what came of the runs: all moved; all kept the old context; errors. */
static void resize_fault(resize_fault_run *f, uint64_t hash, int count[3]) {
    pthread_t killer;
    resize_run *run = &f->run;
    f->began = f->moved = f->kept = f->ended = 0;
    f->hash = 0;
    for (int p = 0; p < 2; p++)
        if (zero_local_create(&run->local[p], run->phase[p].nranks, 0)) abort();
    if (pthread_create(&killer, NULL, resize_kill, f)) abort();
    const double start = test_now();
    const int ok = test_ranks(run->seats, 0, resize_fault_body, f);
    pthread_join(killer, NULL);
    const double s = test_now() - start;
    for (int p = 0; p < 2; p++) zero_local_destroy(run->local[p]);
    test_check(ok && s < 30, "killed after %u us: %.1f s, %s", f->after_us, s, test_first);
    const int all = f->hash != 0;
    test_check(!all || f->hash == hash, "killed after %u us: hash %016llx, expected %016llx",
               f->after_us, (unsigned long long)f->hash, (unsigned long long)hash);
    test_check(!f->moved || !f->kept,
               "some ranks go on with the old context, others with the new one");
    count[!all ? 2 : f->moved ? 0 : 1]++;
}

/* The hash of weights and moments without a change, on one rank. */
static void resize_expected_body(test_rank *r) {
    resize_fault_run *f = (resize_fault_run *)r->arg;
    host_run h;
    host_spec spec;
    resize_spec(&f->run, &f->run.phase[0], &spec);
    if (host_open(&h, &spec, r) && resize_train(&h, &f->run, f->run.phase[0].steps))
        f->hash = host_hash(&h);
    zero_destroy(h.z);
}
static uint64_t resize_expected(resize_fault_run *f) {
    test_check(test_ranks(1, 0, resize_expected_body, f), "one rank: %s", test_first);
    return f->hash;
}

/* Each k-th call for memory, files and threads fails, in steps, on a rank that stays, leaves or
   joins: no rank changes, and the old contexts go on. */
static void resize_allocations(resize_fault_run *f, uint64_t hash, int every) {
    static const int seats[2][5] = {{0, 1, -1, -1, -1}, {-1, 2, 0, 1, 3}}; /* leaves, stays, join */
    resize_run *run = &f->run;
    run->seats = 5;
    for (int p = 0; p < 2; p++) {
        run->phase[p] = (resize_phase){p ? 4 : 2, 1, 3, 4, {0}, 0};
        memcpy(run->phase[p].rank, seats[p], sizeof seats[p]);
    }
    for (f->seat = 0; f->seat < 3; f->seat++) {
        const int step = f->seat ? every : 1;
        int n = 0, refused = 0;
        for (long k = 1 + test_below(&resize_random, step);; k += step, n++) {
            int count[3] = {0};
            memset(&f->book, 0, sizeof f->book);
            f->book.fail_at = k;
            resize_fault(f, hash, count);
            test_check(!count[2], "allocation %ld fails on seat %d: an error is left", k, f->seat);
            refused += f->kept == 2;
            test_check((f->kept == 2 && !f->moved) || (f->moved == 4 && !f->kept), /* an early plan
                           may fail without harm */
                       "allocation %ld fails on seat %d: %d ranks have a new context, %d the old",
                       k, f->seat, f->moved, f->kept);
            if (!f->book.failed) break;
        }
        test_check(refused > (f->seat ? 5 : 0), "seat %d: %d of %d calls that failed had a result",
                   f->seat, refused, n);
    }
    memset(&f->book, 0, sizeof f->book);
}

static void resize_faults(int kills) {
    static resize_fault_run f;
    int count[2][3] = {{0}};
    resize_run *run = &f.run;
    run->leaves = 8;
    virtual_spec(&run->spec, 8, 1, 0);
    /* the weights of one rank after the steps of both phases */
    resize_alone(run, 2);
    run->spec.steps = 2;
    const uint64_t hash = resize_expected(&f);
    run->phases = 2;
    resize_allocations(&f, hash, kills > 100 ? 1 : 7);
    run->seats = 8;
    for (int i = 0; i < kills; i++) {
        for (int p = 0; p < 2; p++) {
            run->phase[p].nranks = virtual_ranks_of[0][1 + test_below(&resize_random, 4)];
            run->phase[p].steps = 1;
            run->phase[p].stage = test_below(&resize_random, 4);
            run->phase[p].how = test_below(&resize_random, 32);
            resize_choose_seats(run, p ? &run->phase[0] : NULL, &run->phase[p]);
        }
        f.fails = i % 2;
        f.after_us = (unsigned)test_below(&resize_random, i % 3 ? 8000 : 40000);
        resize_fault(&f, hash, count[f.fails]);
    }
    for (int i = 0; i < 2; i++)
        test_check(count[i][2] + (i ? count[i][1] : 0) > 0,
                   "no kill of the %s communicator had a "
                   "result",
                   i ? "new" : "old");
    printf("kills: old communicator: %d moved, %d kept, %d errors; new: %d, %d, %d\n", count[0][0],
           count[0][1], count[0][2], count[1][0], count[1][1], count[1][2]);
}

/* ---- memory ---- */

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
static const zero_tensor_desc resize_large[] = {{"emb", 400000, .uses = 2},
                                                {"mat", 300000, .layers = 8, .unit = 1}};
enum { RESIZE_UNITS = 9 };

typedef struct resize_memory_run {
    host_spec spec[2];
    zero_local *local;
    size_t planned[2], before, peak, held; /* of all ranks, or of the process */
    pthread_barrier_t meet;
} resize_memory_run;

/* Returns a line of /proc/self/status in bytes. */
static size_t resize_status(const char *name) {
    char line[256];
    size_t kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, name, strlen(name))) kib = strtoull(line + strlen(name) + 1, NULL, 10);
    if (f) fclose(f);
    return kib * 1024;
}
static void resize_reset_peak(void) {
    FILE *f = fopen("/proc/self/clear_refs", "w");
    if (f) fputs("5", f), fclose(f);
}
static void resize_add_plan(test_rank *r, zero_ctx *z, size_t *sum) {
    zero_plan p;
    if (zero_query_plan(z, &p)) test_rank_fail(r, "%s", zero_last_error(z));
    (void)__atomic_add_fetch(
        sum, p.param_bytes + p.grad_bytes + p.optimizer_bytes + p.buffer_bytes + p.context_bytes,
        __ATOMIC_ACQ_REL);
}

static void resize_memory_body(test_rank *r) {
    resize_memory_run *run = (resize_memory_run *)r->arg;
    const int seat = r->rank;
    zero_ctx *next = NULL;
    host_run h;
    memset(&h, 0, sizeof h);
    r->nranks = run->spec[0].nranks;
    if (seat < r->nranks && host_open(&h, &run->spec[0], r) && host_train_step(&h))
        resize_add_plan(r, h.z, &run->planned[0]);
    h.rank = r;
    h.spec = &run->spec[1];
    pthread_barrier_wait(&run->meet);
    if (!seat) run->held = resize_status("VmRSS:");
    if (!seat) resize_reset_peak();
    pthread_barrier_wait(&run->meet);
    if (seat < run->spec[1].nranks) {
        test_rank_set(r, seat, run->spec[1].nranks, run->local, 0, run);
        if (resize_create(&h, h.spec, &next)) test_rank_fail(r, "%s", zero_last_error(next));
    }
    if (zero_resize(h.z, next)) test_rank_fail(r, "%s", zero_last_error(next ? next : h.z));
    pthread_barrier_wait(&run->meet);
    if (!seat) run->peak = resize_status("VmHWM:");
    pthread_barrier_wait(&run->meet);
    if (next) resize_add_plan(r, next, &run->planned[1]);
    zero_destroy(h.z);
    zero_destroy(next);
}

static void resize_memory(int stage, int from, int to) {
    static resize_memory_run run;
    memset(&run, 0, sizeof run);
    for (int i = 0; i < 2; i++) {
        host_small(&run.spec[i], 3, i ? to : from, stage, resize_large, 2);
        run.spec[i].units = RESIZE_UNITS;
        run.spec[i].cfg.timeout_s = 60;
    }
    const int seats = from > to ? from : to;
    pthread_barrier_init(&run.meet, NULL, (unsigned)seats);
    test_check(!zero_local_create(&run.local, to, 0), "a zero_local");
    run.before = resize_status("VmRSS:");
    test_check(test_ranks_of(seats, from, 0, resize_memory_body, &run), "memory: %s", test_first);
    zero_local_destroy(run.local);
    pthread_barrier_destroy(&run.meet);
    const size_t held = run.held - run.before;
    const size_t most = held > run.planned[1] ? held : run.planned[1];
    const size_t unit = 2 * 400000 * 3 * sizeof(float) + (size_t)seats * (2u << 20); /* parts */
    test_check(
        run.peak - run.before <= most + unit,
        "stage %d, %d to %d ranks: %zu MiB more than before, held %zu, planned %zu and %zu MiB",
        stage, from, to, (run.peak - run.before) >> 20, held >> 20, run.planned[0] >> 20,
        run.planned[1] >> 20);
}
#else
static void resize_memory(int stage, int from, int to) { (void)stage, (void)from, (void)to; }
#endif

int main(void) {
    enum { CASES = sizeof virtual_cases / sizeof *virtual_cases };
    const char *seed = getenv("SEED"), *n = getenv("RESIZES");
    (void)alarm(n ? 36000 : 600);
    resize_random.state = seed ? strtoull(seed, NULL, 10) * 1000003u : 1;
    const int many = n ? atoi(n) : 20, few = n ? atoi(n) : 5;
    test_check(many < RESIZE_PHASES, "RESIZES is %d, expected less than %d", many, RESIZE_PHASES);
    for (int stage = 0; stage < 4; stage++) {
        resize_memory(stage, 2, 4);
        resize_memory(stage, 4, 1);
    }
    for (int i = 0; i < CASES && many < RESIZE_PHASES; i++)
        resize_virtual(&virtual_cases[i], i % 2, i == 1 || i == 8 ? many : few, i % 4 == 3,
                       i % 3 == 1);
    resize_refusals();
    resize_bytes();
    resize_refused(0);
    resize_refused(1);
    resize_faults(n ? many : 60);
    static const int ranks[][2] = {{4, 2}, {2, 4}, {3, 5}, {5, 3}, {1, 4}, {4, 1}, {3, 3}};
    for (int i = 0; i < 2 * CASES; i++) {
        const int stage[2] = {i % 4, (i / 4 + i / 2) % 4};
        resize_plain(&virtual_cases[i % CASES], ranks[i % 7], stage, i % 4);
    }
    return test_summary();
}

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
#include "small.h"
#include "virtual_host.h"

enum { RESIZE_PHASES = 1024, RESIZE_SEATS = 12 };

/* Some ranks for some steps. A seat is a thread or a process that is a rank, or waits. */
typedef struct resize_phase {
    int nranks, steps, stage, how;
    int rank[RESIZE_SEATS]; /* by seat; -1: it waits */
} resize_phase;

typedef struct resize_run {
    host_spec spec; /* of one rank */
    int leaves;     /* V; 0: without virtual_ranks */
    int seats, phases, first_step;
    resize_phase phase[RESIZE_PHASES];
    zero_local *local[RESIZE_PHASES];
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

/* Creates the context of the next phase, with all tensors. */
static zero_result resize_create(host_run *h, const host_spec *s, zero_ctx **next) {
    const zero_config cfg = host_config(s);
    const zero_comm comm = test_comm(h->rank);
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
        ok &= !zero_local_create(&run->local[p], run->phase[p].nranks, processes);
    if (ok)
        ok = processes ? test_processes(run->seats, 0, resize_body, run, 120)
                       : test_ranks(run->seats, 0, resize_body, run);
    for (int p = 0; p < run->phases; p++) zero_local_destroy(run->local[p]);
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
    run->phase[0] = (resize_phase){1, steps, 0, 0, {0}};
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
            HOST_TRY(h, zero_read_tensor(h->z, h->spec->desc[t].name, (zero_kind)kind, 0, n,
                                         values));
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
    if (ok) (void)resize_plain_change(r, &h, run, seat);
    zero_destroy(h.z);
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

int main(void) {
    enum { CASES = sizeof virtual_cases / sizeof *virtual_cases };
    const char *seed = getenv("SEED"), *n = getenv("RESIZES");
    (void)alarm(n ? 36000 : 600);
    resize_random.state = seed ? strtoull(seed, NULL, 10) * 1000003u : 1;
    const int many = n ? atoi(n) : 20, few = n ? atoi(n) : 5;
    test_check(many < RESIZE_PHASES, "RESIZES is %d, expected less than %d", many, RESIZE_PHASES);
    for (int i = 0; i < CASES && many < RESIZE_PHASES; i++)
        resize_virtual(&virtual_cases[i], i % 2, i == 1 || i == 8 ? many : few, i % 4 == 3,
                       i % 3 == 1);
    static const int ranks[][2] = {{4, 2}, {2, 4}, {3, 5}, {5, 3}, {1, 4}, {4, 1}, {3, 3}};
    for (int i = 0; i < 2 * CASES; i++) {
        const int stage[2] = {i % 4, (i / 4 + i / 2) % 4};
        resize_plain(&virtual_cases[i % CASES], ranks[i % 7], stage, i % 4);
    }
    return test_summary();
}

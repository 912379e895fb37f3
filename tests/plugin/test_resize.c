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
    return test_summary();
}

/* test_trace.c - what ran when: events of small hosts at every stage, with overlap and without, in
   memory and in a file. On each track they nest and are in order; each is there as often as the
   host's hooks and the plan say; what waits, waits for something that was recorded and ends no
   earlier; weights and traffic are those of a run that records nothing. */
#include "../shared/host.h"

enum { TRACE_RANKS = 2, TRACE_STEPS = 4, TRACE_MOST = 20000 };

typedef struct trace_seen {
    zero_event *event; /* [TRACE_MOST] */
    int n, lost;
} trace_seen;

typedef struct trace_run {
    host_spec spec;
    trace_seen seen[TRACE_RANKS];
    uint64_t hash[TRACE_RANKS];
    zero_stats stats[TRACE_RANKS];
    int records, floods;
} trace_run;

static void trace_take(void *user, const zero_event *events, int n) {
    trace_seen *s = (trace_seen *)user;
    for (int i = 0; i < n; i++) {
        if (events[i].kind == ZERO_EVENT_LOST) s->lost += (int)events[i].bytes;
        if (events[i].kind != ZERO_EVENT_LOST && s->n < TRACE_MOST) s->event[s->n++] = events[i];
    }
}

static const zero_tensor_desc trace_tensors[] = {{"emb", 700, 1, .uses = 2},
                                                 {"mat", 331, 3, .unit = 1},
                                                 {"norm", 90, 3, .unit = 1, .flags = ZERO_KEEP},
                                                 {"out", 600, 1, .unit = 4}};

static void trace_rank(test_rank *rank) {
    trace_run *run = (trace_run *)rank->arg;
    host_spec s = run->spec;
    host_run h;
    if (run->records) s.cfg.trace = trace_take;
    s.cfg.trace_user = &run->seen[rank->rank];
    if (!host_open(&h, &s, rank)) {
        zero_destroy(h.z);
        return;
    }
    for (int i = 0; i < 9000 && run->floods; i++)
        if ((i == 0 && zero_pass_begin(h.z, ZERO_EVAL, 0, 1)) || !host_forward(&h, i % s.units))
            test_rank_fail(rank, "%s", zero_last_error(h.z));
    if (run->floods && zero_pass_end(h.z)) test_rank_fail(rank, "%s", zero_last_error(h.z));
    for (int step = 0; step < TRACE_STEPS && !rank->failed; step++) (void)host_train_step(&h);
    if (zero_query_stats(h.z, &run->stats[rank->rank]))
        test_rank_fail(rank, "%s", zero_last_error(h.z));
    run->hash[rank->rank] = host_hash(&h);
    zero_destroy(h.z);
}

static void trace_open(trace_run *run, int stage, int no_overlap, int micro_steps) {
    memset(run, 0, sizeof *run);
    host_small(&run->spec, 5, TRACE_RANKS, stage, trace_tensors, 4);
    run->spec.units = 5;
    run->spec.micro_steps = micro_steps;
    run->spec.cfg.no_overlap = no_overlap;
    run->spec.cfg.bucket_numel = no_overlap ? 3000 : 0; /* several units are reduced together */
    for (int r = 0; r < TRACE_RANKS; r++)
        run->seen[r].event = (zero_event *)calloc(TRACE_MOST, sizeof(zero_event));
}
static void trace_close(trace_run *run) {
    for (int r = 0; r < TRACE_RANKS; r++) free(run->seen[r].event);
}
static int trace_go(trace_run *run, int records) {
    run->records = records;
    return test_ranks(TRACE_RANKS, 0, trace_rank, run);
}

static int trace_count_at(const trace_seen *s, zero_event_kind kind, int step, int micro) {
    int n = 0;
    for (int i = 0; i < s->n; i++)
        n += s->event[i].kind == kind && s->event[i].step == step && s->event[i].micro == micro;
    return n;
}
static int trace_count(const trace_seen *s, zero_event_kind kind) {
    int n = 0;
    for (int i = 0; i < s->n; i++) n += s->event[i].kind == kind;
    return n;
}

/* By begin; of two at once the longer first. */
static int trace_order(const void *a_, const void *b_) {
    const zero_event *a = (const zero_event *)a_, *b = (const zero_event *)b_;
    if (a->begin != b->begin) return a->begin < b->begin ? -1 : 1;
    return a->end > b->end ? -1 : a->end < b->end;
}

/* NULL, or what is wrong with one track. */
static const char *trace_track_wrong(const trace_seen *s, int track, int filed) {
    static char text[256];
    static __thread zero_event on[TRACE_MOST];
    double ends[64], last = 0;
    int n = 0, depth = 0;
    for (int i = 0; i < s->n; i++) {
        if (s->event[i].track != track) continue;
        if (s->event[i].begin < last && !filed) return "not in order";
        last = s->event[i].begin;
        on[n++] = s->event[i];
    }
    qsort(on, (size_t)n, sizeof *on, trace_order);
    for (int i = 0; i < n; i++) {
        while (depth && ends[depth - 1] <= on[i].begin) depth--;
        if (on[i].end < on[i].begin) return "ends before it begins";
        if (depth && on[i].end > ends[depth - 1]) {
            (void)snprintf(text, sizeof text, "%s of unit %d in step %d does not nest",
                           zero_event_name(on[i].kind), on[i].unit, (int)on[i].step);
            return text;
        }
        if (depth == 64) return "64 nest";
        ends[depth++] = on[i].end;
    }
    return NULL;
}

static const zero_event *trace_numbered(const trace_seen *s, uint64_t number) {
    for (int i = 0; i < s->n; i++)
        if (s->event[i].number == number) return &s->event[i];
    return NULL;
}

static int trace_flows; /* waits, of all runs, that say what they are for */
static void trace_check_events(const trace_run *run, const char *name) {
    for (int r = 0; r < TRACE_RANKS; r++) {
        const trace_seen *s = &run->seen[r];
        int flows = 0, wrong = 0, numbered = 0;
        for (int track = 0; track < ZERO_TRACK_FILES; track++) {
            const char *why = trace_track_wrong(s, track, run->spec.cfg.folder != NULL);
            test_check(!why, "%s: rank %d, track %d: %s", name, r, track, why);
        }
        for (int i = 0; i < s->n; i++) {
            const zero_event *e = &s->event[i], *cause;
            numbered += e->number >> 40 == (uint64_t)r + 1;
            if (e->kind != ZERO_EVENT_WAIT || !e->flow) continue;
            flows++;
            cause = trace_numbered(s, e->flow);
            /* a lane that has waited looks at the clock a little later than the one that ended */
            wrong += !cause || cause->kind != e->cause || cause->unit != e->unit || e->bytes
                     || e->end + 1e-3 < cause->begin;
        }
        trace_flows += flows;
        test_check(numbered == s->n && s->n > 0, "%s: numbers of rank %d", name, r);
        test_check(!wrong, "%s: rank %d: %d of %d waits for something else", name, r, wrong, flows);
    }
}

static void trace_check_counts(const trace_run *run, const char *name) {
    const host_spec *sp = &run->spec;
    const int passes = TRACE_STEPS * sp->micro_steps, *u = &sp->units;
    for (int r = 0; r < TRACE_RANKS; r++) {
        const trace_seen *s = &run->seen[r];
        uint64_t sent = 0;
        int gathers = 0, reductions = 0;
        for (int i = 0; i < s->n; i++) {
            const zero_event *e = &s->event[i];
            if (e->kind == ZERO_EVENT_GATHER) gathers += e->units;
            if (e->kind == ZERO_EVENT_REDUCTION) reductions += e->units;
            if (e->kind != ZERO_EVENT_AGREE) sent += e->sent;
        }
        /* the embedding is used twice, and so is its backward; of zero_hash's gathers none */
        test_check(trace_count(s, ZERO_EVENT_FORWARD) == passes * (*u + 1), "%s: %d forwards", name,
                   trace_count(s, ZERO_EVENT_FORWARD));
        for (int k = 0; k < passes; k++)
            test_check(
                trace_count_at(s, ZERO_EVENT_FORWARD, k / sp->micro_steps, k % sp->micro_steps)
                    == *u + 1,
                "%s: forwards of pass %d", name, k);
        test_check(trace_count(s, ZERO_EVENT_BACKWARD) == passes * (*u + 1), "%s: %d backwards",
                   name, trace_count(s, ZERO_EVENT_BACKWARD));
        test_check(trace_count(s, ZERO_EVENT_AGREE) == TRACE_STEPS, "%s: %d verdicts", name,
                   trace_count(s, ZERO_EVENT_AGREE));
        test_check(trace_count(s, ZERO_EVENT_UPDATE) == TRACE_STEPS * (*u + 1), "%s: %d updates",
                   name, trace_count(s, ZERO_EVENT_UPDATE));
        test_check((uint64_t)gathers == run->stats[r].gathers
                       && (uint64_t)reductions == run->stats[r].reductions,
                   "%s: %d gathers, %d reductions, counted %d and %d", name, gathers, reductions,
                   (int)run->stats[r].gathers, (int)run->stats[r].reductions);
        test_check(sent == run->stats[r].sent_bytes, "%s: %llu bytes sent, counted %llu", name,
                   (unsigned long long)sent, (unsigned long long)run->stats[r].sent_bytes);
        test_check(!s->lost, "%s: %d are lost", name, s->lost);
    }
}

static void test_stages(void) {
    for (int i = 0; i < 16; i++) {
        static trace_run run, silent;
        char name[64];
        snprintf(name, sizeof name, "stage %d, overlap %d, micro-steps %d", i % 4, !(i / 4 % 2),
                 1 + i / 8);
        trace_open(&run, i % 4, i / 4 % 2, 1 + i / 8);
        test_check(trace_go(&run, 1), "%s: %s", name, test_first);
        trace_check_events(&run, name);
        trace_check_counts(&run, name);
        trace_open(&silent, i % 4, i / 4 % 2, 1 + i / 8);
        test_check(trace_go(&silent, 0) && !silent.seen[0].n, "%s, silent: %s", name, test_first);
        for (int r = 0; r < TRACE_RANKS; r++)
            test_check(run.hash[r] == silent.hash[r]
                           && run.stats[r].sent_bytes == silent.stats[r].sent_bytes
                           && run.stats[r].allocated_bytes == silent.stats[r].allocated_bytes,
                       "%s: recording changes something", name);
        trace_close(&silent);
        trace_close(&run);
    }
}

/* State, gradients and parameters in a file: the bytes of pieces are those that are counted. */
static void test_file(void) {
    for (int i = 0; i < 2; i++) {
        static trace_run run;
        trace_open(&run, 3, i, 2);
        run.spec.cfg.optimizer_tier = run.spec.cfg.gradient_tier = run.spec.cfg.parameter_tier =
            ZERO_FILE;
        run.spec.cfg.folder = "/tmp";
        test_check(trace_go(&run, 1), "file: %s", test_first);
        trace_check_events(&run, "file");
        for (int r = 0; r < TRACE_RANKS; r++) {
            const trace_seen *s = &run.seen[r];
            int pieces = 0, updates = 0;
            for (int k = 0; k < s->n; k++) {
                pieces += s->event[k].track >= ZERO_TRACK_FILE;
                updates += s->event[k].kind == ZERO_EVENT_UPDATE
                           && s->event[k].track == (i ? ZERO_TRACK_COMPUTE : ZERO_TRACK_UPDATES);
            }
            test_check(pieces > 0 && updates > 0, "file: %d pieces, %d updates", pieces, updates);
        }
        trace_close(&run);
    }
}

/* Gradients that travel packed: of a unit's bytes on the wire a rank sends all but its own part. */
static void test_packed(void) {
    static trace_run run;
    int packed = 0;
    trace_open(&run, 2, 0, 1);
    run.spec.cfg.gradient_bits = 8;
    test_check(trace_go(&run, 1), "packed: %s", test_first);
    for (int i = 0; i < run.seen[0].n; i++) {
        const zero_event *e = &run.seen[0].event[i];
        if (e->kind != ZERO_EVENT_REDUCTION || !e->sent) continue;
        packed++;
        test_check(e->bytes * (TRACE_RANKS - 1) == e->sent * TRACE_RANKS,
                   "unit %d: %d bytes, of which %d are sent", e->unit, (int)e->bytes, (int)e->sent);
    }
    test_check(packed > 0, "no packed reduction");
    trace_close(&run);
}

/* Events are handed on where the header says so: at the end of a pass, and of a step. */
static void test_given(void) {
    static trace_run run;
    test_rank alone = {.nranks = 1};
    host_run h;
    const int *n = &run.seen[0].n;
    trace_open(&run, 0, 1, 1);
    run.spec.cfg.trace = trace_take;
    run.spec.cfg.trace_user = &run.seen[0];
    if (host_open(&h, &run.spec, &alone)) {
        const int units = run.spec.units, built = *n, evaluated = host_evaluate(&h) ? *n : 0,
                  trained = host_train_pass(&h) ? *n : 0;
        const int stepped = !zero_reduce(h.z) && !zero_step(h.z, &run.spec.adamw) ? *n : 0;
        test_check(built + units <= evaluated && evaluated + 2 * units <= trained
                       && trained + units <= stepped,
                   "%d events are given, an evaluation later %d, a pass later %d, a step later %d",
                   built, evaluated, trained, stepped);
    }
    test_check(!alone.failed, "one rank: %s", alone.why);
    zero_destroy(h.z);
    trace_close(&run);
}

/* Updates that run beside the next step are of the step whose gradient they take. */
static void test_delayed(void) {
    static trace_run run;
    trace_open(&run, 2, 0, 1);
    run.spec.cfg.delay_from = 1;
    test_check(trace_go(&run, 1), "delayed: %s", test_first);
    trace_check_events(&run, "delayed");
    for (int r = 0; r < TRACE_RANKS; r++)
        test_check(trace_count(&run.seen[r], ZERO_EVENT_UPDATE) == TRACE_STEPS * 6, "delayed: %d",
                   trace_count(&run.seen[r], ZERO_EVENT_UPDATE));
    trace_close(&run);
}

/* A pass of more hooks than the ring has places: the others are counted, and nobody waits. */
static void test_flood(void) {
    static trace_run run;
    for (int stage = 0; stage < 4; stage += 3) {
        trace_open(&run, stage, 0, 1);
        run.floods = 1;
        test_check(trace_go(&run, 1), "flood: %s", test_first);
        for (int r = 0; r < TRACE_RANKS; r++)
            test_check(stage == 0 || run.seen[r].lost > 0, "flood: rank %d lost none of %d", r,
                       run.seen[r].n);
        trace_close(&run);
    }
}

/* What groups do, beside a context that records: each call once, with its bytes, on its lane; and
   how a group was made, once. */
static const struct {
    zero_event_kind kind;
    int lane;
    uint64_t bytes;
} group_events[] = {{ZERO_EVENT_OPEN, 5, 0},
                    {ZERO_EVENT_ALL_REDUCE, 3, 4000},
                    {ZERO_EVENT_REDUCE_SCATTER, 3, 800},
                    {ZERO_EVENT_ALL_GATHER, 3, 480},
                    {ZERO_EVENT_ALL_TO_ALL, 3, 640},
                    {ZERO_EVENT_BROADCAST, 3, 40},
                    {ZERO_EVENT_MESSAGES, 3, 80},
                    {ZERO_EVENT_BARRIER, 3, 0},
                    {ZERO_EVENT_SPLIT, 3, 0},
                    {ZERO_EVENT_OPEN, 6, 0},
                    {ZERO_EVENT_ALL_GATHER, 6, 48}};
enum { GROUP_EVENTS = sizeof group_events / sizeof *group_events };

static void groups_check(const trace_seen *seen, int me, uint64_t counted) {
    uint64_t sent = 0;
    test_check(seen->n == GROUP_EVENTS, "rank %d: %d events", me, seen->n);
    for (int i = 0; i < seen->n && i < GROUP_EVENTS; i++) {
        const zero_event *e = &seen->event[i];
        const int part_opened = e->kind == ZERO_EVENT_OPEN && i > 0; /* in the split before it */
        test_check(e->kind == group_events[i].kind && e->bytes == group_events[i].bytes
                       && e->ranks == TRACE_RANKS
                       && e->track == ZERO_TRACK_GROUP + group_events[i].lane && e->unit == -1
                       && e->end >= e->begin && e->begin > 0,
                   "event %d: %s of %d bytes among %d on %d", i, zero_event_name(e->kind),
                   (int)e->bytes, e->ranks, e->track);
        test_check(i == 0
                       || (part_opened ? e->begin <= e[-1].begin && e->end >= e[-1].end
                                       : e->begin >= e[-1].end),
                   "event %d: %s at %g to %g, the one before to %g", i, zero_event_name(e->kind),
                   e->begin, e->end, e[-1].end);
        sent += e->sent;
    }
    test_check(sent == counted, "%d bytes sent, counted %d", (int)sent, (int)counted);
}

static void groups_body(test_rank *rank) {
    trace_seen *seen = &((trace_run *)rank->arg)->seen[rank->rank];
    const int me = rank->rank, silent = me == 1; /* a rank may record nothing */
    const zero_comm comm = test_comm(rank);
    float a[2000] = {0}, b[2000] = {0};
    const zero_message both[2] = {{!me, 1, a, me ? 80u : 24u}, {!me, 0, b, me ? 24u : 80u}};
    zero_group *g = NULL, *part = NULL;
    zero_group_stats stats, of_part;
    zero_stats of_context;
    zero_ctx *z = NULL;
    zero_config cfg;
    memset(&cfg, 0, sizeof cfg);
    if (!silent) cfg.trace = trace_take;
    cfg.trace_user = seen;
    zero_result r = zero_group_open(&g, &comm, NULL, 30);
    const zero_comm own = zero_group_comm(g);
    if (!r) r = zero_create(&z, &cfg, &own);
    if (!r) r = zero_tensor(z, &trace_tensors[0]);
    test_check(zero_group_trace(g, z, 0) == ZERO_ERR_ARGUMENT
                   && strstr(zero_group_error(g), "is not built"),
               "too early: %s", zero_group_error(g));
    if (!r) r = zero_build(z);
    test_check(zero_group_trace(g, z, 8) == ZERO_ERR_ARGUMENT
                   && strstr(zero_group_error(g), "lane is 8, expected 0..7"),
               "no lane: %s", zero_group_error(g));
    if (!r) r = zero_group_trace(g, z, 5);
    if (!r) r = zero_group_trace(g, z, 3); /* the later counts */
    if (!r) r = zero_group_all_reduce(g, a, 1000, ZERO_F32, ZERO_SUM);
    if (!r) r = zero_group_reduce_scatter(g, a, b, 100, ZERO_F32, ZERO_SUM);
    if (!r) r = zero_group_all_gather(g, a, b, 240);
    if (!r) r = zero_group_all_to_all(g, a, b, 320);
    if (!r) r = zero_group_broadcast(g, a, 40, 1);
    if (!r) r = zero_group_send_receive(g, both, 2);
    if (!r) r = zero_group_barrier(g);
    if (!r) r = zero_group_split(g, 0, 0, &part);
    if (!r) r = zero_group_trace(part, z, 6);
    if (!r) r = zero_group_all_gather(part, a, b, 24);
    if (!r) r = zero_group_trace(part, NULL, 0);
    zero_group_query_stats(g, &stats);
    zero_group_query_stats(part, &of_part);
    if (!r) r = zero_group_trace(g, NULL, 0);
    if (!r) r = zero_group_all_gather(g, a, b, 240);
    if (!r) r = zero_group_trace(g, z, 0);
    if (!r) r = zero_query_stats(z, &of_context);
    if (r) test_rank_fail(rank, "%d: %s %s", (int)r, zero_group_error(g), zero_last_error(z));
    if (silent)
        test_check(seen->n == 0, "rank %d: %d events", me, seen->n);
    else
        groups_check(seen, me, stats.sent_bytes + of_part.sent_bytes);
    zero_destroy(z);
    r = zero_group_all_gather(g, a, b, 240); /* goes on without */
    if (r) test_rank_fail(rank, "behind the context: %s", zero_group_error(g));
    zero_group_close(part);
    zero_group_close(g);
}

static void test_groups(void) {
    static trace_run run;
    trace_open(&run, 0, 0, 1);
    test_check(test_ranks(TRACE_RANKS, 0, groups_body, &run), "groups: %s", test_first);
    trace_close(&run);
}

/* A context that ends inside a pass passes on what ran in it: a unit's forward that did not end,
   and what came after its begin. */
static void unfinished_body(test_rank *rank) {
    trace_run *run = (trace_run *)rank->arg;
    host_spec s = run->spec;
    host_run h;
    s.cfg.trace = trace_take;
    s.cfg.trace_user = &run->seen[rank->rank];
    if (host_open(&h, &s, rank)
        && (zero_pass_begin(h.z, ZERO_TRAIN, 0, 1) || zero_forward_begin(h.z, 0, &h.params)
            || !host_forward(&h, 1) || zero_backward_begin(h.z, 2, &h.params, &h.grads)))
        test_rank_fail(rank, "%s", zero_last_error(h.z));
    zero_destroy(h.z);
}

static void test_unfinished(void) {
    for (int i = 0; i < 4; i++) {
        trace_run run;
        trace_open(&run, i, i % 2, 1);
        test_check(test_ranks(TRACE_RANKS, 0, unfinished_body, &run), "unfinished: %s", test_first);
        for (int r = 0; r < TRACE_RANKS; r++) {
            const zero_event *of[3] = {NULL, NULL, NULL};
            for (int k = 0; k < run.seen[r].n; k++) {
                const zero_event *e = &run.seen[r].event[k];
                const int forward = e->kind == ZERO_EVENT_FORWARD && e->unit < 2;
                if (forward || (e->kind == ZERO_EVENT_BACKWARD && e->unit == 2)) of[e->unit] = e;
            }
            test_check(of[0] && of[1] && of[2] && of[0]->begin <= of[1]->begin
                           && of[1]->end <= of[2]->begin && of[2]->begin <= of[2]->end
                           && of[2]->begin <= of[0]->end,
                       "stage %d, rank %d: forward of unit 0 %d, of unit 1 %d, backward of unit 2 "
                       "%d, or their times are wrong",
                       i, r, of[0] != NULL, of[1] != NULL, of[2] != NULL);
        }
        trace_close(&run);
    }
}

static void test_names(void) {
    for (int i = 0; i < ZERO_EVENT_KINDS; i++)
        test_check(zero_event_name((zero_event_kind)i)[0] != 'n' || i == ZERO_EVENT_NORM, "name %d",
                   i);
    test_check(!strcmp(zero_event_name(ZERO_EVENT_KINDS), "no such event"), "no name");
}

/* A refused lane does not revive a group that has failed. */
static void test_failed_group(void) {
    const zero_comm unknown = {(zero_comm_kind)99, 0, NULL, 0};
    zero_group *g = NULL;
    float a[8] = {0};
    test_check(zero_group_open(&g, &unknown, NULL, 0) == ZERO_ERR_UNSUPPORTED && g,
               "a kind that does not exist");
    test_check(zero_group_trace(g, NULL, 8) == ZERO_ERR_UNSUPPORTED, "a failed group is traced: %s",
               zero_group_error(g));
    test_check(zero_group_all_reduce(g, a, 8, ZERO_F32, ZERO_SUM) == ZERO_ERR_UNSUPPORTED,
               "a failed group sums: %s", zero_group_error(g));
    zero_group_close(g);
}

int main(void) {
    test_names();
    test_failed_group();
    test_stages();
    test_file();
    test_packed();
    test_given();
    test_delayed();
    test_flood();
    test_groups();
    test_unfinished();
    test_check(trace_flows > 0, "no wait says what it is for");
    return test_summary();
}

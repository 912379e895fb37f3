/* test_observe.c - what a run shows of itself: the arithmetic on events, and the files, read back.
     test_observe                              the parts by themselves
     test_observe trace FILE RANKS STEPS MICRO LAYERS    a trainer's timeline
     test_observe clocks FILE OTHER S           of rank 0 and rank 1, whose clock is S seconds ahead
     test_observe killed FILE                  the same of a run that was killed
     test_observe layout FILE RANKS            of ranks that have parts of a model, or experts
     test_observe events FILE                  prints an event file: X TAG VALUE a line
   The last line of all but `events`: N passed, N failed. */
#include "../../adapters/gpt2/experts.h"
#include "../../adapters/report/breakdown.h"
#include "../../adapters/report/clocks.h"
#include "../../adapters/report/comms_table.h"
#include "../../adapters/report/flops_table.h"
#include "../../adapters/report/scalars.h"
#include "../../adapters/report/trace.h"
#include "../shared/harness.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <glob.h>
#include <math.h>
#include <sys/stat.h>

static char folder[64];
static char why[512];

static const char *in_folder(const char *name) {
    static char path[2][160];
    static int turn;
    turn = !turn;
    snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    return path[turn];
}

static char *read_all(const char *path, size_t *length) {
    FILE *file = fopen(path, "rb");
    char *text = (char *)malloc(1 << 26);
    *length = 0;
    if (file == NULL || text == NULL) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        exit(1);
    }
    *length = fread(text, 1, (1 << 26) - 4, file);
    text[*length] = 0;
    fclose(file);
    return text;
}

/* ---- timelines ----------------------------------------------------------------------------- */

typedef struct slice {
    int pid, tid, at; /* place in the file */
    int64_t begin, end;
} slice;

static const char *text_of(const cJSON *e, const char *key) {
    const char *s = cJSON_GetStringValue(cJSON_GetObjectItem(e, key));
    return s != NULL ? s : "";
}
static double number_of(const cJSON *e, const char *key) {
    const cJSON *n = cJSON_GetObjectItem(e, key);
    return cJSON_IsNumber(n) ? n->valuedouble : NAN;
}
static double arg_of(const cJSON *e, const char *key) {
    return number_of(cJSON_GetObjectItem(e, "args"), key);
}
static int64_t ns_of(const cJSON *e, const char *key) { return llround(number_of(e, key) * 1e3); }
static int is(const cJSON *e, const char *ph) { return !strcmp(text_of(e, "ph"), ph); }

static int slice_order(const void *a_, const void *b_) {
    const slice *a = (const slice *)a_, *b = (const slice *)b_;
    if (a->pid != b->pid) return a->pid - b->pid;
    if (a->tid != b->tid) return a->tid - b->tid;
    if (a->begin != b->begin) return a->begin < b->begin ? -1 : 1;
    return a->end > b->end ? -1 : a->end < b->end;
}

/* All slices, by process, thread and begin. */
static slice *slices_of(const cJSON *root, int *n) {
    slice *all = (slice *)calloc((size_t)cJSON_GetArraySize(root) + 1, sizeof *all);
    const cJSON *e;
    int at = 0;
    *n = 0;
    cJSON_ArrayForEach(e, root) {
        if (!is(e, "X")) continue;
        slice *s = &all[(*n)++];
        s->pid = (int)number_of(e, "pid");
        s->tid = (int)number_of(e, "tid");
        s->begin = ns_of(e, "ts");
        s->end = s->begin + ns_of(e, "dur");
        s->at = at++;
    }
    qsort(all, (size_t)*n, sizeof *all, slice_order);
    return all;
}

static void check_slices(const slice *s, int n) {
    int64_t ends[64];
    int depth = 0, nests = 1, ordered = 1;
    for (int i = 0; i < n; i++) {
        const int same = i && s[i].pid == s[i - 1].pid && s[i].tid == s[i - 1].tid;
        if (!same) depth = 0;
        while (depth && ends[depth - 1] <= s[i].begin) depth--;
        nests &= s[i].end >= s[i].begin && s[i].begin >= 0;
        nests &= !depth || s[i].end <= ends[depth - 1];
        /* of threads that are no lane of a file, nor the host's, whose slices are told at their end
         */
        ordered &=
            !same || s[i].tid % 256 > 4 || s[i].begin == s[i - 1].begin || s[i].at > s[i - 1].at;
        if (depth < 64) ends[depth++] = s[i].end;
    }
    test_check(nests, "slices of each track nest");
    test_check(ordered, "slices of each track are in order");
}

/* Every arrow has both ends, each within a slice of its thread. */
static void check_arrows(const cJSON *root, const slice *s, int n, int least) {
    const cJSON *e, *other;
    int arrows = 0, whole = 0, inside = 1;
    cJSON_ArrayForEach(e, root) {
        if (!is(e, "s") && !is(e, "f")) continue;
        int within = 0;
        for (int i = 0; i < n && !within; i++)
            within = s[i].pid == (int)number_of(e, "pid") && s[i].tid == (int)number_of(e, "tid")
                     && s[i].begin <= ns_of(e, "ts") && ns_of(e, "ts") <= s[i].end + 1;
        inside &= within;
        if (!is(e, "s")) continue;
        arrows++;
        other = e->next; /* they are written together */
        whole += is(other, "f") && number_of(other, "id") == number_of(e, "id")
                 && !strcmp(text_of(other, "name"), text_of(e, "name"))
                 && ns_of(other, "ts") >= ns_of(e, "ts") && !strcmp(text_of(other, "bp"), "e");
    }
    test_check(arrows >= least && whole == arrows, "%d of %d arrows are whole", whole, arrows);
    test_check(inside, "arrows begin and end in slices");
}

static int count(const cJSON *root, int pid, const char *category, const char *name, int step) {
    const cJSON *e;
    int n = 0;
    cJSON_ArrayForEach(e, root) {
        const double units = arg_of(e, "units");
        if (!is(e, "X") || (int)number_of(e, "pid") != pid) continue;
        if (category && strcmp(text_of(e, "cat"), category) != 0) continue;
        if (name && strcmp(text_of(e, "name"), name) != 0) continue;
        if (step >= 0 && (int)arg_of(e, "step") != step) continue;
        n += isnan(units) ? 1 : (int)units;
    }
    return n;
}
static int counters(const cJSON *root, const char *name) {
    const cJSON *e;
    int n = 0;
    cJSON_ArrayForEach(e, root) n +=
        is(e, "C") && !strcmp(text_of(e, "name"), name) && isfinite(arg_of(e, name));
    return n;
}

static void check_trace(const char *path, int ranks, int steps, int micro, int layers) {
    size_t length;
    char *text = read_all(path, &length);
    cJSON *root = cJSON_Parse(text);
    int n = 0;
    if (!test_check(cJSON_IsArray(root), "%s: no JSON array", path)) return;
    const struct {
        const char *category, *name;
        int in_step;
    } expected[] = {
        {"forward", NULL, micro * (layers + 3)},
        {"forward", "forward 1", micro},
        {"backward", NULL, micro * (layers + 3)},
        {"backward", "backward 1", micro},
        {"gather", NULL, layers + 2},
        {"agree", NULL, 1},
        {"update", NULL, layers + 2},
        {"host", "step", 1},
        {"host", "data", micro},
        {"host", "loss", 1},
    };
    for (int pid = 0; pid < ranks; pid++)
        for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
            for (int step = 0; step < steps; step++) {
                const int found = count(root, pid, expected[i].category, expected[i].name, step);
                if (!test_check(found == expected[i].in_step,
                                "rank %d, step %d: %d of %s %s, expected %d", pid, step, found,
                                expected[i].category, expected[i].name ? expected[i].name : "",
                                expected[i].in_step))
                    return;
            }
    for (int pid = 0; pid < ranks; pid++) {
        const int found = count(root, pid, "reduction", NULL, -1);
        test_check(found == steps * (layers + 2) || found == steps * micro * (layers + 2),
                   "%d reductions", found);
    }
    test_check(counters(root, "loss") == steps && counters(root, "norm") == steps
                   && counters(root, "loss scale") == steps
                   && counters(root, "memory MiB") == steps * ranks,
               "counters");
    slice *s = slices_of(root, &n);
    check_slices(s, n);
    check_arrows(root, s, n, 0);
    free(s);
    cJSON_Delete(root);
    free(text);
}

/* Contexts that shard over a part of the ranks each: slices of every rank, which nest in order, and
   arrows of which each has an id of its own. */
static void check_layout(const char *path, int ranks) {
    size_t length;
    char *text = read_all(path, &length);
    cJSON *root = cJSON_Parse(text);
    const cJSON *a, *b;
    int n = 0, shared = 0;
    if (!test_check(cJSON_IsArray(root), "%s: no JSON array", path)) return;
    for (int pid = 0; pid < ranks; pid++)
        test_check(count(root, pid, "forward", NULL, -1) > 0
                       && count(root, pid, "update", NULL, -1) > 0,
                   "slices of rank %d", pid);
    cJSON_ArrayForEach(a, root) {
        if (!is(a, "s")) continue;
        for (b = a->next; b != NULL; b = b->next)
            shared += is(b, "s") && number_of(a, "id") == number_of(b, "id");
    }
    test_check(!shared, "%d arrows have the id of another one", shared);
    slice *s = slices_of(root, &n);
    check_slices(s, n);
    check_arrows(root, s, n, 1);
    free(s);
    cJSON_Delete(root);
    free(text);
}

/* The file as JSON: what lacks its end has one. */
static cJSON *read_open(const char *path) {
    size_t length;
    char *text = read_all(path, &length);
    cJSON *root = cJSON_Parse(text);
    char *end = strrchr(text, ',');
    if (root == NULL && end != NULL) {
        strcpy(end, "]");
        root = cJSON_Parse(text);
    }
    free(text);
    return root;
}
static double clock_of(const cJSON *root, const char *key) {
    const cJSON *e;
    cJSON_ArrayForEach(e, root) if (!strcmp(text_of(e, "name"), "process_name")) return 1e-9
        * arg_of(e, key);
    return NAN;
}
/* The k-th slice of a name, of a step; -1: there is none. */
static int64_t edge_of(const cJSON *root, const char *name, int step, int ends) {
    const cJSON *e;
    cJSON_ArrayForEach(e, root) if (is(e, "X") && !strcmp(text_of(e, "name"), name)
                                    && (int)arg_of(e, "step") == step) return ns_of(e, "ts")
        + ends * ns_of(e, "dur");
    return -1;
}

/* Two ranks with clocks of their own: the difference is found, within what is promised; and what
   nobody ends before all have begun, an agreement, lies so on the common clock. */
static void check_clocks(const char *path, const char *other, double ahead) {
    cJSON *root[2] = {read_open(path), read_open(other)};
    const double within = clock_of(root[1], "within_ns");
    const double found = clock_of(root[1], "origin_ns") - clock_of(root[0], "origin_ns");
    int met = 0, steps = 0;
    for (int step = 0; step < 20; step++) {
        int64_t begin[2], end[2];
        for (int r = 0; r < 2; r++) begin[r] = edge_of(root[r], "agree", step, 0);
        for (int r = 0; r < 2; r++) end[r] = edge_of(root[r], "agree", step, 1);
        if (begin[0] < 0 || begin[1] < 0) continue;
        steps++;
        met += (double)(begin[0] - end[1]) * 1e-9 <= within
               && (double)(begin[1] - end[0]) * 1e-9 <= within;
    }
    test_check(fabs(found - ahead) <= within + 1e-8, "%.9f s ahead, within %.9f, of %.9f", found,
               within, ahead);
    test_check(within > 0 && within < 0.1, "within %g s", within);
    test_check(steps > 10 && met == steps, "%d of %d agreements overlap", met, steps);
    for (int r = 0; r < 2; r++) cJSON_Delete(root[r]);
}

/* Any clocks, any delays: the truth lies within, and meetings only narrow it. */
static void test_clocks(void) {
    test_random r = {21};
    int good = 0;
    for (int round = 0; round < 500; round++) {
        const double ahead = (test_below(&r, 2000001) - 1000000) * 1e-2;
        double now = test_below(&r, 1000000), least = 1;
        clocks c;
        int ok = 1;
        clocks_open(&c);
        for (int i = 0; i < 16; i++) {
            const double before = now, delay = 1e-6 * (1 + test_below(&r, 1000));
            const double zero = before + 1e-6 * test_below(&r, 1000), behind = zero + delay;
            clocks_meet(&c, before + ahead, zero, behind + ahead);
            least = fmin(least, behind - before);
            ok &= fabs(clocks_ahead(&c) - ahead) <= clocks_within(&c) + 1e-9;
            now = behind + 1e-6 * test_below(&r, 100);
        }
        good += ok && clocks_within(&c) <= least / 2 + 1e-9;
    }
    test_check(good == 500, "%d of 500 clocks", good);
    test_check(clocks_identity() != 0 && clocks_identity() == clocks_identity(), "this machine's");
}

/* As viewers read it: what lacks its end, or half a line, is cut. */
static void check_killed(const char *path) {
    size_t length;
    int n = 0;
    char *text = read_all(path, &length);
    test_check(length > 2 && text[length - 2] != ']', "%s: it was not killed", path);
    char *end = strrchr(text, '\n');
    test_check(end != NULL && end[1] == 0, "%s ends with half a line", path);
    if (end == NULL || end == text) return;
    while (end > text && *end != ',') end--;
    strcpy(end, "]");
    cJSON *root = cJSON_Parse(text);
    test_check(cJSON_IsArray(root) && count(root, 0, "forward", NULL, -1) > 0
                   && count(root, 1, "backward", NULL, -1) > 0,
               "%s: no JSON array with slices of both ranks", path);
    slice *s = slices_of(root, &n);
    check_slices(s, n);
    free(s);
    cJSON_Delete(root);
    free(text);
}

static zero_event event_of(zero_event_kind kind, int track, int unit, double begin, double end) {
    static uint64_t number;
    zero_event e;
    memset(&e, 0, sizeof e);
    e.kind = e.cause = kind;
    e.track = track;
    e.unit = unit;
    e.units = 1;
    e.begin = begin;
    e.end = end;
    e.number = (uint64_t)1 << 40 | ++number;
    return e;
}

static void test_trace(void) {
    const trace_clock clock = {100, 0, 0};
    size_t length;
    int n = 0;
    const char *path = in_folder("t.json");
    trace *t = trace_open(path, 0, &clock, why, sizeof why);
    zero_event e[5] = {event_of(ZERO_EVENT_FORWARD, 0, 0, 100.001, 100.004),
                       event_of(ZERO_EVENT_FORWARD, 0, 1, 100.002, 100.005), /* does not nest */
                       event_of(ZERO_EVENT_GATHER, 2, 3, 100.001, 100.003),
                       event_of(ZERO_EVENT_WAIT, 0, 3, 100.006, 100.007),
                       event_of(ZERO_EVENT_LOST, 0, -1, 100.008, 100.008)};
    if (!test_check(t != NULL, "%s", why)) return;
    e[3].cause = ZERO_EVENT_GATHER;
    e[3].flow = e[2].number;
    e[4].bytes = 7;
    trace_events(t, 0, e, 5);
    trace_slice(t, "step", 0, 100, 100.01);
    trace_counter(t, "loss", 100.01, 2.5);
    trace_counter(t, "loss", 100.02, NAN); /* JSON has none */
    test_check(!trace_close(t, 1, why, sizeof why), "%s", why);
    char *text = read_all(path, &length);
    cJSON *root = cJSON_Parse(text);
    slice *s = slices_of(root, &n);
    test_check(n == 5 && counters(root, "loss") == 1, "%d slices", n);
    check_slices(s, n);
    check_arrows(root, s, n, 1);
    test_check(strstr(text, "\"ts\":1000.000,\"dur\":3000.000") != NULL, "microseconds");
    test_check(strstr(text, "\"name\":\"wait for gather 3\"") != NULL, "a name");
    test_check(strstr(text, "\"tid\":320,\"args\":{\"name\":\"compute, overlapping\"}") != NULL,
               "what does not nest has a track of its own");
    test_check(strstr(text, "{\"events\":7}") != NULL, "lost events");
    free(s);
    cJSON_Delete(root);
    free(text);
    test_check(trace_open(in_folder("no/t.json"), 0, &clock, why, sizeof why) == NULL
                   && strstr(why, "-tr: ") && strstr(why, "cannot be written: No such file"),
               "%s", why);
    t = trace_open("/dev/full", 0, &clock, why, sizeof why);
    if (t == NULL) return;
    trace_slice(t, "step", 0, 100, 101);
    test_check(trace_flush(t, why, sizeof why) && strstr(why, "cannot be written any more"), "%s",
               why);
    trace_slice(t, "step", 1, 101, 102);
    test_check(!trace_close(t, 1, why, sizeof why), "it is told once");
}

/* Two ranks that are the first of what they shard over, and contexts of experts: all count alike.
 */
static void test_trace_contexts(void) {
    const trace_clock clock = {100, 0, 0};
    const char *path = in_folder("c.json");
    trace *t[2];
    zero_event e[4] = {event_of(ZERO_EVENT_FORWARD, 0, 1, 100.001, 100.004),
                       event_of(ZERO_EVENT_GATHER, 2, 1, 100.002, 100.006),
                       event_of(ZERO_EVENT_WAIT, 0, 1, 100.005, 100.006),
                       event_of(ZERO_EVENT_UPDATE, 0, 1, 100.007, 100.008)};
    e[2].cause = ZERO_EVENT_GATHER;
    e[2].flow = e[1].number;
    for (int r = 0; r < 2; r++) {
        t[r] = trace_open(path, r, &clock, why, sizeof why);
        if (!test_check(t[r] != NULL, "%s", why)) return;
    }
    for (int theirs = 0; theirs < 2; theirs++) {
        for (int r = 0; r < 2; r++) trace_events(t[r], theirs, e, 4);
        for (int i = 0; i < 4; i++) e[i].begin -= 0.0005, e[i].number |= (uint64_t)1 << 39;
        e[2].flow |= (uint64_t)1 << 39; /* and these are told later */
    }
    for (int r = 1; r >= 0; r--) test_check(!trace_close(t[r], r == 0, why, sizeof why), "%s", why);
    check_layout(path, 2);
    size_t length;
    char *text = read_all(path, &length);
    test_check(strstr(text, "\"tid\":640,\"args\":{\"name\":\"experts: compute\"}") != NULL,
               "experts have tracks of their own");
    test_check(strstr(text, "overlapping") == NULL, "what nests on its track stays there");
    free(text);
}

/* ---- where time goes ----------------------------------------------------------------------- */

static int near(double a, double b) { return fabs(a - b) < 1e-9; }

static void test_breakdown(void) {
    static breakdown b;
    breakdown_step s;
    zero_event e[] = {event_of(ZERO_EVENT_FORWARD, 0, 0, 10.1, 10.4),
                      event_of(ZERO_EVENT_WAIT, 0, 1, 10.2, 10.3),
                      event_of(ZERO_EVENT_BACKWARD, 0, 0, 10.5, 10.7),
                      event_of(ZERO_EVENT_REDUCTION, 1, 0, 10.5, 10.9), /* beside it: not exposed */
                      event_of(ZERO_EVENT_UPDATE, 0, 0, 10.95, 11.2),   /* into the next step */
                      event_of(ZERO_EVENT_ALL_REDUCE, ZERO_TRACK_GROUP, -1, 10.6, 10.65),
                      event_of(ZERO_EVENT_BARRIER, ZERO_TRACK_GROUPS - 1, -1, 10.72, 10.8),
                      event_of(ZERO_EVENT_MESSAGES, ZERO_TRACK_GROUP + 1, -1, 10.02, 10.15),
                      event_of(ZERO_EVENT_MESSAGES, ZERO_TRACK_GROUP + 1, -1, 10.35, 10.45),
                      event_of(ZERO_EVENT_FORWARD, 0, 0, 11.3, 11.4)};
    e[1].cause = ZERO_EVENT_GATHER;
    memset(&b, 0, sizeof b);
    breakdown_set_overlapped(&b, 1);
    breakdown_trainer(&b, BREAKDOWN_DATA, 10.0, 10.05);
    breakdown_trainer(&b, BREAKDOWN_HOST, 10.4, 10.6); /* behind the backward where both are */
    breakdown_mark(&b, 4, 10, 11);
    breakdown_events(&b, e, 9);
    test_check(!breakdown_take(&b, 0, &s), "a step is complete once something behind it is seen");
    breakdown_events(&b, e + 9, 1);
    test_check(breakdown_take(&b, 0, &s) && s.step == 4, "then it is");
    test_check(
        near(s.seconds[BREAKDOWN_FORWARD], 0.2) && near(s.seconds[BREAKDOWN_GATHER], 0.1)
            && near(s.seconds[BREAKDOWN_BACKWARD], 0.15)
            && near(s.seconds[BREAKDOWN_UPDATE], 0.05)
            /* within the backward; between units; beside, where nothing is computed or read */
            && near(s.seconds[BREAKDOWN_GROUPS], 0.05 + 0.08 + 0.1)
            && near(s.seconds[BREAKDOWN_DATA], 0.05) && near(s.seconds[BREAKDOWN_HOST], 0.05)
            && near(s.seconds[BREAKDOWN_IDLE], 0.17) && near(s.seconds[BREAKDOWN_REDUCTION], 0),
        "forward %g gather %g groups %g backward %g update %g data %g host %g idle %g",
        s.seconds[0], s.seconds[BREAKDOWN_GATHER], s.seconds[BREAKDOWN_GROUPS], s.seconds[1],
        s.seconds[BREAKDOWN_UPDATE], s.seconds[BREAKDOWN_DATA], s.seconds[BREAKDOWN_HOST],
        s.seconds[BREAKDOWN_IDLE]);
    breakdown_mark(&b, 5, 11, 12);
    test_check(breakdown_take(&b, 1, &s) && near(s.seconds[BREAKDOWN_UPDATE], 0.2)
                   && near(s.seconds[BREAKDOWN_FORWARD], 0.1) && !breakdown_take(&b, 1, &s),
               "the next step has the rest");
}

/* Whatever slices there are, and however they lie: the kinds add up to the step. */
static void test_breakdown_adds_up(void) {
    static breakdown b;
    test_random r = {9};
    int good = 0;
    for (int round = 0; round < 200; round++) {
        memset(&b, 0, sizeof b);
        for (int step = 0; step < 3; step++) {
            for (int i = test_below(&r, 40); i > 0; i--) {
                const double begin = step + test_below(&r, 1100) * 1e-3;
                const double end = begin + test_below(&r, 400) * 1e-3;
                const int track = test_below(&r, 4) ? 0 : ZERO_TRACK_GROUP + test_below(&r, 8);
                const zero_event e = event_of((zero_event_kind)test_below(&r, ZERO_EVENT_LOST),
                                              track, 0, begin, end);
                if (i % 3)
                    breakdown_events(&b, &e, 1);
                else
                    breakdown_trainer(&b, (breakdown_kind)test_below(&r, BREAKDOWN_IDLE), begin,
                                      end);
            }
            breakdown_mark(&b, step, step, step + 0.9);
        }
        breakdown_step s;
        int ok = 1;
        while (breakdown_take(&b, 1, &s)) {
            double sum = 0;
            for (int k = 0; k < BREAKDOWN_KINDS; k++) sum += s.seconds[k];
            for (int k = 0; k < BREAKDOWN_KINDS; k++) ok &= s.seconds[k] >= 0;
            ok &= near(sum, 0.9);
        }
        good += ok;
    }
    test_check(good == 200, "%d of 200 add up", good);
}

/* ---- tables -------------------------------------------------------------------------------- */

static void test_comms(void) {
    static comms_table t;
    memset(&t, 0, sizeof t);
    for (int i = 1; i <= 100; i++) { /* 1 to 100 ms, shuffled */
        zero_event e = event_of(ZERO_EVENT_GATHER, 2, 1, 5, 5 + (i * 37 % 101) * 1e-3);
        e.bytes = 8000000;
        e.ranks = 4;
        comms_events(&t, &e, 1);
        e.bytes = 4;
        comms_events(&t, &e, 1);
        e.kind = ZERO_EVENT_FORWARD;
        e.ranks = 0;
        comms_events(&t, &e, 1);
    }
    test_check(t.n == 2 && t.row[0].bytes == 4 && t.row[1].count == 100, "%d rows", t.n);
    const comms_figures f = comms_compute_figures(&t.row[1]);
    test_check(near(f.mean_ms, 50.5) && near(f.p50_ms, 50) && near(f.p99_ms, 99),
               "mean %g, p50 %g, p99 %g", f.mean_ms, f.p50_ms, f.p99_ms);
    test_check(near(f.algbw, 8e6 / 50.5e-3 * 1e-9) && near(f.busbw, f.algbw * 3 / 4),
               "algbw %g, busbw %g", f.algbw, f.busbw);
    static const struct {
        zero_event_kind kind;
        double factor;
    } kinds[] = {{ZERO_EVENT_ALL_REDUCE, 1.5},
                 {ZERO_EVENT_ALL_TO_ALL, 0.75},
                 {ZERO_EVENT_BROADCAST, 1},
                 {ZERO_EVENT_MESSAGES, 1}};
    for (int i = 0; i < 4; i++) {
        comms_row row = t.row[1];
        row.kind = kinds[i].kind;
        const comms_figures g = comms_compute_figures(&row);
        test_check(near(g.busbw, g.algbw * kinds[i].factor), "%s: busbw %g of algbw %g",
                   zero_event_name(row.kind), g.busbw, g.algbw);
    }
    t.row[1].ranks = 1;
    test_check(near(comms_compute_figures(&t.row[1]).busbw, 0), "one rank sends nothing");
}

/* The kinds add up to what the trainer's share is made of, but for vectors. */
static void test_flops(void) {
    const char *const models[] = {"char:4x128x4", "d12", "gpt3:c768"};
    for (int i = 0; i < 6;
         i++) { /* the second three with experts, of which a token asks one or two */
        const gpt2_moe moe = {8, 1 + i % 2, 1, 0.01f};
        gpt2_config m;
        gpt2_error error;
        if (!test_check(!gpt2_config_parse(models[i % 3], 0, 64, &m, &error), "%s", error.sentence))
            return;
        if (i >= 3) m.moe = moe;
        const double biases = 5.0 * experts_layers(&m); /* experts' are not counted */
        const double vectors = 6.0 * (13.0 * m.layers + 2 - biases) * m.channels;
        const double kinds = 3 * flops_forward(&m, 64), all = gpt2_flops_per_token(&m, 64);
        test_check(fabs(kinds + vectors - all) < 1e-6 * all, "%s: %g and %g, together %g",
                   models[i % 3], kinds, vectors, all);
    }
}

/* ---- figures ------------------------------------------------------------------------------- */

static uint64_t take_varint(const unsigned char **p, const unsigned char *end) {
    uint64_t value = 0;
    for (int shift = 0; *p < end; shift += 7) {
        value |= (uint64_t)(**p & 127) << shift;
        if (!(*(*p)++ & 128)) return value;
    }
    return UINT64_MAX;
}
static uint64_t take_fixed(const unsigned char *p, int bytes) {
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++) value |= (uint64_t)p[i] << (8 * i);
    return value;
}
static uint32_t masked(const unsigned char *p, size_t n) {
    const uint32_t crc = scalars_crc(p, n);
    return (crc >> 15 | crc << 17) + 0xA282EAD8u;
}

/* One Summary.Value: exactly a tag and a simple_value. */
static int value_ok(const unsigned char *p, const unsigned char *end, long long x, FILE *out) {
    if (p == end || *p++ != 10) return 0;
    const uint64_t n = take_varint(&p, end);
    if (n > (uint64_t)(end - p)) return 0;
    const char *tag = (const char *)p;
    p += n;
    if (end - p != 5 || *p++ != 21) return 0;
    const uint32_t bits = (uint32_t)take_fixed(p, 4);
    float value;
    memcpy(&value, &bits, sizeof value);
    if (out) fprintf(out, "%lld %.*s %.9g\n", x, (int)n, tag, (double)value);
    return 1;
}

/* Event: wall_time, step, then file_version or summary, and nothing else. */
static int event_ok(const unsigned char *p, const unsigned char *end, int first, FILE *out) {
    if (end - p < 10 || *p++ != 9) return 0;
    p += 8;
    if (*p++ != 16) return 0;
    const long long x = (long long)take_varint(&p, end);
    if (p == end) return 0;
    if (first)
        return *p++ == 26 && take_varint(&p, end) == 13 && end - p == 13
               && !memcmp(p, "brain.Event:2", 13);
    if (*p++ != 42 || take_varint(&p, end) != (uint64_t)(end - p)) return 0;
    while (p < end) {
        if (*p++ != 10) return 0;
        const uint64_t n = take_varint(&p, end);
        if (n > (uint64_t)(end - p) || !value_ok(p, p + n, x, out)) return 0;
        p += n;
    }
    return 1;
}

/* Records, or -1. */
static int events_read(const char *path, FILE *out) {
    size_t length;
    char *text = read_all(path, &length);
    const unsigned char *p = (const unsigned char *)text, *end = p + length;
    int n = 0;
    for (; p < end; n++) {
        if (end - p < 16) return -1;
        const uint64_t bytes = take_fixed(p, 8);
        if (take_fixed(p + 8, 4) != masked(p, 8) || bytes > (uint64_t)(end - p) - 16) return -1;
        if (take_fixed(p + 12 + bytes, 4) != masked(p + 12, bytes)) return -1;
        if (!event_ok(p + 12, p + 12 + bytes, n == 0, out)) return -1;
        p += bytes + 16;
    }
    free(text);
    return n;
}

static void test_scalars(void) {
    char pattern[160], text[256] = "";
    const scalar values[] = {{"Train/Samples/train_loss", 2.5}, {"Train/Samples/lr", 1e-3}};
    glob_t found;
    size_t length;
    test_check(scalars_crc("123456789", 9) == 0xE3069283u, "CRC-32C");
    const char *board = in_folder("a/b"), *csv = in_folder("csv/run");
    snprintf(pattern, sizeof pattern, "%s/events.out.tfevents.*", board);
    scalars *s = scalars_open(board, csv, why, sizeof why);
    if (!test_check(s != NULL, "%s", why)) return;
    for (int i = 1; i <= 300; i++)
        if (scalars_put(s, i * 100, values, 2, why, sizeof why)) test_check(0, "%s", why);
    scalars_close(s);
    test_check(!glob(pattern, 0, NULL, &found) && found.gl_pathc == 1, "one file");
    test_check(events_read(found.gl_pathv[0], NULL) == 301, "301 records");
    globfree(&found);
    char *lines = read_all(in_folder("csv/run/Train_Samples_train_loss.csv"), &length);
    snprintf(text, sizeof text, "%.40s", lines);
    test_check(!strncmp(text, "step,train_loss\n100,2.5\n200,2.5\n", 31), "%s", text);
    free(lines);
    s = scalars_open("", csv, why, sizeof why); /* a run that goes on */
    (void)scalars_put(s, 30100, values, 2, why, sizeof why);
    scalars_close(s);
    lines = read_all(in_folder("csv/run/Train_Samples_train_loss.csv"), &length);
    test_check(strstr(lines, "30000,2.5\n30100,2.5\n") && !strstr(lines + 1, "step"), "it appends");
    free(lines);
    test_check(!scalars_open("/proc/none", "", why, sizeof why) && strstr(why, "-tbd: "), "%s",
               why);
    test_check(!scalars_open("", "/proc/none", why, sizeof why) && strstr(why, "-tcd: "), "%s",
               why);
}

int main(int argc, char **argv) {
    if (argc == 7 && !strcmp(argv[1], "trace")) {
        check_trace(argv[2], atoi(argv[3]), atoi(argv[4]), atoi(argv[5]), atoi(argv[6]));
        return test_summary();
    }
    if (argc == 5 && !strcmp(argv[1], "clocks")) {
        check_clocks(argv[2], argv[3], atof(argv[4]));
        return test_summary();
    }
    if (argc == 3 && !strcmp(argv[1], "killed")) {
        check_killed(argv[2]);
        return test_summary();
    }
    if (argc == 4 && !strcmp(argv[1], "layout")) {
        check_layout(argv[2], atoi(argv[3]));
        return test_summary();
    }
    if (argc == 3 && !strcmp(argv[1], "events")) return events_read(argv[2], stdout) < 1;
    snprintf(folder, sizeof folder, "/tmp/test_observe.XXXXXX");
    if (mkdtemp(folder) == NULL) return 1;
    test_trace();
    test_trace_contexts();
    test_clocks();
    test_breakdown();
    test_breakdown_adds_up();
    test_comms();
    test_flops();
    test_scalars();
    char command[96];
    snprintf(command, sizeof command, "rm -r %s", folder);
    if (system(command)) return 1;
    return test_summary();
}

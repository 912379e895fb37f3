/* test_transport.c [SEEDS [FIRST [LOST]]] - what the plugin makes of a network that is slow, out of
   step or fails, by the transport in slow_transport.h: a row beside the plugin's own, without an
   edit there. Slow: the bits, bytes and counts of LOCAL, for any seed. Failing: each call of a rank
   in turn is refused, breaks or is lost, or its process dies there; every rank gets an error and
   its sentence in time, nothing leaks, and zero_destroy returns. At each stage, and where numbers
   travel packed and gradients in two hops. */
#include "../shared/allocations.h"
#include "slow_net.h"

static zero_comm slow_comm(const test_rank *r);
#define test_comm slow_comm
#include "../shared/host.h"
#undef test_comm

#include <signal.h>

enum { NET_RANKS = 4, NET_STEPS = 2 };
enum { NET_PACKED = 4, NET_WAYS }; /* below: a stage */

typedef struct net_rank { /* what became of a rank */
    uint64_t hash, bytes;
    zero_result result;
    char text[600];
    alloc_book book;
} net_rank;

typedef struct net_run { /* in shared memory */
    host_spec spec;
    int slow; /* 0: over LOCAL itself */
    slow_net net;
    net_rank rank[NET_RANKS];
} net_run;

static zero_comm slow_comm(const test_rank *r) {
    net_run *run = (net_run *)r->arg;
    zero_comm c = {ZERO_COMM_LOCAL, r->rank, r->local, r->node_size};
    const slow_way way = {&run->net, r->local, r->rank};
    if (!run->slow) return c;
    run->net.way[r->rank] = way;
    c.kind = ZERO_COMM_OWN;
    c.handle = &run->net.way[r->rank];
    return c;
}

static char net_case[200];

static void net_bark(int signal) {
    (void)signal;
    (void)!write(2, "HANGS: ", 7);
    (void)!write(2, net_case, strlen(net_case));
    (void)!write(2, "\n", 1);
    _exit(3);
}
__attribute__((format(printf, 1, 2))) static void net_begin(const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(net_case, sizeof net_case, format, list);
    va_end(list);
    (void)alarm(60);
}

/* ---- a training ---- */

static int net_train(host_run *h, net_rank *mine) {
    zero_stats stats;
    for (int step = 0; step < h->spec->steps; step++)
        if (!host_train_step(h) || !host_evaluate(h)) return 0;
    HOST_TRY(h, zero_query_stats(h->z, &stats));
    mine->bytes = test_mix(
        stats.sent_bytes
        ^ test_mix(stats.verdict_bytes ^ test_mix(stats.reductions ^ test_mix(stats.gathers))));
    mine->hash = host_hash(h);
    return !h->rank->failed;
}

static void net_body(test_rank *r) {
    net_run *run = (net_run *)r->arg;
    net_rank *mine = &run->rank[r->rank];
    host_run h;
    alloc_mine = &mine->book;
    const int ok = host_open(&h, &run->spec, r) && net_train(&h, mine);
    snprintf(mine->text, sizeof mine->text, "%s", h.z ? zero_last_error(h.z) : "no context");
    mine->result = ok ? ZERO_OK : h.z ? zero_barrier(h.z) : ZERO_ERR_MEMORY; /* a failure stays */
    zero_destroy(h.z);
    alloc_mine = NULL;
}

static alloc_book net_launcher; /* of the thread that makes the groups */

static void net_go(net_run *run, int processes) {
    memset(run->rank, 0, sizeof run->rank);
    memset(run->net.calls, 0, sizeof run->net.calls);
    memset(&net_launcher, 0, sizeof net_launcher);
    run->net.happened = 0;
    const host_spec *s = &run->spec;
    if (processes)
        (void)test_processes(s->nranks, s->node_size, net_body, run, 50);
    else
        (void)test_ranks(s->nranks, s->node_size, net_body, run);
}

static long net_live(const net_run *run) {
    long live = net_launcher.pieces + net_launcher.maps;
    for (int i = 0; i < run->spec.nranks; i++) {
        const alloc_book *b = &run->rank[i].book;
        live += b->pieces + b->maps + b->files;
    }
    return live;
}

static const char *net_way(int way) {
    static const char *const names[] = {"stage 0", "stage 1", "stage 2", "stage 3", "packed"};
    return names[way];
}
static void net_spec(host_spec *s, int way, int micro_steps, int sharded, zero_type type) {
    static const zero_tensor_desc desc[] = {
        {"emb", 700, 1, .uses = 2},
        {"mat", 331, 6, .unit = 1},
        {"norm", 9, 6, .unit = 1, .flags = ZERO_KEEP | ZERO_NO_DECAY},
        {"out", 5, 1, .unit = 7, .flags = ZERO_ONE_D}};
    const int packed = way == NET_PACKED;
    host_small(s, 7, packed ? 4 : 3, packed ? 3 : way, desc, 4);
    s->node_size = packed ? 2 : 0;
    s->cfg.weight_bits = packed ? 8 : 0;
    s->cfg.gradient_bits = packed ? 4 : 0;
    s->cfg.feedback = packed ? 0.8f : 0;
    s->units = 8;
    s->steps = NET_STEPS;
    s->micro_steps = micro_steps;
    s->cfg.accumulation = sharded ? ZERO_ACCUMULATE_SHARDED : ZERO_ACCUMULATE_LOCAL;
    s->cfg.type = type;
    s->cfg.scaler.initial = 16;
    s->cfg.persistence_numel = ZERO_NONE;
    s->cfg.timeout_s = 30;
}

/* ---- slow ---- */

static int net_same(const net_run *run, const net_rank *expected) {
    int ok = net_live(run) == 0;
    for (int i = 0; i < run->spec.nranks; i++)
        ok &= !run->rank[i].result && run->rank[i].hash == expected[i].hash
              && run->rank[i].bytes == expected[i].bytes;
    return ok;
}

static void net_slow(net_run *run, int seeds, uint64_t first) {
    net_rank expected[NET_RANKS];
    long held = 0, overtaken = 0;
    for (int i = 0; i < NET_WAYS * 5; i++) {
        const int way = i / 5, micro = (i % 5 + 1) / 2, sharded = i % 2;
        net_spec(&run->spec, way, 1 + micro, sharded, (zero_type)(i % ZERO_TYPES));
        run->spec.cfg.no_mapping = i % 2;
        memset(&run->net, 0, sizeof run->net);
        net_begin("%s, %d micro-steps, %s", net_way(way), 1 + micro, sharded ? "SHARDED" : "LOCAL");
        run->slow = 0;
        net_go(run, 0);
        memcpy(expected, run->rank, sizeof expected);
        test_check(net_same(run, expected) && expected[0].hash, "%s: %s", net_case, test_first);
        run->slow = 1;
        run->net.most_s = 0.0005;
        for (int seed = 0; seed < seeds; seed++) {
            run->net.seed = first + (uint64_t)seed;
            net_begin("%s, %d micro-steps, %s, seed %llu", net_way(way), 1 + micro,
                      sharded ? "SHARDED" : "LOCAL", (unsigned long long)run->net.seed);
            net_go(run, seed == 0 && i % 4 == 0);
            test_check(net_same(run, expected), "%s: live %ld: %s", net_case, net_live(run),
                       test_first);
        }
        held += run->net.held;
        overtaken += run->net.overtaken;
    }
    test_check(overtaken > 10, "%ld collectives were held back, %ld overtaken", held, overtaken);
}

/* ---- failing ---- */

/* A sentence says `call, rank r of n: ` what was lost: the call, as the network names it, or a rank
   that did not come. */
static int net_sentence(const net_run *run, int rank) {
    const slow_net *net = &run->net;
    const char *text = run->rank[rank].text;
    char whom[40], refused[64], lost[64];
    snprintf(whom, sizeof whom, ", rank %d of %d: ", rank, run->spec.nranks);
    snprintf(refused, sizeof refused, "refused %s %ld", slow_names[net->call], net->number);
    snprintf(lost, sizeof lost, "%s %ld was not answered", slow_names[net->call], net->number);
    const char *at = strstr(text, whom);
    const int late = strstr(text, "did not come to") || strstr(text, lost);
    return !strncmp(text, "zero_", 5) && at
           && (net->fault < SLOW_LOST ? strstr(at, refused) != NULL : late);
}

/* 0: the call was not reached. */
static int net_fails(net_run *run, int way) {
    static const char *const how[] = {"works", "is refused", "breaks", "is lost",
                                      "is where its process dies"};
    const slow_net *net = &run->net;
    const int ranks = run->spec.nranks, dies = net->fault == SLOW_DIES;
    char dead[32];
    net_begin("%s %ld of rank %d %s, %s", slow_names[net->call], net->number, net->rank,
              how[net->fault], net_way(way));
    const double start = test_now();
    net_go(run, dies);
    const double took = test_now() - start;
    if (!net->happened) return 0;
    if (dies) memset(&run->rank[net->rank].book, 0, sizeof run->rank->book);
    int ok = net_live(run) == 0 && took < 5 + run->spec.cfg.timeout_s, named = !dies;
    snprintf(dead, sizeof dead, "rank %d", net->rank);
    for (int i = 0; i < ranks; i++) {
        const net_rank *x = &run->rank[i];
        if (dies && i == net->rank) continue;
        ok &= x->result == ZERO_ERR_PEER || x->result == ZERO_ERR_TIMEOUT
              || (x->result == ZERO_ERR_COMM && i == net->rank);
        ok &= net_sentence(run, i);
        named |= strstr(x->text, dead) != NULL;
    }
    test_check(ok && named, "%s: live %ld, %.2f s, %d %d %d %d: %s | %s | %s | %s", net_case,
               net_live(run), took, (int)run->rank[0].result, (int)run->rank[1].result,
               (int)run->rank[2].result, (int)run->rank[3].result, run->rank[0].text,
               run->rank[1].text, run->rank[2].text, run->rank[3].text);
    return 1;
}

/* How often a rank makes each call when nothing fails. */
static void net_count(net_run *run, int way, long *calls) {
    memset(&run->net, 0, sizeof run->net);
    net_spec(&run->spec, way, 1 + way % 2, 1, ZERO_F32);
    net_begin("%s, nothing fails", net_way(way));
    net_go(run, 0);
    test_check(!net_live(run) && !run->rank[0].result, "%s: %s", net_case, test_first);
    memcpy(calls, run->net.calls[0], SLOW_CALLS * sizeof *calls);
    printf("%s: %ld issues, %ld exchanges, %ld broadcasts, %ld memories, %ld lists of messages\n",
           net_way(way), calls[SLOW_ISSUE], calls[SLOW_EXCHANGE], calls[SLOW_BROADCAST],
           calls[SLOW_MEMORY], calls[SLOW_SWAP]);
}

/* One call fails. A busy machine may be out of time before: more of it then. */
static int net_fault(net_run *run, int way, slow_call call, slow_fault fault, long k) {
    int reached = 0;
    memset(&run->net, 0, sizeof run->net);
    run->net.call = call;
    run->net.fault = fault;
    run->net.number = k;
    run->net.rank = (int)(k + (long)fault + way) % run->spec.nranks;
    const double least = fault == SLOW_DIES ? 0.5 : 0.06;
    for (double limit = fault >= SLOW_LOST ? least : 30; !reached && limit < 40; limit *= 8) {
        run->spec.cfg.timeout_s = limit;
        reached = net_fails(run, way);
    }
    return reached;
}

/* Every call of a rank in turn is refused and breaks; every so manieth, `lost`, is lost, which
   takes its time-out. Rare: a process dies in it. */
static void net_failing(net_run *run, int way, long lost) {
    long calls[SLOW_CALLS], failed = 0, expected = 0;
    run->slow = 1;
    net_count(run, way, calls);
    for (int what = 0; what < SLOW_CALLS; what++)
        for (long k = 1; k <= calls[what]; k++)
            for (int fault = SLOW_REFUSED; fault <= SLOW_DIES; fault++) {
                if (fault == SLOW_BREAKS && what != SLOW_ISSUE) continue;
                if (fault == SLOW_LOST && k % lost) continue;
                if (fault == SLOW_DIES && (what != SLOW_SWAP || k % (2 * lost) != lost / 2))
                    continue;
                expected++;
                failed += net_fault(run, way, (slow_call)what, (slow_fault)fault, k);
            }
    test_check(failed == expected && calls[SLOW_ISSUE] > 10
                   && (calls[SLOW_SWAP] > 20) == (way == NET_PACKED),
               "%s: %ld of %ld calls failed", net_way(way), failed, expected);
}

int main(int argc, char **argv) {
    net_run *run = (net_run *)test_shared(sizeof *run);
    alloc_mine = &net_launcher;
    (void)signal(SIGALRM, net_bark);
    net_slow(run, argc > 1 ? atoi(argv[1]) : 3, argc > 2 ? (uint64_t)atoll(argv[2]) : 1);
    for (int way = 0; way < NET_WAYS; way++) net_failing(run, way, argc > 3 ? atol(argv[3]) : 10);
    return test_summary();
}

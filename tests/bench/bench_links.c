/* bench_links.c METHOD MBITS [FLAG VALUE]... - what of the communication between hosts a step does
   not hide, with a method of wire.h and the trainer's flags (-z 3)
   bench_links.c swap MBITS - messages of a group, both ways at once, between two hosts: they must
   not take longer than one way alone

   Started by mpirun with as many ranks on each host (see links.sh). Layers sleep instead of
   computing, so that no core is short, and what a step takes beyond their sleep is communication
   alone. The step's time is held against

   - the least that is possible over a host's link of MBITS each way where nothing may be updated
     before the norm is known: reductions follow one another behind backward, gathers behind the
     step, and a layer waits for its own gather;
   - the simulator's step (overlap.h), whose rate and latency between hosts are measured first.

   What went over the host's device `cable`, where there is one, is told beside the formula's bytes.
   MACHINE=FILE: rates of machine.h, for the simulator. Exit code 3: this build refuses the method's
   flags. Behind `csv,` on a line of its own: LINKS_COLUMNS. Last line: N passed, N failed. */
#include "../../adapters/options/train_options.h"
#include "../../adapters/plan/machine.h"
#include "../../adapters/plan/overlap.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LINKS_LAYERS = 6, LINKS_NUMEL = 1770000, LINKS_STEPS = 7 }; /* 6 layers of 384 channels */
enum { LINKS_WORDS = 64, LINKS_REFUSED = 3, LINKS_SWAP = 16 << 20 };
enum { LINKS_TRADES = 4 };
#define LINKS_COLUMNS                                                                              \
    "hosts,ranks,stage,method,mbits,compute_ms,step_ms,least_ms,simulated_ms,formula_bytes,"       \
    "cable_bytes,link_mbits,latency_us"
static const double links_forward_s = 0.038; /* of a layer; backward takes twice as long */
static const double links_trade_s = 0.25;    /* of the link, to measure it */
static const double links_frames = 1.06;     /* bytes on the cable for a byte of ours */
static const double links_allowed = 1.25;    /* of the least possible; links.sh says what is due */

typedef struct links_tensors {
    float *w;
} links_tensors;

typedef struct links_run {
    MPI_Comm world;
    int rank, ranks, node_size, hosts;
    const wire_method *method;
    double mbits, cable_bytes; /* sent by the first host in a step; 0: not known */
    double rate, latency;      /* measured: bytes a second of a rank to other hosts, of a message */
    zero_config cfg;
    wire_unit wire; /* of a layer */
} links_run;

static double links_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}
static void links_compute(double seconds) {
    struct timespec t;
    t.tv_sec = (time_t)seconds;
    t.tv_nsec = (long)((seconds - (double)t.tv_sec) * 1e9);
    nanosleep(&t, NULL);
}
static int links_compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double links_later(double a, double b) { return a > b ? a : b; }
static double links_sooner(double a, double b) { return a < b ? a : b; }

/* Bytes so far; 0: there is no such device. */
static double links_cable(void) {
    FILE *file = fopen("/sys/class/net/cable/statistics/tx_bytes", "r");
    double bytes = 0;
    if (file == NULL) return 0;
    if (fscanf(file, "%lf", &bytes) != 1) bytes = 0;
    (void)fclose(file);
    return bytes;
}

/* The same once nothing is under way any more. */
static double links_still(const links_run *r) {
    double before, now = links_cable();
    do {
        before = now;
        links_compute(0.2);
        now = links_cable();
    } while (now > before + 1e4);
    MPI_Barrier(r->world);
    return now;
}

/* Bytes a second of ours that a rank gets of its host's link. */
static double links_rate(const links_run *r) {
    return r->mbits * 1e6 / 8 / links_frames / r->node_size;
}

/* Seconds of a step at best, with what a layer's collectives send between hosts. Stage 0 gathers
   gradients, behind their reduction; stages 1 and 2 parameters, ahead of forward; stage 3 those of
   `again` layers for backward again: buffers hold the others, until their own backwards. Replicas
   add up behind a reduction. */
static double links_least(const links_run *r, int again) {
    const wire_unit *w = &r->wire;
    const double gather = w->gather.far / links_rate(r), once = w->again.far / links_rate(r);
    const double unit = (w->reduction.far + w->ending.far) / links_rate(r);
    double gathered = 0, now = 0, reduced = 0;
    for (int l = 0; l < LINKS_LAYERS; l++) {
        gathered += gather;
        now = links_later(now, gathered) + links_forward_s;
    }
    const double turned = now;
    for (int l = 0; l < LINKS_LAYERS; l++) {
        now += 2 * links_forward_s;
        reduced = links_later(now, reduced) + unit;
    }
    const double freed = turned + 2 * links_forward_s; /* a gradient, and the first buffer */
    return links_later(reduced, freed + again * once + LINKS_LAYERS * unit);
}

/* Seconds of an all-to-all between the ranks of one place on all hosts, the mean of some without a
   pause, behind one that fills the queues on the way: a burst goes faster than a link. */
static double links_trade(zero_group *g, zero_group *all, char *out, char *in, size_t bytes) {
    double start = 0;
    zero_result e = ZERO_OK;
    for (int i = 0; i <= LINKS_TRADES && !e; i++) {
        e = zero_group_all_to_all(g, out, in, bytes);
        if (!e && i % LINKS_TRADES == 0) e = zero_group_barrier(all);
        if (i == 0) start = links_seconds();
    }
    if (e) fprintf(stderr, "%s\n", zero_group_error(g));
    if (e) exit(1);
    return (links_seconds() - start) / LINKS_TRADES;
}

/* What the link gives, frames and the kernel's part in it: all ranks trade at once; the median of
   three times, since now and then a connection has not found its pace yet. */
static void links_parts(links_run *r) {
    const zero_comm comm = {ZERO_COMM_MPI, 0, &r->world, 0};
    const double second = r->mbits * 1e6 / 8 / r->node_size / (r->hosts - 1); /* of a peer's */
    const size_t bytes = (size_t)(links_trade_s * second);
    char *out = (char *)calloc(2, (size_t)r->hosts * bytes), *in = out + (size_t)r->hosts * bytes;
    zero_group *all = NULL, *places = NULL;
    zero_result e = zero_group_open(&all, &comm, NULL, 60);
    if (!e) e = zero_group_split(all, r->rank % r->node_size, 0, &places);
    if (e) fprintf(stderr, "%s\n", zero_group_error(all));
    if (e) exit(1);
    const double little = links_trade(places, all, out, in, 64);
    const double a = links_trade(places, all, out, in, bytes);
    const double b = links_trade(places, all, out, in, bytes);
    const double c = links_trade(places, all, out, in, bytes);
    const double much = links_later(links_sooner(a, b), links_sooner(links_later(a, b), c));
    r->latency = little / (r->hosts - 1);
    r->rate = (double)bytes * (r->hosts - 1) / (much - little);
    zero_group_close(places);
    zero_group_close(all);
    free(out);
}

/* A step as overlap.h has it. */
static overlap_step links_simulated(const links_run *r) {
    double forward[LINKS_LAYERS], backward[LINKS_LAYERS];
    wire_unit wire[LINKS_LAYERS];
    overlap_visit visit[2 * LINKS_LAYERS];
    overlap_step step;
    overlap_case c;
    machine m;
    char why[PLAN_SENTENCE];
    const char *path = getenv("MACHINE");
    memset(&c, 0, sizeof c);
    memset(&m, 0, sizeof m);
    if (path && path[0] && machine_read(path, &m, why, sizeof why)) fprintf(stderr, "%s\n", why);
    for (int l = 0; l < LINKS_LAYERS; l++) {
        forward[l] = links_forward_s;
        backward[l] = 2 * links_forward_s;
        wire[l] = r->wire;
    }
    c.stage = r->cfg.stage;
    c.units = LINKS_LAYERS;
    c.own = -1;
    c.wire = wire;
    c.visits = overlap_chain(LINKS_LAYERS, -1, forward, backward, visit);
    c.visit = visit;
    c.prefetch = r->cfg.prefetch < 0 ? 0 : r->cfg.prefetch ? r->cfg.prefetch : 1;
    c.near = m.link > 0 ? m.link : 2e9;
    c.far = r->rate;
    c.latency = r->latency;
    c.coding = m.coding;
    const int state = r->method->node_shards ? r->node_size : r->cfg.stage ? r->ranks : 1;
    const double updated = 28.0 * LINKS_LAYERS * LINKS_NUMEL / state; /* AdamW, f32 */
    c.update = updated / (m.update > 0 ? m.update : 1e10);
    if (overlap_simulate(&c, &step)) memset(&step, 0, sizeof step);
    return step;
}

static void links_do(zero_ctx *z, zero_result r) {
    if (!r) return;
    fprintf(stderr, "%s\n", zero_last_error(z));
    exit(1);
}
static double links_step(zero_ctx *z) {
    const zero_hyper hyper = {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f};
    const double start = links_seconds();
    links_tensors params, grads;
    links_do(z, zero_pass_begin(z, ZERO_TRAIN, 0, 1));
    for (int l = 0; l < LINKS_LAYERS; l++) {
        links_do(z, zero_forward_begin(z, l, &params));
        links_compute(links_forward_s);
        links_do(z, zero_forward_end(z, l));
    }
    for (int l = LINKS_LAYERS - 1; l >= 0; l--) {
        links_do(z, zero_backward_begin(z, l, &params, &grads));
        links_compute(2 * links_forward_s);
        links_do(z, zero_backward_end(z, l));
    }
    links_do(z, zero_pass_end(z));
    links_do(z, zero_reduce(z));
    links_do(z, zero_step(z, &hyper));
    return links_seconds() - start;
}

/* The median of some steps. */
static double links_measure(links_run *r) {
    const zero_comm comm = {ZERO_COMM_MPI, 0, &r->world, 0};
    const zero_tensor_desc w = {"w", LINKS_NUMEL, .layers = LINKS_LAYERS};
    double seconds[LINKS_STEPS];
    zero_ctx *z;
    if (zero_create(&z, &r->cfg, &comm)) {
        fprintf(stderr, "%s\n", z ? zero_last_error(z) : "out of memory");
        exit(1);
    }
    links_do(z, zero_tensor(z, &w));
    links_do(z, zero_build(z));
    (void)links_step(z); /* the first waits for no gather */
    const double before = links_still(r);
    for (int s = 0; s < LINKS_STEPS; s++) seconds[s] = links_step(z);
    r->cable_bytes = (links_still(r) - before) / LINKS_STEPS;
    qsort(seconds, LINKS_STEPS, sizeof *seconds, links_compare);
    zero_destroy(z);
    return seconds[LINKS_STEPS / 2];
}

/* The trainer's flags and the method's; returns 0, or what main does. */
static int links_settings(links_run *r, int argc, char **argv) {
    static char added[WIRE_WORDS][WIRE_LETTERS];
    static train_options o;
    static ds_config all;
    char *word[LINKS_WORDS] = {argv[0]};
    int n = 1;
    for (int i = 3; i < argc && n < LINKS_WORDS - WIRE_WORDS; i++) word[n++] = argv[i];
    train_options_parse(&o, n, word);
    const int words = wire_flags(r->method, r->node_size, added);
    for (int i = 0; i < words && !o.error[0]; i++) word[n++] = added[i];
    const int typed = o.error[0] != 0;
    if (!typed) train_options_parse(&o, n, word);
    if (o.error[0] && r->rank == 0) printf("%s: %s\n", typed ? argv[0] : "refused", o.error);
    if (o.error[0]) return typed ? 2 : LINKS_REFUSED;
    train_options_store(&o, &all);
    r->cfg = all.zero;
    r->cfg.stage = o.stage.n > 0 ? o.stage.at[0] : 0;
    r->cfg.threads = 1;
    return 0;
}

static int links_train(links_run *r, int argc, char **argv) {
    const int code = links_settings(r, argc, argv);
    if (code) return code;
    const size_t element = zero_type_bytes(r->cfg.type);
    const wire_world world = {r->ranks, r->node_size, element, sizeof(float), 32};
    r->wire = wire_of(r->method, r->cfg.stage, &world, LINKS_NUMEL);
    if (r->hosts > 1) links_parts(r);
    const overlap_step simulation = links_simulated(r);
    const double simulated = simulation.step, far_bytes = simulation.far_bytes;
    const int again = r->cfg.stage == 3 ? simulation.gathers - LINKS_LAYERS : 0;
    const double step = links_measure(r), least = links_least(r, again);
    const double compute = 3 * LINKS_LAYERS * links_forward_s;
    const int slow = step > links_allowed * least;
    if (r->rank) return slow;
    printf("stage %d, %s, %g Mbit/s, %d hosts of %d: computing %.0f ms, step %.0f ms, at least "
           "%.0f: %.2f of it; simulated %.0f: %.2f; %.0f bytes between hosts, over the cable "
           "%.0f\n",
           r->cfg.stage, r->method->name, r->mbits, r->hosts, r->node_size, 1e3 * compute,
           1e3 * step, 1e3 * least, step / least, 1e3 * simulated, step / simulated,
           far_bytes * r->node_size, r->cable_bytes);
    printf("csv,%d,%d,%d,%s,%g,%.1f,%.1f,%.1f,%.1f,%.0f,%.0f,%.0f,%.0f\n%d passed, %d failed\n",
           r->hosts, r->ranks, r->cfg.stage, r->method->name, r->mbits, 1e3 * compute, 1e3 * step,
           1e3 * least, 1e3 * simulated, far_bytes * r->node_size, r->cable_bytes,
           8e-6 * r->rate * r->node_size, 1e6 * r->latency, !slow, slow);
    return slow;
}

/* Messages of a group between the first two ranks, both ways at once. */
static int links_swap(links_run *r) {
    const zero_comm comm = {ZERO_COMM_MPI, 0, &r->world, 0};
    char *out = (char *)calloc(2, LINKS_SWAP), *in = out + LINKS_SWAP;
    double seconds[3];
    zero_group *g = NULL;
    const zero_message list[] = {{1 - r->rank, 1, out, LINKS_SWAP},
                                 {1 - r->rank, 0, in, LINKS_SWAP}};
    zero_result e = zero_group_open(&g, &comm, NULL, 60);
    for (int i = 0; i < 3 && !e; i++) {
        e = zero_group_barrier(g);
        const double start = links_seconds();
        if (!e && r->rank < 2) e = zero_group_send_receive(g, list, 2);
        seconds[i] = links_seconds() - start;
    }
    if (e) fprintf(stderr, "%s\n", zero_group_error(g));
    qsort(seconds, 3, sizeof *seconds, links_compare);
    const double least = LINKS_SWAP / links_rate(r);
    const int slow = e || seconds[1] > 1.3 * least;
    if (r->rank == 0)
        printf(
            "messages of %d bytes both ways, %g Mbit/s: %.0f ms, one way takes %.0f: %.2f of it\n"
            "%d passed, %d failed\n",
            LINKS_SWAP, r->mbits, 1e3 * seconds[1], 1e3 * least, seconds[1] / least, !slow, slow);
    zero_group_close(g);
    free(out);
    return slow;
}

int main(int argc, char **argv) {
    static links_run r;
    MPI_Comm host;
    int level, code = 2;
    if (argc < 3 || MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level)) return 2;
    r.world = MPI_COMM_WORLD;
    MPI_Comm_rank(r.world, &r.rank);
    MPI_Comm_size(r.world, &r.ranks);
    MPI_Comm_split_type(r.world, MPI_COMM_TYPE_SHARED, r.rank, MPI_INFO_NULL, &host);
    MPI_Comm_size(host, &r.node_size);
    MPI_Comm_free(&host);
    r.hosts = r.ranks / r.node_size;
    r.mbits = atof(argv[2]);
    r.method = wire_find(argv[1]);
    if (strcmp(argv[1], "swap") == 0 && r.ranks > 1)
        code = links_swap(&r);
    else if (r.method != NULL)
        code = links_train(&r, argc, argv);
    MPI_Finalize();
    return code;
}

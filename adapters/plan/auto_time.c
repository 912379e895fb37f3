/* auto_time.c - predicts a step for auto.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "auto_time.h"

#include <math.h>
#include <string.h>

#include "../report/sentence.h"
#include "overlap.h"

enum { AUTO_LINE = 32, AUTO_GPU_LINE = 64 }; /* elements of a line of the layout */
#define AUTO_LATENCY 5e-6                    /* seconds of a message to another node */

static int auto_or_1(int n) { return n > 0 ? n : 1; }
static int auto_micro_steps(const plan_case *c) { return auto_or_1(c->zero.micro_steps); }
static int auto_node(const plan_case *c) { return c->node_size > 0 ? c->node_size : c->nranks; }

static int auto_units(const plan_case *c) { return c->model->blocks + c->model->is_gpt2; }

/* Returns the number of micro-steps to simulate. Their visits have to fit into the simulator. */
static int auto_most(const plan_case *c) {
    const int each = 2 * auto_units(c) + 4;
    const int most = OVERLAP_VISITS / each;
    return most < AUTO_SIMULATED ? most : AUTO_SIMULATED;
}

int auto_simulates(const plan_case *c) {
    const int groups = c->zero.shard_ranks > 0 && c->zero.shard_ranks != auto_node(c);
    const int seconds = c->zero.second_ranks > 0 && c->zero.second_ranks != auto_node(c);
    const int micro = auto_micro_steps(c), most = auto_most(c);
    return c->nranks > 1 && auto_or_1(c->tp) * auto_or_1(c->pp) * auto_or_1(c->cp) == 1
           && auto_or_1(c->sharers) == 1 && !groups && !seconds && (c->on_gpus || !c->one_machine)
           && (micro <= most || most > 1);
}

/* The embeddings are one unit, and each block is one. */
static size_t auto_numel(const plan_case *c, int unit) {
    const gpt2_config *g = &c->model->gpt2;
    const size_t own = c->model->is_gpt2
                           ? (size_t)(g->padded_vocab_size + g->max_seq_len) * (size_t)g->channels
                           : 0;
    return unit < c->model->is_gpt2 ? own : (c->model->numel - own) / (size_t)c->model->blocks;
}

/* Parameters and gradients can have different types. */
static wire_unit auto_wire(const plan_case *c, const zero_config *z, int unit) {
    const wire_method method = {
        "", "", 0, z->shard_ranks > 0, z->second_ranks > 0, z->weight_bits, z->gradient_bits, 0};
    const size_t param = zero_type_bytes(z->type), grad = z->grads == ZERO_GRAD_F32 ? 4 : param;
    wire_world world = {c->nranks, auto_node(c), grad, c->on_gpus ? grad : sizeof(float),
                        c->on_gpus ? AUTO_GPU_LINE : AUTO_LINE};
    const wire_unit grads = wire_of(&method, z->stage, &world, auto_numel(c, unit));
    world.element = param;
    wire_unit w = wire_of(&method, z->stage, &world, auto_numel(c, unit));
    w.reduction = grads.reduction;
    w.ending = grads.ending;
    return w;
}

/* Returns whether each micro-step reduces its gradients. */
static int auto_sharded(const plan_case *c) {
    const zero_accumulation typed = c->zero.accumulation;
    return typed == ZERO_ACCUMULATE_SHARDED
           || (typed == ZERO_ACCUMULATE_AUTO && c->zero.stage >= 2);
}

/* Lists the visits of all micro-steps. The gradients of a unit are reduced in each one, or only in
   the last. */
static int auto_visits(const plan_case *c, int own, int micro_steps, const double *forward,
                       const double *backward, overlap_visit *visit) {
    const int sharded = auto_sharded(c);
    int n = 0;
    for (int m = 0; m < micro_steps; m++) {
        const int more = overlap_chain(auto_units(c), own, forward, backward, visit + n);
        const int last = m + 1 == micro_steps;
        for (int v = n; v < n + more; v++)
            visit[v].reduces *= last ? OVERLAP_LAST : sharded ? OVERLAP_EARLIER : 0;
        n += more;
    }
    return n;
}

/* Simulates a step with this number of micro-steps. `step` has its computing and update. */
static int auto_simulate(const machine *m, const plan_case *c, const plan_answer *a,
                         const machine_step *step, int micro_steps, overlap_step *out) {
    static double forward[OVERLAP_UNITS], backward[OVERLAP_UNITS];
    static wire_unit wire[OVERLAP_UNITS];
    static overlap_visit visit[OVERLAP_VISITS];
    const machine_parts parts = machine_compute(m, c);
    const double each = auto_micro_steps(c);
    overlap_case o;
    memset(&o, 0, sizeof o);
    o.stage = c->zero.stage;
    o.units = auto_units(c);
    o.own = c->model->is_gpt2 ? 0 : -1;
    if (o.units > OVERLAP_UNITS) return 1;
    for (int u = 0; u < o.units; u++) {
        const double seconds = (u == o.own ? parts.vocabulary : parts.block) / each;
        forward[u] = seconds / 3;
        backward[u] = seconds * 2 / 3;
        if (u < 2) wire[u] = auto_wire(c, &a->resolved, u);
        if (u >= 2) wire[u] = wire[1]; /* blocks are equal */
    }
    o.wire = wire;
    o.visits = auto_visits(c, o.own, micro_steps, forward, backward, visit);
    o.visit = visit;
    o.prefetch = a->resolved.prefetch > 0 ? a->resolved.prefetch : 0;
    o.host_ahead = c->on_gpus;
    o.near = m->link;
    o.far = machine_far(m);
    o.latency = m->latency > 0 ? m->latency : AUTO_LATENCY;
    o.coding = m->coding;
    o.update = step->update;
    return overlap_simulate(&o, out);
}

/* Replaces the time of messages by the simulator's. The share that no processor can hide is added
   whole. */
static int auto_send(const machine *m, const plan_case *c, const plan_answer *a,
                     machine_step *step) {
    const int micro = auto_micro_steps(c), most = auto_most(c);
    double send[2] = {0, 0};
    for (int i = 0; i < 2; i++) {
        const int n = micro <= most ? micro : most - 1 + i;
        overlap_step out;
        if (auto_simulate(m, c, a, step, n, &out)) return 1;
        const double whole = out.near_bytes / m->link + out.far_bytes / machine_far(m);
        const double exposed = fmax(out.step - out.compute, 0);
        send[i] = m->overlap * exposed + (1 - m->overlap) * fmax(whole, exposed);
        if (micro <= most) send[1] = send[0];
        if (micro <= most) break;
    }
    step->send = micro <= most ? send[0] : send[1] + (micro - most) * (send[1] - send[0]);
    if (step->send < 0) step->send = 0;
    step->all = step->compute + step->send + step->update;
    return 0;
}

/* Returns the seconds of a collective alone. */
static double auto_alone(const machine *m, const wire_collective *w) {
    const double latency = m->latency > 0 ? m->latency : AUTO_LATENCY;
    return w->messages * latency + (m->coding > 0 ? w->coding_bytes / m->coding : 0)
           + fmax(w->near / m->link, w->far / machine_far(m));
}

/* Two bounds: the links send all bytes, and the last visit is the backward of unit 0, and
   nothing hides its reduction. Stage 3 gathers a unit again unless one of its buffers still has it.
 */
double auto_least_seconds(const machine *m, const plan_case *c, const plan_answer *a) {
    machine_step step;
    char why[PLAN_SENTENCE];
    if (machine_predict(m, c, a, &step, why, sizeof why)) return 0;
    if (!auto_simulates(c)) return step.all;
    const int units = auto_units(c), micro = auto_micro_steps(c);
    const int kept = 2 * ((a->resolved.prefetch > 0 ? a->resolved.prefetch : 0) + 3);
    const wire_unit own = auto_wire(c, &a->resolved, 0), block = auto_wire(c, &a->resolved, 1);
    const double blocks = units - 1, again = fmax(micro * (2 * units - kept) - units, 0);
    const double times = auto_sharded(c) ? micro : 1;
    const double far = times * (own.reduction.far + blocks * block.reduction.far) + own.ending.far
                       + blocks * block.ending.far + own.gather.far + blocks * block.gather.far
                       + (c->zero.stage == 3 ? again * block.again.far : 0);
    const double last =
        auto_alone(m, &own.reduction)
        + (own.ending.near > 0 || own.ending.far > 0 ? auto_alone(m, &own.ending) : 0);
    return fmax(step.compute + step.update + m->overlap * last, m->overlap * far / machine_far(m));
}

int auto_predict(const machine *m, const plan_case *c, const plan_answer *a, machine_step *step,
                 int *simulated, char *sentence, size_t bytes) {
    if (simulated != NULL) *simulated = 0;
    if (machine_predict(m, c, a, step, sentence, bytes)) return 1;
    if (!auto_simulates(c)) return 0;
    if (simulated != NULL) *simulated = 1;
    if (!auto_send(m, c, a, step)) return 0;
    return sentence_fail(sentence, bytes,
                         "-z auto: a step of %d units cannot be simulated; at most %d can",
                         auto_units(c), OVERLAP_UNITS);
}

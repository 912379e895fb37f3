/* wire.c - see wire.h. */
#include "wire.h"

#include <stdio.h>
#include <string.h>

enum { WIRE_BLOCK = 128, WIRE_LINE = 64 }; /* elements that share a scale; bytes of a line */

const wire_method wire_methods[] = {{"exact", "exact", 0, 0, 0, 0, 0, 0},
                                    {"zs", "-zs: a node's ranks", 1, 1, 0, 0, 0, 0},
                                    {"zh", "-zh: a node's ranks", 3, 0, 1, 0, 0, 0},
                                    {"qw8", "-qw 8", 3, 0, 0, 8, 0, 0},
                                    {"qg4", "-qg 4", 1, 0, 0, 0, 4, 0},
                                    {"qg4qf", "-qg 4 -qf 0.8", 1, 0, 0, 0, 4, 0.8},
                                    {"all", "-zh, -qw 8, -qg 4", 3, 0, 1, 8, 4, 0}};
const int wire_count = sizeof wire_methods / sizeof *wire_methods;

const wire_method *wire_find(const char *name) {
    for (int i = 0; i < wire_count; i++)
        if (strcmp(wire_methods[i].name, name) == 0) return &wire_methods[i];
    return NULL;
}

int wire_flags(const wire_method *m, int node_size, char words[WIRE_WORDS][WIRE_LETTERS]) {
    const struct {
        const char *flag;
        double value;
    } all[] = {{"-zs", m->node_shards ? node_size : 0},
               {"-zh", m->second_shards ? node_size : 0},
               {"-qw", m->weight_bits},
               {"-qg", m->gradient_bits},
               {"-qf", m->feedback}};
    int n = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (all[i].value <= 0) continue;
        (void)snprintf(words[n++], WIRE_LETTERS, "%s", all[i].flag);
        (void)snprintf(words[n++], WIRE_LETTERS, "%g", all[i].value);
    }
    return n;
}

static size_t wire_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

size_t wire_packed(int bits, size_t numel) {
    const size_t scales = 4 * ((numel + WIRE_BLOCK - 1) / WIRE_BLOCK);
    return wire_up(scales, WIRE_LINE) + wire_up(numel * (size_t)bits / 8, WIRE_LINE);
}

/* Returns part(g) of wire.h, in elements. */
static size_t wire_part(const wire_world *w, size_t numel, int g) {
    const size_t ranks = (size_t)w->ranks;
    return wire_up((numel + ranks - 1) / ranks, w->line) * (ranks / (size_t)g);
}
/* Returns the number of nodes that g consecutive ranks are in. */
static int wire_nodes(const wire_world *w, int g) {
    return g > w->node_size ? g / w->node_size : 1;
}

/* Returns what a rank sends in an all-gather over g ranks, in `bits` bits for each number; bits 0:
   as stored. */
static wire_collective wire_gather(const wire_world *w, size_t numel, int g, int bits) {
    const size_t part = wire_part(w, numel, g);
    const double bytes = (double)(bits ? wire_packed(bits, part) : part * w->element);
    const int nodes = wire_nodes(w, g);
    wire_collective sent = {(g - nodes) * bytes, (nodes - 1) * bytes, nodes - 1, 0};
    if (bits) /* a rank packs its own part, and unpacks all parts */
        sent.coding_bytes = (g + 1) * (bytes + (double)(part * w->element));
    return sent;
}

/* Returns what a rank sends in a reduce-scatter over g ranks: first inside each node, then the
   node's sums between the nodes. */
static wire_collective wire_reduce(const wire_world *w, size_t numel, int g, int bits) {
    const size_t part = wire_part(w, numel, g);
    const double stored = (double)(part * w->element);
    const double packed = (double)(bits ? wire_packed(bits, part) : 0);
    const int nodes = wire_nodes(w, g), locals = g / nodes;
    wire_collective sent = {(locals - 1) * nodes * (bits ? packed : stored), 0, nodes - 1, 0};
    sent.far = (nodes - 1) * (bits ? packed : (double)(part * w->sum_element));
    if (!bits) return sent;
    /* A rank quantizes a whole unit, and sums the parts that it receives from its node. Then it
       does the same with these sums, between nodes. */
    sent.coding_bytes = g * (stored + packed) + (locals + 1) * nodes * packed + (double)(4 * part);
    if (nodes > 1) sent.coding_bytes += 2.0 * nodes * ((double)(4 * part) + packed);
    return sent;
}

/* Returns what a rank sends so that all replicas have the sum of their parts. A rank sends f32
   pieces to the other replicas, and each sends its sums back in the type of stored gradients. */
static wire_collective wire_replicas(const wire_world *w, size_t numel, int g) {
    const int replicas = w->ranks / g, near = w->node_size > g ? w->node_size / g : 1;
    const double piece = (double)wire_part(w, numel, w->ranks);
    const double bytes = piece * (double)(sizeof(float) + w->element);
    const wire_collective sent = {(near - 1) * bytes, (replicas - near) * bytes,
                                  2 * (replicas / near - 1), 0};
    return sent;
}

wire_unit wire_of(const wire_method *m, int stage, const wire_world *w, size_t numel) {
    const int shares = m->node_shards && w->node_size < w->ranks;
    const int g = shares ? w->node_size : w->ranks;
    const int again = m->second_shards && w->node_size < g ? w->node_size : g;
    wire_unit unit;
    memset(&unit, 0, sizeof unit);
    unit.reduction = wire_reduce(w, numel, g, m->gradient_bits);
    if (stage == 0) unit.ending = wire_gather(w, numel, g, 0);
    if (shares) unit.ending = wire_replicas(w, numel, g);
    if (stage > 0) unit.gather = wire_gather(w, numel, g, m->weight_bits);
    if (stage < 3) return unit;
    const size_t padded = wire_part(w, numel, g) * (size_t)g; /* a second shard is a part of this */
    unit.again = wire_gather(w, padded, again, m->second_shards ? 0 : m->weight_bits);
    return unit;
}

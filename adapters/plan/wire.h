/* wire.h - bytes that the collectives of a step send, by formula: a row per method

   N ranks in nodes of L consecutive ones. State is sharded over G = N of them or, with -zs, over
   the G = L of a node, of which there are R = N / G replicas; K = G / L nodes are in a shard group
   (1 where G is not larger than L). Of a unit of n elements, of e bytes each as they are stored:
       part(g)        N / g pieces of ceil(n / N) elements, rounded up to a line of the layout
       packed(b, m)   line(4 ceil(m / 128)) + line(m b / 8): scales and codes of m elements in b
                      bits, both in whole lines of 64 bytes
   A rank sends to other nodes (far) and to the others of its own (near):

                                 far                         near
     gather over g               (g / L - 1) x               (g - g / L) x       x = part(g) e
       -qw b: x = packed(b, part(g)); -zh: later ones of a step have g = L, and x = part(g) e
     reduction                   (K - 1) part(G) w           (L - 1) K part(G) e
       w: bytes of an element of a node's sum: 4 over MPI, e over NCCL
       -qg b                     (K - 1) packed(b, part(G))  (L - 1) K packed(b, part(G))
     -zs, over the replicas      (R - 1) part(N) (4 + e)     in the last micro-step

   A step of stage 3 gathers each unit in forward, and in backward again those whose buffers were
   reused. Stages 1 and 2 gather once, after the update. Stage 0 gathers gradients, after their
   reduction.

   WHY A FILE. The plugin counts the bytes that it sends (zero_plan, zero_stats). The formulas here
   are those of the papers: for the simulator (overlap.h), the best time of a link
   (tests/bench/bench_links.c), and tests that compare both.
*/
#ifndef PLAN_WIRE_H
#define PLAN_WIRE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct wire_method {
    const char *name;  /* in CSVs */
    const char *words; /* in pictures */
    int least_stage;
    int shares;  /* -zs: a node's ranks shard */
    int seconds; /* -zh: a node's ranks keep a second shard */
    int weight_bits, gradient_bits;
    double feedback; /* -qf: bytes are the same, a rank's memory is not */
} wire_method;

/* The first is exact. */
extern const wire_method wire_methods[];
extern const int wire_count;
const wire_method *wire_find(const char *name); /* NULL if no method has this name */

/* Writes the trainer's flags for a method in nodes of node_size ranks: "-zh", "2". Returns the
   number of words, at most WIRE_WORDS. */
enum { WIRE_WORDS = 12, WIRE_LETTERS = 16 };
int wire_flags(const wire_method *m, int node_size, char words[WIRE_WORDS][WIRE_LETTERS]);

typedef struct wire_world {
    int ranks, node_size;        /* N and L */
    size_t element, sum_element; /* e and w, bytes */
    size_t line;                 /* elements of a line: 32, on GPUs 64 */
} wire_world;

/* The bytes that a rank sends in one collective of one unit. */
typedef struct wire_leg {
    double near, far; /* bytes */
    int turns;        /* number of other nodes to which it sends */
    double coded;     /* bytes of memory that packing and unpacking read and write */
} wire_leg;

typedef struct wire_unit {
    wire_leg gather;    /* the first of a step */
    wire_leg again;     /* each later one */
    wire_leg reduction; /* each reduction of a step */
    wire_leg ending;    /* after the last reduction: over replicas; at stage 0 the gather */
} wire_unit;

wire_unit wire_of(const wire_method *m, int stage, const wire_world *w, size_t numel);

/* packed(bits, numel), in bytes. */
size_t wire_packed(int bits, size_t numel);

#ifdef __cplusplus
}
#endif
#endif

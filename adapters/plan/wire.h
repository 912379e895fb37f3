/* wire.h - formulas for the bytes that the collectives of a step send, with a row for each method

   N ranks are in nodes of L consecutive ranks. State is sharded over G ranks: G = N, or G = L with
   -zs. There are R = N / G replicas. A shard group has K = G / L nodes (1 if G is not larger
   than L). A unit has n elements, which are stored in e bytes each. Then:
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
    const char *name;  /* the name in CSV files */
    const char *words; /* the words in pictures */
    int least_stage;
    int node_shards;   /* -zs: state is sharded inside each node */
    int second_shards; /* -zh: each node has a second shard of the parameters */
    int weight_bits, gradient_bits;
    double feedback; /* -qf: it sends the same bytes, but takes memory */
} wire_method;

/* The first method sends nothing quantized. */
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
typedef struct wire_collective {
    double near, far;    /* bytes */
    int messages;        /* messages to other nodes, one after the other: each takes a latency */
    double coding_bytes; /* bytes of memory that packing and unpacking read and write */
} wire_collective;

typedef struct wire_unit {
    wire_collective gather;    /* the first gather of a step */
    wire_collective again;     /* each later gather */
    wire_collective reduction; /* each reduction of a step */
    wire_collective ending;    /* after the last reduction: over replicas; at stage 0 the gather */
} wire_unit;

wire_unit wire_of(const wire_method *m, int stage, const wire_world *w, size_t numel);

/* Returns packed(bits, numel), in bytes. */
size_t wire_packed(int bits, size_t numel);

#ifdef __cplusplus
}
#endif
#endif

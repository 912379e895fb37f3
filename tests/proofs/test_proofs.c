/* test_proofs.c - the proofs of this folder, with samples of their numbers

   `make prove` proves them for all numbers. This program needs no CBMC. SAMPLES of each proof;
   arguments: SEED. */
#include "../shared/harness.h"
#include "proof.h"

jmp_buf proof_next;
static const char *running;
static uint64_t seed;
static int false_here;

static uint64_t draw(void) { /* splitmix64 */
    uint64_t x = seed += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* Ends of the range, small numbers and any number. */
uint64_t any(uint64_t least, uint64_t most) {
    const uint64_t range = most - least, how = draw() % 4, x = draw() >> draw() % 64;
    if (how == 0) return least + (x % 4 <= range ? x % 4 : 0);
    if (how == 1) return most - (x % 4 <= range ? x % 4 : 0);
    return least + (range == UINT64_MAX ? x : (how == 2 ? x : draw()) % (range + 1));
}
void proof_fail(const char *words, const char *file, int line) {
    if (!false_here++) test_check(0, "%s: %s (%s:%d)", running, words, file, line);
}

#define PROOF(name) void name(void);
#include "proofs.h"
#undef PROOF
static const struct proof {
    const char *name;
    void (*run)(void);
} proofs[] = {
#define PROOF(name) {#name, name},
#include "proofs.h"
};

enum { SAMPLES = 20000 };

static int sample(const struct proof *p) { /* 1: the numbers meet the assumptions */
    if (setjmp(proof_next)) return 0;
    p->run();
    return 1;
}

int main(int argc, char **argv) {
    seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    for (const struct proof *p = proofs; p < proofs + sizeof proofs / sizeof *proofs; p++) {
        int met = 0;
        running = p->name;
        false_here = 0;
        for (int i = 0; i < SAMPLES && !false_here; i++) met += sample(p);
        test_check(false_here || met > SAMPLES / 1000, "%s: only %d samples meet its assumptions",
                   p->name, met);
    }
    return test_summary();
}
